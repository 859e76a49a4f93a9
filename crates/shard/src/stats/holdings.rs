//! The holdings of a shard and of its home engines, for audits.
//!
//! Upstream:   the simulation checks them at the end of each run.
//! Downstream: the shard's clients and requests, the statistics of the engines.

use kachel_engine::{Engine, EngineStats};
use kachel_net::WIDENED_BYTES;

use crate::clients::Clients;
use crate::large::upload::Uploads;

/// What a shard holds now, and how often rare events have happened in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Open connections.
    pub connections: u64,
    /// Reply slots in use, including those of closed connections that still await an answer.
    pub reply_slots: u64,
    /// Fences that are listed. Those of clients that are gone are listed for a while.
    pub fences: u64,
    /// Large values that are being received.
    pub uploads: u64,
    /// Requests that the engines delay. Replies that are not durable yet count in `reply_slots`.
    pub delayed: u64,
    /// Paused connections.
    pub stalled: u64,
    /// Bytes of input beyond the own share of each connection, which are charged to the budget.
    pub input_bytes: u64,
    /// Bytes that connections may owe beyond their own share, which are charged to the budget.
    pub owed_bytes: u64,
    /// Slots taken in the index.
    pub index_items: u64,
    /// Bytes of the index.
    pub index_bytes: u64,
    /// Buckets that the index ever added.
    pub index_splits: u64,
    /// Buckets that the index ever gave back.
    pub index_merges: u64,
    /// Items in the segments. Flushed and expired items count until their space is reclaimed.
    pub items: u64,
    /// Segments owned, spare segments included.
    pub segments: u64,
    /// Blocks that hold large values.
    pub blocks: u64,
    /// Items copied to make room.
    pub compacted: u64,
    /// Items evicted.
    pub evictions: u64,
    /// Items found expired, whose space was reclaimed or will be.
    pub reclaimed: u64,
    /// Items refused because no room was found.
    pub refused: u64,
}

impl Holdings {
    /// What the clients of a shard hold now. Cost: a read of each connection.
    pub(crate) fn of_clients<E: Engine>(
        clients: &Clients<E::Pinned>,
        uploads: &Uploads<E::Upload>,
    ) -> Self {
        let connections = &clients.connections;
        let open = || connections.indices().filter_map(|open| connections.get(open));
        Self {
            connections: connections.count().into(),
            reply_slots: clients.slots.in_use().into(),
            fences: clients.fences.count() as u64,
            uploads: uploads.count() as u64,
            stalled: open().filter(|open| open.is_paused()).count() as u64,
            input_bytes: open().map(|open| open.input().charged_bytes()).sum(),
            owed_bytes: open().filter(|open| open.outbox().is_wide()).count() as u64
                * WIDENED_BYTES,
            ..Self::default()
        }
    }

    /// Adds what an engine holds, which delays `delayed` requests.
    pub(crate) fn add_engine(&mut self, delayed: usize, stats: &EngineStats) {
        self.delayed += delayed as u64;
        self.index_items += stats.index_items;
        self.index_bytes += stats.index_bytes;
        self.index_splits += stats.index_splits;
        self.index_merges += stats.index_merges;
        self.items += stats.items;
        self.segments += stats.segments;
        self.blocks += stats.blocks;
        self.compacted += stats.compacted;
        self.evictions += stats.evictions;
        self.reclaimed += stats.reclaimed;
        self.refused += stats.refused;
    }
}

//! What a shard reports of itself: gauges for `stats`, and its books for audits.
//!
//! Upstream:   `tick` publishes once a tick; `stats reset` begins to count again; the simulation
//!             asks for the books at the end of each run.
//! Downstream: the counters of the shard, the statistics of the engine.

use kachel_engine::{Engine, EngineStats};
use kachel_net::WIDENED_BYTES;

use crate::clients::Clients;
use crate::counters::Counters;
use crate::delayed::Delayed;
use crate::upload::Uploads;

/// What the engine had done at the last `stats reset`.
#[derive(Debug, Default)]
pub(crate) struct Report {
    before: EngineStats,
}

impl Report {
    /// Writes the gauges that `stats` shows.
    pub(crate) fn publish(&self, counters: &Counters, stats: &EngineStats) {
        counters.publish(stats, &self.before);
    }

    /// Begins to count again from 0 (`stats reset`).
    pub(crate) fn reset(&mut self, counters: &Counters, stats: &EngineStats) {
        counters.reset();
        self.before = *stats;
        self.publish(counters, stats);
    }
}

/// What a shard holds now, and how often rare things have happened in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Connections open.
    pub connections: u64,
    /// Reply slots kept for some connection, or for one that is gone and is still answered.
    pub reply_slots: u64,
    /// Large values of which not all has come.
    pub uploads: u64,
    /// Requests that the engine delays, and replies that are not durable yet.
    pub delayed: u64,
    /// Connections listed as waiting for room.
    pub stalled: u64,
    /// Input beyond its connection's own share, charged to the budget.
    pub input_bytes: u64,
    /// What connections may owe beyond their own share, charged to the budget.
    pub owed_bytes: u64,
    /// Slots taken in the index.
    pub index_items: u64,
    /// Bytes of the index.
    pub index_bytes: u64,
    /// Buckets that the index ever added.
    pub index_splits: u64,
    /// Buckets that the index ever gave back.
    pub index_merges: u64,
    /// Items in the segments, flushed and expired ones too until their space returns.
    pub items: u64,
    /// Segments owned, those kept ready too.
    pub segments: u64,
    /// Blocks that hold large values.
    pub blocks: u64,
    /// Items copied to make room.
    pub compacted: u64,
    /// Items evicted.
    pub evictions: u64,
    /// Items found expired, whose space came back.
    pub reclaimed: u64,
    /// Items for which no room was found.
    pub refused: u64,
}

impl Holdings {
    /// What the parts of a shard hold now. Cost: a read of each connection.
    pub(crate) fn of<E: Engine>(
        clients: &Clients<E::Pinned>,
        uploads: &Uploads<E::Upload>,
        delayed: &Delayed<E>,
        stats: &EngineStats,
    ) -> Self {
        let connections = &clients.connections;
        let open = || connections.indices().filter_map(|open| connections.get(open));
        Self {
            connections: connections.count().into(),
            reply_slots: clients.slots.in_use().into(),
            uploads: uploads.count() as u64,
            delayed: delayed.count() as u64,
            stalled: open().filter(|open| open.is_paused()).count() as u64,
            input_bytes: open().map(|open| open.input().charged_bytes()).sum(),
            owed_bytes: open().filter(|open| open.outbox().is_wide()).count() as u64
                * WIDENED_BYTES,
            index_items: stats.index_items,
            index_bytes: stats.index_bytes,
            index_splits: stats.index_splits,
            index_merges: stats.index_merges,
            items: stats.items,
            segments: stats.segments,
            blocks: stats.blocks,
            compacted: stats.compacted,
            evictions: stats.evictions,
            reclaimed: stats.reclaimed,
            refused: stats.refused,
        }
    }
}

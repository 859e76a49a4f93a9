//! What a shard holds and has done, for who checks that it adds up.
//!
//! Upstream:   the simulation asks at the end of each run.
//! Downstream: the books of the rooms below: connections, reply slots, table, segments.

use kachel_io::{Clock, Io};
use kachel_net::WIDENED_BYTES;

use crate::shard::Shard;

/// What a shard holds now, and how often what is rare has happened in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Connections open.
    pub connections: u64,
    /// Reply slots kept for some connection, or for one that is gone and is still answered.
    pub reply_slots: u64,
    /// Large values of which not all has come.
    pub uploads: u64,
    /// Connections listed as waiting for room.
    pub stalled: u64,
    /// Input beyond its connection's own share, charged to the budget.
    pub input_bytes: u64,
    /// What connections may owe beyond their own share, charged likewise.
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

impl<I: Io, C: Clock> Shard<I, C> {
    /// Connections that it ever closed for what they held pinned.
    pub fn pinned_closes(&self) -> u64 {
        self.core().pinned_closes
    }

    /// What it holds now. Cost: a look at each connection.
    pub fn holdings(&self) -> Holdings {
        let core = self.core();
        let cache = core.cache.stats();
        let open = || core.connections.indices().filter_map(|open| core.connections.get(open));
        Holdings {
            connections: core.connections.count().into(),
            reply_slots: core.slots.in_use().into(),
            uploads: core.uploads.count() as u64,
            stalled: open().filter(|open| open.stalled).count() as u64,
            input_bytes: open().map(|open| open.input.charged_bytes).sum(),
            owed_bytes: open().filter(|open| open.outbox.is_wide()).count() as u64 * WIDENED_BYTES,
            index_items: cache.index_items,
            index_bytes: cache.index_bytes,
            index_splits: cache.index_splits,
            index_merges: cache.index_merges,
            items: cache.items,
            segments: cache.segments,
            blocks: cache.blocks,
            compacted: cache.compacted,
            evictions: cache.evictions,
            reclaimed: cache.reclaimed,
            refused: cache.refused,
        }
    }
}

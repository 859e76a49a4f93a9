//! Statistics of a cache: items, bytes, and work done since its start.
//!
//! Upstream:   `shard` asks, for `stats` and for the audits of the simulation.
//! Downstream: the counts of `table` and `segment`.

use kachel_segment::BLOCK_BYTES;

use crate::cache::Cache;

/// What one shard's cache holds now, and what it has done since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Items in the index.
    pub index_items: u64,
    /// Bytes of the index.
    pub index_bytes: u64,
    /// Slots of the index.
    pub index_slots: u64,
    /// Buckets that the index ever added.
    pub index_splits: u64,
    /// Buckets that the index ever gave back.
    pub index_merges: u64,
    /// Lookups that found an item that had expired.
    pub found_expired: u64,
    /// Lookups that found an item that was flushed.
    pub found_flushed: u64,
    /// Items in the segments: flushed and expired ones count until their space returns.
    pub items: u64,
    /// Bytes of these items, large values included.
    pub live_bytes: u64,
    /// Segments owned, those kept ready too.
    pub segments: u64,
    /// Blocks that hold large values.
    pub blocks: u64,
    /// Items evicted.
    pub evictions: u64,
    /// Items evicted that were never read.
    pub evicted_unfetched: u64,
    /// Items evicted although they were read not long before.
    pub evicted_active: u64,
    /// Items expired that were never read.
    pub expired_unfetched: u64,
    /// Items found expired, whose space came back or will.
    pub reclaimed: u64,
    /// Items copied to make room.
    pub compacted: u64,
    /// Items for which no room was found.
    pub refused: u64,
}

impl Cache {
    /// What it holds and has done. Cost: a few loads.
    pub fn stats(&self) -> CacheStats {
        let (index, segments) = (self.table.counters(), self.segments.stats());
        CacheStats {
            index_items: self.table.len(),
            index_bytes: self.table.bytes(),
            index_slots: self.table.slots(),
            index_splits: index.splits,
            index_merges: index.merges,
            found_expired: self.found_expired,
            found_flushed: self.found_flushed,
            items: segments.items,
            live_bytes: segments.live_bytes,
            segments: segments.segments + segments.spare_segments,
            blocks: segments.block_bytes / BLOCK_BYTES as u64,
            evictions: segments.evictions,
            evicted_unfetched: segments.evicted_unfetched,
            evicted_active: segments.evicted_active,
            expired_unfetched: segments.expired_unfetched,
            reclaimed: segments.reclaimed,
            compacted: segments.compacted,
            refused: segments.refused,
        }
    }
}

//! Statistics of a cache: items, bytes, and work done since its start.
//!
//! Upstream:   `engine`'s contract.
//! Downstream: the counts of `table` and `segment`.

use kachel_engine::{ClassStats, EngineStats};
use kachel_segment::BLOCK_BYTES;

use crate::cache::Cache;

/// Translates the counts of the segments, which do not know the contract.
pub(crate) fn class_stats(counts: kachel_segment::ClassTotals) -> ClassStats {
    debug_assert!(counts.evicted_unfetched <= counts.evicted, "they are evicted, too");
    ClassStats {
        evicted: counts.evicted,
        evicted_with_expiry: counts.evicted_with_expiry,
        evicted_age_s: counts.evicted_age_s,
        evicted_unfetched: counts.evicted_unfetched,
        evicted_active: counts.evicted_active,
        reclaimed: counts.reclaimed,
        expired_unfetched: counts.expired_unfetched,
    }
}

impl Cache {
    /// The statistics of the cache. Cost: a few loads.
    pub(crate) fn totals(&self) -> EngineStats {
        let (index, segments) = (self.table.counts(), self.segments.stats());
        EngineStats {
            index_items: self.table.len(),
            index_bytes: self.table.bytes(),
            index_slots: self.table.slots(),
            index_splits: index.splits,
            index_merges: index.merges,
            found_expired: self.dead_found.expired,
            found_flushed: self.dead_found.flushed,
            items: segments.items,
            live_bytes: segments.live_bytes,
            segments: segments.segments + segments.spare_segments,
            blocks: segments.block_bytes / BLOCK_BYTES as u64,
            evictions: segments.evictions,
            evicted_unfetched: segments.evicted_unfetched,
            evicted_active: segments.evicted_active,
            evicted_age_s: segments.evicted_age_s,
            expired_unfetched: segments.expired_unfetched,
            reclaimed: segments.reclaimed,
            prefix_flushed: segments.prefix_flushed,
            compacted: segments.compacted,
            refused: segments.refused,
        }
    }
}

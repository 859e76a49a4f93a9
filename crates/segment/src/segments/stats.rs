//! The statistics of a shard's segments: their present content, and the work since the start.
//!
//! Upstream:   `stats` of the server adds the shards up.
//! Downstream: `log` for the present content, `reclaimer` for the work.

use super::Segments;
use crate::limits::BLOCK_BYTES;

/// The statistics of one shard's segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentStats {
    /// Items neither removed nor replaced. Flushed and expired items count until their memory is
    /// freed.
    pub items: u64,
    /// Bytes of these items, blocks included.
    pub live_bytes: u64,
    /// Bytes of removed and replaced items whose memory is not freed yet.
    pub dead_bytes: u64,
    /// Segments with this shard's items.
    pub segments: u64,
    /// Segments that this shard keeps ready, with no item in them.
    pub spare_segments: u64,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Bytes of blocks that hold its large values.
    pub block_bytes: u64,
    /// Bytes of segments and blocks of the probation queue.
    pub probation_bytes: u64,
    /// Bytes of segments and blocks of the main queue.
    pub main_bytes: u64,
    /// Items evicted.
    pub evictions: u64,
    /// Items evicted that were never read.
    pub evicted_unfetched: u64,
    /// Items evicted although active.
    pub evicted_active: u64,
    /// Seconds from the last access of each evicted item to its eviction, in all.
    pub evicted_age_s: u64,
    /// Items found expired or flushed that were never read.
    pub expired_unfetched: u64,
    /// Items found expired or flushed.
    pub reclaimed: u64,
    /// Those of them that were flushed with their prefix.
    pub prefix_flushed: u64,
    /// Items for which no room was found.
    pub refused: u64,
    /// Items copied to make room.
    pub compacted: u64,
    /// New items that had been evicted not long before.
    pub ghost_hits: u64,
}

impl Segments {
    /// Counts what the segments hold now and what they have done since the start. Cost: a few
    /// loads.
    pub fn stats(&self) -> SegmentStats {
        let holdings = self.log.holdings();
        let [probation_bytes, main_bytes] = self.log.queues().bytes();
        let counts = self.reclaimer.counts();
        SegmentStats {
            items: holdings.items,
            live_bytes: holdings.live_bytes as u64,
            dead_bytes: holdings.dead_bytes as u64,
            segments: holdings.segments as u64,
            spare_segments: holdings.spare_segments as u64,
            segment_bytes: self.pool().segment_bytes() as u64,
            block_bytes: (holdings.blocks * BLOCK_BYTES) as u64,
            probation_bytes: probation_bytes as u64,
            main_bytes: main_bytes as u64,
            evictions: counts.evictions,
            evicted_unfetched: counts.evicted_unfetched,
            evicted_active: counts.evicted_active,
            evicted_age_s: counts.evicted_age_s,
            expired_unfetched: counts.expired_unfetched,
            reclaimed: counts.reclaimed,
            prefix_flushed: counts.prefix_flushed,
            refused: counts.refused,
            compacted: counts.compacted,
            ghost_hits: counts.ghost_hits,
        }
    }
}

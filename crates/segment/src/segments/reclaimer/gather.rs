//! Gathering: moves the blocks of large values together, so that whole segments become free.
//!
//! Upstream:   the reclaimer's loops, before they evict; the tick, after a call by another shard.
//! Downstream: `pool`, which moves the blocks.
//!
//! A shard moves only the blocks of its own large values. If it finds many free blocks but cannot
//! free a segment, it calls the other shards, and each of them moves its own blocks.
//!
//! Invariants:
//! - H1  A step that frees a segment has moved blocks. So a round that moved no block has freed no
//!   segment, and it is not repeated until a segment's worth of blocks was taken or freed, or the
//!   next second began.

use super::Reclaimer;
use crate::limits::BLOCK_BYTES;
use crate::pool::{CACHE_LINE_BYTES, GATHERED_BYTES_MAX, Gathered, Pool};
use crate::segments::log::Log;

/// Blocks are gathered only if the free blocks amount to this number of segments. A guess: with
/// fewer free blocks, freeing a segment may cost as many copies as it has blocks.
const PLENTY_SEGMENTS: usize = 2;

/// A block of a segment that is searched counts as this many bytes of work: its owner, and the head
/// and state of its extent.
pub(super) const LOOKED_BLOCK_BYTES: usize = 2 * CACHE_LINE_BYTES;

/// The search for this shard's blocks in segments that have many free ones.
#[derive(Debug, Default)]
pub(crate) struct Gathering {
    /// Segments that the next step passes over.
    from: usize,
    /// The number of calls when this shard last answered one or made one.
    heard: u32,
    /// Whether blocks were moved since the round began: then another round is worth it.
    moved: bool,
    /// The last round, if it moved nothing.
    vain: Option<InVain>,
}

/// A round of gathering that moved nothing: its second, and the number of free blocks then.
#[derive(Clone, Copy, Debug)]
struct InVain {
    second: u32,
    free_blocks: usize,
}

/// Whether enough blocks are free for gathering to free a whole segment.
pub(crate) fn are_blocks_plenty(pool: &Pool) -> bool {
    pool.free_blocks() >= PLENTY_SEGMENTS * pool.blocks_per_segment()
}

impl Gathering {
    /// Whether gathering blocks may free a segment. A round that freed none is not repeated until a
    /// segment's worth of blocks was taken or freed, or the next second began. Otherwise pinned
    /// values with free blocks between them would be examined again for every few evicted items.
    /// (Unpinning a value, or storing an upload, frees no block.)
    fn may_gather(&self, pool: &Pool, now: u32) -> bool {
        let is_other = |vain: InVain| {
            vain.second != now
                || pool.free_blocks().abs_diff(vain.free_blocks) >= pool.blocks_per_segment()
        };
        are_blocks_plenty(pool) && self.vain.is_none_or(is_other)
    }

    /// Whether a round has begun and may continue.
    fn is_under_way(&self, pool: &Pool, now: u32) -> bool {
        self.from > 0 && self.may_gather(pool, now)
    }

    /// Runs one step, which moves up to `blocks_max` blocks. Returns what it did.
    fn step(&mut self, pool: &Pool, shard: u16, now: u32, blocks_max: usize) -> Gathered {
        let gathered = pool.gather_blocks(shard, &mut self.from, blocks_max);
        debug_assert!(gathered.moved > 0 || !gathered.freed, "H1");
        self.moved |= gathered.moved > 0;
        self.vain = None;
        if !gathered.freed && !gathered.is_cut && self.from == 0 {
            let fruitless = !std::mem::take(&mut self.moved);
            let free_blocks = pool.free_blocks();
            self.vain = fruitless.then_some(InVain { second: now, free_blocks });
        }
        gathered
    }
}

impl Reclaimer {
    /// Whether a round of gathering has begun and may continue.
    pub(crate) fn is_gathering(&self, log: &Log, now: u32) -> bool {
        self.allowance.may_gather() && self.gathering.is_under_way(log.pool(), now)
    }

    /// Whether gathering may go on in a later request or tick, because this one has moved as many
    /// bytes as it may.
    pub(crate) fn may_gather_later(&self, log: &Log, now: u32) -> bool {
        self.allowance.is_gathered_out() && self.gathering.may_gather(log.pool(), now)
    }

    /// Gathers blocks if many are free. Returns whether a segment became free; if there is no spare
    /// segment, that segment becomes it. If no segment became free, calls the other shards to
    /// gather their blocks, once per round.
    pub(crate) fn gather(&mut self, log: &mut Log, now: u32) -> bool {
        if !self.gathering.may_gather(log.pool(), now) || !self.allowance.take_gather() {
            return false;
        }
        let is_first = self.gathering.from == 0;
        let gathered = self.gather_step(log, now);
        if gathered.freed {
            log.refill_spare();
            return true;
        }
        if is_first && !gathered.is_cut {
            self.gathering.heard = log.pool().call_to_gather();
        }
        false
    }

    /// Runs one step of gathering this shard's blocks if another shard has called. Returns whether
    /// it did. The shard's share of memory does not matter, because a moved block is not lost.
    pub(crate) fn gather_when_called(&mut self, log: &mut Log, now: u32) -> bool {
        let calls = log.pool().gather_calls();
        if self.gathering.heard == calls {
            return false;
        }
        if !self.gathering.may_gather(log.pool(), now) {
            // Nothing more can be gathered until the next call.
            self.gathering.heard = calls;
            return false;
        }
        self.gather_step(log, now);
        true
    }

    /// Runs one step and counts its work.
    fn gather_step(&mut self, log: &mut Log, now: u32) -> Gathered {
        let step_bytes = self.allowance.gather_step_bytes();
        let gathered = self.gathering.step(log.pool(), log.shard(), now, step_bytes / BLOCK_BYTES);
        let bytes = gathered.moved * BLOCK_BYTES;
        debug_assert!(bytes <= step_bytes.min(GATHERED_BYTES_MAX), "one step is bounded");
        self.allowance.note_gathered(bytes);
        let looked = gathered.looks * log.pool().blocks_per_segment() * LOOKED_BLOCK_BYTES;
        self.note_work(log, bytes + looked);
        gathered
    }
}

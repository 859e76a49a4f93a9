//! Remains: the blocks of a long value that is dead, which are freed a piece at a time.
//!
//! Upstream:   `block`, when the last owner of an extent releases it; the reclaimer of any shard,
//!             which frees another piece as upkeep, or when it needs memory.
//! Downstream: `block`, which gives a block back.
//!
//! The value is freed in pieces, because freeing a gigabyte at once would take milliseconds, under
//! the pool's lock and often while an engine is held.
//!
//! Invariants:
//! - M1  A call frees at most `FREED_BLOCKS_MAX` blocks. The extents in the list of remains are
//!   dead and have no pin, and `remaining_blocks` is the number of blocks that they still have.

use std::sync::atomic::Ordering;

use super::block::{
    DEAD, EXTENT_BLOCKS_MAX, ExtentTable, PINNED_BLOCKS_SHIFT, PINS, high, low, pair,
};
use super::{Free, Pool};
use crate::meta::NONE;

/// The most blocks that one call frees (M1): 8 MiB, which count as the work of copying 128 KiB.
pub(crate) const FREED_BLOCKS_MAX: usize = 512;

impl ExtentTable {
    /// The number of blocks of a dead extent that are not freed yet.
    fn remaining(&self, extent: u32) -> u32 {
        let state = self.state(extent).load(Ordering::Relaxed);
        debug_assert!(state & (DEAD | PINS) == DEAD, "M1: it is dead and has no pin");
        ((state & !DEAD) >> PINNED_BLOCKS_SHIFT) as u32
    }

    /// Notes how many blocks of a dead extent are not freed yet.
    fn set_remaining(&self, extent: u32, blocks: u32) {
        let state = DEAD | u64::from(blocks) << PINNED_BLOCKS_SHIFT;
        self.state(extent).store(state, Ordering::Relaxed);
    }
}

impl Pool {
    /// Frees up to [`FREED_BLOCKS_MAX`] blocks of a dead extent, which has `blocks` (M1). Lists the
    /// rest. Returns the number of blocks that were freed. Cost: the lock, and four cache lines for
    /// each block.
    pub(crate) fn free_extent(&self, id: u32, blocks: u32) -> usize {
        assert!(blocks > 0 && blocks as usize <= EXTENT_BLOCKS_MAX, "B1: an extent has blocks");
        let mut free = self.lock();
        self.extents.set_remaining(id, blocks);
        free.remains.push(&self.extents, id);
        self.remaining_blocks.fetch_add(blocks, Ordering::Relaxed);
        self.free_piece(&mut free)
    }

    /// Frees up to [`FREED_BLOCKS_MAX`] more blocks of a dead extent, if any remain. Returns the
    /// number of blocks that were freed. Cost: a load if none remain; otherwise that of
    /// [`Self::free_extent`].
    pub(crate) fn free_remains(&self) -> usize {
        if self.remaining_blocks() == 0 {
            return 0;
        }
        self.free_piece(&mut self.lock())
    }

    /// Frees blocks of the extent that died last.
    fn free_piece(&self, free: &mut Free) -> usize {
        let Some(extent) = free.remains.first() else { return 0 };
        let blocks = self.extents.remaining(extent);
        let piece = blocks.min(FREED_BLOCKS_MAX as u32);
        let mut block = self.first_block(extent);
        for _ in 0..piece {
            assert!(low(self.extents.owner(block)) == extent, "B1: a chain stays in its extent");
            let next = self.next_block(block);
            self.give_block(free, block);
            block = next;
        }
        assert!((block == NONE) == (piece == blocks), "M1: as many blocks as its item says");
        self.remaining_blocks.fetch_sub(piece, Ordering::Relaxed);
        if block == NONE {
            free.remains.pop(&self.extents);
            free.blocks.extents_unused.push(&self.extents, extent);
        } else {
            let head = self.extents.head(extent);
            head.store(pair(block, high(head)), Ordering::Relaxed);
            self.extents.set_remaining(extent, blocks - piece);
        }
        piece as usize
    }
}

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

use super::block::{EXTENT_BLOCKS_MAX, high, low, pair};
use super::{Free, Pool};
use crate::meta::NONE;

/// The most blocks that one call frees (M1): 8 MiB, which count as the work of copying 128 KiB.
pub(crate) const FREED_BLOCKS_MAX: usize = 512;

/// A dead extent that still has blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remains {
    extent: u32,
    blocks: u32,
}

impl Pool {
    /// Frees up to [`FREED_BLOCKS_MAX`] blocks of a dead extent, which has `blocks` (M1). Lists the
    /// rest. Returns the number of blocks that were freed. Cost: the lock, and four cache lines for
    /// each block.
    pub(crate) fn free_extent(&self, id: u32, blocks: u32) -> usize {
        assert!(blocks > 0 && blocks as usize <= EXTENT_BLOCKS_MAX, "B1: an extent has blocks");
        let mut free = self.lock();
        free.remains.push(Remains { extent: id, blocks });
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
        let Some(Remains { extent, blocks }) = free.remains.pop() else { return 0 };
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
            free.blocks.extents_unused.push(extent);
        } else {
            let head = self.extents.head(extent);
            head.store(pair(block, high(head)), Ordering::Relaxed);
            free.remains.push(Remains { extent, blocks: blocks - piece });
        }
        piece as usize
    }
}

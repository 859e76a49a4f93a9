//! A value held in place, so that it can be sent slowly or from another thread.
//!
//! Upstream:   `Segments::pin` makes one; `net` reads it piece by piece as the socket drains.
//! Downstream: `meta` and `block`, which count pins.
//!
//! Invariants:
//! - P1  While a `Pinned` lives, the segment that holds the value's inline part is not reused, and
//!   the extent that holds its blocks is neither freed nor moved.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use super::{ExtentId, Pool};
use crate::BLOCK_BYTES;
use crate::item::Item;

/// A value that stays where it is until this is dropped, whatever becomes of its item.
pub struct Pinned {
    pool: Arc<Pool>,
    segment: u32,
    extent: Option<ExtentId>,
    inline_offset: usize,
    inline_bytes: usize,
    /// The block last read and its place in the chain, so that reading on is no new walk.
    reading: Cell<(usize, u32)>,
}

impl Pinned {
    pub(crate) fn new(pool: &Arc<Pool>, item: &Item<'_>) -> Self {
        let segment = pool.segment_of(item.at());
        let extent = item.extent();
        pool.metas.pin(segment);
        if let Some(extent) = extent {
            pool.pin_extent(extent);
        }
        let first = extent.map_or(0, |extent| pool.first_block(extent));
        Self {
            pool: Arc::clone(pool),
            segment,
            extent,
            inline_offset: item.inline_offset(),
            inline_bytes: item.inline().len(),
            reading: Cell::new((0, first)),
        }
    }

    fn blocks(&self) -> usize {
        self.extent.map_or(0, |extent| extent.blocks as usize)
    }

    /// Bytes of the whole value.
    pub fn total_bytes(&self) -> usize {
        self.blocks() * BLOCK_BYTES + self.inline_bytes
    }

    /// The value's bytes from `offset` to the end of the piece they lie in; empty behind the end.
    ///
    /// Cost: going forward, one link a block; going back, a walk from the first block.
    pub fn piece_at(&self, offset: usize) -> &[u8] {
        let block_index = offset / BLOCK_BYTES;
        if block_index < self.blocks() {
            let piece = self.pool.block_bytes(self.block(block_index), BLOCK_BYTES);
            return &piece[offset % BLOCK_BYTES..];
        }
        let inline = self.pool.arena.bytes(self.inline_offset, self.inline_bytes);
        inline.get(offset - self.blocks() * BLOCK_BYTES..).unwrap_or(&[])
    }

    /// Copies the value's bytes from `offset` on into `target`; how many, less than asked at the
    /// end.
    pub fn read_at(&self, offset: usize, target: &mut [u8]) -> usize {
        let mut copied = 0;
        while copied < target.len() {
            let piece = self.piece_at(offset + copied);
            if piece.is_empty() {
                break;
            }
            let count = piece.len().min(target.len() - copied);
            target[copied..copied + count].copy_from_slice(&piece[..count]);
            copied += count;
        }
        copied
    }

    fn block(&self, index: usize) -> u32 {
        let (mut at, mut block) = self.reading.get();
        if index < at {
            let Some(extent) = self.extent else { unreachable!("a block was asked for") };
            (at, block) = (0, self.pool.first_block(extent));
        }
        for _ in at..index {
            block = self.pool.next_block(block);
        }
        self.reading.set((index, block));
        block
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(extent) = self.extent {
            self.pool.unpin_extent(extent);
        }
        self.pool.metas.unpin(self.segment);
    }
}

impl fmt::Debug for Pinned {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Pinned")
            .field("total_bytes", &self.total_bytes())
            .finish_non_exhaustive()
    }
}

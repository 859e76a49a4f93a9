//! A large value on its way in: it takes blocks only as its bytes arrive.
//!
//! Upstream:   `shard` opens one when a value is long, and feeds it what the connection receives.
//! Downstream: `block`; `segments` takes a finished one over as an item's value.
//!
//! Invariants:
//! - U1  `written` never exceeds `value_bytes`.
//! - U2  Block `i` holds bytes from `i * BLOCK_BYTES`; whole blocks are chained as an extent, the
//!   block of the rest is not and dies with the upload.
//! - U3  Dropped before it became an item, an upload gives every block back.

use std::fmt;
use std::sync::Arc;

use super::{BlockQueue, ExtentId, NoMemory, Pool};
use crate::BLOCK_BYTES;

/// Blocks taken from the pool under one lock, at most.
const TAKE_BLOCKS_MAX: usize = 64;

/// A value that arrives in pieces. It may be filled on one thread and stored by another's shard.
pub struct Upload {
    pool: Arc<Pool>,
    value_bytes: usize,
    written: usize,
    extent: Option<ExtentId>,
    /// The last block of the extent's chain.
    last: u32,
    /// The block of the value's rest, once there is any of it.
    rest: Option<u32>,
    taken: BlockQueue,
}

impl Pool {
    /// Begins a value of `value_bytes`; nothing is taken yet.
    ///
    /// Errors: when the value is larger than the whole budget.
    pub fn begin_upload(self: &Arc<Self>, value_bytes: usize) -> Result<Upload, NoMemory> {
        if value_bytes as u64 > self.budget.limit_bytes() || value_bytes / BLOCK_BYTES >= 1 << 31 {
            return Err(NoMemory);
        }
        Ok(Upload {
            pool: Arc::clone(self),
            value_bytes,
            written: 0,
            extent: None,
            last: 0,
            rest: None,
            taken: BlockQueue::EMPTY,
        })
    }
}

impl Upload {
    /// Bytes of the whole value, as announced.
    pub const fn total_bytes(&self) -> usize {
        self.value_bytes
    }

    /// Adds the next bytes; all of them or, when memory is short, none.
    ///
    /// Cost: a copy, no allocation, and the pool's lock once per `TAKE_BLOCKS_MAX` blocks begun.
    /// Errors: no memory: make room (`Segments::make_upload_room`) and write the same bytes again,
    /// or drop the upload.
    /// Panics: when more bytes come than were announced, which is a bug of the caller's framing.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), NoMemory> {
        assert!(bytes.len() <= self.value_bytes - self.written, "U1: more than was announced");
        let blocks_begun = self.written.div_ceil(BLOCK_BYTES);
        let blocks_wanted = (self.written + bytes.len()).div_ceil(BLOCK_BYTES);
        debug_assert!(self.taken.is_empty());
        let mut missing = blocks_wanted - blocks_begun;
        while missing > 0 {
            let count = missing.min(TAKE_BLOCKS_MAX);
            self.pool.take_blocks(count, &mut self.taken)?;
            missing -= count;
        }
        let mut left = bytes;
        while !left.is_empty() {
            let start = self.written % BLOCK_BYTES;
            let block = if start == 0 { self.begin_block() } else { self.block_under_way() };
            let (piece, later) = left.split_at(left.len().min(BLOCK_BYTES - start));
            self.pool.write_block(block, start, piece);
            self.written += piece.len();
            left = later;
        }
        debug_assert!(self.taken.is_empty(), "every block taken is used");
        Ok(())
    }

    /// Bytes still to come.
    pub const fn missing_bytes(&self) -> usize {
        self.value_bytes - self.written
    }

    /// What follows the whole blocks.
    pub(crate) fn rest_bytes(&self) -> &[u8] {
        match self.rest {
            Some(block) => self.pool.block_bytes(block, self.value_bytes % BLOCK_BYTES),
            None => &[],
        }
    }

    pub(crate) const fn extent(&self) -> Option<ExtentId> {
        self.extent
    }

    /// Leaves the extent to an item that now names it; the rest's block still dies with the upload.
    pub(crate) fn disown_extent(&mut self) {
        self.extent = None;
    }

    /// The whole value so far, in pieces.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        assert!(self.missing_bytes() == 0, "U1: only a whole value is read");
        let blocks = self.extent.map_or(0, |extent| extent.blocks);
        let first = self.extent.map_or(0, |extent| self.pool.first_block(extent));
        std::iter::successors(Some(first), |&block| Some(self.pool.next_block(block)))
            .take(blocks as usize)
            .map(|block| self.pool.block_bytes(block, BLOCK_BYTES))
            .chain(std::iter::once(self.rest_bytes()))
    }

    fn begin_block(&mut self) -> u32 {
        let taken = self.pool.next_taken(&mut self.taken);
        let Some(block) = taken else { unreachable!("one was taken for each begun") };
        if self.written / BLOCK_BYTES == self.value_bytes / BLOCK_BYTES {
            self.rest = Some(block);
            return block;
        }
        match &mut self.extent {
            None => {
                let id = self.pool.begin_extent(block);
                self.extent = Some(ExtentId { id, blocks: 1 });
            }
            Some(extent) => {
                self.pool.chain_block(extent.id, self.last, block);
                extent.blocks += 1;
            }
        }
        self.last = block;
        block
    }

    fn block_under_way(&self) -> u32 {
        self.rest.unwrap_or(self.last)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(extent) = self.extent {
            self.pool.drop_extent(extent);
        }
        if let Some(block) = self.rest {
            self.pool.give_one_block(block);
        }
    }
}

impl fmt::Debug for Upload {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Upload")
            .field("value_bytes", &self.value_bytes)
            .field("written", &self.written)
            .finish_non_exhaustive()
    }
}

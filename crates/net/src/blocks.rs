//! Send blocks that are not in use, kept for the next reply.
//!
//! Upstream:   `io` gives a block back with `Sent`.
//! Downstream: an outbox takes a block when it begins to format a reply.
//!
//! Invariants:
//! - I1  A pooled block is empty.
//! - I2  At most `KEPT_BLOCKS_MAX` blocks are kept. Further blocks go back to the allocator.

use kachel_io::SendBlock;

/// Blocks made at the start, so that the first requests allocate nothing.
const FIRST_BLOCKS: usize = 16;
/// Blocks kept between requests: 1 MiB a shard.
const KEPT_BLOCKS_MAX: usize = 64;

/// A shard's spare send blocks.
#[derive(Debug)]
pub struct BlockPool {
    spare: Vec<SendBlock>,
}

impl BlockPool {
    /// A pool with its first blocks made.
    pub fn new() -> Self {
        let mut spare = Vec::with_capacity(KEPT_BLOCKS_MAX);
        spare.resize_with(FIRST_BLOCKS, SendBlock::new);
        Self { spare }
    }

    /// An empty block. Cost: a pop, or an allocation of 16 KiB when more are in flight than ever
    /// before.
    pub fn take(&mut self) -> SendBlock {
        let block = self.spare.pop().unwrap_or_default();
        debug_assert!(block.bytes().is_empty(), "I1");
        block
    }

    /// Takes a block back and empties it (I1).
    pub fn put_back(&mut self, mut block: SendBlock) {
        if self.spare.len() < KEPT_BLOCKS_MAX {
            block.clear();
            self.spare.push(block);
        }
    }
}

impl Default for BlockPool {
    fn default() -> Self {
        Self::new()
    }
}

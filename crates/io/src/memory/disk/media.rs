//! The content of a disk in memory that stays without power: blocks of 4 KiB, each with its last
//! durable content.
//!
//! Upstream:   files take blocks, and write sectors when they become durable.
//! Downstream: nothing; a crash clones the blocks.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  A block is free, or belongs to one file.
//! - I2  A freed block keeps its content and is the first to be taken again. So after a crash, the
//!   lost content of one file may be visible in another file.

use std::rc::Rc;

/// The unit that becomes durable, or not, on its own.
pub const SECTOR_BYTES: usize = 512;
/// The unit in which files take space.
pub const BLOCK_BYTES: usize = 4096;
pub(super) const BLOCK_SECTORS: usize = BLOCK_BYTES / SECTOR_BYTES;

pub(super) type Sector = [u8; SECTOR_BYTES];

/// The number of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockId(u32);

#[derive(Clone, Debug)]
pub(super) struct Media {
    /// Shared with the disks of other crashes until one of them writes.
    blocks: Vec<Rc<[u8; BLOCK_BYTES]>>,
    free: Vec<BlockId>,
    blocks_max: usize,
}

impl Media {
    pub(super) fn new(blocks_max: usize) -> Self {
        Self { blocks: Vec::new(), free: Vec::new(), blocks_max }
    }

    /// Changes the size. A smaller size takes nothing away.
    pub(super) fn resize(&mut self, blocks_max: usize) {
        self.blocks_max = blocks_max;
    }

    /// The number of blocks that files have.
    pub(super) fn used_blocks(&self) -> usize {
        self.blocks.len() - self.free.len()
    }

    /// Takes a block, with the content that it had last (I2). `None` if the disk is full.
    pub(super) fn take(&mut self) -> Option<BlockId> {
        if self.used_blocks() >= self.blocks_max {
            return None;
        }
        Some(self.free.pop().unwrap_or_else(|| {
            let id = BlockId(u32::try_from(self.blocks.len()).expect("a small disk"));
            self.blocks.push(Rc::new([0; BLOCK_BYTES]));
            id
        }))
    }

    pub(super) fn give_back(&mut self, id: BlockId) {
        debug_assert!(!self.free.contains(&id), "I1");
        self.free.push(id);
    }

    pub(super) fn sector(&self, id: BlockId, index: usize) -> &Sector {
        let bytes = &self.blocks[id.0 as usize][index * SECTOR_BYTES..][..SECTOR_BYTES];
        bytes.try_into().expect("a sector is so long")
    }

    pub(super) fn sector_mut(&mut self, id: BlockId, index: usize) -> &mut Sector {
        let block = Rc::make_mut(&mut self.blocks[id.0 as usize]);
        let bytes = &mut block[index * SECTOR_BYTES..][..SECTOR_BYTES];
        bytes.try_into().expect("a sector is so long")
    }
}

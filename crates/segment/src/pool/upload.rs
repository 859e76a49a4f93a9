//! An upload: a large value that is being received. It takes blocks as its bytes arrive, and at
//! most as many ahead.
//!
//! Upstream:   `shard` opens an upload, through `cache`, when a value is long. It writes the
//!             received bytes to the upload, or lends the upload's memory to `io` (a landing).
//! Downstream: `block`; `segments` takes a finished upload over as an item's value.
//!
//! ```text
//! value:   | written | landing .. |    not begun   |
//! blocks:  | begun, chained ..         |
//! ```
//!
//! Invariants:
//! - U1  `written` never exceeds `value_bytes`.
//! - U2  Block `i` holds the bytes from `i * BLOCK_BYTES` on. Whole blocks are chained as an
//!   extent. The block of the rest is not part of the chain, and is freed with the upload.
//! - U3  An upload that is dropped before it became an item gives every block back. The blocks of a
//!   landing that is out go back when the landing has come back or is released.
//! - U4  While a landing is out, the extent is pinned, and the rest's block, if it has begun,
//!   belongs to the landing. The upload is not written, and none of its blocks begins.

use std::fmt;
use std::sync::Arc;

use kachel_stdx::{LANDING_PIECES_MAX, Landing, Lender, Place};

use super::block::EXTENT_BLOCKS_MAX;
use super::{BlockQueue, ExtentId, Linked, NoMemory, Pool};
use crate::limits::BLOCK_BYTES;
use crate::meta::NONE;

/// Blocks taken from the pool under one lock, at most.
const TAKE_BLOCKS_MAX: usize = 64;

/// Stands for the extent in the name of a landing whose upload has no whole block.
const NO_EXTENT: u64 = u64::MAX;

/// A value that arrives in pieces. One thread may fill it, and the shard of another may store it.
pub struct Upload {
    pool: Arc<Pool>,
    value_bytes: usize,
    written: usize,
    /// The number of blocks that have begun, the rest's block included. Some may have no bytes yet.
    begun: usize,
    extent: Option<ExtentId>,
    /// The last block of the extent's chain.
    last: u32,
    /// The block of the byte that was written last.
    current: u32,
    /// The block of the value's rest, once it has begun.
    rest: Option<u32>,
    taken: BlockQueue,
    /// Whether a landing is out (U4).
    lent: bool,
    /// The place of the core that fills the upload. This core reads no item while it takes blocks.
    own: Option<Place>,
}

impl Pool {
    /// Begins an upload of `value_bytes`. It takes no block yet.
    ///
    /// Errors: when the value is larger than the whole budget.
    pub fn begin_upload(self: &Arc<Self>, value_bytes: usize) -> Result<Upload, NoMemory> {
        if value_bytes as u64 > self.budget.limit_bytes()
            || value_bytes / BLOCK_BYTES >= EXTENT_BLOCKS_MAX
        {
            return Err(NoMemory);
        }
        Ok(Upload {
            pool: Arc::clone(self),
            value_bytes,
            written: 0,
            begun: 0,
            extent: None,
            last: 0,
            current: 0,
            rest: None,
            taken: BlockQueue::EMPTY,
            lent: false,
            own: None,
        })
    }

    /// An empty landing for uploads of this pool, to be used for one after the other. Cost: one
    /// allocation.
    pub fn spare_landing(self: &Arc<Self>) -> Landing {
        Landing::new(Arc::clone(self) as Arc<dyn Lender>)
    }
}

impl Lender for Pool {
    /// Unpins or frees the blocks of a landing that an upload had lent and that is gone (U4).
    fn release(&self, [extent, rest]: [u64; 2]) {
        if extent != NO_EXTENT {
            self.unpin_extent(extent as u32);
        }
        if rest != u64::from(NONE) {
            self.give_one_block(rest as u32);
        }
    }
}

impl Upload {
    /// Returns the upload as one that is filled on the core with this place among the pool's
    /// readers.
    #[must_use]
    pub fn on_core(mut self, own: Option<Place>) -> Self {
        self.own = own;
        self
    }

    /// Bytes of the whole value, as announced.
    pub const fn total_bytes(&self) -> usize {
        self.value_bytes
    }

    /// Adds the next bytes; all of them or, when memory is short, none.
    ///
    /// Cost: a copy, no allocation, and the pool's lock once per `TAKE_BLOCKS_MAX` blocks begun.
    /// Errors: there is no memory. The caller makes room (`Segments::make_upload_room`) and writes
    /// the same bytes again, or drops the upload.
    /// Panics: when more bytes come than were announced, which is a bug of the caller's framing, or
    /// while a landing is out (U4).
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), NoMemory> {
        assert!(bytes.len() <= self.missing_bytes(), "U1: more than was announced");
        assert!(!self.lent, "U4: bytes beside a landing");
        self.begin_blocks(self.written + bytes.len())?;
        let mut left = bytes;
        while !left.is_empty() {
            let (block, start) = self.next_place();
            let (piece, later) = left.split_at(left.len().min(BLOCK_BYTES - start));
            self.pool.write_block(block, start, piece);
            self.written += piece.len();
            left = later;
        }
        Ok(())
    }

    /// Bytes that a landing would take now: as many as have arrived so far, up to the end of a
    /// block, but no more than are missing, and in at most `blocks_max` blocks.
    ///
    /// Panics: when a landing cannot have that many pieces.
    pub fn landing_bytes(&self, blocks_max: usize) -> usize {
        assert!(blocks_max <= LANDING_PIECES_MAX);
        let block_start = self.written - self.written % BLOCK_BYTES;
        let end = (2 * self.written)
            .next_multiple_of(BLOCK_BYTES)
            .min(block_start + blocks_max * BLOCK_BYTES)
            .min(self.value_bytes);
        end - self.written
    }

    /// Lends the memory of the next [`Self::landing_bytes`] bytes to `landing`, so that they are
    /// received there. The landing has a spill if it reaches the end of the value. The loan ends
    /// with [`Self::landed`], or when both the landing and the upload are dropped.
    ///
    /// Cost: as `write`, without the copy.
    /// Errors: there is no memory, and `landing` stays empty.
    /// Panics: when there are no [`Self::landing_bytes`], or while a landing is out (U4).
    pub fn landing(&mut self, landing: &mut Landing, blocks_max: usize) -> Result<(), NoMemory> {
        assert!(!self.lent, "U4: one landing at a time");
        let end = self.written + self.landing_bytes(blocks_max);
        assert!(end > self.written, "a landing for no bytes");
        self.begin_blocks(end)?;
        self.lent = true;
        if let Some(extent) = self.extent {
            self.pool.pin_extent(extent);
        }
        let (mut at, mut block) = (self.written, self.current);
        let rest = if end > self.whole_blocks() * BLOCK_BYTES { self.rest } else { None };
        landing.begin(self.name(rest), end == self.value_bytes);
        while at < end {
            let start = at % BLOCK_BYTES;
            if start == 0 {
                block = self.begun_block(at / BLOCK_BYTES, block);
            }
            let count = (end - at).min(BLOCK_BYTES - start);
            landing.add(self.pool.block_piece(block, start, count));
            at += count;
        }
        if rest.is_some() {
            self.rest = None;
        }
        Ok(())
    }

    /// Takes back the landing, which has received `bytes` bytes, and counts those of the value as
    /// written. The bytes behind the value are still in the spill. The landing is empty afterwards.
    /// Returns how many bytes of the value have arrived.
    ///
    /// Panics: when this upload did not lend the landing, or when it has received more bytes than
    /// it takes.
    pub fn landed(&mut self, landing: &mut Landing, bytes: usize) -> usize {
        assert!(self.lent && bytes <= landing.room(), "U4: it was lent for so many");
        let come = bytes.min(landing.piece_bytes());
        let name = landing.take_back();
        let rest = Some(name[1] as u32).filter(|&rest| rest != NONE);
        assert!(name == self.name(rest), "U4: every upload gets its own landing back");
        self.lent = false;
        self.rest = rest.or(self.rest);
        if let Some(extent) = self.extent {
            self.pool.unpin_extent(extent.id);
        }
        let mut left = come;
        while left > 0 {
            let (block, start) = self.next_place();
            let count = left.min(BLOCK_BYTES - start);
            self.pool.note_landed(block, start, count);
            self.written += count;
            left -= count;
        }
        come
    }

    /// Bytes still to come.
    pub const fn missing_bytes(&self) -> usize {
        self.value_bytes - self.written
    }

    /// The bytes after the whole blocks.
    pub(crate) fn rest_bytes(&self) -> &[u8] {
        match self.rest {
            Some(block) => self.pool.block_bytes(block, 0..self.value_bytes % BLOCK_BYTES),
            None => &[],
        }
    }

    pub(crate) const fn extent(&self) -> Option<ExtentId> {
        self.extent
    }

    /// The last block of the extent.
    pub(crate) const fn last_block(&self) -> u32 {
        debug_assert!(self.extent.is_some(), "an upload without whole blocks has no last one");
        self.last
    }

    /// The blocks that can be linked to a value, if there are any: those without the rest.
    pub(crate) fn linked(&self) -> Option<Linked> {
        self.extent.map(|extent| Linked { extent, last: self.last })
    }

    /// Leaves the extent to the item that has it now. The rest's block is still freed with the
    /// upload.
    pub(crate) fn disown_extent(&mut self) {
        self.extent = None;
    }

    /// The whole value so far, in pieces.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        assert!(self.missing_bytes() == 0, "U1: only a whole value is read");
        let blocks = self.extent.map_or(0, |extent| extent.blocks);
        let first = self.extent.map_or(0, |extent| self.pool.first_block(extent.id));
        std::iter::successors(Some(first), |&block| Some(self.pool.next_block(block)))
            .take(blocks as usize)
            .map(|block| self.pool.block_bytes(block, 0..BLOCK_BYTES))
            .chain(std::iter::once(self.rest_bytes()))
    }

    /// Begins the blocks up to byte `end`; all of them or none.
    fn begin_blocks(&mut self, end: usize) -> Result<(), NoMemory> {
        debug_assert!(self.taken.is_empty());
        let mut missing = end.div_ceil(BLOCK_BYTES).saturating_sub(self.begun);
        while missing > 0 {
            let count = missing.min(TAKE_BLOCKS_MAX);
            self.pool.take_blocks(count, &mut self.taken, self.own)?;
            missing -= count;
        }
        while let Some(block) = self.pool.next_taken(&mut self.taken) {
            self.begin_block(block);
        }
        Ok(())
    }

    fn begin_block(&mut self, block: u32) {
        let index = self.begun;
        debug_assert!(index <= self.whole_blocks() && self.rest.is_none(), "U2");
        self.begun += 1;
        if index == self.whole_blocks() {
            self.rest = Some(block);
            return;
        }
        match &mut self.extent {
            None => {
                let id = self.pool.begin_extent(block);
                self.extent = Some(ExtentId { id, blocks: 1, headroom: 0 });
            }
            Some(extent) => {
                self.pool.chain_block(extent.id, self.last, block);
                extent.blocks += 1;
            }
        }
        self.last = block;
    }

    /// The block that the next byte goes to, and where in it.
    fn next_place(&mut self) -> (u32, usize) {
        debug_assert!(self.written < self.value_bytes, "U1: a byte is still to come");
        let start = self.written % BLOCK_BYTES;
        if start == 0 {
            self.current = self.begun_block(self.written / BLOCK_BYTES, self.current);
        }
        (self.current, start)
    }

    /// The block with this index, which has begun; `before` is the one before it.
    fn begun_block(&self, index: usize, before: u32) -> u32 {
        debug_assert!(index < self.begun);
        match self.extent {
            _ if index == self.whole_blocks() => self.rest.expect("U2: it has begun"),
            Some(extent) if index == 0 => self.pool.first_block(extent.id),
            _ => self.pool.next_block(before),
        }
    }

    /// Blocks of the value without its rest.
    const fn whole_blocks(&self) -> usize {
        self.value_bytes / BLOCK_BYTES
    }

    /// The name by which the pool knows the landing that is out now. `rest` is the rest's block, if
    /// the landing has it (U4).
    fn name(&self, rest: Option<u32>) -> [u64; 2] {
        let extent = self.extent.map_or(NO_EXTENT, |extent| extent.id.into());
        [extent, rest.unwrap_or(NONE).into()]
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

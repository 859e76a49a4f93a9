//! A value held in place, so that it can be sent slowly or from another thread.
//!
//! Upstream:   `Segments::pin` makes one; `net` hands it to the kernel piece by piece as the socket
//!             drains, each piece with a pin of its own.
//! Downstream: `meta` and `block`, which count pins; the pool, which sums what is pinned.
//!
//! ```text
//! a piece's pin:  kind:1 (high bit: of an extent) | 0:31 | extent, segment:32
//! ```
//!
//! Invariants:
//! - P1  While a `Pinned` lives, the segment that holds the value's inline part is not reused, and
//!   the extent that holds its blocks is neither freed nor moved. While a piece of it is held the
//!   same holds of what that piece lies in. Blocks may be linked to the extent, and bytes written
//!   into its headroom: they are no part of this value (`block`, B4).
//! - P2  `pinned_bytes` is the sum of the pinned segments and extents of items, except for those
//!   that are being pinned or unpinned at this moment. It is never below zero. The thread that
//!   makes the first pin of a segment or extent adds its bytes; the thread that removes the last
//!   pin subtracts them. A thread that links blocks to a pinned extent adds theirs. Pins rise from
//!   0 on one thread at a time, which passes them to other threads only after that, so the bytes
//!   are added before they are subtracted.

use std::cell::Cell;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use kachel_stdx::{Held, Keeper};

use super::{ExtentId, Pool};
use crate::limits::BLOCK_BYTES;
use crate::meta::NONE;

/// Set in a piece's pin if it is a pin of an extent.
const OF_EXTENT: u64 = 1 << 63;

/// A pinned value. It stays in place until this is dropped, even if its item is removed.
pub struct Pinned {
    pool: Arc<Pool>,
    segment: u32,
    extent: Option<ExtentId>,
    inline_offset: usize,
    inline_bytes: usize,
    /// The first block of the value. Others may be linked in front of it.
    first: u32,
    /// The place in the chain of the block that was read last, and the block. So a read of the next
    /// bytes does not walk the chain again.
    reading: Cell<(usize, u32)>,
}

impl Pool {
    /// Bytes of the segments and extents that are pinned for readers (P2). They cannot be used
    /// again until the clients have read the values. Memory that is pinned because a value is being
    /// received into it does not count.
    pub fn pinned_bytes(&self) -> u64 {
        self.pinned_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn count_pinned(&self, bytes: usize) {
        self.pinned_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn let_extent_go(&self, id: u32) {
        if let Some(blocks) = self.unpin_extent(id) {
            self.count_unpinned(blocks as usize * BLOCK_BYTES);
        }
    }

    fn unpin_segment(&self, segment: u32) {
        if self.metas.unpin(segment) {
            self.count_unpinned(self.segment_bytes());
        }
    }

    pub(super) fn count_unpinned(&self, bytes: usize) {
        let before = self.pinned_bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
        assert!(before >= bytes as u64, "P2: what is unpinned was pinned");
    }
}

impl Pinned {
    /// Pins the segment with the value's inline part, which lies at `inline` of the arena, and the
    /// blocks of `extent`, if there are any.
    pub(crate) fn new(
        pool: &Arc<Pool>,
        segment: u32,
        extent: Option<ExtentId>,
        inline: Range<usize>,
    ) -> Self {
        debug_assert!(inline.end <= pool.segment_start(segment + 1), "P1: in this segment");
        if pool.metas.pin(segment) {
            pool.count_pinned(pool.segment_bytes());
        }
        if let Some(extent) = extent
            && pool.pin_extent(extent)
        {
            pool.count_pinned(extent.memory_bytes());
        }
        let first = extent.map_or(NONE, |extent| pool.first_block(extent.id));
        Self {
            pool: Arc::clone(pool),
            segment,
            extent,
            inline_offset: inline.start,
            inline_bytes: inline.len(),
            first,
            reading: Cell::new((0, first)),
        }
    }

    /// Bytes of the value in blocks.
    fn block_bytes(&self) -> usize {
        self.extent.map_or(0, ExtentId::value_bytes)
    }

    /// Bytes of the whole value.
    pub fn total_bytes(&self) -> usize {
        self.block_bytes() + self.inline_bytes
    }

    /// The value's bytes from `offset` to the end of the piece they lie in; empty behind the end.
    ///
    /// Cost: going forward, one link a block; going back, a walk from the first block.
    pub fn piece_at(&self, offset: usize) -> &[u8] {
        let (start, length) = self.place_of(offset);
        self.pool.arena.bytes(start, length)
    }

    /// The same bytes, held by a pin of their own, so that this may be dropped before them.
    ///
    /// Cost: as [`Self::piece_at`], and two shared counts raised; no allocation.
    /// Panics: behind the value's end.
    pub fn hold_at(&self, offset: usize) -> Held {
        let place = self.place_of(offset);
        assert!(place.1 > 0, "behind the value's end");
        let pin = match self.extent {
            Some(extent) if offset < extent.value_bytes() => {
                self.pool.pin_again(extent.id);
                OF_EXTENT | u64::from(extent.id)
            }
            _ => {
                let is_first = self.pool.metas.pin(self.segment);
                debug_assert!(!is_first, "P1");
                self.segment.into()
            }
        };
        let keeper: Arc<dyn Keeper> = Arc::<Pool>::clone(&self.pool);
        // SAFETY:
        // - they lie in what was pinned just now: a block of the extent, or the inline part, which
        //   the segment holds.
        // - `let_go` undoes this one pin.
        unsafe { Held::new(keeper, pin, place) }
    }

    /// Where in the arena the bytes from `offset` to the end of their piece lie, and how many they
    /// are.
    fn place_of(&self, offset: usize) -> (usize, usize) {
        debug_assert!(self.pool.metas.is_pinned(self.segment), "P1");
        if let Some(extent) = self.extent
            && offset < extent.value_bytes()
        {
            let at = extent.headroom as usize + offset;
            let start = self.block(at / BLOCK_BYTES) as usize * BLOCK_BYTES;
            return (start + at % BLOCK_BYTES, BLOCK_BYTES - at % BLOCK_BYTES);
        }
        let from = (offset - self.block_bytes()).min(self.inline_bytes);
        (self.inline_offset + from, self.inline_bytes - from)
    }

    fn block(&self, index: usize) -> u32 {
        let (mut at, mut block) = self.reading.get();
        if index < at {
            (at, block) = (0, self.first);
        }
        for _ in at..index {
            block = self.pool.next_block(block);
        }
        self.reading.set((index, block));
        block
    }
}

// SAFETY:
// - the arena stays where it is as long as the pool, which every `Held` keeps alive.
// - what is pinned is not written: a pinned segment is not reused, the blocks of a pinned extent
//   are neither freed nor moved (P1; `meta`, I2; `block`, B2 and B4), and items are immutable
//   (`arena`, I2, I3: a value covers no word that changes). Headroom may be written, but no piece
//   covers it: `place_of` begins behind it.
unsafe impl Keeper for Pool {
    fn bytes(&self, offset: usize, length: usize) -> &[u8] {
        self.arena.bytes(offset, length)
    }

    fn let_go(&self, pin: u64) {
        let id = pin as u32;
        if pin & OF_EXTENT == 0 {
            return self.unpin_segment(id);
        }
        self.let_extent_go(id);
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(extent) = self.extent {
            self.pool.let_extent_go(extent.id);
        }
        self.pool.unpin_segment(self.segment);
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

//! Item memory. All reads and writes of it go through this module, as words, slices and copies.
//!
//! Upstream:   `item` reads through it, `segments` and `pool` write through it.
//! Downstream: `kachel_host::Region`.
//!
//! Invariants, on which every unsafe block here rests:
//! - I1  The region is longer than all segments together by `SLACK_BYTES`, which is more than any
//!   item takes. So a range that begins inside a segment, and whose length comes from an item's
//!   fields, lies inside the region.
//! - I2  Bytes are written only while nothing refers to them: above a segment's write position, or
//!   in a block that belongs to one unfinished upload or was just taken. They are written by
//!   `write`, or through the pieces of the one landing that the upload has lent. All bytes that can
//!   be read are immutable.
//! - I3  The two words of an item that do change (header, access) are accessed only as atomics, and
//!   no byte slice covers them.
//! - I4  Only the thread that holds the owner of a segment (its shard's lock) writes items into it.
//!   A segment is reused only when nothing in it is pinned and no reader on another core can still
//!   be in it (`pool`, I4). No type ensures this: a slice of `bytes` may be borrowed from an arena
//!   that others reuse meanwhile. So the callers must let go of it by then: a reader at the end of
//!   its round, the holder of the lock before it gives the segment back, all others by a pin.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64};

use kachel_host::{PageKind, Region};
use kachel_stdx::Piece;

use crate::audit::Audit;

/// Bytes behind the last segment that only a corrupt item would reach (I1).
const SLACK_BYTES: usize = 64 << 10;

/// Item memory of the whole process, addressed by byte offset.
#[derive(Debug)]
pub(crate) struct Arena {
    region: Region,
    bytes: usize,
    /// Which bytes may be read and written, in debug builds.
    pub(crate) audit: Audit,
}

impl Arena {
    /// Reserves room for `bytes` of segments of `segment_bytes`.
    pub(crate) fn reserve(bytes: usize, segment_bytes: usize, huge: bool) -> io::Result<Self> {
        let region = Region::reserve(bytes + SLACK_BYTES, huge, "items")?;
        Ok(Self { region, bytes, audit: Audit::over(segment_bytes) })
    }

    /// The pages that back it.
    pub(crate) const fn pages(&self) -> PageKind {
        self.region.pages()
    }

    /// The word at byte offset `offset`, a multiple of 8.
    #[inline]
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset.is_multiple_of(8));
        &self.region.words()[offset / 8]
    }

    /// The words that begin in the byte range `range`, which begins at a multiple of 8.
    #[inline]
    pub(crate) fn words(&self, range: Range<usize>) -> &[AtomicU64] {
        debug_assert!(range.start.is_multiple_of(8));
        &self.region.words()[range.start / 8..range.end.div_ceil(8)]
    }

    /// The half word at byte offset `offset`, a multiple of 4 (an item's access word).
    #[inline]
    pub(crate) fn half_word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset < self.bytes && offset.is_multiple_of(4));
        // SAFETY: the offset lies inside the region (asserted above, I1).
        let half = unsafe { self.region.base().as_ptr().add(offset) };
        // SAFETY:
        // - aligned: the base is page-aligned, the offset a multiple of 4 (asserted above).
        // - valid and initialized for as long as the region: I1 of `Region`; zero is a valid value.
        // - no plain access overlaps while it is shared: I3.
        unsafe { AtomicU32::from_ptr(half.cast()) }
    }

    /// The `length` bytes at `offset`. They do not change while the slice lives (I2), if the caller
    /// keeps the segment or the block from being reused as long (I4). Debug builds check each read
    /// (`audit`, I3).
    #[inline]
    #[track_caller]
    pub(crate) fn bytes(&self, offset: usize, length: usize) -> &[u8] {
        assert!(offset < self.bytes && length <= SLACK_BYTES);
        self.audit.read(offset, length);
        // SAFETY: the offset lies inside the region (asserted above).
        let start = unsafe { self.region.base().as_ptr().add(offset) };
        // SAFETY:
        // - inside the region: `offset < bytes` and `length <= SLACK_BYTES` (asserted above, I1).
        // - initialized: the region reads as zero where nothing was written.
        // - unchanged while borrowed: what can be read is immutable (I2, I3) until its segment or
        //   block is reused, and the caller prevents that: by a pin, by a round that has not ended,
        //   or because it holds the owner (I4). The borrow of `self` alone would not.
        unsafe { std::slice::from_raw_parts(start, length) }
    }

    /// Copies `source` to `offset`. Nothing may refer to the target bytes (I2).
    #[inline]
    #[track_caller]
    pub(crate) fn write(&self, offset: usize, source: &[u8]) {
        assert!(offset + source.len() <= self.bytes);
        self.audit.write(offset, source.len());
        // SAFETY: the offset lies inside the region (asserted above).
        let target = unsafe { self.region.base().as_ptr().add(offset) };
        // SAFETY:
        // - the target is inside the region (asserted above) and nothing refers to it: I2, the
        //   caller.
        // - `source` therefore does not overlap it.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), target, source.len()) };
    }

    /// Returns the `length` bytes at `offset` as a piece of a landing. Nothing else may refer to
    /// these bytes (I2). The caller must not use them or lend them again until the landing has come
    /// back or is released.
    #[track_caller]
    pub(crate) fn piece(&self, offset: usize, length: usize) -> Piece {
        assert!(offset + length <= self.bytes);
        self.audit.write(offset, length);
        // SAFETY: the offset lies inside the region (asserted above).
        let start = unsafe { self.region.base().add(offset) };
        // SAFETY:
        // - inside the region (asserted above), which reads as zero where nothing was written, and
        //   lives as long as the landing: its lender is the pool.
        // - used by nothing else: I2, the caller.
        // - one allocation: the region is one mapping, and `start` comes from its base.
        unsafe { Piece::new(start, length) }
    }

    /// Prefetches the cache line at `offset`. Any offset is harmless.
    #[inline]
    pub(crate) fn prefetch(&self, offset: usize) {
        let line = self.region.base().as_ptr().wrapping_add(offset);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch reads nothing as far as the program can tell and faults nowhere.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _no_prefetch_here = line;
    }

    /// Gives the pages of `length` bytes at `offset` back to the kernel. Returns `false` if the
    /// kernel refuses them.
    pub(crate) fn release(&self, offset: usize, length: usize) -> bool {
        assert!(offset + length <= self.bytes);
        self.region.release(offset..offset + length)
    }
}

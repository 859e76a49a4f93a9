//! The arena of loom models: the first bytes of each segment.
//!
//! Upstream:   `item`, `segments` and `pool`, compiled with `--cfg loom`.
//! Downstream: loom; plain memory behind it.
//!
//! Words are loom's atomics. Bytes are plain memory. Every four bytes have a loom cell that each
//! access touches too, so that a model notices a read beside a concurrent write. The word, the half
//! word and the bytes at one offset are three separate things here. Code that keeps I3 of `arena`
//! cannot notice that.

use std::io;
use std::ops::Range;
use std::ptr::NonNull;

use loom::sync::atomic::{AtomicU32, AtomicU64};

use kachel_host::PageKind;

use crate::audit::Audit;
use crate::limits::SEGMENT_BYTES_MIN;

/// Bytes of each segment that exist: its head and an item or two with short keys and values.
const MODELED_BYTES: usize = 96;
/// Bytes that one cell stands for.
const CELL_BYTES: usize = 4;

/// Item memory of a model, in segments of [`SEGMENT_BYTES_MIN`].
#[derive(Debug)]
pub(crate) struct Arena {
    base: NonNull<u8>,
    words: Box<[AtomicU64]>,
    half_words: Box<[AtomicU32]>,
    cells: Box<[loom::cell::UnsafeCell<()>]>,
    /// Switched off, because loom watches the bytes.
    pub(crate) audit: Audit,
}

// SAFETY: it owns its memory, which any thread may free.
unsafe impl Send for Arena {}
// SAFETY: all access to the memory is preceded by a touch of its cells, by which loom finds races;
// loom runs the threads of a model in turn on one thread of the machine.
unsafe impl Sync for Arena {}

impl Arena {
    pub(crate) fn reserve(bytes: usize, _segment_bytes: usize, _huge: bool) -> io::Result<Self> {
        let modeled = bytes / SEGMENT_BYTES_MIN * MODELED_BYTES;
        Ok(Self {
            base: NonNull::from(Box::leak(vec![0_u8; modeled].into_boxed_slice())).cast(),
            words: (0..modeled / 8).map(|_| AtomicU64::new(0)).collect(),
            half_words: (0..modeled / 4).map(|_| AtomicU32::new(0)).collect(),
            cells: (0..modeled / CELL_BYTES).map(|_| loom::cell::UnsafeCell::new(())).collect(),
            audit: Audit::over(0),
        })
    }

    pub(crate) const fn pages(&self) -> PageKind {
        PageKind::Ordinary
    }

    /// The place of byte `offset` in the memory of the model. Panics: if the `length` bytes from
    /// there on are not part of the model.
    fn place(offset: usize, length: usize) -> usize {
        let inside = offset % SEGMENT_BYTES_MIN;
        assert!(inside + length <= MODELED_BYTES, "a model keeps to the first bytes of a segment");
        offset / SEGMENT_BYTES_MIN * MODELED_BYTES + inside
    }

    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        &self.words[Self::place(offset, 8) / 8]
    }

    pub(crate) fn words(&self, _range: Range<usize>) -> &[AtomicU64] {
        unreachable!("a model's segments are not poisoned")
    }

    pub(crate) fn half_word(&self, offset: usize) -> &AtomicU32 {
        &self.half_words[Self::place(offset, 4) / 4]
    }

    pub(crate) fn bytes(&self, offset: usize, length: usize) -> &[u8] {
        let place = self.touch(offset, length, false);
        // SAFETY: `place` asserted that the bytes exist.
        let start = unsafe { self.base.as_ptr().add(place) };
        // SAFETY:
        // - inside the memory and initialized: as above, `reserve`.
        // - not written meanwhile: loom would have found the race, and its threads take turns.
        unsafe { std::slice::from_raw_parts(start, length) }
    }

    pub(crate) fn write(&self, offset: usize, source: &[u8]) {
        let place = self.touch(offset, source.len(), true);
        // SAFETY: `place` asserted that the bytes exist.
        let target = unsafe { self.base.as_ptr().add(place) };
        // SAFETY:
        // - inside the memory: as above; `source` is valid by its type, and not in the arena.
        // - not read meanwhile: loom would have found the race, and its threads take turns.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), target, source.len()) };
    }

    fn touch(&self, offset: usize, length: usize, writes: bool) -> usize {
        let place = Self::place(offset, length);
        for cell in &self.cells[place / CELL_BYTES..(place + length).div_ceil(CELL_BYTES)] {
            if writes { cell.with_mut(|_| ()) } else { cell.with(|_| ()) }
        }
        place
    }

    pub(crate) fn piece(&self, _offset: usize, _length: usize) -> kachel_stdx::Piece {
        unreachable!("a model has no kernel that writes")
    }

    pub(crate) fn prefetch(&self, _offset: usize) {}

    pub(crate) fn release(&self, _offset: usize, _length: usize) -> bool {
        unreachable!("a model's budget is never overdrawn")
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let bytes = self.cells.len() * CELL_BYTES;
        let slice = std::ptr::slice_from_raw_parts_mut(self.base.as_ptr(), bytes);
        // SAFETY: `reserve` leaked exactly this slice; nothing borrows from `self` any more.
        drop(unsafe { Box::from_raw(slice) });
    }
}

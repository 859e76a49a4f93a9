//! The ring's memory: bytes at monotone positions, taken modulo the capacity.
//!
//! Upstream:   `Producer` writes what is free, `Consumer` reads what is published.
//! Downstream: one allocation, made zeroed so that untouched pages stay unbacked.
//!
//! Invariants:
//! - M1  `base` is valid for `capacity_bytes`, aligned to `UNIT_BYTES`, until drop; its bytes are
//!   initialized.
//! - M2  `capacity_bytes` is a power of two and a multiple of `UNIT_BYTES`.
//!
//! Under loom, every unit has a cell that is touched with the unit, so that a model also finds
//! races on plain memory.

use std::ptr::NonNull;

/// Grain of positions: every header and every payload starts on one.
pub(super) const UNIT_BYTES: u64 = 8;

/// Zeroed memory of a fixed size that two threads use by agreement.
#[derive(Debug)]
pub(super) struct Memory {
    base: NonNull<u64>,
    capacity_bytes: u64,
    #[cfg(loom)]
    cells: Box<[loom::cell::UnsafeCell<()>]>,
}

// SAFETY: a `Memory` owns its allocation, which any thread may free.
unsafe impl Send for Memory {}
// SAFETY: all access is through the unsafe functions below, whose callers exclude races.
unsafe impl Sync for Memory {}

impl Memory {
    /// Allocates `capacity_bytes` zeroes. Panics: when that is no power of two of at least one
    /// unit.
    pub(super) fn new(capacity_bytes: usize) -> Self {
        assert!(capacity_bytes.is_power_of_two(), "M2");
        assert!(capacity_bytes as u64 >= UNIT_BYTES, "M2");
        let words = vec![0_u64; capacity_bytes / UNIT_BYTES as usize].into_boxed_slice();
        let base = NonNull::from(Box::leak(words)).cast();
        Self {
            base,
            capacity_bytes: capacity_bytes as u64,
            #[cfg(loom)]
            cells: (0..capacity_bytes as u64 / UNIT_BYTES)
                .map(|_| loom::cell::UnsafeCell::new(()))
                .collect(),
        }
    }

    /// Bytes of the ring (M2).
    #[inline]
    pub(super) fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// Bytes from `position` to the end of the memory; 1 to `capacity_bytes`.
    #[inline]
    pub(super) fn bytes_to_end(&self, position: u64) -> u64 {
        self.capacity_bytes - self.offset(position)
    }

    #[inline]
    fn offset(&self, position: u64) -> u64 {
        position & (self.capacity_bytes - 1)
    }

    /// A pointer to the `bytes` bytes at `position`, which lie in one piece.
    #[inline]
    fn at(&self, position: u64, bytes: usize) -> *mut u8 {
        assert!(bytes as u64 <= self.bytes_to_end(position), "a piece does not wrap");
        // SAFETY: the offset is below the capacity, so inside the allocation (M1, M2).
        unsafe { self.base.as_ptr().cast::<u8>().add(self.offset(position) as usize) }
    }

    /// Writes `source` at `position`. Panics: when it would run over the end.
    ///
    /// # Safety
    /// No other thread reads or writes these bytes meanwhile.
    #[inline]
    pub(super) unsafe fn write(&self, position: u64, source: &[u8]) {
        #[cfg(loom)]
        self.touch(position, source.len(), true);
        let target = self.at(position, source.len());
        // SAFETY:
        // - `target` is valid for the length: `at` asserted it (M1); `source` is by its type.
        // - apart: a shared slice into this memory over these bytes would be a reader, whom the
        //   caller excludes.
        unsafe { target.copy_from_nonoverlapping(source.as_ptr(), source.len()) }
    }

    /// The `bytes` bytes at `position`. Panics: when they run over the end.
    ///
    /// # Safety
    /// No thread writes these bytes while the slice lives.
    #[inline]
    pub(super) unsafe fn read(&self, position: u64, bytes: usize) -> &[u8] {
        #[cfg(loom)]
        self.touch(position, bytes, false);
        let source = self.at(position, bytes);
        // SAFETY: valid and initialized for the length (`at`, M1); not written meanwhile: the
        // caller.
        unsafe { std::slice::from_raw_parts(source, bytes) }
    }

    #[cfg(loom)]
    fn touch(&self, position: u64, bytes: usize, writes: bool) {
        let first = (self.offset(position) / UNIT_BYTES) as usize;
        let end = (self.offset(position) + bytes as u64).div_ceil(UNIT_BYTES) as usize;
        for cell in &self.cells[first..end] {
            if writes { cell.with_mut(|_| ()) } else { cell.with(|_| ()) }
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let words = (self.capacity_bytes / UNIT_BYTES) as usize;
        let slice = std::ptr::slice_from_raw_parts_mut(self.base.as_ptr(), words);
        // SAFETY: `new` leaked exactly this slice; nothing borrows from `self` any more.
        drop(unsafe { Box::from_raw(slice) });
    }
}

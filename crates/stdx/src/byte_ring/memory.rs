//! The ring's memory: bytes at monotone positions, taken modulo the capacity.
//!
//! Upstream:   `Producer` writes what is free, `Consumer` reads what is published.
//! Downstream: one allocation, made by the first write. The number of pairs grows with the square
//! of the number of threads, and most pairs never use their ring.
//!
//! Invariants:
//! - M1  `base`, once it is set, is valid for `capacity_bytes`, aligned to `UNIT_BYTES`, until
//!   drop; its bytes are initialized.
//! - M2  `capacity_bytes` is a power of two and a multiple of `UNIT_BYTES`.
//!
//! Under loom, every unit has a cell that is touched with the unit, so that a model also finds
//! races on plain memory.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Grain of positions: every header and every payload starts on one.
pub(super) const UNIT_BYTES: u64 = 8;

/// Zeroed memory of a fixed size that two threads use by agreement.
#[derive(Debug)]
pub(super) struct Memory {
    /// The first word. Null until the first write (M1).
    base: AtomicPtr<u64>,
    capacity_bytes: u64,
    #[cfg(loom)]
    cells: Box<[loom::cell::UnsafeCell<()>]>,
}

// SAFETY: a `Memory` owns its allocation, which any thread may free.
unsafe impl Send for Memory {}
// SAFETY: all access is through the unsafe functions below, whose callers exclude races.
unsafe impl Sync for Memory {}

impl Memory {
    /// Memory of `capacity_bytes` zeroes, which is not allocated yet. Panics: when that is no power
    /// of two of at least one unit.
    pub(super) fn new(capacity_bytes: usize) -> Self {
        assert!(capacity_bytes.is_power_of_two(), "M2");
        assert!(capacity_bytes as u64 >= UNIT_BYTES, "M2");
        Self {
            base: AtomicPtr::new(std::ptr::null_mut()),
            capacity_bytes: capacity_bytes as u64,
            #[cfg(loom)]
            cells: (0..capacity_bytes as u64 / UNIT_BYTES)
                .map(|_| loom::cell::UnsafeCell::new(()))
                .collect(),
        }
    }

    /// The first word, for writes. Cost: one load; the first call allocates.
    ///
    /// Only the thread that writes may call this.
    #[inline]
    pub(super) fn base_to_write(&self) -> NonNull<u64> {
        let base = self.base.load(Ordering::Relaxed);
        NonNull::new(base).unwrap_or_else(|| self.allocate())
    }

    /// Allocates the memory (M1). Only one thread writes, so this happens once. The other thread
    /// sees the address as it sees the bytes that are written next.
    #[cold]
    fn allocate(&self) -> NonNull<u64> {
        let words = vec![0_u64; (self.capacity_bytes / UNIT_BYTES) as usize].into_boxed_slice();
        let base: NonNull<u64> = NonNull::from(Box::leak(words)).cast();
        let before = self.base.swap(base.as_ptr(), Ordering::Relaxed);
        assert!(before.is_null(), "M1: one thread writes");
        base
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
    ///
    /// # Safety
    /// `base` is the address of this memory, and not null.
    #[inline]
    unsafe fn at(&self, base: *mut u64, position: u64, bytes: usize) -> *mut u8 {
        assert!(bytes as u64 <= self.bytes_to_end(position), "a piece does not wrap");
        // SAFETY: the offset is below the capacity, so inside the allocation (M1, M2).
        unsafe { base.cast::<u8>().add(self.offset(position) as usize) }
    }

    /// Writes `source` at `position`. Panics: when it would run over the end.
    ///
    /// # Safety
    /// `base` is this memory's `base_to_write`. No other thread reads or writes these bytes
    /// meanwhile.
    #[inline]
    pub(super) unsafe fn write(&self, base: NonNull<u64>, position: u64, source: &[u8]) {
        #[cfg(loom)]
        self.touch(position, source.len(), true);
        // SAFETY: `base` is the address of this memory (the caller).
        let target = unsafe { self.at(base.as_ptr(), position, source.len()) };
        // SAFETY:
        // - `target` is valid for the length: `at` asserted it (M1); `source` is by its type.
        // - apart: a shared slice into this memory over these bytes would be a reader, whom the
        //   caller excludes.
        unsafe { target.copy_from_nonoverlapping(source.as_ptr(), source.len()) }
    }

    /// The `bytes` bytes at `position`. Panics: when they run over the end.
    ///
    /// # Safety
    /// These bytes were written before, as far as this thread sees (I4 of the ring), and no thread
    /// writes them while the slice lives.
    #[inline]
    pub(super) unsafe fn read(&self, position: u64, bytes: usize) -> &[u8] {
        #[cfg(loom)]
        self.touch(position, bytes, false);
        let base = self.base.load(Ordering::Relaxed);
        debug_assert!(!base.is_null(), "M1: what is read was written before");
        // SAFETY: the write allocated `base`, and happened before (the caller).
        let source = unsafe { self.at(base, position, bytes) };
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
        let base = *self.base.get_mut();
        if base.is_null() {
            return;
        }
        let words = (self.capacity_bytes / UNIT_BYTES) as usize;
        debug_assert!(words.is_power_of_two(), "M2");
        let slice = std::ptr::slice_from_raw_parts_mut(base, words);
        // SAFETY: `allocate` leaked exactly this slice; nothing borrows from `self` any more.
        drop(unsafe { Box::from_raw(slice) });
    }
}

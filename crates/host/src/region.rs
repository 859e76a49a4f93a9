//! A span of address space, reserved once and backed by the kernel page by page as it is touched.
//!
//! Upstream:   `table` keeps buckets in one, `segment` keeps items in one.
//! Downstream: `mmap` and `madvise`.
//!
//! Invariants:
//! - I1  `base` is page-aligned, readable and writable for `bytes`, and never moves until drop.
//! - I2  Memory that was never written, or was released since, reads as zero.
//! - I3  Raw memory is lent as `&[AtomicU64]` or as raw pointers, never as `&mut` or `&[u8]` from
//!   here.

use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// Bytes of a page, the grain of [`Region::release`].
pub const PAGE_BYTES: usize = 4096;

/// Anonymous memory addressed by offset from its base.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a `Region` is plain memory and two constant words.
// - Access through `words` is atomic; access through `base` is unsafe and argued where it happens.
unsafe impl Send for Region {}
// SAFETY: as above; no method changes the two words.
unsafe impl Sync for Region {}

impl Region {
    /// Reserves `bytes` (rounded up to whole pages) of zeroed memory; no page is backed yet.
    ///
    /// With `huge` the kernel is asked for transparent huge pages (an advice that it may ignore).
    /// Errors: whatever `mmap` says; a wrong `huge` advice is not an error.
    pub fn reserve(bytes: usize, huge: bool) -> io::Result<Self> {
        use rustix::mm::{Advice, MapFlags, ProtFlags};
        assert!(bytes > 0, "an empty region has no base");
        let bytes = bytes.next_multiple_of(PAGE_BYTES);
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        if huge {
            // SAFETY: the range is the mapping just made; the advice changes no contents.
            let _ignored_advice =
                unsafe { rustix::mm::madvise(base, bytes, Advice::LinuxHugepage) };
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, bytes })
    }

    /// Bytes reserved.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The first byte; valid for `bytes()` until the region is dropped (I1).
    pub const fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The whole region as words. Cost: none; touching a word backs its page.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY:
        // - valid, aligned and initialized: I1 (page alignment) and I2 (zero is a valid `u64`).
        // - shared mutation goes through atomics; whoever uses `base` beside it argues there.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), self.bytes / 8) }
    }

    /// Asks the kernel to back `range` (byte offsets, whole pages) with huge pages from now on.
    ///
    /// An advice: the kernel may ignore it, and where pages lie already it follows late or never.
    /// What was written stays. Memory comes in pieces of 2 MiB then, so the caller should mean to
    /// use them whole.
    /// Panics: when the range is not whole pages of this region.
    pub fn advise_huge(&self, range: Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.bytes);
        assert!(range.start.is_multiple_of(PAGE_BYTES) && range.end.is_multiple_of(PAGE_BYTES));
        // SAFETY: the offset lies inside the mapping (asserted above).
        let start = unsafe { self.base.as_ptr().add(range.start) };
        // SAFETY: the range lies inside the mapping; the advice changes no contents.
        let _ignored_advice = unsafe {
            rustix::mm::madvise(start.cast(), range.len(), rustix::mm::Advice::LinuxHugepage)
        };
    }

    /// Hands the pages of `range` (byte offsets, whole pages) back to the kernel; they read as zero
    /// after.
    ///
    /// Panics: when the range is not whole pages of this region.
    pub fn release(&self, range: Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.bytes);
        assert!(range.start.is_multiple_of(PAGE_BYTES) && range.end.is_multiple_of(PAGE_BYTES));
        if range.is_empty() {
            return;
        }
        // SAFETY: the offset lies inside the mapping (asserted above).
        let start = unsafe { self.base.as_ptr().add(range.start) };
        // SAFETY: the range lies inside the mapping; the caller gives up its contents by calling.
        let released = unsafe {
            rustix::mm::madvise(start.cast(), range.len(), rustix::mm::Advice::LinuxDontNeed)
        };
        assert!(released.is_ok(), "madvise refuses a range of our own mapping: {released:?}");
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nothing borrows from `self` any more.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn released_pages_read_as_zero() {
        let region = Region::reserve(3 * PAGE_BYTES, false).expect("three pages");
        region.words()[512].store(7, Relaxed);
        region.words()[0].store(5, Relaxed);
        region.release(PAGE_BYTES..2 * PAGE_BYTES);
        assert_eq!(region.words()[512].load(Relaxed), 0);
        assert_eq!(region.words()[0].load(Relaxed), 5);
    }

    #[test]
    fn huge_advice_keeps_what_was_written() {
        let region = Region::reserve(4 << 20, false).expect("address space");
        region.words()[0].store(5, Relaxed);
        region.advise_huge(0..4 << 20);
        region.words()[(4 << 20) / 8 - 1].store(7, Relaxed);
        assert_eq!(region.words()[0].load(Relaxed), 5);
    }

    #[test]
    fn a_huge_reservation_costs_nothing_until_touched() {
        let region = Region::reserve(1 << 40, false).expect("a terabyte of address space");
        region.words()[region.words().len() - 1].store(1, Relaxed);
    }
}

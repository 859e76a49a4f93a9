//! A span of address space, reserved once and backed by the kernel page by page as it is touched.
//!
//! Upstream:   `table` keeps buckets in one, `segment` keeps items in one.
//! Downstream: `mmap` and `madvise`.
//!
//! Invariants:
//! - I1  `base` is page-aligned, readable and writable for `bytes`, and never moves until drop.
//! - I2  Memory that was never written, or was released since, reads as zero.
//! - I3  This module lends memory as `&[AtomicU64]` or as raw pointers, never as `&mut` or `&[u8]`.

use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use crate::address_space::refusal;

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
    /// With `huge`, advises the kernel to use transparent huge pages. The kernel may ignore that.
    /// Errors: of `mmap`. The message names the size, the `purpose`, and the limits that may be the
    /// cause. A failed `huge` advice is not an error.
    pub fn reserve(bytes: usize, huge: bool, purpose: &str) -> io::Result<Self> {
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
            )
        };
        let base = base.map_err(|errno| refusal(bytes, purpose, errno))?;
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
        // - shared mutation goes through atomics; code that uses `base` beside it argues there.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), self.bytes / 8) }
    }

    /// Advises the kernel to back `range` (byte offsets, whole pages) with huge pages from now on.
    ///
    /// The kernel may ignore the advice. Where pages exist already, it follows late or never. The
    /// contents stay. The kernel then backs memory in pieces of 2 MiB, so the caller should intend
    /// to use whole pieces.
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

    /// Gives the pages of `range` (byte offsets, whole pages) back to the kernel. They read as zero
    /// afterwards. Returns `false` if the kernel has refused: the pages stay, and their contents
    /// may stay, too.
    ///
    /// The kernel refuses locked pages (`-k`) at first. Since 5.18, Linux has an advice of its own
    /// for them. Before 5.18, this function unlocks the pages for a moment; pages that are touched
    /// there later are locked again.
    /// Panics: when the range is not whole pages of this region.
    #[must_use = "pages that stay are still to be paid for"]
    pub fn release(&self, range: Range<usize>) -> bool {
        use rustix::io::Errno;
        use rustix::mm::{Advice, MlockFlags};
        assert!(range.start <= range.end && range.end <= self.bytes);
        assert!(range.start.is_multiple_of(PAGE_BYTES) && range.end.is_multiple_of(PAGE_BYTES));
        if range.is_empty() {
            return true;
        }
        // SAFETY: the offset lies inside the mapping (asserted above).
        let start = unsafe { self.base.as_ptr().add(range.start) }.cast();
        let ask = |advice| {
            // SAFETY: the range lies inside the mapping; the caller gives up its contents.
            unsafe { rustix::mm::madvise(start, range.len(), advice) }
        };
        let released = ask(Advice::LinuxDontNeed);
        if released != Err(Errno::INVAL) {
            assert!(released.is_ok(), "a range of our own mapping is refused: {released:?}");
            return true;
        }
        if ask(Advice::LinuxDontneedLocked).is_ok() {
            return true;
        }
        // SAFETY: the range lies inside the mapping; unlocking changes no contents.
        let unlocked = unsafe { rustix::mm::munlock(start, range.len()) };
        let released = unlocked.and_then(|()| ask(Advice::LinuxDontNeed));
        if unlocked.is_ok() {
            // SAFETY: the range lies inside the mapping; locking changes no contents.
            let _swapped_out_at_worst =
                unsafe { rustix::mm::mlock_with(start, range.len(), MlockFlags::ONFAULT) };
        }
        released.is_ok()
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
        let region = Region::reserve(3 * PAGE_BYTES, false, "a test").expect("three pages");
        region.words()[512].store(7, Relaxed);
        region.words()[0].store(5, Relaxed);
        assert!(region.release(PAGE_BYTES..2 * PAGE_BYTES));
        assert_eq!(region.words()[512].load(Relaxed), 0);
        assert_eq!(region.words()[0].load(Relaxed), 5);
    }

    #[test]
    fn locked_pages_are_released_too() {
        let region = Region::reserve(3 * PAGE_BYTES, false, "a test").expect("three pages");
        // SAFETY: the range is the region's own mapping; locking changes no contents.
        let locked = unsafe { rustix::mm::mlock(region.base().as_ptr().cast(), region.bytes()) };
        if let Err(error) = locked {
            println!("skip memory.locked_pages this process may not lock three pages: {error}");
            return;
        }
        region.words()[512].store(7, Relaxed);
        region.words()[0].store(5, Relaxed);
        assert!(region.release(PAGE_BYTES..2 * PAGE_BYTES));
        assert_eq!(region.words()[512].load(Relaxed), 0);
        assert_eq!(region.words()[0].load(Relaxed), 5);
    }

    #[test]
    fn huge_advice_keeps_what_was_written() {
        let region = Region::reserve(4 << 20, false, "a test").expect("address space");
        region.words()[0].store(5, Relaxed);
        region.advise_huge(0..4 << 20);
        region.words()[(4 << 20) / 8 - 1].store(7, Relaxed);
        assert_eq!(region.words()[0].load(Relaxed), 5);
    }

    #[test]
    fn a_huge_reservation_costs_nothing_until_touched() {
        let region =
            Region::reserve(1 << 40, false, "a test").expect("a terabyte of address space");
        region.words()[region.words().len() - 1].store(1, Relaxed);
    }
}

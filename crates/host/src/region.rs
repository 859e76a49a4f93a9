//! A span of address space, reserved once and backed by the kernel page by page as it is touched.
//!
//! Upstream:   `table` keeps buckets in one, `segment` keeps items in one.
//! Downstream: `mmap` and `madvise`.
//!
//! Invariants:
//! - I1  `base` is page-aligned, readable and writable for `bytes`, and never moves until drop.
//! - I2  Memory that was never written, or was released since, reads as zero.
//! - I3  This module lends memory as `&[AtomicU64]` or as raw pointers, never as `&mut` or `&[u8]`.
//! - I4  Reserved huge pages are all taken when the region is made, and kept until drop. So a touch
//!   never finds the reserve empty, which would be a fatal signal.
//! - I5  Once memory of a region was released, the kernel makes no more transparent huge pages of
//!   it. Otherwise the kernel would fill the holes again, piece by piece (`khugepaged`).

use std::io;
use std::ops::Range;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::address_space::refusal;
use crate::huge_pages::{HUGE_PAGE_BYTES, PageKind, SETTINGS, has_transparent};

/// Bytes of a page, the grain of [`Region::release`].
pub const PAGE_BYTES: usize = 4096;

/// Anonymous memory addressed by offset from its base.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    bytes: usize,
    pages: PageKind,
    /// Whether memory was released (I5).
    has_holes: AtomicBool,
}

// SAFETY: a `Region` is plain memory, three constant words and a flag.
// - Access through `words` is atomic; access through `base` is unsafe and argued where it happens.
unsafe impl Send for Region {}
// SAFETY: as above; no method changes the three words, and the flag is atomic.
unsafe impl Sync for Region {}

impl Region {
    /// Reserves `bytes` (rounded up to whole pages) of zeroed memory; no page is backed yet.
    ///
    /// With `huge`, takes reserved huge pages if enough of them are free: then all memory is backed
    /// at once (I4). Otherwise it advises the kernel to use transparent huge pages, which the
    /// kernel may ignore. [`Self::pages`] says what was obtained.
    /// Errors: of `mmap`. The message names the size, the `purpose`, and the limits that may be the
    /// cause. It is not an error if there are no huge pages.
    /// Cost: a system call; with reserved pages, the time to zero all of them.
    pub fn reserve(bytes: usize, huge: bool, purpose: &str) -> io::Result<Self> {
        assert!(bytes > 0, "an empty region has no base");
        if huge && let Some(region) = Self::of_reserved_pages(bytes) {
            return Ok(region);
        }
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
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mut region = Self::new(base, bytes, PageKind::Ordinary);
        if huge && region.advise(Advice::LinuxHugepage) && has_transparent(Path::new(SETTINGS)) {
            region.pages = PageKind::Transparent;
        }
        Ok(region)
    }

    fn new(base: NonNull<u8>, bytes: usize, pages: PageKind) -> Self {
        Self { base, bytes, pages, has_holes: AtomicBool::new(false) }
    }

    /// A region of reserved huge pages; `None` if there are too few, or if the kernel cannot take
    /// them all at once (before Linux 5.14).
    fn of_reserved_pages(bytes: usize) -> Option<Self> {
        let bytes = bytes.checked_next_multiple_of(HUGE_PAGE_BYTES)?;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB,
            )
        };
        let base = NonNull::new(base.ok()?.cast())?;
        let region = Self::new(base, bytes, PageKind::Reserved);
        // A control group may allow fewer pages than the mapping was promised (I4).
        region.advise(Advice::LinuxPopulateWrite).then_some(region)
    }

    /// Gives the kernel an advice on the whole region, which changes no contents. Returns `false`
    /// if the kernel refuses.
    fn advise(&self, advice: Advice) -> bool {
        use Advice::{LinuxHugepage, LinuxNoHugepage, LinuxPopulateWrite};
        debug_assert!(matches!(advice, LinuxHugepage | LinuxNoHugepage | LinuxPopulateWrite));
        // SAFETY: the range is this region's mapping; the caller gives an advice that changes no
        // contents.
        unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.bytes, advice) }.is_ok()
    }

    /// The pages that back the region.
    pub const fn pages(&self) -> PageKind {
        self.pages
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
        // Not `from_raw_parts`: in debug builds its checks are calls, and this is called often.
        let words = std::ptr::slice_from_raw_parts(self.base.as_ptr().cast(), self.bytes / 8);
        // SAFETY:
        // - valid, aligned and initialized: I1 (page alignment) and I2 (zero is a valid `u64`).
        // - shared mutation goes through atomics; code that uses `base` beside it argues there.
        unsafe { &*words }
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
        let _ignored_advice =
            unsafe { rustix::mm::madvise(start.cast(), range.len(), Advice::LinuxHugepage) };
    }

    /// Gives the pages of `range` (byte offsets, whole pages) back to the kernel. They read as zero
    /// afterwards. Returns `false` if the kernel has refused: the pages stay, and their contents
    /// may stay, too.
    ///
    /// The kernel refuses locked pages (`-k`) at first. Since 5.18, Linux has an advice of its own
    /// for them. Before 5.18, this function unlocks the pages for a moment; pages that are touched
    /// there later are locked again. Reserved huge pages stay in the region and are zeroed (I4).
    /// Panics: when the range is not whole pages of this region.
    #[must_use = "pages that stay are still to be paid for"]
    pub fn release(&self, range: Range<usize>) -> bool {
        use rustix::io::Errno;
        use rustix::mm::MlockFlags;
        assert!(range.start <= range.end && range.end <= self.bytes);
        assert!(range.start.is_multiple_of(PAGE_BYTES) && range.end.is_multiple_of(PAGE_BYTES));
        if range.is_empty() {
            return true;
        }
        if self.pages == PageKind::Reserved {
            let words = &self.words()[range.start / 8..range.end / 8];
            words.iter().for_each(|word| word.store(0, Ordering::Relaxed)); // I2
            return true;
        }
        if self.pages == PageKind::Transparent && !self.has_holes.swap(true, Ordering::Relaxed) {
            let _or_the_kernel_has_none = self.advise(Advice::LinuxNoHugepage); // I5
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
    use rustix::io::Errno;

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
    fn reserved_pages_that_are_released_stay_and_read_as_zero() {
        let mut region = Region::reserve(3 * PAGE_BYTES, false, "a test").expect("three pages");
        region.pages = PageKind::Reserved;
        region.words().iter().for_each(|word| word.store(7, Relaxed));
        assert!(region.release(PAGE_BYTES..2 * PAGE_BYTES));
        let zeros: Vec<bool> = region.words().iter().map(|word| word.load(Relaxed) == 0).collect();
        assert_eq!(zeros, [[false; 512], [true; 512], [false; 512]].concat());
    }

    #[test]
    fn a_region_with_holes_gets_no_more_huge_pages() {
        let region = Region::reserve(8 << 20, true, "a test").expect("memory");
        if region.pages() != PageKind::Transparent {
            return; // The kernel fills no holes then.
        }
        // `hg` and `nh` are the flags of a mapping in smaps (fs/proc/task_mmu.c).
        let flags = || {
            let smaps = std::fs::read_to_string("/proc/self/smaps").expect("proc");
            let own = smaps.lines().skip_while(|line| {
                // The kernel may have united the mapping with its neighbors.
                let span = line.split_once(' ').and_then(|(span, _)| span.split_once('-'));
                let [first, end] = span.map_or([None; 2], |(first, end)| {
                    [first, end].map(|text| usize::from_str_radix(text, 16).ok())
                });
                let base = region.base().addr().get();
                !first.zip(end).is_some_and(|(first, end)| (first..end).contains(&base))
            });
            let flags = own.into_iter().find(|line| line.starts_with("VmFlags:"));
            let flags = flags.expect("the mapping has flags").to_owned();
            (flags.contains(" hg"), flags.contains(" nh"))
        };
        assert_eq!(flags(), (true, false));
        region.words()[0].store(5, Relaxed);
        assert!(region.release(PAGE_BYTES..2 * PAGE_BYTES));
        assert_eq!(flags(), (false, true));
        assert_eq!(region.words()[0].load(Relaxed), 5);
    }

    #[test]
    fn a_region_has_the_huge_pages_that_the_machine_has() {
        let small = Region::reserve(PAGE_BYTES, false, "a test").expect("a page");
        assert_eq!(small.pages(), PageKind::Ordinary, "nobody asked");
        let region = Region::reserve(3 << 20, true, "a test").expect("memory");
        region.words()[(3 << 20) / 8 - 1].store(7, Relaxed);
        match region.pages() {
            PageKind::Reserved => assert_eq!(region.bytes(), 4 << 20, "whole huge pages"),
            PageKind::Transparent => assert!(has_transparent(Path::new(SETTINGS))),
            PageKind::Ordinary => assert!(!has_transparent(Path::new(SETTINGS))),
        }
        // No machine has this many reserved pages. The reservation falls back.
        let region = Region::reserve(1 << 44, true, "a test").expect("address space");
        assert_ne!(region.pages(), PageKind::Reserved);
    }

    #[test]
    fn locked_pages_are_released_too() {
        let region = Region::reserve(3 * PAGE_BYTES, false, "a test").expect("three pages");
        // SAFETY: the range is the region's own mapping; locking changes no contents.
        let locked = unsafe { rustix::mm::mlock(region.base().as_ptr().cast(), region.bytes()) };
        if let Err(error) = locked {
            assert!(matches!(error, Errno::PERM | Errno::NOMEM | Errno::AGAIN), "{error}");
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

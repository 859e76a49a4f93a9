//! Memory that the process shares with the kernel, seen as atomic words.
//!
//! Upstream:   `pipe`, with the descriptor of an array in the kernel.
//! Downstream: `mmap`.
//!
//! Invariants:
//! - I1  The mapping has `words` words, readable and writable, and never moves until drop.
//! - I2  The memory is lent as `&[AtomicU64]` alone, because a program in the kernel reads and
//!   writes it at the same time.

use std::io;
use std::ops::Deref;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::mm::{MapFlags, ProtFlags};

/// A mapping of a descriptor. It stays valid when the descriptor is closed.
#[derive(Debug)]
pub struct SharedWords {
    base: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: a `SharedWords` is plain memory and two constant words.
// - All access to the memory is atomic (I2).
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Maps the first `words` words behind a descriptor, shared with all who have it.
    ///
    /// Errors: of `mmap`, for instance if the descriptor is not for memory of that size.
    pub fn map(descriptor: impl AsFd, words: usize) -> io::Result<Self> {
        assert!(words > 0, "an empty mapping has no base");
        // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                words * 8,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                descriptor,
                0,
            )
        }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, words })
    }
}

impl Deref for SharedWords {
    type Target = [AtomicU64];

    #[inline]
    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the slice is the mapping.
        // - It has `words` words at a page boundary until drop (I1), and the borrow ends before.
        // - Any bits are an `AtomicU64`, and nothing lends the memory in another way (I2).
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: the range is this mapping (I1), and nothing borrows it any more.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.words * 8) };
        debug_assert!(unmapped.is_ok(), "I1: it is a mapping");
    }
}

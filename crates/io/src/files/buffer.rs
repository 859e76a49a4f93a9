//! Memory for direct I/O. It begins at a multiple of the alignment that the device requires.
//!
//! Upstream:   the owner of a file fills a buffer, or provides one to be filled.
//! Downstream: the kernel reads or writes it while the operation is in flight.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  The memory never moves, even if the buffer does. An operation owns its buffer while the
//!   operation is in flight, so no reference to the bytes exists then.
//! - I2  The alignment is a power of two.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Bytes that begin at a multiple of their alignment. Their number never changes.
pub struct AlignedBuffer {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY:
// - the buffer is the only owner of its memory, which any thread may read, write and free.
unsafe impl Send for AlignedBuffer {}
// SAFETY:
// - a shared buffer lends only shared bytes.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// `bytes` zeros at a multiple of `alignment`. Cost: an allocation.
    ///
    /// Panics: if `bytes` is 0, if `alignment` is not a power of two, or if the two exceed the
    /// address space. If there is no memory the process aborts, as with any allocation.
    #[must_use]
    pub fn new(bytes: usize, alignment: usize) -> Self {
        assert!(bytes > 0, "a buffer has room");
        assert!(alignment.is_power_of_two(), "I2");
        let layout = Layout::from_size_align(bytes, alignment).expect("fewer bytes than addresses");
        // SAFETY:
        // - the layout has a size above 0: asserted above.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Self { start, layout }
    }

    /// Whether the bytes begin at a multiple of `alignment`.
    pub(crate) fn is_aligned_to(&self, alignment: usize) -> bool {
        debug_assert!(alignment.is_power_of_two(), "I2");
        self.start.as_ptr().addr().is_multiple_of(alignment)
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY:
        // - the memory is of this size and initialized: `new` has zeroed it.
        // - it is not written while it is lent: `self` is borrowed for as long, and the kernel uses
        //   it only while an operation owns the buffer (I1).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.layout.size()) }
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY:
        // - as for `deref`; and nothing else reads it meanwhile: `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.layout.size()) }
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        // SAFETY:
        // - `new` allocated it with this layout, and nobody else frees it.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

impl fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuffer({} bytes)", self.layout.size())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_zeroed_and_aligned_and_stays_when_it_moves() {
        for alignment in [1, 512, 4096, 1 << 16] {
            let mut buffer = AlignedBuffer::new(5000, alignment);
            assert!(buffer.is_aligned_to(alignment) && buffer.iter().all(|&byte| byte == 0));
            assert_eq!(buffer.len(), 5000);
            buffer[4999] = 7;
            let before = buffer.as_ptr();
            let moved = Box::new(buffer);
            assert_eq!((moved.as_ptr(), moved[4999]), (before, 7), "I1");
        }
    }
}

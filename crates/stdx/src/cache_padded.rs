//! A value alone on its cache lines, so that its writers do not slow readers of its neighbors.
//!
//! Upstream:   words that different cores write, next to each other in one struct.
//! Downstream: nothing.

use std::ops::{Deref, DerefMut};

/// `T` aligned to, and padded to a multiple of, 128 bytes.
///
/// Two lines and not one, because the adjacent-line prefetcher of x86 fetches lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct CachePadded<T>(T);

const _: () = assert!(align_of::<CachePadded<u8>>() == 128 && size_of::<CachePadded<u8>>() == 128);

impl<T> CachePadded<T> {
    /// Wraps `value`. Cost: none.
    pub const fn new(value: T) -> Self {
        Self(value)
    }
}

impl<T> Deref for CachePadded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for CachePadded<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

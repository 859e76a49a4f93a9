//! The atomics and the memory that the table is built on: the real ones, or loom's in a model.
//!
//! Upstream:   every file here that touches a word which another core may read.
//! Downstream: `std` and `kachel_host::Region`, or loom.

#[cfg(not(loom))]
pub(crate) use kachel_host::Region;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(loom)]
pub(crate) use modeled::Region;

#[cfg(loom)]
mod modeled {
    use super::AtomicU64;
    use std::io;
    use std::ops::Range;
    use std::ptr::NonNull;

    /// The part of `kachel_host::Region` that the table uses, with words that loom knows.
    #[derive(Debug)]
    pub(crate) struct Region(Box<[AtomicU64]>);

    impl Region {
        pub(crate) fn reserve(bytes: usize, _huge: bool, _purpose: &str) -> io::Result<Self> {
            Ok(Self((0..bytes / 8).map(|_| AtomicU64::new(0)).collect()))
        }

        pub(crate) fn bytes(&self) -> usize {
            self.0.len() * 8
        }

        pub(crate) fn base(&self) -> NonNull<u8> {
            NonNull::dangling()
        }

        pub(crate) fn words(&self) -> &[AtomicU64] {
            &self.0
        }

        pub(crate) fn advise_huge(&self, _range: Range<usize>) {}

        pub(crate) fn release(&self, _range: Range<usize>) -> bool {
            unreachable!("a model's table has less than two steps of memory")
        }
    }
}

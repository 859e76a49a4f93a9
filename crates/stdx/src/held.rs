//! Borrowed bytes that stay in their owner's memory while they are held.
//!
//! Upstream:   the owner of memory (`segment`) lends a piece of it for as long as it is needed.
//! Downstream: a reader on any thread, which drops it afterwards: `io` has the kernel send from it.
//!
//! A reference count or a box for each piece would cost an allocation per piece. Instead, the owner
//! counts, and a piece identifies its count by a number.
//!
//! Invariants:
//! - I1  A piece is released once: when its [`Held`] is dropped.

use std::fmt;
use std::sync::Arc;

/// The owner of memory that keeps pieces of it in place.
///
/// # Safety
/// From the making of a [`Held`] until [`Self::let_go`] of its pin, [`Self::bytes`] returns the
/// same bytes at the same place for it, and nothing changes them.
pub unsafe trait Keeper: Send + Sync {
    /// The `length` bytes at `offset` of the keeper's memory.
    fn bytes(&self, offset: usize, length: usize) -> &[u8];

    /// Releases the bytes that `pin` held, which no thread reads any more. `Held` calls this once,
    /// on any thread.
    fn let_go(&self, pin: u64);
}

/// A piece of a keeper's memory, which stays as it is while this lives.
pub struct Held {
    keeper: Arc<dyn Keeper>,
    pin: u64,
    offset: usize,
    length: usize,
}

impl Held {
    /// The `length` bytes at `offset` of `keeper`'s memory.
    ///
    /// # Safety
    /// `keeper` has pinned these bytes under `pin`, once for this `Held`.
    pub unsafe fn new(keeper: Arc<dyn Keeper>, pin: u64, (offset, length): (usize, usize)) -> Self {
        Self { keeper, pin, offset, length }
    }

    /// A part of shared bytes that never change. For tests of readers of held memory.
    pub fn shared(bytes: &Arc<Box<[u8]>>, range: std::ops::Range<usize>) -> Self {
        let keeper: Arc<dyn Keeper> = Arc::<Box<[u8]>>::clone(bytes);
        // SAFETY: shared bytes need no pin.
        unsafe { Self::new(keeper, 0, (range.start, range.len())) }
    }

    /// The bytes. Cost: a virtual call.
    pub fn bytes(&self) -> &[u8] {
        self.keeper.bytes(self.offset, self.length)
    }

    /// The number of bytes.
    pub const fn byte_count(&self) -> usize {
        self.length
    }
}

/// Shared bytes that never change, and what is dropped once nobody holds a piece of them any more.
#[derive(Debug)]
pub struct GuardedBytes<G> {
    bytes: Arc<Box<[u8]>>,
    _guard: G,
}

impl<G: Send + Sync + 'static> GuardedBytes<G> {
    /// The bytes, with `guard`.
    pub const fn new(bytes: Arc<Box<[u8]>>, guard: G) -> Self {
        Self { bytes, _guard: guard }
    }

    /// All of the bytes.
    pub fn all(&self) -> &[u8] {
        &self.bytes
    }

    /// A part of the bytes. While it is held, the guard lives.
    pub fn hold(self: &Arc<Self>, range: std::ops::Range<usize>) -> Held {
        let keeper: Arc<dyn Keeper> = Arc::<Self>::clone(self);
        // SAFETY: shared bytes need no pin.
        unsafe { Held::new(keeper, 0, (range.start, range.len())) }
    }
}

// SAFETY: bytes behind an `Arc` never change, and `Held` keeps the keeper, which has the `Arc`.
unsafe impl<G: Send + Sync> Keeper for GuardedBytes<G> {
    fn bytes(&self, offset: usize, length: usize) -> &[u8] {
        &self.bytes[offset..offset + length]
    }

    fn let_go(&self, _pin: u64) {}
}

impl Drop for Held {
    fn drop(&mut self) {
        self.keeper.let_go(self.pin); // I1
    }
}

// SAFETY: bytes behind an `Arc` never change, and `Held` keeps the `Arc`.
unsafe impl Keeper for Box<[u8]> {
    fn bytes(&self, offset: usize, length: usize) -> &[u8] {
        &self[offset..offset + length]
    }

    fn let_go(&self, _pin: u64) {}
}

impl fmt::Debug for Held {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Held({} bytes)", self.length)
    }
}

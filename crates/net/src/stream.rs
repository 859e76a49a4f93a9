//! A large value that is being sent, and the source of its bytes.
//!
//! Upstream:   `shard` makes a stream of a pinned value.
//! Downstream: `outbox` passes its pieces to `io` as the client reads.

use kachel_stdx::Held;

/// The source of a large value's bytes.
pub trait Source {
    /// The length of the value in bytes.
    fn total_bytes(&self) -> usize;
    /// The bytes from `offset` to the end of the piece of memory that holds them. The result is
    /// empty only at the end of the value.
    fn piece_at(&self, offset: usize) -> &[u8];
    /// The same bytes as [`Self::piece_at`], as a handle that keeps their memory in place.
    fn hold_at(&self, offset: usize) -> Held;
    /// The bytes that the protocol writes after the value.
    fn end(&self) -> &'static [u8];
}

impl Source for () {
    fn total_bytes(&self) -> usize {
        0
    }
    fn piece_at(&self, _offset: usize) -> &[u8] {
        &[]
    }
    fn hold_at(&self, _offset: usize) -> Held {
        unreachable!("nothing has no piece")
    }
    fn end(&self) -> &'static [u8] {
        b""
    }
}

/// A large value that is being sent.
#[derive(Debug)]
pub struct Stream<S> {
    pub(crate) source: S,
    pub(crate) offset: usize,
}

impl<S> Stream<S> {
    /// Makes a stream of the whole `source`, from its first byte.
    pub const fn new(source: S) -> Self {
        Self { source, offset: 0 }
    }
}

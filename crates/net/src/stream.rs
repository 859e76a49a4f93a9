//! A large value on its way out, and where its bytes lie.
//!
//! Upstream:   `shard` makes one of a pinned value.
//! Downstream: `outbox` hands its pieces to `io` as the client reads.

use kachel_stdx::Held;

/// Where a large value's bytes lie: handed out as the socket drains.
pub trait Source {
    /// Bytes in all.
    fn total_bytes(&self) -> usize;
    /// The bytes from `offset` to the end of the piece they lie in; empty only at the end.
    fn piece_at(&self, offset: usize) -> &[u8];
    /// The same, held where they lie.
    fn hold_at(&self, offset: usize) -> Held;
    /// What the protocol writes behind the value.
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

/// A large value on its way out.
#[derive(Debug)]
pub struct Stream<S> {
    pub(crate) source: S,
    pub(crate) offset: usize,
}

impl<S> Stream<S> {
    /// The whole of `source`, from its first byte.
    pub const fn new(source: S) -> Self {
        Self { source, offset: 0 }
    }
}

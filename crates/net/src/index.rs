//! The index of a connection.
//!
//! Upstream:   `connections` numbers connections by their sockets.
//! Downstream: a reply slot stores the index of its connection; the lists of `shard` contain
//!             indices.

/// The index of a connection or an exchange of one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionIndex(pub u32);

/// The index of the first exchange. No socket has such an index: that would need as many
/// connections.
pub(crate) const FIRST_EXCHANGE: u32 = 1 << 31;

impl ConnectionIndex {
    /// Whether this is the index of an exchange.
    #[inline]
    #[must_use]
    pub const fn is_exchange(self) -> bool {
        self.0 >= FIRST_EXCHANGE
    }
}

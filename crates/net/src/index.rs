//! The index of a connection.
//!
//! Upstream:   `connections` numbers connections by their sockets.
//! Downstream: a reply slot stores the index of its connection; the lists of `shard` contain
//!             indices.

/// The index of a connection of one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionIndex(pub u32);

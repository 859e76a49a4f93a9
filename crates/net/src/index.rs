//! Which connection of a shard.
//!
//! Upstream:   `connections` numbers them by their sockets.
//! Downstream: reply slots remember whose they are; `shard` lists connections by it.

/// Which connection of this shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionIndex(pub u32);

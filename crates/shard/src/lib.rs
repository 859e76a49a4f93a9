//! One core's world: the tick, routing, hops to other shards, counters, listings.
//!
//! Upstream:   `kachel` starts one thread a shard and calls `Shard::tick` until it says that all is
//!             done.
//! Downstream: `net` for connections, `wire` for bytes, `cache` for items, `io` for the kernel.
//!
//! Architecture invariants:
//! - No system call, no clock, no random source: those come through `kachel_io::{Io, Clock}`,
//!   `Seeds` and `SharedOptions::usage`.
//! - A shard's thread alone changes its table and its items; others send it hops.
//! - The engine is reached by its contract, and by the crate `cache`; nothing inside that is named.

#![forbid(unsafe_code)]

mod admin;
mod apply;
mod core;
mod counters;
mod dump;
mod holdings;
mod hop;
mod landing;
mod pause;
mod serve;
mod shard;
mod shared;
mod slowest;
mod stage;
mod stats;
mod timeouts;
mod upload;

/// The memory that all shards share, and how their engines behave.
pub use kachel_cache::{Pool, PoolOptions, budget_bytes_min};
pub use kachel_engine::{EngineOptions, PARTITIONS, Seeds};

pub use counters::{Counter, Counters};
pub use holdings::Holdings;
pub use hop::{Mailbox, Mailboxes, mailboxes};
pub use shard::{Shard, ShardOptions, Turn};
pub use shared::{ClosedClient, Shared, SharedOptions};

/// Requests that are looked up together: parsed, hashed, prefetched, then carried out.
///
/// Why 32: a guess until `experiments/` has the sweep; the prototype gained 2.8 x with it.
pub const BATCH_REQUESTS_MAX: usize = kachel_cache::BATCH_MAX;
/// Items that a shard looks at in one tick for all listings (`lru_crawler metadump`, `mgdump`)
/// together, dead ones included. A guess: about as long as a batch of requests takes.
pub const LISTED_ITEMS_PER_TICK_MAX: usize = 64;

/// Address space that `shards` shards over `pool` take beside it, in bytes: for their indexes
/// and for the mailboxes between them. Threads and buffers come on top.
pub fn address_space_bytes(pool: &Pool, shards: u16) -> u64 {
    kachel_cache::index_bytes(pool, shards) + hop::mailbox_bytes(shards)
}

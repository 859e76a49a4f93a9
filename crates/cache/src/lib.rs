//! The in-memory engine: an index and segments kept in step, for the modes `cache` and `store`.
//!
//! Upstream:   `shard` owns one [`Cache`] and applies operations to it; so does any Rust program
//!             (`docs/embedding.md`).
//! Downstream: `table` (from the hash of a key to a location) and `segment` (from a location to an
//!             item).
//!
//! Architecture invariants:
//! - Only this crate knows both `table` and `segment`, and nobody else names their parts.
//! - No protocol, no system call, no clock: the time is an argument.

#![forbid(unsafe_code)]

mod cache;
mod find;
mod index;
mod item;
mod primitives;
mod stats;
#[cfg(test)]
mod tests;

pub use cache::{Cache, MAINTENANCE_ITEMS_MAX, budget_bytes_min, index_bytes};
pub use find::{BATCH_MAX, Lookup};
pub use item::CachedItem;
/// The memory that all shards of a process share, and handles on values in it.
pub use kachel_segment::{
    BLOCK_BYTES, INLINE_VALUE_BYTES_MAX, NoMemory, Pinned, Pool, PoolBooks, PoolOptions, Upload,
    WalkCursor, Walked,
};
pub use stats::CacheStats;

/// The example of `docs/embedding.md`, which the documentation tests run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/embedding.md")]
struct Embedding;

//! The in-memory engine: an index and segments, for the modes `cache` and `store`.
//!
//! Upstream:   `shard` owns one [`Cache`] and applies operations to it; a Rust program can do the
//!             same (`docs/embedding.md`). Other cores read through a [`CacheReader`].
//! Downstream: `table` (from the hash of a key to a location) and `segment` (from a location to an
//!             item).
//!
//! Architecture invariants:
//! - Only this crate knows both `table` and `segment`. Other crates do not depend on them.
//! - The crate knows no protocol, makes no system call and reads no clock: the time is an argument.

#![forbid(unsafe_code)]

mod cache;
mod engine;
mod find;
mod guesses;
mod index;
mod item;
mod large;
mod leases;
mod lookup;
mod miniature;
#[cfg(all(test, loom))]
mod models;
mod opening;
mod primitives;
mod reader;
mod saved;
mod stats;
#[cfg(all(test, not(loom)))]
mod tests;

pub use cache::{Cache, EngineOf, MAINTENANCE_BYTES_MAX, MAINTENANCE_ITEMS_MAX, budget_bytes_min};
pub use engine::CacheCommon;
pub use item::CachedItem;
/// The memory that all shards of a process share.
pub use kachel_segment::{BLOCK_BYTES, Pool, PoolBooks, PoolOptions, SavedItem};
pub use kachel_stdx::SizeClassOptions;
pub use large::{CachePinned, CacheUpload};
pub use miniature::Miniatures;
pub use opening::CacheOpener;
pub use reader::CacheReader;
pub use saved::Restored;
pub use saved::block::{BLOCK_BYTES_MAX, BLOCK_HEAD_BYTES, BlockBuilder, BlockHead};
pub use saved::head::{FileHead, HEAD_BYTES, Unfit, is_ours};

const _: () = assert!(
    kachel_segment::INLINE_VALUE_BYTES_MAX == kachel_engine::INLINE_VALUE_BYTES_MAX,
    "what the contract calls a small value fits a segment's item"
);

/// The example of `docs/embedding.md`, which the documentation tests run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/embedding.md")]
struct Embedding;

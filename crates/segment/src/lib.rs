//! Values in memory: items in segments, TTL buckets, expiry, eviction, compaction, large values.
//!
//! Upstream:   `cache` appends, reads and kills items. Each shard has one [`Segments`]; all shards
//!             share one [`Pool`].
//! Downstream: `kachel_host::Region` for address space, `kachel_host::Budget` for the promise of
//! `-m`.
//!
//! An item is appended once and never changes, except for two words (expiry and marks; accesses).
//! Memory is freed one segment at a time. `cache` owns the index; this crate calls it through
//! [`Index`].
//!
//! Sources: segments and TTL buckets follow Segcache (Yang, Yue, Vinayak, NSDI 2021). Eviction is
//! S3-FIFO (Yang et al., SOSP 2023) applied to segments: the small queue is a list of *probation*
//! segments, the main queue is a list of *main* segments, and an item is reinserted by a copy.
//! Eviction weighs the reads of an item against its bytes.

#[cfg(not(loom))]
mod arena;
#[cfg(loom)]
mod arena_model;
mod audit;
mod flush;
mod item;
mod layout;
mod meta;
mod pool;
mod segments;
mod size_classes;

#[cfg(loom)]
use arena_model as arena;
pub use flush::FlushWord;
pub use item::{FoundItem, Item, ItemValue, Parts};
pub use layout::{Access, ItemAt};
pub use pool::{NoMemory, Pinned, Pool, PoolBooks, PoolOptions, Upload};
pub use segments::{
    Added, EvictedItem, Index, JoinPlace, NewItem, NewValue, NoSegment, Reclaimed, SavedItem,
    SegmentOptions, SegmentStats, Segments, WalkCursor, Walked,
};
pub use size_classes::{ClassCounts, ClassTotals};

/// Bytes of the longest value that lies in a segment whole; longer values take blocks.
pub const INLINE_VALUE_BYTES_MAX: usize = (1 << 14) - 1;

/// Bytes of the longest key the layout holds (memcached's limit is 250; the caller enforces it).
pub const KEY_BYTES_MAX: usize = u8::MAX as usize;

/// Bytes of a block, the unit in which large values take memory.
pub const BLOCK_BYTES: usize = INLINE_VALUE_BYTES_MAX + 1;

/// Bytes of the smallest segment, in which a shard with little memory keeps its items.
pub const SEGMENT_BYTES_MIN: usize = 32 << 10;

/// Bytes of the largest segment.
pub const SEGMENT_BYTES_MAX: usize = 1 << 20;

/// The number of segments that a shard should own if memory is divided evenly. It decides the
/// segment size.
pub const SEGMENTS_PER_SHARD: usize = 256;

const _: () = assert!(SEGMENT_BYTES_MIN.is_multiple_of(BLOCK_BYTES));
const _: () = assert!(SEGMENT_BYTES_MAX / BLOCK_BYTES <= u64::BITS as usize);

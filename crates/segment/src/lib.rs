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

// Each file imports only files below it, here and in each folder's `mod.rs`. The files of a folder
// may also import what its `mod.rs` defines, because some of them continue the type that is there.
mod segments;
mod size_classes;
mod item;
mod pool;
mod layout;
#[cfg(not(loom))]
mod arena;
#[cfg(loom)]
mod arena_model;
mod audit;
mod meta;
mod limits;

#[cfg(loom)]
use arena_model as arena;
pub use item::{FoundItem, Item, ItemValue, Parts};
pub use layout::{Access, ItemAt, memory_bytes_of};
pub use limits::{
    BLOCK_BYTES, INLINE_VALUE_BYTES_MAX, KEY_BYTES_MAX, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN,
    SEGMENTS_PER_SHARD,
};
pub use pool::{NoMemory, Pinned, Pool, PoolBooks, PoolOptions, Upload, unused_bytes};
pub use segments::{
    Added, EvictedItem, Examined, GHOST_BYTES, GHOST_PERCENT, Index, JoinPlace, NewItem, NewValue,
    NoSegment, Queue, Reclaimed, SavedItem, SegmentOptions, SegmentStats, Segments,
    UPKEEP_STEP_BYTES_MAX, VictimSeen, WalkCursor, Walked, Weights, is_probation_large,
    kept_bytes_max,
};
pub use size_classes::{ClassCounts, ClassTotals};

//! The sizes of keys, values, blocks and segments.
//!
//! Upstream:   every file of this crate; `cache`, which refuses longer keys and values.
//! Downstream: nothing.

/// Bytes of the longest value that is stored whole in a segment. Longer values take blocks.
pub const INLINE_VALUE_BYTES_MAX: usize = (1 << 14) - 1;

/// Bytes of the longest key for which an item has space. memcached's limit of 250 is lower, and the
/// caller enforces it.
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

//! The words of a bucket as they lie in memory: one cache line.
//!
//! Upstream:   `bucket` reads and writes slots; `match_tag` compares the tags of a whole line;
//!             `lines` cuts the region into lines.
//! Downstream: the atomics of `sync`.
//!
//! Invariants:
//! - I1  A line is a control word and the slots, without a gap, and exactly one aligned cache line.

use crate::sync::AtomicU64;

/// Slots of a bucket.
#[cfg(not(loom))]
pub const SLOTS_PER_BUCKET: usize = 7;
/// Slots of a bucket in a model: enough to be full, and to have a neighbor.
#[cfg(loom)]
pub const SLOTS_PER_BUCKET: usize = 2;
/// Bytes of a bucket (I1).
pub(crate) const BUCKET_BYTES: u64 = if cfg!(loom) { 24 } else { 64 };

/// The words of a bucket: the control word, then the slots.
pub(crate) type Line = [AtomicU64; 1 + SLOTS_PER_BUCKET];

const _: () = assert!((1 + SLOTS_PER_BUCKET as u64) * 8 == BUCKET_BYTES); // I1

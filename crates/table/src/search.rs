//! The queue of a search for a hole: which buckets were reached, and from where.
//!
//! Upstream:   `insert` searches and walks back; `table` keeps the memory of the queue.
//! Downstream: `line`, for the number of slots.
//!
//! Invariants:
//! - I1  No node is more than three moves away from a root, and a node's number fits its parent's
//!   field.

use crate::line::SLOTS_PER_BUCKET;

/// The most full buckets whose entries a search follows to their other buckets. These full buckets
/// are at most two moves away.
pub(crate) const EXPANSIONS_MAX: usize = 72;
/// The most buckets that a search examines: two roots, and the buckets to which the entries lead
/// that it follows.
pub(crate) const NODES_MAX: usize = 2 + EXPANSIONS_MAX * SLOTS_PER_BUCKET;

/// A bucket reached by a search, and the slot whose entry could move there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    pub(crate) bucket: u32,
    /// Index of the node that holds the entry; its own index for a root.
    pub(crate) parent: u16,
    pub(crate) slot: u8,
}

const _: () = assert!(NODES_MAX <= u16::MAX as usize); // I1
const _: () = assert!(EXPANSIONS_MAX <= 2 + 2 * 7 + 2 * 49); // I1: no node is four moves away.

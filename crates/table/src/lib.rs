//! The index of one shard: from a key's hash to the location of its item.
//!
//! Upstream:   `cache` looks up hashed keys; its closures compare keys and hash items again.
//! Downstream: `host` for address space and the budget. This crate knows no protocol and reads no
//!             item.
//!
//! One thread owns a [`Table`], and only that thread changes it. Any other core may look keys up at
//! the same time, through a [`Reader`].
//!
//! Source: two choices of bucket with moves between them (Pagh and Rodler, cuckoo hashing, ESA
//! 2001; partial keys as in MemC3, Fan, Andersen and Kaminsky, NSDI 2013), over linear hashing
//! (Litwin, VLDB 1980), which grows and shrinks one bucket at a time. Our change: a slot stores not
//! only the tag, but also the next four address bits of its key. So moves read no items, and only
//! one doubling in four does.

mod bucket;
mod geometry;
mod grow;
mod guess;
mod tag;
mod insert;
mod line;
mod lines;
mod match_tag;
#[cfg(all(test, loom))]
mod models;
mod prefetch;
mod reader;
mod search;
mod sync;
mod table;
#[cfg(all(test, not(loom)))]
mod tests;

pub use grow::{MERGE_SLOTS_MAX, STEP_BYTES_MAX};
pub use guess::{BucketChoice, Guess};
pub use insert::{Full, INSERT_SLOTS_MAX, PATH_MOVES_MAX};
pub use line::SLOTS_PER_BUCKET;
pub use prefetch::prefetch;
pub use reader::{Reader, Seen};
pub use table::{Table, TableCounts};
pub use tag::{KeyHash, Location};

//! General parts that could be in std: they know nothing of caches, requests or protocols.
//!
//! Upstream:   `shard` shares engines by the combining lock and sleeps by the sleeper; `segment`
//!             waits for quiescence, holds bytes for `io` to send and lends landings that it fills;
//!             other crates as they need a part.
//! Downstream: `core`, `alloc` and crossbeam's padded cell (loom in its models); `std` for what
//!             only tests use.

mod allocations;
mod combining;
mod counter;
mod durable_word;
mod flush_word;
mod flushed_prefixes;
mod gaps;
mod held;
mod json_text;
mod landing;
#[cfg(loom)]
pub mod model;
mod plain_http;
mod plural;
mod quiescence;
mod size_classes;
mod sleeper;
mod sync;

pub use allocations::{CountingAllocator, counted, kept, uncounted};
pub use combining::{Chain, CombiningLock, Guard, Offered, Returned, Work};
pub use counter::Counter;
pub use crossbeam_utils::CachePadded;
pub use durable_word::{DurableWord, Sequence};
pub use flush_word::{FlushWord, Flushed, is_before};
pub use flushed_prefixes::{
    BytePrefix, FLUSHED_PREFIXES_MAX, FlushedPrefixes, NotedPrefixes, PREFIX_BYTES_MAX,
    TooManyPrefixes,
};
pub use gaps::Gaps;
pub use held::{GuardedBytes, Held, Keeper};
pub use json_text::{put_json_text, shows_itself};
pub use landing::{
    LANDING_PIECES_MAX, LANDING_SLICES_MAX, LANDING_SPILL_BYTES, Landing, Lender, Piece,
};
pub use plain_http::{HttpAnswer, http_question, printable};
pub use plural::plural;
pub use quiescence::{Place, Quiescence, Reader, Stamp};
pub use size_classes::{SizeClassOptions, SizeClasses};
pub use sleeper::Sleeper;

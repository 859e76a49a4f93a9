//! The work of one core: the tick, routing, hops to other shards, counters, listings.
//!
//! Upstream:   `kachel` starts one thread a shard and calls `Shard::tick` until it says that all is
//!             done.
//! Downstream: `net` for connections, `wire` for bytes, an engine for items, `io` for the kernel.
//!
//! Reading order: `tick`, which calls all stages; then the other files in the order of the `mod`
//! lines below. Each file imports only files below it.
//!
//! Architecture invariants:
//! - No system call, no clock, no random source: those come through `kachel_io::{Io, Clock}`,
//!   `KeyHasher` and `SharedOptions::usage`.
//! - Only a shard's own thread changes its items; others send it hops.
//! - The engine is reached by its contract alone.

#![forbid(unsafe_code)]

// The tick, and its stages in order.
mod tick;
mod mail;
mod late;
mod slowest;
mod send;
mod accept;
mod serve;
mod arrive;

// Requests that are not about one small item.
mod admin;
mod stats;
mod report;
mod landing;
mod upload;
mod listing;

// Requests that wait, and requests on their way to another shard.
mod pause;
mod delayed;
mod hop;

// One request: its memory, its batch, the engine, the reply.
mod memory;
mod apply;
mod batch;
mod clients;
mod reply;

// What every stage reads.
mod context;
mod process;
mod counters;

pub use counters::{Counter, Counters};
pub use delayed::REQUESTS_MAX as DELAYED_REQUESTS_MAX;
pub use hop::{Mailbox, Mailboxes, mailbox_bytes, mailboxes};
pub use process::{ClosedClient, Shared, SharedOptions};
pub use report::Holdings;
pub use tick::{Shard, ShardOptions, Turn};

/// Requests that are looked up together: parsed, hashed, prefetched, then carried out.
///
/// Why 32: a guess until `experiments/` has the sweep; the prototype gained 2.8 x with it.
pub const BATCH_REQUESTS_MAX: usize = kachel_engine::BATCH_MAX;
/// Items that a shard examines in one tick for all listings (`lru_crawler metadump`, `mgdump`)
/// together, dead ones included. A guess: about as long as a batch of requests takes.
pub const LISTED_ITEMS_PER_TICK_MAX: usize = 64;

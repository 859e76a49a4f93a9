//! The work of one core: the tick, routing, requests that are parked, counters, listings.
//!
//! Upstream:   `kachel` starts one thread per shard. The thread calls `Shard::tick` until it
//!             returns `Turn::Finished`.
//! Downstream: `net` for connections, `wire` for bytes, an engine for items, `io` for the kernel.
//!
//! Reading order: `tick`, which calls all stages; then the other files in the order of the `mod`
//! lines below. Each file imports only files below it.
//!
//! Architecture invariants:
//! - The crate makes no system call, reads no clock and draws no random number. It gets them
//!   through `kachel_io::Io`, `kachel_io::Clock`, `KeyHasher` and `SharedOptions::usage`.
//! - Only the core that holds a shard's engine changes its items (`engines`). Other cores read them
//!   (`beside`), or park requests with its holder.
//! - A shard uses its engine only through the contract of `kachel_engine`.

#![forbid(unsafe_code)]

// The tick, and its stages in order.
mod tick;
mod late;
mod slowest;
mod send;
mod accept;
mod serve;
mod carry_out;
mod copying;
mod sasl;
mod login;
mod balance;
mod datagrams;
mod arrive;

// Requests that are not about one small item.
mod admin;
mod watching;
mod holdings;
mod landing;
mod upload;
mod listing;
mod crawl;
mod refresh;
mod class_stats;
mod tally;
mod class_sums;
mod census;
mod stats;

// Requests that wait: for their clients, or for an engine that another core holds.
mod pause;
mod turns;
mod records;

// One request: its memory, its batch, the engine, the reply.
mod memory;
mod beside;
mod batch;
mod clients;
mod engines;
mod backlog;
mod mailboxes;
mod parked;
mod form;
mod apply;
mod reply;
mod sample;
mod logging;

// What every stage reads.
mod context;
mod work;
mod log;
mod prefixes;
mod process;
mod watchers;
mod crawler;
mod cores;
mod counters;
mod refreshes;
mod by_class;
mod sizes;

pub use by_class::{ByClass, ClassCounters};
pub use counters::Counters;
pub use engines::{Engines, Hold};
pub use holdings::Holdings;
pub use kachel_stdx::Counter;
pub use listing::LISTING_BYTES_PER_CORE_MAX;
pub use process::{
    ClosedClient, OpenSocket, OtherCounts, PipeControl, Shared, SharedOptions, Shutdown, Switched,
    UdpOptions,
};
pub use refreshes::Certificates;
pub use tick::{Shard, ShardOptions, Turn};
pub use work::{HOLD_BYTES_MAX, TURN_BYTES_MAX};

/// The most requests in a batch: they are parsed, hashed, prefetched, then executed together.
///
/// Why 32: this is a guess, because no experiment compares batch sizes yet. The prototype gained a
/// factor of 2.8 with it.
pub const BATCH_REQUESTS_MAX: usize = kachel_engine::BATCH_MAX;
/// The most items that a shard examines in one tick for all listings (`lru_crawler metadump`,
/// `mgdump`) together, dead items included. A guess: this takes about as long as a batch of
/// requests.
pub const LISTED_ITEMS_PER_TICK_MAX: usize = 64;

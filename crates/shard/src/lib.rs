//! The work of one core: the tick, routing, requests that are parked, counters, listings.
//!
//! Upstream:   `kachel` starts one thread per shard. The thread calls `Shard::tick` until it
//!             returns `AfterTick::Finished`.
//! Downstream: `net` for connections, `wire` for bytes, an engine for items, `io` for the kernel.
//!
//! Reading order: `tick`, which calls all stages; then the folders and files in the order of the
//! `mod` lines, here and in each folder's `mod.rs`. Each file imports only files below it.
//!
//! Architecture invariants:
//! - The crate makes no system call, reads no clock and draws no random number. It gets them
//!   through `kachel_io::Io`, `kachel_io::Clock`, `KeyHasher` and `SharedOptions::usage`.
//! - Only the core that holds an engine changes its items (`waiting/engines`). Other cores read
//!   them (`serve/beside`), or park requests with its holder.
//! - A shard uses the engines only through the contract of `kachel_engine`.

#![forbid(unsafe_code)]

// The tick, which calls the stages.
mod tick;
mod sleep;

// The stages.
mod serve;
mod control;
mod connections;
mod listings;
mod stats;
mod large;
mod waiting;

// What the stages use.
mod clients;
mod request;
mod fences;
mod context;
mod cores;

pub use cores::homes::Homes;
pub use cores::options::{
    ClientEvent, OpenSocket, OtherCounts, PipeControl, PlainOptions, PrefixFlushPermission,
    SharedOptions, Switched, UdpOptions,
};
pub use cores::process::{Shared, Shutdown};
pub use cores::refreshes::Certificates;
pub use cores::work::{HOLD_BYTES_MAX, TICK_BYTES_MAX, TURN_BYTES_MAX};
pub use kachel_observe::{
    Counters, CurvePoint, CurveState, EngineCounters, HotKey, HotLists, HotRate, HottestKeys,
    MissCurve,
};
pub use kachel_stdx::Counter;
pub use kachel_wire::ObserverSet;
pub use listings::listing::LISTING_BYTES_PER_CORE_MAX;
pub use request::batch::BATCH_REQUESTS_MAX;
pub use request::form::LISTED_ITEMS_PER_TICK_MAX;
pub use stats::holdings::Holdings;
pub use tick::{AfterTick, Shard, ShardOptions};
pub use waiting::engines::Engines;
pub use waiting::files::FileEngine;
pub use waiting::inspect::Hold;

//! Listings of all items, and scans: stepped a bounded piece a tick, or refused.
//!
//! Upstream:   `control` begins a listing; `tick` continues all of them.
//! Downstream: `waiting` for the engines of all shards; `stats` for what is counted.

pub(crate) mod listing;
pub(crate) mod tally;
pub(crate) mod scan;
mod connections;

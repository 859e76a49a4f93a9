//! Counters, the log and its watchers: each stage counts and notes here while it serves requests.
//!
//! Upstream:   every stage counts here. Nothing here decides how a request is served.
//! Downstream: `stats` and the clients that watch the log.

pub(crate) mod log;
pub(crate) mod prefixes;
pub(crate) mod watchers;
pub(crate) mod counters;
pub(crate) mod engine_counters;
pub(crate) mod by_class;
pub(crate) mod sizes;

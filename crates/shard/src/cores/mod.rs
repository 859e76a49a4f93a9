//! The state that all cores of the process share: limits and flags, the bounds on the work of a
//! core, the number of cores that serve clients, and the memory of requests that wait.
//!
//! Upstream:   every stage of a tick.
//! Downstream: `observe`, for the counters of all cores.

pub(crate) mod work;
pub(crate) mod run_queue;
pub(crate) mod process;
pub(crate) mod options;
pub(crate) mod homes;
pub(crate) mod policy;
pub(crate) mod crawler;
pub(crate) mod refreshes;
pub(crate) mod throttle;
pub(crate) mod buffers;
pub(crate) mod spares;

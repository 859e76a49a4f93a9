//! Connections: accepted, read, moved to other cores, sent to, and closed.
//!
//! Upstream:   `tick`, with the events of a poll, and at the end of a tick with the replies;
//!             `serve`, with the input that it leaves.
//! Downstream: `net` and `io`; `large` for the bytes of large values.

pub(crate) mod late;
pub(crate) mod slowest;
pub(crate) mod send;
pub(crate) mod watching;
pub(crate) mod accept;
pub(crate) mod balance;
pub(crate) mod datagrams;
pub(crate) mod arrive;
pub(crate) mod memory;

//! What the fuzz targets check, apart from the fuzzer that drives them.
//!
//! Upstream:   `fuzz_targets/*.rs`, one for each function here, give it any bytes at all.
//! Downstream: `wire`, alone and in a whole server; a broken promise is a panic.
//!
//! Invariants:
//! - I1  The same bytes do the same each time: no clock, no randomness, nothing kept from one input
//!   to the next. So a finding is replayed by running its target on its file.

#![forbid(unsafe_code)]

mod canary;
mod client;
mod connection;
mod parser;
mod script;
mod sequence;

pub use canary::canary;
pub use client::client;
pub use connection::connection;
pub use parser::{META_VERBS, meta, text};
pub use script::{Script, escaped, plan, repeated};

//! The checks of the fuzz targets, without the fuzzer that runs them.
//!
//! Upstream:   `fuzz_targets/*.rs`. Each of them calls one function of this crate with arbitrary
//!             bytes.
//! Downstream: `wire`, alone and in a whole server. A broken promise is a panic.
//!
//! Invariants:
//! - I1  The same bytes have the same effect each time: no clock, no randomness, and no state that
//!   survives an input. So running a target on the file of a finding replays the finding.

#![forbid(unsafe_code)]

mod binary;
mod canary;
mod client;
mod connection;
mod login;
mod options;
mod parser;
mod script;
mod sequence;
mod together;
mod udp;

pub use binary::binary;
pub use canary::canary;
pub use client::client;
pub use connection::connection;
pub use options::options;
pub use parser::{META_VERBS, meta, text};
pub use script::{Script, escaped, plan, repeated};
pub use together::together;
pub use udp::udp;

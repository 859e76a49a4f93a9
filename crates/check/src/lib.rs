//! The semantics of the protocol, defined once: a plain model of one key, and a judge of histories.
//!
//! Upstream:   tests against a server, the simulator, later the crash oracle. Each records the
//!             operations of clients and their outcomes.
//! Downstream: nothing of ours, so that no mistake of the server is shared (`request`, `outcome`).
//!
//! ```text
//!   request bytes -> Operation --+                     +-> Stats
//!                                +-> Entry -> History -+
//!   reply bytes   -> Outcome ----+      (judged key    +-> Violation
//!                                        by key)
//! ```
//!
//! Invariants:
//! - I1  Nothing here depends on how a server works, only on what its clients can see.
//! - I2  A correct history is never rejected. Where an incorrect outcome is accepted, a comment at
//!   that place says so.
//! - I3  No clock, no random source, no I/O.
#![forbid(unsafe_code)]

mod operation;
mod outcome;
mod request;
mod value;

mod file;
mod history;

mod model;

mod judge;
mod stats;
mod violation;

pub use file::{FileError, read_history, write_history};
pub use history::{Entry, History, NEVER, Window};
pub use judge::{STEPS_MAX, check_history};
pub use model::{Item, LeaseRules, Mode, Model, Remnant, Rules, Span, State};
pub use operation::{Operation, operations};
pub use outcome::Outcome;
pub use stats::Stats;
pub use value::Value;
pub use violation::{Contradiction, Violation};

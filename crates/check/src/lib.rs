//! What is right, said once: a plain model of the semantics, and a judge of histories.
//!
//! Upstream:   tests against a server, the simulator, later the crash oracle: whoever has seen
//!             clients invoke operations and be answered.
//! Downstream: `wire`, which says what a request asks and what a reply says.
//!
//! ```text
//!   request bytes -> Operation --+                     +-> Stats
//!                                +-> Entry -> History -+
//!   reply bytes   -> Outcome ----+      (judged key    +-> Violation
//!                                        by key)
//! ```
//!
//! Invariants:
//! - I1  Nothing here knows how a server works: only what its clients may see.
//! - I2  What is accepted too freely is said where it is; nothing right is rejected.
//! - I3  No clock, no random source, no I/O.
#![forbid(unsafe_code)]

mod operation;
mod outcome;
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
pub use model::{Item, Mode, Model, Rules, Span, State};
pub use operation::{Operation, operations};
pub use outcome::Outcome;
pub use stats::Stats;
pub use value::Value;
pub use violation::{Contradiction, Violation};

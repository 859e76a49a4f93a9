//! Simulates the whole server on virtual time, from one seed. Several shards and clients run in one
//! thread.
//!
//! Upstream:   the command line (`main`), and tests.
//! Downstream: `kachel_shard` over the I/O backend `kachel_io::Memory`; `kachel_check`, which
//!             judges the histories of the clients.
//!
//! Invariants:
//! - I1  The options alone determine a run. It does not depend on a system clock, an outside random
//!   source, a thread or a memory address.
//! - I2  Every failure is an error that names the command that reproduces it.
#![forbid(unsafe_code)]

mod acknowledged;
mod answer;
mod ask;
mod audit;
mod client;
mod disk;
mod examine;
mod failures;
mod kept;
mod options;
mod queue;
mod record;
mod refused;
mod report;
mod rocks_place;
mod run;
mod server;
mod subject;
mod trace;
mod value;

pub use client::Tally;
pub use examine::{Failure, examine, keep_panics, shrink};
pub use options::{CLIENTS_MAX, EngineChoice, Fault, Faults, Options, REQUESTS};
pub use record::Judged;
pub use report::{Coverage, Report};
pub use run::run;

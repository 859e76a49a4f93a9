//! The whole server on virtual time, from one seed: several shards and clients, in one thread.
//!
//! Upstream:   the command line (`main`), and tests.
//! Downstream: `kachel_shard` on the doors of `kachel_io::Memory`; `kachel_check` judges what the
//!             clients saw.
//!
//! Invariants:
//! - I1  A run follows from its options alone: no clock, no random source, no thread, no address.
//! - I2  Whatever is wrong is an error that names the one command which shows it again.
#![forbid(unsafe_code)]

mod answer;
mod ask;
mod audit;
mod client;
mod delaying;
mod examine;
mod options;
mod queue;
mod record;
mod refused;
mod report;
mod run;
mod server;
mod trace;
mod value;

pub use client::Tally;
pub use examine::{Failure, examine, keep_panics, shrink};
pub use options::{CLIENTS_MAX, Fault, Faults, Options, REQUESTS};
pub use record::Judged;
pub use report::{Coverage, Report};
pub use run::run;

//! The smart pipe, as the server sees it: a program in the driver of a network card, and the table
//! that it answers from.
//!
//! Upstream:   `kachel` loads it; `cache` and `shard` use it as their store of copies.
//! Downstream: the program in `bpf/`, which reads the table.
//!
//! Architecture invariants:
//! - The server writes the table, and the program reads it. The program writes only counts.
//! - The table has no item that the server does not have: a copy is dropped before its item
//!   changes (`kachel_engine::Copies`).
//! - Nothing of the program stays when the process ends: program, maps and link have no name.

#![forbid(unsafe_code)]

mod counts;
mod layout;
mod load;
mod read_deltas;
mod losses;
mod places;
mod read_copies;
mod recent;
mod table;
#[cfg(test)]
mod tests;

pub use counts::PipeCounts;
pub use layout::VALUE_BYTES_MAX;
pub use load::{LoadError, Mode, Program, Trial};
pub use losses::{Losses, Lost};
pub use places::{PipeNetwork, Place, Speaks};
pub use read_deltas::{KeyReads, ReadDeltas};
pub use table::{Items, Pipe, PipeOptions, SwitchError};

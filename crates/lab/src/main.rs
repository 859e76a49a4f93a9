//! The binary `kachel-lab`.
//!
//! Upstream:   the command line; `kachel load` executes this binary with its own arguments.
//! Downstream: the library of this crate.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    kachel_lab::run(std::env::args_os().skip(1))
}

//! The binary `kachel-lab`: starts a subcommand. It contains no server.
//!
//! Upstream:   the command line; `kachel load` executes this binary with its own arguments.
//! Downstream: `kachel-load`, the load generator.
//!
//! Invariants:
//! - I1  The arguments after a subcommand are passed on without parsing.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Exit code of sysexits.h, as `kachel` uses it.
const EXIT_USAGE: u8 = 64;

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    let Some(first) = words.next() else { return print(&usage()) };
    match first.to_str() {
        Some("load") => kachel_load::run(words), // I1
        Some("help" | "-h" | "--help") => print(&usage()),
        Some("version" | "-V" | "--version") => print(&format!("kachel-lab {VERSION}\n")),
        _ => refuse(&first),
    }
}

fn usage() -> String {
    format!(
        "kachel-lab {VERSION}: measures servers with memcached's protocol\n\n\
         kachel-lab load [options]   send load to a server and measure it\n\
         kachel-lab version          print the version\n\n\
         `kachel-lab load --help` lists the options. `kachel load` is the same command.\n"
    )
}

/// Prints an answer. A reader that closes the pipe early is not an error.
fn print(text: &str) -> ExitCode {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    }
}

fn refuse(word: &OsString) -> ExitCode {
    let word = word.display();
    eprintln!("kachel-lab: {word} is not a subcommand; see `kachel-lab --help`");
    ExitCode::from(EXIT_USAGE)
}

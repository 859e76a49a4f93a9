//! The server binary: picks the subcommand and starts it.
//!
//! Upstream:   the command line, and the name by which the binary was called.
//! Downstream: `serve` runs the server; `load` executes the load generator of `kachel-lab`;
//!             `probe` asks a server; `kachel_top` shows one in a terminal; `verify` and `backup`
//!             read a data directory.
#![forbid(unsafe_code)]
// Lines of the server have a time and a level: `say!`.
#![deny(clippy::print_stderr)]

/// Writes a line to the log: a level, then the words of `format!`. Before them, `fields:` and a
/// slice of fields may stand, which only lines of JSON have.
macro_rules! say {
    ($level:ident, fields: $fields:expr, $($text:tt)*) => {
        kachel_host::log(kachel_host::Level::$level, format_args!($($text)*), $fields)
    };
    ($level:ident, $($text:tt)*) => {
        kachel_host::log(kachel_host::Level::$level, format_args!($($text)*), &[])
    };
}

mod admin;
mod backup;
mod caches;
mod client_lines;
mod failure;
mod flash;
mod listeners;
mod live_page;
mod load;
mod manager;
mod obtained;
mod pipe;
mod probe;
mod reload;
mod restart;
mod rings;
mod rocks;
mod serve;
mod shard_options;
mod shards;
mod tls;
mod upkeep;
mod users;
mod verify;

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use kachel_options::{Command, EngineMode, ServeOptions};

#[expect(clippy::print_stderr, reason = "the refusal of a command is no line of the log")]
fn main() -> ExitCode {
    let mut words = std::env::args_os();
    let called_as = words.next().unwrap_or_else(|| "kachel".into());
    match kachel_options::parse(words, &called_as) {
        Ok(Command::Serve(options)) => serve(*options),
        Ok(Command::Load(words)) => load::run(words),
        Ok(Command::Probe(words)) => probe::run(words),
        Ok(Command::Top(words)) => kachel_top::top(&words),
        Ok(Command::Verify(words)) => verify::run(words),
        Ok(Command::Backup(words)) => backup::run(words),
        Ok(Command::Help(text) | Command::Version(text) | Command::License(text)) => print(&text),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(error.exit_code)
        }
    }
}

/// Serves with the engines that the options name.
fn serve(options: ServeOptions) -> ExitCode {
    kachel_host::set_log(options.log_format, options.verbosity);
    match options.engine {
        EngineMode::Cache | EngineMode::Store => serve::run(&caches::opener(&options), options),
        EngineMode::Flash => match flash::opener(&options) {
            Ok(opener) => serve::run(&opener, options),
            Err(failure) => serve::refuse(&failure, options.called_as),
        },
        EngineMode::Rocksdb => match rocks::opener(&options) {
            Ok(opener) => serve::run(&opener, options),
            Err(failure) => serve::refuse(&failure, options.called_as),
        },
    }
}

/// Prints `text`. A reader that closes the pipe early is not a failure.
fn print(text: &str) -> ExitCode {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    }
}

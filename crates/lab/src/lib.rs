//! The laboratory: starts a subcommand of `kachel-lab`. It contains no server.
//!
//! Upstream:   the binary `kachel-lab`, with its command line.
//! Downstream: `kachel-load`, the load generator; a module for each other subcommand; `experiment`,
//!             `chart` and `ticks`, which several use.
//!
//! Invariants:
//! - I1  The arguments after a subcommand are passed on without parsing.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

mod cost;
mod experiment;
mod run;
mod report;
mod misses;
mod power;
mod breakdown;
mod chart;
mod ticks;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Exit code of sysexits.h, as `kachel` uses it.
const EXIT_USAGE: u8 = 64;

/// Runs `kachel-lab` with the arguments that follow its name. Returns the exit code of sysexits.h.
pub fn run(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    let Some(first) = words.next() else { return print(&usage()) };
    match first.to_str() {
        Some("load") => kachel_load::run(words), // I1
        Some("run") => run::run(words),
        Some("report") => report::run(words),
        Some("cost") => cost::run(words),
        Some("misses") => misses::run(words),
        Some("packets") => kachel_load::packets::run(words), // I1
        Some("power") => power::run(words),
        Some("breakdown") => breakdown::run(words),
        Some("help" | "-h" | "--help") => print(&usage()),
        Some("version" | "-V" | "--version") => print(&format!("kachel-lab {VERSION}\n")),
        _ => refuse(&first),
    }
}

/// The options of all subcommands, from which a package makes its man pages.
pub fn command_line() -> clap::Command {
    let load = kachel_load::command_line().name("load").bin_name("kachel-lab load");
    let packets = kachel_load::packets::command_line();
    let packets = packets.name("packets").bin_name("kachel-lab packets");
    clap::Command::new("kachel-lab")
        .version(VERSION)
        .about("Measures servers with memcached's protocol")
        .disable_help_subcommand(true)
        .subcommand(load)
        .subcommand(run::command_line().name("run"))
        .subcommand(report::command_line().name("report"))
        .subcommand(cost::command_line().name("cost"))
        .subcommand(misses::command_line().name("misses"))
        .subcommand(packets)
        .subcommand(power::command_line().name("power"))
        .subcommand(breakdown::command_line().name("breakdown"))
}

fn usage() -> String {
    format!(
        "kachel-lab {VERSION}: measures servers with memcached's protocol\n\n\
         kachel-lab load [options]   send load to a server and measure it\n\
         kachel-lab run NAME         run an experiment and write its raw data\n\
         kachel-lab report DIR...    draw the results of experiments\n\
         kachel-lab cost [options]   compare what a service costs with different servers\n\
         kachel-lab misses TRACE...  count the misses of eviction policies over traces\n\
         kachel-lab packets [options] send GETs over UDP as frames of its own and measure\n\
         kachel-lab power -- COMMAND measure power and energy while a command runs\n\
         kachel-lab breakdown --pid P show where the time of a server process goes\n\
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

/// Runs a subcommand: parses its options, and prints the result or the error.
fn with_options<O: clap::FromArgMatches>(
    command: clap::Command,
    words: impl Iterator<Item = OsString>,
    work: impl FnOnce(&O) -> Result<String, String>,
) -> ExitCode {
    let name = command.get_name().to_owned();
    let words = std::iter::once(OsString::from(&name)).chain(words);
    let parsed = command.try_get_matches_from(words).and_then(|all| O::from_arg_matches(&all));
    let options = match parsed {
        Ok(options) => options,
        Err(error) => {
            // A closed standard output leaves nowhere to report the error.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { EXIT_USAGE } else { 0 });
        }
    };
    match work(&options) {
        Ok(text) => print(&text),
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::from(EXIT_USAGE)
        }
    }
}

fn refuse(word: &OsString) -> ExitCode {
    let word = word.display();
    eprintln!("kachel-lab: {word} is not a subcommand; see `kachel-lab --help`");
    ExitCode::from(EXIT_USAGE)
}

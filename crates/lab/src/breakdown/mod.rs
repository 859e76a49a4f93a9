//! `kachel-lab breakdown`: where the time of a server goes, for any process.
//!
//! Upstream:   the command line.
//! Downstream: `measure` watches the process, `print` shows what it found.
//!
//! ```text
//!   kernel: bpf/breakdown.c --records--> probe --samples--> cpu ---+--> print, --json
//!                                              --calls----> wall --+
//!                           names: symbols, calls    parts: parts.toml
//! ```
//! Without the cargo feature `breakdown`, only the options are here.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, ValueEnum};

#[cfg(feature = "breakdown")]
mod measure;
#[cfg(feature = "breakdown")]
mod print;
#[cfg(feature = "breakdown")]
mod probe;
#[cfg(feature = "breakdown")]
mod cpu;
#[cfg(feature = "breakdown")]
mod wall;
#[cfg(feature = "breakdown")]
mod spans;
#[cfg(feature = "breakdown")]
mod parts;
#[cfg(feature = "breakdown")]
mod symbols;
#[cfg(feature = "breakdown")]
mod calls;
#[cfg(feature = "breakdown")]
mod process;

const HELP: &str = "\
Two views, one after the other, each for --duration-s:
  time on a core   sampled stacks, sorted into network, concurrency control, memory management,
                   key-value work, other kernel work, and code without symbols: 100 % of the busy
                   time. Interrupts that came in meanwhile are named apart.
  time by clock    system calls, with those of several threads merged where they overlap; threads
                   that run, wait for a core, or sleep, by system call

It needs root, or CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE and CAP_SYSLOG. The second view needs the files of
tracefs as well; where nobody has mounted them, it mounts them for itself, which needs CAP_SYS_ADMIN.
Without symbols of the program, only the kernel's work is told apart. Tracing slows the system calls of
all processes during the second view.

Example:
  kachel-lab breakdown --pid $(pidof memcached) --duration-s 10 --json breakdown.json";

/// The views to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum View {
    /// Time on a core.
    Cpu,
    /// Time by the clock.
    Wall,
    /// One after the other.
    Both,
}

/// The options of `kachel-lab breakdown`.
#[derive(Debug, Parser)]
#[command(
    name = "kachel-lab breakdown",
    bin_name = "kachel-lab breakdown",
    about = "Shows where the time of a server process goes.",
    after_help = HELP
)]
struct Options {
    /// The process.
    #[arg(long, value_name = "P")]
    pid: u32,
    /// Seconds of each view; less if the process ends.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    duration_s: u64,
    /// The views.
    #[arg(long, value_name = "VIEW", value_enum, default_value_t = View::Both)]
    view: View,
    /// Samples a second of each core.
    #[arg(long, value_name = "N", default_value_t = 1999, value_parser = clap::value_parser!(u64).range(1..=20_000))]
    hz: u64,
    /// Functions and system calls that are shown.
    #[arg(long, value_name = "N", default_value_t = 20)]
    top: usize,
    /// A table that sorts names into parts, instead of the built-in one
    /// (crates/lab/src/breakdown/parts.toml).
    #[arg(long, value_name = "FILE")]
    parts: Option<PathBuf>,
    /// A file that gets the figures.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs `kachel-lab breakdown` with the arguments that follow it.
pub(crate) fn run(words: impl Iterator<Item = OsString>) -> ExitCode {
    crate::with_options(command_line(), words, found)
}

/// The options of `kachel-lab breakdown`.
pub(crate) fn command_line() -> clap::Command {
    Options::command()
}

#[cfg(feature = "breakdown")]
fn found(options: &Options) -> Result<String, String> {
    let report = measure::measure(options)?;
    if let Some(path) = &options.json {
        let json = serde_json::to_string_pretty(&report).expect("figures are plain data") + "\n";
        std::fs::write(path, json).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(print::text(&report))
}

#[cfg(not(feature = "breakdown"))]
fn found(_: &Options) -> Result<String, String> {
    Err("this kachel-lab was built without the cargo feature `breakdown`".to_owned())
}

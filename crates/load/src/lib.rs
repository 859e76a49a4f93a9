//! The load generator: `kachel load`, `kachel load replay FILE`, `kachel load agent` and
//! `kachel load presets`.
//!
//! Upstream:   `kachel-lab` hands over the arguments after `load`.
//! Downstream: any server that speaks memcached's text, meta or binary protocol, over TCP,
//!             UDP or a unix socket, or over TLS in a build with the feature `tls`.
//!
//! ```text
//! options -> session -> one thread each:  source -> drive <-> links -> server
//!               |                               |
//!             meter (the server's CPU time)         tally -> report (text, JSON)
//! ```
//!
//! Sources are a steady mix (`steady`: keys, popularity, shares of requests, schedule), its
//! preload, and a recorded trace (`trace`, `replay`). `step` measures a mix once, `sweep` at
//! several rates, `agent` on several machines. A preset is a list of options (`preset`). Response
//! times count from the intended send time, so a stall of the server also counts against the
//! requests that could not be sent meanwhile (no coordinated omission).
#![forbid(unsafe_code)]

mod address;
mod agent;
mod answer;
mod books;
mod client;
mod clock;
mod connection;
mod connects;
mod control;
mod distribution;
mod drive;
mod flow;
#[cfg(test)]
mod honesty;
mod idle;
mod inserts;
mod ketama;
mod keys;
mod limits;
mod link;
mod member;
mod meter;
mod mix;
#[cfg(not(feature = "tls"))]
mod no_tls;
mod options;
mod part;
/// A generator of GETs over UDP that makes its own frames.
pub mod packets;
mod popularity;
mod preload;
mod preset;
mod process;
mod protocol;
mod random;
mod replay;
mod reply;
mod report;
mod request;
mod schedule;
mod search;
mod server;
mod session;
mod steady;
mod step;
mod sweep;
mod tally;
#[cfg(feature = "tls")]
mod tls;
mod trace;
mod transport;
mod ttl;
mod zipf;

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{CommandFactory, Parser};

use crate::agent::Leader;
use crate::control::Alone;
#[cfg(not(feature = "tls"))]
use crate::no_tls as tls;
use crate::options::{Command, CommonOptions, Options, Pace, ReplayOptions, SteadyOptions};
use crate::part::Part;
use crate::preload::Preload;
use crate::replay::{Pacing, Replay, Share};
use crate::report::{Report, Server, SweepStep};
use crate::session::{Measured, Phases, Session};
use crate::step::Step;
use crate::transport::Transport;

pub use crate::report::PERCENTILES;
pub use crate::search::{Promise, Scan, Statistic};
pub use crate::trace::{Effect, Facts, Oddities, Record, Trace};

/// Exit status when the options are invalid or the server does not answer.
const EXIT_USAGE: u8 = 2;

/// Runs the load generator with the arguments that follow `kachel load`.
///
/// Prints the result on standard output, and progress and errors on standard error. Returns
/// success, 1 if there were errors while measuring, 2 if the options are invalid or the run could
/// not begin.
pub fn run(args: impl Iterator<Item = OsString>) -> ExitCode {
    let words = std::iter::once(OsString::from("kachel load")).chain(args).collect();
    let words = match preset::expand(words) {
        Ok(words) => words,
        Err(error) => return refuse(&error),
    };
    let mut options: Options = match parsed(&words) {
        Ok(options) => options,
        Err(code) => return code,
    };
    if let Err(error) = options.steady.settle() {
        return refuse(&error);
    }
    let finished = match &options.command {
        None => run_steady(&options.steady, &words[1..]),
        Some(Command::Replay(replay)) => run_replay(replay),
        Some(Command::Presets) => {
            say(&preset::list());
            Ok(true)
        }
        Some(Command::Agent(agent)) => {
            agent::serve(agent, &mut |line| say(&format_args!("agent      {line}\n")))
                .map(|()| true)
        }
    };
    match finished {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(words) => refuse(&words),
    }
}

/// Parses a command line. If that fails, prints the reason, or the help that was wanted, and
/// returns the exit status.
fn parsed<P: Parser>(
    words: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> Result<P, ExitCode> {
    P::try_parse_from(words).map_err(|error| {
        // A closed standard output leaves nowhere to report the error.
        let _ = error.print();
        ExitCode::from(if error.use_stderr() { EXIT_USAGE } else { 0 })
    })
}

/// Checks the arguments that follow `kachel load`, without a connection.
///
/// Errors: they are invalid; the message is for the user.
pub fn check(args: &[String]) -> Result<(), String> {
    let own = std::iter::once("kachel load".to_owned());
    let words = preset::expand(own.chain(args.iter().cloned()).map(OsString::from).collect())?;
    let options = Options::try_parse_from(&words).map_err(|error| error.to_string())?;
    match &options.command {
        None => options.steady.check(),
        Some(Command::Replay(replay)) => replay.check(),
        Some(Command::Presets | Command::Agent(_)) => Ok(()),
    }
}

fn refuse(words: &str) -> ExitCode {
    eprintln!("kachel load: {words}");
    ExitCode::from(EXIT_USAGE)
}

/// The options of `kachel load`, from which a package makes its man pages.
pub fn command_line() -> clap::Command {
    Options::command()
}

/// Makes the measurements of a run.
enum Measurer<'o> {
    Alone(Box<Step<'o>>),
    WithAgents(Box<Leader<'o>>),
}

impl<'o> Measurer<'o> {
    /// `words` is the command line, for the agents.
    fn new(options: &'o SteadyOptions, words: &[OsString]) -> Result<Self, String> {
        options.check()?;
        if options.agents.is_empty() {
            return Ok(Self::Alone(Box::new(Step::new(options, Some(Part::WHOLE))?)));
        }
        let words = words.iter().map(|word| word.to_str().map(str::to_owned));
        let words: Option<Vec<String>> = words.collect();
        let words = words.ok_or("--agents: the options must be text")?;
        Ok(Self::WithAgents(Box::new(Leader::new(options, &words)?)))
    }

    fn measure(&mut self, rate: Option<f64>) -> Result<(Server, Measured), String> {
        match self {
            Self::Alone(step) => step.measure(rate, &mut Alone),
            Self::WithAgents(leader) => leader.measure(rate),
        }
    }
}

fn run_steady(options: &SteadyOptions, words: &[OsString]) -> Result<bool, String> {
    let mut measurer = Measurer::new(options, words)?;
    if options.search.is_some() || options.scan.is_some() {
        let is_shown = !options.common.quiet;
        let mut progress = |step: &SweepStep| {
            if is_shown {
                eprintln!("{step}");
            }
        };
        let report = sweep::run(
            options,
            &mut |rate| measurer.measure(rate),
            &as_json(options),
            &mut progress,
        )?;
        return finish(&report, &options.common);
    }
    let (server, measured) = measurer.measure(options.rate)?;
    let report = Report::new("steady", as_json(options), server, &measured, true);
    if let (true, Some(filled)) = (options.preload_only, &measured.preload) {
        say(&format_args!("preload    {} keys in {:.2} s\n", filled.keys, filled.elapsed_s));
        write_json(options.common.json.as_deref(), &report)?;
        return Ok(measured.tally.errors.total() == 0);
    }
    finish(&report, &options.common)
}

fn run_replay(options: &ReplayOptions) -> Result<bool, String> {
    options.check()?;
    let trace = Trace::read(&options.file, options.value_scale, options.limit)?;
    if options.facts {
        say(&format_args!("{}\n", as_json(&trace.facts)));
        return Ok(true);
    }
    let is_paced = options.pace == Pace::Trace;
    if is_paced {
        replay::check_speed(&trace, options.speed)?;
    }
    let session = Session::open(&options.common, Transport::plain(&options.common)?, &mut Alone)?;
    let server = Server::of(&session);
    let (open_fill, rest_ns) = (false, 0);
    let phases = Phases { warm_up_ns: 0, duration_ns: None, open: is_paced, open_fill, rest_ns };
    let threads = options.common.threads as u64;
    let unix_start = SystemTime::now().duration_since(UNIX_EPOCH);
    let unix_start_s = unix_start.map_or(0, |since| since.as_secs() as u32);
    let make_preload = |_: usize, _: u64| -> Preload { unreachable!("a replay has no preload") };
    let make_source = |index: usize, start_ns: u64, _until_ns: u64| {
        let share = Share { index: index as u64, threads };
        let pacing = is_paced.then_some(Pacing { start_ns, speed: options.speed });
        Replay::new(&trace, share, pacing, options.common.check, unix_start_s)
    };
    let measured = session.run(phases, None, &make_preload, &make_source, &mut Alone)?;
    let mut report = Report::new("replay", as_json(options), server, &measured, false);
    report.trace = Some(trace.facts.clone());
    finish(&report, &options.common)
}

fn as_json(options: &impl serde::Serialize) -> serde_json::Value {
    serde_json::to_value(options).expect("options are plain data")
}

/// Prints the report and writes the file of `--json`; true if nothing went wrong.
fn finish(report: &Report, options: &CommonOptions) -> Result<bool, String> {
    say(report);
    write_json(options.json.as_deref(), report)?;
    Ok(report.is_clean())
}

/// Writes the file of `--json`, if there is one.
///
/// Errors: those of the file system, as a message for the user.
fn write_json(path: Option<&Path>, report: &impl serde::Serialize) -> Result<(), String> {
    let Some(path) = path else { return Ok(()) };
    let text = serde_json::to_string_pretty(report).expect("a report is plain data");
    std::fs::write(path, text + "\n").map_err(|error| format!("--json {}: {error}", path.display()))
}

/// Prints a result. A reader that closes the pipe early is not an error.
fn say(words: &impl std::fmt::Display) {
    let _ = write!(std::io::stdout(), "{words}");
}

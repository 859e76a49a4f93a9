//! `kachel-lab power`: the power and energy of this machine while a command runs.
//!
//! Upstream:   the command line.
//! Downstream: `sampler` samples meters meanwhile, `energy` adds the samples up.
//!
//! ```text
//!   idle --------- the command runs ---------> report
//!   |  samples every interval, one thread a meter  |
//! ```
//! A meter that fails does not end the command: the report says how much of the time it covers.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use clap::{CommandFactory as _, Parser};
use serde::Serialize;

mod energy;
mod meter;
mod sampler;
mod serial;

pub(crate) use energy::Energy;
pub(crate) use meter::MeterName;
use meter::recorded;
pub(crate) use sampler::unix_s;
use sampler::{Sampled, Taken};

/// Energy is computed only if a meter covers this share of the time.
const COVERED_MIN: f64 = 0.95;

const HELP: &str = "\
Meters
  powercap                       energy counters of the processors (RAPL; usually needs root)
  hwmon                          all power sensors that the kernel shows
  ipmi                           the whole computer, by ipmitool
  nvidia                         all graphics processors, by nvidia-smi
  mcp39f511:DEVICE[,BAUD]        Microchip's power monitor on a serial line; 115200 baud
  wt210:DEVICE[,BAUD]            Yokogawa's power meter on a serial line; 9600 baud. On its panel:
                                 mode 488.2, 8 data bits, no parity, no handshake
  command:COMMAND                a command that prints watts; several lines are added
  csv:FILE[,OFFSET_S[,DRIFT_PPM]]
                                 recorded elsewhere: lines \"unix_s,watts\"; the offset is added to their
                                 times, the drift is how many microseconds a second their clock is slow
  model:IDLE_W,BUSY_W            no meter: an estimate from the processor time of this machine
Without --meter: powercap, or else hwmon. They do not see the whole computer.

net         power above that of the idle machine
J           energy while the command runs; only if the meter covers 95 % of that time

Examples:
  kachel-lab power --meter ipmi -- kachel-lab load --connections 50 --json run.json
  kachel-lab power --meter model:40,90 --requests run.json -- kachel-lab load --json run.json

The exit status is that of the command.";

/// The options of `kachel-lab power`.
#[derive(Debug, Parser)]
#[command(
    name = "kachel-lab power",
    bin_name = "kachel-lab power",
    about = "Measures the power of this machine while a command runs.",
    after_help = HELP
)]
struct Options {
    /// A meter, see below; may be repeated.
    #[arg(long = "meter", value_name = "METER", value_parser = MeterName::parse)]
    meters: Vec<MeterName>,
    /// Seconds of the idle machine before the command.
    #[arg(long, value_name = "N", default_value_t = 5.0, value_parser = seconds)]
    idle_s: f64,
    /// Milliseconds between two samples.
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    every_ms: u64,
    /// The file that the command writes with `kachel-lab load --json`: its requests are divided by
    /// the energy.
    #[arg(long, value_name = "FILE")]
    requests: Option<PathBuf>,
    /// A file that gets the figures.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The command with its arguments.
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// The figures of one meter. Watts are means.
#[derive(Debug, Serialize)]
struct Figures {
    meter: String,
    /// Computed from something else than power.
    is_estimate: bool,
    idle_w: Option<f64>,
    loaded_w: Option<f64>,
    net_w: Option<f64>,
    /// The share of the command's time for which there are samples.
    covered: f64,
    joules: Option<f64>,
    joules_per_request: Option<f64>,
    requests_per_joule: Option<f64>,
    net_joules_per_request: Option<f64>,
    /// The last reason why a sample was missing.
    error: Option<String>,
}

#[derive(Debug, Serialize)]
struct Report {
    seconds: f64,
    requests: Option<u64>,
    meters: Vec<Figures>,
}

/// Runs `kachel-lab power` with the arguments that follow it. Returns the command's exit code, or
/// 64 if it was not run.
pub(crate) fn run(words: impl Iterator<Item = OsString>) -> ExitCode {
    let mut code = 0;
    let finished = crate::with_options(command_line(), words, |options: &Options| {
        let (report, exit_code) = measure(options)?;
        code = exit_code;
        if let Some(path) = &options.json {
            let json =
                serde_json::to_string_pretty(&report).expect("figures are plain data") + "\n";
            std::fs::write(path, json).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        Ok(text(&report))
    });
    if finished == ExitCode::SUCCESS { ExitCode::from(code) } else { finished }
}

/// The options of `kachel-lab power`.
pub(crate) fn command_line() -> clap::Command {
    Options::command()
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.0..=3600.0).contains(&seconds) { Ok(seconds) } else { Err("not 0 to 3600".to_owned()) }
}

/// Samples all meters while the machine is idle and while the command runs.
///
/// Errors: a meter or the command cannot be started.
fn measure(options: &Options) -> Result<(Report, u8), String> {
    let names = match &options.meters[..] {
        [] => vec![MeterName::usual()?],
        names => names.to_vec(),
    };
    let interval = Duration::from_millis(options.every_ms);
    let (run, series) = sampled(&names, interval, || execute(options))?;
    let run = run?;
    let requests = options.requests.as_deref().map(requests_in).transpose()?;
    let mut report = Report { seconds: run.end_s - run.begin_s, requests, meters: Vec::new() };
    for (name, series) in names.iter().zip(series) {
        report.meters.push(figures(name, series, &run, requests));
    }
    Ok((report, run.exit_code))
}

/// The power that a meter measured during some work.
pub(crate) struct Series {
    pub(crate) energy: Energy,
    /// The last reason why a sample was missing.
    pub(crate) error: Option<String>,
}

/// Samples all meters while `work` runs. Returns a series for each meter.
///
/// Errors: a meter cannot be opened; then `work` does not run. Or a recording cannot be read.
pub(crate) fn sampled<T>(
    names: &[MeterName],
    interval: Duration,
    work: impl FnOnce() -> T,
) -> Result<(T, Vec<Series>), String> {
    let mut meters = Vec::new();
    for name in names {
        meters.push(name.open().map_err(|error| format!("--meter {name}: {error}"))?);
    }
    let ended = Arc::new(AtomicBool::new(false));
    let sampled: Vec<Option<Sampled>> =
        meters.into_iter().map(|meter| Some(Sampled::begin(meter?, interval, &ended))).collect();
    sampled.iter().flatten().for_each(Sampled::await_first);
    let result = work();
    ended.store(true, Relaxed);
    let taken: Vec<Option<Taken>> =
        sampled.into_iter().map(|sampled| Some(sampled?.end())).collect();
    let mut all = Vec::new();
    for (name, taken) in names.iter().zip(taken) {
        let taken = match (taken, name) {
            (Some(taken), _) => taken,
            (None, MeterName::Csv { file, offset_s, drift_ppm }) => {
                Taken { samples: recorded(file, *offset_s, *drift_ppm)?, error: None }
            }
            (None, name) => unreachable!("{name:?} has a thread"),
        };
        let energy = Energy::of(&taken.samples, interval.as_secs_f64());
        all.push(Series { energy, error: taken.error });
    }
    Ok((result, all))
}

/// When the command ran, in Unix seconds.
struct Run {
    idle_s: f64,
    begin_s: f64,
    end_s: f64,
    exit_code: u8,
}

/// Waits while the machine is idle, then runs the command.
fn execute(options: &Options) -> Result<Run, String> {
    let idle_s = unix_s();
    std::thread::sleep(Duration::from_secs_f64(options.idle_s));
    let begin_s = unix_s();
    let status = Command::new(&options.command[0]).args(&options.command[1..]).status();
    let status = status.map_err(|error| format!("{}: {error}", options.command[0].display()))?;
    let exit_code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    Ok(Run { idle_s, begin_s, end_s: unix_s().max(begin_s + 1e-6), exit_code })
}

/// The requests in a report of `kachel-lab load`.
fn requests_in(path: &std::path::Path) -> Result<u64, String> {
    let named = |error: &dyn std::fmt::Display| format!("--requests {}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| named(&error))?;
    let report: serde_json::Value = serde_json::from_str(&text).map_err(|error| named(&error))?;
    let requests = report["result"]["requests"].as_u64().filter(|requests| *requests > 0);
    requests.ok_or_else(|| named(&"no requests in it"))
}

fn figures(name: &MeterName, series: Series, run: &Run, requests: Option<u64>) -> Figures {
    let Series { energy, error } = series;
    let idle_w = energy.power(run.idle_s, run.begin_s).map(|power| power.watts);
    let loaded = energy.power(run.begin_s, run.end_s);
    let (loaded_w, covered) =
        (loaded.map(|power| power.watts), loaded.map_or(0.0, |it| it.covered));
    let net_w = loaded_w.zip(idle_w).map(|(loaded, idle)| loaded - idle);
    let seconds = run.end_s - run.begin_s;
    let joules = loaded_w.filter(|_| covered >= COVERED_MIN).map(|watts| watts * seconds);
    let net_joules = net_w.filter(|_| joules.is_some()).map(|watts| watts * seconds);
    let per_request = |joules: f64| requests.map(|requests| joules / requests as f64);
    Figures {
        meter: name.to_string(),
        is_estimate: name.is_estimate(),
        idle_w,
        loaded_w,
        net_w,
        covered,
        joules,
        joules_per_request: joules.and_then(per_request),
        requests_per_joule: joules.and_then(per_request).map(|joules| 1.0 / joules),
        net_joules_per_request: net_joules.and_then(per_request),
        error,
    }
}

/// The report, a paragraph for each meter.
fn text(report: &Report) -> String {
    let mut text = format!("time       {:.2} s\n", report.seconds);
    if let Some(requests) = report.requests {
        let _ = writeln!(text, "requests   {requests}");
    }
    let shown = |value: Option<f64>, unit: &str| {
        value.map_or("unknown".to_owned(), |value| format!("{value:.2} {unit}"))
    };
    for meter in &report.meters {
        let label = if meter.is_estimate { "  (an estimate, not measured)" } else { "" };
        let _ = writeln!(text, "\nmeter      {}{label}", meter.meter);
        let _ = writeln!(
            text,
            "power      idle {}, loaded {}, net {}",
            shown(meter.idle_w, "W"),
            shown(meter.loaded_w, "W"),
            shown(meter.net_w, "W")
        );
        let _ = writeln!(text, "energy     {}", shown(meter.joules, "J"));
        if report.requests.is_some() {
            let micro = |joules: Option<f64>| shown(joules.map(|joules| joules * 1e6), "uJ");
            let _ = writeln!(
                text,
                "request    {}, net {}; {}",
                micro(meter.joules_per_request),
                micro(meter.net_joules_per_request),
                shown(meter.requests_per_joule, "requests/J")
            );
        }
        if meter.covered < 1.0 {
            let _ = writeln!(text, "covered    {:.0} % of the time", meter.covered * 100.0);
        }
        if let Some(error) = &meter.error {
            let _ = writeln!(text, "missing    {error}");
        }
    }
    text
}

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
use std::path::{Path, PathBuf};
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
use energy::Power;
pub(crate) use meter::MeterName;
use meter::recorded;
pub(crate) use sampler::unix_s;
use sampler::{Sampled, Taken};

/// Energy is computed only if a meter covers this share of the time.
pub(crate) const COVERED_MIN: f64 = 0.95;

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
request     energy of the time in which the requests of --requests were counted, without the preload
            and the warm-up, divided by their number; only if the meter covers 95 % of that time

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
    /// The file that the command writes with `kachel-lab load --json`: it says how many requests
    /// were counted and when.
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
    /// Those while the requests were counted.
    requests_joules: Option<f64>,
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
    /// The time in which they were counted.
    requests_s: Option<f64>,
    /// The reason why there are none, although `--requests` names a file.
    requests_error: Option<String>,
    meters: Vec<Figures>,
}

/// Runs `kachel-lab power` with the arguments that follow it. Returns the command's exit code; 1 if
/// that is 0 and the file of `--json` cannot be written; 64 if the command was not run.
pub(crate) fn run(words: impl Iterator<Item = OsString>) -> ExitCode {
    let mut code = 0;
    let finished = crate::with_options(command_line(), words, |options: &Options| {
        let (report, exit_code) = measure(options)?;
        code = exit_code;
        if let Some(path) = &options.json {
            let json =
                serde_json::to_string_pretty(&report).expect("figures are plain data") + "\n";
            if let Err(error) = std::fs::write(path, json) {
                eprintln!("kachel-lab power: --json {}: {error}", path.display());
                code = code.max(1);
            }
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
    // The command has run: a file that is no use takes away none of the meters' figures.
    let (counted, requests_error) = match options.requests.as_deref() {
        None => (None, None),
        Some(path) => match Counted::read(path, &run) {
            Ok(counted) => (Some(counted), None),
            Err(error) => (None, Some(format!("--requests {}: {error}", path.display()))),
        },
    };
    let mut report = Report {
        seconds: run.end_s - run.begin_s,
        requests: counted.map(|counted| counted.requests),
        requests_s: counted.map(|counted| counted.seconds),
        requests_error,
        meters: Vec::new(),
    };
    for (name, series) in names.iter().zip(series) {
        report.meters.push(figures(name, series, &run, counted));
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
/// Errors: a meter cannot be opened; then `work` does not run.
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
                // The figures of the other meters stay.
                match recorded(file, *offset_s, *drift_ppm) {
                    Ok(samples) => Taken { samples, error: None },
                    Err(error) => Taken { samples: Vec::new(), error: Some(error) },
                }
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

/// The requests that `kachel-lab load` counted, and when.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Counted {
    requests: u64,
    /// Unix time.
    begin_s: f64,
    seconds: f64,
}

impl Counted {
    /// Reads a report of `kachel-lab load`.
    ///
    /// Errors: there is none, or the command has not written it in this run.
    fn read(path: &Path, run: &Run) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
        let report: serde_json::Value =
            serde_json::from_str(&text).map_err(|error| error.to_string())?;
        let result = &report["result"];
        let requests = result["requests"].as_u64().filter(|requests| *requests > 0);
        let begin_s = result["begin_unix_s"].as_f64();
        let seconds = result["window_s"].as_f64().filter(|seconds| *seconds > 0.0);
        let requests = requests.ok_or("no requests in it")?;
        let (begin_s, seconds) =
            begin_s.zip(seconds).ok_or("it does not say when they were counted")?;
        if !(run.begin_s..=run.end_s).contains(&begin_s) {
            return Err("its requests were not counted while the command ran".to_owned());
        }
        Ok(Self { requests, begin_s, seconds })
    }
}

fn figures(name: &MeterName, series: Series, run: &Run, counted: Option<Counted>) -> Figures {
    let Series { energy, error } = series;
    let idle_w = energy.power(run.idle_s, run.begin_s).map(|power| power.watts);
    let loaded = energy.power(run.begin_s, run.end_s);
    let loaded_w = loaded.map(|power| power.watts);
    let requests_joules = counted
        .and_then(|it| joules(energy.power(it.begin_s, it.begin_s + it.seconds)?, it.seconds));
    let idle_joules = idle_w.zip(counted).map(|(watts, it)| watts * it.seconds);
    let net_joules = requests_joules.zip(idle_joules).map(|(all, idle)| all - idle);
    let per_request = |joules: f64| counted.map(|it| joules / it.requests as f64);
    Figures {
        meter: name.to_string(),
        is_estimate: name.is_estimate(),
        idle_w,
        loaded_w,
        net_w: loaded_w.zip(idle_w).map(|(loaded, idle)| loaded - idle),
        covered: loaded.map_or(0.0, |power| power.covered),
        joules: loaded.and_then(|power| joules(power, run.end_s - run.begin_s)),
        requests_joules,
        joules_per_request: requests_joules.and_then(per_request),
        requests_per_joule: requests_joules.and_then(per_request).map(|joules| 1.0 / joules),
        net_joules_per_request: net_joules.and_then(per_request),
        error,
    }
}

/// The energy of a phase. `None`: the meter covers too little of it.
fn joules(power: Power, seconds: f64) -> Option<f64> {
    (power.covered >= COVERED_MIN).then_some(power.watts * seconds)
}

/// The report, a paragraph for each meter.
fn text(report: &Report) -> String {
    let mut text = format!("time       {:.2} s\n", report.seconds);
    if let (Some(requests), Some(seconds)) = (report.requests, report.requests_s) {
        let _ = writeln!(text, "requests   {requests} in {seconds:.2} s");
    }
    if let Some(error) = &report.requests_error {
        let _ = writeln!(text, "requests   unknown: {error}");
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

#[cfg(test)]
mod tests {
    use super::energy::Sample;
    use super::*;

    const RUN: Run = Run { idle_s: 0.0, begin_s: 10.0, end_s: 30.0, exit_code: 0 };

    /// 20 W idle, 100 W in the preload of ten seconds, then 40 W.
    #[test]
    fn requests_are_divided_by_the_energy_of_their_own_time() {
        let at = |second: u32| match second {
            0..=10 => 20.0,
            11..=20 => 100.0,
            _ => 40.0,
        };
        let samples: Vec<(f64, Sample)> =
            (0..=30).map(|s| (f64::from(s), Sample::Watts(at(s)))).collect();
        let name = MeterName::parse("command:echo 1").expect("a meter");
        let measured = |until: usize, counted| {
            let energy = Energy::of(&samples[..until], 1.0);
            figures(&name, Series { energy, error: None }, &RUN, counted)
        };
        let counted = Counted { requests: 50, begin_s: 22.0, seconds: 5.0 };
        let all = measured(31, Some(counted));
        let joules = all.joules.expect("covered");
        assert!(joules > 1_300.0, "the command's: {joules}");
        assert_eq!((all.requests_joules, all.joules_per_request), (Some(200.0), Some(4.0)));
        assert_eq!((all.requests_per_joule, all.net_joules_per_request), (Some(0.25), Some(2.0)));
        // A meter that dies has figures for the time before.
        let counted = Counted { begin_s: 12.0, ..counted };
        let dead = measured(20, Some(counted));
        assert_eq!((dead.joules, dead.joules_per_request), (None, Some(10.0)));
        let counted = Counted { begin_s: 18.0, ..counted };
        assert_eq!(measured(20, Some(counted)).joules_per_request, None);
        assert_eq!(measured(31, None).joules_per_request, None);
    }

    #[test]
    fn a_recording_that_cannot_be_read_leaves_the_other_meters() {
        let names = ["csv:/none.csv", "model:40,90"];
        let names = names.map(|name| MeterName::parse(name).expect("a meter"));
        let (done, series) =
            sampled(&names, Duration::from_millis(1), || "done").expect("both open");
        let said = series[0].error.as_deref().expect("there is no such file");
        assert!(done == "done" && said.contains("/none.csv"), "{said}");
        assert_eq!(series[1].error, None);
    }

    #[test]
    fn a_file_of_requests_that_is_of_no_use_says_why() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let report = |requests: u64, begin_s: f64| {
            format!(
                r#"{{"result": {{"requests": {requests}, "begin_unix_s": {begin_s}, "window_s": 2}}}}"#
            )
        };
        std::fs::write(&file, report(7, 12.5)).expect("written");
        let counted = Counted { requests: 7, begin_s: 12.5, seconds: 2.0 };
        assert_eq!(Counted::read(file.path(), &RUN), Ok(counted));
        for (content, named) in [
            (report(7, 9.0), "not counted while the command ran"),
            (report(7, 31.0), "not counted while the command ran"),
            (report(0, 12.5), "no requests"),
            (r#"{"result": {"requests": 7, "window_s": 2}}"#.to_owned(), "when they were counted"),
            ("{".to_owned(), "EOF"),
        ] {
            std::fs::write(&file, &content).expect("written");
            let error = Counted::read(file.path(), &RUN).unwrap_err();
            assert!(error.contains(named), "{content}: {error}");
        }
        assert!(Counted::read(Path::new("/no/such/file"), &RUN).is_err());
    }
}

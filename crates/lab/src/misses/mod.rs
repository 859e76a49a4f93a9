//! `kachel-lab misses`: the misses of eviction policies over recorded traces, at many sizes.
//!
//! Upstream:   the command line, and trace files.
//! Downstream: `simulate` counts; `chart` draws.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use clap::{CommandFactory as _, Parser, ValueEnum};
use serde::Serialize;

mod queues;
mod policy;
mod simulate;

use policy::PolicyName;
use simulate::Requests;

use crate::chart::{Chart, Line};

const HELP: &str = "\
A trace has one request a line: timestamp_s,key,key_size,value_size,client_id,operation,ttl_s (the format of
the Twitter cache traces), or is in libCacheSim's oracleGeneral format; plain or compressed with zstd.

A read that misses is followed by a write. Only reads count. Memory holds keys and values, without any
overhead, and TTLs are ignored, so a server needs more memory for the same misses.

Examples:
  kachel-lab misses recs.csv.zst
  kachel-lab misses recs.csv.zst oltp.csv.zst --policies lru,s3-fifo,belady --memory 0.01,0.1 --out figures";

/// The options of `kachel-lab misses`.
#[derive(Debug, Parser)]
#[command(
    name = "kachel-lab misses",
    bin_name = "kachel-lab misses",
    about = "Counts the misses of eviction policies over traces.",
    after_help = HELP
)]
struct Options {
    /// Traces.
    #[arg(value_name = "TRACE", required = true)]
    traces: Vec<PathBuf>,
    /// Policies, separated by commas; all without this option.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    policies: Vec<PolicyName>,
    /// Sizes of the memory. A number up to 1 is a part of all keys and values of a trace, a greater
    /// one is in bytes.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "0.01,0.02,0.05,0.1,0.2,0.4",
        value_parser = memory
    )]
    memory: Vec<f64>,
    /// Every key takes one place, whatever its size, and memory is in places.
    #[arg(long)]
    objects: bool,
    /// Reads at most this number of requests of each trace.
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// The number of threads; one for each core without this option.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// A folder that gets the figures of each trace as NAME.json and a chart as NAME.svg.
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
}

/// The misses of one policy with one size of memory.
#[derive(Debug, Serialize)]
struct Row {
    policy: String,
    /// The memory, as a part of the footprint.
    part: f64,
    /// In bytes, or in keys with `--objects`.
    memory: u64,
    misses: u64,
    /// Misses to reads.
    ratio: f64,
}

/// The figures of a trace.
#[derive(Debug, Serialize)]
struct Figures {
    trace: String,
    reads: u64,
    keys: usize,
    /// Bytes of all keys with their values; their number with `--objects`.
    footprint: u64,
    rows: Vec<Row>,
}

/// Runs `kachel-lab misses` with the arguments that follow it. Prints tables on standard output,
/// and progress on standard error.
pub(crate) fn run(words: impl Iterator<Item = OsString>) -> ExitCode {
    crate::with_options(command_line(), words, |options: &Options| {
        let mut text = String::new();
        for trace in &options.traces {
            let figures = measure(trace, options)?;
            text.push_str(&table(&figures, options));
            if let Some(folder) = &options.out {
                write(&figures, folder)?;
            }
        }
        Ok(text)
    })
}

/// The options of `kachel-lab misses`.
pub(crate) fn command_line() -> clap::Command {
    Options::command()
}

fn memory(text: &str) -> Result<f64, String> {
    let memory: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    let is_right = memory > 0.0 && memory.is_finite() && (memory <= 1.0 || memory.fract() == 0.0);
    if is_right { Ok(memory) } else { Err("not a part of 1, nor a whole number".to_owned()) }
}

fn policies(options: &Options) -> &[PolicyName] {
    if options.policies.is_empty() { PolicyName::value_variants() } else { &options.policies }
}

fn name(policy: PolicyName) -> String {
    let value = policy.to_possible_value().expect("every policy has a name");
    value.get_name().to_owned()
}

/// Runs the trace against all policies with all sizes, on several threads.
fn measure(path: &Path, options: &Options) -> Result<Figures, String> {
    let requests = Requests::read(path, options.limit, options.objects)?;
    let footprint = requests.footprint as f64;
    let part = |memory: f64| if memory <= 1.0 { memory } else { memory / footprint };
    let jobs: Vec<(PolicyName, f64)> = options
        .memory
        .iter()
        .flat_map(|memory| policies(options).iter().map(move |policy| (*policy, part(*memory))))
        .collect();
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let rows = Mutex::new(Vec::new());
    let work = || {
        while let Some((policy, part)) = jobs.get(next.fetch_add(1, Relaxed)) {
            let bytes = (footprint * part).round() as u64;
            let misses = requests.misses(*policy, bytes);
            let ratio = misses as f64 / requests.reads as f64;
            let row = Row { policy: name(*policy), part: *part, memory: bytes, misses, ratio };
            rows.lock().unwrap_or_else(PoisonError::into_inner).push(row);
            let done = done.fetch_add(1, Relaxed) + 1;
            eprintln!("{}: {done} of {} runs done", path.display(), jobs.len());
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = options.threads.map_or(cores, usize::from).min(jobs.len());
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let mut rows = rows.into_inner().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(rows.len(), jobs.len(), "every run has its row");
    let order = |row: &Row| {
        jobs.iter().position(|job| (name(job.0), job.1) == (row.policy.clone(), row.part))
    };
    rows.sort_by_key(order);
    Ok(Figures {
        trace: path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned(),
        reads: requests.reads,
        keys: requests.keys,
        footprint: requests.footprint,
        rows,
    })
}

/// Miss ratios: a line for each size, a column for each policy.
fn table(figures: &Figures, options: &Options) -> String {
    let Figures { trace, reads, keys, footprint, .. } = figures;
    let unit = if options.objects { "places" } else { "bytes" };
    let mut text = format!("{trace}: {reads} reads of {keys} keys, {footprint} {unit}\n");
    let _ = write!(text, "{:>12} {:>7}", unit, "part");
    for policy in policies(options) {
        let _ = write!(text, " {:>10}", name(*policy));
    }
    for (index, row) in figures.rows.iter().enumerate() {
        if index % policies(options).len() == 0 {
            let _ = write!(text, "\n{:>12} {:>6.2}%", row.memory, row.part * 100.0);
        }
        let _ = write!(text, " {:>10.4}", row.ratio);
    }
    text + "\n"
}

/// Writes NAME.json and NAME.svg.
fn write(figures: &Figures, folder: &Path) -> Result<(), String> {
    let stem = figures.trace.split('.').next().filter(|stem| !stem.is_empty()).unwrap_or("trace");
    let named = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    std::fs::create_dir_all(folder).map_err(|error| named(folder, error))?;
    let json = serde_json::to_string_pretty(figures).expect("figures are plain data") + "\n";
    for (ending, content) in [("json", json), ("svg", chart(figures).svg())] {
        let path = folder.join(format!("{stem}.{ending}"));
        std::fs::write(&path, content).map_err(|error| named(&path, error))?;
    }
    Ok(())
}

fn chart(figures: &Figures) -> Chart {
    let mut lines: Vec<Line> = Vec::new();
    for row in &figures.rows {
        let point = (row.part * 100.0, row.ratio);
        match lines.iter_mut().find(|line| line.name == row.policy) {
            Some(line) => line.points.push(point),
            None => lines.push(Line { name: row.policy.clone(), points: vec![point] }),
        }
    }
    Chart {
        title: format!("Miss ratio by memory: {}", figures.trace),
        x_label: "memory, percent of all keys and values".to_owned(),
        y_label: "misses to reads".to_owned(),
        lines,
    }
}

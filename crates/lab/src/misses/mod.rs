//! `kachel-lab misses`: the misses of eviction policies over recorded traces, at many sizes.
//!
//! Upstream:   the command line, and trace files.
//! Downstream: `simulate` counts for the policies, `engine` for our own; `chart` draws.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use clap::{CommandFactory as _, Parser, ValueEnum};
use kachel_engine::{MODEL_QUARTERS, MissSums};
use kachel_load::{Oddities, Trace};
use serde::Serialize;

mod engine;
mod queues;
mod policy;
mod simulate;

use policy::PolicyName;
use simulate::Requests;

use crate::chart::{Chart, Line, Point, Scale};

const HELP: &str = "\
A trace has one request a line: timestamp_s,key,key_size,value_size,client_id,operation,ttl_s (the format of
the Twitter cache traces), or is in libCacheSim's oracleGeneral format; plain or compressed with zstd. Any
other file is refused. Requests that are left out or changed are counted.

A read that misses is followed by a write. Only reads count. Memory holds keys and values, without any
overhead, and TTLs are ignored, so a server needs more memory for the same misses.

--engine adds Kachel's own engine, which has overhead: it runs the trace with the memory that `-m` gives a
server. The other policies are then measured with as many bytes of keys and values as the engine held (with
--objects: with as many keys), in the mean from its first eviction on. The engine's curve (`stats mrc`) says
what a quarter to four times the memory would miss; in brackets is the difference in points from what the engine
missed with that memory, if that is one of the sizes.

Examples:
  kachel-lab misses recs.csv.zst
  kachel-lab misses recs.csv.zst --engine 16,32 --policies lru,s3-fifo
  kachel-lab misses recs.csv.zst oltp.csv.zst --policies lru,s3-fifo,belady --memory 0.01,0.1 --out figures";

/// The sizes of the memory if the options name none.
const MEMORY: [f64; 6] = [0.01, 0.02, 0.05, 0.1, 0.2, 0.4];
/// The name of the engine in tables and charts.
const OWN: &str = "kachel";
/// Endings of traces' names that the names of their results lack.
const ENDINGS: [&str; 5] = [".csv", ".txt", ".bin", ".oracleGeneral", ".zst"];
/// The secret of the engine's hash, so that runs repeat.
const HASH_SEED: u64 = 0x243f_6a88_85a3_08d3;

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
    /// one is in bytes. Without this option and without --engine: 0.01,0.02,0.05,0.1,0.2,0.4.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = memory)]
    memory: Vec<f64>,
    /// Sizes of `-m`, in MiB, with which Kachel's own engine runs the trace.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    engine: Vec<u32>,
    /// Factor for the sizes of the values.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = scale)]
    value_scale: f64,
    /// Every key takes one place, whatever its size, and memory is in places.
    #[arg(long)]
    objects: bool,
    /// Reads at most this number of requests of each trace.
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// The number of threads; one for each core without this option.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// A folder that gets the figures of each trace as NAME.json and a chart as NAME.svg. NAME is
    /// that of the trace, without its ending.
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

/// The engine with one size of memory.
#[derive(Debug, Serialize)]
struct EngineRow {
    /// `-m`.
    memory_mib: u32,
    misses: u64,
    /// Misses to reads.
    ratio: f64,
    /// Items held.
    items: u64,
    /// Bytes of their keys and values.
    bytes: u64,
    evictions: u64,
    curve: Curve,
}

/// What the engine's own miniatures estimate (`stats mrc`).
#[derive(Debug, Serialize)]
struct Curve {
    /// How far they are from the engine at its own size, in parts of the reads.
    error: f64,
    /// Reads and keys in the sample.
    samples: u64,
    keys: u64,
    /// The part of the keys in the sample.
    rate: f64,
    /// Sizes of `-m` in MiB, and the part of the reads that would miss.
    points: Vec<(f64, f64)>,
}

impl Curve {
    fn of(memory_mib: u32, sums: &MissSums) -> Self {
        let memory = MODEL_QUARTERS.map(|quarters| f64::from(memory_mib * quarters) / 4.0);
        let points = memory.into_iter().zip(sums.estimates()).collect();
        let MissSums { samples, keys, rate, .. } = *sums;
        Self { error: sums.error(), samples, keys, rate, points }
    }

    /// A line: each point, and its difference from what the engine itself has missed there.
    fn line(&self, engine: &[EngineRow]) -> String {
        let Self { error, samples, keys, rate, points } = self;
        let mut line = format!(
            "1/{:.0} of the keys, {samples} reads of {keys} keys, own size {:+.2} points:",
            1.0 / rate,
            error * 100.0
        );
        for (mib, ratio) in points {
            let _ = write!(line, " -m {mib} {ratio:.4}");
            if let Some(row) = engine.iter().find(|row| f64::from(row.memory_mib) == *mib) {
                let _ = write!(line, " ({:+.2})", (ratio - row.ratio) * 100.0);
            }
        }
        line
    }
}

/// The figures of a trace.
#[derive(Debug, Serialize)]
struct Figures {
    trace: String,
    reads: u64,
    keys: usize,
    /// Bytes of all keys with their values; their number with `--objects`.
    footprint: u64,
    /// The requests that are not counted as the file has them.
    oddities: Oddities,
    /// Kachel's own engine. Its `rows` have the memory that it held.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    engine: Vec<EngineRow>,
    rows: Vec<Row>,
}

/// Runs `kachel-lab misses` with the arguments that follow it. Prints tables on standard output,
/// and progress on standard error.
pub(crate) fn run(words: impl Iterator<Item = OsString>) -> ExitCode {
    crate::with_options(command_line(), words, |options: &Options| {
        let mut text = String::new();
        let stems = stems(&options.traces);
        if options.out.is_some() {
            refuse_equal(&stems)?;
        }
        for (trace, stem) in options.traces.iter().zip(&stems) {
            let figures = measure(trace, options)?;
            text.push_str(&table(&figures, options));
            if let Some(folder) = &options.out {
                write(&figures, folder, stem)?;
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

fn scale(text: &str) -> Result<f64, String> {
    let scale: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if scale > 0.0 && scale <= 1e6 { Ok(scale) } else { Err("not above 0".to_owned()) }
}

/// Runs the trace against the engine and all policies with all sizes, on several threads.
fn measure(path: &Path, options: &Options) -> Result<Figures, String> {
    let trace = Trace::read(path, options.value_scale, options.limit)?;
    let requests =
        Requests::of(&trace, options.objects).ok_or(format!("{}: no reads", path.display()))?;
    let name_of = |row: &str| format!("{}: {row}", path.display());
    let runs = in_parallel(&options.engine, options.threads, &name_of("engine"), |mib| {
        engine::run(&trace, u64::from(*mib) << 20, HASH_SEED)
    });
    let footprint = requests.footprint as f64;
    let ratio = |misses: u64| misses as f64 / requests.reads as f64;
    let (mut engine, mut own, mut parts) = (Vec::new(), Vec::new(), Vec::new());
    for memory in sizes(options) {
        parts.push(if memory <= 1.0 { memory } else { memory / footprint });
    }
    for (memory_mib, run) in options.engine.iter().zip(runs) {
        let engine::Run { misses, items, bytes, evictions, sums } =
            run.map_err(|error| name_of(&format!("--engine {memory_mib}: {error}")))?;
        let (memory_mib, ratio) = (*memory_mib, ratio(misses));
        let curve = Curve::of(memory_mib, &sums);
        engine.push(EngineRow { memory_mib, misses, ratio, items, bytes, evictions, curve });
        let memory = if options.objects { items } else { bytes };
        let part = memory as f64 / footprint;
        own.push(Row { policy: OWN.to_owned(), part, memory, misses, ratio });
        parts.push(part);
    }
    let jobs: Vec<(PolicyName, f64)> = parts
        .iter()
        .flat_map(|part| policies(options).iter().map(move |policy| (*policy, *part)))
        .collect();
    let mut rows = in_parallel(&jobs, options.threads, &name_of("policies"), |(policy, part)| {
        let memory = (footprint * part).round() as u64;
        let misses = requests.misses(*policy, memory);
        Row { policy: name(*policy), part: *part, memory, misses, ratio: ratio(misses) }
    });
    rows.extend(own);
    Ok(Figures {
        trace: path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned(),
        reads: requests.reads,
        keys: requests.keys,
        footprint: requests.footprint,
        oddities: trace.facts.oddities.clone(),
        engine,
        rows,
    })
}

fn sizes(options: &Options) -> Vec<f64> {
    match options.memory.is_empty() && options.engine.is_empty() {
        true => MEMORY.to_vec(),
        false => options.memory.clone(),
    }
}

/// Works on all jobs, on several threads, and returns the results in the order of the jobs.
fn in_parallel<J: Sync, R: Send>(
    jobs: &[J],
    threads: Option<u16>,
    what: &str,
    work: impl Fn(&J) -> R + Sync,
) -> Vec<R> {
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let results = Mutex::new(Vec::new());
    let work = || {
        loop {
            let index = next.fetch_add(1, Relaxed);
            let Some(job) = jobs.get(index) else { return };
            let result = work(job);
            results.lock().unwrap_or_else(PoisonError::into_inner).push((index, result));
            let done = done.fetch_add(1, Relaxed) + 1;
            eprintln!("{what}: {done} of {} runs done", jobs.len());
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = threads.map_or(cores, usize::from).min(jobs.len());
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(results.len(), jobs.len(), "every job has its result");
    results.sort_unstable_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Miss ratios: a line for each size, a column for each policy.
fn table(figures: &Figures, options: &Options) -> String {
    let Figures { trace, reads, keys, footprint, oddities, engine, .. } = figures;
    let unit = if options.objects { "places" } else { "bytes" };
    let mut text = format!("{trace}: {reads} reads of {keys} keys, {footprint} {unit}\n");
    for sentence in oddities.sentences() {
        let _ = writeln!(text, "{sentence}");
    }
    for EngineRow { memory_mib, items, bytes, evictions, .. } in engine {
        let held = format!("{items} items of {bytes} bytes held, {evictions} evicted");
        let _ = writeln!(text, "{OWN} -m {memory_mib}: {held}");
    }
    for EngineRow { memory_mib, curve, .. } in engine {
        let _ = writeln!(text, "curve -m {memory_mib}: {}", curve.line(engine));
    }
    let mut columns: Vec<String> = policies(options).iter().map(|policy| name(*policy)).collect();
    columns.extend((!engine.is_empty()).then(|| OWN.to_owned()));
    let _ = write!(text, "{unit:>12} {:>7}", "part");
    for column in columns {
        let _ = write!(text, " {column:>10}");
    }
    let (own, others): (Vec<_>, Vec<_>) = figures.rows.iter().partition(|row| row.policy == OWN);
    let first_of_engine = sizes(options).len();
    for (line, rows) in others.chunks(policies(options).len()).enumerate() {
        let _ = write!(text, "\n{:>12} {:>6.2}%", rows[0].memory, rows[0].part * 100.0);
        let own = line.checked_sub(first_of_engine).map(|index| own[index]);
        for row in rows.iter().copied().chain(own) {
            let _ = write!(text, " {:>10.4}", row.ratio);
        }
    }
    text + "\n"
}

/// The names of traces without the endings that say how they are written.
fn stems(traces: &[PathBuf]) -> Vec<String> {
    let stem = |trace: &PathBuf| {
        let name = trace.file_name().unwrap_or(trace.as_os_str()).to_string_lossy();
        let mut stem = &*name;
        let shorter = |stem| ENDINGS.iter().find_map(|ending| str::strip_suffix(stem, ending));
        while let Some(shorter) = shorter(stem).filter(|shorter| !shorter.is_empty()) {
            stem = shorter;
        }
        stem.to_owned()
    };
    traces.iter().map(stem).collect()
}

/// Errors: the results of two traces would have the same name.
fn refuse_equal(stems: &[String]) -> Result<(), String> {
    for (index, stem) in stems.iter().enumerate() {
        if stems[..index].contains(stem) {
            return Err(format!("--out: two traces would be written to {stem}.json"));
        }
    }
    Ok(())
}

/// Writes NAME.json and NAME.svg.
fn write(figures: &Figures, folder: &Path, stem: &str) -> Result<(), String> {
    let named = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    std::fs::create_dir_all(folder).map_err(|error| named(folder, error))?;
    let json = serde_json::to_string_pretty(figures).expect("figures are plain data") + "\n";
    for (ending, content) in [("json", json), ("svg", chart(figures).svg())] {
        let path = folder.join(format!("{stem}.{ending}"));
        std::fs::write(&path, content).map_err(|error| named(&path, error))?;
    }
    Ok(())
}

/// The color of a policy, whichever others are drawn.
fn color(policy: &str) -> usize {
    let all = PolicyName::value_variants();
    all.iter().position(|other| name(*other) == policy).unwrap_or(all.len())
}

fn chart(figures: &Figures) -> Chart {
    let mut lines: Vec<Line> = Vec::new();
    for row in &figures.rows {
        let (x, y, range, unsupported) = (row.part * 100.0, row.ratio, None, None);
        let point = Point { x, y, range, unsupported };
        match lines.iter_mut().find(|line| line.name == row.policy) {
            Some(line) => line.points.push(point),
            None => {
                let (name, points) = (row.policy.clone(), vec![point]);
                lines.push(Line { color: color(&name), name, points });
            }
        }
    }
    // The engine's points lie between the sizes of `--memory`.
    lines.iter_mut().for_each(|line| line.points.sort_by(|left, right| left.x.total_cmp(&right.x)));
    Chart {
        title: format!("Miss ratio by memory: {}", figures.trace),
        x_label: "memory, percent of all keys and values".to_owned(),
        x_scale: Scale::LogAtPoints,
        y_label: "misses to reads".to_owned(),
        y_scale: Scale::FromZero,
        lines,
        limit: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figures of a short trace, and the options that they were made with.
    fn figures(words: &str) -> (Figures, Options) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.csv");
        let keys = (0..40_000_u64).map(|at| at * at % 9_973);
        let lines: String = keys.map(|key| format!("0,k{key:07},8,200,1,get,0\n")).collect();
        std::fs::write(&path, lines).expect("written");
        let words = ["misses", path.to_str().expect("text")].into_iter().chain(words.split(' '));
        let options = Options::try_parse_from(words).expect("valid options");
        (measure(&path, &options).expect("figures"), options)
    }

    #[test]
    fn policies_are_measured_with_what_the_engine_held() {
        for objects in ["", " --objects"] {
            let words = format!("--engine 1,2 --memory 0.9,0.01 --policies lru,belady{objects}");
            let (figures, options) = figures(&words);
            let held = figures.engine.iter();
            let held: Vec<u64> =
                held.map(|row| if objects.is_empty() { row.bytes } else { row.items }).collect();
            // Both are means, without their fractions.
            let is_whole = |row: &EngineRow| row.bytes / 208 == row.items;
            assert!(figures.engine.iter().all(is_whole), "{figures:?}");
            assert!(0 < held[0] && held[0] < held[1], "{held:?}");
            for policy in ["lru", "belady", OWN] {
                let rows = figures.rows.iter().filter(|row| row.policy == policy);
                let memory: Vec<u64> = rows.map(|row| row.memory).collect();
                assert_eq!(memory[memory.len() - 2..], held, "{policy}");
                assert_eq!(memory.len(), if policy == OWN { 2 } else { 4 });
            }
            // A line for the trace, two for the engine and two for its curve, one of names, and one
            // for each size.
            let table = table(&figures, &options);
            let columns: Vec<usize> =
                table.lines().skip(5).map(|line| line.split_whitespace().count()).collect();
            assert_eq!(columns, [5, 4, 4, 5, 5], "{table}");
            let last = format!("{:.4}", figures.engine[1].ratio);
            assert!(table.trim_end().ends_with(&last), "{table}");
            for line in chart(&figures).lines {
                assert!(line.points.is_sorted_by(|left, right| left.x < right.x), "{}", line.name);
            }
        }
    }

    #[test]
    fn results_stand_in_the_order_of_their_jobs() {
        let jobs: Vec<u64> = (0..50).collect();
        let results = in_parallel(&jobs, Some(8), "squares", |job| {
            // Later jobs end first.
            std::thread::sleep(std::time::Duration::from_micros((50 - job) * 20));
            job * job
        });
        assert!(results.iter().copied().eq((0..50).map(|job| job * job)), "{results:?}");
    }
}

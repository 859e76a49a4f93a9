//! Simulates seeds: `cargo run --profile sim -p kachel-sim -- --seed N`. `--help` lists all.
//!
//! Upstream:   a person, `tests/sim/run`.
//! Downstream: `kachel_sim`, in one thread for each job; a thread does one run at a time.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use kachel_sim::{
    Coverage, EngineChoice, Failure, Fault, Options, REQUESTS, Report, Tally, examine, keep_panics,
    shrink,
};

const HELP: &str = "\
usage: kachel-sim [--seed N] [--seeds M] [--requests R] [--jobs J] [--verbose]
                  [--clients C] [--shards S] [--engines N] [--engine E] [--without FAULT,...]

Simulates the whole server on virtual time, once for each of M seeds, beginning with seed N. One
seed in fifty runs twice, and both runs must be the same. Prints at the end what all runs covered.
The exit status is 0 if no run failed. A failing run is reduced to a smaller one that still fails,
and printed with the command that reproduces it.

  --seed N       the first seed (default 1)
  --seeds M      the number of seeds (default 1)
  --requests R   the number of requests in each run (default 2000)
  --jobs J       the number of runs at a time (default: one for each core)
  --verbose      print a line for each run
  --clients C    the number of clients (default: it follows from the seed)
  --shards S     the number of shards (default: it follows from the seed)
  --engines N    the number of engines (default: it follows from the seed)
  --engine E     the engines of the server: cache, delaying (caches that delay answers), plain,
                 flash or rocks (default: it follows from the seed, and is not one of the last two)
  --without FAULT,...
                 turn off some of the faults that follow from the seed: cut, delay, reset,
                 slow, stop, skew, jump, leave, flush, late, disk, disk-error, dump, limit, end, power-cut,
                 full";

/// The judge may give up one key for each group of this many keys.
const KEYS_PER_GIVEN_UP: u64 = 5_000;

/// In all runs together, servers that evict may miss one of this many keys that were stored a short
/// time before, and a few. They miss one of 600 (17 of 10,298). So of the 600 reads of 50 runs,
/// more than the 8 that are allowed miss once in a million times.
const MISSING_PART: u64 = 200;
const MISSING_MAX: u64 = 5;

/// In all runs together, one of this many reads of items on a disk may be refused for lack of
/// memory, and a few. Twelve clients that send or read large values hold more memory than a small
/// server has: measured are one of 100,000.
const UNREAD_PART: u64 = 20_000;
const UNREAD_MAX: u64 = 5;

/// Engines that delay must delay at least one operation for each group of this many operations.
const DELAYED_PART: u64 = 10;

/// The parsed arguments.
struct Wanted {
    seed: u64,
    seeds: u64,
    requests: u32,
    jobs: usize,
    verbose: bool,
    clients: Option<u16>,
    shards: Option<u16>,
    engines: Option<u16>,
    engine: Option<EngineChoice>,
    without: Vec<Fault>,
}

impl Wanted {
    fn options(&self, seed: u64) -> Options {
        let mut options = Options::of_seed(seed, self.requests);
        if let Some(engine) = self.engine {
            options = options.over(engine);
        }
        options.clients = self.clients.unwrap_or(options.clients);
        options.shards = self.shards.unwrap_or(options.shards);
        options.engines = self.engines.unwrap_or(options.engines);
        for fault in &self.without {
            options.faults = options.faults.without(*fault);
        }
        options
    }
}

fn main() -> ExitCode {
    let wanted = match read(std::env::args().skip(1)) {
        Ok(Some(wanted)) => wanted,
        Ok(None) => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(what) => {
            eprintln!("kachel-sim: {what}; --help lists the options");
            return ExitCode::from(2);
        }
    };
    keep_panics();
    let sum = Mutex::new(Sum::default());
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..wanted.jobs {
            scope.spawn(|| work(&wanted, &next, &sum));
        }
    });
    let sum = sum.into_inner().expect("no job panics while it holds the lock");
    sum.print(wanted.engine);
    if sum.failed > 0 || sum.is_forgetful() || sum.is_short_of_memory() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

fn read(mut words: impl Iterator<Item = String>) -> Result<Option<Wanted>, String> {
    let mut wanted = Wanted {
        seed: 1,
        seeds: 1,
        requests: REQUESTS,
        jobs: std::thread::available_parallelism().map_or(1, usize::from),
        verbose: false,
        clients: None,
        shards: None,
        engines: None,
        engine: None,
        without: Vec::new(),
    };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--help" | "-h" => return Ok(None),
            "--verbose" => {
                wanted.verbose = true;
                continue;
            }
            _ => {}
        }
        let text = words.next().ok_or_else(|| format!("{word} needs a value"))?;
        let number = || text.parse::<u64>().map_err(|_| format!("{text} is not a number"));
        let small = || u16::try_from(number()?).map_err(|_| format!("{text} is too large"));
        match word.as_str() {
            "--seed" => wanted.seed = number()?,
            "--seeds" => wanted.seeds = number()?,
            "--requests" => wanted.requests = number()?.try_into().map_err(|_| "R is too large")?,
            "--jobs" => wanted.jobs = usize::from(small()?).max(1),
            "--clients" => wanted.clients = Some(small()?.max(1)),
            "--shards" => wanted.shards = Some(small()?.max(1)),
            "--engines" => wanted.engines = Some(small()?.max(1)),
            "--engine" => {
                let engine = EngineChoice::ALL.iter().find(|(_, name)| *name == text);
                let (engine, _) = engine.ok_or_else(|| format!("{text} is not an engine"))?;
                wanted.engine = Some(*engine);
            }
            "--without" => {
                for name in text.split(',') {
                    let fault = Fault::ALL.iter().find(|(_, known)| *known == name);
                    let (fault, _) = fault.ok_or_else(|| format!("{name} is not a fault"))?;
                    wanted.without.push(*fault);
                }
            }
            _ => return Err(format!("{word} is unknown")),
        }
    }
    Ok(Some(wanted))
}

/// Runs one seed after the other until none is left.
fn work(wanted: &Wanted, next: &AtomicU64, sum: &Mutex<Sum>) {
    loop {
        let number = next.fetch_add(1, Relaxed);
        if number >= wanted.seeds {
            return;
        }
        let seed = wanted.seed + number;
        let twice = seed.is_multiple_of(50);
        let options = wanted.options(seed);
        if wanted.verbose {
            println!("seed {seed}: {options:?}");
        }
        let ended = examine(&options, twice);
        let ended = ended.map_err(|failure| {
            let least = shrink(&failure);
            (failure, least)
        });
        let mut sum = sum.lock().expect("no job panics while it holds the lock");
        match ended {
            Ok(report) => sum.add(&options, &report, twice, wanted.verbose),
            Err((failure, least)) => sum.fail(seed, &failure, &least),
        }
    }
}

/// The sums over all runs.
#[derive(Default)]
struct Sum {
    passed: u64,
    failed: u64,
    twice: u64,
    /// The seeds of runs that did not cover everything, each with what is missing.
    lacking: Vec<(u64, Vec<&'static str>)>,
    requests: u64,
    /// Of the runs whose server evicts: stores, refused stores, reads of keys that were stored a
    /// short time before, and such reads that missed.
    evicting: [u64; 4],
    /// The same of the runs whose server does not evict.
    keeping: [u64; 4],
    operations: u64,
    strict: u64,
    keys: u64,
    keys_given_up: u64,
    coverage: Coverage,
    /// For each count of the coverage, by name: the number of runs in which it was above 0.
    runs_with: BTreeMap<&'static str, u64>,
}

impl Sum {
    fn add(&mut self, options: &Options, report: &Report, twice: bool, verbose: bool) {
        let seed = options.seed;
        self.passed += 1;
        self.twice += u64::from(twice);
        self.requests += report.tally.settled;
        let Tally { stores, refused, kept_reads, kept_missing, .. } = report.tally;
        let sums = if options.evict { &mut self.evicting } else { &mut self.keeping };
        for (sum, count) in sums.iter_mut().zip([stores, refused, kept_reads, kept_missing]) {
            *sum += count;
        }
        self.operations += report.judged.operations;
        self.strict += report.judged.strict;
        self.keys += report.judged.keys;
        self.keys_given_up += report.judged.keys_given_up;
        self.coverage.add(&report.coverage);
        for (name, count) in report.coverage.fields() {
            *self.runs_with.entry(name).or_default() += u64::from(count > 0);
        }
        let lacks = report.lacks(options);
        if !lacks.is_empty() {
            self.lacking.push((seed, lacks));
        }
        if verbose {
            println!("seed {seed}: {report:?}");
        }
    }

    fn fail(&mut self, seed: u64, failure: &Failure, least: &Failure) {
        self.failed += 1;
        println!("FAIL seed {seed}: {failure}");
        if least.options != failure.options {
            println!("  smallest run that still fails: {least}");
        }
    }

    /// Whether servers that evict missed more keys than memory explains. A run alone has too few
    /// reads for a tight limit.
    const fn is_forgetful(&self) -> bool {
        let [_, _, reads, missing] = self.evicting;
        missing > MISSING_MAX + reads / MISSING_PART
    }

    /// Whether too many items on a disk were not read for lack of memory.
    const fn is_short_of_memory(&self) -> bool {
        let Coverage { unread, cold_reads, .. } = self.coverage;
        unread > UNREAD_MAX + cold_reads / UNREAD_PART
    }

    /// Prints the sums of runs over engines of this kind, or of all kinds.
    fn print(&self, engine: Option<EngineChoice>) {
        let runs = self.passed + self.failed;
        println!(
            "seeds: {runs} run, {} failed, {} run twice; {} requests settled, {} operations judged, \
             {} of them as if nothing were ever evicted",
            self.failed, self.twice, self.requests, self.operations, self.strict
        );
        for (name, sum) in self.coverage.fields() {
            println!("  {name}: {sum} in {} runs", self.runs_with.get(name).unwrap_or(&0));
        }
        for (seed, lacks) in &self.lacking {
            println!("  seed {seed} lacked {}", lacks.join(" and "));
        }
        for (server, sums) in [("evicts", self.evicting), ("does not evict", self.keeping)] {
            let [stores, refused, reads, missing] = sums;
            println!(
                "  a server that {server}: {refused} of {stores} stores refused, {missing} of \
                      {reads} keys missing that were stored a short time before"
            );
        }
        if self.is_forgetful() {
            println!("FAIL a server that evicts misses too many keys that were just stored");
        }
        if self.is_short_of_memory() {
            println!("FAIL too many items on the disk were not read for lack of memory");
        }
        println!("  {} of {} keys were given up by the judge", self.keys_given_up, self.keys);
        if !self.lacking.is_empty() {
            println!("never seen: something required of every run, in {} runs", self.lacking.len());
        }
        if self.keys_given_up * KEYS_PER_GIVEN_UP > self.keys {
            println!("never seen: a judgment of enough keys");
        }
        let Coverage { delayable, delayed_before, delayed_after, .. } = self.coverage;
        if (delayed_before + delayed_after) * DELAYED_PART < delayable {
            println!("never seen: a delay of one operation in {DELAYED_PART}");
        }
        for (name, sum) in self.coverage.fields() {
            let may_show = engine.is_none_or(|engine| engine.may_show(name));
            if sum == 0 && self.passed > 0 && may_show {
                println!("never seen: {name}");
            }
        }
    }
}

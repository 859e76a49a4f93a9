//! Runs seeds: `cargo run --profile sim -p kachel-sim -- --seed N`. `--help` lists the rest.
//!
//! Upstream:   a person, `tests/sim/run`.
//! Downstream: `kachel_sim`, a thread for each of the jobs, a run at a time in each.

#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use kachel_sim::{
    Coverage, Failure, Fault, Options, REQUESTS, Report, examine, keep_panics, shrink,
};

const HELP: &str = "\
usage: kachel-sim [--seed N] [--seeds M] [--requests R] [--jobs J] [--verbose]
                  [--clients C] [--shards S] [--without FAULT,...]

Runs the whole server on virtual time, from each of M seeds beginning with N. One in twenty is run
twice, to be the same. Ends with what all runs have seen; the status is 0 if nothing was wrong. A
failure is made small, and printed with the command that shows it again.

  --seed N       the first seed (default 1)
  --seeds M      how many (default 1)
  --requests R   requests of each run (default 2000)
  --jobs J       runs at once (default: one a core)
  --verbose      a line for each run
  --clients, --shards, --without   instead of what follows from the seed; faults are
                 cut, delay, reset, slow, stop, skew, jump, leave, flush, late";

/// Of so many keys the judge may give up one.
const KEYS_PER_GIVEN_UP: u64 = 10_000;

/// Of so many operations of an engine that delays, at least one is delayed.
const DELAYED_PART: u64 = 10;

/// What was asked for.
struct Wanted {
    seed: u64,
    seeds: u64,
    requests: u32,
    jobs: usize,
    verbose: bool,
    clients: Option<u16>,
    shards: Option<u16>,
    without: Vec<Fault>,
}

impl Wanted {
    fn options(&self, seed: u64) -> Options {
        let mut options = Options::of_seed(seed, self.requests);
        options.clients = self.clients.unwrap_or(options.clients);
        options.shards = self.shards.unwrap_or(options.shards);
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
            eprintln!("kachel-sim: {what}; --help lists what there is");
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
    let sum = sum.into_inner().expect("no job ends in the middle of it");
    sum.print();
    if sum.failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
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
        let text = words.next().ok_or_else(|| format!("{word} wants something behind it"))?;
        let number = || text.parse::<u64>().map_err(|_| format!("{text} is no number"));
        let small = || u16::try_from(number()?).map_err(|_| format!("{text} is too large"));
        match word.as_str() {
            "--seed" => wanted.seed = number()?,
            "--seeds" => wanted.seeds = number()?,
            "--requests" => wanted.requests = number()?.try_into().map_err(|_| "too many")?,
            "--jobs" => wanted.jobs = usize::from(small()?).max(1),
            "--clients" => wanted.clients = Some(small()?.max(1)),
            "--shards" => wanted.shards = Some(small()?.max(1)),
            "--without" => {
                for name in text.split(',') {
                    let fault = Fault::ALL.iter().find(|(_, known)| *known == name);
                    let (fault, _) = fault.ok_or_else(|| format!("{name} is no fault"))?;
                    wanted.without.push(*fault);
                }
            }
            _ => return Err(format!("{word} is unknown")),
        }
    }
    Ok(Some(wanted))
}

/// Takes seeds until there are none left.
fn work(wanted: &Wanted, next: &AtomicU64, sum: &Mutex<Sum>) {
    loop {
        let number = next.fetch_add(1, Relaxed);
        if number >= wanted.seeds {
            return;
        }
        let seed = wanted.seed + number;
        let twice = seed.is_multiple_of(20);
        let ended = examine(&wanted.options(seed), twice);
        let ended = ended.map_err(|failure| {
            let least = shrink(&failure);
            (failure, least)
        });
        let mut sum = sum.lock().expect("no job ends in the middle of it");
        match ended {
            Ok(report) => sum.add(seed, &report, twice, wanted.verbose),
            Err((failure, least)) => sum.fail(seed, &failure, &least),
        }
    }
}

/// What all runs have seen.
#[derive(Default)]
struct Sum {
    passed: u64,
    failed: u64,
    twice: u64,
    /// Runs that lacked something, by what.
    lacking: Vec<(u64, Vec<&'static str>)>,
    requests: u64,
    operations: u64,
    strict: u64,
    keys: u64,
    keys_given_up: u64,
    coverage: Coverage,
    /// Runs in which each of the coverage's counts was above 0.
    runs_with: [u64; Coverage::COUNT],
}

impl Sum {
    fn add(&mut self, seed: u64, report: &Report, twice: bool, verbose: bool) {
        self.passed += 1;
        self.twice += u64::from(twice);
        self.requests += report.tally.settled;
        self.operations += report.judged.operations;
        self.strict += report.judged.strict;
        self.keys += report.judged.keys;
        self.keys_given_up += report.judged.keys_given_up;
        self.coverage.add(&report.coverage);
        for (runs, (_, count)) in self.runs_with.iter_mut().zip(report.coverage.fields()) {
            *runs += u64::from(count > 0);
        }
        let lacks = report.lacks();
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
            println!("  smallest that still fails: {least}");
        }
    }

    fn print(&self) {
        let runs = self.passed + self.failed;
        println!(
            "seeds: {runs} run, {} failed, {} run twice; {} requests settled, {} operations judged, \
             {} of them as if nothing were ever evicted",
            self.failed, self.twice, self.requests, self.operations, self.strict
        );
        for ((name, sum), runs) in self.coverage.fields().into_iter().zip(self.runs_with) {
            println!("  {name}: {sum} in {runs} runs");
        }
        for (seed, lacks) in &self.lacking {
            println!("  seed {seed} lacked {}", lacks.join(" and "));
        }
        println!("  {} of {} keys were given up by the judge", self.keys_given_up, self.keys);
        if !self.lacking.is_empty() {
            println!("never seen: in {} runs something that each has to show", self.lacking.len());
        }
        if self.keys_given_up * KEYS_PER_GIVEN_UP > self.keys {
            println!("never seen: a judgment of enough keys");
        }
        let Coverage { delayable, delayed_before, delayed_after, .. } = self.coverage;
        if (delayed_before + delayed_after) * DELAYED_PART < delayable {
            println!("never seen: a delay of one operation in {DELAYED_PART}");
        }
        for ((name, _), runs) in self.coverage.fields().into_iter().zip(self.runs_with) {
            if runs == 0 && runs < self.passed {
                println!("never seen: {name}");
            }
        }
    }
}

//! Measures the engine in process, beside a bare loop that reads the same amount of memory.
//!
//! Upstream:   `scripts/bench/in_process` and `scripts/bench/many_cores`.
//! Downstream: `cores` (the engine), `reference` (the loop).
//!
//! usage: `in_process PART ITEMS SIZES ROUNDS [huge] [cores=N] [JSON]`; PART is `gets`, `sets`,
//! `cores`, `one_key` or `all`, SIZES is `16+32` or `8+8`, and N is 2 if it is not given.
//!
//! All ways take turns in one process, and each round gives one ratio, so that whatever else the
//! machine does meets all ways. Compare ratios; the nanoseconds hold for this machine and moment.
//!
//! - `gets`: GETs in batches of 32 on one core, which owns the items (`owner`) or reads them beside
//!   their owner (`beside`).
//! - `sets`: SETs of keys that are there. `beside` is a core that takes the owner's lock for each.
//! - `cores`: the same on N cores with a shard each; a core reads the keys of all shards. The
//!   throughput of N cores over that of one, beside the same of the reference loop.
//! - `one_key`: changes of one key by all cores, beside those by one core.

mod cores;
mod probes;
mod reference;

use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use kachel_engine::BATCH_MAX;

use crate::cores::{Change, Core, Shards};
use crate::probes::{Draw, Probe, Probes};
use crate::reference::Reference;

/// Keys that one way reads in a round: so few that most rounds run undisturbed on a busy machine.
const KEYS: usize = 64 * BATCH_MAX;
/// The same for several cores, which begin together but do not end together.
const KEYS_OF_CORES: usize = 512 * BATCH_MAX;

/// The options of a run.
struct Run {
    items: u64,
    rounds: usize,
    huge: bool,
    cores: u16,
    sizes: String,
    /// The raw figures, one JSON object a measurement.
    json: Vec<String>,
}

/// The work of one core in a round.
type Work<'a> = Box<dyn FnOnce() + Send + 'a>;

/// The figures of one way: one a round.
type Figures = Vec<f64>;

fn quantile(figures: &[f64], part: f64) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[((sorted.len() - 1) as f64 * part) as usize]
}

/// The ratio of each round.
fn ratios(over: &[f64], under: &[f64]) -> Figures {
    over.iter().zip(under).map(|(over, under)| over / under).collect()
}

/// A median and the quartiles around it.
fn spread(figures: &[f64]) -> String {
    let [low, median, high] = [0.25, 0.5, 0.75].map(|part| quantile(figures, part));
    format!("{median:.3} ({low:.3} to {high:.3})")
}

impl Run {
    /// Keeps the figures of a measurement for the JSON file.
    fn keep(&mut self, what: &str, unit: &str, figures: &[(&str, &Figures)]) {
        let mut text = format!(
            r#"{{"what":"{what}","items":{},"sizes":"{}","huge":{},"unit":"{unit}""#,
            self.items, self.sizes, self.huge
        );
        for (name, figures) in figures {
            let list: Vec<String> = figures.iter().map(|figure| format!("{figure:.4}")).collect();
            write!(text, r#","{name}":[{}]"#, list.join(",")).expect("text");
        }
        text.push('}');
        self.json.push(text);
    }

    fn name(&self, what: &str) -> String {
        let pages = if self.huge { ", huge pages" } else { "" };
        format!("{what}, {} items of {} B{pages}", self.items, self.sizes)
    }
}

/// Nanoseconds a key.
fn timed(keys: usize, work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_nanos() as f64 / keys as f64
}

/// GETs, or with `stores_percent` of 100 SETs of keys that are there.
fn batches<const K: usize, const V: usize>(run: &mut Run, draw: Draw, stores_percent: u64) {
    let shards = Shards::<K, V>::new(1, run.items, run.huge);
    let reference = Reference::<K, V>::new(run.items, shards.index_bytes(), run.huge);
    let (mut owner, mut other) = (shards.core(Some(0)), shards.core(None));
    let mut probes = Probes::new(run.items, draw, stores_percent, 1);
    let mut figures = [const { Figures::new() }; 3];
    for round in 0..run.rounds {
        for turn in 0..3 {
            let way = (round + turn) % 3;
            let keys = probes.take(KEYS);
            let batches = keys.chunks(BATCH_MAX);
            let ns = timed(KEYS, || match way {
                0 => batches.for_each(|batch| reference.run(batch)),
                1 => batches.for_each(|batch| shards.run(&mut owner, batch)),
                _ => batches.for_each(|batch| shards.run(&mut other, batch)),
            });
            figures[way].push(ns);
        }
    }
    let [bare, owner, beside] = &figures;
    let verb = if stores_percent == 100 { "sets" } else { "gets" };
    let what = format!("{verb} {draw:?}").to_lowercase();
    println!(
        "{}: reference {:.1} ns, owner {:.1} ns, beside {:.1} ns; of the reference: owner {}, \
         beside {}",
        run.name(&what),
        quantile(bare, 0.5),
        quantile(owner, 0.5),
        quantile(beside, 0.5),
        spread(&ratios(bare, owner)),
        spread(&ratios(bare, beside)),
    );
    run.keep(&what, "ns", &[("reference", bare), ("owner", owner), ("beside", beside)]);
}

/// Keys a nanosecond that `cores` cores execute together, each with its own work.
fn throughput(keys: usize, works: Vec<Work<'_>>) -> f64 {
    let (cores, ready) = (works.len(), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (core, work) in works.into_iter().enumerate() {
            let ready = &ready;
            threads.push(scope.spawn(move || {
                pin(core);
                ready.fetch_add(1, Ordering::SeqCst);
                while ready.load(Ordering::SeqCst) < cores {
                    std::hint::spin_loop();
                }
                1.0 / timed(keys, work)
            }));
        }
        threads.into_iter().map(|thread| thread.join().expect("no bug")).sum()
    })
}

/// Keeps this thread on one core, if the machine lets it.
fn pin(core: usize) {
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(core);
    let _unpinned_at_worst = rustix::thread::sched_setaffinity(None, &cpus);
}

fn on_cores<const K: usize, const V: usize>(run: &mut Run) {
    let shards = Shards::<K, V>::new(run.cores, run.items, run.huge);
    let reference = Reference::<K, V>::new(run.items, shards.index_bytes(), run.huge);
    let mut cores: Vec<Core> = (0..run.cores).map(|id| shards.core(Some(id))).collect();
    for (what, draw, stores_percent) in [
        ("cores reads", Draw::Uniform, 0),
        ("cores zipf", Draw::Zipf, 0),
        ("cores 5 % stores", Draw::Uniform, 5),
        ("cores one key", Draw::One, 0),
    ] {
        let mut probes = Probes::new(run.items, draw, stores_percent, 2);
        let mut figures = [const { Figures::new() }; 4];
        for round in 0..run.rounds {
            for turn in 0..4 {
                let way = (round + turn) % 4;
                let count = if way % 2 == 0 { 1 } else { run.cores };
                let keys: Vec<Vec<Probe<K>>> =
                    (0..count).map(|_| probes.take(KEYS_OF_CORES)).collect();
                let (shards, reference) = (&shards, &reference);
                let works: Vec<Work<'_>> = if way < 2 {
                    let works = keys.iter().map(|keys| -> Work<'_> {
                        Box::new(|| keys.chunks(BATCH_MAX).for_each(|batch| reference.run(batch)))
                    });
                    works.collect()
                } else {
                    let works = keys.iter().zip(&mut cores).map(|(keys, core)| -> Work<'_> {
                        Box::new(|| {
                            keys.chunks(BATCH_MAX).for_each(|batch| shards.run(core, batch));
                        })
                    });
                    works.collect()
                };
                figures[way].push(throughput(KEYS_OF_CORES, works));
            }
        }
        let [reference_one, reference_all, engine_one, engine_all] = &figures;
        let (bare, ours) = (ratios(reference_all, reference_one), ratios(engine_all, engine_one));
        println!(
            "{}: {} cores over one: reference {}, engine {}; engine over reference {}",
            run.name(what),
            run.cores,
            spread(&bare),
            spread(&ours),
            spread(&ratios(&ours, &bare)),
        );
        let figures = [
            ("reference_one", reference_one),
            ("reference_all", reference_all),
            ("engine_one", engine_one),
            ("engine_all", engine_all),
        ];
        run.keep(what, "keys/ns", &figures);
    }
}

fn one_key<const K: usize, const V: usize>(run: &mut Run) {
    let shards = Shards::<K, V>::new(run.cores, 1000, run.huge);
    let probe = Probes::new(1000, Draw::One, 0, 3).take(1)[0];
    for (what, change) in [("set", Change::Store), ("incr", Change::Increment)] {
        if change == Change::Increment {
            shards.make_number(&probe);
        }
        let mut figures = [const { Figures::new() }; 2];
        for round in 0..run.rounds {
            for turn in 0..2 {
                let way = (round + turn) % 2;
                let count = if way == 0 { 1 } else { run.cores };
                let works = (0..count).map(|_| -> Work<'_> {
                    Box::new(|| {
                        let batches = 0..KEYS_OF_CORES / BATCH_MAX;
                        batches.for_each(|_| shards.change(&probe, change));
                    })
                });
                figures[way].push(throughput(KEYS_OF_CORES, works.collect()));
            }
        }
        let [one, all] = &figures;
        println!(
            "{what} of one key: one core {:.2} M/s, {} cores {:.2} M/s; over one core {}",
            quantile(one, 0.5) * 1e3,
            run.cores,
            quantile(all, 0.5) * 1e3,
            spread(&ratios(all, one)),
        );
        run.keep(&format!("one_key {what}"), "keys/ns", &[("one", one), ("all", all)]);
    }
}

/// Measures one part, or all of them.
fn measure<const K: usize, const V: usize>(run: &mut Run, part: &str) {
    let wants = |name| part == name || part == "all";
    if wants("gets") {
        batches::<K, V>(run, Draw::Uniform, 0);
        batches::<K, V>(run, Draw::Zipf, 0);
    }
    if wants("sets") {
        batches::<K, V>(run, Draw::Uniform, 100);
    }
    // A round of several cores takes longer.
    run.rounds = (run.rounds / 8).max(1);
    if wants("cores") {
        on_cores::<K, V>(run);
    }
    if wants("one_key") {
        one_key::<K, V>(run);
    }
}

fn main() {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let huge = arguments.iter().position(|word| word == "huge");
    let huge = huge.map(|place| arguments.remove(place)).is_some();
    let cores = arguments.iter().position(|word| word.starts_with("cores="));
    let cores =
        cores.map_or("2".to_owned(), |place| arguments.remove(place)["cores=".len()..].to_owned());
    let [part, items, sizes, rounds, rest @ ..] = &arguments[..] else {
        panic!("usage: in_process PART ITEMS SIZES ROUNDS [huge] [cores=N] [JSON]")
    };
    let mut run = Run {
        items: items.parse().expect("items"),
        rounds: rounds.parse().expect("rounds"),
        huge,
        cores: cores.parse().expect("cores=N"),
        sizes: sizes.clone(),
        json: Vec::new(),
    };
    match sizes.as_str() {
        "16+32" => measure::<16, 32>(&mut run, part),
        "8+8" => measure::<8, 8>(&mut run, part),
        other => panic!("no sizes are called {other:?}"),
    }
    if let [file] = rest {
        let text = format!("[\n{}\n]\n", run.json.join(",\n"));
        std::fs::write(file, text).expect("the file can be written");
    }
}

//! How much a batch of requests gains over the same requests one by one.
//!
//! Upstream:   `tests/batch/run`, or `cargo run --release -p kachel-cache --example batch`.
//! Downstream: `cache`, by way of `testkit`.
//!
//! usage: batch [ITEMS [unprefetched]]. The second word plants a fault: batches that prefetch
//! nothing.
//!
//! Both ways read the same number of random keys in turn, in one process, so that whatever else the
//! machine does meets both; a round gives one ratio, and a try the median of its rounds. The median
//! of all tries is judged.

use std::process::ExitCode;
use std::time::Instant;

use kachel_engine::BATCH_MAX;
use kachel_testkit::{BenchKey, FilledCache, random_keys};

/// What a batch must gain at least.
const GAIN_MIN: f64 = 1.8;
/// Tries, each with memory of its own: which pages the kernel gives, and what the neighbors of a
/// shared machine keep in its caches, makes the gain 1.8 to 2.0.
const TRIES: usize = 5;
/// Rounds, each with both ways.
const ROUNDS: usize = 2001;
/// Keys that each way reads in a round: so few that most rounds run undisturbed on a busy machine.
const KEYS: usize = 32 * 32;

/// Nanoseconds a key.
fn timed(keys: &[BenchKey], read: impl FnOnce(&[BenchKey])) -> f64 {
    let start = Instant::now();
    read(keys);
    start.elapsed().as_nanos() as f64 / keys.len() as f64
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// Median nanoseconds a key, one by one and in batches, and the median gain.
fn measured(items: u64, prefetch: bool) -> (f64, f64, f64) {
    let mut cache = FilledCache::new(items);
    let (mut single, mut batched, mut gains) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let keys = random_keys(items, 2 * KEYS, 77 + round as u64);
        let (one, other) = keys.split_at(KEYS);
        let one_by_one = timed(one, |keys| {
            for key in keys {
                cache.read(key);
            }
        });
        let in_batches = timed(other, |keys| {
            for batch in keys.chunks(BATCH_MAX) {
                cache.read_batch(batch, prefetch);
            }
        });
        single.push(one_by_one);
        batched.push(in_batches);
        gains.push(one_by_one / in_batches);
    }
    (median(single), median(batched), median(gains))
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let items = arguments.next().map_or(1_000_000, |text| text.parse().expect("items"));
    let prefetch = arguments.next().is_none();
    let mut tries = [(); TRIES].map(|()| measured(items, prefetch));
    tries.sort_by(|one, other| one.2.total_cmp(&other.2));
    let (single, batched, gain) = tries[TRIES / 2];
    let verdict = if gain >= GAIN_MIN { "ok" } else { "FAIL" };
    println!(
        "{verdict} batch {gain:.2}x (one by one {single:.0} ns, in batches of {BATCH_MAX} {batched:.0} \
         ns a key, {items} items, median of {TRIES} tries from {:.2}x to {:.2}x; at least \
         {GAIN_MIN}x)",
        tries[0].2,
        tries[TRIES - 1].2,
    );
    if gain >= GAIN_MIN { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

//! Canonical ticks, for callgrind to count the instructions of.
//!
//! Upstream:   `tests/instructions/run` runs it under callgrind, one batch at a time.
//! Downstream: whole shards, by way of `testkit`.
//!
//! Apart from `instructions`: a shard is generic, so it is compiled here, and would change what is
//! inlined into the parsers and the lookups that are counted there.
//!
//! Callgrind is told to begin or to stop counting at each entry into and exit from
//! [`toggles_counting`] and [`toggles_counting_off`]; so the setup is not counted, and neither is
//! the I/O backend inside a tick.
//! With `KACHEL_PLANT` in the environment each batch runs 5 % more often: the check must see that.

use std::hint::black_box;

use kachel_io::Around;
use kachel_shard::{BATCH_REQUESTS_MAX as BATCH, ObserverSet, PlainOptions};
use kachel_testkit::{VALUE_BYTES, World, WorldOptions, random_keys};

/// How often each batch is run.
const ROUNDS: usize = 200;
/// Keys to draw from.
const ITEMS: u64 = 100_000;

/// Runs `work`, counted.
#[inline(never)]
fn toggles_counting<R>(work: impl FnOnce() -> R) -> R {
    // Not the last call, or the function would be left before the work is done.
    black_box(work())
}

/// Runs `work` inside what is counted, uncounted. By another name, because callgrind takes a
/// function in itself for a third one.
#[inline(never)]
fn toggles_counting_off<R>(work: impl FnOnce() -> R) -> R {
    black_box(work())
}

fn rounds() -> usize {
    let planted = std::env::var_os("KACHEL_PLANT").is_some();
    if planted { ROUNDS + ROUNDS / 20 } else { ROUNDS }
}

/// A batch of requests, formatted by `request` for each of 32 keys.
fn requests(request: impl Fn(&str) -> String) -> String {
    let keys = random_keys(ITEMS, BATCH, 5);
    keys.iter().map(|key| request(std::str::from_utf8(key).expect("ASCII"))).collect()
}

/// The in-memory backend is not counted.
struct Uncounted;

impl Around for Uncounted {
    fn call<R>(&self, work: impl FnOnce() -> R) -> R {
        toggles_counting_off(work)
    }
}

/// Turns in which `shards` shards answer `input`, with nothing stored but what `before` says. A
/// request that is parked with another shard is answered in the second turn. With `crew`, none is.
fn ticking(shards: u16, crew: bool, before: &str, input: &str) {
    let options = WorldOptions { shards, crew, ..WorldOptions::default() };
    ticking_each(options, before, |_| input);
}

/// As [`ticking`], with another input in each round.
fn ticking_each<'i>(options: WorldOptions, before: &str, input: impl Fn(usize) -> &'i str) {
    let shards = options.shards;
    let mut world = World::surrounded(options, |_| Uncounted);
    let client = world.connect();
    client.write_cut(before.as_bytes(), 10_000);
    world.settle();
    assert!(!client.read().is_empty(), "what is stored first is stored");
    for round in 0..rounds() {
        client.write(input(round).as_bytes());
        toggles_counting(|| (0..shards).for_each(|_| world.turn()));
        world.turn();
        assert!(client.read().ends_with(b"\r\n"), "all is answered in these turns");
    }
}

/// Reads of other keys in each round, so that most of them are new to observers, and all have the
/// same prefix; with these observers on.
fn ticking_observed(observers: ObserverSet) {
    let keys = random_keys(ITEMS, ROUNDS * BATCH, 6);
    let text = |key| String::from_utf8_lossy(key).replace('-', ":");
    let keys: Vec<_> = keys.iter().map(|key| text(&key[..])).collect();
    let set = |key| format!("set {key} 0 0 {VALUE_BYTES}\r\n{:100}\r\n", "");
    let set: String = keys.iter().map(set).collect();
    let gets = keys.chunks(BATCH).map(|keys| keys.iter().map(|key| format!("get {key}\r\n")));
    let gets: Vec<String> = gets.map(Iterator::collect).collect();
    let plain = PlainOptions { observers, ..PlainOptions::default() };
    let options = WorldOptions { plain, ..WorldOptions::default() };
    ticking_each(options, &set, |round| &gets[round % gets.len()]);
}

/// A request alone, as at low load.
fn first_line(requests: &str) -> &str {
    requests.split_inclusive('\n').next().expect("there are requests")
}

fn main() {
    let batch = std::env::args().nth(1).unwrap_or_default();
    let get = requests(|key| format!("get {key}\r\n"));
    let set = requests(|key| format!("set {key} 0 0 {VALUE_BYTES}\r\n{:100}\r\n", ""));
    match batch.as_str() {
        "tick_of_gets" => ticking(1, false, &set, &get),
        "tick_of_one_get" => ticking(1, false, &set, first_line(&get)),
        "tick_of_sets" => ticking(1, false, &set, &set),
        "tick_of_parked" => ticking(2, false, &set, &get),
        "tick_of_other_gets" => ticking_observed(ObserverSet::NONE),
        "tick_of_observed_gets" => ticking_observed(ObserverSet::ALL),
        "tick_of_reads_beside" => ticking(2, true, &set, &get),
        other => panic!("no batch is called {other:?}"),
    }
}

//! Power cuts and ends of the process at every operation, also while a store is opened.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use kachel_engine::Common as _;
use kachel_log::{SEGMENT_BYTES_MIN, SyncMode};
use kachel_stdx::BytePrefix;

use crate::failures::{delete, set};
use kachel_testkit::count;

use crate::files::{SEGMENTS, Store};
use crate::model::key_bytes;
use crate::oracle::Found;
use crate::process::{Process, Request};
use crate::traffic::{Traffic, delays};

const MODES: [SyncMode; 3] = [SyncMode::Always, SyncMode::Interval(200_000), SyncMode::Os];
const KEYS: usize = 40;
/// A key that rarely changes. Its value is longer than two segments, so the collection of garbage
/// moves it part by part.
const LONG_LIVED: usize = 39;
const LONG_LIVED_BYTES: usize = 150_000;

#[derive(Debug, Default)]
struct Census {
    points: BTreeMap<&'static str, u64>,
    images: u64,
    /// Items found whose value is longer than a segment.
    long: u64,
    /// Reads by another core of changes that were not durable.
    beside: u64,
}

impl Census {
    /// A start has found these items.
    fn note(&mut self, found: &[Option<Found>]) {
        let is_long = |item: &&Found| item.value.len() as u64 > SEGMENT_BYTES_MIN;
        self.long += found.iter().flatten().filter(is_long).count() as u64;
    }
}

/// Cuts the power now, and judges what a start finds.
fn cut(traffic: &Traffic, seed: u64, census: &mut Census) {
    let store = &traffic.process.store;
    let store = store.on(&store.disk.crash(seed));
    let started = traffic.ledger.clone().start(&store, &traffic.acknowledged(true), seed + 1);
    let started = started.unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
    census.note(&started.found);
    census.images += 2;
}

#[test]
fn no_power_cut_loses_an_acknowledged_change_or_brings_an_item_back() {
    let mut census = Census::default();
    for seed in 0..count(9, 300) {
        let engines = 1 + (seed / 3 % 3) as u16;
        let store = Store::create(seed, MODES[(seed % 3) as usize], engines, SEGMENTS);
        let store = Store { cas: seed % 4 != 3, ..store };
        store.disk.set_plan(delays());
        let mut traffic = Traffic::new(&store, KEYS, seed);
        traffic.ask(set(LONG_LIVED, vec![7; LONG_LIVED_BYTES]));
        let mut number = seed << 32;
        for _ in 0..300 {
            traffic.act();
            traffic.pump(|traffic, name| {
                number += 10;
                *census.points.entry(name).or_default() += 1;
                cut(traffic, number, &mut census);
            });
        }
        census.beside += traffic.fenced_beside;
    }
    println!("{census:?}");
    for name in ["commit", "slot 0", "slot 1", "allocate", "sync", "read"] {
        assert!(census.points.contains_key(name), "no cut at {name}");
    }
    assert!(census.images > 2_000 && census.long > 50 && census.beside > 50, "{census:?}");
}

/// Cuts the power at each write of a start. Each time, a start finds the same items as without it.
fn cut_in_start(traffic: &Traffic, store: &Store, census: &mut Census) {
    let cuts = Rc::<RefCell<Vec<_>>>::default();
    let interrupted = Store { cuts: Some(Rc::clone(&cuts)), ..store.clone() };
    let mut process = Process::start(&interrupted).unwrap_or_else(|error| panic!("{error}"));
    let now = process.now();
    let found = traffic.ledger.read_all(&mut process, &now);
    for image in cuts.take() {
        let mut process =
            Process::start(&store.on(&image)).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(traffic.ledger.read_all(&mut process, &now), found, "after a cut in a start");
        census.images += 1;
    }
}

#[test]
fn the_same_seed_gives_the_same_logs() {
    let logs = |seed| {
        let store = Store::create(seed, SyncMode::Always, 3, SEGMENTS);
        store.disk.set_plan(delays());
        let mut traffic = Traffic::new(&store, KEYS, seed);
        for _ in 0..500 {
            traffic.act();
            traffic.pump(|_, _| {});
        }
        store.disk.image()
    };
    assert!(logs(1) == logs(1) && logs(1) != logs(2));
}

/// A store that is killed, or loses power, again and again, also while it starts.
#[test]
fn a_store_lives_through_one_crash_after_the_other() {
    let mut census = Census::default();
    let (mut executed, mut prefixes) = (0, 0);
    for seed in 0..count(12, 600) {
        let engines = 1 + (seed % 2) as u16;
        let store = Store::create(seed, MODES[(seed % 3) as usize], engines, SEGMENTS);
        let mut store = Store { cas: seed % 4 != 3, ..store };
        let mut traffic = Traffic::new(&store, KEYS, seed);
        traffic.ask(set(LONG_LIVED, vec![7; LONG_LIVED_BYTES]));
        for cycle in 0..12 {
            let number = seed << 32 | cycle << 16;
            store.disk.set_plan(delays());
            for _ in 0..traffic.below(800) {
                traffic.act();
                traffic.pump(|_, _| {});
            }
            if cycle % 4 == 0 {
                traffic.settle();
            }
            executed += traffic.executed;
            prefixes += traffic.prefixes_flushed;
            let is_power_cut = cycle % 3 != 2;
            let acknowledged = traffic.acknowledged(is_power_cut);
            if is_power_cut {
                store = store.on(&store.disk.crash(number));
                cut_in_start(&traffic, &store.on(&store.disk.crash(number + 1)), &mut census);
            }
            let Traffic { process, ledger, .. } = traffic;
            drop(process);
            traffic = Traffic::restart(ledger, &store, &acknowledged, number + 2);
            census.images += 2;
        }
    }
    println!("{} images, {executed} requests, {prefixes} flushes of prefixes", census.images);
    assert!(executed > 10_000 && prefixes > 100, "{executed}, {prefixes}");
}

/// Executes a request while nothing else is under way, and then upkeep.
fn ask(process: &mut Process, request: Request) {
    let now = process.now();
    process.ask(&request, &now);
    process.rest();
    process.maintain();
}

/// Which of the first 14 keys have an item after a start.
fn keys_after_start(store: &Store) -> Vec<bool> {
    let mut process = Process::start(store).expect("it is whole");
    let now = process.now();
    (0..14).map(|key| process.find(key, &now).expect("it can be read").is_some()).collect()
}

/// The segment with the grave has more garbage than that with the item, so it is collected first.
#[test]
fn a_deleted_item_stays_away_while_an_older_segment_has_it() {
    let store = Store::create(1, SyncMode::Always, 1, SEGMENTS);
    let mut process = Process::start(&store).expect("a new store");
    for key in 0..14 {
        ask(&mut process, set(key, vec![1; 3_900]));
    }
    ask(&mut process, delete(0));
    for number in 0..300 {
        ask(&mut process, set(20, vec![number as u8; 3_000]));
    }
    drop(process);
    let there = keys_after_start(&store);
    assert_eq!(there, [&[false][..], &[true; 13]].concat());
}

/// Flushes the prefix that is the key with a number.
fn flush_key(process: &Process, key: usize) {
    let key = key_bytes(key);
    let prefix = BytePrefix::of_bytes(&key).expect("a key is no longer");
    process.common.flush_prefix(&prefix).expect("few are under way");
}

/// The segment with the record of the flush has more garbage than that with the item, so it is
/// collected first.
#[test]
fn a_flushed_item_stays_away_while_an_older_segment_has_it() {
    let store = Store::create(1, SyncMode::Always, 1, SEGMENTS);
    let mut process = Process::start(&store).expect("a new store");
    for key in 0..14 {
        ask(&mut process, set(key, vec![1; 3_900]));
    }
    flush_key(&process, 3);
    flush_key(&process, 30); // The newest record always stays.
    for number in 0..300 {
        ask(&mut process, set(20, vec![number as u8; 3_000]));
    }
    assert_eq!(process.common.live_prefixes(), 0, "both are over");
    drop(process);
    let there = keys_after_start(&store);
    assert_eq!(there, [&[true; 3][..], &[false], &[true; 10]].concat());
}

/// A flush is noted while a large value is being written. When that ends, a change is made in the
/// same hold of the engine.
#[test]
fn no_change_overtakes_the_record_of_a_flush() {
    let store = Store::create(1, SyncMode::Always, 1, SEGMENTS);
    let store = Store { memory_bytes: 8 << 20, ..store };
    let mut process = Process::start(&store).expect("a new store");
    let now = process.now();
    process.ask(&set(3, vec![1]), &now);
    while process.execute(&set(1, vec![1; 300_000]), None, &now).is_err() {
        process.turn();
    }
    flush_key(&process, 3);
    process.maintain(); // The engine is entered.
    let mut turns = 0;
    while process.execute_entered(&set(3, vec![2]), None, &now).is_err() {
        process.turn();
        turns += 1;
    }
    assert!(turns > 2, "the value was being written");
    process.rest();
    let found = process.find(3, &now).expect("it can be read");
    assert_eq!(found.map(|found| found.value), Some(vec![2]), "it was stored after the flush");
}

/// Another core flushes a prefix between the beginning of an operation and its lookup. What the
/// operation stores was stored after the flush, for the cache and on the log.
#[test]
fn a_flush_that_a_lookup_notes_comes_before_the_change() {
    let store = Store::create(1, SyncMode::Always, 1, SEGMENTS);
    let mut process = Process::start(&store).expect("a new store");
    let now = process.now();
    ask(&mut process, set(3, vec![1])); // The engine is entered.
    flush_key(&process, 3);
    while process.execute_entered(&set(3, vec![2]), None, &now).is_err() {
        process.turn();
    }
    process.rest();
    drop(process);
    assert!(keys_after_start(&store)[3], "it was stored after the flush");
}

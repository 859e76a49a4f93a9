//! A store that is copied while its engines go on: a start over the copy finds what a crash during
//! the backup could have left, with all that was acknowledged before.

use kachel_io::Files as _;
use kachel_io::memory::disk::Disk;
use kachel_log::{LogCopy, LogIdentity, Refusal, SyncMode, Task, WatchCopy};
use kachel_testkit::count;

use crate::files::{SEGMENTS, Store, backend, completions, write_log};
use crate::traffic::{Ledger, Traffic, delays};

const MODES: [SyncMode; 3] = [SyncMode::Always, SyncMode::Interval(200_000), SyncMode::Os];
const KEYS: usize = 40;

/// Counts the bytes of a copy.
#[derive(Debug)]
struct Watch;

impl WatchCopy for Watch {
    fn copied(&mut self, _bytes: u64) {}
}

/// Runs a task of a backup. The clients go on, slower than the task.
fn run<T>(traffic: &mut Traffic, seed: u64, task: Task<Result<T, Refusal>>) -> T {
    let mut task = task;
    let mut memory = backend(&traffic.process.store.disk);
    for turn in 0.. {
        if turn % (3 + seed % 40) == 0 {
            traffic.act();
        }
        if let Some(operation) = task.next_submission() {
            memory.submit(operation).expect("there is room");
        }
        if let Some(output) = task.take_output() {
            return output.unwrap_or_else(|refusal| panic!("seed {seed}: {refusal}"));
        }
        let mut done = Vec::new();
        while done.is_empty() {
            traffic.pump(|_, _| {});
            done.extend(completions(&mut memory));
        }
        done.into_iter().for_each(|operation| task.complete(operation));
    }
    unreachable!("the loop has no end")
}

/// The store of the copies of all logs, on a disk of its own.
fn copied(store: &Store) -> Store {
    let copy = store.on(&Disk::new(1, &store.clock));
    for (path, content) in store.disk.image() {
        let Some(folder) = path.strip_prefix("copy-").and_then(|path| path.split('/').next())
        else {
            continue;
        };
        write_log(&copy.disk, &format!("engine-{folder}"), &content);
    }
    copy
}

/// Copies a store as `kachel backup` does. Returns the copy, and what the store had to have when it
/// was whole.
fn back_up(traffic: &mut Traffic, seed: u64) -> (Store, Ledger) {
    let store = traffic.process.store.clone();
    let flushes = || store.flush_file();
    let mut copies = Vec::new();
    for engine in 0..store.engines {
        let folder = |kind: &str| store.disk.folder(&format!("{kind}-{engine:04}"));
        let identity = LogIdentity { store: store.identity, engine: engine.into() };
        let (from, to) = (folder("engine"), folder("copy"));
        let task = LogCopy::begin(from, to, identity, store.options.geometry, Watch);
        copies.push(run(traffic, seed, task));
    }
    let (flush, ledger) = loop {
        let (flush, mut cuts) = (flushes(), Vec::new());
        for copy in copies {
            cuts.push(run(traffic, seed, copy.cut()).0);
        }
        copies = cuts;
        if flushes() == flush {
            break (flush, traffic.ledger.clone());
        }
    };
    for copy in copies {
        run(traffic, seed, copy.finish());
    }
    let copy = copied(&store);
    copy.flushes.lock().expect("a panic ends the test").content = flush;
    (copy, ledger)
}

#[test]
fn a_copy_beside_traffic_is_what_a_crash_meanwhile_could_have_left() {
    let mut executed = 0;
    for seed in 0..count(24, 2_000) {
        let engines = 1 + (seed / 3 % 3) as u16;
        let store = Store::create(seed, MODES[(seed % 3) as usize], engines, SEGMENTS);
        store.disk.set_plan(delays());
        let mut traffic = Traffic::new(&store, KEYS, seed);
        for _ in 0..600 {
            traffic.act();
            traffic.pump(|_, _| {});
        }
        let (acknowledged, before) = (traffic.acknowledged(false), traffic.executed);
        let (copy, mut ledger) = back_up(&mut traffic, seed);
        executed += traffic.executed - before;
        let started = ledger.start(&copy, &acknowledged, seed);
        started.unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
    }
    println!("{executed} operations during backups");
    assert!(executed > 100, "{executed}");
}

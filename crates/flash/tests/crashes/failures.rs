//! The N-th operation of the disk fails, for every N, and disks that are full.

use kachel_engine::{DeleteTerms, Operation, StoreTerms, Ttl, Verb, Verdict};
use kachel_io::FileError;
use kachel_io::memory::disk::{Fault, FaultPlan, PlannedFault};
use kachel_log::{SEGMENT_BYTES_MIN, SyncMode};
use kachel_testkit::count;

use crate::files::{FlushFault, SEGMENTS, Store};
use crate::model::Flushes;
use crate::process::{Process, Request};
use crate::traffic::{Traffic, delays, lease};

const FAULTS: [Fault; 4] = [
    Fault::Error(FileError::IO),
    Fault::Error(FileError::NO_SPACE),
    Fault::Short,
    Fault::Cancelled,
];
const KEYS: usize = 20;

#[test]
fn an_operation_that_fails_loses_no_acknowledged_change() {
    let (mut latched, mut healed, mut prevented) = (0, 0, 0);
    for number in 1..=count(100, 500) {
        for (fault, forever) in FAULTS.into_iter().flat_map(|fault| [(fault, false), (fault, true)])
        {
            let mode = [SyncMode::Always, SyncMode::Os][(number % 2) as usize];
            let store = Store::create(number, mode, 1, SEGMENTS);
            let mut traffic = Traffic::new(&store, KEYS, 7);
            traffic.may_fail = true;
            let planned = vec![PlannedFault { kind: None, number, forever, fault }];
            store.disk.set_plan(FaultPlan { planned, ..delays() });
            let mut changes = None;
            for _ in 0..400 {
                if traffic.process.stations[0].submitted > number + 20 {
                    break;
                }
                traffic.act();
                traffic.pump(|_, _| {});
                if traffic.has_failed() {
                    let now = traffic.process.stations[0].changes;
                    let before = *changes.get_or_insert(now);
                    assert_eq!(now, before, "nothing is written or synced any more");
                }
            }
            store.disk.set_plan(delays());
            if !traffic.has_failed() {
                traffic.settle(); // The operation that fails may be in flight.
            }
            if traffic.has_failed() {
                let text = format!("{fault:?} of operation {number}");
                assert!(fault != Fault::Short, "{text}");
                latched += 1;
            } else {
                traffic.may_fail = false;
                for _ in 0..20 {
                    traffic.act();
                    traffic.pump(|_, _| {});
                }
                healed += 1;
            }
            prevented += traffic.failed;
            let is_power_cut = number % 3 != 0;
            // A sync that fails may lose what the kernel has.
            let acknowledged = traffic.acknowledged(is_power_cut || traffic.has_failed());
            let Traffic { process, ledger, .. } = traffic;
            let image = if is_power_cut { store.disk.crash(number) } else { store.disk.clone() };
            drop(process);
            Traffic::restart(ledger, &store.on(&image), &acknowledged, number);
        }
    }
    println!("{latched} latched, {healed} healed or were not hit, {prevented} prevented");
    assert!(latched > 100 && healed > 100 && prevented > 0, "{latched}, {healed}, {prevented}");
}

/// A flush that cannot be kept is not acknowledged, and ends all changes. The flushes before it
/// stand, so one that was pending is carried out. A start finds them, or the new ones if these may
/// have got their name.
#[test]
fn a_file_of_flushes_that_cannot_be_replaced_ends_all_changes() {
    let faults = [FlushFault::Write, FlushFault::Sync, FlushFault::Rename, FlushFault::SyncFolder];
    let (mut carried_out, mut prevented) = (0, 0);
    for seed in 0..count(48, 600) {
        let fault = faults[(seed % 4) as usize];
        let store = Store::create(seed, SyncMode::Always, 2, SEGMENTS);
        store.disk.set_plan(delays());
        let mut traffic = Traffic::new(&store, KEYS, seed);
        for _ in 0..150 {
            traffic.act();
            traffic.pump(|_, _| {});
        }
        if seed / 4 % 2 == 0 {
            traffic.flush(Some(2));
        }
        store.refuse_flushes(fault);
        traffic.may_fail = true;
        let pending = traffic.ledger.flushes;
        traffic.flush([Some(0), Some(1), None][(seed / 8 % 3) as usize]);
        let changes = traffic.changes();
        for _ in 0..150 {
            traffic.act();
            traffic.pump(|_, _| {});
        }
        assert_eq!(traffic.changes(), changes, "seed {seed}: nothing is changed any more");
        let acknowledged = traffic.acknowledged(true);
        let now = traffic.process.now();
        let Traffic { process, mut ledger, failed, .. } = traffic;
        drop(process);
        prevented += failed;
        let kept = store.kept_flushes();
        let found = Flushes { epoch: kept.epoch, due_unix_s: kept.due_unix_s.into() };
        if fault == FlushFault::SyncFolder {
            ledger.flushes = found;
        } else {
            carried_out += u64::from(ledger.flushes != pending);
            let by_now = found.by(now.unix(now.second));
            assert_eq!(by_now, ledger.flushes, "seed {seed}: the old ones stand");
        }
        Traffic::restart(ledger, &store.on(&store.disk.crash(seed)), &acknowledged, seed);
    }
    assert!(carried_out > 3 && prevented > 500, "{carried_out} carried out, {prevented} prevented");
}

pub(crate) fn set(key: usize, value: Vec<u8>) -> Request {
    let hasher = kachel_engine::KeyHasher::new(kachel_engine::Seeds { hash_keys: [0; 2] }, 1);
    let Verb::Store(terms) = Operation::set(hasher.key(b"k"), value.len(), Ttl(0)).verb else {
        unreachable!("it stores");
    };
    Request { key, verb: Verb::Store(StoreTerms { client_flags: key as u32, ..terms }), value }
}

pub(crate) fn delete(key: usize) -> Request {
    Request { key, verb: Verb::Delete(DeleteTerms::default()), value: Vec::new() }
}

/// Fills a store with items until one is refused. Returns how many there are.
fn fill(process: &mut Process, round: usize) -> usize {
    for key in 0..10_000 {
        let value = vec![(key + round) as u8; 2_000 + key % 9 * 100];
        let now = process.now();
        match process.ask(&set(key, value), &now).verdict {
            Verdict::Stored { .. } => {}
            Verdict::NoMemory { .. } => return key,
            other => panic!("{other:?}"),
        }
    }
    panic!("it is never full");
}

/// Fills a store, reads all, deletes all, ten times.
fn fill_and_empty(store: &Store) {
    let store = &Store { memory_bytes: 8 << 20, ..store.clone() };
    let mut process = Process::start(store).expect("a new store");
    let mut least = 0;
    for round in 0..10 {
        let keys = fill(&mut process, round);
        println!("round {round}: {keys} items");
        // The first round meets the end of the disk while items lie as they came.
        least = if round == 0 { keys * 6 / 10 } else { least.max(keys * 8 / 10) };
        assert!(keys >= least && keys > 200, "{keys} items fit, not {least}");
        for key in 0..keys {
            let now = process.now();
            let found = process.find(key, &now).expect("a read does not fail");
            let found = found.unwrap_or_else(|| panic!("key {key} of round {round} is there"));
            assert_eq!(found.value, vec![(key + round) as u8; 2_000 + key % 9 * 100]);
        }
        for key in 0..keys {
            let now = process.now();
            let seen = process.ask(&delete(key), &now);
            assert_eq!(seen.verdict, Verdict::Deleted, "key {key} of {keys}, round {round}");
        }
        if round % 3 == 2 {
            process.rest();
            drop(process);
            process = Process::start(store).expect("it is full, and starts");
        }
    }
}

#[test]
fn a_full_log_is_emptied_by_deletes_and_filled_again() {
    let store = Store::create(1, SyncMode::Always, 1, SEGMENTS);
    fill_and_empty(&store);
}

#[test]
fn a_full_disk_is_emptied_by_deletes_and_filled_again() {
    let store = Store::create(2, SyncMode::Always, 1, 1_000);
    let segment_blocks = SEGMENT_BYTES_MIN as usize / kachel_io::memory::disk::BLOCK_BYTES;
    store.disk.set_blocks_max(segment_blocks * SEGMENTS as usize + segment_blocks / 2);
    fill_and_empty(&store);
}

/// The fault: while a file system was full in the middle of a large value, no item of the engine
/// could be changed.
#[test]
fn a_large_value_never_meets_a_full_disk_in_its_middle() {
    let segment_blocks = SEGMENT_BYTES_MIN as usize / kachel_io::memory::disk::BLOCK_BYTES;
    let (mut stored, mut refused) = (0, 0);
    for segments in 8..=24 {
        for large_bytes in [300_000, 700_000, 1_000_000] {
            let store = Store::create(4, SyncMode::Always, 1, 1_000);
            store.disk.set_blocks_max(segment_blocks * segments + segment_blocks / 2);
            let store = Store { memory_bytes: 8 << 20, ..store };
            let mut process = Process::start(&store).expect("a new store");
            for key in 0..3 {
                let now = process.now();
                let before =
                    match process.ask(&set(key, vec![key as u8; large_bytes]), &now).verdict {
                        Verdict::Stored { .. } => 1,
                        Verdict::NoMemory { .. } => 0,
                        other => panic!("{other:?}"),
                    };
                (stored, refused) = (stored + before, refused + 1 - before);
                let small = process.ask(&set(10 + key, vec![7; 100]), &now).verdict;
                let is_answered =
                    matches!(small, Verdict::Stored { .. } | Verdict::NoMemory { .. });
                assert!(is_answered, "{segments} segments: {small:?}");
            }
            let now = process.now();
            for key in 0..3 {
                let deleted = process.ask(&delete(key), &now).verdict;
                assert!(matches!(deleted, Verdict::Deleted | Verdict::Miss), "{deleted:?}");
            }
            assert!(matches!(
                process.ask(&set(0, vec![1; 100]), &now).verdict,
                Verdict::Stored { .. }
            ));
        }
    }
    assert!(stored > 10 && refused > 10, "{stored} stored, {refused} refused");
}

/// A delete that finds no room leaves nothing. A remnant would answer the first lease in the same
/// way, but it would end earlier than the lease does.
#[test]
fn a_lease_after_a_delete_without_room_lives_as_long_as_a_lease() {
    let store = Store::create(3, SyncMode::Always, 1, SEGMENTS);
    let store = Store { memory_bytes: 8 << 20, ..store };
    let mut traffic = Traffic::new(&store, 5_000, 3);
    traffic.may_fail = true; // The log will be full.
    traffic.ask(lease(0)); // From now on deletes leave remnants.
    traffic.ask(set(0, Vec::new()));
    let mut key = 1;
    for bytes in [3_000, 300, 0] {
        let refused = traffic.refused;
        while traffic.refused == refused {
            traffic.ask(set(key, vec![1; bytes]));
            key += 1;
        }
    }
    traffic.ask(delete(0));
    assert!(traffic.ledger.oracles[0].model.items[0].is_none(), "the delete found no room");
    traffic.ask(delete(1)); // Makes room.
    for seconds in [3, 2, 1] {
        traffic.process.store.clock.advance_s(seconds);
        traffic.ask(lease(0));
    }
}

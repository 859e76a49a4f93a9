//! Files that are damaged, truncated or foreign, and disks that read wrong bytes.

use kachel_io::SeededRng;
use kachel_io::memory::disk::{ChanceFault, Disk, Fault, FaultPlan};
use kachel_log::SyncMode;
use kachel_testkit::{DAMAGE_KINDS, count, damaged};

use crate::files::{SEGMENTS, Store, write_log};
use crate::oracle::Found;
use crate::process::Process;
use crate::traffic::{Traffic, delays};

const KEYS: usize = 20;

/// A store, its items before the last change, and after it.
struct Whole {
    store: Store,
    items: [Vec<Option<Found>>; 2],
}

fn whole() -> Whole {
    let store = Store::create(6, SyncMode::Always, 1, SEGMENTS);
    store.disk.set_plan(delays());
    let mut traffic = Traffic::new(&store, KEYS, 6);
    for _ in 0..600 {
        traffic.act();
        traffic.pump(|_, _| {});
    }
    traffic.settle();
    let Traffic { mut process, ledger, .. } = traffic;
    // Nothing expires or is flushed later.
    store.clock.advance_s(1_000);
    let now = process.now();
    for key in 0..KEYS {
        process.ask(&crate::failures::set(key, vec![key as u8; key * 500]), &now);
    }
    process.rest();
    let before = ledger.read_all(&mut process, &now);
    process.ask(&crate::failures::set(3, b"last".to_vec()), &now);
    process.rest();
    let after = ledger.read_all(&mut process, &now);
    Whole { store, items: [before, after] }
}

/// The store on a disk with a log of this content.
fn store_of(store: &Store, content: &[u8]) -> Store {
    let disk = Disk::new(1, &store.clock);
    write_log(&disk, "engine-0000", content);
    store.on(&disk)
}

/// What became of a start and of its reads.
#[derive(Debug, Default)]
struct Tally {
    refused: u64,
    unreadable: u64,
    right: u64,
}

impl Whole {
    /// Reads each key: it is right, or cannot be read.
    fn read(&self, process: &mut Process, what: &str, tally: &mut Tally) {
        let now = process.now();
        for key in 0..KEYS {
            match process.find(key, &now) {
                Ok(found) => {
                    let is_right = self.items.iter().any(|items| items[key] == found);
                    assert!(is_right, "{what}: key {key} is {found:?}");
                    tally.right += 1;
                }
                Err(()) => tally.unreadable += 1,
            }
        }
    }

    /// Starts a store with this content: it is refused by name, or each key is right or unreadable.
    fn start(&self, content: &[u8], what: &str, tally: &mut Tally) {
        let store = store_of(&self.store, content);
        match Process::start(&store) {
            Ok(mut process) => self.read(&mut process, what, tally),
            Err(refusal) => {
                let text = refusal.to_string();
                assert!(text.starts_with("engine-0000/log, offset "), "{what}: {text}");
                assert!(store.disk.image()[0].1 == content, "{what}: it is as it was");
                tally.refused += 1;
            }
        }
    }
}

#[test]
fn a_damaged_store_is_refused_by_name_or_has_the_right_items() {
    let whole = whole();
    let [(_, content)] = whole.store.disk.image().try_into().expect("one file");
    let mut tally = Tally::default();
    whole.start(&content, "as it is", &mut tally);
    assert_eq!(tally.right, KEYS as u64);
    let mut dice = SeededRng::new(9);
    let mut tallies: [Tally; DAMAGE_KINDS] = Default::default();
    for number in 0..count(500, 10_000) {
        let (damaged, what) = damaged(&content, number, &mut dice);
        let kind = number as usize % DAMAGE_KINDS;
        whole.start(&damaged, &what, &mut tallies[kind]);
    }
    println!("{tallies:?}");
    assert!(tallies.iter().all(|tally| tally.refused > 20), "{tallies:?}");
}

/// The file of the flushes says which items are dead, so no start may believe a damaged one.
#[test]
fn a_damaged_file_of_the_flushes_is_refused_by_name_and_stays_as_it_is() {
    let Whole { store, .. } = whole();
    let (content, logs) = (store.flush_file(), store.disk.image());
    let refuse = |damaged: Vec<u8>, what: &str| {
        let store = store.on(&store.disk);
        store.flushes.lock().expect("a panic ends the test").content.clone_from(&damaged);
        let refusal = Process::start(&store).expect_err(what).to_string();
        assert_eq!(refusal, "kachel.flush is damaged", "{what}");
        assert!(store.flush_file() == damaged && store.disk.image() == logs, "{what}: it stays");
    };
    for at in 0..content.len() {
        refuse(content[..at].to_vec(), &format!("{at} bytes"));
        for bit in 0..8 {
            let mut damaged = content.clone();
            damaged[at] ^= 1 << bit;
            refuse(damaged, &format!("byte {at}, bit {bit}"));
        }
    }
    refuse([&content[..], b"\n"].concat(), "a byte more");
    Process::start(&store).expect("it is whole");
}

#[test]
fn a_log_of_another_engine_or_of_another_store_is_refused() {
    let mut store = Store::create(1, SyncMode::Always, 2, SEGMENTS);
    drop(Process::start(&store).expect("a new store"));
    let [(_, first), _] = store.disk.image().try_into().expect("two files");
    let single = Store { engines: 1, ..store.clone() };
    let text = |store: &Store| Process::start(store).expect_err("it is foreign").to_string();
    let foreign = "it belongs to another store or another engine";
    let other = Store { identity: 9, ..store_of(&single, &first) };
    assert_eq!(text(&other), format!("engine-0000/log, offset 0: {foreign}"));
    store.identity = 9;
    assert_eq!(text(&store), format!("engine-0000/log, offset 0: {foreign}"));
}

#[test]
fn a_disk_that_reads_wrong_bytes_gives_an_error_and_never_a_wrong_item() {
    let whole = whole();
    let mut tally = Tally::default();
    for (number, fault) in
        [Fault::RotOnce, Fault::MisdirectedRead, Fault::RotLasting].into_iter().enumerate()
    {
        let store = whole.store.on(&whole.store.disk.crash(number as u64));
        let mut process = Process::start(&store).expect("it is whole");
        let chances = vec![ChanceFault { kind: None, permille: 1000, fault }];
        store.disk.set_plan(FaultPlan { chances, ..FaultPlan::default() });
        whole.read(&mut process, &format!("{fault:?}"), &mut tally);
    }
    println!("{tally:?}");
    assert!(tally.unreadable > KEYS as u64, "{tally:?}");
}

//! Operations that wait for room on a log that takes no more for now.

use kachel_engine::{Engine as _, Ttl, Verb, Verdict};
use kachel_log::SyncMode;

use crate::failures::set;
use crate::files::{SEGMENTS, Store};
use crate::process::{Process, Request};

/// Bytes of a value that takes many commits. Meanwhile no other item can be changed.
const LARGE_BYTES: usize = 500_000;

fn store() -> Store {
    Store { memory_bytes: 8 << 20, ..Store::create(1, SyncMode::Always, 1, SEGMENTS) }
}

/// Begins to write a large value.
fn saturate(process: &mut Process) {
    let now = process.now();
    while process.execute(&set(1, vec![1; LARGE_BYTES]), None, &now).is_err() {
        process.turn();
    }
}

/// The reads that were submitted.
fn reads(process: &Process) -> u64 {
    process.stations[0].submitted - process.stations[0].changes
}

#[test]
fn an_operation_that_waits_for_room_is_named_when_it_has_come() {
    let mut process = Process::start(&store()).expect("a new store");
    let now = process.now();
    saturate(&mut process);
    assert_eq!(process.execute(&set(2, vec![2]), None, &now).err(), Some(0));
    let before = process.stations[0].rooms_named;
    let mut turns = 0;
    while {
        assert!(!process.stations[0].engine.await_room(), "it will be named");
        while !process.stations[0].ready.remove(&0) {
            process.turn();
            turns += 1;
        }
        process.execute(&set(2, vec![2]), Some(0), &now).is_err()
    } {}
    let named = process.stations[0].rooms_named - before;
    println!("named {named} times in {turns} turns");
    // First there is room for any change, and then for one that leaves segments for deletions.
    assert!(turns > 10 && named <= 2, "named {named} times in {turns} turns");
}

/// The log has room each time the item is asked for, and none when it was read.
#[test]
fn an_item_is_read_once_while_its_change_waits_for_room() {
    let store = store();
    let mut process = Process::start(&store).expect("a new store");
    process.ask(&set(2, vec![2; 300]), &process.now());
    process.rest();
    drop(process);
    let mut process = Process::start(&store).expect("it is whole");
    let now = process.now();
    let touch = Request { key: 2, verb: Verb::Touch(Ttl(100)), value: Vec::new() };
    let (mut rounds, mut ticket) = (0, None);
    let verdict = loop {
        match process.execute(&touch, ticket.take(), &now) {
            Ok((seen, _)) => break seen.verdict,
            Err(0) => process.rest(),
            Err(read) => {
                saturate(&mut process);
                while !process.stations[0].ready.remove(&read) {
                    process.turn();
                }
                ticket = Some(read);
                rounds += 1;
            }
        }
        assert!(rounds < 5, "it is read again and again");
    };
    assert_eq!(verdict, Verdict::Touched);
    assert_eq!((rounds, reads(&process)), (1, 1));
}

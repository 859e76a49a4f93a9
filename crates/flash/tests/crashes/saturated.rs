//! Operations that wait for room on a log that takes no more for now.

use kachel_engine::Engine as _;
use kachel_log::SyncMode;

use crate::failures::set;
use crate::files::{SEGMENTS, Store};
use crate::process::Process;

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

//! Neighbors: a client beside one that makes the server work as much as it can is answered at once,
//! because the work of each turn and of each hold of an engine is bounded.

use kachel_io::FarEnd;
use kachel_shard::{HOLD_BYTES_MAX, TURN_BYTES_MAX};
use kachel_testkit::{World, WorldOptions};

/// Ticks in which a request is received, served, and its reply read.
const TURNS_OF_A_REPLY: usize = 2;
/// Requests that the neighbor pipelines.
const REQUESTS: usize = 1_000;
/// Bytes of the large values that are attacked.
const SIZES: [usize; 2] = [900_000, 15_000_000];
/// Bytes of memory of each server.
const MEMORY_BYTES: u64 = 96 << 20;
/// The most work of the last request of a turn or a hold, and of the upkeep beside it: 128 KiB, and
/// 256 bytes for each block of 16 KiB of the values that a step of upkeep frees after a flush.
/// These may be all of them.
const REQUEST_BYTES_MAX: u64 = (128 << 10) + (MEMORY_BYTES >> 14) * 256;

fn world(shards: u16) -> World {
    let (memory_bytes, item_bytes_max) = (MEMORY_BYTES, 32 << 20);
    World::new(WorldOptions { shards, memory_bytes, item_bytes_max, ..WorldOptions::default() })
}

fn set(world: &mut World, client: &FarEnd, key: &str, bytes: usize) {
    let value = "v".repeat(bytes);
    let said = world.ask(client, format!("set {key} 0 0 {bytes}\r\n{value}\r\n").as_bytes());
    assert_eq!(said, b"STORED\r\n");
}

fn most(world: &World, counter: impl Fn(&kachel_shard::Counters) -> &kachel_shard::Counter) -> u64 {
    world.shared.counters.iter().map(|counters| counter(counters).value()).max().unwrap_or(0)
}

/// The length of the value under `big`.
fn length(world: &mut World, client: &FarEnd) -> usize {
    let said = String::from_utf8(world.ask(client, b"mg big s\r\n")).expect("text");
    said.trim().strip_prefix("HD s").expect("a hit").parse().expect("a number")
}

/// Has a neighbor send `requests` at once, while a victim asks again and again, and checks that
/// each question is answered at once and the work of each tick and hold is bounded.
fn attack(world: &mut World, requests: &str) {
    let (busy, victim) = (world.connect(), world.connect());
    assert_eq!(world.ask(&busy, b"mn\r\n"), b"MN\r\n");
    set(world, &victim, "small", 100);
    let ticks = world.sum(|counters| &counters.busy_ticks);
    busy.write(requests.as_bytes());
    for question in 0..50 {
        victim.write(b"get small\r\n");
        (0..TURNS_OF_A_REPLY).for_each(|_| world.turn());
        let said = victim.read();
        assert!(said.ends_with(b"END\r\n"), "question {question} waits: {requests:.40}");
        drop(busy.read());
    }
    world.settle();
    drop(busy.read());
    let name = requests.lines().next().unwrap_or_default();
    let ticks = world.sum(|counters| &counters.busy_ticks) - ticks;
    let tick = most(world, |counters| &counters.longest_tick_bytes);
    let hold = most(world, |counters| &counters.longest_hold_bytes);
    assert!(hold <= 2 * HOLD_BYTES_MAX + REQUEST_BYTES_MAX, "{name}: {hold} bytes in a hold");
    assert!(tick <= 2 * TURN_BYTES_MAX + REQUEST_BYTES_MAX, "{name}: {tick} in {ticks} ticks");
    assert!(
        busy.read().is_empty() && world.ask(&busy, b"mn\r\n") == b"MN\r\n",
        "{name}: all served"
    );
}

#[test]
fn a_client_beside_one_that_extends_a_large_value_is_answered_at_once() {
    for (shards, bytes) in [(1, SIZES[0]), (1, SIZES[1]), (2, SIZES[0])] {
        for verb in ["prepend", "append"] {
            let mut world = world(shards);
            let client = world.connect();
            set(&mut world, &client, "big", bytes);
            attack(&mut world, &format!("{verb} big 0 0 1 noreply\r\nx\r\n").repeat(REQUESTS));
            assert_eq!(length(&mut world, &client), bytes + REQUESTS, "{verb}");
            world.audit();
        }
    }
}

#[test]
fn a_client_beside_one_that_extends_a_pinned_value_is_answered_at_once() {
    for bytes in SIZES {
        let mut world = world(1);
        let (client, reader) = (world.connect(), world.connect());
        set(&mut world, &client, "big", bytes);
        assert_eq!(world.ask(&reader, b"mn\r\n"), b"MN\r\n");
        reader.stall();
        reader.write(b"get big\r\n");
        world.settle();
        let both = "prepend big 0 0 1 noreply\r\nx\r\nappend big 0 0 1 noreply\r\nx\r\n";
        attack(&mut world, &both.repeat(REQUESTS / 2));
        assert_eq!(length(&mut world, &client), bytes + REQUESTS);
        reader.allow(usize::MAX);
        world.settle();
        let said = reader.read();
        let is_value = said.len() > bytes && !said.contains(&b'x');
        assert!(is_value, "the reader gets the value that it requested");
        world.audit();
    }
}

#[test]
fn a_client_beside_one_that_sends_any_other_request_is_answered_at_once() {
    let requests = [
        "get missing\r\n",
        "gat 100 big-missing small\r\n",
        "mg big s t f\r\n",
        "touch big 100 noreply\r\n",
        "incr big 1 noreply\r\n",
        "md big I q\r\n",
        "flush_all noreply\r\n",
        "flush_all noreply\r\nset other 0 0 1 noreply\r\nx\r\n",
        "cache_memlimit 64 noreply\r\ncache_memlimit 96 noreply\r\n",
        "cache_memlimit 32 noreply\r\nset other 0 0 1 noreply\r\nx\r\ncache_memlimit 96 noreply\r\n",
        "verbosity 0 noreply\r\n",
        "no such command\r\n",
    ];
    for (bytes, request) in SIZES.into_iter().flat_map(|bytes| requests.map(|line| (bytes, line))) {
        let mut world = world(1);
        let client = world.connect();
        for number in 0..60_000_000 / bytes {
            set(&mut world, &client, &format!("k{number}"), bytes);
        }
        set(&mut world, &client, "big", bytes);
        attack(&mut world, &request.repeat(REQUESTS));
        world.audit();
    }
}

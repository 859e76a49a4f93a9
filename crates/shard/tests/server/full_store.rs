//! A full store: a request that it refuses removes no item, unless the request is a plain `set`.

use std::sync::Arc;

use kachel_engine::EngineIndex;
use kachel_io::FarEnd;
use kachel_testkit::{World, WorldOptions};

const OUT_OF_MEMORY: &[u8] = b"SERVER_ERROR out of memory storing object\r\n";

fn store(shards: u16) -> (World, FarEnd) {
    store_of(shards, None)
}

fn store_of(shards: u16, engines: Option<u16>) -> (World, FarEnd) {
    let memory_bytes = 3 << 20;
    let options =
        WorldOptions { shards, engines, evict: false, memory_bytes, ..WorldOptions::default() };
    let world = World::new(options);
    let client = world.connect();
    (world, client)
}

/// Fills memory with values of 1 KB, then with ever smaller ones. How many of the former there are.
fn fill(world: &mut World, client: &FarEnd) -> usize {
    let mut stored = 0;
    for (name, bytes) in [("k", 1_000), ("l", 200), ("m", 8), ("n", 0)] {
        let mut refused = 0;
        for number in 0.. {
            let value = "v".repeat(bytes);
            let set = format!("set {name}{number} 0 0 {bytes}\r\n{value}\r\n");
            match world.ask(client, set.as_bytes()).as_slice() {
                b"STORED\r\n" if name == "k" => stored += 1,
                b"STORED\r\n" => {}
                OUT_OF_MEMORY => refused += 1,
                other => panic!("{}", other.escape_ascii()),
            }
            if refused == 40 {
                break;
            }
        }
    }
    stored
}

/// Asks, and demands that key `k{number}` then has (or lacks) its value.
fn refuse(
    world: &mut World,
    client: &FarEnd,
    number: usize,
    (request, reply): (&str, &[u8]),
    stays: bool,
) {
    let key = format!("k{number}");
    let asked = request.replace("KEY", &key);
    let shown = &asked[..asked.len().min(30)];
    assert_eq!(world.ask(client, asked.as_bytes()), reply, "{shown:?}");
    let value = world.ask(client, format!("get {key}\r\n").as_bytes());
    let whole = format!("VALUE {key} 0 1000\r\n{}\r\nEND\r\n", "v".repeat(1_000));
    let wanted = if stays { whole.as_bytes() } else { b"END\r\n" };
    assert!(value == wanted, "{shown:?}: {} bytes are left", value.len());
}

#[test]
fn only_a_plain_set_that_is_refused_takes_away_what_it_would_have_replaced() {
    for shards in [1, 2] {
        let (mut world, client) = store(shards);
        assert!(fill(&mut world, &client) > 1_000);
        let longer = "w".repeat(3_000);
        let much = "w".repeat(60_000);
        let rows: [(String, &[u8], bool); 14] = [
            (format!("ms KEY 3000 MA\r\n{longer}\r\n"), b"NS\r\n", true),
            (format!("ms KEY 3000 MP\r\n{longer}\r\n"), b"NS\r\n", true),
            (format!("ms KEY 3000 MA N0\r\n{longer}\r\n"), b"NS\r\n", true),
            (format!("append KEY 0 0 3000\r\n{longer}\r\n"), b"NOT_STORED\r\n", true),
            (format!("prepend KEY 0 0 3000\r\n{longer}\r\n"), b"NOT_STORED\r\n", true),
            (format!("replace KEY 0 0 3000\r\n{longer}\r\n"), OUT_OF_MEMORY, true),
            (format!("ms KEY 3000 MR\r\n{longer}\r\n"), OUT_OF_MEMORY, true),
            (format!("ms KEY 60000 MA\r\n{much}\r\n"), OUT_OF_MEMORY, true),
            (format!("ms KEY 60000 MR\r\n{much}\r\n"), OUT_OF_MEMORY, true),
            (format!("append KEY 0 0 60000\r\n{much}\r\n"), OUT_OF_MEMORY, true),
            (format!("set KEY 0 0 3000\r\n{longer}\r\n"), OUT_OF_MEMORY, false),
            (format!("ms KEY 3000\r\n{longer}\r\n"), OUT_OF_MEMORY, false),
            (format!("set KEY 0 0 60000\r\n{much}\r\n"), OUT_OF_MEMORY, false),
            (format!("ms KEY 60000 MS\r\n{much}\r\n"), OUT_OF_MEMORY, false),
        ];
        for (number, (request, reply, stays)) in rows.iter().enumerate() {
            refuse(&mut world, &client, number, (request, reply), *stays);
        }
    }
}

#[test]
fn a_large_value_is_marked_stale_and_emptied_where_memory_is_full() {
    for shards in [1, 2] {
        let (mut world, client) = store(shards);
        let value = "w".repeat(50_000);
        let value_end = format!("\r\n{value}\r\n");
        for number in 0..8 {
            let set = format!("set large{number} 0 0 50000\r\n{value}\r\n");
            assert_eq!(world.ask(&client, set.as_bytes()), b"STORED\r\n");
        }
        fill(&mut world, &client);
        for number in 0..8 {
            let stale = format!("md large{number} I\r\n");
            assert_eq!(world.ask(&client, stale.as_bytes()), b"HD\r\n");
            let read = world.ask(&client, format!("mg large{number} v\r\n").as_bytes());
            assert!(read.starts_with(b"VA 50000 ") && read.ends_with(value_end.as_bytes()));
            let empties = format!("md large{number} x\r\n");
            assert_eq!(world.ask(&client, empties.as_bytes()), b"HD\r\n");
        }
    }
}

/// The fault: an upload that found its engine held left a request for room, and did not count the
/// answer that there was nothing to evict. It asked for ever.
#[test]
fn a_large_value_that_finds_its_engine_held_is_refused_after_a_bounded_number_of_asks() {
    let (mut world, client) = store_of(2, Some(1));
    fill(&mut world, &client);
    let value = "w".repeat(100_000);
    let engines = Arc::clone(&world.engines);
    let parked = world.parked();
    client.write(format!("set large 0 0 {}\r\n{value}\r\n", value.len()).as_bytes());
    let mut reply = Vec::new();
    for _ in 0..200 {
        let held = engines.hold(EngineIndex(0)).expect("no core holds it between ticks");
        (0..3).for_each(|_| world.turn());
        drop(held);
        world.turn_of(0); // It executes what was left, before it serves the client again.
        reply.extend(client.read());
    }
    assert_eq!(reply, OUT_OF_MEMORY);
    let asks = world.parked() - parked;
    assert!((32..40).contains(&asks), "{asks} requests were left with the holder");
}

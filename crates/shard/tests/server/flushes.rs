//! Flushes: which items they remove, on which shards, and when.

use kachel_io::FarEnd;

use kachel_testkit::{World, WorldOptions};

const SECOND_NS: u64 = 1_000_000_000;
/// Keys enough that every shard owns some.
const KEYS: usize = 64;
/// Ticks of one shard in which it serves all that waits for it.
const TICKS: u32 = 8;

fn store_all(world: &mut World, client: &FarEnd) {
    for key in 0..KEYS {
        let stored = world.ask(client, format!("set k{key} 0 0 1\r\nx\r\n").as_bytes());
        assert_eq!(stored, b"STORED\r\n");
    }
}

/// How many of the keys are there.
fn count_all(world: &mut World, client: &FarEnd) -> usize {
    let keys: Vec<String> = (0..KEYS).map(|key| format!("k{key}")).collect();
    let found = world.ask(client, format!("get {}\r\n", keys.join(" ")).as_bytes());
    String::from_utf8(found).expect("text").matches("VALUE ").count()
}

/// A client of each shard, in the order of the shards.
fn a_client_of_each(world: &mut World) -> Vec<FarEnd> {
    let clients: Vec<FarEnd> = (0..world.shards.len()).map(|_| world.connect()).collect();
    world.settle();
    for (shard, client) in clients.iter().enumerate() {
        client.write(b"mn\r\n");
        for _ in 0..TICKS {
            world.turn_of(shard);
        }
        assert_eq!(client.read(), b"MN\r\n", "connections are dealt out in turn");
    }
    clients
}

#[test]
fn flushes_given_to_two_shards_at_once_happen_in_one_order() {
    for flushes in [["flush_all\r\n", "flush_all 3\r\n"], ["flush_all 3\r\n", "flush_all\r\n"]] {
        let mut world = World::new(WorldOptions { shards: 2, ..WorldOptions::default() });
        let clients = a_client_of_each(&mut world);
        // More for shard 1 than it takes in a tick: what shard 0 says next comes to it later.
        let fillers: Vec<FarEnd> = (0..10).map(|_| world.connect()).collect();
        world.settle();
        let deletes: String = (0..KEYS).map(|key| format!("delete k{key} noreply\r\n")).collect();
        for filler in fillers.iter().step_by(2) {
            filler.write(deletes.repeat(40).as_bytes());
        }
        for _ in 0..TICKS {
            world.turn_of(0);
        }
        for (client, flush) in clients.iter().zip(flushes) {
            client.write(flush.as_bytes());
        }
        world.settle();
        for client in &clients {
            assert_eq!(client.read(), b"OK\r\n");
        }
        store_all(&mut world, &clients[0]);
        world.clock.advance_s(5);
        // The delayed one is pending everywhere or nowhere.
        let left = count_all(&mut world, &clients[0]);
        assert!(left == 0 || left == KEYS, "{left} of {KEYS} keys are left: {flushes:?}");
    }
}

#[test]
fn a_flush_is_done_for_all_shards_when_one_has_answered() {
    let mut world = World::new(WorldOptions { shards: 3, ..WorldOptions::default() });
    let clients = a_client_of_each(&mut world);
    store_all(&mut world, &clients[0]);
    clients[0].write(b"flush_all\r\n");
    for _ in 0..TICKS {
        world.turn_of(0);
    }
    assert_eq!(clients[0].read(), b"OK\r\n", "no other shard has to be asked");
    assert_eq!(count_all(&mut world, &clients[2]), 0);
}

#[test]
fn a_delayed_flush_happens_to_all_shards_at_once() {
    let mut world = World::new(WorldOptions { shards: 2, ..WorldOptions::default() });
    let clients = a_client_of_each(&mut world);
    store_all(&mut world, &clients[0]);
    assert_eq!(world.ask(&clients[0], b"flush_all 2\r\n"), b"OK\r\n");
    assert_eq!(count_all(&mut world, &clients[0]), KEYS);
    // Shard 1 is still in the second before when shard 0 is in that of the flush.
    world.clock.advance_s(1);
    world.lag_ns(1, SECOND_NS / 2);
    world.turn_of(0);
    assert_eq!(count_all(&mut world, &clients[1]), 0);
    store_all(&mut world, &clients[1]);
    world.lag_ns(1, 0);
    world.clock.advance_s(5);
    assert_eq!(count_all(&mut world, &clients[1]), KEYS, "and once");
}

#[test]
fn a_later_flush_replaces_a_pending_one_on_whichever_shard_it_comes() {
    for (second, left_after) in [
        ("flush_all\r\n", [KEYS; 2]),
        ("flush_all 0\r\n", [KEYS; 2]),
        ("flush_all -1\r\n", [KEYS; 2]),
        ("flush_all 1\r\n", [KEYS; 2]),
        ("flush_all 10\r\n", [KEYS, 0]),
        ("flush_all 2\r\n", [0, 0]),
    ] {
        let mut world = World::new(WorldOptions { shards: 2, ..WorldOptions::default() });
        let clients = a_client_of_each(&mut world);
        assert_eq!(world.ask(&clients[0], b"flush_all 4\r\n"), b"OK\r\n");
        assert_eq!(world.ask(&clients[1], second.as_bytes()), b"OK\r\n");
        store_all(&mut world, &clients[0]);
        for left in left_after {
            world.clock.advance_s(6);
            assert_eq!(count_all(&mut world, &clients[0]), left, "flush_all 4, then {second}");
        }
    }
}

/// A Unix time from before the start, such as a delay of 34 days, flushes nothing, but replaces a
/// pending flush. memcached counts its seconds from 62 s before its start.
#[test]
fn a_flush_before_the_start_flushes_nothing_and_replaces_a_pending_one() {
    const BINARY_FLUSH: u8 = 0x08;
    let start = i32::try_from(WorldOptions::default().start_unix_s).expect("before 2038");
    for (time, left) in
        [(2_592_001, KEYS), (3_000_000, KEYS), (start - 61, KEYS), (start - 60, 0), (start, 0)]
    {
        for is_binary in [false, true] {
            let mut world = World::new(WorldOptions { shards: 2, ..WorldOptions::default() });
            let clients = a_client_of_each(&mut world);
            store_all(&mut world, &clients[0]);
            assert_eq!(world.ask(&clients[0], b"flush_all 4\r\n"), b"OK\r\n");
            if is_binary {
                let client = world.connect();
                let mut request = [0; 28];
                (request[0], request[1], request[4], request[11]) = (0x80, BINARY_FLUSH, 4, 4);
                request[24..].copy_from_slice(&time.to_be_bytes());
                let reply = world.ask(&client, &request);
                assert_eq!(reply[..8], [0x81, BINARY_FLUSH, 0, 0, 0, 0, 0, 0], "{time}");
            } else {
                let line = format!("flush_all {time}\r\n");
                assert_eq!(world.ask(&clients[1], line.as_bytes()), b"OK\r\n");
            }
            for second in [0, 6] {
                world.clock.advance_s(second);
                assert_eq!(count_all(&mut world, &clients[0]), left, "{time} {is_binary}");
            }
        }
    }
}

#[test]
fn a_large_value_is_stored_when_it_becomes_visible_not_when_it_begins() {
    let value = "v".repeat(100_000);
    let (head, tail) = value.split_at(60_000);
    for shards in [1, 2] {
        let mut world = World::new(WorldOptions { shards, ..WorldOptions::default() });
        let clients = a_client_of_each(&mut world);
        // A value of each shard, stored before; and one of each that is on its way.
        let keys: Vec<String> = (0..16).map(|key| format!("k{key}")).collect();
        for key in &keys {
            world.ask(&clients[0], format!("set old{key} 0 0 100000\r\n{value}\r\n").as_bytes());
        }
        let uploading: Vec<FarEnd> = keys.iter().map(|_| world.connect()).collect();
        for (client, key) in uploading.iter().zip(&keys) {
            client.write(format!("set {key} 0 0 100000\r\n{head}").as_bytes());
        }
        world.settle();
        assert_eq!(world.ask(&clients[0], b"flush_all\r\n"), b"OK\r\n");
        for (client, key) in uploading.iter().zip(&keys) {
            assert_eq!(world.ask(client, format!("{tail}\r\n").as_bytes()), b"STORED\r\n");
            let found = world.ask(&clients[0], format!("get {key}\r\n").as_bytes());
            assert_eq!(found.len(), format!("VALUE {key} 0 100000\r\n{value}\r\nEND\r\n").len());
            let gone = world.ask(&clients[0], format!("get old{key}\r\n").as_bytes());
            assert_eq!(gone, b"END\r\n");
        }
    }
}

#[test]
fn a_flush_waits_for_what_its_client_asked_of_other_shards_before() {
    let mut world = World::new(WorldOptions { shards: 2, crew: false, ..WorldOptions::default() });
    let clients = a_client_of_each(&mut world);
    let sets: String = (0..KEYS).map(|key| format!("set k{key} 0 0 1\r\nx\r\n")).collect();
    clients[0].write(format!("{sets}flush_all\r\n").as_bytes());
    for _ in 0..TICKS {
        world.turn_of(0);
    }
    // What shard 1 owns is not stored yet, so the flush is not done either.
    assert!(!clients[0].read().ends_with(b"OK\r\n"));
    world.settle();
    assert!(clients[0].read().ends_with(b"OK\r\n"));
    assert_eq!(count_all(&mut world, &clients[1]), 0);
}

#[test]
fn a_delayed_flush_reaches_a_shard_that_is_in_its_second_already() {
    for shards in [2_u16, 3] {
        let mut world = World::new(WorldOptions { shards, ..WorldOptions::default() });
        let client = world.connect();
        let keys: Vec<String> = (0..64).map(|key| format!("k{key}")).collect();
        for key in &keys {
            world.ask(&client, format!("set {key} 0 0 1 noreply\r\nx\r\n").as_bytes());
        }
        world.clock.advance_ns(SECOND_NS);
        // The client's shard is still in the second before: the flush is due in the others' own.
        world.lag_ns(0, SECOND_NS / 2);
        world.settle();
        assert_eq!(world.ask(&client, b"flush_all 2\r\n"), b"OK\r\n");
        world.lag_ns(0, 0);
        world.clock.advance_s(3);
        let get_all = format!("get {}\r\n", keys.join(" "));
        let left = world.ask(&client, get_all.as_bytes());
        assert_eq!(String::from_utf8_lossy(&left), "END\r\n", "{shards} shards");
    }
}

#[test]
fn a_delayed_flush_is_carried_out_once() {
    for shards in [1, 3] {
        let mut world = World::new(WorldOptions { shards, ..WorldOptions::default() });
        let client = world.connect();
        assert_eq!(world.ask(&client, b"flush_all 2\r\n"), b"OK\r\n");
        world.clock.advance_s(2);
        world.settle();
        for key in 0..64 {
            world.ask(&client, format!("set k{key} 0 0 1 noreply\r\nx\r\n").as_bytes());
        }
        world.clock.advance_s(5);
        for key in 0..64 {
            let reply = world.ask(&client, format!("get k{key}\r\n").as_bytes());
            assert_eq!(reply.len(), format!("VALUE k{key} 0 1\r\nx\r\nEND\r\n").len());
        }
    }
}

#[test]
fn a_delayed_flush_stays_behind_what_its_client_stored_before() {
    let mut world = World::new(WorldOptions { shards: 2, ..WorldOptions::default() });
    let client = world.connect();
    world.settle();
    let keys: Vec<String> = (0..64).map(|key| format!("k{key}")).collect();
    let sets = keys.iter().map(|key| format!("set {key} 0 0 1 noreply\r\nx\r\n"));
    client.write((sets.collect::<String>() + "flush_all 2\r\n").as_bytes());
    // One shard is away, whichever has the connection, until the flush is due.
    for shard in [0, 1] {
        for _ in 0..8 {
            world.turn_of(shard);
        }
        world.clock.advance_s(3);
    }
    world.settle();
    assert_eq!(client.read(), b"OK\r\n");
    world.clock.advance_s(3);
    let left = world.ask(&client, format!("get {}\r\n", keys.join(" ")).as_bytes());
    assert_eq!(String::from_utf8_lossy(&left), "END\r\n");
}

//! Flushes: what they kill, on which shards, and when.

use crate::world::{World, WorldOptions};

const SECOND_NS: u64 = 1_000_000_000;

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
    let left = world.ask(&client, format!("get {}\r\n", keys.join(" ")).as_bytes());
    assert_eq!(String::from_utf8_lossy(&left), "END\r\n");
}

//! Turns (`-R`): how many requests of one connection a tick serves before it serves others.

use kachel_shard::PlainOptions;
use kachel_testkit::{World, WorldOptions};

/// Ticks in which a request is received, served, and its reply read.
const TURNS_OF_A_REPLY: usize = 2;

fn world(requests_per_tick: Option<u32>, shards: u16, crew: bool) -> World {
    World::new(WorldOptions {
        plain: PlainOptions { requests_per_tick, ..PlainOptions::default() },
        shards,
        crew,
        ..WorldOptions::default()
    })
}

#[test]
fn requests_beyond_a_turn_are_counted_once_for_each_turn() {
    for (turn, requests, yields) in [(1, 6, 5), (20, 100, 4), (20, 101, 5), (7, 7, 0), (7, 6, 0)] {
        let mut world = world(Some(turn), 1, true);
        let client = world.connect();
        world.ask(&client, b"mn\r\n");
        let ticks = world.sum(|counters| &counters.busy_ticks);
        let told = world.ask(&client, "set key 0 0 5\r\nvalue\r\n".repeat(requests).as_bytes());
        assert_eq!(told, "STORED\r\n".repeat(requests).as_bytes());
        assert_eq!(world.sum(|counters| &counters.conn_yields), yields, "-R {turn}: {requests}");
        assert_eq!(world.sum(|counters| &counters.busy_ticks) - ticks, yields + 1);
    }
}

#[test]
fn others_are_served_between_the_turns_of_a_client_that_sends_much() {
    let mut world = world(Some(2), 1, true);
    let (busy, other) = (world.connect(), world.connect());
    world.ask(&busy, b"mn\r\n");
    world.ask(&other, b"mn\r\n");
    busy.write("mn\r\n".repeat(1_000).as_bytes());
    let mut told = Vec::new();
    for question in 1..10 {
        other.write(b"mn\r\n");
        for _ in 0..TURNS_OF_A_REPLY {
            world.turn();
        }
        assert_eq!(other.read(), b"MN\r\n", "question {question}");
        told.extend_from_slice(&busy.read());
        assert!(told.len() <= "MN\r\n".len() * 2 * TURNS_OF_A_REPLY * question, "{}", told.len());
    }
    world.settle();
    told.extend_from_slice(&busy.read());
    assert_eq!(told, b"MN\r\n".repeat(1_000));
}

#[test]
fn replies_are_the_same_with_turns_of_any_length() {
    let large = "v".repeat(100_000);
    let script = [
        "set a 0 0 1\r\n1\r\nset b 0 0 1 noreply\r\n2\r\nget a b c\r\n",
        "mg a v k\r\nmg c v q\r\nmn\r\nno such command\r\nset a 0 0 1\r\ntoo long\r\n",
        &format!("set large 0 0 100000\r\n{large}\r\nget large a\r\n"),
        &format!("set huge 0 0 9000000\r\n{}\r\n", large.repeat(90)),
        "incr a 5\r\ndelete a\r\nstats nothing\r\nget a b\r\n",
        "version\r\nquit\r\nget a\r\n",
    ]
    .concat();
    for (shards, crew) in [(1, true), (3, true), (3, false)] {
        let replies = [None, Some(1), Some(2), Some(3), Some(40)].map(|turn| {
            let mut world = world(turn, shards, crew);
            let client = world.connect();
            let said = world.ask(&client, script.as_bytes());
            assert!(client.is_closed(), "it has quit");
            world.audit();
            said
        });
        assert!(replies[0].len() > 100_000 && replies[0].ends_with(b"VERSION 1.6.45\r\n"));
        assert!(replies.iter().all(|said| *said == replies[0]), "{shards} shards, {crew}");
    }
}

#[test]
fn a_client_that_sends_no_more_gets_all_replies_over_several_turns() {
    let mut world = world(Some(1), 2, true);
    let client = world.connect();
    client.write("set key 0 0 1\r\n1\r\n".repeat(50).as_bytes());
    client.finish();
    world.settle();
    assert_eq!(client.read(), b"STORED\r\n".repeat(50));
    assert!(client.is_closed(), "all is served and sent");
}

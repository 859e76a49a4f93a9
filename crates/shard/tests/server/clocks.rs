//! Time that jumps, and memory that is refused at any moment.

use kachel_net::LINE_SECONDS_MAX;

use crate::world::{World, WorldOptions};

const HOUR_S: u64 = 3_600;

#[test]
fn items_die_by_the_time_that_has_passed_though_the_process_slept_through_it() {
    for shards in [1, 3] {
        let mut world = World::new(WorldOptions { shards, ..WorldOptions::default() });
        let client = world.connect();
        world.ask(
            &client,
            b"set minute 0 60 1\r\na\r\nset day 0 86400 1\r\nb\r\nset ever 0 0 1\r\nc\r\n",
        );
        world.clock.advance_s(HOUR_S);
        assert_eq!(
            String::from_utf8_lossy(&world.ask(&client, b"get minute day ever\r\n")),
            "VALUE day 0 1\r\nb\r\nVALUE ever 0 1\r\nc\r\nEND\r\n",
            "{shards} shards"
        );
        // Ten years, past 2038 and past every TTL that is relative.
        world.clock.advance_s(10 * 365 * 24 * HOUR_S);
        assert_eq!(world.ask(&client, b"get day ever\r\n"), b"VALUE ever 0 1\r\nc\r\nEND\r\n");
        assert_eq!(world.ask(&client, b"set new 0 60 1\r\nd\r\n"), b"STORED\r\n");
        assert_eq!(world.ask(&client, b"get new\r\n"), b"VALUE new 0 1\r\nd\r\nEND\r\n");
    }
}

#[test]
fn a_client_that_sent_all_in_time_is_served_though_the_process_slept() {
    let mut world = World::new(WorldOptions::default());
    let client = world.connect();
    assert_eq!(world.ask(&client, b"set a 0 0 5\r\nhe"), b"");
    world.clock.advance_s(HOUR_S);
    // Both pieces lay in the kernel while the process slept; a tick brings one of them.
    client.write(b"ll");
    client.write(b"o\r\n");
    world.settle();
    assert_eq!(client.read(), b"STORED\r\n");
}

#[test]
fn a_client_that_stays_late_is_closed_after_a_sleep_too() {
    let mut world = World::new(WorldOptions::default());
    let client = world.connect();
    world.ask(&client, b"set a 0 0 5\r\nhe");
    world.clock.advance_s(HOUR_S);
    for second in 0..=LINE_SECONDS_MAX {
        world.settle();
        assert!(!client.is_closed(), "the server sees it be late for {second} seconds");
        world.clock.advance_s(1);
    }
    world.settle();
    assert!(client.is_closed());
}

#[test]
fn a_client_is_not_late_by_sleeps_of_the_process_that_follow_each_other() {
    let mut world = World::new(WorldOptions::default());
    let client = world.connect();
    assert_eq!(world.ask(&client, b"set a 0 0 5\r\nhe"), b"");
    for _ in 0..LINE_SECONDS_MAX {
        world.clock.advance_s(HOUR_S);
        world.settle();
    }
    assert_eq!(world.ask(&client, b"llo\r\n"), b"STORED\r\n");
}

/// A conversation that takes memory in every way: inline and large values, growth of what is
/// there, numbers, long lines, and replies that wait.
fn requests() -> Vec<Vec<u8>> {
    let mut requests = Vec::new();
    for key in 0..40 {
        let bytes = [10, 900, 20_000, 300_000][key % 4];
        let value = "v".repeat(bytes);
        requests.push(format!("set k{key} 0 0 {bytes}\r\n{value}\r\n").into_bytes());
        requests.push(format!("append k{} 0 0 9\r\n and more\r\n", key / 2).into_bytes());
        requests.push(format!("ma n{key} N0 J1 v\r\nms m{key} 3 T60\r\nabc\r\n").into_bytes());
        requests.push(format!("get k{key} k{} {}\r\n", key / 2, "absent ".repeat(6_000)).into());
    }
    requests
}

/// Whether every line of a reply is one that a client knows.
fn is_well_formed(reply: &[u8]) -> bool {
    reply.is_empty() || reply.ends_with(b"\r\n")
}

#[test]
fn memory_refused_at_any_moment_is_answered_and_forgotten() {
    let requests = requests();
    for evict in [false, true] {
        for moment in 0..requests.len() {
            let memory_bytes = 16 << 20;
            let options =
                WorldOptions { shards: 2, memory_bytes, evict, ..WorldOptions::default() };
            let mut world = World::new(options);
            let mut client = world.connect();
            for (index, request) in requests.iter().enumerate() {
                if index == moment {
                    // From now on every byte more is refused.
                    world.shared.budget.set_limit_bytes(world.shared.budget.spent_bytes());
                }
                let reply = world.ask(&client, request);
                assert!(is_well_formed(&reply), "moment {moment}: {}", reply.escape_ascii());
                if client.is_closed() {
                    client = world.connect();
                }
            }
            world.shared.budget.set_limit_bytes(memory_bytes);
            world.clock.advance_s(1);
            world.settle();
            let after = world.connect();
            assert_eq!(world.ask(&after, b"set last 0 0 1\r\nx\r\n"), b"STORED\r\n", "{moment}");
            assert_eq!(world.ask(&after, b"get last\r\n"), b"VALUE last 0 1\r\nx\r\nEND\r\n");
        }
    }
}

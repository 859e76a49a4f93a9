//! Clients that do not read their replies: how much memory they cost, and that no reply is lost.

use kachel_net::STALLED_READER_SECONDS_MAX;

use kachel_testkit::{World, WorldOptions};

#[test]
fn a_long_line_is_read_once_however_often_its_client_makes_it_wait() {
    for shards in [1, 2] {
        let mut world = World::new(WorldOptions { shards, ..WorldOptions::default() });
        let client = world.connect();
        let value = "v".repeat(4000);
        for key in 0..4 {
            world.ask(&client, format!("set k{key} 0 0 4000\r\n{value}\r\n").as_bytes());
        }
        client.stall();
        client.write(format!("gets {}\r\nmn\r\n", "k0 k1 k2 k3 ".repeat(1_000)).as_bytes());
        let mut received = 0;
        for _ in 0..4_000 {
            client.allow(20_000);
            world.turn();
            received += client.read().len();
        }
        let reply = "VALUE k0 0 4000 1\r\n".len() + value.len() + 2;
        assert!((4_000 * reply..4_000 * (reply + 20)).contains(&received), "{received} bytes");
        assert_eq!(world.sum(|counters| &counters.long_lines), 1, "{shards} shards");
    }
}

#[test]
fn clients_that_do_not_read_take_no_time_of_those_who_do() {
    let mut world = World::new(WorldOptions::default());
    let reader = world.connect();
    let value = "v".repeat(10_000);
    world.ask(&reader, format!("set k 0 0 10000\r\n{value}\r\n").as_bytes());
    let sleepers: Vec<_> = (0..80).map(|_| world.connect()).collect();
    for sleeper in &sleepers {
        sleeper.stall();
        sleeper.write("get k\r\n".repeat(50).as_bytes());
    }
    world.settle();
    let before = world.sum(|counters| &counters.resumptions);
    for _ in 0..300 {
        assert_eq!(world.ask(&reader, b"mn\r\n"), b"MN\r\n");
    }
    assert_eq!(world.sum(|counters| &counters.resumptions), before);
    for sleeper in &sleepers {
        sleeper.allow_all();
    }
    world.settle();
    let reply_bytes = "VALUE k 0 10000\r\n".len() + value.len() + "\r\nEND\r\n".len();
    assert!(sleepers.iter().all(|sleeper| sleeper.read().len() == 50 * reply_bytes));
}

#[test]
fn a_client_that_reads_a_large_value_byte_by_byte_is_not_taken_for_one_that_stopped() {
    let mut world = World::new(WorldOptions::default());
    let client = world.connect();
    let value = "v".repeat(900_000);
    world.ask(&client, format!("set k 0 0 900000\r\n{value}\r\n").as_bytes());
    client.stall();
    client.write(b"get k\r\n");
    for second in 0..200 {
        // Far less than a block in the minute that it has.
        client.allow(1);
        world.settle();
        world.clock.advance_s(1);
        world.turn();
        assert!(!client.is_closed(), "after {second} s");
    }
    // The first of them has gone by.
    for _ in 1..STALLED_READER_SECONDS_MAX {
        world.clock.advance_s(1);
        world.turn();
        assert!(!client.is_closed());
    }
    world.clock.advance_s(1);
    world.turn();
    assert!(client.is_closed(), "it has stopped");
}

/// What a client may cost that never reads: the limit, a reply under way, and blocks begun.
const COST_BYTES_MAX: u64 = (64 + 16 + 2 + 2 * 16) * 1024;

/// Memory that holds what clients have not read.
fn owed_bytes(world: &mut World) -> u64 {
    world.clock.advance_s(1);
    world.settle();
    world.sum(|counters| &counters.owed_bytes)
}

#[test]
fn a_client_that_never_reads_costs_little_whatever_it_asks_for_and_loses_nothing() {
    for (shards, value_bytes) in
        [1, 2, 4].into_iter().flat_map(|s| [3, 300, 5_000, 16_000, 100_000].map(|v| (s, v)))
    {
        let mut world = World::new(WorldOptions { shards, ..WorldOptions::default() });
        let value = "v".repeat(value_bytes);
        let clients: Vec<_> = (0..5).map(|_| world.connect()).collect();
        for key in 0..8 {
            let set = format!("set k{key} 0 0 {value_bytes}\r\n{value}\r\n");
            assert_eq!(world.ask(&clients[0], set.as_bytes()), b"STORED\r\n");
        }
        let one = format!("VALUE k0 0 {value_bytes}\r\n{value}\r\n").len();
        let line = format!("get {}\r\n", "k0 k1 k2 k3 k4 k5 k6 k7 ".repeat(40));
        for client in &clients {
            client.stall();
            client.write(line.as_bytes());
            client.write(
                "get k1\r\nget k2\r\nmg k3 v\r\nset k9 0 0 1\r\nx\r\n".repeat(30).as_bytes(),
            );
        }
        world.settle();
        let owed = owed_bytes(&mut world);
        let most = clients.len() as u64 * COST_BYTES_MAX;
        assert!(owed <= most, "{owed} bytes owed; {shards} shards, values of {value_bytes}");
        for client in &clients {
            client.allow_all();
        }
        world.settle();
        let meta = format!("VA {value_bytes}\r\n{value}\r\nSTORED\r\n").len();
        let all = 320 * one + 5 + 30 * (2 * (one + 5) + meta);
        for client in &clients {
            assert_eq!(client.read().len(), all, "{shards} shards, values of {value_bytes}");
        }
        assert_eq!(owed_bytes(&mut world), 0);
    }
}

#[test]
fn replies_of_few_bytes_are_not_owed_in_blocks_of_many() {
    let mut world = World::new(WorldOptions::default());
    let client = world.connect();
    world.ask(&client, b"mn\r\n");
    client.stall();
    for _ in 0..300 {
        client.write(b"mn\r\n");
        world.turn();
    }
    let owed = owed_bytes(&mut world);
    assert!(owed <= COST_BYTES_MAX, "{owed} bytes hold 300 replies of 4 bytes");
    client.allow_all();
    world.settle();
    assert_eq!(client.read(), b"MN\r\n".repeat(300));
}

#[test]
fn what_is_owed_beyond_a_clients_own_share_is_charged_to_the_memory_of_the_process() {
    for (shards, evict) in [(1, false), (3, false), (1, true), (3, true)] {
        let memory_bytes = 16 << 20;
        let options = WorldOptions { shards, memory_bytes, evict, ..WorldOptions::default() };
        let mut world = World::new(options);
        let filler = world.connect();
        let value = "v".repeat(5_000);
        world.ask(&filler, format!("set k 0 0 5000\r\n{value}\r\n").as_bytes());
        let before = world.shared.budget.spent_bytes();
        let clients: Vec<_> = (0..20).map(|_| world.connect()).collect();
        for client in &clients {
            client.stall();
            client.write("get k\r\n".repeat(100).as_bytes());
        }
        world.settle();
        let charged = world.shared.budget.spent_bytes() - before;
        assert_eq!(charged, 20 * 32 * 1024, "{shards} shards");
        clients.iter().for_each(kachel_io::FarEnd::reset);
        world.settle();
        assert_eq!(world.shared.budget.spent_bytes(), before, "{shards} shards");
        // Where all memory is spent, the others wait earlier, and are answered all the same.
        for key in 0..4_000 {
            filler.write(format!("set f{key} 0 0 5000\r\n{value}\r\n").as_bytes());
            world.turn();
        }
        world.settle();
        let _replies = filler.read();
        let clients: Vec<_> = (0..20).map(|_| world.connect()).collect();
        for client in &clients {
            client.stall();
            client.write("get k\r\n".repeat(100).as_bytes());
        }
        world.settle();
        assert!(world.shared.budget.spent_bytes() <= memory_bytes);
        for client in &clients {
            client.allow_all();
        }
        world.settle();
        for client in &clients {
            let reply = String::from_utf8(client.read()).expect("text");
            assert_eq!(reply.matches("END\r\n").count(), 100, "{shards} shards");
        }
    }
}

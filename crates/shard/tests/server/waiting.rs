//! Clients that do not read: what they cost, and that nothing of theirs is lost.

use crate::world::{World, WorldOptions};

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

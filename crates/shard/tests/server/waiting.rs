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

//! What happens while the ring to another shard is full.

use kachel_io::FarEnd;

use kachel_testkit::{World, WorldOptions};

/// Connections that fill a ring together: each has 256 requests under way at most.
const FILLERS: usize = 60;

/// Two shards, so that half of all requests hop, reads included.
fn hopping() -> World {
    World::new(WorldOptions { shards: 2, crew: false, ..WorldOptions::default() })
}

/// Fills the ring from shard 0 to shard 1, which does not turn meanwhile; `key` is shard 1's.
fn fill_ring(world: &mut World, fillers: &[FarEnd], key: &str) {
    // Small records, so that not even a small one finds room behind them.
    const RECORDS: usize = FILLERS * 256;
    let before = world.hops();
    for filler in fillers {
        filler.write(format!("touch {key} 0 noreply\r\n").repeat(256).as_bytes());
    }
    for _ in 0..100 {
        world.turn_of(0);
    }
    let pushed = world.hops() - before;
    assert!(pushed < RECORDS as u64, "{pushed} of {RECORDS} requests found room in the ring");
}

/// Two keys of the shard that does not serve this client.
fn keys_of_the_other(world: &mut World, client: &FarEnd) -> [String; 2] {
    let mut keys = (0..64).map(|number| format!("other{number}")).filter(|key| {
        let before = world.hops();
        world.ask(client, format!("touch {key} 0\r\n").as_bytes());
        world.hops() > before
    });
    [(); 2].map(|()| keys.next().expect("shard 1 owns half of all keys"))
}

/// `count` clients of shard 0 of two.
fn clients_of_one_shard(world: &mut World, count: usize) -> Vec<FarEnd> {
    // Every second connection is shard 1's.
    let clients = (0..2 * count).map(|_| {
        let client = world.connect();
        world.ask(&client, b"mn\r\n");
        client
    });
    clients.step_by(2).collect()
}

#[test]
fn a_refused_value_leaves_no_stale_one_behind_though_the_ring_was_full() {
    let too_large = (1 << 20) + 1;
    let value = "y".repeat(too_large);
    for (verb, present) in ["set KEY 0 0 SIZE\r\n", "ms KEY SIZE\r\n"]
        .into_iter()
        .flat_map(|verb| [(verb, true), (verb, false)])
    {
        let mut world = hopping();
        let clients = clients_of_one_shard(&mut world, FILLERS + 1);
        let (client, fillers) = clients.split_first().expect("a client");
        let [key, filled] = keys_of_the_other(&mut world, client);
        if present {
            let set = format!("set {key} 0 0 1\r\nx\r\n");
            assert_eq!(world.ask(client, set.as_bytes()), b"STORED\r\n");
        }
        fill_ring(&mut world, fillers, &filled);
        let line = verb.replace("KEY", &key).replace("SIZE", &too_large.to_string());
        client.write(format!("{line}{value}\r\nget {key}\r\n").as_bytes());
        for _ in 0..100 {
            world.turn_of(0);
        }
        world.settle();
        assert_eq!(
            String::from_utf8_lossy(&client.read()),
            "SERVER_ERROR object too large for cache\r\nEND\r\n",
            "{line}"
        );
    }
}

#[test]
fn those_who_wait_for_a_ring_are_left_alone_until_it_drains() {
    let mut world = hopping();
    let clients = clients_of_one_shard(&mut world, FILLERS + 39);
    let (fillers, clients) = clients.split_at(FILLERS);
    let [key, _] = keys_of_the_other(&mut world, &clients[0]);
    fill_ring(&mut world, fillers, &key);
    for (number, client) in clients.iter().enumerate() {
        client.write(format!("set {key} 0 0 2\r\n{number:02}\r\nget {key}\r\n").as_bytes());
    }
    for _ in 0..10 {
        world.turn_of(0);
    }
    let before = world.sum(|counters| &counters.resumptions);
    for _ in 0..500 {
        world.turn_of(0);
    }
    assert_eq!(world.sum(|counters| &counters.resumptions), before);
    world.settle();
    for client in clients {
        let reply = client.read();
        assert!(reply.starts_with(b"STORED\r\nVALUE "), "{}", reply.escape_ascii());
    }
}

#[test]
fn a_reply_waits_for_the_silent_requests_before_it() {
    for silent in ["set KEY 0 0 1 noreply\r\nx\r\n", "delete KEY noreply\r\n"] {
        let mut world = hopping();
        let clients = clients_of_one_shard(&mut world, 1);
        let [key, _] = keys_of_the_other(&mut world, &clients[0]);
        clients[0].write(format!("{}mn\r\n", silent.replace("KEY", &key)).as_bytes());
        for _ in 0..10 {
            world.turn_of(0);
        }
        // A client that receives MN may tell others that the write is done.
        assert_eq!(clients[0].read(), b"", "{silent}");
        world.settle();
        assert_eq!(clients[0].read(), b"MN\r\n", "{silent}");
    }
}

#[test]
fn answers_that_fill_the_smallest_rings_come_all_and_in_order() {
    // With ten shards each ring has the smallest size.
    let mut world = World::new(WorldOptions { shards: 10, ..WorldOptions::default() });
    let clients: Vec<_> = (0..50).map(|_| world.connect()).collect();
    let value = |key: u32| format!("{key:05}").repeat(3_200);
    for key in 0..2 {
        let set = format!("set key{key} 0 0 16000\r\n{}\r\n", value(key));
        assert_eq!(world.ask(&clients[0], set.as_bytes()), b"STORED\r\n");
    }
    let (mut asked, mut expected) = (String::new(), String::new());
    for key in [0, 0, 1].into_iter().cycle().take(60) {
        asked += &format!("get key{key}\r\nmg key{key} v\r\ntouch key{key} 0\r\n");
        let value = value(key);
        expected += &format!("VALUE key{key} 0 16000\r\n{value}\r\nEND\r\n");
        expected += &format!("VA 16000\r\n{value}\r\nTOUCHED\r\n");
    }
    for client in &clients {
        client.write(asked.as_bytes());
    }
    world.settle();
    for client in &clients {
        assert!(client.read() == expected.as_bytes());
    }
}

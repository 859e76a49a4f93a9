//! A core that has no record left for a request that it must park.

use kachel_io::FarEnd;

use kachel_testkit::{World, WorldOptions};

/// Connections that use up the records together: each has 256 requests under way at most.
const FILLERS: usize = 8;

/// Two shards whose cores keep to their own, so that half of all requests are parked.
fn parking() -> World {
    parking_in(4 << 20)
}

/// As [`parking`], with this memory. An eighth of it is for requests that wait.
fn parking_in(memory_bytes: u64) -> World {
    World::new(WorldOptions { shards: 2, crew: false, memory_bytes, ..WorldOptions::default() })
}

/// Uses up the records of shard 0. Shard 1, whose key `key` is, does not turn meanwhile.
fn use_records(world: &mut World, fillers: &[FarEnd], key: &str) {
    const REQUESTS: usize = FILLERS * 256;
    let before = world.parked();
    for filler in fillers {
        filler.write(format!("touch {key} 0 noreply\r\n").repeat(256).as_bytes());
    }
    for _ in 0..100 {
        world.turn_of(0);
    }
    let parked = world.parked() - before;
    assert!(parked < REQUESTS as u64, "{parked} of {REQUESTS} requests found a record");
}

/// Two keys of the shard that does not serve this client.
fn keys_of_the_other(world: &mut World, client: &FarEnd) -> [String; 2] {
    let mut keys = (0..64).map(|number| format!("other{number}")).filter(|key| {
        let before = world.parked();
        world.ask(client, format!("touch {key} 0\r\n").as_bytes());
        world.parked() > before
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
fn a_refused_value_leaves_no_stale_one_behind_though_there_was_no_record() {
    let too_large = (1 << 20) + 1;
    let value = "y".repeat(too_large);
    for (verb, present) in ["set KEY 0 0 SIZE\r\n", "ms KEY SIZE\r\n"]
        .into_iter()
        .flat_map(|verb| [(verb, true), (verb, false)])
    {
        let mut world = parking();
        let clients = clients_of_one_shard(&mut world, FILLERS + 1);
        let (client, fillers) = clients.split_first().expect("a client");
        let [key, filled] = keys_of_the_other(&mut world, client);
        if present {
            let set = format!("set {key} 0 0 1\r\nx\r\n");
            assert_eq!(world.ask(client, set.as_bytes()), b"STORED\r\n");
        }
        use_records(&mut world, fillers, &filled);
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
fn connections_that_wait_for_a_record_are_left_alone_until_there_is_one() {
    let mut world = parking();
    let clients = clients_of_one_shard(&mut world, FILLERS + 39);
    let (fillers, clients) = clients.split_at(FILLERS);
    let [key, _] = keys_of_the_other(&mut world, &clients[0]);
    use_records(&mut world, fillers, &key);
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

/// The fault: connections that waited for a record were not served again while others kept all
/// records in use. And a large request found no room if small ones were served before it.
#[test]
fn a_large_request_waits_a_bounded_time_behind_small_ones_that_come_in_every_tick() {
    const ROUNDS: usize = 20;
    const FILLERS_A_ROUND: usize = 2;
    let mut world = parking_in(2 << 20);
    let clients = clients_of_one_shard(&mut world, 1 + FILLERS + ROUNDS * FILLERS_A_ROUND);
    let (client, fillers) = clients.split_first().expect("a client");
    let (first, later) = fillers.split_at(FILLERS);
    let [key, filled] = keys_of_the_other(&mut world, client);
    let set = format!("set {key} 0 0 16000\r\n{}", "v".repeat(16_000));
    assert_eq!(world.ask(client, set.as_bytes()), b"", "its end is to come");
    use_records(&mut world, first, &filled);
    client.write(b"\r\n");
    world.turn_of(0);
    let parked = world.parked();
    let mut answered = None;
    for (round, fillers) in later.chunks(FILLERS_A_ROUND).enumerate() {
        for filler in fillers {
            filler.write(format!("touch {filled} 0 noreply\r\n").repeat(256).as_bytes());
        }
        world.turn_of(1);
        world.turn_of(0);
        if client.read() == b"STORED\r\n" {
            answered = Some(round);
        }
    }
    assert!(world.parked() - parked > 1_000, "small requests are parked in each round");
    assert!(answered.is_some_and(|round| round < 4), "in round {answered:?}");
    world.settle();
    assert!(world.holdings().all(|held| held.reply_slots == 0), "all have had their turn");
}

#[test]
fn a_reply_waits_for_the_silent_requests_before_it() {
    for silent in ["set KEY 0 0 1 noreply\r\nx\r\n", "delete KEY noreply\r\n"] {
        let mut world = parking();
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
fn answers_that_fill_all_records_come_all_and_in_order() {
    let mut world = World::new(WorldOptions { shards: 10, crew: false, ..WorldOptions::default() });
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

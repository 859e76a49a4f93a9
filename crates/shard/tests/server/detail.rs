//! `stats detail` and `stats conns`: one core answers with the parts of all cores.

use kachel_io::FarEnd;
use kachel_testkit::{World, WorldOptions};

fn lines(world: &mut World, client: &FarEnd, request: &str) -> Vec<String> {
    let told = world.ask(client, format!("{request}\r\n").as_bytes());
    String::from_utf8(told).expect("text").lines().map(str::to_string).collect()
}

fn world(shards: u16, crew: bool) -> World {
    World::new(WorldOptions { shards, crew, ..WorldOptions::default() })
}

#[test]
fn requests_are_counted_by_prefix_while_that_is_on() {
    for (shards, crew) in [(1, true), (3, true), (3, false)] {
        let mut world = world(shards, crew);
        let client = world.connect();
        lines(&mut world, &client, "get a:0");
        assert_eq!(lines(&mut world, &client, "stats detail dump"), ["END"], "it was off");
        assert_eq!(lines(&mut world, &client, "stats detail on"), ["OK"]);
        for key in 0..40 {
            lines(&mut world, &client, &format!("set a:{key} 0 0 1\r\nx"));
        }
        // As memcached 1.6.45 counts: every key of a retrieval, and no key without a delimiter.
        world.ask(&client, b"get a:0 a:1 a:none b:none nothing\r\nmg a:2 v\r\nmg c:x v\r\n");
        world.ask(&client, b"delete a:3\r\ndelete a:none\r\nincr a:4 1\r\nms d:x 1\r\nx\r\n");
        let told = lines(&mut world, &client, "stats detail dump");
        let expected = [
            "PREFIX a get 4 hit 3 set 40 del 2",
            "PREFIX b get 1 hit 0 set 0 del 0",
            "PREFIX c get 1 hit 0 set 0 del 0",
            "PREFIX d get 0 hit 0 set 1 del 0",
            "END",
        ];
        assert_eq!(told, expected, "{shards} shards, crew {crew}");
        assert_eq!(lines(&mut world, &client, "stats detail off"), ["OK"]);
        lines(&mut world, &client, "get a:0");
        assert_eq!(lines(&mut world, &client, "stats detail dump"), expected, "it is off");
        assert_eq!(lines(&mut world, &client, "stats reset"), ["RESET"]);
        assert_eq!(lines(&mut world, &client, "stats detail dump"), ["END"], "a reset");
    }
}

#[test]
fn many_prefixes_are_told_in_steps() {
    let mut world = world(2, true);
    let client = world.connect();
    let mut input = String::from("stats detail on\r\n");
    (0..3_000).for_each(|key| input += &format!("get p{key}:x\r\n"));
    world.ask(&client, input.as_bytes());
    let told = lines(&mut world, &client, "stats detail dump");
    assert_eq!(told.len(), 3_000 + 1);
    assert!(told.contains(&"PREFIX p1234 get 1 hit 0 set 0 del 0".to_string()));
}

#[test]
fn the_connections_of_all_cores_are_told() {
    for (shards, crew) in [(1, true), (3, true), (3, false)] {
        let mut world = world(shards, crew);
        let clients: Vec<FarEnd> = (0..50).map(|_| world.connect()).collect();
        for client in &clients {
            lines(&mut world, client, "version");
        }
        for _ in 0..7 {
            world.clock.advance_s(1);
            world.settle();
        }
        // One line is not whole, one block is not whole, and one block is dropped.
        for (client, begun) in clients[1..].iter().zip([
            &b"get ke"[..],
            b"set key 0 0 3\r\nab",
            b"set key 0 0 100000\r\nab",
            b"set key 0 0 2000000\r\nab",
        ]) {
            client.write(begun);
        }
        world.settle();
        let told = lines(&mut world, &clients[0], "stats conns");
        let count = |ending: &str| told.iter().filter(|line| line.ends_with(ending)).count();
        assert_eq!(told.len(), 50 * 3 + 1, "{told:?}");
        assert_eq!(count(":addr unix"), 50);
        assert_eq!(count(":state conn_parse_cmd"), 1, "the one that asks");
        assert_eq!(count(":state conn_nread"), 2);
        assert_eq!(count(":state conn_swallow"), 1);
        assert_eq!(count(":state conn_read"), 46);
        assert_eq!(count(":secs_since_last_cmd 7") + count(":secs_since_last_cmd 6"), 45);
    }
}

/// Rows of `stats` that depend on where requests are executed, or on the process. A request that is
/// parked takes memory, which `total_malloced` counts.
const OTHER_ROWS: [&str; 3] = ["conn_yields", "rusage", "total_malloced"];

/// The rows of all statistics that must not depend on where requests are executed.
fn counts(world: &mut World, client: &FarEnd) -> Vec<String> {
    let mut rows = Vec::new();
    for request in ["stats", "stats detail dump", "stats items", "stats slabs"] {
        rows.extend(lines(world, client, request));
    }
    rows.retain(|row| !OTHER_ROWS.iter().any(|other| row.contains(other)));
    rows
}

/// A request of each kind over few keys, some of them refused, by a xorshift generator.
fn any_request(random: &mut u64) -> Vec<u8> {
    let mut below = |bound: u64| {
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        *random % bound
    };
    let key = format!("p{}:{}", below(3), below(9));
    let verb = ["set", "add", "replace", "append", "prepend"][below(5) as usize];
    let bytes = [3, 3, 3, 20_000, 900_000, 1_100_000][below(6) as usize];
    let value = "7".repeat(bytes);
    let text = match below(16) {
        0..4 => format!("{verb} {key} 0 0 {bytes}\r\n{value}\r\n"),
        4 => format!("cas {key} 0 0 {bytes} 1\r\n{value}\r\n"),
        5 => format!("ms {key} {bytes} T0\r\n{value}\r\n"),
        6 => format!("get {key} p0:1 p1:2\r\n"),
        7 => format!("gat 0 {key}\r\n"),
        8 => format!("touch {key} 0\r\n"),
        9 => format!("delete {key}\r\n"),
        10 => format!("incr {key} 1\r\ndecr {key} 2\r\n"),
        11 => format!("mg {key} v T0\r\n"),
        12 => format!("md {key} I\r\n"),
        13 => format!("ma {key} N0\r\n"),
        14 => format!("ms {key} 1 MS\r\n7\r\n"),
        _ => format!("me {key}\r\nmn\r\n"),
    };
    text.into_bytes()
}

/// The fault: where a core changes only its own shard, the removal of an item whose new value was
/// refused counted as a delete; elsewhere, it did not.
#[test]
fn statistics_do_not_depend_on_where_requests_are_executed() {
    for (evict, memory_bytes) in [(true, 64 << 20), (false, 16 << 20)] {
        let mut worlds = [true, false].map(|crew| {
            World::new(WorldOptions { shards: 3, crew, evict, memory_bytes, ..Default::default() })
        });
        let clients = worlds.each_ref().map(|world| world.connect());
        for (world, client) in worlds.iter_mut().zip(&clients) {
            assert_eq!(lines(world, client, "stats detail on"), ["OK"]);
        }
        let mut random = 42;
        for step in 0..400 {
            let request = any_request(&mut random);
            let mut asked = worlds.iter_mut().zip(&clients);
            let mut ask = || asked.next().map(|(world, client)| world.ask(client, &request));
            let name = String::from_utf8_lossy(&request[..request.len().min(40)]).into_owned();
            assert_eq!(ask(), ask(), "step {step}: {name}");
        }
        let [crew, erew] = &mut worlds;
        let counts = [counts(crew, &clients[0]), counts(erew, &clients[1])];
        for (crew, erew) in counts[0].iter().zip(&counts[1]) {
            assert_eq!(crew, erew, "evict {evict}");
        }
        assert_eq!(counts[0].len(), counts[1].len());
    }
}

/// As memcached 1.6.45 counts (`process_update_cmd_start`): a set, and no delete.
#[test]
fn a_refused_value_counts_as_a_set_of_its_prefix() {
    for (shards, crew) in [(1, true), (3, true), (3, false)] {
        let mut world = world(shards, crew);
        let client = world.connect();
        lines(&mut world, &client, "stats detail on");
        let value = "v".repeat(1_100_000);
        for key in 0..9 {
            world.ask(&client, format!("set a:{key} 0 0 1\r\nx\r\n").as_bytes());
            world.ask(&client, format!("set a:{key} 0 0 1100000\r\n{value}\r\n").as_bytes());
        }
        let told = lines(&mut world, &client, "stats detail dump");
        assert_eq!(told, ["PREFIX a get 0 hit 0 set 18 del 0", "END"], "crew {crew}");
        let stats = lines(&mut world, &client, "stats");
        for row in ["STAT delete_hits 0", "STAT store_too_large 9", "STAT curr_items 0"] {
            assert!(stats.iter().any(|found| found == row), "{row}: {stats:?}");
        }
    }
}

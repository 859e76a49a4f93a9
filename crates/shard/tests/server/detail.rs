//! `stats detail` and `stats conns`: what each core has, told by one.

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

//! `lru_crawler crawl`: it reclaims the space of items that have expired, in all shards.

use kachel_io::FarEnd;
use kachel_testkit::{World, WorldOptions};

/// One shard; three that change each other's items; three that ask each other. Then more engines
/// than shards, and fewer.
const SERVERS: [(u16, u16, bool); 5] =
    [(1, 1, true), (3, 3, true), (3, 3, false), (3, 8, true), (4, 2, false)];

fn stat(world: &mut World, client: &FarEnd, name: &str) -> u64 {
    let told = String::from_utf8(world.ask(client, b"stats\r\n")).expect("text");
    let line = told.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
    line.and_then(|value| value.parse().ok()).expect("a number")
}

/// A server with 3,000 items, of which a third lives, and a third has a value of class 6. Nothing
/// but the crawler finds out that the others have expired.
fn half_dead((shards, engines, crew): (u16, u16, bool)) -> (World, FarEnd) {
    let engines = Some(engines);
    let mut world = World::new(WorldOptions { shards, engines, crew, ..WorldOptions::default() });
    let client = world.connect();
    for number in 0..3_000 {
        let bytes = if number % 3 == 0 { 200 } else { 1 };
        let value = "x".repeat(bytes);
        let mut request = format!("set key{number} 0 10000 {bytes}\r\n{value}\r\n");
        if number % 3 != 1 {
            request += &format!("touch key{number} 1\r\n");
        }
        world.ask(&client, request.as_bytes());
    }
    world.clock.advance_s(5);
    world.settle();
    (world, client)
}

#[test]
fn it_reclaims_what_has_expired_and_nothing_else() {
    for server in SERVERS {
        let (mut world, client) = half_dead(server);
        assert_eq!(stat(&mut world, &client, "curr_items"), 3_000, "nobody has looked");
        let watcher = world.connect();
        assert_eq!(world.ask(&watcher, b"watch sysevents\r\n"), b"OK\r\n");
        assert_eq!(world.ask(&client, b"lru_crawler crawl 6\r\n"), b"OK\r\n");
        assert_eq!(stat(&mut world, &client, "curr_items"), 2_000, "those of this class");
        assert_eq!(stat(&mut world, &client, "crawler_reclaimed"), 1_000);
        let line = String::from_utf8(watcher.read()).expect("text");
        assert!(line.contains(" type=lru_crawler crawler=0 lru=all "), "{line}");
        assert!(line.ends_with(" elapsed=0 examined=3000 reclaimed=1000\n"), "{line}");
        assert_eq!(world.ask(&client, b"lru_crawler crawl all\r\n"), b"OK\r\n");
        assert_eq!(stat(&mut world, &client, "curr_items"), 1_000, "those that live");
        assert_eq!(stat(&mut world, &client, "crawler_reclaimed"), 2_000);
        for number in 0..3_000 {
            let request = format!("mg key{number} s\r\n");
            let expected: &[u8] = if number % 3 == 1 { b"HD s1\r\n" } else { b"EN\r\n" };
            assert_eq!(world.ask(&client, request.as_bytes()), expected);
        }
        assert_eq!(world.ask(&client, b"flush_all\r\nlru_crawler crawl all\r\n"), b"OK\r\nOK\r\n");
        assert_eq!(stat(&mut world, &client, "curr_items"), 0, "what was flushed");
    }
}

#[test]
fn there_is_one_run_at_a_time_and_a_step_is_bounded() {
    for server in SERVERS {
        let (mut world, client) = half_dead(server);
        client.write(b"lru_crawler crawl all\r\nlru_crawler crawl 1\r\n");
        world.settle();
        assert_eq!(client.read(), b"OK\r\nBUSY currently processing crawler request\r\n");
        assert_eq!(world.ask(&client, b"lru_crawler crawl all\r\n"), b"OK\r\n", "it is over");
        let examined = world.sum(|counters| &counters.listed_items);
        client.write(b"lru_crawler crawl all\r\n");
        let mut before = examined;
        for _ in 0..200 {
            world.turn();
            let now = world.sum(|counters| &counters.listed_items);
            assert!(now - before <= 512 * u64::from(server.0), "a step of each core");
            before = now;
        }
        assert!(before > examined);
        world.settle();
    }
}

#[test]
fn cores_that_sleep_take_part() {
    let (mut world, client) = half_dead((3, 3, true));
    world.rest();
    client.write(b"lru_crawler crawl all\r\n");
    // No time passes, so only a core that is woken does anything.
    world.rest();
    assert_eq!(world.sum(|counters| &counters.crawler_reclaimed), 2_000);
}

/// The size classes of the items of a dump, from its lines.
fn dumped(world: &mut World, client: &FarEnd, classes: &str) -> Vec<String> {
    let request = format!("lru_crawler metadump {classes}\r\n");
    let told = String::from_utf8(world.ask(client, request.as_bytes())).expect("text");
    let lines = told.strip_prefix("OK\r\n").and_then(|rest| rest.strip_suffix("END\r\n"));
    let class = |line: &str| {
        let field = line.split(' ').find_map(|field| field.strip_prefix("cls="));
        field.expect("each line names the class").to_owned()
    };
    lines.unwrap_or_else(|| panic!("a dump: {told}")).lines().map(class).collect()
}

#[test]
fn a_dump_has_the_items_of_the_classes_that_are_named() {
    for (shards, engines, crew) in SERVERS {
        let engines = Some(engines);
        let options = WorldOptions { shards, engines, crew, ..WorldOptions::default() };
        let mut world = World::new(options);
        let client = world.connect();
        for (number, bytes) in [1, 200, 1, 1_000, 200, 1].into_iter().enumerate() {
            let value = "x".repeat(bytes);
            let request = format!("set key{number} 0 0 {bytes}\r\n{value}\r\n");
            world.ask(&client, request.as_bytes());
        }
        let mut all = dumped(&mut world, &client, "all");
        all.sort();
        let [small, middle] = [&all[0], all.iter().find(|class| **class == "6").expect("200 B")];
        assert_eq!(all.len(), 6);
        assert_eq!(dumped(&mut world, &client, small), [&small[..]; 3]);
        let mut two = dumped(&mut world, &client, &format!("{middle},{small}"));
        two.sort();
        assert_eq!(two, [&small[..], small, small, middle, middle]);
        assert!(dumped(&mut world, &client, "63").is_empty());
        let keys = world.ask(&client, b"lru_crawler mgdump 6\r\n");
        let keys = String::from_utf8(keys).expect("text");
        let mut keys: Vec<&str> = keys.lines().collect();
        keys.sort_unstable();
        assert_eq!(keys, ["EN", "OK", "mg key1", "mg key4"]);
    }
}

#[test]
fn a_crawler_that_is_switched_off_refuses_runs_and_dumps_until_it_is_switched_on() {
    let mut world = World::new(WorldOptions::default());
    let client = world.connect();
    let refused = b"CLIENT_ERROR lru crawler disabled\r\n";
    assert_eq!(world.ask(&client, b"lru_crawler disable\r\n"), b"OK\r\n");
    for request in ["crawl all", "crawl 99", "metadump all", "metadump 99", "mgdump 1"] {
        let request = format!("lru_crawler {request}\r\n");
        assert_eq!(world.ask(&client, request.as_bytes()), refused, "{request}");
    }
    assert_eq!(world.ask(&client, b"lru_crawler enable\r\n"), b"OK\r\n");
    assert_eq!(world.ask(&client, b"lru_crawler crawl all\r\n"), b"OK\r\n");
    assert_eq!(
        world.ask(&client, b"lru_crawler metadump 99\r\n"),
        b"BADCLASS invalid class id\r\n"
    );
    assert_eq!(world.ask(&client, b"lru_crawler metadump all\r\n"), b"OK\r\nEND\r\n");
}

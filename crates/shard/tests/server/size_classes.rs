//! `stats items` and `stats slabs`: their numbers are the counts of the items that are stored.

use std::collections::BTreeMap;

use kachel_io::FarEnd;
use kachel_shard::PlainOptions;
use kachel_testkit::{World, WorldOptions};

/// The numbers of a topic, by their names without `prefix`.
fn numbers(world: &mut World, client: &FarEnd, topic: &str, prefix: &str) -> BTreeMap<String, u64> {
    let told = world.ask(client, format!("stats {topic}\r\n").as_bytes());
    let told = String::from_utf8(told).expect("text");
    let rows = told.strip_suffix("END\r\n").expect("the topic has an end").lines();
    rows.map(|line| {
        let (name, value) = line.strip_prefix("STAT ")?.strip_prefix(prefix)?.split_once(' ')?;
        Some((name.to_string(), value.parse().ok()?))
    })
    .collect::<Option<_>>()
    .unwrap_or_else(|| panic!("{told}"))
}

fn items(world: &mut World, client: &FarEnd) -> BTreeMap<String, u64> {
    numbers(world, client, "items", "items:")
}

/// The sum over all classes.
fn sum(rows: &BTreeMap<String, u64>, name: &str) -> u64 {
    let ending = format!(":{name}");
    rows.iter().filter(|(key, _)| key.ends_with(&ending)).map(|(_, value)| value).sum()
}

fn general(world: &mut World, client: &FarEnd, name: &str) -> u64 {
    let told = String::from_utf8(world.ask(client, b"stats\r\n")).expect("text");
    let found = told.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
    found.expect("it is there").parse().expect("a number")
}

/// Stores a value of `bytes` under `key`.
fn set(world: &mut World, client: &FarEnd, key: &str, bytes: usize, flags: u32) {
    let request = format!("set {key} {flags} 0 {bytes}\r\n{}\r\n", "v".repeat(bytes));
    assert_eq!(world.ask(client, request.as_bytes()), b"STORED\r\n");
}

#[test]
fn an_item_counts_in_the_class_in_which_memcached_would_keep_it() {
    // What memcached 1.6.45 has for these, by default: 48 of header, 8 of CAS token, key, value and
    // 3 bytes more; 4 for client flags that are not 0.
    let rows = [
        ("k", 36, 0, 1),
        ("k", 37, 0, 2),
        ("k", 32, 7, 1),
        ("k", 33, 7, 2),
        ("key", 300, 0, 7),
        ("key", 16_384, 0, 24),
        ("key", 400_000, 0, 39),
        ("key", 1_000_000, 0, 39),
    ];
    for (key, bytes, flags, class) in rows {
        for crew in [true, false] {
            let options = WorldOptions { shards: 2, crew, ..WorldOptions::default() };
            let mut world = World::new(options);
            let client = world.connect();
            set(&mut world, &client, key, bytes, flags);
            let items = items(&mut world, &client);
            assert_eq!(items[&format!("{class}:number")], 1, "{bytes} bytes: {items:?}");
            assert_eq!(sum(&items, "number"), 1, "and in no other class");
        }
    }
}

#[test]
fn the_classes_add_up_to_what_the_server_holds() {
    for (shards, crew) in [(1, true), (3, true), (3, false)] {
        let options =
            WorldOptions { shards, crew, memory_bytes: 8 << 20, ..WorldOptions::default() };
        let mut world = World::new(options);
        let client = world.connect();
        let check = |world: &mut World, what: &str| {
            let items = items(world, &client);
            assert_eq!(sum(&items, "number"), general(world, &client, "curr_items"), "{what}");
            assert_eq!(sum(&items, "mem_requested"), general(world, &client, "bytes"), "{what}");
            // As in memcached, a class without items is not listed.
            assert!(sum(&items, "evicted") <= general(world, &client, "evictions"), "{what}");
            let mut held = items.iter().filter(|(name, _)| name.ends_with(":number"));
            assert!(held.all(|(_, number)| *number > 0), "{what}: {items:?}");
            let slabs = numbers(world, &client, "slabs", "");
            assert!(sum(&slabs, "used_chunks") >= sum(&items, "number"), "{what}");
            for name in ["cmd_set", "get_hits", "delete_hits", "incr_hits", "touch_hits"] {
                assert!(sum(&slabs, name) <= general(world, &client, name), "{what}: {name}");
            }
            items
        };
        for key in 0..100 {
            set(&mut world, &client, &format!("k{key}"), 10 + key * 7, 0);
        }
        check(&mut world, "stored");
        for key in 0..50 {
            set(&mut world, &client, &format!("k{key}"), 20_000, 0);
            world.ask(&client, format!("append k{key} 0 0 3\r\nabc\r\n").as_bytes());
            world.ask(&client, format!("touch k{key} 1000\r\n").as_bytes());
        }
        check(&mut world, "replaced by large values, which were extended");
        for key in 0..30 {
            assert_eq!(world.ask(&client, format!("delete k{key}\r\n").as_bytes()), b"DELETED\r\n");
        }
        check(&mut world, "deleted");
        for key in 0..2_000 {
            set(&mut world, &client, &format!("n{key}"), 9_000, 0);
        }
        let items = check(&mut world, "evicted");
        assert!(sum(&items, "evicted") > 0, "memory was full");
        assert_eq!(world.ask(&client, b"stats reset\r\n"), b"RESET\r\n");
        let items = check(&mut world, "after a reset");
        assert_eq!(sum(&items, "evicted"), 0, "a reset");
        let slabs = numbers(&mut world, &client, "slabs", "");
        assert_eq!(sum(&slabs, "cmd_set"), 0, "a reset");
        world.ask(&client, b"flush_all\r\nget n1999\r\n");
        world.clock.advance_s(1);
        world.settle();
        assert_eq!(world.ask(&client, b"stats items\r\n"), b"END\r\n", "no class has items");
    }
}

#[test]
fn requests_count_in_the_class_of_their_item() {
    for (shards, crew) in [(1, true), (3, true), (3, false)] {
        let mut world = World::new(WorldOptions { shards, crew, ..WorldOptions::default() });
        let client = world.connect();
        set(&mut world, &client, "short", 3, 0);
        set(&mut world, &client, "long", 300, 0);
        // One in each tick, so that the class of each is counted.
        for request in [
            "get short",
            "get long",
            "get none",
            "get long",
            "mg long k",
            "touch long 0",
            "gat 0 short",
            "set n 0 0 1\r\n1",
            "incr n 1",
            "incr n 1",
            "decr n 1",
            "incr none 1",
            "cas long 0 0 2 9999\r\nxx",
            "delete short",
            "delete none",
            "replace none 0 0 1\r\nx",
        ] {
            world.ask(&client, format!("{request}\r\n").as_bytes());
        }
        let slabs = numbers(&mut world, &client, "slabs", "");
        let rows = [
            ("1:get_hits", 1),
            ("7:get_hits", 3),
            ("1:cmd_set", 4),
            ("7:cmd_set", 1),
            ("1:touch_hits", 1),
            ("7:touch_hits", 1),
            ("1:incr_hits", 2),
            ("1:decr_hits", 1),
            ("1:cas_badval", 1),
            ("1:cas_hits", 0),
            ("1:delete_hits", 1),
            ("7:delete_hits", 0),
            ("7:chunk_size", 384),
            ("1:used_chunks", 1),
            ("active_slabs", 2),
        ];
        for (name, number) in rows {
            assert_eq!(slabs[name], number, "{name}, {shards} shards: {slabs:?}");
        }
        assert_eq!(general(&mut world, &client, "cmd_set"), 5, "also the one that found no item");
        assert_eq!(general(&mut world, &client, "get_hits"), 4);
        // Of many in one tick only the first ones are counted by class. They stand for all.
        world.ask(&client, "get long\r\n".repeat(1_000).as_bytes());
        let slabs = numbers(&mut world, &client, "slabs", "");
        assert_eq!(sum(&slabs, "get_hits"), 1_004 - 1, "rounded down");
        assert!(slabs["7:get_hits"] > 900, "{slabs:?}");
    }
}

/// The lines of a topic that is not numbers.
fn lines(world: &mut World, client: &FarEnd, request: &str) -> Vec<String> {
    let told = world.ask(client, format!("{request}\r\n").as_bytes());
    String::from_utf8(told).expect("text").lines().map(str::to_string).collect()
}

#[test]
fn sizes_are_told_in_steps_of_32_bytes_if_they_are_tracked() {
    for (shards, crew) in [(1, true), (3, true), (3, false)] {
        let options = |tracks_sizes| WorldOptions {
            shards,
            crew,
            plain: PlainOptions { tracks_sizes, ..PlainOptions::default() },
            ..WorldOptions::default()
        };
        let mut world = World::new(options(false));
        let client = world.connect();
        assert_eq!(
            lines(&mut world, &client, "stats sizes"),
            ["STAT sizes_status disabled", "END"]
        );
        let mut world = World::new(options(true));
        let client = world.connect();
        assert_eq!(lines(&mut world, &client, "stats sizes"), ["END"]);
        // memcached 1.6.45 tells these two of the first two items.
        set(&mut world, &client, "a:1", 3, 0);
        set(&mut world, &client, "b:1", 300, 0);
        for key in 0..100 {
            set(&mut world, &client, &format!("k{key:02}"), 3, 0);
        }
        set(&mut world, &client, "long", 400_000, 0);
        let told = lines(&mut world, &client, "stats sizes");
        assert_eq!(told, ["STAT 96 101", "STAT 384 1", "STAT 400064 1", "END"]);
    }
}

#[test]
fn a_cachedump_lists_the_items_of_a_class() {
    for (shards, crew) in [(1, true), (3, true), (3, false)] {
        let mut world = World::new(WorldOptions { shards, crew, ..WorldOptions::default() });
        let client = world.connect();
        for key in 0..200 {
            set(&mut world, &client, &format!("k{key}"), 3, 0);
        }
        world.ask(&client, format!("set b 0 60 300\r\n{}\r\n", "v".repeat(300)).as_bytes());
        let told = lines(&mut world, &client, "stats cachedump 7 0");
        assert!(told[0].starts_with("ITEM b [300 b; ") && told[0].ends_with(" s]"), "{told:?}");
        assert_eq!(told[1..], ["END"]);
        let mut all = lines(&mut world, &client, "stats cachedump 1 0");
        assert_eq!(all.pop().as_deref(), Some("END"));
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 200, "{shards} shards");
        assert!(all.contains(&"ITEM k17 [3 b; 0 s]".to_string()));
        assert_eq!(lines(&mut world, &client, "stats cachedump 1 5").len(), 5 + 1);
        assert_eq!(lines(&mut world, &client, "stats cachedump 2 0"), ["END"]);
    }
}

#[test]
fn evictions_and_expiries_count_in_their_class() {
    let mut world =
        World::new(WorldOptions { shards: 1, memory_bytes: 8 << 20, ..WorldOptions::default() });
    let client = world.connect();
    world.ask(&client, b"set brief 0 1 3\r\nabc\r\n");
    world.clock.advance_s(2);
    assert_eq!(world.ask(&client, b"get brief\r\n"), b"END\r\n");
    assert_eq!(world.ask(&client, b"stats items\r\n"), b"END\r\n", "no class has items");
    world.ask(&client, b"set stays 0 0 3\r\nabc\r\n");
    let found = items(&mut world, &client);
    assert_eq!((found["1:reclaimed"], found["1:expired_unfetched"]), (1, 1));
    assert_eq!((found["1:number"], found["1:age"]), (1, 0));
    for key in 0..2_000 {
        let set = format!("set n{key} 0 9000 9000\r\n{}\r\n", "v".repeat(9_000));
        world.ask(&client, set.as_bytes());
        if key % 100 == 0 {
            world.clock.advance_s(1);
        }
    }
    let found = items(&mut world, &client);
    let evicted = found["22:evicted"];
    assert_eq!(evicted, general(&mut world, &client, "evictions"), "all have one size");
    assert!(evicted > 0 && found["22:evicted_nonzero"] == evicted, "{found:?}");
    assert!((1..20).contains(&found["22:evicted_time"]), "{found:?}");
    assert!(found["22:age"] <= found["22:evicted_time"], "{found:?}");
    assert_eq!(found["22:evicted_unfetched"], evicted);
}

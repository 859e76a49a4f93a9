//! `cache_memlimit`: the limit is lowered and raised while clients store.

use kachel_io::FarEnd;
use kachel_testkit::{World, WorldOptions};

/// Bytes of each value: small enough for a segment, large enough that few sets fill the memory.
const VALUE_BYTES: usize = 8_000;

/// Stores items under new names and checks that each is stored.
fn store(world: &mut World, client: &FarEnd, first: usize, count: usize) {
    let value = "v".repeat(VALUE_BYTES);
    for key in first..first + count {
        let set = format!("set key{key} 0 0 {VALUE_BYTES}\r\n{value}\r\n");
        assert_eq!(world.ask(client, set.as_bytes()), b"STORED\r\n", "key{key}");
    }
}

fn stat(world: &mut World, client: &FarEnd, name: &str) -> u64 {
    let told = String::from_utf8(world.ask(client, b"stats\r\n")).expect("text");
    let line = told.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
    line.and_then(|value| value.parse().ok()).expect("a number")
}

#[test]
fn a_limit_that_is_lowered_under_load_is_kept_and_nothing_is_refused() {
    for (shards, crew) in [(1, true), (3, true), (3, false)] {
        let mut world = World::new(WorldOptions { shards, crew, ..WorldOptions::default() });
        let (client, operator) = (world.connect(), world.connect());
        store(&mut world, &client, 0, 6_000);
        assert_eq!(stat(&mut world, &operator, "evictions"), 0, "48 MB fit into 64 MiB");
        let before = world.shared.budget.spent_bytes();
        assert_eq!(world.ask(&operator, b"cache_memlimit 16\r\n"), b"OK\r\n");
        assert_eq!(stat(&mut world, &operator, "limit_maxbytes"), 16 << 20);
        // Stores of clients, and upkeep in other shards, give the memory back.
        store(&mut world, &client, 6_000, 500);
        for _ in 0..5 {
            world.clock.advance_s(1);
            world.settle();
        }
        assert_eq!(world.shared.budget.overdrawn_bytes(), 0, "{shards} shards, {crew}");
        assert!(world.shared.budget.spent_bytes() < before / 2);
        assert!(stat(&mut world, &operator, "evictions") > 4_000);
        assert!(stat(&mut world, &operator, "curr_items") < 2_200);
        // The newest item is still there, and there is room again.
        let newest = world.ask(&client, b"mg key6499 s\r\n");
        assert_eq!(newest, format!("HD s{VALUE_BYTES}\r\n").as_bytes());
        assert_eq!(world.ask(&operator, b"cache_memlimit 64\r\n"), b"OK\r\n");
        let evictions = stat(&mut world, &operator, "evictions");
        store(&mut world, &client, 7_000, 4_000);
        assert_eq!(stat(&mut world, &operator, "evictions"), evictions, "all of it fits");
        world.audit();
    }
}

#[test]
fn a_limit_that_cannot_be_is_refused_and_changes_nothing() {
    let mut world = World::new(WorldOptions::default());
    let client = world.connect();
    for (request, reply) in [
        ("7", "MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m"),
        ("2000000000", "MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes"),
        ("65", "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust"),
        ("x", "ERROR"),
    ] {
        let said = world.ask(&client, format!("cache_memlimit {request}\r\n").as_bytes());
        assert_eq!(said, format!("{reply}\r\n").as_bytes());
        assert_eq!(stat(&mut world, &client, "limit_maxbytes"), 64 << 20);
    }
}

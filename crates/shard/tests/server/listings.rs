//! Listings of all items: that they are complete, and how much many of them delay other clients.

use kachel_io::FarEnd;
use kachel_net::OWED_BYTES_MAX;
use kachel_shard::{LISTED_ITEMS_PER_TICK_MAX, LISTING_BYTES_PER_CORE_MAX, PlainOptions};
use kachel_stdx::kept;

use kachel_testkit::{World, WorldOptions};

const KEYS: usize = 1_500;
/// Ticks in which a hundred listings end: ten times what they take.
const TICKS_MAX: usize = 200_000;

/// Ticks until each client has the end of its listing. Sees that no shard looks at more items in a
/// tick than it may. Returns the listings, and after how many ticks each had ended.
fn list(world: &mut World, clients: &[FarEnd], line: &[u8], end: &[u8]) -> Vec<(Vec<u8>, usize)> {
    let items = |world: &World, shard: usize| {
        usize::try_from(world.shared.totals.cores[shard].listed_items.value()).expect("few")
    };
    let mut listings = vec![(Vec::new(), 0); clients.len()];
    clients.iter().for_each(|client| client.write(line));
    for tick in 1..TICKS_MAX {
        for shard in 0..world.shards.len() {
            let before = items(world, shard);
            world.turn_of(shard);
            let looked = items(world, shard) - before;
            assert!(looked <= LISTED_ITEMS_PER_TICK_MAX, "{looked} items in a tick");
        }
        for ((listing, ended), client) in listings.iter_mut().zip(clients) {
            listing.extend(client.read());
            if *ended == 0 && listing.ends_with(end) {
                *ended = tick;
            }
        }
        if listings.iter().all(|(_, ended)| *ended > 0) {
            return listings;
        }
    }
    panic!("not all listings end");
}

#[test]
fn a_hundred_listings_look_at_no_more_items_in_a_tick_than_one() {
    for shards in [1, 3] {
        let mut world = World::new(WorldOptions { shards, ..WorldOptions::default() });
        let clients: Vec<FarEnd> = (0..100).map(|_| world.connect()).collect();
        for key in 0..2 * KEYS {
            let expiry = if key % 2 == 0 { 0 } else { 1 };
            let set = format!("set k{key} 0 {expiry} 1 noreply\r\nx\r\n");
            world.ask(&clients[key % 100], set.as_bytes());
        }
        // Half of the items are dead, and are looked at all the same until upkeep has come to them.
        world.clock.advance_s(1);
        for count in [1, 100] {
            let forms: [(&[u8], &[u8]); 2] = [
                (b"lru_crawler metadump all\r\n", b"END\r\n"),
                (b"lru_crawler mgdump all\r\n", b"EN\r\n"),
            ];
            for (line, end) in forms {
                let listings = list(&mut world, &clients[..count], line, end);
                for (listing, _) in &listings {
                    let listing = String::from_utf8(listing.clone()).expect("text");
                    let mut lines: Vec<&str> = listing.lines().collect();
                    assert_eq!(lines.remove(0), "OK");
                    lines.pop();
                    lines.sort_unstable();
                    lines.dedup();
                    assert_eq!(lines.len(), KEYS, "{count} listings, {shards} shards");
                }
                // They take turns: the first to end comes not long before the last.
                let first = listings.iter().map(|(_, ended)| *ended).min();
                let last = listings.iter().map(|(_, ended)| *ended).max();
                assert!(first.expect("one") * 4 > last.expect("one"), "{first:?} and {last:?}");
            }
        }
    }
}

#[test]
fn a_listing_whose_client_does_not_read_keeps_no_other_from_ending() {
    let mut world = World::new(WorldOptions { shards: 2, ..WorldOptions::default() });
    let reader = world.connect();
    let sleepers: Vec<FarEnd> = (0..150).map(|_| world.connect()).collect();
    for key in 0..4_000 {
        world.ask(&reader, format!("set key-{key} 0 0 1 noreply\r\nx\r\n").as_bytes());
    }
    for sleeper in &sleepers {
        sleeper.stall();
        sleeper.write(b"lru_crawler metadump all\r\n");
    }
    world.settle();
    let listing = world.ask(&reader, b"lru_crawler metadump all\r\nmn\r\n");
    assert!(listing.ends_with(b"END\r\nMN\r\n"));
    // Some leave, some go on.
    let (leaving, staying) = sleepers.split_at(75);
    leaving.iter().for_each(FarEnd::reset);
    staying.iter().for_each(FarEnd::allow_all);
    world.settle();
    for sleeper in staying {
        let lines = sleeper.read().iter().filter(|byte| **byte == b'\n').count();
        assert_eq!(lines, 4_000 + 2);
    }
}

/// Prefixes that are counted, and bytes of each: several times what a client may be owed.
const PREFIXES: usize = 4_000;
const PREFIX_BYTES: usize = 100;
/// Steps of `stats sizes`: their lines are more than a client may be owed, too.
const STEPS: usize = 2_600;

/// A server with many prefixes and many sizes. Returns it with a client.
fn crowded(shards: u16, crew: bool) -> (World, FarEnd) {
    let mut world = World::new(WorldOptions {
        shards,
        crew,
        plain: PlainOptions { tracks_sizes: true, ..PlainOptions::default() },
        memory_bytes: 256 << 20,
        ..WorldOptions::default()
    });
    let client = world.connect();
    let mut input = String::from("stats detail on\r\n");
    for number in 0..PREFIXES {
        let prefix = format!("{number:0PREFIX_BYTES$}");
        input += &format!("get {prefix}:a {prefix}:b\r\n");
    }
    world.ask(&client, input.as_bytes());
    for step in 0..STEPS {
        let bytes = 32 * step;
        let set = format!("set k{step:05} 0 0 {bytes} noreply\r\n{}\r\n", "v".repeat(bytes));
        world.ask(&client, set.as_bytes());
    }
    (world, client)
}

#[test]
fn unread_listings_take_no_more_memory_for_what_they_count() {
    const CLIENTS: usize = 60;
    for (shards, crew) in [(1, true), (3, false)] {
        let (mut world, reader) = crowded(shards, crew);
        let lists: [(&[u8], usize); 6] = [
            (b"stats detail dump\r\n", PREFIXES + 1),
            (b"stats sizes\r\n", STEPS + 1),
            (b"lru_crawler metadump all\r\n", STEPS + 2),
            (b"stats items\r\n", 1),
            (b"stats slabs\r\n", 1),
            (b"stats cachedump 5 0\r\n", 1),
        ];
        let clients: Vec<FarEnd> = (0..CLIENTS).map(|_| world.connect()).collect();
        world.settle();
        clients.iter().for_each(FarEnd::stall);
        let ((), grown) = kept(|| {
            for (client, (line, _)) in clients.iter().zip(lists.iter().cycle()) {
                client.write(line);
            }
            world.settle();
        });
        // As much as clients that do not read any other reply, and the shared part of each core.
        let bound = CLIENTS * OWED_BYTES_MAX + usize::from(shards) * LISTING_BYTES_PER_CORE_MAX;
        assert!(grown > 0 && grown < bound as i64, "{grown} B of {bound} B, {shards} shards");
        // They keep no other client waiting, and they go on where they were.
        for (line, lines_min) in lists {
            let listing = world.ask(&reader, line);
            assert!(listing.ends_with(b"END\r\n"), "{}", String::from_utf8_lossy(line));
            let lines = listing.iter().filter(|byte| **byte == b'\n').count();
            assert!(lines >= lines_min, "{lines} lines");
        }
        clients.iter().for_each(FarEnd::allow_all);
        world.settle();
        for (client, (line, lines_min)) in clients.iter().zip(lists.iter().cycle()) {
            let listing = client.read();
            assert!(listing.ends_with(b"END\r\n"), "{}", String::from_utf8_lossy(line));
            let mut lines: Vec<&[u8]> = listing.split(|byte| *byte == b'\n').collect();
            let all = lines.len();
            lines.sort_unstable();
            lines.dedup();
            assert!(all > *lines_min && lines.len() == all, "no line is lost or sent twice");
        }
    }
}

#[test]
fn a_listing_that_counts_for_all_and_leaves_keeps_no_other_from_ending() {
    for (shards, crew) in [(1, true), (3, false)] {
        let mut world = World::new(WorldOptions {
            shards,
            crew,
            plain: PlainOptions { tracks_sizes: true, ..PlainOptions::default() },
            ..WorldOptions::default()
        });
        let clients: Vec<FarEnd> = (0..12).map(|_| world.connect()).collect();
        world.ask(&clients[0], b"stats detail on\r\n");
        for key in 0..4_000 {
            let set = format!("set p{key:04}:x 0 0 1 noreply\r\nx\r\n");
            world.ask(&clients[0], set.as_bytes());
        }
        for (number, client) in clients.iter().enumerate() {
            client.write(match number % 3 {
                0 => b"stats items\r\n",
                1 => b"stats detail dump\r\n",
                _ => b"stats sizes\r\n",
            });
        }
        // The first ones leave in the middle of their walks.
        for leaving in &clients[..9] {
            for shard in 0..world.shards.len() {
                world.turn_of(shard);
            }
            leaving.reset();
        }
        world.settle();
        for (client, expected) in clients[9..].iter().zip(["number 4000", "PREFIX p3999", "4000"]) {
            let listing = String::from_utf8(client.read()).expect("text");
            assert!(listing.contains(expected) && listing.ends_with("END\r\n"), "{listing}");
        }
    }
}

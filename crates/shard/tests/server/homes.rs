//! Servers with more engines than cores, and with fewer: each engine has a home core.

use std::sync::Arc;

use kachel_engine::{EngineIndex, KeyHasher};
use kachel_io::FarEnd;
use kachel_shard::PlainOptions;
use kachel_testkit::{World, WorldOptions};

const KEYS: usize = 400;
const CLIENTS: usize = 8;
/// Bytes of a value that is pinned while it is sent.
const LARGE_BYTES: usize = 300_000;

/// Cores, engines, and cores that only serve clients.
const NUMBERS: [(u16, u16, u16); 5] = [(3, 8, 0), (8, 3, 0), (1, 8, 0), (4, 1, 0), (5, 4, 2)];

fn options((shards, engines, net_cores): (u16, u16, u16), crew: bool) -> WorldOptions {
    let net_cores = Some(net_cores).filter(|cores| *cores > 0);
    let plain = PlainOptions { net_cores, ..WorldOptions::default().plain };
    WorldOptions { shards, engines: Some(engines), crew, plain, ..WorldOptions::default() }
}

/// Servers of all numbers, in both modes of reads, and a word about each.
fn each_server(mut check: impl FnMut(World, &[FarEnd], &str)) {
    for numbers in NUMBERS {
        // Cores that only serve clients are there with `erew`.
        for crew in [true, false].into_iter().filter(|crew| !crew || numbers.2 == 0) {
            let mut world = World::new(options(numbers, crew));
            let clients: Vec<FarEnd> = (0..CLIENTS).map(|_| world.connect()).collect();
            world.settle();
            check(world, &clients, &format!("{numbers:?}, crew: {crew}"));
        }
    }
}

fn fill(world: &mut World, clients: &[FarEnd], ttl: u32, about: &str) {
    for number in 0..KEYS {
        let set = format!("set key{number} 0 {ttl} 3\r\nabc\r\n");
        let client = &clients[number % clients.len()];
        assert_eq!(world.ask(client, set.as_bytes()), b"STORED\r\n", "{about}");
    }
}

fn lines(world: &mut World, client: &FarEnd, request: &str) -> Vec<String> {
    let told = world.ask(client, format!("{request}\r\n").as_bytes());
    String::from_utf8(told).expect("text").lines().map(str::to_owned).collect()
}

fn stat(world: &mut World, client: &FarEnd, name: &str) -> u64 {
    let told = lines(world, client, "stats");
    let line = told.iter().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
    line.and_then(|value| value.parse().ok()).expect("a number")
}

fn items(world: &World) -> u64 {
    world.sum_of_engines(|counters| &counters.items)
}

#[test]
fn each_key_is_stored_read_counted_and_flushed_for_any_numbers() {
    each_server(|mut world, clients, about| {
        let engines = world.shared.homes.engines();
        fill(&mut world, clients, 0, about);
        for number in 0..KEYS {
            let get = format!("get key{number}\r\n");
            let wanted = format!("VALUE key{number} 0 3\r\nabc\r\nEND\r\n");
            let client = &clients[(number + 1) % CLIENTS];
            assert_eq!(world.ask(client, get.as_bytes()), wanted.as_bytes(), "{about}");
        }
        let large = "l".repeat(LARGE_BYTES);
        for (number, client) in clients.iter().enumerate() {
            let set = format!("set large{number} 0 0 {LARGE_BYTES}\r\n{large}\r\n");
            assert_eq!(world.ask(client, set.as_bytes()), b"STORED\r\n", "{about}");
            let got = world.ask(client, format!("get large{number}\r\n").as_bytes());
            assert_eq!(got.len(), LARGE_BYTES + "VALUE large0 0 300000\r\n\r\nEND\r\n".len());
        }
        let all = (KEYS + CLIENTS) as u64;
        let of_each = world.shared.totals.engines.iter().map(|counters| counters.items.value());
        assert_eq!(
            (of_each.clone().count(), of_each.sum()),
            (usize::from(engines), all),
            "{about}"
        );
        let client = &clients[3];
        assert_eq!(stat(&mut world, client, "curr_items"), all, "{about}");
        assert_eq!(stat(&mut world, client, "get_hits"), all, "{about}");
        assert_eq!(lines(&mut world, client, "stats reset"), ["RESET"]);
        assert_eq!(stat(&mut world, client, "curr_items"), all, "{about}: a gauge");
        assert_eq!(stat(&mut world, client, "get_hits"), 0, "{about}");
        assert_eq!(lines(&mut world, client, "flush_all"), ["OK"]);
        assert_eq!(lines(&mut world, client, "get key1 key2 large3"), ["END"], "{about}");
        assert_eq!(lines(&mut world, client, "lru_crawler crawl all"), ["OK"]);
        assert_eq!(stat(&mut world, client, "curr_items"), 0, "{about}");
        world.audit();
    });
}

#[test]
fn listings_tell_the_items_of_all_engines_and_what_all_cores_have() {
    each_server(|mut world, clients, about| {
        let client = &clients[5];
        assert_eq!(lines(&mut world, client, "stats detail on"), ["OK"]);
        fill(&mut world, clients, 0, about);
        let mut dump = lines(&mut world, client, "lru_crawler metadump all");
        dump.sort_unstable();
        dump.dedup();
        assert_eq!(dump.len(), KEYS + 2, "{about}: OK, the keys, END");
        let connections = lines(&mut world, client, "stats conns");
        let states = connections.iter().filter(|line| line.contains(":state "));
        assert_eq!(states.count(), CLIENTS, "{about}: {connections:?}");
        // The keys have no delimiter, so each is counted under its own name.
        let prefixes = lines(&mut world, client, "stats detail dump");
        assert_eq!(prefixes.len(), 1, "{about}: {prefixes:?}");
        world.ask(client, b"set a:1 0 0 1\r\nx\r\n");
        world.ask(&clients[6], b"get a:1\r\n");
        let prefixes = lines(&mut world, client, "stats detail dump");
        assert_eq!(prefixes, ["PREFIX a get 1 hit 1 set 1 del 0", "END"], "{about}");
        let counted = lines(&mut world, client, "stats items");
        let number = |line: &String| line.strip_prefix("STAT items:1:number ")?.parse().ok();
        let number: Option<usize> = counted.iter().find_map(number);
        assert!(number == Some(KEYS + 1), "{about}: {counted:?}");
        // Many at once, of all kinds.
        for (client, line) in clients.iter().zip(["stats conns", "stats items"].iter().cycle()) {
            client.write(format!("{line}\r\nlru_crawler mgdump all\r\n").as_bytes());
        }
        world.settle();
        for client in clients {
            let told = String::from_utf8(client.read()).expect("text");
            assert_eq!(told.matches("\nmg ").count(), KEYS + 1, "{about}: {told}");
        }
    });
}

#[test]
fn what_has_expired_is_given_back_by_the_cores_that_care_for_it() {
    each_server(|mut world, clients, about| {
        fill(&mut world, clients, 20, about);
        assert_eq!(items(&world), KEYS as u64);
        for _ in 0..60 {
            world.clock.advance_s(1);
            world.settle();
        }
        assert_eq!(items(&world), 0, "{about}");
    });
}

/// Requests are left with engines whose home cores sleep, and no client is there that would wake
/// these.
#[test]
fn requests_left_with_an_engine_are_executed_by_its_home_core() {
    for numbers in NUMBERS.into_iter().filter(|(_, _, net_cores)| *net_cores == 0) {
        let (_, engines, _) = numbers;
        let mut world = World::new(WorldOptions { stays: true, ..options(numbers, true) });
        let client = world.connect();
        let hasher = KeyHasher::new(WorldOptions::default().seeds, engines);
        let locks = Arc::clone(&world.engines);
        for index in (0..engines).map(EngineIndex) {
            let owner = |name: &String| hasher.owner(hasher.key(name.as_bytes()).hashes());
            let mut names = (0..).map(|number| format!("key{number}"));
            let name = names.find(|name| owner(name) == index).expect("it owns some keys");
            world.settle();
            let held = locks.hold(index).expect("no core runs");
            client.write(format!("set {name} 0 0 1\r\nx\r\nget {name}\r\n").as_bytes());
            (0..20).for_each(|_| world.turn());
            assert_eq!(client.read(), b"", "another core holds the engine");
            world.rest();
            drop(held);
            world.rest();
            let told = format!("STORED\r\nVALUE {name} 0 1\r\nx\r\nEND\r\n");
            assert_eq!(client.read(), told.as_bytes(), "{numbers:?}, engine {index}");
        }
    }
}

#[test]
fn a_full_server_evicts_in_all_engines_for_any_numbers() {
    for numbers in NUMBERS {
        for crew in [true, false].into_iter().filter(|crew| !crew || numbers.2 == 0) {
            let memory_bytes = 16 << 20;
            let mut world = World::new(WorldOptions { memory_bytes, ..options(numbers, crew) });
            let clients: Vec<FarEnd> = (0..CLIENTS).map(|_| world.connect()).collect();
            let value = "v".repeat(1_000);
            for number in 0..24_000 {
                let set = format!("set key{number} 0 0 1000 noreply\r\n{value}\r\n");
                clients[number % CLIENTS].write(set.as_bytes());
            }
            world.settle();
            let large = "l".repeat(LARGE_BYTES);
            for (number, client) in clients.iter().enumerate() {
                let set = format!("set large{number} 0 0 {LARGE_BYTES}\r\n{large}\r\n");
                assert_eq!(world.ask(client, set.as_bytes()), b"STORED\r\n", "{numbers:?} {crew}");
            }
            let evictions = world.shared.totals.engines.iter().map(|of| of.evictions.value());
            assert!(evictions.clone().all(|count| count > 0), "{numbers:?}, crew: {crew}");
            world.audit();
        }
    }
}

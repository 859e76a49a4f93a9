//! `stats prefixes`: items and bytes of each prefix are exact, and requests are estimated, on any
//! cores; flushes, evictions, hostile keys, and observers that are switched all the time.

use std::collections::BTreeMap;

use kachel_io::FarEnd;
use kachel_shard::{ObserverSet, PlainOptions};
use kachel_testkit::{World, WorldOptions};
use kachel_wire::format::put_base64;

/// Longer than the pause between two walks.
const PAUSE_S: u64 = 11;

/// Servers in which the same request takes different paths, whose prefixes are observed.
fn worlds() -> [World; 3] {
    [(1, true), (3, true), (2, false)].map(|(shards, crew)| {
        World::new(WorldOptions { shards, crew, plain: observed(), ..WorldOptions::default() })
    })
}

fn observed() -> PlainOptions {
    PlainOptions { observers: ObserverSet::PREFIXES, ..PlainOptions::default() }
}

/// What a server tells, after a walk that begins now.
fn told(world: &mut World, client: &FarEnd, topic: &str) -> BTreeMap<String, String> {
    world.clock.advance_s(PAUSE_S);
    world.settle();
    let reply = world.ask(client, format!("stats {topic}\r\n").as_bytes());
    let text = str::from_utf8(&reply).expect("what is shown is text");
    let rows = text.strip_suffix("END\r\n").expect("the last line").lines();
    let pair = |row: &str| {
        let (name, value) = row.strip_prefix("STAT ").expect("a row").split_once(' ')?;
        Some((name.to_owned(), value.to_owned()))
    };
    rows.map(|row| pair(row).expect("a name and a value")).collect()
}

/// The numbers of a row.
fn row(told: &BTreeMap<String, String>, row: &str) -> BTreeMap<String, u64> {
    let of_row = |(name, value): (&String, &String)| {
        let name = name.strip_prefix(row)?.strip_prefix(':')?;
        Some((name.to_owned(), value.parse().ok()?))
    };
    told.iter().filter_map(of_row).collect()
}

/// The numbers of a prefix.
fn prefix(told: &BTreeMap<String, String>, prefix: &str) -> BTreeMap<String, u64> {
    let mut places = (1..).map_while(|place| told.get(&format!("prefix:{place}:name")));
    let place = places.position(|name| name == prefix);
    let place = 1 + place.unwrap_or_else(|| panic!("no {prefix} in {told:?}"));
    row(told, &format!("prefix:{place}"))
}

fn store(world: &mut World, client: &FarEnd, keys: impl IntoIterator<Item = String>, bytes: usize) {
    let value = "v".repeat(bytes);
    let sets = keys.into_iter().map(|key| format!("set {key} 0 0 {bytes} noreply\r\n{value}\r\n"));
    let sets: String = sets.collect();
    assert!(world.ask(client, (sets + "mn\r\n").as_bytes()).ends_with(b"MN\r\n"));
}

#[test]
fn items_and_bytes_are_exact_and_requests_are_within_their_errors() {
    const ROUNDS: u64 = 200;
    for mut world in worlds() {
        let clients: Vec<FarEnd> = (0..3).map(|_| world.connect()).collect();
        store(&mut world, &clients[0], (0..300).map(|number| format!("user:{number}")), 100);
        store(&mut world, &clients[1], (0..40).map(|number| format!("page:{number}")), 3000);
        store(&mut world, &clients[2], (0..10).map(|number| format!("alone{number}")), 10);
        for _ in 0..ROUNDS {
            for (number, client) in clients.iter().enumerate() {
                let request = format!(
                    "get user:{number} user:no page:{number} alone1\r\nmg user:1 v\r\n\
                     set new:{number} 0 0 1\r\nx\r\ndelete user:no\r\nincr user:1 1\r\n"
                );
                client.write(request.as_bytes());
            }
            world.settle();
            clients.iter().for_each(|client| drop(client.read()));
        }
        let told = told(&mut world, &clients[1], "prefixes 3");
        let age: u64 = told["walk_age_s"].parse().expect("a number");
        assert!((told["prefixes"] == "on") && age < PAUSE_S, "{told:?}");
        assert_eq!(told["prefix:1:name"], "page:", "the one with the most bytes");
        let (page, user, new) =
            (prefix(&told, "page:"), prefix(&told, "user:"), prefix(&told, "new:"));
        assert_eq!((page["items"], user["items"], new["items"]), (40, 300, 3));
        assert!((40 * 3000..40 * 3100).contains(&page["bytes"]), "{page:?}");
        assert!([&page, &user, &new].iter().all(|row| row["bytes_error"] == 0));
        for (row, name, wanted) in [
            (&user, "gets", 9 * ROUNDS),
            (&user, "hits", 6 * ROUNDS),
            (&user, "sets", 300),
            (&page, "gets", 3 * ROUNDS),
            (&page, "hits", 3 * ROUNDS),
            (&new, "sets", 3 * ROUNDS),
        ] {
            let (number, error) = (row[name], row[&format!("{name}_error")]);
            assert!(number.abs_diff(wanted) <= error, "{name}: {number}, {error}, {wanted}");
        }
        assert_eq!((new["gets"], user["evictions"]), (0, 0));
        let (all, none) = (row(&told, "all"), row(&told, "none"));
        assert_eq!((none["items"], none["gets"] > 0), (10, true));
        assert_eq!(row(&told, "others").values().sum::<u64>(), 0);
        for name in ["items", "bytes", "gets", "hits", "sets"] {
            let listed = page[name] + user[name] + new[name] + none[name];
            assert_eq!(all[name], listed, "{name}");
        }
        let stats = super::prefixes::told(&mut world, &clients[0], "");
        assert_eq!(stats["curr_items"], all["items"].to_string());
    }
}

#[test]
fn hostile_keys_are_shown_harmlessly() {
    for dumps_allowed in [true, false] {
        let plain = PlainOptions { dumps_allowed, ..observed() };
        let mut world = World::new(WorldOptions { shards: 2, plain, ..WorldOptions::default() });
        let client = world.connect();
        let longest = [b'<'; 249];
        let keys: [&[u8]; 4] =
            [b":x", b"a\r\nEND\r\nSTAT forged 1\r\n:x", b"\xff\xfe\0:x", b"\x1b[2J:"];
        for key in keys {
            let mut request = b"ms ".to_vec();
            put_base64(&mut request, key);
            request.extend_from_slice(b" 1 b\r\nv\r\n");
            assert_eq!(world.ask(&client, &request), b"HD\r\n");
        }
        store(&mut world, &client, [format!("{}:", str::from_utf8(&longest).expect("ASCII"))], 1);
        let told = told(&mut world, &client, "prefixes");
        let names: Vec<&str> = told
            .iter()
            .filter(|(name, _)| name.ends_with(":name"))
            .map(|(_, value)| &value[..])
            .collect();
        assert_eq!(names.len(), keys.len() + 1, "{told:?}");
        assert!(!told.contains_key("forged"), "{told:?}");
        if dumps_allowed {
            for name in [":", "a%0D%0AEND%0D%0ASTAT%20forged%201%0D%0A%3A", "%FF%FE%00%3A"] {
                assert!(names.contains(&name), "{name}: {names:?}");
            }
            assert!(names.iter().any(|name| name.len() >= 250), "{names:?}");
        } else {
            assert!(names.iter().all(|name| name.len() == 16), "{names:?}");
            let hash = world.ask(&client, b"observe hash :\r\n");
            let hash = str::from_utf8(&hash).expect("ASCII");
            let hash = hash.trim_end().strip_prefix("HASH ").expect("the hash");
            assert!(names.contains(&hash), "{hash}: {names:?}");
        }
        assert_eq!(row(&told, "all")["items"], keys.len() as u64 + 1);
    }
}

#[test]
fn flushed_items_are_gone_with_the_next_walk() {
    for mut world in worlds() {
        let client = world.connect();
        for prefix in ["a", "b"] {
            store(&mut world, &client, (0..50).map(|number| format!("{prefix}:{number}")), 10);
        }
        let told = |world: &mut World| told(world, &client, "prefixes");
        let before = told(&mut world);
        assert_eq!((prefix(&before, "a:")["items"], prefix(&before, "b:")["items"]), (50, 50));
        assert_eq!(world.ask(&client, b"flush_prefix a\r\n"), b"OK\r\n");
        let after = told(&mut world);
        assert_eq!(prefix(&after, "b:")["items"], 50);
        assert_eq!(row(&after, "all")["items"], 50);
        assert_eq!(row(&after, "all")["sets"], row(&before, "all")["sets"], "requests stay");
        assert_eq!(world.ask(&client, b"flush_all\r\n"), b"OK\r\n");
        assert_eq!(row(&told(&mut world), "all")["items"], 0);
    }
}

#[test]
fn evicted_items_are_drawn_and_counted() {
    let options =
        WorldOptions { memory_bytes: 16 << 20, plain: observed(), ..WorldOptions::default() };
    let mut world = World::new(options);
    let (client, watcher) = (world.connect(), world.connect());
    let load = |world: &mut World, round: u64| {
        for first in (0..20_000).step_by(200) {
            let keys = (first..first + 200).map(|number| format!("old:{round}:{number}"));
            store(world, &client, keys, 1500);
        }
    };
    load(&mut world, 0);
    let evicted = |world: &World| world.sum_of_engines(|counters| &counters.evictions);
    let (all, first) = (evicted(&world), told(&mut world, &client, "prefixes"));
    let within = |told: &BTreeMap<String, String>, all: u64| {
        let old = prefix(told, "old:");
        let (number, error) = (old["evictions"], old["evictions_error"]);
        assert!(all > 5_000 && number > 0 && error < all, "{all} {old:?}");
        assert!(number.abs_diff(all) <= error, "{number} of {all}, error {error}");
    };
    within(&first, all);
    // While the log of evictions is watched, all are listed, and as many are drawn.
    assert_eq!(world.ask(&watcher, b"watch evictions\r\n"), b"OK\r\n");
    load(&mut world, 1);
    let all = evicted(&world);
    within(&told(&mut world, &client, "prefixes"), all);
    // Switched off, nothing is drawn; switched on, they begin anew.
    assert_eq!(world.ask(&client, b"observe prefixes off\r\n"), b"OK\r\n");
    load(&mut world, 2);
    assert_eq!(world.ask(&client, b"observe prefixes on\r\n"), b"OK\r\n");
    let told = told(&mut world, &client, "prefixes");
    assert_eq!(row(&told, "all")["evictions"], 0, "{told:?}");
    assert!(evicted(&world) > all && prefix(&told, "old:")["items"] > 1_000, "{told:?}");
}

#[test]
fn prefixes_may_be_switched_all_the_time() {
    for mut world in worlds() {
        let clients: Vec<FarEnd> = (0..2).map(|_| world.connect()).collect();
        let keys = (0..2_000).map(|number| format!("p{}:{number}", number % 7));
        store(&mut world, &clients[0], keys, 10);
        for round in 0..60 {
            clients[0].write(b"observe prefixes off\r\nobserve prefixes on\r\nget p1:1\r\n");
            clients[1].write(b"observe all on\r\nstats prefixes\r\nobserve all off\r\n");
            (0..round % 5).for_each(|_| world.turn());
        }
        world.settle();
        clients.iter().for_each(|client| drop(client.read()));
        let off = told(&mut world, &clients[0], "prefixes");
        if off["prefixes"] == "off" {
            assert!(off["advice"].starts_with("Prefixes are not observed."), "{off:?}");
        }
        assert_eq!(world.ask(&clients[1], b"observe prefixes on\r\n"), b"OK\r\n");
        let on = told(&mut world, &clients[0], "prefixes");
        assert_eq!(row(&on, "all")["items"], 2_000, "{on:?}");
        // The core sleeps until its next walk.
        let walked = world.sum(|counters| &counters.prefix_walked_items);
        world.settle();
        assert_eq!(world.sum(|counters| &counters.prefix_walked_items), walked);
        assert!(world.ask(&clients[0], b"get p1:1\r\n").ends_with(b"END\r\n"));
        world.clock.advance_s(PAUSE_S);
        world.settle();
        assert_eq!(world.sum(|counters| &counters.prefix_walked_items), walked + 2_000);
        // A switch begins no walk within the pause after the last one.
        for _ in 0..20 {
            let switched = world.ask(&clients[0], b"observe all off\r\nobserve prefixes on\r\n");
            assert_eq!(switched, b"OK\r\nOK\r\n");
            world.settle();
        }
        assert_eq!(world.sum(|counters| &counters.prefix_walked_items), walked + 2_000);
        assert_eq!(world.ask(&clients[0], b"observe all off\r\n"), b"OK\r\n");
        let off = told(&mut world, &clients[1], "prefixes");
        assert_eq!((off["prefixes"].as_str(), off.len()), ("off", 2));
        world.clock.advance_s(PAUSE_S);
        world.settle();
        assert_eq!(world.sum(|counters| &counters.prefix_walked_items), walked + 2_000, "no walk");
    }
}

/// The fault: `crawler_items_checked` grew by what walks counted, so an alarm about the crawler
/// went off when prefixes were observed.
#[test]
fn a_walk_is_not_a_run_of_the_crawler() {
    let mut world = World::new(WorldOptions { plain: observed(), ..WorldOptions::default() });
    let client = world.connect();
    store(&mut world, &client, (0..100).map(|number| format!("p:{number}")), 10);
    assert_eq!(row(&told(&mut world, &client, "prefixes"), "all")["items"], 100);
    let checked = |world: &mut World| {
        let stats = world.ask(&client, b"stats\r\n");
        let stats = String::from_utf8(stats).expect("text");
        let row = stats.lines().find_map(|row| row.strip_prefix("STAT crawler_items_checked "));
        row.expect("it is told").parse::<u64>().expect("a number")
    };
    assert_eq!(checked(&mut world), 0);
    assert_eq!(world.ask(&client, b"lru_crawler crawl all\r\n"), b"OK\r\n");
    world.settle();
    assert_eq!(checked(&mut world), 100);
}

/// The fault: a server that nobody asked for anything counted its items every ten seconds.
#[test]
fn a_walk_is_put_off_while_nothing_is_requested() {
    for mut world in worlds() {
        let client = world.connect();
        store(&mut world, &client, (0..600).map(|number| format!("p:{number}")), 10);
        assert_eq!(row(&told(&mut world, &client, "prefixes"), "all")["items"], 600);
        let walked = |world: &World| world.sum(|counters| &counters.prefix_walked_items);
        let wait = |world: &mut World, s: u64| {
            let before = walked(world);
            for _ in 0..s {
                world.clock.advance_s(1);
                world.settle();
            }
            walked(world) - before
        };
        assert_eq!(wait(&mut world, 50), 0, "nothing has come");
        assert_eq!(wait(&mut world, 40), 600, "items may have expired");
        assert_eq!(wait(&mut world, 30), 0);
        assert!(world.ask(&client, b"delete p:1\r\n").starts_with(b"DELETED"));
        assert!(wait(&mut world, PAUSE_S) > 0, "after a request");
        assert_eq!(world.ask(&client, b"flush_all\r\n"), b"OK\r\n");
        world.settle();
        assert_eq!(row(&told(&mut world, &client, "prefixes"), "all")["items"], 0, "flushed");
    }
}

/// While a walk goes on, clients are served between its steps.
#[test]
fn a_walk_examines_few_items_in_a_tick() {
    let mut world = World::new(WorldOptions { plain: observed(), ..WorldOptions::default() });
    let client = world.connect();
    for first in (0..10_000).step_by(100) {
        store(&mut world, &client, (first..first + 100).map(|number| format!("p:{number}")), 10);
    }
    world.clock.advance_s(PAUSE_S);
    let before = world.sum(|counters| &counters.prefix_walked_items);
    for tick in 1..=100 {
        client.write(b"get p:1\r\n");
        world.turn();
        let walked = world.sum(|counters| &counters.prefix_walked_items) - before;
        assert!(walked > 0 && walked <= 64 * tick, "{walked} in {tick} ticks");
    }
    assert!(client.read().ends_with(b"END\r\n"), "it was served");
}

#[test]
fn the_binary_protocol_has_the_topic() {
    let mut world = World::new(WorldOptions::default());
    let client = world.connect();
    let ask = |world: &mut World, topic: &[u8]| {
        let length = topic.len() as u8;
        let head = [0x80, 0x10, 0, length, 0, 0, 0, 0, 0, 0, 0, length];
        world.ask(&client, &[&head[..], &[0; 12], topic].concat())
    };
    let has = |reply: &[u8], text: &[u8]| reply.windows(text.len()).any(|part| part == text);
    assert!(has(&ask(&mut world, b"prefixes"), b"prefixesoff"));
    let text = world.connect();
    assert_eq!(
        world.ask(&text, b"observe prefixes on\r\nstats prefixes x\r\n"),
        b"OK\r\nERROR\r\n"
    );
    let reply = ask(&mut world, b"prefixes 3");
    assert!(has(&reply, b"prefixeson") && has(&reply, b"all:items0"), "{}", reply.escape_ascii());
}

//! The observers of a whole server: hot keys and the miss-ratio curve are told, and switched on and
//! off; hot keys are shown as keys are.

use std::collections::HashMap;

use kachel_io::FarEnd;
use kachel_shard::{ObserverSet, PlainOptions};
use kachel_testkit::{World, WorldOptions};
use kachel_wire::format::put_base64;

/// Rounds of requests of each client: enough to draw each of their keys often.
const ROUNDS: usize = 400;

fn world(shards: u16, crew: bool, plain: PlainOptions) -> World {
    World::new(WorldOptions { shards, crew, plain, ..WorldOptions::default() })
}

/// The names and values of an answer to `stats`.
fn stats(world: &mut World, client: &FarEnd, topic: &str) -> HashMap<String, String> {
    let reply = world.ask(client, format!("stats {topic}\r\n").as_bytes());
    let text = str::from_utf8(&reply).expect("what is shown is text");
    let rows = text.strip_suffix("END\r\n").expect("the last line").lines();
    let pair = |row: &str| {
        let mut words = row.splitn(3, ' ');
        assert_eq!(words.next(), Some("STAT"), "{row}");
        let mut word = || words.next().expect("a word").to_owned();
        (word(), word())
    };
    rows.map(pair).collect()
}

fn number(stats: &HashMap<String, String>, name: &str) -> f64 {
    stats.get(name).unwrap_or_else(|| panic!("no {name} in {stats:?}")).parse().expect("a number")
}

/// Each of the clients reads `hot` in half of its reads, and writes `counter` often.
fn load(world: &mut World, clients: &[FarEnd]) {
    world.ask(&clients[0], b"set hot 0 0 10\r\n0123456789\r\nset large 0 0 2000\r\n");
    world.ask(&clients[0], format!("{:2000}\r\nset counter 0 0 1\r\n1\r\n", "").as_bytes());
    for round in 0..ROUNDS {
        for (number, client) in clients.iter().enumerate() {
            let request = format!(
                "get hot cold:{round}:{number} other:{round}\r\nmg hot v\r\nget large hot\r\n\
                 incr counter 1\r\nset cold:{round}:{number} 0 0 1\r\nx\r\n"
            );
            client.write(request.as_bytes());
        }
        world.settle();
        clients.iter().for_each(|client| drop(client.read()));
    }
}

#[test]
fn hot_keys_of_all_cores_are_told() {
    for (shards, crew) in [(1, true), (3, true), (3, false)] {
        let about = format!("{shards} shards, crew {crew}");
        let mut world = world(shards, crew, PlainOptions::default());
        let clients: Vec<FarEnd> = (0..4).map(|_| world.connect()).collect();
        assert_eq!(stats(&mut world, &clients[0], "hotkeys")["hotkeys"], "off");
        assert_eq!(world.ask(&clients[0], b"observe hotkeys on\r\n"), b"OK\r\n");
        load(&mut world, &clients);
        let told = stats(&mut world, &clients[1], "hotkeys 2");
        assert_eq!(told["hotkeys"], "on", "{about}");
        assert!(told.values().all(|value| !value.contains(' ')), "{about}: a word each {told:?}");
        for (list, key) in [("reads", "hot"), ("reads_by_bytes", "large"), ("writes", "counter")] {
            assert_eq!(told[&format!("{list}:1:key")], key, "{about}: {told:?}");
        }
        // Half of the reads; the sample tells it within a few percent.
        let share = number(&told, "reads:1:requests_percent");
        assert!((42.0..58.0).contains(&share), "{about}: {told:?}");
        assert!(number(&told, "reads_by_bytes:1:bytes_percent") > 90.0, "{about}: {told:?}");
        let rate = number(&told, "reads:1:requests_per_s");
        let error = number(&told, "reads:1:requests_error_per_s");
        assert!(rate > 0.0 && error < rate, "{about}: {told:?}");
        assert!(told.contains_key("reads:2:key") && !told.contains_key("reads:3:key"), "{about}");
        let all = stats(&mut world, &clients[2], "kachel");
        let requests = 4 * ROUNDS * 8;
        let observed = number(&all, "kachel_observed") as usize;
        assert!((requests / 37..requests / 27).contains(&observed), "{about}: {observed}");

        assert_eq!(world.ask(&clients[3], b"observe all off\r\n"), b"OK\r\n");
        load(&mut world, &clients);
        let after = stats(&mut world, &clients[2], "kachel");
        assert_eq!(number(&after, "kachel_observed") as usize, observed, "{about}");
        assert_eq!(stats(&mut world, &clients[0], "hotkeys").len(), 1, "{about}");
        // What was counted before is gone.
        assert_eq!(world.ask(&clients[0], b"observe all on\r\n"), b"OK\r\n");
        assert_eq!(stats(&mut world, &clients[0], "hotkeys").len(), 1, "{about}");
    }
}

/// Without `--dumps` a key is shown by a hash, which a client that knows the key can ask for.
#[test]
fn keys_are_hashed_unless_they_may_be_listed() {
    let observers = ObserverSet::HOT_KEYS;
    let plain = PlainOptions { dumps_allowed: false, observers, ..PlainOptions::default() };
    let mut world = world(2, true, plain);
    let clients: Vec<FarEnd> = (0..2).map(|_| world.connect()).collect();
    load(&mut world, &clients);
    let told = stats(&mut world, &clients[0], "hotkeys");
    let hash = world.ask(&clients[1], b"observe hash hot\r\n");
    assert_eq!(hash, format!("HASH {}\r\n", told["reads:1:key"]).into_bytes());
    assert_eq!(hash.len(), "HASH 0123456789abcdef\r\n".len());
    assert!(told.values().all(|value| !value.contains("hot") && !value.contains("cold")));
    assert!(told.contains_key("reads:2:key") && !told.contains_key("reads:21:key"));
}

#[test]
fn no_hot_key_ends_a_line() {
    let observers = ObserverSet::ALL;
    let mut world = world(1, true, PlainOptions { observers, ..PlainOptions::default() });
    let client = world.connect();
    let key = b"a\r\nEND\r\nSTAT forged 1\r\n\x1b[2J \0";
    for _ in 0..ROUNDS {
        let mut request = b"mg ".to_vec();
        put_base64(&mut request, key);
        request.extend_from_slice(b" b v\r\n");
        assert_eq!(world.ask(&client, &request), b"EN\r\n");
    }
    let told = stats(&mut world, &client, "hotkeys");
    assert_eq!(told["reads:1:key"], "a%0D%0AEND%0D%0ASTAT%20forged%201%0D%0A%1B%5B2J%20%00");
    assert_eq!(told.len(), 1 + 7, "one key, which has no bytes: {told:?}");
}

#[test]
fn commands_that_are_wrong_switch_nothing() {
    let mut world = World::new(WorldOptions { udp: Some(1), ..WorldOptions::default() });
    let client = world.connect();
    let long = format!("observe hash {}", "k".repeat(251));
    let usage = b"CLIENT_ERROR usage: observe hotkeys|curve|prefixes|all on|off [noreply], \
        or observe hash KEY\r\n";
    for line in [
        "observe",
        "observe hotkeys",
        "observe bogus on",
        "observe hotkeys maybe",
        "observe hotkeys on off",
        "observe off on",
        "observe hash",
        "observe hash a b",
        &long,
    ] {
        assert_eq!(world.ask(&client, format!("{line}\r\n").as_bytes()), usage, "{line}");
    }
    assert_eq!(world.ask(&client, b"stats hotkeys x\r\n"), b"ERROR\r\n");
    world.send_datagram(
        0,
        "10.9.0.1:40000".parse().unwrap(),
        b"\0\x07\0\0\0\x01\0\0observe all on\r\n",
    );
    world.settle();
    assert_eq!(stats(&mut world, &client, "hotkeys")["hotkeys"], "off");
    client.write(b"observe hotkeys on noreply\r\n");
    world.settle();
    assert_eq!(stats(&mut world, &client, "hotkeys")["hotkeys"], "on");
    // The binary protocol has the topic, too.
    let head = [&[0x80, 0x10, 0, 9, 0, 0, 0, 0, 0, 0, 0, 9][..], &[0; 12], b"hotkeys 3"].concat();
    let binary = world.connect();
    let reply = world.ask(&binary, &head);
    assert!(reply.windows(9).any(|part| part == b"hotkeyson"), "{}", reply.escape_ascii());
}

/// The names and values of the answer to `stats mrc`, whose last value is a sentence.
fn curve(world: &mut World, client: &FarEnd) -> HashMap<String, String> {
    let reply = world.ask(client, b"stats mrc\r\n");
    let text = str::from_utf8(&reply).expect("what is shown is text");
    let rows = text.strip_suffix("END\r\n").expect("the last line").lines();
    let pair = |row: &str| {
        let row = row.strip_prefix("STAT ").expect("a row");
        let (name, value) = row.split_once(' ').expect("a name and a value");
        (name.to_owned(), value.to_owned())
    };
    rows.map(pair).collect()
}

/// Each client reads keys that were stored, and one key in four that was not.
fn read_keys(world: &mut World, clients: &[FarEnd]) {
    for first in (0..CURVE_KEYS).step_by(40) {
        let client = &clients[first / 40 % clients.len()];
        let stored: String = (first..first + 40).map(|key| format!(" k{key:05}")).collect();
        let absent: String = (first..first + 10).map(|key| format!(" none{key:05}")).collect();
        let reply = world.ask(client, format!("get{stored}{absent}\r\n").as_bytes());
        assert!(reply.ends_with(b"END\r\n"));
    }
}

/// So many keys that enough of them are in the sample.
const CURVE_KEYS: usize = 6000;

#[test]
fn the_curve_of_all_cores_is_told() {
    for (shards, crew) in [(1, true), (3, true), (3, false)] {
        let about = format!("{shards} shards, crew {crew}");
        let mut world = world(shards, crew, PlainOptions::default());
        let clients: Vec<FarEnd> = (0..4).map(|_| world.connect()).collect();
        assert_eq!(curve(&mut world, &clients[0])["mrc"], "off", "{about}");
        assert_eq!(world.ask(&clients[0], b"observe curve on\r\n"), b"OK\r\n");
        assert_eq!(curve(&mut world, &clients[1])["state"], "too_few_samples", "{about}");
        for first in (0..CURVE_KEYS).step_by(40) {
            let store = |key| format!("set k{key:05} 0 0 100 noreply\r\n{:0100}\r\n", 0);
            let stores: String = (first..first + 40).map(store).collect();
            world.ask(&clients[first % 3], (stores + "mn\r\n").as_bytes());
        }
        let stored = number(&curve(&mut world, &clients[0]), "sampled_keys");
        assert!(stored > 20.0, "{about}: {stored} of the keys are in the sample");
        (0..20).for_each(|_| read_keys(&mut world, &clients));
        let told = curve(&mut world, &clients[0]);
        assert_eq!(told["state"], "reliable", "{about} {told:?}");
        for size in ["0.25", "1.00", "4.00"] {
            let missed = number(&told, &format!("memory:{size}:miss_percent"));
            assert!((missed - 20.0).abs() < 0.1, "{about} {told:?}");
        }
        let advice = "Misses here are for keys that were never stored, were deleted or have expired \
                      (20.0 % of gets): more memory does not help. A quarter of the memory would do: \
                      20.0 % of gets would miss.";
        assert_eq!(told["advice"], advice, "{about}");
        assert!(number(&told, "sampled_keys") > 60.0, "{told:?}");
        // What is flushed misses with any memory.
        assert_eq!(world.ask(&clients[1], b"flush_all\r\n"), b"OK\r\n");
        (0..20).for_each(|_| read_keys(&mut world, &clients));
        let told = curve(&mut world, &clients[2]);
        for name in ["memory:4.00:miss_percent", "never_stored_percent"] {
            assert!((number(&told, name) - 60.0).abs() < 1.0, "{about} {told:?}");
        }
        assert_eq!(told["sampled_keys"], "0", "{told:?}");
        assert_eq!(world.ask(&clients[0], b"observe curve off\r\n"), b"OK\r\n");
        assert_eq!(curve(&mut world, &clients[0]).len(), 1, "{about}");
    }
}

/// Each of them may take milliseconds on a machine of many cores, and other clients wait meanwhile.
#[test]
fn a_turn_has_one_request_to_the_observers_of_all_cores() {
    const REQUESTS: u64 = 40;
    let mut world = world(2, true, PlainOptions::default());
    let client = world.connect();
    for pair in
        ["observe hotkeys on\r\nstats hotkeys\r\n", "observe all off\r\nstats hotkeys 1\r\n"]
    {
        let ticks = world.sum(|counters| &counters.busy_ticks);
        world.ask(&client, pair.repeat(REQUESTS as usize / 2).as_bytes());
        let ticks = world.sum(|counters| &counters.busy_ticks) - ticks;
        assert!(ticks >= REQUESTS, "{pair}: {ticks}");
    }
}

//! `flush_prefix`: its replies, which items it removes, on which shards, and when.

use std::net::{Ipv4Addr, SocketAddr};

use kachel_io::{FarEnd, Peer};
use kachel_shard::{PlainOptions, PrefixFlushPermission};
use kachel_testkit::{World, WorldOptions};
use kachel_wire::{FRAME_BYTES, Frame};

/// Keys enough that every shard owns some.
const KEYS: usize = 64;
/// Ticks of one shard in which it serves all that waits for it.
const TICKS: u32 = 8;

/// Servers in which the same request takes different paths: to its own shard, beside the owner of
/// another one, under its lock, and parked.
fn worlds() -> [World; 4] {
    [(1, true, true), (3, true, true), (2, false, true), (2, true, false)].map(
        |(shards, crew, evict)| {
            World::new(WorldOptions { shards, crew, evict, ..WorldOptions::default() })
        },
    )
}

/// Sends a request. Returns its reply, with `^` for each line end.
fn ask(world: &mut World, client: &FarEnd, request: &str) -> String {
    let request = request.replace('^', "\r\n");
    let reply = world.ask(client, request.as_bytes());
    String::from_utf8(reply).expect("text").replace("\r\n", "^")
}

fn store_all(world: &mut World, client: &FarEnd, prefix: &str) {
    let sets = (0..KEYS).map(|key| format!("set {prefix}{key} 0 0 1^x^"));
    assert_eq!(ask(world, client, &sets.collect::<String>()), "STORED^".repeat(KEYS));
}

fn get_all(prefix: &str) -> String {
    let keys: Vec<String> = (0..KEYS).map(|key| format!("{prefix}{key}")).collect();
    format!("get {}^", keys.join(" "))
}

/// The reply to a request over UDP.
fn ask_udp(world: &mut World, request: &[u8]) -> String {
    let frame = Frame { request_id: 7, sequence: 0, total: 1 };
    let datagram = [&frame.bytes()[..], request].concat();
    world.send_datagram(0, SocketAddr::from((Ipv4Addr::LOCALHOST, 30_000)), &datagram);
    world.settle();
    let replies = world.take_datagrams(0);
    let [(_, reply)] = &replies[..] else { panic!("{replies:?}") };
    String::from_utf8(reply[FRAME_BYTES..].to_vec()).expect("text")
}

/// How many of the keys are there.
fn count_all(world: &mut World, client: &FarEnd, prefix: &str) -> usize {
    ask(world, client, &get_all(prefix)).matches("VALUE ").count()
}

#[test]
fn the_wire_form_byte_for_byte() {
    let long = "k".repeat(251);
    let usage = "CLIENT_ERROR usage: flush_prefix PREFIX [bytes] [noreply]^";
    for mut world in worlds() {
        let client = world.connect();
        for (request, reply) in [
            ("flush_prefix a^", "OK^"),
            (" flush_prefix  a  bytes ^", "OK^"),
            ("flush_prefix a noreply^flush_prefix a bytes noreply^mn^", "MN^"),
            ("flush_prefix^flush_prefix a b^", &usage.repeat(2)),
            ("flush_prefix a b noreply^mn^", "MN^"),
            ("flush_prefix a bytes c^", usage),
            ("flush_prefixes a^", "ERROR^"),
            (&format!("flush_prefix {long}^"), "CLIENT_ERROR prefix too long^"),
            (&format!("flush_prefix {}^", &long[1..]), "OK^"),
        ] {
            assert_eq!(ask(&mut world, &client, request), reply, "{request}");
        }
        let stats = ask(&mut world, &client, "stats kachel^");
        assert!(stats.contains("STAT kachel_cmd_flush_prefix 5^"), "{stats}");
    }
}

#[test]
fn a_prefix_ends_at_a_delimiter_unless_bytes_are_asked_for() {
    let keys = ["user", "user:1", "user:1:", "user:1:a", "user:10", "user:2", "user1"];
    for (request, gone) in [
        ("user:1", &keys[1..4]),
        ("user:", &keys[1..6]),
        ("user", &keys[..6]),
        ("user:1 bytes", &keys[1..5]),
        ("user bytes", &keys[..]),
        ("use", &[]),
        ("user:1:a:", &[]),
    ] {
        for mut world in worlds() {
            let client = world.connect();
            for key in keys {
                assert_eq!(ask(&mut world, &client, &format!("set {key} 0 0 1^x^")), "STORED^");
            }
            assert_eq!(ask(&mut world, &client, &format!("flush_prefix {request}^")), "OK^");
            for key in keys {
                let is_left = ask(&mut world, &client, &format!("get {key}^")) != "END^";
                assert_eq!(is_left, !gone.contains(&key), "{request}: {key}");
            }
        }
    }
}

#[test]
fn the_delimiter_is_that_of_the_counts_by_prefix() {
    let plain = PlainOptions { prefix_delimiter: b'/', ..PlainOptions::default() };
    let mut world = World::new(WorldOptions { plain, ..WorldOptions::default() });
    let client = world.connect();
    ask(&mut world, &client, "set a/1 0 0 1^x^set a:1 0 0 1^x^flush_prefix a^");
    assert_eq!(ask(&mut world, &client, "get a/1 a:1^"), "VALUE a:1 0 1^x^END^");
}

/// The shards that own the keys do not run between the flush and the reads of another core.
#[test]
fn a_flush_is_done_for_all_shards_when_one_has_answered() {
    let mut world = World::new(WorldOptions { shards: 3, ..WorldOptions::default() });
    let clients: Vec<FarEnd> = (0..3).map(|_| world.connect()).collect();
    world.settle();
    store_all(&mut world, &clients[0], "a:");
    store_all(&mut world, &clients[0], "b:");
    for (shard, client) in clients.iter().enumerate() {
        let flushes = if shard == 0 { "flush_prefix a\r\n" } else { "" };
        client.write(
            (flushes.to_owned() + &get_all("a:") + &get_all("b:")).replace('^', "\r\n").as_bytes(),
        );
        for _ in 0..TICKS {
            world.turn_of(shard);
        }
        let found = String::from_utf8(client.read()).expect("text");
        let counts = [found.matches("VALUE a:").count(), found.matches("VALUE b:").count()];
        assert_eq!(counts, [0, KEYS], "shard {shard}");
    }
}

#[test]
fn what_is_stored_after_the_reply_stays_also_in_the_same_second() {
    for mut world in worlds() {
        let client = world.connect();
        for _ in 0..5 {
            store_all(&mut world, &client, "a:");
            assert_eq!(ask(&mut world, &client, "flush_prefix a^"), "OK^");
            assert_eq!(count_all(&mut world, &client, "a:"), 0);
            store_all(&mut world, &client, "a:");
            assert_eq!(count_all(&mut world, &client, "a:"), KEYS);
            world.clock.advance_s(3);
            world.settle();
            assert_eq!(count_all(&mut world, &client, "a:"), KEYS, "upkeep removes none of them");
        }
    }
}

#[test]
fn each_verb_misses_what_was_flushed() {
    for mut world in worlds() {
        let client = world.connect();
        for (request, missed) in [
            ("incr a:K 1", "NOT_FOUND^"),
            ("append a:K 0 0 1^x", "NOT_STORED^"),
            ("replace a:K 0 0 1^x", "NOT_STORED^"),
            ("cas a:K 0 0 1 1^x", "NOT_FOUND^"),
            ("touch a:K 9", "NOT_FOUND^"),
            ("gat 9 a:K", "END^"),
            ("delete a:K", "NOT_FOUND^"),
            ("mg a:K v", "EN^"),
            ("me a:K", "EN^"),
            ("md a:K I", "NF^"),
            ("add a:K 0 0 1^x", "STORED^"),
        ] {
            for key in 0..8 {
                ask(&mut world, &client, &format!("set a:{key} 0 0 1^1^flush_prefix a^"));
                let request = request.replace('K', &key.to_string());
                assert_eq!(ask(&mut world, &client, &format!("{request}^")), missed, "{request}");
            }
        }
    }
}

/// A value that is kept for leases after its item was deleted is flushed as the item would be.
#[test]
fn stale_values_and_leases_are_flushed() {
    for mut world in worlds() {
        let client = world.connect();
        for key in 0..8 {
            let one = ask(&mut world, &client, &format!("lease-get a:{key}^"));
            let token = one.split(' ').nth(2).expect("a token");
            ask(
                &mut world,
                &client,
                &format!("lease-set a:{key} {token} 0 0 3^old^delete a:{key}^"),
            );
            assert_eq!(ask(&mut world, &client, "flush_prefix a^"), "OK^");
            let reply = ask(&mut world, &client, &format!("lease-get a:{key}^"));
            assert!(reply.ends_with(" 0 0^^END^"), "no stale value: {reply}");
            // The same with the stale items of the meta commands.
            ask(&mut world, &client, &format!("ms b:{key} 1^1^md b:{key} I^flush_prefix b^"));
            assert_eq!(ask(&mut world, &client, &format!("mg b:{key} v^")), "EN^");
        }
    }
}

#[test]
fn large_values_are_flushed_and_uploads_under_way_are_not() {
    let value = "v".repeat(100_000);
    let (head, tail) = value.split_at(60_000);
    for mut world in worlds() {
        let (client, uploader) = (world.connect(), world.connect());
        for key in 0..4 {
            ask(&mut world, &client, &format!("set a:old{key} 0 0 100000^{value}^"));
            uploader.write(format!("set a:new{key} 0 0 100000\r\n{head}").as_bytes());
            world.settle();
            assert_eq!(ask(&mut world, &client, "flush_prefix a^"), "OK^");
            assert_eq!(ask(&mut world, &uploader, &format!("{tail}^")), "STORED^");
            let new = ask(&mut world, &client, &format!("get a:new{key}^"));
            assert_eq!(new.len(), format!("VALUE a:new{key} 0 100000^{value}^END^").len());
            assert_eq!(ask(&mut world, &client, &format!("get a:old{key}^")), "END^");
        }
    }
}

#[test]
fn listings_do_not_show_what_was_flushed() {
    for mut world in worlds() {
        let client = world.connect();
        store_all(&mut world, &client, "a:");
        store_all(&mut world, &client, "b:");
        client.write(b"flush_prefix a\r\n");
        world.turn_of(0);
        let listed = ask(&mut world, &client, "lru_crawler metadump all^");
        assert_eq!(listed.matches("key=b").count(), KEYS, "{listed}");
        assert_eq!(listed.matches("key=a").count(), 0, "{listed}");
    }
}

#[test]
fn upkeep_gives_the_memory_back_and_ends_the_flush() {
    for mut world in worlds() {
        let client = world.connect();
        for round in 0..200 {
            store_all(&mut world, &client, &format!("a{round}:"));
            // More prefixes than may be flushed at a time.
            assert_eq!(ask(&mut world, &client, &format!("flush_prefix a{round}^")), "OK^");
            world.clock.advance_s(1);
            world.settle();
        }
        let stats = ask(&mut world, &client, "stats^stats kachel^");
        assert!(stats.contains("STAT kachel_flushed_prefixes 0^"), "{stats}");
        assert!(stats.contains(&format!("STAT kachel_prefix_flushed {}^", 200 * KEYS)), "{stats}");
        assert!(stats.contains("STAT curr_items 0^"), "{stats}");
        assert!(stats.contains("STAT evictions 0^"), "{stats}");
    }
}

#[test]
fn too_many_prefixes_are_refused_until_upkeep_has_followed() {
    let mut world = World::new(WorldOptions { shards: 2, ..WorldOptions::default() });
    let client = world.connect();
    world.settle();
    store_all(&mut world, &client, "a:");
    // Shard 1, which owns some keys, does not run meanwhile.
    let flushes: String = (0..70).map(|number| format!("flush_prefix {number}\r\n")).collect();
    client.write(flushes.as_bytes());
    for _ in 0..TICKS {
        world.turn_of(0);
    }
    let replies = String::from_utf8(client.read()).expect("text");
    let refusals = replies.matches("SERVER_ERROR too many prefixes are being flushed\r\n").count();
    assert_eq!((replies.matches("OK\r\n").count(), refusals), (64, 6));
    world.clock.advance_s(1);
    world.settle();
    assert_eq!(ask(&mut world, &client, "flush_prefix more^"), "OK^");
    assert_eq!(count_all(&mut world, &client, "a:"), KEYS);
}

#[test]
fn a_watcher_sees_each_flush() {
    for mut world in worlds() {
        let (client, watcher) = (world.connect(), world.connect());
        assert_eq!(ask(&mut world, &watcher, "watch sysevents^"), "OK^");
        for (request, fields) in [
            ("flush_prefix a:1^", "prefix=a%3A1 bytes=no"),
            ("flush_prefix \x01 bytes noreply^mn^", "prefix=%01 bytes=yes"),
        ] {
            ask(&mut world, &client, request);
            let line = String::from_utf8(watcher.read()).expect("text");
            assert!(line.ends_with(&format!(" type=flush_prefix {fields}\n")), "{line}");
        }
        assert!(ask(&mut world, &client, "flush_prefix^").starts_with("CLIENT_ERROR"));
        assert_eq!(watcher.read(), b"", "nothing was flushed");
    }
}

#[test]
fn options_say_who_may_flush_a_prefix() {
    let from = |flush_allowed, prefix_flushes| {
        let plain = PlainOptions { flush_allowed, prefix_flushes, ..PlainOptions::default() };
        World::new(WorldOptions { plain, udp: Some(1), ..WorldOptions::default() })
    };
    for (flush_allowed, prefix_flushes, reply, over_udp) in [
        (true, PrefixFlushPermission::FromAnywhere, "OK", "OK"),
        (true, PrefixFlushPermission::Refused, "CLIENT_ERROR flush_prefix not allowed", ""),
        (false, PrefixFlushPermission::FromAnywhere, "CLIENT_ERROR flush_all not allowed", ""),
        (
            true,
            PrefixFlushPermission::FromHost,
            "OK",
            "CLIENT_ERROR flush_prefix allowed only from this host",
        ),
    ] {
        let mut world = from(flush_allowed, prefix_flushes);
        let client = world.connect();
        ask(&mut world, &client, "set a:1 0 0 1^x^");
        assert_eq!(ask(&mut world, &client, "flush_prefix a^"), format!("{reply}^"));
        let is_left = ask(&mut world, &client, "get a:1^") != "END^";
        assert_eq!(is_left, reply != "OK");
        let over_udp = if over_udp.is_empty() { reply } else { over_udp };
        let told = ask_udp(&mut world, b"flush_prefix a\r\n");
        assert_eq!(told, format!("{over_udp}\r\n"));
        // The clients of a listener may be of another host. The fault: one without an address
        // counted as one of a unix socket.
        let other = SocketAddr::from((Ipv4Addr::new(10, 0, 0, 1), 9));
        for peer in [other.into(), Peer::Unknown] {
            let other = world.connect_from(peer);
            let told = ask(&mut world, &other, "flush_prefix a^");
            assert_eq!(told, format!("{over_udp}^"), "{peer:?}");
        }
    }
}

//! `stats`: its values, and the effect of `stats reset` on them.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use kachel_host::Usage;
use kachel_io::FarEnd;
use kachel_shard::{PipeControl, Switched};

use kachel_testkit::{World, WorldOptions};

/// A statistic by its name.
fn stat(world: &mut World, client: &FarEnd, name: &str) -> u64 {
    let stats = String::from_utf8(world.ask(client, b"stats\r\n")).expect("text");
    let found = stats.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
    found.expect("the statistic is there").parse().expect("a number")
}

#[test]
fn processor_time_is_told_in_seconds_with_six_places() {
    let usage = || Usage { user_us: 12_000_034, system_us: 999_999 };
    let options = WorldOptions { shards: 2, usage, ..WorldOptions::default() };
    let mut world = World::new(options);
    let client = world.connect();
    let stats = String::from_utf8(world.ask(&client, b"stats\r\n")).expect("text");
    let told = "STAT rusage_user 12.000034\r\nSTAT rusage_system 0.999999\r\n";
    assert!(stats.contains(told), "{stats}");
}

#[test]
fn only_what_was_stored_counts_among_the_items_ever_stored() {
    let mut world = World::new(WorldOptions { shards: 3, ..WorldOptions::default() });
    let client = world.connect();
    let requests = b"add a 0 0 1\r\nx\r\nadd a 0 0 1\r\nx\r\nreplace b 0 0 1\r\nx\r\n\
        set n 0 0 1\r\n1\r\nincr n 1\r\ncas a 0 0 1 9999\r\nx\r\nmg v N9\r\nma m N9\r\n";
    world.ask(&client, requests);
    assert_eq!(stat(&mut world, &client, "cmd_set"), 5);
    assert_eq!(stat(&mut world, &client, "total_items"), 4);
}

#[test]
fn the_commands_count_as_in_memcached() {
    for (shards, crew) in [(1, true), (3, true), (3, false)] {
        let mut world = World::new(WorldOptions { shards, crew, ..WorldOptions::default() });
        let client = world.connect();
        let mut check = |requests: &str, rises: &[(&str, u64)]| {
            let names = ["get_misses", "touch_misses", "touch_hits", "cmd_get", "cmd_meta"];
            let before = names.map(|name| stat(&mut world, &client, name));
            world.ask(&client, requests.as_bytes());
            for (name, before) in names.into_iter().zip(before) {
                let rise = rises.iter().find(|(risen, _)| *risen == name).map_or(0, |(_, by)| *by);
                let after = stat(&mut world, &client, name);
                assert_eq!(after - before, rise, "{name}: {requests}, {shards} shards");
            }
        };
        check("mg none v T9\r\n", &[("get_misses", 1), ("cmd_get", 1)]);
        check("mg new v N9 T9\r\n", &[("touch_hits", 1)]);
        check("gat 9 none\r\ntouch none 9\r\n", &[("touch_misses", 2)]);
        check("ms k 1\r\nx\r\nma k N0\r\nmd none\r\nmn\r\n", &[]);
        check("me k\r\nme none\r\n", &[("cmd_meta", 2)]);
    }
}

#[test]
fn a_store_without_memory_is_no_storage_command() {
    let options = WorldOptions { evict: false, memory_bytes: 8 << 20, ..WorldOptions::default() };
    let mut world = World::new(options);
    let client = world.connect();
    let value = "v".repeat(9_000);
    let mut stored = 0;
    while world.ask(&client, format!("set k{stored} 0 0 9000\r\n{value}\r\n").as_bytes())
        == b"STORED\r\n"
    {
        stored += 1;
        assert!(stored < 1_000, "memory is full before");
    }
    assert_eq!(stat(&mut world, &client, "cmd_set"), stored);
    assert_eq!(stat(&mut world, &client, "store_no_memory"), 1);
}

#[test]
fn what_was_acknowledged_is_counted_whichever_shard_is_asked() {
    for shards in [1, 2, 4] {
        let memory_bytes = 8 << 20;
        let mut world =
            World::new(WorldOptions { shards, memory_bytes, ..WorldOptions::default() });
        // The clock stands still: no second begins.
        let clients: Vec<FarEnd> = (0..shards).map(|_| world.connect()).collect();
        for key in 0..100 {
            let set = format!("set k{key} 0 0 10\r\n0123456789\r\n");
            assert_eq!(world.ask(&clients[0], set.as_bytes()), b"STORED\r\n");
        }
        let bytes = stat(&mut world, &clients[0], "bytes");
        for client in &clients {
            assert_eq!(stat(&mut world, client, "curr_items"), 100, "{shards} shards");
            assert_eq!(stat(&mut world, client, "bytes"), bytes, "{shards} shards");
        }
        assert!(bytes >= 100 * 12, "{bytes} bytes");
        // Until items are evicted, which upkeep may do as well: none is lost sight of.
        let value = "v".repeat(10_000);
        for key in 100..2_000 {
            let set = format!("set k{key} 0 0 10000\r\n{value}\r\n");
            assert_eq!(world.ask(&clients[0], set.as_bytes()), b"STORED\r\n");
        }
        for client in &clients {
            let evictions = stat(&mut world, client, "evictions");
            assert!(evictions > 0, "memory was full");
            assert_eq!(stat(&mut world, client, "curr_items"), 2_000 - evictions);
        }
    }
}

#[test]
fn statistics_count_what_their_client_asked_for_before() {
    let mut world = World::new(WorldOptions { shards: 4, ..WorldOptions::default() });
    let client = world.connect();
    let sets: String = (0..100).map(|key| format!("set k{key} 0 0 1 noreply\r\nx\r\n")).collect();
    let told = world.ask(&client, format!("{sets}stats\r\n").as_bytes());
    let told = String::from_utf8(told).expect("text");
    for stat in ["STAT cmd_set 100\r\n", "STAT curr_items 100\r\n"] {
        assert!(told.contains(stat), "{told}");
    }
}

#[test]
fn a_reset_begins_to_count_anew_on_every_shard() {
    for shards in [1, 3] {
        let options = WorldOptions { shards, memory_bytes: 8 << 20, ..WorldOptions::default() };
        let mut world = World::new(options);
        let client = world.connect();
        let value = "v".repeat(10_000);
        for key in 0..3_000 {
            let set = format!("set k{key} 0 0 10000 noreply\r\n{value}\r\n");
            world.ask(&client, set.as_bytes());
        }
        world.clock.advance_s(1);
        world.settle();
        assert!(stat(&mut world, &client, "evictions") > 0);
        let items = stat(&mut world, &client, "curr_items");
        assert_eq!(world.ask(&client, b"stats reset\r\nmn\r\n"), b"RESET\r\nMN\r\n");
        for name in ["evictions", "cmd_set", "total_items", "evicted_unfetched"] {
            assert_eq!(stat(&mut world, &client, name), 0, "{name}, {shards} shards");
        }
        world.clock.advance_s(1);
        world.settle();
        assert_eq!(stat(&mut world, &client, "evictions"), 0, "{shards} shards");
        assert_eq!(stat(&mut world, &client, "curr_items"), items, "{shards} shards");
    }
}

#[test]
fn each_item_that_was_flushed_is_reclaimed_once() {
    for (shards, crew) in [(1, true), (3, true), (3, false)] {
        let mut world = World::new(WorldOptions { shards, crew, ..WorldOptions::default() });
        let client = world.connect();
        let set = |key: u32| format!("set key{key} 0 0 1\r\n1\r\n");
        let all: String = (0..200).map(set).collect();
        world.ask(&client, all.as_bytes());
        world.ask(&client, b"get key1\r\nget key150\r\n");
        assert_eq!(stat(&mut world, &client, "reclaimed"), 0);
        // Half of them are replaced, and the space of the others is reclaimed.
        let half: String = (0..100).map(set).collect();
        world.ask(&client, format!("flush_all\r\n{half}").as_bytes());
        world.ask(&client, b"lru_crawler crawl all\r\n");
        assert_eq!(stat(&mut world, &client, "curr_items"), 100);
        assert_eq!(stat(&mut world, &client, "reclaimed"), 200, "{shards} shards, {crew}");
        assert_eq!(stat(&mut world, &client, "expired_unfetched"), 198, "two were read");
    }
}

#[test]
fn engines_without_files_have_nothing_to_tell_of_them() {
    let mut world = World::new(WorldOptions::default());
    let client = world.connect();
    assert_eq!(world.ask(&client, b"stats engine\r\n"), b"END\r\n");
}

/// `stats pipe` shows what the pipe tells, and nothing in a server without one.
#[test]
fn a_server_without_a_pipe_has_nothing_to_tell_of_it() {
    let stats = |pipe: Option<fn() -> PipeControl>| {
        let mut world = World::new(WorldOptions { pipe, ..WorldOptions::default() });
        let client = world.connect();
        let text = world.ask(&client, b"stats pipe\r\n");
        // The key of the request, and an empty one in the end, with 24 bytes of head each.
        let binary = [&[0x80, 0x10, 0, 4, 0, 0, 0, 0, 0, 0, 0, 4][..], &[0; 12], b"pipe"].concat();
        let binary = world.ask(&world.connect(), &binary);
        (String::from_utf8(text).expect("text"), binary)
    };
    let (text, binary) = stats(None);
    assert_eq!((text.as_str(), binary.len()), ("END\r\n", 24));
    let (text, binary) = stats(Some(|| {
        let fact = |name: &str, value: &str| (name.to_string(), value.to_string());
        let facts = move || vec![fact("state", "on"), fact("cpu:3:answered", "12")];
        PipeControl { facts: Arc::new(facts), switch: Arc::new(|_| Switched::Done) }
    }));
    assert_eq!(text, "STAT state on\r\nSTAT cpu:3:answered 12\r\nEND\r\n");
    assert_eq!(binary.len(), 3 * 24 + "stateon".len() + "cpu:3:answered12".len());
}

/// `pipe on` and `pipe off`: the reply is the result, except over UDP, where nothing is switched.
#[test]
fn the_pipe_is_switched_by_clients_of_tcp() {
    const ANSWERS: [(Switched, &str); 4] = [
        (Switched::Done, "OK\r\n"),
        (Switched::NotEnabled, "SERVER_ERROR pipe not enabled\r\n"),
        (Switched::Detached, "SERVER_ERROR pipe detached from its interface\r\n"),
        (Switched::StillAnswers, "SERVER_ERROR pipe still answers; try again\r\n"),
    ];
    // Each attempt to switch it on has the next result; each attempt to switch it off the first.
    let pipe = || {
        let tried = AtomicUsize::new(0);
        let switch = move |on| match on {
            true => ANSWERS[tried.fetch_add(1, Relaxed)].0,
            false => Switched::Done,
        };
        PipeControl { facts: Arc::new(Vec::new), switch: Arc::new(switch) }
    };
    let options = WorldOptions { pipe: Some(pipe), udp: Some(1), ..WorldOptions::default() };
    let mut world = World::new(options);
    let client = world.connect();
    world.send_datagram(0, "10.9.0.1:40000".parse().unwrap(), b"\0\x07\0\0\0\x01\0\0pipe on\r\n");
    world.settle();
    let replies = world.take_datagrams(0);
    assert!(replies[0].1.ends_with(b"SERVER_ERROR not answered over UDP; use TCP\r\n"));
    for (result, reply) in ANSWERS {
        assert_eq!(world.ask(&client, b"pipe on\r\n"), reply.as_bytes(), "{result:?}");
        assert_eq!(world.ask(&client, b"pipe off\r\n"), b"OK\r\n");
    }
    assert_eq!(world.ask(&client, b"pipe off noreply\r\nmn\r\n"), b"MN\r\n");
    for line in [&b"pipe\r\n"[..], b"pipe of\r\n", b"pipe off now\r\n"] {
        assert_eq!(world.ask(&client, line), b"ERROR\r\n", "{}", line.escape_ascii());
    }
    assert_eq!(world.ask(&client, b"pipe noreply\r\nmn\r\n"), b"MN\r\n");
    let mut world = World::new(WorldOptions::default());
    let client = world.connect();
    assert_eq!(world.ask(&client, b"pipe off\r\n"), ANSWERS[1].1.as_bytes(), "no pipe");
}

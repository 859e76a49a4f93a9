//! Shards that read and change each other's items (`crew`): which requests are not parked, and that
//! a client cannot tell the difference.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kachel_engine::{EngineIndex, KeyHasher};
use kachel_io::FarEnd;
use kachel_testkit::{World, WorldOptions, is_rest};

/// Keys of which either shard owns some.
const KEYS: usize = 40;
/// Bytes of a value that is received in blocks.
const LARGE_BYTES: usize = 20_000;

fn crew(shards: u16) -> World {
    World::new(WorldOptions { shards, crew: true, ..WorldOptions::default() })
}

fn key(number: usize) -> String {
    format!("key{number}")
}

/// The reply to a request, and the counts that it changed.
struct Asked {
    reply: String,
    /// Requests that were parked.
    parked: u64,
    /// Reads of other shards' items.
    reads: u64,
    /// Requests that were executed with the engine of another shard.
    writes: u64,
}

fn ask(world: &mut World, client: &FarEnd, request: &str) -> Asked {
    let counts = |world: &World| {
        let (reads, writes) = (world.sum(|c| &c.reads_beside), world.sum(|c| &c.writes_beside));
        [world.parked(), reads, writes]
    };
    let before = counts(world);
    let reply = String::from_utf8(world.ask(client, request.as_bytes())).expect("text");
    let after = counts(world);
    let [parked, reads, writes] = [0, 1, 2].map(|which| after[which] - before[which]);
    Asked { reply, parked, reads, writes }
}

/// Stores a value under all keys. Returns how many keys another shard owns.
fn fill(world: &mut World, client: &FarEnd, ttl: u32) -> u64 {
    let store = |number| format!("set {} 7 {ttl} 3\r\nabc\r\n", key(number));
    let stores: String = (0..KEYS).map(store).collect();
    let Asked { reply, parked, reads, writes } = ask(world, client, &stores);
    assert_eq!((reply, reads), ("STORED\r\n".repeat(KEYS), 0));
    let foreign = if writes > 0 { writes } else { parked };
    assert!(foreign > 0 && foreign < KEYS as u64, "each of the shards owns some keys");
    foreign
}

#[test]
fn a_read_of_another_shards_key_sends_nothing_and_wakes_nobody() {
    for shards in [2, 4] {
        let mut world = crew(shards);
        let client = world.connect();
        let foreign = fill(&mut world, &client, 0);
        for _ in 0..4 {
            for number in 0..KEYS {
                let asked = ask(&mut world, &client, &format!("get {}\r\n", key(number)));
                assert_eq!(asked.reply, format!("VALUE {} 7 3\r\nabc\r\nEND\r\n", key(number)));
                assert_eq!((asked.parked, asked.writes), (0, 0), "{shards} shards");
            }
        }
        let names: Vec<String> = (0..KEYS).map(key).collect();
        let asked = ask(&mut world, &client, &format!("gets {} none\r\n", names.join(" ")));
        assert_eq!((asked.reply.matches("abc").count(), asked.parked), (KEYS, 0));
        let reads = asked.reads;
        assert!(reads == foreign || reads == foreign + 1, "`none` has an owner, too");
        let asked = ask(&mut world, &client, "mg key1 v\r\nmg key1 s\r\nmg none\r\n");
        let wanted = "VA 3\r\nabc\r\nHD s3\r\nEN\r\n";
        assert_eq!((asked.reply.as_str(), asked.parked, asked.writes), (wanted, 0, 0));
        assert!(asked.reads <= 3);
    }
}

/// Ticks in which mail came, of all shards but the first.
fn woken(world: &World) -> u64 {
    world.shared.totals.cores[1..].iter().map(|counters| counters.busy_ticks.value()).sum()
}

#[test]
fn a_write_of_another_shards_key_sends_nothing_and_wakes_nobody() {
    for shards in [2, 4] {
        let mut world = crew(shards);
        let client = world.connect();
        let foreign = fill(&mut world, &client, 0);
        let before = woken(&world);
        for (request, wanted) in [
            ("set KEY 0 0 2\r\n12\r\n", "STORED"),
            ("incr KEY 3\r\n", "15"),
            ("append KEY 0 0 1\r\nx\r\n", "STORED"),
            ("mg KEY T90 v\r\n", "VA 3"),
            ("md KEY\r\n", "HD"),
        ] {
            let each: String =
                (0..KEYS).map(|number| request.replace("KEY", &key(number))).collect();
            let asked = ask(&mut world, &client, &each);
            assert_eq!(asked.reply.matches(wanted).count(), KEYS, "{request:?}: {}", asked.reply);
            assert_eq!((asked.parked, asked.writes), (0, foreign), "{request:?}");
        }
        let large = "l".repeat(LARGE_BYTES);
        for number in 0..KEYS {
            let set = format!("set {} 0 0 {LARGE_BYTES}\r\n{large}\r\n", key(number));
            let asked = ask(&mut world, &client, &set);
            assert_eq!((asked.reply.as_str(), asked.parked), ("STORED\r\n", 0));
        }
        assert_eq!(woken(&world), before, "{shards} shards: no other shard had anything to do");
    }
}

#[test]
fn an_engine_that_another_core_holds_delays_only_what_it_must() {
    let mut world = crew(2);
    let clients = [world.connect(), world.connect()];
    let foreign = fill(&mut world, &clients[0], 0);
    let engines = Arc::clone(&world.engines);
    let held = engines.hold(EngineIndex(1)).expect("no shard runs");
    let gets: String = (0..KEYS).map(|number| format!("get {}\r\n", key(number))).collect();
    for client in &clients {
        client.write(gets.as_bytes());
    }
    (0..20).for_each(|_| world.turn());
    for client in &clients {
        let reply = String::from_utf8(client.read()).expect("text");
        assert_eq!(reply.matches("abc").count(), KEYS, "reads need no engine");
    }
    let before = world.parked();
    let sets: String = (0..KEYS).map(|n| format!("set {} 0 0 1\r\nx\r\n", key(n))).collect();
    for client in &clients {
        client.write(format!("{sets}get {}\r\nmn\r\n", key(0)).as_bytes());
    }
    (0..20).for_each(|_| world.turn());
    // Half of the requests are parked with the engine that is held.
    let early = clients.each_ref().map(|client| client.read());
    assert!(early.iter().all(|reply| !reply.ends_with(b"MN\r\n")), "the order of replies");
    assert!(world.parked() - before >= foreign, "what another core holds is left to its owner");
    assert!(world.shards[0].holdings().delayed == 0, "the other shard is free");
    drop(held);
    world.settle();
    for (client, early) in clients.iter().zip(early) {
        let reply = String::from_utf8([early, client.read()].concat()).expect("text");
        let wanted =
            format!("{}VALUE {} 0 1\r\nx\r\nEND\r\nMN\r\n", "STORED\r\n".repeat(KEYS), key(0));
        assert_eq!(reply, wanted);
    }
    assert_eq!(world.holdings().map(|held| held.delayed).sum::<u64>(), 0);
}

/// Ends the thread that it names, also if the test fails.
struct Ends<'t>(&'t AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The fault: a core releases its engine in the middle of a batch once the work of the hold has
/// reached its bound. If another core took the engine then, the next read of the batch was answered
/// without it, by a core that no writer waited for.
#[test]
fn a_core_that_loses_its_engine_within_a_batch_reads_as_others_do() {
    // The blocks of the three together are more work to free than one hold may have.
    const LARGE: [&str; 3] = ["one", "two", "three"];
    const LARGE_BYTES: usize = 12 << 20;
    // Each attempt has a good chance that the other core comes at the right moment.
    const ATTEMPTS: usize = 60;
    const LOSSES: usize = 3;
    let (memory_bytes, item_bytes_max) = (96 << 20, 16 << 20);
    let options = WorldOptions {
        shards: 2,
        memory_bytes,
        item_bytes_max,
        stays: true,
        ..WorldOptions::default()
    };
    let hasher = KeyHasher::new(options.seeds, options.shards);
    let own = |name: &str| {
        let mut names = (0..).map(|number| format!("{name}{number}"));
        let is_own =
            |name: &String| hasher.owner(hasher.key(name.as_bytes()).hashes()) == EngineIndex(0);
        names.find(is_own).expect("it owns half of the keys")
    };
    let mut world = World::new(options);
    let clients = [world.connect(), world.connect()];
    let (small, large) = (own("small"), LARGE.map(own));
    let set = format!("set {small} 0 0 1\r\nx\r\n");
    assert_eq!(world.ask(&clients[1], set.as_bytes()), b"STORED\r\n");
    let value = "v".repeat(LARGE_BYTES);
    let deletes: String = large.iter().map(|name| format!("delete {name} noreply\r\n")).collect();
    let engines = Arc::clone(&world.engines);
    let [is_on, is_over] = [AtomicBool::new(false), AtomicBool::new(false)];
    std::thread::scope(|scope| {
        let _ends = Ends(&is_over);
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                if is_on.load(Ordering::Relaxed) {
                    drop(engines.hold(EngineIndex(0)));
                    (0..20).for_each(|_| std::hint::spin_loop());
                } else {
                    std::thread::yield_now();
                }
            }
        });
        let counts = |world: &World| [world.sum(|c| &c.reads_beside), world.parked()];
        let mut losses = 0;
        for _ in 0..ATTEMPTS {
            for name in &large {
                let set = format!("set {name} 0 0 {LARGE_BYTES}\r\n{value}\r\n");
                assert_eq!(world.ask(&clients[0], set.as_bytes()), b"STORED\r\n");
            }
            let before = counts(&world);
            clients[0].write(deletes.as_bytes());
            clients[1].write(format!("get {small}\r\n").as_bytes());
            is_on.store(true, Ordering::Relaxed);
            world.turn_of(0);
            is_on.store(false, Ordering::Relaxed);
            world.settle();
            let said = String::from_utf8(clients[1].read()).expect("text");
            assert_eq!(said, format!("VALUE {small} 0 1\r\nx\r\nEND\r\n"));
            // It had the engine for what was deleted, and not for what was read.
            losses += usize::from(counts(&world) == [before[0] + 1, before[1]]);
            if losses == LOSSES {
                break;
            }
        }
    });
    world.audit();
}

#[test]
fn without_crew_every_request_for_another_shards_key_is_parked() {
    let mut world = World::new(WorldOptions { shards: 2, crew: false, ..WorldOptions::default() });
    let client = world.connect();
    let foreign = fill(&mut world, &client, 0);
    let gets: String = (0..KEYS).map(|number| format!("get {}\r\n", key(number))).collect();
    let asked = ask(&mut world, &client, &gets);
    assert_eq!((asked.parked, asked.reads, asked.writes), (foreign, 0, 0));
    let waits = world.shared.totals.histogram(|counters| &counters.waits);
    assert_eq!(waits.count(), world.parked(), "the wait of each is noted");
}

#[test]
fn a_client_reads_what_it_wrote_in_the_same_piece_of_input() {
    let mut world = crew(2);
    let client = world.connect();
    for quiet in ["set KEY 0 0 2 noreply\r\nab\r\n", "ms KEY 2 q\r\nab\r\n"] {
        let mut input = String::new();
        for number in 0..KEYS {
            input += &quiet.replace("KEY", &key(number));
            input += &format!("get {}\r\ndelete {} noreply\r\n", key(number), key(number));
            input += &format!("mg {} v\r\n", key(number));
        }
        let Asked { reply, .. } = ask(&mut world, &client, &input);
        let wanted: String = (0..KEYS)
            .map(|number| format!("VALUE {} 0 2\r\nab\r\nEND\r\nEN\r\n", key(number)))
            .collect();
        assert_eq!(reply, wanted, "{quiet:?}");
    }
}

#[test]
fn what_changes_an_item_or_pins_a_value_needs_the_engine_of_its_owner() {
    let mut world = crew(2);
    let client = world.connect();
    let foreign = fill(&mut world, &client, 0);
    let each = |request: &str| -> String {
        (0..KEYS).map(|number| request.replace("KEY", &key(number))).collect()
    };
    for (request, wanted) in [
        ("gat 100 KEY\r\n", "abc"),
        ("mg KEY T90 v\r\n", "abc"),
        ("touch KEY 0\r\n", "TOUCHED"),
        ("md KEY I\r\n", "HD"),
        ("mg KEY v\r\n", "VA 3 X W"), // The first reader of a stale item wins the right to it.
    ] {
        let Asked { reply, writes, .. } = ask(&mut world, &client, &each(request));
        let found = reply.matches(wanted).count();
        assert_eq!((found, writes), (KEYS, foreign), "{request:?}: {reply}");
    }
    let Asked { reply, writes, .. } = ask(&mut world, &client, &each("mg KEY v\r\n"));
    let found = reply.matches("VA 3 Z X").count();
    assert_eq!((found, writes), (KEYS, 0), "the right is given: {reply}");

    let large = "l".repeat(LARGE_BYTES);
    for number in 0..KEYS {
        let set = format!("set {} 0 0 {LARGE_BYTES}\r\n{large}\r\n", key(number));
        assert_eq!(ask(&mut world, &client, &set).reply, "STORED\r\n");
    }
    let Asked { reply, parked, reads, writes } = ask(&mut world, &client, &each("get KEY\r\n"));
    assert_eq!(reply.matches(&large).count(), KEYS);
    assert_eq!((parked, reads, writes), (0, 0, foreign), "a large value is pinned");
}

#[test]
fn an_item_that_has_expired_for_one_shard_is_not_live_for_another_one() {
    let mut world = crew(2);
    // The server deals its clients out to the shards in turn.
    let clients = [world.connect(), world.connect()];
    for (late, client) in clients.iter().enumerate() {
        fill(&mut world, client, 10);
        // One shard sees the time five seconds late, in the middle of the last second of the items.
        world.lag_ns(late, 5_000_000_000);
        world.clock.advance_s(12);
        for client in [&clients[1 - late], client] {
            for number in 0..KEYS {
                let asked = ask(&mut world, client, &format!("get {}\r\n", key(number)));
                assert_eq!(asked.reply, "END\r\n", "shard {late} is late");
            }
        }
        world.lag_ns(late, 0);
    }
    let Asked { reply, .. } = ask(&mut world, &clients[0], "stats\r\n");
    assert!(!reply.contains("STAT get_expired 0\r\n"), "what a reader finds dead is counted");
}

#[test]
fn what_was_flushed_is_read_by_no_shard() {
    let mut world = crew(3);
    let clients = [(); 3].map(|()| world.connect());
    for client in &clients {
        fill(&mut world, client, 0);
        assert_eq!(ask(&mut world, client, "flush_all\r\n").reply, "OK\r\n");
        for reader in &clients {
            for number in 0..KEYS {
                let asked = ask(&mut world, reader, &format!("get {}\r\n", key(number)));
                assert_eq!(asked.reply, "END\r\n");
            }
        }
    }
}

#[test]
fn a_store_whose_room_is_still_read_waits_and_evicts_nothing_more() {
    let options = WorldOptions { shards: 2, memory_bytes: 3 << 20, ..WorldOptions::default() };
    let mut world = World::new(options);
    let clients = [world.connect(), world.connect()];
    let value = "v".repeat(1_000);
    let store = |number: usize| format!("set {} 0 0 1000\r\n{value}\r\n", key(number));
    for number in 0..6_000 {
        assert_eq!(world.ask(&clients[number % 2], store(number).as_bytes()), b"STORED\r\n");
    }
    assert!(evictions(&world) > 0, "memory is full");
    // A core that reads, and loses its processor in the middle of a tick.
    let mut reader = world.pool().register_reader().expect("a place");
    let before = evictions(&world);
    for number in 6_000..10_000 {
        clients[number % 2].write(store(number).as_bytes());
    }
    (0..200).for_each(|_| world.turn());
    let replies = [clients[0].read(), clients[1].read()].concat();
    assert!(!replies.starts_with(b"SERVER_ERROR"), "what is on its way is not refused");
    let stored = replies.len() / b"STORED\r\n".len();
    let evicted = evictions(&world) - before;
    assert!(stored < 4_000, "some wait: {stored} are stored");
    // The reserve of two shards, one victim of each, and the memory of those that wait.
    let reserve_bytes = 6 * world.pool().segment_bytes() as u64 + world.shared.waiting_bytes();
    let reserve = reserve_bytes / 1_000;
    assert!(evicted <= stored as u64 + reserve, "{evicted} evicted for {stored} stored");
    // Both cores sleep meanwhile: there is no time after which they look again.
    world.rest();
    assert!(world.shards.iter_mut().all(|shard| is_rest(shard.prepare_wait())), "they poll");
    assert!(reader.sleep(), "a store waits for it");
    assert!(!world.shards.iter_mut().any(|shard| shard.io_mut().stir()), "nobody woke them");
    world.engines.call_for_room();
    assert!(world.shards.iter_mut().any(|shard| shard.io_mut().stir()), "the reader wakes them");
    world.rest();
    let replies = [clients[0].read(), clients[1].read()].concat();
    assert_eq!(stored + replies.len() / b"STORED\r\n".len(), 4_000, "all are stored then");
    assert_eq!(world.holdings().map(|held| held.delayed).sum::<u64>(), 0);
    world.audit();
}

/// The fault: each tick tried again to make room for a value that was being received.
#[test]
fn a_large_value_whose_room_is_still_read_waits_for_its_reader() {
    let options = WorldOptions { shards: 2, memory_bytes: 3 << 20, ..WorldOptions::default() };
    let mut world = World::new(options);
    let client = world.connect();
    let value = "v".repeat(1_000);
    for number in 0..6_000 {
        let set = format!("set {} 0 0 1000\r\n{value}\r\n", key(number));
        assert_eq!(world.ask(&client, set.as_bytes()), b"STORED\r\n");
    }
    let mut reader = world.pool().register_reader().expect("a place");
    let large = "l".repeat(900_000);
    client.write(format!("set large 0 0 {}\r\n{large}\r\n", large.len()).as_bytes());
    world.rest();
    assert_eq!(client.read(), b"", "it waits");
    let ticks = |world: &World| world.sum(|counters| &counters.ticks);
    let before = ticks(&world);
    for _ in 0..5 {
        assert!(reader.round_over(), "an upload waits for it");
        world.engines.call_for_room();
        world.rest();
    }
    assert!(reader.sleep() || client.read() == b"STORED\r\n");
    world.engines.call_for_room();
    world.rest();
    assert!(ticks(&world) - before < 200, "{} ticks", ticks(&world) - before);
    assert_eq!(client.read(), b"STORED\r\n");
    world.audit();
}

/// A world whose memory is full of small items of shard 1, and a key of shard 0.
fn filled_by_shard_1() -> (World, FarEnd, String) {
    let options =
        WorldOptions { shards: 2, memory_bytes: 4 << 20, crew: true, ..WorldOptions::default() };
    let hasher = KeyHasher::new(options.seeds, options.shards);
    let owner = |name: &String| hasher.owner(hasher.key(name.as_bytes()).hashes());
    let mut world = World::new(options);
    let client = world.connect();
    let value = "v".repeat(1_000);
    for name in (0..).map(key).filter(|name| owner(name) == EngineIndex(1)).take(6_000) {
        let set = format!("set {name} 0 0 1000\r\n{value}\r\n");
        assert_eq!(world.ask(&client, set.as_bytes()), b"STORED\r\n");
    }
    assert!(evictions(&world) > 0, "memory is full");
    let name = (0..)
        .map(key)
        .find(|name| owner(name) == EngineIndex(0))
        .expect("it owns half of the keys");
    (world, client, name)
}

fn evictions(world: &World) -> u64 {
    world.holdings().map(|held| held.evictions).sum()
}

#[test]
fn a_large_value_waits_for_the_engine_of_the_shard_that_has_items_to_evict() {
    let (mut world, client, name) = filled_by_shard_1();
    let large = "l".repeat(1_000_000);
    let engines = Arc::clone(&world.engines);
    let held = engines.hold(EngineIndex(1)).expect("no shard runs");
    client.write(format!("set {name} 0 0 {}\r\n{large}\r\n", large.len()).as_bytes());
    (0..200).for_each(|_| world.turn());
    assert_eq!(client.read(), b"", "shard 0 has nothing to evict, but shard 1 has");
    drop(held);
    world.settle();
    assert_eq!(client.read(), b"STORED\r\n");
    world.audit();
}

#[test]
fn a_large_value_evicts_no_more_than_its_size_and_the_reserve() {
    let (mut world, client, name) = filled_by_shard_1();
    let (before, bytes) = (evictions(&world), 1_000_000);
    let set = format!("set {name} 0 0 {bytes}\r\n{}\r\n", "l".repeat(bytes));
    assert_eq!(world.ask(&client, set.as_bytes()), b"STORED\r\n");
    let evicted = evictions(&world) - before;
    // The reserve of two shards, and one victim of each.
    let reserve_bytes = 6 * world.pool().segment_bytes();
    let evicted_bytes = evicted as usize * 1_000;
    assert!(evicted > 0 && evicted_bytes <= bytes + reserve_bytes, "{evicted} items are evicted");
}

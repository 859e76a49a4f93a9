//! `mscan` over plain engines, in memory and with values on a disk: the items and their order,
//! beside writes, for clients that do not read or leave.

use std::collections::BTreeMap;
use std::rc::Rc;

use kachel_engine::EngineIndex;
use kachel_io::memory::disk::{Disk, FaultPlan};
use kachel_io::{FarEnd, ManualClock};
use kachel_shard::LISTED_ITEMS_PER_TICK_MAX;
use kachel_testkit::{
    Plain, PlainOpener, PlainOptions, Random, ScanJudge, ScanReply, Uncounted, World, WorldOptions,
};

/// Shards, engines, and whether each shard takes all engines.
const SHAPES: [(u16, u16, bool); 5] =
    [(1, 1, true), (1, 3, true), (3, 3, true), (3, 2, false), (2, 70, false)];
/// Ticks within which a scan ends: many times what it takes.
const TICKS_MAX: usize = 200_000;

struct Bench {
    world: World<Uncounted, Plain>,
    disk: Option<Disk>,
    client: Rc<FarEnd>,
    judge: ScanJudge,
}

impl Bench {
    fn new((shards, engines, crew): (u16, u16, bool), has_disk: bool) -> Self {
        let disk = has_disk.then(|| Disk::new(1, &ManualClock::new(0)));
        if let Some(disk) = &disk {
            disk.set_plan(FaultPlan { latency_ns: Some(1..=1_000), ..FaultPlan::default() });
        }
        let plain =
            PlainOptions { scans_allowed: true, connections_max: 600, ..PlainOptions::default() };
        let engines = Some(engines);
        let options = WorldOptions { shards, engines, crew, plain, ..WorldOptions::default() };
        let opener = PlainOpener(disk.as_ref().map(|disk| disk.folder("values")));
        let mut world = World::over(options, |_| Uncounted, &opener);
        if let Some(disk) = &disk {
            world.use_disk(disk);
        }
        let client = Rc::new(world.connect());
        Self { world, disk, client, judge: ScanJudge::default() }
    }

    /// Lets time pass until nothing is under way.
    fn complete_all(&mut self) {
        self.world.rest();
        for _ in 0..TICKS_MAX {
            if !self.disk.as_ref().is_some_and(Disk::advance_to_next_due) {
                return;
            }
            self.world.rest();
        }
        panic!("the disk is never done");
    }

    fn ask(&mut self, client: &FarEnd, input: &[u8]) -> Vec<u8> {
        client.write(input);
        self.complete_all();
        client.read()
    }

    fn set(&mut self, key: &[u8], value: &[u8]) {
        let writer = self.world.connect();
        self.set_by(&writer, key, value);
        writer.reset();
    }

    fn set_by(&mut self, writer: &FarEnd, key: &[u8], value: &[u8]) {
        let head = format!(" {} b\r\n", value.len());
        let line = [&b"ms "[..], &encoded(key), head.as_bytes(), value, b"\r\n"].concat();
        let reply = self.ask(writer, &line);
        assert_eq!(reply, b"HD\r\n");
        self.judge.change(key, Some(value));
    }

    fn delete(&mut self, key: &[u8]) {
        let writer = self.world.connect();
        let line = [&b"md "[..], &encoded(key), b" b q\r\nmn\r\n"].concat();
        let reply = self.ask(&writer, &line);
        assert!(reply.ends_with(b"MN\r\n"));
        self.judge.change(key, None);
        writer.reset();
    }

    /// The reply to a line of `mscan`.
    fn scan(&mut self, line: &str) -> ScanReply {
        let client = Rc::clone(&self.client);
        let reply = self.ask(&client, line.as_bytes());
        let scan = ScanReply::read(&reply).expect("a whole reply");
        assert_eq!(scan.bytes, reply.len(), "{line}");
        scan
    }

    /// The keys in the reply to a line.
    fn keys(&mut self, line: &str) -> Vec<String> {
        let items = self.scan(line).items.into_iter();
        items.map(|item| item.key.escape_ascii().to_string()).collect()
    }

    /// Scans all items, `count` at a time, with `between` two requests.
    fn scan_all(&mut self, count: usize, mut between: impl FnMut(&mut Self)) -> usize {
        self.judge.begin();
        for _ in 0..TICKS_MAX {
            let line = self.judge.request(count);
            let reply = self.scan(&line);
            if self.judge.judge(&reply, count) {
                return self.judge.returned();
            }
            between(self);
        }
        panic!("the scan does not end");
    }

    fn assert_nothing_waits(&mut self) {
        self.complete_all();
        let held: u64 = self.world.holdings().map(|held| held.delayed + held.reply_slots).sum();
        assert_eq!(held, 0);
    }
}

fn encoded(bytes: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    kachel_wire::format::put_base64(&mut text, bytes);
    text
}

/// A key of few different bytes, so that keys are near each other.
fn key(random: &mut Random) -> Vec<u8> {
    let length = if random.below(20) == 0 { 186 } else { 1 + random.below(3) as usize };
    let bytes = [0, 1, b' ', b'\n', b'a', b'b', 254, 255];
    (0..length).map(|_| random.pick(&bytes)).collect()
}

fn value(random: &mut Random) -> Vec<u8> {
    let bytes = random.pick(&[0, 10, 700, 16_383]);
    vec![b'a' + random.below(26) as u8; random.below(bytes + 1) as usize]
}

#[test]
fn a_scan_has_the_items_of_a_map_in_any_range() {
    for (shape, has_disk) in SHAPES.into_iter().flat_map(|shape| [(shape, false), (shape, true)]) {
        let (mut bench, mut random) = (Bench::new(shape, has_disk), Random::new(7));
        for _ in 0..300 {
            let (key, value) = (key(&mut random), value(&mut random));
            bench.set(&key, &value);
        }
        let mut returned = 0;
        for _ in 0..100 {
            let (from, until, prefix) = (key(&mut random), key(&mut random), key(&mut random));
            let [is_after, has_until, has_prefix] = [(); 3].map(|()| random.below(3) == 0);
            let prefix = &prefix[..1];
            let count = 1 + random.below(40) as usize;
            let inside = |key: &[u8]| {
                (if is_after { key > &from[..] } else { key >= &from[..] })
                    && !(has_until && key >= &until[..])
                    && (!has_prefix || key.starts_with(prefix))
            };
            let expected: Vec<(Vec<u8>, Vec<u8>)> = bench
                .judge
                .items()
                .iter()
                .filter(|(key, _)| inside(key))
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect();
            let text = |bytes: &[u8]| String::from_utf8(encoded(bytes)).expect("ASCII");
            let until = if has_until { format!(" U{}", text(&until)) } else { String::new() };
            let prefix = if has_prefix { format!(" P{}", text(prefix)) } else { String::new() };
            let (mut found, mut from, mut after) = (Vec::new(), text(&from), is_after);
            loop {
                let a = if after { " a" } else { "" };
                let reply =
                    bench.scan(&format!("mscan {from} {count} b k v{a}{until}{prefix}\r\n"));
                assert!(reply.items.len() <= count);
                found.extend(
                    reply
                        .items
                        .into_iter()
                        .map(|item| (item.key, item.value.expect("a value that fits"))),
                );
                let Some(more) = reply.more else { break };
                (from, after) = (text(&more), true);
            }
            returned += found.len();
            assert!(found == expected, "{shape:?} {from} {until} {prefix}");
        }
        assert!(returned > 1_000, "{returned} items");
        bench.assert_nothing_waits();
    }
}

#[test]
fn items_that_live_throughout_come_once_beside_writes() {
    for (shape, has_disk) in SHAPES.into_iter().flat_map(|shape| [(shape, false), (shape, true)]) {
        let (mut bench, mut random) = (Bench::new(shape, has_disk), Random::new(8));
        for _ in 0..200 {
            let (key, value) = (key(&mut random), value(&mut random));
            bench.set(&key, &value);
        }
        let mut returned = 0;
        for _ in 0..10 {
            returned += bench.scan_all(7, |bench| {
                for _ in 0..random.below(4) {
                    let key = key(&mut random);
                    match random.below(3) {
                        0 => bench.delete(&key),
                        _ => bench.set(&key, &value(&mut random)),
                    }
                }
            });
        }
        assert!(returned > 500, "{returned} items");
        bench.assert_nothing_waits();
    }
}

/// Writes come between the pieces of one reply, too.
#[test]
fn a_reply_is_merged_beside_writes() {
    for shape in SHAPES {
        let (mut bench, mut random) = (Bench::new(shape, false), Random::new(9));
        for number in 0..400 {
            bench.set(format!("key-{number:04}").as_bytes(), &[b'x'; 500]);
        }
        let (client, writer) = (Rc::clone(&bench.client), bench.world.connect());
        bench.judge.begin();
        let mut is_over = false;
        while !is_over {
            client.write(bench.judge.request(100).as_bytes());
            let mut text = Vec::new();
            let reply = loop {
                let key = format!("key-{:04}", random.below(450));
                let is_set = random.below(2) == 0;
                let line = match is_set {
                    true => format!("set {key} 0 0 3\r\nnew\r\n"),
                    false => format!("delete {key}\r\n"),
                };
                bench.judge.change(key.as_bytes(), is_set.then_some(b"new"));
                writer.write(line.as_bytes());
                while writer.read().is_empty() {
                    bench.world.turn();
                    text.extend(client.read());
                }
                if let Some(reply) = ScanReply::read(&text) {
                    break reply;
                }
            };
            is_over = bench.judge.judge(&reply, 100);
        }
    }
}

#[test]
fn what_has_expired_or_was_flushed_is_not_returned() {
    for shape in SHAPES {
        let mut bench = Bench::new(shape, false);
        let client = Rc::clone(&bench.client);
        for number in 0..30 {
            let expiry = if number % 3 == 0 { 1 } else { 0 };
            let line = format!("set p{}:{number:02} 0 {expiry} 1\r\nx\r\n", number % 2);
            assert_eq!(bench.ask(&client, line.as_bytes()), b"STORED\r\n");
        }
        assert_eq!(bench.keys("mscan p 100 k\r\n").len(), 30);
        bench.world.clock.advance_s(1);
        bench.world.settle();
        assert_eq!(bench.keys("mscan p 100 k\r\n").len(), 20);
        assert_eq!(bench.ask(&client, b"flush_prefix p1\r\n"), b"OK\r\n");
        let left = bench.keys("mscan p 100 k\r\n");
        assert_eq!(left.len(), 10);
        assert!(left.iter().all(|key| key.starts_with("p0:")), "{left:?}");
        assert_eq!(bench.ask(&client, b"flush_all\r\n"), b"OK\r\n");
        assert_eq!(bench.scan("mscan p 100 k\r\n"), ScanReply { bytes: 4, ..ScanReply::default() });
    }
}

#[test]
fn fields_come_in_the_order_of_the_request() {
    let mut bench = Bench::new((1, 2, true), false);
    let client = Rc::clone(&bench.client);
    bench.ask(&client, b"ms a 3 F5 T90\r\nabc\r\nms Yg== 1 b\r\nx\r\nms c 1\r\ny\r\nmd c I\r\n");
    let reply = bench.ask(&client, b"mscan a 9 s t f k v O12\r\n");
    let expected = "VA 3 s3 t90 f5 ka\r\nabc\r\nVA 1 s1 t-1 f0 kYg== b\r\nx\r\n\
        VA 1 s1 t-1 f0 kc X\r\ny\r\nEN O12\r\n";
    assert_eq!(String::from_utf8_lossy(&reply), expected);
    assert_eq!(bench.ask(&client, b"mscan a 1\r\n"), b"HD\r\nMO ka\r\n");
    assert_eq!(bench.ask(&client, b"mscan b 1 a k O3\r\n"), b"HD kc X\r\nEN O3\r\n");
    // A scan waits for the requests before it, and those behind it wait for the scan.
    let reply = bench.ask(&client, b"md a q\r\nmscan a 2 k\r\nms d 1\r\nz\r\nmscan c 2 k\r\n");
    assert_eq!(reply, b"HD kYg== b\r\nHD kc X\r\nEN\r\nHD\r\nHD kc X\r\nHD kd\r\nEN\r\n");
}

#[test]
fn a_value_that_is_too_long_for_a_scan_is_left_to_mg() {
    let mut bench = Bench::new((1, 2, true), false);
    let client = Rc::clone(&bench.client);
    for (key, bytes) in [("a", 16_383), ("b", 16_384), ("c", 100_000)] {
        let head = format!("set {key} 0 0 {bytes}\r\n");
        let value = "v".repeat(bytes);
        assert_eq!(bench.ask(&client, format!("{head}{value}\r\n").as_bytes()), b"STORED\r\n");
    }
    let items = bench.scan("mscan a 9 k v s\r\n").items;
    let lengths: Vec<_> = items.iter().map(|item| item.value.as_ref().map(Vec::len)).collect();
    assert_eq!(lengths, [Some(16_383), None, None]);
    assert_eq!(items[2].flags, "kc s100000");
}

#[test]
fn a_long_reply_ends_early_and_says_where_to_go_on() {
    let mut bench = Bench::new((2, 3, true), false);
    let writer = bench.world.connect();
    for number in 0..1_200 {
        bench.set_by(&writer, format!("key-{number:04}").as_bytes(), &[b'x'; 2_000]);
    }
    let reply = bench.scan("mscan k 4000000000 k\r\n");
    assert_eq!((reply.items.len(), reply.more.as_deref()), (1_024, Some(&b"key-1023"[..])));
    let reply = bench.scan("mscan k 4000000000 k v\r\n");
    assert!(reply.more.is_some() && reply.bytes >= 1 << 20 && reply.bytes < (1 << 20) + (64 << 10));
    assert_eq!(bench.scan_all(1_000_000, |_| {}), 1_200);
}

#[test]
fn scans_are_refused_without_the_option_without_an_order_and_over_udp() {
    let lines = ["mscan a 1 k\r\n", "mscan a 0\r\n", "mscan\r\n"];
    let replies = |scans_allowed| {
        let plain = PlainOptions { scans_allowed, ..PlainOptions::default() };
        let mut world = World::new(WorldOptions { plain, ..WorldOptions::default() });
        let client = world.connect();
        lines.map(|line| String::from_utf8(world.ask(&client, line.as_bytes())).expect("text"))
    };
    let bad = "CLIENT_ERROR bad command line format\r\n";
    assert_eq!(replies(false), ["CLIENT_ERROR mscan not allowed\r\n", bad, bad]);
    assert_eq!(replies(true), ["SERVER_ERROR this engine has no order\r\n", bad, bad]);
    let mut bench = Bench::new((1, 1, true), false);
    let client = Rc::clone(&bench.client);
    // What is behind a line that is refused is served.
    let line = format!("mscan {} 1\r\nmscan a 1 \u{1}\r\nmscan a 1\r\n", "k".repeat(251));
    let reply = String::from_utf8(bench.ask(&client, line.as_bytes())).expect("text");
    assert_eq!(reply, format!("{bad}CLIENT_ERROR invalid flag\r\nEN\r\n"));
}

#[test]
fn many_scans_share_a_core_and_leave_nothing_behind() {
    for shape in [(1, 3, true), (3, 3, true), (3, 2, false)] {
        let mut bench = Bench::new(shape, true);
        let writer = bench.world.connect();
        for number in 0..600 {
            bench.set_by(&writer, format!("key-{number:04}").as_bytes(), &[b'x'; 1_000]);
        }
        let clients: Vec<FarEnd> = (0..60).map(|_| bench.world.connect()).collect();
        let (sleepers, readers) = clients.split_at(30);
        sleepers.iter().for_each(FarEnd::stall);
        clients.iter().for_each(|client| client.write(b"mscan k 600 k v\r\n"));
        bench.complete_all();
        for reader in readers {
            let reply = ScanReply::read(&reader.read()).expect("a whole reply");
            assert_eq!(
                reply.items.len(),
                600,
                "a client that does not read keeps no other waiting"
            );
        }
        let (leaving, staying) = sleepers.split_at(15);
        leaving.iter().for_each(FarEnd::reset);
        staying.iter().for_each(FarEnd::allow_all);
        bench.complete_all();
        for client in staying {
            assert_eq!(ScanReply::read(&client.read()).expect("whole").items.len(), 600);
        }
        // Clients that leave while their scans are under way.
        let leaving: Vec<FarEnd> = (0..40).map(|_| bench.world.connect()).collect();
        for (ticks, client) in leaving.iter().enumerate() {
            client.write(b"mscan k 600 k v\r\n");
            (0..ticks / 8).for_each(|_| bench.world.turn());
            client.reset();
        }
        assert_eq!(bench.scan_all(50, |_| {}), 600);
        bench.assert_nothing_waits();
    }
}

#[test]
fn scans_look_at_no_more_items_in_a_tick_than_one_listing() {
    let mut bench = Bench::new((2, 3, true), false);
    let writer = bench.world.connect();
    for number in 0..500 {
        bench.set_by(&writer, format!("key-{number:04}").as_bytes(), b"x");
    }
    let clients: Vec<FarEnd> = (0..20).map(|_| bench.world.connect()).collect();
    clients.iter().for_each(|client| client.write(b"mscan k 500 k v\r\n"));
    let mut replies: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
    for _ in 0..TICKS_MAX {
        for shard in 0..bench.world.shards.len() {
            let items = |bench: &Bench| bench.world.sum(|counters| &counters.listed_items);
            let before = items(&bench);
            bench.world.turn_of(shard);
            let looked = items(&bench) - before;
            assert!(looked <= LISTED_ITEMS_PER_TICK_MAX as u64, "{looked} items in a tick");
        }
        for (number, client) in clients.iter().enumerate() {
            replies.entry(number).or_default().extend(client.read());
        }
        let is_whole =
            |reply: &Vec<u8>| ScanReply::read(reply).is_some_and(|reply| reply.items.len() == 500);
        if replies.values().all(is_whole) {
            return;
        }
    }
    panic!("not all scans end");
}

#[test]
fn a_scan_reads_values_that_are_not_in_memory_and_keeps_none_of_them() {
    let mut bench = Bench::new((1, 1, true), true);
    for number in 0..20 {
        bench.set(format!("key-{number:02}").as_bytes(), &[b'x'; 100]);
    }
    let client = Rc::clone(&bench.client);
    bench.ask(&client, b"touch none 0\r\n"); // The values leave the memory.
    assert_eq!(bench.scan_all(5, |_| {}), 20);
    assert_eq!(bench.world.engines.inspect(EngineIndex(0), Plain::tickets), 0);
}

/// Whatever follows the verb, also byte by byte, the client gets a reply, and the next request is
/// served.
#[test]
fn junk_behind_the_verb_is_answered() {
    let words = [
        "a",
        "AA==",
        "b",
        "0",
        "1",
        "7",
        "4294967295",
        "4294967296",
        "-1",
        "k",
        "v",
        "s",
        "f",
        "t",
        "c",
        "q",
        "Ub",
        "U",
        "Pa",
        "P",
        "P=",
        "O",
        "O7",
        "\t",
        "\r",
        "\0",
        "T0",
        "mscan",
        "noreply",
        "\u{ff}",
        "UAA==",
        "bb",
        "%",
    ];
    let mut bench = Bench::new((2, 3, true), false);
    for number in 0..30 {
        bench.set(format!("a{number}").as_bytes(), b"x");
    }
    let (client, mut random, mut scanned) = (Rc::clone(&bench.client), Random::new(5), 0);
    for _ in 0..3_000 {
        let count = random.below(7);
        let mut line = "mscan".to_owned();
        for place in 0..count {
            let likely = ["a", "3", "k"].get(place as usize).filter(|_| random.below(3) > 0);
            line += " ";
            line += likely.copied().unwrap_or_else(|| random.pick(&words));
        }
        let piece_bytes = if random.below(4) == 0 { 1 } else { 100 };
        client.write_cut(format!("{line}\r\nmn\r\n").as_bytes(), piece_bytes);
        bench.complete_all();
        let reply = client.read();
        let reply = reply.strip_suffix(b"MN\r\n").expect("the next request is served");
        if reply.starts_with(b"CLIENT_ERROR ") || reply == b"ERROR\r\n" {
            continue;
        }
        let read = ScanReply::read(reply).expect("a whole reply");
        assert_eq!(read.bytes, reply.len(), "{line}");
        scanned += 1;
    }
    assert!(scanned > 300, "{scanned} scans");
    bench.assert_nothing_waits();
}

//! The limits at which clients are closed: each limit with its default, changed, and off; the
//! counters, and the lines for the operator.

use std::cell::RefCell;

use kachel_io::{FarEnd, SocketName};
use kachel_net::{ClientLimits, CloseReason, Overdue, TooSlow};
use kachel_shard::{ClientEvent, PlainOptions};

use kachel_testkit::{World, WorldOptions};

/// Far longer than any limit here.
const LONG_S: u32 = 400;
const VALUE_BYTES: usize = 900_000;

thread_local! {
    /// What the operator was told by the servers of this test.
    static TOLD: RefCell<Vec<ClientEvent>> = const { RefCell::new(Vec::new()) };
}

fn tell(_: SocketName, event: ClientEvent) {
    TOLD.with_borrow_mut(|told| told.push(event));
}

/// What the operator was told since the last call: the clients that were too slow.
fn told_slow() -> Vec<Overdue> {
    let told = TOLD.with_borrow_mut(std::mem::take).into_iter();
    let slow = told.filter_map(|event| match event {
        ClientEvent::TooSlow(overdue) => Some(overdue),
        _ => None,
    });
    slow.collect()
}

fn world(limits: ClientLimits) -> World {
    let tell_client: Option<fn(SocketName, ClientEvent)> = Some(tell);
    World::new(WorldOptions { limits, tell_client, ..WorldOptions::default() })
}

/// A second goes by; then the seconds are counted after which the client is closed.
fn seconds_until_closed(world: &mut World, client: &FarEnd) -> Option<u32> {
    world.settle();
    (1..=LONG_S).find(|_| {
        world.clock.advance_s(1);
        world.settle();
        client.is_closed()
    })
}

/// The closed clients in `stats kachel`: for lines, blocks, replies, pinned memory.
fn counted(world: &mut World) -> [u64; 4] {
    let client = world.connect();
    let stats = String::from_utf8(world.ask(&client, b"stats kachel\r\n")).expect("text");
    ["line", "block", "reader", "pinned"].map(|what| {
        let name = format!("STAT kachel_{what}_closes ");
        let found = stats.lines().find_map(|line| line.strip_prefix(name.as_str()));
        found.expect("it is told").parse().expect("a number")
    })
}

/// How long a client lasts that sends `first` and nothing more; and what was counted and told of
/// it.
fn ends(limits: ClientLimits, first: &[u8]) -> (Option<u32>, [u64; 4], Vec<Overdue>) {
    let mut world = world(limits);
    let client = world.connect();
    client.write(first);
    let seconds = seconds_until_closed(&mut world, &client);
    let counted = counted(&mut world);
    (seconds, counted, told_slow())
}

fn told(with: TooSlow, seconds: u32) -> Vec<Overdue> {
    vec![Overdue { with, seconds }]
}

#[test]
fn a_line_may_take_what_its_limit_says() {
    for first in [&b"g"[..], b"get a_key", b"set a 0 0 5\r\nhello\r\nset b 0 "] {
        for (limit_s, seconds) in [(10, 11), (3, 4), (1, 2), (300, 301)] {
            // The limit of blocks is none of a line's.
            let limits = ClientLimits { line_s: limit_s, block_s: 1, ..ClientLimits::default() };
            let expected = (Some(seconds), [1, 0, 0, 0], told(TooSlow::Line, seconds));
            assert_eq!(ends(limits, first), expected, "{}", first.escape_ascii());
        }
        let limits = ClientLimits { line_s: 0, block_s: 1, ..ClientLimits::default() };
        assert_eq!(ends(limits, first), (None, [0; 4], vec![]), "off");
    }
    assert_eq!(ClientLimits::default().line_s, 10);
}

#[test]
fn a_block_may_take_what_its_limit_says_and_a_second_for_each_64_kib() {
    // Small, empty, received in place, and refused for its length.
    for (first, more_s) in [
        (&b"set a 0 0 100\r\nx"[..], 0),
        (b"set a 0 0 0\r\n", 0),
        (b"get a\r\nms a 5\r\nhe", 0),
        (b"set a 0 0 655360\r\n", 10),
        (b"set a 0 0 2000000\r\n", 30),
    ] {
        for limit_s in [10, 3, 100] {
            let limits = ClientLimits { line_s: 1, block_s: limit_s, ..ClientLimits::default() };
            let seconds = limit_s + more_s + 1;
            let expected = (Some(seconds), [0, 1, 0, 0], told(TooSlow::Block, seconds));
            assert_eq!(ends(limits, first), expected, "{}", first.escape_ascii());
        }
        let limits = ClientLimits { line_s: 1, block_s: 0, ..ClientLimits::default() };
        assert_eq!(ends(limits, first), (None, [0; 4], vec![]), "off");
    }
    assert_eq!(ClientLimits::default().block_s, 10);
}

#[test]
fn a_block_has_its_own_time_however_long_its_line_took() {
    let limits = ClientLimits { line_s: 0, block_s: 5, ..ClientLimits::default() };
    for (line, block) in [(&b"set a 0 0 5"[..], &b"hello\r\n"[..]), (b"ms a 5", b"hello\r\n")] {
        let mut world = world(limits);
        let client = world.connect();
        client.write(line);
        assert_eq!(seconds_until_closed(&mut world, &client), None);
        client.write(b"\r\n");
        for _ in 0..5 {
            world.settle();
            world.clock.advance_s(1);
        }
        let reply = world.ask(&client, block);
        assert!(reply == b"STORED\r\n" || reply == b"HD\r\n", "{}", reply.escape_ascii());
        // A line behind a block is a line again.
        client.write(b"set a 0 0 5\r\nhe");
        world.settle();
        client.write(b"llo\r\nget");
        assert_eq!(seconds_until_closed(&mut world, &client), None);
        client.write(b" a\r\nset a 0 0 5\r\n");
        assert_eq!(seconds_until_closed(&mut world, &client), Some(6));
    }
}

/// How long a client lasts that is owed much, reads nothing, and holds large values.
fn unread(limits: ClientLimits) -> (Option<u32>, [u64; 4], Vec<Overdue>) {
    let mut world = world(limits);
    let client = world.connect();
    let value = "v".repeat(VALUE_BYTES);
    world.ask(&client, format!("set k 0 0 {VALUE_BYTES}\r\n{value}\r\n").as_bytes());
    client.put_buffer(100_000);
    client.write("get k\r\n".repeat(10).as_bytes());
    let seconds = seconds_until_closed(&mut world, &client);
    let counted = counted(&mut world);
    (seconds, counted, told_slow())
}

#[test]
fn replies_may_stay_unread_as_long_as_their_limit_says() {
    for (limit_s, seconds) in [(60, 61), (7, 8), (1, 2), (2, 3), (300, 301)] {
        let limits = ClientLimits { reader_s: limit_s, ..ClientLimits::default() };
        let expected = (Some(seconds), [0, 0, 1, 0], told(TooSlow::Reader, seconds));
        assert_eq!(unread(limits), expected);
    }
    let limits = ClientLimits { reader_s: 0, ..ClientLimits::default() };
    assert_eq!(unread(limits), (None, [0; 4], vec![]), "off");
    assert_eq!(ClientLimits::default().reader_s, 60);
}

/// Twenty clients that do not read, each with a large value in its replies, in memory of 30 MiB:
/// how many are closed, the counts, and the reported closings.
fn holders_closed(pinned_percent: u32) -> (u64, [u64; 4], Vec<Overdue>) {
    const CLIENTS: usize = 20;
    let limits = ClientLimits { reader_s: 0, ..ClientLimits::default() };
    let tell_client: Option<fn(SocketName, ClientEvent)> = Some(tell);
    let memory_bytes = 30 << 20;
    let options = WorldOptions {
        limits,
        plain: PlainOptions { pinned_percent, ..PlainOptions::default() },
        tell_client,
        memory_bytes,
        ..WorldOptions::default()
    };
    let mut world = World::new(options);
    let filler = world.connect();
    let value = "v".repeat(VALUE_BYTES);
    for key in 0..CLIENTS {
        let set = format!("set k{key} 0 0 {VALUE_BYTES}\r\n{value}\r\n");
        assert_eq!(world.ask(&filler, set.as_bytes()), b"STORED\r\n");
    }
    let clients: Vec<FarEnd> = (0..CLIENTS).map(|_| world.connect()).collect();
    for (key, client) in clients.iter().enumerate() {
        client.stall();
        client.write(format!("get k{key}\r\n").as_bytes());
    }
    world.settle();
    for _ in 0..100 {
        world.clock.advance_s(1);
        // One is closed a tick.
        (0..=CLIENTS).for_each(|_| world.turn());
    }
    let closed = clients.iter().filter(|client| client.is_closed()).count();
    let told = told_slow();
    let counted = counted(&mut world);
    (closed as u64, counted, told)
}

#[test]
fn slow_readers_may_pin_what_their_limit_says() {
    let mut before = 0;
    for percent in [50, 25, 10, 1] {
        let (closed, counted, told) = holders_closed(percent);
        assert!(closed > before, "{percent} % closes {closed}, {before} before");
        assert_eq!(counted, [0, 0, 0, closed], "{percent} %");
        assert_eq!(told.len() as u64, closed, "{percent} %");
        let is_so = |told: &Overdue| told.with == TooSlow::Holder && told.seconds > 2;
        assert!(told.iter().all(is_so), "{told:?}");
        before = closed;
    }
    assert_eq!(before, 20, "1 % is less than one value");
    for percent in [0, 100] {
        assert_eq!(holders_closed(percent), (0, [0; 4], vec![]), "{percent} %");
    }
    assert_eq!(WorldOptions::default().plain.pinned_percent, 25);
}

#[test]
fn what_was_counted_begins_anew_with_a_reset() {
    let mut world = world(ClientLimits { line_s: 1, ..ClientLimits::default() });
    let late = world.connect();
    late.write(b"get");
    assert_eq!(seconds_until_closed(&mut world, &late), Some(2));
    assert_eq!(counted(&mut world), [1, 0, 0, 0]);
    let client = world.connect();
    assert_eq!(world.ask(&client, b"stats reset\r\n"), b"RESET\r\n");
    assert_eq!(counted(&mut world), [0; 4]);
}

#[test]
fn the_operator_is_told_what_happens_to_each_client() {
    let tell_client: Option<fn(SocketName, ClientEvent)> = Some(tell);
    let plain = PlainOptions { connections_max: 1, ..PlainOptions::default() };
    let limits = ClientLimits { line_s: 1, ..ClientLimits::default() };
    let options = WorldOptions { limits, plain, tell_client, ..WorldOptions::default() };
    let mut world = World::new(options);
    let told = |world: &mut World| {
        world.settle();
        TOLD.with_borrow_mut(std::mem::take)
    };
    let first = world.connect();
    assert_eq!(told(&mut world), [ClientEvent::Opened]);
    let _second = world.connect();
    assert_eq!(told(&mut world), [ClientEvent::Refused { is_ending: false }]);
    first.write(b"quit\r\n");
    assert_eq!(told(&mut world), [ClientEvent::Closed(CloseReason::Normal)]);
    let late = world.connect();
    late.write(b"get a_lin");
    assert!(seconds_until_closed(&mut world, &late).is_some());
    let told = told(&mut world);
    assert!(matches!(told[1], ClientEvent::TooSlow(Overdue { with: TooSlow::Line, .. })));
    assert_eq!((told[0], told[2]), (ClientEvent::Opened, ClientEvent::Closed(CloseReason::Error)));
}

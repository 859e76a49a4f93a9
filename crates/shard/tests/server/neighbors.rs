//! Neighbors: one client causes as much work as it can, and the others are answered at once,
//! because the work of each turn and of each hold of an engine is bounded.

use std::net::{Ipv4Addr, SocketAddr};

use kachel_cache::MAINTENANCE_BYTES_MAX;
use kachel_io::FarEnd;
use kachel_net::{ClientLimits, USERS_KEY_BYTES, Users};
use kachel_shard::{HOLD_BYTES_MAX, PlainOptions, TICK_BYTES_MAX, TURN_BYTES_MAX};
use kachel_testkit::{World, WorldOptions};

/// Ticks in which a request is received, served, and its reply read.
const TURNS_OF_A_REPLY: usize = 2;
/// Requests that the neighbor pipelines.
const REQUESTS: usize = 1_000;
/// The most small requests of a turn, including those of the batch in which it ends.
const REQUESTS_OF_A_TURN: usize = TURN_BYTES_MAX as usize / 2048 + 32;
/// Bytes of the reply to `mn`.
const MN_BYTES: usize = 4;
/// The number of datagrams that arrive together, and of the requests of each.
const DATAGRAMS: u16 = 64;
const PREPENDS_OF_A_DATAGRAM: usize = 520;
/// Bytes of the large values that are attacked.
const SIZES: [usize; 2] = [900_000, 15_000_000];
/// Bytes of memory of each server.
const MEMORY_BYTES: u64 = 96 << 20;
/// The most work of the last request of a turn or a hold, and of the upkeep beside it.
const REQUEST_BYTES_MAX: u64 = (128 << 10) + MAINTENANCE_BYTES_MAX;

fn options(shards: u16) -> WorldOptions {
    let (memory_bytes, item_bytes_max) = (MEMORY_BYTES, 32 << 20);
    let plain = PlainOptions { connections_max: 300, ..PlainOptions::default() };
    WorldOptions { shards, memory_bytes, item_bytes_max, plain, ..WorldOptions::default() }
}

fn world(shards: u16) -> World {
    World::new(options(shards))
}

fn set(world: &mut World, client: &FarEnd, key: &str, bytes: usize) {
    let value = "v".repeat(bytes);
    let said = world.ask(client, format!("set {key} 0 0 {bytes}\r\n{value}\r\n").as_bytes());
    assert_eq!(said, b"STORED\r\n");
}

fn most(world: &World, counter: impl Fn(&kachel_shard::Counters) -> &kachel_shard::Counter) -> u64 {
    world.shared.totals.cores.iter().map(|counters| counter(counters).value()).max().unwrap_or(0)
}

/// The length of the value under `big`.
fn length(world: &mut World, client: &FarEnd) -> usize {
    let said = String::from_utf8(world.ask(client, b"mg big s\r\n")).expect("text");
    said.trim().strip_prefix("HD s").expect("a hit").parse().expect("a number")
}

/// Lets a neighbor send `requests` at once, while a victim sends one request after another. Checks
/// that each request of the victim is answered at once, and that the work of each tick and hold is
/// bounded.
fn attack(world: &mut World, requests: &str) {
    let busy = world.connect();
    assert_eq!(world.ask(&busy, b"mn\r\n"), b"MN\r\n");
    busy.write(requests.as_bytes());
    let name = requests.lines().next().unwrap_or_default();
    be_victim(world, name, TURN_BYTES_MAX, &mut || drop(busy.read()));
    assert!(
        busy.read().is_empty() && world.ask(&busy, b"mn\r\n") == b"MN\r\n",
        "{name}: all served"
    );
}

/// Sends one request after another while neighbors keep the server busy. Checks that each request
/// is answered at once, that a tick does at most the work of twice `tick_bytes` plus one turn, and
/// that a hold is bounded. `read` reads the replies of the neighbors.
fn be_victim(world: &mut World, name: &str, tick_bytes: u64, read: &mut dyn FnMut()) {
    let victim = world.connect();
    set(world, &victim, "small", 100);
    let ticks = world.sum(|counters| &counters.busy_ticks);
    for question in 0..50 {
        victim.write(b"get small\r\n");
        (0..TURNS_OF_A_REPLY).for_each(|_| world.turn());
        assert!(victim.read().ends_with(b"END\r\n"), "{name}: question {question} waits");
        read();
    }
    world.settle();
    read();
    let ticks = world.sum(|counters| &counters.busy_ticks) - ticks;
    let tick = most(world, |counters| &counters.longest_tick_bytes);
    let hold = most(world, |counters| &counters.longest_hold_bytes);
    assert!(hold <= 2 * HOLD_BYTES_MAX + REQUEST_BYTES_MAX, "{name}: {hold} bytes in a hold");
    let most = 2 * tick_bytes + TURN_BYTES_MAX + REQUEST_BYTES_MAX;
    assert!(tick <= most, "{name}: {tick} in {ticks} ticks");
}

#[test]
fn a_client_beside_one_that_extends_a_large_value_is_answered_at_once() {
    for (shards, bytes) in [(1, SIZES[0]), (1, SIZES[1]), (2, SIZES[0])] {
        for verb in ["prepend", "append"] {
            let mut world = world(shards);
            let client = world.connect();
            set(&mut world, &client, "big", bytes);
            attack(&mut world, &format!("{verb} big 0 0 1 noreply\r\nx\r\n").repeat(REQUESTS));
            assert_eq!(length(&mut world, &client), bytes + REQUESTS, "{verb}");
            world.audit();
        }
    }
}

#[test]
fn a_client_beside_one_that_extends_a_pinned_value_is_answered_at_once() {
    for bytes in SIZES {
        let mut world = world(1);
        let (client, reader) = (world.connect(), world.connect());
        set(&mut world, &client, "big", bytes);
        assert_eq!(world.ask(&reader, b"mn\r\n"), b"MN\r\n");
        reader.stall();
        reader.write(b"get big\r\n");
        world.settle();
        let both = "prepend big 0 0 1 noreply\r\nx\r\nappend big 0 0 1 noreply\r\nx\r\n";
        attack(&mut world, &both.repeat(REQUESTS / 2));
        assert_eq!(length(&mut world, &client), bytes + REQUESTS);
        reader.allow(usize::MAX);
        world.settle();
        let said = reader.read();
        let is_value = said.len() > bytes && !said.contains(&b'x');
        assert!(is_value, "the reader gets the value that it requested");
        world.audit();
    }
}

#[test]
fn a_client_beside_one_that_sends_any_other_request_is_answered_at_once() {
    let requests = [
        "get missing\r\n",
        "gat 100 big-missing small\r\n",
        "mg big s t f\r\n",
        "touch big 100 noreply\r\n",
        "incr big 1 noreply\r\n",
        "md big I q\r\n",
        "flush_all noreply\r\n",
        "flush_all noreply\r\nset other 0 0 1 noreply\r\nx\r\n",
        "cache_memlimit 64 noreply\r\ncache_memlimit 96 noreply\r\n",
        "cache_memlimit 32 noreply\r\nset other 0 0 1 noreply\r\nx\r\ncache_memlimit 96 noreply\r\n",
        "verbosity 0 noreply\r\n",
        "no such command\r\n",
    ];
    for (bytes, request) in SIZES.into_iter().flat_map(|bytes| requests.map(|line| (bytes, line))) {
        let mut world = world(1);
        let client = world.connect();
        for number in 0..60_000_000 / bytes {
            set(&mut world, &client, &format!("k{number}"), bytes);
        }
        set(&mut world, &client, "big", bytes);
        attack(&mut world, &request.repeat(REQUESTS));
        world.audit();
    }
}

#[test]
fn a_client_beside_datagrams_that_extend_a_large_value_is_answered_at_once() {
    for shards in [1, 2] {
        let mut world = World::new(WorldOptions { udp: Some(1), ..options(shards) });
        let client = world.connect();
        set(&mut world, &client, "big", SIZES[0]);
        let prepends = "prepend big 0 0 1 noreply\r\nx\r\n".repeat(PREPENDS_OF_A_DATAGRAM);
        let datagram = [&b"\0\x07\0\0\0\x01\0\0"[..], prepends.as_bytes()].concat();
        for number in 0..DATAGRAMS {
            let from = SocketAddr::from((Ipv4Addr::new(10, 0, 0, 1), 30_000 + number));
            world.send_datagram(0, from, &datagram);
        }
        be_victim(&mut world, "datagrams", TICK_BYTES_MAX, &mut || {});
        let extended = PREPENDS_OF_A_DATAGRAM * usize::from(DATAGRAMS);
        assert_eq!(length(&mut world, &client), SIZES[0] + extended, "all are served");
        world.audit();
    }
}

#[test]
fn a_client_beside_hundreds_that_extend_a_large_value_is_answered_at_once() {
    let mut world = world(1);
    let client = world.connect();
    set(&mut world, &client, "big", SIZES[0]);
    let neighbors: Vec<_> = (0..240).map(|_| world.connect()).collect();
    world.settle();
    let prepends = "prepend big 0 0 1 noreply\r\nx\r\n".repeat(100);
    neighbors.iter().for_each(|neighbor| neighbor.write(prepends.as_bytes()));
    be_victim(&mut world, "hundreds", TICK_BYTES_MAX, &mut || {});
    assert_eq!(length(&mut world, &client), SIZES[0] + 100 * neighbors.len(), "all are served");
    world.audit();
}

/// A client has its second turn only after all clients that came before it have had one, whatever
/// they send.
#[test]
fn clients_that_pipeline_have_their_turns_in_order() {
    let mut world = world(1);
    let clients: Vec<_> = (0..100).map(|_| world.connect()).collect();
    world.settle();
    clients.iter().for_each(|client| client.write("mn\r\n".repeat(REQUESTS).as_bytes()));
    let mut served = vec![0; clients.len()];
    while served.iter().any(|bytes| *bytes < REQUESTS * MN_BYTES) {
        world.turn();
        for (bytes, client) in served.iter_mut().zip(&clients) {
            let said = client.read().len();
            assert!(said <= REQUESTS_OF_A_TURN * MN_BYTES, "{said} bytes in a turn");
            *bytes += said;
        }
        let [least, most] = [served.iter().min(), served.iter().max()].map(|one| *one.unwrap());
        assert!(most - least <= 2 * REQUESTS_OF_A_TURN * MN_BYTES, "{least} beside {most}");
    }
    let ticks = world.sum(|counters| &counters.busy_ticks);
    assert!(ticks > 40, "{ticks} ticks: no tick served all");
    world.audit();
}

/// The fault: a step of upkeep freed all values of a flush, whatever their size.
#[test]
fn upkeep_of_long_values_holds_an_engine_for_bounded_work() {
    for request in ["flush_all\r\n", "delete k0\r\ndelete k1\r\ndelete k2\r\n"] {
        let mut world = world(1);
        let client = world.connect();
        for key in ["k0", "k1", "k2"] {
            set(&mut world, &client, key, 28 << 20);
        }
        world.ask(&client, request.as_bytes());
        world.settle();
        let hold = most(&world, |counters| &counters.longest_hold_bytes);
        assert!(hold <= MAINTENANCE_BYTES_MAX, "{request}: {hold} bytes in a hold");
        assert_eq!(world.pool().books().free_blocks, 0, "all blocks came back");
        world.audit();
    }
}

/// Requests that are answered without an engine count as work, even before a login.
#[test]
fn a_tick_is_bounded_whatever_its_requests_are() {
    let most = (2 * TICK_BYTES_MAX + TURN_BYTES_MAX) as usize / 2048;
    for (asks_login, request, reply) in [
        (false, "no\r\n", "ERROR\r\n"),
        (true, "no\r\n", "CLIENT_ERROR unauthenticated\r\n"),
        (false, "set k 0 0 1\r\nxyz", "CLIENT_ERROR bad data chunk\r\n"),
        (false, "set k 0 0 99999999\r\n", "SERVER_ERROR object too large for cache\r\n"),
    ] {
        let mut world = World::new(WorldOptions { asks_login, ..options(1) });
        let users = Users::read(b"alice:secret\n", [3; USERS_KEY_BYTES]).expect("a good file");
        world.shared.set_users(users);
        let clients: Vec<_> = (0..240).map(|_| world.connect()).collect();
        world.settle();
        clients.iter().for_each(|client| client.write(request.repeat(700).as_bytes()));
        for _ in 0..5 {
            world.turn();
            let replies = clients.iter().map(|client| client.read().len() / reply.len());
            let replies: usize = replies.sum();
            assert!(replies <= most, "{request}: {replies} replies in a tick, at most {most}");
        }
    }
}

/// The fault: the short input used up each tick, and the client stayed at the front of the queue.
#[test]
fn a_client_that_waits_has_its_turn_beside_one_that_sends_short_input() {
    let mut world = world(1);
    let (client, other) = (world.connect(), world.connect());
    world.settle();
    client.write("mn\r\n".repeat(REQUESTS).as_bytes());
    let mut served = 0;
    for _ in 0..2 * REQUESTS / 128 + 4 {
        other.write("mn\r\n".repeat(128).as_bytes());
        world.turn();
        served += client.read().len();
        drop(other.read());
    }
    assert_eq!(served, REQUESTS * MN_BYTES);
}

/// The fault: each turn restarted the time limit of the line.
#[test]
fn the_time_of_a_line_goes_on_while_its_client_waits_for_its_turn() {
    let limits = ClientLimits { line_s: 3, ..ClientLimits::default() };
    let mut world = World::new(WorldOptions { limits, ..options(1) });
    let slow = world.connect();
    let neighbors: Vec<_> = (0..20).map(|_| world.connect()).collect();
    world.settle();
    slow.write(format!("get {}", "k ".repeat(1_500)).as_bytes());
    let mut seconds = 0;
    while !slow.is_closed() && seconds < 30 {
        for _ in 0..3 {
            let requests = "mn\r\n".repeat(REQUESTS);
            neighbors.iter().for_each(|neighbor| neighbor.write(requests.as_bytes()));
            slow.write(b"k ");
            (0..TURNS_OF_A_REPLY).for_each(|_| world.turn());
            neighbors.iter().for_each(|neighbor| drop(neighbor.read()));
        }
        world.clock.advance_s(1);
        seconds += 1;
    }
    assert!(seconds < 10, "it was closed after {seconds} s");
}

#[test]
fn clients_that_end_while_they_wait_for_their_turn_leave_nothing() {
    let mut world = world(1);
    let clients: Vec<_> = (0..200).map(|_| world.connect()).collect();
    world.settle();
    clients.iter().for_each(|client| client.write("mn\r\n".repeat(REQUESTS).as_bytes()));
    world.turn();
    let (resets, finished) = clients.split_at(100);
    resets.iter().for_each(FarEnd::reset);
    finished.iter().for_each(FarEnd::finish);
    world.turn();
    let later: Vec<_> = (0..100).map(|_| world.connect()).collect();
    later.iter().for_each(|client| client.write("mn\r\n".repeat(REQUESTS).as_bytes()));
    world.settle();
    for client in finished.iter().chain(&later) {
        assert_eq!(client.read().len(), REQUESTS * MN_BYTES);
    }
    world.audit();
}

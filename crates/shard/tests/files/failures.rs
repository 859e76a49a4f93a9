//! A disk that fails: what clients get, and that nothing hangs.

use kachel_shard::Holdings;
use kachel_testkit::WorldOptions;
use kachel_wire::Frame;

use crate::bench::{Client, Server};

const ENGINES: u16 = 3;
const KEYS: usize = 20;
/// More than the exchanges that a shard can have.
const DATAGRAMS: u16 = 600;
const HIT: &str = "VALUE hit 0 0\r\n\r\nEND\r\n";
const ERROR: &str = "SERVER_ERROR disk error\r\n";

fn options(engines: u16) -> WorldOptions {
    WorldOptions { engines: Some(engines), evict: false, ..WorldOptions::default() }
}

/// Asks for a reply, and compares it. If the connection is to be closed after it, `closes`.
#[track_caller]
fn check(server: &mut Server, client: &mut Client, asked: &str, reply: &str, closes: bool) {
    let more = usize::from(closes);
    let told = server.ask(client, asked.as_bytes(), reply.len() + more);
    let about = format!("{}: {:.60}", server.about, asked);
    assert_eq!(String::from_utf8(told).expect("text"), reply, "{about}");
    assert!(!closes || server.is_closed(client), "{about}");
}

/// Stores values that are then cold, and an empty one, which never is.
fn fill(server: &mut Server, client: &mut Client) {
    let set = |number| format!("set key{number} 0 0 1000\r\n{number:01000}\r\n");
    let sets: String = (0..KEYS).map(set).collect();
    let stored = "STORED\r\n".repeat(KEYS + 1);
    check(server, client, &(sets + "set hit 0 0 0\r\n\r\n"), &stored, false);
}

/// Checks that nothing waits in a server in memory.
fn check_idle(server: &mut Server) {
    let is_idle = |held: Holdings| held.delayed == 0 && held.reply_slots == 0;
    if let Some(world) = server.world() {
        assert!(world.holdings().all(is_idle));
    }
}

/// Servers of several cores, whose clients are dealt to them in turn.
fn of_several_cores(engines: u16) -> impl Iterator<Item = Server> {
    let numbers = [(2, true), (2, false), (3, false)].into_iter();
    numbers.map(move |(shards, crew)| {
        let mut server = Server::in_memory(WorldOptions { shards, crew, ..options(engines) });
        server.about = format!("{shards} cores, crew: {crew}, memory");
        server
    })
}

#[test]
fn a_value_that_cannot_be_read_is_an_error_and_is_asked_for_again() {
    Server::each(options(ENGINES), reads_fail);
    of_several_cores(ENGINES).for_each(reads_fail);
}

fn reads_fail(mut server: Server) {
    let mut other = server.connect();
    fill(&mut server, &mut other);
    server.lose_files();
    let asks = [
        "get key1\r\n",
        "gets key3\r\n",
        "gat 0 key4\r\n",
        "mg key5 v\r\n",
        "mg key5 v q\r\n",
        "append key6 0 0 1\r\nx\r\n",
        "incr key7 1\r\n",
        "lease-get key8\r\n",
        "get key1\r\n",
    ];
    for asked in asks {
        let asked = format!("get hit\r\n{asked}get hit\r\n");
        check(&mut server, &mut other, &asked, &[HIT, ERROR, HIT].concat(), false);
    }
    let (value, end) = HIT.split_at(HIT.len() - "END\r\n".len());
    assert_eq!(end, "END\r\n");
    // The error ends the reply, so it cannot stand before the values of other keys.
    let asked = "get hit key9\r\nget hit\r\n";
    check(&mut server, &mut other, asked, &[value, ERROR, HIT].concat(), false);
    let mut client = server.connect();
    let asked = "get hit\r\nget hit key2 hit\r\nget hit\r\n";
    check(&mut server, &mut client, asked, &[HIT, value].concat(), true);
    let several = [ERROR, ERROR, "END\r\n"].concat();
    check(&mut server, &mut other, "lease-get key8 key9\r\n", &several, false);
    let set = "set key1 0 0 3\r\nnew\r\nget key1\r\n";
    let stored = "STORED\r\nVALUE key1 0 3\r\nnew\r\nEND\r\n";
    check(&mut server, &mut other, set, stored, false);
    check(&mut server, &mut other, "delete key2\r\nget key2\r\n", "DELETED\r\nEND\r\n", false);
    if server.heal() {
        check(&mut server, &mut other, "get key1\r\n", &stored[8..], false);
        let read = format!("VALUE key3 0 1000\r\n{:01000}\r\nEND\r\n", 3);
        check(&mut server, &mut other, "get key3\r\n", &read, false);
    }
    check_idle(&mut server);
}

fn a_write_fails(mut server: Server) {
    let mut other = server.connect();
    let kept = "k".repeat(1000);
    let set = format!("set kept 0 0 1000\r\n{kept}\r\nset hit 0 0 0\r\n\r\n");
    check(&mut server, &mut other, &set, "STORED\r\nSTORED\r\n", false);
    if server.world().is_some() {
        server.refuse_writes();
    }
    // More than the file system has space for.
    let large = "l".repeat(100_000);
    let mut client = server.connect();
    let set = format!("get hit\r\nset large 0 0 100000\r\n{large}\r\nget hit\r\n");
    check(&mut server, &mut client, &set, HIT, true);
    server.heal();
    // What is lost is neither told nor changed, and nothing else is changed.
    let asks = [
        "get large\r\n",
        "delete large\r\n",
        "set more 0 0 1\r\nx\r\n",
        "set kept 0 0 1\r\nx\r\n",
        "delete kept\r\n",
        "touch kept 1\r\n",
        "gat 1 kept\r\n",
        "mg kept v T1\r\n",
        "incr none 1\r\nappend kept 0 0 1\r\nx\r\n",
    ];
    let value = format!("VALUE kept 0 1000\r\n{kept}\r\nEND\r\n");
    for asked in asks {
        let before = if asked.starts_with("incr") { "NOT_FOUND\r\n" } else { "" };
        let asked = format!("{asked}delete kept noreply\r\nget kept\r\nget none\r\n");
        let told = [before, ERROR, &value, "END\r\n"].concat();
        check(&mut server, &mut other, &asked, &told, false);
    }
    check_idle(&mut server);
}

#[test]
fn what_a_failed_write_has_lost_reaches_no_client_and_nothing_is_changed_any_more() {
    a_write_fails(Server::in_memory(options(1)));
    of_several_cores(1).for_each(a_write_fails);
    Server::each_small(options(1), a_write_fails);
}

#[test]
fn a_datagram_has_the_error_of_its_last_key_and_no_reply_for_that_of_another() {
    let mut server = Server::in_memory(WorldOptions { udp: Some(1), ..options(ENGINES) });
    let mut client = server.connect();
    fill(&mut server, &mut client);
    server.lose_files();
    let from = ([10, 0, 0, 7], 4000).into();
    for request_id in 0..DATAGRAMS {
        let frame = Frame { request_id, sequence: 0, total: 1 }.bytes();
        let asked = [&frame[..], b"get key1 hit\r\n"].concat();
        let world = server.world().expect("in memory");
        world.send_datagram(0, from, &asked);
        while server.step() {}
    }
    let world = server.world().expect("in memory");
    assert_eq!(world.take_datagrams(0), []);
    let frame = Frame { request_id: 1, sequence: 0, total: 1 }.bytes();
    world.send_datagram(0, from, &[&frame[..], b"get hit\r\n"].concat());
    world.settle();
    let told = world.take_datagrams(0);
    assert_eq!(told, [(from, [&frame[..], HIT.as_bytes()].concat())]);
    world.send_datagram(0, from, &[&frame[..], b"get key1\r\n"].concat());
    while server.step() {}
    let world = server.world().expect("in memory");
    let told = world.take_datagrams(0);
    assert_eq!(told, [(from, [&frame[..], ERROR.as_bytes()].concat())]);
    check_idle(&mut server);
}

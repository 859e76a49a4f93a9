//! Clients that must log in: which replies they get, and that they get nothing else before.

use std::net::{Ipv4Addr, SocketAddr};

use kachel_io::{FarEnd, Peer};
use kachel_net::{ClientLimits, LOGIN_SECONDS_MAX, USERS_KEY_BYTES, Users};
use kachel_testkit::{World, WorldOptions};
use kachel_wire::TOKEN_BYTES_MAX;

const LOGIN: &[u8] = b"set x 0 0 12\r\nalice secret\r\n";
const REFUSED: &[u8] = b"CLIENT_ERROR unauthenticated\r\n";
const FAILED: &[u8] = b"CLIENT_ERROR authentication failure\r\n";

fn users(text: &[u8]) -> Users {
    Users::read(text, [3; USERS_KEY_BYTES]).expect("a good file")
}

fn world(options: WorldOptions) -> World {
    let world = World::new(WorldOptions { asks_login: true, ..options });
    world.shared.set_users(users(b"alice:secret\nbob:pw two\n"));
    world
}

/// What a client of a new server is told, in the order of what it says.
fn told<const N: usize>(said: [&[u8]; N]) -> [Vec<u8>; N] {
    let mut world = world(WorldOptions::default());
    let client = world.connect();
    said.map(|one| world.ask(&client, one))
}

#[test]
fn nothing_is_answered_before_the_login_and_all_after_it() {
    let said: [&[u8]; 5] =
        [b"get a\r\n", b"version\r\n", LOGIN, b"set a 0 0 1\r\nx\r\n", b"get a\r\n"];
    let expected: [&[u8]; 5] =
        [REFUSED, REFUSED, b"STORED\r\n", b"STORED\r\n", b"VALUE a 0 1\r\nx\r\nEND\r\n"];
    assert_eq!(told(said), expected);
    // The login itself stores nothing.
    assert_eq!(told([LOGIN, b"get x\r\n"]), [&b"STORED\r\n"[..], b"END\r\n"]);
}

/// memcached overwrites the first of these replies (1.6.45: two replies for three commands).
#[test]
fn each_command_that_was_pipelined_before_the_login_has_its_reply() {
    let said = [b"get a\r\n", LOGIN, b"get a\r\n"].concat();
    let expected = [REFUSED, b"STORED\r\nEND\r\n"].concat();
    for cut in 0..said.len() {
        let told = told([&said[..cut], &said[cut..]]).concat();
        assert_eq!(told, expected, "cut at {cut}");
    }
}

#[test]
fn a_login_that_fails_may_be_tried_again() {
    let rows: [(&[u8], &[u8]); 8] = [
        (b"set x 0 0 11\r\nalice wrong\r\n", FAILED),
        (b"set x 0 0 10\r\nbob secret\r\n", FAILED),
        (b"set x 0 0 13\r\nalice  secret\r\n", FAILED),
        (b"set x 0 0 5\r\nalice\r\n", b"CLIENT_ERROR bad authentication token format\r\n"),
        (b"set x 0 0 12\r\nalice secretXX", b"CLIENT_ERROR bad command line termination\r\n"),
        (b"set x 0 0 -1\r\n", REFUSED),
        (b"set x 0 0\r\n", REFUSED),
        (b"ms x 12\r\n", REFUSED),
    ];
    for (said, expected) in rows {
        let told = told([said, b"get a\r\n", b"set y 7 7 10\r\nbob pw two\r\n", b"get a\r\n"]);
        assert_eq!(told, [expected, REFUSED, b"STORED\r\n", b"END\r\n"], "{}", said.escape_ascii());
    }
}

#[test]
fn a_token_that_is_too_long_is_skipped_whole() {
    for bytes in [TOKEN_BYTES_MAX + 1, 16_385, 1_000_000] {
        let block = [&vec![b'x'; bytes][..], b"\r\n"].concat();
        let line = format!("set x 0 0 {bytes}\r\n");
        let told = told([line.as_bytes(), &block, LOGIN, b"get a\r\n"]);
        let expected: [&[u8]; 4] =
            [b"CLIENT_ERROR auth token too long\r\n", b"", b"STORED\r\n", b"END\r\n"];
        assert_eq!(told, expected, "{bytes}");
    }
    // No client will send that.
    let told = told([b"set x 0 0 2147483646\r\n", LOGIN, b"get a\r\n"]);
    let expected: [&[u8]; 3] = [b"CLIENT_ERROR auth token too long\r\n", b"STORED\r\n", b"END\r\n"];
    assert_eq!(told, expected);
}

fn is_closed_by(world: &mut World, said: &[u8]) -> bool {
    let client = world.connect();
    assert_eq!(world.ask(&client, said), b"", "{}", said.escape_ascii());
    client.is_closed()
}

#[test]
fn input_that_is_no_command_closes() {
    let mut world = world(WorldOptions::default());
    let binary = [&[0x80][..], &[0; 23]].concat();
    for said in [&[b'\n'; 20][..], &binary, b"quit\r\n", &[b'x'; 3000]] {
        assert!(is_closed_by(&mut world, said), "{}", said.escape_ascii());
    }
}

#[test]
fn clients_of_every_shard_must_log_in() {
    for crew in [true, false] {
        let mut world = world(WorldOptions { shards: 3, crew, ..WorldOptions::default() });
        let clients: Vec<FarEnd> = (0..9).map(|_| world.connect()).collect();
        for client in &clients {
            assert_eq!(world.ask(client, b"get a\r\ndelete a\r\n"), [REFUSED, REFUSED].concat());
            assert_eq!(world.ask(client, LOGIN), b"STORED\r\n");
            assert_eq!(world.ask(client, b"get a\r\n"), b"END\r\n");
        }
        assert_eq!(world.sum(|counters| &counters.auth_cmds), 9);
        assert_eq!(world.sum(|counters| &counters.auth_errors), 0);
    }
}

#[test]
fn new_users_replace_the_old_ones_for_later_logins() {
    let mut world = world(WorldOptions::default());
    let early = world.connect();
    assert_eq!(world.ask(&early, LOGIN), b"STORED\r\n");
    world.shared.set_users(users(b"alice:changed\n"));
    assert_eq!(world.ask(&early, b"get a\r\n"), b"END\r\n", "it has logged in");
    let late = world.connect();
    assert_eq!(world.ask(&late, LOGIN), FAILED);
    assert_eq!(world.ask(&late, b"set x 0 0 13\r\nalice changed\r\n"), b"STORED\r\n");
    assert_eq!(world.sum(|counters| &counters.auth_cmds), 3);
    assert_eq!(world.sum(|counters| &counters.auth_errors), 1);
}

/// After how many seconds a client is closed that says `each_s` every second.
fn closed_after_s(limits: ClientLimits, each_s: &[u8]) -> Option<u32> {
    let mut world = world(WorldOptions { limits, ..WorldOptions::default() });
    let client = world.connect();
    world.settle();
    (1..=100).find(|_| {
        client.write(each_s);
        world.settle();
        drop(client.read());
        world.clock.advance_s(1);
        world.settle();
        client.is_closed()
    })
}

#[test]
fn a_client_that_does_not_log_in_is_closed_in_time() {
    assert_eq!(LOGIN_SECONDS_MAX, 10);
    for said in [&b""[..], b"get a\r\n", b"set x 0 0 3\r\na b\r\n"] {
        assert_eq!(closed_after_s(ClientLimits::default(), said), Some(11));
        let limits = ClientLimits { login_s: 3, ..ClientLimits::default() };
        assert_eq!(closed_after_s(limits, said), Some(4));
        let limits = ClientLimits { login_s: 0, ..ClientLimits::default() };
        assert_eq!(closed_after_s(limits, said), None);
    }
    let mut world = world(WorldOptions::default());
    let client = world.connect();
    assert_eq!(world.ask(&client, LOGIN), b"STORED\r\n");
    world.clock.advance_s(1000);
    world.settle();
    assert_eq!(world.ask(&client, b"get a\r\n"), b"END\r\n", "it has logged in");
}

#[test]
fn a_login_that_had_to_wait_is_answered_in_its_order() {
    let peer = Peer::from(SocketAddr::from((Ipv4Addr::new(10, 0, 0, 7), 1)));
    let mut world = world(WorldOptions::default());
    let client = world.connect_from(peer);
    let said = [&b"set x 0 0 3\r\na b\r\nversion\r\n"[..], LOGIN, b"get a\r\n"].concat();
    assert_eq!(world.ask(&client, &said), [FAILED, REFUSED].concat());
    world.clock.advance_s(1);
    world.settle();
    assert_eq!(client.read(), b"STORED\r\nEND\r\n");
}

/// The fault: these commands counted no work, so a client that pipelined them had no end of a turn.
#[test]
fn commands_before_the_login_end_a_turn() {
    // Commands of a turn: each counts 2 KiB of 256, and the lines that a password is compared with.
    let many: String = (0..2_000).map(|user| format!("user{user}:secret\n")).collect();
    for (file, per_turn) in [(&b"alice:secret\n"[..], 127), (many.as_bytes(), 4)] {
        let mut world = world(WorldOptions::default());
        world.shared.set_users(users(file));
        let client = world.connect();
        assert_eq!(world.ask(&client, b"x\r\n"), REFUSED);
        let commands = per_turn * 5;
        let before = world.sum(|counters| &counters.conn_yields);
        let told = world.ask(&client, "x\r\n".repeat(commands).as_bytes());
        assert_eq!(told, REFUSED.repeat(commands));
        assert_eq!(world.sum(|counters| &counters.conn_yields) - before, 4, "{per_turn} a turn");
    }
}

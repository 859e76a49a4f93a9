//! Password guessing: the number of passwords of a guesser that are checked, and that clients with
//! the right password log in beside it. Time is that of the virtual clock.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use kachel_io::{FarEnd, Peer, Wait};
use kachel_net::{
    ClientLimits, LOGIN_FAILURES_MAX, LOGIN_WAIT_SECONDS_MAX, USERS_KEY_BYTES, Users,
    WAITING_INPUT_BYTES_MAX, WRONG_PER_MINUTE_MAX,
};
use kachel_shard::PlainOptions;
use kachel_testkit::{World, WorldOptions};

const LOGIN: &[u8] = b"set x 0 0 12\r\nalice secret\r\n";
const GUESS: &[u8] = b"set x 0 0 11\r\nalice guess\r\n";
const FAILED: &[u8] = b"CLIENT_ERROR authentication failure\r\n";
const STORED: &[u8] = b"STORED\r\n";

const STEP_NS: u64 = 100_000_000;
const STEPS_PER_SECOND: usize = 10;

fn world(options: WorldOptions) -> World {
    let options = WorldOptions {
        asks_login: true,
        plain: PlainOptions { connections_max: 1024, ..options.plain },
        ..options
    };
    let world = World::new(options);
    set_users(&world, b"alice:secret");
    world
}

fn set_users(world: &World, file: &[u8]) {
    world.shared.set_users(Users::read(file, [3; USERS_KEY_BYTES]).expect("a good file"));
}

/// A client of one of the addresses 10.0.0.1 to 10.0.0.254.
fn client_of(world: &World, last: u8) -> FarEnd {
    world.connect_from(Peer::from(SocketAddr::from(([10, 0, 0, last], 1_000))))
}

fn open_connections(world: &World) -> u64 {
    world.holdings().map(|held| held.connections).sum()
}

fn failed(world: &World) -> u64 {
    world.sum(|counters| &counters.auth_errors)
}

/// Clients of one address, or of one network of IPv6: each has another address of that.
struct Site {
    is_v6: bool,
    clients: u16,
}

impl Site {
    fn connect(&mut self, world: &World) -> FarEnd {
        self.clients += 1;
        let ip = if self.is_v6 {
            IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 7, 0, 0, 1, self.clients))
        } else {
            IpAddr::from([10, 0, 0, 7])
        };
        world.connect_from(Peer::from(SocketAddr::new(ip, 1_000 + self.clients)))
    }
}

/// How a guesser uses its connection.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Style {
    /// It sends 30 guesses at once, and connects again when it is closed.
    Pipelines,
    /// It sends 30 guesses at once, and connects again after this number of steps.
    GivesUp(usize),
    /// It sends one guess, and connects again when it has the reply.
    OneByOne,
}

/// A guesser with one connection at a time.
struct Guesser {
    style: Style,
    open: Option<FarEnd>,
    steps: usize,
}

impl Guesser {
    fn new(style: Style) -> Self {
        Self { style, open: None, steps: 0 }
    }

    fn step(&mut self, world: &World, site: &mut Site) {
        self.steps += 1;
        let is_over = self.open.as_ref().is_none_or(|open| match self.style {
            Style::Pipelines => open.is_closed(),
            Style::GivesUp(steps) => open.is_closed() || self.steps > steps,
            Style::OneByOne => open.is_closed() || !open.read().is_empty(),
        });
        if is_over {
            self.open.iter().for_each(FarEnd::finish);
            let guesses = if self.style == Style::OneByOne { 1 } else { 30 };
            let open = site.connect(world);
            open.write(&GUESS.repeat(guesses));
            (self.open, self.steps) = (Some(open), 0);
        }
    }
}

/// Beside twelve guessers, lets 12 clients with the right password connect at each of `starts` (in
/// steps), 12 in all. Returns how many were let in within two seconds, and the most wrong passwords
/// that were told in a minute.
fn attacked(options: WorldOptions, is_v6: bool, style: Style, starts: &[usize]) -> (usize, u64) {
    let mut world = world(options);
    let mut site = Site { is_v6, clients: 0 };
    let mut guessers: Vec<Guesser> = (0..12).map(|_| Guesser::new(style)).collect();
    let mut waiting: Vec<(usize, FarEnd)> = Vec::new();
    let mut let_in = 0;
    let mut told = vec![0];
    let last = starts.last().expect("some start") + 3 * STEPS_PER_SECOND;
    for step in 0..last.max(65 * STEPS_PER_SECOND) {
        guessers.iter_mut().for_each(|guesser| guesser.step(&world, &mut site));
        // The guesses of this step come first.
        world.settle();
        if starts.contains(&step) {
            for _ in 0..12 / starts.len() {
                let client = site.connect(&world);
                client.write(LOGIN);
                waiting.push((step, client));
            }
        }
        world.settle();
        waiting.retain(|(start, client)| {
            let is_in = client.read() == STORED;
            let_in += usize::from(is_in && step - start <= 2 * STEPS_PER_SECOND);
            !is_in
        });
        told.push(failed(&world));
        world.clock.advance_ns(STEP_NS);
    }
    let minute = 60 * STEPS_PER_SECOND;
    let in_minute = |to: usize| told[to] - told[to.saturating_sub(minute)];
    (let_in, (0..told.len()).map(in_minute).max().unwrap_or(0))
}

#[test]
fn right_passwords_are_let_in_beside_twelve_guessers() {
    let one_by_one: Vec<usize> = (0..12).map(|n| 37 + 47 * n).collect();
    let together = [203];
    let styles = [Style::Pipelines, Style::GivesUp(7), Style::GivesUp(25), Style::OneByOne];
    for (shards, is_v6) in [(1, false), (3, true)] {
        for style in styles {
            for starts in [&one_by_one[..], &together] {
                let options = WorldOptions { shards, ..WorldOptions::default() };
                let (let_in, told) = attacked(options, is_v6, style, starts);
                let case = format!("{shards} shards, {style:?}, {} starts", starts.len());
                assert!(let_in >= 11, "{case}: {let_in} of 12");
                assert!(told <= WRONG_PER_MINUTE_MAX, "{case}: {told}");
                assert!(told >= 50, "{case}: {told}: the guessers have guessed");
            }
        }
    }
}

/// Another address, and a client of the unix socket, do not wait for one that guesses. After some
/// quiet seconds that address is as any other.
#[test]
fn only_the_address_that_guesses_waits() {
    let mut world = world(WorldOptions::default());
    let mut site = Site { is_v6: false, clients: 0 };
    let guessers: Vec<FarEnd> = (0..30).map(|_| site.connect(&world)).collect();
    guessers.iter().for_each(|guesser| guesser.write(GUESS));
    world.settle();
    assert_eq!(failed(&world), 5);
    let other = world.connect_from(Peer::from(SocketAddr::from(([10, 0, 0, 8], 1_000))));
    let local = world.connect();
    assert_eq!(world.ask(&other, LOGIN), STORED);
    assert_eq!(world.ask(&local, &GUESS.repeat(20)), FAILED.repeat(20));
    drop(guessers);
    for _ in 0..60 {
        world.clock.advance_s(1);
        world.settle();
    }
    assert_eq!(failed(&world), 20 + 30, "those that waited were checked in the end");
    for _ in 0..5 {
        let returned = site.connect(&world);
        assert_eq!(world.ask(&returned, GUESS), FAILED);
    }
}

/// The seconds at which the failures of one connection are told, and at which it is closed.
#[test]
fn a_connection_that_fails_is_slower_each_time_and_then_closed() {
    let mut world = world(WorldOptions::default());
    let client = Site { is_v6: false, clients: 0 }.connect(&world);
    let mut told = Vec::new();
    client.write(&GUESS.repeat(30));
    let closed = (0..100).find(|second| {
        world.settle();
        told.extend((0..client.read().len() / FAILED.len()).map(|_| *second));
        world.clock.advance_s(1);
        client.is_closed()
    });
    assert_eq!((&told[..], closed), (&[0, 1, 3, 7, 15][..], Some(15)));
    assert_eq!(told.len(), usize::from(LOGIN_FAILURES_MAX));
}

/// `limits` closes after two seconds. A login that waits longer is answered all the same.
#[test]
fn the_time_in_which_a_login_waits_does_not_count() {
    let limits = ClientLimits { login_s: 2, idle_s: 2, ..ClientLimits::default() };
    let mut world = world(WorldOptions { limits, ..WorldOptions::default() });
    let mut site = Site { is_v6: false, clients: 0 };
    let guessers: Vec<FarEnd> = (0..30).map(|_| site.connect(&world)).collect();
    guessers.iter().for_each(|guesser| guesser.write(GUESS));
    world.settle();
    let answered = (0..60).find(|_| {
        world.clock.advance_s(1);
        world.settle();
        guessers[5].read() == FAILED
    });
    assert!(answered.is_some_and(|second| second > 20), "the oldest is the last: {answered:?}");
    assert_eq!(failed(&world), 30, "none was closed before");
    for _ in 0..5 {
        world.clock.advance_s(1);
        world.settle();
    }
    assert!(guessers.iter().all(FarEnd::is_closed), "the time after that counts");
}

/// A client that waits may be gone although its connection has not ended.
#[test]
fn a_login_does_not_wait_for_ever() {
    let mut world = world(WorldOptions::default());
    let mut site = Site { is_v6: false, clients: 0 };
    let clients: Vec<FarEnd> = (0..300).map(|_| site.connect(&world)).collect();
    clients.iter().for_each(|client| client.write(GUESS));
    world.settle();
    world.clock.advance_ns(STEP_NS);
    world.settle();
    let closed = |clients: &[FarEnd]| clients.iter().filter(|client| client.is_closed()).count();
    assert_eq!(closed(&clients), 300 - 5 - 256, "there is room for some that wait");
    for _ in 0..LOGIN_WAIT_SECONDS_MAX + 20 {
        world.clock.advance_s(1);
        world.settle();
    }
    assert_eq!(closed(&clients), 300);
    assert_eq!(open_connections(&world), 0);
}

/// With `-c 1024`, 1,100 connections of eight addresses arrive together, again and again, and each
/// sends a wrong password. A client of a ninth address logs in at once each time.
#[test]
fn guessers_of_other_addresses_leave_room() {
    let with_more = [GUESS, &[b'x'; 3 * WAITING_INPUT_BYTES_MAX]].concat();
    for (shards, input, ends) in [
        (1, GUESS, true),
        (3, &GUESS.repeat(30), true),
        (1, GUESS, false),
        (3, &GUESS.repeat(30), false),
        (1, &with_more, true),
    ] {
        let mut world = world(WorldOptions { shards, ..WorldOptions::default() });
        let case = format!("{shards} shards, {} bytes, they end: {ends}", input.len());
        for round in 0..5 {
            for guesser in (0..1_100).map(|n| client_of(&world, 1 + n as u8 % 8)) {
                guesser.write(input);
                if ends {
                    guesser.finish();
                }
            }
            world.settle();
            let client = client_of(&world, 9);
            assert_eq!(world.ask(&client, LOGIN), STORED, "{case}, round {round}");
            client.finish();
            world.settle();
            let most =
                if ends && input.len() < WAITING_INPUT_BYTES_MAX { 0 } else { 1024 / 4 + 150 };
            assert!(open_connections(&world) <= most, "{case}: {}", open_connections(&world));
            world.clock.advance_ns(STEP_NS);
        }
    }
}

/// The login waits for a check, or because the last login of its connection has failed. The client
/// closes its sending side before or after the wait begins.
#[test]
fn a_login_that_waits_ends_with_its_client() {
    for (is_delayed, ends_before) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut world = world(WorldOptions::default());
        let failing: Vec<FarEnd> = (0..5).map(|_| client_of(&world, 1)).collect();
        failing.iter().for_each(|client| client.write(GUESS));
        world.settle();
        let client = if is_delayed { &failing[2] } else { &client_of(&world, 1) };
        client.write(LOGIN);
        if !ends_before {
            world.settle();
            assert!(!client.is_closed(), "it waits");
        }
        client.finish();
        world.settle();
        assert!(client.is_closed(), "{is_delayed} {ends_before}");
        // It has left no place behind that keeps others waiting.
        world.clock.advance_s(2);
        let other = client_of(&world, 1);
        assert_eq!(world.ask(&other, LOGIN), STORED, "{is_delayed} {ends_before}");
    }
}

/// The shard receives a bounded part of what a waiting client sends, and serves the rest after the
/// login.
#[test]
fn a_client_that_sends_while_its_login_waits_is_served_later() {
    const VALUE_BYTES: usize = 100_000;
    let mut world = world(WorldOptions::default());
    let failing: Vec<FarEnd> = (0..5).map(|_| client_of(&world, 1)).collect();
    failing.iter().for_each(|client| client.write(GUESS));
    world.settle();
    let client = client_of(&world, 1);
    client.write(LOGIN);
    world.settle();
    let value = vec![b'v'; VALUE_BYTES];
    let set = [format!("set k 0 0 {VALUE_BYTES}\r\n").as_bytes(), &value, b"\r\n"].concat();
    client.write_cut(&set, 1_000);
    world.settle();
    let received = world.sum(|counters| &counters.bytes_read) as usize;
    let most = WAITING_INPUT_BYTES_MAX + 6 * LOGIN.len() + 1_000;
    assert!((WAITING_INPUT_BYTES_MAX..most).contains(&received), "{received}");
    world.clock.advance_s(2);
    world.settle();
    assert_eq!(client.read(), STORED.repeat(2));
    assert_eq!(world.ask(&client, b"mn\r\n"), b"MN\r\n");
}

#[test]
fn a_user_who_is_removed_while_the_login_waits_is_not_let_in() {
    let mut world = world(WorldOptions::default());
    let clients: Vec<FarEnd> = (0..7).map(|_| client_of(&world, 1)).collect();
    clients[..5].iter().for_each(|client| client.write(GUESS));
    world.settle();
    clients[5].write(LOGIN);
    clients[6].write(b"set x 0 0 6\r\nbob pw\r\n");
    world.settle();
    set_users(&world, b"bob:pw");
    world.clock.advance_s(3);
    world.settle();
    assert_eq!((clients[5].read(), clients[6].read()), (FAILED.to_vec(), STORED.to_vec()));
}

/// A shard with a login that waits sleeps until its check is free, or as long as any other one.
#[test]
fn a_shard_sleeps_until_the_next_check() {
    const NAP_NS: u64 = 100_000_000;
    let mut world = world(WorldOptions::default());
    let guessers: Vec<FarEnd> = (0..7).map(|_| client_of(&world, 1)).collect();
    guessers.iter().for_each(|guesser| guesser.write(GUESS));
    world.settle();
    for check in 0..2 {
        for (advance_ns, wait_ns) in [(0, NAP_NS), (1_050_000_000, 50_000_000)] {
            world.clock.advance_ns(advance_ns);
            world.settle();
            assert_eq!(failed(&world), 5 + check);
            assert_eq!(world.shards[0].prepare_wait(), Wait::AtMostNs(wait_ns));
        }
        world.clock.advance_ns(50_000_000);
        world.settle();
        assert_eq!(failed(&world), 6 + check);
    }
}

/// The clients of all shards log in, although only one shard knows the time of the next check. In
/// this test, a shard that is not woken does nothing.
#[test]
fn right_passwords_follow_each_other_at_once_on_all_shards() {
    let mut world = world(WorldOptions { shards: 3, ..WorldOptions::default() });
    let failing: Vec<FarEnd> = (0..5).map(|_| client_of(&world, 1)).collect();
    failing.iter().for_each(|client| client.write(GUESS));
    world.settle();
    let clients: Vec<FarEnd> = (0..12).map(|_| client_of(&world, 1)).collect();
    world.settle(); // They are dealt out to the shards.
    clients.iter().for_each(|client| client.write(LOGIN));
    world.settle();
    world.clock.advance_ns(1_050_000_000);
    world.settle();
    let waits: Vec<Wait> = world.shards.iter_mut().map(|shard| shard.prepare_wait()).collect();
    let is_next = |wait: &Wait| *wait == Wait::AtMostNs(50_000_000);
    assert_eq!(waits.iter().filter(|wait| is_next(wait)).count(), 1, "{waits:?}");
    world.clock.advance_ns(50_000_000);
    world.turn_of(waits.iter().position(is_next).expect("one is next"));
    world.rest();
    assert!(clients.iter().all(|client| client.read() == STORED));
    assert!(failing.iter().all(|client| client.read() == FAILED));
}

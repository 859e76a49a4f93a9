//! A whole server in memory, and all at once: clients of each protocol, datagrams, logins, clients
//! that watch the log, counts by prefix, users that change, and time.
//!
//! Upstream:   the together target. Its bytes are a list of steps, see [`Steps`].
//! Downstream: `testkit`, which runs the server.
//!
//! No reply is compared here; the other targets do that. What must hold is that no assertion of the
//! server fails, whatever meets what.
//!
//! Invariants:
//! - I1  A client that reads does not wait for ever: the server comes to rest.
//! - I2  When all clients are gone the server holds nothing for them, and serves a new one.
//! - I3  While logins are asked for, nothing that a client stores is stored before its login.

use std::net::SocketAddr;

use kachel_io::FarEnd;
use kachel_net::{USERS_KEY_BYTES, Users};
use kachel_testkit::{PlainOptions, World, WorldOptions};
use kachel_wire::Frame;

use crate::connection::{START_UNIX_S, holds_nothing};

/// The memory of a server: little enough that a script may fill it.
const MEMORY_BYTES: u64 = 8 << 20;
/// The largest item, so that some values are refused, and some of a datagram, too.
const ITEM_BYTES_MAX: u64 = 20_000;
/// The most steps of one input.
const STEPS_MAX: usize = 48;
/// Clients at a time. A step that connects replaces one of them.
const CLIENTS: usize = 4;
/// The most bytes of lines that wait for a client that watches.
const WATCHER_BYTES_MAX: usize = 16 << 10;
/// The most seconds that pass in a step.
const SECONDS_MAX: usize = 70;
const KEY: [u8; USERS_KEY_BYTES] = [1; USERS_KEY_BYTES];
/// A login by the text protocol, and one by SASL.
const LOGIN: &[u8] = b"set login 0 0 3\r\nu p\r\n";
const SASL_LOGIN: &[u8] = b"\x80\x21\0\x05\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0\0\0\0\0\0PLAIN\0u\0p";
const WATCH: &[u8] = b"watch fetchers mutations evictions connevents sysevents deletions\r\n";

/// A list of steps. Each begins with three bytes: what it does and to which client, and the number
/// of its bytes (14 bits).
struct Steps<'d> {
    rest: &'d [u8],
}

struct Step<'d> {
    what: u8,
    /// A client, or a shard.
    which: usize,
    bytes: &'d [u8],
}

impl<'d> Iterator for Steps<'d> {
    type Item = Step<'d>;

    fn next(&mut self) -> Option<Step<'d>> {
        let (&[head, low, high], rest) = self.rest.split_first_chunk::<3>()?;
        let bytes = usize::from(low) | usize::from(high & 0x3f) << 8;
        let (bytes, rest) = rest.split_at(bytes.min(rest.len()));
        self.rest = rest;
        Some(Step { what: head & 0x0f, which: usize::from(head >> 4), bytes })
    }
}

/// What the first byte of an input chooses.
#[derive(Clone, Copy)]
struct Setting {
    shards: u16,
    /// Whether clients must log in. Then there is no UDP: a datagram cannot log in.
    logins: bool,
}

struct Play {
    world: World,
    setting: Setting,
    clients: Vec<FarEnd>,
    /// Clients that are gone or that watch.
    others: Vec<FarEnd>,
    /// The number of the last datagram.
    number: u16,
}

/// Plays a list of steps on a new server.
pub fn together(data: &[u8]) {
    let Some((&pick, rest)) = data.split_first() else { return };
    let setting = Setting { shards: if pick & 1 == 0 { 1 } else { 3 }, logins: pick & 2 != 0 };
    let world = World::new(WorldOptions {
        memory_bytes: MEMORY_BYTES,
        item_bytes_max: ITEM_BYTES_MAX,
        start_unix_s: START_UNIX_S,
        shards: setting.shards,
        crew: pick & 4 == 0,
        asks_login: setting.logins,
        udp: (!setting.logins).then_some(1 + u16::from(pick >> 4)),
        plain: PlainOptions {
            requests_per_tick: (pick & 0x80 != 0).then_some(2),
            watcher_bytes_max: WATCHER_BYTES_MAX,
            tracks_sizes: true,
            ..PlainOptions::default()
        },
        ..WorldOptions::default()
    });
    let clients = (0..CLIENTS).map(|_| world.connect()).collect();
    let mut play = Play { world, setting, clients, others: Vec::new(), number: 0 };
    play.set_good_users();
    play.watch();
    for step in (Steps { rest }).take(STEPS_MAX) {
        play.step(&step);
        play.world.round();
    }
    play.end();
}

impl Play {
    fn step(&mut self, step: &Step<'_>) {
        let Step { what, which, bytes } = *step;
        let client = which % CLIENTS;
        match what {
            0..=3 => self.clients[client].write(bytes),
            4..=6 => self.send_datagram(which, bytes),
            7 => {
                let next = self.world.connect();
                let gone = std::mem::replace(&mut self.clients[client], next);
                if bytes.len().is_multiple_of(2) {
                    gone.reset()
                } else {
                    gone.finish()
                }
                self.others.push(gone);
            }
            8 => self.watch(),
            // Logins that were checked before stay; others see the new users.
            9 => match Users::read(bytes, KEY) {
                Ok(users) if self.setting.logins => self.world.shared.set_users(users),
                _ => self.set_good_users(),
            },
            10 => {
                self.world.clock.advance_s((bytes.len() % SECONDS_MAX) as u64);
                self.world.turn();
            }
            11 => self.clients[client].stall(),
            12 => self.clients[client].allow_all(),
            13 if which < CLIENTS => self.clients[client].write(LOGIN),
            13 => self.clients[client].write(SASL_LOGIN),
            14 => self.others.iter().for_each(|other| drop(other.read())),
            _ => self.world.rest(),
        }
    }

    fn set_good_users(&self) {
        if self.setting.logins {
            let users = Users::read(b"u:p\n", KEY).expect("a good file");
            self.world.shared.set_users(users);
        }
    }

    fn send_datagram(&mut self, which: usize, bytes: &[u8]) {
        if self.setting.logins {
            return;
        }
        self.number += 1;
        let frame = Frame { request_id: self.number, sequence: 0, total: 1 };
        let from = SocketAddr::from(([10, 0, 0, 7], 30_000 + self.number));
        let shard = which % usize::from(self.setting.shards);
        self.world.send_datagram(shard, from, &[&frame.bytes(), bytes].concat());
    }

    /// A client that watches all streams, and one that has requests counted by prefix.
    fn watch(&mut self) {
        for request in [WATCH, b"stats detail on\r\n"] {
            let client = self.world.connect();
            if self.setting.logins {
                client.write(LOGIN);
            }
            client.write(request);
            self.others.push(client);
        }
        self.world.rest();
    }

    /// Checks that the server holds nothing when all are gone, and that it serves others then (I2).
    fn end(mut self) {
        self.set_good_users();
        self.clients.iter().chain(&self.others).for_each(FarEnd::allow_all);
        self.world.rest(); // I1
        self.clients.iter().chain(&self.others).for_each(FarEnd::reset);
        self.world.rest();
        holds_nothing(&self.world);
        // Until then, an earlier login that has failed may delay the next one.
        self.world.clock.advance_s(SECONDS_MAX as u64);
        self.world.turn();
        let [stranger, last] = [(); 2].map(|()| self.world.connect());
        if self.setting.logins {
            stranger.write(b"set stored-by-a-stranger 0 0 1\r\nx\r\n");
            last.write(LOGIN);
        }
        last.write(b"mn\r\n");
        self.world.rest();
        let expected: &[u8] = if self.setting.logins { b"STORED\r\nMN\r\n" } else { b"MN\r\n" };
        assert_eq!(last.read(), expected, "I2");
        assert_ne!(stranger.read(), b"STORED\r\n", "I3");
    }
}

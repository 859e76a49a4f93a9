//! Sends the same commands to two servers in batches and compares the replies.
//!
//! Upstream:   the tests give two servers and a plan.
//! Downstream: `generator` makes the commands, `compare` judges the replies.
//!
//! - R1  A batch goes to one connection of each server, and the next is sent only when both have
//!   answered it: so all commands have one order on both sides, on whichever connection.
//! - R2  A command that consumes a part of the next one as its data is followed by a command whose
//!   reply depends on nothing. The two share the mark of the second, and no batch ends after the
//!   first.
//! - R3  A flush ends its batch. After it our server has none of the pool's keys; the keys that
//!   memcached still has are counted and deleted, so that both are empty.
//! - R4  A retrieval of a key that is too long begins its batch, because memcached 1.6.45 then
//!   drops the replies to earlier commands that it has not sent yet.
//! - R5  A refused `ms` is followed by a `set` of a key that no other command uses, because 1.6.45
//!   gives the token of the refused command to the next classic store on the connection.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _, Write as _};
use std::time::Duration;

use kachel_testkit::{Client, Server};

use crate::clock::Clock;
use crate::command::{Command, Side};
use crate::compare::{Comparison, DIFFERENCES_MAX, Difference, Share, show, version};
use crate::generator::Generator;
use crate::plant::Plant;
use crate::reply::{find, lines, mark_reply, mark_request};
use crate::rules::PeerAge;

/// Connections to each server, used in turn.
const CONNECTION_COUNT: usize = 4;
/// Commands in the largest batch.
const BATCH_COMMANDS_MAX: u64 = 64;
/// A reply that takes longer is missing.
const REPLY_WITHIN: Duration = Duration::from_secs(20);
/// A request that fits into a socket's buffers whatever the server does; a longer one is written
/// while replies are read.
const WRITE_AT_ONCE_BYTES: usize = 16 << 10;

/// What to run.
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) commands: usize,
    /// A wrong reply to put into ours.
    pub(crate) plant: Option<Plant>,
}

/// What came of a run.
pub(crate) struct Outcome {
    pub(crate) comparison: Comparison,
    pub(crate) commands: usize,
    pub(crate) malformed: BTreeMap<&'static str, usize>,
    pub(crate) verbs: BTreeMap<&'static str, usize>,
    pub(crate) flags: BTreeMap<(&'static str, char), usize>,
    /// How many flushes there were, and how many items outlived one on each server (R3).
    pub(crate) flushes: usize,
    pub(crate) outlived_ours: usize,
    pub(crate) outlived_peer: usize,
    /// The commands of the batch into which the wrong reply was put.
    pub(crate) planted: Option<std::ops::Range<usize>>,
}

/// The peer's version as `version` tells it.
pub(crate) fn peer_age(peer: &Server) -> PeerAge {
    let reply = peer.connect().ask("version\r\n", "\n");
    if version(reply.as_bytes()) < (1, 6, 45) { PeerAge::Older } else { PeerAge::Same }
}

/// Sends a request and reads until the reply ends with `last`. What had come until the time limit
/// or the connection's end otherwise.
fn exchange(client: &Client, request: &[u8], last: &[u8]) -> Vec<u8> {
    let stream = client.socket();
    std::thread::scope(|scope| {
        let write = move || {
            let mut stream = stream;
            // The reader finds out that a server has closed.
            let _ = stream.write_all(request);
        };
        if request.len() > WRITE_AT_ONCE_BYTES {
            scope.spawn(write);
        } else {
            write();
        }
        let (mut reader, mut reply) = (stream, Vec::new());
        let mut buffer = vec![0; 64 << 10];
        while !reply.ends_with(last) {
            match reader.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => reply.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        reply
    })
}

/// May memcached forget replies over this command (R4)?
fn unanswers(command: &Command) -> bool {
    command.malformed == Some("long_key") && ["get", "gets", "gat"].contains(&command.verb)
}

/// Does the command flush at once?
fn flushes(command: &Command) -> bool {
    command.verb == "flush_all" && command.malformed.is_none() && !command.delayed
}

/// Deletes the pool's keys. How many of them the server still had.
fn clear(client: &Client, index: usize) -> usize {
    let mut request = b"get".to_vec();
    let mut deletes = Vec::new();
    for key in Generator::pool() {
        request.extend_from_slice(&[b" ", &key[..]].concat());
        deletes.extend_from_slice(&[b"delete ", &key[..], b" noreply\r\n"].concat());
    }
    request.extend_from_slice(b"\r\n");
    request.extend(deletes);
    request.extend(mark_request(index));
    let reply = exchange(client, &request, &mark_reply(index));
    lines(&reply).iter().filter(|line| line.data.is_some()).count()
}

/// The commands of one batch (R2).
fn batch(generator: &mut Generator, commands_max: usize) -> Vec<Command> {
    let wanted = 1 + generator.random.below(BATCH_COMMANDS_MAX) as usize;
    let mut commands = Vec::new();
    for _ in 0..wanted.min(commands_max) {
        let command = generator.command();
        if unanswers(&command) && !commands.is_empty() {
            generator.put_back(command); // R4
            break;
        }
        let takes_more = command.malformed == Some("data_shorter");
        let leaves_token = command.verb == "ms" && command.malformed.is_some();
        commands.push(command);
        if leaves_token {
            commands.push(Command::new("set", b"").word("spent 0 0 1").data(b"x")); // R5
        } else if takes_more {
            commands.push(Command::new("mn", b"").end()); // R2
        }
        if commands.last().is_some_and(flushes) {
            return commands; // R3
        }
    }
    commands
}

impl Outcome {
    fn count(&mut self, command: &Command) {
        self.commands += 1;
        if let Some(kind) = command.malformed {
            *self.malformed.entry(kind).or_default() += 1;
            return;
        }
        *self.verbs.entry(command.verb).or_default() += 1;
        for letter in &command.flags {
            *self.flags.entry((command.verb, char::from(*letter))).or_default() += 1;
        }
    }

    /// Cuts both streams at the marks and compares the shares. A mark that only one of the servers
    /// answered cuts nothing: what follows is compared together with it.
    /// False if a server has stopped answering: nothing more can be learned from it.
    fn compare(
        &mut self,
        first: usize,
        commands: &[Command],
        mut ours: &[u8],
        mut peer: &[u8],
    ) -> bool {
        let mut from = 0;
        for until in 1..=commands.len() {
            let mark = mark_reply(first + until - 1);
            let (Some(our_end), Some(peer_end)) = (find(ours, &mark), find(peer, &mark)) else {
                continue;
            };
            self.comparison.share(&Share {
                index: first + from,
                commands: &commands[from..until],
                ours: &ours[..our_end],
                peer: &peer[..peer_end],
            });
            ours = &ours[our_end + mark.len()..];
            peer = &peer[peer_end + mark.len()..];
            from = until;
        }
        let whole = from == commands.len();
        if !whole {
            self.comparison.differences.push(Difference {
                index: first + from,
                shown: format!("cut short:\n      ours {}\n      peer {}", show(ours), show(peer)),
            });
        }
        whole
    }
}

/// Runs a plan. Ends early at the first batch with a difference if a wrong reply was planted, and
/// after `DIFFERENCES_MAX` differences otherwise.
pub(crate) fn run(ours: &Server, peer: &Server, mut plan: Plan) -> Outcome {
    let age = peer_age(peer);
    let mut generator = Generator::new(plan.seed, age == PeerAge::Older);
    let mut outcome = Outcome {
        comparison: Comparison::new(age),
        commands: 0,
        malformed: BTreeMap::new(),
        verbs: BTreeMap::new(),
        flags: BTreeMap::new(),
        flushes: 0,
        outlived_ours: 0,
        outlived_peer: 0,
        planted: None,
    };
    let connect = |server: &Server| {
        let client = server.connect();
        client.set_patience(REPLY_WITHIN);
        client
    };
    let connections: Vec<(Client, Client)> =
        (0..CONNECTION_COUNT).map(|_| (connect(ours), connect(peer))).collect();
    let (mut our_clock, mut peer_clock) = (Clock::new(ours), Clock::new(peer));
    while outcome.commands < plan.commands {
        let first = outcome.commands;
        let commands = batch(&mut generator, plan.commands - first);
        let (mut to_ours, mut to_peer) = (Vec::new(), Vec::new());
        for (offset, command) in commands.iter().enumerate() {
            let seen = &outcome.comparison.seen;
            to_ours.extend(command.text(Side::Ours, seen));
            to_peer.extend(command.text(Side::Peer, seen));
            to_ours.extend(mark_request(first + offset));
            to_peer.extend(mark_request(first + offset));
            outcome.count(command);
        }
        let last = mark_reply(outcome.commands - 1);
        let (our_client, peer_client) =
            &connections[generator.random.below(CONNECTION_COUNT as u64) as usize];
        let (mut from_ours, from_peer) = std::thread::scope(|scope| {
            let answered = scope.spawn(|| exchange(our_client, &to_ours, &last));
            let from_peer = exchange(peer_client, &to_peer, &last);
            (answered.join().expect("reading does not panic"), from_peer)
        });
        if outcome.planted.is_none()
            && let Some(plant) = &mut plan.plant
            && let Some(changed) = plant(&from_ours, &outcome.comparison.seen)
        {
            from_ours = changed;
            outcome.planted = Some(first..outcome.commands);
        }
        outcome.comparison.our_clock_jumped = our_clock.has_jumped();
        outcome.comparison.peer_clock_jumped = peer_clock.has_jumped();
        outcome.comparison.unix_apart_max = our_clock.unix_apart_max(&peer_clock);
        if !outcome.compare(first, &commands, &from_ours, &from_peer) {
            break;
        }
        if commands.last().is_some_and(flushes) {
            outcome.flushes += 1;
            outcome.outlived_ours += clear(our_client, outcome.commands);
            outcome.outlived_peer += clear(peer_client, outcome.commands);
        }
        let differences = outcome.comparison.differences.len();
        if differences >= DIFFERENCES_MAX || (plan.plant.is_some() && differences > 0) {
            break;
        }
    }
    outcome
}

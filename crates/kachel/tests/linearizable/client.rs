//! One client: sends requests in batches, records the times, and sometimes resets its connection.
//!
//! Upstream:   `workload` makes the requests.
//! Downstream: entries of a history.
//!
//! - P1  A time is the clock's nanoseconds, 64 to each, so that the requests of a batch have an
//!   order. It is read before the batch is sent, and after the bytes of a reply have come.
//! - P2  Nothing is sent after a reset: requests without a reply at that time have an unknown
//!   outcome.

use std::time::Instant;

use kachel_check::{Entry, NEVER, Operation, Outcome, Window, operations};
use kachel_testkit::{Client as Connection, Look, Random};
use kachel_wire::client::{self, ClientReply, ReplyParsed, parse_reply};

use crate::UNKNOWN_PERCENT_MAX;
use crate::subject::Subject;
use crate::workload::{Flavor, Workload};

/// Requests sent before the first reply is read, at most.
const BATCH_MAX: u64 = 12;
/// One batch in this number ends in a reset.
const RESET_EVERY: u64 = 25;
/// Parts of a nanosecond (P1).
const PARTS: u64 = 64;
/// No tick takes longer, not even where threads wait for each other's cores.
const TICK_NS_MAX: u64 = 500_000_000;

/// Requests that were sent and not answered.
struct Awaited {
    operations: Vec<Operation>,
    invoked: u64,
}

pub(crate) struct Client<'s> {
    server: &'s Subject,
    began: Instant,
    connection: Connection,
    /// Of this connection; the next one has a number of its own.
    number: u32,
    /// How many clients there are: by that much the numbers of one client differ.
    stride: u32,
    random: Random,
    workload: Workload,
    received: Vec<u8>,
    /// Outcomes that were lost.
    unknown: usize,
    pub(crate) entries: Vec<Entry>,
    /// The entries that requested no reply, and after which no reply has arrived yet.
    silent: Vec<usize>,
}

impl<'s> Client<'s> {
    pub(crate) fn new(
        server: &'s Subject,
        (number, stride): (u32, u32),
        random: Random,
        began: Instant,
    ) -> Self {
        Self {
            server,
            began,
            connection: server.connect(),
            number,
            stride,
            random,
            workload: Workload::new(number),
            received: Vec::new(),
            unknown: 0,
            entries: Vec::new(),
            silent: Vec::new(),
        }
    }

    /// Asks until at least `wanted` operations are noted.
    pub(crate) fn run(&mut self, keys: &[Vec<u8>], flavor: Flavor, wanted: usize) {
        while self.entries.len() < wanted {
            let resets = self.random.below(RESET_EVERY) == 0;
            let mut sent = Vec::new();
            let mut batch = Vec::new();
            for _ in 0..=self.random.below(BATCH_MAX) {
                let from = sent.len();
                self.workload.ask(&mut self.random, keys, (flavor, resets), &mut sent);
                let (operations, bytes) = operations(&sent[from..]).expect("a request");
                assert_eq!(from + bytes, sent.len(), "one request at a time");
                if operations[0].is_quiet() {
                    client::meta_noop(&mut sent);
                }
                batch.push(operations);
            }
            let invoked = self.now();
            let batch = batch.into_iter().zip(invoked..);
            let awaited: Vec<Awaited> =
                batch.map(|(operations, invoked)| Awaited { operations, invoked }).collect();
            self.connection.send(&sent);
            // Before a reset some of the replies are awaited; not so few that too much is unknown.
            let count = awaited.len();
            let mut answered =
                if resets { self.random.below(count as u64) as usize } else { count };
            let lost = |answered: usize| {
                awaited[answered..].iter().map(|lost| lost.operations.len()).sum::<usize>()
            };
            while self.unknown + lost(answered) > wanted * UNKNOWN_PERCENT_MAX / 100 {
                answered += 1;
            }
            for awaited in &awaited[..answered] {
                self.take(awaited);
            }
            if resets {
                for lost in &awaited[answered..] {
                    self.lose(lost);
                }
                self.reset();
            }
        }
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64 * PARTS
    }

    /// The second of a time. The server's, whose beginning we do not know, is this or the next.
    fn second(time: u64) -> u32 {
        u32::try_from(time / PARTS / 1_000_000_000).expect("a test is short")
    }

    /// The earliest second in which what was invoked then may be carried out: a shard reads its
    /// clock once a tick, and takes in later what others sent meanwhile.
    fn earliest(invoked: u64) -> u32 {
        Self::second(invoked.saturating_sub(TICK_NS_MAX * PARTS))
    }

    fn note(&mut self, operation: &Operation, outcome: Outcome, invoked: u64) {
        self.workload.learn(operation, &outcome);
        let silent = outcome == Outcome::Silent && operation.is_noreply();
        let returned = self.now();
        let earliest_s = Self::earliest(invoked);
        let (returned, latest_s) =
            if silent { (NEVER, u32::MAX) } else { (returned, Self::second(returned) + 1) };
        if silent {
            self.silent.push(self.entries.len());
        } else {
            // A request without a reply is done when the next reply on its connection arrives.
            for index in self.silent.drain(..) {
                self.entries[index].returned = returned;
                self.entries[index].window.latest_s = latest_s;
            }
        }
        self.entries.push(Entry {
            client: self.number,
            operation: operation.clone(),
            outcome,
            invoked,
            returned,
            window: Window { earliest_s, latest_s },
        });
    }

    fn lose(&mut self, lost: &Awaited) {
        self.unknown += lost.operations.len();
        for operation in &lost.operations {
            let earliest_s = Self::earliest(lost.invoked);
            let entry = Entry::unknown(self.number, operation.clone(), lost.invoked, earliest_s);
            self.entries.push(entry);
        }
    }

    /// Reads the reply to one request.
    fn take(&mut self, awaited: &Awaited) {
        let [first, ..] = &awaited.operations[..] else { return };
        if first.is_noreply() {
            self.note(first, Outcome::Silent, awaited.invoked);
            return;
        }
        if first.is_quiet() {
            // What is withheld shows by the reply to `mn`, which every quiet request has behind it.
            let (outcome, bytes) = self.read(Outcome::read);
            self.received.drain(..bytes);
            let withheld = matches!(&outcome, Outcome::Meta { code, .. } if code == b"MN");
            self.note(first, if withheld { Outcome::Silent } else { outcome }, awaited.invoked);
            if !withheld {
                let (_, bytes) = self.read(Outcome::read);
                self.received.drain(..bytes);
            }
            return;
        }
        if !first.wire().starts_with(b"g") {
            let (outcome, bytes) = self.read(Outcome::read);
            self.received.drain(..bytes);
            self.note(first, outcome, awaited.invoked);
            return;
        }
        // A retrieval: the hits in the order of the keys, then the end.
        for operation in &awaited.operations {
            let (outcome, bytes) = self.read(|received| hit_or_end(received, operation));
            self.received.drain(..bytes);
            self.note(operation, outcome, awaited.invoked);
        }
        let ((), bytes) = self.read(|received| match parse_reply(received) {
            ReplyParsed::Reply { reply: ClientReply::End, reply_bytes } => Some(((), reply_bytes)),
            _ => None,
        });
        self.received.drain(..bytes);
    }

    /// Receives until `parse` finds what it looks for.
    fn read<T>(&mut self, parse: impl Fn(&[u8]) -> Option<(T, usize)>) -> (T, usize) {
        loop {
            if let Some(found) = parse(&self.received) {
                return found;
            }
            let garbage = parse_reply(&self.received) == ReplyParsed::Garbage;
            let shown = || self.received[..self.received.len().min(200)].escape_ascii();
            assert!(!garbage, "no reply: {}", shown());
            let mut chunk = [0; 16 << 10];
            match self.connection.look(&mut chunk) {
                Look::Bytes(bytes) => self.received.extend_from_slice(&chunk[..bytes]),
                ended => panic!("{ended:?}; received {}", shown()),
            }
        }
    }

    /// Lets the kernel send a reset instead of an end (P2), and connects again.
    fn reset(&mut self) {
        // By when those were carried out nothing says any more.
        self.silent.clear();
        std::mem::replace(&mut self.connection, self.server.connect()).reset();
        self.received.clear();
        self.number += self.stride;
    }
}

/// The outcome of one key of a retrieval. A value of another key, or the end, means that it missed:
/// then nothing is taken.
fn hit_or_end(received: &[u8], operation: &Operation) -> Option<(Outcome, usize)> {
    let ReplyParsed::Reply { reply, reply_bytes } = parse_reply(received) else { return None };
    match reply {
        ClientReply::Value { key, client_flags, value, cas } if key == operation.key() => {
            let value = kachel_check::Value::new(&received[value]);
            Some((Outcome::Hit { value, client_flags, cas }, reply_bytes))
        }
        ClientReply::Value { .. } | ClientReply::End => Some((Outcome::Miss, 0)),
        other => panic!("{other:?} to {operation:?}"),
    }
}

//! A client: it connects, sends requests, reads replies at its own pace, and may leave at any time.
//!
//! Upstream:   `run`, which calls it for each of its events.
//! Downstream: the network, in the form of events in the queue; `answer`, which reads the replies.
//!
//! Invariants:
//! - I1  The bytes that a client sends on one connection arrive in order. There is no order between
//!   connections.
//! - I2  A connection ends only if its client left, broke it or was too slow for the server, or if
//!   the client was among the slowest readers of large values while too much memory was pinned, or
//!   if the server rejected the connection or was ended, or if a failed disk has lost the next
//!   reply, or if there may be no memory for an item of the next reply.
//! - I3  A server that is ended finishes each reply that it has begun, unless it gives clients up
//!   or a failed disk has lost the rest.

use std::collections::VecDeque;

use kachel_io::FarEnd;
use kachel_testkit::Random;

use crate::answer::{self, Arrival, Asked, shown};
use crate::ask::{Ask, Asker, Expect, dump, get};
use crate::failures::{Excuse, Failures};
use crate::options::{Fault, Faults, Options};
use crate::queue::{Event, Queue};
use crate::record::Moment;
use crate::trace::Trace;

/// The server may close a client as late only if something of the client was pending for this time
/// of the server's clock. It is a second less than the server's limit, which counts whole seconds.
const PATIENCE_NS: u64 = 9_000_000_000;
/// The server may close a client as a slow reader of large values only if it may have owed the
/// client a large value for this time of the server's clock.
const HELD_NS_MIN: u64 = 2_000_000_000;
/// The bytes that a slow reader accepts before it reads any, like the buffer of a socket.
const WINDOW_BYTES: u64 = 4_096;

/// A client's end of one connection, and the counts of its bytes.
#[derive(Debug)]
struct Link {
    number: u64,
    far: FarEnd,
    /// The next bytes on this connection arrive no earlier (I1).
    next_ns: u64,
    sent: u64,
    arrived: u64,
    received: u64,
    allowed: u64,
    /// Bytes from the server that are not a whole reply yet.
    input: Vec<u8>,
    /// Whether the client sends no more requests on it.
    leaving: bool,
}

impl Link {
    fn is_attentive(&self) -> bool {
        !self.leaving && self.allowed == u64::MAX
    }
}

/// One client.
pub(crate) struct Client {
    index: usize,
    dice: Random,
    link: Option<Link>,
    links: u64,
    pub(crate) asked: VecDeque<Asked>,
    depth: usize,
    think_ns: u64,
    cas: Option<(Vec<u8>, u64)>,
    /// The token of the lease that it got last, with its key.
    lease: Option<(Vec<u8>, u64)>,
    /// The server's clock when the client last waited for nothing.
    calm_ns: u64,
    /// The server's clock when the server last certainly held no large value for this client.
    free_ns: u64,
    faults: Faults,
    reads_slowly: bool,
    /// When its newest request arrived: the nanosecond, and the place among its requests in it.
    newest: (u64, u16),
    /// How many bursts of small fillers it may still send before memory must be used up.
    bursts_left: u32,
    floods_left: u32,
}

/// The state outside a client that its methods use.
pub(crate) struct Around<'a> {
    pub(crate) now_ns: u64,
    pub(crate) clock_ns: u64,
    pub(crate) queue: &'a mut Queue,
    pub(crate) trace: &'a mut Trace,
    pub(crate) asker: &'a mut Asker,
    pub(crate) tally: &'a mut Tally,
    /// How many connections the server says that it closed in this event because they held large
    /// values. Each of them explains the end of one client's connection.
    pub(crate) pinned_closes: &'a mut u64,
    /// What the disk has failed to do.
    pub(crate) failures: &'a mut Failures,
    /// How far the server has ended.
    pub(crate) end: End,
}

/// How far the server has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum End {
    #[default]
    NotYet,
    /// It finishes replies and executes no more requests.
    Begun,
    /// It closes all clients.
    GivenUp,
}

/// What a client has read from the server.
pub(crate) struct Received {
    /// The requests that are settled by it.
    pub(crate) settled: Vec<Asked>,
    /// When the connection has ended, the requests whose outcome is unknown.
    pub(crate) unknown: VecDeque<Asked>,
}

/// Counts of what all clients did and received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Requests sent, without those that only fill memory.
    pub asked: u64,
    /// Requests settled: answered, or executed silently.
    pub settled: u64,
    /// Connections made.
    pub connections: u64,
    /// Connections broken by their clients.
    pub resets: u64,
    /// Times that a client left by itself, perhaps in the middle of a value.
    pub leaves: u64,
    /// Times that a client stopped reading.
    pub stops: u64,
    /// Connections of slow readers.
    pub slow: u64,
    /// Sends that arrived in pieces.
    pub cuts: u64,
    /// Pieces that arrived late.
    pub delays: u64,
    /// Jumps of the clock.
    pub jumps: u64,
    /// Times that the time of day was set back by an hour.
    pub clock_steps: u64,
    /// Connections that the server closed because the client was late.
    pub late_closes: u64,
    /// Connections that the server closed because the client held large values for too long.
    pub pinned_closes: u64,
    /// Connections that the server closed because a failed disk has lost a reply.
    pub lost_closes: u64,
    /// Errors that the server sent because its disk has failed.
    pub disk_errors: u64,
    /// Items on the disk that were not read, because there was no memory for them.
    pub unread: u64,
    /// Values that were acknowledged, and found on the disk after a power cut.
    pub after_power_cut: u64,
    /// Starts of the server after a power cut.
    pub restarts: u64,
    /// Connections that the server rejected because of their number.
    pub rejected: u64,
    /// Listings of all items that clients got during the stormy phase.
    pub dumps: u64,
    /// Items that were listed.
    pub listed: u64,
    /// Listings that were compared with the items that are read.
    pub exact_listings: u64,
    /// Values of more than half a MiB that were stored.
    pub large_stores: u64,
    /// Items that were shown with the token 0, because items have none.
    pub without_cas: u64,
    /// Times that the server was ended while clients worked.
    pub ends: u64,
    /// Bytes that the server sent.
    pub received_bytes: u64,
    /// Requests settled that may store a value.
    pub stores: u64,
    /// Requests that were refused for lack of memory.
    pub refused: u64,
    /// Reads of keys that were stored a short time before and not changed.
    pub kept_reads: u64,
    /// How many of these reads missed.
    pub kept_missing: u64,
    /// Flushes that were answered.
    pub flushes: u64,
    /// Times that a client read all hot keys right after a flush or when a delayed one fell due.
    pub flush_reads: u64,
    /// Tokens of leases that clients got.
    pub leases: u64,
    /// Values that were stored with the token of a lease.
    pub lease_fills: u64,
    /// Values that were stored for leases only, because their token was invalid.
    pub stale_stores: u64,
}

impl Client {
    pub(crate) fn new(options: &Options, index: usize, queue: &mut Queue) -> Self {
        let mut dice = Random::for_purpose(options.seed, &format!("client {index}"));
        let depth = dice.skewed(1, 40) as usize;
        let think_ns = dice.skewed(5_000, 2_000_000);
        queue.schedule(dice.below(100_000), Event::Step(index));
        let slow = dice.chance(250) || index == 0;
        let reads_slowly = slow && options.faults.has(Fault::Slow);
        Self {
            index,
            dice,
            link: None,
            links: 0,
            asked: VecDeque::new(),
            depth,
            think_ns,
            cas: None,
            lease: None,
            calm_ns: 0,
            free_ns: 0,
            faults: options.faults,
            reads_slowly,
            newest: (0, 0),
            bursts_left: 3,
            floods_left: 3,
        }
    }

    /// A client that does nothing by itself. Its caller uses `connect`, `send` and `finish`.
    pub(crate) fn tool(options: &Options, index: usize) -> Self {
        let mut client = Self::new(options, index, &mut Queue::default());
        client.reads_slowly = false;
        for (fault, _) in Fault::ALL {
            client.faults = client.faults.without(fault);
        }
        client
    }

    /// Whether it has a connection.
    pub(crate) fn is_connected(&self) -> bool {
        self.link.is_some()
    }

    /// Whether it waits for nothing: no reply is pending, and none of its bytes are in flight.
    pub(crate) fn is_content(&self) -> bool {
        let under_way = self.link.as_ref().is_some_and(|link| link.sent > link.arrived);
        !under_way && !self.asked.iter().any(Asked::wants_reply)
    }

    /// Whether the server has admitted it and serves it.
    pub(crate) fn is_served(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.received > 0 && !link.leaving)
    }

    fn awaited(&self) -> usize {
        self.asked.iter().filter(|asked| asked.wants_reply()).count()
    }

    /// Describes what it waits for, for an error message.
    pub(crate) fn waits_for(&self) -> String {
        let first = self.asked.iter().find(|asked| asked.wants_reply());
        let what = first.map_or("nothing".to_owned(), |asked| shown(&asked.ask.text));
        let link = self.link.as_ref().map(|link| (link.sent - link.arrived, link.leaving));
        let under_way = match link {
            Some((bytes, false)) => format!("{bytes} bytes in flight"),
            Some((bytes, true)) => format!("{bytes} bytes in flight, leaving"),
            None => "not connected".to_owned(),
        };
        let (index, count) = (self.index, self.asked.len());
        format!("client {index} ({count} requests, {under_way}) waits for {what}")
    }

    /// Takes a new connection.
    pub(crate) fn connect(&mut self, far: FarEnd, around: &mut Around<'_>) {
        assert!(self.link.is_none() && self.asked.is_empty());
        self.links += 1;
        around.tally.connections += 1;
        self.calm_ns = around.clock_ns;
        self.free_ns = around.clock_ns;
        let mut allowed = u64::MAX;
        if self.reads_slowly {
            around.tally.slow += 1;
            far.stall();
            far.allow(WINDOW_BYTES as usize);
            allowed = WINDOW_BYTES;
            let bytes = Some(self.dice.between(100, 20_000) as usize);
            self.schedule(around, self.dice.clone().between(10_000, 300_000), |client, link| {
                Event::Read { client, link, bytes }
            });
        }
        self.link = Some(Link {
            number: self.links,
            far,
            next_ns: around.now_ns,
            sent: 0,
            arrived: 0,
            received: 0,
            allowed,
            input: Vec::new(),
            leaving: false,
        });
    }

    fn schedule(
        &self,
        around: &mut Around<'_>,
        in_ns: u64,
        event: impl FnOnce(usize, u64) -> Event,
    ) {
        around.queue.schedule(around.now_ns + in_ns, event(self.index, self.links));
    }

    /// Takes its next step. `connect` opens a connection for it.
    pub(crate) fn step(&mut self, connect: impl FnOnce() -> FarEnd, around: &mut Around<'_>) {
        let mut pause_ns = self.dice.between(self.think_ns / 2, self.think_ns * 2);
        match self.link.as_ref().map(|link| link.leaving) {
            None => {
                self.connect(connect(), around);
                if self.dice.chance(600) {
                    // It sends nothing for a while, so that the connection can be handed over.
                    pause_ns += self.dice.between(50_000, 500_000);
                } else {
                    self.batch(around);
                }
            }
            Some(true) => {}
            Some(false) if self.misbehaves(around) => {}
            Some(_) if self.awaited() < self.depth => self.batch(around),
            Some(_) => {}
        }
        self.schedule(around, pause_ns, |client, _| Event::Step(client));
    }

    /// Sometimes breaks the connection, leaves or stops reading. Returns whether it leaves.
    fn misbehaves(&mut self, around: &mut Around<'_>) -> bool {
        let dice = &mut self.dice;
        let (reset, leave, stop) = (dice.chance(6), dice.chance(12), dice.chance(12));
        if reset && self.faults.has(Fault::Reset) {
            let in_ns = self.dice.below(100_000);
            // The client sends more requests until the break arrives.
            self.schedule(around, in_ns, |client, link| Event::Reset { client, link });
            return false;
        }
        if leave && self.faults.has(Fault::Leave) {
            around.tally.leaves += 1;
            self.last_words(around);
            return true;
        }
        if stop && self.faults.has(Fault::Stop) {
            around.tally.stops += 1;
            let in_ns = self.dice.between(500_000, 20_000_000);
            self.stop();
            self.schedule(around, in_ns, |client, link| Event::Read { client, link, bytes: None });
        }
        false
    }

    /// Sends its last requests, perhaps a part of one more or `quit`, and leaves.
    fn last_words(&mut self, around: &mut Around<'_>) {
        let mut asks = self.asks(around, 3);
        let way = self.dice.below(4);
        let mut tail = Vec::new();
        if way == 0 {
            tail.extend_from_slice(b"quit\r\n");
        } else if way == 2 {
            // No valid line is that long: the server closes the connection.
            tail.resize(self.dice.between(2_100, 9_000) as usize, b'x');
        } else if way == 1
            && let Some(last) = asks.pop()
        {
            // The server refuses a too large value once its line is whole: cut before that.
            let kept = self.dice.index(last.text.len() - last.swallowed);
            tail.extend_from_slice(&last.text[..kept]);
        }
        self.send(asks, &tail, around);
        if way != 0 {
            self.finish(around);
        }
        if let Some(link) = &mut self.link {
            link.leaving = true;
        }
    }

    /// Ends its side after everything that it has sent.
    pub(crate) fn finish(&mut self, around: &mut Around<'_>) {
        let Some(link) = &mut self.link else { return };
        link.leaving = true;
        let event = Event::Finish { client: self.index, link: link.number };
        around.queue.schedule(link.next_ns.max(around.now_ns), event);
    }

    fn batch(&mut self, around: &mut Around<'_>) {
        let may_list = self.is_served() && self.is_content() && self.asked.is_empty();
        if may_list && self.faults.has(Fault::Dump) && self.dice.chance(40) {
            let ask = dump(self.dice.chance(500));
            self.send(vec![ask], b"", around);
            return;
        }
        let short = around.asker.short;
        if (self.bursts_left > 0 && self.dice.chance(300)) || (short && self.dice.chance(300)) {
            self.bursts_left = self.bursts_left.saturating_sub(1);
            let count = self.dice.between(100, 400);
            let asks = around.asker.burst(&mut self.dice, count);
            self.send(asks, b"", around);
            return;
        }
        let flood = self.floods_left > 0 && around.asker.pressing && self.dice.chance(100);
        if flood || (short && self.dice.chance(700)) {
            self.floods_left = self.floods_left.saturating_sub(1);
            let count = self.dice.between(10, 60);
            let asks = around.asker.flood(&mut self.dice, count);
            self.send(asks, b"", around);
            return;
        }
        let count = self.dice.skewed(1, 12);
        let asks = self.asks(around, count);
        self.send(asks, b"", around);
    }

    fn asks(&mut self, around: &mut Around<'_>, count: u64) -> Vec<Ask> {
        let (asker, dice) = (&mut *around.asker, &mut self.dice);
        let (cas, lease) = (self.cas.as_ref(), self.lease.as_ref());
        let mut asks = Vec::new();
        for _ in 0..count {
            let ask = asker.ask(dice, cas, lease);
            let look = ask.silent_key().filter(|_| dice.chance(800)).map(get);
            asks.push(ask);
            asks.extend(look);
        }
        asks
    }

    /// Sends requests, followed by `tail`, which is no whole request.
    pub(crate) fn send(&mut self, asks: Vec<Ask>, tail: &[u8], around: &mut Around<'_>) {
        let Some(link) = &mut self.link else { return };
        let mut bytes = Vec::new();
        for ask in asks {
            bytes.extend_from_slice(&ask.text);
            around.tally.asked += u64::from(ask.expect != Expect::Nothing || ask.judged);
            let end = link.sent + (bytes.len() - ask.swallowed) as u64;
            self.asked.push_back(Asked::new(ask, end));
        }
        bytes.extend_from_slice(tail);
        link.sent += bytes.len() as u64;
        let pieces = self.cut(bytes, around.tally);
        let Some(link) = &mut self.link else { return };
        let slow = self.faults.has(Fault::Delay);
        for bytes in pieces {
            let mut in_ns = self.dice.between(2_000, 60_000);
            if self.dice.chance(20) && slow {
                in_ns += self.dice.between(500_000, 20_000_000);
                around.tally.delays += 1;
            }
            link.next_ns = link.next_ns.max(around.now_ns + in_ns); // I1
            let event = Event::Arrive { client: self.index, link: link.number, bytes };
            around.queue.schedule(link.next_ns, event);
            if self.dice.chance(500) {
                link.next_ns += self.dice.below(40_000);
            }
        }
    }

    fn cut(&mut self, bytes: Vec<u8>, tally: &mut Tally) -> Vec<Vec<u8>> {
        let (cuts, way) = (self.dice.chance(500), self.dice.below(3));
        if !cuts || !self.faults.has(Fault::Cut) {
            return vec![bytes];
        }
        tally.cuts += 1;
        let most = match way {
            0 if bytes.len() < 300 => 8,
            0 | 1 if bytes.len() < 8_000 => 400,
            _ => 20_000,
        };
        let mut pieces = Vec::new();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let count = (self.dice.between(1, most) as usize).min(rest.len());
            pieces.push(rest[..count].to_vec());
            rest = &rest[count..];
        }
        pieces
    }

    /// Sends requests that arrive almost at once, if it may send and reads its replies.
    pub(crate) fn send_at_once(&mut self, asks: Vec<Ask>, around: &mut Around<'_>) {
        let Some(link) = self.link.as_mut().filter(|link| link.is_attentive()) else { return };
        around.tally.flush_reads += 1;
        let mut bytes = Vec::new();
        for ask in asks {
            bytes.extend_from_slice(&ask.text);
            around.tally.asked += 1;
            self.asked.push_back(Asked::new(ask, link.sent + bytes.len() as u64));
        }
        link.sent += bytes.len() as u64;
        link.next_ns = link.next_ns.max(around.now_ns + self.dice.between(1, 1_500)); // I1
        let event = Event::Arrive { client: self.index, link: link.number, bytes };
        around.queue.schedule(link.next_ns, event);
    }

    /// Whether it may send requests, reads its replies and waits for nothing.
    pub(crate) fn may_look(&self) -> bool {
        self.link.as_ref().is_some_and(Link::is_attentive) && self.is_content()
    }

    /// The connection, if it still is the one with this number.
    fn link(&mut self, number: u64) -> Option<&mut Link> {
        self.link.as_mut().filter(|link| link.number == number)
    }

    /// Some of its bytes arrive at the server.
    pub(crate) fn arrive(&mut self, link: u64, bytes: &[u8], now: Moment, clock_ns: u64) {
        self.note_free(clock_ns);
        let Some(link) = self.link(link) else { return };
        link.far.write(bytes);
        link.arrived += bytes.len() as u64;
        let arrived = link.arrived;
        let under_way = self.asked.iter().rev().take_while(|asked| asked.arrived.is_none()).count();
        let first = self.asked.len() - under_way;
        let news = self.asked.iter_mut().skip(first).take_while(|asked| asked.end <= arrived);
        for asked in news {
            let (ns, part) = self.newest;
            let part = if ns == now.ns { part.saturating_add(1).min(u16::MAX - 1) } else { 0 };
            self.newest = (now.ns, part);
            asked.arrived = Some(Arrival { ns: now.ns, part, second: now.second });
        }
    }

    /// Updates `free_ns` if no request at the server may be answered with a large value.
    fn note_free(&mut self, clock_ns: u64) {
        if !self.asked.iter().any(Asked::may_bring_large) {
            self.free_ns = clock_ns;
        }
    }

    /// The number of its connection, which is unique in the run.
    pub(crate) fn connection(&self) -> u32 {
        (self.index as u64 * 100_000 + self.links) as u32
    }

    /// The end of its input arrives at the server.
    pub(crate) fn arrive_finish(&mut self, link: u64) {
        if let Some(link) = self.link(link) {
            link.far.finish();
        }
    }

    /// Breaks its connection. Returns the requests that are not settled: their outcome is unknown.
    pub(crate) fn reset(&mut self, link: u64, tally: &mut Tally) -> VecDeque<Asked> {
        let Some(broken) = self.link(link) else { return VecDeque::new() };
        broken.far.reset();
        tally.resets += 1;
        self.link = None;
        std::mem::take(&mut self.asked)
    }

    /// Loses its connection with the server. Returns the requests whose outcome is unknown.
    pub(crate) fn lose_server(&mut self) -> VecDeque<Asked> {
        self.link = None;
        std::mem::take(&mut self.asked)
    }

    /// Reads `bytes` more bytes; `None`: reads everything from now on.
    pub(crate) fn read_more(&mut self, link: u64, bytes: Option<usize>, around: &mut Around<'_>) {
        let Some(link) = self.link(link) else { return };
        let Some(bytes) = bytes else {
            link.far.allow_all();
            link.allowed = u64::MAX;
            return;
        };
        if link.allowed == u64::MAX {
            return;
        }
        if link.allowed < link.received + WINDOW_BYTES {
            link.far.allow(bytes);
            link.allowed += bytes as u64;
        }
        let in_ns = self.dice.between(10_000, 300_000);
        self.schedule(around, in_ns, |client, link| Event::Read {
            client,
            link,
            bytes: Some(bytes),
        });
    }

    /// Reads nothing from now on.
    pub(crate) fn stop(&mut self) {
        if let Some(link) = &mut self.link {
            link.far.stall();
            link.allowed = link.received;
        }
    }

    /// Reads everything from now on.
    pub(crate) fn calm(&mut self) {
        if let Some(link) = &mut self.link {
            link.far.allow_all();
            link.allowed = u64::MAX;
        }
    }

    /// Reads what the server has sent; `None` if nothing came.
    ///
    /// Errors: a reply is wrong, or the connection ended without reason (I2).
    pub(crate) fn receive(&mut self, around: &mut Around<'_>) -> Result<Option<Received>, String> {
        let Some(link) = &mut self.link else { return Ok(None) };
        let bytes = link.far.read();
        let closed = link.far.is_closed();
        if bytes.is_empty() && !closed {
            self.note_rest(around.clock_ns);
            return Ok(None);
        }
        let mut settled = answer::Settled::default();
        if !bytes.is_empty() {
            around.trace.add(self.index as u64);
            around.trace.add_bytes(&bytes);
            around.tally.received_bytes += bytes.len() as u64;
            link.received += bytes.len() as u64;
            link.input.extend_from_slice(&bytes);
            settled = answer::read(&link.input, &mut self.asked, around.asker.writes)
                .map_err(|what| format!("client {}: {what}", self.index))?;
            link.input.drain(..settled.bytes);
            // The server closes the connection after it has refused to read more.
            link.leaving |= settled.is_last;
            if let Some(seen) = settled.tokens.last() {
                self.cas = Some(seen.clone());
            }
            around.tally.without_cas +=
                settled.tokens.iter().filter(|seen| seen.1 == 0).count() as u64;
            let count =
                |reply| settled.answered.iter().filter(|asked| asked.is_lease(reply)).count();
            around.tally.leases += settled.leases.len() as u64;
            around.tally.lease_fills += count(b"STORED\r\n") as u64;
            around.tally.stale_stores += count(b"STALE_STORED\r\n") as u64;
            if let Some(given) = settled.leases.pop() {
                self.lease = Some(given);
            }
        }
        let mut unknown = VecDeque::new();
        if settled.is_rejected {
            if link.received != settled.bytes as u64 {
                return Err(format!("client {} was rejected after a reply", self.index));
            }
            around.tally.rejected += 1;
            self.asked.clear();
        } else if settled.is_last {
            unknown = std::mem::take(&mut self.asked);
        }
        if closed {
            self.may_close(around)?;
            self.link = None;
            unknown.append(&mut self.asked);
        } else {
            self.note_rest(around.clock_ns);
        }
        Ok(Some(Received { settled: settled.answered, unknown }))
    }

    /// Updates `free_ns` and `calm_ns`.
    fn note_rest(&mut self, clock_ns: u64) {
        self.note_free(clock_ns);
        if self.is_content() {
            self.calm_ns = clock_ns;
        }
    }

    /// Checks that the server had a reason to close (I2).
    fn may_close(&self, around: &mut Around<'_>) -> Result<(), String> {
        let Err(what) = self.may_close_unfailed(around) else { return Ok(()) };
        match around.failures.excuse_close(&self.asked).ok_or(what)? {
            Excuse::Lost => around.tally.lost_closes += 1,
            Excuse::Unread => around.tally.unread += 1,
        }
        Ok(())
    }

    /// The same, if the disk has not failed.
    fn may_close_unfailed(&self, around: &mut Around<'_>) -> Result<(), String> {
        let Some(link) = &self.link else { return Ok(()) };
        let is_cut = !link.input.is_empty() || self.asked.iter().any(Asked::is_begun);
        match around.end {
            End::NotYet => {}
            End::Begun if is_cut => return Err(format!("a reply was cut: {}", self.waits_for())), // I3
            End::Begun | End::GivenUp => return Ok(()),
        }
        let has_held = around.clock_ns >= self.free_ns + HELD_NS_MIN;
        if *around.pinned_closes > 0 && has_held {
            *around.pinned_closes -= 1;
            around.tally.pinned_closes += 1;
            return Ok(());
        }
        if around.clock_ns >= self.calm_ns + PATIENCE_NS {
            around.tally.late_closes += 1;
            return Ok(());
        }
        if !link.leaving {
            return Err(format!("client {} was closed without a reason", self.index));
        }
        if self.asked.iter().any(Asked::wants_reply) {
            return Err(format!("closed before every reply was sent: {}", self.waits_for()));
        }
        Ok(())
    }
}

//! A shard and its tick: receive, serve, publish, send, maintain.
//!
//! Upstream:   a thread of the process (or a simulation) calls `tick` again and again.
//! Downstream: `io` for events and sends; `core` and all that works on it.
//!
//! Invariants:
//! - I1  A connection stands among the ready at most once a tick.
//! - I2  Lent bytes that are not served by the end of a tick are copied into the connection's tail.
//! - I3  Replies leave after the mailboxes are published: nothing is acknowledged before others can
//!   see it, and before `stats` counts it, on whichever shard.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use kachel_cache::{Cache, CacheStats, Pool};
use kachel_engine::{EngineOptions, Epoch, KeyHasher, Seeds};
use kachel_io::{Clock, Event, Io, Lent, ListenerId, Peer, SocketId, Wait};
use kachel_net::{
    BlockPool, ConnectionIndex, Connections, KEPT_BYTES_MAX, Overdue, Phase, Slots, TooSlow,
    WIDENED_BYTES,
};
use kachel_stdx::Landing;
use kachel_wire::Reply;

use crate::core::{AnswerText, Core};
use crate::dump::{self, Dumps};
use crate::hop::{ANSWER_BYTES_MAX, Hop, ReplyTo};
use crate::hop::{Mailboxes, Parcel};
use crate::hop::{TAKEN_BYTES_MAX, take_mail};
use crate::serve::{input_of, serve};
use crate::shared::{ClosedClient, Shared};
use crate::slowest::Slowest;
use crate::stage::{DECODED_BYTES_MAX, Ready};
use crate::timeouts::{Late, Timeouts};
use crate::upload::Uploads;
use crate::{landing, timeouts};

/// How long a shard with something to look after may sleep.
const SLEEP_NS_MAX: u64 = 100_000_000;
/// How long it may sleep while a request waits for room in a mailbox.
const SLEEP_NS_WHILE_FULL: u64 = 50_000;
/// Tails kept for the next partial request.
const KEPT_TAILS_MAX: usize = 64;
/// The largest tail that is kept.
const KEPT_TAIL_BYTES_MAX: usize = 64 * 1024;
/// A larger tail, so many times as large as what is left in it, gives memory back: a long line was
/// in it, and whoever sent that may send little from now on.
const TAIL_TIMES_MAX: usize = 4;

/// Ticks in which a new connection is offered to the shard it is meant for.
const HAND_OVER_ATTEMPTS_MAX: u32 = 8;

/// A connection just accepted that another shard is to serve.
#[derive(Debug)]
struct Fresh {
    connection: ConnectionIndex,
    adopter: u16,
    attempts: u32,
}

/// What a shard is made of.
#[derive(Debug)]
pub struct ShardOptions {
    /// Its number.
    pub id: u16,
    /// How its engine behaves.
    pub engine: EngineOptions,
    /// The process's secret.
    pub seeds: Seeds,
    /// The monotonic time and the Unix time at which the process began.
    pub start: (u64, i64),
}

/// What a tick says of the shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Call again.
    Again,
    /// The process is to end and this shard owes nobody anything any more.
    Finished,
}

/// One core's world.
pub struct Shard<I: Io, C: Clock> {
    io: I,
    clock: C,
    core: Core,
    events: Vec<Event>,
    ready: Vec<Ready>,
    /// Tails of the ready connections, while they are served.
    taken: Vec<Vec<u8>>,
    spare_tails: Vec<Vec<u8>>,
    adopted: Vec<OwnedFd>,
    late: Vec<Late>,
    slowest: Slowest,
    /// Connections accepted in this tick, and the shard that each is meant for.
    fresh: Vec<Fresh>,
    /// Sockets that were turned away and get one line before they are closed.
    rejected: Vec<SocketId>,
    listeners: Vec<ListenerId>,
    /// Whether upkeep found work in the last tick.
    upkeep: bool,
    stopping: bool,
    next_adopter: u16,
}

impl<I: Io, C: Clock> Shard<I, C> {
    /// A shard with nothing in it.
    ///
    /// Errors: address space for its index cannot be reserved.
    pub fn new(
        io: I,
        clock: C,
        options: ShardOptions,
        shared: Arc<Shared>,
        pool: Arc<Pool>,
        mail: Mailboxes,
    ) -> std::io::Result<Self> {
        let shards = shared.options.shards;
        assert!(options.id < shards);
        let counters = Arc::clone(&shared.counters[usize::from(options.id)]);
        let hasher = KeyHasher::new(options.seeds, shards);
        let budget = Arc::clone(&shared.budget);
        let cache = Cache::new(pool, budget, hasher, options.engine, (options.id, shards))?;
        let epoch = Epoch::new(options.start.0, options.start.1);
        let core = Core {
            id: options.id,
            io_kind: io.kind(),
            shared,
            counters,
            now: epoch.at(options.start.0),
            epoch,
            hasher,
            cache,
            stats_before: CacheStats::default(),
            decoded_keys: Vec::with_capacity(DECODED_BYTES_MAX),
            connections: Connections::new(),
            slots: Slots::new(),
            pool: BlockPool::new(),
            timeouts: Timeouts::new(),
            mail,
            dirty: Vec::with_capacity(1024),
            resumable: Vec::with_capacity(64),
            uploads: Uploads::default(),
            dumps: Dumps::new(shards),
            mailbox_was_full: false,
            pinned_closes: 0,
            answer: AnswerText { text: Vec::with_capacity(ANSWER_BYTES_MAX), value_bytes_max: 0 },
            request: Vec::with_capacity(TAKEN_BYTES_MAX),
        };
        Ok(Self {
            io,
            clock,
            core,
            events: Vec::with_capacity(1024),
            ready: Vec::with_capacity(1024),
            taken: Vec::with_capacity(64),
            spare_tails: Vec::with_capacity(KEPT_TAILS_MAX),
            adopted: Vec::new(),
            late: Vec::new(),
            slowest: Slowest::new(),
            fresh: Vec::new(),
            rejected: Vec::new(),
            listeners: Vec::new(),
            upkeep: false,
            stopping: false,
            next_adopter: 0,
        })
    }

    /// Accepts clients on a bound socket, from the next tick on.
    pub fn listen(&mut self, socket: OwnedFd) {
        let listener = self.io.listen(socket);
        self.listeners.push(listener);
    }

    /// Tells how shard `peer` is woken; called for each before the first tick.
    pub fn set_waker(&mut self, peer: u16, waker: kachel_io::Waker) {
        self.core.mail.set_waker(peer, waker);
    }

    /// How other threads wake this shard.
    pub fn waker(&self) -> kachel_io::Waker {
        self.io.waker()
    }

    /// The door, for tests that hold its other side.
    pub fn io_mut(&mut self) -> &mut I {
        &mut self.io
    }

    /// All of it but the door.
    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    /// One turn: everything that has come in is served, what is owed goes out.
    ///
    /// Sleeps at most as long as nothing happens. Errors: the kernel refuses to report events at
    /// all.
    pub fn tick(&mut self) -> std::io::Result<Turn> {
        let wait = self.lie_down();
        self.get_up(wait)
    }

    /// The first half of a tick: how long its poll may wait. A shard that may sleep says so to the
    /// others first, and looks at its mail once more.
    ///
    /// Apart from [`Self::get_up`] for a simulation, in which time passes between the two.
    pub fn lie_down(&mut self) -> Wait {
        let busy = self.upkeep
            || !self.core.resumable.is_empty()
            || !self.fresh.is_empty()
            || !self.slowest.is_empty()
            || dump::may_go_on(&self.core);
        let was_full =
            std::mem::take(&mut self.core.mailbox_was_full) || self.core.mail.is_waited_for();
        if busy || !self.core.mail.is_empty() {
            return Wait::Now;
        }
        self.core.mail.sleeper.prepare_sleep();
        if !self.core.mail.is_empty() {
            Wait::Now
        } else if was_full {
            Wait::AtMostNs(SLEEP_NS_WHILE_FULL)
        } else {
            Wait::AtMostNs(SLEEP_NS_MAX)
        }
    }

    /// The rest of a tick: polls, and does what there is to do.
    ///
    /// Errors: the kernel refuses to report events at all.
    pub fn get_up(&mut self, wait: Wait) -> std::io::Result<Turn> {
        self.events.clear();
        let polled = self.io.poll(wait, &mut self.events);
        self.core.mail.sleeper.cancel();
        polled.inspect_err(|_| self.stop_accepting())?;
        self.turn_second();
        self.collect();
        let mail = take_mail(&mut self.core, &mut self.adopted);
        let alone = &mut self.core.uploads.ticks_alone;
        *alone = if mail { 0 } else { alone.saturating_add(1) };
        self.serve();
        self.close_late();
        self.adopt();
        dump::step(&mut self.core);
        self.core.publish_gauges();
        self.publish();
        self.send();
        self.maintain();
        self.core.counters.ticks.add(1);
        self.core.counters.busy_ticks.add(u64::from(mail || !self.ready.is_empty()));
        Ok(self.finish())
    }

    /// Reads the clock: the only time in a tick.
    fn turn_second(&mut self) {
        let now = self.core.epoch.at(self.clock.now_ns());
        let before = std::mem::replace(&mut self.core.now, now).second;
        self.core.cache.note_flush(&now);
        if now.second == before {
            return;
        }
        self.core.timeouts.turn(before, now.second);
    }

    /// Closes the connections whose time is up, and the slowest while too much memory is pinned:
    /// once a second, and behind what has just come in and gone out, for the client has done that
    /// in time.
    fn close_late(&mut self) {
        if self.core.timeouts.take_due() {
            self.slowest = timeouts::collect_late(&mut self.io, &mut self.core, &mut self.late);
            while let Some((connection, overdue)) = self.late.pop() {
                match overdue {
                    Some(overdue) => self.close_slow(connection, overdue),
                    None => self.close(connection),
                }
            }
        }
        self.close_slowest();
    }

    /// Closes the next of the slowest, if still too much is pinned: one a tick, for the kernel lets
    /// go of what is under way a little later, and other shards close theirs.
    fn close_slowest(&mut self) {
        let look = self.core.timeouts.look();
        while let Some(connection) = self.slowest.take_next() {
            if !self.core.is_too_much_pinned() {
                self.slowest = Slowest::new();
                return;
            }
            // There may be another at its place by now, or it has taken what it held.
            let open = self.core.connections.get(connection);
            let slow = open.and_then(|open| open.outbox.holding().slow(look));
            if let Some(slow) = slow {
                let overdue = Overdue { with: TooSlow::Holder, seconds: slow.held_s };
                self.close_slow(connection, overdue);
                self.core.pinned_closes += 1;
                return;
            }
        }
    }

    /// Closes a client that was too slow, counts it, and has the operator told.
    fn close_slow(&mut self, connection: ConnectionIndex, overdue: Overdue) {
        self.core.counters.closes(overdue.with).add(1);
        if let Some(tell) = self.core.shared.options.tell_closed
            && let Some(open) = self.core.connections.get(connection)
        {
            tell(&ClosedClient { name: self.io.name(open.socket), overdue });
        }
        self.close(connection);
    }

    /// Sorts the events: who has input, whose blocks came back, who came and who went.
    fn collect(&mut self) {
        self.ready.clear();
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            match event {
                Event::Received { socket, bytes } => self.received(socket, bytes),
                Event::Landed { socket, landing, bytes } => self.landed(socket, landing, bytes),
                Event::Sent { socket, block } => self.sent(socket, block),
                Event::Taken { socket, block_bytes } => self.taken(socket, block_bytes),
                Event::Accepted { socket, peer, .. } => self.accepted(socket, peer),
                Event::Finished { socket } => self.finished(socket),
                Event::Failed { socket } => match self.core.connections.find(socket) {
                    Some(connection) => self.close(connection),
                    // One that was turned away; or one that this tick has closed already.
                    None => self.close_rejected(socket),
                },
                Event::Woken => {}
            }
        }
        self.events = events;
        self.hand_over();
        self.collect_resumable();
    }

    fn received(&mut self, socket: SocketId, bytes: Lent) {
        let Some(connection) = self.heard(socket, bytes.byte_count()) else { return };
        let Some(open) = self.core.connections.get_mut(connection) else { return };
        let lent_before = match open.ready {
            Some(place) => self.ready[place as usize].lent.take(),
            None if open.input.tail.is_empty() && !open.stalled => {
                open.ready = Some(Ready::add(&mut self.ready, connection, Some(bytes)));
                return;
            }
            None => None,
        };
        // A second piece in one tick, or one behind what waits: it is joined to the tail.
        if open.input.tail.capacity() == 0 {
            open.input.tail = self.spare_tails.pop().unwrap_or_default();
        }
        for piece in lent_before.into_iter().chain([bytes]) {
            open.input.tail.extend_from_slice(self.io.lent(piece));
        }
        if open.ready.is_none() && !open.stalled {
            open.ready = Some(Ready::add(&mut self.ready, connection, None));
        }
    }

    /// Whose bytes they are, who has just given a sign of life.
    fn heard(&mut self, socket: SocketId, bytes: usize) -> Option<ConnectionIndex> {
        let connection = self.core.connections.find(socket)?;
        self.core.counters.bytes_read.add(bytes as u64);
        let look = self.core.timeouts.look();
        let open = self.core.connections.get_mut(connection)?;
        if open.outbox.owed_bytes() == 0 {
            // While a reply is owed only reading counts as a sign of life.
            open.active_look = look;
        }
        Some(connection)
    }

    /// A piece of a large value has come to its place, and perhaps what follows the value.
    fn landed(&mut self, socket: SocketId, landing: Landing, bytes: usize) {
        let Some(connection) = self.heard(socket, bytes) else { return };
        let follows = landing.spilled(bytes);
        if let Some(open) = self.core.connections.get_mut(connection)
            && !follows.is_empty()
        {
            assert!(open.ready.is_none() && open.input.tail.is_empty(), "landing, I1");
            open.input.tail = self.spare_tails.pop().unwrap_or_default();
            open.input.tail.extend_from_slice(follows);
            open.ready = Some(Ready::add(&mut self.ready, connection, None));
        }
        landing::take_back(&mut self.core, connection, landing, bytes);
        landing::offer(&mut self.io, &mut self.core, connection);
    }

    fn sent(&mut self, socket: SocketId, block: kachel_io::SendBlock) {
        self.core.counters.bytes_written.add(block.byte_count() as u64);
        let Some(connection) = self.core.connections.find(socket) else {
            self.core.pool.put_back(block);
            self.close_rejected(socket);
            return;
        };
        let look = self.core.timeouts.look();
        if let Some(open) = self.core.connections.get_mut(connection) {
            open.active_look = look;
            open.outbox.sent(block, &mut self.core.pool);
            let waits = open.outbox.slots_in_use() > 0 || open.outbox.has_unsent();
            if waits || open.phase == Phase::Draining || open.finished {
                self.core.mark_dirty(connection);
            }
            self.core.narrow(connection);
            self.core.look_again(connection);
        }
    }

    /// A part of a block is gone: the client reads.
    fn taken(&mut self, socket: SocketId, block_bytes: usize) {
        let look = self.core.timeouts.look();
        let Some(connection) = self.core.connections.find(socket) else { return };
        if let Some(open) = self.core.connections.get_mut(connection) {
            open.active_look = look;
            open.outbox.taken(block_bytes);
        }
    }

    fn close_rejected(&mut self, socket: SocketId) {
        if let Some(place) = self.rejected.iter().position(|turned| *turned == socket) {
            self.rejected.swap_remove(place);
            self.io.close(socket);
        }
    }

    fn accepted(&mut self, socket: SocketId, _peer: Peer) {
        let shards = self.core.shared.options.shards;
        if self.stopping || !self.core.shared.admit() {
            self.core.counters.connections_rejected.add(1);
            let mut block = self.core.pool.take();
            block.put(Reply::TooManyConnections.bytes());
            self.io.send(socket, block);
            self.io.finish_sending(socket);
            self.rejected.push(socket);
            return;
        }
        self.core.counters.connections_opened.add(1);
        let connection = self.open(socket);
        let adopter = self.next_adopter;
        self.next_adopter = (adopter + 1) % shards;
        if adopter != self.core.id {
            self.fresh.push(Fresh { connection, adopter, attempts: 0 });
        }
    }

    /// Hands new connections over to the shards whose turn it is.
    ///
    /// One from which bytes were received already stays: a door in memory may report them with the
    /// connection. A door that does not give a socket up now is asked again in the next ticks.
    fn hand_over(&mut self) {
        let mut fresh = std::mem::take(&mut self.fresh);
        fresh.retain_mut(|fresh| self.hand_one_over(fresh));
        self.fresh = fresh;
    }

    /// `true`: to be tried again in the next tick.
    fn hand_one_over(&mut self, fresh: &mut Fresh) -> bool {
        let room = self.core.has_room(fresh.adopter, 0).is_ok();
        let Some(open) = self.core.connections.get(fresh.connection) else { return false };
        let has_spoken = open.ready.is_some() || open.finished || !open.input.tail.is_empty();
        if self.stopping || has_spoken || !room || fresh.attempts == HAND_OVER_ATTEMPTS_MAX {
            self.io.resume(open.socket);
            return false;
        }
        fresh.attempts += 1;
        let Some(fd) = self.io.give_up(open.socket) else { return true };
        self.core.connections.close(fresh.connection);
        self.core.counters.connections.set(u64::from(self.core.connections.count()));
        self.core.mail.to(fresh.adopter).parcels_out.lay(Parcel::Socket(fd));
        self.core.push_hop(fresh.adopter, Hop::Adopt, ReplyTo::default(), b"");
        false
    }

    fn open(&mut self, socket: SocketId) -> ConnectionIndex {
        self.core.counters.connections.add(1);
        self.core.connections.open(socket, self.core.timeouts.look())
    }
}
impl<I: Io, C: Clock> Shard<I, C> {
    /// The peer has ended its side: what it sent is served, then the connection ends.
    fn finished(&mut self, socket: SocketId) {
        if let Some(connection) = self.core.connections.find(socket) {
            if let Some(open) = self.core.connections.get_mut(connection) {
                open.finished = true;
            }
            self.core.mark_dirty(connection);
        }
    }

    /// Takes up the connections whose requests had to wait and need not any more.
    fn collect_resumable(&mut self) {
        self.core.look_at_mailboxes();
        let mut resumable = std::mem::take(&mut self.core.resumable);
        for connection in resumable.drain(..) {
            let Some(open) = self.core.connections.get_mut(connection) else { continue };
            self.core.counters.resumptions.add(1);
            open.resumable = false;
            if !open.stalled || open.awaits_mail || open.must_wait() {
                continue;
            }
            open.stalled = false;
            open.awaits_answers = false;
            if open.input.waiting_since != 0 {
                // It was not received from meanwhile: its time for the rest begins now.
                open.input.waiting_since = self.core.timeouts.look();
            }
            if !open.input.tail.is_empty() && open.ready.is_none() {
                open.ready = Some(Ready::add(&mut self.ready, connection, None));
            }
            self.core.mark_dirty(connection);
        }
        self.core.resumable = resumable;
    }

    /// Takes over the connections that other shards handed us.
    fn adopt(&mut self) {
        while let Some(fd) = self.adopted.pop() {
            let Some(socket) = self.io.adopt(fd) else {
                self.core.shared.dismiss();
                continue;
            };
            let connection = self.open(socket);
            if self.stopping {
                self.core.drain(connection);
            }
        }
    }

    /// Serves what is ready, then keeps what could not be served yet (I2).
    fn serve(&mut self) {
        for entry in &mut self.ready {
            if entry.lent.is_none() {
                let Some(open) = self.core.connections.get_mut(entry.connection) else { continue };
                entry.tail = Some(u32::try_from(self.taken.len()).expect("fewer than 2^32"));
                entry.tail_bytes = open.input.tail.capacity();
                self.taken.push(std::mem::take(&mut open.input.tail));
            }
        }
        serve(&self.io, &mut self.core, &mut self.ready, &self.taken);
        for place in 0..self.ready.len() {
            self.keep_rest(place);
            self.core.charge_input(self.ready[place].connection);
        }
        self.taken.clear();
    }

    /// Keeps the input that was not served, and sees to the deadline of what it begins with (I2).
    fn keep_rest(&mut self, place: usize) {
        let entry = &self.ready[place];
        let rest_bytes = input_of(&self.io, entry, &self.taken).len() - entry.offset;
        let Some(open) = self.core.connections.get_mut(entry.connection) else { return };
        open.ready = None;
        let mut tail = match entry.tail {
            Some(tail) => std::mem::take(&mut self.taken[tail as usize]),
            None if rest_bytes == 0 => Vec::new(),
            None => self.spare_tails.pop().unwrap_or_default(),
        };
        if entry.tail.is_some() {
            tail.drain(..entry.offset);
        } else if let Some(lent) = entry.lent {
            tail.extend_from_slice(&self.io.lent(lent)[entry.offset..]);
        }
        let in_block = open.uploading || open.input.skip_bytes > 0;
        if entry.offset > 0 && rest_bytes > 0 && !in_block {
            // The first bytes are a request's first: its time begins now, its line is unread.
            open.input.waiting_since = 0;
        }
        if open.stalled {
            // What was found in the part that is served says nothing of the rest.
            open.input.scanned_bytes = 0;
        }
        if rest_bytes == 0 {
            if tail.capacity() > 0
                && tail.capacity() <= KEPT_TAIL_BYTES_MAX
                && self.spare_tails.len() < KEPT_TAILS_MAX
            {
                self.spare_tails.push(tail);
            }
            open.input.tail = Vec::new();
            open.input.scanned_bytes = 0;
            if !in_block {
                open.input.waiting_since = 0;
                open.input.announced_bytes = 0;
            }
        } else {
            if tail.capacity() > KEPT_TAIL_BYTES_MAX.max(TAIL_TIMES_MAX * rest_bytes) {
                tail.shrink_to(KEPT_BYTES_MAX.max(rest_bytes));
            }
            open.input.tail = tail;
        }
        if (rest_bytes > 0 || in_block) && open.input.waiting_since == 0 {
            open.input.waiting_since = self.core.timeouts.look();
        }
        let (socket, stalled, paused) = (open.socket, open.stalled, open.paused);
        open.paused = stalled;
        match (stalled, paused) {
            (true, false) => self.io.pause(socket),
            (false, true) => self.io.resume(socket),
            _ => {}
        }
        let connection = self.ready[place].connection;
        let (finished, uploading) = (open.finished, open.uploading);
        if finished {
            self.core.mark_dirty(connection);
        }
        if uploading {
            landing::offer(&mut self.io, &mut self.core, connection);
        }
    }

    /// Shows other shards what was pushed for them (I3).
    fn publish(&mut self) {
        for mailbox in self.core.mail.boxes.iter_mut().flatten() {
            mailbox.publish();
        }
    }

    /// Hands all that is worded to the kernel, and ends connections that are done.
    fn send(&mut self) {
        while let Some(connection) = self.core.dirty.pop() {
            let Some(open) = self.core.connections.get_mut(connection) else { continue };
            open.dirty = false;
            open.outbox.settle(&mut self.core.pool, &mut self.core.slots);
            if open.outbox.has_unsent() {
                open.outbox.flush(open.socket, &mut self.io);
            }
            if open.paused && !open.stalled {
                open.paused = false;
                self.io.resume(open.socket);
            }
            let served = open.finished && !open.stalled && !open.dumping && open.ready.is_none();
            let over = served || open.phase == Phase::Draining;
            if over && open.outbox.is_empty() {
                self.close(connection);
            } else {
                self.core.narrow(connection);
                self.core.look_again(connection);
            }
        }
    }

    fn close(&mut self, connection: ConnectionIndex) {
        let Some(mut closed) = self.core.connections.close(connection) else { return };
        if let Some(place) = closed.ready {
            // Its input is nobody's now, least of all that of a connection at the same index.
            let entry = &mut self.ready[place as usize];
            (entry.lent, entry.ended) = (None, true);
        }
        let widened = if closed.outbox.is_wide() { WIDENED_BYTES } else { 0 };
        self.core.shared.budget.refund(widened);
        closed.outbox.abandon(&mut self.core.pool, &mut self.core.slots);
        self.core.shared.budget.refund(closed.input.charged_bytes);
        self.core.uploads.forget(connection);
        self.io.close(closed.socket);
        self.core.counters.connections.set(u64::from(self.core.connections.count()));
        self.core.shared.dismiss();
    }

    fn maintain(&mut self) {
        self.upkeep = self.core.cache.maintain(&self.core.now) > 0;
    }

    /// Lets nobody in any more, and says so to the others.
    fn stop_accepting(&mut self) {
        if !std::mem::replace(&mut self.stopping, true) {
            self.core.shared.note_closed();
        }
    }

    /// Once the process is to end: accepts nobody, lets everyone have what they are owed, says when
    /// done.
    fn finish(&mut self) -> Turn {
        if !self.core.shared.is_stopping() {
            return Turn::Again;
        }
        if !self.stopping {
            self.stop_accepting();
            for &listener in &self.listeners {
                self.io.listen_close(listener);
            }
            let open: Vec<ConnectionIndex> = self.core.connections.indices().collect();
            for connection in open {
                self.core.drain(connection);
            }
            return Turn::Again;
        }
        // Clients of other shards may still wait for answers of this one.
        if self.core.shared.is_over() { Turn::Finished } else { Turn::Again }
    }
}

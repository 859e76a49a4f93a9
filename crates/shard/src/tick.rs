//! A shard and its tick: this file is the table of contents of the whole crate.
//!
//! Upstream:   a thread of the process (or a simulation) calls `tick` again and again.
//! Downstream: every stage of the tick, in this order.
//!
//! ```text
//! prepare_wait                          may the poll sleep?
//! complete_tick
//!   receive    poll, read_clock, sort_events   io, arrive, accept
//!   mail       take_mail, step_delayed         mail, delayed
//!   serve      serve                           serve: parse, hash, prefetch, apply, hop
//!   limits     close_late                      late, slowest
//!   accept     adopt                           accept
//!   list       step_listings                   listing
//!   publish    gauges and mailboxes            report, hop
//!   send       send                            send: acknowledge, close
//!   maintain   upkeep of the engine
//! ```
//!
//! Invariants:
//! - I1  Replies leave after the mailboxes are published (`send`, I1).
//! - I2  The clock is read once a tick.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use kachel_engine::{ClockOrigin, Engine, KeyHasher};
use kachel_io::{Clock, Event, Io, Wait};
use kachel_net::{Connection, ConnectionIndex, EndpointIndex};

use crate::accept::{Accepted, Acceptor};
use crate::arrive::Arrivals;
use crate::batch::DECODED_BYTES_MAX;
use crate::clients::Clients;
use crate::context::Context;
use crate::delayed::Delayed;
use crate::hop::{Mail, Mailboxes};
use crate::late::LateClients;
use crate::listing::{Listings, Step};
use crate::mail::{TAKEN_BYTES_MAX, Taking};
use crate::process::Shared;
use crate::report::{Holdings, Report};
use crate::send::Sending;
use crate::serve::Serving;
use crate::upload::{Uploads, Values};
use crate::waiting::resume_for_mail;

/// How long a shard may sleep.
const SLEEP_NS_MAX: u64 = 100_000_000;
/// How long it may sleep while a request waits for room in a mailbox, or for the engine.
const SLEEP_NS_WHILE_WAITING: u64 = 50_000;
/// Events of one poll without an allocation.
const EVENTS_AT_FIRST: usize = 1024;

/// Which shard of which process.
#[derive(Debug)]
pub struct ShardOptions {
    /// Its number.
    pub id: u16,
    /// Computes the hashes of keys: the same one in every shard, and in the engine.
    pub hasher: KeyHasher,
    /// When the process began.
    pub origin: ClockOrigin,
}

/// What a tick says of the shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Call again.
    Again,
    /// The process is to end and this shard owes no client anything any more.
    Finished,
}

/// One core's world: its clients, its engine, and its mailboxes to other shards.
pub struct Shard<I: Io, C: Clock, E: Engine> {
    io: I,
    clock: C,
    context: Context,
    engine: E,
    clients: Clients<E::Pinned>,
    mail: Mail<E>,
    delayed: Delayed<E>,
    uploads: Uploads<E::Upload>,
    listings: Listings,
    arrivals: Arrivals,
    acceptor: Acceptor,
    late: LateClients,
    report: Report,
    /// Memory of each tick: events, records of other shards, keys decoded from base64.
    events: Vec<Event>,
    records: Vec<u8>,
    decoded_keys: Vec<u8>,
    /// Whether upkeep found work in the last tick.
    upkeep: bool,
}

impl<I: Io, C: Clock, E: Engine> Shard<I, C, E> {
    /// A shard over an engine, without clients.
    pub fn new(
        io: I,
        clock: C,
        engine: E,
        options: ShardOptions,
        shared: Arc<Shared>,
        mailboxes: Mailboxes<E>,
    ) -> Self {
        let shards = shared.options.shards;
        assert!(options.id < shards, "a shard is one of those of its process");
        let context = Context {
            id: options.id,
            counters: Arc::clone(&shared.counters[usize::from(options.id)]),
            shared,
            hasher: options.hasher,
            now: options.origin.start(),
            origin: options.origin,
        };
        Self {
            io,
            clock,
            context,
            engine,
            clients: Clients::new(),
            mail: Mail::new(mailboxes),
            delayed: Delayed::new(),
            uploads: Uploads::new(),
            listings: Listings::new(shards),
            arrivals: Arrivals::new(),
            acceptor: Acceptor::default(),
            late: LateClients::new(),
            report: Report::default(),
            events: Vec::with_capacity(EVENTS_AT_FIRST),
            records: Vec::with_capacity(TAKEN_BYTES_MAX),
            decoded_keys: Vec::with_capacity(DECODED_BYTES_MAX),
            upkeep: false,
        }
    }

    /// Accepts clients of an endpoint on a bound socket, from the next tick on.
    pub fn listen(&mut self, socket: OwnedFd, endpoint: EndpointIndex) {
        self.acceptor.listen(&mut self.io, socket, endpoint);
    }

    /// Tells how shard `peer` is woken; called for each before the first tick.
    pub fn set_waker(&mut self, peer: u16, waker: kachel_io::Waker) {
        self.mail.boxes.set_waker(peer, waker);
    }

    /// How other threads wake this shard.
    pub fn waker(&self) -> kachel_io::Waker {
        self.io.waker()
    }

    /// The I/O backend, for tests that hold its other side.
    pub fn io_mut(&mut self) -> &mut I {
        &mut self.io
    }

    /// The engine, for tests that inspect it.
    pub fn engine(&self) -> &E {
        &self.engine
    }

    /// What it holds now. Cost: a read of each connection.
    pub fn holdings(&self) -> Holdings {
        Holdings::of(&self.clients, &self.uploads, &self.delayed, &self.engine.stats())
    }

    /// Connections that it ever closed for what they held pinned.
    pub fn pinned_closes(&self) -> u64 {
        self.late.pinned_closes()
    }

    /// One turn: everything that has come in is served, what is owed goes out.
    ///
    /// Sleeps at most as long as nothing happens. Errors: the kernel refuses to report events at
    /// all.
    pub fn tick(&mut self) -> std::io::Result<Turn> {
        let wait = self.prepare_wait();
        self.complete_tick(wait)
    }

    /// The first half of a tick: how long its poll may wait. A shard that may sleep says so to the
    /// others first, and checks its mail once more.
    ///
    /// Apart from [`Self::complete_tick`] for a simulation, in which time passes between the two.
    pub fn prepare_wait(&mut self) -> Wait {
        let busy = self.upkeep
            || !self.clients.dirty.is_empty()
            || !self.clients.resumable.is_empty()
            || self.acceptor.is_busy()
            || self.late.is_busy()
            || self.listings.may_go_on(&self.context, &self.clients);
        let mail = &mut self.mail;
        let waits = std::mem::take(&mut mail.was_full)
            || mail.boxes.is_waited_for()
            || !self.delayed.is_empty();
        if busy || !mail.boxes.is_empty() {
            return Wait::Now;
        }
        debug_assert!(self.clients.dirty.is_empty(), "a shard that sleeps has sent what it owes");
        mail.boxes.sleeper.prepare_sleep();
        if !mail.boxes.is_empty() {
            Wait::Now
        } else if waits {
            Wait::AtMostNs(SLEEP_NS_WHILE_WAITING)
        } else {
            Wait::AtMostNs(SLEEP_NS_MAX)
        }
    }

    /// The rest of a tick: polls, and does what there is to do.
    ///
    /// Errors: the kernel refuses to report events at all.
    pub fn complete_tick(&mut self, wait: Wait) -> std::io::Result<Turn> {
        self.poll(wait)?;
        self.read_clock();
        self.sort_events();
        let mail = self.take_mail();
        self.step_delayed();
        self.serve();
        self.close_late();
        self.adopt();
        self.step_listings();
        self.publish();
        self.send();
        self.maintain();
        self.context.counters.ticks.add(1);
        self.context.counters.busy_ticks.add(u64::from(mail || !self.arrivals.ready.is_empty()));
        Ok(self.finish())
    }

    fn poll(&mut self, wait: Wait) -> std::io::Result<()> {
        self.events.clear();
        let polled = self.io.poll(wait, &mut self.events);
        self.mail.boxes.sleeper.cancel();
        if polled.is_err() {
            self.acceptor.stop(&self.context);
        }
        polled
    }

    /// Reads the clock (I2), and has the engine note what other shards have flushed.
    fn read_clock(&mut self) {
        let now = self.context.origin.at(self.clock.now_ns());
        let before = std::mem::replace(&mut self.context.now, now).second;
        debug_assert!(before <= now.second, "the monotonic clock does not go back");
        self.engine.note_flush(&now);
        if now.second != before {
            self.late.turn(before, now.second);
        }
    }

    /// Sorts the events: which connections have input, which blocks came back, which came and went.
    fn sort_events(&mut self) {
        self.arrivals.ready.clear();
        let sweep = self.late.sweep();
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            self.sort_event(event, sweep);
        }
        self.events = events;
        let Self { io, context, clients, mail, acceptor, .. } = self;
        acceptor.hand_over(io, context, clients, mail);
        resume_for_mail(context, clients, mail);
        self.arrivals.resume(context, clients, sweep);
    }

    fn sort_event(&mut self, event: Event, sweep: u32) {
        let Self { io, context, clients, arrivals, acceptor, .. } = self;
        match event {
            Event::Received { socket, bytes } => {
                arrivals.received(io, context, clients, socket, bytes, sweep);
            }
            Event::Landed { socket, landing, bytes } => {
                let (io, arrivals, mut values) = self.values();
                arrivals.landed(io, &mut values, socket, landing, bytes, sweep);
            }
            Event::Sent { socket, block } => {
                if let Err(block) = clients.sent(context, socket, block, sweep) {
                    clients.blocks.put_back(block);
                    acceptor.close_rejected(io, socket);
                }
            }
            Event::Taken { socket, block_bytes } => clients.taken(socket, block_bytes, sweep),
            Event::Accepted { socket, listener, .. } => {
                let accepted = Accepted { socket, listener };
                acceptor.accepted(io, context, clients, accepted, sweep);
            }
            // The peer has ended its side: what it sent is served, then the connection ends.
            Event::Finished { socket } => {
                if let Some(connection) = clients.connections.find(socket) {
                    debug_assert!(clients.connections.get(connection).is_some(), "it was found");
                    clients.with(connection, Connection::finish);
                    clients.mark_dirty(connection);
                }
            }
            Event::Failed { socket } => match clients.connections.find(socket) {
                Some(connection) => self.sending().1.close(connection),
                // It was turned away, or this tick has closed it already.
                None => acceptor.close_rejected(io, socket),
            },
            Event::Woken => {}
        }
    }

    /// Takes what other shards have sent. Returns whether anything came.
    fn take_mail(&mut self) -> bool {
        let mail = Taking {
            context: &self.context,
            engine: &mut self.engine,
            clients: &mut self.clients,
            mail: &mut self.mail,
            delayed: &mut self.delayed,
            listings: &mut self.listings,
            report: &mut self.report,
            adopted: &mut self.acceptor.adopted,
            records: &mut self.records,
        }
        .take_all();
        self.uploads.note_mail(mail);
        mail
    }

    /// Applies requests that the engine has delayed and is ready for now.
    fn step_delayed(&mut self) {
        let Self { context, engine, clients, mail, delayed, .. } = self;
        delayed.step(context, engine, clients, mail);
    }

    /// Serves what is ready, then keeps what could not be served yet.
    fn serve(&mut self) {
        self.arrivals.take_tails(&mut self.clients);
        let (ready, inputs) = self.arrivals.inputs(&self.io);
        let mut serving = Serving {
            context: &self.context,
            engine: &mut self.engine,
            clients: &mut self.clients,
            mail: &mut self.mail,
            delayed: &mut self.delayed,
            uploads: &mut self.uploads,
            listings: &mut self.listings,
            report: &mut self.report,
            io_kind: self.io.kind(),
        };
        serving.serve_all(ready, &inputs, &mut self.decoded_keys);
        let sweep = self.late.sweep();
        let (io, arrivals, mut values) = self.values();
        arrivals.keep_rests(io, &mut values, sweep);
    }

    /// Closes the connections whose time is up, and the slowest while too much memory is pinned:
    /// after what has just come in and gone out, because the client has done that in time.
    fn close_late(&mut self) {
        let (late, mut sending) = self.sending();
        late.close(&mut sending);
    }

    /// Takes over the connections that other shards handed us.
    fn adopt(&mut self) {
        let sweep = self.late.sweep();
        self.acceptor.adopt(&mut self.io, &self.context, &mut self.clients, sweep);
    }

    /// Takes listings on by one bounded piece.
    fn step_listings(&mut self) {
        let Self { context, engine, clients, mail, .. } = self;
        self.listings.step(Step { context, engine, clients, mail });
    }

    /// Shows other shards the gauges, and what was pushed for them.
    fn publish(&mut self) {
        self.report.publish(&self.context.counters, &self.engine.stats());
        self.mail.publish();
    }

    /// Hands all that is formatted to the kernel, and ends connections that are done.
    fn send(&mut self) {
        self.sending().1.send_all();
    }

    fn maintain(&mut self) {
        self.upkeep = self.engine.maintain(&self.context.now) > 0;
    }

    /// Once the process is to end: accepts no client, lets every client have what it is owed, says
    /// when done.
    fn finish(&mut self) -> Turn {
        if !self.context.shared.is_stopping() {
            return Turn::Again;
        }
        if self.acceptor.stop(&self.context) {
            self.acceptor.close_listeners(&mut self.io);
            let open: Vec<ConnectionIndex> = self.clients.connections.indices().collect();
            open.into_iter().for_each(|connection| self.clients.drain(connection));
            return Turn::Again;
        }
        // Clients of other shards may still wait for answers of this one.
        debug_assert!(!self.acceptor.is_busy(), "nothing was accepted since it stopped");
        let is_over = self.context.shared.is_over() && self.delayed.is_empty();
        if is_over { Turn::Finished } else { Turn::Again }
    }

    fn sending(&mut self) -> (&mut LateClients, Sending<'_, I, E>) {
        let sending = Sending {
            io: &mut self.io,
            context: &self.context,
            engine: &self.engine,
            clients: &mut self.clients,
            uploads: &mut self.uploads,
            ready: &mut self.arrivals.ready,
        };
        (&mut self.late, sending)
    }

    fn values(&mut self) -> (&mut I, &mut Arrivals, Values<'_, E>) {
        let values = Values {
            context: &self.context,
            engine: &mut self.engine,
            clients: &mut self.clients,
            mail: &mut self.mail,
            delayed: &mut self.delayed,
            uploads: &mut self.uploads,
        };
        (&mut self.io, &mut self.arrivals, values)
    }
}

//! A shard and its tick. A tick is one turn of a shard's loop. It calls all stages of this crate in
//! order, so start reading the crate here.
//!
//! Upstream:   a thread of the process calls `tick` in a loop; a simulation calls the two halves.
//! Downstream: the stages, in this order. The right column names the modules, most in this crate.
//!
//! ```text
//! method            what it does                                   modules
//! prepare_wait      computes how long the poll may sleep
//! complete_tick
//!   poll            receives events from the I/O backend           io
//!   read_clock      reads the clock
//!   sort_events     passes each event on; resumes connections      arrive, accept,
//!                   that waited                                    datagrams, logins
//!   complete        passes completed operations on files to        files
//!                   their engines
//!   take_answers    takes answers to requests that were parked     records
//!   step_backlogs   executes requests that wait with our engines   homes, backlog
//!   adopt           takes over connections of other shards         accept
//!   look_ahead      chooses connections that leave before they     balance, policy
//!                   are served, if they would wait too long
//!   serve           parses, hashes, prefetches, applies, parks     serve
//!   close_late      closes clients that are too slow               late, slowest
//!   step_listings   executes one step of one listing               listing
//!   send_lines      hands on the log; sends it to watchers         log, watching
//!   exchange        wakes the cores that wait for our answers;     mailboxes, records
//!                   takes the answers that have come meanwhile
//!   send            sends replies, closes connections              send, datagrams
//!   maintain        has our engines do upkeep                      homes
//!   crawl           reclaims space of dead items, if asked;        crawl, prefixes
//!                   counts items by prefix, if observed
//!   forget_gone     has reads of clients that have left forgotten  records
//!   submit          submits operations on files                    files
//!   balance         chooses connections for other cores            balance, policy
//!   finish          ends the shard when the process stops
//! ```
//!
//! Invariants:
//! - I1  A reply is sent after its change is visible to other cores, and counted (`send`, I1).
//! - I2  All stages of a tick use one reading of the clock, made after the poll. Other readings
//!   only measure how long a tick and a hold take (`work`).
//! - I3  Where any core may change any engine, core 0 is the timekeeper: once a second it checks
//!   whether upkeep is due in the engines of other cores. These cores sleep until something
//!   happens, unless one of their clients may exceed a time limit.
//! - I4  Upkeep becomes due because the engines work (`work`), or because a second begins. What
//!   becomes due otherwise, as the space of a deleted item, waits until the next second, or for a
//!   tick in which nothing is served.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use kachel_engine::{ClockOrigin, Common, Engine, KeyHasher};
use kachel_io::{Clock, Event, Files, Io, Wait};
use kachel_net::{CloseReason, Connection, ConnectionIndex, CoreIndex, EndpointIndex};
use kachel_observe::{Log, Sizes};

use crate::clients::Clients;
use crate::connections::accept::{Accepted, Acceptor};
use crate::connections::arrive::Arrivals;
use crate::connections::balance::Balance;
use crate::connections::datagrams::{Arrived, Datagrams};
use crate::connections::late::LateClients;
use crate::connections::send::Sending;
use crate::context::Context;
use crate::control::crawl::Crawling;
use crate::control::prefixes::PrefixWalking;
use crate::cores::process::Shared;
use crate::cores::work::WorkMeter;
use crate::large::upload::{Uploads, Values};
use crate::listings::listing::{Listings, Step};
use crate::request::batch::DECODED_BYTES_MAX;
use crate::serve::beside::Core;
use crate::serve::copying::count_answered;
use crate::serve::serving::Serving;
use crate::sleep::Resting;
use crate::stats::holdings::Holdings;
use crate::waiting::engines::Engines;
use crate::waiting::files::{self, Completed, FileEngine};
use crate::waiting::homes::{HomeEngines, Upkeep, maintain_others};
use crate::waiting::records::Records;

/// One poll can report this many events before the list of events must grow.
const EVENTS_AT_FIRST: usize = 1024;

/// The options of one shard.
#[derive(Debug)]
pub struct ShardOptions {
    /// The core of the shard.
    pub core: CoreIndex,
    /// Computes the hashes of keys. All shards and their engines use the same hasher.
    pub hasher: KeyHasher,
    /// The time at which the process began.
    pub origin: ClockOrigin,
}

/// What the caller must do after a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterTick {
    /// Call `tick` again.
    Again,
    /// Stop calling: the process stops, and no client of any shard still waits for a reply.
    Finished,
}

/// One shard: its clients, and the core that serves them.
pub struct Shard<I: Io, C: Clock, E: Engine> {
    io: I,
    clock: Rc<C>,
    context: Context,
    engines: Arc<Engines<E>>,
    clients: Clients<E::Pinned>,
    records: Records<E>,
    homes: HomeEngines,
    uploads: Uploads<E::Upload>,
    listings: Listings,
    crawling: Crawling,
    walking: PrefixWalking,
    arrivals: Arrivals,
    acceptor: Acceptor,
    datagrams: Datagrams,
    late: LateClients,
    balance: Balance,
    core: Core,
    /// The events of one poll. Each tick reuses the memory.
    events: Vec<Event>,
    /// Operations on files that the last poll has brought. Each tick reuses the memory.
    completed: Completed,
    /// Keys that are decoded from base64. Each tick reuses the memory.
    decoded_keys: Vec<u8>,
    /// The time of the last tick, in nanoseconds and in seconds.
    now_ns: u64,
    second: u32,
    /// Whether a second has begun in which this core has done no upkeep yet (I3, I4).
    is_new_second: bool,
    /// The items that copies had answered with when they were last counted.
    answered_by_copies: u64,
}

impl<I: Files, C: Clock + 'static, E: FileEngine> Shard<I, C, E> {
    /// Makes a shard without clients. The calling thread must be the one that runs it.
    pub fn new(
        io: I,
        clock: C,
        engines: Arc<Engines<E>>,
        options: ShardOptions,
        shared: Arc<Shared>,
    ) -> Self {
        let ShardOptions { core, hasher, origin } = options;
        assert!(core.0 < shared.options.shards, "a core is one of those of its process");
        let reader = engines.common().register_core();
        let reader = reader.expect("the engines have a place for each core");
        let sizes = Sizes::new(engines.common());
        let log = Log::new(shared.options.plain.log_bytes_max, engines.last_dead().to_vec());
        let clock = Rc::new(clock);
        let evicts = engines.common().options().evict;
        let make_model = if evicts { <E::Common as Common>::miss_model } else { || None };
        shared.observers.begin_shard(hasher, make_model, clock.now_ns(), |every| {
            engines.common().draw_evictions(every);
        });
        let work = WorkMeter::new(Rc::<C>::clone(&clock));
        let context = Context::new(core, shared, hasher, origin, reader.place(), sizes, log, work);
        let balance = Balance::new(&context);
        let listings = Listings::new(&context);
        engines.mailboxes().set_waker(core, io.waker());
        // The engine of a warm restart has items from the start.
        for &index in context.home_engines() {
            let counters = &context.shared.totals.engines[index.number()];
            engines.inspect(index, |engine| counters.publish(&engine.stats()));
        }
        let homes = HomeEngines::new(&context);
        Self {
            io,
            clock,
            context,
            engines,
            clients: Clients::new(),
            records: Records::new(),
            homes,
            uploads: Uploads::new(),
            listings,
            crawling: Crawling::default(),
            walking: PrefixWalking::default(),
            arrivals: Arrivals::new(),
            acceptor: Acceptor::default(),
            datagrams: Datagrams::default(),
            late: LateClients::new(),
            balance,
            core: Core::new(reader),
            events: Vec::with_capacity(EVENTS_AT_FIRST),
            completed: Completed::new(),
            decoded_keys: Vec::with_capacity(DECODED_BYTES_MAX),
            now_ns: 0,
            second: origin.start().second,
            is_new_second: false,
            answered_by_copies: 0,
        }
    }

    /// Listens on `socket`, which must be bound. From the next tick on, the shard accepts clients
    /// there, as clients of `endpoint`.
    pub fn listen(&mut self, socket: OwnedFd, endpoint: EndpointIndex) {
        self.acceptor.listen(&mut self.io, socket, endpoint);
    }

    /// Receives requests over UDP on `socket`, which must be bound, as requests of `endpoint`.
    pub fn receive_datagrams(&mut self, socket: OwnedFd, endpoint: EndpointIndex) {
        self.datagrams.listen(&mut self.io, socket, endpoint);
    }

    /// Returns the waker by which other threads wake this shard.
    pub fn waker(&self) -> kachel_io::Waker {
        self.io.waker()
    }

    /// The I/O backend, for tests that act as its clients.
    pub fn io_mut(&mut self) -> &mut I {
        &mut self.io
    }

    /// Counts what the shard holds now, with the engines whose home is its core. Cost: a read of
    /// each connection. Waits until no core holds the engines.
    pub fn holdings(&self) -> Holdings {
        let mut holdings = Holdings::of_clients::<E>(&self.clients, &self.uploads);
        for &index in self.context.home_engines() {
            let delayed = self.engines.delayed_count(index);
            holdings.add_engine(delayed, &self.engines.inspect(index, E::stats));
        }
        holdings
    }

    /// The number of connections that this shard has closed because their clients read large values
    /// slowly while too much memory was pinned.
    pub fn pinned_closes(&self) -> u64 {
        self.late.pinned_closes()
    }

    /// Runs one tick: serves the requests that have arrived, and sends the replies that are ready.
    ///
    /// If there is nothing to do, sleeps until an event arrives or another core wakes it, and no
    /// longer than `sleep` allows: until the deadline of a home engine or the turn of a login, for
    /// 100 ms while a client may be late, or for a second if this core is the timekeeper.
    ///
    /// Errors: the I/O backend cannot report events any more.
    pub fn tick(&mut self) -> std::io::Result<AfterTick> {
        let wait = self.prepare_wait();
        self.complete_tick(wait)
    }

    /// Runs the first half of a tick. Returns how long the poll may wait.
    ///
    /// If the shard may sleep, it first raises its sleeping flag, so that other cores wake it. Then
    /// it checks again whether other cores have brought or left anything before that.
    ///
    /// This is a function of its own for the simulation, in which time passes between the two
    /// halves.
    pub fn prepare_wait(&mut self) -> Wait {
        self.engines.mailboxes().wake_noted(&self.context); // Noted since `exchange`.
        let Self { context, engines, clients, homes, late, records, walking, .. } = &*self;
        let resting = Resting { context, engines, clients, homes, late, records, walking };
        if self.is_busy() || resting.has_visitors() {
            return Wait::Now;
        }
        debug_assert!(clients.dirty.is_empty(), "a shard that sleeps has sent what it owes");
        engines.mailboxes().sleeper(context.core).prepare_sleep();
        let is_called = self.crawling.is_called(context)
            || walking.is_called(context)
            || self.listings.await_engines(context, engines)
            || resting.await_fences();
        if is_called || resting.has_mail() { Wait::Now } else { resting.longest_sleep() }
    }

    /// Whether this core has left something to do for this tick.
    #[inline]
    fn is_busy(&self) -> bool {
        self.homes.upkeep == Upkeep::Due
            || self.homes.is_left
            || !self.clients.dirty.is_empty()
            || !self.clients.resumable.is_empty()
            || !self.clients.gone.is_empty()
            || !self.clients.run_queue.is_empty()
            || self.records.may_resume()
            || self.records.are_asked()
            || self.context.has_outgoing.get()
            || self.acceptor.is_busy()
            || self.late.is_busy()
            || self.listings.may_go_on(&self.context, &self.engines, &self.clients)
            || self.crawling.is_busy()
            || self.walking.is_busy()
            || self.context.log.is_on() && self.has_lines()
    }

    /// Runs the second half of a tick: polls, then calls the stages.
    ///
    /// Errors: the I/O backend cannot report events any more.
    pub fn complete_tick(&mut self, wait: Wait) -> std::io::Result<AfterTick> {
        self.poll(wait)?;
        self.read_clock();
        self.sort_events();
        files::complete(&self.context, &self.engines, &mut self.records, &mut self.completed);
        let came = self.take_answers() | self.step_backlogs();
        self.uploads.note_mail(came);
        self.adopt();
        self.look_ahead();
        self.serve();
        let has_served = came || !self.arrivals.ready.is_empty();
        self.close_late();
        self.step_listings();
        self.send_lines();
        self.exchange();
        self.send();
        self.maintain(has_served);
        self.crawl(has_served);
        self.records.forget_gone(&self.context, &self.engines, &mut self.clients);
        files::submit(&mut self.io, &self.context, &self.engines);
        self.balance();
        self.context.work.end_tick(self.now_ns, &self.context.counters);
        self.context.counters.ticks.add(1);
        self.context.counters.busy_ticks.add(u64::from(has_served));
        Ok(self.finish())
    }

    fn poll(&mut self, wait: Wait) -> std::io::Result<()> {
        self.events.clear();
        debug_assert!(!self.context.has_outgoing.get(), "files, S2");
        let polled = self.io.poll(wait, &mut self.events);
        self.engines.mailboxes().sleeper(self.context.core).cancel();
        self.context.file_room.set(self.io.file_room());
        if polled.is_err() {
            self.acceptor.stop();
            self.acceptor.close(&self.context);
        }
        polled
    }

    /// Reads the clock (I2). If a new second has begun, `late` takes note of it.
    fn read_clock(&mut self) {
        self.now_ns = self.clock.now_ns();
        self.context.set_clock(self.now_ns);
        self.context.work.begin_tick(self.now_ns);
        self.context.begin_sample();
        let now = self.context.now().second;
        let before = std::mem::replace(&mut self.second, now);
        debug_assert!(before <= now, "time does not go back");
        if now != before {
            self.late.turn(before, now);
            self.records.trim(&self.context, now);
            self.is_new_second = true;
        }
    }

    /// Passes each event on: input makes a connection ready, sent blocks are taken back,
    /// connections begin and end. Then resumes connections that waited.
    fn sort_events(&mut self) {
        self.arrivals.ready.clear();
        if !self.events.is_empty() {
            self.late.note_event();
        }
        let sweep = self.late.sweep();
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            self.sort_event(event, sweep);
        }
        self.events = events;
        let Self { io, context, engines, clients, records, arrivals, acceptor, .. } = self;
        if acceptor.is_busy() {
            acceptor.hand_over(io, context, clients, engines.mailboxes(), arrivals, sweep);
        }
        records.resume(clients);
        if clients.next_login_ns(context) <= context.now_ns() {
            clients.resume_logins(context);
        }
        arrivals.resume(context, clients, sweep);
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
            Event::Accepted { socket, listener, peer } => {
                let accepted = Accepted { socket, listener, peer };
                acceptor.accepted(io, context, clients, accepted, sweep);
            }
            // As in memcached, each connection counts, also that of a health check which resets it.
            Event::Gone => context.counters.connections_opened.add(1),
            // The peer sends nothing more. The shard serves what the peer sent before, sends the
            // replies, and closes the connection.
            Event::Finished { socket } => {
                if let Some(connection) = clients.connections.find(socket) {
                    debug_assert!(clients.connections.get(connection).is_some(), "it was found");
                    clients.with(connection, Connection::finish);
                    clients.mark_dirty(connection);
                }
            }
            Event::Failed { socket } => match clients.connections.find(socket) {
                Some(connection) => self.sending().1.close(connection, CloseReason::Error),
                // The socket was rejected, or this tick has closed its connection already.
                None => acceptor.close_rejected(io, socket),
            },
            Event::Datagram { from, bytes, is_cut } => {
                let arrived = Arrived { from, bytes, is_cut };
                self.datagrams.arrived(io, context, clients, arrivals, arrived, sweep);
            }
            Event::DatagramsLost { count } => context.counters.udp_lost.add(count),
            Event::FileDone { operation } => self.completed.push(operation),
            Event::DirectIoRefused { refusal } => {
                if let Some(tell) = context.shared.options.tell_direct_io_refused {
                    tell(&refusal);
                }
            }
            Event::Woken => {}
        }
    }

    /// Takes the answers to requests that were parked. Returns whether another core has brought
    /// anything.
    fn take_answers(&mut self) -> bool {
        let came = !self.engines.mailboxes().is_empty(self.context.core);
        if came {
            self.late.note_event();
            self.deliver_answers();
        }
        came
    }

    fn deliver_answers(&mut self) {
        let Self { context, engines, clients, records, listings, uploads, .. } = self;
        records.take_answers(
            context,
            engines.mailboxes(),
            clients,
            |from, text, ended| listings.went_on(context, from, text, ended),
            |client| uploads.room_was_refused(client),
        );
    }

    /// Executes the requests that wait with the engines whose home is this core. Returns whether
    /// there were any.
    fn step_backlogs(&mut self) -> bool {
        let executed = self.homes.step_backlogs(&self.context, &self.engines);
        if executed {
            self.late.note_event();
        }
        executed
    }

    /// Serves the input of the ready connections, then keeps the input that cannot be served yet.
    fn serve(&mut self) {
        let sweep = self.late.sweep();
        self.arrivals.take_turns(&self.context, &mut self.clients, sweep);
        self.arrivals.take_tails(&mut self.clients);
        let (ready, turns_from, inputs) = self.arrivals.inputs(&self.io);
        let mut serving = Serving {
            context: &self.context,
            engines: &self.engines,
            clients: &mut self.clients,
            records: &mut self.records,
            uploads: &mut self.uploads,
            listings: &mut self.listings,
            core: &mut self.core,
            io_kind: self.io.kind(),
            sweep,
        };
        serving.serve_all(ready, turns_from, &inputs, &mut self.decoded_keys);
        let (io, arrivals, mut values) = self.values();
        arrivals.keep_rests(io, &mut values, sweep);
    }

    /// Closes the connections that have exceeded a time limit, and the slowest one while too much
    /// memory is pinned.
    ///
    /// This runs after `sort_events` and `serve`, so that what a client has sent or read until this
    /// tick counts as in time.
    fn close_late(&mut self) {
        let (late, mut sending) = self.sending();
        late.close(&mut sending);
    }

    /// Takes over the connections that other shards have handed to this shard.
    fn adopt(&mut self) {
        let Self { io, context, engines, clients, arrivals, acceptor, late, .. } = self;
        if acceptor.adopt(io, context, clients, engines.mailboxes(), arrivals, late.sweep()) {
            late.note_event();
        }
    }

    /// Continues the listings by one bounded piece, for all of them together.
    fn step_listings(&mut self) {
        let sweep = self.late.sweep();
        let Self { io, context, engines, clients, records, homes, .. } = self;
        let names = &mut |socket| io.name(socket);
        self.listings.step(Step { context, engines, clients, records, homes, names, sweep });
    }

    /// Whether this core has written lines of the log, or can send some to a client.
    #[cold]
    fn has_lines(&self) -> bool {
        self.context.log.has_lines() || self.clients.may_get_lines()
    }

    /// Hands on the lines of the log that this core has written, and sends the lines that have come
    /// to the clients that watch. Cost: a load, if nobody watches: then there are no lines, and no
    /// client of this core waits for any.
    #[inline]
    fn send_lines(&mut self) {
        if self.context.log.is_on() {
            self.send_some_lines();
        }
    }

    #[cold]
    fn send_some_lines(&mut self) {
        let Context { core: own, log, shared, counters, .. } = &self.context;
        if log.has_lines() {
            log.hand_on(&shared.watchers, counters, |core| {
                if core != *own {
                    self.context.note_wake(core);
                }
            });
        }
        debug_assert!(!self.clients.may_get_lines() || self.context.log.is_on(), "it is watched");
        self.clients.send_lines(&self.context);
    }

    /// Wakes the cores that wait for what this one has done, and takes the answers that have come
    /// since the tick began: with them are those to requests that this core itself has executed
    /// when it released an engine.
    fn exchange(&mut self) {
        self.engines.mailboxes().wake_noted(&self.context);
        self.deliver_answers();
        self.clients.answer_refreshed(&self.context);
    }

    /// Gives all formatted replies to the I/O backend, and closes connections that are done (I1).
    fn send(&mut self) {
        let Self { engines, clients, .. } = self;
        clients.lift_fences(|fence| engines.is_reached(fence) || engines.is_lost(fence));
        self.sending().1.send_all();
        let Self { io, context, engines, clients, .. } = self;
        let (is_reached, is_lost) =
            (|fence| engines.is_reached(fence), |fence| engines.is_lost(fence));
        self.datagrams.send(io, context, clients, is_reached, is_lost);
    }

    /// Has the engines whose home is this core do a step of upkeep; once a second also the others,
    /// if this core is the timekeeper (I3). A tick that has only read does none, unless some was
    /// due before or a second has begun (I4).
    #[inline]
    fn maintain(&mut self, has_served: bool) {
        let has_only_read = has_served && !self.context.work.has_worked();
        let is_new_second = std::mem::take(&mut self.is_new_second);
        let is_overdrawn = self.context.shared.budget.overdrawn_bytes() > 0;
        if is_new_second || !has_only_read || is_overdrawn || self.homes.upkeep != Upkeep::Nothing {
            self.homes.maintain(&self.context, &self.engines);
        }
        if is_new_second && self.context.core == CoreIndex(0) {
            count_answered(&self.context, &mut self.answered_by_copies);
            if self.engines.are_open_to_all() {
                maintain_others(&self.context, &self.engines);
            }
        }
    }

    /// Continues the run of the crawler, if there is one, and the walk that counts items by prefix.
    #[inline]
    fn crawl(&mut self, has_served: bool) {
        let Self { context, engines, crawling, walking, .. } = self;
        walking.step(context, engines, has_served);
        if crawling.is_busy() || crawling.is_called(context) {
            crawling.step(context, engines);
        }
    }

    /// If more input is ready than this core can serve soon, has other cores serve a part of it.
    fn look_ahead(&mut self) {
        let Self { io, context, now_ns, clients, arrivals, acceptor, balance, .. } = self;
        let may_move = !context.shared.cores.are_fixed() && !acceptor.has_stopped();
        if may_move && balance.look_ahead(context, *now_ns, arrivals) {
            let leave = |leaving, core| acceptor.leave(io, leaving, core, true);
            balance.choose_ahead(clients, arrivals, leave);
        }
    }

    /// Chooses the connections that other cores serve from now on.
    fn balance(&mut self) {
        let Self { io, context, clock, now_ns, clients, arrivals, acceptor, .. } = self;
        let Self { balance, walking, .. } = self;
        if context.shared.cores.are_fixed() || acceptor.has_stopped() {
            return;
        }
        balance.sample(context, &**clock, *now_ns, walking.alone_ns());
        balance.choose(clients, arrivals, |leaving, core| acceptor.leave(io, leaving, core, false));
    }

    /// Ends the shard once the process stops. The first call stops accepting clients; each client
    /// then still gets the replies that it is owed, and each rejected client its line. Returns
    /// `Finished` when no shard has a client and this shard has no rejected socket.
    fn finish(&mut self) -> AfterTick {
        if !self.context.shared.is_stopping() {
            return AfterTick::Again;
        }
        let begins = self.acceptor.stop();
        if begins {
            self.acceptor.close_listeners(&mut self.io);
            self.datagrams.close(&mut self.io);
            let open: Vec<ConnectionIndex> = self.clients.connections.indices().collect();
            open.into_iter()
                .for_each(|connection| self.clients.drain(connection, CloseReason::Shutdown));
        }
        if self.clients.exchanges.is_empty() {
            self.acceptor.close(&self.context); // datagrams, I5
        }
        if begins {
            return AfterTick::Again;
        }
        if self.context.shared.are_clients_given_up() {
            self.give_up_clients();
        }
        debug_assert!(!self.acceptor.is_busy(), "no client arrives or moves since it stopped");
        // This shard goes on until no shard has a client, because clients of other shards may still
        // wait for its answers. A client that was given up may have left requests. They are looked
        // for once no client is left that could send more, and their answers are awaited.
        let is_over = self.context.shared.is_over()
            && !self.acceptor.has_rejected()
            && self.homes.are_idle(&self.engines)
            && !self.records.are_away()
            && !self.records.are_asked()
            && self.engines.mailboxes().is_empty(self.context.core)
            && !self.context.has_files_in_flight() // files, S4
            && !self.context.has_outgoing.get();
        if is_over { AfterTick::Finished } else { AfterTick::Again }
    }

    /// Closes the clients that have not taken their replies. Notes whether one was owed any.
    fn give_up_clients(&mut self) {
        debug_assert!(self.acceptor.has_stopped(), "they had time, or the operator cannot wait");
        let open: Vec<ConnectionIndex> = self.clients.connections.indices().collect();
        for one in open {
            // What the kernel has taken is sent.
            let open = self.clients.connections.get(one);
            if open.is_some_and(|open| !open.outbox().is_empty()) {
                self.context.shared.note_replies_lost();
            }
            self.sending().1.close(one, CloseReason::Shutdown);
        }
        self.acceptor.give_up_rejected(&mut self.io);
    }

    fn sending(&mut self) -> (&mut LateClients, Sending<'_, I, E>) {
        let sending = Sending {
            io: &mut self.io,
            context: &self.context,
            engines: &self.engines,
            clients: &mut self.clients,
            uploads: &mut self.uploads,
            ready: &mut self.arrivals.ready,
        };
        (&mut self.late, sending)
    }

    fn values(&mut self) -> (&mut I, &mut Arrivals, Values<'_, E>) {
        let values = Values {
            context: &self.context,
            engines: &self.engines,
            clients: &mut self.clients,
            records: &mut self.records,
            uploads: &mut self.uploads,
        };
        (&mut self.io, &mut self.arrivals, values)
    }
}

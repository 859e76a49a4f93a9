//! The records of a core: it fills one for each request that it parks, and delivers the answer when
//! the record comes back.
//!
//! Upstream:   `carry_out`, `upload` and `listing`, with requests that this core does not execute
//!             now; `send`, with the slots of clients that have left.
//! Downstream: `entered` parks the record; `clients` gets its answer.
//!
//! Invariants:
//! - R1  The records of a core that are in use, with their texts, take at most the core's part of
//!   `1 / WAITING_PART` of `-m`, or `WAITING_BYTES_MIN`, and all of them are charged (`buffers`,
//!   B1). A request that would exceed either waits in its connection, except that a core without a
//!   record in use always gets one. A request that finds none starts a count: when half as
//!   many records have come back as were in use then, the connections that have waited longest are
//!   served again. Requests that find none meanwhile do not start it anew.
//! - R2  A core keeps its records. So it allocates only when it has more requests parked than
//!   before. It frees those that it has not used for `KEPT_SECONDS`.
//! - R3  The answer of each record is delivered, in every state of its connection.
//! - R4  While a read of a client is parked, `reads` has its engine and the hash of its key, by
//!   its reply slot. So the read can be forgotten when the client has left (`waiters`, W3). The
//!   slot is held until the engine has forgotten the read, so no later request has this slot and is
//!   taken for the read.
//! - R5  A request of another connection may take a record before those that wait, but it leaves
//!   room for the request that has waited longest, and for all that are served again in this tick.
//!   A connection that is served again and finds no record keeps its place. So the request that has
//!   waited longest fits at the latest when all records have come back that were in use when it
//!   became the first, however large it is and however many small requests come meanwhile.

use std::collections::VecDeque;

use kachel_engine::{Engine, EngineIndex, Key};
use kachel_net::{AnswerRoom, ClientIndex, CoreIndex, SlotIndex};
use kachel_stdx::{Chain, Work};

use crate::clients::{Answered, Clients};
use crate::context::{Context, NO_ENGINE};
use crate::cores::buffers::{TEXT_BYTES_MAX, buffer_bytes};
use crate::cores::spares::Spares;
use crate::request::form::Ended;
use crate::waiting::engines::Engines;
use crate::waiting::held::HeldEngines;
use crate::waiting::mailboxes::Mailboxes;
use crate::waiting::parked::{Ask, Brought, Executor, Parked, TEXT_BYTES_OWN, place_in};
use crate::waiting::waiters::WAITER_BYTES;

/// All requests that wait take at most this part of `-m` (R1). A guess: the rest is for items.
const WAITING_PART: u64 = 8;
/// The memory that the waiting requests of a core may take in any case, also with a small `-m`.
const WAITING_BYTES_MIN: usize = 64 * 1024;
/// The most connections that are resumed in a tick because records have come back. Each of these
/// connections may need many records.
const RESUMED_MAX: usize = 64;
/// The most reads of clients that have left which a core has forgotten in a tick, and the most
/// slots of such clients at which it looks.
const FORGOTTEN_PER_TICK_MAX: usize = 256;
const LOOKED_PER_TICK_MAX: usize = 4096;
/// The most records that a core frees in a second, so that a tick stays short.
const FREED_PER_SECOND_MAX: usize = 4096;
/// Records and buffers are freed after this many seconds without a use (R2).
pub(crate) const KEPT_SECONDS: u32 = 60;
/// Entries of `reads` that are kept when no request is parked any more: 64 KiB.
const KEPT_READS_MAX: usize = 4096;

/// There is no record for a request now. Nothing was done, and its connection must wait.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(crate) struct NoRecord {
    /// The memory that the request needs while it is parked.
    bytes: usize,
}

/// A connection that waits for a record, and the memory that its next request needs.
#[derive(Clone, Copy, Debug)]
struct WaitingClient {
    client: ClientIndex,
    bytes: usize,
}

/// A request that is about to be parked.
#[derive(Clone, Copy)]
pub(crate) struct Outgoing<'a> {
    pub(crate) ask: Ask,
    pub(crate) text: &'a [u8],
    /// The key that the request is about, if it is about one.
    pub(crate) key: Option<Key<'a>>,
    /// Whether the value is read for the reply.
    pub(crate) reads_value: bool,
    /// Whether the request changes nothing, so that it may be forgotten (R4).
    pub(crate) is_read: bool,
    /// The room to keep for its answer.
    pub(crate) room: AnswerRoom,
}

impl<'a> Outgoing<'a> {
    /// A request that is about no key.
    pub(crate) fn without_key(ask: Ask, text: &'a [u8]) -> Self {
        let room = AnswerRoom::default();
        Self { ask, text, key: None, reads_value: false, is_read: false, room }
    }
}

/// A read that is parked.
#[derive(Clone, Copy, Debug)]
struct ParkedRead {
    key_hash: u64,
    /// [`NO_ENGINE`] if no read is parked. An `Option` would be larger.
    engine: EngineIndex,
}

impl ParkedRead {
    const NONE: Self = Self { key_hash: 0, engine: NO_ENGINE };
}

/// The records of one core.
pub(crate) struct Records<E: Engine> {
    /// Records that are not in use.
    spare: Spares<Work<Parked<E>>>,
    /// The number of records that are in use, and the bytes of the buffers of their texts.
    away: usize,
    text_bytes: usize,
    /// Connections that wait for a record, the one that has waited longest first (R5).
    waiting: VecDeque<WaitingClient>,
    /// How many of the first of these were resumed, and may not have been served yet.
    resumed: usize,
    /// The number of records that come back before the first ones are resumed (R1).
    returns_left: usize,
    /// Pieces of what this core has, for listings of other cores. The oldest comes first.
    asked: Chain<Parked<E>>,
    /// By reply slot (R4).
    reads: Vec<ParkedRead>,
    /// The second in which the period of `trim` began.
    trimmed: u32,
}

impl<E: Engine> Records<E> {
    /// The memory of a record in bytes, with its place in `spare` and its entries in the tables of
    /// the engine (`waiters`).
    const RECORD_BYTES: usize =
        Work::<Parked<E>>::BYTES + size_of::<Work<Parked<E>>>() + WAITER_BYTES;

    /// The records of a core. None is allocated yet.
    pub(crate) const fn new() -> Self {
        Self {
            spare: Spares::new(),
            away: 0,
            text_bytes: 0,
            waiting: VecDeque::new(),
            resumed: 0,
            returns_left: 0,
            asked: Chain::new(),
            reads: Vec::new(),
            trimmed: 0,
        }
    }

    /// Adds a connection to those that wait for a record. One that was resumed keeps its place.
    pub(crate) fn wait(&mut self, client: ClientIndex, NoRecord { bytes }: NoRecord) {
        debug_assert!(self.away > 0, "R1: a record comes back");
        let waiting = WaitingClient { client, bytes };
        match self.place_of_resumed(client) {
            Some(place) => self.waiting[place] = waiting, // R5
            None => self.waiting.push_back(waiting),
        }
        if self.returns_left == 0 {
            self.returns_left = self.away.div_ceil(2);
        }
    }

    fn place_of_resumed(&self, client: ClientIndex) -> Option<usize> {
        self.waiting.range(..self.resumed).position(|resumed| resumed.client == client)
    }

    /// Whether the records in use may take `bytes` more for a request of this client (R1, R5).
    #[inline]
    fn may_take(&self, context: &Context, client: ClientIndex, bytes: usize) -> bool {
        let bytes = self.away * Self::RECORD_BYTES + self.text_bytes + bytes;
        bytes <= WAITING_BYTES_MIN && self.waiting.is_empty()
            || self.may_take_more(context, client, bytes)
    }

    /// Whether the records in use may take `bytes` in all. Cost: a load and a division, and a step
    /// for each connection that was resumed.
    #[inline(never)]
    fn may_take_more(&self, context: &Context, client: ClientIndex, bytes: usize) -> bool {
        const { assert!(Self::RECORD_BYTES + TEXT_BYTES_MAX <= WAITING_BYTES_MIN, "R5: any fits") };
        let part = context.shared.budget.limit_bytes() / WAITING_PART / u64::from(context.cores());
        let bytes_max = usize::try_from(part).unwrap_or(usize::MAX).max(WAITING_BYTES_MIN);
        let others = self.resumed.max(1).min(self.waiting.len());
        let before = self.waiting.range(..self.place_of_resumed(client).unwrap_or(others));
        let left_free: usize = before.map(|waiting| waiting.bytes).sum();
        self.away == 0 || bytes + left_free <= bytes_max
    }

    /// A record that is not in use. Cost: an allocation, if there is none (R2).
    #[inline]
    fn take(&mut self, context: &Context) -> Option<Work<Parked<E>>> {
        self.spare.take().or_else(|| self.make(context))
    }

    /// Makes a record, if there is memory for it.
    #[cold]
    fn make(&self, context: &Context) -> Option<Work<Parked<E>>> {
        if self.away == 0 {
            return Some(Self::make_ahead(context));
        }
        let is_charged = context.shared.waiting.charge(Self::RECORD_BYTES);
        is_charged.then(|| Work::new(Parked::new()))
    }

    /// Makes a record, whether there is memory for it or not.
    fn make_ahead(context: &Context) -> Work<Parked<E>> {
        context.shared.waiting.charge_ahead(Self::RECORD_BYTES);
        Work::new(Parked::new())
    }

    fn put_back(&mut self, context: &Context, mut work: Work<Parked<E>>) {
        debug_assert!(self.away > 0, "what comes back was away");
        self.away -= 1;
        if let Some(text) = work.take_buffer() {
            self.text_bytes -= text.capacity();
            context.give_buffer(text);
        }
        context.give_buffer(std::mem::take(&mut work.answer.text));
        self.spare.give(work);
    }

    /// Fills a record with a request of a connection to an executor, and keeps a reply slot and
    /// room for its answer.
    ///
    /// A request without a reply has an answer as well, which is empty. So a client that gets a
    /// later reply knows that all its earlier requests were executed.
    ///
    /// Errors: there is no record, and nothing was done.
    pub(crate) fn prepare(
        &mut self,
        context: &Context,
        clients: &mut Clients<E::Pinned>,
        connection: ClientIndex,
        executor: Executor,
        outgoing: Outgoing<'_>,
    ) -> Result<Work<Parked<E>>, NoRecord> {
        let Outgoing { ask, text, key, reads_value, is_read, room } = outgoing;
        let place = key.and_then(|key| place_in(text, key.bytes()));
        let bytes = match (&key, place) {
            (Some(outside), None) => text.len() + outside.bytes().len(),
            _ => text.len(),
        };
        let text_bytes = if bytes > TEXT_BYTES_OWN { buffer_bytes(bytes) } else { 0 };
        let none = NoRecord { bytes: Self::RECORD_BYTES + text_bytes };
        if !self.may_take(context, connection, none.bytes) {
            return Err(none);
        }
        let mut work = self.take(context).ok_or(none)?;
        work.asked = context.tick_in_wait_units();
        if text_bytes > 0 {
            let Some(buffer) = context.text_buffer(bytes, self.away == 0) else {
                self.spare.give(work);
                return Err(none);
            };
            self.text_bytes += buffer.capacity();
            work.use_buffer(buffer);
        }
        self.away += 1;
        if !self.waiting.is_empty() {
            self.waits_no_more(connection);
        }
        work.fill(ask, text, key, place, reads_value, room);
        work.origin = context.core;
        work.executor = executor;
        work.slot = clients.keep_slot(connection, room);
        if context.log.is_on() {
            work.answer.descriptor = context.log.descriptor(connection);
        }
        let read = match (&key, executor) {
            (Some(key), Executor::Engine(engine)) if is_read => {
                ParkedRead { key_hash: key.secret_hash(), engine }
            }
            _ => ParkedRead::NONE,
        };
        self.note_read(work.slot, read);
        context.counters.parked.add(1);
        Ok(work)
    }

    /// Notes that a connection which was resumed has a record. Its next request waits behind those
    /// of the others (R5).
    #[cold]
    fn waits_no_more(&mut self, client: ClientIndex) {
        if let Some(place) = self.place_of_resumed(client) {
            self.waiting.remove(place);
            self.resumed -= 1;
        }
    }

    fn note_read(&mut self, SlotIndex(slot): SlotIndex, read: ParkedRead) {
        let slot = slot as usize;
        if slot >= self.reads.len() {
            self.reads.resize(slot + 1, ParkedRead::NONE);
        }
        self.reads[slot] = read; // R4
    }

    /// A record that brings something to an engine for which no client waits. It is not counted in
    /// R1: there are no more than operations on files, and than reads that are forgotten.
    fn carrier(&mut self, context: &Context, engine: EngineIndex) -> Work<Parked<E>> {
        let mut work = self.spare.take().unwrap_or_else(|| Self::make_ahead(context));
        work.begin_carrying();
        (work.origin, work.executor) = (context.core, Executor::Engine(engine));
        work.answer.begin(AnswerRoom::default());
        work
    }

    /// A record that brings a completed operation on a file to an engine.
    pub(crate) fn completion(
        &mut self,
        context: &Context,
        engine: EngineIndex,
        completion: E::Completion,
    ) -> Work<Parked<E>> {
        let mut work = self.carrier(context, engine);
        (work.ask, work.brought) = (Ask::Completion, Brought::Completion(completion));
        work
    }

    /// Has reads forgotten whose clients have left (R4). Cost: a load, if there are none.
    #[inline]
    pub(crate) fn forget_gone(
        &mut self,
        context: &Context,
        engines: &Engines<E>,
        clients: &mut Clients<E::Pinned>,
    ) {
        if !clients.gone.is_empty() {
            self.forget_some(context, engines, clients);
        }
    }

    #[cold]
    fn forget_some(
        &mut self,
        context: &Context,
        engines: &Engines<E>,
        clients: &mut Clients<E::Pinned>,
    ) {
        let mut held = HeldEngines::new(engines, context);
        let (mut looked, mut forgotten) = (0, 0);
        while looked < LOOKED_PER_TICK_MAX
            && forgotten < FORGOTTEN_PER_TICK_MAX
            && let Some(slot) = clients.gone.pop_front()
        {
            looked += 1;
            let read = self.reads.get(slot.0 as usize).copied();
            let ParkedRead { key_hash, engine } = read.unwrap_or(ParkedRead::NONE);
            if engine == NO_ENGINE || !clients.slots.held_awaits(slot) {
                clients.slots.answered(slot); // It is no read, or its answer has come meanwhile.
                continue;
            }
            forgotten += 1;
            let mut work = self.carrier(context, engine);
            (work.ask, work.slot) = (Ask::Forget { key_hash }, slot);
            held.park(work);
        }
        if clients.gone.is_empty() {
            clients.gone.shrink_to(LOOKED_PER_TICK_MAX);
        }
    }

    /// Whether requests are parked whose answers have not come back.
    pub(crate) const fn are_away(&self) -> bool {
        self.away > 0
    }

    /// Whether records are kept that are not in use.
    pub(crate) const fn are_kept(&self) -> bool {
        !self.spare.is_empty()
    }

    /// Whether other cores ask this one for pieces of what it has. Cost: a load.
    #[inline]
    pub(crate) const fn are_asked(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Takes the next piece of what this core has that another core asks for.
    pub(crate) fn next_asked(&mut self) -> Option<Work<Parked<E>>> {
        self.asked.pop()
    }

    /// Whether connections wait for records, and enough of these are back (R1).
    pub(crate) fn may_resume(&self) -> bool {
        !self.waiting.is_empty() && (self.returns_left == 0 || self.away == 0)
    }

    /// Lists connections as resumable that wait for a record (R1). Cost: a load, if none waits.
    #[inline]
    pub(crate) fn resume(&mut self, clients: &mut Clients<E::Pinned>) {
        if !self.waiting.is_empty() {
            self.resume_some(clients);
        }
    }

    #[cold]
    fn resume_some(&mut self, clients: &mut Clients<E::Pinned>) {
        // Those that were resumed and wait for neither a record nor their turn need no record.
        let mut place = 0;
        while place < self.resumed {
            let open = clients.connections.get(self.waiting[place].client);
            if open.is_some_and(|open| open.awaits_record() || open.awaits_turn()) {
                place += 1;
            } else {
                self.waiting.remove(place);
                self.resumed -= 1;
            }
        }
        if self.may_resume() {
            self.resumed = self.waiting.len().min(RESUMED_MAX);
            let first = self.waiting.range(..self.resumed);
            first.for_each(|waiting| clients.has_record(waiting.client));
        }
    }

    /// Frees some of the records that were not used for [`KEPT_SECONDS`] (R2). Called when a second
    /// begins.
    pub(crate) fn trim(&mut self, context: &Context, second: u32) {
        let begins = second >= self.trimmed + KEPT_SECONDS;
        if begins {
            self.trimmed = second;
            self.spare.end_period();
            if self.away == 0 && self.reads.len() > KEPT_READS_MAX {
                self.reads = Vec::new();
            }
        }
        if context.core == CoreIndex(0) {
            context.shared.waiting.trim(begins);
        }
        let freed = self.spare.remove_cold(FREED_PER_SECOND_MAX);
        context.shared.waiting.refund(freed.len() * Self::RECORD_BYTES);
    }

    /// Delivers the answers that have come back (R3), and keeps the requests of other cores that
    /// have come with them. Passes each piece of a listing to `listed`: the executor and the
    /// connection, the text, and how the piece has ended. `listed` returns the lines for the
    /// client. Passes each client for whose upload an engine had nothing to evict to `refused`.
    pub(crate) fn take_answers<L>(
        &mut self,
        context: &Context,
        mailboxes: &Mailboxes<E>,
        clients: &mut Clients<E::Pinned>,
        mut listed: L,
        mut refused: impl FnMut(ClientIndex),
    ) where
        L: for<'t> FnMut((Executor, Option<ClientIndex>), &'t [u8], Ended) -> &'t [u8],
    {
        let mut answers = mailboxes.take_answers(context.core);
        if answers.is_empty() {
            return;
        }
        self.spare.look(); // All records come back here.
        let away = self.away;
        while let Some(mut work) = answers.pop() {
            if work.origin != context.core {
                debug_assert!(work.executor == Executor::Core(context.core), "mailboxes, M3");
                self.asked.push(work);
                continue;
            }
            if let Ask::Completion | Ask::Forget { .. } = work.ask {
                if work.ask != Ask::Completion {
                    clients.slots.answered(work.slot); // R4: nothing has the slot any more.
                }
                self.spare.give(work);
                continue;
            }
            let mut value = None;
            if !matches!(work.brought, Brought::Nothing) {
                match work.brought.take() {
                    Brought::Ended(ended) => {
                        let from = (work.executor, clients.slots.connection(work.slot));
                        let lines = listed(from, &work.answer.text, ended);
                        clients.piece(work.slot, lines);
                        self.put_back(context, work);
                        continue;
                    }
                    Brought::Value(large) => value = Some(large),
                    Brought::NoRoom => {
                        let client = clients.slots.connection(work.slot);
                        client.into_iter().for_each(&mut refused);
                    }
                    Brought::Nothing | Brought::Upload(_) | Brought::Completion(_) => {}
                }
            }
            let waited = context.tick_in_wait_units().wrapping_sub(work.asked);
            context.counters.waits.note(u64::from(waited));
            let fence = work.answer.fence(work.engine());
            let answered = Answered { text: &work.answer.text, value: &mut value, fence };
            clients.answered(work.slot, answered);
            self.put_back(context, work);
        }
        self.returns_left = self.returns_left.saturating_sub(away - self.away);
    }
}

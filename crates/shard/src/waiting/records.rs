//! The records of a core: it fills one for each request that it parks, and delivers the answer when
//! the record comes back.
//!
//! Upstream:   `carry_out`, `upload` and `listing`, with requests that this core does not execute
//!             now.
//! Downstream: `engines` parks the record; `clients` gets its answer.
//!
//! Invariants:
//! - R1  A core has at most `SMALL_MAX` small records and `LARGE_MAX` large ones. While there is no
//!   record of the size that a request needs, its connection waits. Once half of the records of
//!   that size are back, the connections that have waited longest are served again. A request of
//!   another connection may take a record before them.
//! - R2  A record keeps its memory. So a core allocates only when it has more requests parked than
//!   ever before.
//! - R3  The answer of each record is delivered, in every state of its connection.

use std::collections::VecDeque;

use kachel_engine::{Engine, EngineIndex, Key};
use kachel_net::{AnswerRoom, ClientIndex};
use kachel_stdx::{Chain, Work};
use kachel_wire::request::KEY_BYTES_MAX;

use crate::clients::{Answered, Clients};
use crate::context::Context;
use crate::request::form::Ended;
use crate::request::reply::fence_of;
use crate::waiting::mailboxes::Mailboxes;
use crate::waiting::parked::{ANSWER_BYTES_MAX, Ask, Executor, Parked, TEXT_BYTES_MAX};

/// The most small records of a core: 1.8 MiB.
const SMALL_MAX: usize = 512;
/// The most large records of a core: 2.3 MiB.
const LARGE_MAX: usize = 64;
/// Bytes of text that a small record has room for.
const SMALL_TEXT_BYTES: usize = 1024;
/// Bytes of answer that a small record has room for: enough for the first request of a connection,
/// whose values may have any length.
const SMALL_ANSWER_BYTES: usize = 2560;
/// The most connections that are resumed in a tick because records have come back. Each of these
/// connections may need many records.
const RESUMED_MAX: usize = 64;

/// There is no record for a request now. Nothing was done, and its connection must wait.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(crate) struct NoRecord {
    is_large: bool,
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
    /// The room to keep for its answer.
    pub(crate) room: AnswerRoom,
}

/// The records of one core.
pub(crate) struct Records<E: Engine> {
    small: Stock<E>,
    large: Stock<E>,
    /// Records without memory, for completed operations on files, which are not in use.
    carriers: Chain<Parked<E>>,
    /// Pieces of what this core has, for listings of other cores. The oldest comes first.
    asked: Chain<Parked<E>>,
}

/// The records of one size.
struct Stock<E: Engine> {
    /// Records that are not in use.
    spare: Chain<Parked<E>>,
    /// The number of records that are in use.
    away: usize,
    away_max: usize,
    /// Bytes of text and bytes of answer of each.
    bytes: [usize; 2],
    /// Connections that wait for a record, the one that has waited longest first (R1).
    waiting: VecDeque<ClientIndex>,
}

impl<E: Engine> Stock<E> {
    const fn new(away_max: usize, bytes: [usize; 2]) -> Self {
        Self { spare: Chain::new(), away: 0, away_max, bytes, waiting: VecDeque::new() }
    }

    fn take(&mut self) -> Option<Work<Parked<E>>> {
        debug_assert!(self.away <= self.away_max, "R1");
        if self.away == self.away_max {
            return None;
        }
        self.away += 1;
        let [text_bytes, answer_bytes] = self.bytes;
        let spare = self.spare.pop();
        Some(spare.unwrap_or_else(|| Work::new(Parked::new(text_bytes, answer_bytes))))
    }

    fn put_back(&mut self, work: Work<Parked<E>>) {
        debug_assert!(self.away > 0, "what comes back was away");
        self.away -= 1;
        self.spare.push_first(work); // Its memory is in the caches.
    }

    fn may_resume(&self) -> bool {
        !self.waiting.is_empty() && self.away <= self.away_max / 2
    }

    fn resume(&mut self, clients: &mut Clients<E::Pinned>) {
        if self.may_resume() {
            debug_assert!(self.away < self.away_max, "R1");
            let resumed = self.waiting.len().min(RESUMED_MAX);
            self.waiting.drain(..resumed).for_each(|connection| clients.has_record(connection));
        }
    }
}

impl<E: Engine> Records<E> {
    /// Makes the stocks of a core. No record is allocated yet.
    pub(crate) const fn new() -> Self {
        Self {
            small: Stock::new(SMALL_MAX, [SMALL_TEXT_BYTES, SMALL_ANSWER_BYTES]),
            large: Stock::new(LARGE_MAX, [TEXT_BYTES_MAX, ANSWER_BYTES_MAX]),
            carriers: Chain::new(),
            asked: Chain::new(),
        }
    }

    /// Adds a connection to those that wait for a record.
    pub(crate) fn wait(&mut self, connection: ClientIndex, NoRecord { is_large }: NoRecord) {
        let stock = self.stock(is_large);
        debug_assert!(stock.away > 0, "a record comes back");
        stock.waiting.push_back(connection);
    }

    const fn stock(&mut self, is_large: bool) -> &mut Stock<E> {
        if is_large { &mut self.large } else { &mut self.small }
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
        let Outgoing { ask, text, key, reads_value, room } = outgoing;
        // A decoded key may follow the text.
        let is_large = matches!(ask, Ask::Piece { .. })
            || text.len() + KEY_BYTES_MAX > SMALL_TEXT_BYTES
            || room.bytes() > SMALL_ANSWER_BYTES;
        debug_assert!(text.len() <= TEXT_BYTES_MAX, "a large record has room for any request");
        let mut work = self.stock(is_large).take().ok_or(NoRecord { is_large })?;
        work.is_large = is_large;
        work.fill(ask, text, key, reads_value, room.value_bytes);
        work.origin = context.core;
        work.executor = executor;
        work.slot = clients.keep_slot(connection, room);
        if context.log.is_on() {
            work.answer.descriptor = context.log.descriptor(connection);
        }
        context.counters.parked.add(1);
        Ok(work)
    }

    /// A record that brings a completed operation on a file to an engine. Cost: an
    /// allocation only if more are on their way than ever before. There are no more than
    /// operations.
    pub(crate) fn carrier(
        &mut self,
        context: &Context,
        engine: EngineIndex,
        completion: E::Completion,
    ) -> Work<Parked<E>> {
        let carrier = self.carriers.pop();
        let mut work = carrier.unwrap_or_else(|| Work::new(Parked::new(0, 0)));
        debug_assert!(work.completion.is_none(), "files, S3: what it carried was applied");
        (work.ask, work.completion) = (Ask::Completion, Some(completion));
        (work.origin, work.executor) = (context.core, Executor::Engine(engine));
        work
    }

    /// Whether requests are parked whose answers have not come back.
    pub(crate) const fn are_away(&self) -> bool {
        self.small.away > 0 || self.large.away > 0
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

    /// Whether connections wait for records, and half of these are back.
    pub(crate) fn may_resume(&self) -> bool {
        self.small.may_resume() || self.large.may_resume()
    }

    /// Lists connections as resumable that wait for a record (R1).
    pub(crate) fn resume(&mut self, clients: &mut Clients<E::Pinned>) {
        if self.may_resume() {
            self.small.resume(clients);
            self.large.resume(clients);
        }
    }

    /// Delivers the answers that have come back (R3), and keeps the requests of other cores that
    /// have come with them. Passes each piece of a listing to `listed`: the executor and the
    /// connection, the text, and how the piece has ended. `listed` returns the lines for the
    /// client.
    pub(crate) fn take_answers<L>(
        &mut self,
        context: &Context,
        mailboxes: &Mailboxes<E>,
        clients: &mut Clients<E::Pinned>,
        mut listed: L,
    ) where
        L: for<'t> FnMut((Executor, Option<ClientIndex>), &'t [u8], Ended) -> &'t [u8],
    {
        let mut answers = mailboxes.take_answers(context.core);
        while let Some(mut work) = answers.pop() {
            if work.origin != context.core {
                debug_assert!(work.executor == Executor::Core(context.core), "mailboxes, M3");
                self.asked.push(work);
                continue;
            }
            if work.ask == Ask::Completion {
                self.carriers.push_first(work);
                continue;
            }
            if let Ask::Piece { ended, .. } = work.ask {
                let connection = clients.slots.connection(work.slot);
                let lines = listed((work.executor, connection), &work.answer.text, ended);
                clients.piece(work.slot, lines);
            } else {
                let fence = fence_of(work.engine(), work.answer.durability);
                let Parked { slot, ref answer, ref mut value, .. } = *work;
                clients.answered(slot, Answered { text: &answer.text, value, fence });
            }
            self.put_back(work);
        }
    }

    fn put_back(&mut self, mut work: Work<Parked<E>>) {
        work.upload = None;
        self.stock(work.is_large).put_back(work);
    }
}

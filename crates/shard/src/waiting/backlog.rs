//! The requests that wait within the lock of an engine.
//!
//! Upstream:   `entered` adds the requests that were parked; `carry_out` and `upload` those that
//!             the engine delays.
//! Downstream: the engine; `entered` hands the executed requests back to their cores.
//!
//! ```text
//! queue, waiters --+-- executed --> done
//!      ^           +-- Later --> waiters --+
//!      +-------(its ticket is named)-------+
//!
//! queue --(room for an upload is on its way)--> asks for room --(it has come)--> queue
//! pieces of listings --(one a tick, by the home core)--> done
//! ```
//!
//! Each core that holds the engine executes requests of the queue, and those whose ticket the
//! engine has named. Only the home core of the engine executes pieces, once a tick.
//!
//! Invariants:
//! - B1  Requests about one key are executed in the order in which they came: while one of them is
//!   delayed, later ones of the backlog are delayed as well.
//! - B2  A backlog contains only records, which each core bounds (`records`, R1). So it needs no
//!   bound of its own.
//! - B3  Before a core releases the engine, it has asked whether the room is there that requests
//!   wait for (`room_unasked`), with the call of `calls` armed. So such a request is called, or it
//!   is ready.

use arrayvec::ArrayVec;
use kachel_engine::{BATCH_MAX, Engine, Room, Ticket};
use kachel_stdx::{Chain, Work};

use crate::context::Context;
use crate::cores::work::HOLD_BYTES_MAX;
use crate::waiting::calls::Calls;
use crate::waiting::parked::{Ask, Brought, Parked};
use crate::waiting::waiters::Waiters;

/// The requests that wait within the lock of one engine.
pub(crate) struct Backlog<E: Engine> {
    /// Completed operations on files of the engine.
    completions: Chain<Parked<E>>,
    /// Requests that no core has tried to execute yet, the oldest first.
    queue: Chain<Parked<E>>,
    /// Requests that the engine delays.
    waiters: Waiters<E>,
    /// Asks for room for uploads that is on its way.
    room_asks: Chain<Parked<E>>,
    /// Whether a request has begun to wait for room, and the engine was not asked since (B3).
    room_unasked: bool,
    /// Bytes of the buffers of all answers so far.
    answer_bytes: u64,
    /// Pieces of listings, for the home core of the engine.
    pieces: Chain<Parked<E>>,
}

/// How much of a backlog is executed at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunLimit {
    /// The most requests that are executed.
    pub(crate) count: usize,
    /// No request is begun once the engine has done this work since its start, in bytes.
    work_bytes: u64,
    /// No request is begun once the buffers of all answers so far have this many bytes.
    answer_bytes: u64,
}

impl<E: Engine> Backlog<E> {
    /// Makes an empty backlog.
    pub(crate) fn new() -> Self {
        Self {
            completions: Chain::new(),
            queue: Chain::new(),
            waiters: Waiters::new(),
            room_asks: Chain::new(),
            room_unasked: false,
            answer_bytes: 0,
            pieces: Chain::new(),
        }
    }

    /// At most `count` requests, as much work as a hold may have (`work`, W2), and as many bytes of
    /// answers.
    pub(crate) fn limit(&self, engine: &E, count: usize) -> RunLimit {
        RunLimit {
            count,
            work_bytes: engine.work_bytes() + HOLD_BYTES_MAX,
            answer_bytes: self.answer_bytes + HOLD_BYTES_MAX,
        }
    }

    /// The same limit, with as many bytes of answers from now on: the answers of reads that are
    /// ready leave room for those of the queue.
    fn renew_answers(&self, limit: RunLimit) -> RunLimit {
        RunLimit { answer_bytes: self.answer_bytes + HOLD_BYTES_MAX, ..limit }
    }

    fn is_reached(&self, limit: &RunLimit, engine: &E) -> bool {
        engine.work_bytes() >= limit.work_bytes || self.answer_bytes >= limit.answer_bytes
    }

    /// Whether a core that has the engine can do nothing here now, and the engine is free to be
    /// released. Cost: five loads.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty()
            && self.completions.is_empty()
            && self.pieces.is_empty()
            && !self.waiters.are_ready()
            && !self.room_unasked
    }

    /// The number of requests that the engine delays. Cost: a step for each upload that waits for
    /// room.
    pub(crate) fn delayed_count(&self) -> usize {
        self.waiters.count() + self.room_asks.iter().count()
    }

    /// Whether a request about this key, of a connection whose earlier requests may be here, would
    /// overtake none of them: none waits that could be executed now, and none for the same key.
    #[inline]
    pub(crate) fn may_pass(&self, key_hash: u64) -> bool {
        self.queue.is_empty() && self.pieces.is_empty() && !self.waiters.have_key(key_hash)
    }

    /// Adds a request: to the end of the queue, or to the delayed requests if it has a ticket. A
    /// completion is added to those of the engine.
    pub(crate) fn push(&mut self, engine: &mut E, work: Work<Parked<E>>) {
        debug_assert!(work.answer.text.is_empty(), "parked, P1: it was not answered yet");
        if work.ask == Ask::Completion {
            self.completions.push(work);
        } else if work.ticket.is_some() {
            self.delay(engine, work);
        } else {
            self.queue.push(work);
        }
    }

    /// Passes the completed operations to the engine, all of them: they are as few as the engine
    /// has operations, and requests wait for them. Returns their number.
    pub(crate) fn complete(&mut self, engine: &mut E, done: &mut Chain<Parked<E>>) -> u64 {
        let mut completed = 0;
        while let Some(mut work) = self.completions.pop() {
            let Brought::Completion(completion) = work.brought.take() else {
                unreachable!("files, S3: it is applied once")
            };
            engine.complete(completion, &mut |ticket| self.wake(ticket));
            done.push(work);
            completed += 1;
        }
        completed
    }

    /// Adds a request to those that the engine delays. If it waits behind another one, its ticket
    /// is of no use.
    fn delay(&mut self, engine: &mut E, work: Work<Parked<E>>) {
        debug_assert!(work.answer.text.capacity() == 0, "parked, P4");
        self.note_ticket(work.ticket.as_ref());
        if let Some(unused) = self.waiters.add(work) {
            engine.forget(unused);
        }
    }

    fn note_ticket(&mut self, ticket: Option<&Ticket>) {
        self.room_unasked |= ticket == Some(&Ticket::ROOM); // B3
    }

    /// Forgets a read whose client has left, as far as no other request waits for what it fetches
    /// (`waiters`, W3).
    fn forget(
        &mut self,
        engine: &mut E,
        key_hash: u64,
        gone: &Parked<E>,
        done: &mut Chain<Parked<E>>,
    ) {
        let mut removed = self.waiters.forget(key_hash, gone);
        while let Some(mut work) = removed.pop() {
            work.ticket.take().into_iter().for_each(|ticket| engine.forget(ticket));
            done.push(work);
        }
    }

    /// Notes that the engine has named a ticket as ready. The ticket for room is that of every
    /// request that waits for room, those of uploads among them.
    pub(crate) fn wake(&mut self, ticket: u64) {
        if ticket == Ticket::ROOM.0 {
            self.room_has_come();
        } else {
            self.waiters.wake(ticket);
        }
    }

    /// Asks the engine whether the room is there that requests wait for, if it was not asked since
    /// the last of them began to wait (B3). Wakes them if it is there, or if it was called.
    pub(crate) fn ask_for_room(&mut self, engine: &mut E, calls: &Calls) {
        if calls.take_room() {
            self.room_unasked = false;
            self.room_has_come();
        }
        let is_awaited = self.waiters.await_room() || !self.room_asks.is_empty();
        if std::mem::take(&mut self.room_unasked) && is_awaited {
            calls.arm_room(); // calls, K1: before the engine looks.
            if engine.await_room() {
                calls.disarm_room();
                self.room_has_come();
            }
        }
    }

    fn room_has_come(&mut self) {
        self.waiters.wake(Ticket::ROOM.0);
        self.queue.append(std::mem::take(&mut self.room_asks));
    }

    /// Adds what was parked, in its order.
    pub(crate) fn append(&mut self, engine: &mut E, mut parked: Chain<Parked<E>>) {
        while let Some(work) = parked.pop() {
            self.push(engine, work);
        }
    }

    /// Takes the next piece of a listing that another core asks for.
    pub(crate) fn next_piece(&mut self) -> Option<Work<Parked<E>>> {
        self.pieces.pop()
    }

    /// Executes requests of the queue within `limit`, in batches whose lookups overlap. Adds the
    /// requests whose answers may be sent to `done`. Returns how many were taken from the queue.
    pub(crate) fn run(
        &mut self,
        context: &Context,
        engine: &mut E,
        limit: RunLimit,
        done: &mut Chain<Parked<E>>,
    ) -> usize {
        let limit = self.renew_answers(limit);
        let mut taken = 0;
        while taken < limit.count && !self.queue.is_empty() && !self.is_reached(&limit, engine) {
            let mut batch = ArrayVec::<_, BATCH_MAX>::new();
            let room = BATCH_MAX.min(limit.count - taken);
            batch.extend(std::iter::from_fn(|| self.queue.pop()).take(room));
            engine.prefetch(batch.iter().filter_map(|work| work.lookup()));
            let mut left = Chain::new();
            for work in batch {
                if left.is_empty() && !self.is_reached(&limit, engine) {
                    taken += 1;
                    self.execute(context, engine, work, done);
                } else {
                    left.push(work);
                }
            }
            left.append(std::mem::take(&mut self.queue)); // They keep their order (B1).
            self.queue = left;
        }
        debug_assert!(taken <= limit.count, "a hold is bounded (engines, E1)");
        taken
    }

    fn execute(
        &mut self,
        context: &Context,
        engine: &mut E,
        mut work: Work<Parked<E>>,
        done: &mut Chain<Parked<E>>,
    ) {
        match work.ask {
            Ask::Piece { .. } => return self.pieces.push(work),
            Ask::MakeRoom { bytes } => return self.make_room(context, engine, bytes, work, done),
            Ask::Forget { key_hash } => {
                self.forget(engine, key_hash, &work, done);
                return done.push(work);
            }
            Ask::Completion => unreachable!("completions are not in the queue"),
            Ask::Line | Ask::Key(_) | Ask::Removal { .. } => {}
        }
        debug_assert!(
            work.key().is_some_and(|key| {
                context.hasher.key(key.bytes()) == key
                    && context.hasher.owner(key.hashes()) == work.engine()
            }),
            "parked, P3: a request brings the hashes of its key, to its owner"
        );
        let is_behind = work.key_hash().is_some_and(|hash| self.waiters.have_key(hash));
        if is_behind || !work.execute(context, engine) {
            work.give_buffer(context);
            self.delay(engine, work); // B1
        } else {
            self.executed(work, done);
        }
    }

    fn executed(&mut self, work: Work<Parked<E>>, done: &mut Chain<Parked<E>>) {
        self.answer_bytes += work.answer.text.capacity() as u64;
        done.push(work);
    }

    /// Makes room for an upload. Keeps the ask if the room is on its way. Otherwise the core that
    /// asks tries again, and counts the ask if there was nothing to evict.
    fn make_room(
        &mut self,
        context: &Context,
        engine: &mut E,
        bytes: usize,
        mut work: Work<Parked<E>>,
        done: &mut Chain<Parked<E>>,
    ) {
        match engine.make_upload_room(bytes, &context.now()) {
            Room::OnTheWay => {
                self.room_asks.push(work);
                self.room_unasked = true; // B3
            }
            Room::Made => done.push(work),
            Room::Refused => {
                work.brought = Brought::NoRoom;
                done.push(work);
            }
        }
    }

    /// Executes the requests whose ticket was named, within `limit`, and adds them to `done`.
    /// Returns how many were executed, or delayed again.
    pub(crate) fn run_ready(
        &mut self,
        context: &Context,
        engine: &mut E,
        limit: RunLimit,
        done: &mut Chain<Parked<E>>,
    ) -> usize {
        let mut taken = 0;
        while taken < limit.count
            && !self.is_reached(&limit, engine)
            && let Some((place, mut work)) = self.waiters.next_ready()
        {
            taken += 1;
            if work.execute(context, engine) {
                self.waiters.finish(place);
                self.executed(work, done);
            } else {
                work.give_buffer(context);
                self.note_ticket(work.ticket.as_ref());
                self.waiters.delay(place, work); // B1: it stays the first of its key.
            }
        }
        debug_assert!(taken <= limit.count, "a hold is bounded (engines, E1)");
        taken
    }
}

//! The requests that wait within the lock of an engine.
//!
//! Upstream:   `engines` adds the requests that were parked; `carry_out` and `upload` those that
//!             the engine delays.
//! Downstream: the engine; `engines` hands the executed requests back to their cores.
//!
//! ```text
//!               +-- executed, durable now ---------------------> done
//! queue, retry -+-- executed, at a sequence --> undurable --(durable)--> done
//!      ^        +-- Later --> delayed --+
//!      +-------(ticket is ready)--------+
//!
//! pieces of listings --(one a tick, by the core of the shard)--> done
//! ```
//!
//! Each core that holds the engine executes requests of the queue. Only the core of the shard
//! retries delayed requests, takes durable ones out, and executes pieces, once a tick.
//!
//! Invariants:
//! - B1  Requests about one key are executed in the order in which they came: while one of them is
//!   delayed, later ones of the backlog are delayed as well.
//! - B2  Replies leave `undurable` in the order of their sequences.
//! - B3  A backlog contains only records, of which each core has a limited number (`records`). So
//!   it needs no bound of its own.

use arrayvec::ArrayVec;
use kachel_engine::{BATCH_MAX, Durability, Engine, Sequence};
use kachel_stdx::{Chain, Work};

use crate::context::Context;
use crate::cores::work::HOLD_BYTES_MAX;
use crate::waiting::parked::{Ask, Parked};

/// The requests of one shard that wait within the lock of its engine.
pub(crate) struct Backlog<E: Engine> {
    /// Requests that no core has tried to execute yet, the oldest first.
    queue: Chain<Parked<E>>,
    /// Requests that the engine delays, the oldest first.
    delayed: Chain<Parked<E>>,
    /// Requests whose change is not durable yet, in the order of their sequences (B2).
    undurable: Chain<Parked<E>>,
    /// Pieces of listings, for the core of the shard.
    pieces: Chain<Parked<E>>,
    /// Whether the core of the shard will step this backlog soon, because it has seen that requests
    /// wait.
    pub(crate) is_watched: bool,
}

/// The kind of requests that are left in a backlog.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Left {
    #[default]
    Nothing,
    /// Requests that the engine delays. The core of the shard must step the backlog again soon.
    Delayed,
    /// Requests that can be executed now, or pieces of listings.
    Requests,
}

/// How much of a backlog is executed at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunLimit {
    /// The most requests that are executed.
    pub(crate) count: usize,
    /// No request is begun once the engine has done this work since its start, in bytes.
    work_bytes: u64,
}

impl RunLimit {
    /// At most `count` requests, and as much work as a hold may have (`work`, W2).
    pub(crate) fn of(engine: &impl Engine, count: usize) -> Self {
        Self { count, work_bytes: engine.work_bytes() + HOLD_BYTES_MAX }
    }

    fn is_reached(&self, engine: &impl Engine) -> bool {
        engine.work_bytes() >= self.work_bytes
    }
}

impl<E: Engine> Backlog<E> {
    /// Makes an empty backlog.
    pub(crate) const fn new() -> Self {
        Self {
            queue: Chain::new(),
            delayed: Chain::new(),
            undurable: Chain::new(),
            pieces: Chain::new(),
            is_watched: false,
        }
    }

    /// Whether nothing waits. Cost: four loads.
    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.queue.is_empty()
            && self.delayed.is_empty()
            && self.undurable.is_empty()
            && self.pieces.is_empty()
    }

    /// The kind of requests that wait here.
    pub(crate) const fn left(&self) -> Left {
        match (self.queue.is_empty() && self.pieces.is_empty(), self.is_empty()) {
            (false, _) => Left::Requests,
            (true, false) => Left::Delayed,
            (true, true) => Left::Nothing,
        }
    }

    /// The number of requests that the engine delays, and of replies that are not durable yet.
    /// Cost: a step for each.
    pub(crate) fn delayed_count(&self) -> usize {
        self.delayed.iter().count() + self.undurable.iter().count()
    }

    /// Adds a request: to the end of the queue, or to the delayed requests if it has a ticket.
    pub(crate) fn push(&mut self, work: Work<Parked<E>>) {
        debug_assert!(work.answer.text.is_empty(), "parked, P1: it was not answered yet");
        if work.ticket.is_some() { self.delayed.push(work) } else { self.queue.push(work) }
    }

    /// Adds requests at the end, in their order.
    pub(crate) fn append(&mut self, parked: Chain<Parked<E>>) {
        self.queue.append(parked);
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
        let mut taken = 0;
        while taken < limit.count && !self.queue.is_empty() && !limit.is_reached(engine) {
            let mut batch = ArrayVec::<_, BATCH_MAX>::new();
            let room = BATCH_MAX.min(limit.count - taken);
            batch.extend(std::iter::from_fn(|| self.queue.pop()).take(room));
            engine.prefetch(batch.iter().filter_map(|work| work.lookup()));
            let mut left = Chain::new();
            for work in batch {
                if left.is_empty() && !limit.is_reached(engine) {
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
            // The core that asks tries again, and then sees whether there is room.
            Ask::MakeRoom { bytes } => {
                let _made = engine.make_upload_room(bytes, &context.now());
                return done.push(work);
            }
            Ask::Line | Ask::Key(_) | Ask::Removal { .. } => {}
        }
        debug_assert!(
            work.key().is_some_and(|key| {
                context.hasher.key(key.bytes()) == key
                    && context.hasher.owner(key.hashes()) == work.shard
            }),
            "parked, P3: a request brings the hashes of its key, to its owner"
        );
        let is_behind = self.delayed.iter().any(|other| other.key_hash() == work.key_hash());
        if is_behind || !work.execute(context, engine) {
            self.delayed.push(work); // B1
        } else {
            self.executed(work, done);
        }
    }

    /// Adds a request that was executed to `done`, or to `undurable` if its change is not durable.
    fn executed(&mut self, work: Work<Parked<E>>, done: &mut Chain<Parked<E>>) {
        match work.durability {
            Durability::Now => done.push(work),
            Durability::At(sequence) => {
                let is_newest = |other: &Parked<E>| is_durable(other, sequence);
                debug_assert!(self.undurable.iter().all(is_newest), "B2: sequences only grow");
                self.undurable.push(work);
            }
        }
    }

    /// Executes the delayed requests that are ready, within `limit`, and adds to `done` the
    /// requests whose change has become durable. The core of the shard calls this once a tick.
    /// Returns how many were executed.
    ///
    /// Cost: a check of each request that waits.
    pub(crate) fn retry(
        &mut self,
        context: &Context,
        engine: &mut E,
        limit: RunLimit,
        done: &mut Chain<Parked<E>>,
    ) -> usize {
        engine.poll();
        let durable = engine.durable();
        while self.undurable.iter().next().is_some_and(|first| is_durable(first, durable)) {
            self.undurable.pop().into_iter().for_each(|work| done.push(work));
        }
        debug_assert!(self.delayed.iter().all(|work| work.key_hash().is_some()), "about a key");
        let mut before = std::mem::take(&mut self.delayed);
        let mut executed = 0;
        while let Some(mut work) = before.pop() {
            // `delayed` is searched only for a request whose ticket is ready (B1).
            let may_execute = executed < limit.count
                && !limit.is_reached(engine)
                && work.ticket.as_ref().is_none_or(|ticket| engine.is_ready(ticket))
                && !self.delayed.iter().any(|other| other.key_hash() == work.key_hash());
            if may_execute && work.execute(context, engine) {
                executed += 1;
                debug_assert!(executed <= limit.count, "engines, E1");
                self.executed(work, done);
            } else {
                self.delayed.push(work);
            }
        }
        executed
    }
}

/// Whether the change of an executed request is durable, if all up to `durable` are.
fn is_durable<E: Engine>(work: &Parked<E>, durable: Sequence) -> bool {
    match work.durability {
        Durability::Now => true,
        Durability::At(sequence) => sequence <= durable,
    }
}

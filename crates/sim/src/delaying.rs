//! An engine that delays some of its answers. It delays half of these before it executes the
//! operation, and half after.
//!
//! Upstream:   `server`, which gives each shard one.
//! Downstream: the inner engine, which answers at once.
//!
//! ```text
//! execute --+-- most ------------------> the inner engine --> Done, now
//!           +-- some: Later(ticket) ..polls.. is_ready, execute again
//!           +-- some --> the inner engine --> Done, at n ..polls.. durable = n
//! ```
//!
//! Invariants:
//! - I1  A ticket is used once, and only after `is_ready` returned true for it (`contract`, I2).
//! - I2  Sequences become durable in their order, each at least one poll after the one before.
//! - I3  The upload of an operation that was answered by [`Answer::Later`] comes back with the
//!   operation.

use std::collections::HashMap;
use std::sync::Arc;

use kachel_engine::{
    Answer, Block, Copies, CrawlStep, Cursor, Durability, Engine, EngineStats, Evicted, GetTerms,
    ItemView, Key, LastDead, Lookup, Now, Operation, Room, Sequence, Ticket, WalkStep,
};
use kachel_stdx::Place;
use kachel_testkit::Random;

/// The most polls until a ticket is ready. The next sequence becomes durable within a quarter of
/// this. A shard with a delayed request polls at least every 50 microseconds.
const POLLS_MAX: u64 = 20;

/// The simulated fetch for a ticket.
#[derive(Clone, Copy, Debug)]
struct Fetch {
    /// The poll from which the ticket is ready.
    ready_at: u64,
    /// Whether the operation has an upload (I3).
    has_upload: bool,
}

/// Counts of what an engine has executed and delayed so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DelayCounts {
    /// Operations executed.
    pub(crate) executed: u64,
    /// Operations delayed before they were executed.
    pub(crate) before: u64,
    /// Operations whose outcome was delayed, and that were not delayed before.
    pub(crate) after: u64,
    /// Times that an operation had to wait for room on its way.
    pub(crate) for_room: u64,
    /// Tickets that are not used yet.
    pub(crate) tickets: u64,
}

/// The tickets that an engine gave.
#[derive(Debug, Default)]
struct Late {
    polls: u64,
    tickets: HashMap<u64, Fetch>,
    given: u64,
}

impl Late {
    /// Gives a ticket that is ready after `polls` more polls.
    fn give(&mut self, polls: u64, has_upload: bool) -> Ticket {
        self.given += 1;
        let ready_at = self.polls + polls;
        self.tickets.insert(self.given, Fetch { ready_at, has_upload });
        Ticket(self.given)
    }
}

/// An engine that delays `permille` of a thousand answers of an inner engine; none if it is not
/// `LATE`.
pub(crate) struct Delaying<E, const LATE: bool> {
    inner: E,
    permille: u64,
    dice: Random,
    late: Late,
    sequence: u64,
    durable: u64,
    /// The poll from which the next sequence may become durable (I2).
    durable_at: u64,
    counts: DelayCounts,
}

/// How an operation is answered.
enum Fate {
    Later(Ticket),
    Done(Durability),
}

impl<E: Engine, const LATE: bool> Delaying<E, LATE> {
    pub(crate) fn new(inner: E, permille: u64, dice: Random) -> Self {
        Self {
            inner,
            permille,
            dice,
            late: Late::default(),
            sequence: 0,
            durable: 0,
            durable_at: 0,
            counts: DelayCounts::default(),
        }
    }

    /// The counts of what it has delayed.
    pub(crate) fn delays(&self) -> DelayCounts {
        DelayCounts { tickets: self.late.tickets.len() as u64, ..self.counts }
    }

    /// Decides how an operation is answered. `ticket` is the one that it has waited for, if any.
    fn fate(&mut self, ticket: Option<Ticket>, has_upload: bool) -> Fate {
        if let Some(Ticket(number)) = &ticket {
            let fetch = self.late.tickets.remove(number).expect("I1: a ticket is used once");
            assert!(fetch.ready_at <= self.late.polls, "I1: the ticket is ready");
            assert_eq!(fetch.has_upload, has_upload, "I3: the upload comes back");
        }
        let is_delayed = self.dice.chance(self.permille);
        if is_delayed && self.dice.chance(500) {
            self.counts.before += u64::from(ticket.is_none());
            let polls = self.dice.skewed(1, POLLS_MAX);
            return Fate::Later(self.late.give(polls, has_upload));
        }
        self.counts.executed += 1;
        // An operation that was delayed before its execution may also be delayed after it.
        if is_delayed {
            self.counts.after += u64::from(ticket.is_none());
            self.sequence += 1;
            return Fate::Done(Durability::At(Sequence(self.sequence)));
        }
        Fate::Done(Durability::Now)
    }
}

/// The answer of the inner engine, durable as the fate says. An operation that the inner engine
/// delays, because room for its item is on its way, is ready at the next poll.
fn answer<'e, P>(
    inner: Answer<'e, P>,
    durability: Durability,
    late: (&mut Late, &mut DelayCounts),
    has_upload: bool,
) -> Answer<'e, P> {
    match inner {
        Answer::Done(outcome, Durability::Now) => Answer::Done(outcome, durability),
        Answer::Later(_) => {
            let (late, counts) = late;
            counts.executed -= 1;
            counts.for_room += 1;
            Answer::Later(late.give(1, has_upload))
        }
        Answer::Done(_, Durability::At(_)) => unreachable!("the inner engine promises nothing"),
    }
}

impl<E: Engine, const LATE: bool> Engine for Delaying<E, LATE> {
    const DELAYS: bool = LATE;

    type Upload = E::Upload;
    type Pinned = E::Pinned;
    type Reader = E::Reader;
    type Common = E::Common;

    fn common(&self) -> E::Common {
        self.inner.common()
    }

    fn reader(&self) -> E::Reader {
        self.inner.reader()
    }

    fn enter(&mut self, core: Place, now: &Now) {
        self.inner.enter(core, now);
    }

    fn prefetch(&self, batch: impl Iterator<Item = Lookup> + Clone) {
        self.inner.prefetch(batch);
    }

    fn execute<'e>(
        &'e mut self,
        operation: &Operation<'_>,
        block: &mut Block<'_, E::Upload>,
        ticket: Option<Ticket>,
        now: &Now,
    ) -> Answer<'e, E::Pinned> {
        if !LATE {
            let answer = self.inner.execute(operation, block, ticket, now);
            self.counts.for_room += u64::from(matches!(answer, Answer::Later(_)));
            return answer;
        }
        let has_upload = matches!(block, Block::Upload(_));
        match self.fate(ticket, has_upload) {
            Fate::Later(ticket) => Answer::Later(ticket),
            Fate::Done(durability) => {
                let Self { inner, late, counts, .. } = self;
                let done = inner.execute(operation, block, None, now);
                answer(done, durability, (late, counts), has_upload)
            }
        }
    }

    fn read<'e>(
        &'e mut self,
        key: &Key<'_>,
        terms: &GetTerms,
        ticket: Option<Ticket>,
        now: &Now,
    ) -> Answer<'e, E::Pinned> {
        if !LATE {
            return self.inner.read(key, terms, ticket, now);
        }
        match self.fate(ticket, false) {
            Fate::Later(ticket) => Answer::Later(ticket),
            Fate::Done(durability) => {
                let Self { inner, late, counts, .. } = self;
                answer(inner.read(key, terms, None, now), durability, (late, counts), false)
            }
        }
    }

    fn poll(&mut self) {
        self.late.polls += 1;
        if self.durable < self.sequence && self.durable_at <= self.late.polls {
            self.durable += 1;
            self.durable_at = self.late.polls + self.dice.skewed(0, POLLS_MAX / 4);
        }
    }

    fn is_ready(&self, ticket: &Ticket) -> bool {
        if !LATE {
            return self.inner.is_ready(ticket);
        }
        let fetch =
            self.late.tickets.get(&ticket.0).expect("I1: only a ticket that is out is asked for");
        fetch.ready_at <= self.late.polls
    }

    fn durable(&self) -> Sequence {
        Sequence(self.durable)
    }

    fn make_upload_room(&mut self, bytes: usize, now: &Now) -> Room {
        self.inner.make_upload_room(bytes, now)
    }

    fn make_room(&mut self, bytes: u64, now: &Now) -> Room {
        self.inner.make_room(bytes, now)
    }

    fn report_changes(&mut self, copies: Arc<dyn Copies>) {
        self.inner.report_changes(copies);
    }

    fn last_dead(&self) -> &Arc<LastDead> {
        self.inner.last_dead()
    }

    fn has_evicted(&self) -> bool {
        self.inner.has_evicted()
    }

    fn take_evicted(&mut self, tell: impl FnMut(&Evicted<'_>)) -> u64 {
        self.inner.take_evicted(tell)
    }

    fn maintain(&mut self, now: &Now) -> usize {
        self.inner.maintain(now)
    }

    fn walk(
        &mut self,
        cursor: &mut Cursor,
        now: &Now,
        items_max: usize,
        show: impl FnMut(&[u8], &dyn ItemView<'_>) -> bool,
    ) -> WalkStep {
        self.inner.walk(cursor, now, items_max, show)
    }

    fn crawl(
        &mut self,
        cursor: &mut Cursor,
        now: &Now,
        items_max: usize,
        is_wanted: impl FnMut(&[u8], &dyn ItemView<'_>) -> bool,
    ) -> CrawlStep {
        self.inner.crawl(cursor, now, items_max, is_wanted)
    }

    fn work_bytes(&self) -> u64 {
        self.inner.work_bytes()
    }

    fn stats(&self) -> EngineStats {
        self.inner.stats()
    }
}

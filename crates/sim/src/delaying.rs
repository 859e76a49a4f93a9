//! An engine that delays some of its answers. It delays half of these before it executes the
//! operation, and half after.
//!
//! Upstream:   `run`, which passes the opener to `server`.
//! Downstream: the inner engine. It promises no durability, and gives only [`Ticket::ROOM`].
//!
//! ```text
//! execute --+-- most ------------------> the inner engine --> Done, now
//!           +-- some: Later(ticket) ..time.. the ticket is named, execute again
//!           +-- some --> the inner engine --> Done, at n ..time.. durable = n
//! ```
//!
//! Time passes by the deadlines of the contract: the engine asks to be entered at once to learn the
//! time at which a delay begins, and then at its end.
//!
//! Invariants:
//! - I1  A ticket is used once, and only after it was named (`contract`, I2).
//! - I2  Sequences become durable in their order, each some time after the one before.
//! - I3  The upload of an operation that was answered by [`Answer::Later`] comes back with the
//!   operation.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::Arc;

use kachel_engine::{
    Answer, Block, Copies, CrawlStep, Cursor, Durability, DurableWord, Engine, EngineStats,
    Evicted, Extensions, GetTerms, ItemView, Key, LastDead, Lookup, Now, OpenEngines, Opening,
    Operation, Room, ScanCursor, ScanStep, Sequence, Ticket, WalkStep,
};
use kachel_stdx::Place;
use kachel_testkit::Random;

/// The longest delay until a ticket is ready, in nanoseconds. The next sequence becomes durable
/// within a quarter of this. A shard that waits at most so long is not at rest (`testkit`).
const DELAY_NS_MAX: u64 = 800_000;

/// The simulated fetch for a ticket.
#[derive(Clone, Copy, Debug)]
struct Fetch {
    /// Whether the ticket was named (I1).
    is_named: bool,
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
    tickets: HashMap<u64, Fetch>,
    given: u64,
    /// Tickets, each with its delay, whose delay has not begun.
    fresh: Vec<(u64, u64)>,
    /// The times at which delays end, each with its ticket.
    ends: BTreeSet<(u64, u64)>,
}

impl Late {
    /// Gives a ticket that is ready after a delay.
    fn give(&mut self, delay_ns: u64, has_upload: bool) -> Ticket {
        self.given += 1;
        self.tickets.insert(self.given, Fetch { is_named: false, has_upload });
        self.fresh.push((self.given, delay_ns));
        Ticket(self.given)
    }

    /// When the engine wants to be entered: at once if a delay must begin.
    fn deadline_ns(&self) -> Option<u64> {
        if self.fresh.is_empty() { self.ends.first().map(|(end_ns, _)| *end_ns) } else { Some(0) }
    }

    /// Begins delays, and names the tickets whose delay is over.
    fn reach(&mut self, now_ns: u64, ready: &mut impl FnMut(u64)) {
        let fresh = self.fresh.drain(..);
        self.ends.extend(fresh.map(|(ticket, delay_ns)| (now_ns + delay_ns, ticket)));
        while let Some(&(end_ns, ticket)) = self.ends.first()
            && end_ns <= now_ns
        {
            self.ends.pop_first();
            self.tickets.get_mut(&ticket).expect("I1: it is used once").is_named = true;
            ready(ticket);
        }
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
    durable: Arc<DurableWord>,
    /// When the next sequence becomes durable (I2). `None`: that was not decided yet.
    durable_at_ns: Option<u64>,
    counts: DelayCounts,
}

/// Opens engines that delay a part of their answers, around those of an inner opener.
pub(crate) struct DelayingOpener<O, const LATE: bool> {
    pub(crate) inner: O,
    /// Of a thousand answers, this number is delayed.
    pub(crate) permille: u64,
    /// The seed that decides which answers are delayed.
    pub(crate) seed: u64,
}

impl<O: OpenEngines, const LATE: bool> OpenEngines for DelayingOpener<O, LATE> {
    type Engine = Delaying<O::Engine, LATE>;

    fn budget_bytes_min(engines: u16) -> u64 {
        O::budget_bytes_min(engines)
    }

    fn open(&self, opening: &Opening) -> io::Result<Vec<Self::Engine>> {
        let delaying = |(id, inner): (u16, O::Engine)| {
            let random = Random::for_purpose(self.seed, &format!("late {id}"));
            Delaying::new(inner, self.permille, random)
        };
        Ok((0..).zip(self.inner.open(opening)?).map(delaying).collect())
    }
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
            durable: Arc::default(),
            durable_at_ns: None,
            counts: DelayCounts::default(),
        }
    }

    /// The counts of what it has delayed.
    pub(crate) fn delays(&self) -> DelayCounts {
        DelayCounts { tickets: self.late.tickets.len() as u64, ..self.counts }
    }

    /// Decides how an operation is answered. `ticket` is the one that it has waited for, if any.
    fn fate(&mut self, ticket: Option<Ticket>, has_upload: bool) -> Fate {
        let waited = ticket.is_some();
        if let Some(Ticket(number)) = ticket.filter(|ticket| *ticket != Ticket::ROOM) {
            let fetch = self.late.tickets.remove(&number).expect("I1: a ticket is used once");
            assert!(fetch.is_named, "I1: the ticket is ready");
            assert_eq!(fetch.has_upload, has_upload, "I3: the upload comes back");
        }
        let is_delayed = self.dice.chance(self.permille);
        if is_delayed && self.dice.chance(500) {
            self.counts.before += u64::from(!waited);
            let delay_ns = self.dice.skewed(1, DELAY_NS_MAX);
            return Fate::Later(self.late.give(delay_ns, has_upload));
        }
        self.counts.executed += 1;
        // An operation that was delayed before its execution may also be delayed after it.
        if is_delayed {
            self.counts.after += u64::from(!waited);
            self.sequence += 1;
            return Fate::Done(Durability::At(Sequence(self.sequence)));
        }
        Fate::Done(Durability::Now)
    }
}

/// The answer of the inner engine, durable as the fate says. The inner engine delays an operation
/// only while room for its item is on its way.
fn answer<'e, P>(
    inner: Answer<'e, P>,
    durability: Durability,
    counts: &mut DelayCounts,
) -> Answer<'e, P> {
    match inner {
        Answer::Done(outcome, Durability::Now) => Answer::Done(outcome, durability),
        Answer::Later(ticket) => {
            assert_eq!(ticket, Ticket::ROOM, "it waits for nothing else");
            counts.executed -= 1;
            counts.for_room += 1;
            Answer::Later(ticket)
        }
        Answer::Done(_, Durability::At(_)) => unreachable!("the inner engine promises nothing"),
    }
}

impl<E: Engine, const LATE: bool> Engine for Delaying<E, LATE> {
    type Upload = E::Upload;
    type Pinned = E::Pinned;
    type Submission = E::Submission;
    type Completion = E::Completion;
    type Reader = E::Reader;
    type Common = E::Common;

    fn common(&self) -> E::Common {
        self.inner.common()
    }

    fn reader(&self) -> E::Reader {
        self.inner.reader()
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
                let Self { inner, counts, .. } = self;
                answer(inner.execute(operation, block, None, now), durability, counts)
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
                let Self { inner, counts, .. } = self;
                answer(inner.read(key, terms, None, now), durability, counts)
            }
        }
    }

    fn await_room(&mut self) -> bool {
        self.inner.await_room()
    }

    fn next_submission(&mut self) -> Option<E::Submission> {
        self.inner.next_submission()
    }

    fn complete(&mut self, completion: E::Completion, ready: &mut impl FnMut(u64)) {
        self.inner.complete(completion, ready);
    }

    fn deadline_ns(&self) -> Option<u64> {
        let is_behind = !self.durable.has_reached(Sequence(self.sequence));
        let durable_ns = is_behind.then_some(self.durable_at_ns.unwrap_or(0));
        self.late.deadline_ns().into_iter().chain(durable_ns).min()
    }

    fn reach(&mut self, now_ns: u64, ready: &mut impl FnMut(u64)) {
        self.late.reach(now_ns, ready);
        if self.durable_at_ns.is_some_and(|durable_at_ns| durable_at_ns <= now_ns) {
            self.durable.advance(Sequence(self.durable.sequence().0 + 1)); // I2
            self.durable_at_ns = None;
        }
        let is_behind = !self.durable.has_reached(Sequence(self.sequence));
        if is_behind && self.durable_at_ns.is_none() {
            let delay_ns = self.dice.skewed(1, DELAY_NS_MAX / 4);
            self.durable_at_ns = Some(now_ns + delay_ns);
        }
        debug_assert!(self.deadline_ns().is_none_or(|next_ns| next_ns > now_ns), "it has passed");
    }

    fn forget(&mut self, ticket: Ticket) {
        if !LATE || ticket == Ticket::ROOM {
            return self.inner.forget(ticket);
        }
        let known = self.late.tickets.remove(&ticket.0);
        assert!(known.is_some(), "I1: a ticket is given back once");
        self.late.fresh.retain(|(fresh, _)| *fresh != ticket.0);
        self.late.ends.retain(|(_, waiting)| *waiting != ticket.0);
    }

    fn durable(&self) -> &Arc<DurableWord> {
        &self.durable
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

    fn work_bytes(&self) -> u64 {
        self.inner.work_bytes()
    }

    fn stats(&self) -> EngineStats {
        self.inner.stats()
    }
}

impl<E: Engine, const LATE: bool> Extensions for Delaying<E, LATE> {
    fn enter(&mut self, core: Place, now: &Now) {
        self.inner.enter(core, now);
    }

    fn prefetch(&self, batch: impl Iterator<Item = Lookup> + Clone) {
        self.inner.prefetch(batch);
    }

    fn scan(
        &mut self,
        cursor: &mut ScanCursor,
        ticket: Option<Ticket>,
        now: &Now,
        items_max: usize,
        show: impl FnMut(&[u8], &dyn ItemView<'_>) -> bool,
    ) -> ScanStep {
        self.inner.scan(cursor, ticket, now, items_max, show)
    }

    fn make_upload_room(&mut self, bytes: usize, now: &Now) -> Room {
        self.inner.make_upload_room(bytes, now)
    }

    fn make_room(&mut self, bytes: u64, now: &Now) -> Room {
        self.inner.make_room(bytes, now)
    }

    fn report_changes(&mut self, copies: Arc<dyn Copies>) -> bool {
        self.inner.report_changes(copies)
    }

    fn last_dead(&self) -> Arc<LastDead> {
        self.inner.last_dead()
    }

    fn has_evicted(&self) -> bool {
        self.inner.has_evicted()
    }

    fn take_evicted(&mut self, tell: impl FnMut(&Evicted<'_>)) -> u64 {
        self.inner.take_evicted(tell)
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
}

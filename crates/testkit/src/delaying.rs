//! The delaying engine: delays a part of the answers of another engine, by reads and writes of a
//! file. Half of the delays come before the operation is executed, and half after.
//!
//! Upstream:   `shard`, over a world of this crate or over threads; the simulation.
//! Downstream: the inner engine, which has no files, promises no durability, and gives only
//!             [`Ticket::ROOM`]; `value_file`.
//!
//! ```text
//! execute --+-- most ------------------------> the inner engine --> Done, now
//!           +-- some: Later(ticket) ..read.... the ticket is named, execute again
//!           +-- some --> the inner engine ---> Done, at n ..durable write.. durable = n
//! ```
//!
//! The disk alone decides how long a delay takes, and in which order delays end. The file begins
//! with a record; an operation that is executed first appends another one. Until the first record
//! is durable, there is nothing to read, and no operation is delayed before its execution.
//!
//! Invariants:
//! - I1  A ticket is used once, for the key that it was given for, and only after it was named
//!   (`contract`, I2).
//! - I2  The upload of an operation that was answered by [`Answer::Later`] comes back with the
//!   operation.
//! - I3  A read returns what the file has at its place: each byte follows from its offset.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use kachel_engine::{
    Answer, Block, Copies, CrawlStep, Cursor, Durability, DurableWord, Engine, EngineStats,
    Evicted, Extensions, GetTerms, ItemView, Key, LastDead, Lookup, Now, OpenEngines, Opening,
    Operation, Room, ScanCursor, Sequence, Ticket, WalkStep,
};
use kachel_io::{FileOperation, FolderHandle};
use kachel_stdx::Place;

use crate::random::Random;
use crate::value_file::ValueFile;

/// The longest record and the longest read, in bytes: some sectors, so that a disk may do a part.
const TRANSFER_BYTES_MAX: u64 = 3_000;

/// Opens engines that delay a part of their answers, around those of an inner opener.
#[derive(Clone, Debug)]
pub struct DelayingOpener<O> {
    /// Opens the inner engines.
    pub inner: O,
    /// Where the files are, one for each engine.
    pub folder: FolderHandle,
    /// Of a thousand answers, this number is delayed.
    pub permille: u64,
    /// The seed that decides which answers are delayed.
    pub seed: u64,
}

impl<O> OpenEngines for DelayingOpener<O>
where
    O: OpenEngines<Engine: Engine<Submission = Infallible, Completion = Infallible>>,
{
    type Engine = Delaying<O::Engine>;

    fn budget_bytes_min(engines: u16) -> u64 {
        O::budget_bytes_min(engines)
    }

    fn open(&self, opening: &Opening) -> io::Result<Vec<Self::Engine>> {
        let delaying = |(number, inner): (u64, O::Engine)| {
            let durable = Arc::default();
            let mut file = ValueFile::create(&self.folder, number, Arc::clone(&durable));
            let mut dice = Random::for_purpose(self.seed, &format!("late {number}"));
            append(&mut file, &mut dice);
            let (permille, counts) = (self.permille, DelayCounts::default());
            let (tickets, last_ticket) = (BTreeMap::new(), 0);
            Delaying { inner, file, permille, dice, tickets, last_ticket, durable, counts }
        };
        Ok((0..).zip(self.inner.open(opening)?).map(delaying).collect())
    }
}

/// Counts of what an engine has executed and delayed so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct DelayCounts {
    /// Operations executed.
    pub executed: u64,
    /// Operations delayed before they were executed.
    pub before: u64,
    /// Operations whose outcome was delayed. It may have been delayed before, too.
    pub after: u64,
    /// Times that an operation had to wait for room on its way.
    pub for_room: u64,
    /// Tickets that are not used yet.
    pub tickets: u64,
}

/// What was read, or is being read, for a ticket.
#[derive(Clone, Copy, Debug)]
struct Fetch {
    /// The key of the operation (I1).
    secret_hash: u64,
    /// Whether the operation has an upload (I2).
    has_upload: bool,
    /// Whether the ticket was named (I1).
    is_named: bool,
    /// The place in the file (I3).
    offset: u64,
    bytes: u64,
}

/// An engine that delays a part of the answers of another one. See the head of this file.
#[derive(Debug)]
pub struct Delaying<E> {
    inner: E,
    file: ValueFile,
    permille: u64,
    dice: Random,
    tickets: BTreeMap<u64, Fetch>,
    last_ticket: u64,
    durable: Arc<DurableWord>,
    counts: DelayCounts,
}

/// The byte of the file at an offset (I3). Two places differ unless they are 64 KiB apart.
const fn byte_at(offset: u64) -> u8 {
    (offset ^ offset >> 8) as u8
}

/// Appends a record. Returns its sequence.
fn append(file: &mut ValueFile, dice: &mut Random) -> Sequence {
    let (offset, bytes) = (file.end(), dice.skewed(1, TRANSFER_BYTES_MAX));
    let record: Vec<u8> = (offset..offset + bytes).map(byte_at).collect();
    Sequence(file.append(&record))
}

impl<E: Engine> Delaying<E> {
    /// The counts of what it has delayed.
    pub fn delays(&self) -> DelayCounts {
        DelayCounts { tickets: self.tickets.len() as u64, ..self.counts }
    }

    /// Decides how an operation is answered. `ticket` is the one that it has waited for, if any.
    /// Returns whether its outcome is delayed.
    ///
    /// Errors: it is delayed before it is executed.
    fn is_late(
        &mut self,
        key: &Key<'_>,
        ticket: Option<Ticket>,
        has_upload: bool,
    ) -> Result<bool, Ticket> {
        let waited = ticket.is_some();
        if let Some(Ticket(number)) = ticket.filter(|ticket| *ticket != Ticket::ROOM) {
            let fetch = self.tickets.remove(&number).expect("I1: a ticket is used once");
            assert!(fetch.is_named, "I1: the ticket is ready");
            assert_eq!(fetch.secret_hash, key.secret_hash(), "I1: the operation comes back");
            assert_eq!(fetch.has_upload, has_upload, "I2: the upload comes back");
        }
        // A disk that has failed takes no more records, so nothing can be delayed by them.
        if !self.dice.chance(self.permille) || self.file.has_failed() {
            return Ok(false);
        }
        // An operation that was delayed before its execution may also be delayed after it.
        if self.file.durable_bytes() == 0 || self.dice.chance(500) {
            return Ok(true);
        }
        self.counts.before += u64::from(!waited);
        Err(self.fetch(key.secret_hash(), has_upload))
    }

    /// Reads a part of the file. Returns the ticket of the read.
    fn fetch(&mut self, secret_hash: u64, has_upload: bool) -> Ticket {
        self.last_ticket += 1;
        let offset = self.dice.below(self.file.durable_bytes());
        let bytes_max = TRANSFER_BYTES_MAX.min(self.file.durable_bytes() - offset);
        let bytes = self.dice.between(1, bytes_max);
        self.file.read(self.last_ticket, offset, bytes as usize);
        let fetch = Fetch { secret_hash, has_upload, is_named: false, offset, bytes };
        self.tickets.insert(self.last_ticket, fetch);
        Ticket(self.last_ticket)
    }
}

/// The answer of the inner engine. If it is late, its outcome is durable when a record is that is
/// appended now. The inner engine delays an operation only while room for its item is on its way.
fn answer<'e, P>(
    inner: Answer<'e, P>,
    is_late: bool,
    (file, dice, counts): (&mut ValueFile, &mut Random, &mut DelayCounts),
) -> Answer<'e, P> {
    match inner {
        Answer::Done(outcome, Durability::Now) => {
            counts.executed += 1;
            counts.after += u64::from(is_late);
            let at = is_late.then(|| Durability::At(append(file, dice)));
            Answer::Done(outcome, at.unwrap_or(Durability::Now))
        }
        Answer::Later(ticket) => {
            assert_eq!(ticket, Ticket::ROOM, "it waits for nothing else");
            counts.for_room += 1;
            Answer::Later(ticket)
        }
        Answer::Done(_, Durability::At(_)) => unreachable!("the inner engine promises nothing"),
    }
}

impl<E> Engine for Delaying<E>
where
    E: Engine<Submission = Infallible, Completion = Infallible>,
{
    type Upload = E::Upload;
    type Pinned = E::Pinned;
    type Submission = Box<FileOperation>;
    type Completion = Box<FileOperation>;
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
        let has_upload = matches!(block, Block::Upload(_));
        match self.is_late(&operation.key, ticket, has_upload) {
            Err(ticket) => Answer::Later(ticket),
            Ok(is_late) => {
                let Self { inner, file, dice, counts, .. } = self;
                answer(inner.execute(operation, block, None, now), is_late, (file, dice, counts))
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
        match self.is_late(key, ticket, false) {
            Err(ticket) => Answer::Later(ticket),
            Ok(is_late) => {
                let Self { inner, file, dice, counts, .. } = self;
                answer(inner.read(key, terms, None, now), is_late, (file, dice, counts))
            }
        }
    }

    fn await_room(&mut self) -> bool {
        self.inner.await_room()
    }

    fn next_submission(&mut self) -> Option<Box<FileOperation>> {
        self.file.next()
    }

    fn complete(&mut self, done: Box<FileOperation>, ready: &mut impl FnMut(u64)) {
        // The bytes for a ticket that was given back are dropped.
        if let Some((ticket, read)) = self.file.complete(done)
            && let Some(fetch) = self.tickets.get_mut(&ticket)
        {
            let wanted = (fetch.offset..fetch.offset + fetch.bytes).map(byte_at);
            // A read that has failed has taken time as well.
            let is_wanted = read.is_none_or(|read| read.iter().copied().eq(wanted));
            assert!(is_wanted, "I3: {fetch:?}");
            fetch.is_named = true;
            ready(ticket);
        }
    }

    fn forget(&mut self, ticket: Ticket) {
        if ticket == Ticket::ROOM {
            return self.inner.forget(ticket);
        }
        let known = self.tickets.remove(&ticket.0);
        assert!(known.is_some(), "I1: a ticket is given back once");
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

impl<E: Engine> Extensions for Delaying<E> {
    const ORDERED: bool = E::ORDERED;

    fn enter(&mut self, core: Place, now: &Now) {
        self.inner.enter(core, now);
    }

    fn prefetch(&self, batch: impl Iterator<Item = Lookup> + Clone) {
        self.inner.prefetch(batch);
    }

    fn scan(
        &mut self,
        cursor: &mut ScanCursor,
        now: &Now,
        items_max: usize,
        show: impl FnMut(&[u8], &dyn ItemView<'_>) -> bool,
    ) -> WalkStep {
        self.inner.scan(cursor, now, items_max, show)
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

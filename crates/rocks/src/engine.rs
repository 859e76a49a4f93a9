//! The engine: what each operation finds in memory, in what is not written yet, or on the disk.
//!
//! Upstream:   `shard`, under the lock of the engine.
//! Downstream: `engine::apply` for the meaning of each verb; `pending`, `fetches` and the database.
//!
//! ```text
//!   find --> pending: known? --> fetches: was it fetched? --> database: in memory? --> a ticket
//!   put, remove, mark --> pending --next_submission--> a batch --complete--> durable
//! ```
//!
//! Invariants:
//! - E1  No call of the library that waits for the disk is made here.
//! - E2  After a batch, a sync or the file of the flushes has failed, nothing is changed and
//!   nothing is written any more.
//! - E3  What an operation with a ticket finds was fetched for its key and is up to date
//!   (`fetches`, F2). It is released with the next call, because its value may be lent until then.
//! - E4  The database has a note of the flush epoch of each of its items. The first change in an
//!   epoch brings it, in the same batch.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use kachel_engine::{
    Answer, Block, Common as _, Cursor, Durability, DurableWord, Engine, EngineOptions,
    EngineStats, Extensions, FileReport, HeapPinned, HeapUpload, HeapValue, ItemView, Key,
    KeyHasher, LastDead, Mark, Needed, NoReader, NotYet, Now, Operation, Primitives, Put, PutValue,
    Refused, Room, ScanCursor, Sequence, Ticket, Tokens, Verb, WalkStep, apply, bytes_of_put,
};
use kachel_io::FileOperation;
use kachel_stdx::is_before;

use crate::accesses::Accesses;
use crate::calls::{Completed, RocksCall, Task};
use crate::change::Change;
use crate::database::{Database, InMemory, Page};
use crate::fetches::{Fetches, Unreadable};
use crate::filter::RecordFilter;
use crate::item::{Known, RocksItem};
use crate::options::RocksSync;
use crate::pending::Pending;
use crate::record::Note;
use crate::reports::Measuring;
use crate::scans::Scans;
use crate::shared::RocksCommon;
use crate::syncs::Syncs;
use crate::walks::Walks;

/// The most calls of an engine that read keys at a time, and the most keys of one. Guesses.
const READS_MAX: usize = 2;
const READ_KEYS_MAX: usize = 32;
/// An operation counts as this many bytes of work beside its value: a lookup of RocksDB takes about
/// as long as it takes to copy as many. A guess.
pub(crate) const OPERATION_BYTES: u64 = 4096;

/// What an engine is made of when it is opened.
pub(crate) struct Parts {
    pub(crate) number: u16,
    pub(crate) common: RocksCommon,
    pub(crate) hasher: KeyHasher,
    pub(crate) database: Database,
    pub(crate) filter: Arc<RecordFilter>,
    pub(crate) tokens: Tokens,
    /// What the database has a note of.
    pub(crate) note: Note,
    pub(crate) sync: RocksSync,
}

/// An engine whose items are in a database of RocksDB. See the head of this file.
#[derive(Debug)]
pub struct Rocks {
    number: u16,
    pub(crate) common: RocksCommon,
    pub(crate) hasher: KeyHasher,
    database: Arc<Database>,
    filter: Arc<RecordFilter>,
    tokens: Tokens,
    /// The last note of the engine (E4).
    noted: Note,
    sync: Syncs,
    pub(crate) pending: Pending,
    fetches: Fetches,
    pub(crate) walks: Walks,
    pub(crate) scans: Scans,
    pub(crate) accesses: Accesses,
    pub(crate) durable: Arc<DurableWord>,
    reads: usize,
    last_ticket: u64,
    /// Tickets that wait until a batch is written, because the next one is full.
    waiting: Vec<u64>,
    /// Whether an upload waits for memory that changes have which are not written.
    is_room_awaited: bool,
    /// The ticket of the operation that was executed last (E3).
    in_use: Option<u64>,
    pub(crate) current: Current,
    has_leased: bool,
    /// Whether a read that has failed was reported.
    has_reported: bool,
    measuring: Measuring,
    stats: EngineStats,
    pub(crate) work_bytes: u64,
    last_dead: Arc<LastDead>,
    /// Of the last operation: the sequence that its outcome depends on, or the ticket that it got.
    outcome_of: Arc<AtomicU64>,
}

/// The item that the operation has found or made, and what else it needs.
#[derive(Debug, Default)]
pub(crate) struct Current {
    key: Vec<u8>,
    secret_hash: u64,
    item: Option<RocksItem>,
    /// The flush epoch in which the operation began.
    pub(crate) epoch: u32,
}

/// The place of the one item that an operation has found or made.
#[derive(Clone, Copy, Debug)]
pub struct TheItem;

impl Rocks {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { number, common, hasher, database, filter, tokens, note, sync } = parts;
        let stats = EngineStats { items: database.items(), ..EngineStats::default() };
        Self {
            number,
            common,
            hasher,
            database: Arc::new(database),
            filter,
            tokens,
            noted: note,
            sync: Syncs::new(sync),
            pending: Pending::default(),
            fetches: Fetches::default(),
            walks: Walks::default(),
            scans: Scans::default(),
            accesses: Accesses::default(),
            durable: Arc::default(),
            reads: 0,
            last_ticket: 0,
            waiting: Vec::new(),
            is_room_awaited: false,
            in_use: None,
            current: Current::default(),
            has_leased: false,
            has_reported: false,
            measuring: Measuring::default(),
            stats,
            work_bytes: 0,
            last_dead: Arc::default(),
            outcome_of: Arc::default(),
        }
    }

    /// Notes the time and all flushes, with which a call begins.
    ///
    /// The word is loaded before the list, and again after the list was taken: an operation that
    /// sees one flush sees each flush before that.
    fn begin(&mut self, now: &Now) {
        if let Some(ticket) = self.in_use.take() {
            self.fetches.release(ticket); // E3
        }
        self.note_failed_flush();
        self.filter.note_time(self.common.seconds().to_unix(now.second));
        self.measuring.note_second(now.second, self.common.reports());
        self.current.epoch = self.common.heap().epoch(now);
        while self.noted.prefix != self.common.newest_prefix() {
            let (ranges, newest) = self.common.take_prefixes(self.noted.prefix);
            for range in ranges {
                let sequence = self.pending.delete_range(&range);
                self.fetches.supersede_range(&range, &Known { sequence, item: None });
            }
            self.noted.prefix = newest;
            self.note();
            self.current.epoch = self.common.heap().epoch(now);
        }
        if self.durable.has_failed() {
            self.pending.fail();
        }
    }

    /// Takes note of a flush that could not be written (E2).
    fn note_failed_flush(&mut self) {
        if self.common.has_failed() && !self.durable.has_failed() {
            self.durable.fail();
        }
    }

    /// Whether an operation must wait until a batch is written. One that waits already has waited
    /// long enough, unless there is no token for it.
    fn must_wait(&self, verb: &Verb, has_ticket: bool) -> bool {
        let is_full = !self.tokens.are_left() || !has_ticket && self.pending.is_full();
        is_full && may_change(verb) && !self.durable.has_failed()
    }

    fn next_ticket(&mut self) -> u64 {
        self.last_ticket += 1;
        self.last_ticket
    }

    /// Notes a change of the current key, whose item is `item` now.
    fn change(&mut self, item: Option<RocksItem>) {
        debug_assert!(!self.durable.has_failed(), "E2");
        let Current { key, .. } = &self.current;
        let known = self.pending.change(key, item);
        self.fetches.supersede(key, &known);
        self.outcome_of.store(known.sequence.0, Relaxed);
        let is_first_of_epoch = self.noted.epoch != self.current.epoch;
        if self.tokens.wants_note() || is_first_of_epoch {
            self.noted.epoch = self.current.epoch; // E4
            self.note();
        }
    }

    /// Writes the note of the engine with the next batch.
    fn note(&mut self) {
        self.noted.tokens = self.tokens.to_note();
        self.pending.note(self.noted);
    }

    /// What is known about a key, without a wait. `None` if the disk must be asked.
    fn look_up(&self, key: &[u8]) -> Result<Option<Known>, Unreadable> {
        if let Some(known) = self.pending.find(key) {
            return Ok(Some(known));
        }
        if let Some(fetched) = self.fetches.find(key) {
            return fetched.clone().map(Some);
        }
        let (heap, seconds) = (self.common.heap(), self.common.seconds());
        let read = |record: &[u8]| RocksItem::of_record(record, heap, seconds);
        let item = match self.database.in_memory(key, read) {
            Ok(InMemory::Missing) => None,
            Ok(InMemory::Found(Ok(item))) => Some(item),
            // The disk decides. RocksDB 7.8 and 8.9 answer such a read with an empty value, and
            // without an error, if the key may be in a file that is not open.
            Ok(InMemory::Unknown | InMemory::Found(Err(_))) | Err(_) => return Ok(None), // E1
        };
        Ok(Some(Known { sequence: Sequence(0), item }))
    }

    /// Whether an item is live; counts one that is not.
    fn is_live(&mut self, item: &RocksItem, now: &Now) -> bool {
        let secret_hash = self.current.secret_hash;
        if item.has_expired(now) {
            self.stats.found_expired += 1;
            self.last_dead.note_expired(secret_hash);
            return false;
        }
        if is_before(item.epoch(), self.current.epoch) {
            self.stats.found_flushed += 1;
            self.last_dead.note_flushed(secret_hash);
            return false;
        }
        true
    }

    /// The value that a put stores. An upload is taken out of `block`.
    fn value(&self, put: &Put, block: &mut Block<'_, HeapUpload>) -> HeapValue {
        let old = || self.current.item.as_ref().expect("change, I2: an item was found").value();
        let value = match (put.value, &mut *block) {
            (PutValue::Unchanged, _) => return old().clone(),
            (PutValue::Block, Block::Upload(_)) => {
                let Block::Upload(upload) = std::mem::replace(block, Block::None) else {
                    unreachable!("it was an upload")
                };
                return upload.into_value();
            }
            (value, block) => bytes_of_put(value, block, || old().bytes()),
        };
        self.common.heap().value(value.into_boxed_slice())
    }

    /// The disk has failed (E2).
    fn fail(&mut self, what: &str, failure: &str) {
        if !self.durable.has_failed() {
            let engine = self.number;
            let text = format!(
                "engine {engine} changes nothing any more: RocksDB cannot {what}: {failure}"
            );
            self.common.reports().files.report_error(text);
        }
        self.durable.fail();
        self.note_report();
        self.pending.fail();
        self.common.refuse_flushes();
    }

    /// Reports the first read that has failed.
    fn report(&mut self, failure: &str) {
        if !self.has_reported {
            let text = format!("engine {}: RocksDB cannot read: {failure}", self.number);
            self.common.reports().files.report_error(text);
        }
        self.has_reported = true;
    }

    /// Reports the numbers of the engine.
    fn note_report(&mut self) {
        self.measuring.report.read_only = u64::from(self.durable.has_failed());
        self.common.reports().files.note(self.number, self.measuring.report.clone());
    }

    /// A batch was written, or not.
    fn written(&mut self, task: Task, failure: Option<String>, ready: &mut impl FnMut(u64)) {
        let Task::Write { batch, syncs } = task else { unreachable!("the caller looked") };
        match failure {
            Some(failure) => self.fail("write", &failure),
            None if self.durable.has_failed() => {} // A sync or a flush has failed meanwhile (E2).
            None => {
                self.pending.committed(&batch);
                self.durable.advance(batch.sequence);
                self.sync.note_written(syncs);
                self.measuring.note_commit(syncs);
                for change in &batch.changes {
                    if let Change::Note(note) = change {
                        self.tokens.note_durable(note.tokens);
                        self.common.note_prefix_written(self.number, note.prefix);
                    }
                }
            }
        }
        drop(batch); // Its values give their memory back.
        self.end_waits(ready);
    }

    /// Names everything that waits until a batch is written.
    fn end_waits(&mut self, ready: &mut impl FnMut(u64)) {
        self.waiting.drain(..).for_each(&mut *ready);
        if std::mem::take(&mut self.is_room_awaited) {
            ready(Ticket::ROOM.0);
        }
    }

    /// Keys were read, or not.
    fn read(&mut self, task: Task, failure: Option<String>, ready: &mut impl FnMut(u64)) {
        let Task::Read { keys, found } = task else { unreachable!("the caller looked") };
        self.reads -= 1;
        let (common, mut found) = (self.common.clone(), found.into_iter());
        for key in keys {
            let read = match (&failure, found.next()) {
                (Some(failure), _) => Err(failure.clone()),
                (None, Some(Ok(None))) => Ok(None),
                (None, Some(Ok(Some(record)))) => {
                    let item = RocksItem::of_record(&record, common.heap(), common.seconds());
                    item.map(Some).map_err(|error| error.to_string())
                }
                (None, Some(Err(error))) => Err(error.to_string()),
                (None, None) => Err("a key was left out".to_owned()),
            };
            let fetched = read.map(|item| Known { sequence: Sequence(0), item });
            let fetched = fetched.map_err(|failure| {
                self.report(&failure);
                Unreadable
            });
            self.fetches.complete(&key, fetched, ready);
        }
    }
}

/// Whether an operation may change something.
fn may_change(verb: &Verb) -> bool {
    match verb {
        Verb::Get(terms) => !terms.life.is_empty() || terms.may_win || terms.leases,
        Verb::Inspect => false,
        Verb::Store(_) | Verb::Delete(_) | Verb::Arithmetic(_) | Verb::Touch(_) => true,
    }
}

impl Primitives for Rocks {
    type At = TheItem;
    type Item<'e> = &'e RocksItem;
    type Upload = HeapUpload;
    type Pinned = HeapPinned;

    fn options(&self) -> &EngineOptions {
        self.common.options()
    }

    fn is_read_only(&self) -> bool {
        self.durable.has_failed()
    }

    /// A plain `set` finds what is known without the database, and replaces whatever is there.
    fn find(
        &mut self,
        key: &Key<'_>,
        needed: Needed,
        now: &Now,
    ) -> Result<Option<TheItem>, NotYet> {
        self.current.item = None;
        self.current.key.clear();
        self.current.key.extend_from_slice(key.bytes());
        self.current.secret_hash = key.secret_hash();
        self.outcome_of.store(0, Relaxed);
        let known = match needed {
            Needed::Place => Ok(self.pending.find(key.bytes())),
            Needed::Facts | Needed::Value => self.look_up(key.bytes()),
        };
        let Known { sequence, item } = match known {
            Ok(Some(known)) => known,
            Ok(None) if needed == Needed::Place => return Ok(None),
            Ok(None) => {
                let ticket = self.next_ticket();
                self.fetches.wait(key.bytes(), ticket);
                self.outcome_of.store(ticket, Relaxed);
                return Err(NotYet);
            }
            Err(Unreadable) => {
                self.outcome_of.store(Sequence::NEVER.0, Relaxed);
                return Err(NotYet);
            }
        };
        self.outcome_of.store(sequence.0, Relaxed);
        let Some(mut item) = item else { return Ok(None) };
        if !self.is_live(&item, now) {
            return Ok(None);
        }
        self.work_bytes += item.value().bytes().len() as u64;
        item.set_access(self.accesses.last(key.secret_hash()));
        self.current.item = Some(item);
        Ok(Some(TheItem))
    }

    fn item(&self, TheItem: TheItem) -> &RocksItem {
        self.current.item.as_ref().expect("it was found or made")
    }

    fn remove(&mut self, key: &Key<'_>, TheItem: TheItem) {
        debug_assert!(key.bytes() == self.current.key, "it was found under this key");
        self.current.item = None;
        self.change(None);
    }

    fn mark(&mut self, _key: &Key<'_>, TheItem: TheItem, mark: Mark) {
        let mut item = self.item(TheItem).clone();
        item.mark(mark, self.common.seconds());
        self.current.item = Some(item.clone());
        self.change(Some(item));
    }

    fn put(
        &mut self,
        key: &Key<'_>,
        found: Option<TheItem>,
        put: &Put,
        block: &mut Block<'_, HeapUpload>,
        now: &Now,
    ) -> Result<TheItem, Refused> {
        debug_assert!(key.bytes() == self.current.key, "it was looked for under this key");
        let token = self.tokens.take();
        let has_token = self.options().cas || put.remnant;
        let cas = if has_token { put.cas.unwrap_or(token) } else { 0 };
        let value = self.value(put, block);
        self.work_bytes += value.bytes().len() as u64;
        let seconds = self.common.seconds();
        let mut item = RocksItem::new(put, (cas, self.current.epoch), value, now, seconds);
        match self.current.item.as_ref().filter(|_| found.is_some() && put.keeps_access) {
            Some(old) => item.keep_access(old),
            None => self.accesses.forget(key.secret_hash()),
        }
        self.has_leased |= put.remnant;
        self.current.item = Some(item.clone());
        self.change(Some(item));
        Ok(TheItem)
    }

    fn note_access(&self, TheItem: TheItem, now: &Now) {
        self.accesses.note(self.current.secret_hash, now.second);
    }

    fn has_leased(&self) -> bool {
        self.has_leased
    }

    fn pin(&self, TheItem: TheItem) -> HeapPinned {
        self.common.heap().pin(self.item(TheItem).value())
    }
}

impl Engine for Rocks {
    type Upload = HeapUpload;
    type Pinned = HeapPinned;
    type Submission = Box<FileOperation>;
    type Completion = Box<FileOperation>;
    type Reader = NoReader<HeapPinned>;
    type Common = RocksCommon;

    fn common(&self) -> RocksCommon {
        self.common.clone()
    }

    fn reader(&self) -> NoReader<HeapPinned> {
        NoReader::default()
    }

    fn execute<'e>(
        &'e mut self,
        operation: &Operation<'_>,
        block: &mut Block<'_, HeapUpload>,
        ticket: Option<Ticket>,
        now: &Now,
    ) -> Answer<'e, HeapPinned> {
        self.begin(now);
        self.in_use = ticket.map(|Ticket(ticket)| ticket);
        self.work_bytes += OPERATION_BYTES;
        if self.must_wait(&operation.verb, self.in_use.is_some()) {
            let ticket = self.next_ticket();
            self.waiting.push(ticket);
            return Answer::Later(Ticket(ticket));
        }
        let (noted, durable) = (Arc::clone(&self.outcome_of), Arc::clone(&self.durable));
        let outcome = apply(self, operation, block, now);
        match (outcome, Sequence(noted.load(Relaxed))) {
            // It has changed nothing, because the engine is read-only.
            (Ok(_), sequence) if durable.is_lost(sequence) => Answer::disk_failed(),
            (Ok(outcome), sequence) => Answer::Done(outcome, Durability::of(sequence, &durable)),
            (Err(NotYet), Sequence::NEVER) => Answer::disk_failed(),
            (Err(NotYet), Sequence(ticket)) => Answer::Later(Ticket(ticket)),
        }
    }

    /// An upload that waits is named when a batch was written.
    fn await_room(&mut self) -> bool {
        !self.is_room_awaited
    }

    fn deadline_ns(&self) -> Option<u64> {
        if self.durable.has_failed() {
            // No batch ends these waits any more.
            let is_any_waiting = self.is_room_awaited || !self.waiting.is_empty();
            return is_any_waiting.then_some(0);
        }
        self.sync.deadline_ns()
    }

    fn reach(&mut self, now_ns: u64, ready: &mut impl FnMut(u64)) {
        if self.durable.has_failed() {
            return self.end_waits(ready);
        }
        self.sync.reach(now_ns);
    }

    fn next_submission(&mut self) -> Option<Box<FileOperation>> {
        self.note_failed_flush();
        let has_failed = self.durable.has_failed();
        if !has_failed && let Some(batch) = self.pending.take_batch() {
            // The note about tokens is durable in every mode: no token may come back.
            let syncs = self.sync.is_always() || self.tokens.is_noting();
            let task = Task::Write { batch, syncs };
            return Some(RocksCall::operation(&self.database, task)); // E1
        }
        if self.reads < READS_MAX {
            let keys = self.fetches.take_wanted(READ_KEYS_MAX);
            if !keys.is_empty() {
                self.reads += 1;
                let task = Task::Read { keys, found: Vec::new() };
                return Some(RocksCall::operation(&self.database, task));
            }
        }
        if let Some((walk, behind)) = self.walks.take_wanted(&self.durable) {
            let task = Task::Page { walk, behind, page: Page::default() };
            return Some(RocksCall::operation(&self.database, task));
        }
        if let Some(wanted) = self.scans.take_wanted(&mut self.pending) {
            let task = Task::ScanPage { wanted, page: Page::default() };
            return Some(RocksCall::operation(&self.database, task));
        }
        if !has_failed && self.sync.begin() {
            return Some(RocksCall::operation(&self.database, Task::Sync));
        }
        if self.measuring.take_wanted(self.common.reports()) {
            let task = Task::Measure { measured: FileReport::default(), items: 0 };
            return Some(RocksCall::operation(&self.database, task));
        }
        None
    }

    fn complete(&mut self, mut done: Box<FileOperation>, ready: &mut impl FnMut(u64)) {
        self.note_failed_flush();
        let Completed { task, failure } = RocksCall::completed(&mut done);
        match task {
            Task::Write { .. } => self.written(task, failure, ready),
            Task::Read { .. } => self.read(task, failure, ready),
            Task::Page { walk, page, .. } => {
                failure.iter().for_each(|failure| self.report(failure));
                self.walks.complete(walk, failure.is_none().then_some(page));
            }
            Task::ScanPage { wanted, page } => {
                failure.iter().for_each(|failure| self.report(failure));
                let page = failure.is_none().then_some(page);
                self.scans.complete(wanted, page, &mut self.pending);
            }
            Task::Sync => {
                self.sync.end();
                match failure {
                    Some(failure) => self.fail("sync", &failure),
                    None => self.measuring.note_sync(),
                }
            }
            Task::Measure { measured, items } => {
                if failure.is_none() {
                    self.measuring.note_measured(measured);
                    self.stats.items = items;
                }
                self.note_report();
            }
        }
    }

    fn forget(&mut self, Ticket(ticket): Ticket) {
        self.waiting.retain(|waiting| *waiting != ticket);
        self.fetches.release(ticket);
    }

    fn durable(&self) -> &Arc<DurableWord> {
        &self.durable
    }

    fn maintain(&mut self, now: &Now) -> usize {
        self.begin(now);
        self.walks.drop_unused(now.second);
        self.scans.drop_unused(now.second);
        0
    }

    fn walk(
        &mut self,
        cursor: &mut Cursor,
        now: &Now,
        items_max: usize,
        show: impl FnMut(&[u8], &dyn ItemView<'_>) -> bool,
    ) -> WalkStep {
        self.begin(now);
        self.step_walk(cursor, now, items_max, show)
    }

    fn work_bytes(&self) -> u64 {
        self.work_bytes
    }

    fn stats(&self) -> EngineStats {
        EngineStats { index_items: self.stats.items, ..self.stats }
    }
}

impl Extensions for Rocks {
    const WALKS_IN_MEMORY: bool = false;
    const ORDERED: bool = true;

    /// The memory that an upload needs comes when changes are written. Without any, other uploads
    /// have it.
    fn make_upload_room(&mut self, bytes: usize, _now: &Now) -> Room {
        if self.common.heap().has_room(bytes) {
            return Room::Made;
        }
        if self.durable.has_failed() || !self.pending.is_any() {
            return Room::Refused;
        }
        self.is_room_awaited = true;
        Room::OnTheWay
    }

    fn scan(
        &mut self,
        cursor: &mut ScanCursor,
        now: &Now,
        items_max: usize,
        show: impl FnMut(&[u8], &dyn ItemView<'_>) -> bool,
    ) -> WalkStep {
        self.begin(now);
        self.step_scan(cursor, now, items_max, show)
    }

    fn last_dead(&self) -> Arc<LastDead> {
        Arc::clone(&self.last_dead)
    }
}

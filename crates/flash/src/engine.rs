//! The engine, as the contract asks for it: which operations wait, and what completions bring.
//!
//! Upstream:   `shard`, under the lock of the engine.
//! Downstream: `store` for what a verb does; the log for files.
//!
//! No call waits for a disk: only completions bring what is on it.
//!
//! Invariants, cited by number where they are asserted:
//! - E1  An operation with a ticket finds the record that was fetched for it. The next operation
//!   releases the record.
//! - E2  An operation that waits for the log is named when the least of those that wait has room,
//!   or will have none. That is examined after whatever may change it: a completion, a submission,
//!   and a step of upkeep.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use kachel_cache::{CachePinned, CacheUpload};
use kachel_engine::{
    Answer, Block, Cursor, Durability, DurableWord, Engine, EngineStats, Extensions, GetTerms,
    ItemView, Key, KeyHasher, LastDead, Lookup, Needed, NotYet, Now, Operation, Outcome,
    Primitives as _, Room, ScanCursor, Ticket, Value, Verb, Verdict, WalkNext, WalkStep, apply,
    get,
};
use kachel_io::FileOperation;
use kachel_log::{AppendRefused, Completed, DurableLog};
use kachel_stdx::Place;

use crate::browse::{Browsed, Walks};
use crate::collection::Stepped;
use crate::fetches::OWN_TICKETS;
use crate::reader::FlashReader;
use crate::recent::RecentChanges;
use crate::shared::FlashCommon;
use crate::store::{NO_MEMORY, PART_TOKENS, Store, UNREADABLE};

/// How often an engine that lacks space tries again, in nanoseconds.
const RETRY_NS: u64 = 1_000_000_000;

/// An engine whose items are on a log. See the head of the crate.
#[derive(Debug)]
pub struct Flash {
    number: u16,
    store: Store,
    recent: Arc<RecentChanges>,
    durable: Arc<DurableWord>,
    /// The ticket of the operation that could not be executed.
    ticket: Arc<AtomicU64>,
    /// The ticket of the operation that was executed last (E1).
    in_use: Option<u64>,
    /// Whether operations wait for room on the log (E2).
    is_room_awaited: bool,
    walks: Walks,
    hasher: KeyHasher,
    /// The tickets that are ready and were not named.
    ready: Vec<u64>,
    /// When the log was tended last.
    tended_ns: u64,
    /// Whether a failure, and a read that has failed, were reported.
    has_reported_failure: bool,
    has_reported_read: bool,
    /// Whether the file system lacks space for the log, and that was reported.
    has_reported_space: bool,
    /// The second in which the numbers of `stats engine` were noted.
    reported: u32,
    counts: FlashCounts,
}

/// What an engine has done since its start. A test sees by this what it has covered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlashCounts {
    /// Records that were read because an item was not in memory.
    pub records_read: u64,
    /// Segments whose garbage was collected.
    pub segments_freed: u64,
}

/// Whether an operation prepares for a change before it is executed. Other reads that change the
/// life of an item prepare for that when they have found it (`Primitives::prepare_mark`).
fn changes(verb: &Verb) -> bool {
    match verb {
        Verb::Get(terms) => terms.leases,
        Verb::Inspect => false,
        Verb::Store(_) | Verb::Delete(_) | Verb::Arithmetic(_) | Verb::Touch(_) => true,
    }
}

/// The answer to an operation for which there is no room on the disk or in memory.
fn no_room<'e, P>() -> Answer<'e, P> {
    let (verdict, value) = (Verdict::NoMemory { found: false }, Value::None);
    Answer::Done(Outcome { verdict, value }, Durability::Now)
}

impl Flash {
    pub(crate) fn new(
        number: u16,
        store: Store,
        hasher: KeyHasher,
        recent: Arc<RecentChanges>,
        durable: Arc<DurableWord>,
    ) -> Self {
        let ticket = Arc::clone(&store.ticket);
        Self {
            number,
            store,
            recent,
            durable,
            ticket,
            in_use: None,
            is_room_awaited: false,
            walks: Walks::default(),
            hasher,
            ready: Vec::new(),
            tended_ns: 0,
            has_reported_failure: false,
            has_reported_read: false,
            has_reported_space: false,
            reported: 0,
            counts: FlashCounts::default(),
        }
    }

    /// What the engine has done since its start.
    #[must_use]
    pub const fn counts(&self) -> FlashCounts {
        self.counts
    }

    /// Begins an operation. `Some` if it must wait, or cannot be executed.
    #[inline]
    fn begin(&mut self, ticket: Option<Ticket>, changes: bool) -> Option<Refusal> {
        if let Some(ticket) = self.in_use.take() {
            self.forget(Ticket(ticket)); // E1
        }
        self.in_use = ticket.map(|Ticket(ticket)| ticket).filter(|ticket| *ticket != 0);
        self.store.use_number();
        self.store.waits_for_log = false;
        if !changes {
            return None;
        }
        match self.store.prepare_change() {
            Ok(()) | Err(AppendRefused::Failed) => None,
            Err(AppendRefused::NoSpace) => Some(Refusal::NoRoom),
            Err(AppendRefused::Wait) => {
                self.is_room_awaited = true;
                Some(Refusal::Later)
            }
        }
    }

    /// The answer to an operation on a key.
    #[inline]
    fn answer<'e>(
        applied: Result<Outcome<'e, CachePinned>, NotYet>,
        (recent, durable): (&RecentChanges, &DurableWord),
        secret_hash: u64,
        ticket: &AtomicU64,
    ) -> Answer<'e, CachePinned> {
        match applied {
            Ok(outcome) => {
                let sequence = recent.last(secret_hash);
                if durable.is_lost(sequence) {
                    return Answer::disk_failed();
                }
                Answer::Done(outcome, Durability::of(sequence, durable))
            }
            Err(NotYet) => match ticket.swap(0, Relaxed) {
                UNREADABLE => Answer::disk_failed(),
                NO_MEMORY => no_room(),
                ticket => Answer::Later(Ticket(ticket)),
            },
        }
    }

    /// Handles the effects of completions: durable changes, room, and a failure.
    fn follow_up(&mut self, ready: &mut impl FnMut(u64)) {
        let Store { changes, log, .. } = &mut self.store;
        changes.advance(log.durable());
        let synced = log.synced();
        if self.store.noted_tokens.is_some_and(|sequence| sequence < synced) {
            self.store.noted_tokens = None;
            self.store.tokens.note_durable(self.store.newest_note);
        }
        self.store.end_prefixes(self.number);
        if let Some(failure) = self.store.log.failure()
            && !self.has_reported_failure
        {
            self.has_reported_failure = true;
            let number = self.number;
            let text = format!("engine {number} changes nothing any more: {failure}");
            self.store.common.reports().report_error(text);
            self.store.common.refuse_flushes();
        }
        self.report_space();
        self.name_waiting();
        self.ready.drain(..).for_each(&mut *ready);
    }

    /// Writes a line when the file system begins or ends to lack space for the log.
    fn report_space(&mut self) {
        let lacks_space = self.store.log.lacks_space();
        if lacks_space != std::mem::replace(&mut self.has_reported_space, lacks_space) {
            let number = self.number;
            let what = if lacks_space {
                "the file system has no space for more of its log, so stores may be refused"
            } else {
                "the file system has space for its log again"
            };
            let line = format_args!("engine {number}: {what}");
            kachel_host::log(kachel_host::Level::Warning, line, &[]);
        }
    }

    /// Names the operations that wait for the log if one of them may go on (E2).
    fn name_waiting(&mut self) {
        if self.is_room_awaited && self.store.has_news_for_waiting() {
            self.is_room_awaited = false;
            self.store.collection.wanted_spares = 0; // An operation that needs them asks again.
            self.ready.push(Ticket::ROOM.0);
        }
    }

    /// The answer to an operation for which the log has no room now. What was read for it goes to
    /// the cache, so it is not read again when there is room.
    fn wait_for_room(&mut self, key: &Key<'_>, now: &Now) -> Ticket {
        if self.in_use.is_some() && self.store.find(key, Needed::Value, now).is_err() {
            let ticket = self.ticket.swap(0, Relaxed);
            if ![0, UNREADABLE, NO_MEMORY].contains(&ticket) {
                return Ticket(ticket); // The next part of a large value.
            }
        }
        Ticket::ROOM
    }
}

impl Flash {
    /// A step of a walk or of a scan, which goes on behind `key` and gives back the tickets that it
    /// has held. Returns those that it holds now.
    fn step_browse(
        &mut self,
        key: &mut Vec<u8>,
        held: Vec<u64>,
        now: &Now,
        items_max: usize,
        show: impl FnMut(&[u8], &dyn ItemView<'_>) -> bool,
    ) -> (WalkStep, Vec<u64>) {
        let (mut next_held, mut items) = (Vec::new(), 0);
        let terms = (&self.hasher, now, items_max);
        let ticket = OWN_TICKETS + self.store.next_ticket();
        let reads = (ticket, self.walks.reads_max(), &mut next_held);
        let ended = self.store.browse(key, terms, reads, &mut items, show);
        self.store.release(held);
        let next = match ended {
            Browsed::End => WalkNext::End,
            Browsed::More => WalkNext::More,
            Browsed::Read | Browsed::NotDurable(_) => WalkNext::Later,
        };
        (WalkStep { items, next }, next_held)
    }

    /// Remembers a walk or a scan until its next step. Returns its cursor.
    fn remember(&mut self, key: Vec<u8>, held: Vec<u64>, now: &Now) -> Cursor {
        let (cursor, forgotten) = self.walks.put(key, held, now.second);
        self.store.release(forgotten);
        cursor
    }

    /// Reports the first record that cannot be read.
    fn report(&mut self, refusal: &dyn std::fmt::Display) {
        if !std::mem::replace(&mut self.has_reported_read, true) {
            let number = self.number;
            let text = format!("engine {number} cannot read an item: {refusal}");
            self.store.common.reports().report_error(text);
        }
    }
}

/// Why an operation is not executed.
#[derive(Clone, Copy, Debug)]
enum Refusal {
    Later,
    NoRoom,
}

impl Engine for Flash {
    type Upload = CacheUpload;
    type Pinned = CachePinned;
    type Submission = Box<FileOperation>;
    type Completion = Box<FileOperation>;
    type Reader = FlashReader;
    type Common = FlashCommon;

    fn common(&self) -> FlashCommon {
        self.store.common.clone()
    }

    fn reader(&self) -> FlashReader {
        FlashReader {
            cache: self.store.cache.reader(),
            recent: Arc::clone(&self.recent),
            durable: Arc::clone(&self.durable),
        }
    }

    fn execute<'e>(
        &'e mut self,
        operation: &Operation<'_>,
        block: &mut Block<'_, CacheUpload>,
        ticket: Option<Ticket>,
        now: &Now,
    ) -> Answer<'e, CachePinned> {
        match self.begin(ticket, changes(&operation.verb)) {
            None => {}
            Some(Refusal::Later) => return Answer::Later(self.wait_for_room(&operation.key, now)),
            Some(Refusal::NoRoom) => return no_room(),
        }
        let Self { store, recent, durable, ticket, .. } = self;
        let hash = operation.key.secret_hash();
        Self::answer(apply(store, operation, block, now), (recent, durable), hash, ticket)
    }

    #[inline]
    fn read<'e>(
        &'e mut self,
        key: &Key<'_>,
        terms: &GetTerms,
        ticket: Option<Ticket>,
        now: &Now,
    ) -> Answer<'e, CachePinned> {
        match self.begin(ticket, terms.leases) {
            None => {}
            Some(Refusal::Later) => return Answer::Later(self.wait_for_room(key, now)),
            Some(Refusal::NoRoom) => return no_room(),
        }
        let Self { store, recent, durable, ticket, .. } = self;
        let hash = key.secret_hash();
        Self::answer(get(store, key, terms, now), (recent, durable), hash, ticket)
    }

    fn await_room(&mut self) -> bool {
        if self.store.waits_for_log {
            self.is_room_awaited = true;
            return false;
        }
        self.store.cache.await_room()
    }

    fn deadline_ns(&self) -> Option<u64> {
        if !self.ready.is_empty() {
            return Some(0);
        }
        let log = &self.store.log;
        let retry = log.lacks_space().then(|| self.tended_ns.saturating_add(RETRY_NS));
        [log.deadline_ns(), retry].into_iter().flatten().min()
    }

    fn reach(&mut self, now_ns: u64, ready: &mut impl FnMut(u64)) {
        self.tended_ns = now_ns;
        self.store.log.tend(now_ns);
        self.follow_up(ready);
    }

    fn next_submission(&mut self) -> Option<Box<FileOperation>> {
        self.store.use_number();
        self.store.note_tokens();
        self.store.go_on_writing();
        self.store.append_prefixes();
        let Store { fetches, part_fetches, index, log, collection, .. } = &mut self.store;
        for fetches in [fetches, part_fetches] {
            fetches.begin_reads(log, |key, position| index.names(key, position), &mut self.ready);
        }
        let submission = log.next_submission().or_else(|| collection.next_submission());
        self.name_waiting(); // A commit that is submitted makes room.
        submission
    }

    fn complete(&mut self, completion: Box<FileOperation>, ready: &mut impl FnMut(u64)) {
        // What was brought is work for the next step of upkeep.
        self.store.work_bytes += 1;
        if !DurableLog::owns(&completion) {
            return self.store.collection.complete(completion);
        }
        match self.store.log.complete(completion) {
            Completed::Progress => {}
            Completed::Freed(segment) => {
                self.counts.segments_freed += 1;
                self.store.index.freed(segment);
                self.store.collection.freed(segment);
            }
            Completed::Read(done) => {
                self.counts.records_read += 1;
                let is_part = done.token >= PART_TOKENS;
                let Store { fetches, part_fetches, .. } = &mut self.store;
                let fetches = if is_part { part_fetches } else { fetches };
                if let Some(refusal) = fetches.complete(done, ready) {
                    self.report(&refusal);
                }
            }
        }
        self.store.go_on_writing();
        self.follow_up(ready);
    }

    fn forget(&mut self, Ticket(ticket): Ticket) {
        self.store.fetches.release(ticket);
        self.store.part_fetches.release(ticket);
    }

    fn durable(&self) -> &Arc<DurableWord> {
        &self.durable
    }

    fn maintain(&mut self, now: &Now) -> usize {
        if self.store.landings.drop_idle(now.second) {
            self.ready.push(Ticket::ROOM.0);
        }
        let idle = self.walks.take_idle(now.second);
        self.store.release(idle);
        let collected = match self.store.collect(now) {
            Stepped::Idle => 0,
            Stepped::Worked(bytes) => bytes as usize,
            Stepped::Damaged(refusal) => {
                self.report(&refusal);
                1
            }
        };
        self.store.work_bytes += collected as u64;
        if self.reported != now.second {
            self.reported = now.second;
            self.store.common.reports().note(self.number, self.store.file_report());
        }
        let swept = self.store.sweep(now) + self.store.sweep_prefixes();
        self.store.end_prefixes(self.number);
        self.name_waiting(); // The collection may have found that it gains nothing.
        self.store.cache.maintain(now) + collected + swept
    }

    fn walk(
        &mut self,
        cursor: &mut Cursor,
        now: &Now,
        items_max: usize,
        show: impl FnMut(&[u8], &dyn ItemView<'_>) -> bool,
    ) -> WalkStep {
        let Some((mut key, held)) = self.walks.take(*cursor) else {
            return WalkStep { items: 0, next: WalkNext::Failed };
        };
        let (step, next_held) = self.step_browse(&mut key, held, now, items_max, show);
        if step.next != WalkNext::End {
            *cursor = self.remember(key, next_held, now);
        }
        step
    }

    fn work_bytes(&self) -> u64 {
        self.store.cache.work_bytes() + self.store.work_bytes
    }

    fn stats(&self) -> EngineStats {
        let Store { cache, index, found_expired, found_flushed, .. } = &self.store;
        let of_cache = cache.stats();
        EngineStats {
            index_items: index.len() as u64,
            index_bytes: of_cache.index_bytes + index.charged_bytes(),
            items: index.len() as u64,
            found_expired: of_cache.found_expired + found_expired,
            found_flushed: of_cache.found_flushed + found_flushed,
            prefix_flushed: self.store.prefixes.removed,
            // Evicting a copy loses no item, so it is not counted as an eviction.
            evictions: 0,
            evicted_unfetched: 0,
            evicted_active: 0,
            evicted_age_s: 0,
            ..of_cache
        }
    }
}

impl Extensions for Flash {
    const WALKS_IN_MEMORY: bool = false;
    const ORDERED: bool = true;

    fn enter(&mut self, core: Place, now: &Now) {
        self.store.enter(core, now);
    }

    fn scan(
        &mut self,
        cursor: &mut ScanCursor,
        now: &Now,
        items_max: usize,
        show: impl FnMut(&[u8], &dyn ItemView<'_>) -> bool,
    ) -> WalkStep {
        let mut key = cursor.key().to_vec();
        let held = self.walks.take_held(cursor.reads);
        let (step, next_held) = self.step_browse(&mut key, held, now, items_max, show);
        cursor.pass(&key);
        // The key is in the cursor, so only tickets must be remembered.
        cursor.reads = match next_held.is_empty() {
            true => Cursor::default(),
            false => self.remember(Vec::new(), next_held, now),
        };
        step
    }

    #[inline]
    fn prefetch(&self, batch: impl Iterator<Item = Lookup> + Clone) {
        self.store.cache.prefetch(batch);
    }

    fn make_upload_room(&mut self, bytes: usize, now: &Now) -> Room {
        self.store.cache.make_upload_room(bytes, now)
    }

    fn make_room(&mut self, bytes: u64, now: &Now) -> Room {
        self.store.cache.make_room(bytes, now)
    }

    fn last_dead(&self) -> Arc<LastDead> {
        self.store.cache.last_dead()
    }
}

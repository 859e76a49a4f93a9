//! What each verb finds, and what each change writes.
//!
//! Upstream:   `engine`, by `apply`, which decides what a verb changes.
//! Downstream: the cache has the items that are in memory; the index names a record for each item.
//!
//! ```text
//!   find --> in the cache? --> in the index? --> fetched? --> a ticket
//!   put, remove, mark --> room on the log --> the cache --> the record --> the index
//! ```
//!
//! Invariants, cited by number where they are asserted:
//! - S1  A change is appended to the log in the call that makes it, so the log has the changes in
//!   their order.
//! - S2  Before a core can see a change, `recent` says what its readers wait for.
//! - S3  An item that is in the cache is the one that the index names, with its life.
//! - S4  After a failure of the log, or of the file of the flushes, nothing is changed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use arrayvec::ArrayVec;
use kachel_cache::{Cache, CachePinned, CacheUpload, CachedItem};
use kachel_engine::{
    Block, Common as _, EngineOptions, Extensions as _, INLINE_VALUE_BYTES_MAX, ItemView as _,
    KeptSeconds, Key, Mark, Needed, NotYet, Now, Primitives, Put, PutValue, ReadValue as _,
    ReceiveValue as _, Refused, Room, Sequence, Tokens,
};
use kachel_log::{AppendRefused, DurableLog, Position, UNIT_BYTES};
use kachel_stdx::{Place, is_before};

use crate::acknowledgement::Acknowledgements;
use crate::collection::Collection;
use crate::fetches::Fetches;
use crate::index::{Entry, Index, Parts};
use crate::landing::{Landing, Landings};
use crate::prefixes::PrefixFlushes;
use crate::recent::RecentChanges;
use crate::record::{self, GRAVE, ITEM, ITEM_HEAD_BYTES, ItemHead, LIFE, Marks, Record};
use crate::shared::FlashCommon;
use crate::writing::{self, LargeWrite, Wrote};

/// The most pieces of a record: its head, its key, and a value in pieces of 16 KiB.
const PIECES_MAX: usize = 32;
/// What an operation counts as, in bytes of work, beside the bytes that it copies.
const CHANGE_BYTES: u64 = 512;

/// The item that was found, in the cache.
type FindResult = Result<Option<<Cache as Primitives>::At>, NotYet>;

/// Items in memory and on the log. See the head of this file.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) common: FlashCommon,
    pub(crate) cache: Cache,
    pub(crate) log: DurableLog,
    pub(crate) index: Index,
    pub(crate) fetches: Fetches,
    /// Reads of parts of values, and the values that are put together of them.
    pub(crate) part_fetches: Fetches,
    pub(crate) landings: Landings,
    /// The large value that is being written.
    pub(crate) writing: Option<LargeWrite>,
    pub(crate) collection: Collection,
    pub(crate) prefixes: PrefixFlushes,
    pub(crate) changes: Acknowledgements,
    pub(crate) tokens: Tokens,
    /// The sequence of the note about tokens that is being written.
    pub(crate) noted_tokens: Option<u64>,
    /// What the newest note says.
    pub(crate) newest_note: u64,
    recent: Arc<RecentChanges>,
    seconds: KeptSeconds,
    /// The core that uses the engine.
    core: Option<Place>,
    /// The ticket of the operation that could not be executed.
    pub(crate) ticket: Arc<AtomicU64>,
    last_ticket: u64,
    /// Whether the operation waits for the log.
    pub(crate) waits_for_log: bool,
    /// The least that operations have waited for since they were named last.
    pub(crate) least_awaited: Demand,
    /// A number that was noted for a change that was not made.
    pub(crate) unused_number: Option<Sequence>,
    pub(crate) work_bytes: u64,
    pub(crate) found_expired: u64,
    pub(crate) found_flushed: u64,
    has_leased: bool,
    /// The number of flushes when items that are dead were looked for last.
    pub(crate) swept_epoch: u32,
}

/// What an operation needs of the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand {
    /// The bytes of a payload. 0: it waits for any completion.
    pub(crate) payload_bytes: usize,
    /// The segments that stay free.
    pub(crate) spares: u32,
}

impl Demand {
    /// Nothing is asked for.
    pub(crate) const NONE: Self = Self { payload_bytes: usize::MAX, spares: u32::MAX };
}

/// The parts of a store when it is opened.
pub(crate) struct StoreParts {
    pub(crate) common: FlashCommon,
    pub(crate) cache: Cache,
    pub(crate) log: DurableLog,
    pub(crate) index: Index,
    pub(crate) changes: Acknowledgements,
    pub(crate) tokens: Tokens,
    pub(crate) newest_note: u64,
    pub(crate) recent: Arc<RecentChanges>,
    pub(crate) collection: Collection,
    pub(crate) prefixes: PrefixFlushes,
}

/// Reads of parts have the tokens from here on.
pub(crate) const PART_TOKENS: u64 = 1 << 40;

/// The ticket of an operation that the disk prevents.
pub(crate) const UNREADABLE: u64 = u64::MAX;
/// The ticket of an operation for whose item there is no memory.
pub(crate) const NO_MEMORY: u64 = u64::MAX - 1;

impl Store {
    pub(crate) fn new(parts: StoreParts) -> Self {
        let StoreParts {
            common,
            cache,
            log,
            index,
            changes,
            tokens,
            newest_note,
            recent,
            collection,
            prefixes,
        } = parts;
        let seconds = common.seconds();
        Self {
            common,
            cache,
            log,
            index,
            fetches: Fetches::with_tokens_from(0),
            part_fetches: Fetches::with_tokens_from(PART_TOKENS),
            landings: Landings::default(),
            writing: None,
            collection,
            prefixes,
            changes,
            tokens,
            noted_tokens: None,
            newest_note,
            recent,
            seconds,
            core: None,
            ticket: Arc::default(),
            last_ticket: 0,
            waits_for_log: false,
            least_awaited: Demand::NONE,
            unused_number: None,
            work_bytes: 0,
            found_expired: 0,
            found_flushed: 0,
            has_leased: false,
            swept_epoch: 0,
        }
    }

    pub(crate) fn enter(&mut self, core: Place, now: &Now) {
        self.core = Some(core);
        self.cache.enter(core, now);
        self.note_prefixes();
    }

    /// Appends a record of a change, for which there is room (S1).
    pub(crate) fn append(&mut self, kind: u8, epoch: u32, parts: &[&[u8]]) -> kachel_log::Appended {
        let appended = self.log.append(kind, epoch, parts, 0);
        let appended = appended.expect("S1: the log was prepared, and nothing was appended since");
        self.changes.appended(appended.commit);
        self.work_bytes += CHANGE_BYTES + appended.position.record_bytes();
        appended
    }

    /// The item of a key that is not in memory.
    #[cold]
    fn find_on_log(&mut self, key: &Key<'_>, now: &Now) -> FindResult {
        if self.writing.as_ref().is_some_and(|writing| *writing.key == *key.bytes()) {
            // It has left the memory before the index has it (S3).
            return Err(self.wait_for_completion());
        }
        let Some(entry) = self.index.get(key.bytes()) else { return Ok(None) };
        let entry = entry.clone();
        if !self.is_live(key.bytes(), &entry, now) {
            return Ok(None);
        }
        if let Some(parts) = &entry.parts {
            return self.find_large(key, &entry, parts, now);
        }
        self.find_small(key, &entry, now)
    }

    /// Whether the item of an entry is live.
    fn is_live(&mut self, key: &[u8], entry: &Entry, now: &Now) -> bool {
        if self.has_expired(entry.expiry_unix_s, now) {
            self.found_expired += 1;
            return false;
        }
        let is_flushed = is_before(entry.epoch, self.common.epoch(now));
        if is_flushed || self.prefixes.has_flushed(key, entry.sequence) {
            self.found_flushed += 1;
            return false;
        }
        true
    }

    pub(crate) fn has_expired(&self, expiry_unix_s: u32, now: &Now) -> bool {
        expiry_unix_s != 0 && self.seconds.of_unix(expiry_unix_s) <= now.second
    }

    /// The operation is executed again when a ticket is ready.
    pub(crate) fn wait(&mut self, ticket: u64) -> NotYet {
        self.ticket.store(ticket, Relaxed);
        NotYet
    }

    /// There is no memory for an item that was read, for now or at all.
    fn wait_for_memory(&mut self, refused: Refused) -> NotYet {
        self.wait(match refused {
            Refused::NotYet => 0,
            Refused::NoRoom => NO_MEMORY,
        })
    }

    /// A number that no ticket has had.
    pub(crate) fn next_ticket(&mut self) -> u64 {
        self.last_ticket += 1;
        self.last_ticket
    }

    /// The last change that a reader of a key must wait for, if it is not durable.
    pub(crate) fn not_durable(&self, secret_hash: u64) -> Option<Sequence> {
        let last = self.recent.last(secret_hash);
        (!self.changes.durable().has_reached(last)).then_some(last)
    }

    /// Has the operation wait for a record of its key.
    fn fetch(&mut self, key: &Key<'_>, position: Position, is_part: bool) -> NotYet {
        let ticket = self.next_ticket();
        let fetches = if is_part { &mut self.part_fetches } else { &mut self.fetches };
        fetches.wait(key.bytes(), position, ticket);
        self.wait(ticket)
    }

    /// The item of an entry, once its record was fetched. It goes to the cache.
    fn find_small(&mut self, key: &Key<'_>, entry: &Entry, now: &Now) -> FindResult {
        let Some(fetched) = self.fetches.find(key.bytes(), entry.position, Some(entry.sequence))
        else {
            return Err(self.fetch(key, entry.position, false));
        };
        let (head, value) = match fetched.record() {
            Some(Record::Item { key: found, head, value }) if found == key.bytes() => (head, value),
            _ => return Err(self.wait(UNREADABLE)),
        };
        self.work_bytes += CHANGE_BYTES + value.len() as u64;
        let put = self.put_of(entry, head.client_flags, head.cas);
        if value.len() <= INLINE_VALUE_BYTES_MAX {
            return match self.cache.put(key, None, &put, &mut Block::Bytes(value), now) {
                Ok(at) => Ok(Some(at)), // S3
                Err(refused) => Err(self.wait_for_memory(refused)),
            };
        }
        let core = self.core.expect("a core has entered");
        let Some(mut upload) = self.common.begin_upload(value.len(), core) else {
            return Err(self.wait(NO_MEMORY)); // -m is smaller than it was.
        };
        if let (_, Some(refused)) = write_to(&mut self.cache, &mut upload, value, now) {
            return Err(self.wait_for_memory(refused));
        }
        match self.cache.put(key, None, &put, &mut Block::Upload(upload), now) {
            Ok(at) => Ok(Some(at)), // S3
            Err(refused) => Err(self.wait_for_memory(refused)),
        }
    }

    /// The item of an entry whose value is in parts, once all of them were fetched, one after the
    /// other.
    fn find_large(&mut self, key: &Key<'_>, entry: &Entry, parts: &Parts, now: &Now) -> FindResult {
        if self.landings.of(key.bytes(), parts.value.id).is_none() {
            if let Some(other) = self.landings.other(key.bytes()) {
                if self.part_fetches.is_under_way(other) {
                    // The next part of the other value ends the wait.
                    return Err(self.wait_for_completion());
                }
                // Nobody waits for a part of it, so perhaps nobody goes on with it.
                let other = Box::<[u8]>::from(other);
                self.landings.take(&other);
            }
            let Some(fetched) =
                self.fetches.find(key.bytes(), entry.position, Some(entry.sequence))
            else {
                return Err(self.fetch(key, entry.position, false));
            };
            let head = match fetched.record() {
                Some(Record::LargeItem { key: found, head, value })
                    if (found, value.id) == (key.bytes(), parts.value.id) =>
                {
                    head
                }
                _ => return Err(self.wait(UNREADABLE)),
            };
            let core = self.core.expect("a core has entered");
            let Some(upload) = self.common.begin_upload(parts.value.bytes as usize, core) else {
                return Err(self.wait(NO_MEMORY)); // -m is smaller than it was.
            };
            self.landings.begin(key.bytes(), Landing::new(parts.value.id, &head, upload));
        }
        let landing = self.landings.of(key.bytes(), parts.value.id).expect("it was begun");
        landing.touched = now.second;
        while let Some(&position) = parts.places.get(landing.parts) {
            let Some(fetched) = self.part_fetches.find(key.bytes(), position, None) else {
                return Err(self.fetch(key, position, true));
            };
            let part = match fetched.record() {
                Some(Record::Part { key: found, value_id, place, bytes })
                    if (found, value_id, place as usize)
                        == (key.bytes(), parts.value.id, landing.parts) =>
                {
                    bytes
                }
                _ => {
                    self.landings.take(key.bytes());
                    return Err(self.wait(UNREADABLE));
                }
            };
            let rest = &part[landing.bytes_of_next..];
            self.work_bytes += CHANGE_BYTES + rest.len() as u64;
            let (written, refused) = write_to(&mut self.cache, &mut landing.upload, rest, now);
            landing.bytes_of_next += written;
            if let Some(refused) = refused {
                return Err(self.wait_for_memory(refused));
            }
            (landing.parts, landing.bytes_of_next) = (landing.parts + 1, 0);
        }
        let landing = self.landings.take(key.bytes()).expect("it is whole");
        let put = self.put_of(entry, landing.client_flags, landing.cas);
        let mut block = Block::Upload(landing.upload);
        match self.cache.put(key, None, &put, &mut block, now) {
            Ok(at) => Ok(Some(at)),                             // S3
            Err(refused) => Err(self.wait_for_memory(refused)), // All of it is read again.
        }
    }

    /// What stores a copy of an item in the cache.
    fn put_of(&self, entry: &Entry, client_flags: u32, cas: u64) -> Put {
        Put {
            value: PutValue::Block,
            client_flags,
            expiry: self.seconds.of_unix(entry.expiry_unix_s),
            cas: Some(cas),
            stale: entry.marks.stale(),
            win_sent: entry.marks.win_sent(),
            remnant: entry.marks.remnant(),
            protocol_mark: entry.marks.protocol(),
            keeps_access: false,
            removes_when_refused: false,
        }
    }

    /// Appends the record of an item that was just stored in the cache.
    fn append_item(&mut self, key: &Key<'_>, at: <Cache as Primitives>::At, put: &Put, now: &Now) {
        let epoch = self.common.kept_epoch(self.cache.epoch_of(at));
        let item = self.cache.item(at);
        let marks = Marks::of(put.stale, put.win_sent, put.remnant, put.protocol_mark);
        let head = ItemHead {
            marks,
            client_flags: put.client_flags,
            cas: item.cas(),
            expiry_unix_s: self.seconds.to_unix(put.expiry),
            stored_unix_s: self.seconds.to_unix(now.second),
        };
        let key_bytes = key.bytes();
        if ITEM_HEAD_BYTES + key_bytes.len() + item.value_bytes()
            > self.log.geometry().payload_bytes_max()
        {
            let value = self.cache.pin(at);
            assert!(self.writing.is_none(), "W1");
            self.writing = Some(LargeWrite::new(key_bytes, head, epoch, value, &self.log));
            self.go_on_writing();
            return;
        }
        let bytes = record::item_head(key_bytes, &head);
        let pinned;
        let mut pieces = ArrayVec::<&[u8], PIECES_MAX>::from_iter([&bytes[..], key_bytes]);
        match item.small_value() {
            Some(value) => pieces.push(value),
            None => {
                pinned = self.cache.pin(at);
                let mut offset = 0;
                while offset < pinned.total_bytes() {
                    pieces.push(pinned.piece_at(offset));
                    offset += pieces.last().map_or(0, |piece| piece.len());
                }
            }
        }
        let appended = self.log.append(ITEM, epoch, &pieces, 0);
        let appended = appended.expect("S1: the log was prepared, and nothing was appended since");
        self.changes.appended(appended.commit);
        self.work_bytes += CHANGE_BYTES + appended.position.record_bytes();
        let entry = Entry::new(&appended, epoch, &head, None);
        self.index.insert(key_bytes, entry);
    }

    /// Goes on to write a large value.
    pub(crate) fn go_on_writing(&mut self) {
        let Some(writing) = &mut self.writing else { return };
        match writing.go_on(&mut self.log) {
            Ok(Wrote::Part) => {}
            Ok(Wrote::Item(appended, parts)) => {
                let LargeWrite { key, head, epoch, .. } =
                    self.writing.take().expect("it was being written");
                self.changes.appended(appended.commit);
                self.work_bytes += CHANGE_BYTES + parts.value.bytes;
                let entry = Entry::new(&appended, epoch, &head, Some(Arc::new(parts)));
                self.index.insert(&key, entry);
            }
            Err(_) => self.writing = None, // S4
        }
    }

    /// Stores an item in the cache and on the log.
    fn store_item(
        &mut self,
        key: &Key<'_>,
        found: Option<<Cache as Primitives>::At>,
        put: &Put,
        block: &mut Block<'_, CacheUpload>,
        now: &Now,
    ) -> Result<<Cache as Primitives>::At, Refused> {
        let old_bytes = || found.map_or(0, |at| self.cache.item(at).value_bytes());
        let value_bytes = match put.value {
            PutValue::Block => block_bytes(block),
            PutValue::Joined(_) => old_bytes() + block_bytes(block),
            PutValue::Unchanged => old_bytes(),
            PutValue::Empty => 0,
            PutValue::Number { bytes, .. } => bytes,
        };
        let bytes = ITEM_HEAD_BYTES + key.bytes().len() + value_bytes;
        let part_bytes = writing::part_bytes_max(&self.log, key.bytes().len());
        let is_large = bytes > self.log.geometry().payload_bytes_max();
        let parts = if is_large { value_bytes.div_ceil(part_bytes) } else { 0 };
        self.reserve_entry(key.bytes(), parts, now)?;
        self.prepare_store(bytes, now)?;
        let has_token = self.options().cas || put.remnant;
        let cas = has_token.then(|| put.cas.unwrap_or_else(|| self.tokens.take()));
        self.recent.note(key.secret_hash(), self.changes.next()); // S2
        let at = match self.cache.put(key, found, &Put { cas, ..*put }, block, now) {
            Ok(at) => at,
            Err(refused) => {
                // A core may have taken note of the number already, so a record must have it.
                self.unused_number = Some(self.changes.next());
                return Err(refused);
            }
        };
        self.has_leased |= put.remnant;
        self.append_item(key, at, put, now);
        Ok(at)
    }

    /// Removes the item of a key, which is in the cache if it is `at` a place there.
    fn bury_item(&mut self, key: &Key<'_>, at: Option<<Cache as Primitives>::At>) {
        self.recent.note(key.secret_hash(), self.changes.next()); // S2
        at.into_iter().for_each(|at| self.cache.remove(key, at));
        self.index.remove(key.bytes());
        let grave = self.append(GRAVE, 0, &[&record::grave_head(key.bytes(), 0), key.bytes()]);
        self.index.bury(grave.position);
    }

    /// Has the index charge its memory for a key, at the cost of items in the cache.
    fn reserve_entry(&mut self, key: &[u8], parts: usize, now: &Now) -> Result<(), Refused> {
        let Err(missing) = self.index.reserve(key, parts) else { return Ok(()) };
        match self.cache.make_room(missing, now) {
            // The item that was found may have been evicted, so the operation begins again.
            Room::Made | Room::OnTheWay => Err(Refused::NotYet),
            Room::Refused => Err(Refused::NoRoom),
        }
    }
}

/// Whether an item is what a delete leaves for leases.
const fn is_left_by_delete(put: &Put) -> bool {
    put.remnant && put.removes_when_refused
}

/// Adds bytes to an upload, as long as there is memory for them. Returns how many, and why not all.
fn write_to(
    cache: &mut Cache,
    upload: &mut CacheUpload,
    bytes: &[u8],
    now: &Now,
) -> (usize, Option<Refused>) {
    let mut written = 0;
    for piece in bytes.chunks(UNIT_BYTES) {
        if upload.write(piece).is_err() {
            let refused = match cache.make_upload_room(piece.len(), now) {
                Room::Made if upload.write(piece).is_ok() => None,
                Room::Made | Room::OnTheWay => Some(Refused::NotYet),
                Room::Refused => Some(Refused::NoRoom),
            };
            if refused.is_some() {
                return (written, refused);
            }
        }
        written += piece.len();
    }
    (written, None)
}

/// Bytes of the value of a block.
fn block_bytes(block: &Block<'_, CacheUpload>) -> usize {
    match block {
        Block::None => 0,
        Block::Bytes(bytes) => bytes.len(),
        Block::Upload(upload) => upload.total_bytes(),
    }
}

impl Primitives for Store {
    type At = <Cache as Primitives>::At;
    type Item<'e> = CachedItem<'e>;
    type Upload = CacheUpload;
    type Pinned = CachePinned;

    fn options(&self) -> &EngineOptions {
        self.cache.options()
    }

    fn is_read_only(&self) -> bool {
        self.log.failure().is_some() || self.common.has_failed() // S4
    }

    /// A plain `set` finds what is in memory, and replaces whatever is there.
    #[inline]
    fn find(
        &mut self,
        key: &Key<'_>,
        needed: Needed,
        now: &Now,
    ) -> Result<Option<Self::At>, NotYet> {
        let found = self.cache.find(key, needed, now)?;
        if !self.prefixes.is_noted(self.cache.newest_prefix()) {
            // The cache has just noted a flush by another core. The operation begins again, so
            // that no change comes before the record of the flush (D2 of `prefixes`).
            self.note_prefixes();
            return Err(self.wait_for_completion());
        }
        if found.is_some() || needed == Needed::Place {
            return Ok(found);
        }
        self.find_on_log(key, now)
    }

    #[inline]
    fn item(&self, at: Self::At) -> CachedItem<'_> {
        self.cache.item(at)
    }

    fn remove(&mut self, key: &Key<'_>, at: Self::At) {
        self.bury_item(key, Some(at));
    }

    fn prepare_mark(&mut self) -> Result<(), NotYet> {
        match self.prepare_change() {
            Ok(()) => Ok(()),
            Err(AppendRefused::Wait) => Err(self.wait(0)),
            Err(AppendRefused::NoSpace | AppendRefused::Failed) => Err(self.wait(UNREADABLE)),
        }
    }

    fn mark(&mut self, key: &Key<'_>, at: Self::At, mark: Mark) {
        self.recent.note(key.secret_hash(), self.changes.next()); // S2
        self.cache.mark(key, at, mark);
        let entry = self.index.get(key.bytes()).expect("S3: what is in the cache has an entry");
        let expiry = mark.expiry.map(|expiry| self.seconds.to_unix(expiry));
        let expiry = expiry.unwrap_or(entry.expiry_unix_s);
        let marks = entry.marks.with_win(mark.win_sent);
        let life = record::life_head(key.bytes(), expiry, marks);
        let life = self.append(LIFE, 0, &[&life, key.bytes()]);
        self.index.revive(key.bytes(), life.position, expiry, marks);
    }

    fn put(
        &mut self,
        key: &Key<'_>,
        found: Option<Self::At>,
        put: &Put,
        block: &mut Block<'_, CacheUpload>,
        now: &Now,
    ) -> Result<Self::At, Refused> {
        let stored = self.store_item(key, found, put, block, now);
        if stored.is_err() && is_left_by_delete(put) {
            // There is no room for what a delete leaves for leases, so it leaves nothing. The item
            // may have left the memory.
            let at = self.cache.find(key, Needed::Place, now).ok().flatten();
            self.bury_item(key, at);
        }
        stored
    }

    #[inline]
    fn note_access(&self, at: Self::At, now: &Now) {
        self.cache.note_access(at, now);
    }

    fn has_leased(&self) -> bool {
        self.has_leased
    }

    fn gives_up_refused(&self) -> bool {
        false
    }

    fn pin(&self, at: Self::At) -> CachePinned {
        self.cache.pin(at)
    }
}

//! The cache as an engine. It promises no durability. It answers every operation at once, except a
//! store whose room is on its way (`kachel_engine::Room::OnTheWay`).
//!
//! Upstream:   `shard` and the simulation, which know only the contract.
//! Downstream: `cache`, `find`, `primitives`.

use std::convert::Infallible;
use std::sync::Arc;

use kachel_engine::{
    Answer, Block, Changes, Common, Copies, CrawlStep, Cursor, Durability, DurableWord, Engine,
    EngineOptions, EngineStats, Evicted, Extensions, FlushFailed, GetTerms, ItemView, Key,
    LastDead, Lookup, MissModel, NotYet, Now, Operation, Outcome, PrefixRefused, Room, Ticket,
    WalkStep, apply, get,
};
use kachel_segment::{Item, Pool, WalkCursor};
use kachel_stdx::{BytePrefix, Landing, Place, Reader, SizeClasses, TooManyPrefixes};

use crate::cache::{Cache, MAINTENANCE_BYTES_MAX, MAINTENANCE_ITEMS_MAX};
use crate::index::{TableIndex, note_copy_reads};
use crate::item::CachedItem;
use crate::large::{CachePinned, CacheUpload};
use crate::miniature::Miniatures;
use crate::reader::CacheReader;

#[inline(always)]
fn answer<P>(applied: Result<Outcome<'_, P>, NotYet>) -> Answer<'_, P> {
    match applied {
        Ok(outcome) => Answer::Done(outcome, Durability::Now),
        Err(NotYet) => Answer::Later(Ticket::ROOM),
    }
}

/// Translates the result of the segments, which do not know the contract.
fn room(made: kachel_segment::Reclaimed) -> Room {
    match made {
        kachel_segment::Reclaimed::Made => Room::Made,
        kachel_segment::Reclaimed::OnTheWay => Room::OnTheWay,
        kachel_segment::Reclaimed::Refused => Room::Refused,
    }
}

/// The pool and the options, which all caches of a process share.
#[derive(Clone, Debug)]
pub struct CacheCommon {
    pool: Arc<Pool>,
    options: EngineOptions,
    changes: Changes,
}

impl CacheCommon {
    /// The memory of all caches of the process.
    pub const fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }
}

impl Common for CacheCommon {
    type Upload = CacheUpload;

    #[inline]
    fn options(&self) -> &EngineOptions {
        &self.options
    }

    fn register_core(&self) -> Option<Reader> {
        self.pool.register_core()
    }

    fn begin_upload(&self, value_bytes: usize, core: Place) -> Option<CacheUpload> {
        let upload = self.pool.begin_upload(value_bytes).ok()?;
        Some(CacheUpload(upload.on_core(Some(core))))
    }

    fn spare_landing(&self) -> Landing {
        self.pool.spare_landing()
    }

    fn flush(&self, now: &Now) -> Result<(), FlushFailed> {
        self.changes.flush(None, || self.pool.flush_word().flush(now.second));
        Ok(())
    }

    fn flush_in(&self, due: u32, now: &Now) -> Result<(), FlushFailed> {
        let change = || self.pool.flush_word().flush_in(due, now.second);
        self.changes.flush(Some(due), change);
        Ok(())
    }

    fn cancel_flush(&self, now: &Now) -> Result<(), FlushFailed> {
        self.changes.flush(None, || self.pool.flush_word().cancel(now.second));
        Ok(())
    }

    fn flush_prefix(&self, prefix: &BytePrefix<'_>) -> Result<(), PrefixRefused> {
        let list = self.pool.flushed_prefixes();
        if list.is_full_for(prefix) {
            return Err(PrefixRefused::TooMany); // Nothing is flushed, so copies stay.
        }
        let mut flushed = Ok(());
        let change = || flushed = list.flush(prefix);
        self.changes.flush_some(change);
        flushed.map_err(|TooManyPrefixes| PrefixRefused::TooMany)
    }

    fn live_prefixes(&self) -> usize {
        self.pool.flushed_prefixes().live()
    }

    fn bytes_max(&self) -> u64 {
        self.pool.bytes_max()
    }

    fn size_classes(&self) -> Arc<SizeClasses> {
        Arc::clone(&self.pool.size_classes)
    }

    fn list_evictions(&self, on: bool) {
        self.pool.list_evictions(on);
    }

    fn draw_evictions(&self, every: u32) {
        self.pool.draw_evictions(every);
    }

    fn miss_model() -> Option<Box<dyn MissModel>> {
        Some(Box::new(Miniatures::new()))
    }

    fn pinned_bytes(&self) -> u64 {
        self.pool.pinned_bytes()
    }
}

impl Engine for Cache {
    type Upload = CacheUpload;
    type Pinned = CachePinned;
    type Submission = Infallible;
    type Completion = Infallible;
    type Reader = CacheReader;
    type Common = CacheCommon;

    fn common(&self) -> CacheCommon {
        let pool = Arc::clone(self.segments.pool());
        CacheCommon { pool, options: self.options, changes: self.changes.clone() }
    }

    fn reader(&self) -> CacheReader {
        Self::reader(self)
    }

    #[inline]
    fn execute<'e>(
        &'e mut self,
        operation: &Operation<'_>,
        block: &mut Block<'_, CacheUpload>,
        ticket: Option<Ticket>,
        now: &Now,
    ) -> Answer<'e, CachePinned> {
        debug_assert!(ticket.is_none_or(|ticket| ticket == Ticket::ROOM), "a ticket of ours");
        answer(apply(self, operation, block, now))
    }

    #[inline(always)]
    fn read<'e>(
        &'e mut self,
        key: &Key<'_>,
        terms: &GetTerms,
        ticket: Option<Ticket>,
        now: &Now,
    ) -> Answer<'e, CachePinned> {
        debug_assert!(ticket.is_none_or(|ticket| ticket == Ticket::ROOM), "a ticket of ours");
        answer(get(self, key, terms, now))
    }

    fn await_room(&mut self) -> bool {
        self.segments.await_room()
    }

    fn durable(&self) -> &Arc<DurableWord> {
        &self.durable
    }

    fn maintain(&mut self, now: &Now) -> usize {
        let before = self.work_bytes();
        let moved = self.maintain_index(MAINTENANCE_ITEMS_MAX);
        let mut index = TableIndex::new(&mut self.table, &self.hasher, &self.changes);
        let items = self.segments.maintain(now.second, &mut index, MAINTENANCE_ITEMS_MAX);
        debug_assert!(self.work_bytes() - before <= MAINTENANCE_BYTES_MAX, "a bounded step");
        moved + items
    }

    fn walk(
        &mut self,
        cursor: &mut Cursor,
        now: &Now,
        items_max: usize,
        mut show: impl FnMut(&[u8], &dyn ItemView<'_>) -> bool,
    ) -> WalkStep {
        let mut at = WalkCursor::from_u64(cursor.to_u64());
        self.note_flush(now);
        let (changes, hasher) = (&self.changes, &self.hasher);
        let show = |item: Item<'_>| {
            note_copy_reads(changes, hasher, &item);
            // No client sees a remnant.
            item.is_remnant() || show(item.key(), &CachedItem(item))
        };
        let walked = self.segments.walk(&mut at, now.second, items_max, show);
        assert!(walked.items <= items_max, "a walk looks at no more than it may");
        *cursor = Cursor::from_u64(at.to_u64());
        WalkStep::in_memory(walked.items, walked.more)
    }

    #[inline]
    fn work_bytes(&self) -> u64 {
        self.segments.work_bytes() + self.index_work_bytes
    }

    fn stats(&self) -> EngineStats {
        self.totals()
    }
}

impl Extensions for Cache {
    fn enter(&mut self, core: Place, now: &Now) {
        self.segments.enter(core);
        self.note_flush(now);
    }

    #[inline]
    fn prefetch(&self, batch: impl Iterator<Item = Lookup> + Clone) {
        self.fetch(batch);
    }

    fn make_upload_room(&mut self, bytes: usize, now: &Now) -> Room {
        let mut index = TableIndex::new(&mut self.table, &self.hasher, &self.changes);
        room(self.segments.make_upload_room(bytes, now.second, &mut index))
    }

    fn make_room(&mut self, bytes: u64, now: &Now) -> Room {
        let mut index = TableIndex::new(&mut self.table, &self.hasher, &self.changes);
        room(self.segments.make_room(bytes, now.second, &mut index))
    }

    fn report_changes(&mut self, copies: Arc<dyn Copies>) -> bool {
        assert!(!self.changes.are_reported(), "there is one store of copies");
        self.changes = Changes::to(copies);
        true
    }

    fn last_dead(&self) -> Arc<LastDead> {
        Arc::clone(&self.last_dead)
    }

    #[inline]
    fn has_evicted(&self) -> bool {
        self.segments.has_evicted()
    }

    fn take_evicted(&mut self, mut tell: impl FnMut(&Evicted<'_>)) -> u64 {
        self.segments.take_evicted(|item| {
            tell(&Evicted {
                key: item.key,
                value_bytes: item.value_bytes,
                client_flags: item.client_flags,
                expiry: item.expiry,
                last_access: item.last_access,
                is_fetched: item.is_fetched,
                is_drawn: item.is_drawn,
            });
        })
    }

    fn crawl(
        &mut self,
        cursor: &mut Cursor,
        now: &Now,
        items_max: usize,
        mut is_wanted: impl FnMut(&[u8], &dyn ItemView<'_>) -> bool,
    ) -> CrawlStep {
        let mut at = WalkCursor::from_u64(cursor.to_u64());
        self.note_flush(now);
        let mut expired = Vec::new();
        let walked = self.segments.walk_expired(&mut at, now.second, items_max, |item| {
            if is_wanted(item.key(), &CachedItem(item)) {
                expired.push(item.at());
            }
        });
        *cursor = Cursor::from_u64(at.to_u64());
        let reclaimed = expired.len();
        debug_assert!(reclaimed <= walked.items, "each was examined");
        expired.into_iter().for_each(|at| self.reclaim_expired(at));
        CrawlStep { walked: WalkStep::in_memory(walked.items, walked.more), reclaimed }
    }
}

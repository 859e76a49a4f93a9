//! The cache as an engine: it answers every operation at once, and promises no durability.
//!
//! Upstream:   `shard` and the simulation, which know only the contract.
//! Downstream: `cache`, `find`, `primitives`.

use kachel_engine::{
    Answer, Block, Changed, Cursor, Durability, Engine, EngineOptions, EngineStats, GetTerms,
    ItemView, Key, Lookup, Now, Operation, Sequence, Ticket, WalkStep, apply, get,
};
use kachel_segment::{Item, WalkCursor};
use kachel_stdx::Landing;

use crate::cache::{Cache, MAINTENANCE_ITEMS_MAX};
use crate::index::TableIndex;
use crate::item::CachedItem;
use crate::large::{CachePinned, CacheUpload};

impl Engine for Cache {
    const DELAYS: bool = false;

    type Upload = CacheUpload;
    type Pinned = CachePinned;

    #[inline]
    fn options(&self) -> &EngineOptions {
        &self.options
    }

    #[inline]
    fn prefetch(&self, batch: impl Iterator<Item = Lookup> + Clone) {
        self.fetch(batch);
    }

    #[inline]
    fn execute<'e>(
        &'e mut self,
        operation: &Operation<'_>,
        block: &mut Block<'_, CacheUpload>,
        ticket: Option<Ticket>,
        now: &Now,
    ) -> Answer<'e, CachePinned> {
        debug_assert!(ticket.is_none(), "this engine gives no ticket");
        Answer::Done(apply(self, operation, block, now), Durability::Now)
    }

    #[inline(always)]
    fn read<'e>(
        &'e mut self,
        key: &Key<'_>,
        terms: &GetTerms,
        ticket: Option<Ticket>,
        now: &Now,
    ) -> Answer<'e, CachePinned> {
        debug_assert!(ticket.is_none(), "this engine gives no ticket");
        Answer::Done(get(self, key, terms, now), Durability::Now)
    }

    fn is_ready(&self, ticket: &Ticket) -> bool {
        unreachable!("this engine gives no ticket, and so not {ticket:?}")
    }

    fn durable(&self) -> Sequence {
        Sequence(0)
    }

    fn begin_upload(&self, value_bytes: usize) -> Option<CacheUpload> {
        self.segments.pool().begin_upload(value_bytes).ok().map(CacheUpload)
    }

    fn spare_landing(&self) -> Landing {
        self.segments.pool().spare_landing()
    }

    fn make_upload_room(&mut self, bytes: usize, now: &Now) -> bool {
        let mut index = TableIndex::new(&mut self.table, &self.hasher, &mut self.changes);
        self.segments.make_upload_room(bytes, now.second, &mut index)
    }

    fn make_room(&mut self, bytes: u64, now: &Now) -> bool {
        let mut index = TableIndex::new(&mut self.table, &self.hasher, &mut self.changes);
        self.segments.make_room(bytes, now.second, &mut index)
    }

    fn flush(&mut self, now: &Now) {
        self.segments.pool().flush_word().flush(now.second);
        self.note_flush(now);
    }

    fn flush_in(&mut self, due: u32, now: &Now) {
        self.segments.pool().flush_word().flush_in(due, now.second);
        self.note_flush(now);
    }

    fn note_flush(&mut self, now: &Now) {
        if self.segments.note_flush(now.second) {
            self.changes.note_all();
        }
    }

    fn record_changes(&mut self) {
        self.changes.record();
    }

    fn take_changes(&mut self, tell: impl FnMut(Changed)) {
        self.changes.take(tell);
    }

    fn maintain(&mut self, now: &Now) -> usize {
        let moved = self.maintain_index(MAINTENANCE_ITEMS_MAX);
        let mut index = TableIndex::new(&mut self.table, &self.hasher, &mut self.changes);
        moved + self.segments.maintain(now.second, &mut index, MAINTENANCE_ITEMS_MAX)
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
        let show = |item: Item<'_>| show(item.key(), &CachedItem(item));
        let walked = self.segments.walk(&mut at, now.second, items_max, show);
        assert!(walked.items <= items_max, "a walk looks at no more than it may");
        *cursor = Cursor::from_u64(at.to_u64());
        WalkStep { items: walked.items, more: walked.more }
    }

    fn bytes_max(&self) -> u64 {
        self.segments.pool().bytes_max()
    }

    fn pinned_bytes(&self) -> u64 {
        self.segments.pool().pinned_bytes()
    }

    fn stats(&self) -> EngineStats {
        self.totals()
    }
}

//! One shard's items: a log of segments, the order in which space comes back, and its reclaimer.
//!
//! Upstream:   `cache` calls it, from one thread, with its index behind [`Index`].
//! Downstream: `log` holds the segments and keeps them in order (`queues`), `reclaimer` empties
//!             them; `append`, `extend`, `reserve` and `walk` are what the owner asks for.
//!
//! A segment's life:
//!
//! ```text
//!   pool: free --> spare --> open --> sealed --> victim --> retired --> free
//!          |                 ^  ^       |  ^        |          (no reader may still be in it)
//!          +-----------------+  |       |  +--------+ pinned, or the job was left early
//!                               |       +---------------> retired: its last item was removed
//!                               +-- copies of what is kept <-- victim
//! ```
//!
//! - *free*: in the pool, for any shard. *spare*: in this shard's hand, empty.
//! - *open*: filled by one stream, for one TTL bucket.
//! - *sealed*: in the FIFO of its queue (probation or main), and in the bin of its dead space.
//! - *victim*: a job walks its items. Expired and flushed ones go; compaction copies the others
//!   within the queue; eviction copies those that are worth it to main and drops the rest.
//! - *retired*: empty, but a reader on another core may still be in it.
//!
//! The log decides nothing and the reclaimer holds no segment: each segment is in exactly one place
//! of the picture, and the log knows which (L1 to L5 of `log`). Memory is freed by one job at a
//! time, and one request causes a bounded amount of work (V1 and V5 of `reclaimer`).

mod append;
mod context;
mod extend;
mod log;
#[cfg(all(test, loom))]
mod models;
mod new_item;
mod reclaimer;
mod reserve;
mod stats;
#[cfg(test)]
mod tests;
mod walk;

use std::io;
use std::ops::Range;
use std::sync::Arc;

pub use context::Index;
pub use new_item::{Added, JoinPlace, NewItem, NewValue, SegmentsFull};
pub use stats::SegmentStats;
pub use walk::{WalkCursor, Walked};

use self::context::Context;
use self::log::{Log, LogOptions};
use self::reclaimer::{GHOST_PERCENT, Reclaimer};
use crate::item::Item;
use crate::layout::{Access, Header, ItemAt};
use crate::pool::{Pinned, Pool};
use crate::{BLOCK_BYTES, INLINE_VALUE_BYTES_MAX, SEGMENT_BYTES_MIN};

/// Segments without which a shard cannot store: one that is filled, and its spare.
const SEGMENTS_MIN: u64 = 2;

const CACHE_LINE_BYTES: usize = 64;
/// Cache lines of an item so small that fetching it whole costs less than asking how long it is.
const SMALL_LINES: usize = 4;
/// Bytes of an item that are prefetched. The processor itself sees the rest coming.
const PREFETCHED_BYTES_MAX: usize = 2048;

/// How one shard keeps its items.
#[derive(Clone, Copy, Debug)]
pub struct SegmentOptions {
    /// Evict when memory is full (a cache); else refuse (a store).
    pub evict: bool,
    /// Items carry CAS tokens.
    pub cas: bool,
    /// This shard's number.
    pub shard: u16,
}

/// One shard's items. Every location it gives out is good until the next call with `&mut self`,
/// which may move any item (and tells the index).
#[derive(Debug)]
pub struct Segments {
    options: SegmentOptions,
    log: Log,
    reclaimer: Reclaimer,
}

impl Segments {
    /// An empty log over `pool`. It takes its spare segments and charges its ghosts at once.
    ///
    /// Errors: the ghosts' address space cannot be reserved.
    pub fn new(pool: Arc<Pool>, options: SegmentOptions) -> io::Result<Self> {
        let SegmentOptions { evict, shard, .. } = options;
        let reclaimer = Reclaimer::new(&pool, evict)?;
        let reserve = reserve::reserve_of(pool.fair_share(), evict);
        let log = Log::new(pool, LogOptions { evict, shard, reserve });
        Ok(Self { options, log, reclaimer })
    }

    /// Bytes of the budget without which a shard may have no room for an item: a segment to fill, a
    /// spare one (L4 of `log`), both of the smallest size, and their part of the ghosts.
    pub const fn budget_bytes_min() -> u64 {
        let segments = SEGMENTS_MIN * Pool::charge_bytes_of(SEGMENT_BYTES_MIN);
        segments + segments.div_ceil(100 / GHOST_PERCENT)
    }

    /// The pool it takes from.
    pub const fn pool(&self) -> &Arc<Pool> {
        self.log.pool()
    }

    /// Asks the processor for a small item, value included. Cost: a prefetch a line, needed or not.
    #[inline]
    pub fn prefetch_small(&self, at: ItemAt) {
        self.prefetch_lines(at, 0..SMALL_LINES);
    }

    /// Whether [`Self::prefetch_small`] asks for all there is of most items, if there are `items`.
    #[inline]
    pub fn are_small(&self, items: u64) -> bool {
        // One line less, as an item may begin at the end of one.
        self.log.live_bytes() as u64 <= items * ((SMALL_LINES - 1) * CACHE_LINE_BYTES) as u64
    }

    /// Asks the processor for what the item has beyond what [`Self::prefetch_small`] asks for.
    /// Cost: reads the header.
    #[inline]
    pub fn prefetch_rest(&self, at: ItemAt) {
        let bytes = Header::load(&self.log.pool().arena, at).item_bytes().min(PREFETCHED_BYTES_MAX);
        let lines = (at.offset() % CACHE_LINE_BYTES + bytes).div_ceil(CACHE_LINE_BYTES);
        self.prefetch_lines(at, SMALL_LINES..lines);
    }

    #[inline]
    fn prefetch_lines(&self, at: ItemAt, lines: Range<usize>) {
        lines
            .for_each(|line| self.log.pool().arena.prefetch(at.offset() + line * CACHE_LINE_BYTES));
    }

    /// The item at `at`, which the index named.
    #[inline]
    pub fn item(&self, at: ItemAt) -> Item<'_> {
        Item::load(self.log.pool(), at)
    }

    /// The key of the item at `at`.
    #[inline]
    pub fn key(&self, at: ItemAt) -> &[u8] {
        self.item(at).key()
    }

    /// Whether the item at `at` has this key.
    #[inline]
    pub fn key_is(&self, at: ItemAt, key: &[u8]) -> bool {
        self.item(at).key() == key
    }

    /// Whether the item at `at` may be served: neither removed, nor expired, nor flushed.
    #[inline]
    pub fn is_live(&self, at: ItemAt, now: u32) -> bool {
        self.log.is_live(at, now)
    }

    /// Whether the item at `at` was flushed, as far as the flush word was noted.
    #[inline]
    pub fn is_flushed(&self, at: ItemAt) -> bool {
        self.log.is_item_flushed(at)
    }

    /// Notes that the item at `at` was read in second `now`. Writes nothing once three
    /// reads are counted.
    #[inline]
    pub fn note_access(&self, at: ItemAt, now: u32) {
        Access::note(&self.log.pool().arena, at, now);
    }

    /// Moves the second in which the item at `at` dies; 0 for never.
    pub fn set_expiry(&mut self, at: ItemAt, expiry: u32) {
        self.log.set_expiry(at, expiry);
    }

    /// Marks that the right to refill the item at `at` was given away.
    pub fn set_win_sent(&mut self, at: ItemAt) {
        let arena = &self.log.pool().arena;
        Header::load(arena, at).with_win_sent().store(arena, at);
    }

    /// Drops an item that has no room in the index, which has removed it already. Counted as
    /// evicted, unless it could not be served any more.
    pub fn evict(&mut self, at: ItemAt, now: u32) {
        debug_assert!(!self.item(at).is_dead(), "the index names no dead item");
        if self.is_live(at, now) {
            self.reclaimer.note_evicted(self.item(at).access());
            self.kill(at);
        } else if self.is_flushed(at) {
            self.kill(at);
        } else {
            self.expire(at);
        }
    }

    /// The item at `at` was removed or replaced, and the index no longer names it: its bytes are
    /// dead. Nothing happens to a dead item. A large value's blocks come back at once, unless
    /// pinned.
    pub fn kill(&mut self, at: ItemAt) {
        self.log.kill(at);
    }

    /// As [`Self::kill`], for an item that the caller found expired; counts it so.
    pub fn expire(&mut self, at: ItemAt) {
        let item = self.item(at);
        debug_assert!(item.expiry() != 0, "an item that never expires is not found expired");
        if !item.is_dead() {
            self.reclaimer.note_expired(self.item(at).access());
            self.kill(at);
        }
    }

    /// Holds the value of the item at `at` where it lies; see [`Pinned`].
    pub fn pin(&self, at: ItemAt) -> Pinned {
        self.log.pool().pin(at)
    }

    /// Whether the flush word says what it said when it was last noted. Cost: one load.
    #[inline]
    pub fn is_flush_noted(&self) -> bool {
        self.log.is_flush_noted()
    }

    /// Notes what the flush word says in second `now`; whether there was a flush. Then every item
    /// is dead at once, and what is stored from now on is not; space comes back in bounded steps,
    /// in [`Self::maintain`] and whenever room is needed.
    ///
    /// The owner notes it before it looks an item up or stores one: what one operation found and
    /// what it then stores is of one epoch. Cost: two loads; after a flush the open segments are
    /// sealed.
    pub fn note_flush(&mut self, now: u32) -> bool {
        self.log.note_flush(now)
    }

    /// Does up to about `items_max` items' worth of what is due: returns expired and flushed
    /// segments, gives memory back when the budget is overdrawn or another shard is short, and
    /// keeps one segment ready when memory is full. Returns the items handled; 0 when nothing is
    /// due.
    pub fn maintain(&mut self, now: u32, index: &mut impl Index, items_max: usize) -> usize {
        let items = self.reclaimer.maintain(&mut self.log, &mut Context { now, index }, items_max);
        #[cfg(debug_assertions)]
        self.log.audit_in_turn();
        items
    }

    /// Frees memory until the budget can be charged `bytes`: for the index, which wants to grow.
    /// The pages go back to the kernel. Whether it succeeded.
    ///
    /// Cost: as many victims as that takes; the caller asks for little at a time. After the limit
    /// was lowered it evicts one victim and fails: [`Self::maintain`] gives the excess back in
    /// steps. It does the same if the kernel takes no page back: with fewer items the index may
    /// need no more memory, and idle memory must be used first.
    pub fn make_room(&mut self, bytes: u64, now: u32, index: &mut impl Index) -> bool {
        self.reclaimer.make_room(&mut self.log, &mut Context { now, index }, bytes)
    }

    /// Frees memory until `Upload::write` can take `bytes` more; whether it succeeded.
    pub fn make_upload_room(&mut self, bytes: usize, now: u32, index: &mut impl Index) -> bool {
        self.reclaimer.begin_request(&self.log, bytes as u64);
        self.reclaimer.make_upload_room(&mut self.log, &mut Context { now, index }, bytes)
    }
}

const _: () = assert!(INLINE_VALUE_BYTES_MAX < BLOCK_BYTES);

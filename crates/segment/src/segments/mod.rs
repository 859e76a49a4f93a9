//! One shard's items: a log of segments, the order in which they are freed, and the reclaimer.
//!
//! Upstream:   `cache` calls it, from one thread at a time, with its index behind [`Index`].
//! Downstream: `log` holds the segments and keeps them in order (`queues`), `reclaimer` empties
//!             them; `append`, `extend`, `reserve` and `walk` implement the calls of the owner.
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
//! - *free*: in the pool, for any shard. *spare*: kept by this shard, empty.
//! - *open*: filled by one stream, for one TTL bucket.
//! - *sealed*: in the FIFO of its queue (probation or main), and in the bin of its dead space.
//! - *victim*: a job walks its items. It drops expired and flushed items. Compaction copies the
//!   others within the queue; eviction copies those that are worth it to main and drops the rest; a
//!   sweep after the flush of a prefix leaves them where they are.
//! - *retired*: empty, but a reader on another core may still be in it.
//!
//! The log makes no decisions, and the reclaimer owns no segments. Each segment is in exactly one
//! place of the picture, and the log knows which (L1 to L5 of `log`). One job at a time frees
//! memory, and one request causes a bounded amount of work (V1 and V5 of `reclaimer`).

mod append;
mod extend;
mod reserve;
mod restore;
mod walk;
mod stats;
mod reclaimer;
mod new_item;
mod context;
mod log;

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;

use std::io;
use std::sync::Arc;

use kachel_stdx::Place;

pub use context::Index;
pub use new_item::{Added, JoinPlace, NewItem, NewValue, NoSegment};
pub use restore::SavedItem;
pub use stats::SegmentStats;
pub use walk::{WalkCursor, Walked};

use self::context::Context;
pub use self::log::queues::{Queue, is_probation_large};
use self::log::{Log, LogOptions};
pub use self::reclaimer::GHOST_PERCENT;
pub use self::reclaimer::Reclaimed;
use self::reclaimer::Reclaimer;
pub use self::reclaimer::allowance::UPKEEP_STEP_BYTES_MAX;
pub use self::reclaimer::evicted::EvictedItem;
pub use self::reclaimer::ghost::GHOST_BYTES;
pub use self::reclaimer::job::kept_bytes_max;
pub use self::reclaimer::worth::{Examined, VictimSeen, Weights};
use crate::item::{FoundItem, Item};
use crate::layout::{Access, Header, ItemAt};
use crate::limits::{BLOCK_BYTES, INLINE_VALUE_BYTES_MAX, SEGMENT_BYTES_MIN};
use crate::pool::{CACHE_LINE_BYTES, Pinned, Pool, SMALL_LINES};
use crate::size_classes::ClassCounts;

/// The fewest segments with which a shard can store: one that is being filled, and a spare one.
const SEGMENTS_MIN: u64 = 2;

/// At most this many bytes of an item are prefetched. The processor prefetches the rest by itself.
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
    /// Bytes that count with each item beside its key, value and client flags, when its size class
    /// is computed.
    pub item_overhead_bytes: usize,
}

/// One shard's items. Every location that it returns is valid until the next call with `&mut self`.
/// Such a call may move any item, and reports that to the index.
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
        let SegmentOptions { evict, shard, item_overhead_bytes, .. } = options;
        let reclaimer = Reclaimer::new(&pool, evict, item_overhead_bytes)?;
        let reserve = reserve::reserve_of(pool.fair_share(), evict);
        let log = Log::new(pool, LogOptions { evict, shard, reserve });
        Ok(Self { options, log, reclaimer })
    }

    /// The bytes of the budget that a shard needs to have room for an item: a segment to fill, a
    /// spare one (L4 of `log`), both of the smallest size, and their part of the ghosts.
    pub const fn budget_bytes_min() -> u64 {
        let segments = SEGMENTS_MIN * Pool::charge_bytes_of(SEGMENT_BYTES_MIN);
        segments + segments.div_ceil(100 / GHOST_PERCENT)
    }

    /// The pool it takes from.
    pub const fn pool(&self) -> &Arc<Pool> {
        self.log.pool()
    }

    /// Prefetches a small item, as [`Pool::prefetch_small`] does.
    #[inline]
    pub fn prefetch_small(&self, at: ItemAt) {
        self.pool().prefetch_small(at);
    }

    /// Whether [`Self::prefetch_small`] prefetches most items completely, if there are `items`.
    #[inline]
    pub fn are_small(&self, items: u64) -> bool {
        // One line less, as an item may begin at the end of one.
        self.log.live_bytes() as u64 <= items * ((SMALL_LINES - 1) * CACHE_LINE_BYTES) as u64
    }

    /// Prefetches the part of the item that [`Self::prefetch_small`] does not prefetch. Cost: reads
    /// the header.
    #[inline]
    pub fn prefetch_rest(&self, at: ItemAt) {
        let bytes = Header::load(&self.log.pool().arena, at).item_bytes().min(PREFETCHED_BYTES_MAX);
        let lines = (at.offset() % CACHE_LINE_BYTES + bytes).div_ceil(CACHE_LINE_BYTES);
        self.pool().prefetch_lines(at, SMALL_LINES..lines);
    }

    /// The core at `core` uses these segments from now on. It reads no item of others while it
    /// changes them, so they do not wait for it. Until the first call they wait for every reader.
    #[inline]
    pub const fn enter(&mut self, core: Place) {
        self.log.enter(core);
    }

    /// The work since the start, in bytes: what was copied, and what was examined or freed at a
    /// fixed number of bytes for each item or block.
    #[inline]
    pub const fn work_bytes(&self) -> u64 {
        self.log.work_bytes()
    }

    /// The part of [`Self::work_bytes`] that was not done to make room.
    const fn own_work_bytes(&self) -> u64 {
        self.log.work_bytes() - self.reclaimer.work_bytes()
    }

    /// Counts of evicted and expired items, by size class.
    pub const fn class_counts(&self) -> &Arc<ClassCounts> {
        self.reclaimer.class_counts()
    }

    /// Whether there is something for [`Self::take_evicted`]. Cost: a load.
    #[inline]
    pub const fn has_evicted(&self) -> bool {
        !self.reclaimer.evicted().is_empty()
    }

    /// Tells the items that were evicted since the last call, as far as they were listed
    /// ([`Pool::list_evictions`], [`Pool::draw_evictions`]). Returns for how many more the list had
    /// no place.
    pub fn take_evicted(&mut self, tell: impl FnMut(&EvictedItem<'_>)) -> u64 {
        self.reclaimer.evicted_mut().take(tell)
    }

    /// Whether a store that waits for room may be executed again. If not, a reader that is in the
    /// way is marked, and `kachel_stdx::Reader::round_over` returns `true` when it has passed.
    pub fn await_room(&mut self) -> bool {
        self.log.await_room()
    }

    /// The item at `at`, which the index named.
    #[inline]
    pub fn item(&self, at: ItemAt) -> Item<'_> {
        Item::load(self.log.pool(), at)
    }

    /// The item that was found. Cost: nothing is read.
    #[inline]
    pub fn found(&self, found: FoundItem) -> Item<'_> {
        Item::of(self.log.pool(), found)
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

    /// Whether the item at `at` was flushed, by the flush word as it was last noted.
    #[inline]
    pub fn is_flushed(&self, at: ItemAt) -> bool {
        self.log.is_item_flushed(at)
    }

    /// Notes that the item at `at` was read in second `now`. Writes nothing once three
    /// reads are counted.
    #[inline]
    pub fn note_access(&self, at: ItemAt, now: u32) {
        let noted = Access::note(&self.log.pool().arena, at, now);
        debug_assert!(noted, "layout, I2: an item of the index has its access word");
    }

    /// Gives the accesses of the item at `from` to the item at `to`, which was appended to replace
    /// it and is not in the index yet.
    pub fn move_access(&mut self, from: ItemAt, to: ItemAt) {
        self.log.pool().move_access(from, to, |access| access);
    }

    /// Changes the second in which the item at `at` expires; 0 for never.
    pub fn set_expiry(&mut self, at: ItemAt, expiry: u32) {
        self.log.set_expiry(at, expiry);
    }

    /// Marks that the right to refill the item at `at` was given away.
    pub fn set_win_sent(&mut self, at: ItemAt) {
        let arena = &self.log.pool().arena;
        Header::load(arena, at).with_win_sent().store(arena, at);
    }

    /// Drops an item because the index has no room for it. The index has removed it already. Counts
    /// it as evicted, unless it has expired or was flushed.
    pub fn evict(&mut self, at: ItemAt, now: u32) {
        debug_assert!(!self.item(at).is_dead(), "the index names no dead item");
        if self.is_live(at, now) {
            let item = Item::load(self.log.pool(), at);
            self.reclaimer.note_evicted(&item, now);
            self.kill(at);
        } else {
            self.reclaim_dead(at);
        }
    }

    /// Kills the item at `at`, which was removed or replaced and is no longer in the index. Its
    /// bytes become dead. The blocks of a large value are freed at once, unless they are pinned.
    /// Does nothing if the item is dead already.
    pub fn kill(&mut self, at: ItemAt) {
        self.log.kill(at);
    }

    /// Kills an item as [`Self::kill`] does, and counts it as reclaimed. The caller found that it
    /// has expired or was flushed.
    pub fn reclaim_dead(&mut self, at: ItemAt) {
        let item = Item::load(self.log.pool(), at);
        debug_assert!(item.expiry() != 0 || self.is_flushed(at), "no other item is found dead");
        if !item.is_dead() {
            self.reclaimer.note_reclaimed(&self.log, &item);
            self.kill(at);
        }
    }

    /// Pins the value of the item at `at`; see [`Pinned`].
    pub fn pin(&self, at: ItemAt) -> Pinned {
        self.log.pool().pin(at)
    }

    /// Whether there was no flush, of all keys or of a prefix, since they were last noted. Cost:
    /// two loads.
    #[inline]
    pub fn is_flush_noted(&self) -> bool {
        self.log.is_flush_noted()
    }

    /// The number of the newest flush of a prefix that was noted ([`Self::note_flush`]).
    pub const fn newest_prefix(&self) -> u32 {
        self.log.newest_prefix()
    }

    /// Notes the flush word in second `now`, and the flushed prefixes. Returns whether all keys
    /// were flushed. Every item that was stored before, and was flushed, is dead at once. Its
    /// memory is freed in bounded steps, in [`Self::maintain`] and whenever room is needed.
    ///
    /// The owner must call this before it looks an item up or stores one, so that the item that an
    /// operation finds and the item that it then stores are of one epoch and one generation. Cost:
    /// two loads; after a flush the open segments are sealed, after one of a prefix the job under
    /// way is run to its end. What it has copied before is not mixed with what is stored later.
    pub fn note_flush(&mut self, now: u32, index: &mut impl Index) -> bool {
        let mut is_new = false;
        loop {
            let flushes = self.log.flushes_until(now);
            if flushes.is_prefix_new {
                self.reclaimer.begin_request(&self.log, 0);
                self.reclaimer.finish_job(&mut self.log, &mut Context { now, index });
            }
            is_new |= self.log.note_flush(flushes);
            if !flushes.is_prefix_new || self.log.is_epoch_noted() {
                return is_new;
            }
            // All keys were flushed meanwhile, perhaps before a prefix that was noted.
        }
    }

    /// Does the upkeep that is due, for about `items_max` items at most, and with at most
    /// [`UPKEEP_STEP_BYTES_MAX`] of work: frees remaining blocks of long values, frees expired and
    /// flushed segments, gives memory back when the budget is overdrawn or another shard is short,
    /// and keeps one segment ready when memory is full. Returns the number of items handled; 0 when
    /// nothing is due.
    pub fn maintain(&mut self, now: u32, index: &mut impl Index, items_max: usize) -> usize {
        let items = self.reclaimer.maintain(&mut self.log, &mut Context { now, index }, items_max);
        self.log.settle_prefixes();
        #[cfg(debug_assertions)]
        self.log.audit_in_turn();
        items
    }

    /// Frees memory until the budget can be charged `bytes`, for an index that must grow. The pages
    /// go back to the kernel.
    ///
    /// Cost: as many victims as necessary, so the caller must ask for little at a time. After the
    /// limit was lowered, the call evicts one victim and fails, because [`Self::maintain`] gives
    /// the excess back in steps. If the kernel takes no page back, the call fails, too. It then
    /// evicts one victim, unless a segment is idle: with fewer items the index may need no more
    /// memory.
    pub fn make_room(&mut self, bytes: u64, now: u32, index: &mut impl Index) -> Reclaimed {
        self.reclaimer.make_room(&mut self.log, &mut Context { now, index }, bytes)
    }

    /// Frees memory until `Upload::write` can take `bytes` more.
    pub fn make_upload_room(
        &mut self,
        bytes: usize,
        now: u32,
        index: &mut impl Index,
    ) -> Reclaimed {
        self.reclaimer.begin_request(&self.log, bytes as u64);
        let bytes = append::blocks_of_piece(bytes);
        self.reclaimer.make_block_room(&mut self.log, &mut Context { now, index }, bytes)
    }
}

const _: () = assert!(INLINE_VALUE_BYTES_MAX < BLOCK_BYTES);

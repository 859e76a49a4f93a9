//! One shard's log of items: what it owns, and the words of its interface.
//!
//! Upstream:   `cache` calls it, from one thread, with its index behind [`Index`].
//! Downstream: `pool` for segments and blocks; `append`, `open`, `reclaim`, `victim` and `walk`
//! hold the work.
//!
//! ```text
//!   append -> [open segment of its TTL bucket] -> sealed -> FIFO of its queue -> victim -> pool
//!                 probation | main                                 |
//!                                  ^                               | worth it: copied to main
//!                                  +-------------------------------+ else: evicted
//! ```
//!
//! Invariants:
//! - S1  `own` lists exactly the segments with this shard's items; each knows its place there.
//! - S2  `live_bytes`, `dead_bytes` and `items` are the sums over `own`; a segment's `dead` counts
//!   removed items, not tails that were too short for the next item.
//! - S3  A sealed segment stands in its queue's FIFO, and in the bin of its dead space if it has
//!   some. An open copy target stands in the FIFO too, in the place of its first victim.
//! - S4  One job at a time; while it runs its victim is in the FIFO and in no bin.
//! - S5  At least one spare segment is kept for jobs (a store keeps a larger reserve: `reserve`). A
//!   job takes at most one more segment than its victim, so it can always end and give the victim
//!   back; one that took the last spare does, unless a reader has pinned the victim meanwhile, or
//!   blocks enough lie free: then nothing that lives is compacted until there is a spare again.
//!   While it runs, the room in its copy targets is taken by nothing else.
//! - S6  A pinned segment is no victim but of a job that strips it: that takes no segment, moves
//!   nothing, and spares the values that are pinned themselves.
//! - S7  `flushed` is what the flush word said when it was last noted. Every open segment has its
//!   epoch, and `flushed_segments` counts those of `own` that have an earlier one.

mod append;
mod log;
#[cfg(all(test, loom))]
mod models;
mod reclaimer;
mod reserve;
mod stats;
#[cfg(test)]
mod tests;
mod walk;

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

pub use stats::SegmentStats;
pub use walk::{WalkCursor, Walked};

use self::log::open::OpenSegments;
use self::reclaimer::Job;
use self::reclaimer::ghost::{self, Ghosts};
use self::reclaimer::{victim, worth};
use crate::flush::{Flushed, is_before};
use crate::item::Item;
use crate::layout::{Access, Header, ItemAt};
use crate::meta::{BIN, DEAD, EPOCH, EXPIRY_BASE, EXPIRY_MAX, FIFO, ITEMS, List, Phase, TOUCHED};
use crate::pool::{Pinned, Pool, Upload};
use crate::{BLOCK_BYTES, INLINE_VALUE_BYTES_MAX, SEGMENT_BYTES_MIN};

/// Bins of segments by dead space. The first holds those in which a store finds nothing worth a
/// job, the next ones those with a 128th, a 64th and a 32nd or more, the rest those with so many
/// sixteenths. A cache takes the small parts for nothing: it has something to evict.
const BINS: usize = FINE_BINS + 16;

/// Bins for less than a sixteenth, the first apart.
const FINE_BINS: usize = 3;

/// Part of memory spent on ghosts, in percent. A guess until traces are run.
const GHOST_PERCENT: u64 = 1;

/// Segments without which a shard cannot store: one that is filled, and its spare.
const SEGMENTS_MIN: u64 = 2;

const CACHE_LINE_BYTES: usize = 64;
/// Cache lines of an item so small that fetching it whole costs less than asking how long it is.
const SMALL_LINES: usize = 4;
/// Bytes of an item that are prefetched. What is beyond, the processor itself sees coming.
const PREFETCHED_BYTES_MAX: usize = 2048;

/// What a shard's index does for its segments.
pub trait Index {
    /// The secret hash of a key: the one that [`NewItem::hash`] carries.
    fn hash(&self, key: &[u8]) -> u64;

    /// Brings the slots near that `key` may have: one of the two calls below may follow soon.
    fn prefetch(&self, key: &[u8]) {
        let _no_slots_to_prefetch = key;
    }

    /// The item with `key` moved from `from` to `to`: the slot that holds `from` shall hold `to`.
    fn swing(&mut self, key: &[u8], from: ItemAt, to: ItemAt);

    /// The item with `key` is gone: the slot that holds `at` shall be empty.
    fn remove(&mut self, key: &[u8], at: ItemAt);
}

/// No room for the item: memory is full of what may not be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

impl fmt::Display for NoRoom {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("no room left for the item")
    }
}

impl std::error::Error for NoRoom {}

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

/// An item to be stored.
#[derive(Debug)]
pub struct NewItem<'a> {
    /// The key, 1 to [`crate::KEY_BYTES_MAX`] bytes.
    pub key: &'a [u8],
    /// The key's secret hash, as [`Index::hash`] would give it.
    pub hash: u64,
    /// The value.
    pub value: NewValue<'a>,
    /// The client's opaque 32 bits.
    pub client_flags: u32,
    /// Second in which the item dies; 0 for never.
    pub expiry: u32,
    /// The CAS token, where tokens are kept.
    pub cas: Option<u64>,
    /// The item is stale from the start.
    pub stale: bool,
    /// The right to refill it was already given away.
    pub win_sent: bool,
    /// Replies show the key in base64.
    pub base64_key: bool,
    /// The item of the same key that this one replaces, so that it keeps its queue. Only a hint:
    /// the caller kills it, at the place where the index then finds it.
    pub replaces: Option<ItemAt>,
    /// The access word to begin with; `None` for an item never read.
    pub access: Option<Access>,
}

/// Where a new item's value comes from.
#[derive(Debug)]
pub enum NewValue<'a> {
    /// Bytes at hand.
    Bytes(&'a [u8]),
    /// Bytes at hand in two pieces.
    Joined(&'a [u8], &'a [u8]),
    /// A whole value that was uploaded. Its memory goes over to the item when that is stored, and
    /// stays with the upload otherwise.
    Upload(&'a mut Upload),
    /// A stored item's value with something added, whatever their sizes.
    Extended {
        /// The stored item. It is still to be killed by the caller, where the index then finds it.
        old: ItemAt,
        /// What is added.
        added: Added<'a>,
        /// On which side.
        place: JoinPlace,
    },
    /// The value of a stored item, unchanged: for a new CAS token or new client flags. A large
    /// value keeps its blocks, which then belong to the new item; the old is still to be killed.
    Same(ItemAt),
}

/// What is added to a value; see [`NewValue::Extended`].
#[derive(Debug)]
pub enum Added<'a> {
    /// Bytes at hand.
    Bytes(&'a [u8]),
    /// Bytes that were uploaded, to be copied.
    Upload(&'a Upload),
}

/// On which side of a value something is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinPlace {
    /// Behind it (`append`).
    After,
    /// In front of it (`prepend`).
    Before,
}

/// The two queues of S3-FIFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    /// New items, evicted unless they are worth their bytes.
    Probation,
    /// Items that proved themselves.
    Main,
}

/// One shard's items. Every location it gives out is good until the next call with `&mut self`,
/// which may move any item (and tells the index).
#[derive(Debug)]
pub struct Segments {
    pool: Arc<Pool>,
    options: SegmentOptions,
    own: Vec<u32>,
    /// Segments in hand: those of the reserve, and in a large cache one more so that appends
    /// seldom wait.
    spare: Vec<u32>,
    /// Spare segments that new items leave alone.
    reserve: usize,
    /// Jobs that the request in hand may still begin (R3 of `reserve`).
    jobs_left: usize,
    open: OpenSegments,
    fifo: [List; 2],
    /// Bytes of segments and blocks in each queue.
    queue_bytes: [usize; 2],
    bins: [List; BINS],
    job: Option<Job>,
    /// An item that no job may drop or lose sight of: its value is being read for a new one, or it
    /// is replaced in a store.
    kept: Option<ItemAt>,
    ghosts: Ghosts,
    hunt: victim::Hunt,
    strips: victim::Strips,
    gathering: victim::Gathering,
    /// What eviction saw lately.
    weights: worth::Weights,
    /// Segments of main begun before their time in this call for room or step of upkeep.
    turned: usize,
    /// What the flush word said when it was last noted (S7).
    flushed: Flushed,
    /// How many segments of earlier epochs there are.
    flushed_segments: usize,
    live_bytes: usize,
    dead_bytes: usize,
    blocks: usize,
    counts: stats::Counts,
}

impl Segments {
    /// An empty log over `pool`. It takes its spare segments and charges its ghosts at once.
    ///
    /// Errors: the ghosts' address space cannot be reserved.
    pub fn new(pool: Arc<Pool>, options: SegmentOptions) -> io::Result<Self> {
        let share_bytes = pool.fair_share() as u64 * pool.charge_bytes();
        let groups = if options.evict {
            (share_bytes * GHOST_PERCENT / 100) as usize / ghost::GROUP_BYTES
        } else {
            0
        };
        let charged = pool.budget.charge((groups * ghost::GROUP_BYTES) as u64);
        let ghosts = Ghosts::new(if charged { groups } else { 0 })?;
        let reserve = reserve::reserve_of(pool.fair_share(), options.evict);
        let spare = (0..reserve).map_while(|_| pool.take(0)).collect();
        Ok(Self {
            options,
            own: Vec::with_capacity(pool.fair_share()),
            spare,
            reserve,
            jobs_left: 0,
            open: OpenSegments::new(pool.fair_share()),
            fifo: [const { List::new(FIFO) }; 2],
            queue_bytes: [0; 2],
            bins: [const { List::new(BIN) }; BINS],
            job: None,
            kept: None,
            ghosts,
            hunt: victim::Hunt::default(),
            strips: victim::Strips::default(),
            gathering: victim::Gathering::default(),
            weights: worth::Weights::default(),
            turned: 0,
            flushed: pool.flush_word.load(),
            flushed_segments: 0,
            live_bytes: 0,
            dead_bytes: 0,
            blocks: 0,
            counts: stats::Counts::default(),
            pool,
        })
    }

    /// Bytes of the budget without which a shard may have no room for an item: a segment to fill, a
    /// spare one (S5), both of the smallest size, and their part of the ghosts.
    pub const fn budget_bytes_min() -> u64 {
        let segments = SEGMENTS_MIN * Pool::charge_bytes_of(SEGMENT_BYTES_MIN);
        segments + segments.div_ceil(100 / GHOST_PERCENT)
    }

    /// The pool it takes from.
    pub const fn pool(&self) -> &Arc<Pool> {
        &self.pool
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
        self.live_bytes as u64 <= items * ((SMALL_LINES - 1) * CACHE_LINE_BYTES) as u64
    }

    /// Asks the processor for what the item has beyond what [`Self::prefetch_small`] asks for.
    /// Cost: reads the header.
    #[inline]
    pub fn prefetch_rest(&self, at: ItemAt) {
        let bytes = Header::load(&self.pool.arena, at).item_bytes().min(PREFETCHED_BYTES_MAX);
        let lines = (at.offset() % CACHE_LINE_BYTES + bytes).div_ceil(CACHE_LINE_BYTES);
        self.prefetch_lines(at, SMALL_LINES..lines);
    }

    #[inline]
    fn prefetch_lines(&self, at: ItemAt, lines: Range<usize>) {
        lines.for_each(|line| self.pool.arena.prefetch(at.offset() + line * CACHE_LINE_BYTES));
    }

    /// The item at `at`, which the index named.
    #[inline]
    pub fn item(&self, at: ItemAt) -> Item<'_> {
        Item::load(&self.pool, at)
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
        let header = Header::load(&self.pool.arena, at);
        !header.is_dead()
            && !header.is_expired(now)
            && (self.flushed_segments == 0 || !self.is_flushed(self.pool.segment_of(at)))
    }

    fn is_flushed(&self, segment: u32) -> bool {
        is_before(self.pool.metas.get(segment, EPOCH), self.flushed.epoch())
    }

    /// Notes that the item at `at` was read in second `now`. Writes nothing once three
    /// reads are counted.
    #[inline]
    pub fn note_access(&self, at: ItemAt, now: u32) {
        Access::note(&self.pool.arena, at, now);
    }

    /// Moves the second in which the item at `at` dies; 0 for never.
    pub fn set_expiry(&mut self, at: ItemAt, expiry: u32) {
        let arena = &self.pool.arena;
        let header = Header::load(arena, at);
        debug_assert!(!header.is_dead(), "only a living item is touched");
        header.with_expiry(expiry).store(arena, at);
        let segment = self.pool.segment_of(at);
        let metas = &self.pool.metas;
        let wanted = reclaimer::expiry_or_never(expiry);
        let base = metas.get(segment, EXPIRY_BASE);
        let was_above = reclaimer::expiry_or_never(header.expiry()) > base;
        if was_above != (wanted > base) {
            // Once an item, however often it is touched: the rest is what expires at the base.
            let bytes = header.item_bytes() as u32;
            let touched = metas.get(segment, TOUCHED);
            let touched = match was_above {
                true => touched.saturating_sub(bytes),
                false => touched.saturating_add(bytes).min(self.pool.segment_bytes() as u32),
            };
            metas.set(segment, TOUCHED, touched);
        }
        if wanted > metas.get(segment, EXPIRY_MAX) {
            metas.set(segment, EXPIRY_MAX, wanted);
        }
    }

    /// Marks that the right to refill the item at `at` was given away.
    pub fn set_win_sent(&mut self, at: ItemAt) {
        let arena = &self.pool.arena;
        Header::load(arena, at).with_win_sent().store(arena, at);
    }

    /// Drops an item for want of room in the index; the index knows. Counted as evicted, unless it
    /// could not be served any more.
    pub fn evict(&mut self, at: ItemAt, now: u32) {
        if self.is_live(at, now) {
            self.counts.note_evicted(self.item(at).access());
            self.kill(at);
        } else if self.is_flushed(self.pool.segment_of(at)) {
            self.kill(at);
        } else {
            self.expire(at);
        }
    }

    /// The item at `at` was removed or replaced, and its slot is the index's no more: its bytes are
    /// dead. A dead item is left alone. A large value's blocks come back at once, unless pinned.
    pub fn kill(&mut self, at: ItemAt) {
        let item = Item::load(&self.pool, at);
        if item.header().is_dead() {
            return;
        }
        if let Some(extent) = item.extent() {
            self.pool.drop_extent(extent);
        }
        self.bury(at);
    }

    /// As [`Self::kill`], for an item that the caller found expired; counts it so.
    pub fn expire(&mut self, at: ItemAt) {
        let item = Item::load(&self.pool, at);
        if !item.header().is_dead() {
            self.counts.note_expired(item.access());
            self.kill(at);
        }
    }

    /// Marks the item dead and keeps the books; its blocks are dropped or somebody else's already.
    fn bury(&mut self, at: ItemAt) {
        let item = Item::load(&self.pool, at);
        let header = item.header();
        let blocks = item.extent().map_or(0, |extent| extent.blocks as usize);
        self.pool.arena.audit.dead(at.offset());
        header.with_dead().store(&self.pool.arena, at);
        let segment = self.pool.segment_of(at);
        let bytes = header.item_bytes();
        self.live_bytes -= bytes + blocks * BLOCK_BYTES;
        self.blocks -= blocks;
        self.queue_bytes[self.queue_of(segment) as usize] -= blocks * BLOCK_BYTES;
        self.dead_bytes += bytes;
        self.counts.items -= 1;
        let metas = &self.pool.metas;
        let dead = metas.add(segment, DEAD, bytes as u32) as usize;
        let items = metas.get(segment, ITEMS) - 1;
        metas.set(segment, ITEMS, items);
        if metas.phase(segment) != Phase::Sealed {
            return;
        }
        if items == 0 && !metas.is_pinned(segment) {
            self.unbin(segment, dead - bytes);
            self.retire(segment);
        } else {
            self.rebin(segment, dead - bytes, dead);
        }
    }

    /// Holds the value of the item at `at` where it lies; see [`Pinned`].
    pub fn pin(&self, at: ItemAt) -> Pinned {
        self.pool.pin(at)
    }

    /// Whether the flush word says what it said when it was last noted. Cost: one load.
    #[inline]
    pub fn is_flush_noted(&self) -> bool {
        self.pool.flush_word.load() == self.flushed
    }

    /// Notes what the flush word says in second `now`. Where there was a flush every item is dead
    /// at once, and what is stored from now on is not; space comes back in bounded steps, in
    /// [`Self::maintain`] and whenever room is needed.
    ///
    /// The owner notes it before it looks an item up or stores one: what one operation found and
    /// what it then stores is of one epoch. Cost: two loads; after a flush the open segments are
    /// sealed.
    pub fn note_flush(&mut self, now: u32) {
        let flushed = self.pool.flush_word.settle(now);
        let before = self.flushed.epoch();
        if flushed.epoch() != before {
            assert!(is_before(before, flushed.epoch()), "F2");
            // Of the epoch before: those that hold nothing leave the books with it.
            self.close_all();
            self.flushed_segments = self.own.len();
            self.hunt.restart();
        }
        self.flushed = flushed;
    }

    fn bin_of(&self, dead_bytes: usize) -> usize {
        let shift = self.pool.segment_shift;
        match (dead_bytes * 16) >> shift {
            0 if self.options.evict => 0,
            // Twice as much is one bin more.
            0 => (((dead_bytes * 128) >> shift) + 1).ilog2() as usize,
            sixteenths => FINE_BINS + sixteenths.min(15),
        }
    }

    fn rebin(&mut self, segment: u32, dead_before: usize, dead_now: usize) {
        let bin = self.bin_of(dead_now);
        if bin != self.bin_of(dead_before) {
            self.unbin(segment, dead_before);
            self.bins[bin].push_back(&self.pool.metas, segment);
        }
    }

    fn unbin(&mut self, segment: u32, dead_bytes: usize) {
        match self.bin_of(dead_bytes) {
            0 => {}
            bin => self.bins[bin].remove(&self.pool.metas, segment),
        }
    }
}

const _: () = assert!(INLINE_VALUE_BYTES_MAX < BLOCK_BYTES);

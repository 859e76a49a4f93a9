//! The process's item memory: one arena cut into segments, lent to shards and to large values.
//!
//! Upstream:   every shard's `Segments` takes and gives segments; `Upload` takes blocks.
//! Downstream: `arena`, `meta`, and the budget, which is charged a segment at a time.
//!
//! Invariants:
//! - I1  A segment is in exactly one place: never used, released, retired, idle, owned by a shard,
//!   or cut into blocks. All but the first two are charged to the budget.
//! - I2  Idle segments keep their pages and are handed out first; released ones have none.
//! - I3  The lock is taken per segment or per write of an upload, never per small item.
//! - I4  A segment that held items is idle only once no reader on another core can still be in one
//!   of them; until then it is retired. While no reader is awake, it is idle at once. The core that
//!   gives or takes a segment reads nothing meanwhile, so it does not wait for itself (`own`).
//! - I5  Once the kernel has refused to take pages back, it is not asked again: idle segments stay
//!   charged, and are used again.

mod remains;
mod upload;
mod pinned;
mod block;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
#[cfg(not(any(loom, shuttle)))]
use std::sync::{Mutex, MutexGuard};

use kachel_host::{Budget, PageKind};
use kachel_stdx::{
    CachePadded, FlushWord, FlushedPrefixes, Place, Quiescence, Reader, SizeClassOptions,
    SizeClasses, Stamp,
};
#[cfg(loom)]
use loom::sync::{Mutex, MutexGuard};
#[cfg(shuttle)]
use shuttle::sync::{Mutex, MutexGuard};

use block::{BlockLists, BlockQueue, ExtentList, ExtentTable, TABLE_BYTES_PER_BLOCK};
pub(crate) use block::{ExtentId, GATHER_LOOKS_MAX, GATHERED_BYTES_MAX, Gathered, Linked};
pub use pinned::Pinned;
pub(crate) use remains::FREED_BLOCKS_MAX;
pub use upload::Upload;

use crate::arena::Arena;
use crate::audit::Use;
use crate::layout::{ItemAt, SEGMENT_HEAD_BYTES};
use crate::limits::{BLOCK_BYTES, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SEGMENTS_PER_SHARD};
use crate::meta::{META_BYTES, Metas, NONE, Phase, USED};

/// The budget has no room for the bytes that were to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMemory;

impl fmt::Display for NoMemory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("no memory left for the value")
    }
}

impl std::error::Error for NoMemory {}

pub(crate) const CACHE_LINE_BYTES: usize = 64;
/// An item of at most this many cache lines is small: fetching it whole costs less than reading its
/// length first.
pub(crate) const SMALL_LINES: usize = 4;
/// The most bytes that are prefetched without reading the length of the item: a byte of each of its
/// lines, wherever it begins.
const SMALL_BYTES_MAX: usize = (SMALL_LINES - 1) * CACHE_LINE_BYTES + 1;

/// Readers that may register in addition to one per shard. A guess, for backends that read items in
/// place.
const READERS_BESIDE: usize = 8;

/// Segments are scarce up to this many free ones per shard. Shards with enough dead space of their
/// own then take none.
const SCARCE_SEGMENTS: u64 = 2;

/// Bytes of the smallest segment of a shard with room for more than `SEGMENTS_FEW_MAX` of them. In
/// smaller segments, items of 11 to 13 KiB leave a quarter of the memory unused.
const SEGMENT_BYTES_USUAL_MIN: usize = 64 << 10;

/// A shard that would have at most this many segments has smaller ones instead. About two of its
/// segments are not full of items: one is open, and one is spare. With 16 segments, that would be
/// an eighth of memory.
const SEGMENTS_FEW_MAX: usize = 16;

/// From this number of segments on, a shard frees one ahead of need.
pub(crate) const AHEAD_SEGMENTS_MIN: usize = 64;

/// Segments of a shard that hold no item in the mean, and those of one that frees none ahead of
/// need. Counted while traces ran with 4 to 64 MiB.
const UNUSED_SEGMENTS: u64 = 5;
const UNUSED_OF_FEW: u64 = 3;

/// How a [`Pool`] is laid out.
#[derive(Clone, Copy, Debug, Default)]
pub struct PoolOptions {
    /// Engines that will share the pool; with the budget's limit it decides the segment size.
    pub engines: u16,
    /// Cores that read items beside their owners, if they are more than the engines.
    pub cores: u16,
    /// Address space to reserve: the highest limit that the budget will ever have. The pool
    /// reserves at least the current limit.
    pub reserve_bytes: u64,
    /// Ask the kernel for huge pages.
    pub huge: bool,
    /// The size classes by which items are counted.
    pub classes: SizeClassOptions,
}

/// Where the segments of a [`Pool`] are, so that a check can add them up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolBooks {
    /// Segments charged to the budget.
    pub charged_segments: u64,
    /// Bytes that the budget is charged for each segment.
    pub charge_bytes: u64,
    /// Charged segments that are not in use. Readers may still be in some of them.
    pub idle_segments: u64,
    /// Blocks free in segments that also hold used ones, and those that are about to be freed.
    pub free_blocks: u64,
    /// Blocks that a segment is cut into.
    pub blocks_per_segment: u64,
}

/// The item memory of one process.
pub struct Pool {
    pub(crate) arena: Arena,
    pub(crate) metas: Metas,
    pub(crate) budget: Arc<Budget>,
    pub(crate) segment_shift: u32,
    pub(crate) extents: ExtentTable,
    pub(crate) flush_word: FlushWord,
    pub(crate) flushed_prefixes: FlushedPrefixes,
    /// The size classes by which items are counted.
    pub size_classes: Arc<SizeClasses>,
    engines: u16,
    /// Segments in the arena.
    segments: u32,
    /// Segments handed out at least once; those above were never touched.
    touched: AtomicU32,
    released: AtomicU32,
    idle: AtomicU32,
    free_blocks: AtomicU32,
    /// Blocks of dead extents that are not freed yet.
    remaining_blocks: AtomicU32,
    /// Segments that shards below their share could not get.
    asked: AtomicU32,
    /// Times that a shard could not free a segment by moving its own blocks.
    gather_calls: AtomicU32,
    generations: AtomicU64,
    /// See `pinned`. It has cache lines of its own, because all cores read the fields beside it for
    /// each item.
    pinned_bytes: CachePadded<AtomicU64>,
    /// See [`Self::prefetch_small`].
    small_bytes: AtomicU32,
    /// The readers of items by cores other than their owners.
    quiescence: Arc<Quiescence>,
    retired: AtomicU32,
    /// See I5.
    keeps_pages: AtomicBool,
    /// Whether the reclaimers list what they evict.
    lists_evictions: AtomicBool,
    /// The reclaimers draw one of this many items that they evict; 0: none.
    draws_evictions: AtomicU32,
    free: Mutex<Free>,
}

/// What the pool's lock protects.
#[derive(Debug)]
struct Free {
    idle: Vec<u32>,
    /// In the order of their stamps.
    retired: VecDeque<(u32, Stamp)>,
    released: Vec<u32>,
    blocks: BlockLists,
    /// Dead extents that have blocks left (`remains`).
    remains: ExtentList,
}

impl Pool {
    /// Reserves address space and decides the segment size; no memory is backed or charged yet.
    ///
    /// Errors: when the kernel refuses the address space, or a location could not name it (128
    /// TiB).
    pub fn new(budget: Arc<Budget>, options: PoolOptions) -> io::Result<Arc<Self>> {
        let segment_bytes = segment_bytes_for(budget.limit_bytes(), options.engines);
        let reserve_bytes = options.reserve_bytes.max(budget.limit_bytes());
        let segments = u32::try_from(reserve_bytes.div_ceil(segment_bytes as u64))
            .ok()
            .filter(|&segments| segments < NONE && reserve_bytes < 8 << ItemAt::BITS)
            .ok_or(io::ErrorKind::InvalidInput)?;
        let bytes = segments as usize * segment_bytes;
        let blocks = bytes / BLOCK_BYTES;
        let places = options.engines.max(options.cores);
        Ok(Arc::new(Self {
            arena: Arena::reserve(bytes, segment_bytes, options.huge)?,
            metas: Metas::reserve(segments as usize)?,
            budget,
            segment_shift: segment_bytes.trailing_zeros(),
            extents: ExtentTable::reserve(blocks)?,
            flush_word: FlushWord::default(),
            flushed_prefixes: FlushedPrefixes::new(options.engines.max(1)),
            size_classes: Arc::new(SizeClasses::new(options.classes)),
            engines: options.engines.max(1),
            segments,
            touched: AtomicU32::new(0),
            released: AtomicU32::new(0),
            idle: AtomicU32::new(0),
            free_blocks: AtomicU32::new(0),
            remaining_blocks: AtomicU32::new(0),
            asked: AtomicU32::new(0),
            gather_calls: AtomicU32::new(0),
            generations: AtomicU64::new(1),
            pinned_bytes: CachePadded::new(AtomicU64::new(0)),
            small_bytes: AtomicU32::new(SMALL_BYTES_MAX as u32),
            quiescence: Arc::new(Quiescence::new(usize::from(places) + READERS_BESIDE)),
            retired: AtomicU32::new(0),
            keeps_pages: AtomicBool::new(false),
            lists_evictions: AtomicBool::new(false),
            draws_evictions: AtomicU32::new(0),
            free: Mutex::new(Free {
                // Reclaimed for all, so that a segment that comes back needs no allocation.
                idle: Vec::with_capacity(segments as usize),
                retired: VecDeque::with_capacity(segments as usize),
                released: Vec::with_capacity(segments as usize),
                blocks: BlockLists::new(),
                remains: ExtentList::new(),
            }),
        }))
    }

    /// Bytes of a segment.
    #[inline]
    pub const fn segment_bytes(&self) -> usize {
        1 << self.segment_shift
    }

    /// Has all shards list the items that they evict, or no longer. Cost: a store.
    pub fn list_evictions(&self, on: bool) {
        self.lists_evictions.store(on, Ordering::Relaxed);
    }

    /// Whether evicted items are listed. Cost: a load.
    pub(crate) fn lists_evictions(&self) -> bool {
        self.lists_evictions.load(Ordering::Relaxed)
    }

    /// Has all shards draw one of `every` items that they evict, and list it; 0: none. Cost: a
    /// store.
    pub fn draw_evictions(&self, every: u32) {
        self.draws_evictions.store(every, Ordering::Relaxed);
    }

    /// One of this many evicted items is drawn; 0: none is. Cost: a load.
    pub(crate) fn draws_evictions(&self) -> u32 {
        self.draws_evictions.load(Ordering::Relaxed)
    }

    /// The pages that back its segments.
    pub const fn pages(&self) -> PageKind {
        self.arena.pages()
    }

    /// Where its segments are now (I1).
    pub fn books(&self) -> PoolBooks {
        let touched = self.touched.load(Ordering::Relaxed);
        let charged = touched - self.released.load(Ordering::Relaxed);
        PoolBooks {
            charged_segments: charged.into(),
            charge_bytes: self.charge_bytes(),
            idle_segments: u64::from(self.idle.load(Ordering::Relaxed) + self.retired_segments()),
            free_blocks: (self.free_blocks() + self.remaining_blocks() as usize) as u64,
            blocks_per_segment: self.blocks_per_segment() as u64,
        }
    }

    /// Bytes of all segments that the reserved address space holds: no limit can be higher.
    pub const fn bytes_max(&self) -> u64 {
        (self.segments as u64) << self.segment_shift
    }

    /// Bytes charged for a segment: the segment, its line in `meta`, and its part of the table of
    /// blocks. That part is charged even if the segment is not cut into blocks now, because memory
    /// of the table that was used once stays backed.
    pub(crate) const fn charge_bytes(&self) -> u64 {
        Self::charge_bytes_of(self.segment_bytes())
    }

    /// Bytes charged for a segment of `segment_bytes`.
    pub(crate) const fn charge_bytes_of(segment_bytes: usize) -> u64 {
        let table_bytes = segment_bytes / BLOCK_BYTES * TABLE_BYTES_PER_BLOCK;
        (segment_bytes + META_BYTES + table_bytes) as u64
    }

    /// Segments that one shard owns when memory is shared out evenly.
    pub(crate) fn fair_share(&self) -> usize {
        let segments = self.budget.limit_bytes() / self.charge_bytes();
        segments as usize / usize::from(self.engines)
    }

    /// The segment that `at` lies in.
    #[inline]
    pub(crate) const fn segment_of(&self, at: ItemAt) -> u32 {
        (at.offset() >> self.segment_shift) as u32
    }

    #[inline]
    pub(crate) const fn segment_start(&self, segment: u32) -> usize {
        (segment as usize) << self.segment_shift
    }

    /// The CAS base of the segment that `at` lies in.
    #[inline]
    pub(crate) fn cas_base(&self, at: ItemAt) -> u64 {
        self.segment_cas_base(self.segment_of(at))
    }

    #[inline]
    pub(crate) fn segment_cas_base(&self, segment: u32) -> u64 {
        self.arena.word(self.segment_start(segment) + 8).load(Ordering::Relaxed)
    }

    /// The number of the current use of `segment` for items. No other use of any segment has the
    /// same number.
    pub(crate) fn generation(&self, segment: u32) -> u64 {
        self.arena.word(self.segment_start(segment)).load(Ordering::Relaxed)
    }

    /// Registers a reader for a core that reads the items of other owners. It begins awake. `None`
    /// when there are too many readers.
    ///
    /// While the reader is awake and in a round, segments that held items are not used again.
    pub fn register_reader(&self) -> Option<Reader> {
        let reader = self.quiescence.register()?;
        debug_assert!(self.is_read_by(&reader), "I4: in the count from now on");
        Some(reader)
    }

    /// As [`Self::register_reader`], but the reader is asleep until its core reads.
    pub fn register_core(&self) -> Option<Reader> {
        self.quiescence.register_asleep()
    }

    /// Whether `reader` is registered here, and awake. Cost: a load of its own line.
    #[inline]
    pub fn is_read_by(&self, reader: &Reader) -> bool {
        reader.is_awake_in(&self.quiescence)
    }

    /// Prefetches a small item, value included. The shards tell how long their items are, so no
    /// line behind the item is fetched if all items have one length. Cost: a prefetch for each
    /// line.
    #[inline]
    pub fn prefetch_small(&self, at: ItemAt) {
        let bytes = self.small_bytes.load(Ordering::Relaxed) as usize;
        debug_assert!((1..=SMALL_BYTES_MAX).contains(&bytes), "a few lines");
        self.prefetch_lines(at, 0..bytes.div_ceil(CACHE_LINE_BYTES));
        self.arena.prefetch(at.offset() + bytes - 1);
    }

    /// Notes that the longest of the items that a shard has stored recently has `bytes` bytes.
    pub(crate) fn note_longest(&self, bytes: usize) {
        let bytes = bytes.clamp(1, SMALL_BYTES_MAX) as u32;
        // All cores read the line with each item, so it is written only if it changes.
        if self.small_bytes.load(Ordering::Relaxed) != bytes {
            self.small_bytes.store(bytes, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn prefetch_lines(&self, at: ItemAt, lines: Range<usize>) {
        lines.for_each(|line| self.arena.prefetch(at.offset() + line * CACHE_LINE_BYTES));
    }

    /// The word that `flush_all` writes, for all shards of the pool.
    pub const fn flush_word(&self) -> &FlushWord {
        &self.flush_word
    }

    /// The prefixes that are being flushed, for all shards of the pool.
    pub const fn flushed_prefixes(&self) -> &FlushedPrefixes {
        &self.flushed_prefixes
    }

    /// Ends the flushes of prefixes with which all shards are done. Cost: a load if there are none.
    pub(crate) fn retire_prefixes(&self, own: Option<Place>) {
        if self.flushed_prefixes.is_any_live() {
            self.flushed_prefixes.retire(|| self.stamp(), |stamp| self.is_past(stamp, own));
        }
    }

    /// A stamp of this moment: no reader that knows it finds an item that was taken out of its
    /// index before.
    pub(crate) fn stamp(&self) -> Stamp {
        self.quiescence.stamp()
    }

    /// Whether no reader but the one at `own` can still be in an item that was taken out of its
    /// index before `stamp`.
    pub(crate) fn is_past(&self, stamp: Stamp, own: Option<Place>) -> bool {
        self.quiescence.is_past_beside(stamp, own)
    }

    /// As [`Self::is_past`]; otherwise marks a reader that may still be there.
    pub(crate) fn await_past(&self, stamp: Stamp, own: Option<Place>) -> bool {
        self.quiescence.await_past(stamp, own)
    }

    /// The stamp of the segment that waits longest for its readers. Cost: a lock.
    pub(crate) fn first_retired(&self) -> Option<Stamp> {
        self.lock().retired.front().map(|&(_, stamp)| stamp)
    }

    /// Segments that wait until no reader is in them any more (I4). Cost: one load.
    #[inline]
    pub(crate) fn retired_segments(&self) -> u32 {
        self.retired.load(Ordering::Relaxed)
    }

    /// Whether [`Self::take`] would find a segment now.
    #[inline]
    pub(crate) fn may_take(&self, own: Option<Place>) -> bool {
        self.has_idle()
            || self.may_charge()
            || (self.retired_segments() > 0 && self.free_retired(&mut self.lock(), own))
    }

    /// Makes the retired segments idle in which no reader can be any more (I4). Cost: one load if
    /// none is retired.
    pub(crate) fn settle_retired(&self, own: Option<Place>) {
        if self.retired_segments() > 0 {
            self.free_retired(&mut self.lock(), own);
        }
    }

    /// Makes the retired segments idle in which no reader can be any more (I4). Returns whether any
    /// segment is idle.
    fn free_retired(&self, free: &mut Free, own: Option<Place>) -> bool {
        while let Some(&(segment, stamp)) = free.retired.front()
            && self.is_past(stamp, own)
        {
            free.retired.pop_front();
            debug_assert!(!self.metas.is_pinned(segment), "I4: a retired segment holds nothing");
            self.give_raw(free, segment);
        }
        self.retired.store(free.retired.len() as u32, Ordering::Relaxed);
        !free.idle.is_empty()
    }

    fn may_charge(&self) -> bool {
        let room = self.budget.limit_bytes().saturating_sub(self.budget.spent_bytes());
        room >= self.charge_bytes()
            && (self.touched.load(Ordering::Relaxed) < self.segments
                || self.released.load(Ordering::Relaxed) > 0)
    }

    /// Takes a segment for the caller. Its line is clean and its head is written. `None` when no
    /// memory is left.
    pub(crate) fn take(&self, cas_base: u64, own: Option<Place>) -> Option<u32> {
        if !self.may_take(own) {
            return None;
        }
        let segment = self.take_raw(&mut self.lock(), own)?;
        debug_assert!(self.metas.phase(segment) == Phase::Free, "I1");
        self.begin(segment, cas_base);
        Some(segment)
    }

    /// Writes a segment's head: a new generation, the base of its short CAS tokens.
    pub(crate) fn begin(&self, segment: u32, cas_base: u64) {
        let start = self.segment_start(segment);
        self.arena.audit.begin(start, Use::Items);
        let generation = self.generations.fetch_add(1, Ordering::Relaxed);
        self.arena.word(start).store(generation, Ordering::Relaxed);
        self.arena.word(start + 8).store(cas_base, Ordering::Relaxed);
    }

    fn take_raw(&self, free: &mut Free, own: Option<Place>) -> Option<u32> {
        if !free.retired.is_empty() {
            self.free_retired(free, own);
        }
        debug_assert!(self.idle.load(Ordering::Relaxed) as usize == free.idle.len(), "I2");
        if let Some(segment) = free.idle.pop() {
            self.idle.store(free.idle.len() as u32, Ordering::Relaxed);
            return Some(segment);
        }
        let touched = self.touched.load(Ordering::Relaxed);
        if (free.released.is_empty() && touched == self.segments)
            || !self.budget.charge(self.charge_bytes())
        {
            return None;
        }
        if let Some(segment) = free.released.pop() {
            self.released.store(free.released.len() as u32, Ordering::Relaxed);
            return Some(segment);
        }
        self.touched.store(touched + 1, Ordering::Relaxed);
        Some(touched)
    }

    /// Whether several shards share the pool and few segments are free.
    pub(crate) fn is_scarce(&self) -> bool {
        self.engines > 1 && self.free_segments() <= SCARCE_SEGMENTS * u64::from(self.engines)
    }

    /// Asks the shards above their share for a segment, because a shard below its share found none.
    pub(crate) fn ask(&self) {
        let engines = u32::from(self.engines);
        if engines > 1 && self.asked.load(Ordering::Relaxed) < engines {
            self.asked.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether a shard has asked for a segment, and no shard has given one since.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed) > 0
    }

    /// Takes back a segment that held items. The segment must be unpinned, and none of its items
    /// may be in an index. Its pages stay backed, unless the budget is overdrawn.
    pub(crate) fn give(&self, segment: u32, own: Option<Place>) {
        assert!(!self.metas.is_pinned(segment), "I4: a reader may still be in it");
        let mut free = self.lock();
        let stamp = self.stamp();
        if free.retired.is_empty() && self.is_past(stamp, own) {
            self.give_raw(&mut free, segment);
        } else {
            self.metas.clear(segment);
            free.retired.push_back((segment, stamp));
            self.retired.store(free.retired.len() as u32, Ordering::Relaxed);
        }
        drop(free);
        let asked = self.asked.load(Ordering::Relaxed);
        if asked > 0 {
            // Shards that give or ask at the same time may lose a count. A shard that still needs a
            // segment asks again.
            self.asked.store(asked - 1, Ordering::Relaxed);
        }
    }

    /// Makes a segment idle. No reader may be in it.
    fn give_raw(&self, free: &mut Free, segment: u32) {
        self.arena.audit.end(self.segment_start(segment));
        if cfg!(debug_assertions) && !cfg!(loom) {
            self.poison(segment);
        }
        self.metas.clear(segment);
        debug_assert!(self.metas.phase(segment) == Phase::Free, "I1");
        free.idle.push(segment);
        if self.budget.overdrawn_bytes() > 0 {
            self.release_one(free);
        }
        self.idle.store(free.idle.len() as u32, Ordering::Relaxed);
    }

    /// Overwrites what was written in a segment, so that a wrong read after it was given back sees
    /// nonsense and not old items.
    fn poison(&self, segment: u32) {
        let start = self.segment_start(segment);
        let used = match self.metas.get(segment, USED) as usize {
            0 => self.segment_bytes(), // Cut into blocks, or retired before: unknown.
            used => used,
        };
        for word in self.arena.words(start + SEGMENT_HEAD_BYTES..start + used) {
            word.store(0xdbdb_dbdb_dbdb_dbdb, Ordering::Relaxed);
        }
    }

    /// Gives the pages of one idle segment to the kernel and refunds its charge. Returns `false` if
    /// none is idle, or if the kernel does not take the pages (I5).
    fn release_one(&self, free: &mut Free) -> bool {
        if self.keeps_pages() {
            return false;
        }
        let Some(&segment) = free.idle.last() else { return false };
        debug_assert!(self.metas.phase(segment) == Phase::Free, "I1: an idle segment is nobody's");
        if !self.arena.release(self.segment_start(segment), self.segment_bytes()) {
            self.keeps_pages.store(true, Ordering::Relaxed);
            return false;
        }
        free.idle.pop();
        self.budget.refund(self.charge_bytes());
        free.released.push(segment);
        self.released.store(free.released.len() as u32, Ordering::Relaxed);
        self.idle.store(free.idle.len() as u32, Ordering::Relaxed);
        true
    }

    /// Whether the kernel takes no memory back (I5), so that freeing some for it is useless.
    pub(crate) fn keeps_pages(&self) -> bool {
        self.keeps_pages.load(Ordering::Relaxed)
    }

    /// Whether a segment is idle.
    pub(crate) fn has_idle(&self) -> bool {
        self.idle.load(Ordering::Relaxed) > 0
    }

    /// Releases one idle segment; `false` when there is none, or the kernel does not take it.
    pub(crate) fn release_next(&self, own: Option<Place>) -> bool {
        let mut free = self.lock();
        if !free.retired.is_empty() {
            self.free_retired(&mut free, own);
        }
        self.release_one(&mut free)
    }

    /// Releases idle segments until the budget has `bytes` to spend. Returns whether it has.
    pub(crate) fn release_idle(&self, bytes: u64, own: Option<Place>) -> bool {
        let mut free = self.lock();
        if !free.retired.is_empty() {
            self.free_retired(&mut free, own);
        }
        loop {
            let limit = self.budget.limit_bytes();
            if self.budget.spent_bytes().saturating_add(bytes) <= limit {
                return true;
            }
            if !self.release_one(&mut free) {
                return false;
            }
        }
    }

    /// Bytes that uploads could take now before any shard makes room.
    pub(crate) fn upload_room_bytes(&self) -> u64 {
        (self.free_segments() << self.segment_shift)
            + u64::from(self.free_blocks.load(Ordering::Relaxed)) * BLOCK_BYTES as u64
    }

    /// Segments that could be taken now before any shard makes room.
    fn free_segments(&self) -> u64 {
        let chargeable = self.budget.limit_bytes().saturating_sub(self.budget.spent_bytes())
            / self.charge_bytes();
        let unused = self.segments - self.touched.load(Ordering::Relaxed)
            + self.released.load(Ordering::Relaxed);
        u64::from(self.idle.load(Ordering::Relaxed)) + chargeable.min(unused.into())
    }

    /// Blocks free in segments that also hold used ones.
    pub(crate) fn free_blocks(&self) -> usize {
        self.free_blocks.load(Ordering::Relaxed) as usize
    }

    /// Blocks of dead extents that are not freed yet. Cost: a load.
    pub(crate) fn remaining_blocks(&self) -> u32 {
        self.remaining_blocks.load(Ordering::Relaxed)
    }

    pub(crate) const fn blocks_per_segment(&self) -> usize {
        self.segment_bytes() / BLOCK_BYTES
    }

    /// Segments handed out at least once.
    pub(crate) fn segments_touched(&self) -> u32 {
        self.touched.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Pool")
            .field("segment_bytes", &self.segment_bytes())
            .field("segments", &self.segments)
            .field("idle", &self.idle)
            .finish_non_exhaustive()
    }
}

/// Bytes of the segments of an evicting shard with `share_bytes` of memory that hold no item in the
/// mean, for models of eviction: spare segments, and the free and dead parts of others.
pub fn unused_bytes(share_bytes: u64) -> u64 {
    let segment_bytes = segment_bytes_for(share_bytes, 1);
    let segments = share_bytes / Pool::charge_bytes_of(segment_bytes);
    let are_few = segments < AHEAD_SEGMENTS_MIN as u64;
    segment_bytes as u64 * if are_few { UNUSED_OF_FEW } else { UNUSED_SEGMENTS }
}

/// The power of two that gives each shard about `SEGMENTS_PER_SHARD` segments, within the limits.
fn segment_bytes_for(limit_bytes: u64, engines: u16) -> usize {
    let share = limit_bytes / u64::from(engines.max(1));
    let share = usize::try_from(share).unwrap_or(usize::MAX);
    let are_few = share / SEGMENT_BYTES_USUAL_MIN <= SEGMENTS_FEW_MAX;
    let least = if are_few { SEGMENT_BYTES_MIN } else { SEGMENT_BYTES_USUAL_MIN };
    let segment_bytes = 1 << (share / SEGMENTS_PER_SHARD).clamp(least, SEGMENT_BYTES_MAX).ilog2();
    debug_assert!((SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&segment_bytes));
    segment_bytes
}

#[cfg(all(test, not(loom)))]
mod tests;

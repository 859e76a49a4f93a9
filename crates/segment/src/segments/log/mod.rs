//! The log of one shard: its segments, what they hold, and how items enter and leave them.
//!
//! Upstream:   `append` and `reserve` write items, `reclaimer` empties segments.
//! Downstream: `pool` for segments and blocks. `place` finds the segment for an item, `open` keeps
//!             the segments that are being filled, `queues` the sealed ones in order, `owned` the
//!             list of all.
//!
//! The log moves and drops no item by itself. It does not know the index, and it does not decide
//! which items are kept.
//!
//! Invariants:
//! - L1  `owned` lists exactly the segments with this shard's items; each knows its place there.
//! - L2  `live_bytes`, `dead_bytes`, `blocks` and `items` are the sums over `owned`; a segment's
//!   `dead` counts removed items, not tails that were too short for the next item.
//! - L3  A sealed segment stands in its queue's FIFO, and in the bin of its dead space if it has
//!   some. An open copy target stands in the FIFO too, in the place of its first victim. A victim
//!   is in the FIFO and in no bin.
//! - L4  New items and replacements leave at least one spare segment to jobs (a store keeps a
//!   larger reserve: `reserve`). In a cache in which nothing can be evicted, a new item takes it.
//! - L5  `flushed` is the flush word as it was last noted. Every open segment has the epoch of
//!   `flushed`, and `flushed_segments` counts the segments of `owned` with an earlier epoch. In the
//!   same way, `prefixes` are the flushed prefixes as they were last noted. Every open segment has
//!   the generation of the newest, and `stale_segments` counts the segments with an earlier one.
//!   A segment in which upkeep has found all items that are flushed gets the newest generation.
//! - L7  A sweep is about the segments with a generation before `sweep_to`, which `sweep_left`
//!   counts. It is over when none is left, however many flushes come meanwhile. The next sweep then
//!   follows them. So a prefix that is flushed again and again keeps no other one in the list.
//! - L6  A segment in `awaited` becomes a spare segment once no reader on another core can be in
//!   it. Spare and awaited segments together are at most `spare_target`.

#[cfg(any(all(test, not(loom)), debug_assertions))]
mod audit;
mod place;
pub(crate) mod open;
pub(crate) mod queues;
pub(crate) mod ttl;
mod owned;
mod lengths;

use std::collections::VecDeque;
use std::sync::Arc;

use kachel_stdx::{Flushed, NotedPrefixes, Place, Stamp, is_before};

use self::lengths::Lengths;
use self::open::{OpenSegments, Stream};
use self::owned::Owned;
use self::queues::{Queue, Queues};
use self::ttl::{NEVER, expiry_or_never};
use crate::item::{Draft, Item};
use crate::layout::{Header, ItemAt};
use crate::limits::BLOCK_BYTES;
use crate::meta::{DEAD, EPOCH, EXPIRY_BASE, EXPIRY_MAX, ITEMS, OWNER, Phase, TOUCHED, USED};
use crate::pool::{AHEAD_SEGMENTS_MIN, CACHE_LINE_BYTES, Pool};

/// Dead part of memory above which compaction comes before eviction, in percent.
const DEAD_PERCENT: usize = 10;

/// A block that is freed counts as this many bytes of work: its links and owner, and the lists of
/// its segment.
pub(crate) const FREED_BLOCK_BYTES: usize = 4 * CACHE_LINE_BYTES;

/// Examining the times of a segment counts as this many bytes of work: its line in `meta`.
pub(crate) const LOOKED_SEGMENT_BYTES: usize = CACHE_LINE_BYTES;

/// How a log is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogOptions {
    /// Whether the log belongs to a cache, which evicts. Otherwise it belongs to a store.
    pub(crate) evict: bool,
    /// This shard's number.
    pub(crate) shard: u16,
    /// The number of spare segments that new items do not use.
    pub(crate) reserve: usize,
}

/// One shard's segments and the items in them.
#[derive(Debug)]
pub(crate) struct Log {
    pool: Arc<Pool>,
    options: LogOptions,
    owned: Owned,
    open: OpenSegments,
    queues: Queues,
    /// The spare segments: those of the reserve, and in a large cache one more, so that appends
    /// seldom wait.
    spare: Vec<u32>,
    /// Segments that will be spare ones, in the order of their stamps (L6).
    awaited: VecDeque<(u32, Stamp)>,
    /// The core that uses this log, once one has entered.
    core: Option<Place>,
    /// The flush word as it was last noted (L5).
    flushed: Flushed,
    /// How many segments of earlier epochs there are.
    flushed_segments: usize,
    /// The flushed prefixes as they were last noted (L5).
    prefixes: NotedPrefixes,
    /// How many segments of earlier generations there are.
    stale_segments: usize,
    /// The generation that the sweep under way gives to all segments, at least (L7).
    sweep_to: u32,
    /// How many segments are left to it.
    sweep_left: usize,
    /// Where its search for a segment goes on.
    sweep_looked: usize,
    /// The newest flush of a prefix with which this log has said that it is done.
    done_with: u32,
    live_bytes: usize,
    dead_bytes: usize,
    blocks: usize,
    items: u64,
    lengths: Lengths,
    /// The work since the start, in bytes ([`Self::note_work`]).
    work_bytes: u64,
    /// Calls of `audit_in_turn` since the last audit.
    #[cfg(debug_assertions)]
    audited: usize,
}

/// What was flushed, at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flushes {
    flushed: Flushed,
    /// Whether a prefix was flushed since the log has noted the prefixes.
    pub(crate) is_prefix_new: bool,
}

/// What a log holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holdings {
    pub(crate) items: u64,
    pub(crate) live_bytes: usize,
    pub(crate) dead_bytes: usize,
    pub(crate) blocks: usize,
    pub(crate) segments: usize,
    pub(crate) spare_segments: usize,
}

impl Log {
    /// An empty log over `pool`. It takes its spare segments at once.
    pub(crate) fn new(pool: Arc<Pool>, options: LogOptions) -> Self {
        let spare = (0..options.reserve).map_while(|_| pool.take(0, None)).collect();
        let share = pool.fair_share();
        Self {
            options,
            owned: Owned::with_capacity(2 * share), // Others may own fewer than their shares.
            open: OpenSegments::new(share),
            queues: Queues::new(options.evict, pool.segment_shift),
            spare,
            awaited: VecDeque::with_capacity(options.reserve + 1), // L6
            core: None,
            flushed: pool.flush_word.load(),
            flushed_segments: 0,
            prefixes: NotedPrefixes::default(),
            stale_segments: 0,
            sweep_to: 0,
            sweep_left: 0,
            sweep_looked: 0,
            done_with: 0,
            live_bytes: 0,
            dead_bytes: 0,
            blocks: 0,
            items: 0,
            lengths: Lengths::default(),
            work_bytes: 0,
            #[cfg(debug_assertions)]
            audited: 0,
            pool,
        }
    }

    /// The pool it takes from.
    #[inline]
    pub(crate) const fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// The core at `core` uses this log from now on.
    #[inline]
    pub(crate) const fn enter(&mut self, core: Place) {
        self.core = Some(core);
    }

    /// The place of the core that uses this log. Its changes do not wait for it, because it reads
    /// nothing meanwhile.
    #[inline]
    pub(crate) const fn own(&self) -> Option<Place> {
        self.core
    }

    /// This shard's number.
    pub(crate) const fn shard(&self) -> u16 {
        self.options.shard
    }

    /// Its sealed segments, in order.
    pub(crate) const fn queues(&self) -> &Queues {
        &self.queues
    }

    /// Whether main has a segment.
    pub(crate) const fn has_main(&self) -> bool {
        self.queues.bytes()[Queue::Main as usize] > 0
    }

    /// What it holds.
    pub(crate) fn holdings(&self) -> Holdings {
        Holdings {
            items: self.items,
            live_bytes: self.live_bytes,
            dead_bytes: self.dead_bytes,
            blocks: self.blocks,
            segments: self.owned.len(),
            spare_segments: self.spare.len() + self.awaited.len(),
        }
    }

    /// Bytes of living items, blocks included.
    #[inline]
    pub(crate) const fn live_bytes(&self) -> usize {
        self.live_bytes
    }

    /// Counts work by the bytes that were copied, or that are read or written in another way.
    #[inline]
    pub(crate) const fn note_work(&mut self, bytes: usize) {
        self.work_bytes += bytes as u64;
    }

    /// The work since the start, in bytes: those of the items that were written, of large values
    /// that were copied or moved, of the tables of blocks that were freed, and
    /// `EXAMINED_ITEM_BYTES` for each item that a job examined.
    pub(crate) const fn work_bytes(&self) -> u64 {
        self.work_bytes
    }

    /// How many blocks its large values have.
    pub(crate) const fn blocks(&self) -> usize {
        self.blocks
    }

    /// How many segments it has.
    pub(crate) const fn segments(&self) -> usize {
        self.owned.len()
    }

    /// All its segments, in no order.
    pub(crate) fn all_segments(&self) -> &[u32] {
        self.owned.all()
    }

    /// Whether the segment is one of this shard's.
    pub(crate) fn owns(&self, segment: u32) -> bool {
        self.owned.contains(&self.pool.metas, segment)
    }

    /// The stream that filled the segment.
    fn stream_of(&self, segment: u32) -> Stream {
        Stream::from_bits(self.pool.metas.get(segment, OWNER) >> 16)
    }

    /// The queue that the segment belongs to.
    pub(crate) fn queue_of(&self, segment: u32) -> Queue {
        self.stream_of(segment).queue()
    }

    fn bucket_of(&self, segment: u32) -> u16 {
        let bucket = (self.pool.metas.get(segment, OWNER) >> 18) as u16;
        debug_assert!(bucket <= NEVER, "O1");
        bucket
    }

    /// Whether the item at `at` may be served: neither removed, nor expired, nor flushed.
    #[inline]
    pub(crate) fn is_live(&self, at: ItemAt, now: u32) -> bool {
        let header = Header::load(&self.pool.arena, at);
        !header.is_dead() && !header.is_expired(now) && !self.is_item_flushed(at)
    }

    /// Whether the item at `at` was flushed. Cost: one comparison while no segment is flushed or
    /// stale.
    #[inline]
    pub(crate) fn is_item_flushed(&self, at: ItemAt) -> bool {
        self.flushed_segments | self.stale_segments != 0 && self.is_old_item_flushed(at)
    }

    /// Whether the item at `at` was flushed. Cost: loads from the line of its segment; if the
    /// segment is stale, a comparison with each flushed prefix that is newer.
    fn is_old_item_flushed(&self, at: ItemAt) -> bool {
        let segment = self.pool.segment_of(at);
        self.is_flushed(segment) || self.is_stale(segment) && self.is_key_flushed(at, segment)
    }

    /// Whether the item at `at` was flushed with a prefix, and not with all keys.
    pub(crate) fn is_prefix_flushed(&self, at: ItemAt) -> bool {
        let segment = self.pool.segment_of(at);
        !self.is_flushed(segment) && self.is_stale(segment) && self.is_key_flushed(at, segment)
    }

    #[cold]
    fn is_key_flushed(&self, at: ItemAt, segment: u32) -> bool {
        let generation = self.pool.metas.generation(segment);
        let key = Item::load(&self.pool, at).key();
        self.pool.flushed_prefixes.has_flushed(&self.prefixes, key, generation)
    }

    /// Whether prefixes were flushed after the segment was opened, and upkeep has not examined its
    /// items since then.
    fn is_stale(&self, segment: u32) -> bool {
        self.prefixes.is_after(self.pool.metas.generation(segment))
    }

    /// Whether the segment's items were flushed.
    pub(crate) fn is_flushed(&self, segment: u32) -> bool {
        is_before(self.pool.metas.get(segment, EPOCH), self.flushed.epoch())
    }

    /// Whether there was no flush, of all keys or of a prefix, since they were last noted. Cost:
    /// two loads.
    #[inline]
    pub(crate) fn is_flush_noted(&self) -> bool {
        self.pool.flush_word.load() == self.flushed
            && self.pool.flushed_prefixes.is_noted(&self.prefixes)
    }

    /// Whether all keys were flushed since that was last noted. Cost: one load.
    pub(crate) fn is_epoch_noted(&self) -> bool {
        self.pool.flush_word.load().epoch() == self.flushed.epoch()
    }

    /// The flushes until now, in second `now`. The word is loaded before the prefixes, and compared
    /// again after they were noted ([`Self::is_epoch_noted`]): an operation that sees one flush
    /// must see each flush before that, too. Otherwise what it stores would be older than such a
    /// flush, and die of it. Cost: two loads.
    pub(crate) fn flushes_until(&self, now: u32) -> Flushes {
        let flushed = self.pool.flush_word.settle(now);
        Flushes { flushed, is_prefix_new: !self.pool.flushed_prefixes.is_noted(&self.prefixes) }
    }

    /// Notes these flushes. If there are new ones, seals the open segments. Returns whether all
    /// keys were flushed. If a prefix is new, no job is under way.
    pub(crate) fn note_flush(&mut self, flushes: Flushes) -> bool {
        let Flushes { flushed, is_prefix_new } = flushes;
        let before = self.flushed.epoch();
        let is_new = flushed.epoch() != before;
        if is_new || is_prefix_new {
            // Of the epoch and the generation before: those that hold nothing leave the books.
            self.close_all(!is_new);
        }
        if is_new {
            assert!(is_before(before, flushed.epoch()), "F2");
            self.flushed_segments = self.owned.len();
            self.owned.restart_pass();
        }
        self.flushed = flushed;
        if is_prefix_new {
            self.pool.flushed_prefixes.note(&mut self.prefixes);
            self.stale_segments = self.owned.len();
        }
        is_new
    }

    /// The number of the newest flush of a prefix that was noted.
    pub(crate) const fn newest_prefix(&self) -> u32 {
        self.prefixes.newest()
    }

    /// Says with which flushed prefixes this log is done, and ends those with which all logs are
    /// done. If a sweep is over, begins the next one (L7). Cost: some comparisons and a load if
    /// there are none.
    pub(crate) fn settle_prefixes(&mut self) {
        self.turn_sweep();
        self.pool.retire_prefixes(self.own());
    }

    /// If the sweep is over, says so, and begins the next one if there are stale segments (L7).
    fn turn_sweep(&mut self) {
        if self.sweep_left > 0 {
            return;
        }
        let newest = self.prefixes.newest();
        if self.stale_segments == 0 {
            self.sweep_to = newest;
        }
        if self.done_with != self.sweep_to {
            self.done_with = self.sweep_to;
            self.pool.flushed_prefixes.note_done(self.options.shard, self.sweep_to);
        }
        (self.sweep_to, self.sweep_left) = (newest, self.stale_segments);
    }

    /// Whether the sweep under way must examine the segment (L7).
    fn is_to_sweep(&self, segment: u32) -> bool {
        is_before(self.pool.metas.generation(segment), self.sweep_to)
    }

    /// The next segment to sweep, if one is among the next `looks_max` segments.
    pub(crate) fn next_stale(&mut self, looks_max: usize) -> Option<u32> {
        self.turn_sweep();
        if self.sweep_left == 0 {
            return None;
        }
        let segments = self.owned.len();
        for _ in 0..looks_max.min(segments) {
            self.sweep_looked = if self.sweep_looked < segments { self.sweep_looked } else { 0 };
            let segment = self.owned.all()[self.sweep_looked];
            self.sweep_looked += 1;
            self.note_work(LOOKED_SEGMENT_BYTES);
            if self.is_to_sweep(segment) && self.pool.metas.phase(segment) == Phase::Sealed {
                return Some(segment);
            }
        }
        None
    }

    /// Notes that no item of a stale segment is flushed any more (L5).
    pub(crate) fn end_stale(&mut self, segment: u32) {
        assert!(self.is_stale(segment), "L5: a segment is stale once for each flush");
        self.sweep_left -= usize::from(self.is_to_sweep(segment));
        self.pool.metas.set_generation(segment, self.prefixes.newest());
        self.stale_segments -= 1;
    }

    /// Changes the second in which the item at `at` expires; 0 for never.
    pub(crate) fn set_expiry(&mut self, at: ItemAt, expiry: u32) {
        let arena = &self.pool.arena;
        let header = Header::load(arena, at);
        debug_assert!(!header.is_dead(), "only a living item is touched");
        header.with_expiry(expiry).store(arena, at);
        let segment = self.pool.segment_of(at);
        let metas = &self.pool.metas;
        let wanted = expiry_or_never(expiry);
        let base = metas.get(segment, EXPIRY_BASE);
        let was_above = expiry_or_never(header.expiry()) > base;
        if was_above != (wanted > base) {
            // Each item counts once, however often it is touched. The others expire at the base or
            // before.
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

    /// Writes the item into a segment with room for it, and keeps the books.
    pub(crate) fn put(&mut self, segment: u32, draft: &Draft<'_>) -> ItemAt {
        let metas = &self.pool.metas;
        let cas_base = self.pool.segment_cas_base(segment);
        let header: Header = draft.header(cas_base);
        let used = metas.get(segment, USED) as usize;
        let bytes = header.item_bytes();
        assert!(used + bytes <= self.pool.segment_bytes(), "an item lies in one segment");
        debug_assert!(metas.get(segment, EPOCH) == self.flushed.epoch(), "L5");
        debug_assert!(!self.is_stale(segment), "L5");
        let at = ItemAt::from_offset(self.pool.segment_start(segment) + used);
        self.pool.arena.audit.item(at.offset(), bytes);
        draft.write(&self.pool.arena, at, header, cas_base);
        self.pool.arena.audit.whole(at.offset());
        metas.set(segment, USED, (used + bytes) as u32);
        metas.set(segment, ITEMS, metas.get(segment, ITEMS) + 1);
        let expiry = expiry_or_never(draft.expiry());
        metas.set(segment, EXPIRY_BASE, metas.get(segment, EXPIRY_BASE).max(expiry));
        metas.set(segment, EXPIRY_MAX, metas.get(segment, EXPIRY_MAX).max(expiry));
        let blocks = draft.blocks();
        self.live_bytes += bytes + blocks * BLOCK_BYTES;
        self.blocks += blocks;
        self.queues.add_bytes(self.queue_of(segment), blocks * BLOCK_BYTES);
        self.items += 1;
        self.note_work(bytes);
        self.lengths.note(bytes, &self.pool);
        at
    }

    /// Kills the item at `at`, which was removed or replaced. Its bytes become dead. Its blocks
    /// become free, unless they are pinned. Does nothing if the item is dead already.
    pub(crate) fn kill(&mut self, at: ItemAt) {
        let item = Item::load(&self.pool, at);
        if item.header().is_dead() {
            return;
        }
        if let Some(extent) = item.extent() {
            let freed = self.pool.drop_extent(extent);
            self.note_work(freed * FREED_BLOCK_BYTES);
        }
        self.bury(at);
        debug_assert!(!self.owns(self.pool.segment_of(at)) || Item::load(&self.pool, at).is_dead());
    }

    /// Marks the item dead and updates the books. The caller has dropped its blocks, or they belong
    /// to another item. A sealed segment whose last item dies is given back.
    pub(crate) fn bury(&mut self, at: ItemAt) {
        let item = Item::load(&self.pool, at);
        let header = item.header();
        debug_assert!(!header.is_dead(), "L2: an item dies once");
        let blocks = item.extent().map_or(0, |extent| extent.blocks as usize);
        self.pool.arena.audit.dead(at.offset());
        header.with_dead().store(&self.pool.arena, at);
        let segment = self.pool.segment_of(at);
        let bytes = header.item_bytes();
        self.forget_blocks(segment, blocks);
        self.live_bytes -= bytes;
        self.dead_bytes += bytes;
        self.items -= 1;
        let metas = &self.pool.metas;
        let dead = metas.add(segment, DEAD, bytes as u32) as usize;
        let items = metas.get(segment, ITEMS) - 1;
        metas.set(segment, ITEMS, items);
        if metas.phase(segment) != Phase::Sealed {
            return;
        }
        if items == 0 && !metas.is_pinned(segment) {
            self.queues.unbin(metas, segment, dead - bytes);
            self.retire(segment);
        } else {
            self.queues.rebin(metas, segment, dead - bytes, dead);
        }
    }

    /// Stops counting the blocks of the item at `old`, because another item is about to take them
    /// over.
    pub(crate) fn give_extent_away(&mut self, old: ItemAt) {
        let Some(extent) = Item::load(&self.pool, old).extent() else { return };
        let header = Header::load(&self.pool.arena, old);
        debug_assert!(!header.is_dead(), "a dead item has no blocks to give");
        header.with_extent_given().store(&self.pool.arena, old);
        self.forget_blocks(self.pool.segment_of(old), extent.blocks as usize);
    }

    fn forget_blocks(&mut self, segment: u32, blocks: usize) {
        self.live_bytes -= blocks * BLOCK_BYTES;
        self.blocks -= blocks;
        self.queues.sub_bytes(self.queue_of(segment), blocks * BLOCK_BYTES);
    }

    /// Makes a sealed segment the victim of a job (L3).
    pub(crate) fn begin_victim(&mut self, segment: u32) {
        let metas = &self.pool.metas;
        assert!(metas.phase(segment) == Phase::Sealed, "L3: only a sealed segment is a victim");
        metas.set_phase(segment, Phase::Victim);
        self.queues.unbin(metas, segment, metas.get(segment, DEAD) as usize);
    }

    /// Ends the job of a victim. A victim without living items is given back, unless it was pinned
    /// meanwhile. Any other victim is sealed again.
    pub(crate) fn end_victim(&mut self, segment: u32) {
        let metas = &self.pool.metas;
        assert!(metas.phase(segment) == Phase::Victim, "L3: a job ends with its victim");
        if metas.get(segment, ITEMS) == 0 && !metas.is_pinned(segment) {
            return self.retire(segment);
        }
        metas.set_phase(segment, Phase::Sealed);
        self.queues.rebin(metas, segment, 0, metas.get(segment, DEAD) as usize);
    }

    /// Moves a victim behind all other segments of its queue.
    pub(crate) fn put_last(&mut self, victim: u32) {
        let queue = self.queue_of(victim);
        self.queues.put_last(&self.pool.metas, queue, victim);
    }

    /// Removes a segment from the books and gives it back. It has no living items and is in no bin.
    fn retire(&mut self, segment: u32) {
        let metas = &self.pool.metas;
        assert!(
            metas.get(segment, ITEMS) == 0 && !metas.is_pinned(segment),
            "L2: only a segment that nothing needs goes back"
        );
        let queue = self.queue_of(segment);
        self.queues.remove(metas, queue, segment);
        self.dead_bytes -= metas.get(segment, DEAD) as usize;
        self.queues.sub_bytes(queue, self.pool.segment_bytes());
        if self.is_flushed(segment) {
            self.flushed_segments -= 1;
        }
        if self.is_stale(segment) {
            self.stale_segments -= 1;
        }
        self.sweep_left -= usize::from(self.is_to_sweep(segment));
        self.owned.remove(metas, segment);
        if self.spare.len() + self.awaited.len() >= self.spare_target() {
            return self.pool.give(segment, self.own());
        }
        metas.clear(segment); // As clean as if it came from the pool.
        let stamp = self.pool.stamp();
        self.awaited.push_back((segment, stamp));
        debug_assert!(self.spare.len() + self.awaited.len() <= self.spare_target(), "L6");
        self.settle_awaited();
    }

    /// Makes the awaited segments spare segments in which no reader can be any more (L6).
    #[inline]
    pub(crate) fn settle_awaited(&mut self) {
        while let Some(&(segment, stamp)) = self.awaited.front()
            && self.pool.is_past(stamp, self.own())
        {
            self.awaited.pop_front();
            self.pool.arena.audit.end(self.pool.segment_start(segment));
            self.spare.push(segment);
        }
    }

    /// Whether no segment is on the way, or one has come free, or the next try frees more blocks of
    /// a value that is gone. If not, marks a reader that may be in the segment that is on the way
    /// longest.
    pub(crate) fn await_room(&mut self) -> bool {
        if self.pool.remaining_blocks() > 0 {
            return true;
        }
        let before = self.segments_on_the_way();
        self.settle_awaited();
        self.pool.settle_retired(self.own());
        if before == 0 || self.segments_on_the_way() < before {
            return true;
        }
        let own = self.awaited.front().map(|&(_, stamp)| stamp);
        let first = own.into_iter().chain(self.pool.first_retired()).min();
        first.is_none_or(|stamp| self.pool.await_past(stamp, self.own()))
    }

    /// Segments that this shard could take if no reader were in them any more.
    #[inline]
    pub(crate) fn segments_on_the_way(&self) -> usize {
        self.awaited.len() + self.pool.retired_segments() as usize
    }

    /// Continues this second's search for expired and flushed items. Returns the next segment to be
    /// emptied, or `None` if there is none among the next `looks_max` or the search is over.
    pub(crate) fn next_expired(&mut self, now: u32, looks_max: usize) -> Option<u32> {
        for _ in 0..looks_max {
            let segment = self.owned.next_in_pass(now)?;
            self.note_work(LOOKED_SEGMENT_BYTES);
            debug_assert!(self.owns(segment), "L1");
            if self.is_expired(segment, now) {
                return Some(segment);
            }
            self.owned.pass();
        }
        None
    }

    /// Whether the items of a segment were flushed or have expired, except for touched ones.
    fn is_expired(&self, segment: u32, now: u32) -> bool {
        let metas = &self.pool.metas;
        if metas.is_pinned(segment) || metas.phase(segment) == Phase::Victim {
            return false;
        }
        if self.is_flushed(segment) || metas.get(segment, EXPIRY_MAX) <= now {
            return true;
        }
        if metas.get(segment, EXPIRY_BASE) > now || !self.can_empty(segment) {
            return false;
        }
        // The items that were not touched have expired. If most were touched, the segment is not
        // worth a job yet.
        let used = metas.get(segment, USED);
        let spent = metas.get(segment, DEAD) + metas.get(segment, TOUCHED);
        if used.saturating_sub(spent) >= used / 4 {
            return true;
        }
        debug_assert!(metas.get(segment, EXPIRY_BASE) <= metas.get(segment, EXPIRY_MAX));
        metas.set(segment, EXPIRY_BASE, metas.get(segment, EXPIRY_MAX));
        metas.set(segment, TOUCHED, 0);
        false
    }

    /// Whether there is a segment for the living items of the victim, if it has any (L4).
    pub(crate) fn can_empty(&self, victim: u32) -> bool {
        !self.spare.is_empty() || self.pool.metas.get(victim, ITEMS) == 0
    }

    /// Whether so much is dead that compaction comes before eviction.
    pub(crate) fn is_compaction_due(&self) -> bool {
        let own_bytes = self.owned.len() * self.pool.segment_bytes();
        self.dead_bytes * 100 > own_bytes * DEAD_PERCENT
    }

    /// Whether the shard has enough segments to free one ahead of need.
    pub(crate) fn is_large(&self) -> bool {
        self.pool.fair_share() >= AHEAD_SEGMENTS_MIN
    }

    /// Whether this shard holds clearly less than its share of memory.
    pub(crate) fn is_below_share(&self) -> bool {
        self.queues.total_bytes() < self.pool.fair_share() * self.pool.segment_bytes() / 10 * 9
    }
}

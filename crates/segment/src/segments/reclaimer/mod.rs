//! Frees memory by expiry, flush, compaction and eviction: one victim at a time, item by item.
//!
//! Upstream:   `append` and `reserve` when memory is full, `cache` at a tick's end.
//! Downstream: `victim` for where to begin, `job` for what happens to each item, `gather` for
//!             blocks, and below them `worth` and `ghost`; all of them work on the `log`.
//!
//! Shards share the pool. While few segments are free, a shard with much dead space compacts and
//! takes none. A shard that holds less than its share asks the others before it evicts.
//!
//! Invariants:
//! - V1  One job at a time.
//! - V2  A job takes at most one more segment than its victim, so it can always end and give the
//!   victim back. A job that took the last spare segment does so, unless a reader has pinned the
//!   victim meanwhile, or many blocks are free. In these two cases, no living item is compacted
//!   until there is a spare segment again. While a job runs, nothing else takes the room in its
//!   copy targets.
//! - V3  A pinned segment is a victim only of a job that strips or sweeps it. Such a job takes no
//!   segment, moves no item, and keeps the values that are pinned themselves.
//! - V4  The protected item is never dropped, and `protected` follows it when it moves.
//! - V5  One request causes no more work than its allowance (B1 of `allowance`).

mod victim;
mod gather;
pub(crate) mod job;
pub(crate) mod worth;
pub(crate) mod allowance;
pub(crate) mod counts;
pub(crate) mod evicted;
pub(crate) mod ghost;

use std::io;
use std::sync::Arc;

use self::allowance::{
    ACTION_BYTES_MAX, Allowance, UPKEEP_GATHER_BYTES_MAX, UPKEEP_STEP_BYTES_MAX,
};
use self::counts::Counts;
use self::evicted::EvictedList;
use self::gather::{Gathering, LOOKED_BLOCK_BYTES};
use self::ghost::Ghosts;
use self::job::{EXAMINED_ITEM_BYTES, Job};
use self::victim::{EXPIRY_LOOKS_MAX, Strips};
use self::worth::Weights;
use super::context::{Context, Index};
use super::log::{FREED_BLOCK_BYTES, LOOKED_SEGMENT_BYTES, Log};
use crate::item::Item;
use crate::layout::{ITEM_BYTES_MAX, ItemAt};
use crate::pool::{FREED_BLOCKS_MAX, GATHER_LOOKS_MAX, Pool};
use crate::size_classes::ClassCounts;
use crate::{BLOCK_BYTES, SEGMENT_BYTES_MAX};

/// Part of memory spent on ghosts, in percent. A guess until traces are run.
pub const GHOST_PERCENT: u64 = 1;

/// A job handles this many items before it is checked again whether there is enough room.
const STRIDE_ITEMS: usize = 64;

/// A segment that is given back counts as this many items, so that one step of upkeep gives few
/// segments to the kernel.
const GIVEN_ITEMS: usize = 16;

/// A segment that is given back to the kernel counts as this part of its bytes, as a divisor: 256
/// bytes for each page. A guess.
const RELEASED_PART: usize = 16;

/// The most bytes of a search for segments that have expired, and of a step of gathering.
const SEARCHED_BYTES_MAX: usize = EXPIRY_LOOKS_MAX * LOOKED_SEGMENT_BYTES;
const GATHERED_IN_UPKEEP_MAX: usize = UPKEEP_GATHER_BYTES_MAX
    + GATHER_LOOKS_MAX * (SEGMENT_BYTES_MAX / BLOCK_BYTES) * LOOKED_BLOCK_BYTES;

const _: () = {
    let most = ACTION_BYTES_MAX as usize;
    assert!(SEARCHED_BYTES_MAX + GATHERED_IN_UPKEEP_MAX <= most, "B2 of allowance");
    assert!(FREED_BLOCKS_MAX * FREED_BLOCK_BYTES + EXAMINED_ITEM_BYTES <= most);
    assert!(ITEM_BYTES_MAX + EXAMINED_ITEM_BYTES <= most);
    assert!(SEGMENT_BYTES_MAX / RELEASED_PART <= most);
};

/// The result of a search for memory to reclaim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// A job has begun.
    Job,
    /// A segment came free at once.
    Freed,
    /// There is nothing to reclaim.
    Nothing,
}

/// The result of making room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reclaimed {
    /// There is room.
    Made,
    /// Enough was freed, but readers on other cores may still be in it: there is room once each of
    /// them has ended its round. Or blocks of a large value that is gone remain, more than one
    /// request may free. Nothing more is evicted for it meanwhile.
    OnTheWay,
    /// There is nothing left to reclaim, or the request has caused as much work as it may.
    Refused,
}

/// The result of freeing blocks of large values that are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Freed {
    /// Blocks are free. There may be more.
    Piece,
    /// More remain, and the request has freed as many as it may (B3 of `allowance`).
    Later,
    /// None remain.
    Nothing,
}

/// The kind of memory that a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    /// Whole segments.
    Segments,
    /// Blocks of large values.
    Blocks,
}

/// Frees memory for one shard.
#[derive(Debug)]
pub(crate) struct Reclaimer {
    /// Whether the shard belongs to a cache, which evicts. Otherwise it belongs to a store.
    evict: bool,
    job: Option<Job>,
    /// Work that the current request or step of upkeep may still cause.
    allowance: Allowance,
    /// Segments of main that were turned early in this request or step of upkeep.
    turned: usize,
    /// An item whose value is being read for a new one, or which is replaced in a store (V4).
    protected: Option<ItemAt>,
    strips: Strips,
    gathering: Gathering,
    /// What eviction saw recently.
    weights: Weights,
    ghosts: Ghosts,
    counts: Counts,
    /// Counts of evicted and expired items, by size class.
    class_counts: Arc<ClassCounts>,
    /// Items evicted since the owner last took the list.
    evicted: EvictedList,
    /// Work since the start, in bytes. It is a part of that of the log.
    work_bytes: u64,
}

impl Reclaimer {
    /// A reclaimer for one shard over `pool`, whose budget it charges for its ghosts.
    ///
    /// Errors: the ghosts' address space cannot be reserved.
    pub(crate) fn new(pool: &Pool, evict: bool, item_overhead_bytes: usize) -> io::Result<Self> {
        let share_bytes = pool.fair_share() as u64 * pool.charge_bytes();
        let groups = if evict {
            (share_bytes * GHOST_PERCENT / 100) as usize / ghost::GROUP_BYTES
        } else {
            0
        };
        let charged = pool.budget.charge((groups * ghost::GROUP_BYTES) as u64);
        let ghosts = Ghosts::new(if charged { groups } else { 0 })?;
        Ok(Self {
            evict,
            job: None,
            allowance: Allowance::default(),
            turned: 0,
            protected: None,
            strips: Strips::default(),
            gathering: Gathering::default(),
            weights: Weights::default(),
            ghosts,
            counts: Counts::default(),
            class_counts: Arc::new(ClassCounts::new(&pool.size_classes, item_overhead_bytes)),
            evicted: EvictedList::default(),
            work_bytes: 0,
        })
    }

    /// What was done since the start.
    pub(crate) const fn counts(&self) -> &Counts {
        &self.counts
    }

    /// The work of making room since the start, in bytes.
    pub(crate) const fn work_bytes(&self) -> u64 {
        self.work_bytes
    }

    /// Counts of evicted and expired items, by size class.
    pub(crate) const fn class_counts(&self) -> &Arc<ClassCounts> {
        &self.class_counts
    }

    /// Counts an item as evicted in second `now`.
    pub(crate) fn note_evicted(&mut self, item: &Item<'_>, now: u32) {
        self.counts.note_evicted(item.access(), now);
        self.class_counts.note_evicted(item, now);
        let (all, every) = (item.pool().lists_evictions(), item.pool().draws_evictions());
        if all || every > 0 {
            self.evicted.note(item, all, every);
        }
    }

    /// The items that were evicted since the owner last took the list.
    pub(crate) const fn evicted(&self) -> &EvictedList {
        &self.evicted
    }

    /// The same list, to be taken.
    pub(crate) const fn evicted_mut(&mut self) -> &mut EvictedList {
        &mut self.evicted
    }

    /// Counts an item as found expired or flushed.
    pub(crate) fn note_reclaimed(&mut self, log: &Log, item: &Item<'_>) {
        self.counts.note_reclaimed(item.access(), log.is_prefix_flushed(item.at()));
        self.class_counts.note_reclaimed(item);
    }

    /// Counts an item for which no room was found.
    pub(crate) const fn note_refused(&mut self) {
        self.counts.refused += 1;
    }

    /// Takes note of a new large value. No reader has pinned it yet, so a strip could drop it.
    pub(crate) const fn note_large_value(&mut self) {
        self.strips.fruitless = 0;
    }

    /// Returns whether the key with this hash was evicted recently. Counts that, and forgets the
    /// key.
    pub(crate) fn take_ghost(&mut self, hash: u64) -> bool {
        let is_ghost = self.ghosts.take(hash);
        self.counts.ghost_hits += u64::from(is_ghost);
        is_ghost
    }

    /// Whether keys that were evicted are stored again, more often than by chance.
    pub(crate) const fn do_keys_return(&self) -> bool {
        self.ghosts.do_keys_return()
    }

    /// Protects an item until the next call (V4).
    pub(crate) fn protect(&mut self, at: Option<ItemAt>) {
        self.protected = at;
    }

    /// Where the protected item lies now.
    pub(crate) const fn protected(&self) -> Option<ItemAt> {
        self.protected
    }

    /// Whether a job is under way.
    pub(crate) const fn is_busy(&self) -> bool {
        self.job.is_some()
    }

    /// Begins a request that may have to free about `bytes`: it may cause new work.
    #[inline]
    pub(crate) fn begin_request(&mut self, log: &Log, bytes: u64) {
        let segments = 1 + (bytes >> log.pool().segment_shift) as usize;
        self.allowance = Allowance::new(self.evict, segments, bytes);
    }

    /// The number of items that the last request was allowed to examine, and that it examined.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn items_looked_at(&self, segment_bytes: usize) -> (usize, usize) {
        (self.allowance.items_max(segment_bytes), self.allowance.items())
    }

    /// Counts work of making room.
    const fn note_work(&mut self, log: &mut Log, bytes: usize) {
        log.note_work(bytes);
        self.work_bytes += bytes as u64;
    }

    /// Frees more blocks of a large value that is gone, if any remain and the request may still do
    /// so.
    fn free_remains(&mut self, log: &mut Log) -> Freed {
        if log.pool().remaining_blocks() == 0 {
            return Freed::Nothing;
        }
        if !self.allowance.take_piece() {
            return Freed::Later;
        }
        let freed = log.pool().free_remains();
        debug_assert!(freed <= FREED_BLOCKS_MAX, "B3 of allowance: a piece is bounded");
        self.note_work(log, freed * FREED_BLOCK_BYTES);
        if freed > 0 { Freed::Piece } else { Freed::Nothing } // Another shard may have been faster.
    }

    /// Whether blocks of large values that are gone remain, which a later request or step of upkeep
    /// frees.
    pub(crate) fn awaits_remains(&self, log: &Log) -> bool {
        log.pool().remaining_blocks() > 0
    }

    /// Gives an idle segment to the kernel, if there is one. Returns whether it did.
    fn release_next(&mut self, log: &mut Log) -> bool {
        let released = log.pool().release_next(log.own());
        self.note_work(log, if released { log.pool().segment_bytes() / RELEASED_PART } else { 0 });
        released
    }

    /// Does the upkeep that is due, for about `items_max` items at most, and within a bound of work
    /// (B2 of `allowance`). Returns the number of items handled; 0 when nothing is due. See
    /// `Segments::maintain`.
    pub(crate) fn maintain(
        &mut self,
        log: &mut Log,
        context: &mut Context<'_, impl Index>,
        items_max: usize,
    ) -> usize {
        self.turned = 0;
        self.strips.begin_step();
        let before = log.work_bytes();
        self.allowance = Allowance::of_upkeep(items_max, before);
        log.settle_awaited();
        // It counts even if it frees nothing, because the shard that called waits for the whole
        // round.
        let mut items = if self.gather_when_called(log, context.now) { GIVEN_ITEMS } else { 0 };
        while items < items_max && !self.allowance.is_worked_out(log.work_bytes()) {
            if self.free_remains(log) == Freed::Piece {
                items += GIVEN_ITEMS;
                continue;
            }
            if self.is_job_idle(log) {
                self.leave_job(log);
            } else if self.is_evicting() && self.gather(log, context.now) {
                items += GIVEN_ITEMS;
                continue;
            }
            if self.job.is_none() {
                if log.pool().budget.overdrawn_bytes() > 0 && self.release_next(log) {
                    items += GIVEN_ITEMS;
                    continue;
                }
                if !self.find_due(log, context.now) {
                    items += usize::from(self.strips.is_cut());
                    break;
                }
            }
            let handled = self.run_job(log, context, items_max - items).max(1);
            items += if self.job.is_none() { handled.max(GIVEN_ITEMS) } else { handled };
        }
        debug_assert!(items <= items_max + GIVEN_ITEMS, "a step of upkeep is bounded");
        let work = log.work_bytes() - before;
        debug_assert!(work <= UPKEEP_STEP_BYTES_MAX, "B2 of allowance: {work} bytes");
        items
    }

    /// Frees memory until the budget can be charged `bytes`. See `Segments::make_room`.
    pub(crate) fn make_room(
        &mut self,
        log: &mut Log,
        context: &mut Context<'_, impl Index>,
        bytes: u64,
    ) -> Reclaimed {
        if log.pool().keeps_pages() && log.pool().has_idle() {
            return Reclaimed::Refused;
        }
        self.begin_request(log, bytes);
        if self.free_remains(log) == Freed::Piece && log.pool().budget.overdrawn_bytes() > 0 {
            return Reclaimed::Refused; // The excess goes back in steps, these blocks first.
        }
        if log.pool().budget.overdrawn_bytes() > 0 || log.pool().keeps_pages() {
            if self.job.is_none() {
                self.find_victim(log, context.now);
            }
            self.finish_job(log, context);
            return Reclaimed::Refused;
        }
        let is_enough = |log: &Log| {
            let released = log.pool().release_idle(bytes, log.own());
            released || log.pool().keeps_pages() // More would not help.
        };
        let coming = |log: &Log| {
            u64::from(log.pool().retired_segments()) * log.pool().charge_bytes() >= bytes
        };
        match self.work_until(log, context, Wanted::Segments, is_enough, coming) {
            Reclaimed::Made if log.pool().keeps_pages() => Reclaimed::Refused,
            room => room,
        }
    }

    /// Frees memory until blocks of `bytes` in all can be taken, within the current request.
    pub(crate) fn make_block_room(
        &mut self,
        log: &mut Log,
        context: &mut Context<'_, impl Index>,
        bytes: usize,
    ) -> Reclaimed {
        let bytes = bytes as u64;
        let is_enough = |log: &Log| {
            log.pool().settle_retired(log.own());
            log.pool().upload_room_bytes() >= bytes
        };
        let coming = |log: &Log| {
            let retired = u64::from(log.pool().retired_segments()) << log.pool().segment_shift;
            retired > 0 && log.pool().upload_room_bytes() + retired >= bytes
        };
        self.work_until(log, context, Wanted::Blocks, is_enough, coming)
    }

    /// Frees memory until an append can open a segment.
    pub(crate) fn make_segment(
        &mut self,
        log: &mut Log,
        context: &mut Context<'_, impl Index>,
    ) -> Reclaimed {
        if log.is_below_share() {
            log.pool().ask();
        }
        let is_enough = |log: &Log| log.spare_segments() > 1 || log.may_take();
        let coming = |log: &Log| log.segments_on_the_way() > 0;
        self.work_until(log, context, Wanted::Segments, is_enough, coming)
    }

    /// Runs jobs until `is_enough` is true, or until `coming` is true: then there is enough once
    /// readers have ended their rounds. If blocks of large values that are gone remain, and the
    /// request may free no more of them, there is enough later, too. Otherwise there is nothing
    /// left to reclaim, or the request has caused as much work as it may.
    ///
    /// If the request wants whole segments and many blocks are free, these are gathered before a
    /// job evicts more.
    fn work_until(
        &mut self,
        log: &mut Log,
        context: &mut Context<'_, impl Index>,
        wanted: Wanted,
        is_enough: impl Fn(&Log) -> bool,
        coming: impl Fn(&Log) -> bool,
    ) -> Reclaimed {
        assert!(!self.awaits_kill(log), "what was replaced before is dead by now");
        self.turned = 0;
        loop {
            if is_enough(log) {
                return Reclaimed::Made;
            }
            match self.free_remains(log) {
                // Nothing is dropped while there are blocks of values that are gone.
                Freed::Piece => continue,
                Freed::Later => return Reclaimed::OnTheWay,
                Freed::Nothing => {}
            }
            let may_gather = wanted == Wanted::Segments && self.is_evicting();
            if may_gather && self.gather(log, context.now) && is_enough(log) {
                return Reclaimed::Made;
            }
            if coming(log) {
                return Reclaimed::OnTheWay;
            }
            if self.job.is_none() {
                match self.find_victim(log, context.now) {
                    // A store has nothing else to free, so it refuses only after a whole round.
                    Found::Nothing if !self.evict && self.is_gathering(log, context.now) => {
                        continue;
                    }
                    Found::Nothing if !self.evict && self.may_gather_later(log, context.now) => {
                        return Reclaimed::OnTheWay;
                    }
                    Found::Nothing => {
                        log.pool().ask();
                        return Reclaimed::Refused;
                    }
                    Found::Freed | Found::Job => {}
                }
                if !self.is_stripping() && !self.allowance.take_job() {
                    return Reclaimed::Refused;
                }
            }
            self.run_job(log, context, STRIDE_ITEMS);
        }
    }

    /// Ends the job under way or runs another one. Returns `false` if nothing is worth a job, or if
    /// the request has begun as many jobs, or freed as many blocks, as it may.
    pub(crate) fn run_one_job(
        &mut self,
        log: &mut Log,
        context: &mut Context<'_, impl Index>,
    ) -> bool {
        debug_assert!(!self.evict, "a cache makes room in steps");
        match self.free_remains(log) {
            Freed::Piece => return true,
            Freed::Later => return false,
            Freed::Nothing => {}
        }
        if self.job.is_none() {
            if !self.allowance.take_job() {
                return false;
            }
            let found = self.find_victim(log, context.now);
            if found == Found::Nothing && !self.is_gathering(log, context.now) {
                log.pool().ask();
                return false;
            }
        }
        self.finish_job(log, context);
        true
    }

    /// Runs the job under way, if there is one, to its end.
    pub(crate) fn finish_job(&mut self, log: &mut Log, context: &mut Context<'_, impl Index>) {
        assert!(!self.awaits_kill(log), "a rewrite ends with the death of what it replaces");
        while self.job.is_some() {
            self.run_job(log, context, STRIDE_ITEMS);
        }
    }

    /// Whether the job would evict although there is enough room now, because one large value may
    /// have been enough. A job that took the last spare segment continues to its end, which gives
    /// one back (V2). If many blocks are free, even such a job stops: it may take long until a
    /// whole segment of blocks is free, because values of other shards and protected values lie
    /// between them, and the victim may have the heads of thousands of values.
    fn is_job_idle(&self, log: &Log) -> bool {
        let is_room = || log.has_spare() && log.pool().may_take(log.own());
        self.is_evicting()
            && log.pool().budget.overdrawn_bytes() == 0
            && (is_room() || gather::are_blocks_plenty(log.pool()) && !log.is_to_give())
    }

    fn is_stripping(&self) -> bool {
        self.job.as_ref().is_some_and(Job::is_strip)
    }

    fn is_evicting(&self) -> bool {
        self.job.as_ref().is_some_and(Job::drops)
    }
}

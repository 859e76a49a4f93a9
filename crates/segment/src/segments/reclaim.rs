//! How space comes back: expiry, flush, compaction, eviction; one victim at a time, item by item.
//!
//! Upstream:   `append` when memory is full, `shard` at a tick's end by [`Segments::maintain`].
//! Downstream: `worth` for what is kept, `open` for copies, `pool` for what is given back.
//!
//! A job walks its victim's items. Dead ones are passed over; flushed and expired ones leave the
//! index; of the rest compaction copies all, eviction copies to the main queue those that `worth`
//! grants a turn and drops the others. At its end nothing in the victim lives, and it goes back.
//! A job that evicts is left early when there is room by now and a spare segment is in hand (S5),
//! or when the one item that must stay finds no segment for its copy: the victim keeps the rest.
//!
//! A segment that is pinned when its turn to be evicted comes cannot come back. A job *strips* it:
//! that drops the large values that nobody is sent, whose blocks do come back, and leaves the rest
//! for another turn. Else one reader could keep all values whose heads share a segment.
//!
//! Shards share the pool. One that has much dead space lives on that while little is free for all,
//! and one that holds less than its share asks the others before it evicts (`may_take`).
//!
//! What is chosen, in this order: a segment whose items expired or were flushed; gathering the
//! blocks of large values, when whole segments of them are free; the segment with the most dead
//! space, when a tenth of memory is dead or nothing may be evicted; the oldest of probation while
//! that holds more than a tenth of memory, and between these the oldest of main, seldom or often as
//! `worth` says; the oldest of main.

use std::sync::Arc;

use super::open::{For, Need, Stream};
use super::ttl::ttl_bucket;
use super::worth::Seen;
use super::{BINS, Index, Queue, Segments};
use crate::BLOCK_BYTES;
use crate::item::{Access, Item, ItemAt, SEGMENT_HEAD_BYTES};
use crate::meta::{DEAD, EXPIRY_BASE, EXPIRY_MAX, FIFO, ITEMS, NONE, Phase, SLOT, TOUCHED, USED};

/// Part of memory that probation holds, in percent. S3-FIFO's; 5 and 20 are worse on one trace or
/// another (docs/decisions/0005-eviction.md).
const PROBATION_PERCENT: usize = 10;

/// Dead part of memory above which compaction comes before eviction, in percent.
const DEAD_PERCENT: usize = 10;

/// Eviction keeps at most this many quarters of a victim, so that each victim frees something; but
/// for those of main that come before their time, which may be kept whole.
const KEPT_QUARTERS_MAX: usize = 3;

/// Segments looked at for expiry in one call.
const HUNT_SEGMENTS_MAX: usize = 4096;

/// Pinned segments passed over in search of a victim that is not.
const PINNED_MAX: usize = 16;

/// The part of memory, one in so many, that is much to be let go at once.
const LET_GO_PART: u64 = 128;

/// Items of a job between two looks at whether there is room by now.
const STRIDE_ITEMS: usize = 64;

/// Items of a victim whose slots are prefetched together.
const AHEAD_ITEMS: usize = 16;

/// Bytes by which a job's reading of memory runs ahead. Measured: 1.25 times the sets a second that
/// the processor's own prefetching gives, where compaction copies one item a set.
const AHEAD_BYTES: usize = 1024;

/// Items that a segment counts for when it goes back, so that upkeep hands few to the kernel at
/// once.
const GIVEN_ITEMS: usize = 16;

/// Segments of a shard from which on it frees one ahead of need.
const AHEAD_SEGMENTS_MIN: usize = 64;

/// A victim under way.
#[derive(Debug)]
pub(super) struct Job {
    segment: u32,
    offset: usize,
    evict: bool,
    /// Only large values are dropped, and nothing is kept elsewhere: the victim is pinned.
    strip: bool,
    /// Items dropped.
    dropped: usize,
    kept_bytes: usize,
    kept_bytes_max: usize,
    seen: Seen,
}

/// The search for expired and flushed segments: one pass over `own` a second.
#[derive(Debug, Default)]
pub(super) struct Hunt {
    at: usize,
    /// The second whose pass is over.
    done: Option<u32>,
}

/// Strips that freed nothing, one after the other, in one second. After as many as there are
/// segments, and as many again for those that are open, there are no more before the next second or
/// before much is let go, for each costs a look at every item.
#[derive(Debug, Default)]
pub(super) struct Strips {
    second: u32,
    /// The most that was pinned meanwhile.
    pinned_bytes: u64,
    in_vain: usize,
}

impl Hunt {
    pub(super) fn restart(&mut self) {
        *self = Self::default();
    }
}

/// What came of looking for something to reclaim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Job,
    Freed,
    Nothing,
}

/// An item's expiry as a second that can be compared: never is the latest.
pub(super) const fn expiry_or_never(expiry: u32) -> u32 {
    if expiry == 0 { u32::MAX } else { expiry }
}

impl Segments {
    /// Does up to about `items_max` items' worth of what is due: returns expired and flushed
    /// segments, gives memory back when the budget is overdrawn or another shard is short, and
    /// keeps one segment ready when memory is full. Returns the items handled; 0 when nothing is
    /// due.
    pub fn maintain(&mut self, now: u32, index: &mut impl Index, items_max: usize) -> usize {
        let mut items = 0;
        while items < items_max {
            if self.is_job_idle() {
                self.leave_job();
            }
            if self.job.is_none() {
                if self.pool.budget.overdrawn_bytes() > 0 && self.pool.release_next() {
                    items += GIVEN_ITEMS;
                    continue;
                }
                if !self.find_due(now) {
                    break;
                }
            }
            let handled = self.run_job(now, index, items_max - items).max(1);
            items += if self.job.is_none() { handled.max(GIVEN_ITEMS) } else { handled };
        }
        items
    }

    /// Frees memory until the budget can be charged `bytes`: for the index, which wants to grow.
    /// The pages go back to the kernel. Whether it succeeded.
    ///
    /// Cost: as many victims as that takes; the caller asks for little at a time. After the limit
    /// was lowered one victim and no more, and no success: what is over it goes back in the steps
    /// of [`Self::maintain`].
    pub fn make_room(&mut self, bytes: u64, now: u32, index: &mut impl Index) -> bool {
        if self.pool.budget.overdrawn_bytes() > 0 {
            if self.job.is_none() {
                self.find_victim(now);
            }
            while self.job.is_some() {
                self.run_job(now, index, STRIDE_ITEMS);
            }
            return false;
        }
        self.work_until(now, index, |segments| segments.pool.release_idle(bytes))
    }

    /// Frees memory until `Upload::write` can take `bytes` more; whether it succeeded.
    pub fn make_upload_room(&mut self, bytes: usize, now: u32, index: &mut impl Index) -> bool {
        // The piece may begin and end within blocks.
        let bytes = (bytes + BLOCK_BYTES) as u64;
        self.work_until(now, index, |segments| segments.pool.upload_room_bytes() >= bytes)
    }

    /// Frees memory until an append can open a segment; whether it succeeded.
    pub(super) fn make_segment(&mut self, now: u32, index: &mut impl Index) -> bool {
        if self.is_below_share() {
            self.pool.ask();
        }
        self.work_until(now, index, |segments| segments.spare.len() > 1 || segments.may_take())
    }

    /// Whether this shard may take what is free for all. While little is free, one with dead space
    /// of its own lives on that: what another shard has freed for a long line or a reply would
    /// otherwise go, segment by segment, to whoever stores next, until the first one has nothing
    /// dead any more and evicts, though memory is half dead.
    pub(super) fn may_take(&self) -> bool {
        let has_own = || self.is_large() && self.is_compaction_due() && self.deadest().is_some();
        self.pool.may_take() && !(self.pool.is_scarce() && has_own())
    }

    fn is_below_share(&self) -> bool {
        self.total_bytes() < self.pool.fair_share() * self.pool.segment_bytes() / 10 * 9
    }

    fn work_until(
        &mut self,
        now: u32,
        index: &mut impl Index,
        is_enough: impl Fn(&Self) -> bool,
    ) -> bool {
        // Each job frees a part of its victim, so a few rounds over everything free all there is.
        let mut jobs_left = self.own.len() * 8 + BINS;
        while !is_enough(self) {
            if self.job.is_none() {
                match self.find_victim(now) {
                    Found::Nothing => {
                        self.pool.ask();
                        return false;
                    }
                    Found::Freed | Found::Job => {}
                }
                if jobs_left == 0 {
                    return false;
                }
                jobs_left -= 1;
            }
            self.run_job(now, index, STRIDE_ITEMS);
        }
        true
    }

    /// Bytes of this shard's segments and blocks.
    pub(super) fn total_bytes(&self) -> usize {
        self.queue_bytes.iter().sum()
    }

    /// Begins what is due without anyone waiting for room; whether there was anything.
    fn find_due(&mut self, now: u32) -> bool {
        if self.pool.budget.overdrawn_bytes() > 0 {
            return self.find_victim(now) != Found::Nothing;
        }
        if self.hunt_down(now) {
            return true;
        }
        let share_bytes = self.pool.fair_share() * self.pool.segment_bytes();
        let is_short = self.spare.len() < self.spare_target() && !self.own.is_empty();
        let is_asked = self.pool.is_asked() && self.total_bytes() > share_bytes;
        let is_due = is_short && !self.may_take() || is_asked && !self.pool.may_take();
        is_due && self.find_victim(now) != Found::Nothing
    }

    /// Whether the job would evict although there is room by now: one large value may have been
    /// enough. A job that took the last spare segment goes on to its end, which gives one back
    /// (S5).
    fn is_job_idle(&self) -> bool {
        self.job.as_ref().is_some_and(|job| job.evict)
            && !self.spare.is_empty()
            && self.pool.budget.overdrawn_bytes() == 0
            && self.pool.may_take()
    }

    /// While the budget is overdrawn, what is given back is lost at once: an append lives on a
    /// spare.
    fn spare_target(&self) -> usize {
        if self.is_large() || self.pool.budget.overdrawn_bytes() > 0 { 2 } else { 1 }
    }

    fn is_large(&self) -> bool {
        self.pool.fair_share() >= AHEAD_SEGMENTS_MIN
    }

    fn is_compaction_due(&self) -> bool {
        let own_bytes = self.own.len() * self.pool.segment_bytes();
        self.dead_bytes * 100 > own_bytes * DEAD_PERCENT
    }

    fn find_victim(&mut self, now: u32) -> Found {
        if self.spare.is_empty() {
            // A victim that was pinned meanwhile gave no segment back for the one that was taken.
            self.spare.extend(self.pool.take(0));
        }
        if self.hunt_down(now) {
            return if self.job.is_some() { Found::Job } else { Found::Freed };
        }
        if self.pool.free_blocks() >= 2 * self.pool.blocks_per_segment()
            && self.pool.gather_blocks(self.options.shard)
        {
            return Found::Freed;
        }
        if (self.is_compaction_due() || !self.options.evict)
            && let Some(victim) = self.deadest().filter(|&victim| self.can_empty(victim))
        {
            return self.begin_job(victim, false);
        }
        if !self.options.evict {
            return Found::Nothing;
        }
        if self.is_below_share() {
            self.pool.ask();
        }
        let is_main_due =
            self.is_probation_large() && self.weights.is_main_due(self.pool.segment_bytes());
        let Some(victim) = self.oldest(is_main_due, now).or_else(|| self.deadest()) else {
            return Found::Nothing;
        };
        let found = self.begin_job(victim, true);
        if let Some(job) = &mut self.job
            && is_main_due
            && !job.strip
        {
            job.kept_bytes_max = self.pool.segment_bytes();
        }
        found
    }

    /// The next segment whose items expired or were flushed becomes the victim; whether there was
    /// one.
    fn hunt_down(&mut self, now: u32) -> bool {
        if self.hunt.done == Some(now) {
            return false;
        }
        for _ in 0..HUNT_SEGMENTS_MAX {
            let Some(&segment) = self.own.get(self.hunt.at) else {
                self.hunt = Hunt { at: 0, done: Some(now) };
                return false;
            };
            if self.is_due(segment, now) {
                return self.begin_job(segment, false) != Found::Nothing;
            }
            self.hunt.at += 1;
        }
        false
    }

    /// Whether there is a segment for what lives in the victim (S5).
    fn can_empty(&self, victim: u32) -> bool {
        !self.spare.is_empty() || self.pool.metas.get(victim, ITEMS) == 0
    }

    fn is_due(&self, segment: u32, now: u32) -> bool {
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
        // What was not touched has expired. Not worth a job if most was touched: look again later.
        let used = metas.get(segment, USED);
        let spent = metas.get(segment, DEAD) + metas.get(segment, TOUCHED);
        if used.saturating_sub(spent) >= used / 4 {
            return true;
        }
        metas.set(segment, EXPIRY_BASE, metas.get(segment, EXPIRY_MAX));
        metas.set(segment, TOUCHED, 0);
        false
    }

    /// The unpinned sealed segment with the most dead space, if that is a sixteenth or more.
    fn deadest(&self) -> Option<u32> {
        self.bins[1..].iter().rev().find_map(|bin| {
            std::iter::successors(bin.head(), |&segment| bin.next(&self.pool.metas, segment))
                .take(PINNED_MAX)
                .find(|&segment| !self.pool.metas.is_pinned(segment))
        })
    }

    fn is_probation_large(&self) -> bool {
        let probation = self.queue_bytes[Queue::Probation as usize];
        probation * 100 > self.total_bytes() * PROBATION_PERCENT
    }

    /// The segment to evict: of probation while that is large and main not due, of main otherwise.
    /// A pinned one is to be stripped.
    fn oldest(&mut self, is_main_due: bool, now: u32) -> Option<u32> {
        let pinned_bytes = self.pool.pinned_bytes();
        let much_bytes = self.pool.budget.limit_bytes() / LET_GO_PART;
        let much_was_let_go = pinned_bytes + much_bytes <= self.strips.pinned_bytes;
        if self.strips.second != now || much_was_let_go {
            self.strips = Strips { second: now, pinned_bytes, in_vain: 0 };
        }
        self.strips.pinned_bytes = self.strips.pinned_bytes.max(pinned_bytes);
        let in_vain = self.strips.in_vain;
        let [may_strip, may_strip_open] = [1, 2].map(|looks| in_vain < looks * self.own.len());
        let [first, second] = if self.is_probation_large() && !is_main_due {
            [Queue::Probation, Queue::Main]
        } else {
            [Queue::Main, Queue::Probation]
        };
        for queue in [first, second] {
            let is_pinned = |segment| self.pool.metas.is_pinned(segment);
            let fifo = &self.fifo[queue as usize];
            let oldest = std::iter::successors(fifo.head(), |&at| fifo.next(&self.pool.metas, at))
                .take(PINNED_MAX)
                .find(|&segment| may_strip || !is_pinned(segment));
            if oldest.is_some() {
                return oldest;
            }
            let Some(open) = self.open.any(queue) else { continue };
            if !is_pinned(open) || may_strip_open && self.has_droppable(open) {
                return Some(open);
            }
            // It stays open: small items may still find room in it.
            self.strips.in_vain += 1;
        }
        None
    }

    /// Whether a strip would drop anything. Cost: a look at each item of the segment.
    fn has_droppable(&self, segment: u32) -> bool {
        let start = self.pool.segment_start(segment);
        let mut offset = SEGMENT_HEAD_BYTES;
        while offset < self.pool.metas.get(segment, USED) as usize {
            let item = Item::load(&self.pool, ItemAt::from_offset(start + offset));
            if self.may_drop(&item) {
                return true;
            }
            offset += item.header().item_bytes();
        }
        false
    }

    /// Whether a strip drops this item.
    fn may_drop(&self, item: &Item<'_>) -> bool {
        self.kept != Some(item.at()) && self.pool.frees_blocks(item)
    }

    fn begin_job(&mut self, segment: u32, evict: bool) -> Found {
        assert!(self.job.is_none(), "S4");
        if self.pool.metas.phase(segment) == Phase::Open {
            self.close(segment);
            if self.pool.metas.phase(segment) != Phase::Sealed {
                return Found::Freed;
            }
        }
        let metas = &self.pool.metas;
        let strip = evict && metas.is_pinned(segment);
        assert!(
            metas.phase(segment) == Phase::Sealed && (strip || !metas.is_pinned(segment)),
            "S6"
        );
        if strip {
            let fifo = &mut self.fifo[self.queue_of(segment) as usize];
            fifo.remove(metas, segment);
            fifo.push_back(metas, segment);
        }
        let dead = metas.get(segment, DEAD) as usize;
        metas.set_phase(segment, Phase::Victim);
        self.unbin(segment, dead);
        let kept_bytes_max =
            if strip { 0 } else { self.pool.segment_bytes() / 4 * KEPT_QUARTERS_MAX };
        self.job = Some(Job {
            segment,
            offset: SEGMENT_HEAD_BYTES,
            evict,
            strip,
            dropped: 0,
            kept_bytes: 0,
            kept_bytes_max,
            seen: Seen::default(),
        });
        Found::Job
    }

    /// Handles up to `items_max` items of the victim, fewer if a segment's worth of blocks came
    /// free; how many. Ends the job at the victim's end.
    fn run_job(&mut self, now: u32, index: &mut impl Index, items_max: usize) -> usize {
        let pool = Arc::clone(&self.pool);
        let blocks_wanted = self.blocks.saturating_sub(pool.blocks_per_segment());
        for items in 0..items_max {
            if items % AHEAD_ITEMS == 0 {
                self.look_ahead(index);
            }
            let Some(job) = &mut self.job else { return items };
            let segment = job.segment;
            if job.offset == pool.metas.get(segment, USED) as usize {
                if job.strip {
                    self.strips.in_vain = if job.dropped > 0 { 0 } else { self.strips.in_vain + 1 };
                    self.leave_job();
                } else {
                    self.end_job();
                    self.finish(segment);
                }
                return items;
            }
            let at = ItemAt::from_offset(pool.segment_start(segment) + job.offset);
            let item = Item::load(&pool, at);
            job.offset += item.header().item_bytes();
            if job.strip && !self.may_drop(&item) {
                continue;
            }
            if !item.header().is_dead() && !self.settle(&item, now, index) {
                // No segment for a copy, which compaction never lacks (S5).
                self.leave_job();
                return items;
            }
            if self.blocks < blocks_wanted {
                return items + 1;
            }
        }
        items_max
    }

    /// There is no job any more; what it saw is noted. Its victim, if it had one.
    fn end_job(&mut self) -> Option<u32> {
        let Job { segment, evict, strip, seen, .. } = self.job.take()?;
        if evict && !strip {
            let segment_bytes = self.pool.segment_bytes();
            let queue = self.queue_of(segment);
            self.weights.note(queue, seen, self.queue_bytes, segment_bytes);
        }
        Some(segment)
    }

    /// Ends the job before its time; the victim keeps the items that it still has.
    fn leave_job(&mut self) {
        let Some(segment) = self.end_job() else { return };
        let metas = &self.pool.metas;
        if metas.get(segment, ITEMS) == 0 {
            return self.finish(segment);
        }
        metas.set_phase(segment, Phase::Sealed);
        self.rebin(segment, 0, metas.get(segment, DEAD) as usize);
    }

    /// Brings the next living items of the victim near, and their slots.
    fn look_ahead(&self, index: &impl Index) {
        let Some(job) = &self.job else { return };
        let start = self.pool.segment_start(job.segment);
        let end = self.pool.metas.get(job.segment, USED) as usize;
        let mut offset = job.offset;
        for _ in 0..AHEAD_ITEMS {
            if offset >= end {
                return;
            }
            self.pool.arena.prefetch(start + offset + AHEAD_BYTES);
            let item = Item::load(&self.pool, ItemAt::from_offset(start + offset));
            offset += item.header().item_bytes();
            if !item.header().is_dead() {
                index.prefetch(item.key());
            }
        }
    }

    /// Decides what becomes of one living item of the victim, and does it; `false` when it must be
    /// kept and cannot.
    fn settle(&mut self, item: &Item<'_>, now: u32, index: &mut impl Index) -> bool {
        let at = item.at();
        let segment = self.pool.segment_of(at);
        let Some(&Job { evict, .. }) = self.job.as_ref() else {
            unreachable!("S4: items are settled in a job")
        };
        if self.kept != Some(at) {
            if self.is_flushed(segment) {
                return self.discard(item, index);
            }
            if item.header().is_expired(now) {
                self.counts.note_expired(item.access());
                return self.discard(item, index);
            }
        }
        if !evict {
            self.counts.compacted += 1;
            let stream = Stream::copy(self.queue_of(segment));
            let copied = self.copy(item, stream, None, now, index);
            debug_assert!(copied, "S5");
            return copied;
        }
        let turns = self.grant(item);
        if turns.is_some() || self.kept == Some(at) {
            let access = item.access().kept(turns.unwrap_or(0));
            if self.copy(item, Stream::fresh(Queue::Main), Some(access), now, index) {
                return true;
            }
            if self.kept == Some(at) {
                return false;
            }
        }
        if self.queue_of(segment) == Queue::Probation {
            self.ghosts.add(index.hash(item.key()));
        }
        self.counts.note_evicted(item.access());
        self.discard(item, index)
    }

    /// The turns that an item to be kept is owed after this one; `None` when it is to be dropped.
    fn grant(&mut self, item: &Item<'_>) -> Option<u32> {
        let queue = self.queue_of(self.pool.segment_of(item.at()));
        let turns = self.weights.turns(queue, item.access(), item.memory_bytes());
        let Some(job) = &mut self.job else { unreachable!("S4: items are settled in a job") };
        job.seen.add(item.access(), item.memory_bytes());
        let kept_bytes = job.kept_bytes + item.header().item_bytes();
        if turns == 0 || kept_bytes > job.kept_bytes_max {
            return None;
        }
        job.kept_bytes = kept_bytes;
        Some(turns - 1)
    }

    fn discard(&mut self, item: &Item<'_>, index: &mut impl Index) -> bool {
        index.remove(item.key(), item.at());
        self.kill(item.at());
        if let Some(job) = &mut self.job {
            job.dropped += 1;
        }
        true
    }

    /// Copies a living item out of the victim, with another access word if one is given, and
    /// swings the index; `false` when there is no segment.
    fn copy(
        &mut self,
        item: &Item<'_>,
        stream: Stream,
        access: Option<Access>,
        now: u32,
        index: &mut impl Index,
    ) -> bool {
        let Some(&Job { segment: victim, .. }) = self.job.as_ref() else {
            unreachable!("S4: items are copied in a job")
        };
        let draft = item.draft();
        let draft = draft.with_access(access.unwrap_or(draft.access()));
        let bucket = ttl_bucket(draft.expiry(), now);
        let Some(target) = self.place(stream, bucket, Need(&draft), For::Job { victim }) else {
            return false;
        };
        let to = self.put(target, &draft);
        index.swing(item.key(), item.at(), to);
        if self.kept == Some(item.at()) {
            self.kept = Some(to);
        }
        self.bury(item.at());
        true
    }

    /// The job is done: nothing in the victim lives, and unless it was pinned meanwhile it goes
    /// back.
    fn finish(&mut self, segment: u32) {
        let metas = &self.pool.metas;
        assert!(metas.get(segment, ITEMS) == 0, "a job leaves nothing alive in its victim");
        if metas.is_pinned(segment) {
            metas.set_phase(segment, Phase::Sealed);
            self.rebin(segment, 0, metas.get(segment, DEAD) as usize);
        } else {
            self.retire(segment);
        }
    }

    /// Takes a segment without living items, in no bin, out of the books, and gives it back.
    pub(super) fn retire(&mut self, segment: u32) {
        let metas = &self.pool.metas;
        assert!(metas.get(segment, ITEMS) == 0 && !metas.is_pinned(segment), "S6");
        let queue = self.queue_of(segment);
        self.fifo[queue as usize].remove(metas, segment);
        metas.set(segment, FIFO.next(), NONE);
        self.dead_bytes -= metas.get(segment, DEAD) as usize;
        self.queue_bytes[queue as usize] -= self.pool.segment_bytes();
        if self.is_flushed(segment) {
            self.flushed_segments -= 1;
        }
        self.disown(segment);
        let is_short = self.spare.len() < self.spare_target();
        if is_short && self.pool.is_unread() {
            // As clean as if it came from the pool.
            self.pool.arena.audit.end(self.pool.segment_start(segment));
            self.pool.metas.clear(segment);
            self.spare.push(segment);
            return;
        }
        self.pool.give(segment);
        if is_short {
            self.spare.extend(self.pool.take(0)); // One that nobody reads, in its stead.
        }
    }

    /// Takes a segment out of `own`, so that the hunt neither skips nor repeats one.
    fn disown(&mut self, segment: u32) {
        let metas = &self.pool.metas;
        let mut hole = metas.get(segment, SLOT) as usize;
        assert!(self.own[hole] == segment, "S1");
        if hole < self.hunt.at {
            // The last one already looked at fills the hole, and the hole is then at the border.
            self.hunt.at -= 1;
            let moved = self.own[self.hunt.at];
            self.own[hole] = moved;
            metas.set(moved, SLOT, hole as u32);
            hole = self.hunt.at;
        }
        self.own.swap_remove(hole);
        if let Some(&moved) = self.own.get(hole) {
            metas.set(moved, SLOT, hole as u32);
        }
    }
}

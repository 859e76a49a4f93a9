//! How space comes back: expiry, flush, compaction, eviction; one victim at a time, item by item.
//!
//! Upstream:   `append` when memory is full, `cache` at a tick's end by [`Segments::maintain`].
//! Downstream: `victim` for where to begin, `worth` for what is kept, `open` for copies, `pool` for
//! what is given back.
//!
//! A job walks its victim's items. Dead ones are passed over; flushed and expired ones leave the
//! index; of the rest compaction copies all, eviction copies to the main queue those that `worth`
//! grants a turn and drops the others. At its end nothing in the victim lives, and it goes back.
//! A job that evicts is left early when there is room by now and a spare segment is in hand (S5),
//! when blocks for large values lie free by the hundred, or when the one item that must stay finds
//! no segment for its copy: the victim keeps the rest, in the last case behind all others.
//!
//! A segment that is pinned when its turn to be evicted comes cannot come back. A job *strips* it:
//! that drops the large values that nobody is sent, whose blocks do come back, and leaves the rest
//! for another turn. Else one reader could keep all values whose heads share a segment.
//!
//! Shards share the pool. One that has much dead space lives on that while little is free for all,
//! and one that holds less than its share asks the others before it evicts (`may_take`). A shard
//! moves its own large values' blocks alone, so one that finds many free and can bring no segment
//! together calls the others, and each moves what is its own (`gather`).

pub(crate) mod ghost;
pub(crate) mod victim;
pub(crate) mod worth;

use std::sync::Arc;

use self::victim::Found;
use self::worth::Seen;
use super::log::open::{For, Need, Stream};
use super::log::ttl::ttl_bucket;
use super::reserve::JOBS_MAX;
use super::{BINS, Index, Queue, Segments};
use crate::BLOCK_BYTES;
use crate::item::Item;
use crate::layout::{Access, ItemAt, SEGMENT_HEAD_BYTES};
use crate::meta::{DEAD, FIFO, ITEMS, NONE, Phase, SLOT, USED};

/// Eviction keeps at most this many quarters of a victim, so that each victim frees something; but
/// for those of main that come before their time, which may be kept whole.
const KEPT_QUARTERS_MAX: usize = 3;

/// Rounds over all segments that one request may cause in a cache.
const ROUNDS_MAX: usize = 8;

/// Items of a job between two looks at whether there is room by now.
pub(crate) const STRIDE_ITEMS: usize = 64;

/// Items of a victim whose slots are prefetched together.
const AHEAD_ITEMS: usize = 16;

/// Bytes by which a job's reading of memory runs ahead. Measured: 1.25 times the sets a second that
/// the processor's own prefetching gives, where compaction copies one item a set.
const AHEAD_BYTES: usize = 1024;

/// Items that a segment counts for when it goes back, so that upkeep hands few to the kernel at
/// once.
const GIVEN_ITEMS: usize = 16;

/// A victim under way.
#[derive(Debug)]
pub(crate) struct Job {
    segment: u32,
    offset: usize,
    evict: bool,
    /// Only large values are dropped, and nothing is kept elsewhere: the victim is pinned.
    pub(crate) strip: bool,
    /// The kept item stays: its replacement takes its place in the copy (`reserve`).
    rewrites: bool,
    /// Items dropped.
    dropped: usize,
    kept_bytes: usize,
    pub(crate) kept_bytes_max: usize,
    seen: Seen,
}

/// An item's expiry as a second that can be compared: never is the latest.
pub(crate) const fn expiry_or_never(expiry: u32) -> u32 {
    if expiry == 0 { u32::MAX } else { expiry }
}

impl Segments {
    /// Does up to about `items_max` items' worth of what is due: returns expired and flushed
    /// segments, gives memory back when the budget is overdrawn or another shard is short, and
    /// keeps one segment ready when memory is full. Returns the items handled; 0 when nothing is
    /// due.
    pub fn maintain(&mut self, now: u32, index: &mut impl Index, items_max: usize) -> usize {
        self.turned = 0;
        // Work even in vain: who called waits for the whole round.
        let mut items = if self.gather_when_called(now) { GIVEN_ITEMS } else { 0 };
        while items < items_max {
            if self.is_job_idle() {
                self.leave_job();
            } else if self.is_evicting() && self.gather(now) {
                items += GIVEN_ITEMS;
                continue;
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
    /// of [`Self::maintain`]. The same where the kernel takes nothing back: with fewer items the
    /// index may do as it is, and what is idle already is to be used first.
    pub fn make_room(&mut self, bytes: u64, now: u32, index: &mut impl Index) -> bool {
        if self.pool.is_kept() && self.pool.has_idle() {
            return false;
        }
        if self.pool.budget.overdrawn_bytes() > 0 || self.pool.is_kept() {
            if self.job.is_none() {
                self.find_victim(now);
            }
            while self.job.is_some() {
                self.run_job(now, index, STRIDE_ITEMS);
            }
            return false;
        }
        self.jobs_left = self.jobs_max();
        let is_enough = |segments: &Self| {
            segments.pool.release_idle(bytes) || segments.pool.is_kept() // No more in vain.
        };
        self.work_for_segments(now, index, is_enough) && !self.pool.is_kept()
    }

    /// Frees memory until `Upload::write` can take `bytes` more; whether it succeeded.
    pub fn make_upload_room(&mut self, bytes: usize, now: u32, index: &mut impl Index) -> bool {
        // The piece may begin and end within blocks.
        let bytes = (bytes + BLOCK_BYTES) as u64;
        self.jobs_left = self.jobs_max();
        self.work_until(now, index, |segments| segments.pool.upload_room_bytes() >= bytes)
    }

    /// Frees memory until an append can open a segment; whether it succeeded.
    pub(crate) fn make_segment(&mut self, now: u32, index: &mut impl Index) -> bool {
        if self.is_below_share() {
            self.pool.ask();
        }
        self.work_for_segments(now, index, |segments| {
            segments.spare.len() > 1 || segments.may_take()
        })
    }

    /// Whether this shard may take what is free for all. While little is free, one with dead space
    /// of its own lives on that: what another shard has freed for a long line or a reply would
    /// otherwise go, segment by segment, to whoever stores next, until the first one has nothing
    /// dead any more and evicts, though memory is half dead.
    pub(crate) fn may_take(&self) -> bool {
        let has_own = || self.is_large() && self.is_compaction_due() && self.deadest().is_some();
        self.pool.may_take() && !(self.pool.is_scarce() && has_own())
    }

    pub(crate) fn is_below_share(&self) -> bool {
        self.total_bytes() < self.pool.fair_share() * self.pool.segment_bytes() / 10 * 9
    }

    /// As [`Self::work_until`], for who wants whole segments: where many blocks lie free, gathering
    /// them comes before what a job would evict next.
    fn work_for_segments(
        &mut self,
        now: u32,
        index: &mut impl Index,
        is_enough: impl Fn(&Self) -> bool,
    ) -> bool {
        self.work_until(now, index, |segments| {
            is_enough(segments)
                || segments.is_evicting() && segments.gather(now) && is_enough(segments)
        })
    }

    /// Jobs that one request may begin. In a cache each job frees a part of its victim, so a few
    /// rounds over everything free all there is.
    pub(crate) const fn jobs_max(&self) -> usize {
        if self.options.evict { self.own.len() * ROUNDS_MAX + BINS } else { JOBS_MAX }
    }

    fn work_until(
        &mut self,
        now: u32,
        index: &mut impl Index,
        is_enough: impl Fn(&mut Self) -> bool,
    ) -> bool {
        self.turned = 0;
        while !is_enough(self) {
            if self.job.is_none() {
                match self.find_victim(now) {
                    // A store has nothing else to free: it refuses once it has looked everywhere.
                    Found::Nothing if !self.options.evict && self.is_gathering(now) => continue,
                    Found::Nothing => {
                        self.pool.ask();
                        return false;
                    }
                    Found::Freed | Found::Job => {}
                }
                if self.jobs_left == 0 {
                    return false;
                }
                self.jobs_left -= 1;
            }
            self.run_job(now, index, STRIDE_ITEMS);
        }
        true
    }

    /// Bytes of this shard's segments and blocks.
    pub(crate) fn total_bytes(&self) -> usize {
        self.queue_bytes.iter().sum()
    }

    /// Whether the job would evict although there is room by now: one large value may have been
    /// enough. A job that took the last spare segment goes on to its end, which gives one back
    /// (S5); but not where many blocks lie free: no whole segment may be among them for long, as
    /// others' values or kept ones lie between, and a victim has the heads of thousands of values.
    fn is_job_idle(&self) -> bool {
        let is_room = || !self.spare.is_empty() && self.pool.may_take();
        self.is_evicting()
            && self.pool.budget.overdrawn_bytes() == 0
            && (is_room() || self.are_blocks_plenty() && !self.is_to_give())
    }

    fn is_evicting(&self) -> bool {
        self.job.as_ref().is_some_and(|job| job.evict)
    }

    /// Whether a strip drops this item.
    pub(crate) fn may_drop(&self, item: &Item<'_>) -> bool {
        self.kept != Some(item.at()) && item.frees_blocks()
    }

    pub(crate) fn begin_job(&mut self, segment: u32, evict: bool) -> Found {
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
        let dead = metas.get(segment, DEAD) as usize;
        metas.set_phase(segment, Phase::Victim);
        self.unbin(segment, dead);
        if strip {
            self.put_last(segment);
        }
        let kept_bytes_max =
            if strip { 0 } else { self.pool.segment_bytes() / 4 * KEPT_QUARTERS_MAX };
        self.job = Some(Job {
            segment,
            offset: SEGMENT_HEAD_BYTES,
            evict,
            strip,
            rewrites: false,
            dropped: 0,
            kept_bytes: 0,
            kept_bytes_max,
            seen: Seen::default(),
        });
        Found::Job
    }

    /// Handles up to `items_max` items of the victim, fewer if a segment's worth of blocks came
    /// free; how many. Ends the job at the victim's end.
    pub(crate) fn run_job(&mut self, now: u32, index: &mut impl Index, items_max: usize) -> usize {
        let pool = Arc::clone(&self.pool);
        let blocks_wanted = self.blocks.saturating_sub(pool.blocks_per_segment());
        for items in 0..items_max {
            if items % AHEAD_ITEMS == 0 {
                self.look_ahead(index);
            }
            let Some(job) = &mut self.job else { return items };
            let segment = job.segment;
            if job.offset == pool.metas.get(segment, USED) as usize {
                if job.rewrites && pool.metas.get(segment, ITEMS) > 0 {
                    // Its end comes when the item that is replaced is dead.
                    return items;
                }
                if job.strip {
                    self.strips.in_vain += usize::from(job.dropped == 0);
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
            let stays = job.rewrites && self.kept == Some(at);
            if stays || job.strip && !self.may_drop(&item) {
                continue;
            }
            if !item.header().is_dead() && !self.settle(&item, now, index) {
                // No segment for a copy, which compaction never lacks (S5). The next in turn holds
                // nothing that must stay, and so gives one back.
                self.put_last(segment);
                self.leave_job();
                return items;
            }
            if self.blocks < blocks_wanted {
                return items + 1;
            }
        }
        items_max
    }

    /// Walks the victim of the job that was just begun, all but the kept item, whose replacement
    /// the caller puts into the copy. The job ends when the kept item is dead.
    pub(crate) fn rewrite_job(&mut self, now: u32, index: &mut impl Index) {
        assert!(self.kept.is_some(), "only a segment with an item to be replaced is rewritten");
        let Some(job) = &mut self.job else { unreachable!("S4: the job was begun") };
        job.rewrites = true;
        let used = self.pool.metas.get(job.segment, USED) as usize;
        while self.job.as_ref().is_some_and(|job| job.offset < used) {
            self.run_job(now, index, STRIDE_ITEMS);
        }
        assert!(self.job.is_some(), "what is replaced still lives");
    }

    /// Whether a rewritten segment is left with the item that its caller is to kill.
    pub(crate) fn awaits_kill(&self) -> bool {
        self.job.as_ref().is_some_and(|job| {
            let metas = &self.pool.metas;
            let is_over = job.offset == metas.get(job.segment, USED) as usize;
            job.rewrites && is_over && metas.get(job.segment, ITEMS) > 0
        })
    }

    /// Has the victim wait for another turn, behind all others of its queue.
    fn put_last(&mut self, victim: u32) {
        let fifo = &mut self.fifo[self.queue_of(victim) as usize];
        fifo.remove(&self.pool.metas, victim);
        fifo.push_back(&self.pool.metas, victim);
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
            if job.strip {
                // Not at its end, which it may never see: upkeep leaves it when there is room.
                self.strips.in_vain = 0;
            }
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
    pub(crate) fn retire(&mut self, segment: u32) {
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

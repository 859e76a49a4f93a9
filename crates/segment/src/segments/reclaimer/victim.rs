//! Which segment space comes back from next.
//!
//! Upstream:   `reclaim`, with no job under way.
//! Downstream: `reclaim` again, which begins the job; `pool` for what other shards ask.
//!
//! What is chosen, in this order: a segment whose items expired or were flushed; gathering the
//! blocks of large values, when whole segments of them are free; the segment with the most dead
//! space, when a tenth of memory is dead or nothing may be evicted; the oldest of probation while
//! that holds more than a tenth of memory, and between these the oldest of main, seldom or often as
//! `worth` says; the oldest of main.

use super::super::{FINE_BINS, Queue, Segments};
use crate::item::Item;
use crate::layout::{ItemAt, SEGMENT_HEAD_BYTES};
use crate::meta::{DEAD, EXPIRY_BASE, EXPIRY_MAX, ITEMS, Phase, TOUCHED, USED};

/// Part of memory that probation holds, in percent. S3-FIFO's; 5 and 20 are worse on one trace or
/// another (docs/decisions/0005-eviction.md).
const PROBATION_PERCENT: usize = 10;

/// Dead part of memory above which compaction comes before eviction, in percent.
const DEAD_PERCENT: usize = 10;

/// Segments looked at for expiry in one call.
const HUNT_SEGMENTS_MAX: usize = 4096;

/// Pinned segments passed over in search of a victim that is not.
const PINNED_MAX: usize = 16;

/// The part of memory, one in so many, that is much to be let go at once.
const LET_GO_PART: u64 = 128;

/// Segments' worth of free blocks from which on they are gathered. A guess: with less, each segment
/// gathered may cost as many copies as it has blocks.
const PLENTY_SEGMENTS: usize = 2;

/// Segments of main that are turned in one call for room or step of upkeep, at most. They may be
/// kept whole, so each may be a segment's copy that frees nothing; and one victim of probation with
/// the heads of large values has a sixteenth of main turned. The next calls turn the rest.
const TURNED_MAX: usize = 4;

/// Segments of a shard from which on it frees one ahead of need.
const AHEAD_SEGMENTS_MIN: usize = 64;

/// The search for expired and flushed segments: one pass over `own` a second.
#[derive(Debug, Default)]
pub(crate) struct Hunt {
    pub(crate) at: usize,
    /// The second whose pass is over.
    done: Option<u32>,
}

/// Strips that freed nothing, one after the other, in one second. After as many as there are
/// segments, and as many again for those that are open, there are no more before the next second,
/// before much is let go or a large value is stored, for each costs a look at every item.
#[derive(Debug, Default)]
pub(crate) struct Strips {
    second: u32,
    /// The most that was pinned meanwhile.
    pinned_bytes: u64,
    pub(crate) in_vain: usize,
}

/// The search for this shard's blocks in segments that have many free ones.
#[derive(Debug, Default)]
pub(crate) struct Gathering {
    /// Segments that the next one passes over.
    from: usize,
    /// The call by another shard that was heard last.
    heard: u32,
    /// Whether blocks were moved since it began anew: then it is worth another round.
    moved: bool,
    /// A round that moved nothing.
    vain: Option<InVain>,
}

/// When a round of gathering moved nothing, and how many blocks were free then.
#[derive(Clone, Copy, Debug)]
struct InVain {
    second: u32,
    free_blocks: usize,
}

impl Hunt {
    pub(crate) fn restart(&mut self) {
        *self = Self::default();
    }
}

/// What came of looking for something to reclaim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Job,
    Freed,
    Nothing,
}

impl Segments {
    /// Begins what is due without anyone waiting for room; whether there was anything.
    pub(crate) fn find_due(&mut self, now: u32) -> bool {
        if self.pool.budget.overdrawn_bytes() > 0 && !self.pool.is_kept() {
            return self.find_victim(now) != Found::Nothing;
        }
        if self.hunt_down(now) {
            return true;
        }
        if self.is_to_give() {
            return self.find_victim(now) != Found::Nothing;
        }
        let is_short = self.spare.len() < self.spare_target() && !self.own.is_empty();
        if !is_short || self.may_take() || !self.options.evict && !self.is_much_dead() {
            return false;
        }
        let found = if self.are_blocks_plenty() {
            // No value is dropped for a segment ahead of need while others may gather theirs.
            self.find_lossless(now)
        } else {
            self.find_victim(now)
        };
        found != Found::Nothing
    }

    /// Whether another shard asked for a segment, this one has more than its share, and none is
    /// free.
    pub(crate) fn is_to_give(&self) -> bool {
        let share_bytes = self.pool.fair_share() * self.pool.segment_bytes();
        self.pool.is_asked() && self.total_bytes() > share_bytes && !self.pool.may_take()
    }

    /// Whether whole segments of blocks lie free, so that gathering them may bring one.
    pub(crate) fn are_blocks_plenty(&self) -> bool {
        self.pool.free_blocks() >= PLENTY_SEGMENTS * self.pool.blocks_per_segment()
    }

    /// Whether a look for blocks to gather may bring a segment. After a round in vain a segment's
    /// worth of blocks must have been taken or freed, or the next second have begun: else pinned
    /// values with room between them would be looked at for every few items evicted. (When they
    /// are let go, or an upload between them is stored, no block is freed by that.)
    fn may_gather(&self, now: u32) -> bool {
        let is_other = |vain: InVain| {
            vain.second != now
                || self.pool.free_blocks().abs_diff(vain.free_blocks)
                    >= self.pool.blocks_per_segment()
        };
        self.are_blocks_plenty() && self.gathering.vain.is_none_or(is_other)
    }

    /// Whether a round of gathering has begun and may go on.
    pub(crate) fn is_gathering(&self, now: u32) -> bool {
        self.gathering.from > 0 && self.may_gather(now)
    }

    /// One step of gathering; whether a segment came free.
    fn gather_step(&mut self, now: u32) -> bool {
        let round = &mut self.gathering;
        let gathered = self.pool.gather_blocks(self.options.shard, &mut round.from);
        round.moved |= gathered.moved;
        round.vain = None;
        if !gathered.freed && round.from == 0 {
            let in_vain = !std::mem::take(&mut round.moved);
            let free_blocks = self.pool.free_blocks();
            round.vain = in_vain.then_some(InVain { second: now, free_blocks });
        }
        gathered.freed
    }

    /// Gathers blocks where many lie free; whether a segment came free. It is the spare one if
    /// there is none. If none came, the other shards are called to gather theirs, once a round.
    pub(crate) fn gather(&mut self, now: u32) -> bool {
        if !self.may_gather(now) {
            return false;
        }
        let is_first = self.gathering.from == 0;
        if !self.gather_step(now) {
            if is_first {
                self.gathering.heard = self.pool.call_to_gather();
            }
            return false;
        }
        if self.spare.is_empty() {
            self.spare.extend(self.pool.take(0));
        }
        true
    }

    /// One step of gathering what is this shard's, when another one called; whether there was one.
    /// Without a look at the shares: what is moved is not lost.
    pub(crate) fn gather_when_called(&mut self, now: u32) -> bool {
        let calls = self.pool.gather_calls();
        if self.gathering.heard == calls {
            return false;
        }
        if !self.may_gather(now) {
            // All that may be looked at was: until the next call.
            self.gathering.heard = calls;
            return false;
        }
        self.gather_step(now);
        true
    }

    /// While the budget is overdrawn, what is given back is lost at once: an append lives on a
    /// spare.
    pub(crate) fn spare_target(&self) -> usize {
        let is_lost = self.pool.budget.overdrawn_bytes() > 0;
        let is_ahead = self.is_large() && self.options.evict;
        self.reserve + usize::from(is_lost || is_ahead)
    }

    pub(crate) fn is_large(&self) -> bool {
        self.pool.fair_share() >= AHEAD_SEGMENTS_MIN
    }

    pub(crate) fn is_compaction_due(&self) -> bool {
        let own_bytes = self.own.len() * self.pool.segment_bytes();
        self.dead_bytes * 100 > own_bytes * DEAD_PERCENT
    }

    pub(crate) fn find_victim(&mut self, now: u32) -> Found {
        let found = self.find_lossless(now);
        if found != Found::Nothing || !self.options.evict {
            return found;
        }
        if self.is_below_share() {
            self.pool.ask();
        }
        let is_main_due = self.turned < TURNED_MAX
            && self.is_probation_large()
            && self.weights.is_main_due(self.pool.segment_bytes());
        let Some(victim) = self.oldest(is_main_due, now).or_else(|| self.deadest()) else {
            return Found::Nothing;
        };
        let found = self.begin_job(victim, true);
        if let Some(job) = &mut self.job
            && is_main_due
            && !job.strip
        {
            job.kept_bytes_max = self.pool.segment_bytes();
            self.turned += 1;
        }
        found
    }

    /// What gives room and drops nothing that may still be served.
    fn find_lossless(&mut self, now: u32) -> Found {
        if self.spare.is_empty() {
            // A victim that was pinned meanwhile gave no segment back for the one that was taken.
            self.spare.extend(self.pool.take(0));
        }
        if self.hunt_down(now) {
            return if self.job.is_some() { Found::Job } else { Found::Freed };
        }
        if self.gather(now) {
            return Found::Freed;
        }
        let victim = match self.options.evict {
            true if !self.is_compaction_due() => None,
            true => self.deadest().filter(|&victim| self.can_empty(victim)),
            false => self.victim_in_store(),
        };
        if let Some(victim) = victim {
            return self.begin_job(victim, false);
        }
        Found::Nothing
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
    pub(crate) fn can_empty(&self, victim: u32) -> bool {
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

    /// The unpinned sealed segment with the most dead space, if that is a sixteenth or more, in a
    /// store a 128th.
    pub(crate) fn deadest(&self) -> Option<u32> {
        self.bins[1..].iter().rev().find_map(|bin| {
            std::iter::successors(bin.head(), |&segment| bin.next(&self.pool.metas, segment))
                .take(PINNED_MAX)
                .find(|&segment| !self.pool.metas.is_pinned(segment))
        })
    }

    /// The segment that a store compacts next: the deadest, or an open one that is nearly full and
    /// has more dead, because it stays open while there is none to follow it.
    pub(crate) fn victim_in_store(&self) -> Option<u32> {
        let metas = &self.pool.metas;
        let dead = |segment: &u32| metas.get(*segment, DEAD) as usize;
        let is_ripe = |segment: &u32| {
            metas.get(*segment, USED) as usize >= self.pool.segment_bytes() / 4 * 3
                && self.bin_of(dead(segment)) > 0
                && !metas.is_pinned(*segment)
        };
        let open = self.open_segments().filter(is_ripe);
        let victim = open.chain(self.deadest()).max_by_key(dead)?;
        self.can_empty(victim).then_some(victim)
    }

    /// Whether a store has a segment so dead that upkeep compacts it to fill the reserve. What is
    /// less dead waits until a request wants room, because more of it may die until then.
    fn is_much_dead(&self) -> bool {
        self.spare.is_empty() || self.bins[FINE_BINS..].iter().any(|bin| bin.head().is_some())
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
}

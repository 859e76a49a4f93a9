//! Chooses the segment that is reclaimed next.
//!
//! Upstream:   the reclaimer's loops, with no job under way.
//! Downstream: `job`, which begins; `queues` for the order of segments; `pool` for the requests of
//!             other shards.
//!
//! The choices, in this order: a segment whose items expired or were flushed; in upkeep, a segment
//! that is older than the flush of a prefix; gathering the blocks
//! of large values, if whole segments of blocks are free; the segment with the most dead space, if
//! a tenth of memory is dead or nothing may be evicted; the oldest segment of probation, while
//! probation holds more than a tenth of memory, and between these the oldest segment of main, as
//! often as `worth` says; otherwise the oldest segment of main.
//!
//! Invariants:
//! - C1  A victim that is not empty is chosen for compaction only while there is a segment for its
//!   living items.
//! - C2  A pinned segment is chosen for eviction only while strips may still drop something.

use std::sync::Arc;

use super::gather::are_blocks_plenty;
use super::job::{EXAMINED_ITEM_BYTES, Kind};
use super::{Found, Reclaimer};
use crate::layout::SEGMENT_HEAD_BYTES;
use crate::segments::log::Log;
use crate::segments::log::queues::{PINNED_MAX, Queue};

/// The most segments that one call examines for expiry.
pub(super) const EXPIRY_LOOKS_MAX: usize = 4096;

/// The most pinned segments that a request skips if it may strip no more.
const PASSED_MAX: usize = 4096;

/// Unpinned memory is much from this part of the limit on; as a divisor.
const UNPINNED_PART: u64 = 128;

/// At most this many segments of main are turned in one request or step of upkeep. Such a segment
/// may be kept whole, so each may cost the copy of a segment and free nothing. One victim of
/// probation with the heads of large values can make a sixteenth of main due. The next calls turn
/// the rest.
const TURNED_MAX: usize = 4;

/// Counts the strips in a row that freed nothing, within one second. After as many as the shard has
/// segments, it strips no sealed segment; after as many again, no open one. The count begins anew
/// in the next second, after much was unpinned, and when a large value is stored. The bound exists
/// because each strip examines every item of a segment.
#[derive(Debug, Default)]
pub(super) struct Strips {
    second: u32,
    /// The most bytes that were pinned during this count.
    pinned_bytes: u64,
    pub(super) fruitless: usize,
    /// Where the search of an open segment goes on, if a step of upkeep ended within it.
    looked: Option<Looked>,
    /// Whether the current step of upkeep ended within it. `looked` may outlive its reason: once
    /// memory is not short any more, no step goes on with the search.
    is_cut: bool,
}

/// A place in an open segment, before which there is nothing that a strip would drop.
#[derive(Clone, Copy, Debug)]
struct Looked {
    segment: u32,
    /// The segment's use, because it may be another one by the next step.
    generation: u64,
    offset: usize,
}

impl Strips {
    /// Begins a new count in a new second, and when much was unpinned since the most was pinned.
    fn renew(&mut self, now: u32, pinned_bytes: u64, limit_bytes: u64) {
        let was_much_unpinned = pinned_bytes + limit_bytes / UNPINNED_PART <= self.pinned_bytes;
        if self.second != now || was_much_unpinned {
            *self = Self { second: now, pinned_bytes, fruitless: 0, ..*self };
        }
        self.pinned_bytes = self.pinned_bytes.max(pinned_bytes);
        debug_assert!(self.second == now, "C2: strips are counted by the second");
    }

    /// A step of upkeep begins.
    pub(super) const fn begin_step(&mut self) {
        self.is_cut = false;
    }

    /// Whether this step ended within the search of an open segment, so that the next goes on.
    pub(super) const fn is_cut(&self) -> bool {
        self.is_cut
    }
}

impl Reclaimer {
    /// Begins work that is due although no request waits for room. Returns whether there was any.
    pub(super) fn find_due(&mut self, log: &mut Log, now: u32) -> bool {
        assert!(self.job.is_none(), "V1");
        if self.allowance.is_worked_out(log.work_bytes()) {
            return true; // The next step finds it.
        }
        let overdrawn_bytes = log.pool().budget.overdrawn_bytes();
        if overdrawn_bytes > 0 && !log.pool().keeps_pages() {
            let retired = u64::from(log.pool().retired_segments());
            if retired * log.pool().charge_bytes() >= overdrawn_bytes {
                return false; // Enough is on its way.
            }
            return self.find_victim(log, now) != Found::Nothing;
        }
        if self.find_expired(log, now) != Found::Nothing
            || self.allowance.is_worked_out(log.work_bytes())
            || self.find_stale(log) != Found::Nothing
        {
            return true;
        }
        if log.is_to_give() {
            return self.find_victim(log, now) != Found::Nothing;
        }
        let is_short = log.spare_segments() < log.spare_target() && log.segments() > 0;
        if !is_short
            || log.segments_on_the_way() > 0
            || log.may_take()
            || !self.evict && !is_much_dead(log)
        {
            return false;
        }
        let found = if are_blocks_plenty(log.pool()) {
            // The segment is not needed yet, so no value is dropped for it while other shards may
            // gather their blocks.
            self.find_lossless(log, now)
        } else {
            self.find_victim(log, now)
        };
        found != Found::Nothing
    }

    /// Begins the job that frees memory soonest at the least loss.
    pub(super) fn find_victim(&mut self, log: &mut Log, now: u32) -> Found {
        let found = self.find_lossless(log, now);
        if found != Found::Nothing || !self.evict {
            return found;
        }
        if log.is_below_share() {
            log.pool().ask();
        }
        let segment_bytes = log.pool().segment_bytes();
        let is_main_due = self.turned < TURNED_MAX
            && log.queues().is_probation_large()
            && self.weights.is_main_due(segment_bytes);
        let oldest = self.oldest(log, is_main_due, now);
        let Some(victim) = oldest.or_else(|| log.queues().deadest(&log.pool().metas)) else {
            return Found::Nothing;
        };
        let found = self.begin_job(log, victim, Kind::Evict);
        if is_main_due && self.keep_whole(segment_bytes) {
            self.turned += 1;
            debug_assert!(self.turned <= TURNED_MAX);
        }
        found
    }

    /// Begins work that frees memory and drops no item that may still be served.
    fn find_lossless(&mut self, log: &mut Log, now: u32) -> Found {
        // A victim that was pinned meanwhile was not given back for the spare segment of its job.
        log.refill_spare();
        // A step of upkeep has searched before, and one search is all that it has time for.
        let is_worked_out = self.allowance.is_worked_out(log.work_bytes());
        let found = if is_worked_out { Found::Nothing } else { self.find_expired(log, now) };
        if found != Found::Nothing {
            return found;
        }
        if self.gather(log, now) {
            return Found::Freed;
        }
        let victim = match self.evict {
            true if !log.is_compaction_due() => None,
            true => log.queues().deadest(&log.pool().metas).filter(|&at| log.can_empty(at)),
            false => log.most_dead_of_store(),
        };
        let Some(victim) = victim else {
            // A cache evicts: what was flushed is dropped with its victims.
            return if self.evict { Found::Nothing } else { self.find_stale(log) };
        };
        debug_assert!(log.can_empty(victim), "C1");
        self.begin_job(log, victim, Kind::Compact)
    }

    /// Makes the next segment whose items expired or were flushed the victim.
    fn find_expired(&mut self, log: &mut Log, now: u32) -> Found {
        let before = log.work_bytes();
        let segment = log.next_expired(now, EXPIRY_LOOKS_MAX);
        self.work_bytes += log.work_bytes() - before;
        let Some(segment) = segment else { return Found::Nothing };
        debug_assert!(!log.pool().metas.is_pinned(segment), "V3");
        self.begin_job(log, segment, Kind::Compact)
    }

    /// Makes the next segment that is older than the flush of a prefix the victim.
    fn find_stale(&mut self, log: &mut Log) -> Found {
        let before = log.work_bytes();
        let segment = log.next_stale(EXPIRY_LOOKS_MAX);
        self.work_bytes += log.work_bytes() - before;
        let Some(segment) = segment else { return Found::Nothing };
        self.begin_job(log, segment, Kind::Sweep)
    }

    /// The segment to evict: the oldest of probation while probation is large and main is not due,
    /// otherwise the oldest of main. If the segment is pinned, its job strips it.
    fn oldest(&mut self, log: &mut Log, is_main_due: bool, now: u32) -> Option<u32> {
        let pool = Arc::clone(log.pool());
        self.strips.renew(now, pool.pinned_bytes(), pool.budget.limit_bytes());
        let fruitless = self.strips.fruitless;
        let is_allowed = self.allowance.may_strip();
        let [may_strip, may_strip_open] =
            [1, 2].map(|looks| is_allowed && fruitless < looks * log.segments());
        // A request that may strip no more looks further for a segment that is not pinned.
        let looks_max = if is_allowed { PINNED_MAX } else { PASSED_MAX };
        let queues = if log.queues().is_probation_large() && !is_main_due {
            [Queue::Probation, Queue::Main]
        } else {
            [Queue::Main, Queue::Probation]
        };
        for queue in queues {
            let is_pinned = |segment| pool.metas.is_pinned(segment);
            let oldest = log
                .queues()
                .by_age(&pool.metas, queue)
                .take(looks_max)
                .find(|&segment| may_strip || !is_pinned(segment));
            if oldest.is_some() {
                return oldest;
            }
            let Some(open) = log.any_open(queue) else { continue };
            if !is_pinned(open) {
                return Some(open);
            }
            if !may_strip_open || !self.allowance.take_strip() {
                continue;
            }
            match self.has_droppable(log, open) {
                Some(true) if self.allowance.may_strip() => return Some(open),
                // It stays open: small items may still find room in it.
                Some(_) => self.strips.fruitless += 1,
                None => {}
            }
        }
        None
    }

    /// Whether a strip would drop anything. `None` if a step of upkeep ends before that is known;
    /// the next one goes on. Cost: examines each item of the segment.
    fn has_droppable(&mut self, log: &mut Log, segment: u32) -> Option<bool> {
        let generation = log.pool().generation(segment);
        let is_same = |at: &Looked| at.segment == segment && at.generation == generation;
        let looked = self.strips.looked.take().filter(is_same);
        let mut offset = looked.map_or(SEGMENT_HEAD_BYTES, |looked| looked.offset);
        let (before, mut items) = (log.work_bytes(), 0);
        let has_droppable = loop {
            if self.allowance.is_worked_out(before + (items * EXAMINED_ITEM_BYTES) as u64) {
                self.strips.looked = Some(Looked { segment, generation, offset });
                self.strips.is_cut = true;
                break None;
            }
            let Some((item, next)) = log.pool().item_in(segment, offset) else {
                break Some(false);
            };
            debug_assert!(next > offset, "J1");
            items += 1;
            if self.may_drop(&item) {
                break Some(true);
            }
            offset = next;
        };
        self.allowance.note_items(items, log.pool().segment_bytes());
        self.note_work(log, items * EXAMINED_ITEM_BYTES);
        has_droppable
    }
}

/// Whether upkeep of a store compacts a segment to fill the reserve: if there is no spare segment,
/// or if a segment has much dead space. Other segments wait until a request needs room, because
/// more of their items may die until then.
fn is_much_dead(log: &Log) -> bool {
    !log.has_spare() || log.queues().has_much_dead()
}

//! A job: empties one victim, item by item.
//!
//! Upstream:   the reclaimer's loops, a number of items at a time.
//! Downstream: `log` copies and kills items, `worth` decides which items eviction keeps, `ghost`
//!             remembers the others. The job reports each moved or dropped item to the index.
//!
//! A job walks its victim's items. It skips dead items, and drops flushed and expired ones. Of the
//! others, compaction copies all. Eviction copies those to which `worth` grants a turn to the main
//! queue, and drops the rest. When the job ends, nothing in the victim lives, and the victim is
//! given back.
//!
//! A job that evicts ends early if there is enough room now and a spare segment, if many blocks for
//! large values are free, or if there is no segment for the copy of the protected item. The victim
//! then keeps its remaining items. In the last case, it goes behind all others of its queue.
//!
//! A segment that is pinned when its turn to be evicted comes cannot be freed. A job *strips* it:
//! it drops the large values that are not being sent to any client, which frees their blocks, and
//! leaves the rest for another turn. Otherwise one reader could keep all values whose heads share a
//! segment.
//!
//! A flush of a prefix kills few items of a segment. A job *sweeps* each segment that is older than
//! the flush: it drops the items that were flushed, and leaves the others.
//!
//! Invariants:
//! - J1  A job examines each item of its victim once, in order.
//! - J2  Eviction keeps no more than `kept_bytes_max` of a victim.

use std::sync::Arc;

use super::worth::{Examined, VictimSeen};
use super::{Found, Reclaimer, STRIDE_ITEMS};
use crate::item::Item;
use crate::layout::{Access, ItemAt, SEGMENT_HEAD_BYTES};
use crate::meta::{ITEMS, Phase, USED};
use crate::pool::CACHE_LINE_BYTES;
use crate::segments::context::{Context, Index};
use crate::segments::log::Log;
use crate::segments::log::open::{Need, Purpose, Stream};
use crate::segments::log::queues::Queue;
use crate::segments::log::ttl::ttl_bucket;

/// Eviction keeps at most this many quarters of a victim, so that each victim frees something. Only
/// the segments of main that are turned early may be kept whole.
const KEPT_QUARTERS_MAX: usize = 3;

/// The most bytes of a victim of this length that eviction keeps.
pub const fn kept_bytes_max(segment_bytes: usize) -> usize {
    segment_bytes / 4 * KEPT_QUARTERS_MAX
}

/// Items of a victim whose slots are prefetched together.
const AHEAD_ITEMS: usize = 16;

/// Slots of the index that a job lets shrink for each item that it examines. An index is at least
/// 60 % full, so it loses fewer than two slots with an item.
///
/// Upkeep shrinks the index, too, but a shard that has clients all the time has little time for
/// upkeep. Small items that were evicted for large ones would leave up to 8 % of memory in an index
/// for which there are no items.
const SHRUNK_SLOTS_PER_ITEM: usize = 2;

/// An item that is examined counts as this many bytes of work: its header and slot of the index,
/// and what is counted.
pub(super) const EXAMINED_ITEM_BYTES: usize = 4 * CACHE_LINE_BYTES;

/// A job prefetches memory this many bytes ahead. Measured where compaction copies one item per
/// set: 1.25 times as many sets per second as with the processor's own prefetching.
const AHEAD_BYTES: usize = 1024;

/// What a job does with living items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It copies them all.
    Compact,
    /// It copies all except the protected one, whose replacement takes its place in the copy.
    Rewrite,
    /// It copies those that `worth` keeps to the main queue, and drops the others.
    Evict,
    /// It drops large values only, because the victim is pinned.
    Strip,
    /// It drops flushed and expired ones only.
    Sweep,
}

/// A victim under way.
#[derive(Debug)]
pub(super) struct Job {
    kind: Kind,
    segment: u32,
    /// Where its next item begins.
    offset: usize,
    /// Items dropped.
    dropped: usize,
    kept_bytes: usize,
    kept_bytes_max: usize,
    seen: VictimSeen,
}

impl Job {
    /// Whether the job may drop items that could still be served.
    pub(super) fn drops(&self) -> bool {
        matches!(self.kind, Kind::Evict | Kind::Strip)
    }

    /// Whether the victim of the job is pinned.
    pub(super) fn is_strip(&self) -> bool {
        self.kind == Kind::Strip
    }

    /// Whether the job has examined all items.
    fn is_at_end(&self, log: &Log) -> bool {
        let used = log.pool().metas.get(self.segment, USED) as usize;
        debug_assert!(self.offset <= used, "J1");
        self.offset == used
    }
}

/// Whether an item was flushed or has expired.
fn is_gone(log: &Log, item: &Item<'_>, now: u32) -> bool {
    item.header().is_expired(now) || log.is_item_flushed(item.at())
}

impl Reclaimer {
    /// Begins a job over `segment`, which may be open; an empty one comes free at once.
    pub(super) fn begin_job(&mut self, log: &mut Log, segment: u32, kind: Kind) -> Found {
        assert!(self.job.is_none(), "V1");
        if log.pool().metas.phase(segment) == Phase::Open {
            log.close(segment);
            if log.pool().metas.phase(segment) != Phase::Sealed {
                return Found::Freed;
            }
        }
        let is_pinned = log.pool().metas.is_pinned(segment);
        let kind = if is_pinned && kind == Kind::Evict { Kind::Strip } else { kind };
        assert!(matches!(kind, Kind::Strip | Kind::Sweep) || !is_pinned, "V3");
        log.begin_victim(segment);
        if kind == Kind::Strip {
            let is_allowed = self.allowance.take_strip();
            assert!(is_allowed, "V5, C2: a pinned segment is chosen only while it may be stripped");
            log.put_last(segment);
        }
        self.job = Some(Job {
            kind,
            segment,
            offset: SEGMENT_HEAD_BYTES,
            dropped: 0,
            kept_bytes: 0,
            kept_bytes_max: kept_bytes_max(log.pool().segment_bytes()),
            seen: VictimSeen::default(),
        });
        Found::Job
    }

    /// Lets the job keep its whole victim, if the job evicts. Returns whether it does.
    pub(super) fn keep_whole(&mut self, segment_bytes: usize) -> bool {
        let Some(job) = self.job.as_mut().filter(|job| job.kind == Kind::Evict) else {
            return false;
        };
        debug_assert!(job.kept_bytes == 0, "J2: the bound is set before the first item");
        job.kept_bytes_max = segment_bytes;
        true
    }

    /// Handles up to `items_max` items of the victim, fewer if a segment's worth of blocks became
    /// free, or if a step of upkeep must end. Returns how many it handled. Ends the job at the
    /// victim's end.
    pub(super) fn run_job(
        &mut self,
        log: &mut Log,
        context: &mut Context<'_, impl Index>,
        items_max: usize,
    ) -> usize {
        let before = log.work_bytes();
        let items = self.walk_victim(log, context, items_max);
        debug_assert!(items <= items_max, "J1");
        log.note_work(items * EXAMINED_ITEM_BYTES);
        self.work_bytes += log.work_bytes() - before;
        self.allowance.note_items(items, log.pool().segment_bytes());
        if items > 0 {
            let pool = Arc::clone(log.pool());
            context.index.shrink(SHRUNK_SLOTS_PER_ITEM * items, |at| {
                let item = Item::load(&pool, at);
                debug_assert!(!item.header().is_dead(), "the index names no dead item");
                item.key()
            });
        }
        items
    }

    fn walk_victim(
        &mut self,
        log: &mut Log,
        context: &mut Context<'_, impl Index>,
        items_max: usize,
    ) -> usize {
        let pool = Arc::clone(log.pool());
        let blocks_wanted = log.blocks().saturating_sub(pool.blocks_per_segment());
        for items in 0..items_max {
            let work_bytes = log.work_bytes() + (items * EXAMINED_ITEM_BYTES) as u64;
            if self.allowance.is_worked_out(work_bytes) {
                return items; // B2 of `allowance`
            }
            if items % AHEAD_ITEMS == 0 {
                self.look_ahead(log, context.index);
            }
            let Some(job) = &mut self.job else { return items };
            let Some((item, next)) = pool.item_in(job.segment, job.offset) else {
                self.end_at_end(log);
                return items;
            };
            debug_assert!(next > job.offset, "J1");
            job.offset = next;
            let stays = match job.kind {
                Kind::Rewrite => self.protected == Some(item.at()),
                Kind::Strip => !self.may_drop(&item),
                Kind::Sweep => {
                    self.protected == Some(item.at()) || !is_gone(log, &item, context.now)
                }
                Kind::Compact | Kind::Evict => false,
            };
            if stays {
                continue;
            }
            if !item.header().is_dead() && !self.settle(log, context, &item) {
                // There is no segment for the copy. Compaction always has one (V2). The next victim
                // holds no item that must stay, so its job gives a segment back.
                if let Some(job) = &self.job {
                    log.put_last(job.segment);
                }
                self.leave_job(log);
                return items;
            }
            if log.blocks() < blocks_wanted {
                return items + 1;
            }
        }
        items_max
    }

    /// Ends the job, which has examined all items, unless it is a rewrite whose replaced item still
    /// lives.
    fn end_at_end(&mut self, log: &mut Log) {
        let Some(job) = &self.job else { unreachable!("V1: a job is under way") };
        debug_assert!(job.is_at_end(log), "J1");
        let lives = log.pool().metas.get(job.segment, ITEMS) > 0;
        match job.kind {
            Kind::Rewrite if lives => return,
            Kind::Strip => self.strips.fruitless += usize::from(job.dropped == 0),
            Kind::Sweep => log.end_stale(job.segment),
            Kind::Rewrite | Kind::Compact | Kind::Evict => {
                assert!(!lives, "a job leaves nothing alive in its victim");
            }
        }
        self.leave_job(log);
    }

    /// Begins a rewrite of the protected item's segment. [`Self::run_rewrite`] then copies all
    /// living items except the protected one, whose replacement the caller puts into the copy. The
    /// job ends when the protected item is dead.
    pub(crate) fn begin_rewrite(&mut self, log: &mut Log, segment: u32) {
        let found = self.begin_job(log, segment, Kind::Rewrite);
        assert!(found == Found::Job, "a segment with an item to be replaced is not empty");
    }

    /// Walks the victim of the rewrite that was just begun.
    pub(crate) fn run_rewrite(&mut self, log: &mut Log, context: &mut Context<'_, impl Index>) {
        assert!(
            self.protected.is_some(),
            "only a segment with an item to be replaced is rewritten"
        );
        while self.job.as_ref().is_some_and(|job| !job.is_at_end(log)) {
            self.run_job(log, context, STRIDE_ITEMS);
        }
        assert!(self.awaits_kill(log), "V4: the item that is replaced still lives");
    }

    /// Whether a rewritten segment still holds the item that the caller must kill.
    pub(crate) fn awaits_kill(&self, log: &Log) -> bool {
        self.job.as_ref().is_some_and(|job| {
            job.kind == Kind::Rewrite
                && job.is_at_end(log)
                && log.pool().metas.get(job.segment, ITEMS) > 0
        })
    }

    /// Ends the job. The victim keeps the items that it still has. Notes what an eviction saw.
    pub(super) fn leave_job(&mut self, log: &mut Log) {
        let Some(job) = self.job.take() else { return };
        let Job { segment, kind, seen, .. } = job;
        if kind == Kind::Evict {
            let segment_bytes = log.pool().segment_bytes();
            let examined = Examined { seen, is_whole: job.is_at_end(log) };
            let queue = log.queue_of(segment);
            self.weights.note(queue, examined, log.queues().bytes(), segment_bytes);
        }
        log.end_victim(segment);
        debug_assert!(self.job.is_none(), "V1");
    }

    /// Whether a strip drops this item.
    pub(super) fn may_drop(&self, item: &Item<'_>) -> bool {
        self.protected != Some(item.at()) && item.frees_blocks()
    }

    /// Prefetches the next living items of the victim, and their slots.
    fn look_ahead(&self, log: &Log, index: &impl Index) {
        let Some(job) = &self.job else { return };
        let pool = log.pool();
        let start = pool.segment_start(job.segment);
        let mut offset = job.offset;
        for _ in 0..AHEAD_ITEMS {
            let Some((item, next)) = pool.item_in(job.segment, offset) else { return };
            debug_assert!(next > offset, "J1");
            pool.arena.prefetch(start + offset + AHEAD_BYTES);
            offset = next;
            if !item.header().is_dead() && job.kind != Kind::Sweep {
                index.prefetch(item.key());
            }
        }
    }

    /// Copies or drops one living item of the victim. Returns `false` if the item must be kept and
    /// cannot be copied.
    fn settle(
        &mut self,
        log: &mut Log,
        context: &mut Context<'_, impl Index>,
        item: &Item<'_>,
    ) -> bool {
        let at = item.at();
        let segment = log.pool().segment_of(at);
        let Some(job) = &self.job else { unreachable!("V1: items are settled in a job") };
        let drops = job.drops();
        if self.protected != Some(at) && is_gone(log, item, context.now) {
            self.note_reclaimed(log, item);
            self.discard(log, context.index, item);
            return true;
        }
        if !drops {
            self.counts.compacted += 1;
            let stream = Stream::copy(log.queue_of(segment));
            let copied = self.copy(log, context, item, stream, |access| access);
            debug_assert!(copied, "V2");
            return copied;
        }
        context.index.note_reads(item);
        let turns = self.grant(log, item);
        if turns.is_some() || self.protected == Some(at) {
            let kept = |access: Access| access.kept(turns.unwrap_or(0));
            if self.copy(log, context, item, Stream::fresh(Queue::Main), kept) {
                return true;
            }
            if self.protected == Some(at) {
                return false;
            }
        }
        if log.queue_of(segment) == Queue::Probation {
            self.ghosts.add(context.index.hash(item.key()));
        }
        self.note_evicted(item, context.now);
        self.discard(log, context.index, item);
        true
    }

    /// The turns that an item still has after this one; `None` if the item is dropped.
    fn grant(&mut self, log: &Log, item: &Item<'_>) -> Option<u32> {
        let queue = log.queue_of(log.pool().segment_of(item.at()));
        let turns = self.weights.turns(queue, item.access(), item.memory_bytes());
        let Some(job) = &mut self.job else { unreachable!("V1: items are settled in a job") };
        job.seen.add(item.access(), item.memory_bytes());
        let kept_bytes = job.kept_bytes + item.header().item_bytes();
        if turns == 0 || job.kind == Kind::Strip || kept_bytes > job.kept_bytes_max {
            return None;
        }
        job.kept_bytes = kept_bytes;
        debug_assert!(job.kept_bytes <= job.kept_bytes_max, "J2");
        Some(turns - 1)
    }

    /// Drops an item of the victim.
    fn discard(&mut self, log: &mut Log, index: &mut impl Index, item: &Item<'_>) {
        assert!(self.protected != Some(item.at()), "V4");
        index.remove(item.key(), item.at());
        log.kill(item.at());
        if let Some(job) = &mut self.job {
            job.dropped += 1;
            if job.kind == Kind::Strip {
                // Reset here and not at the end of the job, because the job may end early.
                self.strips.fruitless = 0;
            }
        }
    }

    /// Copies a living item out of the victim, with its access word as `changed`, and updates the
    /// index. Returns `false` if there is no segment for the copy.
    fn copy(
        &mut self,
        log: &mut Log,
        context: &mut Context<'_, impl Index>,
        item: &Item<'_>,
        stream: Stream,
        changed: impl FnOnce(Access) -> Access,
    ) -> bool {
        let Some(&Job { segment: victim, .. }) = self.job.as_ref() else {
            unreachable!("V1: items are copied in a job")
        };
        let draft = item.draft();
        let bucket = ttl_bucket(draft.expiry(), context.now);
        let purpose = Purpose::Job { victim };
        let Some(target) = log.place(stream, bucket, Need(&draft), purpose) else {
            return false;
        };
        let to = log.put(target, &draft);
        log.pool().move_access(item.at(), to, changed);
        context.index.swing(item.key(), item.at(), to);
        self.follow(item.at(), to);
        log.bury(item.at());
        true
    }

    /// Updates the location of the protected item, if that is the item that moved (V4).
    fn follow(&mut self, from: ItemAt, to: ItemAt) {
        if self.protected == Some(from) {
            debug_assert!(from != to, "a copy lies elsewhere");
            self.protected = Some(to);
        }
    }
}

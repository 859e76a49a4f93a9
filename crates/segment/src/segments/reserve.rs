//! The reserve of a store: why replacing an item by one no larger always succeeds.
//!
//! Upstream:   `append`, for every item of a shard that does not evict.
//! Downstream: `open` for the place, `reclaim` and `victim` for compaction.
//!
//! A store that is full refuses new items. A replacement adds nothing to what lives, but the log
//! needs a place for the new item before the old one is dead. So each shard keeps some spare
//! segments, the *reserve*, back from new items:
//!
//! ```text
//! placed in                         new item               replacement no larger
//! 1 its open segment                reserve whole          always
//! 2 a new segment of the pool       reserve whole          always
//! 3 any open segment with room      reserve whole          always
//! 4 a spare segment                 those beyond reserve   all but one
//! 5 what compaction frees           up to JOBS_MAX jobs    up to JOBS_MAX jobs
//! 6 the old item's segment again    -                      always
//! ```
//!
//! In step 6 the segment of the old item is compacted into the last spare one, with the new item in
//! the old one's place. All of it fits, because it did before. The segment comes back as the spare
//! one when the caller has killed the old item.
//!
//! Step 6 alone would keep the promise, at the cost of a segment's copy a replacement. The rest of
//! the reserve makes it rare: replacements fill segments of the reserve, what they replace dies all
//! over memory, and one job then collects the dead space of the deadest segment for many of them.
//!
//! Invariants:
//! - R1  A new item, or one larger than what it replaces, is placed only while all `reserve`
//!   segments are spare.
//! - R2  A replacement no larger than the old item is refused only where a reader has pinned the
//!   segments that would come back, or where other cores may still read them. (A large value is
//!   received before it replaces anything, so its blocks are not covered.)
//! - R3  One request begins at most `JOBS_MAX` jobs; a replacement may besides end one that is
//!   under way and rewrite a segment.
//!
//! Parameters: the reserve is 1 % of a shard's segments, and one for jobs (S5). With more, each job
//! would find more dead: a replacement moves about as many items as the reserve is a part of
//! memory, 50 to 100. With less, new items would have more of memory.

use super::log::open::{For, Need, Stream};
use super::log::ttl::ttl_bucket;
use super::reclaimer::STRIDE_ITEMS;
use super::reclaimer::victim::Found;
use super::{Index, NoRoom, Queue, Segments};
use crate::item::Draft;
use crate::layout::Header;
use crate::meta::{DEAD, USED};

/// The part of a shard's segments, one in so many, that new items do not take.
const RESERVE_PART: usize = 100;

/// Segments of a shard from which on it keeps more than the one for jobs. With fewer, a second one
/// would be more than a few percent.
const RESERVE_SEGMENTS_MIN: usize = 16;

/// Jobs that one request begins in a store to make room, each over one segment. A guess: one is
/// enough for a small item where a 128th of a segment is dead, and in vain they delay others.
pub(super) const JOBS_MAX: usize = 8;

/// Spare segments that appends leave alone in a shard with `share` segments: those of the reserve,
/// and in a cache the one that is kept for jobs (S5).
pub(super) const fn reserve_of(share: usize, evict: bool) -> usize {
    if evict || share < RESERVE_SEGMENTS_MIN { 1 } else { 1 + share.div_ceil(RESERVE_PART) }
}

impl Segments {
    /// A segment with room for an item of a store; `kept` is the item that it replaces.
    ///
    /// Errors: R1 for new items and larger ones, R2 for replacements.
    pub(super) fn place_in_store(
        &mut self,
        draft: &Draft<'_>,
        now: u32,
        index: &mut impl Index,
    ) -> Result<u32, NoRoom> {
        assert!(!self.options.evict, "only a store has a reserve");
        assert!(!self.awaits_kill(), "what was replaced before is dead by now");
        let bucket = ttl_bucket(draft.expiry(), now);
        let grows = self.grows(draft);
        let purpose = if grows { For::Append } else { For::Replacement };
        loop {
            if (!grows || self.is_reserve_whole())
                && let Some(segment) = self.place_without_work(draft, bucket, purpose)
            {
                assert!(!grows || self.spare.len() >= self.reserve, "R1");
                return Ok(segment);
            }
            if !self.run_one_job(now, index) {
                break;
            }
        }
        if grows { Err(NoRoom) } else { self.rewrite(draft, bucket, now, index).ok_or(NoRoom) }
    }

    /// Step 5: ends the job under way or runs another one. `false`: nothing is worth a job, or the
    /// request has begun as many as it may (R3).
    fn run_one_job(&mut self, now: u32, index: &mut impl Index) -> bool {
        if self.job.is_none() {
            if self.jobs_left == 0 {
                return false;
            }
            self.jobs_left -= 1;
            if self.find_victim(now) == Found::Nothing && !self.is_gathering(now) {
                self.pool.ask();
                return false;
            }
        }
        self.run_whole_job(now, index);
        true
    }

    fn run_whole_job(&mut self, now: u32, index: &mut impl Index) {
        while self.job.is_some() {
            self.run_job(now, index, STRIDE_ITEMS);
        }
    }

    /// Whether the item takes more than the one that it replaces, or replaces none.
    fn grows(&self, draft: &Draft<'_>) -> bool {
        let Some(old) = self.kept else { return true };
        let old_bytes = Header::load(&self.pool.arena, old).item_bytes();
        Need(draft).bytes(Need(draft).fresh_cas_base()) > old_bytes
    }

    /// Whether all of the reserve is in hand, once what is free for all has been added to it.
    fn is_reserve_whole(&mut self) -> bool {
        while self.spare.len() < self.reserve && self.may_take() {
            let Some(segment) = self.pool.take(0) else { return false };
            self.spare.push(segment);
        }
        self.spare.len() >= self.reserve
    }

    /// Steps 1 to 4.
    fn place_without_work(&mut self, draft: &Draft<'_>, bucket: u16, purpose: For) -> Option<u32> {
        let stream = Stream::fresh(Queue::Probation);
        if let Some(segment) = self.open_exactly(stream, bucket, Need(draft)) {
            return Some(segment);
        }
        if self.may_take()
            && let Some(segment) = self.place(stream, bucket, Need(draft), purpose)
        {
            return Some(segment);
        }
        if let Some(segment) = self.open_anywhere(Need(draft)) {
            return Some(segment);
        }
        // An open segment is closed only for another one: small items may still find room in it.
        if self.spare.len() > self.left_alone_by(purpose) {
            return self.place(stream, bucket, Need(draft), purpose);
        }
        None
    }

    /// Step 6: a fresh segment for all that lives in the segment of the item which is replaced, but
    /// that item itself, and for the draft.
    fn rewrite(
        &mut self,
        draft: &Draft<'_>,
        bucket: u16,
        now: u32,
        index: &mut impl Index,
    ) -> Option<u32> {
        // It may have the last spare segment (S5), and there is one job at a time (S4).
        self.run_whole_job(now, index);
        if let Some(segment) = self.place_without_work(draft, bucket, For::Replacement) {
            return Some(segment);
        }
        let old = self.kept?;
        let victim = self.pool.segment_of(old);
        let metas = &self.pool.metas;
        let cas_base = self.pool.segment_cas_base(victim);
        let old_bytes = Header::load(&self.pool.arena, old).item_bytes();
        let others = (metas.get(victim, USED) - metas.get(victim, DEAD)) as usize - old_bytes;
        let fits = others + Need(draft).bytes(cas_base) <= self.pool.segment_bytes();
        if metas.is_pinned(victim) || !fits || !self.can_empty(victim) {
            debug_assert!(
                self.spare.is_empty() || self.pool.pinned_bytes() > 0 || !fits,
                "R2: {draft:?}"
            );
            return None;
        }
        self.begin_job(victim, false);
        let stream = Stream::copy(self.queue_of(victim));
        self.make_place(stream, bucket);
        let target = self.open_new(stream, bucket, Need(draft), For::Job { victim });
        let target = target.expect("S5: a spare segment was seen");
        self.rewrite_job(now, index);
        Some(target)
    }
}

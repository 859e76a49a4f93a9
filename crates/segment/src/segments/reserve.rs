//! The reserve of a store: why replacing an item by one no larger always succeeds.
//!
//! Upstream:   `append`, for every item of a shard that does not evict.
//! Downstream: `log` for the place, `reclaimer` for compaction.
//!
//! A store that is full refuses new items. A replacement adds no living bytes, but the log needs a
//! place for the new item before the old item is dead. So each shard has some spare segments that
//! new items do not use, the *reserve*:
//!
//! ```text
//! placed in                         new item               replacement no larger
//! 1 its open segment                reserve whole          always
//! 2 a new segment of the pool       reserve whole          always
//! 3 any open segment with room      reserve whole          always
//! 4 a spare segment                 those beyond reserve   all but one
//! 5 what compaction frees           some jobs (R3)         some jobs (R3)
//! 6 the old item's segment again    -                      always
//! ```
//!
//! In step 6 the segment of the old item is compacted into the last spare segment, with the new
//! item instead of the old one. Everything fits, because it did before. When the caller has killed
//! the old item, its segment becomes the spare one.
//!
//! Step 6 alone would be enough, but each replacement would cost the copy of a segment. The rest of
//! the reserve makes step 6 rare. Replacements fill segments of the reserve, and the replaced items
//! leave dead space in all segments. One job then frees the segment with the most dead space, which
//! is enough for many replacements.
//!
//! Invariants:
//! - R1  A new item, or one larger than what it replaces, is placed only while all `reserve`
//!   segments are spare.
//! - R2  A replacement no larger than the old item is refused only if a reader has pinned the
//!   segments that would be freed. It must wait if other cores may still read them. (A large value
//!   is received before it replaces anything, so its blocks are not covered.)
//! - R3  One request begins at most `STORE_JOBS_MAX` jobs of `allowance`. A replacement may also
//!   finish a job that is under way, and rewrite a segment.
//!
//! Parameters: the reserve is 1 % of a shard's segments, and one for jobs (L4). A replacement then
//! moves about 50 to 100 items. With a larger reserve, each job would find more dead space. With a
//! smaller one, new items would have more of memory.

use super::Segments;
use super::context::{Context, Index};
use super::log::open::{Need, Purpose, Stream};
use super::log::queues::Queue;
use super::log::ttl::ttl_bucket;
use super::new_item::NoSegment;
use crate::item::Draft;
use crate::layout::Header;
use crate::meta::{DEAD, USED};

/// The part of a shard's segments that new items do not take, as a divisor.
const RESERVE_PART: usize = 100;

/// From this number of segments on, a shard keeps more than the one spare segment for jobs. In a
/// smaller shard, a second one would be more than a few percent of memory.
const RESERVE_SEGMENTS_MIN: usize = 16;

/// The number of spare segments that appends do not use in a shard with `share` segments: those of
/// the reserve, and in a cache the one that is kept for jobs (L4).
pub(super) const fn reserve_of(share: usize, evict: bool) -> usize {
    if evict || share < RESERVE_SEGMENTS_MIN { 1 } else { 1 + share.div_ceil(RESERVE_PART) }
}

impl Segments {
    /// A segment with room for an item of a store; it replaces the protected item, if there is one.
    ///
    /// Errors: R1 for new items and larger ones, R2 for replacements.
    pub(super) fn place_in_store(
        &mut self,
        draft: &Draft<'_>,
        context: &mut Context<'_, impl Index>,
    ) -> Result<u32, NoSegment> {
        assert!(!self.options.evict, "only a store has a reserve");
        assert!(!self.reclaimer.awaits_kill(&self.log), "what was replaced before is dead by now");
        let bucket = ttl_bucket(draft.expiry(), context.now);
        let grows = self.grows(draft);
        let purpose = if grows { Purpose::Append } else { Purpose::Replacement };
        loop {
            if (!grows || self.log.fill_reserve())
                && let Some(segment) = self.place_without_work(draft, bucket, purpose)
            {
                assert!(!grows || self.log.is_reserve_whole(), "R1");
                return Ok(segment);
            }
            if self.log.segments_on_the_way() > 0 {
                return Err(NoSegment::NotYet);
            }
            if !self.reclaimer.run_one_job(&mut self.log, context) {
                break;
            }
        }
        if self.log.segments_on_the_way() > 0 {
            return Err(NoSegment::NotYet);
        }
        if grows
            && (self.reclaimer.awaits_remains(&self.log)
                || self.reclaimer.may_gather_later(&self.log, context.now))
        {
            Err(NoSegment::NotYet)
        } else if grows {
            Err(NoSegment::Refused)
        } else {
            self.rewrite(draft, bucket, context).ok_or(NoSegment::Refused)
        }
    }

    /// Whether the item takes more than the one that it replaces, or replaces none.
    fn grows(&self, draft: &Draft<'_>) -> bool {
        let Some(old) = self.reclaimer.protected() else { return true };
        debug_assert!(!self.item(old).is_dead(), "V4: the item that is replaced lives");
        let old_bytes = Header::load(&self.pool().arena, old).item_bytes();
        Need(draft).bytes(Need(draft).fresh_cas_base()) > old_bytes
    }

    /// Steps 1 to 4.
    fn place_without_work(
        &mut self,
        draft: &Draft<'_>,
        bucket: u16,
        purpose: Purpose,
    ) -> Option<u32> {
        let stream = Stream::fresh(Queue::Probation);
        if let Some(segment) = self.log.open_exactly(stream, bucket, Need(draft)) {
            return Some(segment);
        }
        if self.log.may_take()
            && let Some(segment) = self.log.place(stream, bucket, Need(draft), purpose)
        {
            return Some(segment);
        }
        if let Some(segment) = self.log.open_anywhere(Need(draft), self.reclaimer.is_busy()) {
            return Some(segment);
        }
        // An open segment is closed only for another one: small items may still find room in it.
        if self.log.may_take_spare(purpose) {
            return self.log.place(stream, bucket, Need(draft), purpose);
        }
        None
    }

    /// Step 6: copies the living items of the replaced item's segment, except the replaced item, to
    /// a new segment. Returns that segment, which has room for the draft.
    fn rewrite(
        &mut self,
        draft: &Draft<'_>,
        bucket: u16,
        context: &mut Context<'_, impl Index>,
    ) -> Option<u32> {
        // The job under way may have taken the last spare segment (L4), and there is only one job
        // at a time (V1).
        self.reclaimer.finish_job(&mut self.log, context);
        if let Some(segment) = self.place_without_work(draft, bucket, Purpose::Replacement) {
            return Some(segment);
        }
        let old = self.reclaimer.protected()?;
        let victim = self.pool().segment_of(old);
        let metas = &self.pool().metas;
        let cas_base = self.pool().segment_cas_base(victim);
        let old_bytes = Header::load(&self.pool().arena, old).item_bytes();
        let others = (metas.get(victim, USED) - metas.get(victim, DEAD)) as usize - old_bytes;
        let fits = others + Need(draft).bytes(cas_base) <= self.pool().segment_bytes();
        if metas.is_pinned(victim) || !fits || !self.log.can_empty(victim) {
            debug_assert!(
                !self.log.has_spare() || self.pool().pinned_bytes() > 0 || !fits,
                "R2: {draft:?}"
            );
            return None;
        }
        self.reclaimer.begin_rewrite(&mut self.log, victim);
        let stream = Stream::copy(self.log.queue_of(victim));
        self.log.make_place(stream, bucket);
        let target = self.log.open_new(stream, bucket, Need(draft), Purpose::Job { victim });
        let target = target.expect("V2: a spare segment was seen");
        self.reclaimer.run_rewrite(&mut self.log, context);
        Some(target)
    }
}

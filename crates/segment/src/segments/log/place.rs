//! Finding the segment that an item goes to: an open one, or a new one from the pool or the spare
//! segments.
//!
//! Upstream:   `append`, `reserve` and the reclaimer's jobs ask for a place.
//! Downstream: `open` for what is open, `pool` and the spare segments for new ones.
//!
//! A copy target takes the place in the FIFO of the victim for which it was opened, so that
//! compaction makes no item younger.
//!
//! Invariants:
//! - P1  A segment that is returned has room for the item for which it was requested.
//! - P2  A place never uses the spare segments that are kept for other purposes (L4).

use super::Log;
use super::open::{Need, Purpose, Stream};
use super::queues::Queue;
use crate::layout::{Header, ITEM_BYTES_MIN, ItemAt, SEGMENT_HEAD_BYTES};
use crate::meta::{DEAD, EPOCH, ITEMS, OWNER, Phase, USED};

impl Log {
    /// An open segment with room for the item, opened if necessary; `None` if there is no segment.
    pub(crate) fn place(
        &mut self,
        stream: Stream,
        bucket: u16,
        need: Need<'_>,
        purpose: Purpose,
    ) -> Option<u32> {
        if let Some(segment) = self.open.exact(stream, bucket) {
            if self.fits(segment, need) {
                return Some(segment);
            }
            self.close(segment);
        }
        debug_assert!(self.open.exact(stream, bucket).is_none(), "O1: it was sealed");
        let is_job = matches!(purpose, Purpose::Job { .. });
        // A job opens a segment of the right bucket only while there are plenty.
        let is_plenty =
            !is_job || self.spare.len() > self.options.reserve || self.pool.may_take(self.own());
        if self.open.may_grow(stream) {
            if is_plenty && let Some(segment) = self.open_new(stream, bucket, need, purpose) {
                return Some(segment);
            }
            if !is_job {
                return None;
            }
        }
        while let Some(segment) = self.open.nearest(stream, bucket) {
            if self.fits(segment, need) {
                return Some(segment);
            }
            self.close(segment);
            if !is_job {
                break;
            }
        }
        self.open_new(stream, bucket, need, purpose)
    }

    fn fits(&self, segment: u32, need: Need<'_>) -> bool {
        let used = self.pool.metas.get(segment, USED) as usize;
        let bytes = need.bytes(self.pool.segment_cas_base(segment));
        used + bytes <= self.pool.segment_bytes()
    }

    /// The number of spare segments that a place for this purpose must leave (P2).
    const fn left_alone_by(&self, purpose: Purpose) -> usize {
        match purpose {
            Purpose::Append => self.options.reserve,
            Purpose::Replacement => 1,
            Purpose::LastResort | Purpose::Job { .. } => 0,
        }
    }

    /// Whether a place for this purpose may take a spare segment.
    pub(crate) const fn may_take_spare(&self, purpose: Purpose) -> bool {
        self.spare.len() > self.left_alone_by(purpose)
    }

    /// The open segment of exactly this stream and bucket, if it has room for the item.
    pub(crate) fn open_exactly(&self, stream: Stream, bucket: u16, need: Need<'_>) -> Option<u32> {
        self.open.exact(stream, bucket).filter(|&segment| self.fits(segment, need))
    }

    /// Any open segment of a store with room for the item, but no copy target while a job needs its
    /// room. Cost: a check of each open segment.
    pub(crate) fn open_anywhere(&self, need: Need<'_>, is_job_under_way: bool) -> Option<u32> {
        let is_free = |segment: &u32| !is_job_under_way || !self.stream_of(*segment).is_copy();
        self.open_segments().filter(is_free).find(|&segment| self.fits(segment, need))
    }

    /// The open segments of a store, which uses one queue.
    fn open_segments(&self) -> impl Iterator<Item = u32> + '_ {
        let streams = [Stream::fresh(Queue::Probation), Stream::copy(Queue::Probation)];
        streams.into_iter().flat_map(|stream| self.open.all(stream))
    }

    /// Some open segment of the queue.
    pub(crate) fn any_open(&self, queue: Queue) -> Option<u32> {
        self.open.any(queue)
    }

    /// The segment that a store compacts next: the sealed segment with the most dead space, or a
    /// nearly full open segment with even more. Such a segment stays open as long as no other
    /// segment can follow it.
    pub(crate) fn most_dead_of_store(&self) -> Option<u32> {
        debug_assert!(!self.options.evict, "a cache compacts sealed segments only");
        let metas = &self.pool.metas;
        let dead = |segment: &u32| metas.get(*segment, DEAD) as usize;
        let is_ripe = |segment: &u32| {
            metas.get(*segment, USED) as usize >= self.pool.segment_bytes() / 4 * 3
                && self.queues.is_worth_a_job(dead(segment))
                && !metas.is_pinned(*segment)
        };
        let open = self.open_segments().filter(is_ripe);
        let victim = open.chain(self.queues.deadest(metas)).max_by_key(dead)?;
        self.can_empty(victim).then_some(victim)
    }

    /// Seals the open segments that prevent a new one of this stream and bucket (O1, O2).
    pub(crate) fn make_place(&mut self, stream: Stream, bucket: u16) {
        if let Some(segment) = self.open.exact(stream, bucket) {
            self.close(segment);
        }
        while !self.open.may_grow(stream)
            && let Some(segment) = self.open.nearest(stream, bucket)
        {
            self.close(segment);
        }
        debug_assert!(self.open.may_grow(stream), "O2: each stream may have one open segment");
    }

    /// Opens a new segment; `None` when there is none for this purpose.
    pub(crate) fn open_new(
        &mut self,
        stream: Stream,
        bucket: u16,
        need: Need<'_>,
        purpose: Purpose,
    ) -> Option<u32> {
        if self.open.exact(stream, bucket).is_some() {
            return None;
        }
        let cas_base = match purpose {
            Purpose::Append | Purpose::LastResort | Purpose::Replacement => need.fresh_cas_base(),
            // The victim's own, so that no item grows when it is copied: the living items of a
            // victim fit into one segment.
            Purpose::Job { victim } => self.pool.segment_cas_base(victim),
        };
        let common = self.may_take().then(|| self.pool.take(cas_base, self.own())).flatten();
        if common.is_none() {
            self.settle_awaited();
        }
        let segment = match common {
            Some(segment) => segment,
            None if self.may_take_spare(purpose) => {
                let segment = self.spare.pop()?;
                debug_assert!(self.spare.len() >= self.left_alone_by(purpose), "P2, L4");
                self.pool.begin(segment, cas_base);
                segment
            }
            // A job gives a segment back for the one that it takes.
            None if matches!(purpose, Purpose::Job { .. }) => {
                self.pool.take(cas_base, self.own())?
            }
            None => return None,
        };
        self.adopt(segment, stream, bucket);
        debug_assert!(self.fits(segment, need), "P1: an empty segment has room for any item");
        if let Purpose::Job { victim } = purpose
            && stream.is_copy()
        {
            self.queues.insert_before(&self.pool.metas, stream.queue(), segment, victim);
        }
        Some(segment)
    }

    /// Enters a fresh segment into the books, open.
    fn adopt(&mut self, segment: u32, stream: Stream, bucket: u16) {
        let metas = &self.pool.metas;
        metas.clear(segment);
        metas.set_phase(segment, Phase::Open);
        let owner = u32::from(self.options.shard) | stream.bits() << 16;
        metas.set(segment, OWNER, owner | u32::from(bucket) << 18);
        metas.set(segment, USED, SEGMENT_HEAD_BYTES as u32);
        metas.set(segment, EPOCH, self.flushed.epoch());
        metas.set_generation(segment, self.prefixes.newest());
        self.owned.push(metas, segment);
        self.queues.add_bytes(stream.queue(), self.pool.segment_bytes());
        self.open.insert(stream, bucket, segment);
    }

    /// Seals an open segment: into its queue's FIFO, and into its bin. An empty one goes back.
    pub(crate) fn close(&mut self, segment: u32) {
        let metas = &self.pool.metas;
        assert!(metas.phase(segment) == Phase::Open, "only an open segment is sealed");
        let stream = self.stream_of(segment);
        self.open.remove(stream, self.bucket_of(segment), segment);
        metas.set_phase(segment, Phase::Sealed);
        if !stream.is_copy() {
            self.queues.push_back(metas, stream.queue(), segment);
        }
        let dead = metas.get(segment, DEAD) as usize;
        if metas.get(segment, ITEMS) == 0 && !metas.is_pinned(segment) {
            self.retire(segment);
        } else {
            self.queues.rebin(metas, segment, 0, dead);
        }
    }

    /// Fills an open segment that is sealed before it is full with dead items, so that its room
    /// comes back as that of any dead item does. What is too short for an item is left out.
    pub(crate) fn pad(&mut self, segment: u32) {
        let metas = &self.pool.metas;
        let end = self.pool.segment_bytes();
        let mut used = metas.get(segment, USED) as usize;
        let mut dead_bytes = 0;
        while end - used >= ITEM_BYTES_MIN {
            let header = Header::of_padding(end - used);
            let at = ItemAt::from_offset(self.pool.segment_start(segment) + used);
            self.pool.arena.audit.item(at.offset(), header.item_bytes());
            self.pool.arena.audit.whole(at.offset());
            self.pool.arena.audit.dead(at.offset());
            header.store(&self.pool.arena, at);
            used += header.item_bytes();
            dead_bytes += header.item_bytes();
        }
        debug_assert!(used <= end, "an item lies in one segment");
        metas.set(segment, USED, used as u32);
        metas.add(segment, DEAD, dead_bytes as u32);
        self.dead_bytes += dead_bytes;
    }

    /// Seals all open segments, after they were padded if that is wanted ([`Self::pad`]).
    pub(crate) fn close_all(&mut self, pads: bool) {
        for queue in [Queue::Probation, Queue::Main] {
            while let Some(segment) = self.open.any(queue) {
                // A model has only the first bytes of a segment.
                if pads && !cfg!(loom) && self.pool.metas.get(segment, ITEMS) > 0 {
                    self.pad(segment);
                }
                self.close(segment);
            }
            debug_assert!(self.open.any(queue).is_none(), "O1");
        }
    }

    /// Whether there is a spare segment.
    pub(crate) const fn has_spare(&self) -> bool {
        !self.spare.is_empty()
    }

    /// How many spare segments there are.
    pub(crate) const fn spare_segments(&self) -> usize {
        self.spare.len()
    }

    /// How many spare segments there should be. While the budget is overdrawn, the pool releases a
    /// segment as soon as it is given back, so an append needs a spare one.
    pub(crate) fn spare_target(&self) -> usize {
        let is_lost = self.pool.budget.overdrawn_bytes() > 0;
        let is_ahead = self.is_large() && self.options.evict;
        self.options.reserve + usize::from(is_lost || is_ahead)
    }

    /// Takes a segment of the pool as a spare one if there is no spare.
    pub(crate) fn refill_spare(&mut self) {
        self.settle_awaited();
        if self.spare.is_empty() && self.awaited.is_empty() {
            self.spare.extend(self.pool.take(0, self.own()));
        }
    }

    /// Fills the reserve with free segments of the pool. Returns whether the reserve is complete.
    pub(crate) fn fill_reserve(&mut self) -> bool {
        self.settle_awaited();
        while self.spare.len() + self.awaited.len() < self.options.reserve && self.may_take() {
            let Some(segment) = self.pool.take(0, self.own()) else { return false };
            self.spare.push(segment);
        }
        self.is_reserve_whole()
    }

    /// Whether the reserve is complete.
    pub(crate) const fn is_reserve_whole(&self) -> bool {
        self.spare.len() >= self.options.reserve
    }

    /// Whether this shard may take a free segment of the pool. While few are free, a shard with
    /// enough dead space of its own must compact instead. Otherwise the shard that stores next
    /// would take, segment by segment, the memory that another shard frees for a long line or a
    /// reply. In the end the other shard would have no dead space left and evict, although half of
    /// all memory is dead.
    pub(crate) fn may_take(&self) -> bool {
        let has_own = || {
            self.is_large()
                && self.is_compaction_due()
                && self.queues.deadest(&self.pool.metas).is_some()
        };
        self.pool.may_take(self.own()) && !(self.pool.is_scarce() && has_own())
    }

    /// Whether another shard asked for a segment, this one has more than its share, and none is
    /// free.
    pub(crate) fn is_to_give(&self) -> bool {
        let share_bytes = self.pool.fair_share() * self.pool.segment_bytes();
        self.pool.is_asked()
            && self.queues.total_bytes() > share_bytes
            && !self.pool.may_take(self.own())
            && self.pool.retired_segments() == 0
    }
}

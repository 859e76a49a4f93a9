//! Open segments: where the next item of each queue and TTL bucket goes.
//!
//! Upstream:   `append` and `reclaim` ask for a place.
//! Downstream: `pool` and the spare segments.
//!
//! Four streams fill segments: new items on probation, items for the main queue, and for each queue
//! what compaction copies; a copy target keeps the place in the FIFO of the victim it was opened
//! for, so that compaction makes nothing younger.
//!
//! Invariants:
//! - O1  `open[stream][bucket]` names a segment exactly when its bit is set, and that one is open.
//! - O2  Open segments are at most `segments_max`, and one a stream besides; beyond that, items go
//!   to the open segment of the nearest TTL bucket.

use super::super::{Queue, Segments};
use super::ttl::{NEVER, TTL_BUCKETS};
use crate::BLOCK_BYTES;
use crate::item::Draft;
use crate::layout::Header;
use crate::layout::{ItemAt, SEGMENT_HEAD_BYTES};
use crate::meta::{DEAD, EPOCH, EXPIRY_BASE, EXPIRY_MAX, ITEMS, NONE, OWNER, Phase, SLOT, USED};

/// Share of a shard's segments that may be open, as a divisor: 5 percent.
const OPEN_DIVISOR: usize = 20;

/// Open segments of a shard, however large it is.
const OPEN_MAX: usize = 64;

const STREAMS: usize = 4;
const BITMAP_WORDS: usize = TTL_BUCKETS.div_ceil(64);

/// What fills a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stream(u8);

impl Stream {
    /// New items, promoted ones, reinserted ones: they come last in their queue.
    pub(crate) const fn fresh(queue: Queue) -> Self {
        Self(queue as u8)
    }

    /// What compaction copies within a queue.
    pub(crate) const fn copy(queue: Queue) -> Self {
        Self(queue as u8 | 2)
    }

    const fn is_copy(self) -> bool {
        self.0 & 2 != 0
    }

    const fn queue(self) -> Queue {
        if self.0 & 1 == 0 { Queue::Probation } else { Queue::Main }
    }
}

/// The open segments of one shard.
pub(crate) struct OpenSegments {
    open: Box<[[u32; TTL_BUCKETS]; STREAMS]>,
    bits: [[u64; BITMAP_WORDS]; STREAMS],
    counts: [usize; STREAMS],
    segments_max: usize,
}

impl std::fmt::Debug for OpenSegments {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("OpenSegments").field("counts", &self.counts).finish_non_exhaustive()
    }
}

impl OpenSegments {
    /// None open yet; for a shard that has `share` segments.
    pub(crate) fn new(share: usize) -> Self {
        Self {
            open: Box::new([[NONE; TTL_BUCKETS]; STREAMS]),
            bits: [[0; BITMAP_WORDS]; STREAMS],
            counts: [0; STREAMS],
            segments_max: (share / OPEN_DIVISOR).min(OPEN_MAX),
        }
    }

    fn exact(&self, stream: Stream, bucket: u16) -> Option<u32> {
        Some(self.open[stream.0 as usize][bucket as usize]).filter(|&segment| segment != NONE)
    }

    /// The open segment whose TTL bucket is nearest.
    fn nearest(&self, stream: Stream, bucket: u16) -> Option<u32> {
        let bits = &self.bits[stream.0 as usize];
        let above = bit_from(bits, bucket);
        let below = bit_up_to(bits, bucket);
        let nearest = match (below, above) {
            (Some(below), Some(above)) if bucket - below <= above - bucket => below,
            (_, Some(above)) => above,
            (below, None) => below?,
        };
        self.exact(stream, nearest)
    }

    /// Whether one more may be open in the stream (O2).
    fn may_grow(&self, stream: Stream) -> bool {
        self.counts[stream.0 as usize] == 0 || self.counts.iter().sum::<usize>() < self.segments_max
    }

    fn insert(&mut self, stream: Stream, bucket: u16, segment: u32) {
        let slot = &mut self.open[stream.0 as usize][bucket as usize];
        assert!(*slot == NONE, "O1");
        *slot = segment;
        self.bits[stream.0 as usize][bucket as usize / 64] |= 1 << (bucket % 64);
        self.counts[stream.0 as usize] += 1;
    }

    fn remove(&mut self, stream: Stream, bucket: u16, segment: u32) {
        let slot = &mut self.open[stream.0 as usize][bucket as usize];
        assert!(*slot == segment, "O1");
        *slot = NONE;
        self.bits[stream.0 as usize][bucket as usize / 64] &= !(1 << (bucket % 64));
        self.counts[stream.0 as usize] -= 1;
    }

    /// The open segments of a stream.
    fn all(&self, stream: Stream) -> impl Iterator<Item = u32> + '_ {
        let bits = &self.bits[stream.0 as usize];
        let first = bit_from(bits, 0);
        std::iter::successors(first, |&bucket| {
            (usize::from(bucket) + 1 < TTL_BUCKETS).then(|| bit_from(bits, bucket + 1)).flatten()
        })
        .filter_map(move |bucket| self.exact(stream, bucket))
    }

    /// Some open segment of the queue.
    pub(crate) fn any(&self, queue: Queue) -> Option<u32> {
        [Stream::fresh(queue), Stream::copy(queue)].into_iter().find_map(|stream| {
            let bucket = bit_from(&self.bits[stream.0 as usize], 0)?;
            self.exact(stream, bucket)
        })
    }
}

/// The lowest set bit at `from` or above.
fn bit_from(bits: &[u64; BITMAP_WORDS], from: u16) -> Option<u16> {
    let first = from as usize / 64;
    let masked = bits[first] & u64::MAX << (from % 64);
    std::iter::once(masked).chain(bits[first + 1..].iter().copied()).position(|word| word != 0).map(
        |skip| {
            let word = if skip == 0 { masked } else { bits[first + skip] };
            ((first + skip) * 64) as u16 + word.trailing_zeros() as u16
        },
    )
}

/// The highest set bit at `to` or below.
fn bit_up_to(bits: &[u64; BITMAP_WORDS], to: u16) -> Option<u16> {
    let last = to as usize / 64;
    let masked = bits[last] & u64::MAX >> (63 - to % 64);
    (0..=last).rev().find_map(|at| {
        let word = if at == last { masked } else { bits[at] };
        (word != 0).then(|| (at * 64) as u16 + 63 - word.leading_zeros() as u16)
    })
}

/// Bytes that an item needs, which depend on the segment's CAS base.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need<'a>(pub(crate) &'a Draft<'a>);

impl Need<'_> {
    pub(crate) fn bytes(self, cas_base: u64) -> usize {
        self.0.header(cas_base).item_bytes()
    }

    /// The CAS base of a segment that is opened for this item: half the range of a short token
    /// below its own, so that older ones copied there fit too.
    pub(crate) const fn fresh_cas_base(self) -> u64 {
        self.0.cas().saturating_sub(1 << 31)
    }
}

/// On whose behalf a place is sought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum For {
    /// A new item: it leaves the reserve alone, or in a cache one spare segment to jobs (S5).
    Append,
    /// An item of a store no larger than the one that it replaces: it leaves one to jobs (S5).
    Replacement,
    /// A job's copy from this victim; it may take the last spare.
    Job { victim: u32 },
}

impl Segments {
    /// An open segment with room for the item, opened if need be; `None` when there is no segment.
    pub(crate) fn place(
        &mut self,
        stream: Stream,
        bucket: u16,
        need: Need<'_>,
        purpose: For,
    ) -> Option<u32> {
        if let Some(segment) = self.open.exact(stream, bucket) {
            if self.fits(segment, need) {
                return Some(segment);
            }
            self.close(segment);
        }
        let is_job = matches!(purpose, For::Job { .. });
        // A job opens a segment of the right bucket only while there are plenty.
        let is_plenty = !is_job || self.spare.len() > self.reserve || self.pool.may_take();
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

    /// Spare segments that are not taken on this behalf.
    pub(crate) const fn left_alone_by(&self, purpose: For) -> usize {
        match purpose {
            For::Append => self.reserve,
            For::Replacement => 1,
            For::Job { .. } => 0,
        }
    }

    /// The open segment of exactly this stream and bucket, if it has room for the item.
    pub(crate) fn open_exactly(&self, stream: Stream, bucket: u16, need: Need<'_>) -> Option<u32> {
        self.open.exact(stream, bucket).filter(|&segment| self.fits(segment, need))
    }

    /// Any open segment of a store with room for the item. The room in copy targets is the job's,
    /// if there is one (S5). Cost: a look at each that is open.
    pub(crate) fn open_anywhere(&self, need: Need<'_>) -> Option<u32> {
        let is_free = |segment: &u32| self.job.is_none() || !self.stream_of(*segment).is_copy();
        self.open_segments().filter(is_free).find(|&segment| self.fits(segment, need))
    }

    /// The open segments of a store, which uses one queue.
    pub(crate) fn open_segments(&self) -> impl Iterator<Item = u32> + '_ {
        let streams = [Stream::fresh(Queue::Probation), Stream::copy(Queue::Probation)];
        streams.into_iter().flat_map(|stream| self.open.all(stream))
    }

    /// Closes what stands in the way of a new open segment of this stream and bucket (O1, O2).
    pub(crate) fn make_place(&mut self, stream: Stream, bucket: u16) {
        if let Some(segment) = self.open.exact(stream, bucket) {
            self.close(segment);
        }
        while !self.open.may_grow(stream)
            && let Some(segment) = self.open.nearest(stream, bucket)
        {
            self.close(segment);
        }
    }

    pub(crate) fn open_new(
        &mut self,
        stream: Stream,
        bucket: u16,
        need: Need<'_>,
        purpose: For,
    ) -> Option<u32> {
        if self.open.exact(stream, bucket).is_some() {
            return None;
        }
        let cas_base = match purpose {
            For::Append | For::Replacement => need.fresh_cas_base(),
            // The victim's own, so that no item grows on the way (S5).
            For::Job { victim } => self.pool.segment_cas_base(victim),
        };
        let keep = self.left_alone_by(purpose);
        let common = self.may_take().then(|| self.pool.take(cas_base)).flatten();
        let segment = match common {
            Some(segment) => segment,
            None if self.spare.len() > keep => {
                let segment = self.spare.pop()?;
                self.pool.begin(segment, cas_base);
                segment
            }
            // What a job takes it gives back.
            None if keep == 0 => self.pool.take(cas_base)?,
            None => return None,
        };
        self.adopt(segment, stream, bucket);
        if let For::Job { victim } = purpose
            && stream.is_copy()
        {
            let fifo = &mut self.fifo[stream.queue() as usize];
            fifo.insert_before(&self.pool.metas, segment, victim);
        }
        Some(segment)
    }

    /// Enters a fresh segment into the books, open.
    fn adopt(&mut self, segment: u32, stream: Stream, bucket: u16) {
        let metas = &self.pool.metas;
        metas.clear(segment);
        metas.set_phase(segment, Phase::Open);
        let owner = u32::from(self.options.shard) | u32::from(stream.0) << 16;
        metas.set(segment, OWNER, owner | u32::from(bucket) << 18);
        metas.set(segment, USED, SEGMENT_HEAD_BYTES as u32);
        metas.set(segment, EPOCH, self.flushed.epoch());
        metas.set(segment, SLOT, self.own.len() as u32);
        self.own.push(segment);
        self.queue_bytes[stream.queue() as usize] += self.pool.segment_bytes();
        self.open.insert(stream, bucket, segment);
    }

    /// Seals an open segment: into its queue's FIFO, and into its bin.
    pub(crate) fn close(&mut self, segment: u32) {
        let metas = &self.pool.metas;
        assert!(metas.phase(segment) == Phase::Open, "only an open segment is sealed");
        let stream = self.stream_of(segment);
        self.open.remove(stream, self.bucket_of(segment), segment);
        metas.set_phase(segment, Phase::Sealed);
        if !stream.is_copy() {
            self.fifo[stream.queue() as usize].push_back(metas, segment);
        }
        let dead = metas.get(segment, DEAD) as usize;
        if metas.get(segment, ITEMS) == 0 && !metas.is_pinned(segment) {
            self.retire(segment);
        } else {
            self.rebin(segment, 0, dead);
        }
    }

    pub(crate) fn close_all(&mut self) {
        for queue in [Queue::Probation, Queue::Main] {
            while let Some(segment) = self.open.any(queue) {
                self.close(segment);
            }
        }
    }

    /// Writes the item where [`Self::place`] said, and keeps the books.
    pub(crate) fn put(&mut self, segment: u32, draft: &Draft<'_>) -> ItemAt {
        let metas = &self.pool.metas;
        let cas_base = self.pool.segment_cas_base(segment);
        let header: Header = draft.header(cas_base);
        let used = metas.get(segment, USED) as usize;
        let bytes = header.item_bytes();
        assert!(used + bytes <= self.pool.segment_bytes(), "an item lies in one segment");
        debug_assert!(metas.get(segment, EPOCH) == self.flushed.epoch(), "S7");
        let at = ItemAt::from_offset(self.pool.segment_start(segment) + used);
        self.pool.arena.audit.item(at.offset(), bytes);
        draft.write(&self.pool.arena, at, header, cas_base);
        self.pool.arena.audit.whole(at.offset());
        metas.set(segment, USED, (used + bytes) as u32);
        metas.set(segment, ITEMS, metas.get(segment, ITEMS) + 1);
        let expiry = crate::segments::reclaimer::expiry_or_never(draft.expiry());
        metas.set(segment, EXPIRY_BASE, metas.get(segment, EXPIRY_BASE).max(expiry));
        metas.set(segment, EXPIRY_MAX, metas.get(segment, EXPIRY_MAX).max(expiry));
        let blocks = draft.blocks();
        self.live_bytes += bytes + blocks * BLOCK_BYTES;
        self.blocks += blocks;
        self.queue_bytes[self.queue_of(segment) as usize] += blocks * BLOCK_BYTES;
        self.counts.items += 1;
        at
    }

    fn stream_of(&self, segment: u32) -> Stream {
        Stream((self.pool.metas.get(segment, OWNER) >> 16) as u8 & 3)
    }

    pub(crate) fn queue_of(&self, segment: u32) -> Queue {
        self.stream_of(segment).queue()
    }

    fn bucket_of(&self, segment: u32) -> u16 {
        let bucket = (self.pool.metas.get(segment, OWNER) >> 18) as u16;
        debug_assert!(bucket <= NEVER);
        bucket
    }

    /// Whether the segment is one of this shard's. Its own list says: the line of a segment that
    /// another shard opens or gives back meanwhile is not read as a whole (S1).
    pub(crate) fn owns(&self, segment: u32) -> bool {
        let slot = self.pool.metas.get(segment, SLOT) as usize;
        self.own.get(slot) == Some(&segment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_bucket_is_found_on_either_side() {
        let mut open = OpenSegments::new(1000);
        let stream = Stream::fresh(Queue::Main);
        assert_eq!(open.nearest(stream, 500), None);
        for (segment, bucket) in [(1, 0), (2, 63), (3, 64), (4, 700), (5, NEVER)] {
            open.insert(stream, bucket, segment);
        }
        let rows = [(0, 1), (31, 1), (32, 2), (63, 2), (64, 3), (381, 3), (383, 4), (1024, 5)];
        for (bucket, segment) in rows {
            assert_eq!(open.nearest(stream, bucket), Some(segment), "bucket {bucket}");
        }
        open.remove(stream, 700, 4);
        assert_eq!(open.nearest(stream, 800), Some(5));
        assert_eq!(open.nearest(Stream::fresh(Queue::Probation), 800), None);
    }
}

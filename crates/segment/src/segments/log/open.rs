//! Which segments are open: where the next item of each stream and TTL bucket goes.
//!
//! Upstream:   `place` asks for a segment, and opens and seals.
//! Downstream: `ttl` for the number of buckets, `queues` for the two queues.
//!
//! Four streams fill segments: new items on probation, items for the main queue, and for each queue
//! what compaction copies.
//!
//! Invariants:
//! - O1  `open[stream][bucket]` names a segment exactly when its bit is set, and that one is open.
//! - O2  Each stream may have one open segment. It may have more only while fewer than
//!   `segments_max` are open in all; beyond that, items go to the open segment of the nearest TTL
//!   bucket.

use super::queues::Queue;
use super::ttl::TTL_BUCKETS;
use crate::item::Draft;
use crate::meta::NONE;

/// Share of a shard's segments that may be open, as a divisor: 5 percent.
const OPEN_DIVISOR: usize = 20;

/// Open segments of a shard, however large it is.
const OPEN_MAX: usize = 64;

const STREAMS: usize = 4;
const BITMAP_WORDS: usize = TTL_BUCKETS.div_ceil(64);

/// The stream of items that fills a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stream(u8);

impl Stream {
    /// The stream of new, promoted and reinserted items, which come last in their queue.
    pub(crate) const fn fresh(queue: Queue) -> Self {
        Self(queue as u8)
    }

    /// The stream of items that compaction copies within a queue.
    pub(crate) const fn copy(queue: Queue) -> Self {
        Self(queue as u8 | 2)
    }

    /// The stream as two bits, for a segment's line.
    pub(crate) const fn bits(self) -> u32 {
        self.0 as u32
    }

    /// The stream that [`Self::bits`] gave as bits, the lowest two of `word`.
    pub(crate) const fn from_bits(word: u32) -> Self {
        Self(word as u8 & 3)
    }

    /// Whether compaction fills it.
    pub(crate) const fn is_copy(self) -> bool {
        self.0 & 2 != 0
    }

    /// The queue that its segments belong to.
    pub(crate) const fn queue(self) -> Queue {
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
    /// No open segments yet, for a shard that has `share` segments.
    pub(crate) fn new(share: usize) -> Self {
        Self {
            open: Box::new([[NONE; TTL_BUCKETS]; STREAMS]),
            bits: [[0; BITMAP_WORDS]; STREAMS],
            counts: [0; STREAMS],
            segments_max: (share / OPEN_DIVISOR).min(OPEN_MAX),
        }
    }

    /// The open segment of this stream and bucket.
    pub(crate) fn exact(&self, stream: Stream, bucket: u16) -> Option<u32> {
        Some(self.open[stream.0 as usize][bucket as usize]).filter(|&segment| segment != NONE)
    }

    /// The open segment whose TTL bucket is nearest.
    pub(crate) fn nearest(&self, stream: Stream, bucket: u16) -> Option<u32> {
        let bits = &self.bits[stream.0 as usize];
        let above = bit_from(bits, bucket);
        let below = bit_up_to(bits, bucket);
        debug_assert!(
            below.is_some() || above.is_some() || self.counts[stream.0 as usize] == 0,
            "O1"
        );
        let nearest = match (below, above) {
            (Some(below), Some(above)) if bucket - below <= above - bucket => below,
            (_, Some(above)) => above,
            (below, None) => below?,
        };
        self.exact(stream, nearest)
    }

    /// Whether the stream may open one more segment (O2).
    pub(crate) fn may_grow(&self, stream: Stream) -> bool {
        self.counts[stream.0 as usize] == 0 || self.counts.iter().sum::<usize>() < self.segments_max
    }

    /// Enters a segment that was opened (O1).
    pub(crate) fn insert(&mut self, stream: Stream, bucket: u16, segment: u32) {
        let slot = &mut self.open[stream.0 as usize][bucket as usize];
        assert!(*slot == NONE, "O1");
        *slot = segment;
        self.bits[stream.0 as usize][bucket as usize / 64] |= 1 << (bucket % 64);
        self.counts[stream.0 as usize] += 1;
    }

    /// Removes a segment before it is sealed (O1).
    pub(crate) fn remove(&mut self, stream: Stream, bucket: u16, segment: u32) {
        let slot = &mut self.open[stream.0 as usize][bucket as usize];
        assert!(*slot == segment, "O1");
        *slot = NONE;
        self.bits[stream.0 as usize][bucket as usize / 64] &= !(1 << (bucket % 64));
        self.counts[stream.0 as usize] -= 1;
    }

    /// The open segments of a stream.
    pub(crate) fn all(&self, stream: Stream) -> impl Iterator<Item = u32> + '_ {
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
    /// below the token of the item, so that older tokens that are copied there fit, too.
    pub(crate) const fn fresh_cas_base(self) -> u64 {
        self.0.cas().saturating_sub(1 << 31)
    }
}

/// Why a place is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A new item. It does not use the reserve, which in a cache is the spare segment of jobs (L4).
    Append,
    /// A new item of a cache in which nothing can be evicted and no job is under way. It may take
    /// the spare segment of jobs (L4).
    LastResort,
    /// An item of a store that is no larger than the one that it replaces. It leaves one spare
    /// segment to jobs (L4).
    Replacement,
    /// A job's copy from this victim; it may take the last spare segment.
    Job { victim: u32 },
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::segments::log::ttl::NEVER;

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

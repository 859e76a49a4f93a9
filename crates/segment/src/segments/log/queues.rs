//! The order in which memory is freed: sealed segments by age, and by dead space.
//!
//! Upstream:   `log` enters and removes segments; `reclaimer` looks for its next victim here.
//! Downstream: `meta`, whose lines hold the links of the lists.
//!
//! Invariants:
//! - Q1  A segment stands in the bin of its number of dead bytes. Bin 0 is no list, because its
//!   segments are not worth a job.
//! - Q2  `bytes` never falls below zero, and sums the segments and blocks of each queue.

use crate::meta::{BIN, FIFO, List, Metas, NONE};

/// Bins of segments by dead space. Bin 0 holds the segments that are not worth a job. In a store
/// these are the segments with less than one 128th of dead space, and the next three bins begin at
/// one, three and seven 128ths. Each further bin begins one sixteenth higher. In a cache, bin 0
/// holds all segments with less than a sixteenth, because a cache has items to evict instead.
pub(crate) const BINS: usize = FINE_BINS + 16;

/// The last bin for less than a sixteenth.
const FINE_BINS: usize = 3;

/// Part of memory that probation holds, in percent. S3-FIFO uses the same value; 5 and 20 are each
/// worse on some trace (docs/decisions/0005-eviction.md).
const PROBATION_PERCENT: usize = 10;

/// Pinned segments passed over in search of a victim that is not pinned.
pub(crate) const PINNED_MAX: usize = 16;

/// The two queues of S3-FIFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// New items, evicted unless they are worth their bytes.
    Probation,
    /// Items that were read often enough.
    Main,
}

/// Whether probation holds more than its part of memory, if probation and main hold these bytes.
pub fn is_probation_large(bytes: [usize; 2]) -> bool {
    bytes[Queue::Probation as usize] * 100 > bytes.iter().sum::<usize>() * PROBATION_PERCENT
}

/// The sealed segments of one shard, in order.
#[derive(Debug)]
pub(crate) struct Queues {
    fifo: [List; 2],
    bins: [List; BINS],
    /// Bytes of segments and blocks in each queue, open segments included.
    bytes: [usize; 2],
    evict: bool,
    segment_shift: u32,
}

impl Queues {
    /// Empty queues of segments of `1 << segment_shift` bytes, of a cache (`evict`) or a store.
    pub(crate) const fn new(evict: bool, segment_shift: u32) -> Self {
        Self {
            fifo: [const { List::new(FIFO) }; 2],
            bins: [const { List::new(BIN) }; BINS],
            bytes: [0; 2],
            evict,
            segment_shift,
        }
    }

    /// Enters a segment as the youngest of its queue.
    pub(crate) fn push_back(&mut self, metas: &Metas, queue: Queue, segment: u32) {
        self.fifo[queue as usize].push_back(metas, segment);
    }

    /// Enters a segment right before `older`, which stands in the queue.
    pub(crate) fn insert_before(&mut self, metas: &Metas, queue: Queue, segment: u32, older: u32) {
        self.fifo[queue as usize].insert_before(metas, segment, older);
    }

    /// Takes a segment out of its queue.
    pub(crate) fn remove(&mut self, metas: &Metas, queue: Queue, segment: u32) {
        self.fifo[queue as usize].remove(metas, segment);
        metas.set(segment, FIFO.next(), NONE);
    }

    /// Makes a segment the youngest of its queue.
    pub(crate) fn put_last(&mut self, metas: &Metas, queue: Queue, segment: u32) {
        self.remove(metas, queue, segment);
        self.push_back(metas, queue, segment);
    }

    /// The segments of a queue, the oldest first.
    pub(crate) fn by_age<'a>(
        &'a self,
        metas: &'a Metas,
        queue: Queue,
    ) -> impl Iterator<Item = u32> + 'a {
        let fifo = &self.fifo[queue as usize];
        std::iter::successors(fifo.head(), |&segment| fifo.next(metas, segment))
    }

    /// Moves a segment whose dead bytes changed to the bin where it belongs (Q1).
    pub(crate) fn rebin(&mut self, metas: &Metas, segment: u32, before: usize, now: usize) {
        debug_assert!(before <= now, "dead bytes only grow while a segment is sealed");
        let bin = self.bin_of(now);
        if bin != self.bin_of(before) {
            self.unbin(metas, segment, before);
            self.bins[bin].push_back(metas, segment);
        }
    }

    /// Takes a segment with this number of dead bytes out of its bin.
    pub(crate) fn unbin(&mut self, metas: &Metas, segment: u32, dead_bytes: usize) {
        match self.bin_of(dead_bytes) {
            0 => {}
            bin => self.bins[bin].remove(metas, segment),
        }
    }

    /// Whether a segment with this number of dead bytes is worth a job of compaction.
    pub(crate) fn is_worth_a_job(&self, dead_bytes: usize) -> bool {
        self.bin_of(dead_bytes) > 0
    }

    fn bin_of(&self, dead_bytes: usize) -> usize {
        debug_assert!(dead_bytes <= 1 << self.segment_shift, "Q1: dead bytes of one segment");
        match (dead_bytes * 16) >> self.segment_shift {
            0 if self.evict => 0,
            // About twice as much dead space is one bin more.
            0 => (((dead_bytes * 128) >> self.segment_shift) + 1).ilog2() as usize,
            sixteenths => FINE_BINS + sixteenths.min(15),
        }
    }

    /// The unpinned segment with the most dead space, if that is at least a sixteenth; in a store a
    /// 128th is enough.
    pub(crate) fn deadest(&self, metas: &Metas) -> Option<u32> {
        self.bins[1..].iter().rev().find_map(|bin| {
            std::iter::successors(bin.head(), |&segment| bin.next(metas, segment))
                .take(PINNED_MAX)
                .find(|&segment| !metas.is_pinned(segment))
        })
    }

    /// Whether some segment is at least a sixteenth dead; in a store seven 128ths are enough.
    pub(crate) fn has_much_dead(&self) -> bool {
        self.bins[FINE_BINS..].iter().any(|bin| bin.head().is_some())
    }

    /// Adds bytes to the sum of a queue.
    pub(crate) const fn add_bytes(&mut self, queue: Queue, bytes: usize) {
        self.bytes[queue as usize] += bytes;
    }

    /// Subtracts bytes from the sum of a queue (Q2).
    pub(crate) const fn sub_bytes(&mut self, queue: Queue, bytes: usize) {
        debug_assert!(self.bytes[queue as usize] >= bytes, "Q2");
        self.bytes[queue as usize] -= bytes;
    }

    /// Bytes of segments and blocks in probation and in main.
    pub(crate) const fn bytes(&self) -> [usize; 2] {
        self.bytes
    }

    /// Bytes of segments and blocks in both queues.
    pub(crate) fn total_bytes(&self) -> usize {
        self.bytes.iter().sum()
    }

    /// Whether probation holds more than its part of memory.
    pub(crate) fn is_probation_large(&self) -> bool {
        is_probation_large(self.bytes)
    }

    /// The segments of each bin that is a list, with the number of the bin, for audits.
    #[cfg(any(all(test, not(loom)), debug_assertions))]
    pub(crate) fn binned<'a>(
        &'a self,
        metas: &'a Metas,
    ) -> impl Iterator<Item = (usize, u32)> + 'a {
        self.bins.iter().enumerate().flat_map(move |(at, bin)| {
            std::iter::successors(bin.head(), |&segment| bin.next(metas, segment))
                .map(move |segment| (at, segment))
        })
    }

    /// Whether a segment with this number of dead bytes belongs in bin `bin` (Q1).
    #[cfg(any(all(test, not(loom)), debug_assertions))]
    pub(crate) fn is_bin_of(&self, bin: usize, dead_bytes: usize) -> bool {
        bin > 0 && bin == self.bin_of(dead_bytes)
    }
}

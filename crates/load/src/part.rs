//! The part of one machine in a measurement of several machines.
//!
//! Upstream:   `agent` gives each machine its part; a run of one machine has the whole.
//! Downstream: `step` gives each thread its number among the threads of all machines.
//!
//! The threads of all machines are numbered one after the other, and each number has its share of
//! the rate, its seed and its keys. So two machines of one thread send the requests that one
//! machine of two threads would send.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  The parts of a measurement together have each thread, key and connection once.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// The part of one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    /// Number of the machine, from 0.
    pub(crate) index: u64,
    /// Number of machines.
    pub(crate) count: u64,
}

impl Part {
    /// The part of a machine that measures alone.
    pub(crate) const WHOLE: Self = Self { index: 0, count: 1 };

    /// Whether there is such a part.
    pub(crate) fn is_valid(self) -> bool {
        self.index < self.count
    }

    /// The number of a thread of this machine among those of all machines, and the number of all.
    /// Every machine has the same number of threads.
    pub(crate) fn thread(self, index: usize, threads: usize) -> (u64, u64) {
        assert!(self.is_valid() && index < threads, "I1");
        let threads = threads as u64;
        (self.index * threads + index as u64, self.count * threads)
    }

    /// This machine's part of all connections; the first machines have one more if they do not
    /// divide evenly.
    pub(crate) fn connections(self, all: usize) -> usize {
        assert!(self.is_valid(), "I1");
        let (index, count) = (self.index as usize, self.count as usize);
        all / count + usize::from(index < all % count)
    }

    /// This machine's part of all keys.
    pub(crate) fn keys(self, all: u64) -> Range<u64> {
        range(all, self.index, self.count)
    }
}

/// The share with this index when `count` numbers are divided into a number of shares (I1).
pub(crate) fn range(count: u64, index: u64, shares: u64) -> Range<u64> {
    assert!(index < shares, "I1: the index is below the number of shares");
    let edge = |index: u64| (u128::from(count) * u128::from(index) / u128::from(shares)) as u64;
    edge(index)..edge(index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_together_are_the_whole() {
        for count in 1..=7 {
            let parts: Vec<Part> = (0..count).map(|index| Part { index, count }).collect();
            for all in [7, 8, 50, 60_000] {
                let each: Vec<usize> = parts.iter().map(|part| part.connections(all)).collect();
                assert_eq!(each.iter().sum::<usize>(), all, "I1: {each:?}");
                assert!(each.is_sorted_by(|left, right| left >= right), "{each:?}");
                assert!(each[0] - each[each.len() - 1] <= 1, "{each:?}");
            }
            let keys = parts.iter().flat_map(|part| part.keys(1_001));
            assert!(keys.eq(0..1_001), "I1");
            let threads = parts.iter().flat_map(|part| (0..3).map(|index| part.thread(index, 3)));
            assert!(threads.eq((0..count * 3).map(|index| (index, count * 3))), "I1");
        }
    }
}

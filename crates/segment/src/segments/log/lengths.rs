//! The length of the longest items that were stored recently, which limits a prefetch.
//!
//! Upstream:   `log`, with each item that it writes.
//! Downstream: the pool, which all cores ask before they prefetch an item.
//!
//! Invariants:
//! - N1  The length that the pool has is at least that of each of the last `ITEMS` items that were
//!   stored. With several shards, this holds for the shard that updated the pool last.

use crate::pool::Pool;

/// The longest item is forgotten after at least this number of later items, and at most twice the
/// number. A guess.
const ITEMS: u32 = 1024;

/// The longest items of the last `ITEMS`, and of those before.
#[derive(Debug, Default)]
pub(super) struct Lengths {
    longest: usize,
    longest_before: usize,
    items: u32,
}

impl Lengths {
    /// Notes that an item of `bytes` is stored. Cost: two comparisons; rarely a store to the pool.
    #[inline]
    pub(super) fn note(&mut self, bytes: usize, pool: &Pool) {
        debug_assert!(bytes > 0, "an item has a header");
        self.items += 1;
        if bytes > self.longest || self.items == ITEMS {
            self.tell(bytes, pool);
        }
    }

    #[cold]
    fn tell(&mut self, bytes: usize, pool: &Pool) {
        assert!(self.items <= ITEMS, "the counts begin again after `ITEMS`");
        self.longest = self.longest.max(bytes);
        pool.note_longest(self.longest.max(self.longest_before)); // N1
        if self.items >= ITEMS {
            *self = Self { longest: 0, longest_before: self.longest, items: 0 };
        }
    }
}

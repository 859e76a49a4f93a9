//! Which change a read must wait for: the last change of each of a number of sets of keys.
//!
//! Upstream:   `store` notes each change, before any core can see it.
//! Downstream: a read of any core, which takes the sequence of the set that its key is in.
//!
//! A set has many keys, so a read may wait for the change of another key. It waits for that one
//! commit at most, and only while changes are under way.
//!
//! Invariants, cited by number where they are asserted:
//! - N1  The sequence of a set never decreases. It is stored before the change can be seen, and
//!   loaded after the item was read. So a read of a change that is not durable waits for it.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

use kachel_stdx::Sequence;

/// The number of sets. 32 KiB an engine stay in a core's caches. A guess.
const SETS: usize = 4096;

/// The last change of each set of keys.
#[derive(Debug)]
pub(crate) struct RecentChanges(Box<[AtomicU64]>);

impl Default for RecentChanges {
    fn default() -> Self {
        Self((0..SETS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl RecentChanges {
    fn of(&self, secret_hash: u64) -> &AtomicU64 {
        // The low bits choose a bucket of the index, so the high ones are as good.
        &self.0[(secret_hash >> 52) as usize % SETS]
    }

    /// Notes that a key with this hash is about to change.
    pub(crate) fn note(&self, secret_hash: u64, sequence: Sequence) {
        let last = self.of(secret_hash);
        debug_assert!(last.load(Acquire) <= sequence.0, "N1");
        last.store(sequence.0, Release); // N1
    }

    /// What a read of a key with this hash must wait for. Cost: a load.
    pub(crate) fn last(&self, secret_hash: u64) -> Sequence {
        Sequence(self.of(secret_hash).load(Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_waits_for_the_last_change_of_its_set() {
        let recent = RecentChanges::default();
        recent.note(u64::MAX, Sequence(7));
        recent.note(0, Sequence(8));
        assert_eq!((recent.last(u64::MAX), recent.last(0)), (Sequence(7), Sequence(8)));
        assert_eq!(recent.last(1 << 52), Sequence(0));
    }
}

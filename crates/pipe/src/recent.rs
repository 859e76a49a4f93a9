//! Keys that the server has read over UDP lately, so that the second read of a key makes a copy.
//!
//! Upstream:   `table`, for each such read.
//! Downstream: nothing.
//!
//! A fixed table of hashes. Two keys may have one place; then the later one takes it.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The keys that are remembered. A guess.
const RECENT: usize = 4096;

/// The hashes of keys that were read once.
#[derive(Debug)]
pub(crate) struct Recent(Box<[AtomicU64]>);

impl Recent {
    pub(crate) fn new() -> Self {
        Self((0..RECENT).map(|_| AtomicU64::new(0)).collect())
    }

    /// Notes a read. Returns whether it is the second one, and forgets the first.
    pub(crate) fn is_second(&self, secret_hash: u64) -> bool {
        let place = &self.0[(secret_hash >> 32) as usize % RECENT];
        let is_second = place.load(Relaxed) == secret_hash;
        place.store(if is_second { 0 } else { secret_hash }, Relaxed);
        is_second
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_second_read_of_a_key_counts() {
        let recent = Recent::new();
        let reads = [7, 7, 7, 9, 7, 9].map(|hash| recent.is_second(hash));
        // Both keys have one place.
        assert_eq!(reads, [false, true, false, false, false, false]);
    }
}

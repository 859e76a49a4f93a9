//! Random choices from a seed.
//!
//! Upstream:   the seed of a disk or of a crash.
//! Downstream: every choice of the disk, so that a seed repeats a run.

use crate::rng::{Rng, SeededRng};

/// Repeatable choices.
#[derive(Clone, Debug)]
pub(super) struct Dice {
    rng: SeededRng,
}

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self { rng: SeededRng::new(seed) }
    }

    pub(super) fn bits(&mut self) -> u64 {
        self.rng.next_u64()
    }

    /// A number below `count`, which is at least 1.
    pub(super) fn below(&mut self, count: u64) -> u64 {
        assert!(count > 0, "one of none");
        self.bits() % count
    }

    /// True in this number of cases of 1,000.
    pub(super) fn chance(&mut self, permille: u64) -> bool {
        self.below(1000) < permille
    }

    /// One of the items.
    pub(super) fn one_of<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize]
    }
}

//! Chance, from a seed: each part of a run throws dice of its own.
//!
//! Upstream:   the run's seed.
//! Downstream: everything that could have been otherwise.
//!
//! Invariants:
//! - I1  What one part throws changes nothing for another: so a run without one kind of fault is
//!   like the run with it, as far as it can be.

use kachel_io::{Rng, SeededRng};

/// Dice that fall the same way for the same seed and purpose.
#[derive(Clone, Debug)]
pub(crate) struct Dice {
    rng: SeededRng,
}

impl Dice {
    /// The dice for one purpose in the run of `seed` (I1).
    pub(crate) fn new(seed: u64, purpose: &str) -> Self {
        let mut mixed = seed;
        for byte in purpose.bytes() {
            let mut rng = SeededRng::new(mixed ^ u64::from(byte));
            mixed = rng.next_u64();
        }
        Self { rng: SeededRng::new(mixed) }
    }

    /// 64 bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.rng.next_u64()
    }

    /// A number from 0 to `count - 1`.
    pub(crate) fn below(&mut self, count: u64) -> u64 {
        assert!(count > 0);
        let wide = u128::from(self.bits()) * u128::from(count);
        (wide >> 64) as u64
    }

    /// An index into something of this length.
    pub(crate) fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// A number from `low` to `high`, both possible.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True in `permille` of a thousand throws.
    pub(crate) fn chance(&mut self, permille: u64) -> bool {
        self.below(1000) < permille
    }

    /// A number about as often of each size: from `low` to `high`, small ones more often.
    pub(crate) fn skewed(&mut self, low: u64, high: u64) -> u64 {
        let most = self.between(low, high);
        let less = self.between(low, most);
        self.between(low, less)
    }
}

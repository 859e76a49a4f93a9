//! Random numbers from a seed: the same seed gives the same run on every machine.
//!
//! Upstream:   the tests and the simulation, with a seed.
//! Downstream: `kachel_io::SeededRng`.
//!
//! Invariants:
//! - I1  The numbers for one purpose do not depend on how many were drawn for another.

use kachel_io::{Rng, SeededRng};

/// A stream of numbers that depends on its seed and its purpose only.
#[derive(Clone, Debug)]
pub struct Random {
    rng: SeededRng,
}

impl Random {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Self {
        Self { rng: SeededRng::new(seed) }
    }

    /// The stream of `seed` for one purpose (I1).
    pub fn for_purpose(seed: u64, purpose: &str) -> Self {
        let mixed = purpose.bytes().fold(seed, |mixed, byte| {
            let mut rng = SeededRng::new(mixed ^ u64::from(byte));
            rng.next_u64()
        });
        Self::new(mixed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.rng.next_u64()
    }

    /// A number below `limit`.
    ///
    /// # Panics
    /// If `limit` is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        assert!(limit > 0, "some number is below the limit");
        let wide = u128::from(self.bits()) * u128::from(limit);
        (wide >> 64) as u64
    }

    /// An index into a slice of this length.
    ///
    /// # Panics
    /// If the slice is empty.
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// One of `choices`.
    ///
    /// # Panics
    /// If there are none.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.index(choices.len())]
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True `percent` times in a hundred.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// True `permille` times in a thousand.
    pub fn chance(&mut self, permille: u64) -> bool {
        self.below(1000) < permille
    }

    /// A number from `low` to `high`, both included; small numbers are more frequent.
    pub fn skewed(&mut self, low: u64, high: u64) -> u64 {
        let most = self.between(low, high);
        let less = self.between(low, most);
        self.between(low, less)
    }
}

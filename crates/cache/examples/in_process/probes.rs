//! The keys that are read, in random order.
//!
//! Upstream:   `main` says how the keys are distributed.
//! Downstream: `reference` and `engine` read the same probes.
//!
//! Invariants:
//! - I1  Numbers that are drawn often are scattered: neighbors in rank are not neighbors in memory.

use kachel_testkit::{Random, key};

/// The exponent of the skewed distribution, as in YCSB.
const ZIPF_EXPONENT: f64 = 0.99;
/// Prime factors of no number of items in use; the multipliers of the permutations (I1).
const SCATTER: u64 = 2_654_435_761;
const PLACE: u64 = 2_246_822_519;

/// One key to read or to store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probe<const KEY_BYTES: usize> {
    pub(crate) key: [u8; KEY_BYTES],
    /// The place of the key among all places of the reference's index.
    pub(crate) place: u64,
    /// Whether the value is stored and not read.
    pub(crate) stores: bool,
}

/// How often each key is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Draw {
    /// All equally often.
    Uniform,
    /// Zipf's distribution: the key of rank r has the weight `r^-0.99`.
    Zipf,
    /// One key always.
    One,
}

/// Draws probes of `items` items.
#[derive(Debug)]
pub(crate) struct Probes {
    items: u64,
    draw: Draw,
    stores_percent: u64,
    random: Random,
    zipf: Zipf,
}

/// The constants of the generator of Gray and others, "Quickly generating billion-record synthetic
/// databases", SIGMOD 1994.
#[derive(Debug)]
struct Zipf {
    sum: f64,
    alpha: f64,
    eta: f64,
}

/// The place of key `number` in an index of `items` places, in which neighbors are far apart.
pub(crate) fn place_of(number: u64, items: u64) -> u64 {
    (u128::from(number) * u128::from(PLACE) % u128::from(items)) as u64
}

impl Zipf {
    fn new(items: u64) -> Self {
        let sum_to = |count: u64| (1..=count).map(|n| (n as f64).powf(-ZIPF_EXPONENT)).sum::<f64>();
        let sum = sum_to(items);
        let share = (2.0 / items as f64).powf(1.0 - ZIPF_EXPONENT);
        Self {
            sum,
            alpha: 1.0 / (1.0 - ZIPF_EXPONENT),
            eta: (1.0 - share) / (1.0 - sum_to(2) / sum),
        }
    }

    /// A rank below `items`, for a number from 0 to 1.
    fn rank(&self, items: u64, drawn: f64) -> u64 {
        let scaled = drawn * self.sum;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + 0.5_f64.powf(ZIPF_EXPONENT) {
            return 1;
        }
        let rank = items as f64 * (self.eta * drawn - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(items - 1)
    }
}

impl Probes {
    pub(crate) fn new(items: u64, draw: Draw, stores_percent: u64, seed: u64) -> Self {
        let permutes = |multiplier: u64| !items.is_multiple_of(multiplier);
        assert!(permutes(SCATTER) && permutes(PLACE), "two numbers have two places");
        let zipf = Zipf::new(if draw == Draw::Zipf { items } else { 2 });
        Self { items, draw, stores_percent, random: Random::new(seed), zipf }
    }

    /// The next `count` probes.
    pub(crate) fn take<const KEY_BYTES: usize>(&mut self, count: usize) -> Vec<Probe<KEY_BYTES>> {
        (0..count).map(|_| self.next()).collect()
    }

    fn next<const KEY_BYTES: usize>(&mut self) -> Probe<KEY_BYTES> {
        let number = match self.draw {
            Draw::Uniform => self.random.below(self.items),
            Draw::One => 0,
            Draw::Zipf => {
                let drawn = (self.random.bits() >> 11) as f64 / (1_u64 << 53) as f64;
                let rank = self.zipf.rank(self.items, drawn);
                rank * SCATTER % self.items // I1
            }
        };
        let stores = self.random.percent(self.stores_percent);
        Probe { key: key(number), place: place_of(number, self.items), stores }
    }
}

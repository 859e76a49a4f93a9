//! Zipf ranks as YCSB draws them: the algorithm of Gray et al. (SIGMOD 1994, figure 4).
//!
//! Upstream:   `popularity` for its scrambled and latest keys.
//! Downstream: ranks from 0.
//!
//! YCSB (Cooper et al., SoCC 2010) is the reference for these two distributions, so this module
//! keeps its approximation: the first two ranks are exact, later ones nearly. `rand_distr::Zipf` is
//! exact, and it takes any exponent.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  Every rank is below the number of items.

/// The exponent that YCSB uses unless told otherwise.
pub(crate) const YCSB_THETA: f64 = 0.99;
/// The number of items among which YCSB's scrambled keys draw a rank, before they hash it.
pub(crate) const YCSB_SCRAMBLED_ITEMS: u64 = 10_000_000_000;

/// Terms of the zeta function that are summed one by one.
const DIRECT_TERMS: u64 = 1_000;

/// Draws ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct YcsbZipf {
    items: u64,
    theta: f64,
    alpha: f64,
    zeta_2: f64,
    zeta_n: f64,
    eta: f64,
}

impl YcsbZipf {
    /// Ranks below `items`. The exponent must be above 0 and below 1.
    pub(crate) fn new(items: u64, theta: f64) -> Self {
        assert!(items > 0 && theta > 0.0 && theta < 1.0, "I1");
        let mut zipf = Self {
            items,
            theta,
            alpha: 1.0 / (1.0 - theta),
            zeta_2: zeta(2, theta),
            zeta_n: zeta(items, theta),
            eta: 0.0,
        };
        zipf.set_eta();
        zipf
    }

    /// Ranks below a greater number of items.
    ///
    /// Cost: a power for each item that was added.
    pub(crate) fn grow(&mut self, items: u64) {
        for item in self.items + 1..=items {
            self.zeta_n += (item as f64).powf(-self.theta);
        }
        self.items = self.items.max(items);
        self.set_eta();
    }

    fn set_eta(&mut self) {
        let power = (2.0 / self.items as f64).powf(1.0 - self.theta);
        self.eta = (1.0 - power) / (1.0 - self.zeta_2 / self.zeta_n);
    }

    /// The rank for a number in [0, 1).
    #[inline]
    pub(crate) fn rank(&self, unit: f64) -> u64 {
        let weight = unit * self.zeta_n;
        let rank = if weight < 1.0 {
            0
        } else if weight < self.zeta_2 {
            1
        } else {
            (self.items as f64 * (self.eta * unit - self.eta + 1.0).powf(self.alpha)) as u64
        };
        rank.min(self.items - 1) // I1
    }
}

/// The sum of the powers `-theta` of the numbers from 1 to `count`.
///
/// Cost: 1,000 powers. The rest is Euler and Maclaurin's formula, whose error is below 1e-15.
fn zeta(count: u64, theta: f64) -> f64 {
    let term = |number: u64| (number as f64).powf(-theta);
    let direct: f64 = (1..=count.min(DIRECT_TERMS)).map(term).sum();
    if count <= DIRECT_TERMS {
        return direct;
    }
    let (first, last) = (DIRECT_TERMS as f64, count as f64);
    let integral = (last.powf(1.0 - theta) - first.powf(1.0 - theta)) / (1.0 - theta);
    let ends = (last.powf(-theta) - first.powf(-theta)) / 2.0;
    let slopes = theta * (first.powf(-theta - 1.0) - last.powf(-theta - 1.0)) / 12.0;
    direct + integral + ends + slopes
}

/// YCSB's hash of a rank: 64-bit FNV of its 8 bytes, the lowest first, as a number without a sign.
#[inline]
pub(crate) fn ycsb_hash(rank: u64) -> u64 {
    let hash = rank.to_le_bytes().into_iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    hash.cast_signed().unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The constant in YCSB's ScrambledZipfianGenerator: zeta of 10,000,000,000 items, 0.99.
    const YCSB_ZETAN: f64 = 26.469_028_201_783_02;

    #[test]
    fn zeta_is_ycsbs_constant_and_the_plain_sum() {
        let zipf = YcsbZipf::new(YCSB_SCRAMBLED_ITEMS, YCSB_THETA);
        assert!((zipf.zeta_n / YCSB_ZETAN - 1.0).abs() < 1e-9, "{}", zipf.zeta_n);
        for (count, theta) in [(1, 0.99), (1_000, 0.5), (1_001, 0.5), (300_000, 0.99)] {
            let sum: f64 = (1..=count).map(|number| (number as f64).powf(-theta)).sum();
            assert!((zeta(count, theta) / sum - 1.0).abs() < 1e-11, "{count} {theta}");
        }
    }

    #[test]
    fn ranks_are_those_of_the_published_algorithm() {
        let zipf = YcsbZipf::new(YCSB_SCRAMBLED_ITEMS, YCSB_THETA);
        // 1 / zeta, then (1 + 0.5^0.99) / zeta, are the ends of the first two ranks.
        let (one, two) = (1.0 / YCSB_ZETAN, (1.0 + 0.5_f64.powf(0.99)) / YCSB_ZETAN);
        for (unit, rank) in [(0.0, 0), (one - 1e-7, 0), (one + 1e-7, 1), (two - 1e-7, 1)] {
            assert_eq!(zipf.rank(unit), rank, "{unit}");
        }
        assert!(zipf.rank(two + 1e-7) >= 2);
        // Computed apart, from YCSB's formula and constants.
        for (unit, rank) in [(0.1, 6), (0.25, 296), (0.5, 134_552), (0.75, 42_924_421)] {
            let drawn = zipf.rank(unit);
            assert!(drawn.abs_diff(rank) <= rank / 1_000_000, "{unit}: {drawn}");
        }
        let last = zipf.rank(1.0 - f64::EPSILON);
        assert!(last < YCSB_SCRAMBLED_ITEMS && last > YCSB_SCRAMBLED_ITEMS / 10 * 9, "I1: {last}");
        assert_eq!(YcsbZipf::new(1, 0.5).rank(0.999), 0, "I1");
    }

    #[test]
    fn a_number_of_items_that_grows_is_as_one_that_was_given() {
        let mut grown = YcsbZipf::new(1_000, YCSB_THETA);
        grown.grow(5_000);
        let given = YcsbZipf::new(5_000, YCSB_THETA);
        for step in 0..1_000 {
            let unit = f64::from(step) / 1_000.0;
            assert_eq!(grown.rank(unit), given.rank(unit));
        }
    }

    #[test]
    fn hashes_are_those_of_fnv() {
        // FNV-1a of eight zero bytes is 0xa8c7f832281a39c5, which is negative as a signed number.
        assert_eq!(ycsb_hash(0), 0xa8c7_f832_281a_39c5_u64.wrapping_neg());
        assert_ne!(ycsb_hash(1), ycsb_hash(256));
    }
}

//! Histograms that one core writes and any thread reads.
//!
//! Upstream:   the tick notes how long it took, and how many requests it had.
//! Downstream: the sums of all cores, for percentiles and for metrics.
//!
//! A value counts in one of `BUCKETS` buckets: four for each power of two, so a percentile is at
//! most a quarter too high.
//!
//! ```text
//! value   0 1 2 3 | 4 5 6 7 | 8-9 10-11 12-13 14-15 | 16-19 20-23 24-27 28-31 | ...
//! bucket  0 1 2 3 | 4 5 6 7 |  8    9    10    11   |  12    13    14    15   |
//! ```
//!
//! Invariants:
//! - H1  Each bucket holds the values up to its bound and above the bound of the bucket before.
//!
//! Source: the buckets of HdrHistogram with two bits of precision.

use kachel_stdx::Counter;

/// Buckets of each power of two, as a power of two.
const PRECISION_BITS: u32 = 2;
/// Values below two to the power of this are told apart.
const VALUE_BITS: u32 = 26;
/// The number of buckets. Greater values count in the last one.
const BUCKETS: usize = ((VALUE_BITS - PRECISION_BITS + 1) << PRECISION_BITS) as usize;

/// How often values were noted, by bucket.
#[derive(Debug)]
pub struct Histogram {
    buckets: [Counter; BUCKETS],
    /// The sum of all values.
    sum: Counter,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: std::array::from_fn(|_| Counter::default()), sum: Counter::default() }
    }
}

/// The bucket of a value (H1).
#[inline]
const fn bucket_of(value: u64) -> usize {
    let power = (value | 1 << PRECISION_BITS).ilog2() - PRECISION_BITS;
    let bucket = ((power as u64) << PRECISION_BITS) + (value >> power);
    if bucket < BUCKETS as u64 { bucket as usize } else { BUCKETS - 1 }
}

/// The greatest value of a bucket (H1).
const fn bound_of(bucket: usize) -> u64 {
    let quarters = 1 << PRECISION_BITS;
    let power = (bucket / quarters).saturating_sub(1);
    ((bucket - power * quarters + 1) << power) as u64 - 1
}

impl Histogram {
    /// Notes a value. Only one thread may do this. Cost: two loads and two stores.
    #[inline]
    pub fn note(&self, value: u64) {
        self.buckets[bucket_of(value)].add(1);
        self.sum.add(value);
    }

    /// The sum of all values that were noted.
    pub(crate) fn total(&self) -> u64 {
        self.sum.value()
    }

    pub(crate) fn copy_counts_from(&self, from: &Self) {
        for (to, from) in self.buckets.iter().zip(&from.buckets) {
            to.set(from.value());
        }
        self.sum.set(from.sum.value());
    }
}

/// The number of powers of two that [`HistogramSum::by_power`] tells apart.
pub(crate) const POWERS: usize = VALUE_BITS as usize + 1;

/// The sum of the histograms of all cores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistogramSum {
    buckets: [u64; BUCKETS],
    sum: u64,
}

impl Default for HistogramSum {
    fn default() -> Self {
        Self { buckets: [0; BUCKETS], sum: 0 }
    }
}

impl HistogramSum {
    /// Adds what a core has noted since `before`, a copy of an earlier state.
    pub(crate) fn add(&mut self, before: &Histogram, now: &Histogram) {
        // The copy is read first, as in `totals`.
        let since = |before: &Counter, now: &Counter| {
            let before = before.value();
            now.value().saturating_sub(before)
        };
        for ((sum, before), now) in self.buckets.iter_mut().zip(&before.buckets).zip(&now.buckets) {
            *sum += since(before, now);
        }
        self.sum += since(&before.sum, &now.sum);
    }

    /// The sum of these histograms since the start of the process.
    pub(crate) fn of<'h>(histograms: impl Iterator<Item = &'h Histogram>) -> Self {
        let mut sum = Self::default();
        for histogram in histograms {
            for (sum, count) in sum.buckets.iter_mut().zip(&histogram.buckets) {
                *sum += count.value();
            }
            sum.sum += histogram.sum.value();
        }
        sum
    }

    /// What was noted since `before`, an earlier state of this sum.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let bucket = |at: usize| self.buckets[at].saturating_sub(before.buckets[at]);
        Self { buckets: std::array::from_fn(bucket), sum: self.sum.saturating_sub(before.sum) }
    }

    /// How many values there are of each power of two: 0 first, then 1, then 2 and 3, and so on.
    /// The last one has all greater ones.
    pub(crate) fn by_power(&self) -> [u64; POWERS] {
        let mut powers = [0; POWERS];
        for (bucket, count) in self.buckets.iter().enumerate() {
            powers[(u64::BITS - bound_of(bucket).leading_zeros()) as usize] += count;
        }
        powers
    }

    /// How many values were noted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The sum of the values.
    pub const fn sum(&self) -> u64 {
        self.sum
    }

    /// The value that `permille` thousandths of all values do not exceed, at most a quarter too
    /// high. 0 if no value was noted. `permille` is at most 1,000.
    pub fn percentile(&self, permille: u64) -> u64 {
        debug_assert!(permille <= 1000, "at most all values");
        let wanted = (self.count() * permille).div_ceil(1000);
        let mut seen = 0;
        let reached = self.buckets.iter().position(|count| {
            seen += count;
            seen >= wanted.max(1)
        });
        reached.map_or(0, bound_of)
    }

    /// How many values are at most `bound`, which is the bound of a bucket.
    pub(crate) fn count_to(&self, bound: u64) -> u64 {
        debug_assert!(bound_of(bucket_of(bound)) == bound, "H1: no bucket is cut");
        self.buckets[..=bucket_of(bound)].iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum_of(values: impl IntoIterator<Item = u64>) -> HistogramSum {
        let (before, now) = (Histogram::default(), Histogram::default());
        values.into_iter().for_each(|value| now.note(value));
        let mut sum = HistogramSum::default();
        sum.add(&before, &now);
        sum
    }

    #[test]
    fn each_value_is_in_the_bucket_whose_bound_is_next() {
        for value in (0..10_000).chain((14..VALUE_BITS).flat_map(|power| {
            let power = 1_u64 << power;
            [power - 1, power, power + 1, power + power / 4 - 1, power + power / 4]
        })) {
            let bucket = bucket_of(value);
            assert!(value <= bound_of(bucket), "H1: {value} in bucket {bucket}");
            assert!(bucket == 0 || value > bound_of(bucket - 1), "H1: {value} in bucket {bucket}");
        }
        assert_eq!(bucket_of((1 << VALUE_BITS) - 1), BUCKETS - 1);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_are_at_most_a_quarter_too_high() {
        assert_eq!(sum_of([]).percentile(500), 0);
        let sum = sum_of(1..=1000);
        assert_eq!((sum.count(), sum.sum()), (1000, 500_500));
        for (permille, exact) in [(1, 1), (500, 500), (990, 990), (1000, 1000)] {
            let found = sum.percentile(permille);
            assert!((exact..=exact + exact / 4).contains(&found), "{permille}: {found}");
        }
        assert_eq!(sum.count_to(255), 255);
    }

    #[test]
    fn powers_of_two_have_all_values() {
        let sum = sum_of([0, 1, 2, 3, 4, 7, 8, 15, 16, u64::MAX]);
        let powers = sum.by_power();
        assert_eq!(powers[..6], [1, 1, 2, 2, 2, 1]);
        assert_eq!((powers[POWERS - 1], powers.iter().sum::<u64>()), (1, sum.count()));
        assert_eq!(sum.since(&sum_of([0, 1])).count(), 8);
    }

    #[test]
    fn values_before_a_reset_do_not_count() {
        let (before, now) = (Histogram::default(), Histogram::default());
        now.note(7);
        before.copy_counts_from(&now);
        now.note(9);
        let mut sum = HistogramSum::default();
        sum.add(&before, &now);
        assert_eq!((sum.count(), sum.sum(), sum.percentile(1000)), (1, 9, 9));
    }
}

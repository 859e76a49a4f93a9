//! Medians over rounds, with their range and a bootstrap interval.
//!
//! Upstream:   a figure of each round.
//! Downstream: `verdict` and `report`.
//!
//! The interval is the percentile bootstrap (Efron 1979) of the median. The seed is fixed, so the
//! same data give the same interval. With few rounds the interval is about the range, which is
//! what few rounds can tell. All of n rounds are on one side of the true median with a probability
//! of 2^(1-n). With up to five rounds the confidence is the rest of that.

use rand::{RngExt as _, SeedableRng as _};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::Serialize;

/// Samples of the bootstrap.
const RESAMPLES: usize = 10_000;
/// The share of the samples that the interval holds, and its confidence with enough rounds.
const CONFIDENCE: f64 = 0.95;
const SEED: u64 = 1;

/// The distribution of a figure over rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Summary {
    pub(crate) rounds: usize,
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
    /// The ends of the interval.
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Summary {
    /// The confidence of the interval: that of the range, if there are few rounds.
    pub(crate) fn confidence(&self) -> f64 {
        let rounds = i32::try_from(self.rounds).unwrap_or(i32::MAX);
        assert!(rounds > 0, "a summary has a round");
        (1.0 - 2.0_f64.powi(1 - rounds)).min(CONFIDENCE)
    }

    /// The summary of the figures of all rounds. `None` without any.
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        assert!(values.iter().all(|value| value.is_finite()), "figures are numbers");
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (least, most) = (*sorted.first()?, *sorted.last()?);
        let mut random = Xoshiro256PlusPlus::seed_from_u64(SEED);
        let mut sample = sorted.clone();
        let mut medians: Vec<f64> = (0..RESAMPLES)
            .map(|_| {
                sample.fill_with(|| sorted[random.random_range(0..sorted.len())]);
                sample.sort_by(f64::total_cmp);
                median(&sample)
            })
            .collect();
        medians.sort_by(f64::total_cmp);
        let tail = ((1.0 - CONFIDENCE) / 2.0 * RESAMPLES as f64) as usize;
        let (low, high) = (medians[tail], medians[RESAMPLES - 1 - tail]);
        let summary =
            Self { rounds: values.len(), median: median(&sorted), least, most, low, high };
        assert!(least <= low && low <= high && high <= most, "an interval within the range");
        Some(summary)
    }
}

/// The median of sorted values.
fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        0 => (sorted[middle - 1] + sorted[middle]) / 2.0,
        _ => sorted[middle],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ranges() {
        let odd = Summary::of(&[5.0, 1.0, 3.0]).expect("values");
        assert_eq!((odd.rounds, odd.median, odd.least, odd.most), (3, 3.0, 1.0, 5.0));
        assert_eq!(Summary::of(&[4.0, 1.0]).expect("values").median, 2.5);
        assert_eq!(Summary::of(&[]), None);
        let confidence = |count: usize| Summary::of(&vec![1.0; count]).map(|it| it.confidence());
        let expected = [0.0, 0.5, 0.75, 0.875, 0.9375, 0.95, 0.95].map(Some);
        assert_eq!([1, 2, 3, 4, 5, 6, 9].map(confidence), expected);
    }

    /// Of nine values the median of a sample is at least the k-th value with the probability that
    /// at most four of nine draws are below it. P(median <= 2nd) = 0.028 and P(median <= 1st) =
    /// 0.0014, so the lower end, at 0.025, is the second value.
    #[test]
    fn the_interval_is_that_of_the_binomial_distribution() {
        let values: Vec<f64> = (1..=9).map(f64::from).collect();
        let summary = Summary::of(&values).expect("values");
        assert_eq!((summary.low, summary.median, summary.high), (2.0, 5.0, 8.0));
        let again = Summary::of(&values.iter().rev().copied().collect::<Vec<_>>());
        assert_eq!(again, Some(summary), "the seed is fixed");
    }
}

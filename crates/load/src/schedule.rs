//! Intended send times of the requests of an open loop.
//!
//! Upstream:   `options` gives the rate of one thread and the kind of arrivals.
//! Downstream: a source hands a request out at or after its intended time. The response time always
//!             counts from the intended time.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  Times never go backward, and a late server does not remove any time.
//! - I2  The schedule depends only on rate, seed and start.

use clap::ValueEnum;
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::Serialize;

use crate::random::unit;

/// Distribution of the times between requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Arrivals {
    /// Exponential, as from many independent users.
    Poisson,
    /// Constant.
    Fixed,
}

/// The intended send times of one thread's requests.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    next_ns: f64,
    interval_ns: f64,
    arrivals: Arrivals,
    random: Xoshiro256PlusPlus,
}

impl Schedule {
    /// A schedule of `rate` requests a second that begins at `start_ns`.
    ///
    /// Panics: if the rate is not positive; `options` refuses such rates.
    pub(crate) fn new(rate: f64, arrivals: Arrivals, start_ns: u64, seed: u64) -> Self {
        assert!(rate > 0.0 && rate.is_finite(), "I1: a rate is positive");
        let mut schedule = Self {
            next_ns: start_ns as f64,
            interval_ns: 1e9 / rate,
            arrivals,
            random: Xoshiro256PlusPlus::seed_from_u64(seed ^ 0x7363_6865_6475_6c65),
        };
        // A random phase, so that the threads of a run do not send at the same moments.
        schedule.next_ns += schedule.interval_ns * unit(schedule.random.next_u64());
        schedule
    }

    /// The intended time of the next request, in ns.
    #[inline]
    pub(crate) fn next_ns(&self) -> u64 {
        self.next_ns as u64
    }

    /// Advances to the next request.
    #[inline]
    pub(crate) fn advance(&mut self) {
        let factor = match self.arrivals {
            Arrivals::Fixed => 1.0,
            Arrivals::Poisson => -(1.0 - unit(self.random.next_u64())).ln(),
        };
        debug_assert!(factor >= 0.0, "I1");
        self.next_ns += self.interval_ns * factor;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(arrivals: Arrivals, count: usize) -> Vec<u64> {
        let mut schedule = Schedule::new(10_000.0, arrivals, 5_000_000, 3);
        (0..count)
            .map(|_| {
                let time = schedule.next_ns();
                schedule.advance();
                time
            })
            .collect()
    }

    #[test]
    fn fixed_times_are_one_interval_apart() {
        let times = times(Arrivals::Fixed, 1_000);
        assert!(times[0] >= 5_000_000 && times[0] < 5_100_000);
        for pair in times.windows(2) {
            assert!((99_999..=100_001).contains(&(pair[1] - pair[0])), "I1");
        }
    }

    #[test]
    fn poisson_times_have_the_rate_and_the_spread_of_the_exponential() {
        let times = times(Arrivals::Poisson, 100_001);
        let gaps: Vec<f64> = times.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean / 100_000.0 - 1.0).abs() < 0.02, "{mean}");
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.03, "{variance}");
    }

    #[test]
    fn the_same_seed_gives_the_same_times() {
        assert_eq!(times(Arrivals::Poisson, 50), times(Arrivals::Poisson, 50), "I2");
    }
}

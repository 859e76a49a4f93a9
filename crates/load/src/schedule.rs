//! Intended send times of the requests of an open loop.
//!
//! Upstream:   `options` gives the rate of one thread and the kind of arrivals.
//! Downstream: a source hands a request out at or after its intended time. The response time always
//!             counts from the intended time.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  Times never go backward, and a late server does not remove any time.
//! - I2  The schedule depends only on rate, seed and start.

use std::str::FromStr;

use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::Serialize;

use crate::distribution::Law;
use crate::random::unit;

/// Distribution of the times between requests.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Arrivals {
    /// Exponential, as from many independent users.
    Poisson,
    /// Constant.
    Fixed,
    /// Any other distribution, scaled so that its mean is that of the rate.
    Drawn(Scaled),
}

/// A distribution, and the mean to divide its draws by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scaled {
    law: Law,
    mean: f64,
}

impl FromStr for Arrivals {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let law = match text {
            "poisson" | "exponential" => return Ok(Self::Poisson),
            "fixed" | "constant" => return Ok(Self::Fixed),
            "uniform" => Law::Uniform(0.0, 2.0),
            _ => text.parse::<Law>()?,
        };
        let mean = law.mean();
        match law {
            _ if mean <= 0.0 => Err(format!("'{text}' has a mean of 0, so it gives no rate")),
            Law::Fixed(_) => Ok(Self::Fixed),
            Law::Exponential(_) => Ok(Self::Poisson),
            _ => Ok(Self::Drawn(Scaled { law, mean })),
        }
    }
}

impl Serialize for Scaled {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.law)
    }
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

    /// About how many requests are due before this time, in ns.
    pub(crate) fn count_until(&self, until_ns: u64) -> u64 {
        // A float below 0 becomes 0.
        ((until_ns as f64 - self.next_ns) / self.interval_ns) as u64
    }

    /// Advances by this number of requests; all but one of them are one mean interval apart.
    pub(crate) fn advance_by(&mut self, count: u64) {
        assert!(count > 0, "I1: it advances");
        self.next_ns += self.interval_ns * (count - 1) as f64;
        self.advance();
    }

    /// Advances to the next request.
    #[inline]
    pub(crate) fn advance(&mut self) {
        let factor = match self.arrivals {
            Arrivals::Fixed => 1.0,
            Arrivals::Poisson => -(1.0 - unit(self.random.next_u64())).ln(),
            Arrivals::Drawn(Scaled { law, mean }) => law.draw(&mut self.random) / mean,
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
    fn every_distribution_keeps_the_rate() {
        for text in [
            "uniform",
            "uniform:10,30",
            "normal:1,0.3",
            "normal:1,1",
            "gpareto:16.0292,0.154971",
            "gev:30.7984,8.20449,0.078688",
            "gev:0,1,0.1",
            "fb_value",
        ] {
            let arrivals: Arrivals = text.parse().expect("a distribution");
            assert!(matches!(arrivals, Arrivals::Drawn(_)), "{text}");
            let times = times(arrivals, 100_001);
            let mean = (times[100_000] - times[0]) as f64 / 100_000.0;
            assert!((mean / 100_000.0 - 1.0).abs() < 0.01, "{text}: {mean}");
            assert!(times.is_sorted(), "I1: {text}");
        }
        for (text, arrivals) in [
            ("poisson", Arrivals::Poisson),
            ("exponential:3", Arrivals::Poisson),
            ("constant", Arrivals::Fixed),
            ("7", Arrivals::Fixed),
        ] {
            assert_eq!(text.parse(), Ok(arrivals));
        }
        assert!("0".parse::<Arrivals>().is_err() && "weibull".parse::<Arrivals>().is_err());
    }

    #[test]
    fn an_advance_by_several_keeps_the_rate() {
        let mut schedule = Schedule::new(10_000.0, Arrivals::Fixed, 0, 3);
        let first_ns = schedule.next_ns();
        assert_eq!(schedule.count_until(100_000_000), 999);
        schedule.advance_by(1_000);
        assert!(schedule.next_ns().abs_diff(first_ns + 100_000_000) <= 1, "I1");
        assert_eq!(schedule.count_until(100_000_000), 0);
    }

    #[test]
    fn the_same_seed_gives_the_same_times() {
        assert_eq!(times(Arrivals::Poisson, 50), times(Arrivals::Poisson, 50), "I2");
    }
}

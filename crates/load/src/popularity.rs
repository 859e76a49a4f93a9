//! Chooses the key of the next request.
//!
//! Upstream:   `steady` calls once for every key of every request.
//! Downstream: `keys` formats the drawn number.
//!
//! ```text
//! uniform                every key with the same chance
//! zipf:THETA             rank r in proportion to r^-THETA, for any THETA; ranks are scattered
//! scrambled[:THETA]      YCSB's scrambled Zipf: a rank of 10,000,000,000 items, hashed
//! latest[:THETA]         YCSB's latest: rank r is the r-th newest key
//! hotspot:KEYS,REQUESTS  this share of the requests goes to that share of the keys (YCSB)
//! sequential             each thread all keys, one after the other
//! ```
//!
//! Zipf ranks are drawn in constant time, without a table, by rejection (`rand_distr::Zipf`), then
//! scattered by a bijection, so that popular keys are not neighbors in the order of preloading.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  Every number drawn is below the count.
//! - I2  Scattering is a bijection: `multiplier` and `count` have no common divisor.

use std::str::FromStr;

use rand::Rng;
use rand_distr::{Distribution, Zipf};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::Serialize;

use crate::random::{below, unit};
use crate::zipf::{YCSB_SCRAMBLED_ITEMS, YCSB_THETA, YcsbZipf, ycsb_hash};

/// The kind of a distribution of keys, as the option names it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Choice {
    /// Uniform.
    Uniform,
    /// Zipf with this exponent.
    Zipf(f64),
    /// YCSB's scrambled Zipf with this exponent.
    Scrambled(f64),
    /// YCSB's latest with this exponent.
    Latest(f64),
    /// Share of the keys, and share of the requests that go to them.
    Hotspot(f64, f64),
    /// In the order of their numbers.
    Sequential,
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, list) = text.split_once(':').unwrap_or((text, ""));
        let wrong = || {
            format!(
                "'{text}' is no distribution of keys; there are uniform, zipf:THETA, \
                 scrambled[:THETA], latest[:THETA], hotspot:KEYS,REQUESTS and sequential"
            )
        };
        let parts = list.split(',').filter(|part| !part.is_empty());
        let numbers: Option<Vec<f64>> = parts.map(|part| part.trim().parse().ok()).collect();
        let choice = match (name, &numbers.ok_or_else(wrong)?[..]) {
            ("uniform", []) => Self::Uniform,
            ("zipf", &[theta]) => Self::Zipf(theta),
            ("scrambled", []) => Self::Scrambled(YCSB_THETA),
            ("scrambled", &[theta]) => Self::Scrambled(theta),
            ("latest", []) => Self::Latest(YCSB_THETA),
            ("latest", &[theta]) => Self::Latest(theta),
            ("hotspot", &[keys, requests]) => Self::Hotspot(keys, requests),
            ("sequential", []) => Self::Sequential,
            _ => return Err(wrong()),
        };
        match choice {
            Self::Zipf(theta) if !theta.is_finite() || theta < 0.0 => {
                Err(format!("the exponent of zipf must be at least 0, not {theta}"))
            }
            Self::Scrambled(theta) | Self::Latest(theta) if !(theta > 0.0 && theta < 1.0) => {
                Err(format!(
                    "the exponent of {name} must be above 0 and below 1, not {theta}; zipf:THETA \
                     takes any"
                ))
            }
            Self::Hotspot(keys, requests)
                if !(keys > 0.0 && keys < 1.0 && (0.0..=1.0).contains(&requests)) =>
            {
                Err(format!("hotspot needs two shares, for example 0.2,0.8, not {keys},{requests}"))
            }
            choice => Ok(choice),
        }
    }
}

/// Distribution of the keys of requests.
#[derive(Clone, Debug)]
pub(crate) struct Popularity {
    count: u64,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Uniform,
    Zipf {
        /// The ranks, from 1.
        ranks: Zipf<f64>,
        /// Scatters the ranks over the numbers (I2).
        multiplier: u64,
    },
    Scrambled(YcsbZipf),
    Latest(YcsbZipf),
    Hotspot {
        /// Keys that are hot, from number 0 on.
        hot: u64,
        /// Their share of the requests.
        share: f64,
    },
    Sequential {
        next: u64,
    },
}

impl Popularity {
    /// The distribution over this many keys.
    ///
    /// Errors: the exponent does not go with the count, as a message for the user.
    pub(crate) fn new(count: u64, choice: Choice) -> Result<Self, String> {
        assert!(count > 0, "I1: there is at least one key");
        let kind = match choice {
            Choice::Uniform => Kind::Uniform,
            Choice::Zipf(theta) => {
                let ranks = Zipf::new(count as f64, theta)
                    .map_err(|error| format!("zipf:{theta} with {count} keys: {error}"))?;
                // Near the golden section of the count, so that neighboring ranks are far apart.
                let mut multiplier = ((count as f64 * 0.618_034) as u64).max(1);
                while common_divisor(multiplier, count) != 1 {
                    multiplier += 1;
                }
                Kind::Zipf { ranks, multiplier }
            }
            Choice::Scrambled(theta) => Kind::Scrambled(YcsbZipf::new(YCSB_SCRAMBLED_ITEMS, theta)),
            Choice::Latest(theta) => Kind::Latest(YcsbZipf::new(count, theta)),
            Choice::Hotspot(keys, share) => {
                Kind::Hotspot { hot: ((count as f64 * keys) as u64).clamp(1, count), share }
            }
            Choice::Sequential => Kind::Sequential { next: 0 },
        };
        Ok(Self { count, kind })
    }

    /// Begins a sequence at this share of the keys, so that threads do not walk side by side.
    pub(crate) fn begin_at(&mut self, index: u64, threads: u64) {
        assert!(index < threads, "I1");
        if let Kind::Sequential { next } = &mut self.kind {
            *next = (u128::from(self.count) * u128::from(index) / u128::from(threads)) as u64;
        }
    }

    /// Lets the newest keys count, up to this number of keys.
    #[inline]
    pub(crate) fn grow(&mut self, count: u64) {
        if let Kind::Latest(zipf) = &mut self.kind
            && count > self.count
        {
            zipf.grow(count);
            self.count = count;
        }
    }

    /// Draws a key number (I1).
    #[inline]
    pub(crate) fn draw(&mut self, random: &mut Xoshiro256PlusPlus) -> u64 {
        let count = self.count;
        match &mut self.kind {
            Kind::Uniform => below(random.next_u64(), count),
            Kind::Zipf { ranks, multiplier } => {
                let rank = (ranks.sample(random) as u64 - 1).min(count - 1);
                let product = u128::from(rank) * u128::from(*multiplier);
                match u64::try_from(product) {
                    Ok(product) => product % count,
                    Err(_) => (product % u128::from(count)) as u64,
                }
            }
            Kind::Scrambled(zipf) => ycsb_hash(zipf.rank(unit(random.next_u64()))) % count,
            Kind::Latest(zipf) => count - 1 - zipf.rank(unit(random.next_u64())),
            Kind::Hotspot { hot, share } => {
                let is_hot = unit(random.next_u64()) < *share || *hot == count;
                let number = random.next_u64();
                if is_hot { below(number, *hot) } else { *hot + below(number, count - *hot) }
            }
            Kind::Sequential { next } => {
                let number = *next;
                *next = if number + 1 == count { 0 } else { number + 1 };
                number
            }
        }
    }
}

fn common_divisor(left: u64, right: u64) -> u64 {
    if right == 0 { left } else { common_divisor(right, left % right) }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    fn popularity(count: u64, text: &str) -> Popularity {
        Popularity::new(count, text.parse().expect("a distribution")).expect("valid")
    }

    /// The share of each key among the draws, by number.
    fn shares(text: &str, count: u64, draws: usize) -> Vec<f64> {
        let mut popularity = popularity(count, text);
        let mut random = Xoshiro256PlusPlus::seed_from_u64(7);
        let mut seen = vec![0u64; count as usize];
        for _ in 0..draws {
            seen[popularity.draw(&mut random) as usize] += 1;
        }
        seen.into_iter().map(|times| times as f64 / draws as f64).collect()
    }

    /// The same, the most popular key first.
    fn ranked(text: &str, count: u64, draws: usize) -> Vec<f64> {
        let mut shares = shares(text, count, draws);
        shares.sort_unstable_by(|left, right| right.total_cmp(left));
        shares
    }

    #[test]
    fn uniform_keys_are_about_equally_often_drawn() {
        let shares = ranked("uniform", 100, 200_000);
        assert!(shares[0] < 0.012 && shares[99] > 0.008, "{shares:?}");
    }

    #[test]
    fn zipf_shares_follow_the_law() {
        for (text, theta) in [("zipf:0.99", 0.99), ("zipf:1.4", 1.4), ("zipf:1", 1.0)] {
            let shares = ranked(text, 1_000, 400_000);
            let harmonic: f64 = (1..=1_000).map(|rank| f64::from(rank).powf(-theta)).sum();
            for rank in [1usize, 2, 5, 10] {
                let expected = (rank as f64).powf(-theta) / harmonic;
                let got = shares[rank - 1];
                assert!(
                    (got / expected - 1.0).abs() < 0.06,
                    "{text}, rank {rank}: {got} instead of {expected}"
                );
            }
        }
    }

    #[test]
    fn the_newest_keys_are_the_most_popular_with_latest() {
        let shares = shares("latest", 1_000, 400_000);
        let harmonic: f64 = (1..=1_000).map(|rank| f64::from(rank).powf(-0.99)).sum();
        for age in [0_usize, 1] {
            let expected = (age as f64 + 1.0).powf(-0.99) / harmonic;
            let got = shares[999 - age];
            assert!((got / expected - 1.0).abs() < 0.05, "{age}: {got} instead of {expected}");
        }
        let newest: f64 = shares[900..].iter().sum();
        assert!((0.6..0.75).contains(&newest), "{newest}");
    }

    #[test]
    fn latest_follows_the_keys_that_are_inserted() {
        let mut latest = popularity(1_000, "latest");
        latest.grow(1_500);
        let mut random = Xoshiro256PlusPlus::seed_from_u64(7);
        let newest = (0..10_000).filter(|_| latest.draw(&mut random) == 1_499).count();
        // 1 / zeta(1500, 0.99) of the draws.
        assert!((1_150..1_350).contains(&newest), "{newest}");
        let mut uniform = popularity(1_000, "uniform");
        uniform.grow(1_500);
        assert!((0..10_000).all(|_| uniform.draw(&mut random) < 1_000));
    }

    #[test]
    fn scrambled_keys_have_the_shares_of_ycsbs_ranks() {
        let count = 1_000;
        let shares = shares("scrambled", count, 400_000);
        // Rank 0 of 10,000,000,000 items, 1 / zeta of the requests, hashes to this key.
        let first = (0xa8c7_f832_281a_39c5_u64.wrapping_neg() % count) as usize;
        let expected = 1.0 / 26.469_028_201_783_02;
        // Other ranks hash to the same key: about a thousandth of all.
        let got = shares[first];
        assert!((0.0..0.004).contains(&(got - expected)), "{got} instead of {expected}");
        assert!(shares.iter().all(|&share| share > 0.0), "the tail covers all keys");
    }

    #[test]
    fn a_hot_spot_has_its_share_of_the_requests() {
        let shares = shares("hotspot:0.2,0.8", 1_000, 200_000);
        let hot: f64 = shares[..200].iter().sum();
        assert!((0.79..0.81).contains(&hot), "{hot}");
        assert!(shares[200..].iter().all(|&share| share > 0.0));
    }

    #[test]
    fn a_sequence_has_all_keys_in_order_and_threads_begin_apart() {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
        let mut sequence = popularity(5, "sequential");
        sequence.begin_at(1, 2);
        let numbers: Vec<u64> = (0..7).map(|_| sequence.draw(&mut random)).collect();
        assert_eq!(numbers, [2, 3, 4, 0, 1, 2, 3]);
    }

    #[test]
    fn popular_keys_are_scattered_and_none_is_lost() {
        let popularity = popularity(1_000, "zipf:0.5");
        let Kind::Zipf { multiplier, .. } = popularity.kind else { unreachable!("theta given") };
        assert!(multiplier > 100, "{multiplier}");
        assert!(shares("zipf:0.5", 1_000, 200_000).iter().all(|&share| share > 0.0), "I2");
    }

    #[test]
    fn one_key_is_enough() {
        for text in [
            "uniform",
            "zipf:0",
            "zipf:0.99",
            "zipf:1",
            "zipf:1.5",
            "scrambled",
            "latest",
            "hotspot:0.2,0.8",
            "sequential",
        ] {
            assert_eq!(shares(text, 1, 10), [1.0], "I1: {text}");
        }
    }

    #[test]
    fn distributions_of_keys_are_read_and_refused() {
        assert_eq!("scrambled".parse(), Ok(Choice::Scrambled(0.99)));
        assert_eq!("latest:0.5".parse(), Ok(Choice::Latest(0.5)));
        for text in [
            "",
            "zipf",
            "zipf:-1",
            "zipf:NaN",
            "zipf:1,2",
            "scrambled:1",
            "latest:0",
            "uniform:1",
            "hotspot:0,1",
            "hotspot:0.2",
            "hotspot:0.2,1.1",
            "random",
        ] {
            let error = text.parse::<Choice>().expect_err("refused");
            assert!(!error.is_empty(), "{text}");
        }
    }
}

//! Chooses the key of the next request.
//!
//! Upstream:   `steady` calls once for every key of every request.
//! Downstream: `keys` formats the drawn number.
//!
//! Zipf ranks are drawn in constant time, without a table, by rejection (`rand_distr::Zipf`), then
//! scattered by a bijection, so that popular keys are not neighbors in the order of preloading.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  Every number drawn is below the count.
//! - I2  Scattering is a bijection: `multiplier` and `count` have no common divisor.

use rand::Rng;
use rand_distr::{Distribution, Zipf};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::random::below;

/// Distribution of the keys of requests.
#[derive(Clone, Debug)]
pub(crate) enum Popularity {
    /// Uniform.
    Uniform {
        /// The number of keys.
        count: u64,
    },
    /// Zipf: the key of rank r is requested in proportion to r to the power of -theta.
    Zipf {
        /// The number of keys.
        count: u64,
        /// The ranks, from 1.
        ranks: Zipf<f64>,
        /// Scatters the ranks over the numbers (I2).
        multiplier: u64,
    },
}

impl Popularity {
    /// Uniform, or Zipf when `theta` is given.
    ///
    /// Errors: `theta` is negative or not a number.
    pub(crate) fn new(count: u64, theta: Option<f64>) -> Result<Self, String> {
        assert!(count > 0, "I1: there is at least one key");
        let Some(theta) = theta else {
            return Ok(Self::Uniform { count });
        };
        if !theta.is_finite() || theta < 0.0 {
            return Err("--zipf must be a number of at least 0".into());
        }
        let ranks = Zipf::new(count as f64, theta)
            .map_err(|error| format!("--zipf {theta} with {count} keys: {error}"))?;
        // Near the golden section of the count, so that neighboring ranks are far apart.
        let mut multiplier = ((count as f64 * 0.618_034) as u64).max(1);
        while common_divisor(multiplier, count) != 1 {
            multiplier += 1;
        }
        Ok(Self::Zipf { count, ranks, multiplier })
    }

    /// Draws a key number (I1).
    #[inline]
    pub(crate) fn draw(&self, random: &mut Xoshiro256PlusPlus) -> u64 {
        match self {
            Self::Uniform { count } => below(random.next_u64(), *count),
            Self::Zipf { count, ranks, multiplier } => {
                let rank = (ranks.sample(random) as u64 - 1).min(count - 1);
                let product = u128::from(rank) * u128::from(*multiplier);
                match u64::try_from(product) {
                    Ok(product) => product % count,
                    Err(_) => (product % u128::from(*count)) as u64,
                }
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

    fn shares(popularity: &Popularity, count: usize, draws: usize) -> Vec<f64> {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(7);
        let mut seen = vec![0u64; count];
        for _ in 0..draws {
            seen[popularity.draw(&mut random) as usize] += 1;
        }
        seen.sort_unstable_by(|left, right| right.cmp(left));
        seen.into_iter().map(|times| times as f64 / draws as f64).collect()
    }

    #[test]
    fn uniform_keys_are_about_equally_often_drawn() {
        let shares = shares(&Popularity::new(100, None).expect("valid"), 100, 200_000);
        assert!(shares[0] < 0.012 && shares[99] > 0.008, "{shares:?}");
    }

    #[test]
    fn zipf_shares_follow_the_law() {
        let shares = shares(&Popularity::new(1_000, Some(0.99)).expect("valid"), 1_000, 400_000);
        let harmonic: f64 = (1..=1_000).map(|rank| f64::from(rank).powf(-0.99)).sum();
        for rank in [1usize, 2, 5, 10] {
            let expected = (rank as f64).powf(-0.99) / harmonic;
            let got = shares[rank - 1];
            assert!(
                (got / expected - 1.0).abs() < 0.06,
                "rank {rank}: {got} instead of {expected}"
            );
        }
    }

    #[test]
    fn popular_keys_are_scattered_and_none_is_lost() {
        let popularity = Popularity::new(1_000, Some(0.5)).expect("valid");
        let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
        let mut seen = vec![false; 1_000];
        for _ in 0..200_000 {
            seen[popularity.draw(&mut random) as usize] = true;
        }
        assert!(seen.iter().all(|&seen| seen), "I2");
        let Popularity::Zipf { multiplier, .. } = popularity else { unreachable!("theta given") };
        assert!(multiplier > 100, "{multiplier}");
    }

    #[test]
    fn one_key_is_enough() {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
        for theta in [None, Some(0.0), Some(0.99), Some(1.0), Some(1.5)] {
            assert_eq!(Popularity::new(1, theta).expect("valid").draw(&mut random), 0);
        }
        assert!(Popularity::new(1, Some(-1.0)).is_err());
        assert!(Popularity::new(1, Some(f64::NAN)).is_err());
    }
}

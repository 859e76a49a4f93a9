//! Distributions of times between requests and of the sizes of keys and values.
//!
//! Upstream:   `options` parses one syntax for all of them.
//! Downstream: `schedule` draws times, `keys` draws sizes.
//!
//! ```text
//! [fixed:]V   uniform:[LOW,]HIGH   normal:MEAN,SD   exponential:LAMBDA
//! gpareto:[LOCATION,]SCALE,SHAPE  gev:LOCATION,SCALE,SHAPE
//! fb_key  fb_value  fb_ia
//! ```
//! The names are those of mutilate (Leverich and Kozyrakis, EuroSys 2014). The `fb_` names stand
//! for the distributions that Atikoglu et al. (SIGMETRICS 2012) fitted to Facebook's ETC pool.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  Every distribution has a finite mean.
//! - I2  No draw is negative: a negative one counts as 0, and the mean is that of such draws.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use rand::Rng;
use rand_distr::{Distribution, Exp1, StandardNormal};

use crate::random::unit;

/// Cells of the numerical integral of a mean.
const MEAN_CELLS: u32 = 100_000;
/// The integral is taken over s in `1 - s^MEAN_POWER`, so that a heavy tail becomes smooth.
const MEAN_POWER: i32 = 16;

/// Scale and shape of the values of ETC that are longer than 14 bytes.
pub(crate) const ETC_SCALE: f64 = 214.476;
/// See `ETC_SCALE`.
pub(crate) const ETC_SHAPE: f64 = 0.348_238;

/// The shares of the values of ETC with 0 to 14 bytes.
const ETC_SHORT: [f64; 15] = [
    0.005_36, 0.000_47, 0.178_20, 0.092_39, 0.000_18, 0.027_40, 0.000_65, 0.006_06, 0.000_23,
    0.008_37, 0.008_37, 0.089_89, 0.000_92, 0.003_26, 0.019_80,
];

/// A distribution of numbers of at least 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Law {
    /// Always this number.
    Fixed(f64),
    /// Uniform between both.
    Uniform(f64, f64),
    /// Mean and standard deviation.
    Normal(f64, f64),
    /// The rate, which is 1 divided by the mean.
    Exponential(f64),
    /// Generalized Pareto: location, scale, shape.
    Pareto(f64, f64, f64),
    /// Generalized extreme value: location, scale, shape.
    Extreme(f64, f64, f64),
    /// Sizes of the values of Facebook's ETC pool.
    EtcValue,
}

impl Law {
    /// Draws a number (I2).
    #[inline]
    pub(crate) fn draw(&self, random: &mut impl Rng) -> f64 {
        let drawn = match *self {
            Self::Fixed(number) => number,
            Self::Uniform(low, high) => low + (high - low) * unit(random.next_u64()),
            Self::Normal(mean, deviation) => {
                let normal: f64 = StandardNormal.sample(random);
                mean + deviation * normal
            }
            Self::Exponential(rate) => {
                let drawn: f64 = Exp1.sample(random);
                drawn / rate
            }
            Self::Pareto(location, scale, shape) => {
                location + scale * pareto(1.0 - unit(random.next_u64()), shape)
            }
            Self::Extreme(location, scale, shape) => {
                // Never 0, whose logarithm is not finite.
                let below = 1.0 - unit(random.next_u64());
                location + scale * extreme(-below.ln(), shape)
            }
            Self::EtcValue => etc_value(unit(random.next_u64())),
        };
        debug_assert!(!drawn.is_nan(), "I1");
        drawn.max(0.0)
    }

    /// The mean of the draws.
    ///
    /// Cost: for a generalized extreme value distribution an integral, below 10 ms; else none.
    pub(crate) fn mean(&self) -> f64 {
        let mean = self.unchecked_mean();
        assert!(mean.is_finite() && mean >= 0.0, "I1");
        mean
    }

    fn unchecked_mean(&self) -> f64 {
        match *self {
            Self::Fixed(number) => number,
            Self::Uniform(low, high) => f64::midpoint(low, high),
            Self::Normal(mean, deviation) if deviation > 0.0 => {
                let standard = mean / deviation;
                let density = (-standard * standard / 2.0).exp() / std::f64::consts::TAU.sqrt();
                mean * normal_share(standard) + deviation * density // I2
            }
            Self::Normal(mean, _) => mean,
            Self::Exponential(rate) => 1.0 / rate,
            Self::Pareto(location, scale, shape) => location + scale / (1.0 - shape),
            Self::Extreme(location, scale, shape) => extreme_mean(location, scale, shape),
            Self::EtcValue => {
                let bytes = 0..ETC_SHORT.len();
                let short: f64 =
                    bytes.zip(ETC_SHORT).map(|(bytes, share)| bytes as f64 * share).sum();
                let rest = 1.0 - ETC_SHORT.iter().sum::<f64>();
                short + rest * ETC_SCALE / (1.0 - ETC_SHAPE)
            }
        }
    }

    /// Errors: a parameter outside of its range, as a message for the user (I1, I2).
    fn check(self) -> Result<Self, String> {
        let spread = |name: &str, number: f64, is_valid: bool| match is_valid {
            true => Ok(()),
            false => Err(format!("{name} must not be {number}")),
        };
        match self {
            Self::Fixed(number) => spread("a fixed number", number, number >= 0.0)?,
            Self::Uniform(low, high) => {
                spread("the lower end", low, low >= 0.0)?;
                spread("the upper end", high, high > low)?;
            }
            Self::Normal(mean, deviation) => {
                spread("the mean", mean, mean > 0.0)?;
                spread("the standard deviation", deviation, deviation >= 0.0)?;
            }
            Self::Exponential(rate) => spread("lambda", rate, rate > 0.0)?,
            Self::Pareto(location, scale, shape) => {
                spread("the location", location, location >= 0.0)?;
                spread("the scale", scale, scale > 0.0)?;
                // From 1 on, the mean is infinite.
                spread("the shape", shape, (-10.0..0.95).contains(&shape))?;
            }
            Self::Extreme(_, scale, shape) => {
                spread("the scale", scale, scale > 0.0)?;
                spread("the shape", shape, (-10.0..0.95).contains(&shape))?;
            }
            Self::EtcValue => {}
        }
        let mean = self.unchecked_mean();
        spread("the mean", mean, mean.is_finite() && mean >= 0.0)?;
        Ok(self)
    }
}

/// A shape nearer to 0 than this counts as 0, the limit of both distributions: `x^-shape - 1` would
/// round to 0 and the draws with it. At this shape both forms differ by less
/// than a millionth.
const SHAPE_MIN: f64 = 1e-9;

/// The quantile of the standard generalized Pareto distribution, for the share `above` of larger
/// numbers.
#[inline]
fn pareto(above: f64, shape: f64) -> f64 {
    debug_assert!(above > 0.0 && above <= 1.0, "I1");
    match shape.abs() < SHAPE_MIN {
        true => -above.ln(),
        false => (above.powf(-shape) - 1.0) / shape,
    }
}

/// The quantile of the standard generalized extreme value distribution, for the negative logarithm
/// of the share of smaller numbers.
#[inline]
fn extreme(negative_log: f64, shape: f64) -> f64 {
    // A share of 1 would be infinite.
    let negative_log = negative_log.max(f64::EPSILON);
    match shape.abs() < SHAPE_MIN {
        true => -negative_log.ln(),
        false => (negative_log.powf(-shape) - 1.0) / shape,
    }
}

fn extreme_mean(location: f64, scale: f64, shape: f64) -> f64 {
    let cell = 1.0 / f64::from(MEAN_CELLS);
    let sum: f64 = (0..MEAN_CELLS)
        .map(|index| {
            let root = (f64::from(index) + 0.5) * cell;
            let above = root.powi(MEAN_POWER);
            let number = location + scale * extreme(-(-above).ln_1p(), shape);
            number.max(0.0) * f64::from(MEAN_POWER) * root.powi(MEAN_POWER - 1) // I2
        })
        .sum();
    sum * cell
}

/// The size of a value of ETC: short sizes by their shares, others by a generalized Pareto
/// distribution.
#[inline]
fn etc_value(mut rest: f64) -> f64 {
    let mut left = 1.0;
    for (bytes, share) in ETC_SHORT.into_iter().enumerate() {
        if rest < share {
            return bytes as f64;
        }
        rest -= share;
        left -= share;
    }
    ETC_SCALE * pareto(1.0 - (rest / left).clamp(0.0, 1.0 - f64::EPSILON), ETC_SHAPE)
}

/// The share of the standard normal distribution below a number.
fn normal_share(standard: f64) -> f64 {
    libm::erfc(-standard / std::f64::consts::SQRT_2) / 2.0
}

impl FromStr for Law {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, list) = text.split_once(':').unwrap_or(("fixed", text));
        match text {
            "fb_key" => return Ok(Self::Extreme(30.7984, 8.20449, 0.078_688)),
            "fb_value" => return Ok(Self::EtcValue),
            "fb_ia" => return Ok(Self::Pareto(0.0, 16.0292, 0.154_971)),
            _ => {}
        }
        let wrong = || {
            format!(
                "'{text}' is not a distribution; examples are 32, uniform:10,1000, normal:100,10, \
                 exponential:0.01, gpareto:0,214.476,0.348238, gev:30.8,8.2,0.079, fb_key and \
                 fb_value"
            )
        };
        let numbers: Option<Vec<f64>> = list
            .split(',')
            .map(|part| part.trim().parse().ok().filter(|number: &f64| number.is_finite()))
            .collect();
        let law = match (name, &numbers.ok_or_else(wrong)?[..]) {
            ("fixed" | "constant", &[number]) => Self::Fixed(number),
            ("uniform", &[high]) => Self::Uniform(0.0, high),
            ("uniform", &[low, high]) => Self::Uniform(low, high),
            ("normal", &[mean, deviation]) => Self::Normal(mean, deviation),
            ("exponential", &[rate]) => Self::Exponential(rate),
            ("gpareto" | "pareto", &[scale, shape]) => Self::Pareto(0.0, scale, shape),
            ("gpareto" | "pareto", &[location, scale, shape]) => {
                Self::Pareto(location, scale, shape)
            }
            ("gev", &[location, scale, shape]) => Self::Extreme(location, scale, shape),
            _ => return Err(wrong()),
        };
        law.check().map_err(|words| format!("'{text}': {words}"))
    }
}

impl Display for Law {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(number) => write!(f, "fixed:{number}"),
            Self::Uniform(low, high) => write!(f, "uniform:{low},{high}"),
            Self::Normal(mean, deviation) => write!(f, "normal:{mean},{deviation}"),
            Self::Exponential(rate) => write!(f, "exponential:{rate}"),
            Self::Pareto(location, scale, shape) => write!(f, "gpareto:{location},{scale},{shape}"),
            Self::Extreme(location, scale, shape) => write!(f, "gev:{location},{scale},{shape}"),
            Self::EtcValue => f.write_str("fb_value"),
        }
    }
}

impl serde::Serialize for Law {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_xoshiro::Xoshiro256PlusPlus;

    use super::*;

    const DRAWS: usize = 20_000;

    fn law(text: &str) -> Law {
        text.parse().expect("a distribution")
    }

    fn draws(law: Law, seed: u64) -> Vec<f64> {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        (0..DRAWS).map(|_| law.draw(&mut random)).collect()
    }

    /// The share of a distribution below or at a number, independently of how it is drawn.
    fn share(law: Law, number: f64) -> f64 {
        let share = match law {
            Law::Uniform(low, high) => (number - low) / (high - low),
            Law::Normal(mean, deviation) => normal_share((number - mean) / deviation),
            Law::Exponential(rate) => -(-rate * number).exp_m1(),
            Law::Pareto(location, scale, shape) if shape.abs() < SHAPE_MIN => {
                -(-(number - location) / scale).exp_m1()
            }
            Law::Pareto(location, scale, shape) => {
                1.0 - (1.0 + shape * (number - location) / scale).powf(-1.0 / shape)
            }
            Law::Extreme(location, scale, shape) if shape.abs() < SHAPE_MIN => {
                (-(-(number - location) / scale).exp()).exp()
            }
            Law::Extreme(location, scale, shape) => {
                (-(1.0 + shape * (number - location) / scale).powf(-1.0 / shape)).exp()
            }
            Law::Fixed(_) | Law::EtcValue => unreachable!("not continuous"),
        };
        share.clamp(0.0, 1.0)
    }

    /// The greatest distance between the draws' shares and those of a distribution (Kolmogorov and
    /// Smirnov).
    fn distance(mut draws: Vec<f64>, law: Law) -> f64 {
        draws.sort_unstable_by(f64::total_cmp);
        let count = draws.len() as f64;
        draws.iter().enumerate().fold(0.0, |most: f64, (index, &number)| {
            let expected = share(law, number);
            let (before, after) = (index as f64 / count, (index + 1) as f64 / count);
            most.max(expected - before).max(after - expected)
        })
    }

    /// The distance that draws of the right distribution exceed with a chance of one in a million.
    fn critical_distance() -> f64 {
        (-(1e-6_f64 / 2.0).ln() / (2.0 * DRAWS as f64)).sqrt()
    }

    #[test]
    fn draws_follow_their_distribution_and_no_similar_one() {
        for (right, similar) in [
            ("uniform:10,1000", "uniform:10,1080"),
            ("normal:100,10", "normal:100,11"),
            ("exponential:0.25", "exponential:0.27"),
            ("gpareto:0,214.476,0.348238", "gpareto:0,214.476,0.45"),
            ("gpareto:5,16.0292,-0.2", "gpareto:5,16.0292,-0.3"),
            ("gev:30.7984,8.20449,0.078688", "gev:30.7984,8.20449,-0.02"),
            ("gev:30,8,0", "gev:30,8,0.1"),
            // Shapes of which draws without a lower limit are all 0.
            ("gpareto:16,1e-20", "gpareto:17,0"),
            ("gev:30,8,-1e-20", "gev:30,8,0.1"),
        ] {
            let drawn = draws(law(right), 11);
            let (own, other) = (distance(drawn.clone(), law(right)), distance(drawn, law(similar)));
            assert!(own < critical_distance(), "{right}: {own}");
            assert!(other > critical_distance(), "{similar}: {other}");
        }
    }

    #[test]
    fn means_are_those_of_the_draws_and_the_known_ones() {
        let gamma = |number: f64| libm::tgamma(number);
        for (text, known) in [
            ("32", 32.0),
            ("uniform:100", 50.0),
            ("normal:100,10", 100.0),
            // The mean of the greater of 0 and a standard normal draw plus 1.
            ("normal:1,1", 1.083_315_47),
            ("exponential:0.25", 4.0),
            ("gpareto:5,214.476,0.348238", 5.0 + 214.476 / (1.0 - 0.348_238)),
            ("gev:30.7984,8.20449,0.078688", {
                30.7984 + 8.20449 * (gamma(1.0 - 0.078_688) - 1.0) / 0.078_688
            }),
            ("gev:300,8,0.5", 300.0 + 8.0 * (gamma(0.5) - 1.0) / 0.5),
        ] {
            let mean = law(text).mean();
            assert!((mean / known - 1.0).abs() < 1e-5, "{text}: {mean} instead of {known}");
            let drawn = draws(law(text), 5).iter().sum::<f64>() / DRAWS as f64;
            assert!((drawn / mean - 1.0).abs() < 0.05, "{text}: {drawn} instead of {mean}");
        }
        let negative = law("gev:0,1,0.1");
        assert!(draws(negative, 1).iter().all(|&number| number >= 0.0), "I2");
        let drawn = draws(negative, 5).iter().sum::<f64>() / DRAWS as f64;
        assert!((drawn / negative.mean() - 1.0).abs() < 0.05, "I2: {drawn}");
    }

    #[test]
    fn the_short_values_of_etc_have_their_shares() {
        let short: f64 = ETC_SHORT.iter().sum();
        assert!((short - 0.441_55).abs() < 1e-9, "the sum of the published shares: {short}");
        let drawn = draws(Law::EtcValue, 3);
        for (bytes, share) in ETC_SHORT.into_iter().enumerate() {
            let is_size = |number: &&f64| number.to_bits() == (bytes as f64).to_bits();
            let seen = drawn.iter().filter(is_size).count() as f64 / DRAWS as f64;
            // Five standard deviations of a count.
            let tolerance = 5.0 * (share / DRAWS as f64).sqrt();
            assert!((seen - share).abs() < tolerance, "{bytes} bytes: {seen} instead of {share}");
        }
        let mean = drawn.iter().sum::<f64>() / DRAWS as f64;
        assert!((mean / Law::EtcValue.mean() - 1.0).abs() < 0.05, "{mean}");
    }

    #[test]
    fn distributions_are_read_written_and_refused() {
        for text in [
            "fixed:32",
            "uniform:0,100",
            "normal:100,10",
            "exponential:0.25",
            "gpareto:0,214.476,0.348238",
            "gev:30.7984,8.20449,0.078688",
            "fb_value",
        ] {
            assert_eq!(law(text).to_string(), text);
        }
        assert_eq!(law("fb_key"), law("gev:30.7984,8.20449,0.078688"));
        assert_eq!(law("pareto:16.0292,0.154971"), law("fb_ia"));
        assert_eq!(law("constant:7"), law("7"));
        for text in [
            "",
            "x",
            "-1",
            "NaN",
            "inf",
            "uniform:5,2",
            "uniform:-1,2",
            "normal:1",
            "normal:0,1",
            "normal:1,-1",
            "exponential:0",
            "gpareto:0,1,1",
            "gpareto:-1,1,0.1",
            "gev:1,0,0.1",
            "gev:1,1,0.1,4",
            "weibull:1,2",
            // The mean is infinite.
            "exponential:1e-310",
            "gpareto:1e308,0.9",
            "gev:1e308,1e308,0.9",
        ] {
            assert!(text.parse::<Law>().is_err(), "{text}");
        }
    }
}

//! What the miss-ratio curve says in words: what more or less memory is worth.
//!
//! Upstream:   `Observers::miss_curve`, with the sums of all models.
//! Downstream: `stats mrc`, and the page of the admin address.
//!
//! The curve is that of Kachel's own eviction (`docs/decisions/0032-miss-ratio-curve.md`). It is
//! given only if it can be trusted: if the model of the actual memory has missed as often as the
//! server itself, over the same keys.

use kachel_engine::{MODEL_ACTUAL, MODEL_QUARTERS, MODEL_SIZES, MissSums};

use crate::figures::shown_percent;

/// The fewest reads of the sample with which the curve is given. With fewer, the part of the reads
/// that would miss is uncertain by more than a point. A guess.
pub const CURVE_SAMPLES_MIN: u64 = 4000;
/// The fewest keys of the sample with which the curve is given, unless all sizes of memory miss
/// alike. A guess.
pub const CURVE_KEYS_MIN: u64 = 400;
/// The curve is reliable if the model differs by at most this part of the reads from the server.
pub const CURVE_ERROR_MAX: f64 = 0.01;

/// A change of the miss ratio that is worth a mention.
const WORTH: f64 = 0.001;
/// Misses are few below this part of the reads.
const FEW: f64 = 0.001;

/// Whether the curve can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CurveState {
    /// It has not seen yet what the server holds.
    Learning,
    /// It has seen too few reads or keys.
    TooFew,
    /// Its model does not miss as often as the server.
    Unreliable,
    /// It can be trusted.
    Reliable,
}

impl CurveState {
    /// The state in one word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Learning => "learning",
            Self::TooFew => "too_few_samples",
            Self::Unreliable => "unreliable",
            Self::Reliable => "reliable",
        }
    }
}

/// The miss ratio with some memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CurvePoint {
    /// The memory, in quarters of what the server has.
    pub quarters: u32,
    /// The memory in bytes, as `-m` gives it.
    pub memory_bytes: u64,
    /// The part of the reads that would miss. With the memory that the server has, it is the part
    /// that has missed.
    pub miss_ratio: f64,
}

/// The miss-ratio curve of the server, for the reads of about the last hour.
#[derive(Clone, Debug, PartialEq)]
pub struct MissCurve {
    /// Whether it can be trusted.
    pub state: CurveState,
    /// The sizes of memory, the least first.
    pub points: [CurvePoint; MODEL_SIZES],
    /// The part of the reads that missed, and that no memory would have helped: keys that were
    /// never stored, were deleted, or had expired.
    pub hopeless_ratio: f64,
    /// The model's miss ratio less the server's, over the same keys.
    pub error: f64,
    /// Reads of the sample; older ones weigh less.
    pub samples: u64,
    /// Keys of the sample.
    pub keys: u64,
    /// The part of all keys that is in the sample.
    pub rate: f64,
}

impl MissCurve {
    /// The curve of a server with `limit_bytes` of memory.
    pub fn of(sums: &MissSums, limit_bytes: u64) -> Self {
        let estimates = sums.estimates();
        let points = std::array::from_fn(|at| CurvePoint {
            quarters: MODEL_QUARTERS[at],
            memory_bytes: (limit_bytes / 4).saturating_mul(MODEL_QUARTERS[at].into()),
            miss_ratio: estimates[at],
        });
        let MissSums { samples, keys, rate, .. } = *sums;
        let error = sums.error();
        let state = if sums.is_learning {
            CurveState::Learning
        } else if samples < CURVE_SAMPLES_MIN
            || keys < CURVE_KEYS_MIN && estimates[0] - estimates[MODEL_SIZES - 1] >= WORTH
        {
            CurveState::TooFew
        } else if error.abs() > CURVE_ERROR_MAX {
            CurveState::Unreliable
        } else {
            CurveState::Reliable
        };
        let hopeless_ratio = sums.hopeless_ratio();
        Self { state, points, hopeless_ratio, error, samples, keys, rate }
    }

    fn miss_ratio(&self, place: usize) -> f64 {
        self.points[place].miss_ratio
    }

    /// What to do, in sentences.
    pub fn advice(&self) -> String {
        match self.state {
            CurveState::Learning => {
                "The curve is still learning which items the server holds.".to_owned()
            }
            CurveState::TooFew => format!(
                "Too few requests were sampled yet: {} reads of {} keys; at least {} of {} are needed.",
                self.samples, self.keys, CURVE_SAMPLES_MIN, CURVE_KEYS_MIN
            ),
            CurveState::Unreliable => format!(
                "No advice: the simulated misses differ from the real ones by {} of all gets, \
                 which is too much to trust the curve.",
                shown_percent(self.error.abs())
            ),
            CurveState::Reliable => format!("{} {}", self.of_more(), self.of_less()),
        }
    }

    /// What twice the memory would be worth.
    fn of_more(&self) -> String {
        let actual = self.miss_ratio(MODEL_ACTUAL);
        let [twice, most] = [1, 2].map(|more| self.miss_ratio(MODEL_ACTUAL + more));
        if actual < FEW {
            return format!(
                "More memory does not help: only {} of gets miss.",
                shown_percent(actual)
            );
        }
        let change = |part: &str, ratio| {
            format!(
                "With {part} the memory {} of gets would miss instead of {}.",
                shown_percent(ratio),
                shown_percent(actual)
            )
        };
        if actual - twice >= WORTH {
            return change("twice", twice);
        }
        if actual - most >= WORTH {
            return change("four times", most);
        }
        if self.hopeless_ratio * 2.0 >= actual {
            return format!(
                "Misses here are for keys that were never stored, were deleted or have expired \
                 ({} of gets): more memory does not help.",
                shown_percent(self.hopeless_ratio.min(actual))
            );
        }
        format!(
            "More memory does not help: {} of gets miss with four times the memory, too.",
            shown_percent(actual)
        )
    }

    /// What half the memory would cost.
    fn of_less(&self) -> String {
        let actual = self.miss_ratio(MODEL_ACTUAL);
        let [quarter, half] = [2, 1].map(|less| self.miss_ratio(MODEL_ACTUAL - less));
        let [quarter_text, half_text] = [quarter, half].map(shown_percent);
        if quarter - actual < WORTH {
            return format!("A quarter of the memory would do: {quarter_text} of gets would miss.");
        }
        if half - actual < WORTH {
            return format!("Half the memory would do: {half_text} of gets would miss.");
        }
        format!("With half the memory {half_text} of gets would miss.")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server of which these parts of a million reads would miss, in percent.
    fn curve(percents: [f64; MODEL_SIZES], hopeless_percent: f64) -> MissCurve {
        let modeled = percents.map(|percent| percent * 10_000.0);
        let sums = MissSums {
            reads: 1e6,
            misses: modeled[MODEL_ACTUAL],
            sampled_misses: modeled[MODEL_ACTUAL],
            modeled,
            hopeless: hopeless_percent * 10_000.0,
            samples: CURVE_SAMPLES_MIN,
            keys: CURVE_KEYS_MIN,
            rate: 1.0 / 64.0,
            is_learning: false,
        };
        MissCurve::of(&sums, 1 << 30)
    }

    #[test]
    fn the_advice_says_what_memory_is_worth() {
        for (percents, hopeless, wanted) in [
            (
                [20.0, 9.0, 5.4, 3.1, 2.0],
                1.0,
                "With twice the memory 3.1 % of gets would miss instead of 5.4 %. With half the \
                 memory 9.0 % of gets would miss.",
            ),
            (
                [50.0, 50.0, 50.0, 49.95, 10.0],
                1.0,
                "With four times the memory 10.0 % of gets would miss instead of 50.0 %. A quarter \
                 of the memory would do: 50.0 % of gets would miss.",
            ),
            (
                [5.4, 3.04, 3.0, 3.0, 3.0],
                2.9,
                "Misses here are for keys that were never stored, were deleted or have expired \
                 (2.9 % of gets): more memory does not help. Half the memory would do: 3.0 % of \
                 gets would miss.",
            ),
            (
                [100.0; MODEL_SIZES],
                4.0,
                "More memory does not help: 100.0 % of gets miss with four times the memory, too. A \
                 quarter of the memory would do: 100.0 % of gets would miss.",
            ),
            (
                [0.02; MODEL_SIZES],
                0.01,
                "More memory does not help: only 0.1 % of gets miss. A quarter of the memory would \
                 do: 0.1 % of gets would miss.",
            ),
        ] {
            let curve = curve(percents, hopeless);
            assert_eq!(curve.state, CurveState::Reliable);
            assert_eq!(curve.advice(), wanted);
        }
    }

    #[test]
    fn no_advice_is_given_that_cannot_be_trusted() {
        let few = MissSums { samples: CURVE_SAMPLES_MIN - 1, keys: 9999, ..MissSums::default() };
        let mut of_few_keys = MissSums { samples: 9999, keys: CURVE_KEYS_MIN - 1, ..few };
        (of_few_keys.reads, of_few_keys.modeled[0]) = (1e6, 1e5);
        let enough = MissSums { samples: 9999, keys: 9999, reads: 1e6, ..few };
        let mut wrong = MissSums { misses: 5e5, sampled_misses: 5e5, ..enough };
        wrong.modeled[MODEL_ACTUAL] = 5e5 + 11_000.0;
        let learning = MissSums { is_learning: true, ..enough };
        for (sums, state, words) in [
            (few, CurveState::TooFew, "Too few requests"),
            (of_few_keys, CurveState::TooFew, "Too few requests"),
            (
                wrong,
                CurveState::Unreliable,
                "No advice: the simulated misses differ from the real ones by 1.1 %",
            ),
            (learning, CurveState::Learning, "still learning"),
        ] {
            let curve = MissCurve::of(&sums, 1 << 30);
            assert_eq!(curve.state, state);
            assert!(curve.advice().contains(words), "{}", curve.advice());
        }
        of_few_keys.modeled = [1e5; MODEL_SIZES];
        (of_few_keys.misses, of_few_keys.sampled_misses) = (1e5, 1e5);
        assert_eq!(MissCurve::of(&of_few_keys, 1).state, CurveState::Reliable, "all sizes alike");
        wrong.modeled[MODEL_ACTUAL] = 5e5 - 9_900.0;
        assert_eq!(MissCurve::of(&wrong, 1).state, CurveState::Reliable);
    }

    #[test]
    fn sizes_are_those_of_the_limit_and_sums_of_engines_add_up() {
        let one = curve([8.0, 6.0, 4.0, 2.0, 1.0], 1.0);
        let bytes = one.points.map(|point| point.memory_bytes);
        assert_eq!(bytes, [1 << 28, 1 << 29, 1 << 30, 1 << 31, 1 << 32]);
        let engine =
            MissSums { reads: 100.0, misses: 10.0, keys: 5, rate: 0.5, ..MissSums::default() };
        let mut sums = MissSums::default();
        sums.add(&engine);
        sums.add(&MissSums { rate: 0.25, ..engine });
        assert_eq!((sums.reads, sums.misses, sums.keys, sums.rate), (200.0, 20.0, 10, 0.25));
    }
}

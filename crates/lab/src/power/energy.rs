//! From samples of a meter to mean power and energy.
//!
//! Upstream:   `mod`, with the samples of a meter and their times.
//! Downstream: `mod`, which reports power and energy.
//!
//! A meter says power, which is integrated (trapezoids), or a growing count of joules, whose
//! difference is taken. Both become spans of known energy. Time between two samples counts as
//! covered only if they are at most [`GAP_TIMES`] intervals apart, so a meter that misses a few
//! samples covers all of a phase, and one that dies covers the part before.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  Spans are in order and do not overlap.

/// Samples that are further apart than this multiple of the interval leave a gap.
const GAP_TIMES: f64 = 5.0;

/// A sample of a meter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Sample {
    /// Power at this moment, in watts.
    Watts(f64),
    /// Energy since some moment, in joules.
    Joules(f64),
}

/// A stretch of time with its energy.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Span {
    begin_s: f64,
    end_s: f64,
    joules: f64,
}

/// The energy that a meter measured over time.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Energy {
    spans: Vec<Span>,
}

/// Mean power over a phase.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Power {
    pub(crate) watts: f64,
    /// The share of the phase for which there are samples.
    pub(crate) covered: f64,
}

impl Energy {
    /// The energy between the samples, which were taken about every `interval_s` seconds. Each has
    /// its time in seconds, in order. After the clock was set back, nothing counts until it has
    /// passed the last time again.
    pub(super) fn of(samples: &[(f64, Sample)], interval_s: f64) -> Self {
        let mut spans: Vec<Span> = Vec::new();
        for pair in samples.windows(2) {
            let [(begin_s, before), (end_s, after)] = *pair else { unreachable!("windows of two") };
            let seconds = end_s - begin_s;
            let joules = match (before, after) {
                (Sample::Watts(before), Sample::Watts(after)) => (before + after) / 2.0 * seconds,
                (Sample::Joules(before), Sample::Joules(after)) => after - before,
                _ => continue, // A meter says always the same.
            };
            let is_new = spans.last().is_none_or(|last| last.end_s <= begin_s);
            if seconds > 0.0 && seconds <= GAP_TIMES * interval_s && joules >= 0.0 && is_new {
                spans.push(Span { begin_s, end_s, joules });
            }
        }
        assert!(spans.windows(2).all(|pair| pair[0].end_s <= pair[1].begin_s), "I1");
        Self { spans }
    }

    /// Mean power from `begin_s` to `end_s`. `None` if no sample covers any of it.
    pub(crate) fn power(&self, begin_s: f64, end_s: f64) -> Option<Power> {
        let (mut joules, mut seconds) = (0.0, 0.0);
        for span in &self.spans {
            let shared = span.end_s.min(end_s) - span.begin_s.max(begin_s);
            if shared > 0.0 {
                joules += span.joules * shared / (span.end_s - span.begin_s);
                seconds += shared;
            }
        }
        let covered = seconds / (end_s - begin_s);
        (seconds > 0.0).then(|| Power { watts: joules / seconds, covered })
    }
}

/// A counter of energy that begins again at 0 after it has reached its maximum.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counter {
    /// The number of values.
    range: u64,
    last: Option<u64>,
    sum: u64,
}

impl Counter {
    /// A counter whose values are below `range`.
    pub(super) fn new(range: u64) -> Self {
        assert!(range > 0, "a counter has values");
        Self { range, last: None, sum: 0 }
    }

    /// Takes a value. Returns the sum since the first one. A value below the last one means that
    /// the counter has begun again, once.
    pub(super) fn take(&mut self, value: u64) -> u64 {
        let value = value % self.range;
        let last = self.last.replace(value).unwrap_or(value);
        self.sum += if value >= last { value - last } else { self.range - last + value };
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples of constant power, one a second from 0 to `until`.
    fn constant(watts: f64, until: u32) -> Vec<(f64, Sample)> {
        (0..=until).map(|second| (f64::from(second), Sample::Watts(watts))).collect()
    }

    fn watts(samples: &[(f64, Sample)], begin_s: f64, end_s: f64) -> Option<(f64, f64)> {
        let power = Energy::of(samples, 1.0).power(begin_s, end_s)?;
        Some(((power.watts * 1e6).round() / 1e6, (power.covered * 1e6).round() / 1e6))
    }

    #[test]
    fn power_is_integrated_and_counts_are_subtracted() {
        assert_eq!(watts(&constant(40.0, 10), 2.5, 7.5), Some((40.0, 1.0)));
        let ramp: Vec<_> = (0..=10).map(|s| (f64::from(s), Sample::Watts(f64::from(s)))).collect();
        assert_eq!(watts(&ramp, 0.0, 10.0), Some((5.0, 1.0)));
        let counts: Vec<_> =
            (0..=10).map(|s| (f64::from(s), Sample::Joules(1e6 + 30.0 * f64::from(s)))).collect();
        assert_eq!(watts(&counts, 0.0, 10.0), Some((30.0, 1.0)));
    }

    #[test]
    fn a_few_missing_samples_are_bridged_and_a_gap_is_not() {
        let mut samples = constant(40.0, 20);
        samples.retain(|(second, _)| !(5.0..8.0).contains(second));
        assert_eq!(watts(&samples, 0.0, 20.0), Some((40.0, 1.0)));
        samples.retain(|(second, _)| !(5.0..14.0).contains(second));
        assert_eq!(watts(&samples, 0.0, 20.0), Some((40.0, 0.5)));
    }

    #[test]
    fn a_meter_that_dies_covers_the_part_before() {
        let samples = constant(40.0, 4);
        assert_eq!(watts(&samples, 0.0, 16.0), Some((40.0, 0.25)));
        assert_eq!(watts(&samples, 6.0, 16.0), None);
        assert_eq!(watts(&samples[..1], 0.0, 1.0), None, "one sample is no span");
    }

    #[test]
    fn time_that_a_clock_repeats_counts_once() {
        let at = |seconds: &[f64]| -> Vec<(f64, Sample)> {
            seconds.iter().map(|second| (*second, Sample::Watts(40.0))).collect()
        };
        let samples = at(&[10.0, 11.0, 9.5, 10.0, 10.5, 11.5, 12.0]);
        assert_eq!(watts(&samples, 10.0, 12.0), Some((40.0, 0.75)), "from 10 to 11, from 11.5 on");
    }

    #[test]
    fn a_counter_that_begins_again_goes_on() {
        let mut counter = Counter::new(1_000);
        let sums = [900, 950, 50, 60, 59].map(|value| counter.take(value));
        assert_eq!(sums, [0, 50, 150, 160, 1_159]);
    }
}

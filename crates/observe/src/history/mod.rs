//! What the server did in each of the last ten minutes' seconds, and what is wrong with it.
//!
//! Upstream:   the thread of the admin address takes a [`Reading`] of all counters once a second.
//! Downstream: the live page, as JSON ([`write_now`], [`write_history`]).
//!
//! ```text
//! counters -> reading -> difference to the one before -> sample -> ring of 600 samples
//!                                                           |           |
//!                                                           +-> JSON <--+--> findings
//! ```
//!
//! Invariants:
//! - T1  There are at most [`SAMPLES_MAX`] samples, the oldest first. The first reading allocates
//!   their memory, because a ring that is doubled while it fills has room for 1,024.
//! - T2  A sample is made of two readings of one process. So a restart, or `stats reset`, draws no
//!   spike.

mod reading;
mod sample;
mod findings;
mod json;

use std::collections::VecDeque;

pub use findings::{Circumstances, HealthFinding, ServePhase, Severity, findings};
pub use json::{HOT_KEYS_MAX, Newest, PREFIXES_SHOWN_MAX, write_history, write_now};
pub use reading::{CoreReading, Gauges, PipeReading, Reading, Tally};
pub use sample::{CoreSample, Sample};

/// The most samples that are kept: ten minutes of one a second.
pub const SAMPLES_MAX: usize = 600;

/// The samples of the last ten minutes.
#[derive(Debug, Default)]
pub struct SampleHistory {
    samples: VecDeque<Sample>,
    /// The cores in the newest sample.
    cores: Vec<CoreSample>,
    last: Option<Reading>,
}

impl SampleHistory {
    /// Adds the sample that `reading` and the reading before make. The first reading makes none.
    pub fn note(&mut self, reading: Reading) {
        if let Some(before) = &self.last {
            let Some(sample) = Sample::between(before, &reading) else { return };
            self.cores = CoreSample::between(before, &reading).collect();
            if self.samples.len() == SAMPLES_MAX {
                self.samples.pop_front();
            }
            self.samples.push_back(sample);
        }
        if self.last.replace(reading).is_none() {
            self.samples.reserve_exact(SAMPLES_MAX);
        }
        assert!(self.samples.len() <= SAMPLES_MAX, "T1");
    }

    /// The samples, the oldest first.
    pub fn samples(&self) -> impl DoubleEndedIterator<Item = &Sample> + ExactSizeIterator {
        self.samples.iter()
    }

    /// The samples of the last `count` seconds, or as many as there are, the newest first.
    pub(crate) fn latest(&self, count: usize) -> impl Iterator<Item = &Sample> + Clone {
        self.samples.iter().rev().take(count)
    }

    /// The newest sample.
    pub fn newest(&self) -> Option<&Sample> {
        self.samples.back()
    }

    /// The newest reading.
    pub(crate) const fn reading(&self) -> Option<&Reading> {
        self.last.as_ref()
    }

    /// The cores in the newest sample.
    pub(crate) fn cores(&self) -> &[CoreSample] {
        &self.cores
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(second: u64, hits: u64) -> Reading {
        let tally = Tally { hits, requests: hits, ..Tally::default() };
        Reading { at_ns: second * 1_000_000_000, tally, ..Reading::default() }
    }

    #[test]
    fn ten_minutes_are_kept_and_older_samples_leave() {
        let mut history = SampleHistory::default();
        for second in 0..2000 {
            history.note(reading(second, second * second));
        }
        assert_eq!(history.samples().len(), SAMPLES_MAX);
        let hits: Vec<f64> = history.samples().map(|sample| sample.hits).collect();
        assert!(hits.windows(2).all(|pair| pair[1] - pair[0] == 2.0), "in their order");
        assert_eq!(hits.last(), Some(&(2.0 * 1998.0 + 1.0)));
    }

    #[test]
    fn one_reading_makes_no_sample_and_a_late_one_no_spike() {
        let mut history = SampleHistory::default();
        history.note(reading(5, 1_000_000));
        assert!(history.newest().is_none(), "T2: nothing came before");
        history.note(reading(5, 2_000_000));
        assert!(history.newest().is_none(), "no time has passed");
        history.note(reading(105, 1_000_100));
        assert_eq!(history.newest().map(|sample| sample.hits), Some(1.0), "the mean of 100 s");
    }
}

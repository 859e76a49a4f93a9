//! The counters of all cores and of all engines of a process, and their sums.
//!
//! Upstream:   `shard` makes them at the start; each core and each engine counts in its own ones.
//! Downstream: `stats` and `/metrics` read sums, on any thread.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use kachel_stdx::Counter;

use crate::by_class::ClassCounters;
use crate::counters::{Counters, TICK_UNIT_NS};
use crate::engine_counters::EngineCounters;
use crate::histogram::{Histogram, HistogramSum};

/// How many cores are shown one by one. Most servers have fewer, and the number of metrics has a
/// limit (`metrics`).
const CORES_SHOWN_MAX: usize = 32;

/// The counters of all cores and of all engines. There may be more engines than cores, or fewer.
#[derive(Debug)]
pub struct Totals {
    /// The counters of each core.
    pub cores: Vec<Arc<Counters>>,
    /// The counters of each core as they were at the last `stats reset`.
    cores_before: Vec<Counters>,
    /// The counters of each engine.
    pub engines: Vec<EngineCounters>,
    /// The counters of each engine as they were at the last `stats reset`.
    engines_before: Vec<EngineCounters>,
    /// How often all counts began anew (`stats reset`).
    resets: AtomicU32,
}

impl Totals {
    /// The counters of a process with this many cores and engines. All are 0.
    pub fn new(cores: u16, engines: u16) -> Self {
        Self {
            cores: (0..cores).map(|_| Arc::default()).collect(),
            cores_before: (0..cores).map(|_| Counters::default()).collect(),
            engines: (0..engines).map(|_| EngineCounters::default()).collect(),
            engines_before: (0..engines).map(|_| EngineCounters::default()).collect(),
            resets: AtomicU32::new(0),
        }
    }

    /// The sum over all cores of the counter that `counter` selects, since the last `stats reset`.
    /// A gauge is never reset.
    pub fn sum(&self, counter: fn(&Counters) -> &Counter) -> u64 {
        self.sum_since(|counters| counter(counters).value())
    }

    /// The same sum over all engines.
    pub fn sum_of_engines(&self, counter: fn(&EngineCounters) -> &Counter) -> u64 {
        debug_assert!(self.engines_before.len() == self.engines.len(), "a copy for each engine");
        let engines = self.engines_before.iter().zip(&self.engines);
        sum_of(engines, |counters| counter(counters).value())
    }

    /// The storage requests of `cmd_set`. Each is counted once, so the sum never falls.
    pub(crate) fn stores(&self) -> u64 {
        let compared = [
            self.sum(|counters| &counters.cas_hits),
            self.sum(|counters| &counters.cas_misses),
            self.sum(|counters| &counters.cas_badval),
        ];
        self.sum(|counters| &counters.sets) + compared.iter().sum::<u64>()
    }

    /// The sum over all cores of the counter of one size class that `counter` selects, since the
    /// last `stats reset`.
    pub fn sum_of_class(&self, class: u8, counter: fn(&ClassCounters) -> &Counter) -> u64 {
        self.sum_since(|counters| counter(counters.by_class.of(class)).value())
    }

    /// The greatest value of a gauge over all cores.
    pub fn max(&self, gauge: fn(&Counters) -> &Counter) -> u64 {
        self.cores.iter().map(|counters| gauge(counters).value()).max().unwrap_or(0)
    }

    /// The sum over all cores of the histogram that `histogram` selects, since the last `stats
    /// reset`.
    pub fn histogram(&self, histogram: fn(&Counters) -> &Histogram) -> HistogramSum {
        let mut sum = HistogramSum::default();
        for (before, now) in self.cores_before.iter().zip(&self.cores) {
            sum.add(histogram(before), histogram(now));
        }
        sum
    }

    /// How long each core was not asleep since the last `stats reset`, in nanoseconds, with the
    /// number of the core. The cores after the first [`CORES_SHOWN_MAX`] are one entry, `others`.
    pub(crate) fn busy_ns(&self) -> Vec<(String, u64)> {
        let busy = self.cores_before.iter().zip(&self.cores).map(|(before, now)| {
            let mut ticks = HistogramSum::default();
            ticks.add(&before.tick_times, &now.tick_times);
            ticks.sum() * TICK_UNIT_NS
        });
        let mut all: Vec<(String, u64)> = Vec::new();
        for (core, busy_ns) in busy.enumerate() {
            match all.get_mut(CORES_SHOWN_MAX) {
                Some((_, others)) => *others += busy_ns,
                None if core < CORES_SHOWN_MAX => all.push((core.to_string(), busy_ns)),
                None => all.push(("others".into(), busy_ns)),
            }
        }
        debug_assert!(all.len() <= CORES_SHOWN_MAX + 1, "few names");
        all
    }

    /// The sum over all cores of `value` since the last `stats reset`.
    fn sum_since(&self, value: impl Fn(&Counters) -> u64) -> u64 {
        debug_assert!(self.cores_before.len() == self.cores.len(), "a copy for each core");
        sum_of(self.cores_before.iter().zip(self.cores.iter().map(Arc::as_ref)), value)
    }

    /// Lets all counters begin anew (`stats reset`). Any core may call this.
    pub fn reset(&self) {
        debug_assert!(self.cores_before.len() == self.cores.len(), "a copy for each core");
        for (before, now) in self.cores_before.iter().zip(&self.cores) {
            before.copy_counts_from(now);
        }
        for (before, now) in self.engines_before.iter().zip(&self.engines) {
            before.copy_counts_from(now);
        }
        self.resets.fetch_add(1, Relaxed);
    }

    /// How often all counts began anew.
    pub fn resets(&self) -> u32 {
        self.resets.load(Relaxed)
    }
}

/// The sum of what `value` has grown by from each of these counters to its later state.
fn sum_of<'c, C: 'c>(
    counters: impl Iterator<Item = (&'c C, &'c C)>,
    value: impl Fn(&C) -> u64,
) -> u64 {
    counters.fold(0, |sum, (before, now)| {
        // The copy is read first: another core may replace it by a later one meanwhile.
        let before = value(before);
        u64::wrapping_add(sum, value(now).saturating_sub(before))
    })
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    #[test]
    fn a_reset_while_counters_are_read_shows_no_negative_count() {
        /// Another core counts 3 more and resets all when the second number is read.
        fn meanwhile(read: u32, totals: &Totals) {
            if read == 1 {
                totals.cores[0].sets.add(3);
                totals.cores[0].by_class.of(1).cmd_set.add(3);
                totals.reset();
            }
        }
        thread_local! {
            static READ: Cell<u32> = const { Cell::new(0) };
            static TOTALS: RefCell<Option<Arc<Totals>>> = const { RefCell::new(None) };
        }
        fn note_read() {
            let read = READ.replace(READ.get() + 1);
            TOTALS.with_borrow(|totals| meanwhile(read, totals.as_ref().expect("it is set")));
        }
        let in_turn: [fn(&Totals) -> u64; 2] = [
            |totals| {
                totals.sum(|counters| {
                    note_read();
                    &counters.sets
                })
            },
            |totals| {
                totals.sum_of_class(1, |row| {
                    note_read();
                    &row.cmd_set
                })
            },
        ];
        for sum in in_turn {
            let totals = Arc::new(Totals::new(1, 1));
            totals.cores[0].sets.add(5);
            totals.cores[0].by_class.of(1).cmd_set.add(5);
            READ.set(0);
            TOTALS.set(Some(Arc::clone(&totals)));
            assert_eq!(sum(&totals), 8, "as if the reset came behind it");
            READ.set(2);
            assert_eq!(sum(&totals), 0, "the reset is done");
        }
    }
}

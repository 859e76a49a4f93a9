//! The run of the crawler that is under way in the process.
//!
//! Upstream:   `control` begins a run; `crawl` takes part in it on each core.
//! Downstream: nothing.
//!
//! Invariants:
//! - R1  There is at most one run at a time. Each core ends each run once.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

/// The run of the crawler, which all cores share.
#[derive(Debug, Default)]
pub(crate) struct Crawler {
    /// Whether no run and no dump may begin.
    is_off: AtomicBool,
    /// How many runs were begun.
    run: AtomicU32,
    /// The cores that are not done with the run.
    left: AtomicU32,
    /// The size classes of the items to reclaim, one bit each.
    classes: AtomicU64,
    /// The second in which it was begun.
    begun_s: AtomicU32,
    /// Items examined so far.
    examined: AtomicU64,
    /// Items reclaimed so far.
    reclaimed: AtomicU64,
}

/// The results of a finished run of the crawler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CrawlerRun {
    /// The second in which it was begun.
    pub(crate) begun_s: u32,
    /// Items examined.
    pub(crate) examined: u64,
    /// Items reclaimed.
    pub(crate) reclaimed: u64,
}

impl Crawler {
    /// A crawler that is on, or is off until a client switches it on.
    pub(crate) fn new(on: bool) -> Self {
        Self { is_off: AtomicBool::new(!on), ..Self::default() }
    }

    /// Whether runs and dumps may begin.
    pub(crate) fn is_on(&self) -> bool {
        !self.is_off.load(Relaxed)
    }

    /// Lets runs and dumps begin from now on, or refuses them. Those that were begun go on.
    pub(crate) fn switch(&self, on: bool) {
        self.is_off.store(!on, Relaxed);
    }

    /// Begins a run over items of these size classes, on all `cores` cores. Returns `false` if
    /// there is one already (R1). The caller must wake all cores.
    pub(crate) fn begin(&self, cores: u16, second: u32, classes: u64) -> bool {
        debug_assert!(classes != 0, "a run is about some class");
        if self.left.compare_exchange(0, u32::from(cores), AcqRel, Relaxed).is_err() {
            return false;
        }
        self.classes.store(classes, Relaxed);
        self.begun_s.store(second, Relaxed);
        self.examined.store(0, Relaxed);
        self.reclaimed.store(0, Relaxed);
        self.run.fetch_add(1, Release);
        true
    }

    /// The number of the last run that was begun. Cost: a load.
    #[inline]
    pub(crate) fn run(&self) -> u32 {
        self.run.load(Acquire)
    }

    /// The size classes of the run.
    pub(crate) fn classes(&self) -> u64 {
        self.classes.load(Relaxed)
    }

    /// Notes what a core has done in one step.
    pub(crate) fn note(&self, examined: u64, reclaimed: u64) {
        debug_assert!(reclaimed <= examined, "what is reclaimed was examined");
        self.examined.fetch_add(examined, Relaxed);
        self.reclaimed.fetch_add(reclaimed, Relaxed);
    }

    /// Ends the run for one core (R1). Returns what the run has done, if it is over.
    pub(crate) fn end(&self) -> Option<CrawlerRun> {
        // If two cores end at the same time, the one that is second finds the counts of both. A
        // run is begun only after the counts of this one were read.
        let mut left = self.left.load(Acquire);
        loop {
            assert!(left > 0, "R1");
            let run = (left == 1).then(|| CrawlerRun {
                begun_s: self.begun_s.load(Relaxed),
                examined: self.examined.load(Relaxed),
                reclaimed: self.reclaimed.load(Relaxed),
            });
            match self.left.compare_exchange(left, left - 1, AcqRel, Acquire) {
                Ok(_) => return run,
                Err(now) => left = now,
            }
        }
    }
}

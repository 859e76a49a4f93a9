//! The accounts of one thread: which requests are in flight, answered or lost.
//!
//! Upstream:   a link reports each answer, `drive` each request that begins.
//! Downstream: the tally, and the totals for the progress line.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  Every request that began ends once: answered, lost, dropped or abandoned.

use std::time::Instant;

use crate::request::{Kind, Outcome, Pending};
use crate::tally::{Tally, Window};

/// The accounts of one thread.
#[derive(Debug)]
pub(crate) struct Books {
    /// Counts and histograms.
    pub(crate) tally: Tally,
    /// Start of the run's clock.
    epoch: Instant,
    /// When the event that is being served was noticed.
    pub(crate) now_ns: u64,
    /// When the last answer came, or the first request after an idle time began.
    pub(crate) last_progress_ns: u64,
    /// Requests in flight.
    outstanding: usize,
    /// Counts since the beginning.
    pub(crate) totals: Totals,
}

/// Counts since the beginning, published to `Live` once a turn.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    /// Requests answered.
    pub(crate) answered: u64,
    /// Keys requested by gets.
    pub(crate) keys: u64,
    /// Keys found by gets.
    pub(crate) hits: u64,
}

impl Books {
    /// No request is in flight.
    pub(crate) fn new(window: Window, epoch: Instant) -> Self {
        let mut books = Self {
            tally: Tally::new(window),
            epoch,
            now_ns: 0,
            last_progress_ns: 0,
            outstanding: 0,
            totals: Totals::default(),
        };
        books.last_progress_ns = books.read_clock();
        books
    }

    /// Sets `now_ns`, and returns it.
    #[inline]
    pub(crate) fn read_clock(&mut self) -> u64 {
        self.now_ns = self.epoch.elapsed().as_nanos() as u64;
        self.now_ns
    }

    /// Requests in flight.
    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// A request begins.
    #[inline]
    pub(crate) fn begin(&mut self, now_ns: u64) {
        if self.outstanding == 0 {
            self.last_progress_ns = now_ns;
        }
        self.outstanding += 1;
    }

    /// A request was answered at `now_ns`.
    #[inline]
    pub(crate) fn answered(&mut self, request: &Pending, outcome: Outcome) {
        self.end();
        if request.kind == Kind::Get {
            self.totals.keys += u64::from(request.keys);
        }
        if let Outcome::Hits(hits) = outcome {
            self.totals.hits += u64::from(hits);
        }
        self.totals.answered += 1;
        self.last_progress_ns = self.now_ns;
        self.tally.record(request, outcome, self.now_ns);
    }

    /// A request is lost with its connection.
    pub(crate) fn lost(&mut self, request: &Pending) {
        self.end();
        self.tally.record_lost(request, self.now_ns);
    }

    /// The datagram of a request, or that of its answer, did not arrive in time.
    pub(crate) fn dropped(&mut self, request: &Pending) {
        self.end();
        self.tally.record_dropped(request, self.now_ns);
    }

    /// A request has no answer at the end of the run.
    pub(crate) fn abandoned(&mut self, request: &Pending) {
        self.end();
        self.tally.record_unanswered(request, self.now_ns);
    }

    #[inline]
    fn end(&mut self) {
        assert!(self.outstanding > 0, "I1");
        self.outstanding -= 1;
    }
}

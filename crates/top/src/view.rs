//! What is known about a server from the answers so far: its last state, rates, and four minutes of
//! history.
//!
//! Upstream:   `run`, with each answer and the time at which it came.
//! Downstream: `findings` and `frame`.
//!
//! Invariants:
//! - V1  The history has at most [`HISTORY_MAX`] entries.

use std::collections::VecDeque;

use crate::reading::{Counts, Reading};

/// The most seconds of history. A frame shows as many as fit.
pub(crate) const HISTORY_MAX: usize = 240;
/// Without an answer for so many seconds, the last figures are old, and the wait is shown.
const WAIT_SHOWN_S: f64 = 2.0;
/// For how many seconds a restart is shown.
const RESTART_SHOWN_S: f64 = 15.0;

/// What is known about a server.
#[derive(Debug)]
pub(crate) struct View {
    /// The address, as it was given.
    pub(crate) address: String,
    /// The last reading and its time.
    last: Option<(f64, Reading)>,
    /// The rates of the last second, if there are any.
    pub(crate) rates: Option<Counts>,
    /// The part of the last second in which each thread was busy, if it is known.
    pub(crate) loads: Vec<f64>,
    /// The requests a second, oldest first; `None` where there is no rate.
    pub(crate) history: VecDeque<Option<f64>>,
    /// Why there is no answer, and since when.
    failure: Option<(f64, String)>,
    /// When the last restart was seen.
    restarted_at: Option<f64>,
    /// The time of the last answer, or of the start.
    answered_s: f64,
    /// The time of the last entry of the history.
    noted_s: f64,
    now_s: f64,
}

/// How the server stands.
#[derive(Debug, PartialEq)]
pub(crate) enum Standing<'v> {
    /// Nothing was answered yet.
    Unknown,
    /// The last question has no answer yet, for these seconds; nor has any, if there is no last
    /// reading.
    Waits(f64),
    /// It does not answer, for these seconds and this reason.
    Silent(f64, &'v str),
    /// It answers.
    Answers(&'v Reading),
}

impl View {
    pub(crate) const fn new(address: String) -> Self {
        let history = VecDeque::new();
        let (last, rates, failure, restarted_at) = (None, None, None, None);
        let loads = Vec::new();
        let (answered_s, noted_s, now_s) = (0.0, 0.0, 0.0);
        Self {
            address,
            last,
            rates,
            loads,
            history,
            failure,
            restarted_at,
            answered_s,
            noted_s,
            now_s,
        }
    }

    /// Takes an answer that came at `now_s` seconds.
    pub(crate) fn take(&mut self, now_s: f64, answer: Result<Reading, String>) {
        debug_assert!(now_s >= self.now_s, "time passes");
        (self.now_s, self.answered_s) = (now_s, now_s);
        self.rates = None;
        self.loads.clear();
        match answer {
            Err(reason) => {
                let since = self.failure.take().map_or(now_s, |(since, _)| since);
                self.failure = Some((since, reason));
            }
            Ok(reading) => {
                self.failure = None;
                if let Some((before_s, before)) = &self.last {
                    if reading.is_restarted_since(before) {
                        self.restarted_at = Some(now_s);
                    }
                    self.rates = reading.rates(before, now_s - before_s);
                    self.loads = reading.loads(before, now_s - before_s);
                }
                self.last = Some((now_s, reading));
            }
        }
        self.note_second();
    }

    /// No answer has come until `now_s` seconds.
    pub(crate) fn wait(&mut self, now_s: f64) {
        debug_assert!(now_s >= self.now_s, "time passes");
        self.now_s = now_s;
        if self.is_waiting() {
            self.rates = None;
            self.loads.clear();
            if now_s - self.noted_s >= 1.0 {
                self.note_second();
            }
        }
    }

    fn is_waiting(&self) -> bool {
        self.now_s - self.answered_s >= WAIT_SHOWN_S
    }

    fn note_second(&mut self) {
        self.noted_s = self.now_s;
        if self.history.len() == HISTORY_MAX {
            self.history.pop_front(); // V1
        }
        self.history.push_back(self.rates.map(|rates| rates.requests));
    }

    pub(crate) fn standing(&self) -> Standing<'_> {
        if self.is_waiting() {
            return Standing::Waits(self.now_s - self.answered_s);
        }
        match (&self.failure, &self.last) {
            (Some((since_s, reason)), _) => Standing::Silent(self.now_s - since_s, reason),
            (None, Some((_, reading))) => Standing::Answers(reading),
            (None, None) => Standing::Unknown,
        }
    }

    /// The last reading, which may be old while the server is silent.
    pub(crate) fn last(&self) -> Option<&Reading> {
        self.last.as_ref().map(|(_, reading)| reading)
    }

    /// Whether the server was restarted a moment ago.
    pub(crate) fn is_restarted(&self) -> bool {
        self.restarted_at.is_some_and(|at| self.now_s - at < RESTART_SHOWN_S)
    }
}

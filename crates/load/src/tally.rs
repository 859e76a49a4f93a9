//! Counts and histograms of one thread, and their merging, also over several machines.
//!
//! Upstream:   `drive` records every answer.
//! Downstream: `report` computes figures from the sum.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  Counts (`answered`, `keys`, `hits`, ...) cover the answers received within the window.
//! - I2  In an open loop, the histograms hold every request whose intended send time is within the
//!   window, even if unanswered or late; in a closed loop, the answers within the window.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::limits::{LATE_NS, Turns};
use crate::request::{Cause, Kind, Outcome, Pending};

/// The largest time that the histograms record: one hour.
pub(crate) const TIME_NS_MAX: u64 = 3_600_000_000_000;
/// The decimal digits to which the histograms are exact.
pub(crate) const DIGITS: u8 = 3;

/// The measured part of a run, in ns of the run's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// Start, which is the end of the warm-up.
    pub(crate) from_ns: u64,
    /// End, exclusive; `u64::MAX` when the source decides.
    pub(crate) until_ns: u64,
    /// Whether requests have intended send times.
    pub(crate) open: bool,
}

/// Result of a preload.
#[derive(Debug)]
pub(crate) struct Filled {
    /// Number of keys.
    pub(crate) keys: u64,
    /// Duration.
    pub(crate) elapsed_s: f64,
    /// Counts of all threads.
    pub(crate) tally: Tally,
}

impl Filled {
    /// Adds the preload of another machine, which ran at the same time.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.keys += other.keys;
        self.elapsed_s = self.elapsed_s.max(other.elapsed_s);
        self.tally.merge(&other.tally);
    }
}

/// Errors, counted in requests unless stated otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Errors {
    /// Answered by an error line.
    pub(crate) refused: u64,
    /// Items with a wrong key or value.
    pub(crate) wrong: u64,
    /// Requests whose connection was closed or failed. A client that loses its connection without a
    /// request in flight counts as one.
    pub(crate) lost: u64,
    /// Requests unanswered at the end of the patience, and those of an open loop that were not
    /// sent.
    pub(crate) unanswered: u64,
    /// Connections on which the server violated the protocol, and requests over UDP whose answer
    /// did.
    pub(crate) garbled: u64,
    /// Requests over UDP whose answer did not arrive in time.
    pub(crate) dropped: u64,
    /// Datagrams that answer no request in flight: late, twice, or with a wrong request ID. They
    /// are no error, because the request that they may belong to is `dropped`.
    pub(crate) stray: u64,
    /// A description of the first error.
    pub(crate) first: Option<String>,
}

impl Errors {
    /// The number of errors of all kinds.
    pub(crate) fn total(&self) -> u64 {
        self.refused + self.wrong + self.lost + self.unanswered + self.garbled + self.dropped
    }

    /// Adds the errors of another tally.
    pub(crate) fn add(&mut self, other: &Self) {
        self.refused += other.refused;
        self.wrong += other.wrong;
        self.lost += other.lost;
        self.unanswered += other.unanswered;
        self.garbled += other.garbled;
        self.dropped += other.dropped;
        self.stray += other.stray;
        if self.first.is_none() {
            self.first.clone_from(&other.first);
        }
    }

    /// Keeps the description of the first error.
    pub(crate) fn note(&mut self, words: impl FnOnce() -> String) {
        if self.first.is_none() {
            self.first = Some(words());
        }
    }
}

/// Counts and histograms of one thread, or of all.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    window: Window,
    /// Requests answered, by kind.
    pub(crate) answered: [u64; Kind::COUNT],
    /// Requests that were due within the window, in an open loop. Those that follow from an answer
    /// are sent beside them and do not count here.
    pub(crate) offered: u64,
    /// Keys requested by gets.
    pub(crate) keys: u64,
    /// Keys found by gets.
    pub(crate) hits: u64,
    /// Items that scans have returned.
    pub(crate) scanned: u64,
    /// Requests answered with not stored, not found or exists.
    pub(crate) not_done: u64,
    /// Errors, at any time of the run.
    pub(crate) errors: Errors,
    /// Response times in ns, by kind, from the intended send time.
    pub(crate) response: [Histogram<u64>; Kind::COUNT],
    /// Service times in ns, from the send; open loop only.
    pub(crate) service: Histogram<u64>,
    /// When the last answer was received.
    pub(crate) last_ns: u64,
    /// The work of the loop.
    pub(crate) turns: Turns,
}

impl Tally {
    /// An empty tally.
    pub(crate) fn new(window: Window) -> Self {
        let histogram = || {
            Histogram::new_with_bounds(1, TIME_NS_MAX, DIGITS).expect("I2: constant, valid bounds")
        };
        Self {
            window,
            answered: [0; Kind::COUNT],
            offered: 0,
            keys: 0,
            hits: 0,
            scanned: 0,
            not_done: 0,
            errors: Errors::default(),
            response: std::array::from_fn(|_| histogram()),
            service: histogram(),
            last_ns: 0,
            turns: Turns::default(),
        }
    }

    /// Counts a request that is sent late although a client was free, in an open loop. One that
    /// waited for its key is late by the order of the trace.
    #[inline]
    pub(crate) fn note_lateness(&mut self, pending: &Pending) {
        let Window { from_ns, until_ns, open } = self.window;
        let is_late = pending.sent_ns.saturating_sub(pending.intended_ns) > LATE_NS;
        let is_due = pending.cause == Cause::Due;
        if open && is_due && is_late && (from_ns..until_ns).contains(&pending.intended_ns) {
            self.turns.late += 1;
        }
    }

    /// Counts an answer.
    #[inline]
    pub(crate) fn record(&mut self, pending: &Pending, outcome: Outcome, done_ns: u64) {
        self.last_ns = done_ns;
        let window = self.window;
        let in_window = done_ns >= window.from_ns && done_ns < window.until_ns;
        if in_window {
            self.answered[pending.kind.index()] += 1;
            match outcome {
                Outcome::Hits(hits) => {
                    self.keys += u64::from(pending.keys);
                    self.hits += u64::from(hits);
                }
                Outcome::Scanned(items) => self.scanned += u64::from(items),
                Outcome::NotDone => self.not_done += 1,
                Outcome::Done | Outcome::Failed => {}
            }
        }
        if window.open {
            self.record_open(pending, 1, Some(done_ns), done_ns);
        } else if in_window {
            let response_ns = done_ns.saturating_sub(pending.intended_ns);
            self.response[pending.kind.index()].saturating_record(response_ns);
        }
    }

    /// Counts a request whose connection was lost, as `record_unanswered` does. The connection's
    /// error was noted.
    pub(crate) fn record_lost(&mut self, pending: &Pending, now_ns: u64) {
        self.errors.lost += 1;
        if self.window.open {
            self.record_open(pending, 1, None, now_ns);
        }
    }

    /// Counts a request without an answer. In an open loop its age counts as its response time
    /// (I2), unless it is not due yet.
    pub(crate) fn record_unanswered(&mut self, pending: &Pending, now_ns: u64) {
        self.record_unsent(pending, 1, now_ns);
    }

    /// Counts this number of requests that were due at about the same time and have no answer, as
    /// `record_unanswered` does.
    pub(crate) fn record_unsent(&mut self, pending: &Pending, count: u64, now_ns: u64) {
        self.errors.unanswered += count;
        self.errors.note(|| "no answer within --patience-s".into());
        if self.window.open && pending.intended_ns <= now_ns {
            self.record_open(pending, count, None, now_ns);
        }
    }

    /// Counts a request over UDP whose answer did not arrive in time, as `record_unanswered` does.
    pub(crate) fn record_dropped(&mut self, pending: &Pending, now_ns: u64) {
        self.errors.dropped += 1;
        self.errors.note(|| "no answer within --udp-timeout-ms".into());
        if self.window.open {
            self.record_open(pending, 1, None, now_ns);
        }
    }

    #[inline]
    fn record_open(&mut self, pending: &Pending, count: u64, done_ns: Option<u64>, now_ns: u64) {
        if pending.intended_ns < self.window.from_ns || pending.intended_ns >= self.window.until_ns
        {
            return;
        }
        if pending.cause != Cause::Follows {
            self.offered += count;
        }
        let response_ns = now_ns.saturating_sub(pending.intended_ns);
        self.response[pending.kind.index()].saturating_record_n(response_ns, count);
        if let Some(done_ns) = done_ns {
            self.service.saturating_record(done_ns.saturating_sub(pending.sent_ns));
        }
    }

    /// Adds another thread's counts.
    pub(crate) fn merge(&mut self, other: &Self) {
        for kind in 0..Kind::COUNT {
            self.answered[kind] += other.answered[kind];
            self.response[kind]
                .add(&other.response[kind])
                .expect("I2: all histograms have one shape");
        }
        self.service.add(&other.service).expect("I2: all histograms have one shape");
        self.offered += other.offered;
        self.keys += other.keys;
        self.hits += other.hits;
        self.scanned += other.scanned;
        self.not_done += other.not_done;
        self.errors.add(&other.errors);
        self.last_ns = self.last_ns.max(other.last_ns);
        self.turns.add(other.turns);
    }

    /// Response times of all kinds together.
    pub(crate) fn response_of_all(&self) -> Histogram<u64> {
        let mut all = self.response[0].clone();
        for histogram in &self.response[1..] {
            all.add(histogram).expect("I2: all histograms have one shape");
        }
        all
    }

    /// Whether requests have intended send times.
    pub(crate) fn is_open(&self) -> bool {
        self.window.open
    }

    /// Requests answered within the window.
    pub(crate) fn answered_total(&self) -> u64 {
        self.answered.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending(intended_ns: u64, sent_ns: u64) -> Pending {
        Pending::due(Kind::Get, 1, 0, intended_ns, sent_ns)
    }

    #[test]
    fn only_answers_within_the_window_count() {
        let mut tally = Tally::new(Window { from_ns: 100, until_ns: 200, open: false });
        tally.record(&pending(10, 10), Outcome::Hits(1), 99);
        tally.record(&pending(90, 90), Outcome::Hits(1), 100);
        tally.record(&pending(150, 150), Outcome::Hits(0), 199);
        tally.record(&pending(150, 150), Outcome::Hits(1), 200);
        assert_eq!((tally.answered_total(), tally.keys, tally.hits), (2, 2, 1), "I1");
        assert_eq!(tally.response_of_all().len(), 2);
    }

    #[test]
    fn an_open_loop_keeps_late_and_unanswered_requests() {
        let mut tally = Tally::new(Window { from_ns: 100, until_ns: 200, open: true });
        tally.record(&pending(50, 50), Outcome::Hits(1), 150);
        tally.record(&pending(150, 5_000), Outcome::Hits(1), 6_000);
        tally.record_unanswered(&pending(160, 0), 9_000);
        tally.record_lost(&pending(170, 171), 5_000);
        // A request of a trace that no connection is left to send: its time has not come.
        tally.record_unanswered(&pending(199, 198), 198);
        let all = tally.response_of_all();
        assert_eq!((all.len(), tally.offered, tally.answered_total()), (3, 3, 1), "I2");
        assert_eq!((tally.errors.lost, tally.errors.unanswered), (1, 2));
        assert!(all.min() <= 5_850 && all.max() >= 8_836, "{} {}", all.min(), all.max());
        assert_eq!(tally.service.len(), 1);
        assert!(tally.service.max() <= 1_001);
    }

    #[test]
    fn a_request_that_is_sent_late_within_the_window_is_noted() {
        let (from_ns, until_ns) = (1_000, 10_000_000);
        for (open, intended_ns, sent_ns, late) in [
            (true, 2_000, 2_000 + LATE_NS, 0),
            (true, 2_000, 2_001 + LATE_NS, 1),
            (true, 999, 2 * LATE_NS, 0),
            (false, 2_000, 5 * LATE_NS, 0),
        ] {
            let mut tally = Tally::new(Window { from_ns, until_ns, open });
            tally.note_lateness(&pending(intended_ns, sent_ns));
            assert_eq!(tally.turns.late, late, "{open} {intended_ns} {sent_ns}");
            tally.note_lateness(&Pending { cause: Cause::Waited, ..pending(intended_ns, sent_ns) });
            assert_eq!(tally.turns.late, late, "it waited for its key");
        }
    }

    #[test]
    fn a_request_that_follows_has_a_response_time_and_was_not_offered() {
        let mut tally = Tally::new(Window { from_ns: 100, until_ns: 200, open: true });
        tally.record(&pending(150, 150), Outcome::Hits(0), 160);
        let follows = Pending { cause: Cause::Follows, kind: Kind::Set, ..pending(160, 160) };
        tally.record(&follows, Outcome::Done, 170);
        assert_eq!((tally.offered, tally.answered_total()), (1, 2));
        assert_eq!((tally.response_of_all().len(), tally.service.len()), (2, 2), "I2");
    }

    #[test]
    fn merging_adds_everything() {
        let window = Window { from_ns: 0, until_ns: u64::MAX, open: false };
        let mut left = Tally::new(window);
        let mut right = Tally::new(window);
        left.record(&pending(0, 0), Outcome::Hits(1), 10);
        right.record(&pending(0, 0), Outcome::Failed, 20);
        right.errors.refused += 1;
        right.turns = Turns { all: 3, empty: 2, late: 1 };
        right.errors.note(|| "SERVER_ERROR x".into());
        left.merge(&right);
        assert_eq!((left.answered_total(), left.keys, left.last_ns), (2, 1, 20));
        assert_eq!(
            (left.errors.total(), left.errors.first.as_deref()),
            (1, Some("SERVER_ERROR x"))
        );
        assert_eq!(left.response_of_all().len(), 2);
        assert_eq!(left.turns, Turns { all: 3, empty: 2, late: 1 });
    }
}

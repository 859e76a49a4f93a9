//! The slack of a poll: how long a long wait may keep events back, so that it reports several.
//!
//! Upstream:   the backends, before and after a long wait.
//! Downstream: nothing.
//!
//! A wait with slack costs the kernel a timer, and the client the slack. It saves a wake-up for
//! each event but the first. `experiments/e009-load-and-threads` shows that it pays from about
//! three events a wait on.
//!
//! Invariants:
//! - S1  Long waits have slack while those with slack report `EVENTS_MIN` events or more, on
//!   average over about eight of them. Otherwise one wait in `WAITS_PER_TRIAL` has slack.

/// The average number of events for which slack pays.
const EVENTS_MIN: u32 = 3;
/// The part that a wait has in the average is one in this number.
const AVERAGED: u32 = 8;
/// The most events of one wait that count, so that one burst is soon forgotten.
const EVENTS_COUNTED_MAX: u32 = 16;
/// While slack does not pay, one of this number of long waits tries it.
const WAITS_PER_TRIAL: u32 = 32;

/// The slack of one core.
#[derive(Debug)]
pub(crate) struct Slack {
    us: u32,
    /// The average number of events of a wait with slack, times [`AVERAGED`].
    average: u32,
    /// Long waits since the last one with slack.
    waits_without: u32,
}

impl Slack {
    /// A slack of this many microseconds; 0: none.
    pub(crate) const fn new(us: u32) -> Self {
        Self { us, average: EVENTS_MIN * AVERAGED, waits_without: 0 }
    }

    /// Microseconds for which the next long wait may keep events back. `None`: it may not.
    pub(crate) const fn next_us(&mut self) -> Option<u32> {
        if self.us == 0 {
            return None;
        }
        self.waits_without += 1;
        if self.average < EVENTS_MIN * AVERAGED && self.waits_without < WAITS_PER_TRIAL {
            return None; // S1
        }
        self.waits_without = 0;
        Some(self.us)
    }

    /// Notes how many events a wait with slack has reported (S1).
    pub(crate) fn note(&mut self, events: usize) {
        debug_assert!(self.us > 0 && self.waits_without == 0, "the wait had slack");
        let events = u32::try_from(events).unwrap_or(u32::MAX).min(EVENTS_COUNTED_MAX);
        self.average = self.average - self.average / AVERAGED + events;
        debug_assert!(self.average <= AVERAGED * (EVENTS_COUNTED_MAX + 1), "an average");
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Of 320 long waits, those with slack, if each of these reports `events` events.
    fn with_slack(slack: &mut Slack, events: usize) -> usize {
        let mut count = 0;
        for _ in 0..320 {
            if slack.next_us().is_some() {
                slack.note(events);
                count += 1;
            }
        }
        count
    }

    #[test]
    fn waits_have_slack_while_that_pays_and_try_it_otherwise() {
        let mut slack = Slack::new(200);
        assert_eq!(with_slack(&mut slack, 3), 320);
        assert!(with_slack(&mut slack, 1) < 20, "a few until the average has fallen");
        assert_eq!(with_slack(&mut slack, 1), 10, "one in 32");
        assert!(with_slack(&mut slack, 5) > 100, "a few trials until the average has risen");
        assert_eq!(with_slack(&mut slack, 5), 320);
        assert_eq!(with_slack(&mut slack, usize::MAX), 320, "no overflow");
        assert!(with_slack(&mut slack, 0) < 40, "a burst is soon forgotten");
    }

    #[test]
    fn no_slack_is_none() {
        assert_eq!(Slack::new(0).next_us(), None);
    }
}

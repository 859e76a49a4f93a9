//! The slack of a poll: how long a long wait may keep events back, so that it reports several.
//!
//! Upstream:   the backends, before and after a long wait.
//! Downstream: nothing.
//!
//! A wait with slack costs the kernel a timer, and the client the slack. It pays if it reports
//! several events, so that one wake-up serves them. At low load it seldom does.
//!
//! Invariants:
//! - S1  After a wait with slack that reported fewer than `EVENTS_MIN` events, the next
//!   `WAITS_WITHOUT` long waits have none.

/// The fewest events for which a wait with slack has paid.
const EVENTS_MIN: usize = 2;
/// The number of long waits after which slack is tried again.
const WAITS_WITHOUT: u32 = 32;

/// The slack of one core.
#[derive(Debug)]
pub(crate) struct Slack {
    us: u32,
    /// Long waits that still have no slack.
    waits_without: u32,
}

impl Slack {
    /// A slack of this many microseconds; 0: none.
    pub(crate) const fn new(us: u32) -> Self {
        Self { us, waits_without: 0 }
    }

    /// Microseconds for which the next long wait may keep events back. `None`: it may not.
    pub(crate) const fn next_us(&mut self) -> Option<u32> {
        if self.us == 0 {
            return None;
        }
        if self.waits_without > 0 {
            self.waits_without -= 1;
            return None;
        }
        Some(self.us)
    }

    /// Notes how many events a wait with slack has reported (S1).
    pub(crate) fn note(&mut self, events: usize) {
        debug_assert!(self.us > 0 && self.waits_without == 0, "the wait had slack");
        if events < EVENTS_MIN {
            self.waits_without = WAITS_WITHOUT;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slack_rests_after_a_wait_that_it_did_not_pay() {
        let mut slack = Slack::new(200);
        for _ in 0..3 {
            assert_eq!(slack.next_us(), Some(200));
            slack.note(EVENTS_MIN);
        }
        assert_eq!(slack.next_us(), Some(200));
        slack.note(EVENTS_MIN - 1);
        let rests = (0..WAITS_WITHOUT).all(|_| slack.next_us().is_none());
        assert!(rests && slack.next_us() == Some(200), "then it is tried again");
    }

    #[test]
    fn no_slack_is_none() {
        assert_eq!(Slack::new(0).next_us(), None);
    }
}

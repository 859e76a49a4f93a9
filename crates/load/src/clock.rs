//! The difference between the clocks of two machines, from round trips, as NTP measures it (Mills,
//! RFC 5905, section 8).
//!
//! Upstream:   the leader of a measurement asks each agent for its time.
//! Downstream: the leader tells each agent the start in the agent's own time.
//!
//! ```text
//! leader   sent -------------------- received        offset = at - (sent + received) / 2
//! agent               at                             error <= (received - sent) / 2
//! ```
//! The estimate is that of the shortest round trip, because the others waited longer somewhere.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  The true offset is within the error of the estimate, whatever the ways there and back
//!   take.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// This machine's time of day, read once, and carried on by the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    epoch: Instant,
    epoch_unix_ns: u64,
}

impl Watch {
    /// A watch that shows the time of day.
    pub(crate) fn new() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { epoch: Instant::now(), epoch_unix_ns: since.as_nanos() as u64 }
    }

    /// The time in ns since 1970.
    pub(crate) fn now_ns(self) -> u64 {
        self.at_ns(Instant::now())
    }

    /// The time of an instant that is not before the watch was made.
    pub(crate) fn at_ns(self, instant: Instant) -> u64 {
        let elapsed = instant.saturating_duration_since(self.epoch);
        self.epoch_unix_ns.saturating_add(elapsed.as_nanos() as u64)
    }

    /// The instant of a time; that of the watch's making, if the time is before it.
    pub(crate) fn instant(self, at_ns: u64) -> Instant {
        self.epoch + Duration::from_nanos(at_ns.saturating_sub(self.epoch_unix_ns))
    }
}

/// One round trip. Times are in ns, each of its machine's own clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RoundTrip {
    /// When the leader sent its question.
    pub(crate) sent_ns: u64,
    /// The agent's time.
    pub(crate) at_ns: u64,
    /// When the leader received it.
    pub(crate) received_ns: u64,
}

/// The clock of another machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Clock {
    /// Its time less ours.
    pub(crate) offset_ns: i64,
    /// The most that the offset may be wrong: half of the round trip.
    pub(crate) error_ns: u64,
}

impl Clock {
    /// The clock of the machine that answered in these round trips.
    ///
    /// Panics: there is none.
    pub(crate) fn of(trips: &[RoundTrip]) -> Self {
        let length = |trip: &&RoundTrip| trip.received_ns.saturating_sub(trip.sent_ns);
        let best = trips.iter().min_by_key(length).expect("there is a round trip");
        assert!(best.received_ns >= best.sent_ns, "I1: a clock does not go back");
        let round_ns = best.received_ns - best.sent_ns;
        let middle_ns = best.sent_ns + round_ns / 2;
        let offset_ns = i128::from(best.at_ns) - i128::from(middle_ns);
        // An agent's time that makes no sense moves the start as far as possible, which is an error
        // of the agent's own.
        let offset_ns = offset_ns.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
        Self { offset_ns, error_ns: round_ns.div_ceil(2) }
    }

    /// A time of ours as that machine's clock shows it.
    pub(crate) fn there_ns(self, here_ns: u64) -> u64 {
        here_ns.saturating_add_signed(self.offset_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A round trip to a clock that is ahead, with these times for the ways there and back.
    fn trip(sent_ns: u64, ahead_ns: i64, there_ns: u64, back_ns: u64) -> RoundTrip {
        let at_ns = (sent_ns + there_ns).saturating_add_signed(ahead_ns);
        RoundTrip { sent_ns, at_ns, received_ns: sent_ns + there_ns + back_ns }
    }

    #[test]
    fn the_offset_is_within_half_of_the_shortest_round_trip() {
        for ahead_ns in [0, 5_000_000_000, -700_000] {
            // The longer round trips are lopsided by up to 9 ms.
            let trips = [
                trip(1_000_000, ahead_ns, 9_000_000, 10_000),
                trip(20_000_000, ahead_ns, 40_000, 60_000),
                trip(30_000_000, ahead_ns, 50_000, 8_000_000),
            ];
            let clock = Clock::of(&trips);
            assert_eq!(clock, Clock { offset_ns: ahead_ns - 10_000, error_ns: 50_000 }, "I1");
            assert_eq!(clock.there_ns(40_000_000), 39_990_000_u64.saturating_add_signed(ahead_ns));
        }
    }

    #[test]
    fn a_watch_counts_from_the_time_of_day() {
        let watch = Watch::new();
        let now_ns = watch.now_ns();
        let instant = watch.instant(now_ns + 5_000_000);
        assert_eq!(watch.at_ns(instant), now_ns + 5_000_000);
        assert!(now_ns > 1_700_000_000_000_000_000, "after 2023: {now_ns}");
        assert_eq!(watch.instant(3), watch.epoch);
    }

    #[test]
    fn a_time_that_makes_no_sense_is_no_panic() {
        let mad = RoundTrip { sent_ns: 10, at_ns: u64::MAX, received_ns: 20 };
        assert_eq!(Clock::of(&[mad]).there_ns(100), 100 + i64::MAX as u64);
        let early = RoundTrip { sent_ns: u64::MAX - 5, at_ns: 0, received_ns: u64::MAX };
        assert_eq!(Clock::of(&[early]).there_ns(5), 0);
    }
}

//! Injected time: the only place of the server's core crates that reads a clock.
//!
//! Upstream:   the kernel's clocks (by the vdso, no system call), or a test.
//! Downstream: `shard` reads both once a tick and passes the numbers on.

use std::cell::Cell;
use std::rc::Rc;

use rustix::time::{ClockId, clock_gettime};

/// The time.
pub trait Clock {
    /// Nanoseconds since some fixed moment; never goes back.
    fn now_ns(&self) -> u64;
    /// Seconds since 1970 (UTC); may jump when the machine's clock is set.
    fn unix_s(&self) -> i64;
}

/// The machine's clocks. Cost: about 20 ns a reading.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_ns(&self) -> u64 {
        let now = clock_gettime(ClockId::Monotonic);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }

    fn unix_s(&self) -> i64 {
        clock_gettime(ClockId::RealtimeCoarse).tv_sec
    }
}

/// A clock that a test moves; clones show the same time.
#[derive(Clone, Debug, Default)]
pub struct ManualClock {
    now_ns: Rc<Cell<u64>>,
    unix_offset_s: Rc<Cell<i64>>,
}

impl ManualClock {
    /// A clock at 0 ns and at the given second since 1970.
    #[must_use]
    pub fn new(unix_s: i64) -> Self {
        Self { now_ns: Rc::default(), unix_offset_s: Rc::new(Cell::new(unix_s)) }
    }

    /// Moves both clocks forward.
    pub fn advance_ns(&self, ns: u64) {
        self.now_ns.set(self.now_ns.get() + ns);
    }

    /// Moves both clocks forward by whole seconds.
    pub fn advance_s(&self, s: u64) {
        self.advance_ns(s * 1_000_000_000);
    }

    /// Sets the clock of day, forward or back. `now_ns` is not affected.
    pub fn set_unix_s(&self, unix_s: i64) {
        self.unix_offset_s.set(unix_s - self.elapsed_s());
    }

    fn elapsed_s(&self) -> i64 {
        (self.now_ns.get() / 1_000_000_000) as i64
    }
}

impl Clock for ManualClock {
    fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }

    fn unix_s(&self) -> i64 {
        self.unix_offset_s.get() + self.elapsed_s()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_clock_does_not_go_back_and_knows_the_year() {
        let first = SystemClock.now_ns();
        assert!(SystemClock.now_ns() >= first);
        assert!(SystemClock.unix_s() > 1_600_000_000);
    }

    #[test]
    fn manual_clock_moves_only_by_hand_and_clones_agree() {
        let clock = ManualClock::new(1_000);
        let clone = clock.clone();
        clock.advance_ns(1_500_000_000);
        assert_eq!((clone.now_ns(), clone.unix_s()), (1_500_000_000, 1_001));
        clock.set_unix_s(500);
        assert_eq!((clone.now_ns(), clone.unix_s()), (1_500_000_000, 500));
        clock.advance_s(2);
        assert_eq!(clone.unix_s(), 502);
    }
}

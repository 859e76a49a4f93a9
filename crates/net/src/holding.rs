//! How much item memory a connection holds, and how fast its client reads it.
//!
//! Upstream:   the outbox reports when a large value begins to be held, how much of it was sent,
//!             and how much the kernel took. `shard` calls `sweep` once a second.
//! Downstream: `shard` closes the slowest holder when too much memory is pinned.
//!
//! Invariants:
//! - I1  `held_bytes` counts the bytes of large values that the kernel has not taken. While it is
//!   0, all other fields are 0: a client that has read everything starts again.

use std::cmp::Ordering;

use crate::limits::{FAIR_BYTES_PER_SECOND, HELD_SECONDS_MIN};

/// Each sweep reduces the pace by one part in this number, so a byte that was taken counts for
/// about this many sweeps. A guess: the kernel takes the pieces of an evenly reading client a
/// second or two apart.
const PACE_SWEEPS: u64 = 4;
/// A client below this pace is slow. A client that reads evenly has the bytes of `PACE_SWEEPS`
/// seconds, and the bytes of one of them may be late.
const PACE_BYTES_FAIR: u64 = FAIR_BYTES_PER_SECOND * (PACE_SWEEPS - 1);
/// The pace of a client that has just begun to hold.
const PACE_BYTES_AT_FIRST: u64 = FAIR_BYTES_PER_SECOND * PACE_SWEEPS;
/// The highest pace that is counted. A client that took a great deal and stops is slow at the third
/// sweep after that.
const PACE_BYTES_MAX: u64 = 2 * PACE_BYTES_FAIR;

/// A client that has held large values for long enough and has taken too little of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowHolder {
    /// Bytes taken recently: those of four seconds if the client reads evenly.
    pub pace_bytes: u64,
    /// Bytes of the values held that are still to be taken.
    pub held_bytes: u64,
    /// Seconds for which the client has held any value.
    pub held_s: u32,
}

impl SlowHolder {
    /// Whether this one must be closed before `other`: the slower one, and of two with the same
    /// pace the one that holds more.
    pub fn is_slower_than(&self, other: &Self) -> bool {
        match self.pace_bytes.cmp(&other.pace_bytes) {
            Ordering::Equal => self.held_bytes > other.held_bytes,
            order => order == Ordering::Less,
        }
    }
}

/// The large values that a connection holds.
#[derive(Debug)]
pub struct Holding {
    held_bytes: u64,
    /// Bytes that the kernel took while a value was held. Each sweep reduces the number.
    pace_bytes: u64,
    /// The first sweep in which the connection held a value. 0 if there was none yet.
    since: u32,
}

impl Holding {
    /// The state of a connection that holds nothing.
    pub(crate) const NONE: Self = Self { held_bytes: 0, pace_bytes: 0, since: 0 };

    /// Notes that a value of this length is held from now on. A client that has just begun counts
    /// as fair.
    pub(crate) fn begin(&mut self, value_bytes: usize) {
        if self.held_bytes == 0 {
            self.pace_bytes = PACE_BYTES_AT_FIRST;
        }
        self.held_bytes += value_bytes as u64;
    }

    /// Notes that the kernel took bytes of this connection.
    pub(crate) fn taken(&mut self, bytes: usize) {
        if self.held_bytes > 0 {
            self.pace_bytes = (self.pace_bytes + bytes as u64).min(PACE_BYTES_MAX);
        }
    }

    /// Notes that these bytes of values that [`Self::begin`] announced are no longer held.
    #[inline]
    pub(crate) fn end(&mut self, bytes: usize) {
        assert!(self.held_bytes >= bytes as u64, "I1");
        self.held_bytes -= bytes as u64;
        if self.held_bytes == 0 && bytes > 0 {
            *self = Self::NONE;
        }
    }

    /// Counts the shard's sweep with this number, one a second. Returns the client if it has held
    /// values for more than `HELD_SECONDS_MIN` and has taken them too slowly.
    pub fn sweep(&mut self, number: u32) -> Option<SlowHolder> {
        if self.held_bytes == 0 {
            return None;
        }
        if self.since == 0 {
            self.since = number;
        }
        let slow = self.slow(number);
        self.pace_bytes -= self.pace_bytes / PACE_SWEEPS;
        slow
    }

    /// Returns what the last sweep returned, unless the client has taken much since. Does not count
    /// a sweep.
    pub fn slow(&self, number: u32) -> Option<SlowHolder> {
        // The client may have begun to hold just before the first sweep.
        let is_long = self.since != 0 && number > self.since + HELD_SECONDS_MIN;
        let &Self { pace_bytes, held_bytes, .. } = self;
        let held_s = number - self.since;
        let slow = SlowHolder { pace_bytes, held_bytes, held_s };
        (is_long && pace_bytes < PACE_BYTES_FAIR).then_some(slow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// The seconds of thirty in which a client that takes `taken(second)` bytes is found slow.
    fn slow_seconds(taken: impl Fn(u32) -> usize) -> Vec<u32> {
        let mut holding = Holding::NONE;
        holding.begin(100 * MIB);
        let sweeps = (10..40).filter(|&second| {
            holding.taken(taken(second));
            holding.sweep(second).is_some()
        });
        sweeps.collect()
    }

    #[test]
    fn who_takes_nothing_is_slow_once_it_has_held_for_long_enough() {
        assert_eq!(slow_seconds(|_| 0)[..2], [13, 14]);
        // A socket's buffer was filled at first.
        assert_eq!(slow_seconds(|second| if second == 10 { 4 * MIB } else { 0 })[0], 13);
    }

    #[test]
    fn who_takes_a_fair_part_each_second_is_never_slow_though_it_comes_in_lumps() {
        const FAIR: usize = FAIR_BYTES_PER_SECOND as usize;
        assert!(slow_seconds(|_| FAIR).is_empty());
        for phase in 0..2 {
            let lumps = |second| if second % 2 == phase { 2 * FAIR } else { 0 };
            assert!(slow_seconds(lumps).is_empty(), "{phase}");
        }
        for phase in 0..3 {
            let lumps = |second| if second % 3 == phase { 4 * FAIR } else { 0 };
            assert!(slow_seconds(lumps).is_empty(), "{phase}");
        }
        assert!(slow_seconds(|_| FAIR / 2).len() > 20);
    }

    #[test]
    fn who_was_fast_and_stops_is_slow_soon() {
        let slow = slow_seconds(|second| if second < 20 { 50 * MIB } else { 0 });
        assert_eq!(slow[0], 22);
    }

    #[test]
    fn who_was_sent_all_begins_anew() {
        let mut holding = Holding::NONE;
        holding.begin(MIB);
        holding.begin(2 * MIB);
        assert_eq!((10..13).find_map(|second| holding.sweep(second)), None);
        holding.end(2 * MIB);
        let held = |slow: Option<SlowHolder>| slow.map(|slow| slow.held_bytes);
        assert_eq!(held(holding.sweep(13)), Some(MIB as u64));
        holding.end(MIB);
        assert_eq!(holding.sweep(14), None);
        holding.begin(MIB);
        assert_eq!((15..18).find_map(|second| holding.sweep(second)), None);
        assert_eq!(held(holding.sweep(18)), Some(MIB as u64));
    }
}

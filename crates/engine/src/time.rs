//! The seconds that all shards agree on, and the meaning of a TTL in them.
//!
//! Upstream:   `shard` reads the clock once per tick, after receiving.
//! Downstream: every expiry and every access time is one of these seconds.
//!
//! Invariants:
//! - I1  Second 1 has passed when the process begins. An item that expires at once gets expiry 1.
//! - I2  Expiry 0 means never, so no second is 0.
//!
//! The process begins in second 2, as in memcached.

/// The second in which the process begins.
const FIRST_SECOND: u32 = 2;
/// memcached counts its seconds from so much earlier, so that its process begins in second 62.
const MEMCACHED_LEAD_S: i64 = 60;
/// TTLs up to 30 days are relative; a greater TTL is a Unix time.
const RELATIVE_TTL_MAX: i32 = 60 * 60 * 24 * 30;

/// A TTL as the client sent it: 0 never expires, up to 30 days is relative, a greater number is a
/// Unix time, a negative number expires at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ttl(pub i32);

/// The time from which the process counts seconds. It is the same for all shards.
#[derive(Clone, Copy, Debug)]
pub struct ClockOrigin {
    start_ns: u64,
    /// The Unix time of second 0.
    unix_s: i64,
}

impl ClockOrigin {
    /// The origin of a process that starts at `start_ns` of the monotonic clock, at Unix time
    /// `unix_s`.
    pub fn new(start_ns: u64, unix_s: i64) -> Self {
        Self { start_ns, unix_s: unix_s - i64::from(FIRST_SECOND) }
    }

    /// The same time, counted as by a process that went on from an earlier one: this process begins
    /// in second `second`. So the seconds that the earlier one wrote down keep their meaning.
    ///
    /// Panics: if the second is before the first one of any process, or after `i32::MAX`.
    #[must_use]
    pub fn resumed_in(self, second: u32) -> Self {
        assert!(
            second >= FIRST_SECOND && i32::try_from(second).is_ok(),
            "I1: a second of a process"
        );
        let earlier_s = second - FIRST_SECOND;
        let earlier_ns = u64::from(earlier_s) * 1_000_000_000;
        // The machine may have started after the earlier process did, so the number may wrap.
        let start_ns = self.start_ns.wrapping_sub(earlier_ns);
        Self { start_ns, unix_s: self.unix_s - i64::from(earlier_s) }
    }

    /// When second [`FIRST_SECOND`] began, in nanoseconds of the monotonic clock. The number may
    /// have wrapped: that second may be before the start of the machine.
    pub const fn start_ns(&self) -> u64 {
        self.start_ns
    }

    /// The time at `now_ns` of the monotonic clock.
    pub fn at(&self, now_ns: u64) -> Now {
        let elapsed = self.elapsed_ns(now_ns) / 1_000_000_000;
        let elapsed = u32::try_from(elapsed).unwrap_or(u32::MAX - FIRST_SECOND);
        Now { second: elapsed + FIRST_SECOND, origin: *self }
    }

    /// The Unix time in microseconds at `now_ns` of the monotonic clock.
    pub fn unix_us(&self, now_ns: u64) -> u64 {
        let start_us =
            self.unix_s.saturating_add(i64::from(FIRST_SECOND)).saturating_mul(1_000_000);
        let elapsed_us = self.elapsed_ns(now_ns) / 1_000;
        u64::try_from(start_us).unwrap_or(0).saturating_add(elapsed_us)
    }

    /// Nanoseconds since the start, in which the process may have been resumed; 0 before the start.
    fn elapsed_ns(&self, now_ns: u64) -> u64 {
        let elapsed = now_ns.wrapping_sub(self.start_ns);
        if elapsed > i64::MAX as u64 { 0 } else { elapsed }
    }

    /// The time at which the process starts.
    pub const fn start(&self) -> Now {
        Now { second: FIRST_SECOND, origin: *self }
    }
}

/// The time of a tick, which every operation of the tick gets.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// The second, never 0 (I2).
    pub second: u32,
    origin: ClockOrigin,
}

impl Now {
    /// The same time, or second `second` if that is later.
    #[must_use]
    pub const fn no_earlier_than(self, second: u32) -> Self {
        debug_assert!(self.second >= FIRST_SECOND, "I2: no second is 0");
        if second > self.second { Self { second, ..self } } else { self }
    }

    /// The expiry that `ttl` means now: 0 means never (I2).
    #[inline]
    pub fn expiry(&self, ttl: Ttl) -> u32 {
        debug_assert!(self.second >= FIRST_SECOND, "I2: no second is 0");
        match ttl.0 {
            0 => 0,
            relative @ 1..=RELATIVE_TTL_MAX => self.second.saturating_add(relative.unsigned_abs()),
            negative if negative < 0 => 1,
            absolute => {
                let second = i64::from(absolute) - self.origin.unix_s;
                u32::try_from(second).map_or(1, |expiry| expiry.max(1))
            }
        }
    }

    /// Whether `ttl` is a Unix time from before the first second that memcached counts. It begins a
    /// minute before this process would. A flush in such a second flushes nothing.
    pub fn is_uncounted(&self, ttl: Ttl) -> bool {
        let second = i64::from(ttl.0) - self.origin.unix_s;
        ttl.0 > RELATIVE_TTL_MAX && second + MEMCACHED_LEAD_S <= 1
    }

    /// The time a number of seconds later.
    #[must_use]
    pub const fn later_by(self, seconds: u32) -> Self {
        Self { second: self.second.saturating_add(seconds), ..self }
    }

    /// Seconds since the process began.
    pub const fn since_start(&self) -> u32 {
        self.second - FIRST_SECOND
    }

    /// Seconds of life that an expiry leaves; `None` when the item never expires.
    #[inline]
    pub fn ttl_left(&self, expiry: u32) -> Option<i64> {
        (expiry != 0).then(|| i64::from(expiry) - i64::from(self.second))
    }

    /// The Unix time of a second of this process.
    pub fn unix(&self, second: u32) -> i64 {
        self.origin.unix_s + i64::from(second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_goes_on_from_the_seconds_of_an_earlier_one() {
        // The machine has run for 5 s, the earlier process counted 10,000 s.
        let first = ClockOrigin::new(5_000_000_000, 1_700_000_000);
        let origin = first.resumed_in(10_000);
        let now = origin.at(7_500_000_000);
        assert_eq!((now.second, now.unix(now.second)), (10_002, 1_700_000_002));
        assert_eq!(now.expiry(Ttl(1_700_000_100)), 10_100);
        assert_eq!(now.since_start(), 10_000);
        assert_eq!(origin.unix_us(7_500_000_000), 1_700_000_002_500_000);
        assert_eq!(first.resumed_in(2).at(7_500_000_000).second, first.at(7_500_000_000).second);
        assert_eq!(first.at(4_000_000_000).second, 2, "before its start");
    }

    #[test]
    fn ttls_mean_what_they_mean_in_memcached() {
        let origin = ClockOrigin::new(5_000_000_000, 1_700_000_000);
        let now = origin.at(15_500_000_000);
        assert_eq!(now.second, 12);
        assert_eq!(origin.unix_us(15_500_000_000), 1_700_000_010_500_000);
        let rows = [
            (0, 0),
            (1, 13),
            (RELATIVE_TTL_MAX, 12 + 2_592_000),
            (-1, 1),
            (i32::MIN, 1),
            (RELATIVE_TTL_MAX + 1, 1),
            (1_700_000_000, 2),
            (1_700_000_100, 102),
            (i32::MAX, 2_147_483_647 - 1_699_999_998),
        ];
        for (ttl, expiry) in rows {
            assert_eq!(now.expiry(Ttl(ttl)), expiry, "TTL {ttl}");
        }
        for (ttl, is_uncounted) in [
            (i32::MIN, false),
            (0, false),
            (RELATIVE_TTL_MAX, false),
            (RELATIVE_TTL_MAX + 1, true),
            (1_699_999_939, true),
            (1_699_999_940, false),
            (i32::MAX, false),
        ] {
            assert_eq!(now.is_uncounted(Ttl(ttl)), is_uncounted, "TTL {ttl}");
        }
    }
}

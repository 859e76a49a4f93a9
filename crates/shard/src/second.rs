//! The one second that all shards agree on, and what a TTL means in it.
//!
//! Upstream:   `tick` reads the clock once, after receiving.
//! Downstream: every expiry and every access time is one of these seconds.
//!
//! Invariants:
//! - I1  Second 1 is past from the start: what expires at once is given expiry 1.
//! - I2  Expiry 0 means never, so no second is 0.
//!
//! As memcached counts: the process begins in second 2.

use kachel_wire::request::Ttl;

/// The second in which the process begins.
const FIRST_SECOND: u32 = 2;
/// TTLs up to this are relative, beyond it absolute: 30 days.
const RELATIVE_TTL_MAX: i32 = 60 * 60 * 24 * 30;

/// Where the process's seconds begin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Epoch {
    start_ns: u64,
    /// The Unix time of second 0.
    pub(crate) unix_s: i64,
}

impl Epoch {
    /// The epoch of a process that starts at `start_ns` of the monotonic clock, at Unix time
    /// `unix_s`.
    pub(crate) fn new(start_ns: u64, unix_s: i64) -> Self {
        Self { start_ns, unix_s: unix_s - i64::from(FIRST_SECOND) }
    }

    /// The second at `now_ns` of the monotonic clock.
    pub(crate) fn second(&self, now_ns: u64) -> u32 {
        let elapsed = now_ns.saturating_sub(self.start_ns) / 1_000_000_000;
        u32::try_from(elapsed).unwrap_or(u32::MAX - FIRST_SECOND) + FIRST_SECOND
    }

    /// The expiry that `ttl` means in `second`: 0 never (I2).
    #[inline]
    pub(crate) fn expiry(&self, ttl: Ttl, second: u32) -> u32 {
        match ttl.0 {
            0 => 0,
            relative @ 1..=RELATIVE_TTL_MAX => second.saturating_add(relative.unsigned_abs()),
            negative if negative < 0 => 1,
            absolute => {
                u32::try_from(i64::from(absolute) - self.unix_s).map_or(1, |expiry| expiry.max(1))
            }
        }
    }

    /// The Unix time of a second.
    pub(crate) fn unix(&self, second: u32) -> i64 {
        self.unix_s + i64::from(second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ttls_mean_what_they_mean_in_memcached() {
        let epoch = Epoch::new(5_000_000_000, 1_700_000_000);
        let second = epoch.second(15_500_000_000);
        assert_eq!(second, 12);
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
            assert_eq!(epoch.expiry(Ttl(ttl), second), expiry, "TTL {ttl}");
        }
    }
}

//! How the seconds of a process become Unix times, which keep their meaning over a restart.
//!
//! Upstream:   an engine with files, for the expiry and the age of an item.
//! Downstream: `time`.

use crate::time::Now;

/// The Unix time from which the process counts its seconds.
#[derive(Clone, Copy, Debug)]
pub struct KeptSeconds {
    origin_unix_s: i64,
}

impl KeptSeconds {
    /// The origin of the process that `now` belongs to.
    #[must_use]
    pub fn of(now: &Now) -> Self {
        Self { origin_unix_s: now.unix(0) }
    }

    /// The Unix time of a second; 0 stays 0. A time before 1 becomes 1, and one after `u32::MAX`
    /// becomes `u32::MAX`.
    #[must_use]
    pub fn to_unix(self, second: u32) -> u32 {
        if second == 0 {
            return 0;
        }
        let unix_s = self.origin_unix_s.saturating_add(second.into()).max(1);
        u32::try_from(unix_s).unwrap_or(u32::MAX)
    }

    /// The second of a Unix time; 0 stays 0. A time before the start of the process becomes 1.
    #[must_use]
    pub fn of_unix(self, unix_s: u32) -> u32 {
        if unix_s == 0 {
            return 0;
        }
        let second = i64::from(unix_s).saturating_sub(self.origin_unix_s).max(1);
        u32::try_from(second).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::ClockOrigin;

    #[test]
    fn a_second_keeps_its_meaning_over_a_restart() {
        let seconds = |unix_s| KeptSeconds::of(&ClockOrigin::new(0, unix_s).start());
        let (before, after) = (seconds(1_800_000_000), seconds(1_800_000_100));
        assert_eq!((before.to_unix(2), before.to_unix(0)), (1_800_000_000, 0));
        assert_eq!(after.of_unix(before.to_unix(152)), 52);
        assert_eq!((after.of_unix(before.to_unix(50)), after.of_unix(0)), (1, 0), "it was before");
        assert_eq!(after.of_unix(before.to_unix(1)), 1, "what expires at once has expired");
        let last = before.to_unix(u32::MAX);
        assert_eq!((last, after.of_unix(last)), (u32::MAX, u32::MAX - 1_800_000_098));
    }
}

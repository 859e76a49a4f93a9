//! The memory that values of deleted items may take, so that they do not crowd out live items.
//!
//! Upstream:   `primitives`, before it stores a remnant.
//! Downstream: nothing.
//!
//! Time is divided into windows, each as long as such a value is kept. A value that still lives was
//! stored in this window or in the one before. So it is enough to count the bytes of two windows;
//! the end of a value need not be noticed.
//!
//! Invariants:
//! - I1  The bytes that were admitted in two consecutive windows are at most the share that was
//!   passed, unless all values are kept.

/// The memory that the leases of one shard have used.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    has_leased: bool,
    /// Whether values take no share of the memory.
    admits_all: bool,
    /// The number of the current window.
    window: u32,
    /// Bytes admitted in the window before, and in the current one.
    bytes: [u64; 2],
}

impl Leases {
    /// Whether a client has ever taken a lease.
    #[inline]
    pub(crate) const fn has_leased(&self) -> bool {
        self.has_leased
    }

    /// Notes that a client takes a lease.
    pub(crate) const fn begin(&mut self) {
        debug_assert!(self.bytes[0] + self.bytes[1] == 0 || self.has_leased, "leases keep values");
        self.has_leased = true;
    }

    /// From now on each value is kept, and a remnant may come without a lease.
    pub(crate) const fn admit_all(&mut self) {
        self.begin();
        self.admits_all = true;
    }

    /// Whether a stale value of `bytes` bytes may be kept for `keep_s` seconds. If so, counts it.
    pub(crate) fn admit(&mut self, bytes: u64, share: u64, keep_s: u32, second: u32) -> bool {
        if self.admits_all {
            return true;
        }
        // Cores read the clock at different moments, so the second may be an earlier one.
        let window = (second / keep_s.max(1)).max(self.window);
        debug_assert!(second != 0, "no second is 0");
        self.bytes = match window - self.window {
            0 => self.bytes,
            1 => [self.bytes[1], 0],
            _ => [0; 2],
        };
        self.window = window;
        let admitted = self.bytes[0] + self.bytes[1] + bytes <= share;
        self.bytes[1] += if admitted { bytes } else { 0 };
        debug_assert!(!admitted || self.bytes[0] + self.bytes[1] <= share, "I1");
        bytes == 0 || admitted
    }
}

#[cfg(test)]
mod tests {
    use super::Leases;

    #[test]
    fn stale_values_take_no_more_than_their_share_in_two_windows() {
        let mut leases = Leases::default();
        assert!(leases.admit(60, 100, 10, 5));
        assert!(!leases.admit(41, 100, 10, 9), "the share is used");
        assert!(leases.admit(40, 100, 10, 12), "the next window counts both");
        assert!(!leases.admit(1, 100, 10, 19));
        assert!(leases.admit(60, 100, 10, 20), "the first window is over");
        assert!(!leases.admit(101, 100, 10, 90));
        assert!(leases.admit(100, 100, 10, 90));
        assert!(leases.admit(0, 0, 10, 90), "an empty value takes nothing");
    }

    #[test]
    fn copies_take_no_share() {
        let mut leases = Leases::default();
        leases.admit_all();
        assert!(leases.has_leased() && leases.admit(u64::MAX, 0, 10, 5));
        assert!(leases.admit(u64::MAX, 0, 10, 5), "nothing was counted");
    }

    #[test]
    fn nothing_is_kept_before_the_first_lease() {
        let mut leases = Leases::default();
        assert!(!leases.has_leased());
        leases.begin();
        assert!(leases.has_leased());
    }
}

//! The sleeping flag. Of the threads that give work to a sleeping thread, exactly one wakes it.
//!
//! Upstream:   the owner, before it waits in the kernel; wakers, after they published work for it.
//! Downstream: nothing. The caller decides how to sleep and how to wake (an eventfd, a message).
//!
//! ```text
//!           owner: prepare_sleep            waker: must_wake -> true
//!   awake ------------------------> asleep --------------------------> awake, a wake-up is sent
//!     ^                               |
//!     +-------------------------------+
//!           owner: cancel -> true
//! ```
//!
//! Invariants:
//! - I1  If work is published before `must_wake`, then the owner's check of its work after
//!   `prepare_sleep` finds it, or `must_wake` finds the owner asleep: two sequentially consistent
//!   fences, one between each one's write and its read (Dekker), forbid that both miss.
//! - I2  Each `prepare_sleep` is ended by one `cancel` or one `must_wake` that returned true; never
//!   by two.

use crate::CachePadded;
use crate::sync::{AtomicBool, Ordering, fence};

/// The flag that an owner raises before it sleeps; shared by reference with all threads that may
/// wake it.
#[derive(Debug)]
pub struct Sleeper {
    asleep: CachePadded<AtomicBool>,
}

impl Sleeper {
    /// A sleeper that is awake.
    pub fn new() -> Self {
        Self { asleep: CachePadded::new(AtomicBool::new(false)) }
    }

    /// Owner: announces sleep. After this, the owner must check all sources of work once more, and
    /// then sleep or `cancel`.
    ///
    /// Cost: one swap and one full fence; sleeping costs more.
    pub fn prepare_sleep(&self) {
        // A read-modify-write, so that it stands after every earlier waker's in the flag's history.
        self.asleep.swap(true, Ordering::Relaxed);
        fence(Ordering::SeqCst); // I1: the flag is visible before the owner looks again.
    }

    /// Owner: ends the sleep that it announced, because it found work or has slept enough.
    ///
    /// Returns false when a waker was first. Its wake-up is on the way or has arrived, and may find
    /// no work later. A call while the owner is awake is harmless and also returns false.
    pub fn cancel(&self) -> bool {
        self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed)
    }

    /// Waker: returns whether it must wake the owner. Call this after publishing work. It returns
    /// true to one waker per sleep (I2).
    ///
    /// Cost: one full fence and one load of a line that is written only when the owner sleeps.
    #[must_use = "whoever is told true is the only one to wake the owner"]
    pub fn must_wake(&self) -> bool {
        fence(Ordering::SeqCst); // I1: the work is visible before the flag is read.
        self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed)
    }
}

impl Default for Sleeper {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_waker_a_sleep_is_told_to_wake() {
        let sleeper = Sleeper::new();
        assert!(!sleeper.must_wake());
        sleeper.prepare_sleep();
        assert!(sleeper.must_wake());
        assert!(!sleeper.must_wake());
        assert!(!sleeper.cancel());
        sleeper.prepare_sleep();
        assert!(sleeper.cancel());
        assert!(!sleeper.must_wake());
    }
}

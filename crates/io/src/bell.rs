//! The state of a waker: whether the polling thread sleeps, and whether a thread has rung.
//!
//! Upstream:   any thread rings, by way of `Waker::wake`.
//! Downstream: the polling thread takes the ring. Only waking a sleeping thread costs a system
//!             call.
//!
//! ```text
//!            ring                       ring (the ringer must rouse the sleeper)
//!   AWAKE ---------> RUNG <----------------------- ASLEEP
//!     |  <---------   |                              ^
//!     |     take      +--- ring ---> RUNG            |
//!     +---------------- fall_asleep -----------------+   ASLEEP --- take ---> AWAKE
//! ```
//!
//! Invariants, cited by number where they are asserted:
//! - I1  After a ring, either a later `take` returns true or `fall_asleep` returns false. A ring
//!   that finds ASLEEP reports it. No ring is lost.
//! - I2  Writes of a thread before its ring are visible to the thread that takes the ring.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU8, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU8, Ordering};

const AWAKE: u8 = 0;
const ASLEEP: u8 = 1;
const RUNG: u8 = 2;

/// The state of a waker; see the picture in the module's documentation.
#[derive(Debug)]
pub(crate) struct Bell {
    state: AtomicU8,
}

impl Bell {
    /// A bell whose owner is awake.
    pub(crate) fn new() -> Self {
        Self { state: AtomicU8::new(AWAKE) }
    }

    /// Rings; true when the owner sleeps and the caller must rouse it.
    pub(crate) fn ring(&self) -> bool {
        // A read-modify-write even if the state is RUNG already, so that the owner's next take sees
        // the earlier writes of this thread (I2).
        self.state.swap(RUNG, Ordering::AcqRel) == ASLEEP
    }

    /// Owner only: marks the owner awake. Returns whether a thread rang since the last call.
    pub(crate) fn take(&self) -> bool {
        if self.state.load(Ordering::Relaxed) == AWAKE {
            return false; // A ring on its way is seen by the next take or by fall_asleep (I1).
        }
        self.state.swap(AWAKE, Ordering::AcqRel) == RUNG
    }

    /// Whether a ring is not taken yet; for an owner that never blocks.
    pub(crate) fn is_rung(&self) -> bool {
        self.state.load(Ordering::Relaxed) == RUNG
    }

    /// Owner only, before it blocks: marks the owner asleep. Returns false when a thread rang, and
    /// then the owner must not block.
    pub(crate) fn fall_asleep(&self) -> bool {
        self.state.compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_ring_while_awake_is_taken_once_and_rouses_nobody() {
        let bell = Bell::new();
        assert!(!bell.take());
        assert!(!bell.ring());
        assert!(!bell.ring());
        assert!(!bell.fall_asleep());
        assert!(bell.take());
        assert!(!bell.take());
    }

    #[test]
    fn only_the_first_ring_rouses_a_sleeper() {
        let bell = Bell::new();
        assert!(bell.fall_asleep());
        assert!(bell.ring());
        assert!(!bell.ring());
        assert!(bell.take());
        assert!(bell.fall_asleep());
        assert!(!bell.take(), "woken by something else");
    }
}

#[cfg(all(test, loom))]
mod tests {
    use super::Bell;
    use kachel_stdx::model::explore;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32, Ordering};

    /// The eventfd's part: a count that a sleeper waits for.
    #[test]
    fn no_message_is_lost_between_looking_and_sleeping() {
        // All interleavings with two ringers take minutes; three preemptions take seconds. All of
        // them have been run once.
        explore("bell", Some(3), || {
            let bell = Arc::new(Bell::new());
            let message = Arc::new(AtomicU32::new(0));
            let roused = Arc::new(AtomicU32::new(0));
            let ringers: Vec<_> = (0..2)
                .map(|_| {
                    let (bell, message, roused) = (bell.clone(), message.clone(), roused.clone());
                    loom::thread::spawn(move || {
                        message.fetch_add(1, Ordering::Relaxed);
                        if bell.ring() {
                            roused.fetch_add(1, Ordering::Release);
                        }
                    })
                })
                .collect();
            let mut seen = 0;
            while seen < 2 {
                if bell.fall_asleep() {
                    while roused.load(Ordering::Acquire) == 0 {
                        loom::thread::yield_now();
                    }
                    roused.fetch_sub(1, Ordering::AcqRel);
                }
                if bell.take() {
                    seen = message.load(Ordering::Relaxed);
                }
            }
            for ringer in ringers {
                ringer.join().unwrap();
            }
        });
    }
}

//! What calls the home core of an engine, besides the lock of the engine: room that has come, a
//! time that has come, and operations on files that are left. And the cores that an advance of the
//! durable word calls, or an operation on a file that has completed. Any core looks at it without
//! the lock.
//!
//! Upstream:   `entered` arms the call for room and notes the deadline under the lock; the cores
//!             that read items call.
//! Downstream: the home core looks before it sleeps and once a tick.
//!
//! ```text
//!         arm (lock)          call (any core)
//! quiet ------------> armed ------------------> called
//!   ^                                             |
//!   +------------- take (lock) -------------------+
//! ```
//!
//! Invariants:
//! - K1  A core arms the call before it looks whether the room is there, and marks a reader that is
//!   in the way (`kachel_stdx::Quiescence`, I6). A reader that finds its mark calls each engine
//!   that is armed. So room that comes after the look calls the engine.
//! - K2  Who calls wakes the home core afterwards. The home core raises its sleeping flag before it
//!   looks for the last time (`mailboxes`, M1). If it finds a call while another core holds the
//!   engine, it marks the lock (`kachel_stdx::CombiningLock`, C4), and the holder takes the call or
//!   wakes it.
//! - K3  The holder counts completed operations before it takes the cores to be woken. A core that
//!   waits for one names itself before it looks at the count. So it finds another count than the
//!   one that it has seen, or it is woken.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence};

use kachel_net::CoreIndex;

use crate::context::Context;
use crate::cores::throttle::NEVER_NS;

const QUIET: u8 = 0;
const ARMED: u8 = 1;
const CALLED: u8 = 2;

/// The calls of one engine.
#[derive(Debug)]
pub(crate) struct Calls {
    room: AtomicU8,
    deadline_ns: AtomicU64,
    /// Whether the engine has operations on files that no backend had room for.
    has_unsubmitted: AtomicBool,
    /// A bit for each core that an advance wakes (`fences`, F2), or a completed operation (K3).
    fenced: Box<[AtomicU64]>,
    /// The operations on files that the engine has completed (K3).
    completed: AtomicU64,
}

impl Calls {
    /// Nothing calls, and nothing is armed. There are `cores` cores.
    pub(crate) fn new(cores: usize) -> Self {
        let fenced = (0..cores.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Self {
            room: AtomicU8::new(QUIET),
            deadline_ns: AtomicU64::new(NEVER_NS),
            has_unsubmitted: AtomicBool::new(false),
            fenced,
            completed: AtomicU64::new(0),
        }
    }

    /// Under the lock: counts completed operations on files (K3). The caller wakes the cores of
    /// [`Self::take_fenced`] afterwards.
    pub(crate) fn note_completed(&self, operations: u64) {
        let before = self.completed.load(Ordering::Relaxed);
        self.completed.store(before + operations, Ordering::Relaxed);
    }

    /// The operations on files that the engine has completed. Cost: a load.
    pub(crate) fn completed(&self) -> u64 {
        self.completed.load(Ordering::Relaxed)
    }

    /// Has an advance, or a completed operation, wake a core. The caller looks at the durable word
    /// (`fences`, F2) or at the count (K3) afterwards.
    pub(crate) fn await_advance(&self, core: CoreIndex) {
        let core = core.number();
        self.fenced[core / 64].fetch_or(1 << (core % 64), Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Takes the cores that wait for an advance (`fences`, F2) or for a completed operation (K3),
    /// which the caller has made or seen.
    /// Cost: a fence, and a load for 64 cores.
    #[cold]
    pub(crate) fn take_fenced(&self, mut wake: impl FnMut(CoreIndex)) {
        fence(Ordering::SeqCst);
        for (first, word) in (0..).step_by(64).zip(&self.fenced) {
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut left = word.swap(0, Ordering::Relaxed);
            while left != 0 {
                wake(CoreIndex(first + left.trailing_zeros() as u16));
                left &= left - 1;
            }
        }
    }

    /// Under the lock: arms the call for room (K1).
    pub(crate) fn arm_room(&self) {
        self.room.store(ARMED, Ordering::Relaxed); // The mark of the reader releases it.
    }

    /// Under the lock: ends the call for room. Returns whether the engine was called.
    pub(crate) fn take_room(&self) -> bool {
        let is_called = self.is_room_called();
        if is_called {
            self.room.store(QUIET, Ordering::Relaxed);
        }
        is_called
    }

    /// Under the lock: nothing waits for room any more.
    pub(crate) fn disarm_room(&self) {
        self.room.store(QUIET, Ordering::Relaxed);
    }

    /// Calls the engine if it is armed. Returns whether the caller must wake the home core (K2).
    #[must_use]
    pub(crate) fn call_room(&self) -> bool {
        let (armed, relaxed) = (ARMED, Ordering::Relaxed);
        self.room.load(relaxed) == armed
            && self.room.compare_exchange(armed, CALLED, relaxed, relaxed).is_ok()
    }

    /// Whether room has come. Cost: a load.
    #[inline]
    pub(crate) fn is_room_called(&self) -> bool {
        self.room.load(Ordering::Relaxed) == CALLED
    }

    /// Whether anything calls the home core now: room that has come, a time that has come, or
    /// operations on files for which its backend has room. Cost: three loads.
    #[inline]
    pub(crate) fn are_due(&self, context: &Context) -> bool {
        self.is_room_called()
            || self.deadline_ns() <= context.now_ns()
            || self.has_unsubmitted() && context.file_room.get() > 0
    }

    /// Under the lock: notes whether operations on files are left with the engine.
    pub(crate) fn set_unsubmitted(&self, has_some: bool) {
        self.has_unsubmitted.store(has_some, Ordering::Relaxed);
    }

    /// Whether operations on files are left with the engine. Cost: a load.
    #[inline]
    pub(crate) fn has_unsubmitted(&self) -> bool {
        self.has_unsubmitted.load(Ordering::Relaxed)
    }

    /// Under the lock: notes when the engine wants to be entered at the latest.
    pub(crate) fn set_deadline_ns(&self, deadline_ns: u64) {
        self.deadline_ns.store(deadline_ns, Ordering::Relaxed);
    }

    /// When the engine wants to be entered at the latest; [`NEVER_NS`] if the time does not matter.
    /// Cost: a load.
    #[inline]
    pub(crate) fn deadline_ns(&self) -> u64 {
        self.deadline_ns.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_called_once_each_time_it_is_armed() {
        let calls = Calls::new(1);
        assert!(!calls.call_room() && !calls.is_room_called(), "nothing waits");
        calls.arm_room();
        assert!(calls.call_room() && !calls.call_room() && calls.is_room_called());
        assert!(calls.take_room() && !calls.take_room());
        calls.arm_room();
        calls.disarm_room();
        assert!(!calls.call_room() && calls.deadline_ns() == NEVER_NS);
    }

    #[test]
    fn each_core_that_waits_for_an_advance_is_woken_once() {
        let calls = Calls::new(130);
        for core in [0, 63, 64, 129, 64] {
            calls.await_advance(CoreIndex(core));
        }
        let mut woken = Vec::new();
        calls.take_fenced(|core| woken.push(core.0));
        calls.take_fenced(|core| panic!("{core} is woken twice"));
        assert_eq!(woken, [0, 63, 64, 129]);
    }
}

//! The flush word: one word of the process. It tells all threads what is flushed.
//!
//! Upstream:   any thread writes it for a flush; owners of memory, and readers on other threads,
//!             load it.
//! Downstream: an owner stamps each part of its memory with the epoch in which it is opened; what
//!             has the stamp of an earlier epoch than the word's is flushed.
//!
//! ```text
//! bit  0                            32                           64
//!      +-----------------------------+----------------------------+
//!      | second of a delayed flush   | epoch: how many flushes    |
//!      | (0: none is pending)        | there have been            |
//!      +-----------------------------+----------------------------+
//! ```
//!
//! A reader loads the word after the slot that names what it reads. A writer that stamped it had
//! loaded the word before it stored the slot, so the reader never sees a word older than the stamp.
//!
//! Invariants:
//! - F1  A flush is one compare-and-swap, so all flushes of the process have one order, and each
//!   happens to all owners at once.
//! - F2  The epoch grows by one with each flush. Epochs are compared as serial numbers, so a
//!   part must be reused before 2^31 flushes have followed the one that killed it.
//! - F3  Once the second of a pending flush has come, the word stands for the next epoch. The
//!   thread that notices this first writes the next epoch into the word before it serves anything.

use std::fmt;

use crossbeam_utils::CachePadded;

use crate::sync::AtomicU64;
use crate::sync::Ordering::{AcqRel, Acquire};

/// The flush word, as it was at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flushed(u64);

impl Flushed {
    const fn new(epoch: u32, due: u32) -> Self {
        Self((epoch as u64) << 32 | due as u64)
    }

    /// The number of flushes so far.
    #[inline]
    pub const fn epoch(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The second of the pending flush, or 0.
    const fn due(self) -> u32 {
        self.0 as u32
    }

    const fn is_due(self, now: u32) -> bool {
        self.due() != 0 && self.due() <= now
    }

    /// The word that this one stands for in second `now` (F3).
    const fn settled(self, now: u32) -> Self {
        if self.is_due(now) { Self::new(self.epoch().wrapping_add(1), 0) } else { self }
    }
}

/// Whether what is stamped with `stamp` was flushed before `epoch` (F2).
#[inline]
pub const fn is_before(stamp: u32, epoch: u32) -> bool {
    stamp.wrapping_sub(epoch).cast_signed() < 0
}

/// The flush word of a process, on a cache line of its own: all cores read it with every lookup,
/// and only flushes write it.
pub struct FlushWord(CachePadded<AtomicU64>);

impl Default for FlushWord {
    /// A word with no flush so far.
    fn default() -> Self {
        Self::resumed(0, 0)
    }
}

impl FlushWord {
    /// The word of a process that goes on from an earlier one: there were `epoch` flushes, and one
    /// is pending in second `due`, unless that is 0.
    pub fn resumed(epoch: u32, due: u32) -> Self {
        Self(CachePadded::new(AtomicU64::new(Flushed::new(epoch, due).0)))
    }

    /// Loads the word. Cost: one load.
    #[inline]
    pub fn load(&self) -> Flushed {
        Flushed(self.0.load(Acquire))
    }

    /// Kills everything stored so far by any owner, and forgets a pending flush. `now` is the
    /// second.
    pub fn flush(&self, now: u32) {
        self.change(|flushed| Flushed::new(flushed.settled(now).epoch().wrapping_add(1), 0));
    }

    /// Schedules a flush: in second `due`, it kills everything that is stored until then. It
    /// replaces a pending flush that is not due in second `now`.
    ///
    /// Panics: when `due` is 0, which stands for no pending flush.
    pub fn flush_in(&self, due: u32, now: u32) {
        assert!(due != 0, "second 0 is never");
        self.change(|flushed| Flushed::new(flushed.settled(now).epoch(), due));
    }

    /// Forgets a pending flush that is not due in second `now`.
    pub fn cancel(&self, now: u32) {
        self.change(|flushed| Flushed::new(flushed.settled(now).epoch(), 0));
    }

    /// The second of the pending flush, if there is one that is not due in second `now`.
    pub fn pending(&self, now: u32) -> Option<u32> {
        Some(self.load().settled(now).due()).filter(|&due| due != 0)
    }

    /// Carries out a pending flush that is due in second `now` (F3). Returns the word after that.
    /// Cost: one load, and a compare-and-swap once for each delayed flush.
    #[inline]
    pub fn settle(&self, now: u32) -> Flushed {
        let flushed = self.load();
        if !flushed.is_due(now) {
            return flushed;
        }
        let settled = self.change(|flushed| flushed.settled(now));
        debug_assert!(!settled.is_due(now), "F3");
        settled
    }

    /// Changes the word in one step (F1). Returns the new word.
    fn change(&self, change: impl Fn(Flushed) -> Flushed) -> Flushed {
        let mut before = self.load();
        loop {
            let after = change(before);
            let ahead = after.epoch().wrapping_sub(before.epoch());
            assert!(ahead <= 2, "F2: a pending flush that is due and one more, at most");
            match self.0.compare_exchange(before.0, after.0, AcqRel, Acquire) {
                Ok(_) => return after,
                Err(other) => before = Flushed(other),
            }
        }
    }
}

impl fmt::Debug for FlushWord {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.load().fmt(formatter)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_pending_flush_is_the_next_epoch_from_its_second_on() {
        let word = FlushWord::default();
        word.flush_in(12, 10);
        for (now, epoch, due) in [(10, 0, 12), (11, 0, 12), (12, 1, 0), (13, 1, 0)] {
            assert_eq!(word.settle(now), Flushed::new(epoch, due), "second {now}");
        }
        // A due flush that no owner has noticed still counts when another flush follows.
        word.flush_in(20, 13);
        word.flush_in(30, 25);
        assert_eq!(word.load(), Flushed::new(2, 30));
        word.flush(31);
        assert_eq!(word.load(), Flushed::new(4, 0));
    }

    #[test]
    fn a_later_flush_takes_the_place_of_a_pending_one() {
        let word = FlushWord::default();
        word.flush_in(20, 10);
        word.flush_in(30, 11);
        assert_eq!(word.settle(25), Flushed::new(0, 30));
        word.flush(26);
        assert_eq!(word.settle(40), Flushed::new(1, 0));
        word.flush_in(50, 41);
        word.cancel(49);
        assert_eq!(word.settle(60), Flushed::new(1, 0));
        word.flush_in(70, 61);
        word.cancel(70);
        assert_eq!(word.settle(70), Flushed::new(2, 0), "it was due");
    }

    #[test]
    fn epochs_are_compared_across_the_end_of_their_range() {
        for epoch in [0, 1, u32::MAX - 1, u32::MAX] {
            let next = epoch.wrapping_add(1);
            assert!(is_before(epoch, next) && !is_before(epoch, epoch) && !is_before(next, epoch));
        }
        let word = FlushWord::resumed(u32::MAX, 0);
        word.flush(9);
        assert_eq!(word.load(), Flushed::new(0, 0));
    }
}

//! The word that tells up to which sequence the changes of an engine are durable.
//!
//! Upstream:   the engine, which makes the word when it starts, and advances it under its lock.
//! Downstream: any core that holds replies back until their changes are durable.
//!
//! Invariants:
//! - D1  The number never decreases.
//! - D2  What the engine wrote before an advance is visible to a core that sees the advance
//!   (release, acquire).
//! - D3  After the disk has failed, the number does not grow any more.

use core::sync::atomic::{AtomicU64, Ordering};

/// A number that an engine gives to its changes, in the order in which they become durable. Changes
/// that become durable together should have the same number: each different number for which a
/// connection holds replies back takes one of its reply slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sequence(pub u64);

impl Sequence {
    /// The sequence of what never becomes durable. No change has it.
    pub const NEVER: Self = Self(FAILED - 1);
}

/// Set in the word once the disk has failed.
const FAILED: u64 = 1 << 63;

/// The greatest sequence up to which all changes of an engine are durable, and whether its disk has
/// failed.
#[derive(Debug, Default)]
pub struct DurableWord(AtomicU64);

impl DurableWord {
    /// Whether the change of this sequence is durable. Cost: a load.
    #[inline]
    #[must_use]
    pub fn has_reached(&self, sequence: Sequence) -> bool {
        self.sequence() >= sequence
    }

    /// The sequence. Cost: a load.
    #[inline]
    #[must_use]
    pub fn sequence(&self) -> Sequence {
        Sequence(self.state() & !FAILED)
    }

    /// A number that grows with each advance, and when the disk fails. Cost: a load.
    #[inline]
    #[must_use]
    pub fn state(&self) -> u64 {
        self.0.load(Ordering::Acquire) // D2
    }

    /// Whether the disk has failed. Cost: a load.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.state() & FAILED != 0
    }

    /// Whether what has this sequence will never be durable. Cost: two loads.
    #[must_use]
    pub fn is_lost(&self, sequence: Sequence) -> bool {
        (sequence == Sequence::NEVER || self.has_failed()) && !self.has_reached(sequence)
    }

    /// Notes that the disk has failed: what is not durable now is lost (D3).
    pub fn fail(&self) {
        self.0.fetch_or(FAILED, Ordering::Release);
    }

    /// Notes that all changes up to `sequence` are durable.
    ///
    /// Panics: if fewer are durable than before (D1), or the disk has failed (D3).
    pub fn advance(&self, sequence: Sequence) {
        let before = self.0.swap(sequence.0, Ordering::Release); // D2
        assert!(before & FAILED == 0, "D3: to {} after the failure", sequence.0);
        assert!(before <= sequence.0, "D1: from {before} back to {}", sequence.0);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn all_sequences_up_to_the_last_advance_are_durable() {
        let word = DurableWord::default();
        assert!(word.has_reached(Sequence(0)) && !word.has_reached(Sequence(1)));
        word.advance(Sequence(7));
        word.advance(Sequence(7));
        assert!(word.has_reached(Sequence(7)) && !word.has_reached(Sequence(8)));
    }

    #[test]
    fn what_is_not_durable_when_the_disk_fails_is_lost() {
        let word = DurableWord::default();
        word.advance(Sequence(7));
        assert!(!word.is_lost(Sequence(8)) && word.is_lost(Sequence::NEVER));
        let before = word.state();
        word.fail();
        assert!(word.state() > before && word.sequence() == Sequence(7));
        assert!(word.has_reached(Sequence(7)) && !word.is_lost(Sequence(7)));
        assert!(!word.has_reached(Sequence(8)) && word.is_lost(Sequence(8)));
    }

    #[test]
    #[should_panic(expected = "D3")]
    fn nothing_becomes_durable_after_the_failure() {
        let word = DurableWord::default();
        word.fail();
        word.advance(Sequence(1));
    }

    #[test]
    #[should_panic(expected = "D1")]
    fn it_does_not_go_back() {
        let word = DurableWord::default();
        word.advance(Sequence(2));
        word.advance(Sequence(1));
    }
}

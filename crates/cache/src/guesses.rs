//! Where the items of the batch that was prefetched last probably are, in the order of the batch.
//!
//! Upstream:   `find`: a batch's prefetch notes a guess for each key, each lookup takes the next.
//! Downstream: `table`, which confirms a guess.
//!
//! Invariants:
//! - I1  A guess is only where a lookup looks first. If its slot has changed, or the item there has
//!   another key, the lookup searches both buckets. So guesses that are taken in another order, or
//!   that are left over, cost time and nothing else.

use std::cell::Cell;

use kachel_engine::BATCH_MAX;
use kachel_table::Guess;

/// The guesses of one batch.
#[derive(Debug, Default)]
pub(crate) struct Guesses {
    guesses: [Cell<Option<Guess>>; BATCH_MAX],
    /// How many were noted, and how many of them were taken.
    noted: Cell<usize>,
    taken: Cell<usize>,
}

impl Guesses {
    /// Forgets all guesses.
    #[inline]
    pub(crate) fn clear(&self) {
        self.noted.set(0);
        self.taken.set(0);
    }

    /// Notes the guess for the next key of the batch.
    ///
    /// Panics: when a batch is too long.
    #[inline]
    pub(crate) fn note(&self, guess: Option<Guess>) {
        let noted = self.noted.get();
        self.guesses[noted].set(guess);
        self.noted.set(noted + 1);
    }

    /// Notes another guess for a key of the batch.
    #[inline]
    pub(crate) fn set(&self, place: usize, guess: Guess) {
        debug_assert!(place < self.noted.get(), "the key has a place in the batch");
        self.guesses[place].set(Some(guess));
    }

    /// The guess for a key of the batch.
    #[inline]
    pub(crate) fn at(&self, place: usize) -> Option<Guess> {
        debug_assert!(place < self.noted.get(), "the key has a place in the batch");
        self.guesses[place].get()
    }

    /// The guess for the key that is looked up now (I1).
    #[inline]
    pub(crate) fn take(&self) -> Option<Guess> {
        let taken = self.taken.get();
        if taken == self.noted.get() {
            return None;
        }
        self.taken.set(taken + 1);
        self.guesses[taken].get()
    }
}

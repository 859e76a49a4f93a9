//! Where the items of a batch probably are, for a core that reads them beside their owners.
//!
//! Upstream:   a core that reads a batch of keys, of one engine or of several.
//! Downstream: [`ReadBeside`], the reader of each engine.

use crate::contract::ReadBeside;
use crate::extensions::{BATCH_MAX, Lookup};

/// The guesses of one batch, in its order.
#[derive(Debug)]
pub struct ReadGuesses<G>([Option<G>; BATCH_MAX]);

impl<G: Copy> ReadGuesses<G> {
    /// No guess for any key.
    pub const NONE: Self = Self([None; BATCH_MAX]);

    /// The guess for the key at a place of the batch.
    #[inline]
    pub const fn at(&self, place: usize) -> Option<G> {
        self.0[place]
    }

    /// Prefetches what a batch is about to read, as the steps of [`ReadBeside`] say: each step for
    /// all keys, then the next step, which uses its result. `batch` has a reader and what it will
    /// look up for each key, `None` for a key that this core does not read so.
    ///
    /// Cost: a line or two of the index and a few prefetches per key; for a single key nothing.
    /// Panics: on a batch of more than [`BATCH_MAX`] keys.
    #[inline]
    pub fn of<'r, R>(batch: impl Iterator<Item = Option<(&'r R, Lookup)>> + Clone) -> Self
    where
        R: ReadBeside<Guess = G>,
    {
        debug_assert!(batch.clone().count() <= BATCH_MAX, "a batch is not longer");
        let mut guesses = Self::NONE;
        if batch.clone().nth(1).is_none() {
            return guesses;
        }
        for (reader, lookup) in batch.clone().flatten() {
            reader.prefetch(lookup);
        }
        let mut elsewhere = 0_u32;
        for (place, beside) in batch.clone().enumerate() {
            let Some((reader, lookup)) = beside else { continue };
            guesses.0[place] = reader.guess(lookup);
            elsewhere |= u32::from(guesses.0[place].is_none()) << place;
        }
        if elsewhere == 0 {
            return guesses;
        }
        for (place, beside) in batch.enumerate().filter(|&(place, _)| elsewhere >> place & 1 == 1) {
            guesses.0[place] = beside.and_then(|(reader, lookup)| reader.guess_again(lookup));
        }
        guesses
    }
}

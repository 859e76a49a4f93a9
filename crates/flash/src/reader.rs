//! Reads items that are in memory, on any core, while their owner works.
//!
//! Upstream:   a shard that reads a key of another engine.
//! Downstream: the reader of the cache; `recent`, for what a read must wait for.
//!
//! Only the owner knows the index, so a miss in memory is the owner's to answer.

use std::sync::Arc;

use kachel_cache::{CachePinned, CacheReader};
use kachel_engine::{
    ClassStats, DeadFound, Durability, DurableWord, GetTerms, Key, Lookup, Now, ReadAnswer,
    ReadBeside, Verdict,
};
use kachel_stdx::Reader;

use crate::recent::RecentChanges;

/// Reads the items of one engine from any core.
#[derive(Clone, Debug)]
pub struct FlashReader {
    pub(crate) cache: CacheReader,
    pub(crate) recent: Arc<RecentChanges>,
    pub(crate) durable: Arc<DurableWord>,
}

impl ReadBeside for FlashReader {
    type Pinned = CachePinned;
    type Guess = <CacheReader as ReadBeside>::Guess;

    #[inline]
    fn prefetch(&self, lookup: Lookup) {
        self.cache.prefetch(lookup);
    }

    #[inline]
    fn guess(&self, lookup: Lookup) -> Option<Self::Guess> {
        self.cache.guess(lookup)
    }

    #[inline]
    fn guess_again(&self, lookup: Lookup) -> Option<Self::Guess> {
        self.cache.guess_again(lookup)
    }

    #[inline]
    fn read<'r>(
        &'r self,
        key: &Key<'_>,
        guess: Option<Self::Guess>,
        terms: &GetTerms,
        round: &'r Reader,
        now: &Now,
        dead_found: &mut DeadFound,
    ) -> ReadAnswer<'r, CachePinned> {
        let found_before = *dead_found;
        match self.cache.read(key, guess, terms, round, now, dead_found) {
            ReadAnswer::Done(outcome, _) if outcome.verdict != Verdict::Miss => {
                // Loaded after the item was read: `recent`, N1.
                let sequence = self.recent.last(key.secret_hash());
                if self.durable.is_lost(sequence) {
                    return ReadAnswer::AskOwner;
                }
                ReadAnswer::Done(outcome, Durability::of(sequence, &self.durable))
            }
            _ => {
                *dead_found = found_before; // The owner finds it, too.
                ReadAnswer::AskOwner
            }
        }
    }

    fn class_stats(&self, class: u8) -> ClassStats {
        self.cache.class_stats(class)
    }
}

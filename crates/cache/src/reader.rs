//! Reading a cache from any core without a lock, while its owner works. The owner is the core that
//! uses the engine at that time.
//!
//! Upstream:   a shard that reads a key of another shard; tests and models.
//! Downstream: `lookup`, over the table's reader and the pool; `kachel_engine::get_unchanged`.
//!
//! ```text
//! look up --> live, dead or nowhere --> the verb decides --> no change -----> Done(outcome)
//!        |                                              |--> a change ------> AskOwner
//!        |                                              `--> `never read` --> AskOwner
//!        |--> a large value, or slots that moved during each attempt -------> AskOwner
//!        |--> an item that moved while its flush was looked up -------------> AskOwner
//!        `--> the item was moved before its read was noted -----------------> AskOwner
//! ```
//!
//! A read takes place at the moment of the acquiring load of the slot. If the owner replaces or
//! removes the item after this moment, the reader still answers with the old item.
//!
//! Invariants:
//! - R1  A core may read only if it is registered with the pool and awake. A lent value borrows the
//!   registration, so the core cannot end its round while it holds the value.
//! - R2  A reader writes only the access word of an item, while fewer than three reads are counted
//!   in it, and the flush word, if a delayed flush is due. It does not remove dead items.
//! - R3  An answer is the one that the owner would have given at the moment of the read. If the
//!   verb's decision changes an item, or a value must be pinned, or the answer says that the item
//!   was never read, only the owner can answer. So it is if the answer tells the reads of an item,
//!   and copies answer some of them.
//! - R4  A reader never reads the blocks of a large value, because the owner may reuse them for
//!   another item.

use std::sync::Arc;

use kachel_engine::{
    ClassStats, DeadFound, Durability, GetTerms, Key, Lookup, Now, ReadAnswer, ReadBeside, Wanted,
    get_unchanged,
};
use kachel_segment::{ClassCounts, Item, ItemAt, Pool};
use kachel_table::{BucketChoice, Guess, KeyHash, Location, Seen};

use crate::cache::Cache;
use crate::index::item_at;
use crate::item::CachedItem;
use crate::large::CachePinned;
use crate::lookup::{Found, View, look_up};
use crate::stats::class_stats;

/// Reads the items of one shard from any core. [`Cache::reader`] makes it.
#[derive(Clone, Debug)]
pub struct CacheReader {
    slots: kachel_table::Reader,
    pool: Arc<Pool>,
    classes: Arc<ClassCounts>,
    /// Whether copies of items answer reads, too.
    has_copies: bool,
}

/// All cores may share one reader.
const _: fn() = || {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<CacheReader>();
};

/// The table and the items, as seen by a core that does not own them.
#[derive(Clone, Copy)]
struct Beside<'v> {
    reader: &'v CacheReader,
    guess: Option<Guess>,
    round: &'v kachel_stdx::Reader,
    second: u32,
}

impl<'v> View<'v> for Beside<'v> {
    #[inline]
    fn probe(self, hash: KeyHash, mut is_key: impl FnMut(Location) -> bool) -> Seen {
        let guessed = self.guess.and_then(|guess| self.reader.slots.confirm(guess));
        if let Some(location) = guessed.filter(|&location| is_key(location)) {
            return Seen::At(location);
        }
        self.reader.slots.find(hash, is_key)
    }

    #[inline]
    fn item(self, at: ItemAt) -> Item<'v> {
        self.reader.pool.item(at, self.round)
    }

    #[inline]
    fn is_flushed(self, item: &Item<'_>) -> Option<bool> {
        self.reader.pool.is_flushed(item, self.second, self.round)
    }
}

impl Cache {
    /// Returns a reader of this cache for other cores. The reader keeps the address space of the
    /// index and the items, so after the cache is dropped it still finds the last items.
    pub fn reader(&self) -> CacheReader {
        CacheReader {
            slots: self.table.reader(),
            pool: Arc::clone(self.segments.pool()),
            classes: Arc::clone(self.segments.class_counts()),
            has_copies: self.changes.are_reported(),
        }
    }
}

impl CacheReader {
    /// Guesses where an item is by one bucket, and prefetches the item.
    #[inline]
    fn guess_in(&self, lookup: Lookup, choice: BucketChoice) -> Option<Guess> {
        let guess = self.slots.guess(KeyHash(lookup.secret_hash), choice)?;
        self.pool.prefetch_small(item_at(guess.location()));
        Some(guess)
    }
}

impl ReadBeside for CacheReader {
    type Pinned = CachePinned;
    type Guess = Guess;

    #[inline]
    fn prefetch(&self, lookup: Lookup) {
        self.slots.prefetch_bucket(KeyHash(lookup.secret_hash), BucketChoice::First);
    }

    #[inline]
    fn guess(&self, lookup: Lookup) -> Option<Guess> {
        let guess = self.guess_in(lookup, BucketChoice::First);
        if guess.is_none() {
            self.slots.prefetch_bucket(KeyHash(lookup.secret_hash), BucketChoice::Second);
        }
        guess
    }

    #[inline]
    fn guess_again(&self, lookup: Lookup) -> Option<Guess> {
        self.guess_in(lookup, BucketChoice::Second)
    }

    /// Cost: one cache line of the table if the guess is right, else three or four; one of the
    /// segment, one with the flush word, and those of the item. R2 says which of them are written.
    ///
    /// Panics: `round` is asleep, or is registered with another pool (R1).
    #[inline(always)]
    fn read<'r>(
        &'r self,
        key: &Key<'_>,
        guess: Option<Guess>,
        terms: &GetTerms,
        round: &'r kachel_stdx::Reader,
        now: &Now,
        dead_found: &mut DeadFound,
    ) -> ReadAnswer<'r, CachePinned> {
        assert!(self.pool.is_read_by(round), "R1: a core that reads is registered, awake");
        debug_assert!(now.second != 0, "no second is 0");
        let view = Beside { reader: self, guess, round, second: now.second };
        let (found, death) = match look_up(view, key, now.second) {
            Found::Live(item) if item.is_large() => return ReadAnswer::AskOwner, // R4
            Found::Live(_) if self.has_copies && terms.wanted.has(Wanted::ACCESS) => {
                return ReadAnswer::AskOwner; // R3: the owner counts the reads of the copy first.
            }
            Found::Live(item) => (Some(CachedItem(item)), None),
            Found::Dead(_, death) => (None, Some(death)),
            Found::Nowhere => (None, None),
            Found::Unsettled => return ReadAnswer::AskOwner,
        };
        let Some(outcome) = get_unchanged(terms, found.as_ref(), now) else {
            return ReadAnswer::AskOwner; // R3
        };
        debug_assert!(found.is_none() || death.is_none(), "a key has one item");
        debug_assert!(found.as_ref().is_none_or(|item| !item.0.is_large()), "R4");
        if let Some(death) = death {
            death.count_in(dead_found);
        }
        if let Some(CachedItem(item)) = found
            && terms.notes_access // R2
            && !item.is_remnant() // A request that misses it, or a lease, does not read it.
            && !item.note_access(now.second)
        {
            return ReadAnswer::AskOwner; // The owner has just moved the item.
        }
        ReadAnswer::Done(outcome, Durability::Now)
    }

    fn class_stats(&self, class: u8) -> ClassStats {
        class_stats(self.classes.of(class))
    }
}

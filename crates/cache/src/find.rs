//! Finds the item of a key, for the owner. It removes dead items that it finds.
//!
//! Upstream:   `primitives`; the batches of `shard` prefetch first.
//! Downstream: `lookup`, over the owner's own table and segments.
//!
//! Invariants:
//! - I1  An item that is found is live in the current second, and no shard has flushed it before. A
//!   dead item is removed and counted.

use kachel_engine::{BATCH_MAX, Key, Lookup, Now};
use kachel_segment::{FoundItem, Item, ItemAt};
use kachel_table::{BucketChoice, KeyHash, Location, Seen};

use crate::cache::Cache;
use crate::index::item_at;
use crate::lookup::{Death, Found, View, look_up};

impl<'v> View<'v> for &'v Cache {
    #[inline(always)]
    fn probe(self, hash: KeyHash, mut is_key: impl FnMut(Location) -> bool) -> Seen {
        let guessed = self.guesses.take().and_then(|guess| self.table.confirm(guess));
        if let Some(location) = guessed.filter(|&location| is_key(location)) {
            return Seen::At(location);
        }
        self.table.find(hash, is_key).map_or(Seen::Nowhere, Seen::At)
    }

    #[inline(always)]
    fn item(self, at: ItemAt) -> Item<'v> {
        self.segments.item(at)
    }

    #[inline(always)]
    fn is_flushed(self, item: &Item<'_>) -> Option<bool> {
        Some(self.segments.is_flushed(item.at()))
    }
}

/// The numbers of the bits that are set.
fn places(mut bits: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let place = bits.trailing_zeros() as usize;
        bits &= bits.checked_sub(1)?;
        Some(place)
    })
}

impl Cache {
    /// Prefetches what a batch is about to look up, in steps: the first bucket of each key; the
    /// item that the key probably has there, or the second bucket; the item that it probably has in
    /// the second one; and, if items are not small, the rest of the items whose value is wanted.
    /// Each step is done for all keys, then the next step uses its result. Notes where the items
    /// probably are.
    ///
    /// Cost: one or two buckets read and a few prefetches per key; if items are not small, a header
    /// read and up to 29 prefetches more. For a single key it does nothing.
    #[inline]
    pub(crate) fn fetch(&self, batch: impl Iterator<Item = Lookup> + Clone) {
        debug_assert!(batch.clone().count() <= BATCH_MAX, "a batch has at most 32 operations");
        self.guesses.clear();
        if batch.clone().nth(1).is_none() {
            return;
        }
        let mut hashes = [KeyHash(0); BATCH_MAX];
        let (mut keys, mut read) = (0, 0_u32);
        for (hash, lookup) in hashes.iter_mut().zip(batch) {
            *hash = KeyHash(lookup.secret_hash);
            self.table.prefetch_bucket(*hash, BucketChoice::First);
            read |= u32::from(lookup.value) << keys;
            keys += 1;
        }
        let hashes = &hashes[..keys];
        let mut elsewhere = 0_u32;
        for (place, &hash) in hashes.iter().enumerate() {
            let guess = self.table.guess(hash, BucketChoice::First);
            self.guesses.note(guess);
            if let Some(guess) = guess {
                self.segments.prefetch_small(item_at(guess.location()));
            } else {
                self.table.prefetch_bucket(hash, BucketChoice::Second);
                elsewhere |= 1 << place;
            }
        }
        for place in places(elsewhere) {
            let Some(guess) = self.table.guess(hashes[place], BucketChoice::Second) else {
                continue;
            };
            self.guesses.set(place, guess);
            self.segments.prefetch_small(item_at(guess.location()));
        }
        if self.segments.are_small(self.table.len()) {
            return;
        }
        for guess in places(read).filter_map(|place| self.guesses.at(place)) {
            self.segments.prefetch_rest(item_at(guess.location()));
        }
    }

    /// The live item under `key` (I1).
    #[inline(always)]
    pub(crate) fn find_live(&mut self, key: &Key<'_>, now: &Now) -> Option<FoundItem> {
        if !self.segments.is_flush_noted() {
            self.note_flush(now);
        }
        let (at, death) = match look_up(&*self, key, now.second) {
            Found::Live(item) => {
                debug_assert!(!item.is_dead(), "cache, I1: the index names no dead item");
                return Some(item.found());
            }
            Found::Dead(at, death) => (at, death),
            Found::Nowhere => return None,
            Found::Unsettled => unreachable!("no entry moves while its owner looks"),
        };
        self.bury(key, at, death);
        None
    }

    #[cold]
    fn bury(&mut self, key: &Key<'_>, at: ItemAt, death: Death) {
        debug_assert!(self.segments.key_is(at, key.bytes()), "I1: the item that was looked up");
        self.unlink(key, at);
        debug_assert!(!self.segments.item(at).is_dead(), "it dies here");
        self.segments.reclaim_dead(at);
        match death {
            Death::Expired => self.last_dead.note_expired(key.secret_hash()),
            Death::Flushed => self.last_dead.note_flushed(key.secret_hash()),
        }
        death.count_in(&mut self.dead_found);
    }
}

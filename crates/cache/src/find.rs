//! Finds the item of a key, for the owner. It removes dead items that it finds.
//!
//! Upstream:   `primitives`; the batches of `shard` prefetch first.
//! Downstream: `lookup`, over the owner's own table and segments.
//!
//! Invariants:
//! - I1  An item that is found is live in the current second, and no shard has flushed it before. A
//!   dead item is removed and counted.

use kachel_engine::{BATCH_MAX, Key, Lookup, Now};
use kachel_segment::{Item, ItemAt};
use kachel_table::{KeyHash, Location, Seen};

use crate::cache::Cache;
use crate::index::item_at;
use crate::lookup::{Death, Found, View, look_up};

impl<'v> View<'v> for &'v Cache {
    #[inline(always)]
    fn probe(self, hash: KeyHash, is_key: impl FnMut(Location) -> bool) -> Seen {
        self.table.find(hash, is_key).map_or(Seen::Nowhere, Seen::At)
    }

    #[inline(always)]
    fn item(self, at: ItemAt) -> Item<'v> {
        self.segments.item(at)
    }

    #[inline(always)]
    fn is_flushed(self, at: ItemAt) -> bool {
        self.segments.is_flushed(at)
    }
}

impl Cache {
    /// Prefetches what a batch is about to look up, in steps: the two buckets of each key; the
    /// first cache lines of the item that each key probably has; and, if items are not small, the
    /// rest of the items whose value is wanted. Each step is done for all keys, then the next step
    /// uses its result.
    ///
    /// Cost: a bucket read and six prefetches per key; if items are not small, a header read and up
    /// to 29 prefetches more. For a single key it does nothing.
    #[inline]
    pub(crate) fn fetch(&self, batch: impl Iterator<Item = Lookup> + Clone) {
        debug_assert!(batch.clone().count() <= BATCH_MAX, "a batch has at most 32 operations");
        if batch.clone().nth(1).is_none() {
            return;
        }
        batch.clone().for_each(|lookup| self.table.prefetch(KeyHash(lookup.secret_hash)));
        let candidate =
            |lookup: Lookup| self.table.candidate(KeyHash(lookup.secret_hash)).map(item_at);
        if self.segments.are_small(self.table.len()) {
            batch.filter_map(candidate).for_each(|at| self.segments.prefetch_small(at));
            return;
        }
        let mut read = [None; BATCH_MAX];
        for (place, lookup) in read.iter_mut().zip(batch) {
            let Some(at) = candidate(lookup) else { continue };
            self.segments.prefetch_small(at);
            *place = lookup.value.then_some(at);
        }
        read.into_iter().flatten().for_each(|at| self.segments.prefetch_rest(at));
    }

    /// The place of the live item under `key` (I1).
    #[inline(always)]
    pub(crate) fn find_live(&mut self, key: &Key<'_>, now: &Now) -> Option<ItemAt> {
        if !self.segments.is_flush_noted() {
            self.note_flush(now);
        }
        let (at, death) = match look_up(&*self, key, now.second) {
            Found::Live(item) => {
                debug_assert!(!item.is_dead(), "cache, I1: the index names no dead item");
                return Some(item.at());
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
        match death {
            Death::Expired => self.segments.expire(at),
            Death::Flushed => self.segments.kill(at),
        }
        death.count_in(&mut self.dead_found);
    }
}

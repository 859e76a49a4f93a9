//! Finding a key's item; an item that has expired or was flushed is refused here.
//!
//! Upstream:   `primitives`; the batches of `shard` prefetch first.
//! Downstream: `table` probes, `segment` compares the key and says whether the item lives.
//!
//! Invariants:
//! - I1  What is found is live in the current second, and no shard has flushed it before. A dead
//!   item is removed on the way.

use kachel_engine::{BATCH_MAX, Engine as _, Key, Lookup, Now};
use kachel_segment::ItemAt;
use kachel_table::KeyHash;

use crate::cache::Cache;
use crate::index::{item_at, location};

impl Cache {
    /// Fetches what a batch is about to look up: the two buckets of each key; then the first lines
    /// of the item that each key probably has, which is all of it where items are small; where they
    /// are not, the rest of the items whose value is wanted. Each step waits for the one before it,
    /// for all keys at once.
    ///
    /// Cost: a bucket read and six prefetches a key; where items are not small, a header read and
    /// up to 29 prefetches more. Nothing for one key alone.
    #[inline]
    pub(crate) fn fetch(&self, batch: impl Iterator<Item = Lookup> + Clone) {
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

    /// The live item under `key`. An item that has died is removed and counted here (I1).
    #[inline(always)]
    pub(crate) fn find_live(&mut self, key: &Key<'_>, now: &Now) -> Option<ItemAt> {
        if !self.segments.is_flush_noted() {
            self.note_flush(now);
        }
        let segments = &self.segments;
        let is_key = |location| segments.key_is(item_at(location), key.bytes());
        let at = item_at(self.table.find(KeyHash(key.secret_hash()), is_key)?);
        if self.segments.is_live(at, now.second) {
            return Some(at);
        }
        self.bury(key, at, now);
        None
    }

    #[cold]
    fn bury(&mut self, key: &Key<'_>, at: ItemAt, now: &Now) {
        let item = self.segments.item(at);
        let removed = self.table.remove(KeyHash(key.secret_hash()), location(at));
        assert!(removed, "cache, I1: a found item is in the table");
        if item.expiry() != 0 && item.expiry() <= now.second {
            self.found_expired += 1;
            self.segments.expire(at);
        } else {
            self.found_flushed += 1;
            self.segments.kill(at);
        }
    }
}

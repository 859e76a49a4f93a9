//! Finding a key's item; one that has expired or was flushed is refused here.
//!
//! Upstream:   every verb; the batches of `serve` and `hop` prefetch first.
//! Downstream: `table` probes, `segment` compares the key and says whether the item lives.
//!
//! Invariants:
//! - I1  What `find` gives is live in the current second. What is not is removed on the way.

use kachel_table::KeyHash;

use super::{Engine, Found, item_at, location};

impl Engine {
    /// Brings near what a batch of keys is about to look at: first the two buckets of each, then
    /// the item that each probably has. Cost: two prefetches and a bucket read a key; nothing for
    /// one.
    #[inline]
    pub(crate) fn prefetch(&self, hashes: impl Iterator<Item = KeyHash> + Clone) {
        if hashes.clone().nth(1).is_none() {
            return;
        }
        hashes.clone().for_each(|hash| self.table.prefetch(hash));
        for location in hashes.filter_map(|hash| self.table.candidate(hash)) {
            self.segments.prefetch(item_at(location));
        }
    }

    /// The live item under `key`. One that has died of time is removed and counted here (I1).
    #[inline]
    pub(crate) fn find(&mut self, key: &[u8], hash: KeyHash) -> Option<Found> {
        let segments = &self.segments;
        let found = self.table.find(hash, |location| segments.key_is(item_at(location), key))?;
        let at = item_at(found);
        if self.segments.is_live(at, self.second) {
            return Some(at);
        }
        self.bury(hash, at);
        None
    }

    #[cold]
    fn bury(&mut self, hash: KeyHash, at: Found) {
        let item = self.segments.item(at);
        let removed = self.table.remove(hash, location(at));
        assert!(removed, "I1: a found item is in the table");
        if item.expiry() != 0 && item.expiry() <= self.second {
            self.counters.get_expired.add(1);
            self.segments.expire(at);
        } else {
            self.counters.get_flushed.add(1);
            self.segments.kill(at);
        }
    }
}

//! Finding a key's item; one that has expired or was flushed is refused here.
//!
//! Upstream:   every verb; the batches of `serve` and `hop` prefetch first.
//! Downstream: `table` probes, `segment` compares the key and says whether the item lives.
//!
//! Invariants:
//! - I1  What `find` gives is live in the current second, and no shard has flushed it before. What
//!   is not is removed on the way.

use kachel_table::KeyHash;

use super::{Engine, Found, item_at, location};
use crate::BATCH_REQUESTS_MAX;

/// What a request of a batch will look at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) hash: KeyHash,
    /// Whether the value is read, too.
    pub(crate) value: bool,
}

impl Engine {
    /// Brings near what a batch is about to look at: the two buckets of each key; then the first
    /// lines of the item that each probably has, which is all of it where items are small; where
    /// they are not, the rest of those whose value is wanted. Each step waits for the one before
    /// it, but for all keys at once.
    ///
    /// Cost: a bucket read and six prefetches a key; where items are not small, a header read and
    /// up to 29 prefetches more. Nothing for one key alone.
    #[inline]
    pub(crate) fn prefetch(&self, batch: impl Iterator<Item = Wanted> + Clone) {
        if batch.clone().nth(1).is_none() {
            return;
        }
        batch.clone().for_each(|wanted| self.table.prefetch(wanted.hash));
        let candidate = |wanted: Wanted| self.table.candidate(wanted.hash).map(item_at);
        if self.segments.are_small(self.table.len()) {
            batch.filter_map(candidate).for_each(|at| self.segments.prefetch_small(at));
            return;
        }
        let mut read = [None; BATCH_REQUESTS_MAX];
        for (place, wanted) in read.iter_mut().zip(batch) {
            let Some(at) = candidate(wanted) else { continue };
            self.segments.prefetch_small(at);
            *place = wanted.value.then_some(at);
        }
        read.into_iter().flatten().for_each(|at| self.segments.prefetch_rest(at));
    }

    /// The live item under `key`. One that has died of time is removed and counted here (I1).
    #[inline]
    pub(crate) fn find(&mut self, key: &[u8], hash: KeyHash) -> Option<Found> {
        if !self.segments.is_flush_noted() {
            self.note_flush();
        }
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

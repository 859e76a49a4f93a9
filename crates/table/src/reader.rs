//! Looking up from another core, while the owner inserts, moves, removes, grows.
//!
//! Upstream:   `cache`'s reader, on a core that does not own the table.
//! Downstream: `lines`, word by word; the caller's closure reads the item and compares its key.
//!
//! ```text
//! shape, both versions -> fourteen slots, one by one -> a hit: done
//!   ^                              |
//!   |                              v a miss
//!   +---- something changed --- both versions, shape again ---- all as before: a true miss
//! ```
//!
//! Invariants:
//! - I1  A key that is in the table all the while is never missed: a reader that finds a slot empty
//!   that a move has cleared also finds the version (`bucket`, I4) or the shape (`lines`, I1)
//!   changed.
//! - I2  A location is one that the owner stored for an item with this tag, and what was written
//!   before it was stored is visible.
//! - I3  The item at a location stays what it is until the reader ends its tick, if the reader is
//!   registered with `kachel_stdx::Quiescence`. The item may be dead by then; its header tells.
//! - I4  A guess that is confirmed is as good as a search that ends at this slot: the owner clears
//!   the slot before it changes where the item's copy elsewhere leads, and a bucket's memory stays.

use std::sync::Arc;

use crate::bucket::Entry;
use crate::guess::{BucketChoice, Guess};
use crate::lines::Lines;
use crate::prefetch::prefetch;
use crate::sync::{Ordering, fence};
use crate::tag::{KeyHash, Location};

/// How often a reader searches before the caller must ask the owner instead. A guess: the reader
/// repeats only if the owner has moved an entry of the two buckets, or changed the number of
/// buckets, during the last attempt.
const LOOKS_MAX: usize = 8;

/// The result of a search by a [`Reader`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The item with the key lies here.
    At(Location),
    /// No item had the key, at one moment of the call at least.
    Nowhere,
    /// The owner has changed the table during every attempt. The caller must ask the owner.
    Unsettled,
}

/// A table as another core sees it; made by [`crate::Table::reader`].
#[derive(Clone, Debug)]
pub struct Reader {
    lines: Arc<Lines>,
}

impl Reader {
    pub(crate) fn new(lines: Arc<Lines>) -> Self {
        Self { lines }
    }

    /// Prefetches one of the two cache lines that [`Self::find`] may read. Cost: a load, and no
    /// wait for the line.
    #[inline]
    pub fn prefetch_bucket(&self, hash: KeyHash, choice: BucketChoice) {
        prefetch(self.lines.bucket(self.bucket_of(hash, choice)).0);
    }

    /// The first slot of one bucket whose tag matches, for a later [`Self::confirm`].
    ///
    /// Cost: a cache line.
    #[inline]
    pub fn guess(&self, hash: KeyHash, choice: BucketChoice) -> Option<Guess> {
        let (index, tag) = (self.bucket_of(hash, choice), hash.tag());
        let bucket = self.lines.bucket(index);
        let slot = bucket.slots_seen_with(tag).next()?;
        let entry = bucket.entry(slot).filter(|entry| entry.tag() == tag)?;
        Some(Guess::new(index, slot, entry))
    }

    /// The location of a guess, if the slot is as it was. So the item there is in the table now
    /// (I4). The caller must compare its key.
    ///
    /// Cost: a load of a line that was read for the guess.
    #[inline(always)]
    pub fn confirm(&self, guess: Guess) -> Option<Location> {
        guess.confirmed_by(self.lines.bucket(guess.bucket()).entry_seen(guess.slot()))
    }

    #[inline]
    fn bucket_of(&self, hash: KeyHash, choice: BucketChoice) -> u32 {
        self.lines.shape().geometry().bucket_of(choice.half(hash))
    }

    /// The location whose item has the wanted key.
    ///
    /// `is_key` compares the whole key, and is called only for slots whose tag matches; the items
    /// that it reads may be dead. Cost: three or four cache lines, none of them written.
    pub fn find(&self, hash: KeyHash, mut is_key: impl FnMut(Location) -> bool) -> Seen {
        let (first, tag) = (hash.first(), hash.tag());
        for _ in 0..LOOKS_MAX {
            let shape = self.lines.shape();
            let geometry = shape.geometry();
            let buckets =
                [first, first.other(tag)].map(|half| self.lines.bucket(geometry.bucket_of(half)));
            let versions = buckets.map(|bucket| bucket.version());
            for bucket in buckets {
                for slot in bucket.slots_seen_with(tag) {
                    let entry = bucket.entry_seen(slot).filter(|entry| entry.tag() == tag);
                    if let Some(location) = entry.map(Entry::location)
                        && is_key(location)
                    {
                        return Seen::At(location);
                    }
                }
            }
            fence(Ordering::Acquire); // A slot seen empty was cleared after the publication (I1).
            if buckets.map(|bucket| bucket.version()) == versions && self.lines.shape() == shape {
                return Seen::Nowhere;
            }
        }
        Seen::Unsettled
    }
}

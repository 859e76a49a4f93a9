//! Saving all items of a cache to a memory file (`-e`), and restoring them.
//!
//! Upstream:   `kachel`, when a server ends, and when the next one starts. It reads and writes the
//!             file.
//! Downstream: `segment` walks and stores items; `head` and `block` are the format of the file.
//!
//! ```text
//! memory file:  head | block | block | ...        each block holds items of one shard, in the
//!                                                 order of their age
//! ```
//!
//! A restored item is stored as a new one, under new secret hash keys, so the file may come from a
//! server with other options. Its seconds are those of the server that saved it: the next server
//! goes on from there (`kachel_engine::ClockOrigin::resumed_in`).
//!
//! Invariants:
//! - I1  A number in a file is used only after the hash over it was right, and its range checked.
//! - I2  The next server gives no CAS token that an earlier one has given.

pub(crate) mod block;
pub(crate) mod head;

use kachel_engine::{Key, Now};
use kachel_segment::{ItemValue, NoSegment, SavedItem};
use kachel_table::KeyHash;

use self::block::BlockHead;
use crate::cache::{Cache, ITEM_BYTES_MIN};
use crate::index::{TableIndex, item_at};

/// The result of restoring an item of a memory file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restored {
    /// It is stored.
    Stored,
    /// Its time has passed while no server ran.
    Expired,
    /// It is longer than an item may be (`-I`).
    TooLarge,
    /// There is no room for it, and nothing may be evicted. Or the share of the memory that values
    /// of deleted items may take is used.
    NoRoom,
    /// There is an item under its key.
    Known,
}

impl Cache {
    /// Passes all living items to `write`, with their values, and ends at its first error. Items
    /// that are kept for leases are among them.
    ///
    /// Cost: one pass over all items.
    pub fn save<E>(
        &mut self,
        now: &Now,
        write: impl FnMut(&SavedItem<'_>, ItemValue<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.note_flush(now);
        self.segments.walk_by_age(now.second, write)
    }

    /// Prepares the index of an empty cache for `items` items, if those of all caches take `bytes`
    /// bytes; for fewer if memory is less.
    ///
    /// Cost: the memory of the index.
    pub fn expect_items(&mut self, items: u64, bytes: u64) {
        let limit_bytes = self.budget.limit_bytes();
        let fitting = u128::from(items) * u128::from(limit_bytes) / u128::from(bytes.max(1));
        let items_max = items.min(limit_bytes / ITEM_BYTES_MIN);
        self.table.grow_for(u64::try_from(fitting).unwrap_or(u64::MAX).min(items_max));
    }

    /// Whether an item of the block may be as short as `-I` says. If not, the block has one item,
    /// and [`Self::restore`] would answer [`Restored::TooLarge`]. Cost: no memory.
    pub fn may_take(&self, block: &BlockHead) -> bool {
        self.options.fits(1, block.value_bytes_least(), 0)
    }

    /// Prefetches the place in the index for a key that will be restored. Cost: no wait.
    pub fn prefetch_place(&self, key: &Key<'_>) {
        self.table.prefetch(KeyHash(key.secret_hash()));
    }

    /// Stores an item of a memory file. `key` is its key; the caller has found that this cache owns
    /// it.
    ///
    /// Cost: that of a store.
    pub fn restore(
        &mut self,
        key: &Key<'_>,
        saved: &SavedItem<'_>,
        value: &[u8],
        now: &Now,
    ) -> Restored {
        debug_assert!(key.bytes() == saved.key, "the hashes are those of the item's key");
        if saved.expiry != 0 && saved.expiry <= now.second {
            return Restored::Expired;
        }
        if !self.options.fits(saved.key.len(), value.len(), saved.client_flags) {
            return Restored::TooLarge;
        }
        self.note_flush(now);
        let hash = KeyHash(key.secret_hash());
        let known = |place| self.segments.key_is(item_at(place), saved.key);
        if self.table.find(hash, known).is_some() {
            return Restored::Known;
        }
        if saved.remnant {
            self.leases.begin();
            if !self.has_share(value.len(), now) {
                return Restored::NoRoom;
            }
        }
        // A server with -C has given none.
        let cas = saved.cas.or_else(|| self.options.cas.then(|| self.next_cas()));
        let item = SavedItem { cas, ..*saved };
        let mut index = TableIndex::new(&mut self.table, &self.hasher, &self.changes);
        let stored = self.segments.restore(&item, value, now.second, &mut index).and_then(|at| {
            self.changes.before_change(hash.0);
            let is_stored = self.try_insert(hash, at);
            if is_stored { Ok(at) } else { self.insert_into_full(hash, at, false, now) }
        });
        match stored {
            Ok(at) => {
                debug_assert!(self.segments.key_is(at, saved.key), "it is under its key");
                Restored::Stored
            }
            // No other core reads yet, so no room is on its way.
            Err(NoSegment::Refused | NoSegment::NotYet) => Restored::NoRoom,
        }
    }

    /// No token above this one was given by this cache, except those that clients chose.
    pub const fn greatest_cas(&self) -> u64 {
        self.cas_count * self.cas_stride + self.cas_engine
    }

    /// Gives only tokens above `greatest` from now on (I2).
    ///
    /// Panics: if there are too few tokens above it.
    pub fn give_tokens_above(&mut self, greatest: u64) {
        assert!(greatest <= head::CAS_MAX, "I1: `head` has checked it");
        self.cas_count = self.cas_count.max(greatest / self.cas_stride);
        debug_assert!(self.greatest_cas() + self.cas_stride > greatest, "I2");
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

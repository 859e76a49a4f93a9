//! The table as the segments see it. When segments move or drop items, they update the table
//! through it.
//!
//! Upstream:   `segment`, while it makes room or compacts.
//! Downstream: `table`.
//!
//! Invariants:
//! - I1  Every live item is in the table, except the one that is `pending`.
//! - I2  `replaced` is where the table has the item, because every move and every drop of an item
//!   is reported here.

use kachel_engine::{Changes, KeyHasher};
use kachel_segment::{Index, Item, ItemAt};
use kachel_table::{KeyHash, Location, Table};

/// The table as the segments see it.
pub(crate) struct TableIndex<'a> {
    table: &'a mut Table,
    hasher: &'a KeyHasher,
    changes: &'a Changes,
    /// An item that was appended and has no slot yet. It may be moved or dropped like any other
    /// item.
    pub(crate) pending: Option<ItemAt>,
    /// The item that the appended one replaces. It is followed where it moves, until it is dropped
    /// (I2).
    pub(crate) replaced: Option<ItemAt>,
}

impl<'a> TableIndex<'a> {
    pub(crate) fn new(table: &'a mut Table, hasher: &'a KeyHasher, changes: &'a Changes) -> Self {
        Self { table, hasher, changes, pending: None, replaced: None }
    }
}

impl Index for TableIndex<'_> {
    fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.secret_hash(key)
    }

    fn prefetch(&self, key: &[u8]) {
        self.table.prefetch(hash_of(self.hasher, key));
    }

    fn note_reads(&self, item: &Item<'_>) {
        note_copy_reads(self.changes, self.hasher, item);
    }

    fn swing(&mut self, key: &[u8], from: ItemAt, to: ItemAt) {
        if self.pending == Some(from) {
            self.pending = Some(to);
            return;
        }
        let swung = self.table.swing(hash_of(self.hasher, key), location(from), location(to));
        assert!(swung, "I1: a live item is in the table");
        if self.replaced == Some(from) {
            self.replaced = Some(to);
        }
    }

    fn remove(&mut self, key: &[u8], at: ItemAt) {
        if self.pending == Some(at) {
            self.pending = None;
            return;
        }
        let hash = hash_of(self.hasher, key);
        self.changes.before_change(hash.0);
        let removed = self.table.remove(hash, location(at));
        assert!(removed, "I1: a live item is in the table");
        if self.replaced == Some(at) {
            self.replaced = None;
        }
    }

    fn shrink<'k>(&mut self, slots_max: usize, key_at: impl Fn(ItemAt) -> &'k [u8]) {
        debug_assert!(slots_max > 0, "an item that is gone had a slot");
        let hasher = self.hasher;
        self.table.shrink(slots_max, |location| hash_of(hasher, key_at(item_at(location))));
    }
}

/// Has an item count the reads that its copy has answered since the last call. Cost: a branch if
/// there are no copies, else a hash of the key.
pub(crate) fn note_copy_reads(changes: &Changes, hasher: &KeyHasher, item: &Item<'_>) {
    debug_assert!(!item.is_dead(), "an item of the index is living");
    if !changes.are_reported() {
        return;
    }
    let Some(reads) = changes.take_reads(hasher.secret_hash(item.key())) else { return };
    let noted = item.note_accesses(reads.count, reads.second);
    debug_assert!(noted, "the owner does not move the item meanwhile");
}

pub(crate) fn location(at: ItemAt) -> Location {
    Location::new(at.get())
}

pub(crate) fn item_at(location: Location) -> ItemAt {
    ItemAt::new(location.get())
}

/// The hash of a key, as the table stores it.
#[inline]
pub(crate) fn hash_of(hasher: &KeyHasher, key: &[u8]) -> KeyHash {
    KeyHash(hasher.secret_hash(key))
}

//! The context of an operation of the log: the time and the index.
//!
//! Upstream:   `Segments` makes one context for each call of its owner.
//! Downstream: the owner's index, behind [`Index`].
//!
//! The operation reports each item that it moves or drops to the index before it returns.

use crate::item::Item;
use crate::layout::ItemAt;

/// What a shard's index does for its segments.
pub trait Index {
    /// The secret hash of a key: the one that [`crate::NewItem::hash`] carries.
    fn hash(&self, key: &[u8]) -> u64;

    /// Prefetches the slots that `key` may have: a call of [`Self::swing`] or [`Self::remove`] may
    /// follow soon.
    fn prefetch(&self, key: &[u8]) {
        let _no_slots_to_prefetch = key;
    }

    /// Called before eviction judges how often an item was read, because the owner may know of
    /// reads that the item has not counted yet.
    fn note_reads(&self, item: &Item<'_>) {
        let _all_reads_are_counted = item;
    }

    /// Called when the item with `key` has moved: sets the slot that contains `from` to `to`.
    fn swing(&mut self, key: &[u8], from: ItemAt, to: ItemAt);

    /// Called when the item with `key` is gone: empties the slot that contains `at`.
    fn remove(&mut self, key: &[u8], at: ItemAt);

    /// Called when items are gone. An index that has become much too large gives memory back, and
    /// examines about `slots_max` slots to do so. `key_at` returns the key of a living item.
    fn shrink<'k>(&mut self, slots_max: usize, key_at: impl Fn(ItemAt) -> &'k [u8]) {
        let _memory_that_is_not_charged = (slots_max, key_at);
    }
}

/// Time and index of one call.
#[derive(Debug)]
pub(crate) struct Context<'a, I> {
    /// The current second.
    pub(crate) now: u32,
    /// The index that follows moved and dropped items.
    pub(crate) index: &'a mut I,
}

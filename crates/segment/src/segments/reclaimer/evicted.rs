//! The list of the items that were evicted, for the log of evictions.
//!
//! Upstream:   the reclaimer, while the pool says that evictions are listed.
//! Downstream: the owner of the segments takes the list before another core may use them.
//!
//! Invariants:
//! - E1  The list has at most `EVICTED_MAX` items. Further evicted items are only counted. So the
//!   memory of the list is bounded for any number of evictions.
//! - E2  The text of all keys has a byte with the length of each key before the key.

use crate::item::Item;

/// The most items in the list: those of a long batch of stores. A guess.
const EVICTED_MAX: usize = 1024;

/// An item that was evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvictedItem<'k> {
    /// The key.
    pub key: &'k [u8],
    /// Bytes of the value.
    pub value_bytes: usize,
    /// The client flags.
    pub client_flags: u32,
    /// The second in which it would have expired; 0 for never.
    pub expiry: u32,
    /// The second of its last access.
    pub last_access: u32,
    /// Whether it was fetched since it was stored.
    pub is_fetched: bool,
}

/// The items that were evicted since the list was taken. It keeps its memory.
#[derive(Debug, Default)]
pub(crate) struct EvictedList {
    /// Without their keys.
    items: Vec<EvictedItem<'static>>,
    /// The text of all keys (E2).
    keys: Vec<u8>,
    /// Items evicted while the list was full (E1).
    unlisted: u64,
}

impl EvictedList {
    /// Whether nothing was evicted. Cost: a load.
    pub(crate) const fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Adds an item, which is still there (E1).
    #[cold]
    pub(crate) fn add(&mut self, item: &Item<'_>) {
        if self.items.len() == EVICTED_MAX {
            self.unlisted += 1;
            return;
        }
        let key = item.key();
        self.keys.push(u8::try_from(key.len()).expect("the layout holds no longer key"));
        self.keys.extend_from_slice(key);
        let access = item.access();
        self.items.push(EvictedItem {
            key: &[],
            value_bytes: item.value().bytes(),
            client_flags: item.client_flags(),
            expiry: item.expiry(),
            last_access: access.last_access(),
            is_fetched: access.fetched(),
        });
    }

    /// Passes the items on, the oldest first, and empties the list. Returns how many were not
    /// listed.
    pub(crate) fn take(&mut self, mut tell: impl FnMut(&EvictedItem<'_>)) -> u64 {
        let mut keys = &self.keys[..];
        for item in self.items.drain(..) {
            let (key_bytes, rest) = keys.split_first().expect("E2");
            let (key, rest) = rest.split_at(usize::from(*key_bytes));
            keys = rest;
            tell(&EvictedItem { key, ..item });
        }
        debug_assert!(keys.is_empty(), "each key belongs to an item");
        self.keys.clear();
        std::mem::take(&mut self.unlisted)
    }
}

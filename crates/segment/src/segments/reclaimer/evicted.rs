//! The list of the items that were evicted, for the log of evictions.
//!
//! Upstream:   the reclaimer, while the pool says that evictions are listed.
//! Downstream: the owner of the segments takes the list before another core may use them.
//!
//! Invariants:
//! - E1  The list has at most `EVICTED_MAX` items. Further evicted items are only counted. So the
//!   memory of the list is bounded for any number of evictions.

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

/// An item in the list. Its key is in the text of all keys.
#[derive(Clone, Copy, Debug)]
struct Entry {
    key_bytes: u8,
    is_fetched: bool,
    value_bytes: usize,
    client_flags: u32,
    expiry: u32,
    last_access: u32,
}

/// The items that were evicted since the list was taken. It keeps its memory.
#[derive(Debug, Default)]
pub(crate) struct EvictedList {
    entries: Vec<Entry>,
    keys: Vec<u8>,
    /// Items evicted while the list was full (E1).
    unlisted: u64,
}

impl EvictedList {
    /// Whether nothing was evicted. Cost: a load.
    pub(crate) const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds an item, which is still there (E1).
    #[cold]
    pub(crate) fn add(&mut self, item: &Item<'_>) {
        if self.entries.len() == EVICTED_MAX {
            self.unlisted += 1;
            return;
        }
        let key = item.key();
        debug_assert!(!key.is_empty(), "a key has bytes");
        let access = item.access();
        self.keys.extend_from_slice(key);
        self.entries.push(Entry {
            key_bytes: u8::try_from(key.len()).expect("the layout holds no longer key"),
            is_fetched: access.fetched(),
            value_bytes: item.value().bytes(),
            client_flags: item.client_flags(),
            expiry: item.expiry(),
            last_access: access.last_access(),
        });
    }

    /// Passes the items on, the oldest first, and empties the list. Returns how many were not
    /// listed.
    pub(crate) fn take(&mut self, mut tell: impl FnMut(&EvictedItem<'_>)) -> u64 {
        let mut keys = &self.keys[..];
        for entry in self.entries.drain(..) {
            let (key, rest) = keys.split_at(usize::from(entry.key_bytes));
            keys = rest;
            let Entry { is_fetched, value_bytes, client_flags, expiry, last_access, .. } = entry;
            tell(&EvictedItem { key, value_bytes, client_flags, expiry, last_access, is_fetched });
        }
        debug_assert!(keys.is_empty(), "each key belongs to an item");
        self.keys.clear();
        std::mem::take(&mut self.unlisted)
    }
}

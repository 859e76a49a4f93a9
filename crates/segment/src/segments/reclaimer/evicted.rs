//! The list of the items that were evicted, for the log of evictions and for observers.
//!
//! Upstream:   the reclaimer, while the pool says that evicted items are listed, or drawn.
//! Downstream: the owner of the segments takes the list before another core may use them.
//!
//! Invariants:
//! - E1  The list has at most `EVICTED_MAX` items, and then `DRAWN_MAX` drawn ones. Further ones
//!   are only counted. So the memory of the list is bounded for any number of evictions.
//! - E2  The text of all keys has a byte with the length of each key before the key.

use kachel_stdx::Gaps;

use crate::item::Item;

/// The most items in the list: those of a long batch of stores. A guess.
const EVICTED_MAX: usize = 1024;
/// The most drawn items beyond these, so that observers miss none while all items are listed. A
/// guess: 65,536 evictions in a hold, if one of 64 is drawn.
const DRAWN_MAX: usize = 1024;

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
    /// Whether it was drawn.
    pub is_drawn: bool,
}

/// The items that were evicted since the list was taken. It keeps its memory.
#[derive(Debug)]
pub(crate) struct EvictedList {
    /// Without their keys.
    items: Vec<EvictedItem<'static>>,
    /// The text of all keys (E2).
    keys: Vec<u8>,
    /// Items that were to be listed while the list was full (E1).
    unlisted: u64,
    /// Evicted items before the next one that is drawn.
    until_drawn: u32,
    gaps: Gaps,
}

impl Default for EvictedList {
    fn default() -> Self {
        let (items, keys) = (Vec::new(), Vec::new());
        Self { items, keys, unlisted: 0, until_drawn: 0, gaps: Gaps::new(0) }
    }
}

impl EvictedList {
    /// Whether nothing was evicted. Cost: a load.
    pub(crate) const fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Notes an item that is evicted, and still there. It is listed with `all`, or if it is drawn
    /// as one of `every`.
    pub(crate) fn note(&mut self, item: &Item<'_>, all: bool, every: u32) {
        let is_drawn = every > 0 && self.draws(every);
        if !(all || is_drawn) {
            return;
        }
        let items_max = if is_drawn { EVICTED_MAX + DRAWN_MAX } else { EVICTED_MAX };
        if self.items.len() < items_max {
            self.add(item, is_drawn);
        } else {
            self.unlisted += u64::from(all); // E1
        }
    }

    /// Whether the next item is drawn.
    const fn draws(&mut self, every: u32) -> bool {
        let is_drawn = self.until_drawn == 0;
        self.until_drawn = if is_drawn { self.gaps.next(every) } else { self.until_drawn - 1 };
        is_drawn
    }

    #[cold]
    fn add(&mut self, item: &Item<'_>, is_drawn: bool) {
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
            is_drawn,
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

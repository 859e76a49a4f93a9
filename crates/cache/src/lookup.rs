//! The lookup of a key, which the owner of a cache and readers on other cores share.
//!
//! Upstream:   `find` for the owner, `reader` for any core.
//! Downstream: a [`View`]: the table probes; the item supplies its key, its expiry and the flush
//!             epoch of its segment.
//!
//! ```text
//! probe: tags match --> one load of the header --> keys equal --> expired? --> flushed? --> live
//! ```
//!
//! Invariants:
//! - I1  A live item that is found has this key, has not expired in the second that was passed, and
//!   was not flushed by any shard before the lookup began.
//! - I2  A lookup changes nothing. A dead item that it finds is a miss; only the owner removes the
//!   item.

use kachel_engine::{DeadFound, Key};
use kachel_segment::{Item, ItemAt};
use kachel_table::{KeyHash, Location, Seen};

use crate::index::item_at;

/// The index and the items as one core sees them.
pub(crate) trait View<'v>: Copy {
    /// The location with this hash for which `is_key` holds.
    fn probe(self, hash: KeyHash, is_key: impl FnMut(Location) -> bool) -> Seen;

    /// The item at `at`, which the index named. Cost: a load of the header.
    fn item(self, at: ItemAt) -> Item<'v>;

    /// Whether the item was flushed. `None`: it was moved or removed meanwhile.
    fn is_flushed(self, item: &Item<'_>) -> Option<bool>;
}

/// The result of a lookup.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Found<'v> {
    /// A live item (I1).
    Live(Item<'v>),
    /// The item at this place has died.
    Dead(ItemAt, Death),
    /// No item.
    Nowhere,
    /// Entries moved during every attempt, or the item was moved, so the result is not known.
    Unsettled,
}

/// The reason for which an item in the index is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Death {
    Expired,
    Flushed,
}

impl Death {
    /// Counts a lookup that found an item which died like this.
    pub(crate) fn count_in(self, dead_found: &mut DeadFound) {
        match self {
            Self::Expired => dead_found.expired += 1,
            Self::Flushed => dead_found.flushed += 1,
        }
    }
}

/// Looks `key` up in second `second`.
///
/// The header is loaded once, after the slot. The item that is found keeps that header, so its
/// expiry and its marks are of the same moment. Cost: the probe, and a line or two of the item.
#[inline(always)]
pub(crate) fn look_up<'v>(view: impl View<'v>, key: &Key<'_>, second: u32) -> Found<'v> {
    debug_assert!(second != 0, "no second is 0");
    let mut found = None;
    let is_key = |location| {
        let item = view.item(item_at(location));
        let is_key = item.key() == key.bytes();
        if is_key {
            found = Some(item);
        }
        is_key
    };
    let item = match (view.probe(KeyHash(key.secret_hash()), is_key), found) {
        (Seen::At(_), Some(item)) => item,
        (Seen::Nowhere, _) => return Found::Nowhere,
        (Seen::Unsettled, _) => return Found::Unsettled,
        (Seen::At(_), None) => unreachable!("a probe finds only an item with the key"),
    };
    debug_assert!(item.key() == key.bytes(), "I1: key and length of an item never change");
    if item.is_expired(second) {
        return Found::Dead(item.at(), Death::Expired);
    }
    match view.is_flushed(&item) {
        Some(false) => Found::Live(item),
        Some(true) => Found::Dead(item.at(), Death::Flushed),
        None => Found::Unsettled,
    }
}

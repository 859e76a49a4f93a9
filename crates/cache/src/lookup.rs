//! Looking a key up: one lookup, for the owner of a cache and for readers on other cores.
//!
//! Upstream:   `find` for the owner, `reader` for any core.
//! Downstream: a [`View`]: the table probes, the item tells its key, its expiry and its segment's
//!             flush epoch.
//!
//! ```text
//! probe: tags match, keys are equal --> one load of the header: expired? --> flushed? --> live
//! ```
//!
//! Invariants:
//! - I1  What is found live has this key, has not expired in the second that was passed, and was
//!   not flushed by any shard before the lookup began.
//! - I2  A lookup changes nothing. What it finds dead is a miss; the owner alone removes it.

use kachel_engine::Key;
use kachel_segment::{Item, ItemAt};
use kachel_table::{KeyHash, Location, Seen};

use crate::index::item_at;

/// The index and the items as one core sees them.
pub(crate) trait View<'v>: Copy {
    /// The location with this hash for which `is_key` holds.
    fn probe(self, hash: KeyHash, is_key: impl FnMut(Location) -> bool) -> Seen;

    /// The item at `at`, which the index named. Cost: a load of the header.
    fn item(self, at: ItemAt) -> Item<'v>;

    /// Whether the item at `at` was flushed.
    fn is_flushed(self, at: ItemAt) -> bool;
}

/// What a lookup found.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Found<'v> {
    /// A live item (I1).
    Live(Item<'v>),
    /// The item at this place has died.
    Dead(ItemAt, Death),
    /// No item.
    Nowhere,
    /// Entries moved during every look.
    Unsettled,
}

/// How an item died that is still in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Death {
    Expired,
    Flushed,
}

/// Lookups that found a dead item, since its owner's start or as one core counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeadFound {
    /// Items that had expired.
    pub expired: u64,
    /// Items that were flushed.
    pub flushed: u64,
}

impl DeadFound {
    /// Counts one more.
    pub(crate) fn count(&mut self, death: Death) {
        match death {
            Death::Expired => self.expired += 1,
            Death::Flushed => self.flushed += 1,
        }
    }
}

/// Looks `key` up in second `second`.
///
/// The header is loaded once after the probe, and the item that is found keeps what it said: expiry
/// and marks are of one moment. Cost: the probe, and a line or two of the item.
#[inline(always)]
pub(crate) fn look_up<'v>(view: impl View<'v>, key: &Key<'_>, second: u32) -> Found<'v> {
    debug_assert!(second != 0, "no second is 0");
    let is_key = |location| view.item(item_at(location)).key() == key.bytes();
    let item = match view.probe(KeyHash(key.secret_hash()), is_key) {
        Seen::At(location) => view.item(item_at(location)),
        Seen::Nowhere => return Found::Nowhere,
        Seen::Unsettled => return Found::Unsettled,
    };
    debug_assert!(item.key() == key.bytes(), "I1: key and length of an item never change");
    if item.is_expired(second) {
        return Found::Dead(item.at(), Death::Expired);
    }
    if view.is_flushed(item.at()) {
        return Found::Dead(item.at(), Death::Flushed);
    }
    Found::Live(item)
}

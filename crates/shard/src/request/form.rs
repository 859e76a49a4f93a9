//! The forms of listings, and the ways in which one piece of a listing ends.
//!
//! Upstream:   `listing` walks the items; `parked` carries a piece to another core and back.
//! Downstream: nothing.

use kachel_engine::{Cursor, WalkNext};
use kachel_observe::Grouping;
use kachel_wire::request::ScanFields;

/// The most items that a shard examines in one tick for all listings (`lru_crawler metadump`,
/// `mgdump`) together, dead items included. A guess: this takes about as long as a batch of
/// requests.
pub const LISTED_ITEMS_PER_TICK_MAX: usize = 64;
/// Items that are counted in one tick. Counting an item takes an eighth of the time of a line.
const COUNTED_ITEMS_PER_TICK_MAX: usize = 8 * LISTED_ITEMS_PER_TICK_MAX;

/// The form of a listing: its command and its terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// `lru_crawler metadump`, of size classes with one bit each.
    Metadump { classes: u64 },
    /// `lru_crawler mgdump`, of size classes with one bit each.
    Mgdump { classes: u64 },
    /// `stats cachedump`: the items of a size class, and how many lines are left to send.
    Cachedump { class: u8, lines_left: u32 },
    /// `stats items`.
    Items,
    /// `stats slabs`.
    Slabs,
    /// `stats sizes`.
    Sizes,
    /// `stats detail dump`: what each core has counted, not the items of its engine.
    Prefixes,
    /// `stats conns`: the connections of each core.
    Connections,
    /// `mscan`: what is shown of each item, and the most items of a piece.
    Scan { fields: ScanFields, items_max: u8 },
}

impl Form {
    /// The property by which the items are counted, if they are only counted.
    pub(crate) const fn grouping(self) -> Option<Grouping> {
        match self {
            Self::Items | Self::Slabs => Some(Grouping::Classes),
            Self::Sizes => Some(Grouping::Sizes),
            _ => None,
        }
    }

    /// Whether the items are only counted.
    pub(crate) const fn counts(self) -> bool {
        self.grouping().is_some()
    }

    /// Whether each core has a part of what is told. Otherwise each engine has one.
    pub(crate) const fn is_of_cores(self) -> bool {
        matches!(self, Self::Prefixes | Self::Connections)
    }

    /// Whether `OK` comes before the first line.
    pub(crate) const fn begins_with_ok(self) -> bool {
        matches!(self, Self::Metadump { .. } | Self::Mgdump { .. })
    }

    /// The most items that one piece examines (`listing`, I1).
    pub(crate) const fn items_max(self) -> usize {
        if self.counts() { COUNTED_ITEMS_PER_TICK_MAX } else { LISTED_ITEMS_PER_TICK_MAX }
    }
}

/// A piece of a listing: where it ended, and how many items it examined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ended {
    /// How the walk goes on. If it is over, this was the last piece of the engine or of the core.
    pub(crate) next: WalkNext,
    /// Where the next piece begins, if there is one.
    pub(crate) cursor: Cursor,
    pub(crate) examined: u32,
    /// The operations on files that the engine had completed by then.
    pub(crate) completed: u64,
}

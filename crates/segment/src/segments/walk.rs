//! A walk over all items for dumps, a bounded number of items per call.
//!
//! Upstream:   `cache` on behalf of `lru_crawler metadump` and the like.
//! Downstream: `item`.
//!
//! ```text
//! cursor, low bits first:  offset of the next item / 8:44 | generation of its segment:19 | 0:1
//! ```

use super::Segments;
use crate::item::Item;
use crate::layout::{ItemAt, SEGMENT_HEAD_BYTES};
use crate::meta::USED;

/// Lines of foreign segments passed over in one call.
const WALK_SEGMENTS_MAX: u32 = 256;

const GENERATION_MASK: u64 = (1 << 19) - 1;

/// The position of a walk. A walk begins with [`Self::default`].
///
/// The walk sees each item that stays where it is exactly once. An item that compaction or eviction
/// moves meanwhile may be seen twice or not at all, and one stored meanwhile may or may not be
/// seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalkCursor(u64);

impl WalkCursor {
    /// The cursor that [`Self::to_u64`] gave as a number.
    pub const fn from_u64(word: u64) -> Self {
        Self(word)
    }

    /// The cursor as a number; the highest bit is never set.
    pub const fn to_u64(self) -> u64 {
        self.0
    }

    const fn offset(self) -> usize {
        (self.0 & ((1 << ItemAt::BITS) - 1)) as usize * 8
    }

    const fn at(offset: usize, generation: u64) -> Self {
        Self((offset / 8) as u64 | (generation & GENERATION_MASK) << ItemAt::BITS)
    }
}

/// What one call of [`Segments::walk`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walked {
    /// The number of items that were examined, dead items included.
    pub items: usize,
    /// Whether there are more items to examine.
    pub more: bool,
}

impl Segments {
    /// Passes living items to `show`, from the cursor to the end of the next segment of this shard,
    /// until `items_max` items were examined or `show` returns `false`.
    ///
    /// Cost: at most `items_max` items of one segment, and the lines of a few hundred segments. The
    /// caller continues while there are more items.
    pub fn walk(
        &self,
        cursor: &mut WalkCursor,
        now: u32,
        items_max: usize,
        mut show: impl FnMut(Item<'_>) -> bool,
    ) -> Walked {
        self.walk_all(cursor, items_max, |item| !self.is_live(item.at(), now) || show(item))
    }

    /// Passes the items that have expired or were flushed, and whose space did not come back yet,
    /// to `found`, and moves the cursor as [`Self::walk`] does. All of them lie in one segment.
    pub fn walk_expired(
        &self,
        cursor: &mut WalkCursor,
        now: u32,
        items_max: usize,
        mut found: impl FnMut(Item<'_>),
    ) -> Walked {
        self.walk_all(cursor, items_max, |item| {
            if !item.is_dead() && !self.is_live(item.at(), now) {
                found(item);
            }
            true
        })
    }

    /// Passes all items to `show`, dead items included.
    fn walk_all(
        &self,
        cursor: &mut WalkCursor,
        items_max: usize,
        mut show: impl FnMut(Item<'_>) -> bool,
    ) -> Walked {
        let touched = self.pool().segments_touched();
        let mut items = 0;
        for _ in 0..WALK_SEGMENTS_MAX {
            let segment = (cursor.offset() >> self.pool().segment_shift) as u32;
            if segment >= touched {
                return Walked { items, more: false };
            }
            let is_own = self.log.owns(segment);
            if is_own {
                let mut show_one = |item: Item<'_>| {
                    items += 1;
                    show(item) && items < items_max
                };
                let is_whole = self.walk_segment(segment, cursor, &mut show_one);
                debug_assert!(items <= items_max.max(1), "a call looks at a bounded number");
                if !is_whole {
                    break;
                }
            }
            *cursor = WalkCursor::at(self.pool().segment_start(segment + 1), 0);
            if is_own {
                break;
            }
        }
        Walked { items, more: true }
    }

    /// Passes one segment's items to `show`. Returns whether all were passed.
    fn walk_segment(
        &self,
        segment: u32,
        cursor: &mut WalkCursor,
        show: &mut impl FnMut(Item<'_>) -> bool,
    ) -> bool {
        let generation = self.pool().generation(segment);
        let start = self.pool().segment_start(segment);
        let first = start + SEGMENT_HEAD_BYTES;
        let mut offset = cursor.offset();
        if *cursor != WalkCursor::at(offset, generation) || offset < first {
            // Another segment's items lie here than when the walk left off, or none were shown yet.
            offset = first;
        }
        while offset < start + self.pool().metas.get(segment, USED) as usize {
            let at = ItemAt::from_offset(offset);
            let item = self.item(at);
            offset += item.header().item_bytes();
            debug_assert!(offset <= start + self.pool().segment_bytes(), "layout, I3");
            if !show(item) {
                *cursor = WalkCursor::at(offset, generation);
                return false;
            }
        }
        true
    }
}

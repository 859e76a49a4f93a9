//! Looking at every item, a segment a call: for dumps.
//!
//! Upstream:   `shard` on behalf of `lru_crawler metadump` and the like.
//! Downstream: `item`.
//!
//! ```text
//! cursor, low bits first:  offset of the next item / 8:44 | generation of its segment:19 | 0:1
//! ```

use super::Segments;
use crate::item::{Item, ItemAt, SEGMENT_HEAD_BYTES};
use crate::meta::USED;

/// Lines of foreign segments passed over in one call.
const WALK_SEGMENTS_MAX: u32 = 4096;

const GENERATION_MASK: u64 = (1 << 19) - 1;

/// How far a walk has come. Begins with [`Self::default`].
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

impl Segments {
    /// Shows living items to `show`, from where the cursor stands to the end of the next segment of
    /// this shard, or until `show` returns `false`. Returns whether the walk has more to show.
    ///
    /// Cost: the items of one segment. The caller goes on while there is more.
    pub fn walk(
        &self,
        cursor: &mut WalkCursor,
        now: u32,
        mut show: impl FnMut(Item<'_>) -> bool,
    ) -> bool {
        let touched = self.pool.segments_touched();
        for _ in 0..WALK_SEGMENTS_MAX {
            let segment = (cursor.offset() >> self.pool.segment_shift) as u32;
            if segment >= touched {
                return false;
            }
            if self.owns(segment) && !self.walk_segment(segment, cursor, now, &mut show) {
                return true;
            }
            *cursor = WalkCursor::at(self.pool.segment_start(segment + 1), 0);
            if self.owns(segment) {
                break;
            }
        }
        true
    }

    /// Shows one segment's items; whether all were shown.
    fn walk_segment(
        &self,
        segment: u32,
        cursor: &mut WalkCursor,
        now: u32,
        show: &mut impl FnMut(Item<'_>) -> bool,
    ) -> bool {
        let generation = self.pool.generation(segment);
        let start = self.pool.segment_start(segment);
        let first = start + SEGMENT_HEAD_BYTES;
        let mut offset = cursor.offset();
        if *cursor != WalkCursor::at(offset, generation) || offset < first {
            // Another segment's items lie here than when the walk left off, or none were shown yet.
            offset = first;
        }
        while offset < start + self.pool.metas.get(segment, USED) as usize {
            let at = ItemAt::from_offset(offset);
            let item = Item::load(&self.pool, at);
            offset += item.header().item_bytes();
            if self.is_live(at, now) && !show(item) {
                *cursor = WalkCursor::at(offset, generation);
                return false;
            }
        }
        true
    }
}

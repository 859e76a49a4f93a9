//! Looking at every item, a segment a call: for dumps.
//!
//! Upstream:   `shard` on behalf of `lru_crawler metadump` and the like.
//! Downstream: `item`.

use super::Segments;
use crate::item::{Item, ItemAt, SEGMENT_HEAD_BYTES};
use crate::meta::USED;

/// Lines of foreign segments passed over in one call.
const WALK_SEGMENTS_MAX: u32 = 4096;

/// How far a walk has come. Begins with [`Self::default`].
///
/// The walk sees each item that stays where it is exactly once. An item that compaction or eviction
/// moves meanwhile may be seen twice or not at all, and one stored meanwhile may or may not be seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalkCursor {
    segment: u32,
    offset: usize,
    generation: u64,
    done: bool,
}

impl WalkCursor {
    /// Whether the walk is over.
    pub const fn is_done(&self) -> bool {
        self.done
    }
}

impl Segments {
    /// Shows living items to `show`, from where the cursor stands to the end of the next segment of
    /// this shard. `show` returns `false` to stop; the item it refused is shown again next time.
    ///
    /// Cost: the items of one segment. The caller goes on until the cursor is done.
    pub fn walk(&self, cursor: &mut WalkCursor, now: u32, mut show: impl FnMut(Item<'_>) -> bool) {
        let touched = self.pool.segments_touched();
        for _ in 0..WALK_SEGMENTS_MAX {
            if cursor.segment >= touched {
                cursor.done = true;
                return;
            }
            if self.owns(cursor.segment) {
                self.walk_segment(cursor, now, &mut show);
                return;
            }
            *cursor = WalkCursor { segment: cursor.segment + 1, ..WalkCursor::default() };
        }
    }

    fn walk_segment(
        &self,
        cursor: &mut WalkCursor,
        now: u32,
        show: &mut impl FnMut(Item<'_>) -> bool,
    ) {
        let generation = self.pool.generation(cursor.segment);
        if cursor.generation != generation {
            // Another segment's items lie here than when the walk left off.
            *cursor = WalkCursor { generation, offset: SEGMENT_HEAD_BYTES, ..*cursor };
        }
        let start = self.pool.segment_start(cursor.segment);
        while cursor.offset < self.pool.metas.get(cursor.segment, USED) as usize {
            let at = ItemAt::from_offset(start + cursor.offset);
            let item = Item::load(&self.pool, at);
            if self.is_live(at, now) && !show(item) {
                return;
            }
            cursor.offset += item.header().item_bytes();
        }
        *cursor = WalkCursor { segment: cursor.segment + 1, ..WalkCursor::default() };
    }
}

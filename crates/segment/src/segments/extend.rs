//! Extending a value: an item whose value is an old one with bytes before or behind it (`prepend`,
//! `append`).
//!
//! Upstream:   `append`, with the old item and the bytes that are added.
//! Downstream: `append` again, for the new item; `pool` for the blocks of a large value.
//!
//! ```text
//! the old value lies in the item, both are small --> one item, both copied
//! .. and both together are large ------------------> a new upload, both copied
//! the old value has blocks ------------------------> the blocks change hands:
//!    bytes behind: together with the rest they lie in the item, or are linked as new blocks
//!    bytes before: they are written into the headroom, and linked as new blocks
//! ```
//!
//! Invariants:
//! - E1  An extension copies the bytes that are added, and of the old value less than a block. So
//!   its work does not depend on the length of the old value, and a reader that has pinned the old
//!   value delays nothing (`pool::block`, B4).
//! - E2  An extension that fails has stored nothing (A1 of `append`), and the old item keeps its
//!   value.

use std::ops::Range;
use std::sync::Arc;

use super::Segments;
use super::context::{Context, Index};
use super::log::queues::Queue;
use super::new_item::{Added, JoinPlace, NoSegment};
use crate::item::{Draft, Item};
use crate::layout::{ITEM_BYTES_MAX, ItemAt};
use crate::limits::{BLOCK_BYTES, INLINE_VALUE_BYTES_MAX};
use crate::pool::{ExtentId, Pool, Upload};

/// The bytes of the headroom of a new block, until others are written into it.
const HEADROOM: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];

/// The bytes of a value that lie in its item, copied, because the item may move or be evicted while
/// room is made.
struct Rest {
    bytes: [u8; BLOCK_BYTES],
    count: usize,
}

impl Rest {
    fn of(item: &Item<'_>) -> Self {
        let mut rest = Self { bytes: [0; BLOCK_BYTES], count: item.inline().len() };
        rest.bytes[..rest.count].copy_from_slice(item.inline());
        rest
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.count]
    }
}

/// The most work of an extension that adds `bytes` to a value with blocks, in bytes, without that
/// of making room (E1).
const fn extension_work_max(bytes: usize) -> u64 {
    // What is added and the rest are copied to blocks. Then the rest is copied to the item. A block
    // in front is filled.
    (bytes + 2 * BLOCK_BYTES + ITEM_BYTES_MAX) as u64
}

/// The part of the value of `old` that lies in its item, with bytes added.
fn joined<'p>(pool: &'p Pool, old: ItemAt, added: (&'p [u8], JoinPlace)) -> [&'p [u8]; 2] {
    let inline = Item::load(pool, old).inline();
    match added {
        (added, JoinPlace::After) => [inline, added],
        (added, JoinPlace::Before) => [added, inline],
    }
}

impl Segments {
    /// Stores the value of `old` with bytes added before or behind it.
    ///
    /// Cost: see E1.
    pub(super) fn append_extended(
        &mut self,
        draft: Draft<'_>,
        old: ItemAt,
        added: &Added<'_>,
        place: JoinPlace,
        queue: Queue,
        context: &mut Context<'_, impl Index>,
    ) -> Result<ItemAt, NoSegment> {
        if let Some(extent) = self.item(old).extent() {
            let before = self.own_work_bytes();
            let at = match place {
                JoinPlace::After => self.append_behind(draft, old, extent, added, queue, context),
                JoinPlace::Before => self.append_before(draft, old, extent, added, queue, context),
            };
            let work = self.own_work_bytes() - before;
            debug_assert!(work <= extension_work_max(added.total_bytes()), "E1: {work} bytes");
            return at;
        }
        let value_bytes = self.item(old).value().bytes() + added.total_bytes();
        if value_bytes > INLINE_VALUE_BYTES_MAX {
            let rest = Rest::of(&self.item(old));
            let mut upload = self.begin_upload(value_bytes, context)?;
            for side in [JoinPlace::Before, JoinPlace::After] {
                if side == place {
                    self.fill_added(&mut upload, added, 0..added.total_bytes(), context)?;
                } else {
                    self.fill(&mut upload, rest.bytes(), context)?;
                }
            }
            assert!(upload.missing_bytes() == 0, "both parts make the whole value");
            return self.append_upload(draft, &mut upload, queue, context);
        }
        self.append_inline(draft, old, (added.inline(), place), queue, context)
    }

    /// Stores an item with the value of `old` and with bytes added to the part that lies in the
    /// item. Both together are less than a block. The blocks of `old` belong to the new item then.
    pub(super) fn append_inline(
        &mut self,
        draft: Draft<'_>,
        old: ItemAt,
        added: (&[u8], JoinPlace),
        queue: Queue,
        context: &mut Context<'_, impl Index>,
    ) -> Result<ItemAt, NoSegment> {
        let pool = Arc::clone(self.pool());
        let extent = self.item(old).extent();
        let (segment, old) = {
            let room = draft.with_value(extent, joined(&pool, old, added));
            self.place_beside(&room, old, queue, context)?
        };
        // Making room may have moved the item, so it is read again.
        let draft = draft.with_value(extent, joined(&pool, old, added));
        self.log.give_extent_away(old);
        Ok(self.log.put(segment, &draft))
    }

    /// Stores the value of `old` with bytes behind it. The new item takes over the blocks of `old`,
    /// and new ones behind them if the item has no room for what follows.
    ///
    /// Cost: a copy of the old value's last bytes, which are less than a block, and of those added.
    fn append_behind(
        &mut self,
        draft: Draft<'_>,
        old: ItemAt,
        extent: ExtentId,
        added: &Added<'_>,
        queue: Queue,
        context: &mut Context<'_, impl Index>,
    ) -> Result<ItemAt, NoSegment> {
        let tail_bytes = self.item(old).inline().len() + added.total_bytes();
        if tail_bytes < BLOCK_BYTES {
            let added = (added.inline(), JoinPlace::After);
            return self.append_inline(draft, old, added, queue, context);
        }
        let rest = Rest::of(&self.item(old));
        self.reclaimer.protect(Some(old));
        let mut tail = self.begin_upload(tail_bytes, context)?;
        self.fill(&mut tail, rest.bytes(), context)?;
        self.fill_added(&mut tail, added, 0..added.total_bytes(), context)?;
        let old = self.still_protected();
        let linked = tail.linked().expect("the tail has at least a block");
        let joined = ExtentId { blocks: extent.blocks + linked.extent.blocks, ..extent };
        let (segment, old) = {
            let room = draft.with_value(Some(joined), [tail.rest_bytes(), &[]]);
            self.place_beside(&room, old, queue, context)?
        };
        self.pool().link_behind(extent, linked);
        tail.disown_extent();
        let draft = draft.with_value(Some(joined), [tail.rest_bytes(), &[]]);
        Ok(self.take_over(segment, &draft, old, extent))
    }

    /// Stores the value of `old` with bytes before it: the last ones in the headroom of its blocks,
    /// the others in new blocks in front of them.
    ///
    /// Cost: a copy of the old value's last bytes, which are less than a block, and of those added.
    fn append_before(
        &mut self,
        draft: Draft<'_>,
        old: ItemAt,
        extent: ExtentId,
        added: &Added<'_>,
        queue: Queue,
        context: &mut Context<'_, impl Index>,
    ) -> Result<ItemAt, NoSegment> {
        let added_bytes = added.total_bytes();
        let headroom = extent.headroom as usize;
        let front_bytes = added_bytes.saturating_sub(headroom);
        self.reclaimer.protect(Some(old));
        let mut front = self.fill_front(added, front_bytes, context)?;
        let old = self.still_protected();
        let linked = front.as_ref().and_then(Upload::linked);
        let joined = ExtentId {
            blocks: extent.blocks + linked.map_or(0, |front| front.extent.blocks),
            headroom: match linked {
                Some(front) => (front.extent.memory_bytes() - front_bytes) as u32,
                None => (headroom - added_bytes) as u32,
            },
            ..extent
        };
        let pool = Arc::clone(self.pool());
        let (segment, old) = {
            let room = draft.with_value(Some(joined), [Item::load(&pool, old).inline(), &[]]);
            self.place_beside(&room, old, queue, context)?
        };
        // Making room may have moved the first block, so it is looked up now.
        let first = pool.first_block(extent.id);
        let mut start = headroom - (added_bytes - front_bytes);
        for piece in added.pieces(front_bytes..added_bytes) {
            pool.write_block(first, start, piece);
            self.log.note_work(piece.len());
            start += piece.len();
        }
        assert!(start == headroom, "what was added ends where the value began");
        if let (Some(linked), Some(front)) = (linked, &mut front) {
            pool.link_before(extent, linked);
            front.disown_extent();
        }
        let draft = draft.with_value(Some(joined), [Item::load(&pool, old).inline(), &[]]);
        Ok(self.take_over(segment, &draft, old, extent))
    }

    /// New blocks that end with the first `bytes` of what is added; none if there are no bytes.
    fn fill_front(
        &mut self,
        added: &Added<'_>,
        bytes: usize,
        context: &mut Context<'_, impl Index>,
    ) -> Result<Option<Upload>, NoSegment> {
        if bytes == 0 {
            return Ok(None);
        }
        let block_bytes = bytes.next_multiple_of(BLOCK_BYTES);
        let mut front = self.begin_upload(block_bytes, context)?;
        self.fill(&mut front, &HEADROOM[..block_bytes - bytes], context)?;
        self.fill_added(&mut front, added, 0..bytes, context)?;
        assert!(front.missing_bytes() == 0 && front.rest_bytes().is_empty(), "whole blocks");
        Ok(Some(front))
    }

    /// Writes the item that takes over the blocks of `old`, which `extent` names.
    fn take_over(
        &mut self,
        segment: u32,
        draft: &Draft<'_>,
        old: ItemAt,
        extent: ExtentId,
    ) -> ItemAt {
        debug_assert!(self.item(old).extent() == Some(extent), "nobody else changes it");
        self.log.give_extent_away(old);
        if self.pool().frees_blocks(extent) {
            self.reclaimer.note_large_value();
        }
        self.log.put(segment, draft)
    }

    /// Where the protected item lies now.
    fn still_protected(&self) -> ItemAt {
        let Some(old) = self.reclaimer.protected() else {
            unreachable!("V4: a protected item is never dropped")
        };
        old
    }

    /// Writes a range of what is added to a value to an upload of our own, making room as needed.
    fn fill_added(
        &mut self,
        upload: &mut Upload,
        added: &Added<'_>,
        range: Range<usize>,
        context: &mut Context<'_, impl Index>,
    ) -> Result<(), NoSegment> {
        added.pieces(range).try_for_each(|piece| self.fill(upload, piece, context))
    }
}

//! Extending a value: an item whose value is an old one with bytes before or behind it (`prepend`,
//! `append`).
//!
//! Upstream:   `append`, with the old item and the bytes that are added.
//! Downstream: `append` again, for the new item; `pool` for the blocks of a large value.
//!
//! ```text
//! both together are small ------------------------> one item, both copied
//! bytes behind blocks that no reader has pinned --> the blocks change hands, the rest is copied
//! else, a large value ----------------------------> a new upload, both copied
//! ```
//!
//! An extension that fails has stored nothing (A1 of `append`), and the old item keeps its value.

use std::sync::Arc;

use super::Segments;
use super::context::{Context, Index};
use super::log::queues::Queue;
use super::new_item::{Added, JoinPlace, NoSegment};
use crate::item::{Draft, Item};
use crate::layout::ItemAt;
use crate::pool::{ExtentId, Upload};
use crate::{BLOCK_BYTES, INLINE_VALUE_BYTES_MAX};

impl Segments {
    /// Stores the value of `old` with bytes added before or behind it.
    ///
    /// Cost: a copy of both parts; for bytes behind a large value see [`Self::append_behind`].
    pub(super) fn append_extended(
        &mut self,
        draft: Draft<'_>,
        old: ItemAt,
        added: &Added<'_>,
        place: JoinPlace,
        queue: Queue,
        context: &mut Context<'_, impl Index>,
    ) -> Result<ItemAt, NoSegment> {
        let value_bytes = self.item(old).value().bytes() + added.total_bytes();
        if place == JoinPlace::After
            && let Some(extent) = self.item(old).extent()
            && self.pool().frees_blocks(extent)
        {
            return self.append_behind(draft, old, extent, added, queue, context);
        }
        let added_inline: &[u8] = match added {
            _ if value_bytes > INLINE_VALUE_BYTES_MAX => {
                let mut upload = self.extend_large(old, added, place, value_bytes, context)?;
                return self.append_upload(draft, &mut upload, queue, context);
            }
            Added::Bytes(bytes) => bytes,
            Added::Upload(upload) => upload.rest_bytes(),
        };
        debug_assert!(value_bytes <= INLINE_VALUE_BYTES_MAX, "a small value is joined in place");
        let pool = Arc::clone(self.pool());
        let joined = |old: ItemAt| {
            let inline = Item::load(&pool, old).inline();
            match place {
                JoinPlace::After => [inline, added_inline],
                JoinPlace::Before => [added_inline, inline],
            }
        };
        let (segment, old) = {
            let room = draft.with_value(None, joined(old));
            self.place_beside(&room, old, queue, context)?
        };
        let draft = draft.with_value(None, joined(old));
        Ok(self.log.put(segment, &draft))
    }

    /// Stores the value of `old` with bytes behind it, where `old` has an extent that no reader has
    /// pinned: the new item takes the extent over, and only what follows the blocks is copied.
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
        let pool = Arc::clone(self.pool());
        // Copied, because the item may move while room is made.
        let mut rest = [0; BLOCK_BYTES];
        let rest_bytes = self.item(old).inline().len();
        rest[..rest_bytes].copy_from_slice(self.item(old).inline());
        let tail_bytes = rest_bytes + added.total_bytes();
        self.reclaimer.protect(Some(old));
        let mut tail = self.begin_upload(tail_bytes, context)?;
        self.fill(&mut tail, &rest[..rest_bytes], context)?;
        self.fill_added(&mut tail, added, context)?;
        let Some(old) = self.reclaimer.protected() else {
            unreachable!("V4: a protected item is never dropped")
        };
        let blocks = extent.blocks + tail.extent().map_or(0, |blocks| blocks.blocks);
        let joined = Some(ExtentId { blocks, ..extent });
        let (segment, old) = {
            let room = draft.with_value(joined, [tail.rest_bytes(), &[]]);
            self.place_beside(&room, old, queue, context)?
        };
        if let Some(linked) = tail.extent() {
            pool.link_extent(extent, linked, tail.last_block());
            tail.disown_extent();
        }
        self.log.give_extent_away(old);
        self.reclaimer.note_large_value();
        Ok(self.log.put(segment, &draft.with_value(joined, [tail.rest_bytes(), &[]])))
    }

    /// The extended value as an upload, copied from pinned memory: the old item may be evicted
    /// while room is made.
    fn extend_large(
        &mut self,
        old: ItemAt,
        added: &Added<'_>,
        place: JoinPlace,
        value_bytes: usize,
        context: &mut Context<'_, impl Index>,
    ) -> Result<Upload, NoSegment> {
        let pinned = self.pin(old);
        let mut upload = self.begin_upload(value_bytes, context)?;
        for turn in [JoinPlace::Before, JoinPlace::After] {
            if turn != place {
                let mut offset = 0;
                while offset < pinned.total_bytes() {
                    let piece = pinned.piece_at(offset);
                    self.fill(&mut upload, piece, context)?;
                    offset += piece.len();
                }
                continue;
            }
            self.fill_added(&mut upload, added, context)?;
        }
        assert!(upload.missing_bytes() == 0, "both parts make the whole value");
        Ok(upload)
    }

    /// Writes what is added to a value to an upload of our own, making room as needed.
    fn fill_added(
        &mut self,
        upload: &mut Upload,
        added: &Added<'_>,
        context: &mut Context<'_, impl Index>,
    ) -> Result<(), NoSegment> {
        match added {
            Added::Bytes(bytes) => self.fill(upload, bytes, context),
            Added::Upload(added) => {
                added.pieces().try_for_each(|piece| self.fill(upload, piece, context))
            }
        }
    }
}

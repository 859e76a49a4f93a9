//! Storing an item: its value in hand, then its queue, then a place, then one write.
//!
//! Upstream:   `cache` with a new item.
//! Downstream: `open` for the place, `reclaim` for room (in a store `reserve` for both), `pool` for
//! large values.

use std::sync::Arc;

use super::log::open::{For, Need, Stream};
use super::log::ttl::ttl_bucket;
use super::{Added, Index, JoinPlace, NewItem, NewValue, NoRoom, Queue, Segments};
use crate::item::{Draft, Item};
use crate::layout::{Access, Header, ItemAt};
use crate::pool::Upload;
use crate::{BLOCK_BYTES, INLINE_VALUE_BYTES_MAX, KEY_BYTES_MAX};

/// Bytes written to an internal upload between two looks at memory.
const FILL_BYTES: usize = 16 * BLOCK_BYTES;

/// Times that room is made for one request before it is given up: others may take what was freed.
const ATTEMPTS_MAX: usize = 8;

impl Segments {
    /// Stores an item, making room when memory is full, and says where it lies. The index does not
    /// know it yet. Any other item may have moved, or be gone; the index was told.
    ///
    /// Cost: a copy of key and value; when room must be made, the work for one segment.
    /// Errors: nothing may be evicted and nothing is dead; an upload is as it was. Where nothing
    /// may be evicted the caller kills `item.replaces` before the next call.
    /// Panics: on an empty or overlong key, or an upload that is not whole.
    pub fn append(
        &mut self,
        item: NewItem<'_>,
        now: u32,
        index: &mut impl Index,
    ) -> Result<ItemAt, NoRoom> {
        assert!(!item.key.is_empty() && item.key.len() <= KEY_BYTES_MAX);
        let queue = self.queue_for(&item);
        let cas = item.cas.filter(|_| self.options.cas);
        let access = item.access.unwrap_or(Access::unread(now));
        let draft = Draft::new(item.key, cas, item.client_flags, access)
            .with_life(item.expiry, item.stale, item.win_sent)
            .with_base64_key(item.base64_key);
        self.jobs_left = self.jobs_max();
        if !self.options.evict {
            self.kept = item.replaces;
        }
        let stored = self.append_value(draft, item.value, queue, now, index);
        self.kept = None;
        self.counts.refused += u64::from(stored.is_err());
        stored
    }

    fn append_value(
        &mut self,
        draft: Draft<'_>,
        value: NewValue<'_>,
        queue: Queue,
        now: u32,
        index: &mut impl Index,
    ) -> Result<ItemAt, NoRoom> {
        match value {
            NewValue::Bytes(bytes) => self.append_pieces(draft, [bytes, &[]], queue, now, index),
            NewValue::Joined(head, tail) => {
                self.append_pieces(draft, [head, tail], queue, now, index)
            }
            NewValue::Upload(upload) => self.append_upload(draft, upload, queue, now, index),
            NewValue::Same(old) => self.append_same(draft, old, queue, now, index),
            NewValue::Extended { old, added, place } => {
                self.append_extended(draft, old, &added, place, queue, now, index)
            }
        }
    }

    /// An item that replaces one of the main queue, or an active one, belongs to the main queue,
    /// and so does a ghost that returns.
    fn queue_for(&mut self, item: &NewItem<'_>) -> Queue {
        if !self.options.evict {
            return Queue::Probation;
        }
        match item.replaces {
            Some(old) if self.item(old).active() => Queue::Main,
            Some(old) => self.queue_of(self.pool.segment_of(old)),
            None if self.ghosts.take(item.hash) => {
                self.counts.ghost_hits += 1;
                Queue::Main
            }
            None => Queue::Probation,
        }
    }

    fn append_pieces(
        &mut self,
        draft: Draft<'_>,
        pieces: [&[u8]; 2],
        queue: Queue,
        now: u32,
        index: &mut impl Index,
    ) -> Result<ItemAt, NoRoom> {
        let value_bytes = pieces[0].len() + pieces[1].len();
        if value_bytes > INLINE_VALUE_BYTES_MAX {
            let mut upload = self.pool.begin_upload(value_bytes).map_err(|_no_memory| NoRoom)?;
            for piece in pieces {
                self.fill(&mut upload, piece, now, index)?;
            }
            return self.append_upload(draft, &mut upload, queue, now, index);
        }
        let draft = draft.with_value(None, pieces);
        let segment = self.place_or_make_room(&draft, queue, now, index)?;
        Ok(self.put(segment, &draft))
    }

    fn append_upload(
        &mut self,
        draft: Draft<'_>,
        upload: &mut Upload,
        queue: Queue,
        now: u32,
        index: &mut impl Index,
    ) -> Result<ItemAt, NoRoom> {
        assert!(upload.missing_bytes() == 0, "only a whole upload is stored");
        let extent = upload.extent();
        let at = {
            let draft = draft.with_value(extent, [upload.rest_bytes(), &[]]);
            let segment = self.place_or_make_room(&draft, queue, now, index)?;
            self.put(segment, &draft)
        };
        if let Some(extent) = extent {
            self.pool.adopt_extent(extent, self.options.shard);
            upload.disown_extent();
            // Nobody is sent it yet: there is something to drop.
            self.strips.in_vain = 0;
        }
        Ok(at)
    }

    fn append_same(
        &mut self,
        draft: Draft<'_>,
        old: ItemAt,
        queue: Queue,
        now: u32,
        index: &mut impl Index,
    ) -> Result<ItemAt, NoRoom> {
        let pool = Arc::clone(&self.pool);
        let (segment, old) = {
            let item = Item::load(&pool, old);
            let room = draft.with_value(item.extent(), [item.inline(), &[]]);
            self.place_beside(&room, old, queue, now, index)?
        };
        // Room was made, so the item may lie elsewhere: everything is read again.
        let item = Item::load(&pool, old);
        let draft = draft.with_value(item.extent(), [item.inline(), &[]]);
        self.give_extent_away(old);
        Ok(self.put(segment, &draft))
    }

    #[expect(clippy::too_many_arguments, reason = "one more than its siblings, all of them plain")]
    fn append_extended(
        &mut self,
        draft: Draft<'_>,
        old: ItemAt,
        added: &Added<'_>,
        place: JoinPlace,
        queue: Queue,
        now: u32,
        index: &mut impl Index,
    ) -> Result<ItemAt, NoRoom> {
        let added_bytes = match added {
            Added::Bytes(bytes) => bytes.len(),
            Added::Upload(upload) => upload.total_bytes(),
        };
        let value_bytes = self.item(old).value().bytes() + added_bytes;
        let added_inline: &[u8] = match added {
            _ if value_bytes > INLINE_VALUE_BYTES_MAX => {
                let mut upload = self.extend_large(old, added, place, value_bytes, now, index)?;
                return self.append_upload(draft, &mut upload, queue, now, index);
            }
            Added::Bytes(bytes) => bytes,
            Added::Upload(upload) => upload.rest_bytes(),
        };
        let pool = Arc::clone(&self.pool);
        let joined = |old: ItemAt| {
            let inline = Item::load(&pool, old).inline();
            match place {
                JoinPlace::After => [inline, added_inline],
                JoinPlace::Before => [added_inline, inline],
            }
        };
        let (segment, old) = {
            let room = draft.with_value(None, joined(old));
            self.place_beside(&room, old, queue, now, index)?
        };
        let draft = draft.with_value(None, joined(old));
        Ok(self.put(segment, &draft))
    }

    /// The extended value as an upload, copied from pinned memory: the old item may be evicted
    /// while room is made.
    fn extend_large(
        &mut self,
        old: ItemAt,
        added: &Added<'_>,
        place: JoinPlace,
        value_bytes: usize,
        now: u32,
        index: &mut impl Index,
    ) -> Result<Upload, NoRoom> {
        let mut upload = self.pool.begin_upload(value_bytes).map_err(|_no_memory| NoRoom)?;
        let pinned = self.pin(old);
        for turn in [JoinPlace::Before, JoinPlace::After] {
            if turn != place {
                let mut offset = 0;
                while offset < pinned.total_bytes() {
                    let piece = pinned.piece_at(offset);
                    self.fill(&mut upload, piece, now, index)?;
                    offset += piece.len();
                }
                continue;
            }
            match added {
                Added::Bytes(bytes) => self.fill(&mut upload, bytes, now, index)?,
                Added::Upload(added) => {
                    for piece in added.pieces() {
                        self.fill(&mut upload, piece, now, index)?;
                    }
                }
            }
        }
        Ok(upload)
    }

    /// Writes `bytes` to an upload of our own, making room as needed.
    fn fill(
        &mut self,
        upload: &mut Upload,
        bytes: &[u8],
        now: u32,
        index: &mut impl Index,
    ) -> Result<(), NoRoom> {
        for piece in bytes.chunks(FILL_BYTES) {
            let mut attempts = 0;
            while upload.write(piece).is_err() {
                attempts += 1;
                if attempts > ATTEMPTS_MAX || !self.make_upload_room(piece.len(), now, index) {
                    return Err(NoRoom);
                }
            }
        }
        Ok(())
    }

    /// As [`Self::place_or_make_room`], while `old` is neither evicted nor lost sight of; says
    /// where `old` lies then.
    fn place_beside(
        &mut self,
        draft: &Draft<'_>,
        old: ItemAt,
        queue: Queue,
        now: u32,
        index: &mut impl Index,
    ) -> Result<(u32, ItemAt), NoRoom> {
        self.kept = Some(old);
        let segment = self.place_or_make_room(draft, queue, now, index);
        let Some(old) = self.kept.take() else { unreachable!("a kept item is never dropped") };
        Ok((segment?, old))
    }

    fn place_or_make_room(
        &mut self,
        draft: &Draft<'_>,
        queue: Queue,
        now: u32,
        index: &mut impl Index,
    ) -> Result<u32, NoRoom> {
        if !self.options.evict {
            return self.place_in_store(draft, now, index);
        }
        let bucket = ttl_bucket(draft.expiry(), now);
        for _ in 0..ATTEMPTS_MAX {
            let stream = Stream::fresh(queue);
            if let Some(segment) = self.place(stream, bucket, Need(draft), For::Append) {
                return Ok(segment);
            }
            if !self.make_segment(now, index) {
                break;
            }
        }
        Err(NoRoom)
    }

    /// Takes the blocks of the item at `old` out of its account: another item is about to name
    /// them.
    fn give_extent_away(&mut self, old: ItemAt) {
        let Some(extent) = self.item(old).extent() else { return };
        let header = Header::load(&self.pool.arena, old);
        header.with_extent_given().store(&self.pool.arena, old);
        let bytes = extent.blocks as usize * BLOCK_BYTES;
        self.live_bytes -= bytes;
        self.blocks -= extent.blocks as usize;
        self.queue_bytes[self.queue_of(self.pool.segment_of(old)) as usize] -= bytes;
    }
}

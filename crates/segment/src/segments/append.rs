//! Storing an item: chooses its queue, takes its value, finds a place, and writes it once.
//!
//! Upstream:   `cache` with a new item.
//! Downstream: `log` for the place, `reclaimer` for room (in a store `reserve` for both), and
//!             `pool` for large values.
//!
//! Invariants:
//! - A1  An item is written last, once its place was found: an append that fails has stored
//!   nothing.

use super::Segments;
use super::context::{Context, Index};
use super::log::open::{Need, Purpose, Stream};
use super::log::queues::Queue;
use super::log::ttl::ttl_bucket;
use super::new_item::{JoinPlace, NewItem, NewValue, NoSegment};
use super::reclaimer::Reclaimed;
use crate::item::Draft;
use crate::layout::{Access, ItemAt};
use crate::limits::{BLOCK_BYTES, INLINE_VALUE_BYTES_MAX, KEY_BYTES_MAX};
use crate::pool::{NoMemory, Upload};

/// An internal upload is filled in pieces of this size. In a store, making room for each is a
/// request of its own (`reclaimer::allowance`).
const FILL_BYTES: usize = 16 * BLOCK_BYTES;

/// How often room is made for one request before it is refused. Each time, another shard may take
/// the memory that was freed.
const ATTEMPTS_MAX: usize = 8;

/// The most bytes of blocks that a piece of an upload needs: it may begin and end within blocks.
pub(super) const fn blocks_of_piece(bytes: usize) -> usize {
    bytes + BLOCK_BYTES
}

impl Segments {
    /// Stores an item and returns its location. Makes room when memory is full. The index does not
    /// know the new item yet. The call may move or drop any other item, and reports that to the
    /// index.
    ///
    /// Cost: a copy of key and value; when room must be made, the work for one segment.
    /// Errors: there is no room, and none could be made. An upload is unchanged. In a store, the
    /// caller must kill `item.replaces` before the next call. If the new item keeps the accesses of
    /// the old one, the caller must call [`Self::move_access`].
    /// Panics: on an empty or overlong key, or an upload that is not whole.
    pub fn append(
        &mut self,
        item: NewItem<'_>,
        now: u32,
        index: &mut impl Index,
    ) -> Result<ItemAt, NoSegment> {
        assert!(!item.key.is_empty() && item.key.len() <= KEY_BYTES_MAX);
        let queue = self.queue_for(&item);
        let cas = item.cas.filter(|_| self.options.cas || item.remnant);
        let draft = Draft::new(item.key, cas, item.client_flags, Access::unread(now))
            .with_life(item.expiry, item.stale, item.win_sent)
            .with_remnant(item.remnant)
            .with_protocol_mark(item.protocol_mark);
        self.reclaimer.begin_request(&self.log, 0);
        if !self.options.evict || item.keeps_access {
            self.reclaimer.protect(item.replaces);
        }
        let items_before = self.log.holdings().items;
        let stored = self.append_value(draft, item.value, queue, &mut Context { now, index });
        self.reclaimer.protect(None);
        if stored == Err(NoSegment::Refused) {
            debug_assert!(self.log.holdings().items <= items_before, "A1");
            self.reclaimer.note_refused();
        }
        stored
    }

    pub(super) fn append_value(
        &mut self,
        draft: Draft<'_>,
        value: NewValue<'_>,
        queue: Queue,
        context: &mut Context<'_, impl Index>,
    ) -> Result<ItemAt, NoSegment> {
        match value {
            NewValue::Bytes(bytes) => self.append_pieces(draft, [bytes, &[]], queue, context),
            NewValue::Joined(head, tail) => self.append_pieces(draft, [head, tail], queue, context),
            NewValue::Upload(upload) => self.append_upload(draft, upload, queue, context),
            NewValue::Same(old) => {
                self.append_inline(draft, old, (&[], JoinPlace::After), queue, context)
            }
            NewValue::Extended { old, added, place } => {
                self.append_extended(draft, old, &added, place, queue, context)
            }
        }
    }

    /// An item that replaces one of the main queue, or an active one, belongs to the main queue,
    /// and so does a ghost that returns. While main is empty, it begins only once several keys have
    /// returned: the first one, which may be a chance hit, would take a whole segment.
    fn queue_for(&mut self, item: &NewItem<'_>) -> Queue {
        if !self.options.evict {
            return Queue::Probation;
        }
        match item.replaces {
            Some(old) if self.item(old).active() => Queue::Main,
            Some(old) => self.log.queue_of(self.log.pool().segment_of(old)),
            None if !self.reclaimer.take_ghost(item.hash) => Queue::Probation,
            None if self.log.has_main() || self.reclaimer.do_keys_return() => Queue::Main,
            None => Queue::Probation,
        }
    }

    fn append_pieces(
        &mut self,
        draft: Draft<'_>,
        pieces: [&[u8]; 2],
        queue: Queue,
        context: &mut Context<'_, impl Index>,
    ) -> Result<ItemAt, NoSegment> {
        let value_bytes = pieces[0].len() + pieces[1].len();
        if value_bytes > INLINE_VALUE_BYTES_MAX {
            let mut upload = self.begin_upload(value_bytes, context)?;
            for piece in pieces {
                self.fill(&mut upload, piece, context)?;
            }
            return self.append_upload(draft, &mut upload, queue, context);
        }
        let draft = draft.with_value(None, pieces);
        let segment = self.place_or_make_room(&draft, queue, context)?;
        Ok(self.log.put(segment, &draft))
    }

    pub(super) fn append_upload(
        &mut self,
        draft: Draft<'_>,
        upload: &mut Upload,
        queue: Queue,
        context: &mut Context<'_, impl Index>,
    ) -> Result<ItemAt, NoSegment> {
        assert!(upload.missing_bytes() == 0, "only a whole upload is stored");
        let extent = upload.extent();
        let at = {
            let draft = draft.with_value(extent, [upload.rest_bytes(), &[]]);
            let segment = self.place_or_make_room(&draft, queue, context)?;
            self.log.put(segment, &draft)
        };
        if let Some(extent) = extent {
            self.pool().adopt_extent(extent, upload.last_block(), self.options.shard);
            upload.disown_extent();
            // It is not being sent to any client yet, so a strip could drop it.
            self.reclaimer.note_large_value();
        }
        Ok(at)
    }

    /// Begins an upload for a value that this shard makes itself. Makes room for all its blocks
    /// first: if that has to wait, nothing was copied yet.
    pub(super) fn begin_upload(
        &mut self,
        value_bytes: usize,
        context: &mut Context<'_, impl Index>,
    ) -> Result<Upload, NoSegment> {
        let upload =
            self.pool().begin_upload(value_bytes).map_err(|NoMemory| NoSegment::Refused)?;
        let bytes = value_bytes / BLOCK_BYTES * BLOCK_BYTES; // The rest is stored in the item.
        let step = if self.options.evict { bytes.max(1) } else { FILL_BYTES };
        for begin in (0..bytes).step_by(step) {
            let end = bytes.min(begin + step);
            self.reclaimer.begin_request(&self.log, (end - begin) as u64);
            match self.reclaimer.make_block_room(&mut self.log, context, end) {
                Reclaimed::Made => {}
                Reclaimed::OnTheWay => return Err(NoSegment::NotYet),
                Reclaimed::Refused => return Err(NoSegment::Refused),
            }
        }
        Ok(upload.on_core(self.log.own()))
    }

    /// Writes `bytes` to an upload of our own. Makes room again if other shards took it.
    pub(super) fn fill(
        &mut self,
        upload: &mut Upload,
        bytes: &[u8],
        context: &mut Context<'_, impl Index>,
    ) -> Result<(), NoSegment> {
        for piece in bytes.chunks(FILL_BYTES) {
            self.log.note_work(piece.len());
            let mut attempts = 0;
            while upload.write(piece).is_err() {
                if attempts == 0 {
                    self.reclaimer.begin_request(&self.log, piece.len() as u64);
                }
                attempts += 1;
                let bytes = blocks_of_piece(piece.len());
                match self.reclaimer.make_block_room(&mut self.log, context, bytes) {
                    Reclaimed::Made if attempts <= ATTEMPTS_MAX => {}
                    Reclaimed::OnTheWay => return Err(NoSegment::NotYet),
                    Reclaimed::Made | Reclaimed::Refused => return Err(NoSegment::Refused),
                }
            }
        }
        Ok(())
    }

    /// Finds a place as [`Self::place_or_make_room`] does, but protects `old` from eviction. Also
    /// returns where `old` lies afterwards.
    pub(super) fn place_beside(
        &mut self,
        draft: &Draft<'_>,
        old: ItemAt,
        queue: Queue,
        context: &mut Context<'_, impl Index>,
    ) -> Result<(u32, ItemAt), NoSegment> {
        self.reclaimer.protect(Some(old));
        let segment = self.place_or_make_room(draft, queue, context);
        let Some(old) = self.reclaimer.protected() else {
            unreachable!("V4: a protected item is never dropped")
        };
        self.reclaimer.protect(None);
        Ok((segment?, old))
    }

    fn place_or_make_room(
        &mut self,
        draft: &Draft<'_>,
        queue: Queue,
        context: &mut Context<'_, impl Index>,
    ) -> Result<u32, NoSegment> {
        if !self.options.evict {
            return self.place_in_store(draft, context);
        }
        let bucket = ttl_bucket(draft.expiry(), context.now);
        debug_assert!(!self.reclaimer.awaits_kill(&self.log), "a cache rewrites no segment");
        let stream = Stream::fresh(queue);
        for _ in 0..ATTEMPTS_MAX {
            if let Some(segment) = self.log.place(stream, bucket, Need(draft), Purpose::Append) {
                return Ok(segment);
            }
            match self.reclaimer.make_segment(&mut self.log, context) {
                Reclaimed::Made => {}
                Reclaimed::OnTheWay => return Err(NoSegment::NotYet),
                Reclaimed::Refused => break,
            }
        }
        if self.reclaimer.is_busy() {
            return Err(NoSegment::Refused); // The spare segment belongs to the job.
        }
        // Clients that read large values slowly may pin all memory. Small items still find room:
        // when the segment that is opened here is evicted, it is the shard's spare one again.
        let place = self.log.place(stream, bucket, Need(draft), Purpose::LastResort);
        place.ok_or(NoSegment::Refused)
    }
}

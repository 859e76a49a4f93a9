//! Saving and restoring: all living items in the order of their age, and one item as it was saved.
//!
//! Upstream:   `cache`, for a server that ends and for the next one.
//! Downstream: `log` for the segments; `append` stores an item.
//!
//! Invariants:
//! - W1  A walk passes each living item once: it examines each segment of the shard once, and
//!   nothing changes meanwhile.

use std::mem;

use super::Segments;
use super::context::{Context, Index};
use super::log::queues::Queue;
use super::new_item::{NewValue, NoSegment};
use crate::item::{Draft, Item, ItemValue};
use crate::layout::{Access, ItemAt, SEGMENT_HEAD_BYTES};
use crate::limits::KEY_BYTES_MAX;

/// An item as one process saves it and another one restores it, without its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedItem<'k> {
    /// The key, 1 to [`crate::KEY_BYTES_MAX`] bytes.
    pub key: &'k [u8],
    /// The client's opaque 32 bits.
    pub client_flags: u32,
    /// Second in which the item dies; 0 for never.
    pub expiry: u32,
    /// The CAS token, if items carry tokens.
    pub cas: Option<u64>,
    /// When and how often the item was read: [`Access::to_saved`].
    pub access: u32,
    /// Whether the item is stale.
    pub stale: bool,
    /// Whether a client already has the right to refill the item.
    pub win_sent: bool,
    /// Whether the item is kept for leases only. Such an item has a token in any case.
    pub remnant: bool,
    /// One bit that the protocol keeps with the item.
    pub protocol_mark: bool,
    /// Whether the item was in the main queue.
    pub is_main: bool,
}

impl<'k> SavedItem<'k> {
    fn of(item: &Item<'k>, is_main: bool) -> Self {
        let saved = Self {
            key: item.key(),
            client_flags: item.client_flags(),
            expiry: item.expiry(),
            cas: item.token(),
            access: item.access().to_saved(),
            stale: item.stale(),
            win_sent: item.win_sent(),
            remnant: item.is_remnant(),
            protocol_mark: item.protocol_mark(),
            is_main,
        };
        debug_assert!(!saved.remnant || saved.stale, "a remnant is always stale");
        saved
    }
}

impl Segments {
    /// Passes all living items with their values to `show`: main first, each queue by the age of
    /// its segments, the oldest first; last the open segments. Ends at the first error of `show`.
    ///
    /// Cost: one pass over all items.
    pub fn walk_by_age<E>(
        &self,
        now: u32,
        mut show: impl FnMut(&SavedItem<'_>, ItemValue<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let pool = self.pool();
        let mut examined = vec![false; pool.segments_touched() as usize];
        let sealed = [Queue::Main, Queue::Probation].into_iter();
        let sealed = sealed.flat_map(|queue| self.log.queues().by_age(&pool.metas, queue));
        for segment in sealed.chain(self.log.all_segments().iter().copied()) {
            debug_assert!(self.log.owns(segment), "W1: another shard saves its own");
            if mem::replace(&mut examined[segment as usize], true) {
                continue;
            }
            let is_main = self.log.queue_of(segment) == Queue::Main;
            let mut offset = SEGMENT_HEAD_BYTES;
            while let Some((item, next)) = pool.item_in(segment, offset) {
                offset = next;
                if self.is_live(item.at(), now) {
                    show(&SavedItem::of(&item, is_main), item.value())?;
                }
            }
        }
        Ok(())
    }

    /// Stores an item as it was saved, and returns its location. The index does not know the item
    /// yet, and has no other one under its key. Makes room as [`Self::append`] does.
    ///
    /// Cost, errors, panics: as [`Self::append`].
    pub fn restore(
        &mut self,
        item: &SavedItem<'_>,
        value: &[u8],
        now: u32,
        index: &mut impl Index,
    ) -> Result<ItemAt, NoSegment> {
        assert!(!item.key.is_empty() && item.key.len() <= KEY_BYTES_MAX);
        let is_main = item.is_main && self.options.evict;
        let queue = if is_main { Queue::Main } else { Queue::Probation };
        let cas = item.cas.filter(|_| self.options.cas || item.remnant);
        debug_assert!(cas.is_some() || !self.options.cas, "the caller gives each item a token");
        let access = Access::from_saved(item.access);
        let draft = Draft::new(item.key, cas, item.client_flags, access)
            .with_life(item.expiry, item.stale, item.win_sent)
            .with_remnant(item.remnant)
            .with_protocol_mark(item.protocol_mark);
        self.reclaimer.begin_request(&self.log, 0);
        self.append_value(draft, NewValue::Bytes(value), queue, &mut Context { now, index })
    }
}

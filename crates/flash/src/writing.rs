//! The writing of a value that is too long for a record, part by part.
//!
//! Upstream:   `store`, for an item that it has just stored in the cache.
//! Downstream: the log takes as many parts at a time as it has room for.
//!
//! Invariants, cited by number where they are asserted:
//! - W1  One value is written at a time, and no change of another item is appended before its item
//!   is. So changes stay in their order.
//! - W2  The segments that a value takes have space before it is begun. So it never waits for the
//!   file system in its middle, which would let no other item be changed.

use arrayvec::ArrayVec;
use kachel_cache::CachePinned;
use kachel_engine::ReadValue as _;
use kachel_log::{AppendRefused, DurableLog, Position};

use crate::index::Parts;
use crate::record::{self, ItemHead, LARGE_ITEM, LargeValue, PART, PART_HEAD_BYTES};

/// The most pieces of a part: its head, its key, and 64 KiB in pieces of at most 16 KiB.
const PIECES_MAX: usize = 16;

/// An item whose value is being written.
#[derive(Debug)]
pub(crate) struct LargeWrite {
    pub(crate) key: Box<[u8]>,
    pub(crate) head: ItemHead,
    pub(crate) epoch: u32,
    value: CachePinned,
    value_id: u64,
    written: usize,
    parts: Vec<Position>,
}

/// What writing has come to.
#[derive(Debug)]
pub(crate) enum Wrote {
    /// The log takes no more for now.
    Part,
    /// The item is appended.
    Item(kachel_log::Appended, Parts),
}

/// The bytes of a value that a part has at most, for a key of this length.
pub(crate) fn part_bytes_max(log: &DurableLog, key_bytes: usize) -> usize {
    log.geometry().payload_bytes_max() - PART_HEAD_BYTES - key_bytes
}

impl LargeWrite {
    pub(crate) fn new(
        key: &[u8],
        head: ItemHead,
        epoch: u32,
        value: CachePinned,
        log: &DurableLog,
    ) -> Self {
        let value_id = log.next_sequence();
        let (key, parts) = (key.into(), Vec::new());
        Self { key, head, epoch, value, value_id, written: 0, parts }
    }

    /// Whether a part with this id belongs to the value.
    pub(crate) const fn names(&self, value_id: u64) -> bool {
        self.value_id == value_id
    }

    /// A part was copied.
    pub(crate) fn moved(&mut self, place: u32, to: Position) {
        if let Some(part) = self.parts.get_mut(place as usize) {
            *part = to;
        }
    }

    /// Appends what the log takes.
    ///
    /// Errors: the log has failed.
    pub(crate) fn go_on(&mut self, log: &mut DurableLog) -> Result<Wrote, AppendRefused> {
        let value_bytes = self.value.total_bytes();
        let most = part_bytes_max(log, self.key.len());
        while self.written < value_bytes {
            let end = value_bytes.min(self.written + most);
            let place = self.parts.len() as u32;
            let head = record::part_head(&self.key, self.value_id, place);
            let mut pieces = ArrayVec::<&[u8], PIECES_MAX>::from_iter([&head[..], &*self.key]);
            let mut at = self.written;
            // A part ends early at a value in many small pieces.
            while at < end && !pieces.is_full() {
                let piece = self.value.piece_at(at);
                let piece = &piece[..piece.len().min(end - at)];
                pieces.push(piece);
                at += piece.len();
            }
            match log.append(PART, self.epoch, &pieces, 0) {
                Ok(appended) => self.parts.push(appended.position),
                Err(AppendRefused::Failed) => return Err(AppendRefused::Failed),
                Err(_) => return Ok(Wrote::Part),
            }
            self.written = at;
        }
        let (id, bytes, parts) = (self.value_id, value_bytes as u64, self.parts.len() as u32);
        let value = LargeValue { id, bytes, parts };
        let head = record::item_head(&self.key, &self.head);
        let item: [&[u8]; 3] = [&head, &self.key, &value.to_bytes()];
        match log.append(LARGE_ITEM, self.epoch, &item, 0) {
            Ok(appended) => {
                let places = std::mem::take(&mut self.parts);
                Ok(Wrote::Item(appended, Parts { value, places }))
            }
            Err(AppendRefused::Failed) => Err(AppendRefused::Failed),
            Err(_) => Ok(Wrote::Part),
        }
    }
}

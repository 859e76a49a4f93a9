//! Whether the log has room for a change, and what the operations wait for that find none.
//!
//! Upstream:   `store`, before it makes a change; `engine`, which names the operations that wait.
//! Downstream: the log, and the collection of garbage.

use kachel_engine::{NotYet, Now, Primitives as _, Refused};
use kachel_log::AppendRefused;

use crate::record::SHORT_BYTES_MAX;
use crate::store::{Demand, Store};

/// Segments that a store leaves free, for deletions and for the collection of garbage.
pub(crate) const SPARES_OF_STORES: u32 = 2;
/// Segments that are never full of items: the current one, the next one, the one for a start, those
/// for deletions and for the collection of garbage.
const SEGMENTS_BESIDE: u32 = 4 + SPARES_OF_STORES;
/// Segments that a deletion, or the change of a life, leaves free for the collection of garbage.
const SPARES_OF_OTHERS: u32 = 1;
impl Store {
    /// Makes sure that a change can append a record with a payload of this length.
    pub(crate) fn prepare(
        &mut self,
        payload_bytes: usize,
        spares: u32,
    ) -> Result<(), AppendRefused> {
        let prepared = self.try_prepare(payload_bytes, spares);
        if prepared == Err(AppendRefused::Wait) {
            self.waits_for_log = true;
            let Demand { payload_bytes: bytes, spares: least } = self.least_awaited;
            let (payload_bytes, spares) = (payload_bytes.min(bytes), spares.min(least));
            self.least_awaited = Demand { payload_bytes, spares };
        }
        prepared
    }

    /// Whether an operation that waits for the log may go on, or be refused: the log would answer
    /// the least that was asked for in another way by now.
    pub(crate) fn has_news_for_waiting(&mut self) -> bool {
        let Demand { payload_bytes, spares } = self.least_awaited;
        let has_news = payload_bytes == 0
            || self.try_prepare(payload_bytes, spares) != Err(AppendRefused::Wait);
        if has_news {
            self.least_awaited = Demand::NONE;
        }
        has_news
    }

    fn try_prepare(&mut self, payload_bytes: usize, spares: u32) -> Result<(), AppendRefused> {
        if self.is_read_only() {
            return Err(AppendRefused::Failed);
        }
        // W1 of `writing`, D2 of `prefixes`.
        let is_held_up = self.writing.is_some() || self.prefixes.must_append();
        let waits = !self.tokens.are_left() || is_held_up;
        let prepared = if waits && !self.log.is_stalled() {
            Err(AppendRefused::Wait)
        } else {
            // The log keeps `SPARES_OF_STORES` itself. Only a large value needs more (W2).
            let reserved =
                if spares > SPARES_OF_STORES { self.log.reserve(spares) } else { Ok(()) };
            reserved.and_then(|()| self.log.prepare(payload_bytes, spares).map(|_| ()))
        };
        if prepared != Err(AppendRefused::NoSpace) {
            return prepared;
        }
        self.collection.wanted_spares = self.collection.wanted_spares.max(spares + 2);
        // While garbage is collected, there will be space.
        let gains = !self.log.is_stalled() && self.gains_space();
        Err(if gains { AppendRefused::Wait } else { AppendRefused::NoSpace })
    }

    /// The operation waits for something else that a completion brings.
    pub(crate) fn wait_for_completion(&mut self) -> NotYet {
        self.waits_for_log = true;
        self.least_awaited.payload_bytes = 0;
        self.wait(0)
    }

    /// Makes sure that an operation can append a record without a value.
    pub(crate) fn prepare_change(&mut self) -> Result<(), AppendRefused> {
        self.prepare(SHORT_BYTES_MAX, SPARES_OF_OTHERS)
    }

    /// Makes sure that a store can append its item, whose records have this number of bytes.
    pub(crate) fn prepare_store(&mut self, bytes: usize, now: &Now) -> Result<(), Refused> {
        let geometry = *self.log.geometry();
        let segment_bytes = geometry.segment_bytes();
        let segments = u64::from(self.log.segments_max().saturating_sub(SEGMENTS_BESIDE));
        // A fuller log copies more than it takes.
        let full_bytes = segments * (self.filled_bytes() - segment_bytes / 16);
        let needed_bytes = self.index.live_bytes() + self.index.grave_bytes();
        if needed_bytes + bytes as u64 > full_bytes {
            self.index.sweep_soon(now.second);
            return Err(Refused::NoRoom);
        }
        let payload_bytes = bytes.min(geometry.payload_bytes_max());
        let begun = (bytes - payload_bytes) as u64 / (segment_bytes / 2) + 1;
        let spares = if payload_bytes < bytes { begun as u32 } else { 0 } + SPARES_OF_STORES;
        self.prepare(payload_bytes, spares).map_err(|refused| match refused {
            AppendRefused::Wait => Refused::NotYet,
            AppendRefused::NoSpace | AppendRefused::Failed => Refused::NoRoom,
        })
    }
}

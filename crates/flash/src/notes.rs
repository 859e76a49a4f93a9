//! Records that are no change of one item: numbers of changes that were not made, notes about
//! tokens, and flushes of prefixes.
//!
//! Upstream:   `engine`, at the beginning of an operation, and when operations are submitted;
//!             `store`, when a lookup has noted a flush.
//! Downstream: the log; `prefixes` knows which flushes lack their records.

use kachel_engine::Primitives as _;

use crate::record::{self, SHORT_BYTES_MAX, TOKENS};
use crate::store::Store;

/// An entry that a sweep examines counts as this many bytes of work. A guess.
const EXAMINED_BYTES: u64 = 256;

impl Store {
    /// Gives the number of a change that was not made to a record, unless another change has it. If
    /// there is no room for the record, tries again with the next call.
    pub(crate) fn use_number(&mut self) {
        let Some(number) = self.unused_number.take() else { return };
        if number != self.changes.next() {
            return;
        }
        if self.log.prepare(SHORT_BYTES_MAX, 0).is_ok() {
            self.append(TOKENS, 0, &[&record::tokens_note(0)]);
        } else {
            self.unused_number = Some(number);
        }
    }

    /// Appends the next note about tokens, if it is time and there is room.
    pub(crate) fn note_tokens(&mut self) {
        let is_due =
            self.tokens.wants_note() || self.tokens.is_noting() && self.noted_tokens.is_none(); // There was no room.
        if !is_due || self.log.prepare(SHORT_BYTES_MAX, 0).is_err() {
            return;
        }
        let reserved = self.tokens.to_note();
        self.newest_note = reserved;
        let appended = self.log.append(TOKENS, 0, &[&record::tokens_note(reserved)], 0);
        self.noted_tokens = Some(appended.expect("the log was prepared").sequence);
        self.log.sync(); // In every mode: no token may come back.
    }

    /// Notes the flushes of prefixes that the cache has noted (D1 of `prefixes`). Cost: two
    /// comparisons if there are none.
    #[inline]
    pub(crate) fn note_prefixes(&mut self) {
        let newest = self.cache.newest_prefix();
        if !self.prefixes.is_noted(newest) {
            self.prefixes.note_new(newest, &self.common.prefixes());
        }
        self.append_prefixes();
    }

    /// Appends the records of the flushes that were noted, as far as there is room. A large value
    /// that is being written was stored before them.
    #[inline]
    pub(crate) fn append_prefixes(&mut self) {
        if self.prefixes.must_append() && self.writing.is_none() && !self.is_read_only() {
            self.prefixes.append(&mut self.log, &mut self.index);
        }
    }

    /// A step of the sweep of flushed prefixes. Returns the number of entries examined.
    pub(crate) fn sweep_prefixes(&mut self) -> usize {
        let examined = self.prefixes.sweep(&mut self.index);
        self.work_bytes += examined as u64 * EXAMINED_BYTES;
        examined
    }

    /// Ends the flushes of prefixes of which no item is left, and whose records are durable.
    pub(crate) fn end_prefixes(&mut self, engine: u16) {
        if let Some(number) = self.prefixes.take_over(self.log.synced()) {
            self.common.prefixes().note_written(engine, number);
        }
    }
}

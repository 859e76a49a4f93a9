//! Which records a compaction drops: those of items that have expired or were flushed.
//!
//! Upstream:   a thread of RocksDB's asks for each record that it copies.
//! Downstream: the flush word of the process, and the second that the engine has noted.
//!
//! A record that is dropped was dead in the second that the engine has noted last, so no lookup
//! returns it any more. A dead record that no compaction has met is found by lookups, and judged
//! by them.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use kachel_stdx::{FlushWord, is_before};

use crate::record::{Header, NOTE_KEY};

/// The judge of one database's records.
#[derive(Debug)]
pub(crate) struct RecordFilter {
    /// The Unix time that the engine has noted; 0 before it has.
    now_unix_s: AtomicU32,
    flushes: Arc<FlushWord>,
}

impl RecordFilter {
    pub(crate) fn new(flushes: Arc<FlushWord>) -> Self {
        Self { now_unix_s: AtomicU32::new(0), flushes }
    }

    /// Notes the time. Cost: a store.
    pub(crate) fn note_time(&self, unix_s: u32) {
        self.now_unix_s.store(unix_s, Relaxed);
    }

    /// Whether the record is dead. A record of another version is kept.
    pub(crate) fn drops(&self, key: &[u8], record: &[u8]) -> bool {
        let Ok((header, _)) = Header::of_record(record) else { return false };
        let expiry = header.expiry_unix_s;
        let has_expired = expiry != 0 && expiry <= self.now_unix_s.load(Relaxed);
        let is_flushed = is_before(header.epoch, self.flushes.load().epoch());
        key != NOTE_KEY && (has_expired || is_flushed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_dead_is_dropped() {
        let flushes = Arc::new(FlushWord::default());
        let filter = RecordFilter::new(Arc::clone(&flushes));
        let record =
            |expiry_unix_s, epoch| Header { expiry_unix_s, epoch, ..Header::default() }.to_bytes();
        assert!(!filter.drops(b"k", &record(1, 0)), "no time was noted");
        filter.note_time(100);
        assert!(filter.drops(b"k", &record(100, 0)) && !filter.drops(b"k", &record(101, 0)));
        assert!(!filter.drops(b"k", &record(0, 0)));
        flushes.flush(10);
        assert!(filter.drops(b"k", &record(0, 0)) && !filter.drops(b"k", &record(0, 1)));
        assert!(!filter.drops(NOTE_KEY, &record(0, 0)), "the note");
        assert!(!filter.drops(b"k", &[9; 40]), "a foreign record");
    }
}

//! The collection of garbage: the live records of a segment are appended again, and the segment is
//! freed.
//!
//! Upstream:   `engine`, a bounded step at a time, as upkeep.
//! Downstream: `collection` chooses; the log scans a segment; the index knows what is alive.
//!
//! ```text
//!   choose a victim --> scan --> a record: alive?  append it again, note its new place
//!                         |               a grave? append it again while it is needed
//!                         +--> end: free the victim, once all of that is durable
//! ```
//!
//! Invariants, cited by number where they are asserted:
//! - G1  A record is alive if the index names its place. So a value is never copied because of its
//!   key alone.
//! - G2  A grave is kept while a segment may have an older record of its key, and the flush of a
//!   prefix while a segment may have an older record at all. An item that has
//!   expired becomes a grave for the same reason: its older record may have another expiry.
//! - G3  One victim at a time: the next one is chosen after the one before is gone.

use kachel_engine::{Engine as _, FileReport, Now, Primitives as _};
use kachel_log::{AppendRefused, Appended, FoundRecord, Scanned, SegmentScan, UNIT_BYTES};
use kachel_stdx::is_before;

use crate::collection::{Stage, Stepped, Victim};
use crate::record::{
    self, GRAVE, ITEM, ItemHead, LARGE_ITEM, LIFE, PART, PREFIX_FLUSH, Record, TOKENS,
};
use crate::store::Store;

/// The number of a scan's operations (see `kachel_log::LOG_TOKEN`).
const SCAN_NUMBER: u16 = 1;
/// The most bytes of records that a step examines. A guess: a step takes some 50 us.
const STEP_BYTES: u64 = 64 * 1024;
/// An entry that is examined by a sweep counts as this many bytes of work. A guess.
const EXAMINED_BYTES: u64 = 256;
/// With fewer free segments the log is collected whatever its target is.
const SPARES_LOW: u32 = 4;

impl Store {
    /// Whether a segment will be free without a change by a client.
    pub(crate) fn gains_space(&self) -> bool {
        if self.collection.stuck != 0 {
            return false;
        }
        let is_idle = matches!(self.collection.stage, Stage::Idle);
        !is_idle || self.collection.victim(&self.log, &self.index).is_some()
    }

    /// The numbers of this engine for `stats engine`.
    pub(crate) fn file_report(&self) -> FileReport {
        let closed_bytes = self.log.closed().count() as u64 * self.log.geometry().segment_bytes();
        FileReport {
            disk_bytes: self.log.file_bytes(),
            live_bytes: self.index.live_bytes() + self.index.grave_bytes(),
            files: 1,
            write_buffer_bytes: 2 * self.log.geometry().commit_bytes_max() as u64,
            cache_bytes: self.cache.stats().live_bytes,
            debt_bytes: closed_bytes.saturating_sub(self.target_bytes()),
            stopped: u64::from(self.collection.wanted_spares > 0),
            read_only: u64::from(self.is_read_only()),
            commits: self.log.commits(),
            syncs: self.log.syncs(),
            first_error: None,
        }
    }

    /// A step of the search for items that have died. Returns the number of items examined.
    pub(crate) fn sweep(&mut self, now: &Now) -> usize {
        let (seconds, epoch) = (self.common.seconds(), self.common.epoch(now));
        if self.swept_epoch != epoch {
            self.swept_epoch = epoch;
            self.index.sweep_soon(now.second);
        }
        let examined = self.index.sweep(now.second, |entry| {
            let expiry = seconds.of_unix(entry.expiry_unix_s);
            expiry != 0 && expiry <= now.second || is_before(entry.epoch, epoch)
        });
        self.work_bytes += examined as u64 * EXAMINED_BYTES;
        examined
    }

    /// The bytes of closed segments above which there is garbage to collect.
    fn target_bytes(&self) -> u64 {
        let segment_bytes = self.log.geometry().segment_bytes();
        let needed_bytes = self.index.live_bytes() + self.index.grave_bytes();
        let wanted_bytes = needed_bytes * self.collection.target_percent / 100;
        // No segment is filled completely. Without this, the collection could run forever.
        let target_bytes = wanted_bytes.saturating_mul(segment_bytes) / self.filled_bytes();
        // One segment is about to be filled, and one is half full.
        target_bytes + 2 * segment_bytes
    }

    /// Whether there are too few free segments.
    fn is_short(&self) -> bool {
        self.log.spares() < SPARES_LOW.max(self.collection.wanted_spares)
    }

    /// The bytes of records that a segment surely holds, if they have the mean length of those that
    /// are alive: a commit has room for whole records only.
    pub(crate) fn filled_bytes(&self) -> u64 {
        let geometry = self.log.geometry();
        let commit_bytes = geometry.commit_bytes_max() as u64;
        let record_bytes = self.index.live_bytes() / (self.index.len() as u64).max(1);
        let room = geometry.segment_bytes() - 2 * UNIT_BYTES as u64;
        room * commit_bytes.saturating_sub(record_bytes).max(commit_bytes / 2) / commit_bytes
    }

    /// Whether the log has more garbage than it may.
    fn has_garbage(&self) -> bool {
        let closed_bytes = self.log.closed().count() as u64 * self.log.geometry().segment_bytes();
        let is_over = closed_bytes > self.target_bytes();
        is_over || self.is_short() || self.collection.has_many_graves(&self.log, &self.index)
    }

    /// Does a step of the collection of garbage.
    pub(crate) fn collect(&mut self, now: &Now) -> Stepped {
        if self.is_read_only() || self.collection.stuck == now.second {
            return Stepped::Idle;
        }
        self.use_number();
        self.collection.retry_damaged(now.second);
        if let Stage::Idle = self.collection.stage {
            // G3. Counting and choosing look at every segment, so this is done once a second.
            if self.collection.checked == now.second && !self.is_short() {
                return Stepped::Idle;
            }
            self.collection.checked = now.second;
            let is_wanted = self.has_garbage();
            let victim = self.collection.victim(&self.log, &self.index);
            let Some(closed) = victim.filter(|_| is_wanted) else { return Stepped::Idle };
            let others = self.log.closed().filter(|other| other.segment != closed.segment);
            let oldest_beside = others.map(|other| other.first).min().unwrap_or(u64::MAX);
            let victim = Victim { closed, oldest_beside };
            let scan = self.log.scan(closed.segment, SCAN_NUMBER);
            self.collection.stage = Stage::Scanning(victim, Box::new(scan));
        }
        match std::mem::replace(&mut self.collection.stage, Stage::Idle) {
            Stage::Scanning(victim, scan) => self.examine(victim, scan, now),
            stage => {
                self.collection.stage = stage;
                Stepped::Idle
            }
        }
    }

    /// Examines the next records of a victim.
    fn examine(&mut self, victim: Victim, mut scan: Box<SegmentScan>, now: &Now) -> Stepped {
        let mut examined = 0;
        while examined < STEP_BYTES {
            let found = match scan.record() {
                Ok(Scanned::Record(found)) => found,
                Ok(Scanned::Wait) => break,
                Ok(Scanned::End) => {
                    let segment = victim.closed.segment;
                    assert!(self.index.used_bytes(segment) == 0, "G1: all of it was copied");
                    self.log.free(segment);
                    self.collection.stage = Stage::Freeing(segment);
                    return Stepped::Worked(examined.max(1));
                }
                Err(refusal) => {
                    self.collection.damaged.insert(victim.closed.segment);
                    self.collection.damaged_second = now.second;
                    return Stepped::Damaged(refusal);
                }
            };
            match self.keep(&found, victim, now) {
                Ok(()) => {}
                Err(AppendRefused::NoSpace) => {
                    // Even the collection has no space. It begins anew when there is some.
                    self.collection.stuck = now.second;
                    return Stepped::Idle;
                }
                Err(_) => break,
            }
            examined += found.position.record_bytes();
            scan.advance();
        }
        self.collection.stage = Stage::Scanning(victim, scan);
        if examined == 0 { Stepped::Idle } else { Stepped::Worked(examined) }
    }

    /// Appends a record of a victim again if it is live, or a grave if its key needs one.
    ///
    /// Errors: the log takes no record now. Nothing was changed.
    fn keep(
        &mut self,
        found: &FoundRecord<'_>,
        victim: Victim,
        now: &Now,
    ) -> Result<(), AppendRefused> {
        let &FoundRecord { position, kind, epoch, sequence, payload } = found;
        match record::read(kind, payload) {
            Ok(Record::Item { key, head, value }) => {
                self.keep_item((ITEM, key, head, value), found, victim, now)
            }
            Ok(Record::LargeItem { key, head, value }) => {
                let value = value.to_bytes();
                self.keep_item((LARGE_ITEM, key, head, &value), found, victim, now)
            }
            Ok(Record::Part { key, value_id, place, .. }) => {
                let entry = self.index.get(key);
                let parts = entry.and_then(|entry| entry.parts.as_ref());
                let parts = parts.filter(|parts| parts.value.id == value_id);
                let part = parts.and_then(|parts| parts.places.get(place as usize));
                if part != Some(&position) {
                    if !self.writing.as_ref().is_some_and(|writing| writing.names(value_id)) {
                        return Ok(()); // G1
                    }
                    // The item that will name it is not written yet.
                    let copied = self.copy(PART, epoch, &[payload])?.position;
                    self.writing.iter_mut().for_each(|writing| writing.moved(place, copied));
                    return Ok(());
                }
                if self.drop_dead(key, now)? {
                    return Ok(());
                }
                let copied = self.copy(PART, epoch, &[payload])?.position;
                self.index.part_moved(key, value_id, place, copied);
                Ok(())
            }
            Ok(Record::Life { key, expiry_unix_s, marks }) => {
                if self.index.get(key).is_none_or(|entry| entry.life != Some(position)) {
                    return Ok(()); // G1
                }
                if self.drop_dead(key, now)? {
                    return Ok(());
                }
                let copied = self.copy(LIFE, epoch, &[payload])?.position;
                self.index.revive(key, copied, expiry_unix_s, marks);
                Ok(())
            }
            Ok(Record::Grave { key, sequence: of_item }) => {
                let sequence = if of_item == 0 { sequence } else { of_item };
                let is_covered = self.index.get(key).is_some();
                if is_covered { Ok(()) } else { self.bury(key, sequence, victim) }
            }
            Ok(Record::PrefixFlush { number, sequence: of_items, prefix }) => {
                let before = if of_items == 0 { sequence } else { of_items };
                let is_newest = number == self.prefixes.appended; // D3 of `prefixes`
                if victim.oldest_beside >= before && !is_newest {
                    return Ok(()); // G2
                }
                let head = record::prefix_flush_head(number, before, &prefix);
                let copied = self.copy(PREFIX_FLUSH, 0, &[&head, prefix.bytes()])?.position;
                self.index.bury(copied);
                Ok(())
            }
            Ok(Record::Tokens(reserved)) if reserved == self.newest_note => {
                self.copy(TOKENS, 0, &[payload]).map(|_| ())
            }
            // An older note, or a record that a start would have refused.
            Ok(Record::Tokens(_)) | Err(_) => Ok(()),
        }
    }

    /// Drops the entry of a key if its item is dead, and returns whether it was. Then its parts and
    /// its life are garbage too, even if the record of the item is collected later.
    fn drop_dead(&mut self, key: &[u8], now: &Now) -> Result<bool, AppendRefused> {
        let Some(entry) = self.index.get(key) else { return Ok(false) };
        let is_flushed = self.prefixes.has_surely_flushed(key, entry.sequence);
        if is_flushed || is_before(entry.epoch, self.common.epoch(now)) {
            self.index.remove(key);
            return Ok(true);
        }
        if !self.has_expired(entry.expiry_unix_s, now) {
            return Ok(false);
        }
        let grave = self.copy(GRAVE, 0, &[&record::grave_head(key, 0), key])?.position;
        self.index.remove(key);
        self.index.bury(grave);
        Ok(true)
    }

    /// Appends an item that is alive again, with its life.
    fn keep_item(
        &mut self,
        (kind, key, mut head, value): (u8, &[u8], ItemHead, &[u8]),
        found: &FoundRecord<'_>,
        victim: Victim,
        now: &Now,
    ) -> Result<(), AppendRefused> {
        let &FoundRecord { position, epoch, sequence, .. } = found;
        let Some(entry) = self.index.get(key).filter(|entry| entry.position == position) else {
            return Ok(()); // G1
        };
        (head.expiry_unix_s, head.marks) = (entry.expiry_unix_s, entry.marks);
        let is_flushed = self.prefixes.has_surely_flushed(key, sequence);
        if is_flushed || is_before(epoch, self.common.epoch(now)) {
            // Its older records were stored no later, so they are flushed, too.
            self.index.remove(key);
            return Ok(());
        }
        if self.has_expired(head.expiry_unix_s, now) {
            self.bury(key, sequence, victim)?; // G2
            self.index.remove(key);
            return Ok(());
        }
        let bytes = record::item_head(key, &head);
        let copied = self.copy(kind, epoch, &[&bytes, key, value])?;
        self.index.moved(key, copied.position, copied.sequence);
        Ok(())
    }

    /// Appends a grave for a key whose item was stored before `sequence`, if it is needed (G2).
    fn bury(&mut self, key: &[u8], sequence: u64, victim: Victim) -> Result<(), AppendRefused> {
        if victim.oldest_beside >= sequence {
            return Ok(());
        }
        let grave = self.copy(GRAVE, 0, &[&record::grave_head(key, sequence), key])?.position;
        self.index.bury(grave);
        Ok(())
    }

    /// Appends a record that is no change.
    ///
    /// Errors: the log takes none now.
    fn copy(&mut self, kind: u8, epoch: u32, parts: &[&[u8]]) -> Result<Appended, AppendRefused> {
        self.log.append(kind, epoch, parts, 0)
    }
}

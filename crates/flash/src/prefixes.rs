//! The flushes of prefixes, as one engine knows them: which of its items they take.
//!
//! Upstream:   `notes`, for new flushes; `store`, `browse` and `collecting`, which ask whether an
//!             item was flushed; `replay`, for the records of earlier flushes.
//! Downstream: the log has a record of each flush; the index has the items.
//!
//! ```text
//!   noted --> its record is appended --> no entry is left that it takes --> over
//!             |--- and durable ------------------------------------------->|
//! ```
//!
//! A flush takes the items whose records come before its own on the log. So one comparison of
//! sequences decides, in each read. A copy of an item has a later sequence, and what was flushed is
//! not copied. The sweep removes what a flush takes from the index, some entries a step. Then no
//! read has to compare any more. The record stays on the log as a grave does: while a segment may
//! have an older record.
//!
//! Invariants, cited by number where they are asserted:
//! - D1  The engine notes a flush together with its cache. So a copy in memory is alive if and only
//!   if the item is.
//! - D2  No change is made between noting a flush and its record. So what the log has before the
//!   record was stored before the flush, and what it has behind was stored later. If the log lacks
//!   the record after a crash, it has nothing that was stored after the flush.
//! - D3  The newest record stays on the log, so a start knows which flushes the engine has noted.

use std::collections::BTreeMap;

use kachel_engine::{KeptPrefix, WaitingPrefixes};
use kachel_log::DurableLog;
use kachel_stdx::BytePrefix;

use crate::index::Index;
use crate::record::{self, PREFIX_FLUSH, SHORT_BYTES_MAX};

/// The most entries that a step of a sweep examines.
const SWEEP_STEP: usize = 128;
/// The sequence of a record that is not appended: all items are before it (D2).
const NOT_APPENDED: u64 = u64::MAX;

/// A flush that is not over.
#[derive(Debug)]
struct LiveFlush {
    kept: KeptPrefix,
    /// The sequence of its record. It takes the items before that.
    before: u64,
    is_swept: bool,
}

impl LiveFlush {
    fn takes(&self, key: &[u8], sequence: u64) -> bool {
        sequence < self.before && self.kept.prefix().takes(key)
    }
}

/// The flushes of prefixes that are not over in an engine.
#[derive(Debug)]
pub(crate) struct PrefixFlushes {
    /// In the order of their numbers.
    live: Vec<LiveFlush>,
    /// The number of the newest flush that was noted, and the cache's number of it.
    noted: u64,
    noted_in_cache: u32,
    /// The number of the newest flush whose record is appended; 0: there is none (D3).
    pub(crate) appended: u64,
    /// The last key that the sweep under way has examined.
    behind: Option<Vec<u8>>,
    /// The items that were removed.
    pub(crate) removed: u64,
}

/// A flush that a start finds. It takes the items before a sequence.
#[derive(Debug)]
struct FoundFlush {
    kept: KeptPrefix,
    before: u64,
}

/// The flushes of prefixes that a start finds on a log.
#[derive(Debug, Default)]
pub(crate) struct FoundPrefixes {
    /// The number of the newest one; 0: there was none.
    pub(crate) newest: u64,
    /// For each prefix, by its bytes and its delimiter, the flush that takes most.
    flushes: BTreeMap<(Box<[u8]>, Option<u8>), FoundFlush>,
}

impl FoundPrefixes {
    /// A record was found.
    pub(crate) fn note(&mut self, number: u64, prefix: &BytePrefix<'_>, before: u64) {
        self.newest = self.newest.max(number);
        let found = || FoundFlush { kept: KeptPrefix::new(number, prefix), before };
        let flush = self.flushes.entry((prefix.bytes().into(), prefix.delimiter()));
        let flush = flush.or_insert_with(found);
        flush.before = flush.before.max(before);
    }

    /// Removes the entries that were flushed from the index.
    pub(crate) fn sweep(&mut self, index: &mut Index) {
        for FoundFlush { kept, before } in std::mem::take(&mut self.flushes).into_values() {
            let mut behind = None;
            while remove_flushed(index, &kept.prefix(), before, &mut behind).examined == SWEEP_STEP
            {
            }
        }
    }
}

/// What a step of a sweep has done.
struct Removed {
    examined: usize,
    removed: usize,
}

/// Removes the entries of a prefix from the index that are before a sequence, as far as they are
/// among the next [`SWEEP_STEP`] behind a key. `None`: from the first one on. With fewer, it has
/// come to the end.
fn remove_flushed(
    index: &mut Index,
    prefix: &BytePrefix<'_>,
    before: u64,
    behind: &mut Option<Vec<u8>>,
) -> Removed {
    let bytes = prefix.bytes();
    let alone = if behind.is_none() { index.get(bytes).map(|entry| (bytes, entry)) } else { None };
    let others = index.behind(behind.as_deref().unwrap_or(bytes));
    let page = alone.into_iter().chain(others.take_while(|(key, _)| key.starts_with(bytes)));
    let (mut examined, mut last, mut flushed) = (0, None, Vec::new());
    for (key, entry) in page.take(SWEEP_STEP) {
        examined += 1;
        last = Some(key.to_vec());
        if prefix.takes(key) && entry.sequence < before {
            flushed.push(key.to_vec());
        }
    }
    flushed.iter().for_each(|key| index.remove(key));
    *behind = last;
    Removed { examined, removed: flushed.len() }
}

impl PrefixFlushes {
    /// The flushes up to number `newest`, of which the log has records up to number `appended`.
    /// `lacking`: those that it lacks.
    pub(crate) fn new(newest: u64, appended: u64, lacking: &[KeptPrefix]) -> Self {
        let mut flushes = Self {
            live: Vec::new(),
            noted: appended,
            noted_in_cache: 0,
            appended,
            behind: None,
            removed: 0,
        };
        flushes.note(newest, lacking);
        flushes
    }

    /// Notes the flushes of a list up to number `newest`, as far as they are not noted.
    fn note(&mut self, newest: u64, list: &[KeptPrefix]) {
        let is_new = |kept: &&KeptPrefix| (self.noted + 1..=newest).contains(&kept.number);
        let live = |kept: &KeptPrefix| LiveFlush {
            kept: kept.clone(),
            before: NOT_APPENDED,
            is_swept: false,
        };
        let new: Vec<_> = list.iter().filter(is_new).map(live).collect();
        self.live.extend(new);
        self.noted = newest;
    }

    /// Whether an item was flushed that was stored with this sequence. Cost: a comparison if no
    /// flush is live, otherwise one for each live flush.
    #[inline]
    pub(crate) fn has_flushed(&self, key: &[u8], sequence: u64) -> bool {
        !self.live.is_empty() && self.takes(key, sequence)
    }

    #[cold]
    fn takes(&self, key: &[u8], sequence: u64) -> bool {
        self.live.iter().any(|flush| flush.takes(key, sequence))
    }

    /// The same, as far as the records are appended: what garbage was because of them may be gone
    /// before a record that is appended later is durable (D2).
    pub(crate) fn has_surely_flushed(&self, key: &[u8], sequence: u64) -> bool {
        let appended = self.live.iter().filter(|flush| flush.before != NOT_APPENDED);
        appended.into_iter().any(|flush| flush.takes(key, sequence))
    }

    /// Whether a record must be appended before the next change (D2).
    pub(crate) fn must_append(&self) -> bool {
        self.live.last().is_some_and(|last| last.before == NOT_APPENDED)
    }

    /// Whether the cache has noted flushes up to this one of its numbers, and the engine has, too.
    #[inline]
    pub(crate) const fn is_noted(&self, newest_in_cache: u32) -> bool {
        self.noted_in_cache == newest_in_cache
    }

    /// Notes the flushes of the process up to one that has this number in the cache (D1).
    pub(crate) fn note_new(&mut self, newest_in_cache: u32, waiting: &WaitingPrefixes) {
        let more = newest_in_cache.wrapping_sub(self.noted_in_cache);
        self.noted_in_cache = newest_in_cache;
        self.note(self.noted + u64::from(more), waiting.list());
    }

    /// Appends the records of the flushes that were noted, as far as there is room.
    #[cold]
    pub(crate) fn append(&mut self, log: &mut DurableLog, index: &mut Index) {
        for flush in self.live.iter_mut().filter(|flush| flush.before == NOT_APPENDED) {
            if log.prepare(SHORT_BYTES_MAX, 0).is_err() {
                return;
            }
            let prefix = flush.kept.prefix();
            let head = record::prefix_flush_head(flush.kept.number, 0, &prefix);
            let appended = log.append(PREFIX_FLUSH, 0, &[&head, prefix.bytes()], 0);
            let appended = appended.expect("the log was prepared");
            index.bury(appended.position);
            flush.before = appended.sequence;
            self.appended = flush.kept.number;
            log.sync(); // In every mode: the file of the flushes forgets it.
        }
    }

    /// A step of the sweep of the first flush that is not swept. Returns the number of entries that
    /// were examined.
    pub(crate) fn sweep(&mut self, index: &mut Index) -> usize {
        let Some(flush) = self.live.iter_mut().find(|flush| !flush.is_swept) else { return 0 };
        if flush.before == NOT_APPENDED {
            return 0;
        }
        let Removed { examined, removed } =
            remove_flushed(index, &flush.kept.prefix(), flush.before, &mut self.behind);
        self.removed += removed as u64;
        if examined < SWEEP_STEP {
            flush.is_swept = true;
            self.behind = None;
        }
        examined
    }

    /// Forgets the flushes that are over, if the log is durable up to a sequence. Returns the
    /// number of the last of them.
    pub(crate) fn take_over(&mut self, synced: u64) -> Option<u64> {
        let is_over = |flush: &LiveFlush| flush.is_swept && flush.before < synced;
        let over = self.live.iter().take_while(|flush| is_over(flush)).count();
        self.live.drain(..over).next_back().map(|flush| flush.kept.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(number: u64, name: &[u8]) -> KeptPrefix {
        KeptPrefix::new(number, &BytePrefix::of_name(name, b':').expect("a name"))
    }

    #[test]
    fn a_flush_takes_what_is_before_its_record() {
        let list = [kept(5, b"a"), kept(6, b"b"), kept(7, b"c")];
        let mut flushes = PrefixFlushes::new(6, 5, &list);
        assert!(flushes.must_append());
        assert!(!flushes.has_flushed(b"a:1", 0), "the log has its record, and was swept");
        assert!(flushes.has_flushed(b"b:1", NOT_APPENDED - 1), "D2");
        assert!(!flushes.has_flushed(b"c:1", 0), "it is not noted");
        flushes.live[0].before = 9;
        assert!(!flushes.must_append());
        let flushed = [8, 9].map(|sequence| flushes.has_flushed(b"b:1", sequence));
        assert_eq!(flushed, [true, false]);
        assert_eq!(flushes.take_over(10), None, "it is not swept");
        flushes.live[0].is_swept = true;
        assert_eq!((flushes.take_over(9), flushes.take_over(10)), (None, Some(6)));
        assert!(!flushes.has_flushed(b"b:1", 8));
    }
}

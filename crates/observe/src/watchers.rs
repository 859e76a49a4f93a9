//! The clients of the process that watch the log, and the lines that wait for each of them.
//!
//! Upstream:   `watching` adds and removes watchers; the log of each core hands its lines on, once
//!             a tick.
//! Downstream: `watching` sends the lines to the clients.
//!
//! ```text
//! core 0: lines of a tick --+                 +--> text of watcher A --> core 2, its client
//! core 1: lines of a tick --+--> this list ---+
//! core 2: lines of a tick --+                 +--> text of watcher B --> core 0, its client
//! ```
//!
//! The lock of the list is held for a copy of the lines of one tick to each watcher, or of a few
//! KiB to a client. A core that finds it held keeps its lines until its next tick, so no core waits
//! for another one.
//!
//! Invariants:
//! - W1  There are at most `WATCHERS_MAX` watchers. The text of each has a limit, which is charged
//!   to the budget of the process. A line that does not fit is skipped, and the watcher is told how
//!   many it has missed.
//! - W2  A watcher gets only lines that were written after it was added.
//! - W3  A core that puts lines into an empty text sets the flag of the watcher's core before it
//!   wakes this core. So the flag is seen by the last check before the core sleeps.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use kachel_net::CoreIndex;
use kachel_stdx::CachePadded;
use kachel_wire::Streams;
use kachel_wire::format::log;

use crate::counters::Counters;

/// The most watchers of a process, as in memcached.
pub(crate) const WATCHERS_MAX: usize = 20;
/// Bytes of the longest line that says how many lines were skipped.
const SKIPPED_BYTES_MAX: usize = 32;

/// Names a watcher. No other watcher of the process ever has the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatcherId(u64);

/// There are as many watchers as there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct TooManyWatchers;

/// Lines that one core has written, the oldest first.
#[derive(Debug, Default)]
pub struct Lines {
    text: Vec<u8>,
    heads: Vec<Head>,
}

/// What is known of a line.
#[derive(Clone, Copy, Debug)]
struct Head {
    stream: Streams,
    gid: u64,
    bytes: usize,
}

impl Lines {
    /// Whether there is no line.
    pub const fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// Bytes of all lines.
    pub const fn bytes(&self) -> usize {
        self.text.len()
    }

    /// Adds the line that `format` writes.
    pub fn add(&mut self, stream: Streams, gid: u64, format: impl FnOnce(&mut Vec<u8>)) {
        let before = self.text.len();
        format(&mut self.text);
        let bytes = self.text.len() - before;
        debug_assert!((1..=log::LOG_LINE_BYTES_MAX).contains(&bytes), "a line has a length");
        self.heads.push(Head { stream, gid, bytes });
    }

    /// Removes all lines. Their memory is kept.
    pub fn clear(&mut self) {
        self.text.clear();
        self.heads.clear();
    }

    fn iter(&self) -> impl Iterator<Item = (Head, &[u8])> {
        let mut rest = &self.text[..];
        self.heads.iter().map(move |head| {
            let (line, after) = rest.split_at(head.bytes);
            rest = after;
            (*head, line)
        })
    }
}

/// A client that watches.
#[derive(Debug)]
struct Watcher {
    id: WatcherId,
    /// The core that serves the client.
    core: CoreIndex,
    streams: Streams,
    /// The number of the first line that it may get (W2).
    gid_min: u64,
    text: VecDeque<u8>,
    text_bytes_max: usize,
    /// Lines skipped since the last line that it got.
    skipped: u64,
}

impl Watcher {
    /// Adds a line, and before it how many were skipped. Returns `false` if the line is skipped
    /// (W1).
    fn add(&mut self, line: &[u8]) -> bool {
        if self.text.len() + line.len() + SKIPPED_BYTES_MAX > self.text_bytes_max {
            self.skipped += 1;
            return false;
        }
        let skipped = std::mem::take(&mut self.skipped);
        if skipped > 0 {
            let mut told = Vec::with_capacity(SKIPPED_BYTES_MAX);
            log::skipped(&mut told, skipped);
            self.text.extend(told);
        }
        self.text.extend(line);
        debug_assert!(self.text.len() <= self.text_bytes_max, "W1");
        true
    }
}

/// The watchers of a process.
#[derive(Debug)]
pub struct Watchers {
    /// All streams that are watched.
    streams: AtomicU16,
    /// The number of the last line.
    gid: AtomicU64,
    /// For each core, whether lines have come for its watchers since it last checked (W3).
    come: Vec<CachePadded<AtomicBool>>,
    list: Mutex<Vec<Watcher>>,
}

impl Watchers {
    /// Nobody watches, in a process of `cores` cores.
    pub fn new(cores: u16) -> Self {
        Self {
            streams: AtomicU16::new(0),
            gid: AtomicU64::new(0),
            come: (0..cores).map(|_| CachePadded::default()).collect(),
            list: Mutex::default(),
        }
    }

    fn list(&self) -> MutexGuard<'_, Vec<Watcher>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The list, unless another core holds its lock.
    fn try_list(&self) -> Option<MutexGuard<'_, Vec<Watcher>>> {
        match self.list.try_lock() {
            Ok(list) => Some(list),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// All streams that are watched. Cost: a load of a line that changes with the watchers.
    #[inline]
    pub fn streams(&self) -> Streams {
        Streams::from_bits(self.streams.load(Acquire))
    }

    /// The number of the next line.
    pub fn next_gid(&self) -> u64 {
        self.gid.fetch_add(1, Relaxed) + 1
    }

    /// Adds a client of `core`. Calls `tell` with all streams that are watched then.
    ///
    /// Errors: there are too many (W1).
    pub fn add(
        &self,
        core: CoreIndex,
        streams: Streams,
        text_bytes_max: usize,
        tell: impl FnOnce(Streams),
    ) -> Result<WatcherId, TooManyWatchers> {
        debug_assert!(core.number() < self.come.len(), "a core of this process");
        let mut list = self.list();
        if list.len() == WATCHERS_MAX {
            return Err(TooManyWatchers);
        }
        let gid_min = self.next_gid();
        debug_assert!(list.iter().all(|watcher| watcher.gid_min < gid_min), "W2: a new name");
        let id = WatcherId(gid_min);
        let text = VecDeque::new();
        list.push(Watcher { id, core, streams, gid_min, text, text_bytes_max, skipped: 0 });
        self.note(&list, tell);
        Ok(id)
    }

    /// Removes a watcher, with the lines that wait for it. Calls `tell` with all streams that are
    /// watched then. Returns the bytes that its text could have had.
    pub fn remove(&self, id: WatcherId, tell: impl FnOnce(Streams)) -> usize {
        let mut list = self.list();
        let place = list.iter().position(|watcher| watcher.id == id);
        let removed = list.swap_remove(place.expect("a watcher is removed once"));
        self.note(&list, tell);
        removed.text_bytes_max
    }

    fn note(&self, list: &[Watcher], tell: impl FnOnce(Streams)) {
        let streams = list.iter().fold(Streams::NONE, |all, watcher| all.with(watcher.streams));
        debug_assert!(list.len() <= WATCHERS_MAX, "W1");
        debug_assert!(!list.is_empty() || streams.is_empty(), "a watcher names streams");
        self.streams.store(streams.bits(), Release);
        tell(streams);
    }

    /// Adds the lines of a core to the texts of those that watch them, and removes them from
    /// `lines`. Counts them in `counters`. Calls `wake` with each core whose watchers have lines
    /// now and had none before (W3). Returns `false` if another core holds the lock: nothing was
    /// done.
    pub fn push(
        &self,
        lines: &mut Lines,
        counters: &Counters,
        mut wake: impl FnMut(CoreIndex),
    ) -> bool {
        let Some(mut list) = self.try_list() else { return false };
        debug_assert!(list.len() <= WATCHERS_MAX, "W1");
        debug_assert!(lines.iter().is_sorted_by_key(|(head, _)| head.gid), "the oldest first");
        for watcher in &mut *list {
            let was_empty = watcher.text.is_empty();
            for (head, line) in lines.iter() {
                if !watcher.streams.has(head.stream) || head.gid < watcher.gid_min {
                    continue;
                }
                match watcher.add(line) {
                    true => counters.log_watcher_sent.add(1),
                    false => counters.log_watcher_skipped.add(1),
                }
            }
            if was_empty && !watcher.text.is_empty() {
                self.come[watcher.core.number()].store(true, Release);
                wake(watcher.core);
            }
        }
        lines.clear();
        true
    }

    /// Whether lines have come for the watchers of a core. Cost: a load.
    #[inline]
    pub fn have_come(&self, core: CoreIndex) -> bool {
        self.come[core.number()].load(Relaxed)
    }

    /// Whether lines have come for the watchers of a core since it last called this.
    #[inline]
    pub fn take_come(&self, core: CoreIndex) -> bool {
        debug_assert!(core.number() < self.come.len(), "a core of this process");
        self.have_come(core) && self.come[core.number()].swap(false, AcqRel)
    }

    /// Passes the next bytes of the text of a watcher, at most `bytes_max`, to `send`, and removes
    /// them. Returns whether there are more. `None` if another core holds the lock: nothing was
    /// done.
    pub fn take(
        &self,
        id: WatcherId,
        bytes_max: usize,
        mut send: impl FnMut(&[u8]),
    ) -> Option<bool> {
        let mut list = self.try_list()?;
        let Some(watcher) = list.iter_mut().find(|watcher| watcher.id == id) else {
            return Some(false);
        };
        debug_assert!(watcher.text.len() <= watcher.text_bytes_max, "W1");
        let bytes = watcher.text.len().min(bytes_max);
        let (front, back) = watcher.text.as_slices();
        let from_front = bytes.min(front.len());
        send(&front[..from_front]);
        send(&back[..bytes - from_front]);
        watcher.text.drain(..bytes);
        let is_more = !watcher.text.is_empty();
        if !is_more {
            watcher.text = VecDeque::new(); // A watcher of a quiet server holds no memory.
        }
        Some(is_more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(lines: &mut Lines, watchers: &Watchers, stream: Streams, text: &[u8]) {
        lines.add(stream, watchers.next_gid(), |to| to.extend_from_slice(text));
    }

    fn text(watchers: &Watchers, id: WatcherId) -> String {
        let mut text = Vec::new();
        let mut take = || watchers.take(id, 7, |bytes| text.extend_from_slice(bytes));
        while take().expect("nobody holds the lock") {}
        String::from_utf8(text).expect("text")
    }

    #[test]
    fn each_watcher_gets_its_streams_from_its_beginning_on() {
        let (watchers, counters) = (Watchers::new(2), Counters::default());
        let mut lines = Lines::default();
        line(&mut lines, &watchers, Streams::FETCHERS, b"early\n");
        let reads = watchers.add(CoreIndex(0), Streams::FETCHERS, 100, |_| {}).expect("few");
        let both = Streams::FETCHERS.with(Streams::MUTATIONS);
        let all = watchers
            .add(CoreIndex(1), both, 100, |streams| assert_eq!(streams, both))
            .expect("few");
        line(&mut lines, &watchers, Streams::FETCHERS, b"get\n");
        line(&mut lines, &watchers, Streams::MUTATIONS, b"set\n");
        let mut woken = Vec::new();
        assert!(watchers.push(&mut lines, &counters, |core| woken.push(core)));
        assert!(lines.is_empty() && woken == [CoreIndex(0), CoreIndex(1)]);
        line(&mut lines, &watchers, Streams::MUTATIONS, b"more\n");
        watchers.push(&mut lines, &counters, |core| panic!("W3: core {core} has lines"));
        assert!(watchers.take_come(CoreIndex(1)) && !watchers.take_come(CoreIndex(1)));
        assert_eq!(text(&watchers, reads), "get\n");
        assert_eq!(text(&watchers, all), "get\nset\nmore\n");
        let none = |_| {};
        assert_eq!(watchers.remove(all, |streams| assert_eq!(streams, Streams::FETCHERS)), 100);
        assert_eq!(watchers.remove(reads, none), 100);
        assert!(watchers.streams().is_empty());
    }

    #[test]
    fn a_slow_watcher_is_told_how_much_it_has_missed() {
        let (watchers, counters) = (Watchers::new(1), Counters::default());
        let id = watchers.add(CoreIndex(0), Streams::FETCHERS, 60, |_| {}).expect("few");
        let mut lines = Lines::default();
        for _ in 0..9 {
            line(&mut lines, &watchers, Streams::FETCHERS, b"1234567890\n");
        }
        watchers.push(&mut lines, &counters, |_| {});
        assert_eq!(text(&watchers, id), "1234567890\n1234567890\n");
        line(&mut lines, &watchers, Streams::FETCHERS, b"last\n");
        watchers.push(&mut lines, &counters, |_| {});
        assert_eq!(text(&watchers, id), "skipped=7\nlast\n");
        let counted = (counters.log_watcher_sent.value(), counters.log_watcher_skipped.value());
        assert_eq!(counted, (3, 7));
    }

    #[test]
    fn twenty_may_watch() {
        let watchers = Watchers::new(1);
        let add = || watchers.add(CoreIndex(0), Streams::NONE, 0, |_| {});
        let ids: Vec<WatcherId> = (0..WATCHERS_MAX).map(|_| add().expect("few")).collect();
        assert_eq!(add(), Err(TooManyWatchers));
        watchers.remove(ids[7], |_| {});
        assert!(add().is_ok_and(|id| !ids.contains(&id)), "a name is not used again");
    }
}

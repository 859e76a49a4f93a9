//! What the engines of a process share: the budget, the flushes, and the directory.
//!
//! Upstream:   any core, without a lock of an engine.
//! Downstream: `engine::heap` for values and the flush word; the directory, which keeps each flush.
//!
//! Invariants:
//! - C1  The directory has a flush before the word of all flushes does. So what an operation sees
//!   flushed stays flushed after a crash, and no item is stored in an epoch that a later process
//!   gives out again. A delayed flush begins its epoch by itself: the first item of that epoch has
//!   a note of it in its database, and a start takes the latest epoch of all notes and of the
//!   directory. So this holds also if the clock has gone back meanwhile.
//! - C2  The directory has a flush of a prefix before the list does, and it is in the list until
//!   each database has it: the deletion of its keys, and a note of its number in the same batch. An
//!   operation takes the flushes that were made before it began. A start has each engine take those
//!   that its database does not have.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, MutexGuard};

use kachel_engine::{
    Common, EngineOptions, FileReport, FlushFailed, HeapCommon, HeapUpload, KeptFlushes,
    KeptPrefix, KeptSeconds, Now, Opening, PrefixRefused, WaitingPrefixes,
};
use kachel_stdx::{BytePrefix, FLUSHED_PREFIXES_MAX, FlushWord, Place, Reader, is_before};

use crate::directory::Directory;
use crate::range::KeyRange;
use crate::record::Note;
use crate::reports::Reports;

/// The part that all engines of a process share.
#[derive(Clone, Debug)]
pub struct RocksCommon {
    heap: HeapCommon,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// Locked while a flush is written, so that flushes have one order.
    directory: Mutex<FlushDirectory>,
    seconds: KeptSeconds,
    /// Whether a flush could not be written. Then nothing is changed any more.
    has_failed: AtomicBool,
    refuses_flushes: AtomicBool,
    /// The number of the newest flush of a prefix.
    newest: AtomicU64,
    /// The flushes of prefixes that some database does not have yet (C2).
    prefixes: Mutex<WaitingPrefixes>,
    reports: Reports,
}

/// The directory, and what it has of the flushes.
#[derive(Debug)]
struct FlushDirectory {
    directory: Directory,
    epoch: u32,
    due_unix_s: u32,
}

impl RocksCommon {
    /// The part that all engines of a process share, which goes on from the flushes of the process
    /// before.
    pub(crate) fn new(opening: &Opening, directory: Directory, kept: KeptFlushes) -> Self {
        let seconds = KeptSeconds::of(&opening.start);
        let KeptFlushes { epoch, due_unix_s, newest_prefix, prefixes } = kept;
        let word = FlushWord::resumed(epoch, seconds.of_unix(due_unix_s));
        let shared = Shared {
            directory: Mutex::new(FlushDirectory { directory, epoch, due_unix_s }),
            seconds,
            has_failed: AtomicBool::new(false),
            refuses_flushes: AtomicBool::new(false),
            newest: AtomicU64::new(newest_prefix),
            prefixes: Mutex::new(WaitingPrefixes::new(prefixes, opening.engines)),
            reports: Reports::new(opening.engines),
        };
        Self { heap: HeapCommon::with_flushes(opening, word), shared: Arc::new(shared) }
    }

    /// An engine has this note. If the directory does not know its epoch, it is that of the flush
    /// that was pending, which was carried out (C1).
    ///
    /// Errors: the directory is older than the databases.
    pub(crate) fn resume(&self, (engine, note): (u16, &Note), now: &Now) -> Result<(), &str> {
        let older = "has items of flushes that kachel.flush does not have: it is older";
        if note.prefix > self.newest_prefix() {
            return Err(older);
        }
        self.note_prefix_written(engine, note.prefix);
        let word = self.heap.flushes();
        let kept = word.settle(now.second).epoch();
        if !is_before(kept, note.epoch) {
            return Ok(());
        }
        if kept.wrapping_add(1) != note.epoch || word.pending(now.second).is_none() {
            return Err(older);
        }
        word.flush(now.second);
        Ok(())
    }

    /// Gives a new directory its root file. Each engine has its database.
    pub(crate) fn finish_directory(&self) -> std::io::Result<()> {
        self.directory().directory.finish()
    }

    fn directory(&self) -> MutexGuard<'_, FlushDirectory> {
        self.shared.directory.lock().expect("a panic ends the process")
    }

    pub(crate) const fn heap(&self) -> &HeapCommon {
        &self.heap
    }

    pub(crate) fn reports(&self) -> &Reports {
        &self.shared.reports
    }

    pub(crate) fn seconds(&self) -> KeptSeconds {
        self.shared.seconds
    }

    /// Whether a flush could not be written.
    pub(crate) fn has_failed(&self) -> bool {
        self.shared.has_failed.load(Relaxed)
    }

    /// An engine has failed, or a flush could not be written: no flush is made any more.
    pub(crate) fn refuse_flushes(&self) {
        self.shared.refuses_flushes.store(true, Relaxed);
    }

    /// Makes a flush durable, and then changes the word by `change` (C1). There will be `more`
    /// flushes more, and one is pending in second `due` unless that is 0. A flush that may not be
    /// durable is made all the same, because it may be durable, too.
    fn keep(
        &self,
        now: &Now,
        (more, due): (u32, u32),
        change: impl FnOnce() -> Result<(), FlushFailed>,
    ) -> Result<(), FlushFailed> {
        let mut directory = self.directory();
        if self.shared.refuses_flushes.load(Relaxed) {
            return Err(FlushFailed);
        }
        // Every change of the word replaces a pending flush. Without one, no other core changes
        // the word meanwhile.
        self.heap.cancel_flush(now)?;
        let epoch = self.heap.epoch(now).wrapping_add(more);
        let due_unix_s = self.shared.seconds.to_unix(due);
        (directory.epoch, directory.due_unix_s) = (epoch, due_unix_s);
        let prefixes = self.prefixes().list().to_vec();
        let kept = self.write(&directory, self.newest_prefix(), prefixes);
        change()?;
        // A flush that was pending may have become due by now.
        debug_assert!(!is_before(self.heap.flushes().load().epoch(), epoch), "C1");
        kept
    }

    /// Writes the file of the flushes. If that fails, nothing is changed any more.
    fn write(
        &self,
        directory: &FlushDirectory,
        newest_prefix: u64,
        prefixes: Vec<KeptPrefix>,
    ) -> Result<(), FlushFailed> {
        let &FlushDirectory { ref directory, epoch, due_unix_s } = directory;
        let flushes = KeptFlushes { epoch, due_unix_s, newest_prefix, prefixes };
        directory.keep(&flushes).map_err(|error| {
            let what = "a flush cannot be written, so nothing is changed any more";
            self.shared.reports.files.report_error(format!("--data: {what}: {error}"));
            self.shared.has_failed.store(true, Relaxed);
            self.refuse_flushes();
            FlushFailed
        })
    }

    fn prefixes(&self) -> MutexGuard<'_, WaitingPrefixes> {
        self.shared.prefixes.lock().expect("a panic ends the process")
    }

    /// The number of the newest flush of a prefix. Cost: a load.
    pub(crate) fn newest_prefix(&self) -> u64 {
        self.shared.newest.load(Acquire)
    }

    /// The ranges of the flushes of prefixes behind number `taken`, for an engine that takes them,
    /// and the number of the newest of them (C2).
    pub(crate) fn take_prefixes(&self, taken: u64) -> (Vec<KeyRange>, u64) {
        let prefixes = self.prefixes();
        let not_taken = prefixes.list().iter().filter(|prefix| prefix.number > taken);
        (
            not_taken.flat_map(|kept| KeyRange::of_prefix(&kept.prefix())).collect(),
            self.newest_prefix(),
        )
    }

    /// An engine's database has the flushes of prefixes up to a number (C2).
    pub(crate) fn note_prefix_written(&self, engine: u16, number: u64) {
        self.prefixes().note_written(engine, number);
    }
}

impl Common for RocksCommon {
    type Upload = HeapUpload;

    const FLUSH_WAITS: bool = true;

    fn options(&self) -> &EngineOptions {
        self.heap.options()
    }

    fn register_core(&self) -> Option<Reader> {
        self.heap.register_core()
    }

    fn begin_upload(&self, value_bytes: usize, core: Place) -> Option<HeapUpload> {
        self.heap.begin_upload(value_bytes, core)
    }

    /// Waits until the flush is durable: a flush is rare, and its reply must not be sent before.
    fn flush(&self, now: &Now) -> Result<(), FlushFailed> {
        self.keep(now, (1, 0), || self.heap.flush(now))
    }

    /// Waits as [`Self::flush`] does.
    fn flush_in(&self, due: u32, now: &Now) -> Result<(), FlushFailed> {
        self.keep(now, (0, due), || self.heap.flush_in(due, now))
    }

    /// Waits as [`Self::flush`] does.
    fn cancel_flush(&self, now: &Now) -> Result<(), FlushFailed> {
        self.keep(now, (0, 0), || Ok(()))
    }

    /// Waits as [`Self::flush`] does. Each engine writes the flush with its next batch, within a
    /// second.
    fn flush_prefix(&self, prefix: &BytePrefix<'_>) -> Result<(), PrefixRefused> {
        let directory = self.directory();
        if self.shared.refuses_flushes.load(Relaxed) {
            return Err(PrefixRefused::DiskFailed);
        }
        let mut prefixes = self.prefixes().list().to_vec();
        if prefixes.len() == FLUSHED_PREFIXES_MAX {
            return Err(PrefixRefused::TooMany);
        }
        let flush = KeptPrefix::new(self.newest_prefix() + 1, prefix);
        prefixes.push(flush.clone());
        let kept = self.write(&directory, flush.number, prefixes);
        kept.map_err(|FlushFailed| PrefixRefused::DiskFailed)?;
        let mut prefixes = self.prefixes();
        let number = flush.number;
        prefixes.push(flush);
        self.shared.newest.store(number, Release); // C2
        Ok(())
    }

    fn live_prefixes(&self) -> usize {
        self.prefixes().list().len()
    }

    fn file_report(&self) -> Option<FileReport> {
        Some(self.shared.reports.sums(self.has_failed()))
    }

    fn pinned_bytes(&self) -> u64 {
        self.heap.pinned_bytes()
    }
}

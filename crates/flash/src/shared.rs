//! What the engines of a process share: the memory of the caches, and the flushes.
//!
//! Upstream:   any core, without a lock of an engine.
//! Downstream: `cache` for memory and the flush word; the owner of the files, which keeps each
//!             flush.
//!
//! Invariants, cited by number where they are asserted:
//! - C1  The files have a flush before the word of all flushes does. So what an operation sees
//!   flushed stays flushed after a crash, and no item is stored in an epoch that a later process
//!   gives out again. If a flush may not be kept, no item is stored any more.
//! - C2  The files have a flush of a prefix before the list does, and the list has it before the
//!   caches do. It stays in the list until each log has a durable record of it, and no index has an
//!   item that it takes. Each flush of the list is one flush of the caches.

use std::fmt::Debug;
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard};

use kachel_cache::{CacheCommon, CacheUpload, Pool};
use kachel_engine::{
    Common, EngineOptions, FileReport, FileReports, FlushFailed, KeptFlushes, KeptPrefix,
    KeptSeconds, Now, Opening, PrefixRefused, WaitingPrefixes,
};
use kachel_stdx::{BytePrefix, FLUSHED_PREFIXES_MAX, Landing, Place, Reader, SizeClasses};

/// The flushes when a process starts: a pending one that is due is carried out.
pub(crate) fn settled(kept: KeptFlushes, start: &Now) -> KeptFlushes {
    let due = KeptSeconds::of(start).of_unix(kept.due_unix_s);
    if due == 0 || due > start.second {
        return kept;
    }
    KeptFlushes { epoch: kept.epoch.wrapping_add(1), due_unix_s: 0, ..kept }
}

/// Keeps the flushes of a store.
pub trait KeepFlushes: Debug + Send {
    /// Makes flushes durable. Waits for the disk.
    ///
    /// Errors: these or the flushes before are kept.
    fn keep(&mut self, flushes: &KeptFlushes) -> io::Result<()>;
}

/// The part that all engines of a process share.
#[derive(Clone, Debug)]
pub struct FlashCommon {
    cache: CacheCommon,
    shared: Arc<Shared>,
}

/// The flushes that are kept.
#[derive(Debug)]
struct Kept {
    keeper: Box<dyn KeepFlushes>,
    epoch: u32,
    due_unix_s: u32,
    newest_prefix: u64,
}

#[derive(Debug)]
struct Shared {
    /// Locked while a flush is kept, so that flushes have one order.
    kept: Mutex<Kept>,
    /// The flushes of prefixes that are not over in some engine (C2). Never locked while the disk
    /// is waited for.
    prefixes: Mutex<WaitingPrefixes>,
    seconds: KeptSeconds,
    /// The number of flushes before the process.
    first_epoch: u32,
    refuses_flushes: AtomicBool,
    /// Whether a flush could not be kept. Then nothing is changed any more (C1).
    has_failed: AtomicBool,
    reports: FileReports,
}

impl FlashCommon {
    /// The part that all engines of a process share, which goes on from the flushes of the process
    /// before. The caches are empty.
    pub(crate) fn new(
        cache: CacheCommon,
        keeper: Box<dyn KeepFlushes>,
        flushes: KeptFlushes,
        opening: &Opening,
    ) -> Self {
        let KeptFlushes { epoch, due_unix_s, newest_prefix, prefixes } = flushes;
        let seconds = KeptSeconds::of(&opening.start);
        let due = seconds.of_unix(due_unix_s);
        if due != 0 {
            cache.pool().flush_word().flush_in(due, opening.start.second);
        }
        let shared = Shared {
            kept: Mutex::new(Kept { keeper, epoch, due_unix_s, newest_prefix }),
            prefixes: Mutex::new(WaitingPrefixes::new(prefixes, opening.engines)),
            seconds,
            first_epoch: epoch,
            refuses_flushes: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            reports: FileReports::default(),
        };
        Self { cache, shared: Arc::new(shared) }
    }

    /// The memory that the caches take segments and blocks from.
    #[must_use]
    pub fn pool(&self) -> &Arc<Pool> {
        self.cache.pool()
    }

    pub(crate) fn seconds(&self) -> KeptSeconds {
        self.shared.seconds
    }

    /// The number of flushes of the store, for an epoch of the caches.
    pub(crate) fn kept_epoch(&self, epoch: u32) -> u32 {
        self.shared.first_epoch.wrapping_add(epoch)
    }

    /// The number of flushes of the store by now.
    pub(crate) fn epoch(&self, now: &Now) -> u32 {
        self.kept_epoch(self.pool().flush_word().settle(now.second).epoch())
    }

    /// What the engines report about their files.
    pub(crate) fn reports(&self) -> &FileReports {
        &self.shared.reports
    }

    /// Whether a flush could not be kept. Cost: a load.
    pub(crate) fn has_failed(&self) -> bool {
        self.shared.has_failed.load(Relaxed)
    }

    /// An engine has failed: no flush is made any more.
    pub(crate) fn refuse_flushes(&self) {
        self.shared.refuses_flushes.store(true, Relaxed);
    }

    /// Makes a flush durable, and then changes the word by `change` (C1). There will be `more`
    /// flushes more, and one is pending in second `due` unless that is 0.
    fn keep(
        &self,
        now: &Now,
        (more, due): (u32, u32),
        change: impl FnOnce() -> Result<(), FlushFailed>,
    ) -> Result<(), FlushFailed> {
        let mut kept = self.kept();
        if self.shared.refuses_flushes.load(Relaxed) {
            return Err(FlushFailed);
        }
        // Every change of the word replaces a pending flush. Without one, no other core changes
        // the word meanwhile.
        let pending = self.pool().flush_word().pending(now.second);
        self.cache.cancel_flush(now)?;
        kept.epoch = self.epoch(now).wrapping_add(more);
        kept.due_unix_s = self.seconds().to_unix(due);
        let prefixes = self.prefixes().list().to_vec();
        if self.write(&mut kept, prefixes).is_err() {
            // The pending one still counts.
            if let Some(due) = pending {
                self.cache.flush_in(due, now)?;
            }
            return Err(FlushFailed);
        }
        change()
    }

    /// Writes the file of the flushes. If that fails, nothing is changed any more.
    fn write(&self, kept: &mut Kept, prefixes: Vec<KeptPrefix>) -> Result<(), FlushFailed> {
        let &mut Kept { ref mut keeper, epoch, due_unix_s, newest_prefix } = kept;
        let flushes = KeptFlushes { epoch, due_unix_s, newest_prefix, prefixes };
        keeper.keep(&flushes).map_err(|error| {
            // The flush may be there at the next start. It does not count before.
            let what = "a flush cannot be written, so nothing is changed any more";
            self.shared.reports.report_error(format!("--data: {what}: {error}"));
            self.shared.has_failed.store(true, Relaxed);
            self.refuse_flushes();
            FlushFailed
        })
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.shared.kept.lock().expect("a panic ends the process")
    }

    /// The flushes of prefixes that are not over in some engine.
    pub(crate) fn prefixes(&self) -> MutexGuard<'_, WaitingPrefixes> {
        self.shared.prefixes.lock().expect("a panic ends the process")
    }
}

impl Common for FlashCommon {
    const FLUSH_WAITS: bool = true;

    type Upload = CacheUpload;

    fn options(&self) -> &EngineOptions {
        self.cache.options()
    }

    fn register_core(&self) -> Option<Reader> {
        self.cache.register_core()
    }

    fn begin_upload(&self, value_bytes: usize, core: Place) -> Option<CacheUpload> {
        self.cache.begin_upload(value_bytes, core)
    }

    fn spare_landing(&self) -> Landing {
        self.cache.spare_landing()
    }

    /// Waits until the flush is durable: a flush is rare, and its reply must not be sent before.
    fn flush(&self, now: &Now) -> Result<(), FlushFailed> {
        self.keep(now, (1, 0), || self.cache.flush(now))
    }

    /// Waits as [`Self::flush`] does.
    fn flush_in(&self, due: u32, now: &Now) -> Result<(), FlushFailed> {
        self.keep(now, (0, due), || self.cache.flush_in(due, now))
    }

    /// Waits as [`Self::flush`] does.
    fn cancel_flush(&self, now: &Now) -> Result<(), FlushFailed> {
        self.keep(now, (0, 0), || Ok(()))
    }

    /// Waits as [`Self::flush`] does. Each engine notes the flush when a core enters it.
    fn flush_prefix(&self, prefix: &BytePrefix<'_>) -> Result<(), PrefixRefused> {
        let mut kept = self.kept();
        if self.shared.refuses_flushes.load(Relaxed) {
            return Err(PrefixRefused::DiskFailed);
        }
        let mut prefixes = self.prefixes().list().to_vec();
        let of_cache = self.pool().flushed_prefixes();
        if prefixes.len() == FLUSHED_PREFIXES_MAX || of_cache.is_full_for(prefix) {
            return Err(PrefixRefused::TooMany);
        }
        let flush = KeptPrefix::new(kept.newest_prefix + 1, prefix);
        prefixes.push(flush.clone());
        kept.newest_prefix = flush.number;
        self.write(&mut kept, prefixes).map_err(|FlushFailed| PrefixRefused::DiskFailed)?;
        self.prefixes().push(flush);
        let flushed = self.cache.flush_prefix(prefix); // C2
        assert_eq!(flushed, Ok(()), "C2: it has room, and only this adds to it");
        Ok(())
    }

    fn live_prefixes(&self) -> usize {
        self.prefixes().list().len().max(self.cache.live_prefixes())
    }

    fn bytes_max(&self) -> u64 {
        self.cache.bytes_max()
    }

    fn size_classes(&self) -> Arc<SizeClasses> {
        self.cache.size_classes()
    }

    fn file_report(&self) -> Option<FileReport> {
        Some(self.shared.reports.sums())
    }

    fn pinned_bytes(&self) -> u64 {
        self.cache.pinned_bytes()
    }
}

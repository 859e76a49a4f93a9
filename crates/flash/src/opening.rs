//! Opens the engines of a process: the caches, and a log for each engine.
//!
//! Upstream:   the program that starts the engines, which owns the files of the store.
//! Downstream: `cache`, `log`, and `replay` for what is on the logs.

use std::cell::RefCell;
use std::fmt::Debug;
use std::io;
use std::sync::Arc;

use kachel_cache::CacheOpener;
use kachel_engine::{
    DurableWord, Engine as _, FLUSH_FILE, KeptFlushes, OpenEngines, Opening, StartFound, Tokens,
};
use kachel_io::FolderHandle;
use kachel_log::{
    FoundRecord, Geometry, LogIdentity, LogOptions, Replay, SyncMode, Task, open_log,
};
use kachel_stdx::is_before;

use crate::acknowledgement::Acknowledgements;
use crate::collection::Collection;
use crate::engine::Flash;
use crate::prefixes::PrefixFlushes;
use crate::recent::RecentChanges;
use crate::replay::Found;
use crate::room::SPARES_OF_STORES;
use crate::shared::{FlashCommon, KeepFlushes, settled};
use crate::store::{Store, StoreParts};

/// The files of a store, as a start needs them.
pub trait StoreFiles: Debug {
    /// The folder of an engine. It has a log, which is made if the store is new.
    ///
    /// Errors: it cannot be opened.
    fn folder(&mut self, engine: u16) -> io::Result<FolderHandle>;

    /// The path of the folder of an engine, for a message.
    fn path(&self, engine: u16) -> String;

    /// The number that tells the logs of this store from those of all others.
    fn identity(&self) -> u64;

    /// Does all the work of a task, and waits for it.
    ///
    /// Errors: the backend failed.
    fn run<T>(&mut self, task: Task<T>) -> io::Result<T>;

    /// The flushes of the process before.
    ///
    /// Errors: they cannot be read.
    fn flushes(&mut self) -> io::Result<KeptFlushes>;

    /// Keeps the flushes of this process.
    fn keeper(&mut self) -> Box<dyn KeepFlushes>;

    /// Who is told of the start. Without it nobody is.
    fn watch(&mut self) -> Box<dyn WatchStart> {
        Box::new(())
    }

    /// All folders have a log. A new store counts as made from now on.
    ///
    /// Errors: that could not be written.
    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Is told how far a start is, and what it has found.
pub trait WatchStart: Debug + Send {
    /// The start has got so far.
    fn tell(&mut self, news: StartNews);
}

/// Nobody is told.
impl WatchStart for () {
    fn tell(&mut self, _news: StartNews) {}
}

/// What a start tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartNews {
    /// This number of bytes of the log of an engine is read, of `of_bytes`.
    Read {
        /// The engine.
        engine: u16,
        /// The bytes.
        done_bytes: u64,
        /// All bytes that are to be read.
        of_bytes: u64,
    },
    /// A crash has cut the last commit of an engine's log short, at this offset.
    CutShort {
        /// The engine.
        engine: u16,
        /// Where in the log.
        offset: u64,
    },
    /// All engines are open.
    Opened(StartFound),
}

/// The records of a log for their owner, while somebody watches.
struct Watched {
    engine: u16,
    found: Found,
    watch: Box<dyn WatchStart>,
}

impl Replay for Watched {
    fn record(&mut self, found: FoundRecord<'_>) -> Result<(), String> {
        self.found.record(found)
    }

    fn progress(&mut self, done_bytes: u64, of_bytes: u64) {
        self.watch.tell(StartNews::Read { engine: self.engine, done_bytes, of_bytes });
    }

    fn cut_short(&mut self, offset: u64) {
        self.watch.tell(StartNews::CutShort { engine: self.engine, offset });
    }
}

/// How the engines are opened.
#[derive(Clone, Copy, Debug)]
pub struct FlashOptions {
    /// The sizes of each log.
    pub geometry: Geometry,
    /// When a change counts as written.
    pub sync: SyncMode,
    /// The bytes on the disk, in percent of the bytes of live records, above which garbage is
    /// collected.
    pub target_percent: u64,
}

/// Opens engines over the files of a store.
#[derive(Debug)]
pub struct FlashOpener<F> {
    options: FlashOptions,
    files: RefCell<F>,
}

/// Checks that the flushes are not older than the newest flush of a prefix that a log has.
///
/// Errors: they are.
fn is_as_new(kept: &KeptFlushes, newest_prefix: u64) -> io::Result<()> {
    if newest_prefix <= kept.newest_prefix {
        return Ok(());
    }
    let why = "is older than the logs: it lacks a flush that they have";
    Err(io::Error::other(format!("{FLUSH_FILE} {why}")))
}

/// Counts the pending flush as carried out if items were stored after it: then it was, and the
/// clock has gone back since. `epochs`: the greatest number of flushes on each log.
///
/// Errors: that could not be kept.
fn catch_up(
    kept: &mut KeptFlushes,
    epochs: impl Iterator<Item = u32>,
    keeper: &mut dyn KeepFlushes,
) -> io::Result<()> {
    let newest = epochs.reduce(|one, other| if is_before(one, other) { other } else { one });
    let Some(newest) = newest.filter(|newest| is_before(kept.epoch, *newest)) else {
        return Ok(());
    };
    (kept.epoch, kept.due_unix_s) = (newest, 0);
    keeper.keep(kept)
}

impl<F: StoreFiles> FlashOpener<F> {
    /// Over these files.
    pub const fn new(options: FlashOptions, files: F) -> Self {
        Self { options, files: RefCell::new(files) }
    }
}

impl<F: StoreFiles> OpenEngines for FlashOpener<F> {
    type Engine = Flash;

    fn budget_bytes_min(engines: u16) -> u64 {
        // The first piece of each index is charged beside the caches.
        CacheOpener::budget_bytes_min(engines) * 2
    }

    fn open(&self, opening: &Opening) -> io::Result<Vec<Flash>> {
        let FlashOptions { geometry, sync, target_percent } = self.options;
        let mut files = self.files.borrow_mut();
        let kept = files.flushes()?;
        let options = kachel_engine::EngineOptions { evict: true, ..opening.options };
        let caches = CacheOpener::default().open(&Opening { options, ..opening.clone() })?;
        let Some(common) = caches.first().map(|cache| cache.common()) else {
            return Ok(Vec::new());
        };
        // A store counts as made once all of its logs are, and before one of them is used.
        let folders: Vec<_> = (0..opening.engines).map(|number| files.folder(number)).collect();
        let folders = folders.into_iter().collect::<io::Result<Vec<_>>>()?;
        files.finish()?;
        let mut kept = settled(kept, &opening.start);
        let (mut opened, mut watch) = (Vec::new(), files.watch());
        let mut sums = StartFound::default();
        for (engine, folder) in (0..).zip(folders) {
            let found = Found::new(geometry, Arc::clone(&opening.budget), kept.epoch);
            let options = LogOptions {
                folder,
                identity: LogIdentity { store: files.identity(), engine: engine.into() },
                geometry,
                mode: sync,
                from: 0,
                durable: Arc::default(),
            };
            let log = files.run(open_log(options, Watched { engine, found, watch }))?;
            let (log, watched) = log.map_err(|refusal| io::Error::other(refusal.to_string()))?;
            watch = watched.watch;
            let found = watched.found.whole();
            let found =
                found.map_err(|why| io::Error::other(format!("{}: {why}", files.path(engine))))?;
            sums.items += found.index.len() as u64;
            sums.live_bytes += found.index.live_bytes() + found.index.grave_bytes();
            sums.file_bytes += log.file_bytes();
            opened.push((log, found));
        }
        let newest = opened.iter().map(|(_, found)| found.prefixes.newest).max();
        is_as_new(&kept, newest.unwrap_or(0))?;
        watch.tell(StartNews::Opened(sums));
        let mut keeper = files.keeper();
        let newest = opened.iter().map(|(_, found)| found.newest_epoch);
        catch_up(&mut kept, newest, &mut *keeper)?;
        let (newest_prefix, prefixes) = (kept.newest_prefix, kept.prefixes.clone());
        let common = FlashCommon::new(common, keeper, kept, opening);
        let mut engines = Vec::new();
        for ((number, mut cache), (mut log, found)) in (0..).zip(caches).zip(opened) {
            cache.hold_copies();
            log.keep_reserve(SPARES_OF_STORES);
            let durable = Arc::<DurableWord>::default();
            let recent = Arc::<RecentChanges>::default();
            let appended = found.prefixes.newest;
            common.prefixes().note_written(number, appended);
            let store = Store::new(StoreParts {
                common: common.clone(),
                cache,
                log,
                index: found.index,
                changes: Acknowledgements::new(Arc::clone(&durable)),
                tokens: Tokens::behind(found.reserved_tokens, number, opening.engines),
                newest_note: found.reserved_tokens,
                recent: Arc::clone(&recent),
                collection: Collection::new(target_percent),
                prefixes: PrefixFlushes::new(newest_prefix, appended, &prefixes),
            });
            engines.push(Flash::new(number, store, opening.hasher, recent, durable));
        }
        Ok(engines)
    }
}

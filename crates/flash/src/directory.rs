//! The data directory of a store: the root file, a folder with a log for each engine, and the file
//! of the flushes.
//!
//! Upstream:   the program that starts the engines.
//! Downstream: `host` for the folder and its lock, `log` for the root file and the logs.
//!
//! ```text
//! DIR/kachel.root    the kind of the engines, their number, and the sizes of their logs
//! DIR/kachel.lock    empty; the process that serves from the directory holds its lock
//! DIR/kachel.flush   the flushes (`engine`: `kept/flushes.rs`)
//! DIR/engine-0000/   the log of the first engine
//! ```
//!
//! Invariants, cited by number where they are asserted:
//! - Y1  A directory that cannot be opened stays as it is.
//! - Y2  The root file is written last, so a store with a root file has all of its parts. If one is
//!   missing, the directory is refused: a part that was made anew would be empty.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use kachel_engine::{
    FLUSH_BYTES_MAX, FLUSH_FILE, KeptFlushes, PARTITIONS, StartReport, engine_folder,
    is_engine_folder,
};
use kachel_host::{DataFolder, Level, NEW_SUFFIX, entropy, first_foreign, log, read_if_there};
use kachel_io::{AnyIo, Choice, Clock as _, FolderHandle, Limits, SystemClock};
use kachel_log::{
    Geometry, LOG_FILE, LogIdentity, ROOT_BYTES_MAX, ROOT_FILE, Root, Task, create_log,
};
use kachel_stdx::plural;

use crate::opening::{StartNews, StoreFiles, WatchStart};
use crate::shared::KeepFlushes;

/// The kind of the engines, in the root file.
const ENGINE: &str = "flash";

/// The most files of the directory itself that are open: its lock, one that is replaced, and the
/// folder of that.
pub const DIRECTORY_FILES_MAX: u64 = 3;

/// Why a directory is refused, with its path.
fn refused(path: &Path, why: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("--data {}: {why}", path.display()))
}

/// Why the store of a directory is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreRefused {
    /// There is no store.
    Missing,
    /// The store is of another engine.
    OtherEngine(String),
    /// Another process has it open.
    Open,
    /// Another reason, as a sentence without the directory.
    Other(String),
    /// Another reason, as a sentence that names its file.
    OfFile(String),
}

impl StoreRefused {
    /// The kernel has failed.
    pub(crate) fn of_kernel(error: io::Error) -> Self {
        Self::Other(error.to_string())
    }

    /// The lock of the directory cannot be taken.
    pub(crate) fn of_lock(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::ResourceBusy {
            return Self::Open;
        }
        Self::of_kernel(error)
    }
}

impl std::fmt::Display for StoreRefused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Missing => write!(f, "has no {ROOT_FILE}, so there is no store"),
            Self::OtherEngine(found) => {
                write!(f, "is of another engine ({found}; asked for is {ENGINE})")
            }
            Self::Open => f.write_str("a server has the directory open"),
            Self::Other(why) | Self::OfFile(why) => f.write_str(why),
        }
    }
}

/// The root of a store. `None` if there is no store yet.
///
/// Errors: the directory is another program's, another engine's, or another version's.
pub(crate) fn root_in(path: &Path) -> Result<Option<Root>, StoreRefused> {
    let found = read_if_there(&path.join(ROOT_FILE), ROOT_BYTES_MAX as u64);
    let Some(content) = found.map_err(StoreRefused::of_kernel)? else {
        return match first_foreign(path, is_ours).map_err(StoreRefused::of_kernel)? {
            None => Ok(None),
            Some(name) => Err(StoreRefused::Other(format!("has {name} and no {ROOT_FILE}"))),
        };
    };
    if let Some(found) = other_engine(&content) {
        return Err(StoreRefused::OtherEngine(found));
    }
    let of_root = |why: &dyn std::fmt::Display| StoreRefused::Other(format!("{ROOT_FILE}: {why}"));
    let root = Root::parse(&content).map_err(|cause| of_root(&cause))?;
    if root.engine != ENGINE {
        return Err(StoreRefused::OtherEngine(root.engine));
    }
    if u32::from(root.engines) > PARTITIONS {
        return Err(of_root(&"it is damaged"));
    }
    Ok(Some(root))
}

/// The engine in a root file that is not one of `Root`.
fn other_engine(content: &[u8]) -> Option<String> {
    let rest = content.strip_prefix(b"kachel data, ")?;
    let text = String::from_utf8_lossy(rest);
    let found = text.lines().find_map(|line| line.strip_prefix("engine "));
    Some(found.unwrap_or("unknown").to_owned())
}

/// The root of a store that a server opens.
fn root_of(path: &Path) -> io::Result<Option<Root>> {
    root_in(path).map_err(|why| refused(path, why))
}

/// The content of the file of flushes.
///
/// Errors: it is missing or damaged, in a sentence without its name.
pub(crate) fn read_flush(path: &Path) -> Result<Vec<u8>, String> {
    let found = read_if_there(&path.join(FLUSH_FILE), FLUSH_BYTES_MAX);
    let content = found.map_err(|error| error.to_string())?;
    let content = content.ok_or("the file is missing")?;
    KeptFlushes::parse(&content).map_err(|why| format!("it {why}"))?;
    Ok(content)
}

/// A backend for the files of a store.
pub(crate) fn backend() -> io::Result<AnyIo> {
    let limits = Limits { sockets_max: 16, ..Limits::default() };
    kachel_io::open(Choice::default(), limits)
}

/// The folder of an engine.
pub(crate) fn open_folder(path: &Path) -> io::Result<FolderHandle> {
    let opened = File::open(path)?;
    if !opened.metadata()?.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    Ok(FolderHandle::new(opened.into(), &path.display().to_string()))
}

/// Whether a start of ours may leave this name in a directory without a root file.
pub(crate) fn is_ours(name: &str) -> bool {
    let file = name.strip_suffix(NEW_SUFFIX);
    name == FLUSH_FILE
        || [Some(ROOT_FILE), Some(FLUSH_FILE)].contains(&file)
        || is_engine_folder(name)
}

/// The number of engines that a directory was made for. `None` if there is no store yet.
///
/// Errors: the directory is not one of ours, in a sentence.
pub fn engines_of(path: &Path) -> io::Result<Option<u16>> {
    Ok(root_of(path)?.map(|root| root.engines))
}

/// A data directory that this process has open.
#[derive(Debug)]
pub struct FlashDirectory {
    folder: Arc<DataFolder>,
    root: Root,
    /// Whether there is no root file yet (Y2).
    is_new: bool,
    /// Whether this process has made the store.
    is_made: bool,
    io: AnyIo,
}

#[derive(Debug)]
struct Keeper(Arc<DataFolder>);

impl KeepFlushes for Keeper {
    fn keep(&mut self, flushes: &KeptFlushes) -> io::Result<()> {
        self.0.replace(FLUSH_FILE, flushes.text().as_bytes())
    }
}

/// Writes the lines about a start to the log of the process.
#[derive(Debug)]
struct Watcher {
    report: StartReport,
    /// Whether there is nothing to be found.
    is_new: bool,
}

impl WatchStart for Watcher {
    fn tell(&mut self, news: StartNews) {
        let Self { report, is_new } = self;
        let now_ns = SystemClock.now_ns();
        match news {
            StartNews::Read { engine, done_bytes, of_bytes } => {
                if let Some(line) = report.progress(engine, (done_bytes, of_bytes), now_ns) {
                    log(Level::Info, format_args!("{line}"), &[]);
                }
            }
            StartNews::CutShort { engine, offset } => {
                let line = report.cut_short(engine, offset);
                log(Level::Warning, format_args!("{line}"), &[]);
            }
            StartNews::Opened(_) if *is_new => {}
            StartNews::Opened(found) => {
                let line = report.end(&found, now_ns);
                log(Level::Info, format_args!("{line}"), &found.fields());
            }
        }
    }
}

impl FlashDirectory {
    /// Opens the directory for `engines` engines. If there is none, it is made for them, with logs
    /// for `space` bytes in all. `made_s`: the Unix time.
    ///
    /// Errors: another process has it open, or it is not for these engines (Y1).
    pub fn open(path: &Path, engines: u16, space: u64, made_s: u64) -> io::Result<Self> {
        let is_for = |root: &Option<Root>| match root.as_ref().map(|root| root.engines) {
            Some(found) if found != engines => {
                let why = format_args!("was made for {found} engines, and is opened for {engines}");
                Err(refused(path, why))
            }
            _ => Ok(()),
        };
        is_for(&root_of(path)?)?; // Y1: before the lock is made.
        let folder = DataFolder::open(path).map_err(|error| refused(path, error))?;
        // Another process may have made it before it gave the lock back.
        let found = root_of(path)?;
        is_for(&found)?;
        let is_new = found.is_none();
        let [store, _] = entropy()?;
        let root = found.unwrap_or_else(|| Root {
            engine: ENGINE.to_owned(),
            store,
            made_s,
            engines,
            segment_bytes: Geometry::of_space(space, engines).segment_bytes(),
        });
        let io = backend()?;
        Ok(Self { folder: Arc::new(folder), root, is_new, is_made: false, io })
    }

    /// The bytes of a segment of each log.
    #[must_use]
    pub fn segment_bytes(&self) -> u64 {
        self.root.segment_bytes
    }

    fn identity_of(&self, engine: u16) -> LogIdentity {
        LogIdentity { store: self.root.store, engine: engine.into() }
    }
}

impl StoreFiles for FlashDirectory {
    fn path(&self, engine: u16) -> String {
        self.folder.path().join(engine_folder(engine)).display().to_string()
    }

    fn folder(&mut self, engine: u16) -> io::Result<FolderHandle> {
        let path = self.path(engine);
        let opened = self.folder.subfolder(&engine_folder(engine), self.is_new);
        let opened = opened.map_err(|error| refused(Path::new(&path), error))?; // Y2
        let log = Path::new(&path).join(LOG_FILE);
        if !self.is_new && !log.exists() {
            return Err(refused(&log, "is missing")); // Y1, Y2
        }
        let handle = FolderHandle::new(opened, &path);
        if self.is_new {
            let geometry = Geometry::new(self.segment_bytes(), 0);
            let made = self.run(create_log(handle.clone(), self.identity_of(engine), geometry))?;
            made.map_err(|refusal| io::Error::other(refusal.to_string()))?;
        }
        Ok(handle)
    }

    fn identity(&self) -> u64 {
        self.root.store
    }

    fn run<T>(&mut self, task: Task<T>) -> io::Result<T> {
        task.run(&mut self.io)
    }

    fn flushes(&mut self) -> io::Result<KeptFlushes> {
        if self.is_new {
            return Ok(KeptFlushes::default());
        }
        let path = self.folder.path();
        let found = self.folder.read(FLUSH_FILE, FLUSH_BYTES_MAX);
        let of_file =
            |why: &dyn std::fmt::Display| refused(path, format_args!("{FLUSH_FILE} {why}"));
        let content = found.map_err(|error| of_file(&error))?;
        let content = content.ok_or_else(|| of_file(&"is missing"))?; // Y2
        KeptFlushes::parse(&content).map_err(|why| of_file(&why))
    }

    fn keeper(&mut self) -> Box<dyn KeepFlushes> {
        Box::new(Keeper(Arc::clone(&self.folder)))
    }

    fn watch(&mut self) -> Box<dyn WatchStart> {
        let (path, engines) = (self.folder.path(), self.root.engines);
        let report = StartReport::new(path, engines, SystemClock.now_ns());
        Box::new(Watcher { report, is_new: self.is_made })
    }

    fn finish(&mut self) -> io::Result<()> {
        if self.is_new {
            let path = self.folder.path().to_owned();
            let text = self.root.text().expect("a kind, engines and a size");
            let flush = KeptFlushes::default().text();
            let written = self.folder.replace(FLUSH_FILE, flush.as_bytes());
            let written = written.and_then(|()| self.folder.replace(ROOT_FILE, text.as_bytes()));
            written.map_err(|error| refused(&path, error))?;
            (self.is_new, self.is_made) = (false, true); // Y2
            let (path, engines) = (path.display(), self.root.engines);
            let noun = plural(engines.into(), "engine", "engines");
            let line = format_args!("--data {path}: a new store of {engines} {noun} is made");
            log(Level::Info, line, &[]);
        }
        Ok(())
    }
}

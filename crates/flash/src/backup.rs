//! Copies a store, also while a server serves from it, and changes nothing in it.
//!
//! Upstream:   `kachel backup`.
//! Downstream: `directory` for the files of the store; `log` copies each log.
//!
//! ```text
//! the flushes --> a cut of each log, one after the other --> the flushes again: the same?
//!      ^                                                          |            |
//!      +----------------------------------------------------------+ no         v yes
//!                                   names of the logs --> the flushes --> the root file
//! ```
//!
//! The copy is as a crash could have left the store: each log is cut at a moment of its own after
//! the beginning of the backup, and so has all that was acknowledged before. The flushes did not
//! change from before the first cut to after the last one, so all cuts are of the same flushes.
//!
//! Invariants, cited by number where they are asserted:
//! - K1  The copy gets its root file last, and is no store before.

use std::fmt::Debug;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kachel_engine::{FLUSH_FILE, engine_folder};
use kachel_host::{DataFolder, first_foreign};
use kachel_io::{AnyIo, FolderHandle};
use kachel_log::{Geometry, LogCopy, LogIdentity, ROOT_FILE, Refusal, Root, Task, WatchCopy};

use crate::directory::{StoreRefused, backend, is_ours, open_folder, read_flush, root_in};

/// The most tries to cut all logs between two flushes.
const TRIES_MAX: u32 = 20;

/// Is told how far a backup is.
pub trait WatchBackup: Debug + Send + Sync {
    /// This number of bytes was copied, besides those that were told before.
    fn copied(&self, bytes: u64);
}

/// What a backup has copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackedUp {
    /// The engines.
    pub engines: u16,
    /// The bytes of the segments with records.
    pub bytes: u64,
}

/// Passes on what a copy tells.
#[derive(Debug)]
struct Watch(Arc<dyn WatchBackup>);

impl WatchCopy for Watch {
    fn copied(&mut self, bytes: u64) {
        self.0.copied(bytes);
    }
}

/// Copies a store to the directory `to`, which has none. It may be in use.
///
/// Cost: it reads each record once, and the headers of all segments some times. It takes 1 MiB, and
/// 100 bytes for each segment.
///
/// Errors: there is no store of this engine; it is damaged; it changes faster than it can be
/// copied; `to` is in use, has other files, or has no space. What was copied stays there, and the
/// next backup to the same directory begins anew.
pub fn back_up(
    path: &Path,
    to: &Path,
    watch: &Arc<dyn WatchBackup>,
) -> Result<BackedUp, StoreRefused> {
    let root = root_in(path)?.ok_or(StoreRefused::Missing)?;
    let content = fs::read(path.join(ROOT_FILE)).map_err(StoreRefused::of_kernel)?;
    let target = target(path, to)?;
    let mut backup = Backup { path, root, target, io: backend().map_err(StoreRefused::of_kernel)? };
    let mut copies = backup.begin(watch)?;
    for _ in 0..TRIES_MAX {
        let (flush, mut bytes) = (backup.flush()?, 0);
        let mut cuts = Vec::new();
        for copy in copies {
            let (copy, of_log) = backup.run(copy.cut())?;
            cuts.push(copy);
            bytes += of_log;
        }
        if backup.flush()? == flush {
            backup.finish(cuts, &flush, &content)?;
            return Ok(BackedUp { engines: backup.root.engines, bytes });
        }
        copies = cuts;
    }
    Err(StoreRefused::Other("its items are flushed faster than they are copied".to_owned()))
}

/// Opens the directory of a copy, which is made if there is none.
fn target(path: &Path, to: &Path) -> Result<DataFolder, StoreRefused> {
    let of_target = |why: String| StoreRefused::OfFile(format!("{}: {why}", to.display()));
    let whole = |path: &Path| -> std::io::Result<PathBuf> {
        let path = std::path::absolute(path)?;
        let there = path.ancestors().find(|path| path.exists()).unwrap_or(&path);
        Ok(there.canonicalize()?.join(path.strip_prefix(there).unwrap_or(Path::new(""))))
    };
    let of_kernel = |error: std::io::Error| of_target(error.to_string());
    if whole(to).map_err(of_kernel)?.starts_with(whole(path).map_err(StoreRefused::of_kernel)?) {
        return Err(of_target("is in the directory that is to be copied".to_owned()));
    }
    let folder = DataFolder::open(to).map_err(of_kernel)?;
    if to.join(ROOT_FILE).exists() {
        return Err(of_target("has a store already".to_owned()));
    }
    match first_foreign(to, is_ours).map_err(of_kernel)? {
        None => Ok(folder),
        Some(name) => Err(of_target(format!("has {name}; a copy needs a directory of its own"))),
    }
}

/// A backup that goes on.
struct Backup<'a> {
    path: &'a Path,
    root: Root,
    target: DataFolder,
    io: AnyIo,
}

impl Backup<'_> {
    fn run<T>(&mut self, task: Task<Result<T, Refusal>>) -> Result<T, StoreRefused> {
        let output = task.run(&mut self.io).map_err(StoreRefused::of_kernel)?;
        output.map_err(|refusal| StoreRefused::OfFile(refusal.to_string()))
    }

    fn flush(&self) -> Result<Vec<u8>, StoreRefused> {
        let flush = read_flush(self.path);
        flush.map_err(|why| StoreRefused::Other(format!("{FLUSH_FILE}: {why}")))
    }

    /// Begins to copy each log.
    fn begin(&mut self, watch: &Arc<dyn WatchBackup>) -> Result<Vec<LogCopy<Watch>>, StoreRefused> {
        let geometry = Geometry::new(self.root.segment_bytes, 0);
        let mut copies = Vec::new();
        for engine in 0..self.root.engines {
            let name = engine_folder(engine);
            let (from, to) = (self.path.join(&name), self.target.path().join(&name));
            let of =
                |path: &Path, error| StoreRefused::OfFile(format!("{}: {error}", path.display()));
            let source = open_folder(&from).map_err(|error| of(&from, error))?;
            let made = self.target.subfolder(&name, true).map_err(|error| of(&to, error))?;
            let made = FolderHandle::new(made, &to.display().to_string());
            let identity = LogIdentity { store: self.root.store, engine: engine.into() };
            let watch = Watch(Arc::clone(watch));
            copies.push(self.run(LogCopy::begin(source, made, identity, geometry, watch))?);
        }
        Ok(copies)
    }

    /// Gives the copies their names, and makes the copy a store (K1).
    fn finish(
        &mut self,
        copies: Vec<LogCopy<Watch>>,
        flush: &[u8],
        root: &[u8],
    ) -> Result<(), StoreRefused> {
        for copy in copies {
            self.run(copy.finish())?;
        }
        let written = self.target.replace(FLUSH_FILE, flush);
        let written = written.and_then(|()| self.target.replace(ROOT_FILE, root)); // K1
        written.map_err(|error| {
            StoreRefused::OfFile(format!("{}: {error}", self.target.path().display()))
        })
    }
}

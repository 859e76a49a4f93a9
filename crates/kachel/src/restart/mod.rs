//! Warm restart: saves all items when the server ends by SIGUSR1, and loads them at the next start.
//!
//! Upstream:   `serve` claims the file; `shards` loads it before the shards start, and saves it
//!             when they have ended.
//! Downstream: `host` for the file, `load` and `save` for what is in it.
//!
//! ```text
//! start:  claim --> load: threads take the next block in turn --> remove PATH --> serve
//! end:    shards end --> save: a thread for each shard writes blocks in turn --> head --> PATH
//! ```
//!
//! Invariants:
//! - R1  A memory file is removed before a client is served, and after everything that may keep the
//!   server from serving. So no item that a client has changed comes back, and a start that fails
//!   leaves the file to the next one.
//! - R2  Blocks are written and read in turn, whole, so the disk sees one sequential stream.

mod load;
mod save;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, Read as _};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kachel_cache::{FileHead, HEAD_BYTES, is_ours};
use kachel_engine::ClockOrigin;
use kachel_host::{MemoryFile, ServiceState};

use crate::failure::Failure;
use crate::manager::tell;

/// How often the progress of a long load or save is reported.
const REPORT_TIME: Duration = Duration::from_secs(5);

/// How long a service manager must wait for the next report. A guess: a disk that does not answer
/// for this long is broken.
const PATIENCE_TIME: Duration = Duration::from_secs(60);

/// The slowest disk for which a service manager is told to wait while the file is synced. A guess.
const SYNC_BYTES_PER_S: u64 = 10 << 20;

/// The claim to a memory file.
#[derive(Debug)]
pub(crate) struct Claim {
    file: MemoryFile,
    path: PathBuf,
    /// Whether there is a memory file of the server before, which must go (R1).
    has_old: bool,
}

/// A memory file of the server before.
#[derive(Debug)]
pub(crate) struct Found {
    path: PathBuf,
    head: FileHead,
    file: File,
    begun: Instant,
}

/// The time of a server that goes on where another one has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Time {
    pub(crate) origin: ClockOrigin,
    /// The Unix time at the start.
    pub(crate) unix_s: u64,
}

impl Claim {
    /// Claims the file at `path`.
    pub(crate) fn new(path: PathBuf) -> Result<Self, Failure> {
        let shown = path.display();
        match MemoryFile::claim(&path) {
            Ok(file) => Ok(Self { file, path, has_old: false }),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(Failure::passing(format!(
                    "-e {shown}: another server has this file; if it is ending, it is still saving"
                )))
            }
            Err(error) => {
                Err(Failure::system(format_args!("-e {shown}: cannot write there"), &error))
            }
        }
    }

    /// Opens the file of the server before. `None` if there is none that can be used; the reason is
    /// printed.
    ///
    /// Errors: the file cannot be read.
    pub(crate) fn find(&mut self) -> Result<Option<Found>, Failure> {
        let begun = Instant::now();
        let shown = self.path.display();
        let cannot =
            |error| Failure::system(format_args!("-e {shown}: cannot read the file"), &error);
        let Some(mut file) = self.file.open().map_err(cannot)? else {
            say!(Info, "-e {shown}: there is no such file yet; the cache starts empty");
            return Ok(None);
        };
        let mut page = Vec::with_capacity(HEAD_BYTES);
        (&mut file).take(HEAD_BYTES as u64).read_to_end(&mut page).map_err(cannot)?;
        let file_bytes = file.metadata().map_err(cannot)?.len();
        self.has_old = is_ours(&page);
        match FileHead::decode(&page, file_bytes) {
            Ok(head) => Ok(Some(Found { path: self.path.clone(), head, file, begun })),
            Err(unfit) => {
                say!(Warning, "-e {shown}: the file is not used: {unfit}; the cache starts empty");
                Ok(None)
            }
        }
    }

    /// Removes the file of the server before, if there is one. The caller must call this before the
    /// first client is served (R1). A file of another program stays.
    ///
    /// Errors: the file cannot be removed, so that a later server could load it.
    pub(crate) fn remove_old(&mut self) -> Result<(), Failure> {
        if self.has_old {
            let what = format!("-e {}: cannot remove the file", self.path.display());
            self.file.remove().map_err(|error| Failure::system(what, &error))?;
            self.has_old = false;
        }
        Ok(())
    }
}

/// Locks what the threads share. A panic ends the process, so nothing half done is seen.
fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Found {
    /// The time of this server, which goes on from that of the server before.
    ///
    /// `None` if it has counted seconds for so long that this one could not.
    pub(crate) fn resume(&self, time: Time) -> Option<Time> {
        let second = self.head.second_at(time.unix_s)?;
        debug_assert!(second >= self.head.second, "time does not go back");
        Some(Time { origin: time.origin.resumed_in(second), ..time })
    }
}

/// When the last progress was reported.
struct Report {
    begun: Instant,
    last: Instant,
}

impl Report {
    fn new() -> Self {
        Self::since(Instant::now())
    }

    fn since(begun: Instant) -> Self {
        tell(ServiceState::Busy(PATIENCE_TIME));
        Self { begun, last: begun }
    }

    fn is_due(&mut self) -> bool {
        let is_due = self.last.elapsed() >= REPORT_TIME;
        if is_due {
            self.last = Instant::now();
            tell(ServiceState::Busy(PATIENCE_TIME));
        }
        is_due
    }

    /// Must be called before a file of `bytes` is synced, which shows no progress.
    fn begin_sync(&self, bytes: u64) {
        debug_assert!(self.begun <= self.last, "a report begins before its parts");
        let time = PATIENCE_TIME + Duration::from_secs(bytes / SYNC_BYTES_PER_S);
        tell(ServiceState::Busy(time));
    }

    fn seconds(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }
}

/// Bytes, as a person reads them.
struct Size(u64);

impl std::fmt::Display for Size {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            bytes @ 0..10_000_000 => write!(formatter, "{} KB", bytes.div_ceil(1000)),
            bytes => write!(formatter, "{} MB", bytes / 1_000_000),
        }
    }
}

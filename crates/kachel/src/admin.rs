//! The admin address of the process (`--admin`): its socket, its token, and what it answers.
//!
//! Upstream:   `serve` starts it before items are loaded, and notes how far the process is;
//!             `reload` reads its token again.
//! Downstream: `kachel_admin` answers its clients, on a thread of its own.
//!
//! ```text
//!            serve            begin_drain        end
//! starting ---------> serving -----------> draining --> ending
//!                        |______________________________^
//! ```
//!
//! Invariants:
//! - A1  `/ready` answers 200 from the moment in which the shards serve clients until the server is
//!   asked to end. Load does not change that.
//! - A2  The shards are probed only while they must make ticks: not before they serve clients, and
//!   not while they end.
//! - A3  From [`Progress::end`] on, nothing here keeps an engine: an engine with files closes them
//!   when it is dropped, which is before the process ends.

use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use kachel_admin::{ADMIN_TOKEN_BYTES_MAX, AdminAddress, AdminListener, AdminSource, AdminToken};
use kachel_host::UnusableFile;
use kachel_io::Waker;
use kachel_observe::{Reading, ServePhase, process_metrics};
use kachel_options::{AdminListen, ServeOptions};
use kachel_shard::Shared;

use crate::failure::Failure;
use crate::listeners::{self, Open};
use crate::live_page::{LivePage, Observed};
use crate::tls::Encryption;

/// The permission bits that let users other than the owner and the group use a file.
const MODE_OF_OTHERS: u32 = 0o007;

/// The shards as other threads see them.
pub(crate) struct LiveShards {
    pub(crate) shared: Arc<Shared>,
    pub(crate) wakers: Arc<[Waker]>,
    /// True once a shard has failed.
    pub(crate) failed: Arc<AtomicBool>,
    /// Returns the statistics in Prometheus' text format.
    pub(crate) metrics: Box<dyn Fn() -> String + Send + Sync>,
    /// Returns the state of all counters.
    pub(crate) reading: Box<dyn Fn() -> Reading + Send + Sync>,
    /// Returns what the observers know.
    pub(crate) observed: Box<dyn Fn() -> Observed + Send + Sync>,
}

/// How far the process is: it starts, serves, drains and ends.
#[derive(Clone, Default)]
pub(crate) struct Progress(Arc<Steps>);

#[derive(Default)]
struct Steps {
    /// The shards, while they serve clients (A2, A3).
    serving: RwLock<Option<LiveShards>>,
    draining: AtomicBool,
    ending: AtomicBool,
    /// What the live page shows.
    page: LivePage,
}

impl Progress {
    /// The shards serve clients from now on.
    pub(crate) fn serve(&self, shards: LiveShards) {
        let before = self.replace_shards(Some(shards));
        assert!(before.is_none(), "a process serves once");
    }

    /// Clients should go elsewhere from now on, but are served. The process may be asked to end
    /// once more. `false` if a shard has failed, so that the process must end.
    pub(crate) fn begin_drain(&self) -> bool {
        self.0.draining.store(true, Ordering::Relaxed);
        let may_drain = self.with_shards(|shards| {
            shards.shared.allow_end();
            !shards.failed.load(Ordering::Relaxed)
        });
        may_drain.expect("it serves")
    }

    /// The shards end from now on. Waits for an answer of the admin address that reads them.
    pub(crate) fn end(&self) {
        self.0.ending.store(true, Ordering::Relaxed);
        drop(self.replace_shards(None)); // A3
    }

    fn replace_shards(&self, shards: Option<LiveShards>) -> Option<LiveShards> {
        let mut serving = self.0.serving.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *serving, shards)
    }

    /// Calls `ask` with the shards, while each of them must make ticks (A2).
    fn with_shards<T>(&self, ask: impl FnOnce(&LiveShards) -> T) -> Option<T> {
        self.0.serving.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(ask)
    }

    /// How far the process is.
    fn phase(&self) -> ServePhase {
        let Steps { serving, draining, ending, .. } = &*self.0;
        if ending.load(Ordering::Relaxed) {
            ServePhase::Ending
        } else if draining.load(Ordering::Relaxed) {
            ServePhase::Draining
        } else if serving.read().unwrap_or_else(PoisonError::into_inner).is_none() {
            ServePhase::Starting
        } else {
            ServePhase::Serving
        }
    }
}

impl AdminSource for Progress {
    fn metrics(&self, stopped_shards: usize, to: &mut Vec<u8>) {
        // Before it serves, and while it ends, the server tells no counters.
        let metrics = self.with_shards(|shards| (shards.metrics)());
        let is_ready = self.not_ready().is_none();
        let process = process_metrics(is_ready, stopped_shards, metrics.is_some());
        to.extend_from_slice(process.as_bytes());
        to.extend_from_slice(metrics.unwrap_or_default().as_bytes());
    }

    fn ticks(&self, ticks: &mut Vec<u64>) {
        ticks.clear();
        self.with_shards(|shards| {
            let cores = &shards.shared.totals.cores;
            ticks.extend(cores.iter().map(|core| core.ticks.value()));
        });
    }

    fn wake(&self, shard: usize) {
        self.with_shards(|shards| shards.wakers[shard].wake());
    }

    fn sample(&self, stopped: &[usize]) {
        if let Some(reading) = self.with_shards(|shards| (shards.reading)()) {
            self.0.page.note(reading, stopped);
        }
    }

    fn now(&self, to: &mut Vec<u8>) {
        let observed = || self.with_shards(|shards| (shards.observed)()).unwrap_or_default();
        to.extend_from_slice(self.0.page.now(self.phase(), observed).as_bytes());
    }

    fn history(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(self.0.page.history().as_bytes());
    }

    /// A1.
    fn not_ready(&self) -> Option<&'static str> {
        match self.phase() {
            ServePhase::Serving => None,
            ServePhase::Starting => Some("starting; kept items are loaded first"),
            ServePhase::Draining => Some("draining"),
            ServePhase::Ending => Some("ending"),
        }
    }
}

/// The file of the token, and the key of this process for its hash.
pub(crate) struct TokenFile {
    path: PathBuf,
    key: [u64; 2],
}

impl TokenFile {
    /// The file of `--admin-token-file`, if the admin address needs it. Its path is taken from the
    /// working folder of now: a daemon leaves it.
    ///
    /// Errors: there is no working folder, or the kernel has no random numbers.
    pub(crate) fn of(options: &ServeOptions) -> Result<Option<Self>, Failure> {
        let admin = &options.admin;
        let Some(path) = admin.token_file.as_deref().filter(|_| admin.listen.is_some()) else {
            return Ok(None);
        };
        let file = |path: &Path| {
            Ok(Self { path: std::path::absolute(path)?, key: kachel_host::entropy()? })
        };
        file(path).map(Some).map_err(|error| Failure::system("--admin-token-file", &error))
    }

    /// Reads the token.
    ///
    /// Errors: the file cannot be read, other users may use it, or it has no token.
    pub(crate) fn read(&self) -> Result<AdminToken, UnusableFile> {
        let option = "--admin-token-file";
        let (mode, text) =
            self.text().map_err(|error| UnusableFile::unread(option, &self.path, &error))?;
        let refused = |why: &str| format!("{option} {}: {why}", self.path.display());
        if mode & MODE_OF_OTHERS != 0 {
            let why = "users other than its owner and group may use it; run chmod o= on it";
            return Err(refused(why).into());
        }
        AdminToken::read(&text, self.key).map_err(|why| refused(why).into())
    }

    /// The permission bits of the file, and its beginning: one byte more than a token and the end
    /// of its line may have.
    fn text(&self) -> io::Result<(u32, Vec<u8>)> {
        let file = kachel_host::open_regular_file(&self.path)?;
        let mode = file.metadata()?.mode();
        let mut text = Vec::new();
        file.take(ADMIN_TOKEN_BYTES_MAX as u64 + 3).read_to_end(&mut text)?;
        Ok((mode, text))
    }
}

/// The failure of a start that cannot read the token.
pub(crate) fn no_token(file: &UnusableFile) -> Failure {
    let failure = if file.may_pass() { Failure::passing } else { Failure::options };
    failure(file.to_string())
}

/// Opens the admin address and starts its thread. Returns it with its place, for the log and the
/// port file.
///
/// The signals of the process must be blocked. Errors: the address cannot be opened, or out of
/// threads or descriptors.
pub(crate) fn start(
    options: &ServeOptions,
    token: Option<AdminToken>,
    encryption: Option<&Encryption>,
    progress: &Progress,
) -> Result<Option<(AdminAddress, Open)>, Failure> {
    let Some(wanted) = &options.admin.listen else { return Ok(None) };
    let mut open = listeners::open_admin(wanted)?;
    let socket = open.sockets.pop().expect("one socket");
    let listener = match (wanted, encryption) {
        (AdminListen::Unix { .. }, _) => AdminListener::Unix(socket.into()),
        (AdminListen::Ip(_), Some(encryption)) if !wanted.is_local() => {
            encryption.admin_listener(socket.into())
        }
        (AdminListen::Ip(_), _) => {
            assert!(wanted.is_local(), "the options refuse another address without TLS");
            AdminListener::Tcp(socket.into())
        }
    };
    let admin = AdminAddress::start(listener, options.admin.hosts.clone(), token, progress.clone())
        .map_err(|error| Failure::system("--admin", &error))?;
    Ok(Some((admin, open)))
}

//! The servers that are judged: processes of the binary over caches, and threads of this process
//! over the other engines.
//!
//! Upstream:   `main`.
//! Downstream: `kachel_testkit::Launch`, `threads`.

use std::path::{Path, PathBuf};

use kachel_cache::CacheOpener;
use kachel_io::Choice;
use kachel_testkit::{Client, DelayingOpener, Launch, PlainOpener, Server, rocksdb_library};
use tempfile::TempDir;

use crate::threads::{self, Threads};

/// The answers in a thousand that the delaying engine delays.
const DELAYED_PERMILLE: u64 = 200;

/// The options of a process that is judged.
#[derive(Clone, Copy)]
pub(crate) struct Options {
    pub(crate) shards: &'static str,
    pub(crate) backend: &'static str,
    pub(crate) engine: &'static str,
    /// Which cores read an engine.
    pub(crate) reads: &'static str,
    /// The command that starts it.
    under: &'static [&'static str],
}

/// Every process over RocksDB that is judged. Each has a folder of its own.
pub(crate) const OVER_ROCKSDB: [Options; 2] =
    [of("2", "auto", "rocksdb", "crew"), of("3", "epoll", "rocksdb", "erew")];

/// Every process over flash that is judged. Each has a folder of its own.
pub(crate) const OVER_FLASH: [Options; 4] = [
    of("2", "auto", "flash", "crew"),
    of("3", "epoll", "flash", "erew"),
    Options { under: MORE_ENGINES, ..of("4", "auto", "flash", "erew") },
    Options { under: FEWER_ENGINES, ..of("4", "epoll", "flash", "crew") },
];

/// Starts a server with another number of engines than threads
/// (`kachel_options::TEST_ENGINES_ENV`).
const MORE_ENGINES: &[&str] = &["env", "KACHEL_TEST_ENGINES=9"];
const FEWER_ENGINES: &[&str] = &["env", "KACHEL_TEST_ENGINES=3"];

const fn of(
    shards: &'static str,
    backend: &'static str,
    engine: &'static str,
    reads: &'static str,
) -> Options {
    Options { shards, backend, engine, reads, under: &[] }
}

/// Every process that is judged.
pub(crate) const PROCESSES: [Options; 8] = [
    of("2", "auto", "store", "crew"),
    of("4", "auto", "store", "erew"),
    of("2", "epoll", "store", "erew"),
    of("4", "epoll", "store", "crew"),
    of("2", "auto", "cache", "erew"),
    Options { under: MORE_ENGINES, ..of("4", "auto", "cache", "crew") },
    of("2", "epoll", "cache", "crew"),
    Options { under: FEWER_ENGINES, ..of("4", "epoll", "cache", "erew") },
];

/// An engine that the binary does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Other {
    /// Caches that delay answers.
    Delaying,
    /// Plain engines, with files.
    Plain,
}

const fn over(
    engine: Other,
    (shards, engines): (u16, u16),
    io: Choice,
    crew: bool,
    evict: bool,
) -> (Other, threads::Options) {
    (engine, threads::Options { shards, engines, io, crew, evict })
}

/// Every server of threads that is judged.
pub(crate) const THREADS: [(Other, threads::Options); 8] = [
    over(Other::Delaying, (2, 2), Choice::Auto, true, true),
    over(Other::Plain, (2, 2), Choice::Auto, true, false),
    over(Other::Delaying, (4, 3), Choice::Epoll, false, true),
    over(Other::Plain, (4, 3), Choice::Epoll, false, false),
    over(Other::Delaying, (3, 8), Choice::Auto, false, false),
    over(Other::Plain, (3, 8), Choice::Auto, false, false),
    over(Other::Delaying, (2, 5), Choice::Epoll, true, false),
    over(Other::Plain, (2, 5), Choice::Epoll, true, false),
];

/// A server that is judged.
pub(crate) enum Subject {
    /// A process.
    Process(Box<Server>),
    /// A process, and the folder of its items.
    OnDisk {
        /// The process.
        server: Box<Server>,
        /// Removed after its end.
        _data: TempDir,
    },
    /// Threads of this process.
    Threads(Threads),
}

impl Subject {
    /// Starts a process.
    pub(crate) fn of_process(Options { shards, backend, engine, reads, under }: Options) -> Self {
        let ours = [
            "serve", "-t", shards, "-m", "1024", "-c", "1024", "--io", backend, "--engine", engine,
            "--reads", reads,
        ];
        let theirs = ["-t", shards, "-m", "1024", "-c", "1024", "-M"];
        let theirs = &theirs[..if engine == "store" { 7 } else { 6 }];
        match engine {
            "rocksdb" => return Self::over_rocksdb(&ours, under),
            // Garbage is collected long before that is used.
            "flash" => return Self::on_disk(&[&ours[..], &["--space", "256m"]].concat(), under),
            _ => {}
        }
        let other = std::env::var_os("KACHEL_HISTORY_SERVER").map(PathBuf::from);
        let (program, called_as, options) = match &other {
            Some(path) => (path.as_path(), "memcached", theirs),
            None => (Path::new(env!("CARGO_BIN_EXE_kachel")), "kachel", &ours[..]),
        };
        let launch = Launch { called_as, under, ..Launch::memcached(program, options) };
        Self::Process(Box::new(launch.start()))
    }

    /// Starts a process over RocksDB.
    fn over_rocksdb(options: &[&str], under: &[&str]) -> Self {
        let library = rocksdb_library();
        let path = library.as_ref().map(|library| library.path().display().to_string());
        let variable = path.map(|path| format!("KACHEL_TEST_ROCKSDB={path}"));
        let with_fake = variable.iter().flat_map(|variable| ["env", variable]);
        let under: Vec<&str> = under.iter().copied().chain(with_fake).collect();
        Self::on_disk(options, &under)
    }

    /// Starts a process whose items are in a new folder.
    fn on_disk(options: &[&str], under: &[&str]) -> Self {
        let place = tempfile::tempdir().expect("a folder for the items");
        let data = place.path().join("data");
        let options = [options, &["--data", data.to_str().expect("UTF-8")]].concat();
        let program = Path::new(env!("CARGO_BIN_EXE_kachel"));
        let launch = Launch::memcached(program, &options);
        let server = Launch { called_as: "kachel", under, ..launch }.start();
        Self::OnDisk { server: Box::new(server), _data: place }
    }

    /// Starts threads. The seed decides which answers are delayed.
    pub(crate) fn of_threads(engine: Other, options: threads::Options, seed: u64) -> Self {
        let permille = DELAYED_PERMILLE;
        Self::Threads(match engine {
            Other::Plain => Threads::start(options, |folder| PlainOpener(Some(folder))),
            Other::Delaying => Threads::start(options, |folder| DelayingOpener {
                inner: CacheOpener::default(),
                folder,
                permille,
                seed,
            }),
        })
    }

    /// A new client.
    pub(crate) fn connect(&self) -> Client {
        match self {
            Self::Process(server) | Self::OnDisk { server, .. } => server.connect(),
            Self::Threads(threads) => threads.connect(),
        }
    }

    /// Ends the server.
    ///
    /// # Panics
    /// If it has ended before, or no commit of its engines was durable, although they have files.
    pub(crate) fn end(self) {
        match self {
            Self::Process(mut server) | Self::OnDisk { mut server, .. } => server.assert_alive(),
            Self::Threads(threads) => threads.end(),
        }
    }
}

//! A server of threads of this process, over engines that the binary does not have. They have real
//! files and real sockets.
//!
//! Upstream:   `subject`, with the opener of the engines.
//! Downstream: `kachel_testkit::LiveWorld`.

use std::fs::File;

use kachel_engine::{Engine as _, OpenEngines};
use kachel_io::{Choice, FolderHandle};
use kachel_shard::FileEngine;
use kachel_testkit::{Client, LiveWorld, WorldOptions};
use tempfile::TempDir;

/// `-m`: more than the keys of all histories.
const MEMORY_BYTES: u64 = 256 << 20;
/// `-c`.
const CONNECTIONS_MAX: u32 = 1024;

/// How the threads serve.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) shards: u16,
    pub(crate) engines: u16,
    pub(crate) io: Choice,
    pub(crate) crew: bool,
    pub(crate) evict: bool,
}

/// A running server.
pub(crate) struct Threads {
    port: u16,
    engines: u16,
    /// Ends the server. Returns how many commits of its engines were durable.
    end: Box<dyn FnOnce() -> u64 + Sync>,
    _folder: TempDir,
}

impl Threads {
    /// Starts the threads over the engines of an opener, which gets the folder of their files.
    pub(crate) fn start<O>(options: Options, opener: impl FnOnce(FolderHandle) -> O) -> Self
    where
        O: OpenEngines<Engine: FileEngine + Send + 'static>,
    {
        let Options { shards, engines, io, crew, evict } = options;
        let folder = tempfile::tempdir().expect("a folder for the files");
        let path = folder.path().to_str().expect("UTF-8");
        let handle = FolderHandle::new(File::open(path).expect("it is there").into(), path);
        let mut options =
            WorldOptions { shards, engines: Some(engines), evict, crew, ..WorldOptions::default() };
        options.memory_bytes = MEMORY_BYTES;
        options.plain.connections_max = CONNECTIONS_MAX;
        let world = LiveWorld::over(io, options, &(), &opener(handle)).expect("a backend");
        let port = world.port();
        let end = Box::new(move || {
            let commits = |index| {
                world.engines.inspect(index, |engine: &O::Engine| engine.durable().sequence().0)
            };
            world.shared.homes.all().map(commits).sum()
        });
        Self { port, engines, end, _folder: folder }
    }

    /// A new client.
    pub(crate) fn connect(&self) -> Client {
        Client::at(self.port)
    }

    /// Ends the server.
    ///
    /// # Panics
    /// If no reply has waited for a commit. A delaying engine makes one commit when it is opened.
    pub(crate) fn end(self) {
        let commits = (self.end)();
        assert!(commits > self.engines.into(), "replies waited for commits: {commits}");
    }
}

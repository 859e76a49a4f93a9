//! A server of threads of this process, over engines that the binary does not have. They have real
//! files and real sockets.
//!
//! Upstream:   `main`, with the opener of the engines.
//! Downstream: `kachel_shard`, over a backend of the kernel.
//!
//! - P1  A shard that panics ends the process, as in the server: its keys are lost, and the other
//!   shards would wait for it for ever.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;

use kachel_engine::{
    ClockOrigin, Engine as _, EngineOptions, KeyHasher, LeaseOptions, OpenEngines, Opening, Seeds,
};
use kachel_host::Budget;
use kachel_io::{Choice, Clock as _, FolderHandle, Limits, SystemClock, Waker, listener, open};
use kachel_net::{ClientLimits, ClientProtocol, CoreIndex, Endpoint, EndpointIndex, Endpoints};
use kachel_shard::{
    AfterTick, Engines, FileEngine, PlainOptions, Shard, ShardOptions, Shared, SharedOptions,
};
use kachel_testkit::Client;

/// `-m`: more than the keys of all histories.
const MEMORY_BYTES: u64 = 256 << 20;
/// `-c`, and the length of the listener's queue.
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
    shared: Arc<Shared>,
    wakers: Vec<Waker>,
    threads: Vec<JoinHandle<()>>,
    /// Asks the engines how many of their commits are durable.
    commits: Box<dyn Fn() -> u64 + Sync>,
    _folder: tempfile::TempDir,
}

/// Ends the process if the thread panics (P1).
struct EndOnPanic;

impl Drop for EndOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

impl Threads {
    /// Starts the threads over the engines of an opener, which gets the folder of their files.
    pub(crate) fn start<O>(options: Options, opener: impl FnOnce(FolderHandle) -> O) -> Self
    where
        O: OpenEngines<Engine: FileEngine + Send + 'static>,
    {
        let folder = tempfile::tempdir().expect("a folder for the files");
        let path = folder.path().to_str().expect("UTF-8");
        let handle = FolderHandle::new(File::open(path).expect("it is there").into(), path);
        let (engines, shared, hasher) = open_engines(options, &opener(handle));
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = listener::tcp(address, CONNECTIONS_MAX, false).expect("a free port");
        let port = listener::local_addr(&listener).expect("it is bound").port();
        let origin = ClockOrigin::new(SystemClock.now_ns(), SystemClock.unix_s());
        let (made, wakers) = channel();
        let all_made = Arc::new(Barrier::new(usize::from(options.shards)));
        let mut listener = Some(listener);
        let limits = Limits { sockets_max: CONNECTIONS_MAX, ..Limits::default() };
        let thread = |core: u16| {
            let (engines, shared) = (Arc::clone(&engines), Arc::clone(&shared));
            let (made, all_made, listener) = (made.clone(), Arc::clone(&all_made), listener.take());
            std::thread::spawn(move || {
                let _end_on_panic = EndOnPanic;
                let io = open(options.io, limits).expect("a backend");
                let own = ShardOptions { core: CoreIndex(core), hasher, origin };
                let mut shard = Shard::new(io, SystemClock, engines, own, shared);
                made.send(shard.waker()).expect("they are awaited");
                all_made.wait();
                // The first shard accepts the clients of all.
                listener.into_iter().for_each(|socket| shard.listen(socket, EndpointIndex(0)));
                while shard.tick().expect("a backend that works") == AfterTick::Again {}
            })
        };
        let threads: Vec<_> = (0..options.shards).map(thread).collect();
        let wakers = wakers.iter().take(threads.len()).collect();
        let homes = shared.homes;
        let commits = Box::new(move || {
            homes
                .all()
                .map(|index| engines.inspect(index, |engine| engine.durable().sequence().0))
                .sum()
        });
        Self { port, shared, wakers, threads, commits, _folder: folder }
    }

    /// A new client.
    pub(crate) fn connect(&self) -> Client {
        Client::at(self.port)
    }

    /// Ends the server. Returns how many commits of its engines were durable.
    pub(crate) fn end(self) -> u64 {
        self.shared.stop();
        self.shared.give_up_clients();
        self.wakers.iter().for_each(Waker::wake);
        for thread in self.threads {
            thread.join().expect("P1");
        }
        (self.commits)()
    }
}

/// Opens the engines and the state that the shards share.
fn open_engines<O: OpenEngines<Engine: FileEngine>>(
    options: Options,
    opener: &O,
) -> (Arc<Engines<O::Engine>>, Arc<Shared>, KeyHasher) {
    let Options { shards, engines, crew, evict, .. } = options;
    let endpoint = Endpoint {
        protocol: ClientProtocol::Negotiated,
        limits: ClientLimits::default(),
        asks_login: false,
        stays: false,
    };
    let plain = PlainOptions { connections_max: CONNECTIONS_MAX, ..PlainOptions::default() };
    let shared = SharedOptions {
        shards,
        engines: Some(engines),
        plain,
        endpoints: Endpoints::new(vec![endpoint]),
        ..SharedOptions::default()
    };
    let shared = Arc::new(Shared::new(shared, Arc::new(Budget::new(MEMORY_BYTES))));
    let hasher = KeyHasher::new(Seeds { hash_keys: [11, 13] }, engines);
    let opening = Opening {
        engines,
        cores: shared.homes.cores(),
        hasher,
        options: EngineOptions {
            evict,
            cas: true,
            item_bytes_max: 1 << 20,
            leases: LeaseOptions::DEFAULT,
        },
        budget: Arc::clone(&shared.budget),
        budget_bytes_max: MEMORY_BYTES,
        process_bytes: 0,
    };
    let opened = opener.open(&opening).expect("memory");
    (Engines::new(opened, shared.homes, crew), shared, hasher)
}

//! A whole server over the kernel: its shards run on threads of their own, with sockets of the
//! loopback and files of a file system.
//!
//! Upstream:   tests that need what [`crate::World`] replaces: the kernel and threads.
//! Downstream: `shard`, and `io` by a backend of the kernel.
//!
//! Invariants:
//! - I1  No shard runs before all are made, and no thread lives longer than its server, unless a
//!   test has failed.
//! - I2  A shard that panics ends the process, as in the server: the other shards would wait for it
//!   forever.

use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Barrier, Once};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use kachel_engine::{ClockOrigin, Engine, KeyHasher, OpenEngines};
use kachel_host::Budget;
use kachel_io::{Around, Choice, Clock as _, Limits, Surrounded, SystemClock, Waker, listener};
use kachel_net::{CoreIndex, EndpointIndex};
use kachel_shard::{AfterTick, Engines, FileEngine, Shard, ShardOptions, Shared};

use crate::world::WorldOptions;

/// A server over the kernel. Its clients connect by TCP. It ends when it is dropped.
pub struct LiveWorld<E: Engine> {
    address: SocketAddr,
    wakers: Vec<Waker>,
    threads: Vec<JoinHandle<()>>,
    /// The engines of all shards.
    pub engines: Arc<Engines<E>>,
    /// State that the shards share: counters, memory budget, options.
    pub shared: Arc<Shared>,
}

/// Far more than a server needs to end; only a failing test waits so long.
const PATIENCE: Duration = Duration::from_secs(60);
/// The names of the threads begin so.
const THREAD_NAME: &str = "live shard";

/// Has the process end when the thread of a shard panics (I2). What a test prints is captured and
/// would be lost, so the message goes to the standard error directly.
fn end_on_panic() {
    static SET: Once = Once::new();
    SET.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let thread = std::thread::current();
            match thread.name().filter(|name| name.starts_with(THREAD_NAME)) {
                None => before(panic),
                Some(name) => {
                    let _lost_without_standard_error = writeln!(io::stderr(), "{name}: {panic}");
                    std::process::abort();
                }
            }
        }));
    });
}

/// What the thread of a shard needs to make it.
struct Start<E: Engine> {
    choice: Choice,
    core: CoreIndex,
    hasher: KeyHasher,
    origin: ClockOrigin,
    engines: Arc<Engines<E>>,
    shared: Arc<Shared>,
    made: Sender<Waker>,
    all_are_made: Arc<Barrier>,
}

impl<E: FileEngine + Send + 'static> LiveWorld<E> {
    /// Starts a server over the engines that `opener` opens. `around` is around the calls of each
    /// shard to its backend. The server has no UDP, and the clock of the machine.
    ///
    /// Errors: the kernel forbids the backend, or the engines cannot be opened.
    ///
    /// # Panics
    /// If memory, descriptors or threads are out.
    pub fn over<A: Around + Clone + Send + 'static>(
        choice: Choice,
        options: WorldOptions,
        around: &A,
        opener: &impl OpenEngines<Engine = E>,
    ) -> io::Result<Self> {
        end_on_panic();
        drop(kachel_io::open(choice, Limits::default())?);
        let budget = Arc::new(Budget::new(options.memory_bytes));
        let shared = Arc::new(Shared::new(options.shared(), budget));
        let hasher = KeyHasher::new(options.seeds, shared.homes.engines());
        let origin = ClockOrigin::new(SystemClock.now_ns(), SystemClock.unix_s());
        let opening = options.opening(&shared, hasher, origin);
        let engines = Engines::new(opener.open(&opening)?, shared.homes, options.crew);
        let socket =
            listener::tcp((Ipv4Addr::LOCALHOST, 0).into(), options.plain.connections_max, false);
        let socket = socket.expect("a port of the loopback");
        let address = listener::local_addr(&socket).expect("it is bound");
        let mut socket = Some(socket);
        let all_are_made = Arc::new(Barrier::new(options.shards.into()));
        let (made, wakers) = channel();
        let mut threads = Vec::new();
        for core in (0..options.shards).map(CoreIndex) {
            let start = Start {
                choice,
                core,
                hasher,
                origin,
                engines: Arc::clone(&engines),
                shared: Arc::clone(&shared),
                made: made.clone(),
                all_are_made: Arc::clone(&all_are_made),
            };
            let (around, socket) = (around.clone(), socket.take());
            let body = move || start.run(around, socket);
            let thread = Builder::new().name(format!("{THREAD_NAME} {}", core.0)).spawn(body);
            threads.push(thread.expect("a thread"));
        }
        drop(made);
        let wakers: Vec<_> = wakers.iter().take(options.shards.into()).collect();
        assert!(wakers.len() == threads.len(), "each shard is made");
        Ok(Self { address, wakers, threads, engines, shared })
    }

    /// The port of the loopback on which it listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// A new client.
    ///
    /// # Panics
    /// If the server is gone.
    #[must_use]
    pub fn connect(&self) -> TcpStream {
        let client = TcpStream::connect(self.address).expect("it listens");
        client.set_nodelay(true).expect("a socket");
        client
    }
}

impl<E: FileEngine> Start<E> {
    /// The body of a thread.
    fn run(self, around: impl Around, socket: Option<std::os::fd::OwnedFd>) {
        let sockets_max = self.shared.options.plain.connections_max;
        let limits = Limits { sockets_max, ..Limits::default() };
        let io = kachel_io::open(self.choice, limits).expect("one was open before");
        let options = ShardOptions { core: self.core, hasher: self.hasher, origin: self.origin };
        let io = Surrounded::new(io, around);
        let mut shard = Shard::new(io, SystemClock, self.engines, options, self.shared);
        self.made.send(shard.waker()).expect("the server waits for it");
        drop(self.made);
        self.all_are_made.wait(); // I1
        if let Some(socket) = socket {
            shard.listen(socket, EndpointIndex(0));
        }
        while shard.tick().expect("the backend reports events") == AfterTick::Again {}
    }
}

impl<E: Engine> Drop for LiveWorld<E> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return; // I1: a thread may never end.
        }
        self.shared.stop();
        self.shared.give_up_clients();
        self.wakers.iter().for_each(Waker::wake);
        let until = Instant::now() + PATIENCE;
        for thread in self.threads.drain(..) {
            while !thread.is_finished() {
                assert!(Instant::now() < until, "{:?} does not end", thread.thread().name());
                std::thread::sleep(Duration::from_millis(1));
            }
            thread.join().expect("I2"); // I1
        }
    }
}

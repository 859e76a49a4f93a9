//! A whole server in memory, with a clock that its caller moves.
//!
//! Upstream:   the tests of `shard` without a kernel, the fuzz targets, the benchmark of
//!             instruction counts, the simulation (virtual time), the schedules (threads).
//! Downstream: `shard`, and `io` by its network in memory.
//!
//! Invariants:
//! - I1  Nothing happens unless the caller asks for it: no thread, no real clock, no random source.
//! - I2  At rest no shard does anything before a client or the clock moves: each shard sleeps
//!   ([`is_rest`]), and no endpoint has an event to report. A shard that sleeps is left alone until
//!   its endpoint has an event or it is woken. At rest each shard looks once more: if one of them
//!   finds something to do, its wake-up was lost.
//! - I3  A server comes to rest within `ROUNDS_MAX` rounds; anything else is a bug.
//! - I4  Each segment and block of the pool either belongs to a shard or is free.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use kachel_cache::{Cache, CacheCommon, CacheOpener, Pool};
use kachel_engine::{
    ClockOrigin, Engine, EngineOptions, KeyHasher, LeaseOptions, OpenEngines, Opening, Seeds,
};
use kachel_host::{Budget, Usage};
use kachel_io::memory::disk::Disk;
use kachel_io::{Around, FarEnd, MemoryNet, Surrounded, Wait};
use kachel_io::{
    Clock, DatagramPeer, DatagramSocketId, ListenerId, ManualClock, Peer, SocketName, ThreadTime,
};
use kachel_net::{
    ClientLimits, ClientProtocol, CoreIndex, Endpoint, Endpoints, REPLY_DATAGRAMS_MAX,
};
pub use kachel_shard::PlainOptions;
use kachel_shard::{
    Certificates, ClientEvent, Counter, Counters, EngineCounters, Engines, FileEngine, Holdings,
    PipeControl, Shard, ShardOptions, Shared, SharedOptions, UdpOptions,
};
use kachel_stdx::uncounted;

/// What the caller of a [`World`] may choose.
#[derive(Clone, Copy, Debug)]
pub struct WorldOptions {
    /// Shards, at least 1. The server deals clients out to them in turn.
    pub shards: u16,
    /// Engines. `None`: as many as shards, without those that only serve clients.
    pub engines: Option<u16>,
    /// Memory of all engines together, in bytes.
    pub memory_bytes: u64,
    /// Whether a full server evicts items; otherwise it refuses new ones.
    pub evict: bool,
    /// Whether each shard reads and changes the items of all (`crew`); otherwise only its own
    /// (`erew`).
    pub crew: bool,
    /// The options of the server that are plain values.
    pub plain: PlainOptions,
    /// Largest item, in bytes.
    pub item_bytes_max: u64,
    /// Whether items have CAS tokens; without them as with `-C`.
    pub cas: bool,
    /// How leases behave.
    pub leases: LeaseOptions,
    /// Unix time at which the server starts, in seconds.
    pub start_unix_s: i64,
    /// Keys of the secret hash.
    pub seeds: Seeds,
    /// The resources that `stats` reports as used by the process.
    pub usage: fn() -> Usage,
    /// Limits on slow clients.
    pub limits: ClientLimits,
    /// Whether clients must log in first.
    pub asks_login: bool,
    /// Whether `refresh_certs` works.
    pub certificates: Certificates,
    /// The pipe, as clients see it.
    pub pipe: Option<fn() -> PipeControl>,
    /// Whether clients stay with the shard that accepts them: the first one.
    pub stays: bool,
    /// The protocol that the listener sets for its clients.
    pub protocol: ClientProtocol,
    /// The most datagrams of a reply over UDP. `None` if the server has no UDP; otherwise each
    /// shard has a datagram socket.
    pub udp: Option<u16>,
    /// The most datagrams a second that are answered of one sender. 0: no limit.
    pub sender_datagrams_max: u32,
    /// A function that the server calls for each client that it closes because of a limit.
    pub tell_client: Option<fn(SocketName, ClientEvent)>,
}

impl Default for WorldOptions {
    /// One shard with 64 MiB that evicts, and memcached's largest item. Several shards read each
    /// other's items.
    fn default() -> Self {
        Self {
            shards: 1,
            engines: None,
            memory_bytes: 64 << 20,
            evict: true,
            crew: true,
            plain: PlainOptions { connections_max: 200, ..PlainOptions::default() },
            item_bytes_max: 1 << 20,
            cas: true,
            leases: LeaseOptions::DEFAULT,
            start_unix_s: 1_800_000_000,
            seeds: Seeds { hash_keys: [11, 13] },
            usage: Usage::default,
            limits: ClientLimits::default(),
            asks_login: false,
            certificates: Certificates::Unknown,
            pipe: None,
            stays: false,
            protocol: ClientProtocol::Negotiated,
            udp: None,
            sender_datagrams_max: 0,
            tell_client: None,
        }
    }
}

impl WorldOptions {
    /// What the engines of a server are opened with that nobody starts.
    #[must_use]
    pub fn opening_alone(&self) -> Opening {
        let shared = Shared::new(self.shared(), Arc::new(Budget::new(self.memory_bytes)));
        let hasher = KeyHasher::new(self.seeds, shared.homes.engines());
        self.opening(&shared, hasher, ClockOrigin::new(0, self.start_unix_s))
    }

    /// What the engines of the server are opened with.
    pub(crate) fn opening(
        &self,
        shared: &Shared,
        hasher: KeyHasher,
        origin: ClockOrigin,
    ) -> Opening {
        Opening {
            engines: shared.homes.engines(),
            cores: shared.homes.cores(),
            hasher,
            options: EngineOptions {
                evict: self.evict,
                cas: self.cas,
                item_bytes_max: self.item_bytes_max,
                leases: self.leases,
            },
            budget: Arc::clone(&shared.budget),
            budget_bytes_max: self.memory_bytes,
            process_bytes: 0,
            start: origin.start(),
        }
    }

    /// The options of the server.
    pub(crate) fn shared(&self) -> SharedOptions {
        SharedOptions {
            shards: self.shards,
            engines: self.engines,
            plain: self.plain,
            usage: self.usage,
            certificates: self.certificates,
            pipe: self.pipe.map(|pipe| pipe()),
            endpoints: Endpoints::new(vec![Endpoint {
                protocol: self.protocol,
                limits: self.limits,
                asks_login: self.asks_login,
                stays: self.stays || self.udp.is_some(),
            }]),
            udp: UdpOptions {
                reply_datagrams_max: self.udp.unwrap_or(1),
                sender_datagrams_max: self.sender_datagrams_max,
                own_ports: vec![OWN_UDP_PORT..=OWN_UDP_PORT],
            },
            tell_client: self.tell_client,
            ..SharedOptions::default()
        }
    }
}

/// The world's clock as one shard last read it: shards of one process read it at different moments.
#[derive(Debug)]
pub struct ShardClock {
    clock: ManualClock,
    lag_ns: Rc<Cell<u64>>,
    ran_ns: Rc<Cell<u64>>,
}

impl Clock for ShardClock {
    fn now_ns(&self) -> u64 {
        self.clock.now_ns().saturating_sub(self.lag_ns.get())
    }

    fn unix_s(&self) -> i64 {
        self.clock.unix_s()
    }

    fn thread_time(&self) -> ThreadTime {
        ThreadTime { ran_ns: self.ran_ns.get(), waited_ns: 0 }
    }
}

/// What the endpoints in memory, their network and their disk allocate is not the server's.
///
/// Nearly all worlds have this around their endpoints. With another type the whole server is
/// compiled once more.
#[derive(Clone, Copy, Debug)]
pub struct Uncounted;

impl Around for Uncounted {
    fn call<R>(&self, work: impl FnOnce() -> R) -> R {
        uncounted(work)
    }
}

/// One shard of a [`World`], with `A` around the calls to its endpoint, over the engine `E`.
pub type WorldShard<A = Uncounted, E = Cache> = Shard<Surrounded<A>, ShardClock, E>;

/// The poll of a shard: how long it may wait, and whether the shard sleeps in it (I2).
#[derive(Clone, Copy, Debug)]
struct Poll {
    wait: Wait,
    sleeps: bool,
}

/// A server in memory and the network of its clients.
pub struct World<A: Around = Uncounted, E: Engine = Cache> {
    net: MemoryNet,
    listener: ListenerId,
    /// The shards, by number.
    pub shards: Vec<WorldShard<A, E>>,
    /// The engines of all shards.
    pub engines: Arc<Engines<E>>,
    /// The polls of the shards, by their numbers.
    polls: Vec<Poll>,
    lags_ns: Vec<Rc<Cell<u64>>>,
    ran_ns: Vec<Rc<Cell<u64>>>,
    /// The clock of all shards; it moves when the caller moves it.
    pub clock: ManualClock,
    /// State that the shards share: counters, memory budget, options.
    pub shared: Arc<Shared>,
}

/// The UDP port of a server in memory: nothing that comes from this port is answered.
pub const OWN_UDP_PORT: u16 = 11311;
/// Sleeps of each shard that end while a world settles.
const SLEEPS: u32 = 4;
/// The most ticks of a shard in a row, before others tick that it may wait for.
const TICKS_IN_A_ROW_MAX: u32 = 64;
/// Rounds within which a server comes to rest (I3): a long script of the fuzzer takes thousands.
const ROUNDS_MAX: u32 = 200_000;
/// A shard that sleeps at most this long waits for a time that is near, in nanoseconds.
const NAP_NS_MAX: u64 = 1_000_000;

/// Whether a shard that waits like this only waits for its endpoint and for other cores (I2). A
/// shorter wait ends by itself: then an engine wants to be entered, or a login may be checked.
pub fn is_rest(wait: Wait) -> bool {
    match wait {
        Wait::Now => false,
        Wait::AtMostNs(ns) => ns > NAP_NS_MAX,
        Wait::Forever => true,
    }
}

impl World {
    /// An empty server.
    ///
    /// Cost: reserves `memory_bytes` of address space.
    ///
    /// # Panics
    /// If that address space is not available.
    pub fn new(options: WorldOptions) -> Self {
        Self::surrounded(options, |_| Uncounted)
    }
}

impl<A: Around> World<A> {
    /// An empty server. `around` makes the code around the calls to each shard's endpoint.
    ///
    /// # Panics
    /// As [`World::new`].
    pub fn surrounded(options: WorldOptions, around: impl Fn(&Arc<Shared>) -> A) -> Self {
        Self::over(options, around, &CacheOpener::default())
    }
}

impl<A: Around, E: FileEngine> World<A, E> {
    /// An empty server, as [`World::surrounded`] makes it, over the engines that `opener` opens.
    ///
    /// # Panics
    /// As [`World::new`].
    pub fn over(
        options: WorldOptions,
        around: impl Fn(&Arc<Shared>) -> A,
        opener: &impl OpenEngines<Engine = E>,
    ) -> Self {
        let budget = Arc::new(Budget::new(options.memory_bytes));
        let shared = Arc::new(Shared::new(options.shared(), budget));
        let homes = shared.homes;
        let clock = ManualClock::new(options.start_unix_s);
        let net = MemoryNet::new();
        let mut endpoints: Vec<_> = (0..options.shards).map(|_| net.open()).collect();
        let listener = endpoints[0].listen_here();
        if let Some(datagrams_max) = options.udp {
            assert!((1..=REPLY_DATAGRAMS_MAX).contains(&datagrams_max), "as the server allows");
            for endpoint in &mut endpoints {
                endpoint.receive_datagrams_here();
            }
        }
        let hasher = KeyHasher::new(options.seeds, homes.engines());
        let origin = ClockOrigin::new(0, options.start_unix_s);
        let times = || (0..options.shards).map(|_| Rc::default()).collect();
        let [lags_ns, ran_ns]: [Vec<Rc<Cell<u64>>>; 2] = [times(), times()];
        let engines =
            opener.open(&options.opening(&shared, hasher, origin)).expect("address space");
        let engines = Engines::new(engines, homes, options.crew);
        let shards: Vec<_> = (0..options.shards)
            .zip(endpoints)
            .map(|(id, endpoint)| {
                let shard = ShardOptions { core: CoreIndex(id), hasher, origin };
                let lag_ns = Rc::clone(&lags_ns[usize::from(id)]);
                let ran_ns = Rc::clone(&ran_ns[usize::from(id)]);
                let clock = ShardClock { clock: clock.clone(), lag_ns, ran_ns };
                let io = Surrounded::new(endpoint, around(&shared));
                Shard::new(io, clock, Arc::clone(&engines), shard, Arc::clone(&shared))
            })
            .collect();
        let polls = vec![Poll { wait: Wait::Now, sleeps: false }; usize::from(options.shards)];
        Self { net, listener, shards, engines, polls, lags_ns, ran_ns, clock, shared }
    }

    /// Has all shards carry out operations on files of this disk.
    ///
    /// # Panics
    /// If there is a disk already.
    pub fn use_disk(&mut self, disk: &Disk) {
        self.shards.iter_mut().for_each(|shard| shard.io_mut().use_disk(disk));
    }

    /// A new client: the client's end of a connection that the server accepts in a later tick.
    pub fn connect(&self) -> FarEnd {
        self.connect_from(Peer::Local)
    }

    /// A new client, at an address.
    pub fn connect_from(&self, peer: Peer) -> FarEnd {
        self.net.connect(0, self.listener, peer)
    }

    /// Sends a datagram from an address to a shard.
    ///
    /// # Panics
    /// If the server has no UDP.
    pub fn send_datagram(&self, shard: usize, from: SocketAddr, datagram: &[u8]) {
        assert!(shard < self.shards.len(), "a shard of this server");
        let peer = DatagramPeer { socket: DatagramSocketId(0), address: from };
        self.net.send_datagram(shard, peer, datagram);
    }

    /// The datagrams that a shard has sent since the last call, with their addresses.
    pub fn take_datagrams(&self, shard: usize) -> Vec<(SocketAddr, Vec<u8>)> {
        assert!(shard < self.shards.len(), "a shard of this server");
        self.net.take_datagrams(shard, DatagramSocketId(0))
    }

    /// Lets one shard see the time as it was `ns` ago.
    pub fn lag_ns(&self, shard: usize, ns: u64) {
        self.lags_ns[shard].set(ns);
    }

    /// Lets the thread of one shard use processor time. Without this, it uses none.
    pub fn use_ns(&self, shard: usize, ns: u64) {
        let ran_ns = &self.ran_ns[shard];
        ran_ns.set(ran_ns.get() + ns);
    }

    /// Runs one tick of every shard, in the order of their numbers.
    pub fn turn(&mut self) {
        (0..self.shards.len()).for_each(|shard| self.turn_of(shard));
    }

    /// Runs one tick of one shard, while the others do nothing. If it sleeps, its sleep ends.
    pub fn turn_of(&mut self, shard: usize) {
        self.polls[shard].sleeps = false;
        self.shards[shard].tick().expect("memory never fails");
    }

    /// Lets each shard that does not sleep, or that something wakes, tick until it sleeps, but at
    /// most `TICKS_IN_A_ROW_MAX` times. Returns whether there was one (I2). So most shards are
    /// asleep when another one does what they wait for.
    pub fn round(&mut self) -> bool {
        let mut any = false;
        for (shard, poll) in self.shards.iter_mut().zip(&mut self.polls) {
            for _ in 0..TICKS_IN_A_ROW_MAX {
                if !poll.sleeps {
                    poll.wait = shard.prepare_wait();
                }
                poll.sleeps = is_rest(poll.wait) && !shard.io_mut().stir();
                if poll.sleeps {
                    break;
                }
                shard.complete_tick(poll.wait).expect("memory never fails");
                any = true;
            }
        }
        any
    }

    /// Runs rounds until all shards are at rest (I2). A shard at rest has not read the clock again.
    ///
    /// # Panics
    /// If the server does not come to rest (I3), or a shard sleeps that has something to do (I2).
    pub fn rest(&mut self) {
        let rests = (0..ROUNDS_MAX).any(|_| !self.round());
        assert!(rests, "I3: the server does not come to rest");
        for (number, shard) in self.shards.iter_mut().enumerate() {
            let wait = shard.prepare_wait();
            assert!(is_rest(wait), "I2: a wake-up of shard {number} was lost");
        }
    }

    /// Has all shards come to rest (I2), and ends the sleep of each some times, as it ends within a
    /// second. Each shard has then read the clock, reused retired segments and closed late clients.
    ///
    /// # Panics
    /// As [`Self::rest`].
    pub fn settle(&mut self) {
        self.rest();
        for _ in 0..SLEEPS {
            self.turn();
            self.rest();
        }
    }

    /// The resources that each shard holds now.
    pub fn holdings(&self) -> impl Iterator<Item = Holdings> {
        self.shards.iter().map(Shard::holdings)
    }

    /// Requests that were parked so far.
    pub fn parked(&self) -> u64 {
        self.sum(|counters| &counters.parked)
    }

    /// The sum over all engines of the counter that `counter` picks.
    pub fn sum_of_engines(&self, counter: impl Fn(&EngineCounters) -> &Counter) -> u64 {
        self.shared.totals.engines.iter().map(|counters| counter(counters).value()).sum()
    }

    /// The sum over all cores of the counter that `counter` picks.
    pub fn sum(&self, counter: impl Fn(&Counters) -> &Counter) -> u64 {
        self.shared.totals.cores.iter().map(|counters| counter(counters).value()).sum()
    }

    /// Sends `input` on `client` and returns the whole reply.
    pub fn ask(&mut self, client: &FarEnd, input: &[u8]) -> Vec<u8> {
        client.write(input);
        self.settle();
        client.read()
    }
}

impl<A: Around, E: FileEngine<Common = CacheCommon>> World<A, E> {
    /// The memory that engines take segments and blocks from.
    pub fn pool(&self) -> &Arc<Pool> {
        self.engines.common().pool()
    }

    /// Checks that the pool and the shards agree about every segment and block.
    ///
    /// # Panics
    /// If they do not (I4).
    pub fn audit(&self) {
        let books = self.pool().books();
        let sum = |of: fn(&Holdings) -> u64| self.holdings().map(|held| of(&held)).sum::<u64>();
        let blocks = sum(|held| held.blocks) + books.free_blocks;
        let owned = sum(|held| held.segments) + books.idle_segments;
        let all = owned * books.blocks_per_segment + blocks;
        assert_eq!(all, books.charged_segments * books.blocks_per_segment, "I4: {books:?}");
    }
}

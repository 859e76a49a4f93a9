//! The threads of the shards: each makes an I/O backend and a shard, and ticks until the end.
//!
//! Upstream:   `serve` with the options and the bound sockets.
//! Downstream: `kachel_shard::Shard::tick`, on a thread of its own, and on a core of its own if
//!             there are enough cores.

use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use kachel_engine::{
    ClockOrigin, Engine, EngineOptions, KeyHasher, LeaseOptions, Opening, PARTITIONS, Seeds,
};
use kachel_host::{Budget, PageKind};
use kachel_io::{AnyIo, Clock, Files, Limits, SystemClock, Waker};
use kachel_net::{CoreIndex, EndpointIndex, REPLY_DATAGRAMS_MAX, Users};
use kachel_observe::{
    HOT_KEYS_MAX, PREFIXES_SHOWN_MAX, class_metrics, hot_key_metrics, prefix_metrics,
};
use kachel_options::{
    IoChoice, ListenTls, Protocol, Reads, ServeOptions, TEST_ENGINES_ENV, UDP_REPLY_DATAGRAMS_MAX,
};
use kachel_shard::{
    AfterTick, Certificates, Engines, FileEngine, OpenSocket, Shard, ShardOptions, Shared,
    SharedOptions, Shutdown,
};

use crate::admin::LiveShards;
use crate::caches::ServedEngines;
use crate::listeners::OfShard;
use crate::live_page::Observed;
use crate::obtained::Obtained;
use crate::pipe::{Answers, SmartPipe};
use crate::restart::{Claim, Found, Time};
use crate::rings::{Vote, votes};
use crate::shard_options::{PROTOCOLS, shared_options};
use crate::tls::Encryption;

/// Sockets of a shard beyond `-c`, for connections that are refused or being closed.
pub(crate) const SOCKETS_SPARE: u32 = 128;

/// Address space of a thread without its index: its stack of 2 MiB, and buffers. Measured: 4 MiB.
const THREAD_BYTES: u64 = 6 << 20;
/// Address space of the process without its shards: connections, buffers, parts of the allocator.
const PROCESS_BYTES: u64 = 32 << 20;

/// The running shards of the process.
pub(crate) struct Running<O: ServedEngines> {
    shared: Arc<Shared>,
    engines: Arc<Engines<O::Engine>>,
    origin: ClockOrigin,
    wakers: Arc<[Waker]>,
    threads: Vec<JoinHandle<()>>,
    /// A channel to each thread, which waits for [`Running::begin`].
    waiting: Vec<Sender<()>>,
    failed: Arc<AtomicBool>,
    obtained: Obtained,
}

/// The facts that a thread reports to the main thread once its shard exists.
struct Made {
    waker: Waker,
    io: &'static str,
    /// The core that it is pinned to.
    core: Option<usize>,
}

/// The arguments of every shard's thread.
struct Plan<E: Engine> {
    shared: Arc<Shared>,
    engines: Arc<Engines<E>>,
    hasher: KeyHasher,
    origin: ClockOrigin,
    limits: Limits,
    pin: bool,
    pages: PageKind,
    /// The first endpoint of the listeners that are one shard's own: one for each of [`PROTOCOLS`].
    own_endpoints: EndpointIndex,
}

const _: () = assert!(UDP_REPLY_DATAGRAMS_MAX <= REPLY_DATAGRAMS_MAX, "as the options allow");

impl<E: Engine> Plan<E> {
    /// The endpoint of a listener that is one shard's own.
    fn own_endpoint(&self, protocol: Protocol) -> EndpointIndex {
        debug_assert!(PROTOCOLS[protocol as usize] == protocol, "in the order of their numbers");
        EndpointIndex(self.own_endpoints.0 + protocol as u16)
    }

    /// The endpoint of an entry in the list of UDP listeners.
    fn udp_endpoint(&self, entry: usize) -> EndpointIndex {
        let entry = u16::try_from(entry).expect("a few listeners");
        EndpointIndex(self.own_endpoints.0 + PROTOCOLS.len() as u16 + entry)
    }
}

/// The listening sockets of the process.
pub(crate) struct Sockets {
    /// Those whose clients any shard may serve.
    pub(crate) of_all: Vec<OwnedFd>,
    /// The protocol of each of those.
    pub(crate) protocols: Vec<Protocol>,
    /// The TLS of each of those.
    pub(crate) tls: Vec<ListenTls>,
    /// For each shard, those whose clients it serves. Empty without `--shard-ports`.
    pub(crate) of_shards: Vec<OfShard>,
    /// For each shard with clients, its datagram sockets, each with the number of its entry in the
    /// list of UDP listeners.
    pub(crate) datagrams: Vec<Vec<(usize, OwnedFd)>>,
    /// The ports of the datagram sockets.
    pub(crate) udp_ports: Vec<RangeInclusive<u16>>,
}

/// The sockets of one shard.
struct OwnSockets {
    /// Those whose clients any shard may serve. Only the first shard has any.
    of_all: OfShard,
    /// Those whose clients it serves.
    own: OfShard,
    datagrams: Vec<(usize, OwnedFd)>,
}

/// How the process admits clients: logins and TLS, and the pipe.
#[derive(Default)]
pub(crate) struct Admission {
    /// If there are users, a client must log in as one of them.
    pub(crate) users: Option<Users>,
    /// TLS, for the listeners that use it.
    pub(crate) encryption: Option<Encryption>,
    /// The pipe, which answers datagrams in the place of the shards.
    pub(crate) pipe: Option<SmartPipe>,
}

/// How the running shards admit clients, which may change.
pub(crate) struct Admitting {
    shared: Arc<Shared>,
    wakers: Arc<[Waker]>,
}

/// Starts `shards` threads that serve clients of `sockets` once [`Running::begin`] is called, and
/// those for handshakes. Loads the items that were found. `None` if a signal that ends the process
/// has come meanwhile.
///
/// Errors: memory cannot be reserved, or the selected I/O backend is not available.
pub(crate) fn start<O: ServedEngines>(
    opener: &O,
    options: &ServeOptions,
    shards: u16,
    sockets: Sockets,
    pin: bool,
    admission: Admission,
    found: Option<Found>,
) -> io::Result<Option<Running<O>>> {
    let Admission { users, encryption, pipe } = admission;
    let budget = Arc::new(Budget::new(options.memory_bytes));
    let of_all = u16::try_from(sockets.of_all.len()).expect("a few listeners");
    let mut shared = shared_options(options, shards, &sockets.protocols);
    shared.engines = Some(engine_count(opener, options, shards));
    shared.listeners =
        sockets.of_all.iter().map(|socket| address_of(socket, options, "tcp")).collect();
    shared.sockets = sockets.described(options);
    shared.udp.own_ports = sockets.udp_ports.clone();
    if let Some(encryption) = &encryption {
        shared.certificates = Certificates::Readable;
        shared.other_counts.push(encryption.counts());
    }
    if let Some(pipe) = &pipe {
        share_pipe(pipe, &budget, &mut shared);
    }
    let shared = Arc::new(Shared::new(shared, budget));
    if let Some(users) = users {
        shared.set_users(users);
    }
    let (found, origin) = time(found);
    let seeds = Seeds { hash_keys: kachel_host::entropy()? };
    if let Some(pipe) = &pipe {
        begin_pipe(pipe, options, &sockets, &shared, seeds, origin.start_ns());
    }
    let hasher = KeyHasher::new(seeds, shared.homes.engines());
    let mut engines = opener.open(&opening(options, hasher, &shared, origin))?;
    report_changes(&mut engines, &shared)?;
    // The engines have made sure that there is address space for its thread.
    if let Some(encryption) = &encryption {
        encryption.start()?;
    }
    if let Some(found) = found {
        let loaded = O::load(found, engines, hasher, origin, kachel_host::is_end_pending);
        let Some(loaded) = loaded else { return Ok(None) };
        engines = loaded;
    }
    let engines = Engines::new(engines, shared.homes, options.reads == Reads::Crew);
    let pages = O::pages(&engines);
    let plan = Arc::new(Plan {
        engines,
        shared: Arc::clone(&shared),
        hasher,
        origin,
        limits: Limits {
            sockets_max: options.connections_max.saturating_add(SOCKETS_SPARE),
            slack_us: options.slack_us,
        },
        pin,
        pages,
        own_endpoints: EndpointIndex(of_all),
    });
    spawn(options.io, &plan, shards, sockets, encryption.as_ref()).map(Some)
}

/// The number of engines: that of the data, if there is some. Otherwise one for each thread that
/// may have keys, unless a test asks for another number. More engines or fewer would gain nothing
/// for items in memory.
pub(crate) fn engine_count<O: ServedEngines>(
    opener: &O,
    options: &ServeOptions,
    threads: u16,
) -> u16 {
    if let Some(kept) = opener.kept_engines() {
        return kept;
    }
    let with_keys = options.roles.map_or(threads, |roles| roles.shard);
    debug_assert!((1..=threads).contains(&with_keys), "some thread is the home of the engines");
    let asked = std::env::var(TEST_ENGINES_ENV).ok().and_then(|text| text.parse().ok());
    asked.filter(|engines| (1..=PARTITIONS as u16).contains(engines)).unwrap_or(with_keys)
}

/// The time of the process, which goes on from that of the server before, if its items were found.
fn time(found: Option<Found>) -> (Option<Found>, ClockOrigin) {
    // Seconds begin when those of the Unix time do, so that the log shows fractions of these.
    let (now_ns, unix_ns) = (SystemClock.now_ns(), SystemClock.unix_ns());
    let second_ns = now_ns.saturating_sub(unix_ns % 1_000_000_000);
    let unix_s = unix_ns / 1_000_000_000;
    let signed_s = i64::try_from(unix_s).unwrap_or(i64::MAX);
    let time = Time { origin: ClockOrigin::new(second_ns, signed_s), unix_s };
    match found.as_ref().map(|found| found.resume(time)) {
        Some(Some(resumed)) => (found, resumed.origin),
        Some(None) => {
            say!(Warning, "-e: the file is too old to go on from; the cache starts empty");
            (None, time.origin)
        }
        None => (None, time.origin),
    }
}

/// Has the shards use the pipe, whose table is a part of `-m`.
fn share_pipe(pipe: &SmartPipe, budget: &Budget, shared: &mut SharedOptions) {
    assert!(pipe.bytes() <= budget.limit_bytes() / 2, "the options leave half for items");
    budget.charge_ahead(pipe.bytes());
    shared.copies = Some(pipe.copies());
    shared.other_counts.push(pipe.counts());
    shared.pipe = Some(pipe.control());
}

/// Has the pipe answer what is sent to the datagram sockets, once the shards run.
fn begin_pipe(
    pipe: &SmartPipe,
    options: &ServeOptions,
    sockets: &Sockets,
    shared: &Arc<Shared>,
    seeds: Seeds,
    start_ns: u64,
) {
    let answers = Answers {
        hash_keys: seeds.hash_keys,
        start_ns,
        sockets: &sockets.of_datagrams(options),
        shared,
        own_ports: &sockets.udp_ports,
    };
    pipe.begin(options, answers);
}

/// The highest memory limit that `cache_memlimit` may set: the address space that is reserved.
fn budget_bytes_max(options: &ServeOptions) -> u64 {
    // Reserved huge pages are all taken at the start, so there are only those of `-m`, and one for
    // the end of the arena.
    let takes_reserved_pages =
        options.huge_pages && kachel_host::free_reserved_bytes() > options.memory_bytes;
    let may_grow = kachel_host::is_address_space_free() && !takes_reserved_pages;
    let most = if may_grow { kachel_host::physical_memory_bytes() } else { 0 };
    most.max(options.memory_bytes)
}

impl Sockets {
    /// The sockets as `stats conns` shows them, in the order of their numbers.
    fn described(&self, options: &ServeOptions) -> Vec<OpenSocket> {
        let describe = |socket: &OwnedFd, is_udp| OpenSocket {
            descriptor: socket.as_raw_fd(),
            address: address_of(socket, options, if is_udp { "udp" } else { "tcp" }),
            is_udp,
        };
        let listeners = self.of_all.iter().chain(self.of_shards.iter().flat_map(|of| &of.sockets));
        let datagrams = self.datagrams.iter().flatten();
        let mut all: Vec<OpenSocket> = listeners.map(|socket| describe(socket, false)).collect();
        all.extend(datagrams.map(|(_, socket)| describe(socket, true)));
        all.sort_by_key(|socket| socket.descriptor);
        all
    }
}

impl Sockets {
    /// The protocol and the local address of each datagram socket.
    fn of_datagrams(&self, options: &ServeOptions) -> Vec<(Protocol, SocketAddr)> {
        let of_socket = |(entry, socket): &(usize, OwnedFd)| {
            let protocol = options.listeners.udp[*entry].protocol;
            kachel_io::listener::local_addr(socket).ok().map(|address| (protocol, address))
        };
        self.datagrams.iter().flatten().filter_map(of_socket).collect()
    }
}

/// The address of a socket of this transport, as `stats conns` shows it.
fn address_of(socket: &OwnedFd, options: &ServeOptions, transport: &str) -> String {
    match kachel_io::listener::local_addr(socket) {
        Ok(address) if address.is_ipv4() => format!("{transport}:{address}"),
        Ok(address) => format!("{transport}6:{address}"),
        // It is the unix socket.
        Err(_) => format!("unix:{}", options.echo.unix_path.as_deref().unwrap_or_default()),
    }
}

/// What the engines need to be opened.
fn opening(
    options: &ServeOptions,
    hasher: KeyHasher,
    shared: &Shared,
    origin: ClockOrigin,
) -> Opening {
    let engine = EngineOptions {
        evict: options.evict,
        cas: options.cas,
        item_bytes_max: u64::from(options.item_bytes_max),
        leases: LeaseOptions {
            lease_s: options.lease_s,
            stale_s: options.lease_stale_s,
            stale_percent: options.lease_stale_percent,
        },
    };
    let threads = u64::from(shared.homes.cores()) + u64::from(options.admin.listen.is_some());
    Opening {
        engines: shared.homes.engines(),
        cores: shared.homes.cores(),
        hasher,
        options: engine,
        budget: Arc::clone(&shared.budget),
        budget_bytes_max: budget_bytes_max(options),
        process_bytes: threads * THREAD_BYTES + PROCESS_BYTES,
        start: shared.now(&origin, SystemClock.now_ns()),
    }
}

/// Has the engines report their changes to the copies of items, if there are copies.
///
/// Errors: the engines do not report them.
fn report_changes<E: Engine>(engines: &mut [E], shared: &Shared) -> io::Result<()> {
    let Some(copies) = &shared.options.copies else { return Ok(()) };
    if engines.iter_mut().all(|engine| engine.report_changes(Arc::clone(copies))) {
        return Ok(());
    }
    Err(io::Error::other("--pipe: these engines report no changes, so no item may be copied"))
}

/// Spawns one thread per shard, and waits until each has its I/O backend or one has failed.
fn spawn<O: ServedEngines>(
    io: IoChoice,
    plan: &Arc<Plan<O::Engine>>,
    shards: u16,
    sockets: Sockets,
    encryption: Option<&Encryption>,
) -> io::Result<Running<O>> {
    let (waiting, others): (Vec<_>, Vec<_>) = (0..shards).map(|_| channel::<()>()).unzip();
    let (opened, backends) = channel::<(u16, io::Result<Made>)>();
    let (deciding, votes) = votes(shards);
    // The first shard accepts the clients of all, and hands them over.
    let Sockets { of_all, protocols, tls, of_shards, datagrams, .. } = sockets;
    let mut of_all = Some(OfShard { sockets: of_all, protocols, tls });
    let mut of_shards = of_shards.into_iter();
    let mut datagrams = datagrams.into_iter();
    let mut threads = Vec::new();
    let failed = Arc::new(AtomicBool::new(false));
    for ((id, others), vote) in (0..shards).zip(others).zip(votes) {
        let (plan, opened, failed) = (Arc::clone(plan), opened.clone(), Arc::clone(&failed));
        let sockets = OwnSockets {
            of_all: of_all.take().unwrap_or_default(),
            own: of_shards.next().unwrap_or_default(),
            datagrams: datagrams.next().unwrap_or_default(),
        };
        let start = Start { id, io, sockets, encryption: encryption.cloned(), opened, others };
        let body = move || {
            if let Err(error) = start.run::<O>(&plan, vote) {
                // Its keys are lost, so the process ends. The reason is printed now, because the
                // other shards may still wait for the clients of this one until a time limit.
                say!(Error, "shard {id} has failed: {error}");
                failed.store(true, Ordering::Relaxed);
                if plan.shared.claim_end() {
                    kachel_host::ask_to_terminate();
                }
            }
        };
        let name = format!("shard {id}");
        let thread = std::thread::Builder::new().name(name).spawn(body);
        threads.push(thread.map_err(|error| no_thread(id, &error))?);
    }
    drop(opened);
    deciding.decide(io)?;
    let mut by_shard: Vec<Option<Waker>> = (0..shards).map(|_| None).collect();
    let mut obtained = Obtained { pages: plan.pages, io: "", pinned: Vec::new() };
    for (id, shard) in backends.iter().take(usize::from(shards)) {
        let Made { waker, io, core } = shard?;
        by_shard[usize::from(id)] = Some(waker);
        obtained.io = io;
        obtained.pinned.extend(core);
    }
    let wakers = by_shard.into_iter().flatten().collect();
    let (shared, engines) = (Arc::clone(&plan.shared), Arc::clone(&plan.engines));
    let origin = plan.origin;
    Ok(Running { shared, engines, origin, wakers, threads, waiting, failed, obtained })
}

/// The error for a thread that the system refuses.
fn no_thread(id: u16, error: &io::Error) -> io::Error {
    let bounds = kachel_host::address_space_bounds();
    io::Error::new(error.kind(), format!("no thread for shard {id}: {error}{bounds}"))
}

/// The start of a shard's thread.
struct Start {
    id: u16,
    io: IoChoice,
    sockets: OwnSockets,
    encryption: Option<Encryption>,
    opened: Sender<(u16, io::Result<Made>)>,
    others: Receiver<()>,
}

impl Start {
    /// The body of the thread: opens the backend that all shards get, and runs the shard with it. A
    /// process without TLS has the backend itself, so TLS costs its clients nothing.
    fn run<O: ServedEngines>(self, plan: &Plan<O::Engine>, vote: Vote) -> io::Result<()> {
        let core = if plan.pin { pin(self.id) } else { None };
        let has_datagrams = !self.sockets.datagrams.is_empty();
        let Some(backend) = vote.backend(self.io, plan.limits, has_datagrams) else {
            return Ok(());
        };
        // In the order in which the shard listens.
        let tls = [&self.sockets.of_all.tls[..], &self.sockets.own.tls].concat();
        match (backend, self.encryption.clone()) {
            // Engines that wait for a disk gain nothing by a shard for each backend.
            (Ok(io), None) if !O::HAS_SHARD_PER_BACKEND => run(plan, self, core, io),
            (Ok(io), Some(over)) if !O::HAS_SHARD_PER_BACKEND => {
                run(plan, self, core, over.over(io, &tls))
            }
            (Ok(AnyIo::Uring(io)), None) => run(plan, self, core, *io),
            (Ok(AnyIo::Uring(io)), Some(over)) => run(plan, self, core, over.over(*io, &tls)),
            (Ok(AnyIo::Epoll(io)), None) => run(plan, self, core, *io),
            (Ok(AnyIo::Epoll(io)), Some(over)) => run(plan, self, core, over.over(*io, &tls)),
            (Err(error), _) => {
                let _main_has_gone = self.opened.send((self.id, Err(error)));
                Ok(())
            }
        }
    }
}

/// Makes the shard of a thread, waits for the others, ticks.
fn run<I: Files, E: FileEngine>(
    plan: &Plan<E>,
    start: Start,
    core: Option<usize>,
    io: I,
) -> io::Result<()> {
    let Start { id, sockets: OwnSockets { of_all, own, datagrams }, opened, others, .. } = start;
    let (kind, mut shard) = (io.kind(), make(plan, id, io));
    let made = Made { waker: shard.waker(), io: kind, core };
    let _main_has_gone = opened.send((id, Ok(made)));
    drop(opened);
    // Arrives when all shards are made; never arrives if one could not be made, or the start fails.
    let Ok(()) = others.recv() else { return Ok(()) };
    for (index, listener) in (0..).zip(of_all.sockets) {
        shard.listen(listener, EndpointIndex(index));
    }
    for (protocol, listener) in own.protocols.into_iter().zip(own.sockets) {
        shard.listen(listener, plan.own_endpoint(protocol));
    }
    for (entry, socket) in datagrams {
        shard.receive_datagrams(socket, plan.udp_endpoint(entry));
    }
    while shard.tick()? == AfterTick::Again {
        match plan.shared.take_shutdown() {
            None => {}
            Some(Shutdown::Plain) => kachel_host::ask_to_terminate(),
            Some(Shutdown::Graceful) => kachel_host::ask_to_save(),
        }
        if plan.shared.take_refresh() {
            kachel_host::ask_to_reload();
        }
    }
    Ok(())
}

/// Pins the thread of shard `id` to a core of its own. Returns the core, or `None` if the kernel
/// refuses.
fn pin(id: u16) -> Option<usize> {
    let pinned = kachel_host::pin_to_core_of(usize::from(id));
    if let Err(error) = &pinned {
        say!(Warning, "shard {id} is not pinned to a core: {error}");
    }
    pinned.ok()
}

/// Makes a shard, with an I/O backend that was opened on the thread that uses it.
fn make<I: Files, E: FileEngine>(plan: &Plan<E>, id: u16, io: I) -> Shard<I, SystemClock, E> {
    let (shared, engines) = (Arc::clone(&plan.shared), Arc::clone(&plan.engines));
    let options = ShardOptions { core: CoreIndex(id), hasher: plan.hasher, origin: plan.origin };
    Shard::new(io, SystemClock, engines, options, shared)
}

impl<O: ServedEngines> Running<O> {
    /// Lets the shards serve clients.
    pub(crate) fn begin(&mut self) {
        debug_assert!(self.waiting.len() == self.threads.len(), "they begin once");
        for shard in self.waiting.drain(..) {
            // A thread that has already ended does not receive it.
            let _ended = shard.send(());
        }
    }

    /// Asks all shards to send the remaining replies and end.
    pub(crate) fn stop(&self) {
        self.shared.stop();
        self.wakers.iter().for_each(Waker::wake);
    }

    /// How clients are admitted, for a thread of its own.
    pub(crate) fn admitting(&self) -> Admitting {
        Admitting { shared: Arc::clone(&self.shared), wakers: Arc::clone(&self.wakers) }
    }

    /// The shards as other threads see them. `shows_classes` says whether their metrics have those
    /// of size classes.
    pub(crate) fn live(&self, shows_classes: bool) -> LiveShards {
        let Admitting { shared, wakers } = self.admitting();
        let (of_shared, engines) = (Arc::clone(&shared), Arc::clone(&self.engines));
        let (origin, io_kind) = (self.origin, self.obtained.io);
        let metrics = Box::new(move || {
            let at_ns = SystemClock.now_ns();
            let now = of_shared.now(&origin, at_ns);
            let mut text = of_shared.metrics(now, io_kind, engines.common());
            if shows_classes {
                text.push_str(&class_metrics(&engines.class_numbers(&of_shared.totals)));
            }
            if let Some(hottest) = of_shared.hottest_keys(1, at_ns) {
                text.push_str(&hot_key_metrics(&hottest));
            }
            if let Some(prefixes) = of_shared.prefixes(0, at_ns) {
                text.push_str(&prefix_metrics(&prefixes));
            }
            text
        });
        let (of_shared, engines) = (Arc::clone(&shared), Arc::clone(&self.engines));
        let reading = Box::new(move || {
            let at_ns = SystemClock.now_ns();
            let now = of_shared.now(&origin, at_ns);
            of_shared.reading(at_ns, now, io_kind, engines.common())
        });
        let of_shared = Arc::clone(&shared);
        let observed = Box::new(move || Observed {
            hottest: of_shared.hottest_keys(HOT_KEYS_MAX, SystemClock.now_ns()),
            prefixes: of_shared.prefixes(PREFIXES_SHOWN_MAX, SystemClock.now_ns()),
            curve: of_shared.miss_curve(),
        });
        LiveShards { shared, wakers, failed: self.failed(), metrics, reading, observed }
    }

    /// The pages, the I/O backend and the cores that the shards obtained.
    pub(crate) const fn obtained(&self) -> &Obtained {
        &self.obtained
    }

    /// True once a shard has failed and printed the reason.
    pub(crate) fn failed(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.failed)
    }

    /// Closes the clients that have not taken their replies in time.
    pub(crate) fn give_up_clients(&self) -> impl FnOnce() + Send + 'static {
        let (shared, wakers) = (Arc::clone(&self.shared), Arc::clone(&self.wakers));
        move || {
            shared.give_up_clients();
            wakers.iter().for_each(Waker::wake);
        }
    }

    /// Waits until all shards have ended, and says so if a client was owed replies. Then saves
    /// their items to the file of `claim`, if there is one and no shard has failed. The error is a
    /// sentence.
    pub(crate) fn join(self, claim: Option<Claim>) -> Result<(), String> {
        let Self { shared, engines, origin, threads, failed, .. } = self;
        for thread in threads {
            thread.join().expect("a panic has ended the process");
        }
        if shared.are_replies_lost() {
            say!(Warning, "ended with replies not sent");
        }
        let Some(claim) = claim.filter(|_| !failed.load(Ordering::Relaxed)) else { return Ok(()) };
        let now = shared.now(&origin, SystemClock.now_ns());
        O::save(claim, &engines, shared.homes, now)
    }
}

impl Admitting {
    /// Replaces the users who may log in.
    pub(crate) fn set_users(&self, users: Users) {
        self.shared.set_users(users);
    }

    /// The number of the last `refresh_certs`, if it is not answered yet.
    pub(crate) fn refresh_asked(&self) -> Option<u64> {
        self.shared.refresh_asked()
    }

    /// Has the shards answer `refresh_certs` up to number `asked`.
    pub(crate) fn answer_refresh(&self, asked: u64, result: Result<(), String>) {
        self.shared.note_refreshed(asked, result);
        self.wakers.iter().for_each(Waker::wake);
    }
}

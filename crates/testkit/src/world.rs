//! A whole server in memory, on one thread, with a clock that its caller moves.
//!
//! Upstream:   the tests of the server without a kernel, the fuzz targets, the benchmark of
//!             instruction counts.
//! Downstream: `shard`, and `io` by its network in memory.
//!
//! Invariants:
//! - I1  Nothing happens unless the caller asks for it: no thread, no real clock, no random source.
//! - I2  At rest no shard would do anything before a client or the clock moves: each of them may
//!   sleep, and no door has something to report. So [`World::settle_at_rest`] counts no idle turns.
//! - I3  A server comes to rest within `ROUNDS_MAX` rounds, or that is a finding.
//! - I4  Each segment and block of the pool is either some shard's or free.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use kachel_cache::{Cache, Pool, PoolOptions};
use kachel_engine::{EngineOptions, KeyHasher, Seeds};
use kachel_host::{Budget, Usage};
use kachel_io::{Clock, ListenerId, ManualClock, Peer};
use kachel_io::{FarEnd, Io, Memory, MemoryNet, Wait};
use kachel_net::ClientLimits;
use kachel_shard::{
    ClosedClient, Counter, Counters, Holdings, Shard, ShardOptions, Shared, SharedOptions,
    mailboxes,
};

/// What the caller of a [`World`] may choose.
#[derive(Clone, Copy, Debug)]
pub struct WorldOptions {
    /// Shards, at least 1; clients are dealt out to them in turn.
    pub shards: u16,
    /// Memory of all shards together, in bytes.
    pub memory_bytes: u64,
    /// Whether a full server evicts items; otherwise it refuses new ones.
    pub evict: bool,
    /// Connections of all shards together.
    pub connections_max: u32,
    /// Largest item, in bytes.
    pub item_bytes_max: u64,
    /// Unix time at which the server starts, in seconds.
    pub start_unix_s: i64,
    /// What the process is said to have used, for `stats`.
    pub usage: fn() -> Usage,
    /// What a slow client is allowed.
    pub limits: ClientLimits,
    /// Is told of each client that the server closes for a limit.
    pub tell_closed: Option<fn(&ClosedClient)>,
}

impl Default for WorldOptions {
    /// One shard with 64 MiB that evicts, and memcached's largest item.
    fn default() -> Self {
        Self {
            shards: 1,
            memory_bytes: 64 << 20,
            evict: true,
            connections_max: 200,
            item_bytes_max: 1 << 20,
            start_unix_s: 1_800_000_000,
            usage: Usage::default,
            limits: ClientLimits::default(),
            tell_closed: None,
        }
    }
}

/// The world's clock as one shard last looked at it: shards of one process read it at different
/// moments.
#[derive(Debug)]
pub struct ShardClock {
    clock: ManualClock,
    lag_ns: Rc<Cell<u64>>,
}

impl Clock for ShardClock {
    fn now_ns(&self) -> u64 {
        self.clock.now_ns().saturating_sub(self.lag_ns.get())
    }

    fn unix_s(&self) -> i64 {
        self.clock.unix_s()
    }
}

/// A server in memory and the network that its clients are on.
///
/// `I` is the door of each shard: [`Memory`], or something around it.
pub struct World<I: Io = Memory> {
    net: MemoryNet,
    listener: ListenerId,
    /// The shards, by number.
    pub shards: Vec<Shard<I, ShardClock, Cache>>,
    lags_ns: Vec<Rc<Cell<u64>>>,
    /// The clock of all shards; it moves when the caller moves it.
    pub clock: ManualClock,
    /// What the shards share: counters, memory budget, options.
    pub shared: Arc<Shared>,
    /// The memory that shards take segments and blocks from.
    pub pool: Arc<Pool>,
}

/// Turns without anything to do after which a world is taken to be at rest.
const QUIET_TURNS: u32 = 4;
/// Rounds in which a world comes to rest (I3): a long script of the fuzzer takes some thousands.
const ROUNDS_MAX: u32 = 200_000;
/// A shard that may sleep longer waits only for its door and its mail, in nanoseconds.
const NAP_NS_MAX: u64 = 1_000_000;

impl World {
    /// A server with nothing in it.
    ///
    /// Cost: reserves `memory_bytes` of address space.
    ///
    /// # Panics
    /// Where that address space is not to be had.
    pub fn new(options: WorldOptions) -> Self {
        Self::behind(options, |door| door)
    }

    /// One tick of each shard that has something to do; whether any had (I2).
    pub fn round(&mut self) -> bool {
        let mut any = false;
        for shard in &mut self.shards {
            let wait = shard.prepare_wait();
            let waits = match wait {
                Wait::Now => false,
                Wait::AtMostNs(ns) => ns > NAP_NS_MAX,
                Wait::Forever => true,
            };
            if !waits || shard.io_mut().stir() {
                shard.complete_tick(wait).expect("memory never fails");
                any = true;
            }
        }
        any
    }

    /// Rounds until all is at rest (I2).
    ///
    /// # Panics
    /// Where a server does not come to rest (I3).
    pub fn settle_at_rest(&mut self) {
        let rests = (0..ROUNDS_MAX).any(|_| !self.round());
        assert!(rests, "I3: the server does not come to rest");
    }
}

impl<I: Io> World<I> {
    /// A server whose shards meet the network through what `door` makes of each endpoint.
    ///
    /// # Panics
    /// As [`World::new`].
    pub fn behind(options: WorldOptions, door: impl Fn(Memory) -> I) -> Self {
        let budget = Arc::new(Budget::new(options.memory_bytes));
        let pool_options = PoolOptions {
            shards: options.shards,
            reserve_bytes: options.memory_bytes,
            huge: false,
        };
        let pool = Pool::new(Arc::clone(&budget), pool_options).expect("address space");
        let shared = Arc::new(Shared::new(
            SharedOptions {
                shards: options.shards,
                connections_max: options.connections_max,
                usage: options.usage,
                limits: options.limits,
                tell_closed: options.tell_closed,
                ..SharedOptions::default()
            },
            budget,
        ));
        let clock = ManualClock::new(options.start_unix_s);
        let net = MemoryNet::new();
        let mut endpoints: Vec<_> = (0..options.shards).map(|_| net.open()).collect();
        let listener = endpoints[0].listen_here();
        let engine = EngineOptions {
            evict: options.evict,
            cas: true,
            item_bytes_max: options.item_bytes_max,
        };
        let hasher = KeyHasher::new(Seeds { hash_keys: [11, 13] }, options.shards);
        let lags_ns: Vec<Rc<Cell<u64>>> = (0..options.shards).map(|_| Rc::default()).collect();
        let shards = (0..options.shards)
            .zip(mailboxes(options.shards))
            .zip(endpoints)
            .map(|((id, mail), endpoint)| {
                let shard = ShardOptions { id, hasher, start: (0, options.start_unix_s) };
                let (shared, pool) = (Arc::clone(&shared), Arc::clone(&pool));
                let budget = Arc::clone(&shared.budget);
                let cache = Cache::new(pool, budget, hasher, engine, (id, options.shards));
                let cache = cache.expect("address space");
                let lag_ns = Rc::clone(&lags_ns[usize::from(id)]);
                let clock = ShardClock { clock: clock.clone(), lag_ns };
                Shard::new(door(endpoint), clock, cache, shard, shared, mail)
            })
            .collect();
        Self { net, listener, shards, lags_ns, clock, shared, pool }
    }

    /// A new client: its side of the connection, which the server accepts in a later tick.
    pub fn connect(&self) -> FarEnd {
        self.net.connect(0, self.listener, Peer::Local)
    }

    /// Has one shard see the time as it was `ns` ago.
    pub fn lag_ns(&self, shard: usize, ns: u64) {
        self.lags_ns[shard].set(ns);
    }

    /// One tick of every shard, in the order of their numbers.
    pub fn turn(&mut self) {
        (0..self.shards.len()).for_each(|shard| self.turn_of(shard));
    }

    /// One tick of one shard, while the others do nothing.
    pub fn turn_of(&mut self, shard: usize) {
        self.shards[shard].tick().expect("memory never fails");
    }

    /// Ticks until nothing that concerns a client has happened for four turns.
    pub fn settle(&mut self) {
        self.settle_by(Self::turn);
    }

    /// As [`Self::settle`], where `turn` does the ticking.
    pub fn settle_by(&mut self, mut turn: impl FnMut(&mut Self)) {
        let mut quiet = 0;
        let mut before = self.work();
        while quiet < QUIET_TURNS {
            turn(self);
            let now = self.work();
            quiet = if now == before { quiet + 1 } else { 0 };
            before = now;
        }
    }

    /// What each shard holds now.
    pub fn holdings(&self) -> impl Iterator<Item = Holdings> {
        self.shards.iter().map(Shard::holdings)
    }

    /// Checks that the pool's books and those of the shards agree.
    ///
    /// # Panics
    /// Where they do not (I4).
    pub fn audit(&self) {
        let books = self.pool.books();
        let sum = |of: fn(&Holdings) -> u64| self.holdings().map(|held| of(&held)).sum::<u64>();
        let blocks = sum(|held| held.blocks) + books.free_blocks;
        let owned = sum(|held| held.segments) + books.idle_segments;
        let all = owned * books.blocks_per_segment + blocks;
        assert_eq!(all, books.charged_segments * books.blocks_per_segment, "I4: {books:?}");
    }

    /// Requests that shards have sent to others so far.
    pub fn hops(&self) -> u64 {
        self.sum(|counters| &counters.hops)
    }

    /// What all shards together have counted so far, by the counter that `counter` picks.
    pub fn sum(&self, counter: impl Fn(&Counters) -> &Counter) -> u64 {
        self.shared.counters.iter().map(|counters| counter(counters).value()).sum()
    }

    fn work(&self) -> u64 {
        let counters = self.shared.counters.iter();
        counters
            .map(|counters| {
                counters.bytes_read.value()
                    + counters.bytes_written.value()
                    + counters.requests.value()
                    + counters.listed_items.value()
                    + counters.connections_opened.value()
                    + counters.busy_ticks.value()
            })
            .sum()
    }

    /// Sends `input` on `client` and returns all that comes back.
    pub fn ask(&mut self, client: &FarEnd, input: &[u8]) -> Vec<u8> {
        client.write(input);
        self.settle();
        client.read()
    }
}

/// Every how manieth of many like cases a test tries: 1, or `KACHEL_STRIDE` of the environment,
/// where a sanitizer makes each case several times as slow.
///
/// # Panics
/// Where `KACHEL_STRIDE` is not a number from 1 to 100.
pub fn stride() -> usize {
    let stride = std::env::var("KACHEL_STRIDE").ok();
    let stride = stride.map_or(1, |stride| stride.parse().expect("KACHEL_STRIDE is a number"));
    assert!((1..=100).contains(&stride), "KACHEL_STRIDE is from 1 to 100");
    stride
}

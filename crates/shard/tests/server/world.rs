//! A whole server in memory, on one thread: what the tests of this crate drive.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use kachel_host::{Budget, Usage};
use kachel_io::{Clock, ListenerId, ManualClock, Peer};
use kachel_io::{FarEnd, Io, Memory, MemoryNet};
use kachel_net::ClientLimits;
use kachel_shard::{
    ClosedClient, Counter, Counters, EngineOptions, Pool, PoolOptions, Seeds, Shard, ShardOptions,
    Shared, SharedOptions, mailboxes,
};

/// What a test may choose.
#[derive(Clone, Copy)]
pub(crate) struct WorldOptions {
    pub(crate) shards: u16,
    pub(crate) memory_bytes: u64,
    pub(crate) evict: bool,
    pub(crate) connections_max: u32,
    pub(crate) item_bytes_max: u64,
    pub(crate) start_unix_s: i64,
    pub(crate) usage: fn() -> Usage,
    pub(crate) limits: ClientLimits,
    pub(crate) tell_closed: Option<fn(&ClosedClient)>,
}

impl Default for WorldOptions {
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
pub(crate) struct ShardClock {
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

/// A server and the network that its clients are on.
pub(crate) struct World<I: Io = Memory> {
    net: MemoryNet,
    listener: ListenerId,
    pub(crate) shards: Vec<Shard<I, ShardClock>>,
    lags_ns: Vec<Rc<Cell<u64>>>,
    pub(crate) clock: ManualClock,
    pub(crate) shared: Arc<Shared>,
    pub(crate) pool: Arc<Pool>,
}

/// Turns without anything to do after which a world is taken to be at rest.
const QUIET_TURNS: u32 = 4;

impl World {
    pub(crate) fn new(options: WorldOptions) -> Self {
        Self::behind(options, |door| door)
    }
}

impl<I: Io> World<I> {
    /// A server whose shards meet the network through what `door` makes of each endpoint.
    pub(crate) fn behind(options: WorldOptions, door: impl Fn(Memory) -> I) -> Self {
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
        let lags_ns: Vec<Rc<Cell<u64>>> = (0..options.shards).map(|_| Rc::default()).collect();
        let shards = (0..options.shards)
            .zip(mailboxes(options.shards))
            .zip(endpoints)
            .map(|((id, mail), endpoint)| {
                let shard = ShardOptions {
                    id,
                    engine,
                    seeds: Seeds { hash_keys: [11, 13] },
                    start: (0, options.start_unix_s),
                };
                let (shared, pool) = (Arc::clone(&shared), Arc::clone(&pool));
                let lag_ns = Rc::clone(&lags_ns[usize::from(id)]);
                let clock = ShardClock { clock: clock.clone(), lag_ns };
                Shard::new(door(endpoint), clock, shard, shared, pool, mail).expect("a shard")
            })
            .collect();
        Self { net, listener, shards, lags_ns, clock, shared, pool }
    }

    pub(crate) fn connect(&self) -> FarEnd {
        self.net.connect(0, self.listener, Peer::Local)
    }

    /// Has one shard see the time as it was `ns` ago.
    pub(crate) fn lag_ns(&self, shard: usize, ns: u64) {
        self.lags_ns[shard].set(ns);
    }

    /// One tick of every shard.
    pub(crate) fn turn(&mut self) {
        (0..self.shards.len()).for_each(|shard| self.turn_of(shard));
    }

    /// One tick of one shard, while the others do nothing.
    pub(crate) fn turn_of(&mut self, shard: usize) {
        self.shards[shard].tick().expect("memory never fails");
    }

    /// Ticks until nothing that concerns a client has happened for a while.
    pub(crate) fn settle(&mut self) {
        self.settle_by(Self::turn);
    }

    /// The same, where `turn` does the ticking.
    pub(crate) fn settle_by(&mut self, mut turn: impl FnMut(&mut Self)) {
        let mut quiet = 0;
        let mut before = self.work();
        while quiet < QUIET_TURNS {
            turn(self);
            let now = self.work();
            quiet = if now == before { quiet + 1 } else { 0 };
            before = now;
        }
    }

    /// Requests that shards have sent to others so far.
    pub(crate) fn hops(&self) -> u64 {
        self.sum(|counters| &counters.hops)
    }

    /// What all shards have counted so far.
    pub(crate) fn sum(&self, counter: impl Fn(&Counters) -> &Counter) -> u64 {
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
    pub(crate) fn ask(&mut self, client: &FarEnd, input: &[u8]) -> Vec<u8> {
        client.write(input);
        self.settle();
        client.read()
    }
}

/// Every how manieth of many like cases is tried: 1, but where a sanitizer makes each several times
/// as slow.
pub(crate) fn stride() -> usize {
    let stride = std::env::var("KACHEL_STRIDE").ok();
    let stride = stride.map_or(1, |stride| stride.parse().expect("KACHEL_STRIDE is a number"));
    assert!((1..=100).contains(&stride));
    stride
}

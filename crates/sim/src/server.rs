//! The server of a run: its shards on the doors in memory, awake or asleep on virtual time.
//!
//! Upstream:   `run` gives a shard its core, and asks after whatever happened who wakes.
//! Downstream: `kachel_shard`, as the process has it, but for threads and kernel.
//!
//! ```text
//!            prepare_wait: may not wait, or the door stirs
//!          +-----------------------------------------+
//!          v                                         |
//!   Ready (Run laid in) ---- complete_tick, prepare_wait -------+
//!          ^                                         |
//!          |  the door stirs, or overslept           v  may wait, and nothing stirs
//!          +-------------------------------------- Asleep
//! ```
//!
//! Invariants:
//! - I1  A shard sleeps as long as its poll would block: nobody else looks after it meanwhile.
//! - I2  A shard that slept its longest sleep finds neither mail nor a request that it could have
//!   served before.

use std::sync::Arc;

use kachel_cache::{Cache, Pool, PoolOptions};
use kachel_engine::{EngineOptions, KeyHasher, Seeds};
use kachel_host::Budget;
use kachel_io::{FarEnd, ListenerId, ManualClock, Memory, MemoryNet, Peer, Wait};
use kachel_shard::{Shard, ShardOptions, Shared, SharedOptions, mailboxes};

use crate::delaying::Delaying;
use crate::dice::Dice;
use crate::options::{Fault, Options};
use crate::queue::{Event, Queue};
use crate::refused::ITEM_BYTES_MAX;

/// The Unix time at which every run begins.
pub(crate) const START_UNIX_S: i64 = 1_800_000_000;
/// Sleeps up to this are looks at a full mailbox, not rest.
const NAP_NS_MAX: u64 = 1_000_000;

/// Whether a shard's thread runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Its `Run` is laid in.
    Ready(Wait),
    /// Nothing is, but the end of its sleep.
    Asleep { wait: Wait, nap: u64 },
}

/// A shard of the simulation.
pub(crate) type SimShard = Shard<Memory, ManualClock, Delaying<Cache>>;

struct Room {
    shard: SimShard,
    state: State,
    /// Whether it runs because it slept as long as it wanted, and that was long.
    overslept: bool,
    naps: u64,
    /// What a tick of it takes.
    tick_ns: u64,
}

/// The whole server.
pub(crate) struct Server {
    net: MemoryNet,
    listener: ListenerId,
    rooms: Vec<Room>,
    pub(crate) clock: ManualClock,
    pub(crate) shared: Arc<Shared>,
    pub(crate) pool: Arc<Pool>,
    /// What is spent from the beginning, indexes and segments apart: it is never given back.
    pub(crate) fixed_bytes: u64,
    dice: Dice,
    skewed: bool,
    /// Whether engines delay answers.
    delays: bool,
    /// Times that a shard slept because a mailbox was full.
    pub(crate) full_mailboxes: u64,
    /// Times that a shard slept until something happened.
    pub(crate) sleeps: u64,
    /// Connections seen at a shard that accepts none.
    pub(crate) handed_over: u64,
}

impl Server {
    /// A server with nothing in it; every shard's first tick is laid in.
    pub(crate) fn new(options: &Options, queue: &mut Queue) -> Self {
        let mut dice = Dice::new(options.seed, "server");
        let budget = Arc::new(Budget::new(options.memory_bytes));
        let pool_options = PoolOptions {
            shards: options.shards,
            reserve_bytes: options.memory_bytes,
            huge: false,
        };
        let pool = Pool::new(Arc::clone(&budget), pool_options).expect("address space");
        let shared = SharedOptions { shards: options.shards, ..SharedOptions::default() };
        let shared = Arc::new(Shared::new(shared, budget));
        let clock = ManualClock::new(START_UNIX_S);
        let net = MemoryNet::new();
        let (evict, item_bytes_max) = (options.evict, ITEM_BYTES_MAX);
        let engine = EngineOptions { evict, cas: true, item_bytes_max };
        let seeds = Seeds { hash_keys: [dice.bits(), dice.bits()] };
        let hasher = KeyHasher::new(seeds, options.shards);
        let mut rooms: Vec<_> = (0..options.shards)
            .zip(mailboxes(options.shards))
            .map(|(id, mail)| {
                let shard = ShardOptions { id, hasher, start: (0, START_UNIX_S) };
                let (shared, pool) = (Arc::clone(&shared), Arc::clone(&pool));
                let budget = Arc::clone(&shared.budget);
                let cache = Cache::new(pool, budget, hasher, engine, (id, options.shards));
                let late = Dice::new(options.seed, &format!("late {id}"));
                let cache = cache.expect("address space");
                let engine = Delaying::new(cache, options.delay_permille(), late);
                Room {
                    shard: Shard::new(net.open(), clock.clone(), engine, shard, shared, mail),
                    state: State::Ready(Wait::Now),
                    overslept: false,
                    naps: 0,
                    tick_ns: dice.between(2_000, 30_000),
                }
            })
            .collect();
        let wakers: Vec<_> = rooms.iter().map(|room| room.shard.waker()).collect();
        for room in &mut rooms {
            for (peer, waker) in (0..).zip(&wakers) {
                room.shard.set_waker(peer, waker.clone());
            }
        }
        let listener = rooms[0].shard.io_mut().listen_here();
        for index in 0..rooms.len() {
            queue.lay(dice.below(1_000), Event::Run(index));
        }
        let skewed = options.faults.has(Fault::Skew);
        let (full_mailboxes, sleeps, handed_over) = (0, 0, 0);
        let index_bytes: u64 = rooms.iter().map(|room| room.shard.holdings().index_bytes).sum();
        let books = pool.books();
        let segment_bytes = books.charged_segments * books.charge_bytes;
        let fixed_bytes = shared.budget.spent_bytes() - index_bytes - segment_bytes;
        Self {
            fixed_bytes,
            net,
            listener,
            rooms,
            clock,
            shared,
            pool,
            dice,
            skewed,
            delays: options.faults.has(Fault::Late),
            full_mailboxes,
            sleeps,
            handed_over,
        }
    }

    /// A new connection, to be accepted by the first shard.
    pub(crate) fn connect(&self) -> FarEnd {
        self.net.connect(0, self.listener, Peer::Local)
    }

    /// Shards.
    pub(crate) fn shards(&self) -> impl Iterator<Item = &SimShard> {
        self.rooms.iter().map(|room| &room.shard)
    }

    /// Lets shards tick evenly from now on.
    pub(crate) fn calm(&mut self) {
        self.skewed = false;
    }

    /// A shard's thread has its core: one tick. Returns how many connections it closed in it for
    /// what they held. Errors: I2 does not hold.
    pub(crate) fn run(
        &mut self,
        index: usize,
        now_ns: u64,
        queue: &mut Queue,
    ) -> Result<u64, String> {
        let room = &mut self.rooms[index];
        let State::Ready(wait) = room.state else { unreachable!("only who is ready runs") };
        let counters = &self.shared.counters[index];
        let busy = || counters.busy_ticks.value();
        let (before, closes_before) = (busy(), room.shard.pinned_closes());
        let overslept = std::mem::take(&mut room.overslept) && !room.shard.io_mut().stir();
        room.shard.complete_tick(wait).expect("memory never fails");
        if overslept && busy() != before {
            return Err(format!("shard {index} slept while it had something to do"));
        }
        self.handed_over += u64::from(index > 0 && counters.connections.value() > 0);
        let closes = room.shard.pinned_closes() - closes_before;
        let wait = room.shard.prepare_wait();
        let sleep_ns = match wait {
            Wait::Now => None,
            Wait::AtMostNs(ns) => Some(ns),
            Wait::Forever => Some(u64::MAX / 4),
        };
        // A shard whose engine delays naps for that, too.
        let naps = sleep_ns.is_some_and(|ns| ns <= NAP_NS_MAX);
        self.full_mailboxes += u64::from(naps && !self.delays);
        match sleep_ns {
            Some(ns) if !room.shard.io_mut().stir() => {
                room.naps += 1;
                self.sleeps += 1;
                room.state = State::Asleep { wait, nap: room.naps };
                let event = Event::Overslept { shard: index, nap: room.naps };
                queue.lay(now_ns.saturating_add(ns), event);
            }
            _ => {
                room.state = State::Ready(wait);
                queue.lay(now_ns + self.tick_ns(index), Event::Run(index));
            }
        }
        self.wake(now_ns, queue);
        Ok(closes)
    }

    /// How long the next tick takes: now and then the thread is not given its core for a while.
    fn tick_ns(&mut self, index: usize) -> u64 {
        let tick_ns = self.rooms[index].tick_ns;
        let even = self.dice.between(tick_ns / 2, tick_ns * 2);
        let (rare, long) = (self.dice.below(1000), self.dice.between(100_000, 8_000_000));
        if self.skewed && rare < 4 { long } else { even }
    }

    /// The sleep `nap` of a shard is over, if it is that which it sleeps.
    pub(crate) fn overslept(&mut self, index: usize, nap: u64, now_ns: u64, queue: &mut Queue) {
        let room = &mut self.rooms[index];
        if let State::Asleep { wait, nap: sleeping } = room.state
            && sleeping == nap
        {
            room.overslept = matches!(wait, Wait::AtMostNs(ns) if ns > NAP_NS_MAX);
            room.state = State::Ready(wait);
            queue.lay(now_ns, Event::Run(index));
        }
    }

    /// Wakes the sleepers whose door stirs; to be called whenever something happened (I1).
    pub(crate) fn wake(&mut self, now_ns: u64, queue: &mut Queue) {
        for index in 0..self.rooms.len() {
            let room = &mut self.rooms[index];
            if let State::Asleep { wait, .. } = room.state
                && room.shard.io_mut().stir()
            {
                room.state = State::Ready(wait);
                queue.lay(now_ns + self.tick_ns(index) / 2, Event::Run(index));
            }
        }
    }

    /// Whether every shard sleeps.
    pub(crate) fn is_asleep(&self) -> bool {
        self.rooms.iter().all(|room| matches!(room.state, State::Asleep { .. }))
    }
}

//! A whole server in memory, on one thread: what the tests of this crate drive.

use std::sync::Arc;

use kachel_host::Budget;
use kachel_io::{FarEnd, Memory, MemoryNet};
use kachel_io::{ListenerId, ManualClock, Peer};
use kachel_segment::{Pool, PoolOptions};
use kachel_shard::{EngineOptions, Seeds, Shard, ShardOptions, Shared, SharedOptions, mailboxes};

/// What a test may choose.
#[derive(Clone, Copy)]
pub(crate) struct WorldOptions {
    pub(crate) shards: u16,
    pub(crate) memory_bytes: u64,
    pub(crate) evict: bool,
    pub(crate) connections_max: u32,
}

impl Default for WorldOptions {
    fn default() -> Self {
        Self { shards: 1, memory_bytes: 64 << 20, evict: true, connections_max: 100 }
    }
}

/// A server and the network that its clients are on.
pub(crate) struct World {
    net: MemoryNet,
    listener: ListenerId,
    shards: Vec<Shard<Memory, ManualClock>>,
    pub(crate) clock: ManualClock,
    pub(crate) shared: Arc<Shared>,
}

/// Turns without anything to do after which a world is taken to be at rest.
const QUIET_TURNS: u32 = 4;

impl World {
    pub(crate) fn new(options: WorldOptions) -> Self {
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
                flush_allowed: true,
                dumps_allowed: true,
                shutdown_allowed: false,
                idle_timeout_s: 0,
                pid: 1,
                version: "1.6.45",
                own_version: "0",
                settings: Vec::new(),
            },
            budget,
        ));
        let clock = ManualClock::new(1_800_000_000);
        let net = MemoryNet::new();
        let engine = EngineOptions { evict: options.evict, cas: true, item_bytes_max: 1 << 20 };
        let mut shards: Vec<_> = (0..options.shards)
            .zip(mailboxes(options.shards))
            .map(|(id, mail)| {
                let shard = ShardOptions {
                    id,
                    engine,
                    seeds: Seeds { hash_keys: [11, 13] },
                    start: (0, 1_800_000_000),
                };
                let (shared, pool) = (Arc::clone(&shared), Arc::clone(&pool));
                Shard::new(net.open(), clock.clone(), shard, shared, pool, mail).expect("a shard")
            })
            .collect();
        let listener = shards[0].io_mut().listen_here();
        Self { net, listener, shards, clock, shared }
    }

    pub(crate) fn connect(&self) -> FarEnd {
        self.net.connect(0, self.listener, Peer::Local)
    }

    /// One tick of every shard.
    pub(crate) fn turn(&mut self) {
        for shard in &mut self.shards {
            shard.tick().expect("memory never fails");
        }
    }

    /// Ticks until nothing that concerns a client has happened for a while.
    pub(crate) fn settle(&mut self) {
        let mut quiet = 0;
        let mut before = self.work();
        while quiet < QUIET_TURNS {
            self.turn();
            let now = self.work();
            quiet = if now == before { quiet + 1 } else { 0 };
            before = now;
        }
    }

    fn work(&self) -> u64 {
        let counters = self.shared.counters.iter();
        counters
            .map(|counters| {
                counters.bytes_read.value()
                    + counters.bytes_written.value()
                    + counters.requests.value()
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

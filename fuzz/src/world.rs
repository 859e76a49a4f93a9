//! A whole server in memory, made new for each script, that works only while there is work.
//!
//! Upstream:   `connection` connects clients, plays scripts and looks at what is left.
//! Downstream: `kachel_shard` by the in-memory door.
//!
//! Invariants:
//! - I1  At rest no shard would do anything before a client or the clock moves: none may not wait,
//!   and no door has something to report. So nothing is waited for by counting idle turns.
//! - I2  A server comes to rest within `ROUNDS_MAX` rounds, or that is a finding.
//! - I3  Once no client is there, every segment and block of the pool is some shard's or free.

use std::sync::Arc;

use kachel_host::Budget;
use kachel_io::{FarEnd, ListenerId, ManualClock, Memory, MemoryNet, Peer, Wait};
use kachel_shard::{
    EngineOptions, Holdings, Pool, PoolOptions, Seeds, Shard, ShardOptions, Shared, SharedOptions,
    mailboxes,
};

/// Unix time at which a server begins.
pub(crate) const START_UNIX_S: i64 = 1_800_000_000;
/// Memory of a server: far more than a script can fill, and little to set up.
const MEMORY_BYTES: u64 = 8 << 20;
/// Rounds in which any script is served (I2): a long one takes some thousands.
const ROUNDS_MAX: u32 = 200_000;
/// Who may sleep longer waits for nothing but its door and its mail.
const NAP_NS_MAX: u64 = 1_000_000;

/// A server and the network that its clients are on.
pub(crate) struct World {
    net: MemoryNet,
    listener: ListenerId,
    shards: Vec<Shard<Memory, ManualClock>>,
    pool: Arc<Pool>,
    pub(crate) clock: ManualClock,
}

impl World {
    /// A server of so many shards, with nothing in it.
    pub(crate) fn new(shards: u16, item_bytes_max: u64) -> Self {
        let budget = Arc::new(Budget::new(MEMORY_BYTES));
        let pool_options = PoolOptions { shards, reserve_bytes: MEMORY_BYTES, huge: false };
        let pool = Pool::new(Arc::clone(&budget), pool_options).expect("address space");
        let shared = Arc::new(Shared::new(
            SharedOptions { shards, connections_max: 200, ..SharedOptions::default() },
            budget,
        ));
        let clock = ManualClock::new(START_UNIX_S);
        let net = MemoryNet::new();
        let engine = EngineOptions { evict: true, cas: true, item_bytes_max };
        let mut shards: Vec<_> = (0..shards)
            .zip(mailboxes(shards))
            .map(|(id, mail)| {
                let seeds = Seeds { hash_keys: [11, 13] };
                let shard = ShardOptions { id, engine, seeds, start: (0, START_UNIX_S) };
                let (shared, pool) = (Arc::clone(&shared), Arc::clone(&pool));
                Shard::new(net.open(), clock.clone(), shard, shared, pool, mail).expect("a shard")
            })
            .collect();
        let listener = shards[0].io_mut().listen_here();
        Self { net, listener, shards, pool, clock }
    }

    pub(crate) fn connect(&self) -> FarEnd {
        self.net.connect(0, self.listener, Peer::Local)
    }

    /// One tick of each shard that has something to do; whether any had.
    pub(crate) fn round(&mut self) -> bool {
        let mut any = false;
        for shard in &mut self.shards {
            let wait = shard.lie_down();
            let waits = match wait {
                Wait::Now => false,
                Wait::AtMostNs(ns) => ns > NAP_NS_MAX,
                Wait::Forever => true,
            };
            if !waits || shard.io_mut().stir() {
                shard.get_up(wait).expect("memory never fails");
                any = true;
            }
        }
        any
    }

    /// Rounds until all is at rest (I1).
    pub(crate) fn settle(&mut self) {
        let rests = (0..ROUNDS_MAX).any(|_| !self.round());
        assert!(rests, "I2: the server does not come to rest");
    }

    /// So many seconds pass; every shard sees it.
    pub(crate) fn advance_s(&mut self, seconds: u32) {
        self.clock.advance_s(seconds.into());
        for shard in &mut self.shards {
            shard.tick().expect("memory never fails");
        }
    }

    /// Sends `input` on `client` and returns all that comes back.
    pub(crate) fn ask(&mut self, client: &FarEnd, input: &[u8]) -> Vec<u8> {
        client.write(input);
        self.settle();
        client.read()
    }

    /// What each shard holds now.
    pub(crate) fn holdings(&self) -> impl Iterator<Item = Holdings> {
        self.shards.iter().map(Shard::holdings)
    }

    /// Sees that the pool's books and those of the shards agree (I3).
    pub(crate) fn audit(&self) {
        let books = self.pool.books();
        let sum = |of: fn(&Holdings) -> u64| self.holdings().map(|held| of(&held)).sum::<u64>();
        let blocks = sum(|held| held.blocks) + books.free_blocks;
        let owned = sum(|held| held.segments) + books.idle_segments;
        let all = owned * books.blocks_per_segment + blocks;
        assert_eq!(all, books.charged_segments * books.blocks_per_segment, "I3: {books:?}");
    }
}

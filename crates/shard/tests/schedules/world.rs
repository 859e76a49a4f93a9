//! A server in memory, a thread a shard and a thread a client, under shuttle.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use kachel_cache::{Cache, Pool, PoolOptions};
use kachel_engine::{EngineOptions, KeyHasher, Seeds};
use kachel_host::Budget;
use kachel_io::{Around, Event, FarEnd, Io, ManualClock, Memory, MemoryNet, Peer, Surrounded};
use kachel_io::{Wait, Waker};
use kachel_shard::{Mailboxes, Shard, ShardOptions, Shared, SharedOptions, Turn, mailboxes};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, MaxSteps, Runner, thread};

/// Schedules of each kind, unless `KACHEL_SCHEDULES` says otherwise.
const SCHEDULES: usize = 10_000;
/// Steps after which a schedule is taken never to end: someone sleeps for ever.
const STEPS_MAX: usize = 1_000_000;
/// Priorities that PCT changes on the way.
const PCT_DEPTH: usize = 3;
/// Bytes of a thread's stack; a shard keeps little there.
const STACK_BYTES: usize = 1 << 20;
/// Naps shorter than this end by themselves; longer ones only when there is something to do.
const NAP_NS: u64 = 1_000_000;

/// What one client asks, and must be answered before it asks on.
pub(crate) struct Client {
    pub(crate) script: Vec<(String, String)>,
}

/// What happened in all schedules of a test.
#[derive(Debug)]
pub(crate) struct Happened {
    /// Requests that one shard sent to another.
    pub(crate) hops: u64,
    /// Shards that served a connection which another had accepted.
    pub(crate) adopted: u64,
}

thread_local! {
    // Shuttle's threads take turns on one thread of the machine, so that what no other thread of
    // the machine may have can be passed between them here.
    static DOORS: RefCell<Vec<Option<Memory>>> = const { RefCell::new(Vec::new()) };
    static FAR_ENDS: RefCell<Vec<Option<FarEnd>>> = const { RefCell::new(Vec::new()) };
}

/// Runs `shards` shards and the clients that `clients` makes under many schedules. The clients'
/// connections come in at shard 0.
///
/// Counts what happened in all of them together; some hops must have.
///
/// A failure prints its schedule; `KACHEL_SCHEDULE=` that runs it again, and no other.
pub(crate) fn explore(
    name: &'static str,
    shards: u16,
    clients: impl Fn() -> Vec<Client> + Send + Sync + 'static,
) -> Happened {
    let happened: Arc<[AtomicU64; 2]> = Arc::default();
    let (clients, counts) = (Arc::new(clients), Arc::clone(&happened));
    let run = move || run_once(shards, clients(), &counts);
    let total = || {
        let [hops, adopted] = happened.each_ref().map(|count| count.load(Relaxed));
        Happened { hops, adopted }
    };
    if let Ok(schedule) = std::env::var("KACHEL_SCHEDULE") {
        shuttle::replay(run, &schedule);
        return total();
    }
    let count = match std::env::var("KACHEL_SCHEDULES") {
        Ok(count) => count.parse().expect("a number of schedules"),
        Err(_) => SCHEDULES,
    };
    let seed = match std::env::var("SHUTTLE_RANDOM_SEED") {
        Ok(seed) => seed.parse().expect("a seed"),
        Err(_) => 1,
    };
    println!("schedules {name}: {count} at random and {count} by PCT, seed {seed}");
    runs(RandomScheduler::new_from_seed(seed, count), run.clone());
    runs(PctScheduler::new_from_seed(seed, PCT_DEPTH, count), run);
    let total = total();
    println!("schedules {name}: {total:?}");
    assert!(total.hops > 0, "nothing crossed between shards");
    total
}

fn runs(scheduler: impl Scheduler + 'static, run: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    config.stack_size = STACK_BYTES;
    config.max_steps = MaxSteps::FailAfter(STEPS_MAX);
    config.silence_warnings = true; // Of orders that it does not model; loom does.
    Runner::new(scheduler, config).run(run);
}

fn run_once(shards: u16, clients: Vec<Client>, happened: &[AtomicU64; 2]) {
    let budget = Arc::new(Budget::new(4 << 20));
    let pool_options = PoolOptions { shards, reserve_bytes: 0, huge: false };
    let pool = Pool::new(Arc::clone(&budget), pool_options).expect("address space");
    let shared =
        Arc::new(Shared::new(SharedOptions { shards, ..SharedOptions::default() }, budget));
    let net = MemoryNet::new();
    let mut doors: Vec<_> = (0..shards).map(|_| net.open()).collect();
    let listener = doors[0].listen_here();
    let far_ends = clients.iter().map(|_| Some(net.connect(0, listener, Peer::Local))).collect();
    let wakers: Vec<Waker> = doors.iter().map(Io::waker).collect();
    DOORS.set(doors.into_iter().map(Some).collect());
    FAR_ENDS.set(far_ends);

    let talking = Arc::new(AtomicUsize::new(clients.len()));
    let mut threads = Vec::new();
    for (id, mail) in (0..shards).zip(mailboxes(shards)) {
        let (shared, pool, wakers) = (Arc::clone(&shared), Arc::clone(&pool), wakers.clone());
        threads.push(thread::spawn(move || {
            let mut shard = shard(id, shared, pool, mail);
            for (peer, waker) in (0..shards).zip(wakers) {
                shard.set_waker(peer, waker);
            }
            while shard.tick().expect("memory never fails") == Turn::Again {}
        }));
    }
    for (number, client) in clients.into_iter().enumerate() {
        let (shared, talking) = (Arc::clone(&shared), Arc::clone(&talking));
        threads.push(thread::spawn(move || {
            let far = FAR_ENDS.with_borrow_mut(|far_ends| far_ends[number].take().expect("once"));
            converse(&far, client);
            if talking.fetch_sub(1, Relaxed) == 1 {
                shared.stop();
            }
        }));
    }
    for thread in threads {
        thread.join().expect("its assertions hold");
    }
    for (id, counters) in shared.counters.iter().enumerate() {
        happened[0].fetch_add(counters.hops.value(), Relaxed);
        happened[1].fetch_add(u64::from(id > 0 && counters.bytes_read.value() > 0), Relaxed);
    }
}

fn shard(
    id: u16,
    shared: Arc<Shared>,
    pool: Arc<Pool>,
    mail: Mailboxes<Cache>,
) -> Shard<Surrounded<Sleeper>, ManualClock, Cache> {
    let memory = DOORS.with_borrow_mut(|doors| doors[usize::from(id)].take());
    let sleeper = Sleeper { shared: Arc::clone(&shared) };
    let door = Surrounded::new(memory.expect("one a shard"), sleeper);
    let engine = EngineOptions { evict: true, cas: true, item_bytes_max: 1 << 20 };
    let shards = shared.options.shards;
    let hasher = KeyHasher::new(Seeds { hash_keys: [11, 13] }, shards);
    let budget = Arc::clone(&shared.budget);
    let cache = Cache::new(pool, budget, hasher, engine, (id, shards)).expect("address space");
    let options = ShardOptions { id, hasher, start: (0, 1_800_000_000) };
    let clock = ManualClock::new(1_800_000_000);
    Shard::new(door, clock, cache, options, shared, mail)
}

/// Asks, and waits for each answer, byte by byte as it should be.
fn converse(far: &FarEnd, client: Client) {
    for (ask, answer) in client.script {
        far.write(ask.as_bytes());
        let mut answered = Vec::new();
        while answered.len() < answer.len() {
            thread::yield_now();
            answered.extend(far.read());
        }
        assert!(answered == answer.as_bytes(), "{:?}", String::from_utf8_lossy(&answered));
    }
}

/// A door that sleeps: its far side moves, or its waker is rung, or it sleeps on.
struct Sleeper {
    shared: Arc<Shared>,
}

impl Around for Sleeper {
    fn poll(&self, door: &mut Memory, wait: Wait, events: &mut Vec<Event>) -> io::Result<()> {
        let sleeps = match wait {
            Wait::Now => false,
            Wait::AtMostNs(ns) => ns > NAP_NS,
            Wait::Forever => true,
        };
        loop {
            door.poll(Wait::Now, events)?;
            if !events.is_empty() {
                return Ok(());
            }
            thread::yield_now();
            if !sleeps || self.shared.is_stopping() {
                return Ok(());
            }
        }
    }
}

//! A server in memory, a thread per shard and a thread per client, under shuttle.
//!
//! Upstream:   the tests of `main` give the clients.
//! Downstream: the world of `testkit`, whose shards are dealt out to threads.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use kachel_io::{Around, Event, FarEnd, Io, Wait};
use kachel_shard::{AfterTick, Shared};
use kachel_testkit::{World, WorldOptions, WorldShard, is_rest, setting};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, MaxSteps, Runner, thread};

/// Schedules of each kind, unless `KACHEL_SCHEDULES` says otherwise.
const SCHEDULES: u64 = 4_000;
/// A schedule with more steps than this never ends: some thread sleeps for ever.
const STEPS_MAX: usize = 1_000_000;
/// Priority changes of PCT in a schedule.
const PCT_DEPTH: usize = 3;
/// Bytes of a thread's stack; a shard keeps little there.
const STACK_BYTES: usize = 1 << 20;

/// One client: its requests, each with the reply that it awaits before it sends the next.
pub(crate) struct Client {
    pub(crate) script: Vec<(String, String)>,
}

/// Events in all schedules of a test.
#[derive(Debug)]
pub(crate) struct Happened {
    /// Requests that one shard sent to another.
    pub(crate) parked: u64,
    /// Shards that served a connection which another had accepted.
    pub(crate) adopted: u64,
    /// Connections that waited and were served again.
    pub(crate) resumptions: u64,
    /// Connections that moved from one shard to another while they were served.
    pub(crate) moved: u64,
}

/// The time that passes with each tick, if cores follow the load. All of it is processor time.
const TICK_NS: u64 = 1_000_000;

thread_local! {
    // Shuttle's threads take turns on one thread of the machine, so values that are not `Send` can
    // be passed between them here.
    static SHARDS: RefCell<Vec<Option<WorldShard<Sleeper>>>> = const { RefCell::new(Vec::new()) };
    static WORLD: RefCell<Option<World<Sleeper>>> = const { RefCell::new(None) };
    static FAR_ENDS: RefCell<Vec<Option<FarEnd>>> = const { RefCell::new(Vec::new()) };
}

/// Runs a server and the clients that `clients` makes under many schedules. The clients'
/// connections come in at shard 0.
///
/// Counts what happened in all of them together; some parked must have.
///
/// A failure prints its schedule; `KACHEL_SCHEDULE=` that runs it again, and no other.
pub(crate) fn explore(
    name: &'static str,
    options: WorldOptions,
    clients: impl Fn() -> Vec<Client> + Send + Sync + 'static,
) -> Happened {
    let happened: Arc<[AtomicU64; 4]> = Arc::default();
    let (clients, counts) = (Arc::new(clients), Arc::clone(&happened));
    let run = move || run_once(options, clients(), &counts);
    let total = || {
        let counts = happened.each_ref().map(|count| count.load(Relaxed));
        let [parked, adopted, resumptions, moved] = counts;
        Happened { parked, adopted, resumptions, moved }
    };
    if let Ok(schedule) = std::env::var("KACHEL_SCHEDULE") {
        shuttle::replay(run, &schedule);
        return total();
    }
    let count = setting("KACHEL_SCHEDULES", SCHEDULES) as usize;
    let seed = setting("SHUTTLE_RANDOM_SEED", 1);
    println!("schedules {name}: {count} at random and {count} by PCT, seed {seed}");
    runs(RandomScheduler::new_from_seed(seed, count), run.clone());
    runs(PctScheduler::new_from_seed(seed, PCT_DEPTH, count), run);
    let total = total();
    println!("schedules {name}: {total:?}");
    assert!(total.parked > 0, "nothing crossed between shards");
    total
}

fn runs(scheduler: impl Scheduler + 'static, run: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    config.stack_size = STACK_BYTES;
    config.max_steps = MaxSteps::FailAfter(STEPS_MAX);
    config.silence_warnings = true; // Of orders that it does not model; loom does.
    Runner::new(scheduler, config).run(run);
}

/// A small server of `shards` shards, which read each other's items if `crew`.
pub(crate) fn servers(shards: u16, crew: bool) -> WorldOptions {
    WorldOptions { shards, crew, memory_bytes: 4 << 20, ..WorldOptions::default() }
}

fn run_once(options: WorldOptions, clients: Vec<Client>, happened: &[AtomicU64; 4]) {
    let mut world = World::surrounded(options, |shared| Sleeper { shared: Arc::clone(shared) });
    FAR_ENDS.set(clients.iter().map(|_| Some(world.connect())).collect());
    SHARDS.set(world.shards.drain(..).map(Some).collect());
    let shared = Arc::clone(&world.shared);
    WORLD.set(Some(world));

    let talking = Arc::new(AtomicUsize::new(clients.len()));
    let mut threads = Vec::new();
    for id in 0..usize::from(options.shards) {
        threads.push(thread::spawn(move || {
            let mut shard = SHARDS.with_borrow_mut(|shards| shards[id].take().expect("once"));
            while shard.tick().expect("memory never fails") == AfterTick::Again {
                if options.plain.cores_max.is_some() {
                    let world = |world: &Option<World<Sleeper>>| {
                        let world = world.as_ref().expect("it is there until the end");
                        world.clock.advance_ns(TICK_NS);
                        world.use_ns(id, TICK_NS);
                    };
                    WORLD.with_borrow(world);
                }
            }
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
    for (id, counters) in shared.totals.cores.iter().enumerate() {
        happened[0].fetch_add(counters.parked.value(), Relaxed);
        happened[1].fetch_add(u64::from(id > 0 && counters.bytes_read.value() > 0), Relaxed);
        happened[2].fetch_add(counters.resumptions.value(), Relaxed);
        happened[3].fetch_add(counters.connections_moved.value(), Relaxed);
    }
    WORLD.set(None);
}

/// Sends each request, and waits for exactly its reply.
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

/// Makes a poll block: until its endpoint has an event, or for one step if the shard only naps.
struct Sleeper {
    shared: Arc<Shared>,
}

impl Around for Sleeper {
    fn poll(&self, door: &mut impl Io, wait: Wait, events: &mut Vec<Event>) -> io::Result<()> {
        let sleeps = is_rest(wait);
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

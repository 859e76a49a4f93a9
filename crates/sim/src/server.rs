//! The server of a run: shards over the memory I/O backend, each awake or asleep on virtual time.
//!
//! Upstream:   `run`, which runs the ticks of shards, and wakes sleeping shards after each event.
//! Downstream: `kachel_testkit`, for the shards and their network.
//!
//! ```text
//!              prepare_wait: may not wait, or `stir` is true
//!          +-----------------------------------------------------+
//!          v                                                     |
//!   Ready (Run in the queue) ---- complete_tick, prepare_wait ---+
//!          ^                                                     |
//!          |  `stir` is true, or overslept                       v  may wait, and `stir` is false
//!          +-------------------------------------------------- Asleep
//!
//! Ready ---- complete_tick, which returns `Finished` ----> Over
//! ```
//!
//! Invariants:
//! - I1  A shard sleeps as long as its poll would block. Nothing runs it meanwhile.
//! - I2  A shard whose sleep reached its time limit finds neither mail nor a request that it could
//!   have served earlier.
//! - I3  Ticks do not overlap, so no shard would ever find an engine held. In runs with `crew`
//!   another core, which exists only as `hold`, holds engines for some time.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use kachel_engine::{Common as _, EngineIndex, KeyHasher, LeaseOptions, OpenEngines, Seeds};
use kachel_io::Wait;
use kachel_io::memory::disk::{Disk, DiskCounts};
use kachel_shard::{AfterTick, Engines, Hold, PlainOptions};
use kachel_testkit::{Random, Uncounted, World, WorldOptions, is_rest};

use crate::disk::RunDisk;
use crate::failures::Failures;
use crate::options::{Fault, Options};
use crate::queue::{Event, Queue};
use crate::subject::Subject;

/// The Unix time at which every run begins.
pub(crate) const START_UNIX_S: i64 = 1_800_000_000;

/// Leases as in a server, but so short that they end within a run.
pub(crate) const LEASES: LeaseOptions = LeaseOptions { lease_s: 2, stale_s: 3, stale_percent: 5 };

/// The state of a shard's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Its `Run` event is in the queue.
    Ready(Wait),
    /// Only the end of its sleep is in the queue.
    Asleep { wait: Wait, nap: u64 },
    /// Its shard has finished.
    Over,
}

/// A shard's thread.
struct Thread {
    state: State,
    /// Whether it runs because its sleep reached its time limit while the shard was at rest.
    overslept: bool,
    naps: u64,
    /// The typical virtual time of a tick.
    tick_ns: u64,
    /// When the last tick began.
    ticked_ns: u64,
}

/// A time in which some threads seem to run whenever they tick, and the others never. So the number
/// of awake cores rises and falls in each run, and their work differs, whatever the clients do.
#[derive(Clone, Copy, Debug, Default)]
struct Wave {
    ends_ns: u64,
    /// A bit for each thread that runs.
    busy: u64,
}

/// What a server begins with.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Start {
    /// The virtual time.
    pub(crate) now_ns: u64,
    /// The seconds since [`START_UNIX_S`].
    pub(crate) passed_s: u64,
}

/// The server of a run, or of a part of it.
pub(crate) struct Running<E: Subject>(Option<Server<E>>);

impl<E: Subject> Running<E> {
    pub(crate) fn new(server: Server<E>) -> Self {
        Self(Some(server))
    }

    /// Ends the server, as a killed process ends, and begins another one. Only one of them has the
    /// files open.
    pub(crate) fn replace(&mut self, begin: impl FnOnce() -> Server<E>) {
        self.0 = None;
        self.0 = Some(begin());
    }
}

impl<E: Subject> Deref for Running<E> {
    type Target = Server<E>;

    fn deref(&self) -> &Server<E> {
        self.0.as_ref().expect("`replace` has begun another one")
    }
}

impl<E: Subject> DerefMut for Running<E> {
    fn deref_mut(&mut self) -> &mut Server<E> {
        self.0.as_mut().expect("`replace` has begun another one")
    }
}

/// The whole server.
pub(crate) struct Server<E: Subject> {
    pub(crate) world: World<Uncounted, E>,
    /// The disk of the engines' files, if they have any.
    disk: Option<RunDisk>,
    /// What the disk has failed to do.
    pub(crate) failures: Failures,
    /// The threads of the shards, by shard number.
    threads: Vec<Thread>,
    /// Memory that is used from the start and never given back, without indexes and segments.
    pub(crate) fixed_bytes: u64,
    dice: Random,
    /// A reader of all items beside the shards: while it is awake, nothing that is evicted is
    /// reused.
    beside: Option<kachel_stdx::Reader>,
    skewed: bool,
    wave: Wave,
    /// Until when another core holds each engine (I3). Empty if none ever does.
    held_until_ns: Vec<u64>,
    /// Times that a shard slept.
    pub(crate) sleeps: u64,
    /// Ticks in which a shard that accepts no connections had one.
    pub(crate) handed_over: u64,
}

impl<E: Subject> Server<E> {
    /// Builds an empty server over the engines of `opener`, whose files are on `disk`. Adds every
    /// shard's first tick to the queue.
    pub(crate) fn new(
        options: &Options,
        opener: &impl OpenEngines<Engine = E>,
        disk: Option<RunDisk>,
        queue: &mut Queue,
        Start { now_ns, passed_s }: Start,
    ) -> Self {
        let mut dice = Random::for_purpose(options.seed, "server");
        let mut turns = Random::for_purpose(options.seed, "turns");
        let seeds = Seeds { hash_keys: [dice.bits(), dice.bits()] };
        let world_options = WorldOptions {
            shards: options.shards,
            engines: Some(options.engines),
            memory_bytes: options.memory_bytes,
            evict: options.evict,
            crew: options.crew,
            plain: PlainOptions {
                cores_max: options.gathering.then_some(options.shards),
                connections_max: options.connections_max(),
                shutdown_allowed: true,
                requests_per_tick: turns.chance(300).then(|| turns.between(1, 20) as u32),
                ..PlainOptions::default()
            },
            item_bytes_max: options.item_bytes_max,
            cas: options.cas,
            leases: LEASES,
            start_unix_s: START_UNIX_S + passed_s as i64,
            seeds,
            ..WorldOptions::default()
        };
        let mut world = World::over(world_options, |_| Uncounted, opener);
        disk.iter().for_each(|disk| world.use_disk(disk.begin_faults()));
        let engines = world.shared.homes.all();
        let words =
            engines.map(|index| world.engines.inspect(index, |it| Arc::clone(it.durable())));
        let hasher = KeyHasher::new(seeds, options.engines);
        let failures = Failures::new(hasher, words.collect(), options);
        let mut thread = || Thread {
            state: State::Ready(Wait::Now),
            overslept: false,
            naps: 0,
            tick_ns: dice.between(2_000, 30_000),
            ticked_ns: now_ns,
        };
        let engines = usize::from(options.engines);
        let threads: Vec<_> = world.shards.iter().map(|_| thread()).collect();
        for index in 0..threads.len() {
            queue.schedule(now_ns + dice.below(1_000), Event::Run(index));
        }
        let common = world.engines.common();
        let beside = options.crew.then(|| common.register_core().expect("a place"));
        let skewed = options.faults.has(Fault::Skew);
        let spent_bytes = world.shared.budget.spent_bytes();
        let fixed_bytes = spent_bytes.checked_sub(E::charged_bytes(&world));
        let fixed_bytes = fixed_bytes.expect("what the engines have is part of what is spent");
        Self {
            world,
            disk,
            failures,
            threads,
            fixed_bytes,
            dice,
            beside,
            skewed,
            wave: Wave::default(),
            held_until_ns: vec![0; if options.crew { engines } else { 0 }],
            sleeps: 0,
            handed_over: 0,
        }
    }

    /// Lets time pass, by the clocks of the server and of its disk.
    pub(crate) fn advance_ns(&self, ns: u64) {
        self.world.clock.advance_ns(ns);
        self.disk.iter().for_each(|disk| disk.advance_ns(ns));
    }

    /// The operations on files so far, and their faults.
    pub(crate) fn disk_counts(&self) -> DiskCounts {
        self.disk.as_ref().map_or_else(DiskCounts::default, RunDisk::counts)
    }

    /// The disk as a power cut leaves it.
    pub(crate) fn disk_after_power_cut(&self, seed: u64) -> RunDisk {
        let disk = self.disk.as_ref().expect("a server with files");
        disk.after_power_cut(seed)
    }

    /// Wakes the shards whose operations on files are due.
    pub(crate) fn file_due(&mut self, now_ns: u64, queue: &mut Queue) {
        let disk = self.disk.as_mut().expect("a server without files has no operations on them");
        // An earlier operation may have been submitted after this one.
        disk.wakes_ns.take_if(|wakes_ns| *wakes_ns <= now_ns);
        self.wake(now_ns, queue);
    }

    /// The disk, if the engines have files.
    pub(crate) fn disk(&self) -> Option<&Disk> {
        self.disk.as_ref().map(RunDisk::disk)
    }

    /// Whether an operation on a file is not done.
    pub(crate) fn has_files_in_flight(&self) -> bool {
        self.disk().is_some_and(|disk| disk.in_flight() > 0)
    }

    /// Lets shards tick evenly, and no operation on files fail, from now on.
    pub(crate) fn calm(&mut self) {
        self.disk.iter_mut().for_each(RunDisk::heal);
        self.skewed = false;
        self.held_until_ns.clear();
        if let Some(mut beside) = self.beside.take()
            && beside.sleep()
        {
            self.world.engines.call_for_room();
        }
    }

    /// Runs one tick of a shard. Returns how many connections the shard closed in it because they
    /// held large values. Errors: I2 does not hold, or an engine has failed without a cause.
    pub(crate) fn run(
        &mut self,
        index: usize,
        now_ns: u64,
        queue: &mut Queue,
    ) -> Result<u64, String> {
        if let Some(beside) = &mut self.beside {
            let is_awaited = match (beside.is_awake(), self.dice.below(64)) {
                (false, 0) => {
                    beside.wake();
                    false
                }
                (true, 0..4) => beside.sleep(),
                (true, 4..8) => beside.round_over(),
                _ => false,
            };
            if is_awaited {
                self.world.engines.call_for_room();
            }
        }
        self.use_processor(index, now_ns);
        let engines = Arc::clone(&self.world.engines);
        let held = self.hold(&engines, now_ns);
        let (thread, shard) = (&mut self.threads[index], &mut self.world.shards[index]);
        let State::Ready(wait) = thread.state else { unreachable!("only a ready thread runs") };
        let counters = &self.world.shared.totals.cores[index];
        let busy = || counters.busy_ticks.value();
        let (before, closes_before) = (busy(), shard.pinned_closes());
        let overslept = std::mem::take(&mut thread.overslept) && !shard.io_mut().stir();
        let after = shard.complete_tick(wait).expect("memory never fails");
        let counts = self.disk.as_ref().map_or_else(DiskCounts::default, RunDisk::counts);
        self.failures.note(now_ns, &counts)?;
        if overslept && busy() != before {
            return Err(format!("shard {index} slept while it had something to do"));
        }
        self.handed_over += u64::from(index > 0 && counters.connections.value() > 0);
        let closes = shard.pinned_closes() - closes_before;
        if after == AfterTick::Finished {
            thread.state = State::Over;
            drop(held);
            self.wake(now_ns, queue);
            return Ok(closes);
        }
        let wait = shard.prepare_wait();
        drop(held);
        let sleep_ns = match wait {
            Wait::Now => None,
            Wait::AtMostNs(ns) => Some(ns),
            Wait::Forever => Some(u64::MAX / 4),
        };
        match sleep_ns {
            Some(ns) if !shard.io_mut().stir() => {
                thread.naps += 1;
                self.sleeps += 1;
                thread.state = State::Asleep { wait, nap: thread.naps };
                let event = Event::Overslept { shard: index, nap: thread.naps };
                queue.schedule(now_ns.saturating_add(ns), event);
            }
            _ => {
                thread.state = State::Ready(wait);
                queue.schedule(now_ns + self.tick_ns(index), Event::Run(index));
            }
        }
        self.wake(now_ns, queue);
        if self.world.shared.take_shutdown().is_some() {
            self.stop(now_ns, queue);
        }
        Ok(closes)
    }

    /// Ends the server, as a signal does.
    pub(crate) fn stop(&mut self, now_ns: u64, queue: &mut Queue) {
        assert!(!self.is_over(), "a server is ended once");
        self.world.shared.stop();
        self.wake_all(now_ns, queue);
    }

    /// Closes the clients that have not taken their replies.
    pub(crate) fn give_up_clients(&mut self, now_ns: u64, queue: &mut Queue) {
        assert!(self.world.shared.is_stopping(), "clients are given time first");
        self.world.shared.give_up_clients();
        self.wake_all(now_ns, queue);
    }

    /// Whether every shard has finished.
    pub(crate) fn is_over(&self) -> bool {
        self.threads.iter().all(|thread| thread.state == State::Over)
    }

    /// Lets a thread have run since its last tick, if the wave is a busy one.
    fn use_processor(&mut self, index: usize, now_ns: u64) {
        if now_ns >= self.wave.ends_ns {
            let ends_ns = now_ns + self.dice.between(5_000_000, 100_000_000);
            let busy = self.dice.bits() | if self.dice.chance(300) { u64::MAX } else { 0 };
            self.wave = Wave { ends_ns, busy: if self.dice.chance(400) { 0 } else { busy } };
        }
        let ticked_ns = std::mem::replace(&mut self.threads[index].ticked_ns, now_ns);
        assert!(ticked_ns <= now_ns, "virtual time does not go back");
        if self.wave.busy >> index & 1 == 1 {
            self.world.use_ns(index, now_ns - ticked_ns);
        }
    }

    /// The engines that another core holds now (I3). Sometimes begins to hold one.
    fn hold<'e>(&mut self, engines: &'e Engines<E>, now_ns: u64) -> Vec<Option<Hold<'e, E>>> {
        let Self { held_until_ns, dice, .. } = self;
        let mut held = Vec::new();
        for (index, until_ns) in (0..).map(EngineIndex).zip(held_until_ns) {
            if *until_ns <= now_ns && dice.chance(20) {
                let longest_ns = if dice.chance(10) { 500_000 } else { 100_000 };
                *until_ns = now_ns + dice.below(longest_ns);
            }
            if *until_ns > now_ns {
                held.push(engines.hold(index));
            }
        }
        assert!(held.iter().all(Option::is_some), "ticks do not overlap");
        held
    }

    /// How long the next tick takes. In a skewed run the thread sometimes gets no core for a while.
    fn tick_ns(&mut self, index: usize) -> u64 {
        let tick_ns = self.threads[index].tick_ns;
        let even = self.dice.between(tick_ns / 2, tick_ns * 2);
        let (rare, long) = (self.dice.below(1000), self.dice.between(100_000, 8_000_000));
        assert!(even > 0, "a shard that never sleeps still lets time pass");
        if self.skewed && rare < 4 { long } else { even }
    }

    /// Ends the sleep `nap` of a shard, unless something has woken the shard already.
    pub(crate) fn overslept(&mut self, index: usize, nap: u64, now_ns: u64, queue: &mut Queue) {
        let thread = &mut self.threads[index];
        assert!(nap <= thread.naps, "a sleep ends after it begins");
        if let State::Asleep { wait, nap: sleeping } = thread.state
            && sleeping == nap
        {
            thread.overslept = is_rest(wait);
            thread.state = State::Ready(wait);
            queue.schedule(now_ns, Event::Run(index));
        }
    }

    /// Wakes each sleeping shard whose next poll has an event. The caller calls this after each
    /// event (I1).
    pub(crate) fn wake(&mut self, now_ns: u64, queue: &mut Queue) {
        self.wake_some(now_ns, queue, false);
    }

    /// Wakes every sleeping shard.
    fn wake_all(&mut self, now_ns: u64, queue: &mut Queue) {
        self.wake_some(now_ns, queue, true);
    }

    fn wake_some(&mut self, now_ns: u64, queue: &mut Queue, all: bool) {
        for index in 0..self.threads.len() {
            let thread = &mut self.threads[index];
            if let State::Asleep { wait, .. } = thread.state
                && (self.world.shards[index].io_mut().stir() || all)
            {
                thread.state = State::Ready(wait);
                queue.schedule(now_ns + self.tick_ns(index) / 2, Event::Run(index));
            }
        }
        if let Some(due_ns) = self.disk.as_mut().and_then(RunDisk::next_wake_ns) {
            queue.schedule(due_ns, Event::FileDue);
        }
    }

    /// Whether every shard sleeps.
    pub(crate) fn is_asleep(&self) -> bool {
        self.threads.iter().all(|thread| matches!(thread.state, State::Asleep { .. }))
    }
}

//! The engines of a process, each behind its lock.
//!
//! Upstream:   `entered`, which takes an engine for a core; `sleep` and the other stages, with what
//!             any core may look at without the lock.
//! Downstream: the engines; `backlog` for the requests that wait within a lock; `calls` and
//!             `mailboxes`, which call cores.
//!
//! Invariants:
//! - E1  A core holds engines for a bounded piece of work: for a batch of requests, and for
//!   `PARKED_PER_HOLD_MAX` parked requests, and as many delayed ones that are ready, of each engine
//!   that it releases. Once a tick, the home core of some engines also executes up to
//!   `PARKED_PER_TICK_MAX` of each kind, in one hold of each engine. Each of the three ends earlier
//!   if its work reaches `HOLD_BYTES_MAX` (`work`, W2). Completed operations on files come on top:
//!   no more than the backends have room for. A core that holds an engine does not poll, send or
//!   wake. The engine itself makes one system call, `madvise`: if it gives a segment back to the
//!   kernel (then the pool is locked, too), if the index shrinks, by at most 2 MiB, and if the
//!   index grows into the next huge page.
//! - E2  A core publishes the statistics of an engine before it hands answers back, and before it
//!   releases the engine. So a change is acknowledged only when `stats` counts it (`send`, I1).
//! - E3  With `erew` only the home core of an engine takes it (`cores::homes`).
//! - E4  The home core of an engine learns of requests that wait with it while no core holds it and
//!   that can be executed: the core that leaves the requests there wakes it. It also learns when
//!   another core releases the engine, if it wants the engine (`Engines::sleep_until_ns`). It
//!   raises its sleeping flag before it looks whether requests are left, or marks the lock; the
//!   other core releases the lock before it looks at the flag. So one of the two sees the other.
//!
//! Source: reads without a lock and writes under one as in Fan and others, "MemC3", NSDI 2013.
//! MemC3 has one lock and takes it for each request. Here each engine has its own lock, and a core
//! takes it for a batch, because the cache misses of a batch overlap. `kachel_stdx::CombiningLock`
//! describes how a request is parked with the holder.

use std::sync::{Arc, Mutex, MutexGuard};

use kachel_engine::{Common as _, DeadFound, DurableWord, Engine, EngineIndex, LastDead, Sequence};
use kachel_io::FILE_OPERATIONS_MAX;
use kachel_net::{CoreIndex, Fence};
use kachel_observe::{ClassNumbers, ClassSums, Totals, sampled_requests};
use kachel_stdx::{CachePadded, CombiningLock, Guard};

use crate::context::Context;
use crate::cores::homes::Homes;
use crate::cores::throttle::NEVER_NS;
use crate::waiting::backlog::Backlog;
use crate::waiting::calls::Calls;
use crate::waiting::mailboxes::Mailboxes;
use crate::waiting::parked::Parked;

/// An engine behind its lock.
pub(super) type Lock<E> = CombiningLock<Kept<E>, Parked<E>>;

/// Operations on files that a core has taken and will submit. Only that core uses them.
type Outgoing<E> = CachePadded<Mutex<Vec<(EngineIndex, <E as Engine>::Submission)>>>;

/// An engine behind its lock, and what calls its home core.
struct Door<E: Engine> {
    lock: Lock<E>,
    calls: Calls,
}

/// The right to change an engine.
pub(super) type EngineGuard<'l, E> = Guard<'l, Kept<E>, Parked<E>>;

/// The engines of a process.
pub struct Engines<E: Engine> {
    /// By the indices of the engines.
    doors: Vec<CachePadded<Door<E>>>,
    /// The readers of all engines, by the indices of the engines. None with `erew`.
    readers: Vec<E::Reader>,
    /// Up to which sequence the changes of each engine are durable, by the indices of the engines.
    durable: Vec<Arc<DurableWord>>,
    /// By the indices of the cores: operations on files of engines that the core has released, with
    /// the indices of the engines, until the core submits them.
    outgoing: Vec<Outgoing<E>>,
    /// The counts of all engines by size class, by the indices of the engines.
    pub(crate) class_sums: ClassSums<E::Reader>,
    mailboxes: Mailboxes<E>,
    homes: Homes,
    common: E::Common,
    /// The last dead items that lookups have removed, by the indices of the engines.
    last_dead: Vec<Arc<LastDead>>,
}

/// The data that the lock of an engine protects.
pub(super) struct Kept<E: Engine> {
    pub(super) engine: E,
    /// The dead items that the engine had found when they were last counted.
    pub(super) found: DeadFound,
    pub(super) backlog: Backlog<E>,
    /// The deadline of the engine, as `calls` has it.
    pub(super) deadline_ns: u64,
    /// The state of the durable word when the engine was last released.
    pub(super) durable: u64,
    /// The next operation on a file, which no backend had room for.
    pub(super) unsubmitted: Option<E::Submission>,
}

impl<E: Engine> Engines<E> {
    /// Puts the engines, in the order of their indices, behind their locks. With `crew` each core
    /// reads and changes the items of all engines, otherwise only those of which it is the home.
    ///
    /// # Panics
    /// If there are not as many engines as have a home.
    pub fn new(engines: Vec<E>, homes: Homes, crew: bool) -> Arc<Self> {
        assert!(engines.len() == usize::from(homes.engines()), "homes, H1");
        let common = engines[0].common();
        let crew = crew && homes.cores() > 1;
        let all: Vec<_> = engines.iter().map(E::reader).collect();
        let readers = if crew { all.clone() } else { Vec::new() };
        let cores = usize::from(homes.cores());
        let mailboxes = Mailboxes::new(cores);
        let last_dead = engines.iter().map(E::last_dead).collect();
        let durable = engines.iter().map(|engine| Arc::clone(engine.durable())).collect();
        let outgoing = (0..cores).map(|_| CachePadded::default()).collect();
        let door = |engine: E| {
            let (found, backlog) = (DeadFound::default(), Backlog::new());
            let (durable, deadline_ns) = (engine.durable().state(), NEVER_NS);
            let kept = Kept { engine, found, backlog, deadline_ns, durable, unsubmitted: None };
            let lock = Lock::new(kept);
            CachePadded::new(Door { lock, calls: Calls::new(cores) })
        };
        let doors = engines.into_iter().map(door).collect();
        Arc::new(Self {
            doors,
            readers,
            durable,
            outgoing,
            class_sums: ClassSums::new(all),
            mailboxes,
            homes,
            common,
            last_dead,
        })
    }

    /// The last dead items that lookups have removed, by the indices of the engines.
    pub(crate) fn last_dead(&self) -> &[Arc<LastDead>] {
        &self.last_dead
    }

    /// What the engines have in common.
    #[inline]
    pub const fn common(&self) -> &E::Common {
        &self.common
    }

    /// The counts of the size classes. Any thread may ask. Cost: some loads for each class, and
    /// core or engine.
    pub fn class_numbers(&self, totals: &Totals) -> Vec<ClassNumbers> {
        let sizes = self.common.size_classes();
        // Class 0 has no items.
        let classes = (0..).zip(sizes.lengths()).skip(1).map(|(number, &bytes_max)| ClassNumbers {
            number,
            bytes_max,
            gone: self.class_sums.of(number),
            requests: sampled_requests(totals, number),
        });
        classes.collect()
    }

    /// The mailboxes of all cores.
    #[inline]
    pub(crate) const fn mailboxes(&self) -> &Mailboxes<E> {
        &self.mailboxes
    }

    /// The readers of all engines, by their indices. None with `erew`.
    #[inline]
    pub(crate) fn readers(&self) -> &[E::Reader] {
        &self.readers
    }

    /// Up to which sequence the changes of an engine are durable.
    #[inline]
    pub(crate) fn durable(&self, engine: EngineIndex) -> &DurableWord {
        &self.durable[engine.number()]
    }

    /// Whether the changes that a reply waits for are durable. Cost: a load.
    pub(crate) fn is_reached(&self, fence: Fence) -> bool {
        self.durable(EngineIndex(fence.engine)).has_reached(Sequence(fence.sequence))
    }

    /// Whether the changes that a reply waits for will never be durable. Cost: two loads.
    pub(crate) fn is_lost(&self, fence: Fence) -> bool {
        self.durable(EngineIndex(fence.engine)).is_lost(Sequence(fence.sequence))
    }

    /// The operations on files that an engine has completed (`calls`, K3). Cost: a load.
    #[inline]
    pub(crate) fn completed(&self, engine: EngineIndex) -> u64 {
        self.calls(engine).completed()
    }

    /// Has this core be woken when more changes of an engine are durable (`fences`, F2), or when
    /// the engine has completed an operation on a file (`calls`, K3).
    pub(crate) fn await_advance(&self, engine: EngineIndex, core: CoreIndex) {
        self.calls(engine).await_advance(core);
    }

    /// The home core of an engine.
    pub(super) fn home_of(&self, index: EngineIndex) -> CoreIndex {
        self.homes.core_of(index)
    }

    /// Whether any core may take any engine (E3).
    #[inline]
    pub(crate) fn are_open_to_all(&self) -> bool {
        !self.readers.is_empty()
    }

    /// Whether this core may take an engine (E3).
    #[inline]
    pub(crate) fn may_take(&self, index: EngineIndex, context: &Context) -> bool {
        self.are_open_to_all() || context.is_home_of(index)
    }

    /// The engine whose items take most memory, of those that this core may take (E3). `None` if it
    /// may take none. Cost: a load for each engine.
    #[cold]
    pub(crate) fn fullest(&self, context: &Context) -> Option<EngineIndex> {
        let counters = &context.shared.totals.engines;
        debug_assert!(counters.len() == self.doors.len(), "an engine counts for itself");
        let engines = self.homes.all().filter(|index| self.may_take(*index, context));
        engines.max_by_key(|index| counters[index.number()].bytes.value())
    }

    #[inline]
    pub(super) fn lock(&self, index: EngineIndex) -> &Lock<E> {
        &self.doors[index.number()].lock
    }

    #[inline]
    pub(super) fn calls(&self, index: EngineIndex) -> &Calls {
        &self.doors[index.number()].calls
    }

    /// Whether requests that can be executed wait with an engine that no core holds (E4). Cost: a
    /// load.
    #[inline]
    pub(crate) fn are_left(&self, index: EngineIndex) -> bool {
        self.lock(index).is_left()
    }

    /// The number of operations on files that this core may take from an engine now: those that its
    /// backend has room for, and no more than the share of the engine (`files`, S5).
    pub(super) fn submissions_max(&self, index: EngineIndex, context: &Context) -> usize {
        let waits = |of: &&EngineIndex| **of != index && self.calls(**of).has_unsubmitted();
        let waiting = context.home_engines().iter().filter(waits).count();
        let share = FILE_OPERATIONS_MAX.div_ceil(1 + waiting);
        context.file_room.get().min(share.saturating_sub(context.files_in_flight(index)))
    }

    /// Takes the operations on files that this core must submit, and passes them to `submit` with
    /// the numbers of their engines. Cost: a load, if there are none.
    pub(crate) fn take_outgoing(
        &self,
        context: &Context,
        mut submit: impl FnMut(EngineIndex, E::Submission),
    ) {
        if context.has_outgoing.replace(false) {
            let mut outgoing = self.outgoing(context.core);
            outgoing.drain(..).for_each(|(engine, submission)| submit(engine, submission));
        }
    }

    pub(super) fn outgoing(
        &self,
        core: CoreIndex,
    ) -> MutexGuard<'_, Vec<(EngineIndex, E::Submission)>> {
        let outgoing = self.outgoing[core.number()].lock();
        outgoing.expect("a core that panics ends the process")
    }

    /// Until when the home core of an engine may sleep as far as the engine is concerned: until
    /// the engine wants to be entered; [`NEVER_NS`] if the time does not matter. `None` if the home
    /// core can do something in the engine now: requests are left, something has called, or upkeep
    /// may be due because another core held the engine at the last step (`was_held`).
    ///
    /// If a core holds the engine, it wakes the home core when it releases the engine (E4). The
    /// home core has raised its sleeping flag. Cost: four loads.
    #[inline]
    pub(crate) fn sleep_until_ns(
        &self,
        index: EngineIndex,
        context: &Context,
        was_held: bool,
    ) -> Option<u64> {
        let Door { lock, calls } = &*self.doors[index.number()];
        let is_wanted = was_held || calls.are_due(context);
        if lock.is_left() || is_wanted && !lock.want() {
            return None;
        }
        let deadline_ns = calls.deadline_ns();
        Some(if deadline_ns > context.now_ns() { deadline_ns } else { NEVER_NS })
    }

    /// Calls the engines whose requests wait for room, because a reader that was in the way has
    /// passed (`calls`, K1). Notes the home cores that must be woken. Cost: a load for each engine.
    #[cold]
    pub(crate) fn reader_has_passed(&self, context: &Context) {
        self.call_engines(|home| {
            if home != context.core {
                context.note_wake(home); // calls, K2
            }
        });
    }

    /// As [`Self::reader_has_passed`], for a reader that is no core of this process.
    #[cold]
    pub fn call_for_room(&self) {
        self.call_engines(|home| self.mailboxes.wake(home));
    }

    fn call_engines(&self, mut wake: impl FnMut(CoreIndex)) {
        for index in self.homes.all().filter(|index| self.calls(*index).call_room()) {
            wake(self.homes.core_of(index));
        }
    }
}

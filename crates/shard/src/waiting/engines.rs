//! The engines of a process, each behind its lock.
//!
//! Upstream:   every stage that changes items; `serve` for a batch of requests, the other stages
//!             for one bounded piece of work.
//! Downstream: the engines; `backlog` for the requests that other cores leave; `mailboxes` for
//!             their answers.
//!
//! ```text
//!             +-- free --> this core executes it, executes what was parked meanwhile, and
//! a request --+            releases the engine
//!             +-- held --> parked: the holder executes it before it releases the engine
//!
//! with `erew`, a request for an engine with another home: parked, and its home core is woken
//! ```
//!
//! A core only tries to take an engine. It never waits for one, so two cores that hold engines and
//! want more cannot wait for each other.
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

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard};

use kachel_engine::{DeadFound, DurableWord, Engine, EngineIndex, LastDead, Sequence};
use kachel_io::FILE_OPERATIONS_MAX;
use kachel_net::{CoreIndex, Fence};
use kachel_observe::ClassSums;
use kachel_stdx::{CachePadded, Chain, CombiningLock, Guard, Offered, Work};

use crate::context::Context;
use crate::cores::homes::Homes;
use crate::cores::throttle::NEVER_NS;
use crate::cores::work::{HOLD_BYTES_MAX, HoldWork};
use crate::waiting::backlog::{Backlog, RunLimit};
use crate::waiting::calls::Calls;
use crate::waiting::mailboxes::Mailboxes;
use crate::waiting::parked::Parked;

/// The most parked requests that a core executes for others before it releases an engine, and the
/// most delayed ones that are ready.
const PARKED_PER_HOLD_MAX: usize = 64;
/// The most parked requests that a core executes in one tick for its home engines, and the most
/// delayed ones that are ready, besides those that it executes when it releases engines. It limits
/// how long the core's own clients wait.
const PARKED_PER_TICK_MAX: usize = 512;

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
    found: DeadFound,
    pub(super) backlog: Backlog<E>,
    /// The deadline of the engine, as `calls` has it.
    deadline_ns: u64,
    /// The state of the durable word when the engine was last released.
    durable: u64,
    /// The next operation on a file, which no backend had room for.
    unsubmitted: Option<E::Submission>,
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

    /// Has this core be woken when more changes of an engine are durable (`fences`, F2).
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
    fn calls(&self, index: EngineIndex) -> &Calls {
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
    fn submissions_max(&self, index: EngineIndex, context: &Context) -> usize {
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

    fn outgoing(&self, core: CoreIndex) -> MutexGuard<'_, Vec<(EngineIndex, E::Submission)>> {
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

    /// Takes an engine for this core. `None` if another core holds it.
    ///
    /// Cost: a compare-and-swap; the engine's cost of entering.
    #[inline]
    pub(crate) fn take<'l>(
        &'l self,
        index: EngineIndex,
        context: &'l Context,
    ) -> Option<Entered<'l, E>> {
        debug_assert!(self.may_take(index, context), "E3");
        let Some(guard) = self.lock(index).take() else {
            context.counters.engines_held.add(1);
            return None;
        };
        Some(self.enter(guard, index, context))
    }

    #[inline]
    fn enter<'l>(
        &'l self,
        mut guard: EngineGuard<'l, E>,
        index: EngineIndex,
        context: &'l Context,
    ) -> Entered<'l, E> {
        context.catch_up();
        guard.engine.enter(context.place, &context.now());
        let noted_work = guard.engine.work_bytes();
        let hold = context.work.begin_hold(noted_work);
        let guard = Some(guard);
        Entered { guard, index, context, engines: self, is_changed: true, hold, noted_work }
    }

    /// Leaves a request with its engine: with the core that holds the engine, with this core if the
    /// engine is free, or with the home core if only that one may take it.
    ///
    /// If this core has taken the engine, the request is executed when it releases the engine.
    pub(crate) fn park<'l>(
        &'l self,
        mut work: Work<Parked<E>>,
        context: &'l Context,
    ) -> Option<Entered<'l, E>> {
        let index = work.engine();
        debug_assert!(work.origin == context.core, "a core parks requests of its own clients");
        work.answer.text = context.own_buffer(work.answer.room.bytes()); // buffers, B3
        let lock = self.lock(index);
        if self.may_take(index, context) {
            let Offered::Taken(guard, work) = lock.take_or_park(work) else { return None };
            let mut entered = self.enter(guard, index, context);
            entered.take_parked();
            entered.push(work);
            return Some(entered);
        }
        if lock.park(work) {
            context.note_wake(self.homes.core_of(index)); // E4
        }
        None
    }

    /// Executes the requests that wait with an engine whose home is this core and can be executed:
    /// those that other cores have left, and delayed ones that something has called. A core calls
    /// this once a tick for each of its engines. `is_left` says whether the last call has left any.
    ///
    /// Cost: four loads, if there is nothing to do.
    #[inline]
    pub(crate) fn step_backlog(
        &self,
        index: EngineIndex,
        context: &Context,
        is_left: bool,
    ) -> Stepped {
        let Door { lock, calls } = &*self.doors[index.number()];
        if !is_left && !lock.is_left() && !calls.are_due(context) {
            return Stepped { is_left: false, executed: 0 };
        }
        self.step_some_backlog(index, context)
    }

    #[inline(never)]
    fn step_some_backlog(&self, index: EngineIndex, context: &Context) -> Stepped {
        debug_assert!(context.is_home_of(index), "each core steps its own backlogs");
        let Some(mut entered) = self.take(index, context) else {
            // The core that holds the engine executes what is left, or leaves it and wakes this
            // one. What has called stays, and this core wants the engine before it sleeps.
            return Stepped { is_left: false, executed: 0 };
        };
        let now_ns = context.now_ns();
        if self.calls(index).deadline_ns() <= now_ns {
            let Kept { engine, backlog, .. } = entered.kept();
            engine.reach(now_ns, &mut |ticket| backlog.wake(ticket));
        }
        let count = PARKED_PER_TICK_MAX.div_ceil(context.home_engines().len());
        let limit = entered.limit(count);
        let executed = entered.work_off(limit);
        entered.is_changed = false; // It was published.
        let is_left = !entered.backlog().is_idle();
        Stepped { is_left, executed }
    }
}

/// The result of [`Engines::step_backlog`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stepped {
    /// Whether requests are left that can be executed.
    pub(crate) is_left: bool,
    /// How many requests were executed.
    pub(crate) executed: usize,
}

/// An engine that this core holds. It is not sent to other threads.
pub(crate) struct Entered<'l, E: Engine> {
    /// `None` once it is released.
    guard: Option<EngineGuard<'l, E>>,
    pub(super) index: EngineIndex,
    context: &'l Context,
    engines: &'l Engines<E>,
    /// Whether the statistics may have changed.
    is_changed: bool,
    /// When this core took the engine, and the work since then.
    hold: HoldWork,
    /// The work that the engine had done when it was noted last.
    noted_work: u64,
}

impl<'l, E: Engine> Entered<'l, E> {
    #[inline]
    fn guard(&mut self) -> &mut EngineGuard<'l, E> {
        self.guard.as_mut().expect("only the drop releases it")
    }

    #[inline]
    fn kept(&mut self) -> &mut Kept<E> {
        &mut *self.guard()
    }

    /// The requests that wait within the lock.
    #[inline]
    pub(crate) fn backlog(&mut self) -> &mut Backlog<E> {
        &mut self.kept().backlog
    }

    /// Moves the requests that were parked to the backlog.
    #[inline]
    pub(super) fn take_parked(&mut self) {
        let parked = self.guard().take_parked();
        let Kept { engine, backlog, .. } = self.kept();
        backlog.append(engine, parked);
    }

    /// Adds a request to those that wait within the lock.
    pub(crate) fn push(&mut self, work: Work<Parked<E>>) {
        let Kept { engine, backlog, .. } = self.kept();
        backlog.push(engine, work);
    }

    fn limit(&mut self, count: usize) -> RunLimit {
        let Kept { engine, backlog, .. } = self.kept();
        backlog.limit(engine, count)
    }

    /// The work of the engine since this was called last, or since this core took the engine, in
    /// bytes. Cost: loads and a comparison; most requests read, which is no work.
    #[inline]
    pub(crate) fn note_work(&mut self) -> u64 {
        let work_bytes = E::work_bytes(self);
        work_bytes - std::mem::replace(&mut self.noted_work, work_bytes)
    }

    /// Whether this core must release the engine before it begins another request (`work`, W2).
    #[inline]
    pub(crate) fn is_worked_out(&self) -> bool {
        self.hold.bytes(self.noted_work) >= HOLD_BYTES_MAX
    }

    /// Whether a request about this key, of a connection that awaits answers, overtakes none of its
    /// earlier requests ([`Backlog::may_pass`]).
    #[inline]
    pub(crate) fn may_pass(&mut self, key_hash: u64) -> bool {
        self.take_parked();
        self.backlog().may_pass(key_hash)
    }

    /// Releases an engine in which nothing has changed. Cost: a store, if nothing was parked.
    #[inline]
    pub(crate) fn release_unchanged(mut self) {
        self.is_changed = false;
    }

    /// Publishes the statistics (E2). Cost: a few loads, and a store for each one that changed.
    #[inline]
    fn publish(&mut self) {
        let (index, context) = (self.index, self.context);
        let Context { shared, counters, .. } = context;
        let kept = self.kept();
        let stats = kept.engine.stats();
        shared.totals.engines[index.number()].publish(&stats);
        let found = DeadFound { expired: stats.found_expired, flushed: stats.found_flushed };
        let before = std::mem::replace(&mut kept.found, found);
        debug_assert!(before.expired <= found.expired, "an engine counts from its start on");
        counters.note_dead(DeadFound {
            expired: found.expired - before.expired,
            flushed: found.flushed - before.flushed,
        });
        if kept.engine.has_evicted() {
            context.log_evicted(&mut kept.engine);
        }
    }

    /// Counts the hold, which is about to end.
    #[inline]
    fn count_hold(&mut self) {
        let work_bytes = E::work_bytes(self);
        let Context { work, counters, .. } = self.context;
        work.count_hold(&mut self.hold, work_bytes, counters);
    }

    /// Executes delayed requests that are ready and parked requests within `limit` each, publishes
    /// the statistics, and hands the answers back (E2). Returns how many requests were executed.
    fn work_off(&mut self, limit: RunLimit) -> usize {
        let (context, engines, index) = (self.context, self.engines, self.index);
        let mut done = Chain::new();
        self.take_parked();
        let Kept { engine, backlog, .. } = self.kept();
        let calls = engines.calls(index);
        backlog.complete(engine, &mut done); // Beyond the limit, and before requests.
        backlog.ask_for_room(engine, calls);
        let mut executed = backlog.run_ready(context, engine, limit, &mut done);
        executed += backlog.run(context, engine, limit, &mut done);
        backlog.ask_for_room(engine, calls);
        debug_assert!(executed <= 2 * limit.count, "E1");
        self.publish();
        engines.mailboxes.answer(context, done);
        executed
    }

    /// Takes the operations on files that the engine has queued, as far as this core may
    /// ([`Engines::submissions_max`]). Leaves the others to the home core (`files`, S2). Cost:
    /// nothing, for an engine without files.
    #[inline]
    fn take_submissions(&mut self) {
        let Kept { engine, unsubmitted, .. } = self.kept();
        if let Some(first) = unsubmitted.take().or_else(|| engine.next_submission()) {
            self.take_some_submissions(first);
        }
    }

    #[cold]
    fn take_some_submissions(&mut self, first: E::Submission) {
        let (context, engines, index) = (self.context, self.engines, self.index);
        let was_left = engines.calls(index).has_unsubmitted();
        let Kept { engine, unsubmitted, .. } = self.kept();
        let mut outgoing = engines.outgoing(context.core);
        let mut next = Some(first);
        let mut room = engines.submissions_max(index, context);
        while room > 0
            && let Some(submission) = next
        {
            outgoing.push((index, submission));
            context.note_file_taken(index);
            room -= 1;
            next = engine.next_submission();
        }
        context.has_outgoing.set(!outgoing.is_empty());
        let is_left = next.is_some();
        *unsubmitted = next;
        engines.calls(index).set_unsubmitted(is_left);
        // A home core that was called and has no room looks again when an operation completes.
        if is_left && !was_left {
            self.note_home(); // calls, K2
        }
    }

    /// Notes the cores that the engine calls: those that wait for an advance of its durable word,
    /// if there was one (`fences`, F2), and its home core, if the engine wants to be entered
    /// earlier than the home core knows. Cost: two comparisons, if nothing has changed.
    #[inline]
    fn note_calls(&mut self) {
        self.take_submissions();
        let Kept { engine, durable, .. } = self.kept();
        let state = engine.durable().state();
        if *durable != state {
            debug_assert!(*durable < state, "contract, I3");
            *durable = state;
            let context = self.context;
            self.engines.calls(self.index).take_fenced(|core| {
                if core != context.core {
                    context.note_wake(core);
                }
            });
        }
        let Kept { engine, deadline_ns, .. } = self.kept();
        let now_at_ns = engine.deadline_ns().unwrap_or(NEVER_NS);
        if now_at_ns != *deadline_ns {
            let before_ns = std::mem::replace(deadline_ns, now_at_ns);
            self.engines.calls(self.index).set_deadline_ns(now_at_ns);
            if now_at_ns < before_ns {
                self.note_home(); // calls, K2
            }
        }
    }

    /// Releases the engine while requests wait for it, or its home core does: executes those that
    /// can be executed, and leaves the rest to the home core (E4).
    #[cold]
    fn release_with_backlog(&mut self) {
        let mut limit = self.limit(PARKED_PER_HOLD_MAX);
        let mut is_wanted = false;
        while limit.count > 0 {
            is_wanted |= self.guard().take_wanted();
            let executed = self.work_off(limit);
            limit.count = limit.count.saturating_sub(executed.max(1)); // E1
            if self.backlog().is_idle() {
                self.note_calls();
                self.count_hold();
                let Some(guard) = self.guard.take() else { return };
                match guard.release() {
                    Ok(()) => return self.wake_home(is_wanted),
                    Err(held) => self.guard = Some(held),
                }
            } else if executed == 0 {
                break;
            }
        }
        self.note_calls();
        self.count_hold();
        self.guard.take().into_iter().for_each(Guard::release_leaving);
        self.wake_home(true);
    }

    /// Notes that the home core of the engine must be woken, which was released (E4).
    fn wake_home(&self, is_wanted: bool) {
        debug_assert!(self.guard.is_none(), "E4: it looks at the flag after the release");
        if is_wanted {
            self.note_home();
        }
    }

    /// Notes that the home core of the engine must be woken, unless it is this core.
    fn note_home(&self) {
        let Self { context, index, .. } = *self;
        if !context.is_home_of(index) {
            context.note_wake(context.homes.core_of(index));
        }
    }
}

impl<E: Engine> Deref for Entered<'_, E> {
    type Target = E;

    #[inline]
    fn deref(&self) -> &E {
        &self.guard.as_ref().expect("only the drop releases it").engine
    }
}

impl<E: Engine> DerefMut for Entered<'_, E> {
    #[inline]
    fn deref_mut(&mut self) -> &mut E {
        &mut self.kept().engine
    }
}

impl<E: Engine> Drop for Entered<'_, E> {
    /// Publishes the statistics, executes the requests that were parked meanwhile, and releases the
    /// engine.
    #[inline]
    fn drop(&mut self) {
        if std::thread::panicking() {
            return; // The engine may be broken, so it stays held. The process is about to end.
        }
        debug_assert!(self.guard.is_some(), "it is released once");
        if self.is_changed {
            self.publish();
        }
        if self.backlog().is_idle() {
            self.note_calls();
            self.count_hold();
            let Some(guard) = self.guard.take() else { return };
            match guard.release() {
                Ok(()) => return,
                Err(held) => self.guard = Some(held),
            }
        }
        self.release_with_backlog();
    }
}

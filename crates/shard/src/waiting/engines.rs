//! The engines of all shards, each behind its lock.
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
//! with `erew`, a request for a key of another shard: parked, and the core of the shard is woken
//! ```
//!
//! A core only tries to take an engine. It never waits for one, so two cores that hold engines and
//! want more cannot wait for each other.
//!
//! Invariants:
//! - E1  A core holds engines for a bounded piece of work: for a batch of requests, and for
//!   `PARKED_PER_HOLD_MAX` parked ones of each engine that it releases. Once a tick, the core of a
//!   shard also executes up to `PARKED_PER_TICK_MAX` requests of its backlog in one hold. Each of
//!   the three ends earlier if its work reaches `HOLD_BYTES_MAX` (`work`, W2). A core that holds an
//!   engine does not poll, send or wake. The engine itself makes one system call, `madvise`, in
//!   three cases: it gives a segment back to the kernel, because the budget is overdrawn or a
//!   client needs memory (then the pool is locked, too); the index shrinks, by at most 2 MiB; the
//!   index grows into the next huge page.
//! - E2  A core publishes the statistics of an engine before it hands answers back, and before it
//!   releases the engine. So a change is acknowledged only when `stats` counts it (`send`, I1).
//! - E3  With `erew` only the core of a shard takes its engine.
//! - E4  The core of a shard learns of requests that wait with its engine while no core holds it:
//!   the core that leaves the requests there wakes it, unless it will step its backlog soon anyway.
//!
//! Source: reads without a lock and writes under one as in Fan and others, "MemC3", NSDI 2013.
//! MemC3 has one lock and takes it for each request. Here each shard has its own lock, and a core
//! takes it for a batch, because the cache misses of a batch overlap. `kachel_stdx::CombiningLock`
//! describes how a request is parked with the holder.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};

use arrayvec::ArrayVec;
use kachel_engine::{BATCH_MAX, ClassStats, DeadFound, Engine, LastDead};
use kachel_stdx::{CachePadded, Chain, CombiningLock, Guard, Offered, SizeClasses, Work};

use crate::context::Context;
use crate::cores::work::{HOLD_BYTES_MAX, HoldWork};
use crate::waiting::backlog::{Backlog, Left, RunLimit};
use crate::waiting::mailboxes::Mailboxes;
use crate::waiting::parked::Parked;

/// The most parked requests that a core executes for others before it releases an engine.
const PARKED_PER_HOLD_MAX: usize = 64;
/// The most parked requests that the core of a shard executes in one tick, besides those that it
/// executes when it releases engines. It limits how long the core's own clients wait.
const PARKED_PER_TICK_MAX: usize = 512;

/// An engine behind its lock.
type Lock<E> = CombiningLock<Kept<E>, Parked<E>>;
/// The right to change an engine.
type EngineGuard<'l, E> = Guard<'l, Kept<E>, Parked<E>>;

/// The engines of all shards of a process.
pub struct Engines<E: Engine> {
    /// By the numbers of the shards.
    locks: Vec<CachePadded<Lock<E>>>,
    /// The readers of all engines, by the numbers of the shards. None with `erew`.
    readers: Vec<E::Reader>,
    /// The counts of all engines by size class, by the numbers of the shards.
    pub(crate) counted: Vec<E::Reader>,
    /// The sums of these counts at the last `stats reset`, by class.
    pub(crate) counted_before: Mutex<[ClassStats; SizeClasses::MAX]>,
    mailboxes: Mailboxes<E>,
    common: E::Common,
    /// The last dead items that lookups have removed, by the numbers of the shards.
    last_dead: Vec<Arc<LastDead>>,
}

/// The data that the lock of a shard protects.
struct Kept<E: Engine> {
    engine: E,
    /// The dead items that the engine had found when they were last counted.
    found: DeadFound,
    backlog: Backlog<E>,
}

/// Holds an engine, for tests in which all cores must find it held.
#[must_use]
pub struct Hold<'l, E: Engine> {
    guard: Option<EngineGuard<'l, E>>,
    shard: u16,
    mailboxes: &'l Mailboxes<E>,
}

impl<E: Engine> Drop for Hold<'_, E> {
    /// Leaves the parked requests to the core of the shard.
    fn drop(&mut self) {
        let Some(guard) = self.guard.take() else { return };
        let is_left = !guard.backlog.is_empty();
        let guard = if is_left { Some(guard) } else { guard.release().err() };
        if let Some(guard) = guard {
            guard.release_leaving();
            self.mailboxes.wake(self.shard);
        }
    }
}

impl<E: Engine> Engines<E> {
    /// Puts the engines of all shards, in the order of their numbers, behind their locks. With
    /// `crew` each core reads and changes the items of all shards, otherwise only its own.
    ///
    /// # Panics
    /// If there is no engine.
    pub fn new(engines: Vec<E>, crew: bool) -> Arc<Self> {
        let common = engines.first().expect("a process has a shard").common();
        let crew = crew && engines.len() > 1;
        let counted: Vec<_> = engines.iter().map(E::reader).collect();
        let readers = if crew { counted.clone() } else { Vec::new() };
        let mailboxes = Mailboxes::new(engines.len());
        let last_dead = engines.iter().map(|engine| Arc::clone(engine.last_dead())).collect();
        let keep = |engine| Kept { engine, found: DeadFound::default(), backlog: Backlog::new() };
        let locks = engines.into_iter().map(|engine| CachePadded::new(Lock::new(keep(engine))));
        let locks = locks.collect();
        let counted_before = Mutex::new([ClassStats::default(); SizeClasses::MAX]);
        Arc::new(Self { locks, readers, counted, counted_before, mailboxes, common, last_dead })
    }

    /// The last dead items that lookups have removed, by the numbers of the shards.
    pub(crate) fn last_dead(&self) -> &[Arc<LastDead>] {
        &self.last_dead
    }

    /// What the engines have in common.
    #[inline]
    pub(crate) const fn common(&self) -> &E::Common {
        &self.common
    }

    /// The mailboxes of all cores.
    #[inline]
    pub(crate) const fn mailboxes(&self) -> &Mailboxes<E> {
        &self.mailboxes
    }

    /// The readers of all engines, by the numbers of their shards. None with `erew`.
    #[inline]
    pub(crate) fn readers(&self) -> &[E::Reader] {
        &self.readers
    }

    /// Whether any core may take the engine of any shard (E3).
    #[inline]
    pub(crate) fn are_open_to_all(&self) -> bool {
        !self.readers.is_empty()
    }

    /// Whether this core may take the engine of a shard (E3).
    #[inline]
    pub(crate) fn may_take(&self, shard: u16, context: &Context) -> bool {
        shard == context.id || self.are_open_to_all()
    }

    /// The shard whose items take most memory. Cost: a load for each shard.
    #[cold]
    pub(crate) fn fullest(&self, context: &Context) -> u16 {
        let counters = &context.shared.counters;
        debug_assert!(counters.len() == self.locks.len(), "a shard counts for itself");
        let bytes = |shard: &u16| counters[usize::from(*shard)].bytes.value();
        (0..context.shards()).max_by_key(bytes).unwrap_or(context.id)
    }

    /// Lets the caller look at the engine of a shard. Waits until no core holds it.
    pub fn inspect<R>(&self, shard: u16, look: impl FnOnce(&E) -> R) -> R {
        self.inspect_kept(shard, |kept| look(&kept.engine))
    }

    /// The number of requests that the engine of a shard delays, and of replies that are not
    /// durable yet. Waits until no core holds the engine.
    pub(crate) fn delayed_count(&self, shard: u16) -> usize {
        self.inspect_kept(shard, |kept| kept.backlog.delayed_count())
    }

    fn inspect_kept<R>(&self, shard: u16, look: impl FnOnce(&Kept<E>) -> R) -> R {
        let held = loop {
            match self.hold(shard) {
                Some(held) => break held,
                None => std::thread::yield_now(),
            }
        };
        look(held.guard.as_ref().expect("a hold has its guard"))
    }

    /// Lets the caller use the engine of a shard whose process serves no clients any more. `None`
    /// if a core holds it.
    pub fn with_idle<R>(&self, shard: u16, work: impl FnOnce(&mut E) -> R) -> Option<R> {
        let mut guard = self.locks[usize::from(shard)].take()?;
        let result = work(&mut guard.engine);
        guard.release_leaving();
        Some(result)
    }

    /// Takes the engine of a shard as another core would, and does nothing with it. `None` if a
    /// core holds it.
    pub fn hold(&self, shard: u16) -> Option<Hold<'_, E>> {
        let guard = Some(self.locks[usize::from(shard)].take()?);
        Some(Hold { guard, shard, mailboxes: &self.mailboxes })
    }

    /// Whether requests wait with an engine that no core holds (E4). Cost: a load.
    #[inline]
    pub(crate) fn are_left(&self, shard: u16) -> bool {
        self.locks[usize::from(shard)].is_left()
    }

    /// Whether no core holds an engine, and no requests wait with it. Cost: a load.
    pub(crate) fn is_idle(&self, shard: u16) -> bool {
        self.locks[usize::from(shard)].is_idle()
    }

    /// Whether requests are parked with an engine that no core holds. Cost: a load.
    #[inline]
    pub(crate) fn have_parked(&self, shard: u16) -> bool {
        self.locks[usize::from(shard)].is_left_parked()
    }

    /// Takes the engine of a shard for this core. `None` if another core holds it.
    ///
    /// Cost: a compare-and-swap; the engine's cost of entering.
    #[inline]
    pub(crate) fn take<'l>(&'l self, shard: u16, context: &'l Context) -> Option<Entered<'l, E>> {
        debug_assert!(self.may_take(shard, context), "E3");
        let Some(guard) = self.locks[usize::from(shard)].take() else {
            context.counters.engines_held.add(1);
            return None;
        };
        Some(self.enter(guard, shard, context))
    }

    #[inline]
    fn enter<'l>(
        &'l self,
        mut guard: EngineGuard<'l, E>,
        shard: u16,
        context: &'l Context,
    ) -> Entered<'l, E> {
        context.catch_up();
        guard.engine.enter(context.place, &context.now());
        let noted_work = guard.engine.work_bytes();
        let hold = context.work.begin_hold(noted_work);
        let (guard, mailboxes) = (Some(guard), &self.mailboxes);
        Entered { guard, shard, context, mailboxes, is_changed: true, hold, noted_work }
    }

    /// Leaves a request with the shard that executes it: with the core that holds its engine, with
    /// this core if the engine is free, or with the core of the shard if only that one may take it.
    ///
    /// If this core has taken the engine, the request is executed when it releases the engine.
    pub(crate) fn park<'l>(
        &'l self,
        work: Work<Parked<E>>,
        context: &'l Context,
    ) -> Option<Entered<'l, E>> {
        let shard = work.shard;
        debug_assert!(work.origin == context.id, "a core parks requests of its own clients");
        let lock = &self.locks[usize::from(shard)];
        if self.may_take(shard, context) {
            let Offered::Taken(guard, work) = lock.take_or_park(work) else { return None };
            let mut entered = self.enter(guard, shard, context);
            entered.take_parked();
            entered.backlog().push(work);
            return Some(entered);
        }
        if lock.park(work) {
            context.note_wake(shard); // E4
        }
        None
    }

    /// Executes the requests that wait with the engine of this core: delayed requests that are
    /// ready, then requests that other cores have left. A core calls this once a tick. `before` is
    /// the result of its last call. Returns the kind of requests that still wait, and how many were
    /// executed.
    ///
    /// Cost: a load, if nothing waits.
    pub(crate) fn step_backlog(&self, context: &Context, before: Left) -> (Left, usize) {
        if !E::DELAYS && before == Left::Nothing && !self.are_left(context.id) {
            return (Left::Nothing, 0);
        }
        let Some(mut entered) = self.take(context.id, context) else {
            // The core that holds the engine executes the queue; the delayed requests wait.
            let left = if before == Left::Nothing { Left::Nothing } else { Left::Delayed };
            return (left, 0);
        };
        debug_assert!(entered.shard == context.id, "each core steps its own backlog");
        let limit = RunLimit::of(&*entered, PARKED_PER_TICK_MAX);
        let executed = entered.work_off(limit, true);
        entered.is_changed = false; // It was published.
        let backlog = entered.backlog();
        let left = backlog.left();
        backlog.is_watched = left != Left::Nothing;
        (left, executed)
    }
}

/// An engine that this core holds. It is not sent to other threads.
pub(crate) struct Entered<'l, E: Engine> {
    /// `None` once it is released.
    guard: Option<EngineGuard<'l, E>>,
    shard: u16,
    context: &'l Context,
    mailboxes: &'l Mailboxes<E>,
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
    fn take_parked(&mut self) {
        let parked = self.guard().take_parked();
        self.backlog().append(parked);
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

    /// Whether no request waits for this engine, so that a new one overtakes none.
    #[inline]
    pub(crate) fn is_clear(&mut self) -> bool {
        self.take_parked();
        self.backlog().is_empty()
    }

    /// Releases an engine in which nothing has changed. Cost: a store, if nothing was parked.
    #[inline]
    pub(crate) fn release_unchanged(mut self) {
        self.is_changed = false;
    }

    /// Publishes the statistics (E2). Cost: a few loads, and a store for each one that changed.
    #[inline]
    fn publish(&mut self) {
        let (shard, context) = (self.shard, self.context);
        let Context { shared, counters, .. } = context;
        let kept = self.kept();
        let stats = kept.engine.stats();
        shared.counters[usize::from(shard)].publish(&stats);
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

    /// Executes parked requests within `limit`, publishes the statistics, and hands the answers
    /// back (E2). With `retry`, which only the core of the shard sets, first executes delayed
    /// requests within the same limit. Returns how many requests were executed.
    fn work_off(&mut self, limit: RunLimit, retry: bool) -> usize {
        debug_assert!(!retry || self.shard == self.context.id, "the core of the shard");
        let (context, mailboxes) = (self.context, self.mailboxes);
        let mut done = Chain::new();
        self.take_parked();
        let Kept { engine, backlog, .. } = self.kept();
        let mut executed = 0;
        if retry {
            executed += backlog.retry(context, engine, limit, &mut done);
        }
        executed += backlog.run(context, engine, limit, &mut done);
        debug_assert!(executed <= 2 * limit.count, "E1");
        self.publish();
        mailboxes.answer(context, done);
        executed
    }

    /// Releases the engine while requests wait for it: executes those that can be executed, and
    /// leaves the rest to the core of the shard (E4).
    #[cold]
    fn release_with_backlog(&mut self) {
        let mut limit = RunLimit::of(&**self, PARKED_PER_HOLD_MAX);
        while limit.count > 0 {
            let executed = self.work_off(limit, false);
            debug_assert!(executed <= limit.count, "E1");
            limit.count -= executed;
            if self.backlog().is_empty() {
                self.backlog().is_watched = false;
                self.count_hold();
                let Some(guard) = self.guard.take() else { return };
                match guard.release() {
                    Ok(()) => return,
                    Err(held) => self.guard = Some(held),
                }
            } else if executed == 0 {
                break;
            }
        }
        self.count_hold();
        let is_watched = self.backlog().is_watched;
        self.guard.take().into_iter().for_each(Guard::release_leaving);
        if !is_watched && self.shard != self.context.id {
            self.context.note_wake(self.shard);
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
        if self.backlog().is_empty() {
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

/// The engines that this core holds for a batch.
pub(crate) struct HeldEngines<'l, E: Engine> {
    engines: &'l Engines<E>,
    context: &'l Context,
    /// The engines that the batch has needed so far.
    entered: ArrayVec<Entered<'l, E>, BATCH_MAX>,
}

impl<'l, E: Engine> HeldEngines<'l, E> {
    /// The readers of all engines ([`Engines::readers`]).
    #[inline]
    pub(crate) fn readers(&self) -> &[E::Reader] {
        self.engines.readers()
    }

    /// Holds no engine yet.
    pub(crate) const fn new(engines: &'l Engines<E>, context: &'l Context) -> Self {
        Self { engines, context, entered: ArrayVec::new_const() }
    }

    /// The engine of a shard. `None` in three cases: this core may not take it; another core holds
    /// it, but may release it before a later request of the batch; or this core holds as many
    /// engines as a batch has requests.
    #[inline]
    pub(crate) fn get(&mut self, shard: u16) -> Option<&mut Entered<'l, E>> {
        let place = match self.entered.iter().position(|entered| entered.shard == shard) {
            Some(place) => place,
            // A batch needs at most as many engines as it has requests, but freeing memory for a
            // client may need one more.
            None if self.entered.is_full() => return None,
            None if !self.engines.may_take(shard, self.context) => return None, // E3
            None => {
                self.entered.push(self.engines.take(shard, self.context)?);
                self.entered.len() - 1
            }
        };
        debug_assert!(self.entered[place].shard == shard, "an engine is found by its shard");
        Some(&mut self.entered[place])
    }

    /// The engine that must free memory for a client: the engine whose items take most memory, if
    /// this core may take it, otherwise the core's own. If each core freed memory in its own shard,
    /// the shard with the most clients would evict its items, and the others would fill the memory.
    ///
    /// Cost: a load for each shard.
    #[cold]
    pub(crate) fn fullest(&mut self) -> Option<&mut E> {
        if !self.engines.are_open_to_all() {
            // A core without keys has nothing to evict. The others evict when they store next.
            let owns_keys = self.context.hasher.owns_keys(self.context.id);
            return owns_keys.then(|| self.own()).flatten();
        }
        self.get(self.engines.fullest(self.context)).map(|entered| &mut **entered)
    }

    /// Releases the engine of a shard if its hold has reached the bound (`work`, W2). So the parked
    /// requests are executed, and other cores may take the engine, before the next request of this
    /// batch.
    pub(crate) fn release_worked_out(&mut self, shard: u16) {
        let is_worked_out =
            |entered: &Entered<'_, E>| entered.shard == shard && entered.is_worked_out();
        let Some(place) = self.entered.iter().position(is_worked_out) else { return };
        let mut entered = self.entered.swap_remove(place);
        debug_assert!(entered.shard == shard, "it is the one that has worked");
        if entered.shard != self.context.id {
            entered.maintain(&self.context.now());
        }
    }

    /// The engine of this core's own shard, as [`Self::get`] returns it.
    #[inline]
    pub(crate) fn own(&mut self) -> Option<&mut E> {
        self.get(self.context.id).map(|entered| &mut **entered)
    }

    /// Whether this core holds the engine of a shard.
    pub(crate) fn has(&self, shard: u16) -> bool {
        self.entered.iter().any(|entered| entered.shard == shard)
    }

    /// Leaves a request with the shard that executes it ([`Engines::park`]). If this core holds the
    /// engine, the request is executed when the batch ends, or later if it has a ticket.
    pub(crate) fn park(&mut self, work: Work<Parked<E>>) {
        debug_assert!(work.ticket.is_none() || self.has(work.shard), "who delays it is held");
        if let Some(entered) = self.entered.iter_mut().find(|held| held.shard == work.shard) {
            entered.take_parked();
            return entered.backlog().push(work);
        }
        if let Some(entered) = self.engines.park(work, self.context)
            && !self.entered.is_full()
        {
            self.entered.push(entered);
        }
    }
}

impl<E: Engine> Drop for HeldEngines<'_, E> {
    /// Does a step of upkeep in each engine of another shard, whose own core may sleep. Then
    /// releases all engines, and wakes the cores that wait for an answer (`mailboxes`, M2).
    fn drop(&mut self) {
        let (own, now) = (self.context.id, self.context.now());
        for engine in self.entered.iter_mut().filter(|entered| entered.shard != own) {
            debug_assert!(self.engines.are_open_to_all(), "E3");
            engine.maintain(&now);
        }
        self.entered.clear();
        self.engines.mailboxes.wake_noted(self.context);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::rc::Rc;

    use kachel_cache::{Cache, Pool, PoolOptions, ShardOf};
    use kachel_engine::{ClockOrigin, Common as _, EngineOptions, KeyHasher, LeaseOptions, Seeds};
    use kachel_host::Budget;
    use kachel_io::ManualClock;

    use super::*;
    use crate::cores::options::SharedOptions;
    use crate::cores::process::Shared;
    use crate::cores::work::WorkMeter;
    use crate::observe::log::Log;
    use crate::observe::sizes::Sizes;

    const SHARDS: u16 = BATCH_MAX as u16 + 8;

    #[test]
    fn a_core_holds_as_many_engines_as_a_batch_has_requests_and_no_more() {
        let budget = Arc::new(Budget::new(64 << 20));
        let options = PoolOptions { shards: SHARDS, reserve_bytes: 0, ..PoolOptions::default() };
        let pool = Pool::new(Arc::clone(&budget), options).expect("address space");
        let hasher = KeyHasher::new(Seeds { hash_keys: [1, 2] }, SHARDS);
        let options = EngineOptions {
            evict: true,
            cas: true,
            item_bytes_max: 1 << 20,
            leases: LeaseOptions::DEFAULT,
        };
        let caches = (0..SHARDS).map(|shard| {
            let of = ShardOf { shard, shards: SHARDS };
            let cache = Cache::new(Arc::clone(&pool), Arc::clone(&budget), hasher, options, of);
            cache.expect("address space")
        });
        let engines = Engines::new(caches.collect(), true);
        let options = SharedOptions { shards: SHARDS, ..SharedOptions::default() };
        let shared = Arc::new(Shared::new(options, budget));
        let core = engines.common().register_core().expect("a place");
        let sizes = Sizes::new(engines.common());
        let origin = ClockOrigin::new(0, 0);
        let log = Log::new(0, Vec::new());
        let work = WorkMeter::new(Rc::new(ManualClock::new(0)));
        let context = Context::new(0, shared, hasher, origin, core.place(), sizes, log, work);
        let mut held = HeldEngines::new(&engines, &context);
        let last = BATCH_MAX as u16 - 1;
        for shard in 0..=last {
            assert!(held.get(shard).is_some() && engines.hold(shard).is_none(), "{shard}");
        }
        assert!(held.get(SHARDS - 1).is_none(), "it is free, but there is no room for it");
        assert!(held.own().is_some() && held.get(last).is_some(), "they are held already");
        drop(held);
        assert!((0..SHARDS).all(|shard| engines.hold(shard).is_some()), "all are released");
    }
}

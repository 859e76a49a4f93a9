//! The engines of all shards, each behind its lock.
//!
//! Upstream:   every stage that changes items; `serve` for a batch of requests, the other stages
//!             for one bounded piece of work.
//! Downstream: the engines.
//!
//! ```text
//!                            +-- free --> this core executes it, then releases the engine
//! a request that changes ----+
//! another shard's items      +-- held by another core --> hop (`hop`)
//!
//!                            +-- free --> this core executes it
//! a request for this --------+
//! shard's items              +-- held by another core --> parked (`delayed`)
//! ```
//!
//! A core only tries to take an engine. It never waits for one, so two cores that hold engines and
//! want more cannot wait for each other.
//!
//! Invariants:
//! - E1  A core holds engines for a bounded piece of work, a batch of requests at most, and never
//!   across a system call.
//! - E2  A core publishes the statistics of an engine before it releases the engine. So a change is
//!   acknowledged only when `stats` counts it (`send`, I1).
//! - E3  With `erew` only the core of a shard takes its engine. The same holds for engines that
//!   delay operations, because only that core polls them.
//! - E4  If an engine answers another core than its own by a ticket, the ticket is dropped, and the
//!   request hops.
//!
//! Source: reads without a lock and writes under one as in Fan and others, "MemC3", NSDI 2013.
//! MemC3 has one lock and takes it for each request. Here each shard has its own, and a core takes
//! it for a batch, because the cache misses of a batch overlap.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
#[cfg(not(shuttle))]
use std::sync::{Mutex, MutexGuard, PoisonError};

use arrayvec::ArrayVec;
use kachel_engine::{BATCH_MAX, DeadFound, Engine};
use kachel_stdx::CachePadded;
#[cfg(shuttle)]
use shuttle::sync::{Mutex, MutexGuard, PoisonError};

use crate::context::Context;

/// The engines of all shards of a process.
pub struct Engines<E: Engine> {
    /// By the numbers of the shards.
    kept: Vec<CachePadded<Mutex<Kept<E>>>>,
    /// The readers of all engines, by the numbers of the shards. None with `erew`.
    readers: Vec<E::Reader>,
    common: E::Common,
}

/// An engine behind its lock.
struct Kept<E> {
    engine: E,
    /// Dead items that the engine found, as far as they are counted.
    found: DeadFound,
}

/// Keeps an engine from all cores, for tests that need a core which holds it.
#[must_use]
pub struct Hold<'l, E: Engine>(
    #[expect(dead_code, reason = "it is released with the hold")] MutexGuard<'l, Kept<E>>,
);

impl<E: Engine> Engines<E> {
    /// Puts the engines of all shards, in the order of their numbers, behind their locks. With
    /// `crew` each core reads and changes the items of all shards, otherwise only its own.
    ///
    /// # Panics
    /// If there is no engine.
    pub fn new(engines: Vec<E>, crew: bool) -> Arc<Self> {
        let common = engines.first().expect("a process has a shard").common();
        let crew = crew && engines.len() > 1;
        let readers = if crew { engines.iter().map(E::reader).collect() } else { Vec::new() };
        let keep = |engine| Kept { engine, found: DeadFound::default() };
        let kept = engines.into_iter().map(|engine| CachePadded::new(Mutex::new(keep(engine))));
        Arc::new(Self { kept: kept.collect(), readers, common })
    }

    /// What the engines have in common.
    #[inline]
    pub(crate) const fn common(&self) -> &E::Common {
        &self.common
    }

    /// The readers of all engines, by the numbers of their shards. None with `erew`.
    #[inline]
    pub(crate) fn readers(&self) -> &[E::Reader] {
        &self.readers
    }

    /// Whether any core may take the engine of any shard (E3).
    #[inline]
    pub(crate) fn are_open_to_all(&self) -> bool {
        !E::DELAYS && !self.readers.is_empty()
    }

    /// The shard whose items take most. Cost: a load for each shard.
    #[cold]
    pub(crate) fn fullest(&self, context: &Context) -> u16 {
        let counters = &context.shared.counters;
        debug_assert!(counters.len() == self.kept.len(), "a shard counts for itself");
        let bytes = |shard: &u16| counters[usize::from(*shard)].bytes.value();
        (0..context.shards()).max_by_key(bytes).unwrap_or(context.id)
    }

    /// Lets the caller look at the engine of a shard. Waits until no core holds it.
    pub fn inspect<R>(&self, shard: u16, look: impl FnOnce(&E) -> R) -> R {
        let kept = self.kept[usize::from(shard)].lock();
        look(&kept.unwrap_or_else(PoisonError::into_inner).engine)
    }

    /// Takes the engine of a shard as another core would, and does nothing with it. `None` if a
    /// core holds it.
    pub fn hold(&self, shard: u16) -> Option<Hold<'_, E>> {
        self.lock(shard).map(Hold)
    }

    fn lock(&self, shard: u16) -> Option<MutexGuard<'_, Kept<E>>> {
        debug_assert!(usize::from(shard) < self.kept.len(), "a shard of this process");
        // If another core panicked in the middle of a change, the process is about to end.
        self.kept[usize::from(shard)].try_lock().ok()
    }

    /// Takes the engine of a shard for this core. `None` if another core holds it.
    ///
    /// Cost: a compare-and-swap; the engine's cost of entering.
    #[inline]
    pub(crate) fn take<'l>(&'l self, shard: u16, context: &'l Context) -> Option<Entered<'l, E>> {
        debug_assert!(shard == context.id || self.are_open_to_all(), "E3");
        let Some(mut kept) = self.lock(shard) else {
            context.counters.engines_held.add(1);
            return None;
        };
        context.catch_up();
        kept.engine.enter(context.place, &context.now());
        Some(Entered { kept, shard, context, is_changed: true })
    }
}

/// An engine that this core holds. It is not sent to other threads.
pub(crate) struct Entered<'l, E: Engine> {
    kept: MutexGuard<'l, Kept<E>>,
    shard: u16,
    context: &'l Context,
    /// Whether the statistics may have changed.
    is_changed: bool,
}

impl<E: Engine> Entered<'_, E> {
    /// Releases an engine in which nothing has changed. Cost: a store.
    #[inline]
    pub(crate) fn release_unchanged(mut self) {
        self.is_changed = false;
    }
}

impl<E: Engine> Deref for Entered<'_, E> {
    type Target = E;

    #[inline]
    fn deref(&self) -> &E {
        &self.kept.engine
    }
}

impl<E: Engine> DerefMut for Entered<'_, E> {
    #[inline]
    fn deref_mut(&mut self) -> &mut E {
        &mut self.kept.engine
    }
}

impl<E: Engine> Drop for Entered<'_, E> {
    /// Publishes the statistics (E2). Cost: a few loads, and a store for each one that changed.
    #[inline]
    fn drop(&mut self) {
        if !self.is_changed {
            return;
        }
        let stats = self.kept.engine.stats();
        let Context { shared, counters, .. } = self.context;
        shared.counters[usize::from(self.shard)].publish(&stats);
        let found = DeadFound { expired: stats.found_expired, flushed: stats.found_flushed };
        let before = std::mem::replace(&mut self.kept.found, found);
        debug_assert!(before.expired <= found.expired, "an engine counts from its start on");
        counters.note_dead(DeadFound {
            expired: found.expired - before.expired,
            flushed: found.flushed - before.flushed,
        });
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

    /// The engine of a shard. `None` if another core holds it; it may be free for a later request
    /// of the batch. `None` also if this core holds as many engines as a batch has requests.
    #[inline]
    pub(crate) fn get(&mut self, shard: u16) -> Option<&mut E> {
        let place = match self.entered.iter().position(|entered| entered.shard == shard) {
            Some(place) => place,
            // The requests need at most as many engines as there is room for, but making room for a
            // client may need one more.
            None if self.entered.is_full() => return None,
            None => {
                self.entered.push(self.engines.take(shard, self.context)?);
                self.entered.len() - 1
            }
        };
        debug_assert!(self.entered[place].shard == shard, "an engine is found by its shard");
        Some(&mut self.entered[place])
    }

    /// The engine that must free memory for a client: the one whose items take most, if this core
    /// may take it, otherwise this core's own. If each core freed memory in its own shard, the
    /// shard with the most clients would evict its items, and the others would fill the memory.
    ///
    /// Cost: a load for each shard.
    #[cold]
    pub(crate) fn fullest(&mut self) -> Option<&mut E> {
        if !self.engines.are_open_to_all() {
            return self.own();
        }
        self.get(self.engines.fullest(self.context))
    }

    /// The engine of this core's own shard, as [`Self::get`] returns it.
    #[inline]
    pub(crate) fn own(&mut self) -> Option<&mut E> {
        self.get(self.context.id)
    }
}

impl<E: Engine> Drop for HeldEngines<'_, E> {
    /// Does a step of upkeep in each engine of another shard, whose own core may sleep. Then
    /// releases all engines.
    fn drop(&mut self) {
        let (own, now) = (self.context.id, self.context.now());
        for engine in self.entered.iter_mut().filter(|entered| entered.shard != own) {
            debug_assert!(self.engines.are_open_to_all(), "E3");
            engine.maintain(&now);
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use kachel_cache::{Cache, Pool, PoolOptions, ShardOf};
    use kachel_engine::{ClockOrigin, Common as _, EngineOptions, KeyHasher, Seeds};
    use kachel_host::Budget;

    use super::*;
    use crate::process::{Shared, SharedOptions};

    const SHARDS: u16 = BATCH_MAX as u16 + 8;

    #[test]
    fn a_core_holds_as_many_engines_as_a_batch_has_requests_and_no_more() {
        let budget = Arc::new(Budget::new(64 << 20));
        let options = PoolOptions { shards: SHARDS, reserve_bytes: 0, huge: false };
        let pool = Pool::new(Arc::clone(&budget), options).expect("address space");
        let hasher = KeyHasher::new(Seeds { hash_keys: [1, 2] }, SHARDS);
        let options = EngineOptions { evict: true, cas: true, item_bytes_max: 1 << 20 };
        let caches = (0..SHARDS).map(|shard| {
            let of = ShardOf { shard, shards: SHARDS };
            let cache = Cache::new(Arc::clone(&pool), Arc::clone(&budget), hasher, options, of);
            cache.expect("address space")
        });
        let engines = Engines::new(caches.collect(), true);
        let options = SharedOptions { shards: SHARDS, ..SharedOptions::default() };
        let shared = Arc::new(Shared::new(options, budget));
        let core = engines.common().register_core().expect("a place");
        let context = Context::new(0, shared, hasher, ClockOrigin::new(0, 0), core.place());
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

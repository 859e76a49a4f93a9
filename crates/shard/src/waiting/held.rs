//! The engines that a core holds for a batch of requests.
//!
//! Upstream:   `serving` and `carry_out`; `memory` for a client that needs memory.
//! Downstream: `entered`.
//!
//! This file cites the invariants of `engines`.

use arrayvec::ArrayVec;
use kachel_engine::{BATCH_MAX, Engine, EngineIndex, Ticket};
use kachel_stdx::Work;

use crate::context::Context;
use crate::waiting::engines::Engines;
use crate::waiting::entered::Entered;
use crate::waiting::parked::Parked;

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

    /// An engine. `None` in three cases: this core may not take it; another core holds it, but may
    /// release it before a later request of the batch; or this core holds as many engines as a
    /// batch has requests.
    #[inline]
    pub(crate) fn get(&mut self, index: EngineIndex) -> Option<&mut Entered<'l, E>> {
        let place = match self.entered.iter().position(|entered| entered.index == index) {
            Some(place) => place,
            // A batch needs at most as many engines as it has requests, but freeing memory for a
            // client may need one more.
            None if self.entered.is_full() => return None,
            None if !self.engines.may_take(index, self.context) => return None, // E3
            None => {
                self.entered.push(self.engines.take(index, self.context)?);
                self.entered.len() - 1
            }
        };
        debug_assert!(self.entered[place].index == index, "an engine is found by its index");
        Some(&mut self.entered[place])
    }

    /// The engine that must free memory for a client: the engine whose items take most memory, of
    /// those that this core may take. If each core freed memory in its own engines, the ones with
    /// the most clients would evict their items, and the others would fill the memory. A core that
    /// may take none has nothing to evict; the others evict when they store next.
    ///
    /// Cost: a load for each engine.
    #[cold]
    pub(crate) fn fullest(&mut self) -> Option<&mut E> {
        let fullest = self.engines.fullest(self.context)?;
        self.get(fullest).map(|entered| &mut **entered)
    }

    /// Releases an engine if its hold has reached the bound (`work`, W2). So the parked requests
    /// are executed, and other cores may take the engine, before the next request of this batch.
    pub(crate) fn release_worked_out(&mut self, index: EngineIndex) {
        let is_worked_out =
            |entered: &Entered<'_, E>| entered.index == index && entered.is_worked_out();
        let Some(place) = self.entered.iter().position(is_worked_out) else { return };
        let mut entered = self.entered.swap_remove(place);
        debug_assert!(entered.index == index, "it is the one that has worked");
        if !self.context.is_home_of(entered.index) {
            entered.maintain(&self.context.now());
        }
    }

    /// Gives a ticket back to an engine, which this core holds.
    #[cold]
    pub(crate) fn forget(&mut self, index: EngineIndex, ticket: Ticket) {
        let held = self.entered.iter_mut().find(|entered| entered.index == index);
        held.expect("who delays a request is held").forget(ticket);
    }

    /// Whether this core holds an engine.
    pub(crate) fn has(&self, index: EngineIndex) -> bool {
        self.entered.iter().any(|entered| entered.index == index)
    }

    /// Leaves a request with its engine ([`Engines::park`]). If this core holds the
    /// engine, the request is executed when the batch ends, or later if it has a ticket.
    pub(crate) fn park(&mut self, work: Work<Parked<E>>) {
        debug_assert!(work.ticket.is_none() || self.has(work.engine()), "who delays it is held");
        if let Some(entered) = self.entered.iter_mut().find(|held| held.index == work.engine()) {
            entered.take_parked();
            return entered.push(work);
        }
        if let Some(entered) = self.engines.park(work, self.context)
            && !self.entered.is_full()
        {
            self.entered.push(entered);
        }
    }
}

impl<E: Engine> Drop for HeldEngines<'_, E> {
    /// Does a step of upkeep in each engine with another home core, which may sleep. Then releases
    /// all engines, and wakes the cores that wait for an answer (`mailboxes`, M2).
    fn drop(&mut self) {
        let Self { context, entered, .. } = self;
        let now = context.now();
        for engine in entered.iter_mut().filter(|entered| !context.is_home_of(entered.index)) {
            debug_assert!(self.engines.are_open_to_all(), "E3");
            engine.maintain(&now);
        }
        self.entered.clear();
        self.engines.mailboxes().wake_noted(self.context);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::rc::Rc;
    use std::sync::Arc;

    use kachel_cache::{Cache, EngineOf, Pool, PoolOptions};
    use kachel_engine::{ClockOrigin, Common as _, EngineOptions, KeyHasher, LeaseOptions, Seeds};
    use kachel_host::Budget;
    use kachel_io::ManualClock;
    use kachel_net::CoreIndex;

    use super::*;
    use crate::cores::homes::Homes;
    use crate::cores::options::SharedOptions;
    use crate::cores::process::Shared;
    use crate::cores::work::WorkMeter;
    use kachel_observe::Log;
    use kachel_observe::Sizes;

    const SHARDS: u16 = BATCH_MAX as u16 + 8;

    #[test]
    fn a_core_holds_as_many_engines_as_a_batch_has_requests_and_no_more() {
        let budget = Arc::new(Budget::new(64 << 20));
        let options = PoolOptions { engines: SHARDS, reserve_bytes: 0, ..PoolOptions::default() };
        let pool = Pool::new(Arc::clone(&budget), options).expect("address space");
        let hasher = KeyHasher::new(Seeds { hash_keys: [1, 2] }, SHARDS);
        let options = EngineOptions {
            evict: true,
            cas: true,
            item_bytes_max: 1 << 20,
            leases: LeaseOptions::DEFAULT,
        };
        let caches = (0..SHARDS).map(|shard| {
            let of = EngineOf { engine: shard, engines: SHARDS };
            let cache = Cache::new(Arc::clone(&pool), Arc::clone(&budget), hasher, options, of);
            cache.expect("address space")
        });
        let engines = Engines::new(caches.collect(), Homes::new(SHARDS, SHARDS, 0), true);
        let options = SharedOptions { shards: SHARDS, ..SharedOptions::default() };
        let shared = Arc::new(Shared::new(options, budget));
        let core = engines.common().register_core().expect("a place");
        let sizes = Sizes::new(engines.common());
        let origin = ClockOrigin::new(0, 0);
        let log = Log::new(0, Vec::new());
        let work = WorkMeter::new(Rc::new(ManualClock::new(0)));
        let context =
            Context::new(CoreIndex(0), shared, hasher, origin, core.place(), sizes, log, work);
        let mut held = HeldEngines::new(&engines, &context);
        let [last, one_more] = [BATCH_MAX as u16 - 1, SHARDS - 1].map(EngineIndex);
        for engine in (0..=last.0).map(EngineIndex) {
            assert!(held.get(engine).is_some() && engines.hold(engine).is_none(), "{engine}");
        }
        assert!(held.get(one_more).is_none(), "it is free, but there is no room for it");
        let first = held.get(EngineIndex(0)).is_some();
        assert!(first && held.get(last).is_some(), "they are held already");
        drop(held);
        let mut all = (0..SHARDS).map(EngineIndex);
        assert!(all.all(|engine| engines.hold(engine).is_some()), "all are released");
    }
}

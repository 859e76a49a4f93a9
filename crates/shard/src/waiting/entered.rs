//! An engine that a core holds: how a core takes it or leaves a request with it, and what the core
//! does before it releases the engine.
//!
//! Upstream:   every stage that changes items; `serve` for a batch of requests, the other stages
//!             for one bounded piece of work.
//! Downstream: `engines`; `backlog` for the requests that other cores leave; `mailboxes` for their
//!             answers.
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
//! This file cites the invariants of `engines`.

use std::ops::{Deref, DerefMut};

use kachel_engine::{DeadFound, Engine, EngineIndex};
use kachel_stdx::{Chain, Guard, Offered, Work};

use crate::context::Context;
use crate::cores::throttle::NEVER_NS;
use crate::cores::work::{HOLD_BYTES_MAX, HoldWork};
use crate::waiting::backlog::{Backlog, RunLimit};
use crate::waiting::calls::Calls;
use crate::waiting::engines::{EngineGuard, Engines, Kept};
use crate::waiting::parked::Parked;

/// The most parked requests that a core executes for others before it releases an engine, and the
/// most delayed ones that are ready.
const PARKED_PER_HOLD_MAX: usize = 64;
/// The most parked requests that a core executes in one tick for its home engines, and the most
/// delayed ones that are ready, besides those that it executes when it releases engines. It limits
/// how long the core's own clients wait.
const PARKED_PER_TICK_MAX: usize = 512;

impl<E: Engine> Engines<E> {
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
            context.note_wake(self.home_of(index)); // E4
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
        let (lock, calls) = (self.lock(index), self.calls(index));
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
        let completed = backlog.complete(engine, &mut done); // Beyond the limit, before requests.
        if completed > 0 {
            calls.note_completed(completed);
            note_fenced(context, calls);
        }
        backlog.ask_for_room(engine, calls);
        let mut executed = backlog.run_ready(context, engine, limit, &mut done);
        executed += backlog.run(context, engine, limit, &mut done);
        backlog.ask_for_room(engine, calls);
        debug_assert!(executed <= 2 * limit.count, "E1");
        self.publish();
        engines.mailboxes().answer(context, done);
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
            note_fenced(self.context, self.engines.calls(self.index));
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

/// Notes the cores that wait for an advance of an engine, or for an operation that it completes.
#[cold]
fn note_fenced(context: &Context, calls: &Calls) {
    calls.take_fenced(|core| {
        if core != context.core {
            context.note_wake(core);
        }
    });
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

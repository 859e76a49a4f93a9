//! Walks over the items of the home engines of a core, to count them by prefix, while prefixes are
//! observed.
//!
//! Upstream:   `tick` has each core continue its walk by one bounded step.
//! Downstream: the home engines of this core; the observers, which get what was counted.
//!
//! ```text
//! switched on --> walk: engine by engine, step by step --> pause --> walk --> ..
//! ```
//!
//! Invariants:
//! - W1  In one tick a core examines at most `WALKED_ITEMS_PER_TICK_MAX` items.
//! - W2  After a walk a core pauses for at least `PAUSE_TIMES_MIN` times as long as the walk has
//!   taken. So walks take at most a twentieth of the time of a core that is idle otherwise, also if
//!   clients switch prefixes off and on all the time: a walk that is broken off counts as one.
//! - W3  A core that sleeps wakes for its next walk, and when prefixes are switched on.
//! - W4  A tick that serves nothing counts as no load while a walk goes on, because a walk needs no
//!   further core and no connection must leave because of it.
//! - W5  A walk is put off while no request for a key and no flush has come since the last one, for
//!   at most `QUIET_NS_MAX`: expiry needs no request.

use std::sync::Arc;

use kachel_engine::{Cursor, Engine, EngineIndex, WalkNext};
use kachel_observe::{Counters, ObserverSet, PrefixTable};

use crate::context::Context;
use crate::cores::throttle::NEVER_NS;
use crate::request::form::LISTED_ITEMS_PER_TICK_MAX;
use crate::waiting::engines::Engines;

/// The most items that a core examines in one tick. A guess: this takes about as long as a quarter
/// of a batch of requests.
const WALKED_ITEMS_PER_TICK_MAX: usize = LISTED_ITEMS_PER_TICK_MAX;
/// The least time between two walks of a core. A guess: a prefix that grows is seen soon enough.
const PAUSE_NS_MIN: u64 = 10_000_000_000;
/// How many times as long as a walk the pause after it takes at least (W2). A guess.
const PAUSE_TIMES_MIN: u64 = 20;

/// The longest time between the ends of two pauses if nothing is requested (W5). A guess.
const QUIET_NS_MAX: u64 = 60_000_000_000;

/// The walk over one engine.
#[derive(Debug)]
struct Walk {
    cursor: Cursor,
    /// Whether all items were examined.
    is_over: bool,
    /// What was counted.
    table: Box<PrefixTable>,
}

/// The walks of one core.
#[derive(Debug)]
pub(crate) struct PrefixWalking {
    /// The switch of prefixes that the core has followed; `None`: they were off.
    epoch: Option<u32>,
    /// The home engines that were walked over since `begun_ns`.
    walked: usize,
    begun_ns: u64,
    /// The walk over the next one, while it is under way.
    walk: Option<Walk>,
    /// When the next walk over all home engines begins. [`NEVER_NS`] while prefixes are off.
    next_ns: u64,
    /// When the pause after the last walk ends (W2).
    pauses_until_ns: u64,
    /// The requests of all cores when the last walk began (W5).
    requests_before: u64,
    /// When the last tick began, if it served nothing and a walk goes on.
    alone_since_ns: Option<u64>,
    /// The time of all such ticks, in nanoseconds (W4).
    alone_ns: u64,
}

impl Default for PrefixWalking {
    fn default() -> Self {
        Self {
            epoch: None,
            walked: 0,
            begun_ns: 0,
            walk: None,
            next_ns: NEVER_NS,
            pauses_until_ns: 0,
            requests_before: u64::MAX,
            alone_since_ns: None,
            alone_ns: 0,
        }
    }
}

impl PrefixWalking {
    /// Whether the core must not sleep, because a walk is under way. Cost: two loads.
    #[inline]
    pub(crate) const fn is_busy(&self) -> bool {
        self.walk.is_some() || self.walked > 0
    }

    /// Whether prefixes were switched, and the core has not noted that yet. Cost: a load or two.
    #[inline]
    pub(crate) fn is_called(&self, context: &Context) -> bool {
        context.shared.observers.prefix_epoch() != self.epoch
    }

    /// When the core must walk again (W3). Cost: a load.
    #[inline]
    pub(crate) const fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// The time that is no load (W4), from its beginning to the last tick that began. Nanoseconds.
    #[inline]
    pub(crate) const fn alone_ns(&self) -> u64 {
        self.alone_ns
    }

    /// Continues the walk, if there is one or one is due. `has_served` says whether this tick has
    /// served clients or other cores. Cost: two loads, while prefixes are off.
    #[inline]
    pub(crate) fn step<E: Engine>(
        &mut self,
        context: &Context,
        engines: &Engines<E>,
        has_served: bool,
    ) {
        if context.gate.observers().has(ObserverSet::PREFIXES) || self.epoch.is_some() {
            let now_ns = context.now_ns();
            self.follow::<E>(context);
            if self.is_busy() || now_ns >= self.next_ns && self.begins(context) {
                self.step_walk(context, engines);
            }
            if let Some(since_ns) = self.alone_since_ns.take() {
                self.alone_ns += now_ns.saturating_sub(since_ns); // W4
            }
            // The next poll waits for nothing, so all of the time until then is this tick's.
            self.alone_since_ns = (self.is_busy() && !has_served).then_some(now_ns);
        }
    }

    /// Whether a walk that is due begins. If not, it is put off (W5).
    fn begins(&mut self, context: &Context) -> bool {
        let now_ns = context.now_ns();
        let of_core = |core: &Arc<Counters>| {
            let Counters { requests, cmd_flush, cmd_flush_prefix, .. } = &**core;
            requests.value() + cmd_flush.value() + cmd_flush_prefix.value()
        };
        let requests = context.shared.totals.cores.iter().map(of_core).sum();
        let is_quiet = self.requests_before == requests;
        if is_quiet && now_ns < self.pauses_until_ns + QUIET_NS_MAX {
            self.next_ns = now_ns + PAUSE_NS_MIN;
            return false;
        }
        self.requests_before = requests;
        true
    }

    /// Begins anew after the pause (W2), or ends, if prefixes were switched.
    fn follow<E: Engine>(&mut self, context: &Context) {
        let epoch = context.shared.observers.prefix_epoch();
        if epoch == self.epoch {
            return;
        }
        if self.is_busy() {
            self.pause(context.now_ns());
        }
        let is_on = E::WALKS_IN_MEMORY && epoch.is_some() && !context.home_engines().is_empty();
        let next_ns = if is_on { self.pauses_until_ns } else { NEVER_NS };
        let Self { pauses_until_ns, alone_ns, .. } = *self;
        *self = Self { epoch, next_ns, pauses_until_ns, alone_ns, ..Self::default() };
    }

    /// Pauses after a walk (W2).
    const fn pause(&mut self, now_ns: u64) {
        let pause_ns = PAUSE_TIMES_MIN * now_ns.saturating_sub(self.begun_ns);
        let pause_ns = if pause_ns < PAUSE_NS_MIN { PAUSE_NS_MIN } else { pause_ns };
        self.pauses_until_ns = now_ns + pause_ns;
    }

    /// Examines some items (W1). Does nothing while another core holds the engine.
    #[cold]
    fn step_walk<E: Engine>(&mut self, context: &Context, engines: &Engines<E>) {
        let (now_ns, observers) = (context.now_ns(), &context.shared.observers);
        let index = context.home_engines()[self.walked];
        let epoch = self.epoch.expect("prefixes are on");
        if !self.is_busy() {
            self.begun_ns = now_ns;
        }
        let begin =
            || Walk { cursor: Cursor::default(), is_over: false, table: observers.begin_walk() };
        let mut walk = self.walk.take().unwrap_or_else(begin);
        if !walk.is_over {
            examine(context, engines, index, &mut walk);
        }
        if !walk.is_over {
            self.walk = Some(walk);
        } else if let Err(table) = observers.end_walk(index, epoch, walk.table, now_ns) {
            self.walk = Some(Walk { table, ..walk }); // It ends in a later tick.
        } else {
            self.walked += 1;
            self.end_after_last(context.home_engines().len(), now_ns);
        }
    }

    /// Pauses if the last of `engines` was walked over.
    fn end_after_last(&mut self, engines: usize, now_ns: u64) {
        if self.walked == engines {
            self.pause(now_ns);
            (self.next_ns, self.walked) = (self.pauses_until_ns, 0);
        }
        debug_assert!(self.walked < engines, "a walk ends with the last engine");
    }
}

/// Examines the next items of an engine. Does nothing while another core holds it.
fn examine<E: Engine>(
    context: &Context,
    engines: &Engines<E>,
    index: EngineIndex,
    Walk { cursor, is_over, table }: &mut Walk,
) {
    let Some(mut engine) = engines.take(index, context) else { return };
    let walked = engine.walk(cursor, &context.now(), WALKED_ITEMS_PER_TICK_MAX, |key, item| {
        table.note_item(key, item.memory_bytes() as u64);
        true
    });
    drop(engine);
    debug_assert!(walked.items <= WALKED_ITEMS_PER_TICK_MAX, "W1");
    context.counters.prefix_walked_items.add(walked.items as u64);
    *is_over = walked.next == WalkNext::End;
}

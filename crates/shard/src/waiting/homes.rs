//! The engines whose home is this core: the requests that wait with them, and their upkeep.
//!
//! Upstream:   `tick`, which does a step for all of them in each tick.
//! Downstream: `entered`.
//!
//! ```text
//!                 step_backlogs            maintain
//! each engine --> is_left: requests wait   upkeep: what is due still
//!                          |                         |
//! the core    -->     is any left?           the most urgent of all --> may it sleep?
//! ```
//!
//! A core that is the home of no engine has nothing to do here.
//!
//! Invariants:
//! - H1  `is_left` and `upkeep` of the core are the most urgent ones of its engines. A core that
//!   sleeps has looked at each of its engines, or has marked the lock of the core that holds it. So
//!   it sleeps no longer than any of its engines allows.

use kachel_engine::{Engine, EngineIndex};

use crate::context::Context;
use crate::cores::throttle::NEVER_NS;
use crate::waiting::engines::Engines;
use crate::waiting::entered::Stepped;

/// The result of the last step of upkeep. The most urgent one is the greatest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Upkeep {
    #[default]
    Nothing,
    /// There may be more to do, but another core held the engine. That core has done a step. It
    /// wakes this core when it releases the engine (`engines`, E4).
    Held,
    /// There may be more to do.
    Due,
}

/// One engine whose home is this core.
#[derive(Debug)]
struct Home {
    engine: EngineIndex,
    /// Whether requests that can be executed waited with the engine when this core last checked.
    is_left: bool,
    upkeep: Upkeep,
}

impl Home {
    /// Executes requests that wait with the engine ([`Engines::step_backlog`]). Returns whether
    /// there were any.
    #[inline]
    fn step_backlog<E: Engine>(&mut self, context: &Context, engines: &Engines<E>) -> bool {
        let Stepped { is_left, executed } =
            engines.step_backlog(self.engine, context, self.is_left);
        self.is_left = is_left;
        executed > 0
    }

    /// Has the engine do a step of upkeep. Returns what is due still.
    #[inline]
    fn maintain<E: Engine>(&mut self, context: &Context, engines: &Engines<E>) -> Upkeep {
        match engines.take(self.engine, context) {
            Some(mut engine) => {
                let is_due = engine.maintain(&context.now()) > 0;
                self.upkeep = if is_due { Upkeep::Due } else { Upkeep::Nothing };
                if !is_due {
                    engine.release_unchanged();
                }
            }
            None if self.upkeep != Upkeep::Nothing => self.upkeep = Upkeep::Held,
            None => {}
        }
        self.upkeep
    }
}

/// The engines whose home is this core.
#[derive(Debug)]
pub(crate) struct HomeEngines {
    homes: Vec<Home>,
    /// Whether requests that can be executed waited with any of them (H1). Pieces of listings are
    /// among these.
    pub(crate) is_left: bool,
    /// The most urgent upkeep of any of them (H1).
    pub(crate) upkeep: Upkeep,
}

impl HomeEngines {
    /// The engines whose home the core of `context` is. Nothing waits with them.
    pub(crate) fn new(context: &Context) -> Self {
        let home = |engine: &EngineIndex| {
            let (is_left, upkeep) = (false, Upkeep::Nothing);
            Home { engine: *engine, is_left, upkeep }
        };
        let homes = context.home_engines().iter().map(home).collect();
        Self { homes, is_left: false, upkeep: Upkeep::Nothing }
    }

    /// Whether other cores have left requests. Cost: a load for each engine.
    #[inline]
    pub(crate) fn have_visitors<E: Engine>(&self, engines: &Engines<E>) -> bool {
        self.homes.iter().any(|home| engines.are_left(home.engine))
    }

    /// Until when the core may sleep as far as they are concerned ([`Engines::sleep_until_ns`]).
    /// `None` if it can do something in one of them now. Cost: four loads for each engine.
    #[inline]
    pub(crate) fn sleep_until_ns<E: Engine>(
        &self,
        context: &Context,
        engines: &Engines<E>,
    ) -> Option<u64> {
        self.homes.iter().try_fold(NEVER_NS, |until_ns, home| {
            let was_held = home.upkeep == Upkeep::Held;
            Some(until_ns.min(engines.sleep_until_ns(home.engine, context, was_held)?))
        })
    }

    /// Whether no core holds any of them, and no requests wait with them.
    pub(crate) fn are_idle<E: Engine>(&self, engines: &Engines<E>) -> bool {
        !self.is_left && self.homes.iter().all(|home| engines.is_idle(home.engine))
    }

    /// The engines with which requests can be executed now, or pieces of listings are asked for.
    pub(crate) fn with_requests(&self) -> impl Iterator<Item = EngineIndex> {
        debug_assert!(self.is_left == self.homes.iter().any(|home| home.is_left), "H1");
        self.homes.iter().filter(|home| home.is_left).map(|home| home.engine)
    }

    /// Executes the requests that other cores have left with them, and the delayed ones that
    /// something has called. Returns whether there were any.
    ///
    /// Cost: four loads for each engine, if there is nothing to do.
    #[inline]
    pub(crate) fn step_backlogs<E: Engine>(
        &mut self,
        context: &Context,
        engines: &Engines<E>,
    ) -> bool {
        let (mut is_left, mut executed) = (false, false);
        for home in &mut self.homes {
            executed |= home.step_backlog(context, engines);
            is_left |= home.is_left;
        }
        self.is_left = is_left;
        executed
    }

    /// Has each engine do a step of upkeep. If another core holds an engine, that core does it.
    #[inline]
    pub(crate) fn maintain<E: Engine>(&mut self, context: &Context, engines: &Engines<E>) {
        let mut upkeep = Upkeep::Nothing;
        for home in &mut self.homes {
            upkeep = upkeep.max(home.maintain(context, engines));
        }
        self.upkeep = upkeep;
    }
}

/// Does a step of upkeep in each engine that has another home core. Wakes the cores of those in
/// which there was something to do, because there may be more (`tick`, I3).
pub(crate) fn maintain_others<E: Engine>(context: &Context, engines: &Engines<E>) {
    debug_assert!(engines.are_open_to_all(), "engines, E3");
    for index in context.homes.all().filter(|engine| !context.is_home_of(*engine)) {
        let Some(mut engine) = engines.take(index, context) else { continue };
        if engine.maintain(&context.now()) == 0 {
            engine.release_unchanged();
            continue;
        }
        drop(engine); // Waking a core is a system call (engines, E1).
        engines.mailboxes().wake(context.homes.core_of(index));
    }
}

//! Looks at engines from outside of the requests: for numbers, at the end of a process, and in
//! tests.
//!
//! Upstream:   `tick` and `stats`; the tests; the code that saves the items of a process that ends.
//! Downstream: `engines`.

use kachel_engine::{Engine, EngineIndex};
use kachel_net::CoreIndex;

use crate::waiting::engines::{EngineGuard, Engines, Kept};
use crate::waiting::mailboxes::Mailboxes;

/// Holds an engine, for tests in which all cores must find it held.
#[must_use]
pub struct Hold<'l, E: Engine> {
    guard: Option<EngineGuard<'l, E>>,
    home: CoreIndex,
    mailboxes: &'l Mailboxes<E>,
}

impl<E: Engine> Drop for Hold<'_, E> {
    /// Leaves the parked requests to the home core of the engine.
    fn drop(&mut self) {
        let Some(guard) = self.guard.take() else { return };
        let is_left = !guard.backlog.is_idle();
        let guard = if is_left { Some(guard) } else { guard.release().err() };
        if let Some(guard) = guard {
            guard.release_leaving();
            self.mailboxes.wake(self.home);
        }
    }
}

impl<E: Engine> Engines<E> {
    /// Lets the caller look at an engine. Waits until no core holds it.
    pub fn inspect<R>(&self, index: EngineIndex, look: impl FnOnce(&E) -> R) -> R {
        self.inspect_kept(index, |kept| look(&kept.engine))
    }

    /// The number of requests that an engine delays. Waits until no core holds the engine.
    pub(crate) fn delayed_count(&self, index: EngineIndex) -> usize {
        self.inspect_kept(index, |kept| kept.backlog.delayed_count())
    }

    fn inspect_kept<R>(&self, index: EngineIndex, look: impl FnOnce(&Kept<E>) -> R) -> R {
        let held = loop {
            match self.hold(index) {
                Some(held) => break held,
                None => std::thread::yield_now(),
            }
        };
        look(held.guard.as_ref().expect("a hold has its guard"))
    }

    /// Lets the caller use an engine of a process that serves no clients any more. `None`
    /// if a core holds it.
    pub fn with_idle<R>(&self, index: EngineIndex, work: impl FnOnce(&mut E) -> R) -> Option<R> {
        let mut guard = self.lock(index).take()?;
        let result = work(&mut guard.engine);
        guard.release_leaving();
        Some(result)
    }

    /// Takes an engine as another core would, and does nothing with it. `None` if a
    /// core holds it.
    pub fn hold(&self, index: EngineIndex) -> Option<Hold<'_, E>> {
        let guard = Some(self.lock(index).take()?);
        let home = self.home_of(index);
        Some(Hold { guard, home, mailboxes: self.mailboxes() })
    }

    /// Whether no core holds an engine, and no requests wait with it.
    pub(crate) fn is_idle(&self, index: EngineIndex) -> bool {
        let idle = |hold: Hold<'_, E>| hold.guard.as_ref().map(|kept| kept.backlog.delayed_count());
        self.lock(index).is_idle() && self.hold(index).and_then(idle) == Some(0)
    }
}

//! What other cores may bring to a core: answers to its parked requests, sockets, and a wake-up.
//!
//! Upstream:   whoever executes a request of another core; `accept`, which hands a socket over;
//!             whoever leaves requests with a shard.
//! Downstream: the core takes what was brought, once a tick.
//!
//! Invariants:
//! - D1  What is brought to an empty door wakes the core behind it if it sleeps. The core raises
//!   its sleeping flag before it looks at its door for the last time.
//! - D2  Waking is a system call, so a core notes whom it must wake while it holds engines, and
//!   wakes them afterwards, before it sleeps itself.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use kachel_engine::Engine;
use kachel_io::Waker;
use kachel_net::EndpointIndex;
use kachel_stdx::{CachePadded, Chain, Returned, Sleeper, Work};

use crate::context::Context;
use crate::parked::Parked;

/// A connection that one core hands over to another.
#[derive(Debug)]
pub(crate) struct Adopted {
    pub(crate) socket: OwnedFd,
    /// The endpoint that its client connected to.
    pub(crate) endpoint: EndpointIndex,
}

/// The door of one core.
struct Door<E: Engine> {
    answers: Returned<Parked<E>>,
    sockets: Returned<Adopted>,
    sleeper: Sleeper,
    /// Set before the core first sleeps.
    waker: OnceLock<Waker>,
}

/// The doors of all cores of a process, by their numbers.
pub(crate) struct Doors<E: Engine>(Vec<CachePadded<Door<E>>>);

impl<E: Engine> Doors<E> {
    /// The doors of `cores` cores. Nothing was brought yet.
    pub(crate) fn new(cores: usize) -> Self {
        let door = || Door {
            answers: Returned::new(),
            sockets: Returned::new(),
            sleeper: Sleeper::new(),
            waker: OnceLock::new(),
        };
        Self((0..cores).map(|_| CachePadded::new(door())).collect())
    }

    fn of(&self, core: u16) -> &Door<E> {
        debug_assert!(usize::from(core) < self.0.len(), "a core of this process");
        &self.0[usize::from(core)]
    }

    /// Sets the waker of a core. The core calls this before its first tick.
    pub(crate) fn set_waker(&self, core: u16, waker: Waker) {
        let set = self.of(core).waker.set(waker);
        assert!(set.is_ok(), "a core has one waker");
    }

    /// The sleeping flag of a core.
    pub(crate) fn sleeper(&self, core: u16) -> &Sleeper {
        &self.of(core).sleeper
    }

    /// Whether nothing was brought to a core. Cost: two loads.
    #[inline]
    pub(crate) fn is_empty(&self, core: u16) -> bool {
        let door = self.of(core);
        door.answers.is_empty() && door.sockets.is_empty()
    }

    /// Brings executed requests back to their cores. Notes the cores that must be woken.
    pub(crate) fn answer(&self, context: &Context, mut done: Chain<Parked<E>>) {
        while let Some(work) = done.pop() {
            let origin = work.origin;
            debug_assert!(origin < context.shards(), "parked, P1: some core waits for it");
            if self.of(origin).answers.push(work) && origin != context.id {
                context.note_wake(origin); // D1, D2
            }
        }
    }

    /// Takes the answers that were brought to a core, the oldest first.
    #[inline]
    pub(crate) fn take_answers(&self, core: u16) -> Chain<Parked<E>> {
        self.of(core).answers.take()
    }

    /// Hands a socket to another core. Notes that it must be woken.
    pub(crate) fn hand_over(&self, context: &Context, core: u16, socket: Adopted) {
        debug_assert!(core != context.id, "a core hands nothing over to itself");
        if self.of(core).sockets.push(Work::new(socket)) {
            context.note_wake(core);
        }
    }

    /// Takes the sockets that were handed to a core.
    #[inline]
    pub(crate) fn take_sockets(&self, core: u16) -> Chain<Adopted> {
        self.of(core).sockets.take()
    }

    /// Wakes a core if it sleeps. Cost: a fence and a load; a system call if it sleeps.
    pub(crate) fn wake(&self, core: u16) {
        let door = self.of(core);
        if door.sleeper.must_wake()
            && let Some(waker) = door.waker.get()
        {
            waker.wake();
        }
    }

    /// Wakes the cores that this one has noted (D2). This core holds no engine.
    #[inline]
    pub(crate) fn wake_noted(&self, context: &Context) {
        while let Some(core) = context.next_to_wake() {
            self.wake(core);
        }
    }
}

//! The mailbox of each core. Other cores put answers to its parked requests there, requests for
//! what only this core has, and connections that it takes over; and then wake it.
//!
//! Upstream:   `entered`, when a core has executed a request of another core, or leaves requests
//!             with an engine; `listing`, which asks a core; `accept`, which hands a connection
//!             over.
//! Downstream: the core empties its mailbox once a tick.
//!
//! Invariants:
//! - M1  A core that puts something into an empty mailbox wakes the mailbox's core if it sleeps. A
//!   core raises its sleeping flag before it checks its mailbox for the last time.
//! - M2  Waking is a system call. So while a core holds engines, it only notes the cores that it
//!   must wake. It wakes them after it has released the engines, and before it sleeps itself.
//! - M3  A record in a mailbox is an answer if the core of the mailbox is its origin. Otherwise
//!   that core executes it (`parked`, `Executor::Core`).

use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use kachel_engine::Engine;
use kachel_io::Waker;
use kachel_net::{ClientProtocol, CoreIndex, EndpointIndex, LoginOwed};
use kachel_stdx::{CachePadded, Chain, Returned, Sleeper, Work};

use crate::context::Context;
use crate::waiting::parked::{Executor, Parked};

/// A connection that one core hands over to another.
#[derive(Debug)]
pub(crate) struct Adopted {
    pub(crate) socket: OwnedFd,
    /// The endpoint that its client connected to.
    pub(crate) endpoint: EndpointIndex,
    /// The protocol of its client, as far as it is known.
    pub(crate) protocol: ClientProtocol,
    /// The login that its client owes. `None` if it owes none.
    pub(crate) login: Option<LoginOwed>,
    /// The sweep of the shard that hands it over.
    pub(crate) sweep: u32,
    /// Its input that is not served yet.
    pub(crate) input: Vec<u8>,
}

/// The mailbox of one core.
struct Mailbox<E: Engine> {
    answers: Returned<Parked<E>>,
    sockets: Returned<Adopted>,
    sleeper: Sleeper,
    /// Set before the core first sleeps.
    waker: OnceLock<Waker>,
}

/// The mailboxes of all cores of a process, by their numbers.
pub(crate) struct Mailboxes<E: Engine>(Vec<CachePadded<Mailbox<E>>>);

impl<E: Engine> Mailboxes<E> {
    /// Makes the mailboxes of `cores` cores, all empty.
    pub(crate) fn new(cores: usize) -> Self {
        let mailbox = || Mailbox {
            answers: Returned::new(),
            sockets: Returned::new(),
            sleeper: Sleeper::new(),
            waker: OnceLock::new(),
        };
        Self((0..cores).map(|_| CachePadded::new(mailbox())).collect())
    }

    fn of(&self, core: CoreIndex) -> &Mailbox<E> {
        debug_assert!(core.number() < self.0.len(), "a core of this process");
        &self.0[core.number()]
    }

    /// Sets the waker of a core. The core calls this before its first tick.
    pub(crate) fn set_waker(&self, core: CoreIndex, waker: Waker) {
        let set = self.of(core).waker.set(waker);
        assert!(set.is_ok(), "a core has one waker");
    }

    /// The sleeping flag of a core.
    pub(crate) fn sleeper(&self, core: CoreIndex) -> &Sleeper {
        &self.of(core).sleeper
    }

    /// Whether the mailbox of a core is empty. Cost: two loads.
    #[inline]
    pub(crate) fn is_empty(&self, core: CoreIndex) -> bool {
        let mailbox = self.of(core);
        mailbox.answers.is_empty() && mailbox.sockets.is_empty()
    }

    /// Brings executed requests back to their cores. Notes the cores that must be woken.
    pub(crate) fn answer(&self, context: &Context, mut done: Chain<Parked<E>>) {
        while let Some(work) = done.pop() {
            let origin = work.origin;
            debug_assert!(origin.0 < context.cores(), "parked, P1: some core waits for it");
            if self.of(origin).answers.push(work) && origin != context.core {
                context.note_wake(origin); // M1, M2
            }
        }
    }

    /// Asks another core for a piece of what only that core has (M3). Notes that it must be woken.
    pub(crate) fn ask(&self, context: &Context, core: CoreIndex, work: Work<Parked<E>>) {
        debug_assert!(core != context.core, "a core asks itself for nothing");
        debug_assert!(work.executor == Executor::Core(core), "M3");
        if self.of(core).answers.push(work) {
            context.note_wake(core); // M1, M2
        }
    }

    /// Takes the answers that were brought to a core, and the requests of other cores, the oldest
    /// first.
    #[inline]
    pub(crate) fn take_answers(&self, core: CoreIndex) -> Chain<Parked<E>> {
        self.of(core).answers.take()
    }

    /// Hands a socket to another core. Notes that this core must be woken.
    pub(crate) fn hand_over(&self, context: &Context, core: CoreIndex, socket: Adopted) {
        debug_assert!(core != context.core, "a core hands nothing over to itself");
        if self.of(core).sockets.push(Work::new(socket)) {
            context.note_wake(core);
        }
    }

    /// Takes the sockets that were handed to a core.
    #[inline]
    pub(crate) fn take_sockets(&self, core: CoreIndex) -> Chain<Adopted> {
        self.of(core).sockets.take()
    }

    /// Wakes a core if it sleeps. Cost: a fence and a load; a system call if it sleeps.
    pub(crate) fn wake(&self, core: CoreIndex) {
        let mailbox = self.of(core);
        if mailbox.sleeper.must_wake()
            && let Some(waker) = mailbox.waker.get()
        {
            waker.wake();
        }
    }

    /// Wakes the cores that this one has noted (M2). This core holds no engine.
    #[inline]
    pub(crate) fn wake_noted(&self, context: &Context) {
        while let Some(core) = context.next_to_wake() {
            self.wake(core);
        }
    }
}

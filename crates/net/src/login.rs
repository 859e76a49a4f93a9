//! Whether the client of a connection must log in.
//!
//! Upstream:   `shard` asks for a login where the listener does, and notes each result.
//! Downstream: `connection` keeps it, and `overdue` closes a client that owes a login for too long.
//!
//! Invariants:
//! - I1  The time in which a login waits for its turn does not count against its client, up to
//!   [`LOGIN_WAIT_SECONDS_MAX`].
//! - I2  After the failure with number n, the next login of the connection is checked 2^(n-1)
//!   seconds later at the earliest. After [`LOGIN_FAILURES_MAX`] the connection is closed.

use kachel_io::Peer;

use crate::attempts::LoginTurn;

/// The failed logins after which a connection is closed.
pub const LOGIN_FAILURES_MAX: u8 = 5;
/// The longest that one login waits for its turn, in sweeps. Then its connection is closed, because
/// its client may be gone without an end of the connection, or behind more than
/// [`crate::WAITING_INPUT_BYTES_MAX`] of input.
pub const LOGIN_WAIT_SECONDS_MAX: u32 = 60;
const SECOND_NS: u64 = 1_000_000_000;

const _: () = assert!(LOGIN_FAILURES_MAX > 0 && LOGIN_FAILURES_MAX < 16, "seconds, not years");

/// A login that a client owes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoginOwed {
    /// The sweep since which it is owed, later by the sweeps in which a login waited (I1).
    pub since: u32,
    /// The client.
    pub peer: Peer,
    /// The logins of this connection that have failed.
    pub failures: u8,
    /// The time before which the next login is not checked, in nanoseconds of the clock (I2).
    pub retry_ns: u64,
    /// The place of the login that waits.
    pub turn: Option<LoginTurn>,
    /// The sweep since which a login waits.
    pub waits_since: Option<u32>,
}

impl LoginOwed {
    /// A login that `peer` owes since the sweep `since`.
    pub const fn new(since: u32, peer: Peer) -> Self {
        Self { since, peer, failures: 0, retry_ns: 0, turn: None, waits_since: None }
    }

    /// The same login on another shard, which counts sweeps of its own. It has given up its place
    /// among those that wait.
    #[must_use]
    pub fn moved(mut self, from_sweep: u32, to_sweep: u32) -> Self {
        self.end_wait(from_sweep);
        self.since = to_sweep.saturating_sub(from_sweep - self.since);
        debug_assert!(self.turn.is_none() && self.since <= to_sweep, "it waits no more");
        self
    }

    /// Notes that a login has failed at `now_ns`. Returns whether the connection must be closed
    /// (I2). A client of a unix socket never waits.
    pub fn note_failure(&mut self, now_ns: u64) -> bool {
        if self.peer == Peer::Local {
            return false;
        }
        debug_assert!(self.failures < LOGIN_FAILURES_MAX, "I2: it was closed");
        self.retry_ns = now_ns + (SECOND_NS << self.failures);
        self.failures += 1;
        self.failures == LOGIN_FAILURES_MAX
    }

    /// Notes that a login waits since this `sweep`, at a place if it has one.
    pub(crate) fn wait(&mut self, turn: Option<LoginTurn>, sweep: u32) {
        debug_assert!(turn.is_none() || self.turn.is_none() || turn == self.turn, "one place");
        self.turn = turn.or(self.turn);
        self.waits_since = self.waits_since.or(Some(sweep));
    }

    /// Notes that no login waits any more (I1).
    pub(crate) fn end_wait(&mut self, sweep: u32) {
        if let Some(waits_since) = self.waits_since.take() {
            debug_assert!(waits_since <= sweep, "sweeps are numbered upwards");
            self.since += sweep - waits_since;
        }
        self.turn = None;
    }

    /// How long its client has owed it at `sweep` without waiting (I1), and how long a login of it
    /// has waited.
    pub(crate) fn seconds(&self, sweep: u32) -> (u32, u32) {
        let counts_until = self.waits_since.unwrap_or(sweep);
        debug_assert!(
            self.since <= counts_until && counts_until <= sweep,
            "a wait is counted once"
        );
        (counts_until - self.since, sweep - counts_until)
    }
}

/// Whether a client must log in.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Login {
    /// It need not.
    NotAsked,
    /// It must, before any other request.
    Owed(LoginOwed),
    /// It has.
    Done(Peer),
}

impl Login {
    /// The login that the client owes.
    #[inline]
    pub(crate) const fn owed(&self) -> Option<&LoginOwed> {
        match self {
            Self::Owed(login) => Some(login),
            Self::NotAsked | Self::Done(_) => None,
        }
    }

    /// As [`Self::owed`], to change it.
    pub(crate) const fn owed_mut(&mut self) -> Option<&mut LoginOwed> {
        match self {
            Self::Owed(login) => Some(login),
            Self::NotAsked | Self::Done(_) => None,
        }
    }

    /// The client, if it must log in or has.
    pub(crate) const fn peer(&self) -> Option<Peer> {
        match *self {
            Self::Owed(LoginOwed { peer, .. }) | Self::Done(peer) => Some(peer),
            Self::NotAsked => None,
        }
    }
}

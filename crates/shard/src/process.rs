//! What all shards of a process read: limits, switches, the counters of all.
//!
//! Upstream:   `kachel` makes one at the start.
//! Downstream: every shard reads it; few things in it are ever written, and none for each request.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32};

use kachel_host::{Budget, Usage};
use kachel_io::SocketName;
use kachel_net::{Endpoints, Overdue, PINNED_PERCENT_MAX};

use crate::counters::Counters;

/// A client that was closed for being slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClosedClient {
    /// Which one.
    pub name: SocketName,
    /// What for.
    pub overdue: Overdue,
}

/// What the process was told at the start.
#[derive(Clone, Debug)]
pub struct SharedOptions {
    /// Shards, which is threads that serve.
    pub shards: u16,
    /// Connections open at once, in the whole process (`-c`).
    pub connections_max: u32,
    /// Whether `flush_all` works (not with `-F`).
    pub flush_allowed: bool,
    /// Whether items may be listed (not with `-X`).
    pub dumps_allowed: bool,
    /// Whether `shutdown` works (`-A`).
    pub shutdown_allowed: bool,
    /// Where clients come in, and what they may take there.
    pub endpoints: Endpoints,
    /// Percent of `-m` that values on their way out may pin before slow readers are closed; 0: all.
    pub pinned_percent: u32,
    /// Tells the operator of a client that was closed for being slow, and does not wait (`-v`).
    pub tell_closed: Option<fn(&ClosedClient)>,
    /// The process's number.
    pub pid: u32,
    /// Asks how much processor time the process has used.
    pub usage: fn() -> Usage,
    /// How memcached would name its version here.
    pub version: &'static str,
    /// Kachel's own version.
    pub own_version: &'static str,
    /// What `stats settings` answers, in memcached's order.
    pub settings: Vec<(String, String)>,
}

impl Default for SharedOptions {
    /// One shard of a process that was told nothing.
    fn default() -> Self {
        Self {
            shards: 1,
            connections_max: 1024,
            flush_allowed: true,
            dumps_allowed: true,
            shutdown_allowed: false,
            endpoints: Endpoints::default(),
            pinned_percent: PINNED_PERCENT_MAX,
            tell_closed: None,
            pid: 1,
            usage: Usage::default,
            version: "1.6.45",
            own_version: "0",
            settings: Vec::new(),
        }
    }
}

/// Shared by all shards of a process.
#[derive(Debug)]
pub struct Shared {
    /// What the process was told.
    pub options: SharedOptions,
    /// Each shard's counters.
    pub counters: Vec<Arc<Counters>>,
    /// The memory that `-m` promises.
    pub budget: Arc<Budget>,
    /// Connections open in the whole process.
    connections: AtomicU32,
    /// Set when the process is to end: shards stop accepting, finish what they owe, and return.
    stopping: AtomicBool,
    /// Shards that have stopped accepting.
    closed: AtomicU32,
    /// Set when a client asked for `shutdown`.
    shutdown: AtomicBool,
    /// Set when one caller has been told that it must end the process.
    end_claimed: AtomicBool,
}

impl Shared {
    /// For a process that starts.
    pub fn new(options: SharedOptions, budget: Arc<Budget>) -> Self {
        let counters = (0..options.shards).map(|_| Arc::default()).collect();
        Self {
            options,
            counters,
            budget,
            connections: AtomicU32::new(0),
            stopping: AtomicBool::new(false),
            closed: AtomicU32::new(0),
            shutdown: AtomicBool::new(false),
            end_claimed: AtomicBool::new(false),
        }
    }

    /// Asks all shards to finish; the caller wakes them afterwards. From now on `claim_end` returns
    /// `false`.
    pub fn stop(&self) {
        self.end_claimed.store(true, Relaxed);
        self.stopping.store(true, Relaxed);
    }

    /// Whether the process is to end.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Relaxed)
    }

    /// Returns `true` to the first caller only: that one asks the process to end. A process that is
    /// asked twice ends at once.
    pub fn claim_end(&self) -> bool {
        !self.end_claimed.swap(true, Relaxed)
    }

    /// A client asked for `shutdown`.
    pub(crate) fn ask_for_shutdown(&self) {
        self.shutdown.store(true, Relaxed);
    }

    /// Whether a client asked for `shutdown` and the caller is to pass that on.
    pub fn take_shutdown(&self) -> bool {
        // Loads come first: this is asked in every tick.
        self.shutdown.load(Relaxed) && !self.end_claimed.load(Relaxed) && self.claim_end()
    }

    /// A shard accepts no more clients; called once by each. Those it accepted are counted before.
    pub(crate) fn note_closed(&self) {
        self.closed.fetch_add(1, Release);
    }

    /// Whether no shard has a connection, or will have one. Until all have closed, one that still
    /// accepts may hand a connection over to any other.
    pub(crate) fn is_over(&self) -> bool {
        self.closed.load(Acquire) == u32::from(self.options.shards) && self.open_connections() == 0
    }

    /// Counts a new connection; `false`, and not counted, at the limit.
    pub(crate) fn admit(&self) -> bool {
        self.connections
            .fetch_update(Relaxed, Relaxed, |open| {
                (open < self.options.connections_max).then_some(open + 1)
            })
            .is_ok()
    }

    /// Connections open in the whole process.
    pub(crate) fn open_connections(&self) -> u32 {
        self.connections.load(Relaxed)
    }

    /// Counts a connection out.
    pub(crate) fn dismiss(&self) {
        let before = self.connections.fetch_sub(1, Relaxed);
        assert!(before > 0, "a connection is dismissed once");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(shards: u16) -> Shared {
        let options = SharedOptions { shards, ..SharedOptions::default() };
        Shared::new(options, Arc::new(Budget::new(1 << 20)))
    }

    #[test]
    fn the_end_is_asked_for_once_whoever_wants_it() {
        let by_client = |shared: &Shared| {
            shared.ask_for_shutdown();
            shared.take_shutdown()
        };
        let by_failure = Shared::claim_end;
        for first in ["a client", "a failure", "a signal"] {
            let shared = shared(2);
            match first {
                "a client" => assert!(by_client(&shared)),
                "a failure" => assert!(by_failure(&shared)),
                _ => shared.stop(),
            }
            assert!(!by_client(&shared) && !by_failure(&shared), "{first} came first");
        }
    }

    #[test]
    fn it_is_over_when_all_have_closed_and_nobody_is_left() {
        let shared = shared(2);
        shared.note_closed();
        assert!(!shared.is_over(), "the other one may accept");
        assert!(shared.admit());
        shared.note_closed();
        assert!(!shared.is_over(), "somebody is left");
        shared.dismiss();
        assert!(shared.is_over());
    }
}

//! What all shards of a process look at: limits, switches, everyone's counters.
//!
//! Upstream:   `kachel` makes one at the start.
//! Downstream: every shard reads it; few things in it are ever written, and none for each request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use kachel_host::{Budget, Usage};

use crate::counters::Counters;

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
    /// Seconds after which a silent connection is closed; 0: never.
    pub idle_timeout_s: u32,
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
            idle_timeout_s: 0,
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
    /// Set when a client asked for `shutdown`.
    shutdown: AtomicBool,
    /// Set when a shard has passed that on.
    shutdown_taken: AtomicBool,
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
            shutdown: AtomicBool::new(false),
            shutdown_taken: AtomicBool::new(false),
        }
    }

    /// Asks all shards to finish; wake them afterwards.
    pub fn stop(&self) {
        self.stopping.store(true, Relaxed);
    }

    /// Whether the process is to end.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Relaxed)
    }

    /// A client asked for `shutdown`.
    pub(crate) fn ask_for_shutdown(&self) {
        self.shutdown.store(true, Relaxed);
    }

    /// Whether a client asked for `shutdown` and nobody was told so yet: it is said once, however
    /// many clients ask, for who hears it twice ends at once.
    pub fn take_shutdown(&self) -> bool {
        // Loads come first: this is asked in every tick.
        self.shutdown.load(Relaxed)
            && !self.shutdown_taken.load(Relaxed)
            && !self.shutdown_taken.swap(true, Relaxed)
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

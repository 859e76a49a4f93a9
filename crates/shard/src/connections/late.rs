//! The sweep: once a second, a check of all clients for late requests and logins, idle clients,
//! clients that do not read their replies, and clients that hold much and read it slowly.
//!
//! Upstream:   `tick` reports that a second has begun. It calls `close` after serving, so input
//!             that has just arrived is in time.
//! Downstream: connections are closed; `slowest` picks among the holders. If a client seems to have
//!             stopped reading, `io` says how much it has acknowledged.
//!
//! Invariants:
//! - I1  A client's time is counted in sweeps of the shard, not by the clock. So a second in which
//!   the process did not run (suspended, starved) counts against no client.

use kachel_engine::{Engine, ReadValue};
use kachel_io::Io;
use kachel_net::{CloseReason, ConnectionIndex, KEPT_BYTES_MAX, Overdue, TooSlow};

use crate::clients::Clients;
use crate::connections::memory::is_too_much_pinned;
use crate::connections::send::Sending;
use crate::connections::slowest::Slowest;
use crate::context::Context;
use crate::cores::options::ClientEvent;

/// A connection whose time is up, and what it was too slow with; `None`: it was idle.
type Late = (ConnectionIndex, Option<Overdue>);

/// When a shard sweeps for clients that are late, and which of them it still has to close.
#[derive(Debug, Default)]
pub(crate) struct LateClients {
    /// The number of the last sweep, from 1 on: the clock for all timeouts (I1). In a process that
    /// always runs it counts seconds.
    sweep: u32,
    is_due: bool,
    was_away: bool,
    /// Whether the last sweep found no client that can be late before it sends something, and
    /// nothing has happened since.
    is_quiet: bool,
    /// Those of one sweep, while they are closed.
    late: Vec<Late>,
    slowest: Slowest,
    pinned_closes: u64,
}

impl LateClients {
    pub(crate) fn new() -> Self {
        Self { sweep: 1, ..Self::default() }
    }

    /// A new second has begun.
    ///
    /// After a pause of the process, the input that clients sent meanwhile may take some ticks to
    /// arrive, so the shard waits with its sweep until the next second. If it was paused in that
    /// second, too, it sweeps all the same.
    pub(crate) fn turn(&mut self, before: u32, second: u32) {
        assert!(before < second, "a turn is to a later second");
        let was_paused = second > before + 1;
        self.is_due = !was_paused || self.was_away;
        self.was_away = was_paused;
        self.sweep += u32::from(self.is_due);
    }

    /// The number of the last sweep.
    pub(crate) const fn sweep(&self) -> u32 {
        self.sweep
    }

    /// Whether slow clients are still to be closed.
    pub(crate) const fn is_busy(&self) -> bool {
        !self.slowest.is_empty()
    }

    /// Whether no client can be late before something happens. Then no sweep is needed.
    pub(crate) const fn is_quiet(&self) -> bool {
        self.is_quiet
    }

    /// Notes that something has happened: a client may be late from now on.
    pub(crate) const fn note_event(&mut self) {
        self.is_quiet = false;
    }

    /// Connections ever closed for what they held pinned.
    pub(crate) const fn pinned_closes(&self) -> u64 {
        self.pinned_closes
    }

    /// Closes the connections whose time is up, once a second, and the next of the slowest.
    pub(crate) fn close<I: Io, E: Engine>(&mut self, on: &mut Sending<'_, I, E>) {
        if std::mem::take(&mut self.is_due) {
            debug_assert!(self.late.is_empty(), "the clients of the last sweep are closed");
            let too_much = is_too_much_pinned(on.context, on.engines.common());
            let (context, sweep) = (on.context, self.sweep);
            debug_assert!(sweep > 0, "sweeps are counted from 1 on");
            (self.slowest, self.is_quiet) =
                collect_late(on.io, context, on.clients, sweep, too_much, &mut self.late);
            while let Some((connection, overdue)) = self.late.pop() {
                match overdue {
                    Some(overdue) => close_slow(on, connection, overdue),
                    None => on.close(connection, CloseReason::IdleTimeout),
                }
            }
        }
        self.close_slowest(on);
    }

    /// Closes the next of the slowest, if still too much is pinned: one a tick, because the kernel
    /// lets go of what is under way a little later, and other shards close theirs.
    fn close_slowest<I: Io, E: Engine>(&mut self, on: &mut Sending<'_, I, E>) {
        while let Some(connection) = self.slowest.take_next() {
            if !is_too_much_pinned(on.context, on.engines.common()) {
                self.slowest = Slowest::new();
                return;
            }
            // There may be another at its place by now, or it has taken what it held.
            let open = on.clients.connections.get(connection);
            let slow = open.and_then(|open| open.outbox().holding().slow(self.sweep));
            if let Some(slow) = slow {
                let overdue = Overdue { with: TooSlow::Holder, seconds: slow.held_s };
                close_slow(on, connection, overdue);
                self.pinned_closes += 1;
                return;
            }
        }
    }
}

/// Closes a client that was too slow, counts it, and has the operator told.
fn close_slow<I: Io, E: Engine>(
    on: &mut Sending<'_, I, E>,
    connection: ConnectionIndex,
    overdue: Overdue,
) {
    debug_assert!(on.clients.connections.get(connection).is_some(), "it is closed once");
    on.context.counters.closes(overdue.with).add(1);
    on.context.tell_client(connection, ClientEvent::TooSlow(overdue));
    on.close(connection, CloseReason::Error);
}

/// Collects into `late` the connections whose time is up. Of the others, cuts the kept requests of
/// clients that do not read to what counts against what they may cost: a tail out of the shard's
/// store may have come with more. Returns which of them are to be closed for holding large values,
/// as long as too much memory is pinned, and whether no client can be late before it sends
/// something.
///
/// Cost: a walk over all connections of the shard, once a second, and a system call for each client
/// that has seemed to read nothing for a while; no allocation for the slowest.
fn collect_late<I: Io, P: ReadValue>(
    io: &mut I,
    context: &Context,
    clients: &mut Clients<P>,
    sweep: u32,
    too_much_pinned: bool,
    late: &mut Vec<Late>,
) -> (Slowest, bool) {
    let mut is_quiet = true;
    let mut slowest = Slowest::new();
    let endpoints = &context.shared.options.endpoints;
    let mut owed_bytes = 0;
    for (index, open) in clients.connections.iter_mut() {
        if open.is_watching() {
            owed_bytes += open.outbox().memory_bytes() as u64;
            continue; // A client that watches has no time limit: it misses lines if it is slow.
        }
        let limits = &endpoints.get(open.endpoint()).limits;
        is_quiet &= limits.idle_s == 0 && open.is_at_rest() && open.login().is_none();
        owed_bytes += open.outbox().memory_bytes() as u64;
        if open.is_paused() && open.idle_sweeps(sweep) > 1 {
            open.input_mut().shrink_to(KEPT_BYTES_MAX);
        }
        let idle = limits.idle_s != 0
            && open.outbox().is_empty()
            && !open.awaits_login_turn()
            && open.idle_sweeps(sweep) > limits.idle_s;
        if idle {
            context.counters.idle_kicks.add(1);
        }
        if open.wants_answer(sweep, limits)
            && let Some(bytes) = io.unacknowledged_bytes(open.socket())
        {
            open.note_unacknowledged(bytes, sweep);
        }
        let overdue = if idle { None } else { open.overdue(sweep, limits) };
        if idle || overdue.is_some() {
            late.push((index, overdue));
        } else if let Some(holder) = open.outbox_mut().holding_mut().sweep(sweep)
            && too_much_pinned
        {
            slowest.offer(holder, index);
        }
    }
    context.counters.owed_bytes.set(owed_bytes);
    (slowest, is_quiet)
}

//! What is looked after once a second: late requests, idle clients, clients that do not read or
//! hold much and take it slowly.
//!
//! Upstream:   `shard::tick`: `turn_second` says that a second has begun, and `close_late` looks
//!             once in it, behind serving: what has just come in came in time.
//! Downstream: connections are closed; `slowest` says which of the holders. `io` is asked what
//!             clients have taken that seem to have stopped reading.
//!
//! Invariants:
//! - I1  A client's time is counted in looks of the shard, not by the clock: a second in which the
//!   process did not run (suspended, starved) is nobody's delay.

use kachel_io::Io;
use kachel_net::{ConnectionIndex, KEPT_BYTES_MAX, Overdue};

use crate::core::Core;
use crate::slowest::Slowest;

/// A connection whose time is up, and what it was too slow with; `None`: with asking for anything.
pub(crate) type Late = (ConnectionIndex, Option<Overdue>);

/// When the shard looks for those who are late.
#[derive(Debug)]
pub(crate) struct Timeouts {
    /// The number of the last look, from 1 on: the clock that clients are measured by (I1). On a
    /// process that always runs it goes as seconds do.
    look: u32,
    is_due: bool,
    was_away: bool,
}

impl Timeouts {
    pub(crate) const fn new() -> Self {
        Self { look: 1, is_due: false, was_away: false }
    }

    /// A new second has begun.
    ///
    /// After a pause of the process what clients did meanwhile may take some ticks to come in: then
    /// the shard looks in the next second only. One that is away again and again looks all the
    /// same.
    pub(crate) fn turn(&mut self, before: u32, second: u32) {
        let was_paused = second > before + 1;
        self.is_due = !was_paused || self.was_away;
        self.was_away = was_paused;
        self.look += u32::from(self.is_due);
    }

    /// The number of the last look.
    pub(crate) const fn look(&self) -> u32 {
        self.look
    }

    /// Whether it is time to look, once for each.
    pub(crate) fn take_due(&mut self) -> bool {
        std::mem::take(&mut self.is_due)
    }
}

/// Collects into `late` the connections whose time is up. Of the others, cuts the kept requests of
/// clients that do not read to what counts against what they may cost: a tail out of the shard's
/// store may have come with more. Returns who of them is to be closed for holding large values, as
/// long as too much memory is pinned.
///
/// Cost: a walk over all connections of the shard, once a second, and a system call for each client
/// that has seemed to read nothing for a while; no allocation for the slowest.
pub(crate) fn collect_late<I: Io>(io: &mut I, core: &mut Core, late: &mut Vec<Late>) -> Slowest {
    let mut slowest = Slowest::new();
    let too_much = core.is_too_much_pinned();
    let look = core.timeouts.look();
    let idle_timeout_s = core.shared.options.idle_timeout_s;
    let limits = core.shared.options.limits;
    let mut owed_bytes = 0;
    for (index, open) in core.connections.iter_mut() {
        owed_bytes += open.outbox.memory_bytes() as u64;
        if open.stalled && look > open.active_look + 1 {
            open.input.tail.shrink_to(KEPT_BYTES_MAX);
        }
        let idle = idle_timeout_s != 0
            && open.outbox.is_empty()
            && look - open.active_look > idle_timeout_s;
        if idle {
            core.counters.idle_kicks.add(1);
        }
        if open.wants_answer(look, &limits)
            && let Some(bytes) = io.unacknowledged_bytes(open.socket)
        {
            open.note_unacknowledged(bytes, look);
        }
        let overdue = if idle { None } else { open.overdue(look, &limits) };
        if idle || overdue.is_some() {
            late.push((index, overdue));
        } else if let Some(holder) = open.outbox.holding_mut().look(look)
            && too_much
        {
            slowest.offer(holder, index);
        }
    }
    core.counters.owed_bytes.set(owed_bytes);
    slowest
}

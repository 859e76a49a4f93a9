//! Bounds on the work that a core does at once, in bytes.
//!
//! Upstream:   `serve` and `carry_out` for the turn of a connection, `entered` and `backlog` for
//!             what is done while an engine is held, `tick` for the whole tick.
//! Downstream: the counters of the longest hold and the longest tick.
//!
//! The engine counts its work in bytes ([`kachel_engine::Engine::work_bytes`]): what it copies, and
//! a fixed number for each item that it examines and each block that it frees. Numbers of requests
//! do not bound work, because one request may cost a thousand times as much as another.
//!
//! Invariants:
//! - W1  A turn is what a tick serves of one connection or exchange; commands before a login count,
//!   too. No request is begun in a turn whose work has reached `TURN_BYTES_MAX`, or in a tick whose
//!   work has reached twice the budget of the tick (`tick_budget_bytes`) plus one turn. A client
//!   whose turn has ended, or has not come, joins the run queue. A tick first serves new input that
//!   is short, with half of its budget. Then it serves the clients that it took off the run queue,
//!   at least the first of them. Then it serves other new input.
//! - W2  No request is begun in a hold of an engine whose work has reached `HOLD_BYTES_MAX`: the
//!   core releases the engine, and takes it again for the next request. The requests that other
//!   cores have parked have a bound of their own, of the same size.
//! - W3  The engine bounds the work of one request: its own bytes, a few blocks, and the work of
//!   making room for these (`kachel_segment`, E1 of `extend` and B1 of `allowance`).
//! - W4  The engine bounds the work of one step of its upkeep (`kachel_segment`, B2 of
//!   `allowance`). A hold has at most one such step, beside the requests.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

use kachel_io::Clock;
use kachel_observe::{Counters, TICK_UNIT_NS};

/// A request counts as this many bytes of work, in addition to the work of the engine. A request
/// that reads a small item takes about as long as a copy of this number of bytes.
pub(crate) const REQUEST_BYTES: u64 = 2048;
/// The work after which the turn of a client ends (W1): 128 small requests. With 256 requests and
/// no budget for the tick, a client beside two that pipeline GETs waited up to five times as long
/// as with memcached (`experiments/e017-neighbors`). With a smaller bound, a client that pipelines
/// needs more polls.
pub const TURN_BYTES_MAX: u64 = 256 * 1024;
/// The largest budget of a tick (W1). A thread of memcached that has 32 clients which pipeline does
/// about as much work between two turns of one client.
pub const TICK_BYTES_MAX: u64 = 16 * TURN_BYTES_MAX;
/// New input that has at most this many bytes is short (W1): a request with its value, or some
/// small requests.
const SHORT_INPUT_BYTES_MAX: usize = 2048;
/// The work that a byte of input is expected to cause: a small request has about 32 bytes.
const WORK_BYTES_PER_INPUT_BYTE: u64 = REQUEST_BYTES / 32;
/// The work after which a core releases an engine (W2). It is as much as a turn, so usually
/// only several connections together reach it.
pub const HOLD_BYTES_MAX: u64 = TURN_BYTES_MAX;

/// The budget of a tick in which `clients` clients have input (W1): half a turn for each, at least
/// one turn, and at most `TICK_BYTES_MAX`. So a tick with two clients that pipeline takes no longer
/// than with one, and a tick with many clients serves enough requests to be worth its poll.
pub(crate) fn tick_budget_bytes(clients: usize) -> u64 {
    let wanted = (clients as u64).saturating_mul(TURN_BYTES_MAX / 2);
    wanted.clamp(TURN_BYTES_MAX, TICK_BYTES_MAX)
}

/// The work that a turn with `input_bytes` of input is expected to cause, in bytes. A turn has at
/// most `turn_requests` requests.
pub(crate) fn expected_bytes(input_bytes: usize, turn_requests: Option<u32>) -> u64 {
    let requests_bytes =
        turn_requests.map_or(TURN_BYTES_MAX, |most| u64::from(most) * REQUEST_BYTES);
    let expected = input_bytes as u64 * WORK_BYTES_PER_INPUT_BYTE;
    expected.min(requests_bytes).clamp(REQUEST_BYTES, TURN_BYTES_MAX)
}

/// The work of one tick for its clients, and its budget (W1).
#[derive(Clone, Copy, Debug)]
pub(crate) struct TickWork {
    budget_bytes: u64,
    done_bytes: u64,
}

impl TickWork {
    /// A tick in which `clients` clients have input.
    pub(crate) fn of(clients: usize) -> Self {
        Self { budget_bytes: tick_budget_bytes(clients), done_bytes: 0 }
    }

    /// Counts work.
    #[inline]
    pub(crate) const fn count(&mut self, bytes: u64) {
        self.done_bytes += bytes;
    }

    /// Whether new input of this length is served before the run queue (W1).
    #[inline]
    pub(crate) const fn is_first(&self, input_bytes: usize) -> bool {
        input_bytes <= SHORT_INPUT_BYTES_MAX && self.done_bytes < self.budget_bytes / 2
    }

    /// Whether no more turns are begun in this tick.
    #[inline]
    pub(crate) const fn is_spent(&self) -> bool {
        self.done_bytes >= self.budget_bytes
    }

    /// The work that may still be done in the turns that were begun. At 0 no more requests are
    /// carried out in this tick.
    #[inline]
    pub(crate) const fn left_bytes(&self) -> u64 {
        (2 * self.budget_bytes + TURN_BYTES_MAX).saturating_sub(self.done_bytes)
    }
}

/// The time of a hold is measured only if its work is at least this number of bytes. Most holds do
/// less, and reading the clock for each of them would slow down small requests.
const MEASURED_BYTES_MIN: u64 = 16 * 1024;

/// The work of one core, and its clock.
pub(crate) struct WorkMeter {
    clock: Rc<dyn Clock>,
    /// The engines' work in this tick, in bytes.
    tick_bytes: Cell<u64>,
    /// When the clock was last read.
    last_ns: Cell<u64>,
    /// The requests that the core had executed when the last tick ended.
    requests_before: Cell<u64>,
}

/// A hold of an engine: when it began, and the work that the engine had done before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HoldWork {
    /// The last reading of the clock before the hold.
    began_ns: u64,
    work_before: u64,
    /// The part of the work of the hold that `tick_bytes` has counted already.
    counted_bytes: u64,
}

impl HoldWork {
    /// The work of the hold so far. `work_bytes` is the work of the engine since its start.
    #[inline]
    pub(crate) const fn bytes(&self, work_bytes: u64) -> u64 {
        debug_assert!(work_bytes >= self.work_before, "an engine counts from its start on");
        work_bytes - self.work_before
    }
}

impl fmt::Debug for WorkMeter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("WorkMeter").field("tick_bytes", &self.tick_bytes).finish()
    }
}

impl WorkMeter {
    /// Makes a meter that has counted nothing.
    pub(crate) const fn new(clock: Rc<dyn Clock>) -> Self {
        Self {
            clock,
            tick_bytes: Cell::new(0),
            last_ns: Cell::new(0),
            requests_before: Cell::new(0),
        }
    }

    /// Begins a tick.
    #[inline]
    pub(crate) fn begin_tick(&self, now_ns: u64) {
        self.last_ns.set(now_ns);
    }

    /// Begins a hold of an engine that has done `work_bytes` so far. The time of the hold counts
    /// from the last reading of the clock, so the result is a little too long.
    #[inline]
    pub(crate) fn begin_hold(&self, work_bytes: u64) -> HoldWork {
        HoldWork { began_ns: self.last_ns.get(), work_before: work_bytes, counted_bytes: 0 }
    }

    /// Counts the work of a hold that is about to end, or that goes on because requests were parked
    /// meanwhile.
    #[inline]
    pub(crate) fn count_hold(&self, hold: &mut HoldWork, work_bytes: u64, counters: &Counters) {
        let bytes = hold.bytes(work_bytes);
        debug_assert!(bytes >= hold.counted_bytes, "a hold only grows");
        if bytes == hold.counted_bytes {
            return;
        }
        self.tick_bytes.set(self.tick_bytes.get() + bytes - hold.counted_bytes);
        hold.counted_bytes = bytes;
        if bytes >= MEASURED_BYTES_MIN {
            self.measure(*hold, counters);
        }
    }

    /// Measures the time of a hold. Cost: a reading of the clock.
    #[cold]
    fn measure(&self, hold: HoldWork, counters: &Counters) {
        let now_ns = self.clock.now_ns();
        self.last_ns.set(now_ns);
        counters.longest_hold_bytes.raise(hold.counted_bytes);
        counters.longest_hold_us.raise(now_ns.saturating_sub(hold.began_ns) / 1000);
    }

    /// Whether an engine has done any work in this tick.
    #[inline]
    pub(crate) fn has_worked(&self) -> bool {
        self.tick_bytes.get() > 0
    }

    /// Ends a tick that began at `began_ns`. Cost: a reading of the clock.
    pub(crate) fn end_tick(&self, began_ns: u64, counters: &Counters) {
        counters.longest_tick_bytes.raise(self.tick_bytes.take());
        let tick_ns = self.clock.now_ns().saturating_sub(began_ns);
        counters.longest_tick_us.raise(tick_ns / 1000);
        counters.tick_times.note(tick_ns / TICK_UNIT_NS);
        let requests = counters.requests.value();
        let before = self.requests_before.replace(requests);
        if requests != before {
            counters.tick_requests.note(requests - before);
        }
    }
}

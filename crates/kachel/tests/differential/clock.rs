//! Watches a server's clock: does its second follow the time at a constant distance?
//!
//! Upstream:   `run` reads both servers' clocks before and after each batch.
//! Downstream: `compare` allows the peer's seconds one more once its clock was seen to jump, and
//!             those that lead to a Unix time as much as the clocks were apart.
//!
//! memcached does not read the time for a command: a timer, set anew each time for one second
//! later, stores the second. Each firing is a little later than the last, and when that adds up to
//! a whole second, one is left out: 1.6.45's `uptime` was seen to go from 11 to 13 within 21 ms. An
//! item read before and shown after is then two seconds old, and was read this instant.
//!
//! The time until a Unix time is that time less the server's own Unix second (`time`). A server
//! adds the seconds since its start to the second of its start. memcached reads that second first,
//! and starts its clock behind its threads: a start that takes a second makes `time` a second late.
//!
//! - C1  A server that takes the whole seconds of a steady clock says a second `u` with
//!   `t + phase - 1 < u <= t + phase`, its phase constant: so `u - t` moves within less than one.

use std::ops::RangeInclusive;
use std::time::Instant;

use kachel_testkit::{Client, Server};

/// How far a clock's second was seen ahead of the time, at most and at least (C1).
pub(crate) struct Distance {
    most: f64,
    least: f64,
}

impl Distance {
    /// Nothing seen yet.
    pub(crate) fn new() -> Self {
        Self { most: f64::NEG_INFINITY, least: f64::INFINITY }
    }

    /// The clock said `second` at some time between the two, in seconds.
    pub(crate) fn note(&mut self, second: u32, before: f64, after: f64) {
        self.most = self.most.max(f64::from(second) - after);
        self.least = self.least.min(f64::from(second) - before);
    }

    /// Whether the clock left a second out, or stood still for one.
    pub(crate) fn has_jumped(&self) -> bool {
        self.most - self.least >= 1.0
    }
}

/// Asks one server for its second.
pub(crate) struct Clock {
    client: Client,
    began: Instant,
    distance: Distance,
    /// Its Unix second, when it was read last and the time before.
    pub(crate) unix: RangeInclusive<i64>,
}

impl Clock {
    /// Begins to watch, on a connection of its own.
    pub(crate) fn new(server: &Server) -> Self {
        let mut client = server.connect();
        let unix = i64::try_from(client.stat("time")).expect("a time");
        Self { client, began: Instant::now(), distance: Distance::new(), unix: unix..=unix }
    }

    /// Reads the server's clock; whether it has jumped so far.
    pub(crate) fn has_jumped(&mut self) -> bool {
        let before = self.began.elapsed().as_secs_f64();
        let uptime = self.uptime();
        let after = self.began.elapsed().as_secs_f64();
        self.distance.note(uptime, before, after);
        let unix = i64::try_from(self.client.stat("time")).expect("a time");
        self.unix = *self.unix.end()..=unix;
        self.distance.has_jumped()
    }

    /// By how many seconds the Unix seconds of two servers may have differed between the last two
    /// times that they were read.
    pub(crate) fn unix_apart_max(&self, other: &Self) -> i64 {
        let ahead = |one: &Self, other: &Self| one.unix.end() - other.unix.start();
        ahead(self, other).max(ahead(other, self))
    }

    fn uptime(&mut self) -> u32 {
        u32::try_from(self.client.stat("uptime")).expect("a short test")
    }
}

/// Whether a clock that says `second(t)` at `t` milliseconds, read every 10 ms, is found to jump.
fn jumps(span_ms: u32, second: impl Fn(u32) -> u32) -> bool {
    let mut distance = Distance::new();
    for at in (0..span_ms).step_by(10) {
        let seen = f64::from(at) / 1000.0;
        distance.note(second(at), seen - 0.005, seen + 0.005);
    }
    distance.has_jumped()
}

#[test]
fn a_clock_that_leaves_a_second_out_is_found() {
    let steady = |at: u32| (at + 370) / 1000;
    assert!(!jumps(20_000, steady), "a steady clock");
    assert!(jumps(120_000, |at| (at / 1010 * 1010 + 370) / 1000), "a timer 10 ms late each time");
    assert!(jumps(20_000, |at| steady(at) + u32::from(at > 7_000)), "a leap");
}

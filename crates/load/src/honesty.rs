//! Tests that an open loop shows a pause of the server, and that a closed loop hides it.
//!
//! Upstream:   `schedule`, `steady` and `tally`, as a run uses them.
//! Downstream: the tests of `agent`; the server and the time are simulated.

use std::collections::VecDeque;

use crate::keys::{Keys, Sizes};
use crate::popularity::{Choice, Popularity};
use crate::protocol::Protocol;
use crate::request::{Next, Outbox, Outcome, Source};
use crate::schedule::{Arrivals, Schedule};
use crate::steady::{Mix, Steady};
use crate::tally::{Tally, Window};

const SECOND_NS: u64 = 1_000_000_000;
/// The server pauses for this time at the start of each second.
const PAUSE_NS: u64 = 100_000_000;
const SERVICE_NS: u64 = 5_000;
/// Length of a run.
pub(crate) const RUN_NS: u64 = 20 * SECOND_NS;

/// A mix of gets of 100 keys.
pub(crate) fn mix() -> Mix {
    Mix {
        protocol: Protocol::Text,
        keys: Keys::new(100, Sizes::Fixed(4), Sizes::Fixed(3), 9).expect("valid"),
        popularity: Popularity::new(100, Choice::Uniform).expect("valid"),
        ratio: "1:0".parse().expect("a ratio"),
        inserts: None,
        keys_per_get: 1,
        ttls: "0".parse().expect("a TTL"),
        check: false,
        look_aside: false,
        ring: None,
    }
}

/// When a request is answered that is sent at this time, by a server that is free at that one.
fn answered_ns(sent_ns: u64, free_ns: u64) -> u64 {
    let start_ns = sent_ns.max(free_ns);
    let in_second_ns = start_ns % SECOND_NS;
    start_ns.max(start_ns - in_second_ns + PAUSE_NS) + SERVICE_NS
}

/// Runs one connection with up to `depth` requests in flight; with a rate, as an open loop.
fn run(rate: Option<f64>, depth: usize) -> Tally {
    let schedule = rate.map(|rate| Schedule::new(rate, Arrivals::Fixed, 0, 3));
    simulate(&mut Steady::new(mix(), schedule, RUN_NS, 3), rate.is_some(), depth)
}

/// Runs one connection with these requests and up to `depth` of them in flight, in virtual time.
pub(crate) fn simulate(source: &mut Steady, open: bool, depth: usize) -> Tally {
    let mut tally = Tally::new(Window { from_ns: 0, until_ns: RUN_NS, open });
    let mut outbox = Outbox::default();
    let mut in_flight: VecDeque<u64> = VecDeque::new();
    let (mut now_ns, mut free_ns) = (0, 0);
    loop {
        if in_flight.len() == depth {
            now_ns = now_ns.max(in_flight.pop_front().expect("the depth is not 0"));
        }
        match source.next(now_ns, &mut outbox) {
            Next::Request(request) => {
                outbox.bytes.clear();
                free_ns = answered_ns(request.sent_ns, free_ns);
                in_flight.push_back(free_ns);
                tally.record(&request, Outcome::Hits(1), free_ns);
            }
            Next::At(at_ns) => now_ns = at_ns,
            Next::Finished => return tally,
            Next::Blocked => panic!("a steady mix never waits for an answer"),
        }
    }
}

#[test]
fn an_open_loop_shows_the_pause_that_a_closed_loop_hides() {
    // A tenth of the requests is due in the pause, and waits for the rest of it. So one in a
    // hundred waits for over 90 ms. The backlog of a pause, 1,000 requests, takes 5 ms.
    let open = run(Some(10_000.0), 4);
    let p99_us = open.response_of_all().value_at_percentile(99.0) as f64 / 1e3;
    assert!((p99_us / 90_000.0 - 1.0).abs() < 0.1, "{p99_us}");
    assert_eq!(open.offered, 200_000);
    // The service time of an open loop hides it, too: only four requests are in flight.
    assert!(open.service.value_at_percentile(99.0) < 10 * SERVICE_NS);
    // In a closed loop a single request sees each pause.
    let closed = run(None, 1).response_of_all();
    let p99_us = closed.value_at_percentile(99.0) as f64 / 1e3;
    assert!(p99_us < 10.0 && closed.max() > PAUSE_NS / 10 * 9, "{p99_us}");
}

//! The sample of a core: which requests are counted by class, logged, or noted by observers.
//!
//! Upstream:   `shard` begins a sample in each tick, and asks for each request whether it is in it.
//! Downstream: the code that counts, logs and notes the requests of the sample.
//!
//! A request is in the sample for one of four reasons:
//!
//! ```text
//! all are            while the log is watched or requests are counted by prefix
//! one of the first   CLASSED_PER_TICK_MAX of the tick, which are counted by size class
//! drawn              one of DRAWN_EVERY on average, while an observer that counts is on
//! picked             its hash is at most a limit, while an observer that follows keys is on
//! ```
//!
//! Invariants:
//! - G1  While no observer is on, a request that is not in the sample pays a load and a branch.
//! - G2  Every request is drawn with the same chance: the gaps between drawn requests are uniform
//!   from 1 to 2 * `DRAWN_EVERY` - 1. So a client that sends its requests in a fixed pattern is
//!   drawn no more and no less often than others.
//! - G3  Whether a key is picked depends only on its hash. So all requests for a picked key are
//!   noted, and none for another one.

use std::cell::Cell;

use kachel_stdx::Gaps;
use kachel_wire::ObserverSet;

use crate::by_class::CLASSED_PER_TICK_MAX;

/// One of this many requests is drawn, on average.
///
/// Why 32: `hot_keys` must find 19 of the 20 hottest keys of 2 million requests at Zipf 0.99.
/// There, the keys of rank 20 and 21 have 6,700 and 6,380 requests. The estimate of such a count
/// has a standard deviation of sqrt(6,700 * (32 - 1)) = 456 requests. So one of the 20 keys that
/// are found is wrong in half of the measurements, and two are wrong in about two of a hundred.
/// With 21, all observers together take up to 2.07 % more instructions; they may take 2 %.
pub const DRAWN_EVERY: u32 = 32;

/// The observers that need drawn requests.
const DRAWING: ObserverSet = ObserverSet::HOT_KEYS.with(ObserverSet::PREFIXES);
/// The observers that need the requests for picked keys.
const PICKING: ObserverSet = ObserverSet::CURVE;
/// A limit of hashes that lets requests reach the countdown, and picks no key (a hash of 0 or 1 is
/// in the sample without a reason, which harms nothing).
const COUNTDOWN_ONLY: u64 = 1;

/// The reasons for which observers note a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noting {
    /// It was drawn: it stands for `DRAWN_EVERY` requests.
    pub is_drawn: bool,
    /// Its key is picked.
    pub is_picked: bool,
    /// The observers that are on.
    pub observers: ObserverSet,
}

/// The sample of a core.
#[derive(Debug)]
pub struct SampleGate {
    /// Requests whose hash is at most this are in the sample. 0: no request is.
    to: Cell<u64>,
    /// `to` after the first requests of the tick.
    rest_to: Cell<u64>,
    /// The requests that are still to be counted by class; `u32::MAX` if all are.
    classed_left: Cell<u32>,
    /// Requests before the next one that is drawn.
    until_drawn: Cell<u32>,
    /// Whether the last request in the sample was drawn.
    is_drawn: Cell<bool>,
    /// The observers that are on in this tick.
    observers: Cell<ObserverSet>,
    /// The greatest hash of a picked key. 0: no key is picked.
    picked_to: Cell<u64>,
    gaps: Cell<Gaps>,
}

impl SampleGate {
    /// A gate without a request. Gaps are drawn from `seed`.
    pub fn new(seed: u64) -> Self {
        Self {
            to: Cell::new(0),
            rest_to: Cell::new(0),
            classed_left: Cell::new(0),
            until_drawn: Cell::new(u32::MAX),
            is_drawn: Cell::new(false),
            observers: Cell::new(ObserverSet::NONE),
            picked_to: Cell::new(0),
            gaps: Cell::new(Gaps::new(seed)),
        }
    }

    /// Begins the sample of a tick. With `is_all` every request is in it. `picked_to` is the
    /// greatest hash of a key that is picked; it is asked for if an observer that picks is on.
    #[inline]
    pub fn begin(&self, is_all: bool, observers: ObserverSet, picked_to: impl FnOnce() -> u64) {
        let rest_to = match observers.is_empty() && self.observers.get().is_empty() {
            true => 0,
            false => self.begin_observing(observers, picked_to),
        };
        self.rest_to.set(if is_all { u64::MAX } else { rest_to });
        self.classed_left.set(if is_all { u32::MAX } else { CLASSED_PER_TICK_MAX });
        self.to.set(u64::MAX);
    }

    /// Follows the observers that are on. Returns the limit of hashes in the sample.
    #[cold]
    fn begin_observing(&self, observers: ObserverSet, picked_to: impl FnOnce() -> u64) -> u64 {
        let before = self.observers.replace(observers);
        if !observers.has(DRAWING) {
            self.until_drawn.set(u32::MAX); // No tick has as many requests.
            self.is_drawn.set(false);
        } else if !before.has(DRAWING) {
            self.until_drawn.set(self.gap());
        }
        self.picked_to.set(if observers.has(PICKING) { picked_to() } else { 0 });
        if observers.is_empty() { 0 } else { self.picked_to.get().max(COUNTDOWN_ONLY) }
    }

    /// Whether the request for a key with this hash is in the sample. Cost: a load, if it is not
    /// and no observer is on (G1).
    #[inline(always)]
    pub fn samples(&self, secret_hash: u64) -> bool {
        let to = self.to.get();
        to != 0 && {
            let (left, is_drawn) = self.until_drawn.get().overflowing_sub(1);
            self.until_drawn.set(left);
            if is_drawn {
                self.is_drawn.set(true);
                self.until_drawn.set(0); // If it is not executed, the next one is drawn.
            }
            is_drawn || secret_hash <= to
        }
    }

    /// Whether the next request in the sample is counted by class ([`Self::is_classed`]).
    pub const fn is_classing(&self) -> bool {
        self.classed_left.get() > 0
    }

    /// Whether a request in the sample is counted by class, and by prefix or logged if any is.
    /// Called once for each request in the sample that was executed.
    pub fn is_classed(&self) -> bool {
        match self.classed_left.get() {
            0 => false,
            u32::MAX => true,
            left => {
                self.classed_left.set(left - 1);
                if left == 1 {
                    self.to.set(self.rest_to.get());
                }
                true
            }
        }
    }

    /// Whether observers note the request in the sample that has this hash.
    #[inline]
    pub const fn notes(&self, secret_hash: u64) -> bool {
        self.is_drawn.get() || self.picks(secret_hash)
    }

    /// Whether the key with this hash is picked.
    const fn picks(&self, secret_hash: u64) -> bool {
        secret_hash <= self.picked_to.get() && self.picked_to.get() > 0
    }

    /// Why observers note a request in the sample, if they do. Called once for each request in the
    /// sample that was executed, while any observer is on.
    #[inline]
    pub fn noting(&self, secret_hash: u64) -> Option<Noting> {
        let is_drawn = self.is_drawn.replace(false);
        if is_drawn {
            self.until_drawn.set(self.gap());
        }
        let is_picked = self.picks(secret_hash);
        let observers = self.observers.get();
        (is_drawn || is_picked).then_some(Noting { is_drawn, is_picked, observers })
    }

    /// The observers that are on in this tick.
    #[inline]
    pub const fn observers(&self) -> ObserverSet {
        self.observers.get()
    }

    /// The requests before the next one that is drawn (G2).
    fn gap(&self) -> u32 {
        let mut gaps = self.gaps.get();
        let gap = gaps.next(DRAWN_EVERY);
        self.gaps.set(gaps);
        gap
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hash that is not picked.
    const NEVER: u64 = u64::MAX;

    /// The requests of a tick of `count` that are in the sample, and those that observers note.
    fn tick(gate: &SampleGate, count: u64, hash: impl Fn(u64) -> u64) -> (u64, u64, u64, u64) {
        let (mut sampled, mut classed, mut drawn, mut picked) = (0, 0, 0, 0);
        for number in 0..count {
            let hash = hash(number);
            if gate.samples(hash) {
                sampled += 1;
                classed += u64::from(gate.is_classed());
                let noting = if gate.notes(hash) { gate.noting(hash) } else { None };
                drawn += u64::from(noting.is_some_and(|noting| noting.is_drawn));
                picked += u64::from(noting.is_some_and(|noting| noting.is_picked));
            }
        }
        (sampled, classed, drawn, picked)
    }

    #[test]
    fn without_observers_only_the_first_requests_of_a_tick_are_sampled() {
        let gate = SampleGate::new(1);
        let first = u64::from(CLASSED_PER_TICK_MAX);
        for _ in 0..3 {
            gate.begin(false, ObserverSet::NONE, || unreachable!("no observer picks"));
            assert_eq!(tick(&gate, 100, |_| NEVER), (first, first, 0, 0));
        }
        gate.begin(true, ObserverSet::NONE, || unreachable!("no observer picks"));
        assert_eq!(tick(&gate, 100, |_| NEVER), (100, 100, 0, 0), "all are");
    }

    #[test]
    fn one_of_32_requests_is_drawn_in_any_pattern() {
        // A client whose every `period`-th request is for one key; ticks of any size.
        for (period, per_tick) in [(1, 1), (2, 3), (8, 32), (16, 1_000)] {
            let gate = SampleGate::new(period);
            let (mut drawn, mut of_key, mut at) = (0_u64, 0_u64, 0_u64);
            while at < 400_000 {
                gate.begin(false, ObserverSet::HOT_KEYS, || unreachable!("none picks"));
                for _ in 0..per_tick {
                    if gate.samples(NEVER) {
                        let _is_classed = gate.is_classed();
                        if gate.noting(NEVER).is_some_and(|noting| noting.is_drawn) {
                            drawn += 1;
                            of_key += u64::from(at % period == 0);
                        }
                    }
                    at += 1;
                }
            }
            let wanted = at / u64::from(DRAWN_EVERY);
            assert!(drawn.abs_diff(wanted) * 100 < wanted, "{period}: {drawn} of {wanted}");
            let wanted = wanted / period;
            assert!(of_key.abs_diff(wanted) * 20 < wanted, "{period}: {of_key} of {wanted}");
        }
    }

    #[test]
    fn every_request_for_a_picked_key_is_noted_and_no_other() {
        let gate = SampleGate::new(1);
        for (is_all, observers) in [
            (false, ObserverSet::CURVE),
            (true, ObserverSet::CURVE),
            (false, ObserverSet::CURVE.with(ObserverSet::HOT_KEYS)),
        ] {
            gate.begin(is_all, observers, || 40);
            let (.., picked) = tick(&gate, 200, |number| number);
            assert_eq!(picked, 41, "G3: hashes 0 to 40");
        }
    }

    #[test]
    fn a_request_that_the_engine_delays_passes_its_turn_on() {
        let gate = SampleGate::new(1);
        gate.begin(false, ObserverSet::HOT_KEYS, || unreachable!("none picks"));
        tick(&gate, 10, |_| NEVER);
        // The sample was asked, and the request was not executed.
        let delayed = (0..2 * DRAWN_EVERY).find(|_| gate.samples(NEVER));
        assert!(delayed.is_some(), "one is drawn");
        assert!(gate.samples(NEVER), "the next one is drawn in its place");
        let observers = ObserverSet::HOT_KEYS;
        let noting = Noting { is_drawn: true, is_picked: false, observers };
        assert_eq!(gate.noting(NEVER), Some(noting));
    }

    #[test]
    fn observers_that_are_switched_off_and_on_again_draw_at_once() {
        let gate = SampleGate::new(1);
        for round in 0..3 {
            gate.begin(false, ObserverSet::NONE, || unreachable!("none picks"));
            assert_eq!(tick(&gate, 100, |_| NEVER).2, 0, "{round}");
            gate.begin(false, ObserverSet::HOT_KEYS, || unreachable!("none picks"));
            assert!(tick(&gate, 100, |_| NEVER).2 > 0, "{round}");
        }
    }
}

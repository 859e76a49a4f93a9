//! ARC: two LRU queues whose sizes adapt to the keys that come back after they were evicted.
//!
//! Upstream:   `PolicyName::start`.
//! Downstream: four queues; those of evicted keys hold no values.
//!
//! Source: Megiddo, Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003, figure
//! 4. Counts of pages are bytes here.

use super::super::queues::{Key, Queues};
use super::{Access, Policy};

/// Keys that were read once recently (T1).
const ONCE: usize = 0;
/// Keys that were read at least twice recently (T2).
const OFTEN: usize = 1;
/// Keys that were evicted from `ONCE` (B1).
const ONCE_GONE: usize = 2;
/// Keys that were evicted from `OFTEN` (B2).
const OFTEN_GONE: usize = 3;

pub(super) struct Arc {
    capacity: u64,
    /// The bytes that `ONCE` should have (p). The steps of the paper are ratios, so it has a
    /// fraction.
    once_target: f64,
    queues: Queues,
}

impl Arc {
    pub(super) fn new(capacity: u64, keys: usize) -> Self {
        Self { capacity, once_target: 0.0, queues: Queues::new(4, keys) }
    }

    /// Moves the target towards the queue that would have kept the key.
    fn adapt(&mut self, from: usize, bytes: u32) {
        let (here, other) =
            (self.queues.bytes(from), self.queues.bytes(ONCE_GONE + OFTEN_GONE - from));
        debug_assert!(here > 0, "the key itself is there");
        let ratio = other as f64 / here.max(1) as f64;
        let step = f64::from(bytes) * ratio.max(1.0);
        self.once_target = match from {
            ONCE_GONE => (self.once_target + step).min(self.capacity as f64),
            _ => (self.once_target - step).max(0.0),
        };
    }

    fn make_room(&mut self, bytes: u32, came_back_often: bool) {
        while self.bytes() + u64::from(bytes) > self.capacity {
            self.replace(came_back_often);
        }
    }

    /// Evicts a key, and keeps its number (REPLACE).
    fn replace(&mut self, came_back_often: bool) {
        let once = self.queues.bytes(ONCE);
        let target = self.once_target;
        let from_once = once > 0
            && (once as f64 > target
                || came_back_often && (once as f64).total_cmp(&target).is_eq());
        let (from, to) = match from_once || self.queues.bytes(OFTEN) == 0 {
            true => (ONCE, ONCE_GONE),
            false => (OFTEN, OFTEN_GONE),
        };
        let (key, bytes) = self.queues.pop(from).expect("memory is full");
        self.queues.push(to, key, bytes);
    }

    /// Forgets evicted keys: `ONCE` with those evicted from it has at most the capacity, and all
    /// queues together twice as much.
    fn forget(&mut self) {
        while self.queues.bytes(ONCE) + self.queues.bytes(ONCE_GONE) > self.capacity
            && self.queues.pop(ONCE_GONE).is_some()
        {}
        let all = |queues: &Queues| (ONCE..=OFTEN_GONE).map(|each| queues.bytes(each)).sum::<u64>();
        while all(&self.queues) > 2 * self.capacity && self.queues.pop(OFTEN_GONE).is_some() {}
    }
}

impl Policy for Arc {
    fn read(&mut self, access: Access) -> bool {
        let is_there = matches!(self.queues.place(access.key), Some(ONCE | OFTEN));
        if is_there {
            self.queues.shift(OFTEN, access.key);
        }
        is_there
    }

    fn insert(&mut self, access: Access) {
        let came_back = self.queues.place(access.key);
        if let Some(from) = came_back {
            self.adapt(from, access.bytes);
            self.queues.remove(access.key);
        }
        self.make_room(access.bytes, came_back == Some(OFTEN_GONE));
        let to = if came_back.is_some() { OFTEN } else { ONCE };
        self.queues.push(to, access.key, access.bytes);
        self.forget();
    }

    fn resize(&mut self, key: Key, bytes: u32) {
        self.queues.resize(key, bytes);
        self.make_room(0, false);
        self.forget();
    }

    fn remove(&mut self, key: Key) {
        self.queues.discard(key);
    }

    fn bytes(&self) -> u64 {
        self.queues.bytes(ONCE) + self.queues.bytes(OFTEN)
    }
}

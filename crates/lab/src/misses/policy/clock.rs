//! CLOCK and SIEVE: a queue with one bit a key, which a read sets.
//!
//! Upstream:   `PolicyName::start`.
//! Downstream: one queue, and the bits.
//!
//! Source of SIEVE: Zhang, Yang, Yue, Vigfusson, Rashmi, "SIEVE is Simpler than LRU", NSDI 2024.

use super::super::queues::{Key, Queues};
use super::{Access, Policy};

/// The key at the back goes first, unless it was read: then it enters again.
pub(super) struct Clock {
    capacity: u64,
    queues: Queues,
    is_read: Vec<bool>,
}

impl Clock {
    pub(super) fn new(capacity: u64, keys: usize) -> Self {
        Self { capacity, queues: Queues::new(1, keys), is_read: vec![false; keys] }
    }
}

impl Policy for Clock {
    fn read(&mut self, access: Access) -> bool {
        let is_there = self.queues.place(access.key).is_some();
        self.is_read[access.key as usize] |= is_there;
        is_there
    }

    fn insert(&mut self, access: Access) {
        while self.queues.bytes(0) + u64::from(access.bytes) > self.capacity {
            let back = self.queues.back(0).expect("a key that fits finds room when all are gone");
            if std::mem::take(&mut self.is_read[back as usize]) {
                self.queues.shift(0, back);
            } else {
                self.queues.remove(back);
            }
        }
        self.is_read[access.key as usize] = false;
        self.queues.push(0, access.key, access.bytes);
    }

    fn remove(&mut self, key: Key) {
        if self.queues.place(key).is_some() {
            self.queues.remove(key);
        }
    }

    fn bytes(&self) -> u64 {
        self.queues.bytes(0)
    }
}

/// A hand goes from the back to the front, clears the bits and evicts the first key without one.
/// Keys stay where they are.
pub(super) struct Sieve {
    capacity: u64,
    queues: Queues,
    is_read: Vec<bool>,
    /// The key that is looked at next. `None`: that at the back.
    hand: Option<Key>,
}

impl Sieve {
    pub(super) fn new(capacity: u64, keys: usize) -> Self {
        let queues = Queues::new(1, keys);
        Self { capacity, queues, is_read: vec![false; keys], hand: None }
    }

    fn evict(&mut self) {
        let back = self.queues.back(0).expect("a key that fits finds room when all are gone");
        let mut key = self.hand.unwrap_or(back);
        while std::mem::take(&mut self.is_read[key as usize]) {
            key = self.queues.newer(key).unwrap_or(back);
        }
        self.hand = self.queues.newer(key);
        self.queues.remove(key);
    }
}

impl Policy for Sieve {
    fn read(&mut self, access: Access) -> bool {
        let is_there = self.queues.place(access.key).is_some();
        self.is_read[access.key as usize] |= is_there;
        is_there
    }

    fn insert(&mut self, access: Access) {
        while self.queues.bytes(0) + u64::from(access.bytes) > self.capacity {
            self.evict();
        }
        self.is_read[access.key as usize] = false;
        self.queues.push(0, access.key, access.bytes);
    }

    fn remove(&mut self, key: Key) {
        if self.queues.place(key).is_none() {
            return;
        }
        if self.hand == Some(key) {
            self.hand = self.queues.newer(key);
        }
        self.queues.remove(key);
    }

    fn bytes(&self) -> u64 {
        self.queues.bytes(0)
    }
}

//! CLOCK and SIEVE: a queue with one bit a key, which a read sets.
//!
//! Upstream:   `PolicyName::start`.
//! Downstream: one queue, and the bits.
//!
//! Source of SIEVE: Zhang, Yang, Yue, Vigfusson, Rashmi, "SIEVE is Simpler than LRU", NSDI 2024.

use super::super::queues::{Key, Queues};
use super::{Access, Policy};

/// A queue whose keys have a bit each.
struct Marked {
    capacity: u64,
    queues: Queues,
    is_read: Vec<bool>,
}

impl Marked {
    fn new(capacity: u64, keys: usize) -> Self {
        Self { capacity, queues: Queues::new(1, keys), is_read: vec![false; keys] }
    }

    fn read(&mut self, key: Key) -> bool {
        let is_there = self.queues.place(key).is_some();
        self.is_read[key as usize] |= is_there;
        is_there
    }

    /// Clears the bit of a key. Returns whether it was set.
    fn clear(&mut self, key: Key) -> bool {
        std::mem::take(&mut self.is_read[key as usize])
    }

    fn has_room(&self, bytes: u32) -> bool {
        self.queues.bytes(0) + u64::from(bytes) <= self.capacity
    }

    /// The key that has been there for longest.
    fn back(&self) -> Key {
        self.queues.back(0).expect("a key that fits finds room when all are gone")
    }

    fn push(&mut self, access: Access) {
        self.is_read[access.key as usize] = false;
        self.queues.push(0, access.key, access.bytes);
    }
}

/// The key at the back goes first, unless it was read: then it enters again.
pub(super) struct Clock(Marked);

impl Clock {
    pub(super) fn new(capacity: u64, keys: usize) -> Self {
        Self(Marked::new(capacity, keys))
    }

    fn make_room(&mut self, bytes: u32) {
        while !self.0.has_room(bytes) {
            let back = self.0.back();
            if self.0.clear(back) {
                self.0.queues.shift(0, back);
            } else {
                self.0.queues.remove(back);
            }
        }
    }
}

impl Policy for Clock {
    fn read(&mut self, access: Access) -> bool {
        self.0.read(access.key)
    }

    fn insert(&mut self, access: Access) {
        self.make_room(access.bytes);
        self.0.push(access);
    }

    fn resize(&mut self, key: Key, bytes: u32) {
        self.0.queues.resize(key, bytes);
        self.make_room(0);
    }

    fn remove(&mut self, key: Key) {
        self.0.queues.discard(key);
    }

    fn bytes(&self) -> u64 {
        self.0.queues.bytes(0)
    }
}

/// A hand goes from the back to the front, clears the bits and evicts the first key without one.
/// Keys stay where they are.
pub(super) struct Sieve {
    marked: Marked,
    /// The key that is looked at next. `None`: that at the back.
    hand: Option<Key>,
}

impl Sieve {
    pub(super) fn new(capacity: u64, keys: usize) -> Self {
        Self { marked: Marked::new(capacity, keys), hand: None }
    }

    fn evict(&mut self) {
        let back = self.marked.back();
        let mut key = self.hand.unwrap_or(back);
        while self.marked.clear(key) {
            key = self.marked.queues.newer(key).unwrap_or(back);
        }
        self.hand = self.marked.queues.newer(key);
        self.marked.queues.remove(key);
    }

    fn make_room(&mut self, bytes: u32) {
        while !self.marked.has_room(bytes) {
            self.evict();
        }
    }
}

impl Policy for Sieve {
    fn read(&mut self, access: Access) -> bool {
        self.marked.read(access.key)
    }

    fn insert(&mut self, access: Access) {
        self.make_room(access.bytes);
        self.marked.push(access);
    }

    fn resize(&mut self, key: Key, bytes: u32) {
        self.marked.queues.resize(key, bytes);
        self.make_room(0);
    }

    fn remove(&mut self, key: Key) {
        let newer = self.marked.queues.place(key).and_then(|_| self.marked.queues.newer(key));
        if self.marked.queues.discard(key) && self.hand == Some(key) {
            self.hand = newer;
        }
    }

    fn bytes(&self) -> u64 {
        self.marked.queues.bytes(0)
    }
}

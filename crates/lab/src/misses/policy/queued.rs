//! FIFO, LRU and segmented LRU.
//!
//! Upstream:   `PolicyName::start`.
//! Downstream: one or two queues.
//!
//! Source of segmented LRU: Karedla, Love, Wherry, "Caching Strategies to Improve Disk System
//! Performance", IEEE Computer 1994.

use std::iter::successors;

use super::super::queues::{Key, Queues};
use super::{Access, Policy};

/// First in, first out.
pub(super) struct Fifo {
    capacity: u64,
    queues: Queues,
}

impl Fifo {
    pub(super) fn new(capacity: u64, keys: usize) -> Self {
        Self { capacity, queues: Queues::new(1, keys) }
    }

    fn make_room(&mut self, bytes: u32) {
        while self.queues.bytes(0) + u64::from(bytes) > self.capacity {
            self.queues.pop(0).expect("a key that fits finds room when all others are gone");
        }
    }
}

impl Policy for Fifo {
    fn read(&mut self, access: Access) -> bool {
        self.queues.place(access.key).is_some()
    }

    fn insert(&mut self, access: Access) {
        self.make_room(access.bytes);
        self.queues.push(0, access.key, access.bytes);
    }

    fn resize(&mut self, key: Key, bytes: u32) {
        self.queues.resize(key, bytes);
        self.make_room(0);
    }

    fn remove(&mut self, key: Key) {
        self.queues.discard(key);
    }

    fn bytes(&self) -> u64 {
        self.queues.bytes(0)
    }
}

/// The least recently used key goes first: FIFO in which a read key enters again.
pub(super) struct Lru(Fifo);

impl Lru {
    pub(super) fn new(capacity: u64, keys: usize) -> Self {
        Self(Fifo::new(capacity, keys))
    }
}

impl Policy for Lru {
    fn read(&mut self, access: Access) -> bool {
        let is_there = self.0.read(access);
        if is_there {
            self.0.queues.shift(0, access.key);
        }
        is_there
    }

    fn insert(&mut self, access: Access) {
        self.0.insert(access);
    }

    fn resize(&mut self, key: Key, bytes: u32) {
        self.0.resize(key, bytes);
    }

    fn remove(&mut self, key: Key) {
        self.0.remove(key);
    }

    fn bytes(&self) -> u64 {
        self.0.bytes()
    }
}

/// New keys are on probation. A key that is read again is protected.
pub(super) struct Slru {
    capacity: u64,
    protected_max: u64,
    queues: Queues,
}

impl Slru {
    pub(super) const PROBATION: usize = 0;
    pub(super) const PROTECTED: usize = 1;
    /// Percent of the memory that protected keys take. As in W-TinyLFU's main memory.
    const PROTECTED_PERCENT: u64 = 80;

    pub(super) fn new(capacity: u64, keys: usize) -> Self {
        let protected_max = capacity * Self::PROTECTED_PERCENT / 100;
        Self { capacity, protected_max, queues: Queues::new(2, keys) }
    }

    /// All keys with their bytes, in the order in which they go.
    pub(super) fn victims(&self) -> impl Iterator<Item = (Key, u32)> {
        let queue = |queue| successors(self.queues.back(queue), |key| self.queues.newer(*key));
        let keys = queue(Self::PROBATION).chain(queue(Self::PROTECTED));
        keys.map(|key| (key, self.queues.bytes_of(key)))
    }

    /// Bytes that a key of `bytes` needs beyond those that are free.
    pub(super) fn lacking(&self, bytes: u32) -> u64 {
        (self.bytes() + u64::from(bytes)).saturating_sub(self.capacity)
    }

    /// Evicts keys until `bytes` are free. Returns the number of those keys.
    pub(super) fn make_room(&mut self, bytes: u32) -> u64 {
        let mut evicted = 0;
        while self.lacking(bytes) > 0 {
            let victim = self.victims().next();
            let (victim, _) = victim.expect("a key that fits finds room when all are gone");
            self.queues.remove(victim);
            evicted += 1;
        }
        evicted
    }

    /// Whether the key is there.
    pub(super) fn has(&self, key: Key) -> bool {
        self.queues.place(key).is_some()
    }

    /// As [`Policy::resize`]. Returns the number of keys that were evicted.
    pub(super) fn resize_and_count(&mut self, key: Key, bytes: u32) -> u64 {
        self.queues.resize(key, bytes);
        self.demote();
        self.make_room(0)
    }

    /// Puts protected keys on probation until those that are left fit.
    fn demote(&mut self) {
        while self.queues.bytes(Self::PROTECTED) > self.protected_max {
            let (key, bytes) = self.queues.pop(Self::PROTECTED).expect("it has bytes");
            self.queues.push(Self::PROBATION, key, bytes);
        }
    }
}

impl Policy for Slru {
    fn read(&mut self, access: Access) -> bool {
        if self.queues.place(access.key).is_none() {
            return false;
        }
        self.queues.shift(Self::PROTECTED, access.key);
        self.demote();
        true
    }

    fn insert(&mut self, access: Access) {
        self.make_room(access.bytes);
        self.queues.push(Self::PROBATION, access.key, access.bytes);
    }

    fn resize(&mut self, key: Key, bytes: u32) {
        self.resize_and_count(key, bytes);
    }

    fn remove(&mut self, key: Key) {
        self.queues.discard(key);
    }

    fn bytes(&self) -> u64 {
        self.queues.bytes(Self::PROBATION) + self.queues.bytes(Self::PROTECTED)
    }
}

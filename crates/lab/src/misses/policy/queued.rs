//! FIFO, LRU and segmented LRU.
//!
//! Upstream:   `PolicyName::start`.
//! Downstream: one or two queues.
//!
//! Source of segmented LRU: Karedla, Love, Wherry, "Caching Strategies to Improve Disk System
//! Performance", IEEE Computer 1994.

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
}

impl Policy for Fifo {
    fn read(&mut self, access: Access) -> bool {
        self.queues.place(access.key).is_some()
    }

    fn insert(&mut self, access: Access) {
        while self.queues.bytes(0) + u64::from(access.bytes) > self.capacity {
            self.queues.pop(0).expect("a key that fits finds room when all others are gone");
        }
        self.queues.push(0, access.key, access.bytes);
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

    /// The key that goes next.
    pub(super) fn victim(&self) -> Option<Key> {
        self.queues.back(Self::PROBATION).or_else(|| self.queues.back(Self::PROTECTED))
    }

    /// Bytes that a key of `bytes` needs beyond those that are free.
    pub(super) fn lacks(&self, bytes: u32) -> bool {
        self.bytes() + u64::from(bytes) > self.capacity
    }
}

impl Policy for Slru {
    fn read(&mut self, access: Access) -> bool {
        if self.queues.place(access.key).is_none() {
            return false;
        }
        self.queues.shift(Self::PROTECTED, access.key);
        while self.queues.bytes(Self::PROTECTED) > self.protected_max {
            let (key, bytes) = self.queues.pop(Self::PROTECTED).expect("it has bytes");
            self.queues.push(Self::PROBATION, key, bytes);
        }
        true
    }

    fn insert(&mut self, access: Access) {
        while self.lacks(access.bytes) {
            let victim = self.victim().expect("a key that fits finds room when all are gone");
            self.queues.remove(victim);
        }
        self.queues.push(Self::PROBATION, access.key, access.bytes);
    }

    fn remove(&mut self, key: Key) {
        self.queues.discard(key);
    }

    fn bytes(&self) -> u64 {
        self.queues.bytes(Self::PROBATION) + self.queues.bytes(Self::PROTECTED)
    }
}

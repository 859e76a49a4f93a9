//! 2Q: keys that were read once in FIFO order, keys that came back in LRU order.
//!
//! Upstream:   `PolicyName::start`.
//! Downstream: three queues; that of evicted keys holds no values.
//!
//! Source: Johnson, Shasha, "2Q: A Low Overhead High Performance Buffer Management Replacement
//! Algorithm", VLDB 1994, the full version, with its parameters: a quarter of the memory for new
//! keys, and as many evicted keys as half of the memory would hold.

use super::super::queues::{Key, Queues};
use super::{Access, Policy};

const NEW: usize = 0;
const MAIN: usize = 1;
/// Keys that were evicted from `NEW`.
const GONE: usize = 2;

pub(super) struct TwoQueues {
    capacity: u64,
    new_max: u64,
    gone_max: u64,
    queues: Queues,
}

impl TwoQueues {
    pub(super) fn new(capacity: u64, keys: usize) -> Self {
        let (new_max, gone_max) = (capacity / 4, capacity / 2);
        Self { capacity, new_max, gone_max, queues: Queues::new(3, keys) }
    }

    fn make_room(&mut self, bytes: u32) {
        while self.bytes() + u64::from(bytes) > self.capacity {
            self.evict();
        }
    }

    fn evict(&mut self) {
        if self.queues.bytes(NEW) > self.new_max || self.queues.bytes(MAIN) == 0 {
            let (key, bytes) =
                self.queues.pop(NEW).expect("memory is full, and not of MAIN's keys");
            self.queues.push(GONE, key, bytes);
            while self.queues.bytes(GONE) > self.gone_max {
                self.queues.pop(GONE);
            }
        } else {
            self.queues.pop(MAIN);
        }
    }
}

impl Policy for TwoQueues {
    fn read(&mut self, access: Access) -> bool {
        match self.queues.place(access.key) {
            Some(MAIN) => self.queues.shift(MAIN, access.key),
            Some(NEW) => {}
            _ => return false,
        }
        true
    }

    fn insert(&mut self, access: Access) {
        let came_back = self.queues.discard(access.key);
        self.make_room(access.bytes);
        self.queues.push(if came_back { MAIN } else { NEW }, access.key, access.bytes);
    }

    fn resize(&mut self, key: Key, bytes: u32) {
        self.queues.resize(key, bytes);
        self.make_room(0);
    }

    fn remove(&mut self, key: Key) {
        self.queues.discard(key);
    }

    fn bytes(&self) -> u64 {
        self.queues.bytes(NEW) + self.queues.bytes(MAIN)
    }
}

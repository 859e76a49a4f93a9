//! S3-FIFO: a small queue filters keys that are read once, before the main queue.
//!
//! Upstream:   `PolicyName::start`.
//! Downstream: three queues; that of evicted keys holds no values.
//!
//! Source: Yang, Zhang, Qiu, Yue, Rashmi, "FIFO Queues are All You Need for Cache Eviction", SOSP
//! 2023, algorithm 1: a tenth of the memory for new keys, and as many evicted keys as the main
//! queue holds. libCacheSim has another rule while the memory fills: once the small queue has its
//! tenth, new keys enter the main queue, until the first key is evicted.

use super::super::queues::{Key, Queues};
use super::{Access, Policy};

const SMALL: usize = 0;
const MAIN: usize = 1;
/// Keys that were evicted from `SMALL`.
const GHOST: usize = 2;
/// Reads that are counted for a key.
const READS_MAX: u8 = 3;

pub(super) struct S3Fifo {
    capacity: u64,
    small_max: u64,
    queues: Queues,
    reads: Vec<u8>,
}

impl S3Fifo {
    pub(super) fn new(capacity: u64, keys: usize) -> Self {
        let (small_max, queues) = (capacity / 10, Queues::new(3, keys));
        Self { capacity, small_max, queues, reads: vec![0; keys] }
    }

    fn make_room(&mut self, bytes: u32) {
        while self.bytes() + u64::from(bytes) > self.capacity {
            self.evict();
        }
    }

    fn evict(&mut self) {
        if self.queues.bytes(SMALL) >= self.small_max && self.queues.bytes(SMALL) > 0
            || self.queues.bytes(MAIN) == 0
        {
            self.evict_small();
        } else {
            self.evict_main();
        }
    }

    /// Keys that were read more than once go on to the main queue, until one goes.
    fn evict_small(&mut self) {
        while let Some((key, bytes)) = self.queues.pop(SMALL) {
            if self.reads[key as usize] <= 1 {
                self.queues.push(GHOST, key, bytes);
                while self.queues.bytes(GHOST) > self.capacity - self.small_max {
                    self.queues.pop(GHOST);
                }
                return;
            }
            self.reads[key as usize] = 0;
            self.queues.push(MAIN, key, bytes);
        }
    }

    /// Keys that were read enter again with one read less, until one goes.
    fn evict_main(&mut self) {
        while let Some((key, bytes)) = self.queues.pop(MAIN) {
            let reads = &mut self.reads[key as usize];
            if *reads == 0 {
                return;
            }
            *reads -= 1;
            self.queues.push(MAIN, key, bytes);
        }
    }
}

impl Policy for S3Fifo {
    fn read(&mut self, access: Access) -> bool {
        let is_there = matches!(self.queues.place(access.key), Some(SMALL | MAIN));
        if is_there {
            let reads = &mut self.reads[access.key as usize];
            *reads = (*reads + 1).min(READS_MAX);
        }
        is_there
    }

    fn insert(&mut self, access: Access) {
        let came_back = self.queues.discard(access.key);
        self.make_room(access.bytes);
        self.reads[access.key as usize] = 0;
        self.queues.push(if came_back { MAIN } else { SMALL }, access.key, access.bytes);
    }

    fn resize(&mut self, key: Key, bytes: u32) {
        self.queues.resize(key, bytes);
        self.make_room(0);
    }

    fn remove(&mut self, key: Key) {
        self.queues.discard(key);
    }

    fn bytes(&self) -> u64 {
        self.queues.bytes(SMALL) + self.queues.bytes(MAIN)
    }
}

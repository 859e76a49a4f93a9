//! W-TinyLFU: a small window, and a main memory that admits a key only if it was read more often
//! than the key that would go.
//!
//! Upstream:   `PolicyName::start`.
//! Downstream: an LRU window, a segmented LRU, and counters of how often keys were read.
//!
//! Source: Einziger, Friedman, Manes, "TinyLFU: A Highly Efficient Cache Admission Policy", ACM
//! Transactions on Storage 2017: a window of 1 %, a main memory of which 80 % are protected,
//! counters of 4 bits that are halved after ten requests for each key that the memory has room for.
//! The paper's counters are a sketch, which needs less memory and counts a little more; ours are
//! exact, so that figures do not depend on a hash. Memory in bytes has room for as many keys as it
//! would hold with the mean size of those that are there.
//!
//! libCacheSim differs: it fills the window and the protected segment before it compares keys; a
//! hit may evict, after which the next key is not compared; its sketch has room for no more keys
//! than the memory, notes no reads in the window, but keys that leave it, and is halved after 32
//! times as many hits as the memory has bytes. `experiments/e040-policies` has the figures.

use super::super::queues::{Key, Queues};
use super::queued::Slru;
use super::{Access, Policy};

/// Percent of the memory for keys that were not yet compared.
const WINDOW_PERCENT: u64 = 1;
/// A counter of 4 bits.
const COUNT_MAX: u8 = 15;
/// Requests for each key that the memory has room for, after which all counters are halved.
const SAMPLE: u64 = 10;

pub(super) struct WTinyLfu {
    capacity: u64,
    window_max: u64,
    window: Queues,
    main: Slru,
    counters: Counters,
    /// Keys in memory.
    count: u64,
}

impl WTinyLfu {
    pub(super) fn new(capacity: u64, keys: usize) -> Self {
        let window_max = capacity * WINDOW_PERCENT / 100;
        Self {
            capacity,
            window_max,
            window: Queues::new(1, keys),
            main: Slru::new(capacity - window_max, keys),
            counters: Counters::new(keys),
            count: 0,
        }
    }

    /// Moves a key from the window to the main memory, if it was read more often than each key that
    /// must go for it. Otherwise the key from the window goes, and no other.
    fn admit(&mut self, candidate: Key, bytes: u32) {
        let reads = self.counters.reads(candidate);
        let mut lacking = self.main.lacking(bytes);
        for (victim, freed) in self.main.victims() {
            if lacking == 0 || reads <= self.counters.reads(victim) {
                break;
            }
            lacking = lacking.saturating_sub(u64::from(freed));
        }
        if lacking > 0 {
            self.count -= 1;
            return;
        }
        self.count -= self.main.make_room(bytes);
        self.main.insert(Access { key: candidate, bytes, next: 0 });
    }

    /// Requests between two halvings of the counters. Empty memory halves nothing.
    fn sample(&self) -> u64 {
        if self.count == 0 {
            return u64::MAX;
        }
        let bytes = u128::from(self.bytes().max(1));
        let keys = u128::from(self.count) * u128::from(self.capacity) / bytes;
        u64::try_from(keys).unwrap_or(u64::MAX).saturating_mul(SAMPLE)
    }

    /// Moves keys on from the window until those that are left fit.
    fn settle(&mut self) {
        while self.window.bytes(0) > self.window_max {
            let (key, bytes) = self.window.pop(0).expect("it has bytes");
            self.admit(key, bytes);
        }
    }
}

impl Policy for WTinyLfu {
    fn read(&mut self, access: Access) -> bool {
        self.counters.note(access.key, self.sample());
        if self.window.place(access.key).is_some() {
            self.window.shift(0, access.key);
            return true;
        }
        self.main.read(access)
    }

    fn insert(&mut self, access: Access) {
        self.window.push(0, access.key, access.bytes);
        self.count += 1;
        self.settle();
    }

    fn resize(&mut self, key: Key, bytes: u32) {
        if self.main.has(key) {
            self.count -= self.main.resize_and_count(key, bytes);
        } else {
            self.window.resize(key, bytes);
            self.settle();
        }
    }

    fn remove(&mut self, key: Key) {
        let before = self.bytes();
        self.window.discard(key);
        self.main.remove(key);
        self.count -= u64::from(self.bytes() < before);
    }

    fn bytes(&self) -> u64 {
        self.window.bytes(0) + self.main.bytes()
    }
}

/// How often each key was read. Recent reads weigh more.
struct Counters {
    counts: Vec<u8>,
    noted: u64,
}

impl Counters {
    fn new(keys: usize) -> Self {
        Self { counts: vec![0; keys], noted: 0 }
    }

    fn reads(&self, key: Key) -> u8 {
        self.counts[key as usize]
    }

    /// Counts a read. After `sample` of them all counters are halved.
    fn note(&mut self, key: Key, sample: u64) {
        let count = &mut self.counts[key as usize];
        *count = (*count + 1).min(COUNT_MAX);
        self.noted += 1;
        if self.noted >= sample {
            self.noted /= 2;
            self.counts.iter_mut().for_each(|count| *count /= 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A large key must be read more often than each of the two small ones that would go for it.
    #[test]
    fn a_candidate_that_is_refused_evicts_no_key() {
        let mut policy = WTinyLfu::new(10, 64);
        let mut is_hit = |key, bytes| {
            let access = Access { key, bytes, next: 0 };
            let is_hit = policy.read(access);
            if !is_hit {
                policy.insert(access);
            }
            is_hit
        };
        let (rare, often, large) = ((1, 5), (2, 5), (3, 10));
        let mut hits = |requests: &[(Key, u32)]| -> Vec<bool> {
            requests.iter().map(|(key, bytes)| is_hit(*key, *bytes)).collect()
        };
        assert_eq!(hits(&[rare, often, often, often]), [false, false, true, true]);
        // The large key is read twice, the rare one once and the other three times.
        assert_eq!(hits(&[large, large, rare]), [false, false, true]);
        // The third time it is equal to the other, the fourth time before both.
        assert_eq!(hits(&[large, large, large, often]), [false, false, true, false]);
        assert_eq!((policy.count, policy.bytes()), (1, 10));
    }
}

//! A count that costs no locked instruction.
//!
//! Upstream:   `shard` and `segment` count with it what statistics tell.
//! Downstream: nothing.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A number that one thread at a time changes, and any thread may read.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `count`. Cost: a load and a store, no locked instruction.
    #[inline]
    pub fn add(&self, count: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(count), Relaxed);
    }

    /// Replaces the number; used for gauges. An equal number is not written, because other cores
    /// may have its cache line.
    #[inline]
    pub fn set(&self, value: u64) {
        if self.0.load(Relaxed) != value {
            self.0.store(value, Relaxed);
        }
    }

    /// Replaces the number if `value` is greater; used for maxima. Cost: a load.
    #[inline]
    pub fn raise(&self, value: u64) {
        if self.0.load(Relaxed) < value {
            self.0.store(value, Relaxed);
        }
        debug_assert!(self.value() >= value, "one thread at a time changes it");
    }

    /// The number now.
    pub fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

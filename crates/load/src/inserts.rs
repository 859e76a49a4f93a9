//! Numbers for keys that are inserted during a run, shared by all threads.
//!
//! Upstream:   `steady` takes a number for each insert and reports its answer.
//! Downstream: the count of keys that reads may expect, as YCSB's acknowledged counter gives it.
//!
//! ```text
//! | preloaded | acknowledged without a gap | in flight or answered out of order |
//! 0           start                       count                                next
//! ```
//!
//! Invariants, cited by number where they are asserted:
//! - I1  Each number is taken once.
//! - I2  Every number below `count` was preloaded or acknowledged.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The numbers of a run.
#[derive(Debug)]
pub(crate) struct Inserts {
    count: AtomicU64,
    window: Mutex<Window>,
}

/// The numbers from `count` on.
#[derive(Debug, Default)]
struct Window {
    next: u64,
    /// Whether each number from `count` to `next` was acknowledged.
    is_done: VecDeque<bool>,
}

impl Inserts {
    /// The first number that is inserted is `start`.
    pub(crate) fn new(start: u64) -> Self {
        let window = Window { next: start, is_done: VecDeque::new() };
        Self { count: AtomicU64::new(start), window: Mutex::new(window) }
    }

    /// Takes a number (I1).
    pub(crate) fn take(&self) -> u64 {
        let mut window = self.window.lock().expect("no panic while it is held");
        window.is_done.push_back(false);
        window.next += 1;
        window.next - 1
    }

    /// The insert of a number was answered.
    pub(crate) fn acknowledge(&self, number: u64) {
        let mut window = self.window.lock().expect("no panic while it is held");
        let mut count = self.count.load(Ordering::Relaxed);
        assert!(number >= count && number < window.next, "I1: acknowledged once");
        window.is_done[(number - count) as usize] = true;
        while window.is_done.pop_front_if(|is_done| *is_done).is_some() {
            count += 1;
        }
        self.count.store(count, Ordering::Relaxed); // I2
    }

    /// The number of keys that are there.
    #[inline]
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_grows_when_a_gap_closes() {
        let inserts = Inserts::new(10);
        let taken: Vec<u64> = (0..4).map(|_| inserts.take()).collect();
        assert_eq!(taken, [10, 11, 12, 13], "I1");
        for (number, count) in [(11, 10), (12, 10), (10, 13), (13, 14)] {
            inserts.acknowledge(number);
            assert_eq!(inserts.count(), count, "I2");
        }
        assert_eq!(inserts.take(), 14);
    }
}

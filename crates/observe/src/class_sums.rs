//! Counts of all engines by size class, since the last `stats reset`.
//!
//! Upstream:   `classes`, and the shard that resets all counts, on any core.
//! Downstream: the engines' readers, which know the counts without a lock.

use std::sync::{Mutex, PoisonError};

use kachel_engine::{ClassStats, ReadBeside};
use kachel_stdx::SizeClasses;

/// The counts of the items that are gone, by size class, in all engines.
#[derive(Debug)]
pub struct ClassSums<R> {
    /// A reader of each engine.
    readers: Vec<R>,
    /// The sums at the last `stats reset`, by class.
    before: Mutex<[ClassStats; SizeClasses::MAX]>,
}

impl<R: ReadBeside> ClassSums<R> {
    /// The counts of the engines that these read.
    pub fn new(readers: Vec<R>) -> Self {
        assert!(!readers.is_empty(), "each engine counts");
        Self { readers, before: Mutex::new([ClassStats::default(); SizeClasses::MAX]) }
    }

    /// Counts of the items of a size class that are gone, in all engines since the last `stats
    /// reset`.
    ///
    /// Cost: a few loads for each engine.
    pub fn of(&self, class: u8) -> ClassStats {
        debug_assert!(usize::from(class) < SizeClasses::MAX, "a class of the engine");
        // The sums are read behind the lock, so they are not older than those of the last reset.
        let before = self.before.lock().unwrap_or_else(PoisonError::into_inner);
        since(&before[usize::from(class) % SizeClasses::MAX], self.sums(class))
    }

    /// The sums over all engines since the start. The age is the longest one.
    fn sums(&self, class: u8) -> ClassStats {
        debug_assert!(!self.readers.is_empty(), "each engine counts");
        self.readers.iter().fold(ClassStats::default(), |sum, engine| {
            let one = engine.class_stats(class);
            ClassStats {
                evicted: sum.evicted + one.evicted,
                evicted_with_expiry: sum.evicted_with_expiry + one.evicted_with_expiry,
                evicted_age_s: sum.evicted_age_s.max(one.evicted_age_s),
                evicted_unfetched: sum.evicted_unfetched + one.evicted_unfetched,
                evicted_active: sum.evicted_active + one.evicted_active,
                reclaimed: sum.reclaimed + one.reclaimed,
                expired_unfetched: sum.expired_unfetched + one.expired_unfetched,
            }
        })
    }

    /// Lets the counts begin anew (`stats reset`). Any core may call this.
    pub fn reset(&self) {
        let mut before = self.before.lock().unwrap_or_else(PoisonError::into_inner);
        *before = std::array::from_fn(|class| self.sums(class as u8));
    }
}

/// The counts of a class since the sums were `before`. The age is the longest one since the start,
/// if anything was evicted. An engine may count while its counts are read one after the other, so a
/// count is never below 0.
fn since(before: &ClassStats, now: ClassStats) -> ClassStats {
    let evicted = now.evicted.saturating_sub(before.evicted);
    let with_expiry = now.evicted_with_expiry.saturating_sub(before.evicted_with_expiry);
    ClassStats {
        evicted,
        evicted_with_expiry: with_expiry.min(evicted),
        evicted_age_s: if evicted == 0 { 0 } else { now.evicted_age_s },
        evicted_unfetched: now.evicted_unfetched.saturating_sub(before.evicted_unfetched),
        evicted_active: now.evicted_active.saturating_sub(before.evicted_active),
        reclaimed: now.reclaimed.saturating_sub(before.reclaimed),
        expired_unfetched: now.expired_unfetched.saturating_sub(before.expired_unfetched),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_a_class_are_never_below_the_ones_at_the_reset() {
        let of = |count| ClassStats {
            evicted: count,
            evicted_with_expiry: count,
            evicted_age_s: 7,
            evicted_unfetched: count,
            evicted_active: count,
            reclaimed: count,
            expired_unfetched: count,
        };
        assert_eq!(since(&of(5), of(9)), ClassStats { evicted_age_s: 7, ..of(4) });
        assert_eq!(since(&of(9), of(5)), ClassStats::default(), "the reset came in between");
        let more = ClassStats { evicted_with_expiry: 11, ..of(9) };
        assert_eq!(since(&of(5), more).evicted_with_expiry, 4, "counted while it was read");
    }
}

//! Counts of all engines by size class, since the last `stats reset`.
//!
//! Upstream:   `classes` and `admin`, on any core.
//! Downstream: the engines' readers, which know the counts without a lock.

use std::sync::PoisonError;

use kachel_engine::{ClassStats, Engine, ReadBeside as _};
use kachel_stdx::SizeClasses;

use crate::waiting::engines::Engines;

impl<E: Engine> Engines<E> {
    /// Counts of the items of a size class that are gone, in all engines since the last `stats
    /// reset`.
    ///
    /// Cost: a few loads for each shard.
    pub(crate) fn class_stats(&self, class: u8) -> ClassStats {
        debug_assert!(usize::from(class) < SizeClasses::MAX, "a class of the engine");
        // The sums are read behind the lock, so they are not older than those of the last reset.
        let before = self.counted_before.lock().unwrap_or_else(PoisonError::into_inner);
        since(&before[usize::from(class) % SizeClasses::MAX], self.class_sums(class))
    }

    /// The sums over all shards since the start. The age is the longest one.
    fn class_sums(&self, class: u8) -> ClassStats {
        debug_assert!(!self.counted.is_empty(), "each engine counts");
        self.counted.iter().fold(ClassStats::default(), |sum, shard| {
            let one = shard.class_stats(class);
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

    /// Lets the counts by size class begin anew (`stats reset`). Any core may call this.
    pub(crate) fn reset_class_stats(&self) {
        let mut before = self.counted_before.lock().unwrap_or_else(PoisonError::into_inner);
        *before = std::array::from_fn(|class| self.class_sums(class as u8));
    }
}

/// The counts of a class since the sums were `before`. The age is the longest one since the start,
/// if anything was evicted. A shard may count while its counts are read one after the other, so a
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

#[cfg(all(test, not(shuttle)))]
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

//! The process's one memory budget: the limit of `-m`, counted in bytes.
//!
//! Upstream:   the index, segments, large values, unfinished uploads, long lines and replies
//!             that are not read are charged to it.
//! Downstream: nothing; it only counts.
//!
//! Invariants:
//! - I1  `spent` is the sum of all charges not yet refunded.
//! - I2  A charge that would take `spent` over `limit`, or over the overdraft that its caller
//!   allows, is refused whole. Only `charge_ahead` is never refused.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that the process may spend on data, shared by all shards.
///
/// Cost: one atomic read-modify-write a charge; charges are segments and index pages, never items.
#[derive(Debug)]
pub struct Budget {
    limit: AtomicU64,
    spent: AtomicU64,
}

impl Budget {
    /// A budget of `limit_bytes`, nothing of it spent.
    pub const fn new(limit_bytes: u64) -> Self {
        Self { limit: AtomicU64::new(limit_bytes), spent: AtomicU64::new(0) }
    }

    /// Takes `bytes` from the budget. Returns `false`, and takes nothing, when they do not fit
    /// (I2).
    #[must_use]
    pub fn charge(&self, bytes: u64) -> bool {
        self.charge_overdrawing(bytes, 0)
    }

    /// As [`Self::charge`], but the budget may be overdrawn by up to `overdraft_bytes` afterwards.
    #[must_use]
    pub fn charge_overdrawing(&self, bytes: u64, overdraft_bytes: u64) -> bool {
        let limit = self.limit.load(Ordering::Relaxed).saturating_add(overdraft_bytes);
        self.spent
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |spent| {
                spent.checked_add(bytes).filter(|&sum| sum <= limit)
            })
            .is_ok()
    }

    /// Takes `bytes` from the budget whether they fit or not. The caller bounds what it charges
    /// like this.
    pub fn charge_ahead(&self, bytes: u64) {
        self.spent.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Gives `bytes` back that were charged before.
    ///
    /// Panics: when more bytes are given back than were charged, which is a bug (I1).
    pub fn refund(&self, bytes: u64) {
        let before = self.spent.fetch_sub(bytes, Ordering::Relaxed);
        assert!(before >= bytes, "I1: {bytes} bytes refunded of {before} charged");
    }

    /// Bytes charged now.
    pub fn spent_bytes(&self) -> u64 {
        self.spent.load(Ordering::Relaxed)
    }

    /// Bytes that may be charged in all.
    pub fn limit_bytes(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Changes the limit (`cache_memlimit`). If more is spent than the new limit, charges fail
    /// until enough is refunded.
    pub fn set_limit_bytes(&self, limit_bytes: u64) {
        self.limit.store(limit_bytes, Ordering::Relaxed);
    }

    /// Bytes by which spending exceeds the limit, after the limit was lowered or a charge was made
    /// ahead; 0 otherwise.
    pub fn overdrawn_bytes(&self) -> u64 {
        self.spent_bytes().saturating_sub(self.limit_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_charge_over_the_limit_is_refused_whole() {
        let budget = Budget::new(100);
        assert!(budget.charge(60));
        assert!(!budget.charge(41));
        assert_eq!(budget.spent_bytes(), 60);
        assert!(budget.charge(40));
        budget.refund(100);
        assert_eq!(budget.spent_bytes(), 0);
    }

    #[test]
    fn a_charge_over_the_overdraft_is_refused_whole() {
        let budget = Budget::new(100);
        assert!(budget.charge_overdrawing(130, 30));
        assert!(!budget.charge_overdrawing(1, 30) && !budget.charge(1));
        assert_eq!(budget.overdrawn_bytes(), 30);
        assert!(budget.charge_overdrawing(1, u64::MAX), "it has no limit");
    }

    #[test]
    fn a_lowered_limit_shows_what_must_come_back() {
        let budget = Budget::new(100);
        assert!(budget.charge(100));
        budget.set_limit_bytes(70);
        assert_eq!(budget.overdrawn_bytes(), 30);
        assert!(!budget.charge(1));
    }

    #[test]
    #[should_panic(expected = "I1")]
    fn a_refund_of_what_was_never_charged_is_a_bug() {
        Budget::new(100).refund(1);
    }
}

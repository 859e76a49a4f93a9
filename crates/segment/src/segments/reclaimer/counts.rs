//! Counts of the items that reclaiming has evicted, expired and copied since the start.
//!
//! Upstream:   the reclaimer counts; `stats` of the server adds the shards up.
//! Downstream: nothing.
//!
//! Invariants:
//! - N1  Counts only grow. The count of unfetched items that were evicted or expired is at most the
//!   count of all that were.

use crate::layout::Access;

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) compacted: u64,
    pub(crate) ghost_hits: u64,
    pub(crate) evictions: u64,
    pub(crate) evicted_unfetched: u64,
    pub(crate) evicted_active: u64,
    pub(crate) evicted_age_s: u64,
    pub(crate) expired_unfetched: u64,
    pub(crate) reclaimed: u64,
    pub(crate) prefix_flushed: u64,
    pub(crate) refused: u64,
}

impl Counts {
    /// Counts an item that is evicted in second `now`.
    pub(crate) fn note_evicted(&mut self, access: Access, now: u32) {
        self.evictions += 1;
        self.evicted_unfetched += u64::from(!access.fetched());
        self.evicted_active += u64::from(access.active());
        self.evicted_age_s += u64::from(now.saturating_sub(access.last_access()));
        debug_assert!(self.evicted_unfetched <= self.evictions, "N1");
    }

    /// Counts an item that was found expired or flushed. As in memcached, both are reclaimed, and
    /// both are expired if they were never read. `by_prefix`: it was flushed with its prefix.
    pub(crate) fn note_reclaimed(&mut self, access: Access, by_prefix: bool) {
        self.reclaimed += 1;
        self.prefix_flushed += u64::from(by_prefix);
        self.expired_unfetched += u64::from(!access.fetched());
        debug_assert!(self.expired_unfetched <= self.reclaimed, "N1");
    }
}

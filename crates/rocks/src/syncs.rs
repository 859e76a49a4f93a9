//! Syncs of a database in the mode `interval`: what was written, and when it must be on the disk.
//!
//! Upstream:   `engine`, which writes batches and makes the calls.
//! Downstream: nothing.
//!
//! ```text
//! written --> owed --reach, after the interval--> wanted --begin--> under way --end-->
//! ```
//!
//! Invariants:
//! - N1  One sync at a time is under way. A batch that is written meanwhile is owed a later one.

use crate::options::RocksSync;

/// The syncs of a database.
#[derive(Debug)]
pub(crate) struct Syncs {
    mode: RocksSync,
    /// Whether something was written since the last sync began.
    is_owed: bool,
    /// When the next sync begins, in nanoseconds of the monotonic clock.
    due_ns: Option<u64>,
    is_wanted: bool,
    is_under_way: bool,
}

impl Syncs {
    /// The syncs of a database to which nothing was written.
    pub(crate) const fn new(mode: RocksSync) -> Self {
        Self { mode, is_owed: false, due_ns: None, is_wanted: false, is_under_way: false }
    }

    /// Whether each batch is synced as it is written.
    pub(crate) fn is_always(&self) -> bool {
        self.mode == RocksSync::Always
    }

    /// A batch was written; `is_synced`: and synced.
    pub(crate) const fn note_written(&mut self, is_synced: bool) {
        self.is_owed |= !is_synced && matches!(self.mode, RocksSync::Interval(_));
    }

    /// When [`Self::reach`] must be called. 0: as soon as the time is known.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        let waits = self.is_owed && !self.is_wanted && !self.is_under_way;
        waits.then(|| self.due_ns.unwrap_or(0))
    }

    /// Wants a sync if the interval is over.
    pub(crate) fn reach(&mut self, now_ns: u64) {
        let RocksSync::Interval(interval_ns) = self.mode else { return };
        if self.deadline_ns().is_some() {
            let due_ns = *self.due_ns.get_or_insert(now_ns.saturating_add(interval_ns));
            self.is_wanted = due_ns <= now_ns;
        }
    }

    /// Begins the sync that is wanted. Returns whether there is one.
    pub(crate) const fn begin(&mut self) -> bool {
        let begins = self.is_wanted;
        if begins {
            debug_assert!(!self.is_under_way, "N1");
            *self = Self { is_under_way: true, ..Self::new(self.mode) };
        }
        begins
    }

    /// The sync under way has ended.
    pub(crate) const fn end(&mut self) {
        debug_assert!(self.is_under_way, "N1");
        self.is_under_way = false;
    }
}

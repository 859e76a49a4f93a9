//! Counts of evicted and expired items by size class, for `stats items`. The classes decide
//! nothing: items of all classes lie in the same segments.
//!
//! Upstream:   the reclaimer counts the items that it drops; any core reads the counts.
//! Downstream: the classes of the pool.
//!
//! Living items are not counted here, because that would cost each store. A walk counts them.

use std::sync::Arc;

use kachel_stdx::{Counter, SizeClasses};

use crate::item::Item;

/// Counts of the items of a class that are gone, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassTotals {
    /// Items evicted.
    pub evicted: u64,
    /// Items evicted that had an expiry.
    pub evicted_with_expiry: u64,
    /// Seconds from the last access of the item that was evicted last to its eviction.
    pub evicted_age_s: u64,
    /// Items evicted that were never read.
    pub evicted_unfetched: u64,
    /// Items evicted although active.
    pub evicted_active: u64,
    /// Items found expired.
    pub reclaimed: u64,
    /// Items expired that were never read.
    pub expired_unfetched: u64,
}

/// The counts of one class, on a cache line of their own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Row {
    evicted: Counter,
    evicted_with_expiry: Counter,
    evicted_age_s: Counter,
    evicted_unfetched: Counter,
    evicted_active: Counter,
    reclaimed: Counter,
    expired_unfetched: Counter,
}

/// The counts of one shard, by class. Only the owner of the segments changes them; any core may
/// read them, and sees recent numbers.
#[derive(Debug)]
pub struct ClassCounts {
    classes: Arc<SizeClasses>,
    /// Bytes that count with each item beside its key, value and client flags.
    item_overhead_bytes: usize,
    rows: Box<[Row]>,
}

impl ClassCounts {
    /// Counts of nothing.
    pub(crate) fn new(classes: &Arc<SizeClasses>, item_overhead_bytes: usize) -> Self {
        let rows = classes.lengths().iter().map(|_| Row::default()).collect();
        Self { classes: Arc::clone(classes), item_overhead_bytes, rows }
    }

    /// The counts of the size class of an item.
    fn row(&self, item: &Item<'_>) -> &Row {
        let lengths = item.key().len() + item.value().bytes() + item.header().client_flags_bytes();
        &self.rows[usize::from(self.classes.of(self.item_overhead_bytes + lengths))]
    }

    /// The counts of a class now. Cost: a few loads.
    pub fn of(&self, class: u8) -> ClassTotals {
        let Some(row) = self.rows.get(usize::from(class)) else { return ClassTotals::default() };
        ClassTotals {
            evicted: row.evicted.value(),
            evicted_with_expiry: row.evicted_with_expiry.value(),
            evicted_age_s: row.evicted_age_s.value(),
            evicted_unfetched: row.evicted_unfetched.value(),
            evicted_active: row.evicted_active.value(),
            reclaimed: row.reclaimed.value(),
            expired_unfetched: row.expired_unfetched.value(),
        }
    }

    /// Counts an item that is evicted in second `now`.
    pub(crate) fn note_evicted(&self, item: &Item<'_>, now: u32) {
        let (row, access) = (self.row(item), item.access());
        row.evicted.add(1);
        row.evicted_with_expiry.add(u64::from(item.expiry() != 0));
        row.evicted_age_s.set(u64::from(now.saturating_sub(access.last_access())));
        row.evicted_unfetched.add(u64::from(!access.fetched()));
        row.evicted_active.add(u64::from(access.active()));
        debug_assert!(row.evicted_unfetched.value() <= row.evicted.value(), "counts, N1");
    }

    /// Counts an item that was found expired or flushed.
    pub(crate) fn note_reclaimed(&self, item: &Item<'_>) {
        let row = self.row(item);
        row.reclaimed.add(1);
        row.expired_unfetched.add(u64::from(!item.access().fetched()));
        debug_assert!(row.expired_unfetched.value() <= row.reclaimed.value(), "counts, N1");
    }
}

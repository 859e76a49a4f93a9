//! What became of items, by their size classes, for `stats items`. The classes decide nothing:
//! items of all classes lie in the same segments.
//!
//! Upstream:   the reclaimer counts the items that it drops; any core reads the counts.
//! Downstream: the classes of the pool.
//!
//! The *nominal size* of an item is the number of bytes that memcached counts for it: 48 of header,
//! 8 for a CAS token, 4 for client flags, the key and a NUL, the value and CR LF.
//!
//! Living items are not counted here, because that would cost each store. A walk counts them.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use kachel_stdx::SizeClasses;

use crate::item::Item;

/// Bytes that memcached counts with each item: its header, a NUL and CR LF.
const NOMINAL_BYTES: usize = 48 + 1 + 2;
/// Bytes of a CAS token, as memcached counts it.
const CAS_BYTES: usize = 8;

impl Item<'_> {
    /// The size class of the item.
    fn size_class(&self) -> u8 {
        let cas_bytes = if self.header().cas_bytes() > 0 { CAS_BYTES } else { 0 };
        let optional = cas_bytes + self.header().client_flags_bytes();
        let bytes = NOMINAL_BYTES + optional + self.key().len() + self.value().bytes();
        self.pool().size_classes.of(bytes)
    }
}

/// What became of the items of a class since the start.
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

/// A number that the owner of the segments changes, and any core reads.
#[derive(Debug, Default)]
struct Count(AtomicU64);

impl Count {
    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    fn add(&self, value: u64) {
        self.set(self.get().wrapping_add(value));
    }
}

/// The counts of one class, on a cache line of their own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Row {
    evicted: Count,
    evicted_with_expiry: Count,
    evicted_age_s: Count,
    evicted_unfetched: Count,
    evicted_active: Count,
    reclaimed: Count,
    expired_unfetched: Count,
}

/// The counts of one shard, by class. Only the owner of the segments changes them; any core may
/// read them, and sees recent numbers.
#[derive(Debug)]
pub struct ClassCounts(Box<[Row]>);

impl ClassCounts {
    /// Counts of nothing.
    pub(crate) fn new(classes: &SizeClasses) -> Self {
        Self(classes.lengths().iter().map(|_| Row::default()).collect())
    }

    /// The counts of a class now. Cost: a few loads.
    pub fn of(&self, class: u8) -> ClassTotals {
        let Some(row) = self.0.get(usize::from(class)) else { return ClassTotals::default() };
        ClassTotals {
            evicted: row.evicted.get(),
            evicted_with_expiry: row.evicted_with_expiry.get(),
            evicted_age_s: row.evicted_age_s.get(),
            evicted_unfetched: row.evicted_unfetched.get(),
            evicted_active: row.evicted_active.get(),
            reclaimed: row.reclaimed.get(),
            expired_unfetched: row.expired_unfetched.get(),
        }
    }

    /// Counts an item that is evicted in second `now`.
    pub(crate) fn note_evicted(&self, item: &Item<'_>, now: u32) {
        let (row, access) = (&self.0[usize::from(item.size_class())], item.access());
        row.evicted.add(1);
        row.evicted_with_expiry.add(u64::from(item.expiry() != 0));
        row.evicted_age_s.set(u64::from(now.saturating_sub(access.last_access())));
        row.evicted_unfetched.add(u64::from(!access.fetched()));
        row.evicted_active.add(u64::from(access.active()));
        debug_assert!(row.evicted_unfetched.get() <= row.evicted.get(), "counts, N1");
    }

    /// Counts an item that was found expired.
    pub(crate) fn note_expired(&self, item: &Item<'_>) {
        let row = &self.0[usize::from(item.size_class())];
        row.reclaimed.add(1);
        row.expired_unfetched.add(u64::from(!item.access().fetched()));
        debug_assert!(row.expired_unfetched.get() <= row.reclaimed.get(), "counts, N1");
    }
}

//! The counters of an engine, for `stats`.
//!
//! Upstream:   `entered` publishes the statistics of an engine before it releases it.
//! Downstream: the shard that answers `stats` sums the counters of all engines; a core that needs
//!             memory compares the bytes of the engines.
//!
//! A process has an array of these, and another one of the counters of its cores (`counters`). Both
//! have their own length, because a process may have more engines than cores, or fewer.
//!
//! Invariants:
//! - I1  Only the core that holds the engine changes its numbers, so a change is a plain store. Any
//!   core may read a number at any time; it sees a recent value.

use kachel_engine::EngineStats;
use kachel_stdx::Counter;

/// The counters of one engine, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct EngineCounters {
    /// Gauge: items held.
    pub items: Counter,
    /// Gauge: bytes of items held.
    pub bytes: Counter,
    /// Gauge: bytes of the index.
    pub index_bytes: Counter,
    /// Gauge: slots of the index.
    pub index_slots: Counter,
    /// Items evicted.
    pub evictions: Counter,
    /// Items evicted that were never read.
    pub evicted_unfetched: Counter,
    /// Items evicted although they were read recently.
    pub evicted_active: Counter,
    /// Seconds from the last access of each evicted item to its eviction, in all.
    pub evicted_age_s: Counter,
    /// Items that expired without being read.
    pub expired_unfetched: Counter,
    /// Items whose space came back because they had expired.
    pub reclaimed: Counter,
    /// Those of them whose prefix was flushed.
    pub prefix_flushed: Counter,
}

impl EngineCounters {
    /// Writes the gauges, and what the engine has done since its start (I1).
    pub fn publish(&self, stats: &EngineStats) {
        self.items.set(stats.index_items);
        self.bytes.set(stats.live_bytes);
        self.index_bytes.set(stats.index_bytes);
        self.index_slots.set(stats.index_slots);
        self.evictions.set(stats.evictions);
        self.evicted_unfetched.set(stats.evicted_unfetched);
        self.evicted_active.set(stats.evicted_active);
        self.evicted_age_s.set(stats.evicted_age_s);
        self.expired_unfetched.set(stats.expired_unfetched);
        self.reclaimed.set(stats.reclaimed);
        self.prefix_flushed.set(stats.prefix_flushed);
    }

    /// Copies what was counted so far. Gauges count nothing, so they stay 0 in the copy.
    pub(crate) fn copy_counts_from(&self, from: &Self) {
        self.evictions.set(from.evictions.value());
        self.evicted_unfetched.set(from.evicted_unfetched.value());
        self.evicted_active.set(from.evicted_active.value());
        self.evicted_age_s.set(from.evicted_age_s.value());
        self.expired_unfetched.set(from.expired_unfetched.value());
        self.reclaimed.set(from.reclaimed.value());
        self.prefix_flushed.set(from.prefix_flushed.value());
    }
}

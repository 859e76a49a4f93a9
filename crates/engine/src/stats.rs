//! Statistics of an engine: what it holds, and what it has done since its start.
//!
//! Upstream:   an engine fills it in.
//! Downstream: `stats`, and the audits of the simulation.

/// Statistics of one engine. A number that does not apply to the engine is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Items in the index.
    pub index_items: u64,
    /// Bytes of the index.
    pub index_bytes: u64,
    /// Slots of the index.
    pub index_slots: u64,
    /// Buckets that the index ever added.
    pub index_splits: u64,
    /// Buckets that the index ever gave back.
    pub index_merges: u64,
    /// Lookups that found an item that had expired.
    pub found_expired: u64,
    /// Lookups that found an item that was flushed.
    pub found_flushed: u64,
    /// Items in the segments. Flushed and expired items count until their space is reclaimed.
    pub items: u64,
    /// Bytes of these items, large values included.
    pub live_bytes: u64,
    /// Segments owned, spare segments included.
    pub segments: u64,
    /// Blocks that hold large values.
    pub blocks: u64,
    /// Items evicted.
    pub evictions: u64,
    /// Items evicted that were never read.
    pub evicted_unfetched: u64,
    /// Items evicted although they were read not long before.
    pub evicted_active: u64,
    /// Seconds from the last access of each evicted item to its eviction, in all.
    pub evicted_age_s: u64,
    /// Items found expired or flushed that were never read.
    pub expired_unfetched: u64,
    /// Items found expired or flushed, whose space was reclaimed or will be.
    pub reclaimed: u64,
    /// Those of them that were flushed with their prefix.
    pub prefix_flushed: u64,
    /// Items copied to make room.
    pub compacted: u64,
    /// Items refused because no room was found.
    pub refused: u64,
}

/// Counts of the items of one size class that an engine has evicted or found expired since the
/// start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassStats {
    /// Items evicted.
    pub evicted: u64,
    /// Items evicted that had an expiry.
    pub evicted_with_expiry: u64,
    /// Seconds from the last access of the item that was evicted last to its eviction.
    pub evicted_age_s: u64,
    /// Items evicted that were never read.
    pub evicted_unfetched: u64,
    /// Items evicted although they were read not long before.
    pub evicted_active: u64,
    /// Items found expired or flushed.
    pub reclaimed: u64,
    /// Items found expired or flushed that were never read.
    pub expired_unfetched: u64,
}

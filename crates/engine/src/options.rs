//! How an engine behaves.
//!
//! Upstream:   the program that starts the engine passes them.
//! Downstream: engines, and the verbs that must know the largest item.

use crate::key::KEY_BYTES_MAX;

/// How an engine behaves.
#[derive(Clone, Copy, Debug)]
pub struct EngineOptions {
    /// Whether items are evicted when memory is full (`cache`), or new items refused (`store`,
    /// `-M`).
    pub evict: bool,
    /// Whether items carry CAS tokens (`-C`: they do not).
    pub cas: bool,
    /// The largest item, `-I`: key, value, and what memcached counts with them.
    pub item_bytes_max: u64,
    /// How leases behave.
    pub leases: LeaseOptions,
}

/// How leases behave (`lease-get`, `lease-set`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseOptions {
    /// How long a token is good, in seconds. Meanwhile no other client gets one for its key.
    pub lease_s: u32,
    /// How long the value of a deleted item is kept for leases, in seconds; 0: not at all.
    pub stale_s: u32,
    /// The most memory for values of deleted items, in percent of the memory limit; 0: none.
    pub stale_percent: u32,
}

impl LeaseOptions {
    /// One token a key in ten seconds, as in Nishtala and others, NSDI 2013; deleted values for a
    /// minute.
    pub const DEFAULT: Self = Self { lease_s: 10, stale_s: 60, stale_percent: 5 };

    /// Whether the value of a deleted item is kept.
    pub const fn keeps_values(&self) -> bool {
        self.stale_s != 0 && self.stale_percent != 0
    }
}

impl EngineOptions {
    /// Whether an item of this nominal size may be stored at all.
    pub fn fits(&self, key_bytes: usize, value_bytes: usize, client_flags: u32) -> bool {
        debug_assert!((1..=KEY_BYTES_MAX).contains(&key_bytes), "key, I1");
        self.nominal_bytes(key_bytes, value_bytes, client_flags) as u64 <= self.item_bytes_max
    }

    /// The *nominal size* of an item: the number of bytes that memcached counts for it.
    ///
    /// memcached counts a header of 48 bytes, 8 for the CAS token, the key and a NUL, 4 for client
    /// flags that are not 0, the value and CR LF.
    #[inline]
    pub const fn nominal_bytes(
        &self,
        key_bytes: usize,
        value_bytes: usize,
        client_flags: u32,
    ) -> usize {
        debug_assert!(key_bytes <= KEY_BYTES_MAX, "key, I1");
        debug_assert!(value_bytes <= i32::MAX as usize, "parsers refuse longer values");
        let header = 48 + if self.cas { 8 } else { 0 } + if client_flags != 0 { 4 } else { 0 };
        header + key_bytes + 1 + value_bytes + 2
    }
}

//! The size classes of items, for `stats items` and `stats slabs`.
//!
//! Upstream:   `counters`, with each request; `listing`, with each item of a walk.
//! Downstream: the classes and the options of the engines, which never change.

use std::sync::Arc;

use kachel_engine::Common;
use kachel_stdx::SizeClasses;

/// The size classes of items.
#[derive(Clone, Debug)]
pub(crate) struct Sizes {
    classes: Arc<SizeClasses>,
    /// The nominal size of an item without key, value and client flags.
    bytes_without: usize,
}

impl Sizes {
    /// The classes of the engines of a process.
    pub(crate) fn new(common: &impl Common) -> Self {
        let bytes_without = common.options().nominal_bytes(0, 0, 0);
        Self { classes: Arc::clone(common.size_classes()), bytes_without }
    }

    /// The class of an item with key, value and client flags of this many bytes. Cost: a load.
    #[inline(always)]
    pub(crate) fn of(&self, key_bytes: usize, value_bytes: usize, client_flags: u32) -> u8 {
        self.classes.of(self.nominal_bytes(key_bytes, value_bytes, client_flags))
    }

    /// The nominal size of an item with key, value and client flags of this many bytes.
    #[inline(always)]
    pub(crate) const fn nominal_bytes(
        &self,
        key_bytes: usize,
        value_bytes: usize,
        client_flags: u32,
    ) -> usize {
        debug_assert!(self.bytes_without >= 51, "what memcached counts with each item");
        let flags_bytes = if client_flags == 0 { 0 } else { 4 };
        self.bytes_without + key_bytes + value_bytes + flags_bytes
    }

    /// The class of an item of this nominal size; 0 for size 0.
    #[inline]
    pub(crate) fn of_nominal(&self, bytes: usize) -> u8 {
        if bytes == 0 { 0 } else { self.classes.of(bytes) }
    }
}

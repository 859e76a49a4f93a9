//! The size classes of items, for `stats items` and `stats slabs`.
//!
//! Upstream:   `counters`, with each request; `listing`, with each item of a walk.
//! Downstream: the classes and the options of the engines, which never change.

use std::sync::Arc;

use kachel_engine::{Common, EngineOptions};
use kachel_stdx::SizeClasses;

/// The size classes of items.
#[derive(Clone, Debug)]
pub struct Sizes {
    classes: Arc<SizeClasses>,
    options: EngineOptions,
}

impl Sizes {
    /// The classes of the engines of a process.
    pub fn new(common: &impl Common) -> Self {
        Self { classes: common.size_classes(), options: *common.options() }
    }

    /// The class of an item with key, value and client flags of this many bytes. Cost: a load.
    #[inline(always)]
    pub fn of(&self, key_bytes: usize, value_bytes: usize, client_flags: u32) -> u8 {
        self.classes.of(self.nominal_bytes(key_bytes, value_bytes, client_flags))
    }

    /// The nominal size of an item ([`EngineOptions::nominal_bytes`]).
    #[inline(always)]
    pub const fn nominal_bytes(
        &self,
        key_bytes: usize,
        value_bytes: usize,
        client_flags: u32,
    ) -> usize {
        self.options.nominal_bytes(key_bytes, value_bytes, client_flags)
    }
}

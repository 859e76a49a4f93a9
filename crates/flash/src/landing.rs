//! Values that are being read part by part into the memory where the cache will have them.
//!
//! Upstream:   `store`, which goes on each time a ticket for the next part is ready.
//! Downstream: uploads of the cache, which charge the budget.
//!
//! Invariants, cited by number where they are asserted:
//! - L1  A value that no operation goes on with is dropped some seconds later.

use std::collections::BTreeMap;

use kachel_cache::CacheUpload;

use crate::record::ItemHead;

/// The seconds after which a value is dropped (L1). A read of the disk takes less.
const IDLE_S: u32 = 10;

/// A value of which the first parts are in memory.
#[derive(Debug)]
pub(crate) struct Landing {
    pub(crate) value_id: u64,
    pub(crate) client_flags: u32,
    pub(crate) cas: u64,
    pub(crate) upload: CacheUpload,
    /// The parts that are in memory, and how much of the next one is.
    pub(crate) parts: usize,
    pub(crate) bytes_of_next: usize,
    /// The second in which an operation went on with it.
    pub(crate) touched: u32,
}

impl Landing {
    pub(crate) fn new(value_id: u64, head: &ItemHead, upload: CacheUpload) -> Self {
        let &ItemHead { client_flags, cas, .. } = head;
        Self { value_id, client_flags, cas, upload, parts: 0, bytes_of_next: 0, touched: 0 }
    }
}

/// The values of an engine that are being read.
#[derive(Debug, Default)]
pub(crate) struct Landings(BTreeMap<Box<[u8]>, Landing>);

impl Landings {
    /// The value of a key that is being read, if it is this one.
    pub(crate) fn of(&mut self, key: &[u8], value_id: u64) -> Option<&mut Landing> {
        self.0.get_mut(key).filter(|landing| landing.value_id == value_id)
    }

    /// The key of another value that is being read. Only one at a time is, so that values that are
    /// read at the same time do not take all memory before one of them is whole.
    pub(crate) fn other(&self, key: &[u8]) -> Option<&[u8]> {
        self.0.keys().map(|other| &**other).find(|other| *other != key)
    }

    /// Begins to read a value, in place of an older one.
    pub(crate) fn begin(&mut self, key: &[u8], landing: Landing) {
        self.0.insert(key.into(), landing);
    }

    /// Takes a value of a key, or drops it.
    pub(crate) fn take(&mut self, key: &[u8]) -> Option<Landing> {
        self.0.remove(key)
    }

    /// Drops the values that no operation goes on with (L1). Returns whether there were some.
    pub(crate) fn drop_idle(&mut self, second: u32) -> bool {
        let before = self.0.len();
        self.0.retain(|_, landing| landing.touched.saturating_add(IDLE_S) >= second);
        self.0.len() < before
    }
}

//! The extensions of the contract: what only some engines have. Each has a default, so an engine
//! that has none of them implements [`Extensions`] by an empty block. Its types have parts of their
//! own with defaults: [`crate::Common`], [`crate::ReadBeside`] and [`crate::ReceiveValue`].
//!
//! Upstream:   `shard`, which uses an extension without knowing whether the engine has it.
//! Downstream: `cache` has all of them but the scan.
//!
//! Invariants:
//! - I1  A default answers as an engine does that has nothing to do: nothing is evicted, freed,
//!   prefetched or reported. So a shard needs no second path for an engine without the extension.

use std::sync::Arc;

use kachel_stdx::Place;

use crate::copies::Copies;
use crate::item::ItemView;
use crate::last_dead::LastDead;
use crate::time::Now;
use crate::walk::{CrawlStep, Cursor, ScanCursor, WalkStep};

/// The largest number of operations that are prefetched together.
pub const BATCH_MAX: usize = 32;

/// One lookup of a batch. The engine prefetches the memory that the lookup needs.
#[derive(Clone, Copy, Debug)]
pub struct Lookup {
    /// The secret hash of the key.
    pub secret_hash: u64,
    /// Whether the operation reads the value, too.
    pub value: bool,
}

/// The result of making room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// There is room.
    Made,
    /// Enough was freed, but other cores may still read it, or more must be freed than one request
    /// may free: there is room in a later tick.
    OnTheWay,
    /// There is nothing left to free.
    Refused,
}

/// An item that was evicted, for the log of evictions and for observers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evicted<'k> {
    /// The key.
    pub key: &'k [u8],
    /// Bytes of the value.
    pub value_bytes: usize,
    /// The client flags.
    pub client_flags: u32,
    /// The second in which it would have expired; 0 for never.
    pub expiry: u32,
    /// The second of its last access.
    pub last_access: u32,
    /// Whether it was fetched since it was stored.
    pub is_fetched: bool,
    /// Whether it was drawn ([`crate::Common::draw_evictions`]).
    pub is_drawn: bool,
}

/// The optional part of the contract, beside [`crate::Engine`]: each method has a default. A memory
/// cache prefetches, evicts, reclaims dead items on request, and reports changes to copies of its
/// items. An ordered engine can be scanned.
pub trait Extensions {
    /// Whether a walk over all items reads memory alone. Only then are items counted by prefix,
    /// again and again, while that is observed.
    const WALKS_IN_MEMORY: bool = true;
    /// Whether the engine keeps its items in the order of their keys, so that it can be scanned.
    const ORDERED: bool = false;

    /// The core at `core` uses this engine from now on, until another core enters it. While a core
    /// changes an engine, it holds nothing that it has read from other engines (`contract`, I4). So
    /// the engine reuses memory without waiting for this core.
    ///
    /// Takes note of flushes, and of a pending flush that is due. Another core may flush later, and
    /// an operation must see every flush that was acknowledged before it began. So each lookup and
    /// each store also loads the flush word of the process. Cost: two loads and a store.
    fn enter(&mut self, core: Place, now: &Now) {
        let _nothing_to_note = (core, now);
    }

    /// Prefetches into the processor's caches what a batch of operations is about to look up. A
    /// batch has at most [`BATCH_MAX`] operations.
    fn prefetch(&self, batch: impl Iterator<Item = Lookup> + Clone) {
        let _nothing_to_prefetch = batch;
    }

    /// Frees memory for the next `bytes` bytes of a large value.
    fn make_upload_room(&mut self, bytes: usize, now: &Now) -> Room {
        let _nothing_to_free = (bytes, now);
        Room::Refused
    }

    /// Returns memory to the budget of the process until `bytes` bytes can be charged to it.
    fn make_room(&mut self, bytes: u64, now: &Now) -> Room {
        let _nothing_to_free = (bytes, now);
        Room::Refused
    }

    /// Reports each change to `copies` from now on: before an item is stored, removed, evicted or
    /// reclaimed because it is dead, and before its marks change ([`crate::Changes`]). A flush of
    /// [`crate::Engine::common`] is reported, too. Called before the engine is used, and before
    /// `common`.
    ///
    /// Returns whether the engine reports its changes. No item of another engine may be copied.
    #[must_use]
    fn report_changes(&mut self, copies: Arc<dyn Copies>) -> bool {
        let _nothing_is_reported = copies;
        false
    }

    /// The last dead item that a lookup of this engine has removed. An engine that does not note
    /// them returns one that stays empty; a log then does not say why a lookup missed.
    fn last_dead(&self) -> Arc<LastDead> {
        Arc::default()
    }

    /// Whether there is something for [`Self::take_evicted`]. Cost: a load.
    fn has_evicted(&self) -> bool {
        false
    }

    /// Passes the items that were evicted since the last call to `tell`, the oldest first. The list
    /// is bounded ([`crate::Common::list_evictions`]). Returns the number of evicted items that
    /// were to be listed, and for which the list had no place.
    fn take_evicted(&mut self, tell: impl FnMut(&Evicted<'_>)) -> u64 {
        let _nothing_is_evicted = tell;
        0
    }

    /// Executes one step of a walk that reclaims the space of items which have expired or were
    /// flushed, if `is_wanted` says so. Cursor and bounds are those of [`crate::Engine::walk`]. An
    /// engine that reclaims all such items by itself, in [`crate::Engine::maintain`], has nothing
    /// to walk over.
    fn crawl(
        &mut self,
        cursor: &mut Cursor,
        now: &Now,
        items_max: usize,
        is_wanted: impl FnMut(&[u8], &dyn ItemView<'_>) -> bool,
    ) -> CrawlStep {
        let _nothing_to_reclaim = (cursor, now, items_max, is_wanted);
        CrawlStep { walked: WalkStep::in_memory(0, false), reclaimed: 0 }
    }

    /// Executes one step of a scan in the order of the keys: passes the live items behind the
    /// cursor to `show`, and moves the cursor behind the last item that it has examined. The step
    /// ends at the latest when `show` returns `false`, or when `items_max` items were examined.
    /// Only an engine that is [`Self::ORDERED`] shows anything.
    ///
    /// All items of a step are of one version of the engine: of the moment of the call, or of one
    /// since the call before, if that has ended with [`crate::WalkNext::Later`]. So an item that
    /// lives through the whole scan is shown once. Each item is durable, if replies wait for that.
    /// A small value is shown, also if it must be read from a disk. The shard may leave a scan at
    /// any time.
    fn scan(
        &mut self,
        cursor: &mut ScanCursor,
        now: &Now,
        items_max: usize,
        show: impl FnMut(&[u8], &dyn ItemView<'_>) -> bool,
    ) -> WalkStep {
        let _no_order = (cursor, now, items_max, show);
        WalkStep::in_memory(0, false)
    }
}

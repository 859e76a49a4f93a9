//! Copies of items outside of an engine, from which requests are answered without it.
//!
//! Upstream:   an engine drops a copy before it changes the item, and takes its reads before it
//!             judges or tells how often the item was read; `shard` offers items that are read
//!             often, and hands on the time.
//! Downstream: the store of copies (`pipe`: memory that a program in the kernel reads).
//!
//! Invariants:
//! - I1  A copy is dropped before the change of its item can be seen anywhere: before the new slot
//!   is written, and so before any core reads the new item and before the change is acknowledged.
//! - I2  Only the core that holds the engine of an item makes a copy of it. So no copy of an old
//!   item is made once the copy was dropped.
//! - I3  No copy is read while the word of all flushes changes. A copy is only read if no flush has
//!   begun since before its item was looked up ([`FlushStamp`]). So is it with a flush of a prefix:
//!   it drops all copies, because a store of copies compares no keys.

use std::fmt::Debug;
use std::sync::Arc;

use crate::key::Key;

/// The number of flushes before an item was looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushStamp(pub u64);

/// An item that is to be copied.
#[derive(Clone, Copy, Debug)]
pub struct CopiedItem<'i> {
    /// Its key.
    pub key: Key<'i>,
    /// Its value.
    pub value: &'i [u8],
    /// The client flags.
    pub client_flags: u32,
    /// The CAS token; 0 if items have no tokens.
    pub cas: u64,
    /// The second in which it expires; 0 for never.
    pub expiry: u32,
}

/// Reads that a copy has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyReads {
    /// How often it was read; not 0.
    pub count: u64,
    /// The second of the last read.
    pub second: u32,
}

/// The copies of items of all shards of a process. Any core may use them at any time.
pub trait Copies: Debug + Send + Sync {
    /// Drops the copy of the item with this secret hash, if there is one (I1). Cost: a cache line.
    fn drop_copy(&self, secret_hash: u64);

    /// Flushes: calls `change`, which changes the word of all flushes, while nothing is read from
    /// copies (I3). With `due` the flush comes in that second, and nothing is read from it on.
    fn flush(&self, due: Option<u32>, change: &mut dyn FnMut());

    /// Flushes some items, as [`Self::flush`] does all. A flush that is pending stays.
    fn flush_some(&self, change: &mut dyn FnMut());

    /// An engine has noted a flush, at once or due in `second` or before.
    fn note_flushed(&self, second: u32);

    /// The process has reached `second`, at `now_ns` of the monotonic clock. Called before any core
    /// uses the second.
    fn tick(&self, second: u32, now_ns: u64);

    /// Counts a read that the server itself has answered. Returns whether the item is read so often
    /// that it should be copied.
    fn is_hot(&self, secret_hash: u64) -> bool;

    /// The stamp of copies of items that are looked up from now on (I3). `None` while a flush is
    /// under way.
    fn stamp(&self) -> Option<FlushStamp>;

    /// Copies an item that the caller has looked up, after it took `stamp`, and whose engine it
    /// holds (I2). Does nothing if there is no room for it.
    fn publish(&self, stamp: FlushStamp, item: &CopiedItem<'_>);

    /// Takes the reads that the copy of an item has answered since they were last taken. `None` if
    /// there are none. Cost: a cache line, and if there is a copy one for each lane of counters.
    fn take_reads(&self, secret_hash: u64) -> Option<CopyReads>;

    /// How many items copies have answered with since the start. Cost: a load for each core.
    fn answered(&self) -> u64;
}

/// Where an engine reports its changes, if there are copies of its items.
#[derive(Clone, Debug, Default)]
pub struct Changes(Option<Arc<dyn Copies>>);

impl Changes {
    /// Reports the changes to `copies`.
    pub fn to(copies: Arc<dyn Copies>) -> Self {
        Self(Some(copies))
    }

    /// Whether there are copies.
    #[inline]
    pub const fn are_reported(&self) -> bool {
        self.0.is_some()
    }

    /// An item is about to change (I1): it is stored, removed, evicted or found dead, or its marks
    /// change. Cost: a branch if there are no copies.
    #[inline]
    pub fn before_change(&self, secret_hash: u64) {
        if let Some(copies) = &self.0 {
            copies.drop_copy(secret_hash);
        }
    }

    /// Takes the reads of an item that its copy has answered. The engine does so before it judges
    /// how often the item was read, or tells it. Cost: a branch if there are no copies.
    #[inline]
    pub fn take_reads(&self, secret_hash: u64) -> Option<CopyReads> {
        let reads = self.0.as_ref()?.take_reads(secret_hash);
        debug_assert!(reads.is_none_or(|reads| reads.count > 0), "it was read");
        reads
    }

    /// The engine has noted a flush. Cost: a branch if there are no copies.
    #[inline]
    pub fn note_flushed(&self, second: u32) {
        debug_assert!(second != 0, "no second is 0");
        if let Some(copies) = &self.0 {
            copies.note_flushed(second);
        }
    }

    /// Changes the word of all flushes by `change` (I3).
    pub fn flush(&self, due: Option<u32>, mut change: impl FnMut()) {
        debug_assert!(due != Some(0), "second 0 is never");
        let Some(copies) = &self.0 else { return change() };
        let mut changes = 0;
        copies.flush(due, &mut || {
            changes += 1;
            change();
        });
        assert!(changes == 1, "I3: the word changes once");
    }

    /// Flushes some items by `change` (I3).
    pub fn flush_some(&self, mut change: impl FnMut()) {
        let Some(copies) = &self.0 else { return change() };
        copies.flush_some(&mut change);
    }
}

//! Reading a cache from any core without a lock, while its owner works.
//!
//! Upstream:   a core that reads the items of another shard. Only tests and models do so yet.
//! Downstream: `lookup`, over the table's reader and the pool; `kachel_engine::get_unchanged`.
//!
//! ```text
//! look up --> live, dead or nowhere --> the verb decides --> no change -----> Done(outcome)
//!        |                                              `--> a change ------> AskOwner
//!        `--> a large value, or slots that moved during each attempt -------> AskOwner
//! ```
//!
//! A read takes place at the moment of the acquiring load of the slot. If the owner replaces or
//! removes the item after this moment, the reader still answers with the old item.
//!
//! Invariants:
//! - R1  A core may read only if it is registered with the pool and awake. A lent value borrows the
//!   registration, so the core cannot end its round while it holds the value.
//! - R2  A reader writes only the access word of an item, while fewer than three reads are counted
//!   in it, and the flush word, if a delayed flush is due. It does not remove dead items.
//! - R3  An answer is the one that the owner would have given at the moment of the read. If the
//!   verb's decision changes an item, or a value must be pinned, only the owner can answer.
//! - R4  A reader never reads the blocks of a large value, because the owner may reuse them for
//!   another item.

use std::sync::Arc;

use kachel_engine::{GetTerms, Key, Now, Outcome, get_unchanged};
use kachel_segment::{FlushWord, Item, ItemAt, Pool};
use kachel_table::{KeyHash, Location, Seen};

use crate::cache::Cache;
use crate::item::CachedItem;
use crate::large::CachePinned;
use crate::lookup::{DeadFound, Found, View, look_up};

/// Reads the items of one shard from any core. [`Cache::reader`] makes it.
#[derive(Clone, Debug)]
pub struct CacheReader {
    slots: kachel_table::Reader,
    pool: Arc<Pool>,
}

/// All cores may share one reader.
const _: fn() = || {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<CacheReader>();
};

/// What a core must pass to a read.
#[derive(Clone, Copy, Debug)]
pub struct ReadContext<'r> {
    /// The core's registration with the pool, which must be awake (R1). A lent value stays valid
    /// until the core ends its round.
    pub round: &'r kachel_stdx::Reader,
    /// The process's flush word. It is loaded after the slot.
    pub flush_word: &'r FlushWord,
}

/// What a reader answers.
#[derive(Debug)]
pub enum ReadAnswer<'r> {
    /// The outcome, as the owner would have given it (R3). Its value is lent, never pinned.
    Done(Outcome<'r, CachePinned>),
    /// Only the owner can execute this read. The reader has changed no item and counted nothing.
    AskOwner,
}

/// The table and the items, as seen by a core that does not own them.
#[derive(Clone, Copy)]
struct Beside<'v> {
    reader: &'v CacheReader,
    context: ReadContext<'v>,
    second: u32,
}

impl<'v> View<'v> for Beside<'v> {
    #[inline]
    fn probe(self, hash: KeyHash, is_key: impl FnMut(Location) -> bool) -> Seen {
        self.reader.slots.find(hash, is_key)
    }

    #[inline]
    fn item(self, at: ItemAt) -> Item<'v> {
        self.reader.pool.item(at, self.context.round)
    }

    #[inline]
    fn is_flushed(self, at: ItemAt) -> bool {
        let ReadContext { round, flush_word } = self.context;
        self.reader.pool.is_flushed(at, flush_word, self.second, round)
    }
}

impl Cache {
    /// Returns a reader of this cache for other cores. The reader keeps the address space of the
    /// index and the items, so after the cache is dropped it still finds the last items.
    pub fn reader(&self) -> CacheReader {
        CacheReader { slots: self.table.reader(), pool: Arc::clone(self.segments.pool()) }
    }
}

impl CacheReader {
    /// Executes a GET on any core. `now` must hold the greatest second that any core of the process
    /// has reached, so that an item that has expired on one core is not live on another. Counts a
    /// dead item in `dead_found`. The caller must count hits and misses.
    ///
    /// Cost: three or four cache lines of the table, one of the segment, one with the flush word,
    /// and those of the item. R2 says which of them are written.
    ///
    /// Panics: `context.round` is asleep, or is registered with another pool (R1).
    #[inline]
    pub fn get<'r>(
        &'r self,
        key: &Key<'_>,
        terms: &GetTerms,
        context: ReadContext<'r>,
        now: &Now,
        dead_found: &mut DeadFound,
    ) -> ReadAnswer<'r> {
        assert!(self.pool.is_read_by(context.round), "R1: a core that reads is registered, awake");
        let view = Beside { reader: self, context, second: now.second };
        let (found, death) = match look_up(view, key, now.second) {
            Found::Live(item) if item.is_large() => return ReadAnswer::AskOwner, // R4
            Found::Live(item) => (Some(CachedItem(item)), None),
            Found::Dead(_, death) => (None, Some(death)),
            Found::Nowhere => (None, None),
            Found::Unsettled => return ReadAnswer::AskOwner,
        };
        let Some(outcome) = get_unchanged(terms, found.as_ref(), now) else {
            return ReadAnswer::AskOwner; // R3
        };
        if let Some(death) = death {
            dead_found.count(death);
        }
        if let Some(CachedItem(item)) = found
            && terms.notes_access
        {
            item.note_access(now.second); // R2
        }
        ReadAnswer::Done(outcome)
    }
}

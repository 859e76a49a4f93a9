//! Reading a cache from any core, beside its owner, without a lock.
//!
//! Upstream:   a core that reads another shard's items; tests and models. No shard does so yet.
//! Downstream: `lookup`, over the table's reader and the pool; `kachel_engine::get_unchanged`.
//!
//! ```text
//! look up --> live, dead or nowhere --> the verb's decision --> changes nothing: Done(outcome)
//!        `--> entries moved in every look, or a value in blocks ----+---------> AskOwner
//!                                              changes something ---'
//! ```
//!
//! The acquiring load of the slot is the moment of the read. An item that its owner replaces or
//! removes afterwards is still answered: the read came before.
//!
//! Invariants:
//! - R1  A reader reads only for a core that is registered with the pool and awake. What it lends
//!   borrows that registration, so the core cannot pass a quiescent point while it holds a value.
//! - R2  A reader changes nothing but access words, and those at most three times an item. It never
//!   removes what it finds dead.
//! - R3  An answer is the one that the owner would have given at the moment of the read. Where the
//!   owner would have changed something, or pinned a value, the owner is asked.
//! - R4  Blocks of large values are never looked at: the owner may give them to another item.

use std::sync::Arc;

use kachel_engine::{GetTerms, Key, Now, Outcome, get_unchanged};
use kachel_segment::{FlushWord, Item, ItemAt, Pool};
use kachel_table::{KeyHash, Location, Seen};

use crate::cache::Cache;
use crate::item::CachedItem;
use crate::large::CachePinned;
use crate::lookup::{DeadFound, Found, View, look_up};

/// One shard's items as any core sees them; made by [`Cache::reader`].
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

/// What the core that reads brings along.
#[derive(Clone, Copy, Debug)]
pub struct ReadContext<'r> {
    /// The core's registration with the pool, awake (R1). A value is lent until it ends its round.
    pub round: &'r kachel_stdx::Reader,
    /// The process's flush word. It is loaded after the slot.
    pub flush_word: &'r FlushWord,
}

/// What a reader answers.
#[derive(Debug)]
pub enum ReadAnswer<'r> {
    /// The outcome, as the owner would have given it (R3). Its value is lent, never pinned.
    Done(Outcome<'r, CachePinned>),
    /// Only the owner can execute this read. Nothing was changed and nothing counted.
    AskOwner,
}

/// The table and the items as a core sees them that does not own them.
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
    /// The items of this cache for other cores. The reader keeps the address space of index and
    /// items after the cache is gone, and then finds what was there last.
    pub fn reader(&self) -> CacheReader {
        CacheReader { slots: self.table.reader(), pool: Arc::clone(self.segments.pool()) }
    }
}

impl CacheReader {
    /// Executes a GET beside the owner. `now` holds the process's greatest second, so that nothing
    /// that has expired on one core lives again on another. An item that was found dead is counted
    /// in `dead_found`; hits and misses are the caller's to count.
    ///
    /// Cost: four cache lines of the table and the segment's, and those of the item; none of them
    /// is written, except for the access word in the first three reads of an item.
    ///
    /// Panics: when `context.round` belongs to another pool, or sleeps (R1).
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

//! The cache of one shard: its index and its segments, which this module keeps consistent.
//!
//! Upstream:   `primitives` (operations), and the shard's tick, which asks for upkeep.
//! Downstream: `table` (from the hash of a key to a location) and `segment` (from a location to an
//!             item).
//!
//! Invariants:
//! - I1  Every location in the table is an item in the segments, and no two slots refer to the same
//!   key.
//! - I2  An item that has expired or was flushed is never returned: `lookup` refuses it. `find`
//!   sees every flush by any shard that was done before `find` began. An item that the same
//!   operation stores belongs to the same flush epoch.
//! - I3  The CAS tokens of one shard only grow, except tokens that a client chose (`E`).
//!
//! CAS tokens are `count * engines + engine`: unique in the process without a shared counter.

use std::sync::Arc;

use kachel_engine::{
    Block, Changes, DeadFound, DurableWord, EngineOptions, Key, KeyHasher, LastDead, NO_TOKEN_MAX,
    Now, Put, PutValue, Refused,
};
use kachel_host::Budget;
use kachel_segment::{
    ItemAt, NewItem, NewValue, NoSegment, Pool, Reclaimed, SegmentOptions, Segments,
    UPKEEP_STEP_BYTES_MAX,
};
use kachel_table::{KeyHash, Location, Table};

use crate::guesses::Guesses;
use crate::index::{TableIndex, hash_of, item_at, location, note_copy_reads};
use crate::large::CacheUpload;
use crate::leases::Leases;

/// The most work of upkeep in one tick: slots moved, and items copied or dropped.
pub const MAINTENANCE_ITEMS_MAX: usize = 64;
/// The most work of upkeep in one tick, in bytes.
pub const MAINTENANCE_BYTES_MAX: u64 = UPKEEP_STEP_BYTES_MAX
    + (MAINTENANCE_ITEMS_MAX + SLOTS_OF_A_BUCKET_MAX) as u64 * MOVED_SLOT_BYTES;
/// The most slots examined when the index grows in one call, because it was too full for a key.
pub(crate) const GROWTH_SLOTS_MAX: usize = 4096;
/// The slots of a bucket, which a step of the index's upkeep finishes.
const SLOTS_OF_A_BUCKET_MAX: usize = 16;
/// A slot that the index moves counts as this many bytes of work: a line of each of two buckets,
/// and of an item.
const MOVED_SLOT_BYTES: u64 = 192;
/// How often a store makes room for the index and tries again before it gives up.
pub(crate) const STORE_ATTEMPTS_MAX: u32 = 8;
/// Bytes of the smallest item: the header and a short key.
pub(crate) const ITEM_BYTES_MIN: u64 = 24;
/// The fewest slots that an index has room for, even with little memory.
const SLOTS_MIN: u64 = 1 << 16;
/// Slots of the index of a model. The index can be split twice.
const MODEL_SLOTS: u64 = 8;

/// The smallest budget in bytes with which each of `engines` engines has room for an item.
pub const fn budget_bytes_min(engines: u16) -> u64 {
    (Table::BUDGET_BYTES_MIN + Segments::budget_bytes_min()) * engines as u64
}

/// Address space that the indexes of all `engines` reserve, in bytes, for `bytes_max` of items.
pub(crate) fn index_bytes(bytes_max: u64, engines: u16) -> u64 {
    u64::from(engines) * Table::reserved_bytes(slots_max(bytes_max, engines))
}

/// The most slots of one engine's index, for `bytes_max` of items in all engines.
///
/// The smallest item takes 24 bytes, which bounds the number of items. Partitions give each engine
/// an even part of the keys. Twice that part is enough, unless clients choose their keys for one
/// engine. So the bound of all indexes together does not grow with the number of engines.
fn slots_max(bytes_max: u64, engines: u16) -> u64 {
    if cfg!(loom) {
        return MODEL_SLOTS;
    }
    let items_max = bytes_max / ITEM_BYTES_MIN;
    (items_max * 2 / u64::from(engines.max(2))).max(SLOTS_MIN)
}

/// Which engine of the process a cache is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineOf {
    /// The number of the engine, below `engines`.
    pub engine: u16,
    /// The number of engines.
    pub engines: u16,
}

impl EngineOf {
    /// The only engine of a process.
    pub const ONE: Self = Self { engine: 0, engines: 1 };
}

/// The in-memory engine of one shard. One core at a time uses it. Any other core can read through a
/// [`crate::CacheReader`].
#[derive(Debug)]
pub struct Cache {
    pub(crate) table: Table,
    pub(crate) segments: Segments,
    pub(crate) hasher: KeyHasher,
    pub(crate) options: EngineOptions,
    pub(crate) cas_count: u64,
    pub(crate) cas_stride: u64,
    pub(crate) cas_engine: u64,
    /// The memory that values of deleted items take.
    pub(crate) leases: Leases,
    /// The budget of the process.
    pub(crate) budget: Arc<Budget>,
    /// Lookups that found a dead item, without those of readers.
    pub(crate) dead_found: DeadFound,
    pub(crate) last_dead: Arc<LastDead>,
    /// Nothing is durable, and no outcome waits for that.
    pub(crate) durable: Arc<DurableWord>,
    /// Where changes are reported.
    pub(crate) changes: Changes,
    /// The work of the index's upkeep since the start, in bytes.
    pub(crate) index_work_bytes: u64,
    /// Where the items of the current batch probably are.
    pub(crate) guesses: Guesses,
}

impl Cache {
    /// Makes an empty cache for one of the engines that share the pool and its budget.
    ///
    /// Errors: the index's address space cannot be reserved.
    pub fn new(
        pool: Arc<Pool>,
        budget: Arc<Budget>,
        hasher: KeyHasher,
        options: EngineOptions,
        EngineOf { engine, engines }: EngineOf,
    ) -> std::io::Result<Self> {
        assert!(engine < engines, "an engine is one of {engines}");
        let segment_options = SegmentOptions {
            evict: options.evict,
            cas: options.cas,
            shard: engine,
            item_overhead_bytes: options.nominal_bytes(0, 0, 0),
        };
        Ok(Self {
            table: Table::new(Arc::clone(&budget), slots_max(pool.bytes_max(), engines))?,
            segments: Segments::new(pool, segment_options)?,
            hasher,
            options,
            cas_count: 0,
            cas_stride: u64::from(engines),
            cas_engine: u64::from(engine),
            leases: Leases::default(),
            budget,
            dead_found: DeadFound::default(),
            last_dead: Arc::default(),
            durable: Arc::default(),
            changes: Changes::default(),
            index_work_bytes: 0,
            guesses: Guesses::default(),
        })
    }

    /// The items are copies of those that another engine keeps. Remnants are copies as well, so
    /// they take no share of the memory: they are evicted as any other copy.
    pub fn hold_copies(&mut self) {
        self.leases.admit_all();
    }

    /// The flush epoch in which an item was stored.
    pub fn epoch_of(&self, at: kachel_segment::FoundItem) -> u32 {
        self.segments.found(at).epoch()
    }

    /// The number of the newest flush of a prefix that the cache has noted when a core entered.
    pub const fn newest_prefix(&self) -> u32 {
        self.segments.newest_prefix()
    }

    /// Takes note of flushes by any engine of the process (I2).
    pub(crate) fn note_flush(&mut self, now: &Now) {
        let mut index = TableIndex::new(&mut self.table, &self.hasher, &self.changes);
        if self.segments.note_flush(now.second, &mut index) {
            self.changes.note_flushed(now.second);
        }
    }

    /// The token that the next store gets (I3).
    pub(crate) fn next_cas(&mut self) -> u64 {
        debug_assert!(self.cas_count < u64::MAX / self.cas_stride - 1, "I3: tokens only grow");
        self.cas_count += 1;
        self.cas_count * self.cas_stride + self.cas_engine
    }

    /// The token of a new item, if it has one. A remnant has one even if other items have none.
    pub(crate) fn cas_of(&mut self, put: &Put) -> Option<u64> {
        debug_assert!(!put.remnant || self.leases.has_leased(), "it was admitted");
        match put.cas {
            _ if !self.options.cas && !put.remnant => None,
            Some(chosen) => Some(chosen),
            None => Some(self.next_cas()),
        }
    }

    /// Charges a new remnant to the share of the memory that values of deleted items have.
    ///
    /// Errors: the share is used. Nothing was charged.
    #[cold]
    #[inline(never)]
    pub(crate) fn admit_remnant(
        &mut self,
        put: &Put,
        found: Option<ItemAt>,
        block: &Block<'_, CacheUpload>,
        now: &Now,
    ) -> Result<(), Refused> {
        debug_assert!(put.remnant, "any other item may take all memory");
        let value_bytes = match (put.value, block, found) {
            (PutValue::Block, Block::Bytes(bytes), _) => bytes.len(),
            (PutValue::Block, Block::Upload(upload), _) => upload.0.total_bytes(),
            (PutValue::Unchanged, _, Some(at)) => self.segments.item(at).value().bytes(),
            _ => {
                self.leases.begin();
                0
            }
        };
        debug_assert!(put.stale && self.leases.has_leased(), "only leases keep remnants");
        if self.has_share(value_bytes, now) { Ok(()) } else { Err(Refused::NoRoom) }
    }

    /// Charges a remnant with a value of `value_bytes` bytes to the share of remnants, if it fits.
    /// From then on tokens are greater than the numbers that are none.
    pub(crate) fn has_share(&mut self, value_bytes: usize, now: &Now) -> bool {
        debug_assert!(self.leases.has_leased(), "only leases keep remnants");
        let options = &self.options.leases;
        let share = self.budget.limit_bytes() / 100 * u64::from(options.stale_percent);
        let share = share / self.cas_stride;
        let fits = self.leases.admit(value_bytes as u64, share, options.stale_s, now.second);
        self.cas_count = self.cas_count.max(NO_TOKEN_MAX);
        fits
    }

    /// Stores `item` in place of `item.replaces`, which is the item under the same key, if there is
    /// one.
    ///
    /// Making room may move or drop other items, and the old item of this key, too. Errors: nothing
    /// is left to evict, or nothing may be, or the room is on its way.
    pub(crate) fn append(&mut self, item: NewItem<'_>, now: &Now) -> Result<ItemAt, NoSegment> {
        let (key, hash, keeps_access) = (item.key, KeyHash(item.hash), item.keeps_access);
        // An upload is taken over when it is appended, so it cannot be stored again later.
        let may_wait = !matches!(item.value, NewValue::Upload(_));
        let mut index = TableIndex::new(&mut self.table, &self.hasher, &self.changes);
        index.replaced = item.replaces;
        let at = self.segments.append(item, now.second, &mut index)?;
        let replaced = index.replaced;
        debug_assert!(self.segments.key_is(at, key), "an item is stored under its key");
        debug_assert!(
            self.table.find(hash, |place| self.segments.key_is(item_at(place), key))
                == replaced.map(location),
            "index, I2: where the table has the old item"
        );
        if keeps_access && let Some(old) = replaced {
            note_copy_reads(&self.changes, &self.hasher, &self.segments.item(old));
        }
        self.changes.before_change(hash.0);
        if let Some(old) = replaced {
            if keeps_access {
                self.segments.move_access(old, at);
            }
            let swung = self.table.swing(hash, location(old), location(at));
            assert!(swung, "I1: a found item is in the table");
            self.segments.kill(old);
            return Ok(at);
        }
        if self.try_insert(hash, at) {
            Ok(at)
        } else {
            self.insert_into_full(hash, at, may_wait, now)
        }
    }

    /// Gives an item a slot, if the index has a free one for it.
    #[inline]
    pub(crate) fn try_insert(&mut self, hash: KeyHash, at: ItemAt) -> bool {
        let (segments, hasher) = (&self.segments, &self.hasher);
        let hash_at = |location: Location| hash_of(hasher, segments.key(item_at(location)));
        self.table.insert(hash, location(at), hash_at).is_ok()
    }

    /// Gives an appended item a slot at the cost of other items, because the index may not grow.
    ///
    /// A cache does not wait for memory on its way: an item of a bucket gives its slot at once. A
    /// store waits if the item may be stored again (`may_wait`).
    #[cold]
    pub(crate) fn insert_into_full(
        &mut self,
        hash: KeyHash,
        at: ItemAt,
        may_wait: bool,
        now: &Now,
    ) -> Result<ItemAt, NoSegment> {
        let mut at = at;
        for _ in 0..STORE_ATTEMPTS_MAX {
            let wanted = self.table.growth_bytes();
            let mut index = TableIndex::new(&mut self.table, &self.hasher, &self.changes);
            index.pending = Some(at);
            let made = self.segments.make_room(wanted, now.second, &mut index);
            at = index.pending.ok_or(NoSegment::Refused)?;
            if made == Reclaimed::OnTheWay && may_wait && !self.options.evict {
                self.segments.kill(at);
                let is_new = |place: Location| item_at(place) == at;
                debug_assert!(self.table.find(hash, is_new).is_none(), "I1: it got no slot");
                return Err(NoSegment::NotYet);
            }
            // The index is so full that there is no path for this key. After many splits, the next
            // keys find one.
            self.maintain_index(GROWTH_SLOTS_MAX);
            if self.try_insert(hash, at) {
                return Ok(at);
            }
            if made == Reclaimed::Refused {
                break;
            }
            // The index has not grown at the buckets of this key. So one of their items is evicted.
            if self.options.evict && self.evict_neighbor(hash, now) && self.try_insert(hash, at) {
                return Ok(at);
            }
        }
        self.segments.kill(at);
        Err(NoSegment::Refused)
    }

    /// Drops an item of a bucket that the key could be in. Returns whether there was one.
    fn evict_neighbor(&mut self, hash: KeyHash, now: &Now) -> bool {
        let Some(neighbor) = self.table.neighbor(hash) else { return false };
        let at = item_at(neighbor);
        let hash = hash_of(&self.hasher, self.segments.key(at));
        self.changes.before_change(hash.0);
        let removed = self.table.remove(hash, neighbor);
        assert!(removed, "I1: it was found in the table");
        self.segments.evict(at, now.second);
        debug_assert!(
            self.table.neighbor(hash) != Some(neighbor),
            "I1: no dead item is in the table"
        );
        true
    }

    /// Removes an item from the table, and frees its bytes.
    pub(crate) fn remove_at(&mut self, key: &Key<'_>, at: ItemAt) {
        self.unlink(key, at);
        self.segments.kill(at);
    }

    /// Removes an item from the table.
    pub(crate) fn unlink(&mut self, key: &Key<'_>, at: ItemAt) {
        self.changes.before_change(key.secret_hash());
        let removed = self.table.remove(KeyHash(key.secret_hash()), location(at));
        assert!(removed, "I1: a found item is in the table");
    }

    /// Reclaims the space of an item that has expired or was flushed, and is in the table.
    pub(crate) fn reclaim_expired(&mut self, at: ItemAt) {
        debug_assert!(!self.segments.item(at).is_dead(), "it dies here");
        let hash = hash_of(&self.hasher, self.segments.key(at));
        self.changes.before_change(hash.0);
        let removed = self.table.remove(hash, location(at));
        assert!(removed, "I1: an item that is not dead yet is in the table");
        self.segments.reclaim_dead(at);
    }

    /// Reports that the marks of an item are about to change.
    #[cold]
    pub(crate) fn before_mark(&self, at: ItemAt) {
        debug_assert!(self.changes.are_reported(), "hashing a key is for the copies alone");
        let item = self.segments.item(at);
        note_copy_reads(&self.changes, &self.hasher, &item);
        self.changes.before_change(self.hasher.secret_hash(item.key()));
    }

    /// A step of the index's own upkeep, over at most `slots_max` slots, and the rest of the last
    /// bucket.
    pub(crate) fn maintain_index(&mut self, slots_max: usize) -> usize {
        let (segments, hasher) = (&self.segments, &self.hasher);
        let hash_at = |location: Location| hash_of(hasher, segments.key(item_at(location)));
        let slots = self.table.maintain(slots_max, hash_at);
        debug_assert!(
            slots <= slots_max.saturating_add(SLOTS_OF_A_BUCKET_MAX),
            "a step is bounded"
        );
        self.index_work_bytes += slots as u64 * MOVED_SLOT_BYTES;
        slots
    }
}

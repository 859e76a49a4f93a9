//! The engine of one shard: its index and its segments, kept in step.
//!
//! Upstream:   verbs look keys up and store items; `tick` asks for maintenance.
//! Downstream: `table` (key hash to location) and `segment` (location to item).
//!
//! Invariants:
//! - I1  Every location in the table is an item in the segments, and no two slots hold one key.
//! - I2  An item that is expired or flushed is never handed to a verb: `find` refuses it.
//!   What any shard has flushed before `find` begins is flushed for it; what the verb then stores
//!   is of the same epoch.
//! - I3  CAS tokens of one shard only grow, unless a client chose one (`E`).
//!
//! CAS tokens are `count * shards + shard`: unique in the process without a shared counter.

mod find;

use std::sync::Arc;

use kachel_host::Budget;
use kachel_segment::{
    Index, Item, ItemAt, NewItem, NewValue, NoRoom, Pinned, Pool, SegmentOptions, SegmentStats,
    Segments, Upload,
};
use kachel_stdx::Landing;
use kachel_table::{KeyHash, Location, Table};

pub(crate) use self::find::Wanted;
use crate::counters::Counters;
use crate::hash::KeyHasher;

/// Work items of maintenance in one tick: slots moved, items copied or dropped.
pub(crate) const MAINTENANCE_ITEMS_MAX: usize = 64;
/// Slots looked at when the index grows in one go, after it was too full for a key.
pub(crate) const GROWTH_SLOTS_MAX: usize = 4096;
/// Times that a store makes room for the index and begins again before it gives up.
pub(crate) const STORE_ATTEMPTS_MAX: u32 = 8;

/// How an engine behaves.
#[derive(Clone, Copy, Debug)]
pub struct EngineOptions {
    /// Whether items are evicted when memory is full (`cache`) or stores refused (`store`, `-M`).
    pub evict: bool,
    /// Whether items carry CAS tokens (absent with `-C`).
    pub cas: bool,
    /// The largest item, `-I`: key, value and what memcached counts with them.
    pub item_bytes_max: u64,
}

/// What `find` hands out: an item that is live now.
pub(crate) type Found = ItemAt;

/// What to store under a key.
pub(crate) struct Draft<'a> {
    pub(crate) value: NewValue<'a>,
    pub(crate) client_flags: u32,
    pub(crate) expiry: u32,
    /// The token to give, or the next one.
    pub(crate) cas: Option<u64>,
    pub(crate) stale: bool,
    pub(crate) win_sent: bool,
    /// Whether replies show the key in base64.
    pub(crate) base64_key: bool,
    /// Whether the item counts as read when the one that it replaces was.
    pub(crate) keeps_access: bool,
    /// The item that this one takes the place of, as `find` gave it.
    pub(crate) replaces: Option<Found>,
}

/// Index and segments of one shard.
pub(crate) struct Engine {
    pub(crate) table: Table,
    pub(crate) segments: Segments,
    pub(crate) hasher: KeyHasher,
    pub(crate) options: EngineOptions,
    /// The current second, set once a tick.
    pub(crate) second: u32,
    cas_count: u64,
    cas_stride: u64,
    cas_shard: u64,
    pub(crate) counters: Arc<Counters>,
    /// What the segments had counted at the last `stats reset`.
    stats_before: SegmentStats,
}

/// The table as the segments see it: they move and drop items, it follows.
struct TableIndex<'a> {
    table: &'a mut Table,
    hasher: &'a KeyHasher,
    /// An item that is appended and has no slot yet; it may be moved or dropped like any other.
    pending: Option<ItemAt>,
}

impl<'a> TableIndex<'a> {
    fn new(table: &'a mut Table, hasher: &'a KeyHasher) -> Self {
        Self { table, hasher, pending: None }
    }
}

impl Index for TableIndex<'_> {
    fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.key_hash(key).0
    }

    fn prefetch(&self, key: &[u8]) {
        self.table.prefetch(self.hasher.key_hash(key));
    }

    fn swing(&mut self, key: &[u8], from: ItemAt, to: ItemAt) {
        if self.pending == Some(from) {
            self.pending = Some(to);
            return;
        }
        let swung = self.table.swing(self.hasher.key_hash(key), location(from), location(to));
        assert!(swung, "I1: a live item is in the table");
    }

    fn remove(&mut self, key: &[u8], at: ItemAt) {
        if self.pending == Some(at) {
            self.pending = None;
            return;
        }
        let removed = self.table.remove(self.hasher.key_hash(key), location(at));
        assert!(removed, "I1: a live item is in the table");
    }
}

fn location(at: ItemAt) -> Location {
    Location::new(at.get())
}

pub(crate) fn item_at(location: Location) -> ItemAt {
    ItemAt::new(location.get())
}

/// Bytes of the smallest item: the header and a short key.
const ITEM_BYTES_MIN: u64 = 24;
/// Slots for which a table has room at least, however small the memory.
const SLOTS_MIN: u64 = 1 << 16;

/// Bytes of the budget without which one of `shards` shards may have no room for an item.
pub const fn budget_bytes_min(shards: u16) -> u64 {
    (Table::BUDGET_BYTES_MIN + Segments::budget_bytes_min()) * shards as u64
}

/// Slots of one shard's table at most, for `bytes_max` of items in all shards.
///
/// The smallest item takes 24 bytes, so there are never more items than such ones fit. Partitions
/// give each shard an even part of the keys; twice that is never too few, unless clients choose
/// their keys for one shard. So the bound of all tables together does not grow with the shards.
fn slots_max(bytes_max: u64, shards: u16) -> u64 {
    let items_max = bytes_max / ITEM_BYTES_MIN;
    (items_max * 2 / u64::from(shards.max(2))).max(SLOTS_MIN)
}

/// Address space that the indexes of all `shards` over `pool` reserve, in bytes.
pub(crate) fn index_bytes(pool: &Pool, shards: u16) -> u64 {
    u64::from(shards) * Table::reserved_bytes(slots_max(pool.bytes_max(), shards))
}

impl Engine {
    /// An empty engine for shard `shard` of `shards`.
    ///
    /// Errors: the index's address space cannot be reserved.
    pub(crate) fn new(
        pool: Arc<Pool>,
        budget: Arc<Budget>,
        hasher: KeyHasher,
        options: EngineOptions,
        (shard, shards): (u16, u16),
        counters: Arc<Counters>,
    ) -> std::io::Result<Self> {
        let segment_options = SegmentOptions { evict: options.evict, cas: options.cas, shard };
        Ok(Self {
            table: Table::new(budget, slots_max(pool.bytes_max(), shards))?,
            segments: Segments::new(pool, segment_options)?,
            hasher,
            options,
            second: 2,
            cas_count: 0,
            cas_stride: u64::from(shards),
            cas_shard: u64::from(shard),
            counters,
            stats_before: SegmentStats::default(),
        })
    }

    /// The item found before.
    #[inline]
    pub(crate) fn item(&self, at: Found) -> Item<'_> {
        self.segments.item(at)
    }

    /// Notes that the item was read.
    #[inline]
    pub(crate) fn note_access(&self, at: Found) {
        self.segments.note_access(at, self.second);
    }

    /// A handle by which a large value can be read after this tick.
    pub(crate) fn pin(&self, at: Found) -> Pinned {
        self.segments.pin(at)
    }

    /// Takes the item out.
    pub(crate) fn remove(&mut self, hash: KeyHash, at: Found) {
        let removed = self.table.remove(hash, location(at));
        assert!(removed, "I1: a found item is in the table");
        self.segments.kill(at);
    }

    /// The token that the next store gets (I3).
    pub(crate) fn next_cas(&mut self) -> u64 {
        self.cas_count += 1;
        self.cas_count * self.cas_stride + self.cas_shard
    }

    /// Stores `draft` under `key`, in place of what is there.
    ///
    /// Making room may move or drop other items, and the old item of this key too: whoever held a
    /// `Found` must find it again. Errors: nothing is left to evict, or nothing may be.
    pub(crate) fn put(
        &mut self,
        key: &[u8],
        hash: KeyHash,
        draft: Draft<'_>,
    ) -> Result<Found, NoRoom> {
        let cas = match draft.cas {
            _ if !self.options.cas => None,
            Some(chosen) => Some(chosen),
            None => Some(self.next_cas()),
        };
        let kept = draft.replaces.filter(|_| draft.keeps_access);
        let item = NewItem {
            key,
            hash: hash.0,
            value: draft.value,
            client_flags: draft.client_flags,
            expiry: draft.expiry,
            cas,
            stale: draft.stale,
            win_sent: draft.win_sent,
            base64_key: draft.base64_key,
            replaces: draft.replaces,
            access: kept.map(|old| self.segments.item(old).access()),
        };
        let mut index = TableIndex::new(&mut self.table, &self.hasher);
        let at = self.segments.append(item, self.second, &mut index)?;
        let segments = &self.segments;
        let is_key = |location| segments.key_is(item_at(location), key);
        if let Some(old) = self.table.find(hash, is_key) {
            let swung = self.table.swing(hash, old, location(at));
            assert!(swung, "I1");
            self.segments.kill(item_at(old));
            return Ok(at);
        }
        self.insert(hash, at)
    }

    /// Gives an appended item its slot, at the cost of other items when the index may not grow.
    #[inline]
    fn insert(&mut self, hash: KeyHash, at: ItemAt) -> Result<Found, NoRoom> {
        if self.try_insert(hash, at) { Ok(at) } else { self.insert_into_full(hash, at) }
    }

    /// Gives an item its slot, if the index has one for it.
    #[inline]
    fn try_insert(&mut self, hash: KeyHash, at: ItemAt) -> bool {
        let (segments, hasher) = (&self.segments, &self.hasher);
        let hash_of = |location: Location| hasher.key_hash(segments.key(item_at(location)));
        self.table.insert(hash, location(at), hash_of).is_ok()
    }

    #[cold]
    fn insert_into_full(&mut self, hash: KeyHash, at: ItemAt) -> Result<Found, NoRoom> {
        let mut at = at;
        for _ in 0..STORE_ATTEMPTS_MAX {
            let wanted = self.table.growth_bytes();
            let mut index = TableIndex::new(&mut self.table, &self.hasher);
            index.pending = Some(at);
            let made = self.segments.make_room(wanted, self.second, &mut index);
            at = index.pending.ok_or(NoRoom)?;
            let (segments, hasher) = (&self.segments, &self.hasher);
            let hash_of = |location: Location| hasher.key_hash(segments.key(item_at(location)));
            // So full that this key found no path: many splits, and the next keys find one.
            self.table.maintain(GROWTH_SLOTS_MAX, hash_of);
            if self.try_insert(hash, at) {
                return Ok(at);
            }
            if !made {
                break;
            }
            // It has grown, but far from this key's buckets: one of their items goes.
            if self.options.evict && self.evict_neighbor(hash) && self.try_insert(hash, at) {
                return Ok(at);
            }
        }
        self.segments.kill(at);
        Err(NoRoom)
    }

    /// Drops an item of a bucket that the key would lie in; whether there was one.
    fn evict_neighbor(&mut self, hash: KeyHash) -> bool {
        let Some(neighbor) = self.table.neighbor(hash) else { return false };
        let at = item_at(neighbor);
        let removed = self.table.remove(self.hasher.key_hash(self.segments.key(at)), neighbor);
        assert!(removed, "I1: it was found in the table");
        self.segments.evict(at, self.second);
        true
    }

    /// Begins to receive a large value; `None`: it is larger than all memory.
    pub(crate) fn begin_upload(&self, value_bytes: usize) -> Option<Upload> {
        self.segments.pool().begin_upload(value_bytes).ok()
    }

    /// An empty landing for the uploads of this process.
    pub(crate) fn spare_landing(&self) -> Landing {
        self.segments.pool().spare_landing()
    }

    /// Gives memory back to the budget, at the cost of items. `false`: none is left to give.
    pub(crate) fn make_room(&mut self, bytes: u64) -> bool {
        let mut index = TableIndex::new(&mut self.table, &self.hasher);
        self.segments.make_room(bytes, self.second, &mut index)
    }

    /// Frees memory for a piece of a large value, at the cost of other items. `false`: none is left
    /// to free.
    pub(crate) fn make_upload_room(&mut self, bytes: usize) -> bool {
        let mut index = TableIndex::new(&mut self.table, &self.hasher);
        self.segments.make_upload_room(bytes, self.second, &mut index)
    }

    /// Notes that the right to refill the item was given away.
    pub(crate) fn set_win_sent(&mut self, at: Found) {
        self.segments.set_win_sent(at);
    }

    /// Gives the item a new expiry.
    pub(crate) fn set_expiry(&mut self, at: Found, expiry: u32) {
        self.segments.set_expiry(at, expiry);
    }

    /// Notes what was flushed, by whichever shard, up to now.
    #[cold]
    pub(crate) fn note_flush(&mut self) {
        self.segments.note_flush(self.second);
    }

    /// A bounded step of upkeep; returns the work done.
    pub(crate) fn maintain(&mut self) -> usize {
        let (segments, hasher) = (&self.segments, &self.hasher);
        let hash_of = |location: Location| hasher.key_hash(segments.key(item_at(location)));
        let moved = self.table.maintain(MAINTENANCE_ITEMS_MAX, hash_of);
        let mut index = TableIndex::new(&mut self.table, &self.hasher);
        moved + self.segments.maintain(self.second, &mut index, MAINTENANCE_ITEMS_MAX)
    }

    /// What the index has done so far.
    pub(crate) fn index_counters(&self) -> kachel_table::Counters {
        self.table.counters()
    }

    /// Items in the index.
    pub(crate) fn index_items(&self) -> u64 {
        self.table.len()
    }

    /// Bytes of the index.
    pub(crate) fn index_bytes(&self) -> u64 {
        self.table.bytes()
    }

    /// Begins to count again from 0 (`stats reset`).
    pub(crate) fn reset_stats(&mut self) {
        self.counters.reset();
        self.stats_before = self.segments.stats();
        self.publish_gauges();
    }

    /// Writes the gauges that `stats` shows.
    pub(crate) fn publish_gauges(&self) {
        let (stats, before) = (self.segments.stats(), &self.stats_before);
        let counters = &self.counters;
        counters.items.set(self.table.len());
        counters.bytes.set(stats.live_bytes);
        counters.index_bytes.set(self.table.bytes());
        counters.index_slots.set(self.table.slots());
        counters.evictions.set(stats.evictions - before.evictions);
        counters.evicted_unfetched.set(stats.evicted_unfetched - before.evicted_unfetched);
        counters.evicted_active.set(stats.evicted_active - before.evicted_active);
        counters.expired_unfetched.set(stats.expired_unfetched - before.expired_unfetched);
        counters.reclaimed.set(stats.reclaimed - before.reclaimed);
    }

    /// Whether an item of this size may be stored at all: `-I` as memcached counts.
    ///
    /// memcached counts a 48-byte header, 8 for the CAS token, the key and a NUL, 4 for client
    /// flags that are not 0, the value and CR LF.
    pub(crate) fn fits(&self, key_bytes: usize, value_bytes: usize, client_flags: u32) -> bool {
        let header = 48 + 8 * u64::from(self.options.cas) + 4 * u64::from(client_flags != 0);
        let bytes = header + key_bytes as u64 + 1 + value_bytes as u64 + 2;
        bytes <= self.options.item_bytes_max
    }
}

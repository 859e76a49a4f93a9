//! An index and segments full of items, put together as the engine does.
//!
//! Upstream:   the benchmarks of this crate.
//! Downstream: `table`, `segment`; SipHash as in the server.

use std::hash::Hasher as _;
use std::sync::Arc;

use kachel_host::Budget;
use kachel_segment::{
    Index, ItemAt, NewItem, NewValue, Pool, PoolOptions, SegmentOptions, Segments,
};
use kachel_table::{KeyHash, Location, Table};
use siphasher::sip::SipHasher13;

/// Requests that are looked up together.
pub(crate) const BATCH: usize = kachel_shard::BATCH_REQUESTS_MAX;
/// Bytes of each key.
pub(crate) const KEY_BYTES: usize = 16;
/// Bytes of each value.
pub(crate) const VALUE_BYTES: usize = 100;

/// A key.
pub(crate) type Key = [u8; KEY_BYTES];

/// The `number`th key.
pub(crate) fn key(number: u64) -> Key {
    let text = format!("key-{number:012}");
    text.as_bytes().try_into().expect("a key of sixteen bytes")
}

/// Keys in no order, each as likely as any other.
pub(crate) fn random_keys(items: u64, count: usize, seed: u64) -> Vec<Key> {
    let mut state = seed | 1;
    let mut draw = || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    };
    (0..count).map(|_| key(draw() % items)).collect()
}

/// Items, and the index that leads to them.
pub(crate) struct Stock {
    table: Table,
    pub(crate) segments: Segments,
    secret: SipHasher13,
}

/// The index as segments see it: memory suffices, so nothing moves and nothing goes.
struct Still(SipHasher13);

impl Index for Still {
    fn hash(&self, key: &[u8]) -> u64 {
        hash(self.0, key).0
    }

    fn swing(&mut self, _key: &[u8], _from: ItemAt, _to: ItemAt) {
        unreachable!("nothing is dead, so nothing is compacted");
    }

    fn remove(&mut self, _key: &[u8], _at: ItemAt) {
        unreachable!("memory suffices");
    }
}

fn hash(mut secret: SipHasher13, key: &[u8]) -> KeyHash {
    secret.write(key);
    KeyHash(secret.finish())
}

fn item_at(location: Location) -> ItemAt {
    ItemAt::new(location.get())
}

impl Stock {
    /// `items` items, with the keys 0, 1, 2 and so on.
    pub(crate) fn filled(items: u64) -> Self {
        let budget = Arc::new(Budget::new((items * 256).max(64 << 20)));
        let reserve_bytes = budget.limit_bytes();
        let pool_options = PoolOptions { shards: 1, reserve_bytes, huge: false };
        let pool = Pool::new(Arc::clone(&budget), pool_options).expect("address space");
        let options = SegmentOptions { evict: true, cas: true, shard: 0 };
        let mut stock = Self {
            table: Table::new(budget, 2 * items).expect("address space"),
            segments: Segments::new(pool, options).expect("address space"),
            secret: SipHasher13::new_with_keys(11, 13),
        };
        (0..items).for_each(|number| stock.store(&key(number), number + 1));
        stock
    }

    fn store(&mut self, key: &Key, cas: u64) {
        let hash = self.hash(key);
        let item = NewItem {
            key,
            hash: hash.0,
            value: NewValue::Bytes(&[b'v'; VALUE_BYTES]),
            client_flags: 0,
            expiry: 0,
            cas: Some(cas),
            stale: false,
            win_sent: false,
            base64_key: false,
            replaces: None,
            access: None,
        };
        let at = self.segments.append(item, 2, &mut Still(self.secret)).expect("memory suffices");
        let (segments, secret) = (&self.segments, self.secret);
        let hash_of = |location| crate::stock::hash(secret, segments.key(item_at(location)));
        self.table.insert(hash, Location::new(at.get()), hash_of).expect("memory suffices");
    }

    /// The secret hash of a key.
    #[inline]
    pub(crate) fn hash(&self, key: &[u8]) -> KeyHash {
        hash(self.secret, key)
    }

    /// Brings the key's two buckets near.
    #[inline]
    pub(crate) fn prefetch_buckets(&self, hash: KeyHash) {
        self.table.prefetch(hash);
    }

    /// Brings the item near that probably has this hash.
    #[inline]
    pub(crate) fn prefetch_item(&self, hash: KeyHash) {
        if let Some(location) = self.table.candidate(hash) {
            self.segments.prefetch_small(item_at(location));
        }
    }

    /// Finds a key and copies its value, as a GET does.
    #[inline]
    pub(crate) fn read(&self, key: &[u8], hash: KeyHash, target: &mut [u8; VALUE_BYTES]) {
        let is_key = |location| self.segments.key_is(item_at(location), key);
        let at = item_at(self.table.find(hash, is_key).expect("each key is there"));
        assert!(self.segments.is_live(at, 2));
        self.segments.note_access(at, 2);
        target.copy_from_slice(self.segments.item(at).value().as_slice().expect("one piece"));
    }

    /// Reads a batch of keys: hashed and (if `prefetch`) prefetched first, as the server does.
    #[inline]
    pub(crate) fn read_batch(&self, keys: &[Key], prefetch: bool, target: &mut [u8; VALUE_BYTES]) {
        let mut hashes = [KeyHash(0); BATCH];
        for (hash, key) in hashes.iter_mut().zip(keys) {
            *hash = self.hash(key);
        }
        let hashes = &hashes[..keys.len()];
        if prefetch {
            hashes.iter().for_each(|&hash| self.prefetch_buckets(hash));
            hashes.iter().for_each(|&hash| self.prefetch_item(hash));
        }
        for (key, &hash) in keys.iter().zip(hashes) {
            self.read(key, hash, target);
        }
    }
}

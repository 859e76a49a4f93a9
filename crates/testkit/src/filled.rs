//! A cache full of items, used in process through the engine's contract.
//!
//! Upstream:   the benchmarks of batches and of instruction counts.
//! Downstream: `cache`.
//!
//! Invariants:
//! - I1  Memory suffices: nothing is ever evicted, so every key is found.

use std::hint::black_box;
use std::sync::Arc;

use kachel_cache::{Cache, EngineOf, Pool, PoolOptions};
use kachel_engine::{
    BATCH_MAX, Block, ClockOrigin, Engine as _, EngineOptions, Extensions as _, GetTerms, Key,
    KeyHasher, LeaseOptions, Lookup, Now, Operation, Seeds, Ttl, Value, apply, get,
};
use kachel_host::Budget;

use crate::random::Random;

/// Bytes of each key.
pub const KEY_BYTES: usize = 16;
/// Bytes of each value.
pub const VALUE_BYTES: usize = 100;

/// A key.
pub type BenchKey = [u8; KEY_BYTES];

/// A cache with keys and values of the usual lengths.
pub type FilledCache = Filled<KEY_BYTES, VALUE_BYTES>;

/// The key of number `number`: digits, with letters before them if there is space.
pub fn key<const BYTES: usize>(number: u64) -> [u8; BYTES] {
    let letters = if BYTES >= KEY_BYTES { "key-" } else { "" };
    debug_assert!(BYTES > letters.len(), "a key has room for digits");
    let text = format!("{letters}{number:0width$}", width = BYTES - letters.len());
    text.as_bytes().try_into().expect("a number with few enough digits")
}

/// `count` random keys of a cache of `items` items, each key equally likely.
pub fn random_keys(items: u64, count: usize, seed: u64) -> Vec<BenchKey> {
    let mut random = Random::new(seed);
    (0..count).map(|_| key(random.below(items))).collect()
}

/// A cache that holds the keys 0, 1, 2 and so on, or those of them that one shard owns.
#[derive(Debug)]
pub struct Filled<const KEY_BYTES: usize, const VALUE_BYTES: usize> {
    /// The cache.
    pub cache: Cache,
    /// The hasher of its keys.
    pub hasher: KeyHasher,
    /// The second in which all was stored.
    pub now: Now,
}

impl<const KEY_BYTES: usize, const VALUE_BYTES: usize> Filled<KEY_BYTES, VALUE_BYTES> {
    /// A cache of `items` items. Cost: about 256 bytes of memory an item.
    pub fn new(items: u64) -> Self {
        let mut shards = Self::shards(1, items, false);
        shards.pop().expect("one shard")
    }

    /// The caches of `shards` shards, which hold `items` items together. With `huge`, the items are
    /// in huge pages.
    pub fn shards(shards: u16, items: u64, huge: bool) -> Vec<Self> {
        assert!(shards > 0 && items > 0, "some shard holds some item");
        let budget = Arc::new(Budget::new((items * 256).max(64 << 20)));
        let reserve_bytes = budget.limit_bytes();
        let pool_options =
            PoolOptions { engines: shards, reserve_bytes, huge, ..PoolOptions::default() };
        let pool = Pool::new(Arc::clone(&budget), pool_options).expect("address space");
        let hasher = KeyHasher::new(Seeds { hash_keys: [11, 13] }, shards);
        let options = EngineOptions {
            evict: true,
            cas: true,
            item_bytes_max: 1 << 20,
            leases: LeaseOptions::DEFAULT,
        };
        let now = ClockOrigin::new(0, 1_800_000_000).at(0);
        let new = |engine| {
            let (pool, budget) = (Arc::clone(&pool), Arc::clone(&budget));
            let of = EngineOf { engine, engines: shards };
            let cache = Cache::new(pool, budget, hasher, options, of);
            Self { cache: cache.expect("address space"), hasher, now }
        };
        let mut filled: Vec<Self> = (0..shards).map(new).collect();
        for number in 0..items {
            let key = key(number);
            let owner = hasher.owner(hasher.key(&key).hashes());
            filled[owner.number()].store(&key);
        }
        let stored = |filled: &Self| filled.cache.stats().items;
        assert!(filled.iter().map(stored).sum::<u64>() == items, "I1: nothing was evicted");
        filled
    }

    /// Stores a key, as a SET does.
    pub fn store(&mut self, key: &[u8; KEY_BYTES]) {
        assert!(self.try_store(key), "one core waits for no reader");
    }

    /// Stores a key, as a SET does. Returns `false` if the room for it waits for a reader.
    pub fn try_store(&mut self, key: &[u8; KEY_BYTES]) -> bool {
        let operation = Operation::set(self.hasher.key(key), VALUE_BYTES, Ttl(0));
        let mut value = Block::Bytes(&[b'v'; VALUE_BYTES]);
        apply(&mut self.cache, &operation, &mut value, &self.now).is_ok()
    }

    /// Reads one key, as a GET does.
    #[inline]
    pub fn read(&mut self, key: &[u8; KEY_BYTES]) {
        let key = self.hasher.key(key);
        read::<VALUE_BYTES>(&mut self.cache, key, &self.now);
    }

    /// Reads at most 32 keys: hashed and (if `prefetch`) prefetched first, as the server does.
    #[inline]
    pub fn read_batch(&mut self, keys: &[[u8; KEY_BYTES]], prefetch: bool) {
        let mut hashed = [None; BATCH_MAX];
        for (place, key) in hashed.iter_mut().zip(keys) {
            *place = Some(self.hasher.key(key));
        }
        let hashed = hashed[..keys.len()].iter().flatten();
        if prefetch {
            let lookup = |key: &Key<'_>| Lookup { secret_hash: key.secret_hash(), value: true };
            self.cache.prefetch(hashed.clone().map(lookup));
        }
        for key in hashed {
            read::<VALUE_BYTES>(&mut self.cache, *key, &self.now);
        }
    }
}

/// Reads the key with a value of `BYTES` bytes.
#[inline]
fn read<const BYTES: usize>(cache: &mut Cache, key: Key<'_>, now: &Now) {
    let outcome = get(cache, &key, &GetTerms::VALUE, now).expect("a plain read stores nothing");
    copy_out::<BYTES, _>(outcome.value);
}

/// Copies a value of `BYTES` bytes, as a reply does.
///
/// Panics: the value has another length, or there is none (I1).
#[inline]
pub fn copy_out<const BYTES: usize, P>(value: Value<'_, P>) {
    let Value::Inline(value) = value else { panic!("I1: every key is found") };
    let mut target = [0; BYTES];
    target.copy_from_slice(value);
    black_box(target);
}

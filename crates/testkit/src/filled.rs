//! A cache full of items, used in process through the engine's contract.
//!
//! Upstream:   the benchmarks of batches and of instruction counts.
//! Downstream: `cache`.
//!
//! Invariants:
//! - I1  Memory suffices: nothing is ever evicted, so every key is found.

use std::hint::black_box;
use std::sync::Arc;

use kachel_cache::{Cache, Pool, PoolOptions, ShardOf};
use kachel_engine::{
    BATCH_MAX, Block, ClockOrigin, Engine as _, EngineOptions, GetTerms, Key, KeyHasher, Lookup,
    Now, Operation, Seeds, Ttl, Value, apply, get,
};
use kachel_host::Budget;

use crate::random::Random;

/// Bytes of each key.
pub const KEY_BYTES: usize = 16;
/// Bytes of each value.
pub const VALUE_BYTES: usize = 100;

/// A key.
pub type BenchKey = [u8; KEY_BYTES];

fn key(number: u64) -> BenchKey {
    let text = format!("key-{number:012}");
    text.as_bytes().try_into().expect("a key of sixteen bytes")
}

/// `count` random keys of a cache of `items` items, each key equally likely.
pub fn random_keys(items: u64, count: usize, seed: u64) -> Vec<BenchKey> {
    let mut random = Random::new(seed);
    (0..count).map(|_| key(random.below(items))).collect()
}

/// A cache that holds the keys 0, 1, 2 and so on.
#[derive(Debug)]
pub struct FilledCache {
    cache: Cache,
    hasher: KeyHasher,
    now: Now,
}

impl FilledCache {
    /// A cache of `items` items. Cost: about 256 bytes of memory an item.
    pub fn new(items: u64) -> Self {
        let budget = Arc::new(Budget::new((items * 256).max(64 << 20)));
        let reserve_bytes = budget.limit_bytes();
        let pool_options = PoolOptions { shards: 1, reserve_bytes, huge: false };
        let pool = Pool::new(Arc::clone(&budget), pool_options).expect("address space");
        let hasher = KeyHasher::new(Seeds { hash_keys: [11, 13] }, 1);
        let options = EngineOptions { evict: true, cas: true, item_bytes_max: 1 << 20 };
        let cache = Cache::new(pool, budget, hasher, options, ShardOf::ONE).expect("address space");
        let mut filled = Self { cache, hasher, now: ClockOrigin::new(0, 1_800_000_000).at(0) };
        for number in 0..items {
            filled.store(&key(number));
        }
        filled
    }

    fn store(&mut self, key: &BenchKey) {
        let operation = Operation::set(self.hasher.key(key), VALUE_BYTES, Ttl(0));
        apply(&mut self.cache, &operation, &mut Block::Bytes(&[b'v'; VALUE_BYTES]), &self.now)
            .expect("one core waits for no reader");
    }

    /// Reads one key, as a GET does.
    #[inline]
    pub fn read(&mut self, key: &BenchKey) {
        let key = self.hasher.key(key);
        read(&mut self.cache, key, &self.now);
    }

    /// Reads at most 32 keys: hashed and (if `prefetch`) prefetched first, as the server does.
    #[inline]
    pub fn read_batch(&mut self, keys: &[BenchKey], prefetch: bool) {
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
            read(&mut self.cache, *key, &self.now);
        }
    }
}

#[inline]
fn read(cache: &mut Cache, key: Key<'_>, now: &Now) {
    let outcome = get(cache, &key, &GetTerms::VALUE, now).expect("a plain read stores nothing");
    let Value::Inline(value) = outcome.value else { panic!("I1: {key:?} is there") };
    let mut target = [0; VALUE_BYTES];
    target.copy_from_slice(value);
    black_box(target);
}

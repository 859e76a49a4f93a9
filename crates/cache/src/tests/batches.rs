//! Tests that the prefetch of a batch changes no answer of the operations that follow.
//!
//! Upstream:   `cargo test`.
//! Downstream: the contract's `prefetch`, and the guesses that it leaves.

use std::collections::HashMap;
use std::sync::Arc;

use kachel_engine::{
    BATCH_MAX, Block, ClockOrigin, EngineOptions, Extensions as _, GetTerms, KeyHasher,
    LeaseOptions, Lookup, Now, Operation, Seeds, Ttl, Value, apply, get,
};
use kachel_host::Budget;
use kachel_segment::{Pool, PoolOptions};
use kachel_testkit::Random;

use crate::cache::{Cache, EngineOf};

const KEYS: u64 = 500;
const BATCHES: u32 = 4000;

struct World {
    cache: Cache,
    hasher: KeyHasher,
    now: Now,
    values: HashMap<u64, Vec<u8>>,
}

impl World {
    fn new() -> Self {
        let budget = Arc::new(Budget::new(16 << 20));
        let pool = PoolOptions { engines: 1, reserve_bytes: 16 << 20, ..PoolOptions::default() };
        let pool = Pool::new(Arc::clone(&budget), pool).expect("address space");
        let hasher = KeyHasher::new(Seeds { hash_keys: [3, 5] }, 1);
        let options = EngineOptions {
            evict: true,
            cas: true,
            item_bytes_max: 1 << 20,
            leases: LeaseOptions::DEFAULT,
        };
        let cache = Cache::new(pool, budget, hasher, options, EngineOf::ONE).expect("space");
        let now = ClockOrigin::new(0, 1_800_000_000).start();
        Self { cache, hasher, now, values: HashMap::new() }
    }

    fn prefetch(&self, numbers: &[u64]) {
        let lookup = |number: &u64| {
            let name = number.to_string();
            let key = self.hasher.key(name.as_bytes());
            Lookup { secret_hash: key.secret_hash(), value: number.is_multiple_of(2) }
        };
        self.cache.prefetch(numbers.iter().map(lookup));
    }

    fn execute(&mut self, number: u64, random: u64) {
        let name = number.to_string();
        let key = self.hasher.key(name.as_bytes());
        match random % 8 {
            0 => {
                let value = vec![random as u8; (random >> 8) as usize % 400];
                let set = Operation::set(key, value.len(), Ttl(0));
                apply(&mut self.cache, &set, &mut Block::Bytes(&value), &self.now)
                    .expect("nothing waits for memory");
                self.values.insert(number, value);
            }
            1 => {
                let delete = Operation::delete(key);
                apply(&mut self.cache, &delete, &mut Block::None, &self.now)
                    .expect("nothing waits for memory");
                self.values.remove(&number);
            }
            _ => {
                let read = get(&mut self.cache, &key, &GetTerms::VALUE, &self.now)
                    .expect("nothing waits for memory");
                let expected = self.values.get(&number).map(Vec::as_slice);
                match read.value {
                    Value::Inline(value) => assert_eq!(Some(value), expected),
                    _ => assert_eq!(None, expected),
                }
            }
        }
    }
}

#[test]
fn a_prefetch_changes_no_answer() {
    let mut world = World::new();
    let mut dice = Random::new(1);
    let mut random = || dice.bits();
    for batch in 0..BATCHES {
        let mut numbers = [0; BATCH_MAX];
        numbers.fill_with(|| random() % KEYS);
        let numbers = &mut numbers[..(random() % BATCH_MAX as u64) as usize];
        world.prefetch(numbers);
        match batch % 4 {
            0 => numbers.reverse(),
            1 => numbers.fill_with(|| random() % KEYS),
            _ => {}
        }
        // Some batches are left early, and the next one begins with a prefetch of its own.
        let executed = if batch % 8 == 3 { numbers.len() / 2 } else { numbers.len() };
        for &number in &numbers[..executed] {
            world.execute(number, random());
        }
    }
    assert!(world.values.len() as u64 > KEYS / 4, "many keys are found");
}

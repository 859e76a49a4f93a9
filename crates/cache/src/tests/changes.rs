//! Tests the change list: a listener that drops the listed keys never holds an old copy.
//!
//! Upstream:   `cargo test`.
//! Downstream: the contract's `take_changes`.

use std::collections::HashMap;
use std::sync::Arc;

use kachel_engine::{
    Block, Changed, ClockOrigin, Common as _, Engine as _, EngineOptions, GetTerms, KeyHasher,
    LeaseOptions, Now, Operation, Seeds, Ttl, Value, Verb, Verdict, Wanted, apply,
};
use kachel_host::Budget;
use kachel_segment::{Pool, PoolOptions};
use kachel_testkit::Random;

use crate::cache::{Cache, ShardOf};

const KEYS: u64 = 3000;
const OPERATIONS: u32 = 60_000;
const SEEDS: Seeds = Seeds { hash_keys: [7, 11] };

/// A copy of an item, as a listener keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Copy {
    value: Vec<u8>,
    /// The second in which it expires; 0 for never.
    expiry: u32,
}

/// A cache, and a listener with copies of the items that were read.
struct Pair {
    cache: Cache,
    hasher: KeyHasher,
    origin: ClockOrigin,
    now: Now,
    copies: HashMap<u64, (String, Copy)>,
    told: (u64, u64),
}

impl Pair {
    fn new() -> Self {
        let bytes = 2 << 20;
        let budget = Arc::new(Budget::new(bytes));
        let pool = PoolOptions { shards: 1, reserve_bytes: bytes, ..PoolOptions::default() };
        let pool = Pool::new(Arc::clone(&budget), pool).expect("address space");
        let hasher = KeyHasher::new(SEEDS, 1);
        let options = EngineOptions {
            evict: true,
            cas: true,
            item_bytes_max: 1 << 20,
            leases: LeaseOptions::DEFAULT,
        };
        let mut cache = Cache::new(pool, budget, hasher, options, ShardOf::ONE).expect("space");
        cache.record_changes();
        let origin = ClockOrigin::new(0, 1_800_000_000);
        let now = origin.start();
        Self { cache, hasher, origin, now, copies: HashMap::new(), told: (0, 0) }
    }

    /// The item that a read finds now.
    fn read(&mut self, name: &str) -> Option<Copy> {
        let key = self.hasher.key(name.as_bytes());
        let wanted = Wanted::CLIENT_FLAGS.with(Wanted::TTL);
        let terms = GetTerms { wanted, notes_access: false, ..GetTerms::VALUE };
        let operation = Operation { key, verb: Verb::Get(terms) };
        let outcome = apply(&mut self.cache, &operation, &mut Block::None, &self.now)
            .expect("nothing waits for memory");
        let Verdict::Hit(facts) = outcome.verdict else { return None };
        let Value::Inline(value) = outcome.value else { panic!("values are small") };
        let expiry = facts.ttl_before.map_or(0, |ttl| self.now.second + ttl as u32);
        Some(Copy { value: value.to_vec(), expiry })
    }

    fn change(&mut self, name: &str, verb: u64, random: u64) {
        let key = self.hasher.key(name.as_bytes());
        let value = vec![random as u8; 1000 + (random % 6000) as usize];
        let ttl = Ttl([0, 0, 0, 0, 0, 0, 1, 100][(random >> 32) as usize % 8]);
        let (operation, mut block) = match verb {
            0..6 => (Operation::set(key, value.len(), ttl), Block::Bytes(&value)),
            6 => (Operation::delete(key), Block::None),
            _ => (Operation { key, verb: Verb::Touch(ttl) }, Block::None),
        };
        apply(&mut self.cache, &operation, &mut block, &self.now)
            .expect("nothing waits for memory");
    }

    /// Drops the copies of the items that changed.
    fn listen(&mut self) {
        let (copies, told) = (&mut self.copies, &mut self.told);
        self.cache.take_changes(|changed| match changed {
            Changed::Key(hash) => {
                copies.remove(&hash);
                told.0 += 1;
            }
            Changed::All => {
                copies.clear();
                told.1 += 1;
            }
        });
    }

    /// Checks that a copy that has not expired is equal to the item that a read finds.
    fn check(&mut self, hash: u64) {
        let (name, copy) = self.copies[&hash].clone();
        if copy.expiry == 0 || copy.expiry > self.now.second {
            assert_eq!(self.read(&name).as_ref(), Some(&copy), "{name} in {:?}", self.now);
        }
    }
}

#[test]
fn a_listener_that_drops_what_changed_holds_no_old_copy() {
    let mut pair = Pair::new();
    let mut dice = Random::new(1);
    let mut random = || dice.bits();
    let mut checked = 0;
    for turn in 0..OPERATIONS {
        if turn % 200 == 0 {
            pair.now = pair.origin.at(u64::from(turn / 200) * 1_000_000_000);
            pair.cache.note_flush(&pair.now);
        }
        match random() % 10_000 {
            flush @ 0..2 => {
                let common = pair.cache.common();
                match flush {
                    0 => common.flush(&pair.now),
                    _ => common.flush_in(pair.now.second + 2, &pair.now),
                }
                pair.cache.note_flush(&pair.now);
            }
            2..1000 => drop(pair.cache.maintain(&pair.now)),
            _ => pair.change(&format!("key {}", random() % KEYS), random() % 8, random()),
        }
        pair.listen();
        let name = format!("key {}", random() % KEYS);
        if let Some(copy) = pair.read(&name) {
            let hash = pair.hasher.key(name.as_bytes()).secret_hash();
            pair.copies.insert(hash, (name, copy));
        }
        // A read may have found an expired item.
        pair.listen();
        let some = pair.copies.keys().nth(random() as usize % pair.copies.len().max(1)).copied();
        if let Some(hash) = some {
            pair.check(hash);
            checked += 1;
        }
        if turn % 1000 == 0 {
            pair.copies.keys().copied().collect::<Vec<_>>().into_iter().for_each(|hash| {
                pair.check(hash);
            });
        }
    }
    let stats = pair.cache.stats();
    assert!(stats.evictions > 1000 && stats.found_expired > 1000, "{stats:?}");
    assert!(checked > OPERATIONS / 2 && pair.told.0 > 10_000 && pair.told.1 > 5, "all happened");
}

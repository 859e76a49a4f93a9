//! Tests that copies are dropped in time: each is dropped before a reader on another core can see
//! that its item changed.
//!
//! Upstream:   `cargo test`.
//! Downstream: the contract's `report_changes`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use kachel_engine::{
    Block, ClockOrigin, Common as _, CopiedItem, Copies, CopyReads, Cursor, DeadFound, Engine as _,
    EngineOptions, Extensions as _, FlushStamp, GetTerms, KeyHasher, LeaseOptions, Now, Operation,
    Outcome, PrefixRefused, ReadAnswer, ReadBeside as _, Seeds, Ttl, Value, Verb, Verdict, Wanted,
    apply,
};
use kachel_host::Budget;
use kachel_segment::{Pool, PoolOptions};
use kachel_stdx::{BytePrefix, FLUSHED_PREFIXES_MAX, Reader};
use kachel_testkit::Random;

use crate::cache::{Cache, EngineOf};
use crate::reader::CacheReader;

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

/// Copies of items, and a reader on another core.
#[derive(Debug, Default)]
struct Store {
    kept: Mutex<HashMap<u64, (String, Copy)>>,
    /// Copies that were dropped, and flushes that were noted.
    told: Mutex<(u64, u64)>,
    beside: OnceLock<(CacheReader, Mutex<Reader>, KeyHasher)>,
    now: Mutex<Option<Now>>,
    /// Reads that copies have answered, and nobody has taken.
    reads: Mutex<HashMap<u64, CopyReads>>,
}

impl Store {
    /// Checks that a reader still sees the item of a copy, whose item is about to change.
    fn check_unchanged(&self, name: &str, copy: &Copy) {
        let (reader, round, hasher) = self.beside.get().expect("there is a reader");
        let now = self.now.lock().unwrap().expect("there is a time");
        if copy.expiry != 0 && copy.expiry <= now.second {
            return;
        }
        let (key, mut round) = (hasher.key(name.as_bytes()), round.lock().unwrap());
        let terms = GetTerms { notes_access: false, ..GetTerms::VALUE };
        round.wake();
        match reader.read(&key, None, &terms, &round, &now, &mut DeadFound::default()) {
            ReadAnswer::Done(Outcome { value: Value::Inline(value), .. }, _) => {
                assert_eq!(value, copy.value, "{name} is dropped before it changes");
            }
            ReadAnswer::Done(..) => panic!("{name} is dropped before it is gone"),
            ReadAnswer::AskOwner => {}
        }
        round.sleep();
    }
}

impl Copies for Store {
    fn drop_copy(&self, secret_hash: u64) {
        let dropped = self.kept.lock().unwrap().remove(&secret_hash);
        if let Some((name, copy)) = dropped {
            self.check_unchanged(&name, &copy);
            self.told.lock().unwrap().0 += 1;
        }
    }

    fn flush(&self, due: Option<u32>, change: &mut dyn FnMut()) {
        if due.is_none() {
            self.kept.lock().unwrap().clear();
        }
        change();
    }

    fn flush_some(&self, change: &mut dyn FnMut()) {
        self.flush(None, change);
    }

    fn note_flushed(&self, _second: u32) {
        self.kept.lock().unwrap().clear();
        self.told.lock().unwrap().1 += 1;
    }

    fn tick(&self, _second: u32, _now_ns: u64) {}

    fn is_hot(&self, _secret_hash: u64) -> bool {
        true
    }

    fn stamp(&self) -> Option<FlushStamp> {
        None
    }

    fn publish(&self, _stamp: FlushStamp, _item: &CopiedItem<'_>) {}

    fn take_reads(&self, secret_hash: u64) -> Option<CopyReads> {
        self.reads.lock().unwrap().remove(&secret_hash)
    }

    fn answered(&self) -> u64 {
        0
    }
}

/// A cache, and copies of the items that were read.
struct Pair {
    cache: Cache,
    hasher: KeyHasher,
    origin: ClockOrigin,
    now: Now,
    store: Arc<Store>,
}

impl Pair {
    fn new() -> Self {
        let bytes = 2 << 20;
        let budget = Arc::new(Budget::new(bytes));
        let pool = PoolOptions { engines: 1, reserve_bytes: bytes, ..PoolOptions::default() };
        let pool = Pool::new(Arc::clone(&budget), pool).expect("address space");
        let hasher = KeyHasher::new(SEEDS, 1);
        let options = EngineOptions {
            evict: true,
            cas: true,
            item_bytes_max: 1 << 20,
            leases: LeaseOptions::DEFAULT,
        };
        let mut cache = Cache::new(pool, budget, hasher, options, EngineOf::ONE).expect("space");
        let store = Arc::new(Store::default());
        assert!(cache.report_changes(Arc::clone(&store) as Arc<dyn Copies>));
        let round = Mutex::new(cache.common().register_core().expect("a place"));
        store.beside.set((cache.reader(), round, hasher)).expect("set once");
        let origin = ClockOrigin::new(0, 1_800_000_000);
        let mut pair = Self { cache, hasher, origin, now: origin.start(), store };
        pair.set_now(origin.start());
        pair
    }

    fn set_now(&mut self, now: Now) {
        self.now = now;
        *self.store.now.lock().unwrap() = Some(now);
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

    /// Checks that a copy that has not expired is equal to the item that a read finds.
    fn check(&mut self, hash: u64) {
        // A read drops the copy of a dead item that it finds.
        let Some((name, copy)) = self.store.kept.lock().unwrap().get(&hash).cloned() else {
            return;
        };
        if copy.expiry == 0 || copy.expiry > self.now.second {
            assert_eq!(self.read(&name).as_ref(), Some(&copy), "{name} in {:?}", self.now);
        }
    }

    /// The hashes of all copies.
    fn hashes(&self) -> Vec<u64> {
        self.store.kept.lock().unwrap().keys().copied().collect()
    }
}

#[test]
fn a_copy_is_dropped_before_its_item_changes() {
    let mut pair = Pair::new();
    let mut dice = Random::new(1);
    let mut random = || dice.bits();
    let mut checked = 0;
    for turn in 0..OPERATIONS {
        if turn % 200 == 0 {
            pair.set_now(pair.origin.at(u64::from(turn / 200) * 1_000_000_000));
            pair.cache.note_flush(&pair.now);
        }
        match random() % 10_000 {
            flush @ 0..3 => {
                let common = pair.cache.common();
                match flush {
                    0 => common.flush(&pair.now).expect("no disk"),
                    1 => {
                        let name = format!("key {}", random() % 10);
                        let prefix = BytePrefix::of_bytes(name.as_bytes()).expect("a prefix");
                        common.flush_prefix(&prefix).expect("upkeep has followed the last ones");
                    }
                    _ => common.flush_in(pair.now.second + 2, &pair.now).expect("no disk"),
                }
                pair.cache.note_flush(&pair.now);
            }
            3..1000 => drop(pair.cache.maintain(&pair.now)),
            _ => pair.change(&format!("key {}", random() % KEYS), random() % 8, random()),
        }
        let name = format!("key {}", random() % KEYS);
        if let Some(copy) = pair.read(&name) {
            let hash = pair.hasher.key(name.as_bytes()).secret_hash();
            pair.store.kept.lock().unwrap().insert(hash, (name, copy));
        }
        let count = pair.store.kept.lock().unwrap().len().max(1);
        let nth = random() as usize % count;
        let some = pair.store.kept.lock().unwrap().keys().nth(nth).copied();
        if let Some(hash) = some {
            pair.check(hash);
            checked += 1;
        }
        if turn % 1000 == 0 {
            pair.hashes().into_iter().for_each(|hash| pair.check(hash));
        }
    }
    let stats = pair.cache.stats();
    assert!(stats.evictions > 1000 && stats.found_expired > 1000, "{stats:?}");
    let told = *pair.store.told.lock().unwrap();
    assert!(checked > OPERATIONS / 2 && told.0 > 5_000 && told.1 > 5, "all happened: {told:?}");
}

/// Upkeep drops the copy of each item that it removes, but a copy must not answer until then.
#[test]
fn the_flush_of_a_prefix_drops_all_copies() {
    let pair = Pair::new();
    let copy_all = || {
        for name in ["key 1", "key 2"] {
            let copy = Copy { value: b"value".to_vec(), expiry: 0 };
            let hash = pair.hasher.key(name.as_bytes()).secret_hash();
            pair.store.kept.lock().unwrap().insert(hash, (name.to_owned(), copy));
        }
    };
    copy_all();
    let flush = |name: &str| {
        let prefix = BytePrefix::of_bytes(name.as_bytes()).expect("a prefix");
        pair.cache.common().flush_prefix(&prefix)
    };
    flush("key 1").expect("room in the list");
    assert_eq!(pair.hashes(), [0_u64; 0]);
    for number in 1..FLUSHED_PREFIXES_MAX {
        flush(&format!("other {number}")).expect("room in the list");
    }
    copy_all();
    assert_eq!(flush("more"), Err(PrefixRefused::TooMany));
    assert_eq!(pair.hashes().len(), 2, "nothing was flushed");
    flush("key 1").expect("it is in the list");
    assert_eq!(pair.hashes(), [0_u64; 0]);
}

/// Reads an item and its accesses: whether it was read before, and how many seconds ago.
fn told(pair: &mut Pair, name: &str) -> (bool, u32) {
    let key = pair.hasher.key(name.as_bytes());
    let terms = GetTerms { wanted: Wanted::ACCESS, notes_access: false, ..GetTerms::VALUE };
    let operation = Operation { key, verb: Verb::Get(terms) };
    let outcome = apply(&mut pair.cache, &operation, &mut Block::None, &pair.now)
        .expect("nothing waits for memory");
    let Verdict::Hit(facts) = outcome.verdict else { panic!("{name} is there") };
    (facts.hit_before, facts.since_access_s)
}

fn read_copy(pair: &Pair, name: &str, count: u64, second: u32) {
    let hash = pair.hasher.key(name.as_bytes()).secret_hash();
    pair.store.reads.lock().unwrap().insert(hash, CopyReads { count, second });
}

#[test]
fn reads_of_copies_are_counted_before_they_are_told() {
    let mut pair = Pair::new();
    let at = |pair: &Pair, second: u64| pair.origin.at(second * 1_000_000_000);
    pair.change("read", 0, 1);
    pair.change("touched", 0, 1);
    pair.change("listed", 0, 1);
    let start = pair.now.second;
    pair.set_now(at(&pair, 20));
    assert_eq!(told(&mut pair, "read"), (false, 20));
    for name in ["read", "touched", "listed"] {
        read_copy(&pair, name, 2, start + 15);
    }
    // A reader on another core leaves it to the owner.
    let (reader, round, hasher) = pair.store.beside.get().expect("there is a reader");
    let (mut round, key) = (round.lock().unwrap(), hasher.key(b"read"));
    round.wake();
    let terms = GetTerms { wanted: Wanted::ACCESS, ..GetTerms::VALUE };
    let answer = reader.read(&key, None, &terms, &round, &pair.now, &mut DeadFound::default());
    assert!(matches!(answer, ReadAnswer::AskOwner));
    round.sleep();
    drop(round);
    assert_eq!(told(&mut pair, "read"), (true, 5));
    // A touched item keeps its reads, so they are counted before its copy goes.
    pair.change("touched", 7, 7 << 32);
    let hash = pair.hasher.key(b"touched").secret_hash();
    assert!(!pair.store.reads.lock().unwrap().contains_key(&hash));
    let mut listed = 0;
    let mut cursor = Cursor::default();
    pair.cache.walk(&mut cursor, &pair.now, 100, |key, item| {
        listed += u32::from(key == b"listed" && item.is_fetched());
        true
    });
    assert_eq!(listed, 1);
}

#[test]
fn items_whose_copies_are_read_are_not_evicted_first() {
    let mut pair = Pair::new();
    let hot: Vec<String> = (0..50).map(|number| format!("hot {number}")).collect();
    hot.iter().for_each(|name| pair.change(name, 0, 1));
    for number in 0..5_000 {
        if number % 50 == 0 {
            hot.iter().for_each(|name| read_copy(&pair, name, 3, pair.now.second));
        }
        pair.change(&format!("cold {number}"), 0, 1);
    }
    assert!(pair.cache.stats().evictions > 2_000);
    let left = hot.iter().filter(|name| pair.read(name).is_some()).count();
    assert!(left >= 45, "{left} of 50");
}

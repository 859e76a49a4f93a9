//! The reader beside its owner: the same answers, and whole values while real threads run.
//!
//! Upstream:   `cargo test`. Every interleaving of a few steps is in `models`.
//! Downstream: `Cache` and `CacheReader`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Release};

use kachel_engine::{
    Block, ClockOrigin, Common as _, DeadFound, DeleteTerms, Engine as _, EngineOptions,
    Extensions as _, GetTerms, KeyHasher, LeaseOptions, LifeStep, LifeTerms, NotYet, Now,
    Operation, Outcome, ReadAnswer, ReadBeside as _, ReceiveValue as _, Seeds, StoreMode, Ttl,
    Value, ValueWanted, Verb, Verdict, Wanted, apply,
};
use kachel_host::Budget;
use kachel_segment::{Pool, PoolOptions};
use kachel_testkit::Random;

use crate::{BLOCK_BYTES, Cache, CachePinned, CacheReader, CacheUpload, EngineOf};

/// An owner, and a core that reads beside it.
struct Pair {
    cache: Cache,
    /// The registration of the owner's core, which does not wait for itself.
    owner: kachel_stdx::Reader,
    reader: CacheReader,
    round: kachel_stdx::Reader,
    pool: Arc<Pool>,
    hasher: KeyHasher,
    dead_found: DeadFound,
}

/// A verdict, and the value if one was given.
type Told = (Verdict, Option<Vec<u8>>);

fn told(outcome: Outcome<'_, CachePinned>) -> Told {
    let value = match outcome.value {
        Value::None => None,
        Value::Inline(value) => Some(value.to_vec()),
        Value::Pinned { bytes, .. } => Some(vec![b'p'; bytes]),
    };
    (outcome.verdict, value)
}

fn at_second(second: u32) -> Now {
    // The process begins in second 2.
    ClockOrigin::new(0, 1_800_000_000).at(u64::from(second - 2) * 1_000_000_000)
}

fn life(step: LifeStep) -> LifeTerms {
    let mut life = LifeTerms::NONE;
    life.push(step);
    life
}

impl Pair {
    fn new(bytes: u64) -> Self {
        let budget = Arc::new(Budget::new(bytes));
        let options = PoolOptions { engines: 1, reserve_bytes: bytes, ..PoolOptions::default() };
        let pool = Pool::new(Arc::clone(&budget), options).expect("address space");
        let hasher = KeyHasher::new(Seeds { hash_keys: [7, 9] }, 1);
        let options = EngineOptions {
            evict: true,
            cas: true,
            item_bytes_max: 1 << 20,
            leases: LeaseOptions::DEFAULT,
        };
        let cache = Cache::new(Arc::clone(&pool), budget, hasher, options, EngineOf::ONE);
        let mut cache = cache.expect("address space");
        let owner = cache.common().register_core().expect("a place");
        cache.enter(owner.place(), &at_second(100));
        let (reader, round) = (cache.reader(), pool.register_reader().expect("a place"));
        let dead_found = DeadFound::default();
        Self { cache, owner, reader, round, pool, hasher, dead_found }
    }

    fn begin_upload(&self, value_bytes: usize) -> Option<CacheUpload> {
        self.cache.common().begin_upload(value_bytes, self.owner.place())
    }

    fn set(&mut self, key: &[u8], value: &[u8], ttl: Ttl, now: &Now) {
        assert_eq!(self.try_set(key, value, ttl, now), Ok(true), "memory suffices");
    }

    /// Whether there was memory for the value.
    ///
    /// Errors: its memory is on its way.
    fn try_set(&mut self, key: &[u8], value: &[u8], ttl: Ttl, now: &Now) -> Result<bool, NotYet> {
        let operation = Operation::set(self.hasher.key(key), value.len(), ttl);
        let outcome = apply(&mut self.cache, &operation, &mut Block::Bytes(value), now)?;
        Ok(matches!(outcome.verdict, Verdict::Stored { .. }))
    }

    /// Stores a large value, and waits where necessary. Returns how often the store had to wait.
    fn set_large(&mut self, key: &[u8], value: &[u8], now: &Now) -> u32 {
        let mut upload = self.begin_upload(value.len()).expect("it fits the budget");
        for piece in value.chunks(20_000) {
            while upload.write(piece).is_err() {
                self.cache.make_upload_room(piece.len(), now);
                self.round.round_over();
            }
        }
        let operation = Operation::set(self.hasher.key(key), value.len(), Ttl(0));
        let mut block = Block::Upload(upload);
        let mut waits = 0;
        while apply(&mut self.cache, &operation, &mut block, now).is_err() {
            assert!(matches!(block, Block::Upload(_)), "the block is as it was");
            waits += 1;
            self.round.round_over();
        }
        waits
    }

    fn apply(&mut self, key: &[u8], verb: Verb, now: &Now) -> Told {
        let operation = Operation { key: self.hasher.key(key), verb };
        told(apply(&mut self.cache, &operation, &mut Block::None, now).expect("memory suffices"))
    }

    /// What the reader answers; `None`: ask the owner.
    fn read(&mut self, key: &[u8], terms: &GetTerms, now: &Now) -> Option<Told> {
        let key = self.hasher.key(key);
        match self.reader.read(&key, None, terms, &self.round, now, &mut self.dead_found) {
            ReadAnswer::Done(outcome, _) => Some(told(outcome)),
            ReadAnswer::AskOwner => None,
        }
    }
}

/// All that does not depend on earlier reads.
fn terms() -> GetTerms {
    let wanted = Wanted::CAS.with(Wanted::TTL).with(Wanted::MARKS).with(Wanted::CLIENT_FLAGS);
    GetTerms { wanted, may_win: true, ..GetTerms::VALUE }
}

#[test]
fn a_reader_answers_as_the_owner_does_and_asks_it_for_the_rest() {
    let now = at_second(100);
    let mut pair = Pair::new(16 << 20);
    pair.set(b"plain", b"abc", Ttl(0), &now);
    pair.set(b"mortal", b"abc", Ttl(50), &now);
    pair.set(b"stale", b"abc", Ttl(0), &now);
    let stale = DeleteTerms { marks_stale: true, ..DeleteTerms::default() };
    assert_eq!(pair.apply(b"stale", Verb::Delete(stale), &now).0, Verdict::Invalidated);
    pair.set(b"won", b"abc", Ttl(0), &now);
    pair.apply(b"won", Verb::Delete(stale), &now);
    pair.apply(b"won", Verb::Get(terms()), &now);
    let unless = |token| GetTerms { value: ValueWanted::UnlessCas(token), ..terms() };
    let with = |step| GetTerms { life: life(step), ..terms() };
    let keys: [&[u8]; 5] = [b"none", b"plain", b"mortal", b"stale", b"won"];
    let rows = [
        (terms(), [true, true, true, false, true]),
        (unless(1), [true, true, true, false, true]),
        (GetTerms { value: ValueWanted::No, ..terms() }, [true, true, true, false, true]),
        (with(LifeStep::Recache(Ttl(60))), [true, true, false, false, true]),
        (GetTerms { value_bytes_max: 2, ..terms() }, [true, false, false, false, false]),
        (with(LifeStep::Touch(Ttl(90))), [true, false, false, false, false]),
        (with(LifeStep::Vivify(Ttl(90))), [false, true, true, false, true]),
    ];
    for (terms, answered) in rows {
        for (key, answered) in keys.into_iter().zip(answered) {
            let read = pair.read(key, &terms, &now);
            assert_eq!(read.is_some(), answered, "{key:?}: {terms:?}");
            if let Some(read) = read {
                assert_eq!(read, pair.apply(key, Verb::Get(terms), &now), "R3: {key:?}");
            }
        }
    }
    assert_eq!(pair.dead_found, DeadFound::default());
}

#[test]
fn a_reader_refuses_what_has_died_counts_it_and_leaves_it_to_the_owner() {
    let (now, later) = (at_second(100), at_second(110));
    let mut pair = Pair::new(16 << 20);
    pair.set(b"expired", b"abc", Ttl(10), &now);
    pair.set(b"flushed", b"abc", Ttl(0), &now);
    let get = GetTerms::VALUE;
    let hit = pair.read(b"expired", &get, &at_second(109));
    assert!(matches!(hit, Some((Verdict::Hit(_), Some(_)))), "live in its last second: {hit:?}");
    for count in 1..=2 {
        assert_eq!(pair.read(b"expired", &get, &later), Some((Verdict::Miss, None)));
        assert_eq!(pair.dead_found, DeadFound { expired: count, flushed: 0 });
    }
    pair.pool.flush_word().flush(110);
    assert_eq!(pair.read(b"flushed", &get, &later), Some((Verdict::Miss, None)));
    assert_eq!(pair.dead_found, DeadFound { expired: 2, flushed: 1 });
    assert_eq!(pair.cache.table.len(), 2, "R2: only the owner removes");
    let create = GetTerms { life: life(LifeStep::Vivify(Ttl(9))), ..get };
    assert_eq!(pair.read(b"flushed", &create, &later), None);
    assert_eq!(pair.dead_found.flushed, 1, "what the owner is asked for is not counted");
    for key in [&b"expired"[..], b"flushed"] {
        assert_eq!(pair.apply(key, Verb::Get(get), &later).0, Verdict::Miss);
    }
    assert!(pair.cache.table.is_empty());
}

#[test]
fn a_value_in_blocks_is_the_owners() {
    let now = at_second(100);
    let mut pair = Pair::new(16 << 20);
    let value = vec![b'v'; BLOCK_BYTES + 7];
    let mut upload = pair.begin_upload(value.len()).expect("it fits");
    upload.write(&value).expect("memory");
    let operation = Operation::set(pair.hasher.key(b"large"), value.len(), Ttl(0));
    apply(&mut pair.cache, &operation, &mut Block::Upload(upload), &now).expect("memory suffices");
    let size = GetTerms { value: ValueWanted::No, ..terms() };
    for terms in [terms(), size] {
        assert_eq!(pair.read(b"large", &terms, &now), None, "R4");
        assert!(matches!(pair.apply(b"large", Verb::Get(terms), &now).0, Verdict::Hit(_)));
    }
}

#[test]
fn a_reader_notes_accesses_where_the_terms_say_so() {
    let now = at_second(100);
    let mut pair = Pair::new(16 << 20);
    pair.set(b"k", b"abc", Ttl(0), &now);
    let quiet = GetTerms { notes_access: false, wanted: Wanted::ACCESS, ..GetTerms::VALUE };
    let hit_before = |told: Option<Told>| match told {
        Some((Verdict::Hit(facts), _)) => facts.hit_before,
        other => panic!("{other:?}"),
    };
    for _ in 0..2 {
        assert_eq!(pair.read(b"k", &quiet, &now), None, "only the owner says that it was not read");
        let told = Some(pair.apply(b"k", Verb::Get(quiet), &now));
        assert!(!hit_before(told), "a quiet read is not noted");
    }
    pair.read(b"k", &GetTerms::VALUE, &now);
    assert!(hit_before(Some(pair.apply(b"k", Verb::Get(quiet), &now))));
    assert!(hit_before(pair.read(b"k", &quiet, &now)));
}

#[test]
#[should_panic(expected = "R1")]
fn a_core_that_sleeps_reads_nothing() {
    let mut pair = Pair::new(16 << 20);
    pair.round.sleep();
    pair.read(b"k", &GetTerms::VALUE, &at_second(100));
}

#[test]
#[should_panic(expected = "R1")]
fn a_core_that_is_registered_elsewhere_reads_nothing() {
    let mut pair = Pair::new(16 << 20);
    pair.round = Pair::new(16 << 20).pool.register_reader().expect("a place");
    pair.read(b"k", &GetTerms::VALUE, &at_second(100));
}

#[test]
fn an_upload_that_has_to_wait_is_stored_whole_later() {
    const VALUE_BYTES: usize = 20_000;
    let now = at_second(100);
    let mut pair = Pair::new(4 << 20);
    let mut waits = 0;
    for number in 0..60_000_u64 {
        // Items of 1 KB fill memory. Then smaller ones come, so that the index must grow.
        let name = number.to_le_bytes();
        let value: &[u8] = if number < 6_000 { &[b'v'; 1_000] } else { b"v" };
        while pair.try_set(&name, value, Ttl(0), &now) == Err(NotYet) {
            pair.round.round_over();
        }
        if number % 2 != 0 || number < 6_000 {
            continue;
        }
        let value = vec![number.to_le_bytes()[0]; VALUE_BYTES];
        let name = [b"large".as_slice(), &name].concat();
        waits += pair.set_large(&name, &value, &now);
        let (_, read) = pair.apply(&name, Verb::Get(GetTerms::VALUE), &now);
        assert_eq!(read.map(|read| read.len()), Some(VALUE_BYTES), "number {number}");
        // The next large value uses these blocks again, so the small items stay and fill the index.
        pair.apply(&name, Verb::Delete(DeleteTerms::default()), &now);
    }
    assert!(waits > 0, "some had to wait");
    println!("{waits} waits");
}

#[test]
fn a_value_of_many_segments_that_is_prepended_to_waits_at_most_once() {
    let now = at_second(100);
    let mut pair = Pair::new(16 << 20);
    let old = vec![b'o'; 900_000];
    assert!(old.len() >= 3 * pair.pool.segment_bytes(), "{}", pair.pool.segment_bytes());
    // Small items fill memory, so that no blocks are free.
    for number in 0..20_000_u64 {
        while pair.try_set(&number.to_le_bytes(), &[b'v'; 1_000], Ttl(0), &now) == Err(NotYet) {
            pair.round.round_over();
        }
    }
    pair.set_large(b"large", &old, &now);
    let mut operation = Operation::set(pair.hasher.key(b"large"), 3, Ttl(0));
    let Verb::Store(terms) = &mut operation.verb else { unreachable!("a store") };
    terms.mode = StoreMode::Prepend;
    let mut waits = 0;
    while apply(&mut pair.cache, &operation, &mut Block::Bytes(b"new"), &now).is_err() {
        waits += 1;
        pair.round.round_over();
    }
    assert!(waits <= 1, "{waits}: for a block in front of the value, or for its item");
    let (_, read) = pair.apply(b"large", Verb::Get(GetTerms::VALUE), &now);
    assert_eq!(read.map(|read| read.len()), Some(old.len() + 3));
}

/// Keys of the threads' test.
const KEYS: u64 = 4096;
/// Stores of the threads' test.
const STORES: u64 = 40_000;

/// Key, version, and filling that follows from the version.
fn value_of(key: u64, version: u64) -> Vec<u8> {
    let filling = vec![version.to_le_bytes()[0]; 16 + (version % 300) as usize];
    [&key.to_le_bytes()[..], &version.to_le_bytes(), &filling].concat()
}

/// What the threads' test saw.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    hits: u64,
    /// Misses of a key that had been stored.
    misses: u64,
    /// Stores that found no memory.
    refusals: u64,
    /// Times that a store had to wait until a reader had left what was evicted for it.
    waits: u64,
    evictions: u64,
}

/// Ends the reading thread, also when the storing one panics.
struct EndsReading<'a>(&'a AtomicBool);

impl Drop for EndsReading<'_> {
    fn drop(&mut self) {
        self.0.store(true, Release);
    }
}

/// Stores random keys over and over beside a thread that reads them. Every value that is read is
/// whole and no older than the last one that was acknowledged before.
fn hammer(bytes: u64) -> Seen {
    let now = at_second(100);
    let mut pair = Pair::new(bytes);
    let hasher = pair.hasher;
    let acknowledged: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let is_over = AtomicBool::new(false);
    let (reader, pool) = (pair.reader.clone(), Arc::clone(&pair.pool));
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let mut round = pool.register_reader().expect("a place");
            let (mut random, mut seen) = (Random::new(5), Seen::default());
            let mut dead_found = DeadFound::default();
            loop {
                let is_last = is_over.load(Acquire);
                for _ in 0..32 {
                    let number = random.below(KEYS);
                    let known = acknowledged[number as usize].load(Acquire);
                    let bytes = number.to_le_bytes();
                    let key = hasher.key(&bytes);
                    let answer =
                        reader.read(&key, None, &GetTerms::VALUE, &round, &now, &mut dead_found);
                    let ReadAnswer::Done(outcome, _) = answer else { continue };
                    let Value::Inline(value) = outcome.value else {
                        seen.misses += u64::from(known > 0);
                        continue;
                    };
                    let version = u64::from_le_bytes(value[8..16].try_into().expect("eight"));
                    assert_eq!(value, value_of(number, version), "another value, or a torn one");
                    assert!(version >= known, "version {version}, {known} was acknowledged");
                    seen.hits += 1;
                }
                round.round_over();
                if is_last {
                    assert_eq!(dead_found, DeadFound::default());
                    return seen;
                }
            }
        });
        // The core of the owner reads nothing.
        pair.round.sleep();
        let ends_reading = EndsReading(&is_over);
        let (mut random, mut refusals, mut waits) = (Random::new(3), 0, 0);
        for version in 1..=STORES {
            let number = random.below(KEYS);
            let value = value_of(number, version);
            let is_stored = loop {
                match pair.try_set(&number.to_le_bytes(), &value, Ttl(0), &now) {
                    Ok(is_stored) => break is_stored,
                    Err(NotYet) => {
                        waits += 1;
                        std::thread::yield_now();
                    }
                }
            };
            if is_stored {
                acknowledged[number as usize].store(version, Release);
            } else {
                refusals += 1;
            }
            if version % 32 == 0 {
                pair.cache.maintain(&now);
            }
        }
        drop(ends_reading);
        let evictions = pair.cache.stats().evictions;
        Seen { refusals, waits, evictions, ..reading.join().expect("joins") }
    })
}

#[test]
fn values_are_whole_and_none_is_missed_while_memory_suffices() {
    let seen = hammer(64 << 20);
    assert!(seen.hits > 0 && seen.misses == 0 && seen.refusals == 0, "{seen:?}");
}

#[test]
fn values_are_whole_while_segments_are_reused() {
    let seen = hammer(1 << 20);
    assert!(seen.hits > 0 && seen.evictions > 0, "{seen:?}");
    assert_eq!(seen.refusals, 0, "what waits for a reader is room on its way: {seen:?}");
    assert!(seen.evictions < STORES, "no more is evicted than is stored: {seen:?}");
    println!("stores that waited for the reader: {}", seen.waits);
}

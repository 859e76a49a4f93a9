//! Checks what a cache promises to a reader on another core, in every interleaving with the owner.
//!
//! Upstream:   `tests/models/run kachel-cache`.
//! Downstream: `Cache` and `CacheReader`; an index of two to four buckets of two slots, and three
//!             segments for a few items of sixteen bytes.
//!
//! The owner takes one key through numbered states and publishes the number of each state as a
//! server acknowledges a request: after it was executed. A read must show a state that is at least
//! as new as the number that the reader knew before, and that has begun.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64 as Count, Ordering::Relaxed};

use kachel_engine::{
    Block, ClockOrigin, Common as _, DeadFound, DeleteTerms, Engine as _, EngineOptions, Facts,
    GetTerms, KeyHasher, LeaseOptions, Lookup, Now, Operation, ReadAnswer, ReadBeside as _, Seeds,
    Ttl, Value, Verb, Verdict, Wanted, apply,
};
use kachel_host::Budget;
use kachel_segment::{Pool, PoolOptions, SEGMENT_BYTES_MIN};
use kachel_stdx::BytePrefix;
use kachel_stdx::model::explore;
use loom::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};
use loom::thread;

use crate::{Cache, CacheReader, EngineOf};

const NOW: u32 = 100;
/// A value. Its first byte identifies it.
type Bytes = [u8; 3];
const VALUES: [Bytes; 4] = [*b"111", *b"222", *b"333", *b"444"];

fn at_second(second: u32) -> Now {
    // The process begins in second 2.
    ClockOrigin::new(0, 1_800_000_000).at(u64::from(second - 2) * 1_000_000_000)
}

fn hasher() -> KeyHasher {
    KeyHasher::new(Seeds { hash_keys: [1, 2] }, 1)
}

/// The `nth` key of one byte whose preferred bucket among four is `bucket`.
fn key_in(bucket: u64, nth: usize) -> [u8; 1] {
    let keys = (b'a'..=b'z').filter(|&byte| hasher().key(&[byte]).secret_hash() % 4 == bucket);
    [keys.into_iter().nth(nth).expect("a quarter of the letters")]
}

/// The key that all models read. A split of the smallest index moves it.
fn wanted() -> [u8; 1] {
    key_in(2, 0)
}

/// The owner of a cache, and the number of the state that was acknowledged last.
struct Owner {
    cache: Cache,
    acknowledged: Arc<AtomicU64>,
    /// The state whose change has begun. This is not an atomic of the model, because its threads
    /// take turns.
    begun: Arc<Count>,
}

impl Owner {
    fn new() -> Self {
        // A segment, its line, and its part of the table of blocks.
        let segment_bytes = (SEGMENT_BYTES_MIN + 64 + 2 * 32) as u64;
        let options = PoolOptions { engines: 1, reserve_bytes: 0, ..PoolOptions::default() };
        let pool = Pool::new(Arc::new(Budget::new(3 * segment_bytes)), options);
        let budget = Arc::new(Budget::new(1 << 20));
        let options = EngineOptions {
            evict: false,
            cas: false,
            item_bytes_max: 1 << 20,
            leases: LeaseOptions::DEFAULT,
        };
        let pool = pool.expect("address space");
        let cache = Cache::new(pool, budget, hasher(), options, EngineOf::ONE);
        Self {
            cache: cache.expect("address space"),
            acknowledged: Arc::new(AtomicU64::new(0)),
            begun: Arc::default(),
        }
    }

    /// Moves the wanted key to its next state.
    fn step<R>(&mut self, change: impl FnOnce(&mut Cache) -> R) -> R {
        let state = self.begun.fetch_add(1, Relaxed) + 1;
        let done = change(&mut self.cache);
        self.acknowledged.store(state, Release);
        done
    }

    /// A core that reads, registered and awake.
    fn core(&self) -> Core {
        Core {
            reader: self.cache.reader(),
            round: self.cache.segments.pool().register_reader().expect("a place"),
            acknowledged: Arc::clone(&self.acknowledged),
            begun: Arc::clone(&self.begun),
        }
    }
}

/// `None`: memory is on its way, and nothing was changed.
fn execute(cache: &mut Cache, operation: &Operation<'_>, block: &[u8]) -> Option<Verdict> {
    let outcome = apply(cache, operation, &mut Block::Bytes(block), &at_second(NOW));
    outcome.ok().map(|outcome| outcome.verdict)
}

fn set(cache: &mut Cache, key: [u8; 1], value: Bytes) -> bool {
    let operation = Operation::set(hasher().key(&key), value.len(), Ttl(0));
    matches!(execute(cache, &operation, &value), Some(Verdict::Stored { .. }))
}

fn flush(cache: &mut Cache) {
    cache.common().flush(&at_second(NOW)).expect("no disk");
    cache.note_flush(&at_second(NOW));
}

/// Flushes the keys that begin with the wanted one.
fn flush_prefix(cache: &mut Cache) {
    let key = wanted();
    let prefix = BytePrefix::of_bytes(&key).expect("a prefix");
    cache.common().flush_prefix(&prefix).expect("room in the list");
    cache.note_flush(&at_second(NOW));
}

fn delete(cache: &mut Cache, key: [u8; 1]) {
    let deleted = execute(cache, &Operation::delete(hasher().key(&key)), b"");
    assert_eq!(deleted, Some(Verdict::Deleted));
}

fn touch(cache: &mut Cache, ttl: Ttl) {
    let key = wanted();
    let operation = Operation { key: hasher().key(&key), verb: Verb::Touch(ttl) };
    assert_eq!(execute(cache, &operation, b""), Some(Verdict::Touched));
}

/// Replaces the wanted key by a stale item with the same value and the same accesses.
fn invalidate(cache: &mut Cache) {
    let key = wanted();
    let terms = DeleteTerms { marks_stale: true, ..DeleteTerms::default() };
    let operation = Operation { key: hasher().key(&key), verb: Verb::Delete(terms) };
    assert_eq!(execute(cache, &operation, b""), Some(Verdict::Invalidated));
}

/// Whether the wanted key was read, as the owner sees it.
fn is_fetched(cache: &mut Cache) -> bool {
    let key = wanted();
    let terms = GetTerms { wanted: Wanted::ACCESS, notes_access: false, ..GetTerms::VALUE };
    let operation = Operation { key: hasher().key(&key), verb: Verb::Get(terms) };
    match execute(cache, &operation, b"") {
        Some(Verdict::Hit(facts)) => facts.hit_before,
        other => panic!("{other:?} is no hit"),
    }
}

/// A core that reads the cache beside its owner.
struct Core {
    reader: CacheReader,
    round: kachel_stdx::Reader,
    acknowledged: Arc<AtomicU64>,
    begun: Arc<Count>,
}

impl Core {
    /// Reads the wanted key in second `second`: its facts and its value; `None` is a miss.
    fn get(&self, second: u32) -> Option<(Facts, Bytes)> {
        self.ask(second).expect("a few moves never disturb so many looks")
    }

    /// As [`Self::get`]. `None`: only the owner can answer.
    fn ask(&self, second: u32) -> Option<Option<(Facts, Bytes)>> {
        let key = wanted();
        let terms = GetTerms { wanted: Wanted::TTL, ..GetTerms::VALUE };
        let (key, now) = (hasher().key(&key), at_second(second));
        let mut dead_found = DeadFound::default();
        let lookup = Lookup { secret_hash: key.secret_hash(), value: true };
        let guess = self.reader.guess(lookup).or_else(|| self.reader.guess_again(lookup));
        match self.reader.read(&key, guess, &terms, &self.round, &now, &mut dead_found) {
            ReadAnswer::Done(outcome, _) => match (outcome.verdict, outcome.value) {
                (Verdict::Hit(facts), Value::Inline(value)) => {
                    let first: Bytes = value.try_into().expect("three bytes");
                    self.acknowledged.load(Acquire); // The owner may go on here.
                    assert_eq!(value, first, "R1: what was lent does not change");
                    assert!(VALUES.contains(&first), "a torn value: {first:?}");
                    Some(Some((facts, first)))
                }
                (Verdict::Miss, Value::None) => Some(None),
                other => panic!("{other:?} is no answer to a GET"),
            },
            ReadAnswer::AskOwner => None,
        }
    }

    /// Reads the wanted key, and returns the state that the answer shows by `state_of`: a state
    /// that has begun, and that is not older than the acknowledged one or than `known`.
    fn read(
        &self,
        second: u32,
        known: u64,
        state_of: impl Fn(Option<(Facts, Bytes)>) -> u64,
    ) -> u64 {
        let known = known.max(self.acknowledged.load(Acquire));
        let got = self.get(second);
        let state = state_of(got);
        let begun = self.begun.load(Relaxed);
        assert!((known..=begun).contains(&state), "state {state} of {known}..={begun}: {got:?}");
        state
    }
}

/// Runs `reading` on a thread beside `owning`. The results of `reading` are counted, and `must_see`
/// lists the numbers that must have occurred.
fn beside<const N: usize>(
    name: &'static str,
    preemptions_max: Option<usize>,
    before: impl Fn(&mut Cache) + Copy + Send + Sync + 'static,
    owning: impl Fn(&mut Owner) + Copy + Send + Sync + 'static,
    reading: impl Fn(Core) -> u64 + Copy + Send + Sync + 'static,
    must_see: [u64; N],
) {
    let counts: Arc<[Count; 4]> = Arc::default();
    let seen = Arc::clone(&counts);
    explore(name, preemptions_max, move || {
        let mut owner = Owner::new();
        assert!(set(&mut owner.cache, wanted(), VALUES[0]));
        before(&mut owner.cache);
        let (core, seen) = (owner.core(), Arc::clone(&seen));
        let reading = thread::spawn(move || {
            seen[reading(core) as usize].fetch_add(1, Relaxed);
        });
        owning(&mut owner);
        reading.join().expect("joins");
    });
    let counts = counts.each_ref().map(|count| count.load(Relaxed));
    println!("model {name}: last states seen {counts:?}");
    assert!(must_see.iter().all(|&state| counts[state as usize] > 0), "a state was never seen");
}

#[test]
fn a_value_is_whole_and_no_older_than_what_was_acknowledged() {
    let reading = |core: Core| {
        let state_of = |got: Option<(Facts, Bytes)>| match got {
            Some((_, value)) => VALUES.iter().position(|&one| one == value).expect("one") as u64,
            None => panic!("a key that is always present was missed"),
        };
        let first = core.read(NOW, 0, state_of);
        core.read(NOW, first, state_of)
    };
    let owning = |owner: &mut Owner| {
        for value in &VALUES[1..3] {
            assert!(owner.step(|cache| set(cache, wanted(), *value)));
        }
    };
    beside("cache, replace", Some(3), |_| (), owning, reading, [0, 1, 2]);
}

#[test]
fn a_deleted_value_is_missed_until_the_next_is_stored() {
    let reading = |core: Core| {
        let state_of = |got: Option<(Facts, Bytes)>| match got {
            Some((_, value)) => {
                if value == VALUES[0] {
                    0
                } else {
                    2
                }
            }
            None => 1,
        };
        let first = core.read(NOW, 0, state_of);
        core.read(NOW, first, state_of)
    };
    let owning = |owner: &mut Owner| {
        owner.step(|cache| delete(cache, wanted()));
        assert!(owner.step(|cache| set(cache, wanted(), VALUES[1])));
    };
    beside("cache, delete", None, |_| (), owning, reading, [0, 1, 2]);
}

#[test]
fn a_flushed_value_is_never_lent_and_a_later_one_always() {
    let reading = |core: Core| {
        let state_of = |got: Option<(Facts, Bytes)>| match got {
            Some((_, value)) => {
                if value == VALUES[0] {
                    0
                } else {
                    2
                }
            }
            None => 1,
        };
        let first = core.read(NOW, 0, state_of);
        core.read(NOW, first, state_of)
    };
    let owning = |owner: &mut Owner| {
        owner.step(|cache| flush(cache));
        assert!(owner.step(|cache| set(cache, wanted(), VALUES[1])));
    };
    beside("cache, flush", Some(3), |_| (), owning, reading, [0, 1, 2]);
}

#[test]
fn a_value_of_a_flushed_prefix_is_never_lent_and_a_later_one_always() {
    let reading = |core: Core| {
        let state_of = |got: Option<(Facts, Bytes)>| match got {
            Some((_, value)) => 2 * u64::from(value != VALUES[0]),
            None => 1,
        };
        let first = core.read(NOW, 0, state_of);
        core.read(NOW, first, state_of)
    };
    let owning = |owner: &mut Owner| {
        owner.step(|cache| flush_prefix(cache));
        assert!(owner.step(|cache| set(cache, wanted(), VALUES[1])));
    };
    beside("cache, flushed prefix", Some(3), |_| (), owning, reading, [0, 1, 2]);
}

/// The sweep gives the segment a new generation after it has removed the item. State 3 is a read
/// that only the owner can answer.
#[test]
fn a_value_that_a_sweep_has_removed_is_never_lent() {
    const LEFT_TO_OWNER: u64 = 3;
    let reading = |core: Core| {
        let known = core.acknowledged.load(Acquire);
        let Some(got) = core.ask(NOW) else { return LEFT_TO_OWNER };
        let state = if got.is_some() { 0 } else { 1 };
        let begun = core.begun.load(Relaxed);
        assert!((known..=begun).contains(&state), "state {state} of {known}..={begun}: {got:?}");
        state
    };
    let owning = |owner: &mut Owner| {
        owner.step(|cache| flush_prefix(cache));
        while owner.cache.maintain(&at_second(NOW)) > 0 {}
        assert_eq!(owner.cache.segments.stats().items, 0, "the sweep has removed it");
    };
    beside("cache, sweep", Some(3), |_| (), owning, reading, [0, 1, LEFT_TO_OWNER]);
}

#[test]
fn an_expired_value_is_never_lent_whatever_its_owner_does_to_the_expiry() {
    const LATER: u32 = NOW + 5;
    let reading = |core: Core| {
        let state_of = |got: Option<(Facts, Bytes)>| match got.map(|(facts, _)| facts.ttl_before) {
            Some(None) => 0,
            None => 1,
            Some(Some(45)) => 2,
            Some(Some(other)) => panic!("lent with {other} seconds left"),
        };
        let first = core.read(LATER, 0, state_of);
        core.read(LATER, first, state_of)
    };
    let owning = |owner: &mut Owner| {
        owner.step(|cache| touch(cache, Ttl(5)));
        owner.step(|cache| touch(cache, Ttl(50)));
    };
    beside("cache, expiry", Some(2), |_| (), owning, reading, [0, 1, 2]);
}

/// Adds two keys, which fill the smallest index so far that the next key splits a bucket.
fn fill(cache: &mut Cache) {
    for nth in 0..2 {
        assert!(set(cache, key_in(1, nth), VALUES[3]));
    }
    assert_eq!(cache.table.counts().splits, 0);
}

fn always_there(got: Option<(Facts, Bytes)>) -> u64 {
    let (_, value) = got.expect("a key that is always present was missed");
    assert_eq!(value, VALUES[0]);
    0
}

#[test]
fn a_key_that_is_always_present_is_never_missed_while_the_index_grows() {
    let reading = |core: Core| core.read(NOW, 0, always_there);
    let owning = |owner: &mut Owner| {
        assert!(set(&mut owner.cache, key_in(1, 2), VALUES[3]));
        assert_eq!(owner.cache.table.counts().splits, 1, "the wanted key has moved");
    };
    beside("cache, growth", None, fill, owning, reading, [0]);
}

#[test]
fn a_key_that_is_always_present_is_never_missed_while_the_index_grows_and_shrinks() {
    let reading = |core: Core| core.read(NOW, 0, always_there);
    let owning = |owner: &mut Owner| {
        assert!(set(&mut owner.cache, key_in(1, 2), VALUES[3]));
        delete(&mut owner.cache, key_in(1, 0));
        assert!(owner.cache.maintain_index(1) > 0);
        let counters = owner.cache.table.counts();
        assert_eq!((counters.splits, counters.merges), (1, 1), "there and back");
    };
    beside("cache, growth and back", Some(3), fill, owning, reading, [0]);
}

#[test]
fn a_first_read_is_noted_or_left_to_the_owner_while_the_item_is_replaced() {
    let outcomes: Arc<[Count; 2]> = Arc::default();
    let counts = Arc::clone(&outcomes);
    explore("cache, note of a first read", None, move || {
        let mut owner = Owner::new();
        assert!(set(&mut owner.cache, wanted(), VALUES[0]));
        let core = owner.core();
        let reading = thread::spawn(move || {
            let (wanted, mut dead_found) = (wanted(), DeadFound::default());
            let key = hasher().key(&wanted);
            let now = at_second(NOW);
            let answer =
                core.reader.read(&key, None, &GetTerms::VALUE, &core.round, &now, &mut dead_found);
            matches!(answer, ReadAnswer::Done(..))
        });
        invalidate(&mut owner.cache);
        let is_read = reading.join().expect("joins");
        assert_eq!(is_fetched(&mut owner.cache), is_read, "what was answered was noted");
        counts[usize::from(is_read)].fetch_add(1, Relaxed);
    });
    let [left, read] = outcomes.each_ref().map(|count| count.load(Relaxed));
    println!("model note of a first read: answered in {read}, left to the owner in {left}");
    assert!(left > 0 && read > 0);
}

#[test]
fn a_segment_is_not_reused_under_a_value_that_is_lent() {
    let outcomes: Arc<[Count; 2]> = Arc::default();
    let counts = Arc::clone(&outcomes);
    explore("cache, segment reuse", Some(2), move || {
        let mut owner = Owner::new();
        assert!(set(&mut owner.cache, wanted(), VALUES[0]));
        let mut core = owner.core();
        let reading = thread::spawn(move || {
            core.get(NOW);
            core.round.round_over();
            core.get(NOW);
        });
        // Each flush seals a segment, which is freed together with the item that is found dead in
        // it. The third value is stored where the first value was, or has no room.
        let mut stored = true;
        for value in &VALUES[1..3] {
            flush(&mut owner.cache);
            stored = set(&mut owner.cache, wanted(), *value);
        }
        counts[usize::from(stored)].fetch_add(1, Relaxed);
        reading.join().expect("joins");
    });
    let [refused, reused] = outcomes.each_ref().map(|count| count.load(Relaxed));
    println!("model cache, segment reuse: reused in {reused}, and kept back in {refused}");
    assert!(refused > 0 && reused > 0);
}

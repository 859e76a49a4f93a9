//! Prefixes with the shipped sampling: numbers of requests are within their errors, sums are exact,
//! and a million prefixes take no more memory than a few.
//!
//! Upstream:   seeded loads of a few cores and engines.
//! Downstream: the gates and the observers of `kachel_observe`.

mod random;

use std::collections::BTreeMap;
use std::sync::Arc;

use kachel_engine::{EngineIndex, KeyHasher, Seeds};
use kachel_observe::{
    Counters, DRAWN_EVERY, Noted, NotedAccess, ObservedPrefixes, ObserverSet, Observers,
    PREFIXES_BYTES_PER_CORE, PREFIXES_BYTES_PER_ENGINE, PREFIXES_MAX, PREFIXES_NOTE_EVERY,
    PrefixNames, PrefixNumbers, SampleGate,
};

use random::Random;

const CORES: u16 = 4;
/// Requests in a tick of a core.
const TICK_REQUESTS: u64 = 24;
const SECOND_NS: u64 = 1_000_000_000;

/// Observers of prefixes only, with the gate and the counters of each core.
struct Load {
    observers: Observers,
    hasher: KeyHasher,
    gates: Vec<SampleGate>,
    counters: Vec<Arc<Counters>>,
    requests: u64,
}

impl Load {
    fn new(seed: u64, engines: u16, named: &[&str]) -> Self {
        let named = named.iter().map(|name| name.as_bytes().into()).collect();
        let names = PrefixNames { delimiter: b':', named };
        let observers = Observers::new(CORES, engines, ObserverSet::PREFIXES, names);
        let hasher = KeyHasher::new(Seeds { hash_keys: [seed, 4] }, engines);
        let mut drawn = 0;
        observers.begin_shard(hasher, || None, 0, |every| drawn = every);
        assert_eq!(drawn, PREFIXES_NOTE_EVERY, "evicted items are drawn as requests are");
        let gates = (0..CORES).map(|core| SampleGate::new(seed * 99 + u64::from(core))).collect();
        let counters = (0..CORES).map(|_| Arc::default()).collect();
        Self { observers, hasher, gates, counters, requests: 0 }
    }

    /// A request of the core whose turn it is.
    fn request(&mut self, key: &str, access: NotedAccess) {
        let core = (self.requests / TICK_REQUESTS % u64::from(CORES)) as usize;
        let gate = &self.gates[core];
        if self.requests.is_multiple_of(TICK_REQUESTS) {
            gate.begin(false, self.observers.on(), || unreachable!("no observer picks"));
        }
        self.requests += 1;
        let secret_hash = self.hasher.secret_hash(key.as_bytes());
        if gate.samples(secret_hash) {
            let _is_classed = gate.is_classed();
            if let Some(noting) = gate.noting(secret_hash) {
                let noted = Noted { key: key.as_bytes(), secret_hash, access, value_bytes: 1 };
                self.observers.note(core, &noted, noting, 0, &self.counters[core]);
            }
        }
    }

    /// A walk over an engine with these items: keys and bytes.
    fn walk(&self, engine: u16, items: impl IntoIterator<Item = (String, u64)>, now_ns: u64) {
        let epoch = self.observers.prefix_epoch().expect("they are on");
        let mut table = self.observers.begin_walk();
        items.into_iter().for_each(|(key, bytes)| table.note_item(key.as_bytes(), bytes));
        let ended = self.observers.end_walk(EngineIndex(engine), epoch, table, now_ns);
        assert!(ended.is_ok(), "no thread asks meanwhile");
    }

    fn told(&self, count: usize, now_ns: u64) -> ObservedPrefixes {
        self.observers.prefixes(count, true, now_ns).expect("they are on")
    }
}

/// The variance of the estimate of one request.
const VARIANCE: f64 = (PREFIXES_NOTE_EVERY - 1) as f64;

/// The standard deviation of the estimate of a number of requests.
fn deviation(requests: u64) -> u64 {
    (VARIANCE * requests as f64).sqrt() as u64
}

/// A key of one of 40 prefixes, of which the first ones are used more often.
fn skewed_key(random: u64) -> (usize, String) {
    let prefix = ((random % 1_600) as f64).sqrt() as usize;
    (prefix, format!("prefix{prefix}:{}", random >> 32))
}

#[test]
fn numbers_of_requests_are_within_their_errors() {
    let (mut all, mut wrong) = (0, Vec::new());
    for seed in 1..=10 {
        let mut load = Load::new(seed, 1, &[]);
        let (mut random, mut truth) = (Random(seed), BTreeMap::new());
        for _ in 0..200_000 {
            let word = random.next();
            let (prefix, key) = skewed_key(word);
            let access = match (word >> 11) % 8 {
                0 => NotedAccess::Store,
                1 => NotedAccess::Delete,
                2 | 3 => NotedAccess::Miss,
                _ => NotedAccess::Hit,
            };
            load.request(&key, access);
            let one: &mut [u64; 3] = truth.entry(format!("prefix{prefix}:")).or_default();
            one[0] += u64::from(access.is_read());
            one[1] += u64::from(access == NotedAccess::Hit);
            one[2] += u64::from(access == NotedAccess::Store);
        }
        let told = load.told(PREFIXES_MAX, SECOND_NS);
        // The two rarest have 125 and 375 requests, of which none may have been noted.
        assert!((38..=40).contains(&told.listed.len()), "{}", told.listed.len());
        assert_eq!(told.others, PrefixNumbers::default());
        assert_eq!(told.walk_age_s, None, "no engine was walked over");
        for one in &told.listed {
            let name = one.shown();
            let [gets, hits, sets] = truth[&name];
            for (number, error, wanted) in [
                (one.numbers.gets, one.errors.gets, gets),
                (one.numbers.hits, one.errors.hits, hits),
                (one.numbers.sets, one.errors.sets, sets),
            ] {
                all += 1;
                if number.abs_diff(wanted) > error {
                    wrong.push((seed, name.clone(), number, error, wanted));
                }
                // Five deviations of the estimate, and of one drawn request more of each core.
                let drawn_more = f64::from(PREFIXES_NOTE_EVERY * u32::from(CORES));
                let bound = 5.0 * (VARIANCE * (number as f64 + drawn_more)).sqrt() + 1.0;
                assert!(error as f64 <= bound, "{name}: {error} of {number}");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:?} of {all}");
}

#[test]
fn items_of_all_engines_add_up_exactly() {
    let load = Load::new(1, 3, &[]);
    for engine in 0..3 {
        assert_eq!(load.told(9, engine * SECOND_NS).walk_age_s, None, "{engine} of 3");
        let items = (0..1_000 * (engine + 1)).map(|number| match number % 10 {
            0 => (format!("nothing{number}"), 7),
            1 => (format!("other{}:", number % 50), 100),
            _ => (format!("user:{number}"), 50),
        });
        load.walk(engine as u16, items, engine * SECOND_NS);
    }
    let told = load.told(2, 10 * SECOND_NS);
    assert_eq!(told.walk_age_s, Some(10), "of the engine that was walked over first");
    let one = &told.listed[0];
    assert_eq!((&one.shown()[..], one.errors.bytes), ("user:", 0));
    assert_eq!((one.numbers.items, one.numbers.bytes), (4_800, 240_000));
    assert_eq!((told.listed.len(), told.none.items, told.none.bytes), (2, 600, 4_200));
    assert_eq!((told.others.items, told.all().items), (480, 6_000), "B2");
    // A walk that has begun before prefixes were switched off does not count.
    let epoch = load.observers.prefix_epoch().expect("they are on");
    let table = load.observers.begin_walk();
    load.observers.switch(ObserverSet::PREFIXES, false, 0, |every| assert_eq!(every, 0));
    assert_eq!((load.observers.prefix_epoch(), load.observers.prefixes(9, true, 0)), (None, None));
    load.observers
        .switch(ObserverSet::ALL, true, 0, |every| assert_eq!(every, PREFIXES_NOTE_EVERY));
    load.observers.end_walk(EngineIndex(0), epoch, table, 0).expect("no thread asks");
    assert_eq!(load.told(9, 0), ObservedPrefixes::default(), "W1");
}

#[test]
fn a_million_prefixes_are_bounded_and_sums_stay_exact() {
    const ITEMS: u64 = 1_000_000;
    const RARE: u64 = 64_000;
    let mut load = Load::new(7, 1, &["rare", "absent"]);
    load.walk(0, (0..ITEMS).map(|number| (format!("{number}:x"), 10 + number % 7)), 0);
    (0..ITEMS).for_each(|number| load.request(&format!("{number}:x"), NotedAccess::Hit));
    (0..RARE).for_each(|number| load.request(&format!("rare:{number}"), NotedAccess::Store));
    let told = load.told(usize::MAX, 0);
    assert_eq!(told.listed.len(), PREFIXES_MAX);
    let all = told.all();
    let bytes = (0..ITEMS).map(|number| 10 + number % 7).sum();
    assert_eq!((all.items, all.bytes), (ITEMS, bytes), "B2");
    let drawn: u64 = load.counters.iter().map(|counters| counters.observed.value()).sum();
    let noted = (all.gets + all.sets) / u64::from(PREFIXES_NOTE_EVERY);
    let least = drawn / u64::from(PREFIXES_NOTE_EVERY / DRAWN_EVERY);
    assert!((least..=least + u64::from(CORES)).contains(&noted), "B2: {noted} of {drawn}");
    assert!(all.gets.abs_diff(ITEMS) < 5 * deviation(ITEMS), "{all:?}");
    // No prefix has more than a few bytes, and each says that it may have had more.
    assert!(told.listed.iter().all(|one| one.errors.bytes > 0 && one.numbers.items < ITEMS / 100));
    // One that an option names is counted as if it were alone.
    let [(rare, of_rare), (_, of_absent)] = &told.named[..] else { panic!("{:?}", told.named) };
    assert_eq!(&**rare, b"rare");
    assert!(of_rare.sets.abs_diff(RARE) < 5 * deviation(RARE), "{of_rare:?}");
    assert_eq!((of_rare.gets, *of_absent), (0, PrefixNumbers::default()));
}

// The memory does not depend on the prefixes.
const _: () = assert!(PREFIXES_BYTES_PER_CORE + PREFIXES_BYTES_PER_ENGINE < 1 << 20);

#[test]
fn prefixes_are_hashed_unless_they_may_be_shown() {
    let load = Load::new(3, 1, &["named"]);
    let items = ["named:1", "hidden:1", ":1"].map(|key| (key.to_owned(), 1));
    load.walk(0, items, 0);
    for (with_names, wanted) in [(true, ["named:", "hidden:", ":"]), (false, ["named:", "", ""])] {
        let told = load.observers.prefixes(9, with_names, 0).expect("they are on");
        for (name, prefix) in wanted.into_iter().zip(["named:", "hidden:", ":"]) {
            let hash = load.hasher.shown_hash(load.hasher.secret_hash(prefix.as_bytes()));
            let one = told.listed.iter().find(|one| one.shown_hash == hash).expect("it has a row");
            let shown = one.shown();
            let hash = format!("{hash:016x}");
            assert_eq!(shown, if name.is_empty() { &hash } else { name }, "{prefix}");
        }
    }
}

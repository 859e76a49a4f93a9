//! Hot keys with the shipped sampling: the hottest keys of a skewed load are found.
//!
//! Upstream:   Zipf's law over a million keys, as 10 seconds of 200,000 requests on four cores.
//! Downstream: the gates and the observers of `kachel_observe`.

mod random;

use std::sync::Arc;

use kachel_engine::{Key, KeyHasher, Seeds};
use kachel_observe::{
    Counters, HotKey, HotRate, HottestKeys, Noted, NotedAccess, Noting, ObserverSet, Observers,
    PrefixNames, SampleGate,
};

use random::Random;

const KEYS: usize = 1_000_000;
const CORES: u16 = 4;
const REQUESTS: u64 = 2_000_000;
const SECONDS: u64 = 10;
/// Requests in a tick of a core.
const TICK_REQUESTS: u64 = 24;
/// The hottest keys that must be found, and how many of them, by requests and by bytes.
///
/// A key of large values is among the first by bytes with few requests. Of 2,000 requests, the
/// drawn ones tell the number within 7 % (a standard deviation), and such keys are 5 % apart. So
/// more of the last ones change places than by requests, whatever a summary does.
const WANTED: usize = 20;
const FOUND_MIN: usize = 19;
const FOUND_BY_BYTES_MIN: usize = 17;
/// Of a hundred seeds that were tried, two have 18 of the 20 keys at 0.99, which is chance: so few
/// drawn requests cannot tell apart what is so near (`DRAWN_EVERY`).
const SEEDS: std::ops::RangeInclusive<u64> = 1..=6;

/// How engines draw the items that they evict: no test here observes prefixes.
const NEVER: fn(u32) = |_| unreachable!("prefixes are off");

/// Ranks by Zipf's law, drawn from a table of sums with a guide to it (Chen and Asau, 1974).
struct Zipf {
    sums: Vec<f64>,
    guide: Vec<u32>,
}

impl Zipf {
    fn new(exponent: f64) -> Self {
        let mut sum = 0.0;
        let weights = (1..=KEYS).map(|rank| (rank as f64).powf(-exponent));
        let mut sums: Vec<f64> = weights.map(|weight| (sum += weight, sum).1).collect();
        sums.iter_mut().for_each(|one| *one /= sum);
        let mut rank = 0;
        let guide = (0..KEYS).map(|place| {
            while sums[rank] < place as f64 / KEYS as f64 {
                rank += 1;
            }
            rank as u32
        });
        let guide = guide.collect();
        Self { sums, guide }
    }

    fn rank(&self, random: u64) -> usize {
        let unit = (random >> 11) as f64 / (1_u64 << 53) as f64;
        let mut rank = self.guide[(unit * KEYS as f64) as usize] as usize;
        while self.sums[rank] < unit {
            rank += 1;
        }
        rank
    }
}

/// The keys and their hashes.
struct Keys {
    hasher: KeyHasher,
    hashes: Vec<u64>,
}

impl Keys {
    fn new() -> Self {
        let hasher = KeyHasher::new(Seeds { hash_keys: [3, 4] }, 1);
        let hashes = (0..KEYS).map(|rank| hasher.key(&name(rank)).secret_hash()).collect();
        Self { hasher, hashes }
    }

    /// The rank of a key in the order of the law.
    fn rank(&self, hot: &HotKey) -> usize {
        let key = hot.key.as_deref().expect("keys are asked for");
        let rank = str::from_utf8(&key[4..]).expect("ASCII").parse().expect("a rank");
        assert_eq!(self.hasher.shown_hash(self.hashes[rank]), hot.shown_hash);
        rank
    }
}

fn name(rank: usize) -> Vec<u8> {
    format!("key:{rank}").into_bytes()
}

/// Bytes of the value of a key: from 64 bytes to 8 KiB, in any order of ranks.
fn value_bytes(hash: u64) -> usize {
    64 << (hash % 8)
}

/// What each key has: requests and bytes.
type Truth = Vec<(u64, u64)>;

/// Ten seconds of reads. Returns what they were, and what observers say of them.
fn observed(keys: &Keys, zipf: &Zipf, seed: u64) -> (Truth, HottestKeys) {
    let observers = Observers::new(CORES, 1, ObserverSet::HOT_KEYS, PrefixNames::default());
    observers.begin_shard(keys.hasher, || None, 0, NEVER);
    let gates: Vec<SampleGate> =
        (0..CORES).map(|core| SampleGate::new(seed * 99 + u64::from(core))).collect();
    let counters: Vec<Arc<Counters>> = (0..CORES).map(|_| Arc::default()).collect();
    let (mut truth, mut random) = (vec![(0, 0); KEYS], Random(seed));
    for number in 0..REQUESTS {
        let now_ns = number * (SECONDS * 1_000_000_000 / REQUESTS);
        // Each core has its ticks in turn, so a core has a quarter of the requests.
        let core = (number / TICK_REQUESTS % u64::from(CORES)) as usize;
        let gate = &gates[core];
        if number % TICK_REQUESTS == 0 {
            gate.begin(false, observers.on(), || unreachable!("no observer picks"));
        }
        let rank = zipf.rank(random.next());
        let hash = keys.hashes[rank];
        let value_bytes = value_bytes(hash);
        truth[rank] = (truth[rank].0 + 1, truth[rank].1 + value_bytes as u64);
        if gate.samples(hash) {
            let _is_classed = gate.is_classed();
            if let Some(noting) = gate.noting(hash) {
                let (key, access) = (&name(rank)[..], NotedAccess::Hit);
                let noted = Noted { key, secret_hash: hash, access, value_bytes };
                observers.note(core, &noted, noting, now_ns, &counters[core]);
            }
        }
    }
    let hottest = observers.hottest_keys(WANTED, true, SECONDS * 1_000_000_000);
    (truth, hottest.expect("they are on"))
}

/// How many of the keys in a list are among the 20 that have the most. `of` selects what.
fn found(keys: &Keys, list: &[HotKey], truth: &Truth, of: fn(&(u64, u64)) -> u64) -> usize {
    let mut all: Vec<u64> = truth.iter().map(of).collect();
    let (_, least, _) = all.select_nth_unstable_by(WANTED - 1, |a, b| b.cmp(a));
    list.iter().filter(|hot| of(&truth[keys.rank(hot)]) >= *least).count()
}

/// Whether a rate is the true one, within its error.
fn is_in_bounds(rate: HotRate, total: u64) -> bool {
    let true_per_s = total as f64 / SECONDS as f64;
    (rate.per_s - true_per_s).abs() <= rate.error_per_s
}

#[test]
fn nineteen_of_the_twenty_hottest_keys_are_found() {
    let keys = Keys::new();
    for exponent in [0.99, 1.2] {
        let zipf = Zipf::new(exponent);
        for seed in SEEDS {
            let (truth, hottest) = observed(&keys, &zipf, seed);
            let (by_requests, by_bytes) = (&hottest.reads.by_requests, &hottest.reads.by_bytes);
            assert_eq!((by_requests.len(), by_bytes.len()), (WANTED, WANTED));
            let found_by_requests = found(&keys, by_requests, &truth, |one| one.0);
            let found_by_bytes = found(&keys, by_bytes, &truth, |one| one.1);
            println!("zipf {exponent} seed {seed}: {found_by_requests} {found_by_bytes} of 20");
            assert!(found_by_requests >= FOUND_MIN, "{exponent} {seed}: {found_by_requests}");
            assert!(found_by_bytes >= FOUND_BY_BYTES_MIN, "{exponent} {seed}: {found_by_bytes}");
            for hot in by_requests.iter().chain(by_bytes) {
                let (requests, bytes) = truth[keys.rank(hot)];
                assert!(is_in_bounds(hot.requests, requests), "{hot:?} has {requests} requests");
                assert!(is_in_bounds(hot.bytes, bytes), "{hot:?} has {bytes} bytes");
            }
            for HotKey { requests, .. } in by_requests {
                assert!(requests.error_per_s < 0.4 * requests.per_s, "{requests:?} is of use");
            }
            assert!(hottest.writes.by_requests.is_empty() && hottest.writes.by_bytes.is_empty());
        }
    }
}

#[test]
fn merged_keys_are_told_again_for_a_while_unless_observers_are_switched() {
    let hasher = KeyHasher::new(Seeds { hash_keys: [3, 4] }, 1);
    let observers = Observers::new(1, 1, ObserverSet::HOT_KEYS, PrefixNames::default());
    observers.begin_shard(hasher, || None, 0, NEVER);
    let noting = Noting { is_drawn: true, is_picked: false, observers: ObserverSet::HOT_KEYS };
    let read = |key: &[u8], now_ns: u64| {
        let secret_hash = hasher.secret_hash(key);
        let noted = Noted { key, secret_hash, access: NotedAccess::Miss, value_bytes: 0 };
        (0..2).for_each(|_| observers.note(0, &noted, noting, now_ns, &Counters::default()));
    };
    let told = |now_ns| {
        let hottest = observers.hottest_keys(9, true, now_ns).expect("they are on");
        hottest.reads.by_requests.len()
    };
    read(b"one", 1);
    assert_eq!(told(1), 1);
    read(b"two", 2);
    assert_eq!((told(2), told(499_999_999), told(500_000_001)), (1, 1, 2));
    observers.switch(ObserverSet::HOT_KEYS, true, 500_000_002, NEVER);
    assert_eq!(told(500_000_002), 2, "they were on");
    observers.switch(ObserverSet::HOT_KEYS, false, 500_000_003, NEVER);
    assert!(observers.hottest_keys(9, true, 500_000_003).is_none());
    observers.switch(ObserverSet::HOT_KEYS, true, 500_000_004, NEVER);
    assert_eq!(told(500_000_004), 0, "they have begun anew");
}

#[test]
fn a_shown_hash_finds_its_key_and_tells_no_secret_hash() {
    let hasher = KeyHasher::new(Seeds { hash_keys: [3, 4] }, 1);
    let key: Key<'_> = hasher.key(b"user:1");
    let shown = hasher.shown_hash(key.secret_hash());
    assert_eq!(shown, hasher.shown_hash(hasher.secret_hash(b"user:1")));
    assert_ne!(shown, key.secret_hash());
    let other = KeyHasher::new(Seeds { hash_keys: [5, 6] }, 1);
    assert_ne!(shown, other.shown_hash(other.secret_hash(b"user:1")), "another process");
}

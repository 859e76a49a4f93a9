//! The hottest keys of a process: the hot keys of all cores, merged.
//!
//! Upstream:   `Observers::hottest_keys`, on any thread.
//! Downstream: `stats hotkeys` and the admin address.
//!
//! The requests of a key come to many cores. Its rate is the sum of its rates on all cores, and so
//! is the error of that rate. A core on which the key has no entry adds what the key may have had
//! there (`summary`, S2).
//!
//! Invariants:
//! - H1  The rate of a key differs from the true one by at most its error, except by a chance of
//!   one in a million: `DEVIATIONS` standard deviations of the sample, and what summaries miss.
//!   The true rate is that of the same time, in which older requests count less (`summary`).

use kachel_wire::format::ShownKey;

use crate::observers::summary::{Numbers, Summary, WAYS, bucket_of};

/// The most keys of a list.
pub const HOTTEST_MAX: usize = 100;

/// Standard deviations of the sample within which the true rate is (H1).
pub(super) const DEVIATIONS: f64 = 5.0;
/// The least time over which a rate is computed, in seconds.
const SECONDS_MIN: f64 = 1.0;

/// A key that is requested often, or moves many bytes. Shares are from 0 to 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HotKey {
    /// The hash by which the key is shown ([`kachel_engine::KeyHasher::shown_hash`]).
    pub shown_hash: u64,
    /// The key; `None` if keys may not be shown.
    pub key: Option<Box<[u8]>>,
    /// Its requests, and their part of all reads or writes.
    pub requests: HotRate,
    /// The bytes of its values that were read or stored, and their part of all.
    pub bytes: HotRate,
}

impl HotKey {
    /// The key as people read it, or its hash.
    pub fn shown(&self) -> String {
        let hash = || format!("{:016x}", self.shown_hash);
        self.key.as_ref().map_or_else(hash, |key| ShownKey::of(key).legible())
    }
}

/// How much of something a key has.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HotRate {
    /// In a second.
    pub per_s: f64,
    /// The most by which `per_s` differs from the true rate (H1).
    pub error_per_s: f64,
    /// The part of all, from 0 to 1.
    pub share: f64,
}

/// The hottest keys of reads, or of writes; each list has the hottest key first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HotLists {
    /// Those with the most requests.
    pub by_requests: Vec<HotKey>,
    /// Those with the most bytes.
    pub by_bytes: Vec<HotKey>,
}

/// The hottest keys of a process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HottestKeys {
    /// Of reads, hits and misses.
    pub reads: HotLists,
    /// Of all other requests for a key.
    pub writes: HotLists,
}

/// The numbers of one summary, which another thread may change meanwhile.
#[derive(Debug)]
pub(super) struct Source {
    numbers: Vec<Numbers>,
    request_bytes: f64,
    seconds: f64,
    /// How many requests one request of the summary stands for.
    each_stands_for: f64,
    /// All requests and bytes here.
    totals: (u64, u64),
}

impl Source {
    /// Copies the numbers of a summary. Each of its requests stands for `each_stands_for` requests.
    pub(super) fn of(summary: &mut Summary, each_stands_for: u32, now_ns: u64) -> Self {
        let numbers = summary.numbers(now_ns);
        Self {
            numbers,
            request_bytes: summary.request_bytes() as f64,
            seconds: summary.seconds(now_ns).max(SECONDS_MIN),
            each_stands_for: f64::from(each_stands_for),
            totals: summary.totals(),
        }
    }

    /// The ways of the bucket of a key.
    fn bucket(&self, secret_hash: u64) -> &[Numbers] {
        let first = bucket_of(secret_hash) * WAYS;
        &self.numbers[first..first + WAYS]
    }

    /// What is known here of a key.
    fn of_key(&self, secret_hash: u64) -> Numbers {
        let bucket = self.bucket(secret_hash);
        let is_it = |one: &&Numbers| one.requests > 0 && one.secret_hash == secret_hash;
        let weight =
            |one: &Numbers| one.requests * self.request_bytes as u64 + one.bytes + one.missed;
        let missed = || bucket.iter().map(weight).min().unwrap_or(0); // summary, S2
        let absent = || Numbers { secret_hash, missed: missed(), ..Numbers::default() };
        bucket.iter().find(is_it).copied().unwrap_or_else(absent)
    }
}

/// A rate of a key, as it is added up.
#[derive(Clone, Copy, Default)]
struct Sum {
    per_s: f64,
    missed_per_s: f64,
    variance: f64,
}

impl Sum {
    /// Adds what a source has of a key: `count` of something, of which each request has at most
    /// `of_each`, and at most `missed` besides.
    fn add(&mut self, source: &Source, count: u64, of_each: u64, missed: f64) {
        let each = source.each_stands_for / source.seconds;
        let (count, of_each) = (count as f64, of_each as f64);
        self.per_s += each * count;
        self.missed_per_s += each * missed;
        // Of n requests each is drawn with the chance 1 / s. The estimate of n has the variance
        // n * (s - 1), and n is about s times those that were drawn; one more for those that were
        // not.
        let drawn = count + of_each;
        self.variance += each * each * (1.0 - 1.0 / source.each_stands_for) * drawn * of_each;
    }

    fn rate(self, all_per_s: f64) -> HotRate {
        let error_per_s = self.missed_per_s + DEVIATIONS * self.variance.sqrt();
        let share = if all_per_s > 0.0 { (self.per_s / all_per_s).min(1.0) } else { 0.0 };
        HotRate { per_s: self.per_s, error_per_s, share }
    }
}

impl HottestKeys {
    /// The first `count` keys of each list.
    pub(super) fn first(&self, count: usize) -> Self {
        let first = |keys: &Vec<HotKey>| keys.iter().take(count).cloned().collect();
        let of = |HotLists { by_requests, by_bytes }: &HotLists| HotLists {
            by_requests: first(by_requests),
            by_bytes: first(by_bytes),
        };
        Self { reads: of(&self.reads), writes: of(&self.writes) }
    }
}

/// The hottest keys of reads or of writes, at most [`HOTTEST_MAX`] in each order, from all sources.
/// `shown` completes what is known by the hash of a key.
pub(super) fn merge(
    sources: &[Source],
    shown: &dyn Fn(u64) -> (u64, Option<Box<[u8]>>),
) -> HotLists {
    let all = sources.iter().fold((0.0, 0.0), |all, source| {
        let each = source.each_stands_for / source.seconds;
        let (requests, bytes) = source.totals;
        (all.0 + each * requests as f64, all.1 + each * bytes as f64)
    });
    let keys = sums(sources);
    let hottest = |by: Order| {
        let mut order: Vec<_> = keys.iter().filter(|key| by.rate(key) > 0.0).collect();
        order.sort_unstable_by(|a, b| by.rate(b).total_cmp(&by.rate(a)));
        let hottest = order.into_iter().take(HOTTEST_MAX);
        hottest.map(|key| rated(sources, key.secret_hash, all, shown)).collect()
    };
    HotLists { by_requests: hottest(Order::Requests), by_bytes: hottest(Order::Bytes) }
}

/// The order of a list.
#[derive(Clone, Copy)]
enum Order {
    Requests,
    Bytes,
}

impl Order {
    const fn rate(self, key: &Key) -> f64 {
        match self {
            Self::Requests => key.requests_per_s,
            Self::Bytes => key.bytes_per_s,
        }
    }
}

/// The rates of a key, without their errors.
struct Key {
    secret_hash: u64,
    requests_per_s: f64,
    bytes_per_s: f64,
}

/// The rates of all keys that are known anywhere (`summary`, S4).
fn sums(sources: &[Source]) -> Vec<Key> {
    let of_source = |source: &'_ Source| {
        let each = source.each_stands_for / source.seconds;
        let seen = source.numbers.iter().filter(|one| one.requests > 0 && one.has_key);
        let key = move |one: &Numbers| Key {
            secret_hash: one.secret_hash,
            requests_per_s: each * one.requests as f64,
            bytes_per_s: each * one.bytes as f64,
        };
        seen.map(key).collect::<Vec<_>>()
    };
    let mut keys: Vec<Key> = sources.iter().flat_map(of_source).collect();
    keys.sort_unstable_by_key(|key| key.secret_hash);
    keys.dedup_by(|next, first| {
        let is_same = next.secret_hash == first.secret_hash;
        if is_same {
            first.requests_per_s += next.requests_per_s;
            first.bytes_per_s += next.bytes_per_s;
        }
        is_same
    });
    keys
}

/// What is known of a key, with the errors.
fn rated(
    sources: &[Source],
    secret_hash: u64,
    all: (f64, f64),
    shown: &dyn Fn(u64) -> (u64, Option<Box<[u8]>>),
) -> HotKey {
    let (mut requests, mut bytes) = (Sum::default(), Sum::default());
    for source in sources {
        let one = source.of_key(secret_hash);
        let missed = one.missed as f64;
        requests.add(source, one.requests, 1, missed / source.request_bytes);
        bytes.add(source, one.bytes, one.bytes_max, missed);
    }
    let (shown_hash, key) = shown(secret_hash);
    HotKey { shown_hash, key, requests: requests.rate(all.0), bytes: bytes.rate(all.1) }
}

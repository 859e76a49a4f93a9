//! A summary of the keys with the most requests and of those with the most bytes, in fixed memory.
//!
//! Upstream:   `hot_keys` adds each drawn request.
//! Downstream: `hottest` copies the numbers, and merges those of all cores.
//!
//! ```text
//! bucket (by hash)   hash | weight   of 8 ways: two cache lines, which every request reads
//! entry              requests, bytes, missed, key: written for the way of the key
//!
//! weight = requests * request_bytes + bytes + missed
//! ```
//!
//! A request weighs its bytes, and `request_bytes` besides: about what a request has on average. So
//! a key that has a large part of the requests or a large part of the bytes has a large part of the
//! weight, and one summary finds both.
//!
//! A key that is not in its bucket replaces the lightest key there, and inherits its weight as
//! `missed`: it may have had as much before.
//!
//! Everything is halved once in `HALF_LIFE_NS`, and so is the time, so rates stay right and a key
//! that is not requested any more fades. A bucket is halved when it is used next.
//!
//! Invariants:
//! - S1  The weight of an entry is that of its requests and bytes, and `missed`.
//! - S2  What a key has is at least `requests` and `bytes` of its entry, and weighs at most the
//!   weight of the entry. A key without an entry weighs at most as much as the lightest entry of
//!   its bucket. All of this is halved as the counts are.
//! - S3  Weights can be compared. `request_bytes` changes once, when enough requests have come to
//!   know their mean: then all entries are weighed again. Later it changes only when the summary
//!   begins anew.
//! - S4  The key of an entry is copied with its second request. Most keys of a scan have none, and
//!   no hot key needs its bytes before.
//!
//! Source: Metwally, Agrawal, El Abbadi, "Efficient Computation of Frequent and Top-k Elements in
//! Data Streams" (Space-Saving), ICDT 2005. Our change: keys are divided by hash over buckets, each
//! of which is a summary of 8 entries. So an update looks at one bucket and needs no heap. The keys
//! of a bucket share the error of that bucket only; clients cannot choose the bucket of a key,
//! because the hash is secret.

use kachel_engine::KEY_BYTES_MAX;

use crate::observers::boxed;

/// Entries of a bucket.
pub(super) const WAYS: usize = 8;
/// Buckets of a summary: a power of two.
///
/// Why 128: at Zipf 0.99 over a million keys, the 20th hottest key has 0.33 % of the requests. The
/// keys below rank 20 have 77 %, so the lightest of 1,024 entries has about 0.07 %. If each key
/// has the same bytes or none, a key may have half its part of the weight, and is still twice as
/// heavy as the entries that are replaced.
pub(super) const BUCKETS: usize = 128;
/// Entries of a summary.
pub(super) const ENTRIES: usize = BUCKETS * WAYS;

/// The time after which a count counts half.
///
/// Why 30 s: a guess. At 100 requests a second it leaves a key 500 drawn requests.
pub(super) const HALF_LIFE_NS: u64 = 30_000_000_000;
/// `request_bytes` until the mean is known.
const REQUEST_BYTES_AT_FIRST: u64 = 512;
/// The bounds of `request_bytes`.
const REQUEST_BYTES: std::ops::RangeInclusive<u64> = 16..=1 << 24;
/// The requests whose mean is `request_bytes` afterwards.
const REQUESTS_AT_FIRST: u64 = 1_024;
/// The summary begins anew if the mean is later more than this many times as large, or as small.
const DRIFT_TIMES_MAX: u64 = 2;

const _: () = assert!(BUCKETS.is_power_of_two() && KEY_BYTES_MAX <= u8::MAX as usize);

/// What a key has missed weighs at most this after it was weighed again. No key has as much.
const WEIGHT_MAX: u64 = u64::MAX >> 2;

/// The hash of a free way. A key that has it shares the entry of the next hash.
const FREE: u64 = 0;

/// A bucket: the part of its entries that every request reads.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Bucket {
    hashes: [u64; WAYS],
    /// 0: the way is free.
    weights: [u64; WAYS],
}

/// What is known of a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// Requests since the key is here.
    pub(super) requests: u64,
    /// Bytes of these requests.
    pub(super) bytes: u64,
    /// The most that the key may have weighed before (S2).
    pub(super) missed: u64,
    /// The most bytes of a request, as far as requests are added one by one.
    pub(super) bytes_max: u64,
    /// 0: the key is not known yet (S4).
    key_bytes: u8,
    key: [u8; KEY_BYTES_MAX],
}

impl Entry {
    fn note_key(&mut self, key: &[u8]) {
        self.key_bytes = key.len() as u8;
        self.key[..key.len()].copy_from_slice(key);
    }
}

/// The numbers of an entry, without its key.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Numbers {
    pub(super) secret_hash: u64,
    pub(super) requests: u64,
    pub(super) bytes: u64,
    pub(super) missed: u64,
    pub(super) bytes_max: u64,
    /// Whether the key is known (S4).
    pub(super) has_key: bool,
}

/// A summary.
#[derive(Debug)]
pub(super) struct Summary {
    buckets: Box<[Bucket; BUCKETS]>,
    entries: Box<[[Entry; WAYS]; BUCKETS]>,
    /// How often each bucket was halved.
    halved: Box<[u32; BUCKETS]>,
    /// How often all was halved since the beginning.
    halvings: u32,
    /// The time of the next halving.
    halves_at_ns: u64,
    /// When the summary began, or began anew.
    since_ns: u64,
    /// What a request weighs besides its bytes (S3).
    request_bytes: u64,
    /// Whether `request_bytes` is a mean of requests.
    is_fitted: bool,
    /// All requests and bytes since then.
    requests: u64,
    bytes: u64,
}

/// The bucket of a key.
pub(super) const fn bucket_of(secret_hash: u64) -> usize {
    (secret_hash >> (u64::BITS - BUCKETS.trailing_zeros())) as usize
}

impl Summary {
    /// Bytes of memory that a summary takes.
    pub(super) const BYTES: usize =
        BUCKETS * (size_of::<Bucket>() + size_of::<u32>()) + ENTRIES * size_of::<Entry>();

    /// A summary without a request, at `now_ns` of a clock that does not go back.
    pub(super) fn new(now_ns: u64) -> Self {
        let bucket = Bucket { hashes: [FREE; WAYS], weights: [0; WAYS] };
        let entry = Entry {
            requests: 0,
            bytes: 0,
            missed: 0,
            bytes_max: 0,
            key_bytes: 0,
            key: [0; KEY_BYTES_MAX],
        };
        Self {
            buckets: boxed(bucket),
            entries: boxed([entry; WAYS]),
            halved: boxed(0),
            halvings: 0,
            halves_at_ns: now_ns + HALF_LIFE_NS,
            since_ns: now_ns,
            request_bytes: REQUEST_BYTES_AT_FIRST,
            is_fitted: false,
            requests: 0,
            bytes: 0,
        }
    }

    /// Adds requests for a key, which have `bytes` together, at `now_ns`. Cost: two or three cache
    /// lines; a copy of the key with its second request (S4).
    #[inline]
    pub(super) fn add(
        &mut self,
        secret_hash: u64,
        key: &[u8],
        requests: u32,
        bytes: u64,
        now_ns: u64,
    ) {
        if now_ns >= self.halves_at_ns || self.must_be_fitted() {
            self.advance(now_ns);
        }
        let requests = u64::from(requests);
        self.requests += requests;
        self.bytes += bytes;
        let secret_hash = secret_hash.max(FREE + 1);
        let at = bucket_of(secret_hash);
        if self.halved[at] != self.halvings {
            self.halve(at);
        }
        let hashes = &self.buckets[at].hashes;
        let way = match hashes.iter().position(|hash| *hash == secret_hash) {
            Some(way) => way,
            None => self.replace(at, secret_hash),
        };
        self.buckets[at].weights[way] += requests * self.request_bytes + bytes;
        let entry = &mut self.entries[at][way];
        if entry.requests + requests > 1 && entry.key_bytes == 0 {
            entry.note_key(key);
        }
        entry.requests += requests;
        entry.bytes += bytes;
        entry.bytes_max = entry.bytes_max.max(bytes);
        debug_assert!(self.buckets[at].weights[way] == self.weight(&self.entries[at][way]), "S1");
    }

    /// Whether enough requests have come to know their mean.
    const fn must_be_fitted(&self) -> bool {
        !self.is_fitted && self.requests >= REQUESTS_AT_FIRST
    }

    fn weight(&self, entry: &Entry) -> u64 {
        entry.requests * self.request_bytes + entry.bytes + entry.missed
    }

    /// Gives the key the place of the lightest one of its bucket.
    fn replace(&mut self, at: usize, secret_hash: u64) -> usize {
        let Bucket { hashes, weights } = &mut self.buckets[at];
        let mut lightest = 0;
        for way in 1..WAYS {
            if weights[way] < weights[lightest] {
                lightest = way;
            }
        }
        hashes[lightest] = secret_hash;
        let entry = &mut self.entries[at][lightest];
        (entry.requests, entry.bytes, entry.bytes_max) = (0, 0, 0);
        entry.missed = weights[lightest]; // S2
        entry.key_bytes = 0;
        lightest
    }

    /// Halves the entries of a bucket as often as the others were.
    fn halve(&mut self, at: usize) {
        let times = self.halvings.wrapping_sub(self.halved[at]).min(u64::BITS - 1);
        self.halved[at] = self.halvings;
        for way in 0..WAYS {
            let before = self.buckets[at].weights[way];
            if before == 0 {
                continue;
            }
            let entry = &mut self.entries[at][way];
            entry.requests >>= times;
            entry.bytes >>= times;
            // S2: what is lost when numbers are rounded down is missed.
            let weight = (before >> times) + 1;
            let counted = entry.requests * self.request_bytes + entry.bytes;
            debug_assert!(counted <= weight, "S1: it was a part of the weight before");
            entry.missed = weight - counted;
            self.buckets[at].weights[way] = weight;
        }
    }

    /// Brings the summary to `now_ns`: halves it if it is time, weighs its entries again if the
    /// mean of requests is known for the first time, and begins anew if it is another one later
    /// (S3).
    #[cold]
    pub(super) fn advance(&mut self, now_ns: u64) {
        let due_ns = (now_ns + HALF_LIFE_NS).saturating_sub(self.halves_at_ns);
        let times = u32::try_from(due_ns / HALF_LIFE_NS).unwrap_or(u32::MAX);
        if times == 0 && !self.must_be_fitted() {
            return;
        }
        let mean = self.bytes / self.requests.max(1);
        let wanted = mean.clamp(*REQUEST_BYTES.start(), *REQUEST_BYTES.end());
        let is_far =
            !(wanted / DRIFT_TIMES_MAX..=wanted * DRIFT_TIMES_MAX).contains(&self.request_bytes);
        if self.must_be_fitted() {
            self.fit(wanted);
        } else if self.requests >= REQUESTS_AT_FIRST && is_far {
            self.begin_anew(wanted, now_ns);
            return;
        }
        self.halvings = self.halvings.wrapping_add(times);
        self.halves_at_ns += u64::from(times) * HALF_LIFE_NS;
        self.requests >>= times.min(u64::BITS - 1);
        self.bytes >>= times.min(u64::BITS - 1);
    }

    /// Weighs all entries again, with this mean of requests. It may be far from the one before, so
    /// what a key has missed may weigh more than before: as much as if all of it were requests.
    fn fit(&mut self, request_bytes: u64) {
        let before = u128::from(std::mem::replace(&mut self.request_bytes, request_bytes));
        let most = before.max(request_bytes.into());
        let at_most = |weight: u64| {
            let weight = (u128::from(weight) * most).div_ceil(before);
            u64::try_from(weight).unwrap_or(u64::MAX).min(WEIGHT_MAX)
        };
        for at in 0..BUCKETS {
            // A key without an entry may weigh as much as this (S2). If a way is free, it is 0.
            let absent = at_most(self.buckets[at].weights.into_iter().fold(u64::MAX, u64::min));
            for way in 0..WAYS {
                if self.buckets[at].weights[way] == 0 {
                    continue;
                }
                let entry = &mut self.entries[at][way];
                entry.missed = at_most(entry.missed);
                let counted = entry.requests * request_bytes + entry.bytes;
                entry.missed = entry.missed.max(absent.saturating_sub(counted));
                self.buckets[at].weights[way] = counted + entry.missed;
            }
        }
        self.is_fitted = true;
    }

    /// Forgets all keys, and the mean of requests, at `now_ns`.
    pub(super) fn clear(&mut self, now_ns: u64) {
        self.begin_anew(REQUEST_BYTES_AT_FIRST, now_ns);
        self.is_fitted = false;
    }

    fn begin_anew(&mut self, request_bytes: u64, now_ns: u64) {
        for bucket in self.buckets.iter_mut() {
            *bucket = Bucket { hashes: [FREE; WAYS], weights: [0; WAYS] };
        }
        self.halved.fill(0);
        self.halvings = 0;
        self.halves_at_ns = now_ns + HALF_LIFE_NS;
        self.since_ns = now_ns;
        self.request_bytes = request_bytes;
        self.is_fitted = true;
        (self.requests, self.bytes) = (0, 0);
    }

    /// The numbers of all ways, those of a bucket after one another. Free ways have no requests.
    pub(super) fn numbers(&mut self, now_ns: u64) -> Vec<Numbers> {
        self.advance(now_ns);
        let halved = |at: &usize| self.halved[*at] != self.halvings;
        let due: Vec<usize> = (0..BUCKETS).filter(halved).collect();
        due.into_iter().for_each(|at| self.halve(at));
        let hashes =
            self.buckets.iter().flat_map(|bucket| bucket.hashes.iter().zip(&bucket.weights));
        hashes
            .zip(self.entries.as_flattened())
            .map(|((hash, weight), entry)| match weight {
                0 => Numbers::default(),
                _ => Numbers {
                    secret_hash: *hash,
                    requests: entry.requests,
                    bytes: entry.bytes,
                    missed: entry.missed,
                    bytes_max: entry.bytes_max,
                    has_key: entry.key_bytes > 0,
                },
            })
            .collect()
    }

    /// The key with this hash, if it has an entry and is known (S4).
    pub(super) fn key(&self, secret_hash: u64) -> Option<&[u8]> {
        let at = bucket_of(secret_hash);
        let Bucket { hashes, weights } = &self.buckets[at];
        let way = hashes.iter().position(|hash| *hash == secret_hash)?;
        debug_assert!(weights[way] > 0, "only a way with a key has its hash");
        let entry = &self.entries[at][way];
        (entry.key_bytes > 0).then(|| &entry.key[..entry.key_bytes.into()])
    }

    /// What a request weighs besides its bytes (S3).
    pub(super) const fn request_bytes(&self) -> u64 {
        self.request_bytes
    }

    /// All requests, and their bytes.
    pub(super) const fn totals(&self) -> (u64, u64) {
        (self.requests, self.bytes)
    }

    /// The seconds in which the requests came that are counted at `now_ns`, halved as the counts
    /// are.
    pub(super) fn seconds(&self, now_ns: u64) -> f64 {
        let age_ns = now_ns.saturating_sub(self.since_ns);
        let half_life_s = HALF_LIFE_NS as f64 / 1e9;
        let halvings = (age_ns / HALF_LIFE_NS).min(u64::BITS.into()) as i32;
        let rest_s = (age_ns % HALF_LIFE_NS) as f64 / 1e9;
        rest_s + half_life_s * (1.0 - 0.5_f64.powi(halvings))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// The finalizer of SplitMix64, as a hash of keys and as random numbers.
    fn mix(word: u64) -> u64 {
        let word = word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// What keys have, halved as a summary halves: requests and bytes.
    type Truth = HashMap<u64, (f64, f64)>;

    /// A summary of a stream of keys and their bytes, the truth, and the time of the last request.
    /// A request comes each `step_ns`.
    fn summarize(stream: impl Iterator<Item = (u64, u64)>, step_ns: u64) -> (Summary, Truth, u64) {
        let (mut summary, mut truth, mut now_ns) = (Summary::new(0), Truth::new(), 0);
        for (key, bytes) in stream {
            let before = (summary.since_ns, summary.halvings);
            let hash = mix(key + 1);
            summary.add(hash, &key.to_le_bytes(), 1, bytes, now_ns);
            if summary.since_ns != before.0 {
                truth.clear();
            }
            for _ in before.1..summary.halvings {
                truth.values_mut().for_each(|(requests, bytes)| {
                    (*requests, *bytes) = (*requests / 2.0, *bytes / 2.0);
                });
            }
            let of_key = truth.entry(hash).or_default();
            (of_key.0, of_key.1) = (of_key.0 + 1.0, of_key.1 + bytes as f64);
            now_ns += step_ns;
        }
        (summary, truth, now_ns - step_ns)
    }

    fn assert_bounds(name: &str, (mut summary, truth, now_ns): (Summary, Truth, u64)) {
        let request_bytes = summary.request_bytes as f64;
        let numbers = summary.numbers(now_ns);
        assert_eq!(numbers.len(), ENTRIES);
        for (hash, (requests, bytes)) in truth {
            let bucket = &numbers[bucket_of(hash) * WAYS..][..WAYS];
            let weight = requests * request_bytes + bytes;
            match bucket.iter().find(|one| one.secret_hash == hash) {
                Some(one) => {
                    assert!(one.requests as f64 <= requests, "S2: {name} {one:?} {requests}");
                    assert!(one.bytes as f64 <= bytes, "S2: {name} {one:?} {bytes}");
                    let counted = one.requests as f64 * request_bytes + one.bytes as f64;
                    assert!(weight <= counted + one.missed as f64, "S2: {name} {one:?} {weight}");
                    let missed = requests - one.requests as f64;
                    assert!(missed * request_bytes <= one.missed as f64, "S2: {name} {one:?}");
                }
                None => {
                    let weight_of = |one: &Numbers| {
                        one.requests as f64 * request_bytes + (one.bytes + one.missed) as f64
                    };
                    let least = bucket.iter().map(weight_of).fold(f64::MAX, f64::min);
                    assert!(weight <= least, "S2: {name} absent {weight} {least}");
                }
            }
        }
    }

    #[test]
    fn bounds_hold_on_streams_that_are_made_to_break_them() {
        const COUNT: u64 = 60_000;
        let any = |number: u64, below: u64| mix(number ^ 0x5a5a) % below;
        type Stream = Box<dyn Fn(u64) -> (u64, u64)>;
        let streams: [(&str, Stream); 7] = [
            ("one key", Box::new(|_| (1, 100))),
            ("a scan of keys that are read once", Box::new(|number| (number, 100))),
            ("a loop of a few more keys than fit", Box::new(|number| (number % 1_100, 100))),
            ("sorted", Box::new(|number| (number / 20, 100))),
            ("one hot key in a scan", Box::new(|number| (number * (number % 8).min(1), 100))),
            (
                "any keys, any bytes",
                Box::new(move |number| {
                    (any(number, 4_000).min(any(number + COUNT, 4_000)), any(number, 5_000))
                }),
            ),
            (
                "large values in between",
                Box::new(move |number| {
                    (any(number, 3_000), if number % 97 == 0 { 1 << 20 } else { 10 })
                }),
            ),
        ];
        for (name, stream) in streams {
            // Within a half-life, and over several.
            for step_ns in [1_000, HALF_LIFE_NS / (COUNT / 5)] {
                let of_stream = (0..COUNT).map(&stream);
                assert_bounds(name, summarize(of_stream, step_ns));
            }
        }
    }

    #[test]
    fn a_key_with_a_large_part_of_the_requests_or_of_the_bytes_stays() {
        // One of 300 requests is for key 1; one of 3,000 is for key 2, and moves a third of the
        // bytes; all others are for a million other keys.
        let stream = (0..400_000).map(|number| match number % 3_000 {
            1 => (2, 150_000),
            rest if rest % 300 == 2 => (1, 0),
            _ => (3 + mix(number) % 1_000_000, 100),
        });
        let (mut summary, truth, now_ns) = summarize(stream, 1_000);
        let numbers = summary.numbers(now_ns);
        for key in [1, 2] {
            let one = numbers.iter().find(|one| one.secret_hash == mix(key + 1)).expect("it stays");
            let (requests, _) = truth[&mix(key + 1)];
            assert!(one.requests as f64 >= 0.98 * requests, "{key}: {one:?} of {requests}");
            assert_eq!(summary.key(mix(key + 1)), Some(&key.to_le_bytes()[..]));
        }
    }

    #[test]
    fn a_key_that_is_not_requested_any_more_fades_and_rates_stay_right() {
        let per_s = 1_000_000_000;
        let mut summary = Summary::new(7);
        // Key 1 for three half-lives with a request a millisecond, then key 2.
        for number in 0..180_000_u64 {
            let key = if number < 90_000 { 1 } else { 2 };
            summary.add(mix(key), &[key as u8], 1, 10, 7 + number * 1_000_000);
        }
        let now_ns = 7 + 180 * per_s - 1;
        let seconds = summary.seconds(now_ns);
        let numbers = summary.numbers(now_ns);
        let rate = |key| {
            let of_key = numbers.iter().find(|one| one.secret_hash == mix(key));
            of_key.expect("it has an entry").requests as f64 / seconds
        };
        assert!((100.0..130.0).contains(&rate(1)), "an eighth: {}", rate(1));
        assert!((870.0..900.0).contains(&rate(2)), "{}", rate(2));
        // After a long sleep nothing is left.
        let numbers = summary.numbers(now_ns + 3_600 * per_s);
        assert!(numbers.iter().all(|one| one.requests == 0));
    }

    #[test]
    fn the_first_mean_forgets_nothing_and_another_one_begins_the_summary_anew() {
        for bytes in [0, 100_000] {
            // The fault: the lists were empty after the first 1,024 requests.
            let mut summary = Summary::new(0);
            for number in 0..4 * REQUESTS_AT_FIRST {
                summary.add(mix(1 + number % 10), b"key", 1, bytes, number);
            }
            assert_eq!(summary.request_bytes(), bytes.max(*REQUEST_BYTES.start()), "S3");
            assert_eq!(summary.totals().0, 4 * REQUESTS_AT_FIRST);
            let numbers = summary.numbers(4 * REQUESTS_AT_FIRST);
            let counted: u64 = numbers.iter().map(|one| one.requests).sum();
            assert_eq!(counted, 4 * REQUESTS_AT_FIRST);
            // Requests of another size.
            for number in 0..8 * REQUESTS_AT_FIRST {
                summary.add(mix(1 + number % 10), b"key", 1, 1_000, number);
            }
            summary.add(mix(1), b"key", 1, 1_000, HALF_LIFE_NS);
            assert_eq!(summary.totals().0, 1, "S3: {bytes}");
        }
    }
}

//! Runs a trace against a policy.
//!
//! Upstream:   the records of a trace.
//! Downstream: a policy, and the count of its misses.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  A policy never holds more bytes than its memory has.
//!
//! Look-aside, as `kachel-lab load replay` does it: a read that misses is followed by a write. Only
//! reads count. TTLs are ignored. The papers know no writes: a write of a key that is there is an
//! access like a read, and may change the size.

use kachel_load::{Effect, Trace};

use super::policy::{Access, PolicyName};

#[derive(Clone, Copy, Debug)]
struct Request {
    access: Access,
    effect: Effect,
}

/// The requests of a trace, ready to be run against any policy.
#[derive(Debug)]
pub(super) struct Requests {
    requests: Vec<Request>,
    /// The number of keys.
    pub(super) keys: usize,
    /// Bytes of all keys with their values, or the number of keys if each counts as one.
    pub(super) footprint: u64,
    /// The number of reads.
    pub(super) reads: u64,
}

impl Requests {
    /// The requests of a trace. If `objects`, each key counts as one byte. `None`: it has no reads.
    pub(super) fn of(trace: &Trace, objects: bool) -> Option<Self> {
        let keys = trace.key_count();
        let mut next_of = vec![u64::MAX; keys];
        let mut requests: Vec<Request> = trace
            .records
            .iter()
            .enumerate()
            .rev()
            .map(|(at, record)| {
                let effect = record.effect();
                let this = if effect == Effect::Read { at as u64 } else { u64::MAX };
                let next = std::mem::replace(&mut next_of[record.key as usize], this);
                let bytes = record.object_bytes;
                Request { access: Access { key: record.key, bytes, next }, effect }
            })
            .collect();
        requests.reverse();
        let reads = requests.iter().filter(|request| request.effect == Effect::Read).count() as u64;
        let footprint = if objects { keys as u64 } else { trace.facts.footprint_bytes };
        if objects {
            requests.iter_mut().for_each(|request| request.access.bytes = 1);
        }
        (reads > 0).then_some(Self { requests, keys, footprint, reads })
    }

    /// The misses of a policy with `capacity` bytes of memory.
    ///
    /// Cost: about 0.1 us a request; Belady's rule a few times as much.
    pub(super) fn misses(&self, policy: PolicyName, capacity: u64) -> u64 {
        let mut cache = policy.start(capacity, self.keys);
        let mut misses = 0;
        for Request { access, effect } in &self.requests {
            if *effect == Effect::Delete {
                cache.remove(access.key);
                continue;
            }
            let is_there = cache.read(*access);
            misses += u64::from(*effect == Effect::Read && !is_there);
            let fits = u64::from(access.bytes) <= capacity;
            match (is_there, *effect == Effect::Write) {
                (true, false) => {}
                (true, true) if fits => cache.resize(access.key, access.bytes),
                (true, true) => cache.remove(access.key),
                (false, _) if fits => cache.insert(*access),
                (false, _) => {}
            }
            assert!(cache.bytes() <= capacity, "I1");
        }
        misses
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;
    use crate::misses::queues::Key;

    /// Reads of keys of one byte each.
    fn reads(keys: impl IntoIterator<Item = Key>) -> Requests {
        let keys: Vec<Key> = keys.into_iter().collect();
        let mut next_of = std::collections::HashMap::new();
        let mut requests: Vec<Request> = (0..keys.len())
            .rev()
            .map(|at| {
                let next = next_of.insert(keys[at], at as u64).unwrap_or(u64::MAX);
                Request { access: Access { key: keys[at], bytes: 1, next }, effect: Effect::Read }
            })
            .collect();
        requests.reverse();
        let count = keys.iter().max().map_or(0, |key| *key as usize + 1);
        Requests { reads: keys.len() as u64, requests, keys: count, footprint: count as u64 }
    }

    /// A generator of numbers below `bound` whose small values are frequent.
    fn skewed(count: usize, bound: u64) -> Vec<Key> {
        let mut state = 88_172_645_463_325_252u64;
        let mut next = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        (0..count).map(|_| (next() % bound * (next() % bound) / bound) as Key).collect()
    }

    /// Short sequences that the rules of each paper decide by hand.
    #[test]
    fn each_policy_evicts_what_its_rule_says() {
        use PolicyName::*;
        // Memory for three keys. The last read misses if its key has gone.
        let rows: [(&[Key], &[PolicyName], &[PolicyName]); 3] = [
            // 0 was read again before 3 came. FIFO does not mind.
            (&[0, 1, 2, 0, 3, 0], &[Fifo], &[Lru, Clock, Sieve, Belady]),
            // 1 has not been read for longest, and is read next.
            (&[0, 1, 2, 0, 3, 1], &[Lru, Clock, Sieve], &[Belady]),
            // SIEVE's hand has passed 0 and goes on with what came later. CLOCK and LRU moved 0 to
            // the front once, and it has come to the back again.
            (&[0, 1, 2, 0, 3, 4, 5, 0], &[Lru, Clock, Fifo], &[Sieve, Belady]),
        ];
        for (keys, missing, finding) in rows {
            for policy in missing.iter().chain(finding) {
                let (before, all) = (reads(keys[..keys.len() - 1].to_vec()), reads(keys.to_vec()));
                let missed = all.misses(*policy, 3) - before.misses(*policy, 3);
                assert_eq!(missed, u64::from(missing.contains(policy)), "{policy:?} {keys:?}");
            }
        }
    }

    /// The misses of a policy with memory for `places` keys. The words are the keys of reads, or of
    /// writes in capital letters, or of deletes after a minus.
    fn misses_of(policy: PolicyName, places: u64, words: &str) -> u64 {
        let line = |word: &str| match word.strip_prefix('-') {
            Some(key) => format!("0,{key},1,9,1,delete,0\n"),
            None if word == word.to_lowercase() => format!("0,{word},1,9,1,get,0\n"),
            None => format!("0,{},1,9,1,set,0\n", word.to_lowercase()),
        };
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(&file, words.split(' ').map(line).collect::<String>()).expect("written");
        let trace = Trace::read(file.path(), 1.0, None).expect("a trace");
        Requests::of(&trace, true).expect("reads").misses(policy, places)
    }

    /// It moves the key or sets its bit as a read does. Short sequences, decided by hand.
    #[test]
    fn a_write_of_a_key_that_is_there_is_an_access() {
        for (policy, places, words, misses) in [
            // A key stays in its place in FIFO order, and the last read misses.
            (PolicyName::Fifo, 2, "a b A c a", 4),
            (PolicyName::Lru, 2, "a b A c a", 3),
            // The bit stays set. Without the write it would be clear.
            (PolicyName::Clock, 2, "a A b c a", 3),
            (PolicyName::Sieve, 2, "a A b c a", 3),
            // The key goes from probation to the protected ones, and stays there.
            (PolicyName::Slru, 5, "a A b c d e f a", 6),
            (PolicyName::Slru, 5, "a a A b c d e f a", 6),
            // The key came back, so it is in LRU order, and those in FIFO order go.
            (PolicyName::TwoQueues, 4, "a b c d e a A f g h i a", 10),
            (PolicyName::Arc, 2, "a a A b c a", 3),
            (PolicyName::Arc, 2, "a A b c a", 3),
            // More than one access in the small queue.
            (PolicyName::S3Fifo, 2, "a a A b c a", 3),
            (PolicyName::S3Fifo, 2, "a a a A b c a", 3),
            // The key is protected, so f is compared with b and enters with its second read.
            (PolicyName::WTinyLfu, 5, "a a A b c d e f f f", 7),
        ] {
            assert_eq!(misses_of(policy, places, words), misses, "{policy:?} {words}");
        }
    }

    /// A key that is written or deleted before its next read takes no memory until then.
    #[test]
    fn beladys_rule_keeps_keys_for_reads_only() {
        for words in ["a b A b", "a b -a b"] {
            assert_eq!(misses_of(PolicyName::Belady, 1, words), 2, "{words}");
        }
    }

    /// Keys that are read once, between reads of a small set, evict the set from FIFO and LRU only.
    #[test]
    fn policies_against_scans_keep_what_is_read_again() {
        let mut keys = Vec::new();
        for round in 0..200 {
            keys.extend((0..40).chain(0..40).chain(100 + round * 80..180 + round * 80));
        }
        let requests = reads(keys);
        let ratio = |policy| requests.misses(policy, 100) as f64 / requests.reads as f64;
        for policy in [PolicyName::Fifo, PolicyName::Lru] {
            assert!(ratio(policy) > 0.74, "{policy:?}: {}", ratio(policy));
        }
        for policy in PolicyName::value_variants() {
            if !matches!(policy, PolicyName::Fifo | PolicyName::Lru) {
                assert!(ratio(*policy) < 0.6, "{policy:?}: {}", ratio(*policy));
            }
        }
    }

    #[test]
    fn no_policy_misses_less_than_beladys_or_more_than_without_memory() {
        let requests = reads(skewed(30_000, 3_000));
        for capacity in [1, 10, 300, 3_000] {
            let least = requests.misses(PolicyName::Belady, capacity);
            for policy in PolicyName::value_variants() {
                let misses = requests.misses(*policy, capacity);
                assert!((least..=requests.reads).contains(&misses), "{policy:?} with {capacity}");
                let different = requests.keys_read();
                assert!(misses >= different, "{policy:?}: a first read misses");
                if capacity == 3_000 && *policy != PolicyName::WTinyLfu {
                    assert_eq!(misses, different, "{policy:?}: all fit");
                }
            }
        }
    }

    impl Requests {
        fn keys_read(&self) -> u64 {
            let keys = self.requests.iter().map(|request| request.access.key);
            keys.collect::<std::collections::HashSet<_>>().len() as u64
        }
    }

    /// Keys of different sizes, writes and deletes: only sums are checked (I1, and in `queues`).
    #[test]
    fn writes_and_deletes_keep_the_sums_right() {
        let mut requests = reads(skewed(20_000, 500));
        for (at, request) in requests.requests.iter_mut().enumerate() {
            request.access.bytes = 1 + (at as u32 * 7919) % 90;
            request.effect =
                [Effect::Read, Effect::Read, Effect::Write, Effect::Delete][at * 31 % 97 % 4];
        }
        for policy in PolicyName::value_variants() {
            for capacity in [50, 2_000, 100_000] {
                assert!(requests.misses(*policy, capacity) > 0, "{policy:?} with {capacity}");
            }
        }
    }
}

//! A key with its hashes, which are computed once for each key of a request.
//!
//! Upstream:   `shard` makes a [`Key`] of each key that a client sent; a parked request carries it
//!             along.
//! Downstream: the public hash picks a partition, and so an engine; the secret hash picks a bucket
//!             and a tag of the index.
//!
//! Invariants:
//! - I1  A key has 1 to [`KEY_BYTES_MAX`] bytes.
//! - I2  Two cores of a process, and two processes with the same number of engines, agree on the
//!   owner of a key.
//!
//! The public hash is rapidhash v3 with its fixed seed: it is stable across versions, so clients
//! may steer requests to the core of the owning engine, and a restarted process agrees with the one
//! before. Attackers can compute this hash. That does no harm, because the hash only spreads work.
//! The secret hash is SipHash-1-3 under keys that are drawn at the start, because an attacker must
//! not be able to choose keys that fall into one bucket. Seeded rapidhash is not safe for this:
//! 100,000 valid keys are known that share one hash under every seed.
//!
//! Source: Aumasson, Bernstein, "SipHash: a fast short-input PRF", 2012.

use std::fmt;

use siphasher::sip::SipHasher13;

/// Bytes of the longest key.
pub const KEY_BYTES_MAX: usize = 250;

/// Partitions of the key space. The number never changes. Each engine owns a range of them.
pub const PARTITIONS: u32 = 4096;

/// The random numbers that a process draws once at its start (a simulation takes them from its
/// seed).
#[derive(Clone, Copy, Debug)]
pub struct Seeds {
    /// The keys of the secret hash.
    pub hash_keys: [u64; 2],
}

/// The index of an engine among those of its process. The engine holds the items of its keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct EngineIndex(pub u16);

impl EngineIndex {
    /// The number of the engine, as the place of a thing that each engine has.
    #[inline]
    #[must_use]
    pub const fn number(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for EngineIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The hashes of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyHashes {
    /// The secret hash, for an index. Never show it to a client.
    pub secret: u64,
    /// The partition that the public hash picks. It is always 0 in a process with one engine.
    pub partition: u16,
}

/// A key and its hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key<'k> {
    bytes: &'k [u8],
    hashes: KeyHashes,
}

impl<'k> Key<'k> {
    /// A key whose hashes were computed before, by [`KeyHasher::key`].
    #[inline]
    pub fn hashed(bytes: &'k [u8], hashes: KeyHashes) -> Self {
        debug_assert!((1..=KEY_BYTES_MAX).contains(&bytes.len()), "I1: a key has 1 to 250 bytes");
        Self { bytes, hashes }
    }

    /// The key's bytes.
    #[inline]
    pub const fn bytes(&self) -> &'k [u8] {
        self.bytes
    }

    /// The key's hashes.
    #[inline]
    pub const fn hashes(&self) -> KeyHashes {
        self.hashes
    }

    /// The secret hash, for an index. Never show it to a client.
    #[inline]
    pub const fn secret_hash(&self) -> u64 {
        self.hashes.secret
    }
}

/// Computes both hashes.
#[derive(Clone, Copy, Debug)]
pub struct KeyHasher {
    secret: SipHasher13,
    engines: u32,
}

impl KeyHasher {
    /// The hasher of a process with `engines` engines.
    ///
    /// Panics: if there is no engine, or if there are more engines than partitions.
    pub fn new(seeds: Seeds, engines: u16) -> Self {
        assert!(engines > 0 && u32::from(engines) <= PARTITIONS, "each engine owns a partition");
        let secret = SipHasher13::new_with_keys(seeds.hash_keys[0], seeds.hash_keys[1]);
        Self { secret, engines: u32::from(engines) }
    }

    /// The key with its hashes. The public hash is computed only if there is more than one engine.
    ///
    /// Panics: when the key's length breaks I1. The parser must have refused such a key.
    #[inline]
    pub fn key<'k>(&self, bytes: &'k [u8]) -> Key<'k> {
        assert!((1..=KEY_BYTES_MAX).contains(&bytes.len()), "I1: a key has 1 to 250 bytes");
        let (secret, partition) = (self.secret_hash(bytes), self.partition(bytes));
        Key { bytes, hashes: KeyHashes { secret, partition } }
    }

    /// The secret hash of a key that an engine has stored.
    #[inline]
    pub fn secret_hash(&self, bytes: &[u8]) -> u64 {
        self.secret.hash(bytes)
    }

    /// The hash by which a key with this secret hash is shown to people. It tells nothing of the
    /// secret hash, and is the same as long as the process runs.
    pub fn shown_hash(&self, secret_hash: u64) -> u64 {
        // Longer than any key, so it is the secret hash of none.
        let mut text = [0; KEY_BYTES_MAX + 1];
        text[..8].copy_from_slice(&secret_hash.to_le_bytes());
        self.secret.hash(&text)
    }

    #[inline]
    fn partition(&self, bytes: &[u8]) -> u16 {
        if self.engines == 1 {
            return 0;
        }
        let hash = rapidhash::v3::rapidhash_v3(bytes);
        u16::try_from(hash >> (64 - PARTITIONS.trailing_zeros())).expect("12 bits")
    }

    /// The engine that owns a key. Each engine owns a run of partitions, in the order of the
    /// engines. The runs are equal, up to one partition.
    #[inline]
    pub fn owner(&self, hashes: KeyHashes) -> EngineIndex {
        let owner = u32::from(hashes.partition) * self.engines / PARTITIONS;
        EngineIndex(u16::try_from(owner).expect("at most 4096 engines"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_engine_owns_about_its_share_of_the_keys() {
        let hasher = KeyHasher::new(Seeds { hash_keys: [1, 2] }, 7);
        let mut owned = [0u32; 7];
        for key in 0..70_000u32 {
            let key = format!("key-{key}");
            owned[hasher.owner(hasher.key(key.as_bytes()).hashes()).number()] += 1;
        }
        assert!(owned.iter().all(|count| (9_500..10_500).contains(count)), "{owned:?}");
    }

    #[test]
    fn the_secret_hash_changes_with_its_keys_and_the_owner_does_not() {
        let one = KeyHasher::new(Seeds { hash_keys: [1, 2] }, 8);
        let two = KeyHasher::new(Seeds { hash_keys: [3, 4] }, 8);
        assert_ne!(one.key(b"k").secret_hash(), two.key(b"k").secret_hash());
        let owner = |hasher: &KeyHasher, key| hasher.owner(hasher.key(&[key]).hashes());
        assert!((0..100u8).all(|key| owner(&one, key) == owner(&two, key)));
    }

    #[test]
    #[should_panic(expected = "1 to 250 bytes")]
    fn an_empty_key_is_a_bug() {
        KeyHasher::new(Seeds { hash_keys: [1, 2] }, 1).key(b"");
    }
}

//! The two hashes of a key.
//!
//! Upstream:   `serve` hashes each key of a request; `hop::record` again, at its owner.
//! Downstream: the public hash picks a partition and so a shard; the secret one a bucket and a tag.
//!
//! The public hash is rapidhash v3 with its fixed seed: stable across versions, so clients may
//! steer and restarts agree. It cannot be kept from attackers, and need not be: it only spreads
//! work. The secret one is SipHash-1-3 under keys drawn at the start, because chosen keys must not
//! meet in one bucket (seeded rapidhash does not hold: 100,000 legal keys with one hash under every
//! seed are known).
//! Source: Aumasson, Bernstein, "SipHash: a fast short-input PRF", 2012.

use std::hash::Hasher as _;

use kachel_table::KeyHash;
use siphasher::sip::SipHasher13;

use crate::PARTITIONS;

/// What must be random: drawn once by whoever starts the process, or from a simulation's seed.
#[derive(Clone, Copy, Debug)]
pub struct Seeds {
    /// The secret hash's keys.
    pub hash_keys: [u64; 2],
}

/// Both hashes, ready for use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyHasher {
    secret: SipHasher13,
    shards: u32,
}

impl KeyHasher {
    pub(crate) fn new(seeds: Seeds, shards: u16) -> Self {
        assert!(shards > 0 && u32::from(shards) <= PARTITIONS);
        let secret = SipHasher13::new_with_keys(seeds.hash_keys[0], seeds.hash_keys[1]);
        Self { secret, shards: u32::from(shards) }
    }

    /// The secret hash of a key: bucket and tag.
    #[inline]
    pub(crate) fn key_hash(&self, key: &[u8]) -> KeyHash {
        let mut hasher = self.secret;
        hasher.write(key);
        KeyHash(hasher.finish())
    }

    /// The shard that owns a key. Partitions are handed out in equal runs, in the shards' order.
    #[inline]
    pub(crate) fn shard(&self, key: &[u8]) -> u16 {
        if self.shards == 1 {
            return 0;
        }
        let hash = rapidhash::v3::rapidhash_v3(key);
        let partition = u32::try_from(hash >> (64 - PARTITIONS.trailing_zeros()))
            .expect("a partition has 12 bits");
        u16::try_from(partition * self.shards / PARTITIONS).expect("fewer than 4096 shards")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shard_owns_about_its_share_of_the_keys() {
        let hasher = KeyHasher::new(Seeds { hash_keys: [1, 2] }, 7);
        let mut owned = [0u32; 7];
        for key in 0..70_000u32 {
            owned[usize::from(hasher.shard(format!("key-{key}").as_bytes()))] += 1;
        }
        assert!(owned.iter().all(|count| (9_500..10_500).contains(count)), "{owned:?}");
    }

    #[test]
    fn the_secret_hash_changes_with_its_keys_and_the_public_one_does_not() {
        let one = KeyHasher::new(Seeds { hash_keys: [1, 2] }, 8);
        let two = KeyHasher::new(Seeds { hash_keys: [3, 4] }, 8);
        assert_ne!(one.key_hash(b"k").0, two.key_hash(b"k").0);
        assert!((0..100u8).all(|key| one.shard(&[key]) == two.shard(&[key])));
    }
}

//! The input of a lookup, a key's hash, and its result, an item's location.
//!
//! Upstream:   `cache`, which has the secret hash of a key (`engine`); `segment`, whose places are
//! locations.
//! Downstream: `geometry` turns a half into a bucket; `bucket` keeps the tag in a slot.
//!
//! Invariants:
//! - I1  A tag is never 0, so that it never matches an empty slot.
//! - I2  The two halves of a key differ in bit 0, so its two buckets differ in every table of two
//!   or more.
//! - I3  Either half and the tag give the other half.

/// The secret, keyed 64-bit hash of a key. Its bits must look random to a client that chooses keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyHash(pub u64);

/// Where an item is: 44 bits whose meaning is the caller's; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Location(u64);

/// 32 bits of which a table of 2^n buckets takes the low n as a bucket's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Half(pub(crate) u32);

/// The 16 bits of a hash that are kept in a slot (I1). A match is a hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag(pub(crate) u16);

impl KeyHash {
    #[inline]
    pub(crate) fn tag(self) -> Tag {
        // The high bits of the product depend on all bits of the hash, also on those that the
        // halves lack.
        Tag(((self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u16).max(1)) // I1
    }

    #[inline]
    pub(crate) fn first(self) -> Half {
        Half(self.0 as u32)
    }
}

impl Half {
    /// The key's other half. The function is its own inverse (I3) and changes bit 0 (I2).
    #[inline]
    pub(crate) fn other(self, tag: Tag) -> Self {
        Self(self.0 ^ (u32::from(tag.0).wrapping_mul(0x9e37_79b1) | 1))
    }
}

impl Location {
    /// Bits of a location.
    pub const BITS: u32 = 44;

    /// The location `bits`. Panics: when that is 0 or has more than 44 bits.
    #[inline]
    pub const fn new(bits: u64) -> Self {
        assert!(bits != 0 && bits >> Self::BITS == 0, "a location has 1 to 44 bits");
        Self(bits)
    }

    /// Its 44 bits; never 0.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn halves_find_each_other_and_never_agree_in_bit_0() {
        for seed in 0..70_000_u64 {
            let hash = KeyHash(seed.wrapping_mul(0xd134_2543_de82_ef95));
            let (first, tag) = (hash.first(), hash.tag());
            assert_ne!(tag.0, 0);
            assert_eq!(first.other(tag).other(tag), first);
            assert_eq!((first.0 ^ first.other(tag).0) & 1, 1);
        }
    }

    #[test]
    #[should_panic(expected = "44 bits")]
    fn location_0_is_refused() {
        Location::new(0);
    }

    #[test]
    #[should_panic(expected = "44 bits")]
    fn a_location_of_45_bits_is_refused() {
        Location::new(1 << 44);
    }
}

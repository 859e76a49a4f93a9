//! Linear hashing: how many buckets there are, and which of them a half leads to.
//!
//! Upstream:   `table`, `insert` and `grow` compute every address here.
//! Downstream: nothing; this is arithmetic.
//!
//! ```text
//! buckets = 2^level + split
//!   0 ........ split ........ 2^level ........ buckets
//!   depth level + 1 | depth level  | depth level + 1
//!   (split already)                 (their second halves)
//! ```
//! A bucket of depth d holds the halves whose low d bits are its index.
//!
//! Invariants:
//! - I1  Every half leads to exactly one bucket, and to the one whose index is its low `depth`
//!   bits.
//! - I2  `BUCKETS_MIN` <= buckets <= `BUCKETS_MAX`.

use crate::tag::Half;

/// The fewest buckets: one page of them; in a model two, the choices of one key.
pub(crate) const BUCKETS_MIN: u32 = if cfg!(loom) { 2 } else { 64 };
/// The most buckets: a depth is at most 31, so that the next bit is still one of the half's 32.
pub(crate) const BUCKETS_MAX: u32 = 1 << 31;

/// The number of buckets of a table, split into its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    buckets: u32,
    /// 2^level - 1.
    mask: u32,
}

impl Geometry {
    /// The geometry of a table of `buckets` buckets.
    pub(crate) fn new(buckets: u32) -> Self {
        assert!((BUCKETS_MIN..=BUCKETS_MAX).contains(&buckets), "I2: {buckets} buckets");
        Self { buckets, mask: (1 << buckets.ilog2()) - 1 }
    }

    #[inline]
    pub(crate) fn buckets(self) -> u32 {
        self.buckets
    }

    /// The bucket that `half` leads to (I1).
    #[inline]
    pub(crate) fn bucket_of(self, half: Half) -> u32 {
        let deep = half.0 & (self.mask << 1 | 1);
        if deep < self.buckets { deep } else { half.0 & self.mask }
    }

    /// How many low bits the halves in `bucket` share.
    #[inline]
    pub(crate) fn depth(self, bucket: u32) -> u32 {
        debug_assert!(bucket < self.buckets);
        let level = self.mask.count_ones();
        let split = self.buckets - (self.mask + 1);
        level + u32::from(bucket < split || bucket > self.mask)
    }

    /// The bucket that the next split divides; its second half becomes bucket `buckets`.
    pub(crate) fn next_split(self) -> u32 {
        self.buckets - (self.mask + 1)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_half_leads_to_the_bucket_of_its_low_depth_bits() {
        for buckets in 64..=520 {
            let geometry = Geometry::new(buckets);
            for low in 0..2048_u32 {
                let half = Half(low | 0xabcd_0000);
                let bucket = geometry.bucket_of(half);
                assert!(bucket < buckets);
                assert_eq!(bucket, half.0 & ((1 << geometry.depth(bucket)) - 1), "I1");
            }
        }
    }

    #[test]
    fn a_split_moves_halves_only_from_the_split_bucket_to_the_new_one() {
        for buckets in 64..=300 {
            let (before, after) = (Geometry::new(buckets), Geometry::new(buckets + 1));
            for low in 0..1024 {
                let (source, target) = (before.bucket_of(Half(low)), after.bucket_of(Half(low)));
                assert!(
                    source == target || (source == before.next_split() && target == buckets),
                    "{buckets}: {low} went from {source} to {target}"
                );
            }
        }
    }
}

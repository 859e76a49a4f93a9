//! TTL buckets: which items may share a segment, so that they expire at about the same time.
//!
//! Upstream:   `append` and `reserve` ask for a new item's bucket, `job` for a copied item's.
//! Downstream: nothing.
//!
//! There are four ranges of 256 buckets each. The buckets of a range are 8, 128, 2048 or 32768
//! seconds wide. The last bucket of the last range takes everything longer. One more bucket is for
//! items that never expire. A bucket decides only which items share a segment; each item expires
//! exactly in its second.
//!
//! Source: Segcache (NSDI 2021), section 3.2.

/// Buckets in all.
pub(crate) const TTL_BUCKETS: usize = RANGES * BUCKETS_PER_RANGE + 1;

/// The bucket of items that never expire.
pub(crate) const NEVER: u16 = (TTL_BUCKETS - 1) as u16;

const RANGES: usize = 4;
const BUCKETS_PER_RANGE: usize = 256;
const WIDTHS_S: [u32; RANGES] = [8, 128, 2048, 32768];

/// The bucket of an item that expires at `expiry` (0: never), seen from second `now`.
pub(crate) fn ttl_bucket(expiry: u32, now: u32) -> u16 {
    if expiry == 0 {
        return NEVER;
    }
    let ttl = expiry.saturating_sub(now);
    let range = WIDTHS_S.iter().position(|width| ttl / width < BUCKETS_PER_RANGE as u32);
    let bucket = match range {
        Some(range) => range * BUCKETS_PER_RANGE + (ttl / WIDTHS_S[range]) as usize,
        None => NEVER as usize - 1,
    };
    debug_assert!(bucket < NEVER as usize, "only items that never expire are in the last bucket");
    bucket as u16
}

/// An expiry as a second that can be compared: never is the latest.
pub(crate) const fn expiry_or_never(expiry: u32) -> u32 {
    if expiry == 0 { u32::MAX } else { expiry }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn buckets_rise_with_the_ttl() {
        let rows = [
            (1, 0),
            (7, 0),
            (8, 1),
            (2047, 255),
            (2048, 256 + 16),
            (32767, 511),
            (32768, 512 + 16),
            (524_287, 767),
            (524_288, 768 + 16),
            (8_388_607, 1023),
            (8_388_608, 1023),
            (u32::MAX - 100, 1023),
        ];
        for (ttl, bucket) in rows {
            assert_eq!(ttl_bucket(100 + ttl, 100), bucket, "ttl {ttl}");
        }
        assert_eq!(ttl_bucket(0, 100), NEVER);
        assert_eq!(ttl_bucket(50, 100), 0, "already expired");
    }
}

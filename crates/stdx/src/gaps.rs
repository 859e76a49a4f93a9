//! Random gaps between things that are drawn as a sample, so that no pattern of the things decides
//! which are drawn.
//!
//! Upstream:   code that draws one of many things: requests, evicted items.
//! Downstream: nothing.
//!
//! Source: the linear congruential generator of Knuth's MMIX.

/// A source of gaps.
#[derive(Clone, Copy, Debug)]
pub struct Gaps(u64);

impl Gaps {
    /// Gaps that depend on `seed` only.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The number of things before the next one that is drawn, if one of `every` is drawn on
    /// average: from 0 to 2 * `every` - 2, each equally likely.
    #[must_use]
    pub const fn next(&mut self, every: u32) -> u32 {
        debug_assert!(every > 0, "one of some things is drawn");
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let gaps = 2 * every as u64 - 1;
        (((self.0 >> 32) * gaps) >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_equally_likely() {
        let (mut gaps, mut counts) = (Gaps::new(1), [0_u32; 7]);
        (0..70_000).for_each(|_| counts[gaps.next(4) as usize] += 1);
        assert!(counts.iter().all(|count| count.abs_diff(10_000) < 500), "{counts:?}");
        assert!((0..100).all(|_| gaps.next(1) == 0), "all are drawn");
    }
}

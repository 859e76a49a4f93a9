//! Numbers from 64 random bits.
//!
//! Upstream:   `distribution`, `keys`, `popularity`, `schedule`, `steady`.
//! Downstream: none.

/// A number from 0 to `count`, exclusive, from 64 random bits (multiply and take the high half).
#[inline]
pub(crate) fn below(random: u64, count: u64) -> u64 {
    ((u128::from(random) * u128::from(count)) >> 64) as u64
}

/// A number in [0, 1) from 64 random bits.
#[inline]
pub(crate) fn unit(random: u64) -> f64 {
    (random >> 11) as f64 / (1u64 << 53) as f64
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), a bijection.
#[inline]
pub(crate) fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

//! The tags of a bucket, compared at once.
//!
//! Upstream:   `bucket`, on x86-64, which always has SSE2.
//! Downstream: nothing.
//!
//! ```text
//! four loads of two words -> the high 32 bits of eight -> their high 16 bits in one register
//! -> compare with eight copies of the tag -> one bit a word; the control word's is dropped
//! ```

use std::arch::x86_64::{
    __m128i, _mm_castps_si128, _mm_castsi128_ps, _mm_cmpeq_epi16, _mm_loadu_si128,
    _mm_movemask_epi8, _mm_packs_epi16, _mm_packs_epi32, _mm_set1_epi16, _mm_setzero_si128,
    _mm_shuffle_ps, _mm_srai_epi32,
};

use crate::line::Line;

/// The slots of `line` whose tag is `tag`: bit n for slot n. Cost: one cache line.
///
/// The loads are plain, so no thread may store to the line meanwhile. The caller borrows the table,
/// and every store needs the table exclusively.
#[inline]
pub(crate) fn match_tag(line: &Line, tag: u16) -> u32 {
    // SAFETY: SSE2 belongs to every x86-64 processor, and this file is compiled for no other.
    unsafe { match_tag_vectors(line, tag) }
}

#[inline]
#[target_feature(enable = "sse2")]
fn match_tag_vectors(line: &Line, tag: u16) -> u32 {
    const HIGH_HALVES: i32 = 0b11_01_11_01;
    let words: *const __m128i = std::ptr::from_ref(line).cast();
    let load = |pair: usize| {
        // SAFETY: `pair` is below 4 (the calls below), so the pair of words lies inside the line.
        let place = unsafe { words.add(pair) };
        // SAFETY:
        // - 16 readable bytes, of any alignment: as above.
        // - no store races with it: all stores take `&mut Table`, which the borrow of `line`
        //   excludes.
        _mm_castsi128_ps(unsafe { _mm_loadu_si128(place) })
    };
    let low = _mm_castps_si128(_mm_shuffle_ps::<HIGH_HALVES>(load(0), load(1)));
    let high = _mm_castps_si128(_mm_shuffle_ps::<HIGH_HALVES>(load(2), load(3)));
    // Sign-extended, so that the signed pack keeps all sixteen bits.
    let tags = _mm_packs_epi32(_mm_srai_epi32::<16>(low), _mm_srai_epi32::<16>(high));
    let equal = _mm_cmpeq_epi16(tags, _mm_set1_epi16(tag.cast_signed()));
    let bits = _mm_movemask_epi8(_mm_packs_epi16(equal, _mm_setzero_si128()));
    bits.cast_unsigned() >> 1
}

//! The tags of a bucket, compared one by one.
//!
//! Upstream:   `bucket`, for readers, and for the owner where there are no vectors.
//! Downstream: nothing.

use crate::line::Line;
use crate::sync::Ordering;

/// The slots of `line` whose tag is `tag`: bit n for slot n. Cost: one cache line.
#[inline]
pub(crate) fn match_tag(line: &Line, tag: u16) -> u32 {
    line[1..].iter().enumerate().fold(0, |slots, (slot, word)| {
        slots | u32::from((word.load(Ordering::Relaxed) >> 48) as u16 == tag) << slot
    })
}

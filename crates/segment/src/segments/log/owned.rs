//! The list of a shard's own segments, and how far this second's search for expired ones has come.
//!
//! Upstream:   `log` enters and removes segments; `reclaimer` searches.
//! Downstream: `meta`, where each segment knows its place in the list.
//!
//! ```text
//! | examined in this pass  | not examined yet      |
//! 0                     passed                  length
//! ```
//!
//! Invariants:
//! - W1  The list names exactly the segments with this shard's items, each once, and each knows
//!   its place.
//! - W2  A pass examines each segment at most once, and misses none that stays in the list: a
//!   removal moves no segment across the border.

use crate::meta::{Metas, SLOT};

/// One shard's own segments.
#[derive(Debug)]
pub(crate) struct Owned {
    segments: Vec<u32>,
    passed: usize,
    /// The second whose pass is over.
    passed_in: Option<u32>,
}

impl Owned {
    /// An empty list with room for `segments`.
    pub(crate) fn with_capacity(segments: usize) -> Self {
        Self { segments: Vec::with_capacity(segments), passed: 0, passed_in: None }
    }

    /// The number of segments.
    pub(crate) const fn len(&self) -> usize {
        self.segments.len()
    }

    /// Adds a segment.
    pub(crate) fn push(&mut self, metas: &Metas, segment: u32) {
        metas.set(segment, SLOT, self.segments.len() as u32);
        self.segments.push(segment);
    }

    /// Whether the segment is in the list. The list decides, not the segment's line, because
    /// another shard may be writing that line (W1).
    pub(crate) fn contains(&self, metas: &Metas, segment: u32) -> bool {
        self.segments.get(metas.get(segment, SLOT) as usize) == Some(&segment)
    }

    /// Removes a segment; the last one on its side of the border fills the hole (W2).
    pub(crate) fn remove(&mut self, metas: &Metas, segment: u32) {
        let mut hole = metas.get(segment, SLOT) as usize;
        assert!(self.segments[hole] == segment, "W1");
        if hole < self.passed {
            // The last examined segment fills the hole. The hole is then at the border.
            self.passed -= 1;
            let moved = self.segments[self.passed];
            self.segments[hole] = moved;
            metas.set(moved, SLOT, hole as u32);
            hole = self.passed;
        }
        self.segments.swap_remove(hole);
        if let Some(&moved) = self.segments.get(hole) {
            metas.set(moved, SLOT, hole as u32);
        }
    }

    /// The next segment that the pass of second `now` examines; `None` once the pass is over.
    pub(crate) fn next_in_pass(&mut self, now: u32) -> Option<u32> {
        debug_assert!(self.passed <= self.segments.len(), "W2");
        if self.passed_in == Some(now) {
            return None;
        }
        let next = self.segments.get(self.passed).copied();
        if next.is_none() {
            (self.passed, self.passed_in) = (0, Some(now));
        }
        next
    }

    /// Notes that the segment of [`Self::next_in_pass`] was examined.
    pub(crate) const fn pass(&mut self) {
        debug_assert!(self.passed < self.segments.len(), "W2");
        self.passed += 1;
    }

    /// Begins a new pass, even if the pass of this second is over.
    pub(crate) const fn restart_pass(&mut self) {
        (self.passed, self.passed_in) = (0, None);
    }

    /// All segments, in no order.
    pub(crate) fn all(&self) -> &[u32] {
        &self.segments
    }
}

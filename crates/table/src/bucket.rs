//! A bucket: one cache line of the table, holding seven slots and a control word.
//!
//! Upstream:   `table` finds, `insert` fills and moves, `grow` splits and merges.
//! Downstream: `match_tag` compares tags; a slot's location names an item, which this crate never
//! reads.
//!
//! ```text
//! byte 0         8         16        24        32        40        48        56        64
//!      +---------+---------+---------+---------+---------+---------+---------+---------+
//!      | control | slot 0  | slot 1  | slot 2  | slot 3  | slot 4  | slot 5  | slot 6  |
//!      +---------+---------+---------+---------+---------+---------+---------+---------+
//! control:                    version:64
//! slot, low bits first:       location:44 | ahead:4 | tag:16
//! ```
//!
//! `ahead` holds bits of the half that led the key into this bucket: in a bucket of depth d, the
//! bits 4 * (d / 4) to 4 * (d / 4) + 3. These include bit d, which the next split needs.
//!
//! Invariants:
//! - I1  A bucket is exactly one aligned cache line (`line`, I1).
//! - I2  A slot is empty if and only if its word is 0; no location and no tag is 0.
//! - I3  Only the owner's thread stores, each slot with one release store: a reader that acquires a
//!   slot sees the item that it leads to.
//! - I4  The version grows before a slot is emptied by a move, a split or a merge, and after the
//!   copy is stored: a reader that misses and finds both of its buckets' versions, and the shape
//!   of the table, as they were when it began has not been deceived by a move.

use std::num::NonZero;

use crate::line::{Line, SLOTS_PER_BUCKET};
use crate::match_tag::{match_tag, match_tag_shared};
use crate::sync::Ordering;
use crate::tag::{Half, Location, Tag};

const AHEAD_SHIFT: u32 = Location::BITS;
const AHEAD_BITS: u32 = 4;
const TAG_SHIFT: u32 = AHEAD_SHIFT + AHEAD_BITS;

const _: () = assert!(TAG_SHIFT + u16::BITS == u64::BITS);

/// The word of an occupied slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry(NonZero<u64>);

impl Entry {
    #[inline]
    fn occupying(word: u64) -> Self {
        Self(NonZero::new(word).expect("I2: no location is 0"))
    }

    /// The entry of the key with `tag` whose `half` leads to a bucket of depth `depth`.
    #[inline]
    pub(crate) fn new(tag: Tag, half: Half, depth: u32, location: Location) -> Self {
        let ahead = u64::from(half.0 >> ahead_start(depth) & 0xf);
        Self::occupying(u64::from(tag.0) << TAG_SHIFT | ahead << AHEAD_SHIFT | location.get())
    }

    #[inline]
    pub(crate) fn tag(self) -> Tag {
        Tag((self.0.get() >> TAG_SHIFT) as u16)
    }

    #[inline]
    pub(crate) fn location(self) -> Location {
        Location::new(self.0.get() & ((1 << Location::BITS) - 1)) // I2
    }

    /// The entry of the same key with another location.
    #[inline]
    pub(crate) fn with_location(self, location: Location) -> Self {
        Self::occupying(self.0.get() & !((1 << Location::BITS) - 1) | location.get())
    }

    /// The half that led into bucket `bucket` of depth `depth`, as far as the entry knows it: the
    /// bits below [`known_bits`]. The other bits are 0.
    #[inline]
    pub(crate) fn half_known(self, bucket: u32, depth: u32) -> Half {
        let start = ahead_start(depth);
        let ahead = (self.0.get() >> AHEAD_SHIFT) as u32 & 0xf;
        Half(bucket & !(0xf << start) | ahead << start)
    }
}

/// The first bit that `ahead` keeps in a bucket of depth `depth`.
#[inline]
fn ahead_start(depth: u32) -> u32 {
    depth / AHEAD_BITS * AHEAD_BITS
}

/// How many low bits of a half an entry in a bucket of depth `depth` knows; more than `depth`.
#[inline]
pub(crate) fn known_bits(depth: u32) -> u32 {
    ahead_start(depth) + AHEAD_BITS
}

/// The slots of one bucket. A writer holds the table exclusively (I3).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket<'table>(pub(crate) &'table Line);

impl Bucket<'_> {
    /// The entry of slot `slot`, if it is occupied.
    #[inline]
    pub(crate) fn entry(self, slot: usize) -> Option<Entry> {
        let word = self.0[1 + slot].load(Ordering::Relaxed);
        NonZero::new(word).map(Entry)
    }

    /// The occupied slots and their entries.
    #[inline]
    pub(crate) fn entries(self) -> impl Iterator<Item = (usize, Entry)> {
        (0..SLOTS_PER_BUCKET).filter_map(move |slot| Some((slot, self.entry(slot)?)))
    }

    /// The slots with `tag`, in ascending order.
    #[inline]
    pub(crate) fn slots_with(self, tag: Tag) -> Slots {
        debug_assert_ne!(tag.0, 0, "I2");
        Slots(match_tag(self.0, tag.0))
    }

    /// The empty slots, in ascending order.
    #[inline]
    pub(crate) fn holes(self) -> Slots {
        Slots(match_tag(self.0, 0)) // I2
    }

    /// Any core: the slots in which `tag` was seen, in ascending order. The owner may have changed
    /// them since.
    ///
    /// The loads are relaxed, because most slots do not match. On processors other than x86, an
    /// acquiring load of each slot would delay the next load.
    #[inline]
    pub(crate) fn slots_seen_with(self, tag: Tag) -> Slots {
        debug_assert_ne!(tag.0, 0, "I2");
        Slots(match_tag_shared(self.0, tag.0))
    }

    /// Any core: the entry of a slot, with the item that it leads to (I3).
    #[inline]
    pub(crate) fn entry_seen(self, slot: usize) -> Option<Entry> {
        let word = self.0[1 + slot].load(Ordering::Acquire);
        NonZero::new(word).map(Entry)
    }

    /// Any core: the version. Moves before it are visible (I4).
    #[inline]
    pub(crate) fn version(self) -> u64 {
        self.0[0].load(Ordering::Acquire)
    }

    /// Stores `entry` in slot `slot` (I3).
    #[inline]
    pub(crate) fn put(self, slot: usize, entry: Entry) {
        self.0[1 + slot].store(entry.0.get(), Ordering::Release);
    }

    /// Empties slot `slot` of an item that is gone from the table.
    #[inline]
    pub(crate) fn clear(self, slot: usize) {
        debug_assert!(self.entry(slot).is_some());
        self.0[1 + slot].store(0, Ordering::Release);
    }

    /// Empties slot `slot` of an entry whose copy is stored elsewhere (I4).
    #[inline]
    pub(crate) fn clear_moved(self, slot: usize) {
        let version = self.0[0].load(Ordering::Relaxed);
        self.0[0].store(version.wrapping_add(1), Ordering::Release);
        self.clear(slot); // A release: a reader of the empty slot sees the version.
    }
}

/// Slot numbers as a set of bits; iterates in ascending order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slots(pub(crate) u32);

impl Slots {
    /// The number of slots in the set.
    #[inline]
    pub(crate) fn count(self) -> u32 {
        self.0.count_ones()
    }
}

impl Iterator for Slots {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let slot = self.0.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        Some(slot)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_moved_entry_shows_in_the_version_and_a_removed_one_does_not() {
        let line = Line::default();
        let bucket = Bucket(&line);
        let entry = Entry::new(Tag(9), Half(77), 6, Location::new(5));
        bucket.put(3, entry);
        bucket.put(6, entry);
        assert_eq!(bucket.holes().count(), 5);
        bucket.clear(3);
        assert_eq!(line[0].load(Ordering::Relaxed), 0);
        bucket.clear_moved(6);
        assert_eq!(line[0].load(Ordering::Relaxed), 1);
        assert_eq!(bucket.holes().count(), 7);
    }

    #[test]
    fn an_entry_gives_back_what_it_was_made_of() {
        for depth in 6..32 {
            let half = Half(0xb5d3_96a7);
            let location = Location::new((1 << 44) - 1);
            let entry = Entry::new(Tag(0xfedc), half, depth, location);
            assert_eq!((entry.tag(), entry.location()), (Tag(0xfedc), location));
            let bucket = half.0 & ((1_u64 << depth) - 1) as u32;
            let known = ((1_u64 << known_bits(depth)) - 1) as u32;
            assert!(known_bits(depth) > depth);
            assert_eq!(entry.half_known(bucket, depth), Half(half.0 & known));
            let elsewhere = entry.with_location(Location::new(7));
            assert_eq!(elsewhere, Entry::new(Tag(0xfedc), half, depth, Location::new(7)));
        }
    }
}

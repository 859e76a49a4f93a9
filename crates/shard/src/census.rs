//! A census: the living items of all shards, counted by size class or by size in one walk.
//!
//! Upstream:   `listing` walks the items and takes notes of each piece.
//! Downstream: `sizes`.
//!
//! A walk counts the items when a client asks, so that stores count nothing. It examines at most
//! `CENSUS_ITEMS_MAX` items, an equal part of them in each shard. If a shard has more items, those
//! that were not seen count as those that were.
//!
//! ```text
//! note:  class or step:4 | bytes of memory:4 | second of the last access:4    one for each item
//! ```
//!
//! Invariants:
//! - N1  In a shard that was walked to its end, each item that stayed where it was counts once.

use std::collections::BTreeMap;

/// The most items that one census examines. A guess: exporters wait a second for `stats items`, and
/// a build with all assertions takes 0.3 us for an item.
pub(crate) const CENSUS_ITEMS_MAX: u64 = 4 << 20;

/// Bytes of a note.
pub(crate) const NOTE_BYTES: usize = 12;

/// The counts of the items of one group: a size class, or a step of sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) items: u64,
    /// Bytes of memory that the items take.
    pub(crate) bytes: u64,
    /// The second of the last access of the item that was not accessed for the longest time.
    pub(crate) oldest: u32,
}

impl Group {
    fn add(&mut self, other: Self) {
        self.oldest = if self.items == 0 { other.oldest } else { self.oldest.min(other.oldest) };
        self.items += other.items;
        self.bytes += other.bytes;
    }

    /// This group as a part of `seen` items that stand for `all`.
    fn scaled(self, all: u64, seen: u64) -> Self {
        debug_assert!(seen > 0 && self.items <= seen, "a group is a part of what was seen");
        let scale = |part: u64| {
            u64::try_from(u128::from(part) * u128::from(all) / u128::from(seen)).unwrap_or(u64::MAX)
        };
        Self { items: scale(self.items), bytes: scale(self.bytes), ..self }
    }
}

/// The items that were counted so far.
#[derive(Debug, Default)]
pub(crate) struct Census {
    /// By class or step.
    groups: BTreeMap<u32, Group>,
    /// Those of the shard that is being walked.
    of_shard: BTreeMap<u32, Group>,
    /// Items of that shard that were examined, dead items included.
    examined: u64,
}

/// Takes a note of one item.
pub(crate) fn take_note(notes: &mut Vec<u8>, group: u32, memory_bytes: usize, last_access: u32) {
    let bytes = u32::try_from(memory_bytes).unwrap_or(u32::MAX);
    for word in [group, bytes, last_access] {
        notes.extend_from_slice(&word.to_le_bytes());
    }
}

impl Census {
    /// Counts the items of a piece, of which there are notes.
    pub(crate) fn add(&mut self, notes: &[u8], examined: u64) {
        debug_assert!(notes.len().is_multiple_of(NOTE_BYTES), "whole notes");
        self.examined += examined;
        for note in notes.chunks_exact(NOTE_BYTES) {
            let word = |at: usize| {
                u32::from_le_bytes([note[at], note[at + 1], note[at + 2], note[at + 3]])
            };
            let one = Group { items: 1, bytes: u64::from(word(4)), oldest: word(8) };
            self.of_shard.entry(word(0)).or_default().add(one);
        }
    }

    /// Whether enough items of this shard were examined, in a process of `shards` shards.
    pub(crate) fn is_enough(&self, shards: u16) -> bool {
        debug_assert!(shards > 0, "a process has a shard");
        self.examined >= CENSUS_ITEMS_MAX / u64::from(shards.max(1))
    }

    /// Ends the walk of a shard. If it was not walked to its end, it has `items` items.
    pub(crate) fn end_shard(&mut self, items: Option<u64>) {
        self.examined = 0;
        let of_shard = std::mem::take(&mut self.of_shard);
        let seen: u64 = of_shard.values().map(|group| group.items).sum();
        for (number, group) in of_shard {
            let group = items.map_or(group, |items| group.scaled(items.max(seen), seen)); // N1
            self.groups.entry(number).or_default().add(group);
        }
    }

    /// The items of a group.
    pub(crate) fn of(&self, group: u32) -> Group {
        self.groups.get(&group).copied().unwrap_or_default()
    }

    /// Takes the next group out, in ascending order.
    pub(crate) fn pop(&mut self) -> Option<(u32, Group)> {
        self.groups.pop_first()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_census_adds_the_items_of_all_shards() {
        let mut census = Census::default();
        let mut notes = Vec::new();
        take_note(&mut notes, 1, 24, 9);
        take_note(&mut notes, 7, 300, 5);
        take_note(&mut notes, 1, 32, 4);
        census.add(&notes, 10);
        census.end_shard(None);
        census.add(&notes[..NOTE_BYTES], 1);
        census.end_shard(None);
        assert_eq!(census.of(1), Group { items: 3, bytes: 80, oldest: 4 });
        assert_eq!(census.of(7), Group { items: 1, bytes: 300, oldest: 5 });
        assert_eq!(census.of(2), Group::default());
        assert_eq!(census.pop().map(|(group, _)| group), Some(1), "in order");
    }

    #[test]
    fn a_shard_that_was_not_walked_to_its_end_is_scaled_up() {
        let mut census = Census::default();
        let mut notes = Vec::new();
        take_note(&mut notes, 1, 24, 9);
        take_note(&mut notes, 2, 100, 9);
        take_note(&mut notes, 2, 100, 9);
        census.add(&notes, CENSUS_ITEMS_MAX / 2);
        assert!(census.is_enough(2) && !census.is_enough(1));
        census.end_shard(Some(3_000));
        assert_eq!(census.of(1).items, 1_000);
        assert_eq!(census.of(2), Group { items: 2_000, bytes: 200_000, oldest: 9 });
        assert!(!census.is_enough(2), "the next shard begins");
    }
}

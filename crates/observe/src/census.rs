//! A census: the living items of all engines, counted by size class or by size in one walk.
//!
//! Upstream:   `listing` walks the items and takes notes of each piece.
//! Downstream: `classes`.
//!
//! A walk counts the items when a client asks, so that stores count nothing. It examines at most
//! `CENSUS_ITEMS_MAX` items, an equal part of them in each engine. If an engine has more items,
//! those that were not seen count as those that were.
//!
//! A core has one census, which all its clients share: every listing of its kind that waits when
//! the walk begins is answered from it. A client that reads slowly goes on with a later census, so
//! no census is kept for it.
//!
//! ```text
//! note:  class or step:4 | bytes of memory:4 | second of the last access:4    one for each item
//! ```
//!
//! Invariants:
//! - N1  In an engine that was walked to its end, each item that stayed where it was counts once.
//! - N2  There are at most `GROUPS_MAX` groups. So a census takes at most `CENSUS_BYTES_MAX`.
//! - N3  A listing is answered only from a census that began after the listing.

use kachel_net::ConnectionIndex;

/// The steps of `stats sizes`. Longer items count in the last one.
pub const SIZE_STEPS_MAX: usize = 1 << 15;
/// The groups of a census: the steps, and one before the first. There are fewer size classes.
const GROUPS_MAX: usize = SIZE_STEPS_MAX + 1;
/// The most bytes of a census: the groups of all engines, and those of one, as the vectors grow.
pub const CENSUS_BYTES_MAX: usize = 2 * GROUPS_MAX * size_of::<Group>();

/// The most items that one census examines. A guess: exporters wait a second for `stats items`, and
/// a build with all assertions takes 0.3 us for an item.
pub(crate) const CENSUS_ITEMS_MAX: u64 = 4 << 20;

/// Bytes of a note.
pub const NOTE_BYTES: usize = 12;

/// The property by which a census counts items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Grouping {
    #[default]
    /// By size class.
    Classes,
    /// By steps of 32 bytes.
    Sizes,
}

/// The counts of the items of one group: a size class, or a step of sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// Living items.
    pub items: u64,
    /// Bytes of memory that the items take.
    pub bytes: u64,
    /// The second of the last access of the item that was not accessed for the longest time.
    pub oldest: u32,
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

/// Groups by their number.
#[derive(Debug, Default)]
struct Groups(Vec<Group>);

impl Groups {
    fn add(&mut self, number: usize, group: Group) {
        assert!(number < GROUPS_MAX, "N2");
        if number >= self.0.len() {
            self.0.reserve_exact(number + 1 - self.0.len());
            self.0.resize(number + 1, Group::default());
        }
        self.0[number].add(group);
    }

    const fn memory_bytes(&self) -> usize {
        self.0.capacity() * size_of::<Group>()
    }
}

/// A census of one core.
#[derive(Debug, Default)]
pub struct Census {
    /// How many were begun, this one included.
    number: u64,
    grouping: Grouping,
    /// The client whose listing walks the items, while the walk goes on.
    walker: Option<ConnectionIndex>,
    /// Whether all items were walked.
    is_whole: bool,
    /// By class or step.
    groups: Groups,
    /// Those of the engine that is being walked.
    of_engine: Groups,
    /// Items of that engine that were examined, dead items included.
    examined: u64,
}

/// Takes a note of one item.
pub fn take_note(notes: &mut Vec<u8>, group: u32, memory_bytes: usize, last_access: u32) {
    let bytes = u32::try_from(memory_bytes).unwrap_or(u32::MAX);
    for word in [group, bytes, last_access] {
        notes.extend_from_slice(&word.to_le_bytes());
    }
}

impl Census {
    /// Begins a census, which this client walks. What the last one counted is dropped.
    pub fn begin(&mut self, grouping: Grouping, walker: ConnectionIndex) {
        assert!(self.walker.is_none(), "one census at a time");
        *self = Self { number: self.number + 1, grouping, walker: Some(walker), ..Self::default() };
    }

    /// The number of the next census, which is the first that answers a listing of now (N3).
    pub const fn next_number(&self) -> u64 {
        self.number + 1
    }

    /// Whether a listing is answered from this census, which began with number `first` or a later
    /// one (N3).
    pub fn serves(&self, grouping: Grouping, first: u64) -> bool {
        debug_assert!(!self.is_whole || self.walker.is_none(), "nobody walks on");
        self.is_whole && self.grouping == grouping && self.number >= first
    }

    /// The client whose listing walks the items.
    pub const fn walker(&self) -> Option<ConnectionIndex> {
        self.walker
    }

    /// Notes that all items were walked.
    pub fn end(&mut self) {
        debug_assert!(self.walker.is_some(), "it was begun");
        (self.walker, self.is_whole, self.of_engine) = (None, true, Groups::default());
        assert!(self.memory_bytes() <= CENSUS_BYTES_MAX, "N2");
    }

    /// Drops all that was counted: nobody waits for it, or its walker has left.
    pub fn drop_all(&mut self) {
        *self = Self { number: self.number, ..Self::default() };
        debug_assert!(self.memory_bytes() == 0, "an unused census takes no memory");
    }

    /// Bytes of memory of the groups.
    pub const fn memory_bytes(&self) -> usize {
        self.groups.memory_bytes() + self.of_engine.memory_bytes()
    }

    /// Counts the items of a piece, of which there are notes.
    pub fn add(&mut self, notes: &[u8], examined: u64) {
        debug_assert!(notes.len().is_multiple_of(NOTE_BYTES), "whole notes");
        self.examined += examined;
        for note in notes.chunks_exact(NOTE_BYTES) {
            let word = |at: usize| {
                u32::from_le_bytes([note[at], note[at + 1], note[at + 2], note[at + 3]])
            };
            let one = Group { items: 1, bytes: u64::from(word(4)), oldest: word(8) };
            self.of_engine.add(word(0) as usize, one);
        }
    }

    /// Whether enough items of this engine were examined, in a process of `engines` engines.
    pub fn is_enough(&self, engines: u16) -> bool {
        debug_assert!(engines > 0, "a process has an engine");
        self.examined >= CENSUS_ITEMS_MAX / u64::from(engines.max(1))
    }

    /// Ends the walk of an engine. If it was not walked to its end, it has `items` items.
    pub fn end_engine(&mut self, items: Option<u64>) {
        self.examined = 0;
        let Self { groups, of_engine, .. } = self;
        let seen: u64 = of_engine.0.iter().map(|group| group.items).sum();
        for (number, group) in of_engine.0.drain(..).enumerate().filter(|(_, one)| one.items > 0) {
            let group = items.map_or(group, |items| group.scaled(items.max(seen), seen)); // N1
            groups.add(number, group);
        }
    }

    /// The items of a group.
    pub fn of(&self, group: u32) -> Group {
        self.groups.0.get(group as usize).copied().unwrap_or_default()
    }

    /// The groups from number `from` on that have items, with their numbers.
    pub fn groups(&self, from: u32) -> impl Iterator<Item = (u32, Group)> {
        let numbered = (0..).zip(&self.groups.0).skip(from as usize);
        numbered.filter(|(_, group)| group.items > 0).map(|(number, group)| (number, *group))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_census_adds_the_items_of_all_engines() {
        let mut census = Census::default();
        let mut notes = Vec::new();
        take_note(&mut notes, 1, 24, 9);
        take_note(&mut notes, 7, 300, 5);
        take_note(&mut notes, 1, 32, 4);
        census.add(&notes, 10);
        census.end_engine(None);
        census.add(&notes[..NOTE_BYTES], 1);
        census.end_engine(None);
        assert_eq!(census.of(1), Group { items: 3, bytes: 80, oldest: 4 });
        assert_eq!(census.of(7), Group { items: 1, bytes: 300, oldest: 5 });
        assert_eq!(census.of(2), Group::default());
        let groups: Vec<u32> = census.groups(0).map(|(group, _)| group).collect();
        assert_eq!(groups, [1, 7], "in order");
        assert_eq!(census.groups(2).count(), 1);
    }

    #[test]
    fn an_engine_that_was_not_walked_to_its_end_is_scaled_up() {
        let mut census = Census::default();
        let mut notes = Vec::new();
        take_note(&mut notes, 1, 24, 9);
        take_note(&mut notes, 2, 100, 9);
        take_note(&mut notes, 2, 100, 9);
        census.add(&notes, CENSUS_ITEMS_MAX / 2);
        assert!(census.is_enough(2) && !census.is_enough(1));
        census.end_engine(Some(3_000));
        assert_eq!(census.of(1).items, 1_000);
        assert_eq!(census.of(2), Group { items: 2_000, bytes: 200_000, oldest: 9 });
        assert!(!census.is_enough(2), "the next engine begins");
    }

    #[test]
    fn a_census_answers_the_listings_that_began_before_it() {
        let (walker, mut census) = (ConnectionIndex(3), Census::default());
        let first = census.next_number();
        census.begin(Grouping::Sizes, walker);
        let later = census.next_number();
        assert!(!census.serves(Grouping::Sizes, first), "it is not complete");
        let mut notes = Vec::new();
        take_note(&mut notes, u32::try_from(SIZE_STEPS_MAX).expect("few"), 24, 9);
        census.add(&notes, 1);
        census.end_engine(None);
        assert!(census.memory_bytes() <= CENSUS_BYTES_MAX, "N2");
        census.end();
        assert!(census.serves(Grouping::Sizes, first) && !census.serves(Grouping::Sizes, later));
        assert!(!census.serves(Grouping::Classes, first));
        census.begin(Grouping::Sizes, walker);
        assert_eq!(census.groups(0).count(), 0, "it counts anew");
        census.end();
        assert!(census.serves(Grouping::Sizes, first) && census.serves(Grouping::Sizes, later));
    }
}

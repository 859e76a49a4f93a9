//! Ghosts: keys evicted from probation not long ago. One that comes back goes to the main queue.
//!
//! Upstream:   `reclaim` adds what it evicts from probation, `append` asks for what it inserts.
//! Downstream: nothing.
//!
//! A table of fixed size: each key hash has one group of a cache line, 32 tags of 16 bits, newest
//! first. A group that is full forgets its oldest. Two keys may share group and tag (once in 2,000
//! asked), so an answer is a hint; it only decides where an item begins its life.
//!
//! Source: the ghost queue of S3-FIFO (SOSP 2023), there exact and with as many entries as the main
//! queue; here about one percent of memory.

/// Tags in a group: one cache line of them.
const GROUP_TAGS: usize = 32;

/// Bytes of a group.
pub(super) const GROUP_BYTES: usize = GROUP_TAGS * size_of::<u16>();

#[derive(Clone, Debug)]
#[repr(align(64))]
struct Group([u16; GROUP_TAGS]);

/// The table of ghosts. Tag 0 is no ghost.
#[derive(Debug)]
pub(super) struct Ghosts {
    groups: Vec<Group>,
}

impl Ghosts {
    /// A table of `groups` groups; with none, nothing is remembered.
    pub(super) fn new(groups: usize) -> Self {
        Self { groups: vec![Group([0; GROUP_TAGS]); groups] }
    }

    fn locate(&mut self, hash: u64) -> Option<(&mut [u16; GROUP_TAGS], u16)> {
        // The tag from the low bits, the group from the rest, scaled to any count without a
        // division.
        let index = (u128::from(hash >> 16) * self.groups.len() as u128) >> 48;
        let group = self.groups.get_mut(index as usize)?;
        Some((&mut group.0, (hash as u16).max(1)))
    }

    /// Remembers a key by its hash.
    pub(super) fn add(&mut self, hash: u64) {
        let Some((tags, tag)) = self.locate(hash) else { return };
        tags.copy_within(..GROUP_TAGS - 1, 1);
        tags[0] = tag;
    }

    /// Whether the key is remembered; it no longer is after that.
    pub(super) fn take(&mut self, hash: u64) -> bool {
        let Some((tags, tag)) = self.locate(hash) else { return false };
        let Some(place) = tags.iter().position(|&each| each == tag) else { return false };
        tags.copy_within(place + 1.., place);
        tags[GROUP_TAGS - 1] = 0;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_of_a_group_are_remembered_once() {
        let mut ghosts = Ghosts::new(1);
        for hash in 1..=40 {
            ghosts.add(hash);
        }
        let remembered: Vec<u64> = (1..=40).filter(|&hash| ghosts.take(hash)).collect();
        assert_eq!(remembered, (9..=40).collect::<Vec<_>>());
        assert!((1..=40).all(|hash| !ghosts.take(hash)));
    }

    #[test]
    fn the_largest_hash_finds_its_group_in_a_large_table() {
        let mut ghosts = Ghosts::new(1 << 17);
        ghosts.add(u64::MAX);
        assert!(ghosts.take(u64::MAX));
    }

    #[test]
    fn without_groups_nothing_is_remembered() {
        let mut ghosts = Ghosts::new(0);
        ghosts.add(7);
        assert!(!ghosts.take(7));
    }
}

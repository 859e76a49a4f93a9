//! Ghosts: keys that were evicted from probation recently. If such a key is stored again, the item
//! goes to the main queue.
//!
//! Upstream:   `job` adds the keys that it evicts from probation; `append` looks up the keys that
//!             it inserts.
//! Downstream: `kachel_host::Region` for memory.
//!
//! A table of fixed size: each key hash has one group of a cache line, 32 tags of 16 bits, newest
//! first. A group that is full forgets its oldest tag. Two keys may share group and tag (one lookup
//! in 2,000), so the result is a hint. It only decides in which queue an item begins.
//!
//! ```text
//! group:  word 0                    word 1              ..  word 7
//!         | tag 3 | 2 | 1 | tag 0 |  | tag 7 | .. | 4 |      | tag 31 | .. | tag 28 |
//!           high bits       newest                             oldest
//! ```
//!
//! Invariants:
//! - G1  A group that was never written has no ghosts: a region reads as zero, and tag 0 is no
//!   ghost. So the table takes no memory until keys are evicted.
//!
//! One shard reads and writes the table. The words are atomic only because a region has no others.
//!
//! Source: the ghost queue of S3-FIFO (SOSP 2023). That queue is exact and has as many entries as
//! the main queue; this table takes about one percent of memory.

use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use kachel_host::Region;

/// Bytes of a group: one cache line of 32 tags.
pub(crate) const GROUP_BYTES: usize = 64;

/// Bytes of the memory of a key that was evicted.
pub const GHOST_BYTES: usize = size_of::<u16>();

const GROUP_WORDS: usize = GROUP_BYTES / size_of::<u64>();
const TAG_BITS: u32 = u16::BITS;

/// A 1 in each tag of a word.
const ONES: u64 = 0x0001_0001_0001_0001;
/// The highest bit of each tag of a word.
const HIGHS: u64 = ONES << (TAG_BITS - 1);

/// After this many lookups, the counts of lookups are halved.
const LOOKUPS_MAX: u32 = 2048;
/// Keys return if at least this many of the recent lookups found their key. One of them finds
/// another key with the same tag, on average.
const FOUND_MIN: u32 = 8;

/// The table of ghosts. Tag 0 is no ghost.
#[derive(Debug)]
pub(crate) struct Ghosts {
    /// `None` if there are no groups.
    region: Option<Region>,
    groups: usize,
    /// Recent lookups, and those that found their key.
    lookups: u32,
    found: u32,
}

impl Ghosts {
    /// A table of `groups` groups. A table without groups remembers nothing.
    ///
    /// Cost: address space; a page is backed when a key is added (G1). Errors: of `mmap`.
    pub(crate) fn new(groups: usize) -> io::Result<Self> {
        let reserve = |groups| Region::reserve(groups * GROUP_BYTES, false, "keys evicted before");
        let region = (groups > 0).then(|| reserve(groups)).transpose()?;
        Ok(Self { region, groups, lookups: 0, found: 0 })
    }

    fn locate(&self, hash: u64) -> Option<(&[AtomicU64], u64)> {
        // The tag from the low bits, the group from the rest, scaled to any count without a
        // division.
        let index = (u128::from(hash >> TAG_BITS) * self.groups as u128) >> (u64::BITS - TAG_BITS);
        let start = index as usize * GROUP_WORDS;
        let group = &self.region.as_ref()?.words()[start..start + GROUP_WORDS];
        let tag = (hash as u16).max(1);
        Some((group, u64::from(tag)))
    }

    /// Remembers a key by its hash.
    pub(crate) fn add(&mut self, hash: u64) {
        let Some((group, tag)) = self.locate(hash) else { return };
        let mut newest = tag;
        for word in group {
            let tags = word.load(Relaxed);
            word.store(tags << TAG_BITS | newest, Relaxed);
            newest = tags >> (u64::BITS - TAG_BITS);
        }
    }

    /// Forgets a key. Returns whether it was remembered.
    pub(crate) fn take(&mut self, hash: u64) -> bool {
        let is_found = self.forget(hash);
        self.lookups += 1;
        self.found += u32::from(is_found);
        if self.lookups == LOOKUPS_MAX {
            self.lookups /= 2;
            self.found /= 2;
        }
        is_found
    }

    /// Whether keys return, so that `take` has not only found keys by chance.
    pub(crate) const fn do_keys_return(&self) -> bool {
        self.found >= FOUND_MIN
    }

    fn forget(&self, hash: u64) -> bool {
        let Some((group, tag)) = self.locate(hash) else { return false };
        for (at, word) in group.iter().enumerate() {
            // An equal tag is zero in `differences`. The lowest bit that is set in `equal` is
            // right; higher bits may be wrong.
            let differences = word.load(Relaxed) ^ (tag * ONES);
            let equal = differences.wrapping_sub(ONES) & !differences & HIGHS;
            if equal != 0 {
                close_gap(&group[at..], equal.trailing_zeros() / TAG_BITS * TAG_BITS);
                return true;
            }
        }
        false
    }
}

/// Removes the tag at `bit` of the first word, and moves all older tags up.
fn close_gap(words: &[AtomicU64], bit: u32) {
    debug_assert!(bit < u64::BITS && bit.is_multiple_of(TAG_BITS));
    let tags = words[0].load(Relaxed);
    let newer = (1 << bit) - 1;
    words[0].store(tags & newer | tags >> TAG_BITS & !newer, Relaxed);
    for pair in words.windows(2) {
        let (newer, older) = (pair[0].load(Relaxed), pair[1].load(Relaxed));
        pair[0].store(newer | older << (u64::BITS - TAG_BITS), Relaxed);
        pair[1].store(older >> TAG_BITS, Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn ghosts(groups: usize) -> Ghosts {
        Ghosts::new(groups).expect("address space")
    }

    #[test]
    fn the_newest_of_a_group_are_remembered_once() {
        let mut ghosts = ghosts(1);
        for hash in 1..=40 {
            ghosts.add(hash);
        }
        let remembered: Vec<u64> = (1..=40).filter(|&hash| ghosts.take(hash)).collect();
        assert_eq!(remembered, (9..=40).collect::<Vec<_>>());
        assert!((1..=40).all(|hash| !ghosts.take(hash)));
    }

    /// Compares a group with a list of tags, the newest first. There are few tags, so that equal
    /// tags meet. Some differ by one, so that a wrong borrow would show.
    #[test]
    fn a_group_is_a_list_of_tags() {
        let mut ghosts = ghosts(1);
        let mut list: Vec<u64> = Vec::new();
        let mut state = 1_u64;
        let mut found = 0;
        for _ in 0..100_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let tag = [1, 2, 3, 0x7fff, 0x8000, 0x8001, 0xfffe, 0xffff][(state >> 61) as usize]
                + (state >> 40) % 3 * 0x0100;
            let tag = tag & 0xffff | 1;
            if state >> 32 & 3 == 0 {
                ghosts.add(tag);
                list.insert(0, tag);
                list.truncate(32);
            } else {
                let place = list.iter().position(|&each| each == tag);
                assert_eq!(ghosts.take(tag), place.is_some());
                found += usize::from(place.map(|place| list.remove(place)).is_some());
            }
            let tags: Vec<u64> = (0..32).map(|at| tag_at(&ghosts, at)).collect();
            assert_eq!(tags[..list.len()], list);
            assert!(tags[list.len()..].iter().all(|&tag| tag == 0));
        }
        assert!(found > 10_000, "{found}");
    }

    fn tag_at(ghosts: &Ghosts, at: usize) -> u64 {
        let (group, _) = ghosts.locate(0).expect("a group");
        group[at / 4].load(Relaxed) >> (at % 4 * 16) & 0xffff
    }

    #[test]
    fn keys_return_if_more_are_found_than_by_chance() {
        let mut ghosts = ghosts(64);
        (0..100 * u64::from(LOOKUPS_MAX)).for_each(|key| {
            let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            ghosts.take(hash.rotate_left(32));
            ghosts.add(hash);
            assert!(!ghosts.do_keys_return(), "no key is looked up again");
        });
        (1..=u64::from(FOUND_MIN)).for_each(|hash| ghosts.add(hash << TAG_BITS | hash));
        assert!((1..=u64::from(FOUND_MIN)).all(|hash| ghosts.take(hash << TAG_BITS | hash)));
        assert!(ghosts.do_keys_return());
    }

    #[test]
    fn the_largest_hash_finds_its_group_in_a_large_table() {
        let mut ghosts = ghosts(1 << 17);
        ghosts.add(u64::MAX);
        assert!(ghosts.take(u64::MAX));
    }

    #[test]
    fn without_groups_nothing_is_remembered() {
        let mut ghosts = ghosts(0);
        ghosts.add(7);
        assert!(!ghosts.take(7));
    }
}

//! Requests by the prefix of their key, for `stats detail`.
//!
//! Upstream:   `sample` counts each request while counting is on.
//! Downstream: `listing` asks each core for its counts, and adds them up.
//!
//! Each core counts the requests that it executes in a table of its own, which no other core reads.
//! The prefix of a key ends before the first delimiter (`-D`). A key without a delimiter is not
//! counted.
//!
//! Invariants:
//! - P1  The tables of all cores together have at most `PREFIXES_MAX` prefixes, of 250 bytes at
//!   most. A core whose table is full counts no new prefix.

use std::collections::{BTreeMap, HashMap};

use kachel_engine::KEY_BYTES_MAX;

/// The most prefixes that a process counts: about 16 MiB.
const PREFIXES_MAX: usize = 1 << 16;

/// The counts of one prefix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PrefixCounts {
    pub(crate) gets: u64,
    pub(crate) hits: u64,
    pub(crate) sets: u64,
    pub(crate) deletes: u64,
}

impl PrefixCounts {
    const BYTES: usize = 4 * size_of::<u64>();

    pub(crate) const fn add(&mut self, other: Self) {
        self.gets += other.gets;
        self.hits += other.hits;
        self.sets += other.sets;
        self.deletes += other.deletes;
    }
}

/// The counts of one core.
#[derive(Debug, Default)]
pub(crate) struct Prefixes {
    /// The place of each prefix in `counts`.
    places: HashMap<Box<[u8]>, u32>,
    /// In the order in which the prefixes came, so that a listing can go on.
    counts: Vec<(Box<[u8]>, PrefixCounts)>,
    /// The number of resets that this core has noted.
    resets: u32,
}

impl Prefixes {
    /// Counts a request. `shards` is the number of cores (P1).
    pub(crate) fn count(&mut self, key: &[u8], delimiter: u8, what: PrefixCounts, shards: u16) {
        let Some(end) = key.iter().position(|&byte| byte == delimiter) else { return };
        let prefix = &key[..end];
        let place = match self.places.get(prefix) {
            Some(place) => *place as usize,
            None if self.counts.len() >= PREFIXES_MAX / usize::from(shards.max(1)) => return,
            None => {
                let place = self.counts.len();
                self.places.insert(prefix.into(), u32::try_from(place).expect("P1"));
                self.counts.push((prefix.into(), PrefixCounts::default()));
                place
            }
        };
        self.counts[place].1.add(what);
        debug_assert!(self.places.len() == self.counts.len(), "a place for each prefix");
    }

    /// Forgets all counts if there were more resets.
    pub(crate) fn note_resets(&mut self, resets: u32) {
        if self.resets != resets {
            *self = Self { resets, ..Self::default() };
        }
    }

    /// Writes the counts from place `from` on into `piece`, until it has `bytes_max` bytes or more.
    /// Returns where the next piece begins; `None` after the last prefix.
    pub(crate) fn write(
        &self,
        from: usize,
        piece: &mut Vec<u8>,
        bytes_max: usize,
    ) -> Option<usize> {
        let rest = self.counts.get(from..).unwrap_or_default();
        for (next, (prefix, counts)) in (from..).zip(rest) {
            if piece.len() >= bytes_max {
                return Some(next);
            }
            debug_assert!(prefix.len() <= KEY_BYTES_MAX, "P1");
            piece.push(prefix.len() as u8);
            piece.extend_from_slice(prefix);
            let PrefixCounts { gets, hits, sets, deletes } = *counts;
            for number in [gets, hits, sets, deletes] {
                piece.extend_from_slice(&number.to_le_bytes());
            }
        }
        None
    }
}

/// Adds the counts of a piece that [`Prefixes::write`] wrote.
pub(crate) fn read(mut piece: &[u8], sums: &mut BTreeMap<Vec<u8>, PrefixCounts>) {
    while let Some((&bytes, rest)) = piece.split_first() {
        let (prefix, rest) = rest.split_at(usize::from(bytes));
        let (numbers, rest) = rest.split_at(PrefixCounts::BYTES);
        let mut numbers = numbers
            .chunks_exact(size_of::<u64>())
            .map(|number| number.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte)));
        let mut next = || numbers.next().unwrap_or(0);
        let (gets, hits, sets, deletes) = (next(), next(), next(), next());
        debug_assert!(hits <= gets, "a hit is a get");
        let counts = PrefixCounts { gets, hits, sets, deletes };
        sums.entry(prefix.to_vec()).or_default().add(counts);
        piece = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GET: PrefixCounts = PrefixCounts { gets: 1, hits: 1, sets: 0, deletes: 0 };

    #[test]
    fn the_counts_of_all_cores_add_up_in_pieces() {
        let (mut one, mut other) = (Prefixes::default(), Prefixes::default());
        for number in 0..1_000 {
            one.count(format!("p{number}:x").as_bytes(), b':', GET, 2);
        }
        one.count(b"none", b':', GET, 2);
        other.count(b"p7:y", b':', PrefixCounts { sets: 300, ..PrefixCounts::default() }, 2);
        let mut sums = BTreeMap::new();
        for core in [&one, &other] {
            let mut from = Some(0);
            while let Some(at) = from {
                let mut piece = Vec::new();
                from = core.write(at, &mut piece, 500);
                assert!(piece.len() < 500 + 300, "a bounded piece");
                read(&piece, &mut sums);
            }
        }
        assert_eq!(sums.len(), 1_000);
        assert_eq!(sums[&b"p7"[..]], PrefixCounts { sets: 300, ..GET });
    }

    #[test]
    fn a_full_table_counts_no_new_prefix_until_it_is_reset() {
        let mut prefixes = Prefixes::default();
        for number in 0..PREFIXES_MAX {
            prefixes.count(format!("{number}:").as_bytes(), b':', GET, 2);
        }
        assert_eq!(prefixes.counts.len(), PREFIXES_MAX / 2, "P1");
        prefixes.count(b"0:", b':', GET, 2);
        assert_eq!(prefixes.counts[0].1.gets, 2);
        prefixes.note_resets(0);
        assert_eq!(prefixes.counts[0].1.gets, 2, "no reset");
        prefixes.note_resets(1);
        assert!(prefixes.counts.is_empty() && prefixes.places.is_empty());
    }
}

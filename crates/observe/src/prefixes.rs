//! Requests by the prefix of their key, for `stats detail`.
//!
//! Upstream:   `sample` counts each request while counting is on.
//! Downstream: `listing` asks each core for its next counts, and adds them up in a window.
//!
//! Each core counts the requests that it executes in a table of its own, which no other core reads.
//! The prefix of a key ends before the first delimiter (`-D`). A key without a delimiter is not
//! counted.
//!
//! A dump goes through the prefixes in order, a window at a time. In each round every core tells
//! its next prefixes, and the window adds them up. A core that has more than a piece holds ends the
//! window at the last one it told, because nobody knows its counts of the prefixes behind.
//!
//! ```text
//! core 0:  a b c d e | f ...      a piece is full: the window ends at `e`
//! core 1:  a . . d . . g          it has no more
//! window:  a b c d e              the next round begins behind `e`
//! ```
//!
//! Invariants:
//! - P1  The tables of all cores together have at most `PREFIXES_MAX` prefixes, of 250 bytes at
//!   most. A core whose table is full counts no new prefix.
//! - P2  The lines of a window, and the entries of a piece, have at most `WINDOW_BYTES_MAX` bytes.
//!   So a dump takes no more memory for more prefixes.
//! - P3  A window has every prefix up to its end, with the counts of all cores that were asked.

use std::collections::BTreeMap;
use std::ops::Bound;

use kachel_engine::KEY_BYTES_MAX;

/// The most prefixes that a process counts: at most 24 MiB, with all that a table adds to them.
const PREFIXES_MAX: usize = 1 << 16;
/// The most bytes of the lines of a window: a piece of a listing.
pub const WINDOW_BYTES_MAX: usize = 16 << 10;
/// Bytes of a line besides the prefix: the words, and four numbers of 20 digits.
const LINE_REST_BYTES_MAX: usize = 109;

/// The most bytes of the line of a prefix, also if each of its bytes is written as `%XX`.
const fn line_bytes_max(prefix: &[u8]) -> usize {
    3 * prefix.len() + LINE_REST_BYTES_MAX
}

const _: () = {
    assert!(3 * KEY_BYTES_MAX + LINE_REST_BYTES_MAX <= WINDOW_BYTES_MAX, "P2: a line fits");
    assert!(PrefixCounts::BYTES < LINE_REST_BYTES_MAX, "P2: an entry is no longer than a line");
};

/// The counts of one prefix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixCounts {
    /// Keys read.
    pub gets: u64,
    /// Keys read and found.
    pub hits: u64,
    /// Storage requests.
    pub sets: u64,
    /// Deletes.
    pub deletes: u64,
}

impl PrefixCounts {
    const BYTES: usize = 4 * size_of::<u64>();

    /// Adds the counts of another core.
    pub const fn add(&mut self, other: Self) {
        self.gets += other.gets;
        self.hits += other.hits;
        self.sets += other.sets;
        self.deletes += other.deletes;
    }
}

/// The counts of one core.
#[derive(Debug, Default)]
pub struct Prefixes {
    /// In the order in which a dump tells them.
    counts: BTreeMap<Box<[u8]>, PrefixCounts>,
    /// The number of resets that this core has noted.
    resets: u32,
}

impl Prefixes {
    /// Counts a request. `shards` is the number of cores (P1).
    pub fn count(&mut self, key: &[u8], delimiter: u8, what: PrefixCounts, shards: u16) {
        let Some(end) = key.iter().position(|&byte| byte == delimiter) else { return };
        let prefix = &key[..end];
        if let Some(counts) = self.counts.get_mut(prefix) {
            counts.add(what);
        } else if self.counts.len() < PREFIXES_MAX / usize::from(shards.max(1)) {
            self.counts.insert(prefix.into(), what);
        }
        debug_assert!(self.counts.len() <= PREFIXES_MAX, "P1");
    }

    /// Forgets all counts if there were more resets.
    pub fn note_resets(&mut self, resets: u32) {
        if self.resets != resets {
            *self = Self { resets, ..Self::default() };
        }
    }

    /// Writes the next counts into `piece`, those of `from` first if there are any (P2). Returns
    /// whether there are more.
    pub fn write(&self, from: &[u8], piece: &mut Vec<u8>) -> bool {
        let mut bytes = 0;
        let range = (Bound::Included(from), Bound::Unbounded);
        for (prefix, counts) in self.counts.range::<[u8], _>(range) {
            bytes += line_bytes_max(prefix);
            if bytes > WINDOW_BYTES_MAX {
                return true;
            }
            debug_assert!(prefix.len() <= KEY_BYTES_MAX, "P1");
            piece.push(prefix.len() as u8);
            piece.extend_from_slice(prefix);
            let PrefixCounts { gets, hits, sets, deletes } = *counts;
            for number in [gets, hits, sets, deletes] {
                piece.extend_from_slice(&number.to_le_bytes());
            }
        }
        debug_assert!(piece.len() <= WINDOW_BYTES_MAX, "P2");
        false
    }
}

/// The first entry of a piece that [`Prefixes::write`] wrote, and the others. `None` if there is no
/// entry.
fn read(piece: &[u8]) -> Option<(&[u8], PrefixCounts, &[u8])> {
    let (&bytes, rest) = piece.split_first()?;
    let (prefix, rest) = rest.split_at(usize::from(bytes));
    let (numbers, rest) = rest.split_at(PrefixCounts::BYTES);
    let mut numbers = numbers
        .chunks_exact(size_of::<u64>())
        .map(|number| number.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte)));
    let mut next = || numbers.next().unwrap_or(0);
    let (gets, hits, sets, deletes) = (next(), next(), next(), next());
    debug_assert!(hits <= gets, "a hit is a get");
    Some((prefix, PrefixCounts { gets, hits, sets, deletes }, rest))
}

/// The next prefixes of a dump, with the sums of all cores.
#[derive(Debug, Default)]
pub struct PrefixWindow {
    sums: BTreeMap<Vec<u8>, PrefixCounts>,
    /// The most bytes of their lines.
    bytes: usize,
    /// The end of the window (P3). `None` while no core has more prefixes than are here.
    end: Option<Vec<u8>>,
}

impl PrefixWindow {
    /// Adds a piece of a core. `is_cut` says that this core has more prefixes.
    pub fn add(&mut self, mut piece: &[u8], is_cut: bool) {
        debug_assert!(!is_cut || !piece.is_empty(), "P2: a piece has room for a prefix");
        let mut last: &[u8] = b"";
        while let Some((prefix, counts, rest)) = read(piece) {
            (last, piece) = (prefix, rest);
            if self.end.as_ref().is_some_and(|end| prefix > &end[..]) {
                break;
            }
            if let Some(sum) = self.sums.get_mut(prefix) {
                sum.add(counts);
            } else {
                self.bytes += line_bytes_max(prefix);
                self.sums.insert(prefix.to_vec(), counts);
            }
        }
        if is_cut && self.end.as_ref().is_none_or(|end| last < &end[..]) {
            self.end = Some(last.to_vec());
        }
        self.shrink();
    }

    /// Forgets what lies behind the end, and ends the window where it is full (P2).
    fn shrink(&mut self) {
        while let Some(last) = self.sums.last_entry() {
            let is_behind = self.end.as_ref().is_some_and(|end| last.key() > end);
            if !is_behind && self.bytes <= WINDOW_BYTES_MAX {
                break;
            }
            let (prefix, _) = last.remove_entry();
            self.bytes -= line_bytes_max(&prefix);
            if !is_behind {
                self.end = self.sums.last_key_value().map(|(prefix, _)| prefix.clone());
            }
        }
        debug_assert!(
            !self.sums.is_empty() || self.end.is_none(),
            "P3: a window that ends has one"
        );
        assert!(self.bytes <= WINDOW_BYTES_MAX, "P2");
    }

    /// The most bytes of the lines of the window.
    pub const fn line_bytes(&self) -> usize {
        self.bytes
    }

    /// Empties the window. Returns its counts, and the least prefix of the next window; `None` if
    /// this was the last one.
    pub fn take(&mut self) -> (BTreeMap<Vec<u8>, PrefixCounts>, Option<Vec<u8>>) {
        let Self { sums, end, .. } = std::mem::take(self);
        let next = end.map(|mut end| {
            end.push(0); // No prefix is between the two.
            end
        });
        (sums, next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GET: PrefixCounts = PrefixCounts { gets: 1, hits: 1, sets: 0, deletes: 0 };

    /// All that a dump of these cores tells, a window at a time.
    fn dump(cores: &[&Prefixes]) -> Vec<(Vec<u8>, PrefixCounts)> {
        let (mut told, mut from) = (Vec::new(), Some(Vec::new()));
        while let Some(next) = from {
            let mut window = PrefixWindow::default();
            for core in cores {
                let mut piece = Vec::new();
                let is_cut = core.write(&next, &mut piece);
                assert!(piece.len() <= WINDOW_BYTES_MAX, "P2");
                window.add(&piece, is_cut);
            }
            let (sums, after) = window.take();
            let bytes: usize = sums.keys().map(|prefix| line_bytes_max(prefix)).sum();
            assert!(bytes <= WINDOW_BYTES_MAX && (after.is_none() || !sums.is_empty()), "P2");
            told.extend(sums);
            from = after;
        }
        told
    }

    #[test]
    fn the_counts_of_all_cores_add_up_a_window_at_a_time() {
        let (mut one, mut two, mut three) = <(Prefixes, Prefixes, Prefixes)>::default();
        for number in 0..3_000 {
            let key = format!("{}p{number}:x", "long".repeat(number % 50));
            one.count(key.as_bytes(), b':', GET, 3);
            if number % 3 == 0 {
                two.count(key.as_bytes(), b':', PrefixCounts { sets: 300, ..GET }, 3);
            }
        }
        one.count(b"none", b':', GET, 3);
        for key in [&b":empty"[..], b"\xff:last", b"p7:again"] {
            three.count(key, b':', GET, 3);
        }
        let mut expected = BTreeMap::new();
        for (prefix, counts) in [&one, &two, &three].iter().flat_map(|core| &core.counts) {
            expected.entry(prefix.to_vec()).or_insert(PrefixCounts::default()).add(*counts);
        }
        let told = dump(&[&one, &two, &three]);
        assert_eq!(told, expected.into_iter().collect::<Vec<_>>());
        assert_eq!((told.len(), &told[0].0[..]), (3_003, &b""[..]));
        assert!(dump(&[&Prefixes::default(), &Prefixes::default()]).is_empty());
    }

    #[test]
    fn a_full_table_counts_no_new_prefix_until_it_is_reset() {
        let mut prefixes = Prefixes::default();
        for number in 0..PREFIXES_MAX {
            prefixes.count(format!("{number}:").as_bytes(), b':', GET, 2);
        }
        assert_eq!(prefixes.counts.len(), PREFIXES_MAX / 2, "P1");
        prefixes.count(b"0:", b':', GET, 2);
        assert_eq!(prefixes.counts[&b"0"[..]].gets, 2);
        prefixes.note_resets(0);
        assert_eq!(prefixes.counts[&b"0"[..]].gets, 2, "no reset");
        prefixes.note_resets(1);
        assert!(prefixes.counts.is_empty());
    }
}

//! What each prefix has, in fixed memory: its requests on a core, or its items in an engine.
//!
//! Upstream:   `Observers::note`, with each drawn request and each drawn item that was evicted; the
//!             walk over the items of an engine ([`PrefixTable::note_item`]).
//! Downstream: `by_prefix` copies the rows, and merges those of all cores and engines.
//!
//! ```text
//! bucket (by hash)   hash | weight   of 8 ways: two cache lines
//! row                numbers, missed, prefix: one cache line for a prefix that has its row
//!
//! weight = bytes + requests + evictions + missed
//! ```
//!
//! The prefix of a key ends with the first delimiter (`-D`), which is a part of it here: so the
//! prefix of `:x` is `:`. Keys without a delimiter have a row of their own.
//!
//! A prefix that is not in its bucket replaces the lightest one there, and inherits its weight as
//! `missed`: it may have had as much before. What the other one had is added to `others`. A prefix
//! that an option names is never replaced.
//!
//! Invariants:
//! - T1  The weight of a row is that of its numbers, and `missed`.
//! - T2  A prefix has at least the numbers of its row, and weighs at most as much as its row. A
//!   prefix without a row weighs at most as much as the lightest row of its bucket that may be
//!   replaced.
//! - T3  The numbers of all rows, of `none` and of `others` add up to all that was noted.
//! - T4  At least one row of a bucket may be replaced.
//!
//! Source: as `summary` (Space-Saving). Nothing is halved here: what clients ask for is how much a
//! prefix has, not how much it has had lately.

use std::ops::AddAssign;

use kachel_engine::{KEY_BYTES_MAX, KeyHasher};

use crate::observers::gate::DRAWN_EVERY;
use crate::observers::{NotedAccess, boxed};

/// Rows of a bucket.
pub(super) const WAYS: usize = 8;
/// Buckets of a table: a power of two.
///
/// Why 128: a bucket has a hundred-and-twenty-eighth of the small prefixes, so a prefix with a
/// hundredth of the weight has more than an eighth of the weight of its bucket, and stays. If there
/// are 200 prefixes, no bucket has more than eight in 99 of 100 processes, so all are counted
/// exactly; with 300 in nine of ten.
const BUCKETS: usize = 128;
/// Rows of a table.
pub(super) const ROWS: usize = BUCKETS * WAYS;
/// One of this many requests is noted, on average: every eighth one that is drawn. So is one of
/// this many items that are evicted.
///
/// Why 256: with every second drawn request, all observers together take 1.87 to 2.05 % more
/// instructions (the folder of the build decides), and they may take 2 %. Of a million requests,
/// the standard deviation of the estimate is 1.6 %.
pub const PREFIXES_NOTE_EVERY: u32 = DRAWN_PER_NOTED * DRAWN_EVERY;
/// Requests that are drawn for one that is noted.
const DRAWN_PER_NOTED: u32 = 8;
/// The most prefixes that an option may name.
pub const NAMED_PREFIXES_MAX: usize = 50;

/// The hash of a free row. A prefix that has it shares the row of the next hash.
const FREE: u64 = 0;

const _: () = assert!(BUCKETS.is_power_of_two() && KEY_BYTES_MAX <= u8::MAX as usize);

/// What a prefix has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixNumbers {
    /// Items.
    pub items: u64,
    /// Bytes of memory that the items take.
    pub bytes: u64,
    /// Keys read.
    pub gets: u64,
    /// Keys read and found.
    pub hits: u64,
    /// Items stored.
    pub sets: u64,
    /// Items evicted.
    pub evictions: u64,
}

impl PrefixNumbers {
    /// What a row with these numbers weighs. A table counts items or requests, never both.
    pub(super) const fn weight(&self) -> u64 {
        self.bytes + self.gets + self.sets + self.evictions
    }

    /// Each number `times` as large.
    pub(super) const fn times(self, times: u64) -> Self {
        let Self { items, bytes, gets, hits, sets, evictions } = self;
        Self {
            items: items * times,
            bytes: bytes * times,
            gets: gets * times,
            hits: hits * times,
            sets: sets * times,
            evictions: evictions * times,
        }
    }
}

impl AddAssign for PrefixNumbers {
    fn add_assign(&mut self, other: Self) {
        self.items += other.items;
        self.bytes += other.bytes;
        self.gets += other.gets;
        self.hits += other.hits;
        self.sets += other.sets;
        self.evictions += other.evictions;
    }
}

/// How the prefixes of a process are found in keys, and which of them an option names.
#[derive(Clone, Debug)]
pub struct PrefixNames {
    /// The byte that ends a prefix (`-D`).
    pub delimiter: u8,
    /// The prefixes that an option names, without their delimiters; at most
    /// [`NAMED_PREFIXES_MAX`].
    pub named: Box<[Box<[u8]>]>,
}

impl Default for PrefixNames {
    fn default() -> Self {
        Self { delimiter: b':', named: Box::default() }
    }
}

impl PrefixNames {
    /// The prefixes that an option names, with their delimiters and hashes.
    pub(super) fn hashed(&self, hasher: &KeyHasher) -> impl Iterator<Item = (Vec<u8>, u64)> {
        let with_delimiter = |name: &[u8]| [name, &[self.delimiter]].concat();
        self.named.iter().map(move |name| {
            let prefix = with_delimiter(name);
            let hash = hash_of(hasher, &prefix);
            (prefix, hash)
        })
    }
}

/// The hash of a prefix, which has its delimiter.
#[inline]
pub(super) fn hash_of(hasher: &KeyHasher, prefix: &[u8]) -> u64 {
    hasher.secret_hash(prefix).max(FREE + 1)
}

/// The part of a bucket that each note reads.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Bucket {
    hashes: [u64; WAYS],
    weights: [u64; WAYS],
}

/// What is known of a prefix.
#[derive(Clone, Copy, Debug)]
struct Row {
    numbers: PrefixNumbers,
    /// The most that the prefix may have weighed before (T2).
    missed: u64,
    prefix_bytes: u8,
    prefix: [u8; KEY_BYTES_MAX],
}

/// A row without its prefix.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RowNumbers {
    /// [`FREE`] for a row without a prefix.
    pub(super) hash: u64,
    pub(super) numbers: PrefixNumbers,
    /// The most that the prefix may have weighed besides (T2).
    pub(super) missed: u64,
    pub(super) is_named: bool,
}

impl RowNumbers {
    /// Whether it is the row of a prefix.
    pub(super) const fn is_used(&self) -> bool {
        self.hash != FREE
    }
}

/// A table of prefixes.
#[derive(Debug)]
pub struct PrefixTable {
    hasher: KeyHasher,
    delimiter: u8,
    /// Requests that are drawn before the next one that is noted.
    drawn_left: u32,
    buckets: Box<[Bucket; BUCKETS]>,
    rows: Box<[[Row; WAYS]; BUCKETS]>,
    /// How many of the first rows of each bucket an option names. They are never replaced (T4).
    named: Box<[u8; BUCKETS]>,
    /// Keys without a delimiter.
    none: PrefixNumbers,
    /// Prefixes that have lost their rows.
    others: PrefixNumbers,
}

impl PrefixTable {
    /// Bytes of memory of a table.
    pub(super) const BYTES: usize = size_of::<[Bucket; BUCKETS]>() + size_of::<[Row; ROWS]>();

    /// A table without a note. The prefixes that an option names have their rows already.
    pub(super) fn new(hasher: KeyHasher, names: &PrefixNames) -> Self {
        let bucket = Bucket { hashes: [FREE; WAYS], weights: [0; WAYS] };
        let row = Row {
            numbers: PrefixNumbers::default(),
            missed: 0,
            prefix_bytes: 0,
            prefix: [0; KEY_BYTES_MAX],
        };
        let mut table = Self {
            hasher,
            delimiter: names.delimiter,
            drawn_left: 0,
            buckets: boxed(bucket),
            rows: boxed([row; WAYS]),
            named: boxed(0),
            none: PrefixNumbers::default(),
            others: PrefixNumbers::default(),
        };
        debug_assert!(names.named.len() <= NAMED_PREFIXES_MAX, "the option is bounded");
        for (prefix, hash) in names.hashed(&hasher) {
            table.name(hash, &prefix);
        }
        table
    }

    /// Gives a named prefix its row. One with seven others in its bucket has none (T4), and counts
    /// as if no option named it: a chance of one in a million for fifty prefixes.
    fn name(&mut self, hash: u64, prefix: &[u8]) {
        let at = bucket_of(hash);
        let way = usize::from(self.named[at]);
        let is_new = !self.buckets[at].hashes.contains(&hash);
        if is_new && way < WAYS - 1 && prefix.len() <= KEY_BYTES_MAX {
            self.put(at, way, hash, prefix);
            self.named[at] += 1;
        }
    }

    /// The prefix of a key, with its delimiter. `None` if the key has no delimiter.
    #[inline]
    fn prefix_of<'k>(&self, key: &'k [u8]) -> Option<&'k [u8]> {
        let end = key.iter().position(|&byte| byte == self.delimiter)?;
        Some(&key[..=end])
    }

    /// Notes one of [`DRAWN_PER_NOTED`] requests that were drawn. Cost: a hash of the prefix, three
    /// cache lines.
    #[inline]
    pub(super) fn note_request(&mut self, key: &[u8], access: NotedAccess) {
        if self.drawn_left > 0 {
            self.drawn_left -= 1;
            return;
        }
        self.drawn_left = DRAWN_PER_NOTED - 1;
        let (gets, hits, sets) = match access {
            NotedAccess::Hit => (1, 1, 0),
            NotedAccess::Miss => (1, 0, 0),
            NotedAccess::Store => (0, 0, 1),
            NotedAccess::Change | NotedAccess::Delete => return,
        };
        self.add(key, PrefixNumbers { gets, hits, sets, ..PrefixNumbers::default() });
    }

    /// Notes reads that have found their item.
    pub(super) fn note_hits(&mut self, key: &[u8], reads: u64) {
        self.add(key, PrefixNumbers { gets: reads, hits: reads, ..PrefixNumbers::default() });
    }

    /// Notes an item that was evicted, and drawn.
    pub(super) fn note_evicted(&mut self, key: &[u8]) {
        self.add(key, PrefixNumbers { evictions: 1, ..PrefixNumbers::default() });
    }

    /// Notes an item that a walk has found, which takes `bytes` of memory.
    #[inline]
    pub fn note_item(&mut self, key: &[u8], bytes: u64) {
        self.add(key, PrefixNumbers { items: 1, bytes, ..PrefixNumbers::default() });
    }

    #[inline]
    fn add(&mut self, key: &[u8], numbers: PrefixNumbers) {
        match self.prefix_of(key) {
            Some(prefix) => self.add_to(prefix, numbers),
            None => self.none += numbers,
        }
    }

    #[inline]
    fn add_to(&mut self, prefix: &[u8], numbers: PrefixNumbers) {
        let hash = hash_of(&self.hasher, prefix);
        let at = bucket_of(hash);
        let way = match self.buckets[at].hashes.iter().position(|one| *one == hash) {
            Some(way) => way,
            None => self.replace(at, hash, prefix),
        };
        self.buckets[at].weights[way] += numbers.weight();
        let row = &mut self.rows[at][way];
        row.numbers += numbers;
        debug_assert!(
            self.buckets[at].weights[way] == row.numbers.weight() + row.missed,
            "T1: {row:?}"
        );
    }

    /// Gives the prefix the row of the lightest one of its bucket that no option names.
    fn replace(&mut self, at: usize, hash: u64, prefix: &[u8]) -> usize {
        let weights = &self.buckets[at].weights;
        let replaceable = usize::from(self.named[at])..WAYS;
        let way = replaceable.min_by_key(|way| weights[*way]).expect("T4");
        self.others += self.rows[at][way].numbers; // T3
        self.put(at, way, hash, prefix);
        way
    }

    /// Begins a row, which inherits the weight that is there.
    fn put(&mut self, at: usize, way: usize, hash: u64, prefix: &[u8]) {
        let Bucket { hashes, weights } = &mut self.buckets[at];
        hashes[way] = hash;
        let row = &mut self.rows[at][way];
        row.numbers = PrefixNumbers::default();
        row.missed = weights[way]; // T2
        row.prefix_bytes = prefix.len() as u8; // At most `KEY_BYTES_MAX`, as the key.
        row.prefix[..prefix.len()].copy_from_slice(prefix);
    }

    /// The numbers of all rows, those of a bucket after one another.
    pub(super) fn numbers(&self) -> Vec<RowNumbers> {
        let hashes = self.buckets.iter().flat_map(|bucket| bucket.hashes);
        let ways = self.named.iter().flat_map(|named| (0..WAYS).map(|way| way < (*named).into()));
        let rows = hashes.zip(ways).zip(self.rows.as_flattened());
        let numbers = |((hash, is_named), row): ((u64, bool), &Row)| {
            let Row { numbers, missed, .. } = *row;
            RowNumbers { hash, numbers, missed, is_named }
        };
        rows.map(numbers).collect()
    }

    /// The prefix with this hash, if it has a row.
    pub(super) fn prefix(&self, hash: u64) -> Option<&[u8]> {
        let at = bucket_of(hash);
        let way = self.buckets[at].hashes.iter().position(|one| *one == hash)?;
        let row = &self.rows[at][way];
        Some(&row.prefix[..row.prefix_bytes.into()])
    }

    /// What keys without a delimiter have.
    pub(super) const fn none(&self) -> PrefixNumbers {
        self.none
    }

    /// What prefixes have had that have lost their rows.
    pub(super) const fn others(&self) -> PrefixNumbers {
        self.others
    }
}

/// The bucket of a prefix with this hash.
pub(super) const fn bucket_of(hash: u64) -> usize {
    hash as usize % BUCKETS
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use kachel_engine::Seeds;

    use super::*;

    fn hasher() -> KeyHasher {
        KeyHasher::new(Seeds { hash_keys: [3, 4] }, 1)
    }

    fn table(named: &[&[u8]]) -> PrefixTable {
        let named = named.iter().map(|name| Box::from(*name)).collect();
        PrefixTable::new(hasher(), &PrefixNames { delimiter: b':', named })
    }

    /// All that a table has counted (T3).
    fn sum(table: &PrefixTable) -> PrefixNumbers {
        let mut sum = table.none();
        sum += table.others();
        table.numbers().iter().for_each(|row| sum += row.numbers);
        sum
    }

    fn row(table: &PrefixTable, prefix: &[u8]) -> Option<RowNumbers> {
        let hash = hash_of(&hasher(), prefix);
        table.numbers().into_iter().find(|row| row.hash == hash)
    }

    #[test]
    fn odd_keys_count_where_they_belong() {
        let mut table = table(&[]);
        let longest = [&[b'x'; KEY_BYTES_MAX - 1][..], b":"].concat();
        let keys: [&[u8]; 8] =
            [b":x", b"::", b"user:1", b"user:1:2", b"user:", b"\xff\xfe:1", &longest, b"none"];
        for key in keys {
            table.note_item(key, 10);
            for _ in 0..DRAWN_PER_NOTED {
                table.note_request(key, NotedAccess::Hit); // One of them is noted.
            }
        }
        for (prefix, items) in [(&b":"[..], 2), (b"user:", 3), (b"\xff\xfe:", 1), (&longest, 1)] {
            let row = row(&table, prefix).expect("a row");
            let wanted = PrefixNumbers {
                items,
                bytes: 10 * items,
                gets: items,
                hits: items,
                ..PrefixNumbers::default()
            };
            assert_eq!((row.numbers, row.missed), (wanted, 0), "{}", prefix.escape_ascii());
            assert_eq!(table.prefix(row.hash), Some(prefix));
        }
        assert_eq!((table.none().items, table.none().gets), (1, 1));
        assert_eq!(sum(&table).items, 8, "T3");
    }

    /// T1 to T3: prefixes of a scan, in a loop, and by a skewed law; some are heavy.
    #[test]
    fn bounds_hold_and_sums_are_exact_with_a_million_prefixes() {
        let any = |number: u64| hasher().secret_hash(&number.to_le_bytes());
        type Stream = fn(u64, u64) -> u64;
        let streams: [(&str, Stream); 3] = [
            ("a scan", |number, _| if number % 50 == 0 { 1 } else { number + 2 }),
            ("a loop", |number, _| number % 1_500),
            ("skewed", |_, random| (u64::MAX / (random | 1)).min(1 << 20)),
        ];
        for (name, stream) in streams {
            let (mut table, mut truth) = (table(&[]), HashMap::<u64, (u64, u64)>::new());
            let count = if name == "a scan" { 1_000_000 } else { 200_000 };
            for number in 0..count {
                let prefix = stream(number, any(number));
                let bytes = 20 + any(number) % 100;
                table.note_item(format!("{prefix}:{number}").as_bytes(), bytes);
                let of_prefix = truth.entry(prefix).or_default();
                *of_prefix = (of_prefix.0 + 1, of_prefix.1 + bytes);
            }
            let all: u64 = truth.values().map(|(_, bytes)| bytes).sum();
            let counted = sum(&table);
            assert_eq!((counted.items, counted.bytes), (count, all), "T3: {name}");
            let rows: HashMap<u64, RowNumbers> =
                table.numbers().into_iter().map(|row| (row.hash, row)).collect();
            assert!(rows.len() <= ROWS, "{name}");
            for (prefix, (items, bytes)) in truth {
                let hash = hash_of(&hasher(), format!("{prefix}:").as_bytes());
                let Some(row) = rows.get(&hash) else {
                    assert!(bytes < all / 100, "{name}: {prefix} has {bytes} of {all} and no row");
                    continue;
                };
                let counted = row.numbers.bytes;
                assert!((counted..=counted + row.missed).contains(&bytes), "T2: {name} {row:?}");
                assert!(row.numbers.items <= items, "T2: {name}");
                assert!(row.missed > 0 || row.numbers.items == items, "{name}: exact");
            }
        }
    }

    #[test]
    fn named_prefixes_keep_their_rows() {
        let long = [b'x'; KEY_BYTES_MAX];
        let mut table = table(&[b"rare", b"", b"rare", &long]);
        table.note_item(b"rare:1", 1);
        for number in 0..100_000 {
            table.note_item(format!("{number}:").as_bytes(), 1_000);
        }
        table.note_item(b"rare:2", 1);
        table.note_item(b":2", 1);
        for (prefix, items) in [(&b"rare:"[..], 2), (b":", 1)] {
            let row = row(&table, prefix).expect("a row");
            assert!(row.is_named && row.missed == 0 && row.numbers.items == items, "{row:?}");
        }
        assert_eq!(table.numbers().iter().filter(|row| row.is_named).count(), 2);
        // T4: of more than a table can name, each bucket has one row for others.
        let many: Vec<Vec<u8>> = (0..NAMED_PREFIXES_MAX as u64 * 100)
            .map(|number| format!("n{number}").into_bytes())
            .filter(|name| bucket_of(hash_of(&hasher(), &[&name[..], b":"].concat())) == 7)
            .collect();
        assert!((WAYS..=NAMED_PREFIXES_MAX).contains(&many.len()), "{}", many.len());
        let many: Vec<&[u8]> = many.iter().map(|name| &name[..]).collect();
        let mut table = self::table(&many);
        assert_eq!(table.numbers().iter().filter(|row| row.is_named).count(), WAYS - 1);
        many.iter().for_each(|name| table.note_item(&[name, &b":"[..]].concat(), 1));
        assert_eq!(sum(&table).items, many.len() as u64, "T3");
    }
}

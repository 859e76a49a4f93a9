//! What the prefixes of a process have: the tables of all cores and of all engines, merged.
//!
//! Upstream:   `Observers::prefixes`, on any thread.
//! Downstream: `stats prefixes` and the admin address.
//!
//! ```text
//! requests of a prefix   on any core     sum of the drawn ones, times how many each stands for
//! items of a prefix      in any engine   sum of the last walk over each engine
//! ```
//!
//! Invariants:
//! - B1  A number of a prefix differs from the true one by at most its error, except by a chance of
//!   one in a million: `DEVIATIONS` standard deviations of the sample, and what tables miss
//!   (`prefix_table`, T2). Items and bytes are those of the last walks, not of now.
//! - B2  What is listed, what others have and what keys without a delimiter have add up to all.

use kachel_engine::KeyHasher;
use kachel_wire::format::ShownKey;

use crate::observers::hottest::DEVIATIONS;
use crate::observers::prefix_table::{
    PrefixNames, PrefixNumbers, PrefixTable, RowNumbers, WAYS, bucket_of,
};

/// The most prefixes that are listed.
pub const PREFIXES_MAX: usize = 100;

/// What a prefix has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedPrefix {
    /// The hash by which the prefix is shown ([`kachel_engine::KeyHasher::shown_hash`]).
    pub shown_hash: u64,
    /// The prefix with its delimiter; `None` if it may not be shown.
    pub prefix: Option<Box<[u8]>>,
    /// Its numbers.
    pub numbers: PrefixNumbers,
    /// Their errors.
    pub errors: PrefixErrors,
}

impl ObservedPrefix {
    /// The prefix as people read it, or its hash.
    pub fn shown(&self) -> String {
        let hash = || format!("{:016x}", self.shown_hash);
        self.prefix.as_ref().map_or_else(hash, |prefix| ShownKey::of(prefix).legible())
    }
}

/// The most by which the numbers of a prefix differ from the true ones (B1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixErrors {
    /// Of its bytes at the time of the walks. If it is 0, the number of its items is exact, too;
    /// otherwise there may be more.
    pub bytes: u64,
    /// Of keys read.
    pub gets: u64,
    /// Of keys read and found.
    pub hits: u64,
    /// Of items stored.
    pub sets: u64,
    /// Of items evicted.
    pub evictions: u64,
}

/// What the prefixes of a process have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedPrefixes {
    /// The prefixes with the most bytes; the largest first.
    pub listed: Vec<ObservedPrefix>,
    /// All other prefixes.
    pub others: PrefixNumbers,
    /// Keys without a delimiter.
    pub none: PrefixNumbers,
    /// The prefixes that an option names, without their delimiters, in the order of the option.
    pub named: Vec<(Box<[u8]>, PrefixNumbers)>,
    /// How many seconds ago the walk over an engine has ended, of the engine for which that is
    /// longest. `None`: not all engines were walked over yet, so items are missing.
    pub walk_age_s: Option<u64>,
}

impl ObservedPrefixes {
    /// What all keys have (B2).
    pub fn all(&self) -> PrefixNumbers {
        let mut all = self.others;
        all += self.none;
        self.listed.iter().for_each(|one| all += one.numbers);
        all
    }

    /// The same with the first `count` prefixes; what the rest has is added to that of others.
    pub(super) fn first(&self, count: usize) -> Self {
        let (listed, rest) = self.listed.split_at(count.min(self.listed.len()));
        let mut others = self.others;
        rest.iter().for_each(|one| others += one.numbers);
        let first = Self { listed: listed.to_vec(), others, named: self.named.clone(), ..*self };
        debug_assert!(first.all() == self.all(), "B2");
        first
    }
}

/// The numbers of a table, which another thread may change meanwhile.
#[derive(Debug)]
pub(super) struct PrefixSource {
    rows: Vec<RowNumbers>,
    none: PrefixNumbers,
    others: PrefixNumbers,
    /// How many requests, or items, one of the table stands for.
    each_stands_for: u64,
}

impl PrefixSource {
    /// Copies the numbers of a table. Each of them stands for `each_stands_for` of its kind.
    pub(super) fn of(table: &PrefixTable, each_stands_for: u32) -> Self {
        let (none, others) = (table.none(), table.others());
        Self { rows: table.numbers(), none, others, each_stands_for: each_stands_for.into() }
    }

    /// What is known here of a prefix: without a row, only what it may have had.
    fn row(&self, hash: u64) -> RowNumbers {
        let first = bucket_of(hash) * WAYS;
        let bucket = &self.rows[first..first + WAYS];
        let weight = |row: &RowNumbers| row.numbers.weight() + row.missed;
        let missed = || bucket.iter().filter(|row| !row.is_named).map(weight).min().unwrap_or(0);
        let absent = || RowNumbers { hash, missed: missed(), ..RowNumbers::default() };
        bucket.iter().find(|row| row.hash == hash).copied().unwrap_or_else(absent)
    }
}

/// The errors of a prefix, as they are added up.
#[derive(Default)]
struct ErrorSum {
    missed_bytes: u64,
    missed: f64,
    /// Of gets, hits, sets and evictions.
    variances: [f64; 4],
}

impl ErrorSum {
    /// Adds those of a source of requests.
    fn add_requests(&mut self, source: &PrefixSource, row: &RowNumbers) {
        let each = source.each_stands_for as f64;
        let PrefixNumbers { gets, hits, sets, evictions, .. } = row.numbers;
        self.missed += each * row.missed as f64;
        for (variance, drawn) in self.variances.iter_mut().zip([gets, hits, sets, evictions]) {
            // As in `hottest`: the estimate of n has the variance n * (s - 1).
            *variance += each * each * (1.0 - 1.0 / each) * (drawn as f64 + 1.0);
        }
    }

    fn errors(&self) -> PrefixErrors {
        let error = |variance: f64| (self.missed + DEVIATIONS * variance.sqrt()).ceil() as u64;
        let [gets, hits, sets, evictions] = self.variances.map(error);
        PrefixErrors { bytes: self.missed_bytes, gets, hits, sets, evictions }
    }
}

/// The tables of a process.
#[derive(Debug)]
pub(super) struct PrefixSources {
    /// Of each core, and of what answers without one: requests.
    pub(super) requests: Vec<PrefixSource>,
    /// Of each engine: items.
    pub(super) items: Vec<PrefixSource>,
    /// [`ObservedPrefixes::walk_age_s`].
    pub(super) walk_age_s: Option<u64>,
}

impl PrefixSources {
    fn all(&self) -> impl Iterator<Item = &PrefixSource> {
        self.requests.iter().chain(&self.items)
    }

    /// What all tables have counted of something.
    fn sum(&self, of: impl Fn(&PrefixSource) -> PrefixNumbers) -> PrefixNumbers {
        let mut sum = PrefixNumbers::default();
        self.all().for_each(|source| sum += of(source).times(source.each_stands_for));
        sum
    }

    /// The numbers of all prefixes that have a row anywhere, by hash.
    fn rows(&self) -> Vec<(u64, PrefixNumbers)> {
        let of_source = |source: &'_ PrefixSource| {
            let each = source.each_stands_for;
            let used = source.rows.iter().filter(|row| row.is_used());
            used.map(move |row| (row.hash, row.numbers.times(each))).collect::<Vec<_>>()
        };
        let mut rows: Vec<_> = self.all().flat_map(of_source).collect();
        rows.sort_unstable_by_key(|(hash, _)| *hash);
        rows.dedup_by(|(hash, numbers), (first_hash, first)| {
            let is_same = hash == first_hash;
            if is_same {
                *first += *numbers;
            }
            is_same
        });
        rows
    }

    fn errors(&self, hash: u64) -> PrefixErrors {
        let mut sum = ErrorSum::default();
        for source in &self.requests {
            sum.add_requests(source, &source.row(hash));
        }
        sum.missed_bytes = self.items.iter().map(|source| source.row(hash).missed).sum();
        sum.errors()
    }

    /// Merges the tables, at most [`PREFIXES_MAX`] prefixes. `shown` completes what is known by the
    /// hash of a prefix.
    pub(super) fn merge(
        &self,
        (hasher, names): (&KeyHasher, &PrefixNames),
        shown: &dyn Fn(u64) -> (u64, Option<Box<[u8]>>),
    ) -> ObservedPrefixes {
        let mut rows = self.rows();
        let named = names.hashed(hasher).zip(&names.named).map(|((_, hash), name)| {
            let place = rows.binary_search_by_key(&hash, |(hash, _)| *hash);
            let numbers = place.map_or(PrefixNumbers::default(), |place| rows[place].1);
            (name.clone(), numbers)
        });
        let named = named.collect();
        rows.retain(|(_, numbers)| *numbers != PrefixNumbers::default());
        let order = |(hash, numbers): &(u64, PrefixNumbers)| {
            let PrefixNumbers { items, bytes, gets, sets, evictions, .. } = *numbers;
            std::cmp::Reverse((bytes, items, gets + sets + evictions, *hash))
        };
        rows.sort_unstable_by_key(order);
        let rest = rows.split_off(rows.len().min(PREFIXES_MAX));
        let mut others = self.sum(|source| source.others);
        rest.iter().for_each(|(_, numbers)| others += *numbers); // B2
        let listed = rows.into_iter().map(|(hash, numbers)| {
            let (shown_hash, prefix) = shown(hash);
            ObservedPrefix { shown_hash, prefix, numbers, errors: self.errors(hash) }
        });
        ObservedPrefixes {
            listed: listed.collect(),
            others,
            none: self.sum(|source| source.none),
            named,
            walk_age_s: self.walk_age_s,
        }
    }
}

//! The answer to `stats prefixes`.
//!
//! Upstream:   `topics`.
//! Downstream: the observers of the process.
//!
//! ```text
//! STAT prefixes on
//! STAT walk_age_s 7                 left out until all items were counted once
//! STAT all:items 120034             the same numbers of all keys together, of keys without a
//! STAT all:bytes 9601200            delimiter (`none`), and of the prefixes that are not listed
//! STAT all:gets 5550144             (`others`)
//! STAT all:hits ..
//! STAT all:sets ..
//! STAT all:evictions ..
//! STAT prefix:1:name user:
//! STAT prefix:1:items 70011
//! STAT prefix:1:bytes 5600880
//! STAT prefix:1:bytes_error 0       each item that stayed is counted once
//! STAT prefix:1:gets 1200032
//! STAT prefix:1:gets_error 30980    and hits, sets, evictions with theirs
//! ```
//!
//! Invariants:
//! - P1  An answer has at most `TEXT_BYTES_MAX`. Prefixes that do not fit are left out, and what
//!   they have is in `others`.

use kachel_engine::Engine;
use kachel_observe::{ObservedPrefix, ObservedPrefixes, PrefixErrors, PrefixNumbers};
use kachel_wire::Reply;

use crate::stats::topics::Answering;

/// The most bytes of the names and values of an answer (P1). A prefix of 20 bytes has about 330.
const TEXT_BYTES_MAX: usize = 40 << 10;
/// What to do while prefixes are not observed.
const OFF: &str = "Prefixes are not observed. Send \"observe prefixes on\", or start the server with \
                   --observe=prefixes.";

impl<E: Engine> Answering<'_, E> {
    /// Sends what prefixes have, at most `count` of them.
    pub(crate) fn observed_prefixes(&mut self, count: u32) {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let (shared, now_ns) = (&self.context.shared, self.context.now_ns());
        match shared.prefixes(count, now_ns) {
            None => {
                self.stat("prefixes", b"off");
                self.stat("advice", OFF.as_bytes());
            }
            Some(prefixes) => {
                self.stat("prefixes", b"on");
                let stats = prefix_stats(prefixes);
                stats.iter().for_each(|(name, value)| self.stat(name, value));
            }
        }
        self.reply(Reply::End);
    }
}

/// The names and values of an answer (P1).
fn prefix_stats(prefixes: ObservedPrefixes) -> Vec<(String, Vec<u8>)> {
    let all = prefixes.all();
    let ObservedPrefixes { listed, mut others, none, walk_age_s, .. } = prefixes;
    let (mut of_listed, mut bytes, mut is_full) = (Vec::new(), 0, false);
    for (place, prefix) in (1..).zip(&listed) {
        let stats = stats_of(place, prefix);
        bytes += stats.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
        is_full |= bytes > TEXT_BYTES_MAX;
        match is_full {
            true => others += prefix.numbers,
            false => of_listed.extend(stats),
        }
    }
    let age = walk_age_s.map(|age_s| ("walk_age_s".to_owned(), age_s.to_string().into_bytes()));
    let sums = [("all", all), ("none", none), ("others", others)];
    let sums = sums.iter().flat_map(|(name, numbers)| numbers_of(name, numbers));
    age.into_iter().chain(sums).chain(of_listed).collect()
}

/// The names and values of some numbers.
fn numbers_of(row: &str, numbers: &PrefixNumbers) -> [(String, Vec<u8>); 6] {
    let PrefixNumbers { items, bytes, gets, hits, sets, evictions } = numbers;
    [
        ("items", items),
        ("bytes", bytes),
        ("gets", gets),
        ("hits", hits),
        ("sets", sets),
        ("evictions", evictions),
    ]
    .map(|(name, number)| (format!("{row}:{name}"), number.to_string().into_bytes()))
}

/// The names and values of the prefix at a place of the list.
fn stats_of(place: usize, prefix: &ObservedPrefix) -> Vec<(String, Vec<u8>)> {
    let row = format!("prefix:{place}");
    let PrefixErrors { bytes, gets, hits, sets, evictions } = &prefix.errors;
    let errors = [None, Some(bytes), Some(gets), Some(hits), Some(sets), Some(evictions)];
    let mut stats = vec![(format!("{row}:name"), prefix.shown().into_bytes())];
    for ((name, number), error) in numbers_of(&row, &prefix.numbers).into_iter().zip(errors) {
        let error = error.map(|error| (format!("{name}_error"), error.to_string().into_bytes()));
        stats.push((name, number));
        stats.extend(error);
    }
    stats
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_bounded_and_its_sums_stay_exact() {
        let numbers = PrefixNumbers { items: 1, bytes: 10, ..PrefixNumbers::default() };
        let prefix = Some(vec![b' '; 250].into());
        let one = ObservedPrefix { shown_hash: 1, prefix, numbers, ..ObservedPrefix::default() };
        let listed = vec![one; 100];
        let stats = prefix_stats(ObservedPrefixes { listed, ..ObservedPrefixes::default() });
        let bytes: usize = stats.iter().map(|(name, value)| name.len() + value.len()).sum();
        assert!((TEXT_BYTES_MAX - 2_000..=TEXT_BYTES_MAX + 300).contains(&bytes), "P1: {bytes}");
        let of = |name: &str| {
            let (_, value) = stats.iter().find(|(each, _)| each == name).expect("it is there");
            str::from_utf8(value).expect("a number").parse::<u64>().expect("a number")
        };
        let listed = stats.iter().filter(|(name, _)| name.ends_with(":name")).count() as u64;
        assert!((20..100).contains(&listed), "{listed}");
        assert_eq!((of("all:items"), of("others:items")), (100, 100 - listed));
        assert_eq!(of("others:bytes"), 10 * of("others:items"));
    }
}

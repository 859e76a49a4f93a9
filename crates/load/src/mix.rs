//! The shares of the kinds of requests in a steady mix.
//!
//! Upstream:   `options` parses the ratio; `steady` chooses the kind of each request.
//! Downstream: none.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  A ratio has at least one part that is not 0.
//! - I2  A mix of gets and sets alone draws one number per request, as it did before there were
//!   other kinds, so a seed sends the same requests.

use std::str::FromStr;

use rand::Rng;
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::Serialize;

use crate::random::below;
use crate::request::Kind;

/// The most parts of one kind.
const PARTS_MAX: u32 = 1_000_000;

/// The kind of a request of the mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// Reads one or several keys.
    Get,
    /// Stores the value of a key.
    Set,
    /// Deletes a key.
    Delete,
    /// Adds 1 to the counter beside a key.
    Incr,
    /// Reads a key with its CAS token, then stores its value with that token: two requests.
    Cas,
    /// Stores a key that was not there before.
    Insert,
    /// Reads the items from a key on, in the order of their keys.
    Scan,
}

impl Verb {
    /// The kind under which its first request is counted.
    pub(crate) fn kind(self) -> Kind {
        match self {
            Self::Get | Self::Cas => Kind::Get,
            Self::Set | Self::Insert => Kind::Set,
            Self::Delete | Self::Incr => Kind::Other,
            Self::Scan => Kind::Scan,
        }
    }
}

/// The ratio of the kinds of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Ratio {
    /// Parts of gets.
    pub(crate) gets: u32,
    /// Parts of sets.
    pub(crate) sets: u32,
    /// Parts of deletes.
    pub(crate) deletes: u32,
    /// Parts of increments.
    pub(crate) incrs: u32,
    /// Parts of gets that a `cas` follows.
    pub(crate) cas: u32,
    /// Parts of sets of new keys.
    pub(crate) inserts: u32,
    /// Parts of scans.
    pub(crate) scans: u32,
}

impl Ratio {
    /// The kind of the next request, in a mix of gets and sets alone.
    #[inline]
    pub(crate) fn choose_plain(&self, random: &mut Xoshiro256PlusPlus) -> Verb {
        match (self.gets, self.sets) {
            (_, 0) => Verb::Get,
            (0, _) => Verb::Set,
            (gets, sets) if below(random.next_u64(), u64::from(gets + sets)) < u64::from(sets) => {
                Verb::Set // I2
            }
            _ => Verb::Get,
        }
    }

    /// The kind of the next request, in any other mix.
    pub(crate) fn choose_any(&self, random: &mut Xoshiro256PlusPlus) -> Verb {
        let parts = [
            (Verb::Get, self.gets),
            (Verb::Set, self.sets),
            (Verb::Delete, self.deletes),
            (Verb::Incr, self.incrs),
            (Verb::Cas, self.cas),
            (Verb::Insert, self.inserts),
            (Verb::Scan, self.scans),
        ];
        let total: u64 = parts.iter().map(|&(_, parts)| u64::from(parts)).sum();
        assert!(total > 0, "I1");
        let mut place = below(random.next_u64(), total);
        for (verb, parts) in parts {
            if place < u64::from(parts) {
                return verb;
            }
            place -= u64::from(parts);
        }
        unreachable!("I1: the place is below the sum")
    }

    /// Whether there are kinds beside gets and sets.
    #[inline]
    pub(crate) fn has_others(&self) -> bool {
        (self.deletes | self.incrs | self.cas | self.inserts | self.scans) != 0
    }
}

impl FromStr for Ratio {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "'{text}' is not a ratio GETS:SETS[:DELETES[:INCRS[:CAS[:INSERTS[:SCANS]]]]]; an \
                 example is 9:1"
            )
        };
        let part = |part: &str| part.parse::<u32>().ok().filter(|&part| part <= PARTS_MAX);
        let parts: Option<Vec<u32>> = text.split(':').map(part).collect();
        let mut parts = parts.filter(|parts| (2..=7).contains(&parts.len())).ok_or_else(wrong)?;
        parts.resize(7, 0);
        let [gets, sets, deletes, incrs, cas, inserts, scans] = parts[..] else {
            return Err(wrong());
        };
        if parts.iter().all(|&parts| parts == 0) {
            return Err("a ratio of 0:0 sends nothing".into()); // I1
        }
        Ok(Self { gets, sets, deletes, incrs, cas, inserts, scans })
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn every_kind_has_its_share() {
        let ratio: Ratio = "40:20:5:15:10:7:3".parse().expect("a ratio");
        let mut random = Xoshiro256PlusPlus::seed_from_u64(3);
        let mut seen = [0; 7];
        for _ in 0..100_000 {
            seen[ratio.choose_any(&mut random) as usize] += 1;
        }
        for (seen, percent) in seen.into_iter().zip([40, 20, 5, 15, 10, 7, 3]) {
            assert!((seen - percent * 1_000_i32).abs() < 700, "{seen} of {percent} %");
        }
    }

    #[test]
    fn a_mix_of_gets_and_sets_draws_as_it_did() {
        let ratio: Ratio = "3:1".parse().expect("a ratio");
        let mut random = Xoshiro256PlusPlus::seed_from_u64(9);
        let mut same = random.clone();
        for _ in 0..1_000 {
            let is_set = below(same.next_u64(), 4) < 1;
            assert_eq!(ratio.choose_plain(&mut random) == Verb::Set, is_set, "I2");
        }
        let only: Ratio = "1:0".parse().expect("a ratio");
        assert_eq!(only.choose_plain(&mut random), Verb::Get);
        assert_eq!(random, same, "I2: a single kind draws nothing");
    }

    #[test]
    fn ratios_are_read_and_refused() {
        let ratio: Ratio = "9:1:0:2".parse().expect("a ratio");
        assert_eq!(ratio, Ratio { gets: 9, sets: 1, incrs: 2, ..Ratio::default() });
        for text in ["", "9", "0:0", "0:0:0", "1:-1", "1:2000000", "1:1:1:1:1:1:1:1", "1:a"] {
            assert!(text.parse::<Ratio>().is_err(), "I1: {text}");
        }
    }
}

//! The value of each key after each set, and whether a reply may have it.
//!
//! Upstream:   `setter` begins and ends sets; `drive` judges the value in a reply.
//! Downstream: `keys`, for the bytes.
//!
//! Version 0 of a key is the value that `kachel-lab load` stores. Each set has the next version,
//! with other bytes. All sets are from one connection, so their order is known.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  The versions of a key that were answered are not more than those that were sent.

use crate::keys::{Keys, is_value, put_value};
use crate::random::mix;

/// The versions of one key.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    sent: u32,
    answered: u32,
    /// The last one that was stored.
    stored: u32,
}

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judged {
    Right,
    /// Of an older set than one that was stored before the get was sent.
    Stale,
    Wrong,
}

/// The versions of all keys.
#[derive(Debug)]
pub(crate) struct Versions {
    keys: Keys,
    /// By key number; empty if nothing is ever set.
    known: Vec<Known>,
}

impl Versions {
    /// All keys have version 0.
    pub(crate) fn new(keys: Keys, has_sets: bool) -> Self {
        let count = if has_sets { keys.count() as usize } else { 0 };
        Self { keys, known: vec![Known::default(); count] }
    }

    pub(crate) fn keys(&self) -> &Keys {
        &self.keys
    }

    /// The oldest version that a get of this key may return if it is sent now.
    #[inline]
    pub(crate) fn least(&self, number: u64) -> u32 {
        self.known.get(number as usize).map_or(0, |known| known.stored)
    }

    /// Appends the value of the next version.
    pub(crate) fn put_next(&mut self, number: u64, out: &mut Vec<u8>) {
        let known = &mut self.known[number as usize];
        known.sent += 1;
        let version = known.sent;
        let seed = self.keys.stream_seed(number);
        put_value(seed_of(seed, version), self.keys.value_bytes(seed), out);
    }

    /// The oldest set of this key that had no reply has one. A refused set changes nothing, so the
    /// value before it stays right.
    pub(crate) fn answer(&mut self, number: u64, is_stored: bool) {
        let known = &mut self.known[number as usize];
        known.answered += 1;
        assert!(known.answered <= known.sent, "I1");
        if is_stored {
            known.stored = known.answered;
        }
    }

    /// Judges the value in the reply to a get that was sent when `least` was the oldest version.
    #[inline]
    pub(crate) fn judge(&self, number: u64, least: u32, value: &[u8]) -> Judged {
        let seed = self.keys.stream_seed(number);
        if value.len() != self.keys.value_bytes(seed) {
            return Judged::Wrong;
        }
        let sent = self.known.get(number as usize).map_or(0, |known| known.sent);
        debug_assert!(least <= sent, "I1");
        let is_of = |version| is_value(seed_of(seed, version), value);
        match () {
            () if (least..=sent).any(is_of) => Judged::Right,
            () if (0..least).any(is_of) => Judged::Stale,
            () => Judged::Wrong,
        }
    }
}

#[inline]
fn seed_of(seed: u64, version: u32) -> u64 {
    match version {
        0 => seed,
        version => mix(seed ^ u64::from(version)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Sizes;

    #[test]
    fn a_value_is_judged_by_what_was_stored_before_its_get() {
        let keys = Keys::new(10, Sizes::Fixed(4), Sizes::Fixed(20), 1).expect("valid");
        let mut versions = Versions::new(keys, true);
        let mut values = vec![Vec::new()];
        let seed = versions.keys().stream_seed(7);
        put_value(seed, 20, &mut values[0]);
        let early = versions.least(7);
        for _ in 0..2 {
            let mut value = Vec::new();
            versions.put_next(7, &mut value);
            values.push(value);
        }
        versions.answer(7, true);
        let late = versions.least(7);
        assert_eq!((early, late, versions.least(6)), (0, 1, 0));
        versions.answer(7, false);
        assert_eq!(versions.least(7), 1, "the second was refused");
        for (version, value) in values.iter().enumerate() {
            assert_eq!(versions.judge(7, early, value), Judged::Right);
            let judged = if version == 0 { Judged::Stale } else { Judged::Right };
            assert_eq!(versions.judge(7, late, value), judged, "version {version}");
            assert_eq!(versions.judge(6, 0, value), Judged::Wrong, "of another key");
            assert_eq!(versions.judge(7, 0, &value[..19]), Judged::Wrong);
        }
    }

    #[test]
    fn without_sets_only_the_first_value_is_right() {
        let keys = Keys::new(10, Sizes::Fixed(4), Sizes::Fixed(3), 1).expect("valid");
        let versions = Versions::new(keys, false);
        let mut value = Vec::new();
        put_value(versions.keys().stream_seed(3), 3, &mut value);
        assert_eq!(versions.judge(3, versions.least(3), &value), Judged::Right);
        value[2] ^= 1;
        assert_eq!(versions.judge(3, 0, &value), Judged::Wrong);
    }
}

//! Where the item of a key probably is, as a first look at one bucket showed it.
//!
//! Upstream:   `table` for the owner, `reader` for other cores. The caller keeps the guesses of a
//!             batch from the step that makes them to the lookups.
//! Downstream: `bucket`, for the entry that was seen.

use crate::bucket::Entry;
use crate::tag::{Half, KeyHash, Location};

/// One of the two buckets of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketChoice {
    /// The one that is searched first.
    First,
    /// The other one.
    Second,
}

impl BucketChoice {
    /// The half of the hash that leads to this bucket.
    #[inline]
    pub(crate) fn half(self, hash: KeyHash) -> Half {
        let first = hash.first();
        match self {
            Self::First => first,
            Self::Second => first.other(hash.tag()),
        }
    }
}

/// A slot whose tag matched that of a key, and its content then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guess {
    bucket: u32,
    slot: u32,
    entry: Entry,
}

impl Guess {
    #[inline]
    pub(crate) fn new(bucket: u32, slot: usize, entry: Entry) -> Self {
        Self { bucket, slot: slot as u32, entry }
    }

    #[inline]
    pub(crate) const fn bucket(self) -> u32 {
        self.bucket
    }

    #[inline]
    pub(crate) const fn slot(self) -> usize {
        self.slot as usize
    }

    /// The location in the slot.
    #[inline]
    pub fn location(self) -> Location {
        self.entry.location()
    }

    /// The location, if the slot still has the same entry.
    #[inline]
    pub(crate) fn confirmed_by(self, entry: Option<Entry>) -> Option<Location> {
        (entry == Some(self.entry)).then(|| self.entry.location())
    }
}

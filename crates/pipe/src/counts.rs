//! The counts of the program: packets by their result.
//!
//! Upstream:   the program counts, each core in its own words.
//! Downstream: `stats`.

use std::ops::Add;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use kachel_host::SharedWords;

use crate::layout::{ANSWERING, COUNTS_WORDS, ITEMS};

/// The results of the program, in the order of `enum count` in `bpf/layout.h`.
const NAMES: [&str; 13] = [
    "answered",
    "passed_other",
    "passed_not_serving",
    "passed_not_answerable",
    "passed_wrong_checksum",
    "passed_not_known",
    "passed_key_not_plain",
    "passed_miss",
    "passed_changing",
    "passed_dead",
    "passed_too_large",
    "passed_no_room",
    "dropped",
];

const _: () = assert!(NAMES.len() <= ITEMS && ITEMS < ANSWERING && ANSWERING < COUNTS_WORDS);

/// Packets that were answered, or passed on to the kernel, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PipeCounts([u64; NAMES.len()]);

impl Add for PipeCounts {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(sum, count)| *sum += count);
        self
    }
}

impl PipeCounts {
    /// The counts of each core, in the order of the kernel's numbers of cores.
    pub(crate) fn read(words: &SharedWords) -> impl Iterator<Item = Self> {
        assert!(words.len().is_multiple_of(COUNTS_WORDS), "whole cores");
        words.chunks(COUNTS_WORDS).map(|core| {
            let mut counts = Self::default();
            counts.0.iter_mut().zip(core).for_each(|(count, word)| *count = word.load(Relaxed));
            counts
        })
    }

    /// How many items all cores have answered with.
    pub(crate) fn items_answered(words: &SharedWords) -> u64 {
        words.chunks(COUNTS_WORDS).map(|core| core[ITEMS].load(Relaxed)).sum()
    }

    /// Whether a run of the program is about to answer on any core.
    pub(crate) fn is_any_answering(words: &SharedWords) -> bool {
        words.chunks(COUNTS_WORDS).any(|core| core[ANSWERING].load(SeqCst) != 0)
    }

    /// Packets that were answered.
    pub const fn answered(&self) -> u64 {
        self.0[0]
    }

    /// Packets that were passed on, for any reason.
    pub fn all_passed(&self) -> u64 {
        let is_passed = |(name, _): &(&'static str, u64)| name.starts_with("passed_");
        self.named().filter(is_passed).map(|(_, count)| count).sum()
    }

    /// Packets that were passed on for the reason whose name in `stats pipe` is `passed_` and
    /// `reason`.
    ///
    /// Panics: if there is no such reason.
    pub fn passed(&self, reason: &str) -> u64 {
        let is_it = |name: &&str| name.strip_prefix("passed_") == Some(reason);
        self.0[NAMES.iter().position(is_it).expect("a reason")]
    }

    /// All counts, with their names in `stats pipe`.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        NAMES.into_iter().zip(self.0)
    }
}

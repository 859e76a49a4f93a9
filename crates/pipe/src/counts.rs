//! The counts of the program: packets by their result.
//!
//! Upstream:   the program counts, each core in its lane.
//! Downstream: `stats`.

use std::sync::atomic::Ordering::Relaxed;

use kachel_host::SharedWords;

use crate::layout::COUNTS_WORDS;

/// The results of the program, in the order of `enum count` in `bpf/layout.h`.
const NAMES: [&str; 12] = [
    "kachel_pipe_answered",
    "kachel_pipe_passed_other",
    "kachel_pipe_passed_not_serving",
    "kachel_pipe_passed_not_answerable",
    "kachel_pipe_passed_wrong_checksum",
    "kachel_pipe_passed_not_known",
    "kachel_pipe_passed_key_not_plain",
    "kachel_pipe_passed_miss",
    "kachel_pipe_passed_changing",
    "kachel_pipe_passed_dead",
    "kachel_pipe_passed_too_large",
    "kachel_pipe_passed_no_room",
];

/// Packets that were answered, or passed on to the kernel, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PipeCounts([u64; NAMES.len()]);

impl PipeCounts {
    /// The sums over all lanes.
    pub(crate) fn read(words: &SharedWords) -> Self {
        assert!(words.len().is_multiple_of(COUNTS_WORDS), "whole lanes");
        let mut sums = Self::default();
        for lane in words.chunks(COUNTS_WORDS) {
            for (sum, word) in sums.0.iter_mut().zip(lane) {
                *sum += word.load(Relaxed);
            }
        }
        sums
    }

    /// Packets that were answered.
    pub const fn answered(&self) -> u64 {
        self.0[0]
    }

    /// Packets that were passed on for the reason whose name in `stats` is `kachel_pipe_passed_`
    /// and `reason`.
    ///
    /// Panics: if there is no such reason.
    pub fn passed(&self, reason: &str) -> u64 {
        let is_it = |name: &&str| name.strip_prefix("kachel_pipe_passed_") == Some(reason);
        self.0[NAMES.iter().position(is_it).expect("a reason")]
    }

    /// All counts, with their names in `stats`.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        NAMES.into_iter().zip(self.0)
    }
}

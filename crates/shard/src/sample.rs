//! Requests that are counted in more detail: by size class, and by the prefix of their key.
//!
//! Upstream:   `apply` and `beside` ask for each request whether it is in the sample.
//! Downstream: `by_class` and `prefixes`.
//!
//! The first requests of each tick are counted by class. While `stats detail` is on, all requests
//! are in the sample, and are counted by prefix as well.

use std::cell::RefMut;

use kachel_engine::{Operation, Verb, Verdict};

use crate::by_class::{CLASSED_PER_TICK_MAX, Found};
use crate::context::Context;
use crate::prefixes::{PrefixCounts, Prefixes};

impl Context {
    /// Begins the sample of a tick. Cost: a load and a store.
    pub(crate) fn begin_sample(&self) {
        let is_detailed = self.shared.is_detailed();
        self.sampled_left.set(if is_detailed { u32::MAX } else { CLASSED_PER_TICK_MAX });
    }

    /// The counts by prefix of this core since the last `stats reset`.
    pub(crate) fn prefixes(&self) -> RefMut<'_, Prefixes> {
        let mut prefixes = self.prefixes.borrow_mut();
        prefixes.note_resets(self.shared.resets());
        prefixes
    }

    /// Whether a request is in the sample. Cost: a load, for a request that is not.
    #[inline]
    pub(crate) fn samples(&self) -> bool {
        let left = self.sampled_left.get();
        let is_in = left > 0;
        if is_in {
            self.sampled_left.set(left - 1);
        }
        is_in
    }

    /// Counts a retrieval of a key. `value_bytes` are those of the value that was found, if any.
    #[cold]
    pub(crate) fn sample_read(
        &self,
        key: &[u8],
        touches: bool,
        verdict: &Verdict,
        value_bytes: Option<usize>,
    ) {
        debug_assert!(!key.is_empty(), "a key has bytes");
        let mut hits = 0;
        if let Verdict::Hit(facts) = verdict {
            let (value_bytes, client_flags) = (value_bytes.unwrap_or(0), facts.client_flags);
            let found = Found { key, value_bytes, client_flags };
            self.counters.by_class.note_hit(touches, found, &self.sizes);
            hits = 1;
        }
        self.count_prefix(key, PrefixCounts { gets: 1, hits, ..NONE });
    }

    /// Counts an operation. `value_bytes` are those of the value in its outcome, if it has one, and
    /// `class_before` is the class of its item before a change.
    #[cold]
    pub(crate) fn sample_operation(
        &self,
        operation: &Operation<'_>,
        verdict: &Verdict,
        value_bytes: Option<usize>,
        class_before: u8,
    ) {
        let by_class = &self.counters.by_class;
        by_class.note(operation, verdict, value_bytes, class_before, &self.sizes);
        let is_hit = matches!(verdict, Verdict::Hit(_));
        let what = match operation.verb {
            Verb::Get(_) => PrefixCounts { gets: 1, hits: u64::from(is_hit), ..NONE },
            Verb::Store(_) => PrefixCounts { sets: 1, ..NONE },
            Verb::Delete(_) => PrefixCounts { deletes: 1, ..NONE },
            Verb::Arithmetic(_) | Verb::Touch(_) | Verb::Inspect => return,
        };
        debug_assert!(is_hit <= (what.gets == 1), "only a read has a hit");
        self.count_prefix(operation.key.bytes(), what);
    }

    fn count_prefix(&self, key: &[u8], what: PrefixCounts) {
        if self.shared.is_detailed() {
            let delimiter = self.shared.options.prefix_delimiter;
            self.prefixes().count(key, delimiter, what, self.shards());
        }
    }
}

const NONE: PrefixCounts = PrefixCounts { gets: 0, hits: 0, sets: 0, deletes: 0 };

//! Requests that are counted in more detail: by size class, and by the prefix of their key.
//!
//! Upstream:   `apply` and `beside` ask for each request whether it is in the sample.
//! Downstream: `by_class`, `prefixes` and `logging`.
//!
//! The first requests of each tick are counted by class. While `stats detail` is on, all requests
//! are in the sample, and are counted by prefix as well. While a client watches the log, all
//! requests are in the sample, and write their lines. So a request that is in no sample pays one
//! load for all of this.

use std::cell::RefMut;

use kachel_engine::{Engine, Operation, StoreTerms, Verb, Verdict};
use kachel_observe::{
    CLASSED_PER_TICK_MAX, Found, ItemBefore, PrefixCounts, Prefixes, look_before, tells_no_lengths,
};

use crate::context::Context;
use crate::request::logging::Logged;
use crate::request::reply::ReplySink;

impl Context {
    /// Begins the sample of a tick. Cost: a few loads and a store.
    pub(crate) fn begin_sample(&self) {
        let is_watched = self.log.follow(&self.shared.watchers, || self.unix_us());
        let is_all = is_watched || self.shared.is_detailed();
        self.sampled_left.set(if is_all { u32::MAX } else { CLASSED_PER_TICK_MAX });
    }

    /// The counts by prefix of this core since the last `stats reset`.
    pub(crate) fn prefixes(&self) -> RefMut<'_, Prefixes> {
        let mut prefixes = self.prefixes.borrow_mut();
        prefixes.note_resets(self.shared.totals.resets());
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

    /// The item of a request in the sample before the request is executed, if its class or the log
    /// depends on it.
    #[cold]
    pub(crate) fn look_before<E: Engine>(
        &self,
        engine: &mut E,
        operation: &Operation<'_>,
    ) -> ItemBefore {
        debug_assert!(!operation.key.bytes().is_empty(), "a key has bytes");
        if !(tells_no_lengths(&operation.verb) || self.log.is_on()) {
            return ItemBefore::default();
        }
        look_before(engine, &operation.key, &self.sizes, &self.now())
    }

    /// Counts and logs a retrieval of a key. `value_bytes` are those of the value that was found,
    /// if any.
    #[cold]
    pub(crate) fn sample_read(
        &self,
        key: &[u8],
        touches: bool,
        verdict: &Verdict,
        value_bytes: Option<usize>,
        sink: &impl ReplySink,
    ) {
        if self.log.is_on() {
            // The hashes are computed again, so that a request that is in no sample need not keep
            // them.
            let operation = Operation::get(self.hasher.key(key));
            let descriptor = sink.descriptor(&self.log);
            self.log_operation(Logged {
                operation: &operation,
                verdict,
                value_bytes,
                before: ItemBefore::default(),
                is_meta: false,
                descriptor,
            });
        }
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

    /// Counts and logs an operation.
    #[cold]
    pub(crate) fn sample_operation(&self, mut logged: Logged<'_>, sink: &impl ReplySink) {
        let Logged { operation, verdict, value_bytes, before, .. } = logged;
        if self.log.is_on() {
            logged.descriptor = sink.descriptor(&self.log);
            self.log_operation(logged);
        }
        let class_before = if tells_no_lengths(&operation.verb) { before.class } else { 0 };
        let by_class = &self.counters.by_class;
        by_class.note(operation, verdict, value_bytes, class_before, &self.sizes);
        if let (Verb::Store(terms), Verdict::Stored { .. }) = (&operation.verb, verdict) {
            self.note_stored(terms);
        }
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

    /// Notes the length and the life of a stored item. An item that is dead at once has no life.
    fn note_stored(&self, terms: &StoreTerms) {
        self.counters.stored_bytes.note(terms.value_bytes as u64);
        let now = self.now();
        let expiry = now.expiry(terms.ttl);
        if expiry > now.second {
            self.counters.stored_ttl_s.note(u64::from(expiry - now.second));
        }
    }

    /// Counts a storage request whose value was refused before the engine saw it. As in memcached,
    /// it is a set of its prefix.
    #[cold]
    pub(crate) fn sample_refused(&self, key: &[u8]) {
        debug_assert!(!key.is_empty(), "a key has bytes");
        self.count_prefix(key, PrefixCounts { sets: 1, ..NONE });
    }

    fn count_prefix(&self, key: &[u8], what: PrefixCounts) {
        if self.shared.is_detailed() {
            let delimiter = self.shared.options.plain.prefix_delimiter;
            self.prefixes().count(key, delimiter, what, self.cores());
        }
    }
}

const NONE: PrefixCounts = PrefixCounts { gets: 0, hits: 0, sets: 0, deletes: 0 };

//! Requests that are counted in more detail: by size class, by the prefix of their key, and by
//! observers.
//!
//! Upstream:   `apply` and `beside` ask for each request whether it is in the sample.
//! Downstream: `by_class`, `prefixes`, `logging` and the observers.
//!
//! The first requests of each tick are counted by class. While `stats detail` is on, all requests
//! are in the sample, and are counted by prefix as well. While a client watches the log, all
//! requests are in the sample, and write their lines. While observers are on, the requests that
//! they note are in the sample (`kachel_observe::SampleGate`). So a request that is in no sample
//! pays one load for all of this.

use std::cell::RefMut;

use kachel_engine::{
    Engine, Key, Operation, SampledEvent, SampledRequest, StoreTerms, Verb, Verdict,
};
use kachel_observe::{
    Found, ItemBefore, Noted, NotedAccess, PrefixCounts, Prefixes, look_before, tells_no_lengths,
};

use crate::context::Context;
use crate::request::logging::Logged;
use crate::request::reply::ReplySink;

impl Context {
    /// Begins the sample of a tick. Cost: a few loads and a store.
    pub(crate) fn begin_sample(&self) {
        let is_watched = self.log.follow(&self.shared.watchers, || self.unix_us());
        let is_all = is_watched || self.shared.is_detailed();
        let observers = &self.shared.observers;
        self.gate.begin(is_all, observers.on(), || {
            observers.picked_to(&mut self.picked.borrow_mut(), &self.counters)
        });
    }

    /// The counts by prefix of this core since the last `stats reset`.
    pub(crate) fn prefixes(&self) -> RefMut<'_, Prefixes> {
        let mut prefixes = self.prefixes.borrow_mut();
        prefixes.note_resets(self.shared.totals.resets());
        prefixes
    }

    /// Whether a request for this key is in the sample. Cost: a load, for a request that is not,
    /// while no observer is on.
    #[inline(always)]
    pub(crate) fn samples(&self, key: &Key<'_>) -> bool {
        self.gate.samples(key.secret_hash())
    }

    /// The item of a request in the sample before the request is executed, if it is counted by
    /// class and its class or the log depends on the item.
    #[cold]
    pub(crate) fn look_before<E: Engine>(
        &self,
        engine: &mut E,
        operation: &Operation<'_>,
    ) -> ItemBefore {
        debug_assert!(!operation.key.bytes().is_empty(), "a key has bytes");
        let depends = tells_no_lengths(&operation.verb) || self.log.is_on();
        if !(depends && self.gate.is_classing()) {
            return ItemBefore::default();
        }
        look_before(engine, &operation.key, &self.sizes, &self.now())
    }

    /// Counts, logs and notes a retrieval of a key in the sample. `value_bytes` are those of the
    /// value that was found, if any.
    #[cold]
    pub(crate) fn sample_read(
        &self,
        key: &Key<'_>,
        touches: bool,
        verdict: &Verdict,
        value_bytes: Option<usize>,
        sink: &impl ReplySink,
    ) {
        // Both calls are the last ones here, and not inlined: most requests that observers note are
        // not classed, and so save no registers.
        match self.gate.is_classed() {
            true => self.class_read(key, touches, verdict, value_bytes, sink),
            false => self.observe_read(key, touches, verdict, value_bytes),
        }
    }

    /// Has the observers note a retrieval of a key.
    #[inline(never)]
    fn observe_read(
        &self,
        key: &Key<'_>,
        touches: bool,
        verdict: &Verdict,
        value_bytes: Option<usize>,
    ) {
        let is_hit = matches!(verdict, Verdict::Hit(_));
        let access = if is_hit { NotedAccess::Hit } else { NotedAccess::Miss };
        let value_bytes = value_bytes.unwrap_or(0);
        self.observe(key, access, value_bytes, || read_event(is_hit, touches));
    }

    /// Counts a retrieval by class and by prefix, logs it, and has the observers note it.
    #[inline(never)]
    fn class_read(
        &self,
        key: &Key<'_>,
        touches: bool,
        verdict: &Verdict,
        value_bytes: Option<usize>,
        sink: &impl ReplySink,
    ) {
        if self.log.is_on() {
            let descriptor = sink.descriptor(&self.log);
            self.log_operation(Logged {
                operation: &Operation::get(*key),
                verdict,
                value_bytes,
                before: ItemBefore::default(),
                is_meta: false,
                descriptor,
            });
        }
        let mut hits = 0;
        if let Verdict::Hit(facts) = verdict {
            let (value_bytes, client_flags) = (value_bytes.unwrap_or(0), facts.client_flags);
            let found = Found { key: key.bytes(), value_bytes, client_flags };
            self.counters.by_class.note_hit(touches, found, &self.sizes);
            hits = 1;
        }
        self.count_prefix(key.bytes(), PrefixCounts { gets: 1, hits, ..NONE });
        if self.gate.notes(key.secret_hash()) {
            self.observe_read(key, touches, verdict, value_bytes);
        }
    }

    /// Counts, logs and notes an operation in the sample.
    #[cold]
    pub(crate) fn sample_operation(&self, logged: Logged<'_>, sink: &impl ReplySink) {
        if self.gate.is_classed() {
            self.class_operation(logged, sink);
        }
        if self.gate.notes(logged.operation.key.secret_hash()) {
            self.observe_operation(&logged);
        }
    }

    /// Has the observers note an operation.
    #[inline(never)]
    fn observe_operation(&self, logged: &Logged<'_>) {
        let Logged { operation: Operation { key, verb }, verdict, value_bytes, .. } = logged;
        let (access, value_bytes) = match (verb, verdict) {
            (Verb::Inspect, _) => return,
            (Verb::Get(_), Verdict::Hit(facts)) if !facts.created => {
                (NotedAccess::Hit, value_bytes.unwrap_or(facts.value_bytes))
            }
            (Verb::Get(_), _) => (NotedAccess::Miss, 0),
            (Verb::Store(_), Verdict::Stored { value_bytes, .. }) => {
                (NotedAccess::Store, *value_bytes)
            }
            (Verb::Delete(_), _) => (NotedAccess::Delete, 0),
            _ => (NotedAccess::Change, 0),
        };
        self.observe(key, access, value_bytes, || self.event_of(verb, access, verdict));
    }

    /// What an operation means for a model of misses, and the expiry that it has set.
    fn event_of(
        &self,
        verb: &Verb,
        access: NotedAccess,
        verdict: &Verdict,
    ) -> Option<(SampledEvent, Option<u32>)> {
        match (access, verb) {
            (NotedAccess::Hit | NotedAccess::Miss, Verb::Get(terms)) => {
                read_event(access == NotedAccess::Hit, terms.life.touches())
            }
            (NotedAccess::Store, Verb::Store(terms)) => {
                Some((SampledEvent::Stored, Some(self.now().expiry(terms.ttl))))
            }
            (NotedAccess::Delete, _) => Some((SampledEvent::Removed, None)),
            (_, Verb::Touch(ttl)) if *verdict == Verdict::Touched => {
                Some((SampledEvent::Touched, Some(self.now().expiry(*ttl))))
            }
            _ => None,
        }
    }

    /// Has the observers note a request, and the value that it has read or stored. `event` is what
    /// it means for a model of misses.
    #[inline(always)]
    fn observe(
        &self,
        key: &Key<'_>,
        access: NotedAccess,
        value_bytes: usize,
        event: impl FnOnce() -> Option<(SampledEvent, Option<u32>)>,
    ) {
        let secret_hash = key.secret_hash();
        let Some(noting) = self.gate.noting(secret_hash) else { return };
        if noting.is_picked
            && let Some((event, expiry)) = event()
        {
            self.observe_picked(key, value_bytes, event, expiry);
        }
        if noting.is_drawn {
            let noted = Noted { key: key.bytes(), secret_hash, access, value_bytes };
            let observers = &self.shared.observers;
            observers.note(self.core.number(), &noted, noting, self.now_ns(), &self.counters);
        }
    }

    /// Has the miss-ratio curve note a request for a picked key.
    #[inline(never)]
    fn observe_picked(
        &self,
        key: &Key<'_>,
        value_bytes: usize,
        event: SampledEvent,
        expiry: Option<u32>,
    ) {
        debug_assert!(expiry.is_none() || event != SampledEvent::Hit, "a plain read sets none");
        let request = SampledRequest {
            secret_hash: key.secret_hash(),
            event,
            key_bytes: u8::try_from(key.bytes().len()).unwrap_or(u8::MAX),
            value_bytes: u32::try_from(value_bytes).unwrap_or(u32::MAX),
            expiry,
        };
        let mut picked = self.picked.borrow_mut();
        if picked.add(self.hasher.owner(key.hashes()), request) {
            let moment = self.shared.moment(self.now().second);
            self.shared.observers.pass_on(self.core.number(), &mut picked, &moment);
        }
    }

    /// Counts an operation by class and by prefix, and logs it.
    fn class_operation(&self, mut logged: Logged<'_>, sink: &impl ReplySink) {
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

/// What a read means for a model of misses. Reads that touch are not counted.
const fn read_event(is_hit: bool, touches: bool) -> Option<(SampledEvent, Option<u32>)> {
    match (is_hit, touches) {
        (true, false) => Some((SampledEvent::Hit, None)),
        (false, false) => Some((SampledEvent::Miss, None)),
        (true, true) => Some((SampledEvent::Touched, None)),
        (false, true) => None,
    }
}

const NONE: PrefixCounts = PrefixCounts { gets: 0, hits: 0, sets: 0, deletes: 0 };

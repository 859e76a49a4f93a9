//! The observers: parts that note a sample of the requests, to say what the server is used for.
//!
//! Upstream:   `shard` begins a sample in each tick, and notes the requests in it.
//! Downstream: any thread asks what was noted: `stats`, the admin address.
//!
//! ```text
//!            a load for each request         1 of 32, or by hash
//! requests ---------------------------> gate ---------------------> state of this core
//!                                                                     |     |     |
//!                                         any thread, when asked: merged, of all cores
//! ```
//!
//! Each core has a state of its own, behind a mutex. The core only tries to take it, once for each
//! noted request, and so never waits: a request that finds it taken is not noted. Other threads
//! hold it while they copy numbers, and no core's state is locked while they wait for another one.
//!
//! Invariants:
//! - O1  A core notes only requests that it has executed, and each of them once.
//! - O2  Noting a request allocates nothing. Hot keys allocate when they are switched on for the
//!   first time, and keep their memory. The curve and the prefixes allocate each time that they are
//!   switched on, and free their memory when they are switched off. A turn of a client has at most
//!   one such command. A walk over an engine allocates a table.
//! - O3  A core never waits for its own state.

use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use kachel_engine::{EngineIndex, KeyHasher};
use kachel_stdx::CachePadded;
use kachel_wire::ObserverSet;

use crate::counters::Counters;

mod advice;
mod curve;
mod gate;
mod hot_keys;
mod hottest;
mod summary;
mod by_prefix;
mod prefix_walks;
mod prefix_table;
mod last_merged;

pub use advice::{
    CURVE_ERROR_MAX, CURVE_KEYS_MIN, CURVE_SAMPLES_MIN, CurvePoint, CurveState, MissCurve,
};
pub use by_prefix::{ObservedPrefix, ObservedPrefixes, PREFIXES_MAX, PrefixErrors};
pub use curve::{CURVE_BYTES_PER_ENGINE, MakeMissModel, Moment, Picked};
pub use gate::{DRAWN_EVERY, Noting, SampleGate};
pub use hot_keys::HOT_KEYS_BYTES_PER_CORE;
pub use hottest::{HOTTEST_MAX, HotKey, HotLists, HotRate, HottestKeys};
pub use prefix_table::{
    NAMED_PREFIXES_MAX, PREFIXES_NOTE_EVERY, PrefixNames, PrefixNumbers, PrefixTable,
};

use by_prefix::{PrefixSource, PrefixSources};
use curve::{BATCH, Curves};
use hot_keys::HotKeys;
use hottest::{Source, merge};
use last_merged::LastMerged;
use prefix_walks::PrefixWalks;

/// The most bytes of memory that prefixes take for each core.
pub const PREFIXES_BYTES_PER_CORE: usize = PrefixTable::BYTES;
/// The most bytes of memory that prefixes take for each engine: the table of the last walk, and one
/// that is being filled.
pub const PREFIXES_BYTES_PER_ENGINE: usize = 2 * PrefixTable::BYTES;

/// What a request has done with its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotedAccess {
    /// It has read the item.
    Hit,
    /// It has found no item to read.
    Miss,
    /// It has stored an item.
    Store,
    /// It has changed the item, or has tried to: arithmetic, a touch, a refused store.
    Change,
    /// It has deleted the item, or has found none to delete.
    Delete,
}

impl NotedAccess {
    /// Whether it is a read. All others are writes.
    pub const fn is_read(self) -> bool {
        matches!(self, Self::Hit | Self::Miss)
    }
}

/// A request that observers note.
#[derive(Clone, Copy, Debug)]
pub struct Noted<'k> {
    /// The key.
    pub key: &'k [u8],
    /// The secret hash of the key.
    pub secret_hash: u64,
    /// What it has done.
    pub access: NotedAccess,
    /// Bytes of the value that was read or stored; 0 if there is none.
    pub value_bytes: usize,
}

/// The observers of a process.
#[derive(Debug)]
pub struct Observers {
    /// The bits of the [`ObserverSet`] that is on.
    on: AtomicU8,
    /// Those that are switched on when the first shard begins.
    at_start: ObserverSet,
    /// Computes the hashes by which keys are shown. Empty until a shard has begun.
    hasher: OnceLock<KeyHasher>,
    /// The state of each core.
    cores: Box<[CachePadded<Mutex<CoreState>>]>,
    /// The state of what answers requests without a core: the pipe.
    outside: Mutex<CoreState>,
    /// Held while observers are switched.
    switching: Mutex<()>,
    /// The hottest keys that were merged last, for as long as no observer is switched.
    hottest: LastMerged<HottestKeys>,
    /// The models of the miss-ratio curve.
    curves: Curves,
    /// How prefixes are found, and which are named.
    names: PrefixNames,
    /// The items by prefix of each engine.
    walks: PrefixWalks,
    /// What prefixes had when it was merged last, as `hottest`.
    prefixes: LastMerged<ObservedPrefixes>,
}

/// What the observers of a core have noted.
#[derive(Debug, Default)]
struct CoreState {
    /// `None` until this observer is switched on (O2).
    hot_keys: Option<Box<HotKeys>>,
    /// `None` while this observer is off (O2).
    prefixes: Option<Box<PrefixTable>>,
}

impl CoreState {
    /// Follows a switch of hot keys. They begin anew if they were off.
    fn switch_hot_keys(&mut self, begins: bool, now_ns: u64) {
        match &mut self.hot_keys {
            _ if !begins => {}
            Some(hot_keys) => hot_keys.begin_anew(now_ns),
            none => *none = Some(Box::new(HotKeys::new(now_ns))),
        }
    }
}

impl Observers {
    /// The observers of a process with this many cores and engines. All are off until the first
    /// shard begins.
    pub fn new(cores: u16, engines: u16, at_start: ObserverSet, names: PrefixNames) -> Self {
        Self {
            at_start,
            on: AtomicU8::new(ObserverSet::NONE.bits()),
            hasher: OnceLock::new(),
            cores: (0..cores).map(|_| CachePadded::default()).collect(),
            outside: Mutex::default(),
            switching: Mutex::default(),
            hottest: LastMerged::default(),
            curves: Curves::new(engines),
            names,
            walks: PrefixWalks::new(engines),
            prefixes: LastMerged::default(),
        }
    }

    /// A shard begins at `now_ns` of the monotonic clock. It hashes keys as all shards of its
    /// process do, and its engines have models that `make_model` makes. The first one switches on
    /// the observers that are on from the start, as [`Self::switch`] does.
    pub fn begin_shard(
        &self,
        hasher: KeyHasher,
        make_model: MakeMissModel,
        now_ns: u64,
        draw_evictions: impl FnOnce(u32),
    ) {
        self.curves.set_make(make_model);
        let mut is_first = false;
        let _hasher = self.hasher.get_or_init(|| {
            is_first = true;
            hasher
        });
        if is_first {
            self.switch(self.at_start, true, now_ns, draw_evictions);
        }
    }

    /// The observers that are on. Cost: a load.
    #[inline]
    pub fn on(&self) -> ObserverSet {
        ObserverSet::from_bits(self.on.load(Relaxed))
    }

    /// Switches observers on or off, as soon as a shard has begun. Those that were off begin anew,
    /// at `now_ns` of the monotonic clock. Each core follows in its next tick. `draw_evictions` has
    /// the engines draw one of so many items that they evict, or none.
    pub fn switch(
        &self,
        observers: ObserverSet,
        on: bool,
        now_ns: u64,
        draw_evictions: impl FnOnce(u32),
    ) {
        let _one = lock(&self.switching);
        let begins = |one| on && observers.has(one) && !self.on().has(one);
        let hot_keys_begin = begins(ObserverSet::HOT_KEYS);
        for state in self.states() {
            lock(state).switch_hot_keys(hot_keys_begin, now_ns);
        }
        if observers.has(ObserverSet::CURVE) {
            self.curves.switch(on);
        }
        if observers.has(ObserverSet::PREFIXES) && on != self.on().has(ObserverSet::PREFIXES) {
            for state in self.states() {
                lock(state).prefixes = on.then(|| self.new_prefix_table());
            }
            self.walks.begin_anew();
            draw_evictions(if on { PREFIXES_NOTE_EVERY } else { 0 });
        }
        let change = |bits: u8| {
            let before = ObserverSet::from_bits(bits);
            let after = if on { before.with(observers) } else { before.without(observers) };
            Some(after.bits())
        };
        let _before = self.on.fetch_update(Relaxed, Relaxed, change);
        self.hottest.forget();
        self.prefixes.forget();
    }

    /// The states of all cores, and that of what answers without one.
    fn states(&self) -> impl Iterator<Item = &Mutex<CoreState>> {
        self.cores.iter().map(|core| &**core).chain([&self.outside])
    }

    /// A table for prefixes. Called after a shard has begun.
    fn new_prefix_table(&self) -> Box<PrefixTable> {
        let hasher = self.hasher.get().expect("a shard has begun");
        Box::new(PrefixTable::new(*hasher, &self.names))
    }

    /// The greatest hash of a key that observers pick in this tick of a core, which holds `picked`
    /// and has these counters. 0: they pick none. Cost: two loads.
    #[inline]
    pub fn picked_to(&self, picked: &mut Picked, counters: &Counters) -> u64 {
        self.curves.follow(picked, counters);
        self.curves.picked_to()
    }

    /// All items are flushed in second `due`, or at once if that is not after the second `now`.
    pub fn note_flush(&self, due: u32, now: u32) {
        self.curves.note_flush(due, now);
    }

    /// Passes the requests for picked keys that `core` holds on to the models of the curve.
    pub fn pass_on(&self, core: usize, picked: &mut Picked, moment: &Moment<'_>) {
        let counters = &moment.totals.cores[core];
        counters.observed.add(BATCH as u64);
        counters.observed_lost.add(self.curves.pass_on(core, picked, moment) as u64);
    }

    /// The miss-ratio curve of all engines, in a process with `limit_bytes` of memory. `None` while
    /// this observer is off, or if the engines have no models. Any thread may ask. The last few
    /// requests of each core are not in it.
    ///
    /// Cost: a few loads for each engine. Waits for cores that use a model.
    pub fn miss_curve(&self, limit_bytes: u64) -> Option<MissCurve> {
        self.curves.sums().map(|sums| MissCurve::of(&sums, limit_bytes))
    }

    /// Notes a request that `core` has executed, at `now_ns` of the monotonic clock (O1).
    #[inline]
    pub fn note(
        &self,
        core: usize,
        noted: &Noted<'_>,
        noting: Noting,
        now_ns: u64,
        counters: &Counters,
    ) {
        debug_assert!(!noted.key.is_empty(), "a key has bytes");
        let Ok(mut state) = self.cores[core].try_lock() else {
            return counters.observed_lost.add(1); // O3
        };
        counters.observed.add(1);
        if noting.is_drawn
            && noting.observers.has(ObserverSet::HOT_KEYS)
            && let Some(hot_keys) = &mut state.hot_keys
        {
            hot_keys.note(noted, now_ns);
        }
        if noting.is_drawn
            && let Some(prefixes) = &mut state.prefixes
        {
            prefixes.note_request(noted.key, noted.access);
        }
    }

    /// Notes an item that was evicted while `core` held its engine, and drawn. Does nothing while
    /// prefixes are off, or another thread copies the numbers of the core (O3).
    pub fn note_evicted(&self, core: usize, key: &[u8], counters: &Counters) {
        debug_assert!(!key.is_empty(), "a key has bytes");
        match self.cores[core].try_lock() {
            Err(_) => counters.observed_lost.add(1),
            Ok(mut state) => {
                if let Some(prefixes) = &mut state.prefixes {
                    prefixes.note_evicted(key);
                }
            }
        }
    }

    /// Notes reads of a key that the pipe has answered: all of them, not a sample. Each has found a
    /// value of `value_bytes`.
    pub fn note_outside(
        &self,
        (key, secret_hash): (&[u8], u64),
        reads: u32,
        value_bytes: usize,
        now_ns: u64,
    ) {
        debug_assert!(reads > 0, "only a key that was read is noted");
        let mut state = lock(&self.outside);
        if self.on().has(ObserverSet::HOT_KEYS)
            && let Some(hot_keys) = &mut state.hot_keys
        {
            let bytes = u64::from(reads) * value_bytes as u64;
            hot_keys.reads.add(secret_hash, key, reads, bytes, now_ns);
        }
        if let Some(prefixes) = &mut state.prefixes {
            prefixes.note_hits(key, reads.into());
        }
    }

    /// The hottest keys of all cores and of the pipe, at `now_ns` of the monotonic clock: at most
    /// `count` of each list, and at most [`HOTTEST_MAX`]; with their bytes if `with_keys`. `None`
    /// while this observer is off, or if no shard has begun. Any thread may ask. The keys may be
    /// those of half a second ago.
    ///
    /// Cost: a copy of 48 bytes for each of 2,048 entries a core, and a sort of them; no more than
    /// twice a second.
    pub fn hottest_keys(&self, count: usize, with_keys: bool, now_ns: u64) -> Option<HottestKeys> {
        let hasher = self.hasher.get()?;
        if !self.on().has(ObserverSet::HOT_KEYS) {
            return None;
        }
        let merge = || self.merge_hot_keys(hasher, with_keys, now_ns);
        Some(self.hottest.at(now_ns, with_keys, merge).what.first(count))
    }

    /// Merges the hot keys of all cores and of the pipe.
    fn merge_hot_keys(&self, hasher: &KeyHasher, with_keys: bool, now_ns: u64) -> HottestKeys {
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        for core in &self.cores {
            if let Some(hot_keys) = &mut lock(core).hot_keys {
                reads.push(Source::of(&mut hot_keys.reads, DRAWN_EVERY, now_ns));
                writes.push(Source::of(&mut hot_keys.writes, DRAWN_EVERY, now_ns));
            }
        }
        if let Some(hot_keys) = &mut lock(&self.outside).hot_keys {
            reads.push(Source::of(&mut hot_keys.reads, 1, now_ns));
        }
        let key = |secret_hash, is_read| {
            self.states().find_map(|state| {
                let state = lock(state);
                let HotKeys { reads, writes } = state.hot_keys.as_deref()?;
                let summary = if is_read { reads } else { writes };
                summary.key(secret_hash).map(Box::from)
            })
        };
        let shown = |secret_hash, is_read| {
            let key = if with_keys { key(secret_hash, is_read) } else { None };
            (hasher.shown_hash(secret_hash), key)
        };
        HottestKeys {
            reads: merge(&reads, &|secret_hash| shown(secret_hash, true)),
            writes: merge(&writes, &|secret_hash| shown(secret_hash, false)),
        }
    }

    /// What prefixes have, at `now_ns` of the monotonic clock: at most `count` of those with the
    /// most bytes, and at most [`PREFIXES_MAX`]; with their names if `with_names`, or if an option
    /// names them. `None` while this observer is off. Any thread may ask. The numbers may be those
    /// of half a second ago.
    ///
    /// Cost: a copy of 72 bytes for each of 1,024 rows a core and an engine, and a sort of them; no
    /// more than twice a second.
    pub fn prefixes(
        &self,
        count: usize,
        with_names: bool,
        now_ns: u64,
    ) -> Option<ObservedPrefixes> {
        let hasher = self.hasher.get()?;
        if !self.on().has(ObserverSet::PREFIXES) {
            return None;
        }
        let merge = || self.merge_prefixes(hasher, with_names, now_ns);
        Some(self.prefixes.at(now_ns, with_names, merge).what.first(count))
    }

    /// Merges the prefixes of all cores, of the pipe and of all engines.
    fn merge_prefixes(
        &self,
        hasher: &KeyHasher,
        with_names: bool,
        now_ns: u64,
    ) -> ObservedPrefixes {
        let mut requests = Vec::new();
        for core in &self.cores {
            let state = lock(core);
            let prefixes = state.prefixes.as_ref();
            requests.extend(prefixes.map(|of| PrefixSource::of(of, PREFIXES_NOTE_EVERY)));
        }
        let outside = lock(&self.outside).prefixes.as_ref().map(|of| PrefixSource::of(of, 1));
        requests.extend(outside);
        let (items, walk_age_s) = self.walks.sources(now_ns);
        let named: Vec<u64> = self.names.hashed(hasher).map(|(_, hash)| hash).collect();
        let prefix = |hash| {
            let of_state = |state: &Mutex<CoreState>| {
                lock(state).prefixes.as_ref()?.prefix(hash).map(Box::from)
            };
            self.walks.prefix(hash).or_else(|| self.states().find_map(of_state))
        };
        let shown = |hash| {
            let is_shown = with_names || named.contains(&hash);
            (hasher.shown_hash(hash), if is_shown { prefix(hash) } else { None })
        };
        PrefixSources { requests, items, walk_age_s }.merge((hasher, &self.names), &shown)
    }

    /// The number of the last switch of prefixes. `None` while they are off. Cost: a load, or two.
    #[inline]
    pub fn prefix_epoch(&self) -> Option<u32> {
        self.on().has(ObserverSet::PREFIXES).then(|| self.walks.epoch())
    }

    /// A table for a walk over the items of an engine.
    pub fn begin_walk(&self) -> Box<PrefixTable> {
        self.new_prefix_table()
    }

    /// Ends a walk over an engine, which has begun in `epoch`, at `now_ns` of the monotonic clock.
    ///
    /// Errors: another thread copies the numbers of the last walk. The table is given back, and the
    /// caller must try again.
    pub fn end_walk(
        &self,
        engine: EngineIndex,
        epoch: u32,
        table: Box<PrefixTable>,
        now_ns: u64,
    ) -> Result<(), Box<PrefixTable>> {
        self.walks.end(engine, epoch, table, now_ns)
    }
}

/// An array that is made on the heap, because it may be too large for a stack.
fn boxed<T: Clone, const COUNT: usize>(one: T) -> Box<[T; COUNT]> {
    let all = vec![one; COUNT].into_boxed_slice();
    all.try_into().unwrap_or_else(|_| unreachable!("there are as many"))
}

/// Locks what a core or all of them have. A thread that panics meanwhile ends the process.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

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
//!   first time, and keep their memory. The curve allocates each time that it is switched on, and
//!   frees its memory when it is switched off. A turn of a client has at most one such command.
//! - O3  A core never waits for its own state.

use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use kachel_engine::KeyHasher;
use kachel_stdx::CachePadded;
use kachel_wire::ObserverSet;

use crate::counters::Counters;

mod advice;
mod curve;
mod gate;
mod hot_keys;
mod hottest;
mod summary;

pub use advice::{
    CURVE_ERROR_MAX, CURVE_KEYS_MIN, CURVE_SAMPLES_MIN, CurvePoint, CurveState, MissCurve,
};
pub use curve::{CURVE_BYTES_PER_ENGINE, MakeMissModel, Moment, Picked};
pub use gate::{DRAWN_EVERY, Noting, SampleGate};
pub use hot_keys::HOT_KEYS_BYTES_PER_CORE;
pub use hottest::{HOTTEST_MAX, HotKey, HotLists, HotRate, HottestKeys};

use curve::{BATCH, Curves};
use hot_keys::HotKeys;
use hottest::{Source, merge};

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
    merged: Mutex<Option<Arc<Merged>>>,
    /// The models of the miss-ratio curve.
    curves: Curves,
}

/// The hottest keys at a time.
#[derive(Debug)]
struct Merged {
    at_ns: u64,
    with_keys: bool,
    hottest: HottestKeys,
}

/// The time for which merged keys are told again. So clients that ask for them all the time cost
/// no more than a merge in this time. A guess.
const MERGED_FOR_NS: u64 = 500_000_000;

/// What the observers of a core have noted.
#[derive(Debug, Default)]
struct CoreState {
    /// `None` until this observer is switched on (O2).
    hot_keys: Option<Box<HotKeys>>,
}

impl Observers {
    /// The observers of a process with this many cores and engines. All are off until the first
    /// shard begins.
    pub fn new(cores: u16, engines: u16, at_start: ObserverSet) -> Self {
        Self {
            at_start,
            on: AtomicU8::new(ObserverSet::NONE.bits()),
            hasher: OnceLock::new(),
            cores: (0..cores).map(|_| CachePadded::default()).collect(),
            outside: Mutex::default(),
            switching: Mutex::default(),
            merged: Mutex::default(),
            curves: Curves::new(engines),
        }
    }

    /// A shard begins at `now_ns` of the monotonic clock. It hashes keys as all shards of its
    /// process do, and its engines have models that `make_model` makes. The first one switches on
    /// the observers that are on from the start.
    pub fn begin_shard(&self, hasher: KeyHasher, make_model: MakeMissModel, now_ns: u64) {
        self.curves.set_make(make_model);
        let _hasher = self.hasher.get_or_init(|| {
            self.switch(self.at_start, true, now_ns);
            hasher
        });
    }

    /// The observers that are on. Cost: a load.
    #[inline]
    pub fn on(&self) -> ObserverSet {
        ObserverSet::from_bits(self.on.load(Relaxed))
    }

    /// Switches observers on or off. Those that were off begin anew, at `now_ns` of the monotonic
    /// clock. Each core follows in its next tick.
    pub fn switch(&self, observers: ObserverSet, on: bool, now_ns: u64) {
        let _one = lock(&self.switching);
        let begins = on && !self.on().has(ObserverSet::HOT_KEYS);
        for state in self.cores.iter().map(|core| &**core).chain([&self.outside]) {
            let mut state = lock(state);
            if observers.has(ObserverSet::HOT_KEYS) && begins {
                match &mut state.hot_keys {
                    Some(hot_keys) => hot_keys.begin_anew(now_ns),
                    none => *none = Some(Box::new(HotKeys::new(now_ns))),
                }
            }
        }
        if observers.has(ObserverSet::CURVE) {
            self.curves.switch(on);
        }
        let change = |bits: u8| {
            let before = ObserverSet::from_bits(bits);
            let after = if on { before.with(observers) } else { before.without(observers) };
            Some(after.bits())
        };
        let _before = self.on.fetch_update(Relaxed, Relaxed, change);
        *lock(&self.merged) = None;
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
            && let Some(hot_keys) = &mut state.hot_keys
        {
            hot_keys.note(noted, now_ns);
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
        if let Some(hot_keys) = &mut lock(&self.outside).hot_keys {
            let bytes = u64::from(reads) * value_bytes as u64;
            hot_keys.reads.add(secret_hash, key, reads, bytes, now_ns);
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
        let last = lock(&self.merged).clone();
        let is_new = |last: &Arc<Merged>| {
            now_ns.saturating_sub(last.at_ns) < MERGED_FOR_NS && last.with_keys == with_keys
        };
        if let Some(last) = last.filter(is_new) {
            return Some(last.hottest.first(count));
        }
        let hottest = self.merge_all(hasher, with_keys, now_ns);
        let first = hottest.first(count);
        *lock(&self.merged) = Some(Arc::new(Merged { at_ns: now_ns, with_keys, hottest }));
        Some(first)
    }

    /// Merges the hot keys of all cores and of the pipe.
    fn merge_all(&self, hasher: &KeyHasher, with_keys: bool, now_ns: u64) -> HottestKeys {
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
            let states = self.cores.iter().map(|core| &**core).chain([&self.outside]);
            states.into_iter().find_map(|state| {
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
}

/// Locks what a core or all of them have. A thread that panics meanwhile ends the process.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

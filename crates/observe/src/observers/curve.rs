//! The models of the miss-ratio curve: one for each engine, and the requests on their way there.
//!
//! Upstream:   `Observers::note_picked`, for each request whose key is picked.
//! Downstream: the models that the engines supply ([`MissModel`]); `advice` says what they tell.
//!
//! A key belongs to one engine, and any core may read it. So the requests of all cores for the keys
//! of an engine must meet in one model. Each core collects the requests that it notes, and passes
//! them on [`BATCH`] at a time, with the number of reads that it has served meanwhile. The order of
//! requests of different cores changes a little by that, which a FIFO queue does not mind.
//!
//! ```text
//! core 0: requests, BATCH at a time --+--> model of engine 0   (a mutex; a core only tries it)
//! core 1: requests, BATCH at a time --+--> model of engine 1
//! ```
//!
//! Invariants:
//! - C1  A core holds at most [`WAITING_MAX`] requests. Then they are dropped, and counted as lost.
//! - C2  A core never waits for a model. A thread that asks for the curve does.
//! - C3  No request that was noted before a flush reaches a model after it: a core drops what it
//!   holds then, and some later requests with that.
//! - C4  A key is picked if its hash is at most the greatest limit of all models. A model ignores
//!   keys beyond its own limit.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use kachel_engine::{EngineIndex, MissModel, MissSums, ModelMemory, SampledRequest};
use kachel_stdx::CachePadded;

use crate::counters::Counters;
use crate::totals::Totals;

/// Requests that a core passes on together.
pub(super) const BATCH: usize = 32;
/// The most requests that a core holds while other cores use the models (C1).
const WAITING_MAX: usize = 4 * BATCH;

/// Makes the model of an engine; `None` if the engine has none.
pub type MakeMissModel = fn() -> Option<Box<dyn MissModel>>;

/// The most bytes of memory that the curve takes for each engine.
pub const CURVE_BYTES_PER_ENGINE: usize = kachel_engine::MISS_MODEL_BYTES_MAX;

/// The requests for picked keys that a core has noted and not passed on. Only this core uses it.
#[derive(Debug)]
pub struct Picked {
    waiting: Vec<(EngineIndex, SampledRequest)>,
    /// The reads and the misses of this core that the models were told of.
    told: [u64; 2],
    /// The epoch in which the first of them was noted.
    epoch: u32,
}

impl Default for Picked {
    fn default() -> Self {
        Self { waiting: Vec::with_capacity(WAITING_MAX), told: [0; 2], epoch: 0 }
    }
}

impl Picked {
    /// Notes a request. Returns whether [`super::Observers::pass_on`] must be called.
    #[inline]
    pub fn add(&mut self, engine: EngineIndex, request: SampledRequest) -> bool {
        debug_assert!(self.waiting.len() < WAITING_MAX, "C1: what is due was passed on");
        self.waiting.push((engine, request));
        self.waiting.len() >= BATCH
    }

    /// Begins anew in a new epoch: some of the requests came before it.
    fn follow(&mut self, epoch: u32, counters: &Counters) {
        if self.epoch != epoch {
            self.waiting.clear();
            (self.epoch, self.told) = (epoch, served(counters));
        }
    }

    /// Tells a model the reads of this core since the last time.
    fn tell_served(&mut self, counters: &Counters, model: &mut dyn MissModel) {
        let [reads, misses] = served(counters);
        let [reads_told, misses_told] = std::mem::replace(&mut self.told, [reads, misses]);
        model.note_served(reads - reads_told, misses - misses_told);
    }
}

/// The model of an engine.
#[derive(Debug, Default)]
struct EngineModel {
    /// `None` while the curve is off, or if the engine has no model.
    model: Option<Box<dyn MissModel>>,
    /// The epoch that the model knows of.
    epoch: u32,
}

/// The models of all engines.
#[derive(Debug)]
pub(super) struct Curves {
    make: OnceLock<MakeMissModel>,
    models: Box<[CachePadded<Mutex<EngineModel>>]>,
    /// The greatest hash of a picked key of each engine, and of all (C4).
    limits: Box<[AtomicU64]>,
    picked_to: AtomicU64,
    /// How often all items were flushed, or the curve was switched on.
    epoch: AtomicU32,
    /// The second of a flush that is to come; 0 for none.
    flush_due: AtomicU32,
}

/// The state of the server when requests are passed on.
#[derive(Clone, Copy, Debug)]
pub struct Moment<'a> {
    /// The counters of the process.
    pub totals: &'a Totals,
    /// The memory limit of the process.
    pub limit_bytes: u64,
    /// The current second.
    pub second: u32,
}

impl Curves {
    pub(super) fn new(engines: u16) -> Self {
        Self {
            make: OnceLock::new(),
            models: (0..engines).map(|_| CachePadded::default()).collect(),
            limits: (0..engines).map(|_| AtomicU64::new(0)).collect(),
            picked_to: AtomicU64::new(0),
            epoch: AtomicU32::new(0),
            flush_due: AtomicU32::new(0),
        }
    }

    /// The engines make their models so.
    pub(super) fn set_make(&self, make: MakeMissModel) {
        let _first = self.make.get_or_init(|| make);
    }

    /// Makes the models, if they are not there, or drops them.
    pub(super) fn switch(&self, on: bool) {
        let was_on = self.lock(0).model.is_some();
        self.epoch.fetch_add(u32::from(on && !was_on), Relaxed);
        for engine in 0..self.models.len() {
            let mut place = self.lock(engine);
            if !on {
                place.model = None;
            } else if place.model.is_none() {
                place.epoch = self.epoch.load(Relaxed);
                place.model = self.make.get().and_then(|make| make());
            }
            self.set_limit(engine, place.model.as_deref());
        }
    }

    /// The greatest hash of a picked key; 0 for none.
    #[inline]
    pub(super) fn picked_to(&self) -> u64 {
        self.picked_to.load(Relaxed)
    }

    fn set_limit(&self, engine: usize, model: Option<&dyn MissModel>) {
        let limit = model.map_or(0, |model| (u64::from(model.threshold()) << 32).max(1) - 1);
        if self.limits[engine].swap(limit, Relaxed) != limit {
            let greatest = self.limits.iter().map(|limit| limit.load(Relaxed)).max();
            self.picked_to.store(greatest.unwrap_or(0), Relaxed);
        }
    }

    /// All items are flushed in the second `due`, or at once if that has come.
    pub(super) fn note_flush(&self, due: u32, now: u32) {
        if due > now {
            self.flush_due.store(due, Relaxed);
        } else {
            self.flush_due.store(0, Relaxed);
            self.epoch.fetch_add(1, Relaxed);
        }
    }

    /// A core begins a tick: it drops what it holds of an earlier epoch (C3). Cost: a load.
    #[inline]
    pub(super) fn follow(&self, picked: &mut Picked, counters: &Counters) {
        picked.follow(self.epoch.load(Relaxed), counters);
    }

    /// Passes the requests of a core on, as far as no other core uses their models (C2). Returns
    /// how many are lost (C1).
    pub(super) fn pass_on(&self, core: usize, picked: &mut Picked, moment: &Moment<'_>) -> usize {
        let counters = &moment.totals.cores[core];
        let due = self.flush_due.load(Relaxed);
        if due > 0 && due <= moment.second && self.flush_due.swap(0, Relaxed) > 0 {
            self.epoch.fetch_add(1, Relaxed);
        }
        picked.follow(self.epoch.load(Relaxed), counters);
        let mut next = 0;
        while let Some(&(engine, _)) = picked.waiting.get(next) {
            let Ok(mut place) = self.models[engine.number()].try_lock() else {
                next += 1; // It stays, and those of other engines go on.
                continue;
            };
            if let Some(model) = self.begin(engine.number(), &mut place, moment) {
                picked.tell_served(counters, model);
                for (_, request) in picked.waiting.iter().filter(|(owner, _)| *owner == engine) {
                    model.note(request, moment.second);
                }
            }
            self.set_limit(engine.number(), place.model.as_deref());
            picked.waiting.retain(|(owner, _)| *owner != engine);
        }
        if picked.waiting.len() < WAITING_MAX {
            return 0;
        }
        let lost = picked.waiting.len();
        picked.waiting.clear();
        lost
    }

    /// The model of an engine, which knows of flushes and of the memory of the engine afterwards.
    fn begin<'m>(
        &self,
        engine: usize,
        place: &'m mut EngineModel,
        moment: &Moment<'_>,
    ) -> Option<&'m mut dyn MissModel> {
        let epoch = self.epoch.load(Relaxed);
        let is_flushed = std::mem::replace(&mut place.epoch, epoch) != epoch;
        let model = place.model.as_deref_mut()?;
        if is_flushed {
            model.flush();
        }
        let counters = &moment.totals.engines[engine];
        model.set_memory(ModelMemory {
            items: counters.items.value(),
            live_bytes: counters.bytes.value(),
            share_bytes: moment.limit_bytes / self.models.len() as u64,
            evictions: counters.evictions.value(),
        });
        Some(model)
    }

    /// What the models of all engines have counted. `None`: no engine has a model.
    pub(super) fn sums(&self) -> Option<MissSums> {
        let mut sums: Option<MissSums> = None;
        for engine in 0..self.models.len() {
            let place = self.lock(engine);
            let Some(model) = &place.model else { continue };
            sums.get_or_insert_default().add(&model.sums());
        }
        sums
    }

    /// The model of an engine. A thread that has panicked while it held one ends the process.
    fn lock(&self, engine: usize) -> MutexGuard<'_, EngineModel> {
        self.models[engine].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The reads of a core, and those that missed. Reads that touch an item are not among them, in the
/// models neither.
fn served(counters: &Counters) -> [u64; 2] {
    let misses = counters.get_misses.value();
    [counters.get_hits.value() + misses, misses]
}

#[cfg(test)]
mod tests {
    use kachel_engine::SampledEvent;

    use super::*;

    /// A model that counts what it is told.
    #[derive(Debug, Default)]
    struct Counting(MissSums);

    impl MissModel for Counting {
        fn threshold(&self) -> u32 {
            1 << 28
        }

        fn note(&mut self, request: &SampledRequest, _now: u32) {
            self.0.samples += u64::from(request.event == SampledEvent::Hit);
            self.0.keys += 1;
        }

        fn note_served(&mut self, reads: u64, misses: u64) {
            self.0.reads += reads as f64;
            self.0.misses += misses as f64;
        }

        fn set_memory(&mut self, memory: ModelMemory) {
            self.0.rate = memory.share_bytes as f64;
        }

        fn flush(&mut self) {
            self.0.hopeless += 1.0;
        }

        fn sums(&self) -> MissSums {
            self.0
        }
    }

    fn counting() -> Option<Box<dyn MissModel>> {
        Some(Box::<Counting>::default())
    }

    fn request(event: SampledEvent) -> SampledRequest {
        SampledRequest { secret_hash: 1, event, key_bytes: 3, value_bytes: 5, expiry: None }
    }

    fn curves() -> Curves {
        let curves = Curves::new(2);
        curves.set_make(counting);
        curves.switch(true);
        curves
    }

    /// Has a core note a request, and pass it on. Returns how many are lost.
    fn note(curves: &Curves, picked: &mut Picked, engine: u16, moment: &Moment<'_>) -> usize {
        let is_due = picked.add(EngineIndex(engine), request(SampledEvent::Hit));
        if is_due { curves.pass_on(0, picked, moment) } else { 0 }
    }

    #[test]
    fn requests_of_all_cores_meet_in_the_model_of_their_engine() {
        let (curves, totals) = (curves(), Totals::new(2, 2));
        let moment = Moment { totals: &totals, limit_bytes: 200, second: 5 };
        let mut cores = [Picked::default(), Picked::default()];
        for (core, picked) in cores.iter_mut().enumerate() {
            totals.cores[core].get_hits.add(99);
            picked.add(EngineIndex(1), request(SampledEvent::Hit));
            curves.pass_on(core, picked, &moment);
        }
        assert_eq!(curves.sums().expect("they are on").keys, 0, "they begin with the next ones");
        for number in 0..4 * BATCH as u16 {
            for (core, picked) in cores.iter_mut().enumerate() {
                totals.cores[core].get_hits.add(1);
                totals.cores[core].get_misses.add(core as u64);
                if picked.add(EngineIndex(number % 2), request(SampledEvent::Hit)) {
                    assert_eq!(curves.pass_on(core, picked, &moment), 0, "none is lost");
                    assert!(picked.waiting.is_empty(), "no other core uses a model");
                }
            }
        }
        let sums = curves.sums().expect("they are on");
        assert_eq!((sums.samples, sums.reads, sums.misses), (256, 384.0, 128.0));
        assert_eq!(sums.rate, 100.0, "each engine has half of the memory");
        for engine in 0..2 {
            let place = curves.lock(engine);
            assert_eq!(place.model.as_ref().expect("a model").sums().samples, 128);
        }
        // Switched off and on, they begin anew.
        curves.switch(false);
        curves.switch(true);
        totals.cores[0].get_hits.add(1000);
        curves.pass_on(0, &mut cores[0], &moment);
        let sums = curves.sums().expect("they are on");
        assert_eq!((sums.samples, sums.reads), (0, 0.0));
    }

    /// C1, C2.
    #[test]
    fn a_core_does_not_wait_for_a_model_and_goes_on_with_the_others() {
        let (curves, totals) = (curves(), Totals::new(1, 2));
        let moment = Moment { totals: &totals, limit_bytes: 200, second: 5 };
        let mut picked = Picked::default();
        curves.pass_on(0, &mut picked, &moment);
        let held = curves.lock(0);
        for number in 1..WAITING_MAX {
            assert_eq!(note(&curves, &mut picked, 0, &moment), 0, "{number}");
        }
        assert_eq!(note(&curves, &mut picked, 0, &moment), WAITING_MAX, "C1");
        (1..BATCH).for_each(|_| assert_eq!(note(&curves, &mut picked, 0, &moment), 0));
        assert_eq!(note(&curves, &mut picked, 1, &moment), 0);
        assert_eq!(picked.waiting.len(), BATCH - 1, "that of the other engine was passed on");
        drop(held);
        assert_eq!(note(&curves, &mut picked, 0, &moment), 0);
        assert_eq!(curves.sums().expect("they are on").samples, BATCH as u64 + 1);
    }

    #[test]
    fn models_hear_of_each_flush_once() {
        let (curves, totals) = (curves(), Totals::new(1, 2));
        let mut picked = Picked::default();
        let mut hear = |second| {
            let moment = Moment { totals: &totals, limit_bytes: 200, second };
            curves.pass_on(0, &mut picked, &moment);
            for engine in 0..2 {
                picked.add(EngineIndex(engine), request(SampledEvent::Removed));
            }
            curves.pass_on(0, &mut picked, &moment);
            curves.sums().expect("they are on").hopeless
        };
        assert_eq!(hear(5), 0.0);
        curves.note_flush(5, 5);
        assert_eq!([hear(5), hear(6)], [2.0, 2.0], "each model once");
        curves.note_flush(10, 6);
        assert_eq!([hear(9), hear(10), hear(11)], [2.0, 4.0, 4.0]);
    }

    #[test]
    fn keys_are_picked_while_there_is_a_model() {
        let curves = curves();
        assert_eq!(curves.picked_to(), (1 << 60) - 1, "C4");
        curves.switch(false);
        assert_eq!(curves.picked_to(), 0);
        assert!(curves.sums().is_none());
        let without = Curves::new(1);
        without.set_make(|| None);
        without.switch(true);
        assert_eq!((without.picked_to(), without.sums()), (0, None));
    }
}

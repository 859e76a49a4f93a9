//! Miniatures of the cache: how many reads would miss with more or less memory.
//!
//! Upstream:   `shard`, by the contract of [`MissModel`], with the requests for the keys of a
//!             sample.
//! Downstream: `sample` holds the keys, `model` evicts.
//!
//! Eviction here is not LRU, so its misses do not follow from distances of reuse. A *miniature* is
//! a simulation of the engine's eviction over a sample of the keys, chosen by hash, with memory
//! that is scaled down by the same part. There is one for each size in [`MODEL_QUARTERS`].
//!
//! - If the engine answers a read that misses in a miniature, the item is stored there, as a client
//!   would do after a miss. A store after a read that the engine missed is such a store: miniatures
//!   that hold the item ignore it.
//! - Sizes of items are those of the engine, with their part of the index. The memory of the
//!   miniature of the actual size is what the items of the engine take once it evicts, so segments
//!   that are not full and dead space are part of the model.
//! - The sample begins with the keys of one hash in [`START_DIVISOR`]. When the table is full, a
//!   sixteenth to an eighth of the keys leave it, and memory shrinks by the same part. Counts are
//!   weighed by the rate at which they were taken.
//! - The counts lose half of their weight each hour.
//!
//! Invariants:
//! - S1  All keys of the table have hashes of the current level or rarer ones.
//! - S2  One request costs at most `EXAMINED_MAX` examined items in each miniature, [`SWEPT_KEYS`]
//!   keys, and once in a while a walk over the table.
//!
//! Sources: Waldspurger, Saemundsson, Ahmad, Park, "Cache Modeling and Optimization using Miniature
//! Simulations", ATC 2017; samples by hash of a fixed size are those of Waldspurger, Park,
//! Garthwaite, Ahmad, "Efficient MRC Construction with SHARDS", FAST 2015. As there, counts are
//! compared with the number of all reads, and not with those of the sample, because a few keys may
//! have most of the reads.

mod model;
mod sample;
#[cfg(all(test, not(loom)))]
mod tests;

use kachel_engine::{
    MODEL_ACTUAL, MODEL_QUARTERS, MODEL_SIZES, MissModel, MissSums, ModelMemory, SampledEvent,
    SampledRequest,
};
use kachel_segment::{GHOST_BYTES, GHOST_PERCENT, memory_bytes_of, unused_bytes};

use self::model::Model;
use self::sample::{KEYS_MAX, KeyId, NO_KEY, Place, Sample};

/// Bytes of the index that count with each item: a slot of eight bytes, of which four of five are
/// used in the mean.
const SLOT_BYTES: usize = 10;

/// The part of the keys that is in the sample at the start, as a divisor. It costs instructions in
/// proportion. `experiments/e043-miss-ratio-curve` compares it with 16 and 64.
const START_DIVISOR: u32 = 32;
/// Levels of hashes by each of which their number halves.
const LEVELS_PER_HALF: u8 = 8;
/// The level of the start.
const START_LEVEL: u8 = START_DIVISOR.ilog2() as u8 * LEVELS_PER_HALF;
/// The last level, of which there is one key in 16 million.
const LEVEL_MAX: u8 = 24 * LEVELS_PER_HALF;

/// Keys that each request of the sample examines in addition, for items that have expired (S2).
const SWEPT_KEYS: usize = 1;

/// Seconds in which counts lose half of their weight.
const HALF_LIFE_S: u32 = 3600;

/// Reads of the sample after which it is decided whether the model still learns what there is.
const LEARNING_READS: u32 = 4096;
/// The model learns while at least this part of the reads finds items that it has not seen before;
/// as a divisor.
const LEARNING_DIVISOR: u32 = 64;

/// Keys of the sample from which on their bytes tell how dense it is.
const FILL_KEYS_MIN: usize = 1000;

/// The miniatures of one engine.
#[derive(Debug)]
pub struct Miniatures {
    sample: Sample,
    models: [Model; MODEL_SIZES],
    /// Hashes of this level or a rarer one are in the sample (S1).
    level: u8,
    /// The limit of their high halves.
    threshold: u32,
    memory: ModelMemory,
    /// Whether the engine has evicted since it got this share of memory.
    is_full: bool,
    sums: MissSums,
    /// Where the search for expired items goes on.
    swept: KeyId,
    /// The second of the next decay.
    decay_due: u32,
    /// Reads of the sample, and those that found unseen items, since learning was last judged.
    recent: u32,
    recent_unseen: u32,
}

impl Default for Miniatures {
    fn default() -> Self {
        Self::new()
    }
}

/// How rare a hash is: its share halves each [`LEVELS_PER_HALF`] levels.
fn level_of(hash: u64) -> u8 {
    let high = (hash >> 32) as u32;
    let zeros = high.leading_zeros().min(28);
    // The three bits after the first one that is set.
    let rest = high << zeros >> 28 & 7;
    ((zeros * u32::from(LEVELS_PER_HALF) + 7 - rest) as u8).min(LEVEL_MAX)
}

/// The high halves of the hashes of `level` and rarer ones are below this.
fn threshold_of(level: u8) -> u32 {
    let (halves, sixteenths) = (level / LEVELS_PER_HALF, level % LEVELS_PER_HALF);
    let part = (1_u64 << (32 - halves)) / 16 * (16 - u64::from(sixteenths));
    u32::try_from(part).unwrap_or(u32::MAX)
}

fn rate_of(level: u8) -> f64 {
    f64::from(threshold_of(level)) / (f64::from(u32::MAX) + 1.0)
}

impl Miniatures {
    /// Empty miniatures. Cost: allocates a MiB.
    pub fn new() -> Self {
        Self {
            sample: Sample::new(),
            models: std::array::from_fn(Model::new),
            level: START_LEVEL,
            threshold: threshold_of(START_LEVEL),
            memory: ModelMemory::default(),
            is_full: false,
            sums: MissSums { rate: rate_of(START_LEVEL), ..MissSums::default() },
            swept: 0,
            decay_due: HALF_LIFE_S,
            recent: 0,
            recent_unseen: 0,
        }
    }

    /// Forgets a key that no miniature has any more.
    fn forget(sample: &mut Sample, id: KeyId) {
        if sample.is_nowhere(id) {
            sample.remove(id);
        }
    }

    /// Takes a key out of all miniatures.
    fn remove(&mut self, id: KeyId) {
        for model in &mut self.models {
            model.remove(&mut self.sample, id);
        }
        self.sample.remove(id);
    }

    fn set_capacities(&mut self) {
        let ModelMemory { items, live_bytes, share_bytes, .. } = self.memory;
        let held = live_bytes + items * SLOT_BYTES as u64;
        let usable = |share_bytes: u64| {
            let unused_bytes = unused_bytes(share_bytes) + share_bytes * GHOST_PERCENT / 100;
            share_bytes.saturating_sub(unused_bytes).max(1) as f64
        };
        // What the items take is known once the engine evicts.
        let is_known = self.is_full || held as f64 > usable(share_bytes);
        let part = if is_known { held as f64 / usable(share_bytes) } else { 1.0 };
        let rate = self.sums.rate * if is_known { self.sums.density() } else { self.fill(held) };
        for (model, quarters) in self.models.iter_mut().zip(MODEL_QUARTERS) {
            let share_bytes = share_bytes / 4 * u64::from(quarters);
            let ghosts = share_bytes * GHOST_PERCENT / 100 / GHOST_BYTES as u64;
            let bytes = usable(share_bytes) * part * rate;
            model.set_capacity(bytes as usize, (ghosts as f64 * rate) as usize);
        }
    }

    /// How dense the sample is while the engine holds all that was stored: the bytes in the sample,
    /// to those that its rate says.
    fn fill(&self, held_bytes: u64) -> f64 {
        let expected = held_bytes as f64 * self.sums.rate;
        let is_known = self.sample.len() >= FILL_KEYS_MIN && !self.sums.is_learning;
        let bytes = self.models[MODEL_ACTUAL].total_bytes() as f64;
        if is_known { (bytes / expected.max(1.0)).clamp(0.8, 1.25) } else { 1.0 }
    }

    /// Makes the sample rarer by a level (S1).
    fn raise_level(&mut self) {
        if self.level == LEVEL_MAX {
            return;
        }
        self.level += 1;
        self.threshold = threshold_of(self.level);
        self.sums.rate = rate_of(self.level);
        for id in 0..KEYS_MAX as KeyId {
            if self.sample.is_used(id) && self.sample.level(id) < self.level {
                self.remove(id);
            }
        }
        self.set_capacities();
    }

    /// The key with this hash, which is inserted if it is new. `None`: it is left out.
    fn key(&mut self, hash: u64, bytes: u32) -> Option<KeyId> {
        if let Some(id) = self.sample.find(hash as u32) {
            return Some(id);
        }
        if self.sample.is_full() {
            self.raise_level();
        }
        let level = level_of(hash);
        if level < self.level { None } else { self.sample.insert(hash as u32, level, bytes) }
    }

    /// The key with this hash, if its item has not expired. One that has expired is removed.
    fn live_key(&mut self, hash: u64, now: u32) -> Option<KeyId> {
        let id = self.sample.find(hash as u32)?;
        if self.sample.is_expired(id, now) {
            self.remove(id);
            return None;
        }
        Some(id)
    }

    fn read_hit(&mut self, request: &SampledRequest, now: u32) {
        let Some(id) = self.sample.find(request.secret_hash as u32) else {
            self.recent_unseen += 1;
            // The engine holds the item, so the miniatures learn it. Nothing is counted.
            self.insert(request, 1, now);
            return;
        };
        if self.sample.is_expired(id, now) {
            self.sample.set_expiry(id, 0); // A touch outside of the sample.
        }
        if let Some(expiry) = request.expiry {
            self.sample.set_expiry(id, expiry);
        }
        if self.sample.note_read(id) {
            return;
        }
        let weight = 1.0 / self.sums.rate;
        for which in 0..MODEL_SIZES {
            if matches!(self.sample.state(id, which).place, Place::Absent | Place::Ghost) {
                self.sums.modeled[which] += weight;
                self.models[which].store(&mut self.sample, id, 0);
            }
        }
        self.evict(now);
    }

    fn read_miss(&mut self, hash: u64, now: u32) {
        let weight = 1.0 / self.sums.rate;
        self.sums.sampled_misses += weight;
        let Some(id) = self.live_key(hash, now) else {
            self.sums.hopeless += weight;
            self.sums.modeled.iter_mut().for_each(|sum| *sum += weight);
            return;
        };
        self.sample.note_read(id);
        for which in 0..MODEL_SIZES {
            if matches!(self.sample.state(id, which).place, Place::Absent | Place::Ghost) {
                self.sums.modeled[which] += weight;
            }
        }
        self.sample.replace_refill(id, true);
    }

    /// Inserts a key in all miniatures.
    fn insert(&mut self, request: &SampledRequest, reads: u32, now: u32) {
        let bytes = bytes_of(request);
        let Some(id) = self.key(request.secret_hash, bytes) else { return };
        self.sample.set_expiry(id, request.expiry.unwrap_or(0));
        for model in &mut self.models {
            model.store(&mut self.sample, id, reads);
        }
        self.evict(now);
    }

    fn store(&mut self, request: &SampledRequest, now: u32) {
        let Some(id) = self.live_key(request.secret_hash, now) else {
            return self.insert(request, 0, now);
        };
        let bytes = bytes_of(request);
        for model in &mut self.models {
            model.resize(&self.sample, id, bytes as usize);
        }
        self.sample.set_bytes(id, bytes);
        self.sample.set_expiry(id, request.expiry.unwrap_or(0));
        let is_refill = self.sample.replace_refill(id, false);
        for (which, model) in self.models.iter_mut().enumerate() {
            let place = self.sample.state(id, which).place;
            if !is_refill || matches!(place, Place::Absent | Place::Ghost) {
                model.store(&mut self.sample, id, 0);
            }
        }
        self.evict(now);
    }

    fn evict(&mut self, now: u32) {
        for model in &mut self.models {
            model.evict(&mut self.sample, now, Self::forget);
        }
    }

    /// Removes expired items, a few keys at a time.
    fn sweep(&mut self, now: u32) {
        for _ in 0..SWEPT_KEYS {
            self.swept = if usize::from(self.swept) + 1 < KEYS_MAX { self.swept + 1 } else { 0 };
            if self.sample.is_used(self.swept) && self.sample.is_expired(self.swept, now) {
                self.remove(self.swept);
            }
        }
    }

    /// Halves the counts each hour, and forgets them while the model learns.
    fn judge(&mut self, now: u32) {
        if now >= self.decay_due {
            let halvings = 1 + (now - self.decay_due) / HALF_LIFE_S;
            self.decay_due += halvings * HALF_LIFE_S;
            self.sums.scale(0.5_f64.powi(halvings.min(64) as i32));
        }
        if self.recent == LEARNING_READS {
            self.sums.is_learning = self.recent_unseen >= LEARNING_READS / LEARNING_DIVISOR;
            if self.sums.is_learning {
                self.sums =
                    MissSums { is_learning: true, rate: self.sums.rate, ..MissSums::default() };
            }
            (self.recent, self.recent_unseen) = (0, 0);
        }
    }
}

/// The memory that the item of a request takes.
fn bytes_of(request: &SampledRequest) -> u32 {
    let value_bytes = request.value_bytes as usize;
    let bytes = memory_bytes_of(request.key_bytes.into(), value_bytes) + SLOT_BYTES;
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

impl MissModel for Miniatures {
    fn threshold(&self) -> u32 {
        self.threshold
    }

    fn note(&mut self, request: &SampledRequest, now: u32) {
        if (request.secret_hash >> 32) as u32 >= self.threshold {
            return;
        }
        if matches!(request.event, SampledEvent::Hit | SampledEvent::Miss) {
            self.sums.samples += 1;
            self.recent += 1;
        }
        match request.event {
            SampledEvent::Hit => self.read_hit(request, now),
            SampledEvent::Miss => self.read_miss(request.secret_hash, now),
            SampledEvent::Stored => self.store(request, now),
            SampledEvent::Touched => {
                if let Some(id) = self.live_key(request.secret_hash, now) {
                    self.sample.set_expiry(id, request.expiry.unwrap_or(0));
                }
            }
            SampledEvent::Removed => {
                if let Some(id) = self.sample.find(request.secret_hash as u32) {
                    self.remove(id);
                }
            }
        }
        self.sweep(now);
        self.judge(now);
    }

    fn note_served(&mut self, reads: u64, misses: u64) {
        debug_assert!(misses <= reads, "a miss is a read");
        self.sums.reads += reads as f64;
        self.sums.misses += misses as f64;
    }

    fn set_memory(&mut self, memory: ModelMemory) {
        if self.memory != memory {
            let before = std::mem::replace(&mut self.memory, memory);
            let is_same = before.share_bytes == memory.share_bytes;
            self.is_full = is_same && (self.is_full || before.evictions < memory.evictions);
            self.set_capacities();
        }
    }

    fn flush(&mut self) {
        for id in 0..KEYS_MAX as KeyId {
            if self.sample.is_used(id) {
                self.remove(id);
            }
        }
    }

    fn sums(&self) -> MissSums {
        let keys = self.sample.len() as u64;
        MissSums { keys, ..self.sums }
    }
}

const _: () = assert!(NO_KEY as usize > KEYS_MAX && START_LEVEL < LEVEL_MAX);

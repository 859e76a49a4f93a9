//! The contract of a model that estimates how many reads would miss with more or less memory.
//!
//! Upstream:   `shard` passes the requests for the keys of a sample to the model of the engine that
//!             owns them; the laboratory does the same in process.
//! Downstream: an engine that evicts has such a model ([`crate::Common::miss_model`]).
//!
//! How an engine evicts is its own affair, so only the engine can say what it would have held. The
//! model sees a sample of the keys, and weighs what it counts by the part of the keys that it sees.
//! The sums of several models add up.

use std::fmt;

/// The sizes of memory that a model compares, in quarters of the memory that the engine has.
pub const MODEL_QUARTERS: [u32; MODEL_SIZES] = [1, 2, 4, 8, 16];
/// How many sizes a model compares.
pub const MODEL_SIZES: usize = 5;
/// The place of the size that the engine has among [`MODEL_QUARTERS`].
pub const MODEL_ACTUAL: usize = 2;

const _: () = assert!(MODEL_QUARTERS[MODEL_ACTUAL] == 4, "the whole memory is four quarters");

/// Misses of the sample from which on they tell how dense it is.
const DENSITY_MISSES_MIN: f64 = 1000.0;

/// The most bytes of memory that a model takes.
pub const MISS_MODEL_BYTES_MAX: usize = 1 << 20;

/// What a request did with its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampledEvent {
    /// A read found the item.
    Hit,
    /// A read did not find the item.
    Miss,
    /// The item was stored.
    Stored,
    /// The item got another expiry. Reads that do so are not counted.
    Touched,
    /// The item was removed.
    Removed,
}

/// A request for one key of the sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampledRequest {
    /// The secret hash of the key.
    pub secret_hash: u64,
    /// What the request did.
    pub event: SampledEvent,
    /// The length of the key in bytes.
    pub key_bytes: u8,
    /// The length in bytes of the value that was read or stored; 0 for other requests.
    pub value_bytes: u32,
    /// The second in which the item expires from now on, 0 for never, if the request sets it.
    pub expiry: Option<u32>,
}

/// The memory that an engine has, as a model needs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelMemory {
    /// Items that the engine holds.
    pub items: u64,
    /// Bytes of these items, without the index.
    pub live_bytes: u64,
    /// The engine's part of the memory limit.
    pub share_bytes: u64,
    /// Items that the engine has evicted since its start.
    pub evictions: u64,
}

/// What a model has counted: numbers of reads, each weighed by the part of the keys in the sample.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MissSums {
    /// Reads that the engine answered, all of them and not a sample.
    pub reads: f64,
    /// Those that missed.
    pub misses: f64,
    /// Reads of the sample that missed.
    pub sampled_misses: f64,
    /// Reads of the sample that would have missed with each size of memory ([`MODEL_QUARTERS`]).
    pub modeled: [f64; MODEL_SIZES],
    /// Reads of the sample that missed because the key was not stored before, was deleted, or had
    /// expired, so that no size of memory would help.
    pub hopeless: f64,
    /// Reads in the sample, not weighed.
    pub samples: u64,
    /// Keys in the sample.
    pub keys: u64,
    /// The part of the keys that is in the sample.
    pub rate: f64,
    /// Whether the model has not seen yet what the engine holds.
    pub is_learning: bool,
}

impl MissSums {
    /// How dense the sample is, compared with its rate: the misses of the sample, to all misses. A
    /// sample by hash has a few more or fewer keys than its rate says.
    pub fn density(&self) -> f64 {
        let is_known = self.sampled_misses * self.rate >= DENSITY_MISSES_MIN;
        if is_known { (self.sampled_misses / self.misses).clamp(0.8, 1.25) } else { 1.0 }
    }

    /// The parts of the reads that would miss with each size of memory ([`MODEL_QUARTERS`]).
    ///
    /// The model's errors are much alike at all sizes: they come from the sample, and from what the
    /// model leaves out. So only its differences are used, from what the server itself has counted.
    pub fn estimates(&self) -> [f64; MODEL_SIZES] {
        let reads = self.reads.max(1.0);
        let (actual, density) = (self.modeled[MODEL_ACTUAL], self.density());
        let change = |modeled: f64| (modeled - actual) / density;
        self.modeled.map(|modeled| ((self.misses + change(modeled)) / reads).clamp(0.0, 1.0))
    }

    /// The part of the reads that missed and that no size of memory would have helped.
    pub fn hopeless_ratio(&self) -> f64 {
        self.hopeless / self.density() / self.reads.max(1.0)
    }

    /// How far the model is from what the server answered at the actual size of memory, over the
    /// same keys, as a part of the reads.
    pub fn error(&self) -> f64 {
        (self.modeled[MODEL_ACTUAL] - self.sampled_misses) / self.reads.max(1.0)
    }

    /// Weighs all that was counted by `factor`.
    pub fn scale(&mut self, factor: f64) {
        let Self { reads, misses, sampled_misses, modeled, hopeless, .. } = self;
        for sum in [reads, misses, sampled_misses, hopeless].into_iter().chain(modeled) {
            *sum *= factor;
        }
        self.samples = (self.samples as f64 * factor) as u64;
    }

    /// Adds the sums of the model of another engine. The rate is the lesser one.
    pub fn add(&mut self, other: &Self) {
        self.rate = if self.keys == 0 { other.rate } else { self.rate.min(other.rate) };
        self.reads += other.reads;
        self.misses += other.misses;
        self.sampled_misses += other.sampled_misses;
        for (sum, more) in self.modeled.iter_mut().zip(other.modeled) {
            *sum += more;
        }
        self.hopeless += other.hopeless;
        self.samples += other.samples;
        self.keys += other.keys;
        self.is_learning |= other.is_learning;
    }
}

/// A model of one engine's eviction at several sizes of memory. It sees the requests of a sample of
/// the keys.
pub trait MissModel: fmt::Debug + Send {
    /// The high half of the secret hash of each key of the sample is below this number. It only
    /// falls.
    fn threshold(&self) -> u32;

    /// Notes a request for a key, in second `now`. A key outside the sample is ignored.
    fn note(&mut self, request: &SampledRequest, now: u32);

    /// Notes reads that the server has answered, in and outside the sample. All models together are
    /// told of each read once.
    fn note_served(&mut self, reads: u64, misses: u64);

    /// Tells the model the memory that its engine has now.
    fn set_memory(&mut self, memory: ModelMemory);

    /// Forgets all items, because they were flushed.
    fn flush(&mut self);

    /// What was counted.
    fn sums(&self) -> MissSums;
}

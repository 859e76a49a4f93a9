//! Kachel's own engine as an eviction policy: a trace runs through the code of the server, in
//! process, with the memory that `-m` gives a server of one thread.
//!
//! Upstream:   the records of a trace, and a size of `-m`.
//! Downstream: `kachel-cache`, through the contract of engines; the counts go to `measure`.
//!
//! The engine shares its memory between the index, the headers of items, free segments and the
//! items. How many items it holds depends on their sizes and on what it has just compacted, so that
//! is counted and not given: a walk at each of `SAMPLES` moments of the trace, from the first
//! eviction on. The other policies are measured with the memory of the mean.
//!
//! Requests are those of `kachel-lab load replay`: a read that misses is followed by a write with
//! the TTL of the trace. Time stands still, as it nearly does in a replay at full speed.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  No core reads beside the engine, so nothing that is freed waits for a reader.

use std::sync::Arc;

use kachel_cache::{Cache, CacheCommon, EngineOf, Miniatures, Pool, PoolOptions, budget_bytes_min};
use kachel_engine::{
    Block, ClockOrigin, Common as _, Cursor, Engine as _, EngineOptions, Extensions as _,
    INLINE_VALUE_BYTES_MAX, KeyHasher, LeaseOptions, MissModel as _, MissSums, ModelMemory, Now,
    Operation, ReceiveValue as _, Room, SampledEvent, SampledRequest, Seeds, Ttl, Verdict,
    WalkNext, apply,
};
use kachel_host::Budget;
use kachel_load::{Effect, Trace};
use kachel_stdx::Reader;

/// How often the items are counted over a trace.
const SAMPLES: usize = 32;
/// The miniatures are told of the engine's memory each time that this many requests were executed.
const MEMORY_TOLD_REQUESTS: usize = 64;
/// Items that one step of a walk looks at.
const WALK_ITEMS_MAX: usize = 4_096;
/// The largest item, as `-I` is by default.
const ITEM_BYTES_MAX: u64 = 1 << 20;
/// How often room is made for one large value before something is wrong.
const ROOM_TRIES_MAX: usize = 1_000;
/// The Unix time of the start.
const START_UNIX_S: u32 = 1_800_000_000;
/// The longest relative TTL; a longer one is sent as a point in time.
const RELATIVE_TTL_S_MAX: u32 = 30 * 24 * 3600;

/// The figures of the engine's run over a trace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    /// Reads that missed.
    pub(super) misses: u64,
    /// Items held, in the mean over the trace from the first eviction on, or at the end if nothing
    /// was evicted.
    pub(super) items: u64,
    /// Bytes of their keys and values.
    pub(super) bytes: u64,
    /// Items evicted.
    pub(super) evictions: u64,
    /// What the miniatures of the engine counted.
    pub(super) sums: MissSums,
}

/// The engine of a server of one thread.
struct InProcess {
    cache: Cache,
    common: CacheCommon,
    hasher: KeyHasher,
    now: Now,
    core: Reader,
    /// What the server's observer would be: it sees the same requests.
    miniatures: Miniatures,
    /// The bytes of all values.
    value: Vec<u8>,
}

/// Runs a trace through an engine with `memory_bytes` of memory for everything. `seed` is that of
/// the secret hash of keys.
///
/// Cost: about 0.3 us a request.
///
/// Errors: so little memory is no cache, or the kernel refuses it; as a message for the user.
pub(super) fn run(trace: &Trace, memory_bytes: u64, seed: u64) -> Result<Run, String> {
    let mut server = InProcess::start(trace, memory_bytes, seed)?;
    let mut misses = 0;
    let mut samples = Vec::new();
    let every = trace.records.len().div_ceil(SAMPLES);
    for (at, record) in trace.records.iter().enumerate() {
        let key = trace.key(record.key);
        let value_bytes = trace.value_bytes(record) as usize;
        match record.effect() {
            Effect::Delete => {
                server.delete(key);
                server.note(key, 0, SampledEvent::Removed);
            }
            Effect::Write => server.write(key, value_bytes, record.ttl_s),
            Effect::Read if server.read(key) => server.note(key, value_bytes, SampledEvent::Hit),
            Effect::Read => {
                misses += 1;
                server.note(key, value_bytes, SampledEvent::Miss);
                server.write(key, value_bytes, record.ttl_s);
            }
        }
        if at % MEMORY_TOLD_REQUESTS == 0 {
            server.tell_memory(memory_bytes);
        }
        // A server does this at the end of each tick.
        server.cache.maintain(&server.now);
        let is_last = at + 1 == trace.records.len();
        let is_sampled = at % every == 0 && server.cache.stats().evictions > 0;
        if is_sampled || (is_last && samples.is_empty()) {
            samples.push(server.held());
        }
    }
    let mean = |sum: u64| sum / samples.len() as u64;
    Ok(Run {
        misses,
        items: mean(samples.iter().map(|(items, _)| items).sum()),
        bytes: mean(samples.iter().map(|(_, bytes)| bytes).sum()),
        evictions: server.cache.stats().evictions,
        sums: server.miniatures.sums(),
    })
}

impl InProcess {
    fn start(trace: &Trace, memory_bytes: u64, seed: u64) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("{memory_bytes} bytes of memory: {error}");
        let least = budget_bytes_min(1);
        if memory_bytes < least {
            return Err(format!("the engine needs {least} bytes of memory, not {memory_bytes}"));
        }
        let budget = Arc::new(Budget::new(memory_bytes));
        let options =
            PoolOptions { engines: 1, reserve_bytes: memory_bytes, ..PoolOptions::default() };
        let pool = Pool::new(Arc::clone(&budget), options).map_err(failed)?;
        let hasher = KeyHasher::new(Seeds { hash_keys: [seed, !seed] }, 1);
        let leases = LeaseOptions::DEFAULT;
        let options =
            EngineOptions { evict: true, cas: true, item_bytes_max: ITEM_BYTES_MAX, leases };
        let mut cache = Cache::new(pool, budget, hasher, options, EngineOf::ONE).map_err(failed)?;
        let now = ClockOrigin::new(0, i64::from(START_UNIX_S)).at(0);
        let common = cache.common();
        let core = common.register_core().ok_or("too many engines")?;
        cache.enter(core.place(), &now);
        let largest =
            trace.records.iter().map(|record| trace.value_bytes(record)).max().unwrap_or(0);
        let (miniatures, value) = (Miniatures::new(), vec![b'v'; largest as usize]);
        Ok(Self { cache, common, hasher, now, core, miniatures, value })
    }

    /// Tells the miniatures of a request.
    fn note(&mut self, key: &[u8], value_bytes: usize, event: SampledEvent) {
        if matches!(event, SampledEvent::Hit | SampledEvent::Miss) {
            self.miniatures.note_served(1, u64::from(event == SampledEvent::Miss));
        }
        let secret_hash = self.hasher.secret_hash(key);
        if (secret_hash >> 32) as u32 >= self.miniatures.threshold() {
            return;
        }
        let request = SampledRequest {
            secret_hash,
            event,
            key_bytes: u8::try_from(key.len()).unwrap_or(u8::MAX),
            value_bytes: u32::try_from(value_bytes).unwrap_or(u32::MAX),
            expiry: None,
        };
        self.miniatures.note(&request, self.now.second);
    }

    fn tell_memory(&mut self, share_bytes: u64) {
        let stats = self.cache.stats();
        self.miniatures.set_memory(ModelMemory {
            items: stats.items,
            live_bytes: stats.live_bytes,
            share_bytes,
            evictions: stats.evictions,
        });
    }

    /// Whether the key is there.
    fn read(&mut self, key: &[u8]) -> bool {
        let operation = Operation::get(self.hasher.key(key));
        let outcome = apply(&mut self.cache, &operation, &mut Block::None, &self.now);
        matches!(outcome.expect("I1").verdict, Verdict::Hit(_))
    }

    fn delete(&mut self, key: &[u8]) {
        let operation = Operation::delete(self.hasher.key(key));
        apply(&mut self.cache, &operation, &mut Block::None, &self.now).expect("I1");
    }

    /// Stores the key, unless the value is too large.
    fn write(&mut self, key: &[u8], value_bytes: usize, ttl_s: u32) {
        let ttl_s = if ttl_s <= RELATIVE_TTL_S_MAX { ttl_s } else { START_UNIX_S + ttl_s };
        let ttl = Ttl(i32::try_from(ttl_s).unwrap_or(i32::MAX));
        let operation = Operation::set(self.hasher.key(key), value_bytes, ttl);
        let value = &self.value[..value_bytes];
        let mut block = Block::Bytes(value);
        if value_bytes > INLINE_VALUE_BYTES_MAX {
            let upload = self.common.begin_upload(value_bytes, self.core.place());
            let Some(mut upload) = upload.filter(|_| value_bytes as u64 <= ITEM_BYTES_MAX) else {
                return self.delete(key); // As a server answers a value that is too large.
            };
            let is_received = (0..ROOM_TRIES_MAX).any(|_| {
                upload.write(value).is_ok()
                    || self.cache.make_upload_room(value_bytes, &self.now) == Room::Refused
            });
            assert!(is_received, "I1: room that was made is there at once");
            block = Block::Upload(upload);
        }
        apply(&mut self.cache, &operation, &mut block, &self.now).expect("I1");
        self.note(key, value_bytes, SampledEvent::Stored);
    }

    /// The number of items, and the bytes of their keys and values.
    fn held(&mut self) -> (u64, u64) {
        let (mut items, mut bytes) = (0, 0);
        let mut cursor = Cursor::default();
        loop {
            let step = self.cache.walk(&mut cursor, &self.now, WALK_ITEMS_MAX, |key, item| {
                items += 1;
                bytes += (key.len() + item.value_bytes()) as u64;
                true
            });
            if step.next == WalkNext::End {
                return (items, bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::misses::policy::PolicyName;
    use crate::misses::simulate::Requests;

    const MIB: u64 = 1 << 20;

    /// A trace of lines `key,value_bytes,operation`, each key with 8 bytes.
    fn trace(lines: impl Iterator<Item = (u64, u32, &'static str)>) -> Trace {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        for (key, bytes, operation) in lines {
            writeln!(file, "0,k{key:07},8,{bytes},1,{operation},0").expect("written");
        }
        file.flush().expect("written");
        Trace::read(file.path(), 1.0, None).expect("a trace")
    }

    /// Numbers below `bound`, of which small ones are frequent.
    fn skewed(count: usize, bound: u64) -> impl Iterator<Item = u64> {
        let mut state = 88_172_645_463_325_252_u64;
        let mut next = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        (0..count).map(move |_| (next() % bound) * (next() % bound) / bound)
    }

    /// The curve of one run tells within two points what the other one has missed, whose memory is
    /// twice (`place` 3) or half (`place` 1) as large. The sample has 3,000 keys here; with whole
    /// traces the curve is nearer (`experiments/e043-miss-ratio-curve`).
    fn assert_near(run: &Run, place: usize, other: &Run) {
        let ratio = other.misses as f64 / run.sums.reads;
        let told = run.sums.estimates()[place];
        assert!((told - ratio).abs() <= 0.02, "{place}: {told} {ratio}");
        assert!(run.sums.error().abs() <= 0.02, "its own memory: {}", run.sums.error());
    }

    #[test]
    fn what_fits_misses_once_and_is_counted() {
        let keys = (0..1_000).chain(0..1_000).map(|key| (key, 100, "get"));
        // One value is written with another size, one is large, one too large, one deleted.
        let others = [(7, 60, "set"), (7, 60, "get"), (2_000, 100_000, "get"), (8, 0, "delete")];
        let more = [(2_000, 100_000, "get"), (3_000, 2_000_000, "get"), (3_000, 2_000_000, "get")];
        let trace = trace(keys.chain(others).chain(more));
        let run = run(&trace, 64 * MIB, 1).expect("memory");
        assert_eq!((run.misses, run.evictions), (1_000 + 1 + 2, 0));
        // Keys have 8 bytes.
        let bytes = 998 * 108 + 68 + 100_008;
        assert_eq!((run.items, run.bytes), (1_000, bytes));
    }

    #[test]
    fn with_little_memory_the_engine_evicts_and_holds_less_than_its_memory() {
        let requests = || skewed(400_000, 100_000).map(|key| (key, 50 + key as u32 % 300, "get"));
        let trace = trace(requests());
        let memory = 10 * MIB;
        let first = run(&trace, memory, 1).expect("memory");
        assert!(first.evictions > 5_000, "{first:?}");
        assert!(first.bytes > memory / 4 && first.bytes < memory, "{first:?}");
        let again = run(&trace, memory, 1).expect("memory");
        assert_eq!(format!("{first:?}"), format!("{again:?}"), "runs repeat");
        // It holds fewer bytes than memory, and knows less than Belady and more than nothing.
        let others = Requests::of(&trace, false).expect("reads");
        let misses = |policy| others.misses(policy, first.bytes);
        let (belady, fifo) = (misses(PolicyName::Belady), misses(PolicyName::Fifo));
        assert!(belady < first.misses && first.misses < fifo, "{belady} {first:?} {fifo}");
        // More memory, fewer misses.
        let more = run(&trace, 2 * memory, 1).expect("memory");
        assert_near(&first, 3, &more);
        assert_near(&more, 1, &first);
        assert!(more.misses < first.misses && more.items > first.items, "{more:?}");
        assert!(run(&trace, 1_000, 1).is_err(), "that is no cache");
    }
}

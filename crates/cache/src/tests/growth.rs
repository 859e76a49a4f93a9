//! Tests that the work of one call is bounded while the engine grows and shrinks. The work of each
//! call is counted.
//!
//! Upstream:   `cargo test`, to a few hundred thousand items; `tests/growth/run`, optimized, to ten
//!             million.
//! Downstream: `cache`.

use std::sync::Arc;

use kachel_engine::{
    Block, ClockOrigin, Common as _, Engine as _, EngineOptions, KeyHasher, LeaseOptions, NoRoom,
    Now, Operation, Seeds, Ttl, Verdict, apply,
};
use kachel_host::Budget;
use kachel_segment::{Pool, PoolOptions};
use kachel_table::{INSERT_SLOTS_MAX, MERGE_SLOTS_MAX, STEP_BYTES_MAX};

use crate::cache::{Cache, EngineOf, GROWTH_SLOTS_MAX, MAINTENANCE_ITEMS_MAX};

/// The most items of the test.
const ITEMS: u64 = if cfg!(debug_assertions) { 300_000 } else { 10_000_000 };
/// Requests between two calls of upkeep, as in a tick with a full batch.
const REQUESTS: u64 = 32;
/// The most bytes that an item and its share of the index take.
const ITEM_BYTES: u64 = 64;
/// The lower memory limit, to which the test shrinks the cache.
const LOW_BYTES: u64 = ITEMS * ITEM_BYTES / 16;

/// The most segments freed in one call.
const SEGMENTS_MAX: u64 = 6;

/// The work of one call.
#[derive(Clone, Copy, Debug, Default)]
struct Work {
    /// Slots of the index moved.
    slots: u64,
    /// Bytes that the index charged: those of pages that it may now touch for the first time.
    charged_bytes: u64,
    /// Bytes of the index given back to the kernel and the budget.
    released_bytes: u64,
    /// Segments freed.
    released_segments: u64,
}

impl Work {
    fn at_most(self, limit: Self) -> Result<(), String> {
        let within = self.slots <= limit.slots
            && self.charged_bytes <= limit.charged_bytes
            && self.released_bytes <= limit.released_bytes
            && self.released_segments <= limit.released_segments;
        if within { Ok(()) } else { Err(format!("{self:?}, at most {limit:?}")) }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            slots: self.slots + other.slots,
            charged_bytes: self.charged_bytes + other.charged_bytes,
            released_bytes: self.released_bytes + other.released_bytes,
            released_segments: self.released_segments + other.released_segments,
        }
    }

    fn max(self, other: Self) -> Self {
        Self {
            slots: self.slots.max(other.slots),
            charged_bytes: self.charged_bytes.max(other.charged_bytes),
            released_bytes: self.released_bytes.max(other.released_bytes),
            released_segments: self.released_segments.max(other.released_segments),
        }
    }
}

/// The slots that the index may move while it shrinks by two slots for each of `items` evicted, in
/// `calls` calls.
const fn shrunk_slots(items: u64, calls: u64) -> u64 {
    ((2 * items).div_ceil(7) + calls) * MERGE_SLOTS_MAX
}

/// Upkeep examines at most this many slots, and then the rest of the last bucket. It examines as
/// many items, a part of a segment at a time, and the index shrinks with those that it evicts.
const UPKEEP: Work = Work {
    slots: (MAINTENANCE_ITEMS_MAX as u64).div_ceil(7) * MERGE_SLOTS_MAX
        + shrunk_slots(MAINTENANCE_ITEMS_MAX as u64, 4),
    charged_bytes: STEP_BYTES_MAX,
    released_bytes: STEP_BYTES_MAX,
    released_segments: SEGMENTS_MAX,
};

/// A store moves few slots. Room for the next step of the index is made by one eviction at a time.
const STORE: Work = Work {
    slots: INSERT_SLOTS_MAX,
    charged_bytes: STEP_BYTES_MAX,
    released_bytes: STEP_BYTES_MAX,
    released_segments: SEGMENTS_MAX,
};

/// A store that finds the index too full for its key, and no memory left, lets it grow in one call,
/// and tries again.
const STORE_INTO_FULL: Work =
    Work { slots: (GROWTH_SLOTS_MAX as u64).next_multiple_of(7) + 3 * INSERT_SLOTS_MAX, ..STORE };

/// The most items of a victim: those of a segment, of 24 bytes each.
const VICTIM_ITEMS: u64 = if cfg!(debug_assertions) { 64 << 10 } else { 1 << 20 } / 24;
/// The most calls that it takes to empty a victim of [`VICTIM_ITEMS`].
const VICTIM_CALLS: u64 = VICTIM_ITEMS.div_ceil(64) + 1;

/// A store that evicts, in full memory. The index shrinks with the items of the victim.
const STORE_THAT_EVICTS: Work =
    Work { slots: STORE.slots + shrunk_slots(VICTIM_ITEMS, VICTIM_CALLS), ..STORE };

/// A tick: a full batch of requests, one of which may let the index grow in one call, and one of
/// which may empty a victim; and upkeep.
const TICK: Work = Work {
    slots: STORE_INTO_FULL.slots
        + STORE_THAT_EVICTS.slots
        + REQUESTS * INSERT_SLOTS_MAX
        + UPKEEP.slots,
    charged_bytes: 3 * STEP_BYTES_MAX,
    released_bytes: 2 * STEP_BYTES_MAX,
    released_segments: 3 * SEGMENTS_MAX,
};

/// A removal moves nothing. A segment that it empties may be freed.
const REMOVAL: Work = Work { slots: 0, charged_bytes: 0, released_bytes: 0, released_segments: 1 };

/// The work that is checked: that of one call, or of all calls of a tick.
#[derive(Clone, Copy, Debug)]
enum Call {
    Store,
    Removal,
    Upkeep,
    Tick,
}

/// An engine whose work is counted.
struct Watched {
    budget: Arc<Budget>,
    engine: Cache,
    hasher: KeyHasher,
    now: Now,
    /// The most work that each kind of [`Call`] did.
    most: [Work; 4],
    /// The work of this tick.
    tick: Work,
}

impl Watched {
    fn new() -> Self {
        let budget = Arc::new(Budget::new(ITEMS * ITEM_BYTES));
        let reserve_bytes = budget.limit_bytes();
        let options = PoolOptions { engines: 1, reserve_bytes, ..PoolOptions::default() };
        let pool = Pool::new(Arc::clone(&budget), options).expect("address space");
        let hasher = KeyHasher::new(Seeds { hash_keys: [3, 5] }, 1);
        let options = EngineOptions {
            evict: true,
            cas: true,
            item_bytes_max: 1 << 20,
            leases: LeaseOptions::DEFAULT,
        };
        let engine = Cache::new(pool, Arc::clone(&budget), hasher, options, EngineOf::ONE)
            .expect("address space");
        let now = ClockOrigin::new(0, 1_800_000_000).at(0);
        Self { budget, engine, hasher, now, most: [Work::default(); 4], tick: Work::default() }
    }

    /// Measures the work of `call`.
    fn work<R>(&mut self, call: impl FnOnce(&mut Cache) -> R) -> (R, Work) {
        let slots = |engine: &Cache| {
            let counters = engine.table.counts();
            (counters.splits + counters.merges) * 7 + counters.moves
        };
        let (slots_before, index_before) = (slots(&self.engine), self.engine.table.bytes());
        let spent_before = self.budget.spent_bytes();
        let done = call(&mut self.engine);
        let index = self.engine.table.bytes();
        // The rest of the charge, without the index, is for segments.
        let segments =
            (spent_before - index_before).saturating_sub(self.budget.spent_bytes() - index);
        let work = Work {
            slots: slots(&self.engine) - slots_before,
            charged_bytes: index.saturating_sub(index_before),
            released_bytes: index_before.saturating_sub(index),
            released_segments: segments / self.engine.segments.pool().segment_bytes() as u64,
        };
        (done, work)
    }

    fn judged<R>(
        &mut self,
        kind: Call,
        limit: Work,
        call: impl FnOnce(&mut Cache) -> R,
    ) -> Result<R, String> {
        let (done, work) = self.work(call);
        let most = &mut self.most[kind as usize];
        *most = most.max(work);
        self.tick = self.tick.plus(work);
        work.at_most(limit)?;
        Ok(done)
    }

    /// Runs the upkeep that ends a tick.
    fn end_tick(&mut self) -> Result<(), String> {
        self.upkeep()?;
        let tick = std::mem::take(&mut self.tick);
        let most = &mut self.most[Call::Tick as usize];
        *most = most.max(tick);
        tick.at_most(TICK).map_err(|what| format!("in one tick: {what}"))
    }

    fn upkeep(&mut self) -> Result<usize, String> {
        let now = self.now;
        self.judged(Call::Upkeep, UPKEEP, |engine| engine.maintain(&now))
    }

    fn upkeep_to_the_end(&mut self) -> Result<(), String> {
        while self.upkeep()? > 0 {}
        self.tick = Work::default();
        Ok(())
    }

    fn store(&mut self, number: u64) -> Result<Result<(), NoRoom>, String> {
        self.store_value(number, b"", STORE)
    }

    fn store_value(
        &mut self,
        number: u64,
        value: &[u8],
        limit: Work,
    ) -> Result<Result<(), NoRoom>, String> {
        let (key, hasher, now) = (number.to_le_bytes(), self.hasher, self.now);
        self.judged(Call::Store, limit, |engine| {
            let operation = Operation::set(hasher.key(&key), value.len(), Ttl(0));
            match apply(engine, &operation, &mut Block::Bytes(value), &now)
                .expect("one core")
                .verdict
            {
                Verdict::Stored { .. } => Ok(()),
                Verdict::NoMemory { .. } => Err(NoRoom),
                other => unreachable!("{other:?} is no verdict on a store"),
            }
        })
    }

    fn remove(&mut self, number: u64) -> Result<bool, String> {
        let (key, hasher, now) = (number.to_le_bytes(), self.hasher, self.now);
        self.judged(Call::Removal, REMOVAL, |engine| {
            let operation = Operation::delete(hasher.key(&key));
            apply(engine, &operation, &mut Block::None, &now).expect("one core").verdict
                == Verdict::Deleted
        })
    }

    fn fill(&mut self, items: u64) -> Result<(), String> {
        for number in 0..items {
            assert_eq!(self.store(number)?, Ok(()), "memory suffices or is made");
            if number % REQUESTS == 0 {
                self.end_tick()?;
            }
        }
        Ok(())
    }
}

#[test]
fn growing_to_many_items_and_back_does_little_in_one_go() {
    let mut watched = Watched::new();
    watched.fill(ITEMS).expect("growing");
    let top_bytes = watched.engine.table.bytes();
    assert_eq!(watched.engine.table.len(), ITEMS, "nothing was evicted");
    for number in 0..ITEMS {
        assert!(watched.remove(number).expect("removing"), "each is there until it is removed");
        if number % REQUESTS == 0 {
            watched.end_tick().expect("shrinking");
        }
    }
    watched.upkeep_to_the_end().expect("shrinking");
    let bytes = watched.engine.table.bytes();
    assert!(watched.engine.table.is_empty() && bytes * 20 < top_bytes, "{bytes} of {top_bytes}");
    println!("{ITEMS} items; most in one store, removal, upkeep, tick: {:?}", watched.most);
}

#[test]
fn a_lower_limit_takes_flushed_memory_back_in_steps() {
    let mut watched = Watched::new();
    watched.fill(ITEMS / 2).expect("growing");
    watched.engine.common().flush(&watched.now).expect("no disk");
    watched.engine.note_flush(&watched.now);
    watched.upkeep_to_the_end().expect("reclaiming");
    watched.budget.set_limit_bytes(LOW_BYTES);
    watched.upkeep_to_the_end().expect("releasing");
    assert_eq!(watched.budget.overdrawn_bytes(), 0);
    println!("most in one store, removal, upkeep, tick: {:?}", watched.most);
}

#[test]
fn an_index_that_grows_in_full_memory_does_little_in_one_tick() {
    const VALUE_BYTES: usize = 10_000;
    let mut watched = Watched::new();
    let large = vec![b'l'; VALUE_BYTES];
    let fills = 2 * ITEMS * ITEM_BYTES / VALUE_BYTES as u64;
    for number in 0..fills {
        let stored = watched.store_value(number, &large, STORE_INTO_FULL).expect("filling");
        assert_eq!(stored, Ok(()), "what is old makes room");
        watched.end_tick().expect("filling");
    }
    let slots = watched.engine.table.slots();
    for number in 0..ITEMS {
        let stored = watched.store_value(fills + number, b"", STORE_INTO_FULL).expect("growing");
        assert_eq!(stored, Ok(()), "what is old makes room");
        if number % REQUESTS == 0 {
            watched.end_tick().expect("growing");
        }
    }
    let grown = watched.engine.table.slots();
    assert!(grown > 10 * slots, "{grown} slots, {slots} before: the index has grown");
    println!("full; most in one store, removal, upkeep, tick: {:?}", watched.most);
}

#[test]
fn what_is_evicted_leaves_no_index_behind() {
    const VALUE_BYTES: usize = 10_000;
    let mut watched = Watched::new();
    watched.fill(ITEMS).expect("growing");
    let top_bytes = watched.engine.table.bytes();
    let large = vec![b'l'; VALUE_BYTES];
    // There is no upkeep from here on, as in a shard whose clients take all its time.
    for number in 0..2 * ITEMS * ITEM_BYTES / VALUE_BYTES as u64 {
        let stored = watched.store_value(ITEMS + number, &large, STORE_THAT_EVICTS);
        let stored = stored.expect("evicting");
        assert_eq!(stored, Ok(()), "what is old makes room");
    }
    let (items, bytes) = (watched.engine.table.len(), watched.engine.table.bytes());
    assert!(bytes * 10 < top_bytes, "{bytes} bytes of index for {items} items, {top_bytes} before");
    println!("most in one store, removal, upkeep, tick: {:?}", watched.most);
}

#[test]
fn a_lower_limit_takes_memory_in_use_back_in_steps_while_items_come() {
    let mut watched = Watched::new();
    watched.fill(ITEMS / 2).expect("growing");
    watched.budget.set_limit_bytes(LOW_BYTES);
    let mut kept = 0;
    for number in 0..ITEMS / 2 {
        let stored = watched.store_value(ITEMS + number, b"", STORE_THAT_EVICTS);
        kept += u64::from(stored.expect("storing").is_ok());
        if number % REQUESTS == 0 {
            watched.end_tick().expect("shrinking");
        }
    }
    watched.upkeep_to_the_end().expect("shrinking");
    assert_eq!(watched.budget.overdrawn_bytes(), 0);
    assert_eq!(kept, ITEMS / 2, "what is new is kept, at the price of what is old");
    println!("most in one store, removal, upkeep, tick: {:?}", watched.most);
}

#[test]
fn growth_that_stops_the_world_is_found_out() {
    let mut watched = Watched::new();
    // There is no upkeep between the calls, so that much work is left.
    for number in 0..200_000 {
        assert_eq!(watched.store(number).expect("growing"), Ok(()), "memory suffices");
    }
    let (moved, work) = watched.work(|engine| engine.maintain_index(usize::MAX));
    assert!(moved > 0 && work.at_most(UPKEEP).is_err(), "{work:?}");
}

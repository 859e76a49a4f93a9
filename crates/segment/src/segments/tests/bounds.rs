//! The work that one request causes while memory is full and must be freed for it.

use super::super::reclaimer::allowance::{
    CACHE_JOBS_MAX, PIECES_MAX, STORE_JOBS_MAX, STRIPS_MAX, UPKEEP_BYTES_MAX, UPKEEP_STEP_BYTES_MAX,
};
use super::index::{Random, Shard, pattern};
use crate::pool::FREED_BLOCKS_MAX;
use crate::{BLOCK_BYTES, NewValue, NoSegment, Pinned, SEGMENT_BYTES_MIN};

const LIMIT_BYTES: u64 = 4 << 20;
/// At least the bytes of header, access word, CAS token and key of each item in these tests.
const ITEM_BYTES: usize = 24;
const NOW: u32 = 9;

/// Full memory, and what was counted while it was used.
struct Full {
    shard: Shard,
    random: Random,
    pinned: Vec<Pinned>,
    /// The most items that one request examined.
    most_looked_at: usize,
    /// The most items that one request copied or dropped.
    most_changed: usize,
}

impl Full {
    fn new(evict: bool) -> Self {
        let shard = Shard::new(LIMIT_BYTES, evict);
        let (pinned, random) = (Vec::new(), Random(7));
        Self { shard, random, pinned, most_looked_at: 0, most_changed: 0 }
    }

    /// Runs one request, and notes the work that it caused.
    fn request(&mut self, walks_max: usize, run: impl FnOnce(&mut Shard)) {
        let swings = self.shard.index.swings;
        run(&mut self.shard);
        let dropped = std::mem::take(&mut self.shard.index.removed).len();
        let changed = self.shard.index.swings - swings + dropped;
        let (items_max, looked_at) =
            self.shard.segments.reclaimer.items_looked_at(SEGMENT_BYTES_MIN);
        assert!(changed <= looked_at, "{changed} of {looked_at} items");
        assert!(looked_at <= items_max, "{looked_at} of {items_max} items");
        let walked = looked_at.div_ceil(SEGMENT_BYTES_MIN / ITEM_BYTES);
        assert!(walked <= walks_max, "{looked_at} items are {walked} walks of {walks_max}");
        self.most_looked_at = self.most_looked_at.max(looked_at);
        self.most_changed = self.most_changed.max(changed);
    }

    /// Stores items of any size under few enough keys that there is much to replace, reads some,
    /// and pins some.
    fn use_memory(&mut self, requests: usize, walks_max: usize, is_pinning: bool) {
        for _ in 0..requests {
            let key = format!("{}", self.random.below(60_000));
            let bytes = match self.random.below(100) {
                0 => 3 * BLOCK_BYTES as u64,
                1..=9 => self.random.below(4000),
                _ => self.random.below(20),
            };
            let value = pattern(self.random.next(), bytes as usize);
            self.request(walks_max, |shard| {
                let _stored_or_refused = shard.set(key.as_bytes(), &value, NOW);
            });
            let read = format!("{}", self.random.below(60_000));
            let Some(at) = self.shard.at(read.as_bytes()) else { continue };
            self.shard.segments.note_access(at, NOW);
            if is_pinning && self.random.below(20) == 0 {
                self.pinned.push(self.shard.segments.pin(at));
            }
            if self.pinned.len() > 40 {
                let place = self.random.below(40) as usize;
                self.pinned.swap_remove(place);
            }
        }
    }
}

#[test]
fn a_request_to_a_full_cache_causes_a_bounded_amount_of_work() {
    for is_pinning in [false, true] {
        let mut full = Full::new(true);
        // A value of three blocks wants a segment besides the one for the item.
        let walks_max = 2 * CACHE_JOBS_MAX + STRIPS_MAX + 2;
        full.use_memory(60_000, walks_max, is_pinning);
        for bytes in [1, 1 << 16, 1 << 18] {
            let walks_max = (1 + bytes / SEGMENT_BYTES_MIN) * CACHE_JOBS_MAX + STRIPS_MAX + 2;
            full.request(walks_max, |shard| {
                shard.segments.make_room(bytes as u64, NOW, &mut shard.index);
            });
            full.request(walks_max, |shard| {
                shard.segments.make_upload_room(bytes, NOW, &mut shard.index);
            });
        }
        println!("{is_pinning}: {} and {} items", full.most_looked_at, full.most_changed);
        assert!(full.most_changed > 0 && full.shard.segments.stats().evictions > 0);
        full.shard.segments.audit();
    }
}

#[test]
fn a_request_to_a_full_store_causes_a_bounded_amount_of_work() {
    for is_pinning in [false, true] {
        let mut full = Full::new(false);
        full.use_memory(60_000, STORE_JOBS_MAX + 2, is_pinning);
        full.request(STORE_JOBS_MAX + 2, |shard| {
            shard.segments.make_upload_room(1 << 18, NOW, &mut shard.index);
        });
        println!("{is_pinning}: {} and {} items", full.most_looked_at, full.most_changed);
        assert!(full.most_changed > 0 && full.shard.segments.stats().refused > 0);
        full.shard.segments.audit();
    }
}

#[test]
fn a_request_gives_up_after_its_jobs_when_a_reader_keeps_what_comes_back() {
    let mut shard = Shard::new(8 << 20, true);
    let pool = std::sync::Arc::clone(shard.segments.pool());
    let mut reader = pool.register_reader().expect("a place");
    let mut number = 0;
    while shard.set(format!("{number:06}").as_bytes(), &[7; 200], NOW).is_ok() {
        number += 1;
    }
    let evicted = std::mem::take(&mut shard.index.removed).len();
    assert!(evicted > 0 && evicted < number, "not all of memory for one request: {evicted}");
    reader.round_over();
    assert!(shard.set(b"later", &[7; 200], NOW).is_ok(), "what was freed may be used now");
}

/// Items of one step of upkeep, as the engine asks for them.
const STEP_ITEMS: usize = 64;
/// Steps in which any upkeep below ends.
const STEPS_MAX: usize = 100_000;

/// Does upkeep until none is due. Returns the most work of a step, in bytes, and the number of
/// steps.
fn longest_step(shard: &mut Shard, now: u32) -> (u64, usize) {
    let mut longest = 0;
    for step in 0..STEPS_MAX {
        let before = shard.segments.work_bytes();
        let items = shard.segments.maintain(now, &mut shard.index, STEP_ITEMS);
        longest = longest.max(shard.segments.work_bytes() - before);
        if items == 0 {
            return (longest, step);
        }
    }
    panic!("upkeep ends");
}

/// The fault: a step ended only after 64 items, whatever their size.
#[test]
fn a_step_of_upkeep_has_a_bound_in_bytes() {
    const MEMORY: u64 = 128 << 20;
    // Bytes of a value, their number, and whether the values are pinned for a while.
    let rows =
        [(24 << 20, 4, false), (24 << 20, 4, true), (900_000, 100, false), (16_000, 6000, false)];
    for (bytes, count, is_pinned) in rows {
        for evict in [true, false] {
            let mut shard = Shard::new(MEMORY, evict);
            let mut pins = Vec::new();
            for number in 0..count {
                let value = pattern(number, bytes);
                let at = shard.set(format!("{number}").as_bytes(), &value, NOW).expect("room");
                shard.segments.note_access(at, NOW);
                pins.extend(is_pinned.then(|| shard.segments.pin(at)));
            }
            // Less memory: what was read is copied, the rest is dropped.
            let limit = if evict { MEMORY / 2 } else { MEMORY };
            shard.budget.set_limit_bytes(limit);
            let shrunk = longest_step(&mut shard, NOW);
            shard.flush(NOW + 1);
            let flushed = longest_step(&mut shard, NOW + 1);
            pins.clear();
            let unpinned = longest_step(&mut shard, NOW + 1);
            let longest = [shrunk, flushed, unpinned].map(|step| step.0);
            let most = longest.into_iter().max().expect("three");
            assert!(most <= UPKEEP_STEP_BYTES_MAX, "{bytes} bytes: {longest:?}");
            assert_eq!(shard.segments.pool().free_blocks(), 0);
            assert_eq!(shard.segments.pool().books().free_blocks, 0, "no block remains");
            shard.segments.audit();
            shard.assert_all_comes_back(NOW + 2);
        }
    }
}

/// The fault: a step ended within the search of a pinned segment while memory was short. After that
/// memory was not short, so no step went on with the search, but each claimed to have more to do.
#[test]
fn upkeep_ends_after_a_search_that_nobody_needs_any_more() {
    let mut shard = Shard::new(LIMIT_BYTES, true);
    let mut pins = Vec::new();
    for number in 0..600 {
        let at = shard.set(format!("{number:03}").as_bytes(), b"", NOW).expect("room");
        pins.push(shard.segments.pin(at));
    }
    assert_eq!(shard.segments.stats().segments, 1, "the segment that is open");
    shard.budget.set_limit_bytes(0);
    let items = shard.segments.maintain(NOW, &mut shard.index, STEP_ITEMS);
    assert!(items > 0, "a step ends within the segment");
    shard.budget.set_limit_bytes(LIMIT_BYTES);
    longest_step(&mut shard, NOW);
    drop(pins);
    shard.segments.audit();
    shard.assert_all_comes_back(NOW + 1);
}

/// A value that takes most of the memory is freed in pieces, and the next value is stored at once.
#[test]
fn the_room_of_a_value_that_is_gone_is_found_at_once() {
    for evict in [true, false] {
        let mut shard = Shard::new(64 << 20, evict);
        for turn in 0..4 {
            let value = pattern(turn, 48 << 20);
            shard.set(b"key", &value, NOW).expect("room");
            assert_eq!(shard.value(b"key"), Some(value));
            let before = shard.segments.work_bytes();
            assert!(shard.delete(b"key"));
            let work = shard.segments.work_bytes() - before;
            assert!(work <= UPKEEP_BYTES_MAX, "{work} bytes to delete it");
        }
        assert_eq!(shard.segments.stats().evictions, 0);
        shard.segments.audit();
        shard.assert_all_comes_back(NOW + 1);
    }
}

/// Stores two values of `bytes` whose blocks lie in the same segments, in turn.
fn set_interleaved(shard: &mut Shard, keys: [&[u8]; 2], bytes: usize) {
    let pool = std::sync::Arc::clone(shard.segments.pool());
    let mut uploads = keys.map(|_| pool.begin_upload(bytes).expect("less than all memory"));
    for _ in 0..bytes / BLOCK_BYTES {
        for upload in &mut uploads {
            upload.write(&[7; BLOCK_BYTES]).expect("memory suffices");
        }
    }
    for (key, upload) in keys.into_iter().zip(&mut uploads) {
        let item = shard.new_item(key, NewValue::Upload(upload));
        shard.store(item, NOW).expect("room");
    }
}

/// The fault: a request that wanted a segment freed all blocks of a value that was gone, because no
/// segment came free by any of them.
#[test]
fn a_request_frees_a_bounded_number_of_blocks_of_values_that_are_gone() {
    const PIECES: usize = 4;
    for evict in [true, false] {
        let mut shard = Shard::new(80 << 20, evict);
        set_interleaved(&mut shard, [b"gone", b"stays"], PIECES * FREED_BLOCKS_MAX * BLOCK_BYTES);
        let remaining = |shard: &Shard| shard.segments.pool().remaining_blocks() as usize;
        assert!(shard.delete(b"gone"));
        assert_eq!(remaining(&shard), (PIECES - 1) * FREED_BLOCKS_MAX, "the first piece is free");
        let (mut waits, mut number) = (0, 0);
        while remaining(&shard) > 0 {
            let (before, work) = (remaining(&shard), shard.segments.work_bytes());
            let stored = shard.set(format!("{number}").as_bytes(), &[7; 4000], NOW);
            let freed = before - remaining(&shard);
            assert!(freed <= PIECES_MAX * FREED_BLOCKS_MAX, "{freed} blocks for a small item");
            let work = shard.segments.work_bytes() - work;
            assert!(freed == 0 || work >= (freed * BLOCK_BYTES / 64) as u64, "they are counted");
            match stored {
                Ok(_) => number += 1,
                Err(NoSegment::NotYet) => waits += 1,
                Err(NoSegment::Refused) => panic!("there is room: {evict}"),
            }
            assert!(number < 20_000, "it wants a segment before");
        }
        assert!((1..PIECES).contains(&waits), "{waits} waits");
        assert_eq!(shard.segments.stats().evictions, 0, "nothing is dropped meanwhile");
        let stays = shard.at(b"stays").expect("it was not dropped");
        assert!(shard.segments.item(stays).value().parts().all(|part| part.starts_with(&[7; 9])));
        shard.segments.audit();
        shard.assert_all_comes_back(NOW + 1);
    }
}

//! Free blocks that are spread over many segments: they are gathered, and no value is evicted.

use super::index::{Shard, pattern};
use crate::{BLOCK_BYTES, Pinned};

/// Values of one block, and a few bytes so that the heads of all lie in few segments.
const VALUE_BYTES: usize = BLOCK_BYTES + 5;

/// An upper bound for few evictions among thousands of values: a few strides of a job.
const FEW_EVICTIONS: u64 = 400;

/// Has these shards store values in turn, with upkeep in between, until one evicts. Every eighth
/// value is read. Returns how many values each shard stored.
fn fill_until_one_evicts(shards: &mut [Shard]) -> u64 {
    let value = pattern(1, VALUE_BYTES);
    for number in 0.. {
        for shard in &mut *shards {
            let at = shard.set(format!("{number}").as_bytes(), &value, 9).expect("it makes room");
            if number % 8 == 0 {
                shard.segments.note_access(at, 9);
            }
            shard.segments.maintain(9, &mut shard.index, 64);
        }
        if evictions(shards) > 0 {
            return number + 1;
        }
    }
    unreachable!("memory is full at last")
}

fn evictions(shards: &[Shard]) -> u64 {
    shards.iter().map(|shard| shard.segments.stats().evictions).sum()
}

/// Upkeep by all shards in turn until nothing is due for any.
fn maintain_all(shards: &mut [Shard]) {
    while shards
        .iter_mut()
        .map(|shard| shard.segments.maintain(9, &mut shard.index, 64))
        .sum::<usize>()
        > 0
    {}
}

/// Fills the memory of some shards, and checks that their upkeep then drops only a few values.
fn upkeep_evicts_few<const SHARDS: usize>(limit_bytes: u64) {
    let mut shards: [Shard; SHARDS] = Shard::sharing_cut_for(limit_bytes, 1 << 30, true);
    let stored = fill_until_one_evicts(&mut shards);
    maintain_all(&mut shards);
    let evicted = evictions(&shards);
    assert!(evicted <= FEW_EVICTIONS, "{evicted} of {SHARDS} times {stored} were evicted");
    for shard in &shards {
        shard.segments.audit();
    }
}

/// A shard of 64 MiB that has stored values of one block and deleted all except every fourth. The
/// free blocks lie between the remaining values, which are pinned and so cannot move.
fn strewn(evict: bool) -> (Shard, Vec<Pinned>) {
    let [mut shard]: [Shard; 1] = Shard::sharing_cut_for(64 << 20, 4 << 30, evict);
    let value = pattern(1, VALUE_BYTES);
    let stored = (48 << 20) / BLOCK_BYTES as u64;
    let pins: Vec<_> = (0..stored)
        .filter_map(|number| {
            let at = shard.set(format!("{number}").as_bytes(), &value, 9).expect("memory is free");
            number.is_multiple_of(4).then(|| shard.segments.pin(at))
        })
        .collect();
    for number in (0..stored).filter(|number| number % 4 != 0) {
        assert!(shard.delete(format!("{number}").as_bytes()));
    }
    let free_blocks = shard.segments.pool().free_blocks();
    assert!(free_blocks * BLOCK_BYTES > 16 << 20, "room that no move can gather: {free_blocks}");
    (shard, pins)
}

#[test]
fn upkeep_evicts_no_more_once_blocks_are_free() {
    upkeep_evicts_few::<1>(64 << 20);
}

#[test]
fn upkeep_evicts_no_more_where_two_shards_share_block_segments() {
    upkeep_evicts_few::<2>(160 << 20);
}

#[test]
fn a_shard_gathers_its_own_blocks_though_the_emptiest_segments_hold_others() {
    let mut shards: [Shard; 2] = Shard::sharing(64 << 20, false);
    let value = pattern(1, VALUE_BYTES);
    let store = |shard: &mut Shard, name: &str, count: u64| {
        let key = |number| format!("{name} {number}");
        (0..count)
            .take_while(|&number| shard.set(key(number).as_bytes(), &value, 9).is_ok())
            .count()
    };
    let [mine, others] = &mut shards;
    let blocks = mine.segments.pool().blocks_per_segment();
    // Segments with one block of the other shard, and then with half of this one's.
    let foreign = store(others, "foreign", 40 * blocks as u64);
    let own = store(mine, "own", u64::MAX);
    for number in (0..foreign).filter(|number| number % blocks != 0) {
        assert!(others.delete(format!("foreign {number}").as_bytes()));
    }
    for number in (0..own).filter(|number| number % 2 == 0) {
        assert!(mine.delete(format!("own {number}").as_bytes()));
    }
    let half_bytes = own / 2 * BLOCK_BYTES;
    let mut small = 0;
    while mine.set(format!("small {small}").as_bytes(), &pattern(small, 200), 9).is_ok() {
        small += 1;
    }
    let small_bytes = small as usize * 232;
    assert!(small_bytes * 10 > half_bytes * 8, "{small_bytes} in place of {half_bytes}");
    for number in (1..own).step_by(2) {
        assert!(mine.value(format!("own {number}").as_bytes()).as_ref() == Some(&value));
    }
    mine.segments.audit();
}

#[test]
fn a_shard_in_need_has_the_others_gather_their_blocks() {
    let mut shards: [Shard; 3] = Shard::sharing_cut_for(96 << 20, 4 << 30, true);
    let value = pattern(1, VALUE_BYTES);
    let stored = (72 << 20) / BLOCK_BYTES / 2;
    for number in 0..stored {
        for shard in &mut shards[1..] {
            shard.set(format!("{number}").as_bytes(), &value, 9).expect("memory is free");
        }
    }
    // One of every four blocks stays; it belongs to the two shards in turn.
    let keeps = |shard: usize, number: usize| number % 4 == 2 * shard;
    for (shard, other) in shards[1..].iter_mut().enumerate() {
        for number in (0..stored).filter(|&number| !keeps(shard, number)) {
            assert!(other.delete(format!("{number}").as_bytes()));
        }
    }
    let free_bytes = shards[0].segments.pool().free_blocks() * BLOCK_BYTES;
    assert!(free_bytes > 32 << 20, "{free_bytes} bytes of free blocks");
    for number in 0..(56 << 20) / 232 {
        let key = format!("small {number}");
        shards[0].set(key.as_bytes(), &pattern(number, 200), 9).expect("it makes room");
        if number % 16 == 0 {
            for shard in &mut shards {
                shard.segments.maintain(9, &mut shard.index, 64);
            }
        }
    }
    let stats = shards[0].segments.stats();
    assert!(stats.evictions * 20 < stats.items, "{stats:?}");
    for shard in &shards {
        shard.segments.audit();
    }
    for (shard, other) in shards[1..].iter().enumerate() {
        for number in (0..stored).filter(|&number| keeps(shard, number)) {
            assert!(other.value(format!("{number}").as_bytes()).as_ref() == Some(&value));
        }
    }
}

#[test]
fn pinned_values_with_room_between_them_are_not_looked_at_again_and_again() {
    let (mut shard, pins) = strewn(true);
    let pool = std::sync::Arc::clone(shard.segments.pool());
    for number in 0..(64 << 20) / 232 {
        shard.set(format!("small {number}").as_bytes(), &pattern(number, 200), 9).expect("room");
        if number % 16 == 0 {
            shard.segments.maintain(9, &mut shard.index, 64);
        }
    }
    let (rounds, evicted) = (pool.gather_calls(), shard.segments.stats().evictions);
    assert!(evicted > 100_000 && rounds < 20, "{rounds} rounds for {evicted} evictions");
    drop(pins);
    shard.segments.audit();
}

#[test]
fn values_let_go_are_moved_although_a_round_before_was_in_vain() {
    let (mut shard, pins) = strewn(false);
    let mut number = 0;
    let mut fill = |shard: &mut Shard, now: u32| {
        let before = number;
        while shard.set(format!("small {number}").as_bytes(), &pattern(number, 200), now).is_ok() {
            number += 1;
        }
        number - before
    };
    let pinned = fill(&mut shard, 9);
    for _ in 0..100 {
        assert_eq!(fill(&mut shard, 9), 0, "full, and all looked at");
    }
    drop(pins);
    let free_bytes = (shard.segments.pool().free_blocks() * BLOCK_BYTES) as u64;
    let let_go = fill(&mut shard, 10);
    assert!(let_go * 232 > free_bytes / 2, "{pinned}, then {let_go} more in {free_bytes} bytes");
    shard.segments.audit();
}

#[test]
fn a_store_refuses_only_after_a_whole_round() {
    let mut shards: [Shard; 2] = Shard::sharing(64 << 20, false);
    let value = pattern(1, VALUE_BYTES);
    let [mine, others] = &mut shards;
    let blocks = mine.segments.pool().blocks_per_segment() as u64;
    let stored = 200 * blocks;
    for shard in [&mut *others, &mut *mine] {
        for number in 0..stored {
            shard.set(format!("{number}").as_bytes(), &value, 9).expect("memory is free");
        }
    }
    let mut small = 0;
    while mine.set(format!("small {small}").as_bytes(), &pattern(small, 200), 9).is_ok() {
        small += 1;
    }
    // The emptiest segments have one block of the other shard; then come some with two of its own.
    for (shard, kept) in [(&mut *others, 1), (&mut *mine, 2)] {
        for number in (0..stored).filter(|number| number % blocks >= kept) {
            assert!(shard.delete(format!("{number}").as_bytes()));
        }
    }
    mine.set(b"one more", &pattern(1, 200), 9).expect("blocks of its own to gather");
    mine.segments.audit();
}

#[test]
fn a_shard_that_is_called_gathers_until_it_has_looked_at_all() {
    let [mut idle]: [Shard; 1] = Shard::sharing_cut_for(128 << 20, 32 << 20, true);
    let value = pattern(1, VALUE_BYTES);
    let blocks = idle.segments.pool().blocks_per_segment() as u64;
    let stored = 400 * blocks;
    // The emptiest segments have one block that is pinned; then come some with two that are not.
    let is_pinned = |number| number < stored / 2 && number % blocks == 0;
    let is_kept = |number| is_pinned(number) || number >= stored / 2 && number % blocks < 2;
    let mut pins = Vec::new();
    for number in 0..stored {
        let at = idle.set(format!("{number}").as_bytes(), &value, 9).expect("memory is free");
        if is_pinned(number) {
            pins.push(idle.segments.pin(at));
        }
    }
    for number in (0..stored).filter(|&number| !is_kept(number)) {
        assert!(idle.delete(format!("{number}").as_bytes()));
    }
    while idle.segments.maintain(9, &mut idle.index, 64) > 0 {}
    let pool = std::sync::Arc::clone(idle.segments.pool());
    let free_before = pool.free_blocks();
    pool.call_to_gather();
    // A shard sleeps once its upkeep returns that there was nothing to do.
    while idle.segments.maintain(9, &mut idle.index, 64) > 0 {}
    let free_after = pool.free_blocks();
    let gathered = free_before - free_after;
    assert!(gathered as u64 > 140 * blocks, "{gathered} of {free_before} free blocks of {blocks}");
    drop(pins);
    idle.segments.audit();
}

//! Free blocks strewn over segments: they are gathered, and cost no values.

use super::index::{Shard, pattern};
use crate::BLOCK_BYTES;

/// Values of one block, and a few bytes so that the heads of all lie in few segments.
const VALUE_BYTES: usize = BLOCK_BYTES + 5;

/// Evictions that are a handful beside thousands of values: a few strides of a job.
const FEW_EVICTIONS: u64 = 400;

/// Stores values in turn with these shards, every eighth of which is read, with upkeep between,
/// until one evicts; how many each stored.
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

#[test]
fn upkeep_evicts_no_more_once_blocks_are_free() {
    let mut shards: [Shard; 1] = Shard::sharing_cut_for(64 << 20, 1 << 30, true);
    let stored = fill_until_one_evicts(&mut shards);
    maintain_all(&mut shards);
    let evicted = evictions(&shards);
    assert!(evicted <= FEW_EVICTIONS, "{evicted} of {stored} were evicted");
    shards[0].segments.audit();
}

#[test]
fn upkeep_evicts_no_more_where_two_shards_share_block_segments() {
    let mut shards: [Shard; 2] = Shard::sharing_cut_for(160 << 20, 1 << 30, true);
    let stored = fill_until_one_evicts(&mut shards);
    maintain_all(&mut shards);
    let evicted = evictions(&shards);
    assert!(evicted <= FEW_EVICTIONS, "{evicted} of two times {stored} were evicted");
    for shard in &shards {
        shard.segments.audit();
    }
}

//! Dead space is reclaimed before anything is evicted.

use super::index::{Random, Shard, pattern};
use crate::Reclaimed;

/// How often the limit is written. Compaction begins within the first time. A loss that grows
/// slowly shows in the long form.
fn rounds() -> u64 {
    if std::env::var_os("KACHEL_FULL").is_some() { 20 } else { 5 }
}

/// Items that fit before the first eviction.
fn items_that_fit(limit_bytes: u64, value_bytes: usize) -> u64 {
    let mut shard = Shard::new(limit_bytes, true);
    let value = pattern(1, value_bytes);
    let mut held = 0;
    while shard.segments.stats().evictions == 0 {
        shard.set(format!("key {held}").as_bytes(), &value, 100).expect("a cache makes room");
        held += 1;
    }
    held
}

/// Overwrites four fifths of what fits, until `rounds()` times the limit was written.
fn overwrite(limit_bytes: u64, value_bytes: usize, evict: bool) {
    let keys = items_that_fit(limit_bytes, value_bytes) * 4 / 5;
    let mut shard = Shard::new(limit_bytes, evict);
    let mut random = Random(7);
    for turn in 0..keys + rounds() * limit_bytes / (value_bytes as u64 + 24) {
        let number = if turn < keys { turn } else { random.below(keys) };
        let key = format!("key {number}");
        shard
            .set(key.as_bytes(), &pattern(number, value_bytes), 100)
            .expect("dead space is enough");
        if turn.is_multiple_of(16) {
            shard.segments.maintain(100, &mut shard.index, 8);
        }
    }
    let stats = shard.segments.stats();
    assert_eq!(stats.evictions, 0);
    assert_eq!(stats.items, keys);
    assert!(stats.compacted > 0, "compaction did it");
    shard.segments.audit();
    for number in (0..keys).step_by(97) {
        let value = shard.value(format!("key {number}").as_bytes());
        assert_eq!(value, Some(pattern(number, value_bytes)));
    }
}

#[test]
fn overwriting_four_fifths_evicts_nothing() {
    overwrite(8 << 20, 100, true);
}

#[test]
fn overwriting_four_fifths_of_long_items_evicts_nothing() {
    overwrite(8 << 20, 1000, true);
}

#[test]
fn overwriting_four_fifths_of_a_store_is_never_refused() {
    overwrite(8 << 20, 300, false);
}

/// One shard takes and gives back memory for long lines and replies all the time. The other shard
/// must not use up that memory.
#[test]
fn a_shard_that_lends_memory_keeps_its_share() {
    const LIMIT_BYTES: u64 = 16 << 20;
    const LENT_BYTES: u64 = 128 << 10;
    let keys = items_that_fit(LIMIT_BYTES / 2, 100) * 4 / 5;
    let mut shards: [Shard; 2] = Shard::sharing(LIMIT_BYTES, true);
    let mut random = Random(11);
    for turn in 0..keys * 4 {
        let number = if turn < keys { turn } else { random.below(keys) };
        for shard in &mut shards {
            let (key, value) = (format!("key {number}"), pattern(number, 100));
            shard.set(key.as_bytes(), &value, 100).expect("dead space is enough");
        }
        if turn % 128 == 0 {
            let [lender, other] = &mut shards;
            let segments = &mut lender.segments;
            let lent = lender.budget.charge(LENT_BYTES)
                || segments.make_room(LENT_BYTES, 100, &mut lender.index) == Reclaimed::Made
                    && lender.budget.charge(LENT_BYTES);
            if lent {
                lender.budget.refund(LENT_BYTES);
            }
            for shard in [lender, other] {
                shard.segments.maintain(100, &mut shard.index, 64);
            }
        }
        let evictions = shards.each_ref().map(|shard| shard.segments.stats().evictions);
        assert_eq!(evictions, [0, 0], "turn {turn} of {}", keys * 4);
    }
}

#[test]
fn large_values_are_overwritten_without_eviction() {
    let mut shard = Shard::new(32 << 20, true);
    let mut random = Random(3);
    for turn in 0..2000 {
        let number = random.below(120);
        let bytes = 20_000 + number as usize * 1700;
        let key = format!("key {number}");
        shard.set(key.as_bytes(), &pattern(number, bytes), 100).expect("there is room");
        if turn % 100 == 0 {
            shard.segments.audit();
        }
    }
    assert_eq!(shard.segments.stats().evictions, 0);
    for number in 0..120 {
        let bytes = 20_000 + number as usize * 1700;
        let key = format!("key {number}");
        if let Some(value) = shard.value(key.as_bytes()) {
            assert!(value == pattern(number, bytes), "{key}");
        }
    }
}

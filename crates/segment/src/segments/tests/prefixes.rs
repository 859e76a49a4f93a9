//! Flushes of prefixes: which items they kill, when their memory is freed, and when they are over.

use std::sync::Arc;

use kachel_stdx::{BytePrefix, FLUSHED_PREFIXES_MAX};

use super::index::{Random, Shard, pattern};
use crate::{ItemAt, NewValue};

const NOW: u32 = 100;

fn set(shard: &mut Shard, key: &str) -> ItemAt {
    shard.set(key.as_bytes(), &pattern(1, 200), NOW).expect("there is room")
}

/// Flushes a name, and has the shard note it.
fn flush(shard: &mut Shard, name: &str) {
    let prefix = BytePrefix::of_name(name.as_bytes(), b':').expect("a name");
    shard.segments.pool().flushed_prefixes().flush(&prefix).expect("room in the list");
    assert!(!shard.segments.is_flush_noted());
    shard.segments.note_flush(NOW, &mut shard.index);
    assert!(shard.segments.is_flush_noted());
    shard.segments.audit();
}

fn is_live(shard: &Shard, key: &str) -> bool {
    shard.at(key.as_bytes()).is_some_and(|at| shard.segments.is_live(at, NOW))
}

fn live_prefixes(shard: &Shard) -> usize {
    shard.segments.pool().flushed_prefixes().live()
}

#[test]
fn a_flushed_prefix_is_dead_at_once_its_neighbors_live_and_its_memory_comes_back() {
    for evict in [true, false] {
        let mut shard = Shard::new(16 << 20, evict);
        for number in 0..20_000 {
            set(&mut shard, &format!("user:{}:{number}", number % 20));
        }
        let before = shard.segments.work_bytes();
        flush(&mut shard, "user:1");
        assert_eq!(shard.segments.work_bytes(), before, "no item is examined");
        let new = set(&mut shard, "user:1:1");
        assert!(is_live(&shard, "user:1:1") && !is_live(&shard, "user:1:21"));
        assert!(is_live(&shard, "user:10:10") && is_live(&shard, "user:2:2"));
        assert_eq!(live_prefixes(&shard), 1);
        shard.maintain_all(NOW);
        assert_eq!(live_prefixes(&shard), 0, "upkeep has examined all items");
        assert_eq!(shard.segments.stats().items, 19_001);
        assert_eq!(shard.segments.stats().evictions, 0);
        assert_eq!(shard.at(b"user:1:1"), Some(new), "a sweep moves nothing");
        shard.segments.audit();
        shard.assert_all_comes_back(NOW);
    }
}

#[test]
fn a_reader_beside_sees_a_flush_that_the_owner_has_not_noted() {
    let mut shard = Shard::new(4 << 20, true);
    let (old, other) = (set(&mut shard, "a:1"), set(&mut shard, "b:1"));
    let pool = Arc::clone(shard.segments.pool());
    let reader = pool.register_reader().expect("one");
    let is_flushed = |at| pool.is_flushed(&pool.item(at, &reader), NOW, &reader);
    let prefix = BytePrefix::of_name(b"a", b':').expect("a name");
    pool.flushed_prefixes().flush(&prefix).expect("room");
    assert!(is_live(&shard, "a:1"), "the owner has not noted it");
    assert_eq!((is_flushed(old), is_flushed(other)), (Some(true), Some(false)));
    shard.segments.note_flush(NOW, &mut shard.index);
    let new = set(&mut shard, "a:1");
    assert_eq!((is_flushed(new), is_live(&shard, "a:1")), (Some(false), true));
    // The sweep gives the segment a new generation, but the reader may still know the old item.
    let gone = set(&mut shard, "a:2");
    let item = pool.item(gone, &reader);
    pool.flushed_prefixes().flush(&prefix).expect("room");
    shard.segments.note_flush(NOW, &mut shard.index);
    shard.maintain_all(NOW);
    assert_eq!(pool.is_flushed(&item, NOW, &reader), None, "it has died");
    assert_eq!(live_prefixes(&shard), 1, "a reader from before is left");
    drop(reader);
    shard.maintain_all(NOW);
    assert_eq!(live_prefixes(&shard), 0);
}

#[test]
fn a_flush_is_over_when_all_shards_have_examined_their_items() {
    let [mut first, mut second] = Shard::sharing(8 << 20, true);
    for shard in [&mut first, &mut second] {
        set(shard, "a:1");
        set(shard, "b:1");
    }
    flush(&mut first, "a");
    first.maintain_all(NOW);
    assert_eq!((live_prefixes(&first), first.segments.stats().items), (1, 1));
    second.maintain_all(NOW);
    assert_eq!(live_prefixes(&first), 1, "the second has not noted it");
    second.segments.note_flush(NOW, &mut second.index);
    assert!(!is_live(&second, "a:1") && is_live(&second, "b:1"));
    second.maintain_all(NOW);
    assert_eq!((live_prefixes(&first), second.segments.stats().items), (0, 1));
}

#[test]
fn a_pinned_segment_is_swept() {
    let mut shard = Shard::new(16 << 20, true);
    let value = pattern(2, 100_000);
    let large = shard.new_item(b"b:large", NewValue::Bytes(&value));
    let at = shard.store(large, NOW).expect("room");
    let pinned = shard.segments.pin(at);
    set(&mut shard, "a:1");
    flush(&mut shard, "a");
    shard.maintain_all(NOW);
    assert_eq!((live_prefixes(&shard), shard.segments.stats().items), (0, 1));
    drop(pinned);
    shard.assert_all_comes_back(NOW);
}

#[test]
fn flushes_and_stores_in_turn_evict_nothing() {
    for evict in [true, false] {
        let mut shard = Shard::new(8 << 20, evict);
        for number in 0..5_000 {
            set(&mut shard, &format!("b:{number}"));
        }
        for turn in 0..1_000 {
            set(&mut shard, &format!("a:{turn}"));
            flush(&mut shard, "a");
            set(&mut shard, &format!("b:{}", turn % 5_000));
            shard.segments.maintain(NOW, &mut shard.index, 64);
        }
        shard.maintain_all(NOW);
        let stats = shard.segments.stats();
        assert_eq!((stats.evictions, stats.refused, stats.items), (0, 0, 5_000), "{stats:?}");
        shard.segments.audit();
    }
}

#[test]
fn compaction_brings_no_flushed_item_to_a_newer_segment() {
    let (mut shard, mut random) = (Shard::new(3 << 19, false), Random(7));
    for round in 0..4 {
        for number in 0..2_000 {
            set(&mut shard, &format!("a:{number}"));
            set(&mut shard, &format!("b:{number}"));
        }
        flush(&mut shard, "a");
        // Replacing makes room by compaction. Upkeep sweeps nothing meanwhile.
        for _ in 0..8_000 {
            set(&mut shard, &format!("b:{}", random.below(2_000)));
        }
        for number in 0..2_000 {
            assert!(!is_live(&shard, &format!("a:{number}")), "round {round}");
        }
        shard.segments.audit();
    }
    assert!(shard.segments.stats().compacted > 0, "memory was full");
    shard.maintain_all(NOW);
    assert_eq!((shard.segments.stats().items, live_prefixes(&shard)), (2_000, 0));
}

#[test]
fn the_list_takes_a_named_number_of_prefixes_until_upkeep_is_done() {
    let mut shard = Shard::new(4 << 20, true);
    for number in 0..FLUSHED_PREFIXES_MAX {
        set(&mut shard, &format!("{number}:x"));
        flush(&mut shard, &number.to_string());
    }
    let more = BytePrefix::of_name(b"more", b':').expect("a name");
    let pool = Arc::clone(shard.segments.pool());
    assert!(pool.flushed_prefixes().flush(&more).is_err());
    set(&mut shard, "more:x");
    shard.maintain_all(NOW);
    assert!(is_live(&shard, "more:x") && pool.flushed_prefixes().flush(&more).is_ok());
    assert_eq!(shard.segments.stats().items, 1, "all others were flushed");
}

/// A sweep ends although flushes come faster than upkeep examines all items. Otherwise the list
/// would stay full as long as one prefix is flushed again and again.
#[test]
fn a_prefix_that_is_flushed_again_and_again_keeps_no_other_one_in_the_list() {
    const STEPS_MAX: usize = 2_000;
    let mut shard = Shard::new(16 << 20, true);
    for number in 0..20_000 {
        set(&mut shard, &format!("b:{number}"));
    }
    for number in 1..FLUSHED_PREFIXES_MAX {
        flush(&mut shard, &number.to_string());
    }
    let mut steps = 0;
    loop {
        flush(&mut shard, "a");
        if live_prefixes(&shard) == 1 {
            break;
        }
        set(&mut shard, "a:1");
        shard.segments.maintain(NOW, &mut shard.index, 64);
        steps += 1;
        assert!(steps < STEPS_MAX, "{} prefixes are left", live_prefixes(&shard));
    }
    assert!(steps > 10, "a step examines a part of the items");
    assert!(!is_live(&shard, "a:1") && is_live(&shard, "b:1"));
    shard.maintain_all(NOW);
    assert_eq!((live_prefixes(&shard), shard.segments.stats().items), (0, 20_000));
}

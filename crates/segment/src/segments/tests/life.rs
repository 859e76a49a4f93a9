//! Expiry, flush, limits and several shards: when memory is freed, and when a request is refused.

use std::sync::Arc;

use kachel_host::Budget;

use super::index::{MapIndex, Shard, hash, pattern};
use crate::meta::Phase;
use crate::{
    Added, JoinPlace, NewItem, NewValue, NoSegment, Pool, PoolOptions, Reclaimed, SegmentOptions,
    Segments, WalkCursor,
};

fn set_until(shard: &mut Shard, key: &str, expiry: u32, now: u32) {
    let value = pattern(u64::from(expiry), 200);
    let item = NewItem { expiry, ..shard.new_item(key.as_bytes(), NewValue::Bytes(&value)) };
    shard.store(item, now).expect("there is room");
}

#[test]
fn expired_segments_return_whole_and_evict_nothing() {
    let mut shard = Shard::new(8 << 20, true);
    for second in 0..2000_u32 {
        let now = 100 + second;
        for number in 0..200 {
            set_until(&mut shard, &format!("{second} {number}"), now + 60, now);
        }
        shard.segments.maintain(now, &mut shard.index, 400);
    }
    let stats = shard.segments.stats();
    assert_eq!(stats.evictions, 0);
    assert!(stats.reclaimed > 380_000 && stats.expired_unfetched == stats.reclaimed, "{stats:?}");
    assert!(stats.segments < 70, "a minute's items and little more: {stats:?}");
    shard.segments.audit();
    shard.maintain_all(10_000);
    assert_eq!(shard.segments.stats().items, 0);
}

#[test]
fn expiry_is_exact_to_the_second() {
    let mut shard = Shard::new(4 << 20, true);
    set_until(&mut shard, "key", 150, 100);
    let at = shard.at(b"key").expect("stored");
    assert!(shard.segments.is_live(at, 149));
    assert!(!shard.segments.is_live(at, 150));
    shard.segments.set_expiry(at, 151);
    assert!(shard.segments.is_live(at, 150));
    shard.segments.set_expiry(at, 0);
    assert!(shard.segments.is_live(at, u32::MAX));
}

#[test]
fn a_touched_item_survives_the_expiry_of_its_segment() {
    let mut shard = Shard::new(4 << 20, true);
    for number in 0..2000 {
        set_until(&mut shard, &format!("{number}"), 160, 100);
    }
    let at = shard.at(b"77").expect("stored");
    shard.segments.set_expiry(at, 5000);
    shard.maintain_all(160);
    assert_eq!(shard.segments.stats().items, 1, "all others are gone");
    let at = shard.at(b"77").expect("touched");
    assert_eq!(shard.segments.item(at).expiry(), 5000);
    assert!(shard.segments.is_live(at, 4999));
    shard.maintain_all(5000);
    assert_eq!(shard.segments.stats().segments, 0);
}

#[test]
fn an_item_touched_again_and_again_keeps_none_that_expired_beside_it() {
    let mut shard = Shard::new(4 << 20, false);
    let count = 3000;
    for number in 0..count {
        set_until(&mut shard, &format!("{number}"), 160, 100);
    }
    let segments = shard.segments.stats().segments;
    for number in (0..count).step_by(40) {
        let at = shard.at(format!("{number}").as_bytes()).expect("stored");
        for touch in 0..1000 {
            // Up again and again, and down and up.
            shard.segments.set_expiry(at, if touch % 3 == 1 { 150 } else { 5000 + touch });
        }
    }
    shard.maintain_all(160);
    let stats = shard.segments.stats();
    assert_eq!(stats.items, count as u64 / 40, "all others are gone");
    assert!(stats.segments <= 2, "of {segments}: {stats:?}");
}

#[test]
fn many_ttls_share_open_segments() {
    let mut shard = Shard::new(16 << 20, true);
    let mut held = 0;
    while shard.segments.stats().evictions == 0 {
        let ttl = 1 + (held as u32).wrapping_mul(2_654_435_761) % 9_000_000;
        set_until(&mut shard, &format!("{held:08}"), 100 + ttl, 100);
        held += 1;
    }
    let part = held as f64 * 224.0 / f64::from(16 << 20);
    assert!(part > 0.88, "open segments cost little: {part}");
}

#[test]
fn a_flush_kills_at_once_and_cleans_in_steps() {
    let mut shard = Shard::new(8 << 20, true);
    for number in 0..20_000 {
        set_until(&mut shard, &format!("{number}"), 0, 100);
    }
    let old = shard.at(b"5").expect("stored");
    shard.flush(100);
    assert!(!shard.segments.is_live(old, 100));
    set_until(&mut shard, "new", 0, 100);
    let items = shard.segments.maintain(100, &mut shard.index, 100);
    assert!((100..200).contains(&items), "a bounded step: {items}");
    assert!(shard.segments.stats().items > 10_000);
    shard.maintain_all(100);
    assert_eq!(shard.segments.stats().items, 1);
    assert_eq!(shard.index.map.keys().collect::<Vec<_>>(), [b"new"]);
    assert!(shard.segments.is_live(shard.at(b"new").expect("stored later"), 100));
    shard.segments.audit();
}

#[test]
fn a_flush_by_one_shard_is_noted_by_the_others_and_kills_nothing_later() {
    let mut shards: [Shard; 2] = Shard::sharing(8 << 20, true);
    for shard in &mut shards {
        set_until(shard, "old", 0, 100);
    }
    shards[0].flush(100);
    let pool = Arc::clone(shards[0].segments.pool());
    let reader = pool.register_reader().expect("one");
    let is_flushed =
        |at, now| pool.is_flushed(&pool.item(at, &reader), now, &reader).expect("nothing is moved");
    let other = &mut shards[1];
    // The other shard has not noted the flush. A reader sees it without the owner.
    let old = other.at(b"old").expect("stored");
    assert!(other.segments.is_live(old, 100) && is_flushed(old, 100));
    other.segments.note_flush(100, &mut other.index);
    assert!(!other.segments.is_live(old, 100));
    set_until(other, "new", 0, 100);
    let new = other.at(b"new").expect("stored");
    assert!(other.segments.is_live(new, 100) && !is_flushed(new, 100));
    // A pending flush counts from its second on, for the first shard that checks.
    pool.flush_word().flush_in(120, 100);
    for (now, wanted) in [(119, false), (120, true)] {
        other.segments.note_flush(now, &mut other.index);
        assert_eq!(other.segments.is_live(new, now), !wanted, "second {now}");
        assert_eq!(is_flushed(new, now), wanted, "second {now}");
        other.segments.audit();
    }
}

#[test]
fn a_segment_keeps_its_epoch_until_it_is_used_again() {
    let mut shard = Shard::new(4 << 20, true);
    shard.flush(100);
    set_until(&mut shard, "key", 0, 100);
    let pool = Arc::clone(shard.segments.pool());
    let mut reader = pool.register_reader().expect("one");
    let at = shard.at(b"key").expect("stored");
    // The item is replaced. So its segment, which held no other item, is given back, while the
    // reader still knows its location.
    shard.segments.log.close_all(false);
    set_until(&mut shard, "key", 0, 100);
    assert_eq!(pool.metas.phase(pool.segment_of(at)), Phase::Free);
    let item = pool.item(at, &reader);
    assert_eq!(pool.is_flushed(&item, 100, &reader), Some(false), "the value was never flushed");
    reader.round_over();
}

#[test]
fn a_full_store_refuses_and_takes_again_what_was_freed() {
    let mut shard = Shard::new(4 << 20, false);
    let mut stored = 0;
    while shard.set(format!("{stored}").as_bytes(), &pattern(stored, 500), 9).is_ok() {
        stored += 1;
    }
    assert!(stored > 7000, "{stored}");
    for number in (0..stored).step_by(2) {
        assert!(shard.delete(format!("{number}").as_bytes()));
    }
    for number in (0..stored).step_by(2).take(stored as usize * 4 / 10) {
        shard.set(format!("{number}").as_bytes(), &pattern(number, 500), 9).expect("compacted");
    }
    shard.segments.audit();
    assert_eq!(shard.segments.stats().evictions, 0);
    assert_eq!(shard.value(b"1"), Some(pattern(1, 500)));
}

#[test]
fn a_lowered_limit_is_obeyed_by_and_by() {
    let mut shard = Shard::new(16 << 20, true);
    for number in 0..100_000 {
        shard.set(format!("{number}").as_bytes(), &pattern(number, 200), 9).expect("evicts");
    }
    shard.budget.set_limit_bytes(6 << 20);
    assert!(shard.budget.overdrawn_bytes() > 0);
    shard.maintain_all(9);
    assert_eq!(shard.budget.overdrawn_bytes(), 0);
    shard.segments.audit();
    assert!(shard.segments.stats().live_bytes > 4 << 20, "no more than needed was dropped");
}

#[test]
fn the_index_gets_room_from_items() {
    let mut shard = Shard::new(8 << 20, true);
    for number in 0..60_000 {
        shard.set(format!("{number}").as_bytes(), &pattern(number, 200), 9).expect("evicts");
    }
    for _ in 0..20 {
        assert!(!shard.budget.charge(100_000), "memory is spent");
        assert_eq!(shard.segments.make_room(100_000, 9, &mut shard.index), Reclaimed::Made);
        assert!(shard.budget.charge(100_000));
    }
    shard.segments.audit();
    let made = shard.segments.make_room(8 << 20, 9, &mut shard.index);
    assert_eq!(made, Reclaimed::Refused, "more than there is");
}

#[test]
fn a_key_that_returns_soon_after_eviction_goes_to_the_main_queue() {
    let mut shard = Shard::new(8 << 20, true);
    let mut number = 0;
    while shard.index.removed.len() < 100 {
        shard.set(format!("{number}").as_bytes(), &pattern(number, 200), 9).expect("evicts");
        number += 1;
    }
    assert_eq!(shard.segments.stats().ghost_hits, 0);
    let evicted = std::mem::take(&mut shard.index.removed);
    for key in &evicted {
        shard.set(key, b"back", 9).expect("evicts");
    }
    let stats = shard.segments.stats();
    assert_eq!(stats.ghost_hits, evicted.len() as u64);
    assert!(stats.main_bytes > 0 && stats.main_bytes <= 2 * stats.segment_bytes, "{stats:?}");
}

#[test]
fn a_walk_shows_every_item_once() {
    let mut shard = Shard::new(8 << 20, true);
    for number in 0..10_000 {
        set_until(&mut shard, &format!("{number}"), if number % 10 == 0 { 150 } else { 0 }, 100);
    }
    let mut cursor = WalkCursor::default();
    let mut seen = Vec::new();
    let mut calls = 0;
    loop {
        let mut shown = 0;
        let walked = shard.segments.walk(&mut cursor, 150, 7, |item| {
            seen.push(item.key().to_vec());
            shown += 1;
            shown < 5
        });
        // Dead items count among the examined ones.
        assert!(shown <= 5 && shown <= walked.items && walked.items <= 7);
        cursor = WalkCursor::from_u64(cursor.to_u64());
        calls += 1;
        if !walked.more {
            break;
        }
    }
    seen.sort_unstable();
    let wanted = shard.index.map.keys().filter(|key| !key.ends_with(b"0")).cloned();
    let mut wanted: Vec<_> = wanted.collect();
    wanted.sort_unstable();
    assert!(seen == wanted, "{} of {} are seen", seen.len(), wanted.len());
    assert!(calls < 3_000);
}

#[test]
fn a_segment_that_another_shard_is_entering_in_its_books_is_not_taken_for_ones_own() {
    let mut shards: [Shard; 2] = Shard::sharing(8 << 20, true);
    for shard in &mut shards {
        shard.set(b"key", b"value", 9).expect("there is room");
    }
    let pool = Arc::clone(shards[1].segments.pool());
    let segment = pool.take(0, None).expect("memory is free");
    // As `adopt` leaves it for a moment: open, and the owner not said yet.
    pool.metas.clear(segment);
    pool.metas.set_phase(segment, Phase::Open);
    for shard in &shards {
        assert!(!shard.segments.log.owns(segment), "it is nobody's");
        let owned = (0..pool.segments_touched()).filter(|&at| shard.segments.log.owns(at)).count();
        assert_eq!(owned as u64, shard.segments.stats().segments);
    }
}

#[test]
fn a_shard_that_came_late_gets_its_share() {
    let budget = Arc::new(Budget::new(16 << 20));
    let options = PoolOptions { engines: 2, reserve_bytes: 0, ..PoolOptions::default() };
    let pool = Pool::new(budget, options).expect("address space");
    let mut shards: Vec<(Segments, MapIndex)> = (0..2)
        .map(|shard| {
            let options = SegmentOptions { evict: true, cas: true, shard, item_overhead_bytes: 0 };
            (Segments::new(Arc::clone(&pool), options).expect("address space"), MapIndex::default())
        })
        .collect();
    let store = |(segments, index): &mut (Segments, MapIndex), number: u32| {
        let key = number.to_le_bytes();
        let value = pattern(number.into(), 300);
        let item = NewItem {
            key: &key,
            hash: hash(&key),
            value: NewValue::Bytes(&value),
            client_flags: 0,
            expiry: 0,
            cas: None,
            stale: false,
            win_sent: false,
            remnant: false,
            protocol_mark: false,
            replaces: None,
            keeps_access: false,
        };
        let at = segments.append(item, 9, index)?;
        index.map.insert(key.to_vec(), at);
        Ok::<(), NoSegment>(())
    };
    for number in 0..60_000 {
        store(&mut shards[0], number).expect("the first has memory to itself");
    }
    for number in 0..60_000 {
        // The second shard may be refused until the first has given it segments.
        let _refused_at_first = store(&mut shards[1], number);
        let (segments, index) = &mut shards[0];
        segments.maintain(9, index, 16);
    }
    let bytes: Vec<u64> = shards.iter().map(|shard| shard.0.stats().live_bytes).collect();
    assert!(bytes[1] > 6 << 20, "the shares even out: {bytes:?}");
    for (segments, _) in &shards {
        segments.audit();
    }
}

#[test]
fn items_are_small_as_long_as_a_few_lines_hold_most_of_them() {
    let mut shard = Shard::new(8 << 20, true);
    assert!(shard.segments.are_small(0));
    for (value_bytes, small) in [(100, true), (1000, false)] {
        for number in 0..1000 {
            let value = pattern(number, value_bytes);
            let at = shard.set(number.to_string().as_bytes(), &value, 1).expect("there is room");
            shard.segments.prefetch_small(at);
            shard.segments.prefetch_rest(at);
        }
        assert_eq!(shard.segments.are_small(shard.segments.stats().items), small);
    }
}

#[test]
fn an_item_that_must_stay_lets_others_go_where_no_segment_is_spare() {
    const ADDED_BYTES: usize = 8000;
    let mut shard = Shard::new(8 << 20, true);
    let mut number = 0;
    let mut store = |shard: &mut Shard| {
        shard.set(format!("{number}").as_bytes(), &pattern(number, 200), 9).expect("it evicts");
        number += 1;
    };
    while shard.segments.stats().evictions == 0 {
        store(&mut shard);
    }
    shard.maintain_all(9);
    let room = |shard: &Shard| shard.segments.log.open_room_bytes();
    while room(&shard) < 1000 || room(&shard) > ADDED_BYTES {
        store(&mut shard);
    }
    shard.maintain_all(9);
    // The last item of the segment that is evicted next.
    let next = shard.segments.log.oldest_of_probation().expect("memory is full");
    let living = shard.index.map.iter().map(|(key, &at)| (at, key.clone()));
    let (old, key) = living
        .filter(|(at, _)| shard.segments.pool().segment_of(*at) == next)
        .max_by_key(|(at, _)| at.get())
        .expect("nothing was deleted");
    let spare = shard.segments.log.replace_spare(Vec::new());
    let added = pattern(1, ADDED_BYTES);
    let added = Added::Bytes(&added);
    let value = NewValue::Extended { old, added, place: JoinPlace::After };
    let stored = shard.store(shard.new_item(&key, value), 9);
    assert!(stored.is_ok(), "a cache makes room");
    assert_eq!(shard.value(&key).map(|value| value.len()), Some(200 + ADDED_BYTES));
    shard.segments.log.replace_spare(spare);
    shard.segments.audit();
}

#[test]
fn what_is_dropped_for_the_index_is_evicted_only_if_it_could_be_served() {
    let mut shard = Shard::new(4 << 20, true);
    for (key, expiry) in [("living", 0), ("expired", 150), ("flushed", 0)] {
        set_until(&mut shard, key, expiry, 100);
    }
    let mut counts = |key: &str, now| {
        let at = shard.index.map.remove(key.as_bytes()).expect("stored");
        if key == "flushed" {
            shard.segments.pool().flush_word().flush(now);
            shard.segments.note_flush(now, &mut shard.index);
        }
        shard.segments.evict(at, now);
        let stats = shard.segments.stats();
        (stats.items, stats.evictions, stats.reclaimed)
    };
    assert_eq!(counts("living", 149), (2, 1, 0));
    assert_eq!(counts("expired", 150), (1, 1, 1));
    assert_eq!(counts("flushed", 150), (0, 1, 2));
    shard.segments.audit();
}

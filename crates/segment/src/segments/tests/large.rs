//! Large values: whole, in order, freed, pinned, moved.

use super::index::{Random, Shard, pattern, read_pinned};
use crate::{
    Added, BLOCK_BYTES, INLINE_VALUE_BYTES_MAX, ItemAt, JoinPlace, NewItem, NewValue, NoSegment,
    Reclaimed,
};

#[test]
fn large_values_round_trip_and_are_freed() {
    let mut shard = Shard::new(16 << 20, false);
    let sizes = [
        INLINE_VALUE_BYTES_MAX,
        BLOCK_BYTES,
        BLOCK_BYTES + 1,
        17 << 10,
        2 * BLOCK_BYTES - 1,
        2 * BLOCK_BYTES,
        100_000,
        1 << 20,
        (4 << 20) + 17,
    ];
    for bytes in sizes {
        let key = format!("{bytes}");
        shard.set(key.as_bytes(), &pattern(bytes as u64, bytes), 9).expect("it fits");
    }
    for bytes in sizes {
        let key = format!("{bytes}");
        let at = shard.at(key.as_bytes()).expect("stored");
        let value = shard.segments.item(at).value();
        assert_eq!(value.bytes(), bytes);
        assert_eq!(value.as_slice().is_some(), bytes <= INLINE_VALUE_BYTES_MAX);
        assert!(value.equals(&pattern(bytes as u64, bytes)));
        assert!(!value.equals(&pattern(bytes as u64 + 1, bytes)));
    }
    shard.segments.audit();
    for bytes in sizes {
        assert!(shard.delete(format!("{bytes}").as_bytes()));
    }
    let stats = shard.segments.stats();
    assert_eq!((stats.items, stats.live_bytes, stats.block_bytes), (0, 0, 0));
    assert_eq!(shard.segments.pool().free_blocks(), 0, "no block segment is left");
}

#[test]
fn an_upload_takes_blocks_as_bytes_arrive_and_returns_them_when_dropped() {
    let shard = Shard::new(16 << 20, true);
    let room = || shard.segments.pool().upload_room_bytes();
    let before = room();
    let mut upload = shard.segments.pool().begin_upload(3_000_000).expect("fits the budget");
    assert_eq!(room(), before);
    upload.write(&[7; 10]).expect("memory is free");
    assert_eq!(before - room(), BLOCK_BYTES as u64);
    upload.write(&[7; BLOCK_BYTES]).expect("memory is free");
    assert_eq!(before - room(), 2 * BLOCK_BYTES as u64);
    upload.write(&vec![7; 2_900_000]).expect("memory is free");
    drop(upload);
    assert_eq!(room(), before);
}

#[test]
fn an_upload_larger_than_memory_is_refused_and_a_refused_write_takes_nothing() {
    let shard = Shard::new(2 << 20, true);
    let pool = shard.segments.pool();
    assert!(pool.begin_upload(3 << 20).is_err());
    let mut upload = pool.begin_upload(2 << 20).expect("not larger than the limit");
    upload.write(&vec![1; 1 << 20]).expect("memory is free");
    let before = pool.upload_room_bytes();
    assert!(upload.write(&vec![1; 1 << 20]).is_err());
    assert_eq!(pool.upload_room_bytes(), before);
    assert_eq!(upload.missing_bytes(), 1 << 20);
}

#[test]
fn an_upload_may_be_filled_on_one_thread_and_stored_by_another() {
    let mut shard = Shard::new(16 << 20, true);
    let value = pattern(5, 300_000);
    let mut upload = shard.segments.pool().begin_upload(value.len()).expect("fits the budget");
    let mut upload = std::thread::scope(|scope| {
        let filler = scope.spawn(|| {
            for piece in value.chunks(7777) {
                upload.write(piece).expect("memory is free");
            }
            upload
        });
        filler.join().expect("the filler does not panic")
    });
    shard.store(shard.new_item(b"far", NewValue::Upload(&mut upload)), 9).expect("there is room");
    assert!(shard.value(b"far") == Some(value));
    shard.segments.audit();
}

#[test]
fn a_held_piece_outlives_its_item_and_its_value() {
    let mut shard = Shard::new(4 << 20, true);
    // Two blocks, and a rest in the segment.
    let wanted = pattern(1, 2 * BLOCK_BYTES + 5000);
    let at = shard.set(b"large", &wanted, 9).expect("there is room");
    let pinned = shard.segments.pin(at);
    let starts = [0, 5, BLOCK_BYTES, 2 * BLOCK_BYTES, 2 * BLOCK_BYTES + 4999];
    let mut held = starts.map(|start| Some((start, pinned.hold_at(start))));
    drop(pinned);
    shard.delete(b"large");
    let mut letting_go = [4, 1, 0, 3, 2].into_iter();
    loop {
        for number in 0..3000 {
            shard.set(format!("{number}").as_bytes(), &pattern(number, 3000), 11).expect("evicts");
        }
        for (start, piece) in held.iter().flatten() {
            assert_eq!(piece.bytes().len(), piece.byte_count());
            assert!(wanted[*start..].starts_with(piece.bytes()), "at {start}");
        }
        let Some(next) = letting_go.next() else { break };
        let piece = held[next].take();
        std::thread::spawn(move || drop(piece)).join().expect("let go of elsewhere");
    }
    shard.assert_all_comes_back(12);
}

#[test]
fn what_is_pinned_is_counted_once_however_many_pins_hold_it() {
    let mut shard = Shard::new(4 << 20, true);
    let segment_bytes = shard.segments.pool().segment_bytes() as u64;
    let pool = std::sync::Arc::clone(shard.segments.pool());
    let large = shard.set(b"large", &pattern(1, 5 * BLOCK_BYTES + 9), 9).expect("there is room");
    let other = shard.set(b"other", &pattern(2, 2 * BLOCK_BYTES), 9).expect("there is room");
    let small = shard.set(b"small", &pattern(3, 500), 9).expect("there is room");
    assert_eq!(pool.pinned_bytes(), 0);
    let pin = |at| shard.segments.pin(at);
    let block_bytes = BLOCK_BYTES as u64;
    // All three have a part in the one segment that is open.
    let pins = [pin(small), pin(large)];
    assert_eq!(pool.pinned_bytes(), segment_bytes + 5 * block_bytes);
    let more = [pin(large), pin(other), pin(large)];
    assert_eq!(pool.pinned_bytes(), segment_bytes + 7 * block_bytes);
    drop(pins);
    assert_eq!(pool.pinned_bytes(), segment_bytes + 7 * block_bytes);
    let [one, two, three] = more;
    drop((one, two));
    assert_eq!(pool.pinned_bytes(), segment_bytes + 5 * block_bytes);
    assert!(shard.delete(b"large"));
    assert_eq!(pool.pinned_bytes(), segment_bytes + 5 * block_bytes, "its item is gone");
    std::thread::spawn(move || drop(three)).join().expect("unpinned elsewhere");
    assert_eq!(pool.pinned_bytes(), 0);
}

#[test]
fn a_pinned_value_outlives_its_item() {
    let mut shard = Shard::new(4 << 20, true);
    let large = pattern(1, 200_000);
    let small = pattern(2, 500);
    let large_at = shard.set(b"large", &large, 9).expect("there is room");
    let small_at = shard.set(b"small", &small, 9).expect("there is room");
    let pins = [shard.segments.pin(large_at), shard.segments.pin(small_at)];
    shard.flush(10);
    shard.maintain_all(10);
    shard.delete(b"large");
    shard.delete(b"small");
    for number in 0..3000 {
        shard.set(format!("{number}").as_bytes(), &pattern(number, 3000), 11).expect("evicts");
    }
    assert!(shard.segments.stats().evictions > 0);
    for (pinned, wanted) in pins.iter().zip([&large, &small]) {
        assert_eq!(pinned.total_bytes(), wanted.len());
        assert!(read_pinned(pinned) == wanted[..]);
        let back = wanted.len() / 3;
        assert!(wanted[back..].starts_with(pinned.piece_at(back)));
        assert!(pinned.piece_at(wanted.len()).is_empty());
    }
    std::thread::spawn(move || drop(pins)).join().expect("unpinned elsewhere");
    shard.assert_all_comes_back(12);
}

#[test]
fn a_value_keeps_its_blocks_when_only_the_item_changes() {
    let mut shard = Shard::new(4 << 20, true);
    let value = pattern(1, 2_500_000);
    let at = shard.set(b"key", &value, 9).expect("there is room");
    let item = NewItem { client_flags: 5, ..shard.new_item(b"key", NewValue::Same(at)) };
    let at = shard.store(item, 9).expect("no second copy is made");
    shard.segments.audit();
    assert!(shard.segments.item(at).value().equals(&value));
    assert_eq!(shard.segments.item(at).client_flags(), 5);
    assert!(shard.delete(b"key"));
    assert_eq!(shard.segments.pool().free_blocks(), 0, "freed with the new item");
}

#[test]
fn a_value_grows_from_small_to_large_on_either_side() {
    let mut shard = Shard::new(4 << 20, true);
    let mut wanted = pattern(1, 100);
    shard.set(b"key", &wanted, 9).expect("there is room");
    for turn in 2..12 {
        let added = pattern(turn, 7000);
        let old = shard.at(b"key").expect("stored");
        let place = if turn % 2 == 0 { JoinPlace::After } else { JoinPlace::Before };
        match place {
            JoinPlace::After => wanted.extend_from_slice(&added),
            JoinPlace::Before => drop(wanted.splice(0..0, added.iter().copied())),
        }
        let added = Added::Bytes(&added);
        let item = shard.new_item(b"key", NewValue::Extended { old, added, place });
        shard.store(item, 9).expect("there is room");
        assert!(shard.value(b"key").as_ref() == Some(&wanted));
    }
    shard.segments.audit();
}

/// Stores the value of `key` with bytes behind it.
fn extend(shard: &mut Shard, key: &[u8], added: &[u8]) -> Result<ItemAt, NoSegment> {
    let old = shard.at(key).expect("stored");
    let value = NewValue::Extended { old, added: Added::Bytes(added), place: JoinPlace::After };
    let item = shard.new_item(key, value);
    shard.store(item, 9)
}

#[test]
fn bytes_behind_a_large_value_are_linked_to_it() {
    // No room for a second copy.
    let mut shard = Shard::new(4 << 20, true);
    let mut wanted = pattern(1, 2_500_000);
    shard.set(b"key", &wanted, 9).expect("there is room");
    for (turn, bytes) in
        [1, 100, 16_000, 16_384, 40_000, 7, 300_000, 16_383, 1].into_iter().enumerate()
    {
        let added = pattern(turn as u64 + 2, bytes);
        extend(&mut shard, b"key", &added).expect("the blocks are taken over");
        wanted.extend_from_slice(&added);
        assert!(shard.value(b"key").as_ref() == Some(&wanted), "{bytes} bytes");
        shard.segments.audit();
    }
    assert_eq!(shard.segments.stats().evictions, 0);
    shard.assert_all_comes_back(12);
}

#[test]
fn a_reader_of_a_large_value_sees_nothing_of_what_is_added() {
    let mut shard = Shard::new(4 << 20, true);
    let value = pattern(1, 1_000_003);
    let at = shard.set(b"key", &value, 9).expect("there is room");
    let pinned = shard.segments.pin(at);
    let added = pattern(2, 50_000);
    extend(&mut shard, b"key", &added).expect("there is room for a copy");
    assert_eq!(pinned.total_bytes(), value.len());
    assert!(read_pinned(&pinned) == value);
    assert!(shard.value(b"key") == Some([&value[..], &added].concat()));
    drop(pinned);
    shard.segments.audit();
    shard.assert_all_comes_back(12);
}

#[test]
fn an_append_that_finds_no_memory_leaves_the_large_value() {
    let mut shard = Shard::new(4 << 20, false);
    let value = pattern(1, 2_500_000);
    shard.set(b"key", &value, 9).expect("there is room");
    let blocks = shard.segments.pool().free_blocks();
    assert!(extend(&mut shard, b"key", &pattern(2, 3_000_000)).is_err(), "more than there is");
    assert!(shard.value(b"key") == Some(value));
    assert!(shard.segments.pool().free_blocks() >= blocks, "what was filled came back");
    shard.segments.audit();
    shard.assert_all_comes_back(12);
}

/// Fills the memory with values of `bytes` under numbers, of which every fourth one stays. Returns
/// how many there were.
fn store_with_gaps(shard: &mut Shard, bytes: usize) -> u64 {
    let mut stored = 0;
    while shard.set(format!("{stored}").as_bytes(), &pattern(stored, bytes), 9).is_ok() {
        stored += 1;
    }
    for number in (0..stored).filter(|number| number % 4 != 0) {
        assert!(shard.delete(format!("{number}").as_bytes()));
    }
    stored
}

/// Has the blocks of large values moved: small items want whole segments, for which blocks are
/// gathered.
fn move_blocks(shard: &mut Shard) {
    let mut small = 0;
    while shard.set(format!("small {small}").as_bytes(), &pattern(small, 200), 9).is_ok() {
        small += 1;
    }
    for number in 0..small {
        assert!(shard.delete(format!("small {number}").as_bytes()));
    }
}

#[test]
fn a_value_whose_blocks_were_moved_is_extended_at_its_end() {
    let mut shard = Shard::new(16 << 20, false);
    let bytes = 3 * BLOCK_BYTES + 5;
    let stored = store_with_gaps(&mut shard, bytes);
    move_blocks(&mut shard);
    for number in (0..stored).step_by(4) {
        let (key, added) = (format!("{number}"), pattern(number + 1, 20_000));
        extend(&mut shard, key.as_bytes(), &added).expect("there is room");
        assert!(shard.value(key.as_bytes()) == Some([pattern(number, bytes), added].concat()));
    }
    shard.segments.audit();
    shard.assert_all_comes_back(12);
}

#[test]
fn segments_strewn_with_a_few_blocks_are_emptied_for_small_items() {
    let mut shard = Shard::new(16 << 20, false);
    let bytes = BLOCK_BYTES + 5;
    let mut stored = 0;
    while shard.set(format!("{stored}").as_bytes(), &pattern(stored, bytes), 9).is_ok() {
        stored += 1;
    }
    // One in four stays, so that most block segments keep some.
    for number in (0..stored).filter(|number| number % 4 != 0) {
        assert!(shard.delete(format!("{number}").as_bytes()));
    }
    let free_blocks = shard.segments.pool().free_blocks();
    assert!(free_blocks > 100, "space lies free in segments that also hold values");
    let mut small = 0;
    while shard.set(format!("small {small}").as_bytes(), &pattern(small, 200), 9).is_ok() {
        small += 1;
    }
    let small_bytes = small as usize * 232;
    assert!(
        small_bytes > free_blocks * BLOCK_BYTES * 8 / 10,
        "{small_bytes} of {free_blocks} blocks"
    );
    shard.segments.audit();
    for number in (0..stored).step_by(4) {
        assert!(shard.value(format!("{number}").as_bytes()) == Some(pattern(number, bytes)));
    }
}

#[test]
fn large_values_make_room_for_each_other() {
    let mut shard = Shard::new(8 << 20, true);
    let mut random = Random(3);
    for turn in 0..300 {
        let bytes = 17_000 + random.below(1 << 20) as usize;
        let key = format!("{turn}");
        shard.set(key.as_bytes(), &pattern(turn, bytes), 9).expect("a cache makes room");
        assert!(shard.value(key.as_bytes()) == Some(pattern(turn, bytes)));
    }
    shard.segments.audit();
    let held = shard.segments.stats();
    assert!(held.live_bytes > 5 << 20, "memory is used: {held:?}");
}

#[test]
fn a_pinned_value_keeps_none_of_those_whose_heads_lie_beside_its_own() {
    // Rests of 9 bytes: all heads share a segment, and it is open. Rests of 15,000: few do.
    for (rest_bytes, shards_memory) in [(9, 8 << 20), (15_000, 16 << 20)] {
        let mut shard = Shard::new(shards_memory, true);
        let bytes = 12 * BLOCK_BYTES + rest_bytes;
        let mut stored = 0;
        while shard.segments.stats().evictions == 0 {
            shard
                .set(format!("old {stored}").as_bytes(), &pattern(stored, bytes), 9)
                .expect("room");
            stored += 1;
        }
        // Every fourth value is pinned: a quarter of memory, and every segment with a head in it.
        let pins: Vec<_> = (0..stored)
            .rev()
            .step_by(4)
            .filter_map(|number| Some((number, shard.at(format!("old {number}").as_bytes())?)))
            .map(|(number, at)| (number, shard.segments.pin(at)))
            .collect();
        assert!(pins.len() as u64 >= stored / 5, "{} of {stored} are pinned", pins.len());
        for number in 0..3 * stored {
            let key = format!("new {number}");
            let set = shard.set(key.as_bytes(), &pattern(number, bytes), 9);
            set.unwrap_or_else(|_| panic!("no room for {key} of {stored}"));
            assert!(shard.value(key.as_bytes()) == Some(pattern(number, bytes)));
        }
        // The values for which there is room beside the pinned ones are kept.
        let kept = |number: &u64| shard.at(format!("new {number}").as_bytes()).is_some();
        let kept = (0..3 * stored).filter(kept).count() as u64;
        assert!(kept * 10 >= stored * 6, "{kept} of {stored} new ones are there");
        shard.segments.audit();
        for (number, pinned) in &pins {
            assert!(read_pinned(pinned) == pattern(*number, bytes), "it stays as it was");
        }
        drop(pins);
        shard.assert_all_comes_back(12);
    }
}

#[test]
fn where_all_is_pinned_a_value_is_refused_and_items_are_looked_at_once_a_second() {
    let mut shard = Shard::new(8 << 20, true);
    let bytes = 12 * BLOCK_BYTES + 15_000;
    let mut pins = Vec::new();
    for number in 0.. {
        let key = format!("old {number}");
        let Ok(at) = shard.set(key.as_bytes(), &pattern(number, bytes), 9) else { break };
        pins.push(shard.segments.pin(at));
    }
    let items = shard.segments.stats().items;
    for number in 0..20 {
        assert!(shard.set(b"new", &pattern(number, bytes), 9).is_err());
        shard.set(b"small", b"value", 9).expect("the open segment has room");
    }
    shard.delete(b"small");
    assert_eq!(shard.segments.stats().items, items, "what is pinned is not evicted");
    pins.truncate(pins.len() / 2);
    shard.set(b"new", &pattern(1, bytes), 10).expect("half of it may go");
    assert!(shard.value(b"new") == Some(pattern(1, bytes)));
    shard.segments.audit();
}

#[test]
fn where_all_is_pinned_and_no_segment_is_open_a_small_item_finds_room() {
    let mut shard = Shard::new(8 << 20, true);
    let bytes = 12 * BLOCK_BYTES + 9;
    let key = |number: u64| format!("old {number}");
    let room_bytes = |shard: &Shard| shard.segments.pool().upload_room_bytes() as usize;
    let mut stored = 0;
    while room_bytes(&shard) > bytes {
        shard.set(key(stored).as_bytes(), &pattern(stored, bytes), 9).expect("there is room");
        stored += 1;
    }
    // Room for a value is evicted from the open segment, which is sealed for that.
    let made = shard.segments.make_upload_room(2 * bytes, 9, &mut shard.index);
    assert!(made == Reclaimed::Made);
    shard.maintain_all(9);
    let left = (0..stored).filter_map(|number| shard.at(key(number).as_bytes()));
    let pins: Vec<_> = left.map(|at| shard.segments.pin(at)).collect();
    assert!(pins.len() as u64 > stored / 2, "most values are left");
    // A value that is being received takes all that is free.
    let mut upload = shard.segments.pool().begin_upload(8 << 20).expect("not too large");
    while upload.write(&[0; BLOCK_BYTES]).is_ok() {}
    for number in 0..20 {
        shard.set(b"small", &pattern(number, 100), 9).expect("the spare segment has room");
        let refused = shard.segments.make_upload_room(bytes, 9, &mut shard.index);
        assert!(refused != Reclaimed::Made, "only the small item may go");
        shard.maintain_all(9);
        assert!(shard.set(b"large", &pattern(number, bytes), 9).is_err());
    }
    assert!(shard.segments.stats().evictions > 0);
    shard.segments.audit();
    drop((upload, pins));
    shard.assert_all_comes_back(12);
}

#[test]
fn values_stored_while_all_others_are_pinned_make_room_for_the_next() {
    // Rests of 9 bytes: all heads share a segment. Rests of 15,000: few do.
    for rest_bytes in [9, 15_000] {
        let [mut shard, mut other] = Shard::sharing(8 << 20, true);
        let bytes = 12 * BLOCK_BYTES + rest_bytes;
        let lent: Vec<_> = (0..8).map(|number| format!("lent {number}")).collect();
        for key in &lent {
            other.set(key.as_bytes(), &pattern(0, bytes), 9).expect("room");
        }
        let mut pins = Vec::new();
        for number in 0.. {
            let key = format!("old {number}");
            let Ok(at) = shard.set(key.as_bytes(), &pattern(number, bytes), 9) else { break };
            pins.push(shard.segments.pin(at));
        }
        for _ in 0..20 {
            assert!(shard.set(b"new", &pattern(0, bytes), 9).is_err(), "all of it is pinned");
        }
        // The other shard frees its values, one after the other.
        for (number, key) in lent.iter().enumerate() {
            assert!(other.delete(key.as_bytes()));
            let key = format!("new {number}");
            shard.set(key.as_bytes(), &pattern(1, bytes), 9).expect("what the other one gave");
        }
        // One of these values is pinned, and so is the segment of its head. The upload needs room
        // for one piece after the other. The upkeep in between ends jobs that have begun.
        let third = shard.at(b"new 3").map(|at| shard.segments.pin(at)).expect("it was stored");
        let items = shard.segments.stats().items;
        let mut upload = shard.segments.pool().begin_upload(4 * bytes).expect("not too large");
        for piece in pattern(2, 4 * bytes).chunks(BLOCK_BYTES) {
            while upload.write(piece).is_err() {
                let made = shard.segments.make_upload_room(piece.len(), 9, &mut shard.index)
                    == Reclaimed::Made;
                assert!(made, "others may go");
                shard.maintain_all(9);
            }
        }
        assert!(shard.segments.stats().items < items);
        drop((upload, third));
        for number in 0..100 {
            let key = format!("newer {number}");
            let set = shard.set(key.as_bytes(), &pattern(number, bytes), 9);
            set.unwrap_or_else(|_| panic!("no room for {key}, though others may go"));
        }
        shard.segments.audit();
        for (number, pinned) in (0..).zip(&pins) {
            assert!(read_pinned(pinned) == pattern(number, bytes), "it stays as it was");
        }
    }
}

/// Stores the value of `key` with bytes before it.
fn prepend(shard: &mut Shard, key: &[u8], added: &[u8]) -> Result<ItemAt, NoSegment> {
    let old = shard.at(key).expect("stored");
    let value = NewValue::Extended { old, added: Added::Bytes(added), place: JoinPlace::Before };
    let item = shard.new_item(key, value);
    shard.store(item, 9)
}

#[test]
fn bytes_before_a_large_value_are_linked_to_it() {
    // No room for a second copy.
    let mut shard = Shard::new(4 << 20, true);
    let mut wanted = pattern(1, 2_500_000);
    shard.set(b"key", &wanted, 9).expect("there is room");
    let sizes = [1, 100, 16_000, 283, 1, 16_384, 40_000, 7, 300_000, 16_383, 2, 1];
    for (turn, bytes) in sizes.into_iter().enumerate() {
        let added = pattern(turn as u64 + 2, bytes);
        prepend(&mut shard, b"key", &added).expect("the blocks are taken over");
        wanted.splice(0..0, added);
        assert!(shard.value(b"key").as_ref() == Some(&wanted), "{bytes} bytes");
        shard.segments.audit();
    }
    assert_eq!(shard.segments.stats().evictions, 0);
    shard.assert_all_comes_back(12);
}

#[test]
fn extending_a_large_value_costs_what_is_added_and_four_blocks() {
    for bytes in [BLOCK_BYTES, 900_000, 15 << 20] {
        let mut shard = Shard::new(64 << 20, true);
        let mut at = shard.set(b"key", &pattern(1, bytes), 9).expect("there is room");
        let mut pins = Vec::new();
        for turn in 0..400 {
            if turn >= 200 && turn % 20 == 0 {
                pins.push(shard.segments.pin(at));
            }
            let added = pattern(turn, [1, 900, 16_383][turn as usize % 3]);
            let before = shard.segments.work_bytes();
            at = match turn % 2 {
                0 => prepend(&mut shard, b"key", &added).expect("there is room"),
                _ => extend(&mut shard, b"key", &added).expect("there is room"),
            };
            let work = shard.segments.work_bytes() - before;
            let most = (added.len() + 4 * BLOCK_BYTES) as u64;
            assert!(work <= most, "{work} bytes for {} to {bytes}", added.len());
        }
        assert_eq!(shard.segments.stats().evictions, 0);
        drop(pins);
        shard.segments.audit();
        shard.assert_all_comes_back(12);
    }
}

#[test]
fn readers_see_their_own_value_while_it_grows_on_both_sides() {
    let mut shard = Shard::new(16 << 20, true);
    let pool = std::sync::Arc::clone(shard.segments.pool());
    let mut random = Random(7);
    let mut value = pattern(1, 100_003);
    let mut at = shard.set(b"key", &value, 9).expect("there is room");
    let mut readers = Vec::new();
    for turn in 0..300 {
        let added = pattern(turn, 1 + random.below(40_000) as usize);
        if turn % 3 == 0 {
            readers.push((shard.segments.pin(at), value.clone()));
        }
        if value.len() > 1_000_000 {
            value = pattern(turn, 50_000);
            at = shard.set(b"key", &value, 9).expect("there is room");
        } else if random.below(2) == 0 {
            value.splice(0..0, added.iter().copied());
            at = prepend(&mut shard, b"key", &added).expect("there is room");
        } else {
            value.extend_from_slice(&added);
            at = extend(&mut shard, b"key", &added).expect("there is room");
        }
        assert!(shard.value(b"key").as_ref() == Some(&value), "turn {turn}");
        for (pinned, wanted) in &readers {
            let from = random.below(wanted.len() as u64) as usize;
            assert!(wanted[from..].starts_with(pinned.piece_at(from)) && from < wanted.len());
            assert!(pinned.hold_at(from).bytes() == pinned.piece_at(from));
        }
        if readers.len() > 4 {
            let (pinned, wanted) = readers.swap_remove(random.below(5) as usize);
            assert!(read_pinned(&pinned) == wanted, "turn {turn}");
            assert_eq!(pinned.total_bytes(), wanted.len());
            std::thread::spawn(move || drop(pinned)).join().expect("unpinned elsewhere");
        }
    }
    drop(readers);
    assert_eq!(pool.pinned_bytes(), 0);
    shard.segments.audit();
    shard.assert_all_comes_back(12);
}

#[test]
fn a_value_that_was_extended_before_moves_with_its_headroom() {
    let mut shard = Shard::new(16 << 20, false);
    let bytes = 3 * BLOCK_BYTES + 5;
    let stored = store_with_gaps(&mut shard, bytes);
    let mut wanted = Vec::new();
    for number in (0..stored).step_by(4) {
        let (key, added) = (format!("{number}"), pattern(number + 1, 5_000));
        prepend(&mut shard, key.as_bytes(), &added).expect("there is room");
        wanted.push((key, [added, pattern(number, bytes)].concat()));
    }
    move_blocks(&mut shard);
    for (key, wanted) in &mut wanted {
        assert!(shard.value(key.as_bytes()).as_ref() == Some(wanted), "{key} has moved");
        prepend(&mut shard, key.as_bytes(), b"front").expect("there is headroom");
        wanted.splice(0..0, *b"front");
        assert!(shard.value(key.as_bytes()).as_ref() == Some(wanted), "{key}");
    }
    shard.segments.audit();
    shard.assert_all_comes_back(12);
}

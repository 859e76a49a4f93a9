//! Items of all kinds are saved and restored, and a file that was changed restores no wrong item.

use std::collections::BTreeMap;
use std::sync::Arc;

use kachel_engine::{
    ClockOrigin, Common as _, Engine as _, EngineOptions, KeyHasher, LeaseOptions, Now, Seeds,
};
use kachel_host::Budget;
use kachel_stdx::BytePrefix;

use super::Restored;
use super::block::{BLOCK_BYTES_MAX, BLOCK_FULL_BYTES, BLOCK_HEAD_BYTES, BlockBuilder, BlockHead};
use super::head::{CAS_MAX, FileHead, HEAD_BYTES, Unfit, hash};
use crate::{Cache, EngineOf, Pool, PoolOptions, SavedItem};

const OPTIONS: EngineOptions = EngineOptions {
    evict: true,
    cas: true,
    item_bytes_max: 1 << 21,
    leases: LeaseOptions::DEFAULT,
};

fn now_in(second: u32) -> Now {
    ClockOrigin::new(0, 1_800_000_000).at(u64::from(second - 2) * 1_000_000_000)
}

fn cache(megabytes: u64, options: EngineOptions, engines: u16) -> Cache {
    let budget = Arc::new(Budget::new(megabytes << 20));
    let pool = PoolOptions {
        engines,
        cores: engines,
        reserve_bytes: megabytes << 20,
        huge: false,
        classes: crate::SizeClassOptions::default(),
    };
    let pool = Pool::new(Arc::clone(&budget), pool).expect("memory");
    let hasher = KeyHasher::new(Seeds { hash_keys: [3, 4] }, 1);
    let of = EngineOf { engine: engines - 1, engines };
    Cache::new(pool, budget, hasher, options, of).expect("memory")
}

fn restore(cache: &mut Cache, item: &SavedItem<'_>, value: &[u8], second: u32) -> Restored {
    let key = cache.hasher.key(item.key);
    cache.restore(&key, item, value, &now_in(second))
}

const PLAIN: SavedItem<'_> = SavedItem {
    key: b"plain",
    client_flags: 0,
    expiry: 0,
    cas: Some(7),
    access: 5 << 5,
    stale: false,
    win_sent: false,
    remnant: false,
    protocol_mark: false,
    is_main: false,
};

/// An item of each kind, with the length of its value.
fn kinds() -> Vec<(SavedItem<'static>, usize)> {
    vec![
        (PLAIN, 0),
        (SavedItem { key: b"a", client_flags: u32::MAX, expiry: 11, ..PLAIN }, 3),
        (SavedItem { key: &[b'l'; 250], cas: Some(u64::MAX), ..PLAIN }, 16_383),
        (SavedItem { key: b"large", is_main: true, access: 9 << 5 | 0b111, ..PLAIN }, 1_000_003),
        (SavedItem { key: b"stale", stale: true, win_sent: true, cas: Some(0), ..PLAIN }, 40),
        (SavedItem { key: b"base64", protocol_mark: true, ..PLAIN }, 16_384),
        (SavedItem { key: b"lease", stale: true, remnant: true, expiry: 19, ..PLAIN }, 0),
    ]
}

fn value_of(key: &[u8], value_bytes: usize) -> Vec<u8> {
    (0..value_bytes).map(|place| key[place % key.len()].wrapping_add((place >> 8) as u8)).collect()
}

type Items = BTreeMap<Vec<u8>, (String, Vec<u8>)>;

/// The items of a cache, as it would save them in second `second`.
fn items_of(cache: &mut Cache, second: u32) -> Items {
    let mut items = Items::new();
    let saved = cache.save(&now_in(second), |item, value| {
        let value = value.parts().collect::<Vec<_>>().concat();
        let before = items.insert(item.key.to_vec(), (format!("{item:?}"), value));
        if before.is_some() { Err("an item was saved twice") } else { Ok(()) }
    });
    assert_eq!(saved, Ok(()));
    items
}

/// The blocks of a cache.
fn blocks_of(cache: &mut Cache, file_id: u64, second: u32) -> Vec<Vec<u8>> {
    let (mut blocks, mut builder) = (Vec::new(), BlockBuilder::default());
    let mut seal = |builder: &mut BlockBuilder| {
        if !builder.is_empty() {
            let number = u32::try_from(blocks.len()).expect("a few");
            blocks.push(builder.seal(file_id, number).to_vec());
            builder.clear();
        }
    };
    let saved = cache.save(&now_in(second), |item, value| {
        if builder.is_full_for(value.bytes()) {
            seal(&mut builder);
        }
        builder.push(item, value);
        Ok::<(), ()>(())
    });
    assert_eq!(saved, Ok(()));
    seal(&mut builder);
    blocks
}

/// Restores the items of block `number` of a file, as `kachel` does.
fn load(
    cache: &mut Cache,
    block: &[u8],
    (file_id, number): (u64, u32),
    second: u32,
) -> Result<Vec<Restored>, Unfit> {
    let head = block.first_chunk::<BLOCK_HEAD_BYTES>().ok_or(Unfit::Length)?;
    let head = BlockHead::decode(head, file_id, number)?;
    let items = &block[BLOCK_HEAD_BYTES..];
    let items = items.get(..head.items_bytes as usize).ok_or(Unfit::Length)?;
    let mut restored = Vec::new();
    head.show(items, |item, value| restored.push(restore(cache, item, value, second)))?;
    Ok(restored)
}

/// Upkeep has not followed the flush, so the items are still in the segments.
#[test]
fn what_a_flushed_prefix_takes_is_not_saved() {
    let mut cache = cache(16, OPTIONS, 1);
    for key in [&b"a"[..], b"a:1", b"ab", b"b"] {
        restore(&mut cache, &SavedItem { key, ..PLAIN }, b"value", 10);
    }
    let prefix = BytePrefix::of_name(b"a", b':').expect("a name");
    cache.common().flush_prefix(&prefix).expect("room in the list");
    let items = items_of(&mut cache, 10);
    assert_eq!(items.into_keys().collect::<Vec<_>>(), [&b"ab"[..], b"b"]);
    // What is stored later is saved.
    restore(&mut cache, &SavedItem { key: b"a:2", ..PLAIN }, b"value", 10);
    assert_eq!(items_of(&mut cache, 10).len(), 3);
}

#[test]
fn items_of_all_kinds_are_restored_as_they_were() {
    let mut first = cache(16, OPTIONS, 1);
    for (item, value_bytes) in kinds() {
        let value = value_of(item.key, value_bytes);
        assert_eq!(restore(&mut first, &item, &value, 10), Restored::Stored);
        assert_eq!(restore(&mut first, &item, b"other", 10), Restored::Known);
    }
    let items = items_of(&mut first, 10);
    for (item, value_bytes) in kinds() {
        let wanted = (format!("{item:?}"), value_of(item.key, value_bytes));
        assert_eq!(items.get(item.key), Some(&wanted));
    }
    assert_eq!(items.len(), kinds().len());

    let blocks = blocks_of(&mut first, 77, 10);
    assert!(!blocks.is_empty(), "there are items");
    for (second, lost) in [(10, 0), (11, 1), (19, 2)] {
        let mut next = cache(32, OPTIONS, 3);
        for (number, block) in (0..).zip(&blocks) {
            load(&mut next, block, (77, number), second).expect("it is whole");
        }
        let restored = items_of(&mut next, second);
        assert_eq!(restored.len(), items.len() - lost, "second {second}");
        assert!(restored.iter().all(|(key, item)| items.get(key) == Some(item)));
    }
}

#[test]
fn a_block_with_any_byte_changed_or_cut_off_restores_nothing() {
    let mut first = cache(16, OPTIONS, 1);
    for (item, value_bytes) in kinds() {
        restore(&mut first, &item, &value_of(item.key, value_bytes.min(20)), 10);
    }
    let block = blocks_of(&mut first, 77, 10).concat();
    let mut next = cache(16, OPTIONS, 1);
    for at in 0..block.len() {
        for change in [1, 0x80, 0xff] {
            let mut changed = block.clone();
            changed[at] ^= change;
            load(&mut next, &changed, (77, 0), 10).expect_err("a byte was changed");
        }
        load(&mut next, &block[..at], (77, 0), 10).expect_err("it was cut");
    }
    for other in [(78, 0), (77, 1)] {
        assert_eq!(load(&mut next, &block, other, 10), Err(Unfit::Range), "it is another block");
    }
    assert_eq!(items_of(&mut next, 10), Items::new());
    assert_eq!(load(&mut next, &block, (77, 0), 10).expect("whole").len(), kinds().len());
}

/// Gives a changed block the hashes that it must have.
fn rehash(block: &mut [u8]) {
    let items_hash = hash(&block[BLOCK_HEAD_BYTES..]);
    block[24..32].copy_from_slice(&items_hash.to_le_bytes());
    let head_hash = hash(&block[..32]);
    block[32..40].copy_from_slice(&head_hash.to_le_bytes());
}

/// The fault: a block that claims 3.5 GiB had that many bytes of memory before a hash was checked.
#[test]
fn a_head_promises_no_more_bytes_than_a_block_has() {
    let mut first = cache(16, OPTIONS, 1);
    restore(&mut first, &PLAIN, b"v", 10);
    let mut block = blocks_of(&mut first, 77, 10).concat();
    let mut decoded = |items: u32, items_bytes: u32| {
        block[12..16].copy_from_slice(&items.to_le_bytes());
        block[16..20].copy_from_slice(&items_bytes.to_le_bytes());
        let head_hash = hash(&block[..32]);
        block[32..40].copy_from_slice(&head_hash.to_le_bytes());
        BlockHead::decode(block.first_chunk().expect("a head"), 77, 0)
    };
    let large = (1_u32 << 30) + 276;
    let several = BLOCK_BYTES_MAX as u32;
    for (items, items_bytes, is_possible) in [
        (1, 3_758_096_384, false),
        (1, large + 1, false),
        (1, large, true),
        (1, 14, false),
        (1, 15, true),
        (2, several + 1, false),
        (2, several, true),
        (2, 29, false),
        (u32::MAX, several, false),
        (0, 0, false),
    ] {
        let head = decoded(items, items_bytes);
        assert_eq!(head.is_ok(), is_possible, "{items} items of {items_bytes} bytes");
    }
    // -I is 2 MiB here: an item that is longer is not read at all.
    for (items_bytes, may_take) in [(100, true), (2 << 20, true), ((2 << 20) + 300, false)] {
        let head = decoded(1, items_bytes).expect("possible");
        assert_eq!(first.may_take(&head), may_take, "{items_bytes} bytes");
    }
    assert!(first.may_take(&decoded(2, several).expect("possible")));
}

#[test]
fn a_hostile_block_with_right_hashes_breaks_nothing() {
    let mut first = cache(16, OPTIONS, 1);
    for (item, value_bytes) in kinds() {
        restore(&mut first, &item, &value_of(item.key, value_bytes.min(20)), 10);
    }
    let block = blocks_of(&mut first, 77, 10).concat();
    let mut random = kachel_testkit::Random::new(11);
    let mut refused = 0;
    for at in 0..block.len() {
        let mut changed = block.clone();
        changed[at] = random.below(256) as u8;
        rehash(&mut changed);
        let mut next = cache(2, OPTIONS, 1);
        let loaded = load(&mut next, &changed, (77, 0), 10);
        refused += usize::from(loaded.is_err());
        items_of(&mut next, 10);
    }
    assert!(refused > 20, "{refused} refused");
    // A reader that found a word of accesses which was left would search forever.
    let mut next = cache(2, OPTIONS, 1);
    restore(&mut next, &SavedItem { access: 0b110, ..PLAIN }, b"v", 10);
    let key = next.hasher.key(b"plain");
    let found = next.find_live(&key, &now_in(10)).expect("it was stored");
    next.segments.note_access(found.at(), 10);
}

const HEAD: FileHead = FileHead {
    file_id: 1,
    file_bytes: 5000,
    items: 3,
    blocks: 2,
    second: 100,
    unix_s: 1_800_000_000,
    greatest_cas: 44,
    flush_due: Some(130),
};

#[test]
fn a_head_is_read_only_as_it_was_written() {
    let page = HEAD.encode();
    assert_eq!(FileHead::decode(&page, 5000), Ok(HEAD));
    assert_eq!(FileHead::decode(&page, 4999), Err(Unfit::Length));
    assert_eq!(FileHead::decode(&page, 5001), Err(Unfit::Length));
    for at in 0..HEAD_BYTES {
        let mut changed = page;
        changed[at] ^= 1;
        FileHead::decode(&changed, 5000).expect_err("a byte was changed");
        FileHead::decode(&page[..at], at as u64).expect_err("it was cut");
    }
    let rehashed = |change: fn(&mut FileHead)| {
        let mut head = HEAD;
        change(&mut head);
        let mut page = head.encode();
        let end = hash(&page[..HEAD_BYTES - 8]);
        page[HEAD_BYTES - 8..].copy_from_slice(&end.to_le_bytes());
        FileHead::decode(&page, 5000)
    };
    assert_eq!(rehashed(|head| head.second = 1), Err(Unfit::Range));
    assert_eq!(rehashed(|head| head.second = 1 << 31), Err(Unfit::Range));
    // 904 bytes follow the head, and an item takes 15 at least.
    assert!(rehashed(|head| head.items = 60).is_ok());
    assert_eq!(rehashed(|head| head.items = 61), Err(Unfit::Range));
    assert_eq!(rehashed(|head| head.items = u64::MAX), Err(Unfit::Range));
    assert_eq!(rehashed(|head| head.blocks = 4), Err(Unfit::Range), "a block has an item");
    assert!(rehashed(|head| head.greatest_cas = CAS_MAX).is_ok());
    let mut newer = page;
    newer[16] = 2;
    assert_eq!(FileHead::decode(&newer, 5000), Err(Unfit::Version(2)));
    assert_eq!(FileHead::decode(b"", 0), Err(Unfit::NotOurs));
}

#[test]
fn time_goes_on_and_never_back() {
    assert_eq!(HEAD.second_at(HEAD.unix_s), Some(100));
    assert_eq!(HEAD.second_at(HEAD.unix_s + 31), Some(131));
    assert_eq!(HEAD.second_at(HEAD.unix_s - 3600), Some(100), "the clock was set back");
    assert_eq!(HEAD.second_at(u64::MAX), None);
    assert_eq!(HEAD.second_at(HEAD.unix_s + i32::MAX as u64), None);
}

#[test]
fn tokens_go_on_above_those_of_any_number_of_shards() {
    for greatest in [0, 5, 1000, CAS_MAX] {
        for shards in [1, 3, 64] {
            let mut next = cache(80, OPTIONS, shards);
            next.give_tokens_above(greatest);
            assert!(next.next_cas() > greatest, "{greatest} with {shards} shards");
            let before = next.greatest_cas();
            next.give_tokens_above(before.min(CAS_MAX));
            assert!(next.next_cas() > before);
        }
    }
    // A server with -C has given its items no token.
    let mut next = cache(16, OPTIONS, 1);
    next.give_tokens_above(40);
    restore(&mut next, &SavedItem { cas: None, ..PLAIN }, b"v", 10);
    assert!(items_of(&mut next, 10)[&b"plain"[..]].0.contains("cas: Some(41)"));
    let mut without = cache(16, EngineOptions { cas: false, ..OPTIONS }, 1);
    restore(&mut without, &PLAIN, b"v", 10);
    assert!(items_of(&mut without, 10)[&b"plain"[..]].0.contains("cas: None"));
}

#[test]
fn with_less_memory_the_newest_items_stay_and_with_as_much_all_do() {
    let mut first = cache(8, OPTIONS, 1);
    let value = vec![b'v'; 900];
    let key = |number: u32| format!("key {number:06}");
    for number in 0..20_000 {
        let key = key(number);
        let item = SavedItem { key: key.as_bytes(), ..PLAIN };
        assert_eq!(restore(&mut first, &item, &value, 10), Restored::Stored);
    }
    let held = items_of(&mut first, 10);
    assert!(held.len() > 6_000, "{} are held", held.len());
    let blocks = blocks_of(&mut first, 77, 10);
    assert!(blocks.iter().all(|block| block.len() <= BLOCK_HEAD_BYTES + BLOCK_FULL_BYTES + 1000));
    let restored = |megabytes, options| {
        let mut next = cache(megabytes, options, 1);
        let mut refused = 0;
        for (number, block) in (0..).zip(&blocks) {
            let all = load(&mut next, block, (77, number), 10).expect("whole");
            refused += all.iter().filter(|one| **one == Restored::NoRoom).count();
        }
        let items = items_of(&mut next, 10);
        assert!(items.iter().all(|(key, item)| held.get(key) == Some(item)));
        (items, refused, next.stats().evictions as usize)
    };
    let (items, refused, evicted) = restored(8, OPTIONS);
    assert_eq!((refused, items.len() + evicted), (0, held.len()));
    assert!(evicted * 50 < held.len(), "{evicted} were evicted for nothing");
    let (items, refused, evicted) = restored(4, OPTIONS);
    assert_eq!((refused, items.len() + evicted), (0, held.len()));
    assert!(items.len() * 3 > held.len(), "half the memory holds a good third");
    assert!(items.contains_key(key(19_999).as_bytes()), "the newest one stays");
    let (items, refused, evicted) = restored(4, EngineOptions { evict: false, ..OPTIONS });
    assert_eq!((evicted, items.len() + refused), (0, held.len()), "a store evicts nothing");
    assert!(refused > 0 && items.len() * 3 > held.len());
    let small = EngineOptions { item_bytes_max: 800, ..OPTIONS };
    assert_eq!(restored(8, small).0, Items::new(), "-I is smaller");
}

#[test]
fn flushed_items_are_not_saved() {
    let mut first = cache(16, OPTIONS, 1);
    restore(&mut first, &PLAIN, b"v", 10);
    let word = first.segments.pool().flush_word();
    word.flush_in(20, 10);
    assert_eq!(word.pending(19), Some(20));
    assert_eq!(word.pending(20), None);
    assert_eq!(items_of(&mut first, 19).len(), 1);
    assert_eq!(items_of(&mut first, 20).len(), 0);
}

//! How much of the limit items can use before the first eviction.

use super::index::Shard;

/// Stores items of these sizes in 32 MiB until one is evicted. Returns their number divided by the
/// number that would fit if memory held only items: 16 bytes of overhead each, rounded up to 8.
fn filled_part(key_bytes: usize, value_bytes: usize) -> f64 {
    let limit_bytes: u64 = 32 << 20;
    let mut shard = Shard::new(limit_bytes, true);
    let value = vec![b'v'; value_bytes];
    let mut held = 0_u64;
    while shard.segments.stats().evictions == 0 {
        let key = format!("{held:0key_bytes$}");
        shard.set(key.as_bytes(), &value, 100).expect("a cache makes room");
        if held.is_multiple_of(64) {
            shard.segments.maintain(100, &mut shard.index, 16);
        }
        held += 1;
    }
    let item_bytes = (16 + key_bytes + value_bytes).next_multiple_of(8) as u64;
    held as f64 / (limit_bytes / item_bytes) as f64
}

#[test]
fn small_items_fill_memory() {
    let part = filled_part(16, 32);
    assert!(part >= 0.93, "{part}");
}

#[test]
fn middling_items_fill_memory() {
    let part = filled_part(30, 100);
    assert!(part >= 0.93, "{part}");
}

#[test]
fn long_items_fill_memory() {
    let part = filled_part(30, 1000);
    assert!(part >= 0.93, "{part}");
}

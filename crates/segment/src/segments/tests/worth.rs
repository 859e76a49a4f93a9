//! The items that eviction keeps when sizes differ, and when readers change to other keys.

use super::index::Shard;

const LIMIT_BYTES: u64 = 2 << 20;

/// Stores values of `bytes` bytes with fresh keys, `total_bytes` of them in all, without a read.
fn pass_by(shard: &mut Shard, name: &str, bytes: usize, total_bytes: u64) {
    let value = vec![b'v'; bytes];
    for number in 0..total_bytes as usize / bytes {
        let key = format!("{name} {number:08}");
        shard.set(key.as_bytes(), &value, 5).expect("a cache makes room");
        shard.segments.maintain(5, &mut shard.index, 16);
    }
}

/// Asks for `count` keys and stores what is missing; how many were there.
fn look_aside(shard: &mut Shard, name: &str, count: usize, bytes: usize) -> usize {
    let mut hits = 0;
    for number in 0..count {
        let key = format!("{name} {number:08}");
        match shard.at(key.as_bytes()) {
            Some(at) => {
                hits += 1;
                shard.segments.note_access(at, 5);
            }
            None => {
                shard.set(key.as_bytes(), &vec![b'v'; bytes], 5).expect("a cache makes room");
            }
        }
        shard.segments.maintain(5, &mut shard.index, 16);
    }
    hits
}

/// The part of memory that values whose keys begin with `name` fill.
fn share(shard: &Shard, name: &str) -> f64 {
    let named = shard.index.map.iter().filter(|(key, _)| key.starts_with(name.as_bytes()));
    let bytes: usize = named.map(|(_, &at)| shard.segments.item(at).memory_bytes()).sum();
    bytes as f64 / LIMIT_BYTES as f64
}

#[test]
fn a_population_that_nobody_reads_any_longer_leaves_whatever_its_size() {
    for (old_bytes, new_bytes) in [(40, 4000), (4000, 40), (200, 200), (100, 100_000)] {
        let mut shard = Shard::new(LIMIT_BYTES, true);
        let count = LIMIT_BYTES as usize / 2 / (old_bytes + 50);
        for round in 0..6 {
            look_aside(&mut shard, "old", count, old_bytes);
            pass_by(&mut shard, &format!("between {round}"), old_bytes, LIMIT_BYTES / 4);
        }
        let popular = share(&shard, "old");
        assert!(popular > 0.3, "{old_bytes}: it was read and is kept: {popular}");
        pass_by(&mut shard, "new", new_bytes, 16 * LIMIT_BYTES);
        let (old, new) = (share(&shard, "old"), share(&shard, "new"));
        println!("{old_bytes} after {new_bytes}: old {old:.3}, new {new:.3}");
        assert!(old < 0.05 && new > 0.75, "{old_bytes} after {new_bytes}: old {old}, new {new}");
        shard.segments.audit();
    }
}

#[test]
fn what_is_read_again_is_kept_while_four_times_memory_passes_by() {
    // With fewer segments, eviction is too coarse for the smallest items.
    const LIMIT_BYTES: u64 = 4 << 20;
    let scans = if std::env::var_os("KACHEL_FULL").is_some() { 6 } else { 2 };
    for bytes in [40, 300, 4000] {
        let mut shard = Shard::new(LIMIT_BYTES, true);
        let count = LIMIT_BYTES as usize / 2 / (bytes + 50);
        let mut hits = 0;
        for round in 0..4 {
            look_aside(&mut shard, "popular", count, bytes);
            pass_by(&mut shard, &format!("first {round}"), bytes, LIMIT_BYTES / 4);
        }
        for round in 0..scans {
            pass_by(&mut shard, &format!("scan {round}"), bytes, 4 * LIMIT_BYTES);
            hits += look_aside(&mut shard, "popular", count, bytes);
        }
        let ratio = hits as f64 / (scans * count) as f64;
        println!("{bytes}: {ratio:.3}");
        assert!(ratio > 0.6, "{bytes}: {ratio}");
    }
}

/// Small and large values are read equally often. Together they are a third larger than memory. The
/// large ones must miss, because they need more memory for the same number of reads.
#[test]
fn small_values_outlive_large_ones_that_are_read_as_often() {
    let mut shard = Shard::new(LIMIT_BYTES, true);
    let (mut small, mut large) = (0, 0);
    for round in 0..12 {
        let hits = [("small", 2_000, 200), ("large", 450, 5_000)]
            .map(|(name, count, bytes)| look_aside(&mut shard, name, count, bytes));
        if round >= 4 {
            small += hits[0];
            large += hits[1];
        }
    }
    let (small, large) = (small as f64 / (8.0 * 2_000.0), large as f64 / (8.0 * 450.0));
    println!("small {small:.3}, large {large:.3}");
    assert!(small > 0.7 && small > large + 0.2, "small {small}, large {large}");
}

#[test]
fn no_request_turns_main_by_dozens_of_segments() {
    const SMALL_BYTES: usize = 1000;
    let [mut shard] = Shard::sharing_cut_for::<1>(64 << 20, 16 << 20, true);
    let segment_items = shard.segments.pool().segment_bytes() / SMALL_BYTES;
    let count = (40 << 20) / SMALL_BYTES;
    for round in 0..4 {
        look_aside(&mut shard, "popular", count, SMALL_BYTES);
        look_aside(&mut shard, "popular", count, SMALL_BYTES);
        pass_by(&mut shard, &format!("{round}"), SMALL_BYTES, 32 << 20);
    }
    // All heads of probation share a segment. So its eviction notes many bytes at once.
    let value = vec![b'v'; crate::BLOCK_BYTES + 5];
    let (mut most, mut hits) = (0, 0);
    for round in 0..4 {
        hits = look_aside(&mut shard, "popular", count, SMALL_BYTES);
        for number in 0..2000 {
            let before = shard.index.swings;
            shard.set(format!("large {round} {number}").as_bytes(), &value, 5).expect("evicts");
            most = most.max(shard.index.swings - before);
        }
    }
    println!("{} segments, {hits} of {count} kept", most / segment_items);
    assert!(hits * 10 > count * 8, "what is read stays: {hits} of {count}");
    assert!(most <= 8 * segment_items, "{} segments in one request", most / segment_items);
}

#[test]
fn a_large_value_that_is_read_often_is_kept_among_small_ones() {
    let mut shard = Shard::new(LIMIT_BYTES, true);
    let (mut hits, rounds) = (0, 200);
    for round in 0..rounds {
        for _ in 0..4 {
            hits += look_aside(&mut shard, "large", 10, 100_000);
        }
        pass_by(&mut shard, &format!("{round}"), 100, LIMIT_BYTES / 20);
    }
    let ratio = hits as f64 / f64::from(4 * 10 * rounds);
    println!("{ratio:.4}");
    assert!(ratio > 0.98, "{ratio}");
}

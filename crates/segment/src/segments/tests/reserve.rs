//! A full store still accepts replacements, and new items once others are deleted.

use super::index::{Random, Shard, pattern};

/// Sizes of values, as a test draws them.
type Sizes = fn(&mut Random) -> usize;

fn tiny(_random: &mut Random) -> usize {
    16
}

fn kilobytes(_random: &mut Random) -> usize {
    1_000
}

/// So long that only a few share a segment and its end often stays empty.
fn longest(random: &mut Random) -> usize {
    9_000 + random.below(7_000) as usize
}

fn mixed(random: &mut Random) -> usize {
    match random.below(10) {
        0 => 2_000 + random.below(10_000) as usize,
        1..=4 => 200 + random.below(800) as usize,
        _ => random.below(100) as usize,
    }
}

const NOW: u32 = 100;
/// New items that are refused one after the other before memory counts as full.
const REFUSED_MIN: usize = 200;

/// Shards of one store that are full, and what they hold: shard, key, value's length.
struct Full<const N: usize> {
    shards: [Shard; N],
    held: Vec<(usize, String, usize)>,
    random: Random,
    sizes: Sizes,
    expiries: u64,
    stored: usize,
}

impl<const N: usize> Full<N> {
    /// Fills memory of `limit_bytes`. Items expire at `expiries` different times, far away.
    fn new(limit_bytes: u64, sizes: Sizes, expiries: u64) -> Self {
        let shards = Shard::sharing(limit_bytes, false);
        let random = Random(5);
        let mut full = Self { shards, held: Vec::new(), random, sizes, expiries, stored: 0 };
        full.fill();
        full
    }

    /// Stores new items until `REFUSED_MIN` are refused; how many were stored.
    fn fill(&mut self) -> usize {
        let (mut refused, before) = (0, self.held.len());
        while refused < REFUSED_MIN {
            self.stored += 1;
            let key = format!("key {}", self.stored);
            let shard = self.random.below(N as u64) as usize;
            let bytes = (self.sizes)(&mut self.random);
            match self.store(shard, &key, bytes) {
                true => self.held.push((shard, key, bytes)),
                false => refused += 1,
            }
        }
        self.held.len() - before
    }

    fn store(&mut self, shard: usize, key: &str, bytes: usize) -> bool {
        let apart = self.random.below(self.expiries) as u32;
        let shard = &mut self.shards[shard];
        let value = pattern(bytes as u64, bytes);
        let item = shard.new_item(key.as_bytes(), crate::NewValue::Bytes(&value));
        let item = crate::NewItem { expiry: if apart == 0 { 0 } else { apart << 12 }, ..item };
        shard.store(item, NOW).is_ok()
    }

    /// Replaces `count` items, drawn by chance, each by one of its length.
    fn replace(&mut self, count: usize) {
        for turn in 0..count {
            let place = self.random.below(self.held.len() as u64) as usize;
            let (shard, key, bytes) = self.held[place].clone();
            assert!(self.store(shard, &key, bytes), "replacement {turn}, {bytes} bytes");
            if turn % 2_000 == 0 {
                self.audit();
            }
        }
        self.audit();
    }

    fn audit(&self) {
        let held: usize = self.shards.iter().map(|shard| shard.segments.audit().len()).sum();
        assert_eq!(held, self.held.len());
    }

    fn assert_all_there(&self) {
        for (shard, key, bytes) in &self.held {
            let value = self.shards[*shard].value(key.as_bytes());
            assert!(value == Some(pattern(*bytes as u64, *bytes)), "{key}");
        }
    }

    /// Deletes one item in `part`, drawn by chance; their shards and lengths.
    fn delete(&mut self, part: usize) -> Vec<(usize, usize)> {
        let deleted = self.held.len() / part;
        let delete = |_| {
            let place = self.random.below(self.held.len() as u64) as usize;
            let (shard, key, bytes) = self.held.swap_remove(place);
            assert!(self.shards[shard].delete(key.as_bytes()));
            (shard, bytes)
        };
        (0..deleted).map(delete).collect()
    }
}

fn is_full() -> bool {
    std::env::var_os("KACHEL_FULL").is_some()
}

fn replaces<const N: usize>(limit_bytes: u64, sizes: Sizes, expiries: u64) {
    let mut full = Full::<N>::new(limit_bytes, sizes, expiries);
    // With many shards, each replacement costs the copy of a segment.
    let count = if is_full() { 10_000 } else { 3_000 } / N / N;
    full.replace(count);
    full.assert_all_there();
    // Replacements have freed no memory that new items may take.
    full.fill();
    full.replace(count / 2);
    full.assert_all_there();
}

#[test]
fn a_replacement_no_larger_is_never_refused() {
    for sizes in [tiny, kilobytes, longest, mixed] {
        replaces::<1>(2 << 20, sizes, 1);
        replaces::<1>(6 << 20, sizes, 1);
    }
}

#[test]
fn nor_where_items_expire_at_many_times() {
    for sizes in [tiny, kilobytes, longest, mixed] {
        replaces::<1>(4 << 20, sizes, 50);
    }
}

#[test]
fn nor_where_shards_share_little_memory() {
    for sizes in [tiny, kilobytes, longest, mixed] {
        replaces::<2>(3 << 20, sizes, 3);
        replaces::<4>(3 << 20, sizes, 3);
        replaces::<8>(2 << 20, sizes, 1);
    }
}

#[test]
fn one_key_is_replaced_again_and_again() {
    for sizes in [tiny, kilobytes, longest, mixed] {
        let mut full = Full::<2>::new(3 << 20, sizes, 1);
        let (shard, key, bytes) = full.held[17].clone();
        for turn in 0..5_000 {
            assert!(full.store(shard, &key, bytes), "replacement {turn}");
        }
        full.audit();
        full.assert_all_there();
    }
}

fn deleting_makes_room<const N: usize>(limit_bytes: u64, sizes: Sizes) {
    let mut full = Full::<N>::new(limit_bytes, sizes, 1);
    for round in 0..if is_full() { 4 } else { 2 } {
        let deleted = full.delete(20);
        let before = full.held.len();
        for (shard, bytes) in &deleted {
            let key = format!("round {round} {}", full.held.len());
            if full.store(*shard, &key, *bytes) {
                full.held.push((*shard, key, *bytes));
            }
        }
        let (stored, deleted) = (full.held.len() - before, deleted.len());
        assert!(stored * 100 >= deleted * 80, "round {round}: {stored} stored for {deleted}");
        full.audit();
    }
    full.assert_all_there();
    full.replace(if is_full() { 5_000 } else { 1_000 });
}

#[test]
fn deleting_a_twentieth_of_a_full_store_makes_room_for_as_many() {
    let times = if is_full() { 2 } else { 1 };
    for sizes in [tiny, kilobytes, mixed] {
        deleting_makes_room::<1>(times * (4 << 20), sizes);
        deleting_makes_room::<4>(times * (8 << 20), sizes);
    }
}

#[test]
fn what_one_request_moves_is_bounded() {
    let mut full = Full::<1>::new(8 << 20, tiny, 1);
    let segment_items = full.shards[0].segments.stats().segment_bytes as usize / 40;
    let mut most = [0; 2];
    for round in 0..4 {
        full.delete(200);
        for turn in 0..4_000 {
            let before = full.shards[0].index.swings;
            let is_new = round % 2 == 1;
            if is_new {
                // The item may be stored or refused; the search must end.
                full.store(0, &format!("new {round} {turn}"), 16);
                full.shards[0].delete(format!("new {round} {turn}").as_bytes());
            } else {
                let place = full.random.below(full.held.len() as u64) as usize;
                let (shard, key, bytes) = full.held[place].clone();
                assert!(full.store(shard, &key, bytes));
            }
            let moved = full.shards[0].index.swings - before;
            most[usize::from(is_new)] = most[usize::from(is_new)].max(moved);
        }
    }
    let jobs = super::super::reclaimer::allowance::STORE_JOBS_MAX + 2;
    assert!(most.iter().all(|&moved| moved > 0 && moved <= jobs * segment_items), "{most:?}");
}

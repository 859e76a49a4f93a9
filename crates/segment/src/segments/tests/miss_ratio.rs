//! Compares eviction with FIFO and LRU of the same memory, on a stream of popular and rare keys.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::index::{Random, Shard};

const KEYS: usize = 300_000;
const REQUESTS: usize = 800_000;
const LIMIT_BYTES: u64 = 2 << 20;

/// Draws key numbers with Zipf's law, exponent 0.99, from a table of cumulated weights.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(keys: usize) -> Self {
        let mut sum = 0.0;
        let weights = (1..=keys).map(|rank| {
            sum += 1.0 / (rank as f64).powf(0.99);
            sum
        });
        Self(weights.collect())
    }

    fn draw(&self, random: &mut Random) -> usize {
        let total = self.0[self.0.len() - 1];
        let point = random.below(1 << 40) as f64 / (1_u64 << 40) as f64 * total;
        self.0.partition_point(|&sum| sum <= point)
    }
}

/// Requests; with `scans`, runs of keys that never come back are mixed in.
fn stream(scans: bool) -> Vec<usize> {
    let zipf = Zipf::new(KEYS);
    let mut random = Random(11);
    let mut next_new = KEYS;
    let mut requests = Vec::with_capacity(REQUESTS);
    while requests.len() < REQUESTS {
        if scans && random.below(20_000) == 0 {
            requests.extend(next_new..next_new + 10_000);
            next_new += 10_000;
        }
        requests.push(zipf.draw(&mut random));
    }
    requests
}

fn misses_of_ours(requests: &[usize]) -> (usize, usize) {
    let mut shard = Shard::new(LIMIT_BYTES, true);
    let (mut misses, mut held_max) = (0, 0);
    for (turn, request) in requests.iter().enumerate() {
        let key = format!("{request:016}");
        match shard.at(key.as_bytes()) {
            Some(at) => shard.segments.note_access(at, 5),
            None => {
                misses += usize::from(turn >= requests.len() / 3);
                shard.set(key.as_bytes(), &[b'v'; 32], 5).expect("a cache makes room");
            }
        }
        if turn % 16 == 0 {
            shard.segments.maintain(5, &mut shard.index, 8);
        }
        held_max = held_max.max(shard.index.map.len());
    }
    (misses, held_max)
}

fn misses_of_fifo(requests: &[usize], capacity: usize) -> usize {
    let (mut queue, mut held, mut misses) = (VecDeque::new(), BTreeSet::new(), 0);
    for (turn, &request) in requests.iter().enumerate() {
        if held.insert(request) {
            misses += usize::from(turn >= requests.len() / 3);
            queue.push_back(request);
            if queue.len() > capacity {
                held.remove(&queue.pop_front().expect("it is longer than nothing"));
            }
        }
    }
    misses
}

fn misses_of_lru(requests: &[usize], capacity: usize) -> usize {
    let (mut by_time, mut times, mut misses) = (BTreeMap::new(), BTreeMap::new(), 0);
    for (turn, &request) in requests.iter().enumerate() {
        match times.insert(request, turn) {
            Some(before) => drop(by_time.remove(&before)),
            None => misses += usize::from(turn >= requests.len() / 3),
        }
        by_time.insert(turn, request);
        if by_time.len() > capacity {
            let (_, oldest) = by_time.pop_first().expect("it is longer than nothing");
            times.remove(&oldest);
        }
    }
    misses
}

/// The rivals get the most items that ours ever held.
fn check(scans: bool, lru_part: f64) {
    let requests = stream(scans);
    let (ours, capacity) = misses_of_ours(&requests);
    let fifo = misses_of_fifo(&requests, capacity);
    let lru = misses_of_lru(&requests, capacity);
    println!("scans {scans}: {capacity} items, misses: ours {ours}, LRU {lru}, FIFO {fifo}");
    assert!(ours < fifo, "ours {ours}, FIFO {fifo}");
    assert!((ours as f64) < lru as f64 * lru_part, "ours {ours}, LRU {lru}");
}

#[test]
fn popular_keys_are_kept_better_than_by_lru() {
    check(false, 0.95);
}

#[test]
fn scans_do_not_wash_popular_keys_out() {
    check(true, 0.97);
}

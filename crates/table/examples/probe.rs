//! How many probes a second the bare table answers: one by one, and in batches with prefetch.
//!
//! Upstream:   `cargo run --release -p kachel-table --example probe -- [keys]`.
//! Downstream: `Table`; an "item" is a line of 64 bytes whose first word is its key's number.
//!
//! Each line is the best of `ROUNDS` rounds, beside a reference: reads of random lines of the same
//! memory in batches of the same size, two for the table and one for the item.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use kachel_host::{Budget, Region};
use kachel_table::{BucketChoice, KeyHash, Location, Table, prefetch};

const BATCH: usize = 32;
const ROUNDS: usize = 200;
const PROBES: usize = 1 << 14;

fn hash_number(seed: u64) -> KeyHash {
    let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    KeyHash(mixed ^ mixed >> 31)
}

/// The items: line n is the item at location n, its first word the number of its key.
struct Items(Region);

impl Items {
    fn key(&self, location: Location) -> u64 {
        self.0.words()[location.get() as usize * 8].load(Relaxed)
    }

    fn set_key(&self, location: Location, key: u64) {
        self.0.words()[location.get() as usize * 8].store(key, Relaxed);
    }

    fn prefetch(&self, location: Location) {
        prefetch(&self.0.words()[location.get() as usize * 8]);
    }
}

/// Runs `round` on `PROBES` probes `ROUNDS` times and prints the best.
fn report(what: &str, mut round: impl FnMut()) {
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        round();
        best = best.min(start.elapsed().as_nanos() as f64 / PROBES as f64);
    }
    println!("{what:34} {best:7.1} ns  {:6.1} M/s", 1e3 / best);
}

fn reference(items: &Items, keys: u64, turn: &mut u64) {
    for _ in 0..PROBES / BATCH {
        let mut locations = [Location::new(1); 3 * BATCH];
        for location in &mut locations {
            *turn += 1;
            *location = Location::new(hash_number(*turn).0 % keys + 1);
            items.prefetch(*location);
        }
        for &location in &locations {
            black_box(items.key(location));
        }
    }
}

fn find(table: &Table, items: &Items, keys: u64, turn: &mut u64) {
    for _ in 0..PROBES {
        *turn += 1;
        let key = hash_number(*turn).0 % keys + 1;
        black_box(table.find(hash_number(key), |seen| items.key(seen) == key));
    }
}

fn find_batched(table: &Table, items: &Items, keys: u64, turn: &mut u64) {
    let (mut wanted, mut hashes) = ([0; BATCH], [KeyHash(0); BATCH]);
    for _ in 0..PROBES / BATCH {
        for (key, hash) in wanted.iter_mut().zip(&mut hashes) {
            *turn += 1;
            *key = hash_number(*turn).0 % keys + 1;
            *hash = hash_number(*key);
            table.prefetch_bucket(*hash, BucketChoice::First);
        }
        let mut guesses = [None; BATCH];
        for (guess, &hash) in guesses.iter_mut().zip(&hashes) {
            *guess = table.guess(hash, BucketChoice::First);
            match guess {
                Some(guess) => items.prefetch(guess.location()),
                None => table.prefetch_bucket(hash, BucketChoice::Second),
            }
        }
        for (guess, &hash) in guesses.iter_mut().zip(&hashes).filter(|(guess, _)| guess.is_none()) {
            *guess = table.guess(hash, BucketChoice::Second);
            if let Some(guess) = guess {
                items.prefetch(guess.location());
            }
        }
        for ((&hash, &key), guess) in hashes.iter().zip(&wanted).zip(guesses) {
            let confirmed = guess.and_then(|guess| table.confirm(guess));
            let is_key = |seen| items.key(seen) == key;
            black_box(confirmed.filter(|&seen| is_key(seen)).or_else(|| table.find(hash, is_key)));
        }
    }
}

/// Replaces the oldest key by a new one, in batches with prefetch.
fn replace(table: &mut Table, items: &Items, keys: u64, newest: &mut u64) {
    for _ in 0..PROBES / BATCH {
        for ahead in 1..=BATCH as u64 {
            table.prefetch(hash_number(*newest + ahead));
            table.prefetch(hash_number(*newest + ahead - keys));
        }
        for _ in 0..BATCH {
            *newest += 1;
            let location = Location::new(*newest % keys + 1);
            assert!(table.remove(hash_number(*newest - keys), location));
            items.set_key(location, *newest);
            let hash_of = |location| hash_number(items.key(location));
            table.insert(hash_number(*newest), location, hash_of).expect("room");
        }
    }
}

fn main() {
    let keys: u64 = std::env::args().nth(1).map_or(1_000_000, |text| text.parse().expect("keys"));
    let budget = Arc::new(Budget::new(1 << 40));
    let mut table = Table::new(Arc::clone(&budget), 4 * keys).expect("address space");
    let items =
        Items(Region::reserve((keys as usize + 1) * 64, true, "items").expect("address space"));
    for key in 1..=keys {
        items.set_key(Location::new(key % keys + 1), key);
    }
    let hash_of = |location| hash_number(items.key(location));
    let start = Instant::now();
    for key in 1..=keys {
        table.insert(hash_number(key), Location::new(key % keys + 1), hash_of).expect("room");
    }
    let ns = start.elapsed().as_nanos() as f64 / keys as f64;
    println!("insert, growing, once: {ns:.1} ns; {:?}", table.counts());
    println!(
        "occupancy {:.3}, {:.2} bytes a key",
        table.len() as f64 / table.slots() as f64,
        table.bytes() as f64 / keys as f64
    );
    let mut turn = 0;
    report("reference: 3 lines, batches of 32", || reference(&items, keys, &mut turn));
    report("find and item, one by one", || find(&table, &items, keys, &mut turn));
    report("find and item, batches of 32", || find_batched(&table, &items, keys, &mut turn));
    let mut newest = keys;
    report("replace a key, batches of 32", || replace(&mut table, &items, keys, &mut newest));
    println!("{:?}", table.counts());
}

//! How many probes a second the bare table answers: one by one, and in batches with prefetch.
//!
//! Upstream:   `cargo run --release -p kachel-table --example probe -- [keys]`.
//! Downstream: `Table`; the "items" are an array of key numbers, 64 bytes apart.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use kachel_host::Budget;
use kachel_table::{KeyHash, Location, Table};

const BATCH: usize = 32;

fn hash_number(seed: u64) -> KeyHash {
    let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    KeyHash(mixed ^ mixed >> 31)
}

/// An item as large as one of 16 + 32 bytes.
#[derive(Clone)]
#[repr(align(64))]
struct Item {
    key: u64,
}

fn report(what: &str, count: usize, since: Instant) {
    let ns = since.elapsed().as_nanos() as f64 / count as f64;
    println!("{what:32} {ns:7.1} ns  {:6.1} M/s", 1e3 / ns);
}

fn main() {
    let keys: usize = std::env::args().nth(1).map_or(1_000_000, |text| text.parse().expect("keys"));
    let budget = Arc::new(Budget::new(1 << 40));
    let mut table = Table::new(Arc::clone(&budget), 4 * keys as u64).expect("address space");
    let items: Vec<Item> = (0..=keys as u64).map(|key| Item { key }).collect();
    let hash_of = |location: Location| hash_number(items[location.get() as usize].key);

    let start = Instant::now();
    for key in 1..=keys as u64 {
        table.insert(hash_number(key), Location::new(key), hash_of).expect("room");
    }
    report("insert, growing", keys, start);
    println!("{:?}", table.counters());
    println!(
        "occupancy {:.3}, {:.2} bytes a key",
        table.len() as f64 / table.slots() as f64,
        table.bytes() as f64 / keys as f64
    );

    let count = 8_000_000;
    let wanted: Vec<u64> =
        (0..count as u64).map(|turn| hash_number(!turn).0 % keys as u64 + 1).collect();
    let start = Instant::now();
    for &key in &wanted {
        black_box(table.find(hash_number(key), |seen| items[seen.get() as usize].key == key));
    }
    report("find and item, one by one", count, start);

    let start = Instant::now();
    let mut hashes = [KeyHash(0); BATCH];
    for batch in wanted.chunks_exact(BATCH) {
        for (hash, &key) in hashes.iter_mut().zip(batch) {
            *hash = hash_number(key);
            table.prefetch(*hash);
        }
        for &hash in &hashes {
            if let Some(location) = table.candidate(hash) {
                prefetch(&items[location.get() as usize]);
            }
        }
        for (&hash, &key) in hashes.iter().zip(batch) {
            black_box(table.find(hash, |seen| items[seen.get() as usize].key == key));
        }
    }
    report("find and item, batches of 32", count, start);

    let start = Instant::now();
    for batch in wanted.chunks_exact(BATCH) {
        for (hash, &key) in hashes.iter_mut().zip(batch) {
            *hash = hash_number(key);
            table.prefetch(*hash);
        }
        for &hash in &hashes {
            black_box(table.candidate(hash));
        }
    }
    report("candidate alone, batches of 32", count, start);

    let start = Instant::now();
    for turn in 0..count as u64 / 4 {
        let old = turn % keys as u64 + 1;
        let new = hash_number(old);
        assert!(table.remove(new, Location::new(old)));
        table.insert(new, Location::new(old), hash_of).expect("room");
    }
    report("remove and insert, steady", count / 4, start);
    println!("{:?}", table.counters());
}

fn prefetch(item: &Item) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing that the program can see, at any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(item).cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    black_box(item);
}

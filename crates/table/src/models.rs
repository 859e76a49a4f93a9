//! The promises to a reader on another core, in every interleaving with the owner.
//!
//! Upstream:   `RUSTFLAGS="--cfg loom" cargo test --release -p kachel-table`.
//! Downstream: `Table`, `Reader`; a table of two to four buckets of two slots.

use std::sync::Arc;

use kachel_host::Budget;
use kachel_stdx::model::explore;
use loom::sync::atomic::{AtomicU64, Ordering::Relaxed};
use loom::thread;

use crate::geometry::Geometry;
use crate::{KeyHash, Location, Reader, Seen, Table};

/// Items that arrive word by word: location n is item n, a key and what belongs to it there.
struct Items([[AtomicU64; 2]; 8]);

impl Items {
    fn new() -> Arc<Self> {
        Arc::new(Self(Default::default()))
    }

    fn write(&self, at: u64, key: KeyHash) -> Location {
        self.0[at as usize][0].store(key.0, Relaxed);
        self.0[at as usize][1].store(key.0 + at, Relaxed);
        Location::new(at)
    }

    /// The result of the reader's search for `key`. If it finds an item, that item must be whole.
    fn find(&self, reader: &Reader, key: KeyHash) -> Option<u64> {
        let is_key = |at: Location| self.0[at.get() as usize][0].load(Relaxed) == key.0;
        match reader.find(key, is_key) {
            Seen::At(at) => {
                let belongs = self.0[at.get() as usize][1].load(Relaxed);
                assert_eq!(belongs, key.0 + at.get(), "half an item, or another's");
                Some(at.get())
            }
            Seen::Nowhere => None,
            Seen::Unsettled => panic!("a few moves never disturb so many looks"),
        }
    }
}

/// A table of `buckets` buckets.
fn table(buckets: u32) -> Table {
    let mut table = Table::new(Arc::new(Budget::new(1 << 20)), 8).expect("a few words");
    while table.geometry.buckets() < buckets {
        assert!(table.split_one(&mut |_| unreachable!("an entry knows four bits")));
    }
    table
}

/// The `nth` key whose two buckets among four are these, the preferred one first.
fn key(buckets: [u32; 2], nth: usize) -> KeyHash {
    let leads = |key: &KeyHash| {
        let halves = [key.first(), key.first().other(key.tag())];
        halves.map(|half| Geometry::new(4).bucket_of(half)) == buckets
    };
    let keys = (1..).map(|number: u64| KeyHash(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    keys.filter(leads).nth(nth).expect("one key in eight has them")
}

fn unasked(_: Location) -> KeyHash {
    unreachable!("an entry knows four bits")
}

#[test]
fn a_swung_slot_always_leads_to_a_whole_item() {
    explore("slot swing", None, || {
        let (items, mut table) = (Items::new(), table(2));
        let wanted = key([0, 1], 0);
        table.insert(wanted, items.write(1, wanted), unasked).expect("room");
        let (reader, seen) = (table.reader(), Arc::clone(&items));
        let reading = thread::spawn(move || {
            let first = seen.find(&reader, wanted).expect("it is there all the time");
            let second = seen.find(&reader, wanted).expect("it is there all the time");
            assert!(first <= second, "a slot does not swing back");
        });
        for at in 2..4 {
            assert!(table.swing(wanted, Location::new(at - 1), items.write(at, wanted)));
        }
        reading.join().expect("joins");
    });
}

#[test]
fn a_new_item_is_whole_and_a_removed_one_is_not_taken_for_another() {
    explore("insert and remove", None, || {
        let (items, mut table) = (Items::new(), table(2));
        let (wanted, other) = (key([0, 1], 0), key([0, 1], 1));
        table.insert(other, items.write(1, other), unasked).expect("room");
        let (reader, seen) = (table.reader(), Arc::clone(&items));
        let reading = thread::spawn(move || {
            let found = seen.find(&reader, wanted);
            assert!(found.is_none_or(|at| at == 2));
            assert!(found.is_none() || seen.find(&reader, wanted).is_some());
        });
        assert!(table.remove(other, Location::new(1)));
        // Into the slot that has just become free.
        table.insert(wanted, items.write(2, wanted), unasked).expect("room");
        reading.join().expect("joins");
    });
}

#[test]
fn a_key_that_makes_room_for_another_is_never_missed() {
    explore("cuckoo move", None, || {
        let (items, mut table) = (Items::new(), table(4));
        let wanted = key([0, 3], 0);
        // Both buckets of the new key are full; of what is in them, only `wanted` can leave.
        let there = [wanted, key([0, 1], 0), key([1, 0], 0), key([1, 0], 1)];
        for (key, at) in there.into_iter().zip(1..) {
            table.insert(key, items.write(at, key), unasked).expect("room");
        }
        let (reader, seen) = (table.reader(), Arc::clone(&items));
        let reading = thread::spawn(move || assert_eq!(seen.find(&reader, wanted), Some(1)));
        let new = key([0, 1], 1);
        table.insert(new, items.write(5, new), unasked).expect("one move away");
        assert_eq!(table.counts().moves, 1);
        reading.join().expect("joins");
    });
}

#[test]
fn a_key_that_moves_there_and_back_is_never_missed() {
    explore("moves there and back", Some(4), || {
        let (items, mut table) = (Items::new(), table(4));
        let wanted = key([0, 3], 0);
        table.insert(wanted, items.write(1, wanted), unasked).expect("room");
        let (reader, seen) = (table.reader(), Arc::clone(&items));
        let reading = thread::spawn(move || assert_eq!(seen.find(&reader, wanted), Some(1)));
        // The last one into another slot of the bucket than the first was in.
        for (source, slot, target, hole) in [(0, 0, 3, 0), (3, 0, 0, 1), (0, 1, 3, 1)] {
            table.move_entry(source, slot, target, hole, &mut unasked);
        }
        reading.join().expect("joins");
    });
}

#[test]
fn a_key_is_never_missed_while_its_bucket_is_split_and_merged_again() {
    explore("table growth", None, || {
        let (items, mut table) = (Items::new(), table(2));
        let wanted = key([2, 1], 0);
        table.insert(wanted, items.write(1, wanted), unasked).expect("room");
        let (reader, seen) = (table.reader(), Arc::clone(&items));
        let reading = thread::spawn(move || assert_eq!(seen.find(&reader, wanted), Some(1)));
        assert!(table.split_one(&mut unasked));
        assert!(table.maintain(1, unasked) > 0);
        assert_eq!((table.counts().splits, table.counts().merges), (1, 1));
        reading.join().expect("joins");
    });
}

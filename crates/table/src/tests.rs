//! The table as a whole, against a `HashMap` and against its promises.
//!
//! Upstream:   `cargo test`.
//! Downstream: `Table`.

use std::collections::HashMap;
use std::sync::Arc;

use kachel_host::Budget;
use proptest::prelude::{Strategy, any, prop, prop_oneof, proptest};

use crate::bucket::known_bits;
use crate::{BucketChoice, Full, KeyHash, Location, PATH_MOVES_MAX, SLOTS_PER_BUCKET, Table};

/// A table and the hashes of its items: location n is item n.
struct World {
    table: Table,
    hashes: HashMap<Location, KeyHash>,
    budget: Arc<Budget>,
}

/// A bijection that looks random.
fn hash_number(seed: u64) -> KeyHash {
    let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    KeyHash(mixed ^ mixed >> 31)
}

#[test]
fn an_empty_table_that_was_grown_takes_its_entries_without_growing() {
    let mut world = World::new(1 << 30, 1 << 24);
    world.table.grow_for(100_000);
    let charged = world.budget.spent_bytes();
    for number in 1..=100_000 {
        world.insert(hash_number(number), number).expect("there is room");
    }
    assert_eq!(world.budget.spent_bytes(), charged);
    assert!(charged < 100_000 * 12, "no more than it needs");
    // The budget ends the growth.
    let mut small = World::new(1 << 20, 1 << 24);
    small.table.grow_for(1 << 24);
    assert!(small.budget.spent_bytes() <= 1 << 20);
}

impl World {
    fn new(limit_bytes: u64, slots_max: u64) -> Self {
        let budget = Arc::new(Budget::new(limit_bytes));
        let table = Table::new(Arc::clone(&budget), slots_max).expect("address space");
        Self { table, hashes: HashMap::new(), budget }
    }

    fn insert(&mut self, hash: KeyHash, location: u64) -> Result<(), Full> {
        let location = Location::new(location);
        self.table.insert(hash, location, |location| self.hashes[&location])?;
        assert!(self.hashes.insert(location, hash).is_none());
        Ok(())
    }

    fn find(&self, hash: KeyHash, location: u64) -> Option<Location> {
        let found = self.table.find(hash, |seen| seen.get() == location);
        let guessed = [BucketChoice::First, BucketChoice::Second]
            .map(|choice| self.table.guess(hash, choice));
        for guess in guessed.into_iter().flatten() {
            assert_eq!(self.table.confirm(guess), Some(guess.location()), "nothing has changed");
        }
        assert!(found.is_none() || guessed.iter().any(Option::is_some));
        found
    }

    fn remove(&mut self, location: Location) {
        let hash = self.hashes.remove(&location).expect("the model has it");
        assert!(self.table.remove(hash, location));
    }

    fn maintain(&mut self, moves_max: usize) -> usize {
        self.table.maintain(moves_max, |location| self.hashes[&location])
    }

    /// Every item is where it belongs, once, with the bits that its bucket needs; nothing else is
    /// there.
    fn check(&self) {
        let (table, mut seen) = (&self.table, 0);
        for index in 0..table.geometry.buckets() {
            let depth = table.geometry.depth(index);
            for (_, entry) in table.bucket(index).entries() {
                let hash = self.hashes[&entry.location()];
                assert_eq!(entry.tag(), hash.tag());
                let first = hash.first();
                let half = [first, first.other(hash.tag())]
                    .into_iter()
                    .find(|&half| table.geometry.bucket_of(half) == index)
                    .expect("in one of its two buckets");
                let known = ((1_u64 << known_bits(depth)) - 1) as u32;
                assert_eq!(entry.half_known(index, depth).0, half.0 & known);
                seen += 1;
            }
        }
        assert_eq!(seen, self.hashes.len() as u64);
        assert_eq!(table.len(), seen);
        assert_eq!(self.budget.spent_bytes(), table.bytes());
        assert!(table.slots() / SLOTS_PER_BUCKET as u64 * 64 <= table.bytes());
        for (&location, &hash) in &self.hashes {
            assert_eq!(self.find(hash, location.get()), Some(location));
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Insert this number of new keys.
    Insert(u16),
    /// Remove every n-th key.
    Remove(u8),
    Swing(u8),
    Maintain(u16),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1_u16..1500).prop_map(Step::Insert),
        2 => (1_u8..6).prop_map(Step::Remove),
        1 => (1_u8..6).prop_map(Step::Swing),
        2 => any::<u16>().prop_map(Step::Maintain),
    ]
}

proptest! {
    #[test]
    fn behaves_as_a_map_while_it_grows_and_shrinks(
        steps in prop::collection::vec(step(), 1..24),
        seed in any::<u64>(),
    ) {
        let mut world = World::new(1 << 30, 1 << 20);
        let mut next = 0_u64;
        for step in steps {
            let mut locations: Vec<_> = world.hashes.keys().copied().collect();
            locations.sort_unstable();
            match step {
                Step::Insert(count) => for _ in 0..count {
                    next += 1;
                    let hash = hash_number(seed ^ next);
                    assert_eq!(world.find(hash, next), None);
                    assert_eq!(world.insert(hash, next), Ok(()));
                },
                Step::Remove(nth) => for &location in locations.iter().step_by(nth.into()) {
                    world.remove(location);
                },
                Step::Swing(nth) => for &from in locations.iter().step_by(nth.into()) {
                    next += 1;
                    let to = Location::new(next);
                    let hash = world.hashes.remove(&from).expect("has it");
                    assert!(world.table.swing(hash, from, to));
                    assert!(!world.table.swing(hash, from, to));
                    world.hashes.insert(to, hash);
                },
                Step::Maintain(moves_max) => {
                    let moves = world.maintain(moves_max.into());
                    assert!(moves < usize::from(moves_max) + SLOTS_PER_BUCKET);
                }
            }
            world.check();
        }
        let budget = Arc::clone(&world.budget);
        drop(world);
        assert_eq!(budget.spent_bytes(), 0);
    }
}

#[test]
fn a_guess_is_confirmed_until_its_slot_changes() {
    let mut world = World::new(1 << 20, 1 << 10);
    let hash = hash_number(1);
    world.insert(hash, 7).expect("room");
    let guess = |table: &Table| {
        let guess = |choice| table.guess(hash, choice);
        guess(BucketChoice::First)
            .or_else(|| guess(BucketChoice::Second))
            .expect("the tag is there")
    };
    let first = guess(&world.table);
    assert_eq!(world.table.confirm(first), Some(Location::new(7)));
    assert!(world.table.swing(hash, Location::new(7), Location::new(8)));
    assert_eq!(world.table.confirm(first), None, "the slot leads elsewhere");
    let second = guess(&world.table);
    assert!(world.table.remove(hash, Location::new(8)));
    assert_eq!(world.table.confirm(second), None, "the slot is empty");
}

#[test]
fn a_million_random_keys_fill_nine_tenths_with_bounded_work_an_insert() {
    let mut world = World::new(1 << 30, 2_000_000);
    for number in 1..=1_000_000_u64 {
        let before = world.table.counts();
        world.insert(hash_number(number), number).expect("room");
        let after = world.table.counts();
        assert!(after.moves - before.moves <= PATH_MOVES_MAX as u64);
        assert!(after.splits - before.splits <= 2);
        assert!(after.hashes_asked - before.hashes_asked <= 2 * SLOTS_PER_BUCKET as u64 + 3);
    }
    world.check();
    let occupancy = world.table.len() as f64 / world.table.slots() as f64;
    assert!(occupancy >= 0.899, "{occupancy}");
    let counters = world.table.counts();
    assert_eq!(counters.pathless, 0);
    let used_bytes = world.table.slots() / SLOTS_PER_BUCKET as u64 * 64;
    assert!(world.table.bytes() < used_bytes + (2 << 20), "a huge page at most is idle");
    assert!(counters.hashes_asked < 2 * 1_000_000, "{counters:?}");
}

#[test]
fn refused_memory_lets_the_table_fill_up_and_then_says_full() {
    let mut world = World::new(64 << 10, 1 << 20);
    let mut number = 0;
    while world.insert(hash_number(number), number + 1).is_ok() {
        number += 1;
    }
    assert_eq!(world.budget.spent_bytes(), 64 << 10);
    assert_eq!(world.table.slots(), 1024 * 7);
    assert!(world.table.len() * 100 >= world.table.slots() * 95);
    world.check();
    // Eviction makes room again, and more budget lets it grow.
    world.remove(Location::new(17));
    assert_eq!(world.insert(hash_number(u64::MAX), 1 << 40), Ok(()));
    assert_eq!(world.insert(hash_number(u64::MAX - 1), 2 << 40), Err(Full));
    world.budget.set_limit_bytes(1 << 20);
    assert_eq!(world.insert(hash_number(u64::MAX - 1), 2 << 40), Ok(()));
    world.check();
}

#[test]
fn a_shrinking_table_gives_back_huge_pages_and_then_small_steps() {
    let mut world = World::new(1 << 30, 1 << 22);
    for number in 1..=900_000_u64 {
        world.insert(hash_number(number), number).expect("room");
    }
    let mut bytes = world.table.bytes();
    assert!(bytes > 8 << 20);
    for number in 1..=899_000_u64 {
        world.remove(Location::new(number));
    }
    while world.maintain(7) > 0 {
        let step = bytes - world.table.bytes();
        let small = bytes <= 4 << 20;
        assert!(step <= if small { (bytes / 8).max(4096) } else { 2 << 20 });
        bytes = world.table.bytes();
    }
    assert!(bytes <= 6 * 4096, "{bytes}");
    world.check();
}

#[test]
fn an_emptied_table_gives_its_memory_back() {
    let mut world = World::new(1 << 30, 1 << 20);
    for number in 1..=100_000_u64 {
        world.insert(hash_number(number), number).expect("room");
    }
    let full_bytes = world.budget.spent_bytes();
    assert!(full_bytes > 1_000_000);
    for number in 1_000..=100_000_u64 {
        world.remove(Location::new(number));
    }
    while world.maintain(100) > 0 {}
    world.check();
    assert!(world.table.len() * 100 >= world.table.slots() * 60);
    assert!(world.table.bytes() <= 5 * 4096, "{}", world.table.bytes());
    // Memory that was released reads as empty when it is used again.
    for number in 1_000..=100_000_u64 {
        world.insert(hash_number(number), number).expect("room");
    }
    world.check();
    assert!(world.budget.spent_bytes() <= full_bytes * 9 / 8);
}

#[test]
fn sixteen_keys_with_one_tag_are_told_apart() {
    let mut world = World::new(1 << 30, 1 << 20);
    let tag = hash_number(0).tag();
    let same = (0..).map(hash_number).filter(|hash| hash.tag() == tag).take(16);
    for (index, hash) in same.enumerate() {
        world.insert(hash, 1 + index as u64).expect("room");
    }
    world.check();
}

#[test]
fn fourteen_keys_with_one_hash_have_room_and_the_fifteenth_is_refused() {
    let mut world = World::new(1 << 30, 1 << 20);
    let hash = hash_number(7);
    for location in 1..=14 {
        world.insert(hash, location).expect("two buckets of seven");
    }
    assert_eq!(world.insert(hash, 15), Err(Full));
    world.check();
    for location in 1..=14 {
        assert_eq!(world.find(hash, location), Some(Location::new(location)));
    }
    assert_eq!(world.find(hash, 15), None);
    world.remove(Location::new(3));
    assert_eq!(world.insert(hash, 15), Ok(()));
    world.check();
}

#[test]
fn a_table_at_its_largest_size_is_full_and_not_beyond() {
    let mut world = World::new(1 << 30, 1000);
    let mut number = 0;
    while world.insert(hash_number(number), number + 1).is_ok() {
        number += 1;
    }
    assert_eq!(world.table.slots(), 143 * 7);
    assert!(number >= 950);
    world.check();
}

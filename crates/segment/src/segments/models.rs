//! The promises about items to a reader on another core, in every interleaving with their owner.
//!
//! Upstream:   `tests/models/run kachel-segment models`.
//! Downstream: `Segments`, `Pool` and `kachel_table`, a few items of a few bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use kachel_host::Budget;
use kachel_stdx::Reader;
use kachel_stdx::model::explore;
use kachel_table::{KeyHash, Location, Seen, Table};
use loom::thread;

use crate::{
    Index, ItemAt, NewItem, NewValue, NoSegment, Pool, PoolOptions, SegmentOptions, Segments,
};

const NOW: u32 = 100;

/// The owner's index, by hashes that are made of a key's only byte.
struct Slots(Table);

fn hash_of(key: &[u8]) -> KeyHash {
    KeyHash(u64::from(key[0]).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn location(at: ItemAt) -> Location {
    Location::new(at.get())
}

impl Index for Slots {
    fn hash(&self, key: &[u8]) -> u64 {
        hash_of(key).0
    }

    fn swing(&mut self, key: &[u8], from: ItemAt, to: ItemAt) {
        assert!(self.0.swing(hash_of(key), location(from), location(to)));
    }

    fn remove(&mut self, key: &[u8], at: ItemAt) {
        assert!(self.0.remove(hash_of(key), location(at)));
    }
}

/// A shard that owns items, with memory for three segments, one of them its spare.
struct Shard {
    segments: Segments,
    index: Slots,
}

impl Shard {
    fn new() -> Self {
        // A segment, its line, and its part of the table of blocks.
        let segment_bytes = crate::SEGMENT_BYTES_MIN + 64 + 2 * 32;
        let budget = Arc::new(Budget::new(3 * segment_bytes as u64));
        let options = PoolOptions { engines: 1, reserve_bytes: 0, ..PoolOptions::default() };
        let pool = Pool::new(budget, options).expect("address space");
        let table = Table::new(Arc::new(Budget::new(1 << 20)), 4).expect("a few words");
        let options = SegmentOptions { evict: false, cas: false, shard: 0, item_overhead_bytes: 0 };
        Self { segments: Segments::new(pool, options).expect("address space"), index: Slots(table) }
    }

    /// Stores an item, which replaces `replaces` in the index.
    fn store(
        &mut self,
        key: &[u8],
        value: &[u8],
        replaces: Option<ItemAt>,
    ) -> Result<ItemAt, NoSegment> {
        let item = NewItem {
            key,
            hash: hash_of(key).0,
            value: NewValue::Bytes(value),
            client_flags: 0,
            expiry: 0,
            cas: None,
            stale: false,
            win_sent: false,
            remnant: false,
            protocol_mark: false,
            replaces,
            keeps_access: false,
        };
        let at = self.segments.append(item, NOW, &mut self.index)?;
        if let Some(old) = replaces {
            self.index.swing(key, old, at);
            self.segments.kill(old);
        } else {
            let table = &mut self.index.0;
            table.insert(hash_of(key), location(at), |_| unreachable!("no split")).expect("room");
        }
        Ok(at)
    }
}

/// Finds `key`, which exists all the time, and reads it twice. Both times its value must be one of
/// `values`.
fn read(pool: &Pool, slots: &kachel_table::Reader, reader: &Reader, key: &[u8], values: &[&[u8]]) {
    let item = |at: Location| pool.item(ItemAt::new(at.get()), reader);
    let Seen::At(at) = slots.find(hash_of(key), |at| item(at).key() == key) else {
        panic!("it is there all the time")
    };
    for _ in 0..2 {
        let value = item(at).value().as_slice().expect("a small value");
        assert!(item(at).key() == key && values.contains(&value), "another item was read");
    }
}

/// Runs a reader beside an owner that replaces the item and then needs the old item's segment. The
/// reader begins asleep, and calls `round` between two reads.
fn segment_reuse(name: &str, round: impl Fn(&mut Reader) + Copy + Send + Sync + 'static) {
    let outcomes = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let counts = Arc::clone(&outcomes);
    explore(name, None, move || {
        let mut shard = Shard::new();
        let old = shard.store(b"k", b"1111", None).expect("room");
        shard.segments.log.close_all(false);
        let pool = Arc::clone(shard.segments.pool());
        let (slots, mut reader) = (shard.index.0.reader(), pool.register_reader().expect("one"));
        reader.sleep();
        let reading = thread::spawn(move || {
            reader.wake();
            read(&pool, &slots, &reader, b"k", &[b"1111", b"2222"]);
            round(&mut reader);
            read(&pool, &slots, &reader, b"k", &[b"1111", b"2222"]);
        });
        shard.store(b"k", b"2222", Some(old)).expect("room");
        shard.segments.log.close_all(false);
        // The new item lies where the first one lay, or there is no room for it.
        let other = shard.store(b"j", b"3333", None);
        assert!(other.is_err() || other == Ok(old));
        counts[usize::from(other.is_ok())].fetch_add(1, Relaxed);
        reading.join().expect("joins");
    });
    let [refused, reused] = outcomes.each_ref().map(|count| count.load(Relaxed));
    println!("model {name}: the segment was reused in {reused}, and kept back in {refused}");
    assert!(refused > 0 && reused > 0);
}

#[test]
fn a_segment_is_not_reused_while_a_reader_is_in_its_round() {
    segment_reuse("segment reuse, rounds", |reader| {
        reader.round_over();
    });
}

#[test]
fn a_segment_is_not_reused_under_a_reader_that_slept_when_it_was_retired() {
    segment_reuse("segment reuse, sleep", |reader| {
        reader.sleep();
        reader.wake();
    });
}

#[test]
fn reads_are_counted_up_to_three_and_not_written_after_that() {
    explore("access word", None, || {
        let mut shard = Shard::new();
        let at = shard.store(b"k", b"1111", None).expect("room");
        let pool = Arc::clone(shard.segments.pool());
        let reading = thread::spawn(move || {
            let reader = pool.register_reader().expect("one");
            let item = pool.item(at, &reader);
            for now in [NOW + 1, NOW + 2, NOW + 3] {
                assert!(item.note_access(now), "nobody moves the item");
                assert!(item.fetched(), "a read that was noted is not forgotten");
            }
            assert!(item.active(), "nor is the second");
            assert_eq!(item.access().reads(), 3, "nor the third");
            item.access()
        });
        shard.segments.note_access(at, NOW + 4);
        assert!(shard.segments.item(at).fetched());
        let seen = shard.segments.item(at).access();
        let last = reading.join().expect("joins");
        let access = shard.segments.item(at).access();
        assert!(access.reads() == 3 && access == last, "three, and written no more");
        assert!(seen.reads() < 3 || seen == last);
        assert!((NOW + 2..=NOW + 4).contains(&access.last_access()));
    });
}

#[test]
fn a_reader_sees_an_item_whole_while_its_header_changes() {
    explore("header word", None, || {
        let mut shard = Shard::new();
        let at = shard.store(b"k", b"1111", None).expect("room");
        let pool = Arc::clone(shard.segments.pool());
        let reading = thread::spawn(move || {
            let reader = pool.register_reader().expect("one");
            let mut before = 0;
            for _ in 0..2 {
                let item = pool.item(at, &reader);
                assert_eq!((item.key(), item.value().as_slice()), (&b"k"[..], Some(&b"1111"[..])));
                let marks = [item.expiry() == 200, item.win_sent(), item.is_dead()];
                let step = marks.iter().filter(|&&mark| mark).count();
                assert!(marks.is_sorted_by(|a, b| a >= b) && step >= before, "{marks:?}");
                before = step;
            }
        });
        shard.segments.set_expiry(at, 200);
        shard.segments.set_win_sent(at);
        shard.index.remove(b"k", at);
        shard.segments.kill(at);
        reading.join().expect("joins");
    });
}

/// Looks up `key`, which exists all the time. Returns whether the first byte of its value is that
/// of the first value, and whether the item was flushed.
fn look(
    pool: &Pool,
    slots: &kachel_table::Reader,
    reader: &Reader,
    key: &[u8],
    first: u8,
) -> (bool, bool) {
    let item = |at: Location| pool.item(ItemAt::new(at.get()), reader);
    let Seen::At(at) = slots.find(hash_of(key), |at| item(at).key() == key) else {
        panic!("it is there all the time")
    };
    let value = item(at).value().as_slice().expect("a small value");
    (value[0] == first, pool.is_flushed(&item(at), NOW, reader).expect("nothing was moved"))
}

/// A shard with one item that was stored after a flush, so that a lost stamp shows. The item is
/// alone in its segment, which is given back when the item is replaced.
fn shard_after_a_flush() -> (Shard, ItemAt) {
    let mut shard = Shard::new();
    shard.segments.pool().flush_word().flush(NOW);
    shard.segments.note_flush(NOW, &mut shard.index);
    let old = shard.store(b"k", b"1111", None).expect("room");
    shard.segments.log.close_all(false);
    (shard, old)
}

#[test]
fn a_flush_kills_what_was_stored_before_it_for_every_reader() {
    let outcomes = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let counts = Arc::clone(&outcomes);
    explore("flush word, a store before", None, move || {
        let (mut shard, old) = shard_after_a_flush();
        let pool = Arc::clone(shard.segments.pool());
        let (slots, reader) = (shard.index.0.reader(), pool.register_reader().expect("one"));
        let owning = thread::spawn(move || {
            shard.segments.note_flush(NOW, &mut shard.index);
            let new = shard.store(b"k", b"2222", Some(old)).expect("room");
            (shard, new)
        });
        let (_, is_flushed) = look(&pool, &slots, &reader, b"k", b'1');
        assert!(!is_flushed, "nobody has flushed it yet");
        pool.flush_word().flush(NOW);
        let (is_old, is_flushed) = look(&pool, &slots, &reader, b"k", b'1');
        assert!(is_flushed || !is_old, "what was stored before is gone at once");
        let (mut shard, new) = owning.join().expect("joins");
        shard.segments.note_flush(NOW, &mut shard.index);
        let is_live = shard.segments.is_live(new, NOW);
        assert!(is_old || is_live != is_flushed, "the owner and the reader agree");
        counts[usize::from(is_old)].fetch_add(1, Relaxed);
    });
    let [new, old] = outcomes.each_ref().map(|count| count.load(Relaxed));
    println!("model flush word: the old item was seen in {old}, the new one in {new}");
    assert!(old > 0 && new > 0);
}

#[test]
fn a_flush_kills_nothing_that_is_stored_after_it_for_any_reader() {
    let outcomes = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let counts = Arc::clone(&outcomes);
    explore("flush word, a store after", None, move || {
        let (mut shard, old) = shard_after_a_flush();
        let pool = Arc::clone(shard.segments.pool());
        let (slots, reader) = (shard.index.0.reader(), pool.register_reader().expect("one"));
        let (other, count) = (Arc::clone(&pool), Arc::clone(&counts));
        let reading = thread::spawn(move || {
            let (is_old, is_flushed) = look(&other, &slots, &reader, b"k", b'1');
            assert!(!is_flushed || is_old, "the new item is of the new epoch");
            count[usize::from(is_flushed)].fetch_add(1, Relaxed);
        });
        pool.flush_word().flush(NOW);
        shard.segments.note_flush(NOW, &mut shard.index);
        shard.store(b"k", b"2222", Some(old)).expect("room");
        reading.join().expect("joins");
    });
    let [live, flushed] = outcomes.each_ref().map(|count| count.load(Relaxed));
    println!("model flush word: seen live in {live}, flushed in {flushed}");
    assert!(live > 0 && flushed > 0);
}

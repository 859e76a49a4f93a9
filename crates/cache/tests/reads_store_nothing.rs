//! Reads beside the owner store nothing into memory that cores share, once the reads of an item are
//! counted. So cores that read the same item do not take its cache lines from each other.
//!
//! Upstream:   `cargo test`.
//! Downstream: `CacheReader`. The kernel is the judge: all memory that the cache has mapped is
//!             read-only while the reads run, so a store ends the process.
//!
//! The reads allocate nothing, because memory of the allocator may be read-only, too.

use std::ops::Range;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::Arc;

use kachel_cache::{Cache, CacheReader, EngineOf, Pool, PoolOptions};
use kachel_engine::{
    Block, ClockOrigin, DeadFound, EngineOptions, GetTerms, KeyHasher, LeaseOptions, Now,
    Operation, ReadAnswer, ReadBeside, Seeds, Ttl, Value, apply,
};
use kachel_host::Budget;
use rustix::mm::MprotectFlags;

/// Memory of the cache, in bytes.
const BYTES: u64 = 32 << 20;
const ITEMS: usize = 20_000;
/// Reads of an item that are counted in it (`reader`, R2).
const COUNTED_READS: usize = 3;
/// The variable that says how many reads come before the memory becomes read-only.
const EARLIER_READS: &str = "KACHEL_EARLIER_READS";
/// SIGSEGV, which a store into read-only memory raises.
const SEGMENTATION_FAULT: i32 = 11;

/// Address ranges that this process may write and that no file backs, in order.
fn writable() -> Vec<Range<usize>> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux tells a process its maps");
    let ranges = maps.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let (range, rights) = (words.next()?, words.next()?);
        let is_anonymous = words.nth(3).is_none();
        let (start, end) = range.split_once('-')?;
        let address = |text| usize::from_str_radix(text, 16).ok();
        (is_anonymous && rights.starts_with("rw")).then_some(address(start)?..address(end)?)
    });
    ranges.collect()
}

/// The parts of `after` that are not in `before`.
fn added(before: &[Range<usize>], after: Vec<Range<usize>>) -> Vec<Range<usize>> {
    let mut added = Vec::new();
    for Range { mut start, end } in after {
        for old in before {
            if old.start < end && old.end > start {
                added.push(start..old.start.max(start));
                start = old.end;
            }
        }
        added.push(start..end);
    }
    added.retain(|range| !range.is_empty());
    added
}

fn protect(ranges: &[Range<usize>], rights: MprotectFlags) {
    for range in ranges {
        // SAFETY:
        // - the range is mapped, and stays so: the cache that mapped it lives until after the call.
        // - nobody writes there while it is read-only, or the process ends, which is the test.
        let protected = unsafe {
            rustix::mm::mprotect(
                std::ptr::with_exposed_provenance_mut(range.start),
                range.len(),
                rights,
            )
        };
        protected.expect("memory of this process");
    }
}

/// The key of item `number`, made without an allocation.
fn key(number: usize) -> [u8; 8] {
    let digit = |place: u32| b'0' + (number / 10_usize.pow(place) % 10) as u8;
    [b'k', b'e', b'y', digit(4), digit(3), digit(2), digit(1), digit(0)]
}

/// The core that reads beside the owner.
struct Beside {
    reader: CacheReader,
    round: kachel_stdx::Reader,
    hasher: KeyHasher,
    now: Now,
}

impl Beside {
    /// Reads every item once. Returns how many values were found.
    fn read_all(&mut self) -> usize {
        let mut found = 0;
        for number in 0..ITEMS {
            let (name, mut dead) = (key(number), DeadFound::default());
            let name = self.hasher.key(&name);
            let Self { reader, round, now, .. } = self;
            let answer = reader.read(&name, None, &GetTerms::VALUE, round, now, &mut dead);
            if let ReadAnswer::Done(outcome, _) = answer {
                found += usize::from(matches!(outcome.value, Value::Inline(_)));
            }
            self.round.round_over();
        }
        found
    }
}

/// One test, because another thread's new memory would become read-only, too.
#[test]
fn a_read_stores_nothing_once_reads_are_counted() {
    if std::env::var_os(EARLIER_READS).is_none() {
        assert_a_counted_read_is_seen_to_store();
    }
    let earlier = std::env::var(EARLIER_READS)
        .map_or(COUNTED_READS, |text| text.parse().expect("a number of reads"));
    let before = writable();
    let (hasher, budget) =
        (KeyHasher::new(Seeds { hash_keys: [3, 5] }, 1), Arc::new(Budget::new(BYTES)));
    let pool = PoolOptions { engines: 1, reserve_bytes: BYTES, ..PoolOptions::default() };
    let pool = Pool::new(Arc::clone(&budget), pool).expect("address space");
    let options = EngineOptions {
        evict: true,
        cas: true,
        item_bytes_max: 1 << 20,
        leases: LeaseOptions::DEFAULT,
    };
    let cache = Cache::new(Arc::clone(&pool), budget, hasher, options, EngineOf::ONE);
    let mut cache = cache.expect("address space");
    let now = ClockOrigin::new(0, 1_800_000_000).at(0);
    for number in 0..ITEMS {
        let name = key(number);
        let value = [b'v'; 300];
        let value = &value[..number % value.len()];
        let set = Operation::set(hasher.key(&name), value.len(), Ttl(0));
        apply(&mut cache, &set, &mut Block::Bytes(value), &now).expect("memory suffices");
    }
    let round = pool.register_reader().expect("a place");
    let mut beside = Beside { reader: cache.reader(), round, hasher, now };
    for _ in 0..earlier {
        assert_eq!(beside.read_all(), ITEMS);
    }
    let shared = added(&before, writable());
    let bytes: usize = shared.iter().map(Range::len).sum();
    assert!(bytes > ITEMS * 150, "the memory of the items is part of it: {bytes} bytes");

    protect(&shared, MprotectFlags::READ);
    let found = beside.read_all();
    protect(&shared, MprotectFlags::READ | MprotectFlags::WRITE);
    assert_eq!(found, ITEMS);
    println!("{found} items were read in {bytes} bytes of read-only memory");
}

/// The test can fail: a read that counts itself in the item ends the process.
fn assert_a_counted_read_is_seen_to_store() {
    let this = std::env::current_exe().expect("a test is a program");
    let run = Command::new(this)
        .env(EARLIER_READS, (COUNTED_READS - 1).to_string())
        .output()
        .expect("it starts");
    assert_eq!(run.status.signal(), Some(SEGMENTATION_FAULT), "{:?}", run.status);
}

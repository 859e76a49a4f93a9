//! The table: its memory, and the operations that move no entries.
//!
//! Upstream:   `cache`, one table a shard, owned by the shard's thread.
//! Downstream: `geometry` says which two buckets, `bucket` holds the slots, `guess` remembers one,
//! `insert` and `grow` move them.
//!
//! Invariants:
//! - I1  A key is in at most one slot, and that is in one of its two buckets.
//! - I2  Bucket n lies at byte 64 n of the region; beyond the last bucket every slot is empty.
//! - I3  `charged_bytes` covers all buckets and is what the budget was charged.
//! - I4  `len` is the number of occupied slots.

use std::io;
use std::sync::Arc;

use kachel_host::Budget;

use crate::bucket::{Bucket, Slots};
use crate::geometry::{BUCKETS_MAX, BUCKETS_MIN, Geometry};
use crate::guess::{BucketChoice, Guess};
use crate::line::{BUCKET_BYTES, SLOTS_PER_BUCKET};
use crate::lines::Lines;
use crate::prefetch::prefetch;
use crate::reader::Reader;
use crate::search::{NODES_MAX, Node};
use crate::sync::Region;
use crate::tag::{KeyHash, Location, Tag};

/// What a table has done since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableCounts {
    /// Buckets divided, each into itself and a new last one.
    pub splits: u64,
    /// Last buckets merged back.
    pub merges: u64,
    /// Entries moved to their other bucket, to make room.
    pub moves: u64,
    /// Items whose hash the table had to ask for.
    pub hashes_asked: u64,
    /// Inserts that found neither a hole nor a short way to one at the first attempt.
    pub pathless: u64,
    /// Inserts answered with [`Full`](crate::Full).
    pub refused: u64,
}

/// The index of one shard: which location belongs to a key, given its hash.
///
/// Seven slots of 8 bytes a cache line, filled to 90 %: 10.2 bytes an item. It grows and shrinks
/// one bucket at a time, in [`Self::insert`] and [`Self::maintain`], within its budget.
#[derive(Debug)]
pub struct Table {
    pub(crate) lines: Arc<Lines>,
    pub(crate) budget: Arc<Budget>,
    /// The owner's copy. It equals the one in `lines`, except amid a split or merge.
    pub(crate) geometry: Geometry,
    pub(crate) buckets_max: u32,
    pub(crate) charged_bytes: u64,
    pub(crate) len: u64,
    pub(crate) counters: TableCounts,
    /// The queue of a search, empty between two.
    pub(crate) nodes: Vec<Node>,
}

impl Table {
    /// Bytes of the budget that an empty table is charged.
    pub const BUDGET_BYTES_MIN: u64 = BUCKETS_MIN as u64 * BUCKET_BYTES;

    /// Bytes of address space of a table that may grow to `slots_max` slots.
    pub fn reserved_bytes(slots_max: u64) -> u64 {
        let buckets_max = slots_max.div_ceil(SLOTS_PER_BUCKET as u64);
        buckets_max.clamp(u64::from(BUCKETS_MIN), u64::from(BUCKETS_MAX)) * BUCKET_BYTES
    }

    /// An empty table that may grow to `slots_max` slots (rounded up to whole buckets) as far as
    /// `budget` allows.
    ///
    /// Cost: address space for `slots_max` slots; one page is charged.
    /// Errors: of `mmap`; `OutOfMemory` when the budget has no room for the first page.
    pub fn new(budget: Arc<Budget>, slots_max: u64) -> io::Result<Self> {
        let bytes = Self::reserved_bytes(slots_max);
        let region = Region::reserve(bytes as usize, false, "an index")?;
        let charged_bytes = Self::BUDGET_BYTES_MIN;
        if !budget.charge(charged_bytes) {
            let sentence = "the memory limit has no room for the first page of an index";
            return Err(io::Error::new(io::ErrorKind::OutOfMemory, sentence));
        }
        let geometry = Geometry::new(BUCKETS_MIN);
        Ok(Self {
            lines: Arc::new(Lines::new(region, geometry)),
            budget,
            geometry,
            buckets_max: (bytes / BUCKET_BYTES) as u32,
            charged_bytes,
            len: 0,
            counters: TableCounts::default(),
            nodes: Vec::with_capacity(NODES_MAX),
        })
    }

    /// A reader of the table for a core that does not own it. The reader keeps the address space
    /// after the table is gone.
    pub fn reader(&self) -> Reader {
        Reader::new(Arc::clone(&self.lines))
    }

    /// Prefetches both cache lines that [`Self::find`] will read. Cost: no wait.
    #[inline]
    pub fn prefetch(&self, hash: KeyHash) {
        let [first, second] = self.buckets_of(hash);
        prefetch(self.bucket(first).0);
        prefetch(self.bucket(second).0);
    }

    /// The location whose item has the wanted key; `None` is a miss.
    ///
    /// A tag match is only a hint: an unrelated slot matches once in 65,535 comparisons, so
    /// `is_key` must compare the whole key. It is called only for slots whose tag matches.
    ///
    /// Cost: one or two cache lines, and what `is_key` reads.
    #[inline]
    pub fn find(
        &self,
        hash: KeyHash,
        mut is_key: impl FnMut(Location) -> bool,
    ) -> Option<Location> {
        let buckets = self.buckets_of(hash).map(|index| self.bucket(index));
        // Both at once: which of the two holds the key cannot be predicted.
        for (bucket, slot) in slots_with(buckets, hash.tag()) {
            let location = bucket.entry(slot)?.location();
            if is_key(location) {
                return Some(location);
            }
        }
        None
    }

    /// Prefetches one of the two cache lines that [`Self::find`] may read. Cost: no wait.
    #[inline]
    pub fn prefetch_bucket(&self, hash: KeyHash, choice: BucketChoice) {
        prefetch(self.bucket(self.bucket_of(hash, choice)).0);
    }

    /// The first slot of one bucket whose tag matches, for a later [`Self::confirm`].
    ///
    /// Cost: a cache line.
    #[inline]
    pub fn guess(&self, hash: KeyHash, choice: BucketChoice) -> Option<Guess> {
        let bucket = self.bucket_of(hash, choice);
        let slot = self.bucket(bucket).slots_with(hash.tag()).next()?;
        let entry = self.bucket(bucket).entry(slot)?;
        debug_assert!(entry.tag() == hash.tag(), "a match of tags");
        Some(Guess::new(bucket, slot, entry))
    }

    /// The location of a guess, if the slot is as it was. So the item there is in the table now.
    /// The caller must compare its key.
    ///
    /// Cost: a load of a line that was read for the guess.
    #[inline(always)]
    pub fn confirm(&self, guess: Guess) -> Option<Location> {
        guess.confirmed_by(self.bucket(guess.bucket()).entry(guess.slot()))
    }

    /// Changes the slot that leads to `from`, so that it leads to `to`, in one store. Returns false
    /// when no slot leads to `from`.
    ///
    /// Cost: one or two cache lines.
    #[inline]
    pub fn swing(&mut self, hash: KeyHash, from: Location, to: Location) -> bool {
        let Some((bucket, slot)) = self.slot_of(hash, from) else { return false };
        let entry = bucket.entry(slot).expect("the slot that was just found");
        bucket.put(slot, entry.with_location(to));
        true
    }

    /// Empties the slot that leads to `location`. Returns false when no slot does.
    ///
    /// Cost: one or two cache lines. The table shrinks later, in [`Self::maintain`].
    #[inline]
    pub fn remove(&mut self, hash: KeyHash, location: Location) -> bool {
        let Some((bucket, slot)) = self.slot_of(hash, location) else { return false };
        bucket.clear(slot);
        self.len -= 1; // I4
        true
    }

    /// Items in the table.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether no item is in the table.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// An item in the first bucket of the key with `hash`. The slot changes with the number of
    /// items in the table; `None` if it is empty. Cost: a cache line.
    pub fn neighbor(&self, hash: KeyHash) -> Option<Location> {
        let slot = (self.len % SLOTS_PER_BUCKET as u64) as usize;
        let entry = self.bucket(self.geometry.bucket_of(hash.first())).entry(slot);
        entry.map(|entry| entry.location())
    }

    /// Slots that the table has now.
    pub fn slots(&self) -> u64 {
        u64::from(self.geometry.buckets()) * SLOTS_PER_BUCKET as u64
    }

    /// Bytes charged to the budget.
    pub fn bytes(&self) -> u64 {
        self.charged_bytes
    }

    /// What the table has done so far.
    pub fn counts(&self) -> TableCounts {
        self.counters
    }

    /// The two buckets that may hold a key, the preferred one first.
    #[inline]
    pub(crate) fn buckets_of(&self, hash: KeyHash) -> [u32; 2] {
        let first = hash.first();
        [first, first.other(hash.tag())].map(|half| self.geometry.bucket_of(half))
    }

    #[inline]
    fn bucket_of(&self, hash: KeyHash, choice: BucketChoice) -> u32 {
        self.geometry.bucket_of(choice.half(hash))
    }

    /// Bucket `index`, by I2.
    #[inline]
    pub(crate) fn bucket(&self, index: u32) -> Bucket<'_> {
        self.lines.bucket(index)
    }

    /// Whether more than `permille` thousandths of the slots are taken once `more` items are added.
    #[inline]
    pub(crate) fn is_fuller_than(&self, permille: u64, more: u64) -> bool {
        (self.len + more) * 1000 > self.slots() * permille
    }

    /// The bucket and the slot that lead to `location`. The second bucket is read only if no slot
    /// of the first one does, because a batch may not have fetched it.
    #[inline]
    fn slot_of(&self, hash: KeyHash, location: Location) -> Option<(Bucket<'_>, usize)> {
        self.buckets_of(hash).into_iter().find_map(|index| {
            let bucket = self.bucket(index);
            let leads_there = |&slot: &usize| {
                bucket.entry(slot).is_some_and(|entry| entry.location() == location)
            };
            Some((bucket, bucket.slots_with(hash.tag()).find(leads_there)?))
        })
    }
}

/// The slots with `tag` of two buckets.
#[inline]
fn slots_with(buckets: [Bucket<'_>; 2], tag: Tag) -> impl Iterator<Item = (Bucket<'_>, usize)> {
    let [first, second] = buckets.map(|bucket| bucket.slots_with(tag).0);
    Slots(first | second << 8).map(move |bit| (buckets[bit >> 3 & 1], bit & 7))
}

impl Drop for Table {
    fn drop(&mut self) {
        self.budget.refund(self.charged_bytes); // I3
    }
}

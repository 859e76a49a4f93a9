//! Growing and shrinking, one bucket at a time.
//!
//! Upstream:   `insert`, when occupancy passes its limit; `cache`'s bounded upkeep.
//! Downstream: `host`'s budget and region, a step of memory at a time.
//!
//! Invariants:
//! - I1  Memory is charged before a bucket in it is used, and refunded after it was released.
//! - I2  A split stores every copy in the new bucket, then counts the bucket, then clears the
//!   originals; a merge goes the other way in the same order. So an entry can be found at every
//!   moment.
//! - I3  A step is at most an eighth of what is charged, but at least a page; beyond
//!   `HUGE_FROM_BYTES` it ends where a huge page does, so that what the kernel backs is what is
//!   charged.

use kachel_host::PAGE_BYTES;

use crate::bucket::{Entry, known_bits};
use crate::geometry::{BUCKETS_MIN, Geometry};
use crate::line::{BUCKET_BYTES, SLOTS_PER_BUCKET};
use crate::table::Table;
use crate::tag::{KeyHash, Location};

/// Thousandths of the slots above which maintenance splits, ahead of the inserts.
const AHEAD_PERMILLE: u64 = 890;
/// Thousandths of the slots below which maintenance merges. Far below the limit for growth, so that
/// a merge does not lead to a split, nor a split to a merge.
const SHRINK_PERMILLE: u64 = 600;
/// Bytes of a huge page.
const HUGE_BYTES: u64 = 2 << 20;
/// Bytes from which on the table asks for huge pages: finds in batches take 4 % less time at a
/// million keys and 15 % less at eight million (`examples/probe.rs`), for at most half as much
/// memory again.
const HUGE_FROM_BYTES: u64 = 2 * HUGE_BYTES;
/// The most bytes that one step of growth charges, or that one step of shrinking gives back.
pub const STEP_BYTES_MAX: u64 = HUGE_BYTES;
/// The most slots that one split or merge moves: those of a bucket, and for a merge also those of
/// both buckets that move elsewhere first.
pub const MERGE_SLOTS_MAX: u64 = 3 * SLOTS_PER_BUCKET as u64;

const _: () = assert!(HUGE_FROM_BYTES / 8 <= STEP_BYTES_MAX); // I3

impl Table {
    /// Grows or shrinks the table towards its occupancy, by whole buckets, until about `moves_max`
    /// entries were examined. Returns how many were; 0 if there was nothing to do, or nothing that
    /// the budget allows.
    ///
    /// Cost: per bucket its line, its partner's, and for a merge the lines of up to fourteen
    /// others; one step of memory at most ([`STEP_BYTES_MAX`]) goes back.
    pub fn maintain(
        &mut self,
        moves_max: usize,
        mut hash_of: impl FnMut(Location) -> KeyHash,
    ) -> usize {
        let mut moves = 0;
        while moves < moves_max && self.is_fuller_than(AHEAD_PERMILLE, 0) {
            if !self.split_one(&mut hash_of) {
                return moves;
            }
            moves += SLOTS_PER_BUCKET;
        }
        moves + self.shrink(moves_max.saturating_sub(moves), hash_of)
    }

    /// Grows an empty table so that `entries` entries can be inserted without a split, or as far as
    /// the budget allows.
    ///
    /// Cost: the lines of the new buckets.
    pub fn grow_for(&mut self, entries: u64) {
        assert!(self.is_empty(), "no entry has to move");
        let mut hash_of = |_| unreachable!("there is no entry");
        while self.is_fuller_than(AHEAD_PERMILLE, entries) && self.split_one(&mut hash_of) {}
    }

    /// Shrinks the table towards its occupancy, as [`Self::maintain`] does. It never grows.
    pub fn shrink(
        &mut self,
        moves_max: usize,
        mut hash_of: impl FnMut(Location) -> KeyHash,
    ) -> usize {
        let mut moves = 0;
        let charged_bytes = self.charged_bytes;
        // One call gives back one step of memory at most, because that takes the kernel long.
        while moves < moves_max && self.charged_bytes >= charged_bytes {
            if self.is_fuller_than(SHRINK_PERMILLE, 0) || !self.merge_one(&mut hash_of) {
                break;
            }
            moves += SLOTS_PER_BUCKET;
        }
        debug_assert!(self.charged_bytes <= charged_bytes, "it never grows");
        moves
    }

    /// Splits the next bucket in two. Returns false when the budget or the table's largest size
    /// forbids it.
    pub(crate) fn split_one(&mut self, hash_of: &mut impl FnMut(Location) -> KeyHash) -> bool {
        let target = self.geometry.buckets();
        if target == self.buckets_max || !self.charge_bucket() {
            return false;
        }
        let source = self.geometry.next_split();
        let after = Geometry::new(target + 1);
        let depth = after.depth(source);
        debug_assert_eq!(after.depth(target), depth);
        let mut moved = 0_u32;
        for slot in 0..SLOTS_PER_BUCKET {
            let Some(entry) = self.bucket(source).entry(slot) else { continue };
            let half = self.half(source, entry, known_bits(depth), hash_of);
            let copy = Entry::new(entry.tag(), half, depth, entry.location());
            if after.bucket_of(half) == target {
                self.bucket(target).put(slot, copy);
                moved |= 1 << slot;
            } else if copy != entry {
                self.bucket(source).put(slot, copy);
            }
        }
        self.set_geometry(after); // I2
        for slot in (0..SLOTS_PER_BUCKET).filter(|slot| moved >> slot & 1 == 1) {
            self.bucket(source).clear_moved(slot);
        }
        self.counters.splits += 1;
        true
    }

    /// Merges the last bucket into the one that it was split from. Returns false when the table is
    /// at its smallest, or when their entries do not fit into one bucket now.
    fn merge_one(&mut self, hash_of: &mut impl FnMut(Location) -> KeyHash) -> bool {
        if self.geometry.buckets() == BUCKETS_MIN {
            return false;
        }
        let source = self.geometry.buckets() - 1;
        let after = Geometry::new(source);
        let target = after.next_split();
        if !self.thin_out(source, target, hash_of) {
            return false;
        }
        let depth = after.depth(target);
        for (slot, entry) in self.bucket(target).entries() {
            self.bucket(target).put(slot, self.shallower(target, entry, depth));
        }
        let mut moved = 0_u32;
        for (slot, entry) in self.bucket(source).entries() {
            let hole = self.bucket(target).holes().next().expect("thinned out");
            self.bucket(target).put(hole, self.shallower(source, entry, depth));
            moved |= 1 << slot;
        }
        self.set_geometry(after); // I2
        for slot in (0..SLOTS_PER_BUCKET).filter(|slot| moved >> slot & 1 == 1) {
            self.bucket(source).clear_moved(slot);
        }
        self.counters.merges += 1;
        self.refund_step();
        true
    }

    fn set_geometry(&mut self, geometry: Geometry) {
        self.geometry = geometry;
        self.lines.set_geometry(geometry);
    }

    /// `entry`, now in `bucket`, as it reads in a bucket of the lesser depth `depth`.
    fn shallower(&self, bucket: u32, entry: Entry, depth: u32) -> Entry {
        let half = entry.half_known(bucket, self.geometry.depth(bucket));
        Entry::new(entry.tag(), half, depth, entry.location())
    }

    /// Moves entries of `source` and `target` to their other buckets until the two fit into one.
    fn thin_out(
        &mut self,
        source: u32,
        target: u32,
        hash_of: &mut impl FnMut(Location) -> KeyHash,
    ) -> bool {
        for bucket in [source, target] {
            for slot in 0..SLOTS_PER_BUCKET {
                if self.fit_into_one(source, target) {
                    return true;
                }
                let Some(entry) = self.bucket(bucket).entry(slot) else { continue };
                let other = self.other_bucket(bucket, entry);
                if let Some(hole) = self.bucket(other).holes().next() {
                    self.move_entry(bucket, slot, other, hole, hash_of);
                }
            }
        }
        self.fit_into_one(source, target)
    }

    fn fit_into_one(&self, source: u32, target: u32) -> bool {
        let holes = [source, target].map(|bucket| self.bucket(bucket).holes().count());
        holes[0] + holes[1] >= SLOTS_PER_BUCKET as u32
    }

    /// Charges memory for one more bucket, if it is not charged yet (I1). Returns false when the
    /// budget refuses.
    fn charge_bucket(&mut self) -> bool {
        let used = u64::from(self.geometry.buckets()) * BUCKET_BYTES;
        if used < self.charged_bytes {
            return true;
        }
        let step = self.growth_bytes();
        assert!(step > 0, "below its largest size a table has address space left");
        if !self.budget.charge(step) {
            return false;
        }
        if self.charged_bytes >= HUGE_FROM_BYTES {
            // The whole range, so that the kernel may also unite the small pages before the step.
            self.lines.region.advise_huge(0..(self.charged_bytes + step) as usize);
        }
        self.charged_bytes += step;
        true
    }

    /// The bytes that the table charges when it takes memory next. After [`crate::Full`], the
    /// caller should make room for this number of bytes.
    pub fn growth_bytes(&self) -> u64 {
        let step = if self.charged_bytes < HUGE_FROM_BYTES {
            small_step_bytes(self.charged_bytes).min(HUGE_FROM_BYTES - self.charged_bytes)
        } else {
            HUGE_BYTES - self.address(self.charged_bytes) % HUGE_BYTES
        };
        step.min(self.lines.region.bytes() as u64 - self.charged_bytes)
    }

    /// The address of byte `offset` of the region. Huge pages lie at multiples of their size.
    fn address(&self, offset: u64) -> u64 {
        self.lines.region.base().addr().get() as u64 + offset
    }

    /// Gives the last step of memory back when it and as much before it are unused (I1).
    fn refund_step(&mut self) {
        let used = u64::from(self.geometry.buckets()) * BUCKET_BYTES;
        let step = if self.charged_bytes <= HUGE_FROM_BYTES {
            small_step_bytes(self.charged_bytes)
        } else {
            let last_bytes = (self.address(self.charged_bytes) - 1) % HUGE_BYTES + 1;
            last_bytes.min(self.charged_bytes - HUGE_FROM_BYTES)
        };
        if self.charged_bytes >= used + 2 * step {
            let kept = self.charged_bytes - step;
            // Memory that the kernel does not take back stays charged (I1). The next growth uses
            // it.
            if self.lines.region.release(kept as usize..self.charged_bytes as usize) {
                self.charged_bytes = kept;
                self.budget.refund(step);
            }
        }
    }
}

/// The step of memory by which a table of `charged_bytes` grows or shrinks below huge pages (I3).
fn small_step_bytes(charged_bytes: u64) -> u64 {
    let page = PAGE_BYTES as u64;
    (charged_bytes / 8 / page * page).max(page)
}

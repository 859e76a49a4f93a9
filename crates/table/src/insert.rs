//! Inserting: into a hole of one of the two buckets, or into a hole made by moving other entries.
//!
//! Upstream:   `cache`, for keys that it knows to be absent.
//! Downstream: `bucket` stores; `grow` keeps the table from filling up.
//!
//! Invariants:
//! - I1  A search examines at most `search::NODES_MAX` buckets; its path has at most
//!   `PATH_MOVES_MAX` moves.
//! - I2  A move stores the copy before it clears the original, so an entry is at all times in one
//!   of its buckets (and for a moment in both).
//! - I3  All buckets on a path but the last are full.

use crate::bucket::{Entry, known_bits};
use crate::line::SLOTS_PER_BUCKET;
use crate::prefetch::prefetch;
use crate::search::{EXPANSIONS_MAX, Node};
use crate::table::Table;
use crate::tag::{Half, KeyHash, Location};

/// Moves that one insert makes at most to reach a hole, splits apart.
pub const PATH_MOVES_MAX: usize = 3;

/// Thousandths of the slots above which an insert makes the table grow.
/// Guess: two choices of seven slots could be filled further, at more moves an insert.
const GROW_PERMILLE: u64 = 900;
/// Thousandths of the slots above which an insert is refused when the table may not grow.
const FULL_PERMILLE: u64 = 960;
/// Buckets that one insert splits at most at each of the two occasions.
const SPLITS_MAX: usize = 2;
/// The most slots that one insert moves: those of the splits on both occasions, and those of a path
/// for each search.
pub const INSERT_SLOTS_MAX: u64 =
    (2 * SPLITS_MAX * SLOTS_PER_BUCKET + (1 + SPLITS_MAX) * PATH_MOVES_MAX) as u64;

/// The table has no room for another item and its budget allows no more.
///
/// The caller evicts an item and tries again, a bounded number of times, because fifteen keys with
/// the same hash have no room in any table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl std::fmt::Display for Full {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("the table is full and may not grow")
    }
}

impl std::error::Error for Full {}

impl Table {
    /// Inserts the absent key with `hash`, so that it leads to `location`. `hash_of` returns the
    /// hash of an item in the table.
    ///
    /// Cost: two cache lines; above 90 % occupancy also one or two splits; for the few keys with
    /// both buckets full a search of at most 506 buckets and up to [`PATH_MOVES_MAX`] moves.
    /// `hash_of` is called only in every fourth doubling of the table.
    /// Errors: [`Full`], with nothing changed that a reader could see.
    #[inline]
    pub fn insert(
        &mut self,
        hash: KeyHash,
        location: Location,
        mut hash_of: impl FnMut(Location) -> KeyHash,
    ) -> Result<(), Full> {
        if self.is_fuller_than(GROW_PERMILLE, 1) {
            for _ in 0..SPLITS_MAX {
                if !(self.is_fuller_than(GROW_PERMILLE, 1) && self.split_one(&mut hash_of)) {
                    break;
                }
            }
            if self.is_fuller_than(FULL_PERMILLE, 1) {
                self.counters.refused += 1;
                return Err(Full);
            }
        }
        if self.place(hash, location) || self.make_room(hash, location, &mut hash_of) {
            return Ok(());
        }
        self.counters.refused += 1;
        Err(Full)
    }

    /// Puts the key into the emptier of its buckets. Returns false when both are full.
    #[inline]
    fn place(&mut self, hash: KeyHash, location: Location) -> bool {
        let tag = hash.tag();
        let halves = [hash.first(), hash.first().other(tag)];
        let indices = halves.map(|half| self.geometry.bucket_of(half));
        let holes = indices.map(|index| self.bucket(index).holes());
        let choice = usize::from(holes[0].count() < holes[1].count());
        let (index, mut holes) = (indices[choice], holes[choice]);
        let Some(hole) = holes.next() else { return false };
        let entry = Entry::new(tag, halves[choice], self.geometry.depth(index), location);
        self.bucket(index).put(hole, entry);
        self.len += 1;
        true
    }

    /// Moves entries along a path to a hole and puts the key where the path began.
    #[cold]
    fn make_room(
        &mut self,
        hash: KeyHash,
        location: Location,
        hash_of: &mut impl FnMut(Location) -> KeyHash,
    ) -> bool {
        if self.clear_path(hash, hash_of) {
            return self.place(hash, location);
        }
        self.counters.pathless += 1;
        for _ in 0..SPLITS_MAX {
            if !self.split_one(hash_of) {
                return false;
            }
            if self.place(hash, location) {
                return true;
            }
            if self.clear_path(hash, hash_of) {
                return self.place(hash, location);
            }
        }
        false
    }

    /// Moves entries so that one of the key's two buckets has a hole. Returns false, and moves
    /// nothing, when no hole is near.
    fn clear_path(&mut self, hash: KeyHash, hash_of: &mut impl FnMut(Location) -> KeyHash) -> bool {
        let mut nodes = std::mem::take(&mut self.nodes); // Kept for its memory only.
        nodes.clear();
        let end = self.search(hash, &mut nodes);
        if let Some(end) = end {
            self.walk_back(&nodes, end, hash_of);
        }
        self.nodes = nodes;
        end.is_some()
    }

    /// Searches breadth first from the key's two buckets for one with a hole; returns its node
    /// (I1).
    ///
    /// Prefetches all buckets that one bucket's entries lead to before it examines the first of
    /// them, so that their cache lines arrive together.
    fn search(&self, hash: KeyHash, nodes: &mut Vec<Node>) -> Option<usize> {
        for (index, bucket) in self.buckets_of(hash).into_iter().enumerate() {
            nodes.push(Node { bucket, parent: index as u16, slot: 0 });
        }
        for at in 0..EXPANSIONS_MAX {
            let (bucket, first_new) = (nodes[at].bucket, nodes.len());
            for (slot, entry) in self.bucket(bucket).entries() {
                let other = self.other_bucket(bucket, entry);
                prefetch(self.bucket(other).0);
                nodes.push(Node { bucket: other, parent: at as u16, slot: slot as u8 });
            }
            let has_hole = |node: &Node| self.bucket(node.bucket).holes().next().is_some();
            if let Some(found) = nodes[first_new..].iter().position(has_hole) {
                return Some(first_new + found);
            }
        }
        None
    }

    /// Makes the moves of the path that ends at `nodes[end]`, the last one first.
    fn walk_back(
        &mut self,
        nodes: &[Node],
        end: usize,
        hash_of: &mut impl FnMut(Location) -> KeyHash,
    ) {
        let mut at = end;
        for _ in 0..PATH_MOVES_MAX {
            let node = nodes[at];
            if usize::from(node.parent) == at {
                return;
            }
            at = node.parent.into();
            let hole =
                self.bucket(node.bucket).holes().next().expect("I3: the move before left one");
            self.move_entry(nodes[at].bucket, node.slot.into(), node.bucket, hole, hash_of);
        }
        assert!(usize::from(nodes[at].parent) == at, "I1: a path of more than three moves");
    }

    /// Moves the entry in `slot` of `source` to the empty `hole` of `target`, its other bucket
    /// (I2).
    pub(crate) fn move_entry(
        &mut self,
        source: u32,
        slot: usize,
        target: u32,
        hole: usize,
        hash_of: &mut impl FnMut(Location) -> KeyHash,
    ) {
        let entry = self.bucket(source).entry(slot).expect("I3: the slot of a full bucket");
        assert_eq!(self.other_bucket(source, entry), target, "an entry moves to its other bucket");
        let depth = self.geometry.depth(target);
        let half = self.half(source, entry, known_bits(depth), hash_of).other(entry.tag());
        let copy = Entry::new(entry.tag(), half, depth, entry.location());
        self.bucket(target).put(hole, copy);
        self.bucket(source).clear_moved(slot);
        self.counters.moves += 1;
    }

    /// The other bucket that `entry`, now in `bucket`, may be in. Reads no item: an entry knows one
    /// bit more than its bucket's depth, and no bucket is deeper than that.
    pub(crate) fn other_bucket(&self, bucket: u32, entry: Entry) -> u32 {
        let half = entry.half_known(bucket, self.geometry.depth(bucket));
        self.geometry.bucket_of(half.other(entry.tag()))
    }

    /// At least the low `bits` bits of the half that led `entry` into `bucket`. Calls `hash_of`
    /// when the entry does not know as many.
    pub(crate) fn half(
        &mut self,
        bucket: u32,
        entry: Entry,
        bits: u32,
        hash_of: &mut impl FnMut(Location) -> KeyHash,
    ) -> Half {
        let depth = self.geometry.depth(bucket);
        if known_bits(depth) >= bits {
            return entry.half_known(bucket, depth);
        }
        self.counters.hashes_asked += 1;
        let hash = hash_of(entry.location());
        assert_eq!(hash.tag(), entry.tag(), "an item's hash never changes");
        let first = hash.first();
        let half =
            if self.geometry.bucket_of(first) == bucket { first } else { first.other(hash.tag()) };
        assert_eq!(self.geometry.bucket_of(half), bucket, "a key is in one of its two buckets");
        half
    }
}

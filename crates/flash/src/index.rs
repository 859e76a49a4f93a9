//! The index: where on the log the last record of each key is.
//!
//! Upstream:   `store` looks keys up, and notes each record that it appends; `replay` notes those
//!             that a start finds.
//! Downstream: `collection` chooses segments by the bytes that are alive in them.
//!
//! The index is in memory, in the order of the keys.
//!
//! Invariants, cited by number where they are asserted:
//! - X1  `used` has, for each segment, the bytes of the records that entries name, without those of
//!   entries that are known to be dead.
//! - X2  A dead entry stays until the first record that it names is collected, because an older
//!   record of its key may be on the log. Then an expired item gets a grave; a flushed one needs
//!   none.
//! - X3  The budget has been charged for at least the bytes of the entries.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use kachel_host::Budget;
use kachel_log::{Appended, Geometry, Position, SegmentIndex};

use crate::record::{ItemHead, LargeValue, Marks};

/// What an entry takes in memory beside its key: about what the map needs. A guess.
const ENTRY_BYTES: u64 = 128;
/// The budget is charged in pieces of this size.
const CHARGE_BYTES: u64 = 64 * 1024;

/// Where the parts of a value are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) value: LargeValue,
    /// Where each part is. A start fills them in at its end.
    pub(crate) places: Vec<Position>,
}

/// The last item record of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) position: Position,
    /// Its sequence. A place may be used again, and a sequence is not.
    pub(crate) sequence: u64,
    /// The flush epoch in which the item was stored.
    pub(crate) epoch: u32,
    /// When it expires now, as a Unix time; 0: never.
    pub(crate) expiry_unix_s: u32,
    /// Its marks now.
    pub(crate) marks: Marks,
    /// The record that expiry and marks are of, if it is a later one than the item's.
    pub(crate) life: Option<Position>,
    /// Where its value is, if that is in parts.
    pub(crate) parts: Option<Arc<Parts>>,
    /// Whether it is known to be dead (X1, X2).
    pub(crate) is_dead: bool,
}

impl Entry {
    /// The entry of an item that was appended.
    pub(crate) fn new(
        appended: &Appended,
        epoch: u32,
        head: &ItemHead,
        parts: Option<Arc<Parts>>,
    ) -> Self {
        let &Appended { position, sequence, .. } = appended;
        let &ItemHead { expiry_unix_s, marks, .. } = head;
        Self { position, sequence, epoch, expiry_unix_s, marks, life: None, parts, is_dead: false }
    }

    /// The records that it names: that of the item, that of its life, and the parts of its value.
    fn places(&self) -> impl Iterator<Item = Position> {
        let parts = self.parts.iter().flat_map(|parts| &parts.places);
        std::iter::once(self.position).chain(self.life).chain(parts.copied())
    }

    /// The bytes of memory that the entry takes, for a key.
    fn memory_bytes(&self, key: &[u8]) -> u64 {
        ENTRY_BYTES
            + key.len() as u64
            + parts_bytes(self.parts.as_ref().map_or(0, |p| p.value.parts as usize))
    }
}

/// The bytes of memory that the places of a number of parts take.
const fn parts_bytes(parts: usize) -> u64 {
    (parts * size_of::<Position>()) as u64
}

/// The index of an engine.
#[derive(Debug)]
pub(crate) struct Index {
    entries: BTreeMap<Box<[u8]>, Entry>,
    geometry: Geometry,
    /// The bytes of live records in each segment (X1).
    used: Vec<u64>,
    live_bytes: u64,
    /// The bytes of graves in each segment, and in all.
    graves: Vec<u64>,
    grave_bytes: u64,
    budget: Arc<Budget>,
    entry_bytes: u64,
    charged_bytes: u64,
    sweep: Sweep,
}

/// Looks for entries that have died, one after the other.
#[derive(Debug, Default)]
struct Sweep {
    /// The last key that was examined. `None` between two sweeps.
    behind: Option<Vec<u8>>,
    /// The second in which the next one begins.
    due: u32,
}

/// A sweep begins at the earliest this number of seconds after the one before. A guess: garbage may
/// stay for so long.
const SWEEP_S: u32 = 60;
/// The same, if space is short. A sweep of many items takes a second.
const SWEEP_SOON_S: u32 = 5;
/// One second more for this number of entries, so that an idle server does not notice.
const SWEEP_ENTRIES_PER_S: usize = 10_000;
/// The most entries that a step of a sweep examines.
const SWEEP_STEP: usize = 128;

impl Index {
    pub(crate) fn new(geometry: Geometry, budget: Arc<Budget>) -> Self {
        Self {
            entries: BTreeMap::new(),
            geometry,
            used: Vec::new(),
            live_bytes: 0,
            graves: Vec::new(),
            grave_bytes: 0,
            budget,
            entry_bytes: 0,
            charged_bytes: 0,
            sweep: Sweep::default(),
        }
    }

    /// The entry of a key. It may be dead (X2).
    pub(crate) fn get(&self, key: &[u8]) -> Option<&Entry> {
        self.entries.get(key)
    }

    /// Whether an entry names a place, as that of the item or of a part of its value.
    pub(crate) fn names(&self, key: &[u8], position: Position) -> bool {
        self.entries.get(key).is_some_and(|entry| entry.places().any(|place| place == position))
    }

    /// The bytes of the budget that the entries have.
    pub(crate) const fn charged_bytes(&self) -> u64 {
        self.charged_bytes
    }

    /// The number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The bytes of the records that entries name (X1).
    pub(crate) const fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// The bytes of the records in a segment that entries name.
    pub(crate) fn used_bytes(&self, segment: SegmentIndex) -> u64 {
        self.used.get(segment.0 as usize).copied().unwrap_or(0)
    }

    /// The bytes of the records in a segment that are needed, as far as that is known.
    pub(crate) fn needed_bytes(&self, segment: SegmentIndex) -> u64 {
        let graves = self.graves.get(segment.0 as usize).copied().unwrap_or(0);
        self.used_bytes(segment) + graves
    }

    /// Charges the budget for one more entry (X3), whose value is in `parts` parts.
    ///
    /// Errors: the budget has not so much, and the missing bytes.
    pub(crate) fn reserve(&mut self, key: &[u8], parts: usize) -> Result<(), u64> {
        let bytes = self.entry_bytes + ENTRY_BYTES + key.len() as u64 + parts_bytes(parts);
        let missing = bytes.saturating_sub(self.charged_bytes).next_multiple_of(CHARGE_BYTES);
        if missing > 0 && !self.budget.charge(missing) {
            return Err(missing);
        }
        self.charged_bytes += missing;
        Ok(())
    }

    /// Has the next sweep begin soon, because space is short or many items have died.
    pub(crate) fn sweep_soon(&mut self, second: u32) {
        self.sweep.due = self.sweep.due.min(second.saturating_add(SWEEP_SOON_S));
    }

    /// Examines the next entries of a sweep, if it is time for one: those that `is_dead` says are
    /// dead count as garbage from then on. Returns how many were examined.
    pub(crate) fn sweep(&mut self, second: u32, is_dead: impl Fn(&Entry) -> bool) -> usize {
        let behind = match self.sweep.behind.take() {
            Some(behind) => behind,
            None if second < self.sweep.due => return 0,
            None => Vec::new(),
        };
        let bounds = (Bound::Excluded(&*behind), Bound::Unbounded);
        let (mut examined, mut last, mut dead) = (0, None, Vec::new());
        for (key, entry) in self.entries.range_mut::<[u8], _>(bounds).take(SWEEP_STEP) {
            examined += 1;
            last = Some(key.to_vec());
            if !entry.is_dead && is_dead(entry) {
                entry.is_dead = true;
                dead.extend(entry.places());
            }
        }
        dead.into_iter().for_each(|place| self.uncount(place));
        if examined < SWEEP_STEP {
            let spare = self.charged_bytes - self.entry_bytes;
            if spare > 2 * CHARGE_BYTES {
                let refund = (spare - CHARGE_BYTES) / CHARGE_BYTES * CHARGE_BYTES;
                self.charged_bytes -= refund;
                self.budget.refund(refund); // X3
            }
            let seconds = SWEEP_S + (self.entries.len() / SWEEP_ENTRIES_PER_S) as u32;
            self.sweep.due = second.saturating_add(seconds);
        } else {
            self.sweep.behind = last;
        }
        examined
    }

    /// Notes the last item record of a key.
    pub(crate) fn insert(&mut self, key: &[u8], entry: Entry) {
        debug_assert!(!entry.is_dead, "X1: it is counted");
        self.entry_bytes += entry.memory_bytes(key);
        entry.places().for_each(|place| self.count(place));
        let old = match self.entries.get_mut(key) {
            Some(old) => Some(std::mem::replace(old, entry)),
            None => self.entries.insert(key.into(), entry),
        };
        old.iter().for_each(|old| self.uncount_entry(key, old));
    }

    /// Gives the item of a key another life, which a record says.
    pub(crate) fn revive(&mut self, key: &[u8], life: Position, expiry_unix_s: u32, marks: Marks) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        (entry.expiry_unix_s, entry.marks) = (expiry_unix_s, marks);
        let (before, is_dead) = (entry.life.replace(life), entry.is_dead);
        if !is_dead {
            before.into_iter().for_each(|before| self.uncount(before));
            self.count(life);
        }
    }

    /// Notes that the record of a key was copied, with its life.
    pub(crate) fn moved(&mut self, key: &[u8], to: Position, sequence: u64) {
        let entry = self.entries.get_mut(key).expect("its record is alive");
        debug_assert!(!entry.is_dead, "its record is alive");
        let from = std::mem::replace(&mut entry.position, to);
        entry.sequence = sequence;
        let life = entry.life.take();
        std::iter::once(from).chain(life).for_each(|from| self.uncount(from));
        self.count(to);
    }

    /// Notes where a part of a value is, if the item has this value.
    pub(crate) fn part_moved(&mut self, key: &[u8], value_id: u64, place: u32, to: Position) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        let (is_dead, parts) = (entry.is_dead, entry.parts.as_mut());
        let parts = parts.filter(|parts| parts.value.id == value_id);
        let part = parts.and_then(|parts| Arc::make_mut(parts).places.get_mut(place as usize));
        if let Some(part) = part {
            let from = std::mem::replace(part, to);
            if !is_dead {
                self.uncount(from);
                self.count(to);
            }
        }
    }

    /// Notes where all parts of the value of a key are.
    pub(crate) fn set_parts(&mut self, key: &[u8], places: Vec<Position>) {
        let parts = self.entries.get_mut(key).and_then(|entry| entry.parts.as_mut());
        let parts = Arc::make_mut(parts.expect("the value is in parts"));
        debug_assert!(parts.places.is_empty(), "they were not known");
        parts.places.clone_from(&places);
        places.into_iter().for_each(|place| self.count(place));
    }

    /// Notes a grave. It is counted until its segment is freed.
    pub(crate) fn bury(&mut self, grave: Position) {
        let segment = self.geometry.segment_of(grave.offset).0 as usize;
        if self.graves.len() <= segment {
            self.graves.resize(segment + 1, 0);
        }
        self.graves[segment] += grave.record_bytes();
        self.grave_bytes += grave.record_bytes();
    }

    /// A segment is free.
    pub(crate) fn freed(&mut self, segment: SegmentIndex) {
        if let Some(graves) = self.graves.get_mut(segment.0 as usize) {
            self.grave_bytes -= std::mem::take(graves);
        }
    }

    /// The bytes of graves.
    pub(crate) const fn grave_bytes(&self) -> u64 {
        self.grave_bytes
    }

    /// Removes the entry of a key.
    pub(crate) fn remove(&mut self, key: &[u8]) {
        let old = self.entries.remove(key);
        old.iter().for_each(|old| self.uncount_entry(key, old));
    }

    fn uncount_entry(&mut self, key: &[u8], entry: &Entry) {
        self.entry_bytes -= entry.memory_bytes(key);
        if !entry.is_dead {
            entry.places().for_each(|place| self.uncount(place)); // X1
        }
    }

    /// The entries behind a key, in the order of their keys.
    pub(crate) fn behind(&self, key: &[u8]) -> impl Iterator<Item = (&[u8], &Entry)> {
        let bounds = (Bound::Excluded(key), Bound::Unbounded);
        let entries = self.entries.range::<[u8], _>(bounds);
        entries.map(|(key, entry)| (&**key, entry))
    }

    fn count(&mut self, position: Position) {
        let segment = self.geometry.segment_of(position.offset).0 as usize;
        if self.used.len() <= segment {
            self.used.resize(segment + 1, 0);
        }
        self.used[segment] += position.record_bytes();
        self.live_bytes += position.record_bytes();
    }

    fn uncount(&mut self, position: Position) {
        let segment = self.geometry.segment_of(position.offset).0 as usize;
        self.used[segment] -= position.record_bytes(); // X1
        self.live_bytes -= position.record_bytes();
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        self.budget.refund(self.charged_bytes); // X3
    }
}

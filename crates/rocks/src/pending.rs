//! The changes of an engine that are not in its database yet: those that the next batch writes, and
//! those of the batch that is being written.
//!
//! Upstream:   the engine notes each change; a lookup asks here before it asks the database.
//! Downstream: `calls` write the batches.
//!
//! ```text
//!   change --> queue --take_batch--> being written --committed--> in the database
//!     |                                                  |
//!     +--> known, until the batch of the last change of its key is committed
//! ```
//!
//! Invariants:
//! - P1  A batch is written once the one before it is, so the number of a batch is the sequence of
//!   its changes, and after a crash the database has a prefix of the batches.
//! - P2  What is known about a key is the result of its last change. It is forgotten when the
//!   database has that change, and not before.
//! - P3  A range that was deleted is forgotten with its batch. A key that was changed later is
//!   known by itself.
//! - P4  While something reads the database that must know all later changes
//!   ([`Pending::keep_changes`]), what these batches have changed is not forgotten.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use kachel_engine::{RESERVED_TOKENS, Sequence};

use crate::change::Change;
use crate::item::{Known, RocksItem};
use crate::range::KeyRange;
use crate::record::Note;

/// An engine whose next batch has as many bytes executes no further operation that may change
/// something, until a batch is written. A guess: the disk has enough to do with less.
const QUEUE_BYTES_MAX: usize = 4 << 20;
/// The same for the number of changes.
const QUEUE_CHANGES_MAX: usize = 1 << 14;
/// Bytes that a change is counted as, beside its key and its value. A guess.
const CHANGE_BYTES: usize = 128;

// While a note about tokens is being written, two batches of tokens are taken: those of the batch
// that has the note, and those of the next one. So operations rarely wait for a note.
const _: () = assert!(RESERVED_TOKENS / 2 > 4 * QUEUE_CHANGES_MAX as u64, "the note comes in time");

/// Changes that are written together.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) sequence: Sequence,
    pub(crate) changes: Vec<Change>,
}

/// The changes that are not in the database.
#[derive(Debug)]
pub(crate) struct Pending {
    known: BTreeMap<Arc<[u8]>, Known>,
    ranges: Vec<(Sequence, KeyRange)>,
    queue: Vec<Change>,
    queue_bytes: usize,
    /// The sequence of the changes in the queue.
    next: Sequence,
    is_writing: bool,
    /// The batches that the database has and that are not forgotten, the first one first (P4).
    kept: VecDeque<Written>,
    /// For each batch behind which something reads, how many do.
    readers: BTreeMap<Sequence, usize>,
}

/// What a batch has changed that the database has.
#[derive(Debug)]
struct Written {
    sequence: Sequence,
    keys: Vec<Arc<[u8]>>,
    ranges: Vec<KeyRange>,
}

impl Written {
    fn of(batch: &Batch) -> Self {
        let mut written = Self { sequence: batch.sequence, keys: Vec::new(), ranges: Vec::new() };
        for change in &batch.changes {
            match change {
                Change::Put { key, .. } | Change::Delete { key } => {
                    written.keys.push(Arc::clone(key));
                }
                Change::DeleteRange { from, to } => {
                    written.ranges.push(KeyRange { from: from.clone(), to: to.clone() });
                }
                Change::Note(_) => {}
            }
        }
        written
    }
}

impl Default for Pending {
    fn default() -> Self {
        Self {
            known: BTreeMap::new(),
            ranges: Vec::new(),
            queue: Vec::new(),
            queue_bytes: 0,
            next: Sequence(1),
            is_writing: false,
            kept: VecDeque::new(),
            readers: BTreeMap::new(),
        }
    }
}

impl Pending {
    /// What is known about a key.
    pub(crate) fn find(&self, key: &[u8]) -> Option<Known> {
        if let Some(known) = self.known.get(key) {
            return Some(known.clone());
        }
        // The later range is the later change.
        let range = self.ranges.iter().rev().find(|(_, range)| range.has(key));
        range.map(|&(sequence, _)| Known { sequence, item: None })
    }

    /// Whether there are changes whose memory is free once they are written.
    pub(crate) fn is_any(&self) -> bool {
        self.is_writing || !self.queue.is_empty()
    }

    /// Whether operations that may change something must wait.
    pub(crate) fn is_full(&self) -> bool {
        self.queue_bytes >= QUEUE_BYTES_MAX || self.queue.len() >= QUEUE_CHANGES_MAX
    }

    /// Notes that `item` is stored under `key`, or that the key is removed. Returns what is known
    /// now.
    pub(crate) fn change(&mut self, key: &[u8], item: Option<RocksItem>) -> Known {
        self.queue_bytes += CHANGE_BYTES + key.len();
        let (key, known) = (Arc::from(key), Known { sequence: self.next, item });
        let change = match &known.item {
            None => Change::Delete { key: Arc::clone(&key) },
            Some(item) => {
                self.queue_bytes += item.value().bytes().len();
                let (header, value) = (item.header_bytes(), item.value().clone());
                Change::Put { key: Arc::clone(&key), header, value }
            }
        };
        self.queue.push(change);
        self.known.insert(key, known.clone());
        known
    }

    /// Notes that all keys of a range are removed. Returns the sequence.
    pub(crate) fn delete_range(&mut self, range: &KeyRange) -> Sequence {
        for (_, known) in self.known.range_mut::<[u8], _>(range.bounds()) {
            *known = Known { sequence: self.next, item: None };
        }
        let KeyRange { from, to } = range.clone();
        self.queue_bytes += CHANGE_BYTES;
        self.queue.push(Change::DeleteRange { from, to });
        self.ranges.push((self.next, range.clone()));
        self.next
    }

    /// Adds a note to the next batch.
    pub(crate) fn note(&mut self, note: Note) {
        self.queue.push(Change::Note(note));
    }

    /// The sequence of the last change.
    pub(crate) fn last_sequence(&self) -> Sequence {
        if self.queue.is_empty() { Sequence(self.next.0 - 1) } else { self.next }
    }

    /// Takes the next batch, if there is one and no other is being written (P1).
    pub(crate) fn take_batch(&mut self) -> Option<Batch> {
        if self.is_writing || self.queue.is_empty() {
            return None;
        }
        let batch = Batch { sequence: self.next, changes: std::mem::take(&mut self.queue) };
        (self.queue_bytes, self.is_writing) = (0, true);
        self.next = Sequence(self.next.0 + 1);
        Some(batch)
    }

    /// The database has a batch.
    pub(crate) fn committed(&mut self, batch: &Batch) {
        assert!(self.is_writing && batch.sequence.0 + 1 == self.next.0, "P1: the last one taken");
        self.is_writing = false;
        self.kept.push_back(Written::of(batch));
        self.forget_written();
    }

    /// Keeps all changes that the database does not have now, until [`Self::drop_changes`].
    pub(crate) fn keep_changes(&mut self) -> Sequence {
        let since = Sequence(self.next.0 - 1 - u64::from(self.is_writing));
        *self.readers.entry(since).or_default() += 1;
        since
    }

    /// The changes are not needed any more that were kept since a batch.
    pub(crate) fn drop_changes(&mut self, since: Sequence) {
        let readers = self.readers.get_mut(&since).expect("P4: it has kept them");
        *readers -= 1;
        if *readers == 0 {
            self.readers.remove(&since);
        }
        self.forget_written();
    }

    /// What is known about the keys in a range, in their order.
    pub(crate) fn known_in(
        &self,
        range: (Bound<&[u8]>, Bound<&[u8]>),
    ) -> impl Iterator<Item = (&[u8], &Known)> {
        self.known.range::<[u8], _>(range).map(|(key, known)| (&**key, known))
    }

    /// Forgets the changes that the database has and that nothing keeps (P2, P4).
    fn forget_written(&mut self) {
        let through = self.readers.first_key_value().map_or(Sequence::NEVER, |(since, _)| *since);
        while let Some(Written { sequence, keys, ranges }) =
            self.kept.pop_front_if(|written| written.sequence <= through)
        {
            keys.iter().for_each(|key| self.forget(key, sequence));
            for range in ranges {
                let inside = self.known.range::<[u8], _>(range.bounds());
                let keys: Vec<_> = inside.map(|(key, _)| Arc::clone(key)).collect();
                keys.iter().for_each(|key| self.forget(key, sequence));
            }
            self.ranges.retain(|(of_range, _)| *of_range > sequence); // P3
        }
    }

    /// Forgets a key whose last change is in the database (P2).
    fn forget(&mut self, key: &[u8], through: Sequence) {
        if self.known.get(key).is_some_and(|known| known.sequence <= through) {
            self.known.remove(key);
        }
    }

    /// No batch is written any more. What is known stays, so that what is lost is not taken for
    /// what was there before.
    pub(crate) fn fail(&mut self) {
        (self.queue, self.queue_bytes) = (Vec::new(), 0);
    }
}

//! Rebuilds the index and the reserved tokens from the records of a log at a start.
//!
//! Upstream:   `opening`, for each engine.
//! Downstream: the log gives the records in the order in which they were appended.
//!
//! Invariants, cited by number where they are asserted:
//! - P1  The last record of a key decides. An item that was flushed is like one that was removed.
//! - P2  Parts and their item are copied one without the other, so they come in any order, and the
//!   last place of a part counts. An item that was replaced may lack parts, so only the items that
//!   are left at the end must have all of theirs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kachel_host::Budget;
use kachel_log::{FoundRecord, Geometry, Position, Replay};
use kachel_stdx::is_before;

use crate::index::{Entry, Index, Parts};
use crate::prefixes::FoundPrefixes;
use crate::record::{self, ITEM, ItemHead, LARGE_ITEM, LargeValue, Record};

/// What was found so far.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) index: Index,
    /// Tokens up to this one may have been given out.
    pub(crate) reserved_tokens: u64,
    /// The number of flushes.
    epoch: u32,
    /// The flushes of prefixes.
    pub(crate) prefixes: FoundPrefixes,
    /// The greatest number of flushes at which an item was stored.
    pub(crate) newest_epoch: u32,
    /// The parts of values, by the ids of the values.
    parts: BTreeMap<u64, BTreeMap<u32, Position>>,
    /// The keys of items whose values are in parts, perhaps also of some that were replaced.
    large: BTreeSet<Box<[u8]>>,
}

impl Found {
    pub(crate) fn new(geometry: Geometry, budget: Arc<Budget>, epoch: u32) -> Self {
        Self {
            index: Index::new(geometry, budget),
            reserved_tokens: 0,
            epoch,
            newest_epoch: epoch,
            prefixes: FoundPrefixes::default(),
            parts: BTreeMap::new(),
            large: BTreeSet::new(),
        }
    }

    /// What was found, once all records were given.
    ///
    /// Errors: an item lacks parts of its value.
    pub(crate) fn whole(mut self) -> Result<Self, String> {
        self.prefixes.sweep(&mut self.index); // A flushed item may lack parts, too.
        for key in std::mem::take(&mut self.large) {
            let parts = self.index.get(&key).and_then(|entry| entry.parts.as_ref());
            let Some(value) = parts.map(|parts| parts.value) else { continue };
            let found = self.parts.remove(&value.id).unwrap_or_default();
            if !found.keys().copied().eq(0..value.parts) {
                return Err(format!("a part of value {} is missing", value.id)); // P2
            }
            self.index.set_parts(&key, found.into_values().collect());
        }
        self.parts.clear();
        Ok(self)
    }

    fn insert(&mut self, key: &[u8], entry: Entry) -> Result<(), String> {
        let parts = entry.parts.as_ref().map_or(0, |parts| parts.value.parts as usize);
        let refused = |_| "there is not enough memory (-m) for its keys".to_owned();
        self.index.reserve(key, parts).map_err(refused)?;
        if parts > 0 {
            self.large.insert(key.into());
        }
        self.index.insert(key, entry);
        Ok(())
    }
}

impl Replay for Found {
    fn record(&mut self, found: FoundRecord<'_>) -> Result<(), String> {
        let FoundRecord { position, kind, epoch, payload, sequence } = found;
        let entry = |head: ItemHead, value: Option<LargeValue>| Entry {
            position,
            sequence,
            epoch,
            expiry_unix_s: head.expiry_unix_s,
            marks: head.marks,
            life: None,
            parts: value.map(|value| Arc::new(Parts { value, places: Vec::new() })),
            is_dead: false,
        };
        let record = record::read(kind, payload).map_err(|error| error.to_string())?;
        if matches!(kind, ITEM | LARGE_ITEM) && is_before(self.newest_epoch, epoch) {
            self.newest_epoch = epoch;
        }
        match record {
            Record::Item { key, .. } | Record::LargeItem { key, .. }
                if is_before(epoch, self.epoch) =>
            {
                self.index.remove(key); // P1
            }
            Record::Item { key, head, .. } => self.insert(key, entry(head, None))?,
            Record::LargeItem { key, head, value } => self.insert(key, entry(head, Some(value)))?,
            Record::Part { value_id, place, .. } => {
                self.parts.entry(value_id).or_default().insert(place, position); // P2
            }
            Record::Life { key, expiry_unix_s, marks } => {
                self.index.revive(key, position, expiry_unix_s, marks);
            }
            Record::Grave { key, .. } => {
                self.index.remove(key);
                self.index.bury(position);
            }
            Record::PrefixFlush { number, sequence: of_items, prefix } => {
                let before = if of_items == 0 { sequence } else { of_items };
                self.prefixes.note(number, &prefix, before);
                self.index.bury(position);
            }
            Record::Tokens(reserved) => {
                self.reserved_tokens = self.reserved_tokens.max(reserved);
            }
        }
        Ok(())
    }
}

//! The keys that are being read from the disk, and the tickets that wait for them.
//!
//! Upstream:   the engine, for a lookup that memory cannot answer.
//! Downstream: `calls` read the keys in batches.
//!
//! Invariants:
//! - F1  All tickets of a key share one read.
//! - F2  What was fetched for a key stays until the last of its tickets was used, and is the result
//!   of the key's last change: a change replaces it. So a read that was overtaken by a change is
//!   not used.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::item::Known;
use crate::range::KeyRange;

/// The disk could not read a key, or its record is of another version.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unreadable;

type Fetched = Result<Known, Unreadable>;

/// The read of one key.
#[derive(Debug, Default)]
struct Fetch {
    /// The tickets that are not used.
    tickets: Vec<u64>,
    /// `None` until it is known.
    fetched: Option<Fetched>,
    /// Whether the read is still to come, so that the key is named as ready later.
    is_awaited: bool,
}

/// The reads of one engine.
#[derive(Debug, Default)]
pub(crate) struct Fetches {
    fetches: BTreeMap<Arc<[u8]>, Fetch>,
    keys: BTreeMap<u64, Arc<[u8]>>,
    /// The keys that no call reads yet.
    wanted: VecDeque<Arc<[u8]>>,
}

impl Fetches {
    /// What was fetched for a key.
    pub(crate) fn find(&self, key: &[u8]) -> Option<&Fetched> {
        self.fetches.get(key)?.fetched.as_ref()
    }

    /// Has a ticket wait for a key.
    pub(crate) fn wait(&mut self, key: &[u8], ticket: u64) {
        let key = match self.fetches.get_key_value(key) {
            Some((key, _)) => Arc::clone(key),
            None => Arc::from(key),
        };
        let fetch = self.fetches.entry(Arc::clone(&key)).or_default();
        debug_assert!(fetch.fetched.is_none(), "what was fetched is used");
        if fetch.tickets.is_empty() && !fetch.is_awaited {
            fetch.is_awaited = true;
            self.wanted.push_back(Arc::clone(&key)); // F1
        }
        fetch.tickets.push(ticket);
        self.keys.insert(ticket, key);
    }

    /// Takes the next keys to be read.
    pub(crate) fn take_wanted(&mut self, keys_max: usize) -> Vec<Arc<[u8]>> {
        let count = self.wanted.len().min(keys_max);
        self.wanted.drain(..count).collect()
    }

    /// The result of a key's last change (F2).
    pub(crate) fn supersede(&mut self, key: &[u8], known: &Known) {
        if let Some(fetch) = self.fetches.get_mut(key) {
            fetch.fetched = Some(Ok(known.clone()));
        }
    }

    /// The same for all keys of a range, which were removed.
    pub(crate) fn supersede_range(&mut self, range: &KeyRange, removed: &Known) {
        for (_, fetch) in self.fetches.range_mut::<[u8], _>(range.bounds()) {
            fetch.fetched = Some(Ok(removed.clone()));
        }
    }

    /// A key was read. Calls `ready` with each ticket that waits for it.
    pub(crate) fn complete(&mut self, key: &[u8], read: Fetched, ready: &mut impl FnMut(u64)) {
        let fetch = self.fetches.get_mut(key).expect("F1: a read has a fetch until it completes");
        fetch.is_awaited = false;
        if fetch.fetched.is_none() {
            fetch.fetched = Some(read); // F2
        }
        fetch.tickets.iter().for_each(|ticket| ready(*ticket));
        self.forget_if_unused(key);
    }

    /// A ticket was used, or was given back. Does nothing if it waits for no key.
    pub(crate) fn release(&mut self, ticket: u64) {
        let Some(key) = self.keys.remove(&ticket) else { return };
        let fetch = self.fetches.get_mut(&key).expect("F2");
        fetch.tickets.retain(|other| *other != ticket);
        self.forget_if_unused(&key);
    }

    fn forget_if_unused(&mut self, key: &[u8]) {
        let is_unused = |fetch: &Fetch| fetch.tickets.is_empty() && !fetch.is_awaited;
        if self.fetches.get(key).is_some_and(is_unused) {
            self.fetches.remove(key);
        }
    }
}

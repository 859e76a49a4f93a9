//! The items that are being read from the log, and the tickets that wait for them.
//!
//! Upstream:   `store`, for an item that is not in memory.
//! Downstream: the log reads the records.
//!
//! Invariants, cited by number where they are asserted:
//! - F1  All tickets of a key share one read.
//! - F2  What was read for a key stays until the last of its tickets was used. It counts only as
//!   long as the index names the place where it was read.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use kachel_io::AlignedBuffer;
use kachel_log::{DurableLog, Position, ReadDone, ReadFault, ReadRecord, UNIT_BYTES};

use crate::record::{self, Record};

/// Tickets from here on are of walks. The shard does not know them.
pub(crate) const OWN_TICKETS: u64 = 1 << 62;

/// How far the read of a key is.
#[derive(Debug)]
enum State {
    /// It waits for its turn, or until the record is written.
    Wanted,
    Reading,
    Done(Fetched),
}

/// The result of a read.
#[derive(Debug)]
pub(crate) enum Fetched {
    /// The record.
    Record(AlignedBuffer, ReadRecord),
    /// The disk cannot read it, or it is damaged.
    Unreadable,
}

impl Fetched {
    /// The record, if it can be read and is one.
    pub(crate) fn record(&self) -> Option<Record<'_>> {
        match self {
            Self::Record(buffer, read) => {
                record::read(read.kind, &buffer[read.payload.clone()]).ok()
            }
            Self::Unreadable => None,
        }
    }
}

/// The read of one key.
#[derive(Debug)]
struct Fetch {
    /// The tickets that are not used.
    tickets: Vec<u64>,
    position: Position,
    state: State,
}

/// The reads of one engine.
#[derive(Debug)]
pub(crate) struct Fetches {
    fetches: BTreeMap<Arc<[u8]>, Fetch>,
    keys: BTreeMap<u64, Arc<[u8]>>,
    wanted: VecDeque<Arc<[u8]>>,
    /// The keys that are being read, by the token of their read.
    reading: BTreeMap<u64, Arc<[u8]>>,
    last_token: u64,
}

impl Fetches {
    /// No reads. Theirs will have the tokens from `first_token` on.
    pub(crate) fn with_tokens_from(first_token: u64) -> Self {
        Self {
            fetches: BTreeMap::new(),
            keys: BTreeMap::new(),
            wanted: VecDeque::new(),
            reading: BTreeMap::new(),
            last_token: first_token,
        }
    }

    /// What was read for a key at a position: the record with this sequence, if it is known.
    pub(crate) fn find(
        &self,
        key: &[u8],
        position: Position,
        sequence: Option<u64>,
    ) -> Option<&Fetched> {
        let fetch = self.fetches.get(key).filter(|fetch| fetch.position == position)?;
        let State::Done(fetched) = &fetch.state else { return None };
        match fetched {
            Fetched::Record(_, read) if sequence.is_some_and(|wanted| wanted != read.sequence) => {
                None // An earlier record was there (F2).
            }
            fetched => Some(fetched),
        }
    }

    /// Whether a record of a key is wanted, is being read, or waits for its ticket to be used.
    pub(crate) fn is_under_way(&self, key: &[u8]) -> bool {
        self.fetches.contains_key(key)
    }

    /// Has a ticket wait for the record of a key.
    pub(crate) fn wait(&mut self, key: &[u8], position: Position, ticket: u64) {
        let key = match self.fetches.get_key_value(key) {
            Some((key, _)) => Arc::clone(key),
            None => Arc::from(key),
        };
        let fetch = self.fetches.entry(Arc::clone(&key)).or_insert_with(|| {
            self.wanted.push_back(Arc::clone(&key));
            Fetch { tickets: Vec::new(), position, state: State::Wanted }
        });
        if let State::Done(_) = fetch.state {
            // The record has moved since it was read (F2).
            fetch.state = State::Wanted;
            self.wanted.push_back(Arc::clone(&key));
        }
        if let State::Wanted = fetch.state {
            fetch.position = position;
        }
        fetch.tickets.push(ticket); // F1
        self.keys.insert(ticket, key);
    }

    /// Begins reads, as many as the log takes. A record that the index does not name any more
    /// (`is_named`) is not read. The tickets that wait for it are added to `gone`.
    pub(crate) fn begin_reads(
        &mut self,
        log: &mut DurableLog,
        is_named: impl Fn(&[u8], Position) -> bool,
        gone: &mut Vec<u64>,
    ) {
        for _ in 0..self.wanted.len() {
            if !log.may_read() {
                return;
            }
            let Some(key) = self.wanted.pop_front() else { return };
            let Some(fetch) = self.fetches.get_mut(&key) else { continue };
            if !matches!(fetch.state, State::Wanted) {
                continue; // It was forgotten, and wanted again.
            }
            let position = fetch.position;
            if !is_named(&key, position) {
                gone.extend(fetch.tickets.iter().filter(|ticket| **ticket < OWN_TICKETS));
                fetch.state = State::Done(Fetched::Unreadable); // It does not count (F2).
                continue;
            }
            if !log.is_written(position) {
                self.wanted.push_back(key);
                continue;
            }
            self.last_token += 1;
            fetch.state = State::Reading;
            self.reading.insert(self.last_token, key);
            let buffer = AlignedBuffer::new(position.buffer_bytes(), UNIT_BYTES);
            log.read(self.last_token, position, buffer);
        }
    }

    /// A read has ended. Calls `ready` with each ticket that waits for it. Returns why the record
    /// cannot be read, if so.
    pub(crate) fn complete(
        &mut self,
        done: ReadDone,
        ready: &mut impl FnMut(u64),
    ) -> Option<kachel_log::Refusal> {
        let ReadDone { token, buffer, outcome } = done;
        let key = self.reading.remove(&token).expect("F1: a read has a key");
        let fetch = self.fetches.get_mut(&key)?;
        let mut refused = None;
        fetch.state = match outcome {
            Ok(record) => State::Done(Fetched::Record(buffer, record)),
            // The index names another place by now (F2).
            Err(ReadFault::Gone) => State::Done(Fetched::Unreadable),
            Err(ReadFault::Refused(refusal)) => {
                refused = Some(refusal);
                State::Done(Fetched::Unreadable)
            }
        };
        let of_operations = fetch.tickets.iter().filter(|ticket| **ticket < OWN_TICKETS);
        of_operations.for_each(|ticket| ready(*ticket));
        self.forget_if_unused(&key);
        refused
    }

    /// A ticket was used, or was given back. Does nothing if it waits for no key.
    pub(crate) fn release(&mut self, ticket: u64) {
        let Some(key) = self.keys.remove(&ticket) else { return };
        let fetch = self.fetches.get_mut(&key).expect("F2");
        fetch.tickets.retain(|other| *other != ticket);
        self.forget_if_unused(&key);
    }

    fn forget_if_unused(&mut self, key: &[u8]) {
        let is_unused =
            |fetch: &Fetch| fetch.tickets.is_empty() && !matches!(fetch.state, State::Reading);
        if self.fetches.get(key).is_some_and(is_unused) {
            self.fetches.remove(key);
        }
    }
}

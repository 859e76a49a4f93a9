//! Walks and scans over all items, in the order of their keys.
//!
//! Upstream:   `engine`, for listings and scans, a bounded step at a time.
//! Downstream: `store` finds items in memory; others are read from the log, some at a time.
//!
//! Records that a walk reads stay out of the cache, so they evict no item that clients read.
//!
//! Invariants, cited by number where they are asserted:
//! - B1  A step shows an item as it is at that moment: it reads the index again.
//! - B2  The records that a step has requested stay in memory until the next step of the same walk,
//!   or until the walk is forgotten or has been idle for [`IDLE_S`].
//! - B3  If replies wait for durability, a walk shows only durable items.
//! - B4  Walks hold at most [`HELD_MAX`] records, and one each beyond. At most [`WALKS_MAX`] walks
//!   are remembered. A further one displaces the one that was stepped least recently, which fails
//!   if it is stepped once more.

use std::collections::{BTreeMap, BTreeSet};

use kachel_engine::{
    Cursor, INLINE_VALUE_BYTES_MAX, ItemView, KeyHasher, Needed, Now, Primitives as _,
};

use kachel_stdx::is_before;

use crate::fetches::OWN_TICKETS;
use crate::index::Entry;
use crate::record::{ItemHead, Record};
use crate::store::Store;

/// The items that are looked up together.
const PAGE: usize = 32;
/// The most records that a step asks for.
const READ_AHEAD: usize = 16;
/// The most records that walks hold together, beside one for each of them.
const HELD_MAX: usize = 16 * READ_AHEAD;
/// The most walks whose place is remembered. Nobody tells when a walk is left, but a client has one
/// listing at a time, so with fewer clients none is displaced that goes on. A place takes the
/// memory of a key and about 100 bytes.
const WALKS_MAX: usize = 1 << 14;

/// How a step has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Browsed {
    /// There is no item behind the last one.
    End,
    /// There may be more.
    More,
    /// The next item must be read.
    Read,
    /// The next item is not durable yet.
    NotDurable(kachel_stdx::Sequence),
}

/// The result of showing one item.
#[derive(Clone, Copy, Debug)]
enum Shown {
    /// It was shown, or is dead. `more`: whether more are wanted.
    Item {
        more: bool,
    },
    NotDurable(kachel_stdx::Sequence),
    NotRead,
}

/// An item that is not in the cache.
#[derive(Debug)]
struct ShownItem<'s> {
    entry: &'s Entry,
    /// `None` if its record cannot be read.
    head: Option<ItemHead>,
    value: Option<&'s [u8]>,
    value_bytes: usize,
    expiry: u32,
    stored: u32,
    memory_bytes: usize,
}

impl<'s> ItemView<'s> for ShownItem<'s> {
    fn expiry(&self) -> u32 {
        self.expiry
    }

    fn client_flags(&self) -> u32 {
        self.head.map_or(0, |head| head.client_flags)
    }

    fn cas(&self) -> u64 {
        self.head.map_or(0, |head| head.cas)
    }

    fn value_bytes(&self) -> usize {
        self.value_bytes
    }

    fn small_value(&self) -> Option<&'s [u8]> {
        self.value.filter(|value| value.len() <= INLINE_VALUE_BYTES_MAX)
    }

    fn is_stale(&self) -> bool {
        self.entry.marks.stale()
    }

    fn is_win_sent(&self) -> bool {
        self.entry.marks.win_sent()
    }

    fn is_remnant(&self) -> bool {
        self.entry.marks.remnant()
    }

    fn protocol_mark(&self) -> bool {
        self.entry.marks.protocol()
    }

    fn is_fetched(&self) -> bool {
        false
    }

    fn last_access(&self) -> u32 {
        self.stored
    }

    fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }
}

impl Store {
    /// Shows the live items behind `key`, until `show` returns `false`, or until `items_max` items
    /// were examined. Makes `key` the last key that was examined, and adds the number of items to
    /// `examined`. If items must be read, asks for at most `reads_max` records, and adds the
    /// tickets of the reads to `held`: `ticket` for the next item, and others of walks.
    pub(crate) fn browse(
        &mut self,
        key: &mut Vec<u8>,
        (hasher, now, items_max): (&KeyHasher, &Now, usize),
        (ticket, reads_max, held): (u64, usize, &mut Vec<u64>),
        examined: &mut usize,
        mut show: impl FnMut(&[u8], &dyn ItemView<'_>) -> bool,
    ) -> Browsed {
        while *examined < items_max {
            let most = PAGE.min(items_max - *examined);
            let page = self.index.behind(key).take(most); // B1
            let page: Vec<_> = page.map(|(key, entry)| (key.to_vec(), entry.clone())).collect();
            let is_last = page.len() < most;
            for (found, entry) in page {
                match self.browse_one(&found, &entry, (hasher, now), &mut show) {
                    Shown::Item { more } => {
                        *examined += 1;
                        *key = found;
                        if !more {
                            return Browsed::More;
                        }
                    }
                    Shown::NotDurable(sequence) => return Browsed::NotDurable(sequence),
                    Shown::NotRead => {
                        self.read_ahead(key, now, (ticket, reads_max), held);
                        return Browsed::Read;
                    }
                }
            }
            if is_last {
                return Browsed::End;
            }
        }
        Browsed::More
    }

    /// Shows an item, unless it is dead.
    fn browse_one(
        &mut self,
        key: &[u8],
        entry: &Entry,
        (hasher, now): (&KeyHasher, &Now),
        show: &mut impl FnMut(&[u8], &dyn ItemView<'_>) -> bool,
    ) -> Shown {
        if self.is_dead(key, entry, now) || entry.marks.remnant() {
            return Shown::Item { more: true };
        }
        let hashed = hasher.key(key);
        if let Some(sequence) = self.not_durable(hashed.secret_hash()) {
            return match self.changes.durable().is_lost(sequence) {
                true => Shown::Item { more: true }, // B3
                false => Shown::NotDurable(sequence),
            };
        }
        if let Ok(Some(at)) = self.cache.find(&hashed, Needed::Place, now) {
            return Shown::Item { more: show(key, &self.cache.item(at)) };
        }
        self.show_from_log(key, entry, show).map_or(Shown::NotRead, |more| Shown::Item { more })
    }

    /// Whether the item of an entry has expired or was flushed.
    fn is_dead(&self, key: &[u8], entry: &Entry, now: &Now) -> bool {
        self.has_expired(entry.expiry_unix_s, now)
            || is_before(entry.epoch, self.common.epoch(now))
            || self.prefixes.has_flushed(key, entry.sequence)
    }

    /// Shows an item from its record. `None` if the record has not been read.
    fn show_from_log(
        &self,
        key: &[u8],
        entry: &Entry,
        show: &mut impl FnMut(&[u8], &dyn ItemView<'_>) -> bool,
    ) -> Option<bool> {
        let fetched = self.fetches.find(key, entry.position, Some(entry.sequence))?;
        let (head, value) = match fetched.record() {
            Some(Record::Item { head, value, .. }) => (Some(head), Some(value)),
            Some(Record::LargeItem { head, .. }) => (Some(head), None),
            _ => (None, None),
        };
        let in_parts = entry.parts.as_ref().map(|parts| parts.value.bytes as usize);
        let record_bytes = entry.position.record_bytes() as usize;
        let seconds = self.common.seconds();
        let item = ShownItem {
            entry,
            head,
            value,
            value_bytes: in_parts.or(value.map(<[u8]>::len)).unwrap_or(0),
            expiry: seconds.of_unix(entry.expiry_unix_s),
            stored: seconds.of_unix(head.map_or(0, |head| head.stored_unix_s)),
            memory_bytes: record_bytes + in_parts.unwrap_or(0),
        };
        Some(show(key, &item))
    }

    /// Asks for the records of the next items that are not in memory.
    fn read_ahead(
        &mut self,
        key: &[u8],
        now: &Now,
        (ticket, reads_max): (u64, usize),
        held: &mut Vec<u64>,
    ) {
        let ahead = self.index.behind(key).take(2 * READ_AHEAD);
        let wanted: Vec<_> = ahead
            .filter(|(key, entry)| {
                !self.is_dead(key, entry, now)
                    && self.fetches.find(key, entry.position, Some(entry.sequence)).is_none()
            })
            .take(reads_max)
            .map(|(key, entry)| (key.to_vec(), entry.position))
            .collect();
        let mut next = Some(ticket);
        for (key, position) in wanted {
            let ticket = next.take().unwrap_or_else(|| OWN_TICKETS + self.next_ticket());
            self.fetches.wait(&key, position, ticket);
            held.push(ticket); // B2
        }
    }

    /// Gives tickets of reads back.
    pub(crate) fn release(&mut self, held: Vec<u64>) {
        held.into_iter().for_each(|ticket| self.fetches.release(ticket));
    }
}

/// The seconds after which a walk that does not go on gives back what it has read.
const IDLE_S: u32 = 10;

/// The place of a walk, between two of its steps.
#[derive(Debug)]
struct Place {
    /// The second of its last step.
    touched: u32,
    key: Vec<u8>,
    held: Vec<u64>,
}

/// The walks of an engine that are under way.
#[derive(Debug, Default)]
pub(crate) struct Walks {
    /// By the number in their cursors. Each step gives a walk the next number.
    places: BTreeMap<u64, Place>,
    /// The numbers of those that hold tickets.
    holders: BTreeSet<u64>,
    /// The tickets that they hold.
    held: usize,
    last_number: u64,
}

impl Walks {
    /// Takes the place of a walk: its key, and the tickets that it holds. `None` if it was
    /// forgotten. A walk that begins is before the first key.
    pub(crate) fn take(&mut self, cursor: Cursor) -> Option<(Vec<u8>, Vec<u64>)> {
        if cursor == Cursor::default() {
            return Some((Vec::new(), Vec::new()));
        }
        let Place { key, held, .. } = self.places.remove(&cursor.to_u64())?;
        self.holders.remove(&cursor.to_u64());
        self.held -= held.len();
        Some((key, held))
    }

    /// Takes the tickets that a walk or a scan holds. None, if it was forgotten.
    pub(crate) fn take_held(&mut self, cursor: Cursor) -> Vec<u64> {
        self.take(cursor).map_or_else(Vec::new, |(_, held)| held)
    }

    /// Remembers the place of a walk. Returns its cursor, and the tickets of a walk that was
    /// forgotten (B4).
    pub(crate) fn put(&mut self, key: Vec<u8>, held: Vec<u64>, touched: u32) -> (Cursor, Vec<u64>) {
        self.last_number += 1;
        let number = self.last_number;
        if !held.is_empty() {
            self.holders.insert(number);
            self.held += held.len();
        }
        self.places.insert(number, Place { touched, key, held });
        let oldest = self.places.first_key_value().map_or(number, |(&oldest, _)| oldest);
        let is_over = self.places.len() > WALKS_MAX;
        let forgotten = if is_over { self.take(Cursor::from_u64(oldest)) } else { None };
        (Cursor::from_u64(number), forgotten.map_or_else(Vec::new, |(_, held)| held))
    }

    /// The records that the next step may ask for (B4).
    pub(crate) fn reads_max(&self) -> usize {
        HELD_MAX.saturating_sub(self.held).clamp(1, READ_AHEAD)
    }

    /// Takes the tickets of walks that do not go on.
    pub(crate) fn take_idle(&mut self, second: u32) -> Vec<u64> {
        let mut idle = Vec::new();
        while let Some(&number) = self.holders.first() {
            let place = self.places.get_mut(&number).expect("a holder has a place");
            if place.touched.saturating_add(IDLE_S) >= second {
                break;
            }
            self.holders.remove(&number);
            self.held -= place.held.len();
            idle.append(&mut place.held);
        }
        idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_is_forgotten_only_for_too_many_others() {
        let mut walks = Walks::default();
        let (first, _) = walks.put(b"first".to_vec(), vec![7], 1);
        for number in 2..WALKS_MAX {
            assert!(walks.put(Vec::new(), vec![], 1).1.is_empty(), "{number}");
        }
        assert_eq!(walks.take(first), Some((b"first".to_vec(), vec![7])));
        let (left, _) = walks.put(b"first".to_vec(), vec![8], 1);
        for _ in 1..WALKS_MAX {
            walks.put(Vec::new(), vec![], 1);
        }
        assert_eq!(walks.put(Vec::new(), vec![], 1).1, [8], "B4");
        assert_eq!((walks.take(left), walks.held, walks.places.len()), (None, 0, WALKS_MAX));
    }

    #[test]
    fn records_of_walks_are_few_and_those_of_idle_ones_are_given_back() {
        let mut walks = Walks::default();
        let (idle, _) = walks.put(b"idle".to_vec(), vec![1], 1);
        for _ in 0..HELD_MAX / READ_AHEAD {
            walks.put(Vec::new(), vec![2; walks.reads_max()], 2);
        }
        assert_eq!((walks.held, walks.reads_max()), (HELD_MAX, 1), "B4");
        assert!(walks.take_idle(1 + IDLE_S).is_empty());
        assert_eq!(walks.take_idle(2 + IDLE_S), [1]);
        assert_eq!(walks.take(idle), Some((b"idle".to_vec(), vec![])));
        assert_eq!(walks.take_idle(3 + IDLE_S).len() + 1, HELD_MAX);
        assert_eq!((walks.held, walks.reads_max()), (0, READ_AHEAD));
    }
}

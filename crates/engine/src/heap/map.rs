//! An ordered map of items on the heap. An engine over it adds only the primitives and its files.
//!
//! Upstream:   an engine, which implements the primitives over it.
//! Downstream: `HeapItem` and `HeapCommon`, which charge all memory to the budget.
//!
//! ```text
//! order:  key -> number     in the order of the keys: lookups and scans
//! items:  number -> item    in the order in which they were stored: walks and upkeep
//! ```
//!
//! Invariants:
//! - M1  `order` and `items` have the same items.

use std::collections::BTreeMap;
use std::ops::Bound;

use kachel_stdx::{NotedPrefixes, is_before};

use super::{HeapCommon, HeapItem, HeapUpload, StoredIn};
use crate::change::{Put, Refused};
use crate::item::ItemView;
use crate::key::Key;
use crate::opening::Opening;
use crate::operation::Block;
use crate::stats::EngineStats;
use crate::time::Now;
use crate::verb::NO_TOKEN_MAX;
use crate::walk::{Cursor, ScanCursor, WalkStep};

/// Bytes that an item is charged beside its key and its value: the item itself, and its part of the
/// nodes of both maps. A guess.
const ITEM_BYTES: u64 = 256;
/// The most items that are examined in one step of upkeep.
const SWEPT_ITEMS_MAX: usize = 64;
/// An item that is examined counts as this many bytes of work: its lines and those of its node.
const EXAMINED_BYTES: u64 = 256;

/// An item, its key, and the engine's data about it.
#[derive(Debug)]
pub struct HeapEntry<T> {
    key: Box<[u8]>,
    /// The item.
    pub item: HeapItem,
    /// Data of the engine about the item, such as its place in a file.
    pub beside: T,
}

impl<T> HeapEntry<T> {
    /// The key.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    fn bytes(&self) -> u64 {
        self.item.own_bytes() + (&self.item).value_bytes() as u64
    }
}

/// The items of one engine. Each has a number, which it keeps until it is replaced.
#[derive(Debug)]
pub struct HeapMap<T> {
    common: HeapCommon,
    order: BTreeMap<Box<[u8]>, u64>,
    items: BTreeMap<u64, HeapEntry<T>>,
    last: u64,
    last_token: u64,
    token_step: u64,
    has_leased: bool,
    /// The number from which upkeep goes on in this sweep.
    sweep: Option<u64>,
    /// When the last sweep has begun: the second, and the last flushes of both kinds.
    swept: (u32, StoredIn),
    stats: EngineStats,
    work_bytes: u64,
    /// The number of the engine.
    engine: u16,
    /// When the last operation has looked for its item (`heap`, I2).
    noted: StoredIn,
    /// The flushed prefixes, as they were noted then.
    prefixes: NotedPrefixes,
}

impl<T: Default> HeapMap<T> {
    /// The smallest budget with which each of `engines` maps has room for an item.
    #[must_use]
    pub fn budget_bytes_min(engines: u16) -> u64 {
        u64::from(engines) * 2 * ITEM_BYTES
    }

    /// An empty map for each engine.
    pub fn open(opening: &Opening) -> impl Iterator<Item = Self> {
        let (common, engines) = (HeapCommon::new(opening), u64::from(opening.engines));
        (0..engines).map(move |number| Self {
            common: common.clone(),
            order: BTreeMap::new(),
            items: BTreeMap::new(),
            last: 0,
            // The tokens of map n are congruent to n, so all tokens of the process differ.
            last_token: NO_TOKEN_MAX * engines + number,
            token_step: engines,
            has_leased: false,
            sweep: None,
            swept: (0, StoredIn::default()),
            stats: EngineStats::default(),
            work_bytes: 0,
            engine: number as u16,
            noted: StoredIn::default(),
            prefixes: NotedPrefixes::default(),
        })
    }

    /// The part that all engines of the process share.
    #[must_use]
    pub const fn common(&self) -> &HeapCommon {
        &self.common
    }

    /// Whether a client has ever asked for a lease.
    #[must_use]
    pub const fn has_leased(&self) -> bool {
        self.has_leased
    }

    /// The work so far, in bytes.
    #[must_use]
    pub const fn work_bytes(&self) -> u64 {
        self.work_bytes
    }

    /// The numbers for `stats`.
    #[must_use]
    pub fn stats(&self) -> EngineStats {
        let items = self.items.len() as u64;
        EngineStats { index_items: items, items, ..self.stats }
    }

    /// Notes all flushes, with which an operation begins (`heap`, I2).
    ///
    /// The word is loaded before the list, and again after the list was noted: an operation that
    /// sees one flush sees each flush before that.
    fn note_flushes(&mut self, now: &Now) {
        let list = &self.common.prefixes;
        let mut epoch = self.common.epoch(now);
        while !list.is_noted(&self.prefixes) {
            list.note(&mut self.prefixes);
            epoch = self.common.epoch(now);
        }
        self.noted = StoredIn { epoch, generation: self.prefixes.newest() };
    }

    /// Whether an item has neither expired nor been flushed before the flushes were noted.
    fn is_live(&self, entry: &HeapEntry<T>, now: &Now) -> bool {
        let StoredIn { epoch, generation } = entry.item.stored_in;
        if entry.item.has_expired(now) || is_before(epoch, self.noted.epoch) {
            return false;
        }
        let list = &self.common.prefixes;
        !self.prefixes.is_after(generation)
            || !list.has_flushed(&self.prefixes, &entry.key, generation)
    }

    /// Whether a walk shows an item: it is live, and no remnant.
    fn is_shown(&self, entry: &HeapEntry<T>, now: &Now) -> bool {
        !entry.item.put.remnant && self.is_live(entry, now)
    }

    /// The number of the live item under `key`, with which an operation begins. A dead item is
    /// dropped.
    pub fn find(&mut self, key: &Key<'_>, now: &Now) -> Option<u64> {
        self.note_flushes(now);
        let number = *self.order.get(key.bytes())?;
        let has_expired = self.items[&number].item.has_expired(now);
        if self.drop_dead(number, now) {
            self.stats.found_expired += u64::from(has_expired);
            self.stats.found_flushed += u64::from(!has_expired);
            return None;
        }
        Some(number)
    }

    /// The item of this number.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn entry(&self, number: u64) -> &HeapEntry<T> {
        &self.items[&number]
    }

    /// The item of this number, if it is still there.
    pub fn entry_mut(&mut self, number: u64) -> Option<&mut HeapEntry<T>> {
        self.items.get_mut(&number)
    }

    /// Gives an item its value back, which was read from a disk, if the item is still there and
    /// does not have it.
    pub fn warm(&mut self, number: u64, value: &[u8]) {
        if let Some(entry) = self.items.get_mut(&number).filter(|entry| !entry.item.is_warm()) {
            entry.item.warm(value, &self.common);
        }
    }

    /// Takes an item out.
    ///
    /// # Panics
    /// If there is none.
    pub fn take(&mut self, number: u64) -> HeapEntry<T> {
        let entry = self.items.remove(&number).expect("it was found");
        self.order.remove(&entry.key).expect("M1");
        self.stats.live_bytes -= entry.bytes();
        entry
    }

    /// Drops an item if it is dead. Returns whether it was.
    fn drop_dead(&mut self, number: u64, now: &Now) -> bool {
        if self.is_live(&self.items[&number], now) {
            return false;
        }
        let entry = self.take(number);
        self.stats.reclaimed += 1;
        self.stats.expired_unfetched += u64::from(!(&entry.item).is_fetched());
        true
    }

    /// Stores an item in place of the one of number `found`, which the last [`Self::find`] has
    /// returned. Returns its number, and the one that
    /// it has replaced.
    ///
    /// Errors: the budget has no room for it.
    pub fn put(
        &mut self,
        key: &Key<'_>,
        found: Option<u64>,
        put: &Put,
        block: &mut Block<'_, HeapUpload>,
        now: &Now,
    ) -> Result<(u64, Option<HeapEntry<T>>), Refused> {
        self.last_token += self.token_step;
        let has_token = self.common.options.cas || put.remnant;
        let cas = if has_token { put.cas.unwrap_or(self.last_token) } else { 0 };
        let old = found.map(|number| &self.entry(number).item);
        let own_bytes = ITEM_BYTES + 2 * key.bytes().len() as u64;
        let item =
            HeapItem::new(put, old, block, (cas, own_bytes), &self.common, (self.noted, now));
        let Ok(item) = item else {
            self.stats.refused += 1;
            return Err(Refused::NoRoom);
        };
        let replaced = found.map(|number| self.take(number));
        let entry = HeapEntry { key: key.bytes().into(), item, beside: T::default() };
        self.last += 1;
        self.has_leased |= put.remnant;
        self.stats.live_bytes += entry.bytes();
        self.work_bytes += entry.bytes();
        self.order.insert(entry.key.clone(), self.last);
        self.items.insert(self.last, entry);
        Ok((self.last, replaced))
    }

    /// Drops dead items, in one sweep for each second and each flush. Returns how many items were
    /// examined.
    pub fn maintain(&mut self, now: &Now) -> usize {
        self.note_flushes(now);
        let moment = (now.second, self.noted);
        if self.sweep.is_none() && self.swept != moment {
            (self.sweep, self.swept) = (Some(0), moment);
        }
        let Some(from) = self.sweep else {
            self.end_flushes();
            return 0;
        };
        let numbers = self.items.range(from..).map(|(number, _)| *number);
        let numbers: Vec<u64> = numbers.take(SWEPT_ITEMS_MAX).collect();
        self.sweep = numbers.get(SWEPT_ITEMS_MAX - 1).map(|last| last + 1);
        self.work_bytes += numbers.len() as u64 * EXAMINED_BYTES;
        for number in &numbers {
            // What lives on was looked at with these flushes, and is not compared again (I3).
            if !self.drop_dead(*number, now) {
                let entry = self.items.get_mut(number).expect("it lives");
                entry.item.stored_in.generation = self.noted.generation;
            }
        }
        numbers.len()
    }

    /// Says that the last sweep has removed what was flushed with a prefix before it, and ends the
    /// flushes with which all engines are done.
    fn end_flushes(&self) {
        let HeapCommon { prefixes, cores, .. } = &self.common;
        if prefixes.is_any_live() {
            prefixes.note_done(self.engine, self.swept.1.generation);
            prefixes.retire(|| cores.stamp(), |stamp| cores.is_past(stamp));
        }
    }

    /// A step of a walk ([`crate::Engine::walk`]), in the order in which items were stored.
    pub fn walk(
        &mut self,
        cursor: &mut Cursor,
        now: &Now,
        items_max: usize,
        mut show: impl FnMut(&[u8], &dyn ItemView<'_>) -> bool,
    ) -> WalkStep {
        self.note_flushes(now);
        let (mut step, mut is_ended) = (WalkStep::in_memory(0, false), false);
        for (number, entry) in self.items.range(cursor.to_u64()..) {
            if is_ended || step.items == items_max {
                step = WalkStep::in_memory(step.items, true);
                break;
            }
            step.items += 1;
            *cursor = Cursor::from_u64(number + 1);
            is_ended = self.is_shown(entry, now) && !show(&entry.key, &&entry.item);
        }
        self.work_bytes += step.items as u64 * EXAMINED_BYTES;
        step
    }

    /// A step of a scan ([`crate::Extensions::scan`]), in the order of the keys. `show` gets the
    /// number of each item, and returns `None` if the step must end before this item, otherwise
    /// whether it may go on.
    pub fn scan(
        &mut self,
        cursor: &mut ScanCursor,
        now: &Now,
        items_max: usize,
        mut show: impl FnMut(u64, &HeapEntry<T>) -> Option<bool>,
    ) -> WalkStep {
        self.note_flushes(now);
        let behind = cursor.key().to_vec();
        let mut rest =
            self.order.range::<[u8], _>((Bound::Excluded(&behind[..]), Bound::Unbounded));
        let mut items = 0;
        while items < items_max {
            let Some((key, &number)) = rest.next() else {
                return WalkStep::in_memory(items, false);
            };
            let entry = &self.items[&number];
            let goes_on = if self.is_shown(entry, now) { show(number, entry) } else { Some(true) };
            let Some(goes_on) = goes_on else { break };
            items += 1;
            self.work_bytes += EXAMINED_BYTES;
            cursor.pass(key);
            if !goes_on {
                break;
            }
        }
        WalkStep::in_memory(items, true)
    }
}

//! The plain engine: an ordered map, and the shortest engine that a server runs on. It shows how an
//! engine is written (`docs/embedding.md`), and that nothing above the contract knows the cache.
//!
//! Upstream:   `shard`, over a world of this crate; the simulation.
//! Downstream: `engine`, for the meaning of each verb and for items on the heap.
//!
//! ```text
//! order:  key -> number     in the order of the keys: lookups and scans
//! items:  number -> item    in the order in which they were stored: walks and upkeep
//! ```
//!
//! It evicts nothing: a store that finds the budget spent is refused.
//!
//! Invariants:
//! - I1  `order` and `items` have the same items.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::ops::Bound;
use std::sync::Arc;

use kachel_engine::{
    Answer, Block, Common as _, Cursor, Durability, DurableWord, Engine, EngineOptions,
    EngineStats, Extensions, HeapCommon, HeapItem, HeapUpload, HeapValue, ItemView, Key, Mark,
    NO_TOKEN_MAX, Needed, NoReader, NotYet, Now, OpenEngines, Opening, Operation, Primitives, Put,
    Refused, ScanCursor, ScanStep, Ticket, WalkStep, apply,
};

/// Bytes that an item is charged beside its key and its value: the item itself, and its part of the
/// nodes of both maps. A guess.
const ITEM_BYTES: u64 = 256;
/// The most items that are examined in one step of upkeep.
const SWEPT_ITEMS_MAX: usize = 64;
/// An item that is examined counts as this many bytes of work: its lines and those of its node.
const EXAMINED_BYTES: u64 = 256;

/// Opens plain engines.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlainOpener;

impl OpenEngines for PlainOpener {
    type Engine = Plain;

    fn budget_bytes_min(engines: u16) -> u64 {
        u64::from(engines) * 2 * ITEM_BYTES
    }

    fn open(&self, opening: &Opening) -> io::Result<Vec<Plain>> {
        let common = HeapCommon::new(opening);
        let engines = u64::from(opening.engines);
        // The tokens of engine n are congruent to n, so all tokens of the process differ.
        let tokens = |number| (NO_TOKEN_MAX * engines + number, engines);
        Ok((0..engines).map(|number| Plain::new(common.clone(), tokens(number))).collect())
    }
}

/// An item and its key.
type Stored = (Box<[u8]>, HeapItem);

/// An engine that is an ordered map. See the head of this file.
#[derive(Debug)]
pub struct Plain {
    common: HeapCommon,
    order: BTreeMap<Box<[u8]>, u64>,
    items: BTreeMap<u64, Stored>,
    /// The number of the item that was stored last.
    last: u64,
    last_token: u64,
    token_step: u64,
    has_leased: bool,
    /// The number from which upkeep goes on in this sweep, and the second and the epoch of it.
    sweep: Option<u64>,
    swept: (u32, u32),
    stats: EngineStats,
    work_bytes: u64,
    durable: Arc<DurableWord>,
}

impl Plain {
    fn new(common: HeapCommon, (last_token, token_step): (u64, u64)) -> Self {
        Self {
            common,
            order: BTreeMap::new(),
            items: BTreeMap::new(),
            last: 0,
            last_token,
            token_step,
            has_leased: false,
            sweep: None,
            swept: (0, 0),
            stats: EngineStats::default(),
            work_bytes: 0,
            durable: Arc::default(),
        }
    }

    fn take(&mut self, number: u64) -> HeapItem {
        let (key, item) = self.items.remove(&number).expect("I1: it was found");
        self.order.remove(&key).expect("I1: both have it");
        self.stats.live_bytes -= (&item).memory_bytes() as u64;
        item
    }

    /// Drops the item if it is dead. Returns whether it was.
    fn drop_dead(&mut self, number: u64, now: &Now) -> bool {
        if self.items[&number].1.is_live(&self.common, now) {
            return false;
        }
        let item = self.take(number);
        self.stats.reclaimed += 1;
        self.stats.expired_unfetched += u64::from(!(&item).is_fetched());
        true
    }
}

impl Primitives for Plain {
    type At = u64;
    type Item<'e> = &'e HeapItem;
    type Upload = HeapUpload;
    type Pinned = HeapValue;

    fn options(&self) -> &EngineOptions {
        self.common.options()
    }

    fn find(&mut self, key: &Key<'_>, _needed: Needed, now: &Now) -> Result<Option<u64>, NotYet> {
        let Some(&number) = self.order.get(key.bytes()) else { return Ok(None) };
        let has_expired = self.items[&number].1.has_expired(now);
        if !self.drop_dead(number, now) {
            return Ok(Some(number));
        }
        self.stats.found_expired += u64::from(has_expired);
        self.stats.found_flushed += u64::from(!has_expired);
        Ok(None)
    }

    fn item(&self, at: u64) -> &HeapItem {
        &self.items[&at].1
    }

    fn remove(&mut self, _key: &Key<'_>, at: u64) {
        self.take(at);
    }

    fn mark(&mut self, at: u64, mark: Mark) {
        self.items.get_mut(&at).expect("I1: it was found").1.mark(mark);
    }

    fn put(
        &mut self,
        key: &Key<'_>,
        found: Option<u64>,
        put: &Put,
        block: &mut Block<'_, HeapUpload>,
        now: &Now,
    ) -> Result<u64, Refused> {
        self.last_token += self.token_step;
        let has_token = self.common.options().cas || put.remnant;
        let cas = if has_token { put.cas.unwrap_or(self.last_token) } else { 0 };
        let old = found.map(|at| self.item(at));
        let own_bytes = ITEM_BYTES + 2 * key.bytes().len() as u64;
        let item = HeapItem::new(put, old, block, (cas, own_bytes), &self.common, now);
        let Ok(item) = item else {
            self.stats.refused += 1;
            return Err(Refused::NoRoom);
        };
        found.into_iter().for_each(|at| drop(self.take(at)));
        self.last += 1;
        self.has_leased |= put.remnant;
        self.stats.live_bytes += (&item).memory_bytes() as u64;
        self.work_bytes += (&item).memory_bytes() as u64;
        self.order.insert(key.bytes().into(), self.last);
        self.items.insert(self.last, (key.bytes().into(), item));
        Ok(self.last)
    }

    fn note_access(&self, at: u64, now: &Now) {
        self.item(at).note_access(now);
    }

    fn has_leased(&self) -> bool {
        self.has_leased
    }

    fn pin(&self, at: u64) -> HeapValue {
        self.item(at).value().clone()
    }
}

impl Engine for Plain {
    type Upload = HeapUpload;
    type Pinned = HeapValue;
    type Submission = Infallible;
    type Completion = Infallible;
    type Reader = NoReader<HeapValue>;
    type Common = HeapCommon;

    fn common(&self) -> HeapCommon {
        self.common.clone()
    }

    fn reader(&self) -> NoReader<HeapValue> {
        NoReader::default()
    }

    fn execute<'e>(
        &'e mut self,
        operation: &Operation<'_>,
        block: &mut Block<'_, HeapUpload>,
        _ticket: Option<Ticket>,
        now: &Now,
    ) -> Answer<'e, HeapValue> {
        match apply(self, operation, block, now) {
            Ok(outcome) => Answer::Done(outcome, Durability::Now),
            Err(NotYet) => unreachable!("no room is on its way"),
        }
    }

    fn durable(&self) -> &Arc<DurableWord> {
        &self.durable
    }

    /// Drops dead items, in one sweep for each second and each flush.
    fn maintain(&mut self, now: &Now) -> usize {
        let moment = (now.second, self.common.epoch(now));
        if self.sweep.is_none() && self.swept != moment {
            (self.sweep, self.swept) = (Some(0), moment);
        }
        let Some(from) = self.sweep else { return 0 };
        let numbers = self.items.range(from..).map(|(number, _)| *number);
        let numbers: Vec<u64> = numbers.take(SWEPT_ITEMS_MAX).collect();
        self.sweep = numbers.get(SWEPT_ITEMS_MAX - 1).map(|last| last + 1);
        self.work_bytes += numbers.len() as u64 * EXAMINED_BYTES;
        numbers.iter().filter(|number| self.drop_dead(**number, now)).count();
        numbers.len()
    }

    fn walk(
        &mut self,
        cursor: &mut Cursor,
        now: &Now,
        items_max: usize,
        mut show: impl FnMut(&[u8], &dyn ItemView<'_>) -> bool,
    ) -> WalkStep {
        let mut step = WalkStep { items: 0, more: false };
        for (number, (key, item)) in self.items.range(cursor.to_u64()..) {
            if step.more || step.items == items_max {
                step.more = true;
                break;
            }
            step.items += 1;
            *cursor = Cursor::from_u64(number + 1);
            let is_shown = item.is_live(&self.common, now) && !item.is_remnant();
            step.more = is_shown && !show(key, &item);
        }
        self.work_bytes += step.items as u64 * EXAMINED_BYTES;
        step
    }

    fn work_bytes(&self) -> u64 {
        self.work_bytes
    }

    fn stats(&self) -> EngineStats {
        let items = self.items.len() as u64;
        EngineStats { index_items: items, items, ..self.stats }
    }
}

impl Extensions for Plain {
    fn scan(
        &mut self,
        cursor: &mut ScanCursor,
        _ticket: Option<Ticket>,
        now: &Now,
        items_max: usize,
        mut show: impl FnMut(&[u8], &dyn ItemView<'_>) -> bool,
    ) -> ScanStep {
        let behind = (Bound::Excluded(cursor.key()), Bound::Unbounded);
        let mut last = None;
        for (key, number) in self.order.range::<[u8], _>(behind).take(items_max) {
            last = Some(key);
            self.work_bytes += EXAMINED_BYTES;
            let item = &self.items[number].1;
            let is_shown = item.is_live(&self.common, now) && !item.is_remnant();
            if is_shown && !show(key, &item) {
                break;
            }
        }
        let Some(last) = last else { return ScanStep::End };
        *cursor = ScanCursor::after(last);
        ScanStep::More
    }
}

#[cfg(test)]
mod tests {
    use kachel_engine::{ClockOrigin, KeyHasher, LeaseOptions, Seeds, Ttl, Verdict};
    use kachel_host::Budget;

    use super::*;

    fn now() -> Now {
        ClockOrigin::new(0, 1_800_000_000).start()
    }

    /// One engine with a budget of 1 MiB.
    fn plain() -> (Plain, KeyHasher, Arc<Budget>) {
        let (hasher, budget) =
            (KeyHasher::new(Seeds { hash_keys: [1, 2] }, 1), Budget::new(1 << 20));
        let budget = Arc::new(budget);
        let opening = Opening {
            engines: 1,
            hasher,
            options: EngineOptions {
                evict: false,
                cas: true,
                item_bytes_max: 1 << 20,
                leases: LeaseOptions::DEFAULT,
            },
            budget: Arc::clone(&budget),
            budget_bytes_max: 1 << 20,
        };
        let plain = PlainOpener.open(&opening).expect("memory").pop().expect("one engine");
        (plain, hasher, budget)
    }

    fn set(plain: &mut Plain, key: Key<'_>, value: &[u8], ttl: Ttl) -> Verdict {
        let operation = Operation::set(key, value.len(), ttl);
        let answer = plain.execute(&operation, &mut Block::Bytes(value), None, &now());
        let Answer::Done(outcome, _) = answer else { panic!("it waits for nothing") };
        outcome.verdict
    }

    /// The keys that a step of at most three items shows.
    fn step(plain: &mut Plain, cursor: &mut ScanCursor, now: &Now) -> Vec<String> {
        let mut shown = Vec::new();
        let step = plain.scan(cursor, None, now, 3, |key, _| {
            shown.push(key.escape_ascii().to_string());
            true
        });
        assert!(step == ScanStep::More || shown.is_empty() && step == ScanStep::End);
        shown
    }

    #[test]
    fn a_scan_shows_each_item_that_lives_throughout_once_and_in_order() {
        let (mut plain, hasher, _) = plain();
        for key in ["d", "b", "f", "a", "c", "e"] {
            set(&mut plain, hasher.key(key.as_bytes()), b"value", Ttl(0));
        }
        let mut cursor = ScanCursor::START;
        assert_eq!(step(&mut plain, &mut cursor, &now()), ["a", "b", "c"]);
        // What is behind the cursor is not shown again; what is before it, is.
        set(&mut plain, hasher.key(b"b"), b"other", Ttl(0));
        set(&mut plain, hasher.key(b"ca"), b"value", Ttl(0));
        let delete = Operation::delete(hasher.key(b"c"));
        drop(plain.execute(&delete, &mut Block::None, None, &now()));
        set(&mut plain, hasher.key(b"dead"), b"value", Ttl(1));
        let later = now().later_by(1);
        assert_eq!(step(&mut plain, &mut cursor, &later), ["ca", "d"], "and a dead one");
        assert_eq!(step(&mut plain, &mut cursor, &later), ["e", "f"]);
        assert_eq!(step(&mut plain, &mut cursor, &later), [""; 0]);
    }

    #[test]
    fn all_that_is_stored_is_charged_and_refunded_when_its_last_handle_is_gone() {
        let (mut plain, hasher, budget) = plain();
        let mut stored = 0;
        while set(&mut plain, hasher.key(format!("{stored}").as_bytes()), &[7; 9000], Ttl(0))
            != (Verdict::NoMemory { found: false })
        {
            stored += 1;
        }
        assert!(stored > 100 && budget.spent_bytes() > (1 << 20) - 10_000);
        let verdict = set(&mut plain, hasher.key(b"0"), &[8; 9000], Ttl(0));
        assert!(matches!(verdict, Verdict::Stored { .. }), "it is not larger than the old one");
        let pinned = plain
            .find(&hasher.key(b"0"), Needed::Value, &now())
            .expect("it is in memory")
            .map(|at| plain.pin(at));
        plain.common().flush(&now());
        while plain.maintain(&now()) > 0 {}
        assert_eq!((plain.stats().items, budget.spent_bytes()), (0, 9000), "it is pinned");
        drop(pinned);
        assert_eq!(budget.spent_bytes(), 0);
    }
}

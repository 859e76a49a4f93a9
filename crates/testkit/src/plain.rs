//! The plain engine: an ordered map in memory, and its values in a file. It shows how an engine is
//! written (`docs/embedding.md`), and it names nothing of the cache.
//!
//! Upstream:   `shard`, over a world of this crate; the simulation.
//! Downstream: `engine`, for the meaning of each verb and for the map; `value_file`.
//!
//! A change is durable when its record in the file is. A value that is durable leaves the memory; a
//! request that needs it waits for a read. Without a file, all stays in memory. The engine evicts
//! nothing: a store that finds the budget spent is refused. After a write has failed, the engine
//! changes nothing any more.
//!
//! Invariants:
//! - I1  A value is in memory until it is durable, and while a ticket waits for it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use kachel_engine::{
    Answer, Block, Common as _, Cursor, Durability, DurableWord, Engine, EngineOptions,
    EngineStats, Extensions, HeapCommon, HeapItem, HeapMap, HeapPinned, HeapUpload, ItemView, Key,
    Mark, Needed, NoReader, NotYet, Now, OpenEngines, Opening, Operation, Primitives, Put, Refused,
    ScanCursor, Sequence, Ticket, WalkNext, WalkStep, apply,
};
use kachel_io::{FileOperation, FolderHandle};

use crate::value_file::{InFile, ValueFile};

/// Tickets from here on are of scans.
const OWN_TICKETS: u64 = 1 << 47;
/// The most scans that wait for a value. Nobody tells when a scan is left.
const SCANS_MAX: usize = 16;

/// Opens plain engines, each with a file in the folder, if there is one.
#[derive(Clone, Debug, Default)]
pub struct PlainOpener(pub Option<FolderHandle>);

impl OpenEngines for PlainOpener {
    type Engine = Plain;

    fn budget_bytes_min(engines: u16) -> u64 {
        HeapMap::<InFile>::budget_bytes_min(engines)
    }

    fn open(&self, opening: &Opening) -> io::Result<Vec<Plain>> {
        let plain = |(number, map)| {
            let durable = Arc::default();
            let create = |folder| ValueFile::create(folder, number, Arc::clone(&durable));
            Plain {
                map,
                file: self.0.as_ref().map(create),
                cooling: VecDeque::new(),
                tickets: BTreeMap::new(),
                scans: VecDeque::new(),
                last_ticket: 0,
                failed: BTreeSet::new(),
                unreadable: None,
                removed: 0,
                noted: Arc::default(),
                durable,
            }
        };
        Ok((0..).zip(HeapMap::open(opening)).map(plain).collect())
    }
}

/// An engine that is an ordered map. See the head of this file.
#[derive(Debug)]
pub struct Plain {
    map: HeapMap<InFile>,
    file: Option<ValueFile>,
    /// Items whose value may leave the memory when it is durable (I1).
    cooling: VecDeque<u64>,
    tickets: BTreeMap<u64, u64>,
    last_ticket: u64,
    /// The tickets of scans, the oldest first.
    scans: VecDeque<u64>,
    /// The tickets whose read has failed.
    failed: BTreeSet<u64>,
    /// The item whose value the disk could not read for the operation that is executed now.
    unreadable: Option<u64>,
    /// The sequence of the last removal.
    removed: u64,
    /// Of the last operation: the sequence that its outcome depends on, or the ticket that it got.
    noted: Arc<AtomicU64>,
    durable: Arc<DurableWord>,
}

impl Plain {
    /// The number of tickets that are not used yet.
    pub fn tickets(&self) -> usize {
        self.tickets.len()
    }

    /// Notes a change in the file. Returns its sequence.
    fn record(&mut self, bytes: &[u8]) -> u64 {
        let Some(file) = &mut self.file else { return 0 };
        let sequence = file.append(bytes);
        self.noted.store(sequence, Relaxed);
        sequence
    }

    /// Reads the value of an item that is not in memory. Returns the ticket of the read.
    fn fetch(&mut self, number: u64) -> u64 {
        self.fetch_as(number, 0)
    }

    /// The same, with a ticket from `first` on.
    fn fetch_as(&mut self, number: u64, first: u64) -> u64 {
        self.last_ticket += 1;
        let ticket = first + self.last_ticket;
        self.tickets.insert(ticket, number);
        let entry = self.map.entry_mut(number).expect("it was found");
        entry.beside.tickets += 1;
        let (offset, bytes) = (entry.beside.offset, (&entry.item).value_bytes());
        let file = self.file.as_mut().expect("I1: what is not in memory is in the file");
        file.read(ticket, offset, bytes);
        ticket
    }

    /// Reads a value for a scan. Returns the ticket of the read, which the shard does not know.
    fn fetch_for_scan(&mut self, number: u64) -> u64 {
        if self.scans.len() == SCANS_MAX
            && let Some(oldest) = self.scans.pop_front()
        {
            let _whatever_was_read = self.take(Ticket(oldest)); // A scan that was left, most likely.
        }
        let ticket = self.fetch_as(number, OWN_TICKETS);
        self.scans.push_back(ticket);
        ticket
    }

    /// The ticket of a scan and its item, unless it was given up.
    fn scan_of(&self, ticket: u64) -> Option<(u64, u64)> {
        self.scans.contains(&ticket).then(|| (ticket, self.tickets[&ticket]))
    }

    /// A scan goes on without its ticket.
    fn end_scan(&mut self, ticket: u64) {
        self.scans.retain(|scan| *scan != ticket);
        let _whatever_was_read = self.take(Ticket(ticket));
    }

    /// Takes a ticket back. Returns its item if the disk could not read the value.
    fn take(&mut self, Ticket(ticket): Ticket) -> Option<u64> {
        let number = self.tickets.remove(&ticket).expect("a ticket is used once");
        if let Some(entry) = self.map.entry_mut(number) {
            entry.beside.tickets -= 1;
            self.cooling.push_back(number);
        }
        self.failed.remove(&ticket).then_some(number)
    }

    /// Drops values from memory that are durable and that no ticket waits for (I1).
    fn cool(&mut self) {
        while let Some(number) = self.cooling.front() {
            let entry = self.map.entry_mut(*number).filter(|entry| entry.beside.tickets == 0);
            match entry {
                Some(entry) if self.durable.has_reached(entry.beside.sequence) => entry.item.cool(),
                Some(entry) if !self.durable.is_lost(entry.beside.sequence) => return,
                _ => {}
            }
            self.cooling.pop_front();
        }
    }
}

impl Primitives for Plain {
    type At = u64;
    type Item<'e> = &'e HeapItem;
    type Upload = HeapUpload;
    type Pinned = HeapPinned;

    fn options(&self) -> &EngineOptions {
        self.map.common().options()
    }

    fn is_read_only(&self) -> bool {
        self.durable.has_failed()
    }

    fn find(&mut self, key: &Key<'_>, needed: Needed, now: &Now) -> Result<Option<u64>, NotYet> {
        self.noted.store(self.removed, Relaxed);
        let Some(number) = self.map.find(key, now) else { return Ok(None) };
        let entry = self.map.entry(number);
        self.noted.store(entry.beside.sequence.0, Relaxed);
        if needed == Needed::Value && !entry.item.is_warm() {
            let is_readable = self.unreadable != Some(number);
            let waits_for = if is_readable { self.fetch(number) } else { Sequence::NEVER.0 };
            self.noted.store(waits_for, Relaxed);
            return Err(NotYet);
        }
        Ok(Some(number))
    }

    fn item(&self, at: u64) -> &HeapItem {
        &self.map.entry(at).item
    }

    fn remove(&mut self, key: &Key<'_>, at: u64) {
        self.map.take(at);
        self.removed = self.record(key.bytes());
    }

    fn mark(&mut self, _key: &Key<'_>, at: u64, mark: Mark) {
        let sequence = self.record(b"mark");
        let entry = self.map.entry_mut(at).expect("it was found");
        entry.item.mark(mark);
        entry.beside.sequence = Sequence(sequence);
    }

    fn put(
        &mut self,
        key: &Key<'_>,
        found: Option<u64>,
        put: &Put,
        block: &mut Block<'_, HeapUpload>,
        now: &Now,
    ) -> Result<u64, Refused> {
        let (number, replaced) = self.map.put(key, found, put, block, now)?;
        if let Some(file) = &mut self.file {
            // A value that is not in memory is that of the replaced item.
            let mut offset = replaced.map_or(0, |replaced| replaced.beside.offset);
            let item = &self.map.entry(number).item;
            if item.is_warm() {
                offset = file.end();
                file.append(item.value().bytes());
                self.cooling.push_back(number);
            }
            let sequence = Sequence(self.record(key.bytes()));
            let entry = self.map.entry_mut(number).expect("it is stored");
            entry.beside = InFile { offset, sequence, ..InFile::default() };
        }
        Ok(number)
    }

    fn note_access(&self, at: u64, now: &Now) {
        self.item(at).note_access(now);
    }

    fn has_leased(&self) -> bool {
        self.map.has_leased()
    }

    fn pin(&self, at: u64) -> HeapPinned {
        self.map.common().pin(self.item(at).value())
    }
}

impl Engine for Plain {
    type Upload = HeapUpload;
    type Pinned = HeapPinned;
    type Submission = Box<FileOperation>;
    type Completion = Box<FileOperation>;
    type Reader = NoReader<HeapPinned>;
    type Common = HeapCommon;

    fn common(&self) -> HeapCommon {
        self.map.common().clone()
    }

    fn reader(&self) -> NoReader<HeapPinned> {
        NoReader::default()
    }

    fn execute<'e>(
        &'e mut self,
        operation: &Operation<'_>,
        block: &mut Block<'_, HeapUpload>,
        ticket: Option<Ticket>,
        now: &Now,
    ) -> Answer<'e, HeapPinned> {
        self.cool();
        self.unreadable = ticket.and_then(|ticket| self.take(ticket));
        let (noted, durable) = (Arc::clone(&self.noted), Arc::clone(&self.durable));
        let outcome = apply(self, operation, block, now);
        match (outcome, Sequence(noted.load(Relaxed))) {
            // It has changed nothing, because the engine is read-only.
            (Ok(_), sequence) if durable.is_lost(sequence) => Answer::disk_failed(),
            // Without a file the sequence is 0, which is durable.
            (Ok(outcome), sequence) => Answer::Done(outcome, Durability::of(sequence, &durable)),
            (Err(NotYet), Sequence::NEVER) => Answer::disk_failed(),
            (Err(NotYet), Sequence(ticket)) => Answer::Later(Ticket(ticket)),
        }
    }

    fn next_submission(&mut self) -> Option<Box<FileOperation>> {
        self.file.as_mut()?.next()
    }

    fn complete(&mut self, done: Box<FileOperation>, ready: &mut impl FnMut(u64)) {
        let read = self.file.as_mut().and_then(|file| file.complete(done));
        // The bytes for a ticket that was forgotten are dropped.
        if let Some((ticket, bytes)) = read
            && let Some(number) = self.tickets.get(&ticket)
        {
            match bytes {
                Some(bytes) => self.map.warm(*number, &bytes),
                None => drop(self.failed.insert(ticket)),
            }
            if ticket < OWN_TICKETS {
                ready(ticket);
            }
        }
        self.cool();
    }

    fn forget(&mut self, ticket: Ticket) {
        let _whatever_was_read = self.take(ticket);
    }

    fn durable(&self) -> &Arc<DurableWord> {
        &self.durable
    }

    fn maintain(&mut self, now: &Now) -> usize {
        self.map.maintain(now)
    }

    fn walk(
        &mut self,
        cursor: &mut Cursor,
        now: &Now,
        items_max: usize,
        show: impl FnMut(&[u8], &dyn ItemView<'_>) -> bool,
    ) -> WalkStep {
        self.map.walk(cursor, now, items_max, show)
    }

    fn work_bytes(&self) -> u64 {
        self.map.work_bytes()
    }

    fn stats(&self) -> EngineStats {
        self.map.stats()
    }
}

impl Extensions for Plain {
    const ORDERED: bool = true;

    fn scan(
        &mut self,
        cursor: &mut ScanCursor,
        now: &Now,
        items_max: usize,
        mut show: impl FnMut(&[u8], &dyn ItemView<'_>) -> bool,
    ) -> WalkStep {
        let before = self.scan_of(cursor.reads.to_u64());
        let unreadable = before.filter(|(ticket, _)| self.failed.contains(ticket));
        let unreadable = unreadable.map(|(_, number)| number);
        let (mut cold, mut is_early, durable) = (None, false, Arc::clone(&self.durable));
        let mut step = self.map.scan(cursor, now, items_max, |number, entry| {
            let sequence = entry.beside.sequence;
            if durable.is_lost(sequence) {
                return Some(true);
            }
            is_early = !durable.has_reached(sequence);
            // A value that the disk cannot read is not shown, but its key is.
            let is_awaited = !entry.item.is_warm() && unreadable != Some(number);
            cold = is_awaited.then_some(number);
            (!is_early && cold.is_none()).then(|| show(entry.key(), &&entry.item))
        });
        if is_early || cold.is_some() {
            step.next = WalkNext::Later;
        }
        if before.map(|(_, number)| number) != cold || cold.is_none() {
            before.into_iter().for_each(|(ticket, _)| self.end_scan(ticket));
            let ticket = cold.map_or(0, |number| self.fetch_for_scan(number));
            cursor.reads = Cursor::from_u64(ticket);
        }
        step
    }
}

#[cfg(test)]
mod tests {
    use kachel_engine::{
        ClockOrigin, KeyHasher, LeaseOptions, Outcome, PutValue, ReadValue as _, Seeds, Ttl, Value,
        Verdict,
    };
    use kachel_host::Budget;
    use kachel_io::memory::disk::{ChanceFault, Disk, Fault, FaultPlan};
    use kachel_io::{Event, Files as _, Io as _, ManualClock, Memory, MemoryNet, Wait};
    use kachel_stdx::BytePrefix;

    use super::*;

    /// Items of a test with a file.
    const NUMBERS: u32 = 50;
    /// Turns of a backend within which everything is done.
    const TURNS_MAX: usize = 1_000;

    fn now() -> Now {
        ClockOrigin::new(0, 1_800_000_000).start()
    }

    /// One engine with a budget of 1 MiB.
    fn plain(folder: Option<FolderHandle>) -> (Plain, KeyHasher, Arc<Budget>) {
        let (hasher, budget) =
            (KeyHasher::new(Seeds { hash_keys: [1, 2] }, 1), Budget::new(1 << 20));
        let budget = Arc::new(budget);
        let opening = Opening {
            engines: 1,
            cores: 1,
            hasher,
            options: EngineOptions {
                evict: false,
                cas: true,
                item_bytes_max: 1 << 20,
                leases: LeaseOptions::DEFAULT,
            },
            budget: Arc::clone(&budget),
            budget_bytes_max: 1 << 20,
            process_bytes: 0,
            start: now(),
        };
        let plain = PlainOpener(folder).open(&opening).expect("memory").pop().expect("one engine");
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
        let step = plain.scan(cursor, now, 3, |key, _| {
            shown.push(key.escape_ascii().to_string());
            true
        });
        assert!(step.next == if step.items < 3 { WalkNext::End } else { WalkNext::More });
        shown
    }

    #[test]
    fn a_scan_shows_each_item_that_lives_throughout_once_and_in_order() {
        let (mut plain, hasher, _) = plain(None);
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

    /// Regression: the new item had the epoch after the flush, so it outlived a `flush_all` that
    /// the server had answered.
    #[test]
    fn what_is_made_of_an_item_that_is_flushed_meanwhile_is_flushed() {
        let (mut plain, hasher, _) = plain(None);
        let key = hasher.key(b"a");
        set(&mut plain, hasher.key(b"a"), b"1", Ttl(0));
        let put = Put {
            value: PutValue::Number { number: 2, bytes: 1 },
            client_flags: 0,
            expiry: 0,
            cas: None,
            stale: false,
            win_sent: false,
            remnant: false,
            protocol_mark: false,
            keeps_access: false,
            removes_when_refused: false,
        };
        let prefix = BytePrefix::of_bytes(b"a").expect("a prefix");
        for flushes_all in [true, false] {
            let found = plain.find(&key, Needed::Value, &now()).expect("no fetch");
            assert!(found.is_some());
            let common = plain.common();
            match flushes_all {
                true => common.flush(&now()).expect("no disk"), // Another core does this.
                false => common.flush_prefix(&prefix).expect("room in the list"),
            }
            plain.put(&key, found, &put, &mut Block::None, &now()).expect("there is room");
            assert_eq!(plain.find(&key, Needed::Value, &now()).expect("no fetch"), None);
            set(&mut plain, hasher.key(b"a"), b"3", Ttl(0));
        }
        assert!(plain.find(&key, Needed::Value, &now()).expect("no fetch").is_some());
    }

    #[test]
    fn the_flush_of_a_prefix_is_over_after_a_sweep_and_takes_nothing_else() {
        let (mut plain, hasher, _) = plain(None);
        let prefix = BytePrefix::of_name(b"a", b':').expect("a name");
        let all = plain.common();
        for round in 0..3 {
            for number in 0..200 {
                set(&mut plain, hasher.key(format!("a:{number}").as_bytes()), b"1", Ttl(0));
                set(&mut plain, hasher.key(format!("ab:{number}").as_bytes()), b"1", Ttl(0));
            }
            all.flush_prefix(&prefix).expect("room in the list");
            set(&mut plain, hasher.key(b"a:new"), b"1", Ttl(0));
            assert_eq!(all.live_prefixes(), 1);
            while plain.maintain(&now()) > 0 {}
            assert_eq!((all.live_prefixes(), plain.stats().items), (0, 201), "round {round}");
        }
    }

    #[test]
    fn all_that_is_stored_is_charged_and_refunded_when_its_last_handle_is_gone() {
        let (mut plain, hasher, budget) = plain(None);
        let mut stored = 0;
        while set(&mut plain, hasher.key(format!("{stored}").as_bytes()), &[7; 9000], Ttl(0))
            != (Verdict::NoMemory { found: false })
        {
            stored += 1;
        }
        assert!(stored > 100 && budget.spent_bytes() > (1 << 20) - 10_000);
        let verdict = set(&mut plain, hasher.key(b"0"), &[8; 9000], Ttl(0));
        assert!(matches!(verdict, Verdict::Stored { .. }), "it is not larger than the old one");
        // Requests that wait may overdraw the budget.
        budget.charge_ahead(20_000);
        let verdicts = [9000, 8000, 8001]
            .map(|bytes| set(&mut plain, hasher.key(b"0"), &vec![9; bytes], Ttl(0)));
        assert!(matches!(verdicts[..2], [Verdict::Stored { .. }, Verdict::Stored { .. }]));
        assert_eq!(verdicts[2], Verdict::NoMemory { found: true }, "a byte more than before");
        assert!(budget.overdrawn_bytes() > 0, "not by these");
        budget.refund(20_000);
        let found = plain.find(&hasher.key(b"1"), Needed::Value, &now());
        let at = found.expect("it is in memory").expect("it was stored");
        assert_eq!(plain.common().pinned_bytes(), 0);
        let (pinned, again) = (plain.pin(at), plain.pin(at));
        assert_eq!(plain.common().pinned_bytes(), 9000, "the value counts once");
        plain.common().flush(&now()).expect("no disk");
        while plain.maintain(&now()) > 0 {}
        assert_eq!((plain.stats().items, budget.spent_bytes()), (0, 9000), "it is pinned");
        let piece = pinned.hold_at(0);
        drop((pinned, again));
        let kept = (plain.common().pinned_bytes(), budget.spent_bytes());
        assert_eq!((piece.byte_count(), kept), (9000, (9000, 9000)), "a piece keeps it");
        drop(piece);
        assert_eq!((plain.common().pinned_bytes(), budget.spent_bytes()), (0, 0));
    }

    /// The backend that carries the operations of an engine out, on a disk that completes them
    /// late, in part and in another order.
    struct Backend {
        memory: Memory,
        disk: Disk,
    }

    impl Backend {
        fn new(seed: u64) -> Self {
            let disk = Disk::new(seed, &ManualClock::new(0));
            let short = ChanceFault { kind: None, permille: 300, fault: Fault::Short };
            let latency_ns = Some(1_000..=1_000_000);
            disk.set_plan(FaultPlan { planned: Vec::new(), chances: vec![short], latency_ns });
            let mut memory = MemoryNet::new().open();
            memory.use_disk(&disk);
            Self { memory, disk }
        }

        /// Submits what the engine has queued, and completes what is due next. Returns the tickets
        /// that are ready.
        fn turn(&mut self, plain: &mut Plain) -> Vec<u64> {
            while let Some(operation) = plain.next_submission() {
                self.memory.submit(operation).expect("there is room");
            }
            self.disk.advance_to_next_due();
            let (mut events, mut ready) = (Vec::new(), Vec::new());
            self.memory.poll(Wait::Now, &mut events).expect("memory never fails");
            for event in events {
                let Event::FileDone { operation } = event else { panic!("{event:?}") };
                plain.complete(operation, &mut |ticket| ready.push(ticket));
            }
            ready
        }
    }

    fn value(number: u32) -> Vec<u8> {
        vec![number as u8; 100 * number as usize]
    }

    fn key(number: u32) -> String {
        format!("{number:02}")
    }

    /// Turns until all that was stored is durable.
    fn settle(plain: &mut Plain, backend: &mut Backend, last: Sequence) {
        let mut turns = 0;
        while !plain.durable.has_reached(last) {
            assert_eq!(backend.turn(plain), [0; 0], "nothing waits");
            turns += 1;
            assert!(turns < TURNS_MAX, "it does not become durable");
        }
    }

    /// Stores an item for each number. Returns the sequence of all, which is not durable yet.
    fn fill(plain: &mut Plain, hasher: &KeyHasher) -> Sequence {
        let mut all = None;
        for number in 0..NUMBERS {
            let (text, value) = (key(number), value(number));
            let set = Operation::set(hasher.key(text.as_bytes()), value.len(), Ttl(0));
            let answer = plain.execute(&set, &mut Block::Bytes(&value), None, &now());
            let Answer::Done(_, Durability::At(sequence)) = answer else { panic!("{answer:?}") };
            assert!(!plain.durable.has_reached(sequence), "it is not written yet");
            assert!(all.is_none_or(|all| all == sequence), "they are one write");
            all = Some(sequence);
        }
        all.expect("some are stored")
    }

    type Read = (Vec<u8>, Durability);

    fn read(plain: &mut Plain, key: Key<'_>, ticket: Option<Ticket>) -> Result<Read, Ticket> {
        match plain.execute(&Operation::get(key), &mut Block::None, ticket, &now()) {
            Answer::Later(ticket) => Err(ticket),
            Answer::Done(Outcome { value: Value::Inline(value), .. }, durability) => {
                Ok((value.to_vec(), durability))
            }
            Answer::Done(outcome, _) => panic!("{outcome:?}"),
        }
    }

    #[test]
    fn a_value_is_read_from_the_file_and_a_set_waits_for_no_read() {
        let mut backend = Backend::new(7);
        let (mut plain, hasher, budget) = plain(Some(backend.disk.folder("data")));
        let last = fill(&mut plain, &hasher);
        let newest = key(NUMBERS - 1);
        let (_, durability) = read(&mut plain, hasher.key(newest.as_bytes()), None).expect("I1");
        assert_eq!(durability, Durability::At(last), "it depends on its store");
        let charged = budget.spent_bytes();
        settle(&mut plain, &mut backend, last);
        assert!(budget.spent_bytes() < charged / 2, "the values have left the memory");
        // The bytes for reads that are forgotten come back later, and are nobody's.
        for number in (1..NUMBERS).rev() {
            let forgotten = read(&mut plain, hasher.key(key(number).as_bytes()), None);
            plain.forget(forgotten.expect_err("I1"));
        }
        let mut waiting = BTreeMap::new();
        for number in 1..NUMBERS {
            let text = key(number);
            let Ticket(ticket) =
                read(&mut plain, hasher.key(text.as_bytes()), None).expect_err("I1");
            waiting.insert(ticket, number);
        }
        let stored = set(&mut plain, hasher.key(b"00"), b"new", Ttl(0));
        assert!(matches!(stored, Verdict::Stored { .. }), "it waits for no read");
        for _ in 0..TURNS_MAX {
            for ticket in backend.turn(&mut plain) {
                let number = waiting.remove(&ticket).expect("named once, and not forgotten");
                let text = key(number);
                let read = read(&mut plain, hasher.key(text.as_bytes()), Some(Ticket(ticket)));
                assert_eq!(read.expect("it is ready"), (value(number), Durability::Now));
            }
        }
        assert!(waiting.is_empty() && plain.tickets.is_empty(), "{waiting:?}");
    }

    #[test]
    fn a_scan_waits_for_a_value_and_goes_on_where_it_was() {
        let mut backend = Backend::new(8);
        let (mut plain, hasher, _) = plain(Some(backend.disk.folder("data")));
        let last = fill(&mut plain, &hasher);
        settle(&mut plain, &mut backend, last);
        let (mut cursor, mut shown) = (ScanCursor::START, Vec::new());
        for _ in 0..TURNS_MAX {
            let step = plain.scan(&mut cursor, &now(), 10, |key, item| {
                let value = item.small_value().expect("it is in memory");
                shown.push((key.escape_ascii().to_string(), value.to_vec()));
                true
            });
            match step.next {
                WalkNext::Later => {
                    assert!(backend.turn(&mut plain).is_empty(), "its ticket is not named");
                }
                WalkNext::More => {}
                WalkNext::End => break,
                WalkNext::Failed => panic!("the disk can be read"),
            }
        }
        assert_eq!(plain.tickets(), 0);
        let all: Vec<_> = (0..NUMBERS).map(|number| (key(number), value(number))).collect();
        assert_eq!(shown, all);
    }
}

//! Clients of the engines of a store, and what the store must have.
//!
//! Upstream:   the tests.
//! Downstream: `process` executes the requests, `oracle` judges each answer and each start.

use std::rc::Rc;

use kachel_engine::{
    ArithmeticTerms, Common as _, DeleteTerms, Direction, Durability, Engine as _, GetTerms,
    KeptPrefix, KeptSeconds, LifeStep, LifeTerms, Now, Operation, PrefixRefused, StoreMode,
    StoreTerms, Ticket, Ttl, Verb, Verdict,
};
use kachel_io::memory::disk::{ChanceFault, Fault, FaultPlan};
use kachel_io::{Rng as _, SeededRng};
use kachel_log::SEGMENT_BYTES_MIN;
use kachel_stdx::BytePrefix;
use kachel_testkit::random_value;

use crate::files::Store;
use crate::model::{Flushes, Model, key_bytes};
use crate::oracle::{Found, Oracle, Seen};
use crate::process::{ALL, Process, Request, engine_options};

/// The most requests that wait.
const WAITING_MAX: usize = 8;
/// Turns within which everything that waits is executed.
const TURNS_MAX: u64 = 4_000;
/// The key whose values may be longer than a segment. More of them would fill a log.
const LONG_KEY: usize = 1;
/// Its longest value.
const LONG_BYTES_MAX: usize = 150_000;
/// The longest value that must not be refused.
const ACCEPTED_BYTES_MAX: usize = 12_000;

/// A request that is not executed.
#[derive(Clone, Debug)]
struct Waiting {
    request: Request,
    owner: usize,
    ticket: u64,
    /// Whether it may be executed again without being named.
    is_ready: bool,
}

/// What the store must have.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    pub(crate) oracles: Vec<Oracle>,
    pub(crate) flushes: Flushes,
    keys: usize,
}

/// What was found by a start: the process, and its items.
pub(crate) struct Started {
    pub(crate) process: Process,
    pub(crate) found: Vec<Option<Found>>,
    /// For each engine, how many of its changes are there.
    pub(crate) counts: Vec<usize>,
}

/// A client asks for an item, or for a lease on its key.
pub(crate) fn lease(key: usize) -> Request {
    let terms = GetTerms { leases: true, wanted: ALL, ..GetTerms::VALUE };
    Request { key, verb: Verb::Get(terms), value: Vec::new() }
}

/// Faults that lose nothing: operations complete in another order, or in part.
pub(crate) fn delays() -> FaultPlan {
    let chances = vec![ChanceFault { kind: None, permille: 50, fault: Fault::Short }];
    FaultPlan { chances, latency_ns: Some(1_000..=100_000), ..FaultPlan::default() }
}

impl Ledger {
    pub(crate) fn new(process: &Process, keys: usize) -> Self {
        let model = Model {
            items: vec![None; keys],
            tokens: crate::tokens::KnownTokens::default(),
            options: engine_options(process.store.cas),
            seconds: KeptSeconds::of(&process.now()),
            epoch: 0,
            prefixes: Rc::default(),
            has_leased: false,
            has_room: true,
            has_changed: false,
        };
        let oracles = process.stations.iter().map(|_| Oracle::new(model.clone())).collect();
        Self { oracles, flushes: Flushes::default(), keys }
    }

    /// All items that a process shows.
    pub(crate) fn read_all(&self, process: &mut Process, now: &Now) -> Vec<Option<Found>> {
        let find = |key| process.find(key, now).expect("the disk has no faults");
        (0..self.keys).map(find).collect()
    }

    /// Starts the engines of a store again after a crash, twice, and judges what is there.
    /// `acknowledged` are the sequences that must be there.
    pub(crate) fn start(
        &mut self,
        store: &Store,
        acknowledged: &[u64],
        seed: u64,
    ) -> Result<Started, String> {
        let mut process = Process::start(store).map_err(|error| error.to_string())?;
        let now = process.now();
        let found = self.read_all(&mut process, &now);
        let unix_s = now.unix(now.second);
        self.flushes = self.flushes.by(unix_s);
        let epoch = self.flushes.epoch;
        // What the first start leaves is durable.
        let second_store = store.on(&store.disk.crash(seed));
        let mut second = Process::start(&second_store).map_err(|error| error.to_string())?;
        let second_now = second.now();
        if second_now.unix(second_now.second) == unix_s
            && self.read_all(&mut second, &second_now) != found
        {
            return Err("a second start finds other items".to_owned());
        }
        let mut counts = Vec::new();
        for (engine, oracle) in self.oracles.iter_mut().enumerate() {
            let mine = |key: usize| found[key].clone().filter(|_| process.owner(key) == engine);
            let mine: Vec<_> = (0..self.keys).map(mine).collect();
            let fits = oracle.fits(&mine, acknowledged[engine], unix_s, epoch);
            let mut fits = fits.map_err(|fault| format!("engine {engine}: {fault}"))?;
            let now = second.now();
            for key in oracle.hidden(&fits) {
                let seen = second.ask(&lease(key), &now);
                let unix_s = now.unix(now.second);
                fits.retain(|&count| oracle.is_lease_right(count, key, &seen, unix_s));
                if fits.is_empty() {
                    return Err(format!("engine {engine}: a lease on key {key} is {seen:?}"));
                }
            }
            counts.push(fits.pop().expect("it is not empty"));
        }
        Ok(Started { process, found, counts })
    }
}

/// Engines with clients.
pub(crate) struct Traffic {
    pub(crate) process: Process,
    pub(crate) ledger: Ledger,
    dice: SeededRng,
    waiting: Vec<Waiting>,
    /// Requests that were executed, those that had no room, and those that the disk prevented.
    pub(crate) executed: u64,
    pub(crate) refused: u64,
    pub(crate) failed: u64,
    pub(crate) prefixes_flushed: u64,
    /// Reads by another core of changes that were not durable.
    pub(crate) fenced_beside: u64,
    /// Whether the disk may fail, or be full.
    pub(crate) may_fail: bool,
}

impl Traffic {
    /// Clients of a new store.
    pub(crate) fn new(store: &Store, keys: usize, seed: u64) -> Self {
        let process = Process::start(store).expect("a new store");
        let ledger = Ledger::new(&process, keys);
        Self::over(process, ledger, seed)
    }

    fn over(process: Process, ledger: Ledger, seed: u64) -> Self {
        let (dice, waiting) = (SeededRng::new(seed), Vec::new());
        Self {
            process,
            ledger,
            dice,
            waiting,
            executed: 0,
            refused: 0,
            failed: 0,
            prefixes_flushed: 0,
            fenced_beside: 0,
            may_fail: false,
        }
    }

    /// The clients go on after a crash.
    pub(crate) fn restart(
        mut ledger: Ledger,
        store: &Store,
        acknowledged: &[u64],
        seed: u64,
    ) -> Self {
        let started = ledger.start(store, acknowledged, seed);
        let Started { process, found, counts } = started.unwrap_or_else(|fault| panic!("{fault}"));
        let seconds = KeptSeconds::of(&process.now());
        for (engine, oracle) in ledger.oracles.iter_mut().enumerate() {
            let mine = |key: usize| found[key].clone().filter(|_| process.owner(key) == engine);
            let mine: Vec<_> = (0..ledger.keys).map(mine).collect();
            oracle.go_on(counts[engine], &mine, seconds);
        }
        Self::over(process, ledger, seed)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.dice.next_u64() % end as u64) as usize
    }

    /// What must be there after the process ends, or after the power is cut as well.
    pub(crate) fn acknowledged(&self, is_power_cut: bool) -> Vec<u64> {
        let engines = 0..self.process.stations.len();
        engines.map(|engine| self.process.acknowledged(engine, is_power_cut)).collect()
    }

    fn ttl(&mut self) -> Ttl {
        Ttl([0, 0, 0, 0, 1, 2, 3, 5, 100, -1][self.below(10)])
    }

    fn value(&mut self, key: usize) -> Vec<u8> {
        if key == LONG_KEY && self.below(2) == 0 {
            let segment_bytes = SEGMENT_BYTES_MIN as usize;
            let bytes = segment_bytes + self.below(LONG_BYTES_MAX - segment_bytes);
            return self.bytes(bytes);
        }
        let scale = [1, 40, 40, 700, 700, 3000, 3000, 7000, 7000, 60_000][self.below(10)];
        if scale == 60_000 && self.below(4) != 0 {
            return self.below(100_000).to_string().into_bytes();
        }
        let bytes = self.below(scale);
        self.bytes(bytes)
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        random_value(self.dice.next_u64(), count)
    }

    /// A token that a client may know: that of the item, another one, or none.
    fn token(&mut self, key: usize) -> u64 {
        let model = &self.ledger.oracles[self.process.owner(key)].model;
        let token = model.items[key].as_ref().map(|item| model.tokens.known(item.token));
        match token.filter(|token| *token < 1 << 62) {
            Some(token) if self.below(4) != 0 => token,
            Some(token) => (token + self.below(3) as u64).saturating_sub(1),
            None => 1,
        }
    }

    /// What a client wants.
    fn request(&mut self) -> Request {
        // Some keys rarely change, so that old segments stay beside younger ones.
        let keys = if self.below(6) == 0 { self.ledger.keys } else { self.ledger.keys / 2 };
        let key = self.below(keys);
        let verb = match self.below(100) {
            0..49 => return self.store(key),
            49..55 => {
                let mut life = LifeTerms::NONE;
                if self.below(3) == 0 {
                    life.push(LifeStep::Vivify(self.ttl()));
                }
                let direction = [Direction::Up, Direction::Down][self.below(2)];
                let (delta, initial) = (self.below(1_000) as u64, self.below(50) as u64);
                let (compare_cas, new_cas) = (None, None);
                let terms =
                    ArithmeticTerms { direction, delta, initial, compare_cas, new_cas, life };
                Verb::Arithmetic(terms)
            }
            55..60 => Verb::Touch(self.ttl()),
            60..77 => Verb::Delete(self.delete(key)),
            _ => Verb::Get(self.get()),
        };
        Request { key, verb, value: Vec::new() }
    }

    fn store(&mut self, key: usize) -> Request {
        let value = self.value(key);
        let mut terms = StoreTerms {
            mode: StoreMode::Set,
            value_bytes: value.len(),
            client_flags: self.below(3) as u32 * 77_777,
            ttl: self.ttl(),
            compare_cas: None,
            new_cas: None,
            stores_stale: false,
            protocol_mark: self.below(9) == 0,
            vivify: None,
        };
        match self.below(49) {
            0..22 => {}
            22..27 => terms.mode = StoreMode::Add,
            27..31 => terms.mode = StoreMode::Replace,
            31..38 => {
                terms.mode = [StoreMode::Append, StoreMode::Prepend][self.below(2)];
                terms.vivify = (self.below(3) == 0).then(|| self.ttl());
            }
            38..46 => {
                terms.compare_cas = Some(self.token(key));
                terms.stores_stale = self.below(3) == 0;
            }
            _ => {
                terms.mode = StoreMode::Lease;
                terms.compare_cas = Some(self.token(key));
            }
        }
        Request { key, verb: Verb::Store(terms), value }
    }

    fn delete(&mut self, key: usize) -> DeleteTerms {
        let terms = DeleteTerms::default();
        match self.below(17) {
            0..9 => terms,
            9..13 => {
                let ttl = (self.below(2) == 0).then(|| self.ttl());
                DeleteTerms { marks_stale: true, ttl, ..terms }
            }
            13..16 => {
                let (client_flags, marks_stale) = (self.below(9) as u32, self.below(2) == 0);
                DeleteTerms { empties: true, marks_stale, client_flags, ..terms }
            }
            _ => DeleteTerms { compare_cas: Some(self.token(key)), ..terms },
        }
    }

    fn get(&mut self) -> GetTerms {
        let terms = GetTerms { wanted: ALL, ..GetTerms::VALUE };
        let mut life = LifeTerms::NONE;
        match self.below(23) {
            0..4 => GetTerms { life: LifeTerms::touch(Some(self.ttl())), ..terms },
            4..7 => {
                life.push(LifeStep::Vivify(self.ttl()));
                GetTerms { life, may_win: true, ..terms }
            }
            7..10 => {
                life.push(LifeStep::Recache(Ttl(4)));
                GetTerms { life, may_win: true, ..terms }
            }
            10..14 => GetTerms { leases: true, ..terms },
            _ => terms,
        }
    }

    /// A client does something.
    pub(crate) fn act(&mut self) {
        match self.below(300) {
            0..6 => {
                let seconds = [1, 1, 3][self.below(3)];
                self.process.store.clock.advance_s(seconds);
                self.process.maintain();
            }
            6 => self.flush(Some(0)),
            7 | 8 => {
                let seconds = 1 + self.below(4);
                self.flush(Some(seconds as u32));
            }
            9 => self.flush(None),
            10 => self.forget(),
            11..20 => self.process.maintain(),
            20 | 21 => self.flush_prefix(),
            _ if self.waiting.len() < WAITING_MAX => {
                let request = self.request();
                let (owner, key) = (self.process.owner(request.key), request.key);
                self.execute(Waiting { request, owner, ticket: 0, is_ready: true });
                if self.below(3) == 0 {
                    self.read_beside(owner, key);
                }
            }
            _ => {}
        }
        self.execute_ready();
    }

    /// Reads an item, and has another core read it, too. That core leaves the first read of an item
    /// to its owner.
    fn read_beside(&mut self, owner: usize, key: usize) {
        let terms = GetTerms { wanted: ALL, ..GetTerms::VALUE };
        let request = Request { key, verb: Verb::Get(terms), value: Vec::new() };
        let first = request.clone();
        self.execute(Waiting { request: first, owner, ticket: 0, is_ready: true });
        let now = self.process.now();
        let Some((seen, durability)) = self.process.read_beside(key, &terms, &now) else { return };
        self.fenced_beside += u64::from(durability != Durability::Now);
        self.judge(&request, (&seen, durability), true, &now);
    }

    /// A client does this, and nothing else happens until it is executed.
    pub(crate) fn ask(&mut self, request: Request) {
        let owner = self.process.owner(request.key);
        self.execute(Waiting { request, owner, ticket: 0, is_ready: true });
        for _ in 0..TURNS_MAX {
            if self.waiting.is_empty() {
                return;
            }
            self.process.maintain();
            self.pump(|_, _| {});
            self.execute_ready();
        }
        panic!("this is never executed: {:?}", self.waiting);
    }

    /// Flushes everything in a number of seconds, or gives a pending flush up.
    pub(crate) fn flush(&mut self, seconds: Option<u32>) {
        let now = self.process.now();
        let flushes = self.ledger.flushes.by(now.unix(now.second));
        let common = &self.process.common;
        let (flushed, flushes) = match seconds {
            None => (common.cancel_flush(&now), Flushes { due_unix_s: 0, ..flushes }),
            Some(0) => (common.flush(&now), Flushes { epoch: flushes.epoch + 1, due_unix_s: 0 }),
            Some(seconds) => {
                let due = now.second + seconds;
                let due_unix_s = now.unix(due);
                (common.flush_in(due, &now), Flushes { due_unix_s, ..flushes })
            }
        };
        match flushed {
            Ok(()) => self.ledger.flushes = flushes,
            // Nothing was flushed.
            Err(_) => assert!(self.may_fail, "nothing has failed"),
        }
    }

    /// Flushes a prefix of a key, unless too many are being flushed.
    fn flush_prefix(&mut self) {
        let key = key_bytes(self.below(self.ledger.keys));
        let name = &key[..1 + self.below(key.len())];
        let prefix = match self.below(2) {
            0 => BytePrefix::of_bytes(name),
            _ => BytePrefix::of_name(name, b'0' + self.below(3) as u8),
        };
        let prefix = prefix.expect("a key is no longer than a prefix");
        match self.process.common.flush_prefix(&prefix) {
            Ok(()) => self.prefixes_flushed += 1,
            Err(PrefixRefused::TooMany) => return,
            Err(refused) => return assert!(self.may_fail, "{refused:?}"),
        }
        for Oracle { model, .. } in &mut self.ledger.oracles {
            Rc::make_mut(&mut model.prefixes).push(KeptPrefix::new(0, &prefix));
        }
    }

    /// The changes of all engines since the start.
    pub(crate) fn changes(&self) -> usize {
        self.ledger.oracles.iter().map(Oracle::changes).sum()
    }

    /// Whether an engine changes nothing any more.
    pub(crate) fn has_failed(&self) -> bool {
        self.process.stations.iter().any(|station| station.engine.durable().has_failed())
    }

    /// A client that waits for a read leaves.
    fn forget(&mut self) {
        let is_read = |waiting: &Waiting| match waiting.request.verb {
            Verb::Get(terms) => waiting.ticket != 0 && terms.life.is_empty() && !terms.leases,
            _ => false,
        };
        if let Some(at) = self.waiting.iter().position(is_read) {
            let Waiting { owner, ticket, .. } = self.waiting.remove(at);
            let station = &mut self.process.stations[owner];
            station.ready.remove(&ticket);
            station.engine.forget(Ticket(ticket));
        }
    }

    /// Executes again what is ready.
    fn execute_ready(&mut self) {
        for station in 0..self.process.stations.len() {
            let ready = std::mem::take(&mut self.process.stations[station].ready);
            for waiting in &mut self.waiting {
                waiting.is_ready |= waiting.owner == station && ready.contains(&waiting.ticket);
            }
        }
        let waiting = std::mem::take(&mut self.waiting);
        let (ready, waiting) = waiting.into_iter().partition(|waiting| waiting.is_ready);
        self.waiting = waiting;
        ready.into_iter().for_each(|waiting| self.execute(waiting));
    }

    fn execute(&mut self, waiting: Waiting) {
        let Waiting { request, owner, ticket, .. } = waiting;
        let now = self.process.now();
        let ticket = (ticket != 0).then_some(ticket);
        let entries = |process: &Process| process.stations[owner].engine.stats().index_items;
        let entries_before = entries(&self.process);
        match self.process.execute(&request, ticket, &now) {
            Err(ticket) => {
                let is_ready = ticket == 0 && self.process.stations[owner].engine.await_room();
                self.waiting.push(Waiting { request, owner, ticket, is_ready });
            }
            Ok((seen, _)) if seen.verdict == Verdict::DiskFailed => {
                assert!(self.may_fail, "{request:?}: {seen:?}");
                self.failed += 1;
            }
            Ok((seen, durability)) => {
                // A reply to a delete does not say whether a remnant is left. The index does.
                let has_room = entries(&self.process) == entries_before;
                self.judge(&request, (&seen, durability), has_room, &now);
            }
        }
    }

    /// Compares an answer with that of the model. `has_room`: there was room for what a delete
    /// leaves.
    fn judge(
        &mut self,
        request: &Request,
        (seen, durability): (&Seen, Durability),
        has_room: bool,
        now: &Now,
    ) {
        self.executed += 1;
        let (bytes, owner) = (key_bytes(request.key), self.process.owner(request.key));
        let operation = Operation { key: self.process.hasher.key(&bytes), verb: request.verb };
        let durable = self.process.stations[owner].engine.durable().sequence().0;
        let flushes = self.ledger.flushes.by(now.unix(now.second));
        self.ledger.flushes = flushes;
        let oracle = &mut self.ledger.oracles[owner];
        oracle.model.has_room = has_room;
        let bytes_before =
            oracle.model.items[request.key].as_ref().map_or(0, |item| item.value.len());
        let refused = oracle.answered(
            (&operation, &request.value),
            (seen, durability),
            durable,
            (now, flushes),
        );
        let refused = refused.unwrap_or_else(|fault| panic!("{fault}"));
        let is_long = bytes_before + request.value.len() > ACCEPTED_BYTES_MAX;
        assert!(!refused || is_long || self.may_fail, "{operation:?}: {seen:?}");
        self.refused += u64::from(refused);
    }

    /// Submits what is queued, and completes what is due next. `seen` is called while each
    /// operation is in flight.
    pub(crate) fn pump(&mut self, mut seen: impl FnMut(&Self, &'static str)) {
        for engine in 0..self.process.stations.len() {
            while let Some(name) = self.process.submit(engine) {
                seen(self, name);
            }
        }
        self.process.complete();
    }

    /// Executes all that waits, and lets the disk come to rest.
    pub(crate) fn settle(&mut self) {
        for turn in 0..TURNS_MAX {
            self.pump(|_, _| {});
            self.execute_ready();
            if turn % 50 == 49 {
                self.process.store.clock.advance_s(1);
                self.process.maintain();
            }
            if self.waiting.is_empty() && self.process.store.disk.in_flight() == 0 && turn > 100 {
                return;
            }
        }
        panic!("this is never executed: {:?}", self.waiting);
    }
}

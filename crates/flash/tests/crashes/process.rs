//! The engines of a process over a store, driven as a shard drives them.
//!
//! Upstream:   `traffic`, and the tests.
//! Downstream: `kachel_flash` by the contract of engines; `files`.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use kachel_engine::{
    Answer, Block, ClockOrigin, Common as _, DeadFound, Durability, Engine as _, EngineOptions,
    Extensions as _, GetTerms, INLINE_VALUE_BYTES_MAX, KeyHasher, LeaseOptions, Now,
    OpenEngines as _, Opening, Operation, Outcome, ReadAnswer, ReadBeside as _, ReadValue,
    ReceiveValue as _, Room, Seeds, Ticket, Value, Verb, Wanted,
};
use kachel_flash::{Flash, FlashCommon, FlashOpener};
use kachel_host::Budget;
use kachel_io::{Clock as _, FileWork, Files as _, Memory};
use kachel_log::SyncMode;
use kachel_stdx::Reader;
use kachel_testkit::operation_name;

use crate::files::{Store, backend, completions};
use crate::model::key_bytes;
use crate::oracle::{Found, Seen};

/// Turns within which an operation that waits for a read is executed.
const TURNS_MAX: usize = 1_000;
/// The terms by which everything about an item is read.
pub(crate) const ALL: Wanted = Wanted::CLIENT_FLAGS
    .with(Wanted::CAS)
    .with(Wanted::VALUE_BYTES)
    .with(Wanted::TTL)
    .with(Wanted::MARKS);

/// One operation of a client.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) key: usize,
    pub(crate) verb: Verb,
    pub(crate) value: Vec<u8>,
}

/// An engine and its backend.
#[derive(Debug)]
pub(crate) struct Station {
    pub(crate) engine: Flash,
    memory: Memory,
    /// The tickets that the engine has named and that were not used.
    pub(crate) ready: BTreeSet<u64>,
    /// How often it has named those that wait for room.
    pub(crate) rooms_named: u64,
    /// What the sync in flight makes durable, and what is durable, in the engine's sequence.
    syncing: u64,
    synced: u64,
    /// The operations that were submitted, and those of them that change the disk.
    pub(crate) submitted: u64,
    pub(crate) changes: u64,
    /// The bytes of the writes that were submitted.
    pub(crate) written_bytes: u64,
}

/// Engines that run.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) stations: Vec<Station>,
    pub(crate) store: Store,
    pub(crate) common: FlashCommon,
    pub(crate) hasher: KeyHasher,
    origin: ClockOrigin,
    core: Reader,
    /// The core that reads beside the owner.
    beside: Reader,
}

pub(crate) const fn engine_options(cas: bool) -> EngineOptions {
    let leases = LeaseOptions { lease_s: 3, stale_s: 5, ..LeaseOptions::DEFAULT };
    EngineOptions { evict: true, cas, item_bytes_max: 1 << 20, leases }
}

/// The bytes of a value.
fn bytes_of(value: Value<'_, impl ReadValue>) -> Option<Vec<u8>> {
    match value {
        Value::None => None,
        Value::Inline(value) => Some(value.to_vec()),
        Value::Pinned { pinned, bytes } => {
            let mut value = Vec::with_capacity(bytes);
            while value.len() < bytes {
                value.extend_from_slice(pinned.piece_at(value.len()));
            }
            Some(value)
        }
    }
}

impl Process {
    /// Starts the engines of a store.
    ///
    /// Errors: the store is refused.
    pub(crate) fn start(store: &Store) -> io::Result<Self> {
        let store = store.clone();
        let origin = ClockOrigin::new(store.clock.now_ns(), store.clock.unix_s());
        let hasher = KeyHasher::new(Seeds { hash_keys: [3, 5] }, store.engines);
        let budget = Arc::new(Budget::new(store.memory_bytes));
        let opening = Opening {
            engines: store.engines,
            cores: 1,
            hasher,
            options: engine_options(store.cas),
            budget,
            budget_bytes_max: store.memory_bytes,
            process_bytes: 0,
            start: origin.start(),
        };
        let engines = FlashOpener::new(store.options, store.clone()).open(&opening)?;
        let common = engines[0].common();
        let core = common.register_core().expect("a place for one core");
        let beside = common.register_core().expect("a place for a reader");
        let station = |engine| Station {
            engine,
            memory: backend(&store.disk),
            ready: BTreeSet::new(),
            rooms_named: 0,
            syncing: 0,
            synced: 0,
            submitted: 0,
            changes: 0,
            written_bytes: 0,
        };
        let stations = engines.into_iter().map(station).collect();
        Ok(Self { stations, store, common, hasher, origin, core, beside })
    }

    pub(crate) fn now(&self) -> Now {
        self.origin.at(self.store.clock.now_ns())
    }

    /// The engine of a key.
    pub(crate) fn owner(&self, key: usize) -> usize {
        self.hasher.owner(self.hasher.key(&key_bytes(key)).hashes()).number()
    }

    /// Up to which sequence the changes of an engine must be there after the process ends, or
    /// after the power is cut as well.
    pub(crate) fn acknowledged(&self, engine: usize, is_power_cut: bool) -> u64 {
        let station = &self.stations[engine];
        match self.store.options.sync {
            SyncMode::Interval(_) | SyncMode::Os if is_power_cut => station.synced,
            _ => station.engine.durable().sequence().0,
        }
    }

    /// Executes a request. `Err`: later, with this ticket.
    pub(crate) fn execute(
        &mut self,
        request: &Request,
        ticket: Option<u64>,
        now: &Now,
    ) -> Result<(Seen, Durability), u64> {
        let owner = self.owner(request.key);
        self.stations[owner].engine.enter(self.core.place(), now);
        self.execute_entered(request, ticket, now)
    }

    /// Executes a request in the same hold as what was done before.
    pub(crate) fn execute_entered(
        &mut self,
        request: &Request,
        ticket: Option<u64>,
        now: &Now,
    ) -> Result<(Seen, Durability), u64> {
        let owner = self.owner(request.key);
        let (engine, place) = (&mut self.stations[owner].engine, self.core.place());
        let bytes = key_bytes(request.key);
        let operation = Operation { key: self.hasher.key(&bytes), verb: request.verb };
        let mut upload = None;
        if request.value.len() > INLINE_VALUE_BYTES_MAX {
            let mut begun = self.common.begin_upload(request.value.len(), place).ok_or(0_u64)?;
            for piece in request.value.chunks(4096) {
                while begun.write(piece).is_err() {
                    if engine.make_upload_room(piece.len(), now) != Room::Made {
                        return Err(0);
                    }
                }
            }
            upload = Some(begun);
        }
        let ticket = ticket.map(Ticket);
        let answer = match request.verb {
            Verb::Get(terms) => engine.read(&operation.key, &terms, ticket, now),
            Verb::Store(_) => {
                let mut block = match upload {
                    Some(upload) => Block::Upload(upload),
                    None => Block::Bytes(&request.value),
                };
                engine.execute(&operation, &mut block, ticket, now)
            }
            _ => engine.execute(&operation, &mut Block::None, ticket, now),
        };
        let (outcome, durability) = match answer {
            Answer::Done(outcome, durability) => (outcome, durability),
            Answer::Later(Ticket(ticket)) => return Err(ticket),
        };
        let verdict = outcome.verdict;
        Ok((Seen { verdict, value: bytes_of(outcome.value) }, durability))
    }

    /// Reads an item on another core. `None`: only the owner can.
    pub(crate) fn read_beside(
        &mut self,
        key: usize,
        terms: &GetTerms,
        now: &Now,
    ) -> Option<(Seen, Durability)> {
        let reader = self.stations[self.owner(key)].engine.reader();
        let (bytes, mut dead) = (key_bytes(key), DeadFound::default());
        self.beside.wake();
        let key = self.hasher.key(&bytes);
        let read = reader.read(&key, None, terms, &self.beside, now, &mut dead);
        let answer = match read {
            ReadAnswer::Done(Outcome { verdict, value }, durability) => {
                Some((Seen { verdict, value: bytes_of(value) }, durability))
            }
            ReadAnswer::AskOwner => None,
        };
        self.beside.sleep();
        answer
    }

    /// Executes a request, while nothing else is under way.
    pub(crate) fn ask(&mut self, request: &Request, now: &Now) -> Seen {
        let owner = self.owner(request.key);
        let mut ticket = None;
        for _ in 0..TURNS_MAX {
            match self.execute(request, ticket.take(), now) {
                Ok((seen, _)) => return seen,
                Err(0) => {
                    self.maintain();
                    self.turn();
                }
                Err(wanted) => {
                    for _ in 0..TURNS_MAX {
                        self.turn();
                        if self.stations[owner].ready.remove(&wanted) {
                            break;
                        }
                    }
                    ticket = Some(wanted);
                }
            }
        }
        panic!("{:?} of key {} is never executed", request.verb, request.key);
    }

    /// The item of a key. `Err`: it cannot be read.
    pub(crate) fn find(&mut self, key: usize, now: &Now) -> Result<Option<Found>, ()> {
        let terms = GetTerms { wanted: ALL, notes_access: false, ..GetTerms::VALUE };
        let Seen { verdict, value } =
            self.ask(&Request { key, verb: Verb::Get(terms), value: Vec::new() }, now);
        match verdict {
            kachel_engine::Verdict::Miss => Ok(None),
            kachel_engine::Verdict::Hit(facts) => {
                let unix_s = |left_s| now.unix(now.second) + left_s;
                Ok(Some(Found {
                    value: value.expect("it is wanted"),
                    client_flags: facts.client_flags,
                    token: facts.cas,
                    expiry_unix_s: facts.ttl_before.map_or(0, unix_s),
                    stale: facts.stale,
                    win_sent: facts.win_sent,
                    protocol_mark: facts.protocol_mark.expect("it is wanted"),
                }))
            }
            _ => Err(()),
        }
    }

    /// The next operation of an engine is submitted. Returns its name.
    pub(crate) fn submit(&mut self, engine: usize) -> Option<&'static str> {
        let station = &mut self.stations[engine];
        let operation = station.engine.next_submission()?;
        let name = operation_name(&operation.work);
        station.submitted += 1;
        station.changes += u64::from(!matches!(operation.work, FileWork::Read(_)));
        match &operation.work {
            FileWork::Sync { .. } => station.syncing = station.engine.durable().sequence().0,
            FileWork::Write { transfer, .. } => station.written_bytes += transfer.bytes as u64,
            _ => {}
        }
        station.memory.submit(operation).expect("there is room");
        Some(name)
    }

    /// Completes what is due next.
    pub(crate) fn complete(&mut self) {
        self.store.disk.advance_to_next_due();
        let now_ns = self.store.clock.now_ns();
        for station in &mut self.stations {
            let Station { engine, memory, ready, rooms_named, syncing, synced, .. } = station;
            let mut name = |ticket| {
                *rooms_named += u64::from(ticket == Ticket::ROOM.0);
                ready.insert(ticket);
            };
            for operation in completions(memory) {
                if matches!(operation.work, FileWork::Sync { .. }) && operation.result().is_ok() {
                    *synced = *syncing;
                }
                engine.complete(operation, &mut name);
            }
            if engine.deadline_ns().is_some_and(|deadline_ns| deadline_ns <= now_ns) {
                engine.reach(now_ns, &mut name);
            }
        }
    }

    /// Submits what is queued, and completes what is due next.
    pub(crate) fn turn(&mut self) {
        for engine in 0..self.stations.len() {
            while self.submit(engine).is_some() {}
        }
        self.complete();
    }

    /// Lets the disk come to rest.
    pub(crate) fn rest(&mut self) {
        while {
            self.turn();
            self.store.disk.in_flight() > 0
        } {}
    }

    /// Upkeep, as in each second.
    pub(crate) fn maintain(&mut self) {
        let (now, now_ns) = (self.now(), self.store.clock.now_ns());
        for Station { engine, ready, .. } in &mut self.stations {
            engine.enter(self.core.place(), &now);
            for _ in 0..10 {
                if engine.maintain(&now) == 0 {
                    break;
                }
            }
            engine.reach(now_ns, &mut |ticket| _ = ready.insert(ticket));
        }
    }
}

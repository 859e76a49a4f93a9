//! An engine whose changes become durable later, and whose cold items must be fetched: which
//! replies wait, what wakes them, and what takes a record. An item is fetched by an operation on
//! files, or when the test says so.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use kachel_cache::{Cache, CacheOpener};
use kachel_engine::{
    Answer, Block, Cursor, Durability, DurableWord, Engine, EngineIndex, EngineStats, Extensions,
    GetTerms, ItemView, Key, KeyHasher, Now, OpenEngines, Opening, Operation, Seeds, Sequence,
    Ticket, Verb, WalkStep,
};
use kachel_io::memory::disk::{Disk, FaultPlan};
use kachel_io::{FILE_OPERATIONS_MAX, FarEnd, FileOperation, FileWork, FolderHandle, ManualClock};
use kachel_shard::{AfterTick, HOLD_BYTES_MAX};
use kachel_stdx::Place;
use kachel_testkit::{Uncounted, World, WorldOptions};
use kachel_wire::Frame;

const ENGINES: u16 = 2;
/// Numbers of cores: a home for each engine, one for both, and a core that is the home of none.
const CORES: [u16; 3] = [2, 1, 3];
const SEEDS: Seeds = Seeds { hash_keys: [3, 4] };

/// What a test has an engine do.
#[derive(Default)]
struct Wanted {
    /// The sequence of the changes that are made now.
    commit: AtomicU64,
    /// The sequence that becomes durable when the engine is entered next.
    durable: AtomicU64,
    /// Whether cold items are fetched when the engine is entered next.
    fetched: AtomicBool,
    /// Whether the next step of upkeep has an operation on files.
    upkeep: AtomicBool,
    /// The work of a request that asks for a cold item, in bytes.
    fetch_work: AtomicU64,
    /// How many steps of upkeep the engine has done.
    upkeep_steps: AtomicU64,
}

/// A cache that promises durability, and whose keys that begin with `cold` must be fetched.
struct Logged {
    cache: Cache,
    wanted: Arc<Wanted>,
    word: Arc<DurableWord>,
    /// Tickets that are not named, and the last ticket given.
    unnamed: Vec<u64>,
    given: u64,
    /// The work of fetching, in bytes.
    fetch_work: u64,
    /// The folder whose disk fetches cold items; `None`: the test does.
    folder: Option<FolderHandle>,
    queued: VecDeque<Box<FileOperation>>,
}

impl Logged {
    fn new(cache: Cache, wanted: Arc<Wanted>, folder: Option<FolderHandle>) -> Self {
        let (word, unnamed, queued) = (Arc::default(), Vec::new(), VecDeque::new());
        Self { cache, wanted, word, unnamed, given: 0, fetch_work: 0, folder, queued }
    }

    fn fetch(&mut self, key: &Key<'_>, ticket: Option<&Ticket>) -> Option<Ticket> {
        if !key.bytes().starts_with(b"cold") || ticket.is_some() {
            return None;
        }
        self.fetch_work += self.wanted.fetch_work.load(Relaxed);
        self.queue();
        Some(Ticket(self.given))
    }

    /// Gives a ticket. If there is a disk, queues an operation for it, which stands for a read:
    /// what is read does not matter here.
    fn queue(&mut self) {
        self.given += 1;
        self.unnamed.push(self.given);
        if let Some(folder) = &self.folder {
            let mut operation = FileOperation::new(self.given);
            operation.work = FileWork::SyncFolder { folder: folder.clone() };
            self.queued.push_back(operation);
        }
    }
}

impl Engine for Logged {
    type Upload = <Cache as Engine>::Upload;
    type Pinned = <Cache as Engine>::Pinned;
    type Submission = Box<FileOperation>;
    type Completion = Box<FileOperation>;
    type Reader = <Cache as Engine>::Reader;
    type Common = <Cache as Engine>::Common;

    fn common(&self) -> Self::Common {
        self.cache.common()
    }

    fn reader(&self) -> Self::Reader {
        Engine::reader(&self.cache)
    }

    fn execute<'e>(
        &'e mut self,
        operation: &Operation<'_>,
        block: &mut Block<'_, Self::Upload>,
        ticket: Option<Ticket>,
        now: &Now,
    ) -> Answer<'e, Self::Pinned> {
        let changes = matches!(operation.verb, Verb::Store(_) | Verb::Delete(_));
        let durability = match changes {
            true => Durability::At(Sequence(self.wanted.commit.load(Relaxed))),
            false => Durability::Now,
        };
        match self.cache.execute(operation, block, ticket, now) {
            Answer::Done(outcome, _) => Answer::Done(outcome, durability),
            later => later,
        }
    }

    fn read<'e>(
        &'e mut self,
        key: &Key<'_>,
        terms: &GetTerms,
        ticket: Option<Ticket>,
        now: &Now,
    ) -> Answer<'e, Self::Pinned> {
        match self.fetch(key, ticket.as_ref()) {
            Some(ticket) => Answer::Later(ticket),
            None => self.cache.read(key, terms, None, now),
        }
    }

    fn await_room(&mut self) -> bool {
        self.cache.await_room()
    }

    fn deadline_ns(&self) -> Option<u64> {
        let Wanted { durable, fetched, .. } = &*self.wanted;
        let is_due = !self.word.has_reached(Sequence(durable.load(Relaxed)))
            || fetched.load(Relaxed) && !self.unnamed.is_empty();
        is_due.then_some(0)
    }

    fn reach(&mut self, _now_ns: u64, ready: &mut impl FnMut(u64)) {
        self.word.advance(Sequence(self.wanted.durable.load(Relaxed)));
        if self.wanted.fetched.load(Relaxed) {
            self.unnamed.drain(..).for_each(ready);
        }
    }

    fn next_submission(&mut self) -> Option<Box<FileOperation>> {
        self.queued.pop_front()
    }

    fn complete(&mut self, operation: Box<FileOperation>, ready: &mut impl FnMut(u64)) {
        assert!(operation.result().is_ok(), "the disk has no faults");
        // What was forgotten is not known any more.
        let place = self.unnamed.iter().position(|ticket| *ticket == operation.token);
        place.into_iter().for_each(|place| ready(self.unnamed.swap_remove(place)));
    }

    fn forget(&mut self, ticket: Ticket) {
        self.unnamed.retain(|unnamed| *unnamed != ticket.0);
    }

    fn durable(&self) -> &Arc<DurableWord> {
        &self.word
    }

    fn maintain(&mut self, now: &Now) -> usize {
        self.wanted.upkeep_steps.fetch_add(1, Relaxed);
        if self.wanted.upkeep.swap(false, Relaxed) {
            self.queue();
        }
        self.cache.maintain(now)
    }

    fn walk(
        &mut self,
        cursor: &mut Cursor,
        now: &Now,
        items_max: usize,
        show: impl FnMut(&[u8], &dyn ItemView<'_>) -> bool,
    ) -> WalkStep {
        self.cache.walk(cursor, now, items_max, show)
    }

    fn work_bytes(&self) -> u64 {
        self.cache.work_bytes() + self.fetch_work
    }

    fn stats(&self) -> EngineStats {
        Engine::stats(&self.cache)
    }
}

impl Extensions for Logged {
    fn enter(&mut self, core: Place, now: &Now) {
        self.cache.enter(core, now);
    }
}

struct LoggedOpener<'w> {
    wanted: &'w [Arc<Wanted>; ENGINES as usize],
    folder: Option<FolderHandle>,
}

impl OpenEngines for LoggedOpener<'_> {
    type Engine = Logged;

    fn budget_bytes_min(engines: u16) -> u64 {
        CacheOpener::budget_bytes_min(engines)
    }

    fn open(&self, opening: &Opening) -> std::io::Result<Vec<Logged>> {
        let caches = CacheOpener::default().open(opening)?.into_iter().zip(self.wanted);
        let logged = |(cache, wanted)| Logged::new(cache, Arc::clone(wanted), self.folder.clone());
        Ok(caches.map(logged).collect())
    }
}

struct Bench {
    world: World<Uncounted, Logged>,
    wanted: [Arc<Wanted>; ENGINES as usize],
}

impl Bench {
    fn new(cores: u16) -> Self {
        Self::over(cores, None)
    }

    fn options(cores: u16) -> WorldOptions {
        WorldOptions {
            shards: cores,
            engines: Some(ENGINES),
            seeds: SEEDS,
            memory_bytes: 4 << 20, // An eighth of it is for requests that wait.
            stays: true,
            ..WorldOptions::default()
        }
    }

    fn over(cores: u16, folder: Option<&FolderHandle>) -> Self {
        Self::of(Self::options(cores), folder)
    }

    fn of(options: WorldOptions, folder: Option<&FolderHandle>) -> Self {
        let wanted: [Arc<Wanted>; ENGINES as usize] = Default::default();
        let opener = LoggedOpener { wanted: &wanted, folder: folder.cloned() };
        let world = World::over(options, |_| Uncounted, &opener);
        Self { world, wanted }
    }

    /// A server with a disk, whose operations take up to `latency_ns`.
    fn with_disk(cores: u16, latency_ns: u64) -> (Self, Disk) {
        let disk = Disk::new(1, &ManualClock::new(0));
        disk.set_plan(FaultPlan { latency_ns: Some(1..=latency_ns), ..FaultPlan::default() });
        let mut bench = Self::over(cores, Some(&disk.folder("cold")));
        bench.world.shards.iter_mut().for_each(|shard| shard.io_mut().use_disk(&disk));
        (bench, disk)
    }

    /// Lets time pass until the disk has nothing to do. Nothing but the disk wakes a core.
    fn fetch_all(&mut self, disk: &Disk) {
        for _ in 0..10_000 {
            if !disk.advance_to_next_due() {
                return;
            }
            self.world.rest();
        }
        panic!("the disk is never done");
    }

    /// Runs the cores until all sleep. Nothing but a wake-up ends their sleep.
    fn ask(&mut self, client: &FarEnd, input: &str) -> String {
        client.write(input.as_bytes());
        self.world.rest();
        String::from_utf8(client.read()).expect("text")
    }

    /// Lets the changes of an engine up to a sequence become durable, by a request of a client that
    /// enters it. Returns what `other` gets.
    fn advance(&mut self, engine: u16, sequence: u64, by: &FarEnd, other: &FarEnd) -> String {
        self.wanted[usize::from(engine)].durable.store(sequence, Relaxed);
        let touch = format!("touch {} 1\r\n", key(engine, "absent"));
        assert_eq!(self.ask(by, &touch), "NOT_FOUND\r\n");
        String::from_utf8(other.read()).expect("text")
    }
}

/// A key that begins with `name`, and belongs to an engine.
fn key(engine: u16, name: &str) -> String {
    let hasher = KeyHasher::new(SEEDS, ENGINES);
    let owner = |key: &String| hasher.owner(hasher.key(key.as_bytes()).hashes());
    let found = (0..64).map(|number| format!("{name}{number}")).find(|key| owner(key).0 == engine);
    found.expect("half of the keys do")
}

fn set(engine: u16, name: &str) -> String {
    format!("set {} 0 0 1\r\nv\r\n", key(engine, name))
}

#[test]
fn replies_wait_for_the_fence_of_their_own_engine_and_keep_their_order() {
    for cores in CORES {
        let mut bench = Bench::new(cores);
        let (client, other) = (bench.world.connect(), bench.world.connect());
        let hit = key(0, "hit");
        assert_eq!(bench.ask(&client, &set(0, "hit")), "STORED\r\n", "sequence 0 is durable");
        bench.wanted.iter().for_each(|wanted| wanted.commit.store(5, Relaxed));
        let get = format!("get {hit}\r\n");
        let value = format!("VALUE {hit} 0 1\r\nv\r\nEND\r\n");
        let asked =
            [&get, &set(0, "a"), &set(1, "b"), &get, &set(0, "c"), "delete none\r\n"].concat();
        assert_eq!(bench.ask(&client, &asked), value, "what stands before the first fence is sent");
        assert_eq!(bench.ask(&other, &get), value, "another connection does not wait");
        assert_eq!(bench.world.parked(), 0, "nothing takes a record");
        assert_eq!(bench.advance(1, 5, &other, &client), "", "that is another engine's fence");
        assert_eq!(bench.advance(0, 4, &other, &client), "");
        let rest = bench.advance(0, 5, &other, &client);
        assert_eq!(
            rest,
            ["STORED\r\n", "STORED\r\n", &value, "STORED\r\n", "NOT_FOUND\r\n"].concat()
        );
        // Each engine alone.
        bench.wanted.iter().for_each(|wanted| wanted.commit.store(9, Relaxed));
        assert_eq!(bench.ask(&client, &[set(1, "d"), set(0, "e")].concat()), "");
        assert_eq!(bench.advance(1, 9, &other, &client), "STORED\r\n");
        assert_eq!(bench.advance(0, 9, &other, &client), "STORED\r\n");
    }
}

#[test]
fn a_client_that_leaves_before_its_fence_leaves_nothing() {
    for cores in CORES {
        let mut bench = Bench::new(cores);
        let (client, other) = (bench.world.connect(), bench.world.connect());
        bench.wanted[0].commit.store(3, Relaxed);
        let sets: String = (0..40).map(|number| set(0, &format!("n{number}-"))).collect();
        assert_eq!(bench.ask(&client, &sets), "");
        client.reset();
        bench.world.rest();
        bench.advance(0, 3, &other, &client);
        assert!(bench.world.holdings().all(|held| held.reply_slots == 0));
        let later = bench.world.connect();
        assert_eq!(bench.ask(&later, &set(0, "n")), "STORED\r\n", "its index may be used again");
    }
}

/// The fault: the fences of clients that were gone stayed until the disk went on.
#[test]
fn clients_that_come_and_leave_while_a_disk_stalls_leave_a_bounded_number_of_fences() {
    const CLIENTS: u64 = 300;
    for cores in CORES {
        let mut bench = Bench::new(cores);
        let (stays, other) = (bench.world.connect(), bench.world.connect());
        bench.wanted.iter().for_each(|wanted| wanted.commit.store(3, Relaxed));
        assert_eq!(bench.ask(&stays, &[set(0, "a"), set(1, "b")].concat()), "");
        for _ in 0..CLIENTS {
            let client = bench.world.connect();
            assert_eq!(bench.ask(&client, &set(1, "c")), "");
            client.reset();
            bench.world.rest();
        }
        let listed = |bench: &Bench| bench.world.holdings().map(|held| held.fences).sum::<u64>();
        assert!((2..CLIENTS / 2).contains(&listed(&bench)), "{} are listed", listed(&bench));
        assert_eq!(bench.advance(0, 3, &other, &stays), "STORED\r\n", "those that stay are listed");
        assert_eq!(bench.advance(1, 3, &other, &stays), "STORED\r\n");
        assert_eq!(listed(&bench), 0);
    }
}

#[test]
fn a_parked_request_comes_back_at_once_with_its_fence() {
    for cores in CORES {
        let mut bench = Bench::new(cores);
        let (client, other) = (bench.world.connect(), bench.world.connect());
        bench.wanted[1].commit.store(2, Relaxed);
        let engines = Arc::clone(&bench.world.engines);
        let held = engines.hold(EngineIndex(1)).expect("nobody holds it");
        assert_eq!(bench.ask(&client, &(set(1, "a") + "mn\r\n")), "");
        assert_eq!(bench.world.parked(), 1);
        drop(held);
        assert_eq!(bench.ask(&client, ""), "", "it is executed, and not durable");
        assert!(bench.world.holdings().all(|held| held.delayed == 0), "its record is back");
        assert_eq!(bench.advance(1, 2, &other, &client), "STORED\r\nMN\r\n");
    }
}

/// The fault: once a fence of a datagram was lost, its parked requests were not awaited any more,
/// and its later ones overtook them.
#[test]
fn the_rest_of_a_datagram_whose_fence_is_lost_overtakes_no_parked_request() {
    let mut options = WorldOptions { udp: Some(1), ..Bench::options(2) };
    options.plain.requests_per_tick = Some(2);
    let mut bench = Bench::of(options, None);
    let client = bench.world.connect();
    let kept = key(1, "kept");
    assert_eq!(bench.ask(&client, &format!("set {kept} 0 0 1\r\na\r\n")), "STORED\r\n");
    bench.wanted[0].commit.store(5, Relaxed);
    bench.world.engines.inspect(EngineIndex(0), |engine: &Logged| engine.word.fail());
    let engines = Arc::clone(&bench.world.engines);
    let held = engines.hold(EngineIndex(1)).expect("nobody holds it");
    let asked = format!("append {kept} 0 0 1\r\nb\r\nset {kept} 0 0 1\r\nc\r\n");
    let frame = Frame { request_id: 1, sequence: 0, total: 1 }.bytes();
    let datagram = [&frame[..], set(0, "lost").as_bytes(), asked.as_bytes()].concat();
    bench.world.send_datagram(0, ([10, 0, 0, 7], 4000).into(), &datagram);
    bench.world.turn_of(0);
    assert_eq!(bench.world.parked(), 1, "the append; the last request waits for its turn");
    drop(held);
    bench.world.turn_of(0);
    bench.world.rest();
    assert_eq!(bench.world.take_datagrams(0), [], "its client gets no reply");
    let value = format!("VALUE {kept} 0 1\r\nc\r\nEND\r\n");
    assert_eq!(bench.ask(&client, &format!("get {kept}\r\n")), value);
    assert!(bench.world.holdings().all(|held| held.reply_slots == 0));
}

#[test]
fn cold_reads_wait_for_their_tickets_and_hits_take_no_record() {
    for cores in CORES {
        const CLIENTS: usize = 60;
        let mut bench = Bench::new(cores);
        let other = bench.world.connect();
        let clients: Vec<_> = (0..CLIENTS).map(|_| bench.world.connect()).collect();
        let hit = key(0, "hit");
        bench.ask(&other, &set(0, "hit"));
        for (number, client) in clients.iter().enumerate() {
            client.write(format!("get cold{number}\r\nget cold{number}\r\nmn\r\n").as_bytes());
        }
        bench.world.rest();
        let waiting: u64 = bench.world.holdings().map(|held| held.delayed).sum();
        let parked = bench.world.parked();
        assert!(waiting > 0 && parked == waiting, "{waiting} of {parked} wait");
        let value = format!("VALUE {hit} 0 1\r\nv\r\nEND\r\n");
        assert_eq!(bench.ask(&other, &format!("get {hit}\r\n").repeat(50)), value.repeat(50));
        assert_eq!(bench.world.parked(), parked, "a hit takes no record");
        clients[..9].iter().for_each(FarEnd::reset);
        bench.world.rest();
        for (engine, wanted) in (0..).zip(bench.wanted.clone()) {
            wanted.fetched.store(true, Relaxed);
            bench.advance(engine, 0, &other, &other);
        }
        for client in &clients[9..] {
            assert_eq!(client.read(), b"END\r\nEND\r\nMN\r\n");
        }
        assert!(bench.world.holdings().all(|held| held.delayed == 0 && held.reply_slots == 0));
        let unnamed = |engine: &Logged| engine.unnamed.len();
        let mut all = (0..ENGINES).map(EngineIndex);
        assert!(all.all(|engine| bench.world.engines.inspect(engine, unnamed) == 0));
    }
}

/// Has each client ask for `count` cold keys of its own, all of them from engine 0.
fn ask_for_cold(clients: &[FarEnd], count: usize) {
    ask_engine_for_cold(0, clients, count);
}

fn ask_engine_for_cold(engine: u16, clients: &[FarEnd], count: usize) {
    for (number, client) in clients.iter().enumerate() {
        let cold = |cold| key(engine, &format!("cold{number}-{cold}-"));
        let asks = (0..count).map(|number| format!("get {}\r\n", cold(number)));
        client.write((asks.collect::<String>() + "mn\r\n").as_bytes());
    }
}

#[test]
fn cold_reads_are_fetched_by_the_disk_and_more_than_it_takes_at_once() {
    for cores in CORES {
        const CLIENTS: usize = 12;
        const COLD: usize = 30;
        let (mut bench, disk) = Bench::with_disk(cores, 40_000);
        let (other, clients) =
            (bench.world.connect(), [(); CLIENTS].map(|()| bench.world.connect()));
        bench.ask(&other, &set(0, "hit"));
        ask_for_cold(&clients, COLD);
        bench.world.rest();
        assert_eq!(disk.in_flight(), FILE_OPERATIONS_MAX, "the others are left with the engine");
        let parked = bench.world.parked();
        assert!(parked > FILE_OPERATIONS_MAX as u64, "{parked} wait");
        let hit = key(0, "hit");
        let value = format!("VALUE {hit} 0 1\r\nv\r\nEND\r\n");
        assert_eq!(bench.ask(&other, &format!("get {hit}\r\n")), value);
        assert_eq!(bench.world.parked(), parked, "a hit takes no record");
        let before = bench.world.sum(|counters| &counters.ticks);
        bench.fetch_all(&disk);
        let ticks = bench.world.sum(|counters| &counters.ticks) - before;
        let operations = (CLIENTS * COLD) as u64;
        assert!(ticks <= 4 * operations, "{ticks} ticks for {operations} operations");
        let all = "END\r\n".repeat(COLD) + "MN\r\n";
        assert!(clients.iter().all(|client| client.read() == all.as_bytes()), "in their order");
        assert!(bench.world.holdings().all(|held| held.delayed == 0 && held.reply_slots == 0));
    }
}

/// The fault: an operation that upkeep had queued was not yet submitted when the next tick counted
/// the room of the backend.
#[test]
fn an_operation_of_upkeep_takes_the_last_room() {
    for cores in CORES {
        let (mut bench, disk) = Bench::with_disk(cores, 40_000);
        let clients: Vec<_> = (1..FILE_OPERATIONS_MAX).map(|_| bench.world.connect()).collect();
        let other = bench.world.connect();
        ask_for_cold(&clients, 1);
        bench.world.rest();
        assert_eq!(disk.in_flight(), FILE_OPERATIONS_MAX - 1, "there is room for one");
        bench.wanted[0].upkeep.store(true, Relaxed);
        for request in ["set k 0 0 1\r\nv\r\n", &format!("get {}\r\n", key(0, "cold-last"))] {
            other.write(request.as_bytes());
            bench.world.turn();
        }
        bench.world.rest();
        assert_eq!(disk.in_flight(), FILE_OPERATIONS_MAX);
        bench.fetch_all(&disk);
        assert_eq!(other.read(), b"STORED\r\nEND\r\n");
        assert!(bench.world.holdings().all(|held| held.delayed == 0 && held.reply_slots == 0));
    }
}

/// The fault: the engine that was released first took all the room, again and again.
#[test]
fn engines_of_a_core_share_the_room_for_operations_on_files() {
    const CLIENTS: usize = 16;
    const EACH: usize = FILE_OPERATIONS_MAX / ENGINES as usize / CLIENTS;
    let (mut bench, disk) = Bench::with_disk(1, 1);
    let clients = [(); CLIENTS].map(|()| bench.world.connect());
    let others = [(); CLIENTS].map(|()| bench.world.connect());
    ask_for_cold(&clients, 25);
    bench.world.rest();
    assert_eq!(disk.in_flight(), FILE_OPERATIONS_MAX, "more of engine 0 are left");
    ask_engine_for_cold(1, &others, EACH);
    // All that are in flight complete together, two times.
    for _ in 0..2 {
        bench.world.rest();
        assert_eq!(disk.in_flight(), FILE_OPERATIONS_MAX, "no room is left free");
        disk.advance_to_next_due();
    }
    bench.world.rest();
    let all = "END\r\n".repeat(EACH) + "MN\r\n";
    assert!(others.iter().all(|client| client.read() == all.as_bytes()), "it had its share");
    assert!(clients.iter().any(|client| !client.read().ends_with(b"MN\r\n")), "they still wait");
    bench.fetch_all(&disk);
}

#[test]
fn what_completes_while_another_core_holds_the_engine_is_not_lost() {
    for cores in CORES {
        let (mut bench, disk) = Bench::with_disk(cores, 40_000);
        let client = [bench.world.connect()];
        ask_for_cold(&client, 10);
        bench.world.rest();
        assert_eq!(disk.in_flight(), 10);
        let engines = Arc::clone(&bench.world.engines);
        let held = engines.hold(EngineIndex(0)).expect("nobody holds it");
        bench.fetch_all(&disk);
        assert_eq!((disk.in_flight(), client[0].read().len()), (0, 0), "the holder has them");
        drop(held);
        bench.world.rest();
        assert_eq!(client[0].read(), ("END\r\n".repeat(10) + "MN\r\n").into_bytes());
    }
}

#[test]
fn a_server_that_ends_waits_for_its_operations_on_files() {
    for cores in CORES {
        let (mut bench, disk) = Bench::with_disk(cores, 40_000);
        let client = [bench.world.connect()];
        ask_for_cold(&client, 5);
        bench.world.rest();
        bench.world.shared.stop();
        bench.world.turn();
        bench.world.shared.give_up_clients();
        for _ in 0..20 {
            let turns = bench.world.shards.iter_mut().map(|shard| shard.tick().expect("memory"));
            assert!(turns.collect::<Vec<_>>()[0] == AfterTick::Again, "5 operations are in flight");
        }
        while disk.advance_to_next_due() {
            bench.world.turn();
        }
        let over = |bench: &mut Bench| {
            let turns = bench.world.shards.iter_mut().map(|shard| shard.tick().expect("memory"));
            turns.fold(true, |over, turn| over & (turn == AfterTick::Finished))
        };
        assert!((0..20).any(|_| over(&mut bench)), "nothing is left");
    }
}

/// The fault: the work of a request was not counted if the engine delayed the request and there was
/// no record for it. So the next request began in a hold that had reached its bound.
#[test]
fn a_request_that_finds_no_record_counts_its_work() {
    // Connections that use up the records together: each has room for some 20 answers.
    const FILLERS: usize = 80;
    let mut bench = Bench::new(1);
    let get = format!("get {}\r\n", key(0, "cold"));
    let clients = [(); FILLERS + 2].map(|()| bench.world.connect());
    let (last, fillers) = clients.split_at(2);
    fillers.iter().for_each(|filler| filler.write(get.repeat(32).as_bytes()));
    bench.world.rest();
    let parked = bench.world.parked();
    bench.wanted[0].fetch_work.store(HOLD_BYTES_MAX, Relaxed);
    for client in last {
        assert_eq!(bench.ask(client, "mn\r\n"), "MN\r\n");
        client.write(get.as_bytes());
    }
    bench.world.turn();
    assert_eq!(bench.world.parked(), parked, "these two found none");
    let longest = &bench.world.shared.totals.cores[0].longest_hold_bytes;
    assert_eq!(longest.value(), HOLD_BYTES_MAX, "each has had a hold of its own");
}

#[test]
fn a_tick_that_has_only_read_does_no_upkeep() {
    let mut bench = Bench::new(1);
    let client = bench.world.connect();
    let (set, get) = (set(0, "hit"), format!("get {}\r\n", key(0, "hit")));
    assert_eq!(bench.ask(&client, &set), "STORED\r\n");
    bench.world.settle();
    let mut steps = |ns: u64, input: &str| {
        let before = bench.wanted[0].upkeep_steps.load(Relaxed);
        bench.world.clock.advance_ns(ns);
        client.write(input.as_bytes());
        bench.world.turn();
        bench.wanted[0].upkeep_steps.load(Relaxed) - before
    };
    assert_eq!((0..10).map(|_| steps(0, &get)).sum::<u64>(), 0);
    assert_eq!(steps(0, &set), 1, "the engine has worked");
    assert_eq!(steps(0, &get), 0, "and had nothing more to do");
    assert_eq!(steps(1_000_000_000, &get), 1, "a second has begun");
    assert_eq!(steps(0, ""), 1, "nothing is served");
}

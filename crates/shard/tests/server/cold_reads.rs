//! Reads of items that are not in memory: what they take while they wait for the disk, and what is
//! left of them afterwards. The engines are plain ones, with files on a disk in memory.

use std::sync::Arc;

use kachel_engine::EngineIndex;
use kachel_io::memory::disk::{Disk, FaultPlan};
use kachel_io::{FILE_OPERATIONS_MAX, FarEnd, FileOperation, ManualClock};
use kachel_stdx::kept;
use kachel_testkit::{Plain, PlainOpener, PlainOptions, Uncounted, World, WorldOptions};

const VALUE_BYTES: usize = 4096;
/// Cold items, and the clients that ask for them.
const ITEMS: usize = 4096;
const CLIENTS: usize = 256;
/// The memory that a waiting read may take, besides buffers in flight.
const WAITING_READ_BYTES_MAX: i64 = 512;

struct Bench {
    world: World<Uncounted, Plain>,
    disk: Disk,
}

impl Bench {
    /// A server of one core and one engine, with `items` cold items.
    fn new(memory_bytes: u64, items: usize) -> Self {
        Self::of_cores(1, memory_bytes, items)
    }

    /// A server of one engine.
    fn of_cores(shards: u16, memory_bytes: u64, items: usize) -> Self {
        let disk = Disk::new(1, &ManualClock::new(0));
        disk.set_plan(FaultPlan { latency_ns: Some(1..=1_000), ..FaultPlan::default() });
        let plain = PlainOptions { connections_max: 600, ..PlainOptions::default() };
        let engines = Some(1);
        let options = WorldOptions { shards, engines, memory_bytes, plain, ..Default::default() };
        let opener = PlainOpener(Some(disk.folder("values")));
        let mut world = World::over(options, |_| Uncounted, &opener);
        world.use_disk(&disk);
        let mut bench = Self { world, disk };
        let writer = bench.world.connect();
        for first in (0..items).step_by(64) {
            for number in first..(first + 64).min(items) {
                let line = format!("set {} 0 0 {VALUE_BYTES}\r\n", key(number));
                writer.write(&[line.as_bytes(), &value(number), b"\r\n"].concat());
            }
            bench.complete_all();
            assert_eq!(writer.read().len() % b"STORED\r\n".len(), 0);
        }
        // The values leave the memory when the engine is used after they have become durable.
        bench.ask(&writer, "touch none 0\r\n");
        bench
    }

    /// Lets time pass until the disk has nothing to do.
    fn complete_all(&mut self) {
        self.world.rest();
        for _ in 0..100_000 {
            if !self.disk.advance_to_next_due() {
                return;
            }
            self.world.rest();
        }
        panic!("the disk is never done");
    }

    fn ask(&mut self, client: &FarEnd, input: &str) -> String {
        client.write(input.as_bytes());
        self.world.rest();
        String::from_utf8(client.read()).expect("text")
    }

    /// Has each client ask for its part of the items.
    fn ask_for_all(&mut self, clients: &[FarEnd]) {
        for (number, client) in clients.iter().enumerate() {
            let items = (number..ITEMS).step_by(clients.len());
            client.write(items.map(get).collect::<String>().as_bytes());
        }
        self.world.rest();
    }

    fn delayed(&self) -> u64 {
        self.world.holdings().map(|held| held.delayed).sum()
    }

    fn waiting_bytes(&self) -> u64 {
        self.world.shared.waiting_bytes()
    }

    fn tickets(&self) -> usize {
        self.world.engines.inspect(EngineIndex(0), Plain::tickets)
    }

    fn assert_nothing_waits(&self) {
        let left = self.world.holdings().map(|held| held.delayed + held.reply_slots).sum::<u64>();
        assert_eq!((left, self.tickets()), (0, 0));
    }
}

fn get(number: usize) -> String {
    format!("get {}\r\n", key(number))
}

fn answer(number: usize) -> Vec<u8> {
    let line = format!("VALUE {} 0 {VALUE_BYTES}\r\n", key(number));
    [line.as_bytes(), &value(number), b"\r\nEND\r\n"].concat()
}

/// What one of these clients gets for its part of the items.
fn answers(client: usize, clients: usize) -> Vec<u8> {
    (client..ITEMS).step_by(clients).flat_map(answer).collect()
}

fn key(number: usize) -> String {
    format!("cold-{number:06}")
}

fn value(number: usize) -> Vec<u8> {
    let digits = format!("{number:06} ");
    digits.bytes().cycle().take(VALUE_BYTES).collect()
}

/// A server with cold items, and clients that have said something.
fn with_clients(memory_bytes: u64, clients: usize) -> (Bench, Vec<FarEnd>) {
    let mut bench = Bench::new(memory_bytes, ITEMS);
    let clients: Vec<_> = (0..clients).map(|_| bench.world.connect()).collect();
    for client in &clients {
        assert_eq!(bench.ask(client, "mn\r\n"), "MN\r\n");
    }
    (bench, clients)
}

#[test]
fn thousands_of_cold_reads_wait_in_little_memory_inside_the_limit() {
    let (mut bench, clients) = with_clients(64 << 20, CLIENTS);
    let other = bench.world.connect();
    bench.ask(&other, "set hit 0 0 1\r\nv\r\n");
    bench.complete_all();
    assert_eq!(other.read(), b"STORED\r\n");
    let parked = bench.world.parked();
    let bytes = kept(|| bench.ask_for_all(&clients)).1;
    assert_eq!((bench.delayed(), bench.disk.in_flight()), (ITEMS as u64, FILE_OPERATIONS_MAX));
    // Only operations in flight have buffers.
    let buffers = FILE_OPERATIONS_MAX * (VALUE_BYTES + size_of::<FileOperation>());
    let each = (bytes - buffers as i64) / ITEMS as i64;
    assert!(each <= WAITING_READ_BYTES_MAX, "{each} bytes a read");
    assert!(bench.waiting_bytes() >= 350 * ITEMS as u64, "they are charged");
    assert_eq!(bench.world.shared.budget.overdrawn_bytes(), 0);
    let waiting = bench.world.parked();
    assert_eq!(waiting - parked, ITEMS as u64);
    assert_eq!(bench.ask(&other, "mg hit s\r\n"), "HD s1\r\n");
    assert_eq!(bench.world.parked(), waiting, "a hit takes no record");
    bench.complete_all();
    for (number, client) in clients.iter().enumerate() {
        assert!(client.read() == answers(number, clients.len()), "client {number}");
    }
    bench.assert_nothing_waits();
}

#[test]
fn reads_that_exceed_the_memory_for_what_waits_are_not_begun() {
    let memory_bytes = 4 << 20;
    let (mut bench, clients) = with_clients(memory_bytes, 64);
    bench.ask_for_all(&clients);
    let delayed = bench.delayed();
    assert!((100..ITEMS as u64 / 2).contains(&delayed), "{delayed} wait");
    assert!(bench.waiting_bytes() <= memory_bytes / 8, "{} bytes wait", bench.waiting_bytes());
    bench.complete_all();
    for (number, client) in clients.iter().enumerate() {
        assert!(client.read() == answers(number, clients.len()), "client {number}");
    }
    bench.assert_nothing_waits();
}

/// The fault: the reads of a client that had left were fetched and executed.
#[test]
fn reads_of_clients_that_leave_are_forgotten_and_leave_nothing() {
    let (mut bench, clients) = with_clients(64 << 20, CLIENTS);
    bench.ask_for_all(&clients);
    clients.iter().for_each(FarEnd::reset);
    bench.world.rest();
    assert_eq!(bench.disk.in_flight(), FILE_OPERATIONS_MAX, "the buffers of these live on");
    bench.assert_nothing_waits();
    let requests = |bench: &Bench| bench.world.sum(|counters| &counters.requests);
    let executed = requests(&bench);
    bench.complete_all();
    assert_eq!(requests(&bench), executed);
    bench.assert_nothing_waits();
}

#[test]
fn a_read_is_forgotten_only_if_no_other_waits_for_what_it_fetches_and_writes_never_are() {
    let mut bench = Bench::new(64 << 20, 3);
    let [leaves, stays, other] = [(); 3].map(|()| bench.world.connect());
    let asked = [get(0), get(1), format!("append {} 0 0 3\r\nend\r\n", key(2)), get(2)].concat();
    assert_eq!(bench.ask(&leaves, &asked), "");
    assert_eq!(bench.ask(&stays, &get(0)), "");
    assert_eq!(bench.delayed(), 5);
    leaves.reset();
    bench.world.rest();
    // The read of 1 is gone, and that of 2 behind the append.
    assert_eq!((bench.delayed(), bench.tickets()), (3, 2));
    bench.complete_all();
    assert_eq!(stays.read(), answer(0));
    bench.assert_nothing_waits();
    other.write(get(2).as_bytes());
    bench.complete_all();
    let appended = [value(2), b"end".to_vec()].concat();
    let line = format!("VALUE {} 0 {}\r\n", key(2), appended.len());
    assert_eq!(other.read(), [line.as_bytes(), &appended, b"\r\nEND\r\n"].concat());
}

/// The fault: the reply slot of a read whose client had left was free while the engine was still to
/// forget the read. The next request for the key got the slot, was taken for the read, and was
/// forgotten: no reply came.
#[test]
fn a_request_is_not_taken_for_the_read_of_a_client_that_has_left() {
    const FILLERS: usize = 20;
    let mut bench = Bench::of_cores(2, 64 << 20, 1);
    let clients: Vec<_> = (0..2 * FILLERS).map(|_| bench.world.connect()).collect();
    // Each core has reply slots of its own, so the clients of the other core fill the queue.
    let (fillers, clients): (Vec<_>, Vec<_>) = clients.iter().partition(|client| {
        let served = |bench: &Bench| bench.world.shared.totals.cores[1].requests.value();
        let before = served(&bench);
        assert_eq!(bench.ask(client, "touch none 0\r\n"), "NOT_FOUND\r\n");
        served(&bench) > before
    });
    let (leaves, stays) = (clients[0], clients[1]);
    assert_eq!(bench.ask(leaves, &get(0)), "");
    let engines = Arc::clone(&bench.world.engines);
    let hold = engines.hold(EngineIndex(0)).expect("no core holds it");
    // More requests than the core executes in two ticks, so that the engine forgets the read later.
    fillers.iter().for_each(|filler| filler.write(&b"touch none 0 noreply\r\n".repeat(120)));
    (0..10).for_each(|_| bench.world.turn());
    leaves.reset();
    (0..2).for_each(|_| bench.world.turn());
    drop(hold);
    // The read completes, and is executed before it is forgotten.
    assert!(bench.disk.advance_to_next_due(), "a read");
    bench.world.turn();
    stays.write(get(0).as_bytes());
    bench.complete_all();
    assert_eq!(stays.read(), answer(0));
    bench.assert_nothing_waits();
}

#[test]
fn the_memory_of_a_crowd_is_given_back_by_upkeep() {
    let (mut bench, clients) = with_clients(64 << 20, CLIENTS);
    bench.ask_for_all(&clients);
    bench.complete_all();
    let crowded = bench.waiting_bytes();
    for _ in 0..130 {
        bench.world.clock.advance_s(1);
        bench.world.turn();
    }
    assert!(crowded > 1 << 20 && bench.waiting_bytes() < 200 << 10, "{}", bench.waiting_bytes());
}

//! Cores that follow the load: a machine of eight cores in virtual time, on which a request takes
//! 20 us of processor time.

use std::collections::VecDeque;

use kachel_io::FarEnd;
use kachel_testkit::{Random, World, WorldOptions, is_rest};

const CORES: u16 = 8;
const CLIENTS: usize = 400;
/// Virtual time between two looks at what the cores do.
const STEP_NS: u64 = 5_000;
/// Processor time of a request, and of a tick without its requests.
const REQUEST_NS: u64 = 20_000;
const TICK_NS: u64 = 2_000;
const MS_NS: u64 = 1_000_000;

struct Client {
    end: FarEnd,
    /// When its requests were sent that are not answered yet.
    sent_ns: VecDeque<u64>,
}

struct Machine {
    world: World,
    clients: Vec<Client>,
    now_ns: u64,
    /// When each core has done the work of its last tick.
    free_ns: Vec<u64>,
    random: Random,
    /// Requests to be sent, in parts of [`REQUEST_NS`].
    due_ns: u64,
}

impl Machine {
    fn new() -> Self {
        Self::with(false)
    }

    /// A machine whose first core keeps the clients that it accepts, if they `stay`.
    fn with(stays: bool) -> Self {
        let options = WorldOptions {
            shards: CORES,
            cores_max: Some(CORES),
            connections_max: 1000,
            stays,
            ..WorldOptions::default()
        };
        let world = World::new(options);
        let clients = (0..CLIENTS).map(|_| Client { end: world.connect(), sent_ns: [].into() });
        let clients = clients.collect();
        let free_ns = vec![0; CORES.into()];
        Self { world, clients, now_ns: 0, free_ns, random: Random::new(7), due_ns: 0 }
    }

    fn awake(&self) -> u16 {
        self.world.shared.awake_cores()
    }

    fn moved(&self) -> u64 {
        self.world.sum(|counters| &counters.connections_moved)
    }

    /// Lets time pass while clients send the work of `tenths` of a core. Returns the longest time
    /// that a request waited for a core, of those that were sent in this time.
    fn run(&mut self, ms: u64, tenths: u64) -> u64 {
        let began_ns = self.now_ns;
        let mut longest_ns = 0;
        while self.now_ns < began_ns + ms * MS_NS {
            self.now_ns += STEP_NS;
            self.world.clock.advance_ns(STEP_NS);
            self.due_ns += STEP_NS * tenths / 10;
            while self.due_ns >= REQUEST_NS {
                self.due_ns -= REQUEST_NS;
                self.ask();
            }
            (0..usize::from(CORES)).for_each(|core| self.turn(core));
            for client in &mut self.clients {
                if client.sent_ns.is_empty() {
                    continue;
                }
                for _ in 0..client.end.read().len() / b"END\r\n".len() {
                    let sent_ns = client.sent_ns.pop_front().expect("one reply a request");
                    if sent_ns > began_ns {
                        longest_ns = longest_ns.max(self.now_ns - sent_ns);
                    }
                }
            }
        }
        longest_ns
    }

    /// Sends a request from a client that is owed no reply, as far as there is one.
    fn ask(&mut self) {
        let first = self.random.index(CLIENTS);
        let mut clients = (first..CLIENTS).chain(0..first);
        let idle = clients.find(|client| self.clients[*client].sent_ns.is_empty());
        let client = &mut self.clients[idle.unwrap_or(first)];
        client.end.write(b"get k\r\n");
        client.sent_ns.push_back(self.now_ns);
    }

    /// Runs a tick of a core that has nothing else to do now and has work.
    fn turn(&mut self, core: usize) {
        if self.free_ns[core] > self.now_ns {
            return;
        }
        let shard = &mut self.world.shards[core];
        let wait = shard.prepare_wait();
        if is_rest(wait) && !shard.io_mut().stir() {
            return;
        }
        let requests = |world: &World| world.shared.counters[core].requests.value();
        let before = requests(&self.world);
        self.world.shards[core].complete_tick(wait).expect("memory never fails");
        let cost_ns = TICK_NS + (requests(&self.world) - before) * REQUEST_NS;
        self.world.use_ns(core, cost_ns);
        self.free_ns[core] = self.now_ns + cost_ns;
    }
}

/// No request waits longer where each core has its share of the work.
const WAIT_NS_MAX: u64 = 3 * MS_NS;

#[test]
fn connections_gather_at_low_load_and_spread_at_high_load() {
    let mut machine = Machine::new();
    machine.run(1000, 8);
    assert!(machine.awake() <= 2, "a tenth of the load has {} cores", machine.awake());
    let before = machine.moved();
    machine.run(10, 72);
    assert_eq!(machine.awake(), CORES, "nine tenths, after ten milliseconds");
    machine.run(90, 72); // What has waited is served.
    let longest_ns = machine.run(100, 72);
    assert!(longest_ns < WAIT_NS_MAX, "{longest_ns} ns");
    let moved = machine.moved() - before;
    assert!(moved <= CLIENTS as u64 * 3 / 2, "{moved} moves of {CLIENTS} connections");
    machine.run(1000, 8);
    assert!(machine.awake() <= 2, "the load has fallen");
    machine.run(2, 0);
    let waiting = machine.clients.iter().filter(|client| !client.sent_ns.is_empty()).count();
    assert_eq!(waiting, 0, "each request has its reply");
}

#[test]
fn clients_that_stay_are_served_by_the_core_that_accepted_them() {
    let mut machine = Machine::with(true);
    machine.run(100, 2);
    machine.run(500, 30); // Three times what one core can do.
    machine.run(100, 2);
    let counters = &machine.world.shared.counters;
    let connections = |core: usize| counters[core].connections.value();
    assert_eq!((connections(0), machine.moved()), (CLIENTS as u64, 0));
    assert!((1..counters.len()).all(|core| counters[core].requests.value() == 0));
}

#[test]
fn waves_of_load_move_each_connection_a_few_times() {
    for (hertz, moves_max) in [(2, 5), (20, 1), (250, 1)] {
        let mut machine = Machine::new();
        let half_ms = 500 / hertz;
        machine.run(500, 40);
        let before = machine.moved();
        for _ in 0..hertz {
            machine.run(half_ms, 4);
            machine.run(half_ms, 70);
        }
        let moved = machine.moved() - before;
        println!("{hertz} Hz: {moved} moves");
        assert!(moved <= moves_max * CLIENTS as u64, "{hertz} Hz: {moved} moves in a second");
    }
}

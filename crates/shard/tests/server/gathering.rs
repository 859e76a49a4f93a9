//! Cores that follow the load: a machine of eight cores in virtual time, on which a request takes
//! 20 us of processor time.

use std::collections::VecDeque;

use kachel_io::FarEnd;
use kachel_net::{USERS_KEY_BYTES, Users};
use kachel_shard::{ObserverSet, PlainOptions};
use kachel_testkit::{Random, World, WorldOptions, is_rest};

const CORES: u16 = 8;
const CLIENTS: usize = 200;
/// Virtual time between two looks at what the cores do.
const STEP_NS: u64 = 10_000;
/// Processor time of a request, and of a tick without its requests.
const REQUEST_NS: u64 = 20_000;
const TICK_NS: u64 = 2_000;
const MS_NS: u64 = 1_000_000;

struct Client {
    end: FarEnd,
    /// When its requests were sent that are not answered yet.
    sent_ns: VecDeque<u64>,
    /// Whether the beginning of its next request was sent. `None` if requests are sent whole.
    is_cut: Option<bool>,
}

struct Machine {
    world: World,
    clients: Vec<Client>,
    /// The clients that are owed a reply.
    owed: Vec<usize>,
    now_ns: u64,
    /// When each core has done the work of its last tick.
    free_ns: Vec<u64>,
    random: Random,
    /// Requests to be sent, in parts of [`REQUEST_NS`].
    due_ns: u64,
    /// When each answered request was sent, and how long it waited.
    waits_ns: Vec<[u64; 2]>,
    /// One request in this number is followed by a reset, and its client connects again.
    resets_every: Option<usize>,
    /// Processor time of a tick without its requests.
    tick_ns: u64,
}

impl Machine {
    fn new() -> Self {
        Self::with(WorldOptions::default())
    }

    /// A machine of a server with these options.
    fn with(options: WorldOptions) -> Self {
        let options = WorldOptions {
            shards: CORES,
            plain: PlainOptions { cores_max: Some(CORES), connections_max: 1000, ..options.plain },
            ..options
        };
        let world = World::new(options);
        let clients = (0..CLIENTS).map(|_| {
            let end = world.connect();
            Client { end, sent_ns: VecDeque::new(), is_cut: None }
        });
        let clients = clients.collect();
        let free_ns = vec![0; CORES.into()];
        let (random, owed) = (Random::new(7), Vec::new());
        let (waits_ns, resets_every) = (vec![], None);
        Self {
            world,
            clients,
            owed,
            now_ns: 0,
            free_ns,
            random,
            due_ns: 0,
            waits_ns,
            resets_every,
            tick_ns: TICK_NS,
        }
    }

    fn awake(&self) -> u16 {
        self.world.shared.awake_cores()
    }

    fn moved(&self) -> u64 {
        self.world.sum(|counters| &counters.connections_moved)
    }

    /// How long the requests waited that were sent from `begin_ns` to `end_ns` and are answered.
    fn waits_ns(&self, begin_ns: u64, end_ns: u64) -> impl Iterator<Item = u64> {
        let sent = self.waits_ns.iter().filter(move |[sent, _]| (begin_ns..end_ns).contains(sent));
        sent.map(|[_, wait]| *wait)
    }

    /// Lets time pass while clients send the work of `tenths` of a core.
    fn run(&mut self, ms: u64, tenths: u64) {
        self.run_ns(ms * MS_NS, tenths);
    }

    fn run_ns(&mut self, ns: u64, tenths: u64) {
        let end_ns = self.now_ns + ns;
        while self.now_ns < end_ns {
            self.now_ns += STEP_NS;
            self.world.clock.advance_ns(STEP_NS);
            self.due_ns += STEP_NS * tenths / 10;
            while self.due_ns >= REQUEST_NS {
                self.due_ns -= REQUEST_NS;
                self.ask();
            }
            (0..usize::from(CORES)).for_each(|core| self.turn(core));
            let (clients, waits_ns, now_ns) = (&mut self.clients, &mut self.waits_ns, self.now_ns);
            self.owed.retain(|client| {
                let client = &mut clients[*client];
                for _ in 0..client.end.read().len() / b"END\r\n".len() {
                    let sent_ns = client.sent_ns.pop_front().expect("one reply a request");
                    waits_ns.push([sent_ns, now_ns - sent_ns]);
                }
                !client.sent_ns.is_empty()
            });
        }
    }

    /// Sends a request from a client that is owed no reply, as far as there is one.
    fn ask(&mut self) {
        let first = self.random.index(CLIENTS);
        let mut clients = (first..CLIENTS).chain(0..first);
        let idle = clients.find(|client| self.clients[*client].sent_ns.is_empty());
        let index = idle.unwrap_or(first);
        let client = &mut self.clients[index];
        if client.sent_ns.is_empty() {
            self.owed.push(index);
        }
        client.end.write(match client.is_cut {
            Some(true) => b"t k\r\n",
            Some(false) => b"get k\r\nge",
            None => b"get k\r\n",
        });
        client.is_cut = client.is_cut.map(|is_cut| !is_cut);
        client.sent_ns.push_back(self.now_ns);
        if self.resets_every.is_some_and(|every| self.random.index(every) == 0) {
            client.end.reset_behind();
            client.end = self.world.connect();
            client.sent_ns.clear();
        }
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
        let requests = |world: &World| world.shared.totals.cores[core].requests.value();
        let before = requests(&self.world);
        self.world.shards[core].complete_tick(wait).expect("memory never fails");
        let cost_ns = self.tick_ns + (requests(&self.world) - before) * REQUEST_NS;
        self.world.use_ns(core, cost_ns);
        self.free_ns[core] = self.now_ns + cost_ns;
    }
}

/// The fault: cores that counted their items by prefix were busy, so all others were woken and got
/// connections that they gave back at once.
#[test]
fn a_walk_over_the_items_is_no_load() {
    const ITEMS: usize = 60_000;
    let plain = PlainOptions { observers: ObserverSet::PREFIXES, ..PlainOptions::default() };
    let mut machine = Machine::with(WorldOptions { plain, ..WorldOptions::default() });
    for first in (0..ITEMS).step_by(1_000) {
        let sets = (first..first + 1_000).map(|key| format!("set p:{key} 0 0 1 noreply\r\nx\r\n"));
        machine.clients[0].end.write((sets.collect::<String>() + "mn\r\n").as_bytes());
        machine.world.settle();
    }
    assert_eq!(machine.clients[0].end.read().len(), ITEMS / 1_000 * b"MN\r\n".len());
    let walked = |machine: &Machine| machine.world.sum(|counters| &counters.prefix_walked_items);
    let before = walked(&machine);
    // A core that walks is busy all the time, for 12 ms.
    machine.tick_ns = 10 * STEP_NS;
    machine.world.clock.advance_s(11);
    machine.world.turn(); // It begins.
    let mut awake = Vec::new();
    for _ in 0..20 {
        machine.run(1, 0);
        awake.push(machine.awake());
    }
    assert_eq!(walked(&machine) - before, ITEMS as u64);
    assert_eq!(awake, [1; 20]);
}

/// No request waits longer where each core has its share of the work.
const WAIT_NS_MAX: u64 = 3 * MS_NS;
/// The mean wait of the requests that are sent in 10 ms is shorter than this, if the load rose at
/// least 10 ms before.
const MEAN_WAIT_NS_MAX: u64 = MS_NS;

#[test]
fn connections_gather_at_low_load_and_spread_at_high_load() {
    let mut machine = Machine::new();
    machine.run(1000, 8);
    assert!(machine.awake() <= 2, "a tenth of the load has {} cores", machine.awake());
    let (before, rise_ns) = (machine.moved(), machine.now_ns);
    machine.run(1, 72);
    assert_eq!(machine.awake(), CORES, "nine tenths, after a millisecond");
    machine.run(199, 72);
    for ms in (0..200).step_by(10) {
        let begin_ns = rise_ns + ms * MS_NS;
        let waits_ns: Vec<u64> = machine.waits_ns(begin_ns, begin_ns + 10 * MS_NS).collect();
        let mean_ns = waits_ns.iter().sum::<u64>() / waits_ns.len() as u64;
        let longest_ns = waits_ns.iter().max().expect("requests are answered");
        println!("from {ms} ms on: mean wait {mean_ns} ns, longest {longest_ns} ns");
        assert!(ms < 10 || mean_ns < MEAN_WAIT_NS_MAX, "{mean_ns} ns on average from {ms} ms on");
        assert!(ms < 10 || *longest_ns < WAIT_NS_MAX, "{longest_ns} ns from {ms} ms on");
    }
    let moved = machine.moved() - before;
    assert!(moved <= CLIENTS as u64 * 3 / 2, "{moved} moves of {CLIENTS} connections");
    machine.run(1000, 8);
    assert!(machine.awake() <= 2, "the load has fallen");
    machine.run(2, 0);
    let waiting = machine.clients.iter().filter(|client| !client.sent_ns.is_empty()).count();
    assert_eq!(waiting, 0, "each request has its reply");
}

#[test]
fn input_that_is_not_served_moves_with_its_connection() {
    let mut machine = Machine::new();
    machine.clients.iter_mut().for_each(|client| client.is_cut = Some(false));
    machine.run(500, 8);
    let before = machine.moved();
    machine.run(5, 72);
    assert!(machine.moved() > before + 50, "connections have moved");
    machine.run(50, 8);
    machine.run(2, 0);
    assert!(machine.clients.iter().all(|client| client.sent_ns.is_empty()), "a reply each");
}

/// The fault: the index of a connection that was reset with its input unserved was used again, in
/// the same tick, by one that moved to that core. The input that it had brought was lost.
#[test]
fn connections_that_move_while_others_are_reset_lose_nothing() {
    let mut machine = Machine::new();
    machine.run(120, 8);
    let before = machine.moved();
    machine.resets_every = Some(3);
    machine.run(5, 72);
    assert!(machine.moved() > before + 100, "connections have moved");
    machine.run(10, 8);
    machine.run(2, 0);
    let waiting = machine.clients.iter().filter(|client| !client.sent_ns.is_empty()).count();
    assert_eq!(waiting, 0, "each client that was not reset has its reply");
}

#[test]
fn a_connection_that_moves_keeps_its_protocol() {
    let mut machine = Machine::new();
    machine.run(500, 8);
    let before = machine.moved();
    machine.run(5, 72);
    assert!(machine.moved() > before + 50, "connections have moved");
    machine.run(2, 0);
    for client in &machine.clients {
        // On a new connection, this byte would select the binary protocol.
        assert_eq!(machine.world.ask(&client.end, b"\x80 is text\r\n"), b"ERROR\r\n");
    }
}

#[test]
fn a_connection_that_moves_stays_logged_in() {
    let options = WorldOptions { asks_login: true, ..WorldOptions::default() };
    let mut machine = Machine::with(options);
    let users = Users::read(b"alice:secret\n", [3; USERS_KEY_BYTES]).expect("a good file");
    machine.world.shared.set_users(users);
    for client in &machine.clients {
        let login = b"set x 0 0 12\r\nalice secret\r\n";
        assert_eq!(machine.world.ask(&client.end, login), b"STORED\r\n");
    }
    machine.run(500, 8);
    let before = machine.moved();
    machine.run(5, 72);
    assert!(machine.moved() > before + 50, "connections have moved");
    machine.run(2, 0);
    for client in &machine.clients {
        assert_eq!(machine.world.ask(&client.end, b"get k\r\n"), b"END\r\n");
    }
}

#[test]
fn clients_that_stay_are_served_by_the_core_that_accepted_them() {
    let mut machine = Machine::with(WorldOptions { stays: true, ..WorldOptions::default() });
    machine.run(100, 2);
    machine.run(500, 30); // Three times what one core can do.
    machine.run(100, 2);
    let counters = &machine.world.shared.totals.cores;
    let connections = |core: usize| counters[core].connections.value();
    assert_eq!((connections(0), machine.moved()), (CLIENTS as u64, 0));
    assert!((1..counters.len()).all(|core| counters[core].requests.value() == 0));
}

#[test]
fn waves_of_load_move_each_connection_a_few_times() {
    for (hertz, moves_max) in [(2, 5), (20, 1), (1000, 1)] {
        let mut machine = Machine::new();
        let half_ns = 500 * MS_NS / hertz;
        machine.run(500, 40);
        let before = machine.moved();
        for _ in 0..hertz {
            machine.run_ns(half_ns, 4);
            machine.run_ns(half_ns, 70);
        }
        let moved = machine.moved() - before;
        println!("{hertz} Hz: {moved} moves");
        assert!(moved <= moves_max * CLIENTS as u64, "{hertz} Hz: {moved} moves in a second");
    }
}

#[test]
fn any_rise_of_the_load_is_followed() {
    for (before, after) in [(2, 72), (8, 30), (20, 50), (20, 72), (30, 72), (40, 72)] {
        let mut machine = Machine::new();
        machine.run(500, before);
        let rise_ns = machine.now_ns;
        machine.run(50, after);
        let waits_ns = machine.waits_ns(rise_ns + 10 * MS_NS, rise_ns + 40 * MS_NS);
        let (sum_ns, count) = waits_ns.fold((0, 0), |(sum, count), wait| (sum + wait, count + 1));
        let mean_ns = sum_ns / count;
        assert!(mean_ns < MEAN_WAIT_NS_MAX, "from {before} to {after} tenths: {mean_ns} ns");
    }
}

/// The fault: a connection that was chosen to move ended before it could. The next one at its index
/// moved in its place.
#[test]
fn a_connection_at_the_index_of_one_that_was_to_move_stays() {
    let plain = PlainOptions { cores_max: Some(2), ..WorldOptions::default().plain };
    let mut world = World::new(WorldOptions { shards: 2, plain, ..WorldOptions::default() });
    let moved = |world: &World| world.sum(|counters| &counters.connections_moved);
    // Core 0 is busy all the time, so it chooses connections for core 1.
    let serve = |world: &mut World, input: &[u8]| {
        world.clock.advance_ns(MS_NS);
        world.use_ns(0, MS_NS);
        let served = world.connect();
        served.write(input);
        world.turn(); // It is served by core 0, because its input came with it, and chosen.
        world.turn(); // Its reply was taken. If it has asked for its end, it ends.
        let next = world.connect();
        world.turn();
        [served, next].iter().for_each(FarEnd::reset);
        world.turn();
    };
    (0..500).for_each(|_| serve(&mut world, b"get k\r\nquit\r\n"));
    assert_eq!(moved(&world), 0, "each connection that is chosen ends");
    (0..500).for_each(|_| serve(&mut world, b"get k\r\n"));
    assert!(moved(&world) > 0, "connections are chosen");
}

//! Histories of clients that use TCP, UDP by the network stack, and the pipe at once. One order of
//! their requests must explain every reply.
//!
//! Upstream:   `cargo test --features pipe`. `KACHEL_PIPE_HISTORIES` says how many histories,
//!             `KACHEL_HISTORY_SEED` the seed, `KACHEL_HISTORY_KEEP` a folder in which each history
//!             is kept for `tests/porcupine`.
//! Downstream: the server's binary; `kachel_check`, the judge.
//!
//! A client has one request at a time, by either transport, so its requests have an order. Reads
//! over UDP are answered by the pipe if it has a copy, else by the server. In a sixth of the
//! histories items are evicted meanwhile, and nothing is flushed, because that would make room. In
//! a sixth the server is killed and starts again without items, which is a flush.
//!
//! - P1  A time is the clock's nanoseconds. It is read before a request is sent, and after its
//!   reply has come.
//! - P2  Each value that is stored is new, and repeats its name, so a torn one is of nobody.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kachel_check::{
    Entry, History, Mode, Operation, Outcome, Rules, Window, check_history, write_history,
};
use kachel_testkit::{Random, setting};

use crate::network::{Network, SERVER, Tcp, Udp};

/// How many histories are judged unless the environment says otherwise.
const HISTORIES: u64 = 12;
const CLIENTS: u32 = 4;
/// Few, so that the pipe gets copies of all. The first one holds numbers.
const KEYS: usize = 4;
/// Requests of one client in one history.
const REQUESTS: usize = 300;
/// How many percent of a history's outcomes may be unknown if no server was killed.
const UNKNOWN_PERCENT_MAX: usize = 5;
/// A reply that has not come by then does not come.
const PATIENCE: Duration = Duration::from_secs(10);
/// The same while servers are killed.
const SILENCE: Duration = Duration::from_millis(200);
/// No tick takes longer, not even where threads wait for each other's cores.
const TICK_NS_MAX: u64 = 500_000_000;
/// Little memory, so that items are evicted.
const OPTIONS: [&str; 6] = ["-t", "2", "-m", "32", "--pipe-memory", "1"];
const FILLING_BYTES: usize = 8_000;
/// As many fill the memory.
const FILLINGS: u64 = 5_000;

/// A disturbance of the server while clients work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    Nothing,
    Evictions,
    Kill,
}

/// A client with both transports.
struct Client {
    began: Instant,
    beside: Beside,
    /// A client whose request had no reply goes on as another one.
    number: u32,
    tcp: Option<TcpStream>,
    udp: Udp,
    random: Random,
    values: u64,
    tokens: HashMap<Vec<u8>, u64>,
    entries: Vec<Entry>,
}

fn now(began: Instant) -> u64 {
    began.elapsed().as_nanos() as u64
}

/// The seconds in which a request may have been executed. The server's second, whose beginning
/// nobody here knows, is ours or the next one.
fn window(invoked: u64, returned: u64) -> Window {
    let second = |ns: u64| u32::try_from(ns / 1_000_000_000).expect("a test is short");
    let earliest_s = second(invoked.saturating_sub(TICK_NS_MAX));
    Window { earliest_s, latest_s: second(returned) + 1 }
}

impl Client {
    fn new((number, seed): (u32, u64), beside: Beside, began: Instant) -> Self {
        Self {
            began,
            beside,
            number,
            tcp: None,
            udp: Udp::new(),
            random: Random::new(seed ^ u64::from(number) << 56),
            values: 0,
            tokens: HashMap::new(),
            entries: Vec::new(),
        }
    }

    fn patience(&self) -> Duration {
        if self.beside == Beside::Kill { SILENCE } else { PATIENCE }
    }

    fn run(&mut self, keys: &[String], done: &AtomicUsize) {
        for _ in 0..REQUESTS {
            let is_read = self.random.percent(80);
            let wire = if is_read { self.read(keys) } else { self.change(keys) };
            let over_udp = self.random.percent(if is_read { 80 } else { 30 });
            let operation = Operation::new(&wire).expect("a request for one key");
            let invoked = now(self.began);
            let patience = self.patience();
            let reply = match over_udp {
                true => self.udp.ask_within(&wire, patience),
                false => self.over_tcp(&wire),
            };
            self.note(operation, reply, invoked);
            done.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn note(&mut self, operation: Operation, reply: Option<Vec<u8>>, invoked: u64) {
        let Some(reply) = reply else {
            let earliest_s = window(invoked, invoked).earliest_s;
            self.entries.push(Entry::unknown(self.number, operation, invoked, earliest_s));
            self.number += CLIENTS;
            self.tcp = None;
            return;
        };
        let shown = || format!("{operation:?}: {}", reply.escape_ascii());
        let (outcome, bytes) = Outcome::read(&reply).unwrap_or_else(|| panic!("{}", shown()));
        assert_eq!(bytes, reply.len(), "{}", shown());
        assert!(!matches!(outcome, Outcome::Refused(_)), "{}", shown());
        if let Outcome::Hit { cas: Some(token), .. } = outcome {
            self.tokens.insert(operation.key().to_vec(), token);
        }
        let returned = now(self.began);
        let window = window(invoked, returned);
        let client = self.number;
        self.entries.push(Entry { client, operation, outcome, invoked, returned, window });
    }

    /// The reply over TCP; `None` if the connection fails.
    fn over_tcp(&mut self, wire: &[u8]) -> Option<Vec<u8>> {
        if self.tcp.is_none() {
            let address = SERVER.parse().expect("an address");
            let end = Instant::now() + PATIENCE;
            while self.tcp.is_none() && Instant::now() < end {
                self.tcp = TcpStream::connect_timeout(&address, PATIENCE).ok();
            }
        }
        let stream = self.tcp.as_mut()?;
        stream.set_nodelay(true).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        stream.write_all(wire).ok()?;
        let mut reply = Vec::new();
        while Outcome::read(&reply).is_none() {
            let mut bytes = [0; 4_096];
            match stream.read(&mut bytes) {
                Ok(0) | Err(_) => return None,
                Ok(count) => reply.extend_from_slice(&bytes[..count]),
            }
        }
        Some(reply)
    }

    fn read(&mut self, keys: &[String]) -> Vec<u8> {
        let key = &keys[self.random.below(keys.len() as u64) as usize];
        // A server that starts again begins with small tokens.
        let has_token = self.beside != Beside::Kill && self.random.percent(30);
        format!("{} {key}\r\n", if has_token { "gets" } else { "get" }).into_bytes()
    }

    fn change(&mut self, keys: &[String]) -> Vec<u8> {
        let index = self.random.below(keys.len() as u64) as usize;
        let (key, is_number) = (&keys[index], index == 0);
        let ttl = self.random.pick(&[0, 0, 0, 0, 0, 0, 1_000, 1]);
        self.values += 1;
        let value = match is_number {
            true => (self.values * 1_000 + u64::from(self.number) * 100).to_string(),
            false => format!("{}.{}.", self.number, self.values)
                .repeat(1 + self.random.below(12) as usize),
        };
        let store = |verb: &str, more: &str| {
            format!("{verb} {key} 3 {ttl} {}{more}\r\n{value}\r\n", value.len())
        };
        match self.random.below(100) {
            0..50 => store("set", ""),
            50..58 => store("add", ""),
            58..64 => store("replace", ""),
            64..70 if !is_number => store("append", ""),
            64..74 if is_number => format!("incr {key} {}\r\n", 1 + self.random.below(9)),
            70..80 if self.beside != Beside::Kill => {
                let token = self.tokens.get(key.as_bytes()).copied().unwrap_or(1);
                store("cas", &format!(" {token}"))
            }
            80..90 => format!("delete {key}\r\n"),
            90..95 => format!("touch {key} {ttl}\r\n"),
            95..97 if self.beside != Beside::Evictions => "flush_all\r\n".to_owned(),
            97..99 if self.beside != Beside::Evictions => format!("flush_prefix {key}\r\n"),
            _ => format!("gat {ttl} {key}\r\n"),
        }
        .into_bytes()
    }
}

/// Stores items with these numbers, except if it is over.
fn fill(numbers: std::ops::Range<u64>, is_over: &AtomicBool) {
    let mut stream = TcpStream::connect(SERVER).expect("the server listens");
    let block = "e".repeat(FILLING_BYTES);
    for number in numbers {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        let set = format!("set filling-{number} 0 0 {FILLING_BYTES} noreply\r\n{block}\r\n");
        stream.write_all(set.as_bytes()).expect("it is sent");
    }
}

/// Records a history of clients at a server that has none of their keys. A kill of the server is an
/// entry of its own: a flush.
fn record(
    network: &Network,
    server: &mut crate::network::Serving,
    (seed, number): (u64, u64),
    beside: Beside,
    began: Instant,
) -> History {
    let keys: Vec<String> = (0..KEYS).map(|key| format!("history-{number}-key-{key}")).collect();
    let (done, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let mut history = History::default();
    if beside == Beside::Evictions {
        fill(0..FILLINGS, &is_over);
    }
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (keys, done) = (&keys, &done);
                let seed = seed ^ number << 16;
                scope.spawn(move || {
                    let mut client = Client::new((client, seed), beside, began);
                    client.run(keys, done);
                    client.entries
                })
            })
            .collect();
        if beside == Beside::Evictions {
            scope.spawn(|| fill(FILLINGS..u64::MAX, &is_over));
        }
        if beside == Beside::Kill {
            while done.load(Ordering::Relaxed) < REQUESTS * CLIENTS as usize / 2 {
                std::thread::sleep(Duration::from_millis(1));
            }
            let invoked = now(began);
            server.kill();
            *server = network.serve(&OPTIONS);
            let returned = now(began);
            let operation = Operation::new(b"flush_all\r\n").expect("a flush");
            let (client, outcome) = (u32::MAX, Outcome::Ok);
            let window = window(invoked, returned);
            history.push(Entry { client, operation, outcome, invoked, returned, window });
        }
        for client in clients {
            let entries = client.join().expect("a client that did not panic");
            entries.into_iter().for_each(|entry| history.push(entry));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    history
}

/// Where the history lies that is to be looked at.
fn keep(folder: &Path, name: &str, history: &History, rules: &Rules) -> PathBuf {
    std::fs::create_dir_all(folder).expect("a folder for histories");
    let path = folder.join(format!("{name}.history"));
    std::fs::write(&path, write_history(history, rules)).expect("a history is written");
    path
}

#[test]
fn what_clients_of_all_transports_see_is_explained_by_one_order() {
    let Some(network) = Network::new() else { return };
    let (count, seed) =
        (setting("KACHEL_PIPE_HISTORIES", HISTORIES), setting("KACHEL_HISTORY_SEED", 1));
    let kept = std::env::var_os("KACHEL_HISTORY_KEEP").map(PathBuf::from);
    let (began, rules) = (Instant::now(), Rules::new(Mode::Cache));
    let mut server = network.serve(&OPTIONS);
    let (mut answered, mut evictions, mut unknown, mut operations) = (0, 0, 0, 0);
    for number in 0..count {
        let beside = match number % 6 {
            4 => Beside::Evictions,
            5 => Beside::Kill,
            _ => Beside::Nothing,
        };
        let history = record(&network, &mut server, (seed, number), beside, began);
        let name = format!("pipe-{number}-{beside:?}");
        if let Some(folder) = &kept {
            keep(folder, &name, &history, &rules);
        }
        let stats = check_history(&history, &rules).unwrap_or_else(|violation| {
            let path = keep(Path::new(env!("CARGO_TARGET_TMPDIR")), &name, &history, &rules);
            panic!("{name}, seed {seed}: {violation}\nthe history is {}", path.display())
        });
        assert!(stats.operations >= REQUESTS * CLIENTS as usize, "{name}: {stats:?}");
        let is_known = stats.unknown * 100 <= stats.operations * UNKNOWN_PERCENT_MAX;
        assert!(is_known || beside == Beside::Kill, "{name}: {stats:?}");
        assert!(stats.overlapping > 0, "{name}: {stats:?}");
        unknown += stats.unknown;
        operations += stats.operations;
        // Before the next history may kill the server with its counts.
        if number % 6 == 4 || number + 1 == count {
            let mut tcp = Tcp::new();
            answered += tcp.stat("kachel_pipe_answered");
            evictions += tcp.stat("evictions");
        }
    }
    println!(
        "seed {seed}: {count} histories, {operations} operations, {unknown} of unknown outcome, at \
         least {answered} answered by the pipe, {evictions} evictions, {:.1} s",
        began.elapsed().as_secs_f64()
    );
    assert!(answered > operations as u64 / 50, "the pipe took part");
    assert!(evictions > 0 || count < 5, "items were evicted");
}

//! Measures `-m` at the real process: how much memory it uses, how much of it holds keys and
//! values, and that overwriting items that fit evicts nothing. With 1 to 128 threads, also how many
//! items they hold, and that no value is refused while others can be evicted.
//!
//! `cargo test` skips it. `tests/memory/run` runs it on the release binary with enough memory (a
//! debug build has a shadow of item memory, and less memory has too few segments). Environment:
//! `KACHEL_MEMORY_SERVER` the binary, `KACHEL_MEMORY_MIB` and `KACHEL_MEMORY_THREADS` its `-m` and
//! `-t`, `KACHEL_MEMORY_WRITES` how many times `-m` each phase writes, `KACHEL_MEMORY_SETTLE_S` the
//! seconds between writing and reading back, `KACHEL_MEMORY_OVERWRITE_S` the seconds for which each
//! set is overwritten, `KACHEL_MEMORY_SEED` its order, `KACHEL_MEMORY_VALUE_MIN` the least value
//! that is written.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use kachel_testkit::{Client, Launch, Random, Server, set_request, setting, tell};

const KEY_BYTES: usize = 16;
/// Sizes of values in the order in which they are written, and how much of `-m`, in hundredths, is
/// at least keys and values of that size when they are read back.
const PHASES: [(usize, usize); 7] =
    [(32, 50), (100, 70), (10_000, 85), (900_000, 85), (10_000, 85), (100, 70), (32, 50)];

/// The server, its one client, and what is promised of it.
struct Bench {
    server: Server,
    client: Client,
    memory_bytes: usize,
    threads: usize,
}

impl Bench {
    fn start() -> Self {
        let [mib, threads] = [("KACHEL_MEMORY_MIB", 64), ("KACHEL_MEMORY_THREADS", 2)]
            .map(|(name, default)| setting(name, default) as usize);
        Self::with(mib, threads)
    }

    fn with(mib: usize, threads: usize) -> Self {
        let (m, t) = (mib.to_string(), threads.to_string());
        Self::launch(mib, threads, &["-U", "0", "-m", &m, "-t", &t])
    }

    /// Starts a server with `options`, which say `mib` and `threads`.
    fn launch(mib: usize, threads: usize, options: &[&str]) -> Self {
        let program = std::env::var_os("KACHEL_MEMORY_SERVER")
            .map_or_else(|| env!("CARGO_BIN_EXE_kachel").into(), PathBuf::from);
        let server = Launch::memcached(&program, options).start();
        let client = server.connect();
        Self { server, client, memory_bytes: mib << 20, threads }
    }

    /// -m, 5 % of it, 32 MiB, 2 MiB a shard, 32 KiB a connection (of which there are two).
    fn promised_bytes(&self) -> usize {
        let around = (32 << 20) + self.threads * (2 << 20) + 2 * (32 << 10);
        self.memory_bytes + self.memory_bytes / 20 + around
    }

    /// The most bytes that were ever resident.
    fn peak_bytes(&self) -> usize {
        usize::try_from(self.server.peak_bytes()).expect("64 bits")
    }

    fn check_peak(&self, when: &str) {
        let (peak, promised) = (self.peak_bytes(), self.promised_bytes());
        assert!(peak <= promised, "{when}: {peak} bytes resident, promised were {promised}");
    }

    /// Sends `requests`, and demands a reply line to each that begins with `beginning`.
    fn exchange(&mut self, requests: &[u8], count: usize, beginning: &[u8]) {
        self.client.send(requests);
        for line in self.client.read_lines(count).split_inclusive(|&byte| byte == b'\n') {
            assert!(line.starts_with(beginning), "{}", line.escape_ascii());
        }
    }

    /// Stores `value` under keys of `phase`, those of `numbers`.
    fn store(&mut self, phase: usize, numbers: &[usize], value: &[u8]) {
        let together = (1 << 17) / (value.len() + 64) + 1;
        let mut requests = Vec::new();
        for numbers in numbers.chunks(together) {
            requests.clear();
            for number in numbers {
                write!(requests, "set {} 0 0 {}\r\n", key(phase, *number), value.len())
                    .expect("memory");
                requests.extend_from_slice(value);
                requests.extend_from_slice(b"\r\n");
            }
            self.exchange(&requests, numbers.len(), b"STORED\r\n");
        }
    }

    /// How many of the first `count` keys of `phase` are there; each must have such a value.
    fn read_back(&mut self, phase: usize, count: usize, value: &[u8]) -> usize {
        let together = (1 << 17) / (value.len() + 64) + 1;
        let mut found = 0;
        for first in (0..count).step_by(together) {
            let keys = (first..count.min(first + together)).map(|number| key(phase, number));
            let request = keys.fold("get".to_owned(), |request, key| request + " " + &key);
            self.client.send(request + "\r\n");
            let reply = self.client.read_until(b"END\r\n");
            let mut rest = &reply[..reply.len() - b"END\r\n".len()];
            while !rest.is_empty() {
                assert!(
                    rest.starts_with(b"VALUE "),
                    "{}",
                    rest[..rest.len().min(80)].escape_ascii()
                );
                let line = rest.iter().position(|&byte| byte == b'\n').expect("a line") + 1;
                let (body, after) = rest[line..].split_at(value.len() + 2);
                assert!(body[..value.len()] == *value, "a value that was never stored");
                (found, rest) = (found + 1, after);
            }
        }
        found
    }

    fn evictions(&mut self) -> u64 {
        self.client.stat("evictions")
    }
}

fn key(phase: usize, number: usize) -> String {
    let key = format!("{phase:02}-{number:013}");
    assert_eq!(key.len(), KEY_BYTES);
    key
}

#[test]
fn values_of_changing_sizes_use_the_memory_that_was_promised() {
    let settle = Duration::from_secs(setting("KACHEL_MEMORY_SETTLE_S", 2));
    let mut bench = Bench::start();
    let mut seen = Vec::new();
    let writes = setting("KACHEL_MEMORY_WRITES", 4) as usize;
    let least = setting("KACHEL_MEMORY_VALUE_MIN", 0) as usize;
    let phases = PHASES.into_iter().enumerate().filter(|(_, (bytes, _))| *bytes >= least);
    for (phase, (value_bytes, asked)) in phases {
        let item_bytes = KEY_BYTES + value_bytes;
        let count = writes * bench.memory_bytes / item_bytes + 1;
        let value = vec![b'a' + u8::try_from(phase).expect("few phases"); value_bytes];
        let numbers: Vec<usize> = (0..count).collect();
        bench.store(phase, &numbers, &value);
        bench.check_peak(&format!("after phase {phase} of {value_bytes} bytes"));
        // The one fixed wait: the promise is about what is there after it.
        std::thread::sleep(settle);
        let held = bench.read_back(phase, count, &value) * item_bytes;
        let share = held * 100 / bench.memory_bytes;
        tell(&format!("memory: values of {value_bytes} bytes: {share} % of -m, asked {asked}"));
        seen.push((value_bytes, share, asked));
        bench.check_peak(&format!("reading back phase {phase}"));
    }
    let (peak, promised) = (bench.peak_bytes() >> 10, bench.promised_bytes() >> 10);
    tell(&format!("memory: {peak} KiB resident at the most, promised {promised}"));
    assert!(!seen.is_empty(), "no value is as large as {least} bytes");
    assert!(seen.iter().all(|(_, share, asked)| share >= asked), "bytes, share, asked: {seen:?}");
}

/// A number that stays 20 digits long however often a little is added.
const COUNTER: &[u8] = b"10000000000000000000";
/// One item in this number of an overwritten set is a counter.
const ITEMS_PER_COUNTER: usize = 10;

/// How many items with values of `value_bytes`, and how many counters, make `bytes` of keys and
/// values.
fn set_of(bytes: usize, value_bytes: usize) -> (usize, usize) {
    let [item_bytes, counter_bytes] = [value_bytes, COUNTER.len()].map(|value| KEY_BYTES + value);
    let counters = bytes / ((ITEMS_PER_COUNTER - 1) * item_bytes + counter_bytes);
    ((bytes - counters * counter_bytes) / item_bytes, counters)
}

#[test]
fn overwriting_and_counting_in_a_set_that_fits_evicts_nothing() {
    let seconds = Duration::from_secs(setting("KACHEL_MEMORY_OVERWRITE_S", 6));
    let seed = setting("KACHEL_MEMORY_SEED", 1);
    for (phase, (value_bytes, share)) in [(100, 70), (10_000, 85)].into_iter().enumerate() {
        let mut bench = Bench::start();
        // Four fifths of what is promised to be there.
        let bytes = bench.memory_bytes / 100 * share / 10 * 8;
        let (items, counters) = set_of(bytes, value_bytes);
        let stored = items * (KEY_BYTES + value_bytes) + counters * (KEY_BYTES + COUNTER.len());
        assert!(stored <= bytes && bytes - stored < KEY_BYTES + value_bytes, "{stored} of {bytes}");
        let value = vec![b'v'; value_bytes];
        let all: Vec<usize> = (0..items).collect();
        bench.store(phase, &all, &value);
        bench.store(90 + phase, &all[..counters], COUNTER);
        let (began, mut random, mut rounds) = (Instant::now(), Random::new(seed), 0);
        while began.elapsed() < seconds {
            let numbers: Vec<usize> = (0..1_000).map(|_| random.index(items)).collect();
            bench.store(phase, &numbers, &value);
            let requests: String = (0..1_000)
                .map(|_| format!("incr {} 7\r\n", key(90 + phase, random.index(counters))))
                .collect();
            // A counter that was evicted would answer NOT_FOUND.
            bench.exchange(requests.as_bytes(), 1_000, b"1");
            rounds += 1;
        }
        assert!(rounds > 0);
        let (evictions, found) = (bench.evictions(), bench.read_back(phase, items, &value));
        tell(&format!(
            "memory: {items} values of {value_bytes} bytes and {counters} counters, {stored} bytes \
             with their keys, {rounds} thousand of each changed in {} s: {evictions} evictions",
            seconds.as_secs()
        ));
        let replay = format!("KACHEL_MEMORY_SEED={seed} tests/memory/run");
        assert_eq!((evictions, found), (0, items), "evicted, found; again by {replay}");
        bench.check_peak("after overwriting");
    }
}

/// `-m` of the servers of many threads, in MiB.
const SHARED_MIB: usize = 64;

/// Bytes of a small item: its key and value.
const SMALL_BYTES: usize = KEY_BYTES + 100;

/// A server of `threads` threads that share [`SHARED_MIB`] and is full of small items, and how many
/// of them it holds.
fn full_server(threads: usize) -> (Bench, u64) {
    let mut bench = Bench::with(SHARED_MIB, threads);
    let numbers: Vec<usize> = (0..2 * (SHARED_MIB << 20) / SMALL_BYTES).collect();
    bench.store(0, &numbers, &[b's'; SMALL_BYTES - KEY_BYTES]);
    assert!(bench.evictions() > 0, "memory is full");
    let items = bench.client.stat("curr_items");
    (bench, items)
}

#[test]
fn many_threads_hold_nearly_as_many_items_as_one() {
    let (_, of_one) = full_server(1);
    for (threads, percent) in [(2, 95), (8, 95), (64, 95), (128, 90)] {
        let (bench, items) = full_server(threads);
        tell(&format!("memory: {threads} threads hold {items} items, one thread {of_one}"));
        assert!(items * 100 >= of_one * percent, "{threads} threads: {items} of {of_one} items");
        bench.check_peak(&format!("{threads} threads"));
    }
}

/// Clients that store large values at the same time.
const UPLOADERS: usize = 16;
/// Bytes that a client sends before it is the next client's turn.
const PIECE_BYTES: usize = 100_000;

#[test]
fn no_value_is_refused_while_other_items_can_be_evicted() {
    const VALUE_BYTES: usize = 1_000_000;
    const VALUES: usize = 120;
    for threads in [2, 8, 64, 128] {
        let (mut bench, _) = full_server(threads);
        let value = vec![b'l'; VALUE_BYTES];
        let request = |number| set_request(&key(1, number), 0, &value);

        // One value after the other. At first they evict small items only.
        let before = bench.evictions();
        for number in 0..VALUES {
            bench.exchange(&request(number), 1, b"STORED\r\n");
            if number + 1 == VALUES / 6 {
                let evicted = (bench.evictions() - before) as usize * SMALL_BYTES;
                // Each thread has an open segment and a spare one.
                let most = (number + 1) * VALUE_BYTES + threads * (128 << 10);
                assert!(evicted <= most, "{threads} threads: {evicted} bytes for {most}");
            }
        }

        // Many at once: the pieces of their values take turns.
        let mut clients: Vec<Client> = (0..UPLOADERS).map(|_| bench.server.connect()).collect();
        for round in 1..=VALUES / UPLOADERS {
            let requests: Vec<Vec<u8>> =
                (0..UPLOADERS).map(|client| request(round * VALUES + client)).collect();
            for from in (0..requests[0].len()).step_by(PIECE_BYTES) {
                for (client, request) in clients.iter_mut().zip(&requests) {
                    client.send(&request[from..request.len().min(from + PIECE_BYTES)]);
                }
            }
            for client in &mut clients {
                assert_eq!(client.read_line(), b"STORED\r\n", "{threads} threads");
            }
        }
        bench.check_peak(&format!("{threads} threads"));
    }
}

#[test]
fn values_of_a_quarter_of_memory_are_stored_beside_small_items() {
    const MIB: usize = 256;
    for threads in [8, 64] {
        let options = ["-U", "0", "-m", "256", "-I", "64m", "-t", &threads.to_string()];
        let mut bench = Bench::launch(MIB, threads, &options);
        let small = vec![b's'; 10_000];
        bench.store(0, &(0..(MIB << 20) / small.len()).collect::<Vec<_>>(), &small);
        let value = vec![b'l'; 60 << 20];
        for number in 0..8 {
            let request = set_request(&key(1, number), 0, &value);
            bench.exchange(&request, 1, b"STORED\r\n");
        }
        bench.check_peak(&format!("{threads} threads"));
    }
}

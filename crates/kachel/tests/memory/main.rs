//! What `-m` promises, against the real process: how much memory it takes, how much of that is keys
//! and values, and that overwriting what fits evicts nothing.
//!
//! `cargo test` passes it over: `tests/memory/run` runs it on the release binary at the size that
//! is promised (a debug build keeps a shadow of item memory, and less memory has too few segments):
//! `KACHEL_MEMORY_SERVER` the binary, `KACHEL_MEMORY_MIB` and `KACHEL_MEMORY_THREADS` its `-m` and
//! `-t`, `KACHEL_MEMORY_SETTLE_S` the seconds between writing and reading back,
//! `KACHEL_MEMORY_OVERWRITE_S` the seconds for which each set is overwritten, `KACHEL_MEMORY_SEED`
//! its order, `KACHEL_MEMORY_VALUE_MIN` the least value that is written.

#[path = "../server/mod.rs"]
mod server;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use server::{Launch, Server};

/// A reply that takes longer is missing.
const PATIENCE: Duration = Duration::from_secs(30);
const KEY_BYTES: usize = 16;
/// Sizes of values in the order in which they are written, and how much of `-m`, in hundredths, is
/// at least keys and values of that size when they are read back.
const PHASES: [(usize, usize); 7] =
    [(32, 50), (100, 70), (10_000, 85), (900_000, 85), (10_000, 85), (100, 70), (32, 50)];
/// How often `-m` each phase writes.
const WRITTEN_TIMES: usize = 4;

fn setting(name: &str, default: usize) -> usize {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")),
        Err(_) => default,
    }
}

/// The server, its one client, and what is promised of it.
struct Bench {
    server: Server,
    requests: TcpStream,
    replies: BufReader<TcpStream>,
    memory_bytes: usize,
    threads: usize,
}

impl Bench {
    fn start() -> Self {
        let mib = setting("KACHEL_MEMORY_MIB", 64);
        let threads = setting("KACHEL_MEMORY_THREADS", 2);
        let program = std::env::var_os("KACHEL_MEMORY_SERVER")
            .map_or_else(|| env!("CARGO_BIN_EXE_kachel").into(), PathBuf::from);
        let (m, t) = (mib.to_string(), threads.to_string());
        let options = ["-U", "0", "-m", &m, "-t", &t];
        let called_as = "memcached";
        let server =
            Server::start(&Launch { program: &program, called_as, unix: false, options: &options });
        let requests = TcpStream::from(server.stream().expect("it listens"));
        requests.set_nodelay(true).expect("a socket");
        requests.set_read_timeout(Some(PATIENCE)).expect("a socket");
        requests.set_write_timeout(Some(PATIENCE)).expect("a socket");
        let replies = BufReader::with_capacity(1 << 16, requests.try_clone().expect("a socket"));
        Self { server, requests, replies, memory_bytes: mib << 20, threads }
    }

    /// -m, 5 % of it, 32 MiB, 2 MiB a shard, 32 KiB a connection (of which there are two).
    fn promised_bytes(&self) -> usize {
        let around = (32 << 20) + self.threads * (2 << 20) + 2 * (32 << 10);
        self.memory_bytes + self.memory_bytes / 20 + around
    }

    /// The most bytes that were ever resident.
    fn peak_bytes(&self) -> usize {
        let path = format!("/proc/{}/status", self.server.process.id());
        let status = fs::read_to_string(path).expect("a living process");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
        let kib = line.trim_matches(|c: char| !c.is_ascii_digit());
        kib.parse::<usize>().expect("a number of KiB") * 1024
    }

    fn check_peak(&self, when: &str) {
        let (peak, promised) = (self.peak_bytes(), self.promised_bytes());
        assert!(peak <= promised, "{when}: {peak} bytes resident, promised were {promised}");
    }

    /// Sends `requests`, and demands a reply line to each that begins with `beginning`.
    fn exchange(&mut self, requests: &[u8], count: usize, beginning: &[u8]) {
        self.requests.write_all(requests).expect("the server takes requests");
        let mut line = Vec::new();
        for _ in 0..count {
            line.clear();
            self.replies.read_until(b'\n', &mut line).expect("the server answers");
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
        let (mut found, mut line, mut body) = (0, Vec::new(), vec![0; value.len() + 2]);
        for first in (0..count).step_by(together) {
            let keys = (first..count.min(first + together)).map(|number| key(phase, number));
            let request = keys.fold("get".to_owned(), |request, key| request + " " + &key);
            self.requests.write_all((request + "\r\n").as_bytes()).expect("the server takes it");
            loop {
                line.clear();
                self.replies.read_until(b'\n', &mut line).expect("the server answers");
                if line == b"END\r\n" {
                    break;
                }
                assert!(line.starts_with(b"VALUE "), "{}", line.escape_ascii());
                self.replies.read_exact(&mut body).expect("a value");
                assert!(body[..value.len()] == *value, "a value that was never stored");
                found += 1;
            }
        }
        found
    }

    fn evictions(&mut self) -> u64 {
        self.requests.write_all(b"stats\r\n").expect("the server takes it");
        let mut evictions = None;
        loop {
            let mut line = String::new();
            self.replies.read_line(&mut line).expect("the server answers");
            if line == "END\r\n" {
                return evictions.expect("a statistic of that name");
            }
            if let Some(text) = line.strip_prefix("STAT evictions ") {
                evictions = Some(text.trim_end().parse().expect("a number"));
            }
        }
    }
}

fn key(phase: usize, number: usize) -> String {
    let key = format!("{phase:02}-{number:013}");
    assert_eq!(key.len(), KEY_BYTES);
    key
}

/// Tells past the test harness's capture.
fn tell(text: &str) {
    std::io::stderr().write_all(text.as_bytes()).expect("someone listens");
}

#[test]
fn values_of_changing_sizes_use_the_memory_that_was_promised() {
    let settle = Duration::from_secs(setting("KACHEL_MEMORY_SETTLE_S", 2) as u64);
    let mut bench = Bench::start();
    let mut seen = Vec::new();
    let least = setting("KACHEL_MEMORY_VALUE_MIN", 0);
    let phases = PHASES.into_iter().enumerate().filter(|(_, (bytes, _))| *bytes >= least);
    for (phase, (value_bytes, asked)) in phases {
        let item_bytes = KEY_BYTES + value_bytes;
        let count = WRITTEN_TIMES * bench.memory_bytes / item_bytes + 1;
        let value = vec![b'a' + u8::try_from(phase).expect("few phases"); value_bytes];
        let numbers: Vec<usize> = (0..count).collect();
        bench.store(phase, &numbers, &value);
        bench.check_peak(&format!("after phase {phase} of {value_bytes} bytes"));
        // The one fixed wait: the promise is about what is there after it.
        std::thread::sleep(settle);
        let held = bench.read_back(phase, count, &value) * item_bytes;
        let share = held * 100 / bench.memory_bytes;
        tell(&format!("memory: values of {value_bytes} bytes: {share} % of -m, asked {asked}\n"));
        seen.push((value_bytes, share, asked));
        bench.check_peak(&format!("reading back phase {phase}"));
    }
    let (peak, promised) = (bench.peak_bytes() >> 10, bench.promised_bytes() >> 10);
    tell(&format!("memory: {peak} KiB resident at the most, promised {promised}\n"));
    assert!(!seen.is_empty(), "no value is as large as {least} bytes");
    assert!(seen.iter().all(|(_, share, asked)| share >= asked), "bytes, share, asked: {seen:?}");
}

/// A number that stays 20 digits long however often a little is added.
const COUNTER: &[u8] = b"10000000000000000000";
/// Of so many items of an overwritten set, one is a counter.
const ITEMS_PER_COUNTER: usize = 10;

/// How many items with values of `value_bytes`, and how many counters, make `bytes` of keys and
/// values.
fn set_of(bytes: usize, value_bytes: usize) -> (usize, usize) {
    let [item_bytes, counter_bytes] = [value_bytes, COUNTER.len()].map(|value| KEY_BYTES + value);
    let counters = bytes / ((ITEMS_PER_COUNTER - 1) * item_bytes + counter_bytes);
    ((bytes - counters * counter_bytes) / item_bytes, counters)
}

/// A step of xorshift64 (Marsaglia, 2003).
fn next(state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    usize::try_from(*state >> 1).expect("64 bits")
}

#[test]
fn overwriting_and_counting_in_a_set_that_fits_evicts_nothing() {
    let seconds = Duration::from_secs(setting("KACHEL_MEMORY_OVERWRITE_S", 6) as u64);
    let seed = setting("KACHEL_MEMORY_SEED", 1) as u64;
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
        let (began, mut state, mut rounds) = (Instant::now(), seed.max(1), 0);
        while began.elapsed() < seconds {
            let numbers: Vec<usize> = (0..1_000).map(|_| next(&mut state) % items).collect();
            bench.store(phase, &numbers, &value);
            let requests: String = (0..1_000)
                .map(|_| format!("incr {} 7\r\n", key(90 + phase, next(&mut state) % counters)))
                .collect();
            // A counter that was evicted would answer NOT_FOUND.
            bench.exchange(requests.as_bytes(), 1_000, b"1");
            rounds += 1;
        }
        assert!(rounds > 0);
        let (evictions, found) = (bench.evictions(), bench.read_back(phase, items, &value));
        tell(&format!(
            "memory: {items} values of {value_bytes} bytes and {counters} counters, {stored} bytes \
             with their keys, {rounds} thousand of each changed in {} s: {evictions} evictions\n",
            seconds.as_secs()
        ));
        let replay = format!("KACHEL_MEMORY_SEED={seed} tests/memory/run");
        assert_eq!((evictions, found), (0, items), "evicted, found; again by {replay}");
        bench.check_peak("after overwriting");
    }
}

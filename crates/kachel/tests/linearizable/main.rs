//! Eight clients at once: one order of their requests must explain every reply.
//!
//! Upstream:   `cargo test`.
//! Downstream: `subject` starts a server, and `client` drives it; `kachel_check` judges what the
//!             clients saw.
//!
//! A history is 8 clients with connections of their own, 40 keys, pipelined requests, and
//! connections that are sometimes reset while replies are outstanding. Threads decide the
//! interleaving, so a seed repeats the requests but not their order. So a history that failed is
//! stored in a file, which `kachel_check::read_history` and `tests/porcupine` read.
//!
//! The servers are processes of the binary over caches, RocksDB and flash, and threads over
//! delaying engines and plain ones.
//!
//! Environment: `KACHEL_HISTORIES` how many, `KACHEL_HISTORY_SEED` the seed, `KACHEL_HISTORY_KEEP`
//! a folder in which every history that `tests/porcupine` can judge is kept,
//! `KACHEL_HISTORY_SERVER` a memcached to be judged in the place of our processes.

mod client;
mod subject;
mod threads;
mod workload;

use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::Instant;

use kachel_check::{
    History, Mode, Outcome, Rules, Stats, Value, Violation, check_history, write_history,
};
use kachel_testkit::{Random, setting};

use client::Client;
use subject::{OVER_FLASH, OVER_ROCKSDB, Options, PROCESSES, Subject, THREADS};
use workload::Flavor;

/// How many histories of processes are judged unless the environment says otherwise, and for these
/// how many of threads and of processes over RocksDB and flash.
const HISTORIES: u64 = 200;
const HISTORIES_OF_THREADS: u64 = 120;
const HISTORIES_OVER_ROCKSDB: u64 = 16;
const HISTORIES_OVER_FLASH: u64 = 40;
/// Servers of each kind.
const SERVERS: usize = PROCESSES.len();
const _: () = assert!(THREADS.len() == SERVERS);
const SEED: u64 = 1;
const CLIENTS: u32 = 8;
const KEYS: usize = 40;
/// A history has at least this number of operations.
const OPERATIONS_MIN: usize = 2_000;
/// How many percent of a history's outcomes may be unknown.
const UNKNOWN_PERCENT_MAX: usize = 5;

/// What eight clients see of a server that holds none of their keys.
fn record(server: &Subject, (seed, number): (u64, u64), flavor: Flavor, began: Instant) -> History {
    let keys: Vec<Vec<u8>> = (0..KEYS).map(|key| format!("h{number}:{key}").into_bytes()).collect();
    let barrier = Barrier::new(CLIENTS as usize);
    let mut history = History::default();
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number_of_client| {
                let (keys, barrier) = (&keys, &barrier);
                let random = Random::new(seed ^ number << 16 ^ u64::from(number_of_client) << 56);
                scope.spawn(move || {
                    let mut client =
                        Client::new(server, (number_of_client, CLIENTS), random, began);
                    barrier.wait();
                    let wanted = OPERATIONS_MIN / CLIENTS as usize;
                    client.run(keys, flavor, wanted);
                    client.entries
                })
            })
            .collect();
        for client in clients {
            for entry in client.join().expect("a client that did not panic") {
                history.push(entry);
            }
        }
    });
    history
}

fn rules(is_store: bool) -> Rules {
    Rules::new(if is_store { Mode::Store } else { Mode::Cache })
}

/// Where the history lies that is to be looked at.
fn keep(folder: &Path, name: &str, history: &History, rules: &Rules) -> PathBuf {
    std::fs::create_dir_all(folder).expect("a folder for histories");
    let path = folder.join(format!("{name}.history"));
    std::fs::write(&path, write_history(history, rules)).expect("a history is written");
    path
}

/// Judges a history and demands that it is one worth judging.
fn judge(name: &str, seed: u64, history: &History, rules: &Rules) -> Stats {
    let stats = check_history(history, rules).unwrap_or_else(|violation| {
        let path = keep(Path::new(env!("CARGO_TARGET_TMPDIR")), name, history, rules);
        panic!(
            "{name}: {violation}\nseed {seed}; the history is {}; ask the same again with\n\
             KACHEL_HISTORY_SEED={seed} cargo test -p kachel --test linearizable",
            path.display()
        )
    });
    assert!(stats.operations >= OPERATIONS_MIN, "{name}: {stats:?}");
    assert!(stats.unknown * 100 <= stats.operations * UNKNOWN_PERCENT_MAX, "{name}: {stats:?}");
    assert!(stats.unknown > 0 && stats.overlapping > 0, "{name}: {stats:?}");
    let refused = history.entries.iter().find_map(|entry| match &entry.outcome {
        Outcome::Refused(line) if !workload::may_be_refused(line) => Some((entry, line)),
        _ => None,
    });
    assert!(refused.is_none(), "{name}: {refused:?}");
    stats
}

/// The histories of a test.
struct Judging {
    seed: u64,
    /// How many histories are judged of all servers together.
    count: u64,
    began: Instant,
    total: Stats,
    judged: u64,
}

impl Judging {
    fn new(histories: u64) -> Self {
        let count = setting("KACHEL_HISTORIES", HISTORIES) * histories / HISTORIES;
        let seed = setting("KACHEL_HISTORY_SEED", SEED);
        Self { seed, count, began: Instant::now(), total: Stats::default(), judged: 0 }
    }

    /// Judges the histories of the server at `place` among `servers`, and ends the server.
    fn judge_all(
        &mut self,
        (place, servers): (u64, usize),
        server: Subject,
        name: &str,
        rules: &Rules,
    ) {
        if place >= self.count {
            return; // A short run has no history for this server.
        }
        let kept = std::env::var_os("KACHEL_HISTORY_KEEP").map(PathBuf::from);
        for number in (place..self.count).step_by(servers) {
            // Both judges know the classic verbs; ours alone the meta verbs.
            let flavor = if number / 8 % 4 == 3 { Flavor::Meta } else { Flavor::Classic };
            let history = record(&server, (self.seed, number), flavor, self.began);
            let name = format!("{number}-{name}");
            if let Some(folder) = kept.as_ref().filter(|_| flavor == Flavor::Classic) {
                keep(folder, &name, &history, rules);
            }
            let stats = judge(&name, self.seed, &history, rules);
            self.total.operations += stats.operations;
            self.total.unknown += stats.unknown;
            self.total.overlapping += stats.overlapping;
            self.total.steps += stats.steps;
            self.judged += 1;
        }
        server.end();
    }

    fn end(self) {
        let Self { seed, count, began, total, judged } = self;
        println!(
            "seed {seed}: {judged} histories, {} operations, {} of unknown outcome, {} \
             overlapping, {} steps, {:.1} s",
            total.operations,
            total.unknown,
            total.overlapping,
            total.steps,
            began.elapsed().as_secs_f64()
        );
        assert_eq!(judged, count);
    }
}

#[test]
fn what_eight_clients_see_at_once_is_explained_by_one_order() {
    let mut judging = Judging::new(HISTORIES);
    for (place, options) in (0..).zip(PROCESSES) {
        let Options { shards, backend, engine, reads, .. } = options;
        let name = format!("{shards}-{backend}-{engine}-{reads}");
        judging.judge_all(
            (place, SERVERS),
            Subject::of_process(options),
            &name,
            &rules(engine == "store"),
        );
    }
    judging.end();
}

#[test]
fn what_eight_clients_see_of_engines_with_files_is_explained_by_one_order() {
    let mut judging = Judging::new(HISTORIES_OF_THREADS);
    for (place, (engine, options)) in (0..).zip(THREADS) {
        let server = Subject::of_threads(engine, options, judging.seed);
        let name = format!("{engine:?}-{place}");
        judging.judge_all((place, SERVERS), server, &name, &rules(!options.evict));
    }
    judging.end();
}

/// Judges processes whose items are on a disk.
fn judge_on_disk(histories: u64, servers: &[Options]) {
    let mut judging = Judging::new(histories);
    for (place, options) in (0..).zip(servers) {
        let name = format!("{}-{}-{}", options.shards, options.backend, options.engine);
        let server = Subject::of_process(*options);
        judging.judge_all((place, servers.len()), server, &name, &rules(true));
    }
    judging.end();
}

#[test]
fn what_eight_clients_see_of_rocksdb_is_explained_by_one_order() {
    judge_on_disk(HISTORIES_OVER_ROCKSDB, &OVER_ROCKSDB);
}

#[test]
fn what_eight_clients_see_of_flash_is_explained_by_one_order() {
    judge_on_disk(HISTORIES_OVER_FLASH, &OVER_FLASH);
}

#[test]
fn one_wrong_reply_in_a_real_history_is_found() {
    let server = Subject::of_process(PROCESSES[0]);
    let history = record(&server, (SEED, 0), Flavor::Classic, Instant::now());
    let rules = rules(true);
    assert_eq!(check_history(&history, &rules).map(|_| ()), Ok(()));
    let mut planted = 0;
    for index in (0..history.entries.len()).step_by(41) {
        let mut wrong = history.clone();
        let outcome = &mut wrong.entries[index].outcome;
        *outcome = match outcome {
            Outcome::Hit { client_flags, cas, .. } => {
                let value = Value::new(b"never written");
                Outcome::Hit { value, client_flags: *client_flags, cas: *cas }
            }
            Outcome::Number(number) => Outcome::Number(number.wrapping_add(1 << 40)),
            Outcome::Stored => Outcome::Refused(b"CLIENT_ERROR bad data chunk".to_vec()),
            _ => continue,
        };
        // A store with a false refusal is detected only if a client read its value.
        let must_show = !matches!(outcome, Outcome::Refused(_));
        let found = matches!(check_history(&wrong, &rules), Err(Violation::Contradiction(_)));
        assert!(found || !must_show, "{:?}", wrong.entries[index]);
        planted += usize::from(found);
    }
    assert!(planted >= 5, "{planted}");
}

//! An engine on a disk keeps acknowledged changes when its process is killed, and a start refuses
//! directories that it cannot serve.
//!
//! Upstream:   `cargo test -p kachel --test persistence`.
//! Downstream: the binary with `--engine rocksdb`, killed at any time.
//!
//! The oracle is outside of the process. It knows which requests were acknowledged on the wire.
//! After a restart, each key is as its acknowledged requests have left it, or as some of those that
//! were under way have, in their order.
//!
//! `KACHEL_KILLS` is how often the process is killed, `KACHEL_KILL_SEED` the seed of the requests.
//! Where RocksDB is not installed, `KACHEL_FAKE_ROCKSDB=1` says so, and the library that stands in
//! for it keeps nothing, so there is nothing to kill. Without the variable the tests fail there.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};

use kachel_testkit::{FakeRocksdb, Launch, Random, Server, http_get, setting, skip};

/// Kills unless the environment says otherwise.
const KILLS: u64 = 50;
const SEED: u64 = 1;
/// Connections that write, each with keys of its own, and their requests under way.
const WRITERS: usize = 3;
const KEYS: usize = 12;
const TOGETHER: usize = 8;
/// Batches that are answered before the process is killed, at most.
const BATCHES_MAX: usize = 40;
/// The number of the cycles of which one begins with a flush.
const FLUSH_EACH: u64 = 5;

/// A request of a writer.
#[derive(Clone, Copy, Debug)]
enum Request {
    Set(u32),
    Append,
    Delete,
    Touch,
}

/// An item: its value, and whether it expires.
type Item = (String, bool);

impl Request {
    fn text(self, key: &str) -> String {
        match self {
            Self::Set(number) => {
                let value = number.to_string();
                format!("ms {key} {} c\r\n{value}\r\n", value.len())
            }
            Self::Append => format!("append {key} 0 0 1\r\n+\r\n"),
            Self::Delete => format!("delete {key}\r\n"),
            Self::Touch => format!("touch {key} 100000\r\n"),
        }
    }

    /// What the request makes of an item, and the beginning of its reply.
    fn apply(self, item: Option<Item>) -> (Option<Item>, &'static str) {
        match (self, item) {
            (Self::Set(number), _) => (Some((number.to_string(), false)), "HD c"),
            (Self::Append, Some((value, expires))) => (Some((value + "+", expires)), "STORED"),
            (Self::Append, None) => (None, "NOT_STORED"),
            (Self::Delete, Some(_)) => (None, "DELETED"),
            (Self::Touch, Some((value, _))) => (Some((value, true)), "TOUCHED"),
            (Self::Delete | Self::Touch, None) => (None, "NOT_FOUND"),
        }
    }
}

/// A key, as its acknowledged requests have left it, and the requests that are under way.
#[derive(Debug)]
struct Key {
    name: String,
    item: Option<Item>,
    under_way: Vec<Request>,
}

impl Key {
    /// Every item that the key may have after a kill.
    fn possible(&self) -> Vec<Option<Item>> {
        let mut possible = vec![self.item.clone()];
        for request in &self.under_way {
            let last = possible.last().cloned().expect("there is one");
            possible.push(request.apply(last).0);
        }
        possible
    }
}

/// A connection that writes.
struct Writer {
    keys: Vec<Key>,
    random: Random,
    written: u32,
}

impl Writer {
    fn request(&mut self) -> Request {
        self.written += 1;
        match self.random.index(8) {
            0..4 => Request::Set(self.written),
            4 | 5 => Request::Append,
            6 => Request::Delete,
            _ => Request::Touch,
        }
    }

    /// Sends batches and takes their replies until the process is gone. Tells each batch that was
    /// answered. Panics on a wrong reply.
    fn write(&mut self, server: &Server, answered: &Sender<()>, tokens: &Mutex<BTreeSet<String>>) {
        let socket = File::from(server.stream().expect("it listens"));
        let mut replies = BufReader::new(socket.try_clone().expect("the socket twice"));
        loop {
            let mut batch = Vec::new();
            for _ in 0..TOGETHER {
                let (place, request) = (self.random.index(self.keys.len()), self.request());
                self.keys[place].under_way.push(request);
                batch.push((place, request));
            }
            let text = |(place, request): &(usize, Request)| request.text(&self.keys[*place].name);
            let text: String = batch.iter().map(text).collect();
            if (&socket).write_all(text.as_bytes()).is_err() {
                return;
            }
            for (place, request) in batch {
                let mut reply = String::new();
                if replies.read_line(&mut reply).is_err() || !reply.ends_with('\n') {
                    return;
                }
                let key = &mut self.keys[place];
                let (item, wanted) = request.apply(key.item.take());
                assert!(reply.starts_with(wanted), "{request:?} of {}: {reply:?}", key.name);
                if let Request::Set(_) = request {
                    let is_new = tokens.lock().expect("no panic").insert(reply.clone());
                    assert!(is_new, "the token was given out twice: {reply:?}");
                }
                key.item = item;
                key.under_way.remove(0);
            }
            if answered.send(()).is_err() {
                return;
            }
        }
    }

    /// Compares each key with what it may be, and takes over what it is.
    fn check(&mut self, server: &Server, cycle: u64) {
        let mut client = server.connect();
        for key in &mut self.keys {
            let text = client.ask(format!("mg {} t v\r\nmn\r\n", key.name), "MN\r\n");
            let lines: Vec<&str> = text.lines().collect();
            let found = match lines[..] {
                ["EN", "MN"] => None,
                [head, value, "MN"] => Some((value.to_owned(), !head.ends_with(" t-1"))),
                _ => panic!("{text:?}"),
            };
            let possible = key.possible();
            assert!(possible.contains(&found), "cycle {cycle}: {found:?} of {key:?}: {possible:?}");
            (key.item, key.under_way) = (found, Vec::new());
        }
    }
}

/// Whether only the library that stands in for RocksDB is there.
fn is_fake() -> bool {
    std::env::var_os("KACHEL_FAKE_ROCKSDB").is_some()
}

/// Starts a server over a folder, each cycle with other options.
fn start(data: &Path, cycle: u64) -> Server {
    let data = data.to_str().expect("UTF-8");
    let pick = |from: &[&'static str]| from[cycle as usize % from.len()];
    let sync = pick(&["always", "os", "interval:1ms", "always"]);
    let (threads, io) = (pick(&["2", "1", "3"]), pick(&["auto", "epoll"]));
    let options =
        ["serve", "--engine", "rocksdb", "--data", data, "--sync", sync, "-t", threads, "--io", io];
    let program = Path::new(env!("CARGO_BIN_EXE_kachel"));
    let launch = Launch { called_as: "kachel", ..Launch::memcached(program, &options) };
    launch.start()
}

fn kill(mut server: Server) {
    server.process.kill().expect("it runs");
    server.process.wait().expect("its end");
}

#[test]
fn what_was_acknowledged_is_there_after_the_process_was_killed() {
    if is_fake() {
        return skip("rocksdb.kills", "RocksDB is not installed");
    }
    let (kills, seed) = (setting("KACHEL_KILLS", KILLS), setting("KACHEL_KILL_SEED", SEED));
    let place = tempfile::tempdir().expect("a folder");
    let data = place.path().join("data");
    let tokens = Mutex::new(BTreeSet::new());
    let mut random = Random::new(seed);
    let mut writers: Vec<Writer> = (0..WRITERS)
        .map(|writer| {
            let key = |key| Key { name: format!("{writer}:{key}"), item: None, under_way: vec![] };
            let random = Random::new(seed ^ (writer as u64 + 1) << 32);
            Writer { keys: (0..KEYS).map(key).collect(), random, written: 0 }
        })
        .collect();
    let mut under_way = 0;
    for cycle in 0..kills {
        let server = start(&data, cycle);
        writers.iter_mut().for_each(|writer| writer.check(&server, cycle));
        if cycle % FLUSH_EACH == FLUSH_EACH - 1 {
            assert_eq!(server.connect().ask("flush_all\r\n", "\r\n"), "OK\r\n");
            writers.iter_mut().flat_map(|writer| &mut writer.keys).for_each(|key| key.item = None);
            kill(server);
            continue;
        }
        let (answered, batches) = channel();
        std::thread::scope(|scope| {
            for writer in &mut writers {
                let (server, answered, tokens) = (&server, answered.clone(), &tokens);
                scope.spawn(move || writer.write(server, &answered, tokens));
            }
            drop(answered);
            let wanted = 1 + random.index(BATCHES_MAX);
            assert_eq!(batches.iter().take(wanted).count(), wanted, "the server answers");
            let pid = rustix::process::Pid::from_raw(server.process.id().cast_signed());
            let signal = rustix::process::Signal::KILL;
            rustix::process::kill_process(pid.expect("a process"), signal).expect("it runs");
        });
        let keys = writers.iter().flat_map(|writer| &writer.keys);
        under_way += keys.map(|key| key.under_way.len()).sum::<usize>();
        kill(server);
    }
    println!(
        "seed {seed}: {kills} kills, {under_way} requests under way, {} tokens",
        tokens.lock().expect("no panic").len()
    );
    assert!(kills < 10 || under_way > 0, "kills come while requests are under way");
}

#[test]
fn a_server_that_ends_closes_its_databases() {
    let (place, fake) = (tempfile::tempdir().expect("a folder"), FakeRocksdb::build(None));
    let library = format!("KACHEL_TEST_ROCKSDB={}", fake.path().display());
    for admin in [&[][..], &["--admin", "127.0.0.1:0"]] {
        let data = place.path().join(admin.len().to_string());
        let folder = data.to_str().expect("UTF-8");
        let options =
            [&["serve", "-t", "2", "--engine", "rocksdb", "--data", folder], admin].concat();
        let program = Path::new(env!("CARGO_BIN_EXE_kachel"));
        let under = ["env", &library];
        let launch = Launch::memcached(program, &options);
        let mut server = Launch { called_as: "kachel", under: &under, ..launch }.start();
        assert_eq!(server.connect().ask("set a 0 0 1\r\n1\r\n", "\r\n"), "STORED\r\n");
        if !admin.is_empty() {
            let metrics = http_get(server.admin_port(), "/metrics");
            for line in ["kachel_engine_read_only 0", "# TYPE kachel_engine_commits_total counter"]
            {
                assert!(metrics.lines().any(|one| one == line), "{metrics}");
            }
        }
        server.signal(rustix::process::Signal::TERM);
        assert!(server.process.wait().expect("its end").success());
        for engine in ["engine-0000", "engine-0001"] {
            assert!(data.join(engine).join("closed").exists(), "{engine} with {admin:?}");
        }
    }
}

#[test]
fn what_cannot_be_served_is_named() {
    let place = tempfile::tempdir().expect("a folder");
    let data = place.path().join("data");
    let fake = FakeRocksdb::build(None);
    let lacking = FakeRocksdb::build(Some("rocksdb_multi_get"));
    let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let said = |library: &str, data: &str, more: &[&str]| {
        let library = format!("KACHEL_TEST_ROCKSDB={library}");
        let options = [&["serve", "-t", "2", "--engine", "rocksdb", "--data", data], more].concat();
        let program = Path::new(env!("CARGO_BIN_EXE_kachel"));
        let under = ["env", &library];
        let launch = Launch::memcached(program, &options);
        Launch { called_as: "kachel", under: &under, ..launch }.try_start().map_err(|end| end.said)
    };
    let server = said(&text(fake.path()), &text(&data), &[]).expect("it starts");
    assert!(server.last_words().contains("this is for tests only"));
    let other = place.path().join("other");
    std::fs::create_dir(&other).expect("a folder");
    std::fs::write(other.join("precious"), "").expect("a file");
    let options = place.path().join("options");
    std::fs::write(&options, "no_such_option=1\n").expect("a file");
    for (library, data, more, wanted) in [
        (text(fake.path()), text(&data), &[][..], "another server has the directory open"),
        (text(fake.path()), text(&other), &[], "has precious and no kachel.root"),
        (text(lacking.path()), text(&data), &[], "has no function rocksdb_multi_get"),
        ("/none/librocksdb.so".to_owned(), text(&data), &[], "/none/librocksdb.so: cannot open"),
        (
            text(fake.path()),
            text(&place.path().join("new")),
            &["--rocksdb-options", &text(&options)],
            "Invalid argument: no_such_option",
        ),
    ] {
        let said = said(&library, &data, more).expect_err("it does not start");
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
    drop(server);
}

//! An engine on a disk keeps acknowledged changes when its process is killed, and a start refuses
//! directories that it cannot serve.
//!
//! Upstream:   `cargo test -p kachel --test persistence`.
//! Downstream: the binary with `--engine rocksdb` or `flash`, killed at any time.
//!
//! The oracle is outside of the process. It knows which requests were acknowledged on the wire.
//! After a restart, each key is as its acknowledged requests have left it, or as some of those that
//! were under way have, in their order. Kills only test what the kernel has, so every mode of
//! `--sync` must keep the same.
//!
//! `KACHEL_KILLS` is how often the process is killed, `KACHEL_KILL_SEED` the seed of the requests.
//! Where RocksDB is not installed, `KACHEL_FAKE_ROCKSDB=1` says so, and the library that stands in
//! for it keeps nothing, so there is nothing to kill. Without the variable the tests fail there.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};

use kachel_testkit::{FakeRocksdb, Launch, Random, Server, http_get, setting, skip};

/// Kills unless the environment says otherwise, and those of an engine of ours with
/// `KACHEL_FULL=1`.
const KILLS: u64 = 50;
const KILLS_FULL: u64 = 10_000;
const SEED: u64 = 1;
/// Connections that write, each with keys of its own, and their requests under way.
const WRITERS: usize = 3;
const KEYS: usize = 12;
const TOGETHER: usize = 8;
/// The first keys of a writer may have large values, of up to so many bytes. The other values are
/// shorter.
const LARGE_KEYS: usize = 3;
const LARGE_BYTES_MAX: u64 = 300_000;
const SMALL_BYTES_MAX: u64 = 20_000;
/// Batches that are answered before the process is killed, at most.
const BATCHES_MAX: usize = 40;
/// The number of the cycles of which one begins with a flush.
const FLUSH_EACH: u64 = 5;
/// `--space`: a multiple of what all keys take with their largest values. Garbage is collected all
/// the time, because few bytes are alive.
const SPACE_BYTES: u64 = 48 << 20;

/// An engine whose process is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    Flash,
    Rocksdb,
}

/// A request of a writer.
#[derive(Clone, Copy, Debug)]
enum Request {
    /// Stores a value of this number, and of at least so many bytes.
    Set(u32, u64),
    Add(u32),
    Replace(u32),
    /// Stores a value if the item has this CAS token.
    Compare(u32, u64),
    Append,
    Prepend,
    Increment,
    Delete,
    Touch,
    /// Touches and reads.
    Revive,
}

/// What a key has.
#[derive(Clone, PartialEq, Eq)]
struct Item {
    value: String,
    expires: bool,
    /// Its CAS token. `None`: no reply has shown it.
    token: Option<u64>,
}

impl fmt::Debug for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { value, expires, token } = self;
        let (head, bytes) = (&value[..value.len().min(24)], value.len());
        write!(f, "{head:?} ({bytes} bytes, expires: {expires}, token {token:?})")
    }
}

impl Item {
    const fn new(value: String) -> Self {
        Self { value, expires: false, token: None }
    }

    /// Whether this was found where `self` may be.
    fn may_be(&self, found: &Self) -> bool {
        let is_token = self.token.is_none() || self.token == found.token;
        is_token && self.value == found.value && self.expires == found.expires
    }
}

/// The value of a number, which has at least so many bytes. Its pieces differ.
fn value_of(number: u32, bytes: u64) -> String {
    let mut value = number.to_string();
    while (value.len() as u64) < bytes {
        let at = value.len();
        value += &format!(",{number}:{at}:{:>40}", at * 7);
    }
    value
}

impl Request {
    fn text(self, key: &str) -> String {
        let meta = |value: String, flags: &str| {
            format!("ms {key} {} c {flags}\r\n{value}\r\n", value.len())
        };
        let classic =
            |verb, value: &str| format!("{verb} {key} 0 0 {}\r\n{value}\r\n", value.len());
        match self {
            Self::Set(number, bytes) => meta(value_of(number, bytes), ""),
            Self::Add(number) => classic("add", &number.to_string()),
            Self::Replace(number) => classic("replace", &number.to_string()),
            Self::Compare(number, token) => meta(value_of(number, 0), &format!("C{token}")),
            Self::Append => classic("append", "+"),
            Self::Prepend => classic("prepend", "1"),
            Self::Increment => format!("incr {key} 1\r\n"),
            Self::Delete => format!("delete {key}\r\n"),
            Self::Touch => format!("touch {key} 100000\r\n"),
            Self::Revive => format!("mg {key} T200000 s\r\n"),
        }
    }

    /// What the request makes of an item, and the beginning of its reply.
    fn apply(self, item: Option<Item>) -> (Option<Item>, String) {
        let Some(Item { value, expires, token }) = item else {
            return match self {
                Self::Set(number, bytes) => {
                    (Some(Item::new(value_of(number, bytes))), "HD c".into())
                }
                Self::Add(number) => (Some(Item::new(value_of(number, 0))), "STORED\r\n".into()),
                Self::Append | Self::Prepend | Self::Replace(_) => (None, "NOT_STORED\r\n".into()),
                Self::Compare(..) => (None, "NF ".into()),
                Self::Revive => (None, "EN\r\n".into()),
                Self::Increment | Self::Delete | Self::Touch => (None, "NOT_FOUND\r\n".into()),
            };
        };
        let with = |value| Some(Item { value, expires, token: None });
        match self {
            Self::Set(number, bytes) => (Some(Item::new(value_of(number, bytes))), "HD c".into()),
            Self::Compare(number, of) if token == Some(of) => {
                (Some(Item::new(value_of(number, 0))), "HD c".into())
            }
            Self::Compare(..) => (Some(Item { value, expires, token }), "EX ".into()),
            Self::Replace(number) => (Some(Item::new(value_of(number, 0))), "STORED\r\n".into()),
            Self::Add(_) => (Some(Item { value, expires, token }), "NOT_STORED\r\n".into()),
            Self::Append => (with(value + "+"), "STORED\r\n".into()),
            Self::Prepend => (with(format!("1{value}")), "STORED\r\n".into()),
            Self::Increment => match value.parse::<u64>() {
                Ok(number) => {
                    let number = number.wrapping_add(1).to_string();
                    (with(number.clone()), number + "\r\n")
                }
                Err(_) => (Some(Item { value, expires, token }), "CLIENT_ERROR cannot".into()),
            },
            Self::Delete => (None, "DELETED\r\n".into()),
            Self::Touch => (Some(Item { value, expires: true, token }), "TOUCHED\r\n".into()),
            Self::Revive => {
                let reply = format!("HD s{}\r\n", value.len());
                (Some(Item { value, expires: true, token }), reply)
            }
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
    /// The bytes of the values that were acknowledged, about.
    acknowledged_bytes: u64,
}

impl Writer {
    fn request(&mut self, place: usize) -> Request {
        self.written += 1;
        let token = self.keys[place].item.as_ref().and_then(|item| item.token);
        let number = self.written;
        match (self.random.index(16), token) {
            (0..4, _) => Request::Set(number, 0),
            (4..7, _) => {
                let is_large = place < LARGE_KEYS;
                let most = if is_large { LARGE_BYTES_MAX } else { SMALL_BYTES_MAX };
                Request::Set(number, self.random.below(most))
            }
            (7 | 8, Some(token)) => Request::Compare(number, token),
            (7, None) => Request::Add(number),
            (8, None) => Request::Replace(number),
            (9, _) => Request::Append,
            (10, _) => Request::Prepend,
            (11 | 12, _) => Request::Increment,
            (13, _) => Request::Delete,
            (14, _) => Request::Touch,
            _ => Request::Revive,
        }
    }

    /// Sends batches and takes their replies until the process is gone. Tells each batch that was
    /// answered. Panics on a wrong reply.
    fn write(&mut self, socket: File, answered: &Sender<()>, tokens: &Mutex<BTreeSet<u64>>) {
        let mut replies = BufReader::new(socket.try_clone().expect("the socket twice"));
        loop {
            let mut batch = Vec::new();
            for _ in 0..TOGETHER {
                let place = self.random.index(self.keys.len());
                let request = self.request(place);
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
                assert!(reply.starts_with(&wanted), "{request:?} of {}: {reply:?}", key.name);
                if let Some(Item { value, token: None, .. }) = &item {
                    self.acknowledged_bytes += value.len() as u64;
                }
                key.item = item;
                if let (Some(token), Some(item)) = (reply.strip_prefix("HD c"), &mut key.item) {
                    let token = token.trim_end().parse().expect("a token");
                    let is_new = tokens.lock().expect("no panic").insert(token);
                    assert!(is_new, "the token was given out twice: {reply:?}");
                    item.token = Some(token);
                }
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
            let text = client.ask(format!("mg {} t c v\r\nmn\r\n", key.name), "MN\r\n");
            let lines: Vec<&str> = text.lines().collect();
            let found = match lines[..] {
                ["EN", "MN"] => None,
                [head, value, "MN"] => {
                    let flag = |of| head.split(' ').find_map(|word| word.strip_prefix(of));
                    let token = flag('c').expect("a token").parse().ok();
                    let value = value.to_owned();
                    Some(Item { value, expires: flag('t') != Some("-1"), token })
                }
                _ => panic!("{text:?}"),
            };
            let possible = key.possible();
            let is_possible = possible.iter().any(|item| match (item, &found) {
                (Some(item), Some(found)) => item.may_be(found),
                (item, found) => item.is_none() && found.is_none(),
            });
            assert!(is_possible, "cycle {cycle}: {found:?} of {key:?}: {possible:?}");
            (key.item, key.under_way) = (found, Vec::new());
        }
    }
}

/// Whether only the library that stands in for RocksDB is there.
fn is_fake() -> bool {
    std::env::var_os("KACHEL_FAKE_ROCKSDB").is_some()
}

/// Starts a server over a folder, each cycle with other options.
fn start(subject: Subject, data: &Path, cycle: u64) -> Server {
    let data = data.to_str().expect("UTF-8");
    let pick = |from: &[&'static str]| from[cycle as usize % from.len()];
    let sync = pick(&["always", "os", "interval:1ms", "always"]);
    let (threads, io) = (pick(&["2", "1", "3"]), pick(&["auto", "epoll"]));
    let space = SPACE_BYTES.to_string();
    let of_engine: &[&str] = match subject {
        Subject::Flash => &["--engine", "flash", "--space", &space],
        Subject::Rocksdb => &["--engine", "rocksdb"],
    };
    let options = ["serve", "--data", data, "--sync", sync, "-t", threads, "--io", io];
    let options = [&options, of_engine].concat();
    let program = Path::new(env!("CARGO_BIN_EXE_kachel"));
    let launch = Launch { called_as: "kachel", ..Launch::memcached(program, &options) };
    launch.start()
}

fn kill(mut server: Server) {
    server.process.kill().expect("it runs");
    server.process.wait().expect("its end");
}

/// The bytes of all files in a folder.
fn bytes_in(folder: &Path) -> u64 {
    let entries =
        std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry"));
    let bytes = entries.map(|entry| {
        let path = entry.path();
        if path.is_dir() { bytes_in(&path) } else { entry.metadata().expect("a file").len() }
    });
    bytes.sum()
}

/// Kills the process of an engine as often as `kills` says.
fn check_kills(subject: Subject, kills: u64) {
    let (kills, seed) = (setting("KACHEL_KILLS", kills), setting("KACHEL_KILL_SEED", SEED));
    let place = tempfile::tempdir().expect("a folder");
    let data = place.path().join("data");
    let tokens = Mutex::new(BTreeSet::new());
    let mut random = Random::new(seed);
    let mut writers: Vec<Writer> = (0..WRITERS)
        .map(|writer| {
            let key = |key| Key { name: format!("{writer}:{key}"), item: None, under_way: vec![] };
            let random = Random::new(seed ^ (writer as u64 + 1) << 32);
            let keys = (0..KEYS).map(key).collect();
            Writer { keys, random, written: 0, acknowledged_bytes: 0 }
        })
        .collect();
    let mut under_way = 0;
    for cycle in 0..kills {
        let server = start(subject, &data, cycle);
        writers.iter_mut().for_each(|writer| writer.check(&server, cycle));
        if cycle % FLUSH_EACH == FLUSH_EACH - 1 {
            // All keys, or those of one writer.
            let number = (cycle / FLUSH_EACH) as usize % (WRITERS + 1);
            let (flush, flushed) = match number {
                WRITERS => ("flush_all\r\n".to_owned(), 0..WRITERS),
                number => (format!("flush_prefix {number}\r\n"), number..number + 1),
            };
            assert_eq!(server.connect().ask(&flush, "\r\n"), "OK\r\n");
            let flushed = writers[flushed].iter_mut().flat_map(|writer| &mut writer.keys);
            flushed.for_each(|key| key.item = None);
            kill(server);
            continue;
        }
        let (answered, batches) = channel();
        // The process may be killed before the last writer begins.
        let sockets = [(); WRITERS].map(|()| File::from(server.stream().expect("it listens")));
        std::thread::scope(|scope| {
            for (writer, socket) in writers.iter_mut().zip(sockets) {
                let (answered, tokens) = (answered.clone(), &tokens);
                scope.spawn(move || writer.write(socket, &answered, tokens));
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
    let acknowledged: u64 = writers.iter().map(|writer| writer.acknowledged_bytes).sum();
    println!(
        "{subject:?}, seed {seed}: {kills} kills, {under_way} requests under way, {} tokens, \
         {acknowledged} bytes",
        tokens.lock().expect("no panic").len()
    );
    assert!(kills < 10 || under_way > 0, "kills come while requests are under way");
    // Far more was written than is alive, so garbage was collected.
    assert!(kills < KILLS || acknowledged > 32 << 20, "too few bytes were written");
    let bytes = bytes_in(&data);
    assert!(subject != Subject::Flash || bytes <= SPACE_BYTES + 8192, "{bytes} bytes of files");
}

#[test]
fn flash_has_what_was_acknowledged_after_the_process_was_killed() {
    let is_full = std::env::var_os("KACHEL_FULL").is_some();
    check_kills(Subject::Flash, if is_full { KILLS_FULL } else { KILLS });
}

#[test]
fn rocksdb_has_what_was_acknowledged_after_the_process_was_killed() {
    if is_fake() {
        return skip("rocksdb.kills", "RocksDB is not installed");
    }
    check_kills(Subject::Rocksdb, KILLS);
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

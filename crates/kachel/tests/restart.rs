//! Warm restart (`-e`): a server that ends by SIGUSR1 leaves its items to the next one, and no
//! other server leaves any.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use kachel_cache::{FileHead, HEAD_BYTES};
use kachel_testkit::{Client, Ended, Launch, Random, Server, set_request, wait_until};
use rustix::process::Signal;

/// A folder with a memory file, and the servers that use it one after the other.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder") }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("items")
    }

    /// The names in the folder.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).expect("a folder");
        let names = entries.map(|entry| entry.expect("an entry").file_name());
        names.map(|name| name.into_string().expect("text")).collect()
    }

    fn try_start(&self, options: &[&str]) -> Result<Server, Ended> {
        self.try_start_under(&[], options)
    }

    /// Starts a server by a command that gives it limits.
    fn try_start_under(&self, under: &[&str], options: &[&str]) -> Result<Server, Ended> {
        let path = self.path();
        let file = ["-e", path.to_str().expect("text"), "-A"];
        let options = [&file, options].concat();
        let program = Path::new(env!("CARGO_BIN_EXE_kachel"));
        Launch { under, ..Launch::memcached(program, &options) }.try_start()
    }

    fn start(&self, options: &[&str]) -> Server {
        self.try_start(options).unwrap_or_else(|ended| panic!("{}: {}", ended.status, ended.said))
    }

    /// Starts a server, lets `fill` store items, and ends it so that they are saved.
    fn save(&self, options: &[&str], fill: impl FnOnce(&mut Client)) {
        let mut server = self.start(options);
        fill(&mut server.connect());
        assert_eq!(end(&mut server, Signal::USR1).code(), Some(0), "{}", server.last_words());
        assert_eq!(self.names(), ["items"]);
    }

    /// Lets `seconds` pass between the servers, and the clock go back if they are negative.
    fn age(&self, seconds: i64) {
        let mut bytes = fs::read(self.path()).expect("a file");
        let head = FileHead::decode(&bytes, bytes.len() as u64).expect("a memory file");
        let unix_s = head.unix_s.checked_add_signed(-seconds).expect("a time");
        bytes[..HEAD_BYTES].copy_from_slice(&FileHead { unix_s, ..head }.encode());
        fs::write(self.path(), bytes).expect("written");
    }
}

/// Sends the signal, and waits for the end.
fn end(server: &mut Server, signal: Signal) -> ExitStatus {
    server.signal(signal);
    wait_for_end(server)
}

fn wait_for_end(server: &mut Server) -> ExitStatus {
    let mut status = None;
    wait_until("the end of the server", || {
        status = server.process.try_wait().expect("the state of a child");
        status.is_some()
    });
    status.expect("it has ended")
}

/// The CAS token of an item.
fn token(client: &mut Client, key: &str) -> u64 {
    let reply = client.ask(format!("mg {key} c\r\n"), "\r\n");
    reply.trim().strip_prefix("HD c").expect("a hit").parse().expect("a number")
}

#[test]
fn items_of_all_kinds_survive_with_all_that_clients_see_of_them() {
    let place = Place::new();
    let large = Random::new(5).bits().to_le_bytes().repeat(200_000);
    let asked = [
        ("mg plain s f v c t h\r\n", "VA 5 s5 f70000 c{} t-1 h1\r\nvalue\r\n"),
        ("mg stale v f\r\n", "VA 1 f0 X W\r\nx\r\n"),
        ("mg won v f\r\n", "VA 1 f0 Z X\r\ny\r\n"),
        ("mg AAEC b k v\r\n", "VA 3 kAAEC b\r\nbin\r\n"),
        ("lease-get leased\r\n", "NOT_FOUND_HOT\r\n"),
    ];
    let (mut tokens, mut lease) = (Vec::new(), String::new());
    place.save(&["-t", "2", "-I", "2m"], |client| {
        client.ask("set plain 70000 0 5\r\nvalue\r\n", "\r\n");
        client.ask("get plain\r\n", "END\r\n");
        client.ask("set timed 0 1000 2\r\n10\r\n", "\r\n");
        for (key, value) in [("stale", "x"), ("won", "y")] {
            client.ask(format!("set {key} 0 0 1\r\n{value}\r\n"), "\r\n");
            client.ask(format!("md {key} I\r\n"), "\r\n");
        }
        client.ask("mg won v\r\n", "y\r\n");
        client.ask("ms AAEC 3 b\r\nbin\r\n", "\r\n");
        client.ask("set gone 0 0 1\r\nx\r\n", "\r\n");
        client.ask("delete gone\r\n", "\r\n");
        client.ask("set flushed 0 -1 1\r\nx\r\n", "\r\n");
        client.set("large", &large);
        lease = client.ask("lease-get leased\r\n", "END\r\n");
        tokens.extend(["plain", "timed", "large"].map(|key| token(client, key)));
    });
    let mut server = place.start(&["-t", "2", "-I", "2m"]);
    let mut client = server.connect();
    assert_eq!(["plain", "timed", "large"].map(|key| token(&mut client, key)), *tokens);
    for (request, wanted) in asked {
        let wanted = wanted.replace("{}", &tokens[0].to_string());
        let last = wanted.lines().last().expect("a line");
        assert_eq!(client.ask(request, &format!("{last}\r\n")), wanted, "{request}");
    }
    let timed = client.ask("mg timed s f v h t l\r\n", "10\r\n");
    assert!(timed.starts_with("VA 2 s2 f0 h1 t"), "{timed}");
    assert_eq!(client.get("large"), Some(large));
    assert_eq!(client.get("gone"), None);
    assert_eq!(client.get("flushed"), None);
    assert_eq!(client.ask("incr timed 5\r\n", "\r\n"), "15\r\n");
    assert_eq!(client.ask("append plain 0 0 1\r\n!\r\n", "\r\n"), "STORED\r\n");
    assert_eq!(client.get("plain"), Some(b"value!".to_vec()));
    let request = format!("cas plain 0 0 3 {}\r\nnew\r\n", tokens[0]);
    assert_eq!(client.ask(request, "\r\n"), "EXISTS\r\n", "it was appended to");
    let lease: u64 = lease.split(' ').nth(2).expect("a token").parse().expect("a number");
    let request = format!("lease-set leased {lease} 0 0 3\r\nnew\r\n");
    assert_eq!(client.ask(request, "\r\n"), "STORED\r\n", "the token is still good");
    let mut newer = |number| {
        let key = format!("new{number}");
        client.set(&key, b"v");
        token(&mut client, &key)
    };
    assert!((0..20).all(|number| tokens.iter().all(|old| newer(number) > *old)));
    server.assert_alive();
}

#[test]
fn time_that_passes_between_the_servers_counts_and_a_clock_set_back_does_not() {
    let place = Place::new();
    let fill = |client: &mut Client| {
        for (key, ttl) in [("short", 50), ("long", 5_000), ("never", 0)] {
            client.send(set_request(key, ttl, b"v"));
            assert_eq!(client.read_line(), b"STORED\r\n");
        }
    };
    let ttl = |client: &mut Client, key: &str| -> Option<i64> {
        let reply = client.ask(format!("mg {key} t\r\n"), "\r\n");
        reply.trim().strip_prefix("HD t").map(|ttl| ttl.parse().expect("a number"))
    };
    for (seconds, short, long) in
        [(0, Some(50), 5_000), (100, None, 4_900), (-3_600, Some(50), 5_000)]
    {
        place.save(&[], fill);
        place.age(seconds);
        let server = place.start(&[]);
        let mut client = server.connect();
        let near = |ttl: Option<i64>, wanted: i64| {
            ttl.is_some_and(|ttl| ttl <= wanted && ttl > wanted - 40)
        };
        assert_eq!(ttl(&mut client, "short").is_some(), short.is_some(), "after {seconds} s");
        assert!(
            near(ttl(&mut client, "long"), long),
            "{:?} after {seconds} s",
            ttl(&mut client, "long")
        );
        assert_eq!(ttl(&mut client, "never"), Some(-1));
        let uptime = client.stat("uptime") as i64;
        assert!(uptime >= seconds.max(0) && uptime < seconds.max(0) + 40, "{uptime} s");
    }
}

#[test]
fn a_flush_is_not_undone_and_a_pending_one_comes() {
    let place = Place::new();
    let flushed = |client: &mut Client| {
        client.set("old", b"v");
        client.ask("flush_all\r\n", "\r\n");
        client.set("new", b"v");
        client.ask("flush_all 600\r\n", "\r\n");
    };
    place.save(&["-t", "2"], flushed);
    place.age(500);
    let mut server = place.start(&["-t", "2"]);
    let mut client = server.connect();
    assert_eq!((client.get("old"), client.get("new")), (None, Some(b"v".to_vec())));
    assert_eq!(end(&mut server, Signal::USR1).code(), Some(0));
    // 100 s are left, less those that have passed here.
    place.age(96);
    let server = place.start(&["-t", "1"]);
    let mut client = server.connect();
    assert!(client.get("new").is_some() || server.last_words().contains("flushed"));
    wait_until("the flush", || client.get("new").is_none());
    drop(server);

    place.save(&["-t", "2"], flushed);
    place.age(601);
    let server = place.start(&["-t", "2"]);
    assert_eq!(server.connect().get("new"), None);
    assert!(server.last_words().contains("was flushed meanwhile"), "{}", server.last_words());
}

#[test]
fn the_flush_of_a_prefix_is_not_undone() {
    const COUNT: usize = 2_000;
    let place = Place::new();
    place.save(&["-t", "2"], |client| {
        let sets = (0..COUNT).map(|key| format!("set a:{key} 0 0 1 noreply\r\nx\r\n"));
        client.send(sets.collect::<String>());
        client.set("ab", b"v");
        client.ask("flush_prefix a\r\n", "OK\r\n");
        client.set("a:new", b"v");
    });
    let server = place.start(&["-t", "2"]);
    let mut client = server.connect();
    let left = ["ab", "a:new"].map(|key| client.get(key));
    assert_eq!(left, [Some(b"v".to_vec()), Some(b"v".to_vec())]);
    assert!((0..COUNT).all(|key| client.get(&format!("a:{key}")).is_none()));
    let items = client.ask("stats\r\n", "END\r\n");
    assert!(items.contains("STAT curr_items 2\r\n"), "{items}");
}

/// The items that a server has, of the first `count` keys.
fn held(client: &mut Client, count: usize) -> usize {
    (0..count)
        .filter(|number| {
            client.get(&format!("key{number}")).is_some_and(|value| value == value_of(*number))
        })
        .count()
}

fn value_of(number: usize) -> Vec<u8> {
    vec![b'a' + (number % 26) as u8; 100 + number % 3_000]
}

fn fill(client: &mut Client, count: usize) {
    for number in 0..count {
        client.set(&format!("key{number}"), &value_of(number));
    }
}

#[test]
fn the_next_server_may_have_other_threads_and_less_memory() {
    const COUNT: usize = 4_000;
    let place = Place::new();
    place.save(&["-t", "2", "-m", "64"], |client| fill(client, COUNT));
    // More engines than threads, and fewer (`kachel_options::TEST_ENGINES_ENV`).
    let [more, fewer] = [8, 3].map(|engines| format!("KACHEL_TEST_ENGINES={engines}"));
    let [more, fewer] = [["env", &more], ["env", &fewer]];
    for (under, options, all) in [
        (&[][..], &["-t", "3", "-m", "64", "--io=epoll"][..], true),
        (&more, &["-t", "3", "-m", "64"], true),
        (&fewer, &["-t", "8", "-m", "64", "--reads=erew"], true),
        (&[], &["-t", "1", "-m", "64", "--reads=erew"], true),
        (&[], &["--roles=net=1,shard=2", "-m", "64", "-C"], true),
        (&[], &["-t", "2", "-m", "64", "--engine=store"], true),
        (&[], &["-t", "2", "-m", "4"], false),
    ] {
        let mut server = place.try_start_under(under, options).expect("it starts");
        let count = held(&mut server.connect(), COUNT);
        let is_right = if all { count == COUNT } else { count > COUNT / 4 && count < COUNT };
        assert!(is_right, "{count} with {options:?}: {}", server.last_words());
        assert_eq!(end(&mut server, Signal::USR1).code(), Some(0), "{}", server.last_words());
    }
}

/// Ends a server by a command.
fn shut_down(server: &mut Server, command: &str) -> ExitStatus {
    // Over TLS the client has bytes that it did not read. If it closed now, the kernel would reset
    // the connection, and the server might never see the command.
    let mut client = server.connect();
    client.send(command);
    wait_for_end(server)
}

#[test]
fn only_a_graceful_end_leaves_a_file() {
    let place = Place::new();
    type End = fn(&mut Server) -> ExitStatus;
    let ends: [(&str, End, bool); 6] = [
        ("SIGTERM", |server| end(server, Signal::TERM), false),
        ("SIGINT", |server| end(server, Signal::INT), false),
        ("SIGKILL", |server| end(server, Signal::KILL), false),
        ("SIGUSR1", |server| end(server, Signal::USR1), true),
        ("shutdown", |server| shut_down(server, "shutdown\r\n"), false),
        ("shutdown graceful", |server| shut_down(server, "shutdown graceful\r\n"), true),
    ];
    for (name, ended, leaves) in ends {
        // The server begins with items of the one before.
        place.save(&[], |client| client.set("first", b"v"));
        let mut server = place.start(&[]);
        let mut client = server.connect();
        assert_eq!(client.get("first"), Some(b"v".to_vec()));
        assert_eq!(place.names(), ["items.new"], "what was loaded is gone");
        client.set("second", b"v");
        drop(client);
        ended(&mut server);
        assert_eq!(place.path().exists(), leaves, "after {name}");
        let server = place.start(&[]);
        let both = ["first", "second"].map(|key| server.connect().get(key).is_some());
        assert_eq!(both, [leaves; 2], "after {name}");
    }
}

#[test]
fn a_start_that_fails_leaves_the_items_to_the_next_one() {
    let place = Place::new();
    place.save(&[], |client| client.set("key", b"v"));
    // Before the items are loaded; while the shards start, after that; and after that.
    let cases: [(&[&str], &[&str], &str); 3] = [
        (&["prlimit", "--as=95000000", "--"], &["-t", "2"], "address space"),
        (&["prlimit", "--nofile=16", "--"], &["-t", "16", "-c", "1", "--io=epoll"], "open files"),
        (&[], &["-P", "/none/pid"], "/none/pid"),
    ];
    for (under, options, said) in cases {
        let ended = place.try_start_under(under, options).expect_err("it cannot serve");
        assert_eq!(ended.status.code(), Some(71), "{}", ended.said);
        assert!(ended.said.contains(said), "{}", ended.said);
        let is_loaded = ended.said.contains("1 of 1 item loaded");
        assert_eq!(is_loaded, said != "address space", "{}", ended.said);
        assert_eq!(place.names(), ["items"], "{said}");
    }
    let server = place.start(&[]);
    assert_eq!(server.connect().get("key"), Some(b"v".to_vec()));
    assert_eq!(place.names(), ["items.new"], "R1: it is gone when a client is served");
}

#[test]
fn a_signal_that_comes_while_items_are_loaded_ends_the_server_and_leaves_the_file() {
    // The server begins with the signal, which its first process blocks and sends to itself.
    const BLOCKED: [&str; 3] = ["env", "--block-signal=TERM,INT,USR1,HUP", "sh"];
    let place = Place::new();
    place.save(&[], |client| client.set("key", b"v"));
    for signal in ["TERM", "INT", "USR1"] {
        let script = format!("kill -HUP $$; kill -{signal} $$; exec \"$0\" \"$@\"");
        let under = [&BLOCKED[..], &["-c", &script]].concat();
        let ended = place.try_start_under(&under, &["-t", "2"]).expect_err("it must end");
        assert_eq!(ended.status.code(), Some(0), "{signal}: {}", ended.said);
        assert!(ended.said.contains("told to end while items were loaded"), "{}", ended.said);
        assert_eq!(place.names(), ["items"], "{signal}");
    }
    let server = place.start(&[]);
    assert_eq!(server.connect().get("key"), Some(b"v".to_vec()));
}

#[test]
fn clients_that_do_not_read_delay_the_end_but_lose_nothing() {
    let place = Place::new();
    let large = vec![b'v'; 1_000_000];
    let mut server = place.start(&["-m", "64"]);
    let mut client = server.connect();
    client.set("large", &large);
    let mut slow = server.connect();
    slow.send("get large\r\n".repeat(30));
    wait_until("requests that are served", || client.stat("cmd_get") > 0);
    server.signal(Signal::USR1);
    wait_until("the end of service", || server.stream().is_err());
    // A second signal does not wait for the client; a third one does not cut the file.
    assert!(server.process.try_wait().expect("a child").is_none(), "it waits for its client");
    for signal in [Signal::TERM, Signal::TERM] {
        server.signal(signal);
    }
    assert_eq!(wait_for_end(&mut server).code(), Some(0), "{}", server.last_words());
    drop(slow);
    let server = place.start(&["-m", "64"]);
    assert_eq!(server.connect().get("large"), Some(large));
}

/// A client that does not read keeps the server from saving, so the signal comes before that.
#[test]
fn an_interrupt_after_the_signal_to_save_ends_the_server_without_a_file() {
    let place = Place::new();
    let mut server = place.start(&["-m", "64"]);
    let mut client = server.connect();
    client.set("large", &[b'v'; 1_000_000]);
    let mut slow = server.connect();
    slow.send("get large\r\n".repeat(30));
    wait_until("requests that are served", || client.stat("cmd_get") > 0);
    server.signal(Signal::USR1);
    wait_until("the end of service", || server.stream().is_err());
    assert_eq!(end(&mut server, Signal::INT).code(), Some(1), "{}", server.last_words());
    assert!(server.last_words().contains("there is no file"), "{}", server.last_words());
    assert!(!place.path().exists(), "SIGINT says that it is not wanted");
}

#[test]
fn a_file_that_does_not_fit_is_reported_and_the_server_serves() {
    let place = Place::new();
    let mut random = Random::new(9);
    place.save(&["-t", "2"], |client| fill(client, 50));
    let whole = fs::read(place.path()).expect("a file");
    let mut cases: Vec<(String, Vec<u8>)> = vec![
        ("empty".into(), Vec::new()),
        ("of another program".into(), b"T 1 slab_config".repeat(1_000)),
        (
            "of a later version".into(),
            whole.iter().enumerate().map(|(at, byte)| if at == 16 { 9 } else { *byte }).collect(),
        ),
        ("longer".into(), [&whole[..], b"x"].concat()),
    ];
    for _ in 0..8 {
        let at = random.index(whole.len());
        cases.push((format!("cut at {at}"), whole[..at].to_vec()));
        let mut changed = whole.clone();
        changed[at] ^= 1 << random.below(8);
        cases.push((format!("changed at {at}"), changed));
    }
    for (name, bytes) in cases {
        fs::write(place.path(), bytes).expect("written");
        let mut server = place.start(&["-t", "2"]);
        let mut client = server.connect();
        let items = client.stat("curr_items") as usize;
        assert_eq!(held(&mut client, 50), items, "each item is right: {name}");
        let said = server.last_words();
        assert!(said.contains("is not used"), "{name}: {said}");
        client.set("key", b"v");
        assert_eq!(end(&mut server, Signal::TERM).code(), Some(0));
    }
}

#[test]
fn a_folder_that_is_not_there_and_a_file_that_is_in_use_are_errors_at_the_start() {
    let place = Place::new();
    let mut first = place.start(&[]);
    let ended = place.try_start(&[]).expect_err("the file is in use");
    assert_eq!(ended.status.code(), Some(71));
    assert!(ended.said.contains("another server has this file"), "{}", ended.said);
    first.connect().set("k", b"v");
    // The items cannot be saved.
    fs::remove_file(place.folder.path().join("items.new")).expect("it is empty");
    assert_eq!(end(&mut first, Signal::USR1).code(), Some(1));
    assert!(first.last_words().contains("items are not saved"), "{}", first.last_words());
    fs::remove_dir_all(place.folder.path()).expect("an empty folder");
    let ended = place.try_start(&[]).expect_err("there is no folder");
    assert_eq!(ended.status.code(), Some(71));
    assert!(ended.said.contains("cannot write there"), "{}", ended.said);
}

/// The first lines of the next messages to a service manager, in order.
fn told<const COUNT: usize>(manager: &UnixDatagram) -> [String; COUNT] {
    std::array::from_fn(|_| {
        let mut bytes = [0; 4096];
        let count = manager.recv(&mut bytes).expect("a message in time");
        let text = std::str::from_utf8(&bytes[..count]).expect("text");
        text.lines().next().expect("a line").to_owned()
    })
}

#[test]
fn a_service_manager_is_told_when_the_server_is_ready_ends_and_needs_time() {
    let (place, other) = (Place::new(), tempfile::tempdir().expect("a folder"));
    let path = other.path().join("notify");
    let manager = UnixDatagram::bind(&path).expect("a socket");
    manager.set_read_timeout(Some(Duration::from_secs(60))).expect("a time");
    let name = format!("NOTIFY_SOCKET={}", path.display());
    let start = || place.try_start_under(&["env", &name], &[]).expect("it starts");
    const BUSY: &str = "EXTEND_TIMEOUT_USEC=60000000";

    let mut server = start();
    assert_eq!(told(&manager), ["READY=1"]);
    server.connect().set("key", b"v");
    assert_eq!(end(&mut server, Signal::USR1).code(), Some(0), "{}", server.last_words());
    assert_eq!(told(&manager), ["STOPPING=1", BUSY, BUSY], "saved, and synced");

    let mut server = start();
    assert_eq!(told(&manager), [BUSY, "READY=1"], "ready once the items are loaded");
    assert_eq!(server.connect().get("key"), Some(b"v".to_vec()));
    assert_eq!(end(&mut server, Signal::TERM).code(), Some(0), "{}", server.last_words());
    assert_eq!(told(&manager), ["STOPPING=1"]);
    manager.set_nonblocking(true).expect("a flag");
    assert!(manager.recv(&mut [0]).is_err(), "that is all");
}

/// The fault: a file of another user was written, and loaded by the next server.
#[test]
fn a_file_that_others_may_have_written_is_neither_read_nor_written() {
    let place = Place::new();
    place.save(&[], |client| client.set("key", b"v"));
    let beside = place.folder.path().join("items.new");
    let refused = |said: &str| {
        let ended = place.try_start(&[]).expect_err("the file is not this server's own");
        assert_eq!(ended.status.code(), Some(71), "{}", ended.said);
        assert!(ended.said.contains(said), "{}", ended.said);
    };
    let set_mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("its permissions");
    };
    set_mode(&place.path(), 0o666);
    refused("cannot read the file: other users may write it (its mode is 666)");
    set_mode(&place.path(), 0o600);
    fs::write(&beside, "planted").expect("written");
    set_mode(&beside, 0o666);
    refused("items.new: other users may write it");
    fs::remove_file(&beside).expect("removed");
    std::os::unix::fs::symlink("items", &beside).expect("a link");
    refused("items.new: it is a symbolic link");
    fs::remove_file(&beside).expect("removed");
    // The fault: a volume of Kubernetes with `fsGroup`, whose group the server has.
    set_mode(&place.path(), 0o660);
    fs::write(&beside, "left").expect("written");
    set_mode(&beside, 0o660);
    let server = place.start(&[]);
    assert_eq!(server.connect().get("key"), Some(b"v".to_vec()), "it was left as it was");
}

/// The fault: SIGXFSZ ended the server without a sentence.
#[test]
fn a_limit_on_the_length_of_files_is_an_error_of_the_save() {
    let place = Place::new();
    let mut server = place.try_start_under(&["prlimit", "--fsize=100000", "--"], &[]).expect("up");
    fill(&mut server.connect(), 400);
    let status = end(&mut server, Signal::USR1);
    let said = server.last_words();
    assert_eq!(status.code(), Some(1), "{status}: {said}");
    assert!(said.contains("items are not saved: File too large"), "{said}");
    assert_eq!(place.names(), [""; 0], "nothing is left of it");
}

/// Items that are longer than a full block are read a few at a time, and those that are longer than
/// `-I` are not read at all. The items behind them are.
#[test]
fn large_items_are_loaded_a_few_at_a_time_and_too_large_ones_are_skipped() {
    let place = Place::new();
    let value_of = |number: u8| vec![b'a' + number; 7_000_000 + usize::from(number)];
    let has = |client: &mut Client, number: u8| {
        client.get(&format!("large{number}")) == Some(value_of(number))
    };
    place.save(&["-t", "1", "-m", "128", "-I", "8m"], |client| {
        for number in 0..6 {
            client.set(&format!("large{number}"), &value_of(number));
            client.set(&format!("small{number}"), b"v");
        }
    });
    let mut server = place.start(&["-t", "4", "-m", "128", "-I", "8m"]);
    let mut client = server.connect();
    assert!((0..6).all(|number| has(&mut client, number)), "{}", server.last_words());
    drop(client);
    assert_eq!(end(&mut server, Signal::USR1).code(), Some(0));
    let server = place.start(&["-t", "2", "-m", "128"]);
    let mut client = server.connect();
    assert!(!(0..6).any(|number| has(&mut client, number)));
    assert!((0..6).all(|number| client.get(&format!("small{number}")).is_some()));
    let said = server.last_words();
    assert!(said.contains("6 of 12 items loaded") && said.contains("longer than -I"), "{said}");
}

/// The kernel gives signals that wait in the order of their numbers, not of their arrival.
#[test]
fn of_two_signals_that_wait_the_one_that_saves_counts() {
    let place = Place::new();
    for other in [Signal::INT, Signal::TERM] {
        for signals in [[other, Signal::USR1], [Signal::USR1, other]] {
            let mut server = place.start(&[]);
            server.connect().set("a", b"x");
            server.stop();
            signals.into_iter().for_each(|signal| server.signal(signal));
            server.signal(Signal::CONT);
            assert_eq!(wait_for_end(&mut server).code(), Some(0), "{}", server.last_words());
            assert_eq!(place.names(), ["items"], "{signals:?}");
        }
    }
}

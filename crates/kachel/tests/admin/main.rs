//! The admin address of real servers: health, readiness, draining, the token, and attacks.
//! `crates/admin/tests/clients/main.rs` has what needs no server.
//!
//! Invariants:
//! - I1  No test waits for a fixed time, and none judges one.

mod stopped;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use kachel_testkit::{
    Client, Launch, PATIENCE, Server, http_ask, http_connect, http_get, http_get_with, http_status,
    is_usable, skip, user, wait_until,
};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit, setrlimit};

use stopped::{Stopped, stopped_at_a_thread};

/// The most descriptors of the admin thread. The limits of `crates/admin` have it.
const DESCRIPTORS_MAX: usize = kachel_admin::DESCRIPTORS_MAX as usize;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// A server with an admin address and these options, which is ready.
fn start(options: &[&str]) -> Server {
    let options = [&["serve", "--admin", "127.0.0.1:0"], options].concat();
    let program = Path::new(env!("CARGO_BIN_EXE_kachel"));
    let server = Launch { called_as: "kachel", ..Launch::memcached(program, &options) }.start();
    wait_until("a server that is ready", || status(&server, "/ready") == 200);
    server
}

/// The status of a path.
fn status(server: &Server, path: &str) -> u16 {
    http_status(&http_get(server.admin_port(), path))
}

/// The answer of `kachel probe` about a path.
fn probe(server: &Server, path: &str) -> Output {
    let address = format!("http://127.0.0.1:{}{path}", server.admin_port());
    let mut probe = Command::new(env!("CARGO_BIN_EXE_kachel"));
    probe.args(["probe", "--timeout-s=60", &address]).output().expect("the binary starts")
}

/// Asks the server to end, by a signal or by a client.
fn ask_to_end(server: &Server, how: &str) {
    match how {
        "TERM" => server.signal(Signal::TERM),
        "INT" => server.signal(Signal::INT),
        "USR1" => server.signal(Signal::USR1),
        command => server.connect().send(format!("{command}\r\n")),
    }
}

/// The status with which the server ends.
fn end_of(server: &mut Server) -> ExitStatus {
    let mut status = None;
    wait_until("the end of the server", || {
        status = server.process.try_wait().expect("the state of a child");
        status.is_some()
    });
    status.expect("it has ended")
}

/// The descriptors that the server has open.
fn descriptors(server: &Server) -> BTreeSet<u64> {
    let files = fs::read_dir(format!("/proc/{}/fd", server.process.id())).expect("a process");
    files.filter_map(|file| file.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// The numbers of the server's threads with this name.
fn threads(server: &Server, name: &str) -> Vec<Pid> {
    let folder = PathBuf::from(format!("/proc/{}/task", server.process.id()));
    let tasks = fs::read_dir(folder).expect("a process").map(|task| task.expect("a thread").path());
    let named = tasks.filter(|task| {
        fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim_end() == name)
    });
    let number = |task: PathBuf| task.file_name()?.to_str()?.parse().ok();
    named.filter_map(number).filter_map(Pid::from_raw).collect()
}

/// The nice value of the one thread with this name: the greater, the less time it gets.
fn nice(server: &Server, name: &str) -> i32 {
    let [thread] = threads(server, name)[..] else { panic!("one thread {name}") };
    let path = format!("/proc/{}/task/{}/stat", server.process.id(), thread.as_raw_pid());
    let stat = fs::read_to_string(path).expect("a thread");
    let (_, fields) = stat.rsplit_once(')').expect("its name is in brackets");
    fields.split_whitespace().nth(16).expect("field 19").parse().expect("a number")
}

#[test]
fn a_server_whose_shards_sleep_is_healthy_and_ready() {
    for io in ["epoll", "uring"] {
        if io == "uring" && !is_usable("uring") {
            skip("io_uring", "this kernel does not allow it");
            continue;
        }
        let server = start(&["-t", "4", "--io", io]);
        for path in ["/health", "/ready", "/metrics", "/"] {
            assert_eq!(status(&server, path), 200, "{io} {path}");
        }
        let metrics = http_get(server.admin_port(), "/metrics");
        assert!(metrics.contains("\nmemcached_up 1\n"), "{metrics}");
        // 19 is the most, which a process that runs these tests may have already.
        let wanted = (nice(&server, "shard 0") + 1).min(19);
        assert!(nice(&server, "admin") >= wanted, "it gives way to shards");
        assert!(server.last_words().contains("(--admin)"), "{}", server.last_words());
    }
}

#[test]
fn the_metrics_have_the_numbers_of_stats() {
    let server = start(&["-t", "3"]);
    let mut client = server.connect();
    for number in 0..100 {
        client.set(&format!("key{number}"), b"value");
    }
    for number in 50..200 {
        client.get(&format!("key{number}"));
    }
    let metrics = http_get(server.admin_port(), "/metrics");
    let of = |name: &str| {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {metrics}")).to_owned()
    };
    for (metric, stat) in [
        ("memcached_commands_total{command=\"get\",status=\"hit\"}", "get_hits"),
        ("memcached_commands_total{command=\"get\",status=\"miss\"}", "get_misses"),
        ("memcached_commands_total{command=\"set\",status=\"hit\"}", "cmd_set"),
        ("memcached_current_items", "curr_items"),
        ("memcached_items_total", "total_items"),
        ("memcached_current_bytes", "bytes"),
        ("memcached_limit_bytes", "limit_maxbytes"),
        ("memcached_current_connections", "curr_connections"),
        ("kachel_threads", "threads"),
    ] {
        assert_eq!(of(metric), client.stats()[stat], "{metric}");
    }
    assert_eq!(of("memcached_commands_total{command=\"get\",status=\"hit\"}"), "50");
    assert_eq!(of("kachel_tick_requests_count"), "250", "a tick for each request");
    assert_eq!(of("kachel_stored_bytes_count"), "100", "each store is in the sample");
    assert_eq!(of("kachel_stored_bytes_sum"), "500");
    assert_eq!(of("kachel_stored_ttl_seconds_count"), "0", "they never expire");
    assert_eq!(of("memcached_lru_crawler_enabled"), "1");
    assert_eq!(client.ask("lru_crawler disable\r\n", "\r\n"), "OK\r\n");
    let metrics = http_get(server.admin_port(), "/metrics");
    assert!(!metrics.contains("lru_crawler_enabled"), "it follows the command");
}

/// `crates/observe` generates the page, without a server.
#[test]
fn the_metrics_are_those_of_the_page_about_them() {
    let page = include_str!("../../../../docs/metrics.md");
    let (of_each, others) = page.split_once("\n## Servers that").expect("the sections");
    let (of_options, _) = others.split_once("\n## Servers with TLS").expect("the sections");
    let row = |line: &'static str| {
        let (name, rest) = line.strip_prefix("| `")?.split_once("` | ")?;
        Some((name, rest.split_once(" | ")?.0))
    };
    let wanted: BTreeSet<(&str, &str)> = of_each.lines().filter_map(row).collect();
    let metrics = http_get(start(&["-t", "2"]).admin_port(), "/metrics");
    let types = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let printed: BTreeSet<(&str, &str)> = types.collect();
    assert!(wanted.len() > 100, "{} metrics", wanted.len());
    assert_eq!(printed, wanted);
    let observed = "--observe=hotkeys,prefixes";
    let server = start(&["-t", "2", "--admin-classes", observed, "--admin-prefixes=user"]);
    server.connect().set("key", &[b'x'; 1000]);
    let metrics = http_get(server.admin_port(), "/metrics");
    let types = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let wanted = wanted.into_iter().chain(of_options.lines().filter_map(row)).collect();
    assert_eq!(types.collect::<BTreeSet<_>>(), wanted);
    assert!(metrics.contains("\nkachel_prefix_gets_total{prefix=\"user\"} 0\n"), "{metrics}");
    let is_set = |line: &str| {
        let sampled = line.starts_with("kachel_class_sampled_requests_total{");
        sampled && line.ends_with("command=\"set\",status=\"hit\"} 1")
    };
    assert_eq!(metrics.lines().filter(|line| is_set(line)).count(), 1, "{metrics}");
}

#[test]
fn health_fails_while_one_shard_stands_still() {
    let server = start(&["-t", "3"]);
    assert_eq!(status(&server, "/health"), 200);
    let [shard] = threads(&server, "shard 1")[..] else { panic!("one thread of this name") };
    let stopped = match Stopped::new(shard) {
        Ok(stopped) => stopped,
        Err(error) => return skip("admin.ptrace", &format!("{error}")),
    };
    let health = |wanted: u16| {
        let mut answer = String::new();
        wait_until("the health", || {
            answer = http_get(server.admin_port(), "/health");
            http_status(&answer) == wanted
        });
        answer
    };
    let answer = health(503);
    assert!(answer.ends_with("\r\n\r\nshard 1 has not answered for 1 s\n"), "{answer}");
    // The shards are looked at for the live page while it is open.
    let mut viewer = http_connect(server.admin_port());
    viewer.write_all(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("sent");
    let told = |server: &Server| http_get(server.admin_port(), "/api/now");
    wait_until("the sentence", || told(&server).contains("\"what\":\"Shard 1 has not answered"));
    let metrics = http_get(server.admin_port(), "/metrics");
    assert!(metrics.contains("\nkachel_stopped_shards 1\n"), "{metrics}");
    assert_eq!(status(&server, "/ready"), 200, "readiness is about other things");
    drop(stopped);
    health(200);
    wait_until("no sentence", || told(&server).contains("\"name\":\"well\""));
    drop(viewer);
}

#[test]
fn a_server_that_drains_serves_and_is_not_ready_until_a_second_signal() {
    for (first, second) in
        [("TERM", "shutdown"), ("shutdown", "shutdown"), ("INT", "TERM"), ("USR1", "INT")]
    {
        let mut server = start(&["-t", "2", "-A", "--drain", "100000"]);
        let mut client = server.connect();
        client.set("key", b"v");
        ask_to_end(&server, first);
        wait_until("the drain", || status(&server, "/ready") == 503);
        let answer = http_get(server.admin_port(), "/ready");
        assert!(answer.ends_with("\r\n\r\ndraining\n"), "{answer}");
        let probed = probe(&server, "/ready");
        let said = String::from_utf8_lossy(&probed.stderr);
        assert!(probed.status.code() == Some(1) && said.ends_with("draining (503)\n"), "{said}");
        assert!(probe(&server, "").status.success(), "it is healthy");
        assert_eq!(status(&server, "/health"), 200);
        assert_eq!(client.get("key"), Some(b"v".to_vec()));
        let mut new = server.connect();
        assert_eq!(new.get("key"), Some(b"v".to_vec()), "new clients are served, too");
        server.signal(Signal::HUP);
        assert_eq!(new.get("key"), Some(b"v".to_vec()), "this signal ends nothing");
        ask_to_end(&server, second);
        let ended = end_of(&mut server);
        assert!(ended.success(), "{ended}: {}", server.last_words());
        assert!(server.last_words().contains("draining"), "{}", server.last_words());
    }
}

#[test]
fn a_drain_ends_by_itself_is_told_to_the_service_manager_and_needs_no_admin_address() {
    let folder = tempfile::tempdir().expect("a folder");
    let [items, notify] = ["items", "notify"].map(|name| folder.path().join(name));
    let manager = UnixDatagram::bind(&notify).expect("a socket");
    manager.set_read_timeout(Some(PATIENCE)).expect("a time limit");
    let told = || {
        let mut bytes = [0; 4096];
        let count = manager.recv(&mut bytes).expect("a message");
        String::from_utf8(bytes[..count].to_vec()).expect("text")
    };
    let options = ["-e", items.to_str().expect("text"), "-A", "--drain", "1"];
    let under = ["env", &format!("NOTIFY_SOCKET={}", notify.display())];
    let program = Path::new(env!("CARGO_BIN_EXE_kachel"));
    let launch = Launch { under: &under, ..Launch::memcached(program, &options) };
    let mut server = launch.start();
    assert!(told().starts_with("READY=1"));
    server.connect().set("key", b"v");
    server.connect().send("shutdown graceful\r\n");
    assert_eq!(told(), "STOPPING=1\nSTATUS=Draining\nEXTEND_TIMEOUT_USEC=61000000");
    assert_eq!(told(), "STOPPING=1\nSTATUS=Ending");
    let ended = end_of(&mut server);
    assert!(ended.success(), "{ended}: {}", server.last_words());
    assert_eq!(launch.start().connect().get("key"), Some(b"v".to_vec()), "it was saved");
}

/// A server that has its admin address and goes on when the second is dropped. `None`: it cannot be
/// stopped.
fn start_held(options: &[&str], socket: &Path) -> Option<(Child, Stopped)> {
    let mut command = Command::new("sh");
    command.args(["-c", "read line; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_kachel")]);
    command.args(["serve", "-p", "-1", "-t", "2"]).args(options).args(user());
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = command.spawn().expect("the binary starts");
    let mut go = server.stdin.take().expect("a pipe");
    let begin = move || go.write_all(b"go\n").expect("sent");
    let has_address = || UnixStream::connect(socket).is_ok();
    match stopped_at_a_thread(Pid::from_child(&server), begin, has_address) {
        Ok(stopped) => Some((server, stopped)),
        Err(error) => {
            server.kill().expect("it runs");
            server.wait().expect("an end");
            skip("admin.ptrace", &format!("{error}"));
            None
        }
    }
}

#[test]
fn a_server_that_loads_items_is_healthy_and_not_ready() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("admin");
    let admin = format!("unix:{},mode=600", socket.display());
    let file = folder.path().join("items");
    let file = file.to_str().expect("text");
    let Some((mut server, held)) = start_held(&["--admin", &admin, "-e", file], &socket) else {
        return;
    };
    let ask = |path: &str| {
        let stream = UnixStream::connect(&socket).expect("it listens");
        http_ask(stream, format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
    };
    assert_eq!(fs::metadata(&socket).expect("a file").permissions().mode() & 0o777, 0o600);
    let answer = ask("/ready");
    assert_eq!(http_status(&answer), 503, "{answer}");
    assert!(answer.contains("starting"), "{answer}");
    assert_eq!(http_status(&ask("/health")), 200);
    let now = ask("/api/now");
    assert!(now.contains("\"phase\":\"starting\"") && now.contains("it loads the items"), "{now}");
    assert!(ask("/api/history").ends_with("\"samples\":[]}"), "nothing is counted yet");
    drop(held);
    wait_until("a server that is ready", || http_status(&ask("/ready")) == 200);
    server.kill().expect("it runs");
    server.wait().expect("an end");
}

#[test]
fn readiness_stays_when_connections_and_descriptors_are_used_up() {
    let server = start(&["-t", "2", "-c", "10"]);
    // No descriptor may be wanted after the limit is set, because the one in reserve is free for a
    // moment in each request. A client has its descriptor when it is answered.
    let answered = || {
        let mut client = server.connect();
        assert_eq!(client.get("key"), None);
        client
    };
    let _clients: Vec<Client> = (0..10).map(|_| answered()).collect();
    let mut last = http_connect(server.admin_port());
    // Healthy are shards that have made a tick, which opens their files.
    let answer = http_ask(&mut last, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(http_status(&answer), 200);
    // The thread closes connections in turn, and the kernel refuses bytes for a closed one.
    wait_until("the end of the connection", || last.write_all(b"x").is_err());
    // Only the descriptor in reserve is left. Its number is low, because it is an old one.
    let open = descriptors(&server);
    let lowest_free = (0..).find(|number| !open.contains(number)).expect("there is no last one");
    let limit = Rlimit { current: Some(lowest_free), ..getrlimit(Resource::Nofile) };
    prlimit(Some(server.pid()), Resource::Nofile, limit).expect("a limit");
    for _ in 0..3 {
        for path in ["/ready", "/health", "/metrics"] {
            assert_eq!(status(&server, path), 200, "{path}");
        }
    }
}

#[test]
fn ten_thousand_half_open_connections_take_64_places_and_keep_nobody_out() {
    const HALF_OPEN: u64 = 10_000;
    let limits = getrlimit(Resource::Nofile);
    let enough = limits.maximum.map_or(HALF_OPEN + 1000, |most| most.min(HALF_OPEN + 1000));
    let raised = Rlimit { current: Some(enough), ..limits };
    setrlimit(Resource::Nofile, raised).expect("within the maximum");
    let server = start(&["-t", "2"]);
    let mut client = server.connect();
    client.set("key", b"v");
    let before = server.files();
    let half_open = (0..enough - 1000).map(|number| {
        let stream = http_connect(server.admin_port());
        if number % 100 == 0 {
            // Behind the others, so that the queue of the kernel is not too short for them.
            assert_eq!(status(&server, "/ready"), 200);
            assert!(server.files() <= before + DESCRIPTORS_MAX, "{}", server.files());
            assert_eq!(client.get("key"), Some(b"v".to_vec()));
        }
        stream
    });
    let half_open: Vec<TcpStream> = half_open.collect();
    assert_eq!(status(&server, "/health"), 200);
    assert!(server.files() <= before + DESCRIPTORS_MAX, "{}", server.files());
    drop(half_open);
}

#[test]
fn the_token_is_one_that_others_cannot_read_and_is_read_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("token");
    let write = |text: &str, mode: u32| {
        fs::write(&path, text).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("its permissions");
    };
    let program = Path::new(env!("CARGO_BIN_EXE_kachel"));
    let options =
        ["serve", "--admin", "127.0.0.1:0", "--admin-token-file", path.to_str().expect("text")];
    let launch = Launch { called_as: "kachel", ..Launch::memcached(program, &options) };
    for (text, mode, why) in [
        (TOKEN, 0o604, "users other than its owner and group may use it"),
        ("short", 0o600, "at least 32 characters"),
        ("two\nlines, which are long enough", 0o600, "one line"),
    ] {
        write(text, mode);
        let ended = launch.try_start().expect_err("it is refused");
        assert!(ended.status.code() == Some(64) && ended.said.contains(why), "{}", ended.said);
    }
    write(TOKEN, 0o640);
    let server = launch.start();
    let with = |token: &str| http_status(&http_get_with(server.admin_port(), "/metrics", token));
    assert_eq!(status(&server, "/metrics"), 401);
    assert_eq!(with(TOKEN), 200);
    let other = TOKEN.to_ascii_uppercase();
    write("short", 0o600);
    server.signal(Signal::HUP);
    wait_until("a refusal", || server.last_words().contains("the token stays as it was"));
    assert_eq!(with(TOKEN), 200);
    write(&other, 0o600);
    server.signal(Signal::HUP);
    wait_until("the other token", || server.last_words().contains("token of the admin address"));
    assert_eq!(with(&other), 200);
    assert_eq!(with(TOKEN), 401);
}

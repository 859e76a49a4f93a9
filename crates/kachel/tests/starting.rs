//! Starting and ending the server: exit codes, files, the daemon, users.
//!
//! Invariants:
//! - I1  No test waits for a fixed time, except to hold an address. A server is ready when its
//!   files exist, and has ended when the kernel reports it.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use kachel_testkit::{Client, Launch, PATIENCE, Server, announced_port, user, wait_until};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// A folder with the binary under both names.
struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["kachel", "memcached"] {
            symlink(env!("CARGO_BIN_EXE_kachel"), folder.path().join(name)).expect("a link");
        }
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, name: &str, args: &[&str]) -> Command {
        let mut command = Command::new(self.path(name));
        command.args(args).env("MEMCACHED_PORT_FILENAME", self.path("ports"));
        command.stdin(Stdio::null());
        command
    }

    fn output(&self, name: &str, args: &[&str]) -> Output {
        self.command(name, args).output().expect("the binary starts")
    }

    /// Waits until the port file is there, and reads the IPv4 port from it.
    fn port(&self) -> u16 {
        let ports = self.path("ports");
        wait_until("a port file", || ports.exists());
        announced_port(&ports).expect("an IPv4 port")
    }
}

/// The server's reply to `version`.
fn version(port: u16) -> String {
    Client::at(port).ask("version\r\n", "\n")
}

/// The binary under test.
fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_kachel"))
}

fn with_user<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [user(), args].concat()
}

fn living(path: &Path) -> Pid {
    let number = fs::read_to_string(path).expect("a process number");
    Pid::from_raw(number.trim().parse().expect("a number")).expect("a process")
}

#[test]
fn a_server_serves_until_it_is_told_to_end() {
    let scratch = tempfile::tempdir().expect("a folder");
    let pidfile = scratch.path().join("pid");
    let pid = pidfile.to_str().expect("UTF-8");
    for (called_as, signal) in [("kachel", Signal::TERM), ("memcached", Signal::INT)] {
        let serve: &[&str] = if called_as == "kachel" { &["serve"] } else { &[] };
        let options = [serve, &["-t", "1", "-P", pid]].concat();
        let mut server = Launch { called_as, ..Launch::memcached(program(), &options) }.start();
        assert_eq!(version(server.port()), "VERSION 1.6.45\r\n");
        wait_until("a pid file", || pidfile.exists());
        let process = living(&pidfile);
        assert_eq!(process.as_raw_pid(), i32::try_from(server.process.id()).expect("a process"));
        kill_process(process, signal).expect("a signal");
        assert!(server.process.wait().expect("an end").success(), "{called_as}");
        assert!(pidfile.exists(), "without -d the file stays");
        fs::remove_file(&pidfile).expect("removed");
    }
}

/// The fault: a line that could not be written ended the server, and lost the cache.
#[test]
fn a_log_that_cannot_be_written_ends_nothing() {
    let full = ["sh", "-c", "exec \"$0\" \"$@\" 2>/dev/full"];
    // The port file fits, and no line of the log does.
    let limited = ["prlimit", "--fsize=24", "--"];
    for under in [&full[..], &limited] {
        let launch = Launch::memcached(program(), &["serve", "-v", "-t", "1"]);
        let mut server = Launch { called_as: "kachel", under, ..launch }.start();
        for _ in 0..3 {
            server.signal(Signal::HUP); // It answers with a line.
            assert_eq!(server.connect().ask("version\r\n", "\n"), "VERSION 1.6.45\r\n");
        }
        server.signal(Signal::TERM);
        let status = server.process.wait().expect("an end");
        assert!(status.success(), "{under:?}: {status}: {}", server.last_words());
    }
}

#[test]
fn a_client_that_is_closed_for_being_slow_is_counted_and_named() {
    for unix in [false, true] {
        let options = ["serve", "-v", "-t", "1", "--line-timeout=1", "--reader-timeout=0"];
        let launch = Launch::memcached(program(), &options);
        let mut server = Launch { called_as: "kachel", unix, ..launch }.start();
        let mut late = server.connect();
        late.send("get a_lin");
        assert!(late.read_to_end().is_empty(), "it is closed");
        let mut client = server.connect();
        client.send("stats kachel\r\nstats settings\r\nquit\r\n");
        let told = String::from_utf8(client.read_to_end()).expect("text");
        for line in ["line_closes 1", "block_closes 0", "line_timeout 1", "reader_timeout 0"] {
            assert!(told.contains(&format!("STAT kachel_{line}\r\n")), "{line}: {told}");
        }
        // A thread writes the log. It has written all of it when the process has ended.
        server.signal(Signal::TERM);
        assert!(server.process.wait().expect("an end").success());
        let said = server.last_words();
        let name = if unix { "closed local client, fd " } else { "closed 127.0.0.1:" };
        let line = said.lines().find(|line| line.contains(name)).expect("it is named");
        assert!(line.contains("its command line was not whole for"), "{line}");
    }
}

#[test]
fn who_is_owed_gets_all_of_it_after_a_shutdown() {
    /// More than the kernel holds of it.
    const VALUE_BYTES: usize = 24 << 20;
    const ROUNDS: usize = 8;
    let options = ["-v", "-A", "-t", "2", "-I", "32m", "-m", "128"];
    for round in 0..ROUNDS {
        let mut server = Launch::memcached(program(), &options).start();
        let connect = || {
            let stream = TcpStream::from(server.stream().expect("it listens"));
            stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
            stream
        };
        let mut slow = connect();
        slow.write_all(format!("set k 0 0 {VALUE_BYTES}\r\n").as_bytes()).expect("sent");
        slow.write_all(&vec![b'v'; VALUE_BYTES]).expect("sent");
        slow.write_all(b"\r\nget k\r\n").expect("sent");
        let head = format!("STORED\r\nVALUE k 0 {VALUE_BYTES}\r\n");
        let mut begun = vec![0; head.len()];
        slow.read_exact(&mut begun).expect("the reply has begun");
        assert_eq!(begun, head.as_bytes());
        // Shards that tick all the time could ask for the end more than once.
        let busy: Vec<_> = (0..4).map(|_| keep_busy(connect())).collect();
        let mut other = connect();
        other.write_all(b"shutdown\r\n").expect("sent");
        assert_eq!(other.read(&mut [0; 8]).expect("an end"), 0, "who asks is let go");
        server.signal(Signal::HUP);
        let (mut buffer, mut taken) = (vec![0; 64 << 10], 0);
        loop {
            match slow.read(&mut buffer) {
                Ok(bytes) if bytes > 0 => taken += bytes,
                ended => {
                    let said = server.last_words();
                    let all = VALUE_BYTES + "\r\nEND\r\n".len();
                    assert_eq!(taken, all, "round {round}, {ended:?}: {said}");
                    break;
                }
            }
            std::thread::sleep(Duration::from_micros(200)); // It is slow.
        }
        assert!(server.process.wait().expect("an end").success(), "{}", server.last_words());
        busy.into_iter().for_each(|busy| busy.join().expect("no panic"));
    }
}

/// A client that asks until it is let go; returns once it was answered.
fn keep_busy(mut client: TcpStream) -> std::thread::JoinHandle<()> {
    let (answered, first) = std::sync::mpsc::channel();
    let busy = std::thread::spawn(move || {
        let mut answer = [0; 4];
        while client.write_all(b"mn\r\n").is_ok() && client.read_exact(&mut answer).is_ok() {
            let _nobody_waits = answered.send(());
        }
    });
    first.recv().expect("an answer");
    busy
}

#[test]
fn a_daemon_is_left_once_it_listens_and_takes_its_pid_file_with_it() {
    let bench = Bench::new();
    let pidfile = bench.path("pid");
    let args =
        ["-d", "-l", "127.0.0.1", "-p", "-1", "-t", "1", "-P", pidfile.to_str().expect("UTF-8")];
    let output = bench.output("memcached", &with_user(&args));
    assert!(output.status.success(), "{output:?}");
    // It listens already: no waiting for files here.
    let port = fs::read_to_string(bench.path("ports")).expect("a port file");
    assert!(port.starts_with("TCP INET: "), "{port}");
    let process = living(&pidfile);
    assert_eq!(version(bench.port()), "VERSION 1.6.45\r\n");
    kill_process(process, Signal::TERM).expect("a signal");
    wait_until("the daemon's end", || test_kill_process(process).is_err());
    assert!(!pidfile.exists());
}

#[test]
fn a_daemon_that_cannot_listen_fails_where_it_was_started() {
    let bench = Bench::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port().to_string();
    for daemon in [&["-d"][..], &[]] {
        let args = [daemon, &["-l", "127.0.0.1", "-p", &port]].concat();
        let output = bench.output("memcached", &with_user(&args));
        assert!(!output.status.success());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(&port), "{said}");
    }
}

/// A socket that holds a place, and the options of a server that wants it.
fn holder(kind: &str, folder: &Path) -> (OwnedFd, Vec<String>) {
    let loopback = ("127.0.0.1", 0);
    let port = |address: std::io::Result<SocketAddr>| address.expect("it is bound").port();
    let (holder, options): (OwnedFd, _) = match kind {
        "tcp" => {
            let socket = TcpListener::bind(loopback).expect("a port");
            let port = port(socket.local_addr()).to_string();
            (socket.into(), vec!["-l".to_owned(), "127.0.0.1".to_owned(), "-p".to_owned(), port])
        }
        "udp" => {
            let socket = UdpSocket::bind(loopback).expect("a port");
            let port = port(socket.local_addr()).to_string();
            (socket.into(), ["-l", "127.0.0.1", "-p", "-1", "-U", &port].map(str::to_owned).into())
        }
        _ => {
            let path = folder.join("socket");
            let socket = UnixListener::bind(&path).expect("a socket");
            let path = path.into_os_string().into_string().expect("text");
            (socket.into(), vec!["-s".to_owned(), path])
        }
    };
    (holder, options)
}

/// The kernel closes the sockets in the rings of a killed server a moment after its end. A
/// supervisor starts the next server at once.
#[test]
fn a_server_waits_for_an_address_that_is_released_a_moment_later() {
    const TRIES: u32 = 8;
    let waits = |kind: &str, hold: Duration| {
        let bench = Bench::new();
        let (holder, options) = holder(kind, bench.folder.path());
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let log = File::create(bench.path("log")).expect("a log");
        let mut command = bench.command("memcached", &with_user(&options));
        let mut process = command.stderr(log).spawn().expect("it starts");
        std::thread::sleep(hold);
        drop(holder);
        wait_until("a port file or the end", || {
            bench.path("ports").exists() || process.try_wait().expect("a child").is_some()
        });
        let serves = bench.path("ports").exists();
        let _ = process.kill();
        process.wait().expect("it ends");
        let said = fs::read_to_string(bench.path("log")).expect("a log");
        serves && said.lines().filter(|line| line.contains(" was in use for ")).count() == 1
    };
    for kind in ["tcp", "udp", "unix"] {
        // On a busy machine the server may try for the first time when the place is free already,
        // or not between the release and the end of its patience.
        let waited = (0..TRIES).any(|tries| waits(kind, Duration::from_millis(100) * (tries + 1)));
        assert!(waited, "{kind}: no server waited for its address");
    }
}

#[test]
fn memcached_without_a_port_runs_until_it_is_told_to_end() {
    let bench = Bench::new();
    let args = with_user(&["-p", "0", "-l", "127.0.0.1"]);
    let mut process = bench.command("memcached", &args).spawn().expect("it starts");
    wait_until("a port file", || bench.path("ports").exists());
    assert_eq!(fs::read_to_string(bench.path("ports")).expect("it is there"), "");
    kill_process(Pid::from_child(&process), Signal::TERM).expect("it runs");
    assert!(process.wait().expect("it ends").success());
    // Under its own name the server tells what is missing.
    assert_eq!(bench.output("kachel", &["serve", "-p", "0"]).status.code(), Some(64));
}

#[test]
fn exit_codes_say_what_was_wrong() {
    let bench = Bench::new();
    let unbuilt: &[&str] = &["-S"];
    for (args, code) in [(&["--bogus"][..], 1), (unbuilt, 64), (&["-l", "203.0.113.1"], 71)] {
        let output = bench.output("memcached", &with_user(args));
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(!output.stderr.is_empty());
    }
    if !user().is_empty() {
        assert_eq!(bench.output("memcached", &["-p", "-1"]).status.code(), Some(64));
        let output = bench.output("memcached", &["-p", "-1", "-u", "nobody of this name"]);
        assert_eq!(output.status.code(), Some(67));
    }
}

/// Mistakes that stay until the operator corrects them, and obstacles that may pass, each as
/// arguments of a server in `folder`. `port` is in use.
fn obstacles(folder: &Path, port: u16) -> (Vec<[String; 2]>, Vec<[String; 2]>) {
    let at = |name: &str| folder.join(name).to_str().expect("UTF-8").to_owned();
    for name in ["file", "open", "pid/kept"] {
        fs::create_dir_all(folder.join(name).parent().expect("a folder")).expect("a folder");
        fs::write(folder.join(name), "").expect("a file");
    }
    fs::set_permissions(folder.join("open"), fs::Permissions::from_mode(0o666)).expect("a mode");
    let lasting = [
        ["-t", "0"].map(String::from),
        ["-l", "127.0.0.1:x"].map(String::from),
        ["-e".to_string(), at("open")],
        ["-e".to_string(), at("pid")],
        ["-e".to_string(), at("file/items")],
        ["-P".to_string(), at("pid")],
        ["-P".to_string(), at("file/pid")],
        ["-s".to_string(), at("file")],
        ["-s".to_string(), at(&"long".repeat(40))],
        ["-Y".to_string(), at("pid")],
        ["-Y".to_string(), at("no-such-file")],
        ["--config".to_string(), at("no-such-file")],
    ];
    let passing = [
        ["-l".to_string(), format!("127.0.0.1:{port}")],
        ["-l".to_string(), "203.0.113.1:0".to_string()],
        ["-e".to_string(), at("none/items")],
        ["-P".to_string(), at("none/pid")],
        ["-s".to_string(), at("none/socket")],
        ["-Y".to_string(), at("none/users")],
        ["--config".to_string(), at("none/kachel.toml")],
    ];
    (lasting.into(), passing.into())
}

/// The fault: only a wrong file of options had a status with which the unit does not start a server
/// again. A memory file of another user, and a wrong option, were tried once a second, for ever.
/// Later the reverse: users and options in a folder that was not mounted yet were not tried again.
#[test]
fn a_status_says_whether_a_restart_can_help() {
    let bench = Bench::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port();
    let (lasting, passing) = obstacles(bench.folder.path(), port);
    for (obstacles, code) in [(lasting, 64), (passing, 71)] {
        for obstacle in &obstacles {
            let words: Vec<&str> = obstacle.iter().map(String::as_str).collect();
            let listens: &[&str] = if words[0] == "-l" { &[] } else { &["-l", "127.0.0.1:0"] };
            let output = bench.output("kachel", &[&["serve"], listens, &words].concat());
            assert_eq!(output.status.code(), Some(code), "{output:?}");
            assert!(!output.stderr.is_empty());
        }
    }
    if !user().is_empty() {
        let output = bench.output("kachel", &["serve", "-u", "nobody of this name"]);
        assert_eq!(output.status.code(), Some(67), "{output:?}");
    }
}

#[test]
fn answers_go_to_standard_output() {
    let bench = Bench::new();
    for (name, args, first) in [
        ("memcached", &["-V"][..], "memcached 1.6.45"),
        ("memcached", &["-h"], "memcached 1.6.45"),
        ("kachel", &["serve", "-V"], concat!("kachel ", env!("CARGO_PKG_VERSION"))),
        ("kachel", &["--version"], concat!("kachel ", env!("CARGO_PKG_VERSION"))),
    ] {
        let output = bench.output(name, args);
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        let text = String::from_utf8(output.stdout).expect("text");
        assert_eq!(text.lines().next(), Some(first));
    }
    assert_eq!(bench.output("kachel", &["sevre"]).status.code(), Some(64));
}

#[test]
fn a_line_at_the_start_says_what_the_machine_gave() {
    for (options, io) in [(&["-t", "3"][..], ""), (&["-t", "2", "--io=epoll"], "I/O: epoll; ")] {
        let options = [&["serve"], options].concat();
        let launch = Launch { called_as: "kachel", ..Launch::memcached(program(), &options) };
        let server = launch.start();
        assert_eq!(version(server.port()), "VERSION 1.6.45\r\n");
        let line = |said: &str| {
            said.lines().find(|line| line.contains(" info: cores: ")).map(str::to_owned)
        };
        wait_until("the line", || line(&server.last_words()).is_some());
        let line = line(&server.last_words()).expect("it is there");
        for part in [" pinned", "; quota: ", "; memory: 64 MiB in ", "; NUMA nodes: ", io] {
            assert!(line.contains(part), "{part}: {line}");
        }
    }
}

#[test]
fn each_thread_has_the_name_of_its_shard() {
    let server = Launch::memcached(program(), &["-t", "3"]).start();
    let tasks = fs::read_dir(format!("/proc/{}/task", server.process.id())).expect("threads");
    let names = tasks.map(|task| {
        let path = task.expect("a thread").path().join("comm");
        fs::read_to_string(path).unwrap_or_default().trim_end().to_owned()
    });
    let names: Vec<String> = names.collect();
    for shard in ["shard 0", "shard 1", "shard 2"] {
        assert!(names.iter().any(|name| name == shard), "{shard}: {names:?}");
    }
}

/// Fills a server that keeps 64 MiB of items in huge pages, shrinks and grows it again.
fn fill_huge_pages() -> Server {
    const VALUE_BYTES: usize = 1 << 19;
    const VALUES: usize = 200;
    let server = Launch::memcached(program(), &["-v", "-L", "-m", "64", "-t", "2"]).start();
    let mut client = server.connect();
    for round in 0..2 {
        for number in 0..VALUES {
            client.set(&format!("k{number}"), &vec![b'v'; VALUE_BYTES]);
        }
        assert_eq!(client.ask("cache_memlimit 8\r\n", "\n"), "OK\r\n", "round {round}");
        wait_until("memory to come back", || {
            client.stat("kachel_memory_spent") <= client.stat("limit_maxbytes")
        });
        assert_eq!(client.ask("cache_memlimit 64\r\n", "\n"), "OK\r\n");
    }
    server
}

#[test]
fn items_are_kept_in_the_huge_pages_that_are_free() {
    let reserved = kachel_host::free_reserved_bytes() > 64 << 20;
    let server = fill_huge_pages();
    let said = server.last_words();
    if reserved {
        assert!(said.contains("64 MiB in reserved huge pages"), "{said}");
    } else {
        println!("skip memory.reserved_pages no reserved huge pages (vm.nr_hugepages) are free");
        assert!(!said.contains("reserved"), "{said}");
    }
}

#[test]
fn memory_that_is_not_used_is_not_resident() {
    /// A hundredth of this is 2 GB: what a table that is touched at the start would take.
    const MEGABYTES: &str = "200000";
    const RESIDENT_BYTES_MAX: u64 = 100 << 20;
    let options = ["-m", MEGABYTES, "-t", "2"];
    let server = Launch::memcached(program(), &options).start();
    assert_eq!(version(server.port()), "VERSION 1.6.45\r\n");
    let resident = server.resident_bytes();
    assert!(resident < RESIDENT_BYTES_MAX, "{resident} bytes are resident");
}

#[test]
fn a_thread_that_has_no_clients_takes_less_than_a_mebibyte() {
    /// The resident memory of a process without its threads. A debug build needs the most.
    const PROCESS_BYTES_MAX: u64 = 32 << 20;
    for threads in [2, 64, 256] {
        let options = ["-m", "64", "-t", &threads.to_string()];
        let server = Launch::memcached(program(), &options).start();
        assert_eq!(version(server.port()), "VERSION 1.6.45\r\n");
        let (peak, most) = (server.peak_bytes(), PROCESS_BYTES_MAX + (threads << 20));
        assert!(peak <= most, "{threads} threads: {peak} bytes were resident of {most}");
    }
}

#[test]
fn too_little_memory_for_the_threads_is_refused_with_the_least_that_does() {
    let bench = Bench::new();
    let output = bench.output("memcached", &with_user(&["-p", "-1", "-t", "64", "-m", "3"]));
    assert_eq!(output.status.code(), Some(64), "{output:?}");
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(said.contains("64 threads"), "{said}");
    let least = said.split("-m ").last().and_then(|rest| rest.split_whitespace().next());
    let least: u32 = least.and_then(|least| least.parse().ok()).expect("the least -m");
    let below = (least - 1).to_string();
    let output = bench.output("memcached", &with_user(&["-p", "-1", "-t", "64", "-m", &below]));
    assert_eq!(output.status.code(), Some(64), "{output:?}");

    // With the least there is room for a key in each shard.
    let options = ["-t", "64", "-m", &least.to_string()];
    let server = Launch::memcached(program(), &options).start();
    let mut client = server.connect();
    let keys = 1_000;
    let requests: String = (0..keys).map(|key| format!("set k{key} 0 0 1\r\nv\r\n")).collect();
    client.send(requests);
    assert_eq!(client.read_lines(keys), b"STORED\r\n".repeat(keys));
}

#[test]
fn a_line_of_the_log_has_a_time_and_a_level_except_in_the_journal() {
    let options = ["serve", "-t", "1"];
    let launch = Launch { called_as: "kachel", ..Launch::memcached(program(), &options) };
    let listens = |launch: Launch<'_>| {
        let server = launch.start();
        let line =
            |said: &str| said.lines().find(|line| line.contains(" listens on ")).map(str::to_owned);
        wait_until("the line", || line(&server.last_words()).is_some());
        line(&server.last_words()).expect("it is there")
    };
    let line = listens(launch);
    let (stamp, text) = line.split_once(' ').expect("a time");
    assert!(stamp.len() == 24 && stamp.ends_with('Z'), "{line}");
    assert!(text.starts_with("info: kachel ") && text.ends_with(" with 1 thread"), "{line}");
    // The log of the test stands in for the stream of the journal, which is known by its inode.
    let script = "JOURNAL_STREAM=$(stat -L -c %d:%i /proc/self/fd/2) exec \"$0\" \"$@\"";
    let line = listens(Launch { under: &["sh", "-c", script], ..launch });
    assert!(line.starts_with("<6>kachel "), "{line}");
}

/// A service manager starts a server again that ends with any other status.
#[test]
fn a_wrong_file_of_options_ends_with_the_status_for_wrong_usage() {
    let bench = Bench::new();
    let path = bench.path("kachel.toml");
    let path_text = path.to_str().expect("text");
    for (text, place) in [
        ("threads = 1\nmemory-limit = \"much\"\n", "kachel.toml:2: memory-limit: "),
        ("threads = 1\n\nmemory = 1\n", "kachel.toml:3: memory: "),
        ("threads = 1\nmemory-limit =\n", "line 2"),
        ("threads = 1000\nmemory-limit = 64\n", "-m 64 is too little"),
    ] {
        fs::write(&path, text).expect("written");
        for (name, args) in [
            ("kachel", &["serve", "--config", path_text][..]),
            ("kachel", &["check-config", path_text]),
            ("memcached", &["--config", path_text]),
        ] {
            let output = bench.output(name, args);
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(64), "{args:?}: {said}");
            assert!(said.contains(place), "{args:?}: {said}");
        }
    }
}

#[test]
fn a_check_reads_what_a_start_reads_and_does_not_listen() {
    let bench = Bench::new();
    let (path, users) = (bench.path("kachel.toml"), bench.path("users"));
    fs::write(&users, "alice:secret\n").expect("written");
    let write = |more: &str| {
        let text = format!("port = 1\nauth-file = \"{}\"\n{more}\n", users.display());
        fs::write(&path, text).expect("written");
    };
    let check = |options: &[&str]| {
        let output = bench.output(
            "kachel",
            &[&["serve", "--config"], &[path.to_str().expect("text")][..], options].concat(),
        );
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    write("");
    assert_eq!(check(&["--check"]).0, Some(0), "{:?}", check(&["--check"]));
    assert!(!bench.path("ports").exists(), "it does not listen");
    let output = bench.output("kachel", &["check-config", path.to_str().expect("text")]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(!output.stdout.is_empty());
    for (more, options, said) in [
        ("", &["-e", "/none/such/items"][..], "-e /none/such/items: there is no such folder"),
        ("", &["-P", "/none/such/pid"], "-P /none/such/pid: there is no such folder"),
        ("listen = \"127.0.0.1:99999\"", &[], "99999"),
    ] {
        write(more);
        let (code, told) = check(&[&["--check"], options].concat());
        assert_eq!(code, Some(64), "{told}");
        assert!(told.contains(said), "{told}");
    }
    write("");
    fs::write(&users, "alice:secret\nbob\n").expect("written");
    let (code, told) = check(&["--check"]);
    assert!(code == Some(64) && told.contains("line 2 is not USER:PASSWORD"), "{told}");
}

#[test]
fn a_reload_says_which_options_need_a_restart() {
    let bench = Bench::new();
    let path = bench.path("kachel.toml");
    fs::write(&path, "port = 0\nthreads = 1\nlisten = \"127.0.0.1\"\n").expect("written");
    let options = ["--config", path.to_str().expect("text")];
    let program = bench.path("memcached");
    let server = Launch::memcached(&program, &options).start();
    let reload = |said: &str| {
        server.signal(Signal::HUP);
        wait_until(said, || server.last_words().contains(said));
    };
    reload("has the options with which the server runs");
    fs::write(&path, "port = 0\nthreads = 2\nmemory-limit = 99\n").expect("written");
    reload("a restart is needed for: listen, memory-limit, threads");
    fs::write(&path, "port = 0\nthread = 2\n").expect("written");
    reload("kachel.toml:2: thread: no such option");
}

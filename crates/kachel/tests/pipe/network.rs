//! Two network namespaces with a cable between them: a server with the pipe in one, its clients in
//! the other.
//!
//! Upstream:   the tests.
//! Downstream: `ip` (iproute2), and the server's binary.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use kachel_pipe::Program;
use rustix::process::{Pid, Signal};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::checksums;

/// How long a test waits for what must come.
const PATIENCE: Duration = Duration::from_secs(20);
/// A reply over UDP that has not come by then does not come.
const SILENCE: Duration = Duration::from_millis(300);

/// The server's interface and the clients'.
const SERVER_SIDE: &str = "kachel0";
const CLIENT_SIDE: &str = "kachel1";
/// The server's address over IPv4.
pub(crate) const SERVER: &str = "10.9.0.2:11311";

fn ip(words: &str) -> Result<(), String> {
    let output = Command::new("ip").args(words.split(' ')).output();
    let output = output.map_err(|error| format!("ip, of iproute2: {error}"))?;
    let says = String::from_utf8_lossy(&output.stderr).trim().to_string();
    if output.status.success() { Ok(()) } else { Err(format!("ip {words}: {says}")) }
}

/// Two namespaces and a cable. They go when this is dropped.
pub(crate) struct Network {
    server: String,
    client: String,
    /// The clients' side passes all packets on. Without a program there, the kernel does not send
    /// what the program on the other side sends back.
    _passing: Option<Program>,
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in [&self.server, &self.client] {
            let _absent = ip(&format!("netns del {name}"));
        }
    }
}

impl Network {
    /// `None`, and a line that says why, if this process may not make one, or may not load
    /// programs. The calling thread, and threads that it spawns, are then in the clients'
    /// namespace.
    pub(crate) fn new() -> Option<Self> {
        Self::with_clients_end(true)
    }

    /// As [`Self::new`], but the clients' end of the cable has no program, so it takes nothing that
    /// the pipe sends back.
    pub(crate) fn without_program_at_clients() -> Option<Self> {
        Self::with_clients_end(false)
    }

    fn with_clients_end(passes: bool) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = |side| format!("kachel-{}-{count}-{side}", std::process::id());
        let mut network = Self { server: name("s"), client: name("c"), _passing: None };
        match network.make(passes) {
            Ok(()) => Some(network),
            Err(why) => {
                kachel_testkit::skip("pipe.network", &why);
                None
            }
        }
    }

    fn make(&mut self, passes: bool) -> Result<(), String> {
        let Self { server, client, .. } = self;
        ip(&format!("netns add {server}"))?;
        ip(&format!("netns add {client}"))?;
        ip(&format!(
            "link add {SERVER_SIDE} netns {server} type veth peer name {CLIENT_SIDE} netns {client}"
        ))?;
        for (space, side, number) in [(&*server, SERVER_SIDE, 2), (&*client, CLIENT_SIDE, 1)] {
            ip(&format!("-n {space} addr add 10.9.0.{number}/24 dev {side}"))?;
            ip(&format!("-n {space} addr add fd00:9::{number}/64 dev {side} nodad"))?;
            ip(&format!("-n {space} link set lo up"))?;
            ip(&format!("-n {space} link set {side} up"))?;
        }
        self.enter_as_client()?;
        checksums::compute(CLIENT_SIDE).map_err(|error| format!("{CLIENT_SIDE}: {error}"))?;
        let (mut program, _table) = Program::load(1 << 20).map_err(|error| error.to_string())?;
        if passes {
            program.attach(CLIENT_SIDE).map_err(|error| error.to_string())?;
            self._passing = Some(program);
        }
        Ok(())
    }

    /// Moves the calling thread into the clients' namespace.
    fn enter_as_client(&self) -> Result<(), String> {
        let space = File::open(format!("/run/netns/{}", self.client));
        let space = space.map_err(|error| format!("{}: {error}", self.client))?;
        move_into_link_name_space(
            std::os::fd::AsFd::as_fd(&space),
            Some(LinkNameSpaceType::Network),
        )
        .map_err(|error| format!("the namespace cannot be entered: {error}"))
    }

    /// Runs `ip` in the namespace of the server.
    ///
    /// Errors: the words and the complaint of `ip`.
    pub(crate) fn ip_of_server(&self, words: &str) -> Result<(), String> {
        ip(&format!("-n {} {words}", self.server))
    }

    /// Runs `ip` in the namespace of the clients.
    ///
    /// Errors: the words and the complaint of `ip`.
    pub(crate) fn ip_of_client(&self, words: &str) -> Result<(), String> {
        ip(&format!("-n {} {words}", self.client))
    }

    /// The names of both namespaces.
    pub(crate) fn spaces(&self) -> [String; 2] {
        [self.server.clone(), self.client.clone()]
    }

    /// The number of the program that is attached to the server's interface.
    pub(crate) fn server_program(&self) -> Option<u32> {
        let words = ["-n", &self.server, "link", "show", SERVER_SIDE];
        let shown = Command::new("ip").args(words).output().expect("ip, of iproute2");
        let shown = String::from_utf8_lossy(&shown.stdout);
        let (_, program) = shown.split_once("prog/xdp id ")?;
        program.split_whitespace().next()?.parse().ok()
    }

    /// Starts a server with the pipe and these options. A client watches its log, and requests are
    /// counted by prefix.
    pub(crate) fn serve(&self, options: &[&str]) -> Serving {
        self.serve_by(&[], options)
    }

    /// Starts a server as [`Self::serve`] does, by a program that executes the words behind it.
    pub(crate) fn serve_by(&self, program: &[&str], options: &[&str]) -> Serving {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.server]).args(program);
        command.args([env!("CARGO_BIN_EXE_kachel"), "serve"]);
        command.args(["-l", "0.0.0.0,::", "-p", "11311", "-U", "11311", "--pipe", SERVER_SIDE]);
        command.args(["--dumps", "-D", ":"]).args(options).stderr(Stdio::piped());
        let mut child = command.spawn().expect("ip, of iproute2");
        let said = BufReader::new(child.stderr.take().expect("it is piped"));
        let (send, lines) = mpsc::channel();
        std::thread::spawn(move || {
            said.lines().map_while(Result::ok).for_each(|line| drop(send.send(line)));
        });
        let mut serving = Serving { child, said: Vec::new(), lines: None, watcher: None };
        while !serving.said.iter().any(|line| line.contains(" listens on ")) {
            match lines.recv_timeout(PATIENCE) {
                Ok(line) => serving.said.push(line),
                Err(_) => panic!("the server starts: {:?}", serving.said),
            }
        }
        serving.lines = Some(lines);
        let mut watcher = Tcp::new();
        assert_eq!(watcher.ask("watch fetchers mutations evictions deletions\r\n"), "OK\r\n");
        serving.watcher = Some(watcher);
        serving
    }
}

/// A server.
pub(crate) struct Serving {
    child: Child,
    /// The lines that it said until it listened.
    pub(crate) said: Vec<String>,
    /// The lines that follow.
    lines: Option<mpsc::Receiver<String>>,
    /// A client that watches the log and does not read.
    watcher: Option<Tcp>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Serving {
    /// A set of rights of each thread of the server, as `/proc` names it.
    pub(crate) fn rights(&self, set: &str) -> Vec<u64> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("it runs");
        let statuses = tasks.flatten().filter_map(|task| {
            let status = std::fs::read_to_string(task.path().join("status")).ok()?;
            let line = status.lines().find_map(|line| line.strip_prefix(set)?.strip_prefix(':'));
            Some(u64::from_str_radix(line.expect("a set").trim(), 16).expect("a number"))
        });
        statuses.collect()
    }

    /// Waits for a line that the server says after it has begun to listen.
    pub(crate) fn line_with(&self, words: &str) -> String {
        let lines = self.lines.as_ref().expect("it listens");
        let end = Instant::now() + PATIENCE;
        while let Ok(line) = lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            if line.contains(words) {
                return line;
            }
        }
        panic!("the server says {words}");
    }

    /// Sends the server a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).expect("a process");
        rustix::process::kill_process(pid, signal).expect("it runs");
    }

    /// Has the server end, and save its items.
    pub(crate) fn save(mut self) {
        self.signal(Signal::USR1);
        assert!(self.child.wait().expect("it ends").success());
    }

    /// Kills the server at once.
    pub(crate) fn kill(&mut self) {
        let _ended = self.child.kill();
        self.child.wait().expect("it ends");
    }
}

/// A client over TCP.
pub(crate) struct Tcp(BufReader<TcpStream>);

impl Tcp {
    pub(crate) fn new() -> Self {
        let server: SocketAddr = SERVER.parse().expect("an address");
        let stream = TcpStream::connect_timeout(&server, PATIENCE).expect("the server listens");
        stream.set_nodelay(true).expect("an option");
        stream.set_read_timeout(Some(PATIENCE)).expect("an option");
        Self(BufReader::new(stream))
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("a line");
        line
    }

    /// The first line of the reply.
    pub(crate) fn ask(&mut self, request: &str) -> String {
        self.0.get_mut().write_all(request.as_bytes()).expect("it is sent");
        self.line()
    }

    /// The reply of `get` or `gets`, as it is over UDP.
    pub(crate) fn get(&mut self, verb: &str, key: &str) -> Vec<u8> {
        let mut reply = self.ask(&format!("{verb} {key}\r\n")).into_bytes();
        if reply != b"END\r\n" {
            let head = String::from_utf8(reply.clone()).expect("text");
            let bytes: usize = head.split_whitespace().nth(3).expect("a length").parse().unwrap();
            let mut rest = vec![0; bytes + 7];
            self.0.read_exact(&mut rest).expect("a value");
            reply.extend(rest);
        }
        reply
    }

    /// The names and values of `stats` with a topic, or none.
    pub(crate) fn stats(&mut self, topic: &str) -> Vec<(String, String)> {
        let mut line = self.ask(&format!("stats {topic}\r\n"));
        let mut stats = Vec::new();
        while line != "END\r\n" {
            let pair = line.trim_end().strip_prefix("STAT ").and_then(|stat| stat.split_once(' '));
            let (name, value) = pair.expect("a statistic");
            stats.push((name.to_string(), value.to_string()));
            line = self.line();
        }
        stats
    }

    /// A number of `stats` or `stats kachel`.
    pub(crate) fn stat(&mut self, name: &str) -> u64 {
        let topic = if name.starts_with("kachel_") { "kachel" } else { "" };
        let stats = self.stats(topic);
        let found = stats.iter().find(|stat| stat.0 == name);
        let (_, number) = found.unwrap_or_else(|| panic!("{name} is in the statistics"));
        number.parse().expect("a number")
    }
}

/// A client over UDP.
pub(crate) struct Udp {
    socket: UdpSocket,
    request_id: u16,
}

impl Udp {
    pub(crate) fn new() -> Self {
        Self::between("10.9.0.1:0", SERVER)
    }

    pub(crate) fn new6() -> Self {
        Self::between("[fd00:9::1]:0", "[fd00:9::2]:11311")
    }

    /// A client at one address, which asks another one.
    pub(crate) fn between(from: &str, to: &str) -> Self {
        let socket = UdpSocket::bind(from).expect("an address of the interface");
        socket.connect(to).expect("an address");
        Self { socket, request_id: 0 }
    }

    /// Sends a request. Returns its frame; `None` if a port without a server refuses it.
    fn send(&mut self, request: &[u8]) -> Option<[u8; 8]> {
        self.request_id = self.request_id.wrapping_add(1);
        let [high, low] = self.request_id.to_be_bytes();
        let frame = [high, low, 0, 0, 0, 1, 0, 0];
        self.socket.send(&[&frame, request].concat()).ok().map(|_| frame)
    }

    /// The reply to a request, if one comes within `time`.
    pub(crate) fn ask_within(&mut self, request: &[u8], time: Duration) -> Option<Vec<u8>> {
        let frame = self.send(request)?;
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            self.socket.set_read_timeout(Some(left.max(Duration::from_millis(1)))).expect("a time");
            let mut datagram = [0; 2048];
            match self.socket.recv(&mut datagram) {
                // A late reply to an earlier request.
                Ok(bytes) if datagram[..2] != frame[..2] => assert!(bytes >= 8, "a frame"),
                Ok(bytes) => {
                    assert_eq!(datagram[..8], frame, "the frame of a reply of one datagram");
                    return Some(datagram[8..bytes].to_vec());
                }
                Err(_) if left.is_zero() => return None,
                Err(_) => {}
            }
        }
    }

    /// The reply to a request.
    pub(crate) fn ask(&mut self, request: impl AsRef<[u8]>) -> Vec<u8> {
        self.ask_within(request.as_ref(), PATIENCE).expect("a reply over UDP")
    }

    /// Sends a request this often, and waits for no reply.
    pub(crate) fn send_all(&mut self, request: &str, times: usize) {
        for _ in 0..times {
            self.send(request.as_bytes());
        }
    }

    /// Whether anything answers a request.
    pub(crate) fn is_answered(&mut self, request: &str) -> bool {
        self.ask_within(request.as_bytes(), SILENCE).is_some()
    }
}

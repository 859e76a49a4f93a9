//! The server that is abused, where it runs, and what the kernel says of its process.
//!
//! Upstream:   the cases choose a door, a transport and options.
//! Downstream: `server` starts it; `client` talks to it.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use kachel_host::pin_to_core_of;
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_getaffinity};

use crate::client::Client;
use crate::server::{Address, Launch, Server};

/// After which a test gives up waiting for what should be at once.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(2);

/// How clients reach the server, and how it asks the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Door {
    pub(crate) io: &'static str,
    pub(crate) unix: bool,
}

impl std::fmt::Display for Door {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}/{}", self.io, if self.unix { "unix" } else { "tcp" })
    }
}

/// The server to abuse: `KACHEL_ABUSE_SERVER`, or the one just built.
pub(crate) fn program() -> PathBuf {
    let named = std::env::var_os("KACHEL_ABUSE_SERVER");
    named.map_or_else(|| env!("CARGO_BIN_EXE_kachel").into(), PathBuf::from)
}

/// Whether the server is a release build: its times are what clients see, and it has no shadow of
/// item memory.
pub(crate) fn is_release() -> bool {
    !cfg!(debug_assertions) || std::env::var_os("KACHEL_ABUSE_SERVER").is_some()
}

/// Starts our server behind `door`, called as `memcached`.
pub(crate) fn start(door: Door, options: &[&str]) -> Server {
    let options = [&["-U", "0", "--io", door.io], options].concat();
    let mut server = Server::start(&Launch {
        program: &program(),
        called_as: "memcached",
        unix: door.unix,
        options: &options,
    });
    // What the first request touches is not to be taken for what abuse costs.
    assert_eq!(server.stats()["kachel_io"], door.io);
    server.assert_alive();
    server
}

/// Does `work` on one core, and so does every thread and server that it starts: whether a reader
/// shares its server's core, which the kernel decides anew at any time, is a factor of four. Tells
/// it the cores that it had, for what is to stay away.
pub(crate) fn on_one_core<T: Send>(work: impl FnOnce(&CpuSet) -> T + Send) -> T {
    let cores = sched_getaffinity(None).expect("a thread may ask");
    std::thread::scope(|scope| {
        let work = scope.spawn(|| {
            pin_to_core_of(0).expect("a core of ours");
            work(&cores)
        });
        work.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Looks until `is_so`, for at most `patience`; whether it came true.
pub(crate) fn within(patience: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + patience;
    while !is_so() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(LOOK);
    }
    true
}

/// Looks until `is_so`.
pub(crate) fn wait_until(what: &str, is_so: impl FnMut() -> bool) {
    assert!(within(PATIENCE, is_so), "waited too long for {what}");
}

impl Server {
    pub(crate) fn connect(&self) -> Client {
        Client::new(self.stream().expect("the server accepts"))
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("our child takes signals");
    }

    pub(crate) fn port(&self) -> u16 {
        match &self.address {
            Address::Tcp(address) => address.port(),
            Address::Unix(_) => panic!("a unix socket has no port"),
        }
    }

    /// What `Server::start_at` takes to start another one in its place.
    pub(crate) fn place(&self) -> String {
        match &self.address {
            Address::Tcp(address) => address.port().to_string(),
            Address::Unix(path) => path.to_str().expect("UTF-8").to_owned(),
        }
    }

    /// What the kernel says of the process in `name` of its folder in /proc.
    fn told(&self, name: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{name}", self.process.id())).expect("a living process")
    }

    /// A line of /proc/PID/status in bytes: `VmRSS`, `VmHWM`.
    pub(crate) fn memory_bytes(&self, what: &str) -> u64 {
        let status = self.told("status");
        let line = status.lines().find_map(|line| line.strip_prefix(what)).expect("such a line");
        let kib = line.trim_matches(|c: char| !c.is_ascii_digit());
        kib.parse::<u64>().expect("a number of KiB") * 1024
    }

    /// Resident bytes now.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.memory_bytes("VmRSS:")
    }

    /// Open files.
    pub(crate) fn files(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.process.id())).expect("a process").count()
    }

    /// Whether every thread is stopped.
    pub(crate) fn is_stopped(&self) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.process.id())).expect("a process");
        threads
            .filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("stat")).ok())
            .all(|stat| stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('T')))
    }

    /// Processor time used until now, of the process and the kernel for it.
    pub(crate) fn processor_time(&self) -> Duration {
        // In units of 1/100 s, on every machine (proc(5), USER_HZ).
        let stat = self.told("stat");
        // Behind the name, which may hold spaces: the fields from the third on.
        let fields: Vec<&str> =
            stat.rsplit_once(')').expect("a name").1.split_ascii_whitespace().collect();
        let ticks: u64 = [11, 12].iter().map(|&at| fields[at].parse::<u64>().expect("ticks")).sum();
        Duration::from_millis(ticks * 10)
    }

    /// Whether it does nothing for a tenth of a second.
    pub(crate) fn is_at_rest(&self) -> bool {
        let before = self.processor_time();
        std::thread::sleep(Duration::from_millis(100));
        self.processor_time() == before
    }

    /// What `stats` answers.
    pub(crate) fn stats(&self) -> HashMap<String, String> {
        self.connect().stats()
    }

    /// One number of `stats`.
    pub(crate) fn stat(&self, name: &str) -> u64 {
        let stats = self.stats();
        let value = stats.get(name).unwrap_or_else(|| panic!("no such statistic: {name}"));
        value.parse().expect("a number")
    }

    /// Waits until only the asking connection is open.
    pub(crate) fn wait_until_alone(&self) {
        wait_until("the clients' end", || self.stat("curr_connections") == 1);
    }
}

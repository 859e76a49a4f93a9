//! The server under test, and where it runs.
//!
//! Upstream:   the cases choose a backend, a transport and options.
//! Downstream: `kachel_testkit` starts it.

use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering};

use kachel_host::pin_to_core_of;
use kachel_testkit::{Launch, Server};
use rustix::thread::{CpuSet, sched_getaffinity};

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

/// Starts our server behind `door`, called as `memcached`; at `place`, if one is given.
pub(crate) fn start_at(door: Door, options: &[&str], place: Option<&str>) -> Server {
    let options = [&["-U", "0", "--io", door.io], options].concat();
    let program = program();
    let launch = Launch { unix: door.unix, ..Launch::memcached(&program, &options) };
    launch.start_at(place)
}

/// A TCP port that the kernel chooses for nobody, neither for a client nor for a server that takes
/// any port. So nothing else comes to it while no server of ours listens there.
pub(crate) fn own_port() -> u16 {
    /// Ports of this process that were handed out.
    static COUNT: AtomicU16 = AtomicU16::new(0);
    const FIRST: u16 = 10_000;
    let range = "/proc/sys/net/ipv4/ip_local_port_range";
    let range = std::fs::read_to_string(range).expect("the kernel's range");
    let lowest: Option<u16> = range.split_whitespace().next().and_then(|port| port.parse().ok());
    let count = lowest.unwrap_or(0).saturating_sub(FIRST);
    assert!(count > 0, "there are ports below the range {range}");
    // Another process begins elsewhere.
    let begin = std::process::id().wrapping_mul(101);
    let mut ports = (0..count).map(|_| {
        let number = begin.wrapping_add(COUNT.fetch_add(1, Ordering::Relaxed).into());
        FIRST + (number % u32::from(count)) as u16
    });
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    ports.find(is_free).expect("a free port")
}

/// Starts our server behind `door`, called as `memcached`.
pub(crate) fn start(door: Door, options: &[&str]) -> Server {
    warm(door, start_at(door, options, None))
}

/// Starts a server as [`start`] does, at a place where nobody answers once the server has ended.
pub(crate) fn start_apart(door: Door, options: &[&str]) -> Server {
    let port = own_port().to_string();
    warm(door, start_at(door, options, (!door.unix).then_some(&port)))
}

fn warm(door: Door, mut server: Server) -> Server {
    // Memory that the first request touches is no cost of the abuse.
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

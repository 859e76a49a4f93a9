//! The server under test, and where it runs.
//!
//! Upstream:   the cases choose a backend, a transport and options.
//! Downstream: `kachel_testkit` starts it.

use std::path::PathBuf;

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

/// Starts our server behind `door`, called as `memcached`.
pub(crate) fn start(door: Door, options: &[&str]) -> Server {
    let mut server = start_at(door, options, None);
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

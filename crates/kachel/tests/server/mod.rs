//! A server process for the length of a test: started on a port or socket of its own, gone with the
//! test.
//!
//! Upstream:   the tests name a program that takes memcached's options, and the options.
//! Downstream: tests talk to it through `stream`; what only one suite asks of a server, that suite
//!             adds in an `impl` of its own.
//!
//! - P1  The port is the one that the server itself announced, in the file that
//!   `MEMCACHED_PORT_FILENAME` names; nothing waits a fixed time for it.
//! - P2  The process is gone before `Server` is.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take until it listens, on a machine under load.
const START_WITHIN: Duration = Duration::from_secs(30);
/// How often it is looked at meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// The file in the server's folder with what it says.
const LOG: &str = "log";
/// How much of that is shown.
const LAST_WORDS_CHARS: usize = 4_000;

/// How clients reach a server.
pub(crate) enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// What is started.
pub(crate) struct Launch<'a> {
    /// The binary.
    pub(crate) program: &'a Path,
    /// The name by which it is called.
    pub(crate) called_as: &'a str,
    /// Whether it listens on a unix socket; else on a free port of 127.0.0.1.
    pub(crate) unix: bool,
    /// All other options, a subcommand first.
    pub(crate) options: &'a [&'a str],
}

/// A running server.
pub(crate) struct Server {
    pub(crate) process: Child,
    pub(crate) address: Address,
    pub(crate) folder: tempfile::TempDir,
}

/// `-u root` where root must say so.
pub(crate) fn user() -> &'static [&'static str] {
    let is_root = fs::metadata("/proc/self").expect("proc").uid() == 0;
    if is_root { &["-u", "root"] } else { &[] }
}

/// The IPv4 port in a port file, once there is one.
pub(crate) fn announced_port(port_file: &Path) -> Option<u16> {
    let text = fs::read_to_string(port_file).ok().filter(|text| text.ends_with('\n'))?;
    let port = text.lines().find_map(|line| line.strip_prefix("TCP INET: "))?;
    Some(port.trim().parse().expect("a port number"))
}

impl Server {
    /// Starts a server and waits until it listens.
    ///
    /// Panics: if there is no such program, or it ends or says nothing in time.
    pub(crate) fn start(launch: &Launch<'_>) -> Self {
        Self::start_at(launch, None)
    }

    /// As `start`, at a given place: a port, or the path of a socket.
    pub(crate) fn start_at(launch: &Launch<'_>, place: Option<&str>) -> Self {
        let program = launch.program;
        assert!(program.exists(), "{} is not there: ./test installs the peer", program.display());
        let folder = tempfile::tempdir().expect("a folder for the server");
        let called = folder.path().join(launch.called_as);
        symlink(program, &called).expect("a link of that name");
        let port_file = folder.path().join("port");
        let socket = place.map_or_else(|| folder.path().join("socket"), PathBuf::from);
        let log = File::create(folder.path().join(LOG)).expect("a log for the server");

        let mut command = Command::new(&called);
        command.args(launch.options).args(user());
        let address = if launch.unix {
            command.arg("-s").arg(&socket);
            Address::Unix(socket)
        } else {
            command.args(["-l", "127.0.0.1", "-p", place.unwrap_or("-1")]);
            Address::Tcp((Ipv4Addr::LOCALHOST, 0).into())
        };
        command.env("MEMCACHED_PORT_FILENAME", &port_file).stdin(Stdio::null());
        command.stdout(log.try_clone().expect("the log twice")).stderr(log);
        let process = command
            .spawn()
            .unwrap_or_else(|error| panic!("{} does not start: {error}", program.display()));
        let mut server = Self { process, address, folder };
        server.wait_until_it_listens(&port_file);
        server
    }

    fn wait_until_it_listens(&mut self, port_file: &Path) {
        let deadline = Instant::now() + START_WITHIN;
        loop {
            if let Address::Tcp(address) = &mut self.address
                && let Some(port) = announced_port(port_file)
            {
                address.set_port(port); // P1
            }
            if self.stream().is_ok() {
                return;
            }
            self.assert_alive();
            assert!(Instant::now() < deadline, "does not listen: {}", self.last_words());
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// A new connection: what a `TcpStream` or a `UnixStream` is made from.
    ///
    /// Errors: those of the kernel; also port 0, which is not announced yet.
    pub(crate) fn stream(&self) -> std::io::Result<OwnedFd> {
        match &self.address {
            Address::Tcp(address) => TcpStream::connect(address).map(OwnedFd::from),
            Address::Unix(path) => UnixStream::connect(path).map(OwnedFd::from),
        }
    }

    /// Panics, with what the server said, when it has ended.
    pub(crate) fn assert_alive(&mut self) {
        if let Some(status) = self.process.try_wait().expect("the state of a child") {
            panic!("the server ended with {status}: {}", self.last_words());
        }
    }

    /// What the server said, from where it panicked if it did: why it is gone.
    pub(crate) fn last_words(&self) -> String {
        let log = fs::read(self.folder.path().join(LOG)).unwrap_or_default();
        let text = String::from_utf8_lossy(&log);
        let from = text.find("panicked").unwrap_or(0);
        text[from..].chars().take(LAST_WORDS_CHARS).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // P2. Neither can fail in a way that matters here: the process is ours and may be gone.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

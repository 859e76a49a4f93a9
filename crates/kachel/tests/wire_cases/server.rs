//! A server under test: started on a port or socket of its own, ended with the test.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::wire::Connection;

/// How long a server may take until it listens.
const START: Duration = Duration::from_secs(20);
/// How often it is looked at meanwhile.
const LOOK: Duration = Duration::from_millis(2);

/// The option that names another server.
const OTHER: &str = "KACHEL_CASES_SERVER";

/// How clients reach the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    Unix,
}

enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// A running server; dropping it ends it.
pub(crate) struct Server {
    child: Child,
    address: Address,
    other: bool,
    folder: tempfile::TempDir,
}

impl Server {
    /// Starts a server, called as `memcached`, and waits until it listens.
    pub(crate) fn start(transport: Transport, io: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let other = std::env::var_os(OTHER).map(PathBuf::from);
        let program = other.clone().unwrap_or_else(|| env!("CARGO_BIN_EXE_kachel").into());
        let called_as = folder.path().join("memcached");
        std::os::unix::fs::symlink(program, &called_as).unwrap();
        let port_file = folder.path().join("port");
        let socket = folder.path().join("socket");
        let log = fs::File::create(folder.path().join("log")).unwrap();

        let mut command = Command::new(&called_as);
        command.args(["-m", "64", "-t", "2", "-U", "0"]);
        match transport {
            Transport::Tcp => command.args(["-l", "127.0.0.1", "-p", "-1"]),
            Transport::Unix => command.arg("-s").arg(&socket),
        };
        if other.is_none() {
            command.args(["--io", io]);
        }
        if fs::metadata("/proc/self").unwrap().uid() == 0 {
            command.args(["-u", "root"]);
        }
        command.env("MEMCACHED_PORT_FILENAME", &port_file).stdin(Stdio::null());
        command.stdout(log.try_clone().unwrap()).stderr(log);
        let child = command.spawn().unwrap();
        let address = match transport {
            Transport::Tcp => Address::Tcp((Ipv4Addr::LOCALHOST, 0).into()),
            Transport::Unix => Address::Unix(socket),
        };
        let mut server = Self { child, address, other: other.is_some(), folder };
        server.wait_until_it_listens(&port_file);
        server
    }

    fn wait_until_it_listens(&mut self, port_file: &Path) {
        let deadline = Instant::now() + START;
        while !self.listens(port_file) {
            self.assert_alive();
            assert!(Instant::now() < deadline, "does not listen: {}", self.log());
            std::thread::sleep(LOOK);
        }
    }

    /// Whether the server can be reached now; learns the port.
    fn listens(&mut self, port_file: &Path) -> bool {
        match &mut self.address {
            Address::Unix(path) => UnixStream::connect(path).is_ok(),
            Address::Tcp(address) => {
                let text = fs::read_to_string(port_file).unwrap_or_default();
                let port = text.lines().find_map(|line| line.strip_prefix("TCP INET: "));
                let Some(port) = port.and_then(|port| port.trim().parse().ok()) else {
                    return false;
                };
                address.set_port(port);
                TcpStream::connect(*address).is_ok()
            }
        }
    }

    /// Whether it is another server, not ours.
    pub(crate) fn is_other(&self) -> bool {
        self.other
    }

    /// A new connection.
    pub(crate) fn connect(&self) -> Connection {
        match &self.address {
            Address::Tcp(address) => Connection::tcp(TcpStream::connect(address).unwrap()),
            Address::Unix(path) => Connection::unix(UnixStream::connect(path).unwrap()),
        }
    }

    /// Panics, with what the server said, when it has ended.
    pub(crate) fn assert_alive(&mut self) {
        if let Some(status) = self.child.try_wait().unwrap() {
            panic!("the server ended with {status}: {}", self.log());
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

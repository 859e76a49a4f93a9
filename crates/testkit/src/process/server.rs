//! A server process for the length of a test, on a port or socket of its own.
//!
//! Upstream:   the tests name a program that takes memcached's options, and the options.
//! Downstream: the process; `client`, for connections to it.
//!
//! Invariants:
//! - I1  The port is the one that the server itself announced, in the file that
//!   `MEMCACHED_PORT_FILENAME` names; nothing waits a fixed time for it.
//! - I2  The process is gone before `Server` is.
//!
//! With `KACHEL_TLS=1` in the environment, each of our servers on a TCP port has TLS, and each
//! client of it goes through a tunnel. So a suite runs with and without TLS.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
#[cfg(feature = "tls")]
use std::sync::Arc;

#[cfg(feature = "tls")]
use super::authority::{Authority, CertificateFiles, TLS_VERSIONS};
use super::client::Client;
#[cfg(feature = "tls")]
use super::tunnel::tunnel;
use super::waiting::wait_until;

/// The file in the server's folder with its output.
const LOG: &str = "log";
/// The file in the folder of a server into which it writes its ports.
const PORT_FILE: &str = "port";
/// The most characters of that output that are shown.
const LAST_WORDS_CHARS: usize = 4_000;

/// How clients reach a server.
#[derive(Clone, Debug)]
pub enum Address {
    /// An IPv4 address.
    Tcp(SocketAddr),
    /// The path of a unix socket.
    Unix(PathBuf),
}

/// How to start a server.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The binary.
    pub program: &'a Path,
    /// The name by which it is called.
    pub called_as: &'a str,
    /// Whether it listens on a unix socket; otherwise on a free port of 127.0.0.1.
    pub unix: bool,
    /// All other options, a subcommand first.
    pub options: &'a [&'a str],
    /// A command that starts the server with limits or with an environment, such as `prlimit
    /// --as=BYTES --`; empty: none.
    pub under: &'a [&'a str],
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    /// Its process.
    pub process: Child,
    /// Where it listens.
    pub address: Address,
    folder: tempfile::TempDir,
    /// Clients that watch its log and do not read.
    watchers: Vec<Client>,
    /// The configuration of its clients, if they speak TLS.
    #[cfg(feature = "tls")]
    tls: Option<Arc<rustls::ClientConfig>>,
}

/// Whether suites run with TLS.
///
/// # Panics
/// If they must, and are built without it.
pub fn wants_tls() -> bool {
    let wanted = std::env::var_os("KACHEL_TLS").is_some_and(|value| value == "1");
    assert!(!wanted || cfg!(feature = "tls"), "KACHEL_TLS: run with --features tls");
    wanted
}

/// The end of a server that does not listen.
#[derive(Debug)]
pub struct Ended {
    /// Its exit status.
    pub status: ExitStatus,
    /// Its output.
    pub said: String,
}

/// `-u root` if this process runs as root, because the server requires the option then.
pub fn user() -> &'static [&'static str] {
    let is_root = fs::metadata("/proc/self").expect("proc").uid() == 0;
    if is_root { &["-u", "root"] } else { &[] }
}

/// The IPv4 port in a port file; `None` until the file is whole.
pub fn announced_port(port_file: &Path) -> Option<u16> {
    let text = fs::read_to_string(port_file).ok().filter(|text| text.ends_with('\n'))?;
    let port = text.lines().find_map(|line| line.strip_prefix("TCP INET: "))?;
    Some(port.trim().parse().expect("a port number"))
}

impl<'a> Launch<'a> {
    /// A server called as `memcached`, on a free port.
    pub fn memcached(program: &'a Path, options: &'a [&'a str]) -> Self {
        Self { program, called_as: "memcached", unix: false, options, under: &[] }
    }

    /// Starts the server and waits until it listens.
    ///
    /// # Panics
    /// If there is no such program, or it ends or does not listen in time.
    pub fn start(&self) -> Server {
        self.start_at(None)
    }

    /// Starts the server as [`Self::start`] does, at a given port or path of a socket.
    ///
    /// # Panics
    /// As [`Self::start`].
    pub fn start_at(&self, place: Option<&str>) -> Server {
        self.try_start_at(place).unwrap_or_else(|Ended { status, said }| {
            panic!("the server ended with {status}: {said}");
        })
    }

    /// Starts a server as [`Self::start`] does, but allows it to end instead of listening.
    ///
    /// # Errors
    /// The end of the server.
    ///
    /// # Panics
    /// If there is no such program, or it neither ends nor listens in time.
    pub fn try_start(&self) -> Result<Server, Ended> {
        self.try_start_at(None)
    }

    /// Starts a server as [`Self::start_at`] does, but allows it to end instead of listening.
    ///
    /// # Errors
    /// The end of the server.
    ///
    /// # Panics
    /// As [`Self::try_start`].
    pub fn try_start_at(&self, place: Option<&str>) -> Result<Server, Ended> {
        let program = self.program;
        assert!(program.exists(), "{} is not there: ./test installs the peer", program.display());
        let folder = tempfile::tempdir().expect("a folder for the server");
        let called = folder.path().join(self.called_as);
        symlink(program, &called).expect("a link of that name");
        let port_file = folder.path().join(PORT_FILE);
        let socket = place.map_or_else(|| folder.path().join("socket"), PathBuf::from);
        let log = File::create(folder.path().join(LOG)).expect("a log for the server");

        let mut command = match self.under {
            [] => Command::new(&called),
            [starter, arguments @ ..] => {
                let mut command = Command::new(starter);
                command.args(arguments).arg(&called);
                command
            }
        };
        command.args(self.options).args(user());
        #[cfg(feature = "tls")]
        let tls = self.encrypt(&mut command, folder.path());
        let address = if self.unix {
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
        #[cfg(feature = "tls")]
        let mut server = Server { process, address, folder, watchers: Vec::new(), tls };
        #[cfg(not(feature = "tls"))]
        let mut server = Server { process, address, folder, watchers: Vec::new() };
        let mut ended = None;
        wait_until("a server that listens", || {
            if let Address::Tcp(address) = &mut server.address
                && let Some(port) = announced_port(&port_file)
            {
                address.set_port(port); // I1
            }
            ended = server.process.try_wait().expect("the state of a child");
            ended.is_some() || server.raw_stream().is_ok()
        });
        ended.map_or(Ok(()), |status| Err(Ended { status, said: server.last_words() }))?;
        Ok(server)
    }

    /// Gives our server TLS, if suites run with it. Returns the configuration of its clients.
    #[cfg(feature = "tls")]
    fn encrypt(&self, command: &mut Command, folder: &Path) -> Option<Arc<rustls::ClientConfig>> {
        let is_ours = self.program.file_name().is_some_and(|name| name == "kachel");
        if self.unix || !is_ours || !wants_tls() {
            return None;
        }
        let authority = Authority::new();
        let CertificateFiles { certificate, key } = authority.certify_server(folder, "server");
        let (certificate, key) = (certificate.display(), key.display());
        command.args(["-Z", "-o", &format!("ssl_chain_cert={certificate},ssl_key={key}")]);
        Some(Arc::new(authority.client(&TLS_VERSIONS, None)))
    }
}

impl Server {
    /// A new client.
    ///
    /// # Panics
    /// If the server does not accept it.
    pub fn connect(&self) -> Client {
        Client::new(self.stream().expect("the server accepts"))
    }

    /// The TCP port on which it listens.
    ///
    /// # Panics
    /// If it listens on a unix socket.
    pub fn port(&self) -> u16 {
        match &self.address {
            Address::Tcp(address) => address.port(),
            Address::Unix(_) => panic!("a unix socket has no port"),
        }
    }

    /// The first UDP port on which it listens.
    ///
    /// # Panics
    /// If there is none.
    pub fn udp_port(&self) -> u16 {
        self.announced("UDP INET: ")
    }

    /// The port of its admin address (`--admin 127.0.0.1:0`).
    ///
    /// # Panics
    /// If there is none.
    pub fn admin_port(&self) -> u16 {
        self.announced("ADMIN INET: ")
    }

    /// The number behind the first line of the port file that begins with `kind`.
    fn announced(&self, kind: &str) -> u16 {
        let text = fs::read_to_string(self.folder.path().join(PORT_FILE)).expect("a file of ports");
        let port = text.lines().find_map(|line| line.strip_prefix(kind)).expect(kind);
        port.trim().parse().expect("a port number")
    }

    /// The place that [`Launch::start_at`] takes to start another server in its place.
    pub fn place(&self) -> String {
        match &self.address {
            Address::Tcp(address) => address.port().to_string(),
            Address::Unix(path) => path.to_str().expect("UTF-8").to_owned(),
        }
    }

    /// Whether its clients speak TLS.
    pub fn has_tls(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.tls.is_some();
        #[cfg(not(feature = "tls"))]
        return false;
    }

    /// A new connection, without limits or options; over TLS if the server wants it.
    ///
    /// # Errors
    /// Those of the kernel; also port 0, before the port is announced.
    pub fn stream(&self) -> std::io::Result<OwnedFd> {
        #[cfg(feature = "tls")]
        if let (Some(config), Address::Tcp(address)) = (&self.tls, &self.address) {
            return tunnel(config, *address);
        }
        self.raw_stream()
    }

    /// A new connection to the port or socket itself.
    fn raw_stream(&self) -> std::io::Result<OwnedFd> {
        match &self.address {
            Address::Tcp(address) => TcpStream::connect(address).map(OwnedFd::from),
            Address::Unix(path) => UnixStream::connect(path).map(OwnedFd::from),
        }
    }

    /// Has a client watch all streams of the log until the server ends. It reads nothing. So each
    /// later request does all that a request may have to do.
    ///
    /// # Panics
    /// If the server refuses that.
    pub fn watch(&mut self) {
        let mut watcher = self.connect();
        let streams = "fetchers mutations evictions connevents sysevents deletions";
        watcher.send(format!("watch {streams}\r\n"));
        assert_eq!(watcher.read_line(), b"OK\r\n", "lines may follow");
        self.watchers.push(watcher);
    }

    /// Checks that the process runs.
    ///
    /// # Panics
    /// If it has ended, with its output.
    pub fn assert_alive(&mut self) {
        if let Some(status) = self.process.try_wait().expect("the state of a child") {
            panic!("the server ended with {status}: {}", self.last_words());
        }
    }

    /// The server's output; if there was a panic, the output from the panic on.
    pub fn last_words(&self) -> String {
        let text = self.log();
        let from = text.find("panicked").unwrap_or(0);
        text[from..].chars().take(LAST_WORDS_CHARS).collect()
    }

    /// All of the server's output so far.
    pub fn log(&self) -> String {
        let log = fs::read(self.folder.path().join(LOG)).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A test that fails because its server ended says why the server ended.
        if std::thread::panicking()
            && let Ok(Some(status)) = self.process.try_wait()
        {
            println!("the server ended with {status}: {}", self.last_words());
        }
        // I2. Neither can fail in a way that matters: the process is ours and may be gone.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

//! A server process for the length of a test: started on a port of its own choice, killed at the
//! end.
//!
//! Upstream:   the tests name a program that takes memcached's options.
//! Downstream: `run` opens connections to the address.
//!
//! - P1  The address is the one that the server itself announced, in the file that
//!   `MEMCACHED_PORT_FILENAME` names; nothing waits a fixed time for it.
//! - P2  The process is gone before `Server` is.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take to announce its port on a machine under load.
const START_WITHIN: Duration = Duration::from_secs(30);
/// How often the announcement is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// A reply that takes longer than this is taken for missing.
const REPLY_WITHIN: Duration = Duration::from_secs(20);

/// The file in the server's folder with what it says.
const LOG: &str = "log";
/// How much of that is shown.
const LAST_WORDS_CHARS: usize = 4_000;

/// A running server that listens on a port of 127.0.0.1.
pub(crate) struct Server {
    process: Child,
    address: SocketAddr,
    folder: tempfile::TempDir,
}

impl Server {
    /// Starts `program`, called as `memcached`.
    ///
    /// Panics: if there is no such program or it announces no port.
    pub(crate) fn start(program: &Path) -> Self {
        assert!(program.exists(), "{} is not there: ./test installs the peer", program.display());
        let folder = tempfile::tempdir().expect("a folder for the server");
        let called = folder.path().join("memcached");
        std::os::unix::fs::symlink(program, &called).expect("a link called memcached");
        let announcement = folder.path().join("port");
        let log = File::create(folder.path().join(LOG)).expect("a log for the server");
        let process = Command::new(&called)
            .args(["-p", "-1", "-U", "0", "-l", "127.0.0.1", "-u", "root", "-m", "1024", "-t", "2"])
            .env("MEMCACHED_PORT_FILENAME", &announcement)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("the log twice"))
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("{} does not start: {error}", program.display()));
        let address = (Ipv4Addr::LOCALHOST, 0).into();
        let mut server = Self { process, address, folder };
        let port = server.announced_port(&announcement);
        server.address.set_port(port);
        server
    }

    /// Waits until the server says where it listens (P1).
    fn announced_port(&mut self, announcement: &Path) -> u16 {
        let began = Instant::now();
        loop {
            let text = std::fs::read_to_string(announcement).unwrap_or_default();
            let port = text.lines().find_map(|line| line.strip_prefix("TCP INET: "));
            if let Some(port) = port.filter(|_| text.ends_with('\n')) {
                return port.trim().parse().expect("a port number");
            }
            let ended = self.process.try_wait().expect("the state of a child");
            assert!(ended.is_none(), "the server ended at once, {ended:?}: {}", self.last_words());
            assert!(began.elapsed() < START_WITHIN, "no port was announced in {START_WITHIN:?}");
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// What the server said, from where it panicked if it did: why it is gone.
    pub(crate) fn last_words(&self) -> String {
        let log = std::fs::read(self.folder.path().join(LOG)).unwrap_or_default();
        let text = String::from_utf8_lossy(&log);
        let from = text.find("panicked").unwrap_or(0);
        text[from..].chars().take(LAST_WORDS_CHARS).collect()
    }

    /// A new connection.
    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("the server accepts");
        stream.set_nodelay(true).expect("TCP_NODELAY");
        stream.set_read_timeout(Some(REPLY_WITHIN)).expect("a time limit for replies");
        stream.set_write_timeout(Some(REPLY_WITHIN)).expect("a time limit for requests");
        stream
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // P2. Neither can fail in a way that matters here: the process is ours and may be gone.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

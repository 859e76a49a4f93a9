//! What the kernel refuses the server, and what becomes of the server then.
//!
//! Upstream:   `kernel`, which refuses what a test names, to the server that it starts.
//! Downstream: the real process, by `server`.

mod cores;
mod door;
mod families;
mod kernel;
mod memory;
#[path = "../server/mod.rs"]
mod server;
mod space;

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use server::{Launch, Server};

/// A reply that takes longer is missing.
const PATIENCE: Duration = Duration::from_secs(60);

fn start(options: &[&str]) -> Server {
    let program = Path::new(env!("CARGO_BIN_EXE_kachel"));
    Server::start(&Launch { program, called_as: "memcached", unix: false, options })
}

/// A connection to a server.
struct Client {
    replies: BufReader<TcpStream>,
}

impl Client {
    fn new(server: &Server) -> Self {
        Self::over(TcpStream::from(server.stream().expect("it listens")))
    }

    /// A connection to a port of this machine.
    fn at(port: u16) -> Self {
        Self::over(TcpStream::connect(("127.0.0.1", port)).expect("it listens"))
    }

    fn over(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
        stream.set_nodelay(true).expect("a socket");
        Self { replies: BufReader::new(stream) }
    }

    fn send(&mut self, requests: &[u8]) {
        self.replies.get_mut().write_all(requests).expect("sent");
    }

    /// A line of a reply, without its end.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.replies.read_line(&mut line).expect("a reply in time");
        assert!(line.ends_with("\r\n"), "the server is gone: {line:?}");
        line.truncate(line.len() - 2);
        line
    }

    /// The reply to one line.
    fn ask(&mut self, line: &str) -> String {
        self.send(format!("{line}\r\n").as_bytes());
        self.line()
    }

    /// One number of `stats`.
    fn stat(&mut self, name: &str) -> u64 {
        self.send(b"stats\r\n");
        let mut found = None;
        loop {
            let line = self.line();
            if line == "END" {
                return found.unwrap_or_else(|| panic!("stats has no {name}"));
            }
            let words: Vec<&str> = line.split(' ').collect();
            if words[1] == name {
                found = Some(words[2].parse().expect("a number"));
            }
        }
    }
}

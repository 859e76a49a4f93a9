//! The two programs under comparison, and connections to them.
//!
//! Upstream:   the tests name a program that takes memcached's options.
//! Downstream: `run` opens connections.

use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use crate::server::{Launch, Server};

/// A reply that takes longer than this is taken for missing.
const REPLY_WITHIN: Duration = Duration::from_secs(20);

/// Starts `program`, called as `memcached`, on a port of 127.0.0.1.
pub(crate) fn start(program: &Path) -> Server {
    let options = ["-U", "0", "-m", "1024", "-t", "2"];
    Server::start(&Launch { program, called_as: "memcached", unix: false, options: &options })
}

impl Server {
    /// A new connection.
    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::from(self.stream().expect("the server accepts"));
        stream.set_nodelay(true).expect("TCP_NODELAY");
        stream.set_read_timeout(Some(REPLY_WITHIN)).expect("a time limit for replies");
        stream.set_write_timeout(Some(REPLY_WITHIN)).expect("a time limit for requests");
        stream
    }
}

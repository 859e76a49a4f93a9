//! One connection to the server: its socket, the bytes in both directions, and the requests in
//! flight.
//!
//! Upstream:   `session` connects before the run begins; `drive` sends and receives.
//! Downstream: the server.
//!
//! ```text
//! incoming: | read already |  parsed..filled: to be scanned  |  free  |
//! ```
//!
//! Invariants, cited by number where they are asserted:
//! - I1  `parsed <= filled <= incoming.len()`.
//! - I2  Sockets are non-blocking once the run begins.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::answer::Progress;
use crate::protocol::Protocol;
use crate::request::{Outbox, Pending};

/// Initial size of a receive buffer; it doubles whenever a reply does not fit.
const INCOMING_BYTES_START: usize = 16 << 10;
/// Timeout for connecting.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// Address of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    /// A resolved TCP address.
    Tcp(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
}

impl Address {
    /// Parses `HOST:PORT`, `HOST` (port 11211) or the path of a unix socket (which contains a
    /// slash).
    ///
    /// Errors: the name does not resolve, as a message for the user.
    pub(crate) fn resolve(text: &str) -> Result<Self, String> {
        if text.contains('/') {
            return Ok(Self::Unix(PathBuf::from(text)));
        }
        let has_port = text.rsplit_once(':').is_some_and(|(host, port)| {
            !host.is_empty()
                && port.parse::<u16>().is_ok()
                && (!host.contains(':') || host.ends_with(']'))
        });
        let full = match (has_port, text.contains(':')) {
            (true, _) => text.to_owned(),
            (false, true) if !text.starts_with('[') => format!("[{text}]:11211"),
            (false, _) => format!("{text}:11211"),
        };
        let mut found =
            full.to_socket_addrs().map_err(|error| format!("--server {text}: {error}"))?;
        found.next().map(Self::Tcp).ok_or_else(|| format!("--server {text}: no address"))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// Result of an attempt to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// Bytes were received and the buffer is full: more may be waiting.
    More,
    /// Bytes were received, and no more are waiting.
    Drained,
    /// No bytes were waiting.
    Nothing,
}

/// A connection and its state.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: OwnedFd,
    /// Formatted requests that are not sent yet.
    pub(crate) outbox: Outbox,
    /// Requests in flight, the oldest first.
    pub(crate) pending: VecDeque<Pending>,
    /// What was read of the answer to the oldest request.
    progress: Progress,
    /// The protocol of the requests.
    protocol: Protocol,
    /// Number of unread bytes needed before the next scan can succeed.
    pub(crate) need_bytes: usize,
    /// False after the connection failed.
    pub(crate) is_alive: bool,
    /// True while the connection is in the list of idle connections.
    pub(crate) is_idle: bool,
    incoming: Vec<u8>,
    parsed: usize,
    filled: usize,
}

/// The unread bytes of a connection, and what changes while they are read.
pub(crate) struct Unread<'c> {
    /// The protocol of the replies.
    pub(crate) protocol: Protocol,
    /// The bytes.
    pub(crate) bytes: &'c [u8],
    /// Formatted requests that are not sent yet.
    pub(crate) outbox: &'c mut Outbox,
    /// Requests in flight, the oldest first.
    pub(crate) pending: &'c mut VecDeque<Pending>,
    /// What was read of the answer to the oldest request.
    pub(crate) progress: &'c mut Progress,
}

impl Connection {
    /// Connects within at most 5 s, and makes the socket non-blocking (I2).
    ///
    /// Errors: those of the kernel.
    pub(crate) fn open(address: &Address, protocol: Protocol) -> io::Result<Self> {
        let socket: OwnedFd = match address {
            Address::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, CONNECT_PATIENCE)?;
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                stream.into()
            }
            Address::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_nonblocking(true)?;
                stream.into()
            }
        };
        Ok(Self {
            socket,
            outbox: Outbox::default(),
            pending: VecDeque::new(),
            progress: Progress::default(),
            protocol,
            need_bytes: 1,
            is_alive: true,
            is_idle: false,
            incoming: vec![0; INCOMING_BYTES_START],
            parsed: 0,
            filled: 0,
        })
    }

    /// The socket, for polling.
    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Sends as many bytes of the formatted requests as the kernel accepts.
    ///
    /// Errors: the connection failed.
    #[inline]
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let outbox = &mut self.outbox;
        while outbox.sent_bytes < outbox.bytes.len() {
            match send(&self.socket, &outbox.bytes[outbox.sent_bytes..], SendFlags::NOSIGNAL) {
                Ok(bytes) => outbox.sent_bytes += bytes,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        outbox.bytes.clear();
        outbox.sent_bytes = 0;
        Ok(())
    }

    /// Receives once.
    ///
    /// Errors: the server closed, or the connection failed.
    #[inline]
    pub(crate) fn receive(&mut self) -> io::Result<Received> {
        assert!(self.parsed <= self.filled && self.filled <= self.incoming.len(), "I1");
        if self.parsed == self.filled {
            (self.parsed, self.filled) = (0, 0);
        }
        if self.filled == self.incoming.len() || self.parsed + self.need_bytes > self.incoming.len()
        {
            self.make_room();
        }
        loop {
            let free = &mut self.incoming[self.filled..];
            let free_bytes = free.len();
            match recv(&self.socket, free, RecvFlags::empty()) {
                Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((bytes, _)) => {
                    self.filled += bytes;
                    let is_full = bytes == free_bytes;
                    return Ok(if is_full { Received::More } else { Received::Drained });
                }
                Err(Errno::AGAIN) => return Ok(Received::Nothing),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Moves the unread bytes to the front, and grows the buffer if that is not enough.
    #[cold]
    fn make_room(&mut self) {
        self.incoming.copy_within(self.parsed..self.filled, 0);
        self.filled -= self.parsed;
        self.parsed = 0;
        let wanted_bytes = self.need_bytes.max(self.filled + 1);
        if wanted_bytes > self.incoming.len() {
            self.incoming.resize(wanted_bytes.next_power_of_two(), 0);
        }
    }

    /// The received and unread bytes, together with the fields that change while they are read.
    #[inline]
    pub(crate) fn unread(&mut self) -> Unread<'_> {
        Unread {
            protocol: self.protocol,
            bytes: &self.incoming[self.parsed..self.filled],
            outbox: &mut self.outbox,
            pending: &mut self.pending,
            progress: &mut self.progress,
        }
    }

    /// Marks bytes as read; `need_bytes` is the number of bytes that the next scan needs.
    #[inline]
    pub(crate) fn consume(&mut self, bytes: usize, need_bytes: usize) {
        self.parsed += bytes;
        self.need_bytes = need_bytes;
        assert!(self.parsed <= self.filled, "I1");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_with_and_without_a_port() {
        let tcp = |text: &str| Address::Tcp(text.parse().expect("an address"));
        assert_eq!(Address::resolve("127.0.0.1"), Ok(tcp("127.0.0.1:11211")));
        assert_eq!(Address::resolve("127.0.0.1:5"), Ok(tcp("127.0.0.1:5")));
        assert_eq!(Address::resolve("::1"), Ok(tcp("[::1]:11211")));
        assert_eq!(Address::resolve("[::1]:7"), Ok(tcp("[::1]:7")));
        assert_eq!(Address::resolve("/run/k.sock"), Ok(Address::Unix("/run/k.sock".into())));
        assert!(Address::resolve("127.0.0.1:99999").is_err());
        assert!(Address::resolve("").is_err());
    }
}

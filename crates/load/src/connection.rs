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

use crate::answer::{Progress, Step, read_answer};
use crate::books::Books;
use crate::link::{Link, Received, Standing};
use crate::protocol::Protocol;
use crate::request::{Kind, Next, Outbox, Pending, Source};

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

/// A connection and its state.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: OwnedFd,
    /// Formatted requests that are not sent yet.
    outbox: Outbox,
    /// Requests in flight, the oldest first.
    pending: VecDeque<Pending>,
    /// What was read of the answer to the oldest request.
    progress: Progress,
    /// The protocol of the requests.
    protocol: Protocol,
    /// Number of unread bytes needed before the next scan can succeed.
    need_bytes: usize,
    standing: Standing,
    incoming: Vec<u8>,
    parsed: usize,
    filled: usize,
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
            standing: Standing::NEW,
            incoming: vec![0; INCOMING_BYTES_START],
            parsed: 0,
            filled: 0,
        })
    }

    /// Receives once.
    ///
    /// Errors: the server closed, or the connection failed.
    #[inline]
    fn receive(&mut self) -> io::Result<Received> {
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

    /// Reads all complete answers in the receive buffer.
    #[inline]
    fn read(&mut self, source: &mut impl Source, books: &mut Books) -> io::Result<()> {
        let Self { outbox, pending, progress, protocol, .. } = self;
        let unread = &self.incoming[self.parsed..self.filled];
        if unread.len() < self.need_bytes {
            return Ok(());
        }
        let mut place = 0;
        self.need_bytes = loop {
            let rest = &unread[place..];
            let Some(request) = pending.front() else {
                if rest.is_empty() {
                    break 1;
                }
                return Err(garbled(rest));
            };
            let (asked, errors) = (&mut outbox.asked, &mut books.tally.errors);
            let (consumed, step) =
                read_answer(*protocol, rest, request, progress, source, asked, errors);
            place += consumed;
            let outcome = match step {
                Step::NeedMore { bytes } => break bytes,
                Step::Garbled => return Err(garbled(&unread[place..])),
                Step::Answered(outcome) => outcome,
            };
            let request = pending.pop_front().expect("matched above");
            if request.kind == Kind::Get {
                outbox.asked.finish(request.keys);
            }
            books.answered(&request, outcome);
            if let Some(next) = source.answered(&request, outcome, books.now_ns, outbox) {
                pending.push_back(next);
                books.begin(books.now_ns);
            }
        };
        self.parsed += place;
        assert!(self.parsed <= self.filled, "I1");
        Ok(())
    }
}

impl Link for Connection {
    fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    #[inline]
    fn standing(&mut self) -> &mut Standing {
        &mut self.standing
    }

    #[inline]
    fn in_flight(&self) -> usize {
        self.pending.len()
    }

    #[inline]
    fn take(&mut self, source: &mut impl Source, now_ns: u64) -> Next {
        let next = source.next(now_ns, &mut self.outbox);
        if let Next::Request(pending) = next {
            self.pending.push_back(pending);
        }
        next
    }

    #[inline]
    fn flush(&mut self) -> io::Result<()> {
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

    #[inline]
    fn serve(&mut self, source: &mut impl Source, books: &mut Books) -> io::Result<Received> {
        let received = self.receive()?;
        if received != Received::Nothing {
            books.read_clock();
            self.read(source, books)?;
        }
        Ok(received)
    }

    #[inline]
    fn expire(&mut self, _: &mut impl Source, _: &mut Books) -> bool {
        false
    }

    fn abandon(&mut self) -> Vec<Pending> {
        self.outbox.bytes.clear();
        self.outbox.sent_bytes = 0;
        std::mem::take(&mut self.pending).into()
    }
}

#[cold]
fn garbled(input: &[u8]) -> io::Error {
    let start = &input[..input.len().min(60)];
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("not a reply to the request: \"{}\"", start.escape_ascii()),
    )
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

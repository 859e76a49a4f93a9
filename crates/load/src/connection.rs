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
use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::address::{Address, Target};
use crate::answer::{Progress, Step, read_answer};
use crate::books::Books;
use crate::link::{Link, LinkState, Received};
use crate::protocol::Protocol;
use crate::request::{Kind, Next, Outbox, Pending, Source};
use crate::tls::Session;

/// Initial size of a receive buffer; it doubles whenever a reply does not fit.
const INCOMING_BYTES_START: usize = 16 << 10;
/// Timeout for connecting.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// The socket of a connection, and its encryption.
#[derive(Debug)]
struct Channel {
    socket: OwnedFd,
    session: Option<Box<Session>>,
}

impl Channel {
    #[inline]
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.session {
            None => Ok(recv(&self.socket, buffer, RecvFlags::empty())?.1),
            Some(session) => session.receive(&self.socket, buffer),
        }
    }

    #[inline]
    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.session {
            None => Ok(send(&self.socket, bytes, SendFlags::NOSIGNAL)?),
            Some(session) => session.send(&self.socket, bytes),
        }
    }

    /// Whether bytes that were sent wait in the session.
    #[inline]
    fn holds_bytes(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.wants_write())
    }
}

/// A connection and its state.
#[derive(Debug)]
pub(crate) struct Connection {
    channel: Channel,
    /// Formatted requests that are not sent yet.
    outbox: Outbox,
    /// Requests in flight, the oldest first.
    pending: VecDeque<Pending>,
    /// The part of the answer to the oldest request that was read.
    progress: Progress,
    /// The protocol of the requests.
    protocol: Protocol,
    /// Number of unread bytes needed before the next scan can succeed.
    need_bytes: usize,
    state: LinkState,
    incoming: Vec<u8>,
    parsed: usize,
    filled: usize,
}

impl Connection {
    /// Connects within at most 5 s, makes the handshake of TLS if wanted, and makes the socket
    /// non-blocking (I2).
    ///
    /// Errors: those of the kernel; the handshake failed.
    pub(crate) fn open(target: &Target, protocol: Protocol) -> io::Result<Self> {
        let (socket, session): (OwnedFd, _) = match &target.address {
            Address::Tcp(address) => {
                let mut stream = TcpStream::connect_timeout(address, CONNECT_PATIENCE)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(CONNECT_PATIENCE))?;
                let session = match &target.security {
                    None => None,
                    Some(security) => Some(Box::new(security.handshake(&mut stream)?)),
                };
                stream.set_nonblocking(true)?;
                (stream.into(), session)
            }
            Address::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_nonblocking(true)?;
                (stream.into(), None)
            }
        };
        Ok(Self {
            channel: Channel { socket, session },
            outbox: Outbox::default(),
            pending: VecDeque::new(),
            progress: Progress::default(),
            protocol,
            need_bytes: 1,
            state: LinkState::NEW,
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
            match self.channel.receive(free) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => {
                    self.filled += bytes;
                    // A session may hold further bytes.
                    let is_full = bytes == free_bytes || self.channel.session.is_some();
                    return Ok(if is_full { Received::More } else { Received::Drained });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Received::Nothing);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
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
        &self.channel.socket
    }

    #[inline]
    fn state(&mut self) -> &mut LinkState {
        &mut self.state
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
        let Self { outbox, channel, .. } = self;
        while outbox.sent_bytes < outbox.bytes.len() || channel.holds_bytes() {
            match channel.send(&outbox.bytes[outbox.sent_bytes..]) {
                Ok(bytes) => outbox.sent_bytes += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
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

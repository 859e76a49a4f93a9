//! The client of a case: sends pieces, receives a reply, and checks whether the connection is open.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use kachel_testkit::{Address, Client, Server};

use crate::cases::Case;
use crate::matching::{Match, compare};
use crate::unread::{Diagnosis, sent_and_not_taken};

/// How long a reply, an end or a read by the server may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// How long nothing must come where no reply is owed: the one thing that cannot be waited for.
const QUIET: Duration = Duration::from_millis(10);

/// Asked after a reply: what comes then shows that the reply was whole and the connection is open.
const PROBE: (&[u8], &[u8]) = (b"mn\r\n", b"MN\r\n");
/// The same in the binary protocol: `NOOP`.
const BINARY_PROBE: (&[u8], &[u8]) = (
    b"\x80\x0a\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
    b"\x81\x0a\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
);

/// A connection to the server under test.
struct Connection {
    client: Client,
    /// Of TCP: the server's end, ours, and the source of what the server has read.
    ends: Option<(SocketAddr, SocketAddr, Diagnosis)>,
}

impl Connection {
    fn new(server: &Server, patience: Duration) -> Self {
        let client = server.connect();
        client.set_patience(patience);
        let ends = match server.address {
            // A tunnel has read what its socket does not hold any more. The server may not have,
            // but each piece is a record of its own.
            Address::Tcp(_) if server.has_tls() => None,
            Address::Tcp(address) => {
                let ours = rustix::net::getsockname(client.socket()).unwrap();
                Some((address, ours.try_into().unwrap(), Diagnosis::new()))
            }
            Address::Unix(_) => None,
        };
        Self { client, ends }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.client.socket().as_fd()
    }

    /// Sends `bytes`; `false` when the server has closed.
    fn send(&mut self, bytes: &[u8]) -> Result<bool, String> {
        match self.client.socket().write_all(bytes) {
            Ok(()) => Ok(true),
            Err(error) if is_closed(&error) => Ok(false),
            Err(error) => Err(format!("sending: {error}")),
        }
    }

    /// Waits until the server has read all that was sent, or has closed.
    fn wait_until_read(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        let mut looks = 0u32;
        loop {
            // In this order: what our socket no longer holds has reached the other one.
            let taken = sent_and_not_taken(self.fd()) == 0;
            let unread = self
                .ends
                .as_mut()
                .map_or(0, |(server, client, diagnosis)| diagnosis.unread(*server, *client));
            if (taken && unread == 0) || has_ended(self.fd()) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err("the server does not read".to_owned());
            }
            looks += 1;
            if looks > 10 {
                std::thread::sleep(Duration::from_micros(20));
            } else {
                std::thread::yield_now();
            }
        }
    }

    /// Receives what has come, at least a byte; `None` when the server has closed.
    fn receive(&mut self, received: &mut Vec<u8>) -> Result<Option<()>, String> {
        let mut buffer = [0; 65536];
        match self.client.socket().read(&mut buffer) {
            Ok(0) => Ok(None),
            Ok(bytes) => {
                received.extend_from_slice(&buffer[..bytes]);
                Ok(Some(()))
            }
            Err(error) if is_closed(&error) => Ok(None),
            Err(error) => Err(format!("{error}, received {}", shown(received))),
        }
    }

    /// Nothing comes for a while, and the server has not closed.
    fn expect_quiet(&mut self) -> Result<(), String> {
        self.client.set_patience(QUIET);
        match self.client.socket().read(&mut [0; 64]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            Ok(0) => Err("closed".to_owned()),
            other => Err(format!("not quiet: {other:?}")),
        }
    }
}

/// Whether the other side has ended the connection; takes nothing from it.
fn has_ended(socket: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let ended = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    let mut asked = [PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
    poll(&mut asked, Some(&Timespec::default())).unwrap();
    asked[0].revents().intersects(ended)
}

fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
}

/// Bytes for a person, shortened.
fn shown(bytes: &[u8]) -> String {
    let end = bytes.len().min(200);
    let more =
        if end < bytes.len() { format!(".. ({} bytes)", bytes.len()) } else { String::new() };
    format!("\"{}\"{more}", bytes[..end].escape_ascii())
}

/// Carries out a case over a new connection, its input cut into pieces of `lengths`; no single wait
/// for bytes or for the end is longer than `patience`.
///
/// Errors: what was answered that should not have been, or the other way round.
pub(crate) fn run(
    server: &Server,
    case: &Case,
    lengths: &[usize],
    patience: Duration,
) -> Result<(), String> {
    let mut connection = Connection::new(server, patience);
    let mut rest = case.input.as_slice();
    for (index, &length) in lengths.iter().enumerate() {
        let (piece, after) = rest.split_at(length);
        rest = after;
        if !connection.send(piece)? {
            break;
        }
        if index + 1 < lengths.len() {
            connection.wait_until_read()?;
        }
    }
    let reply = case.reply.as_deref().unwrap_or_default();
    if !case.stays_open {
        return expect_end(&mut connection, reply);
    }
    let mut received = Vec::new();
    let end = loop {
        match compare(reply, &received) {
            Match::Whole(end) => break end,
            Match::Beginning => {}
            Match::Differs(at) => return Err(differs(reply, &received, at)),
        }
        if connection.receive(&mut received)?.is_none() {
            return Err(format!("closed after {}, not {}", shown(&received), shown(reply)));
        }
    };
    received.drain(..end);
    if !case.answers_more && received.is_empty() {
        connection.wait_until_read()?;
        return connection.expect_quiet();
    }
    let (probe, probe_reply) = if case.input.starts_with(b"\x80") { BINARY_PROBE } else { PROBE };
    if !connection.send(probe)? {
        return Err("closed, not open".to_owned());
    }
    while compare(probe_reply, &received) == Match::Beginning {
        if connection.receive(&mut received)?.is_none() {
            return Err("closed, not open".to_owned());
        }
    }
    if received != probe_reply {
        return Err(format!("after the reply came {}", shown(&received)));
    }
    Ok(())
}

/// The reply comes, then the end of the connection.
fn expect_end(connection: &mut Connection, reply: &[u8]) -> Result<(), String> {
    let mut received = Vec::new();
    // No probe: it would be the end of a line that the server is to close on without one.
    while connection.receive(&mut received)?.is_some() {
        if let Match::Differs(at) = compare(reply, &received) {
            return Err(differs(reply, &received, at));
        }
    }
    match compare(reply, &received) {
        Match::Whole(end) if end == received.len() => Ok(()),
        _ => Err(format!("closed after {}, not {}", shown(&received), shown(reply))),
    }
}

fn differs(reply: &[u8], received: &[u8], at: usize) -> String {
    let from = at.saturating_sub(20);
    let expected = &reply[from.min(reply.len())..];
    format!("{} at byte {at}, not {}", shown(&received[from..]), shown(expected))
}

/// Stores the items that the cases rely on.
pub(crate) fn set_up(server: &Server, setup: &[u8]) {
    let mut client = server.connect();
    client.send(setup);
    let stored = client.read_lines(5);
    assert_eq!(stored, b"STORED\r\n".repeat(5), "{}", shown(&stored));
}

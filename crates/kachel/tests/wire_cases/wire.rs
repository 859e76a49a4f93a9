//! The client's side of a case: pieces out, a reply in, and whether the connection stands.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::cases::Case;
use crate::matching::{Match, compare};
use crate::server::Server;
use crate::unread::{Diagnosis, sent_and_not_taken};

/// How long a reply, an end or a read by the server may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// How long nothing must come where no reply is owed: the one thing that cannot be waited for.
const QUIET: Duration = Duration::from_millis(10);

/// Asked after a reply: what comes then shows that the reply was whole and the connection is open.
const PROBE: &[u8] = b"mn\r\n";
const PROBE_REPLY: &[u8] = b"MN\r\n";

trait Stream: Read + Write + AsFd {
    fn patience(&self, time: Duration) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn patience(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))
    }
}

impl Stream for UnixStream {
    fn patience(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))
    }
}

/// A connection to the server under test.
pub(crate) struct Connection {
    stream: Box<dyn Stream>,
    /// Of TCP: the server's end, ours, and who knows what the server has read.
    ends: Option<(SocketAddr, SocketAddr, Diagnosis)>,
}

impl Connection {
    pub(crate) fn tcp(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        let ends = (stream.peer_addr().unwrap(), stream.local_addr().unwrap(), Diagnosis::new());
        Self { stream: Box::new(stream), ends: Some(ends) }
    }

    pub(crate) fn unix(stream: UnixStream) -> Self {
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self { stream: Box::new(stream), ends: None }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Sends `bytes`; `false` when the server has closed.
    fn send(&mut self, bytes: &[u8]) -> Result<bool, String> {
        match self.stream.write_all(bytes) {
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
        match self.stream.read(&mut buffer) {
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
        self.stream.patience(QUIET).unwrap();
        match self.stream.read(&mut [0; 64]) {
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
    let mut connection = server.connect();
    connection.stream.patience(patience).unwrap();
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
    if reply.is_empty() && !case.input.ends_with(b"\n") {
        // Half a line: no probe could be told from its other half.
        connection.wait_until_read()?;
        return connection.expect_quiet();
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
    if !connection.send(PROBE)? {
        return Err("closed, not open".to_owned());
    }
    while compare(PROBE_REPLY, &received) == Match::Beginning {
        if connection.receive(&mut received)?.is_none() {
            return Err("closed, not open".to_owned());
        }
    }
    if received != PROBE_REPLY {
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

/// Stores what the cases rely on.
pub(crate) fn set_up(server: &Server, setup: &[u8]) {
    let mut connection = server.connect();
    connection.stream.patience(PATIENCE).unwrap();
    assert!(connection.send(setup).unwrap());
    let stored = b"STORED\r\n".repeat(5);
    let mut received = Vec::new();
    while compare(&stored, &received) == Match::Beginning {
        connection.receive(&mut received).unwrap().expect("closed during set-up");
    }
    assert_eq!(received, stored, "{}", shown(&received));
}

/// The text that `stats` answers.
pub(crate) fn stats(server: &Server) -> String {
    let mut connection = server.connect();
    connection.stream.patience(PATIENCE).unwrap();
    assert!(connection.send(b"stats\r\n").unwrap());
    let mut received = Vec::new();
    while !received.ends_with(b"END\r\n") {
        connection.receive(&mut received).unwrap().expect("closed during stats");
    }
    String::from_utf8(received).unwrap()
}

//! Sets over TCP beside the gets, as a share of all requests.
//!
//! Upstream:   `drive` reports each get that it sends, and lets the setter work once a turn.
//! Downstream: a connection by the kernel's network stack; `versions`; the tally.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  At most `WAITING_MAX` sets have no reply yet. If more are due, no get is sent meanwhile,
//!   so the share of the sets holds.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddrV4, TcpStream};
use std::time::Duration;

use crate::packets::versions::Versions;
use crate::request::{Kind, Outcome, Pending};
use crate::tally::Tally;

/// The most sets without a reply.
const WAITING_MAX: usize = 64;
/// How long the server may take to accept the connection.
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// The longest line of a reply.
const LINE_BYTES_MAX: usize = 4_096;

/// A connection with sets.
#[derive(Debug)]
pub(crate) struct Setter {
    stream: TcpStream,
    /// Sets for each get.
    per_get: f64,
    /// Sets that are due.
    due: f64,
    outbox: Vec<u8>,
    waiting: VecDeque<Pending>,
    input: Vec<u8>,
}

impl Setter {
    /// Connects to the server. `share`: of the sets among all requests.
    ///
    /// Errors: the server does not accept the connection, as a message for the user.
    pub(crate) fn connect(server: SocketAddrV4, share: f64) -> Result<Self, String> {
        assert!(share > 0.0 && share < 1.0, "a share");
        let connect = || {
            let stream = TcpStream::connect_timeout(&server.into(), CONNECT_TIME)?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            Ok(stream)
        };
        let stream = connect().map_err(|error: std::io::Error| format!("{server}: {error}"))?;
        let (outbox, input, waiting) = (Vec::new(), Vec::new(), VecDeque::new());
        Ok(Self { stream, per_get: share / (1.0 - share), due: 0.0, outbox, waiting, input })
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// A get is sent.
    #[inline]
    pub(crate) fn note_get(&mut self) {
        self.due += self.per_get;
    }

    /// Whether sets are due that cannot be sent yet (I1).
    #[inline]
    pub(crate) fn is_behind(&self) -> bool {
        self.due >= 1.0 && self.waiting.len() == WAITING_MAX
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether bytes are left that the kernel did not take.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Sends the sets that are due, each of the key that `draw` gives, and reads replies. Returns
    /// whether there was anything to do.
    ///
    /// Errors: the connection failed, as a message for the user.
    pub(crate) fn step(
        &mut self,
        now_ns: u64,
        versions: &mut Versions,
        tally: &mut Tally,
        mut draw: impl FnMut() -> u64,
    ) -> Result<bool, String> {
        let mut is_any = false;
        while self.due >= 1.0 && self.waiting.len() < WAITING_MAX {
            self.due -= 1.0;
            self.put_set(draw(), versions, now_ns);
            is_any = true;
        }
        assert!(self.waiting.len() <= WAITING_MAX, "I1");
        let moved = self.write().and_then(|()| self.read());
        is_any |= moved.map_err(|error| format!("the connection for sets: {error}"))?;
        self.read_replies(versions, tally, now_ns)?;
        Ok(is_any)
    }

    fn put_set(&mut self, number: u64, versions: &mut Versions, now_ns: u64) {
        let keys = versions.keys();
        let bytes = keys.value_bytes(keys.stream_seed(number));
        self.outbox.extend_from_slice(b"set ");
        keys.put_key(number, &mut self.outbox);
        self.outbox.extend_from_slice(format!(" 0 0 {bytes}\r\n").as_bytes());
        versions.put_next(number, &mut self.outbox);
        self.outbox.extend_from_slice(b"\r\n");
        self.waiting.push_back(Pending::due(Kind::Set, 1, number, now_ns, now_ns));
    }

    fn write(&mut self) -> std::io::Result<()> {
        while !self.outbox.is_empty() {
            match self.stream.write(&self.outbox) {
                Ok(bytes) => drop(self.outbox.drain(..bytes)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Receives what there is. Returns whether there was anything.
    fn read(&mut self) -> std::io::Result<bool> {
        if self.waiting.is_empty() {
            return Ok(false);
        }
        let mut bytes = [0; LINE_BYTES_MAX];
        match self.stream.read(&mut bytes) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                self.input.extend_from_slice(&bytes[..count]);
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn read_replies(
        &mut self,
        versions: &mut Versions,
        tally: &mut Tally,
        now_ns: u64,
    ) -> Result<(), String> {
        let mut start = 0;
        while let Some(end) = self.input[start..].windows(2).position(|two| two == b"\r\n") {
            let line = &self.input[start..start + end];
            start += end + 2;
            let set = self.waiting.pop_front().ok_or("a reply without a set")?;
            let outcome = match line {
                b"STORED" => Outcome::Done,
                _ => {
                    tally.errors.refused += 1;
                    tally.errors.note(|| format!("a set: {}", line.escape_ascii()));
                    Outcome::Failed
                }
            };
            versions.answer(set.token, outcome == Outcome::Done);
            tally.record(&set, outcome, now_ns);
        }
        self.input.drain(..start);
        match self.input.len() {
            0..LINE_BYTES_MAX => Ok(()),
            _ => Err("the reply to a set has no end of its line".into()),
        }
    }

    /// Takes the sets that have no reply.
    pub(crate) fn abandon(&mut self) -> Vec<Pending> {
        self.waiting.drain(..).collect()
    }
}

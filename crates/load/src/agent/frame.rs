//! One connection between the leader and an agent: frames in, frames out, and no wait without end.
//!
//! Upstream:   `leader` and `mod` send and await messages.
//! Downstream: TCP.
//!
//! ```text
//! frame:  length of the text, 4 bytes, most significant first | text (JSON, see `message`)
//! ```
//! While a machine waits or measures, it sends `alive` once a second. A machine from which nothing
//! has come for `SILENCE` is given up, so a machine that lost its power or its network ends the
//! measurement, as one that closed its connection does at once.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  A frame longer than the limit is refused by its length, before memory is used for it.
//! - I2  Every wait ends: by a message, by a closed connection, after a time without any byte, or,
//!   for the first messages, after a time whatever comes.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use thiserror::Error;

use super::message::Message;

/// The longest text of a frame. A result has four histograms of at most 100 KB.
const FRAME_BYTES_MAX: usize = 8 << 20;
/// The longest text before the two machines have greeted each other.
const GREETING_BYTES_MAX: usize = 4 << 10;
/// How often a machine shows that it is there.
const BEAT: Duration = Duration::from_secs(1);
/// A machine that sends nothing for this time is given up.
const SILENCE: Duration = Duration::from_secs(30);
/// One wait for bytes; between two of them, the machine shows that it is there.
const WAIT: Duration = Duration::from_millis(250);
/// The shortest wait that a socket can be told.
const WAIT_MIN: Duration = Duration::from_micros(1);
const LENGTH_BYTES: usize = 4;
const CHUNK_BYTES: usize = 16 << 10;

/// A connection that is of no use any more.
#[derive(Debug, Error)]
pub(crate) enum Broken {
    /// By the other machine.
    #[error("it closed the connection")]
    Closed,
    /// Nothing came.
    #[error("it sent nothing for {0} s")]
    Silent(u64),
    /// By the kernel.
    #[error("{0}")]
    Failed(#[from] std::io::Error),
    /// The bytes are no frame of the protocol.
    #[error("it does not speak the agents' protocol: {0}")]
    Garbled(String),
}

/// The connection.
#[derive(Debug)]
pub(crate) struct Wire {
    stream: TcpStream,
    received: Vec<u8>,
    bytes_max: usize,
    heard: Instant,
    sent: Instant,
}

impl Wire {
    /// A new connection, on which both machines have yet to greet each other.
    ///
    /// Errors: the kernel refuses an option of the socket.
    pub(crate) fn new(stream: TcpStream) -> std::io::Result<Self> {
        // A round trip measures the network, not the kernel's wait for more to send.
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(SILENCE))?;
        let now = Instant::now();
        let (received, bytes_max) = (Vec::new(), GREETING_BYTES_MAX);
        Ok(Self { stream, received, bytes_max, heard: now, sent: now })
    }

    /// Both machines have greeted each other.
    pub(crate) fn trust(&mut self) {
        self.bytes_max = FRAME_BYTES_MAX;
    }

    /// Sends a message; waits until the kernel has taken it.
    ///
    /// Errors: the connection is broken.
    pub(crate) fn send(&mut self, message: &Message) -> Result<(), Broken> {
        let text = serde_json::to_vec(message).expect("a message is plain data");
        if text.len() > FRAME_BYTES_MAX {
            return Err(Broken::Garbled(format!("a message of {} bytes", text.len())));
        }
        let mut frame = (text.len() as u32).to_be_bytes().to_vec();
        frame.extend(text);
        self.stream.write_all(&frame)?;
        self.sent = Instant::now();
        Ok(())
    }

    /// Waits for a message for at most this time.
    ///
    /// Errors: the connection is broken.
    pub(crate) fn poll(&mut self, wait: Duration) -> Result<Option<Message>, Broken> {
        let until = Instant::now() + wait;
        let mut is_over = false;
        loop {
            while let Some(message) = self.take()? {
                if !matches!(message, Message::Alive) {
                    return Ok(Some(message));
                }
            }
            if self.sent.elapsed() >= BEAT {
                self.send(&Message::Alive)?;
            }
            if is_over {
                return Ok(None); // I2
            }
            let left = until.saturating_duration_since(Instant::now());
            is_over = left.is_zero();
            self.receive(left)?;
        }
    }

    /// Waits for a message (I2).
    ///
    /// Errors: the connection is broken.
    pub(crate) fn next(&mut self) -> Result<Message, Broken> {
        loop {
            if let Some(message) = self.poll(WAIT)? {
                return Ok(message);
            }
        }
    }

    /// Waits for a message for at most this time, whatever else comes (I2).
    ///
    /// Errors: the connection is broken, or the time is over.
    pub(crate) fn next_within(&mut self, limit: Duration) -> Result<Message, Broken> {
        self.poll(limit)?.ok_or(Broken::Silent(limit.as_secs()))
    }

    /// Receives once, if anything comes within this time.
    fn receive(&mut self, wait: Duration) -> Result<(), Broken> {
        let mut chunk = [0; CHUNK_BYTES];
        self.stream.set_read_timeout(Some(wait.clamp(WAIT_MIN, WAIT)))?;
        match self.stream.read(&mut chunk) {
            Ok(0) => Err(Broken::Closed),
            Ok(count) => {
                self.received.extend_from_slice(&chunk[..count]);
                self.heard = Instant::now();
                Ok(())
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {
                    match self.heard.elapsed() > SILENCE {
                        true => Err(Broken::Silent(SILENCE.as_secs())),
                        false => Ok(()),
                    }
                }
                ErrorKind::ConnectionReset => Err(Broken::Closed),
                _ => Err(error.into()),
            },
        }
    }

    /// Takes a message out of the bytes received.
    fn take(&mut self) -> Result<Option<Message>, Broken> {
        let Some((length, rest)) = self.received.split_first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let bytes = u32::from_be_bytes(*length) as usize;
        if bytes > self.bytes_max {
            return Err(Broken::Garbled(format!("a frame of {bytes} bytes"))); // I1
        }
        let Some(text) = rest.get(..bytes) else { return Ok(None) };
        let message =
            serde_json::from_slice(text).map_err(|error| Broken::Garbled(error.to_string()))?;
        self.received.drain(..LENGTH_BYTES + bytes);
        assert!(self.received.len() <= self.bytes_max + LENGTH_BYTES + CHUNK_BYTES, "I1");
        Ok(Some(message))
    }
}

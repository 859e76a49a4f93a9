//! One TLS connection: records in, plain bytes out, and the other way round.
//!
//! Upstream:   `handshakes` until the handshake is complete, then `layer`.
//! Downstream: rustls. This is the only file that uses its connections.
//!
//! ```text
//! received bytes --> partial | received --> process --> plain bytes, and records to send
//!
//! partial:  whole records of a handshake message that is not whole | beginning of a record
//!           0 ..................................................seen ...................len
//! ```
//!
//! rustls keeps positions in `partial` and no bytes, so all records of a message are given to it
//! with each call, their padding included. rustls limits the message, but not its padding: the
//! limits of bytes are ours.
//!
//! Invariants, cited by number where they are asserted:
//! - S1  `partial` is whole records that rustls has seen and still needs, then the beginning of one
//!   record. So a record is given to rustls once it is whole.
//! - S2  `partial` has memory for at most `HANDSHAKE_BYTES_MAX` bytes during the handshake, and for
//!   `RECORD_BYTES_MAX` after it, of which at most `LATE_MESSAGE_BYTES_MAX` are whole records. It
//!   has no memory while it is empty. `Counts::kept_bytes` includes it.
//! - S3  After an error nothing more is received or encrypted, and nothing is kept.
//! - S4  Each received byte is copied at most `COPIES_MAX` times, however the bytes arrive.

use std::fmt;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};

use crate::counts::{Counts, Kept};
use crate::limits::{
    HANDSHAKE_BYTES_MAX, LATE_MESSAGE_BYTES_MAX, RECORD_BODY_BYTES_MAX, RECORD_BYTES_MAX,
    RECORD_HEADER_BYTES, RECORD_PLAIN_BYTES_MAX,
};

/// The types of records (RFC 8446, 5.1).
const RECORD_TYPES: std::ops::RangeInclusive<u8> = 20..=23;
/// The first byte of the version in a record, of all versions of TLS.
const RECORD_MAJOR_VERSION: u8 = 3;
/// How often a received byte is copied here, at most (S4). A byte in the first record of a message
/// of the handshake is copied to `partial`, from there to the memory of the call, and back to
/// `partial`. `partial` doubles when it grows, which is at most two more copies of each byte,
/// before that record is whole and again after it. One more, if it began behind another message.
pub(crate) const COPIES_MAX: u64 = 8;

/// The client has broken the protocol, or the keys of the connection are spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken;

/// The memory that one call of [`Session::receive`] uses. It is reused for all connections of a
/// thread.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// The records that are processed: at most what one session keeps, and one receive.
    records: Vec<u8>,
    /// Records to send to the client: messages of the handshake, answers to key updates, alerts.
    pub(crate) to_send: Vec<u8>,
}

/// A TLS connection without its socket.
pub(crate) struct Session {
    connection: UnbufferedServerConnection,
    /// Received bytes that make no whole record or message yet (S1).
    partial: Vec<u8>,
    /// Bytes of the whole records at the beginning of `partial`.
    seen: usize,
    /// The bytes that this session keeps, for `stats`.
    kept: Kept,
    received_bytes: u64,
    copied_bytes: u64,
    is_broken: bool,
    is_ended: bool,
}

impl Session {
    /// A connection whose handshake has not begun.
    ///
    /// Errors: out of random numbers.
    pub(crate) fn new(config: Arc<ServerConfig>, counts: &Arc<Counts>) -> Result<Self, Broken> {
        let connection = UnbufferedServerConnection::new(config).map_err(|_| Broken)?;
        Ok(Self {
            connection,
            partial: Vec::new(),
            seen: 0,
            kept: Kept::nothing(Arc::clone(counts)),
            received_bytes: 0,
            copied_bytes: 0,
            is_broken: false,
            is_ended: false,
        })
    }

    /// Whether the handshake is complete.
    pub(crate) fn is_established(&self) -> bool {
        !self.connection.is_handshaking()
    }

    /// Whether the client has said that it sends nothing more (`close_notify`).
    pub(crate) const fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Bytes of memory for a record or a message that is not whole.
    #[cfg(test)]
    pub(crate) fn partial_bytes(&self) -> usize {
        self.partial.capacity()
    }

    /// Bytes that were received, and bytes that were copied for them.
    #[cfg(test)]
    pub(crate) const fn received_and_copied_bytes(&self) -> [u64; 2] {
        [self.received_bytes, self.copied_bytes]
    }

    /// Processes received bytes. Appends the plain bytes of whole records to `plain`, and puts the
    /// records to send to the client into `work.to_send`, which it empties first.
    ///
    /// Errors: the client has broken the protocol, or has sent more than a session keeps (S2). If
    /// rustls has an alert for it, it is in `work.to_send`. The plain bytes of earlier records are
    /// in `plain`.
    pub(crate) fn receive(
        &mut self,
        bytes: &[u8],
        plain: &mut Vec<u8>,
        work: &mut Work,
    ) -> Result<(), Broken> {
        debug_assert!(self.partial.capacity() == 0 || !self.partial.is_empty(), "S2");
        work.to_send.clear();
        if self.is_broken {
            return Err(Broken); // S3
        }
        if self.is_ended {
            return Ok(()); // RFC 8446, 6.1: what follows a close_notify is ignored.
        }
        self.received_bytes += bytes.len() as u64;
        let is_greedy = |session: &Self| {
            !session.is_established() && session.received_bytes > HANDSHAKE_BYTES_MAX as u64
        };
        let result = if is_greedy(self) {
            Err(Broken) // S2
        } else if is_short(&self.partial[self.seen..], bytes) {
            self.keep(bytes);
            Ok(())
        } else if self.seen > 0 {
            self.receive_behind_kept(bytes, plain, &mut work.to_send)
        } else {
            self.receive_records(bytes, plain, work)
        };
        let result = result.and_then(|()| self.check_kept());
        if result.is_err() {
            self.is_broken = true;
            (self.partial, self.seen) = (Vec::new(), 0); // S3
        }
        self.kept.set(self.partial.capacity());
        result
    }

    /// The most bytes that `partial` may keep now (S2).
    fn kept_bytes_max(&self) -> usize {
        if self.is_established() { RECORD_BYTES_MAX } else { HANDSHAKE_BYTES_MAX }
    }

    /// Refuses a client whose message needs more bytes than a session keeps (S2).
    fn check_kept(&self) -> Result<(), Broken> {
        debug_assert!(self.seen <= self.partial.len(), "S1");
        debug_assert!(self.copied_bytes <= COPIES_MAX * self.received_bytes, "S4");
        let is_late = self.is_established() && self.seen > LATE_MESSAGE_BYTES_MAX;
        if is_late || self.partial.len() > self.kept_bytes_max() {
            return Err(Broken);
        }
        debug_assert!(self.partial.capacity() <= self.kept_bytes_max(), "S2");
        Ok(())
    }

    /// Appends to `partial`. Its memory doubles, but only up to the limit (S2, S4).
    fn keep(&mut self, bytes: &[u8]) {
        let (kept, needed) = (self.partial.len(), self.partial.len() + bytes.len());
        if needed > self.partial.capacity() {
            let wanted = needed.max((2 * kept).min(self.kept_bytes_max()));
            self.partial.reserve_exact(wanted - kept);
            self.copied_bytes += kept as u64;
        }
        self.partial.extend_from_slice(bytes);
        self.copied_bytes += bytes.len() as u64;
    }

    /// Processes records that end a kept one, or follow nothing. They are copied to memory that all
    /// connections of a thread share.
    fn receive_records(
        &mut self,
        bytes: &[u8],
        plain: &mut Vec<u8>,
        work: &mut Work,
    ) -> Result<(), Broken> {
        let Work { records, to_send } = work;
        records.clear();
        records.extend_from_slice(&self.partial);
        records.extend_from_slice(bytes);
        self.copied_bytes += records.len() as u64;
        self.partial = Vec::new(); // S2
        let whole = whole_records_bytes(records);
        let processed = self.process(records, plain, to_send)?;
        self.seen = whole.saturating_sub(processed);
        self.keep(&records[processed..]);
        Ok(())
    }

    /// Processes records behind those that rustls has seen and still needs. They are processed
    /// where they are kept, so that the kept ones are not copied for each of them (S4).
    fn receive_behind_kept(
        &mut self,
        bytes: &[u8],
        plain: &mut Vec<u8>,
        to_send: &mut Vec<u8>,
    ) -> Result<(), Broken> {
        self.keep(bytes);
        // rustls has moved bytes of the message over the headers of the seen records.
        let whole = self.seen + whole_records_bytes(&self.partial[self.seen..]);
        let mut records = std::mem::take(&mut self.partial);
        let processed = self.process(&mut records, plain, to_send)?;
        self.seen = whole.saturating_sub(processed);
        if processed == 0 {
            self.partial = records;
        } else {
            self.keep(&records[processed..]);
        }
        Ok(())
    }

    /// Processes the records in `records`. Returns how many bytes are done with.
    fn process(
        &mut self,
        records: &mut [u8],
        plain: &mut Vec<u8>,
        to_send: &mut Vec<u8>,
    ) -> Result<usize, Broken> {
        let mut start = 0;
        loop {
            let rest = &mut records[start..];
            let UnbufferedStatus { mut discard, state } = self.connection.process_tls_records(rest);
            let goes_on = match state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(record) = traffic.next_record() {
                        let Ok(record) = record else { return Err(Broken) };
                        plain.extend_from_slice(record.payload);
                        discard += record.discard;
                    }
                    true
                }
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    encode(to_send, |room| data.encode(room))?;
                    true
                }
                Ok(ConnectionState::TransmitTlsData(data)) => {
                    data.done();
                    true
                }
                Ok(ConnectionState::PeerClosed) => {
                    self.is_ended = true;
                    true
                }
                // Early data is never offered to clients.
                Ok(ConnectionState::ReadEarlyData(_)) => return Err(Broken),
                // Waits for more bytes.
                Ok(_) => false,
                Err(_) => {
                    start += discard;
                    self.encode_alert(&mut records[start..], to_send);
                    return Err(Broken);
                }
            };
            start += discard;
            if !goes_on {
                return Ok(if self.is_ended { records.len() } else { start });
            }
        }
    }

    /// Appends the alert that rustls has for the client after an error, if there is one. rustls
    /// must not see the wrong record twice, so it is called only while it has something to send.
    fn encode_alert(&mut self, records: &mut [u8], to_send: &mut Vec<u8>) {
        while self.connection.wants_write() {
            let state = self.connection.process_tls_records(records).state;
            let Ok(ConnectionState::EncodeTlsData(mut data)) = state else { return };
            if encode(to_send, |room| data.encode(room)).is_err() {
                return;
            }
        }
    }

    /// Encrypts `plain` as one record to the beginning of `room`. Returns the bytes of the record.
    ///
    /// Errors: the keys are spent, or an earlier error has ended the connection.
    ///
    /// Panics: when `plain` is longer than [`RECORD_PLAIN_BYTES_MAX`].
    pub(crate) fn encrypt(&mut self, plain: &[u8], room: &mut [u8]) -> Result<usize, Broken> {
        assert!(plain.len() <= RECORD_PLAIN_BYTES_MAX, "one record");
        self.write(|traffic| traffic.encrypt(plain, room).map_err(|_| Broken))
    }

    /// Writes the record that says that we send nothing more to the beginning of `room`. Returns
    /// its bytes.
    ///
    /// Errors: as [`Self::encrypt`].
    pub(crate) fn end(&mut self, room: &mut [u8]) -> Result<usize, Broken> {
        self.write(|traffic| traffic.queue_close_notify(room).map_err(|_| Broken))
    }

    fn write(
        &mut self,
        write: impl FnOnce(&mut Writing<'_>) -> Result<usize, Broken>,
    ) -> Result<usize, Broken> {
        if self.is_broken {
            return Err(Broken); // S3
        }
        // Before it can write, rustls may report once that the client has ended its side.
        for _ in 0..2 {
            match self.connection.process_tls_records(&mut self.partial).state {
                Ok(ConnectionState::WriteTraffic(mut traffic)) => {
                    let written = write(&mut traffic);
                    self.is_broken = written.is_err();
                    return written;
                }
                Ok(ConnectionState::PeerClosed) => self.is_ended = true,
                _ => break,
            }
        }
        self.is_broken = true;
        Err(Broken)
    }
}

impl fmt::Debug for Session {
    /// Without the keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("is_established", &self.is_established())
            .field("partial", &self.partial.len())
            .finish_non_exhaustive()
    }
}

type Writing<'a> = rustls::unbuffered::WriteTraffic<'a, rustls::server::ServerConnectionData>;

/// Whether `partial` and `bytes` together are shorter than the record that their header announces.
/// Then there is nothing to decrypt yet, and they need not be moved. `false` if they begin no
/// record; rustls refuses them.
fn is_short(partial: &[u8], bytes: &[u8]) -> bool {
    let mut header = [0; RECORD_HEADER_BYTES];
    let begun = partial.iter().chain(bytes).zip(&mut header).map(|(byte, place)| *place = *byte);
    match begun.count() {
        0 => true,
        1 => RECORD_TYPES.contains(&header[0]),
        2..RECORD_HEADER_BYTES => is_record(header),
        _ => {
            is_record(header)
                && body_bytes(header) <= RECORD_BODY_BYTES_MAX
                && partial.len() + bytes.len() < RECORD_HEADER_BYTES + body_bytes(header)
        }
    }
}

/// Whether a record may begin with the first two bytes of `header`.
fn is_record(header: [u8; RECORD_HEADER_BYTES]) -> bool {
    RECORD_TYPES.contains(&header[0]) && header[1] == RECORD_MAJOR_VERSION
}

/// The bytes that `header` announces.
fn body_bytes([_kind, _major, _minor, high, low]: [u8; RECORD_HEADER_BYTES]) -> usize {
    usize::from(u16::from_be_bytes([high, low]))
}

/// Bytes of the whole records at the beginning of `records`. Cost: a step for each record.
fn whole_records_bytes(records: &[u8]) -> usize {
    let mut whole = 0;
    while let Some(header) = records[whole..].first_chunk() {
        let end = whole + RECORD_HEADER_BYTES + body_bytes(*header);
        if end > records.len() {
            break;
        }
        whole = end;
    }
    debug_assert!(whole <= records.len(), "S1");
    whole
}

/// Appends what `encode` writes to `to_send`, with the room that it asks for.
fn encode(
    to_send: &mut Vec<u8>,
    mut encode: impl FnMut(&mut [u8]) -> Result<usize, EncodeError>,
) -> Result<(), Broken> {
    let before = to_send.len();
    match encode(&mut []) {
        Ok(_) => Ok(()),
        Err(EncodeError::InsufficientSize(size)) => {
            to_send.resize(before + size.required_size, 0);
            let written = encode(&mut to_send[before..]).map_err(|_| Broken)?;
            to_send.truncate(before + written);
            Ok(())
        }
        Err(_) => Err(Broken),
    }
}

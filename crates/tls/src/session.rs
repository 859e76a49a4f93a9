//! One TLS connection: records in, plain bytes out, and the other way round.
//!
//! Upstream:   `handshakes` until the handshake is complete, then `layer`.
//! Downstream: rustls. This is the only file that uses its connections.
//!
//! ```text
//! received bytes --> partial | received --> process --> plain bytes, and records to send
//! ```
//!
//! Invariants, cited by number where they are asserted:
//! - S1  `partial` is the beginning of a record or of a handshake message. rustls has seen it, or
//!   it is shorter than the record that its header announces. It is given to rustls with each call,
//!   because rustls keeps positions in it and no bytes.
//! - S2  `partial` holds at most one record, or one handshake message, which rustls limits to 64
//!   KiB. It has no memory while it is empty.
//! - S3  After an error nothing more is received or encrypted.

use std::fmt;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};

use crate::limits::{RECORD_BODY_BYTES_MAX, RECORD_HEADER_BYTES, RECORD_PLAIN_BYTES_MAX};

/// The types of records (RFC 8446, 5.1).
const RECORD_TYPES: std::ops::RangeInclusive<u8> = 20..=23;
/// The first byte of the version in a record, of all versions of TLS.
const RECORD_MAJOR_VERSION: u8 = 3;

/// The client has broken the protocol, or the keys of the connection are spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken;

/// The memory that one call of [`Session::receive`] uses. It is reused for all connections of a
/// thread.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// The records that are processed.
    records: Vec<u8>,
    /// Records to send to the client: messages of the handshake, answers to key updates, alerts.
    pub(crate) to_send: Vec<u8>,
}

/// A TLS connection without its socket.
pub(crate) struct Session {
    connection: UnbufferedServerConnection,
    /// Received bytes that make no whole record yet (S1).
    partial: Vec<u8>,
    is_broken: bool,
    is_ended: bool,
}

impl Session {
    /// A connection whose handshake has not begun.
    ///
    /// Errors: out of random numbers.
    pub(crate) fn new(config: Arc<ServerConfig>) -> Result<Self, Broken> {
        let connection = UnbufferedServerConnection::new(config).map_err(|_| Broken)?;
        Ok(Self { connection, partial: Vec::new(), is_broken: false, is_ended: false })
    }

    /// Whether the handshake is complete.
    pub(crate) fn is_established(&self) -> bool {
        !self.connection.is_handshaking()
    }

    /// Whether the client has said that it sends nothing more (`close_notify`).
    pub(crate) const fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Bytes of memory for a record that is not whole.
    #[cfg(test)]
    pub(crate) fn partial_bytes(&self) -> usize {
        self.partial.capacity()
    }

    /// Processes received bytes. Appends the plain bytes of whole records to `plain`, and puts the
    /// records to send to the client into `work.to_send`, which it empties first.
    ///
    /// Errors: the client has broken the protocol. An alert for it is in `work.to_send`, and the
    /// plain bytes of earlier records are in `plain`.
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
        if self.is_established() && is_short(&self.partial, bytes) {
            self.partial.extend_from_slice(bytes);
            return Ok(());
        }
        let Work { records, to_send } = work;
        records.clear();
        records.append(&mut self.partial);
        self.partial = Vec::new(); // S2
        records.extend_from_slice(bytes);
        let result = self.process(records, plain, to_send);
        match result {
            Ok(processed) if processed < records.len() => {
                self.partial.extend_from_slice(&records[processed..]); // S1
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(Broken) => {
                self.is_broken = true;
                Err(Broken)
            }
        }
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
    if begun.count() < RECORD_HEADER_BYTES {
        return false;
    }
    let [kind, major, _minor, high, low] = header;
    let body = usize::from(u16::from_be_bytes([high, low]));
    let is_record = RECORD_TYPES.contains(&kind) && major == RECORD_MAJOR_VERSION;
    is_record
        && body <= RECORD_BODY_BYTES_MAX
        && partial.len() + bytes.len() < RECORD_HEADER_BYTES + body
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

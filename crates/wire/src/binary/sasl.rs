//! The requests of a client that must log in by SASL: those that are answered before the login.
//!
//! Upstream:   `shard`, for a connection that has not logged in, and for a login that follows an
//!             earlier one.
//! Downstream: `shard` has `net` check the messages; [`BinaryHead`] formats the replies.
//!
//! Invariants:
//! - I1  Only logins and `VERSION` are understood here, so no other request of a client that has
//!   not logged in is ever parsed.
//! - I2  Each request gets one reply, also one that is refused. A refusal skips the whole body as
//!   the header announces it, or closes the connection.
//! - I3  At most `REQUEST_BYTES_MAX` bytes are awaited for a request, whatever its header
//!   announces.
//!
//! Source: memcached's protocol_binary.txt, the source of 1.6.45, and the replies of 1.6.18.

use super::{HEADER_BYTES, Header, REQUEST_MAGIC, opcode};
use crate::format::Sink;
use crate::refusal::BinaryRefusal;
use crate::reply::BinaryStatus;
use crate::request::{BinaryHead, KEY_BYTES_MAX};

/// Bytes of the longest name of a mechanism. 1.6.45 refuses longer ones, and stays connected.
pub const MECHANISM_BYTES_MAX: usize = 32;
/// Bytes of the longest message of a client. 1.6.45 takes 512 KiB, but no password over 252 bytes.
pub const SASL_MESSAGE_BYTES_MAX: usize = 1024;
/// Bytes of the longest request.
const REQUEST_BYTES_MAX: usize = HEADER_BYTES + MECHANISM_BYTES_MAX + SASL_MESSAGE_BYTES_MAX;

/// A request that is answered before the login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaslRequest<'b> {
    /// Asks for the version.
    Version,
    /// Asks for the names of the mechanisms.
    ListMechanisms,
    /// The first message of an exchange.
    Begin {
        /// The name of the mechanism, at most [`MECHANISM_BYTES_MAX`] bytes.
        mechanism: &'b [u8],
        /// The message of the client, at most [`SASL_MESSAGE_BYTES_MAX`] bytes.
        message: &'b [u8],
    },
    /// The next message of the exchange. 1.6.45 ignores its mechanism.
    Step {
        /// The message of the client, at most [`SASL_MESSAGE_BYTES_MAX`] bytes.
        message: &'b [u8],
    },
    /// A message that is too long for any exchange. It is skipped.
    TooLong,
}

/// The front of the input of a client that logs in by SASL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaslParsed<'b> {
    /// The request is not whole.
    NeedMore,
    /// A request.
    Request {
        /// What the reply repeats.
        head: BinaryHead,
        /// The request.
        request: SaslRequest<'b>,
        /// Bytes of the request that are here and consumed.
        bytes: usize,
        /// Bytes that are skipped after that.
        skip_bytes: u64,
    },
    /// The request is refused.
    Refused {
        /// The reply, and how the next request is found.
        refusal: BinaryRefusal,
        /// Bytes of the header.
        bytes: usize,
    },
    /// The connection is closed without a reply.
    Close,
}

/// Reads one request of a client that logs in by SASL from the front of `input`.
///
/// ```
/// use kachel_wire::{SaslParsed, SaslRequest, parse_sasl};
/// let mut input = vec![0x80, 0x21, 0, 5, 0, 0, 0, 0, 0, 0, 0, 9];
/// input.extend_from_slice(&[0; 12]);
/// input.extend_from_slice(b"PLAIN\0u\0p");
/// let SaslParsed::Request { request, .. } = parse_sasl(&input) else { panic!() };
/// assert_eq!(request, SaslRequest::Begin { mechanism: b"PLAIN", message: b"\0u\0p" });
/// ```
pub fn parse_sasl(input: &[u8]) -> SaslParsed<'_> {
    if input.first().is_some_and(|&magic| magic != REQUEST_MAGIC) {
        return SaslParsed::Close;
    }
    let Some((header, body)) = input.split_first_chunk::<HEADER_BYTES>() else {
        return SaslParsed::NeedMore;
    };
    let header = Header::read(header);
    header.sasl(body).unwrap_or_else(|refusal| SaslParsed::Refused { refusal, bytes: HEADER_BYTES })
}

impl Header {
    /// The request of this header, whose body begins with `body`. Errors: it is refused.
    fn sasl<'b>(&self, body: &'b [u8]) -> Result<SaslParsed<'b>, BinaryRefusal> {
        let lengths = self.split()?;
        let (head, opcode) = (self.head, self.head.opcode);
        if opcode != opcode::VERSION && !opcode::is_sasl(opcode) {
            return Err(self.refused(BinaryStatus::NotAllowed)); // I1
        }
        if lengths.key_bytes > KEY_BYTES_MAX || opcode::are_right(opcode, lengths) != Some(true) {
            return Err(self.refused(BinaryStatus::InvalidArguments));
        }
        let whole_body = u64::from(self.body_bytes);
        if lengths.key_bytes > MECHANISM_BYTES_MAX {
            let refusal = self.refused(BinaryStatus::InvalidArguments);
            return Err(BinaryRefusal { skip_bytes: whole_body, closes: false, ..refusal });
        }
        if lengths.value_bytes as usize > SASL_MESSAGE_BYTES_MAX {
            let (request, skip_bytes) = (SaslRequest::TooLong, whole_body);
            return Ok(SaslParsed::Request { head, request, bytes: HEADER_BYTES, skip_bytes });
        }
        let body_bytes = lengths.key_bytes + lengths.value_bytes as usize;
        let Some(body) = body.get(..body_bytes) else { return Ok(SaslParsed::NeedMore) };
        let (mechanism, message) = body.split_at(lengths.key_bytes);
        let request = match opcode {
            opcode::VERSION => SaslRequest::Version,
            opcode::SASL_LIST_MECHS => SaslRequest::ListMechanisms,
            opcode::SASL_AUTH => SaslRequest::Begin { mechanism, message },
            opcode::SASL_STEP => SaslRequest::Step { message },
            _ => unreachable!("opcode {opcode:#x} was refused"),
        };
        let bytes = HEADER_BYTES + body_bytes;
        debug_assert!(bytes <= REQUEST_BYTES_MAX, "I3");
        Ok(SaslParsed::Request { head, request, bytes, skip_bytes: 0 })
    }
}

impl BinaryRefusal {
    /// Whether the refused request is one that a client sends to log in. Its lengths are right; it
    /// is refused where clients need not log in.
    pub const fn is_login(&self) -> bool {
        opcode::is_sasl(self.head.opcode) && matches!(self.status, BinaryStatus::UnknownCommand)
    }
}

impl BinaryHead {
    /// Formats the reply to a message that has the client go on, with the message of the server.
    pub fn put_challenge(self, sink: &mut impl Sink, message: &[u8]) {
        self.put(sink, BinaryStatus::LoginContinues, message, 0);
    }

    /// Formats the reply to the message with which a client has logged in.
    pub fn put_authenticated(self, sink: &mut impl Sink) {
        self.put_body(sink, b"Authenticated");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OPAQUE: [u8; 4] = *b"opaq";

    /// A header that announces a key, extras and a body of these lengths.
    fn announcing(opcode: u8, [key, extras]: [usize; 2], body: u32) -> Vec<u8> {
        let mut header = vec![0x80, opcode];
        header.extend_from_slice(&(key as u16).to_be_bytes());
        header.extend_from_slice(&[extras as u8, 0, 0, 0]);
        header.extend_from_slice(&body.to_be_bytes());
        header.extend_from_slice(&OPAQUE);
        [&header[..], &[0; 8]].concat()
    }

    fn frame(opcode: u8, key: &[u8], value: &[u8]) -> Vec<u8> {
        let body = [key, value].concat();
        [announcing(opcode, [key.len(), 0], body.len() as u32), body].concat()
    }

    fn asks(frame: &[u8], request: SaslRequest<'_>) {
        let head = BinaryHead { opcode: frame[1], opaque: OPAQUE };
        let expected = SaslParsed::Request { head, request, bytes: frame.len(), skip_bytes: 0 };
        assert_eq!(parse_sasl(frame), expected);
        let more = [frame, b"\x80 more"].concat();
        assert_eq!(parse_sasl(&more), expected, "with more behind it");
        for cut in 0..frame.len() {
            assert_eq!(parse_sasl(&frame[..cut]), SaslParsed::NeedMore, "cut at {cut}");
        }
    }

    /// The header alone is refused in this way.
    fn is_refused(header: &[u8], status: BinaryStatus, skip_bytes: u64, closes: bool) {
        let head = BinaryHead { opcode: header[1], opaque: OPAQUE };
        let refusal = BinaryRefusal { head, status, skip_bytes, closes };
        let expected = SaslParsed::Refused { refusal, bytes: HEADER_BYTES };
        assert_eq!(parse_sasl(header), expected, "{}", header.escape_ascii());
    }

    #[test]
    fn a_login_is_found_wherever_it_is_cut() {
        asks(&frame(0x0b, b"", b""), SaslRequest::Version);
        asks(&frame(0x20, b"", b""), SaslRequest::ListMechanisms);
        let longest = [b'x'; SASL_MESSAGE_BYTES_MAX];
        for message in [&b""[..], b"\0alice\0secret", &longest] {
            for mechanism in [&b"P"[..], b"PLAIN", &[b'm'; MECHANISM_BYTES_MAX]] {
                let request = SaslRequest::Begin { mechanism, message };
                asks(&frame(0x21, mechanism, message), request);
                asks(&frame(0x22, mechanism, message), SaslRequest::Step { message });
            }
        }
    }

    #[test]
    fn every_other_request_is_refused_and_closes() {
        for opcode in (0..=u8::MAX).filter(|opcode| !matches!(opcode, 0x0b | 0x20..=0x22)) {
            for [key, extras, body] in [[0, 0, 0], [3, 8, 12], [251, 0, 251]] {
                let header = announcing(opcode, [key, extras], body as u32);
                is_refused(&header, BinaryStatus::NotAllowed, 0, true);
            }
        }
    }

    #[test]
    fn lengths_that_lie_close() {
        for opcode in [0x00, 0x0b, 0x20, 0x21, 0x22, 0xff] {
            for [key, extras, body] in [[5, 0, 4], [1, 1, 1], [0, 1, 0], [65_535, 255, 9]] {
                let header = announcing(opcode, [key, extras], body as u32);
                is_refused(&header, BinaryStatus::UnknownCommand, 0, true);
            }
            for body in [(1 << 30) + 1, 0x8000_0000, u32::MAX] {
                let header = announcing(opcode, [5, 0], body);
                is_refused(&header, BinaryStatus::InvalidArguments, 0, true);
            }
        }
        for (opcode, [key, extras, body]) in [
            (0x0b, [0, 0, 1]),
            (0x20, [0, 0, 1]),
            (0x20, [1, 0, 1]),
            (0x21, [0, 0, 9]),
            (0x21, [5, 1, 9]),
            (0x22, [0, 0, 0]),
            (0x21, [251, 0, 300]),
            (0x22, [65_535, 0, 65_535]),
        ] {
            let header = announcing(opcode, [key, extras], body as u32);
            is_refused(&header, BinaryStatus::InvalidArguments, 0, true);
        }
    }

    #[test]
    fn a_name_or_message_that_is_too_long_is_skipped_whole() {
        for opcode in [0x21, 0x22] {
            for (key, body) in [(33, 33), (33, 50), (250, 1 << 30)] {
                let header = announcing(opcode, [key, 0], body);
                is_refused(&header, BinaryStatus::InvalidArguments, u64::from(body), false);
            }
            for body in [5 + SASL_MESSAGE_BYTES_MAX as u32 + 1, 600_000, 1 << 30] {
                let header = announcing(opcode, [5, 0], body);
                let head = BinaryHead { opcode, opaque: OPAQUE };
                let (request, skip_bytes) = (SaslRequest::TooLong, u64::from(body));
                let bytes = HEADER_BYTES;
                let expected = SaslParsed::Request { head, request, bytes, skip_bytes };
                assert_eq!(parse_sasl(&header), expected);
            }
        }
    }

    #[test]
    fn text_is_closed() {
        for input in [&b"get a\r\n"[..], b"\x81", b"\0", b"set x 0 0 3\r\na b\r\n"] {
            assert_eq!(parse_sasl(input), SaslParsed::Close);
        }
    }

    #[test]
    fn replies_have_their_status_and_body() {
        let head = BinaryHead { opcode: 0x21, opaque: OPAQUE };
        let reply = |status: u16, body: &[u8]| {
            let mut reply = frame(0x21, b"", body);
            reply[0] = 0x81;
            reply[6..8].copy_from_slice(&status.to_be_bytes());
            reply
        };
        let mut told = Vec::new();
        head.put_challenge(&mut told, b"r=abc");
        assert_eq!(told, reply(0x21, b"r=abc"));
        told.clear();
        head.put_authenticated(&mut told);
        assert_eq!(told, reply(0, b"Authenticated"));
        told.clear();
        head.put_status(&mut told, BinaryStatus::NotAllowed);
        assert_eq!(told, reply(0x20, b"Auth failure."));
    }

    proptest! {
        /// I2, I3: any header is answered, refused or awaited in the same way in pieces.
        #[test]
        fn a_header_means_the_same_in_pieces(
            opcode in prop_oneof![Just(0x0b_u8), 0x20_u8..0x23, any::<u8>()],
            key in prop_oneof![0_usize..35, 249_usize..252, any::<u16>().prop_map(usize::from)],
            extras in prop_oneof![Just(0_usize), 0_usize..256],
            more in prop_oneof![0_i64..1100, -3_i64..0, any::<u32>().prop_map(i64::from)],
        ) {
            let body = ((key + extras) as i64 + more).clamp(0, i64::from(u32::MAX)) as u32;
            let mut input = announcing(opcode, [key, extras], body);
            input.extend(std::iter::repeat_n(b'x', REQUEST_BYTES_MAX));
            let whole = parse_sasl(&input);
            let needed = match whole {
                SaslParsed::Request { bytes, skip_bytes, .. } => {
                    prop_assert!(bytes <= REQUEST_BYTES_MAX);
                    let told = HEADER_BYTES as u64 + u64::from(body);
                    prop_assert_eq!(bytes as u64 + skip_bytes, told);
                    bytes
                }
                SaslParsed::Refused { refusal, bytes } => {
                    prop_assert!(refusal.closes || refusal.skip_bytes == u64::from(body));
                    bytes
                }
                other => panic!("{other:?}"),
            };
            for cut in 0..needed {
                prop_assert_eq!(parse_sasl(&input[..cut]), SaslParsed::NeedMore);
            }
            prop_assert_eq!(parse_sasl(&input[..needed]), whole);
        }

        #[test]
        fn no_bytes_make_the_parser_panic(mut input: Vec<u8>) {
            parse_sasl(&input);
            input.insert(0, 0x80);
            parse_sasl(&input);
        }
    }
}

//! The binary protocol for clients: formats the requests of the load generator, parses any reply.
//!
//! Upstream:   the load generator and its tests.
//! Downstream: a [`Sink`] for requests; [`parse_binary_reply`] for replies.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  [`crate::parse_binary`] parses each request that this module formats as the request that
//!   it names.
//! - I2  A reply is returned whole or not at all. `NeedMore` gives the number of bytes that are
//!   known to be missing.
//!
//! Source: memcached's protocol_binary.txt.

use std::ops::Range;

use crate::binary::{HEADER_BYTES, REPLY_MAGIC, REQUEST_MAGIC};
use crate::format::Sink;

/// The opcode of `GET`.
pub const BINARY_GET: u8 = 0x00;
/// The opcode of `SET`.
pub const BINARY_SET: u8 = 0x01;
/// The opcode of `DELETE`.
pub const BINARY_DELETE: u8 = 0x04;
/// The opcode of `INCREMENT`.
pub const BINARY_INCREMENT: u8 = 0x05;
/// The opcode of `NOOP`, whose reply comes after those of all quiet requests before it.
pub const BINARY_NOOP: u8 = 0x0a;
/// The opcode of `GETKQ`: a hit is answered with its key, a miss is not answered.
pub const BINARY_GETKQ: u8 = 0x0d;

/// Bytes of the extras of `SET`: client flags and expiry.
const SET_EXTRAS_BYTES: usize = 8;
/// Bytes of the extras of `INCREMENT`: the amount, the first value and the expiry.
const ARITHMETIC_EXTRAS_BYTES: usize = 20;
/// Replies with a longer body are garbage. memcached's largest item is 1 GiB.
const BODY_BYTES_MAX: usize = (1 << 30) + 1024;

/// Formats a request that consists of a header and a key, which may be empty.
///
/// ```
/// use kachel_wire::client::{BINARY_GET, binary_request};
/// let mut request = Vec::new();
/// binary_request(&mut request, BINARY_GET, 7, b"k");
/// assert_eq!(request.len(), 25);
/// assert_eq!(request[12..16], 7_u32.to_be_bytes());
/// ```
#[inline]
pub fn binary_request(sink: &mut impl Sink, opcode: u8, opaque: u32, key: &[u8]) {
    sink.put_all([&header(opcode, opaque, key.len(), 0, 0), key]);
}

/// Formats `SET` without client flags; the caller must add the value.
///
/// `ttl` is in seconds, with the meanings of the text protocol. `compare_cas` is the CAS token that
/// the item must have; 0 means any.
#[inline]
pub fn binary_set_head(
    sink: &mut impl Sink,
    opaque: u32,
    key: &[u8],
    ttl: i32,
    value_bytes: usize,
    compare_cas: u64,
) {
    let mut header = header(BINARY_SET, opaque, key.len(), SET_EXTRAS_BYTES, value_bytes);
    header[16..].copy_from_slice(&compare_cas.to_be_bytes());
    let mut extras = [0; SET_EXTRAS_BYTES];
    extras[4..].copy_from_slice(&ttl.to_be_bytes());
    sink.put_all([&header, &extras, key]);
}

/// Formats `INCREMENT`. A key that is not there stays so.
#[inline]
pub fn binary_increment(sink: &mut impl Sink, opaque: u32, key: &[u8], delta: u64) {
    let header = header(BINARY_INCREMENT, opaque, key.len(), ARITHMETIC_EXTRAS_BYTES, 0);
    let mut extras = [0; ARITHMETIC_EXTRAS_BYTES];
    extras[..8].copy_from_slice(&delta.to_be_bytes());
    // This expiry means that no item is made.
    extras[16..].copy_from_slice(&[0xff; 4]);
    sink.put_all([&header, &extras, key]);
}

#[inline]
fn header(
    opcode: u8,
    opaque: u32,
    key_bytes: usize,
    extras_bytes: usize,
    value_bytes: usize,
) -> [u8; HEADER_BYTES] {
    let body_bytes = key_bytes + extras_bytes + value_bytes;
    debug_assert!(key_bytes <= usize::from(u16::MAX) && body_bytes <= BODY_BYTES_MAX, "I1");
    let mut header = [0; HEADER_BYTES];
    (header[0], header[1], header[4]) = (REQUEST_MAGIC, opcode, extras_bytes as u8);
    header[2..4].copy_from_slice(&(key_bytes as u16).to_be_bytes());
    header[8..12].copy_from_slice(&(body_bytes as u32).to_be_bytes());
    header[12..16].copy_from_slice(&opaque.to_be_bytes());
    header
}

/// One reply of the binary protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BinaryClientReply<'b> {
    /// The opcode of the request.
    pub opcode: u8,
    /// The status: 0 for success; the others are in memcached's protocol_binary.txt.
    pub status: u16,
    /// The opaque number of the request.
    pub opaque: u32,
    /// The CAS token; 0 if there is none.
    pub cas: u64,
    /// The key, if the server sent one.
    pub key: &'b [u8],
    /// The range of the value in the input. With an error status it is a text.
    pub value: Range<usize>,
}

/// The reply at the front of a server's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BinaryReplyParsed<'b> {
    /// The reply is not complete. At least this number of bytes is missing.
    NeedMore {
        /// Bytes.
        missing_bytes: usize,
    },
    /// A complete reply.
    Reply {
        /// The reply.
        reply: BinaryClientReply<'b>,
        /// Its total length in bytes.
        reply_bytes: usize,
    },
    /// The bytes are not a reply of the binary protocol. The start of the next reply is not known.
    Garbage,
}

/// Reads one reply from the front of `input`.
///
/// Cost: constant; a value is not read. Panics: never.
#[inline]
pub fn parse_binary_reply(input: &[u8]) -> BinaryReplyParsed<'_> {
    let Some(header) = input.first_chunk::<HEADER_BYTES>() else {
        return match input.first() {
            Some(&first) if first != REPLY_MAGIC => BinaryReplyParsed::Garbage,
            _ => BinaryReplyParsed::NeedMore { missing_bytes: HEADER_BYTES - input.len() },
        };
    };
    let [_, opcode, key_high, key_low, extras_bytes, _, status_high, status_low, ..] = *header;
    let key_bytes = usize::from(u16::from_be_bytes([key_high, key_low]));
    let body_bytes = u32::from_be_bytes([header[8], header[9], header[10], header[11]]) as usize;
    let key_start = HEADER_BYTES + usize::from(extras_bytes);
    let value_start = key_start + key_bytes;
    let reply_bytes = HEADER_BYTES + body_bytes;
    if header[0] != REPLY_MAGIC || value_start > reply_bytes || body_bytes > BODY_BYTES_MAX {
        return BinaryReplyParsed::Garbage;
    }
    if input.len() < reply_bytes {
        return BinaryReplyParsed::NeedMore { missing_bytes: reply_bytes - input.len() }; // I2
    }
    let (opaque, cas) = header[12..].split_at(4);
    let reply = BinaryClientReply {
        opcode,
        status: u16::from_be_bytes([status_high, status_low]),
        opaque: u32::from_be_bytes(opaque.try_into().expect("four bytes")),
        cas: u64::from_be_bytes(cas.try_into().expect("eight bytes")),
        key: &input[key_start..value_start],
        value: value_start..reply_bytes,
    };
    BinaryReplyParsed::Reply { reply, reply_bytes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{BinaryVerb, Request};
    use crate::{Parsed, parse_binary};

    fn parsed(bytes: &[u8]) -> Request<'_> {
        match parse_binary(bytes) {
            Parsed::Request { request, line_bytes } if line_bytes == bytes.len() => request,
            other => panic!("I1: {other:?}"),
        }
    }

    #[test]
    fn the_parser_reads_each_request_as_it_is_named() {
        for (opcode, with_key) in [(BINARY_GET, false), (BINARY_GETKQ, true)] {
            let verb = BinaryVerb::Get { ttl: None, with_value: true, with_key };
            let mut bytes = Vec::new();
            binary_request(&mut bytes, opcode, 0x0102_0304, b"key");
            let Request::Binary(request) = parsed(&bytes) else { panic!("I1") };
            assert_eq!((request.head.opcode, request.key), (opcode, &b"key"[..]));
            assert_eq!(request.head.opaque, [1, 2, 3, 4]);
            assert_eq!(request.verb, verb);
        }
        let mut bytes = Vec::new();
        binary_request(&mut bytes, BINARY_NOOP, 1, b"");
        assert!(matches!(parsed(&bytes), Request::BinaryAdmin { .. }), "I1");
        bytes.clear();
        binary_set_head(&mut bytes, 9, b"key", 60, 5, 77);
        let Request::Binary(request) = parsed(&bytes) else { panic!("I1") };
        assert_eq!((request.key, request.announced_bytes()), (&b"key"[..], Some(5)));
        let terms = request.store_terms().expect("a store");
        assert_eq!((terms.ttl.0, terms.compare_cas), (60, Some(77)));
        bytes.clear();
        binary_request(&mut bytes, BINARY_DELETE, 1, b"key");
        let Request::Binary(request) = parsed(&bytes) else { panic!("I1") };
        assert_eq!((request.verb, request.key), (BinaryVerb::Delete, &b"key"[..]));
        bytes.clear();
        binary_increment(&mut bytes, 1, b"key", 3);
        let Request::Binary(request) = parsed(&bytes) else { panic!("I1") };
        let BinaryVerb::Arithmetic { delta, create, .. } = request.verb else { panic!("I1") };
        assert_eq!((delta, create, request.key), (3, None, &b"key"[..]));
    }

    /// A hit with client flags, a key and a value.
    fn hit() -> Vec<u8> {
        let mut bytes = header(BINARY_GETKQ, 0xdead_beef, 3, 4, 5).to_vec();
        bytes[0] = REPLY_MAGIC;
        bytes[23] = 77;
        bytes.extend(b"\0\0\0\x01keyvalue");
        bytes
    }

    #[test]
    fn a_reply_is_read_whole_or_not_at_all() {
        let bytes = hit();
        for cut in 0..bytes.len() {
            let BinaryReplyParsed::NeedMore { missing_bytes } = parse_binary_reply(&bytes[..cut])
            else {
                panic!("I2: {cut}")
            };
            assert!(missing_bytes > 0 && cut + missing_bytes <= bytes.len(), "I2");
        }
        let BinaryReplyParsed::Reply { reply, reply_bytes } = parse_binary_reply(&bytes) else {
            panic!("I2")
        };
        assert_eq!(reply_bytes, bytes.len());
        assert_eq!((reply.opcode, reply.status, reply.opaque), (BINARY_GETKQ, 0, 0xdead_beef));
        assert_eq!((reply.cas, reply.key, &bytes[reply.value]), (77, &b"key"[..], &b"value"[..]));
    }

    #[test]
    fn contradictions_are_garbage() {
        for (place, byte) in [(0, 0x80), (0, b'E'), (3, 200), (8, 0x7f)] {
            let mut bytes = hit();
            bytes[place] = byte;
            assert_eq!(parse_binary_reply(&bytes), BinaryReplyParsed::Garbage, "{place}");
        }
        assert_eq!(parse_binary_reply(b"END\r\n"), BinaryReplyParsed::Garbage);
    }
}

//! Parses a server's replies in place, without allocation.
//!
//! Upstream:   `connection` lends the received and unread bytes; `kachel_wire::client` parses a
//!             line.
//! Downstream: `answer` matches each reply with a request in flight.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  A reply is reported once, when it is complete, and `consumed` is its whole length.
//! - I2  Bytes that violate the protocol, or that answer no request, are `Garbled`; the stream
//!   cannot be parsed after them.

use kachel_wire::client::{
    BINARY_DELETE, BINARY_GET, BINARY_GETKQ, BINARY_INCREMENT, BINARY_NOOP, BINARY_SET,
    BinaryReplyParsed, ClientReply, ReplyParsed, parse_binary_reply, parse_reply,
};
use memchr::memchr;

use crate::protocol::Protocol;

/// Maximum length of a reply's line; memcached sends no longer lines.
const LINE_BYTES_MAX: usize = 4096;

/// The statuses of the binary protocol that are no error: not found, exists, not stored.
const NOT_FOUND: u16 = 1;
const EXISTS: u16 = 2;
const NOT_STORED: u16 = 5;

/// Result of one scan of the received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scanned<'b> {
    /// Incomplete: the next scan needs at least this many bytes, counted from the start.
    NeedMore {
        /// Number of bytes to wait for.
        bytes: usize,
    },
    /// One item of a get's reply.
    Value {
        /// The key, if the server sent it.
        key: Option<&'b [u8]>,
        /// The value.
        value: &'b [u8],
        /// The CAS token, if the server sent one.
        cas: Option<u64>,
        /// The opaque, in the binary protocol.
        opaque: Option<u32>,
        /// Length of the whole item, line ends included.
        consumed: usize,
    },
    /// A line, or a reply of the binary protocol, without an item.
    Line {
        /// The parsed line.
        line: Line<'b>,
        /// The opaque, in the binary protocol.
        opaque: Option<u32>,
        /// Length, line end included.
        consumed: usize,
    },
    /// Bytes that violate the protocol (I2).
    Garbled,
}

/// A reply of one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line<'b> {
    /// The end of a get's reply.
    End,
    /// The key of a get is not there, or a scan is over.
    Miss,
    /// The end of the reply to a scan that goes on.
    More,
    /// Stored, deleted, touched, OK or a counter's new value: the request succeeded.
    Done,
    /// Not found, not stored, exists: the request was valid but changed nothing.
    NotDone,
    /// `ERROR`, `CLIENT_ERROR ...` or `SERVER_ERROR ...`, without its line end; a status of the
    /// binary protocol that is an error, with its text.
    Refused {
        /// The status, in the binary protocol.
        status: Option<u16>,
        /// The line or the text.
        words: &'b [u8],
    },
}

/// Parses the reply, or the item of a get's reply, at the start of `input`.
///
/// Cost: one pass over the line, none over the value.
#[inline]
pub(crate) fn scan(protocol: Protocol, input: &[u8]) -> Scanned<'_> {
    if protocol == Protocol::Binary {
        return scan_binary(input);
    }
    let (reply, consumed) = match parse_reply(input) {
        ReplyParsed::Reply { reply, reply_bytes } => (reply, reply_bytes),
        ReplyParsed::NeedMore { missing_bytes } => return need_more(input, missing_bytes),
        ReplyParsed::Garbage => return Scanned::Garbled,
    };
    let opaque = None;
    let line = match (protocol, reply) {
        (_, ClientReply::Error(words)) => Line::Refused { status: None, words },
        (Protocol::Meta, ClientReply::Meta { code, flags, value }) => {
            if let Some(value) = value {
                let (value, key, cas) = (&input[value], key_of(flags), cas_of(flags));
                return Scanned::Value { key, value, cas, opaque, consumed };
            }
            match &code {
                b"HD" => Line::Done,
                b"EN" => Line::Miss,
                b"MN" => Line::End,
                b"MO" => Line::More,
                _ => Line::NotDone,
            }
        }
        (Protocol::Text, ClientReply::Value { key, value, cas, .. }) => {
            return Scanned::Value { key: Some(key), value: &input[value], cas, opaque, consumed };
        }
        (Protocol::Text, ClientReply::End) => Line::End,
        (
            Protocol::Text,
            ClientReply::Stored
            | ClientReply::Deleted
            | ClientReply::Touched
            | ClientReply::Ok
            | ClientReply::Number(_),
        ) => Line::Done,
        (Protocol::Text, ClientReply::NotStored | ClientReply::NotFound | ClientReply::Exists) => {
            Line::NotDone
        }
        _ => return Scanned::Garbled, // I2
    };
    Scanned::Line { line, opaque, consumed }
}

/// The key in the flags of a meta reply.
#[inline]
fn key_of(flags: &[u8]) -> Option<&[u8]> {
    flags.split(|&byte| byte == b' ').find_map(|flag| flag.strip_prefix(b"k"))
}

/// The CAS token in the flags of a meta reply. Requests ask for it before the key, so it is first.
#[inline]
fn cas_of(flags: &[u8]) -> Option<u64> {
    let rest = flags.strip_prefix(b"c")?;
    let token = rest.split(|&byte| byte == b' ').next()?;
    std::str::from_utf8(token).ok()?.parse().ok()
}

#[inline]
fn scan_binary(input: &[u8]) -> Scanned<'_> {
    let (reply, consumed) = match parse_binary_reply(input) {
        BinaryReplyParsed::Reply { reply, reply_bytes } => (reply, reply_bytes),
        BinaryReplyParsed::NeedMore { missing_bytes } => {
            return Scanned::NeedMore { bytes: input.len() + missing_bytes };
        }
        BinaryReplyParsed::Garbage => return Scanned::Garbled,
    };
    let opaque = Some(reply.opaque);
    let line = match (reply.opcode, reply.status) {
        (BINARY_GET | BINARY_GETKQ, 0) => {
            let key = Some(reply.key).filter(|key| !key.is_empty());
            let (value, cas) = (&input[reply.value], Some(reply.cas));
            return Scanned::Value { key, value, cas, opaque, consumed };
        }
        (BINARY_GET, NOT_FOUND) => Line::Miss,
        (BINARY_NOOP, 0) => Line::End,
        (BINARY_SET | BINARY_DELETE | BINARY_INCREMENT, 0) => Line::Done,
        (BINARY_SET | BINARY_DELETE | BINARY_INCREMENT, NOT_FOUND | EXISTS | NOT_STORED) => {
            Line::NotDone
        }
        (
            BINARY_GET | BINARY_GETKQ | BINARY_NOOP | BINARY_SET | BINARY_DELETE | BINARY_INCREMENT,
            status,
        ) => Line::Refused { status: Some(status), words: &input[reply.value] },
        _ => return Scanned::Garbled, // I2
    };
    Scanned::Line { line, opaque, consumed }
}

#[inline]
fn need_more(input: &[u8], missing_bytes: usize) -> Scanned<'_> {
    debug_assert!(missing_bytes > 0, "I1");
    if input.len() > LINE_BYTES_MAX && memchr(b'\n', &input[..LINE_BYTES_MAX]).is_none() {
        return Scanned::Garbled;
    }
    Scanned::NeedMore { bytes: input.len() + missing_bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(input: &[u8]) -> Scanned<'_> {
        scan(Protocol::Text, input)
    }

    #[test]
    fn a_value_and_the_end_are_read() {
        let input = b"VALUE a 7 3\r\nxyz\r\nEND\r\n";
        let Scanned::Value { key, value, cas, opaque, consumed } = text(input) else {
            panic!("{:?}", text(input));
        };
        assert_eq!((key, value, cas, consumed), (Some(&b"a"[..]), &b"xyz"[..], None, 18));
        assert_eq!(opaque, None);
        assert_eq!(text(&input[18..]), Scanned::Line { line: Line::End, opaque, consumed: 5 });
    }

    #[test]
    fn a_cas_token_is_read() {
        let Scanned::Value { cas, .. } = text(b"VALUE a 0 0 18446744073709551615\r\n\r\n") else {
            panic!("a value");
        };
        assert_eq!(cas, Some(u64::MAX));
    }

    #[test]
    fn a_cut_reply_never_says_anything_early() {
        for input in [&b"VALUE key 0 5\r\nEND\r\n\r\n"[..], b"END\r\n", b"SERVER_ERROR x y\r\n"] {
            for cut in 0..input.len() {
                let Scanned::NeedMore { bytes } = text(&input[..cut]) else {
                    panic!("{cut}: {:?}", text(&input[..cut]));
                };
                assert!(bytes > cut && bytes <= input.len(), "I1");
            }
            assert!(!matches!(text(input), Scanned::NeedMore { .. }), "I1");
        }
    }

    #[test]
    fn one_line_replies_are_told_apart() {
        let rows: [(&[u8], Line<'_>); 9] = [
            (b"STORED\r\n", Line::Done),
            (b"DELETED\r\n", Line::Done),
            (b"17\r\n", Line::Done),
            (b"9 \r\n", Line::Done),
            (b"NOT_STORED\r\n", Line::NotDone),
            (b"NOT_FOUND\r\n", Line::NotDone),
            (b"EXISTS\r\n", Line::NotDone),
            (b"ERROR\r\n", Line::Refused { status: None, words: b"ERROR" }),
            (
                b"SERVER_ERROR out of memory\r\n",
                Line::Refused { status: None, words: b"SERVER_ERROR out of memory" },
            ),
        ];
        for (input, line) in rows {
            assert_eq!(text(input), Scanned::Line { line, opaque: None, consumed: input.len() });
        }
    }

    #[test]
    fn meta_replies_are_told_apart_and_have_their_keys() {
        let meta = |input| scan(Protocol::Meta, input);
        let Scanned::Value { key, value, consumed: 19, .. } = meta(b"VA 3 t-1 kab\r\nxyz\r\n")
        else {
            panic!("a value");
        };
        assert_eq!((key, value), (Some(&b"ab"[..]), &b"xyz"[..]));
        let rows: [(&[u8], Line<'_>); 5] = [
            (b"MO kab\r\n", Line::More),
            (b"HD\r\n", Line::Done),
            (b"EN\r\n", Line::Miss),
            (b"NS\r\n", Line::NotDone),
            (b"MN\r\n", Line::End),
        ];
        for (input, line) in rows {
            assert_eq!(meta(input), Scanned::Line { line, opaque: None, consumed: input.len() });
            assert_eq!(text(input), Scanned::Garbled, "I2");
        }
        let Scanned::Value { key, cas, .. } = meta(b"VA 1 c99 kab\r\nx\r\n") else {
            panic!("a value");
        };
        assert_eq!((key, cas), (Some(&b"ab"[..]), Some(99)));
        assert_eq!(meta(b"STORED\r\n"), Scanned::Garbled, "I2");
    }

    #[test]
    fn what_no_server_sends_is_garbled() {
        let rows: [&[u8]; 8] = [
            b"HTTP/1.1 200 OK\r\n",
            b"VERSION 1\r\n",
            b"VALUE a 0\r\n",
            b"VALUE a x 1\r\n",
            b"VALUE a 0 1 x\r\n",
            b"VALUE a 0 3\r\nabcdef\r\n",
            b"VALUE a 0 99999999999\r\n",
            b"STOREDX\r\n",
        ];
        for input in rows {
            assert_eq!(text(input), Scanned::Garbled, "I2: {}", input.escape_ascii());
        }
        assert_eq!(text(&[b'x'; LINE_BYTES_MAX + 1]), Scanned::Garbled);
    }
}

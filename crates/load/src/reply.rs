//! Parses a server's replies in place, without allocation.
//!
//! Upstream:   `connection` lends the received and unread bytes; `kachel_wire::client` parses a
//!             line.
//! Downstream: `drive` matches each reply with the oldest request in flight.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  A reply is reported once, when it is complete, and `consumed` is its whole length.
//! - I2  Bytes that violate the protocol, or that answer no request, are `Garbled`; the stream
//!   cannot be parsed after them.

use kachel_wire::client::{ClientReply, ReplyParsed, parse_reply};
use memchr::memchr;

/// Maximum length of a reply's line; memcached sends no longer lines.
const LINE_BYTES_MAX: usize = 4096;

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
        /// The key, as the server sent it.
        key: &'b [u8],
        /// The value.
        value: &'b [u8],
        /// The CAS token, if the server sent one.
        cas: Option<u64>,
        /// Length of the whole item, line ends included.
        consumed: usize,
    },
    /// A line that ends a reply.
    Line {
        /// The parsed line.
        line: Line<'b>,
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
    /// Stored, deleted, touched, OK or a counter's new value: the request succeeded.
    Done,
    /// Not found, not stored, exists: the request was valid but changed nothing.
    NotDone,
    /// `ERROR`, `CLIENT_ERROR ...` or `SERVER_ERROR ...`, without its line end.
    Refused(&'b [u8]),
}

/// Parses the reply, or the item of a get's reply, at the start of `input`.
///
/// Cost: one pass over the line, none over the value.
#[inline]
pub(crate) fn scan(input: &[u8]) -> Scanned<'_> {
    let (reply, consumed) = match parse_reply(input) {
        ReplyParsed::Reply { reply, reply_bytes } => (reply, reply_bytes),
        ReplyParsed::NeedMore { missing_bytes } => return need_more(input, missing_bytes),
        ReplyParsed::Garbage => return Scanned::Garbled,
    };
    let line = match reply {
        ClientReply::Value { key, value, cas, .. } => {
            return Scanned::Value { key, value: &input[value], cas, consumed };
        }
        ClientReply::End => Line::End,
        ClientReply::Stored
        | ClientReply::Deleted
        | ClientReply::Touched
        | ClientReply::Ok
        | ClientReply::Number(_) => Line::Done,
        ClientReply::NotStored | ClientReply::NotFound | ClientReply::Exists => Line::NotDone,
        ClientReply::Error(words) => Line::Refused(words),
        ClientReply::Meta { .. }
        | ClientReply::Debug(_)
        | ClientReply::Leased { .. }
        | ClientReply::NotFoundHot
        | ClientReply::StaleStored
        | ClientReply::Stat(_)
        | ClientReply::Version(_) => return Scanned::Garbled,
    };
    Scanned::Line { line, consumed }
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

    #[test]
    fn a_value_and_the_end_are_read() {
        let input = b"VALUE a 7 3\r\nxyz\r\nEND\r\n";
        let Scanned::Value { key, value, cas, consumed } = scan(input) else {
            panic!("{:?}", scan(input));
        };
        assert_eq!((key, value, cas, consumed), (&b"a"[..], &b"xyz"[..], None, 18));
        assert_eq!(scan(&input[18..]), Scanned::Line { line: Line::End, consumed: 5 });
    }

    #[test]
    fn a_cas_token_is_read() {
        let Scanned::Value { cas, .. } = scan(b"VALUE a 0 0 18446744073709551615\r\n\r\n") else {
            panic!("a value");
        };
        assert_eq!(cas, Some(u64::MAX));
    }

    #[test]
    fn a_cut_reply_never_says_anything_early() {
        for input in [&b"VALUE key 0 5\r\nEND\r\n\r\n"[..], b"END\r\n", b"SERVER_ERROR x y\r\n"] {
            for cut in 0..input.len() {
                let Scanned::NeedMore { bytes } = scan(&input[..cut]) else {
                    panic!("{cut}: {:?}", scan(&input[..cut]));
                };
                assert!(bytes > cut && bytes <= input.len(), "I1");
            }
            assert!(!matches!(scan(input), Scanned::NeedMore { .. }), "I1");
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
            (b"ERROR\r\n", Line::Refused(b"ERROR")),
            (b"SERVER_ERROR out of memory\r\n", Line::Refused(b"SERVER_ERROR out of memory")),
        ];
        for (input, line) in rows {
            assert_eq!(scan(input), Scanned::Line { line, consumed: input.len() });
        }
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
            assert_eq!(scan(input), Scanned::Garbled, "I2: {}", input.escape_ascii());
        }
        assert_eq!(scan(&[b'x'; LINE_BYTES_MAX + 1]), Scanned::Garbled);
    }
}

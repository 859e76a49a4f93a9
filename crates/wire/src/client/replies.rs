//! Parses the replies that a client received, one at a time from the front.
//!
//! Upstream:   bytes that a server sent.
//! Downstream: the client; values are ranges of the input, nothing is copied.
//!
//! Invariants:
//! - I1  A reply is returned whole or not at all. Until its last byte is there, `NeedMore` gives
//!   the number of bytes that are known to be missing.
//! - I2  A `get` of any number of keys is answered by `Value`s and one `End`. Each of them is a
//!   reply of its own.

use std::ops::Range;

use memchr::memchr;

use crate::number::{read_u32, read_u64};
use crate::words::Words;

/// The reply at the front of a server's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyParsed<'b> {
    /// The reply is not complete. At least this number of bytes is missing (1 if unknown).
    NeedMore {
        /// Bytes.
        missing_bytes: usize,
    },
    /// A complete reply.
    Reply {
        /// The reply.
        reply: ClientReply<'b>,
        /// Its total length in bytes.
        reply_bytes: usize,
    },
    /// The bytes are not a reply of memcached. The start of the next reply is not known.
    Garbage,
}

/// One reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientReply<'b> {
    /// `VALUE`, with the value and its CR LF.
    Value {
        /// The key.
        key: &'b [u8],
        /// The client flags.
        client_flags: u32,
        /// The range of the value in the input.
        value: Range<usize>,
        /// The CAS token, if requested.
        cas: Option<u64>,
    },
    /// `LVALUE`, with the stale value and its CR LF.
    Leased {
        /// The key.
        key: &'b [u8],
        /// The token of the lease; 1 while another client has the lease.
        token: u64,
        /// The client flags.
        client_flags: u32,
        /// The range of the value in the input.
        value: Range<usize>,
    },
    /// `NOT_FOUND_HOT`: another client has the lease.
    NotFoundHot,
    /// `STALE_STORED`.
    StaleStored,
    /// `END`.
    End,
    /// `STORED`.
    Stored,
    /// `NOT_STORED`.
    NotStored,
    /// `EXISTS`.
    Exists,
    /// `NOT_FOUND`.
    NotFound,
    /// `DELETED`.
    Deleted,
    /// `TOUCHED`.
    Touched,
    /// `OK`.
    Ok,
    /// A number: the answer of `incr` and `decr`. Spaces may follow it.
    Number(u64),
    /// `VA`, `HD`, `EN`, `NS`, `EX`, `NF` or `MN`; `MO` ends the reply to `mscan`.
    Meta {
        /// The code's two letters.
        code: [u8; 2],
        /// The return flags, as in the line.
        flags: &'b [u8],
        /// The range of the value in the input; only `VA` has one.
        value: Option<Range<usize>>,
    },
    /// `ME`: the rest of the line.
    Debug(&'b [u8]),
    /// `STAT`: the rest of the line.
    Stat(&'b [u8]),
    /// `VERSION`: the rest of the line.
    Version(&'b [u8]),
    /// `ERROR`, `CLIENT_ERROR`, `SERVER_ERROR`: the whole line without its end.
    Error(&'b [u8]),
}

/// Reads one reply from the front of `input`.
///
/// Cost: linear in the reply's first line; a value is not read. Panics: never.
///
/// ```
/// use kachel_wire::client::{ClientReply, ReplyParsed, parse_reply};
/// let input = b"VALUE k 0 3\r\nabc\r\nEND\r\n";
/// let ReplyParsed::Reply { reply, reply_bytes } = parse_reply(input) else { panic!() };
/// assert_eq!(reply, ClientReply::Value { key: b"k", client_flags: 0, value: 13..16, cas: None });
/// assert_eq!(parse_reply(&input[reply_bytes..]),
///     ReplyParsed::Reply { reply: ClientReply::End, reply_bytes: 5 });
/// ```
#[inline]
pub fn parse_reply(input: &[u8]) -> ReplyParsed<'_> {
    let Some(line_end) = memchr(b'\n', input) else {
        return ReplyParsed::NeedMore { missing_bytes: 1 };
    };
    let line = &input[..line_end];
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let line_bytes = line_end + 1;
    if let Some(rest) = line.strip_prefix(b"VALUE ") {
        return value(input, rest, line_bytes);
    }
    if let Some(rest) = line.strip_prefix(b"LVALUE ") {
        return leased(input, rest, line_bytes);
    }
    if let Some(rest) = line.strip_prefix(b"VA ") {
        return meta_value(input, rest, line_bytes);
    }
    match plain(line) {
        Some(reply) => ReplyParsed::Reply { reply, reply_bytes: line_bytes },
        None => ReplyParsed::Garbage,
    }
}

/// A reply of one line.
fn plain(line: &[u8]) -> Option<ClientReply<'_>> {
    Some(match line {
        b"END" => ClientReply::End,
        b"STORED" => ClientReply::Stored,
        b"NOT_STORED" => ClientReply::NotStored,
        b"EXISTS" => ClientReply::Exists,
        b"NOT_FOUND" => ClientReply::NotFound,
        b"NOT_FOUND_HOT" => ClientReply::NotFoundHot,
        b"STALE_STORED" => ClientReply::StaleStored,
        b"DELETED" => ClientReply::Deleted,
        b"TOUCHED" => ClientReply::Touched,
        b"OK" | b"RESET" => ClientReply::Ok,
        [b'S', b'T', b'A', b'T', b' ', rest @ ..] => ClientReply::Stat(rest),
        [b'M', b'E', b' ', rest @ ..] => ClientReply::Debug(rest),
        [b'V', b'E', b'R', b'S', b'I', b'O', b'N', b' ', rest @ ..] => ClientReply::Version(rest),
        [b'0'..=b'9', ..] => ClientReply::Number(read_u64(Words::new(line).next()?)?),
        [first, second, flags @ ..] if is_meta(*first, *second, flags) => ClientReply::Meta {
            code: [*first, *second],
            flags: flags.strip_prefix(b" ").unwrap_or(flags),
            value: None,
        },
        line if is_error(line) => ClientReply::Error(line),
        _ => return None,
    })
}

fn is_meta(first: u8, second: u8, flags: &[u8]) -> bool {
    matches!(&[first, second], b"HD" | b"EN" | b"NS" | b"EX" | b"NF" | b"MN" | b"MO")
        && matches!(flags, [] | [b' ', ..])
}

/// Whether a line is an error, or a refusal of a tuning command with a word of its own.
fn is_error(line: &[u8]) -> bool {
    const WORDS: [&[u8]; 11] = [
        b"ERROR",
        b"CLIENT_ERROR",
        b"SERVER_ERROR",
        b"BUSY",
        b"BADCLASS",
        b"NOSPARE",
        b"SAME",
        b"NOTSTARTED",
        b"MEMLIMIT_",
        b"WATCHER_",
        b"Error ", // Of `refresh_certs`.
    ];
    WORDS.iter().any(|word| line.starts_with(word))
}

/// `VALUE`: `rest` is the line after that word.
#[inline]
fn value<'b>(input: &'b [u8], rest: &'b [u8], line_bytes: usize) -> ReplyParsed<'b> {
    let mut words = Words::new(rest);
    let (Some(key), Some(client_flags), Some(value_bytes)) =
        (words.next(), words.next().and_then(read_u32), words.next().and_then(read_u32))
    else {
        return ReplyParsed::Garbage;
    };
    let cas = match words.next().map(read_u64) {
        None => None,
        Some(Some(token)) => Some(token),
        Some(None) => return ReplyParsed::Garbage,
    };
    with_block(input, line_bytes, value_bytes, |value| ClientReply::Value {
        key,
        client_flags,
        value,
        cas,
    })
}

/// `LVALUE`: `rest` is the line after that word.
fn leased<'b>(input: &'b [u8], rest: &'b [u8], line_bytes: usize) -> ReplyParsed<'b> {
    let mut words = Words::new(rest);
    let (Some(key), Some(token), Some(client_flags), Some(value_bytes), None) = (
        words.next(),
        words.next().and_then(read_u64),
        words.next().and_then(read_u32),
        words.next().and_then(read_u32),
        words.next(),
    ) else {
        return ReplyParsed::Garbage;
    };
    with_block(input, line_bytes, value_bytes, |value| ClientReply::Leased {
        key,
        token,
        client_flags,
        value,
    })
}

/// `VA`: `rest` is the line after that word.
#[inline]
fn meta_value<'b>(input: &'b [u8], rest: &'b [u8], line_bytes: usize) -> ReplyParsed<'b> {
    let mut words = Words::new(rest);
    let Some(value_bytes) = words.next().and_then(read_u32) else { return ReplyParsed::Garbage };
    let flags = words.rest_from_next();
    with_block(input, line_bytes, value_bytes, |value| ClientReply::Meta {
        code: *b"VA",
        flags,
        value: Some(value),
    })
}

/// A reply with a value and CR LF after its line (I1).
#[inline]
fn with_block<'b>(
    input: &[u8],
    line_bytes: usize,
    value_bytes: u32,
    reply: impl FnOnce(Range<usize>) -> ClientReply<'b>,
) -> ReplyParsed<'b> {
    let Ok(value_bytes) = usize::try_from(value_bytes) else { return ReplyParsed::Garbage };
    let value_end = line_bytes + value_bytes;
    let reply_bytes = value_end + 2;
    match input.get(value_end..reply_bytes) {
        None => ReplyParsed::NeedMore { missing_bytes: reply_bytes - input.len() },
        Some(b"\r\n") => ReplyParsed::Reply { reply: reply(line_bytes..value_end), reply_bytes },
        Some(_) => ReplyParsed::Garbage,
    }
}

//! The front of the parser: finds a line, judges its length, picks the verb.
//!
//! Upstream:   `net` gives the bytes of a connection from the start of a line on.
//! Downstream: the `text` and `meta` parsers read the line behind its verb.
//!
//! Invariants:
//! - I1  A line that ends within the limits is consumed whole, whatever it says; `line_bytes` counts its
//!   end.
//! - I2  Whether a line is too long is decided by its bytes, not by the pieces in which they came.
//! - I3  A line has at least four bytes, its end included; a shorter one is no command.

use memchr::memchr;

use crate::reply::Reply;
use crate::request::{
    Admin, Direction, LINE_BYTES_MAX, RETRIEVE_LINE_BYTES_MAX, Request, StoreMode,
};
use crate::{meta, text};

/// Bytes of the shortest line that can be a command, its end included (I3).
const LINE_BYTES_MIN: usize = 4;
/// The first byte of a request in the binary protocol.
const BINARY_MAGIC: u8 = 0x80;
/// Bytes of the longest verb that is told apart here.
const VERB_BYTES_MAX: usize = 7;

/// What the front of a connection's bytes turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed<'b> {
    /// No complete line yet, and what is there is within the limits.
    NeedMore,
    /// A request. The data block of a `Store` or `MetaSet` (`value_bytes` and CR LF) follows the line.
    Request {
        /// What is asked for.
        request: Request<'b>,
        /// Bytes of the line, its end included.
        line_bytes: usize,
    },
    /// The line is consumed and refused.
    Refused {
        /// What becomes of it.
        refusal: ParseError,
        /// Bytes of the line, its end included.
        line_bytes: usize,
    },
    /// The stream cannot be followed any further: close, saying nothing.
    Close,
}

/// A line that was refused: the client's fault, never a bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// What is answered; [`Reply::Nothing`] when the client asked for no reply.
    pub reply: Reply,
    /// Bytes to swallow behind the line: a data block and its CR LF, or 0. Run as commands instead, a
    /// client's data would be.
    pub skip_bytes: u64,
}

impl ParseError {
    /// A refusal of a line that no data block follows.
    pub(crate) const fn of(reply: Reply) -> Self {
        Self { reply, skip_bytes: 0 }
    }

    /// A refusal of a line that announced a data block.
    pub(crate) fn with_block(reply: Reply, value_bytes: u32) -> Self {
        Self { reply, skip_bytes: u64::from(value_bytes) + 2 }
    }
}

/// Why a verb's parser made no request of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The line is answered and passed over.
    Refused(ParseError),
    /// The connection is closed.
    Close,
}

impl From<Reply> for Failure {
    fn from(reply: Reply) -> Self {
        Self::Refused(ParseError::of(reply))
    }
}

/// What a verb's parser makes of a line.
pub(crate) type Outcome<'b> = Result<Request<'b>, Failure>;

/// Reads one request from the front of `input`.
///
/// `scanned_bytes` at the start are already known to hold no newline (the length of what was given when
/// this said `NeedMore`), so a line that arrives in pieces is searched once. More than there is counts as
/// all.
///
/// Cost: linear in the line; no allocation. Panics: never.
///
/// ```
/// use kachel_wire::request::Request;
/// use kachel_wire::{Parsed, parse};
/// assert_eq!(parse(b"delete k", 0), Parsed::NeedMore);
/// let request = Request::Delete { key: b"k", noreply: false };
/// assert_eq!(parse(b"delete k\r\nget", 8), Parsed::Request { request, line_bytes: 10 });
/// ```
#[inline]
pub fn parse(input: &[u8], scanned_bytes: usize) -> Parsed<'_> {
    let scanned = scanned_bytes.min(input.len());
    let Some(at) = memchr(b'\n', &input[scanned..]) else { return unfinished(input) };
    let line_bytes = scanned + at + 1;
    let line = &input[..line_bytes];
    if line_bytes > LINE_BYTES_MAX && line_bytes > line_bytes_max(line) {
        return Parsed::Close; // I2
    }
    match parse_line(line) {
        Ok(request) => Parsed::Request { request, line_bytes },
        Err(Failure::Refused(refusal)) => Parsed::Refused { refusal, line_bytes },
        Err(Failure::Close) => Parsed::Close,
    }
}

/// What becomes of bytes that hold no newline.
#[cold]
fn unfinished(input: &[u8]) -> Parsed<'_> {
    let is_binary = input.first() == Some(&BINARY_MAGIC);
    if is_binary || input.len() >= LINE_BYTES_MAX && input.len() >= line_bytes_max(input) {
        return Parsed::Close;
    }
    Parsed::NeedMore
}

/// The limit for a line that begins like this one; at least `LINE_BYTES_MAX` of its bytes are here (I2).
fn line_bytes_max(line: &[u8]) -> usize {
    let is_retrieval =
        [&b"get "[..], b"gets ", b"gat ", b"gats "].iter().any(|verb| line.starts_with(verb));
    if is_retrieval { RETRIEVE_LINE_BYTES_MAX } else { LINE_BYTES_MAX }
}

/// Reads a complete line, its end included.
#[inline]
fn parse_line(line: &[u8]) -> Outcome<'_> {
    let body = match line {
        [body @ .., b'\r', b'\n'] | [body @ .., b'\n'] | body => body,
    };
    // The commonest request first: `get` of any number of keys.
    if let Some(rest) = body.strip_prefix(b"get ") {
        return text::retrieve(rest, false);
    }
    if line.first() == Some(&BINARY_MAGIC) {
        return Err(Failure::Close);
    }
    if line.len() < LINE_BYTES_MIN {
        return Err(Reply::BadLine.into()); // I3
    }
    let verb_bytes = body
        .iter()
        .take(VERB_BYTES_MAX + 1)
        .position(|&byte| byte == b' ')
        .unwrap_or(body.len().min(VERB_BYTES_MAX + 1));
    let (verb, rest) = body.split_at(verb_bytes);
    parse_verb(body, verb, rest)
}

/// Reads what stands behind a verb.
fn parse_verb<'b>(body: &'b [u8], verb: &[u8], rest: &'b [u8]) -> Outcome<'b> {
    match verb {
        b"mg" => meta::get(rest),
        b"ms" => meta::set(rest),
        b"md" => meta::delete(rest),
        b"ma" => meta::arithmetic(rest),
        b"me" => meta::debug(rest),
        b"mn" => Ok(Request::MetaNoop),
        b"get" => text::retrieve(rest, false),
        b"gets" => text::retrieve(rest, true),
        b"gat" => text::retrieve_and_touch(rest, false),
        b"gats" => text::retrieve_and_touch(rest, true),
        b"set" => text::store(rest, StoreMode::Set),
        b"add" => text::store(rest, StoreMode::Add),
        b"replace" => text::store(rest, StoreMode::Replace),
        b"append" => text::store(rest, StoreMode::Append),
        b"prepend" => text::store(rest, StoreMode::Prepend),
        b"cas" => text::compare_and_store(rest),
        b"delete" => text::delete(rest),
        b"touch" => text::touch(rest),
        b"incr" => text::arithmetic(rest, Direction::Up),
        b"decr" => text::arithmetic(rest, Direction::Down),
        b"quit" => Ok(Request::Admin(Admin::Quit)),
        b"version" => Ok(Request::Admin(Admin::Version)),
        b"stats" => Ok(Request::Admin(Admin::Stats { topic: trim_spaces(rest) })),
        b"watch" => text::admin::watch(rest),
        _ => text::admin::other(body),
    }
}

/// The text without spaces at either end; a tab is part of a word.
const fn trim_spaces(mut text: &[u8]) -> &[u8] {
    while let [b' ', rest @ ..] | [rest @ .., b' '] = text {
        text = rest;
    }
    text
}

#[cfg(test)]
mod tests;

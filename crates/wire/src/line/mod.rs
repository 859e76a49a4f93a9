//! The first step of parsing: finds a line, checks its length, selects the verb.
//!
//! Upstream:   `net` gives the bytes of a connection from the start of a line on.
//! Downstream: the `text` and `meta` parsers read the line after its verb.
//!
//! Invariants:
//! - I1  A line within the limits is consumed whole, with any content. `line_bytes` includes its
//!   end.
//! - I2  Whether a line is too long depends on its bytes, not on the pieces in which they arrived.
//! - I3  A line has at least four bytes, its end included. A shorter line is not a command.

use memchr::memchr;

use crate::refusal::{BinaryRefusal, Failure, Outcome, ParseError};
use crate::reply::Reply;
use crate::request::{
    Admin, Direction, KEY_BYTES_MAX, Keys, LINE_BYTES_MAX, RETRIEVE_LINE_BYTES_MAX, Request,
    Retrieve, RetrieveForm, StoreMode,
};
use crate::words::{find, find_blank};
use crate::{meta, text};

/// Bytes of the shortest line that can be a command, its end included (I3).
const LINE_BYTES_MIN: usize = 4;
/// Bytes at the front that are searched for a newline first.
const NEAR_BYTES: usize = 128;
/// Bytes of the longest verb that is recognized here by its length.
const VERB_BYTES_MAX: usize = 7;
/// Bytes of `lease-get` and `lease-set`.
const LEASE_VERB_BYTES: usize = 9;

/// The result of parsing the front of a connection's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed<'b> {
    /// There is no complete line yet, and the input is within the limits.
    NeedMore,
    /// A request. The data block of a storage request follows the line.
    Request {
        /// The request.
        request: Request<'b>,
        /// Bytes of the line, its end included.
        line_bytes: usize,
    },
    /// The line is consumed and refused.
    Refused {
        /// The reply and the bytes to skip.
        refusal: ParseError,
        /// Bytes of the line, its end included.
        line_bytes: usize,
    },
    /// A request of the binary protocol is refused.
    RefusedBinary {
        /// The reply, and how the next request is found.
        refusal: BinaryRefusal,
        /// Bytes of the header.
        line_bytes: usize,
    },
    /// The rest of the input cannot be parsed: close without a reply.
    Close,
}

impl Failure {
    /// The result for a line of `line_bytes`.
    #[cold]
    const fn parsed<'b>(self, line_bytes: usize) -> Parsed<'b> {
        match self {
            Self::Refused(refusal) => Parsed::Refused { refusal, line_bytes },
            Self::Close => Parsed::Close,
        }
    }
}

/// Makes a request from the result of a common verb's parser, directly in the return value. A
/// request is large, and an `Outcome` would copy it at each step.
macro_rules! request {
    ($line_bytes:ident, $result:expr, $found:pat => $request:expr) => {
        match $result {
            Ok($found) => Parsed::Request { request: $request, line_bytes: $line_bytes },
            Err(failure) => Failure::from(failure).parsed($line_bytes),
        }
    };
}

/// Reads one request of the text or meta protocol from the front of `input`, of which the first
/// `scanned_bytes` contain no newline.
#[inline]
pub(crate) fn parse(input: &[u8], scanned_bytes: usize) -> Parsed<'_> {
    if let Some((key, line_bytes)) = get_of_one(input) {
        let keys = Keys { rest: key };
        let found = Retrieve { form: RetrieveForm::Value, ttl: None, keys, is_one: true };
        return Parsed::Request { request: Request::Retrieve(found), line_bytes };
    }
    let scanned = scanned_bytes.min(input.len());
    let Some(at) = find_newline(&input[scanned..]) else { return unfinished(input) };
    let line_bytes = scanned + at + 1;
    let line = &input[..line_bytes];
    if line_bytes > LINE_BYTES_MAX && line_bytes > line_bytes_max(line) {
        return Parsed::Close; // I2
    }
    parse_line(line)
}

/// The most common line: `get`, one key, CR LF. A single search finds the end of the key and of the
/// line. Any other line is `None`, also one that [`parse_line`] reads in the same way.
#[inline]
fn get_of_one(input: &[u8]) -> Option<(&[u8], usize)> {
    let text = input.strip_prefix(b"get ")?;
    let key_bytes = find_blank(&text[..text.len().min(KEY_BYTES_MAX + 2)]);
    let (key, rest) = text.split_at_checked(key_bytes)?;
    let is_one = (1..=KEY_BYTES_MAX).contains(&key_bytes) && rest.starts_with(b"\r\n");
    is_one.then_some((key, b"get ".len() + key_bytes + 2))
}

/// The result for input without a newline.
#[cold]
fn unfinished(input: &[u8]) -> Parsed<'_> {
    if input.len() >= LINE_BYTES_MAX && input.len() >= line_bytes_max(input) {
        return Parsed::Close;
    }
    Parsed::NeedMore
}

/// The limit for a line that begins like this one; at least `LINE_BYTES_MAX` of its bytes are here
/// (I2).
fn line_bytes_max(line: &[u8]) -> usize {
    let is_retrieval =
        [&b"get "[..], b"gets ", b"gat ", b"gats "].iter().any(|verb| line.starts_with(verb));
    if is_retrieval { RETRIEVE_LINE_BYTES_MAX } else { LINE_BYTES_MAX }
}

/// The position of the first newline. Most lines are short, so the first bytes are searched without
/// the setup cost of `memchr`.
#[inline]
fn find_newline(input: &[u8]) -> Option<usize> {
    let (near, far) = input.split_at(input.len().min(NEAR_BYTES));
    let at = find::<b'\n'>(near);
    if at < near.len() { Some(at) } else { memchr(b'\n', far).map(|at| near.len() + at) }
}

/// Reads a complete line, its end included.
#[inline]
fn parse_line(line: &[u8]) -> Parsed<'_> {
    let line_bytes = line.len();
    let body = match line {
        [body @ .., b'\r', b'\n'] | [body @ .., b'\n'] | body => body,
    };
    // The most common request comes first: `get` of any number of keys.
    if let Some(rest) = body.strip_prefix(b"get ") {
        let found = text::retrieve(rest, RetrieveForm::Value);
        return request!(line_bytes, found, found => Request::Retrieve(found));
    }
    if line.len() < LINE_BYTES_MIN {
        return Failure::from(Reply::BadLine).parsed(line_bytes); // I3
    }
    let verb_bytes = find::<b' '>(&body[..body.len().min(VERB_BYTES_MAX + 1)]);
    let (verb, rest) = body.split_at(verb_bytes);
    match verb {
        b"mg" => request!(line_bytes, meta::get(rest), meta => Request::MetaGet(meta)),
        b"ms" => {
            request!(line_bytes, meta::set(rest), (meta, mode, value_bytes) => {
                Request::MetaSet { meta, mode, value_bytes }
            })
        }
        b"gets" => {
            let found = text::retrieve(rest, RetrieveForm::WithCas);
            request!(line_bytes, found, found => Request::Retrieve(found))
        }
        b"set" | b"add" | b"replace" | b"append" | b"prepend" => {
            let mode = match verb[0..2] {
                [b's', _] => StoreMode::Set,
                [b'r', _] => StoreMode::Replace,
                [b'p', _] => StoreMode::Prepend,
                [_, b'd'] => StoreMode::Add,
                _ => StoreMode::Append,
            };
            parse_store(rest, mode, line_bytes)
        }
        _ => request!(line_bytes, parse_rarer(body, verb, rest), request => request),
    }
}

/// Reads the rest of a storage line. This is a function of its own so that its result is written
/// once, to the place where the caller needs it. A copy of fields that were just written makes the
/// processor wait.
#[inline(never)]
fn parse_store(rest: &[u8], mode: StoreMode, line_bytes: usize) -> Parsed<'_> {
    request!(line_bytes, text::store(rest, mode), store => Request::Store(store))
}

/// Reads lines with rare verbs.
#[inline(never)]
fn parse_rarer<'b>(body: &'b [u8], verb: &[u8], rest: &'b [u8]) -> Outcome<'b> {
    match verb {
        b"md" => meta::delete(rest),
        b"ma" => meta::arithmetic(rest),
        b"me" => meta::debug(rest),
        b"mn" => Ok(Request::MetaNoop),
        b"mscan" => meta::scan(rest),
        // `get` with keys was handled before.
        b"get" => Err(Reply::BadLine.into()),
        b"gat" => text::retrieve_and_touch(rest, RetrieveForm::Value),
        b"gats" => text::retrieve_and_touch(rest, RetrieveForm::WithCas),
        b"cas" => text::compare_and_store(rest),
        b"delete" => text::delete(rest),
        b"touch" => text::touch(rest),
        b"incr" => text::arithmetic(rest, Direction::Up),
        b"decr" => text::arithmetic(rest, Direction::Down),
        b"quit" => Ok(Request::Admin(Admin::Quit)),
        b"version" => Ok(Request::Admin(Admin::Version)),
        b"stats" => Ok(Request::Admin(Admin::Stats { topic: trim_spaces(rest) })),
        b"watch" => text::admin::watch(rest),
        // The first eight bytes of a longer verb.
        b"lease-ge" | b"lease-se" => match body.split_at_checked(LEASE_VERB_BYTES) {
            Some((b"lease-get", rest @ ([] | [b' ', ..]))) => text::lease::get(rest),
            Some((b"lease-set", rest @ ([] | [b' ', ..]))) => text::lease::set(rest),
            _ => text::admin::other(body),
        },
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

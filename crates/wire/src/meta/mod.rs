//! The meta verbs: key, flags, and the request of each verb.
//!
//! Upstream:   `line` selects the verb and passes the rest of the line, without its end.
//! Downstream: requests that borrow the line; `format` writes return flags from `Meta::flags`.
//!
//! Invariants:
//! - I1  A mistake is always answered, also with `q`; `noreply` has no meaning in meta requests.
//! - I2  If there are several mistakes, the one that 1.6.45 finds is answered. It checks, in this
//!   order: flags that are not a letter or digit; the key's length; the number of words; the flags
//!   in their order; the mode; the opaque token. A repeated or unknown flag ends the check of the
//!   flags; otherwise the last mistake in a flag is answered.

mod flags;
mod scan;

use crate::base64;
use crate::refusal::{Failure, Outcome, ParseError};
use crate::reply::Reply;
use crate::request::{Direction, KEY_BYTES_MAX, Meta, MetaKey, Request, StoreMode};
use crate::text::read_announced;
use crate::words::{WORDS_MAX, Words};

pub(crate) use self::scan::scan;

/// The key of a meta request: decoded into `buffer` if it is base64, otherwise unchanged.
///
/// Invalid base64 gives an empty key. The parser makes no such request.
///
/// ```
/// use kachel_wire::request::{KEY_BYTES_MAX, MetaKey};
/// let key = MetaKey { text: b"a2V5", base64: true };
/// assert_eq!(kachel_wire::parse_key(key, &mut [0; KEY_BYTES_MAX]), b"key");
/// ```
#[inline]
pub fn parse_key<'k>(key: MetaKey<'k>, buffer: &'k mut [u8; KEY_BYTES_MAX]) -> &'k [u8] {
    if key.base64 { base64::decode(key.text, buffer).unwrap_or_default() } else { key.text }
}

/// `mg`.
#[inline]
pub(crate) fn get(rest: &[u8]) -> Result<Meta<'_>, Reply> {
    split(rest, 1)?.read()?.opaque_checked()
}

/// `md`.
pub(crate) fn delete(rest: &[u8]) -> Outcome<'_> {
    Ok(Request::MetaDelete(get(rest)?))
}

/// `ms`: it has a length between key and flags. A refusal skips the data block if the length could
/// be read.
#[inline]
pub(crate) fn set(rest: &[u8]) -> Result<(Meta<'_>, StoreMode, u32), Failure> {
    let value_bytes = Words::new(rest).nth(1).and_then(read_announced).ok_or(Reply::BadLine)?;
    match checked_set(rest) {
        Ok((meta, mode)) => Ok((meta, mode, value_bytes)),
        Err(Refused::BeforeBlock(reply)) => Err(reply.into()),
        Err(Refused::WithBlock(reply)) => {
            Err(Failure::Refused(ParseError::with_block(reply, value_bytes)))
        }
    }
}

/// The part of an `ms` that is refused.
enum Refused {
    /// The line alone: 1.6.45 did not get as far as its length.
    BeforeBlock(Reply),
    /// The line and the data block that it announced.
    WithBlock(Reply),
}

#[inline]
fn checked_set(rest: &[u8]) -> Result<(Meta<'_>, StoreMode), Refused> {
    let read = split(rest, 2).map_err(Refused::BeforeBlock)?.read().map_err(Refused::WithBlock)?;
    let mode = match read.mode {
        None | Some(b'S' | 0) => StoreMode::Set,
        Some(b'E') => StoreMode::Add,
        Some(b'A') => StoreMode::Append,
        Some(b'P') => StoreMode::Prepend,
        Some(b'R') => StoreMode::Replace,
        Some(_) => return Err(Refused::WithBlock(Reply::BadSetMode)),
    };
    let meta = read.opaque_checked().map_err(Refused::WithBlock)?;
    Ok((meta, mode))
}

/// `ma`: every mistake in key or flags has the same answer.
pub(crate) fn arithmetic(rest: &[u8]) -> Outcome<'_> {
    let read = split(rest, 1)?.read().map_err(|_| Reply::InvalidOrDuplicateFlag)?;
    let direction = match read.mode {
        None | Some(b'I' | b'+' | 0) => Direction::Up,
        Some(b'D' | b'-') => Direction::Down,
        Some(_) => return Err(Reply::BadArithmeticMode.into()),
    };
    Ok(Request::MetaArithmetic { meta: read.opaque_checked()?, direction })
}

/// `me`. As in 1.6.45, and unlike its manual, `b` counts only if another word follows it.
pub(crate) fn debug(rest: &[u8]) -> Outcome<'_> {
    let line = split(rest, 1)?;
    if line.key.len() > KEY_BYTES_MAX {
        return Err(Reply::BadLine.into());
    }
    let mut words = Words::new(line.flags);
    let base64 = words.next() == Some(b"b") && words.next().is_some();
    let key = MetaKey { text: line.key, base64 };
    if base64 && base64::decode(line.key, &mut [0; KEY_BYTES_MAX]).is_none() {
        return Err(Reply::BadLine.into());
    }
    Ok(Request::MetaDebug(key))
}

/// The parts of a meta line.
struct Line<'b> {
    key: &'b [u8],
    /// The text from the first flag on.
    flags: &'b [u8],
    /// The number of words of the line, the verb included, at most `WORDS_MAX`.
    word_count: usize,
}

/// Splits a line. `words_before` words are between its verb and its flags: the key and, for `ms`, a
/// length.
#[inline(always)]
fn split(rest: &[u8], words_before: usize) -> Result<Line<'_>, Reply> {
    let mut words = Words::new(rest);
    let key = words.next().ok_or(Reply::BadLine)?;
    for _ in 1..words_before {
        words.next();
    }
    let flags = words.rest_from_next();
    let mut word_count = 1 + words_before;
    for flag in words {
        // Letters, the bytes between upper and lower case, and digits.
        if !matches!(flag[0], b'A'..=b'z' | b'0'..=b'9') {
            return Err(Reply::BadLine);
        }
        word_count += 1;
        if word_count == WORDS_MAX {
            break;
        }
    }
    Ok(Line { key, flags, word_count })
}

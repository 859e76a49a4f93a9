//! The classic verbs: parses the rest of their lines.
//!
//! Upstream:   `line` picks the verb and passes the rest of the line, without its end.
//! Downstream: requests that own nothing.
//!
//! Invariants:
//! - I1  Every key is checked before a line becomes a request. So a retrieval with one bad key gets
//!   no value.
//! - I2  A refused storage line skips its data block if, and only if, the length of the block could
//!   be read.
//! - I3  `noreply` counts only as the last word. It suppresses a refusal only if 1.6.45 looks for
//!   `noreply` before it refuses.
//!
//! Source: the observed behavior of 1.6.45. `docs/glossary.md` defines the terms.

pub(crate) mod admin;
pub(crate) mod lease;
pub(crate) mod login;
pub(crate) mod stats;

use crate::number::{read_i32, read_loose_i32, read_loose_u32, read_u64};
use crate::refusal::{Failure, Outcome, ParseError};
use crate::reply::Reply;
use crate::request::{
    Direction, KEY_BYTES_MAX, Keys, Request, Retrieve, RetrieveForm, Store, StoreMode, Ttl,
};
use crate::words::{Words, find};

/// Bytes of the longest value that a line may announce: 1.6.45 counts the block's CR LF in an
/// `int`.
pub(crate) const ANNOUNCED_BYTES_MAX: i32 = i32::MAX - 2;

const NOREPLY: &[u8] = b"noreply";

/// `get` and `gets`: `rest` holds the keys.
#[inline]
pub(crate) fn retrieve(rest: &[u8], form: RetrieveForm) -> Result<Retrieve<'_>, Reply> {
    let (keys, is_one) = checked_keys(rest)?;
    Ok(Retrieve { form, ttl: None, keys, is_one })
}

/// `gat` and `gats`: the TTL, then the keys.
pub(crate) fn retrieve_and_touch(rest: &[u8], form: RetrieveForm) -> Outcome<'_> {
    let mut words = Words::new(rest);
    let exptime = words.next().ok_or(Reply::BadLine)?;
    if words.next().is_none() {
        return Err(Reply::BadLine.into());
    }
    let ttl = read_i32(exptime).ok_or(Reply::InvalidExptime)?;
    let mut words = Words::new(rest);
    words.next();
    let (keys, is_one) = checked_keys(words.rest)?;
    let ttl = Some(Ttl(ttl));
    Ok(Request::Retrieve(Retrieve { form, ttl, keys, is_one }))
}

/// The keys of a retrieval, all of them checked (I1), and whether there is one and nothing else.
#[inline]
fn checked_keys(text: &[u8]) -> Result<(Keys<'_>, bool), Reply> {
    let rest = Words::new(text).rest_from_next();
    let mut unchecked = rest;
    if unchecked.is_empty() {
        return Err(Reply::BadLine);
    }
    loop {
        // Here, consecutive spaces enclose empty words, which are not too long.
        let end = find::<b' '>(unchecked);
        if end > KEY_BYTES_MAX {
            return Err(Reply::BadLine);
        }
        match unchecked.get(end + 1..) {
            Some(behind) => unchecked = behind,
            None => return Ok((Keys { rest }, unchecked.len() == rest.len())),
        }
    }
}

/// `set`, `add`, `replace`, `append` and `prepend`.
#[inline(always)]
pub(crate) fn store(rest: &[u8], mode: StoreMode) -> Result<Store<'_>, Failure> {
    let (words, fields) = StoreFields::read(rest)?;
    let noreply = words.last_of_line(5) == Some(NOREPLY);
    fields.check(mode, noreply)
}

/// `cas`: as `set`, with a token after the length.
pub(crate) fn compare_and_store(rest: &[u8]) -> Outcome<'_> {
    let (mut words, fields) = StoreFields::read(rest)?;
    let noreply = words.last_of_line(5) == Some(NOREPLY);
    let store = fields.check(StoreMode::Set, noreply)?;
    let Some(token) = words.next().and_then(read_u64) else {
        let reply = Reply::BadLine.unless(noreply);
        return Err(Failure::Refused(ParseError::with_block(reply, store.value_bytes)));
    };
    Ok(Request::Store(Store { compare_cas: Some(token), ..store }))
}

/// The words of a storage line, of which only the length is read.
struct StoreFields<'b> {
    key: &'b [u8],
    /// The text from the client flags on, and how many of its bytes are client flags.
    flags: (&'b [u8], usize),
    exptime: (&'b [u8], usize),
    value_bytes: u32,
}

impl<'b> StoreFields<'b> {
    /// Takes the words up to the length. A refusal here skips no data block and is always
    /// answered.
    #[inline(always)]
    fn read(rest: &'b [u8]) -> Result<(Words<'b>, Self), Reply> {
        let mut words = Words::new(rest);
        let key = words.next().ok_or(Reply::BadLine)?;
        Self::read_after(key, words)
    }

    /// Takes the words after the key, up to the length.
    #[inline(always)]
    fn read_after(key: &'b [u8], mut words: Words<'b>) -> Result<(Words<'b>, Self), Reply> {
        let flags_text = words.rest_from_next();
        let flags = words.next_maybe_short().ok_or(Reply::BadLine)?;
        let exptime_text = words.rest_from_next();
        let exptime = words.next_maybe_short().ok_or(Reply::BadLine)?;
        let length = words.next().and_then(read_announced).ok_or(Reply::BadLine)?;
        let fields = Self {
            key,
            flags: (flags_text, flags.len()),
            exptime: (exptime_text, exptime.len()),
            value_bytes: length,
        };
        Ok((words, fields))
    }

    /// Reads the rest. A refusal here skips the data block (I2).
    #[inline(always)]
    fn check(self, mode: StoreMode, noreply: bool) -> Result<Store<'b>, Failure> {
        let (flags, flags_bytes) = self.flags;
        let (exptime, exptime_bytes) = self.exptime;
        // Nearly every line has plain numbers. The loose readers are for other lines.
        let client_flags = match flags[..flags_bytes] {
            [b'0'] => Some(0),
            _ => read_loose_u32(flags),
        };
        let ttl = match exptime[..exptime_bytes] {
            [b'0'] => Some(0),
            _ => read_loose_i32(exptime),
        };
        let (Some(client_flags), Some(ttl)) = (client_flags, ttl) else {
            return Err(self.refused(noreply));
        };
        if self.key.len() > KEY_BYTES_MAX {
            return Err(self.refused(noreply));
        }
        Ok(Store {
            mode,
            key: self.key,
            client_flags,
            ttl: Ttl(ttl),
            value_bytes: self.value_bytes,
            compare_cas: None,
            noreply,
        })
    }

    #[cold]
    fn refused(&self, noreply: bool) -> Failure {
        let reply = Reply::BadLine.unless(noreply);
        Failure::Refused(ParseError::with_block(reply, self.value_bytes))
    }
}

/// The length of a value as a line announces it. `None` if 1.6.45 treats the line as malformed.
#[inline]
pub(crate) fn read_announced(word: &[u8]) -> Option<u32> {
    let length = read_i32(word)?;
    if length > ANNOUNCED_BYTES_MAX {
        return None;
    }
    u32::try_from(length).ok()
}

/// `delete`. Words between the key and `noreply` are ignored.
pub(crate) fn delete(rest: &[u8]) -> Outcome<'_> {
    let (key, noreply) = key_and_noreply(rest, 1)?;
    let key = checked_key(key, noreply)?;
    Ok(Request::Delete { key, noreply })
}

/// `touch`.
pub(crate) fn touch(rest: &[u8]) -> Outcome<'_> {
    let (key, noreply) = key_and_noreply(rest, 2)?;
    let key = checked_key(key, noreply)?;
    let ttl =
        Words::new(rest).nth(1).and_then(read_i32).ok_or(Reply::InvalidExptime.unless(noreply))?;
    Ok(Request::Touch { key, ttl: Ttl(ttl), noreply })
}

/// `incr` and `decr`.
pub(crate) fn arithmetic(rest: &[u8], direction: Direction) -> Outcome<'_> {
    let (key, noreply) = key_and_noreply(rest, 2)?;
    let key = checked_key(key, noreply)?;
    let delta =
        Words::new(rest).nth(1).and_then(read_u64).ok_or(Reply::InvalidDelta.unless(noreply))?;
    Ok(Request::Arithmetic { key, direction, delta, noreply })
}

/// The key of a line with at least `words_min` words after its verb, and whether the last word is
/// `noreply`. If there is only one word, that word is also the key, as in 1.6.45.
fn key_and_noreply(rest: &[u8], words_min: usize) -> Result<(&[u8], bool), Reply> {
    let words = Words::new(rest);
    if words.take(words_min).count() < words_min {
        return Err(Reply::BadLine);
    }
    let key = Words::new(rest).next().ok_or(Reply::BadLine)?;
    Ok((key, words.last_of_line(1) == Some(NOREPLY)))
}

fn checked_key(key: &[u8], noreply: bool) -> Result<&[u8], Reply> {
    if key.len() > KEY_BYTES_MAX { Err(Reply::BadLine.unless(noreply)) } else { Ok(key) }
}

//! The first request of a client that must log in: a `set` whose value is `USER PASSWORD`.
//!
//! Upstream:   `shard`, for a connection that has not logged in.
//! Downstream: `shard` asks `net` whether user and password are known.
//!
//! Invariants:
//! - I1  Nothing but a login is understood here, so no other request of a client that has not
//!   logged in is ever parsed.
//! - I2  Each command gets one reply, also one that is refused. A refused `set` is skipped with its
//!   data block, so the next command is found. A block of more than `SKIPPED_BYTES_MAX` is not
//!   skipped: as in memcached, the next line is the next command.
//!
//! Source: memcached's protocol.txt, "Authentication", and 1.6.45's replies.

use memchr::memchr;

use crate::number::read_i32;
use crate::reply::Reply;
use crate::request::LINE_BYTES_MAX;
use crate::words::Words;

/// Bytes of the longest value of a login. memcached takes up to 16,384 bytes.
pub const TOKEN_BYTES_MAX: usize = 4096;

/// Bytes of the longest data block that is skipped. No client has a token as long, so a longer
/// block will not come.
const SKIPPED_BYTES_MAX: usize = 1 << 20;

/// The first byte of a request in the binary protocol, in which this login is not possible.
const BINARY: u8 = 0x80;

/// The front of the input of a client that has not logged in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Login<'b> {
    /// The command is not whole.
    NeedMore {
        /// Bytes of the data block that its line announces; `None` if the line is not whole.
        block_bytes: Option<usize>,
    },
    /// A login.
    Attempt {
        /// The name of the user, without spaces.
        user: &'b [u8],
        /// The password, which may contain spaces.
        password: &'b [u8],
        /// Bytes of the whole command.
        bytes: usize,
    },
    /// The command is refused.
    Refused {
        /// Why.
        reply: Reply,
        /// Bytes of the command that are here and consumed.
        bytes: usize,
        /// Bytes of its data block, which are skipped after that.
        skip_bytes: usize,
    },
    /// The connection is closed without a reply.
    Close,
}

impl Login<'_> {
    const fn refused(reply: Reply, bytes: usize) -> Self {
        Self::Refused { reply, bytes, skip_bytes: 0 }
    }
}

/// Reads one command of a client that has not logged in from the front of `input`.
///
/// ```
/// use kachel_wire::{Login, parse_login};
/// let login = parse_login(b"set x 0 0 12\r\nalice secret\r\n");
/// let expected = Login::Attempt { user: b"alice", password: b"secret", bytes: 28 };
/// assert_eq!(login, expected);
/// ```
pub fn parse_login(input: &[u8]) -> Login<'_> {
    if input.first() == Some(&BINARY) {
        return Login::Close;
    }
    let searched = &input[..input.len().min(LINE_BYTES_MAX)];
    let Some(at) = memchr(b'\n', searched) else {
        return match searched.len() {
            LINE_BYTES_MAX => Login::Close,
            _ => Login::NeedMore { block_bytes: None },
        };
    };
    let line = input[..at].strip_suffix(b"\r").unwrap_or(&input[..at]);
    let line_bytes = at + 1;
    if line.is_empty() || line == b"quit" {
        return Login::Close;
    }
    match announced(line) {
        Some(block_bytes) => with_block(input, line_bytes, block_bytes as usize),
        None => Login::refused(Reply::Unauthenticated, line_bytes),
    }
}

/// The length of the data block, if the line is a `set`. The key, the client flags and the
/// expiration time are not read, nor is anything after the length, as in memcached.
fn announced(line: &[u8]) -> Option<u32> {
    let mut words = Words::new(line.strip_prefix(b"set ")?);
    let length = words.nth(3).and_then(read_i32)?;
    u32::try_from(length).ok()
}

fn with_block(input: &[u8], line_bytes: usize, block_bytes: usize) -> Login<'_> {
    let bytes = line_bytes + block_bytes + 2;
    if block_bytes > TOKEN_BYTES_MAX {
        let skip_bytes = if block_bytes > SKIPPED_BYTES_MAX { 0 } else { block_bytes + 2 };
        return Login::Refused { reply: Reply::AuthTokenTooLong, bytes: line_bytes, skip_bytes };
    }
    let Some(block) = input.get(line_bytes..bytes) else {
        return Login::NeedMore { block_bytes: Some(block_bytes) };
    };
    let Some(token) = block.strip_suffix(b"\r\n") else {
        return Login::refused(Reply::AuthBadTermination, bytes);
    };
    let Some(space) = memchr(b' ', token) else {
        return Login::refused(Reply::AuthBadFormat, bytes);
    };
    Login::Attempt { user: &token[..space], password: &token[space + 1..], bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_found_wherever_it_is_cut() {
        let whole = b"set  key 1 2 14 noreply\r\nbob  pass word\r\nget a\r\n";
        let bytes = whole.len() - b"get a\r\n".len();
        let line_bytes = bytes - 16;
        for end in 0..bytes {
            let block_bytes = (end >= line_bytes).then_some(14);
            assert_eq!(parse_login(&whole[..end]), Login::NeedMore { block_bytes }, "{end}");
        }
        let expected = Login::Attempt { user: b"bob", password: b" pass word", bytes };
        assert_eq!(parse_login(whole), expected);
    }

    #[test]
    fn other_commands_are_refused_each_with_its_line() {
        for line in [
            &b"get a\r\n"[..],
            b"version\n",
            b"SET x 0 0 3\r\n",
            b"settle\r\n",
            b"set\r\n",
            b"set x 0 0\r\n",
            b"set x 0 0 -1\r\n",
            b"set x 0 0 3x\r\n",
            b"add x 0 0 3\r\n",
            b"ms x 3\r\n",
        ] {
            let input = [line, b"a b\r\n"].concat();
            let expected = Login::refused(Reply::Unauthenticated, line.len());
            assert_eq!(parse_login(&input), expected, "{}", line.escape_ascii());
        }
    }

    #[test]
    fn a_bad_token_is_refused_with_its_block() {
        let rows = [
            (&b"set x 0 0 3\r\na bXX"[..], Reply::AuthBadTermination, 0),
            (b"set x 0 0 5\r\nalice\r\n", Reply::AuthBadFormat, 0),
            (b"set x 0 0 0\r\n\r\n", Reply::AuthBadFormat, 0),
            (b"set x 0 0 4097\r\n", Reply::AuthTokenTooLong, 4099),
            (b"set x 0 0 1048576\r\n", Reply::AuthTokenTooLong, 1_048_578),
            (b"set x 0 0 1048577\r\n", Reply::AuthTokenTooLong, 0),
            (b"set x 0 0 2147483647\r\n", Reply::AuthTokenTooLong, 0),
        ];
        for (input, reply, skip_bytes) in rows {
            let expected = Login::Refused { reply, bytes: input.len(), skip_bytes };
            assert_eq!(parse_login(input), expected, "{}", input.escape_ascii());
        }
    }

    #[test]
    fn input_that_cannot_become_a_login_closes() {
        for input in [&b"\n\n"[..], b"\r\n", b"quit\r\n", b"\x80\0", &[b'x'; LINE_BYTES_MAX]] {
            assert_eq!(parse_login(input), Login::Close, "{}", input.escape_ascii());
        }
        let nearly = [b'x'; LINE_BYTES_MAX - 1];
        assert_eq!(parse_login(&nearly), Login::NeedMore { block_bytes: None });
    }
}

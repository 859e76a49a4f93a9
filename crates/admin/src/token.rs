//! The token with which a client may ask.
//!
//! Upstream:   `kachel` reads the file of the token, at the start and when it is told to.
//! Downstream: `route` compares the tokens of clients with it.
//!
//! Invariants:
//! - T1  The token itself is not kept, only its hash with a key of this process. Comparing takes
//!   the same time for each token of the same length.
//! - T2  The session of a token tells nothing about it, and is the same after a restart.

use std::fmt;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// The fewest characters of a token. Nobody guesses as many random ones.
const TOKEN_BYTES_MIN: usize = 32;

/// The most characters of a token.
pub const ADMIN_TOKEN_BYTES_MAX: usize = 512;

/// The text that is hashed, together with the token, for the cookie of a browser.
const SESSION_OF: &[u8] = b"session of Kachel's admin address";

/// Bytes of a hash.
const HASH_BYTES: usize = 32;

/// The token with which a client may ask.
#[derive(Clone)]
pub struct AdminToken {
    /// The key of this process.
    key: [u64; 2],
    /// The hash of the token with this key.
    hash: [u8; HASH_BYTES],
    /// The hash of its session with this key.
    session_hash: [u8; HASH_BYTES],
}

impl AdminToken {
    /// Reads the text of a file with a token and at most one line end. `key` is random.
    ///
    /// Errors: a sentence, if the text is no token, or one that could be guessed.
    pub fn read(text: &[u8], key: [u64; 2]) -> Result<Self, &'static str> {
        let token = text.strip_suffix(b"\n").unwrap_or(text);
        let token = token.strip_suffix(b"\r").unwrap_or(token);
        if token.len() < TOKEN_BYTES_MIN {
            return Err(
                "a token has at least 32 characters, such as those of `openssl rand -hex 32`",
            );
        }
        if token.len() > ADMIN_TOKEN_BYTES_MAX {
            return Err("a token has at most 512 characters");
        }
        if !token.iter().all(is_of_token) {
            return Err("a token is one line of letters, digits and -._~+/=");
        }
        let hashed = |text: &[u8]| hash(key, text).finalize().into_bytes().into();
        let session = Self::session(token);
        Ok(Self { key, hash: hashed(token), session_hash: hashed(session.as_bytes()) })
    }

    /// Whether `other`, which was read in this process, is the same token.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        (self.key, self.hash) == (other.key, other.hash)
    }

    /// Whether a client has sent this token (T1).
    pub(crate) fn is(&self, token: &[u8]) -> bool {
        hash(self.key, token).verify_slice(&self.hash).is_ok()
    }

    /// Whether a client has sent the session of this token (T1).
    pub(crate) fn is_session(&self, session: &[u8]) -> bool {
        hash(self.key, session).verify_slice(&self.session_hash).is_ok()
    }

    /// The session of a token: the value of the cookie that stands for it (T2).
    pub(crate) fn session(token: &[u8]) -> String {
        let mut hash = Hmac::<Sha256>::new_from_slice(token).expect("any length does");
        hash.update(SESSION_OF);
        let bytes: [u8; HASH_BYTES] = hash.finalize().into_bytes().into();
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// It shows nothing of the token.
impl fmt::Debug for AdminToken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("AdminToken")
    }
}

fn hash(key: [u64; 2], token: &[u8]) -> Hmac<Sha256> {
    let key = key.map(u64::to_le_bytes);
    let mut hash = Hmac::<Sha256>::new_from_slice(key.as_flattened()).expect("any length does");
    hash.update(token);
    hash
}

/// Whether a token may have this byte: those that RFC 6750 allows.
fn is_of_token(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~+/=".contains(byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_token_of_the_file_is_right() {
        let token = b"0123456789abcdef0123456789ABCDEF";
        for text in [&token[..], b"0123456789abcdef0123456789ABCDEF\n"] {
            let read = AdminToken::read(text, [7, 8]).expect("a token");
            assert!(read.is(token) && !read.is(&token[1..]) && !read.is(b""));
            assert!(!read.is(b"0123456789abcdef0123456789ABCDEF\n"));
            let session = AdminToken::session(token);
            assert!(read.is_session(session.as_bytes()) && !read.is(session.as_bytes()), "T2");
            assert!(!read.is_session(token) && !read.is_session(b""));
        }
    }

    #[test]
    fn what_is_no_token_or_could_be_guessed_is_refused() {
        let long = [b'a'; ADMIN_TOKEN_BYTES_MAX + 1];
        let two = [&long[..40], b"\n", &long[..40]].concat();
        for text in [&b""[..], b"short\n", &long, &two, &[b' '; 40], "\u{f6}".repeat(20).as_bytes()]
        {
            assert!(AdminToken::read(text, [7, 8]).is_err(), "{text:?}");
        }
    }
}

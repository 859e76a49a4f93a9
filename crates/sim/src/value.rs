//! Values that contain their key and the number of their write. So each value read can be verified.
//!
//! Upstream:   `ask`, which makes a value for each request that stores a text.
//! Downstream: `answer`, which verifies each value read.
//!
//! ```text
//! value:  token token ...                  (append and prepend add tokens)
//! token:  KEY '.' WRITE '.' BYTES ':' pattern of BYTES bytes ';'
//! ```
//!
//! Invariants:
//! - I1  Each write has a number of its own. Its pattern follows from its key and its number alone.

use kachel_io::{Rng, SeededRng};

/// The token of write `write` to `key`, padded with `padding` bytes of its pattern.
pub(crate) fn token(key: &[u8], write: u64, padding: usize) -> Vec<u8> {
    let mut token = Vec::with_capacity(key.len() + 32 + padding);
    token.extend_from_slice(key);
    token.extend_from_slice(format!(".{write}.{padding}:").as_bytes());
    let start = token.len();
    token.resize(start + padding, 0);
    write_pattern(&mut token[start..], key, write);
    token.push(b';');
    token
}

/// Writes the pattern of write `write` to `key` (I1).
fn write_pattern(to: &mut [u8], key: &[u8], write: u64) {
    let seed = key.iter().fold(write, |sum, byte| sum.wrapping_mul(31) ^ u64::from(*byte));
    let mut rng = SeededRng::new(seed);
    let (words, rest) = to.as_chunks_mut();
    for word in words {
        *word = rng.next_u64().to_le_bytes();
    }
    rest.copy_from_slice(&rng.next_u64().to_le_bytes()[..rest.len()]);
}

/// Checks that `value` consists of tokens for `key` with write numbers below `writes`.
///
/// Errors: what is wrong.
pub(crate) fn verify(key: &[u8], value: &[u8], writes: u64) -> Result<(), String> {
    let mut rest = value;
    while !rest.is_empty() {
        let read = read_head(rest).ok_or_else(|| wrong(key, rest, "is no token"))?;
        let (of, write, padding, head_bytes) = read;
        if of != key {
            return Err(wrong(key, rest, "belongs to another key"));
        }
        if write >= writes {
            return Err(wrong(key, rest, "was never written"));
        }
        let wanted = token(key, write, padding);
        debug_assert!(wanted.len() > head_bytes);
        match rest.strip_prefix(wanted.as_slice()) {
            Some(behind) => rest = behind,
            None => return Err(wrong(key, rest, "is not what was written")),
        }
    }
    Ok(())
}

/// The head of the token at the front of `rest`: its key, the number of its write, the bytes of its
/// padding, and its own bytes.
pub(crate) fn read_head(rest: &[u8]) -> Option<(&[u8], u64, usize, usize)> {
    let colon = rest.iter().take(300).position(|byte| *byte == b':')?;
    let head = str::from_utf8(&rest[..colon]).ok()?;
    let (head, padding) = head.rsplit_once('.')?;
    let (key, write) = head.rsplit_once('.')?;
    Some((key.as_bytes(), write.parse().ok()?, padding.parse().ok()?, colon))
}

fn wrong(key: &[u8], rest: &[u8], what: &str) -> String {
    let shown = rest[..rest.len().min(60)].escape_ascii();
    format!("the value of {} {what}: {shown}", key.escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_proves_its_key_and_its_bytes() {
        let mut value = token(b"h1", 7, 100);
        value.extend(token(b"h1", 9, 0));
        assert_eq!(verify(b"h1", &value, 10), Ok(()));
        assert!(verify(b"h1", &value, 9).unwrap_err().contains("never written"));
        assert!(verify(b"h2", &value, 10).unwrap_err().contains("another key"));
        value[50] ^= 1;
        assert!(verify(b"h1", &value, 10).unwrap_err().contains("not what was written"));
        assert!(verify(b"h1", b"x", 10).unwrap_err().contains("no token"));
    }
}

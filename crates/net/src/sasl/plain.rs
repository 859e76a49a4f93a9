//! The message of PLAIN: a user and a password, in the clear.
//!
//! Upstream:   `sasl`.
//! Downstream: none.
//!
//! Source: RFC 4616.

use memchr::memchr;

/// Reads `AUTHZID NUL USER NUL PASSWORD`. `None` if it is malformed, or asks to act as another
/// user.
pub(super) fn read(message: &[u8]) -> Option<(&[u8], &[u8])> {
    let (acts_as, rest) = split(message)?;
    let (user, password) = split(rest)?;
    debug_assert!(user.len() + password.len() + 2 <= message.len(), "two NULs divide it");
    let is_well_formed = !user.is_empty() && memchr(0, password).is_none();
    let is_self = acts_as.is_empty() || acts_as == user;
    (is_well_formed && is_self).then_some((user, password))
}

fn split(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = memchr(0, text)?;
    Some((&text[..at], &text[at + 1..]))
}

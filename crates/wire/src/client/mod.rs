//! The protocol for clients: formats requests, parses replies.
//!
//! Upstream:   the load generator and tests.
//! Downstream: a [`Sink`] for requests; [`parse_reply`] and [`parse_binary_reply`] for replies.
//!
//! Invariants:
//! - I1  [`crate::parse`] parses each request that this module formats as the request that it
//!   names.
//! - I2  The caller checks keys: 1 to 250 bytes, without a space or line end if the key is text.

mod binary;
mod replies;

pub use binary::{
    BINARY_DELETE, BINARY_GET, BINARY_GETKQ, BINARY_INCREMENT, BINARY_NOOP, BINARY_SET,
    BinaryClientReply, BinaryReplyParsed, binary_increment, binary_request, binary_set_head,
    parse_binary_reply,
};
pub use replies::{ClientReply, ReplyParsed, parse_reply};

use crate::format::{Sink, put_i64, put_u64};
use crate::request::StoreMode;

const CRLF: &[u8] = b"\r\n";

/// Formats `get` (or, `with_cas`, `gets`) of one or more keys.
///
/// ```
/// let mut request = Vec::new();
/// kachel_wire::client::get(&mut request, [&b"a"[..], b"b"], false);
/// assert_eq!(request, b"get a b\r\n");
/// ```
#[inline]
pub fn get<'k>(sink: &mut impl Sink, keys: impl IntoIterator<Item = &'k [u8]>, with_cas: bool) {
    sink.put(if with_cas { b"gets" } else { b"get" });
    for key in keys {
        sink.put(b" ");
        sink.put(key);
    }
    sink.put(CRLF);
}

/// Formats `lease-get` of one or more keys.
///
/// ```
/// let mut request = Vec::new();
/// kachel_wire::client::lease_get(&mut request, [&b"a"[..], b"b"]);
/// assert_eq!(request, b"lease-get a b\r\n");
/// ```
pub fn lease_get<'k>(sink: &mut impl Sink, keys: impl IntoIterator<Item = &'k [u8]>) {
    sink.put(b"lease-get");
    for key in keys {
        sink.put_all([b" ", key]);
    }
    sink.put(CRLF);
}

/// Formats `gat` of one key.
///
/// ```
/// let mut request = Vec::new();
/// kachel_wire::client::get_and_touch(&mut request, b"k", 60);
/// assert_eq!(request, b"gat 60 k\r\n");
/// ```
pub fn get_and_touch(sink: &mut impl Sink, key: &[u8], ttl: i32) {
    sink.put(b"gat ");
    put_i64(sink, i64::from(ttl));
    sink.put(b" ");
    sink.put(key);
    sink.put(CRLF);
}

/// Formats `mg` of a text key; `flags` is copied to the line.
///
/// ```
/// let mut request = Vec::new();
/// kachel_wire::client::meta_get(&mut request, b"k", b"v q");
/// assert_eq!(request, b"mg k v q\r\n");
/// ```
#[inline]
pub fn meta_get(sink: &mut impl Sink, key: &[u8], flags: &[u8]) {
    sink.put(b"mg ");
    sink.put(key);
    put_flags(sink, flags);
}

/// Formats `ms` with its data block.
///
/// ```
/// let mut request = Vec::new();
/// kachel_wire::client::meta_set(&mut request, b"k", b"T60", b"abc");
/// assert_eq!(request, b"ms k 3 T60\r\nabc\r\n");
/// ```
#[inline]
pub fn meta_set(sink: &mut impl Sink, key: &[u8], flags: &[u8], value: &[u8]) {
    meta_set_head(sink, key, flags, value.len());
    sink.put(value);
    sink.put(CRLF);
}

/// Formats the line of `ms`; the caller must add the value and CR LF.
#[inline]
pub fn meta_set_head(sink: &mut impl Sink, key: &[u8], flags: &[u8], value_bytes: usize) {
    sink.put(b"ms ");
    sink.put(key);
    sink.put(b" ");
    put_u64(sink, value_bytes as u64);
    put_flags(sink, flags);
}

/// Formats `md`.
pub fn meta_delete(sink: &mut impl Sink, key: &[u8], flags: &[u8]) {
    sink.put(b"md ");
    sink.put(key);
    put_flags(sink, flags);
}

/// Formats `ma`.
pub fn meta_arithmetic(sink: &mut impl Sink, key: &[u8], flags: &[u8]) {
    sink.put(b"ma ");
    sink.put(key);
    put_flags(sink, flags);
}

/// Formats `mn`, whose reply comes after those of all quiet requests before it.
pub fn meta_noop(sink: &mut impl Sink) {
    sink.put(b"mn\r\n");
}

#[inline]
fn put_flags(sink: &mut impl Sink, flags: &[u8]) {
    if !flags.is_empty() {
        sink.put(b" ");
        sink.put(flags);
    }
    sink.put(CRLF);
}

/// A storage request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreRequest<'k> {
    /// How to store.
    pub mode: StoreMode,
    /// The key.
    pub key: &'k [u8],
    /// The client flags.
    pub client_flags: u32,
    /// The TTL.
    pub ttl: i32,
    /// With a token, the request is a `cas` if `mode` is `Set`, and a `lease-set` if it is `Lease`,
    /// which needs one. No other mode has a token.
    pub compare_cas: Option<u64>,
    /// Whether to ask for no reply.
    pub noreply: bool,
}

impl<'k> StoreRequest<'k> {
    /// A plain `set`: no client flags, no expiry, with a reply.
    #[inline]
    pub const fn set(key: &'k [u8]) -> Self {
        Self {
            mode: StoreMode::Set,
            key,
            client_flags: 0,
            ttl: 0,
            compare_cas: None,
            noreply: false,
        }
    }
}

/// Formats a storage request with its data block.
///
/// ```
/// use kachel_wire::client::{StoreRequest, store};
/// let mut request = Vec::new();
/// store(&mut request, &StoreRequest { ttl: 60, ..StoreRequest::set(b"k") }, b"abc");
/// assert_eq!(request, b"set k 0 60 3\r\nabc\r\n");
/// ```
#[inline]
pub fn store(sink: &mut impl Sink, request: &StoreRequest<'_>, value: &[u8]) {
    store_head(sink, request, value.len());
    sink.put(value);
    sink.put(CRLF);
}

/// Formats the line of a storage request; the caller must add the value and CR LF.
#[inline]
pub fn store_head(sink: &mut impl Sink, request: &StoreRequest<'_>, value_bytes: usize) {
    let lease_token = request.compare_cas.filter(|_| request.mode == StoreMode::Lease);
    debug_assert!(
        request.compare_cas.is_none() || request.mode == StoreMode::Set || lease_token.is_some()
    );
    sink.put(match (request.mode, request.compare_cas) {
        (StoreMode::Lease, _) => b"lease-set ",
        (_, Some(_)) => b"cas ",
        (StoreMode::Set, None) => b"set ",
        (StoreMode::Add, None) => b"add ",
        (StoreMode::Replace, None) => b"replace ",
        (StoreMode::Append, None) => b"append ",
        (StoreMode::Prepend, None) => b"prepend ",
    });
    sink.put(request.key);
    sink.put(b" ");
    if let Some(token) = lease_token {
        put_u64(sink, token);
        sink.put(b" ");
    }
    put_u64(sink, u64::from(request.client_flags));
    sink.put(b" ");
    put_i64(sink, i64::from(request.ttl));
    sink.put(b" ");
    put_u64(sink, value_bytes as u64);
    if let Some(token) = request.compare_cas.filter(|_| lease_token.is_none()) {
        sink.put(b" ");
        put_u64(sink, token);
    }
    end(sink, request.noreply);
}

/// Formats `delete`.
pub fn delete(sink: &mut impl Sink, key: &[u8], noreply: bool) {
    sink.put(b"delete ");
    sink.put(key);
    end(sink, noreply);
}

/// Formats `touch`.
pub fn touch(sink: &mut impl Sink, key: &[u8], ttl: i32, noreply: bool) {
    sink.put(b"touch ");
    sink.put(key);
    sink.put(b" ");
    put_i64(sink, i64::from(ttl));
    end(sink, noreply);
}

/// Formats `incr`.
pub fn incr(sink: &mut impl Sink, key: &[u8], delta: u64, noreply: bool) {
    arithmetic(sink, b"incr ", key, delta, noreply);
}

/// Formats `decr`.
pub fn decr(sink: &mut impl Sink, key: &[u8], delta: u64, noreply: bool) {
    arithmetic(sink, b"decr ", key, delta, noreply);
}

fn arithmetic(sink: &mut impl Sink, verb: &[u8], key: &[u8], delta: u64, noreply: bool) {
    sink.put(verb);
    sink.put(key);
    sink.put(b" ");
    put_u64(sink, delta);
    end(sink, noreply);
}

#[inline]
fn end(sink: &mut impl Sink, noreply: bool) {
    sink.put(if noreply { b" noreply\r\n" } else { CRLF });
}

#[cfg(test)]
mod tests;

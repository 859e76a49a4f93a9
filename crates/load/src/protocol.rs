//! The protocols that the generator speaks: how a request is formatted in each.
//!
//! Upstream:   a source picks keys and values.
//! Downstream: the outbox of a connection; `reply` parses what the server answers.
//!
//! ```text
//!          one key     several keys                  set            with a token   delete, incr
//! text     get k       get k1 k2 ...                 set k 0 TTL n  gets, cas      delete, incr
//! meta     mg k k v    mg k1 k v q, mg k2 k v q, mn  ms k n TTTL    mg c, ms Cn    md, ma
//! binary   GET         GETKQ, GETKQ, NOOP            SET            GET, SET       DELETE, ..
//! ```
//!
//! A scan is `mscan k n k v` (Kachel's `docs/scan.md`).
//!
//! Invariants, cited by number where they are asserted:
//! - I1  Every request is answered: the quiet commands of a get of several keys are followed by
//!   one that is always answered.
//! - I2  In the binary protocol, the commands of a connection are numbered from 0 on. The number is
//!   the opaque of the command, and wraps at 32 bits.

use std::io::Write;

use clap::ValueEnum;
use kachel_wire::client::{
    BINARY_DELETE, BINARY_GET, BINARY_GETKQ, BINARY_NOOP, StoreRequest, binary_increment,
    binary_request, binary_set_head, delete, get, incr, meta_arithmetic, meta_delete, meta_get,
    meta_noop, meta_set_head, store_head,
};
use serde::Serialize;

use crate::keys::put_value;
use crate::request::Outbox;

/// A protocol of memcached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Protocol {
    /// The text protocol: get, set, gets, cas, delete, incr
    #[default]
    Text,
    /// The meta commands: mg, ms, md, ma, mn, and mscan
    Meta,
    /// The binary protocol: GET, GETKQ, SET, DELETE, INCREMENT, NOOP
    Binary,
}

/// Space for the flags of a meta set: a TTL and a CAS token.
const META_FLAGS_BYTES: usize = 40;
/// The first value of a counter: so great that counting does not make it longer.
const COUNTER_START: &[u8] = b"1000000000";

/// A value that is stored.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value {
    /// The start of the stream of this seed.
    Stream {
        /// The seed.
        seed: u64,
        /// The number of bytes.
        bytes: usize,
    },
    /// The first value of a counter.
    Counter,
}

impl Value {
    #[inline]
    fn bytes(self) -> usize {
        match self {
            Self::Stream { bytes, .. } => bytes,
            Self::Counter => COUNTER_START.len(),
        }
    }
}

impl Protocol {
    /// Whether a get of this number of keys consists of quiet commands and one that ends them.
    #[inline]
    pub(crate) fn is_quiet(self, keys: u32) -> bool {
        self != Self::Text && keys > 1
    }

    /// The number of commands of a get.
    #[inline]
    pub(crate) fn commands_of_get(self, keys: u32) -> u32 {
        debug_assert!(keys > 0, "I1: a get has a key");
        match self {
            Self::Text => 1,
            Self::Meta | Self::Binary => keys + u32::from(self.is_quiet(keys)),
        }
    }

    /// Formats a get of one key.
    #[inline]
    pub(crate) fn put_get(self, key: &[u8], outbox: &mut Outbox) {
        let opaque = outbox.next_opaque(1); // I2
        match self {
            Self::Text => get(&mut outbox.bytes, [key], false),
            Self::Meta => meta_get(&mut outbox.bytes, key, b"k v"),
            Self::Binary => binary_request(&mut outbox.bytes, BINARY_GET, opaque, key),
        }
    }

    /// Formats a get of one key with its CAS token.
    pub(crate) fn put_gets(self, key: &[u8], outbox: &mut Outbox) {
        match self {
            Self::Binary => self.put_get(key, outbox), // Every answer has the token.
            Self::Text => get(&mut outbox.bytes, [key], true),
            Self::Meta => meta_get(&mut outbox.bytes, key, b"c k v"),
        }
    }

    /// Formats a scan of at most `count` items from a key on. Only the meta commands have one.
    pub(crate) fn put_scan(self, key: &[u8], count: u32, outbox: &mut Outbox) {
        assert!(self == Self::Meta, "the options refuse it with other protocols");
        outbox.next_opaque(1); // I2
        for piece in [b"mscan ", key, b" ", count.to_string().as_bytes(), b" k v\r\n"] {
            outbox.bytes.extend_from_slice(piece);
        }
    }

    /// Formats a delete.
    pub(crate) fn put_delete(self, key: &[u8], outbox: &mut Outbox) {
        let opaque = outbox.next_opaque(1); // I2
        match self {
            Self::Text => delete(&mut outbox.bytes, key, false),
            Self::Meta => meta_delete(&mut outbox.bytes, key, b""),
            Self::Binary => binary_request(&mut outbox.bytes, BINARY_DELETE, opaque, key),
        }
    }

    /// Formats an increment by 1.
    pub(crate) fn put_incr(self, key: &[u8], outbox: &mut Outbox) {
        let opaque = outbox.next_opaque(1); // I2
        match self {
            Self::Text => incr(&mut outbox.bytes, key, 1, false),
            Self::Meta => meta_arithmetic(&mut outbox.bytes, key, b""),
            Self::Binary => binary_increment(&mut outbox.bytes, opaque, key, 1),
        }
    }

    /// Begins a get of several keys, which [`Self::put_key`] adds and [`Self::end_get`] ends.
    #[inline]
    pub(crate) fn begin_get(self, outbox: &mut Outbox) {
        if self == Self::Text {
            outbox.bytes.extend_from_slice(b"get");
        }
    }

    /// Adds a key to a get of several keys.
    #[inline]
    pub(crate) fn put_key(self, key: &[u8], outbox: &mut Outbox) {
        match self {
            Self::Text => {
                outbox.bytes.push(b' ');
                outbox.bytes.extend_from_slice(key);
            }
            Self::Meta => meta_get(&mut outbox.bytes, key, b"k v q"),
            Self::Binary => {
                let opaque = outbox.next_opaque(1); // I2
                binary_request(&mut outbox.bytes, BINARY_GETKQ, opaque, key);
            }
        }
    }

    /// Ends a get of several keys (I1).
    #[inline]
    pub(crate) fn end_get(self, outbox: &mut Outbox) {
        match self {
            Self::Text => outbox.bytes.extend_from_slice(b"\r\n"),
            Self::Meta => meta_noop(&mut outbox.bytes),
            Self::Binary => {
                let opaque = outbox.next_opaque(1); // I2
                binary_request(&mut outbox.bytes, BINARY_NOOP, opaque, b"");
            }
        }
    }

    /// Formats a set, or a `cas` if there is a CAS token to compare.
    #[inline]
    pub(crate) fn put_set(
        self,
        key: &[u8],
        ttl_s: i32,
        value: Value,
        compare_cas: Option<u64>,
        outbox: &mut Outbox,
    ) {
        let opaque = outbox.next_opaque(1); // I2
        let out = &mut outbox.bytes;
        let value_bytes = value.bytes();
        match self {
            Self::Text => {
                let request = StoreRequest { ttl: ttl_s, compare_cas, ..StoreRequest::set(key) };
                store_head(out, &request, value_bytes);
            }
            Self::Meta => {
                let mut flags = [0; META_FLAGS_BYTES];
                let mut rest = &mut flags[..];
                if ttl_s != 0 {
                    write!(rest, "T{ttl_s}").expect("an i32 has at most 11 digits");
                }
                if let Some(token) = compare_cas {
                    let gap = if ttl_s == 0 { "" } else { " " };
                    write!(rest, "{gap}C{token}").expect("a u64 has at most 20 digits");
                }
                let flag_bytes = META_FLAGS_BYTES - rest.len();
                meta_set_head(out, key, &flags[..flag_bytes], value_bytes);
            }
            Self::Binary => {
                binary_set_head(out, opaque, key, ttl_s, value_bytes, compare_cas.unwrap_or(0));
            }
        }
        match value {
            Value::Stream { seed, bytes } => put_value(seed, bytes, out),
            Value::Counter => out.extend_from_slice(COUNTER_START),
        }
        if self != Self::Binary {
            out.extend_from_slice(b"\r\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of a get of these keys, then a set of "k" without a value.
    fn formatted(protocol: Protocol, keys: &[&[u8]], ttl_s: i32) -> (Vec<u8>, Outbox) {
        let mut outbox = Outbox::default();
        if let [key] = keys {
            protocol.put_get(key, &mut outbox);
        } else {
            protocol.begin_get(&mut outbox);
            keys.iter().for_each(|key| protocol.put_key(key, &mut outbox));
            protocol.end_get(&mut outbox);
        }
        let value = Value::Stream { seed: 0, bytes: 0 };
        protocol.put_set(b"k", ttl_s, value, None, &mut outbox);
        (outbox.bytes.clone(), outbox)
    }

    #[test]
    fn requests_of_text_and_meta_are_formatted() {
        type Keys<'k> = &'k [&'k [u8]];
        let rows: [(Protocol, Keys<'_>, i32, &[u8]); 4] = [
            (Protocol::Text, &[b"a"], 60, b"get a\r\nset k 0 60 0\r\n\r\n"),
            (Protocol::Text, &[b"a", b"b"], 0, b"get a b\r\nset k 0 0 0\r\n\r\n"),
            (Protocol::Meta, &[b"a"], 60, b"mg a k v\r\nms k 0 T60\r\n\r\n"),
            (Protocol::Meta, &[b"a", b"b"], 0, b"mg a k v q\r\nmg b k v q\r\nmn\r\nms k 0\r\n\r\n"),
        ];
        for (protocol, keys, ttl_s, expected) in rows {
            let (bytes, _) = formatted(protocol, keys, ttl_s);
            assert_eq!(bytes, expected, "I1: {}", bytes.escape_ascii());
        }
    }

    #[test]
    fn requests_with_a_token_deletes_and_increments_are_formatted() {
        for (protocol, expected) in [
            (Protocol::Text, "gets k\r\ncas k 0 60 10 7\r\n1000000000\r\ndelete k\r\nincr k 1\r\n"),
            (Protocol::Meta, "mg k c k v\r\nms k 10 T60 C7\r\n1000000000\r\nmd k\r\nma k\r\n"),
        ] {
            let mut outbox = Outbox::default();
            protocol.put_gets(b"k", &mut outbox);
            protocol.put_set(b"k", 60, Value::Counter, Some(7), &mut outbox);
            protocol.put_delete(b"k", &mut outbox);
            protocol.put_incr(b"k", &mut outbox);
            assert_eq!(String::from_utf8_lossy(&outbox.bytes), expected, "I1");
        }
        let mut outbox = Outbox::default();
        Protocol::Meta.put_set(b"k", i32::MAX, Value::Counter, Some(u64::MAX), &mut outbox);
        assert!(outbox.bytes.starts_with(b"ms k 10 T2147483647 C18446744073709551615\r\n"));
        outbox.bytes.clear();
        Protocol::Meta.put_scan(b"k", 100, &mut outbox);
        assert_eq!(outbox.bytes, b"mscan k 100 k v\r\n");
    }

    #[test]
    fn binary_commands_are_numbered_over_all_requests() {
        let (mut bytes, _) = formatted(Protocol::Binary, &[b"a", b"b"], 60);
        let mut heads = Vec::new();
        while !bytes.is_empty() {
            let body_bytes = usize::from(bytes[11]);
            heads.push((bytes[1], bytes[15]));
            bytes.drain(..24 + body_bytes);
        }
        assert_eq!(heads, [(0x0d, 0), (0x0d, 1), (0x0a, 2), (0x01, 3)], "I1, I2");
        let (_, mut outbox) = formatted(Protocol::Binary, &[b"a"], 0);
        assert_eq!(outbox.next_opaque(1), 2, "I2");
    }
}

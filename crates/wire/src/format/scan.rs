//! Formats the reply to `mscan`. `docs/scan.md` describes it.
//!
//! Upstream:   `shard`, with an item of a scan, or at the end of a reply.
//! Downstream: a [`Sink`].

use kachel_engine::Facts;

use super::{CRLF, Sink, key_fits_a_line, put_base64, put_u64};
use crate::request::ScanFields;

/// Bytes of the longest item without its value: the code, the flags, a key in base64, and the ends
/// of the line and of the value.
pub const SCAN_HEAD_BYTES_MAX: usize = 512;

/// Formats an item of a scan, with its value if there is one: `VA BYTES FLAGS` or `HD FLAGS`.
///
/// ```
/// use kachel_engine::Facts;
/// use kachel_wire::format::scan_item;
/// use kachel_wire::request::ScanFields;
/// let (mut reply, mut fields) = (Vec::new(), ScanFields::default());
/// b"ktfsc".iter().for_each(|&letter| fields.push(letter));
/// let facts = Facts { value_bytes: 3, cas: 7, ..Facts::default() };
/// scan_item(&mut reply, b"a", &facts, fields, Some(b"xyz"));
/// scan_item(&mut reply, b"b\n", &facts, ScanFields::default(), None);
/// assert_eq!(reply, b"VA 3 ka t-1 f0 s3 c7\r\nxyz\r\nHD\r\n");
/// ```
pub fn scan_item(
    sink: &mut impl Sink,
    key: &[u8],
    facts: &Facts,
    fields: ScanFields,
    value: Option<&[u8]>,
) {
    match value {
        None => sink.put(b"HD"),
        Some(value) => {
            sink.put(b"VA ");
            put_u64(sink, value.len() as u64);
        }
    }
    for &letter in fields.letters() {
        sink.put_all([b" ", &[letter]]);
        match (letter, facts.ttl_before) {
            (b'k', _) => put_scan_key(sink, key, facts.protocol_mark == Some(true)),
            (b't', None) => sink.put(b"-1"),
            (b't', Some(seconds)) => put_u64(sink, u64::from(seconds as u32)),
            (b'f', _) => put_u64(sink, u64::from(facts.client_flags)),
            (b's', _) => put_u64(sink, facts.value_bytes as u64),
            _ => put_u64(sink, facts.cas),
        }
    }
    for (mark, is_set) in [(b" Z", facts.win_sent), (b" X", facts.stale)] {
        if is_set {
            sink.put(mark);
        }
    }
    sink.put(CRLF);
    if let Some(value) = value {
        sink.put_all([value, CRLF]);
    }
}

/// Formats the last line of a reply: `EN`, or `MO` with the key after which the scan goes on. The
/// key is base64 if `base64` is set, or if it cannot be text. `opaque` is repeated with its letter.
///
/// ```
/// use kachel_wire::format::scan_end;
/// let mut reply = Vec::new();
/// scan_end(&mut reply, None, false, b"");
/// scan_end(&mut reply, Some(b"key"), false, b"O7");
/// scan_end(&mut reply, Some(b"key"), true, b"");
/// assert_eq!(reply, b"EN\r\nMO kkey O7\r\nMO ka2V5 b\r\n");
/// ```
pub fn scan_end(sink: &mut impl Sink, more: Option<&[u8]>, base64: bool, opaque: &[u8]) {
    match more {
        None => sink.put(b"EN"),
        Some(key) => {
            sink.put(b"MO k");
            put_scan_key(sink, key, base64);
        }
    }
    if !opaque.is_empty() {
        sink.put_all([b" ", opaque]);
    }
    sink.put(CRLF);
}

fn put_scan_key(sink: &mut impl Sink, key: &[u8], base64: bool) {
    if base64 || !key_fits_a_line(key) {
        put_base64(sink, key);
        sink.put(b" b");
    } else {
        sink.put(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_item_has_a_longer_line_than_the_limit() {
        let (mut fields, mut line) = (ScanFields::default(), Vec::new());
        b"ktfsc".iter().for_each(|&letter| fields.push(letter));
        let facts = Facts {
            value_bytes: usize::MAX,
            client_flags: u32::MAX,
            cas: u64::MAX,
            ttl_before: Some(i64::from(u32::MAX)),
            stale: true,
            win_sent: true,
            protocol_mark: Some(true),
            ..Facts::default()
        };
        scan_item(&mut line, &[b'\n'; 250], &facts, fields, Some(b""));
        assert!(line.len() < SCAN_HEAD_BYTES_MAX, "{}", line.len());
        assert!(line.ends_with(
            b" t4294967295 f4294967295 s18446744073709551615 \
            c18446744073709551615 Z X\r\n\r\n"
        ));
    }

    #[test]
    fn a_key_that_ends_a_line_is_base64() {
        let mut reply = Vec::new();
        scan_end(&mut reply, Some(b"a\r\nEN"), false, b"");
        assert_eq!(reply, b"MO kYQ0KRU4= b\r\n");
    }
}

//! `mscan`: parses the request of a scan. `docs/scan.md` describes it.
//!
//! Upstream:   `line` passes the rest of the line, without its end.
//! Downstream: an `Admin` request, which borrows the line.
//!
//! Invariants:
//! - S1  Every key of a [`Scan`] was decoded once, and has 1 to `KEY_BYTES_MAX` bytes.
//! - S2  If there are several mistakes, the first one in the line is answered. But a key is decoded
//!   when all flags are known, because any of them may be `b`.

use crate::base64;
use crate::number::read_u32;
use crate::refusal::Outcome;
use crate::reply::Reply;
use crate::request::{
    Admin, KEY_BYTES_MAX, Letters, MetaKey, OPAQUE_BYTES_MAX, Request, Scan, ScanFields,
};
use crate::words::Words;

/// Bytes of the longest key as it is sent, in base64.
const KEY_TEXT_BYTES_MAX: usize = base64::encoded_bytes(KEY_BYTES_MAX);

/// `mscan`.
pub(crate) fn scan(rest: &[u8]) -> Outcome<'_> {
    let mut words = Words::new(rest);
    let from = words.next().ok_or(Reply::BadLine)?;
    let count = words.next().and_then(read_u32).filter(|&count| count > 0).ok_or(Reply::BadLine)?;
    let mut scan = Scan {
        from: MetaKey { text: from, base64: false },
        is_after: false,
        until: None,
        prefix: None,
        count,
        fields: ScanFields::default(),
        opaque: b"",
    };
    let mut letters = Letters::default();
    for flag in words {
        let (letter, token) = (flag[0], &flag[1..]);
        if !letter.is_ascii_alphabetic() {
            return Err(Reply::InvalidFlag.into());
        }
        if letters.has(letter) {
            return Err(Reply::DuplicateFlag.into());
        }
        letters = letters.with(letter);
        match letter {
            b'v' => scan.fields.with_value = true,
            b'f' | b't' | b's' | b'c' | b'k' => scan.fields.push(letter),
            b'a' => scan.is_after = true,
            b'b' => scan.from.base64 = true,
            b'U' => scan.until = Some(token),
            b'P' => scan.prefix = Some(token),
            b'O' if flag.len() > OPAQUE_BYTES_MAX => return Err(Reply::OpaqueTooLong.into()),
            b'O' => scan.opaque = flag,
            _ => return Err(Reply::InvalidFlag.into()),
        }
    }
    for text in [Some(from), scan.until, scan.prefix].into_iter().flatten() {
        check_key(MetaKey { text, ..scan.from })?;
    }
    Ok(Request::Admin(Admin::Scan(scan)))
}

/// Whether a text is a key (S1).
fn check_key(key: MetaKey<'_>) -> Result<(), Reply> {
    let bytes_max = if key.base64 { KEY_TEXT_BYTES_MAX } else { KEY_BYTES_MAX };
    if key.text.is_empty() || key.text.len() > bytes_max {
        return Err(Reply::BadLine);
    }
    let is_key = !key.base64 || base64::decode(key.text, &mut [0; KEY_BYTES_MAX]).is_some();
    if is_key { Ok(()) } else { Err(Reply::BadKeyEncoding) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::{Parsed, parse};

    fn scan_of(line: &[u8]) -> Scan<'_> {
        let Parsed::Request { request: Request::Admin(Admin::Scan(scan)), line_bytes } =
            parse(line, 0)
        else {
            panic!("{}", line.escape_ascii());
        };
        assert_eq!(line_bytes, line.len());
        scan
    }

    #[test]
    fn the_parts_of_a_scan_are_read() {
        let scan = scan_of(b"mscan user:1 20 k v s a Uuser:9 Puser: O7\r\n");
        let from = MetaKey { text: b"user:1", base64: false };
        assert_eq!((scan.from, scan.is_after, scan.count), (from, true, 20));
        assert_eq!((scan.until, scan.prefix), (Some(&b"user:9"[..]), Some(&b"user:"[..])));
        assert_eq!((scan.fields.letters(), scan.opaque), (&b"ks"[..], &b"O7"[..]));
        assert!(scan.fields.with_value);
        let scan = scan_of(b"mscan AA== 4294967295 b UYQ==\n");
        assert!(scan.from.base64 && !scan.is_after && scan.fields.letters().is_empty());
    }

    #[test]
    fn mistakes_are_answered() {
        let long = |bytes| "x".repeat(bytes);
        let rows = [
            ("mscan".to_owned(), Reply::BadLine),
            ("mscan k".to_owned(), Reply::BadLine),
            ("mscan k 0".to_owned(), Reply::BadLine),
            ("mscan k -1".to_owned(), Reply::BadLine),
            ("mscan k 4294967296".to_owned(), Reply::BadLine),
            ("mscan k x".to_owned(), Reply::BadLine),
            (format!("mscan {} 1", long(251)), Reply::BadLine),
            (format!("mscan k 1 P{}", long(251)), Reply::BadLine),
            (format!("mscan YQ== 1 U{} b", long(340)), Reply::BadLine),
            ("mscan k 1 U".to_owned(), Reply::BadLine),
            ("mscan k 1 P".to_owned(), Reply::BadLine),
            ("mscan k 1 b".to_owned(), Reply::BadKeyEncoding),
            ("mscan YQ== 1 b P%".to_owned(), Reply::BadKeyEncoding),
            // The longest base64 that is no key.
            (format!("mscan {} 1 b", long(336)), Reply::BadKeyEncoding),
            ("mscan k 1 v v".to_owned(), Reply::DuplicateFlag),
            ("mscan k 1 q".to_owned(), Reply::InvalidFlag),
            ("mscan k 1 T0".to_owned(), Reply::InvalidFlag),
            ("mscan k 1 1".to_owned(), Reply::InvalidFlag),
            (format!("mscan k 1 O{}", long(32)), Reply::OpaqueTooLong),
        ];
        for (line, reply) in rows {
            let text = format!("{line}\r\n");
            let Parsed::Refused { refusal, line_bytes } = parse(text.as_bytes(), 0) else {
                panic!("{line}");
            };
            assert_eq!(
                (refusal.reply, refusal.skip_bytes, line_bytes),
                (reply, 0, text.len()),
                "{line}"
            );
        }
        scan_of(format!("mscan {} 1 b U{}\r\n", "AAAA".repeat(83) + "AA==", long(332)).as_bytes());
        scan_of(format!("mscan {} 1 U{} O{}\r\n", long(250), long(250), long(31)).as_bytes());
    }
}

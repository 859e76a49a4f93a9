//! The reader of replies: total, and independent of the pieces in which they come.
//!
//! Upstream:   the client target gives bytes as a server might have sent them.
//! Downstream: `kachel_wire::client::parse_reply`.

use kachel_wire::client::{ClientReply, ReplyParsed, parse_reply};

/// Replies of one input that are looked at.
const REPLIES_MAX: usize = 64;
/// Places at which one reply is cut.
const CUTS_MAX: usize = 96;

/// Reads `data` as replies, one after the other.
pub fn client(data: &[u8]) {
    let mut rest = data;
    for _ in 0..REPLIES_MAX {
        match parse_reply(rest) {
            ReplyParsed::Reply { reply, reply_bytes } => {
                assert!((1..=rest.len()).contains(&reply_bytes));
                whole(&reply, &rest[..reply_bytes]);
                pieces(rest, &reply, reply_bytes);
                rest = &rest[reply_bytes..];
            }
            ReplyParsed::NeedMore { missing_bytes } => return wanting(rest, missing_bytes),
            ReplyParsed::Garbage => return,
        }
    }
}

/// What a reply says of its value is so.
fn whole(reply: &ClientReply<'_>, bytes: &[u8]) {
    assert!(bytes.ends_with(b"\n"));
    let value = match reply {
        ClientReply::Value { value, .. } => Some(value),
        ClientReply::Meta { value, code, .. } => {
            assert_eq!(value.is_some(), code == b"VA");
            value.as_ref()
        }
        _ => None,
    };
    if let Some(value) = value {
        assert!(value.start <= value.end && bytes[value.end..] == *b"\r\n");
        assert_eq!(bytes[value.start - 1], b'\n');
    }
}

/// Until its last byte is there, a reply is not given; what stands behind it changes nothing.
fn pieces(input: &[u8], reply: &ClientReply<'_>, reply_bytes: usize) {
    for cut in cuts(reply_bytes) {
        match parse_reply(&input[..cut]) {
            ReplyParsed::NeedMore { missing_bytes } => {
                assert!((1..=reply_bytes - cut).contains(&missing_bytes), "cut at {cut}");
            }
            other => panic!("cut at {cut} of {reply_bytes}: {other:?}"),
        }
    }
    let expected = ReplyParsed::Reply { reply: reply.clone(), reply_bytes };
    assert_eq!(parse_reply(&input[..reply_bytes]), expected);
}

/// As long as fewer bytes come than are said to be missing, more are needed.
fn wanting(input: &[u8], missing_bytes: usize) {
    assert!(missing_bytes > 0);
    let mut longer = input.to_vec();
    for _ in 1..missing_bytes.min(16) {
        longer.push(b'\n');
        assert!(matches!(parse_reply(&longer), ReplyParsed::NeedMore { .. }));
    }
}

/// Places before `end`: all of them, or as many at each end.
pub(crate) fn cuts(end: usize) -> impl Iterator<Item = usize> {
    let near = end.min(CUTS_MAX / 2);
    (0..near).chain(near.max(end.saturating_sub(CUTS_MAX / 2))..end)
}

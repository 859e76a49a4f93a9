//! Checks of the reader of replies: it accepts any bytes, and its result does not depend on the
//! pieces in which a reply arrives.
//!
//! Upstream:   the client target, with bytes that a server might send.
//! Downstream: `kachel_wire::client::parse_reply`.

use kachel_wire::client::{ClientReply, ReplyParsed, parse_reply};

/// The most replies of one input that are checked.
const REPLIES_MAX: usize = 64;
/// The number of places at which one text is cut, besides those near its ends. Cutting at every
/// place would take nearly all the time. Other inputs are cut at other places.
const CUTS: usize = 4;

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

/// Checks that the value of a reply is where the reply says.
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

/// Checks that the reader returns a reply only when its last byte is there, and that the bytes
/// after a reply change nothing.
fn pieces(input: &[u8], reply: &ClientReply<'_>, reply_bytes: usize) {
    for cut in cuts(&input[..reply_bytes]) {
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

/// Checks that the reader needs more bytes as long as fewer than `missing_bytes` arrive.
fn wanting(input: &[u8], missing_bytes: usize) {
    assert!(missing_bytes > 0);
    let mut longer = input.to_vec();
    for _ in 1..missing_bytes.min(16) {
        longer.push(b'\n');
        assert!(matches!(parse_reply(&longer), ReplyParsed::NeedMore { .. }));
    }
}

/// Places at which to cut `text`: two at its start, two at its end, and some that its bytes select.
pub(crate) fn cuts(text: &[u8]) -> impl Iterator<Item = usize> {
    let end = text.len();
    let lot = usize::try_from(lot(text) >> 8).expect("64 bits");
    let some = (0..CUTS).map(move |number| (lot >> (number * 13)) % end);
    let near = [0, 1, end.saturating_sub(2), end.saturating_sub(1)];
    near.into_iter().filter(move |at| *at < end).chain(some)
}

/// A number that the bytes determine (FNV-1a), for arbitrary choices that are the same each time.
pub(crate) fn lot(bytes: &[u8]) -> u64 {
    let mix = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix)
}

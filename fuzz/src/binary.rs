//! Checks of the binary protocol: the parser accepts any bytes, its result does not depend on the
//! pieces in which a request arrives, the next request is found, and every reply is well-formed.
//!
//! Upstream:   the binary target. The first byte of an input decides whether the rest is a stream,
//!             fields from which headers with mostly right lengths are made, or messages of a
//!             login.
//! Downstream: `kachel_wire::parse_binary`, and the functions of `wire` that read its requests.

use kachel_engine::{Facts, Key, KeyHasher, Seeds, Value, Verb, Verdict};
use kachel_wire::request::{KEY_BYTES_MAX, Request};
use kachel_wire::{BinaryStatus, Parsed, Reply, binary_stats_topic, parse, parse_binary};

use crate::client::cuts;
use crate::login;

/// The most requests of one input that are checked.
const REQUESTS_MAX: usize = 16;
/// Bytes of a header.
const HEADER_BYTES: usize = 24;
/// Bytes of the longest request without its value.
const REQUEST_BYTES_MAX: usize = HEADER_BYTES + 20 + KEY_BYTES_MAX;
/// The lengths from which extras are chosen.
const EXTRAS_BYTES: [u8; 4] = [0, 4, 8, 20];

/// Checks requests of the binary protocol, then the same bytes as the requests of a client that
/// must log in by SASL. One input in eight is the messages of a login instead, because hashes take
/// time.
pub fn binary(data: &[u8]) {
    let Some((&pick, rest)) = data.split_first() else { return };
    match pick % 8 {
        7 => login::exchange(rest),
        0 | 2 | 4 | 6 => all(rest),
        _ => all(&stream_of(rest)),
    }
}

fn all(stream: &[u8]) {
    requests(stream);
    login::sasl(stream);
}

/// A stream of requests. Each takes five bytes of `fields`: opcode, lengths of extras, key and
/// value, and an error of the length of the body. What follows is filled with `fields`.
fn stream_of(fields: &[u8]) -> Vec<u8> {
    let mut stream = Vec::new();
    for field in fields.chunks_exact(5).take(REQUESTS_MAX) {
        let [opcode, extras, key, value, error] = *field else { unreachable!("five bytes") };
        let extras = EXTRAS_BYTES[usize::from(extras) % EXTRAS_BYTES.len()];
        let body = usize::from(extras) + usize::from(key) + usize::from(value);
        let told = if error < 240 { body } else { body.wrapping_add(usize::from(error) << 23) };
        stream.extend_from_slice(&[0x80, opcode, 0, key, extras, error, 0, 0]);
        stream.extend_from_slice(&(told as u32).to_be_bytes());
        stream.extend_from_slice(&[opcode, key, value, error]);
        stream.extend_from_slice(&u64::from(error % 2).to_be_bytes());
        stream.extend(fields.iter().cycle().take(body));
    }
    stream
}

/// Checks each request of a stream.
fn requests(stream: &[u8]) {
    let mut rest = stream;
    for _ in 0..REQUESTS_MAX {
        let parsed = parse_binary(rest);
        let (line_bytes, skip_bytes) = match parsed {
            Parsed::NeedMore => {
                assert!(rest.len() < REQUEST_BYTES_MAX, "no more is awaited");
                return;
            }
            Parsed::Close => return assert_ne!(rest.first(), Some(&0x80)),
            Parsed::Refused { .. } => panic!("a refusal of another protocol"),
            Parsed::RefusedBinary { refusal, line_bytes } => {
                assert_ne!(refusal.status, BinaryStatus::Success);
                let mut reply = Vec::new();
                refusal.head.put_status(&mut reply, refusal.status);
                assert_eq!(frames(&reply), 1);
                pieces(rest, line_bytes, parsed);
                if refusal.closes {
                    return assert_eq!(refusal.skip_bytes, 0);
                }
                (line_bytes, refusal.skip_bytes)
            }
            Parsed::Request { request, line_bytes } => {
                assert!(line_bytes <= REQUEST_BYTES_MAX);
                pieces(rest, line_bytes, parsed);
                request_holds(&request);
                (line_bytes, u64::from(request.announced_bytes().unwrap_or(0)))
            }
        };
        let body_bytes = u32::from_be_bytes([rest[8], rest[9], rest[10], rest[11]]);
        assert_eq!(line_bytes as u64 + skip_bytes, HEADER_BYTES as u64 + u64::from(body_bytes));
        let next = usize::try_from(line_bytes as u64 + skip_bytes).expect("64 bits");
        let Some(behind) = rest.get(next..) else { return };
        rest = behind;
    }
}

/// Checks that a part of a request is awaited, and that what follows it does not matter.
fn pieces(input: &[u8], line_bytes: usize, parsed: Parsed<'_>) {
    for cut in cuts(&input[..line_bytes]) {
        assert_eq!(parse_binary(&input[..cut]), Parsed::NeedMore, "cut at {cut}");
    }
    assert_eq!(parse_binary(&input[..line_bytes]), parsed, "with nothing behind it");
    assert_eq!(parse(input, 0), parsed, "its first byte selects the protocol");
}

/// Checks the promises of `wire` about each request, and the replies to it.
fn request_holds(request: &Request<'_>) {
    let mut reply = Vec::new();
    let key = match request {
        Request::Binary(binary) => binary.key,
        Request::BinaryAdmin { head, admin } => {
            if let kachel_wire::request::Admin::Stats { topic } = admin {
                assert!(topic.len() <= KEY_BYTES_MAX);
                let _topic = binary_stats_topic(topic);
            }
            for constant in Reply::ALL {
                reply.clear();
                head.put_reply(&mut reply, *constant);
                assert!(frames(&reply) == 1 || head.is_quiet() && reply.is_empty());
            }
            head.put_body(&mut reply, b"1.6.45");
            head.put_stat(&mut reply, b"name", b"value");
            assert!(frames(&reply) >= 2);
            return;
        }
        other => panic!("{other:?} of another protocol"),
    };
    assert!((1..=KEY_BYTES_MAX).contains(&key.len()));
    let hasher = KeyHasher::new(Seeds { hash_keys: [1, 2] }, 1);
    answers_are_frames(request, hasher.key(key), &mut reply);
    if request.announced_bytes().is_some() {
        reply.clear();
        request.answer_refusal(&mut reply, Reply::TooLarge);
        assert_eq!(frames(&reply), 1);
    }
}

/// Checks that each outcome of a request is at most one reply, which fits the room for it.
fn answers_are_frames(request: &Request<'_>, key: Key<'_>, reply: &mut Vec<u8>) {
    let facts = Facts { client_flags: u32::MAX, cas: u64::MAX, ..Facts::default() };
    let verb = request.operation(key, 100).verb;
    let found: &[Verdict] = match verb {
        Verb::Get(_) => &[Verdict::Hit(facts)],
        Verb::Store(_) => {
            &[Verdict::Stored { cas: 1, value_bytes: 9 }, Verdict::NotStored, Verdict::Exists]
        }
        Verb::Delete(_) => &[Verdict::Deleted, Verdict::Exists],
        Verb::Arithmetic(_) => {
            &[Verdict::Number { number: u64::MAX, facts }, Verdict::NonNumeric, Verdict::Exists]
        }
        Verb::Touch(_) | Verb::Inspect => panic!("no binary request asks for {verb:?}"),
    };
    let any = [Verdict::Miss, Verdict::NoMemory { found: true }, Verdict::DiskFailed];
    for verdict in found.iter().chain(&any) {
        reply.clear();
        let value: &[u8] = if request.shows_value() { b"a value" } else { b"" };
        let given = match verdict {
            Verdict::Hit(_) if request.shows_value() => Value::<()>::Inline(value),
            _ => Value::None,
        };
        assert!(request.answer(reply, verdict, given).is_none());
        assert!(frames(reply) <= 1);
        let room = usize::from(request.reply_bytes_max()) + value.len();
        assert!(reply.len() <= room, "{} bytes in {room}", reply.len());
    }
}

/// The number of replies in these bytes.
///
/// Panics: if they are not whole replies.
pub(crate) fn frames(mut bytes: &[u8]) -> usize {
    let mut count = 0;
    while !bytes.is_empty() {
        assert_eq!(bytes[0], 0x81);
        let body = u32::from_be_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]) as usize;
        let [key, extras] =
            [bytes[2..4].iter().fold(0, |n, b| n * 256 + usize::from(*b)), bytes[4].into()];
        assert!(key + extras <= body);
        bytes = &bytes[HEADER_BYTES + body..];
        count += 1;
    }
    count
}

//! Tests of the binary protocol. The replies are those that 1.6.45 was seen to send.

use kachel_engine::{Facts, Value, Verdict};
use proptest::prelude::*;

use super::{BODY_BYTES_MAX, HEADER_BYTES, REQUEST_BYTES_MAX, opcode};
use crate::refusal::BinaryRefusal;
use crate::reply::{BinaryStatus, Reply};
use crate::request::{
    Admin, BinaryHead, BinaryRequest, BinaryVerb, Direction, KEY_BYTES_MAX, Request, StoreMode, Ttl,
};
use crate::{Parsed, parse, parse_binary, parse_text};

const OPAQUE: [u8; 4] = [0xde, 0xad, 0xbe, 0xef];

/// A frame whose header announces these lengths.
fn announcing(opcode: u8, [key, extras]: [usize; 2], body: u32, cas: u64) -> Vec<u8> {
    let mut frame = vec![0x80, opcode];
    frame.extend_from_slice(&(key as u16).to_be_bytes());
    frame.extend_from_slice(&[extras as u8, 0, 0, 0]);
    frame.extend_from_slice(&body.to_be_bytes());
    frame.extend_from_slice(&OPAQUE);
    frame.extend_from_slice(&cas.to_be_bytes());
    frame
}

fn frame(opcode: u8, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
    let body = [extras, key, value].concat();
    let lengths = [key.len(), extras.len()];
    [announcing(opcode, lengths, body.len() as u32, 0), body].concat()
}

fn with_cas(mut frame: Vec<u8>, cas: u64) -> Vec<u8> {
    frame[16..24].copy_from_slice(&cas.to_be_bytes());
    frame
}

#[track_caller]
fn accepted(frame: &[u8], value_bytes: usize) -> Request<'_> {
    match parse(frame, 0) {
        Parsed::Request { request, line_bytes } => {
            assert_eq!(line_bytes, frame.len() - value_bytes);
            request
        }
        other => panic!("{} -> {other:?}", frame.escape_ascii()),
    }
}

#[track_caller]
fn of_key(frame: &[u8], value_bytes: usize) -> BinaryRequest<'_> {
    match accepted(frame, value_bytes) {
        Request::Binary(request) => request,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn check_refused(frame: &[u8], status: BinaryStatus, skip_bytes: u64, closes: bool) {
    let head = BinaryHead { opcode: frame[1], opaque: OPAQUE };
    let refusal = BinaryRefusal { head, status, skip_bytes, closes };
    let expected = Parsed::RefusedBinary { refusal, line_bytes: HEADER_BYTES };
    assert_eq!(parse(frame, 0), expected, "{}", frame.escape_ascii());
    assert_eq!(parse(&frame[..HEADER_BYTES], 0), expected, "the header is enough");
}

#[test]
fn every_opcode_is_read_and_so_is_its_quiet_twin() {
    let get = |ttl, with_value, with_key| BinaryVerb::Get { ttl, with_value, with_key };
    let store = |mode, client_flags, ttl| BinaryVerb::Store {
        mode,
        client_flags,
        ttl: Ttl(ttl),
        value_bytes: 3,
    };
    let count = |direction| BinaryVerb::Arithmetic {
        direction,
        delta: 2,
        initial: 1 << 40,
        create: Some(Ttl(60)),
    };
    let (stored, touched) = ([0, 0, 0, 7, 0, 0, 0, 9], [0, 0, 0, 100]);
    let counted = [0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 60];
    let hundred = Some(Ttl(100));
    type Row<'r> = (u8, Option<u8>, &'r [u8], &'r [u8], BinaryVerb);
    let rows: [Row<'_>; 13] = [
        (0x00, Some(0x09), b"", b"", get(None, true, false)),
        (0x0c, Some(0x0d), b"", b"", get(None, true, true)),
        (0x1c, None, &touched, b"", get(hundred, false, false)),
        (0x1d, Some(0x1e), &touched, b"", get(hundred, true, false)),
        (0x23, Some(0x24), &touched, b"", get(hundred, true, true)),
        (0x01, Some(0x11), &stored, b"abc", store(StoreMode::Set, 7, 9)),
        (0x02, Some(0x12), &stored, b"abc", store(StoreMode::Add, 7, 9)),
        (0x03, Some(0x13), &stored, b"abc", store(StoreMode::Replace, 7, 9)),
        (0x0e, Some(0x19), b"", b"abc", store(StoreMode::Append, 0, 0)),
        (0x0f, Some(0x1a), b"", b"abc", store(StoreMode::Prepend, 0, 0)),
        (0x04, Some(0x14), b"", b"", BinaryVerb::Delete),
        (0x05, Some(0x15), &counted, b"", count(Direction::Up)),
        (0x06, Some(0x16), &counted, b"", count(Direction::Down)),
    ];
    for (loud, quiet, extras, value, verb) in rows {
        for opcode in [Some(loud), quiet].into_iter().flatten() {
            let frame = with_cas(frame(opcode, extras, b"a \r\n\0", value), 5);
            let request = of_key(&frame, value.len());
            assert_eq!((request.verb, request.key), (verb, &b"a \r\n\0"[..]), "{opcode:#x}");
            assert_eq!(request.head, BinaryHead { opcode, opaque: OPAQUE });
            assert_eq!(request.head.is_quiet(), opcode != loud, "{opcode:#x}");
            assert_eq!(request.compare_cas, Some(5));
        }
    }
    assert_eq!(of_key(&frame(0x00, b"", b"k", b""), 0).compare_cas, None);
}

#[test]
fn requests_without_a_key_are_read_and_so_are_their_quiet_twins() {
    let flush = |delay| Admin::FlushAll { delay: Ttl(delay), noreply: false };
    let rows: [(u8, &[u8], &[u8], Admin<'_>); 9] = [
        (0x0a, b"", b"", Admin::Settled { reply: Reply::Ok, noreply: false }),
        (0x0b, b"", b"", Admin::Version),
        (0x07, b"", b"", Admin::Quit),
        (0x17, b"", b"", Admin::Quit),
        (0x08, b"", b"", flush(0)),
        (0x08, &[0, 0, 1, 0], b"", flush(256)),
        (0x18, &[0, 0, 0, 0], b"", flush(0)),
        (0x10, b"", b"", Admin::Stats { topic: b"" }),
        (0x10, b"", b"settings", Admin::Stats { topic: b"settings" }),
    ];
    for (opcode, extras, key, admin) in rows {
        let head = BinaryHead { opcode, opaque: OPAQUE };
        let frame = frame(opcode, extras, key, b"");
        assert_eq!(accepted(&frame, 0), Request::BinaryAdmin { head, admin });
        assert_eq!(head.is_quiet(), opcode == 0x17 || opcode == 0x18);
    }
}

#[test]
fn an_expiry_has_no_sign_and_one_value_creates_no_number() {
    for (expiry, ttl) in [(0, 0), (1, 1), (0x7fff_ffff, i32::MAX), (u32::MAX, i32::MAX)] {
        let frame = frame(0x1c, &u32::to_be_bytes(expiry), b"k", b"");
        let verb = of_key(&frame, 0).verb;
        let ttl = Some(Ttl(ttl));
        assert_eq!(verb, BinaryVerb::Get { ttl, with_value: false, with_key: false });
    }
    for (expiry, create) in [(u32::MAX, None), (u32::MAX - 1, Some(Ttl(i32::MAX)))] {
        let extras = [&[0; 16][..], &u32::to_be_bytes(expiry)].concat();
        let frame = frame(0x05, &extras, b"n", b"");
        let BinaryVerb::Arithmetic { create: got, .. } = of_key(&frame, 0).verb else { panic!() };
        assert_eq!(got, create);
    }
}

#[test]
fn wrong_lengths_close_the_connection() {
    let long_key = [b'k'; 251];
    let key_of_251 = |opcode| frame(opcode, b"", &long_key, b"");
    let invalid = [
        frame(0x00, b"", b"", b""),
        frame(0x00, b"", b"k", b"v"),
        frame(0x00, b"xxxx", b"k", b""),
        frame(0x01, b"", b"k", b"v"),
        frame(0x11, b"1234567", b"k", b"v"),
        frame(0x01, b"12345678", b"", b"v"),
        frame(0x0e, b"1234", b"k", b"v"),
        frame(0x05, &[0; 19], b"k", b""),
        frame(0x05, &[0; 20], b"k", b"v"),
        frame(0x04, b"x", b"k", b""),
        frame(0x04, b"", b"k", b"v"),
        frame(0x1c, b"", b"k", b""),
        frame(0x1c, b"1234", b"k", b"v"),
        frame(0x1d, b"12345678", b"k", b""),
        frame(0x0a, b"", b"", b"x"),
        frame(0x0b, b"", b"k", b""),
        frame(0x07, b"", b"k", b""),
        frame(0x17, b"", b"k", b""),
        frame(0x08, b"123", b"", b""),
        frame(0x18, b"", b"k", b""),
        frame(0x10, b"1234", b"", b""),
        frame(0x10, b"", b"sizes", b"v"),
        frame(0x20, b"", b"k", b""),
        frame(0x21, b"", b"", b"x"),
        key_of_251(0x00),
        key_of_251(0x0a),
        key_of_251(0x30),
        announcing(0x00, [65_535, 0], 65_535, 0),
    ];
    for frame in invalid {
        check_refused(&frame, BinaryStatus::InvalidArguments, 0, true);
    }
    for body in [BODY_BYTES_MAX + 1, 0x7fff_ffff, 0x8000_0000, 0xffff_ffd0, u32::MAX] {
        for opcode in [0x01, 0x0a, 0x30] {
            let frame = announcing(opcode, [1, 8], body, 0);
            check_refused(&frame, BinaryStatus::InvalidArguments, 0, true);
        }
    }
    for [key, extras, body] in [[5, 0, 1], [1, 9, 1], [2, 1, 2], [250, 0, 0], [65_535, 255, 9]] {
        for opcode in [0x00, 0x0e, 0x1a, 0x21, 0x30] {
            let frame = announcing(opcode, [key, extras], body as u32, 0);
            check_refused(&frame, BinaryStatus::UnknownCommand, 0, true);
        }
    }
}

#[test]
fn an_unknown_opcode_skips_its_body() {
    for opcode in [0x1b, 0x1f, 0x25, 0x30, 0x3c, 0x40, 0xff] {
        check_refused(&frame(opcode, b"", b"", b""), BinaryStatus::UnknownCommand, 0, false);
        let frame = frame(opcode, b"ee", b"kkk", b"vv");
        check_refused(&frame, BinaryStatus::UnknownCommand, 7, false);
    }
    for opcode in [0x21, 0x22] {
        let frame = frame(opcode, b"", b"PLAIN", b"\0u\0p");
        check_refused(&frame, BinaryStatus::UnknownCommand, 9, false);
    }
    check_refused(&frame(0x20, b"", b"", b""), BinaryStatus::UnknownCommand, 0, false);
    let longest = announcing(0x30, [0, 0], BODY_BYTES_MAX, 0);
    check_refused(&longest, BinaryStatus::UnknownCommand, u64::from(BODY_BYTES_MAX), false);
}

#[test]
fn the_first_byte_selects_the_protocol_and_another_one_ends_it() {
    for first in [0, b'g', 0x7f, 0x81, 0xff] {
        assert_eq!(parse_binary(&[first]), Parsed::Close);
    }
    assert_eq!((parse_binary(b""), parse_binary(b"\x80")), (Parsed::NeedMore, Parsed::NeedMore));
    assert!(matches!(parse(b"\x81\x0a\0\0\r\n", 0), Parsed::Refused { .. }), "it is text");
    assert!(matches!(parse_text(b"\x80\x0a\0\0\r\n", 0), Parsed::Refused { .. }), "it is text");
}

#[test]
fn a_token_makes_every_store_but_a_join_a_cas() {
    for (opcode, mode) in [(0x01, StoreMode::Set), (0x12, StoreMode::Set), (0x03, StoreMode::Set)] {
        let frame = with_cas(frame(opcode, &[0; 8], b"k", b"v"), 9);
        let terms = of_key(&frame, 1).store_terms().expect("it stores");
        assert_eq!((terms.mode, terms.compare_cas), (mode, Some(9)));
        assert!(terms.needs_match());
    }
    let frame = with_cas(frame(0x0e, b"", b"k", b"v"), 9);
    let terms = of_key(&frame, 1).store_terms().expect("it stores");
    assert_eq!((terms.mode, terms.compare_cas), (StoreMode::Append, Some(9)));
}

/// Formats the reply to a request, and a value that is too long for it as its length.
fn reply_to(frame: &[u8], value_bytes: usize, verdict: Verdict, value: Value<'_, ()>) -> Vec<u8> {
    let request = accepted(frame, value_bytes);
    let mut reply = Vec::new();
    let pinned = request.answer(&mut reply, &verdict, value);
    assert!(pinned.is_none());
    assert!(reply.len() <= usize::from(request.reply_bytes_max()) + 3, "a short value");
    reply
}

/// A reply of these parts.
fn reply(opcode: u8, status: u16, parts: [&[u8]; 3], cas: u64) -> Vec<u8> {
    let mut reply = frame(opcode, parts[0], parts[1], parts[2]);
    reply[0] = 0x81;
    reply[6..8].copy_from_slice(&status.to_be_bytes());
    with_cas(reply, cas)
}

#[test]
fn a_hit_shows_flags_and_token_and_the_key_where_it_is_asked_for() {
    let facts = Facts { client_flags: 7, cas: 42, ..Facts::default() };
    let flags = &[0, 0, 0, 7][..];
    for (opcode, key, value) in [
        (0x00, &b""[..], &b"val"[..]),
        (0x09, b"", b"val"),
        (0x0c, b"k", b"val"),
        (0x0d, b"k", b"val"),
        (0x1d, b"", b"val"),
        (0x1e, b"", b"val"),
        (0x23, b"k", b"val"),
        (0x24, b"k", b"val"),
        (0x1c, b"", b""),
    ] {
        let extras: &[u8] = if opcode < 0x1c { b"" } else { &[0; 4] };
        let given = if value.is_empty() { Value::None } else { Value::Inline(value) };
        let got = reply_to(&frame(opcode, extras, b"k", b""), 0, Verdict::Hit(facts), given);
        assert_eq!(got, reply(opcode, 0, [flags, key, value], 42), "{opcode:#x}");
    }
}

#[test]
fn a_long_value_is_announced_and_follows() {
    let frame = frame(0x0c, b"", b"key", b"");
    let request = accepted(&frame, 0);
    let mut head = Vec::new();
    let value = Value::Pinned { pinned: (), bytes: 1_000_000 };
    let facts = Facts { client_flags: 1, cas: 2, ..Facts::default() };
    assert!(request.answer(&mut head, &Verdict::Hit(facts), value).is_some());
    assert_eq!(head[8..12], 1_000_007_u32.to_be_bytes());
    assert_eq!(&head[24..], b"\0\0\0\x01key");
    assert_eq!(request.value_end(), b"");
}

#[test]
fn a_miss_is_told_by_its_text_or_by_the_key_unless_it_is_quiet() {
    type Row<'r> = (u8, &'r [u8], Option<(&'r [u8], &'r [u8])>);
    let rows: [Row<'_>; 9] = [
        (0x00, b"", Some((b"", b"Not found"))),
        (0x09, b"", None),
        (0x0c, b"", Some((b"k", b""))),
        (0x0d, b"", None),
        (0x1c, &[0; 4], Some((b"", b"Not found"))),
        (0x1d, &[0; 4], Some((b"", b"Not found"))),
        (0x1e, &[0; 4], None),
        (0x23, &[0; 4], Some((b"k", b""))),
        (0x24, &[0; 4], None),
    ];
    for (opcode, extras, shown) in rows {
        let expected =
            shown.map_or(Vec::new(), |(key, text)| reply(opcode, 1, [b"", key, text], 0));
        let got = reply_to(&frame(opcode, extras, b"k", b""), 0, Verdict::Miss, Value::None);
        assert_eq!(got, expected, "{opcode:#x}");
    }
}

#[test]
fn a_change_is_told_with_its_token_unless_it_is_quiet_and_a_failure_always() {
    let stored = Verdict::Stored { cas: 3, value_bytes: 1 };
    let facts = Facts { cas: 4, ..Facts::default() };
    let number = Verdict::Number { number: 258, facts };
    let number_bytes = 258_u64.to_be_bytes();
    let (flags, counted) = (&[0; 8][..], &[0; 20][..]);
    let failed = |status, text| Some((status, text, 0));
    let not_found = failed(1, &b"Not found"[..]);
    let exists = failed(2, b"Data exists for key.");
    let non_numeric = failed(6, b"Non-numeric server-side value for incr or decr");
    let full = failed(0x82, b"Out of memory");
    type Row<'r> = (u8, &'r [u8], Verdict, Option<(u16, &'r [u8], u64)>);
    let rows: [Row<'_>; 28] = [
        (0x01, flags, stored, Some((0, b"", 3))),
        (0x11, flags, stored, None),
        (0x01, flags, Verdict::Exists, exists),
        (0x11, flags, Verdict::Exists, exists),
        (0x01, flags, Verdict::Miss, not_found),
        (0x11, flags, Verdict::NoMemory { found: false }, full),
        (0x02, flags, Verdict::NotStored, exists),
        (0x12, flags, Verdict::NotStored, exists),
        (0x03, flags, Verdict::NotStored, not_found),
        (0x13, flags, Verdict::NotStored, not_found),
        (0x0e, b"", stored, Some((0, b"", 3))),
        (0x19, b"", stored, None),
        (0x0f, b"", Verdict::NotStored, failed(5, b"Not stored.")),
        (0x1a, b"", Verdict::NotStored, failed(5, b"Not stored.")),
        (0x04, b"", Verdict::Deleted, Some((0, b"", 0))),
        (0x14, b"", Verdict::Deleted, None),
        (0x04, b"", Verdict::Miss, not_found),
        (0x14, b"", Verdict::Miss, not_found),
        (0x14, b"", Verdict::Exists, exists),
        (0x05, counted, number, Some((0, &number_bytes, 4))),
        (0x15, counted, number, None),
        (0x06, counted, Verdict::Miss, not_found),
        (0x16, counted, Verdict::Miss, not_found),
        (0x05, counted, Verdict::NonNumeric, non_numeric),
        (0x15, counted, Verdict::NonNumeric, non_numeric),
        (0x06, counted, Verdict::NoMemory { found: true }, full),
        (0x11, flags, Verdict::DiskFailed, failed(0x84, b"Disk error.")),
        (0x09, b"", Verdict::DiskFailed, failed(0x84, b"Disk error.")),
    ];
    for (opcode, extras, verdict, shown) in rows {
        let is_store = matches!(opcode, 0x01..=0x03 | 0x11..=0x13 | 0x0e | 0x0f | 0x19 | 0x1a);
        let value: &[u8] = if is_store { b"v" } else { b"" };
        let frame = frame(opcode, extras, b"k", value);
        let expected = shown
            .map_or(Vec::new(), |(status, body, cas)| reply(opcode, status, [b"", b"", body], cas));
        let got = reply_to(&frame, value.len(), verdict, Value::None);
        assert_eq!(got, expected, "{opcode:#x} {verdict:?}");
    }
}

#[test]
fn constant_replies_have_their_status() {
    let rows = [
        (0x0a, Reply::Ok, Some(BinaryStatus::Success)),
        (0x08, Reply::Ok, Some(BinaryStatus::Success)),
        (0x18, Reply::Ok, None),
        (0x18, Reply::FlushNotAllowed, Some(BinaryStatus::NotAllowed)),
        (0x08, Reply::DiskError, Some(BinaryStatus::DiskError)),
        (0x18, Reply::DiskError, Some(BinaryStatus::DiskError)),
        (0x10, Reply::End, Some(BinaryStatus::Success)),
        (0x10, Reply::Reset, Some(BinaryStatus::Success)),
        (0x10, Reply::Error, Some(BinaryStatus::NotFound)),
        (0x01, Reply::TooLarge, Some(BinaryStatus::TooLarge)),
        (0x11, Reply::OutOfMemoryStoring, Some(BinaryStatus::OutOfMemory)),
        (0x0a, Reply::BadLine, Some(BinaryStatus::InvalidArguments)),
    ];
    for (opcode, constant, status) in rows {
        let mut got = Vec::new();
        BinaryHead { opcode, opaque: OPAQUE }.put_reply(&mut got, constant);
        let expected = status.map_or(Vec::new(), |status| {
            reply(opcode, status.code(), [b"", b"", status.text()], 0)
        });
        assert_eq!(got, expected, "{opcode:#x} {constant:?}");
    }
    let mut stat = Vec::new();
    BinaryHead { opcode: 0x10, opaque: OPAQUE }.put_stat(&mut stat, b"pid", b"77");
    assert_eq!(stat, reply(0x10, 0, [b"", b"pid", b"77"], 0));
}

#[test]
fn a_refused_set_is_answered_and_its_item_removed() {
    for (opcode, extras, removes) in [
        (0x01, &[0; 8][..], true),
        (0x11, &[0; 8], true),
        (0x02, &[0; 8], false),
        (0x03, &[0; 8], false),
        (0x0e, b"", false),
    ] {
        let store = with_cas(frame(opcode, extras, b"key", b"v"), 7);
        let request = accepted(&store, 1);
        assert_eq!(request.removes_when_refused(true), removes, "{opcode:#x}");
        let mut told = Vec::new();
        request.answer_refusal(&mut told, Reply::TooLarge);
        assert_eq!(told, reply(opcode, 3, [b"", b"", b"Too large."], 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// I2, I3: any header is answered, refused or awaited in the same way in pieces, and its key
    /// has a lawful length.
    #[test]
    fn a_header_means_the_same_in_pieces(
        opcode in prop_oneof![0_u8..0x26, any::<u8>()],
        key in prop_oneof![0_usize..4, 249_usize..252, any::<u16>().prop_map(usize::from)],
        extras in prop_oneof![Just(0_usize), Just(4), Just(8), Just(20), 0_usize..256],
        more in prop_oneof![0_i64..3, -3_i64..0, any::<u32>().prop_map(i64::from)],
        behind: Vec<u8>,
    ) {
        let body = ((key + extras) as i64 + more).clamp(0, i64::from(u32::MAX)) as u32;
        let mut input = announcing(opcode, [key, extras], body, 1);
        input.extend(std::iter::repeat_n(b'x', REQUEST_BYTES_MAX));
        input.extend_from_slice(&behind);
        let whole = parse_binary(&input);
        let needed = match whole {
            Parsed::Request { request, line_bytes } => {
                let key = request.key(&mut [0; KEY_BYTES_MAX]).map(<[u8]>::len);
                prop_assert!(key.is_none_or(|length| (1..=KEY_BYTES_MAX).contains(&length)));
                prop_assert!(line_bytes <= REQUEST_BYTES_MAX);
                line_bytes
            }
            Parsed::RefusedBinary { refusal, line_bytes } => {
                let in_step = refusal.skip_bytes == u64::from(body) && !refusal.closes;
                prop_assert!(in_step || refusal.closes);
                line_bytes
            }
            other => panic!("{other:?}"),
        };
        for cut in 0..needed {
            prop_assert_eq!(parse_binary(&input[..cut]), Parsed::NeedMore);
        }
        prop_assert_eq!(parse_binary(&input[..needed]), whole);
    }

    #[test]
    fn no_bytes_make_the_parser_panic(mut input: Vec<u8>) {
        parse_binary(&input);
        input.insert(0, 0x80);
        parse_binary(&input);
    }
}

#[test]
fn quiet_opcodes_are_those_of_the_protocol() {
    let quiet: Vec<u8> = (0..=u8::MAX).filter(|&op| opcode::without_quiet(op).1).collect();
    let expected = [9, 0xd, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x1e, 0x24];
    assert_eq!(quiet, expected);
}

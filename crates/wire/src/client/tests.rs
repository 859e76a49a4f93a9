//! Tests: the parser returns each request as it was formatted, and replies are read whole or not at
//! all.

use super::{
    ClientReply, ReplyParsed, StoreRequest, decr, delete, get, get_and_touch, incr,
    meta_arithmetic, meta_delete, meta_get, meta_noop, meta_set, parse_reply, store, store_head,
    touch,
};
use crate::format::value_head;
use crate::reply::Reply;
use crate::request::{Direction, Request, Store, StoreMode, Ttl};
use crate::{Parsed, parse};
use proptest::prelude::*;

#[track_caller]
fn parsed(line: &[u8]) -> (Request<'_>, usize) {
    match parse(line, 0) {
        Parsed::Request { request, line_bytes } => (request, line_bytes),
        other => panic!("{} -> {other:?}", line.escape_ascii()),
    }
}

/// The bytes that `word` formats.
fn worded(word: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut line = Vec::new();
    word(&mut line);
    line
}

#[test]
fn the_parser_reads_what_the_client_words() {
    let line = worded(|line| get(line, [&b"a"[..], b"b"], true));
    let (Request::Retrieve(retrieve), _) = parsed(&line) else { panic!() };
    assert!(retrieve.form.with_cas() && retrieve.keys.eq([&b"a"[..], b"b"]));

    let line = worded(|line| get_and_touch(line, b"a", -1));
    let (Request::Retrieve(retrieve), _) = parsed(&line) else { panic!() };
    assert!(retrieve.ttl == Some(Ttl(-1)) && retrieve.keys.eq([b"a"]));

    for noreply in [false, true] {
        let line = worded(|line| delete(line, b"a", noreply));
        assert_eq!(parsed(&line).0, Request::Delete { key: b"a", noreply });
        let line = worded(|line| touch(line, b"a", 5, noreply));
        assert_eq!(parsed(&line).0, Request::Touch { key: b"a", ttl: Ttl(5), noreply });
        for (direction, line) in [
            (Direction::Up, worded(|line| incr(line, b"a", u64::MAX, noreply))),
            (Direction::Down, worded(|line| decr(line, b"a", u64::MAX, noreply))),
        ] {
            let request = Request::Arithmetic { key: b"a", direction, delta: u64::MAX, noreply };
            assert_eq!(parsed(&line).0, request);
        }
    }
    assert!(matches!(
        parsed(&worded(|line| meta_delete(line, b"a", b""))).0,
        Request::MetaDelete(_)
    ));
    assert_eq!(parsed(&worded(meta_noop)).0, Request::MetaNoop);
    let line = worded(|line| meta_arithmetic(line, b"a", b"MD v"));
    let (Request::MetaArithmetic { direction: Direction::Down, .. }, _) = parsed(&line) else {
        panic!()
    };
    let line = worded(|line| meta_get(line, b"a", b"v q"));
    let (Request::MetaGet(meta), _) = parsed(&line) else { panic!() };
    assert!(meta.letters.has(b'v') && meta.letters.has(b'q') && meta.key.text == b"a");
    let line = worded(|line| meta_set(line, b"a", b"ME", b"xyz"));
    let (request, line_bytes) = parsed(&line);
    assert!(matches!(request, Request::MetaSet { mode: StoreMode::Add, value_bytes: 3, .. }));
    assert_eq!(&line[line_bytes..], b"xyz\r\n");
}

#[test]
fn every_mode_of_storing_comes_back() {
    use StoreMode::{Add, Append, Prepend, Replace, Set};
    for (mode, compare_cas) in
        [(Set, None), (Add, None), (Replace, None), (Append, None), (Prepend, None), (Set, Some(9))]
    {
        let request = StoreRequest {
            mode,
            key: b"k",
            client_flags: u32::MAX,
            ttl: i32::MIN,
            compare_cas,
            noreply: true,
        };
        let line = worded(|line| store(line, &request, b"abc"));
        let expected = Store {
            mode,
            key: b"k",
            client_flags: u32::MAX,
            ttl: Ttl(i32::MIN),
            value_bytes: 3,
            compare_cas,
            noreply: true,
        };
        let (got, line_bytes) = parsed(&line);
        assert_eq!(got, Request::Store(expected));
        assert_eq!(&line[line_bytes..], b"abc\r\n");
        assert_eq!(worded(|head| store_head(head, &request, 3)), line[..line_bytes]);
    }
}

#[track_caller]
fn check_reply(input: &[u8], expected: &ClientReply<'_>) {
    for cut in 0..input.len() {
        let ReplyParsed::NeedMore { missing_bytes } = parse_reply(&input[..cut]) else {
            panic!("{} cut at {cut}", input.escape_ascii());
        };
        assert!((1..=input.len() - cut).contains(&missing_bytes));
    }
    let longer = [input, b"END\r\n"].concat();
    let reply = ReplyParsed::Reply { reply: expected.clone(), reply_bytes: input.len() };
    assert_eq!(parse_reply(&longer), reply, "{}", input.escape_ascii());
}

#[test]
fn replies_are_read_whole_or_not_at_all() {
    let value = |value, cas| ClientReply::Value { key: b"k", client_flags: 7, value, cas };
    let meta = |code: &[u8; 2], flags, value| ClientReply::Meta { code: *code, flags, value };
    for (input, reply) in [
        (&b"VALUE k 7 3\r\nabc\r\n"[..], value(13..16, None)),
        (b"VALUE k 7 3 42\r\na\nc\r\n", value(16..19, Some(42))),
        (b"VALUE k 7 0\r\n\r\n", value(13..13, None)),
        (b"END\r\n", ClientReply::End),
        (b"STORED\r\n", ClientReply::Stored),
        (b"NOT_STORED\r\n", ClientReply::NotStored),
        (b"EXISTS\r\n", ClientReply::Exists),
        (b"NOT_FOUND\r\n", ClientReply::NotFound),
        (b"DELETED\r\n", ClientReply::Deleted),
        (b"TOUCHED\r\n", ClientReply::Touched),
        (b"OK\r\n", ClientReply::Ok),
        (b"18446744073709551615\r\n", ClientReply::Number(u64::MAX)),
        (b"5  \r\n", ClientReply::Number(5)),
        (b"VA 3 t-1 W\r\nabc\r\n", meta(b"VA", b"t-1 W", Some(12..15))),
        (b"VA 0\r\n\r\n", meta(b"VA", b"", Some(6..6))),
        (b"HD c5 O1\r\n", meta(b"HD", b"c5 O1", None)),
        (b"EN\r\n", meta(b"EN", b"", None)),
        (b"MN\r\n", meta(b"MN", b"", None)),
        (b"ME k exp=-1\r\n", ClientReply::Debug(b"k exp=-1")),
        (b"STAT pid 1\r\n", ClientReply::Stat(b"pid 1")),
        (b"VERSION 1.6.45\r\n", ClientReply::Version(b"1.6.45")),
        (b"ERROR\r\n", ClientReply::Error(b"ERROR")),
        (b"BUSY x\n", ClientReply::Error(b"BUSY x")),
    ] {
        check_reply(input, &reply);
    }
    for garbage in [
        &b"VALUE k 7\r\n"[..],
        b"VALUE k 7 3\r\nabcXX",
        b"HDx\r\n",
        b"\r\n",
        b"5x\r\n",
        b"VA x\r\n",
    ] {
        assert_eq!(parse_reply(garbage), ReplyParsed::Garbage, "{}", garbage.escape_ascii());
    }
}

#[test]
fn a_client_understands_every_constant_reply() {
    for reply in Reply::ALL.iter().filter(|reply| **reply != Reply::Nothing) {
        let ReplyParsed::Reply { reply: read, reply_bytes } = parse_reply(reply.bytes()) else {
            panic!("{reply:?}");
        };
        assert_eq!(reply_bytes, reply.bytes().len());
        let text = &reply.bytes()[..reply_bytes - 2];
        let is_error = [&b"ERROR"[..], b"CLIENT_ERROR", b"SERVER_ERROR"]
            .iter()
            .any(|start| text.starts_with(start));
        assert!(!is_error || read == ClientReply::Error(text), "{reply:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn no_bytes_make_the_reader_panic(input: Vec<u8>, start in 0_usize..4) {
        let start = [&b"VALUE "[..], b"VA ", b"HD", b""][start];
        parse_reply(&[start, &input, b"\r\n"].concat());
    }

    #[test]
    fn a_worded_value_is_read_back(
        key in "[!-~]{1,250}", client_flags: u32, data: Vec<u8>, cas: Option<u64>,
    ) {
        let mut input = Vec::new();
        value_head(&mut input, key.as_bytes(), client_flags, data.len(), cas);
        let start = input.len();
        input.extend_from_slice(&data);
        input.extend_from_slice(b"\r\n");
        let value = start..start + data.len();
        let reply = ClientReply::Value { key: key.as_bytes(), client_flags, value, cas };
        prop_assert_eq!(
            parse_reply(&input),
            ReplyParsed::Reply { reply, reply_bytes: input.len() }
        );
    }
}

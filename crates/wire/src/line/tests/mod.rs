//! Tests of the parser: rows of a line and its result. The replies were observed on 1.6.45.

mod meta;

use super::{Parsed, parse};
use crate::refusal::ParseError;
use crate::reply::Reply;
use crate::request::{
    Admin, Direction, DumpForm, KEY_BYTES_MAX, Keys, LINE_BYTES_MAX, RETRIEVE_LINE_BYTES_MAX,
    Request, Retrieve, RetrieveForm, Store, StoreMode, Ttl,
};
use crate::streams::Streams;
use proptest::prelude::*;

#[track_caller]
fn accepted<'b>(input: &'b [u8]) -> Request<'b> {
    match parse(input, 0) {
        Parsed::Request { request, line_bytes } => {
            assert_eq!(line_bytes, first_line_bytes(input));
            request
        }
        other => panic!("{} -> {other:?}", input.escape_ascii()),
    }
}

#[track_caller]
fn refused(input: &[u8]) -> ParseError {
    match parse(input, 0) {
        Parsed::Refused { refusal, line_bytes } => {
            assert_eq!(line_bytes, first_line_bytes(input));
            refusal
        }
        other => panic!("{} -> {other:?}", input.escape_ascii()),
    }
}

fn first_line_bytes(input: &[u8]) -> usize {
    input.iter().position(|&byte| byte == b'\n').map_or(input.len(), |at| at + 1)
}

/// Checks lines that are refused with these replies. The last number is the number of bytes to
/// skip.
#[track_caller]
fn check_refused(rows: &[(&[u8], Reply, u64)]) {
    for &(line, reply, skip_bytes) in rows {
        let expected = ParseError { reply, skip_bytes };
        assert_eq!(refused(line), expected, "{}", line.escape_ascii());
    }
}

/// Checks lines whose reply does not depend on the server's state.
#[track_caller]
fn check_settled(rows: &[(&[u8], Reply)]) {
    for &(line, reply) in rows {
        let Request::Admin(Admin::Settled { reply: got, .. }) = accepted(line) else {
            panic!("{} is not settled", line.escape_ascii());
        };
        assert_eq!(got, reply, "{}", line.escape_ascii());
    }
}

fn line(pieces: &[&[u8]]) -> Vec<u8> {
    pieces.concat()
}

const KEY_250: &[u8] = &[b'k'; KEY_BYTES_MAX];
const KEY_251: &[u8] = &[b'k'; KEY_BYTES_MAX + 1];

#[test]
fn lines_that_are_no_command() {
    check_refused(&[
        (b"\r\n", Reply::BadLine, 0),
        (b"\n", Reply::BadLine, 0),
        (b"x\r\n", Reply::BadLine, 0),
        (b"mn\n", Reply::BadLine, 0),
        (b" \n", Reply::BadLine, 0),
        (b"boguscommand a b\r\n", Reply::Error, 0),
        (b"GET txt\r\n", Reply::Error, 0),
        (b" get txt\r\n", Reply::Error, 0),
        (b"get\ttxt\r\n", Reply::Error, 0),
        (b"    \r\n", Reply::Error, 0),
        (b"  version\r\n", Reply::Error, 0),
        (b"bogus noreply\r\n", Reply::Nothing, 0),
        (b"mz a\r\n", Reply::Error, 0),
        (b"GET / HTTP/1.0 x\r\n", Reply::Error, 0),
        (b"HTTP/1.0\r\n", Reply::Error, 0),
    ]);
    for input in [&b"GET / HTTP/1.0\r\n"[..], b"POST /x HTTP/1.1\r\nHost: a\r\n"] {
        assert_eq!(parse(input, 0), Parsed::Close, "{}", input.escape_ascii());
    }
}

#[test]
fn retrievals() {
    let retrieve = |with_cas, ttl, rest: &'static [u8]| {
        let is_one = !rest.contains(&b' ');
        let form = if with_cas { RetrieveForm::WithCas } else { RetrieveForm::Value };
        Request::Retrieve(Retrieve { form, ttl, keys: Keys { rest }, is_one })
    };
    for (line, request) in [
        (&b"get txt\n"[..], retrieve(false, None, &b"txt"[..])),
        (b"get  txt  \r\n", retrieve(false, None, b"txt  ")),
        (b"gets a b\r\n", retrieve(true, None, b"a b")),
        (b"get noreply\r\n", retrieve(false, None, b"noreply")),
        (b"get a\rb\r\n", retrieve(false, None, b"a\rb")),
        (b"gat 10 a b\r\n", retrieve(false, Some(Ttl(10)), b"a b")),
        (b"gats -1 a\r\n", retrieve(true, Some(Ttl(-1)), b"a")),
        (b"gat 1 noreply\r\n", retrieve(false, Some(Ttl(1)), b"noreply")),
    ] {
        assert_eq!(accepted(line), request, "{}", line.escape_ascii());
    }
    check_refused(&[
        (b"get\r\n", Reply::BadLine, 0),
        (b"get     \r\n", Reply::BadLine, 0),
        (b"gets\r\n", Reply::BadLine, 0),
        (b"gat\r\n", Reply::BadLine, 0),
        (b"gat 10\r\n", Reply::BadLine, 0),
        (b"gat zz\r\n", Reply::BadLine, 0),
        (b"gat zz txt\r\n", Reply::InvalidExptime, 0),
        (&line(&[b"get ", KEY_251, b"\r\n"]), Reply::BadLine, 0),
        (&line(&[b"get ", KEY_251, b" noreply\r\n"]), Reply::BadLine, 0),
        (&line(&[b"get txt ", KEY_251, b"\r\n"]), Reply::BadLine, 0),
        (&line(&[b"gets a ", KEY_251, b" b\r\n"]), Reply::BadLine, 0),
        (&line(&[b"gat zz ", KEY_251, b"\r\n"]), Reply::InvalidExptime, 0),
        (&line(&[b"gat 1 ", KEY_251, b"\r\n"]), Reply::BadLine, 0),
    ]);
    accepted(&line(&[b"get ", KEY_250, b" ", KEY_250, b"\r\n"]));
}

#[test]
fn keys_come_one_by_one_in_order() {
    let input = line(&[b"get ", &b"key ".repeat(10_000), b"\r\n"]);
    let Request::Retrieve(Retrieve { keys, .. }) = accepted(&input) else { panic!() };
    let mut count = 0;
    for key in keys {
        assert_eq!(key, b"key");
        count += 1;
    }
    assert_eq!(count, 10_000);
}

const PLAIN: Store<'static> = Store {
    mode: StoreMode::Set,
    key: b"a",
    client_flags: 0,
    ttl: Ttl(0),
    value_bytes: 1,
    compare_cas: None,
    noreply: false,
};

#[test]
fn storage_lines() {
    let mode = |mode| Store { mode, ..PLAIN };
    for (line, store) in [
        (&b"set a 0 0 1\r\n"[..], PLAIN),
        (b"add a 0 0 1\n", mode(StoreMode::Add)),
        (b"replace a 0 0 1\r\n", mode(StoreMode::Replace)),
        (b"append a 0 0 1\r\n", mode(StoreMode::Append)),
        (b"prepend a 0 0 1\r\n", mode(StoreMode::Prepend)),
        (b"set a 0 0 1 noreply\r\n", Store { noreply: true, ..PLAIN }),
        (b"set a 0 0 1 garbage\r\n", PLAIN),
        (b"set a 0 0 1 noreply x\r\n", PLAIN),
        (b"set a 0 0 1 x noreply  \r\n", Store { noreply: true, ..PLAIN }),
        (b"set noreply 0 0 1\r\n", Store { key: b"noreply", ..PLAIN }),
        (b"set a\0b 0 0 1\r\n", Store { key: b"a\0b", ..PLAIN }),
        (b"set \xff\xfe\x80 0 0 1\r\n", Store { key: b"\xff\xfe\x80", ..PLAIN }),
        (b"set  a  0  0  005\r\n", Store { value_bytes: 5, ..PLAIN }),
        (b"set a 0 0 -\r\n", Store { value_bytes: 0, ..PLAIN }),
        (b"set a 4294967296 0 1\r\n", PLAIN),
        (b"set a 4294967295 0 1\r\n", Store { client_flags: u32::MAX, ..PLAIN }),
        (b"set a 0 2147483648 1\r\n", Store { ttl: Ttl(i32::MIN), ..PLAIN }),
        (b"set a 0 -1 1\r\n", Store { ttl: Ttl(-1), ..PLAIN }),
        (b"set a \t 1 1\r\n", Store { client_flags: 1, ttl: Ttl(1), ..PLAIN }),
        (b"set a 0 0 2147483645\r\n", Store { value_bytes: 2_147_483_645, ..PLAIN }),
        (b"cas a 0 0 1 7\r\n", Store { compare_cas: Some(7), ..PLAIN }),
        (b"cas a 0 0 1 7 noreply\r\n", Store { compare_cas: Some(7), noreply: true, ..PLAIN }),
    ] {
        assert_eq!(accepted(line), Request::Store(store), "{}", line.escape_ascii());
    }
}

#[test]
fn a_bad_storage_line_swallows_its_data_block_if_its_length_is_legible() {
    check_refused(&[
        (b"set\r\n", Reply::BadLine, 0),
        (b"set a\r\n", Reply::BadLine, 0),
        (b"set a 0 0\r\n", Reply::BadLine, 0),
        (b"set a 0 0 -1\r\n", Reply::BadLine, 0),
        (b"set a 0 0 2147483646\r\n", Reply::BadLine, 0),
        (b"set a 0 0 2147483647\r\n", Reply::BadLine, 0),
        (b"set a 0 0 4294967295\r\n", Reply::BadLine, 0),
        (b"set a 0 0 4294967296\r\n", Reply::BadLine, 0),
        (b"set a 0 0 18446744073709551616\r\n", Reply::BadLine, 0),
        (b"set a 0 0 0x10\r\n", Reply::BadLine, 0),
        (b"set a 0 0 +5\r\n", Reply::BadLine, 0),
        (b"set a 0 0 5abc\r\n", Reply::BadLine, 0),
        (b"set a 0 0 1e3\r\n", Reply::BadLine, 0),
        (b"set a 0 0 x noreply\r\n", Reply::BadLine, 0),
        (b"set a -1 0 1\r\n", Reply::BadLine, 3),
        (b"set a xx 0 1\r\n", Reply::BadLine, 3),
        (b"set a 0 xx 1\r\n", Reply::BadLine, 3),
        (b"set a xx 0 1 noreply\r\n", Reply::Nothing, 3),
        (b"set a - 0 1\r\n", Reply::BadLine, 3),
        (b"set a 0 9999999999999999999999 1\r\n", Reply::BadLine, 3),
        (b"set a 0 xx 2147483645\r\n", Reply::BadLine, 2_147_483_647),
        (&line(&[b"set ", KEY_251, b" 0 0 1\r\n"]), Reply::BadLine, 3),
        (&line(&[b"set ", KEY_251, b" 0 0 1 noreply\r\n"]), Reply::Nothing, 3),
        (b"cas txt 0 0 1\r\n", Reply::BadLine, 3),
        (b"cas txt 0 0 1 zz\r\n", Reply::BadLine, 3),
        (b"cas txt 0 0 1 18446744073709551616\r\n", Reply::BadLine, 3),
        (b"cas txt 0 0 1 noreply\r\n", Reply::Nothing, 3),
        (b"cas a 0 0 x\r\n", Reply::BadLine, 0),
    ]);
}

#[test]
fn delete_touch_and_arithmetic() {
    let delete = |key, noreply| Request::Delete { key, noreply };
    let touch = |ttl, noreply| Request::Touch { key: b"a", ttl: Ttl(ttl), noreply };
    let arithmetic =
        |direction, delta, noreply| Request::Arithmetic { key: b"a", direction, delta, noreply };
    for (line, request) in [
        (&b"delete a\r\n"[..], delete(b"a", false)),
        (b"delete a noreply\r\n", delete(b"a", true)),
        (b"delete a foo bar\r\n", delete(b"a", false)),
        (b"delete a 0 noreply\r\n", delete(b"a", true)),
        (b"delete noreply\r\n", delete(b"noreply", true)),
        (b"touch a 10\r\n", touch(10, false)),
        (b"touch a -\r\n", touch(0, false)),
        (b"touch a -5 noreply\r\n", touch(-5, true)),
        (b"incr a 1\r\n", arithmetic(Direction::Up, 1, false)),
        (b"decr a 18446744073709551615 noreply\r\n", arithmetic(Direction::Down, u64::MAX, true)),
    ] {
        assert_eq!(accepted(line), request, "{}", line.escape_ascii());
    }
    check_refused(&[
        (b"delete\r\n", Reply::BadLine, 0),
        (b"touch a\r\n", Reply::BadLine, 0),
        (b"touch txt abc\r\n", Reply::InvalidExptime, 0),
        (b"touch txt noreply\r\n", Reply::Nothing, 0),
        (b"incr\r\n", Reply::BadLine, 0),
        (b"incr a\r\n", Reply::BadLine, 0),
        (b"incr num abc\r\n", Reply::InvalidDelta, 0),
        (b"incr num -1\r\n", Reply::InvalidDelta, 0),
        (b"incr num 18446744073709551616\r\n", Reply::InvalidDelta, 0),
        (b"decr num x noreply\r\n", Reply::Nothing, 0),
        (&line(&[b"delete ", KEY_251, b"\r\n"]), Reply::BadLine, 0),
        (&line(&[b"delete ", KEY_251, b" noreply\r\n"]), Reply::Nothing, 0),
        (&line(&[b"incr ", KEY_251, b" x\r\n"]), Reply::BadLine, 0),
        (&line(&[b"touch ", KEY_251, b" x\r\n"]), Reply::BadLine, 0),
    ]);
}

#[test]
fn a_noreply_beyond_the_words_that_count_is_not_seen() {
    let short = line(&[b"delete a", &b" x".repeat(20), b" noreply\r\n"]);
    assert_eq!(accepted(&short), Request::Delete { key: b"a", noreply: true });
    let long = line(&[b"delete a", &b" x".repeat(21), b" noreply\r\n"]);
    assert_eq!(accepted(&long), Request::Delete { key: b"a", noreply: false });
}

#[test]
fn switches() {
    let flush = |delay, noreply| Admin::FlushAll { delay: Ttl(delay), noreply };
    let flush_prefix = |prefix, bytes, noreply| Admin::FlushPrefix { prefix, bytes, noreply };
    let longest = [b"flush_prefix ", &[b'k'; 250][..], b"\r\n"].concat();
    let too_long = [b"flush_prefix ", &[b'k'; 251][..], b"\r\n"].concat();
    let verbosity = |level, noreply| Admin::Verbosity { level, noreply };
    let memlimit = |megabytes, noreply| Admin::CacheMemlimit { megabytes, noreply };
    let dump = |form, classes| Admin::Dump { form, classes, noreply: false };
    for (line, admin) in [
        (&b"flush_all\r\n"[..], flush(0, false)),
        (b" flush_all\r\n", flush(0, false)),
        (b"flush_all noreply\r\n", flush(0, true)),
        (b"flush_all 5\r\n", flush(5, false)),
        (b"flush_all -5 noreply\r\n", flush(-5, true)),
        (b"flush_prefix user:1\r\n", flush_prefix(b"user:1", false, false)),
        (b" flush_prefix  user:1 noreply\r\n", flush_prefix(b"user:1", false, true)),
        (b"flush_prefix user:1 bytes\r\n", flush_prefix(b"user:1", true, false)),
        (b"flush_prefix user:1 bytes noreply\r\n", flush_prefix(b"user:1", true, true)),
        (b"flush_prefix bytes\r\n", flush_prefix(b"bytes", false, false)),
        (b"flush_prefix noreply\r\n", flush_prefix(b"noreply", false, false)),
        (b"flush_prefix noreply noreply\r\n", flush_prefix(b"noreply", false, true)),
        (&longest, flush_prefix(&[b'k'; 250], false, false)),
        (b"version\r\n", Admin::Version),
        (b"version foo\r\n", Admin::Version),
        (b"quit\r\n", Admin::Quit),
        (b"quit x\r\n", Admin::Quit),
        (b"verbosity 1\r\n", verbosity(1, false)),
        (b"verbosity 1 noreply\r\n", verbosity(1, true)),
        (b"cache_memlimit 1\r\n", memlimit(1, false)),
        (b"cache_memlimit 2000000000 noreply\r\n", memlimit(2_000_000_000, true)),
        (b"shutdown\r\n", Admin::Shutdown { graceful: false }),
        (b"shutdown graceful\r\n", Admin::Shutdown { graceful: true }),
        (b"shutdown g\r\n", Admin::Shutdown { graceful: true }),
        (b"lru_crawler metadump all\r\n", dump(DumpForm::Metadump, Ok(u64::MAX))),
        (b"lru_crawler m hash\r\n", dump(DumpForm::Metadump, Ok(u64::MAX))),
        (b"lru_crawler mgdump 1,2\r\n", dump(DumpForm::Mgdump, Ok(1 << 1 | 1 << 2))),
        (b"lru_crawler metadump 99\r\n", dump(DumpForm::Metadump, Err(Reply::CrawlerBadClass))),
        (b"debugtime 3\r\n", Admin::MoveTime { seconds: 3 }),
        (b"lru_crawler enable\r\n", Admin::SwitchCrawler { on: true, noreply: false }),
        (b"lru_crawler d\r\n", Admin::SwitchCrawler { on: false, noreply: false }),
        (b"refresh_certs\r\n", Admin::RefreshCertificates { noreply: false }),
        (b"refresh_certs x noreply\r\n", Admin::RefreshCertificates { noreply: true }),
        (b"stats\r\n", Admin::Stats { topic: b"" }),
        (b"stats  detail  on \r\n", Admin::Stats { topic: b"detail  on" }),
        (b"stats noreply\r\n", Admin::Stats { topic: b"noreply" }),
    ] {
        assert_eq!(accepted(line), Request::Admin(admin), "{}", line.escape_ascii());
    }
    check_refused(&[
        (b"flush_all x\r\n", Reply::InvalidExptime, 0),
        (b"flush_all noreply x\r\n", Reply::InvalidExptime, 0),
        (b"flush_all x noreply\r\n", Reply::Nothing, 0),
        (b"flush_prefix\r\n", Reply::FlushPrefixUsage, 0),
        (b"flush_prefix user:1 byte\r\n", Reply::FlushPrefixUsage, 0),
        (b"flush_prefix user:1 x noreply\r\n", Reply::Nothing, 0),
        (b"flush_prefix user:1 noreply bytes\r\n", Reply::FlushPrefixUsage, 0),
        (b"flush_prefix user:1 bytes bytes\r\n", Reply::FlushPrefixUsage, 0),
        (&too_long, Reply::PrefixTooLong, 0),
        (b"verbosity\r\n", Reply::BadLine, 0),
        (b"verbosity noreply\r\n", Reply::Nothing, 0),
        (b"verbosity invalid\r\n", Reply::BadLine, 0),
        (b"verbosity 99999999999\r\n", Reply::BadLine, 0),
        (b"verbosity foo bar my\r\n", Reply::BadLine, 0),
        (b"cache_memlimit\r\n", Reply::Error, 0),
        (b"debugtime -3\r\n", Reply::Error, 0),
        (b"cache_memlimit noreply\r\n", Reply::Nothing, 0),
    ]);
}

#[test]
fn observe_says_how_it_is_used() {
    check_refused(&[
        (b"observe\r\n", Reply::ObserveUsage, 0),
        (b"observe hotkeys\r\n", Reply::ObserveUsage, 0),
        (b"observe hotkeys,cold on\r\n", Reply::ObserveUsage, 0),
        (b"observe hash\r\n", Reply::ObserveUsage, 0),
        (b"observe cold on noreply\r\n", Reply::Nothing, 0),
    ]);
}

#[test]
fn tuning_is_judged_and_settled() {
    check_settled(&[
        (b"shutdown foo\r\n", Reply::InvalidShutdownMode),
        (b"slabs\r\n", Reply::Error),
        (b"slabs reassign 31 64\r\n", Reply::SlabsBadClass),
        (b"slabs reassign -5 9999\r\n", Reply::SlabsBadClass),
        (b"slabs reassign 1 1\r\n", Reply::SlabsSame),
        (b"slabs reassign 1 2\r\n", Reply::SlabsNoSpare),
        (b"slabs reassign -1 2\r\n", Reply::SlabsNoSpare),
        (b"slabs reassign a 2\r\n", Reply::BadLine),
        (b"slabs reassign 1 2 3\r\n", Reply::Error),
        (b"slabs automove\r\n", Reply::Error),
        (b"slabs automove 1\r\n", Reply::Ok),
        (b"slabs a 2\r\n", Reply::Ok),
        (b"slabs automove 3\r\n", Reply::Error),
        (b"slabs automove x\r\n", Reply::BadLine),
        (b"slabs automove ratio 0.5\r\n", Reply::Ok),
        (b"slabs automove ratio 1\t2\r\n", Reply::Ok),
        (b"slabs automove ratio x\r\n", Reply::Error),
        (b"slabs automove freeratio\r\n", Reply::Error),
        (b"slabs automove window 0\r\n", Reply::AutomoveWindow),
        (b"slabs automove window 1801\r\n", Reply::AutomoveWindow),
        (b"slabs automove window 1800\r\n", Reply::Ok),
        (b"slabs automove window\r\n", Reply::BadLine),
        (b"lru\r\n", Reply::Error),
        (b"lru mode\r\n", Reply::Error),
        (b"lru temp_ttl\r\n", Reply::Error),
        (b"lru mode flat\r\n", Reply::Ok),
        (b"lru m s\r\n", Reply::Ok),
        (b"lru mode x\r\n", Reply::Error),
        (b"lru temp_ttl -1\r\n", Reply::Ok),
        (b"lru temp_ttl x\r\n", Reply::Error),
        (b"lru tune 10 25 0.1 2.0\r\n", Reply::Ok),
        (b"lru tune 10 90 0.1 2.0\r\n", Reply::LruPercents),
        (b"lru tune 4294967290 20 1 1\r\n", Reply::Ok),
        (b"lru tune 10 20 nan 1\r\n", Reply::Ok),
        (b"lru tune 10 25 0 2.0\r\n", Reply::LruFactors),
        (b"lru tune 10 25 x 2.0\r\n", Reply::Error),
        (b"lru tune 10 25 0.1\r\n", Reply::Error),
        (b"lru_crawler\r\n", Reply::Error),
        (b"lru_crawler enable x\r\n", Reply::Error),
        (b"lru_crawler sleep 100\r\n", Reply::Ok),
        (b"lru_crawler sleep 2000000\r\n", Reply::CrawlerSleep),
        (b"lru_crawler sleep x\r\n", Reply::BadLine),
        (b"lru_crawler tocrawl 0\r\n", Reply::Ok),
        (b"lru_crawler tocrawl -1\r\n", Reply::BadLine),
    ]);
    let silent = accepted(b"slabs automove 1 noreply\r\n");
    let expected = Admin::Settled { reply: Reply::Ok, noreply: true };
    assert_eq!(silent, Request::Admin(expected));
}

#[test]
fn the_crawler_and_watchers_are_asked_for_classes_and_streams() {
    for (target, classes) in [
        (&b"1"[..], Ok(1 << 1)),
        (b"all", Ok(u64::MAX)),
        (b"+1\t2,3", Ok(1 << 1 | 1 << 3)),
        (b"63,1,1", Ok(1 << 63 | 1 << 1)),
        (&b"1,".repeat(600), Ok(1 << 1)),
        (b"0", Err(Reply::CrawlerBadClass)),
        (b"1,64", Err(Reply::CrawlerBadClass)),
        (b",", Err(Reply::CrawlerNotStarted)),
    ] {
        let line = line(&[b"lru_crawler crawl ", target, b"\r\n"]);
        let crawl = Admin::Crawl { classes, noreply: false };
        assert_eq!(accepted(&line), Request::Admin(crawl));
    }
    let both = Streams::FETCHERS.with(Streams::MUTATIONS);
    for (line, streams) in [
        (&b"watch\r\n"[..], Some(Streams::FETCHERS)),
        (b"watch fetchers mutations\r\n", Some(both)),
        (b"watch bogus\r\n", None),
        (b"watch fet foo\r\n", None),
    ] {
        assert_eq!(accepted(line), Request::Admin(Admin::Watch { streams }), "{line:?}");
    }
}

#[test]
fn a_line_has_limits() {
    let junk = vec![b'a'; 65_536];
    assert_eq!(parse(&junk[..LINE_BYTES_MAX - 1], 0), Parsed::NeedMore);
    assert_eq!(parse(&junk[..LINE_BYTES_MAX], 0), Parsed::Close);
    assert_eq!(parse(&junk, 0), Parsed::Close);

    // The longest line, and one byte more; a newline later on makes no difference.
    let key_line = |key_bytes| line(&[b"set ", &vec![b'k'; key_bytes], b" 0 0 1\r\n"]);
    let frame = key_line(0).len();
    refused(&key_line(LINE_BYTES_MAX - frame));
    assert_eq!(parse(&key_line(LINE_BYTES_MAX - frame + 1), 0), Parsed::Close);

    for verb in [&b"get "[..], b"gets ", b"gat ", b"gats "] {
        let mut many = line(&[verb, &b"1 ".repeat(RETRIEVE_LINE_BYTES_MAX)]);
        assert_eq!(parse(&many[..3000], 0), Parsed::NeedMore, "{}", verb.escape_ascii());
        assert_eq!(parse(&many[..RETRIEVE_LINE_BYTES_MAX - 1], 0), Parsed::NeedMore);
        assert_eq!(parse(&many[..RETRIEVE_LINE_BYTES_MAX], 0), Parsed::Close);
        many[RETRIEVE_LINE_BYTES_MAX - 1] = b'\n';
        accepted(&many);
        many[RETRIEVE_LINE_BYTES_MAX - 1] = b'1';
        many[RETRIEVE_LINE_BYTES_MAX] = b'\n';
        assert_eq!(parse(&many, 0), Parsed::Close);
    }
}

#[test]
fn bytes_said_to_be_scanned_are_not_searched() {
    assert_eq!(parse(b"version\r\n", 9), Parsed::NeedMore);
    assert_eq!(parse(b"version\r\n", usize::MAX), Parsed::NeedMore);
    accepted(b"version\r\n");
}

/// Lines that are similar to valid ones: words of the protocol, numbers and noise.
fn any_line() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        proptest::sample::select(vec![
            "get",
            "gets",
            "gat",
            "gats",
            "set",
            "cas",
            "append",
            "delete",
            "touch",
            "incr",
            "mg",
            "ms",
            "md",
            "ma",
            "me",
            "mn",
            "flush_all",
            "lru",
            "slabs",
            "lru_crawler",
            "stats",
            "watch",
            "noreply",
            "tune",
            "crawl",
            "automove",
            "shutdown",
            "b",
            "v",
            "q",
            "N1",
            "T",
            "MA",
            "a2V5",
            "0",
            "5",
            "-1",
            "4294967296",
            "HTTP/1.1",
        ])
        .prop_map(|word| word.as_bytes().to_vec()),
        proptest::collection::vec(any::<u8>(), 0..12),
        proptest::collection::vec(Just(b'k'), 240..260),
    ];
    proptest::collection::vec(word, 0..26).prop_map(|words| words.join(&b' '))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn no_bytes_make_the_parser_panic(input: Vec<u8>, scanned: usize) {
        parse(&input, 0);
        parse(&input, scanned);
    }

    /// I1, I2: a prefix needs more bytes or is closed already. The whole line is consumed to its
    /// newline, for any number of scanned bytes.
    #[test]
    fn a_line_means_the_same_in_pieces(text in any_line(), end in any::<bool>(), behind: Vec<u8>) {
        let mut input = text;
        input.retain(|&byte| byte != b'\n');
        input.extend_from_slice(if end { b"\r\n" } else { b"\n" });
        let line_bytes = input.len();
        input.extend_from_slice(&behind);
        let whole = parse(&input, 0);
        match whole {
            Parsed::NeedMore => prop_assert!(false, "a whole line needs no more"),
            Parsed::Request { line_bytes: got, .. } | Parsed::Refused { line_bytes: got, .. } => {
                prop_assert_eq!(got, line_bytes);
            }
            Parsed::RefusedBinary { .. } => prop_assert!(false, "a line is text"),
            Parsed::Close => {}
        }
        for cut in 0..line_bytes {
            let expected = if cut >= LINE_BYTES_MAX {
                parse(&input[..cut], 0)
            } else {
                Parsed::NeedMore
            };
            prop_assert_eq!(parse(&input[..cut], cut / 2), expected);
            if expected == Parsed::NeedMore {
                prop_assert_eq!(parse(&input, cut), whole);
            } else {
                prop_assert_eq!(whole, Parsed::Close);
            }
        }
    }

    /// The keys of a request have the length that `request`, I2 promises.
    #[test]
    fn keys_of_a_request_have_a_lawful_length(text in any_line()) {
        let mut input = text;
        input.extend_from_slice(b"\r\n");
        let Parsed::Request { request, .. } = parse(&input, 0) else { return Ok(()) };
        let mut buffer = [0; KEY_BYTES_MAX];
        let lengths: Vec<usize> = match request {
            Request::Retrieve(retrieve) => retrieve.keys.map(<[u8]>::len).collect(),
            Request::Store(Store { key, .. })
            | Request::Delete { key, .. }
            | Request::Touch { key, .. }
            | Request::Arithmetic { key, .. } => vec![key.len()],
            Request::MetaGet(meta)
            | Request::MetaDelete(meta)
            | Request::MetaSet { meta, .. }
            | Request::MetaArithmetic { meta, .. } => {
                vec![crate::parse_key(meta.key, &mut buffer).len()]
            }
            Request::MetaDebug(key) => vec![crate::parse_key(key, &mut buffer).len()],
            Request::MetaNoop
            | Request::Admin(_)
            | Request::Binary(_)
            | Request::BinaryAdmin { .. } => return Ok(()),
        };
        prop_assert!(!lengths.is_empty());
        prop_assert!(lengths.iter().all(|length| (1..=KEY_BYTES_MAX).contains(length)));
    }
}

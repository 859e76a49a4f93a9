//! Tests of the parser with the meta commands.

use super::{KEY_250, KEY_251, accepted, check_refused, line};
use crate::reply::Reply;
use crate::request::{Direction, Letters, Meta, MetaKey, Request, StoreMode, Ttl};

fn letters(text: &[u8]) -> Letters {
    text.iter().fold(Letters::default(), |letters, &letter| letters.with(letter))
}

fn meta<'b>(key: &'b [u8], flags: &'b [u8], letters_in: &[u8]) -> Meta<'b> {
    Meta {
        key: MetaKey { text: key, base64: letters_in.contains(&b'b') },
        flags,
        letters: letters(letters_in),
        compare_cas: None,
        new_cas: None,
        client_flags: 0,
        vivify: None,
        recache: None,
        ttl: None,
        initial: 0,
        delta: 1,
    }
}

#[test]
fn meta_lines() {
    let set = |meta, mode, value_bytes| Request::MetaSet { meta, mode, value_bytes };
    for (line, request) in [
        (&b"mg k\r\n"[..], Request::MetaGet(meta(b"k", b"", b""))),
        (b"mg  v\r\n", Request::MetaGet(meta(b"v", b"", b""))),
        (b"mg k v  q \r\n", Request::MetaGet(meta(b"k", b"v  q ", b"vq"))),
        (b"mg a2V5 b k\n", Request::MetaGet(meta(b"a2V5", b"b k", b"bk"))),
        (b"mg a s v\tq\r\n", Request::MetaGet(meta(b"a", b"s v\tq", b"sv"))),
        (
            b"mg k N30 R-1 T60 E9 Oabc C5\r\n",
            Request::MetaGet(Meta {
                vivify: Some(Ttl(30)),
                recache: Some(-1),
                ttl: Some(Ttl(60)),
                new_cas: Some(9),
                compare_cas: Some(5),
                ..meta(b"k", b"N30 R-1 T60 E9 Oabc C5", b"NRTEOC")
            }),
        ),
        (b"md k q I x\r\n", Request::MetaDelete(meta(b"k", b"q I x", b"qIx"))),
        (b"md k M\r\n", Request::MetaDelete(meta(b"k", b"M", b"M"))),
        (b"ms k 2\r\n", set(meta(b"k", b"", b""), StoreMode::Set, 2)),
        (
            b"ms k 2 MA F7 T-\r\n",
            set(
                Meta { client_flags: 7, ttl: Some(Ttl(0)), ..meta(b"k", b"MA F7 T-", b"MFT") },
                StoreMode::Append,
                2,
            ),
        ),
        (b"ms k 2 ME\r\n", set(meta(b"k", b"ME", b"M"), StoreMode::Add, 2)),
        (b"ms k 2 MReplace\r\n", set(meta(b"k", b"MReplace", b"M"), StoreMode::Replace, 2)),
        (
            b"ma k MD D5 J9 N0\r\n",
            Request::MetaArithmetic {
                meta: Meta {
                    delta: 5,
                    initial: 9,
                    vivify: Some(Ttl(0)),
                    ..meta(b"k", b"MD D5 J9 N0", b"MDJN")
                },
                direction: Direction::Down,
            },
        ),
        (
            b"ma k M+\r\n",
            Request::MetaArithmetic { meta: meta(b"k", b"M+", b"M"), direction: Direction::Up },
        ),
        (b"me k\r\n", Request::MetaDebug(MetaKey { text: b"k", base64: false })),
        (b"me a2V5 b\r\n", Request::MetaDebug(MetaKey { text: b"a2V5", base64: false })),
        (b"me a2V5 b v\r\n", Request::MetaDebug(MetaKey { text: b"a2V5", base64: true })),
        (b"mn\r\n", Request::MetaNoop),
        (b"mn foo\r\n", Request::MetaNoop),
    ] {
        assert_eq!(accepted(line), request, "{}", line.escape_ascii());
    }
    accepted(&line(&[b"mg txt v O", &[b'o'; 31], b"\r\n"]));
    accepted(&line(&[b"mg ", &KEY_250[..248], b" b\r\n"]));
}

#[test]
fn meta_mistakes_are_answered_as_1_6_45_answers_them() {
    let opaque_33 = [&b"O"[..], &[b'o'; 32]].concat();
    check_refused(&[
        (b"mg\r\n", Reply::BadLine, 0),
        (b"mg txt v v\r\n", Reply::DuplicateFlag, 0),
        (b"mg txt !\r\n", Reply::BadLine, 0),
        (b"mg txt \xff\r\n", Reply::BadLine, 0),
        (b"mg a v v !\r\n", Reply::BadLine, 0),
        (b"mg a 5\r\n", Reply::InvalidFlag, 0),
        (b"mg a _ _\r\n", Reply::InvalidFlag, 0),
        (b"mg a A B\r\n", Reply::InvalidFlag, 0),
        (b"mg ### b v\r\n", Reply::BadKeyEncoding, 0),
        (b"mg ==== b\r\n", Reply::BadKeyEncoding, 0),
        (b"mg txt Tabc\r\n", Reply::BadToken, 0),
        (b"mg txt T\r\n", Reply::BadToken, 0),
        (b"mg a E\r\n", Reply::BadToken, 0),
        (b"mg a J\r\n", Reply::InvalidInitialFlag, 0),
        (b"mg a Dx\r\n", Reply::InvalidDeltaFlag, 0),
        (b"mg a Fx\r\n", Reply::BadLine, 0),
        (b"mg a F\r\n", Reply::BadLine, 0),
        (b"mg a T Dx\r\n", Reply::InvalidDeltaFlag, 0),
        (b"mg a Dx T\r\n", Reply::BadToken, 0),
        (b"mg a Dx Fx\r\n", Reply::InvalidDeltaFlag, 0),
        (b"mg a T v v\r\n", Reply::DuplicateFlag, 0),
        (&line(&[b"mg txt v ", &opaque_33, b"\r\n"]), Reply::OpaqueTooLong, 0),
        (&line(&[b"mg txt q T ", &opaque_33, b"\r\n"]), Reply::BadToken, 0),
        (&line(&[b"mg ", KEY_251, b"\r\n"]), Reply::BadLine, 0),
        (&line(&[b"mg a", &b" k".repeat(30), b"\r\n"]), Reply::FlagsTooLong, 0),
        (&line(&[b"mg a", &b" k".repeat(19), b"\r\n"]), Reply::FlagsTooLong, 0),
        (&line(&[b"mg a", &b" k".repeat(18), b"\r\n"]), Reply::DuplicateFlag, 0),
        (&line(&[b"mg ", KEY_251, &b" k".repeat(30), b"\r\n"]), Reply::BadLine, 0),
        (b"md a q q\r\n", Reply::DuplicateFlag, 0),
        (b"md a b\r\n", Reply::BadKeyEncoding, 0),
        (b"ma num MX\r\n", Reply::BadArithmeticMode, 0),
        (b"ma num Mi\r\n", Reply::BadArithmeticMode, 0),
        (b"ma num Dzz\r\n", Reply::InvalidOrDuplicateFlag, 0),
        (b"ma num Dzz !\r\n", Reply::BadLine, 0),
        (b"ma\r\n", Reply::BadLine, 0),
        (&line(&[b"ma ", KEY_251, b"\r\n"]), Reply::InvalidOrDuplicateFlag, 0),
        (b"me\r\n", Reply::BadLine, 0),
        (b"me ### b q\r\n", Reply::BadLine, 0),
        (b"me a !\r\n", Reply::BadLine, 0),
        (&line(&[b"me ", KEY_251, b"\r\n"]), Reply::BadLine, 0),
    ]);
}

#[test]
fn a_bad_meta_set_swallows_its_data_block_if_its_length_is_legible() {
    let opaque_33 = [&b"O"[..], &[b'o'; 32]].concat();
    check_refused(&[
        (b"ms\r\n", Reply::BadLine, 0),
        (b"ms a\r\n", Reply::BadLine, 0),
        (b"ms a S1\r\n", Reply::BadLine, 0),
        (b"ms a abc\r\n", Reply::BadLine, 0),
        (b"ms a -1\r\n", Reply::BadLine, 0),
        (b"ms a 2147483647\r\n", Reply::BadLine, 0),
        (b"ms a 1 !\r\n", Reply::BadLine, 0),
        (b"ms a 1 MX\r\n", Reply::BadSetMode, 3),
        (b"ms a 1 M\r\n", Reply::BadSetMode, 3),
        (b"ms a 1 Me\r\n", Reply::BadSetMode, 3),
        (b"ms a 1 Fzz\r\n", Reply::BadLine, 3),
        (b"ms b 1 q b\r\n", Reply::BadKeyEncoding, 3),
        (b"ms a 1 q q\r\n", Reply::DuplicateFlag, 3),
        (&line(&[b"ms a 1 ", &opaque_33, b"\r\n"]), Reply::OpaqueTooLong, 3),
        (&line(&[b"ms a 1 MX ", &opaque_33, b"\r\n"]), Reply::BadSetMode, 3),
        (&line(&[b"ms ", KEY_251, b" 1\r\n"]), Reply::BadLine, 3),
        (&line(&[b"ms a 1", &b" k".repeat(18), b"\r\n"]), Reply::FlagsTooLong, 3),
    ]);
}

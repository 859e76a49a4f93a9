//! Tests of the format of replies.

use kachel_engine::{Facts, Inspection, KeyHasher, Seeds, Value, Verdict, decimal_digits};

use super::{
    DumpFacts, KeyReply, MetaCode, MetaVerb, ShownKey, answer_key, answer_lease, key_fits_a_line,
    meta_debug, meta_head, meta_plain, metadump_line, mgdump_line, number, put_i64, put_u64,
    quiet_hides, value_head,
};
use crate::request::{Meta, MetaKey, Request, RetrieveForm};
use crate::{Parsed, parse};
use proptest::prelude::*;

#[track_caller]
fn meta_of(line: &[u8]) -> Meta<'_> {
    match parse(line, 0) {
        Parsed::Request {
            request:
                Request::MetaGet(meta)
                | Request::MetaDelete(meta)
                | Request::MetaSet { meta, .. }
                | Request::MetaArithmetic { meta, .. },
            ..
        } => meta,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn check_head(line: &[u8], verb: MetaVerb, code: MetaCode, facts: &Facts, expected: &[u8]) {
    let mut reply = Vec::new();
    meta_head(&mut reply, verb, code, &meta_of(line), facts);
    assert_eq!(reply.escape_ascii().to_string(), expected.escape_ascii().to_string());
}

const FACTS: Facts = Facts {
    value_bytes: 3,
    client_flags: 7,
    cas: 42,
    ttl_before: Some(10),
    ttl: Some(60),
    ttl_made: None,
    created: false,
    hit_before: true,
    since_access_s: 5,
    won: false,
    stale: false,
    win_sent: false,
    protocol_mark: None,
};

/// The reply to a key of `lease-get`. `^` in an expected reply is a line end.
#[track_caller]
fn check_lease(form: RetrieveForm, is_last: bool, told: (Verdict, Option<&[u8]>), expected: &str) {
    let (verdict, value) = told;
    let value: Value<'_, ()> = value.map_or(Value::None, Value::Inline);
    let key = KeyHasher::new(Seeds { hash_keys: [1, 2] }, 1).key(b"k");
    let mut reply = Vec::new();
    let key_reply = KeyReply { form, is_last };
    assert!(answer_lease(&mut reply, &key, key_reply, &verdict, value).is_none());
    assert_eq!(reply.escape_ascii().to_string(), expected.replace('^', "\\r\\n"));
}

#[test]
fn every_reply_of_a_lease() {
    let (one, several) = (RetrieveForm::LeaseOfOne, RetrieveForm::LeaseOfMany);
    let leased = |token| Verdict::Leased { token, client_flags: 7 };
    let hit = Verdict::Hit(FACTS);
    let old = Some(&b"old"[..]);
    check_lease(one, true, (hit, old), "VALUE k 7 3^old^END^");
    check_lease(several, false, (hit, old), "VALUE k 7 3^old^");
    check_lease(one, true, (leased(Some(42)), old), "LVALUE k 42 7 3^old^END^");
    check_lease(several, false, (leased(Some(42)), old), "LVALUE k 42 7 3^old^");
    check_lease(
        one,
        true,
        (leased(Some(u64::MAX)), Some(b"")),
        &format!("LVALUE k {} 7 0^^END^", u64::MAX),
    );
    // Another client has the lease.
    check_lease(one, true, (leased(None), old), "LVALUE k 1 7 3^old^END^");
    for nothing in [Some(&b""[..]), None] {
        check_lease(one, true, (leased(None), nothing), "NOT_FOUND_HOT^");
        check_lease(several, false, (leased(None), nothing), "NOT_FOUND_HOT^");
        check_lease(several, true, (leased(None), nothing), "NOT_FOUND_HOT^END^");
    }
    let full = Verdict::NoMemory { found: false };
    check_lease(one, true, (full, None), "SERVER_ERROR out of memory^");
    check_lease(several, true, (full, None), "SERVER_ERROR out of memory^END^");
    check_lease(one, true, (Verdict::DiskFailed, None), "SERVER_ERROR disk error^");
    check_lease(several, false, (Verdict::DiskFailed, None), "SERVER_ERROR disk error^");
    check_lease(several, true, (Verdict::DiskFailed, None), "SERVER_ERROR disk error^END^");
}

#[test]
fn a_failed_disk_is_an_error_in_every_verb_and_in_the_place_of_an_end() {
    let key = KeyHasher::new(Seeds { hash_keys: [1, 2] }, 1).key(b"k");
    let form = RetrieveForm::Value;
    let no_memory = Verdict::NoMemory { found: true };
    for (is_last, verdict, expected) in [
        (false, Verdict::DiskFailed, &b""[..]),
        (true, Verdict::DiskFailed, b"SERVER_ERROR disk error\r\n"),
        (false, no_memory, b""),
        (true, no_memory, b"SERVER_ERROR out of memory\r\n"),
    ] {
        let (mut reply, terms) = (Vec::new(), KeyReply { form, is_last });
        let value = Value::<()>::None;
        assert!(answer_key(&mut reply, &key, terms, &verdict, value).is_none());
        assert_eq!(reply, expected);
    }
    for line in [
        &b"set k 0 0 1\r\n"[..],
        b"delete k\r\n",
        b"incr k 1\r\n",
        b"touch k 1\r\n",
        b"mg k v q\r\n",
        b"ms k 1 q\r\n",
        b"md k q\r\n",
        b"ma k q\r\n",
        b"me k\r\n",
    ] {
        let Parsed::Request { request, .. } = parse(line, 0) else { panic!() };
        let mut reply = Vec::new();
        let value = Value::<()>::None;
        assert!(request.answer(&mut reply, &Verdict::DiskFailed, value).is_none());
        assert_eq!(reply, b"SERVER_ERROR disk error\r\n", "{}", line.escape_ascii());
    }
    let Parsed::Request { request, .. } = parse(b"delete k noreply\r\n", 0) else { panic!() };
    let mut reply = Vec::new();
    assert!(request.answer::<()>(&mut reply, &Verdict::DiskFailed, Value::None).is_none());
    assert_eq!(reply, b"");
}

#[test]
fn a_value_that_was_not_stored_for_all_says_so() {
    let Parsed::Request { request, .. } = parse(b"lease-set k 5 0 0 1\r\n", 0) else { panic!() };
    for (verdict, expected) in [
        (Verdict::Stored { cas: 9, value_bytes: 1 }, &b"STORED\r\n"[..]),
        (Verdict::StaleStored, b"STALE_STORED\r\n"),
        (Verdict::NotStored, b"NOT_STORED\r\n"),
        (Verdict::NoMemory { found: true }, b"SERVER_ERROR out of memory storing object\r\n"),
    ] {
        let mut reply = Vec::new();
        assert!(request.answer::<()>(&mut reply, &verdict, Value::None).is_none());
        assert_eq!(reply, expected);
    }
}

#[test]
fn a_meta_get_returns_what_was_asked_for_in_that_order() {
    let (get, va, hd) = (MetaVerb::Get, MetaCode::Va, MetaCode::Hd);
    check_head(b"mg k v\r\n", get, va, &FACTS, b"VA 3\r\n");
    check_head(b"mg k\r\n", get, hd, &FACTS, b"HD\r\n");
    check_head(b"mg k s v\r\n", get, va, &FACTS, b"VA 3 s3\r\n");
    check_head(
        b"mg k h l t c f s k O12 q u P1 L2\r\n",
        get,
        hd,
        &FACTS,
        b"HD h1 l5 t10 c42 f7 s3 kk O12\r\n",
    );
    check_head(b"mg a2V5 O1  k b\r\n", get, hd, &FACTS, b"HD O1 ka2V5 b\r\n");
    check_head(b"mg k kfoo vbar\r\n", get, va, &FACTS, b"VA 3 kk\r\n");
}

#[test]
fn a_ttl_is_the_one_that_holds_where_it_is_asked_for() {
    let (get, hd) = (MetaVerb::Get, MetaCode::Hd);
    let created = Facts { created: true, ttl_before: None, ttl_made: Some(30), ..FACTS };
    check_head(b"mg k t T60\r\n", get, hd, &FACTS, b"HD t10\r\n");
    let dead = Facts { ttl: Some(-3), ..FACTS };
    check_head(b"mg k T-1 t\r\n", get, hd, &dead, b"HD t4294967293\r\n");
    check_head(b"mg k T60 t\r\n", get, hd, &FACTS, b"HD t60\r\n");
    check_head(b"mg k N30 t\r\n", get, hd, &FACTS, b"HD t10\r\n");
    check_head(b"mg k N30 t\r\n", get, hd, &created, b"HD t30\r\n");
    check_head(b"mg k t N30\r\n", get, hd, &created, b"HD t-1\r\n");
    check_head(b"mg k T60 t N30\r\n", get, hd, &created, b"HD t60\r\n");
    check_head(b"mg k T60 N30 t\r\n", get, hd, &created, b"HD t30\r\n");
    check_head(b"ma k T60 t\r\n", MetaVerb::Arithmetic, hd, &FACTS, b"HD t60\r\n");
}

#[test]
fn marks_of_a_recache_come_last() {
    let (get, hd) = (MetaVerb::Get, MetaCode::Hd);
    let stale = Facts { stale: true, won: true, ..FACTS };
    let lost = Facts { stale: true, win_sent: true, ..FACTS };
    check_head(b"mg k c\r\n", get, hd, &stale, b"HD c42 X W\r\n");
    check_head(b"mg k c\r\n", get, hd, &lost, b"HD c42 Z X\r\n");
    check_head(b"ma k c\r\n", MetaVerb::Arithmetic, hd, &stale, b"HD c42\r\n");
}

#[test]
fn each_verb_returns_its_own_flags_only() {
    let (set, hd) = (MetaVerb::Set, MetaCode::Hd);
    check_head(b"ms a2V5 3 c s k O1 b\r\n", set, hd, &FACTS, b"HD c42 s3 ka2V5 b O1\r\n");
    check_head(b"ms k 3 t f h l v k\r\n", set, hd, &FACTS, b"HD kk\r\n");
    let failed = Facts { cas: 0, ..FACTS };
    check_head(b"ms k 3 c\r\n", set, MetaCode::Ns, &failed, b"NS c0\r\n");
    check_head(b"ms k 3 k c\r\n", set, MetaCode::Ex, &failed, b"EX kk c0\r\n");
    let (arithmetic, va) = (MetaVerb::Arithmetic, MetaCode::Va);
    let number = Facts { value_bytes: 2, ttl: None, ttl_before: None, ..FACTS };
    check_head(b"ma k v t c s f k O1\r\n", arithmetic, va, &number, b"VA 2 t-1 c42 kk O1\r\n");
}

#[test]
fn a_reply_without_an_item_repeats_key_and_opaque() {
    for (line, code, expected) in [
        (&b"mg k v t s O12 k\r\n"[..], MetaCode::En, &b"EN O12 kk\r\n"[..]),
        (b"mg k v\r\n", MetaCode::En, b"EN\r\n"),
        (b"md k c s O1\r\n", MetaCode::Hd, b"HD O1\r\n"),
        (b"md a2V5 k b\r\n", MetaCode::Ex, b"EX ka2V5 b\r\n"),
        (b"ma k v c t k\r\n", MetaCode::Nf, b"NF kk\r\n"),
    ] {
        let mut reply = Vec::new();
        meta_plain(&mut reply, code, &meta_of(line));
        assert_eq!(reply, expected, "{}", line.escape_ascii());
    }
}

#[test]
fn a_key_is_shown_as_its_item_is_marked_and_else_as_asked() {
    let (get, hd) = (MetaVerb::Get, MetaCode::Hd);
    let marked = Facts { protocol_mark: Some(true), ..FACTS };
    let plain = Facts { protocol_mark: Some(false), ..FACTS };
    for line in [&b"mg key k\r\n"[..], b"mg a2V5 k b\r\n", b"mg #a2!V5# b k\r\n"] {
        check_head(line, get, hd, &marked, b"HD ka2V5 b\r\n");
        check_head(line, get, hd, &plain, b"HD kkey\r\n");
    }
    check_head(b"mg #a2!V5# k b\r\n", get, MetaCode::En, &FACTS, b"EN ka2V5 b\r\n");
    // No line can carry a space in a key.
    check_head(b"mg YSBi k b\r\n", get, hd, &plain, b"HD kYSBi b\r\n");
}

#[test]
fn quiet_hides_what_1_6_45_hides() {
    use MetaCode::{En, Ex, Hd, Nf, Ns, Va};
    for (verb, hidden) in [
        (MetaVerb::Get, &[En][..]),
        (MetaVerb::Set, &[Hd]),
        (MetaVerb::Delete, &[Hd]),
        (MetaVerb::Arithmetic, &[Hd, Va]),
    ] {
        for code in [Hd, Va, En, Ns, Ex, Nf] {
            assert_eq!(quiet_hides(verb, code), hidden.contains(&code), "{verb:?} {code:?}");
        }
    }
}

#[test]
fn value_heads() {
    let mut reply = Vec::new();
    value_head(&mut reply, b"txt", 0, 3, None);
    value_head(&mut reply, &[b'k'; 250], u32::MAX, usize::MAX, Some(u64::MAX));
    let long = format!("VALUE {} {} {} {}\r\n", "k".repeat(250), u32::MAX, usize::MAX, u64::MAX);
    assert_eq!(reply, ["VALUE txt 0 3\r\n", &long].concat().as_bytes());
}

#[test]
fn debug_and_dump_lines() {
    let mut reply = Vec::new();
    let key = MetaKey { text: b"k", base64: false };
    let debug = Inspection {
        ttl: Some(59),
        since_access_s: 1,
        cas: 9,
        fetched: true,
        item_bytes: 70,
        protocol_mark: false,
    };
    meta_debug(&mut reply, key, &debug);
    meta_debug(&mut reply, key, &Inspection { protocol_mark: true, ..debug });
    let rest = "exp=59 la=1 cas=9 fetch=yes cls=1 size=70";
    assert_eq!(reply, format!("ME k {rest}\r\nME aw== {rest}\r\n").as_bytes());

    reply.clear();
    let dump = DumpFacts {
        expiry_unix_s: Some(1_700_000_000),
        access_unix_s: 1_699_999_999,
        cas: 9,
        fetched: true,
        class: 3,
        item_bytes: 70,
        client_flags: 5,
    };
    metadump_line(&mut reply, ShownKey::of(b"a b\xff-._~"), &dump);
    let expected: &[u8] = b"key=a%20b%FF-._~ exp=1700000000 la=1699999999 cas=9 fetch=yes cls=3 \
        size=70 flags=5 \n";
    assert_eq!(reply, expected);

    reply.clear();
    mgdump_line(&mut reply, ShownKey::of(b"a\tb"), false);
    mgdump_line(&mut reply, ShownKey::of(b"a\tb"), true);
    mgdump_line(&mut reply, ShownKey::of(b"ab\r"), false);
    assert_eq!(reply, b"mg a\tb\r\nmg YQli b\r\nmg YWIN b\r\n");
}

#[test]
fn a_value_has_its_length_before_it() {
    let bytes = [b'v'; 10_100];
    let mut reply = Vec::new();
    for length in 0..bytes.len() {
        for client_flags in [0, 9, 10] {
            reply.clear();
            crate::format::value(&mut reply, b"k", client_flags, &bytes[..length], None, b"\r\n");
            let head = format!("VALUE k {client_flags} {length}\r\n");
            assert_eq!(reply[..head.len()], *head.as_bytes());
            assert_eq!(reply[head.len()..][..length], bytes[..length]);
            assert_eq!(reply[head.len() + length..], *b"\r\n");
        }
    }
}

proptest! {
    #[test]
    fn numbers_are_worded_as_by_the_standard_library(
        value: u64, signed: i64, short in 0..200_u64,
    ) {
        let mut text = Vec::new();
        for value in [value, short] {
            text.clear();
            put_u64(&mut text, value);
            prop_assert_eq!(String::from_utf8_lossy(&text), value.to_string());
            prop_assert_eq!(text.len(), decimal_digits(value));
        }
        text.clear();
        put_i64(&mut text, signed);
        number(&mut text, value);
        prop_assert_eq!(String::from_utf8_lossy(&text), format!("{signed}{value}\r\n"));
    }

    /// If a dumped line is sent to a server, it requests the key that was dumped.
    #[test]
    fn a_dumped_key_is_parsed_as_itself(
        key in proptest::collection::vec(any::<u8>(), 1..180), marked: bool,
    ) {
        let mut line = Vec::new();
        mgdump_line(&mut line, ShownKey::of(&key), marked);
        let mut buffer = [0; crate::request::KEY_BYTES_MAX];
        prop_assert_eq!(crate::parse_key(meta_of(&line).key, &mut buffer), &key[..]);
        prop_assert_eq!(meta_of(&line).key.base64, marked || !key_fits_a_line(&key));
        let mut text = Vec::new();
        ShownKey::of(&key).put_encoded(&mut text);
        prop_assert!(text.iter().all(|byte| byte.is_ascii_graphic() && *byte != b' '));
    }
}

//! Checks of the parser of requests: it accepts any bytes, its result does not depend on the pieces
//! in which a line arrives, and it parses a request that the client code formats as the same
//! request.
//!
//! Upstream:   the text and meta targets. The first byte of an input selects a verb, so that the
//!             fuzzer need not discover each verb.
//! Downstream: `kachel_wire::parse_text`, and the functions of `wire` that read parsed requests.

use kachel_engine::Facts;
use kachel_wire::client::{
    ClientReply, ReplyParsed, StoreRequest, decr, delete, get, get_and_touch, incr, lease_get,
    meta_arithmetic, meta_delete, meta_get, meta_set, parse_reply, store_head, touch,
};
use kachel_wire::format::{MetaCode, MetaVerb, meta_head, meta_plain, value_head};
use kachel_wire::request::{
    Admin, Direction, KEY_BYTES_MAX, LINE_BYTES_MAX, META_FLAGS_MAX, Meta, MetaKey,
    OPAQUE_BYTES_MAX, RETRIEVE_LINE_BYTES_MAX, Request, Retrieve, RetrieveForm, Store, StoreMode,
};
use kachel_wire::{Parsed, parse_key, parse_text, stats_topic};

use crate::client::cuts;
use crate::login;

/// The most lines of one input that are checked.
const LINES_MAX: usize = 16;
/// The longest value of an `ms` that the client code formats again.
const WORDED_VALUE_BYTES_MAX: u32 = 4096;

/// The verbs from which the text target's first byte selects. The first one is empty, so that the
/// rest of the input is the whole line.
const TEXT_VERBS: [&[u8]; 26] = [
    b"",
    b"get ",
    b"gets ",
    b"gat ",
    b"gats ",
    b"set ",
    b"add ",
    b"replace ",
    b"append ",
    b"prepend ",
    b"cas ",
    b"delete ",
    b"touch ",
    b"incr ",
    b"decr ",
    b"flush_all ",
    b"stats ",
    b"verbosity ",
    b"cache_memlimit ",
    b"lru_crawler ",
    b"lru ",
    b"slabs ",
    b"watch ",
    b"shutdown ",
    b"lease-get ",
    b"lease-set ",
];
/// The verbs from which the meta target's first byte selects.
pub const META_VERBS: [&[u8]; 7] = [b"mg ", b"ms ", b"md ", b"ma ", b"me ", b"mn ", b"mscan "];

/// Checks lines with classic verbs, and every other line that is not a meta request.
///
/// Then checks the same bytes as the commands of a client that must log in, and as a file of users.
pub fn text(data: &[u8]) {
    let input = with_verb(&TEXT_VERBS, data);
    login::login(&input);
    login::users(data);
}

/// Checks lines with meta verbs.
pub fn meta(data: &[u8]) {
    with_verb(&META_VERBS, data);
}

/// Checks the lines of an input behind one of the verbs. Returns them.
fn with_verb(verbs: &[&[u8]], data: &[u8]) -> Vec<u8> {
    let Some((&pick, rest)) = data.split_first() else { return Vec::new() };
    let verb = verbs[usize::from(pick) % verbs.len()];
    let mut input = Vec::with_capacity(verb.len() + rest.len());
    input.extend_from_slice(verb);
    input.extend_from_slice(rest);
    lines(&input);
    input
}

/// Checks each line of `input`.
fn lines(input: &[u8]) {
    let mut rest = input;
    for _ in 0..LINES_MAX {
        let parsed = parse_text(rest, 0);
        let line_bytes = match parsed {
            Parsed::NeedMore => return unfinished(rest),
            Parsed::Close => return pieces(rest, rest.len(), parsed),
            Parsed::Request { request, line_bytes } => {
                request_holds(&request);
                comes_back(&request);
                answers_are_read(&request);
                line_bytes
            }
            Parsed::Refused { refusal, line_bytes } => {
                assert!(refusal.skip_bytes < 1 << 31);
                line_bytes
            }
            Parsed::RefusedBinary { .. } => panic!("a refusal of another protocol"),
        };
        let line = &rest[..line_bytes];
        assert!(line.ends_with(b"\n") && !line[..line_bytes - 1].contains(&b'\n'));
        let is_retrieval = line.starts_with(b"g");
        let longest = if is_retrieval { RETRIEVE_LINE_BYTES_MAX } else { LINE_BYTES_MAX };
        assert!(line_bytes <= longest);
        pieces(rest, line_bytes, parsed);
        rest = &rest[line_bytes..];
    }
}

/// Checks that a newline completes an unfinished line.
fn unfinished(input: &[u8]) {
    assert!(!input.contains(&b'\n'));
    let mut line = input.to_vec();
    line.push(b'\n');
    match parse_text(&line, input.len()) {
        Parsed::NeedMore | Parsed::RefusedBinary { .. } => panic!("a whole line is enough"),
        Parsed::Request { line_bytes, .. } | Parsed::Refused { line_bytes, .. } => {
            assert_eq!(line_bytes, line.len());
        }
        Parsed::Close => {}
    }
}

/// Checks that the result for a line depends neither on the number of bytes that were scanned
/// before, nor on the bytes after the line. For a part of the line the result is `NeedMore` or
/// `Close`.
fn pieces(input: &[u8], line_bytes: usize, parsed: Parsed<'_>) {
    for cut in cuts(&input[..line_bytes]) {
        let first = parse_text(&input[..cut], 0);
        match first {
            Parsed::NeedMore => {
                if matches!(parsed, Parsed::Request { .. } | Parsed::Refused { .. }) {
                    assert_eq!(parse_text(input, cut), parsed, "known up to {cut}");
                }
            }
            Parsed::Close => assert_eq!(parsed, Parsed::Close, "cut at {cut}"),
            other => {
                // This holds for `Close` too: a complete line before the one that closes would be
                // the first, and `parse_text` would return it.
                panic!("cut at {cut} of {line_bytes}: {other:?}, whole {parsed:?}");
            }
        }
    }
    if let Parsed::Request { .. } | Parsed::Refused { .. } = parsed {
        assert_eq!(parse_text(&input[..line_bytes], 0), parsed, "with nothing behind it");
        assert_eq!(parse_text(input, line_bytes - 1), parsed);
    }
}

/// Checks the promises of `wire` about each request.
fn request_holds(request: &Request<'_>) {
    let key_holds = |key: &[u8]| {
        assert!((1..=KEY_BYTES_MAX).contains(&key.len()));
        assert!(!key.contains(&b' ') && !key.contains(&b'\n'));
    };
    match request {
        Request::Retrieve(retrieve) => {
            assert!(retrieve.keys.count() > 0);
            retrieve.keys.for_each(key_holds);
        }
        Request::Store(store) => {
            key_holds(store.key);
            assert!(store.value_bytes <= i32::MAX as u32 - 2);
            let has_token = store.compare_cas.is_some();
            match store.mode {
                StoreMode::Set => {}
                StoreMode::Lease => assert!(has_token, "a lease has a token"),
                _ => assert!(!has_token),
            }
        }
        Request::Delete { key, .. }
        | Request::Touch { key, .. }
        | Request::Arithmetic { key, .. } => key_holds(key),
        Request::MetaGet(meta) | Request::MetaDelete(meta) => meta_holds(meta),
        Request::MetaSet { meta, value_bytes, .. } => {
            meta_holds(meta);
            assert!(*value_bytes <= i32::MAX as u32 - 2);
        }
        Request::MetaArithmetic { meta, .. } => meta_holds(meta),
        Request::MetaDebug(key) => meta_key_holds(*key),
        Request::MetaNoop => {}
        Request::Admin(Admin::Stats { topic }) => {
            let _topic = stats_topic(topic);
        }
        Request::Admin(Admin::Scan(scan)) => {
            for text in [Some(scan.from.text), scan.until, scan.prefix].into_iter().flatten() {
                meta_key_holds(MetaKey { text, ..scan.from });
            }
            assert!(scan.count > 0 && scan.opaque.len() <= OPAQUE_BYTES_MAX);
            assert!(scan.fields.letters().len() <= 5);
        }
        Request::Admin(_) => {}
        Request::Binary(_) | Request::BinaryAdmin { .. } => panic!("a request of another protocol"),
    }
}

fn meta_key_holds(key: MetaKey<'_>) {
    let mut space = [0; KEY_BYTES_MAX];
    assert!((1..=KEY_BYTES_MAX).contains(&parse_key(key, &mut space).len()));
    assert!(!key.text.contains(&b' ') && !key.text.contains(&b'\n'));
}

fn meta_holds(meta: &Meta<'_>) {
    meta_key_holds(meta.key);
    assert_eq!(meta.letters.has(b'b'), meta.key.base64);
    let mut count = 0;
    for letter in meta.letters_in_order() {
        assert!(meta.letters.has(letter));
        count += 1;
    }
    assert_eq!(count, meta.letters.0.count_ones() as usize, "each letter stands once");
    assert!(count <= META_FLAGS_MAX);
    for flag in meta.flags.split(|&byte| byte == b' ').filter(|flag| flag.first() == Some(&b'O')) {
        assert!(flag.len() <= OPAQUE_BYTES_MAX);
    }
}

/// Checks that the parser reads a request that the client code formats as the same request.
fn comes_back(request: &Request<'_>) {
    let mut line = Vec::new();
    match *request {
        Request::Retrieve(Retrieve { form, ttl: None, keys, is_one }) => {
            assert_eq!(is_one, !keys.rest.contains(&b' '), "one key and nothing else");
            if form.is_lease() {
                assert_eq!(form == RetrieveForm::LeaseOfOne, keys.count() == 1);
                lease_get(&mut line, keys);
            } else {
                get(&mut line, keys, form.with_cas());
            }
            let Parsed::Request { request: Request::Retrieve(again), .. } = parse_text(&line, 0)
            else {
                // The client code writes one space for several, so its line is never longer.
                panic!("{}", line.escape_ascii());
            };
            assert!((again.form, again.ttl) == (form, None));
            assert!(again.keys.eq(keys));
            return;
        }
        Request::Retrieve(Retrieve { form: RetrieveForm::Value, ttl: Some(ttl), keys, .. })
            if keys.count() == 1 =>
        {
            let mut keys = keys;
            get_and_touch(&mut line, keys.next().expect("one key"), ttl.0);
        }
        Request::Store(store) => store_worded(&mut line, &store),
        // `delete noreply` names this key and also asks for no reply, so the client code cannot
        // format a `delete` of this key that gets a reply.
        Request::Delete { key: b"noreply", noreply: false } => return,
        Request::Delete { key, noreply } => delete(&mut line, key, noreply),
        Request::Touch { key, ttl, noreply } => touch(&mut line, key, ttl.0, noreply),
        Request::Arithmetic { key, direction: Direction::Up, delta, noreply } => {
            incr(&mut line, key, delta, noreply);
        }
        Request::Arithmetic { key, direction: Direction::Down, delta, noreply } => {
            decr(&mut line, key, delta, noreply);
        }
        Request::MetaGet(meta) => meta_get(&mut line, meta.key.text, meta.flags),
        Request::MetaDelete(meta) => meta_delete(&mut line, meta.key.text, meta.flags),
        Request::MetaArithmetic { meta, .. } => {
            meta_arithmetic(&mut line, meta.key.text, meta.flags);
        }
        Request::MetaSet {
            meta, value_bytes: value_bytes @ 0..=WORDED_VALUE_BYTES_MAX, ..
        } => {
            meta_set(&mut line, meta.key.text, meta.flags, &vec![b'v'; value_bytes as usize]);
        }
        _ => return,
    }
    match parse_text(&line, 0) {
        Parsed::Request { request: again, .. } if same(&again, request) => {}
        // The client code may write a number with more digits, so its line may be too long.
        Parsed::Close if line.len() > LINE_BYTES_MAX => {}
        other => panic!("{} is {other:?}, was {request:?}", line.escape_ascii()),
    }
}

/// Whether two requests are the same. The text that contains the keys of a retrieval does not
/// count.
fn same(one: &Request<'_>, other: &Request<'_>) -> bool {
    match (one, other) {
        (Request::Retrieve(one), Request::Retrieve(other)) => {
            (one.form, one.ttl) == (other.form, other.ttl) && one.keys.eq(other.keys)
        }
        _ => one == other,
    }
}

fn store_worded(line: &mut Vec<u8>, store: &Store<'_>) {
    let request = StoreRequest {
        mode: store.mode,
        key: store.key,
        client_flags: store.client_flags,
        ttl: store.ttl.0,
        compare_cas: store.compare_cas,
        noreply: store.noreply,
    };
    store_head(line, &request, store.value_bytes as usize);
}

/// Checks that the client code can read the replies that the server may format for a request.
fn answers_are_read(request: &Request<'_>) {
    const CODES: [MetaCode; 6] =
        [MetaCode::Hd, MetaCode::Va, MetaCode::En, MetaCode::Ns, MetaCode::Ex, MetaCode::Nf];
    let facts = Facts {
        value_bytes: 3,
        client_flags: u32::MAX,
        cas: u64::MAX,
        ttl_before: Some(i64::MAX),
        ttl: Some(-1),
        won: true,
        stale: true,
        win_sent: true,
        ..Facts::default()
    };
    let (meta, verb) = match request {
        Request::Retrieve(retrieve) => {
            retrieve.keys.take(4).for_each(|key| value_is_read(key, retrieve.form.with_cas()));
            return;
        }
        Request::MetaGet(meta) => (meta, MetaVerb::Get),
        Request::MetaSet { meta, .. } => (meta, MetaVerb::Set),
        Request::MetaDelete(meta) => (meta, MetaVerb::Delete),
        Request::MetaArithmetic { meta, .. } => (meta, MetaVerb::Arithmetic),
        _ => return,
    };
    for code in CODES {
        let mut reply = Vec::new();
        meta_head(&mut reply, verb, code, meta, &facts);
        if code == MetaCode::Va {
            reply.extend_from_slice(b"abc\r\n");
        } else {
            meta_is_read(&reply, code);
            reply.clear();
            meta_plain(&mut reply, code, meta);
        }
        meta_is_read(&reply, code);
    }
}

fn meta_is_read(reply: &[u8], code: MetaCode) {
    match parse_reply(reply) {
        ReplyParsed::Reply { reply: ClientReply::Meta { code: read, .. }, reply_bytes } => {
            assert_eq!((&read, reply_bytes), (code.letters(), reply.len()));
        }
        other => panic!("{} is {other:?}", reply.escape_ascii()),
    }
}

fn value_is_read(key: &[u8], with_cas: bool) {
    let cas = with_cas.then_some(u64::MAX);
    let mut reply = Vec::new();
    value_head(&mut reply, key, u32::MAX, 2, cas);
    let start = reply.len();
    reply.extend_from_slice(b"ab\r\n");
    let expected = ClientReply::Value { key, client_flags: u32::MAX, value: start..start + 2, cas };
    let parsed = parse_reply(&reply);
    assert_eq!(parsed, ReplyParsed::Reply { reply: expected, reply_bytes: reply.len() });
}

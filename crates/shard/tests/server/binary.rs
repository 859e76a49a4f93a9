//! The binary protocol, over the in-memory network: with one shard and with several, where requests
//! are executed at once and where they are parked, whole and cut. The replies are those of 1.6.45.

use kachel_io::FarEnd;
use kachel_net::{ClientLimits, ClientProtocol};
use kachel_testkit::{World, WorldOptions};

const OPAQUE: [u8; 4] = *b"opaq";
const NOOP: u8 = 0x0a;

const NOT_FOUND: (u16, &[u8]) = (1, b"Not found");
const EXISTS: (u16, &[u8]) = (2, b"Data exists for key.");
const TOO_LARGE: (u16, &[u8]) = (3, b"Too large.");
const INVALID: (u16, &[u8]) = (4, b"Invalid arguments");
const NOT_STORED: (u16, &[u8]) = (5, b"Not stored.");
const NON_NUMERIC: (u16, &[u8]) = (6, b"Non-numeric server-side value for incr or decr");
const UNKNOWN: (u16, &[u8]) = (0x81, b"Unknown command");

fn packet(head: [u8; 2], status: u16, parts: [&[u8]; 3], cas: u64) -> Vec<u8> {
    let [extras, key, value] = parts;
    let body = extras.len() + key.len() + value.len();
    let mut packet = head.to_vec();
    packet.extend_from_slice(&(key.len() as u16).to_be_bytes());
    packet.extend_from_slice(&[extras.len() as u8, 0]);
    packet.extend_from_slice(&status.to_be_bytes());
    packet.extend_from_slice(&(body as u32).to_be_bytes());
    packet.extend_from_slice(&OPAQUE);
    packet.extend_from_slice(&cas.to_be_bytes());
    [&packet, extras, key, value].concat()
}

fn request(opcode: u8, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
    packet([0x80, opcode], 0, [extras, key, value], 0)
}

fn with_cas(mut request: Vec<u8>, cas: u64) -> Vec<u8> {
    request[16..24].copy_from_slice(&cas.to_be_bytes());
    request
}

fn noop() -> Vec<u8> {
    request(NOOP, b"", b"", b"")
}

fn get(key: &str) -> Vec<u8> {
    request(0x00, b"", key.as_bytes(), b"")
}

fn set(key: &str, value: &[u8]) -> Vec<u8> {
    request(0x01, &[0, 0, 0, 7, 0, 0, 0, 0], key.as_bytes(), value)
}

/// A success with these extras, key and value.
fn done(opcode: u8, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
    packet([0x81, opcode], 0, [extras, key, value], 0)
}

fn hit(opcode: u8, key: &[u8], value: &[u8]) -> Vec<u8> {
    done(opcode, &[0, 0, 0, 7], key, value)
}

fn failed(opcode: u8, (status, text): (u16, &[u8])) -> Vec<u8> {
    packet([0x81, opcode], status, [b"", b"", text], 0)
}

/// The replies, each with its CAS token.
fn replies(mut bytes: &[u8]) -> Vec<(Vec<u8>, u64)> {
    let mut replies = Vec::new();
    while !bytes.is_empty() {
        assert!(bytes.len() >= 24 && bytes[0] == 0x81, "{}", bytes.escape_ascii());
        let body = u32::from_be_bytes(*bytes[8..].first_chunk().expect("a length")) as usize;
        let (reply, rest) = bytes.split_at(24 + body);
        let cas = u64::from_be_bytes(*reply[16..].first_chunk().expect("a token"));
        replies.push((with_cas(reply.to_vec(), 0), cas));
        bytes = rest;
    }
    replies
}

/// The bytes of the replies, without their CAS tokens.
fn without_cas(bytes: &[u8]) -> Vec<u8> {
    replies(bytes).into_iter().flat_map(|(reply, _)| reply).collect()
}

/// The token of the only reply.
fn cas_of(reply: &[u8]) -> u64 {
    let [(_, cas)] = replies(reply)[..] else { panic!("{}", reply.escape_ascii()) };
    cas
}

fn world(shards: u16, crew: bool) -> World {
    World::new(WorldOptions { shards, crew, memory_bytes: 16 << 20, ..WorldOptions::default() })
}

/// Requests, and the replies to them.
type Rows = Vec<(Vec<u8>, Vec<u8>)>;

const FLAGS: &[u8] = &[0, 0, 0, 7, 0, 0, 0, 0];
const TTL: &[u8] = &[0, 0, 0, 100];

/// The extras of a change of a number.
fn count(delta: u64, initial: u64, expiry: u32) -> Vec<u8> {
    [&delta.to_be_bytes()[..], &initial.to_be_bytes(), &expiry.to_be_bytes()].concat()
}

/// A request for the key `a`.
fn of(opcode: u8, extras: &[u8], value: &[u8]) -> Vec<u8> {
    request(opcode, extras, b"a", value)
}

fn none() -> Vec<u8> {
    Vec::new()
}

/// All opcodes with their quiet twins, on hits, misses and mistakes that leave the stream open.
fn rows() -> Rows {
    let mut rows = [rows_on_misses(), rows_on_an_item(), rows_on_more_keys()].concat();
    rows.extend(rows_without_an_item());
    for opcode in [0x1b, 0x1f, 0x22, 0x30, 0xff] {
        rows.push((request(opcode, b"", b"kkk", b"vv"), failed(opcode, UNKNOWN)));
    }
    rows.push((request(0x20, b"", b"", b""), failed(0x20, UNKNOWN)));
    rows.push((request(0x07, b"", b"", b""), done(0x07, b"", b"", b"")));
    rows
}

fn rows_on_misses() -> Rows {
    let never = count(1, 10, u32::MAX);
    vec![
        (get("a"), failed(0x00, NOT_FOUND)),
        (of(0x09, b"", b""), none()),
        (of(0x0c, b"", b""), packet([0x81, 0x0c], 1, [b"", b"a", b""], 0)),
        (of(0x0d, b"", b""), none()),
        (of(0x1c, TTL, b""), failed(0x1c, NOT_FOUND)),
        (of(0x1d, TTL, b""), failed(0x1d, NOT_FOUND)),
        (of(0x1e, TTL, b""), none()),
        (of(0x23, TTL, b""), packet([0x81, 0x23], 1, [b"", b"a", b""], 0)),
        (of(0x24, TTL, b""), none()),
        (of(0x03, FLAGS, b"v"), failed(0x03, NOT_FOUND)),
        (of(0x13, FLAGS, b"v"), failed(0x13, NOT_FOUND)),
        (of(0x0e, b"", b"v"), failed(0x0e, NOT_STORED)),
        (of(0x0f, b"", b"v"), failed(0x0f, NOT_STORED)),
        (of(0x19, b"", b"v"), failed(0x19, NOT_STORED)),
        (of(0x1a, b"", b"v"), failed(0x1a, NOT_STORED)),
        (of(0x04, b"", b""), failed(0x04, NOT_FOUND)),
        (of(0x14, b"", b""), failed(0x14, NOT_FOUND)),
        (of(0x05, &never, b""), failed(0x05, NOT_FOUND)),
        (of(0x16, &never, b""), failed(0x16, NOT_FOUND)),
    ]
}

fn rows_on_an_item() -> Rows {
    let number = |opcode, number: u64| done(opcode, b"", b"", &number.to_be_bytes());
    let one = count(1, 10, 0);
    vec![
        (of(0x02, FLAGS, b"one"), done(0x02, b"", b"", b"")),
        (of(0x02, FLAGS, b"two"), failed(0x02, EXISTS)),
        (of(0x12, FLAGS, b"two"), failed(0x12, EXISTS)),
        (of(0x05, &one, b""), failed(0x05, NON_NUMERIC)),
        (of(0x15, &one, b""), failed(0x15, NON_NUMERIC)),
        (of(0x03, FLAGS, b"2"), done(0x03, b"", b"", b"")),
        (of(0x13, FLAGS, b"3"), none()),
        (of(0x0e, b"", b"4"), done(0x0e, b"", b"", b"")),
        (of(0x0f, b"", b"2"), done(0x0f, b"", b"", b"")),
        (of(0x19, b"", b"5"), none()),
        (of(0x1a, b"", b"1"), none()),
        (of(0x00, b"", b""), hit(0x00, b"", b"12345")),
        (of(0x09, b"", b""), hit(0x09, b"", b"12345")),
        (of(0x0c, b"", b""), hit(0x0c, b"a", b"12345")),
        (of(0x0d, b"", b""), hit(0x0d, b"a", b"12345")),
        (of(0x1c, TTL, b""), hit(0x1c, b"", b"")),
        (of(0x1d, TTL, b""), hit(0x1d, b"", b"12345")),
        (of(0x1e, TTL, b""), hit(0x1e, b"", b"12345")),
        (of(0x23, TTL, b""), hit(0x23, b"a", b"12345")),
        (of(0x24, TTL, b""), hit(0x24, b"a", b"12345")),
        (of(0x05, &one, b""), number(0x05, 12_346)),
        (of(0x15, &one, b""), none()),
        (of(0x06, &count(1000, 0, 0), b""), number(0x06, 11_347)),
        (of(0x16, &count(1 << 40, 0, 0), b""), none()),
        (of(0x00, b"", b""), hit(0x00, b"", b"0    ")),
        (of(0x11, FLAGS, b""), none()),
        (of(0x0c, b"", b""), hit(0x0c, b"a", b"")),
    ]
}

fn rows_on_more_keys() -> Rows {
    let long = [b'k'; 250];
    let number = |opcode, number: u64| done(opcode, b"", b"", &number.to_be_bytes());
    vec![
        (request(0x15, &count(1, 10, 0), b"n", b""), none()),
        (request(0x06, &count(3, 0, u32::MAX), b"n", b""), number(0x06, 7)),
        (request(0x0c, b"", b"n", b""), done(0x0c, &[0; 4], b"n", b"7 ")),
        (request(0x01, FLAGS, &long, b"v"), done(0x01, b"", b"", b"")),
        (request(0x0c, b"", &long, b""), hit(0x0c, &long, b"v")),
        (request(0x01, FLAGS, b" a\r\n\0", b"\r\n"), done(0x01, b"", b"", b"")),
        (request(0x23, TTL, b" a\r\n\0", b""), hit(0x23, b" a\r\n\0", b"\r\n")),
        (request(0x14, b"", b" a\r\n\0", b""), none()),
        (of(0x04, b"", b""), done(0x04, b"", b"", b"")),
    ]
}

fn rows_without_an_item() -> Rows {
    vec![
        (noop(), done(NOOP, b"", b"", b"")),
        (request(0x0b, b"", b"", b""), done(0x0b, b"", b"", b"1.6.45")),
        (request(0x10, b"", b"sizes", b""), {
            let stat = done(0x10, b"", b"sizes_status", b"disabled");
            [stat, done(0x10, b"", b"", b"")].concat()
        }),
        (request(0x10, b"", b"pipe", b""), done(0x10, b"", b"", b"")),
        (request(0x10, b"", b"detail dump", b""), {
            let stat = done(0x10, b"", b"detailed", b"END\r\n");
            [stat, done(0x10, b"", b"", b"")].concat()
        }),
        (request(0x10, b"", b"detail on", b""), done(0x10, b"", b"", b"")),
        (request(0x10, b"", b"detail", b""), failed(0x10, NOT_FOUND)),
        (request(0x10, b"", b"\0\0", b""), failed(0x10, NOT_FOUND)),
        (request(0x10, b"", b"conns", b""), failed(0x10, NOT_FOUND)),
        (request(0x10, b"", b"reset", b""), done(0x10, b"", b"", b"")),
        (request(0x18, b"", b"", b""), none()),
        (request(0x08, b"", b"", b""), done(0x08, b"", b"", b"")),
        (request(0x08, &[0, 0, 0, 0], b"", b""), done(0x08, b"", b"", b"")),
        (request(0x0c, b"", b"n", b""), packet([0x81, 0x0c], 1, [b"", b"n", b""], 0)),
    ]
}

#[test]
fn every_opcode_and_its_quiet_twin_are_answered_as_by_memcached() {
    for (shards, crew) in [(1, true), (2, true), (3, false), (8, true), (8, false)] {
        let mut world = world(shards, crew);
        let client = world.connect();
        for (input, expected) in rows() {
            let got = without_cas(&world.ask(&client, &input));
            assert!(
                got == expected,
                "{shards} shards, {}: {} and not {}",
                input.escape_ascii(),
                got.escape_ascii(),
                expected.escape_ascii()
            );
        }
        assert!(client.is_closed(), "it has quit");
    }
}

#[test]
fn requests_are_answered_in_order_wherever_their_input_is_cut() {
    let (input, expected): (Vec<_>, Vec<_>) = rows().into_iter().unzip();
    let (input, expected) = (input.concat(), expected.concat());
    for (shards, crew, step) in [(1, true, 1), (2, true, 3), (3, false, 5)] {
        for cut in (0..input.len()).step_by(step) {
            let mut world = world(shards, crew);
            let client = world.connect();
            client.write(&input[..cut]);
            world.settle();
            client.write(&input[cut..]);
            world.settle();
            let got = without_cas(&client.read());
            assert!(got == expected, "{shards} shards, cut at {cut}: {}", got.escape_ascii());
            assert!(client.is_closed(), "it has quit");
        }
    }
}

#[test]
fn a_byte_at_a_time_is_enough() {
    let (input, expected): (Vec<_>, Vec<_>) = rows().into_iter().unzip();
    let mut world = world(2, false);
    let client = world.connect();
    let mut got = Vec::new();
    for byte in input.concat() {
        client.write(&[byte]);
        world.rest();
        got.extend(client.read());
    }
    assert!(without_cas(&got) == expected.concat());
}

#[test]
fn a_mistake_in_the_lengths_is_answered_and_closes_the_connection() {
    let long = [b'k'; 251];
    let announcing = |opcode, key: u16, body: u32| {
        let mut header = request(opcode, b"", b"", b"");
        header[2..4].copy_from_slice(&key.to_be_bytes());
        header[8..12].copy_from_slice(&body.to_be_bytes());
        header
    };
    for (shards, crew) in [(1, true), (3, false)] {
        for (input, status) in [
            (request(0x00, b"", b"", b""), INVALID),
            (request(0x00, b"", &long, b""), INVALID),
            (request(0x09, b"", b"k", b"v"), INVALID),
            (request(0x01, b"", b"k", b"v"), INVALID),
            (request(0x1c, b"1234", b"k", b"v"), INVALID),
            (request(NOOP, b"", b"", b"x"), INVALID),
            (request(0x18, b"123", b"", b""), INVALID),
            (request(0x20, b"", b"k", b""), INVALID),
            (announcing(0x01, 1, u32::MAX), INVALID),
            (announcing(0x30, 0, 0x8000_0000), INVALID),
            (announcing(0x1a, 250, 0), UNKNOWN),
        ] {
            let mut world = world(shards, crew);
            let client = world.connect();
            let said = [set("a", b"v"), get("a"), input.clone(), get("a")].concat();
            let expected =
                [done(0x01, b"", b"", b""), hit(0x00, b"", b"v"), failed(input[1], status)];
            let got = without_cas(&world.ask(&client, &said));
            assert!(got == expected.concat(), "{}: {}", input.escape_ascii(), got.escape_ascii());
            assert!(client.is_closed());
        }
    }
}

#[test]
fn a_token_is_told_and_compared() {
    for (shards, crew) in [(1, true), (3, false)] {
        let mut world = world(shards, crew);
        let client = world.connect();
        let first = cas_of(&world.ask(&client, &set("a", b"1")));
        assert_ne!(first, 0);
        assert_eq!(cas_of(&world.ask(&client, &get("a"))), first);
        let touch = request(0x1c, &[0, 0, 0, 9], b"a", b"");
        assert_eq!(cas_of(&world.ask(&client, &touch)), first, "a touch keeps the token");
        let one = [&[0, 0, 0, 0, 0, 0, 0, 1][..], &[0; 12]].concat();
        for (input, is_stored) in [
            (set("a", b"2"), true),
            (request(0x02, &[0; 8], b"a", b"3"), true),
            (request(0x03, &[0; 8], b"a", b"4"), true),
            (request(0x0e, b"", b"a", b"5"), true),
            (request(0x0f, b"", b"a", b"6"), true),
            (request(0x05, &one, b"a", b""), true),
            (request(0x04, b"", b"a", b""), false),
        ] {
            let opcode = input[1];
            let token = cas_of(&world.ask(&client, &get("a")));
            let wrong = world.ask(&client, &with_cas(input.clone(), token + 1));
            assert_eq!(without_cas(&wrong), failed(opcode, EXISTS), "{opcode:#x}");
            let right = cas_of(&world.ask(&client, &with_cas(input, token)));
            assert!((right > token) == is_stored, "{opcode:#x}");
        }
        for (opcode, status) in [(0x01, NOT_FOUND), (0x02, NOT_FOUND), (0x13, NOT_FOUND)] {
            let input = with_cas(request(opcode, &[0; 8], b"a", b"v"), 5);
            assert_eq!(without_cas(&world.ask(&client, &input)), failed(opcode, status));
        }
        let joined = with_cas(request(0x0e, b"", b"a", b"v"), 5);
        assert_eq!(without_cas(&world.ask(&client, &joined)), failed(0x0e, NOT_STORED));
    }
}

#[test]
fn pipelined_requests_for_all_shards_are_answered_in_order() {
    let keys: Vec<String> = (0..200).map(|number| format!("key{number}")).collect();
    for (shards, crew) in [(1, true), (2, true), (8, true), (2, false), (8, false)] {
        let mut world = world(shards, crew);
        let client = world.connect();
        let (mut input, mut expected) = (Vec::new(), Vec::new());
        for (number, key) in keys.iter().enumerate() {
            if number % 3 != 0 {
                let mut quiet = set(key, key.as_bytes());
                quiet[1] = 0x11;
                input.extend(quiet);
            }
        }
        for (number, key) in keys.iter().enumerate() {
            input.extend(request(0x0d, b"", key.as_bytes(), b""));
            if number % 3 != 0 {
                expected.extend(hit(0x0d, key.as_bytes(), key.as_bytes()));
            }
            if number % 50 == 0 {
                input.extend(noop());
                expected.extend(done(NOOP, b"", b"", b""));
            }
        }
        input.extend(noop());
        expected.extend(done(NOOP, b"", b"", b""));
        assert!(without_cas(&world.ask(&client, &input)) == expected, "{shards} shards, {crew}");
    }
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|place| (place * 31 + place / 251) as u8).collect()
}

#[test]
fn a_large_value_is_stored_without_a_byte_behind_it() {
    for (shards, crew) in [(1, true), (2, true), (2, false)] {
        for bytes in [16_384, 16_385, 65_536, 70_000, 900_000] {
            let mut world = world(shards, crew);
            let client = world.connect();
            let value = pattern(bytes);
            for key in ["a", "b", "c", "d"] {
                let said = set(key, &value);
                // The value comes after its header, so that it is received in place.
                client.write(&said[..33]);
                world.settle();
                client.write(&said[33..]);
                world.settle();
                let reply = client.read();
                assert_eq!(without_cas(&reply), done(0x01, b"", b"", b""), "{bytes} bytes");
                let got = world.ask(&client, &request(0x0c, b"", key.as_bytes(), b""));
                assert!(without_cas(&got) == hit(0x0c, key.as_bytes(), &value), "{bytes} bytes");
                assert_eq!(cas_of(&got), cas_of(&reply));
            }
        }
    }
}

#[test]
fn a_large_value_is_whole_wherever_it_is_cut_and_so_is_what_follows() {
    for (shards, bytes) in [(1, 16_384), (2, 16_384), (1, 70_000), (2, 70_000)] {
        let mut world = world(shards, true);
        let client = world.connect();
        let value = pattern(bytes);
        let one = set("k", &value);
        let said = [&one[..], &noop(), &one, &get("k"), &noop()].concat();
        let noop_done = done(NOOP, b"", b"", b"");
        let stored = done(0x01, b"", b"", b"");
        let wanted = [&stored[..], &noop_done, &stored, &hit(0x00, b"", &value), &noop_done];
        let wanted = wanted.concat();
        let ends = (one.len() - 5..one.len() + 40).chain(said.len() - 60..said.len());
        for cut in (1..said.len()).step_by(977).chain(1..40).chain(ends) {
            client.write(&said[..cut]);
            for _ in 0..cut % 5 {
                world.turn();
            }
            let got = without_cas(&world.ask(&client, &said[cut..]));
            assert!(got == wanted, "{shards} shards, {bytes} bytes cut at {cut}");
        }
    }
}

#[test]
fn large_values_are_joined_added_and_read_quietly() {
    for (shards, crew) in [(1, true), (3, false)] {
        let mut world = world(shards, crew);
        let client = world.connect();
        let value = pattern(100_000);
        let said = [
            request(0x12, &[0, 0, 0, 7, 0, 0, 0, 0], b"k", &value),
            request(0x12, &[0; 8], b"k", &value),
            request(0x19, b"", b"k", &value),
            request(0x0f, b"", b"k", b"first"),
            request(0x24, &[0; 4], b"k", b""),
            request(0x09, b"", b"miss", b""),
            noop(),
        ];
        let whole = [b"first", &value[..], &value].concat();
        let expected = [
            failed(0x12, EXISTS),
            done(0x0f, b"", b"", b""),
            hit(0x24, b"k", &whole),
            done(NOOP, b"", b"", b""),
        ];
        assert!(without_cas(&world.ask(&client, &said.concat())) == expected.concat());
    }
}

#[test]
fn a_value_that_is_too_large_is_skipped_and_leaves_no_stale_one() {
    let value = vec![b'v'; (1 << 20) + 1];
    for (shards, crew) in [(1, true), (3, true), (3, false)] {
        let mut world = world(shards, crew);
        let client = world.connect();
        for (opcode, extras, cas, removes) in [
            (0x01, &[0; 8][..], 0, true),
            (0x01, &[0; 8], 9, true),
            (0x11, &[0; 8], 0, true),
            (0x02, &[0; 8], 0, false),
            (0x13, &[0; 8], 0, false),
            (0x0e, b"", 0, false),
            (0x1a, b"", 0, false),
        ] {
            for key in ["a", "b", "c"] {
                world.ask(&client, &set(key, b"old"));
                let too_large = request(opcode, extras, key.as_bytes(), &value);
                let said = [with_cas(too_large, cas), get(key), noop()].concat();
                let got = without_cas(&world.ask(&client, &said));
                let found = if removes { failed(0x00, NOT_FOUND) } else { hit(0x00, b"", b"old") };
                let expected = [failed(opcode, TOO_LARGE), found, done(NOOP, b"", b"", b"")];
                assert!(got == expected.concat(), "{opcode:#x}: {}", got.escape_ascii());
            }
        }
        // The item may be too large, though its parts are not.
        let half = vec![b'v'; 600_000];
        let said = [set("a", &half), request(0x0e, b"", b"a", &half), noop()].concat();
        let expected =
            [done(0x01, b"", b"", b""), failed(0x0e, NOT_STORED), done(NOOP, b"", b"", b"")];
        assert!(without_cas(&world.ask(&client, &said)) == expected.concat());
    }
}

#[test]
fn a_refused_body_takes_no_memory() {
    let mut world = world(1, true);
    let client = world.connect();
    world.ask(&client, &noop());
    let before = world.shared.budget.spent_bytes();
    for opcode in [0x30, 0x01] {
        let extras: &[u8] = if opcode == 0x01 { &[0; 8] } else { b"" };
        let mut header = request(opcode, extras, b"k", b"");
        let key_and_extras = extras.len() as u32 + 1;
        header[8..12].copy_from_slice(&(8_000_000 + key_and_extras).to_be_bytes());
        world.ask(&client, &header);
        for _ in 0..80 {
            assert_eq!(world.ask(&client, &[b'v'; 100_000]), b"");
            assert_eq!(world.shared.budget.spent_bytes(), before);
        }
        assert_eq!(without_cas(&world.ask(&client, &noop())), done(NOOP, b"", b"", b""));
    }
}

#[test]
fn a_whole_value_waits_for_a_record_and_is_then_stored_once() {
    const FILLERS: usize = 3;
    let mut world = world(2, false);
    // Every second connection is of shard 0.
    let clients: Vec<FarEnd> = (0..2 * (FILLERS + 1)).map(|_| world.connect()).collect();
    world.settle();
    let clients: Vec<&FarEnd> = clients.iter().step_by(2).collect();
    let (client, fillers) = clients.split_first().expect("a client");
    let others: Vec<String> = (0..64)
        .map(|number| format!("other{number}"))
        .filter(|key| {
            let before = world.parked();
            world.ask(client, &request(0x1c, &[0; 4], key.as_bytes(), b""));
            world.parked() > before
        })
        .collect();
    let [key, filled, ..] = &others[..] else { panic!("shard 1 owns half of all keys") };
    for landed in [false, true] {
        let value = pattern(20_000 + usize::from(landed));
        let said = set(key, &value);
        if landed {
            client.write(&said[..40]);
            (0..10).for_each(|_| world.turn_of(0));
        }
        // Shard 1 does not turn, so shard 0 has no small record for the request of the upload.
        let touches = request(0x1c, &[0; 4], filled.as_bytes(), b"").repeat(256);
        fillers.iter().for_each(|filler| filler.write(&touches));
        (0..40).for_each(|_| world.turn_of(0));
        client.write(&said[if landed { 40 } else { 0 }..]);
        (0..40).for_each(|_| world.turn_of(0));
        assert_eq!(client.read(), b"", "it waits");
        world.settle();
        assert_eq!(without_cas(&client.read()), done(0x01, b"", b"", b""), "landed: {landed}");
        let got = without_cas(&world.ask(client, &get(key)));
        assert!(got == hit(0x00, b"", &value), "landed: {landed}");
        fillers.iter().for_each(|filler| assert_eq!(replies(&filler.read()).len(), 256));
    }
}

#[test]
fn the_first_byte_selects_the_protocol_for_good() {
    let mut world = world(2, true);
    let (text, binary) = (world.connect(), world.connect());
    assert_eq!(world.ask(&text, b"mn\r\n"), b"MN\r\n");
    assert_eq!(world.ask(&text, b"\x80abc\r\nmn\r\n"), b"ERROR\r\nMN\r\n");
    assert_eq!(without_cas(&world.ask(&binary, &noop())), done(NOOP, b"", b"", b""));
    let said = [noop(), b"get a\r\n".to_vec()].concat();
    assert_eq!(without_cas(&world.ask(&binary, &said)), done(NOOP, b"", b"", b""));
    assert!(binary.is_closed() && !text.is_closed());
}

#[test]
fn a_listener_may_set_the_protocol() {
    let with = |protocol| World::new(WorldOptions { protocol, ..WorldOptions::default() });
    let mut world = with(ClientProtocol::Binary);
    let (client, stranger) = (world.connect(), world.connect());
    assert_eq!(without_cas(&world.ask(&client, &noop())), done(NOOP, b"", b"", b""));
    assert_eq!(world.ask(&stranger, b"g"), b"");
    assert!(stranger.is_closed(), "another first byte closes the connection");
    let mut world = with(ClientProtocol::Text);
    let client = world.connect();
    assert_eq!(world.ask(&client, b"\x80abc\r\nmn\r\n"), b"ERROR\r\nMN\r\n");
}

#[test]
fn quitq_closes_without_a_reply() {
    let mut world = world(1, true);
    let client = world.connect();
    let said = [request(0x17, b"", b"", b""), noop()].concat();
    assert_eq!(world.ask(&client, &said), b"");
    assert!(client.is_closed());
}

#[test]
fn half_a_header_waits_as_long_as_half_a_line() {
    let limits = ClientLimits { line_s: 3, ..ClientLimits::default() };
    let mut world = World::new(WorldOptions { limits, ..WorldOptions::default() });
    let client = world.connect();
    world.ask(&client, &noop()[..12]);
    for second in 0..6 {
        assert_eq!(client.is_closed(), second > 3, "after {second} s");
        world.clock.advance_ns(1_000_000_000);
        world.settle();
    }
}

#[test]
fn a_flush_may_be_delayed_and_a_ttl_ends() {
    for (shards, crew) in [(1, true), (3, false)] {
        let mut world = world(shards, crew);
        let client = world.connect();
        let short = request(0x01, &[0, 0, 0, 7, 0, 0, 0, 2], b"short", b"v");
        world.ask(&client, &[set("a", b"v"), short].concat());
        world.ask(&client, &request(0x18, &[0, 0, 0, 4], b"", b""));
        let both = [get("a"), get("short")].concat();
        let (is_hit, is_miss) = (hit(0x00, b"", b"v"), failed(0x00, NOT_FOUND));
        for (second, expected) in [
            (0, [&is_hit, &is_hit]),
            (1, [&is_hit, &is_hit]),
            (2, [&is_hit, &is_miss]),
            // As in memcached, a flush is in the second before the one that it names.
            (3, [&is_miss, &is_miss]),
        ] {
            let got = without_cas(&world.ask(&client, &both));
            assert!(got == [&expected[0][..], expected[1]].concat(), "after {second} s");
            world.clock.advance_ns(1_000_000_000);
            world.settle();
        }
    }
}

#[test]
fn statistics_are_those_of_the_text_protocol() {
    let mut world = world(2, true);
    let (client, text) = (world.connect(), world.connect());
    world.ask(&client, &[set("a", b"v"), get("a"), get("b")].concat());
    for key in ["", "settings", "items", "slabs"] {
        let topic = format!("stats {key}\r\n");
        let stats = replies(&world.ask(&client, &request(0x10, b"", key.as_bytes(), b"")));
        let lines = world.ask(&text, topic.as_bytes());
        let lines = String::from_utf8(lines).expect("text");
        let names = lines.lines().filter_map(|line| line.strip_prefix("STAT ")?.split(' ').next());
        let (end, stats) = stats.split_last().expect("at least the end");
        assert_eq!(end.0, done(0x10, b"", b"", b""));
        let told = stats.iter().map(|(stat, _)| {
            let name_bytes = usize::from(stat[2]) * 256 + usize::from(stat[3]);
            std::str::from_utf8(&stat[24..24 + name_bytes]).expect("text")
        });
        assert!(told.eq(names), "{topic}");
    }
    let stat = |world: &mut World, name: &str| {
        let lines = String::from_utf8(world.ask(&text, b"stats\r\n")).expect("text");
        let line = lines.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
        line.expect(name).to_owned()
    };
    for (name, value) in [("cmd_get", "2"), ("get_hits", "1"), ("cmd_set", "1"), ("cmd_meta", "0")]
    {
        assert_eq!(stat(&mut world, name), value, "{name}");
    }
}

#[test]
fn a_detail_dump_is_one_statistic_with_the_text_of_the_other_protocol() {
    let mut world = world(2, true);
    let (client, text) = (world.connect(), world.connect());
    let stat = |key: &str| request(0x10, b"", key.as_bytes(), b"");
    let told = world.ask(&client, &stat("detail on"));
    assert_eq!(told, done(0x10, b"", b"", b""));
    world.ask(&client, &[set("a:1", b"v"), get("a:1"), set("b:1", b"v"), get("b:2")].concat());
    let told = world.ask(&client, &stat("detail dump"));
    let lines = world.ask(&text, b"stats detail dump\r\n");
    assert!(lines.starts_with(b"PREFIX a get 1 hit 1 set 1 del 0\r\n"), "both count");
    let end = done(0x10, b"", b"", b"");
    assert_eq!(told, [done(0x10, b"", b"detailed", &lines), end].concat());
    // Many prefixes are told in several statistics of that name, each of whole lines.
    for number in 0..1_000 {
        world.ask(&text, format!("get p{number}:x\r\n").as_bytes());
    }
    let (told, mut values) = (world.ask(&client, &stat("detail dump")), Vec::new());
    let mut rest = &told[..];
    while rest[11] > 0 || rest[10] > 0 {
        let body_bytes = usize::from(u16::from_be_bytes([rest[10], rest[11]]));
        let (packet, after) = rest.split_at(24 + body_bytes);
        let value =
            packet.strip_prefix(&packet[..24]).and_then(|body| body.strip_prefix(b"detailed"));
        values.push(value.expect("a piece"));
        rest = after;
    }
    assert!(values.len() > 1 && values.iter().all(|value| value.ends_with(b"\r\n")));
    assert_eq!(values.concat(), world.ask(&text, b"stats detail dump\r\n"));
    let version = world.ask(&client, &request(0x0b, b"", b"", b""));
    assert!(version.starts_with(&[0x81, 0x0b]), "the connection goes on after the listing");
}

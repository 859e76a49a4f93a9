//! Requests over UDP: the rows U01 to U21 of `docs/udp.md`, and that nothing crosses from one
//! datagram to another.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};

use kachel_engine::EngineIndex;
use kachel_io::FarEnd;
use kachel_net::{DATAGRAM_REPLY_BYTES_MAX, EXCHANGES_MAX};
use kachel_testkit::{OWN_UDP_PORT, World, WorldOptions};
use kachel_wire::{FRAME_BYTES, Frame};

/// Bytes of a reply in one datagram.
const BODY_BYTES: usize = DATAGRAM_REPLY_BYTES_MAX - FRAME_BYTES;
const TOO_LONG: &[u8] = b"SERVER_ERROR reply too long for UDP; use TCP\r\n";
const INCOMPLETE: &[u8] = b"SERVER_ERROR request not whole in its datagram; use TCP\r\n";
const REFUSED: &[u8] = b"SERVER_ERROR not answered over UDP; use TCP\r\n";

/// All streams of the log.
const STREAMS: &str = "fetchers mutations evictions connevents sysevents deletions";

/// A server with UDP. A client watches all streams, and requests are counted by prefix: an exchange
/// meets all that is done for a request.
fn world(options: WorldOptions) -> World {
    watched(options).0
}

/// As [`world`], and the client that watches.
fn watched(options: WorldOptions) -> (World, FarEnd) {
    let udp = options.udp.or(Some(1));
    let mut world = World::new(WorldOptions { udp, ..options });
    let watcher = world.connect();
    assert_eq!(world.ask(&watcher, b"stats detail on\r\n"), b"OK\r\n");
    assert_eq!(world.ask(&watcher, format!("watch {STREAMS}\r\n").as_bytes()), b"OK\r\n");
    (world, watcher)
}

/// The lines that a watcher has got, in alphabetical order, without time and number.
fn lines(watcher: &FarEnd) -> Vec<String> {
    let told = String::from_utf8(watcher.read()).expect("text");
    let fields = |line: &str| line.split_once(" type=").expect("a type").1.to_owned();
    let mut lines: Vec<String> = told.lines().map(fields).collect();
    lines.sort_unstable();
    lines
}

fn client(number: u16) -> SocketAddr {
    let [high, low] = number.to_be_bytes();
    SocketAddr::from((Ipv4Addr::new(10, 0, high, low), 30_000))
}

/// A request in its frame.
fn framed(request_id: u16, request: &[u8]) -> Vec<u8> {
    let frame = Frame { request_id, sequence: 0, total: 1 };
    [&frame.bytes()[..], request].concat()
}

/// The replies that have come, by client and request ID. Checks each frame.
fn replies(world: &World, shard: usize) -> HashMap<(SocketAddr, u16), Vec<u8>> {
    let mut replies: HashMap<_, (Vec<u8>, u16, u16)> = HashMap::new();
    for (to, datagram) in world.take_datagrams(shard) {
        assert!(datagram.len() <= DATAGRAM_REPLY_BYTES_MAX);
        assert_eq!(datagram[6..8], [0, 0]);
        let (frame, body) = Frame::read(&datagram).expect("a frame");
        let reply = replies.entry((to, frame.request_id)).or_insert((Vec::new(), 0, frame.total));
        assert_eq!((frame.sequence, frame.total), (reply.1, reply.2), "in order, nothing missing");
        assert!(!body.is_empty(), "a reply has bytes");
        reply.0.extend_from_slice(body);
        reply.1 += 1;
    }
    let whole = |(reply, count, total): (Vec<u8>, u16, u16)| {
        assert_eq!(count, total);
        reply
    };
    replies.into_iter().map(|(who, parts)| (who, whole(parts))).collect()
}

/// The reply to a request; empty if there is none.
fn ask(world: &mut World, request: &[u8]) -> Vec<u8> {
    world.send_datagram(0, client(0), &framed(0x1234, request));
    world.settle();
    let mut replies = replies(world, 0);
    let reply = replies.remove(&(client(0), 0x1234)).unwrap_or_default();
    assert!(replies.is_empty(), "{replies:?}");
    reply
}

/// Whether a datagram of any form is answered.
fn is_answered(world: &mut World, from: SocketAddr, datagram: &[u8]) -> bool {
    world.send_datagram(0, from, datagram);
    world.settle();
    !world.take_datagrams(0).is_empty()
}

fn set(key: &str, value: &[u8]) -> Vec<u8> {
    [format!("set {key} 5 0 {}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat()
}

/// A request of the binary protocol.
fn binary(opcode: u8, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
    let body_bytes = (extras.len() + key.len() + value.len()) as u32;
    let mut request = vec![0x80, opcode, 0, key.len() as u8, extras.len() as u8, 0, 0, 0];
    request.extend(body_bytes.to_be_bytes());
    request.extend(*b"opaq");
    request.extend([0; 8]);
    [&request, extras, key, value].concat()
}

/// The status, the opaque and the body of a reply of the binary protocol.
fn of_binary(reply: &[u8]) -> (u16, [u8; 4], &[u8]) {
    assert_eq!(reply[0], 0x81);
    let opaque = reply[12..16].try_into().expect("four bytes");
    (u16::from_be_bytes([reply[6], reply[7]]), opaque, &reply[24..])
}

#[test]
fn text_meta_and_binary_requests_are_answered() {
    let mut world = world(WorldOptions::default());
    assert_eq!(ask(&mut world, &set("a", b"hello")), b"STORED\r\n");
    assert_eq!(ask(&mut world, b"get a\r\n"), b"VALUE a 5 5\r\nhello\r\nEND\r\n");
    assert_eq!(ask(&mut world, b"get none\r\n"), b"END\r\n");
    assert_eq!(ask(&mut world, b"mg a v f\r\n"), b"VA 5 f5\r\nhello\r\n");
    assert_eq!(ask(&mut world, b"ms b 2\r\nxy\r\n"), b"HD\r\n");
    assert_eq!(ask(&mut world, b"mn\r\n"), b"MN\r\n");
    assert_eq!(ask(&mut world, b"set n 0 0 1\r\n7\r\nincr n 5\r\n"), b"STORED\r\n12\r\n");
    assert_eq!(ask(&mut world, b"touch n 100\r\ndelete n\r\n"), b"TOUCHED\r\nDELETED\r\n");
    assert_eq!(ask(&mut world, b"version\r\n"), b"VERSION 1.6.45\r\n");
    assert_eq!(ask(&mut world, b"flush_all\r\nget a\r\n"), b"OK\r\nEND\r\n");
    assert_eq!(ask(&mut world, b"nonsense\r\n"), b"ERROR\r\n");

    let stored = ask(&mut world, &binary(0x01, &[0; 8], b"k", b"binary"));
    assert_eq!(of_binary(&stored), (0, *b"opaq", &b""[..]));
    let found = ask(&mut world, &binary(0x00, b"", b"k", b""));
    assert_eq!(of_binary(&found), (0, *b"opaq", &b"\0\0\0\0binary"[..]));
    assert_eq!(of_binary(&ask(&mut world, &binary(0x00, b"", b"none", b""))).0, 1);
    // The protocol of one datagram does not bind the next one.
    assert_eq!(ask(&mut world, b"get k\r\n"), b"VALUE k 0 6\r\nbinary\r\nEND\r\n");
}

#[test]
fn requests_that_want_no_reply_get_no_datagram() {
    let mut world = world(WorldOptions::default());
    for request in [
        &b"set a 0 0 1 noreply\r\nx\r\n"[..],
        b"delete none noreply\r\n",
        b"mg none q v\r\n",
        b"ms b 1 q\r\nx\r\n",
        b"quit\r\n",
        b"cache_memlimit 64 noreply\r\n",
        &binary(0x11, &[0; 8], b"c", b"quiet"),
        &binary(0x09, b"", b"none", b""),
    ] {
        assert_eq!(ask(&mut world, request), b"", "{}", request.escape_ascii());
    }
    let wanted = b"VALUE a 0 1\r\nx\r\nVALUE b 0 1\r\nx\r\nVALUE c 0 5\r\nquiet\r\nEND\r\n";
    assert_eq!(ask(&mut world, b"get a b c\r\n"), wanted);
    assert_eq!(ask(&mut world, b"version\r\nquit\r\nversion\r\n"), b"VERSION 1.6.45\r\n");
}

/// Each kind of request writes the same line to the log as over TCP, except `cfd`: it is the
/// descriptor of the UDP socket, which is 0 in memory.
#[test]
fn a_watcher_gets_the_lines_of_requests_over_udp() {
    for (shards, crew) in [(1, true), (3, true), (3, false)] {
        let options = WorldOptions { shards, crew, item_bytes_max: 1_000, ..Default::default() };
        let (mut world, watcher) = watched(options);
        for (request, expected) in [
            (
                &b"get p:a\r\n"[..],
                &["item_get key=p%3Aa status=not_found clsid=0 cfd=0 size=0"][..],
            ),
            (
                &set("p:a", b"abc"),
                &[
                    "item_get key=p%3Aa status=not_found clsid=0 cfd=0 size=0",
                    "item_store key=p%3Aa status=stored cmd=set ttl=0 clsid=1 cfd=0 size=3",
                ],
            ),
            (b"mg p:a v\r\n", &["item_get key=p%3Aa status=found clsid=1 cfd=0 size=3"]),
            // A value over the limit removes the old one.
            (
                &set("p:a", &[b'v'; 2_000]),
                &[
                    "deleted key=p%3Aa cmd=delete clsid=1 size=3",
                    "item_get key=p%3Aa status=found clsid=1 cfd=0 size=3",
                    "item_store key=p%3Aa status=too_large cmd=set ttl=0 clsid=0 cfd=0 size=0",
                ],
            ),
            (b"mg YQpi b v\r\n", &["item_get key=a%0Ab status=not_found clsid=0 cfd=0 size=0"]),
            (b"quit\r\n", &[]),
            (b"get p:a", &[]),
        ] {
            lines(&watcher);
            ask(&mut world, request);
            let shown = request.escape_ascii();
            assert_eq!(lines(&watcher), expected, "{shards} shards, crew {crew}: {shown}");
        }
        let tcp = world.connect();
        let told = world.ask(&tcp, b"stats detail dump\r\n");
        assert!(told.starts_with(b"PREFIX p get 2 hit 1 set 2 del "), "{}", told.escape_ascii());
    }
}

/// An exchange whose request waits for an engine, while connections come, move and go.
#[test]
fn exchanges_that_wait_are_logged_beside_connections() {
    let (mut world, watcher) = watched(WorldOptions { shards: 2, ..WorldOptions::default() });
    let clients: Vec<FarEnd> = (0..20).map(|_| world.connect()).collect();
    world.settle();
    {
        let engines = std::sync::Arc::clone(&world.engines);
        let held = [0, 1].map(|shard| engines.hold(EngineIndex(shard)).expect("no core holds it"));
        for number in 0..EXCHANGES_MAX as u16 {
            world.send_datagram(0, client(number), &framed(number, &set("p:a", b"value")));
        }
        (0..20).for_each(|_| world.turn());
        clients.iter().for_each(FarEnd::reset);
        drop(held);
    }
    world.settle();
    assert_eq!(replies(&world, 0).len(), EXCHANGES_MAX);
    let stored = lines(&watcher).iter().filter(|line| line.starts_with("item_store")).count();
    assert_eq!(stored, EXCHANGES_MAX, "each has its line");
}

/// Rows U01 to U07 and U14: bytes that are no request draw no reply.
#[test]
fn bytes_that_are_no_request_are_not_answered() {
    let mut world = world(WorldOptions::default());
    let get = b"get a\r\n";
    let frame = |numbers: [u8; 8]| [&numbers[..], get].concat();
    let garbage: Vec<u8> =
        (0..60_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let rows: Vec<(&str, Vec<u8>)> = vec![
        ("U01", vec![]),
        ("U02", vec![0; 7]),
        ("U03", framed(1, b"")),
        ("U04", framed(1, b"x")),
        ("U05, two", frame([0, 1, 0, 0, 0, 2, 0, 0])),
        ("U05, none", frame([0, 1, 0, 0, 0, 0, 0, 0])),
        ("U06, the sixth of one", frame([0, 1, 0, 5, 0, 1, 0, 0])),
        ("U07, 64", garbage[..64].to_vec()),
        ("U07, 1400", garbage[..1400].to_vec()),
        ("U07, 60000", garbage.clone()),
        ("U07, framed", framed(1, &[&[b'!'; 1000][..]].concat())),
        ("U07, HTTP", b"POST / HTTP/1.1\r\nHost: a\r\n\r\nget a\r\n".to_vec()),
        ("U08", framed(1, b"get txt")),
        ("U14", framed(1, &binary(0x00, b"", b"a", b"")[..11])),
        ("U14, no key", framed(1, &binary(0x00, b"", b"a", b"")[..24])),
        ("U14, magic", framed(1, &[0x80])),
    ];
    for (name, datagram) in &rows {
        assert!(!is_answered(&mut world, client(1), datagram), "{name}");
        // Nothing is kept of it.
        assert_eq!(ask(&mut world, get), b"END\r\n", "{name}");
    }
    assert!(is_answered(&mut world, client(1), &frame([0, 1, 0, 0, 0, 1, 0xff, 0xff])), "U06");
    let counted = world.sum(|c| &c.udp_ignored) + world.sum(|c| &c.udp_incomplete);
    assert_eq!(counted, rows.len() as u64, "each is counted");
}

/// Row U21: a reply that reaches a server, because its address was forged, is answered by nothing.
/// Otherwise one forged datagram would have two servers answer each other without end.
#[test]
fn a_reply_is_never_answered() {
    let mut world = world(WorldOptions::default());
    // A value with commands of its own, so that its reply would ask for itself.
    assert_eq!(ask(&mut world, &set("a", b"x\r\nget a")), b"STORED\r\n");
    assert_eq!(ask(&mut world, &set("n", b"1")), b"STORED\r\n");
    let mut replies: Vec<Vec<u8>> = [
        &b"x y\r\n"[..],
        b"x\r\n",
        b"get a\r\n",
        b"gets a\r\n",
        b"get none\r\n",
        b"gat 100 a\r\n",
        b"incr n 1\r\n",
        b"decr n 1\r\n",
        b"append n 0 0 3\r\n",
        b"delete none\r\n",
        b"touch n 100\r\n",
        b"lease-get a\r\n",
        b"lease-get none\r\n",
        b"mg a v\r\n",
        b"mg a k v\r\n",
        b"mg n t O7\r\n",
        b"mg none\r\n",
        b"mn\r\n",
        b"me a\r\n",
        b"me none\r\n",
        b"ma n\r\n",
        b"ms a S1\r\n",
        b"version\r\n",
        b"verbosity 1\r\n",
        b"flush_all 1000\r\n",
        b"stats\r\n",
        b"watch\r\n",
        &binary(0x00, b"", b"a", b""),
        &binary(0x00, b"", b"none", b""),
        &binary(0x0a, b"", b"", b""),
        &binary(0xee, b"", b"", b""),
    ]
    .map(|request| ask(&mut world, request))
    .into();
    assert!(replies.iter().all(|reply| !reply.is_empty()), "each request is answered");
    replies.extend([&b"SERVER_ERROR x\r\n"[..], b"STAT a 1\r\nEND\r\n"].map(<[u8]>::to_vec));
    let before = world.sum(|c| &c.udp_ignored);
    for reply in &replies {
        let answer = ask(&mut world, reply);
        let (reply, answer) = (reply.escape_ascii(), answer.escape_ascii());
        assert_eq!(answer.to_string(), "", "the answer to {reply}");
    }
    let ignored = world.sum(|c| &c.udp_ignored) - before;
    assert_eq!(ignored, replies.len() as u64, "each is counted");
}

/// Row U09 and L1: a storage request whose value is not in its datagram stores nothing and takes
/// nothing of the next datagrams.
#[test]
fn an_incomplete_request_changes_nothing_and_takes_nothing_of_the_next_datagram() {
    for options in [
        WorldOptions::default(),
        WorldOptions { shards: 3, ..WorldOptions::default() },
        WorldOptions { shards: 3, crew: false, ..WorldOptions::default() },
    ] {
        let mut world = world(options);
        assert_eq!(ask(&mut world, &set("leak", b"before")), b"STORED\r\n");
        for bytes in [1, 2, 34, 60, 200, 16_383, 16_384, 20_000, 1_000_000, 2_000_000] {
            for block in [&b""[..], b"a", b"\r"] {
                let request = [format!("set leak 0 0 {bytes}\r\n").as_bytes(), block].concat();
                assert_eq!(ask(&mut world, &request), INCOMPLETE, "{bytes}");
                world.send_datagram(0, client(2), &framed(2, b"get my-private-key-name\r\n"));
                world.send_datagram(0, client(3), &framed(3, &set("other", b"value")));
                world.settle();
                let got = replies(&world, 0);
                assert_eq!(got[&(client(2), 2)], b"END\r\n");
                assert_eq!(got[&(client(3), 3)], b"STORED\r\n");
                let kept = ask(&mut world, b"get leak other\r\n");
                assert_eq!(
                    kept,
                    b"VALUE leak 5 6\r\nbefore\r\nVALUE other 5 5\r\nvalue\r\nEND\r\n"
                );
            }
            let quiet = format!("set leak 0 0 {bytes} noreply\r\n");
            assert_eq!(ask(&mut world, quiet.as_bytes()), b"");
            // What comes before it is carried out.
            let behind = format!("set first 0 0 1\r\n1\r\nappend leak 0 0 {bytes}\r\n");
            assert_eq!(ask(&mut world, behind.as_bytes()), [b"STORED\r\n", INCOMPLETE].concat());
            let whole = binary(0x01, &[0; 8], b"leak", &vec![b'v'; bytes]);
            let refused = ask(&mut world, &whole[..36]);
            assert_eq!(of_binary(&refused).0, 4, "{bytes}");
        }
        assert_eq!(ask(&mut world, b"get leak\r\n"), b"VALUE leak 5 6\r\nbefore\r\nEND\r\n");
        assert!(world.holdings().all(|held| held.uploads == 0 && held.blocks == 0));
    }
}

/// L1 at random: many clients send whole and incomplete requests. Each gets the replies to its own.
#[test]
fn ten_thousand_clients_get_their_own_replies_and_nothing_else() {
    const CLIENTS: u16 = 10_000;
    let mut world = world(WorldOptions { shards: 2, ..WorldOptions::default() });
    let mut seed = 7_u32;
    let mut random = |below: u32| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 16) % below
    };
    for first in (0..CLIENTS).step_by(100) {
        for number in first..first + 100 {
            let value = format!("value-of-{number}");
            let datagram = match random(4) {
                0 => format!("set k{number} 0 0 {}\r\n{value}", value.len() + 40).into_bytes(),
                1 => format!("get k{number}").into_bytes(),
                _ => set(&format!("k{number}"), value.as_bytes()),
            };
            let shard = random(2) as usize;
            world.send_datagram(shard, client(number), &framed(number, &datagram));
            world.send_datagram(shard, client(number), &framed(!number, &set("x", b"y")));
        }
        world.settle();
        for shard in 0..2 {
            for ((to, id), reply) in replies(&world, shard) {
                assert!(client(id) == to || client(!id) == to, "{to} {id}");
                assert!(reply == b"STORED\r\n" || reply == INCOMPLETE);
            }
        }
        for number in first..first + 100 {
            let get = format!("get k{number}\r\n");
            world.send_datagram(
                usize::from(number % 2),
                client(number),
                &framed(number, get.as_bytes()),
            );
        }
        world.settle();
        for shard in 0..2 {
            for ((to, id), reply) in replies(&world, shard) {
                assert_eq!(to, client(id));
                let value = format!("value-of-{id}");
                let hit = format!("VALUE k{id} 5 {}\r\n{value}\r\nEND\r\n", value.len());
                assert!(reply == b"END\r\n" || reply == hit.as_bytes());
            }
        }
    }
    assert_eq!(world.sum(|c| &c.udp_lost), 0);
}

/// Rows U10, U11 and U15.
#[test]
fn several_requests_of_a_datagram_are_one_reply_and_equal_ids_are_kept_apart() {
    let mut world = world(WorldOptions { udp: Some(16), ..WorldOptions::default() });
    let keys: Vec<String> = (0..100).map(|number| format!("key{number}")).collect();
    let value = [b'v'; 100];
    let mut hits = String::new();
    for key in &keys {
        assert_eq!(ask(&mut world, &set(key, &value)), b"STORED\r\n");
        hits += &format!("VALUE {key} 5 100\r\n{}\r\n", "v".repeat(100));
    }
    let reply = ask(&mut world, format!("get {}\r\n", keys.join(" ")).as_bytes());
    assert_eq!(reply, [hits.as_bytes(), b"END\r\n"].concat(), "U11, in ten datagrams");
    assert!(reply.len() > 7 * BODY_BYTES);
    let reply = ask(&mut world, b"delete key1\r\nget key1 key2\r\ndelete key3\r\n");
    let two = format!("DELETED\r\nVALUE key2 5 100\r\n{}\r\nEND\r\nDELETED\r\n", "v".repeat(100));
    assert_eq!(reply, two.as_bytes(), "U10");

    let mut world = world_of_two_values();
    world.send_datagram(0, client(1), &framed(9, b"get one\r\n"));
    world.send_datagram(0, client(2), &framed(9, b"get two\r\n"));
    world.send_datagram(0, client(2), &framed(9, b"get one\r\n"));
    world.settle();
    let datagrams = world.take_datagrams(0);
    let wanted = [(1, "one"), (2, "two"), (2, "one")].map(|(number, key)| {
        let reply = format!("VALUE {key} 5 3\r\n{key}\r\nEND\r\n");
        (client(number), framed(9, reply.as_bytes()))
    });
    let has = |one: &(SocketAddr, Vec<u8>)| datagrams.contains(one);
    assert!(datagrams.len() == 3 && wanted.iter().all(has), "U15: {datagrams:?}");
}

fn world_of_two_values() -> World {
    let mut world = world(WorldOptions::default());
    for key in ["one", "two"] {
        assert_eq!(ask(&mut world, &set(key, key.as_bytes())), b"STORED\r\n");
    }
    world
}

/// Row U12 and L2: a reply that is longer than its datagrams is an error, and all requests of the
/// datagram are carried out.
#[test]
fn a_reply_that_is_too_long_is_an_error_of_one_datagram() {
    // Bytes of a value whose reply just fits `datagrams` datagrams.
    let fits = |datagrams: usize| datagrams * BODY_BYTES - "VALUE a 0 9999\r\n\r\nEND\r\n".len();
    for crew in [true, false] {
        for datagrams in [1_u16, 2, 3, 7, 16] {
            let options =
                WorldOptions { shards: 2, crew, udp: Some(datagrams), ..Default::default() };
            let mut world = world(options);
            let tcp = world.connect();
            let most = fits(usize::from(datagrams)) - usize::from(datagrams > 7);
            for (bytes, is_sent) in [(most, true), (most + 1, false), (100_000, false)] {
                let value = vec![b'v'; bytes];
                let store = [format!("set a 0 0 {bytes}\r\n").as_bytes(), &value, b"\r\n"].concat();
                assert_eq!(world.ask(&tcp, &store), b"STORED\r\n");
                let whole = world.ask(&tcp, b"get a\r\n");
                let reply = ask(&mut world, b"get a\r\n");
                assert_eq!(reply == whole, is_sent, "{datagrams} {bytes}");
                assert_eq!(reply == TOO_LONG, !is_sent, "{datagrams} {bytes}");
                // Requests before and behind it are carried out, too.
                let around = b"incr none 1\r\nget a\r\nget a\r\nset behind 0 0 1\r\n1\r\nget a\r\n";
                assert_eq!(ask(&mut world, around), TOO_LONG);
                assert_eq!(ask(&mut world, b"delete behind\r\n"), b"DELETED\r\n");
                let reply = ask(&mut world, &binary(0x00, b"", b"a", b""));
                let (status, opaque, _) = of_binary(&reply);
                let is_sent = 24 + 4 + bytes <= usize::from(datagrams) * BODY_BYTES;
                assert_eq!(status == 0, is_sent, "{datagrams} {bytes}");
                assert!(is_sent || status == 3);
                assert_eq!(opaque, *b"opaq");
            }
            // Many keys, and values that make the outbox full.
            for number in 0..100 {
                let store =
                    [format!("set k{number} 0 0 9000\r\n").as_bytes(), &[b'v'; 9000], b"\r\n"]
                        .concat();
                assert_eq!(world.ask(&tcp, &store), b"STORED\r\n");
            }
            let keys: String = (0..100).map(|number| format!(" k{number}")).collect();
            let request = format!("get{keys}\r\nset behind 0 0 1\r\n1\r\n");
            assert_eq!(ask(&mut world, request.as_bytes()), TOO_LONG);
            assert_eq!(ask(&mut world, b"get behind\r\n"), b"VALUE behind 0 1\r\n1\r\nEND\r\n");
            assert!(world.holdings().all(|held| held.reply_slots == 0 && held.owed_bytes == 0));
        }
    }
}

/// Row U13.
#[test]
fn commands_of_the_operator_are_refused() {
    let mut world = world(WorldOptions::default());
    for request in [
        &b"stats\r\n"[..],
        b"stats settings\r\n",
        b"stats reset\r\n",
        b"shutdown\r\n",
        b"cache_memlimit 100\r\n",
        b"lru_crawler metadump all\r\n",
        b"lru_crawler mgdump all\r\n",
        b"lru_crawler crawl all\r\n",
        b"watch\r\n",
    ] {
        assert_eq!(ask(&mut world, request), REFUSED, "{}", request.escape_ascii());
    }
    let reply = ask(&mut world, &binary(0x10, b"", b"", b""));
    assert_eq!(of_binary(&reply), (0x83, *b"opaq", &b"Not answered over UDP; use TCP."[..]));
    assert_eq!(ask(&mut world, b"verbosity 1\r\n"), b"OK\r\n");
}

/// Row U18.
#[test]
fn addresses_that_reflect_are_never_answered() {
    let mut world = world(WorldOptions::default());
    for from in ["10.0.0.7:7", "10.0.0.7:19", "10.0.0.7:53", "10.0.0.7:11211", "224.0.0.1:40000"] {
        let from = from.parse().expect("an address");
        assert!(!is_answered(&mut world, from, &framed(1, b"get a\r\n")), "{from}");
    }
    let own = SocketAddr::from((Ipv4Addr::LOCALHOST, OWN_UDP_PORT));
    assert!(!is_answered(&mut world, own, &framed(1, b"get a\r\n")));
    assert_eq!(world.sum(|c| &c.udp_ignored), 6);
    assert!(is_answered(&mut world, client(1), &framed(1, b"get a\r\n")));
}

/// Row U19: a flood in the name of one address gets no more replies than the budget of that
/// address. Others are answered as before.
#[test]
fn a_sender_beyond_its_budget_is_not_answered() {
    let mut world = world(WorldOptions { sender_datagrams_max: 10, ..WorldOptions::default() });
    for second in 1..=3 {
        let flood = (0..200).filter(|number| {
            let from = SocketAddr::from((Ipv4Addr::new(10, 0, 0, 7), 30_000 + number));
            is_answered(&mut world, from, &framed(1, b"get a\r\n"))
        });
        assert_eq!(flood.count(), 10, "second {second}");
        assert!(is_answered(&mut world, client(8), &framed(1, b"get a\r\n")));
        assert_eq!(world.sum(|c| &c.udp_over_budget), 190 * second);
        world.clock.advance_s(1);
    }
}

/// Row U19: beside a flood that never ends, a client over TCP waits for the datagrams of two ticks.
#[test]
fn a_client_over_tcp_waits_for_few_datagrams() {
    let mut world = world(WorldOptions::default());
    let tcp = world.connect();
    assert_eq!(world.ask(&tcp, b"set a 0 0 1\r\nx\r\n"), b"STORED\r\n");
    let request = framed(1, b"get a\r\n");
    for number in 0..20 {
        (0..1000).for_each(|from| world.send_datagram(0, client(from), &request));
        world.turn();
        let before = world.sum(|c| &c.udp_datagrams);
        tcp.write(b"get a\r\n");
        while tcp.read().is_empty() {
            world.turn();
        }
        let waited = world.sum(|c| &c.udp_datagrams) - before;
        assert!((1..=2 * 8).contains(&waited), "request {number}: {waited} datagrams");
    }
}

/// More datagrams than exchanges: none is lost, and each is answered once.
#[test]
fn datagrams_wait_while_all_exchanges_are_busy() {
    for (shards, crew) in [(1, true), (3, true), (3, false)] {
        let mut world = world(WorldOptions { shards, crew, ..WorldOptions::default() });
        let count = 5 * EXCHANGES_MAX as u16;
        for number in 0..count {
            let request = set(&format!("k{number}"), b"value");
            world.send_datagram(0, client(number), &framed(number, &request));
        }
        world.settle();
        let got = replies(&world, 0);
        assert_eq!(got.len(), usize::from(count));
        assert!(got.values().all(|reply| reply == b"STORED\r\n"));
        assert_eq!(world.sum(|c| &c.udp_lost), 0);
        assert_eq!(world.sum(|c| &c.udp_datagrams), u64::from(count));
    }
}

/// Requests that must wait for an engine that another core holds: the exchange waits.
#[test]
fn an_exchange_waits_for_an_engine_that_is_held() {
    let mut world = world(WorldOptions { shards: 2, ..WorldOptions::default() });
    let count = EXCHANGES_MAX as u16;
    {
        let engines = std::sync::Arc::clone(&world.engines);
        let held = [0, 1].map(|shard| engines.hold(EngineIndex(shard)).expect("no core holds it"));
        for number in 0..count {
            let request = set(&format!("k{number}"), b"value");
            world.send_datagram(0, client(number), &framed(number, &request));
        }
        (0..20).for_each(|_| world.turn());
        assert!(world.take_datagrams(0).is_empty(), "no engine is free");
        drop(held);
    }
    world.settle();
    let got = replies(&world, 0);
    assert!(got.len() == usize::from(count) && got.values().all(|reply| reply == b"STORED\r\n"));
    assert!(world.parked() > 0);
}

/// A datagram that comes twice, out of order, or not at all harms no other.
#[test]
fn a_network_that_loses_doubles_and_reorders_harms_nothing() {
    let mut world = world(WorldOptions { shards: 2, ..WorldOptions::default() });
    let numbers = |world: &World| {
        for number in [5_u16, 3, 3, 1, 5, 2, 2, 2] {
            let request = format!("incr n{number} 1\r\n");
            world.send_datagram(0, client(number), &framed(number, request.as_bytes()));
        }
    };
    for number in 0..6 {
        assert_eq!(ask(&mut world, &set(&format!("n{number}"), b"10")), b"STORED\r\n");
    }
    numbers(&world);
    world.settle();
    assert_eq!(world.take_datagrams(0).len(), 8, "each is answered");
    for (number, value) in [(0, 10), (1, 11), (2, 13), (3, 12), (4, 10), (5, 12)] {
        let reply = ask(&mut world, format!("get n{number}\r\n").as_bytes());
        assert_eq!(reply, format!("VALUE n{number} 5 2\r\n{value}\r\nEND\r\n").as_bytes());
    }
}

/// While a server ends it takes no more datagrams.
#[test]
fn a_server_that_stops_takes_no_more_datagrams() {
    let mut world = world(WorldOptions::default());
    assert_eq!(ask(&mut world, b"mn\r\n"), b"MN\r\n");
    world.shared.stop();
    (0..3).for_each(|_| world.turn());
    world.send_datagram(0, client(0), &framed(1, b"mn\r\n"));
    (0..3).for_each(|_| world.turn());
    assert!(world.take_datagrams(0).is_empty());
}

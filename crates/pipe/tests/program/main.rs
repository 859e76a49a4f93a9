//! Tests the program in the kernel, with packets that the tests make (`BPF_PROG_TEST_RUN`).
//!
//! Upstream:   `cargo test`. Without the right to load programs, the tests skip.
//! Downstream: the program and its table.

mod bench;
mod fuzz;
mod packet;
mod time;

use kachel_engine::Copies as _;
use kachel_pipe::{PipeNetwork, Trial};

use crate::bench::Bench;
use crate::packet::Packet;

#[test]
fn a_copy_is_answered_with_its_text() {
    let Some(mut bench) = Bench::new() else { return };
    for key_bytes in [1, 2, 7, 8, 9, 15, 16, 17, 64, 119, 120] {
        for value_bytes in [0, 1, 7, 8, 9, 20, 31, 32] {
            let key: Vec<u8> = (0..key_bytes).map(|at| b'a' + at % 26).collect();
            let value: Vec<u8> = (0..value_bytes).map(|at| at * 7).collect();
            bench.publish(&key, &value);
            let line = |verb: &str| [verb.as_bytes(), b" ", &key, b"\r\n"].concat();
            let head = format!(" 42 {value_bytes}");
            let get =
                [b"VALUE ", &key[..], head.as_bytes(), b"\r\n", &value, b"\r\nEND\r\n"].concat();
            let gets = [b"VALUE ", &key[..], head.as_bytes(), b" 977\r\n", &value, b"\r\nEND\r\n"]
                .concat();
            for (verb, text) in [("get", get), ("gets", gets)] {
                let request = Packet::request(0x1234, &line(verb));
                if 8 + text.len() > 3 * request.payload.len() {
                    bench.passes(&request.bytes(), "too_large");
                    continue;
                }
                bench.answers(&request, &text);
                bench.answers(&Packet::request6(0xfffe, &line(verb)), &text);
            }
        }
    }
}

#[test]
fn a_copy_that_is_dropped_is_a_miss() {
    let Some(mut bench) = Bench::new() else { return };
    let request = Packet::request(1, b"get key-number-one\r\n");
    bench.passes(&request.bytes(), "miss");
    bench.publish(b"key-number-one", b"v");
    bench.answers(&request, b"VALUE key-number-one 42 1\r\nv\r\nEND\r\n");
    bench.drop_copy(b"key-number-one");
    bench.passes(&request.bytes(), "miss");
}

#[test]
fn meta_gets_show_the_flags_that_are_asked_for() {
    let Some(mut bench) = Bench::new() else { return };
    let key = "a-key-with-25-characters-";
    bench.publish(key.as_bytes(), b"value");
    let rows = [
        ("v", "VA 5\r\nvalue\r\n"),
        ("v f", "VA 5 f42\r\nvalue\r\n"),
        ("f v", "VA 5 f42\r\nvalue\r\n"),
        ("s v c", "VA 5 s5 c977\r\nvalue\r\n"),
        ("k v", "VA 5 ka-key-with-25-characters-\r\nvalue\r\n"),
        ("c k s f v", "VA 5 c977 ka-key-with-25-characters- s5 f42\r\nvalue\r\n"),
    ];
    for (flags, reply) in rows {
        let line = format!("mg {key} {flags}\r\n");
        bench.answers(&Packet::request(7, line.as_bytes()), reply.as_bytes());
        bench.answers(&Packet::request6(7, line.as_bytes()), reply.as_bytes());
    }
    // One letter: the key or a flag.
    bench.publish(b"v", b"");
    bench.answers(&Packet::request(7, b"mg v v\r\n"), b"VA 0\r\n\r\n");
    for flags in ["", " f", " v v", " v t", " v q", " v T30", " v f s c k q", " v Oabc", " v  f"] {
        let line = format!("mg {key}{flags}\r\n");
        let bytes = Packet::request(7, line.as_bytes()).bytes();
        assert_eq!(bench.run(&bytes), Trial::Passed(bytes), "{line}");
    }
}

#[test]
fn binary_gets_have_the_head_of_their_request() {
    let Some(mut bench) = Bench::new() else { return };
    bench.publish(b"binary-key", b"a value");
    for (opcode, key) in [(0x00, ""), (0x09, ""), (0x0c, "binary-key"), (0x0d, "binary-key")] {
        let head = |magic: u8, key_bytes: u8, extras: u8, body: u8, cas: u64| {
            let mut head = vec![magic, opcode, 0, key_bytes, extras, 0, 0, 0, 0, 0, 0, body];
            head.extend(*b"opaq");
            head.extend(cas.to_be_bytes());
            head
        };
        let request = [&head(0x80, 10, 0, 10, 0)[..], b"binary-key"].concat();
        let key_bytes = key.len() as u8;
        let head = head(0x81, key_bytes, 4, 4 + key_bytes + 7, 977);
        let reply = [&head[..], &[0, 0, 0, 42], key.as_bytes(), b"a value"].concat();
        bench.answers(&Packet::request(9, &request), &reply);
        for (at, value) in [(0, 0x81), (1, 0x01), (3, 9), (4, 4), (5, 1), (7, 1), (11, 9), (23, 1)]
        {
            let mut other = request.clone();
            other[at] = value;
            let bytes = Packet::request(9, &other).bytes();
            assert_eq!(bench.run(&bytes), Trial::Passed(bytes), "byte {at}");
        }
    }
}

/// A change to the bytes of a frame, and the reason why the frame is passed on then.
type Row = (&'static str, fn(&mut Vec<u8>), &'static str);

/// Corrects the checksum of IPv4.
fn sum_ipv4(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let sum = packet::checksum(&[&frame[14..34]]).to_be_bytes();
    frame[24..26].copy_from_slice(&sum);
}

#[test]
fn frames_that_are_not_plain_are_passed_on_unchanged() {
    let Some(mut bench) = Bench::new() else { return };
    bench.publish(b"some-plain-key", b"value");
    let rows: &[Row] = &[
        ("to a group of hosts", |frame| frame[0] |= 1, "other"),
        ("to another host", |frame| frame[5] ^= 0x40, "other"),
        ("to another host, by its first byte", |frame| frame[0] ^= 4, "other"),
        ("to nobody", |frame| frame[..6].fill(0), "other"),
        ("from all hosts", |frame| frame[6..12].fill(0xff), "not_answerable"),
        ("from a group of hosts", |frame| frame[6] |= 1, "not_answerable"),
        ("from nobody", |frame| frame[6..12].fill(0), "not_answerable"),
        ("from the interface itself", |frame| frame.copy_within(..6, 6), "not_answerable"),
        ("another type", |frame| frame[12..14].copy_from_slice(&[8, 6]), "other"),
        ("a VLAN", |frame| drop(frame.splice(12..12, [0x81, 0, 0, 1])), "other"),
        ("options of IP", |frame| frame[14] = 0x46, "other"),
        ("a first fragment", |frame| frame[20] |= 0x20, "other"),
        ("a later fragment", |frame| frame[21] = 1, "other"),
        ("TCP", |frame| frame[23] = 6, "other"),
        ("another address", |frame| (frame[33] = 9, sum_ipv4(frame)).1, "other"),
        ("another port", |frame| frame[37] ^= 1, "other"),
        ("a wrong checksum of IP", |frame| frame[24] ^= 1, "wrong_checksum"),
        ("a wrong checksum of UDP", |frame| frame[41] ^= 1, "wrong_checksum"),
        ("a wrong byte", |frame| frame[60] ^= 1, "wrong_checksum"),
        ("another length", |frame| frame[39] -= 1, "not_known"),
        ("cut", |frame| frame.truncate(60), "not_known"),
        ("cut, without a checksum", |f| (f[40..42].fill(0), f.truncate(60)).1, "not_known"),
        ("cut in its head", |frame| frame.truncate(40), "other"),
    ];
    for (what, change, reason) in rows {
        let mut frame = Packet::request(7, b"get some-plain-key\r\n").bytes();
        change(&mut frame);
        println!("{what}");
        bench.passes(&frame, reason);
    }
    let rows: &[Row] = &[
        ("a hop-by-hop header", |frame| frame[20] = 0, "other"),
        ("a fragment", |frame| frame[20] = 44, "other"),
        ("another version", |frame| frame[14] = 0x40, "other"),
        ("no checksum", |frame| frame[60..62].fill(0), "wrong_checksum"),
        ("a wrong byte", |frame| frame[70] ^= 1, "wrong_checksum"),
    ];
    for (what, change, reason) in rows {
        let mut frame = Packet::request6(7, b"get some-plain-key\r\n").bytes();
        change(&mut frame);
        println!("{what}");
        bench.passes(&frame, reason);
    }
    bench.answers(&Packet::request(7, b"get some-plain-key\r\n"), VALUE);
}

const VALUE: &[u8] = b"VALUE some-plain-key 42 5\r\nvalue\r\nEND\r\n";

#[test]
fn ipv4_without_a_checksum_is_answered() {
    let Some(mut bench) = Bench::new() else { return };
    bench.publish(b"some-plain-key", b"value");
    let request = Packet::request(7, b"get some-plain-key\r\n");
    let mut without = request.bytes();
    without[40..42].fill(0);
    let Trial::Answered(reply) = bench.run(&without) else { panic!("it is answered") };
    assert_eq!(Packet::read(&reply), request.reply(VALUE));
    // Ethernet fills short frames. The reply is as long as its headers say.
    let mut filled = request.bytes();
    filled.extend([0xaa; 9]);
    let Trial::Answered(reply) = bench.run(&filled) else { panic!("it is answered") };
    assert_eq!(Packet::read(&reply), request.reply(VALUE));
}

/// A packet that has not left its machine may have the sum of the pseudo header alone, which the
/// device would complete. From a network the same bytes are a wrong checksum. The program cannot
/// tell one from the other.
#[test]
fn a_sum_of_the_pseudo_header_alone_is_passed_on() {
    let Some(mut bench) = Bench::new() else { return };
    bench.publish(b"some-plain-key", b"value");
    let text = b"get some-plain-key\r\n";
    for (request, addresses, udp_at) in
        [(Packet::request(7, text), 26..34, 34), (Packet::request6(7, text), 22..54, 54)]
    {
        let mut partial = request.bytes();
        let udp_bytes = [partial[udp_at + 4], partial[udp_at + 5]];
        let sum = !packet::checksum(&[&partial[addresses], &[0, 17], &udp_bytes]);
        partial[udp_at + 6..udp_at + 8].copy_from_slice(&sum.to_be_bytes());
        bench.passes(&partial, "wrong_checksum");
        bench.answers(&request, VALUE);
    }
}

/// The interface and the addresses of its host may change while the server serves.
#[test]
fn the_program_follows_changes_of_the_network() {
    let Some(mut bench) = Bench::new() else { return };
    bench.publish(b"some-plain-key", b"value");
    let request = Packet::request(7, b"get some-plain-key\r\n");
    let request6 = Packet::request6(7, b"get some-plain-key\r\n");
    let first = bench::network();
    let mut network = first.clone();
    network.closed.push("10.9.0.1".parse().expect("an address"));
    network.addresses.truncate(1);
    bench.answers(&request, VALUE);
    bench.pipe.note_network(&network);
    bench.passes(&request.bytes(), "not_answerable");
    bench.passes(&request6.bytes(), "other");
    bench.pipe.note_network(&first);
    bench.passes(&request.bytes(), "not_answerable");
    bench.answers(&request6, VALUE);
    network = PipeNetwork { mac: Some([2, 0, 0, 0, 0, 7]), ..first.clone() };
    bench.pipe.note_network(&network);
    bench.passes(&request6.bytes(), "other");
    let mut moved = request6.bytes();
    moved[5] = 7;
    let Trial::Answered(reply) = bench.run(&moved) else { panic!("it is answered") };
    assert_eq!(reply[6..12], [2, 0, 0, 0, 0, 7], "from the address that the frame went to");
    bench.pipe.note_network(&PipeNetwork { mac: None, ..first });
    for last in [0, 7, 0xff] {
        moved[..6].fill(last);
        bench.passes(&moved, "other");
    }
}

#[test]
fn senders_that_must_not_be_answered_are_passed_on() {
    let Some(mut bench) = Bench::new() else { return };
    bench.publish(b"some-plain-key", b"value");
    let request = Packet::request(7, b"get some-plain-key\r\n");
    let rows = [
        "0.0.0.1:40000",
        "127.0.0.1:40000",
        "127.255.255.254:40000",
        "224.0.0.1:40000",
        "239.1.2.3:40000",
        "255.255.255.255:40000",
        "10.9.0.2:40000",
        "10.9.0.0:40000",
        "10.9.0.255:40000",
        "192.168.7.1:40000",
        "192.168.7.255:40000",
        "10.9.0.1:0",
        "10.9.0.1:7",
        "10.9.0.1:53",
        "10.9.0.1:11311",
    ];
    for from in rows {
        let from = Packet { from: from.parse().expect("an address"), ..request.clone() };
        bench.passes(&from.bytes(), "not_answerable");
    }
    let request = Packet::request6(7, b"get some-plain-key\r\n");
    let rows = [
        "[ff02::1]:40000",
        "[::]:40000",
        "[::1]:40000",
        "[fd00::2]:40000",
        "[fd00::]:40000",
        "[fd07::1]:40000",
        "[fd00::1]:53",
    ];
    for from in rows {
        let from = Packet { from: from.parse().expect("an address"), ..request.clone() };
        bench.passes(&from.bytes(), "not_answerable");
    }
    bench.answers(&request, VALUE);
}

#[test]
fn other_requests_are_passed_on_unchanged() {
    let Some(mut bench) = Bench::new() else { return };
    let key = "k".repeat(120);
    bench.publish(key.as_bytes(), b"value");
    bench.publish(b"ab", b"value");
    let long = format!("get {key}x\r\n");
    let rows: &[(&[u8], &str)] = &[
        (b"get ab", "not_known"),
        (b"get ab\n", "not_known"),
        (b"get ab\r\n\r\n", "key_not_plain"),
        (b"get ab \r\n", "key_not_plain"),
        (b"get  ab\r\n", "key_not_plain"),
        (b"get ab cd\r\n", "miss"),
        (b"get ab ab ab ab ab\r\n", "key_not_plain"),
        (b"get ab  ab\r\n", "key_not_plain"),
        (b"gets ab ab \r\n", "key_not_plain"),
        (b"get ab a\x7fb\r\n", "key_not_plain"),
        (b"mg ab ab v\r\n", "key_not_plain"),
        (b"get a\x7fb\r\n", "key_not_plain"),
        (b"get a\xffb\r\n", "key_not_plain"),
        (b"get abcdef\x1fb\r\n", "key_not_plain"),
        (b"get \r\n", "not_known"),
        (b"Get ab\r\n", "not_known"),
        (b"gat 0 ab\r\n", "not_known"),
        (b"delete ab\r\n", "not_known"),
        (b"set ab 0 0 1\r\nx\r\n", "not_known"),
        (b"flush_all\r\n", "not_known"),
        (b"get abc\r\n", "miss"),
        (long.as_bytes(), "key_not_plain"),
    ];
    for (text, reason) in rows {
        println!("{}", String::from_utf8_lossy(text));
        bench.passes(&Packet::request(7, text).bytes(), reason);
    }
    for at in [2, 3, 4, 5] {
        let mut request = Packet::request(7, b"get ab\r\n");
        request.payload[at] ^= 2;
        bench.passes(&request.bytes(), "not_known");
    }
    let mut reserved = Packet::request(7, b"get ab\r\n");
    reserved.payload[6..8].fill(0xff);
    let Trial::Answered(_) = bench.run(&reserved.bytes()) else { panic!("they are ignored") };
}

/// The text of an item in a reply.
fn item(key: &str, value: &str, token: &str) -> String {
    format!("VALUE {key} 42 {}{token}\r\n{value}\r\n", value.len())
}

#[test]
fn several_keys_are_answered_if_there_are_copies_of_all() {
    let Some(mut bench) = Bench::new() else { return };
    let keys = ["first-of-the-keys", "b", "eight-by", "a-key-of-the-length-24.."];
    let values = ["one", "", "some-more-bytes", "four"];
    for (key, value) in keys.iter().zip(values) {
        bench.publish(key.as_bytes(), value.as_bytes());
    }
    for count in 2..=4 {
        for (verb, token) in [("get", ""), ("gets", " 977")] {
            let line = format!("{verb} {}\r\n", keys[..count].join(" "));
            let items = keys.iter().zip(values).take(count);
            let text: String = items.map(|(key, value)| item(key, value, token)).collect();
            let text = text + "END\r\n";
            println!("{line}");
            bench.answers(&Packet::request(7, line.as_bytes()), text.as_bytes());
            bench.answers(&Packet::request6(7, line.as_bytes()), text.as_bytes());
        }
    }
    // Each of these requests read each of its keys. The third one was in two of the three lengths.
    let reads = keys.map(|key| bench.take_reads(key.as_bytes()));
    assert_eq!(reads, [Some(12), Some(12), Some(8), Some(4)]);
    assert_eq!(bench.pipe.answered(), 36);
    // The same key twice is two items, as from the server.
    let twice = [item(keys[0], "one", ""), item(keys[0], "one", ""), "END\r\n".into()].concat();
    let line = format!("get {0} {0}\r\n", keys[0]);
    bench.answers(&Packet::request(7, line.as_bytes()), twice.as_bytes());
    for line in ["get b eight-by absent\r\n", "get absent b\r\n"] {
        bench.passes(&Packet::request(7, line.as_bytes()).bytes(), "miss");
    }
}

#[test]
fn several_values_that_have_no_room_are_left_to_the_server() {
    let Some(mut bench) = Bench::new() else { return };
    // The reply has less than three times the bytes of the request each time. First the driver has
    // no room, then the memory of the program.
    for (key_bytes, value_bytes) in [(60, 100), (80, 256)] {
        let keys = ["a", "b"].map(|letter| letter.repeat(key_bytes));
        keys.iter().for_each(|key| bench.publish(key.as_bytes(), &vec![b'v'; value_bytes]));
        let line = format!("get {}\r\n", keys.join(" "));
        bench.passes(&Packet::request(7, line.as_bytes()).bytes(), "no_room");
    }
    let line = format!("get {0} {0}\r\n", "a".repeat(60));
    bench.publish("a".repeat(60).as_bytes(), &[b'v'; 60]);
    let Trial::Answered(_) = bench.run(&Packet::request(7, line.as_bytes()).bytes()) else {
        panic!("there is room for these");
    };
}

#[test]
fn a_reply_of_too_many_times_its_request_is_left_to_the_server() {
    let Some(mut bench) = Bench::new() else { return };
    // The request has 8 + 8 bytes, the reply 8 + 16 + n + 7.
    for (value_bytes, is_answered) in [(16, true), (17, true), (18, false), (200, false)] {
        bench.publish(b"ab", &vec![b'v'; value_bytes]);
        let bytes = Packet::request(7, b"get ab\r\n").bytes();
        match bench.run(&bytes) {
            Trial::Answered(_) => assert!(is_answered, "{value_bytes}"),
            other => assert!(!is_answered && other == Trial::Passed(bytes), "{value_bytes}"),
        }
    }
    assert_eq!(bench.pipe.counts().passed("too_large"), 2);
}

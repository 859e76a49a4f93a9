//! The binary protocol of the real server: over TCP and a unix socket, by both I/O backends, with
//! the protocol selected by the first byte, by `-B` and by the prefix of a listener.

use std::path::Path;

use kachel_testkit::{Client, Launch, PATIENCE, is_usable};

const HEADER_BYTES: usize = 24;

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_kachel"))
}

fn request(opcode: u8, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
    let body = extras.len() + key.len() + value.len();
    let mut request = vec![0x80, opcode];
    request.extend_from_slice(&(key.len() as u16).to_be_bytes());
    request.extend_from_slice(&[extras.len() as u8, 0, 0, 0]);
    request.extend_from_slice(&(body as u32).to_be_bytes());
    request.extend_from_slice(&[0; 12]);
    [&request, extras, key, value].concat()
}

fn noop() -> Vec<u8> {
    request(0x0a, b"", b"", b"")
}

/// A reply: opcode, status, and the body without its extras.
type Reply = (u8, u16, Vec<u8>);

fn read_reply(client: &mut Client) -> Reply {
    let mut header = [0; HEADER_BYTES];
    assert_eq!(client.read_whole(&mut header).len(), HEADER_BYTES, "a whole header");
    assert_eq!(header[0], 0x81);
    let body_bytes = u32::from_be_bytes(*header[8..].first_chunk().expect("a length"));
    let mut body = vec![0; body_bytes as usize];
    assert_eq!(client.read_whole(&mut body).len(), body.len(), "a whole body");
    let status = u16::from_be_bytes(*header[6..].first_chunk().expect("a status"));
    (header[1], status, body.split_off(usize::from(header[4])))
}

fn ask(client: &mut Client, request: impl AsRef<[u8]>) -> Reply {
    client.send(request);
    read_reply(client)
}

fn is_binary(client: &mut Client) {
    assert_eq!(ask(client, noop()), (0x0a, 0, Vec::new()));
}

fn is_closed(client: &mut Client) {
    client.set_patience(PATIENCE);
    assert_eq!(client.read_to_end(), b"");
}

/// Stores values of all sizes quietly, and reads them with `GETKQ` until `NOOP` is answered.
fn converse(io: &str, unix: bool) {
    let io = format!("--io={io}");
    let options = ["-t", "3", "-m", "64", &io];
    let server = Launch { unix, ..Launch::memcached(program(), &options) }.start();
    let mut clients = [server.connect(), server.connect()];
    let value = |number: usize| vec![number as u8; number * number * 40];
    for number in 0..100 {
        let key = format!("key{number}");
        let set = request(0x11, &[0; 8], key.as_bytes(), &value(number));
        clients[number % 2].send(set);
    }
    clients.iter_mut().for_each(is_binary);
    for client in &mut clients {
        let mut gets = Vec::new();
        for number in 0..110 {
            gets.extend(request(0x0d, b"", format!("key{number}").as_bytes(), b""));
        }
        gets.extend(noop());
        client.send(gets);
        for number in 0..100 {
            let expected = [format!("key{number}").as_bytes(), &value(number)].concat();
            let got = read_reply(client);
            assert!(got == (0x0d, 0, expected), "{number}: status {}", got.1);
        }
        assert_eq!(read_reply(client), (0x0a, 0, Vec::new()));
    }
    let [client, other] = &mut clients;
    assert_eq!(ask(client, request(0x07, b"", b"", b"")), (0x07, 0, Vec::new()));
    is_closed(client);
    other.send(request(0x17, b"", b"", b""));
    is_closed(other);
}

#[test]
fn values_of_all_sizes_are_stored_and_read_by_uring() {
    if is_usable("uring") {
        converse("uring", false);
        converse("uring", true);
    }
}

#[test]
fn values_of_all_sizes_are_stored_and_read_by_epoll() {
    if is_usable("epoll") {
        converse("epoll", false);
        converse("epoll", true);
    }
}

#[test]
fn both_protocols_share_the_items() {
    let server = Launch::memcached(program(), &["-t", "2"]).start();
    let (mut text, mut binary) = (server.connect(), server.connect());
    text.set("a", b"from text");
    assert_eq!(ask(&mut binary, request(0x00, b"", b"a", b"")), (0x00, 0, b"from text".to_vec()));
    assert_eq!(ask(&mut binary, request(0x0e, b"", b"a", b"!")).1, 0);
    assert_eq!(text.get("a").as_deref(), Some(&b"from text!"[..]));
    assert_eq!(text.stats()["cmd_get"], "2");
}

#[test]
fn an_option_or_a_listener_sets_the_protocol() {
    for (options, unix, text, binary) in [
        (&["-B", "binary"][..], false, false, true),
        (&["-B", "binary"], true, false, true),
        (&["-B", "ascii"], false, true, false),
        (&["-B", "auto"], false, true, true),
        (&["-B", "ascii", "-l", "proto[binary]:127.0.0.1"], false, false, true),
        (&["-B", "binary", "-l", "proto[ascii]:127.0.0.1"], false, true, false),
        (&["-B", "binary", "-l", "proto[negotiating]:127.0.0.1"], false, true, true),
    ] {
        let server = Launch { unix, ..Launch::memcached(program(), options) }.start();
        let mut client = server.connect();
        client.send(b"mn\r\n");
        if text {
            assert_eq!(client.read_line(), b"MN\r\n", "{options:?}");
        } else {
            is_closed(&mut client);
        }
        let mut client = server.connect();
        if binary {
            is_binary(&mut client);
            assert_eq!(ask(&mut client, request(0x10, b"", b"reset", b"")).1, 0, "{options:?}");
        } else {
            client.send(b"\x80 is text\r\n");
            assert_eq!(client.read_line(), b"ERROR\r\n", "{options:?}");
        }
    }
}

#[test]
fn a_flush_that_is_not_allowed_is_refused() {
    let server = Launch::memcached(program(), &["-F"]).start();
    let mut client = server.connect();
    for opcode in [0x08, 0x18] {
        let refused = (opcode, 0x20, b"Auth failure.".to_vec());
        assert_eq!(ask(&mut client, request(opcode, b"", b"", b"")), refused);
    }
    is_binary(&mut client);
}

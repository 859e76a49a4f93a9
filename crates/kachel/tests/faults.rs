//! Faults that memcached 1.6.45 has, and this server must not have: one test for each.
//!
//! `KACHEL_FAULTS_SERVER=PATH` runs another server. With memcached 1.6.45 all tests fail but L7,
//! which is no fault, but a rule of protocol.txt that neither server keeps:
//!
//! ```text
//! KACHEL_FAULTS_SERVER=$(realpath memcached) cargo test -p kachel --test faults --no-fail-fast
//! ```

use std::path::PathBuf;
use std::time::Duration;
use std::{env, fs};

use kachel_testkit::{Launch, Server, UdpClient, wait_until};

/// Clients that are let in at a time in the test of the limit.
const CLIENTS_MAX: usize = 64;

/// The server that is tested.
fn program() -> PathBuf {
    env::var_os("KACHEL_FAULTS_SERVER")
        .map_or_else(|| env!("CARGO_BIN_EXE_kachel").into(), Into::into)
}

/// Starts the server with memcached's options, and further ones that only ours has. If it has UDP,
/// a client watches the log, and requests are counted by prefix.
fn start(options: &[&str], of_ours: &[&str]) -> Server {
    let program = program();
    let is_ours = env::var_os("KACHEL_FAULTS_SERVER").is_none();
    let options = [options, if is_ours { of_ours } else { &[] }].concat();
    if !options.contains(&"-U") {
        return Launch::memcached(&program, &options).start();
    }
    let options = [&["-D", ":"], &options[..]].concat();
    let mut server = Launch::memcached(&program, &options).start();
    server.watch();
    server
}

/// Bytes that a client sends and never finishes must not take the bytes of another one.
#[test]
fn l1_datagrams_of_two_clients_stay_apart() {
    let server = start(&["-U", "-1", "-t", "1"], &[]);
    let [mut first, mut second] = [(); 2].map(|()| UdpClient::at(server.udp_port()));
    for _ in 0..100 {
        first.send(b"set leak 0 0 34\r\nabc");
        assert_eq!(second.ask(b"get my-private-key-name\r\n"), b"END\r\n");
        let reply = first.read();
        assert_eq!(reply, b"SERVER_ERROR request not whole in its datagram; use TCP\r\n");
    }
    assert_eq!(server.connect().get("leak"), None);
}

/// A short request whose sender may be forged must not send many bytes to a stranger.
#[test]
fn l2_a_long_reply_is_refused_over_udp() {
    let server = start(&["-U", "-1"], &[]);
    server.connect().set("large", &vec![b'v'; 100_000]);
    let mut client = UdpClient::at(server.udp_port());
    assert_eq!(client.ask(b"get large\r\n"), b"SERVER_ERROR reply too long for UDP; use TCP\r\n");
    assert!(client.is_silent(), "it was one datagram");
}

/// A client must be able to tell a lost datagram from the end of a reply.
#[test]
fn l3_the_datagrams_of_a_reply_are_numbered() {
    let server = start(&["-U", "-1"], &["--udp-reply-datagrams", "16"]);
    let mut tcp = server.connect();
    let (mut request, mut wanted) = (b"get".to_vec(), Vec::new());
    for number in 0..10 {
        let (key, value) = (format!("key-{number}"), vec![b'0' + number; 400]);
        tcp.set(&key, &value);
        request.extend_from_slice(format!(" {key}").as_bytes());
        wanted.extend_from_slice(format!("VALUE {key} 0 400\r\n").as_bytes());
        wanted.extend_from_slice(&value);
        wanted.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"\r\n");
    wanted.extend_from_slice(b"END\r\n");
    assert_eq!(UdpClient::at(server.udp_port()).ask(&request), wanted);
}

/// A line too many makes a client take each later reply for the one before.
#[test]
fn l4_a_key_that_is_too_long_has_one_line_as_reply() {
    let server = start(&[], &[]);
    let mut client = server.connect();
    client.send(format!("get {}\r\nmn\r\n", "k".repeat(251)));
    let said = client.read_until(b"MN\r\n");
    assert_eq!(said, b"CLIENT_ERROR bad command line format\r\nMN\r\n");
}

/// Each request has a reply, also one before the login.
#[test]
fn l5_requests_around_a_login_have_a_reply_each() {
    let folder = tempfile::tempdir().expect("a folder");
    let users = folder.path().join("users");
    fs::write(&users, "alice:secret\n").expect("written");
    let server = start(&["-Y", users.to_str().expect("UTF-8")], &[]);
    let mut client = server.connect();
    client.send("get a\r\nset x 0 0 12\r\nalice secret\r\nget a\r\n");
    let said = client.read_until(b"END\r\n");
    assert_eq!(said, b"CLIENT_ERROR unauthenticated\r\nSTORED\r\nEND\r\n");
}

/// The limit of clients is a number of clients.
#[test]
fn l6_as_many_clients_are_let_in_as_the_option_says() {
    let server = start(&["-c", &CLIENTS_MAX.to_string(), "-t", "1"], &[]);
    // This client counts as well. Those before it must be gone.
    let mut first = server.connect();
    wait_until("the only client", || first.stat("curr_connections") == 1);
    let mut clients = vec![first];
    clients.resize_with(CLIENTS_MAX, || server.connect());
    for client in &mut clients {
        assert_eq!(client.ask("mn\r\n", "\n"), "MN\r\n");
    }
    let refused = server.connect().read_to_end();
    assert_eq!(refused, b"ERROR Too many open connections\r\n");
    assert_eq!(clients[0].ask("mn\r\n", "\n"), "MN\r\n");
}

/// Keys may have any byte but the separators, and numbers are taken as memcached takes them,
/// whatever protocol.txt says: clients rely on it.
#[test]
fn l7_keys_and_numbers_are_taken_as_by_memcached() {
    let server = start(&[], &[]);
    let mut client = server.connect();
    for key in ["a\0b", "a\u{1}b", "a\u{7f}b"] {
        client.set(key, b"value");
        assert_eq!(client.get(key).as_deref(), Some(&b"value"[..]), "{key:?}");
    }
    for line in ["set k 4294967296 0 1", "set k 0 2147483648 1"] {
        assert_eq!(client.ask(format!("{line}\r\nv\r\n"), "\n"), "STORED\r\n", "{line}");
    }
}

/// A client that does not log in holds its connection for a bounded time.
#[test]
fn l8_a_client_that_does_not_log_in_is_closed() {
    let folder = tempfile::tempdir().expect("a folder");
    let users = folder.path().join("users");
    fs::write(&users, "alice:secret\n").expect("written");
    let options = ["-Y", users.to_str().expect("UTF-8")];
    let server = start(&options, &["--login-timeout", "1"]);
    let client = server.connect();
    assert!(client.is_ended_within(Duration::from_secs(30)), "it holds its connection");
}

/// A request that is not known is skipped whole, and no byte of the next one.
#[test]
fn l9_an_unknown_binary_request_is_skipped_by_its_length() {
    let server = start(&[], &[]);
    let mut client = server.connect();
    let unknown = [&[0x80, 0x50, 0, 3][..], &[0, 0, 0, 0, 0, 0, 0, 3], &[0; 12], b"key"].concat();
    let noop = [&[0x80, 0x0a][..], &[0; 22]].concat();
    client.send([unknown, noop.clone(), noop].concat());
    let mut head = [0; 24];
    let refused = client.read_whole(&mut head);
    assert_eq!(refused[..2], [0x81, 0x50]);
    assert_eq!(refused[6..8], [0, 0x81], "the status is that of an unknown command");
    let body = usize::from(refused[11]);
    client.read_whole(&mut vec![0; body]);
    for _ in 0..2 {
        assert_eq!(client.read_whole(&mut head)[..2], [0x81, 0x0a]);
    }
}

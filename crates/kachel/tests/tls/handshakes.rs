//! Handshakes that fail, take long or never begin.

use std::io::Write as _;
use std::net::{Shutdown, TcpStream};
use std::time::Instant;

use kachel_testkit::{Launch, TLS_VERSIONS, is_usable, tell, wait_until};

use crate::site::{BACKENDS, Site, drained};

/// The type of an alert's record.
const ALERT: u8 = 21;
/// More than the handshakes that one thread has under way.
const CROWD: usize = 600;

/// A greeting that offers `version` and nothing newer, with `compressions`.
fn greeting(version: [u8; 2], compressions: &[u8]) -> Vec<u8> {
    let mut hello = vec![version[0], version[1]];
    hello.extend_from_slice(&[7; 32]); // Random.
    hello.push(0); // No session.
    let suites = [0xc0, 0x13, 0xc0, 0x2f, 0xc0, 0x2b, 0x00, 0x2f];
    hello.extend_from_slice(&(suites.len() as u16).to_be_bytes());
    hello.extend_from_slice(&suites);
    hello.push(compressions.len() as u8);
    hello.extend_from_slice(compressions);
    let length = hello.len() as u16;
    let mut record = vec![22, 3, 1];
    record.extend_from_slice(&(length + 4).to_be_bytes());
    record.extend_from_slice(&[1, 0]);
    record.extend_from_slice(&length.to_be_bytes());
    record.extend_from_slice(&hello);
    record
}

/// T01, T03, and other bytes that are no handshake.
#[test]
fn what_is_no_handshake_gets_an_alert_and_an_end() {
    for io in BACKENDS.into_iter().filter(|io| is_usable(io)) {
        let site = Site::start(&["-t", "2", "--io", io]);
        let (old, older) = ([3, 2], [3, 1]);
        let rows: [(&str, Vec<u8>); 9] = [
            ("a text request", b"get a\r\nget b\r\n".to_vec()),
            ("a binary request", [&b"\x80\x0b"[..], &[0; 22]].concat()),
            ("a request of HTTP", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec()),
            ("TLS 1.1", greeting(old, &[0])),
            ("TLS 1.0", greeting(older, &[0])),
            ("SSL 3", greeting([3, 0], &[0])),
            ("compression only", greeting([3, 3], &[1])),
            ("data before the handshake", b"\x17\x03\x03\x00\x05hello".to_vec()),
            ("a record that is too long", [&b"\x16\x03\x01\xff\xff"[..], &[0; 4000]].concat()),
        ];
        for (number, (what, bytes)) in rows.iter().enumerate() {
            let mut client = site.raw();
            client.write_all(bytes).expect("taken");
            let reply = drained(&mut client);
            assert_eq!(reply.first(), Some(&ALERT), "{what}: {}", reply.escape_ascii());
            assert!(reply.len() <= 16, "{what}: {}", reply.escape_ascii());
            assert_eq!(site.stat("ssl_handshake_errors"), number as u64 + 1, "{what}");
        }
        assert_eq!(site.stat("ssl_proto_errors"), 0);
    }
}

/// The fault: the line had neither the client nor the descriptor as fields.
#[test]
fn a_line_about_a_failed_handshake_names_its_client() {
    let site = Site::start(&["-t", "1", "-v", "--log-format=json"]);
    let mut client = site.raw();
    let name = client.local_addr().expect("an address");
    client.write_all(b"version\r\n").expect("taken");
    let fields = format!("\"event\":\"handshake_failed\",\"client\":\"{name}\",\"fd\":");
    wait_until("the line", || site.server.log().contains(&fields));
}

/// A client that connects and leaves has made no mistake.
#[test]
fn a_client_that_only_looks_is_not_an_error() {
    let site = Site::start(&["-t", "1"]);
    for _ in 0..5 {
        drop(site.raw());
    }
    let mut client = site.raw();
    client.write_all(&[22, 3, 1]).expect("taken");
    client.shutdown(Shutdown::Both).expect("a socket");
    wait_until("the broken handshake", || site.stat("ssl_handshake_errors") > 0);
    assert_eq!(site.stat("ssl_handshake_errors"), 1);
}

/// T02. More clients than there is room for begin a handshake and fall silent.
#[test]
fn silent_clients_keep_nobody_out_for_long() {
    let site = Site::start(&["-t", "2"]);
    let began = Instant::now();
    let mut before = site.connect();
    let silent: Vec<TcpStream> = (0..CROWD)
        .map(|number| {
            let mut client = site.raw();
            let hello = greeting([3, 3], &[0]);
            // Some send half of a greeting, others nothing at all.
            client.write_all(&hello[..if number % 2 == 0 { 20 } else { 0 }]).expect("taken");
            client
        })
        .collect();
    // Shards go on meanwhile, and a new client is served as soon as the silent ones have gone.
    before.set("a", b"before");
    let mut after = site.connect();
    let waited = began.elapsed();
    assert_eq!(after.get("a").as_deref(), Some(&b"before"[..]));
    for mut client in silent {
        drained(&mut client);
    }
    let errors = after.stat("ssl_handshake_errors");
    tell(&format!("{CROWD} silent clients: a new one was served after {waited:?}\n"));
    assert_eq!(errors, CROWD as u64);
}

#[test]
fn an_older_version_than_the_oldest_is_refused() {
    let [newer, older] = TLS_VERSIONS;
    let site = Site::start_with(&["-t", "1"], ",ssl_min_version=3");
    assert!(site.try_connect(&site.config(&[older], None)).is_err());
    let client = site.try_connect(&site.config(&[newer], None)).expect("a connection");
    assert_eq!(client.stream.conn.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_3));
    assert_eq!(site.stat("ssl_handshake_errors"), 1);
    let site = Site::start(&["-t", "1"]);
    let client = site.try_connect(&site.config(&[older], None)).expect("a connection");
    assert_eq!(client.stream.conn.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_2));
}

#[test]
fn only_the_cipher_suites_of_the_option_are_offered() {
    use rustls::CipherSuite::{TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, TLS13_AES_256_GCM_SHA384};
    let [newer, older] = TLS_VERSIONS;
    let words = ",ssl_ciphers=ECDHE-ECDSA-AES256-GCM-SHA384:TLS_AES_256_GCM_SHA384";
    let site = Site::start_with(&["-t", "1"], words);
    for (version, suite) in
        [(newer, TLS13_AES_256_GCM_SHA384), (older, TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384)]
    {
        let client = site.try_connect(&site.config(&[version], None)).expect("a connection");
        let used = client.stream.conn.negotiated_cipher_suite().expect("a suite");
        assert_eq!(used.suite(), suite);
    }
}

#[test]
fn connections_above_the_limit_are_told_so_over_tls() {
    let site = Site::start(&["-t", "1", "-c", "2"]);
    let _two = [site.connect(), site.connect()];
    let refused = site.try_connect(&site.config(&TLS_VERSIONS, None)).err();
    let said = format!("{:?}", refused.expect("no third one"));
    assert!(said.contains("ERROR Too many open connections"), "{said}");
}

/// Built with TLS, but started without it, the server answers as memcached does.
#[test]
fn without_the_option_there_is_no_tls() {
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_kachel"));
    let server = Launch::memcached(program, &["-t", "1"]).start();
    let mut client = server.connect();
    assert_eq!(client.ask("refresh_certs\r\n", "\n"), "Error TLS not enabled\r\n");
    assert!(!client.ask("stats\r\n", "END\r\n").contains("ssl_"));
    assert!(client.ask("stats settings\r\n", "END\r\n").contains("STAT ssl_enabled no\r\n"));
}

/// The process ends in order while clients are connected, and tells them.
#[test]
fn a_server_that_ends_says_so() {
    for io in BACKENDS.into_iter().filter(|io| is_usable(io)) {
        let mut site = Site::start(&["-t", "2", "--io", io]);
        let mut client = site.connect();
        let mut silent = site.raw();
        site.server.signal(rustix::process::Signal::TERM);
        assert!(client.read_to_end().is_empty(), "close_notify, then the end");
        drained(&mut silent);
        assert!(site.server.process.wait().expect("a child").success());
    }
}

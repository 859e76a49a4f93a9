//! `mscan` over the wire: a client scans while others store and delete, and some leave in the
//! middle of a reply.
//!
//! Upstream:   `cargo test -p kachel --test scans`.
//! Downstream: the binary with `--scan`, over each engine that has an order.
//!
//! Where RocksDB is not installed, `KACHEL_FAKE_ROCKSDB=1` says so, and the library that stands in
//! for it is used.

use std::io::Read as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use kachel_testkit::{
    Client, Launch, Random, ScanJudge, ScanReply, Server, rocksdb_library, scan_request,
};

/// Items that nobody changes, and keys that writers change all the time.
const STABLE: usize = 400;
const CHANGED: u64 = 400;
const SCANS: usize = 12;

fn start(data: &Path, library: &str, options: &[&str]) -> Server {
    let data = data.to_str().expect("UTF-8");
    let options = [&["serve", "--data", data, "-t", "3"], options].concat();
    let program = Path::new(env!("CARGO_BIN_EXE_kachel"));
    let under = ["env", library];
    let launch = Launch { called_as: "kachel", ..Launch::memcached(program, &options) };
    Launch { under: if library.is_empty() { &[] } else { &under }, ..launch }.start()
}

/// The next reply to `mscan`. No value here begins as its last line does.
fn read_reply(client: &Client) -> ScanReply {
    let (mut reply, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        let bytes = client.socket().read(&mut buffer).expect("the server answers");
        assert!(bytes > 0, "{}", reply.escape_ascii());
        reply.extend_from_slice(&buffer[..bytes]);
        let Some(lines) = reply.strip_suffix(b"\n") else { continue };
        let last = lines.rsplit(|&byte| byte == b'\n').next().expect("a line");
        assert!(!last.starts_with(b"SERVER_ERROR"), "{}", last.escape_ascii());
        if last.starts_with(b"EN") || last.starts_with(b"MO") {
            let read = ScanReply::read(&reply).expect("a whole reply");
            assert_eq!(read.bytes, reply.len());
            return read;
        }
    }
}

/// Stores and deletes keys until it is told to stop. The value of a key begins with the key.
fn write(server: &Server, seed: u64, stop: &AtomicBool) {
    let (mut client, mut random) = (server.connect(), Random::new(seed));
    while !stop.load(Relaxed) {
        let key = format!("c{:04}", random.below(CHANGED));
        if random.below(3) == 0 {
            client.ask(format!("md {key} q\r\nmn\r\n"), "MN\r\n");
        } else {
            let value = format!("{key}{}", "v".repeat(random.below(3_000) as usize));
            client.ask(format!("ms {key} {}\r\n{value}\r\n", value.len()), "\r\n");
        }
    }
}

/// Begins scans and leaves, with their replies in part unread.
fn leave(server: &Server, stop: &AtomicBool) {
    while !stop.load(Relaxed) {
        let mut client = server.connect();
        client.send(scan_request(b"", 1_000));
        client.read_line();
        client.reset();
    }
}

fn check(library: &str, options: &[&str]) {
    let place = tempfile::tempdir().expect("a folder");
    let server = start(&place.path().join("data"), library, options);
    let (mut client, mut judge) = (server.connect(), ScanJudge::default());
    for number in 0..STABLE {
        // Before, between and behind the keys that are changed.
        let key = format!("{}{number:04}", ["b", "c", "d"][number % 3]);
        let key = if number % 3 == 1 { key + "-stable" } else { key };
        client.set(&key, key.repeat(1 + number % 200).as_bytes());
        judge.change(key.as_bytes(), Some(key.repeat(1 + number % 200).as_bytes()));
    }
    client.set("gone", b"1");
    client.ask("delete gone\r\n", "DELETED\r\n");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (server, stop) = (&server, &stop);
        (0..2).for_each(|seed| drop(scope.spawn(move || write(server, seed, stop))));
        scope.spawn(move || leave(server, stop));
        let mut returned = 0;
        for scan in 0..SCANS {
            let count = [1_000, 17, 100][scan % 3];
            judge.begin();
            loop {
                client.send(judge.request(count));
                let mut reply = read_reply(&client);
                // All keys are in order. Those that writers change are judged by their values.
                assert!(reply.items.is_sorted_by(|one, next| one.key < next.key));
                reply.items.retain(|item| {
                    let key = String::from_utf8(item.key.clone()).expect("text");
                    let is_changed = key.len() == 5 && key.starts_with('c');
                    let value = item.value.as_ref().expect("a short value");
                    assert!(value.starts_with(key.as_bytes()), "{key}");
                    !is_changed
                });
                if judge.judge(&reply, count) {
                    break;
                }
            }
            returned += judge.returned();
        }
        stop.store(true, Relaxed);
        assert_eq!(returned, SCANS * STABLE);
    });
    // Nothing was broken by the clients that have left, or is held for them.
    let mut other = server.connect();
    assert_eq!(other.ask("flush_all\r\nmscan a 9 k\r\n", "EN\r\n"), "OK\r\nEN\r\n");
    assert_eq!(other.ask("mscan a 0\r\n", "\r\n"), "CLIENT_ERROR bad command line format\r\n");
}

#[test]
fn scans_of_flash_are_in_order_and_whole() {
    check("", &["--engine", "flash", "--scan"]);
}

#[test]
fn scans_of_rocksdb_are_in_order_and_whole() {
    let fake = rocksdb_library();
    let library =
        fake.as_ref().map(|fake| format!("KACHEL_TEST_ROCKSDB={}", fake.path().display()));
    check(&library.unwrap_or_default(), &["--engine", "rocksdb", "--sync", "os", "--scan"]);
}

#[test]
fn without_the_option_a_scan_is_refused() {
    let place = tempfile::tempdir().expect("a folder");
    let server = start(&place.path().join("data"), "", &["--engine", "flash"]);
    let said = server.connect().ask("mscan a 1 k\r\n", "\r\n");
    assert_eq!(said, "CLIENT_ERROR mscan not allowed\r\n");
}

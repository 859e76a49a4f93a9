//! Records: short, long, cut, corrupted, and connections that end within a record.

use std::io::Write as _;
use std::net::Shutdown;

use kachel_testkit::{TLS_VERSIONS, is_usable, tell, wait_until};

use crate::site::{BACKENDS, Site, TlsClient, drained};

/// Each site of these tests deals its clients to all cores, so sessions move from core to core.
fn spread(io: &str) -> Site {
    Site::start(&["-t", "3", "--io", io, "--cores=all", "-I", "4m"])
}

fn backends() -> impl Iterator<Item = &'static str> {
    BACKENDS.into_iter().filter(|io| is_usable(io))
}

/// T04. Each byte of pipelined requests in a record of its own, all records in one piece.
#[test]
fn records_of_one_byte_are_answered() {
    for io in backends() {
        let site = spread(io);
        for version in TLS_VERSIONS {
            let mut client = site.try_connect(&site.config(&[version], None)).expect("in");
            let requests = b"set a 0 0 3\r\nabc\r\nget a\r\nset b 0 0 0\r\n\r\nget a b\r\nmn\r\n";
            let wanted = "STORED\r\nVALUE a 0 3\r\nabc\r\nEND\r\nSTORED\r\nVALUE a 0 3\r\nabc\r\n\
                          VALUE b 0 0\r\n\r\nEND\r\nMN\r\n";
            let mut records = Vec::new();
            for byte in requests {
                client.stream.conn.writer().write_all(&[*byte]).expect("memory");
                client.stream.conn.write_tls(&mut records).expect("memory");
            }
            client.stream.sock.write_all(&records).expect("taken");
            let reply = client.read(wanted.len());
            assert_eq!(String::from_utf8_lossy(&reply), wanted, "{io} {version:?}");
        }
    }
}

/// The bytes of records arrive one by one, so that every cut of a record is tried.
#[test]
fn records_that_arrive_byte_by_byte_are_answered() {
    for io in backends() {
        let site = spread(io);
        let mut client = site.connect();
        client.stream.conn.writer().write_all(b"set a 0 0 3\r\nabc\r\n").expect("memory");
        client.stream.conn.writer().write_all(b"get a\r\n").expect("memory");
        let mut records = Vec::new();
        while client.stream.conn.wants_write() {
            client.stream.conn.write_tls(&mut records).expect("memory");
        }
        for byte in records {
            client.stream.sock.write_all(&[byte]).expect("taken");
        }
        let wanted = b"STORED\r\nVALUE a 0 3\r\nabc\r\nEND\r\n";
        assert_eq!(client.read(wanted.len()), wanted);
    }
}

/// Values of all lengths around those of records and blocks, up to 3 MB, come back as they were.
#[test]
fn values_of_any_length_come_back() {
    for io in backends() {
        let site = spread(io);
        for version in TLS_VERSIONS {
            let mut client = site.try_connect(&site.config(&[version], None)).expect("in");
            for bytes in [0, 1, 15_871, 15_872, 15_873, 16_383, 16_384, 16_385, 100_000, 3_000_000]
            {
                let value: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
                client.set("a", &value);
                client.send("get a\r\n");
                let line = format!("VALUE a 0 {bytes}\r\n");
                assert_eq!(client.read(line.len()), line.as_bytes());
                assert!(client.read(bytes) == value, "{io} {version:?} {bytes}");
                assert_eq!(client.read(7), b"\r\nEND\r\n");
            }
        }
    }
}

/// Many pipelined requests, whose client reads only at the end.
#[test]
fn a_client_that_reads_late_gets_all_replies_in_order() {
    const REQUESTS: usize = 3_000;
    for io in backends() {
        let site = spread(io);
        let mut client = site.connect();
        client.set("a", &[b'x'; 1000]);
        client.set("large", &vec![b'y'; 200_000]);
        let mut sender = client;
        let sent = format!("{}mn\r\n", "get a\r\nget large\r\n".repeat(20)).repeat(REQUESTS / 60);
        let small = [&b"VALUE a 0 1000\r\n"[..], &[b'x'; 1000], b"\r\nEND\r\n"].concat();
        let large =
            [&b"VALUE large 0 200000\r\n"[..], &vec![b'y'; 200_000], b"\r\nEND\r\n"].concat();
        // The socket takes the requests; the replies fill it.
        sender.send(&sent);
        std::thread::sleep(std::time::Duration::from_millis(300));
        for round in 0..REQUESTS / 60 {
            for _ in 0..20 {
                assert!(sender.read(small.len()) == small, "{io} {round}");
                assert!(sender.read(large.len()) == large, "{io} {round}");
            }
            assert_eq!(sender.read(4), b"MN\r\n");
        }
    }
}

/// New keys in the middle of a connection (TLS 1.3), often.
#[test]
fn a_client_may_ask_for_new_keys() {
    for io in backends() {
        let site = spread(io);
        let mut client = site.try_connect(&site.config(&TLS_VERSIONS[..1], None)).expect("in");
        for round in 0..50 {
            client.stream.conn.refresh_traffic_keys().expect("TLS 1.3");
            client.set("a", format!("value {round}").as_bytes());
            assert_eq!(client.get("a"), Some(format!("value {round}").into_bytes()));
        }
        assert_eq!(client.stat("ssl_proto_errors"), 0);
    }
}

/// T07. A connection that ends inside a request stores nothing, with and without a `close_notify`.
/// Requests that were whole before the end are executed.
#[test]
fn what_is_cut_is_not_stored() {
    for io in backends() {
        let site = spread(io);
        for notifies in [false, true] {
            let mut client = site.connect();
            client.set("a", b"old");
            client.send("set b 0 0 3\r\nnew\r\nset a 0 0 10\r\n12345");
            if notifies {
                client.stream.conn.send_close_notify();
                client.stream.flush().expect("taken");
                assert_eq!(client.read_to_end(), b"STORED\r\n");
            } else {
                client.stream.sock.shutdown(Shutdown::Write).expect("a socket");
                assert_eq!(client.read_to_end(), b"STORED\r\n");
            }
            let mut other = site.connect();
            assert_eq!(other.get("a").as_deref(), Some(&b"old"[..]), "{io} {notifies}");
            assert_eq!(other.get("b").as_deref(), Some(&b"new"[..]), "{io} {notifies}");
            other.ask("delete b\r\n", "\n");
        }
    }
}

/// A record that is spoiled, or sent twice, ends the connection with an alert. Requests in earlier
/// records count, those in it do not.
#[test]
fn a_spoiled_record_ends_the_connection() {
    for io in backends() {
        let site = spread(io);
        for version in TLS_VERSIONS {
            for (number, spoil) in [
                |records: &mut Vec<u8>| *records.last_mut().expect("bytes") ^= 1,
                |records: &mut Vec<u8>| records[7] ^= 0x80,
                |records: &mut Vec<u8>| records[0] = 99,
                |records: &mut Vec<u8>| records[3] = 0xff,
                |records: &mut Vec<u8>| *records = b"get a\r\nget a\r\n".to_vec(),
                |records: &mut Vec<u8>| *records = vec![0; 5_000],
                // Empty records without encryption.
                |records: &mut Vec<u8>| *records = b"\x17\x03\x03\0\0".repeat(100),
                // Warnings without encryption.
                |records: &mut Vec<u8>| *records = b"\x15\x03\x03\0\x02\x01\x5a".repeat(100),
                // A greeting: a new handshake.
                |records: &mut Vec<u8>| *records = b"\x16\x03\x03\0\x04\x01\0\0\0".to_vec(),
            ]
            .iter()
            .enumerate()
            {
                let before = site.stat("ssl_proto_errors");
                let mut client = site.try_connect(&site.config(&[version], None)).expect("in");
                client.set("a", b"old");
                client.stream.conn.writer().write_all(b"set a 0 0 3\r\nnew\r\n").expect("memory");
                let mut records = Vec::new();
                client.stream.conn.write_tls(&mut records).expect("memory");
                spoil(&mut records);
                client.stream.sock.write_all(&records).expect("taken");
                let _alert = drained(&mut client.stream.sock);
                let mut other = site.connect();
                assert_eq!(other.get("a").as_deref(), Some(&b"old"[..]), "{io} {number}");
                let after = other.stat("ssl_proto_errors");
                assert_eq!(after, before + 1, "{io} {version:?} {number}");
            }
        }
    }
}

/// Random bytes after the handshake, and cut records, never harm the server.
#[test]
fn random_bytes_are_harmless() {
    let site = spread("epoll");
    let mut random = kachel_testkit::Random::new(7);
    for round in 0..200 {
        let mut socket = site.raw();
        let bytes: Vec<u8> =
            (0..random.index(2_000) + 1).map(|_| random.index(256) as u8).collect();
        if round % 2 == 0 {
            socket.write_all(&bytes).expect("taken");
            socket.shutdown(Shutdown::Write).expect("a socket");
            drained(&mut socket);
            continue;
        }
        let mut client = TlsClient::open(socket, &site.config(&TLS_VERSIONS, None)).expect("in");
        // A header that is right, so that the rest is taken for a record.
        let length = random.index(300) as u16;
        let header = [23, 3, 3, (length >> 8) as u8, length as u8];
        client.stream.sock.write_all(&[&header[..], &bytes].concat()).expect("taken");
        client.stream.sock.shutdown(Shutdown::Write).expect("a socket");
        drained(&mut client.stream.sock);
    }
    assert_eq!(site.connect().ask("mn\r\n", "\n"), "MN\r\n");
}

/// Connections that are reset in the middle of a large reply or request leave nothing behind.
#[test]
fn resets_leave_nothing_behind() {
    for io in backends() {
        let site = spread(io);
        let mut client = site.connect();
        client.set("large", &vec![b'y'; 1_000_000]);
        for round in 0..30 {
            let mut broken = site.connect();
            if round % 2 == 0 {
                broken.send("get large\r\n".repeat(4));
                broken.read(100_000);
            } else {
                broken.send(format!("set other 0 0 1000000\r\n{}", "z".repeat(300_000)));
            }
            let linger = Some(std::time::Duration::ZERO);
            rustix::net::sockopt::set_socket_linger(&broken.stream.sock, linger).expect("a socket");
        }
        wait_until("the end of the others", || client.stat("curr_connections") == 1);
        wait_until("no pinned memory", || client.stat("kachel_pinned_bytes") == 0);
        assert_eq!(client.get("other"), None);
    }
}

/// Bytes that clients leave unfinished, during the handshake and after it, are counted in `stats
/// kachel`. A greeting that goes on and on is refused. When the clients have closed, nothing is
/// kept.
#[test]
fn unfinished_bytes_are_counted_bounded_and_given_back() {
    const CLIENTS: usize = 20;
    const RECORD_BYTES: u64 = 16_000;
    /// As `HANDSHAKE_BYTES_MAX` of `kachel-tls`.
    const HANDSHAKE_BYTES_MAX: usize = 64 * 1024;
    for io in backends() {
        let site = spread(io);
        let mut client = site.connect();
        let mut kept = move || client.stat("kachel_tls_kept_bytes");
        assert_eq!(kept(), 0, "{io}");
        let mut cut = Vec::new();
        for _ in 0..CLIENTS {
            let mut other = site.connect();
            let plain = [b'x'; RECORD_BYTES as usize];
            other.stream.conn.writer().write_all(&plain).expect("memory");
            let mut record = Vec::new();
            other.stream.conn.write_tls(&mut record).expect("memory");
            record.pop();
            other.stream.sock.write_all(&record).expect("taken");
            cut.push(other);
        }
        let after = CLIENTS as u64 * RECORD_BYTES;
        wait_until("records without an end", || kept() >= after);
        assert!(kept() <= CLIENTS as u64 * 18_437, "{io}: {}", kept());
        // A greeting of 65,531 bytes, of which each byte has a record of its own.
        let greeting = [1, 0, 0xff, 0xfb].into_iter().chain(std::iter::repeat(0));
        let records = greeting.flat_map(|byte| [22, 3, 1, 0, 1, byte]);
        let records: Vec<u8> = records.take(HANDSHAKE_BYTES_MAX - 4_000).collect();
        let mut greeters: Vec<_> = (0..CLIENTS).map(|_| site.raw()).collect();
        for greeter in &mut greeters {
            greeter.write_all(&records).expect("taken");
        }
        let during = (CLIENTS * records.len()) as u64;
        wait_until("greetings without an end", || kept() >= after + during);
        assert!(
            kept() <= after.max(CLIENTS as u64 * 18_437) + (CLIENTS * HANDSHAKE_BYTES_MAX) as u64
        );
        let errors = site.stat("ssl_handshake_errors");
        for greeter in &mut greeters {
            greeter.write_all(&records[..6_000]).expect("taken");
            drained(greeter);
        }
        wait_until("their end", || kept() <= CLIENTS as u64 * 18_437);
        assert_eq!(site.stat("ssl_handshake_errors"), errors + CLIENTS as u64, "{io}");
        drop(cut);
        wait_until("nothing kept", || kept() == 0);
    }
}

/// An idle connection takes at most 12 KiB of memory, also after a large request.
#[test]
fn an_idle_connection_takes_little_memory() {
    const CLIENTS: u64 = 400;
    let site = Site::start(&["-t", "1", "-c", "2000"]);
    let config = site.config(&TLS_VERSIONS, None);
    let connect = |count: u64| -> Vec<TlsClient> {
        let connected = (0..count).map(|number| {
            let mut client = site.try_connect(&config).expect("in");
            client.set(&format!("key {}", number % 7).replace(' ', "_"), &[b'x'; 15_000]);
            client
        });
        connected.collect()
    };
    // The first ones fill pools and buffers, which do not grow with the connections.
    let _first = connect(50);
    let before = site.server.resident_bytes();
    let _clients = connect(CLIENTS);
    let each = site.server.resident_bytes().saturating_sub(before) / CLIENTS;
    tell(&format!("an idle connection with TLS takes {each} bytes\n"));
    assert!(each <= 12 * 1024, "{each} bytes");
}

/// A reader that stops costs a bounded amount of memory.
#[test]
fn a_client_that_does_not_read_costs_little_memory() {
    const CLIENTS: usize = 30;
    let site = Site::start(&["-t", "1", "--reader-timeout=0"]);
    let mut client = site.connect();
    client.set("large", &vec![b'y'; 900_000]);
    let before = site.server.resident_bytes();
    let mut stuck = Vec::new();
    for _ in 0..CLIENTS {
        let mut other = site.connect();
        other.send("get large\r\n".repeat(20));
        stuck.push(other);
    }
    std::thread::sleep(std::time::Duration::from_millis(500));
    let each = site.server.resident_bytes().saturating_sub(before) / CLIENTS as u64;
    tell(&format!("a client with TLS that does not read costs {each} bytes\n"));
    assert!(each <= 200 * 1024, "{each} bytes");
    drop(stuck);
    assert_eq!(client.ask("mn\r\n", "\n"), "MN\r\n");
}

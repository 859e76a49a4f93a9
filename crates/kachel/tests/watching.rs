//! `watch` over sockets: two threads that sleep, with either I/O backend, and which clients may
//! watch.

use std::path::Path;

use kachel_testkit::{Client, Launch};

fn server_program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_kachel"))
}

fn line(watcher: &mut Client) -> String {
    String::from_utf8(watcher.read_line()).expect("text")
}

#[test]
fn lines_come_from_each_thread_at_once() {
    for io in ["epoll", "uring"] {
        if !kachel_testkit::is_usable(io) {
            continue;
        }
        let io = format!("--io={io}");
        let server = Launch::memcached(server_program(), &["-t", "2", &io]).start();
        let mut clients: Vec<Client> = (0..4).map(|_| server.connect()).collect();
        for client in &mut clients {
            client.ask("version\r\n", "\n");
        }
        let mut watcher = server.connect();
        assert_eq!(watcher.ask("watch mutations connevents\r\n", "\n"), "OK\r\n");
        for (number, client) in clients.iter_mut().enumerate() {
            client.set(&format!("key{number}"), b"value");
            let line = line(&mut watcher);
            let expected = format!(
                " type=item_store key=key{number} status=stored cmd=set ttl=0 clsid=1 cfd="
            );
            assert!(line.starts_with("ts=") && line.contains(&expected), "{line}");
            assert!(line.ends_with(" size=5\n"), "{line}");
        }
        drop(clients.pop());
        let line = line(&mut watcher);
        assert!(line.contains(" type=conn_close rip=127.0.0.1 rport="), "{line}");
        assert!(line.contains(" transport=tcp reason=normal cfd="), "{line}");
        watcher.end_sending();
        assert_eq!(watcher.read_to_end(), b"", "a watcher that leaves is closed");
        let mut client = server.connect();
        while client.stat("log_watchers") > 0 {
            std::thread::yield_now();
        }
    }
}

#[test]
fn only_those_who_may_list_keys_may_watch() {
    let refused = "CLIENT_ERROR watch commands not allowed\r\n";
    let program = server_program();
    for (called_as, options, expected) in [
        ("memcached", &[][..], "OK\r\n"),
        ("memcached", &["-X"], "OK\r\n"),
        ("memcached", &["-W"], refused),
        ("kachel", &["serve"], refused),
        ("kachel", &["serve", "--dumps"], "OK\r\n"),
        ("kachel", &["serve", "--dumps", "-W"], refused),
    ] {
        let server = Launch { called_as, ..Launch::memcached(program, options) }.start();
        assert_eq!(server.connect().ask("watch\r\n", "\n"), expected, "{options:?}");
    }
}

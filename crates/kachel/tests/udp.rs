//! `-U`: a server with UDP, over both backends: which datagrams are answered, and by which shard.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use kachel_engine::{KeyHasher, Seeds};
use kachel_testkit::{Ended, Launch, Server, UdpClient, is_usable, wait_until};

const SHARDS: u16 = 4;
/// Starts until the ports are free: another process may take one between the look and the start.
const STARTS_MAX: usize = 20;

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_kachel"))
}

/// A server with UDP, and the port of UDP: the first of several that follow one another and are
/// free for TCP and UDP. A client watches the log, and requests are counted by prefix.
fn start(options: &[&str]) -> (Server, u16) {
    for _ in 0..STARTS_MAX {
        let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let udp_port = bound.local_addr().expect("it is bound").port();
        drop(bound);
        let text = udp_port.to_string();
        let options = [&["-U", &text, "-v", "-D", ":"], options].concat();
        match Launch::memcached(program(), &options).try_start_at(None) {
            Ok(mut server) => {
                server.watch();
                return (server, udp_port);
            }
            Err(Ended { said, .. }) => assert!(said.contains("cannot listen"), "{said}"),
        }
    }
    panic!("no ports are free");
}

fn set(key: &str, value: &[u8]) -> Vec<u8> {
    [format!("set {key} 0 0 {}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat()
}

fn backends() -> impl Iterator<Item = &'static str> {
    ["epoll", "uring"].into_iter().filter(|io| is_usable(io))
}

fn setting(server: &Server, topic: &str, name: &str) -> String {
    let mut client = server.connect();
    client.send(format!("stats {topic}\r\nquit\r\n"));
    let said = String::from_utf8(client.read_to_end()).expect("text");
    let line = said.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
    line.unwrap_or_else(|| panic!("{name}: {said}")).to_owned()
}

/// Ends a process when the test does.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.kill().expect("it is ours");
        self.0.wait().expect("it ends");
    }
}

#[test]
fn a_server_without_tcp_answers_datagrams() {
    for io in backends() {
        let folder = tempfile::tempdir().expect("a folder");
        let ports = folder.path().join("ports");
        let mut command = Command::new(program());
        command.env("MEMCACHED_PORT_FILENAME", &ports).args(["serve", "-p", "0", "-U", "-1"]);
        command.args(["-t", "2", "--io", io]).stdin(Stdio::null());
        let _ends = Ends(command.spawn().expect("it starts"));
        wait_until("a port file", || ports.exists());
        let told = fs::read_to_string(&ports).expect("it is there");
        let port = told.strip_prefix("UDP INET: ").and_then(|rest| rest.trim_end().parse().ok());
        let mut client = UdpClient::at(port.unwrap_or_else(|| panic!("one line: {told}")));
        assert_eq!(client.ask(&set("key", b"value")), b"STORED\r\n");
        assert_eq!(client.ask(b"mg key v\r\n"), b"VA 5\r\nvalue\r\n");
    }
}

#[test]
fn the_sockets_of_datagrams_are_told() {
    let (server, port) = start(&["-t", "2"]);
    let said = server.connect().ask("stats conns\r\n", "END\r\n");
    let count = |ending: &str| said.lines().filter(|line| line.ends_with(ending)).count();
    assert_eq!(count(&format!(":addr udp:127.0.0.1:{port}")), 2, "one for each thread: {said}");
    assert_eq!((count(":UDP UDP"), count(":state conn_listening")), (2, 1), "{said}");
    assert_eq!(count(":state conn_parse_cmd"), 1, "the client that asks: {said}");
}

/// A line names a client of UDP by the descriptor of its socket, as `stats conns` shows it.
#[test]
fn a_watcher_gets_the_lines_of_requests_over_udp() {
    for io in backends() {
        let (server, port) = start(&["-t", "2", "--io", io]);
        let mut watcher = server.connect();
        watcher.send("watch fetchers mutations\r\n");
        assert_eq!(watcher.read_line(), b"OK\r\n");
        let mut client = UdpClient::at(port);
        assert_eq!(client.ask(&set("p:a", b"value")), b"STORED\r\n");
        assert_eq!(client.ask(b"get p:a\r\n"), b"VALUE p:a 0 5\r\nvalue\r\nEND\r\n");
        let lines = String::from_utf8(watcher.read_lines(3)).expect("text");
        let said = server.connect().ask("stats conns\r\n", "END\r\n");
        let sockets = said.lines().filter_map(|line| line.strip_suffix(":UDP UDP"));
        let sockets: Vec<&str> = sockets.filter_map(|line| line.strip_prefix("STAT ")).collect();
        assert_eq!(sockets.len(), 2, "{said}");
        for line in lines.lines() {
            let descriptor = line.split(" cfd=").nth(1).and_then(|rest| rest.split(' ').next());
            assert!(sockets.contains(&descriptor.expect("a client")), "{line}: {said}");
        }
        let told = server.connect().ask("stats detail dump\r\n", "END\r\n");
        assert_eq!(told, "PREFIX p get 1 hit 1 set 1 del 0\r\nEND\r\n");
    }
}

#[test]
fn requests_over_udp_are_answered_on_every_backend() {
    for io in backends() {
        for reads in ["--reads=crew", "--reads=erew"] {
            let (server, port) = start(&["-t", "3", "--io", io, reads]);
            let mut clients: Vec<UdpClient> = (0..20).map(|_| UdpClient::at(port)).collect();
            for (number, client) in clients.iter_mut().enumerate() {
                let (key, value) =
                    (format!("key-{number}"), vec![b'a' + number as u8; 50 * number]);
                assert_eq!(client.ask(&set(&key, &value)), b"STORED\r\n");
                assert_eq!(server.connect().get(&key).as_ref(), Some(&value));
            }
            // Not in the order in which they were stored.
            for (number, client) in clients.iter_mut().rev().enumerate() {
                let value = vec![b'a' + number as u8; 50 * number];
                let line = format!("VALUE key-{number} 0 {}\r\n", value.len());
                let hit = [line.as_bytes(), &value, b"\r\nEND\r\n"];
                assert_eq!(client.ask(format!("get key-{number}\r\n").as_bytes()), hit.concat());
                assert_eq!(client.ask(b"mg none v\r\nmn\r\n"), b"EN\r\nMN\r\n");
            }
            let noop = [&[0x80, 0x0a][..], &[0; 22]].concat();
            let reply = clients[0].ask(&noop);
            assert_eq!(reply[..2], [0x81, 0x0a]);
            assert_eq!(setting(&server, "settings", "udpport"), port.to_string());
            assert_eq!(setting(&server, "kachel", "kachel_io"), io);
            let asked: u64 =
                setting(&server, "kachel", "kachel_udp_datagrams").parse().expect("a number");
            assert!(asked >= 61, "{asked}");
        }
    }
}

#[test]
fn some_requests_get_no_reply_and_some_are_refused() {
    for io in backends() {
        let (server, port) = start(&["-t", "2", "--io", io]);
        let mut client = UdpClient::at(port);
        for silent in [&b"get a"[..], b"quit\r\n", b"delete none noreply\r\n"] {
            client.send(silent);
        }
        assert!(client.is_silent());
        // A datagram that is longer than the server takes.
        let incomplete = b"SERVER_ERROR request not whole in its datagram; use TCP\r\n";
        assert_eq!(client.ask(&set("long", &vec![b'v'; 40_000])), incomplete);
        server.connect().set("large", &vec![b'v'; 100_000]);
        let too_long = b"SERVER_ERROR reply too long for UDP; use TCP\r\n";
        assert_eq!(client.ask(b"get large\r\n"), too_long);
        assert_eq!(setting(&server, "kachel", "kachel_udp_too_long"), "1");
    }
}

#[test]
fn a_reply_may_have_as_many_datagrams_as_the_operator_allows() {
    for io in backends() {
        let (server, port) = start(&["--udp-reply-datagrams", "16", "--io", io]);
        server.connect().set("large", &vec![b'v'; 22_000]);
        let mut client = UdpClient::at(port);
        let hit = [b"VALUE large 0 22000\r\n", &vec![b'v'; 22_000][..], b"\r\nEND\r\n"].concat();
        assert_eq!(client.ask(b"get large\r\n"), hit);
        assert_eq!(setting(&server, "settings", "kachel_udp_reply_datagrams"), "16");
    }
}

/// Many clients at once: each gets the replies to its own requests.
#[test]
fn clients_at_once_get_their_own_replies() {
    for io in backends() {
        let (_server, port) = start(&["-t", "2", "--io", io]);
        let client = move |number: usize| {
            let mut client = UdpClient::at(port);
            for round in 0..200 {
                let (key, value) = (format!("k{number}"), format!("{number}-{round}"));
                assert_eq!(client.ask(&set(&key, value.as_bytes())), b"STORED\r\n");
                let hit = format!("VALUE {key} 0 {}\r\n{value}\r\nEND\r\n", value.len());
                assert_eq!(client.ask(format!("get {key}\r\n").as_bytes()), hit.as_bytes());
            }
        };
        let clients: Vec<_> = (0..16).map(|number| thread::spawn(move || client(number))).collect();
        clients.into_iter().for_each(|client| client.join().expect("its replies are right"));
    }
}

#[test]
fn a_key_is_served_at_the_udp_port_of_its_shard_by_no_other_shard() {
    let shards = SHARDS.to_string();
    for io in backends() {
        let (server, port) = start(&["--udp-port-per-shard", "-t", &shards, "--io", io]);
        let ports = setting(&server, "settings", "kachel_udp_shard_ports");
        assert_eq!(ports, format!("{}-{}", port + 1, port + SHARDS));
        let hasher = KeyHasher::new(Seeds { hash_keys: [1, 2] }, SHARDS);
        let elsewhere = || -> u64 {
            let names = ["kachel_parked", "kachel_reads_beside", "kachel_writes_beside"];
            let count =
                |name: &&str| setting(&server, "kachel", name).parse::<u64>().expect("a number");
            names.iter().map(count).sum()
        };
        let before = elsewhere();
        let mut clients: Vec<UdpClient> =
            (0..SHARDS).map(|n| UdpClient::at(port + 1 + n)).collect();
        for number in 0..200 {
            let key = format!("key-{number}");
            let owner = hasher.owner(hasher.key(key.as_bytes()).hashes());
            let client = &mut clients[owner.number()];
            assert_eq!(client.ask(&set(&key, b"17")), b"STORED\r\n");
            assert_eq!(client.ask(format!("incr {key} 5\r\n").as_bytes()), b"22\r\n");
        }
        assert_eq!(elsewhere(), before, "{io}");
        // At the port of all, and at a wrong port, a key is served, too.
        assert_eq!(UdpClient::at(port).ask(b"get key-1\r\n"), b"VALUE key-1 0 2\r\n22\r\nEND\r\n");
        for client in &mut clients {
            assert_eq!(client.ask(b"get key-1\r\n"), b"VALUE key-1 0 2\r\n22\r\nEND\r\n");
        }
    }
}

/// A datagram from a port of the server itself, as two servers would exchange them without end.
#[test]
fn what_comes_from_a_port_of_the_server_is_not_answered() {
    let (_server, port) = start(&["-l", "127.0.0.1", "-t", "2"]);
    let other = SocketAddr::from((Ipv4Addr::new(127, 0, 0, 2), port));
    let udp = UdpSocket::bind(other).expect("another address of the machine");
    let mut client = UdpClient::with(udp, port);
    client.send(b"get a\r\n");
    assert!(client.is_silent());
    assert_eq!(UdpClient::at(port).ask(b"get a\r\n"), b"END\r\n");
}

#[test]
fn the_files_of_ports_have_those_of_udp_and_a_taken_port_is_an_error() {
    let taken = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    let port = taken.local_addr().expect("it is bound").port().to_string();
    let options = ["-l", "127.0.0.1", "-U", &port];
    let ended = Launch::memcached(program(), &options).try_start_at(None).err();
    let said = ended.expect("the port is taken").said;
    assert!(said.contains(&format!("cannot listen on UDP 127.0.0.1:{port}")), "{said}");
    let (first, port) = start(&["-l", "127.0.0.1", "-t", "2"]);
    let port = port.to_string();
    let options = ["-l", "127.0.0.1", "-U", &port, "-t", "2"];
    let ended = Launch::memcached(program(), &options).try_start_at(None).err();
    let said = ended.expect("another server has the port").said;
    assert!(said.contains("cannot listen on UDP"), "{said}");
    drop(first);
}

#[test]
fn udp_and_logins_exclude_each_other() {
    let options = ["-U", "22345", "-Y", "/none/such"];
    let ended = Launch::memcached(program(), &options).try_start_at(None).err();
    let said = ended.expect("it does not start").said;
    assert!(said.contains("a datagram cannot log in"), "{said}");
}

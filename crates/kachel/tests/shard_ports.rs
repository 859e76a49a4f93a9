//! `--shard-ports`: a client that picks the port of a key's shard is served by that shard alone.
//!
//! The expected shard of a key comes from `docs/steering.md` and from `KeyHasher`, under other
//! secret keys than the server's.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use kachel_engine::{KeyHasher, PARTITIONS, Seeds};
use kachel_testkit::{Client, Ended, Launch, Server, user, wait_until};

const SHARDS: u16 = 4;
const KEYS: usize = 400;
/// Starts until the ports are free: another process may take one between the look and the start.
const STARTS_MAX: usize = 20;

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_kachel"))
}

/// Listeners on a port and on `more` ports after it.
fn free_ports(more: u16) -> Vec<TcpListener> {
    loop {
        let listen = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
        let first = listen(0).expect("a port");
        let port = first.local_addr().expect("an address").port();
        let rest = (1..=more).map(|n| port.checked_add(n).and_then(|port| listen(port).ok()));
        if let Some(rest) = rest.collect::<Option<Vec<_>>>() {
            return std::iter::once(first).chain(rest).collect();
        }
    }
}

fn port_of(listener: &TcpListener) -> u16 {
    listener.local_addr().expect("an address").port()
}

/// A server of [`SHARDS`] threads, with a port for each.
fn start(options: &[&str]) -> Server {
    let threads = SHARDS.to_string();
    let options = [&["--shard-ports", "-v", "-t", &threads], options].concat();
    for _ in 0..STARTS_MAX {
        let port = port_of(&free_ports(SHARDS)[0]).to_string();
        match Launch::memcached(program(), &options).try_start_at(Some(&port)) {
            Ok(server) => return server,
            Err(Ended { said, .. }) => assert!(said.contains("cannot listen"), "{said}"),
        }
    }
    panic!("no ports are free");
}

/// The first port of the shards, as the server says it.
fn first_port(server: &Server) -> u16 {
    let mut client = server.connect();
    client.send("stats settings\r\nquit\r\n");
    let said = String::from_utf8(client.read_to_end()).expect("text");
    let setting = |name| {
        let line = said.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
        line.unwrap_or_else(|| panic!("{name}: {said}")).to_owned()
    };
    assert_eq!(setting("kachel_partitions"), PARTITIONS.to_string());
    assert_eq!(setting("num_threads"), SHARDS.to_string());
    let ports = setting("kachel_shard_ports");
    let (first, last) = ports.split_once('-').expect("two ports");
    let [first, last] = [first, last].map(|port| port.parse::<u16>().expect("a port"));
    assert_eq!((first, last), (server.port() + 1, server.port() + SHARDS));
    first
}

/// The shard that owns a key. The secret keys play no part in it.
fn shard_of(key: &str, shards: u16) -> u16 {
    let hasher = KeyHasher::new(Seeds { hash_keys: [1, 2] }, shards);
    hasher.owner(hasher.key(key.as_bytes()).hashes()).0
}

/// The number of requests that needed another shard than the one that serves their client.
fn elsewhere(client: &mut Client) -> u64 {
    let stats = client.stats();
    let names = ["kachel_parked", "kachel_reads_beside", "kachel_writes_beside"];
    let count = |name: &&str| {
        let count = stats.get(*name).unwrap_or_else(|| panic!("{name}: {stats:?}"));
        count.parse::<u64>().expect("a number")
    };
    names.iter().map(count).sum()
}

/// Changes and reads a key in several ways.
fn use_key(client: &mut Client, key: &str) {
    client.set(key, b"17");
    assert_eq!(client.get(key).as_deref(), Some(&b"17"[..]));
    assert_eq!(client.ask(format!("incr {key} 5\r\n"), "\n"), "22\r\n");
    assert_eq!(client.ask(format!("mg {key} v t T60\r\n"), "22\r\n"), "VA 2 t-1\r\n22\r\n");
    assert_eq!(client.ask(format!("delete {key}\r\n"), "\n"), "DELETED\r\n");
    let large = vec![b'v'; 40 << 10];
    client.set(key, &large);
    assert_eq!(client.get(key).as_ref(), Some(&large));
}

/// The request is one that the binary protocol answers in binary, and the others as a line that is
/// too short.
#[test]
fn the_ports_of_shards_speak_the_protocol_of_the_port_of_all() {
    let noop = [&[0x80, 0x0a][..], &[0; 22]].concat();
    for (protocol, reply) in [("ascii", b'C'), ("negotiating", 0x81)] {
        let server = start(&["-l", &format!("proto[{protocol}]:127.0.0.2")]);
        for port in [server.port(), server.port() + 1] {
            let at = (Ipv4Addr::new(127, 0, 0, 2), port);
            let mut client = TcpStream::connect(at).expect("it listens");
            client.set_read_timeout(Some(Duration::from_secs(60))).expect("it is not zero");
            client.write_all(&noop).expect("it is taken");
            let mut first = [0];
            client.read_exact(&mut first).expect("it is answered");
            assert_eq!(first, [reply], "{protocol}");
        }
    }
}

#[test]
fn a_key_is_served_at_its_own_port_by_no_other_shard() {
    for reads in ["--reads=crew", "--reads=erew"] {
        let server = start(&[reads]);
        let first = first_port(&server);
        let mut other = server.connect();
        let before = elsewhere(&mut other);
        let mut clients: Vec<Client> = (0..SHARDS).map(|shard| Client::at(first + shard)).collect();
        for number in 0..KEYS {
            let key = format!("key-{number}");
            use_key(&mut clients[usize::from(shard_of(&key, SHARDS))], &key);
        }
        assert_eq!(elsewhere(&mut other), before, "{reads}");
        // At another port the key is served, too, but another shard has it.
        let other_shard = (shard_of("key-1", SHARDS) + 1) % SHARDS;
        use_key(&mut clients[usize::from(other_shard)], "key-1");
        assert!(elsewhere(&mut other) > before, "{reads}");
    }
}

#[test]
fn a_client_of_a_shard_stays_when_others_gather() {
    let server = start(&["--cores=auto"]);
    let first = first_port(&server);
    let keys: Vec<String> = (0..SHARDS)
        .map(|shard| {
            let mut keys = (0..).map(|number| format!("key-{number}"));
            keys.find(|key| shard_of(key, SHARDS) == shard).expect("a shard has keys")
        })
        .collect();
    let mut clients: Vec<Client> = (0..SHARDS).map(|shard| Client::at(first + shard)).collect();
    let mut ask_all = || {
        for (client, key) in clients.iter_mut().zip(&keys) {
            assert_eq!(client.ask(format!("mg {key}\r\n"), "\n"), "EN\r\n");
        }
    };
    let mut other = server.connect();
    wait_until("cores that sleep", || {
        ask_all();
        other.stat("kachel_awake_cores") < u64::from(SHARDS)
    });
    // Several rounds of balancing.
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(400) {
        ask_all();
    }
    assert_eq!(elsewhere(&mut other), 0);
}

#[test]
fn the_examples_of_the_manual_are_right() {
    let manual = include_str!("../../../docs/steering.md");
    let rows = manual.lines().filter_map(|line| line.strip_prefix("| `")).filter_map(|row| {
        let cells: Vec<&str> = row.split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        let [key, partition, shard, ..] = cells[..] else { return None };
        Some((key, partition.parse().ok()?, shard.parse().ok()?))
    });
    let rows: Vec<(&str, u16, u16)> = rows.collect();
    assert!(rows.len() >= 4, "{rows:?}");
    for (key, partition, shard) in rows {
        // With a shard for each partition, both numbers are the same.
        let partitions = u16::try_from(PARTITIONS).expect("4,096");
        assert_eq!((shard_of(key, partitions), shard_of(key, 4)), (partition, shard), "{key}");
    }
}

#[test]
fn ports_that_the_server_cannot_have_end_it_with_the_reason() {
    let output = |options: &[&str]| {
        let mut command = Command::new(program());
        command.args(["serve", "--shard-ports", "-t", "2"]).args(options).args(user());
        command.output().expect("the binary starts")
    };
    for (options, why) in [
        (&["-p", "-1"][..], "-p must be a port"),
        (&["-p", "65534"], "there are ports up to 65535"),
        (&["-s", "/tmp/no-socket"], "with -s there is no TCP"),
        (&["-p", "11300", "-l", "127.0.0.1:11302,127.0.0.1"], "port 11302 of -l"),
    ] {
        let output = output(options);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{options:?}: {said}");
        assert!(said.contains("--shard-ports: ") && said.contains(why), "{options:?}: {said}");
    }
    for _ in 0..STARTS_MAX {
        let mut ports = free_ports(2);
        let taker = ports.pop().expect("three ports");
        let [base, taken] = [&ports[0], &taker].map(port_of);
        drop(ports);
        let output = output(&["-p", &base.to_string()]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(71), "{said}");
        assert!(said.contains("cannot listen on 127.0.0.1:"), "{said}");
        let sentence = format!("--shard-ports: cannot listen on 127.0.0.1:{taken}");
        if said.contains(&sentence) {
            return;
        }
        // Another process has taken one of the other ports meanwhile.
    }
    panic!("no ports are free");
}

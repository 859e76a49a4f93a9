//! Measures the cost of TLS: processor time of the server for each request and each handshake, with
//! and without TLS.
//!
//! Upstream:   a person: `cargo run --release -p kachel --features tls --example tls_cost`.
//! Downstream: a server process (`target/release/kachel`, or the program that is named), and
//!             clients on threads of this one.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kachel_testkit::{Authority, CertificateFiles, Launch, Server, TLS_VERSIONS};
use rustls::StreamOwned;
use rustls::client::{ClientConfig, ClientConnection, Resumption};

const CLIENTS: usize = 4;
/// How long each row is measured.
const TIME: Duration = Duration::from_secs(3);

/// A connection, with or without TLS.
trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

fn connect(port: u16, config: Option<&Arc<ClientConfig>>) -> Box<dyn Stream> {
    let socket = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    socket.set_nodelay(true).expect("a socket");
    let Some(config) = config else { return Box::new(socket) };
    let name = "localhost".try_into().expect("a name");
    let connection = ClientConnection::new(Arc::clone(config), name).expect("a client");
    Box::new(StreamOwned::new(connection, socket))
}

/// Runs `work` on each client's thread again and again. Returns how often in all, and the processor
/// time of the server.
fn measure<T: Send>(
    server: &Server,
    clients: &mut [T],
    work: impl Fn(&mut T) + Sync,
) -> (u64, Duration) {
    let (before, began) = (server.processor_time(), Instant::now());
    let count = std::thread::scope(|scope| {
        let threads: Vec<_> = clients
            .iter_mut()
            .map(|client| {
                let work = &work;
                scope.spawn(move || {
                    let mut count = 0;
                    while began.elapsed() < TIME {
                        work(client);
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    });
    (count, server.processor_time() - before)
}

fn tell(what: &str, (count, time): (u64, Duration), of_each: u64) {
    let count = count * of_each;
    let each_ns = time.as_nanos() / u128::from(count.max(1));
    println!("| {what} | {} a second | {each_ns} ns |", count / TIME.as_secs());
}

fn main() {
    let program =
        std::env::args_os().nth(1).map_or_else(|| "target/release/kachel".into(), PathBuf::from);
    let (authority, folder) = (Authority::new(), tempfile::tempdir().expect("a folder"));
    let CertificateFiles { certificate, key } = authority.certify_server(folder.path(), "server");
    let files = format!("ssl_chain_cert={},ssl_key={}", certificate.display(), key.display());
    println!("| clients, requests | rate | processor time of the server for each |\n|---|---|---|");
    for version in [None, Some(TLS_VERSIONS[0]), Some(TLS_VERSIONS[1])] {
        let mut options = vec!["-t", "1", "-m", "256"];
        if version.is_some() {
            options.extend(["-Z", "-o", &files, "-o", "ssl_session_cache"]);
        }
        let server = Launch::memcached(Path::new(&program), &options).start();
        let config = version.map(|version| Arc::new(authority.client(&[version], None)));
        let name = version.map_or("without TLS".to_string(), |v| format!("{:?}", v.version));
        let port = server.port();
        let mut clients: Vec<Box<dyn Stream>> =
            (0..CLIENTS).map(|_| connect(port, config.as_ref())).collect();
        for (bytes, pipelined) in [(100, 1), (100, 50), (4_000, 1), (100_000, 1)] {
            let set = format!("set a{bytes} 0 0 {bytes}\r\n{}\r\n", "x".repeat(bytes));
            clients[0].write_all(set.as_bytes()).expect("taken");
            clients[0].read_exact(&mut [0; 8]).expect("stored");
            let request = format!("get a{bytes}\r\n").repeat(pipelined);
            let reply = format!("VALUE a{bytes} 0 {bytes}\r\n").len() + bytes + "\r\nEND\r\n".len();
            let measured = measure(&server, &mut clients, |client| {
                client.write_all(request.as_bytes()).expect("taken");
                client.read_exact(&mut vec![0; reply * pipelined]).expect("a reply");
            });
            let what = format!("{name}: get of {bytes} bytes, {pipelined} at a time");
            tell(&what, measured, pipelined as u64);
        }
        drop(clients);
        let mut whole = config.as_deref().cloned();
        if let Some(config) = &mut whole {
            config.resumption = Resumption::disabled();
        }
        for (what, config) in [("connections", whole.map(Arc::new)), ("resumed", config)] {
            let mut clients = vec![(); CLIENTS];
            let measured = measure(&server, &mut clients, |()| {
                let mut stream = connect(port, config.as_ref());
                stream.write_all(b"mn\r\n").expect("taken");
                stream.read_exact(&mut [0; 4]).expect("a reply");
            });
            tell(&format!("{name}: {what} with one request"), measured, 1);
        }
    }
}

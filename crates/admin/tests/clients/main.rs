//! The admin address over its socket: answers, refusals, and clients that misbehave. `live` has the
//! updates and the login of the live page.
//!
//! Upstream:   a server that is not there: [`Fake`] tells what the tests want.
//! Downstream: `kachel_admin::AdminAddress`, on loopback.
//!
//! Invariants:
//! - I1  No test judges a time. A client that waits for its connection to be closed waits for the
//!   time limit of the server.

mod live;

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use kachel_admin::{AdminAddress, AdminListener, AdminSource, AdminToken};
use kachel_testkit::{
    http_ask, http_connect, http_get, http_get_with, http_read_to_end, http_status, wait_until,
};

/// The most connections at once, as `limits` has it.
const CONNECTIONS_MAX: usize = 64;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// A server with three shards that sleep until they are woken.
#[derive(Default)]
struct Fake {
    ticks: [AtomicU64; 3],
    /// The shard that makes no tick when it is woken; 0 means none of the others.
    stopped: AtomicUsize,
    wakes: AtomicU64,
    is_busy: AtomicBool,
    reason: Mutex<Option<&'static str>>,
    metrics: Mutex<Vec<u8>>,
    /// How often the metrics were asked for.
    asked: AtomicU64,
    /// How many shards have stopped, as the metrics were last told.
    told_stopped: AtomicUsize,
    /// The samples that were taken.
    samples: AtomicU64,
    /// Bytes of an update besides its number.
    padding: AtomicUsize,
}

#[derive(Clone, Default)]
struct Server(Arc<Fake>);

impl AdminSource for Server {
    fn metrics(&self, stopped_shards: usize, to: &mut Vec<u8>) {
        self.0.asked.fetch_add(1, Ordering::Relaxed);
        self.0.told_stopped.store(stopped_shards, Ordering::Relaxed);
        to.extend_from_slice(&self.0.metrics.lock().expect("no panic"));
    }

    fn ticks(&self, ticks: &mut Vec<u64>) {
        if self.0.is_busy.load(Ordering::Relaxed) {
            self.0.ticks.iter().for_each(|shard| _ = shard.fetch_add(1, Ordering::Relaxed));
        }
        ticks.clear();
        ticks.extend(self.0.ticks.iter().map(|shard| shard.load(Ordering::Relaxed)));
    }

    fn wake(&self, shard: usize) {
        self.0.wakes.fetch_add(1, Ordering::Relaxed);
        if shard == 0 || shard != self.0.stopped.load(Ordering::Relaxed) {
            self.0.ticks[shard].fetch_add(1, Ordering::Relaxed);
        }
    }

    fn sample(&self, _: &[usize]) {
        self.0.samples.fetch_add(1, Ordering::Relaxed);
    }

    fn now(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(self.0.samples.load(Ordering::Relaxed).to_string().as_bytes());
        to.resize(to.len() + self.0.padding.load(Ordering::Relaxed), b' ');
    }

    fn history(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(b"[1,2]");
    }

    fn not_ready(&self) -> Option<&'static str> {
        *self.0.reason.lock().expect("no panic")
    }
}

fn token(text: &str) -> AdminToken {
    AdminToken::read(text.as_bytes(), [9, 10]).expect("a token")
}

fn start(server: &Server, token: Option<AdminToken>) -> (AdminAddress, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("it is bound").port();
    let hosts = vec!["cache.example".to_string()];
    let admin = AdminAddress::start(AdminListener::Tcp(listener), hosts, token, server.clone());
    (admin.expect("a thread"), port)
}

/// The answer about the health, once it has this status. A result is told again for a moment.
fn health_of(port: u16, wanted: u16) -> String {
    let mut answer = String::new();
    wait_until("the health", || {
        answer = http_get(port, "/health");
        assert!(matches!(http_status(&answer), 200 | 503), "{answer}");
        http_status(&answer) == wanted
    });
    answer
}

#[test]
fn what_is_there_is_told_and_never_stored() {
    let server = Server::default();
    server.0.metrics.lock().expect("no panic").extend_from_slice(b"memcached_up 1\n");
    let (_admin, port) = start(&server, None);
    let metrics = http_get(port, "/metrics");
    assert!(metrics.starts_with("HTTP/1.1 200 OK\r\n"), "{metrics}");
    assert!(metrics.ends_with("\r\n\r\nmemcached_up 1\n"), "{metrics}");
    for header in [
        "content-type: text/plain; version=0.0.4; charset=utf-8",
        "cache-control: no-store",
        "x-content-type-options: nosniff",
        "content-security-policy: default-src 'none'",
        "connection: close",
        "content-length: 15",
    ] {
        assert!(metrics.contains(&format!("\r\n{header}")), "{header}: {metrics}");
    }
    let head = http_ask(http_connect(port), b"HEAD /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(http_status(&head) == 200 && head.ends_with("\r\n\r\n"), "{head}");
    assert!(http_get(port, "/").contains("/ready"));
    assert_eq!(http_status(&http_get(port, "/metrics?x=y")), 200);
    for path in ["/metrics/", "//metrics", "/../metrics", "/%6detrics", "/favicon.ico", "/..%2f/x"]
    {
        assert_eq!(http_status(&http_get(port, path)), 404, "{path}");
    }
}

#[test]
fn readiness_has_a_reason() {
    let server = Server::default();
    let (_admin, port) = start(&server, None);
    assert_eq!(http_status(&http_get(port, "/ready")), 200);
    *server.0.reason.lock().expect("no panic") = Some("draining");
    let answer = http_get(port, "/ready");
    assert!(http_status(&answer) == 503 && answer.ends_with("\r\n\r\ndraining\n"), "{answer}");
    assert_eq!(http_status(&http_get(port, "/health")), 200, "it works");
}

#[test]
fn a_shard_that_makes_no_tick_is_named_until_it_makes_one() {
    let server = Server::default();
    let (_admin, port) = start(&server, None);
    assert_eq!(http_status(&http_get(port, "/health")), 200);
    assert_eq!(server.0.wakes.load(Ordering::Relaxed), 3, "each shard was woken once");
    server.0.stopped.store(1, Ordering::Relaxed);
    let answer = health_of(port, 503);
    assert!(answer.ends_with("\r\n\r\nshard 1 has not answered for 1 s\n"), "{answer}");
    assert_eq!(http_status(&http_get(port, "/metrics")), 200);
    assert_eq!(server.0.told_stopped.load(Ordering::Relaxed), 1, "the metrics have it, too");
    server.0.is_busy.store(true, Ordering::Relaxed);
    health_of(port, 200);
    let wakes = server.0.wakes.load(Ordering::Relaxed);
    server.0.is_busy.store(false, Ordering::Relaxed);
    health_of(port, 503);
    server.0.is_busy.store(true, Ordering::Relaxed);
    health_of(port, 200);
    let wakes = server.0.wakes.load(Ordering::Relaxed) - wakes;
    assert!(wakes % 3 == 0, "of the probes, those of the busy shards woke none: {wakes}");
}

/// A link on a page of another site; in a frame; to what only the page itself may ask for.
const LINK: &str = "GET / HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: cross-site\r\n\
                    Sec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n\r\n";
const LINK_IN_FRAME: &str = "GET / HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: cross-site\r\n\
                             Sec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: iframe\r\n\r\n";
const LINK_TO_FIGURES: &str = "GET /api/now HTTP/1.1\r\nHost: localhost\r\n\
                               Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n\
                               Sec-Fetch-Dest: document\r\n\r\n";

#[test]
fn only_reading_requests_of_a_known_host_are_answered() {
    let (_admin, port) = start(&Server::default(), None);
    for (head, wanted) in [
        ("GET / HTTP/1.1\r\nHost: cache.example:9000\r\n\r\n", 200),
        ("GET http://127.0.0.1/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 200),
        ("GET http://evil.example/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 421),
        ("GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421),
        ("GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421),
        ("GET /metrics HTTP/1.1\r\n\r\n", 421),
        ("GET /metrics HTTP/1.0\r\n\r\n", 200),
        ("GET /ready HTTP/1.0\r\nHost: evil.example\r\n\r\n", 421),
        ("GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 421),
        ("GET / HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: cross-site\r\n\r\n", 403),
        ("GET / HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n\r\n", 403),
        (LINK, 200),
        (LINK_IN_FRAME, 403),
        (LINK_TO_FIGURES, 403),
        ("GET /health HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n\r\n", 200),
        ("POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n", 405),
        ("DELETE / HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        ("CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        ("OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        ("GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello", 413),
        ("GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", 413),
        ("GET  / HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        ("GET / HTTP/9.9\r\nHost: localhost\r\n\r\n", 400),
        ("get a\r\n\r\n", 400),
    ] {
        let answer = http_ask(http_connect(port), head);
        assert_eq!(http_status(&answer), wanted, "{head:?}: {answer}");
    }
}

#[test]
fn junk_is_refused_and_what_follows_a_request_is_not_read() {
    let (_admin, port) = start(&Server::default(), None);
    let answers = |input: &[u8]| http_ask(http_connect(port), input).matches("HTTP/1.1 ").count();
    let head = b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n";
    assert!(answers(&head.repeat(1000)) <= 1, "a connection has one answer");
    assert!(answers(&[&head[..], &[0xFF; 100_000]].concat()) <= 1);
    let refused = |input: &[u8]| {
        let answer = http_ask(http_connect(port), input);
        assert!(matches!(http_status(&answer), 0 | 400 | 431), "{answer}");
    };
    refused(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
    refused(&[0; 1 << 20]);
    refused(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n");
    let long = format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "a".repeat(1 << 20));
    refused(long.as_bytes());
    let header = format!("X: {}\r\n", "a".repeat(1000));
    let long = format!("GET / HTTP/1.1\r\nHost: localhost\r\n{}\r\n", header.repeat(1000));
    refused(long.as_bytes());
    let many = format!("GET / HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "X: a\r\n".repeat(64));
    refused(many.as_bytes());
    let many = format!("GET / HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "X: a\r\n".repeat(63));
    assert_eq!(http_status(&http_ask(http_connect(port), many)), 200, "64 headers are allowed");
}

#[test]
fn slow_clients_are_closed_and_keep_nobody_out() {
    /// Each takes the memory of an answer here.
    const READERS: usize = 3;
    /// More than the kernel holds of an answer.
    const ANSWER_BYTES: usize = 32 << 20;
    let server = Server::default();
    server.0.metrics.lock().expect("no panic").resize(ANSWER_BYTES, b'#');
    let (_admin, port) = start(&server, None);
    let with = |sent: &[u8]| {
        let mut stream = http_connect(port);
        stream.write_all(sent).expect("it takes so little");
        stream
    };
    let head = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut slow: Vec<TcpStream> = (0..CONNECTIONS_MAX).map(|_| with(b"")).collect();
    let readers: Vec<TcpStream> = (0..READERS).map(|_| with(head)).collect();
    slow.extend((READERS + 1..CONNECTIONS_MAX).map(|_| with(&head[..20])));
    assert_eq!(http_status(&http_get(port, "/ready")), 200, "the newest is served");
    // I1: the server gives up the oldest for the newer ones, and these by its time limit. That of
    // the readers is over before that of the last half request.
    for stream in slow.into_iter().chain(readers) {
        assert!(http_read_to_end(stream).len() < ANSWER_BYTES, "it was closed before it read");
    }
    assert_eq!(http_status(&http_get(port, "/ready")), 200);
}

#[test]
fn one_that_asks_amid_a_burst_of_silent_clients_is_answered() {
    let server = Server::default();
    let (_admin, port) = start(&server, None);
    let silent = |count| -> Vec<TcpStream> { (0..count).map(|_| http_connect(port)).collect() };
    // The thread stands still in this answer, so the others wait for it in the kernel's queue.
    let held = server.0.metrics.lock().expect("no panic");
    let holder = std::thread::spawn(move || http_get(port, "/metrics"));
    wait_until("the held answer", || server.0.asked.load(Ordering::Relaxed) > 0);
    let before = silent(10);
    let mut asking = http_connect(port);
    asking.write_all(b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("sent");
    let after = silent(CONNECTIONS_MAX + 10);
    drop(held);
    let answer = String::from_utf8(http_read_to_end(asking)).expect("text");
    assert_eq!(http_status(&answer), 200, "{answer}");
    assert_eq!(http_status(&holder.join().expect("no panic")), 200);
    drop((before, after));
}

#[test]
fn only_the_token_lets_in_and_another_one_may_take_its_place() {
    let (admin, port) = start(&Server::default(), Some(token(TOKEN)));
    assert_eq!(http_status(&http_get(port, "/health")), 200);
    assert_eq!(http_status(&http_get(port, "/ready")), 200);
    let answer = http_get(port, "/metrics");
    assert!(http_status(&answer) == 401 && answer.contains("\r\nwww-authenticate: Bearer\r\n"));
    assert_eq!(http_status(&http_get(port, "/nothing")), 401, "nobody is told what is there");
    // More at once than wrong tokens could be checked while they wait.
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                assert_eq!(http_status(&http_get_with(port, "/metrics", TOKEN)), 200);
            });
        }
    });
    assert_eq!(http_status(&http_get_with(port, "/metrics", &TOKEN[1..])), 401);
    let other = TOKEN.to_ascii_uppercase();
    admin.set_token(token(&other));
    assert_eq!(http_status(&http_get_with(port, "/metrics", TOKEN)), 401);
    assert_eq!(http_status(&http_get_with(port, "/metrics", &other)), 200);
}

#[test]
fn the_right_token_gets_in_before_guesses_that_wait() {
    const GUESSERS: usize = 8;
    /// Tries of the one with the token. Each guesser may come between once more.
    const TRIES_MAX: usize = 2 * GUESSERS;
    let (_admin, port) = start(&Server::default(), Some(token(TOKEN)));
    let (must_end, limited) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let guess = || {
        let (must_end, limited) = (Arc::clone(&must_end), Arc::clone(&limited));
        std::thread::spawn(move || {
            let wrong = "f".repeat(32);
            while !must_end.load(Ordering::Relaxed) {
                let status = http_status(&http_get_with(port, "/metrics", &wrong));
                assert!(matches!(status, 401 | 429), "{status}");
                limited.fetch_add(u64::from(status == 429), Ordering::Relaxed);
            }
        })
    };
    let guessers: Vec<_> = (0..GUESSERS).map(|_| guess()).collect();
    wait_until("a guesser that waits in vain", || limited.load(Ordering::Relaxed) > 0);
    // While they go on, it is chance who is the newest when the next check is due.
    must_end.store(true, Ordering::Relaxed);
    let is_in = || http_status(&http_get_with(port, "/metrics", TOKEN)) == 200;
    assert!((0..TRIES_MAX).any(|_| is_in()), "it never got in");
    guessers.into_iter().for_each(|guesser| guesser.join().expect("no panic"));
}

#[test]
fn the_right_token_gets_in_after_ten_thousand_guesses_that_wait_for_no_answer() {
    const GUESSES: usize = 10_000;
    let (_admin, port) = start(&Server::default(), Some(token(TOKEN)));
    let wrong = "f".repeat(32);
    let head =
        format!("GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {wrong}\r\n\r\n");
    for number in 0..GUESSES {
        http_connect(port).write_all(head.as_bytes()).expect("sent");
        if number % 50 == 0 {
            // Behind the others, so that the queue of the kernel is not too short for them.
            assert_eq!(http_status(&http_get(port, "/ready")), 200);
        }
    }
    // Those that have gone do not wait, so the next check is for this one.
    assert_eq!(http_status(&http_get_with(port, "/", TOKEN)), 200);
}

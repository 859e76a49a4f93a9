//! The live page: its updates, its viewers, and the login of browsers.
//!
//! Invariants:
//! - I1  No test judges a time. A viewer that reads nothing waits for the time limit of the server.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::Ordering;

use kachel_testkit::{
    http_ask, http_connect, http_get, http_get_with, http_read_to_end, http_status, wait_until,
};

use crate::{CONNECTIONS_MAX, Server, TOKEN, start, token};

/// The most viewers, as `limits` has it.
const VIEWERS_MAX: usize = 20;

/// Asks for updates.
fn view(port: u16) -> TcpStream {
    let mut stream = http_connect(port);
    stream.write_all(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("sent");
    stream
}

/// Reads until `wanted` has come, or the end. Returns all that has come.
fn read_to(stream: &mut TcpStream, wanted: &str) -> String {
    let (mut read, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let text = String::from_utf8_lossy(&read).into_owned();
        let count = if text.contains(wanted) { 0 } else { stream.read(&mut piece).unwrap_or(0) };
        if count == 0 {
            return text;
        }
        read.extend_from_slice(&piece[..count]);
    }
}

/// Whether the server has a place for one more viewer now.
fn has_place(port: u16) -> bool {
    http_status(&read_to(&mut view(port), "data: ")) == 200
}

#[test]
fn a_viewer_gets_an_update_at_once_and_one_for_each_sample() {
    let server = Server::default();
    let (_admin, port) = start(&server, None);
    wait_until("a sample", || server.0.samples.load(Ordering::Relaxed) > 0);
    let mut viewer = view(port);
    let head = read_to(&mut viewer, "\r\n\r\n");
    for header in ["content-type: text/event-stream", "cache-control: no-store"] {
        assert!(head.contains(&format!("\r\n{header}\r\n")), "{head}");
    }
    let sample = server.0.samples.load(Ordering::Relaxed);
    let later = read_to(&mut viewer, &format!("data: {}\n\n", sample + 2));
    let begin = head + &later;
    assert!(begin.contains("retry: 2000\n\ndata: "), "{begin}");
    assert!(later.contains(&format!("data: {}\n\n", sample + 1)), "{later}");
    for (path, body) in [("/api/history", "[1,2]"), ("/api/now", "")] {
        let answer = http_get(port, path);
        assert!(answer.contains("\r\ncontent-type: application/json\r\n"), "{answer}");
        assert!(http_status(&answer) == 200 && answer.ends_with(body), "{answer}");
    }
    let old = b"GET /live HTTP/1.0\r\n\r\n";
    let mut stream = http_connect(port);
    stream.write_all(old).expect("sent");
    let answer = read_to(&mut stream, "data: ");
    assert!(http_status(&answer) == 200 && !answer.contains("chunked"), "{answer}");
    let head = http_ask(http_connect(port), b"HEAD /live HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(http_status(&head) == 200 && head.ends_with("\r\n\r\n"), "{head}");
}

#[test]
fn of_a_thousand_viewers_20_are_served_and_the_others_are_told() {
    let (_admin, port) = start(&Server::default(), None);
    let mut served = Vec::new();
    for _ in 0..1000 {
        let mut viewer = view(port);
        let answer = read_to(&mut viewer, "data: ");
        match http_status(&answer) {
            200 => served.push(viewer),
            503 => {
                let told = read_to(&mut viewer, "close one") + &answer;
                assert!(told.contains("20 pages get updates already"), "{told}");
            }
            other => panic!("{other}: {answer}"),
        }
    }
    assert_eq!(served.len(), VIEWERS_MAX);
    assert_eq!(http_status(&http_get(port, "/metrics")), 200, "others are answered");
    // All that was served still is: the next update comes.
    for viewer in &mut served {
        assert!(read_to(viewer, "data: ").contains("data: "));
    }
    served.pop();
    wait_until("a place", || has_place(port));
}

#[test]
fn a_viewer_that_reads_nothing_is_closed_and_little_waits_for_it() {
    /// More than the kernel takes of one update for a client that reads nothing.
    const UPDATE_BYTES: usize = 16 << 20;
    let server = Server::default();
    server.0.padding.store(UPDATE_BYTES, Ordering::Relaxed);
    let (_admin, port) = start(&server, None);
    let slow: Vec<TcpStream> = (0..2).map(|_| view(port)).collect();
    // I1: samples are a second apart, so the server closes both before they read.
    let begun = server.0.samples.load(Ordering::Relaxed);
    wait_until("the limit", || server.0.samples.load(Ordering::Relaxed) > begun + 7);
    for viewer in slow {
        let bytes = http_read_to_end(viewer).len();
        assert!(bytes < UPDATE_BYTES, "{bytes}: what was not sent is dropped");
    }
    server.0.padding.store(0, Ordering::Relaxed);
    let mut viewers: Vec<TcpStream> = (0..VIEWERS_MAX).map(|_| view(port)).collect();
    for viewer in &mut viewers {
        assert_eq!(http_status(&read_to(viewer, "data: ")), 200, "all places are free");
    }
    // Many silent clients of the same network end the oldest, which may be viewers (A1).
    let silent: Vec<TcpStream> = (0..CONNECTIONS_MAX).map(|_| http_connect(port)).collect();
    wait_until("a place", || has_place(port));
    drop(silent);
}

#[test]
fn the_page_is_one_answer_that_runs_only_its_own_script() {
    let (_admin, port) = start(&Server::default(), None);
    let answer = http_get(port, "/");
    let (head, page) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(head.contains("content-type: text/html; charset=utf-8"), "{head}");
    assert_eq!(head.matches("content-security-policy").count(), 1, "{head}");
    for source in ["default-src 'none'", "script-src 'sha256-", "style-src 'sha256-"] {
        assert!(head.contains(source), "{head}");
    }
    assert!(!head.contains("unsafe"), "{head}");
    assert!(page.starts_with("<!doctype html>") && page.contains("/metrics"), "{page}");
    let post = b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(http_status(&http_ask(http_connect(port), post)), 405, "no token is needed");
}

/// Sends a form with these headers.
fn log_in(port: u16, headers: &str, form: &str) -> String {
    let length = form.len();
    let head = format!("POST /login HTTP/1.1\r\nHost: localhost:{port}\r\n{headers}");
    http_ask(http_connect(port), format!("{head}Content-Length: {length}\r\n\r\n{form}"))
}

#[test]
fn a_browser_logs_in_by_a_form_and_carries_a_cookie() {
    let (admin, port) = start(&Server::default(), Some(token(TOKEN)));
    let form = http_get(port, "/");
    assert!(http_status(&form) == 401 && form.contains("action=\"/login\""), "{form}");
    assert!(form.contains("form-action 'self'") && !form.contains("script-src"), "{form}");
    assert!(http_get(port, "/login").contains("action=\"/login\""), "after a wrong token");
    for path in ["/live", "/api/now", "/api/history", &format!("/live?token={TOKEN}")] {
        assert_eq!(http_status(&http_get(port, path)), 401, "{path}");
    }
    let right = format!("token={TOKEN}\r\n");
    let answer = log_in(port, "Sec-Fetch-Site: same-origin\r\n", &right);
    assert!(http_status(&answer) == 303 && answer.contains("\r\nlocation: /\r\n"), "{answer}");
    let (_, cookie) = answer.split_once("\r\nset-cookie: ").expect("a cookie");
    let (cookie, _) = cookie.split_once("\r\n").expect("a line");
    assert!(cookie.ends_with("; Path=/; HttpOnly; SameSite=Strict"), "{cookie}");
    let (cookie, _) = cookie.split_once(';').expect("a value");
    assert!(!cookie.contains(TOKEN) && cookie.starts_with(&format!("kachel_{port}=")), "{cookie}");
    let with = |cookie: &str, path: &str| {
        let head = format!("GET {path} HTTP/1.1\r\nHost: localhost:{port}\r\nCookie: {cookie}");
        http_status(&http_ask(http_connect(port), format!("{head}\r\n\r\n")))
    };
    for path in ["/", "/api/now", "/api/history", "/metrics"] {
        assert_eq!(with(cookie, path), 200, "{path}");
    }
    assert_eq!(with(&cookie.replace("kachel", "other"), "/api/now"), 401);
    assert_eq!(with(&cookie[..cookie.len() - 1], "/api/now"), 401);
    assert_eq!(log_in(port, "", "token=ffff").matches("the token is wrong").count(), 1);
    assert_eq!(http_status(&log_in(port, "Origin: http://evil.example\r\n", &right)), 403);
    assert_eq!(http_status(&log_in(port, "", TOKEN)), 400, "there is no field");
    assert_eq!(http_status(&log_in(port, "", &format!("token={}", "f".repeat(2000)))), 400);
    let mut viewer = http_connect(port);
    let head = format!("GET /live HTTP/1.1\r\nHost: localhost:{port}\r\nCookie: {cookie}\r\n\r\n");
    viewer.write_all(head.as_bytes()).expect("sent");
    assert_eq!(http_status(&read_to(&mut viewer, "data: ")), 200);
    // The fault: a file that was read again ended all pages, also with the same token.
    admin.set_token(token(TOKEN));
    assert!(!read_to(&mut viewer, "data: ").contains("event: token"));
    admin.set_token(token(&TOKEN.to_uppercase()));
    // The end comes without another request, and before any limit of a viewer that reads.
    let last = String::from_utf8_lossy(&http_read_to_end(viewer)).into_owned();
    assert!(last.contains("event: token\ndata: replaced\n\n"), "{last}");
    assert_eq!(with(cookie, "/api/now"), 401, "another token has another session");
    let head = format!("GET / HTTP/1.1\r\nHost: localhost:{port}\r\nCookie: {cookie}\r\n\r\n");
    let form = http_ask(http_connect(port), head);
    assert!(form.contains("the token was replaced") && form.contains("<form"), "{form}");
    assert_eq!(http_status(&http_get_with(port, "/api/now", &TOKEN.to_uppercase())), 200);
}

/// The fault: each open page asked again with its cookie, which counted as wrong tokens. So the new
/// token was not checked for some seconds.
#[test]
fn pages_of_a_token_that_was_replaced_use_up_no_checks() {
    /// More than the checks of a minute.
    const PAGES: usize = 100;
    let (admin, port) = start(&Server::default(), Some(token(TOKEN)));
    let answer = log_in(port, "", &format!("token={TOKEN}\r\n"));
    let (_, cookie) = answer.split_once("\r\nset-cookie: ").expect("a cookie");
    let (cookie, _) = cookie.split_once(';').expect("a value");
    let other = TOKEN.to_uppercase();
    admin.set_token(token(&other));
    for _ in 0..PAGES {
        let head = format!(
            "GET /login?replaced HTTP/1.1\r\nHost: localhost:{port}\r\nCookie: {cookie}\r\n\r\n"
        );
        let form = http_ask(http_connect(port), head);
        assert!(http_status(&form) == 401 && form.contains("<form"), "{form}");
        assert!(form.contains("the token was replaced"), "{form}");
    }
    assert_eq!(http_status(&log_in(port, "", &format!("token={other}"))), 303);
}

//! A client of the admin address: one request over a connection.
//!
//! Upstream:   the tests.
//! Downstream: a stream that they have opened.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use super::waiting::PATIENCE;

/// A connection to the admin address.
///
/// # Panics
/// If nobody accepts it.
pub fn http_connect(port: u16) -> TcpStream {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let stream = TcpStream::connect(address).expect("it accepts");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
    stream
}

/// Everything that the server sends to a client that sends `request`, until it closes the
/// connection.
///
/// # Panics
/// If the answer is not UTF-8, or as [`http_read_to_end`].
pub fn http_ask(mut stream: impl Read + Write, request: impl AsRef<[u8]>) -> String {
    // A server that does not want the rest closes the connection meanwhile.
    let _may_be_closed = stream.write_all(request.as_ref());
    String::from_utf8(http_read_to_end(stream)).expect("text")
}

/// Everything that the server sends until it closes or resets the connection.
///
/// # Panics
/// If the server does neither within [`PATIENCE`], over a connection of [`http_connect`].
pub fn http_read_to_end(mut stream: impl Read) -> Vec<u8> {
    let mut received = Vec::new();
    match stream.read_to_end(&mut received) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("it is not closed"),
        Err(_) | Ok(_) => received,
    }
}

/// The answer to a GET of `path`.
///
/// # Panics
/// As [`http_connect`] and [`http_ask`].
pub fn http_get(port: u16, path: &str) -> String {
    http_ask(http_connect(port), format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
}

/// The answer to a GET of `path` with a token.
///
/// # Panics
/// As [`http_get`].
pub fn http_get_with(port: u16, path: &str, token: &str) -> String {
    let token = format!("Authorization: Bearer {token}");
    let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{token}\r\n\r\n");
    http_ask(http_connect(port), head)
}

/// The status of an answer; 0 if there is none.
///
/// # Panics
/// If the answer is not one of HTTP.
pub fn http_status(answer: &str) -> u16 {
    answer.split(' ').nth(1).map_or(0, |status| status.parse().expect("a status"))
}

//! The admin address over TLS, where it is not loopback.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

use kachel_testkit::{
    TLS_VERSIONS, http_ask, http_connect, http_read_to_end, http_status, wait_until,
};
use rustls::StreamOwned;
use rustls::client::ClientConnection;

use crate::site::Site;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

#[test]
fn another_address_has_the_certificate_of_the_server_and_needs_a_token() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("token");
    fs::write(&file, TOKEN).expect("written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("its permissions");
    let file = file.to_str().expect("text");
    let options = ["--admin", "0.0.0.0:0", "--admin-token-file", file];
    // Clients of the cache must have a certificate, those of the admin address have a token.
    let site = Site::start_with(&options, ",ssl_verify_mode=2");
    let port = site.server.admin_port();
    let config = site.config(&TLS_VERSIONS, None);
    let ask = |path: &str, more: &str| {
        let name = "localhost".try_into().expect("a name");
        let session = ClientConnection::new(Arc::clone(&config), name).expect("a client");
        let head = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{more}\r\n");
        http_status(&http_ask(StreamOwned::new(session, http_connect(port)), head))
    };
    wait_until("a server that is ready", || ask("/ready", "") == 200);
    assert_eq!(ask("/health", ""), 200);
    assert_eq!(ask("/metrics", ""), 401);
    assert_eq!(ask("/metrics", &format!("Authorization: Bearer {TOKEN}\r\n")), 200);
    let mut plain = http_connect(port);
    plain.write_all(b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("sent");
    let answer = http_read_to_end(plain);
    assert!(!answer.starts_with(b"HTTP"), "without TLS there is no answer");
}

//! Sessions that are resumed, and those that must not be.

use kachel_testkit::{TLS_VERSIONS, Validity};
use rustls::HandshakeKind;

use crate::site::{Site, TlsClient, raw};

fn kind(client: &TlsClient) -> HandshakeKind {
    client.stream.conn.handshake_kind().expect("a handshake")
}

#[test]
fn sessions_are_resumed_if_the_option_says_so() {
    for (words, resumed) in [("", false), (",ssl_session_cache", true)] {
        let site = Site::start_with(&["-t", "2"], words);
        for version in TLS_VERSIONS {
            let config = site.config(&[version], None);
            let first = site.try_connect(&config).expect("a connection");
            assert_ne!(kind(&first), HandshakeKind::Resumed);
            let mut second = site.try_connect(&config).expect("a connection");
            assert_eq!(kind(&second) == HandshakeKind::Resumed, resumed, "{version:?} {words}");
            second.set("a", b"value");
            assert_eq!(second.get("a").as_deref(), Some(&b"value"[..]));
        }
        let stored = site.connect().stats("ssl_new_sessions");
        assert_eq!(stored.is_some_and(|count| count > 0), resumed, "{stored:?}");
    }
}

/// A session that began without a certificate of the client is not resumed where one is needed, and
/// no session outlives the certificates.
#[test]
fn a_resumed_session_does_not_avoid_a_check() {
    let ports: Vec<u16> = {
        let taken = [(); 2].map(|()| std::net::TcpListener::bind("127.0.0.1:0").expect("a port"));
        taken.iter().map(|socket| socket.local_addr().expect("bound").port()).collect()
    };
    let [without, with] = ports[..] else { unreachable!("two ports") };
    let list = format!("btls:127.0.0.1:{without},mtls:127.0.0.1:{with}");
    let site = Site::start_with(&["-t", "1", "-l", &list], ",ssl_session_cache");
    for version in TLS_VERSIONS {
        let config = site.config(&[version], None);
        for _ in 0..2 {
            TlsClient::open(raw(without), &config).expect("a connection");
        }
        assert!(TlsClient::open(raw(with), &config).is_err(), "{version:?}");

        let certificate = site.authority.certify_client(Validity::Good);
        let config = site.config(&[version], Some(&certificate));
        let kinds: Vec<HandshakeKind> = (0..2)
            .map(|_| kind(&TlsClient::open(raw(with), &config).expect("a connection")))
            .collect();
        assert_eq!(kinds[1], HandshakeKind::Resumed, "{version:?}");
        let mut client = TlsClient::open(raw(with), &config).expect("a connection");
        assert_eq!(client.ask("refresh_certs\r\n", "\n"), "OK\r\n");
        let client = TlsClient::open(raw(with), &config).expect("a connection");
        assert_ne!(kind(&client), HandshakeKind::Resumed, "{version:?}, after new certificates");
    }
}

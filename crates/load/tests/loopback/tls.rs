//! The small server over TLS, and the generator's tests with it.
//!
//! Upstream:   `cargo test --features tls`.
//! Downstream: `Server::talk`, with the bytes of a session.

use std::cell::RefCell;
use std::io::{BufReader, Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use rustls::{HandshakeKind, ServerConfig, ServerConnection, StreamOwned};

use super::{Fault, SMALL, Server, load, number};

/// A server over TLS, until the test process ends.
struct Site {
    address: String,
    /// Its certificate, as a file.
    certificate: PathBuf,
    handshakes: Arc<Handshakes>,
    _folder: tempfile::TempDir,
}

#[derive(Default)]
struct Handshakes {
    full: AtomicUsize,
    resumed: AtomicUsize,
}

/// One direction of a session; both are used by one thread.
struct Half(Rc<RefCell<StreamOwned<ServerConnection, std::net::TcpStream>>>);

impl Read for Half {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.borrow_mut().read(buffer)
    }
}

impl Write for Half {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        self.0.borrow_mut().flush()
    }
}

fn serve() -> Site {
    let signed = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a key");
    let folder = tempfile::tempdir().expect("a folder");
    let certificate = folder.path().join("cert.pem");
    std::fs::write(&certificate, signed.cert.pem()).expect("written");
    let key = PrivateKeyDer::try_from(signed.signing_key.serialize_der()).expect("a key");
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring has suites of both")
        .with_no_client_auth()
        .with_single_cert(vec![signed.cert.der().clone()], key)
        .expect("they fit");
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let server = Arc::new(Server::new(Fault::None));
    let handshakes = Arc::new(Handshakes::default());
    let counts = Arc::clone(&handshakes);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (config, server, counts) =
                (Arc::clone(&config), Arc::clone(&server), Arc::clone(&counts));
            std::thread::spawn(move || {
                let session = ServerConnection::new(config).expect("valid");
                let mut stream = StreamOwned::new(session, stream);
                while stream.conn.is_handshaking() {
                    stream.conn.complete_io(&mut stream.sock)?;
                }
                let count = match stream.conn.handshake_kind() {
                    Some(HandshakeKind::Resumed) => &counts.resumed,
                    _ => &counts.full,
                };
                count.fetch_add(1, Ordering::Relaxed);
                let both = Rc::new(RefCell::new(stream));
                server.talk(BufReader::new(Half(Rc::clone(&both))), Half(both))
            });
        }
    });
    Site { address, certificate, handshakes, _folder: folder }
}

#[test]
fn every_protocol_works_over_tls() {
    let site = serve();
    let ca = format!("--tls --tls-ca {}", site.certificate.display());
    for words in [
        "--ratio 3:1 --depth 8 --value-size 1-300",
        "--protocol binary --depth 16",
        "--protocol meta --keys-per-get 20",
        "--keys 10 --value-size 100000 --ratio 1:1",
        "--idle 5",
    ] {
        let (code, run) = load(&site.address, &format!("{SMALL} --check {ca} {words}"));
        assert_eq!(code, ExitCode::SUCCESS, "{words}: {run}");
        assert!(number(&run, "/result/requests") > 0.0, "{words}: {run}");
        assert_eq!(number(&run, "/result/hit_ratio"), 1.0, "{words}: {run}");
    }
}

#[test]
fn a_certificate_that_nobody_signed_is_refused_unless_any_is_accepted() {
    let (site, other) = (serve(), serve());
    let wrong = format!("{SMALL} --tls --tls-ca {}", other.certificate.display());
    assert_eq!(load(&site.address, &wrong).0, ExitCode::from(2));
    let name = format!("--tls --tls-ca {} --tls-name localhost", site.certificate.display());
    assert_eq!(load(&site.address, &format!("{SMALL} {name}")).0, ExitCode::from(2));
    let any = format!("{SMALL} --tls --tls-insecure");
    assert_eq!(load(&site.address, &any).0, ExitCode::SUCCESS);
    let none = format!("{SMALL} --tls --tls-ca /no-such-file");
    assert_eq!(load(&site.address, &none).0, ExitCode::from(2));
}

#[test]
fn new_connections_resume_sessions_unless_told_not_to() {
    for (words, resumes) in [("", true), ("--tls-no-resumption", false)] {
        let (plain, site) = (super::serve(Fault::None), serve());
        let to = format!("--connect-rate 100 --connect-to {} --connect-tls", site.address);
        let ca = format!("--tls-ca {} {words}", site.certificate.display());
        let (code, run) = load(&plain, &format!("{SMALL} {to} {ca}"));
        assert_eq!(code, ExitCode::SUCCESS, "{run}");
        let handshakes = &site.handshakes;
        let (full, resumed) =
            (handshakes.full.load(Ordering::Relaxed), handshakes.resumed.load(Ordering::Relaxed));
        let count = number(&run, "/result/connects/times/count");
        assert_eq!((full + resumed) as f64, count, "{run}");
        assert_eq!(resumed > 0, resumes, "{full} full, {resumed} resumed");
    }
}

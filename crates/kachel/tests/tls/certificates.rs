//! Certificates: of clients, of the server, and new ones while clients connect.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kachel_testkit::{
    Authority, CertificateFiles, Client, Launch, TLS_VERSIONS, Unheard, Validity, tell, user,
    wait_until,
};

use crate::site::{Site, TlsClient, raw};

/// T06. Each kind of client at each mode.
#[test]
fn certificates_of_clients_are_checked_as_the_mode_says() {
    let stranger = Authority::new();
    for (mode, lets_in) in [(0, [true; 4]), (1, [true, true, false, false])]
        .into_iter()
        .chain([(2, [false, true, false, false]), (3, [false, true, false, false])])
    {
        let site = Site::start_with(&["-t", "1"], &format!(",ssl_verify_mode={mode}"));
        let certificates = [
            None,
            Some(site.authority.certify_client(Validity::Good)),
            Some(site.authority.certify_client(Validity::Expired)),
            Some(stranger.certify_client(Validity::Good)),
        ];
        let kinds = ["none", "good", "expired", "of a stranger"];
        for version in TLS_VERSIONS {
            for ((kind, certificate), wanted) in kinds.iter().zip(&certificates).zip(lets_in) {
                let config = site.config(&[version], certificate.as_ref());
                let is_in = site.try_connect(&config).is_ok();
                assert_eq!(is_in, wanted, "mode {mode}, {version:?}, {kind}");
            }
        }
    }
}

/// Without an authority no certificate is good, so a listener that requires one lets nobody in.
#[test]
fn without_an_authority_no_certificate_is_good() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().expect("a folder"));
    let CertificateFiles { certificate, key } = authority.certify_server(folder.path(), "server");
    let of_client = authority.certify_client(Validity::Good);
    let [certificate, key] = [&certificate, &key].map(|path| path.display());
    // With mode 1 a client may have none, but one that is shown must be good.
    for mode in [1, 2] {
        let words = format!("ssl_chain_cert={certificate},ssl_key={key},ssl_verify_mode={mode}");
        let program = Path::new(env!("CARGO_BIN_EXE_kachel"));
        let server = Launch::memcached(program, &["-Z", "-o", &words]).start();
        for certificate in [None, Some(&of_client)] {
            let config = Arc::new(authority.client(&TLS_VERSIONS, certificate));
            let is_in = TlsClient::open(raw(server.port()), &config).is_ok();
            assert_eq!(is_in, mode == 1 && certificate.is_none(), "mode {mode}");
        }
    }
}

/// The prefixes of listeners count more than the mode.
#[test]
fn each_listener_has_its_own_tls() {
    // Three ports that are free now. memcached's port file names only one of each family.
    let ports: Vec<u16> = {
        let taken = [(); 4].map(|()| std::net::TcpListener::bind("127.0.0.1:0").expect("a port"));
        taken.iter().map(|socket| socket.local_addr().expect("bound").port()).collect()
    };
    let [plain, without, with, usual] = ports[..] else { unreachable!("four ports") };
    let list = format!(
        "notls:127.0.0.1:{plain},btls:127.0.0.1:{without},mtls:127.0.0.1:{with},127.0.0.1:{usual}"
    );
    let site = Site::start_with(&["-t", "2", "-l", &list], ",ssl_verify_mode=2");
    let certificate = site.authority.certify_client(Validity::Good);
    let connects = |port, certified: bool| {
        let config = site.config(&TLS_VERSIONS, certified.then_some(&certificate));
        TlsClient::open(raw(port), &config).is_ok()
    };
    let mut client = Client::at(plain);
    client.set("a", b"plain");
    for (port, certified, wanted) in [
        (without, false, true),
        (without, true, true),
        (with, false, false),
        (with, true, true),
        (usual, false, false),
        (usual, true, true),
    ] {
        assert_eq!(connects(port, certified), wanted, "port {port}, {certified}");
    }
    let config = site.config(&TLS_VERSIONS, None);
    let mut encrypted = TlsClient::open(raw(without), &config).expect("a connection");
    assert_eq!(encrypted.get("a").as_deref(), Some(&b"plain"[..]));
    // The first day of the year 4096, which the authority gives.
    assert_eq!(client.stat("kachel_tls_expires_s"), 67_090_118_400);
}

/// T05. New certificates, by `refresh_certs` and by SIGHUP, while clients connect without pause: no
/// handshake fails, and new clients see the new certificate.
#[test]
fn certificates_are_replaced_while_clients_connect() {
    const RELOADS: usize = 20;
    let site = Site::start(&["-t", "2"]);
    let (stop, connected) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let config = site.config(&TLS_VERSIONS, None);
                while !stop.load(Ordering::Relaxed) {
                    let mut client = site.try_connect(&config).expect("no handshake fails");
                    client.set("a", b"value");
                    connected.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut operator = site.connect();
        let mut shown = operator.certificate();
        for reload in 0..RELOADS {
            replace(&site, &format!("server {reload}"));
            if reload % 2 == 0 {
                assert_eq!(operator.ask("refresh_certs\r\n", "\n"), "OK\r\n");
            } else {
                site.server.signal(rustix::process::Signal::HUP);
            }
            wait_until("the new certificate", || {
                let new = site.connect().certificate();
                std::mem::replace(&mut shown, new.clone()) != new
            });
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(site.stat("ssl_handshake_errors"), 0);
    tell(&format!("{RELOADS} reloads, {} handshakes\n", connected.into_inner()));
}

/// T05. A file that cannot be used changes nothing, and the client that asked is told.
#[test]
fn bad_files_leave_the_old_certificate_in_use() {
    let site = Site::start(&["-t", "2"]);
    let mut operator = site.connect();
    let shown = operator.certificate();
    let server = site.folder.path().join("server.pem");
    let key = site.folder.path().join("server.key");
    let good = [&server, &key].map(|path| fs::read(path).expect("a file"));
    let other = Authority::new();
    let elsewhere = tempfile::tempdir().expect("a folder");
    let strange = other.certify_server(elsewhere.path(), "stranger");
    for (what, begins, spoil) in [
        ("cut", "Error loading the certificate chain: ", {
            let (server, half) = (server.clone(), good[0][..good[0].len() / 2].to_vec());
            Box::new(move || fs::write(server, half).expect("written")) as Box<dyn FnOnce()>
        }),
        ("gone", "Error loading the certificate chain: ", {
            let server = server.clone();
            Box::new(move || fs::remove_file(&server).expect("removed"))
        }),
        ("another key", "Error validating the certificate: ", {
            let key = key.clone();
            Box::new(move || assert!(fs::copy(&strange.key, &key).is_ok()))
        }),
        ("no key", "Error loading the key: ", {
            let key = key.clone();
            Box::new(move || fs::write(&key, "nothing").expect("written"))
        }),
    ] {
        spoil();
        let reply = operator.ask("refresh_certs\r\n", "\n");
        assert!(reply.starts_with(begins) && reply.ends_with("\r\n"), "{what}: {reply}");
        site.server.signal(rustix::process::Signal::HUP);
        assert_eq!(site.connect().certificate(), shown, "{what}: the old one stays");
        fs::write(&server, &good[0]).expect("written");
        fs::write(&key, &good[1]).expect("written");
    }
    assert_eq!(operator.ask("refresh_certs\r\n", "\n"), "OK\r\n");
    assert_eq!(operator.ask("refresh_certs noreply\r\nmn\r\n", "MN\r\n"), "MN\r\n");
}

/// The fault: each `refresh_certs` wrote lines that had no limit, so any client could fill the log.
#[test]
fn lines_that_refresh_certs_causes_are_lines_about_clients() {
    // Lines about clients find room for 512; all lines for 1,024.
    const ASKED: u64 = 700;
    let (authority, folder) = (Authority::new(), tempfile::tempdir().expect("a folder"));
    let files = authority.certify_server(folder.path(), "first");
    let [certificate, key] = [&files.certificate, &files.key].map(|path| path.display());
    let words = format!("ssl_chain_cert={certificate},ssl_key={key}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_kachel"));
    command.args(["serve", "-t", "1", "-Z", "-o", &words, "-l", "notls:127.0.0.1", "-p", "-1"]);
    command.args(user());
    let server = Unheard::start(command);
    fs::write(&files.certificate, "nothing").expect("written");
    let mut client = Client::at(server.port);
    for _ in 0..ASKED {
        let told = client.ask("refresh_certs\r\n", "\r\n");
        assert!(told.starts_with("Error loading the certificate chain: "), "{told}");
    }
    assert!(client.stat("kachel_log_lines_lost") >= ASKED - 512);
}

/// Writes a new certificate and its key as an operator's tool does: aside, then in place. The key
/// and the certificate cannot be replaced at once, and a reading between the two fails and leaves
/// the old ones in use.
fn replace(site: &Site, name: &str) {
    let aside = tempfile::tempdir_in(site.folder.path()).expect("a folder");
    let files = site.authority.certify_server(aside.path(), name);
    fs::rename(files.key, site.folder.path().join("server.key")).expect("renamed");
    fs::rename(files.certificate, site.folder.path().join("server.pem")).expect("renamed");
}

/// A server whose files cannot be used does not start, and says which file it is.
#[test]
fn a_server_with_bad_files_does_not_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let authority = Authority::new();
    let files = authority.certify_server(folder.path(), "server");
    let [certificate, key] = [&files.certificate, &files.key].map(|path| path.display());
    let empty = folder.path().join("empty");
    fs::write(&empty, "").expect("written");
    let empty = empty.display();
    for (words, said) in [
        ("ssl_chain_cert=/none/such".to_string(), "the certificate chain: /none/such"),
        (format!("ssl_chain_cert={empty}"), "there is no certificate in it"),
        (format!("ssl_chain_cert={certificate}"), "Error loading the key"),
        (format!("ssl_chain_cert={certificate},ssl_key={certificate}"), "Error loading the key"),
        (
            format!("ssl_chain_cert={certificate},ssl_key={key},ssl_ca_cert={key}"),
            "Error loading the CA certificate",
        ),
        (
            format!("ssl_chain_cert={certificate},ssl_key={key},ssl_ciphers=HIGH"),
            "ssl_ciphers: HIGH is not one of",
        ),
    ] {
        let options = ["-Z", "-o", words.as_str()];
        let program = Path::new(env!("CARGO_BIN_EXE_kachel"));
        let ended = Launch::memcached(program, &options).try_start().expect_err("it ends");
        assert_eq!(ended.status.code(), Some(64), "{words}: {}", ended.said);
        assert!(ended.said.contains(said), "{words}: {}", ended.said);
    }
    // Under its own name, a file may come with its folder, which may be mounted later.
    for (words, code) in [
        ("ssl_chain_cert=/none/such".to_string(), 71),
        ("ssl_chain_cert=/no-such-file".to_string(), 64),
        (format!("ssl_chain_cert={certificate},ssl_key=/none/such"), 71),
        (format!("ssl_chain_cert={certificate},ssl_key={key},ssl_ca_cert=/none/such"), 71),
        (format!("ssl_chain_cert={empty}"), 64),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kachel"));
        command.args(["serve", "-l", "127.0.0.1:0", "-Z", "-o", &words]).args(user());
        let output = command.stdin(Stdio::null()).output().expect("it starts");
        assert_eq!(output.status.code(), Some(code), "{words}: {output:?}");
    }
    // A key in the file of the certificate, and a key without text around it.
    let both = folder.path().join("both.pem");
    let texts = [&files.certificate, &files.key].map(|path| fs::read(path).expect("a file"));
    fs::write(&both, texts.concat()).expect("written");
    let words = format!("ssl_chain_cert={}", both.display());
    let program = Path::new(env!("CARGO_BIN_EXE_kachel"));
    let _starts = Launch::memcached(program, &["-Z", "-o", &words]).start();
}

/// Keys with the label of an older format than they have are common: gomemcache's tests have one.
#[test]
fn a_key_is_read_by_its_contents_and_not_by_its_label() {
    let folder = tempfile::tempdir().expect("a folder");
    let files = Authority::new().certify_server(folder.path(), "server");
    let text = fs::read_to_string(&files.key).expect("a key");
    let relabeled = text.replace("PRIVATE KEY", "RSA PRIVATE KEY");
    assert_ne!(text, relabeled);
    fs::write(&files.key, relabeled).expect("written");
    let [certificate, key] = [&files.certificate, &files.key].map(|path| path.display());
    let words = format!("ssl_chain_cert={certificate},ssl_key={key}");
    let program = Path::new(env!("CARGO_BIN_EXE_kachel"));
    let _starts = Launch::memcached(program, &["-Z", "-o", &words]).start();
}

/// A server that ends with the value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Neither can fail in a way that matters: the process is ours and may be gone.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// memcached reads the files before it changes its user, and for `refresh_certs` as the new user.
#[test]
fn a_key_that_only_root_can_read_is_read_at_the_start() {
    if user().is_empty() {
        println!("skip tls.root_key only root can start a server that changes its user");
        return;
    }
    let (authority, folder) = (Authority::new(), tempfile::tempdir().expect("a folder"));
    let CertificateFiles { certificate, key } = authority.certify_server(folder.path(), "server");
    let allow = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("an own file");
    };
    allow(folder.path(), 0o755);
    allow(&certificate, 0o644);
    allow(&key, 0o600);
    let words = format!("ssl_chain_cert={},ssl_key={}", certificate.display(), key.display());
    let port = {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        taken.local_addr().expect("bound").port()
    };
    let log = folder.path().join("log");
    let mut command = Command::new(env!("CARGO_BIN_EXE_kachel"));
    command.args(["serve", "-u", "nobody", "-l", "127.0.0.1", "-p", &port.to_string()]);
    command.args(["-t", "1", "-Z", "-o", &words]).stdin(Stdio::null());
    command.stderr(fs::File::create(&log).expect("a log"));
    let mut server = Running(command.spawn().expect("it starts"));
    let said = || fs::read_to_string(&log).unwrap_or_default();
    wait_until("a server that listens", || {
        let ended = server.0.try_wait().expect("the state of a child");
        assert!(ended.is_none(), "{ended:?}: {}", said());
        std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    assert!(said().contains("SIGHUP and refresh_certs will not read it again"), "{}", said());
    let config = Arc::new(authority.client(&TLS_VERSIONS, None));
    let mut client = TlsClient::open(raw(port), &config).expect("a connection");
    let told = client.ask("refresh_certs\r\n", "\r\n");
    assert!(told.contains("Permission denied"), "{told}");
    assert!(TlsClient::open(raw(port), &config).is_ok(), "the old key stays");
}

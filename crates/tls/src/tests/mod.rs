//! Tests of sessions and of the encryption of blocks, with a client of rustls in memory.

mod forger;
mod outgoing;
mod padding;
mod session;

use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::client::{ClientConfig, ClientConnection};
use rustls::crypto::ring;
use rustls::{KeyLog, RootCertStore, SupportedProtocolVersion};

use crate::counts::Counts;
use crate::process::Process;
use crate::session::{Broken, Session, Work};
use crate::settings::{ClientCertificate, KeyFormat, ListenerTls, Settings, Version};

use self::forger::Secrets;

/// A client, and the session of the server with it.
pub(crate) struct Pair {
    pub(crate) client: ClientConnection,
    pub(crate) session: Session,
    pub(crate) work: Work,
    pub(crate) plain: Vec<u8>,
    pub(crate) secrets: Arc<Secrets>,
    pub(crate) counts: Arc<Counts>,
}

impl Pair {
    /// A client whose handshake has not begun.
    pub(crate) fn new(version: &'static SupportedProtocolVersion) -> Self {
        let folder = std::env::temp_dir().join(format!("kachel-tls-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(["localhost".to_string()]).expect("a certificate");
        // Tests run at once, in threads, so each has a file of its own.
        let path = folder.join(format!("{:?}", std::thread::current().id()));
        std::fs::write(&path, cert.pem() + &signing_key.serialize_pem()).expect("a file");
        let settings = Settings {
            chain_certificate: path.clone(),
            key: None,
            key_format: KeyFormat::Pem,
            authorities: None,
            client_certificate: ClientCertificate::NotAsked,
            ciphers: None,
            min_version: Version::Tls12,
            resumes: true,
        };
        let process = Process::new(settings).expect("good files");
        std::fs::remove_file(path).expect("removed");
        let config = process.configuration(ListenerTls::OfProcess).expect("a configuration");
        let mut authorities = RootCertStore::empty();
        authorities.add(cert.der().clone()).expect("a certificate");
        let mut trusting = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[version])
            .expect("a version")
            .with_root_certificates(authorities)
            .with_no_client_auth();
        let secrets = Arc::<Secrets>::default();
        trusting.key_log = Arc::clone(&secrets) as Arc<dyn KeyLog>;
        let name = "localhost".try_into().expect("a name");
        let counts = Arc::clone(process.counts());
        Self {
            client: ClientConnection::new(Arc::new(trusting), name).expect("a client"),
            session: Session::new(config, &counts).expect("random numbers"),
            work: Work::default(),
            plain: Vec::new(),
            secrets,
            counts,
        }
    }

    /// A client with a complete handshake.
    pub(crate) fn established(version: &'static SupportedProtocolVersion) -> Self {
        let mut pair = Self::new(version);
        while !pair.session.is_established() || pair.client.is_handshaking() {
            pair.pass_on().expect("a handshake");
        }
        pair.pass_on().expect("tickets");
        pair
    }

    /// Bytes that the session keeps, by the counter for `stats`.
    pub(crate) fn kept_bytes(&self) -> u64 {
        self.counts.kept_bytes.load(Ordering::Relaxed)
    }

    /// Passes the records of the client on, and the answers back.
    pub(crate) fn pass_on(&mut self) -> Result<(), Broken> {
        let records = self.records();
        self.give(&records)
    }

    /// The records that the client has to send.
    pub(crate) fn records(&mut self) -> Vec<u8> {
        let mut records = Vec::new();
        while self.client.wants_write() {
            self.client.write_tls(&mut records).expect("memory");
        }
        records
    }

    /// Gives bytes to the session, and its answers to the client.
    pub(crate) fn give(&mut self, records: &[u8]) -> Result<(), Broken> {
        let result = self.session.receive(records, &mut self.plain, &mut self.work);
        let to_send = std::mem::take(&mut self.work.to_send);
        if result.is_ok() {
            self.take(&to_send);
        }
        self.work.to_send = to_send;
        result
    }

    /// Gives records of the session to the client.
    pub(crate) fn take(&mut self, mut records: &[u8]) -> Vec<u8> {
        let mut received = Vec::new();
        while !records.is_empty() {
            self.client.read_tls(&mut records).expect("room");
            let state = self.client.process_new_packets().expect("good records");
            let before = received.len();
            received.resize(before + state.plaintext_bytes_to_read(), 0);
            self.client.reader().read_exact(&mut received[before..]).expect("they are there");
        }
        received
    }

    /// The records with which the client sends `plain`.
    pub(crate) fn encrypted(&mut self, plain: &[u8]) -> Vec<u8> {
        self.client.writer().write_all(plain).expect("memory");
        self.records()
    }
}

//! TLS for the generator's connections, by rustls. Compiled with the feature `tls` only.
//!
//! Upstream:   `transport` names the certificates; `connection` and `client` open connections.
//! Downstream: rustls makes records, the kernel sends and receives them.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  After a receive that found fewer bytes than there was room for, the socket is empty and
//!   the next byte makes an edge.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    StreamOwned,
};

/// Sessions that are kept for resumption.
const SESSIONS_MAX: usize = 1024;

/// How connections to one server are encrypted.
#[derive(Clone, Debug)]
pub(crate) struct Security {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Security {
    /// Accepts certificates for this host that are signed by one in the file `ca`; without a file,
    /// any certificate. `resumes`: sessions are kept and resumed.
    ///
    /// Errors: the certificates cannot be read, or the host is no name for a certificate; as a
    /// message for the user.
    pub(crate) fn new(ca: Option<&Path>, host: &str, resumes: bool) -> Result<Self, String> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .expect("ring has the suites of TLS 1.2 and 1.3");
        let mut config = match ca {
            None => {
                let verifier = Arc::new(AnyCertificate { provider });
                builder.dangerous().with_custom_certificate_verifier(verifier)
            }
            Some(path) => {
                let failed =
                    |error: &dyn std::fmt::Display| format!("--tls-ca {}: {error}", path.display());
                let mut roots = RootCertStore::empty();
                let certificates =
                    CertificateDer::pem_file_iter(path).map_err(|error| failed(&error))?;
                for certificate in certificates {
                    let certificate = certificate.map_err(|error| failed(&error))?;
                    roots.add(certificate).map_err(|error| failed(&error))?;
                }
                if roots.is_empty() {
                    return Err(failed(&"no certificate"));
                }
                builder.with_root_certificates(roots)
            }
        }
        .with_no_client_auth();
        config.resumption = match resumes {
            true => Resumption::in_memory_sessions(SESSIONS_MAX),
            false => Resumption::disabled(),
        };
        let name = ServerName::try_from(host.to_owned())
            .map_err(|error| format!("{host}: no name for a certificate: {error}"))?;
        Ok(Self { config: Arc::new(config), name })
    }

    /// Encrypts a blocking stream. The first read or write makes the handshake.
    pub(crate) fn stream(&self, stream: TcpStream) -> io::Result<impl Read + Write + Send + use<>> {
        Ok(StreamOwned::new(self.connection()?, stream))
    }

    /// Makes the handshake on a stream that blocks.
    ///
    /// Errors: those of the kernel, and a handshake that failed.
    pub(crate) fn handshake(&self, stream: &mut TcpStream) -> io::Result<Session> {
        let mut connection = self.connection()?;
        while connection.is_handshaking() {
            connection.complete_io(stream)?;
        }
        Ok(Session { connection, is_empty: false })
    }

    fn connection(&self) -> io::Result<ClientConnection> {
        ClientConnection::new(Arc::clone(&self.config), self.name.clone()).map_err(io::Error::other)
    }
}

/// The session of one connection after its handshake.
#[derive(Debug)]
pub(crate) struct Session {
    connection: ClientConnection,
    /// Whether the socket was empty after the last receive (I1).
    is_empty: bool,
}

impl Session {
    /// Receives and decrypts. A result of 0 means that the server has closed.
    ///
    /// Errors: those of the kernel, `WouldBlock` included; records that are invalid.
    pub(crate) fn receive(&mut self, socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.connection.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
            if std::mem::take(&mut self.is_empty) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let mut records = Records { socket, is_short: false };
            if self.connection.read_tls(&mut records)? == 0 {
                return Ok(0);
            }
            self.is_empty = records.is_short;
            let processed = self.connection.process_new_packets();
            processed.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
    }

    /// Whether records wait to be sent.
    pub(crate) fn wants_write(&self) -> bool {
        self.connection.wants_write()
    }

    /// Encrypts bytes, and sends records. Returns the number of bytes that were taken; their
    /// records may wait to be sent.
    ///
    /// Errors: those of the kernel, `WouldBlock` included; then no byte was taken.
    pub(crate) fn send(&mut self, socket: &OwnedFd, bytes: &[u8]) -> io::Result<usize> {
        self.send_records(socket)?;
        let taken = self.connection.writer().write(bytes)?;
        match self.send_records(socket) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(taken),
        }
    }

    fn send_records(&mut self, socket: &OwnedFd) -> io::Result<()> {
        while self.connection.wants_write() {
            self.connection.write_tls(&mut Records { socket, is_short: false })?;
        }
        Ok(())
    }
}

/// The socket below the records.
struct Records<'s> {
    socket: &'s OwnedFd,
    is_short: bool,
}

impl Read for Records<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let room = buffer.len();
        let (_, bytes) = recv(self.socket, buffer, RecvFlags::empty())?;
        self.is_short = bytes < room;
        Ok(bytes)
    }
}

impl Write for Records<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(send(self.socket, bytes, SendFlags::NOSIGNAL)?)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Accepts every certificate (`--tls-insecure`). It still checks that the server has its key.
#[derive(Debug)]
struct AnyCertificate {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

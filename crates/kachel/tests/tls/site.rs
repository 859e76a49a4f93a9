//! A server with TLS, its authority, and clients of it.

use std::fmt;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use kachel_testkit::{
    Authority, CertificateFiles, ClientCertificate, Launch, PATIENCE, Server, TLS_VERSIONS,
};
use rustls::client::{ClientConfig, ClientConnection};
use rustls::{StreamOwned, SupportedProtocolVersion};

/// The I/O backends over which a case runs.
pub(crate) const BACKENDS: [&str; 2] = ["uring", "epoll"];

/// A server, and the folder with its certificates.
pub(crate) struct Site {
    pub(crate) authority: Authority,
    pub(crate) folder: tempfile::TempDir,
    pub(crate) server: Server,
}

/// A client over TLS. It reads and writes plain bytes.
pub(crate) struct TlsClient {
    pub(crate) stream: StreamOwned<ClientConnection, TcpStream>,
}

/// Why a client got no connection, or lost it.
#[derive(Debug)]
pub(crate) struct Refused(#[expect(dead_code, reason = "shown by a test that fails")] String);

impl Site {
    /// A server with TLS and these options.
    pub(crate) fn start(options: &[&str]) -> Self {
        Self::start_with(options, "")
    }

    /// A server as [`Self::start`] starts it, with more words for `-o`.
    pub(crate) fn start_with(options: &[&str], extended: &str) -> Self {
        let (authority, folder) = (Authority::new(), tempfile::tempdir().expect("a folder"));
        let CertificateFiles { certificate, key } =
            authority.certify_server(folder.path(), "first");
        let authorities = authority.write(folder.path());
        let [certificate, key, authorities] =
            [&certificate, &key, &authorities].map(|path| path.display());
        let words = format!(
            "ssl_chain_cert={certificate},ssl_key={key},ssl_ca_cert={authorities}{extended}"
        );
        let options = [&["-m", "64", "-Z", "-o", &words], options].concat();
        let program = Path::new(env!("CARGO_BIN_EXE_kachel"));
        let server = Launch::memcached(program, &options).start();
        Self { authority, folder, server }
    }

    /// The configuration of a client that speaks these versions.
    pub(crate) fn config(
        &self,
        versions: &[&'static SupportedProtocolVersion],
        certificate: Option<&ClientCertificate>,
    ) -> Arc<ClientConfig> {
        Arc::new(self.authority.client(versions, certificate))
    }

    /// A client with a complete handshake.
    pub(crate) fn connect(&self) -> TlsClient {
        self.try_connect(&self.config(&TLS_VERSIONS, None)).expect("a connection")
    }

    /// Connects to the port of the server.
    pub(crate) fn try_connect(&self, config: &Arc<ClientConfig>) -> Result<TlsClient, Refused> {
        TlsClient::open(self.raw(), config)
    }

    /// A connection without TLS to the port.
    pub(crate) fn raw(&self) -> TcpStream {
        raw(self.server.port())
    }

    /// A number of `stats` or `stats kachel`.
    pub(crate) fn stat(&self, name: &str) -> u64 {
        self.connect().stat(name)
    }
}

/// A connection without TLS to a port of this machine.
pub(crate) fn raw(port: u16) -> TcpStream {
    let socket = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    socket.set_nodelay(true).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
    socket
}

impl TlsClient {
    /// Does the handshake, and asks for the version of the server: in TLS 1.3 a server refuses a
    /// client only after the client thinks that the handshake is complete.
    pub(crate) fn open(socket: TcpStream, config: &Arc<ClientConfig>) -> Result<Self, Refused> {
        let name = "localhost".try_into().expect("a name");
        let connection = ClientConnection::new(Arc::clone(config), name).expect("a client");
        let mut client = Self { stream: StreamOwned::new(connection, socket) };
        match client.try_ask("version\r\n", "\r\n") {
            Ok(reply) if reply.starts_with("VERSION ") => Ok(client),
            Ok(reply) => Err(Refused(reply)),
            Err(refused) => Err(refused),
        }
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).expect("the server takes it");
    }

    fn try_ask(&mut self, request: &str, last: &str) -> Result<String, Refused> {
        let refused = |error: &dyn fmt::Display| Refused(error.to_string());
        self.stream.write_all(request.as_bytes()).map_err(|error| refused(&error))?;
        self.stream.flush().map_err(|error| refused(&error))?;
        let mut received = Vec::new();
        let mut buffer = [0; 16 * 1024];
        while !received.ends_with(last.as_bytes()) {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(refused(&"closed")),
                Ok(count) => received.extend_from_slice(&buffer[..count]),
                Err(error) => return Err(refused(&error)),
            }
        }
        Ok(String::from_utf8_lossy(&received).into_owned())
    }

    /// Sends a request, and reads its reply up to `last`.
    pub(crate) fn ask(&mut self, request: &str, last: &str) -> String {
        self.try_ask(request, last).expect("a reply")
    }

    /// Reads exactly this number of bytes.
    pub(crate) fn read(&mut self, bytes: usize) -> Vec<u8> {
        let mut received = vec![0; bytes];
        self.stream.read_exact(&mut received).expect("a reply");
        received
    }

    /// Reads until the server ends the connection in order: with a `close_notify`.
    pub(crate) fn read_to_end(&mut self) -> Vec<u8> {
        let mut received = Vec::new();
        self.stream.read_to_end(&mut received).expect("an end in order");
        received
    }

    pub(crate) fn set(&mut self, key: &str, value: &[u8]) {
        self.send(
            [format!("set {key} 0 0 {}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat(),
        );
        assert_eq!(self.read(8), b"STORED\r\n");
    }

    pub(crate) fn get(&mut self, key: &str) -> Option<Vec<u8>> {
        let reply = self.ask(&format!("get {key}\r\n"), "END\r\n").into_bytes();
        let line = reply.iter().position(|&byte| byte == b'\n').expect("a line") + 1;
        (line < reply.len()).then(|| reply[line..reply.len() - b"\r\nEND\r\n".len()].to_vec())
    }

    /// A number of `stats` or `stats kachel`; `None` if it is not there.
    pub(crate) fn stats(&mut self, name: &str) -> Option<u64> {
        let text = self.ask("stats\r\nstats kachel\r\nmn\r\n", "MN\r\n");
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")))?;
        Some(line.parse().expect("a number"))
    }

    pub(crate) fn stat(&mut self, name: &str) -> u64 {
        self.stats(name).unwrap_or_else(|| panic!("no such statistic: {name}"))
    }

    /// The certificate that the server has shown.
    pub(crate) fn certificate(&self) -> Vec<u8> {
        self.stream.conn.peer_certificates().expect("a certificate")[0].to_vec()
    }
}

/// Reads a raw socket to its end. A reset is an end, too.
pub(crate) fn drained(socket: &mut TcpStream) -> Vec<u8> {
    let mut received = Vec::new();
    match socket.read_to_end(&mut received) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        Err(error) => panic!("the server does not close: {error}"),
    }
    received
}

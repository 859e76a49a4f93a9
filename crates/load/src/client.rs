//! A client that blocks: it connects, with TLS if wanted, and asks one thing at a time.
//!
//! Upstream:   `server`, `idle` and `connects`, beside the load itself.
//! Downstream: the server.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  Nothing waits for longer than `ANSWER_PATIENCE`.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::address::{Address, Target};

/// Timeout for a connection, and for each read and write (I1).
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);
/// Maximum bytes of an answer.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Both directions of a connection.
pub(crate) trait Duplex: Read + Write + Send {}

impl<T: Read + Write + Send> Duplex for T {}

/// Connects; with TLS, the first request makes the handshake.
///
/// Errors: no connection within 5 s.
pub(crate) fn connect(target: &Target) -> io::Result<Box<dyn Duplex>> {
    match (&target.address, &target.security) {
        (Address::Tcp(address), security) => {
            let stream = TcpStream::connect_timeout(address, ANSWER_PATIENCE)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(ANSWER_PATIENCE))?;
            stream.set_write_timeout(Some(ANSWER_PATIENCE))?;
            Ok(match security {
                None => Box::new(stream),
                Some(security) => Box::new(security.stream(stream)?),
            })
        }
        (Address::Unix(path), None) => {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(ANSWER_PATIENCE))?;
            stream.set_write_timeout(Some(ANSWER_PATIENCE))?;
            Ok(Box::new(stream))
        }
        (Address::Unix(_), Some(_)) => Err(io::Error::other("TLS needs a TCP address")),
    }
}

/// Sends a request, and receives until the answer is whole.
///
/// Errors: the connection failed, no answer came within 5 s, or it is longer than 1 MiB.
pub(crate) fn ask(
    stream: &mut (impl Read + Write + ?Sized),
    request: &[u8],
    is_whole: impl Fn(&str) -> bool,
) -> io::Result<String> {
    stream.write_all(request)?;
    let mut answer = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let bytes = stream.read(&mut piece)?;
        if bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        answer.extend_from_slice(&piece[..bytes]);
        let text = String::from_utf8_lossy(&answer);
        if is_whole(&text) {
            return Ok(text.into_owned());
        }
        if answer.len() > ANSWER_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
}

/// Asks for the version. Returns the whole line.
///
/// Errors: as those of [`ask`].
pub(crate) fn ask_version(stream: &mut (impl Read + Write + ?Sized)) -> io::Result<String> {
    ask(stream, b"version\r\n", |answer| answer.ends_with("\r\n"))
}

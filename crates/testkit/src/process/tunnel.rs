//! A tunnel: a socket whose bytes travel over TLS. So a test that knows nothing of TLS can speak
//! with a server that does.
//!
//! Upstream:   `server`, for each connection to a server with TLS.
//! Downstream: rustls as a client, on a thread for each connection.
//!
//! ```text
//! test <-- socket pair --> thread <-- TLS --> server
//! ```
//!
//! An end of either side is passed on to the other. A server that resets the connection, or sends
//! an alert, ends it.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};
use rustls::client::{ClientConfig, ClientConnection};

/// Bytes that the tunnel holds for one side before it reads no more from the other.
const HELD_BYTES_MAX: usize = 64 * 1024;

/// A connection to `address` over TLS.
///
/// # Errors
/// Those of connecting. A failed handshake shows as the end of the connection.
pub fn tunnel(config: &Arc<ClientConfig>, address: SocketAddr) -> io::Result<OwnedFd> {
    let server = TcpStream::connect(address)?;
    server.set_nodelay(true).expect("a socket");
    server.set_nonblocking(true).expect("a socket");
    let (ours, test) = UnixStream::pair().expect("two descriptors");
    ours.set_nonblocking(true).expect("a socket");
    let name = "localhost".try_into().expect("a name");
    let session = ClientConnection::new(Arc::clone(config), name).expect("a client");
    let tunnel = Tunnel { server, ours, session, held: Vec::new(), ended: Ended::default() };
    std::thread::Builder::new()
        .name("tunnel".into())
        .spawn(move || tunnel.run())
        .expect("a thread");
    Ok(test.into())
}

/// The sides that have ended, and those to which that was passed on.
#[derive(Debug, Default)]
struct Ended {
    test: bool,
    server: bool,
    told_server: bool,
    told_test: bool,
}

struct Tunnel {
    server: TcpStream,
    ours: UnixStream,
    session: ClientConnection,
    /// Plain bytes for the test.
    held: Vec<u8>,
    ended: Ended,
}

impl Tunnel {
    /// Passes bytes on until both sides have ended, or one has failed.
    fn run(mut self) {
        while let Ok(true) = self.turn() {}
    }

    /// Waits for either side, then passes on what it can. Returns whether there may be more.
    fn turn(&mut self) -> io::Result<bool> {
        self.pass_ends_on()?;
        if self.ended.told_server && self.ended.told_test {
            return Ok(false);
        }
        let wants = |read: bool, write: bool| {
            let read = if read { PollFlags::IN } else { PollFlags::empty() };
            read | if write { PollFlags::OUT } else { PollFlags::empty() }
        };
        let from_test = !self.ended.test && self.may_read_test();
        let from_server = !self.ended.server && self.held.len() < HELD_BYTES_MAX;
        let of_server = wants(from_server, self.session.wants_write());
        let of_test = wants(from_test, !self.held.is_empty());
        let mut asked = [PollFd::new(&self.server, of_server), PollFd::new(&self.ours, of_test)];
        assert!(!(of_server | of_test).is_empty() || self.ended.server, "it waits for something");
        poll(&mut asked, None).expect("sockets");
        let gone = PollFlags::HUP | PollFlags::ERR;
        // A test that has dropped its socket reads nothing any more. If the server takes nothing
        // either, the kernel would reset the connection.
        if asked[1].revents().intersects(gone) && !from_test {
            return Ok(false);
        }
        // A reset ends the connection even if the test has not read all bytes, as with TCP.
        if asked[0].revents().contains(PollFlags::ERR) && !from_server {
            return Ok(false);
        }
        if from_server {
            self.read_server()?;
        }
        if from_test {
            self.read_test();
        }
        self.write_server();
        self.write_test();
        Ok(true)
    }

    /// Sends records to the server. One that has closed the connection may have replied before, so
    /// the rest is dropped, and its replies are still read.
    fn write_server(&mut self) {
        while self.session.wants_write() {
            match self.session.write_tls(&mut self.server) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => {
                    while self.session.write_tls(&mut io::sink()).is_ok_and(|sent| sent > 0) {}
                }
            }
        }
    }

    fn may_read_test(&self) -> bool {
        !self.session.wants_write() && !self.session.is_handshaking()
    }

    fn read_server(&mut self) -> io::Result<()> {
        match self.session.read_tls(&mut self.server) {
            Ok(0) => self.ended.server = true,
            Ok(_) => {
                let state = self.session.process_new_packets();
                if state.is_err() {
                    // The alert for the server.
                    let _gone = self.session.write_tls(&mut self.server);
                }
                let state = state.map_err(io::Error::other)?;
                let before = self.held.len();
                self.held.resize(before + state.plaintext_bytes_to_read(), 0);
                self.session.reader().read_exact(&mut self.held[before..]).expect("they are there");
                assert!(self.held.len() >= before, "plain bytes are added");
                self.ended.server |= state.peer_has_closed();
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn read_test(&mut self) {
        assert!(self.may_read_test(), "what it sends now can be encrypted");
        let mut buffer = [0; 16 * 1024];
        match self.ours.read(&mut buffer) {
            Ok(0) => self.ended.test = true,
            Ok(count) => self.session.writer().write_all(&buffer[..count]).expect("memory"),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => self.ended.test = true,
        }
    }

    fn write_test(&mut self) {
        assert!(!self.ended.told_test || self.held.is_empty(), "nothing follows the end");
        while !self.held.is_empty() {
            match self.ours.write(&self.held) {
                Ok(count) => drop(self.held.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.held.clear();
                    (self.ended.told_test, self.ended.test) = (true, true);
                }
            }
        }
    }

    /// Passes the end of a side on, once all its bytes were.
    fn pass_ends_on(&mut self) -> io::Result<()> {
        let ended = &self.ended;
        assert!(ended.test || !ended.told_server, "only an end is passed on");
        if self.ended.server && self.held.is_empty() && !self.ended.told_test {
            self.ended.told_test = true;
            // A server that has ended reads nothing more either.
            self.ours.shutdown(Shutdown::Both)?;
            self.ended.test = true;
        }
        if self.ended.test && !self.ended.told_server && !self.session.is_handshaking() {
            self.session.send_close_notify();
            self.write_server();
            if self.session.wants_write() {
                return Ok(());
            }
            self.ended.told_server = true;
            self.server.shutdown(Shutdown::Write)?;
        }
        Ok(())
    }
}

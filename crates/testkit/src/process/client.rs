//! A client that may misbehave.
//!
//! Upstream:   tests, which decide what to send and what not to read.
//! Downstream: a socket of either kind to the server.
//!
//! Invariants:
//! - I1  Nothing is buffered here: a test decides how many bytes leave the socket, and when.

use std::collections::HashMap;
use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, sockopt};

use super::waiting::PATIENCE;

/// A socket that accepts nothing for this time is blocked.
const BLOCKED_AFTER: Duration = Duration::from_millis(500);

/// A connection.
#[derive(Debug)]
pub struct Client {
    socket: File,
}

/// The result of one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// No byte came within the time of [`Client::set_patience`].
    Nothing,
    /// This many bytes came.
    Bytes(usize),
    /// The server has closed the connection.
    Closed,
}

impl Client {
    /// A client over a connected socket, with [`PATIENCE`] in both directions.
    pub fn new(socket: OwnedFd) -> Self {
        // A unix socket has no such option.
        let _unix = sockopt::set_tcp_nodelay(&socket, true);
        let client = Self { socket: socket.into() };
        client.set_patience(PATIENCE);
        sockopt::set_socket_timeout(&client.socket, sockopt::Timeout::Send, Some(PATIENCE))
            .expect("a time limit");
        client
    }

    /// A connection to a port of this machine.
    pub fn at(port: u16) -> Self {
        Self::new(TcpStream::connect(("127.0.0.1", port)).expect("it listens").into())
    }

    /// Sets how long a read waits.
    pub fn set_patience(&self, time: Duration) {
        sockopt::set_socket_timeout(&self.socket, sockopt::Timeout::Recv, Some(time))
            .expect("a time limit");
    }

    /// The socket.
    pub fn socket(&self) -> &File {
        &self.socket
    }

    /// Sends all bytes.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.socket.write_all(bytes.as_ref()).expect("the server takes it");
    }

    /// Sends all bytes. Returns false if the server has closed.
    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.socket.write_all(bytes.as_ref()).is_ok()
    }

    /// Sends `bytes` if the kernel takes them at once.
    pub fn offer(&mut self, bytes: &[u8]) {
        if self.becomes(PollFlags::OUT, Duration::ZERO) {
            self.send(bytes);
        }
    }

    /// Sends `bytes` again and again until the server accepts no more. Returns the number of bytes
    /// that the server accepted.
    pub fn flood(&mut self, bytes: &[u8]) -> u64 {
        flood(std::slice::from_mut(self), bytes)
    }

    /// Whether `wanted` comes within `time`.
    fn becomes(&self, wanted: PollFlags, time: Duration) -> bool {
        let mut asked = [PollFd::new(&self.socket, wanted)];
        let time = Timespec::try_from(time).expect("a short time");
        poll(&mut asked, Some(&time)).expect("a socket") > 0
            && asked[0].revents().intersects(wanted)
    }

    /// Whether the server ends the connection within `time`; reads nothing.
    pub fn is_ended_within(&self, time: Duration) -> bool {
        self.becomes(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR, time)
    }

    /// Reads once into `buffer`.
    pub fn look(&mut self, buffer: &mut [u8]) -> Look {
        match self.socket.read(buffer) {
            Ok(0) => Look::Closed,
            Ok(count) => Look::Bytes(count),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Look::Nothing,
            Err(error) if error.kind() == ErrorKind::Interrupted => self.look(buffer),
            Err(_) => Look::Closed,
        }
    }

    /// Reads until the bytes received end with `last`.
    pub fn read_until(&mut self, last: &[u8]) -> Vec<u8> {
        self.read_while(|_, received| !received.ends_with(last))
    }

    /// Reads the replies to pipelined requests that are answered by `count` lines in all.
    pub fn read_lines(&mut self, count: usize) -> Vec<u8> {
        let mut lines = 0;
        let received = self.read_while(|new, _| {
            lines += new.iter().filter(|&&byte| byte == b'\n').count();
            lines < count
        });
        assert!(lines == count && received.ends_with(b"\n"), "{lines} lines came, not {count}");
        received
    }

    /// Reads as long as `goes_on` returns true. Passes it the bytes of each read and all bytes so
    /// far.
    fn read_while(&mut self, mut goes_on: impl FnMut(&[u8], &[u8]) -> bool) -> Vec<u8> {
        let mut received = Vec::new();
        let mut buffer = [0; 1 << 16];
        let mut new = 0;
        while goes_on(&buffer[..new], &received) {
            match self.look(&mut buffer) {
                Look::Bytes(count) => {
                    received.extend_from_slice(&buffer[..count]);
                    new = count;
                }
                other => {
                    let shown = received.len().saturating_sub(80);
                    panic!("{other:?} after ..{}", received[shown..].escape_ascii());
                }
            }
        }
        received
    }

    /// Fills `buffer`.
    pub fn read_whole<'a>(&mut self, buffer: &'a mut [u8]) -> &'a [u8] {
        self.socket.read_exact(buffer).expect("the server answers");
        buffer
    }

    /// Reads up to the end of a line, and nothing that follows it.
    pub fn read_line(&mut self) -> Vec<u8> {
        let mut line = Vec::new();
        while !line.ends_with(b"\n") {
            let mut byte = [0];
            line.extend_from_slice(self.read_whole(&mut byte));
        }
        line
    }

    /// Reads until the server closes the connection in order.
    pub fn read_to_end(&mut self) -> Vec<u8> {
        let mut received = Vec::new();
        self.socket.read_to_end(&mut received).expect("an end in order");
        received
    }

    /// Sends a request, and reads its reply up to `last`, as text.
    pub fn ask(&mut self, request: impl AsRef<[u8]>, last: &str) -> String {
        self.send(request);
        String::from_utf8_lossy(&self.read_until(last.as_bytes())).into_owned()
    }

    /// Stores a value.
    pub fn set(&mut self, key: &str, value: &[u8]) {
        assert_eq!(self.try_set(key, value), "STORED\r\n");
    }

    /// Tries to store a value; returns the reply.
    pub fn try_set(&mut self, key: &str, value: &[u8]) -> String {
        self.send(set_request(key, 0, value));
        String::from_utf8_lossy(&self.read_until(b"\r\n")).into_owned()
    }

    /// The value of `key`, if it is there.
    pub fn get(&mut self, key: &str) -> Option<Vec<u8>> {
        self.send(format!("get {key}\r\n"));
        let mut reply = self.read_until(b"END\r\n");
        let line = reply.iter().position(|&byte| byte == b'\n').expect("a line") + 1;
        if line == reply.len() {
            return None;
        }
        reply.truncate(reply.len() - b"\r\nEND\r\n".len());
        reply.drain(..line);
        Some(reply)
    }

    /// The replies to `stats` and to `stats kachel`, by name. memcached refuses the second one.
    pub fn stats(&mut self) -> HashMap<String, String> {
        let text = self.ask("stats\r\nstats kachel\r\nmn\r\n", "MN\r\n");
        let pairs = text.lines().filter_map(|line| line.strip_prefix("STAT ")?.split_once(' '));
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    /// One number of `stats` or `stats kachel`.
    pub fn stat(&mut self, name: &str) -> u64 {
        let stats = self.stats();
        let value = stats.get(name).unwrap_or_else(|| panic!("no such statistic: {name}"));
        value.parse().expect("a number")
    }

    /// Ends our side. The server may still send.
    pub fn end_sending(&self) {
        rustix::net::shutdown(&self.socket, Shutdown::Write).expect("an open socket");
    }

    /// Ends the connection by a reset, like a machine that crashed and restarted.
    pub fn reset(self) {
        sockopt::set_socket_linger(&self.socket, Some(Duration::ZERO)).expect("a socket");
    }

    /// The time from sending a request to its whole reply.
    pub fn time_get(&mut self, request: &[u8], last: &[u8]) -> Duration {
        let began = Instant::now();
        self.send(request);
        self.read_until(last);
        began.elapsed()
    }
}

/// Makes each client send `bytes` again and again until the server accepts no more from any of
/// them. Returns how many bytes the server accepted.
pub fn flood(clients: &mut [Client], bytes: &[u8]) -> u64 {
    for client in &mut *clients {
        rustix::io::ioctl_fionbio(&client.socket, true).expect("a socket");
    }
    let mut offsets = vec![0; clients.len()];
    let mut taken = 0;
    let mut blocked = false;
    while !blocked {
        let mut asked: Vec<PollFd<'_>> =
            clients.iter().map(|client| PollFd::new(&client.socket, PollFlags::OUT)).collect();
        let time = Timespec::try_from(BLOCKED_AFTER).expect("a short time");
        blocked = poll(&mut asked, Some(&time)).expect("sockets") == 0;
        drop(asked);
        for (client, offset) in clients.iter_mut().zip(&mut offsets) {
            match client.socket.write(&bytes[*offset..]) {
                Ok(count) => {
                    taken += count as u64;
                    *offset = (*offset + count) % bytes.len();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => panic!("the server takes or waits: {error}"),
            }
        }
    }
    for client in clients {
        rustix::io::ioctl_fionbio(&client.socket, false).expect("a socket");
    }
    taken
}

/// The request that stores a value.
pub fn set_request(key: &str, ttl: u32, value: &[u8]) -> Vec<u8> {
    [format!("set {key} 0 {ttl} {}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat()
}

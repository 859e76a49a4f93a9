//! A client that can be unkind.
//!
//! Upstream:   cases say what to send, and what not to read.
//! Downstream: a socket to the server, of either kind.

use std::collections::HashMap;
use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, sockopt};

use crate::subject::PATIENCE;

/// A socket that takes nothing for so long is taken to be blocked.
const BLOCKED_AFTER: Duration = Duration::from_millis(500);

/// A connection.
pub(crate) struct Client {
    socket: File,
}

/// What a look at a connection found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    Nothing,
    Bytes(usize),
    Closed,
}

impl Client {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        // A unix socket knows no delay.
        let _unix = sockopt::set_tcp_nodelay(&socket, true);
        let client = Self { socket: socket.into() };
        client.set_patience(PATIENCE);
        sockopt::set_socket_timeout(&client.socket, sockopt::Timeout::Send, Some(PATIENCE))
            .expect("a time limit");
        client
    }

    pub(crate) fn set_patience(&self, time: Duration) {
        sockopt::set_socket_timeout(&self.socket, sockopt::Timeout::Recv, Some(time))
            .expect("a time limit");
    }

    pub(crate) fn socket(&self) -> &File {
        &self.socket
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.socket.write_all(bytes.as_ref()).expect("the server takes it");
    }

    /// Sends, or says that the server has closed.
    pub(crate) fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.socket.write_all(bytes.as_ref()).is_ok()
    }

    /// Sends `bytes` if the kernel takes them at once.
    pub(crate) fn offer(&mut self, bytes: &[u8]) {
        if self.becomes(PollFlags::OUT, Duration::ZERO) {
            self.send(bytes);
        }
    }

    /// Sends `bytes` again and again until the server takes no more; returns how many it took.
    pub(crate) fn flood(&mut self, bytes: &[u8]) -> u64 {
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
    pub(crate) fn is_ended_within(&self, time: Duration) -> bool {
        self.becomes(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR, time)
    }

    /// Takes what comes within the patience that was set, into `buffer`.
    pub(crate) fn look(&mut self, buffer: &mut [u8]) -> Look {
        match self.socket.read(buffer) {
            Ok(0) => Look::Closed,
            Ok(count) => Look::Bytes(count),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Look::Nothing,
            Err(_) => Look::Closed,
        }
    }

    /// Everything up to `last`, that included.
    pub(crate) fn read_until(&mut self, last: &[u8]) -> Vec<u8> {
        let mut received = Vec::new();
        let mut buffer = [0; 16384];
        while !received.ends_with(last) {
            match self.look(&mut buffer) {
                Look::Bytes(count) => received.extend_from_slice(&buffer[..count]),
                other => {
                    let shown = received.len().saturating_sub(80);
                    panic!("{other:?} after ..{}", received[shown..].escape_ascii());
                }
            }
        }
        received
    }

    /// Fills `buffer`.
    pub(crate) fn read_whole<'a>(&mut self, buffer: &'a mut [u8]) -> &'a [u8] {
        self.socket.read_exact(buffer).expect("the server answers");
        buffer
    }

    /// What comes up to the end of a line, and nothing of what follows.
    pub(crate) fn read_line(&mut self) -> Vec<u8> {
        let mut line = Vec::new();
        while !line.ends_with(b"\n") {
            let mut byte = [0];
            line.extend_from_slice(self.read_whole(&mut byte));
        }
        line
    }

    /// All that comes until the server closes in order.
    pub(crate) fn read_to_end(&mut self) -> Vec<u8> {
        let mut received = Vec::new();
        self.socket.read_to_end(&mut received).expect("an end in order");
        received
    }

    /// Asks, and takes the reply up to `last`, as text.
    pub(crate) fn ask(&mut self, request: impl AsRef<[u8]>, last: &str) -> String {
        self.send(request);
        String::from_utf8_lossy(&self.read_until(last.as_bytes())).into_owned()
    }

    /// Stores, and demands that it is.
    pub(crate) fn set(&mut self, key: &str, value: &[u8]) {
        assert_eq!(self.try_set(key, value), "STORED\r\n");
    }

    /// Stores; what the server answered.
    pub(crate) fn try_set(&mut self, key: &str, value: &[u8]) -> String {
        self.send(set_request(key, 0, value));
        String::from_utf8_lossy(&self.read_until(b"\r\n")).into_owned()
    }

    /// The value of `key`, if it is there.
    pub(crate) fn get(&mut self, key: &str) -> Option<Vec<u8>> {
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

    pub(crate) fn stats(&mut self) -> HashMap<String, String> {
        let text = self.ask("stats\r\n", "END\r\n");
        let pairs = text.lines().filter_map(|line| line.strip_prefix("STAT ")?.split_once(' '));
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    /// Ends our side; the other may go on sending.
    pub(crate) fn end_sending(&self) {
        rustix::net::shutdown(&self.socket, Shutdown::Write).expect("an open socket");
    }

    /// Goes away as a crashed machine does that came back: by a reset.
    pub(crate) fn reset(self) {
        sockopt::set_socket_linger(&self.socket, Some(Duration::ZERO)).expect("a socket");
    }

    /// How long a small `get` took, from sending to its whole reply.
    pub(crate) fn time_get(&mut self, request: &[u8], last: &[u8]) -> Duration {
        let began = Instant::now();
        self.send(request);
        self.read_until(last);
        began.elapsed()
    }
}

/// Has each client send `bytes` again and again until the server takes no more of any; returns how
/// many it took.
pub(crate) fn flood(clients: &mut [Client], bytes: &[u8]) -> u64 {
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

/// The bytes of a `set`.
pub(crate) fn set_request(key: &str, ttl: u32, value: &[u8]) -> Vec<u8> {
    [format!("set {key} 0 {ttl} {}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat()
}

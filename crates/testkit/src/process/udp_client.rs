//! A client of a UDP port.
//!
//! Upstream:   tests.
//! Downstream: a socket.
//!
//! The frame of a datagram is written and read here, not by the code that is tested: request,
//! sequence number, number of datagrams and a reserved word, of 16 bits each (protocol.txt).

use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use super::waiting::PATIENCE;

/// A reply that has not come in this time does not come.
const SILENCE: Duration = Duration::from_millis(300);
/// Bytes of a frame.
const FRAME_BYTES: usize = 8;
/// More than the bytes of any datagram with a reply.
const DATAGRAM_BYTES_MAX: usize = 2000;

/// A client of one UDP port.
#[derive(Debug)]
pub struct UdpClient {
    udp: UdpSocket,
    request_id: u16,
}

impl UdpClient {
    /// A client of a port of this machine.
    pub fn at(port: u16) -> Self {
        Self::with(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket"), port)
    }

    /// A client of a port of this machine, with a socket that is bound.
    pub fn with(udp: UdpSocket, port: u16) -> Self {
        udp.connect((Ipv4Addr::LOCALHOST, port)).expect("an address");
        Self { udp, request_id: 100 }
    }

    /// Sends a request in one datagram.
    pub fn send(&mut self, request: &[u8]) {
        self.request_id += 1;
        let words = [self.request_id, 0, 1, 0].map(u16::to_be_bytes);
        self.udp.send(&[words.as_flattened(), request].concat()).expect("it is sent");
    }

    /// The reply to the last request, from all its datagrams.
    ///
    /// # Panics
    /// If none comes, or a datagram has a wrong frame.
    pub fn read(&self) -> Vec<u8> {
        self.udp.set_read_timeout(Some(PATIENCE)).expect("a time limit");
        let mut reply = Vec::new();
        let mut total = 1;
        let mut sequence = 0;
        while sequence < total {
            let mut datagram = [0; DATAGRAM_BYTES_MAX];
            let bytes = self.udp.recv(&mut datagram).expect("a reply");
            assert!(bytes >= FRAME_BYTES, "a frame");
            let word = |at: usize| u16::from_be_bytes([datagram[at], datagram[at + 1]]);
            if sequence == 0 {
                total = word(4);
            }
            assert_eq!([word(0), word(2), word(4)], [self.request_id, sequence, total]);
            reply.extend_from_slice(&datagram[FRAME_BYTES..bytes]);
            sequence += 1;
        }
        reply
    }

    /// Sends a request, and reads its reply.
    ///
    /// # Panics
    /// As [`Self::read`].
    pub fn ask(&mut self, request: &[u8]) -> Vec<u8> {
        self.send(request);
        self.read()
    }

    /// Whether nothing comes for a while.
    pub fn is_silent(&self) -> bool {
        self.udp.set_read_timeout(Some(SILENCE)).expect("a time limit");
        self.udp.recv(&mut [0; DATAGRAM_BYTES_MAX]).is_err()
    }
}

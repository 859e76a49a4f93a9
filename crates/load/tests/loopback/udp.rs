//! The small server over UDP.
//!
//! Upstream:   `serve` binds the port.
//! Downstream: `Server::talk`, with the bytes of one datagram.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::Ordering;

use super::{Fault, Server};

/// Bytes of a reply in one datagram.
const PART_BYTES: usize = 1392;

impl Server {
    /// Answers each datagram. The parts of a long answer are sent in reverse order.
    pub(crate) fn answer_datagrams(&self, socket: &UdpSocket) {
        let mut datagram = [0; 65_536];
        while let Ok((bytes, from)) = socket.recv_from(&mut datagram) {
            let (frame, request) = datagram[..bytes].split_at(8);
            assert_eq!(frame[2..], [0, 0, 0, 1, 0, 0], "one datagram a request");
            let number = self.gets.load(Ordering::Relaxed);
            let mut answer = Vec::new();
            self.talk(request, &mut answer).expect("memory takes everything");
            self.send_parts(socket, from, [frame[0], frame[1]], number, &answer);
        }
    }

    fn send_parts(
        &self,
        socket: &UdpSocket,
        from: SocketAddr,
        mut id: [u8; 2],
        number: usize,
        answer: &[u8],
    ) {
        let parts: Vec<&[u8]> = answer.chunks(PART_BYTES).collect();
        let total = parts.len() as u8;
        for (sequence, part) in parts.iter().enumerate().rev() {
            let mut sequence = sequence as u8;
            match self.fault {
                Fault::Lost { at_get } if number == at_get && sequence == 0 => continue,
                Fault::Sequence { at_get } if number == at_get && sequence == 0 => {
                    sequence = total - 1 + u8::from(total == 1);
                }
                Fault::Id { at_get } if number == at_get => id[0] ^= 0x80,
                Fault::Twice { at_get } if number == at_get => {
                    let frame = [id[0], id[1], 0, sequence, 0, total, 0, 0];
                    let _ = socket.send_to(&[&frame[..], part].concat(), from);
                }
                _ => {}
            }
            let frame = [id[0], id[1], 0, sequence, 0, total, 0, 0];
            // A generator that has ended does not receive it.
            let _ = socket.send_to(&[&frame[..], part].concat(), from);
        }
    }
}

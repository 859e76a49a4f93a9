//! The binary protocol of the small server.
//!
//! Upstream:   `Server::talk`, for a connection or datagram whose first byte is that of a request.
//! Downstream: the store and the faults of the server.

use std::io::{BufRead, ErrorKind, Write};
use std::sync::atomic::Ordering;

use super::{Fault, Server};

const GET: u8 = 0x00;
const SET: u8 = 0x01;
const DELETE: u8 = 0x04;
const INCREMENT: u8 = 0x05;
const NOOP: u8 = 0x0a;
const GETKQ: u8 = 0x0d;

const NOT_FOUND: u8 = 1;
const UNKNOWN: u8 = 0x81;

/// The header of a request.
struct Head {
    opcode: u8,
    opaque: [u8; 4],
}

impl Head {
    /// A reply with client flags if it is a hit, and a key.
    fn reply(&self, status: u8, key: &[u8], value: &[u8]) -> Vec<u8> {
        let is_hit = status == 0 && matches!(self.opcode, GET | GETKQ);
        let extras: &[u8] = if is_hit { &[0; 4] } else { &[] };
        let body_bytes = (extras.len() + key.len() + value.len()) as u32;
        let mut reply = vec![0; 24];
        (reply[0], reply[1], reply[3]) = (0x81, self.opcode, key.len() as u8);
        (reply[4], reply[7]) = (extras.len() as u8, status);
        reply[8..12].copy_from_slice(&body_bytes.to_be_bytes());
        reply[12..16].copy_from_slice(&self.opaque);
        reply.extend([extras, key, value].concat());
        reply
    }
}

impl Server {
    /// Answers binary requests until the input ends.
    pub(crate) fn talk_binary(
        &self,
        input: &mut impl BufRead,
        output: &mut impl Write,
    ) -> std::io::Result<()> {
        loop {
            let mut header = [0; 24];
            match input.read_exact(&mut header) {
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
                read => read?,
            }
            assert_eq!(header[0], 0x80, "the generator sends binary requests only");
            let body_bytes = u32::from_be_bytes([header[8], header[9], header[10], header[11]]);
            let mut body = vec![0; body_bytes as usize];
            input.read_exact(&mut body)?;
            let opaque = [header[12], header[13], header[14], header[15]];
            let head = Head { opcode: header[1], opaque };
            let (key, value) = body[usize::from(header[4])..].split_at(usize::from(header[3]));
            output.write_all(&self.binary_answer(head, key, value))?;
        }
    }

    fn binary_answer(&self, mut head: Head, key: &[u8], value: &[u8]) -> Vec<u8> {
        let mut store = self.store.lock().expect("no panic");
        match head.opcode {
            GET | GETKQ => {
                let number = self.gets.fetch_add(1, Ordering::Relaxed);
                if matches!(self.fault, Fault::Opaque { at_get } if number == at_get) {
                    head.opaque[0] ^= 1;
                }
                let sent_key = if head.opcode == GETKQ { key } else { b"" };
                match store.get(key) {
                    None if head.opcode == GETKQ => Vec::new(),
                    None => head.reply(NOT_FOUND, b"", b"Not found"),
                    Some(value) => {
                        let is_short =
                            matches!(self.fault, Fault::Short { at_get } if number >= at_get);
                        let value = &value[..value.len() - usize::from(is_short)];
                        head.reply(0, sent_key, value)
                    }
                }
            }
            SET => {
                store.insert(key.to_vec(), value.to_vec());
                head.reply(0, b"", b"")
            }
            DELETE => match store.remove(key) {
                Some(_) => head.reply(0, b"", b""),
                None => head.reply(NOT_FOUND, b"", b"Not found"),
            },
            INCREMENT => {
                assert_eq!(value, b"", "an increment has no value");
                match store.contains_key(key) {
                    true => head.reply(0, b"", &[0; 8]),
                    false => head.reply(NOT_FOUND, b"", b"Not found"),
                }
            }
            NOOP => head.reply(0, b"", b""),
            _ => head.reply(UNKNOWN, b"", b"Unknown command"),
        }
    }
}

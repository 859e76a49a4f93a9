//! The frames of Ethernet with a GET over IPv4 and UDP, and those with its reply.
//!
//! Upstream:   `drive`, with the key and the number of a request.
//! Downstream: the packet socket.
//!
//! ```text
//! 0          14     34    42             50
//! Ethernet | IPv4 | UDP | id 0 0 0 1 0 0 | get KEY\r\n
//! ```
//!
//! Invariants, cited by number where they are asserted:
//! - I1  All requests have one length, so only the port, the number, the key and the checksum of
//!   UDP differ.

use std::net::{Ipv4Addr, SocketAddrV4};

use kachel_wire::{FRAME_BYTES, Frame};

const ETHERNET_BYTES: usize = 14;
const IP_AT: usize = ETHERNET_BYTES;
const IP_BYTES: usize = 20;
const UDP_AT: usize = IP_AT + IP_BYTES;
const UDP_BYTES: usize = 8;
const DATAGRAM_AT: usize = UDP_AT + UDP_BYTES;
const BODY_AT: usize = DATAGRAM_AT + FRAME_BYTES;
const UDP: u8 = 17;
const IPV4: [u8; 2] = [0x08, 0x00];

/// The addresses of both ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    pub(crate) client_mac: [u8; 6],
    pub(crate) server_mac: [u8; 6],
    pub(crate) client: Ipv4Addr,
    pub(crate) server: SocketAddrV4,
}

/// The request of which all others are copies.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    bytes: Vec<u8>,
}

impl Template {
    /// GETs of keys of this length.
    pub(crate) fn new(ends: &Ends, key_bytes: usize) -> Self {
        let body_bytes = b"get ".len() + key_bytes + b"\r\n".len();
        let udp_bytes = (UDP_BYTES + FRAME_BYTES + body_bytes) as u16;
        let mut bytes = Vec::with_capacity(BODY_AT + body_bytes);
        bytes.extend(ends.server_mac);
        bytes.extend(ends.client_mac);
        bytes.extend(IPV4);
        // Version 4 with 5 words, not a fragment (DF), 64 hops.
        bytes.extend([0x45, 0]);
        bytes.extend((IP_BYTES as u16 + udp_bytes).to_be_bytes());
        bytes.extend([0, 0, 0x40, 0, 64, UDP, 0, 0]);
        bytes.extend(ends.client.octets());
        bytes.extend(ends.server.ip().octets());
        let checksum = !fold(sum(&bytes[IP_AT..]));
        bytes[IP_AT + 10..IP_AT + 12].copy_from_slice(&checksum.to_be_bytes());
        bytes.extend([0, 0]);
        bytes.extend(ends.server.port().to_be_bytes());
        bytes.extend(udp_bytes.to_be_bytes());
        bytes.extend([0, 0]);
        bytes.extend(Frame { request_id: 0, sequence: 0, total: 1 }.bytes());
        bytes.extend(b"get ");
        bytes.resize(bytes.len() + key_bytes, b'k');
        bytes.extend(b"\r\n");
        assert!(bytes.len() == BODY_AT + body_bytes, "I1");
        Self { bytes }
    }

    /// The length of each request.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Appends a request from this port.
    #[inline]
    pub(crate) fn put(&self, port: u16, request_id: u16, key: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&self.bytes);
        let frame = &mut out[start..];
        debug_assert!(BODY_AT + 4 + key.len() + 2 == frame.len(), "I1");
        frame[UDP_AT..UDP_AT + 2].copy_from_slice(&port.to_be_bytes());
        frame[DATAGRAM_AT..DATAGRAM_AT + 2].copy_from_slice(&request_id.to_be_bytes());
        frame[BODY_AT + 4..BODY_AT + 4 + key.len()].copy_from_slice(key);
        // The pseudo header: both addresses, the protocol, the length.
        let udp_bytes = (frame.len() - UDP_AT) as u64;
        let pseudo = sum(&frame[UDP_AT - 8..UDP_AT]) + u64::from(UDP) + udp_bytes;
        let checksum = match !fold(pseudo + sum(&frame[UDP_AT..])) {
            0 => 0xffff, // 0 would say that there is none.
            checksum => checksum,
        };
        frame[UDP_AT + 6..UDP_AT + 8].copy_from_slice(&checksum.to_be_bytes());
    }
}

/// A datagram from the server to one of the flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reply<'f> {
    /// The port of the flow.
    pub(crate) port: u16,
    pub(crate) request_id: u16,
    /// Whether it is the whole reply.
    pub(crate) is_whole: bool,
    /// The bytes behind the frame of memcached.
    pub(crate) body: &'f [u8],
}

/// Reads a frame. `None` if it is not a datagram from the server to the client's address, or cut.
#[inline]
pub(crate) fn read<'f>(ends: &Ends, frame: &'f [u8]) -> Option<Reply<'f>> {
    let is_plain = frame.len() >= BODY_AT
        && frame[12..14] == IPV4
        && frame[IP_AT] == 0x45
        && frame[IP_AT + 9] == UDP
        && frame[IP_AT + 12..IP_AT + 16] == ends.server.ip().octets()
        && frame[IP_AT + 16..IP_AT + 20] == ends.client.octets()
        && frame[UDP_AT..UDP_AT + 2] == ends.server.port().to_be_bytes();
    if !is_plain {
        return None;
    }
    let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let udp_bytes = usize::from(word(UDP_AT + 4));
    // Short frames may be padded.
    let datagram = frame.get(DATAGRAM_AT..UDP_AT + udp_bytes)?;
    let (_, body) = datagram.split_first_chunk::<FRAME_BYTES>()?;
    let is_whole = matches!(Frame::read(datagram), Some((Frame { total: 1, .. }, _)));
    Some(Reply { port: word(UDP_AT + 2), request_id: word(DATAGRAM_AT), is_whole, body })
}

/// The item in a reply to a GET of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found<'b> {
    Miss,
    Value { key: &'b [u8], value: &'b [u8] },
}

/// Reads the reply to a GET of one key, client flags 0. `None` if it is anything else.
#[inline]
pub(crate) fn item(body: &[u8]) -> Option<Found<'_>> {
    if body == b"END\r\n" {
        return Some(Found::Miss);
    }
    let rest = body.strip_prefix(b"VALUE ")?;
    let key_bytes = rest.iter().position(|&byte| byte == b' ')?;
    let (key, rest) = rest.split_at(key_bytes);
    let rest = rest.strip_prefix(b" 0 ")?;
    let digits = rest.iter().position(|&byte| byte == b'\r')?;
    let (digits, rest) = rest.split_at(digits);
    let bytes: usize = std::str::from_utf8(digits).ok()?.parse().ok()?;
    let rest = rest.strip_prefix(b"\r\n")?;
    let (value, rest) = rest.split_at_checked(bytes)?;
    (rest == b"\r\nEND\r\n").then_some(Found::Value { key, value })
}

/// The sum of the words of 16 bits, not folded.
#[inline]
fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<2>();
    let sum: u64 = words.iter().map(|&word| u64::from(u16::from_be_bytes(word))).sum();
    sum + rest.first().map_or(0, |&byte| u64::from(byte) << 8)
}

/// Folds a sum to 16 bits, with the carries added (RFC 1071).
#[inline]
fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends() -> Ends {
        Ends {
            client_mac: [2, 0, 0, 0, 0, 1],
            server_mac: [2, 0, 0, 0, 0, 2],
            client: Ipv4Addr::new(10, 0, 0, 1),
            server: "10.0.0.2:11211".parse().expect("an address"),
        }
    }

    /// The same datagram on its way back: addresses and ports change places.
    fn turned(frame: &[u8]) -> Vec<u8> {
        let mut back = frame.to_vec();
        back[..6].copy_from_slice(&frame[6..12]);
        back[6..12].copy_from_slice(&frame[..6]);
        back[26..30].copy_from_slice(&frame[30..34]);
        back[30..34].copy_from_slice(&frame[26..30]);
        back[34..36].copy_from_slice(&frame[36..38]);
        back[36..38].copy_from_slice(&frame[34..36]);
        back
    }

    #[test]
    fn a_request_has_right_lengths_and_checksums() {
        for key in [&b"k"[..], b"k0", b"k00000000000042"] {
            let template = Template::new(&ends(), key.len());
            let mut frame = Vec::new();
            template.put(40_000, 0x1234, key, &mut frame);
            assert_eq!(frame.len(), template.bytes());
            assert_eq!(u16::from_be_bytes([frame[16], frame[17]]) as usize, frame.len() - 14);
            assert_eq!(u16::from_be_bytes([frame[38], frame[39]]) as usize, frame.len() - 34);
            assert_eq!(fold(sum(&frame[14..34])), 0xffff, "the checksum of IP");
            let pseudo = sum(&frame[26..34]) + 17 + (frame.len() - 34) as u64;
            assert_eq!(fold(pseudo + sum(&frame[34..])), 0xffff, "the checksum of UDP");
            let body = [b"get ", key, b"\r\n"].concat();
            let reply = Reply { port: 40_000, request_id: 0x1234, is_whole: true, body: &body };
            assert_eq!(read(&ends(), &turned(&frame)), Some(reply));
        }
    }

    /// The example of RFC 1071.
    #[test]
    fn checksums_are_those_of_the_standard() {
        assert_eq!(fold(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7])), 0xddf2);
        assert_eq!(fold(sum(&[0xff, 0xff, 0x01])), 0x0100);
    }

    #[test]
    fn frames_that_are_not_replies_are_passed_over() {
        let template = Template::new(&ends(), 4);
        let mut frame = Vec::new();
        template.put(40_000, 7, b"k000", &mut frame);
        assert_eq!(read(&ends(), &frame), None, "a request");
        let reply = turned(&frame);
        assert!(read(&ends(), &reply).is_some());
        // Type, options of IP, TCP, another server, another client, another port.
        for at in [12, 14, 23, 29, 33, 35] {
            let mut other = reply.clone();
            other[at] ^= 1;
            assert_eq!(read(&ends(), &other), None, "byte {at}");
        }
        for bytes in 0..reply.len() {
            assert_eq!(read(&ends(), &reply[..bytes]), None, "cut at {bytes}");
        }
        let padded = [&reply[..], &[0; 20]].concat();
        assert_eq!(read(&ends(), &padded).expect("a reply").body, b"get k000\r\n");
        let mut part = reply;
        part[47] = 2;
        assert!(!read(&ends(), &part).expect("a datagram").is_whole);
    }

    #[test]
    fn items_are_read_and_other_replies_are_not() {
        let (key, value) = (&b"k7"[..], &b"ab\r\nc"[..]);
        let reply = b"VALUE k7 0 5\r\nab\r\nc\r\nEND\r\n";
        assert_eq!(item(reply), Some(Found::Value { key, value }));
        assert_eq!(item(b"END\r\n"), Some(Found::Miss));
        for wrong in [
            &b""[..],
            b"ERROR\r\n",
            b"END\r\n\r\n",
            b"VALUE k7 1 5\r\nab\r\nc\r\nEND\r\n",
            b"VALUE k7 0 4\r\nab\r\nc\r\nEND\r\n",
            b"VALUE k7 0 6\r\nab\r\nc\r\nEND\r\n",
            b"VALUE k7 0 99\r\nab\r\nc\r\nEND\r\n",
            b"VALUE k7 0 5\r\nab\r\nc\r\nEND\r\nEND\r\n",
        ] {
            assert_eq!(item(wrong), None, "{}", wrong.escape_ascii());
        }
    }
}

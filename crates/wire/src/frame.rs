//! The frame of UDP: the header before each datagram of a request or a reply.
//!
//! Upstream:   `shard`, with a datagram; with a reply that is to be cut into datagrams.
//! Downstream: the request behind the header is parsed as that of a connection.
//!
//! ```text
//! bytes of the header, each number big-endian
//! 0..2  request ID: chosen by the client, repeated in each datagram of the reply
//! 2..4  sequence number of the datagram, from 0 on
//! 4..6  total number of datagrams of the request or reply
//! 6..8  reserved: 0 in a reply, ignored in a request
//! ```
//!
//! Invariants:
//! - I1  A request is one datagram: its total is 1 and its sequence number 0. Nothing else is a
//!   request, so the meaning of a datagram does not depend on other datagrams.
//! - I2  No reply is a request. A reply that goes to another server, because its address was
//!   forged, must end there; otherwise two servers would answer each other without end.
//!
//! Source: memcached's protocol.txt, "UDP protocol". 1.6.45 also takes a request with any sequence
//! number.

/// Bytes of the header.
pub const FRAME_BYTES: usize = 8;

/// Whether a reply of some protocol begins with this byte: a word in upper case, a number, or the
/// magic of a binary reply. No request does.
const fn begins_reply(byte: u8) -> bool {
    byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == 0x81
}

/// The header of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The client's number of the request.
    pub request_id: u16,
    /// The number of the datagram, from 0 on.
    pub sequence: u16,
    /// The number of datagrams, at least 1.
    pub total: u16,
}

impl Frame {
    /// Reads the request ID of a datagram that is a whole request (I1). `None` if it is no request,
    /// such as a reply (I2): nothing may be answered. There is at least one byte behind the header.
    ///
    /// Cost: constant. Panics: never.
    ///
    /// ```
    /// use kachel_wire::Frame;
    /// assert_eq!(Frame::request_id(b"\x12\x34\0\0\0\x01\0\0get k\r\n"), Some(0x1234));
    /// assert_eq!(Frame::request_id(b"\x12\x34\0\0\0\x02\0\0get k\r\n"), None);
    /// assert_eq!(Frame::request_id(b"\x12\x34\0\0\0\x01\0\0END\r\n"), None);
    /// ```
    #[inline]
    pub fn request_id(datagram: &[u8]) -> Option<u16> {
        let (header, request) = datagram.split_first_chunk::<FRAME_BYTES>()?;
        let [high, low, 0, 0, 0, 1, _, _] = *header else { return None };
        let &first = request.first()?;
        (!begins_reply(first)).then(|| u16::from_be_bytes([high, low]))
    }

    /// Reads the header of a datagram and the bytes behind it. `None` if the datagram is too short
    /// for a header, or its numbers contradict each other. For clients.
    pub fn read(datagram: &[u8]) -> Option<(Self, &[u8])> {
        let (header, body) = datagram.split_first_chunk::<FRAME_BYTES>()?;
        let [id, sequence, total] =
            [0, 2, 4].map(|at| u16::from_be_bytes([header[at], header[at + 1]]));
        let frame = Self { request_id: id, sequence, total };
        (sequence < total).then_some((frame, body))
    }

    /// The bytes of the header.
    #[inline]
    pub fn bytes(self) -> [u8; FRAME_BYTES] {
        debug_assert!(self.sequence < self.total, "datagrams are numbered from 0 on");
        let [id, sequence, total] =
            [self.request_id, self.sequence, self.total].map(u16::to_be_bytes);
        [id[0], id[1], sequence[0], sequence[1], total[0], total[1], 0, 0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reply;

    #[test]
    fn only_a_whole_request_is_one() {
        let rows: [(&[u8], Option<u16>); 12] = [
            (b"", None),
            (b"\0\x07\0\0\0\x01\0", None),
            (b"\0\x07\0\0\0\x01\0\0", None),
            (b"\0\x07\0\0\0\x01\0\0x", Some(7)),
            (b"\xff\xff\0\0\0\x01\0\0x", Some(0xffff)),
            (b"\0\x07\0\0\0\x01\xff\xffx", Some(7)),
            (b"\0\x07\0\0\0\0\0\0x", None),
            (b"\0\x07\0\0\0\x02\0\0x", None),
            (b"\0\x07\0\0\x01\x01\0\0x", None),
            (b"\0\x07\0\x01\0\x01\0\0x", None),
            (b"\0\x07\0\x05\0\x01\0\0x", None),
            (b"GET / HTTP/1.1\r\n\r\n", None),
        ];
        for (datagram, id) in rows {
            assert_eq!(Frame::request_id(datagram), id, "{}", datagram.escape_ascii());
        }
    }

    /// I2.
    #[test]
    fn no_reply_is_a_request() {
        let constant = Reply::ALL.iter().map(|reply| reply.bytes()).filter(|text| !text.is_empty());
        let others: [&[u8]; 8] = [
            b"7\r\n",
            b"VALUE k 0 2\r\nxy\r\nEND\r\n",
            b"VA 2\r\nxy\r\n",
            b"HD O1\r\n",
            b"ME k exp=-1\r\n",
            b"VERSION 1.6.45\r\n",
            b"STAT pid 1\r\nEND\r\n",
            b"\x81\x0a",
        ];
        for reply in constant.chain(others) {
            let frame = Frame { request_id: 7, sequence: 0, total: 1 };
            let datagram = [&frame.bytes()[..], reply].concat();
            assert_eq!(Frame::request_id(&datagram), None, "{}", reply.escape_ascii());
        }
    }

    #[test]
    fn a_header_is_read_as_it_was_written() {
        for (request_id, sequence, total) in [(0, 0, 1), (0x1234, 0x0102, 0x0304), (65535, 1, 2)] {
            let frame = Frame { request_id, sequence, total };
            let datagram = [&frame.bytes()[..], b"END\r\n"].concat();
            assert_eq!(Frame::read(&datagram), Some((frame, &b"END\r\n"[..])));
        }
        assert_eq!(Frame::read(b"\0\0\0\0\0\x01\0"), None);
        assert_eq!(Frame::read(b"\0\0\0\x01\0\x01\0\0"), None, "the second of one");
        assert_eq!(Frame::read(b"\0\0\0\0\0\0\0\0"), None, "none of none");
    }
}

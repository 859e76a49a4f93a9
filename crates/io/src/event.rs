//! The types of an I/O backend: sockets, events, lent bytes. Those of files are in `files`.
//!
//! Upstream:   the backends (`epoll`, `uring`, `memory`) make events in `Io::poll`.
//! Downstream: `net` and `shard` match on them within the same tick.
//!
//! ```text
//! SocketId, low bits first:  slot index:32 | generation:32
//! ```
//!
//! Invariants, cited by number where they are asserted:
//! - I1  A slot's generation is never 0 and changes whenever the slot is given up, so that two
//!   connections never share a `SocketId`, and 0 names none.
//! - I2  A `Lent` is read only between the poll that reported it and the next one.

use std::fmt;
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ops::Range;

use kachel_stdx::Landing;

use crate::files::{DirectIoRefusal, FileOperation};
use crate::limits::SLACK_WAIT_NS_MIN;
use crate::send_block::SendBlock;

/// Names one connection of one `Io` during its whole life. The name is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketId(pub u64);

impl SocketId {
    /// The name of no connection (I1).
    pub const NONE: Self = Self(0);

    /// Composes the name of the connection in a slot. `generation` is not 0 (I1).
    #[inline]
    #[must_use]
    pub const fn new(index: u32, generation: u32) -> Self {
        Self((generation as u64) << 32 | index as u64)
    }

    /// The slot: small, dense and reused, so it may index a table of connections.
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        (self.0 & 0xffff_ffff) as usize
    }

    /// How often the slot has been used, this time included.
    #[inline]
    #[must_use]
    pub const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// Names one listening socket of one `Io`: its number in the order of `listen` calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub u32);

impl ListenerId {
    /// The number as an index.
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The peer of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// A process of this machine, through a unix socket.
    Local,
    /// The kernel tells no address, as of a connection that is broken. It may be anybody.
    Unknown,
    /// An IPv4 address and port.
    V4(SocketAddrV4),
    /// An IPv6 address and port.
    V6(SocketAddrV6),
}

impl From<SocketAddr> for Peer {
    fn from(address: SocketAddr) -> Self {
        match address {
            SocketAddr::V4(address) => Self::V4(address),
            SocketAddr::V6(address) => Self::V6(address),
        }
    }
}

/// Names one datagram socket of one `Io`: its number in the order of `receive_datagrams` calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramSocketId(pub u32);

impl DatagramSocketId {
    /// The number as an index.
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The two ends of a datagram: our socket, and the address of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramPeer {
    /// Our socket.
    pub socket: DatagramSocketId,
    /// The address that the datagram came from, or goes to. A sender can forge it.
    pub address: SocketAddr,
}

/// The name of a connection in messages to the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketName {
    /// The other end.
    pub peer: Peer,
    /// The descriptor in this process.
    pub descriptor: i32,
}

/// The address, or a word that stands for it.
impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("local"),
            Self::Unknown => f.write_str("unknown"),
            Self::V4(address) => address.fmt(f),
            Self::V6(address) => address.fmt(f),
        }
    }
}

impl fmt::Display for SocketName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.peer {
            Peer::Local => write!(f, "local client, fd {}", self.descriptor),
            Peer::Unknown => write!(f, "client without an address, fd {}", self.descriptor),
            Peer::V4(address) => write!(f, "{address}, fd {}", self.descriptor),
            Peer::V6(address) => write!(f, "{address}, fd {}", self.descriptor),
        }
    }
}

/// Set in the `start` of bytes that a layer above a backend lends. No receive area is so long.
const OF_LAYER: u32 = 1 << 31;

/// Received bytes: a range of the receive area, valid until the next poll (I2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lent {
    /// The number of the poll that lent the bytes; it wraps.
    pub(crate) tick: u32,
    /// Where the bytes begin in the receive area.
    pub(crate) start: u32,
    /// The number of bytes; 0 only in a datagram.
    pub(crate) bytes: u32,
}

impl Lent {
    /// The number of lent bytes; at least 1, except in a datagram, and at most
    /// `RECEIVE_BUFFER_BYTES`.
    #[inline]
    #[must_use]
    pub const fn byte_count(self) -> usize {
        self.bytes as usize
    }

    /// The lent bytes behind the first `count`.
    ///
    /// Panics: when there are fewer.
    #[inline]
    #[must_use]
    pub const fn behind(self, count: usize) -> Self {
        assert!(count <= self.bytes as usize, "a part of what is lent");
        let count = count as u32;
        Self { tick: self.tick, start: self.start + count, bytes: self.bytes - count }
    }

    /// `bytes` bytes from `start` on in the area of a layer above a backend, such as TLS, which
    /// lends them in its poll number `tick`.
    ///
    /// Panics: if the area is longer than 2 GiB.
    #[must_use]
    pub const fn of_layer(tick: u32, start: usize, bytes: usize) -> Self {
        assert!(start < OF_LAYER as usize && bytes < OF_LAYER as usize, "a short area");
        Self { tick, start: start as u32 | OF_LAYER, bytes: bytes as u32 }
    }

    /// Where the bytes are in the area of a layer. `None` if the backend itself lends them. `tick`
    /// is the number of the layer's last poll.
    ///
    /// Panics: if an earlier poll of the layer has lent them (I2).
    #[inline]
    #[must_use]
    pub fn range_in_layer(self, tick: u32) -> Option<Range<usize>> {
        if self.start & OF_LAYER == 0 {
            return None;
        }
        assert!(self.tick == tick, "I2: lent by an earlier poll");
        let start = (self.start & !OF_LAYER) as usize;
        Some(start..start + self.byte_count())
    }
}

/// Something that happened since the last poll.
///
/// For one socket the order is: `Accepted`, any number of `Received` and `Landed`, in the order of
/// the bytes, then `Finished` or `Failed`. `Sent` comes in the order of the blocks, at any time
/// before `Failed`. `Taken` of a block comes before its `Sent`.
#[derive(Debug)]
pub enum Event {
    /// A client connected. The backend receives from it, in this poll already or from the next one
    /// on.
    Accepted {
        /// Where it connected.
        listener: ListenerId,
        /// The new connection.
        socket: SocketId,
        /// The peer of the connection.
        peer: Peer,
    },
    /// A client connected, and its connection was reset before the backend could take it in. There
    /// is no socket.
    Gone,
    /// Bytes arrived. They are lent until the next poll.
    Received {
        /// The connection.
        socket: SocketId,
        /// The bytes; see [`crate::Io::lent`].
        bytes: Lent,
    },
    /// Bytes arrived in a landing; see [`crate::Io::receive_into`].
    Landed {
        /// The connection.
        socket: SocketId,
        /// The memory, filled from the front.
        landing: Landing,
        /// The number of bytes; at least 1, and no more than the landing takes.
        bytes: usize,
    },
    /// The peer ended its side. The bytes that it sent before have been reported; replies may still
    /// be sent.
    Finished {
        /// The connection.
        socket: SocketId,
    },
    /// The connection is broken (reset, error). Blocks that are not reported as sent yet are lost.
    /// No further event follows; the owner must still call `close`.
    Failed {
        /// The connection.
        socket: SocketId,
    },
    /// The kernel has accepted a whole block. The block comes back with its bytes still in it.
    Sent {
        /// The connection.
        socket: SocketId,
        /// The block, to be reused.
        block: SendBlock,
    },
    /// The kernel has accepted a part of the first block that has not come back. The kernel takes
    /// more only after the peer has read.
    Taken {
        /// The connection.
        socket: SocketId,
        /// Bytes of the block that the kernel has accepted so far; at least 1.
        block_bytes: usize,
    },
    /// A datagram arrived. Its bytes are lent until the next poll.
    Datagram {
        /// Our socket, and the address of the sender.
        from: DatagramPeer,
        /// The datagram; it may be empty.
        bytes: Lent,
        /// Whether the datagram was longer than [`crate::DATAGRAM_BYTES_MAX`] and is cut.
        is_cut: bool,
    },
    /// Datagrams that were to be sent are lost.
    DatagramsLost {
        /// Their number, at least 1.
        count: u64,
    },
    /// An operation on a file has completed, with or without success. It is its owner's again, with
    /// all that it was submitted with.
    FileDone {
        /// The operation, with its result.
        operation: Box<FileOperation>,
    },
    /// Direct I/O is refused, so the files of a folder use the page cache. Reported once for each
    /// [`crate::FolderHandle`] and its clones, before the `FileDone` of the operation that found
    /// it.
    DirectIoRefused {
        /// The folder, and a line for the operator.
        refusal: DirectIoRefusal,
    },
    /// Another thread called [`crate::Waker::wake`] since the last `Woken`.
    Woken,
}

impl Event {
    /// Reports a completed operation, and what it found.
    pub(crate) fn report_file(mut operation: Box<FileOperation>, events: &mut Vec<Self>) {
        if let Some(refusal) = operation.take_refusal() {
            events.push(Self::DirectIoRefused { refusal });
        }
        events.push(Self::FileDone { operation });
    }
}

/// How long a poll may wait when there is nothing to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    Now,
    /// At most this number of nanoseconds.
    AtMostNs(u64),
    /// Until something happens.
    Forever,
}

impl Wait {
    /// This wait, but at most this number of nanoseconds.
    #[must_use]
    pub fn at_most_ns(self, ns: u64) -> Self {
        match self {
            Self::Now => Self::Now,
            _ if ns == 0 => Self::Now,
            Self::AtMostNs(own_ns) => Self::AtMostNs(own_ns.min(ns)),
            Self::Forever => Self::AtMostNs(ns),
        }
    }

    /// Whether the wait is so long that an event may be kept back for `Limits::slack_us`.
    #[inline]
    pub(crate) fn has_slack(self) -> bool {
        match self {
            Self::Now => false,
            Self::AtMostNs(ns) => ns >= SLACK_WAIT_NS_MIN,
            Self::Forever => true,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn socket_id_keeps_index_and_generation_apart() {
        let id = SocketId::new(u32::MAX - 1, 7);
        assert_eq!(id.index(), u32::MAX as usize - 1);
        assert_eq!(id.generation(), 7);
        assert_ne!(id, SocketId::new(u32::MAX - 1, 8));
    }

    #[test]
    fn bytes_of_a_layer_are_told_from_those_of_a_backend() {
        let of_layer = Lent::of_layer(7, 100, 20);
        assert_eq!((of_layer.range_in_layer(7), of_layer.byte_count()), (Some(100..120), 20));
        assert_eq!(Lent { tick: 7, start: 100, bytes: 20 }.range_in_layer(7), None);
    }

    #[test]
    #[should_panic(expected = "I2")]
    fn bytes_of_an_earlier_poll_are_not_lent() {
        let _range = Lent::of_layer(7, 100, 20).range_in_layer(8);
    }
}

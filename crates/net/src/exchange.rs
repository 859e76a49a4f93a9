//! Exchanges: a request that is one datagram, and its reply.
//!
//! Upstream:   `shard`, with a datagram that is a request.
//! Downstream: its input is served as that of a connection; `io` gets the datagrams of the reply.
//!
//! An exchange is a connection without a socket. Its input is the datagram, and nothing comes
//! behind it. Its replies stay in the outbox until all requests of the datagram are answered and
//! their fences are reached. Then they are cut into datagrams, and the exchange ends. If a fence is
//! lost, the exchange ends without a reply, but not before all its requests are answered: while one
//! is awaited, no later one may overtake it.
//!
//! ```text
//! datagram -> frame | requests -> connection -> outbox -> frame 0 | bytes, frame 1 | bytes, ...
//! ```
//!
//! Invariants, cited by number where they are asserted:
//! - I1  An exchange keeps nothing of an earlier one, of any peer.
//! - I2  A reply has at most the datagrams that the server allows. A longer one is replaced by an
//!   error.
//! - I3  There are at most `EXCHANGES_MAX` exchanges. Their memory is kept for later ones.

use kachel_io::{DatagramPeer, Io, SocketId};
use kachel_wire::request::BinaryHead;
use kachel_wire::{FRAME_BYTES, Frame, Reply, Sink};

use crate::blocks::BlockPool;
use crate::connection::Connection;
use crate::endpoint::EndpointIndex;
use crate::index::ExchangeIndex;
use crate::slots::{Fence, Slots};
use crate::stream::Source;

/// The most exchanges of a shard at a time. While they are all under way, datagrams wait in the
/// kernel.
pub const EXCHANGES_MAX: usize = 256;
/// Bytes of the longest datagram of a reply, its frame included, as in memcached: with the headers
/// of UDP and IP it fits a frame of Ethernet.
pub const DATAGRAM_REPLY_BYTES_MAX: usize = 1400;
/// The most datagrams of a reply that a server may allow. More would not fit the memory that a
/// connection may owe.
pub const REPLY_DATAGRAMS_MAX: u16 = 16;
/// Bytes of a reply in one datagram.
const BODY_BYTES_MAX: usize = DATAGRAM_REPLY_BYTES_MAX - FRAME_BYTES;

const _: () = {
    let reply_bytes_max = REPLY_DATAGRAMS_MAX as usize * BODY_BYTES_MAX;
    assert!(reply_bytes_max < crate::limits::OWN_BYTES_PER_CONNECTION);
};

/// The sender of a request.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    /// Our socket, and the address of the peer.
    pub peer: DatagramPeer,
    /// The number by which the peer knows the request.
    pub request_id: u16,
    /// The head of the first request, in the binary protocol.
    pub head: Option<BinaryHead>,
}

impl Asker {
    /// Sends a reply that is cut into datagrams. Does nothing if it is empty.
    fn send(self, io: &mut impl Io, reply: &[u8]) {
        let parts = reply.chunks(BODY_BYTES_MAX);
        let total = u16::try_from(parts.len()).expect("I2: a reply has few datagrams");
        for (sequence, part) in (0..total).zip(parts) {
            let frame = Frame { request_id: self.request_id, sequence, total };
            io.send_datagram(self.peer, [&frame.bytes(), part]);
        }
    }

    /// Sends a constant reply, in the protocol of the request. Returns its length.
    pub fn send_text(self, io: &mut impl Io, reply: Reply) -> usize {
        let mut space = Space { bytes: [0; SPACE_BYTES], used: 0 };
        match self.head {
            Some(head) => head.put_reply(&mut space, reply),
            None => space.put(reply.bytes()),
        }
        self.send(io, &space.bytes[..space.used]);
        space.used
    }
}

/// Bytes of the longest constant reply that is sent here.
const SPACE_BYTES: usize = 128;

/// Memory for a constant reply.
struct Space {
    bytes: [u8; SPACE_BYTES],
    used: usize,
}

impl Sink for Space {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.used..self.used + bytes.len()].copy_from_slice(bytes);
        self.used += bytes.len();
    }
}

/// One exchange, or the memory for one.
#[derive(Debug)]
struct Exchange {
    connection: Connection,
    /// `None` while it is free.
    asker: Option<Asker>,
    /// Whether its reply has become too long (I2).
    is_too_long: bool,
    /// Whether a fence of it is lost, so that it has no reply.
    is_lost: bool,
}

/// The state of an exchange after [`Exchanges::reply`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyState {
    /// A request is not answered yet, or a fence is not reached.
    Awaited,
    /// All requests are answered. The reply, of this length, is given to `io`; it is empty if no
    /// request wanted one.
    Sent {
        /// Bytes of the reply, without frames.
        bytes: usize,
        /// Whether the reply was too long, so that an error was sent instead.
        is_too_long: bool,
    },
}

/// The exchanges of a shard.
#[derive(Debug, Default)]
pub struct Exchanges {
    all: Vec<Exchange>,
    free: Vec<u32>,
    /// Memory for a reply that does not lie in one piece.
    pieces: Vec<u8>,
}

impl Exchanges {
    /// No exchanges, and no memory for any.
    pub const NONE: Self = Self { all: Vec::new(), free: Vec::new(), pieces: Vec::new() };

    /// The number of exchanges that may begin now (I3).
    #[inline]
    pub fn free_count(&self) -> usize {
        EXCHANGES_MAX - (self.all.len() - self.free.len())
    }

    /// Begins an exchange in `sweep`. `None` if all are under way (I3).
    pub fn begin(
        &mut self,
        asker: Asker,
        endpoint: EndpointIndex,
        sweep: u32,
    ) -> Option<ExchangeIndex> {
        let mut connection = Connection::new(SocketId::NONE, endpoint, sweep); // I1
        connection.begin_exchange();
        let exchange =
            Exchange { connection, asker: Some(asker), is_too_long: false, is_lost: false };
        let number = match self.free.pop() {
            Some(number) => {
                self.all[number as usize] = exchange;
                number
            }
            None if self.all.len() < EXCHANGES_MAX => {
                self.all.push(exchange);
                u32::try_from(self.all.len() - 1).expect("I3")
            }
            None => return None,
        };
        Some(ExchangeIndex(number))
    }

    fn get_mut(&mut self, index: ExchangeIndex) -> Option<&mut Exchange> {
        self.all.get_mut(index.number()).filter(|exchange| exchange.asker.is_some())
    }

    /// The connection of an exchange that is under way. It is cold because the code around its call
    /// must stay as short as it is for connections with sockets.
    #[cold]
    #[inline(never)]
    pub(crate) fn connection_mut(&mut self, index: ExchangeIndex) -> Option<&mut Connection> {
        self.get_mut(index).map(|exchange| &mut exchange.connection)
    }

    /// As [`Self::connection_mut`], to look at it.
    #[cold]
    #[inline(never)]
    pub(crate) fn connection(&self, index: ExchangeIndex) -> Option<&Connection> {
        let exchange = self.all.get(index.number())?;
        exchange.asker.is_some().then_some(&exchange.connection)
    }

    /// Sends the reply of an exchange if all its requests are answered. Then, the exchange is at
    /// its end, and the caller must call [`Self::end`]. Otherwise, it drops what of the reply is
    /// too long already, so that the later requests can be answered (I2). `datagrams_max` is the
    /// most datagrams of a reply; `is_reached` tells whether a fence is (`outbox`, I6), and
    /// `is_lost` whether it will never be. Then there is no reply, and no fence matters any more.
    ///
    /// Cost: a copy of the reply.
    ///
    /// Panics: when the exchange is not under way.
    pub fn reply<I: Io, S: Source>(
        &mut self,
        io: &mut I,
        index: ExchangeIndex,
        datagrams_max: u16,
        (blocks, slots): (&mut BlockPool, &mut Slots<S>),
        is_reached: impl Fn(Fence) -> bool,
        is_lost: impl Fn(Fence) -> bool,
    ) -> ReplyState {
        let Self { all, pieces, .. } = self;
        let Exchange { connection, asker, is_too_long, is_lost: has_lost } =
            &mut all[index.number()];
        let asker = asker.expect("an exchange that is under way");
        connection.outbox_mut().settle(blocks, slots, is_reached);
        let is_all = connection.is_served() || connection.is_draining();
        let outbox = connection.outbox_mut();
        *has_lost |= outbox.first_fence(slots).is_some_and(is_lost);
        let bytes_max = usize::from(datagrams_max) * BODY_BYTES_MAX;
        *is_too_long |= outbox.owed_bytes() > bytes_max;
        if *has_lost || *is_too_long {
            outbox.discard(blocks, slots, |_fence| !*has_lost);
        }
        if !is_all || outbox.slots_in_use() > 0 {
            return ReplyState::Awaited;
        }
        if *is_too_long && !*has_lost {
            let bytes = asker.send_text(io, Reply::TooLongForUdp);
            return ReplyState::Sent { bytes, is_too_long: true };
        }
        let bytes = outbox.owed_bytes();
        debug_assert!(bytes <= bytes_max, "I2");
        match outbox.pieces().find(|piece| !piece.is_empty()) {
            None => {}
            Some(whole) if whole.len() == bytes => asker.send(io, whole),
            Some(_) => {
                pieces.clear();
                outbox.pieces().for_each(|piece| pieces.extend_from_slice(piece));
                debug_assert!(pieces.len() == bytes, "all that is owed");
                asker.send(io, pieces);
            }
        }
        outbox.discard(blocks, slots, |_fence| true);
        ReplyState::Sent { bytes, is_too_long: false }
    }

    /// Ends an exchange (I1). Its connection holds no reply and no memory any more.
    ///
    /// Panics: when the exchange is not under way.
    pub fn end(&mut self, index: ExchangeIndex) {
        let exchange = self.get_mut(index).expect("an exchange that is under way");
        exchange.asker = None;
        debug_assert!(exchange.connection.outbox().is_empty(), "its replies are sent");
        self.free.push(index.0);
        debug_assert!(self.free.len() <= self.all.len(), "I3: it ends once");
    }
}

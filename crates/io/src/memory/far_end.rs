//! The other end of each connection in memory, held by a test.
//!
//! Upstream:   a test, or the simulator's clients.
//! Downstream: `Memory::poll` reads what was written and writes what is read.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;

use super::Memory;
use crate::event::{DatagramPeer, DatagramSocketId, ListenerId, Peer};
use crate::limits::Limits;

/// Clients that wait to be accepted: the number of their wire, and their address.
type Backlog = VecDeque<(usize, Peer)>;

/// Everything between near and far ends.
#[derive(Debug, Default)]
pub(super) struct Wires {
    pub(super) wires: Vec<Wire>,
    /// For each endpoint and each of its listeners: the clients that wait to be accepted.
    pub(super) endpoints: Vec<Vec<Backlog>>,
    /// For each endpoint, the datagrams of each of its sockets.
    pub(super) datagrams: Vec<Vec<DatagramQueues>>,
    /// Connections between `give_up` and `adopt`, by the token's descriptor.
    pub(super) handed_over: HashMap<i32, usize>,
}

/// The datagrams of one socket, with the address of the peer of each.
#[derive(Debug, Default)]
pub(super) struct DatagramQueues {
    pub(super) incoming: VecDeque<(SocketAddr, Vec<u8>)>,
    pub(super) outgoing: Vec<(SocketAddr, Vec<u8>)>,
}

/// One connection, from the client's end.
#[derive(Debug)]
pub(super) struct Wire {
    /// Written by the far end, a piece for each write, not yet received.
    pub(super) incoming: VecDeque<VecDeque<u8>>,
    pub(super) fin_in: bool,
    pub(super) reset: bool,
    /// Sent by the near end, not yet read.
    pub(super) outgoing: Vec<u8>,
    /// How many more bytes the near end may send; `usize::MAX`: any number.
    pub(super) window: usize,
    /// Buffers between the ends, if a test wants a kernel that holds bytes.
    pub(super) buffer: Option<Buffer>,
    pub(super) peer: Peer,
    pub(super) fin_out: bool,
    pub(super) closed: bool,
    pub(super) accepted: bool,
}

/// The buffers of a kernel: bytes that the near end has sent and the far end has not taken.
#[derive(Debug)]
pub(super) struct Buffer {
    bytes_max: usize,
    held: VecDeque<u8>,
    /// Bytes taken since the near end was last allowed to send more.
    freed: usize,
}

impl Wire {
    /// Moves bytes that the window allows from the near end towards the far end (I2 of `memory`).
    pub(super) fn carry(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.window, "I2");
        match &mut self.buffer {
            Some(buffer) => buffer.held.extend(bytes),
            None => self.outgoing.extend_from_slice(bytes),
        }
        if self.window != usize::MAX {
            self.window -= bytes.len();
        }
    }

    /// Bytes that are sent and not taken.
    pub(super) fn held_bytes(&self) -> usize {
        self.buffer.as_ref().map_or(0, |buffer| buffer.held.len())
    }
}

/// A network in memory: endpoints ([`Memory`], one for each shard) and clients.
#[derive(Clone, Debug, Default)]
pub struct MemoryNet {
    wires: Rc<RefCell<Wires>>,
}

impl MemoryNet {
    /// A network without connections.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens the next endpoint; the first is number 0.
    #[must_use]
    pub fn open(&self) -> Memory {
        self.open_with(Limits::default())
    }

    /// Opens the next endpoint with other than the default limits.
    #[must_use]
    pub fn open_with(&self, limits: Limits) -> Memory {
        let mut wires = self.wires.borrow_mut();
        wires.endpoints.push(Vec::new());
        wires.datagrams.push(Vec::new());
        Memory::open(self.wires.clone(), wires.endpoints.len() - 1, limits)
    }

    /// Sends a datagram from an address to a socket of an endpoint. A later poll reports it, after
    /// those that were sent before. So the caller decides which datagrams are lost, come twice, or
    /// overtake others.
    ///
    /// Panics: if there is no such endpoint or socket.
    pub fn send_datagram(&self, endpoint: usize, to: DatagramPeer, datagram: &[u8]) {
        let mut wires = self.wires.borrow_mut();
        let queues = &mut wires.datagrams[endpoint][to.socket.index()];
        queues.incoming.push_back((to.address, datagram.to_vec()));
    }

    /// Takes the datagrams that a socket of an endpoint has sent since the last call, each with the
    /// address that it goes to.
    ///
    /// Panics: if there is no such endpoint or socket.
    #[must_use]
    pub fn take_datagrams(
        &self,
        endpoint: usize,
        socket: DatagramSocketId,
    ) -> Vec<(SocketAddr, Vec<u8>)> {
        let mut wires = self.wires.borrow_mut();
        std::mem::take(&mut wires.datagrams[endpoint][socket.index()].outgoing)
    }

    /// Connects a client; the endpoint's next poll accepts it, or turns it away where the listener
    /// is closed.
    ///
    /// Panics: if there is no such endpoint or listener.
    #[must_use]
    pub fn connect(&self, endpoint: usize, listener: ListenerId, peer: Peer) -> FarEnd {
        let mut wires = self.wires.borrow_mut();
        let wire = wires.wires.len();
        wires.wires.push(Wire {
            incoming: VecDeque::new(),
            fin_in: false,
            reset: false,
            outgoing: Vec::new(),
            window: usize::MAX,
            buffer: None,
            peer,
            fin_out: false,
            closed: false,
            accepted: false,
        });
        wires.endpoints[endpoint][listener.index()].push_back((wire, peer));
        FarEnd { wires: self.wires.clone(), wire }
    }
}

/// A client's end of one connection. Dropping it changes nothing; see [`Self::finish`].
#[derive(Debug)]
pub struct FarEnd {
    wires: Rc<RefCell<Wires>>,
    wire: usize,
}

impl FarEnd {
    fn with<R>(&self, act: impl FnOnce(&mut Wire) -> R) -> R {
        act(&mut self.wires.borrow_mut().wires[self.wire])
    }

    /// Sends bytes that arrive in one piece, in one poll of their own. Does nothing if `bytes` is
    /// empty.
    pub fn write(&self, bytes: &[u8]) {
        self.with(|wire| {
            assert!(!wire.fin_in, "write after finish");
            if !bytes.is_empty() {
                wire.incoming.push_back(bytes.to_vec().into());
            }
        });
    }

    /// Sends bytes that arrive in pieces of `piece_bytes`, one a poll.
    ///
    /// Panics: if `piece_bytes` is 0.
    pub fn write_cut(&self, bytes: &[u8], piece_bytes: usize) {
        for piece in bytes.chunks(piece_bytes) {
            self.write(piece);
        }
    }

    /// Ends the client's side, after the bytes written so far.
    pub fn finish(&self) {
        self.with(|wire| wire.fin_in = true);
    }

    /// Breaks the connection: the next poll reports `Failed`, and bytes not yet received are lost.
    pub fn reset(&self) {
        self.with(|wire| {
            wire.reset = true;
            wire.incoming.clear();
        });
    }

    /// Breaks the connection behind the bytes written so far. One poll may report the first piece
    /// of them and `Failed`, as io_uring does. The other pieces are lost.
    pub fn reset_behind(&self) {
        self.with(|wire| wire.reset = true);
    }

    /// Takes no more bytes until [`Self::allow`] or [`Self::allow_all`].
    pub fn stall(&self) {
        self.with(|wire| wire.window = 0);
    }

    /// Allows `bytes` more bytes than before; after [`Self::stall`], `bytes` in total.
    pub fn allow(&self, bytes: usize) {
        self.with(|wire| wire.window = wire.window.saturating_add(bytes));
    }

    /// Takes any number of bytes, as at the beginning.
    pub fn allow_all(&self) {
        self.with(|wire| wire.window = usize::MAX);
    }

    /// Puts empty buffers between the ends, like those of a kernel. From now on, bytes of the near
    /// end count as sent once they lie in the buffers. [`Self::drain`] makes them arrive. Once the
    /// buffers are full, they take more only when a third of them is free, as TCP does.
    pub fn put_buffer(&self, bytes_max: usize) {
        self.with(|wire| {
            wire.window = bytes_max;
            wire.buffer = Some(Buffer { bytes_max, held: VecDeque::new(), freed: 0 });
        });
    }

    /// Takes up to `bytes` out of the buffers, to be [`Self::read`].
    ///
    /// Panics: when there are no buffers.
    pub fn drain(&self, bytes: usize) {
        self.with(|wire| {
            let buffer = wire.buffer.as_mut().expect("put_buffer comes first");
            let count = bytes.min(buffer.held.len());
            wire.outgoing.extend(buffer.held.drain(..count));
            buffer.freed += count;
            if buffer.freed >= buffer.bytes_max / 3 {
                wire.window += std::mem::take(&mut buffer.freed);
            }
        });
    }

    /// Returns the bytes that have arrived since the last call.
    #[must_use]
    pub fn read(&self) -> Vec<u8> {
        self.with(|wire| std::mem::take(&mut wire.outgoing))
    }

    /// Whether the near end has accepted this connection.
    #[must_use]
    pub fn is_accepted(&self) -> bool {
        self.with(|wire| wire.accepted)
    }

    /// Whether the near end has ended its side, by `finish_sending` or by `close`.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.with(|wire| wire.fin_out || wire.closed)
    }

    /// Whether the near end has closed the connection.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.with(|wire| wire.closed)
    }
}

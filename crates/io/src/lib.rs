//! The kernel's door: one [`Io`] for each shard's thread. Events come in a batch a tick, sends go
//! out a batch a tick.
//!
//! Upstream:   the kernel, by io_uring ([`Uring`]) or epoll ([`Epoll`]); in tests and simulation
//!             the other end of each connection ([`memory`]).
//! Downstream: `net` reads the lent bytes and queues replies; `shard` polls once a tick.
//!
//! Reading order: `event` (the words), `send_block`, then [`Io`], then one backend. Memory that
//! large values are received into is a [`Landing`], lent by whoever owns it. In each backend
//! one file is one operation: accept, receive, send, close.
//!
//! No call on the request path allocates once the tables have grown to the number of connections;
//! `limits` names every bound.

mod accept_hold;
mod any;
mod bell;
mod clock;
mod epoll;
mod event;
mod inquiry;
mod limits;
/// Listening sockets: made, described.
pub mod listener;
/// A network in memory, for tests and simulation.
pub mod memory;
mod rng;
mod send_block;
mod send_queue;
mod slots;
mod uring;
mod waker;

use std::io;
use std::os::fd::OwnedFd;

use kachel_stdx::Landing;

pub use any::{AnyIo, Choice, open};
pub use clock::{Clock, ManualClock, SystemClock};
pub use epoll::Epoll;
pub use event::{Event, Lent, ListenerId, Peer, SocketId, SocketName, Wait};
pub use limits::{
    ACCEPT_RETRY_NS, ACCEPTS_MAX, EVENTS_MAX, HELD_PIECES_MAX, KEEPALIVE_IDLE_S,
    KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES, Limits, RECEIVE_BUFFER_BYTES, RECEIVE_BUFFERS,
    SEND_BLOCK_BYTES, SEND_GATHER_MAX, SEND_WHOLE_BYTES_MAX,
};
pub use memory::{Around, FarEnd, Memory, MemoryNet, Surrounded};
pub use rng::{Rng, SeededRng, SystemRng};
pub use send_block::SendBlock;
pub use uring::Uring;
pub use waker::Waker;

/// The kernel's door as a shard sees it.
///
/// An `Io` belongs to the thread that made it: only that thread polls. Whoever passes a `SocketId`
/// after its `close` or `give_up`, or one of another `Io`, has a bug; the call panics. A socket
/// that `Failed` may be passed until it is closed; what is sent to it is dropped.
pub trait Io {
    /// Hands queued sends to the kernel, takes back every buffer lent by the last poll, waits as
    /// told when there is nothing to report, and appends what happened. It may return without
    /// events even from [`Wait::Forever`].
    ///
    /// At most about [`EVENTS_MAX`] events and [`RECEIVE_BUFFERS`] buffers' worth of bytes are
    /// reported, those in landings included (but for `Memory`); the rest comes with the next poll,
    /// which then does not wait. Of one socket `Epoll` and `Memory` report at most one
    /// [`RECEIVE_BUFFER_BYTES`] or one landing a poll.
    ///
    /// Cost: `Epoll` one system call, and one for each socket that sends or is readable; `Uring`
    /// one in all. `Memory` never waits.
    ///
    /// Errors: the backend itself failed; nothing can be expected of it any more.
    fn poll(&mut self, wait: Wait, events: &mut Vec<Event>) -> io::Result<()>;

    /// The bytes of a `Received` of the last poll.
    ///
    /// Panics: if it was lent by an earlier poll.
    fn lent(&self, bytes: Lent) -> &[u8];

    /// Queues a block; the next poll begins to send it. Blocks of one socket go out in order and
    /// come back, in order, in `Event::Sent`. Of one that goes out in parts `Event::Taken` tells,
    /// with `Uring` only while more than [`SEND_WHOLE_BYTES_MAX`] is left. After `Failed` the block
    /// is dropped.
    ///
    /// Panics: after `finish_sending`.
    fn send(&mut self, socket: SocketId, block: SendBlock);

    /// Has the next bytes of `socket` written into `landing`, which comes back with them in
    /// `Event::Landed`: once, with what has come by then, be it one byte. Nothing of this socket is
    /// lent before that. While it is paused the landing waits with it; when the peer ends its side,
    /// when the socket fails, is closed or given up, it is dropped, and with `Uring` only once the
    /// kernel has let go of it.
    ///
    /// Errors: the landing, untouched, when the socket cannot take it now: it receives already
    /// (`Uring` until a receive has ended, which one that filled a buffer has), or will receive
    /// nothing more. It may be tried again after the next `Received`.
    ///
    /// Panics: when the socket has a landing already, or when `landing` takes no bytes.
    fn receive_into(&mut self, socket: SocketId, landing: Landing) -> Result<(), Landing>;

    /// Stops receiving. What the kernel has handed over already may still be reported, with `Uring`
    /// in more than one `Received`. A peer that goes away may be noticed only after `resume`.
    fn pause(&mut self, socket: SocketId);

    /// Receives again.
    fn resume(&mut self, socket: SocketId);

    /// Ends our side (FIN) once everything queued is sent. Receiving goes on.
    fn finish_sending(&mut self, socket: SocketId);

    /// Ends the connection at once. Blocks that are not sent yet are lost (`Io` keeps them until
    /// the kernel has let go of them). No event of this name comes from later polls.
    fn close(&mut self, socket: SocketId);

    /// Refuses new clients from now on, and resets those that wait in the kernel. An `Accepted` on
    /// its way may still come.
    fn listen_close(&mut self, listener: ListenerId);

    /// Takes over a connected socket (from another shard) and begins to receive from it. `None`:
    /// the kernel refuses to watch it, for want of memory, and it is closed.
    fn adopt(&mut self, fd: OwnedFd) -> Option<SocketId>;

    /// Hands a connection out, to be adopted elsewhere; its name ends like by `close`. `None` when
    /// a send or receive is under way: then receiving stops as by `pause`; handle what later polls
    /// bring and try again. A socket that has `Failed` is never handed out.
    fn give_up(&mut self, socket: SocketId) -> Option<OwnedFd>;

    /// Starts accepting from a bound, listening socket. Accepted TCP sockets have `TCP_NODELAY` and
    /// keepalive set.
    ///
    /// When the kernel is out of descriptors or memory for `accept`, or for watching the listener,
    /// it is tried again every [`ACCEPT_RETRY_NS`].
    ///
    /// Panics: when it is no socket.
    fn listen(&mut self, listener: OwnedFd) -> ListenerId;

    /// Bytes that the kernel has taken of this connection's blocks and that have not reached the
    /// peer: with TCP its kernel has not acknowledged them, with a unix socket its process has not
    /// read them (there the kernel counts the memory that they take). `None` when the kernel does
    /// not say.
    ///
    /// While no `Sent` and no `Taken` comes, a change says that bytes have moved on. Mostly the
    /// number falls; with `Uring` it may rise too, when the kernel takes more of a send that it
    /// reports only as a whole.
    ///
    /// Cost: a system call; `Memory` none.
    fn unacknowledged_bytes(&mut self, socket: SocketId) -> Option<u64>;

    /// How the operator is told which connection this is. Cost: a system call; `Memory` none.
    fn name(&mut self, socket: SocketId) -> SocketName;

    /// What other threads wake this `Io` with.
    fn waker(&self) -> Waker;

    /// Which backend this is: `"uring"`, `"epoll"` or `"memory"`.
    fn kind(&self) -> &'static str;
}

//! The I/O backends: one [`Io`] for each shard's thread. Events arrive, and sends leave, in one
//! batch per tick.
//!
//! Upstream:   the kernel, by io_uring ([`Uring`]) or epoll ([`Epoll`]); in tests and simulation
//!             the other end of each connection, and a disk that fails ([`memory`]).
//! Downstream: `net` reads the lent bytes and queues replies; `shard` polls once a tick.
//!
//! Reading order: `event` (the types), `send_block`, then [`Io`], then one backend. A large value
//! is received into a [`Landing`], memory that its owner lends. In each backend one file is one
//! operation: accept, receive, send, close. Datagrams belong to no connection: `datagrams`, and a
//! file of that name in each backend. Operations on files of a disk ([`Files`]) are described in
//! `files`, and carried out by the file of that name in each backend, or by `memory::disk`.
//!
//! No call on the request path allocates once the tables have grown to the number of connections;
//! `limits` names every bound.

mod accept_hold;
mod any;
mod around;
mod bell;
mod clock;
mod datagrams;
mod epoll;
mod event;
mod files;
mod inquiry;
mod limits;
/// Listening sockets: creates and describes them.
pub mod listener;
/// A network in memory, for tests and simulation.
pub mod memory;
mod packets;
mod rng;
mod send_block;
mod send_queue;
mod slack;
mod slots;
mod uring;
mod waker;

use std::io;
use std::os::fd::OwnedFd;

use kachel_stdx::Landing;

pub use any::{AnyIo, Choice, open};
pub use around::{Around, Surrounded};
pub use clock::{Clock, ManualClock, SystemClock, ThreadTime};
pub use epoll::{Epoll, ReceivedDatagram, receive_datagrams};
pub use event::{
    DatagramPeer, DatagramSocketId, Event, Lent, ListenerId, Peer, SocketId, SocketName, Wait,
};
pub use files::{
    AlignedBuffer, DirectIoRefusal, FileError, FileHandle, FileName, FileOperation, FileWork,
    FileWorkKind, FolderHandle, OpenMode, Transfer, WaitingCall,
};
pub use limits::{
    ACCEPT_RETRY_NS, ACCEPTS_MAX, DATAGRAM_BYTES_MAX, DATAGRAMS_MAX, DATAGRAMS_QUEUED_MAX,
    EVENTS_MAX, FILE_ALIGNMENT_BYTES, FILE_NAME_BYTES_MAX, FILE_OPERATION_BYTES_MAX,
    FILE_OPERATIONS_MAX, FILE_THREADS, HELD_PIECES_MAX, KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S,
    KEEPALIVE_PROBES, Limits, RECEIVE_BUFFER_BYTES, RECEIVE_BUFFERS, SEND_BLOCK_BYTES,
    SEND_GATHER_MAX, SEND_WHOLE_BYTES_MAX, SLACK_WAIT_NS_MIN,
};
pub use memory::{FarEnd, Memory, MemoryNet};
pub use packets::{PACKETS_PER_CALL, PacketSocket};
pub use rng::{Rng, SeededRng, SystemRng};
pub use send_block::SendBlock;
pub use uring::Uring;
pub use waker::Waker;

/// An I/O backend.
///
/// An `Io` belongs to the thread that made it: only that thread polls. A call with a `SocketId`
/// after its `close` or `give_up`, or with one of another `Io`, is a bug and panics. A socket that
/// `Failed` may be used until it is closed; blocks that are sent to it are dropped.
pub trait Io {
    /// Gives queued sends to the kernel, takes back every buffer that the last poll lent, waits if
    /// there is nothing to report, and appends the events. It may return without events even from
    /// [`Wait::Forever`].
    ///
    /// One poll reports at most about [`EVENTS_MAX`] events and [`RECEIVE_BUFFERS`] buffers' worth
    /// of bytes, those in landings included (`Memory` does not count these). The next poll reports
    /// the rest, and does not wait. For one socket, `Epoll` and `Memory` report at most one
    /// [`RECEIVE_BUFFER_BYTES`] or one landing per poll.
    ///
    /// A long wait may keep events back for `Limits::slack_us`, so that it reports several. That
    /// time begins with the wait: an event that comes later ends the wait at once. While few events
    /// come together, most waits are without slack. `Epoll`, and `Uring` before Linux 6.12, sleep
    /// for that time and wait then. `Memory` has no slack.
    ///
    /// Cost: `Epoll` one system call, and one for each socket that sends or is readable; `Uring`
    /// one in all. `Memory` never waits.
    ///
    /// Errors: the backend itself failed and cannot be used any more.
    fn poll(&mut self, wait: Wait, events: &mut Vec<Event>) -> io::Result<()>;

    /// The bytes of a `Received` of the last poll.
    ///
    /// Panics: if it was lent by an earlier poll.
    fn lent(&self, bytes: Lent) -> &[u8];

    /// Queues a block; the next poll begins to send it. Blocks of one socket go out in order and
    /// come back, in order, in `Event::Sent`. If a block goes out in parts, `Event::Taken` reports
    /// the progress; with `Uring` only while more than [`SEND_WHOLE_BYTES_MAX`] is left. After
    /// `Failed` the block is dropped.
    ///
    /// Panics: after `finish_sending`.
    fn send(&mut self, socket: SocketId, block: SendBlock);

    /// Receives the next bytes of `socket` into `landing`. `Event::Landed` returns the landing
    /// once, with the bytes received so far, at least one. Until then no bytes of this socket are
    /// lent. A paused socket keeps its landing. The landing is dropped if the peer ends its side,
    /// or the socket fails, is closed or given up; with `Uring` only once the kernel no longer uses
    /// it.
    ///
    /// Errors: returns the landing unchanged if the socket cannot take it now, because a receive is
    /// in progress (`Uring`), or because no more bytes will arrive. A receive that filled a buffer
    /// has ended. The call may be repeated after the next `Received`.
    ///
    /// Panics: when the socket has a landing already, or when `landing` takes no bytes.
    fn receive_into(&mut self, socket: SocketId, landing: Landing) -> Result<(), Landing>;

    /// Stops receiving. Bytes that the kernel has already delivered may still be reported, with
    /// `Uring` in more than one `Received`. A peer that disconnects may be noticed only after
    /// `resume`.
    fn pause(&mut self, socket: SocketId);

    /// Receives again.
    fn resume(&mut self, socket: SocketId);

    /// Ends our side (FIN) once everything queued is sent. Receiving continues.
    fn finish_sending(&mut self, socket: SocketId);

    /// Ends the connection at once. Blocks that are not sent yet are lost (`Io` keeps them until
    /// the kernel no longer uses them). Later polls report no event with this name.
    fn close(&mut self, socket: SocketId);

    /// Refuses new clients from now on, and resets those that wait in the kernel. The next polls
    /// may still report an `Accepted` that is on its way.
    fn listen_close(&mut self, listener: ListenerId);

    /// Takes over a connected socket (from another shard) and begins to receive from it. If the
    /// kernel refuses to watch it because memory is short, closes it and returns `None`.
    fn adopt(&mut self, fd: OwnedFd) -> Option<SocketId>;

    /// Gives a connection up, to be adopted by another `Io`; its `SocketId` ends as by `close`.
    /// Returns `None` while a send or receive is in progress: receiving then stops as by `pause`,
    /// and the call must be repeated after later polls. A socket that has `Failed` is never given
    /// up.
    fn give_up(&mut self, socket: SocketId) -> Option<OwnedFd>;

    /// Starts accepting from a bound, listening socket. Accepted TCP sockets have `TCP_NODELAY` and
    /// keepalive set.
    ///
    /// When the kernel is out of descriptors or memory for `accept`, or for watching the listener,
    /// the backend tries again every [`ACCEPT_RETRY_NS`].
    ///
    /// Panics: when `listener` is no socket.
    fn listen(&mut self, listener: OwnedFd) -> ListenerId;

    /// Starts receiving from a bound datagram socket.
    ///
    /// Cost: the first call takes about 1 MiB of address space for receive buffers.
    ///
    /// Panics: when `socket` is no socket, or when memory is out.
    fn receive_datagrams(&mut self, socket: OwnedFd) -> DatagramSocketId;

    /// Leaves further datagrams in the kernel's queues, or takes them out again. After a call with
    /// `true`, the backend reports at most [`DATAGRAMS_MAX`] more datagrams until the call with
    /// `false`.
    fn hold_datagrams(&mut self, hold: bool);

    /// Queues one datagram, which consists of the pieces; the next poll sends it. Datagrams that
    /// the kernel does not take are lost, and so are those beyond [`DATAGRAMS_QUEUED_MAX`] in one
    /// tick. `Event::DatagramsLost` reports their number.
    ///
    /// Cost: a copy. The next poll sends up to 16 datagrams by one system call.
    fn send_datagram(&mut self, to: DatagramPeer, pieces: [&[u8]; 2]);

    /// Closes the datagram sockets. Queued datagrams are sent first.
    fn close_datagrams(&mut self);

    /// Bytes that the kernel has taken of this connection's blocks and that have not reached the
    /// peer. With TCP, the peer's kernel has not acknowledged them. With a unix socket, the peer's
    /// process has not read them (there the kernel counts the memory that they take). `None` when
    /// the kernel does not report the number.
    ///
    /// While no `Sent` and no `Taken` comes, a change of the number means progress. Mostly the
    /// number falls. With `Uring` it may also rise, when the kernel takes more of a send that it
    /// reports only as a whole.
    ///
    /// Cost: a system call; `Memory` none.
    fn unacknowledged_bytes(&mut self, socket: SocketId) -> Option<u64>;

    /// The descriptor of a connection in this process, as [`Self::name`] has it. Cost: a load.
    fn descriptor(&mut self, socket: SocketId) -> i32;

    /// The name of a connection for the log. Cost: a system call; `Memory` none.
    fn name(&mut self, socket: SocketId) -> SocketName;

    /// The handle by which other threads wake this `Io`.
    fn waker(&self) -> Waker;

    /// The name of this backend: `"uring"`, `"epoll"` or `"memory"`.
    fn kind(&self) -> &'static str;
}

/// An I/O backend that has files.
pub trait Files: Io {
    /// The number of operations that [`Self::submit`] takes now; at most [`FILE_OPERATIONS_MAX`].
    /// Between two polls, each operation that is submitted takes one of them. Nothing else does.
    fn file_room(&self) -> usize;

    /// Queues an operation on a file; the next poll gives it to the kernel at the latest. A later
    /// poll reports `Event::FileDone` for it, once. Operations may be carried out and complete in
    /// any order. If the `Io` is dropped first, each operation is carried out or not, and none is
    /// begun later. The drop waits for those in progress; `Uring` waits while they complete within
    /// a second of each other, and then never frees their memory.
    ///
    /// Cost: `Uring` a part of the system call of the poll. `Epoll` passes the operation to a
    /// thread and is woken by it; the first call starts the threads.
    ///
    /// Errors: returns the operation unchanged if [`FILE_OPERATIONS_MAX`] are in flight.
    ///
    /// Panics: if the owner has filled the operation wrongly; see [`FileWork`] and [`Transfer`].
    fn submit(&mut self, operation: Box<FileOperation>) -> Result<(), Box<FileOperation>>;
}

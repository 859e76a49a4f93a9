//! Questions to the kernel about a connection, asked rarely and never on the request path.
//!
//! Upstream:   `Epoll` and `Uring`, for one of their sockets.
//! Downstream: `ioctl`, `getpeername`.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::ioctl::{Getter, Opcode, ioctl};

use crate::event::SocketName;
use crate::listener;

/// The number of bytes in a socket's send queue; for sockets it is called SIOCOUTQ.
const OUT_QUEUE: Opcode = libc::TIOCOUTQ as Opcode;

/// See [`crate::Io::unacknowledged_bytes`].
pub(crate) fn unacknowledged_bytes(socket: &OwnedFd) -> Option<u64> {
    // SAFETY:
    // - the operation is SIOCOUTQ, which writes one `int` and nothing else (linux/sockios.h).
    let queue = unsafe { Getter::<OUT_QUEUE, libc::c_int>::new() };
    // SAFETY:
    // - `queue` is made for this operation (above); the descriptor is open while it is borrowed.
    let bytes = unsafe { ioctl(socket.as_fd(), queue) };
    bytes.ok().and_then(|bytes| u64::try_from(bytes).ok())
}

/// See [`crate::Io::name`].
pub(crate) fn name(socket: &OwnedFd) -> SocketName {
    // A connection that is broken has no peer any more.
    let peer = listener::peer(rustix::net::getpeername(socket).ok().flatten());
    SocketName { peer, descriptor: socket.as_raw_fd() }
}

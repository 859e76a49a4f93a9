//! Choosing a backend when the process starts.
//!
//! Upstream:   `options`, by way of `kachel`.
//! Downstream: [`AnyIo`] passes every call on; one well-predicted branch each.

use std::io;
use std::os::fd::OwnedFd;

use kachel_stdx::Landing;

use crate::{DatagramPeer, DatagramSocketId, Epoll, Event, FileOperation, Files, Io, Lent, Limits};
use crate::{ListenerId, SendBlock, SocketId, SocketName, Uring, Wait, Waker};

/// The backend that the options select.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// io_uring, or fail.
    Uring,
    /// epoll.
    Epoll,
    /// io_uring if the kernel supports all operations that we need, otherwise epoll.
    #[default]
    Auto,
}

/// The backend that was chosen.
#[derive(Debug)]
pub enum AnyIo {
    /// io_uring.
    Uring(Box<Uring>),
    /// epoll.
    Epoll(Box<Epoll>),
}

/// Opens the I/O backend on the thread that will use it.
///
/// Errors: the selected backend is not available.
pub fn open(choice: Choice, limits: Limits) -> io::Result<AnyIo> {
    let uring = match choice {
        Choice::Epoll => None,
        Choice::Uring => Some(Uring::new(limits)?),
        Choice::Auto => Uring::new(limits).ok(),
    };
    match uring {
        Some(uring) => Ok(AnyIo::Uring(Box::new(uring))),
        None => Ok(AnyIo::Epoll(Box::new(Epoll::new(limits)?))),
    }
}

macro_rules! pass_on {
    ($self:ident, $io:ident => $call:expr) => {
        match $self {
            AnyIo::Uring($io) => $call,
            AnyIo::Epoll($io) => $call,
        }
    };
}

impl Io for AnyIo {
    fn poll(&mut self, wait: Wait, events: &mut Vec<Event>) -> io::Result<()> {
        pass_on!(self, io => io.poll(wait, events))
    }

    #[inline]
    fn lent(&self, bytes: Lent) -> &[u8] {
        pass_on!(self, io => io.lent(bytes))
    }

    fn send(&mut self, socket: SocketId, block: SendBlock) {
        pass_on!(self, io => io.send(socket, block));
    }

    fn receive_into(&mut self, socket: SocketId, landing: Landing) -> Result<(), Landing> {
        pass_on!(self, io => io.receive_into(socket, landing))
    }

    fn pause(&mut self, socket: SocketId) {
        pass_on!(self, io => io.pause(socket));
    }

    fn resume(&mut self, socket: SocketId) {
        pass_on!(self, io => io.resume(socket));
    }

    fn finish_sending(&mut self, socket: SocketId) {
        pass_on!(self, io => io.finish_sending(socket));
    }

    fn close(&mut self, socket: SocketId) {
        pass_on!(self, io => io.close(socket));
    }

    fn listen_close(&mut self, listener: ListenerId) {
        pass_on!(self, io => io.listen_close(listener));
    }

    fn adopt(&mut self, fd: OwnedFd) -> Option<SocketId> {
        pass_on!(self, io => io.adopt(fd))
    }

    fn give_up(&mut self, socket: SocketId) -> Option<OwnedFd> {
        pass_on!(self, io => io.give_up(socket))
    }

    fn listen(&mut self, listener: OwnedFd) -> ListenerId {
        pass_on!(self, io => io.listen(listener))
    }

    fn receive_datagrams(&mut self, socket: OwnedFd) -> DatagramSocketId {
        pass_on!(self, io => io.receive_datagrams(socket))
    }

    fn hold_datagrams(&mut self, hold: bool) {
        pass_on!(self, io => io.hold_datagrams(hold));
    }

    fn send_datagram(&mut self, to: DatagramPeer, pieces: [&[u8]; 2]) {
        pass_on!(self, io => io.send_datagram(to, pieces));
    }

    fn close_datagrams(&mut self) {
        pass_on!(self, io => io.close_datagrams());
    }

    fn unacknowledged_bytes(&mut self, socket: SocketId) -> Option<u64> {
        pass_on!(self, io => io.unacknowledged_bytes(socket))
    }

    fn descriptor(&mut self, socket: SocketId) -> i32 {
        pass_on!(self, io => io.descriptor(socket))
    }

    fn name(&mut self, socket: SocketId) -> SocketName {
        pass_on!(self, io => io.name(socket))
    }

    fn waker(&self) -> Waker {
        pass_on!(self, io => io.waker())
    }

    fn kind(&self) -> &'static str {
        pass_on!(self, io => io.kind())
    }
}

impl Files for AnyIo {
    fn file_room(&self) -> usize {
        pass_on!(self, io => io.file_room())
    }

    fn submit(&mut self, operation: Box<FileOperation>) -> Result<(), Box<FileOperation>> {
        pass_on!(self, io => io.submit(operation))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn epoll_is_what_one_gets_when_one_asks_for_it() {
        assert_eq!(open(Choice::Epoll, Limits::default()).unwrap().kind(), "epoll");
    }

    #[test]
    fn auto_is_uring_exactly_when_uring_can_be_had() {
        let granted = open(Choice::Uring, Limits::default()).is_ok();
        let auto = open(Choice::Auto, Limits::default()).unwrap();
        assert_eq!(auto.kind(), if granted { "uring" } else { "epoll" });
    }
}

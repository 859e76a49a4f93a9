//! The door in memory with something of a test's around its calls: they count apart, or sleep.
//!
//! Upstream:   `shard`, as from any [`Io`].
//! Downstream: [`Memory`].

use std::io;
use std::os::fd::OwnedFd;

use kachel_stdx::Landing;

use super::Memory;
use crate::Io;
use crate::event::{Event, Lent, ListenerId, SocketId, SocketName, Wait};
use crate::send_block::SendBlock;
use crate::waker::Waker;

/// What stands around the calls of a door in memory.
pub trait Around {
    /// Has the door do its `work`: all but lending and what never changes.
    fn call<R>(&self, work: impl FnOnce() -> R) -> R {
        work()
    }

    /// Polls the door.
    ///
    /// Errors: those of the door.
    fn poll(&self, door: &mut Memory, wait: Wait, events: &mut Vec<Event>) -> io::Result<()> {
        self.call(|| door.poll(wait, events))
    }
}

/// Nothing stands around the calls.
impl Around for () {}

/// A door in memory, and what stands around it.
#[derive(Debug)]
pub struct Surrounded<A> {
    door: Memory,
    around: A,
}

impl<A> Surrounded<A> {
    /// `door`, with `around` around its calls.
    pub fn new(door: Memory, around: A) -> Self {
        Self { door, around }
    }
}

impl<A: Around> Surrounded<A> {
    /// As [`Memory::stir`].
    pub fn stir(&mut self) -> bool {
        self.around.call(|| self.door.stir())
    }
}

impl<A: Around> Io for Surrounded<A> {
    fn poll(&mut self, wait: Wait, events: &mut Vec<Event>) -> io::Result<()> {
        self.around.poll(&mut self.door, wait, events)
    }

    fn lent(&self, bytes: Lent) -> &[u8] {
        self.door.lent(bytes)
    }

    fn send(&mut self, socket: SocketId, block: SendBlock) {
        self.around.call(|| self.door.send(socket, block));
    }

    fn receive_into(&mut self, socket: SocketId, landing: Landing) -> Result<(), Landing> {
        self.around.call(|| self.door.receive_into(socket, landing))
    }

    fn pause(&mut self, socket: SocketId) {
        self.around.call(|| self.door.pause(socket));
    }

    fn resume(&mut self, socket: SocketId) {
        self.around.call(|| self.door.resume(socket));
    }

    fn finish_sending(&mut self, socket: SocketId) {
        self.around.call(|| self.door.finish_sending(socket));
    }

    fn close(&mut self, socket: SocketId) {
        self.around.call(|| self.door.close(socket));
    }

    fn listen_close(&mut self, listener: ListenerId) {
        self.around.call(|| self.door.listen_close(listener));
    }

    fn adopt(&mut self, fd: OwnedFd) -> Option<SocketId> {
        self.around.call(|| self.door.adopt(fd))
    }

    fn give_up(&mut self, socket: SocketId) -> Option<OwnedFd> {
        self.around.call(|| self.door.give_up(socket))
    }

    fn listen(&mut self, listener: OwnedFd) -> ListenerId {
        self.around.call(|| self.door.listen(listener))
    }

    fn unacknowledged_bytes(&mut self, socket: SocketId) -> Option<u64> {
        self.around.call(|| self.door.unacknowledged_bytes(socket))
    }

    fn name(&mut self, socket: SocketId) -> SocketName {
        self.around.call(|| self.door.name(socket))
    }

    fn waker(&self) -> Waker {
        self.door.waker()
    }

    fn kind(&self) -> &'static str {
        self.door.kind()
    }
}

//! The backend in memory, with a test's code around its calls: for example to count them, or to
//! sleep.
//!
//! Upstream:   `shard`, as from any [`Io`].
//! Downstream: [`Memory`].

use std::io;
use std::os::fd::OwnedFd;

use kachel_stdx::Landing;

use crate::event::{
    DatagramPeer, DatagramSocketId, Event, Lent, ListenerId, SocketId, SocketName, Wait,
};
use crate::files::FileOperation;
use crate::memory::Memory;
use crate::memory::disk::Disk;
use crate::send_block::SendBlock;
use crate::waker::Waker;
use crate::{Files, Io};

/// Code around the calls of a backend in memory.
pub trait Around {
    /// Executes a call, `work`. Calls that only lend or return a constant are not wrapped.
    fn call<R>(&self, work: impl FnOnce() -> R) -> R {
        work()
    }

    /// Polls the backend.
    ///
    /// Errors: those of the backend.
    fn poll(&self, memory: &mut Memory, wait: Wait, events: &mut Vec<Event>) -> io::Result<()> {
        self.call(|| memory.poll(wait, events))
    }
}

/// No code around the calls.
impl Around for () {}

/// A backend in memory, and the code around its calls.
#[derive(Debug)]
pub struct Surrounded<A> {
    memory: Memory,
    around: A,
}

impl<A> Surrounded<A> {
    /// `memory`, with `around` around its calls.
    pub fn new(memory: Memory, around: A) -> Self {
        Self { memory, around }
    }
}

impl<A: Around> Surrounded<A> {
    /// As [`Memory::use_disk`].
    pub fn use_disk(&mut self, disk: &Disk) {
        self.memory.use_disk(disk);
    }

    /// As [`Memory::stir`].
    pub fn stir(&mut self) -> bool {
        self.around.call(|| self.memory.stir())
    }
}

impl<A: Around> Io for Surrounded<A> {
    fn poll(&mut self, wait: Wait, events: &mut Vec<Event>) -> io::Result<()> {
        self.around.poll(&mut self.memory, wait, events)
    }

    fn lent(&self, bytes: Lent) -> &[u8] {
        self.memory.lent(bytes)
    }

    fn send(&mut self, socket: SocketId, block: SendBlock) {
        self.around.call(|| self.memory.send(socket, block));
    }

    fn receive_into(&mut self, socket: SocketId, landing: Landing) -> Result<(), Landing> {
        self.around.call(|| self.memory.receive_into(socket, landing))
    }

    fn pause(&mut self, socket: SocketId) {
        self.around.call(|| self.memory.pause(socket));
    }

    fn resume(&mut self, socket: SocketId) {
        self.around.call(|| self.memory.resume(socket));
    }

    fn finish_sending(&mut self, socket: SocketId) {
        self.around.call(|| self.memory.finish_sending(socket));
    }

    fn close(&mut self, socket: SocketId) {
        self.around.call(|| self.memory.close(socket));
    }

    fn listen_close(&mut self, listener: ListenerId) {
        self.around.call(|| self.memory.listen_close(listener));
    }

    fn adopt(&mut self, fd: OwnedFd) -> Option<SocketId> {
        self.around.call(|| self.memory.adopt(fd))
    }

    fn give_up(&mut self, socket: SocketId) -> Option<OwnedFd> {
        self.around.call(|| self.memory.give_up(socket))
    }

    fn listen(&mut self, listener: OwnedFd) -> ListenerId {
        self.around.call(|| self.memory.listen(listener))
    }

    fn receive_datagrams(&mut self, socket: OwnedFd) -> DatagramSocketId {
        self.around.call(|| self.memory.receive_datagrams(socket))
    }

    fn hold_datagrams(&mut self, hold: bool) {
        self.around.call(|| self.memory.hold_datagrams(hold));
    }

    fn send_datagram(&mut self, to: DatagramPeer, pieces: [&[u8]; 2]) {
        self.around.call(|| self.memory.send_datagram(to, pieces));
    }

    fn close_datagrams(&mut self) {
        self.around.call(|| self.memory.close_datagrams());
    }

    fn unacknowledged_bytes(&mut self, socket: SocketId) -> Option<u64> {
        self.around.call(|| self.memory.unacknowledged_bytes(socket))
    }

    fn descriptor(&mut self, socket: SocketId) -> i32 {
        self.memory.descriptor(socket)
    }

    fn name(&mut self, socket: SocketId) -> SocketName {
        self.around.call(|| self.memory.name(socket))
    }

    fn waker(&self) -> Waker {
        self.memory.waker()
    }

    fn kind(&self) -> &'static str {
        self.memory.kind()
    }
}

impl<A: Around> Files for Surrounded<A> {
    fn file_room(&self) -> usize {
        self.memory.file_room()
    }

    fn submit(&mut self, operation: Box<FileOperation>) -> Result<(), Box<FileOperation>> {
        self.around.call(|| self.memory.submit(operation))
    }
}

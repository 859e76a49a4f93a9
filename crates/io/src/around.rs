//! A backend with a test's code around its calls: for example to count them, or to sleep.
//!
//! Upstream:   `shard`, as from any [`Io`].
//! Downstream: another backend; in most tests [`Memory`].

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

/// Code around the calls of a backend.
pub trait Around {
    /// Executes a call, `work`. Calls that only lend or return a constant are not wrapped.
    fn call<R>(&self, work: impl FnOnce() -> R) -> R {
        work()
    }

    /// Polls the backend.
    ///
    /// Errors: those of the backend.
    fn poll(&self, io: &mut impl Io, wait: Wait, events: &mut Vec<Event>) -> io::Result<()> {
        self.call(|| io.poll(wait, events))
    }
}

/// No code around the calls.
impl Around for () {}

/// A backend, and the code around its calls.
#[derive(Debug)]
pub struct Surrounded<A, I = Memory> {
    io: I,
    around: A,
}

impl<A, I> Surrounded<A, I> {
    /// `io`, with `around` around its calls.
    pub fn new(io: I, around: A) -> Self {
        Self { io, around }
    }
}

impl<A: Around> Surrounded<A> {
    /// As [`Memory::use_disk`].
    pub fn use_disk(&mut self, disk: &Disk) {
        self.io.use_disk(disk);
    }

    /// As [`Memory::stir`].
    pub fn stir(&mut self) -> bool {
        self.around.call(|| self.io.stir())
    }
}

impl<A: Around, I: Io> Io for Surrounded<A, I> {
    fn poll(&mut self, wait: Wait, events: &mut Vec<Event>) -> io::Result<()> {
        self.around.poll(&mut self.io, wait, events)
    }

    fn lent(&self, bytes: Lent) -> &[u8] {
        self.io.lent(bytes)
    }

    fn send(&mut self, socket: SocketId, block: SendBlock) {
        self.around.call(|| self.io.send(socket, block));
    }

    fn receive_into(&mut self, socket: SocketId, landing: Landing) -> Result<(), Landing> {
        self.around.call(|| self.io.receive_into(socket, landing))
    }

    fn pause(&mut self, socket: SocketId) {
        self.around.call(|| self.io.pause(socket));
    }

    fn resume(&mut self, socket: SocketId) {
        self.around.call(|| self.io.resume(socket));
    }

    fn finish_sending(&mut self, socket: SocketId) {
        self.around.call(|| self.io.finish_sending(socket));
    }

    fn close(&mut self, socket: SocketId) {
        self.around.call(|| self.io.close(socket));
    }

    fn listen_close(&mut self, listener: ListenerId) {
        self.around.call(|| self.io.listen_close(listener));
    }

    fn adopt(&mut self, fd: OwnedFd) -> Option<SocketId> {
        self.around.call(|| self.io.adopt(fd))
    }

    fn give_up(&mut self, socket: SocketId) -> Option<OwnedFd> {
        self.around.call(|| self.io.give_up(socket))
    }

    fn listen(&mut self, listener: OwnedFd) -> ListenerId {
        self.around.call(|| self.io.listen(listener))
    }

    fn receive_datagrams(&mut self, socket: OwnedFd) -> DatagramSocketId {
        self.around.call(|| self.io.receive_datagrams(socket))
    }

    fn hold_datagrams(&mut self, hold: bool) {
        self.around.call(|| self.io.hold_datagrams(hold));
    }

    fn send_datagram(&mut self, to: DatagramPeer, pieces: [&[u8]; 2]) {
        self.around.call(|| self.io.send_datagram(to, pieces));
    }

    fn close_datagrams(&mut self) {
        self.around.call(|| self.io.close_datagrams());
    }

    fn unacknowledged_bytes(&mut self, socket: SocketId) -> Option<u64> {
        self.around.call(|| self.io.unacknowledged_bytes(socket))
    }

    fn descriptor(&mut self, socket: SocketId) -> i32 {
        self.io.descriptor(socket)
    }

    fn name(&mut self, socket: SocketId) -> SocketName {
        self.around.call(|| self.io.name(socket))
    }

    fn waker(&self) -> Waker {
        self.io.waker()
    }

    fn kind(&self) -> &'static str {
        self.io.kind()
    }
}

impl<A: Around, I: Files> Files for Surrounded<A, I> {
    fn file_room(&self) -> usize {
        self.io.file_room()
    }

    fn submit(&mut self, operation: Box<FileOperation>) -> Result<(), Box<FileOperation>> {
        self.around.call(|| self.io.submit(operation))
    }
}

//! The io_uring backend: multishot operations, and one system call per tick.
//!
//! Upstream:   `ring` brings completions; a listener accepts and a socket receives again and again
//!             (multishot) until cancelled.
//! Downstream: `accept`, `receive`, `send`, `close`, `datagrams` and `files` turn completions into
//!             events and queue new ops; the next poll submits them all at once.
//!
//! Life of a slot:
//! ```text
//!   free --take_in--> live --close--> dying --last completion--> free
//!                      |                                          ^
//!                      +---------------- give_up -----------------+
//! ```
//!
//! Invariants, cited by number where they are asserted:
//! - I1  `ops` counts a socket's ops whose last completion has not come. While it is not 0 the
//!   slot, its descriptor and its blocks stay, live or dying.
//! - I2  At most one send op of a socket is in progress, so its bytes keep their order.
//! - I3  A socket is receiving (`Receiving::Armed`), or is listed in `hungry` or `unarmed`, or must
//!   not receive, or its receive is being cancelled (`Receiving::Cancelling`); its end lists the
//!   socket.
//! - I4  A socket's landing changes only while it is `Receiving::Idle`; so a receive
//!   op in progress is that of the landing exactly if there is one.

mod accept;
mod buffers;
mod close;
mod datagrams;
mod files;
mod gather;
mod receive;
mod ring;
mod send;

use std::fmt;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use crate::Io;
use crate::accept_hold::until_retry;
use crate::event::{
    DatagramPeer, DatagramSocketId, Event, Lent, ListenerId, SocketId, SocketName, Wait,
};
use crate::files::FileThreads;
use crate::inquiry;
use crate::limits::{EVENTS_MAX, Limits};
use crate::listener;
use crate::send_block::SendBlock;
use crate::send_queue::SendQueue;
use crate::slots::Slots;
use crate::waker::Waker;
use accept::Listener;
use buffers::Group;
use datagrams::Datagrams;
use files::FileSlots;
use gather::Gather;
use kachel_stdx::Landing;
use ring::{Completion, Operation, Ring, Token};

/// An [`Io`] over io_uring (Linux 6.1 or later, and not forbidden).
pub struct Uring {
    /// Its end comes before the memory of the other fields is freed: see `drop`.
    ring: Ring,
    sockets: Slots<Socket>,
    listeners: Vec<Listener>,
    datagrams: Datagrams,
    files: FileSlots,
    /// The work that is no operation of the kernel.
    calls: FileThreads,
    /// Sockets for which the next poll with room arms a receive (I3).
    unarmed: Vec<SocketId>,
    /// Sockets whose receive found no buffer. The next poll arms them before those of `unarmed`:
    /// the kernel serves receives in the order in which they were armed, so a socket that had a
    /// buffer comes after one that had none.
    hungry: Vec<SocketId>,
    /// Sockets with new blocks to send.
    unsent: Vec<SocketId>,
    #[expect(clippy::vec_box, reason = "the kernel reads them where they are: they must not move")]
    spare_gathers: Vec<Box<Gather>>,
    tick: u32,
    waker: Waker,
}

/// The state of one connection.
#[derive(Default)]
struct Socket {
    /// `None` in a free slot.
    fd: Option<OwnedFd>,
    sends: SendQueue,
    /// The message of the send in progress, if it is a gathered one.
    gather: Option<Box<Gather>>,
    /// The landing for the next bytes (I4), and the message of its receive op.
    landing: Option<Landing>,
    scatter: Option<Box<Gather>>,
    ops: u32,
    receiving: Receiving,
    flags: Flags,
}

/// The state of a socket's receive op.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Receiving {
    #[default]
    Idle,
    Armed,
    Cancelling,
}

#[derive(Clone, Copy, Debug, Default)]
struct Flags {
    paused: bool,
    /// `Finished` has been reported.
    finished: bool,
    /// `Failed` has been reported.
    failed: bool,
    /// The socket is in `unarmed` or `hungry`.
    unarmed: bool,
    /// The socket is in `unsent`.
    listed: bool,
    /// A send op is under way (I2).
    sending: bool,
    fin_wanted: bool,
}

impl Uring {
    /// Opens the backend. Cost: two descriptors, the rings (about 200 KiB) and the receive buffers
    /// (1 MiB). Only the calling thread may use it.
    ///
    /// Errors: the kernel is too old, or forbids io_uring, or is out of memory.
    pub fn new(limits: Limits) -> io::Result<Self> {
        let mut ring = Ring::new(limits.slack_us)?;
        let waker = Waker::with_eventfd()?;
        ring.watch_doorbell(waker.doorbell(), Token::new(Operation::Doorbell, 0));
        Ok(Self {
            ring,
            sockets: Slots::new(limits.sockets_max),
            listeners: Vec::new(),
            datagrams: Datagrams::default(),
            files: FileSlots::default(),
            calls: FileThreads::default(),
            unarmed: Vec::new(),
            hungry: Vec::new(),
            unsent: Vec::new(),
            spare_gathers: Vec::new(),
            tick: 0,
            waker,
        })
    }

    /// Opens the buffers of datagrams, which [`Io::receive_datagrams`] otherwise does.
    ///
    /// Errors: out of memory.
    pub fn prepare_datagrams(&mut self) -> io::Result<()> {
        self.ring.begin_datagrams()
    }

    /// Gives a slot to a connected socket. The next poll begins to receive from it. Until then, the
    /// socket can be given up at once.
    fn take_in(&mut self, fd: OwnedFd) -> SocketId {
        let (id, socket) = self.sockets.insert();
        assert!(socket.ops == 0 && socket.gather.is_none(), "I1");
        assert!(socket.landing.is_none() && socket.scatter.is_none(), "I1, I4");
        socket.sends.clear();
        socket.fd = Some(fd);
        socket.receiving = Receiving::Idle;
        socket.flags = Flags::default();
        self.arm_soon(id);
        id
    }

    /// Waits and takes completions, at most as many as can be handled.
    fn enter(&mut self, wait: Wait, events: &mut Vec<Event>) -> io::Result<()> {
        let wait = until_retry(wait, self.listeners.iter().map(|each| &each.hold));
        let asleep = wait != Wait::Now && self.waker.bell().fall_asleep();
        let entered = self.ring.enter(if asleep { wait } else { Wait::Now });
        if self.waker.bell().take() {
            events.push(Event::Woken);
        }
        self.ring.reap();
        entered
    }

    fn complete(&mut self, completion: Completion, events: &mut Vec<Event>) {
        let Token { operation, index } = completion.token;
        let index = index as usize;
        match operation {
            Operation::Doorbell => {
                // `enter` has checked the bell itself after the wait.
                if !completion.more {
                    self.ring.watch_doorbell(self.waker.doorbell(), completion.token);
                }
            }
            Operation::Accept => self.accepted(index, completion, events),
            Operation::CancelAccept | Operation::CancelDatagrams => {}
            Operation::Datagrams => self.received_datagram(index, completion, events),
            Operation::Receive => self.received(index, completion, events),
            Operation::Send => self.sent(index, completion, events),
            Operation::Cancel => self.op_ended(index),
            Operation::File | Operation::OpenFile | Operation::CloseFile => {
                self.file_done(completion, events);
            }
            Operation::Calls => self.calls_done(completion, events),
        }
    }

    /// Reports a broken connection, once. Queued blocks that are not being sent are lost.
    fn fail(&mut self, id: SocketId, events: &mut Vec<Event>) {
        let socket = self.sockets.live(id);
        if !socket.flags.sending {
            socket.sends.clear();
        }
        if socket.receiving == Receiving::Idle {
            socket.landing = None; // I4
        }
        if !socket.flags.failed {
            socket.flags.failed = true;
            events.push(Event::Failed { socket: id });
        }
    }
}

impl Socket {
    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("a taken slot has a descriptor").as_fd()
    }
}

impl Drop for Uring {
    /// Ends all ops before the memory that they use is freed (`ring`, I1). Memory that an op still
    /// uses after that is never freed.
    fn drop(&mut self) {
        if self.ring.end() {
            return;
        }
        // A line that cannot be written does not end the process.
        let _ = writeln!(
            io::stderr(),
            "io_uring: the kernel keeps operations after they were cancelled, so their memory \
             is not freed"
        );
        std::mem::forget(std::mem::replace(&mut self.sockets, Slots::new(0)));
        std::mem::forget(std::mem::take(&mut self.datagrams));
        std::mem::forget(std::mem::take(&mut self.files));
    }
}

impl fmt::Debug for Uring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Uring").field("slots", &self.sockets.len()).finish_non_exhaustive()
    }
}

impl Io for Uring {
    fn poll(&mut self, wait: Wait, events: &mut Vec<Event>) -> io::Result<()> {
        self.tick = self.tick.wrapping_add(1);
        self.ring.buffers.give_back(Group::Connections);
        let before = events.len();
        self.arm_unarmed();
        self.hold_or_arm_listeners();
        self.arm_datagrams();
        self.flush(events);
        self.datagrams.flush(events);
        let busy = events.len() > before || !self.unarmed.is_empty() || self.calls.are_ready();
        self.enter(if busy { Wait::Now } else { wait }, events)?;
        for _ in 0..EVENTS_MAX {
            let Some(completion) = self.ring.next_completion() else { break };
            self.complete(completion, events);
        }
        self.calls.report_refused(events);
        Ok(())
    }

    #[inline]
    fn lent(&self, bytes: Lent) -> &[u8] {
        assert!(bytes.tick == self.tick, "lent by an earlier poll");
        self.ring.buffers.bytes(bytes)
    }

    fn send(&mut self, socket: SocketId, block: SendBlock) {
        let Socket { sends, flags, .. } = self.sockets.live(socket);
        assert!(!flags.fin_wanted, "send after finish_sending");
        if flags.failed {
            return;
        }
        sends.push(block);
        if !flags.listed && !flags.sending {
            flags.listed = true;
            self.unsent.push(socket);
        }
    }

    fn receive_into(&mut self, socket: SocketId, landing: Landing) -> Result<(), Landing> {
        let near = self.sockets.live(socket);
        assert!(near.landing.is_none() && landing.room() > 0, "one landing at a time");
        let flags = near.flags;
        if near.receiving != Receiving::Idle || flags.finished || flags.failed {
            return Err(landing);
        }
        near.landing = Some(landing); // I4
        self.arm_soon(socket);
        Ok(())
    }

    fn pause(&mut self, socket: SocketId) {
        self.sockets.live(socket).flags.paused = true;
        self.disarm(socket);
    }

    fn resume(&mut self, socket: SocketId) {
        self.sockets.live(socket).flags.paused = false;
        self.arm_soon(socket);
    }

    fn finish_sending(&mut self, socket: SocketId) {
        let near = self.sockets.live(socket);
        near.flags.fin_wanted = true;
        near.end_sending_if_done();
    }

    fn close(&mut self, socket: SocketId) {
        self.begin_to_close(socket);
    }

    fn listen_close(&mut self, listener: ListenerId) {
        self.listeners[listener.index()].close();
    }

    fn adopt(&mut self, fd: OwnedFd) -> Option<SocketId> {
        rustix::io::ioctl_fionbio(&fd, false).expect("a socket");
        Some(self.take_in(fd))
    }

    fn give_up(&mut self, socket: SocketId) -> Option<OwnedFd> {
        self.pause(socket);
        let near = self.sockets.live(socket);
        if near.flags.failed || near.ops > 0 || !near.sends.is_empty() {
            return None;
        }
        let fd = near.fd.take();
        near.landing = None;
        self.sockets.retire(socket);
        self.sockets.release(socket.index());
        fd
    }

    fn listen(&mut self, listener: OwnedFd) -> ListenerId {
        listener::prepare(&listener, false).expect("a listening socket");
        let id = ListenerId(self.listeners.len() as u32);
        self.listeners.push(Listener::new(listener));
        id
    }

    fn receive_datagrams(&mut self, socket: OwnedFd) -> DatagramSocketId {
        rustix::io::ioctl_fionbio(&socket, false).expect("a socket");
        self.ring.begin_datagrams().expect("memory for buffers");
        self.datagrams.add(socket)
    }

    fn hold_datagrams(&mut self, hold: bool) {
        self.datagrams.hold(hold);
    }

    fn send_datagram(&mut self, to: DatagramPeer, pieces: [&[u8]; 2]) {
        self.datagrams.outgoing.push(to, pieces);
    }

    fn close_datagrams(&mut self) {
        self.datagrams.flush(&mut Vec::new());
        self.end_datagrams();
    }

    fn unacknowledged_bytes(&mut self, socket: SocketId) -> Option<u64> {
        let fd = self.sockets.live(socket).fd.as_ref().expect("a live socket has a descriptor");
        inquiry::unacknowledged_bytes(fd)
    }

    fn descriptor(&mut self, socket: SocketId) -> i32 {
        let fd = self.sockets.live(socket).fd.as_ref().expect("a live socket has a descriptor");
        fd.as_raw_fd()
    }

    fn name(&mut self, socket: SocketId) -> SocketName {
        let fd = self.sockets.live(socket).fd.as_ref().expect("a live socket has a descriptor");
        inquiry::name(fd)
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn kind(&self) -> &'static str {
        "uring"
    }
}

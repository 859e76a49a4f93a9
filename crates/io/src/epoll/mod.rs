//! The epoll backend: readiness, then one `recv` and one `send` for each busy connection. Threads
//! carry out what concerns files.
//!
//! Upstream:   the kernel reports which sockets are ready (`watch`).
//! Downstream: `accept`, `receive`, `send`, `datagrams` and `files` do the work and append the
//!             events.
//!
//! Sockets are watched edge-triggered, so pausing, resuming and short reads cost no system call.
//! Only listeners are watched level-triggered.
//!
//! ```text
//! epoll data:  0 doorbell | 1 + listener number | 2^31 + datagram socket number | 2^32 - 1 files
//!              SocketId (always above 32 bits)
//! ```
//!
//! Invariants, cited by number where they are asserted:
//! - I1  `readable` is set from an edge until the bytes of the socket have been read to the end. A
//!   readable socket that is not paused is in `ready` exactly once.
//! - I2  After a `recv` that returned fewer bytes than requested, the socket is empty and the next
//!   byte makes an edge. The end of the peer (`ending`) makes no second edge.
//! - I3  A socket with unsent blocks is in `unsent`, or waits for the kernel to have room
//!   (`blocked`).

mod accept;
mod datagrams;
mod files;
mod receive;
mod send;
mod watch;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use kachel_stdx::Landing;
use rustix::event::epoll as kernel;

use crate::Io;
use crate::event::{
    DatagramPeer, DatagramSocketId, Event, Lent, ListenerId, SocketId, SocketName, Wait,
};
use crate::files::FileThreads;
use crate::inquiry;
use crate::limits::{Limits, RECEIVE_AREA_BYTES};
use crate::listener;
use crate::send_block::SendBlock;
use crate::send_queue::SendQueue;
use crate::slack::Slack;
use crate::slots::Slots;
use crate::waker::Waker;
use accept::Listener;
use datagrams::Datagrams;
pub use datagrams::{ReceivedDatagram, receive_datagrams};

/// Kernel events taken by one system call.
const KERNEL_EVENTS_MAX: usize = 128;

/// An [`Io`] over epoll; works on any Linux.
pub struct Epoll {
    epoll: OwnedFd,
    sockets: Slots<Socket>,
    listeners: Vec<Listener>,
    datagrams: Datagrams,
    files: FileThreads,
    /// Sockets to be read from, oldest first.
    ready: VecDeque<SocketId>,
    /// Sockets with new blocks to send.
    unsent: Vec<SocketId>,
    area: Box<[u8]>,
    area_used_bytes: usize,
    /// Bytes that this poll received into landings.
    landed_bytes: usize,
    tick: u32,
    waker: Waker,
    kernel_events: Vec<kernel::Event>,
    /// How long a long wait may keep events back.
    slack: Slack,
}

/// The state of one connection.
#[derive(Debug, Default)]
struct Socket {
    /// `None` in a free slot.
    fd: Option<OwnedFd>,
    sends: SendQueue,
    /// Where the next bytes go.
    landing: Option<Landing>,
    flags: Flags,
}

#[derive(Clone, Copy, Debug, Default)]
struct Flags {
    /// There may be bytes to read (I1).
    readable: bool,
    /// The socket is in `ready`.
    queued: bool,
    /// The peer has ended, or the connection is broken. The backend must read until the kernel
    /// reports it (I2).
    ending: bool,
    paused: bool,
    /// `Finished` has been reported.
    finished: bool,
    /// `Failed` has been reported.
    failed: bool,
    /// The socket is in `unsent`.
    listed: bool,
    /// The kernel has no room for more bytes. An edge reports when it has room again (I3).
    blocked: bool,
    /// Whether epoll watches the socket for room to send.
    room_watched: bool,
    fin_wanted: bool,
}

impl Epoll {
    /// Opens the backend. Cost: two descriptors and the receive area (1 MiB).
    ///
    /// Errors: out of descriptors or memory.
    pub fn new(limits: Limits) -> io::Result<Self> {
        let epoll = kernel::create(kernel::CreateFlags::CLOEXEC)?;
        let waker = Waker::with_eventfd()?;
        watch::watch_doorbell(&epoll, &waker)?;
        Ok(Self {
            epoll,
            sockets: Slots::new(limits.sockets_max),
            listeners: Vec::new(),
            datagrams: Datagrams::default(),
            files: FileThreads::default(),
            ready: VecDeque::new(),
            unsent: Vec::new(),
            area: vec![0; RECEIVE_AREA_BYTES].into_boxed_slice(),
            area_used_bytes: 0,
            landed_bytes: 0,
            tick: 0,
            waker,
            kernel_events: Vec::with_capacity(KERNEL_EVENTS_MAX),
            slack: Slack::new(limits.slack_us),
        })
    }

    /// Gives a slot to a connected socket and watches it.
    fn take_in(&mut self, fd: OwnedFd) -> io::Result<SocketId> {
        let (id, socket) = self.sockets.insert();
        socket.sends.clear();
        socket.flags = Flags::default();
        let watched = watch::watch_socket(&self.epoll, &fd, id);
        socket.fd = Some(fd);
        if let Err(error) = watched {
            self.forget(id);
            return Err(error);
        }
        Ok(id)
    }

    /// Frees the slot; returns the descriptor.
    fn forget(&mut self, id: SocketId) -> Option<OwnedFd> {
        let socket = self.sockets.live(id);
        socket.sends.clear();
        socket.landing = None;
        let fd = socket.fd.take();
        self.sockets.retire(id);
        self.sockets.release(id.index());
        fd
    }
}

impl fmt::Debug for Epoll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Epoll").field("sockets", &self.sockets).finish_non_exhaustive()
    }
}

impl Io for Epoll {
    fn poll(&mut self, wait: Wait, events: &mut Vec<Event>) -> io::Result<()> {
        self.tick = self.tick.wrapping_add(1);
        self.area_used_bytes = 0;
        self.landed_bytes = 0;
        let before = events.len();
        self.flush(events);
        self.datagrams.flush(events);
        self.hold_or_watch_listeners();
        let busy = events.len() > before || !self.ready.is_empty();
        let busy = busy || self.datagrams.are_ready() || self.files.are_ready();
        let mut slept = false;
        if !busy
            && wait.has_slack()
            && let Some(slack_us) = self.slack.next_us()
        {
            debug_assert!(self.ready.is_empty(), "a socket that is ready makes the poll busy");
            self.take_edges(Wait::Now, events)?;
            slept = events.len() == before;
            if slept {
                std::thread::sleep(Duration::from_micros(slack_us.into()));
            }
        }
        let busy = busy || events.len() > before;
        self.take_edges(if busy { Wait::Now } else { wait }, events)?;
        if slept {
            self.slack.note(self.kernel_events.len());
        }
        self.receive_from_ready(events);
        self.receive_ready_datagrams(events);
        self.files.report_refused(events);
        Ok(())
    }

    #[inline]
    fn lent(&self, bytes: Lent) -> &[u8] {
        assert!(bytes.tick == self.tick, "lent by an earlier poll");
        &self.area[bytes.start as usize..][..bytes.bytes as usize]
    }

    fn send(&mut self, socket: SocketId, block: SendBlock) {
        let Socket { sends, flags, .. } = self.sockets.live(socket);
        assert!(!flags.fin_wanted, "send after finish_sending");
        if flags.failed {
            return;
        }
        sends.push(block);
        if !flags.listed && !flags.blocked {
            flags.listed = true; // I3
            self.unsent.push(socket);
        }
    }

    fn receive_into(&mut self, socket: SocketId, landing: Landing) -> Result<(), Landing> {
        let near = self.sockets.live(socket);
        assert!(near.landing.is_none() && landing.room() > 0, "one landing at a time");
        if near.flags.finished || near.flags.failed {
            return Err(landing);
        }
        near.landing = Some(landing);
        Ok(())
    }

    fn pause(&mut self, socket: SocketId) {
        self.sockets.live(socket).flags.paused = true;
    }

    fn resume(&mut self, socket: SocketId) {
        let flags = &mut self.sockets.live(socket).flags;
        flags.paused = false;
        if flags.readable && !flags.queued {
            flags.queued = true; // I1
            self.ready.push_back(socket);
        }
    }

    fn finish_sending(&mut self, socket: SocketId) {
        let near = self.sockets.live(socket);
        near.flags.fin_wanted = true;
        near.end_sending_if_done();
    }

    fn close(&mut self, socket: SocketId) {
        // Closing the only descriptor also ends the watch.
        drop(self.forget(socket));
    }

    fn listen_close(&mut self, listener: ListenerId) {
        self.listeners[listener.index()].close();
        self.hold_or_watch_listeners();
    }

    fn adopt(&mut self, fd: OwnedFd) -> Option<SocketId> {
        rustix::io::ioctl_fionbio(&fd, true).expect("a socket");
        self.take_in(fd).ok()
    }

    fn give_up(&mut self, socket: SocketId) -> Option<OwnedFd> {
        let near = self.sockets.live(socket);
        near.flags.paused = true;
        if near.flags.failed || !near.sends.is_empty() {
            return None;
        }
        let fd = self.forget(socket)?;
        kernel::delete(&self.epoll, &fd).expect("a live socket is watched");
        Some(fd)
    }

    fn listen(&mut self, listener: OwnedFd) -> ListenerId {
        listener::prepare(&listener, true).expect("a listening socket");
        let id = ListenerId(self.listeners.len() as u32);
        self.listeners.push(Listener::new(listener));
        self.hold_or_watch_listeners();
        id
    }

    fn receive_datagrams(&mut self, socket: OwnedFd) -> DatagramSocketId {
        rustix::io::ioctl_fionbio(&socket, true).expect("a socket");
        if self.area.len() < datagrams::AREA_BYTES {
            self.area_used_bytes = 0; // Nothing is lent any more.
            self.tick = self.tick.wrapping_add(1);
            self.area = vec![0; datagrams::AREA_BYTES].into_boxed_slice();
        }
        let id = self.datagrams.next_id();
        watch::watch_datagrams(&self.epoll, &socket, id).expect("memory to watch a socket");
        let added = self.datagrams.add(socket);
        debug_assert!(added == id, "the next one is added next");
        added
    }

    fn hold_datagrams(&mut self, hold: bool) {
        self.datagrams.hold(hold);
    }

    fn send_datagram(&mut self, to: DatagramPeer, pieces: [&[u8]; 2]) {
        self.datagrams.outgoing.push(to, pieces);
    }

    fn close_datagrams(&mut self) {
        self.datagrams.flush(&mut Vec::new());
        self.datagrams.close();
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
        "epoll"
    }
}

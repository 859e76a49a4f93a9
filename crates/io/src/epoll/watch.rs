//! The descriptors that epoll watches, and its reports.
//!
//! Upstream:   `take_in` and `listen` add descriptors; `poll` takes the edges.
//! Downstream: an edge marks a socket readable, sends blocked blocks, or accepts.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self as kernel, EventData, EventFlags};
use rustix::io::Errno;

use super::{Epoll, Flags};
use crate::accept_hold::until_retry;
use crate::event::{DatagramSocketId, Event, SocketId, Wait};
use crate::waker::Waker;

const DOORBELL: u64 = 0;
/// The data of the first datagram socket. There are fewer listeners.
const FIRST_DATAGRAMS: u64 = 1 << 31;
/// There are fewer datagram sockets.
const FILES: u64 = u32::MAX as u64;

const SOCKET_EDGES: EventFlags = EventFlags::IN.union(EventFlags::RDHUP).union(EventFlags::ET);
const END_OR_ERROR: EventFlags = EventFlags::RDHUP.union(EventFlags::HUP).union(EventFlags::ERR);

/// Watches the eventfd edge-triggered, so that no thread needs to read its count back.
pub(super) fn watch_doorbell(epoll: &OwnedFd, waker: &Waker) -> io::Result<()> {
    let edges = EventFlags::IN | EventFlags::ET;
    kernel::add(epoll, waker.doorbell(), EventData::new_u64(DOORBELL), edges)?;
    Ok(())
}

/// Watches the eventfd that the threads of files ring, edge-triggered.
pub(super) fn watch_files(epoll: &OwnedFd, bell: BorrowedFd<'_>) -> io::Result<()> {
    kernel::add(epoll, bell, EventData::new_u64(FILES), EventFlags::IN | EventFlags::ET)?;
    Ok(())
}

pub(super) fn watch_socket(epoll: &OwnedFd, fd: &OwnedFd, id: SocketId) -> io::Result<()> {
    kernel::add(epoll, fd, EventData::new_u64(id.0), SOCKET_EDGES)?;
    Ok(())
}

/// Makes epoll report when there is room to send again, or no longer report it. Wanted only while
/// the socket is blocked, because a unix socket makes such an edge for every reply that its peer
/// reads.
pub(super) fn watch_for_room(epoll: &OwnedFd, fd: &OwnedFd, id: SocketId, wanted: bool) {
    let edges = if wanted { SOCKET_EDGES | EventFlags::OUT } else { SOCKET_EDGES };
    kernel::modify(epoll, fd, EventData::new_u64(id.0), edges).expect("a live socket is watched");
}

/// Watches a listener by level. If several shards watch it, the kernel wakes only one of them.
pub(super) fn watch_listener(epoll: &OwnedFd, fd: impl AsFd, index: usize) -> Result<(), Errno> {
    let flags = EventFlags::IN | EventFlags::EXCLUSIVE;
    kernel::add(epoll, fd, EventData::new_u64(1 + index as u64), flags)
}

/// Watches a datagram socket by edges.
pub(super) fn watch_datagrams(
    epoll: &OwnedFd,
    fd: &OwnedFd,
    id: DatagramSocketId,
) -> Result<(), Errno> {
    let data = EventData::new_u64(FIRST_DATAGRAMS + u64::from(id.0));
    kernel::add(epoll, fd, data, EventFlags::IN | EventFlags::ET)
}

pub(super) fn unwatch_listener(epoll: &OwnedFd, fd: impl AsFd) {
    kernel::delete(epoll, fd).expect("it was watched");
}

impl Epoll {
    /// Waits and notes every edge. Sends and accepts at once; leaves receiving to the caller.
    pub(super) fn take_edges(&mut self, wait: Wait, events: &mut Vec<Event>) -> io::Result<()> {
        let wait = until_retry(wait, self.listeners.iter().map(|each| &each.hold));
        let asleep = wait != Wait::Now && self.waker.bell().fall_asleep();
        let timeout = match wait {
            Wait::Forever if asleep => None,
            Wait::AtMostNs(ns) if asleep => Some(Timespec {
                tv_sec: (ns / 1_000_000_000) as i64,
                tv_nsec: (ns % 1_000_000_000) as i64,
            }),
            _ => Some(Timespec { tv_sec: 0, tv_nsec: 0 }),
        };
        let mut edges = std::mem::take(&mut self.kernel_events);
        edges.clear();
        let taken = kernel::wait(&self.epoll, spare_capacity(&mut edges), timeout.as_ref());
        if self.waker.bell().take() {
            events.push(Event::Woken);
        }
        for edge in &edges {
            self.take_edge(edge.data.u64(), edge.flags, events);
        }
        self.kernel_events = edges;
        match taken {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn take_edge(&mut self, data: u64, edge: EventFlags, events: &mut Vec<Event>) {
        if data == DOORBELL {
            return; // `take_edges` has checked the bell itself after the wait.
        }
        if data == FILES {
            return self.files.report_done(events);
        }
        let id = SocketId(data);
        if id.generation() == 0 {
            if let Some(index) = data.checked_sub(FIRST_DATAGRAMS) {
                return self.datagrams.note_readable(index as usize);
            }
            return self.accept(data as usize - 1, events);
        }
        let Some(socket) = self.sockets.find(id) else { return };
        if edge.contains(EventFlags::OUT) && socket.flags.blocked {
            socket.flags.blocked = false;
            self.send_queued(id, events);
        }
        let flags = &mut self.sockets.live(id).flags;
        if edge.intersects(END_OR_ERROR) {
            flags.ending = true;
        }
        // The backend will not read from it, or not soon, so no read would find the error.
        let unread = flags.paused || flags.finished;
        if unread && edge.contains(EventFlags::ERR) {
            return self.fail(id, events);
        }
        flags.readable |= edge.intersects(EventFlags::IN | END_OR_ERROR);
        if flags.is_to_be_queued() {
            flags.queued = true; // I1
            self.ready.push_back(id);
        }
    }

    /// Reports a broken connection, once. Queued blocks are lost.
    pub(super) fn fail(&mut self, id: SocketId, events: &mut Vec<Event>) {
        let socket = self.sockets.live(id);
        socket.sends.clear();
        socket.landing = None;
        if !socket.flags.failed {
            socket.flags.failed = true;
            events.push(Event::Failed { socket: id });
        }
    }
}

impl Flags {
    fn is_to_be_queued(self) -> bool {
        self.readable && !self.queued && !self.paused && !self.finished && !self.failed
    }
}

//! Sending: the blocks queued since the last poll, by one system call for each socket.
//!
//! Upstream:   `Io::send` queues; an edge reports that the kernel accepts bytes again.
//! Downstream: `Sent` for each block that the kernel has taken, `Taken` for a part of one.

use std::io::IoSlice;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, Shutdown};

use super::{Epoll, Socket, watch};
use crate::event::{Event, SocketId};
use crate::limits::SEND_GATHER_MAX;
use crate::send_queue::SendQueue;

impl Epoll {
    /// Sends the newly queued blocks.
    pub(super) fn flush(&mut self, events: &mut Vec<Event>) {
        let mut unsent = std::mem::take(&mut self.unsent);
        for id in unsent.drain(..) {
            let Some(socket) = self.sockets.find(id) else { continue };
            socket.flags.listed = false;
            self.send_queued(id, events);
        }
        self.unsent = unsent;
    }

    /// Sends until everything is gone or the kernel has no room.
    pub(super) fn send_queued(&mut self, id: SocketId, events: &mut Vec<Event>) {
        let socket = self.sockets.live(id);
        let Socket { fd, sends, flags, .. } = socket;
        let fd = fd.as_ref().expect("a live socket has a descriptor");
        sends.advance(0, |block| events.push(Event::Sent { socket: id, block }));
        let mut taken_any = false;
        while !sends.is_empty() {
            match send_once(fd, sends) {
                Ok(count) => {
                    taken_any = true;
                    sends.advance(count, |block| events.push(Event::Sent { socket: id, block }));
                }
                Err(Errno::AGAIN) => {
                    flags.blocked = true; // I3
                    break;
                }
                Err(Errno::INTR) => {}
                Err(_) => return self.fail(id, events),
            }
        }
        if taken_any && sends.taken_bytes() > 0 {
            events.push(Event::Taken { socket: id, block_bytes: sends.taken_bytes() });
        }
        if flags.blocked != flags.room_watched {
            flags.room_watched = flags.blocked;
            watch::watch_for_room(&self.epoll, fd, id, flags.blocked);
        }
        socket.end_sending_if_done();
    }
}

impl Socket {
    /// Sends the FIN of `finish_sending`, once no block is queued before it.
    pub(super) fn end_sending_if_done(&mut self) {
        if self.flags.fin_wanted && self.sends.is_empty() && !self.flags.failed {
            let fd = self.fd.as_ref().expect("a live socket has a descriptor");
            // It fails only when the connection is gone, which the next receive reports.
            let _ = rustix::net::shutdown(fd, Shutdown::Write);
        }
    }
}

/// Sends unsent bytes by one system call. Returns how many bytes the kernel took.
fn send_once(fd: &OwnedFd, sends: &SendQueue) -> Result<usize, Errno> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    if sends.is_one_piece() {
        return rustix::net::send(fd, sends.first_unsent(), flags);
    }
    let mut slices = [IoSlice::new(&[]); SEND_GATHER_MAX];
    let count = sends.gather(&mut slices);
    let mut nothing = SendAncillaryBuffer::default();
    rustix::net::sendmsg(fd, &slices[..count], &mut nothing, flags)
}

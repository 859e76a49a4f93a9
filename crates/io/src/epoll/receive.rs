//! Receiving: in each poll one `recv` for each readable socket, or one `readv` if the socket has a
//! landing.
//!
//! Upstream:   `ready`, filled by edges and by `resume`.
//! Downstream: `Received`, `Landed`, `Finished` and `Failed`.
//!
//! Received bytes lie one behind the other in the receive area, and not in one buffer per socket.
//! So fifty short requests touch a few pages and not fifty.

use kachel_stdx::Landing;
use rustix::io::{Errno, readv};
use rustix::net::{RecvFlags, recv};

use super::{Epoll, Socket};
use crate::event::{Event, Lent, SocketId};
use crate::limits::{RECEIVE_AREA_BYTES, RECEIVE_BUFFER_BYTES};

/// The next bytes begin at a multiple of this: on a cache line of their own.
const START_ALIGN_BYTES: usize = 64;

impl Epoll {
    /// Reads once from each ready socket, until the poll has received as many bytes as the receive
    /// area holds, those in landings included.
    pub(super) fn receive_from_ready(&mut self, events: &mut Vec<Event>) {
        for _ in 0..self.ready.len() {
            let bytes = self.area_used_bytes + self.landed_bytes;
            if bytes + RECEIVE_BUFFER_BYTES > RECEIVE_AREA_BYTES {
                return; // The others stay first in line.
            }
            let id = self.ready.pop_front().expect("counted");
            let Some(socket) = self.sockets.find(id) else { continue };
            socket.flags.queued = false;
            if socket.flags.paused || socket.flags.failed || socket.flags.finished {
                continue;
            }
            self.receive(id, events);
        }
    }

    fn receive(&mut self, id: SocketId, events: &mut Vec<Event>) {
        let Socket { fd, landing, flags, .. } = self.sockets.live(id);
        let fd = fd.as_ref().expect("a live socket has a descriptor");
        let start = self.area_used_bytes;
        let window = &mut self.area[start..start + RECEIVE_BUFFER_BYTES];
        let wanted = landing.as_ref().map_or(window.len(), Landing::room);
        let received = match landing {
            Some(landing) => {
                let (mut slices, count) = landing.slices();
                readv(fd, &mut slices[..count])
            }
            None => recv(fd, window, RecvFlags::empty()).map(|(_, count)| count),
        };
        match received {
            Ok(0) => {
                flags.finished = true;
                flags.readable = false;
                *landing = None;
                events.push(Event::Finished { socket: id });
            }
            Ok(count) => {
                flags.readable = count == wanted || flags.ending; // I2
                if let Some(landing) = landing.take() {
                    self.landed_bytes += count;
                    events.push(Event::Landed { socket: id, landing, bytes: count });
                    return self.queue_readable(id);
                }
                self.area_used_bytes = (start + count).next_multiple_of(START_ALIGN_BYTES);
                let bytes = Lent { tick: self.tick, start: start as u32, bytes: count as u32 };
                events.push(Event::Received { socket: id, bytes });
            }
            Err(Errno::AGAIN) => flags.readable = false,
            Err(Errno::INTR) => {}
            Err(_) => return self.fail(id, events),
        }
        self.queue_readable(id);
    }

    /// Puts a socket back into `ready` if there may be more to read.
    fn queue_readable(&mut self, id: SocketId) {
        let flags = &mut self.sockets.live(id).flags;
        if flags.readable {
            flags.queued = true; // I1
            self.ready.push_back(id);
        }
    }
}

//! Receiving: one multishot receive for each socket, into buffers that the kernel picks; or one
//! single receive, into a landing.
//!
//! Upstream:   a socket is taken in or resumed; the kernel completes.
//! Downstream: `Received`, `Landed`, `Finished` and `Failed`.
//!
//! ```text
//!           arm                        disarm
//!   Idle ---------> Armed ------------------------> Cancelling
//!    ^                |  last completion                 |  last completion
//!    +----------------+----------------------------------+
//! ```
//! A receive also ends by itself when it has received as many bytes as a buffer holds, when the
//! buffers have run out, or when the completion ring is full. The next poll gives the buffers back,
//! and arms the receive again, or receives into the landing that the socket has by then. (A client
//! that sends a large value fills buffers, so its receive ends without a cancel for the landing.)
//!
//! Without the limit of one buffer, the kernel would take half a megabyte from a client that sends
//! without pause before the shard could pause it. A kernel before 6.17 has no such limit, so there
//! each receive is a single one.

use std::os::fd::AsFd;

use kachel_stdx::Landing;
use rustix::io::Errno;

use super::gather::Gather;
use super::{Completion, Operation, Receiving, Token, Uring};
use crate::event::{Event, SocketId};
use crate::limits::RECEIVE_AREA_BYTES;

impl Uring {
    /// Begins to receive, unless the socket is paused or has ended, or a receive is in progress.
    pub(super) fn arm(&mut self, id: SocketId) {
        let socket = self.sockets.live(id);
        let flags = socket.flags;
        let wanted = !flags.paused && !flags.finished && !flags.failed;
        if wanted && socket.receiving == Receiving::Idle {
            socket.receiving = Receiving::Armed; // I3
            socket.ops += 1;
            let fd = socket.fd.as_ref().expect("a live socket has a descriptor").as_fd();
            let token = Token::new(Operation::Receive, id.index());
            let Some(landing) = &mut socket.landing else {
                return self.ring.receive(fd, token);
            };
            let scatter = self.spare_gathers.pop().unwrap_or_else(Gather::new);
            let scatter = socket.scatter.insert(scatter);
            scatter.scatter(landing);
            // SAFETY:
            // - the landing's memory stays in place and its alone while it is lent (landing, I1 and
            //   I2), and it stays with the socket until the completion: it is taken only while the
            //   socket is idle or has no op (I1, I4), dying sockets included.
            // - the scatter is boxed, and stays with the socket until the completion.
            // - `Uring` ends the op before it is dropped, or never frees the memory (ring, I1).
            unsafe { self.ring.receive_scattered(fd, scatter, token) };
        }
    }

    /// Has the next poll begin to receive.
    pub(super) fn arm_soon(&mut self, id: SocketId) {
        let flags = &mut self.sockets.live(id).flags;
        if !flags.unarmed {
            flags.unarmed = true; // I3
            self.unarmed.push(id);
        }
    }

    /// Has the next poll begin to receive before it does for the sockets that had a buffer.
    fn arm_first(&mut self, id: SocketId) {
        let flags = &mut self.sockets.live(id).flags;
        if !flags.unarmed {
            flags.unarmed = true; // I3
            self.hungry.push(id);
        }
    }

    /// Arms the sockets listed by `arm_first` and `arm_soon`, except landings above the limit of a
    /// poll.
    pub(super) fn arm_unarmed(&mut self) {
        let mut soon = std::mem::take(&mut self.hungry);
        soon.append(&mut self.unarmed);
        let mut room = RECEIVE_AREA_BYTES;
        soon.retain(|&id| {
            let Some(socket) = self.sockets.find(id) else { return false };
            let landing_bytes = socket.landing.as_ref().map_or(0, Landing::room);
            if landing_bytes > 0 && room == 0 {
                return true;
            }
            room = room.saturating_sub(landing_bytes);
            socket.flags.unarmed = false;
            self.arm(id);
            false
        });
        self.hungry = std::mem::replace(&mut self.unarmed, soon);
    }

    /// Begins to stop receiving.
    pub(super) fn disarm(&mut self, id: SocketId) {
        let socket = self.sockets.live(id);
        if socket.receiving == Receiving::Armed {
            socket.receiving = Receiving::Cancelling;
            socket.ops += 1;
            let target = Token::new(Operation::Receive, id.index());
            self.ring.cancel(target, Token::new(Operation::Cancel, id.index()));
        }
    }

    /// Handles the completion of a receive: bytes have arrived, or the receive has ended.
    pub(super) fn received(
        &mut self,
        index: usize,
        completion: Completion,
        events: &mut Vec<Event>,
    ) {
        let result = completion.result;
        // The buffer belongs to us now, for any socket, and returns with the others.
        let lent = completion
            .buffer
            .map(|buffer| self.ring.buffers.take(buffer, result.max(0) as u32, self.tick));
        let (id, socket) = self.sockets.at(index);
        if !completion.more {
            socket.receiving = Receiving::Idle;
            self.spare_gathers.extend(socket.scatter.take());
        }
        if let Some(id) = id
            && !socket.flags.failed
        {
            let mut hungry = false;
            match result {
                0 => {
                    socket.flags.finished = true;
                    socket.landing = None;
                    events.push(Event::Finished { socket: id });
                }
                1.. => events.push(match socket.landing.take() {
                    Some(landing) => Event::Landed { socket: id, landing, bytes: result as usize },
                    None => {
                        let bytes = lent.expect("bytes come in a buffer");
                        Event::Received { socket: id, bytes }
                    }
                }),
                _ => match Errno::from_raw_os_error(-result) {
                    Errno::NOBUFS => hungry = true,
                    // Cancelled by `disarm`; try again.
                    Errno::CANCELED | Errno::AGAIN | Errno::INTR => {}
                    _ => self.fail(id, events),
                },
            }
            if !completion.more {
                if hungry { self.arm_first(id) } else { self.arm_soon(id) }
            }
        } else if !completion.more {
            socket.landing = None; // I4: it has failed, or is closed.
        }
        if !completion.more {
            self.op_ended(index);
        }
    }
}

//! Receiving: one multishot receive for each socket, into buffers that the kernel picks.
//!
//! Upstream:   a socket is taken in or resumed; the kernel completes.
//! Downstream: `Received`, `Finished` and `Failed`.
//!
//! ```text
//!           arm                        disarm
//!   Idle ---------> Armed ------------------------> Cancelling
//!    ^                |  last completion                 |  last completion
//!    +----------------+----------------------------------+
//! ```
//! A receive also ends by itself when it has brought as much as a buffer holds, when the buffers
//! have run out or the completion ring is full; the next poll, which gives the buffers back, arms
//! it again. Without the first of these a client that sends without pause had half a megabyte taken
//! from it before anyone could pause it; a kernel before 6.17 cannot do it and is asked each time.

use std::os::fd::AsFd;

use rustix::io::Errno;

use super::{Completion, Operation, Receiving, Token, Uring};
use crate::event::{Event, SocketId};

impl Uring {
    /// Begins to receive, if nothing speaks against it.
    pub(super) fn arm(&mut self, id: SocketId) {
        let socket = self.sockets.live(id);
        let flags = socket.flags;
        let wanted = !flags.paused && !flags.finished && !flags.failed;
        if wanted && socket.receiving == Receiving::Idle {
            socket.receiving = Receiving::Armed; // I3
            socket.ops += 1;
            let fd = socket.fd.as_ref().expect("a live socket has a descriptor");
            self.ring.receive(fd.as_fd(), Token::new(Operation::Receive, id.index()));
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

    /// Does what `arm_soon` promised.
    pub(super) fn arm_unarmed(&mut self) {
        let mut unarmed = std::mem::take(&mut self.unarmed);
        for id in unarmed.drain(..) {
            let Some(socket) = self.sockets.find(id) else { continue };
            socket.flags.unarmed = false;
            self.arm(id);
        }
        self.unarmed = unarmed;
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

    /// A receive has brought bytes, or has ended.
    pub(super) fn received(
        &mut self,
        index: usize,
        completion: Completion,
        events: &mut Vec<Event>,
    ) {
        let result = completion.result;
        // Whoever the bytes are for, the buffer is ours now and goes back with the others.
        let lent = completion
            .buffer
            .map(|buffer| self.ring.buffers.take(buffer, result.max(0) as u32, self.tick));
        let (id, socket) = self.sockets.at(index);
        if !completion.more {
            socket.receiving = Receiving::Idle;
        }
        if let Some(id) = id
            && !socket.flags.failed
        {
            match result {
                0 => {
                    socket.flags.finished = true;
                    events.push(Event::Finished { socket: id });
                }
                1.. => {
                    let bytes = lent.expect("bytes come in a buffer");
                    events.push(Event::Received { socket: id, bytes });
                }
                _ => match Errno::from_raw_os_error(-result) {
                    // Out of buffers; cancelled by `disarm`; try again.
                    Errno::NOBUFS | Errno::CANCELED | Errno::AGAIN | Errno::INTR => {}
                    _ => self.fail(id, events),
                },
            }
            if !completion.more {
                self.arm_soon(id);
            }
        }
        if !completion.more {
            self.op_ended(index);
        }
    }
}

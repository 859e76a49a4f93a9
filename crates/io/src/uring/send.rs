//! Sending: one op for each socket with something to send, all submitted by one system call.
//!
//! Upstream:   `Io::send` queues; a completed send lets the next one start.
//! Downstream: `Sent` for each block that the kernel has taken, `Taken` for a part of one.
//!
//! A send waits in the kernel until all bytes are taken (`MSG_WAITALL`), so a slow reader costs no
//! work here. Sends of more than `SEND_WHOLE_BYTES_MAX` are the exception: the owner must see their
//! progress.

use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::Shutdown;

use super::{Completion, Gather, Operation, Socket, Token, Uring};
use crate::event::{Event, SocketId};
use crate::limits::SEND_WHOLE_BYTES_MAX;

impl Uring {
    /// Queues a send op for each socket that has something new.
    pub(super) fn flush(&mut self, events: &mut Vec<Event>) {
        let mut unsent = std::mem::take(&mut self.unsent);
        for id in unsent.drain(..) {
            let Some(socket) = self.sockets.find(id) else { continue };
            socket.flags.listed = false;
            if !socket.flags.sending && !socket.flags.failed {
                self.begin_to_send(id, events);
            }
        }
        self.unsent = unsent;
    }

    fn begin_to_send(&mut self, id: SocketId, events: &mut Vec<Event>) {
        let socket = self.sockets.live(id);
        socket.sends.advance(0, |block| events.push(Event::Sent { socket: id, block }));
        if socket.sends.is_empty() {
            return socket.end_sending_if_done();
        }
        socket.flags.sending = true; // I2
        socket.ops += 1;
        let fd = socket.fd.as_ref().expect("a live socket has a descriptor").as_fd();
        let token = Token::new(Operation::Send, id.index());
        if socket.sends.is_one_piece() {
            let bytes = socket.sends.first_unsent();
            // SAFETY:
            // - the bytes stay in place: a block's memory never moves (send_block, I1), nor do held
            //   pieces while the block has them (stdx `Keeper`).
            // - until the completion the block stays in the queue, unchanged: `sending` is set, and
            //   `fail`, `close` and `take_in` leave the queue alone while it is (I1).
            // - `Uring` ends the op before it is dropped, or never frees the memory (ring, I1).
            unsafe { self.ring.send(fd, bytes, token) };
        } else {
            let mut gather = self.spare_gathers.pop().unwrap_or_else(Gather::new);
            let whole = gather.fill(&socket.sends) <= SEND_WHOLE_BYTES_MAX;
            let gather = socket.gather.insert(gather);
            // SAFETY:
            // - the blocks: as above.
            // - the header and slices: boxed, and kept in `socket.gather` until the completion.
            unsafe { self.ring.send_gathered(fd, gather, whole, token) };
        }
    }

    /// Handles the completion of a send.
    pub(super) fn sent(&mut self, index: usize, completion: Completion, events: &mut Vec<Event>) {
        let (id, socket) = self.sockets.at(index);
        socket.flags.sending = false;
        self.spare_gathers.extend(socket.gather.take());
        if let Some(id) = id {
            self.sent_by_living(id, completion.result, events);
        }
        self.op_ended(index);
    }

    fn sent_by_living(&mut self, id: SocketId, result: i32, events: &mut Vec<Event>) {
        let socket = self.sockets.live(id);
        if socket.flags.failed {
            return socket.sends.clear();
        }
        let passing = [Errno::AGAIN, Errno::INTR, Errno::CANCELED].map(|e| -e.raw_os_error());
        if result < 0 && !passing.contains(&result) {
            return self.fail(id, events);
        }
        let count = result.max(0) as usize;
        socket.sends.advance(count, |block| events.push(Event::Sent { socket: id, block }));
        if socket.sends.is_empty() {
            return socket.end_sending_if_done();
        }
        let block_bytes = socket.sends.taken_bytes();
        if count > 0 && block_bytes > 0 {
            events.push(Event::Taken { socket: id, block_bytes });
        }
        if !socket.flags.listed {
            socket.flags.listed = true;
            self.unsent.push(id);
        }
    }
}

impl Socket {
    /// Sends the FIN of `finish_sending`, once no block is queued before it.
    pub(super) fn end_sending_if_done(&mut self) {
        if self.flags.fin_wanted && self.sends.is_empty() && !self.flags.failed {
            // It fails only when the connection is gone, which the next receive reports.
            let _ = rustix::net::shutdown(self.fd(), Shutdown::Write);
        }
    }
}

//! Closing: cancels the operations of a socket in the kernel, then frees its slot.
//!
//! Upstream:   `Io::close`; every op's last completion.
//! Downstream: the slot is free; the descriptor is closed; a landing is back with its owner.

use std::os::fd::AsFd;

use super::{Operation, Token, Uring};
use crate::event::SocketId;

impl Uring {
    /// Ends the connection's name at once, and the connection when no op uses it any more.
    pub(super) fn begin_to_close(&mut self, id: SocketId) {
        let socket = self.sockets.live(id);
        if socket.ops > 0 {
            socket.ops += 1;
            let fd = socket.fd.as_ref().expect("a live socket has a descriptor");
            self.ring.cancel_all(fd.as_fd(), Token::new(Operation::Cancel, id.index()));
        }
        self.sockets.retire(id);
        self.release_if_done(id.index());
    }

    /// Notes an op's last completion.
    pub(super) fn op_ended(&mut self, index: usize) {
        let (_, socket) = self.sockets.at(index);
        assert!(socket.ops > 0, "I1");
        socket.ops -= 1;
        self.release_if_done(index);
    }

    fn release_if_done(&mut self, index: usize) {
        let (living, socket) = self.sockets.at(index);
        if living.is_some() || socket.ops > 0 {
            return;
        }
        assert!(!socket.flags.sending, "I1");
        socket.sends.clear();
        socket.landing = None;
        drop(socket.fd.take()); // Only now, so that the number is not reused while an op uses it.
        self.sockets.release(index);
    }
}

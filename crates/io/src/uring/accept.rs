//! Accepting connections, and not accepting them while there is no room.
//!
//! Upstream:   one multishot accept for each listener.
//! Downstream: each client gets a slot, and `Accepted` is reported. The next poll begins to receive
//!             from it.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  A listener's accept is armed while its hold is open, and cancelled soon when it is not.

use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

use super::{Completion, Operation, Token, Uring};
use crate::accept_hold::{AcceptHold, is_shortage};
use crate::event::{Event, ListenerId};
use crate::listener;

/// A listening socket.
#[derive(Debug)]
pub(super) struct Listener {
    fd: OwnedFd,
    pub(super) hold: AcceptHold,
    armed: bool,
    cancelling: bool,
}

impl Listener {
    pub(super) fn new(fd: OwnedFd) -> Self {
        Self { fd, hold: AcceptHold::default(), armed: false, cancelling: false }
    }

    pub(super) fn close(&mut self) {
        self.hold.closed = true;
        listener::shut_down(&self.fd);
    }
}

impl Uring {
    /// Arms or cancels accepts as I1 requires.
    pub(super) fn hold_or_arm_listeners(&mut self) {
        let full = self.sockets.is_full();
        for (index, listener) in self.listeners.iter_mut().enumerate() {
            let wanted = listener.hold.is_open(full);
            let token = Token::new(Operation::Accept, index);
            if wanted && !listener.armed {
                listener.armed = true; // I1
                self.ring.accept(listener.fd.as_fd(), token);
            } else if !wanted && listener.armed && !listener.cancelling {
                listener.cancelling = true;
                self.ring.cancel(token, Token::new(Operation::CancelAccept, index));
            }
        }
    }

    /// Handles the completion of an accept: a client has connected, or the accept has ended.
    pub(super) fn accepted(
        &mut self,
        index: usize,
        completion: Completion,
        events: &mut Vec<Event>,
    ) {
        let listener = &mut self.listeners[index];
        if !completion.more {
            listener.armed = false; // The next poll arms it again, if I1 says so.
            listener.cancelling = false;
        }
        if completion.result < 0 {
            match Errno::from_raw_os_error(-completion.result) {
                Errno::CONNABORTED => events.push(Event::Gone),
                error if is_shortage(error) => listener.hold.back_off(),
                _ => {}
            }
            return;
        }
        // SAFETY:
        // - the descriptor is new and has no other owner: it is the result of a successful
        //   accept.
        let fd = unsafe { OwnedFd::from_raw_fd(completion.result) };
        // It fails when the client is gone already. Then the connection is dropped.
        let Ok(address) = rustix::net::getpeername(&fd) else { return events.push(Event::Gone) };
        let peer = listener::peer(address);
        listener::stagger_keepalive(&fd, peer);
        let socket = self.take_in(fd);
        let listener = ListenerId(index as u32);
        events.push(Event::Accepted { listener, socket, peer });
    }
}

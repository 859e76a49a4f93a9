//! Accepting connections, and not accepting them while there is no room.
//!
//! Upstream:   a listener is readable.
//! Downstream: each client gets a slot and is watched; `Accepted` is reported.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  A listener is watched exactly while its hold is open. Otherwise it would end every wait at
//!   once, because it is watched by level.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with};

use super::{Epoll, watch};
use crate::accept_hold::{AcceptHold, is_shortage};
use crate::event::{Event, ListenerId};
use crate::limits::ACCEPTS_MAX;
use crate::listener;

/// A listening socket.
#[derive(Debug)]
pub(super) struct Listener {
    fd: OwnedFd,
    pub(super) hold: AcceptHold,
    watched: bool,
}

impl Listener {
    pub(super) fn new(fd: OwnedFd) -> Self {
        Self { fd, hold: AcceptHold::default(), watched: false }
    }

    pub(super) fn close(&mut self) {
        self.hold.closed = true;
        listener::shut_down(&self.fd);
    }
}

impl Epoll {
    /// Watches or ignores listeners as I1 requires.
    pub(super) fn hold_or_watch_listeners(&mut self) {
        let full = self.sockets.is_full();
        for (index, listener) in self.listeners.iter_mut().enumerate() {
            let wanted = listener.hold.is_open(full); // I1
            if wanted && !listener.watched {
                match watch::watch_listener(&self.epoll, &listener.fd, index) {
                    Ok(()) => listener.watched = true,
                    Err(error) if is_shortage(error) => listener.hold.back_off(),
                    Err(error) => panic!("a listener that cannot be watched: {error}"),
                }
            } else if !wanted && listener.watched {
                watch::unwatch_listener(&self.epoll, &listener.fd);
                listener.watched = false;
            }
        }
    }

    /// Accepts waiting connections, within limits. The next poll accepts the rest.
    pub(super) fn accept(&mut self, index: usize, events: &mut Vec<Event>) {
        for _ in 0..ACCEPTS_MAX {
            if self.sockets.is_full() {
                return; // The next poll begins with holding the listener back.
            }
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match acceptfrom_with(&self.listeners[index].fd, flags) {
                Ok((fd, address)) => {
                    let peer = listener::peer(address);
                    listener::stagger_keepalive(&fd, peer);
                    // When the kernel cannot watch one more, the client sees its connection end.
                    let Ok(socket) = self.take_in(fd) else { return events.push(Event::Gone) };
                    let listener = ListenerId(index as u32);
                    events.push(Event::Accepted { listener, socket, peer });
                }
                Err(Errno::CONNABORTED) => events.push(Event::Gone),
                Err(Errno::AGAIN) => return,
                Err(error) if is_shortage(error) => {
                    self.listeners[index].hold.back_off();
                    return self.hold_or_watch_listeners();
                }
                // An error of this connection (a firewall forbids it): go on with the next one.
                Err(_) => {}
            }
        }
    }
}

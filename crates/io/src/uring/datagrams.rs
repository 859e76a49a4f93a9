//! Datagrams: one multishot `recvmsg` for each datagram socket, into buffers that the kernel picks;
//! `sendmmsg` for the queued replies.
//!
//! Upstream:   `Io::receive_datagrams` adds a socket; `Io::send_datagram` queues.
//! Downstream: `Datagram` for each datagram, `DatagramsLost`.
//!
//! ```text
//! buffer: io_uring_recvmsg_out (16 bytes) | address (NAME_BYTES) | datagram
//! ```
//!
//! A receive ends when the buffers of the datagrams have run out. The next poll gives them back and
//! arms it again. While datagrams are held, no buffer is given back, so the kernel can bring no
//! more datagrams than there are buffers.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  While a receive is armed, its socket's message header stays where it is.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};

use io_uring::types::RecvMsgOut;

use super::buffers::Group;
use super::{Completion, Operation, Token, Uring};
use crate::datagrams::{NAME_BYTES, Outgoing, address_of};
use crate::event::{DatagramPeer, DatagramSocketId, Event};
use crate::limits::{DATAGRAM_BYTES_MAX, RECEIVE_BUFFER_BYTES};

/// Bytes of a buffer before the datagram.
const HEAD_BYTES: usize = 16 + NAME_BYTES;

const _: () = assert!(HEAD_BYTES + DATAGRAM_BYTES_MAX <= RECEIVE_BUFFER_BYTES);

/// A datagram socket.
struct Socket {
    /// `None` once it is closed.
    fd: Option<OwnedFd>,
    /// Tells the kernel how long an address is (I1).
    header: Box<libc::msghdr>,
    /// Whether a receive is in progress.
    armed: bool,
}

/// The datagram sockets of the backend.
#[derive(Default)]
pub(super) struct Datagrams {
    sockets: Vec<Socket>,
    /// Whether datagrams are left in the kernel's queues.
    held: bool,
    pub(super) outgoing: Outgoing,
}

impl fmt::Debug for Datagrams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Datagrams").field("sockets", &self.sockets.len()).finish_non_exhaustive()
    }
}

impl Datagrams {
    /// Adds a socket. The next poll begins to receive from it.
    pub(super) fn add(&mut self, fd: OwnedFd) -> DatagramSocketId {
        // SAFETY:
        // - all zeroes is a valid msghdr: it holds integers and nullable pointers only.
        let mut header: Box<libc::msghdr> = Box::new(unsafe { std::mem::zeroed() });
        header.msg_namelen = NAME_BYTES as u32;
        self.sockets.push(Socket { fd: Some(fd), header, armed: false });
        DatagramSocketId(self.sockets.len() as u32 - 1)
    }

    pub(super) fn hold(&mut self, hold: bool) {
        self.held = hold;
    }

    /// Sends the queued datagrams.
    pub(super) fn flush(&mut self, events: &mut Vec<Event>) {
        let Self { sockets, outgoing, .. } = self;
        let fd_of = |id: DatagramSocketId| sockets[id.index()].fd.as_ref().map(AsFd::as_fd);
        outgoing.flush(fd_of, events);
    }
}

impl Uring {
    /// Gives the buffers of the last poll back, and arms the receives that have ended, unless
    /// datagrams are held.
    pub(super) fn arm_datagrams(&mut self) {
        let Self { ring, datagrams: Datagrams { sockets, held, .. }, .. } = self;
        if *held || sockets.is_empty() {
            return;
        }
        ring.buffers.give_back(Group::Datagrams);
        for (index, socket) in sockets.iter_mut().enumerate() {
            let Socket { fd: Some(fd), header, armed } = socket else { continue };
            if !std::mem::replace(armed, true) {
                let token = Token::new(Operation::Datagrams, index);
                // SAFETY:
                // - the header is boxed and never changed, and it stays with the socket (I1), which
                //   is never removed from the list.
                // - `Uring` ends the op before it is dropped, or never frees the memory (ring, I1).
                unsafe { ring.receive_datagrams(fd.as_fd(), header, token) };
            }
        }
    }

    /// Handles the completion of a receive: a datagram has arrived, or the receive has ended.
    pub(super) fn received_datagram(
        &mut self,
        index: usize,
        completion: Completion,
        events: &mut Vec<Event>,
    ) {
        let bytes = completion.result.max(0) as u32;
        let lent = completion.buffer.map(|buffer| self.ring.buffers.take(buffer, bytes, self.tick));
        let socket = &mut self.datagrams.sockets[index];
        if !completion.more {
            socket.armed = false;
        }
        // An error ends the receive: no buffer was left, or the socket had an earlier error, which
        // is taken now.
        let (Some(lent), Some(_)) = (lent, &socket.fd) else { return };
        let Ok(message) = RecvMsgOut::parse(self.ring.buffers.bytes(lent), &socket.header) else {
            return;
        };
        let Some(address) = address_of(message.name_data()) else { return };
        let from = DatagramPeer { socket: DatagramSocketId(index as u32), address };
        let payload_bytes = message.payload_data().len();
        let is_cut = message.is_payload_truncated() || payload_bytes > DATAGRAM_BYTES_MAX;
        let bytes = lent.behind(HEAD_BYTES);
        debug_assert!(bytes.byte_count() == payload_bytes, "the datagram ends its buffer");
        events.push(Event::Datagram { from, bytes, is_cut });
    }

    /// Closes all datagram sockets.
    pub(super) fn end_datagrams(&mut self) {
        let Self { ring, datagrams, .. } = self;
        for (index, socket) in datagrams.sockets.iter_mut().enumerate() {
            if socket.fd.take().is_some() && socket.armed {
                let target = Token::new(Operation::Datagrams, index);
                ring.cancel(target, Token::new(Operation::CancelDatagrams, index));
            }
        }
    }
}

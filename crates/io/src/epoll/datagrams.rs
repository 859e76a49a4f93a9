//! Datagrams: in each poll, `recvmmsg` for the readable datagram sockets, and `sendmmsg` for the
//! queued replies.
//!
//! Upstream:   an edge marks a datagram socket readable; `Io::send_datagram` queues.
//! Downstream: `Datagram` for each datagram, `DatagramsLost`.
//!
//! Each datagram is received into a slot of its own, behind the receive area of the connections:
//!
//! ```text
//! receive area | slot | slot | ... DATAGRAMS_MAX slots, SLOT_BYTES apart
//! ```
//!
//! Invariants, cited by number where they are asserted:
//! - I1  A socket is `readable` from an edge until a call has found fewer datagrams than it had
//!   room for.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use arrayvec::ArrayVec;
use rustix::io::Errno;

use super::Epoll;
use crate::datagrams::{NAME_BYTES, Outgoing, address_of};
use crate::event::{DatagramPeer, DatagramSocketId, Event, Lent};
use crate::limits::{
    DATAGRAM_BYTES_MAX, DATAGRAMS_MAX, DATAGRAMS_PER_CALL, RECEIVE_AREA_BYTES, RECEIVE_BUFFER_BYTES,
};

/// Three cache lines more than a receive buffer, so that the beginnings of the slots do not fall
/// into one set of the cache.
const SLOT_BYTES: usize = RECEIVE_BUFFER_BYTES + 192;
/// Bytes of the receive area, that of the datagrams included.
pub(super) const AREA_BYTES: usize = RECEIVE_AREA_BYTES + DATAGRAMS_MAX * SLOT_BYTES;

const _: () = assert!(AREA_BYTES <= u32::MAX as usize && DATAGRAM_BYTES_MAX <= SLOT_BYTES);

/// A datagram socket.
#[derive(Debug)]
struct Socket {
    /// `None` once it is closed.
    fd: Option<OwnedFd>,
    /// There may be datagrams (I1).
    readable: bool,
}

/// The datagram sockets of the backend.
#[derive(Debug, Default)]
pub(super) struct Datagrams {
    sockets: Vec<Socket>,
    /// Whether datagrams are left in the kernel's queues.
    held: bool,
    /// The socket that is read first, so that a busy one starves no other.
    first: usize,
    pub(super) outgoing: Outgoing,
}

impl Datagrams {
    /// Adds a socket.
    pub(super) fn add(&mut self, fd: OwnedFd) -> DatagramSocketId {
        self.sockets.push(Socket { fd: Some(fd), readable: true });
        DatagramSocketId(self.sockets.len() as u32 - 1)
    }

    /// The descriptor of the socket that is added next has this name.
    pub(super) fn next_id(&self) -> DatagramSocketId {
        DatagramSocketId(self.sockets.len() as u32)
    }

    pub(super) fn hold(&mut self, hold: bool) {
        self.held = hold;
    }

    /// Closes all sockets; that also ends their watches.
    pub(super) fn close(&mut self) {
        self.sockets.iter_mut().for_each(|socket| *socket = Socket { fd: None, readable: false });
    }

    /// Notes an edge (I1).
    pub(super) fn note_readable(&mut self, index: usize) {
        self.sockets[index].readable = self.sockets[index].fd.is_some();
    }

    /// Whether there may be datagrams that the next poll receives.
    pub(super) fn are_ready(&self) -> bool {
        !self.held && self.sockets.iter().any(|socket| socket.readable)
    }

    /// Sends the queued datagrams.
    pub(super) fn flush(&mut self, events: &mut Vec<Event>) {
        let Self { sockets, outgoing, .. } = self;
        let fd_of = |id: DatagramSocketId| sockets[id.index()].fd.as_ref().map(AsFd::as_fd);
        outgoing.flush(fd_of, events);
    }
}

impl Epoll {
    /// Receives up to `DATAGRAMS_MAX` datagrams from the readable sockets.
    pub(super) fn receive_ready_datagrams(&mut self, events: &mut Vec<Event>) {
        let Datagrams { sockets, held, first, .. } = &mut self.datagrams;
        if *held || sockets.is_empty() {
            return;
        }
        let count = sockets.len();
        *first = (*first + 1) % count;
        let mut used = 0;
        for step in 0..count {
            let index = (*first + step) % count;
            let Socket { fd: Some(fd), readable } = &mut sockets[index] else { continue };
            while *readable && used < DATAGRAMS_MAX {
                let wanted = (DATAGRAMS_MAX - used).min(DATAGRAMS_PER_CALL);
                let start = RECEIVE_AREA_BYTES + used * SLOT_BYTES;
                let slots = &mut self.area[start..start + wanted * SLOT_BYTES];
                let (tick, socket) = (self.tick, DatagramSocketId(index as u32));
                let received = receive_datagrams(fd.as_fd(), slots, SLOT_BYTES, |place, one| {
                    let ReceivedDatagram { bytes, is_cut, address } = one;
                    let start = (start + place * SLOT_BYTES) as u32;
                    let bytes = Lent { tick, start, bytes };
                    let from = DatagramPeer { socket, address };
                    events.push(Event::Datagram { from, bytes, is_cut });
                });
                match received {
                    Ok(count) => {
                        *readable = count == wanted; // I1
                        used += count;
                    }
                    Err(Errno::AGAIN) => *readable = false,
                    // An earlier error of the socket, which this call has taken, or a signal.
                    Err(_) => break,
                }
            }
        }
        debug_assert!(used <= DATAGRAMS_MAX, "a slot for each");
    }
}

/// A datagram that was received.
#[derive(Clone, Copy, Debug)]
pub struct ReceivedDatagram {
    /// Its length, or that of its slot if it was cut.
    pub bytes: u32,
    /// Whether it was longer than its slot.
    pub is_cut: bool,
    /// The address of its sender.
    pub address: SocketAddr,
}

/// Receives a datagram into each slot of `slot_bytes` bytes, as long as there are any. Calls `each`
/// with the number of the slot. Returns how many slots were used, at most 16. A datagram of an
/// unknown kind of address uses a slot and is dropped. A slot of a server has room for
/// [`crate::DATAGRAM_BYTES_MAX`] bytes and no more are received.
///
/// Cost: one system call; it does not wait.
///
/// Errors: those of the kernel; `EAGAIN` if there is no datagram.
pub fn receive_datagrams(
    fd: BorrowedFd<'_>,
    slots: &mut [u8],
    slot_bytes: usize,
    mut each: impl FnMut(usize, ReceivedDatagram),
) -> Result<usize, Errno> {
    let mut names = [[0_u8; NAME_BYTES]; DATAGRAMS_PER_CALL];
    let mut slices: ArrayVec<libc::iovec, DATAGRAMS_PER_CALL> = ArrayVec::new();
    for slot in slots.chunks_exact_mut(slot_bytes).take(DATAGRAMS_PER_CALL) {
        let iov_len = slot.len().min(DATAGRAM_BYTES_MAX);
        slices.push(libc::iovec { iov_base: slot.as_mut_ptr().cast(), iov_len });
    }
    let mut headers: ArrayVec<libc::mmsghdr, DATAGRAMS_PER_CALL> = ArrayVec::new();
    for (slice, name) in slices.iter_mut().zip(&mut names) {
        // SAFETY:
        // - all zeroes is a valid mmsghdr: it holds integers and nullable pointers only.
        let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
        header.msg_hdr.msg_name = name.as_mut_ptr().cast();
        header.msg_hdr.msg_namelen = NAME_BYTES as u32;
        header.msg_hdr.msg_iov = slice;
        header.msg_hdr.msg_iovlen = 1;
        headers.push(header);
    }
    // SAFETY:
    // - `headers` has as many elements as the call is told.
    // - each points to a name and a slice of this function, and the slice to a slot of `slots`, all
    //   of which outlive the call; no length is more than that of the memory.
    // - no other reference to that memory is used during the call.
    // - the kernel writes integers and bytes, of which any value is valid.
    let count = unsafe {
        let (headers, count) = (headers.as_mut_ptr(), headers.len() as u32);
        libc::recvmmsg(fd.as_raw_fd(), headers, count, libc::MSG_DONTWAIT, std::ptr::null_mut())
    };
    let Ok(count) = usize::try_from(count) else {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    };
    for (place, header) in headers[..count].iter().enumerate() {
        let name_bytes = (header.msg_hdr.msg_namelen as usize).min(NAME_BYTES);
        if let Some(address) = address_of(&names[place][..name_bytes]) {
            let is_cut = header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
            each(place, ReceivedDatagram { bytes: header.msg_len, is_cut, address });
        }
    }
    Ok(count)
}

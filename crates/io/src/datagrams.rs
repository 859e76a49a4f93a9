//! Datagrams that wait to be sent, and addresses as the kernel writes them.
//!
//! Upstream:   `Io::send_datagram` queues; `epoll` and `uring` receive.
//! Downstream: `sendmmsg`, in each poll, for all datagrams that were queued since the last one.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  At most `DATAGRAMS_QUEUED_MAX` datagrams wait. Those beyond are lost, and counted.

use std::io::IoSlice;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::BorrowedFd;

use arrayvec::ArrayVec;
use rustix::io::Errno;
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags, SocketAddrAny, sendmmsg};

use crate::event::{DatagramPeer, DatagramSocketId, Event};
use crate::limits::{DATAGRAMS_PER_CALL, DATAGRAMS_QUEUED_MAX};

/// Bytes of the longest address of the kernel: that of IPv6.
pub(crate) const NAME_BYTES: usize = size_of::<libc::sockaddr_in6>();
/// Memory of the queue that is kept between polls.
const KEPT_BYTES: usize = 256 * 1024;

/// One datagram of the queue.
#[derive(Debug)]
struct Queued {
    to: DatagramPeer,
    /// Where its bytes end in the queue. They begin where those of the datagram before end.
    end: usize,
}

/// The datagrams of one `Io` that wait to be sent.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    bytes: Vec<u8>,
    queued: Vec<Queued>,
    /// Datagrams that were lost since the last report.
    lost: u64,
}

impl Outgoing {
    /// Queues a datagram that consists of the pieces (I1).
    pub(crate) fn push(&mut self, to: DatagramPeer, pieces: [&[u8]; 2]) {
        if self.queued.len() == DATAGRAMS_QUEUED_MAX {
            self.lost += 1;
            return;
        }
        pieces.iter().for_each(|piece| self.bytes.extend_from_slice(piece));
        self.queued.push(Queued { to, end: self.bytes.len() });
        debug_assert!(self.queued.len() <= DATAGRAMS_QUEUED_MAX, "I1");
    }

    /// Sends all queued datagrams, those that follow one another on one socket together. `socket`
    /// returns the descriptor of a socket that is open. Datagrams that the kernel does not take
    /// are lost.
    ///
    /// Cost: a comparison if nothing is queued; a system call for each `DATAGRAMS_PER_CALL`
    /// datagrams.
    pub(crate) fn flush<'fd>(
        &mut self,
        socket: impl Fn(DatagramSocketId) -> Option<BorrowedFd<'fd>>,
        events: &mut Vec<Event>,
    ) {
        if self.queued.is_empty() {
            return;
        }
        let (mut first, mut start) = (0, 0);
        while let Some(one) = self.queued.get(first) {
            let id = one.to.socket;
            let rest = self.queued[first..].iter();
            let count = rest.take_while(|next| next.to.socket == id).count();
            let run = &self.queued[first..first + count.min(DATAGRAMS_PER_CALL)];
            let sent = socket(id).map_or(0, |fd| send(fd, &self.bytes, start, run));
            // The kernel has taken some, or it refuses the first one: that one is lost.
            let passed = sent.max(1);
            self.lost += u64::from(sent == 0);
            start = self.queued[first + passed - 1].end;
            first += passed;
        }
        self.queued.clear();
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_BYTES);
        if self.lost > 0 {
            events.push(Event::DatagramsLost { count: std::mem::take(&mut self.lost) });
        }
    }
}

/// Sends a run of datagrams by one system call; `start` is where the first one begins in `bytes`.
/// Returns how many the kernel took.
fn send(fd: BorrowedFd<'_>, bytes: &[u8], mut start: usize, run: &[Queued]) -> usize {
    type Few<T> = ArrayVec<T, DATAGRAMS_PER_CALL>;
    let mut names: Few<SocketAddrAny> = ArrayVec::new();
    let mut slices: Few<[IoSlice<'_>; 1]> = ArrayVec::new();
    let mut controls: Few<SendAncillaryBuffer<'_, '_, '_>> = ArrayVec::new();
    for one in run {
        names.push(SocketAddrAny::from(one.to.address));
        slices.push([IoSlice::new(&bytes[start..one.end])]);
        controls.push(SendAncillaryBuffer::default());
        start = one.end;
    }
    let parts = names.iter().zip(&slices).zip(&mut controls);
    let mut messages: Few<MMsgHdr<'_>> = parts
        .map(|((name, slice), control)| MMsgHdr::new_with_addr(name, slice, control))
        .collect();
    loop {
        match sendmmsg(fd, &mut messages, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            sent => return sent.unwrap_or(0),
        }
    }
}

/// The address in a `sockaddr_in` or `sockaddr_in6`, as the kernel writes it. `None` for another
/// family.
pub(crate) fn address_of(name: &[u8]) -> Option<SocketAddr> {
    let family = i32::from(u16::from_ne_bytes(*name.first_chunk()?));
    let port = u16::from_be_bytes(*name.get(2..)?.first_chunk()?);
    match family {
        libc::AF_INET => {
            let address: [u8; 4] = *name.get(4..)?.first_chunk()?;
            Some(SocketAddrV4::new(Ipv4Addr::from(address), port).into())
        }
        libc::AF_INET6 => {
            let address: [u8; 16] = *name.get(8..)?.first_chunk()?;
            let flow = u32::from_be_bytes(*name.get(4..)?.first_chunk()?);
            let scope = u32::from_ne_bytes(*name.get(24..)?.first_chunk()?);
            Some(SocketAddrV6::new(Ipv6Addr::from(address), port, flow, scope).into())
        }
        _ => None,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_both_families_are_read_and_no_others() {
        let mut name = [0; NAME_BYTES];
        assert_eq!(address_of(&name), None);
        name[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        name[2..8].copy_from_slice(&[0x2b, 0xcb, 127, 0, 0, 1]);
        assert_eq!(address_of(&name), Some("127.0.0.1:11211".parse().unwrap()));
        assert_eq!(address_of(&name[..7]), None);
        name[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
        name[4..].fill(0);
        name[23] = 1;
        assert_eq!(address_of(&name), Some("[::1]:11211".parse().unwrap()));
        assert_eq!(address_of(&name[..27]), None);
        assert_eq!(address_of(b""), None);
    }

    #[test]
    fn datagrams_beyond_the_limit_are_lost_and_counted() {
        let mut outgoing = Outgoing::default();
        let address = "127.0.0.1:9".parse().unwrap();
        let to = DatagramPeer { socket: DatagramSocketId(0), address };
        for _ in 0..DATAGRAMS_QUEUED_MAX + 3 {
            outgoing.push(to, [b"a", b"b"]);
        }
        assert_eq!(outgoing.bytes.len(), 2 * DATAGRAMS_QUEUED_MAX);
        let mut events = Vec::new();
        outgoing.flush(|_| None, &mut events);
        let count = DATAGRAMS_QUEUED_MAX as u64 + 3;
        assert!(matches!(events[..], [Event::DatagramsLost { count: lost }] if lost == count));
        outgoing.flush(|_| unreachable!("nothing is queued"), &mut events);
        assert_eq!(events.len(), 1);
    }
}

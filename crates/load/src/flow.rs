//! One flow of datagrams: a UDP socket, the requests in flight, and the parts of their answers.
//!
//! Upstream:   `session` opens the flows before the run; `drive` sends and receives.
//! Downstream: the server.
//!
//! Each request is one datagram behind a frame, which has its ID. An answer of several datagrams is
//! assembled by their sequence numbers. Answers may come in any order, or not at all.
//!
//! ```text
//! slots: | oldest request, first_id | answered | ... | newest |
//! ```
//!
//! Invariants, cited by number where they are asserted:
//! - I1  The request in `slots[n]` has the ID `first_id + n`, which wraps at 16 bits. The first
//!   slot is in flight.
//! - I2  A request that is not answered within the timeout is dropped and counted, so a datagram
//!   that is lost does not stop its flow. An answer that comes later finds no request.
//! - I3  An answer has exactly the bytes of one answer to its request.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};

use kachel_io::receive_datagrams;
use kachel_wire::{FRAME_BYTES, Frame};
use rustix::io::Errno;
use rustix::net::{MMsgHdr, RecvFlags, SendAncillaryBuffer, SendFlags, recv, send, sendmmsg};

use crate::answer::{Progress, Step, read_answer};
use crate::books::Books;
use crate::link::{Link, LinkState, Received};
use crate::protocol::Protocol;
use crate::request::{Asked, Next, Outbox, Outcome, Pending, Source};

/// The most datagrams that one call sends or receives.
const DATAGRAMS_PER_CALL: usize = 16;
/// Space for one datagram. Servers send at most 1,400 bytes; a longer one is cut and garbled.
const SLOT_BYTES: usize = 2048;
/// The most requests of a flow that are in flight, or answered after the oldest in flight. Fewer
/// than IDs, so that an ID names one request.
const SLOTS_MAX: usize = 1 << 15;

/// A request of a flow.
#[derive(Debug)]
struct Slot {
    /// The request, until it ends.
    pending: Option<Pending>,
    /// The opaque of its first command.
    opaque: u32,
    /// Its keys, if the source checks them.
    asked: Asked,
    /// The parts of an answer of several datagrams.
    parts: Vec<Option<Vec<u8>>>,
}

/// A flow and its state.
#[derive(Debug)]
pub(crate) struct Flow {
    socket: OwnedFd,
    protocol: Protocol,
    timeout_ns: u64,
    state: LinkState,
    outbox: Outbox,
    /// Where each datagram that is not sent yet ends in the outbox.
    unsent_ends: VecDeque<usize>,
    slots: VecDeque<Slot>,
    first_id: u16,
    in_flight: usize,
    /// Space for the datagrams of one call, and their lengths.
    area: Vec<u8>,
    lengths: Vec<usize>,
    /// Lists of keys for reuse.
    spare: Vec<Asked>,
}

impl Flow {
    /// Opens a socket for datagrams to the server.
    ///
    /// Errors: those of the kernel.
    pub(crate) fn open(
        address: SocketAddr,
        protocol: Protocol,
        timeout_ns: u64,
    ) -> io::Result<Self> {
        let any: SocketAddr = match address {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(any)?;
        socket.connect(address)?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket: socket.into(),
            protocol,
            timeout_ns,
            state: LinkState::NEW,
            outbox: Outbox::default(),
            unsent_ends: VecDeque::new(),
            slots: VecDeque::new(),
            first_id: 0,
            in_flight: 0,
            area: vec![0; DATAGRAMS_PER_CALL * SLOT_BYTES],
            lengths: Vec::with_capacity(DATAGRAMS_PER_CALL),
            spare: Vec::new(),
        })
    }

    /// Puts the frame before the request that begins at `start` in the outbox.
    fn launch(&mut self, start: usize, opaque: u32, pending: Pending) {
        let request_id = self.first_id.wrapping_add(self.slots.len() as u16); // I1
        let frame = Frame { request_id, sequence: 0, total: 1 };
        self.outbox.bytes[start..start + FRAME_BYTES].copy_from_slice(&frame.bytes());
        self.unsent_ends.push_back(self.outbox.bytes.len());
        let fresh = self.spare.pop().unwrap_or_default();
        let asked = std::mem::replace(&mut self.outbox.asked, fresh);
        self.slots.push_back(Slot { pending: Some(pending), opaque, asked, parts: Vec::new() });
        self.in_flight += 1;
        assert!(self.slots.len() <= SLOTS_MAX && self.in_flight <= self.slots.len(), "I1");
    }

    /// Removes the requests at the front that have ended (I1).
    fn shift(&mut self) {
        while let Some(slot) = self.slots.pop_front_if(|slot| slot.pending.is_none()) {
            self.first_id = self.first_id.wrapping_add(1);
            self.spare.push(slot.asked);
        }
    }

    /// Receives datagrams into the area. Returns how many there was room for.
    fn receive(&mut self) -> io::Result<usize> {
        self.lengths.clear();
        let wanted = self.in_flight.clamp(1, DATAGRAMS_PER_CALL);
        let lengths = &mut self.lengths;
        let area = &mut self.area[..wanted * SLOT_BYTES];
        loop {
            let received = match wanted {
                1 => recv(&self.socket, &mut *area, RecvFlags::TRUNC)
                    .map(|(_, bytes)| lengths.push(bytes)),
                _ => receive_datagrams(self.socket.as_fd(), area, SLOT_BYTES, |_, one| {
                    lengths.push(one.bytes as usize + usize::from(one.is_cut));
                })
                .map(|_| ()),
            };
            match received {
                Ok(()) | Err(Errno::AGAIN) => return Ok(wanted),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads the datagram in place `place` of the area.
    fn read(&mut self, place: usize, source: &mut impl Source, books: &mut Books) {
        let start = place * SLOT_BYTES;
        let bytes = self.lengths[place];
        let datagram = &self.area[start..start + bytes.min(SLOT_BYTES)];
        let id = datagram.first_chunk().map(|&id| u16::from_be_bytes(id));
        let index = id.map(|id| usize::from(id.wrapping_sub(self.first_id)));
        let slot = index.and_then(|index| self.slots.get_mut(index)); // I1
        let Some((slot, pending)) = slot.and_then(|slot| slot.pending.map(|of| (slot, of))) else {
            books.tally.errors.stray += 1; // I2
            return;
        };
        let message = match Frame::read(datagram) {
            Some((Frame { total: 1, .. }, body)) if bytes <= SLOT_BYTES => Message::Whole(body),
            Some((frame, body)) if bytes <= SLOT_BYTES => slot.assemble(frame, body),
            _ => Message::Garbled,
        };
        let assembled;
        let answer = match message {
            Message::Partial => return,
            Message::Repeated => {
                books.tally.errors.stray += 1;
                return;
            }
            Message::Garbled => None,
            Message::Whole(body) => Some(body),
            Message::Assembled(body) => {
                assembled = body;
                Some(&assembled[..])
            }
        };
        let (errors, asked) = (&mut books.tally.errors, &mut slot.asked);
        let progress = &mut Progress::new(slot.opaque);
        let step = answer.map(|answer| {
            let (consumed, step) =
                read_answer(self.protocol, answer, &pending, progress, source, asked, errors);
            if consumed == answer.len() { step } else { Step::Garbled } // I3
        });
        let outcome = match step {
            Some(Step::Answered(outcome)) => outcome,
            _ => {
                errors.garbled += 1;
                errors.note(|| {
                    let start = datagram[..datagram.len().min(60)].escape_ascii();
                    format!("not the answer to its request: \"{start}\"")
                });
                Outcome::Failed
            }
        };
        slot.pending = None;
        slot.asked.clear();
        debug_assert!(self.in_flight > 0, "I1: the slot was in flight");
        self.in_flight -= 1;
        self.shift();
        books.answered(&pending, outcome);
        let start = self.begin_datagram();
        let opaque = self.outbox.opaque();
        match source.answered(&pending, outcome, books.now_ns, &mut self.outbox) {
            None => self.outbox.bytes.truncate(start),
            Some(next) => {
                books.begin(books.now_ns);
                self.launch(start, opaque, next);
            }
        }
    }

    /// Leaves room for a frame in the outbox. Returns where it begins.
    fn begin_datagram(&mut self) -> usize {
        let start = self.outbox.bytes.len();
        self.outbox.bytes.extend_from_slice(&[0; FRAME_BYTES]);
        start
    }
}

/// The body of a datagram, as a part of its answer.
enum Message<'d> {
    /// The answer is this datagram.
    Whole(&'d [u8]),
    /// The datagram was the last missing part.
    Assembled(Vec<u8>),
    /// Parts are missing.
    Partial,
    /// The network has sent a part twice.
    Repeated,
    /// The numbers of the datagram contradict those of an earlier one.
    Garbled,
}

impl Slot {
    /// Adds a part of an answer of several datagrams.
    fn assemble<'d>(&mut self, frame: Frame, body: &[u8]) -> Message<'d> {
        let total = usize::from(frame.total);
        if self.parts.is_empty() {
            self.parts.resize(total, None);
        }
        if self.parts.len() != total {
            return Message::Garbled;
        }
        let part = &mut self.parts[usize::from(frame.sequence)];
        match part {
            Some(earlier) if earlier == body => return Message::Repeated,
            Some(_) => return Message::Garbled,
            None => *part = Some(body.to_vec()),
        }
        let parts: Option<Vec<&[u8]>> = self.parts.iter().map(Option::as_deref).collect();
        parts.map_or(Message::Partial, |parts| Message::Assembled(parts.concat()))
    }
}

impl Link for Flow {
    fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    #[inline]
    fn state(&mut self) -> &mut LinkState {
        &mut self.state
    }

    #[inline]
    fn in_flight(&self) -> usize {
        self.in_flight
    }

    #[inline]
    fn take(&mut self, source: &mut impl Source, now_ns: u64) -> Next {
        if self.slots.len() == SLOTS_MAX {
            return Next::Blocked;
        }
        let start = self.begin_datagram();
        let opaque = self.outbox.opaque();
        let next = source.next(now_ns, &mut self.outbox);
        match next {
            Next::Request(pending) => self.launch(start, opaque, pending),
            _ => self.outbox.bytes.truncate(start),
        }
        next
    }

    fn flush(&mut self) -> io::Result<()> {
        let Self { socket, outbox, unsent_ends, .. } = self;
        while let Some(&first_end) = unsent_ends.front() {
            let sent = match unsent_ends.len() {
                1 => {
                    send(&*socket, &outbox.bytes[outbox.sent_bytes..first_end], SendFlags::NOSIGNAL)
                        .map(|_| 1)
                }
                _ => send_several(socket, &outbox.bytes, outbox.sent_bytes, unsent_ends),
            };
            match sent {
                Ok(count) => {
                    assert!(count > 0, "the kernel takes a datagram or returns an error");
                    let last = unsent_ends.drain(..count).next_back();
                    outbox.sent_bytes = last.expect("at least one");
                }
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        outbox.bytes.clear();
        outbox.sent_bytes = 0;
        Ok(())
    }

    fn serve(&mut self, source: &mut impl Source, books: &mut Books) -> io::Result<Received> {
        let wanted = self.receive()?;
        let count = self.lengths.len();
        if count == 0 {
            return Ok(Received::Nothing);
        }
        books.read_clock();
        for place in 0..count {
            self.read(place, source, books);
        }
        // No answer is on its way if no request is.
        let is_drained = count < wanted || self.in_flight == 0;
        Ok(if is_drained { Received::Drained } else { Received::More })
    }

    fn expire(&mut self, source: &mut impl Source, books: &mut Books) -> bool {
        let mut is_any = false;
        while let Some(slot) = self.slots.front_mut() {
            let pending = slot.pending.expect("I1: the first one is in flight");
            if books.now_ns.saturating_sub(pending.sent_ns) < self.timeout_ns {
                break;
            }
            is_any = true;
            slot.pending = None; // I2
            slot.asked.clear();
            self.in_flight -= 1;
            self.shift();
            books.dropped(&pending);
            // A request that would follow is not sent: the source is told that this one failed.
            let _ =
                source.answered(&pending, Outcome::Failed, books.now_ns, &mut Outbox::default());
        }
        is_any
    }

    fn abandon(&mut self) -> Vec<Pending> {
        self.outbox.bytes.clear();
        self.outbox.sent_bytes = 0;
        self.unsent_ends.clear();
        self.in_flight = 0;
        self.slots.drain(..).filter_map(|slot| slot.pending).collect()
    }
}

/// Sends up to `DATAGRAMS_PER_CALL` datagrams by one call. The first one begins at `start`. Returns
/// how many the kernel took.
fn send_several(
    socket: &OwnedFd,
    bytes: &[u8],
    mut start: usize,
    ends: &VecDeque<usize>,
) -> Result<usize, Errno> {
    let mut slices = Vec::with_capacity(DATAGRAMS_PER_CALL);
    for &end in ends.iter().take(DATAGRAMS_PER_CALL) {
        slices.push([io::IoSlice::new(&bytes[start..end])]);
        start = end;
    }
    let mut controls = Vec::with_capacity(slices.len());
    controls.resize_with(slices.len(), SendAncillaryBuffer::default);
    let mut messages: Vec<MMsgHdr<'_>> = slices
        .iter()
        .zip(&mut controls)
        .map(|(slice, control)| MMsgHdr::new(slice, control))
        .collect();
    sendmmsg(socket, &mut messages, SendFlags::NOSIGNAL)
}

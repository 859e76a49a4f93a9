//! The backend without a kernel: a network and a disk in memory. A test holds the far ends.
//!
//! Upstream:   a test or the simulator writes, cuts, stalls, finishes and resets by `FarEnd`.
//! Downstream: `net` and `shard` see an [`Io`] that behaves as the others do, on one thread and
//!             without waiting: every poll does what is possible and returns.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  One `FarEnd::write` is one `Received` or `Landed` (cut only where it exceeds a receive
//!   buffer or the landing), and a poll reports at most one of them for each socket. So the test
//!   decides how bytes are cut.
//! - I2  The near end sends bytes only within the window that the far end allows.
//! - I3  `Memory::stir` does the work of a kernel while the shard sleeps: it sends within the
//!   window, and returns whether a poll would report an event. So a simulation of sleep loses no
//!   wake-up and adds none.

/// A disk in memory, for tests and simulation.
pub mod disk;
mod far_end;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;

use kachel_stdx::Landing;
use rustix::event::{EventfdFlags, eventfd};

use disk::Disk;
use far_end::{DatagramQueues, Wire, Wires};
pub use far_end::{FarEnd, MemoryNet};

use crate::event::{
    DatagramPeer, DatagramSocketId, Event, Lent, ListenerId, SocketId, SocketName, Wait,
};
use crate::files::FileOperation;
use crate::limits::{
    ACCEPTS_MAX, DATAGRAM_BYTES_MAX, DATAGRAMS_MAX, Limits, RECEIVE_AREA_BYTES,
    RECEIVE_BUFFER_BYTES,
};
use crate::send_block::SendBlock;
use crate::send_queue::SendQueue;
use crate::slots::Slots;
use crate::waker::Waker;
use crate::{Files, Io};

/// An `Io` in memory; made by [`MemoryNet::open`].
#[derive(Debug)]
pub struct Memory {
    wires: Rc<RefCell<Wires>>,
    endpoint: usize,
    sockets: Slots<NearEnd>,
    listeners_closed: Vec<bool>,
    /// Datagram sockets; they stop receiving when they are closed.
    datagram_sockets: usize,
    datagrams_held: bool,
    datagrams_closed: bool,
    area: Vec<u8>,
    tick: u32,
    /// Where the next poll begins, so that a full area starves no socket.
    first_index: usize,
    waker: Waker,
    /// The disk of the files, and our number there.
    disk: Option<(Disk, u64)>,
}

#[derive(Debug, Default)]
struct NearEnd {
    wire: usize,
    sends: SendQueue,
    /// Blocks that are sent whole and not reported yet.
    sent: Vec<SendBlock>,
    /// Whether anything was sent that is not reported yet.
    taken_any: bool,
    /// Where the next bytes go.
    landing: Option<Landing>,
    paused: bool,
    finished: bool,
    failed: bool,
    fin_wanted: bool,
}

impl NearEnd {
    fn begin(&mut self, wire: usize) {
        self.lose_sends();
        let (sends, sent) = (std::mem::take(&mut self.sends), std::mem::take(&mut self.sent));
        *self = Self { wire, sends, sent, ..Self::default() };
    }

    fn lose_sends(&mut self) {
        self.sends.clear();
        self.sent.clear();
    }

    /// Whether bytes may still come.
    fn is_open(&self) -> bool {
        !self.finished && !self.failed
    }

    /// Whether a poll would receive something, or report the peer's end.
    fn may_receive(&self, wire: &Wire) -> bool {
        !self.paused && !self.finished && (wire.fin_in || !wire.incoming.is_empty())
    }
}

impl Memory {
    fn open(wires: Rc<RefCell<Wires>>, endpoint: usize, limits: Limits) -> Self {
        Self {
            wires,
            endpoint,
            sockets: Slots::new(limits.sockets_max),
            listeners_closed: Vec::new(),
            datagram_sockets: 0,
            datagrams_held: false,
            datagrams_closed: false,
            area: Vec::new(), // Grows as needed, because a fuzzer opens many small backends.
            tick: 0,
            first_index: 0,
            waker: Waker::without_eventfd(),
            disk: None,
        }
    }

    /// The index of this endpoint in the net, for [`MemoryNet::connect`].
    #[must_use]
    pub fn endpoint(&self) -> usize {
        self.endpoint
    }

    /// Has the files of folders of this disk. They belong to no network.
    ///
    /// Panics: if there is a disk already.
    pub fn use_disk(&mut self, disk: &Disk) {
        assert!(self.disk.is_none(), "one disk for one `Memory`");
        self.disk = Some((disk.clone(), disk.register()));
    }

    /// Starts accepting, as `listen` does, without a descriptor.
    pub fn listen_here(&mut self) -> ListenerId {
        let listener = ListenerId(self.listeners_closed.len() as u32);
        self.listeners_closed.push(false);
        self.wires.borrow_mut().endpoints[self.endpoint].push(VecDeque::new());
        listener
    }

    /// Starts receiving datagrams, as `receive_datagrams` does, without a descriptor.
    pub fn receive_datagrams_here(&mut self) -> DatagramSocketId {
        let socket = DatagramSocketId(self.datagram_sockets as u32);
        self.datagram_sockets += 1;
        self.wires.borrow_mut().datagrams[self.endpoint].push(DatagramQueues::default());
        socket
    }

    /// Whether datagrams are received now.
    fn receives_datagrams(&self) -> bool {
        self.datagram_sockets > 0 && !self.datagrams_held && !self.datagrams_closed
    }

    /// Reports up to `DATAGRAMS_MAX` datagrams, each in one piece.
    fn take_datagrams(&mut self, events: &mut Vec<Event>) {
        if !self.receives_datagrams() {
            return;
        }
        let mut wires = self.wires.borrow_mut();
        let queues = &mut wires.datagrams[self.endpoint];
        let mut room = DATAGRAMS_MAX;
        for (index, queue) in (0..).zip(queues) {
            let count = room.min(queue.incoming.len());
            room -= count;
            for (address, datagram) in queue.incoming.drain(..count) {
                let is_cut = datagram.len() > DATAGRAM_BYTES_MAX;
                let datagram = &datagram[..datagram.len().min(DATAGRAM_BYTES_MAX)];
                let (start, count) = (self.area.len() as u32, datagram.len() as u32);
                self.area.extend_from_slice(datagram);
                let bytes = Lent { tick: self.tick, start, bytes: count };
                let from = DatagramPeer { socket: DatagramSocketId(index), address };
                events.push(Event::Datagram { from, bytes, is_cut });
            }
        }
    }

    /// Does the work of a kernel between polls (I3), and returns whether the next poll has an event
    /// to report. A simulation lets its shard sleep only if this returns false.
    ///
    /// Cost: a check of every socket.
    pub fn stir(&mut self) -> bool {
        let mut wires = self.wires.borrow_mut();
        let backlogs = &wires.endpoints[self.endpoint];
        let waiting = backlogs.iter().zip(&self.listeners_closed);
        let accepts = !self.sockets.is_full()
            && waiting.into_iter().any(|(backlog, closed)| !closed && !backlog.is_empty());
        let mut stirred = accepts || self.waker.bell().is_rung();
        stirred |= self.disk.as_ref().is_some_and(|(disk, user)| disk.is_due(*user));
        let mut queues = wires.datagrams[self.endpoint].iter();
        stirred |= self.receives_datagrams() && queues.any(|queue| !queue.incoming.is_empty());
        for index in 0..self.sockets.len() {
            let (Some(_), near) = self.sockets.at(index) else { continue };
            let wire = &mut wires.wires[near.wire];
            if near.failed {
                continue;
            }
            if !wire.reset {
                send(near, wire);
            }
            stirred |= wire.reset || !near.sent.is_empty() || near.may_receive(wire);
        }
        stirred
    }

    fn accept(&mut self, events: &mut Vec<Event>) {
        let mut wires = self.wires.borrow_mut();
        let Wires { wires, endpoints, .. } = &mut *wires;
        for (index, closed) in self.listeners_closed.iter().enumerate() {
            let waiting = &mut endpoints[self.endpoint][index];
            if *closed {
                waiting.drain(..).for_each(|(wire, _)| wires[wire].closed = true);
            }
            for _ in 0..ACCEPTS_MAX {
                if self.sockets.is_full() {
                    break;
                }
                let Some((wire, peer)) = waiting.pop_front() else { break };
                let (socket, near) = self.sockets.insert();
                near.begin(wire);
                wires[wire].accepted = true;
                events.push(Event::Accepted { listener: ListenerId(index as u32), socket, peer });
            }
        }
    }

    fn send_and_receive(&mut self, events: &mut Vec<Event>) {
        let mut wires = self.wires.borrow_mut();
        let count = self.sockets.len();
        for step in 0..count {
            let index = (self.first_index + step) % count;
            let (Some(socket), near) = self.sockets.at(index) else { continue };
            let wire = &mut wires.wires[near.wire];
            if near.failed {
                continue;
            }
            if wire.reset {
                if !wire.incoming.is_empty() {
                    receive(near, wire, &mut self.area, self.tick, socket, events);
                }
                near.failed = true;
                near.lose_sends();
                near.landing = None;
                events.push(Event::Failed { socket });
                continue;
            }
            send(near, wire);
            events.extend(near.sent.drain(..).map(|block| Event::Sent { socket, block }));
            if std::mem::take(&mut near.taken_any) && near.sends.taken_bytes() > 0 {
                events.push(Event::Taken { socket, block_bytes: near.sends.taken_bytes() });
            }
            receive(near, wire, &mut self.area, self.tick, socket, events);
        }
        self.first_index = if count == 0 { 0 } else { (self.first_index + 1) % count };
    }
}

fn send(near: &mut NearEnd, wire: &mut Wire) {
    let NearEnd { sends, sent, taken_any, .. } = near;
    sends.advance(0, |block| sent.push(block));
    while wire.window > 0 && !sends.is_empty() {
        let unsent = sends.first_unsent();
        let count = unsent.len().min(wire.window);
        wire.carry(&unsent[..count]);
        sends.advance(count, |block| sent.push(block));
        *taken_any = true;
    }
    if near.fin_wanted && near.sends.is_empty() {
        wire.fin_out = true;
    }
}

fn receive(
    near: &mut NearEnd,
    wire: &mut Wire,
    area: &mut Vec<u8>,
    tick: u32,
    socket: SocketId,
    events: &mut Vec<Event>,
) {
    if !near.may_receive(wire) {
        return;
    }
    let Some(piece) = wire.incoming.front_mut() else {
        near.finished = true;
        near.landing = None;
        events.push(Event::Finished { socket });
        return;
    };
    if let Some(mut landing) = near.landing.take() {
        let bytes = land(piece, &mut landing);
        if piece.is_empty() {
            wire.incoming.pop_front();
        }
        events.push(Event::Landed { socket, landing, bytes }); // I1
        return;
    }
    let count = piece.len().min(RECEIVE_BUFFER_BYTES);
    if area.len() + count > RECEIVE_AREA_BYTES {
        return; // A later poll receives the piece: all buffers of this poll are lent.
    }
    let start = area.len() as u32;
    let (front, back) = piece.as_slices();
    let (front, back) =
        (&front[..front.len().min(count)], &back[..count.saturating_sub(front.len())]);
    area.extend_from_slice(front);
    area.extend_from_slice(back);
    piece.drain(..count);
    if piece.is_empty() {
        wire.incoming.pop_front();
    }
    let bytes = Lent { tick, start, bytes: count as u32 };
    events.push(Event::Received { socket, bytes }); // I1
}

/// Moves as much of `piece` into `landing` as the landing takes. Returns how many bytes that were.
fn land(piece: &mut VecDeque<u8>, landing: &mut Landing) -> usize {
    let (mut slices, count) = landing.slices();
    let before = piece.len();
    for slice in &mut slices[..count] {
        let bytes = slice.len().min(piece.len());
        piece.read_exact(&mut slice[..bytes]).expect("so many are there");
    }
    before - piece.len()
}

impl Io for Memory {
    fn poll(&mut self, _wait: Wait, events: &mut Vec<Event>) -> io::Result<()> {
        self.tick = self.tick.wrapping_add(1);
        self.area.clear();
        if self.waker.bell().take() {
            events.push(Event::Woken);
        }
        self.accept(events);
        self.send_and_receive(events);
        self.take_datagrams(events);
        if let Some((disk, user)) = &self.disk {
            disk.complete_due(*user, events);
        }
        Ok(())
    }

    fn lent(&self, bytes: Lent) -> &[u8] {
        assert!(bytes.tick == self.tick, "lent by an earlier poll");
        &self.area[bytes.start as usize..][..bytes.bytes as usize]
    }

    fn send(&mut self, socket: SocketId, block: SendBlock) {
        let near = self.sockets.live(socket);
        assert!(!near.fin_wanted, "send after finish_sending");
        if !near.failed {
            near.sends.push(block);
        }
    }

    fn receive_into(&mut self, socket: SocketId, landing: Landing) -> Result<(), Landing> {
        let near = self.sockets.live(socket);
        assert!(near.landing.is_none() && landing.room() > 0, "one landing at a time");
        if !near.is_open() {
            return Err(landing);
        }
        near.landing = Some(landing);
        Ok(())
    }

    fn pause(&mut self, socket: SocketId) {
        self.sockets.live(socket).paused = true;
    }

    fn resume(&mut self, socket: SocketId) {
        self.sockets.live(socket).paused = false;
    }

    fn finish_sending(&mut self, socket: SocketId) {
        self.sockets.live(socket).fin_wanted = true;
    }

    fn close(&mut self, socket: SocketId) {
        let near = self.sockets.live(socket);
        near.lose_sends();
        near.landing = None;
        self.wires.borrow_mut().wires[near.wire].closed = true;
        self.sockets.retire(socket);
        self.sockets.release(socket.index());
    }

    fn listen_close(&mut self, listener: ListenerId) {
        self.listeners_closed[listener.index()] = true;
    }

    /// Panics: if `fd` was not given up by an `Io` of the same [`MemoryNet`].
    fn adopt(&mut self, fd: OwnedFd) -> Option<SocketId> {
        let wire = self.wires.borrow_mut().handed_over.remove(&fd.as_raw_fd());
        let (socket, near) = self.sockets.insert();
        near.begin(wire.expect("a descriptor that give_up returned"));
        Some(socket)
    }

    /// The descriptor is a mere token (an eventfd) by which `adopt` finds the connection again.
    fn give_up(&mut self, socket: SocketId) -> Option<OwnedFd> {
        let near = self.sockets.live(socket);
        near.paused = true;
        if near.failed || !near.sends.is_empty() || !near.sent.is_empty() {
            return None;
        }
        let token = eventfd(0, EventfdFlags::CLOEXEC).ok()?;
        near.landing = None;
        self.wires.borrow_mut().handed_over.insert(token.as_raw_fd(), near.wire);
        self.sockets.retire(socket);
        self.sockets.release(socket.index());
        Some(token)
    }

    /// The descriptor is closed; clients come by [`MemoryNet::connect`].
    fn listen(&mut self, listener: OwnedFd) -> ListenerId {
        drop(listener);
        self.listen_here()
    }

    /// The descriptor is closed; datagrams come by [`MemoryNet::send_datagram`].
    fn receive_datagrams(&mut self, socket: OwnedFd) -> DatagramSocketId {
        drop(socket);
        self.receive_datagrams_here()
    }

    fn hold_datagrams(&mut self, hold: bool) {
        self.datagrams_held = hold;
    }

    /// The datagram arrives at once.
    fn send_datagram(&mut self, to: DatagramPeer, pieces: [&[u8]; 2]) {
        let mut wires = self.wires.borrow_mut();
        let queues = &mut wires.datagrams[self.endpoint][to.socket.index()];
        queues.outgoing.push((to.address, pieces.concat()));
    }

    fn close_datagrams(&mut self) {
        self.datagrams_closed = true;
    }

    fn unacknowledged_bytes(&mut self, socket: SocketId) -> Option<u64> {
        let wire = self.sockets.live(socket).wire;
        Some(self.wires.borrow().wires[wire].held_bytes() as u64)
    }

    /// The number of the wire takes the place of a descriptor.
    fn descriptor(&mut self, socket: SocketId) -> i32 {
        i32::try_from(self.sockets.live(socket).wire).unwrap_or(i32::MAX)
    }

    fn name(&mut self, socket: SocketId) -> SocketName {
        let wire = self.sockets.live(socket).wire;
        let peer = self.wires.borrow().wires[wire].peer;
        SocketName { peer, descriptor: self.descriptor(socket) }
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn kind(&self) -> &'static str {
        "memory"
    }
}

impl Files for Memory {
    /// 0 without a disk.
    fn file_room(&self) -> usize {
        self.disk.as_ref().map_or(0, |(disk, user)| disk.room(*user))
    }

    fn submit(&mut self, operation: Box<FileOperation>) -> Result<(), Box<FileOperation>> {
        if self.file_room() == 0 {
            return Err(operation);
        }
        let (disk, user) = self.disk.as_ref().expect("there is room only on a disk");
        disk.submit(*user, operation);
        Ok(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some((disk, user)) = &self.disk {
            disk.leave(*user);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

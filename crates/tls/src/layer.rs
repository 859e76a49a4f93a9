//! The layer: an I/O backend that speaks TLS with some of its clients.
//!
//! Upstream:   `shard`, which calls it as any backend.
//! Downstream: the backend below; `session` and `outgoing` of each connection.
//!
//! ```text
//! poll:  close what was ended | encrypt replies | poll of the backend | decrypt | take the inbox
//! ```
//!
//! Bytes of a client with TLS are decrypted into the area of this layer, which lends them until the
//! next poll. Events of clients without TLS pass through.
//!
//! Invariants, cited by number where they are asserted:
//! - L1  `live` holds the session of each connection with TLS at the index of its socket, from its
//!   adoption until the backend closes it or gives it up.
//! - L2  After `Failed`, or once the owner has closed it, no event of a connection is passed on.
//! - L3  A connection moves to another core only when the backend has sent all its records. What
//!   the session keeps of the input moves with it.
//! - L4  `listed` is set exactly while the connection is in `unsent`.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use kachel_io::{
    DatagramPeer, DatagramSocketId, Event, FileOperation, Files, Io, Lent, ListenerId,
    RECEIVE_BUFFER_BYTES, RECEIVE_BUFFERS, SendBlock, SocketId, SocketName, Wait, Waker,
};
use kachel_stdx::Landing;

use crate::handshakes::{Front, Handshakes};
use crate::inbox::{Delivered, Inbox};
use crate::outgoing::{Blocks, Outgoing};
use crate::process::Process;
use crate::session::{Broken, Session, Work};
use crate::settings::ListenerTls;

/// Set in the name of a listener that the threads for handshakes listen on.
const WITH_TLS: u32 = 1 << 31;
/// The first memory of the area for plain bytes.
const AREA_BYTES_AT_FIRST: usize = 64 * 1024;
/// The most memory of the area that stays for the next poll: what a poll of the backend receives,
/// twice. More is rare, and goes back.
const AREA_BYTES_KEPT_MAX: usize = 2 * RECEIVE_BUFFERS * RECEIVE_BUFFER_BYTES;

/// An I/O backend with TLS.
pub struct Tls<I: Io> {
    io: I,
    process: Arc<Process>,
    handshakes: Arc<Handshakes>,
    inbox: Arc<Inbox>,
    /// The TLS of the listeners, in the order in which they will be opened.
    listeners: std::vec::IntoIter<ListenerTls>,
    fronts: u32,
    /// The connections with TLS (L1).
    live: Vec<Option<Box<Live>>>,
    /// Connections with replies to encrypt (L4).
    unsent: Vec<SocketId>,
    /// Connections that the owner has closed, and whose last record the backend sends.
    ending: Vec<SocketId>,
    /// Those of `ending` for which a poll has had the time to send it.
    ended: Vec<SocketId>,
    /// The plain bytes of this poll. It is bounded by what one poll of the backend reports, by a
    /// record of each connection in it, and by `INBOX_BYTES_MAX`.
    area: Vec<u8>,
    work: Work,
    blocks: Blocks,
    events: Vec<Event>,
    tick: u32,
}

/// A connection with TLS.
#[derive(Debug)]
struct Live {
    socket: SocketId,
    session: Box<Session>,
    outgoing: Outgoing,
    /// It is in `unsent`.
    listed: bool,
    /// `Finished` was reported.
    finished: bool,
    /// `Failed` was reported (L2).
    failed: bool,
    /// The backend has reported that the connection is broken.
    gone: bool,
    /// Our side ends once all replies are sent.
    fin_wanted: bool,
    /// The record that ends our side was given to the backend.
    fin_sent: bool,
    /// The owner has closed it (L2).
    closed: bool,
}

impl Live {
    fn new(socket: SocketId, session: Box<Session>) -> Self {
        Self {
            socket,
            session,
            outgoing: Outgoing::default(),
            listed: false,
            finished: false,
            failed: false,
            gone: false,
            fin_wanted: false,
            fin_sent: false,
            closed: false,
        }
    }

    /// Whether events of the connection concern its owner (L2).
    const fn is_reported(&self) -> bool {
        !(self.failed || self.closed)
    }
}

impl<I: Io> Tls<I> {
    /// Puts TLS over `io`. `listeners` says for each later call of `listen`, in order, which TLS
    /// its clients speak; further listeners have none.
    pub fn new(
        io: I,
        process: Arc<Process>,
        handshakes: Arc<Handshakes>,
        listeners: Vec<ListenerTls>,
    ) -> Self {
        let inbox = Arc::new(Inbox::new(io.waker()));
        Self {
            io,
            process,
            handshakes,
            inbox,
            listeners: listeners.into_iter(),
            fronts: 0,
            live: Vec::new(),
            unsent: Vec::new(),
            ending: Vec::new(),
            ended: Vec::new(),
            area: Vec::with_capacity(AREA_BYTES_AT_FIRST),
            work: Work::default(),
            blocks: Blocks::default(),
            events: Vec::new(),
            tick: 0,
        }
    }

    fn live(&mut self, socket: SocketId) -> Option<&mut Live> {
        let live = self.live.get_mut(socket.index())?.as_deref_mut()?;
        (live.socket == socket).then_some(live)
    }

    /// Takes in a session (L1).
    fn keep(&mut self, socket: SocketId, session: Box<Session>) {
        let index = socket.index();
        if index >= self.live.len() {
            self.live.resize_with(index + 1, || None);
        }
        assert!(self.live[index].is_none(), "L1: socket index {index} is in use");
        self.live[index] = Some(Box::new(Live::new(socket, session)));
    }

    /// Closes the connections whose last record the backend had a poll to send.
    fn close_ended(&mut self) {
        for socket in self.ended.drain(..) {
            self.live[socket.index()] = None;
            self.io.close(socket);
        }
        std::mem::swap(&mut self.ended, &mut self.ending);
    }

    /// Encrypts replies, as far as limits allow.
    fn encrypt(&mut self, events: &mut Vec<Event>) {
        let mut unsent = std::mem::take(&mut self.unsent);
        for socket in unsent.drain(..) {
            let Some(live) = self.live(socket) else { continue };
            live.listed = false; // L4
            self.encrypt_one(socket, events);
        }
        self.unsent = unsent;
    }

    fn encrypt_one(&mut self, socket: SocketId, events: &mut Vec<Event>) {
        let Self { io, live, blocks, .. } = self;
        let Some(live) = live[socket.index()].as_deref_mut() else { return };
        if !live.is_reported() || live.fin_sent {
            return;
        }
        debug_assert!(!live.listed, "L4: it was taken off the list");
        loop {
            match live.outgoing.encrypt_next(&mut live.session, blocks) {
                Ok(Some(block)) => io.send(socket, block),
                Ok(None) => break,
                Err(_) => {
                    self.process.counts().protocol_errors.fetch_add(1, Ordering::Relaxed);
                    return self.fail(socket, events);
                }
            }
        }
        if live.fin_wanted && live.outgoing.is_encrypted() {
            end(io, live, blocks);
            io.finish_sending(socket);
        }
    }

    /// Reports that a connection has failed (L2).
    fn fail(&mut self, socket: SocketId, events: &mut Vec<Event>) {
        let Some(live) = self.live(socket) else { return };
        if live.is_reported() {
            events.push(Event::Failed { socket });
        }
        live.failed = true;
        live.outgoing.drop_waiting();
    }

    /// Passes an event of the backend on, after what TLS makes of it.
    fn pass_on(&mut self, event: Event, events: &mut Vec<Event>) {
        let socket = match &event {
            Event::Received { socket, .. }
            | Event::Landed { socket, .. }
            | Event::Finished { socket }
            | Event::Failed { socket }
            | Event::Sent { socket, .. }
            | Event::Taken { socket, .. } => *socket,
            // Datagrams and files have no TLS.
            Event::Accepted { .. }
            | Event::Gone
            | Event::Woken
            | Event::Datagram { .. }
            | Event::DatagramsLost { .. }
            | Event::FileDone { .. }
            | Event::DirectIoRefused { .. } => return events.push(event),
        };
        let Some(live) = self.live(socket) else { return events.push(event) };
        match event {
            Event::Received { bytes, .. } => self.received(socket, bytes, events),
            Event::Sent { block, .. } => self.sent(socket, block, events),
            Event::Taken { block_bytes, .. } => {
                if live.is_reported() {
                    events.extend(live.outgoing.taken(socket, block_bytes));
                }
            }
            Event::Finished { .. } => {
                // Without a `close_notify` the client may have been cut off. Only whole requests
                // are served, so nothing that was cut is.
                if live.is_reported() && !live.finished {
                    live.finished = true;
                    events.push(event);
                }
            }
            Event::Failed { .. } => {
                live.gone = true;
                self.fail(socket, events);
            }
            _ => unreachable!("a connection with TLS has no landing"),
        }
    }

    fn received(&mut self, socket: SocketId, bytes: Lent, events: &mut Vec<Event>) {
        let Self { io, live, work, area, blocks, tick, process, .. } = self;
        let Some(live) = live[socket.index()].as_deref_mut() else { return };
        if !live.is_reported() {
            return;
        }
        let start = area.len();
        let result = live.session.receive(io.lent(bytes), area, work);
        report_plain(socket, *tick, start..area.len(), events);
        let result = match live.fin_sent {
            true => result,
            false => result.and(send_own(io, live, blocks, &work.to_send)),
        };
        if result.is_err() {
            process.counts().protocol_errors.fetch_add(1, Ordering::Relaxed);
            return self.fail(socket, events);
        }
        if live.session.is_ended() && !live.finished {
            live.finished = true;
            events.push(Event::Finished { socket });
        }
    }

    fn sent(&mut self, socket: SocketId, block: SendBlock, events: &mut Vec<Event>) {
        let Self { live, blocks, unsent, .. } = self;
        let Some(live) = live[socket.index()].as_deref_mut() else { return };
        let event = live.outgoing.sent(socket, block, blocks);
        if !live.is_reported() {
            return;
        }
        events.extend(event);
        if !live.outgoing.is_encrypted() && !live.listed {
            live.listed = true; // L4
            unsent.push(socket);
        }
    }

    /// Takes over the connections whose handshakes are complete.
    fn take_delivered(&mut self, events: &mut Vec<Event>) {
        for delivered in self.inbox.take() {
            let Delivered { socket, session, listener, peer, plain } = delivered;
            let is_ended = session.is_ended();
            let Some(socket) = self.io.adopt(socket) else { continue };
            self.keep(socket, session);
            events.push(Event::Accepted { listener, socket, peer });
            let start = self.area.len();
            self.area.extend_from_slice(&plain);
            report_plain(socket, self.tick, start..self.area.len(), events);
            if is_ended && let Some(live) = self.live(socket) {
                live.finished = true;
                events.push(Event::Finished { socket });
            }
        }
    }
}

/// Reports plain bytes of the area, in pieces that a backend may report.
fn report_plain(
    socket: SocketId,
    tick: u32,
    range: std::ops::Range<usize>,
    events: &mut Vec<Event>,
) {
    let (mut start, end) = (range.start, range.end);
    debug_assert!(start <= end, "the area only grows during a poll");
    while start < end {
        let bytes = (end - start).min(RECEIVE_BUFFER_BYTES);
        events.push(Event::Received { socket, bytes: Lent::of_layer(tick, start, bytes) });
        start += bytes;
    }
}

/// Sends records of TLS itself: alerts, answers to key updates.
///
/// Errors: the client makes us send such records, and does not read them.
fn send_own(
    io: &mut impl Io,
    live: &mut Live,
    blocks: &mut Blocks,
    mut records: &[u8],
) -> Result<(), Broken> {
    while !records.is_empty() {
        live.outgoing.note_own_record()?;
        let mut block = blocks.take();
        let count = block.put(records);
        records = &records[count..];
        io.send(live.socket, block);
    }
    Ok(())
}

/// Sends the record that ends our side, unless an alert has ended the connection.
fn end(io: &mut impl Io, live: &mut Live, blocks: &mut Blocks) {
    if live.fin_sent {
        return;
    }
    live.fin_sent = true;
    let mut block = blocks.take();
    let ended = live.session.end(block.spare_mut());
    match ended.and_then(|bytes| live.outgoing.note_own_record().map(|()| bytes)) {
        Ok(bytes) => {
            block.advance(bytes);
            io.send(live.socket, block);
        }
        Err(_) => blocks.put_back(block),
    }
}

impl<I: Io> Io for Tls<I> {
    fn poll(&mut self, wait: Wait, events: &mut Vec<Event>) -> io::Result<()> {
        self.tick = self.tick.wrapping_add(1);
        self.area.clear();
        if self.area.capacity() > AREA_BYTES_KEPT_MAX {
            self.area = Vec::with_capacity(AREA_BYTES_AT_FIRST);
        }
        self.close_ended();
        let before = events.len();
        self.encrypt(events);
        // The next poll closes what this one ends.
        let is_busy = !self.ended.is_empty() || events.len() > before;
        let wait = if is_busy { Wait::Now } else { wait };
        let mut below = std::mem::take(&mut self.events);
        below.clear();
        let polled = self.io.poll(wait, &mut below);
        for event in below.drain(..) {
            self.pass_on(event, events);
        }
        self.events = below;
        polled?;
        self.take_delivered(events);
        Ok(())
    }

    #[inline]
    fn lent(&self, bytes: Lent) -> &[u8] {
        match bytes.range_in_layer(self.tick) {
            Some(range) => &self.area[range],
            None => self.io.lent(bytes),
        }
    }

    fn send(&mut self, socket: SocketId, block: SendBlock) {
        let Some(live) = self.live(socket) else { return self.io.send(socket, block) };
        assert!(!live.fin_wanted, "send after finish_sending");
        if live.failed {
            return;
        }
        live.outgoing.push(block);
        if !live.listed {
            live.listed = true; // L4
            self.unsent.push(socket);
        }
    }

    /// As for any backend; a client with TLS has no landing, because its bytes must be decrypted.
    fn receive_into(&mut self, socket: SocketId, landing: Landing) -> Result<(), Landing> {
        match self.live(socket) {
            Some(_) => Err(landing),
            None => self.io.receive_into(socket, landing),
        }
    }

    fn pause(&mut self, socket: SocketId) {
        self.io.pause(socket);
    }

    fn resume(&mut self, socket: SocketId) {
        self.io.resume(socket);
    }

    fn finish_sending(&mut self, socket: SocketId) {
        let Some(live) = self.live(socket) else { return self.io.finish_sending(socket) };
        live.fin_wanted = true;
        if !live.failed && !live.listed {
            live.listed = true; // L4
            self.unsent.push(socket);
        }
    }

    fn close(&mut self, socket: SocketId) {
        let Self { io, live, blocks, ending, .. } = self;
        let place = live.get_mut(socket.index());
        let Some(live) = place.and_then(|live| live.as_deref_mut()) else {
            return io.close(socket);
        };
        debug_assert!(live.socket == socket && !live.closed, "L1: it is closed once");
        live.closed = true; // L2
        let is_over = live.gone || (live.fin_sent && live.outgoing.is_empty());
        if is_over || !live.outgoing.is_encrypted() {
            self.live[socket.index()] = None;
            return io.close(socket);
        }
        if !live.failed {
            end(io, live, blocks);
        }
        io.pause(socket);
        ending.push(socket);
    }

    fn listen_close(&mut self, listener: ListenerId) {
        if listener.0 & WITH_TLS == 0 {
            self.io.listen_close(listener);
        } else {
            self.handshakes.close(&self.inbox, listener);
        }
    }

    fn adopt(&mut self, fd: OwnedFd) -> Option<SocketId> {
        let session = self.process.moving.take(&fd);
        let socket = self.io.adopt(fd)?;
        if let Some(session) = session {
            let is_ended = session.is_ended();
            self.keep(socket, session);
            debug_assert!(!is_ended, "net moves no connection that has ended");
        }
        Some(socket)
    }

    fn give_up(&mut self, socket: SocketId) -> Option<OwnedFd> {
        let Some(live) = self.live(socket) else { return self.io.give_up(socket) };
        if live.failed || !live.outgoing.is_empty() {
            self.io.pause(socket);
            return None; // L3
        }
        let fd = self.io.give_up(socket)?;
        if let Some(live) = self.live[socket.index()].take() {
            self.process.moving.put(&fd, live.session);
        }
        Some(fd)
    }

    fn listen(&mut self, listener: OwnedFd) -> ListenerId {
        match self.listeners.next() {
            None | Some(ListenerTls::Off) => self.io.listen(listener),
            Some(tls) => {
                let name = ListenerId(WITH_TLS | self.fronts);
                self.fronts += 1;
                let inbox = Arc::clone(&self.inbox);
                self.handshakes.listen(Front { listener, tls, inbox, name });
                name
            }
        }
    }

    fn receive_datagrams(&mut self, socket: OwnedFd) -> DatagramSocketId {
        self.io.receive_datagrams(socket)
    }

    fn hold_datagrams(&mut self, hold: bool) {
        self.io.hold_datagrams(hold);
    }

    fn send_datagram(&mut self, to: DatagramPeer, pieces: [&[u8]; 2]) {
        self.io.send_datagram(to, pieces);
    }

    fn close_datagrams(&mut self) {
        self.io.close_datagrams();
    }

    fn unacknowledged_bytes(&mut self, socket: SocketId) -> Option<u64> {
        self.io.unacknowledged_bytes(socket)
    }

    fn descriptor(&mut self, socket: SocketId) -> i32 {
        self.io.descriptor(socket)
    }

    fn name(&mut self, socket: SocketId) -> SocketName {
        self.io.name(socket)
    }

    fn waker(&self) -> Waker {
        self.io.waker()
    }

    fn kind(&self) -> &'static str {
        self.io.kind()
    }
}

/// The files of the backend. Nothing of them is encrypted here.
impl<I: Files> Files for Tls<I> {
    fn file_room(&self) -> usize {
        self.io.file_room()
    }

    fn submit(&mut self, operation: Box<FileOperation>) -> Result<(), Box<FileOperation>> {
        self.io.submit(operation)
    }
}

impl<I: Io> Drop for Tls<I> {
    /// Sends the last records of connections that were closed since the last poll.
    fn drop(&mut self) {
        if !self.ending.is_empty() {
            // The process ends, so an error has no more consequences.
            let _ends = self.io.poll(Wait::Now, &mut self.events);
        }
    }
}

impl<I: Io> fmt::Debug for Tls<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("connections", &self.live.len()).finish_non_exhaustive()
    }
}

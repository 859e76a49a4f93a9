//! The log of one core: the lines that it has written since it last handed them on.
//!
//! Upstream:   `logging` writes a line for each event of a stream that is watched.
//! Downstream: `watchers` gets the lines, once a tick.
//!
//! Invariants:
//! - L1  While nobody watches, nothing is written. A core notes the streams once a tick.
//! - L2  The lines take at most as many bytes as the process allows each core. Further lines are
//!   dropped and counted.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use kachel_engine::{DeadFound, EngineIndex, LastDead};
use kachel_io::{Peer, SocketName};
use kachel_net::{ClientIndex, ConnectionIndex, CoreIndex, EXCHANGES_MAX, ExchangeIndex};
use kachel_wire::Streams;
use kachel_wire::format::log::{LOG_LINE_BYTES_MAX, LogPosition};

use crate::counters::Counters;
use crate::watchers::{Lines, Watchers};

/// The descriptor of no socket.
const NO_SOCKET: i32 = -1;

/// The log of one core.
#[derive(Debug)]
pub struct Log {
    /// The streams that are watched, as of this tick (L1).
    streams: Cell<Streams>,
    /// The Unix time of this tick in microseconds.
    unix_us: Cell<u64>,
    lines: RefCell<Lines>,
    bytes_max: usize,
    /// The names of the clients of this core, by the indices of their connections.
    names: RefCell<Vec<SocketName>>,
    /// The descriptors of the sockets of the exchanges of this core, by the numbers of the
    /// exchanges.
    datagram_sockets: RefCell<Vec<i32>>,
    /// A dead item that a read beside its owner has found.
    found_beside: Cell<DeadFound>,
    /// The last dead item that a lookup in each shard has removed.
    last_dead: Vec<Arc<LastDead>>,
}

impl Log {
    /// An empty log, which holds at most `bytes_max` bytes of lines (L2).
    pub fn new(bytes_max: usize, last_dead: Vec<Arc<LastDead>>) -> Self {
        Self {
            streams: Cell::default(),
            unix_us: Cell::new(0),
            lines: RefCell::default(),
            bytes_max,
            names: RefCell::default(),
            datagram_sockets: RefCell::default(),
            found_beside: Cell::default(),
            last_dead,
        }
    }

    /// Notes the streams that are watched, and the Unix time in microseconds (L1). Returns whether
    /// any stream is watched. Cost: two loads, if none is and none was.
    #[inline]
    pub fn follow(&self, watchers: &Watchers, unix_us: impl FnOnce() -> u64) -> bool {
        let (before, now) = (self.streams.get(), watchers.streams());
        if before.is_empty() && now.is_empty() {
            return false;
        }
        self.change_to(now, unix_us());
        !now.is_empty()
    }

    #[cold]
    fn change_to(&self, streams: Streams, unix_us: u64) {
        if self.streams.replace(streams).is_empty() {
            // What died before is no news.
            self.found_beside.set(DeadFound::default());
            self.last_dead.iter().for_each(|last_dead| last_dead.forget());
        }
        if streams.is_empty() {
            self.lines.borrow_mut().clear();
        }
        debug_assert!(!streams.is_empty() || !self.has_lines(), "L1");
        self.unix_us.set(unix_us);
    }

    /// Whether any stream is watched (L1). Cost: a load.
    #[inline]
    pub fn is_on(&self) -> bool {
        !self.streams.get().is_empty()
    }

    /// Whether any of these streams is watched (L1).
    #[inline]
    pub fn is_watched(&self, streams: Streams) -> bool {
        self.streams.get().has(streams)
    }

    /// Writes a line to a stream, if the stream is watched and there is room (L1, L2).
    pub fn write(
        &self,
        watchers: &Watchers,
        counters: &Counters,
        stream: Streams,
        format: impl FnOnce(&mut Vec<u8>, LogPosition),
    ) {
        if !self.is_watched(stream) {
            return;
        }
        let mut lines = self.lines.borrow_mut();
        if lines.bytes() + LOG_LINE_BYTES_MAX > self.bytes_max {
            return counters.log_worker_dropped.add(1);
        }
        let at = LogPosition { unix_us: self.unix_us.get(), gid: watchers.next_gid() };
        lines.add(stream, at.gid, |text| format(text, at));
        debug_assert!(lines.bytes() <= self.bytes_max, "L2");
        counters.log_worker_written.add(1);
    }

    /// Whether there are lines to hand on. Cost: a load.
    #[inline]
    pub fn has_lines(&self) -> bool {
        !self.lines.borrow().is_empty()
    }

    /// Hands the lines on, unless another core does so at the moment. See [`Watchers::push`].
    pub fn hand_on(&self, watchers: &Watchers, counters: &Counters, wake: impl FnMut(CoreIndex)) {
        let mut lines = self.lines.borrow_mut();
        let _ = watchers.push(&mut lines, counters, wake); // They stay for the next tick otherwise.
    }

    /// Notes the name of a client.
    pub fn note_name(&self, ConnectionIndex(index): ConnectionIndex, name: SocketName) {
        let mut names = self.names.borrow_mut();
        let index = index as usize;
        if index >= names.len() {
            names.resize(index + 1, SocketName { peer: Peer::Unknown, descriptor: NO_SOCKET });
        }
        debug_assert!(name.descriptor >= 0, "an open connection has a descriptor");
        names[index] = name;
    }

    /// The name of an open connection.
    pub fn name(&self, ConnectionIndex(index): ConnectionIndex) -> SocketName {
        let names = self.names.borrow();
        *names.get(index as usize).expect("each connection has got a name")
    }

    /// Notes the descriptor of the socket that the datagram of an exchange came to.
    pub fn note_exchange(&self, exchange: ExchangeIndex, descriptor: i32) {
        let mut sockets = self.datagram_sockets.borrow_mut();
        let number = exchange.number();
        debug_assert!(number < EXCHANGES_MAX, "a number of an exchange");
        if number >= sockets.len() {
            sockets.resize(number + 1, NO_SOCKET);
        }
        sockets[number] = descriptor;
    }

    /// The descriptor by which lines name a client: that of a connection, or, as in memcached, that
    /// of the socket that serves all clients that send datagrams.
    pub fn descriptor(&self, client: ClientIndex) -> i32 {
        if let Some(connection) = client.connection() {
            return self.name(connection).descriptor;
        }
        let sockets = self.datagram_sockets.borrow();
        let socket = client.exchange().and_then(|exchange| sockets.get(exchange.number()));
        *socket.expect("each exchange has got a socket")
    }

    /// Notes a dead item that a read beside its owner has found.
    pub fn note_found_beside(&self, found: DeadFound) {
        self.found_beside.set(found);
    }

    /// How the item that a request has missed has died, if it was dead.
    pub fn take_dead(&self, owner: EngineIndex, secret_hash: u64) -> DeadFound {
        let beside = self.found_beside.take();
        debug_assert!(beside.expired + beside.flushed <= 1, "a request looks up one key");
        if beside != DeadFound::default() {
            return beside;
        }
        self.last_dead.get(owner.number()).map_or(beside, |dead| dead.take(secret_hash))
    }
}

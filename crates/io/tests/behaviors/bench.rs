//! A server with one `Io` that records the events, and clients for it.

use std::collections::{HashMap, HashSet};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use kachel_io::{
    DatagramPeer, Event, FarEnd, FileOperation, Io, Limits, ListenerId, MemoryNet, Peer, SendBlock,
    SocketId, Wait, listener,
};
use kachel_stdx::Landing;

use crate::Door;

/// Far more than anything here takes; only a failing test waits so long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// A wait that ends early as soon as something happens.
const STEP: Wait = Wait::AtMostNs(100_000_000);

pub(crate) struct Bench<D: Door> {
    pub(crate) io: D::Io,
    pub(crate) net: Option<MemoryNet>,
    pub(crate) listener: ListenerId,
    pub(crate) address: SocketAddr,
    pub(crate) log: Log,
}

/// What the events said so far.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) accepted: Vec<(ListenerId, SocketId, Peer)>,
    /// Clients that were gone before they were taken in.
    pub(crate) gone: usize,
    pub(crate) received: HashMap<SocketId, Vec<u8>>,
    /// Landings that came back, and how many bytes each brought.
    pub(crate) landed: Vec<(Landing, usize)>,
    pub(crate) lands: usize,
    pub(crate) finished: HashSet<SocketId>,
    pub(crate) failed: HashSet<SocketId>,
    pub(crate) sent: Vec<(SocketId, SendBlock)>,
    /// Bytes of a block that had gone, each time some but not all had.
    pub(crate) taken: Vec<(SocketId, usize)>,
    /// Datagrams, their senders, and whether each was cut.
    pub(crate) datagrams: Vec<(DatagramPeer, Vec<u8>, bool)>,
    pub(crate) datagrams_lost: u64,
    /// Operations on files that came back, oldest first.
    #[expect(clippy::vec_box, reason = "they come back in their boxes")]
    pub(crate) files: Vec<Box<FileOperation>>,
    /// Notices that direct I/O is refused.
    pub(crate) refusals: Vec<String>,
    pub(crate) woken: usize,
    pub(crate) polls: usize,
    /// The most `Received` that one socket had in one poll.
    pub(crate) received_max: usize,
}

impl<D: Door> Bench<D> {
    pub(crate) fn open(limits: Limits) -> Option<Self> {
        let (mut io, net) = D::open(limits)?;
        assert_eq!(io.kind(), D::KIND);
        let socket = listener::tcp("127.0.0.1:0".parse().unwrap(), 1024, false).unwrap();
        let address = listener::local_addr(&socket).unwrap();
        let listener = io.listen(socket);
        Some(Self { io, net, listener, address, log: Log::default() })
    }

    pub(crate) fn poll(&mut self, wait: Wait) {
        let mut events = Vec::new();
        self.io.poll(wait, &mut events).unwrap();
        self.log.note(&self.io, events);
    }

    /// Polls until `done`.
    pub(crate) fn poll_until(&mut self, what: &str, mut done: impl FnMut(&Log) -> bool) {
        let start = Instant::now();
        while !done(&self.log) {
            self.poll(STEP);
            assert!(start.elapsed() < PATIENCE, "{what} never came: {:?}", self.log);
        }
    }

    /// A client that is not accepted yet.
    pub(crate) fn dial(&self) -> Client {
        match &self.net {
            Some(net) => Client::Far(net.connect(0, self.listener, Peer::Local)),
            None => Client::Stream(TcpStream::connect(self.address).unwrap()),
        }
    }

    /// A client and its socket.
    pub(crate) fn client(&mut self) -> (Client, SocketId) {
        let count = self.log.accepted.len();
        let client = self.dial();
        self.poll_until("the client", |log| log.accepted.len() > count);
        (client, self.log.accepted[count].1)
    }

    /// Returns when the `Io` has certainly seen everything that happened before.
    pub(crate) fn settle(&mut self, client: &mut Client, socket: SocketId) {
        for _ in 0..2 {
            let before = self.log.received_from(socket).len();
            client.write(b".");
            self.poll_until("the barrier", |log| log.received_from(socket).len() > before);
        }
    }

    pub(crate) fn send(&mut self, socket: SocketId, bytes: &[u8]) {
        self.io.send(socket, block(bytes));
    }

    /// Polls and lets the client read until it has `count` bytes.
    pub(crate) fn carry(&mut self, client: &mut Client, count: usize) -> Vec<u8> {
        let start = Instant::now();
        let mut bytes = Vec::new();
        while bytes.len() < count {
            self.poll(Wait::Now);
            client.read_available(&mut bytes);
            assert!(start.elapsed() < PATIENCE, "{} of {count} bytes", bytes.len());
        }
        bytes
    }

    /// Polls until the client sees the end (a FIN or a reset).
    pub(crate) fn carry_end(&mut self, client: &mut Client) -> Vec<u8> {
        let start = Instant::now();
        let mut bytes = Vec::new();
        while !client.read_available(&mut bytes) {
            self.poll(Wait::AtMostNs(1_000_000));
            assert!(start.elapsed() < PATIENCE, "the end never came");
        }
        bytes
    }
}

impl Log {
    pub(crate) fn note(&mut self, io: &impl Io, events: Vec<Event>) {
        self.polls += 1;
        let mut received = HashMap::new();
        for event in events {
            match event {
                Event::Accepted { listener, socket, peer } => {
                    self.accepted.push((listener, socket, peer));
                }
                Event::Gone => self.gone += 1,
                Event::Received { socket, bytes } => {
                    assert!(!self.finished.contains(&socket), "bytes after the end");
                    assert_eq!(io.lent(bytes).len(), bytes.byte_count());
                    self.received.entry(socket).or_default().extend(io.lent(bytes));
                    let count = received.entry(socket).or_insert(0);
                    *count += 1;
                    self.received_max = self.received_max.max(*count);
                }
                Event::Landed { socket, mut landing, bytes } => {
                    assert!(!self.finished.contains(&socket), "bytes after the end");
                    assert!((1..=landing.room()).contains(&bytes));
                    let (slices, count) = landing.slices();
                    let all: Vec<u8> =
                        slices[..count].iter().flat_map(|slice| slice.iter().copied()).collect();
                    self.received.entry(socket).or_default().extend(&all[..bytes]);
                    self.landed.push((landing, bytes));
                    self.lands += 1;
                }
                Event::Finished { socket } => {
                    assert!(self.finished.insert(socket), "the end comes once");
                }
                Event::Failed { socket } => {
                    assert!(self.failed.insert(socket), "a failure comes once");
                }
                Event::Sent { socket, block } => {
                    assert!(!self.failed.contains(&socket), "sent after the failure");
                    self.sent.push((socket, block));
                }
                Event::Taken { socket, block_bytes } => {
                    assert!(block_bytes > 0 && !self.failed.contains(&socket));
                    self.taken.push((socket, block_bytes));
                }
                Event::Datagram { from, bytes, is_cut } => {
                    self.datagrams.push((from, io.lent(bytes).to_vec(), is_cut));
                }
                Event::DatagramsLost { count } => self.datagrams_lost += count,
                Event::FileDone { operation } => self.files.push(operation),
                Event::DirectIoRefused { refusal } => self.refusals.push(refusal.to_string()),
                Event::Woken => self.woken += 1,
            }
        }
    }

    pub(crate) fn received_from(&self, socket: SocketId) -> &[u8] {
        self.received.get(&socket).map_or(&[], Vec::as_slice)
    }
}

/// The other end of a connection.
pub(crate) enum Client {
    Stream(TcpStream),
    Far(FarEnd),
}

impl Client {
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        match self {
            Self::Stream(stream) => {
                stream.set_nonblocking(false).unwrap();
                stream.write_all(bytes).unwrap();
            }
            Self::Far(far) => far.write(bytes),
        }
    }

    /// Writes what of `bytes` is taken at once.
    pub(crate) fn offer(&mut self, bytes: &[u8]) {
        match self {
            Self::Stream(stream) => {
                stream.set_nonblocking(true).unwrap();
                match stream.write(bytes) {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => panic!("{error}"),
                }
            }
            Self::Far(far) => far.write(bytes),
        }
    }

    /// Appends what is there; true at the end of the stream.
    pub(crate) fn read_available(&mut self, bytes: &mut Vec<u8>) -> bool {
        match self {
            Self::Stream(stream) => {
                stream.set_nonblocking(true).unwrap();
                match stream.read_to_end(bytes) {
                    Ok(_) => true,
                    Err(error) if error.kind() == ErrorKind::ConnectionReset => true,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => false,
                    Err(error) => panic!("{error}"),
                }
            }
            Self::Far(far) => {
                let end = far.is_finished();
                bytes.extend(far.read());
                end
            }
        }
    }

    /// Reads up to `count` bytes, if any are there, and says how many; a far end in memory takes
    /// them out of the buffers before it.
    pub(crate) fn read_some(&mut self, count: usize) -> usize {
        match self {
            Self::Stream(stream) => {
                stream.set_nonblocking(true).unwrap();
                stream.read(&mut vec![0; count]).unwrap_or(0)
            }
            Self::Far(far) => {
                far.drain(count);
                far.read().len()
            }
        }
    }

    /// Reads nothing for now, and says so to a far end in memory.
    pub(crate) fn stall(&mut self) {
        if let Self::Far(far) = self {
            far.stall();
        }
    }

    pub(crate) fn go_on(&mut self) {
        if let Self::Far(far) = self {
            far.allow_all();
        }
    }

    pub(crate) fn finish(&mut self) {
        match self {
            Self::Stream(stream) => stream.shutdown(Shutdown::Write).unwrap(),
            Self::Far(far) => far.finish(),
        }
    }

    pub(crate) fn reset(self) {
        match self {
            Self::Stream(stream) => {
                let linger = Some(Duration::ZERO);
                rustix::net::sockopt::set_socket_linger(&stream, linger).unwrap();
                drop(stream);
            }
            Self::Far(far) => far.reset(),
        }
    }
}

pub(crate) fn block(bytes: &[u8]) -> SendBlock {
    let mut block = SendBlock::new();
    assert_eq!(block.put(bytes), bytes.len());
    block
}

/// `count` bytes that differ from place to place and by `seed`.
pub(crate) fn pattern(seed: usize, count: usize) -> Vec<u8> {
    (0..count).map(|place| (place * 31 + place / 251 + seed * 7) as u8).collect()
}

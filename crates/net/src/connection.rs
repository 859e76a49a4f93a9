//! One client's connection: what it has sent and we have not served, and what we owe it.
//!
//! Upstream:   `shard` appends what `io` lent and takes requests off the front.
//! Downstream: the outbox.
//!
//! States, and who moves between them:
//!
//! ```text
//! Reading --(block of a large value announced: shard)--> Reading with an upload in `shard`
//! Reading --(refused block to be swallowed: skip)--> Reading, `skip_bytes` > 0
//! Reading --(quit, lost frame, peer finished: drain)--> Draining --(all sent)--> closed by `shard`
//! ```
//!
//! Invariants:
//! - I1  `tail` begins at a request's first byte (or inside its data block, when an upload runs).
//! - I2  While `skip_bytes` > 0 the tail is empty: skipped bytes are never stored.
//! - I3  While `resume` is kept the tail begins with the line of that retrieval.

use kachel_io::SocketId;
use kachel_wire::request::Ttl;

use crate::outbox::Outbox;

impl Input {
    /// Remembers that the input so far holds no whole line.
    pub fn note_scanned(&mut self, bytes: usize) {
        debug_assert!(self.skip_bytes == 0, "I2: bytes to skip are not searched");
        self.scanned_bytes = bytes;
        self.announced_bytes = 0;
    }

    /// Remembers that a data block of this size is awaited: its time begins with the end of its
    /// line. An empty one counts as a byte, because its CR LF is awaited.
    pub fn note_announced(&mut self, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).max(1);
        if std::mem::replace(&mut self.announced_bytes, bytes) == 0 {
            self.waiting_since = 0;
        }
        // The line at the front is whole: nothing is known of what follows it.
        self.scanned_bytes = 0;
    }

    /// Lets the next `bytes` of input pass unread.
    pub fn skip(&mut self, bytes: u64) {
        assert!(self.skip_bytes == 0, "I2: one data block is skipped at a time");
        if bytes > 0 {
            self.note_announced(usize::try_from(bytes).unwrap_or(usize::MAX));
            self.skip_bytes = bytes;
            self.waiting_since = 0;
        }
    }

    /// Bytes of the tail's memory that count against `-m`: what is beyond a connection's own share.
    pub fn chargeable_bytes(&self) -> u64 {
        self.tail.capacity().saturating_sub(crate::OWN_BYTES_PER_CONNECTION) as u64
    }
}

/// Whether requests are still read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Requests are read and answered.
    Reading,
    /// What is owed is sent, nothing more is read, then the connection closes.
    Draining,
}

/// A retrieval whose line was read and whose first keys are answered: where it goes on. Offsets are
/// from the line's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resume {
    /// Where the first key stands that is not answered.
    pub next_key: usize,
    /// Where the last key ends, and the line's end begins.
    pub keys_end: usize,
    /// Whether the reply shows CAS tokens.
    pub with_cas: bool,
    /// The TTL to give.
    pub ttl: Option<Ttl>,
}

/// What has come in and is not served yet.
#[derive(Debug)]
pub struct Input {
    /// A partial request, or requests that must wait. Empty in the steady state, and then without
    /// memory.
    pub tail: Vec<u8>,
    /// Bytes of the tail's memory that the process's budget was charged for.
    pub charged_bytes: u64,
    /// Bytes at the tail's start that hold no line end.
    pub scanned_bytes: usize,
    /// The retrieval at the tail's start, if its first keys are answered (I3).
    pub resume: Option<Resume>,
    /// Bytes of a refused data block still to come.
    pub skip_bytes: u64,
    /// The look of the shard (one a second) by which the request at the tail's start had begun to
    /// wait for its rest; 0: none waits.
    pub waiting_since: u32,
    /// Bytes of data block that the request at the front announced; they lengthen its deadline. 0
    /// while its line is not whole.
    pub announced_bytes: u32,
}

/// A socket with its input and its outbox.
#[derive(Debug)]
pub struct Connection {
    /// The socket, as `io` knows it.
    pub socket: SocketId,
    /// Whether requests are read.
    pub phase: Phase,
    /// Whether `io` was told to stop receiving.
    pub paused: bool,
    /// Whether requests in the tail wait for room in the outbox or in a mailbox.
    pub stalled: bool,
    /// Whether it waits in a mailbox's list; while it does, nothing else wakes it.
    pub awaits_mail: bool,
    /// Whether it is on the shard's list of stalled connections to look at again.
    pub resumable: bool,
    /// Whether this connection is on the shard's list of those to flush.
    pub dirty: bool,
    /// Its place in the shard's list of connections to serve this tick, if it is there.
    pub ready: Option<u32>,
    /// Whether a large value is being received.
    pub uploading: bool,
    /// Whether what comes next waits until other shards have answered all that was asked of them:
    /// a value until its owner has made room, a request about all shards until those before it are
    /// carried out.
    pub awaits_answers: bool,
    /// Whether a listing of items is being sent; requests behind it wait.
    pub dumping: bool,
    /// Whether the peer has ended its side; what it sent before is still served.
    pub finished: bool,
    /// The shard's last look before the last request or the last progress in reading, for idle and
    /// stalled clients.
    pub active_look: u32,
    /// The look at which `io` was last asked what the peer has not taken; 0: never.
    pub(crate) asked_look: u32,
    /// What `io` answered then.
    pub(crate) unacknowledged_bytes: u64,
    /// What has come in.
    pub input: Input,
    /// What is owed.
    pub outbox: Outbox,
}

impl Connection {
    /// A fresh connection.
    pub(crate) const fn new(socket: SocketId, look: u32) -> Self {
        Self {
            socket,
            phase: Phase::Reading,
            paused: false,
            stalled: false,
            awaits_mail: false,
            resumable: false,
            dirty: false,
            ready: None,
            uploading: false,
            awaits_answers: false,
            dumping: false,
            finished: false,
            active_look: look,
            asked_look: 0,
            unacknowledged_bytes: 0,
            input: Input {
                tail: Vec::new(),
                charged_bytes: 0,
                scanned_bytes: 0,
                resume: None,
                skip_bytes: 0,
                waiting_since: 0,
                announced_bytes: 0,
            },
            outbox: Outbox::new(),
        }
    }

    /// Whether as much is owed and kept as may be.
    pub fn is_full(&self) -> bool {
        self.outbox.is_full(self.input.tail.capacity())
    }

    /// Whether its next request must wait: for the client's reading, for a listing, or for answers.
    pub fn must_wait(&self) -> bool {
        let awaits_answers = self.awaits_answers && self.outbox.awaits_answers();
        self.is_full() || self.dumping || awaits_answers
    }
}

//! The batch: requests that are parsed and hashed, and that the shard executes together.
//!
//! Upstream:   `serve` parses the input of a connection and stages its requests.
//! Downstream: `serve` runs the batch: the engine prefetches buckets and items, then `carry_out`
//!             executes or parks the requests in order.
//!
//! Invariants:
//! - I1  The staged requests of one connection are in the order in which they arrived.
//! - I2  A staged request borrows the input that it was parsed from. The input stays in place until
//!   the batch was run.

use arrayvec::ArrayVec;
use kachel_engine::{EngineIndex, Key, KeyHashes, Lookup};
use kachel_io::Lent;
use kachel_net::{ClientIndex, Resume};
use kachel_wire::request::{KEY_BYTES_MAX, Request};

use crate::cores::work::TURN_BYTES_MAX;

/// The most requests in a batch: they are parsed, hashed, prefetched, then executed together.
///
/// Why 32: this is a guess, because no experiment compares batch sizes yet. The prototype gained a
/// factor of 2.8 with it.
pub const BATCH_REQUESTS_MAX: usize = kachel_engine::BATCH_MAX;

/// A connection, or an exchange, whose input is served in this tick.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) client: ClientIndex,
    /// The input, if `io` lent it. `None` if the input is in a tail.
    pub(crate) lent: Option<Lent>,
    /// The index of the taken tail that holds the input, if the input is in a tail.
    pub(crate) tail: Option<u32>,
    /// Bytes of memory of the taken tail.
    pub(crate) tail_bytes: usize,
    /// Bytes of the input. `serve` sets this when it begins with the connection.
    pub(crate) input_bytes: usize,
    /// Bytes at the front of the input that were served.
    pub(crate) offset: usize,
    /// Whether no more of the input is served in this tick.
    pub(crate) ended: bool,
    /// Whether the connection has closed since it became ready. Its index may be that of another
    /// connection now, which has an entry of its own if it is ready.
    pub(crate) is_gone: bool,
    /// Whether `serve` has begun with it.
    pub(crate) has_begun: bool,
    /// Whether the connection has reached its limit of requests for this tick (`-R`), and has more
    /// input.
    pub(crate) has_had_turn: bool,
    /// The work of its requests in this tick, in bytes (`work`, W1).
    pub(crate) work_bytes: u64,
}

impl Ready {
    /// Adds a connection to the ready connections. Returns its position among them. If `lent` is
    /// `None`, its tail is served.
    pub(crate) fn add(
        ready: &mut Vec<Self>,
        client: impl Into<ClientIndex>,
        lent: Option<Lent>,
    ) -> u32 {
        let place = u32::try_from(ready.len()).expect("sockets are numbered in 32 bits");
        ready.push(Self {
            client: client.into(),
            lent,
            tail: None,
            tail_bytes: 0,
            input_bytes: 0,
            offset: 0,
            ended: false,
            is_gone: false,
            has_begun: false,
            has_had_turn: false,
            work_bytes: 0,
        });
        place
    }

    /// Notes that the connection has closed. Its input is not served.
    pub(crate) fn close(&mut self) {
        debug_assert!(self.tail.is_none(), "connections close before tails are taken, or after");
        (self.lent, self.ended, self.is_gone) = (None, true, true);
    }

    /// Whether no more requests of the connection are begun in this tick (`work`, W1).
    #[inline]
    pub(crate) const fn is_worked_out(&self) -> bool {
        self.work_bytes >= TURN_BYTES_MAX
    }

    /// The bytes of memory that the input takes if only the bytes before `offset` are served.
    #[inline]
    pub(crate) const fn kept_bytes(&self, offset: usize) -> usize {
        debug_assert!(self.tail.is_some() || offset <= self.input_bytes, "within its input");
        if self.tail.is_some() { self.tail_bytes } else { self.input_bytes - offset }
    }
}

/// The most bytes that the decoded keys of a batch can have.
pub(crate) const DECODED_BYTES_MAX: usize = BATCH_REQUESTS_MAX * KEY_BYTES_MAX;

/// What a staged request asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    /// One key of a retrieval.
    Key {
        /// The retrieval from this key on. It is resumed here if the key must wait.
        from_here: Resume,
        /// Whether the key is the last of its retrieval, so that `END` follows.
        last: bool,
    },
    /// A request for one key. The number is its position among the lines of the batch.
    Line(u8),
}

/// A request for one key. It is not a part of [`Staged`], because it is much larger and the keys of
/// a retrieval do not need it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line<'b> {
    pub(crate) request: Request<'b>,
    /// The line and the data block as received. The record of a parked request has a copy.
    pub(crate) text: &'b [u8],
    /// The value in the data block, for storage requests.
    pub(crate) block: &'b [u8],
}

/// Where the bytes of a staged key are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KeyPlace<'b> {
    /// In the input.
    Input(&'b [u8]),
    /// In the batch, decoded from base64. The numbers are the start and the end of the key there.
    Decoded(u16, u16),
}

/// A request in a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Staged<'b> {
    /// The position of its connection among the ready connections.
    pub(crate) ready: u32,
    /// Where the line of the request starts in the input of that connection.
    pub(crate) start: usize,
    /// The engine that owns its key.
    pub(crate) owner: EngineIndex,
    pub(crate) hashes: KeyHashes,
    pub(crate) key: KeyPlace<'b>,
    pub(crate) work: Work,
    /// Whether the value is read for the reply.
    pub(crate) reads_value: bool,
    /// Whether it may change nothing, so that any core may execute it.
    pub(crate) is_read: bool,
}

impl Staged<'_> {
    /// What the request will look up.
    #[inline]
    pub(crate) const fn lookup(&self) -> Lookup {
        Lookup { secret_hash: self.hashes.secret, value: self.reads_value }
    }
}

/// Up to `BATCH_REQUESTS_MAX` staged requests.
pub(crate) struct Batch<'b> {
    staged: ArrayVec<Staged<'b>, BATCH_REQUESTS_MAX>,
    lines: ArrayVec<Line<'b>, BATCH_REQUESTS_MAX>,
    /// Decoded keys, of requests whose keys were in base64.
    decoded: Vec<u8>,
}

impl<'b> Batch<'b> {
    /// Makes an empty batch. It uses the memory of `decoded` for decoded keys.
    pub(crate) fn new(mut decoded: Vec<u8>) -> Self {
        decoded.clear();
        Self { staged: ArrayVec::new(), lines: ArrayVec::new(), decoded }
    }

    /// Returns the memory for decoded keys.
    pub(crate) fn into_decoded(self) -> Vec<u8> {
        self.decoded
    }

    /// Stores the decoded key of the request that is staged next.
    pub(crate) fn keep_decoded(&mut self, key: &[u8]) -> KeyPlace<'b> {
        assert!(self.decoded.len() + key.len() <= DECODED_BYTES_MAX, "one key a staged request");
        let place = |bytes: usize| u16::try_from(bytes).expect("at most DECODED_BYTES_MAX");
        let start = place(self.decoded.len());
        self.decoded.extend_from_slice(key);
        KeyPlace::Decoded(start, place(self.decoded.len()))
    }

    /// The bytes of a key.
    #[inline]
    pub(crate) fn key_bytes<'k>(&'k self, key: KeyPlace<'k>) -> &'k [u8] {
        debug_assert!(
            !matches!(key, KeyPlace::Decoded(start, end) if start >= end),
            "a decoded key has bytes"
        );
        match key {
            KeyPlace::Input(bytes) => bytes,
            KeyPlace::Decoded(start, end) => &self.decoded[start.into()..end.into()],
        }
    }

    /// The key of a staged request.
    #[inline]
    pub(crate) fn key<'k>(&'k self, staged: &Staged<'k>) -> Key<'k> {
        Key::hashed(self.key_bytes(staged.key), staged.hashes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.staged.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.staged.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.staged.is_full()
    }

    /// Adds a request.
    ///
    /// Panics: when the batch is full. The caller must run it before.
    #[inline]
    pub(crate) fn push(&mut self, staged: Staged<'b>) {
        self.staged.push(staged);
    }

    /// Adds the line of the request that is staged next.
    #[inline]
    pub(crate) fn add_line(&mut self, line: Line<'b>) -> Work {
        let place = u8::try_from(self.lines.len()).expect("one line a staged request");
        self.lines.push(line);
        Work::Line(place)
    }

    /// The line of a staged request.
    #[inline]
    pub(crate) fn line(&self, place: u8) -> &Line<'b> {
        &self.lines[usize::from(place)]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Staged<'b>> + Clone {
        self.staged.iter()
    }

    pub(crate) fn clear(&mut self) {
        self.decoded.clear();
        self.staged.clear();
        self.lines.clear();
    }
}

/// The offset in `whole` at which `part` begins. `part` must be a slice of `whole`.
pub(crate) fn offset_in(whole: &[u8], part: &[u8]) -> usize {
    let offset = part.as_ptr().addr() - whole.as_ptr().addr();
    debug_assert!(offset + part.len() <= whole.len(), "`part` is a slice of `whole`");
    offset
}

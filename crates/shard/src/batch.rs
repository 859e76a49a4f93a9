//! The batch: requests that were parsed and hashed, and wait to be carried out together.
//!
//! Upstream:   `serve` parses a connection's input and stages what it finds.
//! Downstream: `serve` runs the batch: prefetch buckets, prefetch items, carry out in order.
//!
//! Invariants:
//! - I1  Staged requests of one connection stand in the order in which they came.
//! - I2  A staged request borrows the input that it was parsed from; the input stays put until it
//!   ran.

use arrayvec::ArrayVec;
use kachel_engine::{Key, KeyHashes, Lookup};
use kachel_io::Lent;
use kachel_net::{ConnectionIndex, Resume};
use kachel_wire::request::{KEY_BYTES_MAX, Request};

use crate::BATCH_REQUESTS_MAX;

/// A connection that has input to be served this tick.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) connection: ConnectionIndex,
    /// The input as `io` lent it; or, when the connection had kept some before, none:
    pub(crate) lent: Option<Lent>,
    /// which of the taken tails holds the input.
    pub(crate) tail: Option<u32>,
    /// Bytes of memory of that tail.
    pub(crate) tail_bytes: usize,
    /// Bytes of the input, once it is served.
    pub(crate) input_bytes: usize,
    /// Bytes of the input that are served.
    pub(crate) offset: usize,
    /// Whether no more of it is served this tick.
    pub(crate) ended: bool,
}

impl Ready {
    /// Adds a connection to the ready; its place among them. Without lent bytes its tail is served.
    pub(crate) fn add(
        ready: &mut Vec<Self>,
        connection: ConnectionIndex,
        lent: Option<Lent>,
    ) -> u32 {
        let place = u32::try_from(ready.len()).expect("sockets are numbered in 32 bits");
        ready.push(Self {
            connection,
            lent,
            tail: None,
            tail_bytes: 0,
            input_bytes: 0,
            offset: 0,
            ended: false,
        });
        place
    }

    /// Memory that is held if no more is served than what is before `offset`.
    #[inline]
    pub(crate) const fn kept_bytes(&self, offset: usize) -> usize {
        debug_assert!(self.tail.is_some() || offset <= self.input_bytes, "within its input");
        if self.tail.is_some() { self.tail_bytes } else { self.input_bytes - offset }
    }
}

/// Bytes of the decoded keys of a batch, at most.
pub(crate) const DECODED_BYTES_MAX: usize = BATCH_REQUESTS_MAX * KEY_BYTES_MAX;

/// What a staged request asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    /// One key of a retrieval.
    Key {
        /// The retrieval that the key is of, from this key on.
        from_here: Resume,
        /// Whether `END` follows.
        last: bool,
    },
    /// A request of one key: its place among the lines of the batch.
    Line(u8),
}

/// A request of one key. Apart from [`Staged`], because it is much larger, and the keys of a
/// retrieval need none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line<'b> {
    pub(crate) request: Request<'b>,
    /// Line and data block as they came, to be sent on in a hop.
    pub(crate) text: &'b [u8],
    /// The value in the data block, for storage requests.
    pub(crate) block: &'b [u8],
}

/// Where the bytes of a staged key are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KeyPlace<'b> {
    /// In the input.
    Input(&'b [u8]),
    /// In the batch, decoded from base64: from the first byte to before the second.
    Decoded(u16, u16),
}

/// A request in a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Staged<'b> {
    /// Its connection's place among the ready.
    pub(crate) ready: u32,
    /// Where it starts in that connection's input.
    pub(crate) start: usize,
    /// The shard that owns its key.
    pub(crate) owner: u16,
    pub(crate) hashes: KeyHashes,
    pub(crate) key: KeyPlace<'b>,
    pub(crate) work: Work,
    /// Whether the value is read for the reply.
    pub(crate) reads_value: bool,
}

impl Staged<'_> {
    /// What it will look up.
    #[inline]
    pub(crate) const fn lookup(&self) -> Lookup {
        Lookup { secret_hash: self.hashes.secret, value: self.reads_value }
    }
}

/// Up to `BATCH_REQUESTS_MAX` staged requests.
pub(crate) struct Batch<'b> {
    staged: ArrayVec<Staged<'b>, BATCH_REQUESTS_MAX>,
    lines: ArrayVec<Line<'b>, BATCH_REQUESTS_MAX>,
    /// Keys that came in base64, decoded.
    decoded: Vec<u8>,
}

impl<'b> Batch<'b> {
    /// An empty batch. `decoded` lends its memory for decoded keys.
    pub(crate) fn new(mut decoded: Vec<u8>) -> Self {
        decoded.clear();
        Self { staged: ArrayVec::new(), lines: ArrayVec::new(), decoded }
    }

    /// Gives the memory for decoded keys back.
    pub(crate) fn into_decoded(self) -> Vec<u8> {
        self.decoded
    }

    /// Keeps a decoded key for a request that is staged next.
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

    pub(crate) fn is_full(&self) -> bool {
        self.staged.is_full()
    }

    /// Adds a request.
    ///
    /// Panics: when the batch is full; it must be run before.
    #[inline]
    pub(crate) fn push(&mut self, staged: Staged<'b>) {
        self.staged.push(staged);
    }

    /// Adds the line of a request that is staged next.
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

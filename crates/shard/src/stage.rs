//! The batch: requests that were parsed and hashed, and wait to be carried out together.
//!
//! Upstream:   `serve` parses a connection's input and stages what it finds.
//! Downstream: `serve` runs the batch: prefetch buckets, prefetch items, carry out in order.
//!
//! Invariants:
//! - I1  Staged requests of one connection stand in the order in which they came.
//! - I2  A staged request borrows the input that it was parsed from; the input stays put until it
//!   ran.

use kachel_io::Lent;
use kachel_net::{ConnectionIndex, Resume};
use kachel_table::KeyHash;
use kachel_wire::request::Request;

use crate::BATCH_REQUESTS_MAX;
use crate::engine::Wanted;
use crate::execute::reads_value;

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
    /// Whether no more of it is to be served this tick.
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
        if self.tail.is_some() { self.tail_bytes } else { self.input_bytes - offset }
    }
}

/// What a staged request asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work<'b> {
    /// One key of a retrieval.
    Key {
        key: &'b [u8],
        /// The retrieval that the key is of, from this key on.
        from_here: Resume,
        /// Whether `END` follows.
        last: bool,
    },
    /// A request of one key.
    Line {
        request: Request<'b>,
        /// Line and data block as they came, to be sent on in a hop.
        text: &'b [u8],
        /// The value in the data block, for storage requests.
        block: &'b [u8],
    },
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
    pub(crate) hash: KeyHash,
    pub(crate) work: Work<'b>,
}

impl Staged<'_> {
    /// What it will look at.
    #[inline]
    pub(crate) const fn wanted(&self) -> Wanted {
        let value = match &self.work {
            Work::Key { .. } => true,
            Work::Line { request, .. } => reads_value(request),
        };
        Wanted { hash: self.hash, value }
    }
}

/// Up to `BATCH_REQUESTS_MAX` staged requests.
pub(crate) struct Batch<'b> {
    staged: [Option<Staged<'b>>; BATCH_REQUESTS_MAX],
    count: usize,
}

impl<'b> Batch<'b> {
    pub(crate) const fn new() -> Self {
        Self { staged: [const { None }; BATCH_REQUESTS_MAX], count: 0 }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) const fn is_full(&self) -> bool {
        self.count == BATCH_REQUESTS_MAX
    }

    #[inline]
    pub(crate) fn push(&mut self, staged: Staged<'b>) {
        assert!(!self.is_full(), "a full batch is run before more is staged");
        self.staged[self.count] = Some(staged);
        self.count += 1;
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Staged<'b>> + Clone {
        self.staged[..self.count].iter().flatten()
    }

    pub(crate) fn clear(&mut self) {
        self.count = 0;
    }
}

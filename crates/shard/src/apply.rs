//! Applying a request to the engine: the operation, its counters, and the reply.
//!
//! Upstream:   `serve` for our own clients, `hop::take` for other shards'.
//! Downstream: the engine; `wire` makes the operation and formats the outcome.
//!
//! Invariants:
//! - I1  Every request that is applied is counted once and answered once.

use kachel_cache::{Cache, Pinned, Upload};
use kachel_engine::{Block, Key, Now, Ttl, apply, get};
use kachel_net::AnswerRoom;
use kachel_wire::request::Request;
use kachel_wire::{Sink, format, retrieval_terms};

use crate::counters::Counters;

/// Where a reply that may show a value goes.
pub(crate) trait ReplySink: Sink {
    /// Bytes of the longest value that is formatted into it; a longer one is pinned.
    fn value_bytes_max(&self) -> usize;
}

/// Bytes of the longest line that a classic request other than a retrieval is answered with.
const CLASSIC_ANSWER_BYTES_MAX: u16 = 96;
/// Bytes of the longest line of a meta reply: a key in base64, an opaque token, every flag.
const META_ANSWER_BYTES_MAX: u16 = 640;
/// Bytes beside the key in the line before a value.
const VALUE_LINE_BYTES_MAX: u16 = 64;

/// Room to keep for the answer to one key of a retrieval, its value taken to have `value_bytes`.
pub(crate) fn room_for_key(key: &[u8], value_bytes: u16) -> AnswerRoom {
    let key_bytes = u16::try_from(key.len()).expect("keys are short");
    AnswerRoom { line_bytes: key_bytes + VALUE_LINE_BYTES_MAX, value_bytes }
}

/// Room to keep for the answer to a request; the answer to one that wants no reply is empty.
pub(crate) fn room_for_answer(request: &Request<'_>, value_bytes: u16) -> AnswerRoom {
    let (line_bytes, value_bytes) = match request {
        Request::MetaGet(meta) if meta.letters.has(b'v') => (META_ANSWER_BYTES_MAX, value_bytes),
        meta if meta.is_meta() => (META_ANSWER_BYTES_MAX, 0),
        classic if classic.is_noreply() => (0, 0),
        _ => (CLASSIC_ANSWER_BYTES_MAX, 0),
    };
    AnswerRoom { line_bytes, value_bytes }
}

/// The engine of a shard, the time of the tick, and the counters: what applying takes.
pub(crate) struct Applier<'a> {
    pub(crate) cache: &'a mut Cache,
    pub(crate) now: &'a Now,
    pub(crate) counters: &'a Counters,
}

impl Applier<'_> {
    /// Applies a request of one key and formats its reply. A value that is returned is to follow.
    pub(crate) fn request(
        self,
        request: &Request<'_>,
        key: Key<'_>,
        block: Block<'_, Upload>,
        sink: &mut impl ReplySink,
    ) -> Option<Pinned> {
        self.counters.requests.add(1);
        if request.is_meta() {
            self.counters.cmd_meta.add(1);
        }
        let operation = request.operation(key, sink.value_bytes_max());
        let outcome = apply(self.cache, &operation, block, self.now);
        self.counters.note(&operation.verb, &outcome);
        format::answer(sink, request, outcome)
    }

    /// Applies one key of a retrieval and formats its reply. A value that is returned is to follow.
    #[inline]
    pub(crate) fn key(
        self,
        key: Key<'_>,
        (with_cas, ttl): (bool, Option<Ttl>),
        sink: &mut impl ReplySink,
    ) -> Option<Pinned> {
        self.counters.requests.add(1);
        let terms = retrieval_terms(with_cas, ttl, sink.value_bytes_max());
        let outcome = get(self.cache, &key, &terms, self.now);
        self.counters.note_get(ttl.is_some(), &outcome.verdict);
        format::answer_key(sink, &key, with_cas, outcome)
    }
}

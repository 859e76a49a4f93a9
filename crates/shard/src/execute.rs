//! From a request to its verb.
//!
//! Upstream:   `serve` for our own clients, `hop::take` for other shards'.
//! Downstream: `verb`.

use kachel_net::AnswerRoom;
use kachel_segment::Pinned;
use kachel_table::KeyHash;
use kachel_wire::request::{KEY_BYTES_MAX, MetaKey, Request};
use kachel_wire::{Sink, parse_key};

use crate::engine::Engine;
use crate::second::Epoch;
use crate::verb::{self, Block, ReplySink};

/// The key that a request is about, decoded into `space` where need be; empty for those without
/// one.
#[inline]
pub(crate) fn key_of<'k>(request: &Request<'k>, space: &'k mut [u8; KEY_BYTES_MAX]) -> &'k [u8] {
    match *request {
        Request::Store(store) => store.key,
        Request::Delete { key, .. }
        | Request::Touch { key, .. }
        | Request::Arithmetic { key, .. } => key,
        Request::MetaGet(meta)
        | Request::MetaDelete(meta)
        | Request::MetaSet { meta, .. }
        | Request::MetaArithmetic { meta, .. } => parse_key(meta.key, space),
        Request::MetaDebug(key) => parse_key(key, space),
        Request::Retrieve(_) | Request::MetaNoop | Request::Admin(_) => b"",
    }
}

/// Whether the client wants no reply, whatever happens (classic `noreply`; quiet meta still errs
/// aloud).
#[inline]
pub(crate) const fn is_noreply(request: &Request<'_>) -> bool {
    match request {
        Request::Store(store) => store.noreply,
        Request::Delete { noreply, .. }
        | Request::Touch { noreply, .. }
        | Request::Arithmetic { noreply, .. } => *noreply,
        _ => false,
    }
}

/// Whether a request other than a retrieval reads the value for its reply.
#[inline]
pub(crate) const fn reads_value(request: &Request<'_>) -> bool {
    matches!(request, Request::MetaGet(_))
}

/// Bytes of the longest line that a classic request other than a retrieval is answered with.
const CLASSIC_ANSWER_BYTES_MAX: u16 = 96;
/// Bytes of the longest line of a meta reply: a key in base64, an opaque token, every flag.
const META_ANSWER_BYTES_MAX: u16 = 640;
/// What stands beside the key in the line before a value.
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
        Request::MetaGet(_)
        | Request::MetaDelete(_)
        | Request::MetaSet { .. }
        | Request::MetaArithmetic { .. }
        | Request::MetaDebug(_) => (META_ANSWER_BYTES_MAX, 0),
        _ if is_noreply(request) => (0, 0),
        _ => (CLASSIC_ANSWER_BYTES_MAX, 0),
    };
    AnswerRoom { line_bytes, value_bytes }
}

/// The value bytes that a request announces: those of its data block without CR LF.
#[inline]
pub(crate) const fn announced_bytes(request: &Request<'_>) -> Option<u32> {
    match request {
        Request::Store(store) => Some(store.value_bytes),
        Request::MetaSet { value_bytes, .. } => Some(*value_bytes),
        _ => None,
    }
}

/// Takes everything and keeps nothing.
struct Silence;

impl Sink for Silence {
    fn put(&mut self, _bytes: &[u8]) {}
}

/// Carries a request of one key out and words its reply; a pin is a value that is to follow the
/// text.
pub(crate) fn execute(
    engine: &mut Engine,
    epoch: &Epoch,
    request: &Request<'_>,
    hash: KeyHash,
    block: Block<'_>,
    sink: &mut impl ReplySink,
) -> Option<Pinned> {
    engine.counters.requests.add(1);
    if is_noreply(request) {
        classic(engine, epoch, request, hash, block, &mut Silence);
        return None;
    }
    let mut space = [0; KEY_BYTES_MAX];
    match request {
        Request::MetaGet(meta) => {
            let key = decoded(meta.key, &mut space);
            return verb::meta_get(engine, epoch, (key, hash), meta, sink);
        }
        Request::MetaSet { meta, mode, .. } => {
            let key = decoded(meta.key, &mut space);
            verb::meta_set(engine, epoch, (key, hash), meta, *mode, block, sink);
        }
        Request::MetaDelete(meta) => {
            let key = decoded(meta.key, &mut space);
            verb::meta_delete(engine, epoch, (key, hash), meta, sink);
        }
        Request::MetaArithmetic { meta, direction } => {
            let key = decoded(meta.key, &mut space);
            verb::meta_arithmetic(engine, epoch, (key, hash), meta, *direction, sink);
        }
        Request::MetaDebug(key) => {
            let decoded = decoded(*key, &mut space);
            verb::meta_debug(engine, (decoded, hash), *key, sink);
        }
        classic_request => classic(engine, epoch, classic_request, hash, block, sink),
    }
    None
}

fn decoded<'k>(key: MetaKey<'k>, space: &'k mut [u8; KEY_BYTES_MAX]) -> &'k [u8] {
    parse_key(key, space)
}

fn classic(
    engine: &mut Engine,
    epoch: &Epoch,
    request: &Request<'_>,
    hash: KeyHash,
    block: Block<'_>,
    sink: &mut impl Sink,
) {
    let reply = match request {
        Request::Store(store) => {
            let expiry = epoch.expiry(store.ttl, engine.second);
            verb::classic_store(engine, hash, store, expiry, block)
        }
        Request::Delete { key, .. } => verb::delete(engine, key, hash),
        Request::Touch { key, ttl, .. } => {
            let expiry = epoch.expiry(*ttl, engine.second);
            verb::touch(engine, key, hash, expiry)
        }
        Request::Arithmetic { key, direction, delta, .. } => {
            verb::arithmetic(engine, (key, hash), (*direction, *delta), sink);
            return;
        }
        other => unreachable!("{other:?} is not a classic request of one key"),
    };
    sink.put(reply.bytes());
}

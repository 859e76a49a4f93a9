//! Formats an outcome as a reply of the text or meta protocol.
//!
//! Upstream:   an engine's outcome, and the request that led to it.
//! Downstream: a [`Sink`]. A value that is too large for it is returned, and must follow the
//!             formatted bytes.
//!
//! Invariants:
//! - I1  A request has one reply, or no reply if its client wants none.
//! - I2  A returned value was announced in the head, and its end must follow it.

use kachel_engine::{Facts, Key, NO_TOKEN_MAX, Value, Verdict};

use super::{
    CRLF, MetaCode, MetaVerb, Sink, meta_debug, meta_head, meta_plain, number, quiet_hides,
};
use super::{leased_head, value as put_value, value_head};
use crate::reply::Reply;
use crate::request::{Meta, Request, RetrieveForm};

/// How the reply to one key of a retrieval looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyReply {
    /// What the reply shows of the key.
    pub form: RetrieveForm,
    /// Whether the key is the last one, so that `END` follows.
    pub is_last: bool,
}

impl KeyReply {
    /// The bytes that follow the value of this key.
    #[inline]
    pub const fn value_end(self) -> &'static [u8] {
        if self.is_last { b"\r\nEND\r\n" } else { CRLF }
    }
}

/// Formats the reply to one key of a retrieval: `VALUE ...` on a hit, nothing on a miss, and `END`
/// after the last key. If the disk has failed, or there is no memory for an item of a disk, an
/// error stands in the place of `END`. Returns a value that must follow (I2), itself followed by
/// [`KeyReply::value_end`].
#[inline]
pub fn answer_key<P>(
    sink: &mut impl Sink,
    key: &Key<'_>,
    reply: KeyReply,
    verdict: &Verdict,
    value: Value<'_, P>,
) -> Option<P> {
    let Verdict::Hit(facts) = verdict else {
        if reply.is_last {
            let end = match verdict {
                Verdict::DiskFailed => Reply::DiskError,
                Verdict::NoMemory { .. } => Reply::OutOfMemory,
                _ => Reply::End,
            };
            sink.put(end.bytes());
        }
        return None;
    };
    let cas = reply.form.with_cas().then_some(facts.cas);
    match value {
        Value::Inline(value) => {
            put_value(sink, key.bytes(), facts.client_flags, value, cas, reply.value_end());
            None
        }
        Value::Pinned { pinned, bytes } => {
            value_head(sink, key.bytes(), facts.client_flags, bytes, cas);
            Some(pinned)
        }
        Value::None => unreachable!("a retrieval wants the value"),
    }
}

/// Formats the reply to one key of `lease-get`: `VALUE ...` on a hit, `LVALUE ...` with a token on
/// a miss. While another client has the lease, `LVALUE` with token 1 shows a stale value, and
/// `NOT_FOUND_HOT` says that there is none. `END` follows the last key. But `NOT_FOUND_HOT`, or a
/// refusal, is the whole reply to a request of one key. Returns a value that must follow (I2),
/// itself followed by [`KeyReply::value_end`].
#[cold]
#[inline(never)]
pub fn answer_lease<P>(
    sink: &mut impl Sink,
    key: &Key<'_>,
    reply: KeyReply,
    verdict: &Verdict,
    value: Value<'_, P>,
) -> Option<P> {
    debug_assert!(reply.form.is_lease(), "a plain retrieval gives no lease");
    let mut head = |token: Option<u64>, client_flags, bytes| match token {
        Some(token) => leased_head(sink, key.bytes(), token, client_flags, bytes),
        None => value_head(sink, key.bytes(), client_flags, bytes, None),
    };
    let (token, client_flags) = match *verdict {
        Verdict::Hit(facts) => (None, facts.client_flags),
        Verdict::Leased { token, client_flags } => {
            debug_assert!(token.is_none_or(|token| token > NO_TOKEN_MAX), "0 and 1 are no tokens");
            (Some(token.unwrap_or(NO_TOKEN_MAX)), client_flags)
        }
        Verdict::NoMemory { .. } => return lease_line(sink, reply, Reply::OutOfMemory),
        Verdict::DiskFailed => return lease_line(sink, reply, Reply::DiskError),
        ref other => unreachable!("{other:?} is no verdict on a lease"),
    };
    match value {
        Value::Inline(b"") | Value::None if token == Some(NO_TOKEN_MAX) => {
            lease_line(sink, reply, Reply::NotFoundHot)
        }
        Value::None => unreachable!("a lease shows a value, if only an empty one"),
        Value::Inline(value) => {
            head(token, client_flags, value.len());
            sink.put_all([value, reply.value_end()]);
            None
        }
        Value::Pinned { pinned, bytes } => {
            head(token, client_flags, bytes);
            Some(pinned)
        }
    }
}

/// Formats a line in the place of a value.
fn lease_line<P>(sink: &mut impl Sink, reply: KeyReply, line: Reply) -> Option<P> {
    debug_assert!(reply.form.is_lease(), "a plain retrieval has no such line");
    sink.put(line.bytes());
    if reply.is_last && reply.form == RetrieveForm::LeaseOfMany {
        sink.put(Reply::End.bytes());
    }
    None
}

/// Formats the reply to a meta request. Returns a value that must follow (I2).
pub(crate) fn answer_meta<P>(
    sink: &mut impl Sink,
    request: &Request<'_>,
    verdict: &Verdict,
    value: Value<'_, P>,
) -> Option<P> {
    match request {
        Request::MetaGet(meta) => return answer_meta_get(sink, meta, verdict, value),
        Request::MetaSet { meta, value_bytes, .. } => {
            answer_meta_set(sink, meta, *value_bytes as usize, verdict);
        }
        Request::MetaDelete(meta) => answer_meta_delete(sink, meta, verdict),
        Request::MetaArithmetic { meta, .. } => answer_meta_arithmetic(sink, meta, verdict),
        Request::MetaDebug(key) => match verdict {
            Verdict::Inspected(inspection) => meta_debug(sink, *key, inspection),
            Verdict::DiskFailed => sink.put(Reply::DiskError.bytes()),
            Verdict::NoMemory { .. } => sink.put(Reply::OutOfMemory.bytes()),
            _ => sink.put(Reply::En.bytes()),
        },
        other => unreachable!("{other:?} is no meta request of one key"),
    }
    None
}

/// Formats the reply of a classic verb that reads no value.
pub(crate) fn answer_classic(sink: &mut impl Sink, request: &Request<'_>, verdict: &Verdict) {
    if request.is_noreply() {
        return; // I1
    }
    let reply = match verdict {
        Verdict::Number { number: changed, .. } => return number(sink, *changed),
        Verdict::Stored { .. } => Reply::Stored,
        Verdict::NotStored => Reply::NotStored,
        Verdict::StaleStored => Reply::StaleStored,
        Verdict::Exists => Reply::Exists,
        Verdict::Miss => Reply::NotFound,
        Verdict::Deleted => Reply::Deleted,
        Verdict::Touched => Reply::Touched,
        Verdict::NonNumeric => Reply::NonNumeric,
        Verdict::NoMemory { .. } if matches!(request, Request::Store(_)) => {
            Reply::OutOfMemoryStoring
        }
        Verdict::NoMemory { .. } => Reply::OutOfMemory,
        Verdict::DiskFailed => Reply::DiskError,
        Verdict::Hit(_) | Verdict::Leased { .. } | Verdict::Invalidated | Verdict::Inspected(_) => {
            unreachable!("{verdict:?} is no verdict on a classic request of one key")
        }
    };
    sink.put(reply.bytes());
}

fn answer_meta_get<P>(
    sink: &mut impl Sink,
    meta: &Meta<'_>,
    verdict: &Verdict,
    value: Value<'_, P>,
) -> Option<P> {
    let mut facts = match verdict {
        Verdict::Hit(facts) => *facts,
        Verdict::NoMemory { .. } => {
            sink.put(Reply::OutOfMemory.bytes());
            return None;
        }
        Verdict::DiskFailed => {
            sink.put(Reply::DiskError.bytes());
            return None;
        }
        _ => {
            if !meta.letters.has(b'q') {
                meta_plain(sink, MetaCode::En, meta);
            }
            return None;
        }
    };
    match value {
        Value::None => {
            meta_head(sink, MetaVerb::Get, MetaCode::Hd, meta, &facts);
            None
        }
        Value::Inline(value) => {
            facts.value_bytes = value.len();
            meta_head(sink, MetaVerb::Get, MetaCode::Va, meta, &facts);
            sink.put_all([value, CRLF]);
            None
        }
        Value::Pinned { pinned, bytes } => {
            facts.value_bytes = bytes;
            meta_head(sink, MetaVerb::Get, MetaCode::Va, meta, &facts);
            Some(pinned)
        }
    }
}

fn answer_meta_set(
    sink: &mut impl Sink,
    meta: &Meta<'_>,
    announced_bytes: usize,
    verdict: &Verdict,
) {
    // A value that was not stored is reported with its announced size and without a token.
    let mut facts = Facts { value_bytes: announced_bytes, ..Facts::default() };
    let code = match verdict {
        Verdict::Stored { cas, value_bytes } => {
            (facts.cas, facts.value_bytes) = (*cas, *value_bytes);
            MetaCode::Hd
        }
        Verdict::NotStored => MetaCode::Ns,
        Verdict::Exists => MetaCode::Ex,
        Verdict::Miss => MetaCode::Nf,
        Verdict::NoMemory { .. } => return sink.put(Reply::OutOfMemoryStoring.bytes()),
        Verdict::DiskFailed => return sink.put(Reply::DiskError.bytes()),
        other => unreachable!("{other:?} is no verdict on a store"),
    };
    if !(meta.letters.has(b'q') && quiet_hides(MetaVerb::Set, code)) {
        meta_head(sink, MetaVerb::Set, code, meta, &facts);
    }
}

fn answer_meta_delete(sink: &mut impl Sink, meta: &Meta<'_>, verdict: &Verdict) {
    let code = match verdict {
        Verdict::Deleted | Verdict::Invalidated => MetaCode::Hd,
        Verdict::Miss => MetaCode::Nf,
        Verdict::Exists => MetaCode::Ex,
        Verdict::NoMemory { .. } => return sink.put(Reply::OutOfMemory.bytes()),
        Verdict::DiskFailed => return sink.put(Reply::DiskError.bytes()),
        other => unreachable!("{other:?} is no verdict on a delete"),
    };
    if !(meta.letters.has(b'q') && quiet_hides(MetaVerb::Delete, code)) {
        meta_plain(sink, code, meta);
    }
}

fn answer_meta_arithmetic(sink: &mut impl Sink, meta: &Meta<'_>, verdict: &Verdict) {
    match verdict {
        Verdict::Number { number: changed, facts } => {
            let shows_value = meta.letters.has(b'v');
            let code = if shows_value { MetaCode::Va } else { MetaCode::Hd };
            if meta.letters.has(b'q') && quiet_hides(MetaVerb::Arithmetic, code) {
                return;
            }
            meta_head(sink, MetaVerb::Arithmetic, code, meta, facts);
            if shows_value {
                number(sink, *changed);
            }
        }
        Verdict::Miss => meta_plain(sink, MetaCode::Nf, meta),
        Verdict::Exists => meta_plain(sink, MetaCode::Ex, meta),
        Verdict::NonNumeric => sink.put(Reply::NonNumeric.bytes()),
        Verdict::NoMemory { found: true } => sink.put(Reply::OutOfMemory.bytes()),
        Verdict::NoMemory { found: false } => sink.put(Reply::OutOfMemoryNewItem.bytes()),
        Verdict::DiskFailed => sink.put(Reply::DiskError.bytes()),
        other => unreachable!("{other:?} is no verdict on a number"),
    }
}

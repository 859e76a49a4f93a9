//! Formats replies of the binary protocol.
//!
//! Upstream:   an engine's outcome and its request; `shard`, for requests that are not about a key.
//! Downstream: a [`Sink`]. A value that is too large for it is returned, and must follow the
//!             formatted bytes.
//!
//! Invariants:
//! - I1  A request has one reply, or none if it is quiet and its outcome is the usual one. `STAT`
//!   has one for each statistic, and an empty one.
//! - I2  The length in a header is that of all that follows the header, a returned value included.

use kachel_engine::{Facts, StoreMode, Value, Verdict};

use super::HEADER_BYTES;
use crate::format::Sink;
use crate::reply::{BinaryStatus, Reply};
use crate::request::{BinaryHead, BinaryRequest, BinaryVerb};

/// The first byte of every reply.
pub(crate) const REPLY_MAGIC: u8 = 0x81;
/// Bytes of the extras of a hit: the client flags.
const HIT_EXTRAS_BYTES: usize = 4;

/// The status that has the meaning of a constant reply of the text protocol.
const fn status_of(reply: Reply) -> BinaryStatus {
    match reply {
        Reply::Ok | Reply::End | Reply::Reset => BinaryStatus::Success,
        Reply::FlushNotAllowed => BinaryStatus::NotAllowed,
        Reply::DiskError => BinaryStatus::DiskError,
        Reply::TooLarge => BinaryStatus::TooLarge,
        Reply::TooLongForUdp => BinaryStatus::TooLongForUdp,
        Reply::IncompleteInDatagram => BinaryStatus::IncompleteInDatagram,
        Reply::NotOverUdp => BinaryStatus::NotOverUdp,
        Reply::OutOfMemoryStoring => BinaryStatus::OutOfMemory,
        // Topics of `STAT` that are unknown or not allowed.
        Reply::Error | Reply::StatsDetailUsage | Reply::StatsDetailNotAllowed => {
            BinaryStatus::NotFound
        }
        _ => BinaryStatus::InvalidArguments,
    }
}

/// The lengths in the header of a reply.
#[derive(Clone, Copy, Default)]
struct Body {
    extras_bytes: u8,
    key_bytes: usize,
    /// Bytes of the whole body (I2).
    bytes: usize,
}

impl BinaryHead {
    #[inline]
    fn header(self, status: BinaryStatus, body: Body, cas: u64) -> [u8; HEADER_BYTES] {
        let Body { extras_bytes, key_bytes, bytes } = body;
        let bytes = u32::try_from(bytes).expect("a value is shorter than its item may be");
        let key_bytes = u16::try_from(key_bytes).expect("a key or a name is short");
        let mut header = [0; HEADER_BYTES];
        (header[0], header[1], header[4]) = (REPLY_MAGIC, self.opcode, extras_bytes);
        header[2..4].copy_from_slice(&key_bytes.to_be_bytes());
        header[6..8].copy_from_slice(&status.code().to_be_bytes());
        header[8..12].copy_from_slice(&bytes.to_be_bytes());
        header[12..16].copy_from_slice(&self.opaque);
        header[16..24].copy_from_slice(&cas.to_be_bytes());
        header
    }

    /// Formats a reply without extras and key, in any case.
    pub(super) fn put(self, sink: &mut impl Sink, status: BinaryStatus, body: &[u8], cas: u64) {
        let lengths = Body { bytes: body.len(), ..Body::default() };
        sink.put_all([&self.header(status, lengths, cas), body]);
    }

    /// Formats a reply with the text of its status, or none if a quiet request has succeeded.
    pub fn put_status(self, sink: &mut impl Sink, status: BinaryStatus) {
        if status != BinaryStatus::Success || !self.is_quiet() {
            self.put(sink, status, status.text(), 0);
        }
    }

    /// Formats the reply that has the meaning of a constant reply of the text protocol.
    pub fn put_reply(self, sink: &mut impl Sink, reply: Reply) {
        self.put_status(sink, status_of(reply));
    }

    /// Formats a successful reply with this body: that to `VERSION`.
    pub fn put_body(self, sink: &mut impl Sink, body: &[u8]) {
        self.put(sink, BinaryStatus::Success, body, 0);
    }

    /// Formats one statistic. A reply of [`Self::put_reply`] ends the list.
    pub fn put_stat(self, sink: &mut impl Sink, name: &[u8], value: &[u8]) {
        let bytes = name.len() + value.len();
        let body = Body { extras_bytes: 0, key_bytes: name.len(), bytes };
        sink.put_all([&self.header(BinaryStatus::Success, body, 0), name, value]);
    }
}

/// Formats the reply to a request of one key. Returns a value that must follow (I2).
#[inline]
pub(crate) fn answer<P>(
    sink: &mut impl Sink,
    request: &BinaryRequest<'_>,
    verdict: &Verdict,
    value: Value<'_, P>,
) -> Option<P> {
    let head = request.head;
    let status = match verdict {
        Verdict::Hit(facts) => return answer_hit(sink, request, facts, value),
        Verdict::Miss => {
            answer_miss(sink, request);
            return None;
        }
        Verdict::Stored { cas, .. } => {
            if !head.is_quiet() {
                head.put(sink, BinaryStatus::Success, b"", *cas);
            }
            return None;
        }
        Verdict::Number { number, facts } => {
            if !head.is_quiet() {
                head.put(sink, BinaryStatus::Success, &number.to_be_bytes(), facts.cas);
            }
            return None;
        }
        Verdict::Deleted => BinaryStatus::Success,
        Verdict::Exists => BinaryStatus::Exists,
        Verdict::NotStored => match request.verb {
            BinaryVerb::Store { mode: StoreMode::Add, .. } => BinaryStatus::Exists,
            BinaryVerb::Store { mode: StoreMode::Replace, .. } => BinaryStatus::NotFound,
            _ => BinaryStatus::NotStored,
        },
        Verdict::NonNumeric => BinaryStatus::NonNumeric,
        Verdict::NoMemory { .. } => BinaryStatus::OutOfMemory,
        Verdict::DiskFailed => BinaryStatus::DiskError,
        Verdict::Touched
        | Verdict::Invalidated
        | Verdict::Inspected(_)
        | Verdict::Leased { .. }
        | Verdict::StaleStored => {
            unreachable!("{verdict:?} is no verdict on a binary request")
        }
    };
    head.put_status(sink, status);
    None
}

#[inline]
fn answer_hit<P>(
    sink: &mut impl Sink,
    request: &BinaryRequest<'_>,
    facts: &Facts,
    value: Value<'_, P>,
) -> Option<P> {
    let BinaryVerb::Get { with_key, .. } = request.verb else {
        unreachable!("only a retrieval hits")
    };
    let (inline, pinned, value_bytes) = match value {
        Value::None => (&b""[..], None, 0),
        Value::Inline(value) => (value, None, value.len()),
        Value::Pinned { pinned, bytes } => (&b""[..], Some(pinned), bytes),
    };
    let key = if with_key { request.key } else { b"" };
    let body = Body {
        extras_bytes: HIT_EXTRAS_BYTES as u8,
        key_bytes: key.len(),
        bytes: HIT_EXTRAS_BYTES + key.len() + value_bytes,
    };
    let header = request.head.header(BinaryStatus::Success, body, facts.cas);
    sink.put_all([&header, &facts.client_flags.to_be_bytes(), key, inline]);
    pinned
}

fn answer_miss(sink: &mut impl Sink, request: &BinaryRequest<'_>) {
    let BinaryRequest { head, key, .. } = *request;
    match request.verb {
        BinaryVerb::Get { .. } if head.is_quiet() => {} // I1
        BinaryVerb::Get { with_key: true, .. } => {
            let body = Body { extras_bytes: 0, key_bytes: key.len(), bytes: key.len() };
            sink.put_all([&head.header(BinaryStatus::NotFound, body, 0), key]);
        }
        _ => head.put_status(sink, BinaryStatus::NotFound),
    }
}

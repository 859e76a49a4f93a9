//! The records of the rings: requests that another shard owns, and their answers.
//!
//! Upstream:   `send` words a hop for a request whose key is not ours, `admin` for what all do.
//! Downstream: the owner carries it out as if its own client had asked, and sends the worded reply
//!             back.
//!
//! ```text
//! request:  slot u32 | kind u8 | flags u8 | value u16 | ttl i32 | text ...
//! answer:   slot u32 | kind u8 | pad [u8; 3]                  | text ...
//! ```
//!
//! `value` is how many bytes of value the answer may bring; a longer value is answered as a pinned
//! reference in the tray. The text of a `Line` is what the client sent, its data block included,
//! already found well-formed; the owner parses it again, which costs less than any second encoding
//! of a request would to maintain.
//!
//! Invariants:
//! - I1  Every request whose slot is not `NO_SLOT` is answered exactly once.
//! - I2  A record fits a ring twice: values in it are at most `INLINE_VALUE_BYTES_MAX`.

use kachel_net::SlotIndex;
use kachel_segment::INLINE_VALUE_BYTES_MAX;
use kachel_table::KeyHash;
use kachel_wire::request::{KEY_BYTES_MAX, LINE_BYTES_MAX, Request, Ttl};
use kachel_wire::{Parsed, parse};

use crate::engine::Wanted;
use crate::execute::{key_of, reads_value};
use crate::hash::KeyHasher;

/// The slot of a request that is not answered: a connection to take over.
const NO_SLOT: u32 = u32::MAX;
/// Bytes before the text of a request.
pub(crate) const REQUEST_HEAD_BYTES: usize = 12;
/// Bytes of the longest request: a line and an inline value.
pub(crate) const REQUEST_BYTES_MAX: usize =
    REQUEST_HEAD_BYTES + LINE_BYTES_MAX + INLINE_VALUE_BYTES_MAX + 2;
/// Bytes before the text of an answer.
pub(crate) const ANSWER_HEAD_BYTES: usize = 8;

/// Bytes of the longest answer: a reply line and an inline value.
pub(crate) const ANSWER_BYTES_MAX: usize =
    ANSWER_HEAD_BYTES + LINE_BYTES_MAX + INLINE_VALUE_BYTES_MAX + 2;

/// What a request record asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hop {
    /// A whole request; text: line and data block.
    Line,
    /// One key of a retrieval; text: the key.
    Key { with_cas: bool, ttl: Option<Ttl> },
    /// A storage request whose value lies in the tray; text: the line.
    Upload,
    /// Begin to count again from 0.
    ResetStats,
    /// A connection to take over; its socket lies in the tray.
    Adopt,
    /// Free memory for so many bytes (text: 8 bytes) of a large value.
    MakeRoom,
    /// List items from `cursor` (text: a cursor) on.
    Dump { keys_only: bool },
}

/// A request record, taken apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken<'r> {
    pub(crate) hop: Hop,
    pub(crate) reply: ReplyTo,
    /// The record behind its head.
    pub(crate) text: &'r [u8],
    /// What is asked for, and where its data block begins, when `text` is a line.
    pub(crate) request: Option<(Request<'r>, usize)>,
    /// The hash of the key that it is about, if any.
    pub(crate) hash: Option<KeyHash>,
}

impl<'r> Taken<'r> {
    /// Reads a record: a line is parsed again, its key hashed again.
    pub(crate) fn read(record: &'r [u8], hasher: &KeyHasher) -> Self {
        let (hop, reply, text) = Hop::parse(record);
        let mut taken = Self { hop, reply, text, request: None, hash: None };
        match hop {
            Hop::Key { .. } => taken.hash = Some(hasher.key_hash(text)),
            Hop::Line | Hop::Upload => {
                let Parsed::Request { request, line_bytes } = parse(text, 0) else {
                    unreachable!("a hop is a request that was found well-formed");
                };
                let mut space = [0; KEY_BYTES_MAX];
                taken.hash = Some(hasher.key_hash(key_of(&request, &mut space)));
                taken.request = Some((request, line_bytes));
            }
            Hop::ResetStats | Hop::Adopt | Hop::MakeRoom | Hop::Dump { .. } => {}
        }
        taken
    }

    /// What it will look at, if it is about a key.
    #[inline]
    pub(crate) fn wanted(&self) -> Option<Wanted> {
        // What is about a key and no line is a key of a retrieval.
        let value = self.request.as_ref().is_none_or(|(request, _)| reads_value(request));
        self.hash.map(|hash| Wanted { hash, value })
    }
}

/// Bytes of the longest answer to a request record.
pub(crate) fn answer_bytes_max(record: &[u8]) -> usize {
    match Hop::parse(record) {
        // Answered later, when there is room.
        (Hop::Dump { .. }, ..) => 0,
        (_, ReplyTo { slot: None, .. }, _) => 0,
        (_, ReplyTo { value_bytes, .. }, _) => {
            ANSWER_HEAD_BYTES + LINE_BYTES_MAX + usize::from(value_bytes) + 2
        }
    }
}

/// Where the answer of a hop goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReplyTo {
    /// The slot that waits for it; none when nobody does.
    pub(crate) slot: Option<SlotIndex>,
    /// Bytes of the longest value that it may bring.
    pub(crate) value_bytes: u16,
}

/// What an answer record brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The reply's text.
    Text,
    /// The reply's text, and behind it a large value that lies in the tray.
    TextAndValue,
    /// A piece of a listing; the text begins with the cursor to go on from.
    Dump,
}

const HAS_CAS: u8 = 1;
const HAS_TTL: u8 = 2;
const KEYS_ONLY: u8 = 1;

impl Hop {
    /// The head of a request record.
    pub(crate) fn head(self, reply: ReplyTo) -> [u8; REQUEST_HEAD_BYTES] {
        let (kind, flags, ttl) = match self {
            Self::Line => (0, 0, 0),
            Self::Key { with_cas, ttl } => {
                let flags = u8::from(with_cas) * HAS_CAS + u8::from(ttl.is_some()) * HAS_TTL;
                (1, flags, ttl.map_or(0, |ttl| ttl.0))
            }
            Self::Upload => (2, 0, 0),
            Self::ResetStats => (3, 0, 0),
            Self::Adopt => (4, 0, 0),
            Self::Dump { keys_only } => (5, u8::from(keys_only) * KEYS_ONLY, 0),
            Self::MakeRoom => (6, 0, 0),
        };
        let mut head = [0; REQUEST_HEAD_BYTES];
        let slot = reply.slot.map_or(NO_SLOT, |slot| slot.0);
        head[..4].copy_from_slice(&slot.to_le_bytes());
        head[4] = kind;
        head[5] = flags;
        head[6..8].copy_from_slice(&reply.value_bytes.to_le_bytes());
        head[8..12].copy_from_slice(&ttl.to_le_bytes());
        head
    }

    /// Takes a request record apart.
    ///
    /// Panics: on a record that no shard pushed, which is a bug.
    pub(crate) fn parse(record: &[u8]) -> (Self, ReplyTo, &[u8]) {
        let (head, text) =
            record.split_first_chunk::<REQUEST_HEAD_BYTES>().expect("a record has its head");
        let [s0, s1, s2, s3, kind, flags, v0, v1, t0, t1, t2, t3] = *head;
        let slot = u32::from_le_bytes([s0, s1, s2, s3]);
        let hop = match kind {
            0 => Self::Line,
            1 => Self::Key {
                with_cas: flags & HAS_CAS != 0,
                ttl: (flags & HAS_TTL != 0).then_some(Ttl(i32::from_le_bytes([t0, t1, t2, t3]))),
            },
            2 => Self::Upload,
            3 => Self::ResetStats,
            4 => Self::Adopt,
            5 => Self::Dump { keys_only: flags & KEYS_ONLY != 0 },
            6 => Self::MakeRoom,
            other => unreachable!("hop kind {other} is never pushed"),
        };
        let slot = (slot != NO_SLOT).then_some(SlotIndex(slot));
        (hop, ReplyTo { slot, value_bytes: u16::from_le_bytes([v0, v1]) }, text)
    }
}

impl Answer {
    /// The head of an answer record.
    pub(crate) fn head(self, slot: SlotIndex) -> [u8; ANSWER_HEAD_BYTES] {
        let [s0, s1, s2, s3] = slot.0.to_le_bytes();
        [s0, s1, s2, s3, self as u8, 0, 0, 0]
    }

    /// Takes an answer record apart.
    ///
    /// Panics: on a record that no shard pushed, which is a bug.
    pub(crate) fn parse(record: &[u8]) -> (Self, SlotIndex, &[u8]) {
        let (head, text) =
            record.split_first_chunk::<ANSWER_HEAD_BYTES>().expect("a record has its head");
        let [s0, s1, s2, s3, kind, ..] = *head;
        let answer = match kind {
            0 => Self::Text,
            1 => Self::TextAndValue,
            2 => Self::Dump,
            other => unreachable!("answer kind {other} is never pushed"),
        };
        (answer, SlotIndex(u32::from_le_bytes([s0, s1, s2, s3])), text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hop_survives_its_record() {
        let hops = [
            Hop::Line,
            Hop::Key { with_cas: true, ttl: None },
            Hop::Key { with_cas: false, ttl: Some(Ttl(-7)) },
            Hop::Upload,
            Hop::Adopt,
            Hop::MakeRoom,
            Hop::ResetStats,
            Hop::Dump { keys_only: true },
        ];
        for hop in hops {
            for slot in [None, Some(SlotIndex(9))] {
                let reply = ReplyTo { slot, value_bytes: 700 };
                let mut record = hop.head(reply).to_vec();
                record.extend_from_slice(b"text");
                assert_eq!(Hop::parse(&record), (hop, reply, &b"text"[..]));
            }
        }
        for answer in [Answer::Text, Answer::TextAndValue, Answer::Dump] {
            let mut record = answer.head(SlotIndex(5)).to_vec();
            record.extend_from_slice(b"text");
            assert_eq!(Answer::parse(&record), (answer, SlotIndex(5), &b"text"[..]));
        }
    }
}

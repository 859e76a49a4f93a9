//! The records of the rings: requests that another shard owns, and their answers.
//!
//! Upstream:   `send` makes a record of each request to another shard, and of each answer.
//! Downstream: the owner executes a request as if its own client had sent it, and sends the
//!             formatted reply back.
//!
//! ```text
//! request:  secret hash u64 | slot u32 | ttl i32 | value u16 | partition u16 |
//!           key start u16 | key bytes u8 | kind, flags u8 | text ...
//! answer:   slot u32 | kind u8 | pad [u8; 3] | text ...
//! ```
//!
//! `value` is the length of the longest value that the answer may contain. A longer value is pinned
//! and passed through the side queue. The text of a `Line` is the line that the client sent and its
//! data block. The shard that received them has checked that they are well-formed. The owner parses
//! the terms of the line again, because a second encoding of requests would cost more to maintain.
//! It does not parse or hash the key again: the head contains the hashes of the key and its place
//! in the text. A key that was decoded from base64 is appended after the text.
//!
//! Invariants:
//! - I1  Every request whose slot is not `NO_SLOT` is answered exactly once.
//! - I2  Every ring has room for two of the longest records, because a value in a record has at
//!   most `INLINE_VALUE_BYTES_MAX` bytes.
//! - I3  The owner neither parses nor hashes a key: the shard that received the request has done
//!   both.

use kachel_engine::{INLINE_VALUE_BYTES_MAX, Key, KeyHashes};
use kachel_net::{EndpointIndex, SlotIndex};
use kachel_wire::request::{KEY_BYTES_MAX, LINE_BYTES_MAX, Ttl};

use crate::apply::ReadTerms;

/// Stands for the slot of a request that is not answered. Only [`Hop::Adopt`] is not.
const NO_SLOT: u32 = u32::MAX;
/// Bytes before the text of a request.
pub(crate) const REQUEST_HEAD_BYTES: usize = 24;
/// Bytes of the longest request: a line, an inline value, and a decoded key.
pub(crate) const REQUEST_BYTES_MAX: usize =
    REQUEST_HEAD_BYTES + LINE_BYTES_MAX + INLINE_VALUE_BYTES_MAX + 2 + KEY_BYTES_MAX;

// A record gives the key's place in 16 bits.
const _: () = assert!(REQUEST_BYTES_MAX <= u16::MAX as usize);

/// Bytes before the text of an answer.
pub(crate) const ANSWER_HEAD_BYTES: usize = 8;

/// Bytes of the longest answer: a reply line and an inline value.
pub(crate) const ANSWER_BYTES_MAX: usize =
    ANSWER_HEAD_BYTES + LINE_BYTES_MAX + INLINE_VALUE_BYTES_MAX + 2;

/// What a request record asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hop {
    /// A whole request. The text is its line and its data block.
    Line,
    /// One key of a retrieval. The text is the key.
    Key(ReadTerms),
    /// A storage request whose value is in the side queue. The text is its line.
    Upload,
    /// Take over a connection that a client made to this endpoint. Its socket is in the side queue.
    Adopt(EndpointIndex),
    /// Free memory for a large value. The text is the number of bytes, in 8 bytes.
    MakeRoom,
    /// List items from a cursor on. The text is the cursor.
    Dump { keys_only: bool },
}

/// Bytes of the longest answer to a request record.
pub(crate) fn answer_bytes_max(record: &[u8]) -> usize {
    match Head::parse(record) {
        // Answered later, when there is room.
        Head { hop: Hop::Dump { .. }, .. } => 0,
        Head { reply: ReplyTo { slot: None, .. }, .. } => 0,
        Head { reply: ReplyTo { value_bytes, .. }, .. } => {
            ANSWER_HEAD_BYTES + LINE_BYTES_MAX + usize::from(value_bytes) + 2
        }
    }
}

/// Where the answer of a hop goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReplyTo {
    /// The slot that waits for the answer, if there is one.
    pub(crate) slot: Option<SlotIndex>,
    /// Bytes of the longest value that the answer may contain.
    pub(crate) value_bytes: u16,
}

/// The kind of an answer record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The reply's text.
    Text,
    /// The reply's text. A large value follows it, which is in the side queue.
    TextAndValue,
    /// A piece of a listing; the text begins with the cursor to go on from.
    Dump,
}

/// Flags of a request record, above its kind in the same byte.
const HAS_CAS: u8 = 1 << 4;
const HAS_TTL: u8 = 1 << 5;
const KEYS_ONLY: u8 = 1 << 4;
/// The bits of the kind.
const KIND: u8 = HAS_CAS - 1;

/// The place of the key in a request record, and the hashes of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HopKey {
    hashes: KeyHashes,
    /// Where the key begins in the text.
    start: u16,
    bytes: u8,
}

impl HopKey {
    /// Finds the place of `key` in `text`. If `key` is not a part of `text`, its place is after the
    /// text. Also returns the bytes that must be added after the text.
    #[inline]
    pub(crate) fn place<'k>(key: Key<'k>, text: &[u8]) -> (Self, &'k [u8]) {
        let bytes = key.bytes();
        let offset = bytes.as_ptr().addr().wrapping_sub(text.as_ptr().addr());
        let is_inside = offset.checked_add(bytes.len()).is_some_and(|end| end <= text.len());
        let (start, added): (_, &[u8]) =
            if is_inside { (offset, b"") } else { (text.len(), bytes) };
        let key = Self {
            hashes: key.hashes(),
            start: u16::try_from(start).expect("a record is short"),
            bytes: u8::try_from(bytes.len()).expect("a key is short"),
        };
        (key, added)
    }
}

/// The parsed head of a request record, and the text after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head<'r> {
    pub(crate) hop: Hop,
    pub(crate) reply: ReplyTo,
    pub(crate) key: Option<Key<'r>>,
    pub(crate) text: &'r [u8],
}

impl<'r> Head<'r> {
    /// Parses a request record.
    ///
    /// Panics: on a record that no shard pushed, which is a bug.
    #[inline(always)]
    pub(crate) fn parse(record: &'r [u8]) -> Self {
        let (head, text) =
            record.split_first_chunk::<REQUEST_HEAD_BYTES>().expect("a record has its head");
        let [h0, h1, h2, h3, h4, h5, h6, h7, s0, s1, s2, s3, t0, t1, t2, t3, rest @ ..] = *head;
        let [v0, v1, p0, p1, k0, k1, key_bytes, kind_and_flags] = rest;
        let word = u32::from_le_bytes([t0, t1, t2, t3]);
        let hop = Hop::from_parts(kind_and_flags & KIND, kind_and_flags & !KIND, word);
        let slot = u32::from_le_bytes([s0, s1, s2, s3]);
        let slot = (slot != NO_SLOT).then_some(SlotIndex(slot));
        let reply = ReplyTo { slot, value_bytes: u16::from_le_bytes([v0, v1]) };
        let hashes = KeyHashes {
            secret: u64::from_le_bytes([h0, h1, h2, h3, h4, h5, h6, h7]),
            partition: u16::from_le_bytes([p0, p1]),
        };
        let start = usize::from(u16::from_le_bytes([k0, k1]));
        let key = (key_bytes > 0)
            .then(|| Key::hashed(&text[start..start + usize::from(key_bytes)], hashes));
        Self { hop, reply, key, text }
    }
}

impl Hop {
    /// The head of a request record.
    #[inline]
    pub(crate) fn head(self, reply: ReplyTo, key: Option<HopKey>) -> [u8; REQUEST_HEAD_BYTES] {
        let (kind, flags, word) = self.to_parts();
        debug_assert!(kind & !KIND == 0 && flags & KIND == 0);
        let none = KeyHashes { secret: 0, partition: 0 };
        let key = key.unwrap_or(HopKey { hashes: none, start: 0, bytes: 0 });
        let slot = reply.slot.map_or(NO_SLOT, |slot| slot.0);
        let mut head = [0; REQUEST_HEAD_BYTES];
        head[..8].copy_from_slice(&key.hashes.secret.to_le_bytes());
        head[8..12].copy_from_slice(&slot.to_le_bytes());
        head[12..16].copy_from_slice(&word.to_le_bytes());
        head[16..18].copy_from_slice(&reply.value_bytes.to_le_bytes());
        head[18..20].copy_from_slice(&key.hashes.partition.to_le_bytes());
        head[20..22].copy_from_slice(&key.start.to_le_bytes());
        head[22] = key.bytes;
        head[23] = kind | flags;
        head
    }

    /// The kind, the flags, and a word: a TTL or an endpoint.
    #[inline]
    fn to_parts(self) -> (u8, u8, u32) {
        match self {
            Self::Line => (0, 0, 0),
            Self::Key(ReadTerms { with_cas, ttl }) => {
                let flags = u8::from(with_cas) * HAS_CAS + u8::from(ttl.is_some()) * HAS_TTL;
                (1, flags, ttl.map_or(0, |ttl| ttl.0.cast_unsigned()))
            }
            Self::Upload => (2, 0, 0),
            Self::Adopt(endpoint) => (3, 0, endpoint.0.into()),
            Self::Dump { keys_only } => (4, u8::from(keys_only) * KEYS_ONLY, 0),
            Self::MakeRoom => (5, 0, 0),
        }
    }

    #[inline]
    fn from_parts(kind: u8, flags: u8, word: u32) -> Self {
        match kind {
            0 => Self::Line,
            1 => Self::Key(ReadTerms {
                with_cas: flags & HAS_CAS != 0,
                ttl: (flags & HAS_TTL != 0).then_some(Ttl(word.cast_signed())),
            }),
            2 => Self::Upload,
            3 => Self::Adopt(EndpointIndex(
                u16::try_from(word).expect("an endpoint is numbered in 16 bits"),
            )),
            4 => Self::Dump { keys_only: flags & KEYS_ONLY != 0 },
            5 => Self::MakeRoom,
            other => unreachable!("hop kind {other} is never pushed"),
        }
    }
}

impl Answer {
    /// The head of an answer record.
    pub(crate) fn head(self, slot: SlotIndex) -> [u8; ANSWER_HEAD_BYTES] {
        let [s0, s1, s2, s3] = slot.0.to_le_bytes();
        [s0, s1, s2, s3, self as u8, 0, 0, 0]
    }

    /// Parses an answer record.
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
    use kachel_engine::{KeyHasher, Seeds};

    use super::*;

    #[test]
    fn every_hop_survives_its_record() {
        let hops = [
            Hop::Line,
            Hop::Key(ReadTerms { with_cas: true, ttl: None }),
            Hop::Key(ReadTerms { with_cas: false, ttl: Some(Ttl(-7)) }),
            Hop::Upload,
            Hop::Adopt(EndpointIndex(300)),
            Hop::MakeRoom,
            Hop::Dump { keys_only: true },
        ];
        let hasher = KeyHasher::new(Seeds { hash_keys: [1, 2] }, 3);
        let text = b"touch a-key 7\r\n";
        let (inside, outside) = (hasher.key(&text[6..11]), hasher.key(b"decoded"));
        for (hop, key) in
            hops.into_iter().zip([None, Some(inside), Some(outside)].into_iter().cycle())
        {
            for slot in [None, Some(SlotIndex(9))] {
                let reply = ReplyTo { slot, value_bytes: 700 };
                let (place, added) = key.map(|key| HopKey::place(key, text)).unzip();
                let mut record = hop.head(reply, place).to_vec();
                record.extend_from_slice(text);
                record.extend_from_slice(added.unwrap_or_default());
                let head = Head::parse(&record);
                assert_eq!((head.hop, head.reply, head.key), (hop, reply, key));
                assert!(head.text.starts_with(text));
            }
        }
        for answer in [Answer::Text, Answer::TextAndValue, Answer::Dump] {
            let mut record = answer.head(SlotIndex(5)).to_vec();
            record.extend_from_slice(b"text");
            assert_eq!(Answer::parse(&record), (answer, SlotIndex(5), &b"text"[..]));
        }
    }
}

//! The records of the log: what each change of an item writes, and how a start reads it.
//!
//! Upstream:   `store` and `writing` write a record for each change; `collecting` copies records.
//! Downstream: `replay` reads them at a start, `fetches` when an item is not in memory.
//!
//! ```text
//! byte 0       1       2            3..8                  8      16       20       24     24 + key
//!      +-------+-------+------------+---------------------+------+--------+--------+------+------
//! item | format| marks | key length | 0 | client flags    | CAS  | expiry | stored | key  | value
//!      +-------+-------+------------+---------------------+------+--------+--------+------+------
//! life | format| marks | key length | 0 | expiry          | key
//!      +-------+-------+------------+---------------------+
//! grave| format| 0     | key length | 0 | 0               | sequence | key
//!      +-------+-------+------------+---------------------+----------+
//! part | format| 0     | key length | 0 | place           | value id | key | bytes of the value
//!      +-------+-------+------------+---------------------+----------+
//! flush| format| 0     | length     | 0 | delimiter       | number | sequence | prefix
//!      +-------+-------+------------+---------------------+--------+----------+
//! ```
//!
//! The delimiter of a prefix is 256 and the byte, or 0 if there is none.
//!
//! A value that is too long for a record is in parts, which are written before the item. The record
//! of such an item has the value's id, its length and the number of its parts in place of the
//! value. So parts and item can be copied one without the other, in any order.
//!
//! Numbers are little-endian. Expiry (0: never) and the second of the store are Unix times, so they
//! keep their meaning over a restart. The head of a record, which is the log's, has the flush
//! epoch.
//!
//! Invariants, cited by number where they are asserted:
//! - R1  A record that this version has not written is refused, whatever its bytes are.

use std::fmt;

use kachel_stdx::BytePrefix;

/// The format that this version writes, and the only one that it reads.
const FORMAT: u8 = 1;

/// The kind of a record with a whole item.
pub(crate) const ITEM: u8 = 1;
/// The kind of a record that gives an item another life: expiry and marks.
pub(crate) const LIFE: u8 = 2;
/// The kind of a record that says that there is no item.
pub(crate) const GRAVE: u8 = 3;
/// The kind of a record that notes up to which number tokens may have been given out.
pub(crate) const TOKENS: u8 = 4;

/// The kind of a record with an item whose value is in parts.
pub(crate) const LARGE_ITEM: u8 = 5;
/// The kind of a record with a part of a value.
pub(crate) const PART: u8 = 6;

/// The kind of a record that says that a prefix was flushed.
pub(crate) const PREFIX_FLUSH: u8 = 7;

/// The bytes of an item record before its key.
pub(crate) const ITEM_HEAD_BYTES: usize = 24;
const LIFE_HEAD_BYTES: usize = 8;
const GRAVE_HEAD_BYTES: usize = 16;
const TOKENS_BYTES: usize = 16;
/// What the record of a large item has in place of the value.
pub(crate) const LARGE_BYTES: usize = 20;
pub(crate) const PART_HEAD_BYTES: usize = 16;
const PREFIX_FLUSH_HEAD_BYTES: usize = 24;
/// Set in the word of the delimiter if there is one.
const BOUNDED: u32 = 1 << 8;

/// The most bytes of a record without a value.
pub(crate) const SHORT_BYTES_MAX: usize =
    ITEM_HEAD_BYTES + kachel_engine::KEY_BYTES_MAX + LARGE_BYTES;

const STALE: u8 = 1;
const WIN_SENT: u8 = 1 << 1;
const REMNANT: u8 = 1 << 2;
const PROTOCOL_MARK: u8 = 1 << 3;
const ALL_MARKS: u8 = STALE | WIN_SENT | REMNANT | PROTOCOL_MARK;

/// The marks of an item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks(u8);

impl Marks {
    pub(crate) const fn of(stale: bool, win_sent: bool, remnant: bool, protocol: bool) -> Self {
        let mut marks = 0;
        if stale {
            marks |= STALE;
        }
        if win_sent {
            marks |= WIN_SENT;
        }
        if remnant {
            marks |= REMNANT;
        }
        if protocol {
            marks |= PROTOCOL_MARK;
        }
        Self(marks)
    }

    pub(crate) const fn with_win(self, win_sent: bool) -> Self {
        if win_sent { Self(self.0 | WIN_SENT) } else { self }
    }

    pub(crate) const fn stale(self) -> bool {
        self.0 & STALE != 0
    }

    pub(crate) const fn win_sent(self) -> bool {
        self.0 & WIN_SENT != 0
    }

    pub(crate) const fn remnant(self) -> bool {
        self.0 & REMNANT != 0
    }

    pub(crate) const fn protocol(self) -> bool {
        self.0 & PROTOCOL_MARK != 0
    }
}

/// What is known about an item beside its key and its value. Seconds are Unix times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ItemHead {
    pub(crate) marks: Marks,
    pub(crate) client_flags: u32,
    pub(crate) cas: u64,
    /// 0: never.
    pub(crate) expiry_unix_s: u32,
    pub(crate) stored_unix_s: u32,
}

/// Bytes that are no record of this version (R1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ForeignRecord;

impl fmt::Display for ForeignRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a record is not one of this version")
    }
}

/// A decoded record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record<'r> {
    /// An item.
    Item { key: &'r [u8], head: ItemHead, value: &'r [u8] },
    /// The item has this expiry and these marks from now on.
    Life { key: &'r [u8], expiry_unix_s: u32, marks: Marks },
    /// The item is gone that was stored before this sequence. 0: before this record.
    Grave { key: &'r [u8], sequence: u64 },
    /// Tokens up to this one may have been given out.
    Tokens(u64),
    /// An item whose value is in parts.
    LargeItem { key: &'r [u8], head: ItemHead, value: LargeValue },
    /// The items whose keys the prefix takes are gone that were stored before this sequence. 0:
    /// before this record.
    PrefixFlush { number: u64, sequence: u64, prefix: BytePrefix<'r> },
    /// A part of a value.
    Part { key: &'r [u8], value_id: u64, place: u32, bytes: &'r [u8] },
}

/// A value that is in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LargeValue {
    /// A number that no other value of the log has.
    pub(crate) id: u64,
    /// Its length.
    pub(crate) bytes: u64,
    /// The number of its parts.
    pub(crate) parts: u32,
}

impl LargeValue {
    /// What a record has in place of the value.
    pub(crate) fn to_bytes(self) -> [u8; LARGE_BYTES] {
        let mut bytes = [0; LARGE_BYTES];
        bytes[..8].copy_from_slice(&self.id.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[16..].copy_from_slice(&self.parts.to_le_bytes());
        bytes
    }
}

fn start(key: &[u8], marks: Marks, word: u32) -> [u8; 8] {
    let key_bytes = u8::try_from(key.len()).expect("a key has at most 250 bytes");
    let [w0, w1, w2, w3] = word.to_le_bytes();
    [FORMAT, marks.0, key_bytes, 0, w0, w1, w2, w3]
}

/// The bytes of an item record before its key.
pub(crate) fn item_head(key: &[u8], head: &ItemHead) -> [u8; ITEM_HEAD_BYTES] {
    let mut bytes = [0; ITEM_HEAD_BYTES];
    bytes[..8].copy_from_slice(&start(key, head.marks, head.client_flags));
    bytes[8..16].copy_from_slice(&head.cas.to_le_bytes());
    bytes[16..20].copy_from_slice(&head.expiry_unix_s.to_le_bytes());
    bytes[20..].copy_from_slice(&head.stored_unix_s.to_le_bytes());
    bytes
}

/// The bytes of a life record before its key.
pub(crate) fn life_head(key: &[u8], expiry_unix_s: u32, marks: Marks) -> [u8; LIFE_HEAD_BYTES] {
    start(key, marks, expiry_unix_s)
}

/// The bytes of a grave before its key.
pub(crate) fn grave_head(key: &[u8], sequence: u64) -> [u8; GRAVE_HEAD_BYTES] {
    let mut bytes = [0; GRAVE_HEAD_BYTES];
    bytes[..8].copy_from_slice(&start(key, Marks::default(), 0));
    bytes[8..].copy_from_slice(&sequence.to_le_bytes());
    bytes
}

/// The bytes of a part before its key.
pub(crate) fn part_head(key: &[u8], value_id: u64, place: u32) -> [u8; PART_HEAD_BYTES] {
    let mut bytes = [0; PART_HEAD_BYTES];
    bytes[..8].copy_from_slice(&start(key, Marks::default(), place));
    bytes[8..].copy_from_slice(&value_id.to_le_bytes());
    bytes
}

/// The bytes of the flush of a prefix before those of the prefix.
pub(crate) fn prefix_flush_head(
    number: u64,
    sequence: u64,
    prefix: &BytePrefix<'_>,
) -> [u8; PREFIX_FLUSH_HEAD_BYTES] {
    let word = prefix.delimiter().map_or(0, |delimiter| BOUNDED | u32::from(delimiter));
    let mut bytes = [0; PREFIX_FLUSH_HEAD_BYTES];
    bytes[..8].copy_from_slice(&start(prefix.bytes(), Marks::default(), word));
    bytes[8..16].copy_from_slice(&number.to_le_bytes());
    bytes[16..].copy_from_slice(&sequence.to_le_bytes());
    bytes
}

/// The bytes of a note about tokens.
pub(crate) fn tokens_note(reserved: u64) -> [u8; TOKENS_BYTES] {
    let mut bytes = [0; TOKENS_BYTES];
    bytes[..8].copy_from_slice(&start(&[], Marks::default(), 0));
    bytes[8..].copy_from_slice(&reserved.to_le_bytes());
    bytes
}

fn word_32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn word_64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Reads a record.
///
/// Errors: it is not one of this version (R1).
pub(crate) fn read(kind: u8, bytes: &[u8]) -> Result<Record<'_>, ForeignRecord> {
    read_known(kind, bytes).ok_or(ForeignRecord)
}

fn read_known(kind: u8, bytes: &[u8]) -> Option<Record<'_>> {
    let [FORMAT, marks, key_bytes, 0, ..] = *bytes else { return None };
    if marks & !ALL_MARKS != 0 {
        return None;
    }
    let (marks, word) = (Marks(marks), word_32(bytes, 4)?);
    let rest = |head_bytes: usize| {
        let (key, rest) = bytes.get(head_bytes..)?.split_at_checked(key_bytes.into())?;
        (!key.is_empty()).then_some((key, rest))
    };
    match kind {
        ITEM | LARGE_ITEM => {
            let (key, value) = rest(ITEM_HEAD_BYTES)?;
            let head = ItemHead {
                marks,
                client_flags: word,
                cas: word_64(bytes, 8)?,
                expiry_unix_s: word_32(bytes, 16)?,
                stored_unix_s: word_32(bytes, 20)?,
            };
            if kind == ITEM {
                return Some(Record::Item { key, head, value });
            }
            let (id, bytes, parts) = (word_64(value, 0)?, word_64(value, 8)?, word_32(value, 16)?);
            let large = LargeValue { id, bytes, parts };
            (value.len() == LARGE_BYTES).then_some(Record::LargeItem { key, head, value: large })
        }
        PART if marks == Marks::default() => {
            let (key, part) = rest(PART_HEAD_BYTES)?;
            Some(Record::Part { key, value_id: word_64(bytes, 8)?, place: word, bytes: part })
        }
        LIFE => {
            let (key, []) = rest(LIFE_HEAD_BYTES)? else { return None };
            Some(Record::Life { key, expiry_unix_s: word, marks })
        }
        GRAVE if marks == Marks::default() && word == 0 => {
            let (key, []) = rest(GRAVE_HEAD_BYTES)? else { return None };
            Some(Record::Grave { key, sequence: word_64(bytes, 8)? })
        }
        PREFIX_FLUSH if marks == Marks::default() => {
            let (bytes_of_prefix, []) = rest(PREFIX_FLUSH_HEAD_BYTES)? else { return None };
            let prefix = match word {
                0 => BytePrefix::of_bytes(bytes_of_prefix)?,
                _ => BytePrefix::of_name(bytes_of_prefix, word as u8)?,
            };
            let (number, sequence) = (word_64(bytes, 8)?, word_64(bytes, 16)?);
            let is_same =
                prefix_flush_head(number, sequence, &prefix) == bytes[..PREFIX_FLUSH_HEAD_BYTES];
            is_same.then_some(Record::PrefixFlush { number, sequence, prefix })
        }
        TOKENS if (key_bytes, marks, word) == (0, Marks::default(), 0) => {
            (bytes.len() == TOKENS_BYTES).then_some(Record::Tokens(word_64(bytes, 8)?))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: ItemHead = ItemHead {
        marks: Marks(STALE | REMNANT),
        client_flags: 0x0102_0304,
        cas: 0x0506_0708_090a_0b0c,
        expiry_unix_s: 1_800_000_000,
        stored_unix_s: 1_700_000_000,
    };

    #[test]
    fn records_are_read_as_they_were_written() {
        for marks in 0..=ALL_MARKS {
            let head = ItemHead { marks: Marks(marks), ..HEAD };
            for value in [&b""[..], b"value"] {
                let bytes = [&item_head(b"key", &head)[..], b"key", value].concat();
                assert_eq!(read(ITEM, &bytes), Ok(Record::Item { key: b"key", head, value }));
            }
            let marks = Marks(marks);
            let bytes = [&life_head(b"key", 7, marks)[..], b"key"].concat();
            let life = Record::Life { key: b"key", expiry_unix_s: 7, marks };
            assert_eq!(read(LIFE, &bytes), Ok(life));
        }
        let large = LargeValue { id: 1 << 50, bytes: u64::MAX, parts: 7 };
        let bytes = [&item_head(b"key", &HEAD)[..], b"key", &large.to_bytes()].concat();
        let item = Record::LargeItem { key: b"key", head: HEAD, value: large };
        assert_eq!(read(LARGE_ITEM, &bytes), Ok(item));
        let bytes = [&part_head(b"key", 1 << 50, 7)[..], b"key", b"part"].concat();
        let part = Record::Part { key: b"key", value_id: 1 << 50, place: 7, bytes: b"part" };
        assert_eq!(read(PART, &bytes), Ok(part));
        let bytes = [&grave_head(b"key", u64::MAX)[..], b"key"].concat();
        assert_eq!(read(GRAVE, &bytes), Ok(Record::Grave { key: b"key", sequence: u64::MAX }));
        for prefix in [BytePrefix::of_bytes(b"a:"), BytePrefix::of_name(b"a", b':')] {
            let prefix = prefix.expect("a prefix");
            let bytes = [&prefix_flush_head(7, 9, &prefix)[..], prefix.bytes()].concat();
            let flush = Record::PrefixFlush { number: 7, sequence: 9, prefix };
            assert_eq!(read(PREFIX_FLUSH, &bytes), Ok(flush));
        }
        assert_eq!(read(TOKENS, &tokens_note(1 << 40)), Ok(Record::Tokens(1 << 40)));
    }

    #[test]
    fn other_bytes_are_refused() {
        let key = &b"key"[..];
        let prefix = BytePrefix::of_name(key, b':').expect("a name");
        let records = [
            (ITEM, [&item_head(key, &HEAD)[..], key].concat()),
            (LIFE, [&life_head(key, 7, Marks(STALE))[..], key].concat()),
            (GRAVE, [&grave_head(key, 9)[..], key].concat()),
            (TOKENS, tokens_note(5).to_vec()),
            (LARGE_ITEM, [&item_head(key, &HEAD)[..], key, &[7; LARGE_BYTES]].concat()),
            (PART, [&part_head(key, 9, 1)[..], key].concat()),
            (PREFIX_FLUSH, [&prefix_flush_head(7, 9, &prefix)[..], key].concat()),
        ];
        for (kind, whole) in records {
            for length in 0..whole.len() {
                assert_eq!(read(kind, &whole[..length]), Err(ForeignRecord), "R1: {length} bytes");
            }
            let mut changed = whole.clone();
            for (at, byte) in [(0, 0), (0, 2), (1, 0x10), (1, 0x80), (3, 1)] {
                changed.copy_from_slice(&whole);
                changed[at] = byte;
                assert_eq!(read(kind, &changed), Err(ForeignRecord), "R1: byte {at} is {byte}");
            }
            if kind != ITEM && kind != PART {
                let longer = [&whole[..], b"x"].concat();
                assert_eq!(read(kind, &longer), Err(ForeignRecord), "R1: a byte more");
            }
            assert_eq!(read(9, &whole), Err(ForeignRecord), "R1: an unknown kind");
        }
    }
}

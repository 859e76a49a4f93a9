//! The bytes of an item in a database.
//!
//! Upstream:   the engine, for each item that it stores.
//! Downstream: the same engine, which reads them; `filter`, which only looks at the header.
//!
//! ```text
//! byte  0       1       2         3      4        8    16      20      24     28
//!      +-------+-------+---------+------+--------+----+-------+-------+------+-------
//!      | format| codec | checksum| marks| client | CAS| expiry| stored| flush| value
//!      |       |       |         |      | flags  |    |       |       | epoch|
//!      +-------+-------+---------+------+--------+----+-------+-------+------+-------
//! ```
//!
//! All numbers are little-endian. Codec 0 is none. Checksum 0 is none of ours, because RocksDB has
//! one for each block and each batch. Expiry (0: never) and the second of the store are Unix times,
//! so they keep their meaning over a restart.
//!
//! Invariants:
//! - R1  A record that this version has not written is refused, whatever its bytes are.

use std::fmt;

/// Bytes before the value.
pub(crate) const HEADER_BYTES: usize = 28;
/// The format that this version writes, and the only one that it reads.
const FORMAT: u8 = 1;
/// The key of an engine's note. No item has an empty key, and no range of keys begins with it.
pub(crate) const NOTE_KEY: &[u8] = b"";

const STALE: u8 = 1;
const WIN_SENT: u8 = 1 << 1;
const REMNANT: u8 = 1 << 2;
const PROTOCOL_MARK: u8 = 1 << 3;
const ALL_MARKS: u8 = STALE | WIN_SENT | REMNANT | PROTOCOL_MARK;

/// What is known about an item beside its key and its value. Seconds are Unix times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) client_flags: u32,
    pub(crate) cas: u64,
    /// 0: never.
    pub(crate) expiry_unix_s: u32,
    pub(crate) stored_unix_s: u32,
    pub(crate) epoch: u32,
    pub(crate) stale: bool,
    pub(crate) win_sent: bool,
    pub(crate) remnant: bool,
    pub(crate) protocol_mark: bool,
}

/// Bytes that are no record of this version (R1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ForeignRecord;

impl fmt::Display for ForeignRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a record is damaged, or of another version")
    }
}

impl Header {
    /// The bytes before the value.
    pub(crate) fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let mark = |is_set, mark| if is_set { mark } else { 0 };
        bytes[0] = FORMAT;
        bytes[3] = mark(self.stale, STALE)
            | mark(self.win_sent, WIN_SENT)
            | mark(self.remnant, REMNANT)
            | mark(self.protocol_mark, PROTOCOL_MARK);
        bytes[4..8].copy_from_slice(&self.client_flags.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.cas.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.expiry_unix_s.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.stored_unix_s.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.epoch.to_le_bytes());
        bytes
    }

    /// The header of a record, and the value behind it (R1).
    pub(crate) fn of_record(record: &[u8]) -> Result<(Self, &[u8]), ForeignRecord> {
        let (bytes, value) = record.split_first_chunk::<HEADER_BYTES>().ok_or(ForeignRecord)?;
        let [FORMAT, 0, 0, marks] = bytes[..4] else { return Err(ForeignRecord) };
        if marks & !ALL_MARKS != 0 {
            return Err(ForeignRecord);
        }
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let header = Self {
            client_flags: word(4),
            cas: u64::from(word(12)) << 32 | u64::from(word(8)),
            expiry_unix_s: word(16),
            stored_unix_s: word(20),
            epoch: word(24),
            stale: marks & STALE != 0,
            win_sent: marks & WIN_SENT != 0,
            remnant: marks & REMNANT != 0,
            protocol_mark: marks & PROTOCOL_MARK != 0,
        };
        Ok((header, value))
    }
}

/// What an engine notes about itself in its database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Note {
    /// Tokens up to this number may have been given out.
    pub(crate) tokens: u64,
    /// No item was stored in a later flush epoch.
    pub(crate) epoch: u32,
    /// The database has all flushes of prefixes up to this number.
    pub(crate) prefix: u64,
}

/// Bytes of a note: the format, and its numbers in their order.
pub(crate) const NOTE_BYTES: usize = 21;

impl Note {
    pub(crate) fn to_bytes(self) -> [u8; NOTE_BYTES] {
        let mut bytes = [FORMAT; NOTE_BYTES];
        bytes[1..9].copy_from_slice(&self.tokens.to_le_bytes());
        bytes[9..13].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[13..].copy_from_slice(&self.prefix.to_le_bytes());
        bytes
    }

    /// The note of these bytes (R1).
    pub(crate) fn of_bytes(bytes: &[u8]) -> Result<Self, ForeignRecord> {
        let bytes: &[u8; NOTE_BYTES] = bytes.try_into().map_err(|_| ForeignRecord)?;
        if bytes[0] != FORMAT {
            return Err(ForeignRecord);
        }
        let tokens = u64::from_le_bytes(bytes[1..9].try_into().expect("8 bytes"));
        let epoch = u32::from_le_bytes(bytes[9..13].try_into().expect("4 bytes"));
        let prefix = u64::from_le_bytes(bytes[13..].try_into().expect("8 bytes"));
        Ok(Self { tokens, epoch, prefix })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Header = Header {
        client_flags: 0x0102_0304,
        cas: 0x0506_0708_090a_0b0c,
        expiry_unix_s: 1_800_000_000,
        stored_unix_s: 1_700_000_000,
        epoch: u32::MAX,
        stale: true,
        win_sent: false,
        remnant: true,
        protocol_mark: false,
    };

    #[test]
    fn a_header_is_read_as_it_was_written() {
        for marks in 0..16_u8 {
            let is_set = |bit: u8| marks & 1 << bit != 0;
            let header = Header {
                stale: is_set(0),
                win_sent: is_set(1),
                remnant: is_set(2),
                protocol_mark: is_set(3),
                ..HEADER
            };
            let record = [&header.to_bytes()[..], b"value"].concat();
            assert_eq!(Header::of_record(&record), Ok((header, &b"value"[..])));
        }
        let note = Note { tokens: 1 << 40, epoch: u32::MAX - 1, prefix: 1 << 50 };
        assert_eq!(Note::of_bytes(&note.to_bytes()), Ok(note));
    }

    #[test]
    fn other_bytes_are_refused() {
        let whole = HEADER.to_bytes();
        for length in 0..HEADER_BYTES {
            assert_eq!(Header::of_record(&whole[..length]), Err(ForeignRecord), "{length} bytes");
        }
        for (at, byte) in [(0, 0), (0, 2), (1, 1), (2, 1), (3, 0x10), (3, 0x80)] {
            let mut changed = whole;
            changed[at] = byte;
            assert_eq!(Header::of_record(&changed), Err(ForeignRecord), "byte {at} is {byte}");
        }
        for note in [&[][..], &[1; NOTE_BYTES - 1], &[1; NOTE_BYTES + 1], &[2; NOTE_BYTES]] {
            assert_eq!(Note::of_bytes(note), Err(ForeignRecord));
        }
    }
}

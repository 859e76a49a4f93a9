//! The head of a memory file: which server wrote it, when, and how much follows.
//!
//! Upstream:   `kachel` writes it last, when all blocks are written, and reads it first.
//! Downstream: nothing.
//!
//! ```text
//! byte 0                16        20   24        32           40           48
//!      +----------------+---------+----+---------+------------+------------+
//!      | MAGIC          | version | 0  | file id | file bytes | items      |
//!      +----------------+---------+----+---------+------------+------------+
//! byte 48       52       56            64            72           80                  4088
//!      +--------+--------+-------------+-------------+------------+--------- ... ---+------+
//!      | blocks | second | Unix second | CAS token   | flush due  | 0               | hash |
//!      +--------+--------+-------------+-------------+------------+--------- ... ---+------+
//! ```
//!
//! All numbers are little-endian. The hash is rapidhash v3 over the bytes before it.

use std::fmt;

/// Bytes of the head. It is a page of its own, so that the blocks can be written before it.
pub const HEAD_BYTES: usize = 4096;

/// The version of the format that this code reads and writes.
pub(crate) const FILE_VERSION: u32 = 1;

/// The greatest CAS token that a file may name. Twice as many are left for the next servers.
pub(crate) const CAS_MAX: u64 = u64::MAX / 4;

/// The fewest bytes of an item: 14 of its own, and a key of one byte (`block` has the layout).
pub(super) const ITEM_BYTES_LEAST: u64 = 15;

const MAGIC: &[u8; 16] = b"kachel memory\r\n\0";
const HASH_START: usize = HEAD_BYTES - 8;

/// The facts in the head of a memory file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileHead {
    /// A random number that each block of the file repeats.
    pub file_id: u64,
    /// Bytes of the whole file.
    pub file_bytes: u64,
    /// The number of items.
    pub items: u64,
    /// The number of blocks.
    pub blocks: u32,
    /// The second of the server in which it was written.
    pub second: u32,
    /// The Unix time of that second.
    pub unix_s: u64,
    /// The greatest CAS token that the server gave.
    pub greatest_cas: u64,
    /// The second of the pending flush, if there is one.
    pub flush_due: Option<u32>,
}

/// Why a memory file is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// It is no memory file of Kachel.
    NotOurs,
    /// It has another version of the format.
    Version(u32),
    /// A hash is wrong.
    Damaged,
    /// It has fewer or more bytes than its head says.
    Length,
    /// A number is out of its range.
    Range,
}

impl fmt::Display for Unfit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotOurs => formatter.write_str("it is no memory file of Kachel"),
            Self::Version(version) => write!(
                formatter,
                "it has version {version} of the format, and this server reads version \
                 {FILE_VERSION}"
            ),
            Self::Damaged => formatter.write_str("it is damaged: a checksum is wrong"),
            Self::Length => formatter.write_str("it is damaged: its length is wrong"),
            Self::Range => formatter.write_str("it is damaged: a number is out of its range"),
        }
    }
}

impl std::error::Error for Unfit {}

impl FileHead {
    /// The head as bytes.
    pub fn encode(&self) -> [u8; HEAD_BYTES] {
        debug_assert!(self.greatest_cas <= CAS_MAX, "a server gives fewer tokens in its life");
        let mut page = [0; HEAD_BYTES];
        page[..16].copy_from_slice(MAGIC);
        page[16..20].copy_from_slice(&FILE_VERSION.to_le_bytes());
        page[24..32].copy_from_slice(&self.file_id.to_le_bytes());
        page[32..40].copy_from_slice(&self.file_bytes.to_le_bytes());
        page[40..48].copy_from_slice(&self.items.to_le_bytes());
        page[48..52].copy_from_slice(&self.blocks.to_le_bytes());
        page[52..56].copy_from_slice(&self.second.to_le_bytes());
        page[56..64].copy_from_slice(&self.unix_s.to_le_bytes());
        page[64..72].copy_from_slice(&self.greatest_cas.to_le_bytes());
        page[72..76].copy_from_slice(&self.flush_due.unwrap_or(0).to_le_bytes());
        let hash = hash(&page[..HASH_START]);
        page[HASH_START..].copy_from_slice(&hash.to_le_bytes());
        page
    }

    /// Reads the first bytes of a file of `file_bytes` bytes. The version is checked before the
    /// hash, because another version may have its hash elsewhere.
    ///
    /// Errors: the file is not to be used.
    pub fn decode(page: &[u8], file_bytes: u64) -> Result<Self, Unfit> {
        if !is_ours(page) {
            return Err(Unfit::NotOurs);
        }
        let Some(page) = page.first_chunk::<HEAD_BYTES>() else { return Err(Unfit::Length) };
        match word_32(page, 16) {
            FILE_VERSION => {}
            version => return Err(Unfit::Version(version)),
        }
        if hash(&page[..HASH_START]) != word_64(page, HASH_START) {
            return Err(Unfit::Damaged);
        }
        let head = Self {
            file_id: word_64(page, 24),
            file_bytes: word_64(page, 32),
            items: word_64(page, 40),
            blocks: word_32(page, 48),
            second: word_32(page, 52),
            unix_s: word_64(page, 56),
            greatest_cas: word_64(page, 64),
            flush_due: Some(word_32(page, 72)).filter(|&due| due != 0),
        };
        if head.file_bytes != file_bytes {
            return Err(Unfit::Length);
        }
        if head.is_in_range() { Ok(head) } else { Err(Unfit::Range) }
    }

    /// Whether its numbers are possible. The file must be long enough for this number of items,
    /// and each block has an item.
    fn is_in_range(&self) -> bool {
        let is_second = self.second >= 2 && i32::try_from(self.second).is_ok();
        let left_bytes = self.file_bytes.saturating_sub(HEAD_BYTES as u64);
        is_second
            && self.greatest_cas <= CAS_MAX
            && self.items <= left_bytes / ITEM_BYTES_LEAST
            && u64::from(self.blocks) <= self.items
    }

    /// The second of the next server at Unix time `unix_s`. The time in which no server ran counts.
    /// `None` if a server cannot count that far.
    ///
    /// A clock that was set back since then counts as no time: items live no longer than their TTL.
    pub fn second_at(&self, unix_s: u64) -> Option<u32> {
        let down_s = u32::try_from(unix_s.saturating_sub(self.unix_s)).ok()?;
        let second = self.second.checked_add(down_s)?;
        i32::try_from(second).is_ok().then_some(second)
    }
}

/// Whether a file that begins so is a memory file, of any version.
pub fn is_ours(page: &[u8]) -> bool {
    page.starts_with(MAGIC)
}

/// The hash of a part of a memory file.
pub(super) fn hash(bytes: &[u8]) -> u64 {
    rapidhash::v3::rapidhash_v3(bytes)
}

/// The number at byte `at`.
///
/// Panics: if there are fewer than four bytes.
pub(super) fn word_32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes[at..].first_chunk().expect("four bytes"))
}

/// The number at byte `at`.
///
/// Panics: if there are fewer than eight bytes.
pub(super) fn word_64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("eight bytes"))
}

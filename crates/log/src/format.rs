//! The bytes of a record, and of the leader with which each commit begins.
//!
//! Upstream:   `commits` writes records and leaders into its buffer.
//! Downstream: `walk` and `reads` take them from bytes of the file, and trust none of them.
//!
//! ```text
//! record, at a multiple of 8 bytes:
//!  0           4        5         6      7      8        12     16        24
//!  +-----------+--------+---------+------+------+--------+------+---------+---------+
//!  | checksum  | format | kind of | codec| kind | payload| epoch| sequence| payload |
//!  |           |        | checksum|      |      | bytes  |      |         |         |
//!  +-----------+--------+---------+------+------+--------+------+---------+---------+
//!
//! leader: a record of the kind 0 with the sequence of the next record, and the payload
//!  0            8         16             20
//!  +------------+---------+--------------+-----+
//!  | generation | durable | commit bytes | 0   |    `durable`: the records below this sequence
//!  +------------+---------+--------------+-----+    were durable when the commit began
//! ```
//!
//! Numbers are little-endian. The checksum is that of the place (identity of the log, generation of
//! the segment, offset in the file) and of all bytes of the record behind the checksum. So bytes of
//! another log, of another place or of an earlier use of the segment are no record here.
//!
//! Invariants, cited by number where they are asserted:
//! - F1  A record, its leader and the padding of its commit lie in one segment.
//! - F2  Each place is written once in a generation, except that a commit that was refused for want
//!   of space, or done in part, is written again with the same bytes. So a valid checksum proves
//!   that the record is the one that was written there.
//! - F3  A version with a field, a codec or a kind of checksum of its own raises `format`, and says
//!   so in the header of each segment that it writes (H3 of `header`), because an older version
//!   cannot tell a record with an unknown checksum from a damaged one. Every later format keeps the
//!   first 12 bytes of a record; one with CRC-32C keeps the extent of the checksum, too.

/// The version of the format that this program writes, the newest that it reads.
pub const FORMAT: u8 = 1;
/// CRC-32C, the only kind of checksum so far.
const CHECKSUM_CRC32C: u8 = 1;
/// The payload is as its owner gave it. There is no other codec so far.
const CODEC_NONE: u8 = 0;

/// Greater sequences are not given out, and not believed.
pub(crate) const SEQUENCE_MAX: u64 = 1 << 56;
/// The bytes of a record before its payload.
pub(crate) const HEAD_BYTES: usize = 24;
/// The bytes of a leader.
pub(crate) const LEADER_BYTES: usize = HEAD_BYTES + 24;
/// The kind of a leader. No record of an owner has it.
pub(crate) const LEADER: u8 = 0;

const _: () = assert!(LEADER_BYTES.is_multiple_of(8));

/// What tells the records of a log from those of all other logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogIdentity {
    /// A random number of the store. Clients must not be able to learn it: who knows it can store a
    /// value that looks like a record.
    pub store: u64,
    /// The number of the engine.
    pub engine: u32,
}

/// What a checksum covers besides the record and its offset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp {
    pub(crate) identity: LogIdentity,
    pub(crate) generation: u64,
}

impl Stamp {
    fn checksum(&self, offset: u64, behind: &[u8]) -> u32 {
        let mut place = [0; 28];
        place[..8].copy_from_slice(&self.identity.store.to_le_bytes());
        place[8..12].copy_from_slice(&self.identity.engine.to_le_bytes());
        place[12..20].copy_from_slice(&self.generation.to_le_bytes());
        place[20..].copy_from_slice(&offset.to_le_bytes());
        crc32c::crc32c_append(crc32c::crc32c(&place), behind)
    }
}

/// The head of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) kind: u8,
    pub(crate) payload_bytes: u32,
    pub(crate) epoch: u32,
    pub(crate) sequence: u64,
}

/// Why bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRecord {
    /// They were not written as a record of this place, or have changed since.
    Damaged,
    /// They were written by a later version, in the format of this number.
    Newer(u8),
}

/// The bytes of a record with a payload of this length, up to the next record.
pub(crate) const fn record_bytes(payload_bytes: usize) -> usize {
    (HEAD_BYTES + payload_bytes).next_multiple_of(8)
}

/// Writes a record to the front of `to`. The payload consists of `parts`. Returns
/// [`record_bytes`]. Cost: a copy and a checksum of the payload.
pub(crate) fn write_record(
    to: &mut [u8],
    stamp: &Stamp,
    offset: u64,
    head: &Head,
    parts: &[&[u8]],
) -> usize {
    let end = HEAD_BYTES + head.payload_bytes as usize;
    let behind = record_bytes(head.payload_bytes as usize);
    to[4..8].copy_from_slice(&[FORMAT, CHECKSUM_CRC32C, CODEC_NONE, head.kind]);
    to[8..12].copy_from_slice(&head.payload_bytes.to_le_bytes());
    to[12..16].copy_from_slice(&head.epoch.to_le_bytes());
    to[16..HEAD_BYTES].copy_from_slice(&head.sequence.to_le_bytes());
    let mut at = HEAD_BYTES;
    for part in parts {
        to[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    debug_assert_eq!(at, end, "the parts are the payload");
    to[end..behind].fill(0);
    let checksum = stamp.checksum(offset, &to[4..end]);
    to[..4].copy_from_slice(&checksum.to_le_bytes());
    behind
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

/// The payload bytes that the head at the front of `bytes` claims. They may be of any number.
///
/// Panics: if there are less than [`HEAD_BYTES`].
pub(crate) fn claimed_payload_bytes(bytes: &[u8]) -> u32 {
    u32_at(bytes, 8)
}

/// The head of the record that `bytes` are. The payload is behind the head.
///
/// Errors: they are none.
pub(crate) fn read_record(bytes: &[u8], stamp: &Stamp, offset: u64) -> Result<Head, NoRecord> {
    let payload_bytes = bytes.len().checked_sub(HEAD_BYTES).ok_or(NoRecord::Damaged)?;
    if claimed_payload_bytes(bytes) as usize != payload_bytes
        || u32_at(bytes, 0) != stamp.checksum(offset, &bytes[4..])
    {
        return Err(NoRecord::Damaged);
    }
    if bytes[4] > FORMAT {
        return Err(NoRecord::Newer(bytes[4])); // F3
    }
    if bytes[4..7] != [FORMAT, CHECKSUM_CRC32C, CODEC_NONE] {
        return Err(NoRecord::Damaged); // F3: no version has written it.
    }
    Ok(Head {
        kind: bytes[7],
        payload_bytes: payload_bytes as u32,
        epoch: u32_at(bytes, 12),
        sequence: u64_at(bytes, 16),
    })
}

/// The leader of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leader {
    /// The sequence of the first record of the commit.
    pub(crate) first: u64,
    /// The records below this sequence were durable when the commit began.
    pub(crate) durable: u64,
    /// The bytes of the commit from the leader to the end of the last record.
    pub(crate) commit_bytes: u32,
}

/// Writes a leader to the front of `to`.
pub(crate) fn write_leader(to: &mut [u8], stamp: &Stamp, offset: u64, leader: &Leader) {
    let payload_bytes = (LEADER_BYTES - HEAD_BYTES) as u32;
    let head = Head { kind: LEADER, payload_bytes, epoch: 0, sequence: leader.first };
    let (generation, durable) = (stamp.generation.to_le_bytes(), leader.durable.to_le_bytes());
    let bytes = u64::from(leader.commit_bytes).to_le_bytes();
    write_record(to, stamp, offset, &head, &[&generation, &durable, &bytes]);
}

/// The leader at the front of `bytes`.
///
/// Errors: there is none.
pub(crate) fn read_leader(bytes: &[u8], stamp: &Stamp, offset: u64) -> Result<Leader, NoRecord> {
    let head = read_record(&bytes[..LEADER_BYTES], stamp, offset)?;
    let payload = &bytes[HEAD_BYTES..LEADER_BYTES];
    let is_bounded = head.sequence <= SEQUENCE_MAX;
    if head.kind != LEADER || u64_at(payload, 0) != stamp.generation || !is_bounded {
        return Err(NoRecord::Damaged);
    }
    let (durable, commit_bytes) = (u64_at(payload, 8), u32_at(payload, 16));
    Ok(Leader { first: head.sequence, durable, commit_bytes })
}

/// The generation that the leader at the front of `bytes` claims, if its checksum agrees.
pub(crate) fn claimed_generation(bytes: &[u8], identity: LogIdentity, offset: u64) -> Option<u64> {
    let stamp = Stamp { identity, generation: u64_at(bytes, HEAD_BYTES) };
    read_leader(bytes, &stamp, offset).is_ok().then_some(stamp.generation)
}

//! Reads a recorded trace into memory.
//!
//! Upstream:   a file, uncompressed or zstd, in one of two formats: `lines` or `oracle`.
//! Downstream: `replay` walks over the records; the laboratory runs them against policies.
//!
//! A file in which the first 24 bytes include a zero is in the binary format, because lines include
//! none. A file in another format is refused. A request that cannot be replayed as the file has it
//! is counted (`oddities`), and every summary shows the counts.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  Every record's key number is below the count of keys.
//! - I2  Times never go backward; requests of one second are spread evenly over it.

mod lines;
mod oddities;
mod oracle;
mod reading;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::Path;

use serde::Serialize;

pub use self::oddities::Oddities;

/// The longest line that is read; a longer one is left out and counted.
const LINE_BYTES_MAX: usize = 64 << 10;
/// The first bytes of a zstd frame.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// The bytes after the first one of a zstd frame that is skipped. Tools that compress in parallel
/// begin with one.
const ZSTD_SKIPPABLE: [u8; 3] = [0x2a, 0x4d, 0x18];
/// How files in formats begin that are not read, and their names.
const FOREIGN: [(&[u8], &str); 10] = [
    (&[0xfd, b'7', b'z', b'X', b'Z'], "compressed with xz"),
    (&[0x1f, 0x8b], "compressed with gzip"),
    (b"BZh", "compressed with bzip2"),
    (&[0x04, 0x22, 0x4d, 0x18], "compressed with lz4"),
    (&[0x5d, 0x00, 0x00], "compressed with lzma"),
    (b"PK\x03\x04", "a zip archive"),
    (&[b'7', b'z', 0xbc, 0xaf], "a 7z archive"),
    (&ZSTD_MAGIC, "compressed twice"),
    (&[0xff, 0xfe], "a text in UTF-16"),
    (&[0xfe, 0xff], "a text in UTF-16"),
];

/// The operation of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Get,
    Gets,
    Set,
    Add,
    Replace,
    Append,
    Prepend,
    Cas,
    Delete,
    Incr,
    Decr,
}

impl Operation {
    /// All operations with their names in a trace, which are also the verbs of the protocol.
    const NAMES: [(Self, &'static str); 11] = [
        (Self::Get, "get"),
        (Self::Gets, "gets"),
        (Self::Set, "set"),
        (Self::Add, "add"),
        (Self::Replace, "replace"),
        (Self::Append, "append"),
        (Self::Prepend, "prepend"),
        (Self::Cas, "cas"),
        (Self::Delete, "delete"),
        (Self::Incr, "incr"),
        (Self::Decr, "decr"),
    ];

    fn of(name: &[u8]) -> Option<Self> {
        Self::NAMES.iter().find(|(_, known)| known.as_bytes() == name).map(|&(it, _)| it)
    }
}

const _: () = {
    let mut index = 0;
    while index < Operation::NAMES.len() {
        assert!(Operation::NAMES[index].0 as usize == index, "names stand in order");
        index += 1;
    }
};

/// One request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Number of the record's key (I1).
    pub key: u32,
    /// Bytes of the key and its value, as the trace gives them; the value is scaled. The key that
    /// stands in the file may have another length, see [`Trace::value_bytes`].
    pub object_bytes: u32,
    /// TTL in seconds; 0 means no expiry.
    pub ttl_s: u32,
    /// The operation.
    pub(crate) operation: Operation,
}

const _: () = assert!(size_of::<Record>() <= 16);

/// The effect of a request on a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It reads the value.
    Read,
    /// It changes or creates the value.
    Write,
    /// It removes the value.
    Delete,
}

impl Record {
    /// The effect of the request on a cache.
    pub fn effect(&self) -> Effect {
        match self.operation {
            Operation::Get | Operation::Gets => Effect::Read,
            Operation::Delete => Effect::Delete,
            _ => Effect::Write,
        }
    }
}

/// How a trace changes the value of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyUse {
    /// The key is incremented or decremented, so its values must be numbers.
    pub(crate) is_counter: bool,
    /// The key is appended to, prepended to or counted, so its value cannot be predicted.
    pub(crate) is_loose: bool,
}

/// Summary of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Facts {
    /// Number of requests to replay.
    pub requests: usize,
    /// Number of different keys.
    pub objects: usize,
    /// Keys and values of all objects, with the last size of each, in bytes.
    pub footprint_bytes: u64,
    /// The requests that are not replayed as the file has them.
    pub oddities: Oddities,
    /// Requests by operation.
    pub operations: Vec<(&'static str, usize)>,
}

/// A trace in memory.
#[derive(Debug, Default)]
pub struct Trace {
    /// The requests in order.
    pub records: Vec<Record>,
    /// Seconds since the first record, per record, in ns (I2).
    offsets_ns: Vec<u64>,
    key_bytes: Vec<u8>,
    key_ends: Vec<usize>,
    seeds: Vec<u64>,
    uses: Vec<KeyUse>,
    /// The summary.
    pub facts: Facts,
}

impl Trace {
    /// Reads a file.
    ///
    /// Errors: the file cannot be read or parsed, as a message for the user with the line's number.
    pub fn read(path: &Path, value_scale: f64, limit: Option<usize>) -> Result<Self, String> {
        let failed = |error: io::Error| format!("{}: {error}", path.display());
        let file = BufReader::with_capacity(1 << 20, File::open(path).map_err(failed)?);
        let (start, file) = peek(file).map_err(failed)?;
        let is_skippable =
            matches!(start[..], [0x50..=0x5f, ref rest @ ..] if rest.starts_with(&ZSTD_SKIPPABLE));
        let is_zstd = start.starts_with(&ZSTD_MAGIC) || is_skippable;
        let trace = if is_zstd {
            let decoder = zstd::stream::read::Decoder::with_buffer(file).map_err(failed)?;
            Self::parse_any(BufReader::with_capacity(1 << 20, decoder), value_scale, limit)
        } else {
            Self::parse_any(file, value_scale, limit)
        };
        let trace = trace.map_err(|words| format!("{}: {words}", path.display()))?;
        if trace.records.is_empty() {
            return Err(format!("{}: the trace has no requests", path.display()));
        }
        Ok(trace)
    }

    /// Parses what is not compressed, in either format.
    fn parse_any(
        input: impl BufRead,
        value_scale: f64,
        limit: Option<usize>,
    ) -> Result<Self, String> {
        let (start, input) = peek(input).map_err(|error| error.to_string())?;
        if let Some((_, format)) = FOREIGN.iter().find(|(magic, _)| start.starts_with(magic)) {
            return Err(format!("the file is {format}; only zstd and plain traces are read"));
        }
        match oracle::is_oracle(&start) {
            true => oracle::parse(input, value_scale, limit),
            false => lines::parse(input, value_scale, limit),
        }
    }

    /// The number of keys.
    pub fn key_count(&self) -> usize {
        self.key_ends.len()
    }

    /// A key's bytes.
    #[inline]
    pub fn key(&self, key: u32) -> &[u8] {
        let index = key as usize;
        let start = if index == 0 { 0 } else { self.key_ends[index - 1] };
        &self.key_bytes[start..self.key_ends[index]]
    }

    /// Bytes of the value with which a record's key takes [`Record::object_bytes`]; 0 if the key
    /// alone takes more.
    #[inline]
    pub fn value_bytes(&self, record: &Record) -> u32 {
        let key_bytes = u32::try_from(self.key(record.key).len()).expect("a key is short");
        record.object_bytes.saturating_sub(key_bytes)
    }

    /// The seed of a key's value stream.
    #[inline]
    pub(crate) fn seed(&self, key: u32) -> u64 {
        self.seeds[key as usize]
    }

    /// How this trace changes the value of a key.
    #[inline]
    pub(crate) fn key_use(&self, key: u32) -> KeyUse {
        self.uses[key as usize]
    }

    /// When a record is due after the first, in ns of the trace's time.
    #[inline]
    pub(crate) fn offset_ns(&self, index: usize) -> u64 {
        self.offsets_ns[index]
    }
}

/// The bytes that show a file's format, fewer if it is shorter, and the whole input.
fn peek(mut input: impl BufRead) -> io::Result<(Vec<u8>, impl BufRead)> {
    let mut start = Vec::with_capacity(oracle::RECORD_BYTES);
    input.by_ref().take(oracle::RECORD_BYTES as u64).read_to_end(&mut start)?;
    Ok((start.clone(), io::Cursor::new(start).chain(input)))
}

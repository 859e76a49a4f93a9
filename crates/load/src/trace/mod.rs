//! Reads a recorded trace into memory.
//!
//! Upstream:   a file, uncompressed or zstd, in the format of the Twitter cache traces (Yang, Yue
//!             and Vinayak, OSDI 2020), which has one request a line, or in libCacheSim's
//!             `oracleGeneral`, which has one in 24 bytes.
//! Downstream: `replay` walks over the records.
//!
//! ```text
//! timestamp_s,key,key_size,value_size,client_id,operation,ttl_s
//! ```
//! The key is everything between the first comma and the fifth from the end, so it may contain
//! commas.
//!
//! ```text
//! | second, u32 | object, u64 | bytes, u32 | next access, i64 |   all with the lowest byte first
//! ```
//! A record of `oracleGeneral` is a get of a key that is the number of the object; the next access
//! is not used. A file in which the first 24 bytes include a zero is such a file, because lines
//! include none.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  Every record's key number is below the count of keys.
//! - I2  Times never go backward; requests of one second are spread evenly over it.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use serde::Serialize;

use crate::keys::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::random::mix;

/// The first bytes of a zstd frame.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Bytes of a record of `oracleGeneral`.
const ORACLE_BYTES: usize = 24;
/// The longest line accepted.
const LINE_BYTES_MAX: usize = 64 << 10;
/// The longest time from the first record to another one, 584 years: its ns fit into 64 bits.
const SECONDS_MAX: u64 = u64::MAX / 1_000_000_000 - 1;

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
    /// Size of the value, scaled.
    pub value_bytes: u32,
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
    /// Keys and values of all objects, with the last value size of each, in bytes.
    pub footprint_bytes: u64,
    /// Skipped lines: the key is empty, too long or contains a byte that the protocol forbids.
    pub skipped: usize,
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
        let mut file = BufReader::with_capacity(1 << 20, File::open(path).map_err(failed)?);
        let is_zstd = file.fill_buf().map_err(failed)?.starts_with(&ZSTD_MAGIC);
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

    fn parse_any(
        mut input: impl BufRead,
        value_scale: f64,
        limit: Option<usize>,
    ) -> Result<Self, String> {
        let start = input.fill_buf().map_err(|error| error.to_string())?;
        let is_oracle = start.iter().take(ORACLE_BYTES).any(|&byte| byte == 0);
        match is_oracle {
            true => Self::parse_oracle(input, value_scale, limit),
            false => Self::parse(input, value_scale, limit),
        }
    }

    fn parse_oracle(
        mut input: impl BufRead,
        value_scale: f64,
        limit: Option<usize>,
    ) -> Result<Self, String> {
        let mut reading = Reading { value_scale, ..Reading::default() };
        let mut record = Vec::with_capacity(ORACLE_BYTES);
        for number in 1..=limit.unwrap_or(usize::MAX) {
            record.clear();
            let mut bounded = (&mut input).take(ORACLE_BYTES as u64);
            let bytes = bounded
                .read_to_end(&mut record)
                .map_err(|error| format!("record {number}: {error}"))?;
            if bytes == 0 {
                break;
            }
            if bytes < ORACLE_BYTES {
                return Err(format!("record {number}: the file ends within it"));
            }
            let u32_at = |place: usize| {
                u32::from_le_bytes(record[place..place + 4].try_into().expect("four bytes"))
            };
            let object = u64::from(u32_at(4)) | u64::from(u32_at(8)) << 32;
            let (time_s, value_bytes) = (u64::from(u32_at(0)), u64::from(u32_at(12)));
            let key = object.to_string();
            reading
                .add(key.as_bytes(), Operation::Get, Terms { time_s, value_bytes, ttl_s: 0 })
                .map_err(|words| format!("record {number}: {words}"))?;
        }
        Ok(reading.finish())
    }

    fn parse(
        mut input: impl BufRead,
        value_scale: f64,
        limit: Option<usize>,
    ) -> Result<Self, String> {
        let mut reading = Reading { value_scale, ..Reading::default() };
        let mut line = Vec::new();
        for number in 1usize.. {
            if limit.is_some_and(|limit| reading.trace.records.len() >= limit) {
                break;
            }
            line.clear();
            let mut bounded = (&mut input).take(LINE_BYTES_MAX as u64);
            let bytes = bounded
                .read_until(b'\n', &mut line)
                .map_err(|error| format!("line {number}: {error}"))?;
            if bytes == 0 {
                break;
            }
            if bytes == LINE_BYTES_MAX {
                return Err(format!(
                    "line {number}: the line is longer than {LINE_BYTES_MAX} bytes"
                ));
            }
            let is_head = number == 1 && !line.first().is_some_and(u8::is_ascii_digit);
            let text = line.trim_ascii_end();
            if !is_head && !text.is_empty() {
                reading.take(text).map_err(|words| format!("line {number}: {words}"))?;
            }
        }
        Ok(reading.finish())
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

/// The numbers of a record.
#[derive(Clone, Copy)]
struct Terms {
    time_s: u64,
    /// Before scaling.
    value_bytes: u64,
    ttl_s: u64,
}

/// A trace being read.
#[derive(Default)]
struct Reading {
    trace: Trace,
    value_scale: f64,
    numbers: HashMap<Box<[u8]>, u32>,
    last_sizes: Vec<u32>,
    counts: [usize; Operation::NAMES.len()],
    first_s: Option<u64>,
    second: u64,
    second_start: usize,
}

impl Reading {
    fn take(&mut self, line: &[u8]) -> Result<(), String> {
        let (time, rest) = split_first(line).ok_or("not seven fields")?;
        let (rest, ttl) = split_last(rest).ok_or("not seven fields")?;
        let (rest, operation) = split_last(rest).ok_or("not seven fields")?;
        let (rest, _client) = split_last(rest).ok_or("not seven fields")?;
        let (rest, value_bytes) = split_last(rest).ok_or("not seven fields")?;
        let (key, _key_bytes) = split_last(rest).ok_or("not seven fields")?;
        let time_s = number(time).ok_or_else(|| wrong("a timestamp", time))?;
        let ttl_s = number(ttl).ok_or_else(|| wrong("a TTL", ttl))?;
        let value_bytes = number(value_bytes).ok_or_else(|| wrong("a size", value_bytes))?;
        let operation = Operation::of(operation).ok_or_else(|| wrong("an operation", operation))?;
        let is_key = !key.is_empty()
            && key.len() <= KEY_BYTES_MAX
            && key.iter().all(|&byte| byte > b' ' && byte != 0x7f);
        if !is_key {
            self.trace.facts.skipped += 1;
            return Ok(());
        }
        self.add(key, operation, Terms { time_s, value_bytes, ttl_s })
    }

    /// Adds a record with a valid key.
    ///
    /// Errors: as `pass_to`.
    fn add(&mut self, key: &[u8], operation: Operation, terms: Terms) -> Result<(), String> {
        let Terms { time_s, value_bytes, ttl_s } = terms;
        self.pass_to(time_s)?;
        let scaled = (value_bytes as f64 * self.value_scale).round();
        let record = Record {
            key: self.number_of(key),
            value_bytes: scaled.min(f64::from(VALUE_BYTES_MAX)) as u32,
            ttl_s: ttl_s.min(u64::from(u32::MAX)) as u32,
            operation,
        };
        self.counts[operation as usize] += 1;
        self.last_sizes[record.key as usize] = record.value_bytes;
        let key_use = &mut self.trace.uses[record.key as usize];
        match operation {
            Operation::Incr | Operation::Decr => {
                *key_use = KeyUse { is_counter: true, is_loose: true };
            }
            Operation::Append | Operation::Prepend => key_use.is_loose = true,
            _ => {}
        }
        self.trace.records.push(record);
        Ok(())
    }

    fn number_of(&mut self, key: &[u8]) -> u32 {
        if let Some(&number) = self.numbers.get(key) {
            return number;
        }
        let number = u32::try_from(self.numbers.len()).expect("I1: fewer than 2^32 keys in memory");
        self.numbers.insert(key.into(), number);
        self.trace.key_bytes.extend_from_slice(key);
        self.trace.key_ends.push(self.trace.key_bytes.len());
        let folded = key.iter().fold(0xcbf2_9ce4_8422_2325u64, |sum, &byte| {
            (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        self.trace.seeds.push(mix(folded));
        self.trace.uses.push(KeyUse::default());
        self.last_sizes.push(0);
        number
    }

    /// Records the time of the next record.
    ///
    /// Errors: it is too long after the first one, as a message for the user.
    fn pass_to(&mut self, time_s: u64) -> Result<(), String> {
        let first_s = *self.first_s.get_or_insert(time_s);
        let since_s = time_s.saturating_sub(first_s);
        if since_s > SECONDS_MAX {
            return Err(format!(
                "'{time_s}' is not a time in seconds: it is {since_s} after the first one, '{first_s}'"
            ));
        }
        if since_s > self.second {
            self.spread();
            self.second = since_s;
        }
        Ok(())
    }

    /// Spreads the records of the past second evenly over it (I2).
    fn spread(&mut self) {
        let count = (self.trace.records.len() - self.second_start) as u64;
        let start_ns = self.second * 1_000_000_000;
        let offsets = (0..count).map(|index| start_ns + index * 1_000_000_000 / count);
        self.trace.offsets_ns.extend(offsets);
        self.second_start = self.trace.records.len();
    }

    fn finish(mut self) -> Trace {
        self.spread();
        let mut trace = self.trace;
        assert_eq!(trace.offsets_ns.len(), trace.records.len(), "I2");
        assert_eq!(trace.seeds.len(), trace.key_ends.len(), "I1");
        let value_bytes: u64 = self.last_sizes.iter().map(|&bytes| u64::from(bytes)).sum();
        trace.facts.requests = trace.records.len();
        trace.facts.objects = trace.key_count();
        trace.facts.footprint_bytes = value_bytes + trace.key_bytes.len() as u64;
        let counts = Operation::NAMES.iter().zip(self.counts);
        trace.facts.operations = counts
            .filter(|(_, count)| *count > 0)
            .map(|((_, name), count)| (*name, count))
            .collect();
        trace
    }
}

fn split_first(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let comma = memchr::memchr(b',', text)?;
    Some((&text[..comma], &text[comma + 1..]))
}

fn split_last(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let comma = memchr::memrchr(b',', text)?;
    Some((&text[..comma], &text[comma + 1..]))
}

fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn wrong(what: &str, text: &[u8]) -> String {
    format!("'{}' is not {what}", text.escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Trace, String> {
        Trace::parse(text.as_bytes(), 1.0, None)
    }

    #[test]
    fn records_keys_and_facts_are_read() {
        let trace = parse("10,a,1,100,1,get,0\n10,b,c,3,50,1,set,60\n12,a,1,100,2,delete,0\n")
            .expect("valid");
        assert_eq!(trace.key_count(), 2);
        assert_eq!((trace.key(0), trace.key(1)), (&b"a"[..], &b"b,c"[..]));
        let (key, operation) = (1, Operation::Set);
        assert_eq!(trace.records[1], Record { key, value_bytes: 50, ttl_s: 60, operation });
        assert_eq!(trace.facts.footprint_bytes, 1 + 100 + 3 + 50);
        assert_eq!(trace.facts.operations, vec![("get", 1), ("set", 1), ("delete", 1)]);
    }

    #[test]
    fn requests_of_one_second_are_spread_over_it() {
        let trace = parse("5,a,1,1,1,get,0\n5,a,1,1,1,get,0\n7,a,1,1,1,get,0\n6,a,1,1,1,get,0\n")
            .expect("valid");
        assert_eq!(trace.offsets_ns, [0, 500_000_000, 2_000_000_000, 2_500_000_000], "I2");
    }

    #[test]
    fn sizes_are_scaled_and_the_limit_holds() {
        let text = "0,a,1,101,1,get,0\n0,b,1,10,1,get,0\n";
        let trace = Trace::parse(text.as_bytes(), 0.5, Some(1)).expect("valid");
        assert_eq!((trace.records.len(), trace.records[0].value_bytes), (1, 51));
    }

    #[test]
    fn what_cannot_be_read_is_said_with_its_line() {
        for (text, words) in [
            ("0,a,1,1,1,get,0\n0,a,1\n", "line 2: not seven fields"),
            ("0,a,1,1,1,steal,0\n", "line 1: 'steal' is not an operation"),
            ("0,a,1,x,1,get,0\n", "line 1: 'x' is not a size"),
            ("0,a,1,1,1,get,\n", "line 1: '' is not a TTL"),
            // A trace in microseconds, of a year: its ns do not fit into 64 bits.
            (
                "5,a,1,1,1,get,0\n31536000000005,a,1,1,1,get,0\n",
                "line 2: '31536000000005' is not a time in seconds: it is 31536000000000 after the \
                 first one, '5'",
            ),
        ] {
            assert_eq!(parse(text).map(|_| ()), Err(words.to_owned()));
        }
    }

    /// Records of `oracleGeneral`: second, object, bytes.
    fn oracle(records: &[(u32, u64, u32)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for &(second, object, size) in records {
            bytes.extend(second.to_le_bytes());
            bytes.extend(object.to_le_bytes());
            bytes.extend(size.to_le_bytes());
            bytes.extend((-1_i64).to_le_bytes());
        }
        bytes
    }

    #[test]
    fn records_of_oracle_general_are_gets_of_their_objects() {
        let big = u64::MAX - 1;
        let bytes = oracle(&[(7, 42, 100), (7, big, 1 << 20), (9, 42, 100)]);
        let trace = Trace::parse_any(&bytes[..], 0.5, None).expect("valid");
        assert_eq!(trace.key(0), b"42");
        assert_eq!(trace.key(1), big.to_string().as_bytes());
        let (key, operation) = (1, Operation::Get);
        assert_eq!(trace.records[1], Record { key, value_bytes: 1 << 19, ttl_s: 0, operation });
        assert_eq!(trace.records[2].key, 0);
        assert_eq!(trace.offsets_ns, [0, 500_000_000, 2_000_000_000], "I2");
        let cut = Trace::parse_any(&bytes[..60], 1.0, None).map(|_| ());
        assert_eq!(cut, Err("record 3: the file ends within it".into()));
        let two = Trace::parse_any(&bytes[..60], 1.0, Some(2)).expect("valid");
        assert_eq!(two.records.len(), 2);
        let late = oracle(&[(0x0101_0101, 42, 100)]);
        assert_eq!(Trace::parse_any(&late[..], 1.0, None).expect("valid").key(0), b"42");
        let lines = Trace::parse_any(&b"5,a,1,1,1,get,0\n"[..], 1.0, None).expect("valid");
        assert_eq!(lines.key(0), b"a");
    }

    #[test]
    fn heads_and_impossible_keys_are_left_out() {
        let trace = parse("timestamp,key\n0,a b,3,1,1,get,0\n0,c,1,1,1,incr,0\n").expect("valid");
        assert_eq!((trace.facts.skipped, trace.records.len()), (1, 1));
        assert_eq!(trace.key_use(0), KeyUse { is_counter: true, is_loose: true });
    }
}

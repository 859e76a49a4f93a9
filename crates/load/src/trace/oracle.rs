//! Traces in libCacheSim's `oracleGeneral`, which has one request in 24 bytes.
//!
//! Upstream:   the bytes of a file.
//! Downstream: `reading` adds each request to the trace.
//!
//! ```text
//! | second, u32 | object, u64 | bytes, u32 | next request, i64 |   lowest bytes first
//! ```
//! A record is a get of a key that is the number of the object. The bytes are those of the whole
//! object, so the value has as many as are left beside the key's digits. The next request is the
//! place of the object's next record in the file, counted from 0 or 1, or -1 or the greatest number
//! if there is none. It is not needed here, but it shows whether a file is in this format: other
//! files contradict themselves within a few records.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  A key has one announced place.

use std::io::{BufRead, Read as _};

use super::reading::{Reading, Terms};
use super::{Operation, Trace};

/// Bytes of a record.
pub(super) const RECORD_BYTES: usize = 24;
/// No file has a record at this place: 2^40 of them take 24 TiB.
const PLACE_MAX: i64 = 1 << 40;

/// Whether a file that starts with these bytes is in this format and not in lines.
pub(super) fn is_oracle(start: &[u8]) -> bool {
    start.contains(&0)
}

/// One record.
struct Entry {
    second: u32,
    object: u64,
    bytes: u32,
    next: i64,
}

impl Entry {
    fn of(record: &[u8]) -> Self {
        assert_eq!(record.len(), RECORD_BYTES, "a whole record");
        let u32_at =
            |at: usize| u32::from_le_bytes(record[at..at + 4].try_into().expect("four bytes"));
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let next = u64_at(16).cast_signed();
        Self { second: u32_at(0), object: u64_at(4), bytes: u32_at(12), next }
    }
}

/// Errors: a record is cut, or cannot be one of this format, as a message for the user with the
/// record's number.
pub(super) fn parse(
    mut input: impl BufRead,
    value_scale: f64,
    limit: Option<usize>,
) -> Result<Trace, String> {
    let mut reading = Reading::new(value_scale);
    let mut places = Places::default();
    let mut record = Vec::with_capacity(RECORD_BYTES);
    let mut is_whole = false;
    for number in 1..=limit.unwrap_or(usize::MAX) {
        record.clear();
        let mut bounded = input.by_ref().take(RECORD_BYTES as u64);
        let named = |words: String| format!("record {number}: {words}");
        let bytes = bounded.read_to_end(&mut record).map_err(|error| named(error.to_string()))?;
        if bytes == 0 {
            is_whole = true;
            break;
        }
        if bytes < RECORD_BYTES {
            return Err(named("the file ends within it".to_owned()));
        }
        let entry = Entry::of(&record);
        let (time_s, value_bytes) = (u64::from(entry.second), u64::from(entry.bytes));
        let terms = Terms { time_s, key_bytes: 0, value_bytes, ttl_s: 0 };
        reading.oddities().empty_objects += usize::from(entry.bytes == 0);
        let key = entry.object.to_string();
        reading.add(key.as_bytes(), Operation::Get, terms).map_err(named)?;
        places.note(reading.last_key(), number as i64, entry.next).map_err(named)?;
    }
    if is_whole {
        reading.oddities().cut_objects = places.finish(reading.len() as i64)?;
    }
    Ok(reading.finish())
}

/// Where the next record of each key is, as its last record announced it (I1).
#[derive(Default)]
struct Places(Vec<Option<i64>>);

impl Places {
    /// The record with this number, from 1, is the key's, and announces the place of the next.
    ///
    /// Errors: the record before announced another place, or this one announces an impossible one.
    fn note(&mut self, key: u32, number: i64, next: i64) -> Result<(), String> {
        let key = key as usize;
        assert!(key <= self.0.len(), "I1: keys are numbered in the order of their first records");
        let strange = |words: String| format!("{words}; the file is not in oracleGeneral format");
        if let Some(place) = self.0.get(key) {
            match place {
                Some(place) if *place == number || *place == number - 1 => {}
                Some(place) => {
                    let words = format!("the record before of its object announces record {place}");
                    return Err(strange(words));
                }
                None => {
                    let words = "the record before of its object is announced as the last";
                    return Err(strange(words.to_owned()));
                }
            }
        }
        let next = (next != -1 && next != i64::MAX).then_some(next);
        if let Some(place) = next
            && !(number..PLACE_MAX).contains(&place)
        {
            return Err(strange(format!("it announces its object's next record as {place}")));
        }
        match self.0.get_mut(key) {
            Some(known) => *known = next,
            None => self.0.push(next),
        }
        Ok(())
    }

    /// The objects whose next records are beyond the end of a file with this number of records.
    ///
    /// Errors: an announced record is one of another object.
    fn finish(self, records: i64) -> Result<usize, String> {
        let open: Vec<i64> = self.0.into_iter().flatten().collect();
        match open.iter().find(|place| **place < records) {
            Some(place) => Err(format!(
                "record {place} is announced as one of another object; the file is not in \
                 oracleGeneral format"
            )),
            None => Ok(open.len()),
        }
    }
}

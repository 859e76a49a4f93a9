//! Adds the requests of a file to a trace.
//!
//! Upstream:   `lines` and `oracle`, with requests in the order of the file.
//! Downstream: a [`Trace`] with its summary.

use std::collections::HashMap;

use super::{KeyUse, Oddities, Operation, Record, Trace};
use crate::keys::VALUE_BYTES_MAX;
use crate::random::mix;

/// The longest time from the first record to another one, 584 years: its ns fit into 64 bits.
const SECONDS_MAX: u64 = u64::MAX / 1_000_000_000 - 1;

/// The numbers of a record.
#[derive(Clone, Copy)]
pub(super) struct Terms {
    pub(super) time_s: u64,
    /// Bytes of the key, as the trace gives them; at most 64 Ki.
    pub(super) key_bytes: u64,
    /// Before scaling.
    pub(super) value_bytes: u64,
    pub(super) ttl_s: u64,
}

/// A trace being read.
#[derive(Default)]
pub(super) struct Reading {
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
    /// An empty trace whose values get this factor.
    pub(super) fn new(value_scale: f64) -> Self {
        Self { value_scale, ..Self::default() }
    }

    /// The number of records so far.
    pub(super) fn len(&self) -> usize {
        self.trace.records.len()
    }

    /// The key of the last record.
    ///
    /// Panics: there is none.
    pub(super) fn last_key(&self) -> u32 {
        self.trace.records.last().expect("a record was added").key
    }

    /// The counts of odd requests.
    pub(super) fn oddities(&mut self) -> &mut Oddities {
        &mut self.trace.facts.oddities
    }

    /// Adds a record with a valid key.
    ///
    /// Errors: as `pass_to`.
    pub(super) fn add(
        &mut self,
        key: &[u8],
        operation: Operation,
        terms: Terms,
    ) -> Result<(), String> {
        let Terms { time_s, key_bytes, value_bytes, ttl_s } = terms;
        self.pass_to(time_s)?;
        let scaled = (value_bytes as f64 * self.value_scale).round();
        let value_max = f64::from(VALUE_BYTES_MAX);
        let object_bytes = key_bytes + scaled.min(value_max) as u64;
        let record = Record {
            key: self.number_of(key),
            object_bytes: u32::try_from(object_bytes).expect("keys and values are bounded"),
            ttl_s: ttl_s.min(u64::from(u32::MAX)) as u32,
            operation,
        };
        let oddities = self.oddities();
        oddities.cut_values += usize::from(scaled > value_max);
        oddities.cut_ttls += usize::from(ttl_s > u64::from(u32::MAX));
        oddities.short_objects += usize::from(object_bytes < key.len() as u64);
        self.counts[operation as usize] += 1;
        self.last_sizes[record.key as usize] = record.object_bytes;
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
        let is_backward = time_s < first_s || since_s < self.second;
        self.oddities().backward_times += usize::from(is_backward);
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

    /// The trace with its summary.
    pub(super) fn finish(mut self) -> Trace {
        self.spread();
        let mut trace = self.trace;
        assert_eq!(trace.offsets_ns.len(), trace.records.len(), "I2");
        assert_eq!(trace.seeds.len(), trace.key_ends.len(), "I1");
        trace.facts.requests = trace.records.len();
        trace.facts.objects = trace.key_count();
        trace.facts.footprint_bytes = self.last_sizes.iter().map(|&bytes| u64::from(bytes)).sum();
        let counts = Operation::NAMES.iter().zip(self.counts);
        trace.facts.operations = counts
            .filter(|(_, count)| *count > 0)
            .map(|((_, name), count)| (*name, count))
            .collect();
        trace
    }
}

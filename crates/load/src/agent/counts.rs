//! A tally as it travels: counts as numbers, histograms whole, in HdrHistogram's V2 encoding.
//!
//! Upstream:   an agent's `tally`.
//! Downstream: the leader's, which adds them.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  A tally that travels is the same in every bucket.
//! - I2  Bytes of another machine may be refused and never panic.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2Serializer};
use serde::{Deserialize, Serialize};

use crate::limits::Turns;
use crate::request::Kind;
use crate::tally::{DIGITS, Errors, Filled, TIME_NS_MAX, Tally, Window};

/// Where the length of its counts is in an encoded histogram.
const LENGTH_AT: usize = 4;

/// The counts of a tally.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Counts {
    open: bool,
    answered: [u64; Kind::COUNT],
    offered: u64,
    keys: u64,
    hits: u64,
    scanned: u64,
    not_done: u64,
    errors: Errors,
    response: [String; Kind::COUNT],
    service: String,
    turns: Turns,
}

/// The result of a preload.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Preloaded {
    keys: u64,
    elapsed_s: f64,
    counts: Counts,
}

impl Counts {
    /// Packs a tally.
    pub(crate) fn of(tally: &Tally) -> Self {
        Self {
            open: tally.is_open(),
            answered: tally.answered,
            offered: tally.offered,
            keys: tally.keys,
            hits: tally.hits,
            scanned: tally.scanned,
            not_done: tally.not_done,
            errors: tally.errors.clone(),
            response: tally.response.each_ref().map(pack),
            service: pack(&tally.service),
            turns: tally.turns,
        }
    }

    /// Unpacks it (I1).
    ///
    /// Errors: a histogram is not one, or has another shape (I2).
    pub(crate) fn tally(&self) -> Result<Tally, String> {
        if self.turns.empty > self.turns.all {
            return Err("more empty turns than turns".into());
        }
        let mut tally = Tally::new(Window { from_ns: 0, until_ns: u64::MAX, open: self.open });
        tally.answered = self.answered;
        tally.offered = self.offered;
        tally.keys = self.keys;
        tally.hits = self.hits;
        tally.scanned = self.scanned;
        tally.not_done = self.not_done;
        tally.errors = self.errors.clone();
        for (histogram, text) in tally.response.iter_mut().zip(&self.response) {
            *histogram = unpack(text)?;
        }
        tally.service = unpack(&self.service)?;
        tally.turns = self.turns;
        Ok(tally)
    }
}

impl Preloaded {
    /// Packs the result of a preload.
    pub(crate) fn of(filled: &Filled) -> Self {
        let Filled { keys, elapsed_s, tally } = filled;
        Self { keys: *keys, elapsed_s: *elapsed_s, counts: Counts::of(tally) }
    }

    /// Unpacks it.
    ///
    /// Errors: as `Counts::tally`.
    pub(crate) fn filled(&self) -> Result<Filled, String> {
        let tally = self.counts.tally()?;
        Ok(Filled { keys: self.keys, elapsed_s: self.elapsed_s, tally })
    }
}

pub(super) fn pack(histogram: &Histogram<u64>) -> String {
    let mut bytes = Vec::new();
    V2Serializer::new().serialize(histogram, &mut bytes).expect("writing into memory succeeds");
    STANDARD.encode(bytes)
}

fn unpack(text: &str) -> Result<Histogram<u64>, String> {
    let bytes = STANDARD.decode(text).map_err(|error| format!("a histogram: {error}"))?;
    // The decoder reserves memory for the length that the header gives.
    let length = bytes.get(LENGTH_AT..LENGTH_AT + 4).and_then(|length| length.try_into().ok());
    let length = length.map_or(usize::MAX, |length| u32::from_be_bytes(length) as usize);
    if length > bytes.len() {
        return Err("a histogram that is cut off".into()); // I2
    }
    let histogram: Histogram<u64> = Deserializer::new()
        .deserialize(&mut &bytes[..])
        .map_err(|error| format!("a histogram: {error}"))?;
    let shape = (histogram.low(), histogram.high(), histogram.sigfig());
    if shape != (1, TIME_NS_MAX, DIGITS) {
        return Err(format!("a histogram of another shape: {shape:?}"));
    }
    Ok(histogram)
}

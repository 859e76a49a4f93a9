//! The requests of a trace that are not replayed as the file has them.
//!
//! Upstream:   `lines`, `oracle` and `reading` count.
//! Downstream: the summary of a trace, as JSON and as sentences.

use serde::Serialize;

use super::LINE_BYTES_MAX;
use crate::keys::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// Counts of requests, by what is odd about them. All are 0 in a clean trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Oddities {
    /// Left out: the key is empty.
    pub empty_keys: usize,
    /// Left out: the key is longer than the protocol allows.
    pub long_keys: usize,
    /// Left out: the key contains a byte that the protocol forbids.
    pub forbidden_keys: usize,
    /// Left out: the line is too long.
    pub long_lines: usize,
    /// The value is too large, and cut.
    pub cut_values: usize,
    /// The TTL is too long, and cut.
    pub cut_ttls: usize,
    /// The time is before that of an earlier request, and moved to it.
    pub backward_times: usize,
    /// The key in the file has another length than the column of key sizes says; the column counts.
    pub other_key_sizes: usize,
    /// The object is shorter than the key in the file, so a server stores more than the trace says.
    pub short_objects: usize,
    /// The object has no bytes.
    pub empty_objects: usize,
    /// Objects that come again beyond the end of the file, which is therefore a part of a trace.
    pub cut_objects: usize,
}

impl Oddities {
    /// A sentence for each count that is not 0.
    pub fn sentences(&self) -> Vec<String> {
        let value_max = VALUE_BYTES_MAX;
        let all = [
            (self.empty_keys, "left out: the key is empty".to_owned()),
            (self.long_keys, format!("left out: the key is longer than {KEY_BYTES_MAX} bytes")),
            (
                self.forbidden_keys,
                "left out: the key contains a blank or a control byte".to_owned(),
            ),
            (self.long_lines, format!("left out: the line is longer than {LINE_BYTES_MAX} bytes")),
            (self.cut_values, format!("changed: the value is cut to {value_max} bytes")),
            (self.cut_ttls, format!("changed: the TTL is cut to {} s", u32::MAX)),
            (self.backward_times, "changed: the time goes backward".to_owned()),
            (
                self.other_key_sizes,
                "with a key of another length than its size says; the size counts".to_owned(),
            ),
            (
                self.short_objects,
                "of objects that are shorter than their keys; a server stores more".to_owned(),
            ),
            (self.empty_objects, "of objects without bytes, which take no memory".to_owned()),
        ];
        let requests = |(count, what): &(usize, String)| match count {
            0 => None,
            1 => Some(format!("1 request {what}")),
            count => Some(format!("{count} requests {what}")),
        };
        let mut sentences: Vec<String> = all.iter().filter_map(requests).collect();
        if self.cut_objects > 0 {
            let count = self.cut_objects;
            sentences.push(format!("the file is cut: {count} objects come again after its end"));
        }
        sentences
    }
}

//! Counts the keys that are missing although they were stored and nothing removed them.
//!
//! Upstream:   `run`, which passes each request that is settled or lost.
//! Downstream: `run` fails if more keys are missing than memory explains.
//!
//! A key is *kept* from a plain `set` without a TTL that was answered STORED, until any other
//! request names it or anything is flushed. Only eviction may remove its item. Eviction drops old
//! items first, so it does not explain a miss soon after the store.
//!
//! Invariants:
//! - I1  A key is kept only if no request that may change its item was executed after its `set`.
//!   Requests that are settled in one nanosecond may have been executed in any order.

use std::collections::BTreeMap;

use crate::answer::Asked;
use crate::ask::Expect;
use crate::record::Moment;

/// A key is new while values of less than this part of memory were stored after it; as a divisor.
const NEW_DIVISOR: u64 = 4;

/// The keys that are kept.
#[derive(Default)]
pub(crate) struct Kept {
    /// For each kept key, `stored_bytes` when its `set` was settled, and the nanosecond.
    keys: BTreeMap<Vec<u8>, (u64, u64)>,
    /// For each key, when a request that may have changed its item was settled.
    changed_ns: BTreeMap<Vec<u8>, u64>,
    /// Only what arrives after this nanosecond, and in a later second, outlives the last flush.
    flushed: (u64, u32),
    /// The bytes of all stores that were settled.
    stored_bytes: u64,
    /// Retrievals of new kept keys, and how many of them missed.
    pub(crate) reads: u64,
    pub(crate) missing: u64,
}

impl Kept {
    /// Notes a settled request. `is_named`: whether a request under way may change the item of this
    /// key.
    pub(crate) fn settle(
        &mut self,
        asked: &Asked,
        now: Moment,
        memory_bytes: u64,
        is_named: impl Fn(&[u8]) -> bool,
    ) {
        let words = words(asked);
        let arrived = asked.arrived.map_or((0, 0), |arrived| (arrived.ns, arrived.second));
        match words[0] {
            b"get" | b"gets" => {
                let is_answered = matches!(asked.ask.expect, Expect::Values(_));
                let keys = if is_answered { &words[1..] } else { &[] };
                for (place, key) in keys.iter().enumerate() {
                    if asked.disk_errors().chain(asked.unread()).any(|failed| failed == *key) {
                        continue; // It says that the item is there and cannot be read.
                    }
                    let kept = self.keys.get(*key).filter(|(_, ns)| *ns < arrived.0);
                    let Some((stored, _)) = kept else { continue };
                    let is_new = (self.stored_bytes - stored) * NEW_DIVISOR < memory_bytes;
                    let is_missing = !asked.found.contains(&place);
                    if is_missing && is_named(key) {
                        continue;
                    }
                    self.reads += u64::from(is_new);
                    self.missing += u64::from(is_new && is_missing);
                    if is_missing {
                        self.keys.remove(*key);
                    }
                }
                return;
            }
            b"flush_all" | b"flush_prefix" => {
                self.keys.clear();
                // A flush of a prefix leaves one of all keys pending.
                let pending = if words[0] == b"flush_prefix" { self.flushed.1 } else { 0 };
                let second = now.second + asked.ask.flush_delay_s().unwrap_or(0);
                self.flushed = (now.ns, second.max(pending));
                return;
            }
            _ => {}
        }
        let is_stored = asked.replies.first().is_some_and(|(_, reply)| reply == b"STORED\r\n");
        for key in &words[1..] {
            self.keys.remove(*key);
            let changed_ns = self.changed_ns.insert(key.to_vec(), now.ns);
            let is_last = changed_ns.is_none_or(|changed_ns| changed_ns < arrived.0) // I1
                && arrived.0 > self.flushed.0
                && arrived.1 > self.flushed.1;
            if is_last && is_stored && words[0] == b"set" && words[3] == b"0" && *key == words[1] {
                self.keys.insert(key.to_vec(), (self.stored_bytes, now.ns));
            }
        }
        self.stored_bytes += if asked.ask.stores() { asked.ask.text.len() as u64 } else { 0 };
    }

    /// Notes a request that may still be executed at any time.
    pub(crate) fn lose(&mut self, asked: &Asked) {
        let words = words(asked);
        if words[0].starts_with(b"flush_") {
            self.flushed = (u64::MAX, u32::MAX);
            self.keys.clear();
        }
        for key in words[1..].iter().filter(|_| !asked.ask.only_reads()) {
            self.keys.remove(*key);
            self.changed_ns.insert(key.to_vec(), u64::MAX);
        }
    }
}

/// The words of a request's line.
fn words(asked: &Asked) -> Vec<&[u8]> {
    let line = asked.ask.text.split(|byte| *byte == b'\r').next().unwrap_or_default();
    line.split(|byte| *byte == b' ').collect()
}

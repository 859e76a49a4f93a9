//! A history: what clients invoked, when, and what they were told.
//!
//! Upstream:   whoever drives a server and watches.
//! Downstream: `judge`.
//!
//! Invariants:
//! - I1  Times are of one clock for the whole history; what returned before another was invoked has
//!   the smaller time. Equal times say nothing of an order.
//! - I2  An operation whose outcome is unknown never returned.

use crate::{Operation, Outcome};

/// The time at which an operation of unknown outcome returned.
pub const NEVER: u64 = u64::MAX;

/// The seconds of the server's clock in one of which an operation was carried out.
///
/// A client that does not know the server's clock counts seconds of its own from any beginning: the
/// server's second is then its own or the one behind it, so `latest_s` is to be one more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// No earlier second.
    pub earliest_s: u32,
    /// No later second.
    pub latest_s: u32,
}

impl Window {
    /// All of time: says nothing.
    pub const ANY: Self = Self { earliest_s: 0, latest_s: u32::MAX };

    /// Exactly one second.
    pub const fn at(second: u32) -> Self {
        Self { earliest_s: second, latest_s: second }
    }
}

/// One operation of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Who asked: one connection. What it asked is carried out in the order of its invocations,
    /// also where several are under way. A connection that was lost and made again is another.
    pub client: u32,
    /// What was asked, and of which key.
    pub operation: Operation,
    /// What came of it.
    pub outcome: Outcome,
    /// When the client began to ask (I1).
    pub invoked: u64,
    /// When it was told; [`NEVER`] when it was not (I2).
    pub returned: u64,
    /// Between which seconds, for what expires.
    pub window: Window,
}

impl Entry {
    /// An operation of which the client knows nothing, but when it asked.
    pub fn unknown(client: u32, operation: Operation, invoked: u64, earliest_s: u32) -> Self {
        let window = Window { earliest_s, latest_s: u32::MAX };
        Self { client, operation, outcome: Outcome::Unknown, invoked, returned: NEVER, window }
    }
}

/// What clients saw of one server that began empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// The operations, in any order.
    pub entries: Vec<Entry>,
}

impl History {
    /// Adds an operation.
    ///
    /// Panics: if it returned before it was invoked, or returned with an unknown outcome (I2).
    pub fn push(&mut self, entry: Entry) {
        assert!(entry.invoked <= entry.returned, "I1: {entry:?}");
        let unknown = entry.outcome == Outcome::Unknown;
        assert!(!unknown || entry.returned == NEVER, "I2: {entry:?}");
        assert!(entry.window.earliest_s <= entry.window.latest_s, "{entry:?}");
        self.entries.push(entry);
    }

    /// How many outcomes are unknown.
    pub fn unknown_count(&self) -> usize {
        self.entries.iter().filter(|entry| entry.outcome == Outcome::Unknown).count()
    }
}

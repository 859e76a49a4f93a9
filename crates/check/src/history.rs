//! A history: the operations that clients invoked, with their times and outcomes.
//!
//! Upstream:   tests and the simulator, which drive a server and record its clients.
//! Downstream: `judge`.
//!
//! Invariants:
//! - I1  All times of a history come from one clock. If an operation returned before another was
//!   invoked, its return time is smaller than the invocation time of the other. Equal times imply
//!   no order.
//! - I2  An operation with an unknown outcome never returned.

use crate::{Operation, Outcome};

/// The return time of an operation that never returned.
pub const NEVER: u64 = u64::MAX;

/// A range of seconds of the server's clock. An operation was executed in one of them.
///
/// A client that does not know the server's clock may count its own seconds from any start. The
/// server's second is then the client's second or the next one, so `latest_s` must be one more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The earliest possible second.
    pub earliest_s: u32,
    /// The latest possible second.
    pub latest_s: u32,
}

impl Window {
    /// Every second is possible.
    pub const ANY: Self = Self { earliest_s: 0, latest_s: u32::MAX };

    /// Exactly one second.
    pub const fn at(second: u32) -> Self {
        Self { earliest_s: second, latest_s: second }
    }
}

/// One operation of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The client, which is one connection. The server executes the operations of a client in the
    /// order of their invocations, even if several are pending. A connection that broke and was
    /// made again is another client.
    pub client: u32,
    /// The operation.
    pub operation: Operation,
    /// The outcome.
    pub outcome: Outcome,
    /// When the client invoked the operation (I1).
    pub invoked: u64,
    /// When the client received the reply; [`NEVER`] if it received none (I2).
    pub returned: u64,
    /// The seconds in which the operation may have been executed. They decide which items may have
    /// expired.
    pub window: Window,
}

impl Entry {
    /// An operation with an unknown outcome. The server may execute it in any second from
    /// `earliest_s` on.
    pub fn unknown(client: u32, operation: Operation, invoked: u64, earliest_s: u32) -> Self {
        let window = Window { earliest_s, latest_s: u32::MAX };
        Self { client, operation, outcome: Outcome::Unknown, invoked, returned: NEVER, window }
    }
}

/// The operations of clients on one server that started empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// The operations, in any order.
    pub entries: Vec<Entry>,
}

impl History {
    /// Adds an operation.
    ///
    /// Panics: if the entry returned before it was invoked (I1), if it returned with an unknown
    /// outcome (I2), or if its window ends before it begins.
    pub fn push(&mut self, entry: Entry) {
        assert!(entry.invoked <= entry.returned, "I1: {entry:?}");
        let unknown = entry.outcome == Outcome::Unknown;
        assert!(!unknown || entry.returned == NEVER, "I2: {entry:?}");
        assert!(entry.window.earliest_s <= entry.window.latest_s, "{entry:?}");
        self.entries.push(entry);
    }

    /// The number of operations with an unknown outcome.
    pub fn unknown_count(&self) -> usize {
        self.entries.iter().filter(|entry| entry.outcome == Outcome::Unknown).count()
    }
}

//! Requests in flight, and the trait of a source of requests.
//!
//! Upstream:   `drive` asks a source for the next request whenever a connection is below its depth.
//! Downstream: the bytes are sent in order on that connection; a `Pending` waits for the answer.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  The server answers every request (quiet commands only before one that is answered), so the
//!   n-th answer on a connection belongs to the n-th request.

use std::collections::VecDeque;

/// The kind under which a request is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `get` and `gets`.
    Get,
    /// `set`, `add`, `replace`, `append`, `prepend`, `cas`.
    Set,
    /// `delete`, `incr`, `decr`, `touch`.
    Other,
    /// `mscan`.
    Scan,
}

impl Kind {
    /// Number of kinds.
    pub(crate) const COUNT: usize = 4;
    /// Their names in reports, by index.
    pub(crate) const NAMES: [&'static str; Self::COUNT] = ["get", "set", "other", "scan"];

    /// Index in arrays by kind.
    #[inline]
    pub(crate) fn index(self) -> usize {
        self as usize
    }
}

/// Why a request is sent at its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// It is due.
    Due,
    /// It was due while another request for its key was in flight, and is sent after that one's
    /// answer.
    Waited,
    /// It follows from the answer to another request, beside those that are due.
    Follows,
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    /// Why it is sent at its time.
    pub(crate) cause: Cause,
    /// The kind under which it is counted.
    pub(crate) kind: Kind,
    /// Number of its keys; of a scan, the most items.
    pub(crate) keys: u32,
    /// For the source: a key number or the index of a trace's record.
    pub(crate) token: u64,
    /// Intended send time, in ns of the run's clock; in a closed loop, the actual one.
    pub(crate) intended_ns: u64,
    /// When the request was formatted, directly before it was sent.
    pub(crate) sent_ns: u64,
}

impl Pending {
    /// A request of the load itself, which is sent because it is due.
    #[inline]
    pub(crate) const fn due(
        kind: Kind,
        keys: u32,
        token: u64,
        intended_ns: u64,
        sent_ns: u64,
    ) -> Self {
        Self { cause: Cause::Due, kind, keys, token, intended_ns, sent_ns }
    }
}

/// How a request was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// A get's reply is complete; the number of items found.
    Hits(u32),
    /// A scan's reply is complete; the number of its items.
    Scanned(u32),
    /// The request succeeded.
    Done,
    /// The request was valid but changed nothing: not found, not stored, exists.
    NotDone,
    /// An error line, or no answer at all.
    Failed,
}

/// Answer of a source to the call for the next request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Next {
    /// A request, formatted into the outbox.
    Request(Pending),
    /// No request before this time (ns).
    At(u64),
    /// No request before one of those in flight is answered.
    Blocked,
    /// The source is finished.
    Finished,
}

/// Formatted requests that are not sent yet, and the keys of multigets for checking.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// The bytes; those from `sent_bytes` on are not sent yet.
    pub(crate) bytes: Vec<u8>,
    /// Number of bytes that the kernel accepted.
    pub(crate) sent_bytes: usize,
    /// Keys of the gets in flight, if the source checks replies.
    pub(crate) asked: Asked,
    /// The number of the next command, for protocols that number them.
    opaque: u32,
}

impl Outbox {
    /// Takes the numbers of this many commands; returns the first one.
    #[inline]
    pub(crate) fn next_opaque(&mut self, commands: u32) -> u32 {
        let first = self.opaque;
        self.opaque = first.wrapping_add(commands);
        first
    }

    /// The number of the next command.
    #[inline]
    pub(crate) fn opaque(&self) -> u32 {
        self.opaque
    }
}

/// Key numbers of the gets in flight on one connection, in order.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    numbers: VecDeque<u64>,
    passed: u32,
}

impl Asked {
    /// Adds a key of the request that is being formatted.
    #[inline]
    pub(crate) fn push(&mut self, number: u64) {
        self.numbers.push_back(number);
    }

    /// The next key of the oldest request, which has `keys` keys; `None` after the last one.
    #[inline]
    pub(crate) fn next(&mut self, keys: u32) -> Option<u64> {
        if self.passed == keys {
            return None;
        }
        let number = self.numbers.pop_front()?;
        self.passed += 1;
        Some(number)
    }

    /// Removes all requests.
    pub(crate) fn clear(&mut self) {
        self.numbers.clear();
        self.passed = 0;
    }

    /// Removes the oldest request.
    #[inline]
    pub(crate) fn finish(&mut self, keys: u32) {
        while self.next(keys).is_some() {}
        self.passed = 0;
    }
}

/// A source of requests: a steady mix, a preload, or a trace.
pub(crate) trait Source {
    /// Formats the next request, if there is one now.
    fn next(&mut self, now_ns: u64, outbox: &mut Outbox) -> Next;

    /// Takes the next request of an open loop, if there is one now, that will not be sent. A source
    /// that may have many of them formats none.
    fn skip(&mut self, now_ns: u64) -> Next {
        self.next(now_ns, &mut Outbox::default())
    }

    /// The index of the server of the next request, if there are several.
    fn server_of_next(&mut self) -> usize {
        0
    }

    /// Checks one item of the reply to a get or to a scan. Returns false if the value is wrong for
    /// the key. `key` is absent if the protocol does not repeat it; the item is then that of the
    /// next asked key.
    fn item(
        &mut self,
        pending: &Pending,
        key: Option<&[u8]>,
        value: &[u8],
        cas: Option<u64>,
        asked: &mut Asked,
    ) -> bool;

    /// Receives the result of a request; may format a request that follows from it (look-aside).
    fn answered(
        &mut self,
        pending: &Pending,
        outcome: Outcome,
        now_ns: u64,
        outbox: &mut Outbox,
    ) -> Option<Pending>;

    /// The time from which no request begins, if the source has such a time.
    fn until_ns(&self) -> Option<u64>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asked_keys_stay_with_their_request() {
        let mut asked = Asked::default();
        for number in 1..=5 {
            asked.push(number);
        }
        assert_eq!((asked.next(3), asked.next(3)), (Some(1), Some(2)));
        asked.finish(3);
        assert_eq!((asked.next(2), asked.next(2), asked.next(2)), (Some(4), Some(5), None));
        asked.finish(2);
        assert_eq!(asked.next(1), None);
    }
}

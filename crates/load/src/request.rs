//! What a request is while it is under way, and what a source of requests is.
//!
//! Upstream:   `drive` asks a source for the next request whenever a connection has room.
//! Downstream: the bytes go out in order on that connection; a `Pending` waits for the answer.
//!
//! Invariants, cited by number where they are asserted:
//! - I1  Every request worded is answered by the server (no quiet or noreply requests), so that the
//!   n-th answer on a connection belongs to the n-th request.

use std::collections::VecDeque;

/// What a request is counted as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `get` and `gets`.
    Get,
    /// `set`, `add`, `replace`, `append`, `prepend`, `cas`.
    Set,
    /// `delete`, `incr`, `decr`, `touch`.
    Other,
}

impl Kind {
    /// How many kinds there are.
    pub(crate) const COUNT: usize = 3;
    /// Their names in reports, by index.
    pub(crate) const NAMES: [&'static str; Self::COUNT] = ["get", "set", "other"];

    /// Place in arrays by kind.
    #[inline]
    pub(crate) fn index(self) -> usize {
        self as usize
    }
}

/// A request that was sent and waits for its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    /// What it is counted as.
    pub(crate) kind: Kind,
    /// How many keys it names.
    pub(crate) keys: u32,
    /// The source's own: a key number or the index of a trace's record.
    pub(crate) token: u64,
    /// When it should have been sent, in ns of the run's clock; a closed loop's is when it was.
    pub(crate) intended_ns: u64,
    /// When it was worded, right before sending.
    pub(crate) sent_ns: u64,
}

/// How a request was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// A get's reply came to its end, with so many items.
    Hits(u32),
    /// Done as asked.
    Done,
    /// Rightly asked, not done: not found, not stored, exists.
    NotDone,
    /// An error line, or no answer at all.
    Failed,
}

/// What a source has to offer now.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Next {
    /// A request, worded into the outbox.
    Request(Pending),
    /// Nothing before this time (ns).
    At(u64),
    /// Nothing before one of the requests under way is answered.
    Blocked,
    /// Nothing more.
    Finished,
}

/// Requests worded and not yet taken by the kernel, and the keys of multigets for checking.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// The bytes; from `sent_bytes` on they are still to go.
    pub(crate) bytes: Vec<u8>,
    /// How many bytes the kernel took.
    pub(crate) sent_bytes: usize,
    /// Which keys the gets under way name, if the source wants to check replies.
    pub(crate) asked: Asked,
}

/// Key numbers of the gets under way on one connection, in order.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    numbers: VecDeque<u64>,
    passed: u32,
}

impl Asked {
    /// Adds a key of the request being worded.
    #[inline]
    pub(crate) fn push(&mut self, number: u64) {
        self.numbers.push_back(number);
    }

    /// The next key of the oldest request, which named `keys` of them; `None` when all are passed.
    #[inline]
    pub(crate) fn next(&mut self, keys: u32) -> Option<u64> {
        if self.passed == keys {
            return None;
        }
        let number = self.numbers.pop_front()?;
        self.passed += 1;
        Some(number)
    }

    /// Leaves the oldest request behind.
    #[inline]
    pub(crate) fn finish(&mut self, keys: u32) {
        while self.next(keys).is_some() {}
        self.passed = 0;
    }
}

/// Where requests come from: a steady mix, a preload, or a trace.
pub(crate) trait Source {
    /// Words the next request, if there is one now.
    fn next(&mut self, now_ns: u64, outbox: &mut Outbox) -> Next;

    /// Sees one item of a get's reply; false if it is not what that key must hold.
    fn item(
        &mut self,
        pending: &Pending,
        key: &[u8],
        value: &[u8],
        cas: Option<u64>,
        asked: &mut Asked,
    ) -> bool;

    /// Hears how a request ended; may word another that follows from it (look-aside).
    fn answered(
        &mut self,
        pending: &Pending,
        outcome: Outcome,
        now_ns: u64,
        outbox: &mut Outbox,
    ) -> Option<Pending>;

    /// When no more requests are meant to begin, if the source has such a time.
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

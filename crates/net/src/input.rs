//! The input of a connection that is not served yet.
//!
//! Upstream:   `shard` adds bytes that `io` lent, takes the input out to serve it, and puts the
//!             rest back.
//! Downstream: `overdue` checks how long a request takes to arrive.
//!
//! Invariants:
//! - I1  The tail begins at a request's first byte, or inside its data block while an upload runs.
//! - I2  While bytes must be skipped, the tail is empty: skipped bytes are never stored.
//! - I3  While a retrieval is kept to be resumed, the tail begins with its line.

use kachel_wire::request::{RetrieveForm, Ttl};

use crate::limits::OWN_BYTES_PER_CONNECTION;

/// Where a retrieval continues whose line was parsed and whose first keys were answered. Offsets
/// are from the start of the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resume {
    /// The offset of the first key that is not answered.
    pub next_key: usize,
    /// The offset of the end of the last key.
    pub keys_end: usize,
    /// The form of the reply.
    pub form: RetrieveForm,
    /// The TTL that the items get, if the retrieval sets one.
    pub ttl: Option<Ttl>,
}

/// Received bytes that are not served yet.
#[derive(Debug)]
pub struct Input {
    /// A partial request, or requests that must wait. It is empty most of the time, and then it has
    /// no memory.
    tail: Vec<u8>,
    /// Bytes of the tail's memory that are charged to the budget of the process.
    charged_bytes: u64,
    /// Bytes at the tail's start that contain no line end.
    scanned_bytes: usize,
    /// The retrieval at the tail's start, if its first keys are answered (I3).
    resume: Option<Resume>,
    /// Bytes of a refused data block that must still be skipped.
    skip_bytes: u64,
    /// The sweep of the shard (one per second) since which the request at the front waits for its
    /// remaining bytes. 0 if no request waits.
    waiting_since: u32,
    /// The length of the data block that the request at the front announced. It extends the
    /// deadline of the request. 0 while the line is not whole.
    announced_bytes: u32,
}

impl Input {
    /// Makes an empty input, without memory.
    pub(crate) const fn new() -> Self {
        Self {
            tail: Vec::new(),
            charged_bytes: 0,
            scanned_bytes: 0,
            resume: None,
            skip_bytes: 0,
            waiting_since: 0,
            announced_bytes: 0,
        }
    }

    /// Whether the tail is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.tail.is_empty()
    }

    /// Bytes of the tail.
    #[inline]
    pub fn byte_count(&self) -> usize {
        self.tail.len()
    }

    /// Bytes of memory of the tail.
    #[inline]
    pub fn memory_bytes(&self) -> usize {
        self.tail.capacity()
    }

    /// Adds bytes to the tail. If the tail has no memory yet, it uses the memory that `spare`
    /// returns.
    pub fn append(&mut self, bytes: &[u8], spare: impl FnOnce() -> Vec<u8>) {
        if self.tail.capacity() == 0 {
            self.tail = spare();
            debug_assert!(self.tail.is_empty(), "spare memory holds no bytes");
        }
        add_to_tail(&mut self.tail, bytes);
    }

    /// Takes the tail out, so that it can be served. [`Self::keep`] brings back the bytes that
    /// could not be served.
    #[inline]
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.tail)
    }

    /// Keeps the bytes that could not be served, as the tail.
    pub fn keep(&mut self, tail: Vec<u8>) {
        debug_assert!(self.tail.is_empty(), "what was kept is served");
        debug_assert!(tail.is_empty() || self.skip_bytes == 0, "I2");
        self.tail = tail;
    }

    /// Notes that all input was served. `in_block` says that the input ended inside a data block.
    #[inline]
    pub fn note_served(&mut self, in_block: bool) {
        self.tail = Vec::new();
        self.scanned_bytes = 0;
        if !in_block {
            self.waiting_since = 0;
            self.announced_bytes = 0;
        }
    }

    /// Shrinks the memory of the tail to `bytes`, but not below its content.
    pub fn shrink_to(&mut self, bytes: usize) {
        self.tail.shrink_to(bytes);
    }

    /// Drops the tail.
    pub fn clear(&mut self) {
        (self.tail, self.resume) = (Vec::new(), None);
    }

    /// Bytes of the tail's memory that count against `-m`: those beyond the own share of a
    /// connection.
    pub fn chargeable_bytes(&self) -> u64 {
        self.tail.capacity().saturating_sub(OWN_BYTES_PER_CONNECTION) as u64
    }

    /// Bytes that are charged to the budget.
    pub const fn charged_bytes(&self) -> u64 {
        self.charged_bytes
    }

    /// Sets the bytes that are charged to the budget. Returns their number before.
    pub fn set_charged_bytes(&mut self, bytes: u64) -> u64 {
        debug_assert!(bytes <= self.chargeable_bytes(), "no more is charged than is used");
        std::mem::replace(&mut self.charged_bytes, bytes)
    }

    /// Bytes at the front that are known to contain no line end.
    #[inline]
    pub const fn scanned_bytes(&self) -> usize {
        self.scanned_bytes
    }

    /// Notes that the first `bytes` of the input contain no line end.
    #[inline]
    pub fn note_scanned(&mut self, bytes: usize) {
        debug_assert!(self.skip_bytes == 0, "I2: bytes to skip are not searched");
        self.scanned_bytes = bytes;
        self.announced_bytes = 0;
    }

    /// Notes that it is not known where the first line end is.
    #[inline]
    pub fn forget_scanned(&mut self) {
        self.scanned_bytes = 0;
    }

    /// Notes that a data block of this size is awaited. Its time begins when its line has ended. An
    /// empty block counts as one byte, because its CR LF is awaited.
    pub fn note_announced(&mut self, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).max(1);
        if std::mem::replace(&mut self.announced_bytes, bytes) == 0 {
            self.waiting_since = 0;
        }
        // The line at the front is whole. It is not known where the next line end is.
        self.scanned_bytes = 0;
    }

    /// Notes that a large data block begins. Its time begins when this tick ends.
    pub(crate) fn begin_block(&mut self, bytes: usize) {
        self.note_announced(bytes);
        self.waiting_since = 0;
    }

    /// Notes that a large data block has ended.
    pub(crate) const fn end_block(&mut self) {
        self.announced_bytes = 0;
        self.waiting_since = 0;
    }

    /// Skips the next `bytes` of the input.
    pub fn skip(&mut self, bytes: u64) {
        assert!(self.skip_bytes == 0, "I2: one data block is skipped at a time");
        if bytes > 0 {
            self.begin_block(usize::try_from(bytes).unwrap_or(usize::MAX));
            self.skip_bytes = bytes;
        }
    }

    /// Whether bytes must be skipped.
    #[inline]
    pub const fn is_skipping(&self) -> bool {
        self.skip_bytes > 0
    }

    /// Whether a part of the request at the front was carried out: it is a retrieval whose first
    /// keys are answered, or its block is skipped.
    pub const fn is_begun(&self) -> bool {
        self.is_skipping() || self.resume.is_some()
    }

    /// Whether a retrieval continues at the front.
    pub const fn is_retrieving(&self) -> bool {
        self.resume.is_some()
    }

    /// Skips as many of `bytes` received bytes as must be skipped. Returns their number.
    pub fn note_skipped(&mut self, bytes: usize) -> usize {
        let skipped = (bytes as u64).min(self.skip_bytes);
        self.skip_bytes -= skipped;
        usize::try_from(skipped).expect("at most the bytes that have come")
    }

    /// Takes the retrieval that continues at the front (I3).
    #[inline]
    pub fn take_resume(&mut self) -> Option<Resume> {
        self.resume.take()
    }

    /// Keeps a retrieval that continues later. The tail must begin with its line (I3).
    pub fn set_resume(&mut self, resume: Resume) {
        debug_assert!(resume.next_key < resume.keys_end, "a key is left to be answered");
        self.resume = Some(resume);
    }

    /// Notes that the input begins with a new request, whose time begins now.
    #[inline]
    pub fn restart_wait(&mut self) {
        self.waiting_since = 0;
    }

    /// Notes that a request waits for its remaining bytes. Its time begins in this sweep, unless it
    /// has waited before.
    #[inline]
    pub fn note_waiting(&mut self, sweep: u32) {
        debug_assert!(sweep > 0, "sweeps are numbered from 1 on");
        if self.waiting_since == 0 {
            self.waiting_since = sweep;
        }
    }

    /// Restarts the time of a request that waits for its remaining bytes, because the connection
    /// did not receive meanwhile.
    pub(crate) fn wait_from(&mut self, sweep: u32) {
        debug_assert!(sweep >= self.waiting_since, "sweeps are numbered upwards");
        if self.waiting_since != 0 {
            self.waiting_since = sweep;
        }
    }

    /// The sweep since which the request at the front waits for its remaining bytes. `None` if no
    /// request waits.
    pub(crate) fn waiting_since(&self) -> Option<u32> {
        (self.waiting_since != 0).then_some(self.waiting_since)
    }

    /// The length of the data block that the request at the front announced.
    pub(crate) const fn announced_bytes(&self) -> u32 {
        self.announced_bytes
    }
}

/// Adds bytes to a tail. Its memory grows to powers of two, so that the memory that a shard uses
/// for one tail after another soon stops growing.
pub fn add_to_tail(tail: &mut Vec<u8>, bytes: &[u8]) {
    let needed = tail.len() + bytes.len();
    if needed > tail.capacity() {
        tail.reserve_exact(needed.next_power_of_two() - tail.len());
        debug_assert!(tail.capacity() <= 2 * needed, "at most half of new memory is unused");
    }
    tail.extend_from_slice(bytes);
    debug_assert!(tail.len() == needed, "all bytes are added");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_kept_in_spare_memory_and_taken_whole() {
        let mut input = Input::new();
        assert!(input.is_empty() && input.memory_bytes() == 0);
        input.append(b"get ", || Vec::with_capacity(64));
        input.append(b"key", || unreachable!("it has memory"));
        assert!(input.memory_bytes() >= 64);
        assert_eq!(input.take(), b"get key");
        assert!(input.is_empty() && input.memory_bytes() == 0);
    }

    #[test]
    fn memory_beyond_its_own_share_is_charged_once() {
        let mut input = Input::new();
        input.keep(Vec::with_capacity(OWN_BYTES_PER_CONNECTION + 100));
        let wanted = input.chargeable_bytes();
        assert!(wanted >= 100);
        assert_eq!(input.set_charged_bytes(wanted), 0);
        input.clear();
        assert_eq!((input.set_charged_bytes(0), input.chargeable_bytes()), (wanted, 0));
    }

    #[test]
    fn a_refused_block_is_skipped_in_pieces() {
        let mut input = Input::new();
        input.skip(0);
        assert!(!input.is_skipping());
        input.skip(10);
        assert_eq!((input.note_skipped(4), input.note_skipped(100)), (4, 6));
        assert!(!input.is_skipping());
    }

    #[test]
    #[should_panic(expected = "one data block is skipped at a time")]
    fn a_block_is_not_skipped_inside_another() {
        let mut input = Input::new();
        input.skip(10);
        input.skip(10);
    }

    #[test]
    fn the_time_of_a_block_begins_with_the_end_of_its_line() {
        let mut input = Input::new();
        input.note_waiting(3);
        input.note_waiting(4);
        assert_eq!(input.waiting_since(), Some(3), "the line has waited since then");
        input.note_announced(0);
        assert_eq!((input.waiting_since(), input.announced_bytes()), (None, 1));
        input.note_waiting(7);
        input.note_announced(0);
        assert_eq!(input.waiting_since(), Some(7), "the block was announced before");
        input.wait_from(9);
        assert_eq!(input.waiting_since(), Some(9));
        input.note_served(true);
        assert_eq!(input.waiting_since(), Some(9), "it ended inside the block");
        input.note_served(false);
        assert_eq!((input.waiting_since(), input.announced_bytes()), (None, 0));
        input.wait_from(10);
        assert_eq!(input.waiting_since(), None, "nothing waits");
    }

    #[test]
    fn a_retrieval_is_resumed_once() {
        let mut input = Input::new();
        let form = RetrieveForm::WithCas;
        let resume = Resume { next_key: 4, keys_end: 9, form, ttl: Some(Ttl(3)) };
        input.set_resume(resume);
        assert_eq!((input.take_resume(), input.take_resume()), (Some(resume), None));
        input.note_scanned(12);
        assert_eq!(input.scanned_bytes(), 12);
        input.forget_scanned();
        assert_eq!(input.scanned_bytes(), 0);
    }
}

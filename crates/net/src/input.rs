//! What a client has sent and is not served yet.
//!
//! Upstream:   `shard` adds what `io` lent, and takes requests off the front.
//! Downstream: `overdue` judges how long a request takes to come.
//!
//! Invariants:
//! - I1  The tail begins at a request's first byte, or inside its data block when an upload runs.
//! - I2  While bytes must be skipped the tail is empty: skipped bytes are never stored.
//! - I3  While a retrieval is kept to be resumed, the tail begins with its line.

use kachel_wire::request::Ttl;

use crate::limits::OWN_BYTES_PER_CONNECTION;

/// A retrieval whose line was read and whose first keys are answered: where it goes on. Offsets are
/// from the line's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resume {
    /// Where the first key stands that is not answered.
    pub next_key: usize,
    /// Where the last key ends, and the line's end begins.
    pub keys_end: usize,
    /// Whether the reply shows CAS tokens.
    pub with_cas: bool,
    /// The TTL to give.
    pub ttl: Option<Ttl>,
}

/// What has come in and is not served yet.
#[derive(Debug)]
pub struct Input {
    /// A partial request, or requests that must wait. Empty in the steady state, and then without
    /// memory.
    tail: Vec<u8>,
    /// Bytes of the tail's memory that the process's budget was charged for.
    charged_bytes: u64,
    /// Bytes at the tail's start that hold no line end.
    scanned_bytes: usize,
    /// The retrieval at the tail's start, if its first keys are answered (I3).
    resume: Option<Resume>,
    /// Bytes of a refused data block still to come.
    skip_bytes: u64,
    /// The sweep of the shard (one a second) by which the request at the tail's start had begun to
    /// wait for its rest; 0: none waits.
    waiting_since: u32,
    /// Bytes of data block that the request at the front announced; they lengthen its deadline. 0
    /// while its line is not whole.
    announced_bytes: u32,
}

impl Input {
    /// Nothing, without memory.
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

    /// Whether nothing is kept.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.tail.is_empty()
    }

    /// Bytes of memory of the tail.
    #[inline]
    pub fn memory_bytes(&self) -> usize {
        self.tail.capacity()
    }

    /// Adds bytes behind those that are kept. `spare` gives memory where there is none yet.
    pub fn append(&mut self, bytes: &[u8], spare: impl FnOnce() -> Vec<u8>) {
        if self.tail.capacity() == 0 {
            self.tail = spare();
            debug_assert!(self.tail.is_empty(), "spare memory holds no bytes");
        }
        self.tail.extend_from_slice(bytes);
    }

    /// Takes all that is kept, to be served; [`Self::keep`] brings back what could not be.
    #[inline]
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.tail)
    }

    /// Keeps what could not be served.
    pub fn keep(&mut self, tail: Vec<u8>) {
        debug_assert!(self.tail.is_empty(), "what was kept is served");
        debug_assert!(tail.is_empty() || self.skip_bytes == 0, "I2");
        self.tail = tail;
    }

    /// All that came was served; `in_block`: up to a place inside a data block.
    #[inline]
    pub fn note_served(&mut self, in_block: bool) {
        self.tail = Vec::new();
        self.scanned_bytes = 0;
        if !in_block {
            self.waiting_since = 0;
            self.announced_bytes = 0;
        }
    }

    /// Gives the tail's memory back as far as it is longer than `bytes` and not in use.
    pub fn shrink_to(&mut self, bytes: usize) {
        self.tail.shrink_to(bytes);
    }

    /// Drops all that is kept.
    pub fn clear(&mut self) {
        self.tail = Vec::new();
    }

    /// Bytes of the tail's memory that count against `-m`: what is beyond a connection's own share.
    pub fn chargeable_bytes(&self) -> u64 {
        self.tail.capacity().saturating_sub(OWN_BYTES_PER_CONNECTION) as u64
    }

    /// Bytes that the budget was charged with.
    pub const fn charged_bytes(&self) -> u64 {
        self.charged_bytes
    }

    /// Sets the bytes that the budget is charged with; returns those before.
    pub fn set_charged_bytes(&mut self, bytes: u64) -> u64 {
        debug_assert!(bytes <= self.chargeable_bytes(), "no more is charged than is used");
        std::mem::replace(&mut self.charged_bytes, bytes)
    }

    /// Bytes at the front that are known to hold no line end.
    #[inline]
    pub const fn scanned_bytes(&self) -> usize {
        self.scanned_bytes
    }

    /// Remembers that the input so far holds no whole line.
    #[inline]
    pub fn note_scanned(&mut self, bytes: usize) {
        debug_assert!(self.skip_bytes == 0, "I2: bytes to skip are not searched");
        self.scanned_bytes = bytes;
        self.announced_bytes = 0;
    }

    /// Forgets that: nothing is known of what stands at the front now.
    #[inline]
    pub fn forget_scanned(&mut self) {
        self.scanned_bytes = 0;
    }

    /// Remembers that a data block of this size is awaited: its time begins with the end of its
    /// line. An empty one counts as a byte, because its CR LF is awaited.
    pub fn note_announced(&mut self, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).max(1);
        if std::mem::replace(&mut self.announced_bytes, bytes) == 0 {
            self.waiting_since = 0;
        }
        // The line at the front is whole: nothing is known of what follows it.
        self.scanned_bytes = 0;
    }

    /// A large data block begins: its time begins when this tick ends.
    pub(crate) fn begin_block(&mut self, bytes: usize) {
        self.note_announced(bytes);
        self.waiting_since = 0;
    }

    /// A large data block has ended.
    pub(crate) const fn end_block(&mut self) {
        self.announced_bytes = 0;
        self.waiting_since = 0;
    }

    /// Lets the next `bytes` of input pass unread.
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

    /// Skips, of `bytes` that have come, those that must be skipped; returns how many.
    pub fn note_skipped(&mut self, bytes: usize) -> usize {
        let skipped = (bytes as u64).min(self.skip_bytes);
        self.skip_bytes -= skipped;
        usize::try_from(skipped).expect("at most the bytes that have come")
    }

    /// Takes the retrieval that goes on at the front (I3).
    #[inline]
    pub fn take_resume(&mut self) -> Option<Resume> {
        self.resume.take()
    }

    /// Keeps a retrieval that goes on later, from its line on (I3).
    pub fn set_resume(&mut self, resume: Resume) {
        debug_assert!(resume.next_key < resume.keys_end, "a key is left to be answered");
        self.resume = Some(resume);
    }

    /// The first bytes that are kept are a request's first: its time begins anew.
    #[inline]
    pub fn restart_wait(&mut self) {
        self.waiting_since = 0;
    }

    /// A request that is not whole waits for its rest, from this sweep on if it did not before.
    #[inline]
    pub fn note_waiting(&mut self, sweep: u32) {
        debug_assert!(sweep > 0, "sweeps are numbered from 1 on");
        if self.waiting_since == 0 {
            self.waiting_since = sweep;
        }
    }

    /// A request that waits for its rest was not received from meanwhile: its time begins now.
    pub(crate) fn wait_from(&mut self, sweep: u32) {
        debug_assert!(sweep >= self.waiting_since, "sweeps are numbered upwards");
        if self.waiting_since != 0 {
            self.waiting_since = sweep;
        }
    }

    /// The sweep from which on the request at the front has waited for its rest; `None`: none
    /// waits.
    pub(crate) fn waiting_since(&self) -> Option<u32> {
        (self.waiting_since != 0).then_some(self.waiting_since)
    }

    /// Bytes of data block that the request at the front announced.
    pub(crate) const fn announced_bytes(&self) -> u32 {
        self.announced_bytes
    }
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
        let resume = Resume { next_key: 4, keys_end: 9, with_cas: true, ttl: Some(Ttl(3)) };
        input.set_resume(resume);
        assert_eq!((input.take_resume(), input.take_resume()), (Some(resume), None));
        input.note_scanned(12);
        assert_eq!(input.scanned_bytes(), 12);
        input.forget_scanned();
        assert_eq!(input.scanned_bytes(), 0);
    }
}

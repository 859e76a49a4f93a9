//! The readings of certificates that clients asked for (`refresh_certs`).
//!
//! Upstream:   `refresh` asks for a reading; the process notes that it is done.
//! Downstream: `refresh` answers.
//!
//! Invariants:
//! - I1  A request is answered by a reading that began after the request.
//! - I2  Requests that come while the files are read wait for one more reading, all for the same.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::{Mutex, PoisonError};

use kachel_net::SlotIndex;

/// Whether a process can read its certificates again (`refresh_certs`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Certificates {
    /// It is built without TLS, and does not know the command.
    #[default]
    Unknown,
    /// It has none, because TLS was not asked for.
    NotEnabled,
    /// It can read them again.
    Readable,
}

/// The requests of all shards, and the last reading.
#[derive(Debug, Default)]
pub(crate) struct Refreshes {
    /// The number of requests so far.
    asked: AtomicU64,
    /// The number of the last request of which the process was told.
    announced: AtomicU64,
    /// The number of the last request that was answered by a reading.
    done: AtomicU64,
    error: Mutex<Option<String>>,
}

impl Refreshes {
    /// Whether there is a request of which the process was not told; the caller must tell it. Cost:
    /// two loads, because it is called after every tick.
    pub(crate) fn take_announcement(&self) -> bool {
        let asked = self.asked.load(Acquire);
        asked > self.announced.load(Acquire) && self.announced.swap(asked, AcqRel) < asked
    }

    /// The number of the last request, if no reading has answered it.
    pub(crate) fn asked(&self) -> Option<u64> {
        let done = self.done.load(Acquire);
        let asked = self.asked.load(Acquire);
        debug_assert!(done <= asked, "a reading answers requests that came");
        (asked > done).then_some(asked)
    }

    /// Notes that the files were read after request number `asked` (I1).
    pub(crate) fn note_done(&self, asked: u64, result: Result<(), String>) {
        *self.error.lock().unwrap_or_else(PoisonError::into_inner) = result.err();
        let before = self.done.swap(asked, Release);
        assert!(before < asked, "I2: a reading answers new requests");
    }

    /// Asks for a reading. Returns the number of the request.
    pub(crate) fn ask(&self) -> u64 {
        self.asked.fetch_add(1, AcqRel) + 1
    }

    /// The number of the last request that was answered by a reading.
    pub(crate) fn done(&self) -> u64 {
        self.done.load(Acquire)
    }

    /// The sentence about the file that could not be read. `None` after a good reading.
    pub(crate) fn error(&self) -> Option<String> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A client that waits for a reading.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refreshing {
    pub(crate) slot: SlotIndex,
    /// The number of its request.
    pub(crate) number: u64,
    /// Whether a good result is withheld.
    pub(crate) noreply: bool,
}

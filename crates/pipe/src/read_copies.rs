//! A copy and its reads, and the copies that were dropped since the last look.
//!
//! Upstream:   `table` makes and drops copies.
//! Downstream: `looks`.
//!
//! Invariants:
//! - C1  At most `DROPPED_MAX` dropped copies wait to be looked at. What is dropped beyond that is
//!   not told.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

use crate::layout::KEY_BYTES_MAX;

/// The most copies that wait to be told. A guess.
const DROPPED_MAX: usize = 1 << 12;

/// A copy, and how often it was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadCopy {
    /// The number of its slot.
    pub(crate) slot: usize,
    /// The version of the slot. No other copy in the slot has it.
    pub(crate) version: u64,
    pub(crate) secret_hash: u64,
    /// The key, and any bytes behind it.
    pub(crate) key: [u8; KEY_BYTES_MAX],
    pub(crate) key_bytes: usize,
    pub(crate) value_bytes: usize,
    /// Its reads since it was made. The number wraps around.
    pub(crate) reads: u32,
}

/// Copies that were dropped since the last look.
#[derive(Debug, Default)]
pub(crate) struct DroppedCopies {
    /// Whether copies that are dropped are noted, because `looks` will take them.
    are_noted: AtomicBool,
    copies: Mutex<Vec<ReadCopy>>,
}

impl DroppedCopies {
    /// Notes the copies that are dropped from now on, or none.
    pub(crate) fn note_all(&self, on: bool) {
        self.are_noted.store(on, Relaxed);
    }

    /// Whether the copies that are dropped must be noted. Cost: a load.
    pub(crate) fn are_noted(&self) -> bool {
        self.are_noted.load(Relaxed)
    }

    /// Notes a copy that was dropped, unless there is no room (C1) or the others are being told.
    pub(crate) fn note(&self, copy: ReadCopy) {
        if let Ok(mut copies) = self.copies.try_lock()
            && copies.len() < DROPPED_MAX
            && copy.reads > 0
        {
            copies.push(copy);
        }
    }

    /// Takes the copies that were noted.
    pub(crate) fn take(&self) -> Vec<ReadCopy> {
        std::mem::take(&mut self.copies.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

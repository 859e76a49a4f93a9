//! Connections with complete handshakes, on their way to a core.
//!
//! Upstream:   a thread for handshakes delivers them, and wakes the core.
//! Downstream: the layer of the core takes them in its next poll.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use kachel_io::{ListenerId, Peer, Waker};

use crate::limits::{INBOX_BYTES_MAX, INBOX_MAX};
use crate::session::Session;

/// A connection whose handshake is complete.
#[derive(Debug)]
pub(crate) struct Delivered {
    pub(crate) socket: OwnedFd,
    pub(crate) session: Box<Session>,
    /// The listener, by its name in the layer of the core.
    pub(crate) listener: ListenerId,
    pub(crate) peer: Peer,
    /// Plain bytes that came together with the end of the handshake.
    pub(crate) plain: Vec<u8>,
}

/// The connections for one core.
#[derive(Debug)]
pub struct Inbox {
    delivered: Mutex<Waiting>,
    /// Whether there may be some. The core reads it in each poll.
    has_some: AtomicBool,
    waker: Waker,
}

/// The connections that no core has taken yet.
#[derive(Debug, Default)]
struct Waiting {
    all: Vec<Delivered>,
    plain_bytes: usize,
}

impl Inbox {
    /// An empty inbox of the core whose backend `waker` wakes.
    pub(crate) fn new(waker: Waker) -> Self {
        Self { delivered: Mutex::default(), has_some: AtomicBool::new(false), waker }
    }

    /// Delivers a connection, and wakes the core. A core that has stopped taking them has more than
    /// it can serve: the connection is closed.
    pub(crate) fn deliver(&self, delivered: Delivered) {
        let mut waiting = self.delivered.lock().unwrap_or_else(PoisonError::into_inner);
        let plain_bytes = waiting.plain_bytes + delivered.plain.len();
        if waiting.all.len() >= INBOX_MAX || plain_bytes > INBOX_BYTES_MAX {
            return;
        }
        waiting.plain_bytes = plain_bytes;
        waiting.all.push(delivered);
        self.has_some.store(true, Ordering::Release);
        drop(waiting);
        self.waker.wake();
    }

    /// Takes what was delivered. Cost: a load if there is nothing.
    #[inline]
    pub(crate) fn take(&self) -> Vec<Delivered> {
        if !self.has_some.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut waiting = self.delivered.lock().unwrap_or_else(PoisonError::into_inner);
        self.has_some.store(false, Ordering::Relaxed);
        std::mem::take(&mut *waiting).all
    }
}
